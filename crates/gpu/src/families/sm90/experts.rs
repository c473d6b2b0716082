//! The products of a layer of experts: which kernels, and what they are to launches.

use std::sync::Arc;

use format::Scaling;
use op::{Config, Epilogue, Own, Strategy};
use ptx::Target;

use super::choice::{SETTINGS, by_warps};
use super::kernel::{MultiplySpec, Products, Tokens, UNIT};
use crate::families::choice::sizes;
use crate::families::experts;
use crate::family::ExpertKernel;
use crate::launch::{Argument, KernelSpec};
use crate::pack::Scales;
use crate::phases::direct::Direct;
use crate::phases::experts::Experts;
use crate::phases::gates::Function;
use crate::products::{ProductOperands, ProductShape, UNDER, WARPS};

/// Tokens of tiles. The most keep the tensor cores busy, and more experts' rows fall between the widths of wider ones.
pub const TILES: [u32; 10] = [8, 16, 24, 32, 48, 64, 96, 128, 144, 160];
/// The same with tokens that were rounded to e4m3: it takes the widest to keep tensor cores busy at twice the rate.
pub const FP8_TILES: [u32; 12] = [8, 16, 24, 32, 48, 64, 96, 128, 144, 160, 192, 256];
/// Blocks of rows of a tile, units of a stage, and blocks on a multiprocessor.
const BLOCKS: [u32; 4] = [1, 2, 3, 4];
const UNITS: [u32; 3] = [4, 2, 1];
const RESIDENT: [u32; 2] = [1, 2];
/// Units under which a tile is stored, if it is, at most: more of them take no less time, but longer to assemble.
const MOST_UNDER: u32 = 8;
/// Stages of a pipeline, at most; and at least, of four units and of fewer: with less, they wait for each other.
const MOST_STAGES: u32 = 16;
const LEAST_STAGES: [u32; 2] = [4, 3];

/// The kernel that a configuration means for a product.
pub fn kernel(shape: &ProductShape, config: &Config) -> Result<MultiplySpec, String> {
    experts::check(shape, config, &[Strategy::Interleaved])?;
    let [tokens, columns, units, stages] = sizes(super::NAME, config, &SETTINGS)?;
    let element = Tokens::of_product(shape);
    if shape.scaling == Scaling::WideMxFp4 && matches!(element, Tokens::F16 | Tokens::E4m3) {
        return Err("its MXFP4 scales span more powers of two than f16 has; give bf16 or f32 tokens".to_owned());
    }
    let spec = MultiplySpec {
        products: if shape.gate.matrices() == 2 { Products::Interleaved } else { Products::Single },
        ping_pong: false,
        tokens,
        columns,
        units,
        stages,
        epilogue: config.epilogue,
        schedule: config.schedule,
        under: UNDER.value(&config.own),
        by_warps: by_warps(&config.own)?,
        element,
        function: Function::of(shape.gate),
        output: shape.output,
        groups: 1,
        biased: shape.biased,
        scales: Scales::of(shape.scaling)?,
        experts: Some(Experts::of(shape)),
    };
    spec.check().map_err(|error| error.to_string())?;
    spec.check_depth(shape.k as usize)?;
    match (shape.invariant, spec.shares_k(), spec.by_warps) {
        (true, true, _) => {
            Err("two warpgroups would share k, and bits may not depend on the batch; make tiles wider".to_owned())
        }
        // The order is the same, but nobody has seen that the two instructions cut sums off alike.
        (true, _, true) => {
            Err("bits may not depend on the batch, and wider tiles have warps=0; ask for that".to_owned())
        }
        _ => Ok(spec),
    }
}

/// Configurations worth trying for a product with tiles of so many tokens, each with as many stages as there is room
/// for: alone on a multiprocessor, and beside another block; with tiles that are stored before the next begins, and
/// under its products. Warps multiply by themselves wherever they can: layers took up to 3 % less time so on an H200.
pub fn configs(shape: &ProductShape, tile: u32) -> Vec<Config> {
    let width = if shape.gate.matrices() == 2 { 32 } else { 64 };
    let deepest = |[blocks, units, resident, under]: [u32; 4], warps: u32| {
        let own = Own::of([(UNDER, under), (WARPS, warps)]);
        let with = |stages| Config { own, ..experts::config(shape, [tile, width * blocks], units * UNIT, stages) };
        let suits = |spec: MultiplySpec| spec.resident() == resident && !is_serialised(&spec);
        let fits = |config: &Config| kernel(shape, config).is_ok_and(suits);
        let least = if units == 4 { LEAST_STAGES[0] } else { LEAST_STAGES[1] };
        (least..=MOST_STAGES).rev().map(with).find(fits)
    };
    // Where two blocks share the registers, four units of several parts are too many of them.
    let crowded = |units, resident| units == 4 && resident == 2 && Tokens::of_product(shape).parts() > 1;
    let sizes = BLOCKS.into_iter().flat_map(|blocks| UNITS.map(|units| (blocks, units)));
    let all = sizes.flat_map(|(blocks, units)| RESIDENT.map(|resident| (blocks, units, resident)));
    let all = all.filter(|(_, units, resident)| !crowded(*units, *resident));
    all.flat_map(|(blocks, units, resident)| {
        // Whole stages, but not the last one.
        let before_last = (shape.k.div_ceil(UNIT) - 1) / units * units;
        let under = (MOST_UNDER / units * units).min(before_last);
        let ways = if under > 0 { vec![0, under] } else { vec![0] };
        ways.into_iter().filter_map(move |under| {
            [1, 0].into_iter().find_map(|warps| deepest([blocks, units, resident, under], warps))
        })
    })
    .collect()
}

/// Whether sums and what stores them element by element are more than a thread's registers hold, so that the assembler
/// has one product wait for the other: found by assembling all of them.
fn is_serialised(spec: &MultiplySpec) -> bool {
    let direct = spec.epilogue == Epilogue::Direct && spec.element != Tokens::E4m3;
    let most = match (spec.resident(), spec.blocks()) {
        (2, _) => 95,
        (_, 4) => 127,
        (_, 3) => 143,
        _ => u32::MAX,
    };
    // And three warpgroups with gpt-oss's gate, which has the most to remember.
    let gated = matches!(spec.function, Function::GptOss { .. }) && spec.blocks() == 3 && spec.tokens > 127;
    direct && spec.products == Products::Single && spec.tokens > most || gated
}

impl ExpertKernel for MultiplySpec {
    fn spec(&self) -> KernelSpec {
        (*self).into()
    }

    fn target(&self) -> Target {
        Target::Sm90a
    }

    fn tile(&self) -> [u32; 2] {
        [self.tokens, self.columns]
    }

    fn resident(&self) -> u32 {
        MultiplySpec::resident(self)
    }

    fn shares_k(&self) -> bool {
        MultiplySpec::shares_k(self)
    }

    fn piece(&self) -> u32 {
        MultiplySpec::piece(self)
    }

    fn direct(&self, direct: Direct) -> Option<Arc<dyn ExpertKernel>> {
        let experts = self.experts?;
        let experts = Experts { direct: Some(direct), added: experts.added || direct.low_rank.is_some(), ..experts };
        let spec = MultiplySpec { experts: Some(experts), ..*self };
        spec.check().is_ok().then(|| Arc::new(spec) as Arc<dyn ExpertKernel>)
    }

    fn rows(&self, operands: &ProductOperands, sides: [u32; 2]) -> Vec<Argument> {
        let map = |width| self.row_map(operands.rows, sides, operands.plane, width);
        vec![Argument::Maps(self.widths().into_iter().map(map).collect())]
    }
}
