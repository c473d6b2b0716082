//! One thread keeps the pipeline filled: for each stage chunks of weights by bulk copy, and tokens through the tensor map.
//!
//! Tokens may still be on their way from the kernel before this one. Weights are not, so before that kernel is waited for,
//! the weights of as many stages as there are have been asked for.

use ptx::{Addr, Builder, CopyOptions, Reg, S32, Shared, TensorMapAddress, U32, U64, Value};

use super::pipeline::Turn;
use super::work::Tile;
use super::{LEAST_WIDTH, Parts, Products, TOKEN_BYTES, UNIT};
use crate::gpu::pack::{CHUNK_BYTES, CHUNK_ROWS};

pub(super) fn produce(k: &mut Builder, parts: &Parts) {
    let elected = k.elect();
    k.if_(elected, |k| {
        let turn = parts.pipe.start(k);
        // Stages of which the weights have been asked for, but not the tokens.
        let ahead = k.variable(0);
        parts.work.each_tile(k, |k, tile, round| {
            let map = parts.work.map(k, &tile);
            k.prefetch_map(map);
            let width = width(k, parts, &tile);
            let passes: Vec<Source> =
                (0..parts.config.passes()).map(|pass| Source::new(k, parts, &tile, pass, width)).collect();
            let first = k.eq(round, 0);
            k.if_(first, |k| {
                let stages = k.min(tile.share.stages, parts.config.stages);
                k.set(ahead, stages);
                let place = Place::first(k, parts, &tile);
                k.repeat(stages, |k, stage| {
                    passes[0].load(k, parts, &Turn { stage, parity: turn.parity }, &place);
                    place.advance(k, parts);
                });
                k.grid_dependency_wait();
            });
            for source in passes {
                let place = Place::first(k, parts, &tile);
                k.repeat(tile.share.stages, |k, stage| {
                    let asked = k.lt(stage, ahead);
                    let done = k.label();
                    k.branch_if(asked, done);
                    parts.pipe.wait_empty(k, &turn);
                    source.load(k, parts, &turn, &place);
                    k.place(done);
                    load_tokens(k, parts, &turn, &tile, map, &place, width);
                    place.advance(k, parts);
                    parts.pipe.advance(k, &turn, 1);
                });
                k.set(ahead, 0);
            }
        });
    });
}

/// Where along k the producer is.
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

/// Tokens of the main loop that this tile will take.
fn width(k: &mut Builder, parts: &Parts, tile: &Tile) -> Reg<U32> {
    if parts.config.widths().len() == 1 {
        return k.variable(parts.config.tokens);
    }
    let step = parts.config.box_tokens();
    let width = k.add(tile.tokens, step - 1);
    let width = k.and(width, !(step - 1));
    k.max(width, LEAST_WIDTH)
}

/// Where the weights of a tile come from.
struct Source {
    /// The matrices that fragments pair: gate and up, or only one.
    matrices: Vec<Reg<U64>>,
    /// First row of chunks of the tile.
    first: Reg<U32>,
    /// Last row of chunks of the matrix.
    last: Reg<U32>,
    /// Bytes of a row of chunks.
    run: Reg<U32>,
    /// Tokens that will come with the weights.
    width: Reg<U32>,
}

impl Source {
    fn new(k: &mut Builder, parts: &Parts, tile: &Tile, pass: u32, width: Reg<U32>) -> Self {
        let matrices = match parts.config.products {
            Products::Interleaved => vec![tile.weights(k, 0), tile.weights(k, 1)],
            Products::Sequential | Products::Single => vec![tile.weights(k, pass)],
        };
        let rows = CHUNK_ROWS as u32;
        let last = k.sub(tile.n, 1);
        Source {
            matrices,
            first: k.shr(tile.column, rows.trailing_zeros()),
            last: k.shr(last, rows.trailing_zeros()),
            run: k.mul(tile.depth, CHUNK_BYTES),
            width,
        }
    }

    /// Announces what will come to an empty stage, and asks for its units of every chunk. A chunk beyond the last one is
    /// replaced by that: its products are not stored.
    fn load(&self, k: &mut Builder, parts: &Parts, turn: &Turn, place: &Place) {
        let units = place.units(k, parts);
        let token_bytes = TOKEN_BYTES * parts.config.element.parts();
        let bytes = k.mul_add(self.width, token_bytes, parts.config.unit_bytes()[1]);
        let bytes = k.mul(bytes, units);
        parts.pipe.announce(k, turn, bytes);
        let full = parts.pipe.full(k, turn);
        let stage = Addr::<Shared>::of(parts.pipe.chunks(k, turn));
        let bytes = k.mul(units, CHUNK_BYTES);
        let interleaved = self.matrices.len() as u32;
        for chunk in 0..parts.config.chunks() {
            let row = k.add(self.first, chunk / interleaved);
            let row = k.min(row, self.last);
            let matrix = self.matrices[(chunk % interleaved) as usize];
            let start = k.mul_wide_add(row, self.run, matrix);
            let start = k.mul_wide_add(place.unit, CHUNK_BYTES, start);
            let to = stage.plus((chunk * parts.pipe.chunk_stride()).cast_signed());
            k.bulk_load(to, Addr::of(start), bytes, full, CopyOptions::default());
        }
    }
}

/// Asks for a stage's units of the tile's tokens, part by part and box by box.
fn load_tokens(
    k: &mut Builder,
    parts: &Parts,
    turn: &Turn,
    tile: &Tile,
    map: Reg<TensorMapAddress>,
    place: &Place,
    width: Reg<U32>,
) {
    let config = &parts.config;
    let (full, units) = (parts.pipe.full(k, turn), place.units(k, parts));
    let depth = k.mul(place.unit, UNIT);
    let depth = k.variable(depth);
    let place = parts.pipe.token_tile(k, turn);
    let place = k.variable(place);
    let unit = |k: &mut Builder| {
        for part in 0..config.element.parts() {
            let start = Addr::<Shared>::of(place).plus((part * config.tokens * TOKEN_BYTES).cast_signed());
            for (index, token) in (0..config.tokens).step_by(config.box_tokens() as usize).enumerate() {
                let to = start.plus((token * TOKEN_BYTES).cast_signed());
                let row = k.add(tile.first_token, token);
                let mut at: Vec<Value<S32>> = vec![depth.cast().into(), row.cast().into()];
                if config.element.parts() > 1 {
                    at.push(part.cast_signed().into());
                }
                if index == 0 {
                    k.tensor_load(to, map, &at, full, CopyOptions::default());
                } else {
                    let wanted = k.gt(width, token);
                    k.when(wanted, |k| k.tensor_load(to, map, &at, full, CopyOptions::default()));
                }
            }
        }
    };
    if config.units == 1 {
        return unit(k);
    }
    k.repeat(units, |k, _| {
        unit(k);
        let (next, further) = (k.add(place, config.unit_bytes()[0]), k.add(depth, UNIT));
        k.set(place, next);
        k.set(depth, further);
    });
}
