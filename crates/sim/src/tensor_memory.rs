//! Blackwell's tensor memory, and the work of its tensor cores on it.
//!
//! A multiprocessor has 128 lanes × 512 columns of 32-bit cells, of which a block allocates some columns (`columns`).
//! Accumulators lie one row per lane, one column a column. Block scales lie four to a cell: those of row r (of A, or of
//! B) for four blocks of sixteen along k are the bytes of lane r mod 32, column r / 32, repeated for each quarter of
//! the lanes.
//!
//! Summation order: each product, scales included, is exact in f32; they are added to the accumulator one by one, by
//! rising k.

use ptx::descriptor::WgmmaDescriptor;
use ptx::instr::{DenseKind, MatrixElement, NarrowFloat, ScaledKind};

use crate::error::{FaultKind, Place};
use crate::memory::Written;
use crate::narrow;
use crate::race::{Multiplied, Piece, Shadow};

/// Lanes of tensor memory.
pub(crate) const LANES: u32 = 128;
/// Columns of tensor memory.
pub(crate) const COLUMNS: u32 = 512;
/// Bytes of a row of an operand that one multiplication takes.
const ROW: usize = 32;
/// Bytes of a cell.
const CELL: usize = 4;
/// Lanes that a warp reaches: what of a column is accessed together.
const WARP_LANES: usize = 32;
/// Lanes of half a warp, which some loads and stores reach, and multiplications of 64 rows.
const HALF_LANES: usize = 16;
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
            shadow: Shadow::by_lines(cells * CELL, (HALF_LANES * CELL) as u32, WARP_LANES * CELL),
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
        self.check_cells(block, (0, LANES), (column, columns))
    }

    /// The same of some lanes, if they are not all: of each column by itself.
    fn check_cells(
        &self,
        block: [u32; 3],
        (lane, lanes): (u32, u32),
        (column, columns): (u32, u32),
    ) -> Result<(), FaultKind> {
        if lanes < LANES && columns > 1 {
            return (column..column + columns)
                .try_for_each(|column| self.check_cells(block, (lane, lanes), (column, 1)));
        }
        let (start, bytes) = (Self::byte(lane, column), (lanes * columns) as usize * CELL);
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

    pub(crate) fn is_written(&self, lane: u32, column: u32) -> bool {
        self.written.missing(Self::byte(lane, column), CELL).is_none()
    }

    pub(crate) fn get(&self, lane: u32, column: u32) -> u32 {
        self.data[(column * LANES + lane) as usize]
    }

    pub(crate) fn put(&mut self, lane: u32, column: u32, bits: u32) {
        self.data[(column * LANES + lane) as usize] = bits;
        self.written.set(Self::byte(lane, column), CELL);
    }

    /// The scales of so many rows from a column on: those of the kind, from a byte of each cell on.
    fn scales(&self, kind: ScaledKind, (column, id): (u32, u32), rows: u32) -> Vec<Vec<f32>> {
        let decode = |byte: u8| match kind {
            ScaledKind::NvFp4 => ue4m3(byte),
            _ => narrow::value(NarrowFloat::Ue8m0, byte),
        };
        let row = |row: u32| {
            let bytes = self.get(row % 32, column + row / 32).to_le_bytes();
            bytes.into_iter().skip(id as usize).take(kind.scales() as usize).map(decode).collect()
        };
        (0..rows).map(row).collect()
    }

    /// The elements of an operand by k, then row, from 32 bytes per row.
    fn expand(&self, mma: &BlockScaled, side: usize, bytes: &[u8], rows: u32) -> Vec<f32> {
        let (kind, element) = (mma.kind, mma.elements[side]);
        let column = [mma.scale_a, mma.scale_b][side];
        let (scales, rows) = (self.scales(kind, (column, mma.scale_ids[side]), rows), rows as usize);
        let mut elements = vec![0.0; rows * kind.depth() as usize];
        for (row, (bytes, scales)) in bytes.chunks_exact(ROW).zip(&scales).enumerate() {
            for (at, byte) in bytes.iter().enumerate() {
                let scale = scales[at / (ROW / scales.len())];
                match element {
                    NarrowFloat::E2m1 => {
                        elements[2 * at * rows + row] = e2m1(byte & 15) * scale;
                        elements[(2 * at + 1) * rows + row] = e2m1(byte >> 4) * scale;
                    }
                    _ => elements[at * rows + row] = narrow::value(element, *byte) * scale,
                }
            }
        }
        elements
    }

    /// D = A·Bᵀ (+ D), from the bytes of A and B, 32 per row.
    pub(crate) fn multiply(&mut self, mma: &BlockScaled, a: &[u8], b: &[u8]) {
        let (a, b) = (self.expand(mma, 0, a, LANES), self.expand(mma, 1, b, mma.n));
        self.accumulate((mma.d, mma.accumulate), (0, BLOCK), &a, &[b]);
    }

    /// Adds products to accumulators from a column on, or replaces them; A by k, then lane, and the parts of B by k,
    /// then row. Of every 32 lanes, those from the first of `within` on have rows. Of each element the products are
    /// added one by one, by rising k.
    fn accumulate(
        &mut self,
        (first, accumulate): (u32, bool),
        (from, rows): (usize, usize),
        a: &[f32],
        parts: &[Vec<f32>],
    ) {
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
                    let bits = sums.map(f32::to_bits);
                    cells[from..from + rows].copy_from_slice(&bits[from..from + rows]);
                }
                column += 1;
            }
        }
        if rows == BLOCK {
            let bytes = Self::byte(0, column as u32) - Self::byte(0, first);
            self.written.set(Self::byte(0, first), bytes);
            return;
        }
        for (column, lane) in
            (first..column as u32).flat_map(|column| (0..4).map(move |quarter| (column, 32 * quarter)))
        {
            self.written.set(Self::byte(lane + from as u32, column), rows * CELL);
        }
    }
}

impl TensorMemory {
    /// D = A·Bᵀ (+ D), from the elements of A and of the parts of B, each by k, then row.
    pub(crate) fn multiply_dense(
        &mut self,
        block: [u32; 3],
        mma: &Dense,
        a: &[f32],
        b: &[Vec<f32>],
    ) -> Result<(), FaultKind> {
        if mma.accumulate {
            for lanes in mma.lanes() {
                self.check_cells(block, lanes, (mma.d, mma.n))?;
            }
        }
        if mma.rows == LANES {
            self.accumulate((mma.d, mma.accumulate), (0, BLOCK), a, b);
            return Ok(());
        }
        // By lane, with nothing between the rows.
        let mut spread = vec![0.0; a.len() / mma.rows as usize * LANES as usize];
        for (at, element) in a.iter().enumerate() {
            let (k, row) = (at / mma.rows as usize, at as u32 % mma.rows);
            spread[k * LANES as usize + mma.lane(row) as usize] = *element;
        }
        self.accumulate((mma.d, mma.accumulate), (mma.first_lane as usize, HALF_LANES), &spread, b);
        Ok(())
    }

    /// The rows of an A in tensor memory, from its first column on.
    pub(crate) fn rows_of_a(&self, block: [u32; 3], mma: &Dense, first: u32) -> Result<Vec<[u8; 32]>, FaultKind> {
        let row = |row: u32| {
            let (lane, mut bytes) = (mma.lane(row), [0; 32]);
            self.check_cells(block, (lane, 1), (first, Dense::COLUMNS_OF_A))?;
            for (column, four) in (first..).zip(bytes.as_chunks_mut::<CELL>().0) {
                *four = self.get(lane, column).to_le_bytes();
            }
            Ok(bytes)
        };
        (0..mma.rows).map(row).collect()
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
    pub(crate) kind: ScaledKind,
    /// Types of A and B.
    pub(crate) elements: [NarrowFloat; 2],
    /// The first byte of A's scales, and of B's, in each cell.
    pub(crate) scale_ids: [u32; 2],
    pub(crate) d: u32,
    pub(crate) n: u32,
    pub(crate) a: WgmmaDescriptor,
    pub(crate) b: WgmmaDescriptor,
    pub(crate) scale_a: u32,
    pub(crate) scale_b: u32,
    pub(crate) accumulate: bool,
}

impl BlockScaled {
    /// As far as others are ordered behind it.
    pub(crate) fn piece(&self) -> Piece {
        Piece::Multiply(Multiplied { sums: (self.d, 0), shape: (LANES, self.n), kind: None })
    }
}

/// A multiplication without block scales; tensor memory by first column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    pub(crate) kind: DenseKind,
    pub(crate) d: u32,
    /// The first lane of D: 16 where 64 rows take the upper halves of the warps' lanes.
    pub(crate) first_lane: u32,
    /// Rows of each block: 128, or 64 in half of the lanes.
    pub(crate) rows: u32,
    pub(crate) n: u32,
    /// Where A is in tensor memory: its first column.
    pub(crate) tensor_a: Option<u32>,
    pub(crate) accumulate: bool,
    pub(crate) elements: [MatrixElement; 2],
    pub(crate) negate: [bool; 2],
    pub(crate) transpose: [bool; 2],
}

impl Dense {
    /// As far as others are ordered behind it.
    pub(crate) fn piece(&self) -> Piece {
        let (sums, shape) = ((self.d, self.first_lane), (self.rows, self.n));
        Piece::Multiply(Multiplied { sums, shape, kind: Some(self.kind) })
    }

    /// Columns that hold the 32 bytes of a row of A.
    pub(crate) const COLUMNS_OF_A: u32 = 8;

    /// The lane of a row.
    fn lane(&self, row: u32) -> u32 {
        if self.rows == LANES { row } else { row / 16 * 32 + row % 16 + self.first_lane }
    }

    /// Its runs of lanes: the first of each, and how many.
    pub(crate) fn lanes(&self) -> Vec<(u32, u32)> {
        match self.rows {
            LANES => vec![(0, LANES)],
            _ => (0..4).map(|quarter| (32 * quarter + self.first_lane, HALF_LANES as u32)).collect(),
        }
    }
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
    fn powers_of_two_scale_bytes_and_halves_of_rows() {
        let desc = WgmmaDescriptor {
            start: 0,
            layout: ptx::descriptor::MatrixLayout { swizzle: ptx::descriptor::Swizzle::None, leading: 0, stride: 0 },
            base_offset: 0,
        };
        let with = |kind, elements, scale_ids, a: u8, b: u8| {
            let mut memory = TensorMemory::default();
            memory.allocate(Allocation { column: 0, columns: 64, warp: 0 });
            // Bytes of each cell: 1, 2, 4, 8 for A, of which row r has its own in byte 1; and 1, 2, 1, 1 for B.
            for row in 0..LANES {
                memory.put(row % 32, 32 + row / 32, 0x8281_007f | (0x80 + row % 4) << 8);
                memory.put(row % 32, 40 + row / 32, 0x7f7f_807f);
            }
            let mma = BlockScaled {
                kind,
                elements,
                scale_ids,
                d: 0,
                n: 8,
                a: desc,
                b: desc,
                scale_a: 32,
                scale_b: 40,
                accumulate: false,
            };
            memory.multiply(&mma, &[a; 128 * 32], &[b; 8 * 32]);
            [0, 5].map(|row| f32::from_bits(memory.get(row, 7)))
        };
        let (bytes, fours) = (ScaledKind::MxF8f6f4, ScaledKind::MxFp4);
        let [e4m3, e5m2, e2m1] = [NarrowFloat::E4m3, NarrowFloat::E5m2, NarrowFloat::E2m1];
        // 1.5 · 2 over 32 of k, under scales of one; then of eight; then each row's own times two.
        assert_eq!(with(bytes, [e4m3, e5m2], [0, 0], 0x3c, 0x40), [96.0; 2]);
        assert_eq!(with(bytes, [e5m2, e4m3], [3, 2], 0x3e, 0x40), [768.0; 2]);
        assert_eq!(with(bytes, [e4m3, e4m3], [1, 1], 0x3c, 0x40), [384.0, 768.0]);
        // Ones over 64 of k: the halves under one and each row's own by one and two; then under four and eight.
        assert_eq!(with(fours, [e2m1; 2], [0, 0], 0x22, 0x22), [32.0 + 128.0, 32.0 + 256.0]);
        assert_eq!(with(fours, [e2m1; 2], [2, 2], 0x22, 0x22), [128.0 + 256.0; 2]);
    }

    #[test]
    fn columns_are_used_within_one_allocation() {
        let mut memory = TensorMemory::default();
        memory.allocate(Allocation { column: 0, columns: 32, warp: 0 });
        assert!(memory.owns(16, 16) && !memory.owns(16, 32));
    }
}
