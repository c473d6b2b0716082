//! Which kernel a configuration means for a problem.

use op::{Config, Epilogue, Problem, Result, Schedule, Strategy};

use super::kernel::WarpMultiplySpec;
use crate::families::choice::{Products, Tokens, ending, illegal, passes_twice, sizes};

/// The kernel of the products that a configuration asks for, for one group.
pub(super) fn kernel_config(problem: &Problem, config: &Config) -> Result<WarpMultiplySpec> {
    kernel_of(problem, config).map_err(illegal(config))
}

pub(super) fn kernel_of(problem: &Problem, config: &Config) -> Result<WarpMultiplySpec, String> {
    let [tokens, columns, units, stages] = sizes(config)?;
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
    let (function, output) = ending(problem, config.strategy);
    let kernel = WarpMultiplySpec {
        products: Products::of(problem, config.strategy),
        resident: if config.strategy == Strategy::PingPong { 2 } else { 1 },
        tokens,
        columns,
        units,
        stages,
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

/// Blocks that leave sums of each tile: there are no clusters for two to meet in.
pub(super) fn blocks_leaving_sums(config: &Config) -> u32 {
    if config.schedule == Schedule::SplitK { 2 } else { 1 }
}

/// Whether sums go through memory.
pub(super) fn joins(problem: &Problem, config: &Config) -> bool {
    passes_twice(problem, config) || blocks_leaving_sums(config) > 1
}
