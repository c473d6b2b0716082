//! Hopper (H100, H200, GH200; compute capability 9.0): products on `wgmma`, dequantised in registers, fed by the copy engine.
//!
//! `kernel` is the products in every strategy; `choice` says which kernel a configuration means; `model` which configurations are
//! legal and what they should cost, within the `limits` of what a launch can count; `multiply` cuts a problem into launches.

mod choice;
pub mod experts;
pub mod kernel;
mod limits;
mod model;
mod multiply;

use format::Matrix;
use op::{Activation, Arithmetic, Config, Cost, Problem, Result};
use ptx::{Kernel, Target};

use crate::facts::Facts;
use crate::family::{Family, GroupOperands};
use crate::launch::Launch;
use crate::pack;

use kernel::Tokens;

pub use choice::kernel_config;
pub(crate) use choice::{ending, passes_twice, products};
pub(crate) use limits::check as check_counts;

/// The family of Hopper GPUs.
#[derive(Debug)]
pub struct Sm90;

impl Family for Sm90 {
    fn name(&self) -> &'static str {
        "sm90"
    }

    fn target(&self) -> Target {
        Target::Sm90a
    }

    fn supports(&self, capability: (i32, i32)) -> bool {
        capability == (9, 0)
    }

    fn oldest_driver(&self) -> i32 {
        // It reads PTX 9.0.
        13000
    }

    fn layout(&self) -> &'static str {
        pack::LAYOUT
    }

    fn pack(&self, matrix: &Matrix<'_>) -> Vec<u8> {
        pack::pack(matrix)
    }

    fn arithmetic(&self, activation: Activation) -> Arithmetic {
        match Tokens::of(activation) {
            Tokens::F16 => Arithmetic::F16_TENSOR_CORES,
            bf16 => Arithmetic::bf16_tensor_cores(bf16.parts()),
        }
    }

    fn candidates(&self, problem: &Problem, facts: &Facts) -> Vec<Config> {
        model::candidates(problem, facts)
    }

    fn legal(&self, problem: &Problem, config: &Config, _facts: &Facts) -> Result<(), String> {
        model::legal(problem, config).map(drop)
    }

    fn cost(&self, problem: &Problem, config: &Config, facts: &Facts) -> Result<Cost, String> {
        model::check(problem, config, facts)
    }

    fn workspace_bytes(&self, problem: &Problem, config: &Config) -> usize {
        multiply::workspace_bytes(problem, config)
    }

    fn launches(
        &self,
        problem: &Problem,
        config: &Config,
        operands: &[GroupOperands],
        workspace: u64,
        multiprocessors: u32,
    ) -> Result<Vec<Launch>> {
        multiply::launches(problem, config, operands, workspace, multiprocessors)
    }

    fn kernels(&self, problem: &Problem, config: &Config) -> Result<Vec<Kernel>> {
        multiply::kernels(problem, config)
    }

    fn steps(&self, problem: &Problem, config: &Config) -> usize {
        model::steps(problem, config)
    }
}
