//! A consumer warpgroup: its part of each tile, from the first stage to C.
//!
//! The main loop goes through k unit by unit, in one of two ways.
//!
//! *Fine*, where multiplications are long: it holds four fragments, one per slice of a unit, and runs two of them ahead.
//! Fragment j + 2 is dequantised while the tensor cores multiply fragments j and j + 1, so at most two groups are ever in
//! flight. Each multiplication is a group of its own; once no more than two are in flight, the one that read the fragment to
//! be made anew is done.
//!
//! *Coarse*, where they are short and waiting for each would take longer: it holds two sets of four fragments, and
//! dequantises one unit while the tensor cores multiply the one before, a group of four.

use ptx::descriptor::MatrixLayout;
use ptx::instr::Accumulate;
use ptx::{Addr, Builder, F32, Pred, Reg, Shared, U32};

use super::fragments::Fragments;
use super::pipeline::Turn;
use super::work::{Share, Tile};
use super::{Config, Parts, TOKEN_BYTES};
use crate::Schedule;
use crate::gpu::pack::CHUNK_BYTES;

/// Layout of the tokens in shared memory: rows of 64 numbers.
const TOKEN_LAYOUT: MatrixLayout = MatrixLayout::K_MAJOR_128;

/// What one thread of a consumer warpgroup holds.
pub(super) struct Consumer {
    pub config: Config,
    /// The lane that speaks for its warp at the barriers.
    leads: Pred,
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
    /// Bytes from a stage's weights to this lane's words, and to its row's scales, in the first of the warpgroup's chunks.
    words_at: Reg<U32>,
    scales_at: Reg<U32>,
    /// Fragments for each block of rows; with the coarse main loop a second set follows.
    blocks: Vec<Fragments>,
    /// Sums: for each pass, for each block of rows.
    pub sums: Vec<Vec<Reg<F32>>>,
}

/// Where the main loop is.
struct Walk {
    /// Units left, the present one included.
    left: Reg<U32>,
    /// Barrier of a stage that has been read but not yet released, or 0.
    pending: Reg<U32>,
    here: Spot,
    /// The spot after this one. It is found early, while multiplications are under way.
    next: Spot,
    turn: Turn,
    /// Unit within the stage whose turn it is.
    unit: Reg<U32>,
}

/// Where a unit of k is.
#[derive(Clone, Copy)]
struct Spot {
    /// The barriers of its stage, and the parity of the round.
    full: Reg<U32>,
    parity: Reg<U32>,
    empty: Reg<U32>,
    /// Low word of the descriptor of its tokens.
    tokens: Reg<U32>,
    /// Address of its words and scales.
    words: Reg<U32>,
    scales: Reg<U32>,
}

impl Spot {
    fn new(k: &mut Builder) -> Self {
        let [full, parity, empty, tokens, words, scales] = k.registers();
        Spot { full, parity, empty, tokens, words, scales }
    }

    fn registers(&self) -> [Reg<U32>; 6] {
        [self.full, self.parity, self.empty, self.tokens, self.words, self.scales]
    }

    fn set(&self, k: &mut Builder, other: &Spot) {
        for (to, from) in self.registers().into_iter().zip(other.registers()) {
            k.set(to, from);
        }
    }
}

pub(super) fn consume(k: &mut Builder, parts: &Parts, thread: Reg<U32>, warp: Reg<U32>) {
    let consumer = Consumer::new(k, parts, thread, warp);
    let turn = parts.pipe.start(k);
    parts.work.each_tile(k, |k, tile, round| {
        let stages = k.mul(tile.share.stages, parts.config.passes());
        if parts.config.ping_pong {
            let whose = k.and(round, 1);
            let mine = k.eq(whose, consumer.warpgroup);
            k.if_(mine, |k| consumer.compute(k, parts, &tile, &turn, round));
        } else {
            consumer.compute(k, parts, &tile, &turn, round);
        }
        if parts.config.schedule == Schedule::Persistent {
            parts.pipe.skip(k, &turn, stages);
        }
    });
}

impl Consumer {
    fn new(k: &mut Builder, parts: &Parts, thread: Reg<U32>, warp: Reg<U32>) -> Self {
        let config = parts.config;
        let division = config.division();
        let lane = k.and(thread, 31);
        let (warpgroup, quarter) = (k.shr(warp, 2), k.and(warp, 3));
        let (along_n, along_k) = match (config.ping_pong, division.along_k) {
            (true, _) => (k.variable(0), k.variable(0)),
            (false, 1) => (warpgroup, k.variable(0)),
            (false, _) => (k.variable(0), warpgroup),
        };
        let [words, scales] = Fragments::offsets(k, quarter, lane);
        let first_chunk = 2 * division.blocks * parts.pipe.chunk_stride();
        Consumer {
            config,
            leads: k.eq(lane, 0),
            thread: k.and(thread, 127),
            lane,
            quarter,
            warpgroup,
            along_n,
            along_k,
            words_at: k.mul_add(along_n, first_chunk, words),
            scales_at: k.mul_add(along_n, first_chunk, scales),
            blocks: (0..division.blocks * config.fragment_sets()).map(|_| Fragments::new(k, config.element)).collect(),
            sums: (0..config.passes() * division.blocks)
                .map(|_| (0..config.tokens / 2).map(|_| k.register()).collect())
                .collect(),
        }
    }

    /// A tile, from the first stage to C.
    fn compute(&self, k: &mut Builder, parts: &Parts, tile: &Tile, start: &Turn, round: Reg<U32>) {
        let turn = parts.pipe.fork(k, start);
        for &sum in self.sums.iter().flatten() {
            k.set(sum, 0.0);
        }
        if self.config.ping_pong {
            k.phase("take turns", |k| parts.pipe.await_other(k, self.warpgroup, round));
        }
        self.choose_width(k, &self.config.widths(), tile, &mut |k, width| {
            for pass in 0..self.config.passes() {
                self.main_loop(k, parts, &turn, &tile.share, pass as usize, width);
            }
        });
        if self.config.ping_pong {
            k.phase("take turns", |k| parts.pipe.hand_over(k, self.warpgroup, self.leads));
        }
        k.phase("combine", |k| parts.combine.combine(k, self));
        k.phase("finish", |k| parts.epilogue.finish(k, parts, self, tile));
    }

    /// The main loop for the least width that covers the tile's tokens.
    fn choose_width(&self, k: &mut Builder, widths: &[u32], tile: &Tile, body: &mut dyn FnMut(&mut Builder, u32)) {
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

    /// Which stages of a share are this warpgroup's: with two along k each has the stages of one parity, so that it waits for
    /// every round of them. Leaves the first one in `turn`, and says how many units there are.
    fn own_units(&self, k: &mut Builder, parts: &Parts, turn: &Turn, share: &Share) -> Reg<U32> {
        if self.config.division().along_k == 1 {
            return k.variable(share.units);
        }
        let parity = k.and(turn.stage, 1);
        let late = k.xor(parity, self.along_k);
        let second = k.ne(late, 0);
        k.if_(second, |k| parts.pipe.advance(k, turn, 1));
        let stages = k.add(share.stages, 1);
        let stages = k.sub(stages, late);
        let stages = k.shr(stages, 1);
        let units = k.mul(stages, self.config.units);
        // The last stage may hold fewer units; it is the warpgroup's whose turn it is.
        let full = k.mul(share.stages, self.config.units);
        let missing = k.sub(full, share.units);
        let last = k.sub(share.stages, 1);
        let whose = k.and(last, 1);
        let mine = k.eq(whose, late);
        let fewer = k.sub(units, missing);
        let units = k.select(mine, fewer, units);
        k.variable(units)
    }

    /// All of a share of k, for one pass, into the sums of so many tokens.
    fn main_loop(&self, k: &mut Builder, parts: &Parts, turn: &Turn, share: &Share, pass: usize, width: u32) {
        let along_k = self.config.division().along_k;
        let own = parts.pipe.fork(k, turn);
        let left = self.own_units(k, parts, &own, share);
        let walk = Walk {
            left,
            pending: k.variable(0),
            here: Spot::new(k),
            next: Spot::new(k),
            turn: own,
            unit: k.variable(0),
        };
        let end = k.label();
        // A short k may leave nothing for the second block or the second warpgroup.
        if along_k > 1 || self.config.schedule == Schedule::SplitK {
            let nothing = k.eq(left, 0);
            k.branch_if(nothing, end);
        }
        self.find(k, parts, &walk, &walk.here);
        k.phase("wait", |k| parts.pipe.wait_full(k, walk.here.full, walk.here.parity));
        k.phase("load", |k| self.load(k, parts, &walk.here, 0));
        // With so few stages the next one is the present one: it cannot be waited for before it is released.
        if self.config.stages <= along_k {
            self.dequantise(k, 0, &[0, 1]);
            k.repeat_while(|k| self.unit_alone(k, parts, &walk, pass, width));
        } else if self.config.fragment_sets() == 1 {
            self.dequantise(k, 0, &[0, 1]);
            k.repeat_while(|k| self.unit(k, parts, &walk, pass, width));
            k.wgmma_wait(0);
        } else {
            self.dequantise(k, 0, &[0, 1, 2, 3]);
            k.repeat_while(|k| {
                let done = k.label();
                let more = self.unit_coarse(k, parts, &walk, [pass, 0], width);
                k.branch_unless(more, done);
                let again = self.unit_coarse(k, parts, &walk, [pass, 1], width);
                k.set(more, again);
                k.place(done);
                more
            });
            k.wgmma_wait(0);
        }
        // Nobody waits for the last stages of a block.
        if self.config.schedule == Schedule::Persistent || self.config.passes() > 1 {
            k.phase("release", |k| {
                parts.pipe.release(k, walk.here.empty, self.leads);
            });
        }
        k.place(end);
        if self.config.passes() > 1 {
            parts.pipe.skip(k, turn, share.stages);
        }
    }

    /// Finds the unit whose turn it is.
    fn find(&self, k: &mut Builder, parts: &Parts, walk: &Walk, spot: &Spot) {
        let [full, empty] = parts.pipe.barriers(k, &walk.turn);
        let tile = parts.pipe.token_tile(k, &walk.turn);
        let chunks = parts.pipe.chunks(k, &walk.turn);
        let (tile, chunks) = match self.config.units {
            1 => (tile, chunks),
            _ => {
                let token_bytes = self.config.unit_bytes()[0];
                (k.mul_add(walk.unit, token_bytes, tile), k.mul_add(walk.unit, CHUNK_BYTES, chunks))
            }
        };
        let tokens = k.descriptor_low(TOKEN_LAYOUT, tile);
        let (words, scales) = (k.add(chunks, self.words_at), k.add(chunks, self.scales_at));
        spot.set(k, &Spot { full, parity: walk.turn.parity, empty, tokens, words, scales });
    }

    /// Goes on to the next unit, in the same stage or in the next one of this warpgroup, and finds it.
    fn find_next(&self, k: &mut Builder, parts: &Parts, walk: &Walk) {
        let along_k = self.config.division().along_k;
        if self.config.units == 1 {
            parts.pipe.advance(k, &walk.turn, along_k);
        } else {
            let unit = k.add(walk.unit, 1);
            let unit = k.and(unit, self.config.units - 1);
            k.set(walk.unit, unit);
            let left_stage = k.eq(unit, 0);
            parts.pipe.advance_if(k, left_stage, &walk.turn, along_k);
        }
        self.find(k, parts, walk, &walk.next);
    }

    /// Like `find_next`, with a branch: where multiplications are short, instructions cost more than waiting for a branch.
    fn step_next(&self, k: &mut Builder, parts: &Parts, walk: &Walk) {
        if self.config.units == 1 {
            return self.find_next(k, parts, walk);
        }
        let unit = k.add(walk.unit, 1);
        let unit = k.and(unit, self.config.units - 1);
        k.set(walk.unit, unit);
        let within = k.ne(unit, 0);
        k.if_else(
            within,
            |k| {
                let Spot { full, parity, empty, tokens, words, scales } = walk.here;
                let tokens = k.add(tokens, self.config.unit_bytes()[0] / 16);
                let (words, scales) = (k.add(words, CHUNK_BYTES), k.add(scales, CHUNK_BYTES));
                walk.next.set(k, &Spot { full, parity, empty, tokens, words, scales });
            },
            |k| {
                parts.pipe.advance(k, &walk.turn, self.config.division().along_k);
                self.find(k, parts, walk, &walk.next);
            },
        );
    }

    /// Moves to the next unit, waits for its stage if that is another one, and reads its words. The present stage, if it is left,
    /// is released at once, or noted to be released when its last multiplication is done.
    fn enter_next(&self, k: &mut Builder, parts: &Parts, walk: &Walk, set: usize, at_once: bool) {
        let change_stage = |k: &mut Builder| {
            match at_once {
                true => k.phase("release", |k| parts.pipe.release(k, walk.here.empty, self.leads)),
                false => k.set(walk.pending, walk.here.empty),
            }
            k.phase("wait", |k| parts.pipe.wait_full(k, walk.next.full, walk.next.parity));
        };
        if self.config.units == 1 {
            change_stage(k);
        } else {
            let left_stage = k.eq(walk.unit, 0);
            k.if_(left_stage, change_stage);
        }
        k.phase("load", |k| self.load(k, parts, &walk.next, set));
        walk.here.set(k, &walk.next);
    }

    /// Multiplies one unit; says whether there is another. Fragments 0 and 1 are ready; 2 and 3, and if there are more units
    /// the next one's 0 and 1, are made while the tensor cores are busy.
    fn unit(&self, k: &mut Builder, parts: &Parts, walk: &Walk, pass: usize, width: u32) -> Pred {
        let tokens = k.variable(walk.here.tokens);
        self.multiply(k, 0, &[0], tokens, pass, width);
        self.find_next(k, parts, walk);
        self.refill(k, 2);
        self.multiply(k, 0, &[1], tokens, pass, width);
        self.refill(k, 3);
        // No group of the stage before is in flight any more.
        self.release_pending(k, parts, walk);
        let left = k.sub(walk.left, 1);
        k.set(walk.left, left);
        let more = k.ne(left, 0);
        k.if_(more, |k| self.enter_next(k, parts, walk, 0, false));
        self.multiply(k, 0, &[2], tokens, pass, width);
        self.refill(k, 0);
        self.multiply(k, 0, &[3], tokens, pass, width);
        self.refill(k, 1);
        more
    }

    /// Multiplies one unit from one set of fragments while the next unit's are made in the other; says whether there is one.
    fn unit_coarse(&self, k: &mut Builder, parts: &Parts, walk: &Walk, [pass, set]: [usize; 2], width: u32) -> Pred {
        self.multiply(k, set, &[0, 1, 2, 3], walk.here.tokens, pass, width);
        // The group before this one is done, and so is the stage that it was the last to read.
        k.wgmma_wait(1);
        self.release_pending(k, parts, walk);
        let left = k.sub(walk.left, 1);
        k.set(walk.left, left);
        let more = k.ne(left, 0);
        k.if_(more, |k| {
            self.step_next(k, parts, walk);
            self.enter_next(k, parts, walk, 1 - set, false);
            self.dequantise(k, 1 - set, &[0, 1, 2, 3]);
        });
        more
    }

    /// Releases the stage that has been read, if one has.
    fn release_pending(&self, k: &mut Builder, parts: &Parts, walk: &Walk) {
        k.phase("release", |k| {
            let waits = k.ne(walk.pending, 0);
            let speaks = k.both(self.leads, waits);
            k.sync_warp();
            parts.pipe.release(k, walk.pending, speaks);
            k.set(walk.pending, 0);
        });
    }

    /// Multiplies one unit with nothing of the next one under way; says whether there is another.
    fn unit_alone(&self, k: &mut Builder, parts: &Parts, walk: &Walk, pass: usize, width: u32) -> Pred {
        let tokens = walk.here.tokens;
        self.multiply(k, 0, &[0], tokens, pass, width);
        self.dequantise(k, 0, &[2]);
        self.multiply(k, 0, &[1], tokens, pass, width);
        self.dequantise(k, 0, &[3]);
        self.multiply(k, 0, &[2, 3], tokens, pass, width);
        self.find_next(k, parts, walk);
        k.wgmma_wait(0);
        k.sync_warp();
        let left = k.sub(walk.left, 1);
        k.set(walk.left, left);
        let more = k.ne(left, 0);
        k.if_(more, |k| {
            self.enter_next(k, parts, walk, 0, true);
            self.dequantise(k, 0, &[0, 1]);
        });
        more
    }

    /// One set of fragments: one for each block of rows.
    fn set(&self, set: usize) -> &[Fragments] {
        let blocks = self.config.division().blocks as usize;
        &self.blocks[set * blocks..][..blocks]
    }

    /// This thread's words and scales of a unit.
    fn load(&self, k: &mut Builder, parts: &Parts, spot: &Spot, set: usize) {
        let stride = parts.pipe.chunk_stride();
        for (block, fragments) in self.set(set).iter().enumerate() {
            let further = (2 * block as u32 * stride).cast_signed();
            let at = |address| Addr::<Shared>::of(address).plus(further);
            fragments.load(k, at(spot.words), at(spot.scales), stride);
        }
    }

    fn dequantise(&self, k: &mut Builder, set: usize, slices: &[usize]) {
        for &slice in slices {
            self.set(set).iter().for_each(|block| block.dequantise(k, slice));
        }
    }

    /// Makes the fragments of a slice anew, once nobody reads the old ones.
    fn refill(&self, k: &mut Builder, slice: usize) {
        k.wgmma_wait(2);
        self.dequantise(k, 0, &[slice]);
    }

    /// Starts the multiplications of some slices, as one group. A fence stands before each group, since a fragment has been
    /// written before each; where one is missing, the assembler puts one in, and says so.
    fn multiply(&self, k: &mut Builder, set: usize, slices: &[usize], tokens: Reg<U32>, pass: usize, width: u32) {
        k.phase("multiply", |k| {
            let part_bytes = self.config.tokens * TOKEN_BYTES;
            let parts = self.config.element.parts();
            let places = slices.iter().flat_map(|&slice| (0..parts).map(move |part| (slice, part)));
            let operands: Vec<_> = places
                .map(|(slice, part)| {
                    let low = k.add(tokens, 2 * slice as u32 + part * part_bytes / 16);
                    (slice, k.wgmma_descriptor(TOKEN_LAYOUT, low))
                })
                .collect();
            k.wgmma_fence();
            for (slice, tokens) in operands {
                for (block, fragments) in self.set(set).iter().enumerate() {
                    let sums = &self.sums[pass * self.set(set).len() + block][..width as usize / 2];
                    k.wgmma(sums, fragments.operand(slice), tokens, Accumulate::Add);
                }
            }
            k.wgmma_commit();
        });
    }
}
