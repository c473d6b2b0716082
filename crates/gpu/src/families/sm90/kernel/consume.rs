//! A consumer warpgroup: its part of each tile, from the first stage to C.
//!
//! The main loop goes through k stage by stage, and through the units of a stage one after another: where a unit is
//! within its stage is known when the kernel is built, so only a change of stage costs instructions. The last stage,
//! which may hold fewer units, stands apart, and the loop before it never asks whether there is more. Within a unit
//! there are two ways.
//!
//! *Fine*, where multiplications are long: it holds four fragments, one per slice of a unit, and runs two of them
//! ahead. Fragment j + 2 is dequantised while the tensor cores multiply fragments j and j + 1, so at most two groups
//! are ever in flight. Each multiplication is a group of its own; once no more than two are in flight, the one that
//! read the fragment to be made anew is done. The words of the next unit are read before the third multiplication.
//!
//! *Coarse*, where they are short and waiting for each would take longer: it holds two sets of four fragments, and
//! dequantises one unit while the tensor cores multiply the one before, a group of four.
//!
//! *By warps*, for the fewest: `mma.sync` multiplies at once, so nothing is waited for, and a stage is released behind
//! its last product. A warp's part of wgmma's operand A is `mma.sync`'s, and so is its part of the sums. Tokens come to
//! registers by `ldmatrix`.
//!
//! *Scaled* is either of them where the sums of a unit have scales of their own (FP8's of blocks): they begin from
//! zero, and are added to the total, in one rounding each, before the next unit's products begin.
//!
//! *Rounded* is the fine way with e4m3 numbers, of which one multiplication takes twice as many: the four fragments are
//! of two units, two sets of two.

use ptx::instr::{Accumulate, MatrixElement};
use ptx::{Addr, Builder, F32, Pred, Reg, Shared, U32, U64};

use super::bytes::ByteFragments;
use super::fragments::{Fragments, Powers};
use super::pipeline::{Spot, Turn};
use super::work::{Share, Tile};
use super::{ALL_CONSUMERS, Division, MultiplySpec, Parts, Products, ROW_BYTES, TOKEN_LAYOUT, Tokens};
use crate::pack::Codes;
use crate::phases::groups::Groups;
use op::Schedule;

/// What one thread of a consumer warpgroup holds.
pub(super) struct Consumer {
    pub config: MultiplySpec,
    /// Thread in the warpgroup.
    pub thread: Reg<U32>,
    /// Lane in the warp.
    pub lane: Reg<U32>,
    /// Warp in the warpgroup.
    pub quarter: Reg<U32>,
    /// Warpgroup.
    pub warpgroup: Reg<U32>,
    /// The warpgroup's place along n, and along k.
    pub along_n: Reg<U32>,
    pub along_k: Reg<U32>,
    /// Bytes from a stage's weights to this lane's words, and to its row's scales, if there are some, in the first of
    /// the warpgroup's chunks.
    words_at: Reg<U32>,
    scales_at: Option<Reg<U32>>,
    /// Fragments for each block of rows.
    blocks: Vec<Fragments>,
    /// Sums: for each pass, for each block of rows.
    pub sums: Vec<Vec<Reg<F32>>>,
    /// Sums of one unit, for each block of rows, where those have scales of their own.
    apart: Option<Vec<Vec<Reg<F32>>>>,
    /// Where warps multiply by themselves: bytes from a unit's tokens to the row that this lane gives the address of,
    /// for the first two slices and the second.
    token_rows: Option<[Reg<U32>; 2]>,
}

/// Where the main loop is.
pub(super) struct Walk {
    /// A stage that has been read but not yet released, or 0.
    pending: Reg<U32>,
    pub here: Spot,
    /// The stage after this one. It is found early, while multiplications are under way.
    pub next: Spot,
    turn: Turn,
}

impl Walk {
    pub fn new(k: &mut Builder, turn: Turn) -> Self {
        Walk { pending: k.variable(0), here: Spot::new(k), next: Spot::new(k), turn }
    }

    pub fn turn(&self) -> &Turn {
        &self.turn
    }

    /// Finds the stage whose turn it is.
    pub fn find(&self, k: &mut Builder, parts: &Parts) {
        parts.pipe.find(k, &self.turn, &self.here);
    }
}

/// What is multiplied: a unit of the stage, for one pass, into the sums of so many tokens.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    pub pass: usize,
    pub width: u32,
    /// Place in the stage.
    pub place: u32,
    /// Whether the stage is the last one.
    pub last: bool,
    /// Whether its first product replaces the sums, and nothing is in flight before it: it is a tile's first, or its
    /// sums are made apart.
    pub replaces: bool,
}

/// What comes after a unit.
#[derive(Clone, Copy)]
pub(super) enum Ahead {
    /// The next unit of the same stage; if there is a predicate, where it holds.
    Unit(Option<Pred>),
    /// The first unit of the next stage.
    Stage,
    /// The next unit of the same stage where the first predicate holds, and else the next tile's first stage, where the
    /// second one does.
    Tile(Option<Pred>, Pred),
    Nothing,
}

/// What is done after each multiplication of a unit, while it is under way.
pub(super) type Beside<'a> = &'a mut dyn FnMut(&mut Builder);

pub(super) fn consume(k: &mut Builder, parts: &Parts, thread: Reg<U32>, warp: Reg<U32>) {
    let consumer = Consumer::new(k, parts, thread, warp);
    if let (Some(ring), true) = (&parts.tiles, parts.config.under > 0) {
        consumer.overlap(k, parts, ring);
    } else {
        consumer.one_by_one(k, parts);
    }
    if let Groups::Experts(work) = &parts.work.groups
        && work.sums()
    {
        k.phase("sum", |k| {
            let consumers = 128 * parts.config.warpgroups();
            work.sum(k, thread, |k| k.named_sync(ALL_CONSUMERS, consumers));
        });
    }
}

impl Consumer {
    /// All of the block's tiles, each stored before the next begins.
    fn one_by_one(&self, k: &mut Builder, parts: &Parts) {
        let turn = parts.pipe.start(k);
        parts.work.each_consumed(k, parts.tiles.as_ref(), |k, tile, round| {
            let stages = k.mul(tile.share.stages, parts.config.passes());
            if parts.config.ping_pong {
                let whose = k.and(round, 1);
                let mine = k.eq(whose, self.warpgroup);
                k.if_(mine, |k| self.compute(k, parts, &tile, &turn, round));
            } else {
                self.compute(k, parts, &tile, &turn, round);
            }
            if parts.config.schedule == Schedule::Persistent {
                parts.pipe.skip(k, &turn, stages);
            }
        });
    }

    fn new(k: &mut Builder, parts: &Parts, thread: Reg<U32>, warp: Reg<U32>) -> Self {
        let config = parts.config;
        let division = config.division();
        let lane = k.and(thread, 31);
        let (warpgroup, quarter) = (k.shr(warp, 2), k.and(warp, 3));
        let (along_n, along_k) = match (config.ping_pong, division) {
            (true, _) => (k.variable(0), k.variable(0)),
            (false, Division { along_k: 1, .. }) => (warpgroup, k.variable(0)),
            // One or two warpgroups along n.
            (false, Division { along_n, .. }) => (k.and(warpgroup, along_n - 1), k.shr(warpgroup, along_n / 2)),
        };
        let (words, scales) = Fragments::offsets(k, config.scales, quarter, lane);
        let first_chunk = 2 * division.blocks * parts.pipe.chunk_stride();
        let powers = (config.codes() == Codes::Nibbles).then(|| Powers::new(k, lane));
        Consumer {
            config,
            thread: k.and(thread, 127),
            lane,
            quarter,
            warpgroup,
            along_n,
            along_k,
            words_at: k.mul_add(along_n, first_chunk, words),
            scales_at: scales.map(|scales| k.mul_add(along_n, first_chunk, scales)),
            blocks: (0..division.blocks).map(|_| Fragments::new(k, &config, powers)).collect(),
            sums: sums(k, &config, config.passes() * division.blocks),
            apart: config.scales_sums().then(|| sums(k, &config, division.blocks)),
            token_rows: config.by_warps.then(|| token_rows(k, lane)),
        }
    }

    /// A tile, from the first stage to C.
    fn compute(&self, k: &mut Builder, parts: &Parts, tile: &Tile, start: &Turn, round: Reg<U32>) {
        let turn = parts.pipe.fork(k, start);
        for &sum in self.sums.iter().flatten() {
            k.set(sum, 0.0);
        }
        for (row, matrix) in
            [0, if self.config.products == Products::Interleaved { 1 } else { 0 }].into_iter().enumerate()
        {
            if let Some(lift) = tile.owner.lift(k, matrix) {
                self.blocks.iter().for_each(|block| block.lift(k, row, lift));
            }
        }
        // An expert's factors and biases are in memory, and so are columns' factors and what rows were divided by: they
        // are asked for before they are needed. Columns' are waited for at once, so only where a tile's first stage is
        // to be waited for anyway.
        let by_column = self.config.scales.is_fp8() && self.config.schedule != Schedule::Persistent;
        let foresees = self.config.experts.is_some() || self.config.element == Tokens::E4m3 || by_column;
        let early = foresees.then(|| k.phase("foresee", |k| parts.epilogue.gates(k, parts, self, tile)));
        if self.config.ping_pong {
            k.phase("take turns", |k| parts.pipe.await_other(k, self.warpgroup, round));
        }
        let deltas = parts.epilogue.foreseen(k);
        let foresee = |k: &mut Builder| k.phase("foresee", |k| parts.epilogue.foresee(k, (self, tile), &deltas));
        let before_last = (!deltas.is_empty()).then_some(&foresee as &dyn Fn(&mut Builder));
        self.choose_width(k, &self.config.widths(), tile, &mut |k, width| {
            for pass in 0..self.config.passes() {
                self.main_loop(k, parts, (&turn, &tile.share), (pass as usize, width), before_last);
            }
        });
        if self.config.ping_pong {
            k.phase("take turns", |k| parts.pipe.hand_over(k, self.warpgroup));
        }
        k.phase("combine", |k| parts.combine.combine(k, self));
        k.phase("finish", |k| {
            let mut gates = early.unwrap_or_else(|| parts.epilogue.gates(k, parts, self, tile));
            gates.deltas.extend(deltas);
            parts.epilogue.finish(k, parts, self, tile, gates);
        });
    }

    /// The main loop for the least width that covers the tile's tokens.
    pub fn choose_width(&self, k: &mut Builder, widths: &[u32], tile: &Tile, body: &mut dyn FnMut(&mut Builder, u32)) {
        match widths {
            [] => {}
            [only] => body(k, *only),
            [least, wider @ ..] => {
                let fits = k.le(tile.tokens, *least);
                let (other, end) = (k.label(), k.label());
                k.branch_unless(fits, other);
                body(k, *least);
                k.branch(end);
                k.place(other);
                self.choose_width(k, wider, tile, body);
                k.place(end);
            }
        }
    }

    /// Which stages of a share are this warpgroup's: with two along k each has the stages of one parity, so that it
    /// waits for every round of them. Leaves the first one in `turn`, and says how many there are, and how many units
    /// the last one holds.
    pub fn own_stages(&self, k: &mut Builder, parts: &Parts, turn: &Turn, share: &Share) -> [Reg<U32>; 2] {
        let units = self.config.units;
        let full = k.mul(share.stages, units);
        let missing = k.sub(full, share.units);
        let units = k.variable(units);
        let last = k.sub(units, missing);
        if self.config.division().along_k == 1 {
            return [share.stages, last];
        }
        let parity = k.and(turn.stage, 1);
        let late = k.xor(parity, self.along_k);
        let second = k.ne(late, 0);
        k.if_(second, |k| {
            parts.pipe.advance(k, turn, 1);
        });
        let stages = k.add(share.stages, 1);
        let stages = k.sub(stages, late);
        let stages = k.shr(stages, 1);
        // The share's last stage is the warpgroup's whose turn it is.
        let index = k.sub(share.stages, 1);
        let whose = k.and(index, 1);
        let mine = k.eq(whose, late);
        [stages, k.select(mine, last, units)]
    }

    /// Whether there are so few stages that the next one is the present one: it cannot be waited for before it is
    /// released.
    fn alone(&self) -> bool {
        self.config.stages <= self.config.division().along_k
    }

    /// Whether other tiles or passes may follow; else nobody waits for the last stages to be released.
    fn more_follows(&self) -> bool {
        self.config.schedule == Schedule::Persistent || self.config.passes() > 1
    }

    /// All of a share of k, for one pass, into the sums of so many tokens, with something that is done before the last
    /// stage.
    fn main_loop(
        &self,
        k: &mut Builder,
        parts: &Parts,
        (turn, share): (&Turn, &Share),
        (pass, width): (usize, u32),
        before_last: Option<&dyn Fn(&mut Builder)>,
    ) {
        let own = parts.pipe.fork(k, turn);
        let [stages, last_units] = self.own_stages(k, parts, &own, share);
        let walk = Walk::new(k, own);
        let (multiplied, end) = (k.label(), k.label());
        // A short k may leave nothing for the second block or the second warpgroup.
        if self.config.division().along_k > 1 || self.config.schedule == Schedule::SplitK {
            let nothing = k.eq(stages, 0);
            match before_last {
                None => k.branch_if(nothing, end),
                Some(foresee) => k.if_(nothing, |k| {
                    foresee(k);
                    k.branch(end);
                }),
            }
        }
        walk.find(k, parts);
        self.enter(k, parts, &walk, &walk.here);
        self.begin(k);
        let units = self.config.units;
        let unit = |place, last| Unit { pass, width, place, last, replaces: false };
        let beside: Beside<'_> = &mut |_| {};
        let others = k.sub(stages, 1);
        k.repeat(others, |k, _| {
            for place in 0..units {
                let ahead = if place + 1 < units { Ahead::Unit(None) } else { Ahead::Stage };
                self.unit(k, parts, &walk, unit(place, false), ahead, beside);
            }
        });
        before_last.into_iter().for_each(|foresee| foresee(k));
        for place in 0..units - 1 {
            let more = k.gt(last_units, place + 1);
            self.unit(k, parts, &walk, unit(place, true), Ahead::Unit(Some(more)), beside);
            k.branch_unless(more, multiplied);
        }
        self.unit(k, parts, &walk, unit(units - 1, true), Ahead::Nothing, beside);
        k.place(multiplied);
        if !self.config.by_warps && self.apart.is_none() {
            k.wgmma_wait(0);
        }
        if self.more_follows() {
            k.phase("release", |k| parts.pipe.release(k, &walk.here));
        }
        k.place(end);
        if self.config.passes() > 1 {
            parts.pipe.skip(k, turn, share.stages);
        }
    }

    /// Waits for the stage whose turn it is, and reads the words of its first unit.
    pub fn enter(&self, k: &mut Builder, parts: &Parts, walk: &Walk, spot: &Spot) {
        k.phase("wait", |k| parts.pipe.wait_full(k, spot, &walk.turn));
        self.load(k, parts, spot, 0);
    }

    /// Makes the fragments that a unit expects to be ready: two, or with the coarse way the first set.
    pub fn begin(&self, k: &mut Builder) {
        let two = self.config.fragment_sets() == 1 && !self.config.by_warps;
        let ready = if two { &[0, 1] } else { self.all_slices() };
        self.dequantise(k, 0, ready);
    }

    /// The multiplications of a unit.
    fn all_slices(&self) -> &'static [usize] {
        if self.config.element == Tokens::E4m3 { &[0, 1] } else { &[0, 1, 2, 3] }
    }

    /// Multiplies one unit, while what comes after it is made ready.
    pub fn unit(&self, k: &mut Builder, parts: &Parts, walk: &Walk, unit: Unit, ahead: Ahead, beside: Beside<'_>) {
        match ahead {
            _ if self.config.by_warps => self.unit_by_warps(k, parts, walk, unit, ahead),
            Ahead::Stage if self.alone() => {
                self.unit_fine(k, parts, walk, unit, Ahead::Nothing, beside);
                k.wgmma_wait(0);
                k.phase("release", |k| parts.pipe.release(k, &walk.here));
                self.follow(k, parts, walk, &walk.here);
                self.begin(k);
            }
            _ if self.apart.is_some() => self.unit_scaled(k, parts, walk, unit, ahead),
            _ if self.config.rounds_finely() => self.unit_rounded(k, parts, walk, unit, ahead),
            _ if self.config.fragment_sets() == 1 => self.unit_fine(k, parts, walk, unit, ahead, beside),
            _ => self.unit_coarse(k, parts, walk, unit, ahead),
        }
    }

    /// Fragments 0 and 1 are ready; 2 and 3, and then the next unit's 0 and 1, are made while the tensor cores are
    /// busy.
    fn unit_fine(&self, k: &mut Builder, parts: &Parts, walk: &Walk, unit: Unit, ahead: Ahead, beside: Beside<'_>) {
        // Before a tile's first two products nothing is in flight.
        let wait = |k: &mut Builder| {
            if !unit.replaces {
                k.wgmma_wait(2)
            }
        };
        self.multiply(k, 0, &[0], walk, unit);
        beside(k);
        wait(k);
        self.dequantise(k, 0, &[2]);
        self.multiply(k, 0, &[1], walk, unit);
        beside(k);
        wait(k);
        // No group of the stage before is in flight any more.
        self.release_pending(k, parts, walk, unit);
        self.look_ahead(k, parts, walk, unit, ahead);
        self.dequantise(k, 0, &[3]);
        let more = !matches!(ahead, Ahead::Nothing);
        self.multiply(k, 0, &[2], walk, unit);
        beside(k);
        if more {
            self.refill(k, 0);
        }
        self.multiply(k, 0, &[3], walk, unit);
        beside(k);
        if more {
            self.refill(k, 1);
        }
        self.leave(k, parts, walk, ahead);
    }

    /// The unit's set of fragments is ready; the next unit's, in the other set, is made while the tensor cores are
    /// busy.
    fn unit_coarse(&self, k: &mut Builder, parts: &Parts, walk: &Walk, unit: Unit, ahead: Ahead) {
        let set = unit.place as usize % 2;
        // What is in this stage can be read at once; another one may have to be waited for.
        let at_once = matches!(ahead, Ahead::Unit(_));
        if at_once {
            self.look_ahead(k, parts, walk, unit, ahead);
        }
        self.multiply(k, set, self.all_slices(), walk, unit);
        if matches!(ahead, Ahead::Nothing) {
            return;
        }
        if !at_once {
            self.look_ahead(k, parts, walk, unit, ahead);
        }
        // The group before this one is done, if there was one, and so is the stage that it was the last to read.
        if !unit.replaces {
            k.wgmma_wait(1);
        }
        self.release_pending(k, parts, walk, unit);
        self.dequantise(k, 1 - set, self.all_slices());
        self.leave(k, parts, walk, ahead);
    }

    /// The unit's sums begin from zero; the next unit's fragments are made while the tensor cores are busy. Then all of
    /// it is done, and the sums are added to the total with their scales, while the tensor cores work for the other
    /// warpgroups.
    fn unit_scaled(&self, k: &mut Builder, parts: &Parts, walk: &Walk, unit: Unit, ahead: Ahead) {
        let unit = Unit { replaces: true, ..unit };
        self.bytes().for_each(|block| block.keep_scales(k));
        match self.config.fragment_sets() {
            1 => self.unit_fine(k, parts, walk, unit, ahead, &mut |_| {}),
            _ => self.unit_coarse(k, parts, walk, unit, ahead),
        }
        k.wgmma_wait(0);
        if let Ahead::Stage = ahead {
            k.phase("release", |k| parts.pipe.release_last(k, walk.pending));
        }
        k.phase("scale", |k| self.add_scaled(k, unit));
    }

    /// Adds a unit's sums to the total, with the scales of their rows.
    fn add_scaled(&self, k: &mut Builder, unit: Unit) {
        for ((block, apart), total) in self.bytes().zip(self.apart.iter().flatten()).zip(&self.sums) {
            let Some(scales) = block.sum_scales() else { continue };
            for (index, (&sum, &total)) in apart.iter().zip(total).take(unit.width as usize / 2).enumerate() {
                let with = k.fma(sum, scales[index / 2 % 2], total);
                k.set(total, with);
            }
        }
    }

    /// Its fragments of FP8, if they are that.
    fn bytes(&self) -> impl Iterator<Item = &ByteFragments> {
        self.blocks.iter().filter_map(|block| match block {
            Fragments::Bytes(bytes) => Some(bytes),
            Fragments::Codes(_) => None,
        })
    }

    /// The unit's set of fragments is ready; the next unit's is made beside the multiplications: the assembler has both
    /// to choose from, since nothing stands between them.
    fn unit_by_warps(&self, k: &mut Builder, parts: &Parts, walk: &Walk, unit: Unit, ahead: Ahead) {
        let sets = self.config.fragment_sets() as usize;
        let [set, next] = [0, 1].map(|later| (unit.place as usize + later) % sets);
        if matches!(ahead, Ahead::Unit(_)) {
            self.look_ahead(k, parts, walk, unit, ahead);
        }
        self.multiply(k, set, self.all_slices(), walk, unit);
        match ahead {
            Ahead::Nothing => return,
            Ahead::Stage => {
                k.phase("release", |k| parts.pipe.release(k, &walk.here));
                self.follow(k, parts, walk, &walk.here);
            }
            Ahead::Unit(_) | Ahead::Tile(..) => {}
        }
        self.dequantise(k, next, self.all_slices());
    }

    /// The unit's set of two fragments is ready; the next unit's, in the other set, are made one after the other, each
    /// once the multiplication that read the one before it is done.
    fn unit_rounded(&self, k: &mut Builder, parts: &Parts, walk: &Walk, unit: Unit, ahead: Ahead) {
        let set = unit.place as usize % 2;
        let more = !matches!(ahead, Ahead::Nothing);
        // What is in this stage can be read at once; another one may have to be waited for.
        let at_once = matches!(ahead, Ahead::Unit(_));
        if at_once {
            self.look_ahead(k, parts, walk, unit, ahead);
        }
        for slice in 0..2 {
            self.multiply(k, set, &[slice], walk, unit);
            if slice == 0 && !at_once {
                self.look_ahead(k, parts, walk, unit, ahead);
            }
            if more {
                k.wgmma_wait(2);
            }
            if slice == 1 && more {
                // No group of the stage before is in flight any more.
                self.release_pending(k, parts, walk, unit);
            }
            if more {
                self.dequantise(k, 1 - set, &[slice]);
            }
        }
        self.leave(k, parts, walk, ahead);
    }

    /// Reads the words of what comes after a unit, where it is there.
    fn look_ahead(&self, k: &mut Builder, parts: &Parts, walk: &Walk, unit: Unit, ahead: Ahead) {
        match ahead {
            Ahead::Nothing => {}
            Ahead::Unit(None) => self.load(k, parts, &walk.here, unit.place + 1),
            Ahead::Unit(Some(more)) => k.if_(more, |k| self.load(k, parts, &walk.here, unit.place + 1)),
            Ahead::Stage => self.follow(k, parts, walk, &walk.next),
            Ahead::Tile(unit_follows, tile_follows) => {
                let next_tile = |k: &mut Builder| k.if_(tile_follows, |k| self.follow(k, parts, walk, &walk.next));
                match unit_follows {
                    None => next_tile(k),
                    Some(more) => k.if_else(more, |k| self.load(k, parts, &walk.here, unit.place + 1), next_tile),
                }
            }
        }
    }

    /// Goes on to this warpgroup's next stage and enters it.
    fn follow(&self, k: &mut Builder, parts: &Parts, walk: &Walk, next: &Spot) {
        parts.pipe.follow(k, &walk.turn, self.config.division().along_k, &walk.here, next);
        self.enter(k, parts, walk, next);
    }

    /// Goes on to the next stage, if that is what comes. The present one will be released when its last multiplication
    /// is done.
    fn leave(&self, k: &mut Builder, parts: &Parts, walk: &Walk, ahead: Ahead) {
        if let Ahead::Stage = ahead {
            parts.pipe.note(k, &walk.here, walk.pending);
            walk.here.set(k, &walk.next);
        }
    }

    /// Once a stage's first unit is under way: releases the stage before, if there was one.
    fn release_pending(&self, k: &mut Builder, parts: &Parts, walk: &Walk, unit: Unit) {
        if unit.place > 0 || unit.replaces || self.alone() || (unit.last && !self.more_follows()) {
            return;
        }
        k.phase("release", |k| match self.config.under {
            0 => parts.pipe.release_noted(k, walk.pending),
            // The tile has a stage behind it.
            _ => parts.pipe.release_last(k, walk.pending),
        });
    }

    /// Reads this thread's words and scales of a unit.
    fn load(&self, k: &mut Builder, parts: &Parts, spot: &Spot, place: u32) {
        let stride = parts.pipe.chunk_stride();
        k.phase("load", |k| {
            let words = k.add(spot.chunks, self.words_at);
            let scales = self.scales_at.map(|scales_at| k.add(spot.chunks, scales_at));
            for (block, fragments) in self.blocks.iter().enumerate() {
                let further = (2 * block as u32 * stride + place * self.config.scales.chunk_bytes()).cast_signed();
                let at = |address| Addr::<Shared>::of(address).plus(further);
                fragments.load(k, at(words), scales.map(at), stride);
            }
        });
    }

    fn dequantise(&self, k: &mut Builder, set: usize, slices: &[usize]) {
        for &slice in slices {
            self.blocks.iter().for_each(|block| block.dequantise(k, set, slice));
        }
    }

    /// Makes the fragments of a slice anew, once nobody reads the old ones.
    fn refill(&self, k: &mut Builder, slice: usize) {
        k.wgmma_wait(2);
        self.dequantise(k, 0, &[slice]);
    }

    /// Starts the multiplications of some slices, as one group. A fence stands before each group, since a fragment has
    /// been written before each; where one is missing, the assembler puts one in, and says so.
    fn multiply(&self, k: &mut Builder, set: usize, slices: &[usize], walk: &Walk, unit: Unit) {
        if let Some(rows) = self.token_rows {
            return k.phase("multiply", |k| self.multiply_by_warps(k, set, rows, walk, unit));
        }
        k.phase("multiply", |k| {
            let part_bytes = self.config.tokens * self.config.token_bytes();
            let parts = self.config.element.parts();
            let places = slices.iter().flat_map(|&slice| (0..parts).map(move |part| (slice, part)));
            // One 64-bit addition per operand: added to the low word alone, the assembler copies the high word each
            // time, and instructions are what few tokens wait for.
            let first = k.wgmma_descriptor(TOKEN_LAYOUT, walk.here.tokens).cast::<U64>();
            let operands: Vec<_> = places
                .map(|(slice, part)| {
                    let bytes = self.config.unit_offset(unit.place) + part * part_bytes;
                    let further = 2 * slice as u32 + bytes / 16;
                    (slice, k.add(first, u64::from(further)).cast())
                })
                .collect();
            k.wgmma_fence();
            for (place, (slice, tokens)) in operands.into_iter().enumerate() {
                let first = unit.replaces && slice == 0 && place == 0;
                let accumulate = if first { Accumulate::Replace } else { Accumulate::Add };
                for (block, fragments) in self.blocks.iter().enumerate() {
                    let all = self.apart.as_ref().unwrap_or(&self.sums);
                    let sums = &all[unit.pass * self.blocks.len() + block][..unit.width as usize / 2];
                    k.wgmma(sums, fragments.operand(self.config.element, set, slice), tokens, accumulate);
                }
            }
            k.wgmma_commit();
        });
    }

    /// Multiplies a unit's slices in the order in which wgmma does, eight tokens at a time.
    fn multiply_by_warps(&self, k: &mut Builder, set: usize, rows: [Reg<U32>; 2], walk: &Walk, unit: Unit) {
        let element = if self.config.element == Tokens::F16 { MatrixElement::F16 } else { MatrixElement::Bf16 };
        for (half, row) in rows.into_iter().enumerate() {
            let at = k.add(walk.here.tokens, row);
            let tokens: Vec<[Reg<U32>; 4]> = (0..self.config.tokens / 8)
                .map(|eight| {
                    let further = self.config.unit_offset(unit.place) + eight * 8 * ROW_BYTES;
                    k.load_matrix(Addr::<Shared>::of(at).plus(further.cast_signed()), false)
                })
                .collect();
            for (second, (block, fragments)) in
                (0..2).flat_map(|second| self.blocks.iter().enumerate().map(move |b| (second, b)))
            {
                let sums = &self.sums[unit.pass * self.blocks.len() + block];
                for (tokens, sums) in tokens.iter().zip(sums.chunks_exact(4)) {
                    let sums = std::array::from_fn(|place| sums[place]);
                    let tokens = [tokens[2 * second], tokens[2 * second + 1]];
                    k.mma(element, sums, fragments.registers(set, 2 * half + second), tokens);
                }
            }
        }
    }
}

/// Registers for the sums of so many blocks of rows.
fn sums(k: &mut Builder, config: &MultiplySpec, blocks: u32) -> Vec<Vec<Reg<F32>>> {
    (0..blocks).map(|_| (0..config.tokens / 2).map(|_| k.register()).collect()).collect()
}

/// Bytes from a unit's tokens to the row that a lane gives `ldmatrix` the address of, for the first two slices and the
/// second. Lane l gives token l % 8 in piece l / 8 of 16 bytes: of two slices, two halves each. Pieces lie as the
/// tensor map's swizzle has put them.
fn token_rows(k: &mut Builder, lane: Reg<U32>) -> [Reg<U32>; 2] {
    let (token, piece) = (k.and(lane, 7), k.shr(lane, 3));
    let piece = k.xor(piece, token);
    let first = k.shl(token, 7);
    let first = k.mul_add(piece, 16, first);
    [first, k.xor(first, 64)]
}
