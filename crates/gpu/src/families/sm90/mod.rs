//! Hopper (H100, H200, GH200; compute capability 9.0): products on `wgmma`, dequantised in registers, fed by the copy
//! engine.
//!
//! `kernel` is the products in every strategy; `choice` says which kernel a configuration means; `model` which
//! configurations are legal and what they should cost; `multiply` what the kernel is to launches.

mod choice;
pub mod experts;
pub mod kernel;
mod model;
mod multiply;

use std::sync::Arc;

use format::Scaling;
use op::{Activation, Arithmetic, Config, Cost, Precision, Problem, Result, Setting};
use ptx::Target;

use super::choice::{Tokens, steps};
use super::cut::{self, Cut};
use crate::facts::Facts;
use crate::family::{ExpertKernel, Family, GroupOperands, Phase};
use crate::launch::Launch;
use crate::products::ProductShape;

pub use choice::kernel_config;

/// Its name.
pub const NAME: &str = "sm90";

/// The family of Hopper GPUs.
#[derive(Debug)]
pub struct Sm90;

impl Family for Sm90 {
    fn name(&self) -> &'static str {
        NAME
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

    fn scaling(&self, of_weights: Scaling) -> Scaling {
        of_weights
    }

    fn arithmetic(&self, activation: Activation) -> Arithmetic {
        Tokens::of(activation).arithmetic()
    }

    fn multiplies_fp8(&self) -> bool {
        true
    }

    fn computes(&self, problem: &Problem) -> bool {
        !problem.scaling().is_fp8() || model::computes_fp8(problem)
    }

    fn settings(&self) -> &'static [Setting] {
        &choice::SETTINGS
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

    fn phases(&self, problem: &Problem, config: &Config, facts: &Facts) -> Result<Vec<Phase>, String> {
        model::phases(problem, config, facts)
    }

    fn workspace_bytes(&self, problem: &Problem, config: &Config) -> usize {
        cut::workspace_bytes(problem, config, 1)
    }

    fn launches(
        &self,
        problem: &Problem,
        config: &Config,
        operands: &[GroupOperands],
        workspace: u64,
        multiprocessors: u32,
    ) -> Result<Vec<Launch>> {
        let (kernel, blocks) = (choice::kernel_config(problem, config)?, 1);
        Ok(Cut { problem, config, kernel, blocks, multiprocessors }.launches(operands, workspace))
    }

    fn expert_tiles(&self, precision: Precision) -> &'static [u32] {
        match precision {
            Precision::Exact => &experts::TILES,
            Precision::Fp8 => &experts::FP8_TILES,
        }
    }

    fn expert_configs(&self, shape: &ProductShape, tile: u32, _facts: &Facts) -> Vec<Config> {
        experts::configs(shape, tile)
    }

    fn expert_kernel(
        &self,
        shape: &ProductShape,
        config: &Config,
        _facts: &Facts,
    ) -> Result<Arc<dyn ExpertKernel>, String> {
        Ok(Arc::new(experts::kernel(shape, config)?))
    }

    fn expert_cost(
        &self,
        shape: &ProductShape,
        problem: &Problem,
        config: &Config,
        facts: &Facts,
    ) -> Result<Cost, String> {
        model::check_experts(shape, problem, config, facts)
    }

    fn steps(&self, problem: &Problem, config: &Config) -> usize {
        steps(problem, config)
    }
}
