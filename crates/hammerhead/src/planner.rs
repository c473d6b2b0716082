//! Plans that are made once per kind of problem.
//!
//! Weighing candidates takes milliseconds, and a server sees other numbers of tokens in every call. So problems are
//! sorted into kinds: the same types and weights, and numbers of tokens that agree in their first four binary digits. The choice is made for a
//! kind, not for the first problem of it that comes along: results must not depend, to the bit, on what was computed before.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use op::{Activation, Backend, Config, Gate, Output, Problem, Request, Result, Shape};

use crate::Plan;

/// Kinds that are remembered.
const REMEMBERED: usize = 4096;
/// Numbers of tokens up to which each is a kind of its own.
const EXACT: usize = 16;

/// Problems that are computed in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    activation: Activation,
    output: Output,
    gate: (std::mem::Discriminant<Gate>, u32),
    groups: Groups,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Groups {
    /// Weights of one shape: so many groups have tokens, so many the largest and so many all others together.
    Alike { n: usize, k: usize, active: usize, most: usize, rest: usize },
    /// Weights of several shapes, each with its number of tokens.
    Each(Vec<Shape>),
}

/// A number of tokens, rounded up to four binary digits.
fn rounded(tokens: usize) -> usize {
    match tokens {
        0..=EXACT => tokens,
        more => more.checked_next_multiple_of(1 << ((more - 1).ilog2() - 3)).unwrap_or(more),
    }
}

impl Kind {
    /// The kind of a problem.
    pub fn of(problem: &Problem) -> Self {
        let clamp = if let Gate::GptOss { clamp } = problem.gate() { clamp.to_bits() } else { 0 };
        let gate = (std::mem::discriminant(&problem.gate()), clamp);
        let groups = problem.groups();
        let Shape { n, k, .. } = groups[0];
        let groups = if groups.iter().all(|s| (s.n, s.k) == (n, k)) {
            let (mut active, mut most, mut total) = (0, 0, 0);
            for shape in groups {
                active += usize::from(shape.m > 0);
                most = most.max(shape.m);
                total += shape.m;
            }
            let (active, rest) = (rounded(active), total - most);
            let (most, others) = (rounded(most), active.saturating_sub(1));
            // Each of the others has one at least and none more than the largest.
            let rest = rounded(rest.max(others)).min(others.saturating_mul(most));
            Groups::Alike { n, k, active, most, rest }
        } else {
            Groups::Each(groups.iter().map(|s| Shape { m: rounded(s.m), ..*s }).collect())
        };
        Self { activation: problem.activation(), output: problem.output(), gate, groups }
    }

    /// The problem that stands for all of this kind, which `problem` is of.
    fn representative(&self, problem: &Problem) -> Result<Problem> {
        let groups = match &self.groups {
            Groups::Each(shapes) => shapes.clone(),
            &Groups::Alike { n, k, active, most, rest } => {
                let others = active.saturating_sub(1).max(1);
                let shares = (1..active).map(|index| rest / others + usize::from(index <= rest % others));
                std::iter::once(most).chain(shares).map(|m| Shape::new(m, n, k)).collect()
            }
        };
        Problem::new(groups, problem.gate(), problem.activation(), problem.output())
    }
}

/// Chooses among backends, and remembers.
#[derive(Debug)]
pub struct Planner {
    backends: Vec<&'static dyn Backend>,
    request: Request,
    threads: usize,
    choices: Mutex<HashMap<Kind, (&'static dyn Backend, Config)>>,
}

impl Planner {
    /// A planner that chooses among these backends, grants a request, and computes on so many threads.
    pub fn new(backends: Vec<&'static dyn Backend>, request: Request, threads: usize) -> Self {
        Self { backends, request, threads, choices: Mutex::default() }
    }

    /// The backends it chooses among, best first.
    pub fn backends(&self) -> &[&'static dyn Backend] {
        &self.backends
    }

    /// The number of threads that it plans for.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// How a problem is computed, with all that was weighed.
    pub fn plan(&self, problem: &Problem) -> Result<Plan> {
        let representative = Kind::of(problem).representative(problem)?;
        match Plan::best(representative, &self.backends, &self.request, self.threads) {
            Ok(plan) => plan.applied_to(problem, self.threads).map_or_else(|| self.plan_alone(problem), Ok),
            // A kind whose representative is too large may have members that are not.
            Err(_) => self.plan_alone(problem),
        }
    }

    /// A plan for this very problem.
    fn plan_alone(&self, problem: &Problem) -> Result<Plan> {
        Plan::best(problem.clone(), &self.backends, &self.request, self.threads)
    }

    /// How a problem is computed. Legal for it, and the same for all problems of its kind wherever that is.
    pub fn choose(&self, problem: &Problem) -> Result<(&'static dyn Backend, Config)> {
        let kind = Kind::of(problem);
        if let Some(&(backend, config)) = self.choices.lock().unwrap_or_else(PoisonError::into_inner).get(&kind)
            && backend.legal(problem, &config, self.threads).is_ok()
        {
            return Ok((backend, config));
        }
        let plan = self.plan(problem)?;
        let choice = (plan.backend(), *plan.config());
        let mut choices = self.choices.lock().unwrap_or_else(PoisonError::into_inner);
        if choices.len() >= REMEMBERED {
            choices.clear();
        }
        // Where a member of a kind needs another way than the rest, the rest keeps its own.
        choices.entry(kind).or_insert(choice);
        Ok(choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends;

    fn problem(tokens: &[usize]) -> Problem {
        let groups = tokens.iter().map(|&m| Shape::new(m, 64, 128)).collect();
        Problem::new(groups, Gate::Silu, Activation::NvFp4, Output::F16).unwrap()
    }

    #[test]
    fn tokens_agree_in_four_binary_digits() {
        assert_eq!([0, 1, 16, 17, 32, 33, 100, 128, 129].map(rounded), [0, 1, 16, 18, 32, 36, 104, 128, 144]);
        assert!((1..5000).all(|m| rounded(m) >= m && rounded(m) as f64 <= m as f64 * 1.125));
        assert_eq!(rounded(usize::MAX), usize::MAX);
    }

    #[test]
    fn a_kind_does_not_tell_counts_that_are_alike_and_tells_others() {
        let kind = |tokens: &[usize]| Kind::of(&problem(tokens));
        assert_eq!(kind(&[250]), kind(&[256]));
        assert_ne!(kind(&[128]), kind(&[256]));
        assert_eq!(kind(&[7, 0, 3]), kind(&[0, 3, 7]), "which expert has how many does not matter");
        assert_ne!(kind(&[7, 0, 3]), kind(&[5, 0, 5]), "how uneven they are does");
    }

    #[test]
    fn the_representative_is_of_its_own_kind_and_of_about_that_size() {
        for tokens in
            [vec![250], vec![0], vec![0, 0], vec![7, 0, 3, 1, 1], vec![100; 20], vec![33, 1, 1, 1], vec![15; 6]]
        {
            let problem = problem(&tokens);
            let kind = Kind::of(&problem);
            let representative = kind.representative(&problem).unwrap();
            assert_eq!(Kind::of(&representative), kind, "{tokens:?}");
            let (total, stands_for): (usize, usize) =
                (tokens.iter().sum(), representative.groups().iter().map(|s| s.m).sum());
            assert!(stands_for >= total && stands_for as f64 <= total as f64 * 1.3, "{tokens:?}: {stands_for}");
        }
    }

    #[test]
    fn a_choice_does_not_depend_on_what_was_chosen_before() {
        let planner = || Planner::new(vec![backends::by_name("scalar").unwrap()], Request::default(), 1);
        let (one, other) = (planner(), planner());
        let counts = [vec![250], vec![256], vec![241], vec![3, 9, 0], vec![9, 0, 3]];
        let forwards: Vec<Config> = counts.iter().map(|c| one.choose(&problem(c)).unwrap().1).collect();
        let backwards: Vec<Config> = counts.iter().rev().map(|c| other.choose(&problem(c)).unwrap().1).collect();
        assert!(forwards.iter().eq(backwards.iter().rev()));
        assert_eq!(forwards[0], forwards[1]);
        assert_eq!(one.plan(&problem(&counts[2])).unwrap().config(), &forwards[2], "what is explained is what is done");
    }
}
