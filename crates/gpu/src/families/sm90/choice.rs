//! Which kernel a configuration means for a problem: products, sizes, gate and output type.

use op::{Config, Error, Output, Problem, Result, Strategy};

use super::kernel::{self, Products, Tokens, UNIT};
use crate::gating::Function;

/// The kernel of the products that a configuration asks for, for one group.
pub fn kernel_config(problem: &Problem, config: &Config) -> Result<kernel::MultiplySpec> {
    kernel_of(problem, config).map_err(|reason| Error::Illegal { backend: "cuda", config: *config, reason })
}

pub(super) fn kernel_of(problem: &Problem, config: &Config) -> Result<kernel::MultiplySpec, String> {
    let unit = UNIT as usize;
    if !config.depth.is_multiple_of(unit) {
        return Err(format!("a stage holds chunks of {unit} of K; ask for depth=64, 128 or 256"));
    }
    let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let (function, output) = ending(problem, config);
    let kernel = kernel::MultiplySpec {
        products: products(problem, config.strategy),
        ping_pong: config.strategy == Strategy::PingPong,
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
        experts: None,
    };
    kernel.check().map_err(|error| error.to_string())?;
    Ok(kernel)
}

/// Whether sums go through memory.
pub(crate) fn passes_twice(problem: &Problem, config: &Config) -> bool {
    config.strategy == Strategy::TwoPass && problem.matrices() == 2
}

/// Which products a strategy's kernel computes for a problem.
pub(crate) fn products(problem: &Problem, strategy: Strategy) -> Products {
    match (problem.matrices(), strategy) {
        (1, _) | (_, Strategy::TwoPass) => Products::Single,
        (_, Strategy::Sequential) => Products::Sequential,
        (_, Strategy::Interleaved | Strategy::PingPong) => Products::Interleaved,
    }
}

/// The gate and the output type of a strategy's kernel: sums that go through memory are neither gated nor rounded.
pub(crate) fn ending(problem: &Problem, config: &Config) -> (Function, Output) {
    if passes_twice(problem, config) {
        (Function::None, Output::F32)
    } else {
        (Function::of(problem.gate()), problem.output())
    }
}
