//! Blackwell's tensor memory, and the work of its tensor cores on it.
//!
//! A multiprocessor has 128 lanes × 512 columns of 32-bit cells, of which a block allocates some columns (`columns`). Accumulators lie one row per lane, one
//! column a column. Block scales lie four to a cell: those of row r (of A, or of B) for four blocks of sixteen along k are the
//! bytes of lane r mod 32, column r / 32, repeated for each quarter of the lanes.
//!
//! Summation order: each product, scales included, is exact in f32; they are added to the accumulator one by one, by rising k.

use ptx::descriptor::WgmmaDescriptor;
use ptx::instr::MatrixElement;

use crate::error::{FaultKind, Place};
use crate::memory::Written;
use crate::race::Shadow;

/// Lanes of tensor memory.
pub(crate) const LANES: u32 = 128;
/// Columns of tensor memory.
pub(crate) const COLUMNS: u32 = 512;
/// Depth of one block-scaled multiplication.
pub(crate) const DEPTH: usize = 64;
/// Scales of a row in one: a cell has one byte for each sixteen along k.
const SCALES: usize = 4;
/// Bytes of a cell.
const CELL: usize = 4;
/// Lanes that a warp reaches: what of a column is accessed together.
const WARP_LANES: usize = 32;
/// Lanes that are summed at a time: their sums stay in registers.
const BLOCK: usize = 32;

/// Columns that a warp has allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    pub(crate) column: u32,
    pub(crate) columns: u32,
    /// The warp, by its place in the block.
    pub(crate) warp: usize,
}

/// A block's tensor memory.
#[derive(Clone, Debug)]
pub(crate) struct TensorMemory {
    data: Vec<u32>,
    pub(crate) written: Written,
    pub(crate) shadow: Shadow,
    pub(crate) allocated: Vec<Allocation>,
    /// Columns of the block's last allocation.
    pub(crate) least: Option<u32>,
    /// Whether the block has given up the right to allocate.
    pub(crate) closed: bool,
    /// What a multiplication may take from the collector instead of from shared memory.
    pub(crate) collected: Option<Collected>,
}

impl Default for TensorMemory {
    fn default() -> Self {
        let cells = (LANES * COLUMNS) as usize;
        TensorMemory {
            data: vec![0; cells],
            written: Written::new(cells * CELL, false),
            shadow: Shadow::by_lines(cells * CELL, (WARP_LANES * CELL) as u32, WARP_LANES * CELL),
            allocated: Vec::new(),
            least: None,
            closed: false,
            collected: None,
        }
    }
}

impl TensorMemory {
    /// First byte of a cell in the bookkeeping; the lanes of a column follow each other.
    pub(crate) fn byte(lane: u32, column: u32) -> usize {
        (column * LANES + lane) as usize * CELL
    }

    /// A cell, for people.
    pub(crate) fn place(block: [u32; 3], lane: u32, column: u32) -> Place {
        let (name, address) = (format!("lane {lane}, column {column}"), lane << 16 | column);
        Place { space: "tensor", block: Some(block), name, address: address.into(), bytes: CELL as u64 }
    }

    /// Refuses to read what was never written, of all lanes of some columns.
    fn check(&self, block: [u32; 3], column: u32, columns: u32) -> Result<(), FaultKind> {
        let (start, bytes) = (Self::byte(0, column), (LANES * columns) as usize * CELL);
        let Some(byte) = self.written.missing(start, bytes) else { return Ok(()) };
        let cell = (byte / CELL) as u32;
        Err(FaultKind::Uninitialised { place: Self::place(block, cell % LANES, cell / LANES), byte: 0 })
    }

    /// Refuses a multiplication whose scales or accumulators were never written.
    pub(crate) fn check_operands(&self, block: [u32; 3], mma: &BlockScaled) -> Result<(), FaultKind> {
        self.check(block, mma.scale_a, LANES / 32)?;
        self.check(block, mma.scale_b, mma.n.div_ceil(32))?;
        if mma.accumulate { self.check(block, mma.d, mma.n) } else { Ok(()) }
    }

    /// Allocates columns. What another has left there is not this one's to read.
    pub(crate) fn allocate(&mut self, allocation: Allocation) {
        let Allocation { column, columns, .. } = allocation;
        self.allocated.push(allocation);
        self.least = Some(columns);
        self.written.clear(Self::byte(0, column), (LANES * columns) as usize * CELL);
    }

    /// Whether columns lie within one allocation.
    pub(crate) fn owns(&self, column: u32, columns: u32) -> bool {
        self.allocated.iter().any(|own| own.column <= column && column + columns <= own.column + own.columns)
    }

    pub(crate) fn get(&self, lane: u32, column: u32) -> u32 {
        self.data[(column * LANES + lane) as usize]
    }

    pub(crate) fn put(&mut self, lane: u32, column: u32, bits: u32) {
        self.data[(column * LANES + lane) as usize] = bits;
        self.written.set(Self::byte(lane, column), CELL);
    }

    /// The scales of so many rows from a column on, for each block of sixteen along k.
    fn scales(&self, column: u32, rows: u32) -> Vec<[f32; SCALES]> {
        let row = |row: u32| self.get(row % 32, column + row / 32).to_le_bytes().map(ue4m3);
        (0..rows).map(row).collect()
    }

    /// The elements of an operand by k, then row, from 32 bytes per row.
    fn expand(&self, bytes: &[u8], rows: u32, scales: u32) -> Vec<f32> {
        let (scales, rows) = (self.scales(scales, rows), rows as usize);
        let mut elements = vec![0.0; rows * DEPTH];
        for (row, (bytes, scales)) in bytes.chunks_exact(DEPTH / 2).zip(&scales).enumerate() {
            for (at, byte) in bytes.iter().enumerate() {
                let scale = scales[at / (DEPTH / 2 / SCALES)];
                elements[2 * at * rows + row] = e2m1(byte & 15) * scale;
                elements[(2 * at + 1) * rows + row] = e2m1(byte >> 4) * scale;
            }
        }
        elements
    }

    /// D = A·Bᵀ (+ D), from the bytes of A and B, 32 per row.
    pub(crate) fn multiply(&mut self, mma: &BlockScaled, a: &[u8], b: &[u8]) {
        let (a, b) = (self.expand(a, LANES, mma.scale_a), self.expand(b, mma.n, mma.scale_b));
        self.accumulate((mma.d, mma.accumulate), &a, &[b]);
    }

    /// Adds products to accumulators from a column on, or replaces them; A and the parts of B by k, then row. Of each element the products
    /// are added one by one, by rising k.
    fn accumulate(&mut self, (first, accumulate): (u32, bool), a: &[f32], parts: &[Vec<f32>]) {
        let depth = a.len() / LANES as usize;
        let mut column = first as usize;
        for part in parts {
            let columns = part.len() / depth;
            for at in 0..columns {
                let cells = &mut self.data[column * LANES as usize..(column + 1) * LANES as usize];
                for (lane, cells) in cells.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
                    let mut sums = if accumulate { cells.map(f32::from_bits) } else { [0.0; BLOCK] };
                    for k in 0..depth {
                        let (a, b) = (&a[k * LANES as usize + lane * BLOCK..][..BLOCK], part[k * columns + at]);
                        sums.iter_mut().zip(a).for_each(|(sum, a)| *sum += a * b);
                    }
                    *cells = sums.map(f32::to_bits);
                }
                column += 1;
            }
        }
        let bytes = Self::byte(0, column as u32) - Self::byte(0, first);
        self.written.set(Self::byte(0, first), bytes);
    }
}

impl TensorMemory {
    /// D = A·Bᵀ (+ D), from the elements of A and of the parts of B, each by k, then row.
    pub(crate) fn multiply_halves(
        &mut self,
        block: [u32; 3],
        mma: &Halves,
        a: &[f32],
        b: &[Vec<f32>],
    ) -> Result<(), FaultKind> {
        if mma.accumulate {
            self.check(block, mma.d, mma.n)?;
        }
        self.accumulate((mma.d, mma.accumulate), a, b);
        Ok(())
    }
}

/// What the collector buffer holds: the matrix A that one thread's multiplications have read, as it was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Slot of the thread's pipeline.
    pub(crate) pipe: u32,
    pub(crate) a: WgmmaDescriptor,
    /// Stands for the writes that made the matrix what it is.
    pub(crate) writes: u64,
}

/// A block-scaled multiplication; tensor memory by first column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockScaled {
    pub(crate) d: u32,
    pub(crate) n: u32,
    pub(crate) a: WgmmaDescriptor,
    pub(crate) b: WgmmaDescriptor,
    pub(crate) scale_a: u32,
    pub(crate) scale_b: u32,
    pub(crate) accumulate: bool,
}

/// A multiplication of 16-bit numbers; tensor memory by first column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Halves {
    pub(crate) d: u32,
    pub(crate) n: u32,
    pub(crate) a: WgmmaDescriptor,
    pub(crate) b: WgmmaDescriptor,
    pub(crate) accumulate: bool,
    pub(crate) element: MatrixElement,
}

pub(crate) fn e2m1(code: u8) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// An unsigned float with four bits of exponent, biased by seven, and three of mantissa.
pub(crate) fn ue4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_cover_subnormals_and_the_largest() {
        assert_eq!(ue4m3(0x01), 2f32.powi(-9));
        assert_eq!(ue4m3(0x38), 1.0);
        assert_eq!(ue4m3(0x7e), 448.0);
        assert!(ue4m3(0x7f).is_nan());
    }

    #[test]
    fn columns_are_used_within_one_allocation() {
        let mut memory = TensorMemory::default();
        memory.allocate(Allocation { column: 0, columns: 32, warp: 0 });
        assert!(memory.owns(16, 16) && !memory.owns(16, 32));
    }
}
