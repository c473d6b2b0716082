//! Data-centre Blackwell (B200, B300; compute capabilities 10.0 and 10.3): products on `tcgen05`, NVFP4 by NVFP4
//! without dequantising.
//!
//! It has not run on silicon: there is no such GPU here. The kernels are assembled by NVIDIA's assembler and run in the
//! simulator.
//!
//! `slabs` is the layout of tokens and weights; `arrange` brings tokens into it; `kernel` is the products; `choice`
//! says which kernel a configuration means, `model` which are legal and what they should cost, `multiply` what the
//! kernels are to launches.
//!
//! The four strategies here: *two-pass* is two launches and one that joins their sums; *sequential* goes through k
//! twice; *interleaved* sums both products at every step of k; *ping-pong* is that with two sets of accumulators, of
//! which one is finished while the other is summed. *Split-K* leaves the sums of each half to a launch that joins them.

pub mod arrange;
mod choice;
pub mod experts;
pub mod kernel;
mod model;
mod multiply;
mod slabs;

use std::sync::Arc;

use format::{Matrix, Scaling};
use op::{Activation, Arithmetic, Config, Cost, Precision, Problem, Result, Setting, Team};
use ptx::Target;

use super::choice::Tokens;
use super::cut::Cut;
use crate::expand::TokenForm;
use crate::facts::Facts;
use crate::family::{ExpertKernel, Family, GroupOperands, Phase};
use crate::launch::Launch;
use crate::pack::Codes;
use crate::products::ProductShape;
use crate::ways::Way;

/// Its name.
pub const NAME: &str = "sm100";

/// The family of data-centre Blackwell.
#[derive(Debug)]
pub struct Sm100;

impl Family for Sm100 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn target(&self) -> Target {
        kernel::TARGET
    }

    fn is_called(&self, name: &str) -> bool {
        // The family's target, and the chip's own.
        [NAME, Target::Sm100f.name(), Target::Sm100a.name()].contains(&name)
    }

    fn supports(&self, capability: (i32, i32)) -> bool {
        [(10, 0), (10, 3)].contains(&capability)
    }

    fn oldest_driver(&self) -> i32 {
        // It reads PTX 8.8.
        12090
    }

    fn layout(&self) -> &'static str {
        slabs::LAYOUT
    }

    fn pack(
        &self,
        matrix: &Matrix<'_>,
        (_, of_weights): (Codes, Scaling),
        team: &Team,
        zeros: &mut [u8],
    ) -> Result<()> {
        slabs::pack(&matrix.in_scaling(self.scaling(of_weights))?, team, zeros);
        Ok(())
    }

    fn packed_bytes(&self, rows: usize, k: usize, _of_weights: Scaling) -> usize {
        slabs::packed_bytes(rows, k)
    }

    fn expansion(&self, activation: Activation) -> Option<TokenForm> {
        TokenForm::of(activation).filter(|form| *form != TokenForm::NvFp4)
    }

    fn arithmetic(&self, activation: Activation) -> Arithmetic {
        match activation {
            Activation::NvFp4 => Arithmetic::BlockScaledTensorCores,
            other => Tokens::of(other).arithmetic(),
        }
    }

    fn settings(&self) -> &'static [Setting] {
        &choice::SETTINGS
    }

    fn candidates(&self, problem: &Problem, facts: &Facts) -> Vec<Config> {
        model::candidates(problem, facts)
    }

    fn legal(&self, problem: &Problem, config: &Config, facts: &Facts) -> Result<(), String> {
        model::legal(problem, config, facts).map(drop)
    }

    fn cost(&self, problem: &Problem, config: &Config, facts: &Facts) -> Result<Cost, String> {
        model::check(problem, config, facts)
    }

    fn phases(&self, problem: &Problem, config: &Config, facts: &Facts) -> Result<Vec<Phase>, String> {
        model::phases(problem, config, facts)
    }

    fn workspace_bytes(&self, problem: &Problem, config: &Config) -> usize {
        model::workspace_bytes(problem, config)
    }

    fn launches(
        &self,
        problem: &Problem,
        config: &Config,
        operands: &[GroupOperands],
        workspace: u64,
        multiprocessors: u32,
    ) -> Result<Vec<Launch>> {
        let (kernel, blocks) = (choice::kernel_config(problem, config)?, choice::blocks_leaving_sums(config));
        let (mut launches, operands) = multiply::arrange(problem, &kernel, operands, workspace);
        let workspace = workspace + multiply::arranged_bytes(problem, &kernel);
        launches.extend(Cut { problem, config, kernel, blocks, multiprocessors }.launches(&operands, workspace));
        Ok(launches)
    }

    fn way(&self, problem: &Problem, config: &Config) -> Way {
        choice::way(problem, config)
    }

    fn expert_way(&self, shape: &ProductShape, config: &Config) -> Way {
        experts::way(shape, config)
    }

    fn expert_tiles(&self, _precision: Precision) -> &'static [u32] {
        &experts::TILES
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

    fn steps(&self, problem: &Problem, config: &Config) -> usize {
        model::steps(problem, config)
    }
}
