//! Row-major and blocked scales, there and back.

use hammerhead_format::Error;
use hammerhead_format::scales::{blocked_len, blocked_offset, from_blocked, to_blocked};
use proptest::prelude::*;

/// The layout as the 6-D tensor (32, 4, rows/128, 4, K/64, 1) with the strides that cuBLAS and CUTLASS give it: an
/// offset is a sum of index times stride.
fn offset_by_strides(row: usize, block: usize, blocks: usize) -> usize {
    let tiles_along_k = blocks.div_ceil(4);
    let index = [row % 32, row / 32 % 4, row / 128, block % 4, block / 4];
    let stride = [16, 4, 512 * tiles_along_k, 1, 512];
    index.iter().zip(stride).map(|(index, stride)| index * stride).sum()
}

#[test]
fn known_places_in_the_first_tiles() {
    // 5 scales a row are two tiles along K.
    let places = [((0, 0), 0), ((0, 3), 3), ((1, 0), 16), ((31, 0), 496), ((32, 0), 4), ((127, 3), 511)];
    for ((row, block), offset) in places {
        assert_eq!(blocked_offset(row, block, 5), offset, "({row}, {block})");
    }
    assert_eq!(blocked_offset(0, 4, 5), 512);
    assert_eq!(blocked_offset(128, 0, 5), 1024);
    assert_eq!(blocked_offset(128, 0, 4), 512);
}

#[test]
fn lengths_are_padded_to_whole_tiles() {
    for (rows, blocks, length) in [(0, 4, 0), (1, 1, 512), (128, 4, 512), (129, 4, 1024), (129, 5, 2048), (128, 0, 0)] {
        assert_eq!(blocked_len(rows, blocks).unwrap(), length, "{rows} x {blocks}");
    }
}

#[test]
fn impossible_sizes_and_wrong_lengths_are_errors() {
    assert!(matches!(blocked_len(usize::MAX, usize::MAX), Err(Error::TooLarge { .. })));
    assert!(matches!(to_blocked(&[0; 3], usize::MAX, 64), Err(Error::TooLarge { .. })));
    assert!(matches!(to_blocked(&[0; 3], 1 << 40, 64), Err(Error::Length { came: 3, .. })));
    assert!(matches!(from_blocked(&[0; 511], 128, 4), Err(Error::Length { expected: 512, came: 511, .. })));
    assert!(matches!(to_blocked(&[0; 9], 2, 5), Err(Error::Length { expected: 10, came: 9, .. })));
}

proptest! {
    #[test]
    fn blocked_and_back_is_the_same_and_padding_is_zero(rows in 0usize..400, blocks in 1usize..40, seed: u8) {
        // Never zero, so that a scale cannot be mistaken for padding.
        let row_major: Vec<u8> = (0..rows * blocks).map(|i| (i.wrapping_mul(31) as u8 ^ seed) | 1).collect();
        let blocked = to_blocked(&row_major, rows, blocks).unwrap();
        prop_assert_eq!(blocked.len(), rows.next_multiple_of(128) * blocks.next_multiple_of(4));
        prop_assert_eq!(blocked.iter().filter(|&&byte| byte != 0).count(), row_major.len());
        for row in 0..rows {
            for block in 0..blocks {
                let offset = blocked_offset(row, block, blocks);
                prop_assert_eq!(offset, offset_by_strides(row, block, blocks));
                prop_assert_eq!(blocked[offset], row_major[row * blocks + block]);
            }
        }
        prop_assert_eq!(from_blocked(&blocked, rows, blocks).unwrap(), row_major);
    }

    #[test]
    fn what_stands_in_the_padding_is_dropped(rows in 1usize..200, blocks in 1usize..10, padding: u8) {
        let row_major: Vec<u8> = (0..rows * blocks).map(|i| i as u8).collect();
        let mut blocked = to_blocked(&row_major, rows, blocks).unwrap();
        for row in 0..rows.next_multiple_of(128) {
            for block in 0..blocks.next_multiple_of(4) {
                if row >= rows || block >= blocks {
                    blocked[blocked_offset(row, block, blocks)] = padding;
                }
            }
        }
        prop_assert_eq!(from_blocked(&blocked, rows, blocks).unwrap(), row_major);
    }
}
