//! Tiles that a cluster takes over from others of its grid which have not begun (`schedule=claimed`): the launch has a cluster per tile, and one that is done with
//! a tile has the launcher cancel another cluster and computes that one's tile.
//!
//! One thread of each block, the one that brings tokens, announces the answer at its block's barrier; the first block's asks for it,
//! while the tile before is computed, and the copy engine leaves it in all blocks of the cluster.
//!
//! - *claimed*, per place of an answer: an arrival by the thread that announces, and sixteen bytes. Everyone who works on tiles waits.
//! - *taken*, per place, in the first block: an arrival by everyone who has read an answer that says yes, in all blocks. Who asks waits before
//!   the next answer goes to the same place, and before it leaves.
//!
//! Behind an answer that says no nobody asks again: what that would do is undefined.

use ptx::instr::Semantics;
use ptx::{Addr, Barriers, Builder, Cluster, Pred, Reg, Scope, Shared, SharedRegion, U32, U64};

use super::{FINISHING_WARPS, Place, TensorMultiplySpec};

/// Bytes of an answer, and places for them: one is read while the next is asked for.
const ANSWER_BYTES: u32 = 16;
const PLACES: u32 = 2;

/// Who works on tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worker {
    /// The thread that brings tokens, and asks for tiles.
    Asking,
    /// A single thread.
    Thread,
    /// Whole warps.
    Warps,
}

/// The answers and their barriers.
pub(super) struct Claims {
    config: TensorMultiplySpec,
    place: Place,
    answers: SharedRegion,
    claimed: Barriers,
    taken: Barriers,
}

impl Claims {
    /// Bytes of shared memory.
    pub const BYTES: u32 = PLACES * (ANSWER_BYTES + 2 * Barriers::STRIDE);

    pub fn declare(k: &mut Builder, config: TensorMultiplySpec, place: Place) -> Self {
        Claims {
            config,
            place,
            answers: k.shared("answers", PLACES * ANSWER_BYTES, ANSWER_BYTES),
            claimed: k.barriers("claimed", PLACES),
            taken: k.barriers("taken", PLACES),
        }
    }

    /// One thread makes the barriers.
    pub fn prepare(&self, k: &mut Builder) {
        // Who brings tokens, who multiplies, those who bring weights, and those who finish.
        let readers = (2 + self.config.weight_warps() + FINISHING_WARPS) * self.config.cluster_blocks();
        for place in 0..PLACES {
            k.barrier_init(self.claimed.at(place), 1);
            k.barrier_init(self.taken.at(place), readers);
        }
    }

    /// The place of a round's answer, and the parity of its use.
    fn turn(&self, k: &mut Builder, round: Reg<U32>) -> [Reg<U32>; 2] {
        let uses = k.shr(round, PLACES.trailing_zeros());
        [k.and(round, PLACES - 1), k.and(uses, 1)]
    }

    fn barrier(&self, k: &mut Builder, which: Barriers, place: Reg<U32>) -> Reg<U32> {
        let base = k.shared_address(which.region());
        k.mul_add(place, Barriers::STRIDE, base)
    }

    fn answer(&self, k: &mut Builder, place: Reg<U32>) -> Addr<Shared> {
        let base = k.shared_address(self.answers);
        Addr::of(k.mul_add(place, ANSWER_BYTES, base))
    }

    /// `body` in the first block of the cluster.
    fn in_first_block(&self, k: &mut Builder, body: impl FnOnce(&mut Builder)) {
        match (self.place.rank, self.place.pair) {
            (None, _) => body(k),
            (Some(rank), None) => {
                let first = k.eq(rank, 0);
                k.if_(first, body);
            }
            (Some(rank), Some(pair)) => {
                let both = k.or(rank, pair);
                let first = k.eq(both, 0);
                k.if_(first, body);
            }
        }
    }

    /// While a tile is computed, the next one is asked for.
    pub fn ask(&self, k: &mut Builder, round: Reg<U32>) {
        let [place, parity] = self.turn(k, round);
        let claimed = Addr::<Shared>::of(self.barrier(k, self.claimed, place));
        self.in_first_block(k, |k| {
            let (taken, before) = (self.barrier(k, self.taken, place), k.xor(parity, 1));
            k.wait_at(Addr::of(taken), before, self.config.scope());
            // They were threads, of all blocks, that read the answer before.
            k.fence_async();
        });
        k.arrive_expecting(claimed, ANSWER_BYTES);
        self.in_first_block(k, |k| {
            let answer = self.answer(k, place);
            k.try_cancel(answer, claimed, self.config.paired());
        });
    }

    /// Reads a round's answer: whether there is another tile, and the number of its cluster in that case.
    pub fn next(&self, k: &mut Builder, round: Reg<U32>, worker: Worker, number: Reg<U32>) -> Pred {
        let [place, parity] = self.turn(k, round);
        let claimed = self.barrier(k, self.claimed, place);
        k.wait_at(Addr::of(claimed), parity, self.config.scope());
        let answer = self.answer(k, place);
        let words: [Reg<U64>; 2] = k.load_vector(answer);
        let more = k.is_canceled(words);
        k.if_(more, |k| {
            let [first, ..] = k.first_block(words);
            let cluster = k.shr(first, self.config.cluster_blocks().trailing_zeros());
            k.set(number, cluster);
            let taken = self.barrier(k, self.taken, place);
            if worker == Worker::Warps {
                k.sync_warp();
                let elected = k.elect();
                k.if_(elected, |k| self.arrive(k, taken));
            } else {
                self.arrive(k, taken);
            }
        });
        more
    }

    fn arrive(&self, k: &mut Builder, taken: Reg<U32>) {
        if self.config.paired() {
            let first: Addr<Cluster> = Addr::of(k.map_shared(taken, 0u32));
            k.arrive_remote(first, Semantics::Ordered, Scope::Cluster);
        } else {
            k.arrive(Addr::of(taken));
        }
    }

    /// Before who asks leaves, after so many rounds: others have read the last answer that said yes, the one before the last, and tell this block
    /// nothing any more. Where there was none, it is the answer before the first, which nobody waits for.
    pub fn leave(&self, k: &mut Builder, rounds: Reg<U32>) {
        if !self.config.paired() {
            return;
        }
        self.in_first_block(k, |k| {
            let last = k.sub(rounds, 2);
            let [place, parity] = self.turn(k, last);
            let taken = self.barrier(k, self.taken, place);
            k.wait_at(Addr::of(taken), parity, self.config.scope());
        });
    }
}
