//! Sums of the same elements that different warpgroups, or the two blocks of a cluster, hold are added up.
//!
//! Two warpgroups that share k of the same columns: the second leaves its sums in shared memory, and the first adds
//! them to its own and alone goes on to C.
//!
//! Two blocks that share k: each is to finish one half of the tile's tokens. A block sends its sums of the other half
//! straight into the other's shared memory, where a barrier counts their bytes, and adds what it receives to its own
//! half. Both blocks announce, once their barriers are made, that they can receive; nobody sends before the other has
//! announced.

use ptx::instr::Semantics;
use ptx::{Addr, Barriers, Builder, Cluster, F32, Reg, Scope, Shared, SharedRegion, SpecialRegister, U32};

use super::consume::Consumer;
use super::pipeline::Pipeline;
use super::{ALL_CONSUMERS, Division, MultiplySpec, epilogue};
use op::Schedule;

/// The shared memory through which sums travel.
pub(super) struct Combine {
    config: MultiplySpec,
    /// The second warpgroups' sums.
    between_warpgroups: Option<SharedRegion>,
    /// The other block's sums, and a barrier for each warpgroup that receives.
    between_blocks: Option<(SharedRegion, Barriers)>,
}

/// Bytes that one warpgroup needs for one word of each of its threads.
const WORD_ROW: u32 = 128 * 4;

impl Combine {
    /// Words that a thread holds in sums.
    fn sums(config: &MultiplySpec) -> u32 {
        config.division().blocks * config.passes() * config.tokens / 2
    }

    /// Bytes that the second warpgroups along k leave.
    pub fn scratch_bytes(config: &MultiplySpec) -> Option<u32> {
        let Division { along_n, along_k, .. } = config.division();
        (along_k > 1).then(|| along_n * Self::sums(config) * WORD_ROW)
    }

    /// Bytes that come from the other block: half of the sums of every warpgroup that finishes.
    pub fn received_bytes(config: &MultiplySpec) -> Option<u32> {
        (config.schedule == Schedule::SplitK).then(|| config.division().along_n * Self::sums(config) / 2 * WORD_ROW)
    }

    pub fn declare(k: &mut Builder, config: MultiplySpec, pipe: &Pipeline) -> Self {
        let between_warpgroups =
            Self::scratch_bytes(&config).map(|bytes| epilogue::scratch(k, config, pipe, "sums", bytes));
        let between_blocks = Self::received_bytes(&config)
            .map(|bytes| (k.shared("received", bytes, 16), k.barriers("receives", config.division().along_n)));
        Combine { config, between_warpgroups, between_blocks }
    }

    /// The first thread makes the barriers.
    pub fn prepare(&self, k: &mut Builder, thread: Reg<U32>) {
        if let Some((_, barriers)) = self.between_blocks {
            let first = k.eq(thread, 0);
            for warpgroup in 0..self.config.division().along_n {
                k.when(first, |k| k.barrier_init(barriers.at(warpgroup), 1));
            }
        }
    }

    /// Every thread: this block's barriers are made.
    pub fn announce(&self, k: &mut Builder) {
        if self.between_blocks.is_some() {
            k.cluster_arrive(Semantics::Ordered, true);
        }
    }

    /// Afterwards the warpgroups that finish hold complete sums, in a cluster those of their half of the tokens in the
    /// first half of the registers.
    pub fn combine(&self, k: &mut Builder, consumer: &Consumer) {
        if let Some(region) = self.between_warpgroups {
            self.join_warpgroups(k, consumer, region);
        }
        if let Some((region, barriers)) = self.between_blocks {
            k.cluster_wait(true);
            if self.config.division().along_k > 1 {
                let finishes = k.eq(consumer.along_k, 0);
                k.if_(finishes, |k| self.exchange(k, consumer, region, barriers));
            } else {
                self.exchange(k, consumer, region, barriers);
            }
        }
    }

    fn join_warpgroups(&self, k: &mut Builder, consumer: &Consumer, region: SharedRegion) {
        let all = self.config.warpgroups() * 128;
        let base = k.shared_address(region);
        let base = k.mul_add(consumer.along_n, Self::sums(&self.config) * WORD_ROW, base);
        let mine = k.mul_add(consumer.thread, 4, base);
        let places = consumer.sums.iter().flatten().enumerate();
        let place = |index: usize| Addr::<Shared>::of(mine).plus((index as u32 * WORD_ROW).cast_signed());
        // Nobody reads stages any more, nor the sums of the tile before, that may lie where these go.
        k.named_sync(ALL_CONSUMERS, all);
        let second = k.ne(consumer.along_k, 0);
        k.if_(second, |k| places.clone().for_each(|(index, &sum)| k.store(place(index), sum)));
        k.named_sync(ALL_CONSUMERS, all);
        let first = k.eq(consumer.along_k, 0);
        k.if_(first, |k| {
            for (index, &sum) in places {
                let other: Reg<F32> = k.load(place(index));
                let total = k.add(sum, other);
                k.set(sum, total);
            }
        });
    }

    fn exchange(&self, k: &mut Builder, consumer: &Consumer, region: SharedRegion, barriers: Barriers) {
        let rank = k.special(SpecialRegister::ClusterCtaRank);
        let (second, other) = (k.ne(rank, 0), k.xor(rank, 1));
        let half = self.config.tokens as usize / 4;
        let bytes = consumer.sums.len() as u32 * half as u32 * WORD_ROW;
        let base = k.shared_address(region);
        let base = k.mul_add(consumer.along_n, bytes, base);
        let mine = k.mul_add(consumer.thread, 16, base);
        let barrier = k.shared_address(barriers.region());
        let barrier = k.mul_add(consumer.along_n, Barriers::STRIDE, barrier);
        let leads = k.eq(consumer.thread, 0);
        k.when(leads, |k| k.arrive_expecting(Addr::of(barrier), bytes));
        let (far, far_barrier) = (k.map_shared(mine, other), k.map_shared(barrier, other));
        self.send(k, consumer, second, [far, far_barrier]);
        k.wait_at(Addr::of(barrier), 0, Scope::Cluster);
        for (set, sums) in consumer.sums.iter().enumerate() {
            for group in 0..half / 4 {
                let received: [Reg<F32>; 4] = k.load_vector(Addr::<Shared>::of(mine).plus(row(set, group, half)));
                for (&sum, other) in sums[4 * group..].iter().zip(received) {
                    let total = k.add(sum, other);
                    k.set(sum, total);
                }
            }
        }
    }

    /// Sends the other block its half and moves this block's half to the front.
    fn send(&self, k: &mut Builder, consumer: &Consumer, second: ptx::Pred, [far, far_barrier]: [Reg<U32>; 2]) {
        let half = self.config.tokens as usize / 4;
        for (set, sums) in consumer.sums.iter().enumerate() {
            for group in 0..half / 4 {
                let mut sent = Vec::new();
                for word in 4 * group..4 * group + 4 {
                    let (front, back) = (sums[word], sums[half + word]);
                    sent.push(k.select(second, front, back));
                    let kept = k.select(second, back, front);
                    k.set(front, kept);
                }
                let to = Addr::<Cluster>::of(far).plus(row(set, group, half));
                k.store_async(to, &sent, Addr::<Cluster>::of(far_barrier));
            }
        }
    }
}

/// Where four words of every thread lie, from the start of a warpgroup's share.
fn row(set: usize, group: usize, half: usize) -> i32 {
    ((set * half / 4 + group) as u32 * 4 * WORD_ROW).cast_signed()
}
