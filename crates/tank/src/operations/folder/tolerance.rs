//! How near a result must be to the reference.

use serde::{Deserialize, Serialize};

use referee::task::{Element, Found};

/// An operation's rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Tolerance {
    /// Equal, but for the sign of zero.
    Exact,
    /// Within `absolute + relative · |expected|`.
    Close {
        /// What may be added.
        #[serde(default)]
        absolute: f64,
        /// The part of what is expected.
        #[serde(default)]
        relative: f64,
    },
    /// Within so many steps of the result's own type, from the reference rounded to nowhere.
    Ulp {
        /// Steps.
        steps: f64,
    },
    /// The operation's program judges.
    Judge,
}

impl Tolerance {
    /// How far from an expected number a result may be.
    fn allowed(&self, expected: f64, element: Element) -> f64 {
        match self {
            Tolerance::Exact | Tolerance::Judge => 0.0,
            Tolerance::Close { absolute, relative } => absolute + relative * expected.abs(),
            Tolerance::Ulp { steps } => steps * element.step_at(expected),
        }
    }

    /// Whether its numbers make sense; if not, why.
    pub fn fault(&self) -> Option<&'static str> {
        let sensible = |x: &f64| x.is_finite() && *x >= 0.0;
        match self {
            Tolerance::Close { absolute, relative } if !sensible(absolute) || !sensible(relative) => {
                Some("absolute and relative are numbers of 0 or more")
            }
            Tolerance::Close { absolute: 0.0, relative: 0.0 } => Some("nothing is allowed; write rule = \"exact\""),
            Tolerance::Ulp { steps } if !sensible(steps) => Some("steps is a number of 0 or more"),
            _ => None,
        }
    }

    /// Compares one tensor.
    pub(super) fn compare(&self, name: &str, element: Element, expected: &[f64], found: &[f64]) -> Found {
        let mut all = Found::default();
        let mut failures = 0u64;
        for (index, (&expected, &found)) in expected.iter().zip(found).enumerate() {
            all.compared += 1;
            let allowed = self.allowed(expected, element);
            let error = match (expected.is_finite(), expected == found || (expected.is_nan() && found.is_nan())) {
                (_, true) => 0.0,
                (true, false) => (found - expected).abs(),
                (false, false) => f64::NAN,
            };
            // What is no number is beyond any bound.
            if error > allowed || error.is_nan() {
                failures += 1;
                let told = || format!("{name}[{index}] is {found}, should be {expected} ± {allowed:.3e}");
                all.wrong.get_or_insert_with(told);
            } else if allowed > 0.0 {
                let ratio = error / allowed;
                all.squares += ratio * ratio;
                all.worst = all.worst.max(ratio);
            }
        }
        let compared = all.compared;
        all.wrong = all.wrong.map(|first| format!("{first}; {failures} of {compared} elements are wrong"));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_right(rule: &Tolerance, expected: f64, found: f64) -> bool {
        rule.compare("y", Element::F32, &[expected], &[found]).wrong.is_none()
    }

    #[test]
    fn each_rule_draws_its_line() {
        let close = Tolerance::Close { absolute: 1e-3, relative: 0.0 };
        assert!(is_right(&close, 1.0, 1.0009) && !is_right(&close, 1.0, 1.0011));
        let relative = Tolerance::Close { absolute: 0.0, relative: 0.01 };
        assert!(is_right(&relative, 100.0, 100.9) && !is_right(&relative, 1.0, 1.9));
        let steps = Tolerance::Ulp { steps: 2.0 };
        let after = |steps: u32| f64::from(f32::from_bits(1f32.to_bits() + steps));
        assert!(is_right(&steps, 1.0, after(2)) && !is_right(&steps, 1.0, after(3)));
        assert!(is_right(&Tolerance::Exact, 0.0, -0.0) && !is_right(&Tolerance::Exact, 1.0, after(1)));
    }

    #[test]
    fn what_is_no_number_is_wrong_unless_it_is_expected() {
        let close = Tolerance::Close { absolute: 1e300, relative: 1.0 };
        assert!(!is_right(&close, 1.0, f64::NAN) && !is_right(&close, f64::INFINITY, 1.0));
        assert!(!is_right(&close, f64::NAN, 1.0) && !is_right(&close, 1.0, f64::INFINITY));
        assert!(is_right(&close, f64::NAN, f64::NAN) && is_right(&close, f64::INFINITY, f64::INFINITY));
    }
}
