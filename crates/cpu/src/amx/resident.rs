//! Many tokens against many panels: 48 rows by 256 of K stay in L1 while every panel of the tile passes by, so that the
//! products' operands come from there. What moves instead are the sums: a tile in and a tile out for every eight
//! products.
//!
//! K is walked in stretches of 256, a stretch in *blocks* of up to three groups of rows, and for each block all panels.
//! A panel's stretch is expanded two tiles ahead of its products, between them, as `stream` does it. The packed bytes
//! come from memory once for all blocks: during a stretch those of the next one are fetched into L2, and its tokens
//! too.
//!
//! L1 is nearly full of tokens, so sums must not linger there. They are loaded past it; and as a store needs its line
//! there, that is asked for shortly before the store: a line that is loaded at the beginning of a panel and stored at
//! the end would be thrown out in between, and fetched twice. Without that the loop is no faster than `stream`; with
//! it, it takes a sixth to a quarter less.

use std::arch::x86_64::*;
use std::ops::Range;

use super::expand::Expander;
use super::stream::RING;
use super::tiles::{HalfTile, TILE_ROWS, TokenTile, load, load_past, own, product, store, zero};
use crate::model;
use crate::pack::{CHUNK, CHUNK_BLOCKS, CODE_BYTES, COLUMNS, chunk_bytes, shared, split};
use crate::speeds::Speed;
use crate::sums::Lanes;

/// Chunks of a stretch, and K in one.
const STRETCH: usize = 4;
pub(super) const DEPTH: usize = STRETCH * CHUNK;
/// Groups of rows in a block. Four leave L1 too little room beside them: three are faster, by a fifth with 16 threads.
const BLOCK_GROUPS: usize = 3;

/// The tiles that pay: as many panels as make the tokens' way into L1 worth while, and so few rows that
/// all sums stay in the second, half a megabyte of them. Any other tile is computed as well.
pub(super) const RATES: model::Resident = model::Resident {
    speed: Speed { expand: 18e-9, multiply: 1.6e-9 },
    depth: DEPTH,
    groups: BLOCK_GROUPS,
    panels: 32,
    tile_groups: 16,
};

const LINE: usize = 64;
const SUMS: usize = TILE_ROWS * size_of::<Lanes>();

/// One tile.
pub(super) struct Resident<'a, const F16: bool, const MX: bool> {
    /// For each group of rows, its tiles along K.
    pub tokens: &'a [&'a [TokenTile]],
    /// For each panel, its chunks along K, whole ones.
    pub weights: &'a [&'a [u8]],
    /// The panels of the next tile, to be fetched at the end of this one.
    pub next: &'a [&'a [u8]],
    /// A page that holds four tiles: two to be read and two to be written.
    pub ring: &'a mut [HalfTile],
    /// For each panel, the sums of every row.
    pub sums: &'a mut [Lanes],
}

/// A block on its way through a stretch.
struct Pass {
    /// The groups of rows, and the chunks along K.
    groups: Range<usize>,
    chunks: Range<usize>,
    /// Which block of how many.
    block: usize,
    blocks: usize,
    /// What is expanded after the last panel's last chunk.
    then: *const u8,
    /// The half of the ring that is read first.
    half: usize,
}

impl<const F16: bool, const MX: bool> Resident<'_, F16, MX> {
    const CHUNK_BYTES: usize = chunk_bytes(MX);

    /// Computes the sums of every row and panel.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions, and this thread's tiles must be configured.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
    pub(super) unsafe fn run(mut self) {
        let (groups, panels) = (self.tokens.len(), self.weights.len());
        let chunks = self.weights[0].len() / Self::CHUNK_BYTES;
        assert!(chunks > 0 && self.tokens.iter().all(|tiles| tiles.len() == 2 * chunks));
        assert!(self.weights.iter().all(|panel| panel.len() == chunks * Self::CHUNK_BYTES));
        assert!(self.ring.len() >= RING && self.sums.len() == panels * groups * TILE_ROWS);
        let blocks = groups.div_ceil(BLOCK_GROUPS);
        let expander = Expander::<F16, MX>::new();
        let (scales, codes) = split(&self.weights[0][..Self::CHUNK_BYTES], MX);
        for block in 0..CHUNK_BLOCKS {
            // SAFETY: a chunk has four blocks, and the ring room for eight.
            unsafe {
                let scales = scales.as_ptr().add(block / shared(MX) * COLUMNS);
                let codes = codes.as_ptr().add(block * CODE_BYTES);
                expander.block(scales, codes, self.ring.as_mut_ptr().add(block));
            }
        }
        let mut half = 0;
        for start in (0..chunks).step_by(STRETCH) {
            let end = chunks.min(start + STRETCH);
            for block in 0..blocks {
                // Blocks as even as they can be: a weight is expanded as often for one group as for three.
                let groups = groups * block / blocks..groups * (block + 1) / blocks;
                // At the very end a chunk is expanded once more, for nothing.
                let then = if block + 1 < blocks { start } else { end.min(chunks - 1) };
                let then = self.weights[0][then * Self::CHUNK_BYTES..].as_ptr();
                let pass = Pass { groups, chunks: start..end, block, blocks, then, half };
                half = (half + panels * (end - start)) % 2;
                // SAFETY: `pass` wants what this function's caller promises, and what is asserted above; `then` is a
                // chunk.
                unsafe {
                    match pass.groups.len() {
                        1 => self.pass::<1>(pass),
                        2 => self.pass::<2>(pass),
                        _ => self.pass::<BLOCK_GROUPS>(pass),
                    }
                }
            }
        }
    }

    /// Every panel against `GROUPS` groups of rows: the sums of group g are in tile g. The sums of the panel before are
    /// stored, and this one's loaded, each just before its first product.
    ///
    /// # Safety
    ///
    /// As [`Self::run`], whose assertions must hold; `then` must point to a chunk.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
    unsafe fn pass<const GROUPS: usize>(&mut self, pass: Pass) {
        let Pass { groups, chunks, block, blocks, then, mut half } = pass;
        let (panels, rows) = (self.weights.len(), self.tokens.len() * TILE_ROWS);
        let (fresh, count) = (chunks.start == 0, chunks.len());
        let last = chunks.end * Self::CHUNK_BYTES == self.weights[0].len();
        let expander = Expander::<F16, MX>::new();
        let ring = self.ring.as_mut_ptr();
        let tokens: [*const u8; GROUPS] =
            std::array::from_fn(|group| self.tokens[groups.start + group][2 * chunks.start..].as_ptr().cast());
        let sums = self.sums[groups.start * TILE_ROWS..].as_mut_ptr().cast::<u8>();
        // This block's share of what is fetched for the next stretch, for each panel: lines of its own tokens, and of
        // the panel's chunks.
        let token_lines = (GROUPS * 2 * count * size_of::<TokenTile>() / LINE).div_ceil(panels);
        let weight_lines = (count * Self::CHUNK_BYTES).div_ceil(LINE).div_ceil(blocks);
        let (token_step, weight_step) = (token_lines.div_ceil(2 * count), weight_lines.div_ceil(2 * count));
        let mut old: *mut u8 = std::ptr::null_mut();
        for panel in 0..panels {
            let mut w = self.weights[panel][chunks.start * Self::CHUNK_BYTES..].as_ptr();
            let following = match self.weights.get(panel + 1) {
                Some(weights) => weights[chunks.start * Self::CHUNK_BYTES..].as_ptr(),
                None => then,
            };
            // Only hints from here on: addresses need not be anyone's.
            let later = match (last, self.next.get(panel)) {
                (false, _) => w.wrapping_add(count * Self::CHUNK_BYTES),
                (true, Some(next)) => next.as_ptr(),
                (true, None) => w,
            };
            let mut later = later.wrapping_add(block * weight_lines * LINE);
            let mut later_tokens = {
                let group_lines = 2 * count * size_of::<TokenTile>() / LINE;
                let line = panel * token_lines;
                let group = &self.tokens[groups.start + (line / group_lines).min(GROUPS - 1)];
                let start: *const u8 = group[if last { 0 } else { 2 * chunks.end }..].as_ptr().cast();
                start.wrapping_add(line % group_lines * LINE)
            };
            let mut fetched = following;
            let mut a = tokens;
            // SAFETY: `w` points to the chunk that is expanded, one of the panel's, or the first of what follows; `a`
            // to two tiles of its group for each chunk; a place in the ring is one of its eight; the sums of the block
            // stand together in every panel's.
            unsafe {
                let new = sums.add(panel * rows * size_of::<Lanes>());
                let mut owned = new;
                macro_rules! expand {
                    ($half:expr, $block:expr) => {
                        expander.block(
                            w.add((2 * $half + $block) / shared(MX) * COLUMNS),
                            w.add(CHUNK_BLOCKS / shared(MX) * COLUMNS + (2 * $half + $block) * CODE_BYTES),
                            ring.add((1 - half) * RING / 2 + 2 * $half + $block),
                        )
                    };
                }
                macro_rules! swap {
                    ($swap:literal, $group:tt) => {
                        if $swap {
                            if !old.is_null() {
                                store!($group, old.add($group * SUMS));
                            }
                            if fresh {
                                zero!($group);
                            } else {
                                load_past!($group, new.add($group * SUMS));
                            }
                        }
                    };
                }
                macro_rules! own_four {
                    ($own:literal) => {
                        if $own {
                            for line in 0..4 {
                                own!(owned.add(line * LINE));
                            }
                            owned = owned.add(4 * LINE);
                        }
                    };
                }
                // Half of a chunk: a tile of each group times one of weights.
                macro_rules! step {
                    ($half:literal, $swap:literal, $own:literal) => {
                        load!(7, ring.add(half * RING / 2 + 2 * $half));
                        load!(6, a[0]);
                        swap!($swap, 0);
                        product!(F16, 0, 6, 7);
                        if GROUPS > 1 {
                            load!(5, a[1]);
                        }
                        own_four!($own);
                        for line in 5 * $half..5 + 4 * $half {
                            _mm_prefetch::<_MM_HINT_T0>(fetched.wrapping_add(LINE * line).cast());
                        }
                        expand!($half, 0);
                        if GROUPS > 1 {
                            swap!($swap, 1);
                            product!(F16, 1, 5, 7);
                            own_four!($own);
                        }
                        if GROUPS > 2 {
                            load!(6, a[2]);
                            swap!($swap, 2);
                            product!(F16, 2, 6, 7);
                            own_four!($own);
                        }
                        for _ in 0..weight_step {
                            _mm_prefetch::<_MM_HINT_T1>(later.cast());
                            later = later.wrapping_add(LINE);
                        }
                        for _ in 0..token_step {
                            _mm_prefetch::<_MM_HINT_T1>(later_tokens.cast());
                            later_tokens = later_tokens.wrapping_add(LINE);
                        }
                        expand!($half, 1);
                        a = a.map(|tile| tile.add(size_of::<TokenTile>()));
                    };
                }
                macro_rules! chunk {
                    ($chunk:expr, $swap:literal, $own:literal) => {
                        w = if $chunk + 1 < count { w.add(Self::CHUNK_BYTES) } else { following };
                        step!(0, $swap, $own);
                        step!(1, false, $own);
                        fetched = fetched.wrapping_add(Self::CHUNK_BYTES);
                        half = 1 - half;
                    };
                }
                chunk!(0, true, false);
                // The sums' lines are asked for in the last two chunks, four for each product.
                for chunk in 1..count.saturating_sub(2).max(1) {
                    chunk!(chunk, false, false);
                }
                for chunk in count.saturating_sub(2).max(1)..count {
                    chunk!(chunk, false, true);
                }
                old = new;
            }
        }
        // SAFETY: these are the last panel's sums.
        unsafe {
            store!(0, old);
            if GROUPS > 1 {
                store!(1, old.add(SUMS));
            }
            if GROUPS > 2 {
                store!(2, old.add(2 * SUMS));
            }
        }
    }
}
