//! FP8 weights by the names of their modules: a `weight` of type F8_E4M3, and a scale beside it.
//!
//! | written by | scale | its shape |
//! |---|---|---|
//! | ModelOpt `FP8`, compressed-tensors `float-quantized` | `weight_scale` F32, F16 or BF16 | `[]`, `[1]`; `[N]` or `[N, 1]` |
//! | DeepSeek and who quantises like it | `weight_scale_inv` (it multiplies, whatever its name says) | `[⌈N/128⌉, ⌈K/128⌉]` |
//! | DeepSeek-V4 and V4.1 | `scale` F8_E8M0 | the same, and `[N/32, K/32]` |
//! | ModelOpt and compressed-tensors `MXFP8` | `weight_scale` U8 or F8_E8M0 | `[N, K/32]` |
//!
//! Shapes decide, of exponents (U8 or F8_E8M0) too: those of blocks are widened to f32, which holds every one of them.
//! Blocks have the sides that the model declares (`weight_block_size`), 128 or 32, the first that makes as many as
//! there are; other sides must divide the matrix, and be the only ones that could be meant.

use super::Checkpoint;
use super::feed_forward::stored_numbers;
use super::names::Part;
use super::store::{Element, View};
use crate::tensors::Dtype;
use crate::{Error, Fp8Matrix, Fp8Scales, MX_BLOCK, Result};

/// The names that scales have beside a weight.
const SCALES: [&str; 3] = ["weight_scale", "weight_scale_inv", "scale"];

/// The parts that are read, or that only activations would be rounded with.
const PARTS: [Part; 5] = [Part::Weight, Part::BlockScale, Part::Exponents, Part::InputScale, Part::Bias];

/// The sides of blocks that models have, where nothing else is said.
const SIDES: [usize; 2] = [128, 32];

/// An FP8 linear layer.
#[derive(Clone, Debug)]
pub struct Fp8Linear<'a> {
    /// The weight.
    pub matrix: Fp8Matrix<'a>,
    /// What is added to the sums of its rows, if the model has that.
    pub bias: Option<Vec<f32>>,
}

impl Checkpoint {
    /// Reads an FP8 weight and its bias by the name of its module, such as `model.layers.0.self_attn.q_proj`.
    ///
    /// # Errors
    ///
    /// If there is no such weight or no single scale beside it, if it is not of type F8_E4M3, if their shapes do not
    /// belong together, if a number is NaN, or if more is stored beside it than is read.
    pub fn fp8(&self, name: &str) -> Result<Fp8Linear<'_>> {
        let weight = self.fp8_part(name, "weight")?;
        if !weight.is(Dtype::F8_E4M3) {
            let problem = format!("it has type {}, where F8_E4M3 is expected", weight.element);
            return refuse(&weight, problem, "name a weight that is FP8");
        }
        let [rows, k] = *weight.shape else {
            return refuse(&weight, format!("it has shape {:?}, where [N, K] is expected", weight.shape), "expand it");
        };
        self.refuse_beside(name, &PARTS, &["weight_scale_inv"])?;
        let mut scales = SCALES.iter().filter_map(|part| self.store.view(&format!("{name}.{part}")));
        let (Some(scale), None) = (scales.next(), scales.next()) else {
            let problem =
                "it is FP8, and no single weight_scale, weight_scale_inv or scale stands beside it".to_owned();
            return refuse(&weight, problem, "fetch the missing part");
        };
        let in_tensor = |reason| Error::InTensor {
            path: weight.path.to_path_buf(),
            name: weight.name.to_owned(),
            reason: Box::new(reason),
        };
        let block = self.config.quantisation.as_ref().and_then(|declared| declared.block);
        let scales = scales_of(&scale, [rows, k], block)?;
        let matrix = Fp8Matrix::new(rows, k, weight.bytes, scales).map_err(in_tensor)?;
        let bias = match self.store.view(&format!("{name}.bias")) {
            Some(view) => Some(bias_of(&view, rows)?),
            None => None,
        };
        Ok(Fp8Linear { matrix, bias })
    }

    fn fp8_part(&self, name: &str, part: &str) -> Result<View<'_>> {
        let full = format!("{name}.{part}");
        self.store.view(&full).ok_or_else(|| Error::Weight {
            path: self.path().to_path_buf(),
            name: full,
            problem: "there is no such tensor".to_owned(),
            remedy: "give a module's name as the file has it",
        })
    }
}

/// The scales of a matrix, told apart by type and shape. `block` is what the model declares of its blocks.
fn scales_of<'a>(view: &View<'a>, [rows, k]: [usize; 2], block: Option<[usize; 2]>) -> Result<Fp8Scales<'a>> {
    let misshaped = |expected: String| {
        refuse(
            view,
            format!("it has shape {:?}, which does not scale a weight of shape [{rows}, {k}]: {expected}", view.shape),
            "check that it belongs to this weight, or expand the weight",
        )
    };
    let declared = block.map_or([None, None], |[height, width]| [Some(height), Some(width)]);
    let blocks = |down: usize, across: usize, scales: Vec<f32>| match [
        side(rows, down, declared[0]),
        side(k, across, declared[1]),
    ] {
        [Some(height), Some(width)] => Ok(Fp8Scales::Blocks { block: [height, width], scales: scales.into() }),
        _ => misshaped("neither blocks of 128 or 32 nor those of one other size fill it".to_owned()),
    };
    if matches!(view.element, Element::Safetensors(Dtype::U8 | Dtype::F8_E8M0)) {
        return match *view.shape {
            [n, across] if n == rows && across.checked_mul(MX_BLOCK) == Some(k) => Ok(Fp8Scales::Mx(view.bytes.into())),
            [down, across] => blocks(down, across, view.bytes.iter().map(|&exponent| power_of_two(exponent)).collect()),
            _ => misshaped("exponents are [N, K/32], as of MXFP8, or one per block".to_owned()),
        };
    }
    let scales = stored_numbers(view)?;
    match (view.shape, scales.as_slice()) {
        ([] | [1] | [1, 1], [scale]) => Ok(Fp8Scales::Matrix(*scale)),
        ([n] | [n, 1], _) if *n == rows => Ok(Fp8Scales::Rows(scales.into())),
        (&[down, across], _) => blocks(down, across, scales),
        _ => misshaped("one number, one per row, or one per block is expected".to_owned()),
    }
}

/// What an exponent byte stands for: 2^(s−127), subnormal for s = 0, and NaN for 255.
fn power_of_two(exponent: u8) -> f32 {
    match exponent {
        0 => f32::from_bits(1 << 22),
        u8::MAX => f32::NAN,
        _ => f32::from_bits(u32::from(exponent) << 23),
    }
}

/// The side of so many blocks along a length: one that is declared or usual, of which the last may be smaller, or what
/// divides it. Where blocks of a larger power of two are as many, the last of them smaller, nothing tells which are
/// meant.
fn side(length: usize, blocks: usize, declared: Option<usize>) -> Option<usize> {
    let fills = |side: &usize| *side > 0 && length.div_ceil(*side) == blocks;
    if blocks == 0 {
        return None;
    }
    declared.into_iter().chain(SIDES).find(fills).or_else(|| {
        let side = length.is_multiple_of(blocks).then(|| length / blocks)?;
        let is_only = blocks == 1 || side.is_power_of_two() || !fills(&side.next_power_of_two());
        is_only.then_some(side)
    })
}

fn bias_of(view: &View<'_>, rows: usize) -> Result<Vec<f32>> {
    let bias = stored_numbers(view)?;
    match bias.iter().all(|number| number.is_finite()) && *view.shape == [rows] {
        true => Ok(bias),
        false => {
            let problem = format!("it has shape {:?}, where [{rows}] finite numbers are expected", view.shape);
            refuse(view, problem, "check that it belongs to this weight")
        }
    }
}

fn refuse<T>(view: &View<'_>, problem: String, remedy: &'static str) -> Result<T> {
    Err(Error::Weight { path: view.path.to_path_buf(), name: view.name.to_owned(), problem, remedy })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exponent_is_widened_exactly() {
        for exponent in 0..u8::MAX {
            assert_eq!(f64::from(power_of_two(exponent)), 2f64.powi(i32::from(exponent) - 127), "{exponent}");
        }
        assert!(power_of_two(u8::MAX).is_nan());
    }

    #[test]
    fn usual_sides_come_first_and_any_other_must_divide_and_be_the_only_one() {
        let side = |length, blocks| side(length, blocks, None);
        // 576 rows in blocks of 128 are five, the last of half the size: 116 would be as many, and wrong.
        assert_eq!(side(576, 5), Some(128));
        // 48 rows in blocks of 32 are two, and 24 would divide them.
        assert_eq!(side(48, 2), Some(32));
        assert_eq!(side(512, 8), Some(64));
        assert_eq!(side(100, 1), Some(128));
        assert_eq!([side(200, 1), side(1536, 32)], [Some(200), Some(48)]);
        assert_eq!([side(100, 3), side(100, 0), side(0, 0)], [None; 3]);
        // Two blocks of 48, or one of 64 and one of 32.
        assert_eq!(side(96, 2), None);
        assert_eq!([super::side(96, 2, Some(48)), super::side(96, 2, Some(64))], [Some(48), Some(64)]);
        assert_eq!([super::side(96, 3, Some(64)), super::side(96, 3, Some(0))], [Some(32); 2]);
    }
}
