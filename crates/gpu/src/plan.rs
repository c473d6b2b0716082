//! Which configurations compute a problem on a device, and what each should cost: of products as the family says, and
//! of whole layers by both of their products and what is around them. One way of asking for all who plan.

use op::{Config, Cost, Error, LayerSpec, Precision, Problem, Result, Shape};
use ptx::Kernel;

use crate::experts::kernels::LayerKernels;
use crate::experts::plan::{self as layers, layer_of};
use crate::facts::Facts;
use crate::families::choice::illegal;
use crate::families::computing;
use crate::family::{Family, Phase};
use crate::round;
use crate::ways::Way;

/// Configurations worth trying for a problem on a device. Each is legal.
pub fn candidates(family: &'static dyn Family, problem: &Problem, facts: &Facts) -> Vec<Config> {
    let family = computing(family, problem);
    if check_problem(family, problem).is_err() {
        return Vec::new();
    }
    match layer_of(problem) {
        None => {
            let goes = |config: &Config| facts.goes(&family.way(problem, config)).is_ok();
            family.candidates(problem, facts).into_iter().filter(goes).collect()
        }
        Some(Ok(shape)) => layers::candidates(family, &shape, problem, facts),
        Some(Err(_)) => Vec::new(),
    }
}

/// Whether a family has kernels for a problem's precision and scales, or why not.
fn check_problem(family: &dyn Family, problem: &Problem) -> Result<(), String> {
    problem.check_halves().map_err(|error| error.to_string())?;
    // Of a layer, the rows between its products, too.
    let row = |shape: &Shape| if problem.whole().is_some() { shape.k.max(shape.n) } else { shape.k };
    check_precision(family, problem.precision(), problem.groups().iter().map(row).max().unwrap_or(0))
}

/// Whether a family has kernels for a whole layer's precision.
pub fn check_layer(family: &dyn Family, layer: &LayerSpec<'_>) -> Result<()> {
    layer.check()?;
    let [k, inner, _] = layer.weights.experts()[0].widths();
    let inner = layer.weights.shared().map_or(inner, |shared| inner.max(shared.mlp().widths()[1]));
    check_precision(family, layer.precision, k.max(inner)).map_err(|reason| Error::Fp8Tokens { reason })
}

fn check_precision(family: &dyn Family, precision: Precision, longest: usize) -> Result<(), String> {
    if precision == Precision::Exact {
        return Ok(());
    }
    if !family.multiplies_fp8() {
        return Err(format!(
            "{} kernels multiply exactly only; fp8 tokens are for Hopper (sm90): ask for exact here",
            family.name()
        ));
    }
    if longest > round::MOST_K {
        let most = round::MOST_K;
        return Err(format!("rows of {longest}, and of at most {most} are rounded to fp8; ask for exact"));
    }
    Ok(())
}

/// Whether a configuration is legal for a problem on a device, or why not.
pub fn legal(family: &'static dyn Family, problem: &Problem, config: &Config, facts: &Facts) -> Result<(), String> {
    let family = computing(family, problem);
    check_problem(family, problem)?;
    match layer_of(problem) {
        None => family.legal(problem, config, facts)?,
        Some(shape) => LayerKernels::new(family, &shape?, config, facts).map(drop)?,
    }
    facts.goes(&way(family, problem, config, facts)?)
}

/// What a legal configuration leans on for a problem on a device.
pub fn way(family: &'static dyn Family, problem: &Problem, config: &Config, facts: &Facts) -> Result<Way, String> {
    let family = computing(family, problem);
    match layer_of(problem) {
        None => Ok(family.way(problem, config)),
        Some(shape) => layers::way(family, &shape?, config, facts),
    }
}

/// What a configuration should cost for a problem on a device, or why it is not legal.
pub fn cost(family: &'static dyn Family, problem: &Problem, config: &Config, facts: &Facts) -> Result<Cost, String> {
    let family = computing(family, problem);
    check_problem(family, problem)?;
    if !facts.left_out.is_empty() {
        facts.goes(&way(family, problem, config, facts)?)?;
    }
    match layer_of(problem) {
        None => family.cost(problem, config, facts),
        Some(shape) => layers::cost(family, &shape?, problem, config, facts),
    }
}

/// What happens one after the other, and what bounds each; or why the configuration is not legal.
pub fn phases(
    family: &'static dyn Family,
    problem: &Problem,
    config: &Config,
    facts: &Facts,
) -> Result<Vec<Phase>, String> {
    let family = computing(family, problem);
    match layer_of(problem) {
        None => family.phases(problem, config, facts),
        Some(shape) => layers::phases(family, &shape?, problem, config, facts),
    }
}

/// The kernels that a configuration runs for a problem on a device: of whole layers, those of both products.
pub fn kernels(family: &'static dyn Family, problem: &Problem, config: &Config, facts: &Facts) -> Result<Vec<Kernel>> {
    let family = computing(family, problem);
    let Some(shape) = layer_of(problem) else { return family.kernels(problem, config) };
    let kernels = shape.and_then(|shape| LayerKernels::new(family, &shape, config, facts));
    let LayerKernels { gate_up, down, .. } = kernels.map_err(illegal(config))?;
    [gate_up, down].iter().map(|kernel| kernel.spec().build()).collect()
}

/// The configuration that should be the fastest.
pub fn cheapest(family: &'static dyn Family, problem: &Problem, facts: &Facts) -> Result<Config> {
    let configs = candidates(family, problem, facts);
    layers::cheapest_of(configs, problem, family.name(), |config| cost(family, problem, config, facts))
}

#[cfg(test)]
mod tests {
    use op::{Activation, Gate, Intermediate, Output, Own, Request, Whole};

    use super::*;
    use crate::experts::shape::LayerShape;
    use crate::families;

    const HOPPER: &dyn Family = &families::sm90::Sm90;

    /// Qwen3-30B's layer for so many tokens.
    fn layer(tokens: usize, activation: Activation, batch_invariant: bool) -> Problem {
        let (intermediate, scaled) = (Intermediate::Tokens, [false; 2]);
        let whole = Whole { tokens, top: 8, width: 2048, intermediate, scaled, batch_invariant };
        Problem::layer(128, [2048, 768], Gate::Silu, (activation, Output::BF16), whole).expect("a layer")
    }

    fn device(family: &dyn Family) -> Facts {
        match family.name() {
            "sm80" => Facts::a100(),
            "sm100" => Facts::b200(),
            "sm120" => Facts::rtx5090(),
            _ => Facts::h200(),
        }
    }

    #[test]
    fn every_family_has_priced_ways_for_layers_of_any_size_and_they_read_back() {
        for family in families::ALL {
            let facts = device(family);
            for tokens in [1, 7, 64, 512, 5000] {
                for (activation, invariant) in
                    [(Activation::BF16, false), (Activation::F32, false), (Activation::F16, true)]
                {
                    let problem = layer(tokens, activation, invariant);
                    let all = candidates(family, &problem, &facts);
                    assert!(all.len() > 1, "{}: {} for {problem}", family.name(), all.len());
                    for config in all {
                        let priced = cost(family, &problem, &config, &facts).expect("a candidate is legal");
                        assert!(priced.seconds > 1e-6 && priced.seconds < 1.0, "{config}: {}", priced.seconds);
                        let read: Request = config.to_string().parse().expect("it reads back");
                        assert_eq!(read.complete(), Some(config));
                        let shape = LayerShape::of_problem(&problem).expect("a layer");
                        let kernels = LayerKernels::new(family, &shape, &config, &facts).expect("it has kernels");
                        assert_eq!(kernels.gate_up.tile()[0], kernels.down.tile()[0], "{config}");
                        let alike = !kernels.gate_up.shares_k() && !kernels.down.shares_k();
                        assert!(alike || !invariant, "{config}");
                    }
                }
            }
        }
    }

    #[test]
    fn more_tokens_take_longer_and_get_larger_tiles() {
        for family in families::ALL {
            let facts = device(family);
            let planned = [1, 64, 512, 4096].map(|tokens| {
                let problem = layer(tokens, Activation::BF16, false);
                let config = cheapest(family, &problem, &facts).expect("a way");
                (cost(family, &problem, &config, &facts).expect("a price").seconds, config.tile.tokens)
            });
            assert!(planned.is_sorted_by(|(one, _), (other, _)| one < other), "{}: {planned:?}", family.name());
            assert!(planned.is_sorted_by_key(|(_, tile)| *tile), "{}: {planned:?}", family.name());
            assert!(planned[3].1 > planned[0].1, "{}: {planned:?}", family.name());
        }
    }

    #[test]
    fn phases_are_what_the_price_is_made_of() {
        let (family, facts) = (HOPPER, Facts::h200());
        let problem = layer(64, Activation::F32, false);
        let config = cheapest(family, &problem, &facts).expect("a way");
        let phases = phases(family, &problem, &config, &facts).expect("phases");
        let names: Vec<&str> = phases.iter().map(|phase| phase.what).collect();
        let expected =
            ["tokens to their experts", "gate and up", "between the products", "down", "each token's results summed"];
        assert_eq!(names, expected);
        let all: f64 = phases.iter().map(|phase| phase.seconds).sum();
        assert_eq!(cost(family, &problem, &config, &facts).expect("a price").seconds, all);
    }

    #[test]
    fn what_a_layer_cannot_be_asked_is_refused_with_what_it_can() {
        let (family, facts) = (HOPPER, Facts::h200());
        let problem = layer(64, Activation::BF16, false);
        let config = cheapest(family, &problem, &facts).expect("a way");
        for (wish, words) in [
            ("schedule=tile", "schedule=persistent"),
            ("strategy=two-pass", "strategy=interleaved"),
            ("multicast=2", "down, down-depth, down-stages, down-under, down-warps, under and warps"),
            ("down=96", "there is no such kernel for the second product"),
            ("tile=7x64", "multiple of 8"),
        ] {
            let asked = wish.parse::<Request>().expect("a request").applied_to(config, &[]);
            let asked = if wish.starts_with("down") {
                Config { own: Own::NONE.with("down", 96).unwrap(), ..asked }
            } else {
                asked
            };
            let reason = legal(family, &problem, &asked, &facts).expect_err(wish);
            assert!(reason.contains(words), "{wish}: {reason}");
        }
        let narrow = Whole { width: 1024, ..*problem.whole().expect("a layer") };
        let narrow = Problem::layer(128, [2048, 768], Gate::Silu, (Activation::BF16, Output::BF16), narrow).unwrap();
        assert!(candidates(family, &narrow, &facts).is_empty());
        assert!(legal(family, &narrow, &config, &facts).unwrap_err().contains("as wide as its tokens"));
    }
}
