//! The stages in shared memory, the accumulators in tensor memory, and the protocol by which both are filled and
//! emptied. Nothing else touches their barriers.
//!
//! - *full*, per stage: an arrival by each producer, with its bytes where it copies; completes when all have landed.
//!   Who multiplies waits.
//! - *empty*, per stage: one arrival, when all multiplications that read it are done. The producers wait.
//! - *summed*, per set of accumulators: one arrival, when a tile's last multiplication is done. Who finishes tiles
//!   waits.
//! - *gated*, per set: one arrival, when the last multiplication of gate is done, where that is ahead of up. Who
//!   finishes waits.
//! - *drained*, per set: one arrival per finishing warp, when it has read the last of a tile. Who multiplies waits;
//!   only where a block has several tiles.
//!
//! In a pair the first block multiplies for both, so it is told when both are full and drained, and tells both when
//! they are empty and summed. The other block's idle multiplying warp waits for its own stages and passes that on: one
//! arrival more at the first block's *full*.
//!
//! Where two pairs share tokens, every block brings half of its own and the other half comes from the other pair's
//! block with the same rows: each announces all of it at its own *full*, whoever brings it. A stage is *empty* when
//! both pairs are done with it, in all four blocks: two arrivals.
//!
//! Stages are used in a ring through all tiles of a block, and so are sets. Every stage has columns of its own in
//! tensor memory for its scales: the ISA does not order a copy of scales behind a multiplication that reads what the
//! copy overwrites, but a stage that is full again has been empty, and so its multiplications are done.

use ptx::descriptor::Swizzle;
use ptx::instr::Semantics;
use ptx::{Addr, Barriers, Builder, Cluster, Pred, Reg, Scope, Shared, SharedRegion, TensorAddress, U16, U32, Value};

use super::{ALL_BLOCKS, BOTH_BLOCKS, EXPANDING_THREADS, FINISHING_WARPS, Place, SAME_TOKENS, TensorMultiplySpec};
use crate::families::sm100::slabs::{ROW_BYTES, SCALE_BYTES};

/// What the copies of scales are aligned to.
const SCALE_ALIGN: u32 = 128;

/// The stages, the accumulators and their barriers.
pub(super) struct Pipeline {
    config: TensorMultiplySpec,
    place: Place,
    /// Codes of tokens, by stage.
    tokens: SharedRegion,
    /// Codes of weights, by stage and matrix.
    weights: SharedRegion,
    /// Scales, by stage: of tokens, then of each matrix. None where weights are dequantised.
    scales: Option<SharedRegion>,
    full: Barriers,
    empty: Barriers,
    summed: Barriers,
    gated: Option<Barriers>,
    drained: Option<Barriers>,
    /// Where the address of tensor memory is left.
    pub tensor_address: SharedRegion,
}

/// A stage, and the parity of the round in which it is used.
pub(super) struct Turn {
    pub stage: Reg<U32>,
    parity: Reg<U32>,
}

impl Pipeline {
    pub fn declare(k: &mut Builder, config: TensorMultiplySpec, place: Place) -> Self {
        let [tokens, weights, scales] = config.stage_bytes().map(|bytes| bytes * config.stages);
        Pipeline {
            config,
            place,
            tokens: k.shared("tokens", tokens, Swizzle::B128.period()),
            weights: k.shared("weights", weights, Swizzle::B128.period()),
            scales: (scales > 0).then(|| k.shared("scales", scales, SCALE_ALIGN)),
            full: k.barriers("full", config.stages),
            empty: k.barriers("empty", config.stages),
            summed: k.barriers("summed", config.sets),
            gated: config.gates_ahead().then(|| k.barriers("gated", config.sets)),
            drained: config.has_several_tiles().then(|| k.barriers("drained", config.sets)),
            tensor_address: k.shared("tensor_address", 4, 4),
        }
    }

    /// One thread makes all barriers.
    pub fn prepare(&self, k: &mut Builder) {
        // Of tokens one thread, and of weights one or all of those that dequantise them; of a pair, the other block.
        let producers = 1 + if self.config.element.is_some() { EXPANDING_THREADS } else { 1 };
        let fillers: Value<U32> = match self.place.rank {
            None => producers.into(),
            Some(rank) => {
                let leads = k.eq(rank, 0);
                let count: Reg<U32> = k.select(leads, producers + 1, producers);
                count.into()
            }
        };
        for stage in 0..self.config.stages {
            k.barrier_init(self.full.at(stage), fillers);
            k.barrier_init(self.empty.at(stage), self.config.multicast);
        }
        for set in 0..self.config.sets {
            k.barrier_init(self.summed.at(set), 1);
            if let Some(gated) = self.gated {
                k.barrier_init(gated.at(set), 1);
            }
            if let Some(drained) = self.drained {
                k.barrier_init(drained.at(set), FINISHING_WARPS * self.config.partners());
            }
        }
    }

    /// The same stage, to come back to: it is full, and stays so.
    pub fn same(&self, k: &mut Builder, turn: &Turn) -> Turn {
        Turn { stage: k.variable(turn.stage), parity: turn.parity }
    }

    /// The first stage of the first round.
    pub fn start(&self, k: &mut Builder) -> Turn {
        Turn { stage: k.variable(0), parity: k.variable(0) }
    }

    /// Goes on to the next stage; the parity flips whenever the ring is closed.
    pub fn advance(&self, k: &mut Builder, turn: &Turn) {
        let wrapped = self.advance_stage(k, turn);
        let flipped = k.xor(turn.parity, 1);
        k.when(wrapped, |k| k.set(turn.parity, flipped));
    }

    /// Goes on to the next stage, which is known to be full. Says whether the ring is closed.
    pub fn advance_stage(&self, k: &mut Builder, turn: &Turn) -> Pred {
        let next = k.add(turn.stage, 1);
        let wrapped = k.eq(next, self.config.stages);
        let next = k.select(wrapped, 0u32, next);
        k.set(turn.stage, next);
        wrapped
    }

    fn barrier(&self, k: &mut Builder, which: Barriers, index: Reg<U32>) -> Addr<Shared> {
        let base = k.shared_address(which.region());
        Addr::of(k.mul_add(index, Barriers::STRIDE, base))
    }

    /// Where a stage's tokens, and its weights of the first matrix, are.
    pub fn codes(&self, k: &mut Builder, turn: &Turn) -> [Reg<U32>; 2] {
        let [tokens, weights, _] = self.config.stage_bytes();
        [(self.tokens, tokens), (self.weights, weights)].map(|(region, bytes)| {
            let base = k.shared_address(region);
            k.mul_add(turn.stage, bytes, base)
        })
    }

    /// Bytes from the weights of one matrix to those of the next.
    pub fn matrix_bytes(&self) -> u32 {
        self.config.weight_rows() * ROW_BYTES
    }

    /// Where a stage's scales are, if there are some: of tokens, and behind them of each matrix.
    pub fn scales(&self, k: &mut Builder, turn: &Turn) -> Option<Reg<U32>> {
        let base = k.shared_address(self.scales?);
        Some(k.mul_add(turn.stage, self.config.scale_blocks() * SCALE_BYTES, base))
    }

    /// A producer waits until nobody reads the stage any more; in the first round nobody has.
    pub fn wait_empty(&self, k: &mut Builder, turn: &Turn) {
        let empty = self.barrier(k, self.empty, turn.stage);
        let before = k.xor(turn.parity, 1);
        k.wait_at(empty, before, self.config.scope());
    }

    /// A producer announces what it will bring to a stage. Gives the barrier that counts the bytes.
    pub fn announce(&self, k: &mut Builder, turn: &Turn, bytes: Reg<U32>) -> Addr<Shared> {
        let full = self.barrier(k, self.full, turn.stage);
        k.arrive_expecting(full, bytes);
        full
    }

    /// A thread has left its part of a stage there itself: the tensor cores see it.
    pub fn fill_by_thread(&self, k: &mut Builder, turn: &Turn) {
        let full = self.barrier(k, self.full, turn.stage);
        k.fence_async_shared();
        k.arrive(full);
    }

    /// Who multiplies waits until a stage's bytes have landed.
    pub fn wait_full(&self, k: &mut Builder, turn: &Turn) {
        let full = self.barrier(k, self.full, turn.stage);
        k.wait_at(full, turn.parity, self.config.scope());
        k.tensor_fence_after_sync();
    }

    /// The second block of a pair has a stage full, and tells the first.
    pub fn pass_on(&self, k: &mut Builder, turn: &Turn) {
        let full = self.barrier(k, self.full, turn.stage);
        k.wait(full, turn.parity);
        let leaders = self.leaders(k, self.full, turn.stage);
        k.arrive_remote(leaders, Semantics::Ordered, Scope::Cluster);
    }

    /// A barrier of the first block of a pair.
    fn leaders(&self, k: &mut Builder, which: Barriers, index: Reg<U32>) -> Addr<Cluster> {
        let base = k.shared_address(which.region());
        let own = k.mul_add(index, Barriers::STRIDE, base);
        let leader: Value<U32> = match self.place.pair {
            None => 0u32.into(),
            Some(pair) => k.shl(pair, 1).into(),
        };
        Addr::of(k.map_shared(own, leader))
    }

    /// The blocks of this block's pair, if it is in one.
    fn partners(&self, k: &mut Builder) -> Option<Reg<U16>> {
        match self.place.pair {
            None => self.config.paired().then(|| k.variable::<U16>(BOTH_BLOCKS)),
            Some(pair) => {
                let (first, both) = (k.shl(pair, 1), k.variable::<U16>(BOTH_BLOCKS));
                Some(k.shl(both, first))
            }
        }
    }

    /// The blocks that get what this one brings of tokens, if others do.
    pub fn receivers(&self, k: &mut Builder) -> Option<Reg<U16>> {
        let rank = self.place.rank.filter(|_| self.config.shares())?;
        let same = k.variable::<U16>(SAME_TOKENS);
        Some(k.shl(same, rank))
    }

    /// The stage is empty, of a pair in both blocks and where two share tokens in those of both, when all that has been
    /// issued is done.
    pub fn release(&self, k: &mut Builder, turn: &Turn) {
        let empty = self.barrier(k, self.empty, turn.stage);
        let all = if self.config.shares() { Some(k.variable::<U16>(ALL_BLOCKS)) } else { self.partners(k) };
        k.tensor_commit(self.config.group(), empty, all);
    }

    /// The set of accumulators of a block's tile, and the parity of the round in which it is used.
    fn set(&self, k: &mut Builder, round: Reg<U32>) -> [Reg<U32>; 2] {
        let shift = self.config.sets.trailing_zeros();
        let (set, rounds) = (k.and(round, self.config.sets - 1), k.shr(round, shift));
        [set, k.and(rounds, 1)]
    }

    /// Who multiplies waits until the accumulators of a tile have been read; those of the first round nobody has
    /// written.
    pub fn wait_drained(&self, k: &mut Builder, round: Reg<U32>) {
        let Some(drained) = self.drained else { return };
        let [set, parity] = self.set(k, round);
        let (drained, before) = (self.barrier(k, drained, set), k.xor(parity, 1));
        k.wait_at(drained, before, self.config.scope());
        k.tensor_fence_after_sync();
    }

    /// The tile is summed when all that has been issued is done.
    pub fn hand_over(&self, k: &mut Builder, round: Reg<U32>) {
        self.commit_set(k, self.summed, round);
    }

    /// Gate is summed when all that has been issued is done, if anyone waits for it.
    pub fn hand_gate_over(&self, k: &mut Builder, round: Reg<U32>) {
        if let Some(gated) = self.gated {
            self.commit_set(k, gated, round);
        }
    }

    fn commit_set(&self, k: &mut Builder, which: Barriers, round: Reg<U32>) {
        let [set, _] = self.set(k, round);
        let barrier = self.barrier(k, which, set);
        let partners = self.partners(k);
        k.tensor_commit(self.config.group(), barrier, partners);
    }

    /// Who finishes waits for a tile's sums.
    pub fn wait_summed(&self, k: &mut Builder, round: Reg<U32>) {
        self.wait_set(k, self.summed, round);
    }

    /// Who finishes waits for a tile's sums of gate, where those come first. Says whether they do.
    pub fn wait_gated(&self, k: &mut Builder, round: Reg<U32>) -> bool {
        let Some(gated) = self.gated else { return false };
        self.wait_set(k, gated, round);
        true
    }

    fn wait_set(&self, k: &mut Builder, which: Barriers, round: Reg<U32>) {
        let [set, parity] = self.set(k, round);
        let barrier = self.barrier(k, which, set);
        k.wait_at(barrier, parity, self.config.scope());
        k.tensor_fence_after_sync();
    }

    /// A finishing warp has read the last of a tile's sums.
    pub fn drain(&self, k: &mut Builder, round: Reg<U32>) {
        let Some(drained) = self.drained else { return };
        let [set, _] = self.set(k, round);
        k.tensor_fence_before_sync();
        k.sync_warp();
        let elected = k.elect();
        k.if_(elected, |k| {
            if self.config.paired() {
                let leaders = self.leaders(k, drained, set);
                k.arrive_remote(leaders, Semantics::Ordered, Scope::Cluster);
            } else {
                let drained = self.barrier(k, drained, set);
                k.arrive(drained);
            }
        });
    }

    /// Where a tile's accumulators begin, from where tensor memory does.
    pub fn accumulators(&self, k: &mut Builder, base: Reg<TensorAddress>, round: Reg<U32>) -> Reg<U32> {
        let [set, _] = self.set(k, round);
        k.mul_add(set, self.config.set_columns(), base.cast::<U32>())
    }
}
