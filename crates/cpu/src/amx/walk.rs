//! Tokens times a slab, for any shape: the sums of two groups of rows and two panels in registers at a time.

use super::tiles::{HalfTile, TILE_ROWS, TokenTile};
use super::tiles::{load, load_past, product, store, zero};
use crate::expansion::{Expansion, Pace};
use crate::kernel::{Kernel, Product};

/// Tiles that sums are in.
const SUM_TILES: usize = 4;

/// Multiplies every group of rows with every panel of the slab.
///
/// # Safety
///
/// The processor must have the instructions, and this thread's tiles must be configured.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
pub(super) unsafe fn multiply<const F16: bool, K: Kernel<Block = HalfTile, Token = TokenTile>>(
    product: Product<'_, K>,
    ahead: &mut Expansion<'_, K>,
) {
    let (groups, panels, tiles) = (product.rows() / TILE_ROWS, product.panels(), product.depth() / K::BLOCKS);
    // Sums that are complete in one pass, and are the only ones of the tile, stay in the registers.
    let stay = product.alone && groups <= 2 && panels <= 2;
    let mut walk = Walk::<F16, K> {
        pace: Pace::new(ahead.remaining(), groups * panels * tiles),
        zero: product.fresh,
        load: !product.fresh && !stay,
        store: product.last || !stay,
        product,
        tiles,
    };
    for panel in (0..panels).step_by(2) {
        for group in (0..groups).step_by(2) {
            // SAFETY: `pass` wants what this function's caller promises.
            unsafe {
                match (groups - group, panels - panel) {
                    (1, 1) => walk.pass::<1, 1>(group, panel, ahead),
                    (1, _) => walk.pass::<1, 2>(group, panel, ahead),
                    (_, 1) => walk.pass::<2, 1>(group, panel, ahead),
                    _ => walk.pass::<2, 2>(group, panel, ahead),
                }
            }
        }
    }
}

/// One product on its way through the tile registers.
struct Walk<'a, const F16: bool, K: Kernel> {
    product: Product<'a, K>,
    pace: Pace,
    /// Tiles along K.
    tiles: usize,
    zero: bool,
    load: bool,
    store: bool,
}

impl<const F16: bool, K: Kernel<Block = HalfTile, Token = TokenTile>> Walk<'_, F16, K> {
    /// `GROUPS` groups of rows against `PANELS` panels: the sums of group g and panel p are in tile 2·g + p. Between
    /// any two tile products there is room for a part of what is ahead: the processor looks only so far, and a longer
    /// stretch of other work would hide the next product from it.
    ///
    /// # Safety
    ///
    /// As [`multiply`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
    #[inline]
    unsafe fn pass<const GROUPS: usize, const PANELS: usize>(
        &mut self,
        first: usize,
        first_panel: usize,
        ahead: &mut Expansion<'_, K>,
    ) {
        let Product { tokens, group_len, blocks, slab, sums, .. } = &mut self.product;
        let start = blocks.start / K::BLOCKS;
        let rows = tokens.len() / *group_len * TILE_ROWS;
        let token = |group: usize| tokens[(first + group) * *group_len + start..][..self.tiles].as_ptr().cast::<u8>();
        let weight = |panel: usize| slab.panel(first_panel + panel)[..self.tiles * K::BLOCKS].as_ptr().cast::<u8>();
        let mut a: [*const u8; GROUPS] = std::array::from_fn(token);
        let mut b: [*const u8; PANELS] = std::array::from_fn(weight);
        let place = |tile: usize| {
            let (group, panel) = (tile / 2 % GROUPS, tile % 2 % PANELS);
            (first_panel + panel) * rows + (first + group) * TILE_ROWS
        };
        assert!((0..SUM_TILES).all(|tile| place(tile) + TILE_ROWS <= sums.len()));
        let sums = sums.as_mut_ptr();
        // SAFETY: asserted above.
        let sums: [*mut u8; SUM_TILES] = std::array::from_fn(|tile| unsafe { sums.add(place(tile)).cast() });
        let pace = &mut self.pace;
        macro_rules! ahead {
            () => {
                for _ in 0..pace.due() {
                    ahead.step();
                }
            };
        }
        // SAFETY: the processor has the instructions and the tiles are configured (promised by the caller). Every
        // pointer was taken from a slice that has the tiles that are read or written through it: `tiles` of them for
        // tokens and weights, behind the last of which it is moved but not read, and one for sums.
        unsafe {
            // For the tiles of sums that there are.
            macro_rules! each_sum {
                ($do:ident) => {
                    $do!(0, sums[0]);
                    if PANELS == 2 {
                        $do!(1, sums[1]);
                    }
                    if GROUPS == 2 {
                        $do!(2, sums[2]);
                        if PANELS == 2 {
                            $do!(3, sums[3]);
                        }
                    }
                };
            }
            if self.zero {
                zero!(0 1 2 3);
            } else if self.load {
                each_sum!(load);
            }
            for _ in 0..self.tiles {
                load_past!(4, a[0]);
                load!(6, b[0]);
                product!(F16, 0, 4, 6);
                if PANELS == 2 {
                    load!(7, b[1]);
                    ahead!();
                    product!(F16, 1, 4, 7);
                }
                if GROUPS == 2 {
                    load_past!(5, a[1]);
                    ahead!();
                    product!(F16, 2, 5, 6);
                    if PANELS == 2 {
                        ahead!();
                        product!(F16, 3, 5, 7);
                    }
                }
                ahead!();
                a = a.map(|tile| tile.add(size_of::<TokenTile>()));
                b = b.map(|tile| tile.add(K::BLOCKS * size_of::<HalfTile>()));
            }
            if self.store {
                each_sum!(store);
            }
        }
    }
}
