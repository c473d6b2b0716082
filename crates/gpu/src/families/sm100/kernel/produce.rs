//! Two threads keep the stages filled, each on its own: one with weights and one with tokens, by plain copies of what
//! lies in memory as it is wanted in shared memory. Tokens of 16 bits come through tensor maps, and weights then not
//! from here.
//!
//! Tokens may still be on their way from the kernel before this one, so their thread waits for it. Weights are not.

use ptx::{Addr, Builder, CopyOptions, Reg, S32, Shared, TensorMapAddress, U16, U32, U64, Value};

use super::Parts;
use super::pipeline::Turn;
use super::work::{Rows, Tile};
use crate::families::sm100::slabs::{ROW_BYTES, SCALE_BYTES, UNIT};

/// One warp fills the stages with weights.
pub(super) fn weights(k: &mut Builder, parts: &Parts) {
    let config = parts.config;
    fill(k, parts, |k, tile, pass| {
        let first = if config.passes() > 1 { pass } else { 0 };
        let matrices: Vec<Rows> =
            (0..config.matrices()).map(|i| parts.work.weights(k, parts, tile, first + i)).collect();
        let rows = k.variable(config.weight_rows());
        Feed::Slabs(Slabs { operands: matrices, first_operand: 1, rows })
    });
}

/// One warp fills the stages with tokens.
pub(super) fn tokens(k: &mut Builder, parts: &Parts) {
    if parts.config.experts.is_some_and(|experts| experts.follows) {
        // Also where this block has no tile: who waits for this launch must not overtake the one before it.
        k.grid_dependency_wait();
    }
    fill(k, parts, |k, tile, pass| {
        let map = parts.work.map(k, tile);
        if pass == 0 {
            if let Some(map) = map {
                k.prefetch_map(map);
            }
            if parts.config.experts.is_none() {
                let first = k.eq(tile.round, 0);
                k.when(first, |k| k.grid_dependency_wait());
            }
        }
        let rows = own_tokens(k, parts, tile);
        let first_token = parts.own(k, rows, tile.first_token);
        let share = Share::new(k, parts);
        if let Some(map) = map {
            let first_token = share.as_ref().map_or(first_token, |share| k.add(first_token, share.row));
            let unit = k.variable(tile.first_step);
            return Feed::Boxes(Boxes { map, first_token, unit, share });
        }
        let operands: Vec<Rows> = parts.work.tokens(k, parts, tile, first_token).into_iter().collect();
        match (share, parts.work.slab_maps(k), &operands[..]) {
            (Some(share), Some(maps), [rows]) => Feed::Shared(SharedSlabs::new(k, maps, rows, share)),
            _ => Feed::Slabs(Slabs { operands, first_operand: 0, rows }),
        }
    });
}

/// What of a stage's tokens this block brings, and for whom, where it shares them with another.
struct Share {
    /// The first of its rows, and the bytes before it: of codes, or numbers, and of scales.
    row: Reg<U32>,
    codes: Reg<U32>,
    scales: Reg<U32>,
    receivers: Reg<U16>,
}

impl Share {
    fn new(k: &mut Builder, parts: &Parts) -> Option<Self> {
        let (pair, config) = (parts.place.pair?, &parts.config);
        let row = k.mul(pair, config.brought_rows());
        let (codes, scales) = (k.mul(row, ROW_BYTES), k.mul(pair, SCALE_BYTES / config.multicast));
        Some(Share { row, codes, scales, receivers: parts.pipe.receivers(k)? })
    }
}

/// Tokens of a tile that this block brings: where they are columns, as many as the multiplication has, or half of them.
fn own_tokens(k: &mut Builder, parts: &Parts, tile: &Tile) -> Reg<U32> {
    let config = &parts.config;
    if !config.swapped() {
        return k.variable(config.token_rows());
    }
    let step = config.width_step();
    let beyond = k.add(tile.tokens, step - 1);
    let all = k.and(beyond, !(step - 1));
    k.shr(all, config.partners() - 1)
}

/// What a producer brings.
enum Feed {
    Slabs(Slabs),
    Shared(SharedSlabs),
    Boxes(Boxes),
}

/// Boxes of tokens of 16 bits.
struct Boxes {
    map: Reg<TensorMapAddress>,
    first_token: Reg<U32>,
    /// The next unit of 64 of k.
    unit: Reg<U32>,
    share: Option<Share>,
}

/// The same rows of each of some operands.
struct Slabs {
    operands: Vec<Rows>,
    /// The place of the first one's among a stage's blocks of scales.
    first_operand: u32,
    rows: Reg<U32>,
}

/// This block's share of tokens in slabs, as rows of tensor maps: the next slab's first row of codes, and of scales,
/// and rows from slab to slab.
struct SharedSlabs {
    maps: [Reg<TensorMapAddress>; 2],
    at: [Reg<U32>; 2],
    stride: Reg<U32>,
    share: Share,
}

/// One lane fills every stage of every pass of every tile, as soon as it is empty.
fn fill(k: &mut Builder, parts: &Parts, feed: impl Fn(&mut Builder, &Tile, u32) -> Feed) {
    let elected = k.elect();
    k.if_(elected, |k| {
        let turn = parts.pipe.start(k);
        parts.work.each_tile(k, |k, tile| {
            for pass in 0..parts.config.passes() {
                let feed = feed(k, &tile, pass);
                let places = feed.places(k);
                k.repeat(tile.steps, |k, _| {
                    parts.pipe.wait_empty(k, &turn);
                    match &feed {
                        Feed::Slabs(slabs) => slabs.load(k, parts, &turn, &places),
                        Feed::Shared(slabs) => slabs.load(k, parts, &turn),
                        Feed::Boxes(boxes) => boxes.load(k, parts, &turn),
                    }
                    parts.pipe.advance(k, &turn);
                });
            }
        });
    });
}

impl Feed {
    /// Where the next slab's codes and scales are of each operand.
    fn places(&self, k: &mut Builder) -> Vec<[Reg<U64>; 2]> {
        match self {
            Feed::Slabs(Slabs { operands, .. }) => {
                operands.iter().map(|rows| [rows.codes, rows.scales].map(|at| k.variable(at))).collect()
            }
            Feed::Shared(_) | Feed::Boxes(_) => Vec::new(),
        }
    }
}

impl Boxes {
    /// A unit of all tokens of a tile, part by part. What is beyond the last token, or beyond k, comes as zeros.
    fn load(&self, k: &mut Builder, parts: &Parts, turn: &Turn) {
        let config = &parts.config;
        let [bytes, ..] = config.stage_bytes();
        let bytes = k.variable(bytes);
        let full = parts.pipe.announce(k, turn, bytes);
        let [to, _] = parts.pipe.codes(k, turn);
        let to = self.share.as_ref().map_or(to, |share| k.add(to, share.codes));
        let multicast = self.share.as_ref().map(|share| share.receivers);
        let depth = k.mul(self.unit, UNIT);
        for part in 0..config.parts() {
            let to = Addr::<Shared>::of(to).plus((part * config.token_rows() * ROW_BYTES).cast_signed());
            let mut at: Vec<Value<S32>> = vec![depth.cast().into(), self.first_token.cast().into()];
            if config.parts() > 1 {
                at.push(part.cast_signed().into());
            }
            k.tensor_load(to, self.map, &at, full, CopyOptions { multicast, ..CopyOptions::default() });
        }
        let next = k.add(self.unit, 1);
        k.set(self.unit, next);
    }
}

impl Slabs {
    /// All of a stage.
    fn load(&self, k: &mut Builder, parts: &Parts, turn: &Turn, places: &[[Reg<U64>; 2]]) {
        let codes = k.mul(self.rows, ROW_BYTES);
        let each = k.add(codes, SCALE_BYTES);
        let all = k.mul(each, places.len() as u32);
        let full = parts.pipe.announce(k, turn, all);
        let [tokens, weights] = parts.pipe.codes(k, turn);
        let to = if self.first_operand == 0 { tokens } else { weights };
        let Some(scales) = parts.pipe.scales(k, turn) else { return };
        let options = CopyOptions::default();
        for (index, [code_place, scale_place]) in (0..).zip(places) {
            let to = Addr::<Shared>::of(to).plus((index * parts.pipe.matrix_bytes()).cast_signed());
            k.bulk_load(to, Addr::of(*code_place), codes, full, options);
            let block = self.first_operand + index;
            let to = Addr::<Shared>::of(scales).plus((block * SCALE_BYTES).cast_signed());
            k.bulk_load(to, Addr::of(*scale_place), SCALE_BYTES, full, options);
        }
        for (place, rows) in places.iter().zip(&self.operands) {
            for at in place {
                let next = k.add(*at, rows.stride);
                k.set(*at, next);
            }
        }
    }
}

impl SharedSlabs {
    /// From the bytes of a block's rows, of which the share is a part.
    fn new(k: &mut Builder, maps: [Reg<TensorMapAddress>; 2], rows: &Rows, share: Share) -> Self {
        let at = [(rows.codes, share.codes), (rows.scales, share.scales)].map(|(start, before)| {
            let start = k.mul_wide_add(before, 1u32, start);
            let row = map_row(k, start);
            k.variable(row)
        });
        SharedSlabs { maps, at, stride: map_row(k, rows.stride), share }
    }

    /// This block's share of a stage, for those that have the same tokens; announced is all that it gets of them.
    fn load(&self, k: &mut Builder, parts: &Parts, turn: &Turn) {
        let bytes = k.variable(parts.config.token_rows() * ROW_BYTES + SCALE_BYTES);
        let full = parts.pipe.announce(k, turn, bytes);
        let [codes, _] = parts.pipe.codes(k, turn);
        let Some(scales) = parts.pipe.scales(k, turn) else { return };
        let options = CopyOptions { multicast: Some(self.share.receivers), policy: None };
        let targets = [k.add(codes, self.share.codes), k.add(scales, self.share.scales)];
        for ((to, map), row) in targets.into_iter().zip(self.maps).zip(self.at) {
            let at: [Value<S32>; 2] = [0i32.into(), row.cast().into()];
            k.tensor_load(Addr::<Shared>::of(to), map, &at, full, options);
            let next = k.add(row, self.stride);
            k.set(row, next);
        }
    }
}

/// Which row of slabs' tensor maps begins at so many bytes.
fn map_row(k: &mut Builder, bytes: Reg<U64>) -> Reg<U32> {
    let row = k.shr(bytes, ROW_BYTES.trailing_zeros());
    k.convert(row)
}
