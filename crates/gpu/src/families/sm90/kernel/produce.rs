//! Two threads keep the pipeline filled, each on its own: one with chunks of weights, by bulk copy, and one with
//! tokens, through the tensor map.
//!
//! Tokens may still be on their way from the kernel before this one, so their thread waits for it. Weights are not: by
//! then as many stages of them as there are have been asked for.

use ptx::{Addr, Builder, CopyOptions, Reg, S32, Shared, TensorMapAddress, U32, U64, Value};

use super::pipeline::Turn;
use super::work::{Found, Tile};
use super::{Parts, Products, ROW_BYTES, UNIT};
use crate::pack::CHUNK_ROWS;
use crate::phases::groups::Groups;

/// One warp fills the stages with weights.
pub(super) fn weights(k: &mut Builder, parts: &Parts) {
    fill(k, parts, |k, found, pass, _| Weights::new(k, parts, &found.tile, pass));
}

/// One warp fills the stages with tokens.
pub(super) fn tokens(k: &mut Builder, parts: &Parts) {
    fill(k, parts, |k, found, _, round| Tokens::new(k, parts, found, round));
    if parts.config.experts.is_some_and(|experts| experts.follows || experts.added) {
        // A block without tiles, too, ends behind the kernel before this one, so that who waits for this one has waited
        // for both.
        k.grid_dependency_wait();
    }
}

/// Where a tile's bytes come from.
trait Feed {
    /// Announces what will come to an empty stage, and asks for it.
    fn load(&self, k: &mut Builder, parts: &Parts, turn: &Turn, place: &Place);
}

/// One lane fills every stage of every pass of every tile, as soon as it is empty.
fn fill<S: Feed>(k: &mut Builder, parts: &Parts, source: impl Fn(&mut Builder, &Found, u32, Reg<U32>) -> S) {
    let elected = k.elect();
    k.if_(elected, |k| {
        let turn = parts.pipe.start(k);
        parts.work.each_tile(k, |k, found, round| {
            for pass in 0..parts.config.passes() {
                let source = source(k, &found, pass, round);
                let place = Place::first(k, parts, &found.tile);
                k.repeat(found.tile.share.stages, |k, _| {
                    parts.pipe.wait_empty(k, &turn);
                    source.load(k, parts, &turn, &place);
                    place.advance(k, parts);
                    parts.pipe.advance(k, &turn, 1);
                });
            }
        });
    });
}

/// Where along k a producer is.
struct Place {
    /// The stage's first unit.
    unit: Reg<U32>,
    /// Units from there to the end of the share.
    left: Reg<U32>,
}

impl Place {
    fn first(k: &mut Builder, parts: &Parts, tile: &Tile) -> Self {
        let unit = match tile.share.first {
            Some(first) => k.mul(first, parts.config.units),
            None => k.variable(0),
        };
        Place { unit: k.variable(unit), left: k.variable(tile.share.units) }
    }

    /// Units of the stage.
    fn units(&self, k: &mut Builder, parts: &Parts) -> Reg<U32> {
        k.min(self.left, parts.config.units)
    }

    fn advance(&self, k: &mut Builder, parts: &Parts) {
        let units = self.units(k, parts);
        let (rest, next) = (k.sub(self.left, units), k.add(self.unit, units));
        k.set(self.left, rest);
        k.set(self.unit, next);
    }
}

/// The weights of a tile, for one pass.
struct Weights {
    /// The matrices that fragments pair: gate and up, or only one.
    matrices: Vec<Reg<U64>>,
    /// First row of chunks of the tile.
    first: Reg<U32>,
    /// Last row of chunks of the matrix.
    last: Reg<U32>,
    /// Bytes of a row of chunks.
    run: Reg<U32>,
}

impl Weights {
    fn new(k: &mut Builder, parts: &Parts, tile: &Tile, pass: u32) -> Self {
        let matrices = match parts.config.products {
            Products::Interleaved => vec![tile.owner.weights(k, 0), tile.owner.weights(k, 1)],
            Products::Sequential | Products::Single => vec![tile.owner.weights(k, pass)],
        };
        let rows = CHUNK_ROWS as u32;
        let last = k.sub(tile.n, 1);
        Weights {
            matrices,
            first: k.shr(tile.column, rows.trailing_zeros()),
            last: k.shr(last, rows.trailing_zeros()),
            run: k.mul(tile.depth, parts.config.scales.chunk_bytes()),
        }
    }
}

impl Feed for Weights {
    /// The units of every chunk. A chunk beyond the last one is replaced by that: its products are not stored. What is
    /// overwritten was read by threads, hence the fence between the two proxies; tokens are read by the tensor cores
    /// alone, unless warps multiply by themselves.
    fn load(&self, k: &mut Builder, parts: &Parts, turn: &Turn, place: &Place) {
        k.fence_async_shared();
        let units = place.units(k, parts);
        let bytes = k.mul(units, parts.config.unit_bytes()[1]);
        let full = parts.pipe.announce(k, turn, bytes);
        let stage = Addr::<Shared>::of(parts.pipe.chunks(k, turn));
        let chunk_bytes = parts.config.scales.chunk_bytes();
        let bytes = k.mul(units, chunk_bytes);
        let interleaved = self.matrices.len() as u32;
        for chunk in 0..parts.config.chunks() {
            let row = k.add(self.first, chunk / interleaved);
            let row = k.min(row, self.last);
            let matrix = self.matrices[(chunk % interleaved) as usize];
            let start = k.mul_wide_add(row, self.run, matrix);
            let start = k.mul_wide_add(place.unit, chunk_bytes, start);
            let to = stage.plus((chunk * parts.pipe.chunk_stride()).cast_signed());
            k.bulk_load(to, Addr::of(start), bytes, full, CopyOptions::default());
        }
    }
}

/// The tokens of a tile.
struct Tokens {
    map: Reg<TensorMapAddress>,
    first: Reg<U32>,
    /// Bytes of all parts of a copy.
    bytes: Reg<U32>,
}

impl Tokens {
    /// The first time, waits for the kernel before this one, unless everybody has.
    fn new(k: &mut Builder, parts: &Parts, found: &Found, round: Reg<U32>) -> Self {
        let map = parts.work.map(k, found);
        k.prefetch_map(map);
        if parts.config.experts.is_none_or(|experts| experts.follows) {
            let first = k.eq(round, 0);
            k.when(first, |k| k.grid_dependency_wait());
        }
        let width = match parts.config.widths()[..] {
            [only] => k.variable(only),
            _ => k.max(found.most_tokens, parts.config.least_width()),
        };
        let bytes = k.mul(width, ROW_BYTES * parts.config.element.parts());
        let first = match &parts.work.groups {
            Groups::Experts(work) => work.source_row(k, found.tile.first_token),
            Groups::Table(_) => found.tile.first_token,
        };
        Tokens { map, first, bytes }
    }
}

impl Feed for Tokens {
    /// Rows one after another, each part by part. All tiles of a group take as many tokens as its largest; what is
    /// beyond the last token, or in a row behind the last unit, comes as zeros.
    fn load(&self, k: &mut Builder, parts: &Parts, turn: &Turn, place: &Place) {
        let config = &parts.config;
        if config.by_warps {
            k.fence_async_shared();
        }
        let row_units = config.row_units();
        let units = place.units(k, parts);
        let copies = if row_units == 1 {
            units
        } else {
            let rounded = k.add(units, row_units - 1);
            k.shr(rounded, row_units.trailing_zeros())
        };
        let bytes = k.mul(copies, self.bytes);
        let full = parts.pipe.announce(k, turn, bytes);
        let depth = k.mul(place.unit, UNIT);
        let depth = k.variable(depth);
        let to = parts.pipe.token_tile(k, turn);
        let to = k.variable(to);
        let copy = |k: &mut Builder| {
            for part in 0..config.element.parts() {
                let to = Addr::<Shared>::of(to).plus((part * config.tokens * config.token_bytes()).cast_signed());
                let mut at: Vec<Value<S32>> = vec![depth.cast().into(), self.first.cast().into()];
                if config.element.parts() > 1 {
                    at.push(part.cast_signed().into());
                }
                k.tensor_load(to, self.map, &at, full, CopyOptions::default());
            }
        };
        if config.units == row_units {
            return copy(k);
        }
        k.repeat(copies, |k, _| {
            copy(k);
            let (next, further) = (k.add(to, row_units * config.unit_bytes()[0]), k.add(depth, row_units * UNIT));
            k.set(to, next);
            k.set(depth, further);
        });
    }
}
