//! The trial before first use: on a GPU that no kernel of a family was measured on, every way that the planner can take
//! there is tried against the reference, and a way that fails is left out of plans.
//!
//! A [`Trial`] is a way ([`crate::ways`]), and a small problem and a configuration that go it. [`all`] finds them by
//! asking the planner itself what it would consider for a spread of small problems, so that a way cannot be forgotten:
//! a test asks it for many other problems and looks every answer up.
//!
//! A fault on a GPU is sticky: it takes the process's context with it, which in a process with PyTorch is PyTorch's. So
//! ways are tried in a process of their own (`child`), which is killed if it does not answer in time. Which program
//! that is, [`tried_by`] and [`TRIAL_VARIABLE`] say. Where there is none, ways are tried in the process itself, but for
//! those that lean on several blocks at once. What came of it is kept on disk (`kept`) per device, driver and version
//! of the kernels.
//!
//! `attempt` computes one trial on a [`Machine`], be it a GPU (`on_device`) or the simulator, whose GPUs can be made to
//! break one rule.

mod attempt;
mod child;
mod kept;
mod on_device;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use op::{Activation, Config, Gate, Intermediate, Output, Precision, Problem, Result, Shape, Whole};

use crate::facts::Facts;
use crate::family::Family;
use crate::plan;
use crate::ways::{Feature, LeftOut, SizeKey, Way};

pub use attempt::{Attempts, Machine};
pub use child::{TRIAL_VARIABLE, serve, tried_by};
pub use kept::{TRIALS_VARIABLE, can_be_kept, driver_version};
pub use on_device::LIMIT;
pub(crate) use on_device::{of_device, serve_device, tried_now};

/// Multiprocessors that launches are made for: few, so that blocks have several tiles also of a small problem.
pub(crate) const MULTIPROCESSORS: u32 = 3;

/// Tokens and columns of the products: a tile or two of every size, and two tiles of each kind side by side, at odd
/// positions too, each with a rest. The last has rows that are written element by element.
const SIDES: [[usize; 2]; 4] = [[19, 328], [190, 328], [220, 328], [190, 327]];
/// Their depth: a stage and a rest.
const DEPTH: usize = 272;
/// Groups beyond those that a small table of arguments has room for, and their columns.
const GROUPS: usize = 33;
const GROUP_COLUMNS: usize = 72;
/// A layer: experts, experts of a token, and its sides; tokens that make few and many rows per expert.
const EXPERTS: usize = 3;
const TOP: usize = 2;
const LAYER_SIDES: [usize; 2] = [272, 176];
const LAYER_TOKENS: [usize; 3] = [9, 70, 160];
/// What tokens and intermediates of layers are tried, and whether the first product's inputs are multiplied with a
/// scale.
const LAYER_TYPES: [(Activation, Intermediate, bool); 6] = [
    (Activation::BF16, Intermediate::Tokens, false),
    (Activation::F16, Intermediate::NvFp4, false),
    (Activation::F32, Intermediate::Tokens, false),
    (Activation::F32, Intermediate::NvFp4, false),
    (Activation::BF16, Intermediate::F32, false),
    (Activation::BF16, Intermediate::Tokens, true),
];

/// Sizes that features are tried with, until one is right.
const OPTIONS: usize = 3;

/// A way, and a problem and a configuration that go it.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The way that is on trial.
    pub way: Way,
    /// What is computed.
    pub problem: Problem,
    /// How.
    pub config: Config,
}

/// The small problems of the trials.
fn problems() -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    let k = DEPTH;
    for activation in [Activation::NvFp4, Activation::F16, Activation::F32] {
        for (gate, output) in [(Gate::Silu, Output::F16), (Gate::None, Output::F32)] {
            for [m, n] in SIDES {
                problems.push(Problem::new(vec![Shape::new(m, n, k)], gate, activation, output)?);
            }
        }
        let groups = (0..GROUPS).map(|group| Shape::new(1 + group % 5, GROUP_COLUMNS, k)).collect();
        problems.push(Problem::new(groups, Gate::Silu, activation, Output::F16)?);
    }
    for [m, n] in SIDES {
        for (gate, output) in [(Gate::Silu, Output::F16), (Gate::None, Output::F32)] {
            let problem = Problem::new(vec![Shape::new(m, n, k)], gate, Activation::F16, output)?;
            problems.push(problem.with_precision(Precision::Fp8)?);
        }
    }
    for (activation, intermediate, scaled) in LAYER_TYPES {
        for tokens in LAYER_TOKENS {
            let (width, scaled) = (LAYER_SIDES[0], [scaled, false]);
            let whole = Whole { tokens, top: TOP, width, intermediate, scaled, batch_invariant: false };
            let layer = Problem::layer(EXPERTS, LAYER_SIDES, Gate::Silu, (activation, Output::F32), whole)?;
            // What is rounded to e4m3 has one way, whatever it was.
            if (activation, intermediate) == (Activation::BF16, Intermediate::Tokens) && !scaled[0] {
                problems.push(layer.clone().with_precision(Precision::Fp8)?);
            }
            problems.push(layer);
        }
    }
    Ok(problems)
}

/// Every way that the planner can take with a family's kernels on a device, the simplest first, as it is found in the
/// planner's candidates for the small problems: features with a few of the sizes that they come with, and every size
/// with the fewest features. Of configurations that go the same way it is the one that takes the fewest steps and still
/// has more tiles than blocks.
pub fn all(family: &'static dyn Family, facts: &Facts) -> Result<Vec<Trial>> {
    // Left-out ways are for plans; what is to be tried depends on none.
    let facts = Facts { left_out: Vec::new(), ..facts.clone() };
    let (mut ways, mut sizes) = (BTreeMap::new(), BTreeMap::new());
    for problem in problems()? {
        for config in plan::candidates(family, &problem, &facts) {
            let Ok(way) = plan::way(family, &problem, &config, &facts) else { continue };
            let tiles: usize = problem.groups().iter().map(|shape| tiles(shape, &config)).sum();
            let effort = (tiles <= 2 * MULTIPROCESSORS as usize, family.steps(&problem, &config));
            let trial = || Trial { way, problem: problem.clone(), config };
            keep(&mut ways, way, effort, trial);
            // A layer's sizes are those of its products.
            for key in way.size_keys().into_iter().filter(|_| !way.has(Feature::Layer)) {
                keep(&mut sizes, key, (way.weight(), effort), trial);
            }
        }
    }
    let mut options: BTreeMap<Way, Vec<_>> = BTreeMap::new();
    for (way, kept) in ways {
        options.entry(way.features_only()).or_default().push(kept);
    }
    let mut all: BTreeMap<Way, Trial> = sizes.into_values().map(|(_, trial)| (trial.way, trial)).collect();
    for mut same in options.into_values() {
        same.sort_by_key(|(effort, _)| *effort);
        all.extend(same.into_iter().take(OPTIONS).map(|(_, trial)| (trial.way, trial)));
    }
    let mut all: Vec<Trial> = all.into_values().collect();
    all.sort_by_key(|trial| (trial.way.features_only().weight(), trial.way.features_only()));
    Ok(all)
}

/// Whether a way is among those on trial: its features together, and each of its sizes.
pub fn is_tried(trials: &[Trial], way: &Way) -> bool {
    let size = |key: &SizeKey| trials.iter().any(|trial| trial.way.size_keys().contains(key));
    let features = trials.iter().any(|trial| trial.way.features_only() == way.features_only());
    features && way.size_keys().iter().all(size)
}

fn tiles(shape: &Shape, config: &Config) -> usize {
    shape.m.div_ceil(config.tile.tokens) * shape.n.div_ceil(config.tile.columns)
}

/// Keeps the trial of the least effort under a key.
fn keep<K: Ord, E: Ord>(map: &mut BTreeMap<K, (E, Trial)>, key: K, effort: E, trial: impl FnOnce() -> Trial) {
    match map.get(&key) {
        Some((known, _)) if *known <= effort => {}
        _ => drop(map.insert(key, (effort, trial()))),
    }
}

/// Tries ways one after another, and says which are left out of plans.
///
/// Features are tried together with some size; if that fails, with others. If none is right, the features are to blame,
/// and whatever leans on them is not tried any more; if one is, the sizes of those that are wrong are. Sizes that no
/// features came with are tried last.
pub fn left_out(trials: &[Trial], mut attempt: impl FnMut(&Trial) -> Result<(), String>) -> Vec<LeftOut> {
    let mut left_out: Vec<LeftOut> = Vec::new();
    let mut seen: BTreeSet<SizeKey> = BTreeSet::new();
    for same in trials.chunk_by(|one, other| one.way.features_only() == other.way.features_only()) {
        let mut wrong = Vec::new();
        let mut right = false;
        for trial in same {
            if right || left_out.iter().any(|known| known.covers(&trial.way)) {
                continue;
            }
            match attempt(trial) {
                Ok(()) => right = true,
                Err(reason) => wrong.push(LeftOut { way: trial.way, reason }),
            }
            seen.extend(trial.way.size_keys());
        }
        match wrong.first() {
            Some(first) if !right => left_out.push(LeftOut { way: first.way.features_only(), ..first.clone() }),
            _ => left_out.extend(wrong),
        }
    }
    for trial in trials.iter().filter(|trial| !trial.way.has(Feature::Layer)) {
        let new = trial.way.size_keys().iter().any(|key| !seen.contains(key));
        if new && !left_out.iter().any(|known| known.covers(&trial.way)) {
            left_out.extend(attempt(trial).err().map(|reason| LeftOut { way: trial.way, reason }));
            seen.extend(trial.way.size_keys());
        }
    }
    left_out
}

/// Where ways were tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a process of their own.
    Apart,
    /// In this one, but for those that lean on several blocks at once.
    Here,
}

/// What came of a GPU's trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// How many ways were tried, and how many of them computed right.
    pub ways: usize,
    /// See there.
    pub right: usize,
    /// Where they were tried.
    pub place: Place,
    /// Those that are left out of plans.
    pub left_out: Vec<LeftOut>,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            Place::Apart => "in a process of their own",
            Place::Here => "in this process",
        };
        write!(f, "{} ways were tried {place}, ", self.ways)?;
        if self.left_out.is_empty() {
            return f.write_str("all computed right");
        }
        let each: Vec<String> = self.left_out.iter().map(LeftOut::to_string).collect();
        write!(f, "and plans go without {}", each.join("; without "))
    }
}
