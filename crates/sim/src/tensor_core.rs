//! What Hopper's tensor cores compute, and how their descriptors lay out matrices in shared memory.
//!
//! Summation order: each product of two 16-bit floats is exact in f32; an instruction adds its sixteen products to the
//! accumulator one after the other, by rising k, rounding each sum to nearest even in f32. Hardware sums in another order with
//! other intermediate precision, so results agree bit for bit where all sums are exact and within the usual bound elsewhere.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ptx::descriptor::{Swizzle, WgmmaDescriptor};
use ptx::instr::MatrixElement;

use crate::error::FaultKind;

/// Depth of one instruction.
pub(crate) const DEPTH: usize = 16;

/// Refuses descriptors whose swizzle pattern would start out of phase: it begins at a multiple of its period, or with the row of
/// 128 bytes in which the matrix does, if the base offset says so.
pub(crate) fn check(desc: &WgmmaDescriptor) -> Result<(), FaultKind> {
    let row = desc.start >> 7 & 7;
    if desc.base_offset != 0 && desc.base_offset != row {
        let (what, found) = ("the base offset of a matrix descriptor", desc.base_offset.into());
        let wanted = "0, or bits 7 to 9 of the address at which the swizzle's pattern begins";
        return Err(FaultKind::BadOperand { what, found, wanted });
    }
    let swizzle = desc.layout.swizzle;
    let inside = (desc.start - (desc.base_offset << 7)) % swizzle.period();
    if swizzle != Swizzle::None && inside >= swizzle.span() {
        let (what, address, wanted) = ("a swizzled matrix", desc.start.into(), swizzle.period().into());
        return Err(FaultKind::Misaligned { what, address, wanted });
    }
    Ok(())
}

/// The shared addresses of an operand's 16-byte pieces. K-major: two pieces a row, along k. Otherwise: for each k, one piece for
/// every eight rows.
pub(crate) fn pieces(desc: &WgmmaDescriptor, rows: u32, transposed: bool) -> Vec<u32> {
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
        (0..DEPTH as u32).flat_map(|k| (0..rows / 8).map(move |block| piece(k, block))).collect()
    } else {
        let piece = |row: u32, half: u32| match plain {
            true => at(row / 8 * stride + half * leading + row % 8 * 16),
            false => at(row / 8 * stride + row % 8 * span + half * 16),
        };
        (0..rows).flat_map(|row| [piece(row, 0), piece(row, 1)]).collect()
    }
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
pub(crate) fn joined(pieces: &[u32]) -> impl Iterator<Item = (u32, u32)> {
    pieces
        .chunks(2)
        .flat_map(|pair| match *pair {
            [a, b] if a.abs_diff(b) == 16 => [Some((a.min(b), 32)), None],
            [a, b] => [Some((a, 16)), Some((b, 16))],
            _ => [pair.first().map(|a| (*a, 16)), None],
        })
        .flatten()
}

/// Widens 16-bit elements.
pub(crate) fn widen(element: MatrixElement, bits: &[u16]) -> Vec<f32> {
    let mut wide = vec![0.0; bits.len()];
    match element {
        MatrixElement::F16 => {
            bits.iter().map(|&b| f16::from_bits(b)).collect::<Vec<_>>().convert_to_f32_slice(&mut wide);
        }
        MatrixElement::Bf16 => {
            bits.iter().map(|&b| bf16::from_bits(b)).collect::<Vec<_>>().convert_to_f32_slice(&mut wide);
        }
    }
    wide
}

/// An operand's elements by k, then row: `DEPTH` × `rows`, from its pieces' bytes.
pub(crate) fn by_depth(elements: &[f32], rows: usize, transposed: bool) -> Vec<f32> {
    if transposed {
        return elements.to_vec();
    }
    let mut turned = vec![0.0; elements.len()];
    for (row, values) in elements.chunks_exact(DEPTH).enumerate() {
        values.iter().enumerate().for_each(|(k, value)| turned[k * rows + row] = *value);
    }
    turned
}

/// D += A·Bᵀ, with A as `DEPTH` × 64, B as `DEPTH` × n, D as 64 × n.
pub(crate) fn multiply(d: &mut [f32], a: &[f32], b: &[f32], n: usize) {
    for (row, sums) in d.chunks_exact_mut(n).enumerate() {
        for (k, b) in b.chunks_exact(n).enumerate() {
            let a = a[k * 64 + row];
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
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
    fn products_accumulate() {
        let (a, b) = (vec![2.0; DEPTH * 64], vec![0.5; DEPTH * 8]);
        let mut d = vec![1.0; 64 * 8];
        multiply(&mut d, &a, &b, 8);
        assert!(d.iter().all(|&x| x == 17.0));
    }
}
