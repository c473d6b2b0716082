//! What Hopper's tensor cores compute, and how their descriptors lay out matrices in shared memory.
//!
//! Summation order: each product of two 16-bit floats is exact in f32; an instruction adds its sixteen products to the
//! accumulator one after the other, by rising k, rounding each sum to nearest even in f32. Hardware sums in another
//! order with other intermediate precision, so results agree bit for bit where all sums are exact and within the usual
//! bound elsewhere.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use ptx::descriptor::{Swizzle, WgmmaDescriptor};
use ptx::instr::MatrixElement;

use crate::error::FaultKind;
use crate::tensor_memory::ue4m3;

/// Depth of one instruction.
pub(crate) const DEPTH: usize = 16;

/// Refuses descriptors whose swizzle pattern would start out of phase: it begins at a multiple of its period, or with
/// the row of 128 bytes in which the matrix does, if the base offset says so.
pub(crate) fn check(desc: &WgmmaDescriptor) -> Result<(), FaultKind> {
    let row = desc.start >> 7 & 7;
    if desc.base_offset != 0 && (desc.base_offset != row || desc.layout.swizzle == Swizzle::None) {
        let (what, found) = ("the base offset of a matrix descriptor", desc.base_offset.into());
        let wanted = "0, or for a swizzled matrix bits 7 to 9 of the address at which the pattern begins";
        return Err(FaultKind::BadOperand { what, found, wanted });
    }
    let (swizzle, stride) = (desc.layout.swizzle, desc.layout.stride);
    if swizzle != Swizzle::None && !stride.is_multiple_of(swizzle.period()) {
        let (what, found) = ("the stride of a swizzled matrix", stride.into());
        let wanted = "a multiple of the swizzle's period: 256, 512 or 1024 bytes for 32, 64 or 128";
        return Err(FaultKind::BadOperand { what, found, wanted });
    }
    let inside = (desc.start - (desc.base_offset << 7)) % swizzle.period();
    if swizzle != Swizzle::None && inside >= swizzle.span() {
        let (what, address, wanted) = ("a swizzled matrix", desc.start.into(), swizzle.period().into());
        return Err(FaultKind::Misaligned { what, address, wanted });
    }
    Ok(())
}

/// The shared addresses of a 16-bit operand's 16-byte pieces. K-major: two pieces a row, along k. Otherwise: for each
/// k, one piece for every eight rows.
pub(crate) fn pieces(desc: &WgmmaDescriptor, rows: u32, transposed: bool) -> Vec<u32> {
    pieces_of(desc, (DEPTH as u32, rows), transposed)
}

/// The same of an operand of any type, of which an instruction takes so many elements along k.
pub(crate) fn pieces_of(desc: &WgmmaDescriptor, (depth, rows): (u32, u32), transposed: bool) -> Vec<u32> {
    let (start, leading, stride) = (desc.start, desc.layout.leading, desc.layout.stride);
    let (swizzle, span) = (desc.layout.swizzle, desc.layout.swizzle.span());
    let plain = swizzle == Swizzle::None;
    let phase = desc.base_offset << 7;
    let at = |linear: u32| swizzle.apply(start + linear - phase) + phase;
    if transposed {
        let across = span / 16;
        let piece = |k: u32, block: u32| match plain {
            true => at(block * stride + k % 8 * 16 + k / 8 * leading),
            false => at(block % across * 16 + block / across * leading + k % 8 * span + k / 8 * stride),
        };
        let blocks = rows * 2 / depth;
        (0..depth * blocks).map(|at| piece(at / blocks, at % blocks)).collect()
    } else {
        let piece = |row: u32, half: u32| match plain {
            true => at(row / 8 * stride + half * leading + row % 8 * 16),
            false => at(row / 8 * stride + row % 8 * span + half * 16),
        };
        (0..2 * rows).map(|at| piece(at / 2, at % 2)).collect()
    }
}

/// The bytes from the first to the last of some pieces: start and length.
pub(crate) fn hull(pieces: &[u32]) -> (u32, u32) {
    let first = pieces.iter().copied().fold(u32::MAX, u32::min);
    let last = pieces.iter().copied().fold(0, u32::max);
    (first.min(last), last.saturating_sub(first) + 16)
}

/// Which rows of an operand lack something, if any does; `lacks` says it of the piece at an address.
pub(crate) fn rows_missing(
    pieces: &[u32],
    rows: usize,
    transposed: bool,
    lacks: impl Fn(u32) -> bool,
) -> Option<Vec<bool>> {
    if !pieces.iter().any(|address| lacks(*address)) {
        return None;
    }
    let mut missing = vec![false; rows];
    for (at, _) in pieces.iter().enumerate().filter(|(_, address)| lacks(**address)) {
        match transposed {
            false => missing[at / 2] = true,
            true => {
                let block = at % (rows / 8);
                missing[8 * block..8 * block + 8].fill(true);
            }
        }
    }
    Some(missing)
}

/// Pieces as ranges of bytes (start, length), neighbours in the list joined where they are neighbours in memory.
pub(crate) fn joined(pieces: &[u32]) -> Vec<(u32, u32)> {
    let mut ranges = Vec::with_capacity(pieces.len());
    for pair in pieces.chunks(2) {
        match *pair {
            [a, b] if a.abs_diff(b) == 16 => ranges.push((a.min(b), 32)),
            _ => ranges.extend(pair.iter().map(|piece| (*piece, 16))),
        }
    }
    ranges
}

/// Widens 16-bit elements.
pub(crate) fn widen(element: MatrixElement, bits: &[u16], wide: &mut [f32]) {
    match element {
        MatrixElement::Bf16 => bits.reinterpret_cast::<bf16>().convert_to_f32_slice(wide),
        _ => bits.reinterpret_cast::<f16>().convert_to_f32_slice(wide),
    }
}

/// The elements of rows, one row after the other.
pub(crate) fn wide_rows(element: MatrixElement, rows: &[[u8; 32]]) -> Vec<f32> {
    let bytes = element.bits() as usize / 8;
    rows.iter().flat_map(|row| row.chunks_exact(bytes).map(|bits| decode(element, bits))).collect()
}

/// One element from its bytes.
pub(crate) fn decode(element: MatrixElement, bytes: &[u8]) -> f32 {
    let word = bytes.iter().rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
    match element {
        MatrixElement::F16 => f16::from_bits(word as u16).to_f32(),
        MatrixElement::Bf16 => bf16::from_bits(word as u16).to_f32(),
        // The last 13 bits are not looked at.
        MatrixElement::Tf32 => f32::from_bits(word & !0x1fff),
        MatrixElement::E5m2 => f16::from_bits((word << 8) as u16).to_f32(),
        MatrixElement::E4m3 => {
            let size = ue4m3(word as u8 & 0x7f);
            if word & 0x80 == 0 { size } else { -size }
        }
        MatrixElement::S8 => f32::from((word as u8).cast_signed()),
        MatrixElement::U8 => f32::from(word as u8),
    }
}

/// How the elements of an operand are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// By row, then k (`rows` × `DEPTH`).
    Rows,
    /// By k, then row (`DEPTH` × `rows`).
    Depths,
    /// Eight rows after the other, each by k, then row (`rows / 8` × `DEPTH` × 8).
    Eights,
}

/// The elements of an operand, from the bytes at its pieces' addresses less `base`.
pub(crate) fn elements(
    element: MatrixElement,
    shared: &[u8],
    (pieces, base): (&[u32], u32),
    (rows, transposed, order): (usize, bool, Order),
    negate: bool,
) -> Vec<f32> {
    if element.bits() != 16 {
        return other_elements(element, shared, (pieces, base), (rows, transposed, order), negate);
    }
    // One after the other, pieces are the rows of a matrix, or of the transposed one.
    let mut bits = vec![0u16; rows * DEPTH];
    let place = |at: usize| match (transposed, order) {
        (true, Order::Eights) => at % (rows / 8) * DEPTH + at / (rows / 8),
        _ => at,
    };
    let squares = bits.as_chunks_mut::<8>().0;
    for (at, address) in pieces.iter().enumerate() {
        let start = (address - base) as usize;
        let bytes = shared[start..start + 16].as_chunks::<2>().0;
        squares[place(at)].iter_mut().zip(bytes).for_each(|(bits, bytes)| *bits = u16::from_le_bytes(*bytes));
    }
    let bits = match (transposed, order) {
        (false, Order::Depths) => turned(&bits, DEPTH),
        (true, Order::Rows) => turned(&bits, rows),
        (false, Order::Eights) => {
            // Of eight rows, two pieces each, the transpose.
            bits.as_chunks_mut::<{ 8 * DEPTH }>().0.iter_mut().for_each(turn_eight);
            bits
        }
        _ => bits,
    };
    let mut wide = vec![0.0; bits.len()];
    widen(element, &bits, &mut wide);
    if negate {
        wide.iter_mut().for_each(|x| *x = -*x);
    }
    wide
}

/// The same for elements of other sizes.
fn other_elements(
    element: MatrixElement,
    shared: &[u8],
    (pieces, base): (&[u32], u32),
    (rows, transposed, order): (usize, bool, Order),
    negate: bool,
) -> Vec<f32> {
    let mut bytes = vec![[0u8; 32]; rows];
    let (depth, size) = (element.depth() as usize, element.bits() as usize / 8);
    for (at, address) in pieces.iter().enumerate() {
        let start = (address - base) as usize;
        let piece = &shared[start..start + 16];
        if !transposed {
            bytes[at / 2][16 * (at % 2)..][..16].copy_from_slice(piece);
            continue;
        }
        // A piece has neighbouring rows at one k.
        let (k, first) = (at / (pieces.len() / depth), at % (pieces.len() / depth) * (16 / size));
        for (row, element) in (first..).zip(piece.chunks_exact(size)) {
            bytes[row][k * size..][..size].copy_from_slice(element);
        }
    }
    let by_row = wide_rows(element, &bytes);
    let place = |at: usize| match order {
        Order::Rows => at,
        Order::Depths => at % rows * depth + at / rows,
        Order::Eights => (at / (8 * depth) * 8 + at % 8) * depth + at / 8 % depth,
    };
    let sign = if negate { -1.0 } else { 1.0 };
    (0..by_row.len()).map(|at| sign * by_row[place(at)]).collect()
}

/// Turns eight rows of `DEPTH` elements into `DEPTH` rows of eight.
fn turn_eight(rows: &mut [u16; 8 * DEPTH]) {
    let before = *rows;
    let (before, after) = (before.as_chunks::<DEPTH>().0, rows.as_chunks_mut::<8>().0);
    for (k, after) in after.iter_mut().enumerate() {
        after.iter_mut().zip(before).for_each(|(element, row)| *element = row[k]);
    }
}

/// The transpose of a matrix with rows of this length.
fn turned(matrix: &[u16], length: usize) -> Vec<u16> {
    let (mut turned, rows) = (vec![0; matrix.len()], matrix.len() / length);
    for (row, elements) in matrix.chunks_exact(length).enumerate() {
        for (to, element) in turned[row..].iter_mut().step_by(rows).zip(elements) {
            *to = *element;
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;
    use ptx::descriptor::MatrixLayout;

    fn desc(swizzle: Swizzle, leading: u32, stride: u32) -> WgmmaDescriptor {
        WgmmaDescriptor { start: 2048, layout: MatrixLayout { swizzle, leading, stride }, base_offset: 0 }
    }

    #[test]
    fn a_swizzled_row_of_k_is_permuted_by_its_row() {
        let list = pieces(&desc(Swizzle::B128, 16, 1024), 16, false);
        assert_eq!(list[..2], [2048, 2064]);
        assert_eq!(list[2..4], [2048 + 128 + 16, 2048 + 128]);
        assert_eq!(list[16..18], [2048 + 1024, 2048 + 1024 + 16]);
    }

    #[test]
    fn core_matrices_without_swizzle_follow_both_offsets() {
        let list = pieces(&desc(Swizzle::None, 256, 128), 16, false);
        assert_eq!(list[..4], [2048, 2304, 2064, 2320]);
        assert_eq!(list[16], 2048 + 128);
    }

    #[test]
    fn a_matrix_out_of_phase_is_refused() {
        let mut desc = desc(Swizzle::B128, 16, 1024);
        assert!(check(&desc).is_ok());
        desc.start += 96;
        assert!(check(&desc).is_ok());
        desc.start += 32;
        assert!(matches!(check(&desc), Err(FaultKind::Misaligned { wanted: 1024, .. })));
        // Unless the pattern begins there, too.
        desc.base_offset = 1;
        assert!(check(&desc).is_ok());
        assert_eq!(pieces(&desc, 16, false)[..4], [2176, 2192, 2176 + 128 + 16, 2176 + 128]);
        desc.base_offset = 2;
        assert!(matches!(check(&desc), Err(FaultKind::BadOperand { .. })));
    }

    #[test]
    fn elements_are_turned_to_lie_as_they_are_wanted() {
        let halves: Vec<u8> = (0..16 * DEPTH as u16).flat_map(|i| f16::from_f32(f32::from(i)).to_le_bytes()).collect();
        let list: Vec<u32> = (0..32).map(|piece| 64 + 16 * piece).collect();
        let found = elements(MatrixElement::F16, &halves, (&list, 64), (16, false, Order::Depths), true);
        (0..DEPTH).for_each(|k| (0..16).for_each(|row| assert_eq!(found[k * 16 + row], -((row * DEPTH + k) as f32))));
        for (transposed, order) in [(true, Order::Depths), (false, Order::Rows)] {
            let found = elements(MatrixElement::F16, &halves, (&list, 64), (16, transposed, order), false);
            found.iter().enumerate().for_each(|(at, value)| assert_eq!(*value, at as f32));
        }
        for transposed in [false, true] {
            let found = elements(MatrixElement::F16, &halves, (&list, 64), (16, transposed, Order::Eights), false);
            (0..DEPTH).for_each(|k| {
                (0..16).for_each(|row| {
                    let value = if transposed { k * 16 + row } else { row * DEPTH + k };
                    assert_eq!(found[row / 8 * 8 * DEPTH + 8 * k + row % 8], value as f32);
                });
            });
        }
        let found = elements(MatrixElement::F16, &halves, (&list, 64), (16, true, Order::Rows), false);
        (0..DEPTH).for_each(|k| (0..16).for_each(|row| assert_eq!(found[row * 16 + k], (k * 16 + row) as f32)));
    }
}
