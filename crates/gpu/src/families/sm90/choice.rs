//! Which kernel a configuration means for a problem: products, sizes, gate and output type.

use op::{Config, Own, Problem, Result, Setting, Strategy};

use super::kernel::MultiplySpec;
use crate::families::choice::{Products, Tokens, ending, illegal, sizes};
use crate::pack::Scales;
use crate::products::{UNDER, WARPS};

/// The settings of these kernels' own.
pub(super) const SETTINGS: [Setting; 2] = [UNDER, WARPS];

/// Whether warps are to multiply, each by itself.
pub(super) fn by_warps(own: &Own) -> Result<bool, String> {
    match WARPS.value(own) {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(format!("warps={other} is neither 0 nor 1: warpgroups multiply, or each warp by itself")),
    }
}

/// The kernel of the products that a configuration asks for, for one group.
pub fn kernel_config(problem: &Problem, config: &Config) -> Result<MultiplySpec> {
    kernel_of(problem, config).map_err(illegal(config))
}

pub(super) fn kernel_of(problem: &Problem, config: &Config) -> Result<MultiplySpec, String> {
    let kernel = asked_kernel(problem, config)?;
    kernel.check().map_err(|error| error.to_string())?;
    problem.groups().iter().try_for_each(|shape| kernel.check_depth(shape.k))?;
    Ok(kernel)
}

/// The same, which may not be one that there is.
pub(super) fn asked_kernel(problem: &Problem, config: &Config) -> Result<MultiplySpec, String> {
    let [tokens, columns, units, stages] = sizes(super::NAME, config, &SETTINGS)?;
    let (function, output) = ending(problem, config.strategy);
    let kernel = MultiplySpec {
        products: Products::of(problem, config.strategy),
        ping_pong: config.strategy == Strategy::PingPong,
        tokens,
        columns,
        units,
        stages,
        epilogue: config.epilogue,
        schedule: config.schedule,
        under: UNDER.value(&config.own),
        by_warps: by_warps(&config.own)?,
        element: Tokens::of_problem(problem),
        function,
        output,
        groups: 1,
        biased: false,
        scales: Scales::of(problem.scaling())?,
        experts: None,
    };
    if kernel.element == Tokens::E4m3 && config.strategy != Strategy::Interleaved {
        return Err("with fp8 tokens there is strategy=interleaved alone".to_owned());
    }
    Ok(kernel)
}
