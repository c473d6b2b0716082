//! What lies between the two products, made what the second one takes, where that is a matter of each row's expert: it
//! is multiplied with the expert's input scale, a factor per column, or quantised to NVFP4 with the expert's global
//! scale.
//!
//! *Scaled*: numbers become floats by the product (the one rounding here) and are split into three parts, as `expand`
//! has it.
//!
//! *Quantised*: the scale of sixteen numbers and their codes are chosen as [`format::quantize`] chooses them, which
//! decides in double precision. Here nothing is decided: a table per expert has the floats at which those choices
//! change ([`format::Thresholds`]), and magnitudes are compared with them, as whole numbers. Codes times scales are
//! halves, exactly; the global scale is among the factors of the second product. Where one of the sixteen is not
//! finite, all of them are NaN.
//!
//! A thread has eight or sixteen neighbouring numbers of a row. Rows behind the last expert's are left alone.

use format::{GlobalScale, Thresholds, e4m3};
use ptx::{Addr, Builder, Error, F16x2, F32, Global, Kernel, LaunchBounds, Reg, SpecialRegister, Target, U32, U64};

use super::{Portable, await_predecessor, launch_dependents};
use crate::expand::{self, Float};

/// Threads of a block.
const THREADS: u32 = 128;
/// Scales that a block may have: the e4m3 bytes from 1 on.
const SCALES: usize = 126;
/// Words of a table: 128 at which the scale changes, of which the first is not looked at and the last are never
/// reached; then for each scale the seven at which codes change, and the scale itself.
pub(super) const TABLE_WORDS: usize = SCALE_WORDS + 8 * SCALES;
const SCALE_WORDS: usize = 128;
/// The bits of infinity, above which a magnitude is no number.
const INFINITE: u32 = 0x7F80_0000;
/// Two halves that are NaN.
const NAN_PAIR: u32 = 0x7E00_7E00;

/// What becomes of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Numbers of a type are multiplied with factors per column, and become three planes of bf16.
    Scaled(Float),
    /// Floats become NVFP4, codes times scales as halves.
    Quantised,
}

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BetweenSpec {
    /// What becomes of the rows.
    pub form: Form,
    /// Experts.
    pub experts: u32,
}

impl BetweenSpec {
    /// Numbers of a thread.
    pub fn unit(&self) -> u32 {
        match self.form {
            Form::Scaled(_) => 8,
            Form::Quantised => 16,
        }
    }

    /// Blocks for so many rows with so many columns.
    pub fn blocks(&self, rows: u32, columns: u32) -> u32 {
        (u64::from(rows) * u64::from(columns / self.unit())).div_ceil(THREADS.into()) as u32
    }
}

/// The table by which numbers are quantised with a global scale.
pub fn table(global: GlobalScale) -> Vec<f32> {
    let thresholds = Thresholds::new(global);
    let mut words = vec![f32::INFINITY; SCALE_WORDS];
    words[1..SCALES].copy_from_slice(&thresholds.scales);
    for (byte, codes) in (1..).zip(&thresholds.codes) {
        words.extend(codes);
        words.push(e4m3::decode(byte));
    }
    words
}

impl Portable for BetweenSpec {
    fn kernel_for(self, target: Target) -> Result<Kernel, Error> {
        kernel(self, target)
    }
}

/// Where a thread's numbers are.
struct Place {
    source: Reg<U64>,
    /// The first expert's factors or table.
    numbers: Reg<U64>,
    out: Reg<U64>,
    /// The unit among all rows', and among its own row's, of which each has so many.
    unit: Reg<U32>,
    inside: Reg<U32>,
    units: Reg<U32>,
    /// The row's expert.
    owner: Reg<U32>,
}

/// Builds the kernel. Its arguments, in order: rows `[rows, columns]`; factors `[experts, columns]`, or tables; the
/// expert of every row; the layout; where rows go, and bytes between their planes if there are several; units of a row.
pub fn kernel(spec: BetweenSpec, target: Target) -> Result<Kernel, Error> {
    let launch = LaunchBounds { threads: THREADS, cluster: None, min_blocks: None };
    let mut k = Builder::new("between", target, launch);
    let [source, numbers, owners, layout, out] =
        ["rows", "numbers", "owners", "layout", "out"].map(|name| k.pointer(name));
    let plane = matches!(spec.form, Form::Scaled(_)).then(|| k.param("plane"));
    let units: Reg<U32> = k.param("units");
    launch_dependents(&mut k, target);
    let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    let unit = k.mul_add(block, THREADS, thread);
    let row = k.div(unit, units);
    let before = k.mul(row, units);
    let inside = k.sub(unit, before);
    await_predecessor(&mut k, target);
    let rows: Reg<U32> = k.load(Addr::<Global>::of(layout).plus((4 * spec.experts).cast_signed()));
    let exists = k.lt(row, rows);
    k.if_(exists, |k| {
        let owner_at = k.mul_wide_add(row, 4, owners);
        let owner = k.load(Addr::<Global>::of(owner_at));
        let place = Place { source, numbers, out, unit, inside, units, owner };
        match (spec.form, plane) {
            (Form::Scaled(float), Some(plane)) => scale(k, &place, float, plane),
            _ => quantise(k, &place),
        }
    });
    k.finish()
}

/// Eight numbers times the factors of their columns, part by part.
fn scale(k: &mut Builder, place: &Place, float: Float, plane: Reg<U64>) {
    let numbers = k.phase("load", |k| expand::load_floats(k, float, place.source, place.unit));
    let row_bytes = k.mul(place.units, 32);
    let factors = k.mul_wide_add(place.owner, row_bytes, place.numbers);
    let factors = k.phase("load", |k| expand::load_floats(k, Float::F32, factors, place.inside));
    let products = std::array::from_fn(|i| k.mul(numbers[i], factors[i]));
    let mut to = k.mul_wide_add(place.unit, 16, place.out);
    for (part, words) in expand::split(k, products).into_iter().enumerate() {
        if part > 0 {
            to = k.add(to, plane);
        }
        k.phase("store", |k| k.store_vector(Addr::<Global>::of(to), words));
    }
}

/// Sixteen numbers as codes times their scale.
fn quantise(k: &mut Builder, place: &Place) {
    let from = Addr::<Global>::of(k.mul_wide_add(place.unit, 64, place.source));
    let numbers: Vec<Reg<U32>> =
        k.phase("load", |k| (0..4).flat_map(|part| k.load_vector::<U32, Global, 4>(from.plus(16 * part))).collect());
    let magnitudes: Vec<Reg<U32>> = numbers.iter().map(|&x| k.and(x, 0x7FFF_FFFFu32)).collect();
    let amax = magnitudes[1..].iter().fold(magnitudes[0], |most, &x| k.max(most, x));
    let table = k.mul_wide_add(place.owner, 4 * TABLE_WORDS as u32, place.numbers);
    let largest = k.min(amax, INFINITE - 1);
    let scale = k.phase("choose", |k| reached(k, table, largest));
    let row = k.mul_wide_add(scale, 32, table);
    let row = Addr::<Global>::of(row).plus(4 * SCALE_WORDS as i32);
    let (low, high): ([Reg<U32>; 4], [Reg<U32>; 4]) =
        k.phase("load", |k| (k.load_vector(row), k.load_vector(row.plus(16))));
    let scale: Reg<F32> = high[3].cast();
    let steps = [low[0], low[1], low[2], low[3], high[0], high[1], high[2]];
    let values: Vec<Reg<F32>> = k.phase("choose", |k| {
        let value = |(&number, &magnitude): (&Reg<U32>, &Reg<U32>)| {
            let value = code_value(k, magnitude, steps);
            let value = k.mul(value, scale);
            let sign = k.and(number, 0x8000_0000u32);
            k.or(value.cast::<U32>(), sign).cast()
        };
        numbers.iter().zip(&magnitudes).map(value).collect()
    });
    let finite = k.lt(amax, INFINITE);
    let words: Vec<Reg<U32>> = values
        .chunks(2)
        .map(|pair| {
            let halves = k.convert_pair::<F16x2>(pair[0], pair[1]);
            k.select(finite, halves.cast::<U32>(), NAN_PAIR)
        })
        .collect();
    let to = Addr::<Global>::of(k.mul_wide_add(place.unit, 32, place.out));
    k.phase("store", |k| {
        for (part, four) in words.chunks_exact(4).enumerate() {
            k.store_vector(to.plus(16 * part as i32), [four[0], four[1], four[2], four[3]]);
        }
    });
}

/// How many of a table's first steps a magnitude reaches, by bisection: which of the scales it leads to.
fn reached(k: &mut Builder, table: Reg<U64>, magnitude: Reg<U32>) -> Reg<U32> {
    let index = k.variable(0);
    for step in [64, 32, 16, 8, 4, 2, 1] {
        let at = Addr::<Global>::of(k.mul_wide_add(index, 4, table)).plus(4 * step);
        let least: Reg<U32> = k.load(at);
        let reached = k.ge(magnitude, least);
        let further = k.add(index, step.cast_unsigned());
        k.when(reached, |k| k.set(index, further));
    }
    index
}

/// The value of the code of a magnitude: that of the last step that it reaches.
fn code_value(k: &mut Builder, magnitude: Reg<U32>, steps: [Reg<U32>; 7]) -> Reg<F32> {
    let zero = k.variable(0.0);
    steps.into_iter().zip([0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]).fold(zero, |value, (step, next)| {
        let reached = k.ge(magnitude, step);
        k.select(reached, next, value)
    })
}
