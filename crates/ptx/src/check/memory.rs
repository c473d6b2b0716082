//! Loads, stores, atomics and asynchronous copies: widths, counts, windows, alignment.

use super::Check;
use crate::instr::{AsyncCopy, AtomicOp, LoadOrder, Memory, StoreOrder, Width};
use crate::rule::Rule;
use crate::target::Feature;
use crate::types::{Address, Bank, DataType, Operand, RegId, Scope, Space};

use DataType::{F32, F64, S32, S64, U16, U32, U64};

impl Check<'_> {
    pub(super) fn memory(&mut self, op: &Memory) {
        match op {
            Memory::Load { space, order, width, dsts, addr } => {
                if matches!(order, LoadOrder::ReadOnly | LoadOrder::Streaming) && *space != Space::Global {
                    let what = "the source of a read-only load";
                    self.refuse(Rule::Window { what, found: *space, wanted: "global memory" });
                }
                self.reach(Some(*space), load_scope(*order));
                self.access(*space, *width, dsts, *addr);
            }
            Memory::Store { space, order, width, srcs, addr } => {
                self.reach(Some(*space), store_scope(*order));
                self.access(*space, *width, srcs, *addr);
            }
            Memory::Atomic { space, op, ty, acq_rel, scope, dst, addr, a, b } => {
                self.reach(Some(*space), Some(*scope));
                let types: (&[DataType], _) = match op {
                    AtomicOp::Add => (&[U32, S32, U64, F32, F64], "U32, S32, U64, F32 and F64"),
                    AtomicOp::Min | AtomicOp::Max => (&[U32, S32, U64, S64], "U32, S32, U64 and S64"),
                    AtomicOp::And | AtomicOp::Or | AtomicOp::Xor => (&[U32, U64], "U32 and U64"),
                    AtomicOp::Increment | AtomicOp::Decrement => (&[U32], "U32"),
                    AtomicOp::Exchange => (&[U32, U64], "U32 and U64, with the old value returned"),
                    AtomicOp::CompareExchange => (&[U16, U32, U64], "U16, U32 and U64, with the old value returned"),
                };
                self.form(&format_args!("atomic {op:?}"), *ty, types);
                if let Some(b) = b {
                    self.operand("the second operand", *b, *ty);
                }
                if b.is_some() != (*op == AtomicOp::CompareExchange) {
                    let op = format!("atomic {op:?} with so many operands");
                    self.refuse(Rule::NoSuchForm { op, ty: *ty, wanted: "two for CompareExchange, one for others" });
                }
                if matches!(op, AtomicOp::Exchange | AtomicOp::CompareExchange) && dst.is_none() {
                    let op = format!("atomic {op:?} without its old value");
                    self.refuse(Rule::NoSuchForm { op, ty: *ty, wanted: "a result; a store does without" });
                }
                if *acq_rel && dst.is_none() {
                    let op = "acquire-release reduction".into();
                    self.refuse(Rule::NoSuchForm {
                        op,
                        ty: *ty,
                        wanted: "the old value: without it nothing is acquired",
                    });
                }
                self.operand("the operand", *a, *ty);
                self.banks("the old value", dst.as_slice(), ty.bank());
                let bytes = (ty.bank().bits() / 8).max(1);
                self.address("the value", *space, *addr, bytes, bytes.into());
            }
        }
    }

    /// A load or store of neighbouring elements.
    fn access(&mut self, space: Space, width: Width, regs: &[RegId], addr: Address) {
        self.count("elements in one access", regs.len(), "1, 2 or 4", &[1, 2, 4]);
        let bytes = regs.len() as u32 * width.bytes();
        self.value("bytes of one access", bytes.into(), "at most 16", |n| n <= 16);
        for &reg in regs {
            self.element("an element", width, reg);
        }
        if [1, 2, 4].contains(&regs.len()) {
            self.address("the accessed memory", space, addr, bytes, bytes.into());
        }
    }

    /// A register that holds an element of memory.
    pub(super) fn element(&mut self, what: &'static str, width: Width, found: RegId) {
        let (fits, wanted) = match width {
            Width::B8 | Width::S8 | Width::B16 | Width::S16 => {
                (found.bank != Bank::Pred, "a 16-bit register or a wider one")
            }
            Width::B32 => (found.bank == Bank::B32, "a 32-bit register"),
            Width::B64 => (found.bank == Bank::B64, "a 64-bit register"),
        };
        if !fits {
            self.refuse(Rule::Bank { what, found, wanted });
        }
    }

    pub(super) fn copy(&mut self, op: &AsyncCopy) {
        match op {
            AsyncCopy::ThreadCopy { .. }
            | AsyncCopy::CommitThreadGroup
            | AsyncCopy::WaitThreadGroup { .. }
            | AsyncCopy::ArriveBehindCopies { .. } => {}
            AsyncCopy::StoreAsync { .. } | AsyncCopy::BulkToCluster { .. } => {
                self.feature("a copy to another block", Feature::Clusters);
            }
            AsyncCopy::TryCancel { .. } => self.feature("cancelling the launch of a cluster", Feature::LaunchControl),
            _ => self.feature("the copy engine", Feature::BulkCopies),
        }
        match op {
            AsyncCopy::BulkLoad { dst, src, bytes, bar, multicast, policy } => {
                let size = self.bulk_bytes(*bytes);
                self.address("the destination of a bulk copy", Space::Shared, *dst, size, 16);
                self.address("the source of a bulk copy", Space::Global, *src, 0, 16);
                self.options(*bar, *multicast, *policy);
            }
            AsyncCopy::BulkStore { dst, src, bytes, policy } => {
                let size = self.bulk_bytes(*bytes);
                self.address("the destination of a bulk copy", Space::Global, *dst, 0, 16);
                self.address("the source of a bulk copy", Space::Shared, *src, size, 16);
                self.banks("the policy", policy.as_slice(), Bank::B64);
            }
            AsyncCopy::BulkToCluster { dst, src, bytes, bar } => {
                let size = self.bulk_bytes(*bytes);
                self.address("the destination of a bulk copy", Space::Cluster, *dst, size, 16);
                self.address("the source of a bulk copy", Space::Shared, *src, size, 16);
                self.mbarrier(Space::Cluster, *bar);
            }
            AsyncCopy::BulkPrefetch { src, bytes } => {
                self.bulk_bytes(*bytes);
                self.address("the source of a bulk prefetch", Space::Global, *src, 0, 16);
            }
            AsyncCopy::TensorLoad { dst, map, coords, bar, multicast, policy, cta_group } => {
                self.tensor(*map, coords);
                self.address("the destination of a tensor copy", Space::Shared, *dst, 16, 128);
                self.options(*bar, *multicast, *policy);
                if let Some(group) = cta_group {
                    self.feature("a tensor copy with a cta_group", Feature::Tcgen05);
                    self.group(*group);
                }
            }
            AsyncCopy::TensorStore { map, coords, src, policy } => {
                self.tensor(*map, coords);
                self.address("the source of a tensor copy", Space::Shared, *src, 16, 128);
                self.banks("the policy", policy.as_slice(), Bank::B64);
            }
            AsyncCopy::TensorPrefetch { map, coords } => self.tensor(*map, coords),
            AsyncCopy::PrefetchMap { map } => self.bank("the tensor map", *map, Bank::B64),
            AsyncCopy::ThreadCopy { dst, src, bytes, source_bytes, policy } => {
                self.count("bytes of a thread's copy", *bytes as usize, "4, 8 or 16", &[4, 8, 16]);
                self.address(
                    "the destination of a thread's copy",
                    Space::Shared,
                    *dst,
                    *bytes,
                    u64::from(*bytes).max(1),
                );
                self.address("the source of a thread's copy", Space::Global, *src, 0, u64::from(*bytes).max(1));
                if let Some(read) = source_bytes {
                    let most = u64::from(*bytes);
                    self.word("the bytes that a thread's copy reads", *read, "at most those it writes", |n| n <= most);
                }
                self.banks("the policy", policy.as_slice(), Bank::B64);
            }
            AsyncCopy::TryCancel { dst, bar, multicast: _ } => {
                self.address("the answer of launch control", Space::Shared, *dst, 16, 16);
                self.mbarrier(Space::Shared, *bar);
            }
            AsyncCopy::ArriveBehindCopies { bar, .. } => self.mbarrier(Space::Shared, *bar),
            AsyncCopy::CommitGroup
            | AsyncCopy::WaitGroup { .. }
            | AsyncCopy::CommitThreadGroup
            | AsyncCopy::WaitThreadGroup { .. } => {}
            AsyncCopy::StoreAsync { dst, srcs, bar } => {
                self.count("words in one remote store", srcs.len(), "1, 2 or 4", &[1, 2, 4]);
                self.banks("a word", srcs, Bank::B32);
                let bytes = srcs.len() as u32 * 4;
                let align = u64::from(bytes).next_power_of_two();
                self.address("the destination of a remote store", Space::Cluster, *dst, bytes, align);
                self.mbarrier(Space::Cluster, *bar);
            }
        }
    }

    /// The size of a bulk copy: as many bytes as are known to be touched, 16 at least.
    fn bulk_bytes(&mut self, bytes: Operand) -> u32 {
        self.word("the size of a bulk copy", bytes, "a positive multiple of 16", |n| n > 0 && n % 16 == 0);
        match self.known.constant(bytes) {
            Some(bytes) => bytes as u32,
            None => {
                let (modulus, residue) = self.known.residue(bytes, 8);
                self.aligned("the size of a bulk copy", modulus, residue, 16);
                16
            }
        }
    }

    fn options(&mut self, bar: Address, multicast: Option<RegId>, policy: Option<RegId>) {
        self.mbarrier(Space::Shared, bar);
        self.banks("the multicast mask", multicast.as_slice(), Bank::B16);
        self.banks("the policy", policy.as_slice(), Bank::B64);
    }

    fn tensor(&mut self, map: RegId, coords: &[Operand]) {
        self.bank("the tensor map", map, Bank::B64);
        let found = coords.len();
        self.count("coordinates", found, "1 to 5, one per dimension", &[1, 2, 3, 4, 5]);
        if let Some(param) = self.known.param(map) {
            let first = *self.ranks.entry(param).or_insert(found);
            let name = self.kernel.params.get(param.0 as usize).map(|param| param.name.clone());
            if let Some(name) = name.filter(|_| first != found) {
                self.refuse(Rule::MixedRanks { name, first, found });
            }
        }
        for &coord in coords {
            self.operand("a coordinate", coord, DataType::S32);
        }
    }
}

fn load_scope(order: LoadOrder) -> Option<Scope> {
    match order {
        LoadOrder::Relaxed(scope) | LoadOrder::Acquire(scope) => Some(scope),
        LoadOrder::Weak | LoadOrder::ReadOnly | LoadOrder::Streaming => None,
    }
}

fn store_scope(order: StoreOrder) -> Option<Scope> {
    match order {
        StoreOrder::Relaxed(scope) | StoreOrder::Release(scope) => Some(scope),
        StoreOrder::Weak => None,
    }
}
