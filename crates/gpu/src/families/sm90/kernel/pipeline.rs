//! The stages in shared memory, and the protocol by which they are filled and emptied. Nothing else touches their
//! barriers.
//!
//! - *full*: one arrival by each producer, with its bytes of the stage; completes when all have landed. Consumers wait.
//! - *empty*: one arrival per thread that reads the stage, once it has read it for the last time. The producers wait.
//!   One lane could speak for its warp, but it is no faster, and the assembler drops the meeting of the lanes before
//!   it.
//!
//! Stages are used in a ring, one after another through all tiles of a block. Who is where in the ring is a [`Turn`]: a
//! stage, and the parity of the round in which it is used. A parity tells only two successive rounds apart, so nobody
//! may wait for a round before the last but one is known to be over. Whoever reads every round of a stage knows that.
//! Two warpgroups that share k have the stages of one parity each, of an even number. Two that take turns with tiles
//! leave out what the other reads, and hence need a third barrier:
//!
//! - *done*: one arrival per thread of a warpgroup, when it has read its tile's last stage. The other one waits.
//!
//! The *empty* barrier of a stage counts only the warpgroups that read the same one.

use ptx::{Addr, Barriers, Builder, Pred, Reg, Shared, SharedRegion, U32};

use super::{MultiplySpec, TOKEN_LAYOUT};

/// Threads that fill a stage.
const PRODUCERS: u32 = 2;

/// The stages and their barriers.
pub(super) struct Pipeline {
    config: MultiplySpec,
    /// Tokens: by stage, rows' units and part.
    pub tokens: SharedRegion,
    /// Weights: by stage, chunk and unit.
    weights: SharedRegion,
    full: Barriers,
    empty: Barriers,
    done: Option<Barriers>,
}

/// Where a stage is, for those who read it.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    /// The barrier that counts its bytes.
    full: Reg<U32>,
    /// Low word of the descriptor of its tokens; where warps read those by themselves, their address.
    pub tokens: Reg<U32>,
    /// Address of its weights.
    pub chunks: Reg<U32>,
}

impl Spot {
    pub fn new(k: &mut Builder) -> Self {
        let [full, tokens, chunks] = k.registers();
        Spot { full, tokens, chunks }
    }

    fn registers(&self) -> [Reg<U32>; 3] {
        [self.full, self.tokens, self.chunks]
    }

    pub fn set(&self, k: &mut Builder, other: &Spot) {
        for (to, from) in self.registers().into_iter().zip(other.registers()) {
            k.set(to, from);
        }
    }
}

/// A stage, and the parity of the round in which it is used.
pub(super) struct Turn {
    pub stage: Reg<U32>,
    pub parity: Reg<U32>,
}

impl Pipeline {
    pub fn declare(k: &mut Builder, config: MultiplySpec) -> Self {
        let [tokens, weights] = config.unit_bytes().map(|bytes| bytes * config.units * config.stages);
        Pipeline {
            config,
            tokens: k.shared("tokens", tokens, TOKEN_LAYOUT.swizzle.period()),
            weights: k.shared("weights", weights, 128),
            full: k.barriers("full", config.stages),
            empty: k.barriers("empty", config.stages),
            done: config.ping_pong.then(|| k.barriers("done", 2)),
        }
    }

    /// Each thread that has a stage of its number makes that stage's barriers, and the first one the others.
    pub fn prepare(&self, k: &mut Builder, thread: Reg<U32>) {
        let readers = 128 * self.config.division().along_n;
        for (which, arrivals) in [(self.full, PRODUCERS), (self.empty, readers)] {
            let barrier = self.barrier(k, which, thread);
            k.barrier_init(Addr::of(barrier), arrivals);
        }
        if let Some(done) = self.done {
            let first = k.eq(thread, 0);
            (0..2).for_each(|warpgroup| k.when(first, |k| k.barrier_init(done.at(warpgroup), 128)));
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

    /// Goes on by a few stages; the parity flips whenever the ring is closed. Says where that happened, unless it is
    /// always.
    pub fn advance(&self, k: &mut Builder, turn: &Turn, by: u32) -> Option<Pred> {
        let (rounds, by) = (by / self.config.stages, by % self.config.stages);
        if rounds % 2 == 1 {
            let flipped = k.xor(turn.parity, 1);
            k.set(turn.parity, flipped);
        }
        (by > 0).then(|| {
            let next = k.add(turn.stage, by);
            let wrapped = k.ge(next, self.config.stages);
            let flipped = k.xor(turn.parity, 1);
            let around = k.sub(next, self.config.stages);
            let next = k.select(wrapped, around, next);
            k.set(turn.stage, next);
            k.when(wrapped, |k| k.set(turn.parity, flipped));
            wrapped
        })
    }

    /// Goes on from the stage at `here` by a few stages, to `next`: by what separates their addresses, so that none is
    /// computed anew.
    pub fn follow(&self, k: &mut Builder, turn: &Turn, by: u32, here: &Spot, next: &Spot) {
        let wrapped = self.advance(k, turn, by);
        let by = by % self.config.stages;
        // A descriptor counts in sixteens.
        let tokens = self.token_bytes() / if self.config.by_warps { 1 } else { 16 };
        let strides = [Barriers::STRIDE, tokens, self.stage_chunks()];
        for ((from, to), stride) in here.registers().into_iter().zip(next.registers()).zip(strides) {
            let (on, back) = (by * stride, (by * stride).wrapping_sub(self.config.stages * stride));
            let there =
                wrapped.map(|wrapped| k.select(wrapped, back, on)).map_or(from, |distance| k.add(from, distance));
            k.set(to, there);
        }
    }

    /// Finds the stage whose turn it is.
    pub fn find(&self, k: &mut Builder, turn: &Turn, spot: &Spot) {
        let full = self.barrier(k, self.full, turn.stage);
        let tile = self.token_tile(k, turn);
        let tokens = if self.config.by_warps { tile } else { k.descriptor_low(TOKEN_LAYOUT, tile) };
        let chunks = self.chunks(k, turn);
        spot.set(k, &Spot { full, tokens, chunks });
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

    fn barrier(&self, k: &mut Builder, which: Barriers, stage: Reg<U32>) -> Reg<U32> {
        let base = k.shared_address(which.region());
        k.mul_add(stage, Barriers::STRIDE, base)
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
        self.config.units * self.config.scales.chunk_bytes()
    }

    /// Bytes of a stage's weights.
    fn stage_chunks(&self) -> u32 {
        self.config.chunks() * self.chunk_stride()
    }

    /// Where a stage's weights are.
    pub fn chunks(&self, k: &mut Builder, turn: &Turn) -> Reg<U32> {
        let base = k.shared_address(self.weights);
        k.mul_add(turn.stage, self.stage_chunks(), base)
    }

    /// A producer waits until every reader has left the stage; in the first round nobody has been there.
    pub fn wait_empty(&self, k: &mut Builder, turn: &Turn) {
        let empty = self.barrier(k, self.empty, turn.stage);
        let before = k.xor(turn.parity, 1);
        k.wait(Addr::of(empty), before);
    }

    /// A producer announces what it will bring to a stage. Gives the barrier that counts the bytes.
    pub fn announce(&self, k: &mut Builder, turn: &Turn, bytes: Reg<U32>) -> Addr<Shared> {
        let full = Addr::of(self.barrier(k, self.full, turn.stage));
        k.arrive_expecting(full, bytes);
        full
    }

    /// Consumers wait until a stage's bytes have landed, in the round whose turn it is.
    pub fn wait_full(&self, k: &mut Builder, spot: &Spot, turn: &Turn) {
        k.wait(Addr::of(spot.full), turn.parity);
    }

    /// Notes that a stage has been read but not yet released.
    pub fn note(&self, k: &mut Builder, spot: &Spot, pending: Reg<U32>) {
        k.set(pending, spot.full);
    }

    /// A consumer has read the stage at this spot for the last time.
    pub fn release(&self, k: &mut Builder, spot: &Spot) {
        self.arrive_empty(k, spot.full);
    }

    /// The same for the stage that was noted.
    pub fn release_last(&self, k: &mut Builder, pending: Reg<U32>) {
        self.arrive_empty(k, pending);
    }

    /// The same for a stage that was noted, if one was.
    pub fn release_noted(&self, k: &mut Builder, pending: Reg<U32>) {
        let noted = k.ne(pending, 0);
        k.when(noted, |k| self.arrive_empty(k, pending));
    }

    fn arrive_empty(&self, k: &mut Builder, full: Reg<U32>) {
        let further = self.empty.region().offset - self.full.region().offset;
        k.arrive(Addr::of(full).plus(further.cast_signed()));
    }

    /// Of two warpgroups that take turns, the one whose turn it is in this round waits until the other has read its
    /// last stage of the round before. In the first round the parity is that of a round that never was, which counts as
    /// over.
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

    /// A thread has read its tile's last stage.
    pub fn hand_over(&self, k: &mut Builder, warpgroup: Reg<U32>) {
        let Some(done) = self.done else { return };
        let base = k.shared_address(done.region());
        let barrier = k.mul_add(warpgroup, Barriers::STRIDE, base);
        k.arrive(Addr::of(barrier));
    }
}
