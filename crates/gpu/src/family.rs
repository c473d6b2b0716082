//! What a GPU architecture is to the rest of this crate: one seam, and device facts that are asked for rather than
//! known.

use std::fmt;
use std::sync::Arc;

use format::{Matrix, Scaling};
pub use op::Phase;
use op::{Activation, Arithmetic, Config, Cost, Precision, Problem, Result, Setting, Strategy, Team};
use ptx::{Kernel, Target};

use crate::expand::{ExpandSpec, Float, TokenForm};
use crate::facts::Facts;
use crate::launch::{Argument, KernelSpec, Launch};
use crate::pack::{self, Codes};
use crate::phases::direct::Direct;
use crate::products::{ProductOperands, ProductShape};
use crate::round::RoundSpec;
use crate::ways::{Feature, Way};

/// Where a group's operands are, and how its sums are scaled. Everything but C starts at a multiple of 16 bytes, and so
/// does C where its rows are a multiple of 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupOperands {
    /// The packed gate and up weights; without a gate only the first is looked at.
    pub weights: [u64; 2],
    /// The tokens as the tensor cores take them: `[m, k]` numbers of 16 bits, or of 8, or codes.
    pub tokens: u64,
    /// The scales of codes; where tokens were rounded to e4m3, what each row was divided by.
    pub token_scales: u64,
    /// The exponents of what each matrix's scales are multiplied with before weights are rounded to e4m3, if they are.
    pub lifts: [u32; 2],
    /// The factors of C's columns, where FP8 weights have them.
    pub column_factors: u64,
    /// Bytes from one part of the tokens to the next, where they have several.
    pub part_bytes: u64,
    /// C, `[m, n]`.
    pub out: u64,
    /// The tokens' global scale times each matrix's.
    pub alphas: [f64; 2],
    /// What is added to each matrix's sums, `[n]` floats: of all groups of a launch, or (zeros) of none.
    pub biases: [u64; 2],
}

/// Kernels for one architecture, and what is known about them.
pub trait Family: fmt::Debug + Send + Sync {
    /// The name by which it is called, such as `sm90`.
    fn name(&self) -> &'static str;

    /// What its kernels are assembled for, and so those that are shared by all families when they run beside them.
    fn target(&self) -> Target;

    /// Whether that is meant by a name: its own, or its architecture's as the assembler spells it.
    fn is_called(&self, name: &str) -> bool {
        name == self.name() || name == self.target().name()
    }

    /// Whether its kernels run on GPUs of this compute capability.
    fn supports(&self, capability: (i32, i32)) -> bool;

    /// The oldest driver that reads its kernels, by the CUDA version that it supports: 1000 · major + 10 · minor.
    fn oldest_driver(&self) -> i32;

    /// The name of its layout of weights.
    fn layout(&self) -> &'static str {
        pack::LAYOUT
    }

    /// How codes share scales in that layout, of weights that share them so: MXFP4 is widened to NVFP4, unless a
    /// family's kernels take it as it is. Where NVFP4 tokens stay codes they do not: an instruction takes the scales of
    /// both operands in one format, and packed weights are for tokens of every type.
    fn scaling(&self, _of_weights: Scaling) -> Scaling {
        Scaling::NvFp4
    }

    /// Packs a matrix of weights that share scales so into that layout, on a team's threads, where there are as many
    /// zeros as [`Family::packed_bytes`] says. Where words may be in several orders, they are in order for these
    /// tokens.
    fn pack(
        &self,
        matrix: &Matrix<'_>,
        (codes, of_weights): (Codes, Scaling),
        team: &Team,
        zeros: &mut [u8],
    ) -> Result<()> {
        pack::pack_as(&matrix.in_scaling(self.scaling(of_weights))?, codes, team, zeros);
        Ok(())
    }

    /// Bytes of a matrix in that layout, of weights that share scales so.
    fn packed_bytes(&self, rows: usize, k: usize, of_weights: Scaling) -> usize {
        pack::packed_bytes(rows, k, self.scaling(of_weights))
    }

    /// How tokens of a type are made what its tensor cores take, unless they are that already.
    fn expansion(&self, activation: Activation) -> Option<TokenForm> {
        TokenForm::of(activation)
    }

    /// How its tensor cores add products up, with activations of such a type.
    fn arithmetic(&self, activation: Activation) -> Arithmetic;

    /// Whether its kernels multiply tokens and weights that were rounded to e4m3 ([`Precision::Fp8`]).
    fn multiplies_fp8(&self) -> bool {
        false
    }

    /// Whether its kernels are those to compute a problem's products with on its GPUs. FP8 weights lie alike for all
    /// families, and `sm80`'s kernels take what another family's do not.
    fn computes(&self, problem: &Problem) -> bool {
        !problem.scaling().is_fp8()
    }

    /// The settings that its configurations may have beside those that all have.
    fn settings(&self) -> &'static [Setting] {
        &[]
    }

    /// Configurations worth trying for a problem on a device. Each is legal.
    fn candidates(&self, problem: &Problem, facts: &Facts) -> Vec<Config>;

    /// Whether a configuration is legal for a problem on a device, or why not.
    fn legal(&self, problem: &Problem, config: &Config, facts: &Facts) -> Result<(), String>;

    /// What a legal configuration should cost on a device, or why it is not legal.
    fn cost(&self, problem: &Problem, config: &Config, facts: &Facts) -> Result<Cost, String>;

    /// What happens one after the other, and what bounds each, as a model from first principles says, if there is one;
    /// or why the configuration is not legal. What plans are made by is [`Family::cost`].
    fn phases(&self, problem: &Problem, config: &Config, facts: &Facts) -> Result<Vec<Phase>, String> {
        let Cost { seconds, bound_by, .. } = self.cost(problem, config, facts)?;
        Ok(vec![Phase { what: "all of it", seconds, bound_by }])
    }

    /// Bytes of memory that a configuration needs beside the operands.
    fn workspace_bytes(&self, problem: &Problem, config: &Config) -> usize;

    /// The launches of a problem's products, in the order in which they run. `operands` has an entry per group;
    /// `workspace` is the address of as much memory as [`Family::workspace_bytes`] says. The configuration is legal.
    fn launches(
        &self,
        problem: &Problem,
        config: &Config,
        operands: &[GroupOperands],
        workspace: u64,
        multiprocessors: u32,
    ) -> Result<Vec<Launch>>;

    /// The kernels that a configuration runs for a problem, in the order in which they run.
    fn kernels(&self, problem: &Problem, config: &Config) -> Result<Vec<Kernel>> {
        let elements = problem.groups().iter().map(|shape| shape.m * shape.k).sum();
        let expansion: Option<KernelSpec> = match problem.precision() {
            Precision::Exact => self
                .expansion(problem.activation())
                .map(|source| ExpandSpec::new(self.target(), source, 1, elements).into()),
            Precision::Fp8 => {
                let longest = problem.groups().iter().map(|shape| shape.k).max().unwrap_or(0);
                Some(RoundSpec::new(self.target(), (Float::of(problem.activation()), false), 1, longest).into())
            }
        };
        let mut each: Vec<KernelSpec> = expansion.into_iter().collect();
        let nowhere = vec![GroupOperands::default(); problem.groups().len()];
        for Launch { kernel, .. } in self.launches(problem, config, &nowhere, 0, 1)? {
            if !each.contains(&kernel) {
                each.push(kernel);
            }
        }
        each.iter().map(KernelSpec::build).collect()
    }

    /// What a legal configuration leans on for a problem.
    fn way(&self, problem: &Problem, config: &Config) -> Way {
        Way::of_products(problem, config, self.expansion(Activation::NvFp4).is_none())
    }

    /// The same for a product of experts.
    fn expert_way(&self, shape: &ProductShape, config: &Config) -> Way {
        let tokens = match shape.precision {
            Precision::Exact => Way::of_tokens(shape.activation, false),
            Precision::Fp8 => Way::default().with(Feature::EightBits),
        };
        let way = tokens.scheduled(config);
        let way = way.with_if(Feature::PingPong, config.strategy == Strategy::PingPong);
        way.with_if(Feature::OneMatrix, shape.gate.matrices() == 1)
    }

    /// Tokens of the tiles worth trying for products of experts in a precision, the fewest first.
    fn expert_tiles(&self, precision: Precision) -> &'static [u32];

    /// Configurations worth trying for a product of experts with tiles of so many tokens on a device. Each has a
    /// kernel.
    fn expert_configs(&self, shape: &ProductShape, tile: u32, facts: &Facts) -> Vec<Config>;

    /// The kernel that a configuration means for a product of experts on a device, or why there is none.
    fn expert_kernel(
        &self,
        shape: &ProductShape,
        config: &Config,
        facts: &Facts,
    ) -> Result<Arc<dyn ExpertKernel>, String>;

    /// What such a configuration should cost on a device, for experts that have a problem's rows; or why there is no
    /// kernel.
    fn expert_cost(
        &self,
        _shape: &ProductShape,
        problem: &Problem,
        config: &Config,
        facts: &Facts,
    ) -> Result<Cost, String> {
        self.cost(problem, config, facts)
    }

    /// How many times a block takes a step over the least of K that it can, in all: what simulating takes.
    fn steps(&self, problem: &Problem, config: &Config) -> usize;
}

/// A family's kernel for one product of a layer of experts.
pub trait ExpertKernel: fmt::Debug + Send + Sync {
    /// The kernel.
    fn spec(&self) -> KernelSpec;

    /// What it is assembled for.
    fn target(&self) -> Target;

    /// Tokens and columns of a tile.
    fn tile(&self) -> [u32; 2];

    /// Blocks of it that a multiprocessor holds at a time.
    fn resident(&self) -> u32;

    /// Whether warps that share a tile's columns split k and add their sums in the end.
    fn shares_k(&self) -> bool;

    /// Columns of a tile that are finished together.
    fn piece(&self) -> u32 {
        self.tile()[1]
    }

    /// The kernel that finds its tiles by itself, if there is one.
    fn direct(&self, _direct: Direct) -> Option<Arc<dyn ExpertKernel>> {
        None
    }

    /// The first arguments of a launch: where `rows` rows of `k` numbers are.
    fn rows(&self, operands: &ProductOperands, sides: [u32; 2]) -> Vec<Argument>;
}
