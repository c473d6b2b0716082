//! From ordinary floats to NVFP4, and how much that loses.
//!
//! The recipe is the common one: global = amax/(6·448), so that the largest element meets the largest
//! code under the largest scale; each block's scale is its own amax/6 in units of the global scale,
//! rounded to e4m3 and kept within [2⁻⁹, 448]; each element is rounded to the nearest e2m1 code in units
//! of scale · global. Everything is decided in f64, where those products are exact, or rounded once where a
//! global scale divides.

use crate::matrix::check_k;
use crate::{BLOCK, Dense, Error, GlobalScale, Matrix, Result, e2m1, e4m3};

const LARGEST_CODE: f64 = 6.0;

/// Quantises a matrix, honouring its own global scale.
///
/// Without a `global` the one of the recipe is used, amax/(6·448), or 1 if all elements are zero. With
/// one, blocks whose scale would leave [2⁻⁹, 448] get the nearest end: a global scale that is too small
/// saturates large elements, one that is too large loses small ones.
///
/// # Errors
///
/// If K is no multiple of 16, if an element is NaN or infinite, or if `global` is not finite and above
/// zero.
pub fn quantize(source: &Dense<'_>, global: Option<GlobalScale>) -> Result<Matrix<'static>> {
    let (rows, k) = (source.rows(), source.k());
    check_k(k)?;
    let global = match global {
        Some(given) if given.is_usable() && given.value() > 0.0 => given,
        Some(given) => return Err(Error::QuantizingGlobal { came: given }),
        None => fitting_global(source)?,
    };
    let factor = global.value();
    let mut codes = Vec::with_capacity(rows * k / 2);
    let mut scales = Vec::with_capacity(rows * k / BLOCK);
    for_each_row(source, |row| {
        for block in row.chunks_exact(BLOCK) {
            let scale = block_scale(amax(block), factor);
            let unit = f64::from(e4m3::decode(scale)) * factor;
            let midpoints = e2m1::midpoints(unit);
            scales.push(scale);
            codes.extend(
                block
                    .chunks_exact(2)
                    .map(|pair| e2m1::nearest(pair[0], &midpoints) | e2m1::nearest(pair[1], &midpoints) << 4),
            );
        }
    })?;
    Matrix::new(rows, k, codes, scales, global)
}

/// The scale a block is given, as an e4m3 byte.
fn block_scale(amax: f64, global: f64) -> u8 {
    let wanted = amax / (LARGEST_CODE * global);
    e4m3::nearest(wanted.clamp(f64::from(e4m3::MIN_POSITIVE), f64::from(e4m3::MAX)))
}

/// The f32 numbers at which the choices of [`quantize`] change under a global scale, for those who can only compare.
/// What is never chosen has an infinite one.
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds {
    /// The least amax of a block whose scale is above e4m3's byte 1, above 2, and so on to 125.
    pub scales: Vec<f32>,
    /// For each scale from byte 1 to 126: the least magnitude whose code is above 0, above 1, and so on to 6.
    pub codes: Vec<[f32; 7]>,
}

impl Thresholds {
    /// Those under a global scale above zero.
    pub fn new(global: GlobalScale) -> Self {
        let factor = global.value();
        let scales = (1..MOST_SCALE).map(|byte| least(|amax| block_scale(amax, factor) > byte)).collect();
        let codes = (1..=MOST_SCALE).map(|byte| {
            let midpoints = e2m1::midpoints(f64::from(e4m3::decode(byte)) * factor);
            std::array::from_fn(|code| least(|x| usize::from(e2m1::nearest(x, &midpoints)) > code))
        });
        Self { scales, codes: codes.collect() }
    }
}

/// The byte of the largest scale.
const MOST_SCALE: u8 = 0x7E;

/// The least f32 of which something holds that holds of all above it, too.
fn least(holds: impl Fn(f64) -> bool) -> f32 {
    let (mut below, mut from) = (0, f32::INFINITY.to_bits());
    while below < from {
        let middle = below + (from - below) / 2;
        match holds(f32::from_bits(middle).into()) {
            true => from = middle,
            false => below = middle + 1,
        }
    }
    f32::from_bits(from)
}

/// The global scale of the recipe, but never a subnormal one, which has few bits and which many processors take
/// for zero. Only matrices whose amax is below 10⁻³⁴ notice; their block scales take up what they can.
fn fitting_global(source: &Dense<'_>) -> Result<GlobalScale> {
    let mut largest = 0.0f64;
    for_each_row(source, |row| largest = largest.max(amax(row)))?;
    if largest == 0.0 {
        return Ok(1.0.into());
    }
    let global = largest / (LARGEST_CODE * f64::from(e4m3::MAX));
    Ok((global as f32).max(f32::MIN_POSITIVE).into())
}

fn amax(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()))
}

/// Calls `visit` with each row times the source's global scale. An element that is NaN, or not within f32's
/// range after scaling, is an error.
fn for_each_row(source: &Dense<'_>, mut visit: impl FnMut(&[f64])) -> Result<()> {
    let mut narrow = vec![0.0f32; source.k()];
    let mut wide = vec![0.0f64; source.k()];
    let own = source.global().value();
    for row in 0..source.rows() {
        source.row(row, &mut narrow);
        for (wide, &narrow) in wide.iter_mut().zip(&narrow) {
            *wide = f64::from(narrow) * own;
        }
        let finite = |value: &f64| value.abs() <= f64::from(f32::MAX);
        if !wide.iter().fold(true, |all, value| all & finite(value)) {
            let column = wide.iter().position(|value| !finite(value)).unwrap_or_default();
            return Err(Error::NotFinite { row, column, came: wide[column] });
        }
        visit(&wide);
    }
    Ok(())
}

/// How far a quantised matrix is from what it was made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// The largest distance of one element.
    pub max_abs: f64,
    /// The root of the mean squared distance.
    pub rms: f64,
    /// The distance as a whole, ‖x−q‖/‖x‖; infinite if only x is zero, zero if both are.
    pub relative: f64,
}

/// Measures the distance between a matrix and its quantised form.
///
/// # Errors
///
/// If the shapes differ, or if an element of `source` is NaN or infinite.
pub fn loss(source: &Dense<'_>, quantised: &Matrix<'_>) -> Result<Loss> {
    let (shape, other) = ([source.rows(), source.k()], [quantised.rows(), quantised.k()]);
    if shape != other {
        return Err(Error::ShapesDiffer { source_shape: shape, quantised_shape: other });
    }
    let global = quantised.global().value();
    let mut unscaled = vec![0.0f32; quantised.k()];
    let (mut row, mut max_abs, mut noise, mut signal) = (0, 0.0f64, 0.0f64, 0.0f64);
    for_each_row(source, |values| {
        quantised.unscaled_row(row, &mut unscaled);
        row += 1;
        for (value, &quantised) in values.iter().zip(&unscaled) {
            let distance = (value - f64::from(quantised) * global).abs();
            max_abs = max_abs.max(distance);
            noise += distance * distance;
            signal += value * value;
        }
    })?;
    let elements = (shape[0] * shape[1]).max(1) as f64;
    let relative = if noise == 0.0 { 0.0 } else { (noise / signal).sqrt() };
    Ok(Loss { max_abs, rms: (noise / elements).sqrt(), relative })
}
