//! Geometry of tensor copies: which bytes of global memory a box covers and where each lies in shared memory.

use ptx::descriptor::Swizzle;
use ptx::tensor_map::TensorMap;

/// A run of bytes of one row of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Offset in the box, as it lies in shared memory before permutation.
    pub(crate) inside: u32,
    /// Global address of the first byte, or `None` where the box reaches out of the tensor.
    pub(crate) global: Option<u64>,
    pub(crate) bytes: u32,
}

/// The runs of a box, row by row: what lies inside the tensor, and what outside.
pub(crate) fn runs(map: &TensorMap, coords: &[i64]) -> Vec<Run> {
    let bits = u64::from(map.element.bits());
    let row_bytes = (u64::from(map.tile[0]) * bits / 8) as u32;
    let rows: u64 = map.tile[1..].iter().map(|&n| u64::from(n)).product();
    let mut list = Vec::with_capacity(rows as usize);
    for row in 0..rows {
        let start = row_address(map, coords, row);
        push_row(&mut list, map, coords[0], row as u32 * row_bytes, row_bytes, start);
    }
    list
}

/// Address of the row's element with inner index zero, or `None` if the row is out of the tensor.
fn row_address(map: &TensorMap, coords: &[i64], row: u64) -> Option<u64> {
    let (mut rest, mut address) = (row, map.address);
    let outer = map.tile.iter().zip(&map.dims).zip(coords).skip(1).zip(&map.strides);
    for (((&size, &dim), coord), stride) in outer {
        let index = coord + (rest % u64::from(size)) as i64;
        rest /= u64::from(size);
        address += u64::try_from(index).ok().filter(|&index| index < dim)? * stride;
    }
    Some(address)
}

fn push_row(list: &mut Vec<Run>, map: &TensorMap, first: i64, at: u32, bytes: u32, start: Option<u64>) {
    let bits = i64::from(map.element.bits());
    let Some(start) = start else { return list.push(Run { inside: at, global: None, bytes }) };
    let end = (first + i64::from(map.tile[0])).min(map.dims[0] as i64);
    let low = first.clamp(0, end.max(0));
    let (before, inner) = (((low - first) * bits / 8) as u32, ((end - low).max(0) * bits / 8) as u32);
    let (before, inner) = if inner == 0 { (bytes, 0) } else { (before, inner) };
    let after = bytes - before - inner;
    let global = Some(start + (low * bits / 8).cast_unsigned());
    let parts = [(before, None), (inner, global), (after, None)];
    let mut inside = at;
    for (bytes, global) in parts {
        if bytes > 0 {
            list.push(Run { inside, global, bytes });
        }
        inside += bytes;
    }
}

/// The pieces of at most 16 bytes that `bytes` bytes from `linear` on occupy after permutation: (place, length).
pub(crate) fn permuted(swizzle: Swizzle, linear: u32, bytes: u32) -> impl Iterator<Item = (u32, u32)> {
    let end = linear + bytes;
    let mut at = linear;
    std::iter::from_fn(move || {
        let length = (16 - at % 16).min(end - at);
        let piece = (swizzle.apply(at), length);
        at += length;
        (length > 0).then_some(piece)
    })
}

/// Whether some bytes are whole pieces that lie in the same places after permutation, though in another order: they are
/// permuted within a swizzle's span.
pub(crate) fn keeps_place(swizzle: Swizzle, linear: u32, bytes: u32) -> bool {
    (linear | bytes).is_multiple_of(swizzle.span())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ptx::tensor_map::Element;

    fn map() -> TensorMap {
        TensorMap {
            element: Element::U16,
            address: 4096,
            dims: vec![20, 3],
            strides: vec![48],
            tile: vec![8, 2],
            swizzle: Swizzle::None,
        }
    }

    #[test]
    fn a_box_inside_the_tensor_is_one_run_a_row() {
        let run = |inside, global| Run { inside, global: Some(global), bytes: 16 };
        assert_eq!(runs(&map(), &[8, 1]), [run(0, 4096 + 48 + 16), run(16, 4096 + 96 + 16)]);
    }

    #[test]
    fn what_reaches_over_the_edge_has_no_address() {
        let partial = runs(&map(), &[16, 2]);
        assert_eq!(partial[0], Run { inside: 0, global: Some(4096 + 96 + 32), bytes: 8 });
        assert_eq!(partial[1], Run { inside: 8, global: None, bytes: 8 });
        assert_eq!(partial[2], Run { inside: 16, global: None, bytes: 16 });
        let before = runs(&map(), &[-4, -1]);
        assert_eq!(before[0], Run { inside: 0, global: None, bytes: 16 });
        assert_eq!(before[1], Run { inside: 16, global: None, bytes: 8 });
        assert_eq!(before[2], Run { inside: 24, global: Some(4096), bytes: 8 });
    }

    #[test]
    fn a_swizzled_row_is_cut_into_permuted_pieces() {
        let pieces: Vec<_> = permuted(Swizzle::B128, 128, 40).collect();
        assert_eq!(pieces, [(144, 16), (128, 16), (176, 8)]);
    }

    #[test]
    fn pieces_of_32_bytes_stay_together() {
        let pieces: Vec<_> = permuted(Swizzle::B128Pieces32, 128, 64).collect();
        assert_eq!(pieces, [(160, 16), (176, 16), (128, 16), (144, 16)]);
        assert_eq!(Swizzle::B128Pieces32.apply(512 + 4), 512 + 4, "the pattern begins anew after four rows");
    }

    #[test]
    fn whole_spans_keep_their_place() {
        for swizzle in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128, Swizzle::B128Pieces32] {
            for (linear, bytes) in [(1024, 128), (1024 + 256, 384), (1024 + 32, 32), (1024 + 48, 16), (1024, 96)] {
                let mut places: Vec<u32> = permuted(swizzle, linear, bytes).map(|(place, _)| place).collect();
                places.sort_unstable();
                let same = places.into_iter().eq((linear..linear + bytes).step_by(16));
                assert!(same || !keeps_place(swizzle, linear, bytes), "{swizzle:?}: {bytes} from {linear} on");
            }
            assert!(keeps_place(swizzle, 1024, 128));
        }
    }
}
