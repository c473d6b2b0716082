//! Plans that are made once per kind of problem.
//!
//! Weighing candidates takes milliseconds, and a server sees other numbers of tokens in every call. So problems are
//! sorted into kinds: the same types and weights, and numbers of tokens that agree in their first four binary digits.
//! Candidates are weighed for a kind, by a problem that stands for it and not by the first that comes along: results
//! must not depend, to the bit, on what was computed before. Where there are a few ragged groups, the best few are
//! weighed again for each problem.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use format::Scaling;
use op::{Activation, Backend, Choose, Config, Gate, Output, Precision, Problem, Request, Result, Shape, Whole};

use crate::{Basis, Plan};

/// Kinds that are remembered.
const REMEMBERED: usize = 4096;
/// Numbers of tokens up to which each is a kind of its own.
const EXACT: usize = 16;

/// Problems that are computed in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    activation: Activation,
    output: Output,
    precision: Precision,
    scaling: Scaling,
    gate: (std::mem::Discriminant<Gate>, [u64; 3]),
    groups: Groups,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Groups {
    /// Weights of one shape: so many groups have tokens, so many the largest and so many all others together.
    Alike { n: usize, k: usize, active: usize, most: usize, rest: usize },
    /// Weights of several shapes, each with its number of tokens.
    Each(Vec<Shape>),
    /// A whole layer of so many experts.
    Whole { experts: usize, n: usize, k: usize, whole: Whole },
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
        let parameters = match problem.gate() {
            Gate::GptOss { alpha, beta, limit } => [alpha, beta.into(), limit.into()],
            Gate::SiluLimited { limit } => [0.0, 0.0, limit.into()],
            Gate::Silu | Gate::GeluTanh | Gate::Relu2 | Gate::None => [0.0; 3],
        };
        let gate = (std::mem::discriminant(&problem.gate()), parameters.map(f64::to_bits));
        let groups = problem.groups();
        let Shape { n, k, .. } = groups[0];
        let groups = if let Some(&whole) = problem.whole() {
            Groups::Whole { experts: groups.len(), n, k, whole: Whole { tokens: rounded(whole.tokens), ..whole } }
        } else if groups.iter().all(|s| (s.n, s.k) == (n, k)) {
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
        let (activation, output, precision) = (problem.activation(), problem.output(), problem.precision());
        Self { activation, output, precision, scaling: problem.scaling(), gate, groups }
    }

    /// The same problem without groups that have no tokens, if that says the same: a token of a layer has a few of
    /// hundreds of experts, and to weigh a way takes as long as there are groups.
    fn without_idle(&self, problem: &Problem) -> Option<Problem> {
        let Groups::Alike { active: 1.., .. } = self.groups else { return None };
        let groups = problem.groups().iter().copied().filter(|shape| shape.m > 0).collect();
        problem.with_groups(groups).ok()
    }

    /// The problem that stands for all of this kind, which `problem` is of.
    fn representative(&self, problem: &Problem) -> Result<Problem> {
        let types = (problem.activation(), problem.output());
        let groups = match &self.groups {
            &Groups::Whole { experts, n, k, whole } => {
                let layer = Problem::layer(experts, [k, n], problem.gate(), types, whole)?;
                return layer.like(problem);
            }
            Groups::Each(shapes) => shapes.clone(),
            &Groups::Alike { n, k, active, most, rest } => std::iter::once(most)
                .chain(spread(active.saturating_sub(1), most, rest))
                .map(|m| Shape::new(m, n, k))
                .collect(),
        };
        problem.with_groups(groups)
    }
}

/// So many groups with `rest` tokens together, none with more than `most`: unevenly, as routers do it, from the longest
/// down in equal steps. Equal shares would tell the planner that all tiles are alike, which is the one thing they never
/// are.
fn spread(groups: usize, most: usize, rest: usize) -> Vec<usize> {
    if groups == 0 {
        return Vec::new();
    }
    let average = rest / groups;
    let reach = 2 * most.saturating_sub(average).min(average.saturating_sub(1)) / 3;
    let last = groups - 1;
    let mut shares: Vec<usize> =
        (0..groups).map(|index| average + reach - (2 * reach * index).checked_div(last).unwrap_or(reach)).collect();
    // What rounding left over goes to those with the fewest, and what it took too much comes from those with the most.
    let mut sum: usize = shares.iter().sum();
    for index in (0..groups).rev().cycle() {
        if sum == rest {
            break;
        }
        if sum < rest && shares[index] < most {
            shares[index] += 1;
            sum += 1;
        } else if sum > rest && shares[last - index] > 1 {
            shares[last - index] -= 1;
            sum -= 1;
        }
    }
    shares
}

/// Ways that were found best for a kind, best first.
type Ways = Vec<(&'static dyn Backend, Config)>;

/// Chooses among backends, and remembers.
#[derive(Debug)]
pub struct Planner {
    backends: Vec<&'static dyn Backend>,
    request: Request,
    threads: usize,
    choices: Mutex<HashMap<Kind, Ways>>,
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
            Ok(plan) => {
                let few = few(&plan);
                plan.applied_to(problem, self.threads, few).map_or_else(|| self.plan_alone(problem), Ok)
            }
            // A kind whose representative is too large may have members that are not.
            Err(_) => self.plan_alone(problem),
        }
    }

    /// A plan for this very problem.
    fn plan_alone(&self, problem: &Problem) -> Result<Plan> {
        Plan::best(problem.clone(), &self.backends, &self.request, self.threads)
    }

    /// How a problem is computed, as [`Planner::plan`] says; what was weighed for its kind is remembered.
    pub fn choose(&self, problem: &Problem) -> Result<(&'static dyn Backend, Config)> {
        let kind = Kind::of(problem);
        // A GPU's kernels may care how many groups there are.
        let processor = self.backends.iter().all(|backend| backend.layout() == cpu::LAYOUT);
        let active = processor.then(|| kind.without_idle(problem)).flatten();
        let problem = active.as_ref().unwrap_or(problem);
        if let Some(ways) = self.choices.lock().unwrap_or_else(PoisonError::into_inner).get(&kind)
            && let Some(choice) = self.cheapest(ways, problem)
        {
            return Ok(choice);
        }
        let representative = kind.representative(problem)?;
        let Ok(plan) = Plan::best(representative, &self.backends, &self.request, self.threads) else {
            let plan = self.plan_alone(problem)?;
            return Ok((plan.backend(), *plan.config()));
        };
        let ways: Ways = plan.considered().iter().take(few(&plan)).map(|way| (way.backend, way.config)).collect();
        let choice = match self.cheapest(&ways, problem) {
            Some(choice) => choice,
            None => {
                let plan = self.plan_alone(problem)?;
                (plan.backend(), *plan.config())
            }
        };
        let mut choices = self.choices.lock().unwrap_or_else(PoisonError::into_inner);
        if choices.len() >= REMEMBERED {
            choices.clear();
        }
        choices.insert(kind, ways);
        Ok(choice)
    }

    /// The cheapest of some ways for a problem, if one of them is legal.
    fn cheapest(&self, ways: &Ways, problem: &Problem) -> Option<(&'static dyn Backend, Config)> {
        if let [(backend, config)] = ways[..] {
            return backend.legal(problem, &config, self.threads).is_ok().then_some((backend, config));
        }
        let priced = ways.iter().filter_map(|&(backend, config)| {
            Some((backend.check(problem, &config, self.threads).ok()?.seconds, (backend, config)))
        });
        priced.min_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, way)| way)
    }
}

impl Choose for Planner {
    fn choose(&self, problem: &Problem) -> Result<Config> {
        Planner::choose(self, problem).map(|(_, config)| config)
    }
}

/// How many of the ways that are best for a kind, whose representative this is a plan for, are weighed again for each
/// problem of it. A few ragged groups differ enough from those that stand for them to want another way; many are alike,
/// and one is like itself, as are groups of one token each. Weighing a way takes a microsecond or two, so there are as
/// many as take a twentieth of the computation.
fn few(plan: &Plan) -> usize {
    const MOST: f64 = 6.0;
    const WORTH_A_WAY: f64 = 40e-6;
    let groups = plan.problem().groups();
    let ragged = plan.problem().whole().is_none() && (2..=16).contains(&groups.len()) && groups.iter().any(|s| s.m > 1);
    match plan.basis() {
        Basis::Model | Basis::Illegal { .. } if ragged => (plan.cost().seconds / WORTH_A_WAY).clamp(1.0, MOST) as usize,
        _ => 1,
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
    fn what_is_chosen_for_a_kind_is_nearly_as_cheap_as_what_would_be_chosen_for_the_problem_alone() {
        let ragged: [(&[usize], usize, usize); 5] = [
            (&[80, 176, 128, 72, 64, 248, 96, 160], 4096, 7168),
            (&[40, 76, 168, 72, 164, 148, 196, 160], 7168, 2048),
            (&[192, 320], 3072, 4096),
            (&[128, 384], 4096, 1536),
            (&[250], 4096, 7168),
        ];
        for (name, (tokens, n, k)) in ["cuda", "scalar"].into_iter().flat_map(|name| ragged.map(|case| (name, case))) {
            let backend = backends::by_name(name).unwrap();
            let groups = tokens.iter().map(|&m| Shape::new(m, n, k)).collect();
            let problem = Problem::new(groups, Gate::Silu, Activation::F16, Output::F16).unwrap();
            let planner = Planner::new(vec![backend], Request::default(), 2);
            let cost = |config: &Config| backend.check(&problem, config, 2).unwrap().seconds;
            let (kind, alone) = (planner.choose(&problem).unwrap().1, *planner.plan_alone(&problem).unwrap().config());
            assert!(cost(&kind) <= 1.03 * cost(&alone), "{name} on {problem}: {kind} instead of {alone}");
        }
    }

    #[test]
    fn groups_of_one_token_each_are_weighed_once() {
        let ways = |tokens: &[usize]| {
            let groups = tokens.iter().map(|&m| Shape::new(m, 4096, 7168)).collect();
            let problem = Problem::new(groups, Gate::Silu, Activation::BF16, Output::F16).unwrap();
            let planner = Planner::new(vec![backends::by_name("scalar").unwrap()], Request::default(), 2);
            let chosen = planner.choose(&problem).unwrap().1;
            assert_eq!(chosen, *planner.plan(&problem).unwrap().config());
            let choices = planner.choices.lock().unwrap();
            choices.values().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(ways(&[1, 0, 1, 1, 0, 1]), [1]);
        assert!(ways(&[1, 0, 3, 1, 0, 1])[0] > 1, "ragged groups are weighed for each problem");
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
        // Enough work for several ways to be weighed, and as many active groups, alone or among others.
        let long = |tokens: &[usize], idle: usize| {
            let tokens = tokens.iter().copied().chain(std::iter::repeat_n(0, idle));
            let groups = tokens.map(|m| Shape::new(m, 4096, 7168)).collect();
            Problem::new(groups, Gate::Silu, Activation::NvFp4, Output::F16).unwrap()
        };
        let (few, many) = (long(&[80, 176, 128], 0), long(&[80, 176, 128], 17));
        let (first, second) = (planner(), planner());
        let alone = first.choose(&few).unwrap().1;
        assert_eq!(first.choose(&many).unwrap().1, alone);
        assert_eq!(second.choose(&many).unwrap().1, alone);
        assert_eq!(second.choose(&few).unwrap().1, alone);
        assert_eq!(one.plan(&problem(&counts[2])).unwrap().config(), &forwards[2], "what is explained is what is done");
    }
}
