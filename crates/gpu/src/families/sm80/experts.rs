//! The products of a layer of experts: which kernels, and what they are to launches.

use format::Scaling;
use op::{Config, Strategy};
use ptx::{Feature, Target};

use super::kernel::{Products, Tokens, UNIT, WarpMultiplySpec};
use crate::families::choice::sizes;
use crate::families::experts;
use crate::family::ExpertKernel;
use crate::launch::{Argument, KernelSpec};
use crate::phases::experts::Experts;
use crate::phases::gates::Function;
use crate::products::{ProductOperands, ProductShape};

/// Tokens of tiles.
pub const TILES: [u32; 8] = [8, 16, 24, 32, 48, 64, 96, 128];
/// Fragments of a tile and units of a stage.
const FRAGMENTS: [u32; 4] = [16, 8, 4, 2];
const UNITS: [u32; 3] = [4, 2, 1];
/// Stages of a pipeline: fewer are not legal, and more hide nothing.
const STAGES: std::ops::RangeInclusive<u32> = 3..=8;

/// The kernel that a configuration means for a product, on a device whose blocks have so many bytes of shared memory.
pub fn kernel(
    target: Target,
    shape: &ProductShape,
    config: &Config,
    shared_bytes: usize,
) -> Result<WarpMultiplySpec, String> {
    experts::check(shape, config, &[Strategy::Interleaved])?;
    let [tokens, columns, units, stages] = sizes(target.name(), config, &[])?;
    let products = if shape.gate.matrices() == 2 { Products::Interleaved } else { Products::Single };
    // Packed for tensor cores that take NVFP4 itself, MXFP4 has been widened.
    let scaling = if target.has(Feature::BlockScaledMma) { Scaling::NvFp4 } else { shape.scaling };
    let spec = WarpMultiplySpec {
        target,
        scaling,
        products,
        resident: 1,
        tokens,
        columns,
        units,
        stages,
        epilogue: config.epilogue,
        schedule: config.schedule,
        element: Tokens::of(shape.activation),
        function: Function::of(shape.gate),
        output: shape.output,
        groups: 1,
        biased: shape.biased,
        experts: Some(Experts { follows: false, ..Experts::of(shape) }),
    };
    spec.check().map_err(|error| error.to_string())?;
    let bytes = spec.shared_bytes() as usize;
    if bytes > shared_bytes {
        return Err(format!(
            "{bytes} bytes of shared memory, of which a block of this GPU can have {shared_bytes}; ask for fewer stages, \
             less depth or a smaller tile"
        ));
    }
    match shape.invariant && spec.shares_k() {
        true => Err("warps would share k, and bits may not depend on the batch; make tiles wider".to_owned()),
        false => Ok(spec),
    }
}

/// Configurations worth trying for a product with tiles of so many tokens, each with as many stages as there is room
/// for.
pub fn configs(target: Target, shape: &ProductShape, tile: u32, shared_bytes: usize) -> Vec<Config> {
    let width = if shape.gate.matrices() == 2 { 8 } else { 16 };
    let deepest = |(fragments, units): (u32, u32)| {
        let with = |stages| experts::config(shape, [tile, width * fragments], units * UNIT, stages);
        STAGES.rev().map(with).find(|config| kernel(target, shape, config, shared_bytes).is_ok())
    };
    let sizes = FRAGMENTS.into_iter().flat_map(|fragments| UNITS.map(|units| (fragments, units)));
    sizes.filter_map(deepest).collect()
}

impl ExpertKernel for WarpMultiplySpec {
    fn spec(&self) -> KernelSpec {
        (*self).into()
    }

    fn target(&self) -> Target {
        self.target
    }

    fn tile(&self) -> [u32; 2] {
        [self.tokens, self.columns]
    }

    fn resident(&self) -> u32 {
        self.resident
    }

    fn shares_k(&self) -> bool {
        WarpMultiplySpec::shares_k(self)
    }

    fn rows(&self, operands: &ProductOperands, _: [u32; 2]) -> Vec<Argument> {
        vec![Argument::Pointer(operands.rows), Argument::U64(operands.plane)]
    }
}
