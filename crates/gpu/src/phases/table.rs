//! The groups of a launch, as kernels are told about them.
//!
//! They stand in a table among a kernel's parameters, one record each: where a group's operands are, its sizes, and the
//! number of its first tile. Tiles (or whatever a kernel counts) are numbered through all groups, and a group is found
//! by bisection.

use ptx::{Builder, F32, ParamTable, Reg, U32, U64};

/// Bytes of a record.
pub(crate) const RECORD_BYTES: u32 = 64;
/// Bytes of a group in the table of biases, which only kernels that add some have: the addresses of gate's and up's.
pub(crate) const BIAS_BYTES: u32 = 16;

/// Bytes of a group in the table of rounded tokens, which only kernels that multiply those have: the address of the
/// rows' factors, and what the scales of gate and up weights are multiplied with, twice a half each.
pub(crate) const ROUNDED_BYTES: u32 = 16;

/// Bytes of a group in the table of columns' factors, which only kernels whose columns have some have: their address.
pub(crate) const COLUMNS_BYTES: u32 = 8;

/// A group, as the kernel is told about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// The number of its first tile.
    pub first_tile: u32,
    /// Tiles along its tokens.
    pub token_tiles: u32,
    /// Tokens of each of those but the last.
    pub tile_tokens: u32,
    /// Tokens.
    pub m: u32,
    /// Columns of C.
    pub n: u32,
    /// The summed dimension.
    pub k: u32,
    /// Addresses of the packed gate weights, the packed up weights, and C.
    pub addresses: [u64; 3],
    /// What gate sums and up sums are multiplied by: two factors each. Where columns have factors, what
    /// [`alpha_words`] makes of α.
    pub factors: [[f32; 2]; 2],
}

impl Record {
    fn words(&self) -> [u32; RECORD_BYTES as usize / 4] {
        let mut words = [0; RECORD_BYTES as usize / 4];
        let sizes = [self.first_tile, self.token_tiles, self.tile_tokens, self.m, self.n, self.k];
        let addresses = self.addresses.iter().flat_map(|&address| [address as u32, (address >> 32) as u32]);
        let factors = self.factors.iter().flatten().map(|factor| factor.to_bits());
        for (place, word) in words.iter_mut().zip(sizes.into_iter().chain(addresses).chain(factors)) {
            *place = word;
        }
        words
    }
}

/// The table of a launch, as long as the kernel expects it: records that are not there start behind every tile.
pub fn words(records: &[Record], capacity: u32) -> Vec<u32> {
    let mut words: Vec<u32> = records.iter().flat_map(Record::words).collect();
    for _ in records.len()..capacity as usize {
        words.extend([u32::MAX; RECORD_BYTES as usize / 4]);
    }
    words
}

/// The table of biases of a launch, as long as the kernel expects it.
pub fn bias_words(biases: &[[u64; 2]], capacity: u32) -> Vec<u32> {
    let halves = |address: &u64| [*address as u32, (*address >> 32) as u32];
    let mut words: Vec<u32> = biases.as_flattened().iter().flat_map(halves).collect();
    words.resize((capacity * BIAS_BYTES / 4) as usize, 0);
    words
}

/// The table of rounded tokens of a launch, as long as the kernel expects it: where each group's row factors are, and
/// the exponents of what its scales are multiplied with.
pub fn rounded_words(rounded: &[(u64, [u32; 2])], capacity: u32) -> Vec<u32> {
    let of_group = |&(factors, lifts): &(u64, [u32; 2])| {
        [factors as u32, (factors >> 32) as u32, lift_word(lifts[0]), lift_word(lifts[1])]
    };
    let mut words: Vec<u32> = rounded.iter().flat_map(of_group).collect();
    words.resize((capacity * ROUNDED_BYTES / 4) as usize, 0);
    words
}

/// A factor as a float between 1 and 2, or zero, with its sign, and the exponent of a power of two, as kernels multiply
/// several: wherever the product is a number, so are these.
pub(crate) fn factor_words(factor: f64) -> [u32; 2] {
    let exponent = if factor == 0.0 { 0 } else { (factor.abs().to_bits() >> 52) as i32 - 1023 };
    [((factor * 2f64.powi(-exponent)) as f32).to_bits(), exponent.cast_unsigned()]
}

/// α where columns have factors of their own: a float, the bits of the exponent of the power of two that multiplies it,
/// and what the float lacks. So the product of α with a column's factor is rounded once.
pub fn alpha_words(alpha: f64) -> [[f32; 2]; 2] {
    let [number, exponent] = factor_words(alpha).map(f32::from_bits);
    let power = 2f64.powi(-exponent.to_bits().cast_signed());
    [[number, exponent], [(alpha * power - f64::from(number)) as f32, 0.0]]
}

/// The table of columns' factors of a launch, as long as the kernel expects it.
pub fn column_words(columns: &[u64], capacity: u32) -> Vec<u32> {
    let mut words: Vec<u32> = columns.iter().flat_map(|at| [*at as u32, (*at >> 32) as u32]).collect();
    words.resize((capacity * COLUMNS_BYTES / 4) as usize, 0);
    words
}

/// Two to the power of a matrix's lift, which its scales are multiplied with before weights are rounded to e4m3: twice
/// a half.
pub fn lift_word(lift: u32) -> u32 {
    (15 + lift) << 10 | (15 + lift) << 26
}

/// Places of a record's words.
pub(crate) mod at {
    pub const FIRST_TILE: u32 = 0;
    pub const TOKEN_TILES: u32 = 4;
    pub const TILE_TOKENS: u32 = 8;
    pub const M: u32 = 12;
    pub const N: u32 = 16;
    pub const K: u32 = 20;
    pub const GATE: u32 = 24;
    pub const OUT: u32 = 40;
    pub const FACTORS: u32 = 48;
}

/// The group of which a number of a tile (or of whatever records count) is, by bisection, and its record.
pub(crate) fn locate(k: &mut Builder, table: ParamTable, groups: u32, number: Reg<U32>) -> (Reg<U32>, ParamTable) {
    let group = k.variable(0);
    let mut step = groups.next_power_of_two() / 2;
    while step > 0 {
        let probe = k.add(group, step);
        let record = k.table_row(table, probe, RECORD_BYTES);
        let first: Reg<U32> = k.table_word(record, at::FIRST_TILE);
        let reached = k.le(first, number);
        k.when(reached, |k| k.set(group, probe));
        step /= 2;
    }
    let record = if groups == 1 { table } else { k.table_row(table, group, RECORD_BYTES) };
    (group, record)
}

/// Reads a 64-bit address from a record.
pub(crate) fn address(k: &mut Builder, record: ParamTable, place: u32) -> Reg<U64> {
    let (low, high): (Reg<U32>, Reg<U32>) = (k.table_word(record, place), k.table_word(record, place + 4));
    k.pack_words(low, high)
}

/// Reads the factors of a matrix's sums from a record.
pub(crate) fn factors(k: &mut Builder, record: ParamTable, matrix: u32) -> [Reg<F32>; 2] {
    [0, 4].map(|word| k.table_word(record, at::FACTORS + 8 * matrix + word))
}

/// A group whose every element is looked at, for kernels that do not work in tiles.
pub(crate) struct Elements {
    /// The record's number of its first block.
    pub first: Reg<U32>,
    /// Elements of C.
    pub count: Reg<U64>,
    /// The three addresses of the record.
    pub addresses: [Reg<U64>; 3],
    /// The factors of both matrices.
    pub factors: [[Reg<F32>; 2]; 2],
}

impl Elements {
    /// Reads a record.
    pub fn read(k: &mut Builder, record: ParamTable) -> Self {
        let (m, n): (Reg<U32>, Reg<U32>) = (k.table_word(record, at::M), k.table_word(record, at::N));
        Elements {
            first: k.table_word(record, at::FIRST_TILE),
            count: k.mul_wide(m, n),
            addresses: [0, 1, 2].map(|index| address(k, record, at::GATE + 8 * index)),
            factors: [0, 1].map(|matrix| factors(k, record, matrix)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_exact_wherever_they_are_floats() {
        for factor in [1.0, -0.75, f64::from(f32::MAX), 2f64.powi(-149), 2f64.powi(127), 0.0] {
            let [number, exponent] = factor_words(factor);
            let number = f32::from_bits(number);
            assert!(number == 0.0 || (1.0..2.0).contains(&number.abs()), "{factor}: {number}");
            assert_eq!(f64::from(number) * 2f64.powi(exponent.cast_signed()), factor);
        }
    }
}
