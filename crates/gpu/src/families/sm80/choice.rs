//! Which kernel a configuration means for a problem.

use op::{Activation, Config, Epilogue, Problem, Result, Schedule, Strategy};

use ptx::{Feature, Target};

use super::kernel::WarpMultiplySpec;
use crate::families::choice::{Products, Tokens, ending, illegal, passes_twice, sizes};

/// The kernel of the products that a configuration asks for, for one group.
pub(in crate::families) fn kernel_config(
    target: Target,
    problem: &Problem,
    config: &Config,
) -> Result<WarpMultiplySpec> {
    kernel_of(target, problem, config).map_err(illegal(config))
}

pub(super) fn kernel_of(target: Target, problem: &Problem, config: &Config) -> Result<WarpMultiplySpec, String> {
    let [tokens, columns, units, stages] = sizes(target.name(), config, &[])?;
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
        if problem.scaling().is_fp8() {
            return Err("FP8 weights have scales that the sums of half of K are not left without; ask for \
                        schedule=tile or persistent"
                .into());
        }
    }
    let (function, output) = ending(problem, config.strategy);
    let products = Products::of(problem, config.strategy);
    let kernel = WarpMultiplySpec {
        target,
        scaling: problem.scaling(),
        products,
        resident: if config.strategy == Strategy::PingPong { 2 } else { 1 },
        tokens,
        columns,
        units,
        stages,
        epilogue: config.epilogue,
        schedule: config.schedule,
        element: element_of(target, problem.activation()),
        function,
        output,
        groups: 1,
        biased: false,
        experts: None,
    };
    kernel.check().map_err(|error| error.to_string())?;
    Ok(kernel)
}

/// What tokens of a type become before they are multiplied.
pub(in crate::families) fn element_of(target: Target, activation: Activation) -> Tokens {
    match activation {
        Activation::NvFp4 if target.has(Feature::BlockScaledMma) => Tokens::NvFp4,
        other => Tokens::of(other),
    }
}

/// Blocks that leave sums of each tile: there are no clusters for two to meet in.
pub(in crate::families) fn blocks_leaving_sums(config: &Config) -> u32 {
    if config.schedule == Schedule::SplitK { 2 } else { 1 }
}

/// Whether sums go through memory.
pub(super) fn joins(problem: &Problem, config: &Config) -> bool {
    passes_twice(problem, config) || blocks_leaving_sums(config) > 1
}
