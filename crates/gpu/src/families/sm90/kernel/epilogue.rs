//! From complete sums to C: scale, gate, round, store.
//!
//! A thread holds, for each eight tokens, two neighbouring tokens of one column; the eight lanes beside it hold the
//! next columns. *Direct* stores write each element from where it is. *Staged* ones turn the warpgroup's values around
//! in shared memory, by `stmatrix` where they have 16 bits, so that threads can write sixteen bytes of a row of C each.

use std::ops::Range;

use ptx::instr::ShuffleMode;
use ptx::{Addr, Bf16x2, Builder, F16x2, F32, Global, Pred, Reg, Shared, SharedRegion, SpecialRegister, U32, U64};

use super::beside::{Asked, Beside};
use super::consume::Consumer;
use super::pipeline::Pipeline;
use super::work::{Placed, Tile};
use super::{ALL_CONSUMERS, MultiplySpec, Parts, Products, STRIP_COLUMNS, Tokens};
use crate::phases::gates::{Delta, Gates, RowTerms};
use crate::phases::groups::Groups;
use crate::phases::store::{element_address, store_element};
use op::{Epilogue, Output, Schedule};

/// The hardware barrier of the first consumer warpgroup; the others' follow. The one before is [`ALL_CONSUMERS`].
const FIRST_CONSUMER: u32 = 2;

/// Shared memory for a tile that has left the pipeline: the stages themselves, if nobody will fill them any more.
pub(super) fn scratch(k: &mut Builder, config: MultiplySpec, pipe: &Pipeline, name: &str, bytes: u32) -> SharedRegion {
    if config.schedule != Schedule::Persistent && bytes <= pipe.tokens.bytes {
        SharedRegion { bytes, ..pipe.tokens }
    } else {
        k.shared(name, bytes, 16)
    }
}

/// The way from sums to C.
pub(super) struct Finish {
    config: MultiplySpec,
    /// Where values are turned around, for each warpgroup.
    staging: Option<SharedRegion>,
    /// Where t of adapters beside the second product of few tokens is, for each warpgroup.
    shrunk: Option<SharedRegion>,
}

/// What a thread holds of one column.
struct Strip {
    /// First column of the warp's eight, from the warpgroup's first.
    column: u32,
    /// Gate and up sums of pairs of tokens, eight tokens apart.
    gate: Vec<[Reg<F32>; 2]>,
    up: Vec<[Reg<F32>; 2]>,
}

/// The tokens that this block finishes.
struct Rows {
    first: Reg<U32>,
    count: Reg<U32>,
}

impl Finish {
    pub fn declare(k: &mut Builder, config: MultiplySpec, pipe: &Pipeline) -> Self {
        let staging = Self::scratch_bytes(&config).map(|bytes| scratch(k, config, pipe, "staging", bytes));
        let shrunk = config.shrunk_bytes();
        let shrunk = (shrunk > 0).then(|| k.shared("t", shrunk, 16));
        Finish { config, staging, shrunk }
    }

    /// Bytes in which values are turned around.
    pub fn scratch_bytes(config: &MultiplySpec) -> Option<u32> {
        let finish = Finish { config: *config, staging: None, shrunk: None };
        (config.epilogue != Epilogue::Direct).then(|| config.warpgroups() * finish.staging_bytes())
    }

    /// Tokens that a block finishes at most.
    fn tokens(&self) -> u32 {
        self.config.tokens / self.config.blocks_per_tile()
    }

    /// Columns of a warpgroup.
    fn columns(&self) -> u32 {
        self.config.piece()
    }

    fn element_bytes(&self) -> u32 {
        self.config.output.bytes() as u32
    }

    /// Bytes from one token to the next where values are turned around: one access more than they need, against bank
    /// conflicts.
    fn pitch(&self) -> u32 {
        self.columns() * self.element_bytes() + 16
    }

    fn staging_bytes(&self) -> u32 {
        self.tokens() * self.pitch()
    }

    /// What the sums of a tile will be finished with.
    pub fn gates(&self, k: &mut Builder, parts: &Parts, consumer: &Consumer, tile: &Tile) -> TileGates {
        let single = self.config.products == Products::Single;
        let gates = Gates::new(k, &tile.owner, single, self.config.function, parts.work.clamp);
        let column = self.column(k, consumer, tile);
        let of_columns = self.of_columns(k, consumer, tile, (gates, column));
        let biases = self.biases(k, consumer, tile, column);
        // What a block keeps of few tokens is near.
        let chosen = if self.config.finds_tiles() { Vec::new() } else { self.chosen(k, consumer, tile) };
        let scales = if self.config.foresees_scales() { self.scales(k, consumer, tile) } else { Vec::new() };
        let beside = self.beside(k, parts, consumer, tile);
        let asked = beside.map(|beside| beside.ask(k));
        TileGates { gates, of_columns, biases, chosen, scales, asked, deltas: Vec::new() }
    }

    /// What the rows of the tokens that this block finishes were divided by, where they were rounded to e4m3: a lane
    /// has every thirty-second's, and behind the last token that one's.
    fn scales(&self, k: &mut Builder, consumer: &Consumer, tile: &Tile) -> Vec<Reg<F32>> {
        if self.config.element != Tokens::E4m3 {
            return Vec::new();
        }
        // They come from the kernel before this one, which not everybody has waited for.
        k.grid_dependency_wait();
        let rows = self.rows(k, tile);
        // A tile may have no tokens, and its first one is there nevertheless.
        let some = k.max(tile.tokens, 1);
        let end = k.add(tile.first_token, some);
        let last = k.sub(end, 1);
        let own = k.add(rows.first, consumer.lane);
        let of = |first: u32| {
            let row = k.add(own, first);
            let row = k.min(row, last);
            tile.owner.row_scale(k, row)
        };
        (0..self.tokens()).step_by(32).filter_map(of).collect()
    }

    /// The adapters of the tile's tokens, if they may have some: a lane has every thirty-second, and behind the last
    /// token that one's.
    fn chosen(&self, k: &mut Builder, consumer: &Consumer, tile: &Tile) -> Vec<Reg<U32>> {
        if !self.adapted() {
            return Vec::new();
        }
        let last = k.sub(tile.tokens, 1);
        let of = |first: u32| {
            let token = k.add(consumer.lane, first);
            let token = k.min(token, last);
            let row = k.add(tile.first_token, token);
            tile.owner.chosen(k, row)
        };
        (0..self.tokens()).step_by(32).filter_map(of).collect()
    }

    /// Registers for what is added to the only row of a tile of few tokens, in the thread's column of each strip and
    /// for each matrix, where the launch before leaves that.
    pub fn foreseen(&self, k: &mut Builder) -> Vec<Vec<Reg<F32>>> {
        if !self.adapted() || !self.config.finds_tiles() || self.shrunk.is_some() {
            return Vec::new();
        }
        let matrices = if self.config.products == Products::Single { 1 } else { 2 };
        let strip = |_| (0..matrices).map(|_| k.register()).collect();
        (0..self.columns() / STRIP_COLUMNS).map(strip).collect()
    }

    /// Before a tile's last stage: waits for that launch, and asks for it. What is there of a token without an adapter
    /// is not looked at.
    pub fn foresee(&self, k: &mut Builder, (consumer, tile): (&Consumer, &Tile), deltas: &[Vec<Reg<F32>>]) {
        k.grid_dependency_wait();
        let column = self.column(k, consumer, tile);
        let column = self.first_strip(k, consumer, column);
        for (strip, registers) in (0..).zip(deltas) {
            let column = k.add(column, STRIP_COLUMNS * strip);
            let Some(found) = tile.owner.deltas(k, [tile.first_token, column, tile.n]) else { return };
            for (matrix, &register) in (0..).zip(registers) {
                let delta = found.read(k, matrix);
                k.set(register, delta);
            }
        }
    }

    /// How the tile's only row is multiplied with an adapter, where tokens are few and may have one.
    fn beside(&self, k: &mut Builder, parts: &Parts, consumer: &Consumer, tile: &Tile) -> Option<Beside> {
        let Groups::Experts(work) = &parts.work.groups else { return None };
        work.beside()?;
        let column = self.column(k, consumer, tile);
        Beside::new(k, (work, consumer, tile), (column, self.columns()))
    }

    /// Whether sums may have something added.
    fn adapted(&self) -> bool {
        self.config.experts.is_some_and(|experts| experts.added)
    }

    /// The warpgroup's first column.
    fn column(&self, k: &mut Builder, consumer: &Consumer, tile: &Tile) -> Reg<U32> {
        k.mul_add(consumer.along_n, self.columns(), tile.column)
    }

    /// Finishes a tile. Of warpgroups that share k, the first does it.
    pub fn finish(&self, k: &mut Builder, parts: &Parts, consumer: &Consumer, tile: &Tile, gates: TileGates) {
        if self.config.division().along_k > 1 {
            let finishes = k.eq(consumer.along_k, 0);
            k.if_(finishes, |k| self.finish_own(k, parts, consumer, tile, gates));
        } else {
            self.finish_own(k, parts, consumer, tile, gates);
        }
    }

    fn finish_own(&self, k: &mut Builder, parts: &Parts, consumer: &Consumer, tile: &Tile, mut gates: TileGates) {
        if self.config.finds_tiles() {
            gates.chosen = self.chosen(k, consumer, tile);
        }
        if gates.scales.is_empty() {
            gates.scales = self.scales(k, consumer, tile);
        }
        if self.adapted() && !self.config.finds_tiles() {
            // What is added to sums comes from the kernel before this one, and has not been waited for here.
            k.grid_dependency_wait();
        }
        let (asked, added) = (gates.asked.take(), std::mem::take(&mut gates.deltas));
        let mut outgoing = Outgoing { added, ..self.outgoing(k, consumer, *tile, gates, &consumer.sums) };
        match self.staging {
            None => {
                let lane = outgoing.lane(k);
                for group in 0..outgoing.groups() {
                    outgoing.if_any(k, 8 * group as u32, |k| {
                        (0..2).for_each(|neighbour| outgoing.store_row(k, &lane, group, neighbour));
                    });
                }
            }
            Some(staging) => {
                let base = self.staging_base(k, consumer, staging);
                let beside = self.beside(k, parts, consumer, tile).zip(asked);
                let t = self.shrunk_base(k, consumer);
                let adds = beside.as_ref().zip(t);
                adds.iter().for_each(|((beside, asked), t)| beside.prepare(k, asked, *t));
                self.meet_before_staging(k, consumer);
                if let Some(((beside, asked), t)) = adds {
                    let deltas = beside.deltas(k, asked, t);
                    outgoing.added.extend(deltas.into_iter().map(|delta| vec![delta]));
                }
                k.phase("stage", |k| {
                    let at = outgoing.staging_place(k, base);
                    let strips = 0..outgoing.strips.len();
                    if self.config.element == Tokens::E4m3 {
                        // What rows are multiplied with is found once for all strips.
                        for portion in portions(outgoing.groups()) {
                            outgoing.if_any(k, 8 * portion.start as u32, |k| {
                                let terms = outgoing.portion_terms(k, &portion);
                                strips.clone().for_each(|strip| outgoing.stage(k, at, strip, portion.clone(), &terms));
                            });
                        }
                        return;
                    }
                    for strip in strips {
                        for portion in portions(outgoing.groups()) {
                            outgoing
                                .if_any(k, 8 * portion.start as u32, |k| outgoing.stage(k, at, strip, portion, &[]));
                        }
                    }
                });
                k.phase("meet", |k| self.meet(k, consumer));
                k.phase("store", |k| {
                    let pieces = outgoing.pieces(k, base);
                    outgoing.store_pieces(k, &pieces, self.rounds());
                });
                beside.iter().for_each(|(beside, asked)| beside.leave(k, asked, base, self.config.output));
            }
        }
    }

    /// A tile with complete sums.
    fn outgoing<'a>(
        &'a self,
        k: &mut Builder,
        consumer: &'a Consumer,
        tile: Tile,
        gates: TileGates,
        sums: &[Vec<Reg<F32>>],
    ) -> Outgoing<'a> {
        let rows = self.rows(k, &tile);
        let theirs = self.theirs(k, consumer, &tile, &gates);
        let column = self.column(k, consumer, &tile);
        let (added, strips) = (Vec::new(), self.strips(sums));
        Outgoing { finish: self, consumer, tile, gates, theirs, added, rows, column, strips }
    }

    /// Which tokens of the tile have something added, as bits of words: the first is the lane's first token.
    fn theirs(&self, k: &mut Builder, consumer: &Consumer, tile: &Tile, gates: &TileGates) -> Vec<Reg<U32>> {
        let of = |(word, &chosen): (usize, &Reg<U32>)| {
            let adapted = tile.owner.is_adapter(k, chosen)?;
            let token = k.add(consumer.lane, 32 * word as u32);
            let exists = k.lt(token, tile.tokens);
            let adapted = k.both(adapted, exists);
            let all = k.ballot(adapted);
            let place = k.and(consumer.lane, 3);
            let before = k.shl(place, 1);
            Some(k.shr(all, before))
        };
        gates.chosen.iter().enumerate().filter_map(of).collect()
    }

    /// Where a warpgroup keeps t.
    fn shrunk_base(&self, k: &mut Builder, consumer: &Consumer) -> Option<Reg<U32>> {
        let region = self.shrunk?;
        let base = k.shared_address(region);
        Some(k.mul_add(consumer.along_n, region.bytes / self.config.division().along_n, base))
    }

    /// Where a warpgroup turns values around.
    fn staging_base(&self, k: &mut Builder, consumer: &Consumer, staging: SharedRegion) -> Reg<U32> {
        let base = k.shared_address(staging);
        k.mul_add(consumer.warpgroup, self.staging_bytes(), base)
    }

    /// Threads that write one row of the warpgroup's columns together, sixteen bytes each.
    fn row_threads(&self) -> u32 {
        self.columns() * self.element_bytes() / 16
    }

    /// The first tokens of those that the warpgroup writes at once.
    fn rounds(&self) -> Vec<u32> {
        (0..self.tokens()).step_by(128 / self.row_threads() as usize).collect()
    }

    /// The block's own tokens: all of the tile's, or in a cluster one half.
    fn rows(&self, k: &mut Builder, tile: &Tile) -> Rows {
        if self.config.schedule != Schedule::SplitK {
            return Rows { first: tile.first_token, count: tile.tokens };
        }
        let rank = k.special(SpecialRegister::ClusterCtaRank);
        let before = k.mul(rank, self.tokens());
        let before = k.min(before, tile.tokens);
        let left = k.sub(tile.tokens, before);
        Rows { first: k.add(tile.first_token, before), count: k.min(left, self.tokens()) }
    }

    /// The sums as columns. An interleaved block has a column's gate and up in one thread; others have 64 columns.
    fn strips(&self, sums: &[Vec<Reg<F32>>]) -> Vec<Strip> {
        let blocks = self.config.division().blocks as usize;
        let groups = self.tokens() as usize / 8;
        let pairs = |sums: &[Reg<F32>], place: usize| -> Vec<[Reg<F32>; 2]> {
            (0..groups).map(|group| [sums[4 * group + place], sums[4 * group + place + 1]]).collect()
        };
        let all = sums;
        let mut strips = Vec::new();
        for block in 0..blocks {
            let first = block as u32 * self.config.block_columns();
            let (sums, later) = (&all[block], all.get(blocks + block));
            match self.config.products {
                Products::Interleaved => {
                    strips.push(Strip { column: first, gate: pairs(sums, 0), up: pairs(sums, 2) });
                }
                Products::Sequential | Products::Single => {
                    for half in 0..2 {
                        let up = later.map(|sums| pairs(sums, 2 * half)).unwrap_or_default();
                        strips.push(Strip {
                            column: first + STRIP_COLUMNS * half as u32,
                            gate: pairs(sums, 2 * half),
                            up,
                        });
                    }
                }
            }
        }
        strips
    }

    /// The column that a thread has of the first strip, given the warpgroup's first.
    fn first_strip(&self, k: &mut Builder, consumer: &Consumer, column: Reg<U32>) -> Reg<U32> {
        let quad = k.shr(consumer.lane, 2);
        let column = k.add(column, quad);
        k.mul_add(consumer.quarter, 8, column)
    }

    /// The gates of the column that this thread has of each strip, where columns have factors of their own.
    fn of_columns(
        &self,
        k: &mut Builder,
        consumer: &Consumer,
        tile: &Tile,
        (gates, column): (Gates, Reg<U32>),
    ) -> Vec<Gates> {
        if !self.config.scales.is_fp8() {
            return Vec::new();
        }
        let column = self.first_strip(k, consumer, column);
        let of_strip = |strip: Strip| {
            let column = k.add(column, strip.column);
            gates.of_column(k, &tile.owner, column, tile.n)
        };
        self.strips(&consumer.sums).into_iter().map(of_strip).collect()
    }

    /// What is added to gate and up sums in the column that this thread has of each strip.
    fn biases(
        &self,
        k: &mut Builder,
        consumer: &Consumer,
        tile: &Tile,
        column: Reg<U32>,
    ) -> Vec<[Option<Reg<F32>>; 2]> {
        if !self.config.biased {
            return Vec::new();
        }
        let column = self.first_strip(k, consumer, column);
        let of_strip = |strip: Strip| {
            let column = k.add(column, strip.column);
            let up = (!strip.up.is_empty()).then(|| tile.owner.bias(k, 1, column, tile.n)).flatten();
            [tile.owner.bias(k, 0, column, tile.n), up]
        };
        self.strips(&consumer.sums).into_iter().map(of_strip).collect()
    }

    /// Nobody may still read what lies where values are about to be written: stages, others' sums, or the tile before.
    fn meet_before_staging(&self, k: &mut Builder, consumer: &Consumer) {
        let finishing = self.config.division().along_n;
        k.phase("meet", |k| match self.config.schedule {
            Schedule::PerTile | Schedule::SplitK if finishing > 1 => k.named_sync(ALL_CONSUMERS, finishing * 128),
            _ => self.meet(k, consumer),
        });
    }

    /// The threads of a warpgroup wait for each other.
    fn meet(&self, k: &mut Builder, consumer: &Consumer) {
        let barrier = k.add(consumer.warpgroup, FIRST_CONSUMER);
        k.named_sync(barrier, 128);
    }
}

/// The groups of a tile in portions of 4, 2 or 1: what one instruction takes.
fn portions(groups: usize) -> Vec<Range<usize>> {
    let (mut portions, mut first) = (Vec::new(), 0);
    while first < groups {
        let count = [4, 2, 1].into_iter().find(|count| first + count <= groups).unwrap_or(1);
        portions.push(first..first + count);
        first += count;
    }
    portions
}

/// A tile on its way from complete sums to C. Its values are in strips, of a column each, and those in groups of eight
/// tokens.
struct Outgoing<'a> {
    finish: &'a Finish,
    consumer: &'a Consumer,
    tile: Tile,
    gates: TileGates,
    /// See [`Finish::theirs`].
    theirs: Vec<Reg<U32>>,
    /// What is added to the only row of a tile of few tokens, in the thread's column of each strip and for each matrix.
    added: Vec<Vec<Reg<F32>>>,
    rows: Rows,
    /// The warpgroup's first column.
    column: Reg<U32>,
    strips: Vec<Strip>,
}

/// Where a thread's values go, if it stores them one by one.
struct Lane {
    /// The next row's element in the first strip.
    at: Reg<U64>,
    /// Of each strip the tokens from the thread's first on; none where C has no such column.
    left: Vec<Reg<U32>>,
}

/// What a thread copies from where values were turned around.
struct Pieces {
    /// Its token among those that are copied together.
    token: Reg<U32>,
    from: Reg<U32>,
    start: Reg<U64>,
    /// Whether C has such columns.
    inside: Pred,
}

impl Outgoing<'_> {
    fn config(&self) -> &MultiplySpec {
        &self.finish.config
    }

    /// Groups of eight tokens.
    fn groups(&self) -> usize {
        self.finish.tokens() as usize / 8
    }

    /// What the sums of a token of the tile are multiplied with; beyond the last token it is that one's.
    fn row_terms(&self, k: &mut Builder, further: u32) -> RowTerms {
        if !self.has_row_terms() {
            return RowTerms::default();
        }
        let place = k.and(self.consumer.lane, 3);
        let scale = self.gates.scales.get(further as usize / 32).map(|&scales| {
            let lane = k.mul_add(place, 2, further % 32);
            k.shuffle(ShuffleMode::Index, scales, lane)
        });
        if scale.is_some() && !self.tile.owner.is_factored() {
            return RowTerms { scale, ..RowTerms::default() };
        }
        let token = k.mul_add(place, 2, further);
        let last = k.sub(self.rows.count, 1);
        let token = k.min(token, last);
        let row = k.add(self.rows.first, token);
        RowTerms { scale, factor: self.tile.owner.row_factor(k, row), ..RowTerms::default() }
    }

    /// The same for the thread's two tokens of each of some groups.
    fn portion_terms(&self, k: &mut Builder, groups: &Range<usize>) -> Vec<[RowTerms; 2]> {
        groups.clone().map(|group| [0, 1].map(|i| self.row_terms(k, (8 * group + i) as u32))).collect()
    }

    /// What is added to a thread's sums in a strip, of some tokens.
    fn deltas(&self, k: &mut Builder, index: usize, tokens: impl Iterator<Item = u32>) -> Vec<[Delta; 2]> {
        let none = |_| [None; 2];
        if !self.finish.adapted() {
            return tokens.map(none).collect();
        }
        let is_theirs = |k: &mut Builder, further: u32| {
            let bit = k.bit_extract(self.theirs[further as usize / 32], further % 32, 1);
            k.ne(bit, 0)
        };
        if let Some(added) = self.added.get(index) {
            let mut of = |matrix: usize| added.get(matrix).map(|&delta| (is_theirs(k, 0), delta));
            return tokens.map(|further| if further == 0 { [of(0), of(1)] } else { [None; 2] }).collect();
        }
        let strip = &self.strips[index];
        let (quad, place) = (k.shr(self.consumer.lane, 2), k.and(self.consumer.lane, 3));
        let column = k.add(self.column, quad);
        let column = k.mul_add(self.consumer.quarter, 8, column);
        let column = k.add(column, strip.column);
        let own = k.shl(place, 1);
        let row = k.add(self.rows.first, own);
        let Some(deltas) = self.tile.owner.deltas(k, [row, column, self.tile.n]) else {
            return tokens.map(none).collect();
        };
        let of = |further: u32| {
            let theirs = is_theirs(k, further);
            let row = deltas.further(k, further);
            [Some(row.of(k, 0, theirs)), (!strip.up.is_empty()).then(|| row.of(k, 1, theirs))]
        };
        tokens.map(of).collect()
    }

    /// `body` unless all of these tokens are beyond the tile's.
    fn if_any(&self, k: &mut Builder, first: u32, body: impl FnOnce(&mut Builder)) {
        let any = k.gt(self.rows.count, first);
        k.if_(any, body);
    }

    /// Where the thread's own values go. The eight quads of a warp are neighbours in a row of C.
    fn lane(&self, k: &mut Builder) -> Lane {
        let out = self.tile.owner.out(k);
        let (quad, place) = (k.shr(self.consumer.lane, 2), k.and(self.consumer.lane, 3));
        let column = k.add(self.column, quad);
        let column = k.mul_add(self.consumer.quarter, 8, column);
        let own = k.shl(place, 1);
        let token = k.add(self.rows.first, own);
        let start = element_address(k, out, [token, self.tile.n, column], self.finish.element_bytes());
        let left = self.strips.iter().map(|strip| {
            let column = k.add(column, strip.column);
            let inside = k.lt(column, self.tile.n);
            let tokens = k.select(inside, self.rows.count, 0);
            let tokens = k.max(tokens, own);
            k.sub(tokens, own)
        });
        Lane { left: left.collect(), at: k.variable(start) }
    }

    /// The thread's row of a group, of its two, element by element: one of each strip. Rows are stored in their order.
    fn store_row(&self, k: &mut Builder, lane: &Lane, group: usize, neighbour: usize) {
        let further = (8 * group + neighbour) as u32;
        let row = self.row_terms(k, further);
        for (index, (strip, &left)) in self.strips.iter().zip(&lane.left).enumerate() {
            let up = strip.up.get(group).map(|up| up[neighbour]);
            let row = RowTerms { deltas: self.deltas(k, index, std::iter::once(further))[0], ..row };
            let value = self.gates.apply(k, (strip.gate[group][neighbour], up), index, row);
            let exists = k.gt(left, further);
            let at = Addr::<Global>::of(lane.at).plus((strip.column * self.finish.element_bytes()).cast_signed());
            store_element(k, self.config().output, Some(exists), at, value);
        }
        let rows = if neighbour == 0 { 1 } else { 7 };
        let next = k.mul_wide_add(self.tile.n, rows * self.finish.element_bytes(), lane.at);
        k.set(lane.at, next);
    }

    /// Whether sums are multiplied with something of their row, which is read where there is such a row.
    fn has_row_terms(&self) -> bool {
        self.config().element == Tokens::E4m3 || self.config().experts.is_some_and(|experts| experts.factored)
    }

    /// `body`, and where it would read what is not there, only if there are such tokens.
    fn unless_missing(&self, k: &mut Builder, first: u32, body: impl FnOnce(&mut Builder)) {
        if self.has_row_terms() { self.if_any(k, first, body) } else { body(k) }
    }

    /// Where the thread's values of the first strip are turned around.
    fn staging_place(&self, k: &mut Builder, base: Reg<U32>) -> Reg<U32> {
        let base = k.mul_add(self.consumer.quarter, 8 * self.finish.element_bytes(), base);
        match self.config().output {
            Output::F32 => {
                let (quad, place) = (k.shr(self.consumer.lane, 2), k.and(self.consumer.lane, 3));
                let at = k.mul_add(place, 2 * self.finish.pitch(), base);
                k.mul_add(quad, 4, at)
            }
            // Lane l gives the address of row l % 8 of the l/8-th matrix.
            Output::F16 | Output::BF16 => k.mul_add(self.consumer.lane, self.finish.pitch(), base),
        }
    }

    /// Some groups of a strip to shared memory, a row of columns for each token; with what their rows are multiplied
    /// with, where that is known.
    fn stage(&self, k: &mut Builder, at: Reg<U32>, index: usize, groups: Range<usize>, terms: &[[RowTerms; 2]]) {
        let strip = &self.strips[index];
        let at = Addr::<Shared>::of(at).plus((strip.column * self.finish.element_bytes()).cast_signed());
        let first = 8 * groups.start as u32;
        let at = at.plus((first * self.finish.pitch()).cast_signed());
        let tokens = groups.clone().flat_map(|group| [0, 1].map(|i| (8 * group + i) as u32));
        let mut deltas = self.deltas(k, index, tokens).into_iter();
        let start = groups.start;
        let values: Vec<[Reg<F32>; 2]> = groups
            .map(|group| {
                let up = strip.up.get(group);
                [0, 1].map(|i| {
                    let known = terms.get(group - start).map(|terms| terms[i]);
                    let row = known.unwrap_or_else(|| self.row_terms(k, (8 * group + i) as u32));
                    let row = RowTerms { deltas: deltas.next().unwrap_or_default(), ..row };
                    self.gates.apply(k, (strip.gate[group][i], up.map(|up| up[i])), index, row)
                })
            })
            .collect();
        self.stage_group(k, at, &values);
    }

    /// Eight tokens for each pair, to where the lane's part of the first pair goes.
    fn stage_group(&self, k: &mut Builder, at: Addr<Shared>, values: &[[Reg<F32>; 2]]) {
        match self.config().output {
            Output::F16 => {
                let pairs: Vec<Reg<F16x2>> = values.iter().map(|&[low, high]| k.convert_pair(low, high)).collect();
                k.store_matrix(at, &pairs, true);
            }
            Output::BF16 => {
                let pairs: Vec<Reg<Bf16x2>> = values.iter().map(|&[low, high]| k.convert_pair(low, high)).collect();
                k.store_matrix(at, &pairs, true);
            }
            Output::F32 => {
                for (group, pair) in values.iter().enumerate() {
                    for (neighbour, &value) in pair.iter().enumerate() {
                        let row = (8 * group + neighbour) as u32;
                        k.store(at.plus((row * self.finish.pitch()).cast_signed()), value);
                    }
                }
            }
        }
    }

    /// What the thread copies of rows that were turned around.
    fn pieces(&self, k: &mut Builder, base: Reg<U32>) -> Pieces {
        let out = self.tile.owner.out(k);
        let bytes = self.finish.element_bytes();
        let pieces = self.finish.row_threads();
        let (token, piece) = (k.div(self.consumer.thread, pieces), k.rem(self.consumer.thread, pieces));
        let from = k.mul_add(token, self.finish.pitch(), base);
        let from = k.mul_add(piece, 16, from);
        let column = k.mul_add(piece, 16 / bytes, self.column);
        let inside = k.lt(column, self.tile.n);
        let first = k.add(self.rows.first, token);
        let start = element_address(k, out, [first, self.tile.n, column], bytes);
        Pieces { token, from, start, inside }
    }

    /// Sixteen bytes per thread and round, from rows in shared memory to rows of C.
    fn store_pieces(&self, k: &mut Builder, pieces: &Pieces, rounds: Vec<u32>) {
        let &Pieces { token, from, start, inside } = pieces;
        k.if_(inside, |k| {
            for further in rounds {
                let this = k.add(token, further);
                let exists = k.lt(this, self.rows.count);
                k.if_(exists, |k| {
                    let values: [Reg<U32>; 4] =
                        k.load_vector(Addr::<Shared>::of(from).plus((further * self.finish.pitch()).cast_signed()));
                    let at = k.mul_wide_add(self.tile.n, further * self.finish.element_bytes(), start);
                    k.store_vector(Addr::<Global>::of(at), values);
                });
            }
        });
    }
}

/// A tile that leaves for C in steps, each so short that it may stand between two multiplications of the next tile:
/// first its factors, biases and places, then row by row what a thread holds of it.
pub(super) struct Leaving<'a> {
    parts: &'a Parts,
    consumer: &'a Consumer,
    place: Placed,
    sums: &'a [Vec<Reg<F32>>],
    begun: Option<(Outgoing<'a>, Lane)>,
    /// Rows that are stored.
    stored: usize,
}

impl<'a> Leaving<'a> {
    /// The tile at a place, with these sums.
    pub fn new(parts: &'a Parts, consumer: &'a Consumer, place: Placed, sums: &'a [Vec<Reg<F32>>]) -> Self {
        Leaving { parts, consumer, place, sums, begun: None, stored: 0 }
    }

    /// Steps that it takes.
    pub fn steps(&self) -> usize {
        1 + self.parts.epilogue.tokens() as usize / 4
    }

    /// Takes the next step.
    pub fn step(&mut self, k: &mut Builder) {
        k.phase("finish", |k| match &self.begun {
            None => self.begun = Some(self.begin(k)),
            Some((outgoing, lane)) => {
                let (group, neighbour) = (self.stored / 2, self.stored % 2);
                outgoing.unless_missing(k, 8 * group as u32, |k| outgoing.store_row(k, lane, group, neighbour));
                self.stored += 1;
            }
        });
    }

    fn begin(&self, k: &mut Builder) -> (Outgoing<'a>, Lane) {
        let finish = &self.parts.epilogue;
        let tile = self.parts.work.placed(k, self.place);
        let gates = finish.gates(k, self.parts, self.consumer, &tile);
        let outgoing = finish.outgoing(k, self.consumer, tile, gates, self.sums);
        let lane = outgoing.lane(k);
        (outgoing, lane)
    }
}

/// What is made of a gate sum and an up sum, and what is added to both in each strip's column.
pub(super) struct TileGates {
    gates: Gates,
    /// The same of each strip, where columns have factors of their own.
    of_columns: Vec<Gates>,
    /// Nothing where no sum has a bias.
    biases: Vec<[Option<Reg<F32>>; 2]>,
    /// The adapters of tokens, where they may have some.
    chosen: Vec<Reg<U32>>,
    /// What rows of tokens were divided by, where they were rounded to e4m3.
    scales: Vec<Reg<F32>>,
    /// What a tile of few tokens is multiplied with beside the second product.
    asked: Option<Asked>,
    /// What was foreseen of what is added to it.
    pub deltas: Vec<Vec<Reg<F32>>>,
}

impl TileGates {
    fn apply(&self, k: &mut Builder, sums: (Reg<F32>, Option<Reg<F32>>), strip: usize, row: RowTerms) -> Reg<F32> {
        let gates = self.of_columns.get(strip).unwrap_or(&self.gates);
        gates.apply(k, sums, self.biases.get(strip).copied().unwrap_or_default(), row)
    }
}
