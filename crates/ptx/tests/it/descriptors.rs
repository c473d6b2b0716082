//! Descriptors are bits that only the hardware reads: known values, and the way there and back.

use ptx::Error;
use ptx::descriptor::{BlockScaledShape, MatrixLayout, Swizzle, Tcgen05Descriptor, WgmmaDescriptor};

const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

#[test]
fn a_k_major_128_byte_swizzled_matrix_has_the_known_bits() {
    let desc = WgmmaDescriptor { start: 0x4400, layout: MatrixLayout::K_MAJOR_128, base_offset: 0 };
    assert_eq!(desc.encode(), Ok(0x4000_0040_0001_0440));
}

#[test]
fn descriptors_decode_to_what_was_encoded() {
    for swizzle in SWIZZLES {
        let layout = MatrixLayout { swizzle, leading: 256, stride: 4096 };
        let hopper = WgmmaDescriptor { start: 0x3_8010, layout, base_offset: 5 };
        assert_eq!(hopper.encode().map(WgmmaDescriptor::decode), Ok(hopper));
        let blackwell = Tcgen05Descriptor { start: 0x3_8010, layout, base_offset: 5 };
        assert_eq!(blackwell.encode().and_then(Tcgen05Descriptor::decode), Ok(blackwell));
    }
    let shape = BlockScaledShape { m: 128, n: 64, scale_a_id: 2, scale_b_id: 1 };
    assert_eq!(shape.encode().and_then(BlockScaledShape::decode), Ok(shape));
}

#[test]
fn an_address_off_by_eight_bytes_is_refused() {
    let desc = WgmmaDescriptor { start: 8, layout: MatrixLayout::K_MAJOR_128, base_offset: 0 };
    assert!(matches!(desc.encode(), Err(Error::Field { found: 8, .. })));
}

#[test]
fn a_64_row_block_scaled_shape_is_refused() {
    let shape = BlockScaledShape { m: 64, n: 64, scale_a_id: 0, scale_b_id: 0 };
    assert!(matches!(shape.encode(), Err(Error::Field { found: 64, .. })));
}

#[test]
fn a_swizzle_permutes_the_pieces_of_each_row_and_undoes_itself() {
    for swizzle in SWIZZLES {
        for address in (0..2 * swizzle.period()).step_by(16) {
            let moved = swizzle.apply(address);
            assert_eq!(moved / swizzle.span(), address / swizzle.span());
            assert_eq!(swizzle.apply(moved), address);
        }
    }
    assert_eq!(Swizzle::B128.apply(3 * 128 + 16), 3 * 128 + 2 * 16);
}
