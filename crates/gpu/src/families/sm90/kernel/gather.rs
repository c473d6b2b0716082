//! Tokens that are read where they lie: two warps fill the stages with them, in place of one thread with tensor copies
//! of rows that were copied together before.
//!
//! A tensor copy brings neighbouring rows. Here each lane copies pieces of 16 bytes of its own rows, to where a tensor
//! copy's swizzle would have put them. No barrier counts such bytes: a lane waits until its pieces of a stage have
//! landed, orders them before what the tensor cores read, and arrives. It does so some stages behind the one that it
//! asks for, since copies need that long.

use ptx::instr::{LoadOrder, ShuffleMode};
use ptx::{Addr, Builder, Global, Reg, Scope, Shared, SpecialRegister, U32, U64};

use super::pipeline::Turn;
use super::produce::{self, Place};
use super::work::{Found, Source};
use super::{GATHERING_WARPS, MultiplySpec, Parts, UNIT};

/// Bytes of a piece.
const PIECE: u32 = 16;
/// Stages that are under way at most.
const MOST_BEHIND: u32 = 3;

impl MultiplySpec {
    /// Pieces of a row in a unit of k.
    fn pieces(&self) -> u32 {
        self.token_bytes() / PIECE
    }

    /// Rows of which a warp copies a piece per lane at a time, each lane another.
    fn rows_of_warp(&self) -> u32 {
        32 / self.pieces()
    }

    /// Rows of all warps at a time: whole periods of the swizzle, so that a lane's places differ by a constant.
    pub(super) fn gathered_rows(&self) -> u32 {
        GATHERING_WARPS * self.rows_of_warp()
    }

    /// How many stages after it was asked for a stage is said to have landed: consumers hold one for each warpgroup
    /// that reads others, and wait for the next.
    fn behind(&self) -> u32 {
        self.stages.saturating_sub(1 + self.division().along_k).min(MOST_BEHIND)
    }
}

/// Fills the stages of every tile. `warp` is this warp's number among those that do.
pub(super) fn tokens(k: &mut Builder, parts: &Parts, source: &Source, warp: Reg<U32>) {
    let lanes = Lanes::new(k, &parts.config, warp);
    let turn = parts.pipe.start(k);
    let under_way = UnderWay { next: k.variable(0), stages: k.variable(0), most: parts.config.behind() };
    parts.work.each_tile(k, |k, found, _| {
        let rows = Rows::new(k, parts, source, &lanes, &found);
        let place = Place::first(k, parts, &found.tile);
        k.repeat(found.tile.share.stages, |k, _| {
            parts.pipe.wait_empty(k, &turn);
            rows.copy(k, parts, &turn, &place);
            k.thread_commit();
            under_way.add(k, parts);
            place.advance(k, parts);
            parts.pipe.advance(k, &turn, 1);
        });
    });
    under_way.finish(k, parts);
    produce::end(k, parts);
}

/// Stages that were asked for, and of which nobody knows yet that they have landed.
struct UnderWay {
    /// The first of them.
    next: Reg<U32>,
    /// How many there are.
    stages: Reg<U32>,
    most: u32,
}

impl UnderWay {
    /// One more. Where they are too many then, waits for the first.
    fn add(&self, k: &mut Builder, parts: &Parts) {
        let too_many = k.ge(self.stages, self.most);
        k.if_else(
            too_many,
            |k| {
                k.thread_wait(self.most);
                self.land(k, parts);
            },
            |k| {
                let more = k.add(self.stages, 1);
                k.set(self.stages, more);
            },
        );
    }

    /// The first one has landed.
    fn land(&self, k: &mut Builder, parts: &Parts) {
        k.fence_async_shared();
        parts.pipe.land(k, self.next);
        let next = k.add(self.next, 1);
        let wrapped = k.ge(next, parts.config.stages);
        let next = k.select(wrapped, 0, next);
        k.set(self.next, next);
    }

    /// Waits for all.
    fn finish(&self, k: &mut Builder, parts: &Parts) {
        k.thread_wait(0);
        k.repeat(self.stages, |k, _| self.land(k, parts));
    }
}

/// What a lane copies, whatever the tile.
struct Lanes {
    lane: Reg<U32>,
    /// Its row among those of all warps at a time, and its piece, in bytes from a row's first.
    row: Reg<U32>,
    piece: Reg<U32>,
    /// Where they go, from the start of a unit's tokens.
    to: Reg<U32>,
    /// The warp's first row.
    first: Reg<U32>,
}

impl Lanes {
    fn new(k: &mut Builder, config: &MultiplySpec, warp: Reg<U32>) -> Self {
        let thread = k.special(SpecialRegister::TidX);
        let lane = k.and(thread, 31);
        let first = k.mul(warp, config.rows_of_warp());
        let row = k.shr(lane, config.pieces().trailing_zeros());
        let row = k.add(row, first);
        let piece = k.and(lane, config.pieces() - 1);
        let piece = k.mul(piece, PIECE);
        // The swizzle: which of its row's pieces a piece becomes goes by the number of 128 bytes that come before.
        let linear = k.mul_add(row, config.token_bytes(), piece);
        let turned = k.shr(linear, 3);
        let turned = k.and(turned, (config.pieces() - 1) * PIECE);
        Lanes { lane, row, piece, to: k.xor(linear, turned), first }
    }
}

/// The rows of a tile.
struct Rows {
    /// A lane's piece of the first token.
    from: Reg<U64>,
    /// Bytes of a token.
    bytes: Reg<U32>,
    piece: Reg<U32>,
    to: Reg<U32>,
    /// The lane that knows the token of this lane's row, the first time.
    knows: Reg<U32>,
    /// Tokens of the warp's rows, a row per lane.
    tokens: Vec<Reg<U32>>,
    /// Rows that are multiplied, which may be more than there are.
    width: Option<Reg<U32>>,
}

impl Rows {
    /// Rows beyond the tile's last are that one once more: what becomes of them is not stored.
    fn new(k: &mut Builder, parts: &Parts, source: &Source, lanes: &Lanes, found: &Found) -> Self {
        let config = &parts.config;
        let (at_a_time, of_warp) = (config.gathered_rows(), config.rows_of_warp());
        let tile = &found.tile;
        let last = k.sub(tile.tokens, 1);
        // Lanes know the warp's rows one after another: those of some times at once.
        let time = k.shr(lanes.lane, of_warp.trailing_zeros());
        let row = k.and(lanes.lane, of_warp - 1);
        let row = k.mul_add(time, at_a_time, row);
        let row = k.add(row, lanes.first);
        let known = at_a_time * config.pieces();
        let tokens = (0..config.tokens).step_by(known as usize).map(|before| {
            let row = k.add(row, before);
            let row = k.min(row, last);
            let row = k.add(tile.first_token, row);
            let at = Addr::<Global>::of(k.mul_wide_add(row, 4, source.order));
            // Past L1, which may still have what was there when another kernel read it.
            let [entry]: [Reg<U32>; 1] = k.load_as(LoadOrder::Relaxed(Scope::Gpu), at);
            k.div(entry, source.top)
        });
        let tokens = tokens.collect();
        let bytes = k.mul(source.columns, config.element.bytes());
        let width = match config.widths()[..] {
            [_] => None,
            _ => Some(k.max(found.most_tokens, config.least_width())),
        };
        Rows {
            from: k.mul_wide_add(lanes.piece, 1, source.tokens),
            bytes,
            piece: lanes.piece,
            to: lanes.to,
            knows: k.sub(lanes.row, lanes.first),
            tokens,
            width,
        }
    }

    /// Asks for a stage of them. What is beyond a token's last number comes as zeros.
    fn copy(&self, k: &mut Builder, parts: &Parts, turn: &Turn, place: &Place) {
        let config = &parts.config;
        let along = k.mul(place.unit, config.token_bytes());
        let along = k.variable(along);
        let stage = parts.pipe.token_tile(k, turn);
        let to = k.add(stage, self.to);
        let to = k.variable(to);
        let unit = |k: &mut Builder| {
            let from = k.mul_wide_add(along, 1, self.from);
            let column = k.add(along, self.piece);
            let there = k.lt(column, self.bytes);
            let there = k.select(there, PIECE, 0u32);
            let step = config.width_step().max(config.gathered_rows());
            for first in (0..config.tokens).step_by(step as usize) {
                let end = (first + step).min(config.tokens);
                let some = |k: &mut Builder| {
                    for row in (first..end).step_by(config.gathered_rows() as usize) {
                        self.copy_at(k, config, row, from, Addr::of(to), there);
                    }
                };
                match self.width {
                    Some(width) if first >= config.least_width() => {
                        let multiplied = k.gt(width, first);
                        k.if_(multiplied, some);
                    }
                    _ => some(k),
                }
            }
        };
        if config.units == 1 {
            return unit(k);
        }
        let units = place.units(k, parts);
        k.repeat(units, |k, _| {
            unit(k);
            let (next, further) = (k.add(to, config.unit_bytes()[0]), k.add(along, UNIT * config.element.bytes()));
            k.set(to, next);
            k.set(along, further);
        });
    }

    /// The pieces of all lanes in the rows from this one on.
    fn copy_at(
        &self,
        k: &mut Builder,
        config: &MultiplySpec,
        row: u32,
        from: Reg<U64>,
        to: Addr<Shared>,
        there: Reg<U32>,
    ) {
        let time = row / config.gathered_rows();
        let [of_lane, inside] = [time / config.pieces(), time % config.pieces()];
        let knows = k.add(self.knows, inside * config.rows_of_warp());
        let token = k.shuffle(ShuffleMode::Index, self.tokens[of_lane as usize], knows);
        let from = Addr::<Global>::of(k.mul_wide_add(token, self.bytes, from));
        k.thread_copy_filled(to.plus((row * config.token_bytes()).cast_signed()), from, PIECE, there);
    }
}
