//! What an instruction set must be able to do, and the pieces of work it is handed.
//!
//! A kernel prepares tokens (once per run), expands blocks of codes into the form it multiplies (a *slab*: a few
//! panels, a stretch of K, small enough for the L1 cache), and multiplies tokens with a slab into sums. The schedule
//! decides what is done when; a kernel never sees a strategy. Only one hint reaches it: an [`Expansion`] of a later
//! slab that it may advance between its products, so that dequantisation fills the gaps that matrix instructions leave.

use std::ops::Range;

use bytemuck::Pod;

use super::expansion::{Expand, Expansion, Pace};
use super::finish::Finish;
use super::pack::chunk_bytes;
use super::slab::SlabView;
use super::source::GroupTokens;
use super::sums::Lanes;

/// Calls what is compiled for a kind of scales, and for so many tokens: one to four, or to eight where the loops have
/// room for them.
macro_rules! for_tokens {
    ($scaling:expr, $tokens:expr, $most:expr, $loops:ident::$run:ident($argument:expr)) => {
        match $scaling.is_mx() {
            true => for_tokens!(@ true, $tokens, $most, $loops::$run($argument)),
            false => for_tokens!(@ false, $tokens, $most, $loops::$run($argument)),
        }
    };
    (@ $mx:literal, $tokens:expr, $most:expr, $loops:ident::$run:ident($argument:expr)) => {
        match $tokens {
            1 => $loops::$run::<$mx, 1>($argument),
            2 => $loops::$run::<$mx, 2>($argument),
            3 => $loops::$run::<$mx, 3>($argument),
            4 => $loops::$run::<$mx, 4>($argument),
            5 if $most >= 5 => $loops::$run::<$mx, 5>($argument),
            6 if $most >= 6 => $loops::$run::<$mx, 6>($argument),
            7 if $most >= 7 => $loops::$run::<$mx, 7>($argument),
            8 if $most >= 8 => $loops::$run::<$mx, 8>($argument),
            more => unreachable!("{more} tokens at once"),
        }
    };
}
pub(super) use for_tokens;

/// One instruction set's way with one kind of activations.
pub(super) trait Kernel: Expand + Sync + Sized {
    /// What prepared tokens are made of.
    type Token: Pod + Send + Sync;

    /// Prepared rows come in groups of so many; missing ones are zero.
    const ROWS: usize;
    /// Blocks along K come in groups of so many; missing ones are blank.
    const BLOCKS: usize;
    /// Panels that are multiplied together.
    const PANELS: usize;
    /// How many rows share what [`Self::stream`] does once per block, where it takes tiles of any shape and strategy;
    /// otherwise it takes certain shapes of one slab, in ping-pong.
    const STREAM_ROWS: Option<usize> = None;
    /// The depth at which [`Self::resident`] is asked, if ever.
    const RESIDENT: Option<usize> = None;

    /// Prepared rows that one token becomes: their sums are added in the end.
    fn parts(&self) -> usize {
        1
    }

    /// Token elements that a group of [`Self::ROWS`] rows takes, K being so many blocks.
    fn group_len(blocks: usize) -> usize;

    /// Writes one group of prepared rows, zeros where there are no tokens or no K; `group` counts groups of rows.
    fn prepare(&self, source: GroupTokens<'_>, group: usize, out: &mut [Self::Token]);

    /// What the sums must be multiplied with, beside the global scales: a power of two.
    fn unit(&self, _: GroupTokens<'_>) -> f64 {
        1.0
    }

    /// Multiplies tokens with a slab, advancing the expansion of a later one between products if it can.
    fn multiply(&self, product: Product<'_, Self>, ahead: &mut Expansion<'_, Self>);

    /// Computes all sums of a tile in one go, if this kernel has a tighter loop for its shape; says whether it did.
    fn stream(&self, _: TileStream<'_, Self>) -> bool {
        false
    }

    /// The same for a tile of any number of panels and the depth [`Self::RESIDENT`].
    fn resident(&self, _: TileStream<'_, Self>) -> bool {
        false
    }

    /// Makes a thread ready for products, until what is returned is dropped.
    fn enter(&self) -> impl Sized {}

    /// Writes a tile of results: [`Finish::write`], compiled for this instruction set.
    fn finish(&self, finish: Finish<'_>);
}

/// Tokens times a slab.
pub(super) struct Product<'a, K: Kernel> {
    /// Every group of rows of the tile, `group_len` elements each.
    pub tokens: &'a [K::Token],
    /// Elements of a group of rows.
    pub group_len: usize,
    /// Blocks along K, from the first: where the slab stands.
    pub blocks: Range<usize>,
    /// The slab: for each panel, `blocks` (rounded up to [`Kernel::BLOCKS`]) blocks.
    pub slab: SlabView<'a, K::Block>,
    /// For each panel, the sums of every row of every group.
    pub sums: &'a mut [Lanes],
    /// Whether the sums start at zero here (they hold garbage then).
    pub fresh: bool,
    /// Whether this is the last stretch of K.
    pub last: bool,
    /// Whether the tile is this one slab wide: then all products from the fresh to the last one are about the same
    /// sums, one after the other on the same thread, and sums may stay in registers in between.
    pub alone: bool,
}

impl<K: Kernel> Product<'_, K> {
    /// Blocks of each panel of the slab.
    pub(super) fn depth(&self) -> usize {
        self.blocks.len().next_multiple_of(K::BLOCKS)
    }

    /// Rows of the tile, whole groups.
    pub(super) fn rows(&self) -> usize {
        self.tokens.len() / self.group_len * K::ROWS
    }

    /// Panels of the slab.
    pub(super) fn panels(&self) -> usize {
        self.slab.panels
    }
}

/// A kernel whose sums of some rows and a panel or two stay in registers along a slab.
pub(super) trait Banded: Kernel {
    /// The most groups of rows of a band.
    const GROUPS: usize;
    /// The most panels of a band: one or two.
    const TOGETHER: usize;

    /// Multiplies a band.
    fn band<const PANELS: usize>(&self, band: Band<'_, Self, PANELS>);
}

/// Some groups of rows and `PANELS` panels along a slab's K, and where their sums stand.
pub(super) struct Band<'a, K: Kernel, const PANELS: usize> {
    /// The groups of rows, `group_len` elements each.
    pub tokens: &'a [K::Token],
    pub group_len: usize,
    /// Blocks along K, from the first: where the slab stands.
    pub blocks: Range<usize>,
    /// For each panel, those blocks.
    pub weights: [&'a [K::Block]; PANELS],
    /// For each panel, the sums of every row.
    pub sums: [&'a mut [Lanes]; PANELS],
    /// Whether the sums start at zero here (they hold garbage then).
    pub fresh: bool,
}

impl<K: Banded> Product<'_, K> {
    /// Multiplies every group of rows with every panel, band by band; what is ahead is expanded in between.
    pub(super) fn by_bands(mut self, kernel: &K, ahead: &mut Expansion<'_, K>) {
        let (groups, panels) = (self.rows() / K::ROWS, self.panels());
        let bands = groups.div_ceil(K::GROUPS);
        let mut pace = Pace::new(ahead.remaining(), bands * panels.div_ceil(K::TOGETHER));
        for panel in (0..panels).step_by(K::TOGETHER) {
            for band in 0..bands {
                // As even as can be: a band of few rows has too few sums to keep the units busy.
                let band = band * groups / bands..(band + 1) * groups / bands;
                match K::TOGETHER.min(panels - panel) {
                    1 => kernel.band::<1>(self.band(band, panel)),
                    _ => kernel.band::<2>(self.band(band, panel)),
                }
                (0..pace.due()).for_each(|_| ahead.step());
            }
        }
    }

    /// Some groups of rows, and panels from this one on.
    fn band<const PANELS: usize>(&mut self, groups: Range<usize>, panel: usize) -> Band<'_, K, PANELS> {
        let count = self.rows();
        let mut panels = self.sums.chunks_exact_mut(count).skip(panel);
        let rows = groups.start * K::ROWS..groups.end * K::ROWS;
        Band {
            tokens: &self.tokens[groups.start * self.group_len..groups.end * self.group_len],
            group_len: self.group_len,
            blocks: self.blocks.clone(),
            weights: std::array::from_fn(|index| &self.slab.panel(panel + index)[..self.blocks.len()]),
            sums: std::array::from_fn(|_| panels.next().map(|sums| &mut sums[rows.clone()]).unwrap_or_default()),
            fresh: self.fresh,
        }
    }
}

/// A whole tile along all of K, in ping-pong with two stages.
pub(super) struct TileStream<'a, K: Kernel> {
    /// Every group of rows of the tile, `group_len` elements each.
    pub tokens: &'a [K::Token],
    pub group_len: usize,
    /// Rows of the tile that tokens have become, without those that fill a group up.
    pub rows: usize,
    /// For each panel, its packed bytes; panels stand in the order of their sums.
    pub panels: Vec<&'a [u8]>,
    /// What this thread will most likely stream next, panel for panel; empty if that is not known.
    pub next: Vec<&'a [u8]>,
    /// A page for each panel, to expand into.
    pub ring: &'a mut [K::Block],
    /// For each panel, the sums of every row; garbage at first.
    pub sums: &'a mut [Lanes],
}

/// Some rows of a tile and one of its panels along all of K, from packed bytes.
pub(super) struct PanelStream<'a, K: Kernel> {
    /// Every group of rows, `group_len` elements each.
    pub tokens: &'a [K::Token],
    pub group_len: usize,
    /// The panel's packed bytes, whole chunks.
    pub panel: &'a [u8],
    /// What is read after it, if that is known.
    pub next: Option<&'a [u8]>,
    /// The sums of every row; garbage at first.
    pub sums: &'a mut [Lanes],
}

impl<K: Kernel> TileStream<'_, K> {
    /// Hands out one panel after the other with `together` rows at a time, as evenly as can be, if panels have whole
    /// chunks; says whether they have. What some rows have read is near when the next ones come.
    pub(super) fn by_panels(self, mx: bool, together: usize, each: impl Fn(PanelStream<'_, K>)) -> bool {
        let Self { tokens, group_len, rows, panels, next, sums, .. } = self;
        if panels.iter().any(|panel| !panel.len().is_multiple_of(chunk_bytes(mx))) {
            return false;
        }
        let together = rows.div_ceil(rows.div_ceil(together));
        let mut later = panels.iter().chain(&next).copied().skip(1);
        for (panel, sums) in panels.iter().zip(sums.chunks_exact_mut(rows)) {
            let next = later.next();
            for (sums, tokens) in sums.chunks_mut(together).zip(tokens.chunks(together * group_len)) {
                each(PanelStream { tokens, group_len, panel, next, sums });
            }
        }
        true
    }
}
