//! The products of a layer of experts: which kernels, and what they are to launches.
//!
//! Rows are numbers of 16 bits, so weights are dequantised on their way to the tensor cores. A tile of fewer than 128
//! tokens has weights for rows of its multiplications, as products of few tokens have; two sets of accumulators let one
//! tile be finished while the next is summed.

use op::{Activation, Config, Epilogue, Strategy};
use ptx::Target;

use super::choice::depth;
use super::kernel::{Products, TARGET, TensorMultiplySpec, Tokens, WIDE_STEP};
use crate::families::experts;
use crate::family::ExpertKernel;
use crate::launch::{Argument, KernelSpec};
use crate::phases::experts::Experts;
use crate::phases::gates::Function;
use crate::products::{ProductOperands, ProductShape};
use crate::ways::{Feature, Way};

/// Tokens of tiles: at most the rows of a multiplication, and fewer go by the columns of one.
pub const TILES: [u32; 6] = [16, 32, 48, 64, 96, 128];
/// Columns of a tile worth trying. Tiles of fewer than 128 tokens have 128.
const COLUMNS: [u32; 2] = [128, 64];
/// Two sets of accumulators, and one.
const SETS: [Strategy; 2] = [Strategy::PingPong, Strategy::Interleaved];
/// Stages of a pipeline: fewer hide nothing, and more hide no more.
const STAGES: std::ops::RangeInclusive<u32> = 2..=8;

/// The kernel that a configuration means for a product.
pub fn kernel(shape: &ProductShape, config: &Config) -> Result<TensorMultiplySpec, String> {
    experts::check(shape, config, &SETS)?;
    config.own.check(super::NAME, &[])?;
    let depth = depth(Activation::F16);
    if config.depth != depth {
        return Err(format!("a stage holds {depth} of k of tokens of 16 bits; ask for depth={depth}"));
    }
    let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let spec = TensorMultiplySpec {
        products: if shape.gate.matrices() == 2 { Products::Interleaved } else { Products::Single },
        sets: if config.strategy == Strategy::PingPong { 2 } else { 1 },
        element: Some(Tokens::of(shape.activation)),
        tokens: narrow(config.tile.tokens),
        columns: narrow(config.tile.columns),
        stages: narrow(config.stages),
        epilogue: config.epilogue,
        schedule: config.schedule,
        multicast: 1,
        ahead: 0,
        aligned: (shape.n as usize * shape.output.bytes()).is_multiple_of(16),
        function: Function::of(shape.gate),
        output: shape.output,
        groups: 1,
        biased: shape.biased,
        experts: Some(Experts::of(shape)),
    };
    spec.check().map_err(|error| error.to_string())?;
    Ok(spec)
}

/// What a configuration leans on. How many rows of a tile an expert has is the device's to know: multiplications may
/// have any number of columns up to a tile's.
pub fn way(shape: &ProductShape, config: &Config) -> Way {
    let way = Way::of_tokens(shape.activation, false).scheduled(config);
    let way = way.with_if(Feature::PingPong, config.strategy == Strategy::PingPong);
    let way = way.with_if(Feature::OneMatrix, shape.gate.matrices() == 1);
    let Ok(kernel) = kernel(shape, config) else { return way };
    let way = way.with_if(Feature::Pair, kernel.paired());
    if !kernel.swapped() {
        return way.with(Feature::Upright).with_width(kernel.columns);
    }
    (WIDE_STEP..=kernel.tokens).step_by(WIDE_STEP as usize).fold(way.with(Feature::Swapped), Way::with_width)
}

/// Configurations worth trying for a product with tiles of so many tokens, each with as many stages as there is room
/// for.
pub fn configs(shape: &ProductShape, tile: u32) -> Vec<Config> {
    let deepest = |(columns, strategy)| {
        let with = |stages| Config {
            strategy,
            epilogue: Epilogue::Direct,
            ..experts::config(shape, [tile, columns], depth(Activation::F16) as u32, stages)
        };
        STAGES.rev().map(with).find(|config| kernel(shape, config).is_ok())
    };
    COLUMNS.into_iter().flat_map(|columns| SETS.map(|sets| (columns, sets))).filter_map(deepest).collect()
}

impl ExpertKernel for TensorMultiplySpec {
    fn spec(&self) -> KernelSpec {
        (*self).into()
    }

    fn target(&self) -> Target {
        TARGET
    }

    fn tile(&self) -> [u32; 2] {
        [self.tokens, self.columns]
    }

    fn resident(&self) -> u32 {
        1
    }

    fn shares_k(&self) -> bool {
        false
    }

    fn rows(&self, operands: &ProductOperands, sides: [u32; 2]) -> Vec<Argument> {
        vec![Argument::Maps(vec![self.token_map(operands.rows, sides, operands.plane)])]
    }
}
