//! Which kernel a configuration means for a problem.

use op::{Config, Epilogue, Error, Problem, Result, Schedule, Strategy};

use super::kernel::{Tokens, UNIT, WarpMultiplySpec};
use crate::families::sm90::{ending, passes_twice, products};

/// The kernel of the products that a configuration asks for, for one group.
pub(super) fn kernel_config(problem: &Problem, config: &Config) -> Result<WarpMultiplySpec> {
    kernel_of(problem, config).map_err(|reason| Error::Illegal { backend: "cuda", config: *config, reason })
}

pub(super) fn kernel_of(problem: &Problem, config: &Config) -> Result<WarpMultiplySpec, String> {
    let unit = UNIT as usize;
    if !config.depth.is_multiple_of(unit) {
        return Err(format!("a stage holds chunks of {unit} of K; ask for depth=64, 128 or 256"));
    }
    if config.schedule == Schedule::SplitK {
        if passes_twice(problem, config) {
            return Err(
                "two passes leave their sums in memory already; ask for another strategy with schedule=split-k".into(),
            );
        }
        if config.epilogue != Epilogue::Direct {
            return Err(
                "blocks that share K leave sums as they are; ask for epilogue=direct with schedule=split-k".into()
            );
        }
    }
    let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let (function, output) = ending(problem, config);
    let kernel = WarpMultiplySpec {
        products: products(problem, config.strategy),
        resident: if config.strategy == Strategy::PingPong { 2 } else { 1 },
        tokens: narrow(config.tile.tokens),
        columns: narrow(config.tile.columns),
        units: narrow(config.depth / unit),
        stages: narrow(config.stages),
        epilogue: config.epilogue,
        schedule: config.schedule,
        element: Tokens::of(problem.activation()),
        function,
        output,
        groups: 1,
    };
    kernel.check().map_err(|error| error.to_string())?;
    Ok(kernel)
}

/// Whether sums go through memory.
pub(super) fn joins(problem: &Problem, config: &Config) -> bool {
    passes_twice(problem, config) || config.schedule == Schedule::SplitK
}
