//! The operation, as simply as it can be written: what every backend is measured against.
//!
//! One element of C is two dot products over K, each scaled by its two global scales, joined by the gate:
//!
//! ```text
//! gate = αₐ·α₁ · Σₖ a[k]·b1[k]      up = αₐ·α₂ · Σₖ a[k]·b2[k]      c = silu(gate)·up
//! ```
//!
//! Where the weights have biases, `b₁` is added to the gate sum and `b₂` to the up sum after these scales and before
//! the gate. Where they have an input scale s, `a[k]·s[k]` stands in the place of `a[k]`. It is exact in f64; backends
//! round it to f32.
//!
//! The operands are read exactly: a code times its block scale has at most six significant bits. A product of two
//! operands is exact in f64, and sums are kept in f64, so a reference value is good to about K·2⁻⁵³ of the sum of
//! magnitudes, which is nothing beside the f32 arithmetic that it judges.
//!
//! Beside each sum stands what says how hard it was to compute, from which [`crate::arithmetic`] derives what a backend
//! may be off by: the sum of magnitudes Σ|a·b|, the *quantum*, a power of two that divides every product, and how large
//! the sum was on its way.

use crate::precision::{self, Precision};
use crate::{Activations, Gate, Weights};

/// A row of an operand, exact and without its global scale, and the largest power of two that divides its values.
#[derive(Clone, Debug)]
pub struct Row {
    values: Vec<f64>,
    quantum: f64,
    /// The largest magnitude.
    largest: f64,
    /// Whether backends round these numbers to f32.
    rounded: bool,
    /// The least normal number, where these are e4m3 numbers times a power of two.
    least_e4m3: Option<f64>,
    /// How far a backend's numbers may be from these; empty where they are the same.
    moved: Vec<f64>,
}

impl Row {
    /// Keeps a row and finds its quantum: the least place value that any of its numbers uses.
    pub fn new(values: Vec<f32>) -> Self {
        let lowest = values.iter().filter_map(|&x| lowest_place(x)).min();
        Self::of(values.into_iter().map(f64::from).collect(), lowest, false)
    }

    /// A row times an input scale: the lowest places of two numbers add up to that of their product.
    pub fn scaled(values: &[f32], scale: &[f32]) -> Self {
        let pairs = || values.iter().zip(scale);
        let lowest = pairs().filter_map(|(&x, &s)| Some(lowest_place(x)? + lowest_place(s)?)).min();
        let values = pairs().map(|(&x, &s)| f64::from(x) * f64::from(s)).collect();
        Self::of(values, lowest, true)
    }

    /// The largest magnitude.
    pub(crate) fn largest(&self) -> f64 {
        self.largest
    }

    /// The same row, of numbers that backends may have rounded to f32.
    pub(crate) fn rounded(self) -> Self {
        Self { rounded: true, ..self }
    }

    /// The same row, of e4m3 numbers that a backend may have otherwise, each by so much at most.
    pub(crate) fn moved_by(self, moved: Vec<f64>) -> Self {
        Self { moved, ..self }
    }

    /// A row of e4m3 numbers times two to a power.
    fn e4m3(values: &[f32], exponent: i32) -> Self {
        let lowest = values.iter().filter_map(|&x| lowest_place(x)).min().map(|place| place + exponent);
        let factor = 2f64.powi(exponent);
        let values = values.iter().map(|&x| f64::from(x) * factor).collect();
        Self { least_e4m3: Some(2f64.powi(-6) * factor), ..Self::of(values, lowest, false) }
    }

    fn of(values: Vec<f64>, lowest: Option<i32>, rounded: bool) -> Self {
        let largest = values.iter().fold(0f64, |largest, x| largest.max(x.abs()));
        Self {
            values,
            quantum: lowest.map_or(f64::INFINITY, |place| 2f64.powi(place)),
            largest,
            rounded,
            least_e4m3: None,
            moved: Vec::new(),
        }
    }
}

#[cfg(test)]
impl Row {
    /// The numbers, of a row that is not scaled.
    pub(crate) fn values(&self) -> Vec<f32> {
        self.values.iter().map(|&x| x as f32).collect()
    }
}

/// The place of a number's lowest set bit, as a power of two; none for zero, which everything divides.
fn lowest_place(x: f32) -> Option<i32> {
    let (magnitude, mantissa_bits) = (x.to_bits() & 0x7FFF_FFFF, 23);
    if magnitude == 0 {
        return None;
    }
    let (exponent, fraction) = (magnitude >> mantissa_bits, magnitude & 0x007F_FFFF);
    let significand = if exponent == 0 { fraction } else { fraction | 0x0080_0000 };
    Some(exponent.max(1) as i32 - 150 + significand.trailing_zeros() as i32)
}

/// One dot product, and how hard it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// α·Σ a·b + bias + addend.
    pub value: f64,
    /// The bias in it.
    pub bias: f64,
    /// What is added to both, which is computed as well: its value, and how far off it may be.
    pub addend: [f64; 2],
    /// |α|·Σ |a·b|; infinite where Σ |a·b| itself is beyond f32, so that no f32 sum can be held to anything.
    pub magnitude: f64,
    /// Whether every partial sum, in any order, is a number that f32 can hold exactly.
    pub exact: bool,
    /// What products may be lost that vanish beside the group's largest activation, or in f32 altogether.
    pub negligible: f64,
    /// What rounding the row's products with an input scale to f32 may have moved it by; nothing where the sum is
    /// exact, since they are too then.
    pub rounded: f64,
    /// |α| times the largest sum so far between two stretches of 64 products, in any order in which backends add them:
    /// in a row; those of every other stage of 64, 128 or 256 of K apart from the others; those of the two halves of K
    /// apart; both.
    pub peak: f64,
    /// |α| times what the sum so far is on average when a product is added to it, or more, in whichever order it is
    /// largest.
    pub average: f64,
    /// |α| times the largest Σ |a·b| of a stretch.
    pub burst: f64,
    /// |α| times a power of two that divides every product.
    pub quantum: f64,
    /// The largest magnitudes of the two rows.
    pub operands: [f64; 2],
    /// |α|.
    pub alpha: f64,
    /// |α| times what tensor cores may lose that keep 13 bits behind the point of e4m3 numbers' sums: in a row, or in
    /// two halves of K; nothing of other numbers.
    pub coarse: f64,
}

impl Sum {
    /// The same sum with a bias added.
    pub fn biased(self, bias: f64) -> Self {
        Self { value: self.value + bias, bias, ..self }
    }

    /// The same sum with a computed number added last, which may be off by so much.
    pub fn added(self, addend: f64, error: f64) -> Self {
        Self { value: self.value + addend, addend: [addend, error], ..self }
    }

    /// The same sum with what its bias is added to multiplied by a number, in f32: that rounds once.
    pub(crate) fn times(self, factor: f64) -> Self {
        let scale = factor.abs();
        let [magnitude, negligible, rounded, peak, average, burst, quantum, alpha, coarse] = [
            self.magnitude,
            self.negligible,
            self.rounded,
            self.peak,
            self.average,
            self.burst,
            self.quantum,
            self.alpha,
            self.coarse,
        ]
        .map(|number| scale * number);
        let value = factor * (self.value - self.bias) + self.bias;
        // Half of this is for the sum itself, and the other half for what it is off by, which is less.
        let rounded = rounded + 2.0 * 2f64.powi(-24) * magnitude;
        Self { value, magnitude, negligible, rounded, peak, average, burst, quantum, alpha, coarse, ..self }
    }

    /// A sum of which no more is known than its value and its magnitude.
    pub fn rough(value: f64, magnitude: f64) -> Self {
        Self {
            value,
            bias: 0.0,
            addend: [0.0; 2],
            magnitude,
            exact: false,
            negligible: 0.0,
            rounded: 0.0,
            peak: magnitude,
            average: magnitude,
            burst: magnitude,
            quantum: 0.0,
            operands: [f64::INFINITY; 2],
            alpha: 1.0,
            coarse: 0.0,
        }
    }
}

/// Products between two looks at the sums so far.
const STRETCH: usize = 64;
/// Stretches of a stage of the kernels that have every other one.
const STAGES: [usize; 3] = [1, 2, 4];

/// One order of adding, into up to four sums.
#[derive(Clone, Copy, Default)]
struct Order {
    sums: [f64; 4],
    peak: f64,
    /// The magnitudes of the sums that products were added to, or more, all together.
    travel: f64,
}

impl Order {
    /// Adds a stretch of so many products to one of the sums.
    fn step(&mut self, which: usize, stretch: &Stretch) {
        let sum = &mut self.sums[which];
        self.travel += stretch.products * (sum.abs() + stretch.magnitude);
        *sum += stretch.sum;
        self.peak = self.peak.max(sum.abs());
    }
}

/// Sums over a stretch.
struct Stretch {
    products: f64,
    sum: f64,
    magnitude: f64,
}

/// The sums that backends have so far, in the orders in which they add.
struct Walks {
    /// Stretches there will be, and those there were.
    stretches: usize,
    done: usize,
    in_a_row: Order,
    /// For each size of stages: every other one apart; the two halves apart; both.
    staged: [[Order; 3]; STAGES.len()],
}

impl Walks {
    fn new(k: usize) -> Self {
        let (stretches, done, in_a_row) = (k.div_ceil(STRETCH), 0, Order::default());
        Self { stretches, done, in_a_row, staged: Default::default() }
    }

    fn step(&mut self, stretch: &Stretch) {
        self.in_a_row.step(0, stretch);
        for (orders, size) in self.staged.iter_mut().zip(STAGES) {
            // As the kernels divide K: the first half has the odd stage.
            let (stage, stages) = (self.done / size, self.stretches.div_ceil(size));
            let (parity, half) = (stage % 2, usize::from(stage >= stages.div_ceil(2)));
            let [apart, halved, both] = orders;
            apart.step(parity, stretch);
            halved.step(half, stretch);
            both.step(2 * half + parity, stretch);
        }
        self.done += 1;
    }

    fn worst(&self, of: fn(&Order) -> f64) -> f64 {
        self.staged.iter().flatten().map(of).fold(of(&self.in_a_row), f64::max)
    }
}

/// Multiplies and adds two rows, the first one of a group whose largest activation is `largest`. Eight running sums
/// instead of one, so that an f64 pipeline is kept busy.
pub fn dot(a: &Row, b: &Row, alpha: f64, largest: f64) -> Sum {
    const LANES: usize = 8;
    let (mut walks, mut magnitude, mut burst) = (Walks::new(a.values.len()), 0f64, 0f64);
    for (a, b) in a.values.chunks(STRETCH).zip(b.values.chunks(STRETCH)) {
        let (mut sums, mut magnitudes) = ([0f64; LANES], [0f64; LANES]);
        for (a, b) in a.chunks_exact(LANES).zip(b.chunks_exact(LANES)) {
            for lane in 0..LANES {
                let product = a[lane] * b[lane];
                sums[lane] += product;
                magnitudes[lane] += product.abs();
            }
        }
        let (products, sum) = (a.len() as f64, sums.iter().sum());
        let stretch = Stretch { products, sum, magnitude: magnitudes.iter().sum() };
        walks.step(&stretch);
        magnitude += stretch.magnitude;
        burst = burst.max(stretch.magnitude);
    }
    // 2²⁴ quanta are exact in f32; half of that leaves room for operands split into parts.
    let quantum = a.quantum * b.quantum;
    let exact = magnitude == 0.0 || magnitude / quantum <= f64::from(1 << 23);
    let overflows = magnitude > f64::from(f32::MAX) / 2.0;
    let scale = alpha.abs();
    let rounding = if a.rounded && !exact { 2f64.powi(-24) } else { 0.0 };
    Sum {
        value: alpha * walks.in_a_row.sums[0],
        bias: 0.0,
        addend: [0.0; 2],
        magnitude: if overflows { f64::INFINITY } else { scale * magnitude },
        exact,
        negligible: scale * a.values.len() as f64 * (largest * 2f64.powi(-124) + 2f64.powi(-118)),
        rounded: rounding * scale * magnitude,
        peak: scale * walks.worst(|order| order.peak),
        average: scale * walks.worst(|order| order.travel) / a.values.len() as f64,
        burst: scale * burst,
        quantum: scale * quantum,
        operands: [a.largest, b.largest],
        alpha: scale,
        coarse: a.least_e4m3.zip(b.least_e4m3).map_or(0.0, |least| scale * coarse(a, b, least)),
    }
}

/// Products of e4m3 numbers that tensor cores add up at a time.
const E4M3_PRODUCTS: usize = 32;
/// Bits that those keep behind the point of the largest addend, and of the sum.
const E4M3_FRACTION: i32 = 13;

/// What sums of e4m3 products lose, at most, in the worst of the orders in which kernels add: in a row, or in two
/// halves whose first has the odd stage of 128 or 256.
fn coarse(a: &Row, b: &Row, least: (f64, f64)) -> f64 {
    let instructions = a.values.len().div_ceil(E4M3_PRODUCTS);
    let half = |stage: usize| instructions.div_ceil(stage).div_ceil(2) * stage;
    let cuts = [instructions, half(128 / E4M3_PRODUCTS), half(256 / E4M3_PRODUCTS)];
    let lost = |cut: usize| {
        let parts = [0..cut.min(instructions), cut.min(instructions)..instructions];
        parts.into_iter().map(|part| coarse_part(a, b, least, part)).sum::<f64>()
    };
    cuts.map(lost).into_iter().fold(0.0, f64::max)
}

/// The same for some instructions that add to one sum. Each aligns its products and the sum so far to the largest
/// exponent among them, that of a product being the sum of its operands'; cuts what is beyond the 13th bit behind that
/// point off every addend; and cuts their sum in the same way. An addend loses less than the place of that bit and no
/// more than itself, and nothing if it is a multiple of it. Where tokens may have moved, so may addends and sums: these
/// are multiples of nothing then.
fn coarse_part(a: &Row, b: &Row, (least_a, least_b): (f64, f64), part: std::ops::Range<usize>) -> f64 {
    let power = |x: f64| f64::from_bits(x.to_bits() & 0x7FF0_0000_0000_0000);
    let exponent = |x: f64, least: f64| power(x.abs().max(least));
    let place = |largest: f64| power(largest) * 2f64.powi(-E4M3_FRACTION);
    let is_multiple = |x: f64, place: f64| (x / place).fract() == 0.0;
    // The sum so far, how far a backend's exact one may be from it, and what the backend may have lost of that.
    let (mut sum, mut drift, mut lost) = (0f64, 0f64, 0f64);
    for instruction in part {
        let end = a.values.len().min((instruction + 1) * E4M3_PRODUCTS);
        let moved = |k: usize| a.moved.get(k).copied().unwrap_or(0.0);
        let terms = || (instruction * E4M3_PRODUCTS..end).map(|k| (a.values[k], b.values[k], moved(k)));
        let product = |(a, b, moved): (f64, f64, f64)| exponent(a.abs() + moved, least_a) * exponent(b, least_b);
        let cut_at = place(terms().map(product).fold(sum.abs() + drift + lost, f64::max));
        let cut = |x: f64, moved: f64| {
            if moved == 0.0 && is_multiple(x, cut_at) { 0.0 } else { (x.abs() + moved).min(cut_at) }
        };
        let products: f64 = terms().map(|(a, b, moved)| cut(a * b, moved * b.abs())).sum();
        let before = if lost + drift == 0.0 { cut(sum, 0.0) } else { cut_at };
        sum += terms().map(|(a, b, _)| a * b).sum::<f64>();
        drift += terms().map(|(_, b, moved)| moved * b.abs()).sum::<f64>();
        lost += products + before;
        let last = place(sum.abs() + drift + lost);
        if lost + drift > 0.0 || !is_multiple(sum, last) {
            lost += last;
        }
    }
    lost
}

/// One element of C.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Element {
    /// The scaled gate sum.
    pub gate: Sum,
    /// The scaled up sum, absent without a gate.
    pub up: Option<Sum>,
    /// c, before it is rounded to an output type.
    pub value: f64,
}

impl Element {
    /// The scaled sums that it is made of.
    pub fn sums(&self) -> impl Iterator<Item = &Sum> {
        std::iter::once(&self.gate).chain(&self.up)
    }
}

/// A row of a weight matrix, its global scale, and the bias that is added to its sums.
#[derive(Clone, Debug)]
pub struct Column {
    row: Row,
    global: f64,
    bias: f64,
}

impl Column {
    /// What each activation is multiplied with on its way into a sum, an input scale among it.
    pub(crate) fn factors<'a>(&'a self, input_scale: Option<&'a [f32]>) -> impl Iterator<Item = f64> + 'a {
        let scale = move |k: usize| input_scale.map_or(1.0, |scale| f64::from(scale[k]));
        self.row.values.iter().enumerate().map(move |(k, w)| self.global * (scale(k) * w))
    }
}

/// A group's operands with the rows that are to be computed read out.
#[derive(Debug)]
pub struct Reference<'a, 'b> {
    activations: &'a Activations<'b>,
    weights: &'a Weights<'b>,
    gate: Gate,
    precision: Precision,
    /// The powers of two that the matrices' weights are multiplied by before they are rounded to e4m3.
    lifts: Vec<u32>,
    largest: f64,
}

impl<'a, 'b> Reference<'a, 'b> {
    /// A group's operands and its gate. Where it takes one matrix, the up matrix is not looked at.
    pub fn new(activations: &'a Activations<'b>, weights: &'a Weights<'b>, gate: Gate) -> Self {
        Self::in_precision(activations, weights, gate, Precision::Exact)
    }

    /// The same with operands in a precision, as [`mod@crate::precision`] defines it.
    pub fn in_precision(
        activations: &'a Activations<'b>,
        weights: &'a Weights<'b>,
        gate: Gate,
        precision: Precision,
    ) -> Self {
        let lifts = match precision {
            Precision::Exact => Vec::new(),
            Precision::Fp8 => weights.matrices().take(gate.matrices()).map(precision::weight_lift).collect(),
        };
        let mut reference = Self { activations, weights, gate, precision, lifts, largest: 0.0 };
        for row in 0..activations.rows() {
            let token = reference.token(row);
            reference.largest = reference.largest.max(token.largest);
        }
        reference
    }

    /// The same group, which other tokens may belong to that are larger by a factor.
    pub(crate) fn among_tokens_apart_by(self, factor: f64) -> Self {
        Self { largest: self.largest * factor, ..self }
    }

    /// A row of A, times the input scale if there is one.
    pub fn token(&self, row: usize) -> Row {
        let mut values = vec![0.0; self.activations.k()];
        self.activations.unscaled_row(row, &mut values);
        match self.weights.input_scale() {
            scale if self.precision == Precision::Fp8 => {
                for (x, factor) in values.iter_mut().zip(scale.unwrap_or_default()) {
                    *x *= factor;
                }
                let (values, exponent) = precision::round_row(&values);
                Row::e4m3(&values, -exponent)
            }
            Some(scale) => Row::scaled(&values, scale),
            None => Row::new(values),
        }
    }

    /// The rows of B1 and B2 that make one column of C.
    pub fn column(&self, column: usize) -> Vec<Column> {
        let matrices = self.weights.matrices().take(self.gate.matrices());
        let read = |(index, matrix): (usize, &format::Matrix<'_>)| {
            let mut values = vec![0.0; matrix.k()];
            matrix.unscaled_row(column, &mut values);
            let bias = self.weights.bias(index).map_or(0.0, |bias| bias[column].into());
            let row = match self.lifts.get(index) {
                None => Row::new(values),
                Some(&lift) => {
                    let values = precision::round_weights(&values, lift);
                    Row::e4m3(&values, -precision::WEIGHT_EXPONENT - lift.cast_signed())
                }
            };
            Column { row, global: matrix.global().value(), bias }
        };
        matrices.enumerate().map(read).collect()
    }

    /// The element where a token and a column meet.
    pub fn element(&self, token: &Row, column: &[Column]) -> Element {
        let sum = |column: &Column| {
            let alpha = self.activations.global().value() * column.global;
            dot(token, &column.row, alpha, self.largest).biased(column.bias)
        };
        let (gate, up) = (sum(&column[0]), column.get(1).map(sum));
        let value = self.gate.apply(gate.value, up.map_or(0.0, |sum| sum.value));
        Element { gate, up, value }
    }

    /// All of C, row by row.
    pub fn all(&self) -> Vec<Element> {
        let columns: Vec<Vec<Column>> = (0..self.weights.n()).map(|n| self.column(n)).collect();
        let mut elements = Vec::with_capacity(self.activations.rows() * columns.len());
        for row in 0..self.activations.rows() {
            let token = self.token(row);
            elements.extend(columns.iter().map(|column| self.element(&token, column)));
        }
        elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arithmetic;

    #[test]
    fn the_quantum_of_a_row_is_the_lowest_bit_of_its_numbers() {
        for (x, place) in
            [(1.0, 1.0), (-6.0, 2.0), (0.5, 0.5), (1.5, 0.5), (448.0, 64.0), (f32::from_bits(1), 2f64.powi(-149))]
        {
            assert_eq!(Row::new(vec![x]).quantum, place, "{x}");
            assert_eq!(Row::new(vec![0.0, 1024.0, x]).quantum, place, "{x} among larger ones");
        }
        assert_eq!(Row::new(vec![-0.0]).quantum, f64::INFINITY);
    }

    #[test]
    fn a_dot_product_worked_by_hand() {
        let mut a = vec![0.0; 16];
        let mut b = vec![0.0; 16];
        (a[0], b[0], a[9], b[9]) = (1.5, 2.0, -0.5, 6.0);
        let sum = dot(&Row::new(a), &Row::new(b), 2.0, 0.0);
        assert_eq!((sum.value, sum.magnitude, sum.exact), (0.0, 12.0, true));
        assert!(sum.negligible < 1e-33);
    }

    #[test]
    fn an_input_scale_is_applied_exactly_and_granted_one_rounding_where_that_rounds() {
        let third = 1.0 / 3.0f32;
        let a = Row::scaled(&[0.1; 16], &[third; 16]);
        let b = Row::new(vec![2.0; 16]);
        let sum = dot(&a, &b, -1.0, 0.0);
        assert_eq!(sum.value, -32.0 * (f64::from(0.1f32) * f64::from(third)));
        assert_eq!(sum.rounded, sum.magnitude * 2f64.powi(-24));
        let whole = dot(&Row::scaled(&[3.0; 16], &[-0.75; 16]), &b, 1.0, 0.0);
        assert_eq!((whole.value, whole.exact, whole.rounded), (-72.0, true, 0.0));
    }

    #[test]
    fn the_peak_is_the_largest_sum_in_any_order_that_a_backend_has() {
        let peak = |sign: fn(usize) -> f32| {
            let a = Row::new((0..1024).map(sign).collect());
            dot(&a, &Row::new(vec![1.0; 1024]), -2.0, 0.0).peak
        };
        assert_eq!(peak(|_| 1.0), 2048.0, "all of one sign");
        assert_eq!(peak(|k| if k < 512 { 1.0 } else { -1.0 }), 1024.0, "up and down again");
        assert_eq!(peak(|k| if k / 256 % 2 == 0 { 1.0 } else { -1.0 }), 1024.0, "every other stage of 256");
        assert_eq!(peak(|k| if k % 512 < 256 { 1.0 } else { -1.0 }), 1024.0, "the same in both halves");
        assert_eq!(peak(|k| if k / 4 % 2 == 0 { 1.0 } else { -1.0 }), 0.0, "no backend adds such products apart");
    }

    #[test]
    fn the_average_sum_so_far_is_half_of_a_sum_that_grows_and_all_of_one_that_stands() {
        let average = |a: Vec<f32>| dot(&Row::new(a), &Row::new(vec![1.0; 6400]), 1.0, 0.0).average / 6400.0;
        assert!((average(vec![1.0; 6400]) - 0.505).abs() < 1e-9);
        assert!(average([vec![6400.0], vec![0.0; 6399]].concat()) > 0.99);
        let alternating = (0..6400).map(|k| if k % 2 == 0 { 1.0 } else { -1.0 }).collect();
        assert!(average(alternating) <= 0.01);
    }

    #[test]
    fn a_bias_is_added_after_every_scale_and_before_the_gate() {
        let ones = || format::Matrix::new(1, 16, vec![0x22; 8], vec![0x38], 0.25).unwrap();
        let weights = Weights::gated(ones(), ones()).unwrap().with_bias([vec![-3.0], vec![0.5]]).unwrap();
        let tokens = format::Dense::new(1, 16, vec![1f32; 16], 0.5).unwrap().into();
        let element = Reference::new(&tokens, &weights, Gate::Silu).all()[0];
        assert_eq!((element.gate.value, element.up.unwrap().value), (2.0 - 3.0, 2.0 + 0.5));
        assert_eq!(element.value, Gate::Silu.apply(-1.0, 2.5));
    }

    /// What Hopper is described to make of two rows of e4m3 numbers.
    fn hopper(a: &Row, b: &Row) -> f64 {
        let power = |x: f64| f64::from_bits(x.to_bits() & 0x7FF0_0000_0000_0000);
        let exponent = |x: f64, row: &Row| power(x.abs().max(row.least_e4m3.unwrap()));
        let cut = |x: f64, largest: f64| (x / (largest * 2f64.powi(-13))).trunc() * (largest * 2f64.powi(-13));
        a.values.chunks(32).zip(b.values.chunks(32)).fold(0.0, |sum: f64, (xs, ws)| {
            let pairs = || xs.iter().zip(ws).map(|(&x, &w)| (x, w));
            let highest = pairs().map(|(x, w)| exponent(x, a) * exponent(w, b)).fold(power(sum.abs()), f64::max);
            let total = pairs().map(|(x, w)| x * w).chain([sum]).map(|x| cut(x, highest)).sum::<f64>();
            if total == 0.0 { 0.0 } else { cut(total, power(total.abs())) }
        })
    }

    #[test]
    fn what_hopper_is_described_to_lose_of_e4m3_sums_is_within_the_bound_and_a_good_part_of_it() {
        let mut rng = fastrand::Rng::with_seed(4);
        for (one_sign, least) in [(false, 0.0), (true, 0.2)] {
            let mut row = |exponent| {
                let mut value = || {
                    let sign = if one_sign || rng.bool() { 1.0 } else { -1.0 };
                    sign * (8 + rng.i32(..8)) as f32 / 8.0 * 2f32.powi(rng.i32(-4..3))
                };
                Row::e4m3(&(0..2048).map(|_| value()).collect::<Vec<_>>(), exponent)
            };
            let (a, b) = (row(-3), row(5));
            let sum = dot(&a, &b, -2.0, 0.0);
            let used = (hopper(&a, &b) * -2.0 - sum.value).abs() / Arithmetic::Fp8TensorCores.error(&sum, 2048);
            assert!((least..=1.0).contains(&used), "{used} of the bound");
        }
        let ones = |count| Row::e4m3(&vec![1.0; count], 0);
        assert_eq!(dot(&ones(8192), &ones(8192), 1.0, 0.0).coarse, 0.0, "13 bits hold such sums");
        assert!(dot(&ones(32768), &ones(32768), 1.0, 0.0).coarse >= 32.0, "and these they do not");
    }

    #[test]
    fn a_sum_with_more_bits_than_f32_is_not_called_exact() {
        let a = Row::new([vec![1.0; 15], vec![2f32.powi(-30)]].concat());
        let b = Row::new(vec![1.0; 16]);
        assert!(!dot(&a, &b, 1.0, 0.0).exact);
    }
}
