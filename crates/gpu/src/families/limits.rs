//! The sizes beyond which a launch would count wrongly, all in one place.
//!
//! Kernels address memory with 64 bits and count with 32: sizes, tiles, units and the bytes of a row of chunks are
//! words of a kernel's arguments or made of those. Copies through a tensor map have signed 32-bit coordinates. A grid
//! has at most 2³¹ − 1 blocks. What follows from that:
//!
//! - m and n stay below 2³¹, so that a coordinate, and a size with a tile's sides added, fits.
//! - ⌈k/64⌉ chunks of weights, one after another, are less than 2³² bytes: `produce` multiplies them out. That leaves
//!   room in every count of units and stages along k, and in a tensor map's stride of 2k bytes, which must be below
//!   2⁴⁰.
//! - Where tokens are expanded, all groups may be one run of units of eight elements, and the threads of the last block
//!   count on behind it. Then the three parts of single precision are less than 2³⁶ bytes apart, which a tensor map's
//!   stride can be.
//! - Tiles of all groups together, twice as many blocks where two share a tile, and twice that once more for blocks
//!   that repeat others' work or look for the next tile.
//! - Where sums go through memory, a thread for each element joins them: blocks of 256.
//!
//! Elements of C are counted with 64 bits.

use format::Scaling;
use op::{Config, Problem, Shape};

use crate::expand::{self, TokenForm};
use crate::join;
use crate::pack::{self, Chunk};

/// Coordinates are signed.
const MOST_SIDE: usize = i32::MAX as usize;
/// The deepest k whose chunks can be counted in bytes.
const fn most_depth(scaling: Scaling) -> usize {
    // Chunks of four bits are counted as NVFP4's, the larger ones.
    let chunk = if scaling.is_fp8() { Chunk::of(scaling).bytes() } else { pack::CHUNK_BYTES };
    u32::MAX as usize / chunk as usize * pack::CHUNK_DEPTH
}
/// Elements that one run of the expansion may have.
const MOST_EXPANDED: usize = (u32::MAX - expand::MOST_THREAD_UNITS + 1) as usize * expand::UNIT;
const MOST_TILES: usize = i32::MAX as usize / 4;
const MOST_BLOCKS: usize = i32::MAX as usize;

/// The number of tiles of a configuration, which joins sums that went through memory or not, and launches so many tiles
/// side by side together; or refuses what a launch cannot count, with the size, the limit and the remedy.
pub(super) fn check(problem: &Problem, config: &Config, joins: bool, together: usize) -> Result<usize, String> {
    let groups = || problem.groups().iter();
    for shape in groups() {
        if shape.m > MOST_SIDE || shape.n > MOST_SIDE {
            return Err(format!("{shape} has a side beyond {MOST_SIDE}, and copies have 32-bit coordinates; split it"));
        }
        let most = most_depth(problem.scaling());
        if shape.k > most {
            return Err(format!("k = {} is beyond {most}, the chunks whose bytes 32 bits count; split it", shape.k));
        }
    }
    let expanded: usize = groups().map(|shape| shape.m * shape.k).sum();
    if TokenForm::of(problem.activation()).is_some() && expanded > MOST_EXPANDED {
        return Err(format!(
            "{expanded} activations are more than the {MOST_EXPANDED} that one launch can expand; split them"
        ));
    }
    let tile = config.tile;
    // Of tiles that are launched together there are as many whether the last have columns or not.
    let across = |shape: &Shape| shape.n.div_ceil(tile.columns).next_multiple_of(together);
    let tiles: usize = groups().map(|shape| shape.m.div_ceil(tile.tokens) * across(shape)).sum();
    if tiles > MOST_TILES {
        return Err(format!("{tiles} tiles are more than the {MOST_TILES} of one launch; make tiles larger"));
    }
    let joined: usize = groups().map(|shape| (shape.m * shape.n).div_ceil(join::THREADS as usize)).sum();
    if joins && joined > MOST_BLOCKS {
        return Err(format!(
            "joining sums takes {joined} blocks, and a launch has at most {MOST_BLOCKS}; take another strategy"
        ));
    }
    Ok(tiles)
}

#[cfg(test)]
mod tests {
    use op::{Activation, Gate, Output, Request};

    use super::*;
    use crate::Family;
    use crate::expand::ExpandSpec;
    use crate::expansion::{self, Segment};
    use crate::facts::Facts;
    use crate::families::sm90::{Sm90, kernel_config};

    const FUSED: &str = "strategy=interleaved,tile=256x64,depth=64,stages=2,epilogue=direct,schedule=tile";
    const TWO_PASS: &str = "strategy=two-pass,tile=256x128,depth=64,stages=2,epilogue=direct,schedule=tile";

    /// What a configuration for such groups is refused for, if it is.
    fn refusal(shapes: &[Shape], activation: Activation, config: &str) -> Option<String> {
        let problem = Problem::new(shapes.to_vec(), Gate::Silu, activation, Output::F16).unwrap();
        let config = config.parse::<Request>().unwrap().complete().unwrap();
        match Sm90.cost(&problem, &config, &Facts::h200()) {
            Ok(cost) => {
                assert!(cost.seconds.is_finite() && cost.seconds > 0.0);
                None
            }
            Err(reason) => Some(reason),
        }
    }

    #[track_caller]
    fn assert_limit(within: &[Shape], beyond: &[Shape], activation: Activation, config: &str, part: &str) {
        assert_eq!(refusal(within, activation, config), None);
        let reason = refusal(beyond, activation, config).expect("beyond the limit");
        assert!(reason.contains(part), "{reason}");
    }

    #[test]
    fn sides_fit_signed_coordinates() {
        let side = 1 << 31;
        let shapes = |m, n| [Shape::new(m, n, 16)];
        assert_limit(&shapes(side - 1, 1), &shapes(side, 1), Activation::F16, FUSED, "32-bit coordinates");
        assert_limit(&shapes(1, side - 1), &shapes(1, side), Activation::F16, FUSED, "32-bit coordinates");
    }

    #[test]
    fn the_bytes_of_a_row_of_chunks_fit_32_bits() {
        let deepest = 3_728_270 * 64;
        assert!(deepest / 64 * 1152 <= u32::MAX as usize && (deepest / 64 + 1) * 1152 > u32::MAX as usize);
        let shapes = |k| [Shape::new(1, 1, k)];
        for activation in Activation::ALL {
            assert_limit(&shapes(deepest), &shapes(deepest + 16), activation, FUSED, "chunks");
        }
    }

    #[test]
    fn units_of_the_expansion_fit_32_bits_with_a_blocks_threads_behind_them() {
        let most = (1 << 35) - 4096;
        // Two groups, since they may be one run in memory.
        let shapes =
            |elements: usize| [Shape::new(1 << 20, 1, 1 << 14), Shape::new((elements >> 4) - (1 << 30), 1, 16)];
        for activation in [Activation::NvFp4, Activation::F32] {
            assert_limit(&shapes(most), &shapes(most + 16), activation, FUSED, "expand");
        }
        assert_eq!(refusal(&shapes(most + 16), Activation::F16, FUSED), None, "f16 tokens are taken as they are");
    }

    #[test]
    fn the_largest_expansion_counts_its_units_and_blocks() {
        let elements = MOST_EXPANDED;
        let segment = Segment { source: 0, scales: 0, target: 0, plane: 0, factor: 1.0, elements, k: 16 };
        for source in [TokenForm::NvFp4, TokenForm::Single] {
            let [launch] = &expansion::launches(ptx::Target::Sm90a, source, &[segment])[..] else {
                panic!("one run is one launch")
            };
            let config: ExpandSpec = launch.kernel.downcast().expect("an expansion");
            let threads = u64::from(launch.grid[0]) * 128 * u64::from(config.rounds);
            assert!(threads >= (elements / expand::UNIT) as u64 && threads <= 1 << 32, "{threads}");
        }
    }

    #[test]
    fn tiles_of_all_groups_together_fit_a_launch() {
        let group = |token_tiles, column_tiles| Shape::new(256 * token_tiles, 64 * column_tiles, 16);
        let most = i32::MAX as usize / 4;
        let first = group(1 << 14, 1 << 14);
        let rest = most - (1 << 28);
        assert_limit(
            &[first, group(rest / 32, 32), group(1, rest % 32)],
            &[first, group(rest / 32, 32), group(1, rest % 32 + 1)],
            Activation::F16,
            FUSED,
            "tiles",
        );
    }

    #[test]
    fn blocks_that_join_two_passes_fit_a_grid() {
        let most = i32::MAX as usize * 256;
        let (m, n) = (1 << 19, most >> 19);
        assert_limit(&[Shape::new(m, n, 16)], &[Shape::new(m, n + 1, 16)], Activation::F16, TWO_PASS, "joining");
        assert_eq!(refusal(&[Shape::new(m, n + 1, 16)], Activation::F16, FUSED), None, "nothing is joined");
    }

    #[test]
    fn tensor_maps_at_the_limits_are_ones_that_the_hardware_takes() {
        let kernel = |activation| {
            let problem = Problem::new(vec![Shape::new(1, 1, 16)], Gate::Silu, activation, Output::F16).unwrap();
            let config = FUSED.parse::<Request>().unwrap().complete().unwrap();
            kernel_config(&problem, &config).unwrap()
        };
        let whole = kernel(Activation::F16).token_map(0, [MOST_SIDE as u32, most_depth(Scaling::NvFp4) as u32], 0);
        assert!(whole.check().is_ok(), "{:?}", whole.check());
        let [m, k] = [(MOST_EXPANDED / 16) as u32, 16];
        let parts = kernel(Activation::F32).token_map(0, [m, k], 2 * MOST_EXPANDED as u64);
        assert!(parts.check().is_ok(), "{:?}", parts.check());
    }
}
