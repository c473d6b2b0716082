//! The plain product with FP8 weights: C = A·Wᵀ + bias, on every instruction set.
//!
//! Weights lie in panels of 16 columns like NVFP4's, in blocks of 16 of K: for each k one byte per column, the k of
//! each eight in the order 0 2 4 6 1 3 5 7 in which the kernels for NVFP4 have theirs. So everything behind the
//! expansion of a block is theirs: tokens are prepared by the same functions and multiplied with a slab of expanded
//! blocks by the same loops. A tile is some tokens by the panels that a kernel multiplies together, and all of K.
//! Vector units compute up to four tokens without a slab ([`ByteKernel::few_bytes`]): an expanded block would be used
//! too little.
//!
//! Powers of two of MXFP8 are multiplied into the numbers, which is exact. Scales of blocks multiply the sums of their
//! stretch of K, which starts from zero, and are added up; those of rows multiply the finished sums ([`RowScales`]). A
//! last panel with fewer columns is filled up with zeros.

use std::ops::Range;
use std::sync::Mutex;

use format::{BLOCK, Fp8Matrix, Fp8Scales, MX_BLOCK};
use half::f16;
use memmap2::{Mmap, MmapMut};
use op::fp8::RowScales;
use op::interrupt::Interrupt;
use op::{Activations, Error, Result, Target, Team};

use super::environment::in_default_mode;
use super::expansion::Expansion;
use super::kernel::{Kernel, Product};
use super::memory::{Arena, Parts};
use super::pack::{COLUMNS, LANE_ORDER};
use super::scale::Scale;
use super::slab::Slab;
use super::source::GroupTokens;
use super::sums::Lanes;
use super::target::SharedTarget;

/// Bytes of a block: 16 of K by 16 columns.
pub(super) const BYTES: usize = BLOCK * COLUMNS;

/// Blocks along K that are expanded at a time: two panels of them as f32 fit L1.
const DEPTH: usize = 8;

/// Tokens of a tile, for which weights are expanded once: whole groups of rows of every kernel.
const TILE_TOKENS: usize = 96;

/// Pieces of tokens to be prepared, for each thread.
const PREPARED_PIECES: usize = 4;

/// A kernel that expands FP8 weights, too.
pub(super) trait ByteKernel: Kernel {
    /// Expands one block: rows of 16 e4m3 numbers, each times its column's power of two if there are exponents.
    fn expand_bytes(&self, exponents: Option<&[u8; COLUMNS]>, numbers: &[u8; BYTES], out: &mut Self::Block);

    /// Computes the sums of a few tokens along a stretch of K without a slab, if it has a loop for so few; says whether
    /// it did.
    fn few_bytes<const PANELS: usize>(&self, _: FewBytes<'_, Self::Token, PANELS>) -> bool {
        false
    }

    /// What sums of such weights must be multiplied with, beside their scales: a power of two.
    fn byte_unit(&self, source: GroupTokens<'_>) -> f64;
}

/// Some groups of rows and `PANELS` panels along a stretch of K, and where their sums go.
pub(super) struct FewBytes<'a, T, const PANELS: usize> {
    /// The groups of rows, `group_len` elements each.
    pub tokens: &'a [T],
    pub group_len: usize,
    /// The stretch's first block of K.
    pub start: usize,
    /// For each panel, its blocks.
    pub numbers: [&'a [[u8; BYTES]]; PANELS],
    /// For each panel, the exponents of every two blocks, or none.
    pub exponents: [&'a [[u8; COLUMNS]]; PANELS],
    /// For each panel, the sums of every row; garbage at first.
    pub sums: [&'a mut [Lanes]; PANELS],
}

/// An FP8 matrix packed for every CPU backend, with its bias.
#[derive(Debug)]
pub struct Fp8Panels {
    n: usize,
    k: usize,
    /// For each panel its blocks along K.
    numbers: Mmap,
    /// Of MXFP8, for each panel and 32 of K: the exponent bits of each column's power of two, relative to its row's.
    exponents: Vec<[u8; COLUMNS]>,
    /// Blocks of K that share a scale per block, and for each panel and such stretch its columns' scales, relative to
    /// the row's.
    stretch: usize,
    factors: Vec<[f32; COLUMNS]>,
    /// What finished sums are multiplied with.
    rows: Vec<f64>,
    bias: Vec<f32>,
}

impl Fp8Panels {
    /// Packs a matrix and the bias of its rows, if there is one.
    pub fn new(matrix: &Fp8Matrix<'_>, bias: Option<&[f32]>, team: &Team) -> Result<Self> {
        let (n, k) = (matrix.rows(), matrix.k());
        if let Some(bias) = bias.filter(|bias| bias.len() != n) {
            return Err(Error::BiasLength { matrix: "the FP8 weight", length: bias.len(), n });
        }
        let panels = n.div_ceil(COLUMNS);
        let bytes = panels * COLUMNS * k;
        let failed = |source| Error::Memory { bytes, what: "packed weights", source };
        let mut numbers = MmapMut::map_anon(bytes.max(1)).map_err(failed)?;
        // Where large pages are refused, all still works.
        #[cfg(target_os = "linux")]
        let _ = numbers.advise(memmap2::Advice::HugePage);
        team.for_each(numbers[..bytes].chunks_mut(COLUMNS * k).enumerate(), |(panel, out)| {
            pack_panel(matrix, panel * COLUMNS, out);
        });
        let scales = (0..n).map(|row| RowScales::of(matrix, row)).collect::<Result<Vec<_>>>()?;
        let columns = |panel: usize, segment: usize| -> [f32; COLUMNS] {
            std::array::from_fn(|at| scales.get(panel * COLUMNS + at).map_or(0.0, |scales| scales.segments[segment]))
        };
        let segments = k.div_ceil(matrix.segment());
        let all = || (0..panels).flat_map(|panel| (0..segments).map(move |segment| (panel, segment)));
        let (mut exponents, mut factors, mut stretch) = (Vec::new(), Vec::new(), k / BLOCK);
        match matrix.scales() {
            Fp8Scales::Matrix(_) | Fp8Scales::Rows(_) => {}
            Fp8Scales::Blocks { .. } => {
                stretch = matrix.segment() / BLOCK;
                factors = all().map(|(panel, segment)| columns(panel, segment)).collect();
            }
            // A block of zeros has 0 as its power, whose exponent bits are 0 as well.
            Fp8Scales::Mx(_) => {
                let bits = |power: f32| (power.to_bits() >> 23) as u8;
                exponents = all().map(|(panel, segment)| columns(panel, segment).map(bits)).collect();
            }
        }
        let rows = scales.iter().map(|scales| scales.row).collect();
        let bias = bias.map_or_else(Vec::new, <[f32]>::to_vec);
        let numbers = numbers.make_read_only().map_err(failed)?;
        Ok(Self { n, k, numbers, exponents, stretch, factors, rows, bias })
    }

    /// `(n, k)`.
    pub fn shape(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    /// The bytes they take.
    pub fn bytes(&self) -> usize {
        self.numbers.len()
            + size_of_val(&self.exponents[..])
            + size_of_val(&self.factors[..])
            + size_of_val(&self.rows[..])
            + size_of_val(&self.bias[..])
    }

    /// The matrix that was packed, read back with its bias: the same numbers, and scales that are worth the same. Those
    /// of blocks come per row, and those of stretches of zeros are whatever they may be.
    pub fn unpacked(&self) -> Result<(Fp8Matrix<'static>, Option<&[f32]>)> {
        let (n, k) = (self.n, self.k);
        let mut codes = vec![0; n * k];
        for (row, out) in codes.chunks_exact_mut(k).enumerate() {
            for (block, out) in out.chunks_exact_mut(BLOCK).enumerate() {
                let packed = self.blocks(row / COLUMNS, block..block + 1)[0].as_chunks::<COLUMNS>().0;
                for (at, packed) in packed.iter().enumerate() {
                    out[at / 8 * 8 + LANE_ORDER[at % 8]] = packed[row % COLUMNS];
                }
            }
        }
        // For each row, its column of what each of its segments has.
        fn by_row<T: Copy>(n: usize, segments: usize, of: &[[T; COLUMNS]]) -> impl Iterator<Item = (usize, T)> {
            let places = (0..n).flat_map(move |row| (0..segments).map(move |segment| (row, segment)));
            places.map(move |(row, at)| (row, of[row / COLUMNS * segments + at][row % COLUMNS]))
        }
        let scales = if !self.exponents.is_empty() {
            let exponents = by_row(n, k / MX_BLOCK, &self.exponents).map(|(row, bits)| match bits {
                0 => 0,
                bits => (self.rows[row].log2() as i32 + i32::from(bits)) as u8,
            });
            Fp8Scales::Mx(exponents.collect())
        } else if !self.factors.is_empty() {
            let factors = by_row(n, (k / BLOCK).div_ceil(self.stretch), &self.factors);
            let scales = factors.map(|(row, factor)| (self.rows[row] * f64::from(factor)) as f32).collect();
            Fp8Scales::Blocks { block: [1, self.stretch * BLOCK], scales }
        } else {
            Fp8Scales::Rows(self.rows.iter().map(|&row| row as f32).collect())
        };
        Ok((Fp8Matrix::new(n, k, codes, scales)?, Some(&self.bias[..]).filter(|bias| !bias.is_empty())))
    }

    /// Computes dense tokens with the CPU backend of this name.
    pub fn run(&self, backend: &str, tokens: &Activations<'_>, target: Target<'_>, team: &Team) -> Result<()> {
        let mismatch = |what, found: String, expected: String| Error::Mismatch { group: 0, what, found, expected };
        let Some(found) = super::table().iter().find(|each| each.name() == backend) else {
            let expected = "one of the processor's".to_owned();
            return Err(mismatch("the backend for FP8 weights", backend.to_owned(), expected));
        };
        found.available()?;
        let Activations::Dense(_) = tokens else {
            let expected = "f16, bf16 or f32".to_owned();
            return Err(mismatch("the activations' element type", tokens.element().to_string(), expected));
        };
        if tokens.k() != self.k {
            return Err(mismatch("the activations' k", tokens.k().to_string(), self.k.to_string()));
        }
        let length = tokens.rows().saturating_mul(self.n);
        if target.len() != length {
            return Err(mismatch("the output's length", target.len().to_string(), length.to_string()));
        }
        let run = Fp8Run { panels: self, tokens, target, team };
        // SAFETY: the backend is available, tokens have the weights' k, and there is room for every result.
        unsafe { found.run_fp8(run) }
    }

    /// Some blocks of a panel.
    fn blocks(&self, panel: usize, blocks: Range<usize>) -> &[[u8; BYTES]] {
        &self.numbers.as_chunks().0[panel * (self.k / BLOCK)..][blocks]
    }

    /// The exponents of a panel's block, if its numbers have some.
    fn exponents(&self, panel: usize, block: usize) -> Option<&[u8; COLUMNS]> {
        self.exponents.get(panel * (self.k / MX_BLOCK) + block * BLOCK / MX_BLOCK)
    }
}

/// Packs the rows of a panel, from `first` on.
fn pack_panel(matrix: &Fp8Matrix<'_>, first: usize, out: &mut [u8]) {
    for column in 0..COLUMNS.min(matrix.rows() - first) {
        let blocks = matrix.row_codes(first + column).as_chunks::<BLOCK>().0.iter();
        for (block, out) in blocks.zip(out.chunks_exact_mut(BYTES)) {
            for row in 0..BLOCK {
                out[row * COLUMNS + column] = block[row / 8 * 8 + LANE_ORDER[row % 8]];
            }
        }
    }
}

/// Operands that fit each other.
pub(super) struct Fp8Run<'a, 'i, 'o> {
    panels: &'a Fp8Panels,
    pub tokens: &'a Activations<'i>,
    target: Target<'o>,
    team: &'a Team,
}

/// Computes with one kernel.
pub(super) fn run<K: ByteKernel>(kernel: &K, run: Fp8Run<'_, '_, '_>) -> Result<()> {
    let Fp8Run { panels, tokens: activations, mut target, team } = run;
    let m = activations.rows();
    let largest = op::operands::largest_of(std::slice::from_ref(activations), team)[0];
    let source = GroupTokens { activations, largest };
    let arena = team.kept::<Arena>();
    let group_len = K::group_len(panels.k / BLOCK);
    let groups = (m * kernel.parts()).div_ceil(K::ROWS);
    let mut prepared = arena.take::<K::Token>(groups * group_len)?;
    let mut pieces: Vec<_> = prepared.chunks_exact_mut(group_len).enumerate().collect();
    let piece = groups.div_ceil(PREPARED_PIECES * team.count()).max(1);
    team.for_each(pieces.chunks_mut(piece), |piece| {
        in_default_mode(|| piece.iter_mut().for_each(|(group, out)| kernel.prepare(source, *group, out)));
    });
    drop(pieces);
    let unit = kernel.byte_unit(source) * activations.global().value();
    let target = SharedTarget::new(&mut target, m, panels.n);
    let job = Job { kernel, panels, tokens: &prepared, group_len, unit, target: &target };
    // Fewer panels at a time where there would not be enough tiles for all threads.
    let all = panels.n.div_ceil(COLUMNS);
    let together = all.div_ceil(team.count()).clamp(1, K::PANELS);
    let tiles = (0..m).step_by(TILE_TOKENS).flat_map(|token| {
        let tokens = token..m.min(token + TILE_TOKENS);
        (0..all).step_by(together).map(move |panel| (tokens.clone(), panel..all.min(panel + together)))
    });
    let workers = team.count().min(m.div_ceil(TILE_TOKENS) * all.div_ceil(together)).max(1);
    let rows = (m.min(TILE_TOKENS) * kernel.parts()).next_multiple_of(K::ROWS);
    let mut slabs = Parts::<K::Block>::at_pages(&arena, vec![Slab::<K::Block>::room(0, together, DEPTH); workers])?;
    let mut sums = Parts::<Lanes>::at_pages(&arena, vec![2 * rows * together; workers])?;
    let scratch = Mutex::new(slabs.each_mut().zip(sums.each_mut()));
    let tiles = Mutex::new(tiles);
    let interrupt = Interrupt::of_this_call();
    team.run(|| {
        in_default_mode(|| {
            let Some((slab, sums)) = scratch.lock().ok().and_then(|mut scratch| scratch.next()) else { return };
            let mut slab = Slab::new(slab, 0, DEPTH);
            let _ready = kernel.enter();
            let next = || tiles.lock().ok()?.next().filter(|_| !interrupt.is_raised());
            std::iter::from_fn(next).for_each(|(tokens, panels)| job.tile(tokens, panels, &mut slab, sums));
        });
    });
    interrupt.check()
}

/// What all tiles have in common.
struct Job<'a, K: Kernel> {
    kernel: &'a K,
    panels: &'a Fp8Panels,
    tokens: &'a [K::Token],
    group_len: usize,
    unit: f64,
    target: &'a SharedTarget<'a>,
}

impl<K: ByteKernel> Job<'_, K> {
    /// Computes some tokens and panels along all of K.
    fn tile(&self, tokens: Range<usize>, panels: Range<usize>, slab: &mut Slab<'_, K::Block>, sums: &mut [Lanes]) {
        let parts = self.kernel.parts();
        let rows = (tokens.len() * parts).next_multiple_of(K::ROWS);
        let (totals, parted) = sums.split_at_mut(rows * panels.len());
        let parted = &mut parted[..rows * panels.len()];
        let blocks = self.panels.k / BLOCK;
        let first = tokens.start * parts / K::ROWS * self.group_len;
        let prepared = &self.tokens[first..first + rows / K::ROWS * self.group_len];
        for (index, start) in (0..blocks).step_by(self.panels.stretch).enumerate() {
            let stretch = start..blocks.min(start + self.panels.stretch);
            let scaled = !self.panels.factors.is_empty();
            let sums = if scaled { &mut *parted } else { &mut *totals };
            if !self.few(prepared, &panels, &stretch, sums, rows) {
                self.by_slabs(prepared, &panels, &stretch, slab, sums);
            }
            if scaled {
                self.add(&panels, index, totals, parted, rows);
            }
        }
        self.finish(tokens, panels, totals, rows);
    }

    /// Offers a stretch of K to the kernel's loop for few tokens, two panels at a time; says whether it took it.
    fn few(
        &self,
        tokens: &[K::Token],
        panels: &Range<usize>,
        stretch: &Range<usize>,
        sums: &mut [Lanes],
        rows: usize,
    ) -> bool {
        let mut sums = sums.chunks_exact_mut(rows);
        panels.clone().step_by(2).all(|panel| match panels.end - panel {
            1 => self.kernel.few_bytes::<1>(self.few_bytes(tokens, panel, stretch, &mut sums)),
            _ => self.kernel.few_bytes::<2>(self.few_bytes(tokens, panel, stretch, &mut sums)),
        })
    }

    fn few_bytes<'t, const PANELS: usize>(
        &'t self,
        tokens: &'t [K::Token],
        panel: usize,
        stretch: &Range<usize>,
        sums: &mut impl Iterator<Item = &'t mut [Lanes]>,
    ) -> FewBytes<'t, K::Token, PANELS> {
        let of = |panel: usize| {
            let pairs = self.panels.k / MX_BLOCK;
            self.panels.exponents.get(panel * pairs..(panel + 1) * pairs).unwrap_or_default()
        };
        FewBytes {
            tokens,
            group_len: self.group_len,
            start: stretch.start,
            numbers: std::array::from_fn(|at| self.panels.blocks(panel + at, stretch.clone())),
            exponents: std::array::from_fn(|at| of(panel + at)),
            sums: std::array::from_fn(|_| sums.next().unwrap_or_default()),
        }
    }

    /// Expands and multiplies a stretch of K slab by slab.
    fn by_slabs(
        &self,
        tokens: &[K::Token],
        panels: &Range<usize>,
        stretch: &Range<usize>,
        slab: &mut Slab<'_, K::Block>,
        sums: &mut [Lanes],
    ) {
        for block in stretch.clone().step_by(DEPTH) {
            let depth = block..stretch.end.min(block + DEPTH);
            self.expand(panels, &depth, slab);
            let product = Product {
                tokens,
                group_len: self.group_len,
                slab: slab.view(panels.len()),
                sums: &mut *sums,
                fresh: depth.start == stretch.start,
                last: depth.end == stretch.end,
                alone: false,
                blocks: depth,
            };
            self.kernel.multiply(product, &mut Expansion::nothing(self.kernel));
        }
    }

    fn expand(&self, panels: &Range<usize>, blocks: &Range<usize>, slab: &mut Slab<'_, K::Block>) {
        let (out, stride) = slab.panels();
        let depth = blocks.len().next_multiple_of(K::BLOCKS);
        for (panel, out) in panels.clone().zip(out.chunks_mut(stride)) {
            let numbers = self.panels.blocks(panel, blocks.clone());
            for ((block, numbers), out) in blocks.clone().zip(numbers).zip(&mut *out) {
                self.kernel.expand_bytes(self.panels.exponents(panel, block), numbers, out);
            }
            out[blocks.len()..depth].fill(K::BLANK);
        }
    }

    /// Adds the sums of a stretch of K to the totals, times its scales.
    fn add(&self, panels: &Range<usize>, stretch: usize, totals: &mut [Lanes], parted: &[Lanes], rows: usize) {
        let stretches = (self.panels.k / BLOCK).div_ceil(self.panels.stretch);
        let sums = totals.chunks_exact_mut(rows).zip(parted.chunks_exact(rows));
        for (panel, (totals, parted)) in panels.clone().zip(sums) {
            let factors = &self.panels.factors[panel * stretches + stretch];
            for (total, part) in totals.iter_mut().zip(parted) {
                for ((total, part), factor) in total.0.iter_mut().zip(part.0).zip(factors) {
                    *total = if stretch == 0 { part * factor } else { *total + part * factor };
                }
            }
        }
    }

    /// Scales, biases, rounds and stores a tile.
    fn finish(&self, tokens: Range<usize>, panels: Range<usize>, totals: &[Lanes], rows: usize) {
        let (parts, half) = (self.kernel.parts(), |values: &[f32; COLUMNS]| values.map(f16::from_f32));
        for (panel, totals) in panels.zip(totals.chunks_exact(rows)) {
            let columns = panel * COLUMNS..self.panels.n.min((panel + 1) * COLUMNS);
            let mut factors = [[0.0; COLUMNS]; 3];
            for (at, row) in self.panels.rows[columns.clone()].iter().enumerate() {
                let scale = Scale::new(self.unit * row).factors();
                factors.iter_mut().zip(scale).for_each(|(factors, factor)| factors[at] = factor);
            }
            let mut bias = [0.0; COLUMNS];
            if let Some(own) = self.panels.bias.get(columns.clone()) {
                bias[..own.len()].copy_from_slice(own);
            }
            for (token, own) in tokens.clone().zip(totals.chunks_exact(parts)) {
                let mut values = own[0].0;
                for part in &own[1..] {
                    values.iter_mut().zip(part.0).for_each(|(value, part)| *value += part);
                }
                for (at, value) in values.iter_mut().enumerate() {
                    *value = *value * factors[0][at] * factors[1][at] * factors[2][at] + bias[at];
                }
                // SAFETY: tiles do not overlap, each is computed by one thread, and this is a row of this tile, with
                // columns of it only.
                unsafe { self.target.store(token, columns.clone(), &values, &half) };
            }
        }
    }
}
