//! A tile of C whose sums stay in registers along all of K: ping-pong in its tightest form.
//!
//! While 64 of K are multiplied, the next 64 are expanded, a block or two between any two tile products: the processor
//! looks only so far, and a longer stretch of other work would hide the next product from it. Few tokens meet gate and
//! up together: one group of rows two or four panels, two groups two. Three to five groups meet one panel after the
//! other: then each expanded weight is used often enough to hide its expansion, and there are registers to load tokens
//! ahead.
//!
//! Step s along K reads the quarter s mod 4 of each panel's page of the ring, and the expansion writes the quarter two
//! further on: so no load has the low 12 address bits of a store that is still under way, which the processor would
//! take for the same place, and wait.

use std::arch::x86_64::*;

use super::expand::Expander;
use super::tiles::{HalfTile, TILE_ROWS, TokenTile, load, load_past, product, store, zero};
use crate::pack::{CHUNK_BLOCKS, CODE_BYTES, COLUMNS, chunk_bytes, shared};
use crate::sums::Lanes;

/// The shapes of tile that are streamed: rows and columns.
pub(super) const STREAMED: [(usize, usize); 5] = [(16, 32), (32, 16), (48, 16), (64, 16), (80, 16)];

/// One tile.
pub(super) struct Stream<'a, const F16: bool, const MX: bool> {
    /// For each group of rows, its tiles along K.
    pub tokens: &'a [&'a [TokenTile]],
    /// For each panel, gate before up, its chunks along K, whole ones.
    pub weights: &'a [&'a [u8]],
    /// What comes after each panel, to be fetched at its end; if absent, what lies behind it in memory.
    pub next: &'a [&'a [u8]],
    /// For each panel, a page that holds four tiles: two to be read and two to be written.
    pub ring: &'a mut [HalfTile],
    /// For each panel, the sums of every row.
    pub sums: &'a mut [Lanes],
}

/// Half tiles of a page.
pub(super) const RING: usize = 8;
/// How far ahead of the expansion weights are fetched, in chunks. Between two and eight it makes next to no difference:
/// the processor's own prefetchers are ahead of that.
const FETCH_AHEAD: usize = 4;

impl<const F16: bool, const MX: bool> Stream<'_, F16, MX> {
    /// Runs the stream if its shape is one that has been written out; says whether it did.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions, and this thread's tiles must be configured.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
    pub(super) unsafe fn run(self) -> bool {
        // SAFETY: they want what this function's caller promises.
        unsafe {
            match (self.tokens.len(), self.weights.len()) {
                (1, 2) => self.walk::<1, 2>(),
                (1, 4) => self.walk::<1, 4>(),
                (2, 2) => self.walk::<2, 2>(),
                (3, _) => self.panel_by_panel::<3>(),
                (4, _) => self.panel_by_panel::<4>(),
                (5, _) => self.panel_by_panel::<5>(),
                _ => return false,
            }
        }
        true
    }

    /// # Safety
    ///
    /// As [`Self::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
    unsafe fn panel_by_panel<const GROUPS: usize>(self) {
        let sums = self.sums.chunks_exact_mut(GROUPS * TILE_ROWS);
        for (panel, (weights, sums)) in self.weights.chunks(1).zip(sums).enumerate() {
            let next = self.weights.get(panel + 1).or(self.next.first()).copied();
            let next = next.as_slice();
            // SAFETY: `walk` wants what this function's caller promises.
            unsafe {
                Stream::<F16, MX> { tokens: self.tokens, weights, next, ring: self.ring, sums }.walk::<GROUPS, 1>()
            }
        }
    }

    /// `GROUPS` groups of rows against `PANELS` panels: the sums of group g and panel p are in tile g·PANELS + p.
    ///
    /// # Safety
    ///
    /// As [`Self::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
    unsafe fn walk<const GROUPS: usize, const PANELS: usize>(self) {
        let chunks = self.weights[0].len() / chunk_bytes(MX);
        assert!(chunks > 0 && self.tokens.len() == GROUPS && self.tokens.iter().all(|tiles| tiles.len() == 2 * chunks));
        assert!(
            self.weights.len() == PANELS && self.weights.iter().all(|panel| panel.len() == chunks * chunk_bytes(MX))
        );
        assert!(self.ring.len() >= PANELS * RING && self.sums.len() == PANELS * GROUPS * TILE_ROWS);
        let expander = Expander::<F16, MX>::new();
        let ring = self.ring.as_mut_ptr();
        let mut a: [*const u8; GROUPS] = std::array::from_fn(|group| self.tokens[group].as_ptr().cast());
        let mut w: [*const u8; PANELS] = std::array::from_fn(|panel| self.weights[panel].as_ptr());
        let mut fetched = w.map(|panel| panel.wrapping_add(FETCH_AHEAD * chunk_bytes(MX)));
        // SAFETY: in all that follows `w` points to the chunk that is expanded, one of the panel's; `a` to a tile of
        // the group's; a place in the ring is a multiple of half tiles below `PANELS * RING` (all asserted above).
        unsafe {
            // Block `block` of half `half` of the chunk, to step `step` of the ring.
            macro_rules! expand {
                ($panel:expr, $half:expr, $block:expr, $step:expr) => {
                    expander.block(
                        w[$panel].add((2 * $half + $block) / shared(MX) * COLUMNS),
                        w[$panel].add(CHUNK_BLOCKS / shared(MX) * COLUMNS + (2 * $half + $block) * CODE_BYTES),
                        ring.add($panel * RING + 2 * $step + $block),
                    )
                };
            }
            // Half of the lines of a chunk.
            macro_rules! fetch {
                ($panel:expr, $half:expr) => {
                    for line in 5 * $half..5 + 4 * $half {
                        _mm_prefetch::<_MM_HINT_T0>(fetched[$panel].wrapping_add(64 * line).cast())
                    }
                };
            }
            for (panel, block) in (0..PANELS).flat_map(|panel| (0..CHUNK_BLOCKS).map(move |block| (panel, block))) {
                expand!(panel, block / 2, block % 2, block / 2);
            }
            zero!(0 1 2 3 4);
            for chunk in 0..chunks {
                if chunk + 1 < chunks {
                    w = w.map(|panel| panel.add(chunk_bytes(MX)));
                }
                fetched = fetched.map(|panel| panel.wrapping_add(chunk_bytes(MX)));
                if chunk + 1 + FETCH_AHEAD == chunks && self.next.len() == PANELS {
                    fetched = std::array::from_fn(|panel| self.next[panel].as_ptr());
                }
                let (read, write) = (chunk % 2 * 2, 2 - chunk % 2 * 2);
                macro_rules! step {
                    ($half:literal) => {
                        let b = |panel: usize| ring.add(panel * RING + 2 * (read + $half)).cast::<u8>();
                        let to = write + $half;
                        match (GROUPS, PANELS) {
                            (1, _) => {
                                load_past!(4, a[0]);
                                load!(6, b(0));
                                product!(F16, 0, 4, 6);
                                load!(7, b(1));
                                fetch!(0, $half);
                                expand!(0, $half, 0, to);
                                expand!(0, $half, 1, to);
                                product!(F16, 1, 4, 7);
                                if PANELS == 4 {
                                    load!(5, b(2));
                                }
                                fetch!(1, $half);
                                expand!(1, $half, 0, to);
                                expand!(1, $half, 1, to);
                                if PANELS == 4 {
                                    product!(F16, 2, 4, 5);
                                    load!(6, b(3));
                                    fetch!(2, $half);
                                    expand!(2, $half, 0, to);
                                    expand!(2, $half, 1, to);
                                    product!(F16, 3, 4, 6);
                                    fetch!(3, $half);
                                    expand!(3, $half, 0, to);
                                    expand!(3, $half, 1, to);
                                }
                            }
                            (2, _) => {
                                load_past!(4, a[0]);
                                load!(6, b(0));
                                product!(F16, 0, 4, 6);
                                load!(7, b(1));
                                fetch!(0, $half);
                                expand!(0, $half, 0, to);
                                product!(F16, 1, 4, 7);
                                load_past!(5, a[1]);
                                expand!(0, $half, 1, to);
                                product!(F16, 2, 5, 6);
                                fetch!(1, $half);
                                expand!(1, $half, 0, to);
                                product!(F16, 3, 5, 7);
                                expand!(1, $half, 1, to);
                            }
                            _ => {
                                load!(7, b(0));
                                load_past!(6, a[0]);
                                product!(F16, 0, 6, 7);
                                load_past!(5, a[1]);
                                fetch!(0, $half);
                                expand!(0, $half, 0, to);
                                product!(F16, 1, 5, 7);
                                load_past!(6, a[2]);
                                product!(F16, 2, 6, 7);
                                if GROUPS > 3 {
                                    load_past!(5, a[3]);
                                }
                                expand!(0, $half, 1, to);
                                if GROUPS > 3 {
                                    product!(F16, 3, 5, 7);
                                }
                                if GROUPS > 4 {
                                    load_past!(6, a[4]);
                                    product!(F16, 4, 6, 7);
                                }
                            }
                        }
                        a = a.map(|tile| tile.add(size_of::<TokenTile>()));
                    };
                }
                step!(0);
                step!(1);
            }
            let sums = self.sums.as_mut_ptr();
            let place = |tile: usize| {
                let (group, panel) = (tile / PANELS, tile % PANELS);
                sums.add((panel * GROUPS + group) * TILE_ROWS).cast::<u8>()
            };
            store!(0, place(0));
            store!(1, place(1));
            if GROUPS * PANELS > 2 {
                store!(2, place(2));
            }
            if GROUPS * PANELS > 3 {
                store!(3, place(3));
            }
            if GROUPS * PANELS > 4 {
                store!(4, place(4));
            }
        }
    }
}
