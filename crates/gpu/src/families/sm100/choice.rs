//! Which kernel a configuration means for a problem.

use op::{Activation, Config, Problem, Result, Schedule, Setting, Shape, Strategy};

use super::kernel::TensorMultiplySpec;
use super::slabs::{DEPTH, UNIT};
use crate::families::choice::{Products, Tokens, ending, illegal, passes_twice};
use crate::ways::{Feature, Way};

/// Tiles side by side that share the copies of their tokens: two pairs of blocks, or 1 where none are shared.
pub(super) const MULTICAST: Setting = Setting::new("multicast", 1);
/// Stages at the end of k over which all of the gate's products come before the up matrix's, so that the gate's
/// function is computed beside those.
pub(super) const AHEAD: Setting = Setting::new("ahead", 0);
/// What these kernels can be told beside what all can.
pub(super) const SETTINGS: [Setting; 2] = [MULTICAST, AHEAD];

/// Columns of k of a stage: rows of 128 bytes, of codes or of numbers of 16 bits.
pub(super) fn depth(activation: Activation) -> usize {
    if activation == Activation::NvFp4 { DEPTH as usize } else { UNIT as usize }
}

/// The kernel of the products that a configuration asks for, for one group.
pub(super) fn kernel_config(problem: &Problem, config: &Config) -> Result<TensorMultiplySpec> {
    kernel_of(problem, config).map_err(illegal(config))
}

pub(super) fn kernel_of(problem: &Problem, config: &Config) -> Result<TensorMultiplySpec, String> {
    config.own.check(super::NAME, &SETTINGS)?;
    let activation = problem.activation();
    let depth = depth(activation);
    if config.depth != depth {
        return Err(format!(
            "a stage holds {depth} of K with {activation} tokens, rows of 128 bytes; ask for depth={depth}"
        ));
    }
    if config.schedule == Schedule::SplitK {
        if passes_twice(problem, config) {
            return Err(
                "two passes leave their sums in memory already; ask for another strategy with schedule=split-k".into(),
            );
        }
        let short = |shape: &&Shape| shape.k <= depth;
        if let Some(shape) = problem.groups().iter().find(short) {
            return Err(format!(
                "two blocks share K in steps of {depth}, and {shape} has one such step; ask for another schedule"
            ));
        }
    }
    let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let (function, output) = ending(problem, config.strategy);
    let aligned = |shape: &Shape| (shape.n * output.bytes()).is_multiple_of(16);
    let kernel = TensorMultiplySpec {
        products: Products::of(problem, config.strategy),
        element: (activation != Activation::NvFp4).then(|| Tokens::of(activation)),
        sets: if config.strategy == Strategy::PingPong { 2 } else { 1 },
        tokens: narrow(config.tile.tokens),
        columns: narrow(config.tile.columns),
        stages: narrow(config.stages),
        epilogue: config.epilogue,
        schedule: config.schedule,
        multicast: MULTICAST.value(&config.own),
        ahead: AHEAD.value(&config.own),
        aligned: problem.groups().iter().all(aligned),
        function,
        output,
        groups: 1,
        biased: false,
        experts: None,
    };
    kernel.check().map_err(|error| error.to_string())?;
    Ok(kernel)
}

/// What a configuration leans on for a problem.
pub(super) fn way(problem: &Problem, config: &Config) -> Way {
    let way = Way::of_products(problem, config, true);
    let Ok(kernel) = kernel_of(problem, config) else { return way };
    let way = way.with(if kernel.swapped() { Feature::Swapped } else { Feature::Upright });
    let way = way.with_if(Feature::Pair, kernel.paired()).with_if(Feature::Multicast, kernel.multicast > 1);
    let way = way.with_if(Feature::GateAhead, kernel.ahead > 0);
    if !kernel.swapped() {
        return way.with_width(kernel.columns);
    }
    let tokens = problem.groups().iter().filter(|shape| shape.m > 0).map(|shape| kernel.cut(shape.m as u32).1);
    tokens.fold(way, Way::with_width)
}

/// Blocks that leave sums of each tile.
pub(super) fn blocks_leaving_sums(config: &Config) -> u32 {
    if config.schedule == Schedule::SplitK { 2 } else { 1 }
}

/// Whether sums go through memory.
pub(super) fn joins(problem: &Problem, config: &Config) -> bool {
    passes_twice(problem, config) || blocks_leaving_sums(config) > 1
}
