//! The stages in shared memory, and the protocol by which they are filled and emptied. Nothing else touches their barriers.
//!
//! - *full*: one arrival by the producer, with the stage's bytes; completes when they have landed. Consumers wait.
//! - *empty*: one arrival per warp that reads the stage, once it has read it for the last time. The producer waits.
//!
//! Stages are used in a ring, one after another through all tiles of a block. Who is where in the ring is a [`Turn`]: a stage,
//! and the parity of the round in which it is used. A parity tells only two successive rounds apart, so nobody may wait
//! for a round before the last but one is known to be over. Whoever reads every round of a stage knows that. Two
//! warpgroups that share k have the stages of one parity each, of an even number. Two that take turns with tiles leave out
//! what the other reads, and hence need a third barrier:
//!
//! - *done*: one arrival per warp of a warpgroup, when it has read its tile's last stage. The other one waits.
//!
//! The *empty* barrier of a stage counts only the warpgroups that read the same one.

use ptx::{Addr, Barriers, Builder, Pred, Reg, Shared, SharedRegion, U32};

use super::Config;
use crate::gpu::pack::CHUNK_BYTES;
use ptx::descriptor::Swizzle;

/// The stages and their barriers.
pub(super) struct Pipeline {
    config: Config,
    /// Tokens: by stage, unit and part.
    pub tokens: SharedRegion,
    /// Weights: by stage, chunk and unit.
    weights: SharedRegion,
    full: Barriers,
    empty: Barriers,
    done: Option<Barriers>,
}

/// A stage, and the parity of the round in which it is used.
pub(super) struct Turn {
    pub stage: Reg<U32>,
    pub parity: Reg<U32>,
}

impl Pipeline {
    pub fn declare(k: &mut Builder, config: Config) -> Self {
        let [tokens, weights] = config.unit_bytes().map(|bytes| bytes * config.units * config.stages);
        Pipeline {
            config,
            tokens: k.shared("tokens", tokens, Swizzle::B128.period()),
            weights: k.shared("weights", weights, 128),
            full: k.barriers("full", config.stages),
            empty: k.barriers("empty", config.stages),
            done: config.ping_pong.then(|| k.barriers("done", 2)),
        }
    }

    /// One thread makes the barriers.
    pub fn prepare(&self, k: &mut Builder) {
        let readers = 4 * self.config.division().along_n;
        for stage in 0..self.config.stages {
            k.barrier_init(self.full.at(stage), 1);
            k.barrier_init(self.empty.at(stage), readers);
        }
        if let Some(done) = self.done {
            (0..2).for_each(|warpgroup| k.barrier_init(done.at(warpgroup), 4));
        }
    }

    /// The first stage of the first round.
    pub fn start(&self, k: &mut Builder) -> Turn {
        Turn { stage: k.variable(0), parity: k.variable(0) }
    }

    /// The same turn, to go on from separately.
    pub fn fork(&self, k: &mut Builder, turn: &Turn) -> Turn {
        Turn { stage: k.variable(turn.stage), parity: k.variable(turn.parity) }
    }

    /// Goes on by a few stages; the parity flips whenever the ring is closed.
    pub fn advance(&self, k: &mut Builder, turn: &Turn, by: u32) {
        let (rounds, by) = (by / self.config.stages, by % self.config.stages);
        if rounds % 2 == 1 {
            let flipped = k.xor(turn.parity, 1);
            k.set(turn.parity, flipped);
        }
        if by > 0 {
            let next = k.add(turn.stage, by);
            let wrapped = k.ge(next, self.config.stages);
            let flipped = k.xor(turn.parity, 1);
            let around = k.sub(next, self.config.stages);
            let next = k.select(wrapped, around, next);
            k.set(turn.stage, next);
            k.when(wrapped, |k| k.set(turn.parity, flipped));
        }
    }

    /// Goes on by any number of stages.
    pub fn skip(&self, k: &mut Builder, turn: &Turn, by: Reg<U32>) {
        let next = k.add(turn.stage, by);
        let rounds = k.div(next, self.config.stages);
        let next = k.rem(next, self.config.stages);
        let flips = k.and(rounds, 1);
        let parity = k.xor(turn.parity, flips);
        k.set(turn.stage, next);
        k.set(turn.parity, parity);
    }

    fn barrier(&self, k: &mut Builder, which: Barriers, turn: &Turn) -> Reg<U32> {
        let base = k.shared_address(which.region());
        k.mul_add(turn.stage, Barriers::STRIDE, base)
    }

    /// Bytes of a stage's tokens.
    fn token_bytes(&self) -> u32 {
        self.config.unit_bytes()[0] * self.config.units
    }

    /// Where a stage's tokens are.
    pub fn token_tile(&self, k: &mut Builder, turn: &Turn) -> Reg<U32> {
        let base = k.shared_address(self.tokens);
        k.mul_add(turn.stage, self.token_bytes(), base)
    }

    /// Bytes from one chunk of a unit to the next: the units of one chunk lie together.
    pub fn chunk_stride(&self) -> u32 {
        self.config.units * CHUNK_BYTES
    }

    /// Where a stage's weights are.
    pub fn chunks(&self, k: &mut Builder, turn: &Turn) -> Reg<U32> {
        let base = k.shared_address(self.weights);
        k.mul_add(turn.stage, self.config.chunks() * self.chunk_stride(), base)
    }

    /// The producer waits until every reading warp has left the stage; in the first round nobody has been there.
    pub fn wait_empty(&self, k: &mut Builder, turn: &Turn) {
        let empty = self.barrier(k, self.empty, turn);
        let before = k.xor(turn.parity, 1);
        k.wait(Addr::of(empty), before);
    }

    /// The producer announces what will arrive in a stage.
    pub fn announce(&self, k: &mut Builder, turn: &Turn, bytes: Reg<U32>) {
        let full = self.full(k, turn);
        k.arrive_expecting(full, bytes);
    }

    /// The barrier that counts the bytes of a stage.
    pub fn full(&self, k: &mut Builder, turn: &Turn) -> Addr<Shared> {
        Addr::of(self.barrier(k, self.full, turn))
    }

    /// The barriers of the stage whose turn it is: full and empty.
    pub fn barriers(&self, k: &mut Builder, turn: &Turn) -> [Reg<U32>; 2] {
        [self.full, self.empty].map(|which| self.barrier(k, which, turn))
    }

    /// Consumers wait until a stage's bytes have landed in the round of this parity.
    pub fn wait_full(&self, k: &mut Builder, full: Reg<U32>, parity: Reg<U32>) {
        k.wait(Addr::of(full), parity);
    }

    /// A consumer warp has read the stage with this barrier for the last time. One lane speaks for all; the warp has met since
    /// the others read.
    pub fn release(&self, k: &mut Builder, empty: Reg<U32>, speaks: Pred) {
        k.when(speaks, |k| k.arrive(Addr::of(empty)));
    }

    /// Of two warpgroups that take turns, the one whose turn it is in this round waits until the other has read its last stage
    /// of the round before. In the first round the parity is that of a round that never was, which counts as over.
    pub fn await_other(&self, k: &mut Builder, warpgroup: Reg<U32>, round: Reg<U32>) {
        let Some(done) = self.done else { return };
        let other = k.xor(warpgroup, 1);
        let base = k.shared_address(done.region());
        let barrier = k.mul_add(other, Barriers::STRIDE, base);
        let before = k.sub(round, 1);
        let turns = k.shr(before, 1);
        let parity = k.and(turns, 1);
        k.wait(Addr::of(barrier), parity);
    }

    /// A warp has read its tile's last stage.
    pub fn hand_over(&self, k: &mut Builder, warpgroup: Reg<U32>, speaks: Pred) {
        let Some(done) = self.done else { return };
        let base = k.shared_address(done.region());
        let barrier = k.mul_add(warpgroup, Barriers::STRIDE, base);
        k.when(speaks, |k| k.arrive(Addr::of(barrier)));
    }
}
