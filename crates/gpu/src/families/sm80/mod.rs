//! Ampere and everything since (A100, RTX 30 and 40, L40S, and later ones without kernels of their own): products on
//! `mma.sync`, dequantised in registers, fed by `cp.async`.
//!
//! The kernels are assembled for compute capability 8.0 and so run on every later GPU; they read the weights that
//! Hopper's read. `kernel` is the products, `experts` says which of them serve layers of experts; `choice` says which
//! kernel a configuration means, `model` which are legal on a device and what they should cost there, `multiply` what
//! the kernel is to launches.
//!
//! The four strategies here: *two-pass* is two launches and one that joins their sums; *sequential* goes through k
//! twice; *interleaved* has gate and up in one fragment; *ping-pong* is that with two blocks on a multiprocessor, of
//! which one finishes while the other multiplies. *Split-K* leaves the sums of each half to a launch that joins them:
//! there are no clusters to meet in.

pub(super) mod choice;
pub mod experts;
pub mod kernel;
pub(super) mod model;
mod multiply;

use std::sync::Arc;

use format::Scaling;
use op::{Activation, Arithmetic, Config, Cost, Precision, Problem, Result};
use ptx::Target;

use super::choice::steps;
use super::cut::{self, Cut};
use crate::facts::Facts;
use crate::family::{ExpertKernel, Family, GroupOperands};
use crate::launch::Launch;
use crate::products::ProductShape;

/// Its name, and what its kernels are assembled for.
pub const NAME: &str = "sm80";
const TARGET: Target = Target::Sm80;

/// The family of GPUs since Ampere.
#[derive(Debug)]
pub struct Sm80;

impl Family for Sm80 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn target(&self) -> Target {
        TARGET
    }

    fn supports(&self, capability: (i32, i32)) -> bool {
        capability >= super::OLDEST
    }

    fn oldest_driver(&self) -> i32 {
        // It reads PTX 8.1, which kernels with large tables of groups are.
        super::OLDEST_DRIVER
    }

    fn scaling(&self, of_weights: Scaling) -> Scaling {
        of_weights
    }

    fn arithmetic(&self, activation: Activation) -> Arithmetic {
        choice::element_of(TARGET, activation).arithmetic()
    }

    fn computes(&self, _problem: &Problem) -> bool {
        true
    }

    fn candidates(&self, problem: &Problem, facts: &Facts) -> Vec<Config> {
        model::candidates(TARGET, problem, facts)
    }

    fn legal(&self, problem: &Problem, config: &Config, facts: &Facts) -> Result<(), String> {
        model::legal(TARGET, problem, config, facts).map(drop)
    }

    fn cost(&self, problem: &Problem, config: &Config, facts: &Facts) -> Result<Cost, String> {
        model::check(TARGET, problem, config, facts)
    }

    fn workspace_bytes(&self, problem: &Problem, config: &Config) -> usize {
        cut::workspace_bytes(problem, config, choice::blocks_leaving_sums(config))
    }

    fn launches(
        &self,
        problem: &Problem,
        config: &Config,
        operands: &[GroupOperands],
        workspace: u64,
        multiprocessors: u32,
    ) -> Result<Vec<Launch>> {
        let (kernel, blocks) = (choice::kernel_config(TARGET, problem, config)?, choice::blocks_leaving_sums(config));
        Ok(Cut { problem, config, kernel, blocks, multiprocessors }.launches(operands, workspace))
    }

    fn expert_tiles(&self, _precision: Precision) -> &'static [u32] {
        &experts::TILES
    }

    fn expert_configs(&self, shape: &ProductShape, tile: u32, facts: &Facts) -> Vec<Config> {
        experts::configs(TARGET, shape, tile, facts.shared_bytes)
    }

    fn expert_kernel(
        &self,
        shape: &ProductShape,
        config: &Config,
        facts: &Facts,
    ) -> Result<Arc<dyn ExpertKernel>, String> {
        Ok(Arc::new(experts::kernel(TARGET, shape, config, facts.shared_bytes)?))
    }

    fn expert_cost(
        &self,
        shape: &ProductShape,
        problem: &Problem,
        config: &Config,
        facts: &Facts,
    ) -> Result<Cost, String> {
        model::check_experts(TARGET, shape, problem, config, facts)
    }

    fn steps(&self, problem: &Problem, config: &Config) -> usize {
        steps(problem, config)
    }
}
