//! Barriers, fences, and what the lanes of a warp do together.

use super::Check;
use crate::instr::{Barrier, Fence, ReduceOp, Warp};
use crate::rule::Rule;
use crate::target::Feature;
use crate::types::{Address, Bank, DataType, Operand, RegId, Scope, Space};

/// The largest arrival count, and the largest transaction count, of a barrier in shared memory.
const BARRIER_LIMIT: u64 = (1 << 20) - 1;

impl Check<'_> {
    /// Eight aligned bytes of shared memory.
    pub(super) fn mbarrier(&mut self, space: Space, bar: Address) {
        if space.is_wide() {
            let what = "a barrier";
            self.refuse(Rule::Window { what, found: space, wanted: "shared memory, this block's or another's" });
        } else {
            self.address("the barrier", space, bar, 8, 8);
        }
    }

    /// What an arrive leaves of a barrier's phase.
    fn state(&mut self, space: Space, state: Option<RegId>) {
        self.banks("the state of a barrier", state.as_slice(), Bank::B64);
        if space == Space::Cluster && state.is_some() {
            let what = "a barrier whose state an arrive returns";
            self.refuse(Rule::Window { what, found: space, wanted: "this block's shared memory" });
        }
    }

    fn barrier_scope(&mut self, what: &'static str, found: Scope) {
        if matches!(found, Scope::Gpu | Scope::System) {
            self.refuse(Rule::BarrierScope { what, found });
        }
    }

    pub(super) fn barrier(&mut self, op: &Barrier) {
        match op {
            Barrier::NamedSync { .. } | Barrier::NamedArrive { .. } => {}
            Barrier::ClusterArrive { .. } | Barrier::ClusterWait { .. } => {
                self.feature("the barrier of a cluster", Feature::Clusters);
            }
            _ => self.feature("a barrier in shared memory", Feature::MemoryBarriers),
        }
        let countable = |n: u64| (1..=BARRIER_LIMIT).contains(&n);
        match *op {
            Barrier::Init { bar, count } => {
                self.mbarrier(Space::Shared, bar);
                self.word("the barrier's arrival count", count, "1 to 1048575", countable);
            }
            Barrier::Invalidate { bar } => self.mbarrier(Space::Shared, bar),
            Barrier::ExpectTx { space, bar, bytes } => {
                self.mbarrier(space, bar);
                self.word("the expected bytes", bytes, "at most 1048575", |n| n <= BARRIER_LIMIT);
            }
            Barrier::Arrive { space, scope, bar, count, state, .. } => {
                self.mbarrier(space, bar);
                self.state(space, state);
                self.barrier_scope("an arrive", scope);
                if let Some(count) = count {
                    self.word("the arrivals counted", count, "1 to 1048575", countable);
                }
            }
            Barrier::ArriveExpectTx { space, scope, bar, bytes, state, .. } => {
                self.mbarrier(space, bar);
                self.state(space, state);
                self.barrier_scope("an arrive", scope);
                self.word("the expected bytes", bytes, "at most 1048575", |n| n <= BARRIER_LIMIT);
            }
            Barrier::TryWait { done, scope, bar, parity, .. } => {
                self.bank("the answer", done, Bank::Pred);
                self.mbarrier(Space::Shared, bar);
                self.barrier_scope("a wait", scope);
                self.word("the parity", parity, "0 or 1", |n| n < 2);
            }
            Barrier::NamedSync { id, threads, .. } => {
                self.named(id, threads);
            }
            Barrier::NamedArrive { id, threads, .. } => self.named(id, Some(threads)),
            Barrier::ClusterArrive { .. } | Barrier::ClusterWait { .. } => {}
        }
    }

    fn named(&mut self, id: Operand, threads: Option<Operand>) {
        self.word("the barrier's number", id, "0 to 15", |n| n < 16);
        let block = u64::from(self.kernel.launch.threads);
        if let Some(threads) = threads {
            let wanted = "a positive multiple of 32, no more than the block has";
            self.word("the threads at the barrier", threads, wanted, |n| n > 0 && n % 32 == 0 && n <= block);
        }
    }

    pub(super) fn fence(&mut self, op: Fence) {
        match op {
            Fence::AcqRel(scope) => self.reach(None, Some(scope)),
            Fence::ProxyAsync(_) | Fence::BarrierInit => {
                self.feature("a fence for the copy engine", Feature::BulkCopies);
            }
        }
        if let Fence::ProxyAsync(Some(Space::Cluster)) = op {
            let (what, found) = ("a proxy fence", Space::Cluster);
            self.refuse(Rule::Window { what, found, wanted: "this block's shared memory, global memory, or all" });
        }
    }

    pub(super) fn warp(&mut self, op: &Warp) {
        let someone = |n: u64| n != 0;
        let mask_wanted = "at least one lane";
        match op {
            Warp::Shuffle { dst, valid, a, lane, clamp, mask, .. } => {
                self.banks("a shuffled value", &[*dst, *a], Bank::B32);
                self.banks("the validity", valid.as_slice(), Bank::Pred);
                self.word("the lane", *lane, "0 to 31", |n| n < 32);
                let wanted = "a clamp in bits 0..5 and a segment in bits 8..13";
                self.word("the shuffle's clamp", *clamp, wanted, |n| n & !0x1f1f == 0);
                self.word("the mask", *mask, mask_wanted, someone);
            }
            Warp::Vote { dst, pred, mask, .. } => {
                self.banks("a predicate of the vote", &[*dst, *pred], Bank::Pred);
                self.word("the mask", *mask, mask_wanted, someone);
            }
            Warp::Ballot { dst, pred, mask } => {
                self.bank("the result", *dst, Bank::B32);
                self.bank("the predicate", *pred, Bank::Pred);
                self.word("the mask", *mask, mask_wanted, someone);
            }
            Warp::ActiveMask { dst } => self.bank("the result", *dst, Bank::B32),
            Warp::Elect { leader, pred, mask } => {
                self.banks("the elected lane", leader.as_slice(), Bank::B32);
                self.feature("elect", Feature::Elect);
                self.bank("the result", *pred, Bank::Pred);
                self.word("the mask", *mask, mask_wanted, someone);
            }
            Warp::Reduce { op, ty, dst, a, mask } => {
                let types: (&[DataType], _) = match op {
                    ReduceOp::Add => (&[DataType::U32, DataType::S32], "U32 and S32"),
                    ReduceOp::Min | ReduceOp::Max => {
                        (&[DataType::U32, DataType::S32, DataType::F32], "U32, S32 and F32")
                    }
                    ReduceOp::MinNan | ReduceOp::MaxNan => (&[DataType::F32], "F32"),
                    ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => (&[DataType::U32], "U32"),
                };
                self.form(&format_args!("warp reduction {op:?}"), *ty, types);
                if *ty == DataType::F32 {
                    self.feature("redux of floats", Feature::Tcgen05);
                }
                self.banks("a reduced value", &[*dst, *a], Bank::B32);
                self.word("the mask", *mask, mask_wanted, someone);
            }
            Warp::Match { all, ty, dst, same, a, mask } => {
                self.form(&"match", *ty, (&[DataType::U32, DataType::U64], "U32 and U64"));
                self.operand("the value", *a, *ty);
                self.bank("the result", *dst, Bank::B32);
                self.banks("whether all match", same.as_slice(), Bank::Pred);
                let answers = u64::from(same.is_some() && !all);
                self.value("predicates of match.any", answers, "none: match.all has one", |n| n == 0);
                self.word("the mask", *mask, mask_wanted, someone);
            }
            Warp::Sync { mask } => self.word("the mask", *mask, mask_wanted, someone),
            Warp::LoadMatrix { dsts: regs, addr, .. } | Warp::StoreMatrix { srcs: regs, addr, .. } => {
                if let Warp::StoreMatrix { .. } = op {
                    self.feature("stmatrix", Feature::StoreMatrix);
                }
                self.count("matrices", regs.len(), "1, 2 or 4", &[1, 2, 4]);
                self.banks("a matrix", regs, Bank::B32);
                self.address("a matrix row", Space::Shared, *addr, 16, 16);
            }
        }
    }
}
