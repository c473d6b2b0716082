//! From complete sums to C: scale, gate, round, store.
//!
//! A thread holds, for each eight tokens, two neighbouring tokens of one column; the eight lanes beside it hold the
//! next columns. *Direct* stores write each element from where it is. *Staged* ones turn the warpgroup's values around
//! in shared memory, by `stmatrix` where they have 16 bits, so that threads can write sixteen bytes of a row of C each.

use ptx::{Addr, Bf16x2, Builder, F16x2, F32, Global, Reg, Shared, SharedRegion, SpecialRegister, U32};

use super::consume::Consumer;
use super::pipeline::Pipeline;
use super::work::Tile;
use super::{MultiplySpec, Parts, Products, Tokens};
use crate::phases::gates::{Gates, RowTerms};
use crate::phases::store::{element_address, store_element};
use op::{Epilogue, Output, Schedule};

/// The hardware barrier of all consumer warpgroups.
pub(super) const ALL_CONSUMERS: u32 = 1;
/// The hardware barrier of the first consumer warpgroup; the others' follow.
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
        Finish { config, staging }
    }

    /// Bytes in which values are turned around.
    pub fn scratch_bytes(config: &MultiplySpec) -> Option<u32> {
        let finish = Finish { config: *config, staging: None };
        (config.epilogue != Epilogue::Direct).then(|| config.warpgroups() * finish.staging_bytes())
    }

    /// Tokens that a block finishes at most.
    fn tokens(&self) -> u32 {
        self.config.tokens / self.config.blocks_per_tile()
    }

    /// Columns of a warpgroup.
    fn columns(&self) -> u32 {
        self.config.division().blocks * self.config.block_columns()
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
        let biases = self.biases(k, consumer, tile, column);
        TileGates { gates, biases }
    }

    /// The warpgroup's first column.
    fn column(&self, k: &mut Builder, consumer: &Consumer, tile: &Tile) -> Reg<U32> {
        k.mul_add(consumer.along_n, self.columns(), tile.column)
    }

    /// Finishes a tile. Of warpgroups that share k, the first does it.
    pub fn finish(&self, k: &mut Builder, consumer: &Consumer, tile: &Tile, gates: &TileGates) {
        if self.config.division().along_k > 1 {
            let finishes = k.eq(consumer.along_k, 0);
            k.if_(finishes, |k| self.finish_own(k, consumer, tile, gates));
        } else {
            self.finish_own(k, consumer, tile, gates);
        }
    }

    fn finish_own(&self, k: &mut Builder, consumer: &Consumer, tile: &Tile, gates: &TileGates) {
        if self.config.element == Tokens::E4m3 {
            // What rows were divided by comes from the kernel before this one, too, and has not been waited for here.
            k.grid_dependency_wait();
        }
        let rows = self.rows(k, tile);
        let column = self.column(k, consumer, tile);
        match self.staging {
            None => self.store_direct(k, consumer, tile, &rows, gates, column),
            Some(staging) => {
                let base = k.shared_address(staging);
                let base = k.mul_add(consumer.warpgroup, self.staging_bytes(), base);
                self.meet_before_staging(k, consumer);
                k.phase("stage", |k| self.stage(k, consumer, tile, &rows, gates, base));
                k.phase("meet", |k| self.meet(k, consumer));
                k.phase("store", |k| self.store_staged(k, consumer, tile, &rows, base, column));
            }
        }
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
    fn strips(&self, consumer: &Consumer) -> Vec<Strip> {
        let blocks = self.config.division().blocks as usize;
        let groups = self.tokens() as usize / 8;
        let pairs = |sums: &[Reg<F32>], place: usize| -> Vec<[Reg<F32>; 2]> {
            (0..groups).map(|group| [sums[4 * group + place], sums[4 * group + place + 1]]).collect()
        };
        let mut strips = Vec::new();
        for block in 0..blocks {
            let first = block as u32 * self.config.block_columns();
            let (sums, later) = (&consumer.sums[block], consumer.sums.get(blocks + block));
            match self.config.products {
                Products::Interleaved => {
                    strips.push(Strip { column: first, gate: pairs(sums, 0), up: pairs(sums, 2) });
                }
                Products::Sequential | Products::Single => {
                    for half in 0..2 {
                        let up = later.map(|sums| pairs(sums, 2 * half)).unwrap_or_default();
                        strips.push(Strip { column: first + 32 * half as u32, gate: pairs(sums, 2 * half), up });
                    }
                }
            }
        }
        strips
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
        let quad = k.shr(consumer.lane, 2);
        let column = k.add(column, quad);
        let column = k.mul_add(consumer.quarter, 8, column);
        let of_strip = |strip: Strip| {
            let column = k.add(column, strip.column);
            let up = (!strip.up.is_empty()).then(|| tile.owner.bias(k, 1, column, tile.n)).flatten();
            [tile.owner.bias(k, 0, column, tile.n), up]
        };
        self.strips(consumer).into_iter().map(of_strip).collect()
    }

    /// What the sums of a token of the tile are multiplied with; beyond the last token it is that one's.
    fn row_terms(&self, k: &mut Builder, tile: &Tile, rows: &Rows, consumer: &Consumer, further: u32) -> RowTerms {
        let rounded = self.config.element == Tokens::E4m3;
        if !rounded && self.config.experts.is_none_or(|experts| !experts.factored) {
            return RowTerms::default();
        }
        let place = k.and(consumer.lane, 3);
        let token = k.mul_add(place, 2, further);
        let last = k.sub(rows.count, 1);
        let token = k.min(token, last);
        let row = k.add(rows.first, token);
        RowTerms { scale: tile.owner.row_scale(k, row), factor: tile.owner.row_factor(k, row) }
    }

    /// `body` unless all of these tokens are beyond the tile's.
    fn if_any(&self, k: &mut Builder, first: u32, rows: &Rows, body: impl FnOnce(&mut Builder)) {
        let any = k.gt(rows.count, first);
        k.if_(any, body);
    }

    /// Element by element: the eight quads of a warp are neighbours in a row of C.
    fn store_direct(
        &self,
        k: &mut Builder,
        consumer: &Consumer,
        tile: &Tile,
        rows: &Rows,
        gates: &TileGates,
        column: Reg<U32>,
    ) {
        let out = tile.owner.out(k);
        let (quad, place) = (k.shr(consumer.lane, 2), k.and(consumer.lane, 3));
        let column = k.add(column, quad);
        let column = k.mul_add(consumer.quarter, 8, column);
        let own = k.shl(place, 1);
        let token = k.add(rows.first, own);
        for (index, strip) in self.strips(consumer).into_iter().enumerate() {
            let column = k.add(column, strip.column);
            let start = element_address(k, out, [token, tile.n, column], self.element_bytes());
            let inside = k.lt(column, tile.n);
            k.if_(inside, |k| {
                for (group, gate) in strip.gate.iter().enumerate() {
                    let first = 8 * group as u32;
                    self.if_any(k, first, rows, |k| {
                        for neighbour in 0..2 {
                            let up = strip.up.get(group).map(|up| up[neighbour]);
                            let further = first + neighbour as u32;
                            let this = k.add(own, further);
                            let row = self.row_terms(k, tile, rows, consumer, further);
                            let value = gates.apply(k, (gate[neighbour], up), index, row);
                            let exists = k.lt(this, rows.count);
                            let at = k.mul_wide_add(tile.n, further * self.element_bytes(), start);
                            store_element(k, self.config.output, Some(exists), Addr::<Global>::of(at), value);
                        }
                    });
                }
            });
        }
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

    /// Values to shared memory, a row of columns for each token.
    fn stage(&self, k: &mut Builder, consumer: &Consumer, tile: &Tile, rows: &Rows, gates: &TileGates, base: Reg<U32>) {
        let base = k.mul_add(consumer.quarter, 8 * self.element_bytes(), base);
        let at = match self.config.output {
            Output::F32 => {
                let (quad, place) = (k.shr(consumer.lane, 2), k.and(consumer.lane, 3));
                let at = k.mul_add(place, 2 * self.pitch(), base);
                k.mul_add(quad, 4, at)
            }
            // Lane l gives the address of row l % 8 of the l/8-th matrix.
            Output::F16 | Output::BF16 => k.mul_add(consumer.lane, self.pitch(), base),
        };
        for (index, strip) in self.strips(consumer).into_iter().enumerate() {
            let at = Addr::<Shared>::of(at).plus((strip.column * self.element_bytes()).cast_signed());
            let mut group = 0;
            while group < strip.gate.len() {
                let count = [4, 2, 1].into_iter().find(|count| group + count <= strip.gate.len()).unwrap_or(1);
                let first = 8 * group as u32;
                let at = at.plus((first * self.pitch()).cast_signed());
                self.if_any(k, first, rows, |k| {
                    let values: Vec<[Reg<F32>; 2]> = (group..group + count)
                        .map(|group| {
                            let up = strip.up.get(group);
                            [0, 1].map(|i| {
                                let row = self.row_terms(k, tile, rows, consumer, (8 * group + i) as u32);
                                gates.apply(k, (strip.gate[group][i], up.map(|up| up[i])), index, row)
                            })
                        })
                        .collect();
                    self.stage_group(k, at, &values);
                });
                group += count;
            }
        }
    }

    /// Eight tokens for each pair, to where the lane's part of the first pair goes.
    fn stage_group(&self, k: &mut Builder, at: Addr<Shared>, values: &[[Reg<F32>; 2]]) {
        match self.config.output {
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
                        k.store(at.plus((row * self.pitch()).cast_signed()), value);
                    }
                }
            }
        }
    }

    /// Sixteen bytes per thread, from rows in shared memory to rows of C.
    fn store_staged(
        &self,
        k: &mut Builder,
        consumer: &Consumer,
        tile: &Tile,
        rows: &Rows,
        base: Reg<U32>,
        column: Reg<U32>,
    ) {
        let out = tile.owner.out(k);
        let pieces = self.columns() * self.element_bytes() / 16;
        let (token, piece) = (k.div(consumer.thread, pieces), k.rem(consumer.thread, pieces));
        let from = k.mul_add(token, self.pitch(), base);
        let from = k.mul_add(piece, 16, from);
        let column = k.mul_add(piece, 16 / self.element_bytes(), column);
        let inside = k.lt(column, tile.n);
        let first = k.add(rows.first, token);
        let start = element_address(k, out, [first, tile.n, column], self.element_bytes());
        let together = 128 / pieces;
        k.if_(inside, |k| {
            for further in (0..self.tokens()).step_by(together as usize) {
                let this = k.add(token, further);
                let exists = k.lt(this, rows.count);
                k.if_(exists, |k| {
                    let values: [Reg<U32>; 4] =
                        k.load_vector(Addr::<Shared>::of(from).plus((further * self.pitch()).cast_signed()));
                    let at = k.mul_wide_add(tile.n, further * self.element_bytes(), start);
                    k.store_vector(Addr::<Global>::of(at), values);
                });
            }
        });
    }
}

/// What is made of a gate sum and an up sum, and what is added to both in each strip's column.
pub(super) struct TileGates {
    gates: Gates,
    /// Nothing where no sum has a bias.
    biases: Vec<[Option<Reg<F32>>; 2]>,
}

impl TileGates {
    fn apply(&self, k: &mut Builder, sums: (Reg<F32>, Option<Reg<F32>>), strip: usize, row: RowTerms) -> Reg<F32> {
        self.gates.apply(k, sums, self.biases.get(strip).copied().unwrap_or_default(), row)
    }
}
