//! Desktop Blackwell (RTX 50, RTX PRO 6000, DGX Spark; compute capability 12.x): NVFP4 tokens on `mma.sync` with block
//! scales, which takes codes and scales as they are. Simulated and assembled; never run on such a GPU.
//!
//! The kernel is that of [`super::sm80`] for another target, and so are choice and model. Weights are packed for tensor
//! cores that take NVFP4 itself, and 16-bit tokens meet the same weights dequantised in registers. `arrange` brings
//! NVFP4 tokens into the order of weights.
//!
//! Stages are filled with `cp.async`, though these GPUs have a copy engine: with weights packed and tokens arranged in
//! strips of sixteen-byte pieces, a stage is a handful of copies per thread, all threads compute anyway, and one
//! pipeline serves both families. What the engine would save, a warp that only copies and the registers of the others,
//! nobody could measure here.

mod arrange;

use std::sync::Arc;

use format::{Matrix, Scaling};
use op::{Activation, Arithmetic, Config, Cost, Precision, Problem, Result, Shape, Team};
use ptx::Target;

use super::choice::steps;
use super::cut::{self, Cut};
use super::sm80::{choice, experts, model};
use crate::expand::TokenForm;
use crate::facts::Facts;
use crate::family::{ExpertKernel, Family, GroupOperands};
use crate::launch::Launch;
use crate::pack::{self, Codes};
use crate::products::ProductShape;

pub use arrange::ArrangeSpec;

/// Its name, and what its kernels are assembled for.
pub const NAME: &str = "sm120";
const TARGET: Target = Target::Sm120f;
/// What the arranged tokens of a group begin at a multiple of.
const ALIGNMENT: usize = 256;

/// The family of desktop Blackwell GPUs.
#[derive(Debug)]
pub struct Sm120;

impl Family for Sm120 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn target(&self) -> Target {
        TARGET
    }

    fn is_called(&self, name: &str) -> bool {
        [self.name(), self.target().name(), "sm_120a", "sm_121a"].contains(&name)
    }

    fn supports(&self, (major, _): (i32, i32)) -> bool {
        major == 12
    }

    fn oldest_driver(&self) -> i32 {
        // It reads PTX 8.8.
        12090
    }

    fn layout(&self) -> &'static str {
        pack::CODES_LAYOUT
    }

    fn pack(
        &self,
        matrix: &Matrix<'_>,
        (_, of_weights): (Codes, Scaling),
        team: &Team,
        zeros: &mut [u8],
    ) -> Result<()> {
        pack::pack_codes(&matrix.in_scaling(self.scaling(of_weights))?, team, zeros);
        Ok(())
    }

    fn expansion(&self, activation: Activation) -> Option<TokenForm> {
        TokenForm::of(activation).filter(|form| *form != TokenForm::NvFp4)
    }

    fn arithmetic(&self, activation: Activation) -> Arithmetic {
        choice::element_of(TARGET, activation).arithmetic()
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
        let arranged: usize = problem.groups().iter().map(|shape| arranged_bytes(problem, shape)).sum();
        arranged + cut::workspace_bytes(problem, config, choice::blocks_leaving_sums(config))
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
        let (mut next, mut operands, mut arranged) = (workspace, operands.to_vec(), Vec::new());
        for (shape, operands) in problem.groups().iter().zip(&mut operands) {
            if problem.activation() == Activation::NvFp4 && shape.m > 0 {
                arranged.push((*shape, *operands, next));
                operands.tokens = next;
                next += arranged_bytes(problem, shape) as u64;
            }
        }
        let mut launches = arrange::launches(TARGET, &arranged);
        launches.extend(Cut { problem, config, kernel, blocks, multiprocessors }.launches(&operands, next));
        Ok(launches)
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

/// Bytes of a group's arranged tokens, if it has such.
fn arranged_bytes(problem: &Problem, shape: &Shape) -> usize {
    let codes = problem.activation() == Activation::NvFp4;
    if codes { arrange::arranged_bytes(shape.m, shape.k).next_multiple_of(ALIGNMENT) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;

    /// Codes could be expanded to f16, exactly, and multiplied as 16-bit tokens are. Nothing plans that, because of
    /// this: the day it fails, something should.
    #[test]
    fn by_the_model_nvfp4_tokens_are_never_better_off_as_16_bit_ones() {
        for device in ["dgx-spark", "rtx5090"] {
            let facts = Facts::named(device).unwrap();
            for (m, n, k) in [1, 4, 16, 48, 128, 512, 4096]
                .into_iter()
                .flat_map(|m| [(m, 4096, 7168), (m, 512, 2048), (m, 14336, 4096)])
            {
                let seconds = |activation| {
                    let shapes = vec![Shape::new(m, n, k)];
                    let problem = Problem::new(shapes, op::Gate::Silu, activation, op::Output::F16).unwrap();
                    let config = plan::cheapest(&Sm120, &problem, &facts).unwrap();
                    Sm120.cost(&problem, &config, &facts).unwrap().seconds
                };
                let [codes, halves] = [Activation::NvFp4, Activation::F16].map(seconds);
                let expanded = model::LAUNCH + halves;
                assert!(codes <= expanded, "{m}x{n}x{k} on {device}: {codes} as codes, {expanded} as f16");
            }
        }
    }
}
