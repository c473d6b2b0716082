//! What the hardware does beside the threads: the reverse of `print/async_work.rs`.

use super::warp::element;
use super::words::Words;
use super::{Lower, Refusal};
use crate::instr::{
    Access, Accumulate, Arith, Arrival, AsyncCopy, AtomicOp, Barrier, BinaryOp, CellShape, Collector, Comparison,
    CtaGroup, DenseKind, Fence, FloatMode, Guard, LoadOrder, MatrixA, Memory, Op, ScaledKind, Semantics,
    SpecialRegister, StoreOrder, Tcgen05, TensorA, TernaryOp, UnaryOp, Warp, Wgmma, Width,
};
use crate::parse::syntax::Operand;
use crate::print;
use crate::tensor_map::{MapField, TensorMap};
use crate::types::{self, Address, Bank, Base, DataType, RegId, Scope, Space};

const GROUPS: [(&str, CtaGroup); 2] = [("cta_group::1", CtaGroup::One), ("cta_group::2", CtaGroup::Two)];

/// What a barrier answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vote {
    Count,
    All,
    Any,
}

/// Instructions before a multiplication among which its mask of lanes is looked for.
const NEAR: usize = 256;

/// The order and scope of an arrive or wait; the default is ordered, within the block.
fn ordering(words: &mut Words<'_>, ordered: &str) -> (Semantics, Scope) {
    let sem = if words.take("relaxed") { Semantics::Relaxed } else { Semantics::Ordered };
    words.take(ordered);
    (sem, words.scope().unwrap_or(Scope::Block))
}

/// Whether all of some words are there; they are taken.
fn all(words: &mut Words<'_>, wanted: &[&str]) -> Result<(), Refusal> {
    wanted.iter().all(|word| words.take(word)).then_some(()).ok_or(Refusal::Unknown)
}

/// A window of shared memory, if one is said; otherwise addresses are generic.
fn shared(words: &mut Words<'_>) -> Result<Option<Space>, Refusal> {
    match words.space() {
        Some(Space::Global) => Err(Refusal::Unknown),
        window => Ok(window),
    }
}

/// This block's window, said or not.
fn own_shared(words: &mut Words<'_>) -> Result<Option<Space>, Refusal> {
    shared(words)?.map_or(Ok(None), |window| (window == Space::Shared).then_some(Some(window)).ok_or(Refusal::Unknown))
}

impl<'t> Lower<'_, 't> {
    fn word(&mut self, operand: &Operand<'t>) -> Result<types::Operand, Refusal> {
        self.value(operand, DataType::U32)
    }

    /// An address in brackets of shared memory: in a window, or generic.
    pub(super) fn in_shared(&mut self, window: Option<Space>, operand: &Operand<'t>) -> Result<Address, Refusal> {
        match window {
            Some(_) => self.address(operand, false),
            None => self.generic_shared(operand),
        }
    }

    pub(super) fn barrier(
        &mut self,
        opcode: &str,
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), Refusal> {
        let op = match opcode {
            "bar" if words.take("warp") => {
                let ([mask], _) = (self.exactly(operands)?, words.take("sync"));
                let mask = self.word(mask)?;
                self.emit(Warp::Sync { mask });
                return Ok(());
            }
            "mbarrier" => self.mbarrier(words, operands)?,
            "barrier" if words.take("cluster") => {
                let aligned = words.take("aligned");
                match operands {
                    [] if words.take("arrive") => {
                        let sem = if words.take("relaxed") { Semantics::Relaxed } else { Semantics::Ordered };
                        words.take("release");
                        Barrier::ClusterArrive { sem, aligned }
                    }
                    [] if words.take("wait") => {
                        words.take("acquire");
                        Barrier::ClusterWait { aligned }
                    }
                    _ => return Err(Refusal::Unknown),
                }
            }
            _ if words.take("red") => return self.vote(opcode, words, operands),
            _ => {
                words.take("cta");
                // `bar` is `barrier` with all lanes of a warp together.
                let aligned = opcode == "bar" || words.take("aligned");
                match operands {
                    [id] if words.take("sync") => Barrier::NamedSync { aligned, id: self.word(id)?, threads: None },
                    [id, threads] if words.take("sync") => {
                        Barrier::NamedSync { aligned, id: self.word(id)?, threads: Some(self.word(threads)?) }
                    }
                    [id, threads] if words.take("arrive") => {
                        Barrier::NamedArrive { aligned, id: self.word(id)?, threads: self.word(threads)? }
                    }
                    _ => return Err(Refusal::Unknown),
                }
            }
        };
        self.emit(op);
        Ok(())
    }

    /// A barrier of the whole block that counts those in which a predicate holds: a word of shared memory is cleared,
    /// counted up and read, with a barrier before each.
    fn vote(&mut self, opcode: &str, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        use types::Operand::{Imm, Reg};
        words.take("cta");
        let aligned = opcode == "bar" || words.take("aligned");
        let kinds = [("popc", Vote::Count), ("and", Vote::All), ("or", Vote::Any)];
        let ([dst, id, pred], Some(kind), None, Some(offset)) = (operands, words.pick(&kinds), self.guard, self.votes)
        else {
            return Err(Refusal::Unknown);
        };
        all(words, &[if kind == Vote::Count { "u32" } else { "pred" }])?;
        let (pred, negated) = match pred {
            Operand::Not(pred) => (self.register(pred, Bank::Pred)?, true),
            pred => (self.register(pred, Bank::Pred)?, false),
        };
        let (id, ty, mode) = (self.word(id)?, DataType::U32, FloatMode::PLAIN);
        let meet = || Barrier::NamedSync { aligned, id, threads: None };
        let addr = Address { base: Base::SharedStart, offset: offset as i32 };
        // The first thread clears the word.
        let mut place = Imm(0);
        for which in [SpecialRegister::TidX, SpecialRegister::TidY, SpecialRegister::TidZ] {
            let (side, sum) = (self.fresh(Bank::B32)?, self.fresh(Bank::B32)?);
            self.emit(Arith::Special { dst: side, which });
            self.emit(Arith::Binary { op: BinaryOp::Or, ty, mode, dst: sum, a: Reg(side), b: place });
            place = Reg(sum);
        }
        let (first, zero) = (self.fresh(Bank::Pred)?, self.fresh(Bank::B32)?);
        self.emit(Arith::Compare { cmp: Comparison::Eq, ty, dst: first, a: place, b: Imm(0) });
        self.emit(Arith::Unary { op: UnaryOp::Move, ty, mode, dst: zero, a: Imm(0) });
        self.emit(meet());
        self.guard = Some(Guard { pred: first, negated: false });
        let (space, width) = (Space::Shared, Width::B32);
        self.emit(Memory::Store { space, order: StoreOrder::Weak, width, srcs: vec![zero], addr });
        self.guard = None;
        self.emit(meet());
        // Those that speak against all are counted where all are asked for.
        self.guard = Some(Guard { pred, negated: negated != (kind == Vote::All) });
        let (op, scope) = (AtomicOp::Add, Scope::Block);
        self.emit(Memory::Atomic { space, op, ty, acq_rel: false, scope, dst: None, addr, a: Imm(1), b: None });
        self.guard = None;
        self.emit(meet());
        let count = self.fresh(Bank::B32)?;
        self.emit(Memory::Load { space, order: LoadOrder::Weak, width, dsts: vec![count], addr });
        let op = match kind {
            Vote::Count => {
                let dst = self.register(dst, Bank::B32)?;
                Arith::Unary { op: UnaryOp::Move, ty, mode, dst, a: Reg(count) }
            }
            _ => {
                let (dst, cmp) =
                    (self.register(dst, Bank::Pred)?, if kind == Vote::All { Comparison::Eq } else { Comparison::Ne });
                Arith::Compare { cmp, ty, dst, a: Reg(count), b: Imm(0) }
            }
        };
        self.emit(op);
        Ok(())
    }

    fn mbarrier(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<Barrier, Refusal> {
        all(words, &["b64"])?;
        if words.take("init") {
            let ([bar, count], window) = (self.exactly(operands)?, own_shared(words)?);
            return Ok(Barrier::Init { bar: self.in_shared(window, bar)?, count: self.word(count)? });
        }
        if words.take("inval") {
            let ([bar], window) = (self.exactly(operands)?, own_shared(words)?);
            return Ok(Barrier::Invalidate { bar: self.in_shared(window, bar)? });
        }
        // One that does not wait is one that gives up at once.
        if words.take("try_wait") || words.take("test_wait") {
            let by_parity = words.take("parity");
            let (sem, scope) = ordering(words, "acquire");
            // How long to wait at most is a hint.
            let ([done, bar, parity] | [done, bar, parity, _], window) = (operands, own_shared(words)?) else {
                return Err(Refusal::Unknown);
            };
            let (done, bar) = (self.register(done, Bank::Pred)?, self.in_shared(window, bar)?);
            let parity = match by_parity {
                true => self.word(parity)?,
                // Of the phase that an arrive returned, the lowest bit.
                false => {
                    let state = self.register(parity, Bank::B64)?;
                    let (low, dst) = (self.low_half(state)?, self.fresh(Bank::B32)?);
                    let (op, ty, mode) = (BinaryOp::And, DataType::U32, FloatMode::PLAIN);
                    let [a, b] = [types::Operand::Reg(low), types::Operand::Imm(1)];
                    self.emit(Arith::Binary { op, ty, mode, dst, a, b });
                    types::Operand::Reg(dst)
                }
            };
            return Ok(Barrier::TryWait { done, sem, scope, bar, parity });
        }
        let drops = words.take("arrive_drop");
        let arrives = drops || words.take("arrive");
        let completes = !words.take("noComplete");
        let expects = words.take("expect_tx");
        let (sem, scope) = ordering(words, "release");
        let window = shared(words)?;
        let space = window.unwrap_or(Space::Shared);
        // The state that an arrive returns may not be kept: `_`, or nothing.
        let (state, operands) = match operands {
            [Operand::Name { name, .. }, rest @ ..] if arrives && name.text == "_" => (None, rest),
            [state, rest @ ..] if arrives && !matches!(state, Operand::Address(..)) => {
                (Some(self.register(state, Bank::B64)?), rest)
            }
            rest => (None, rest),
        };
        match operands {
            _ if drops && (expects || !completes) || expects && !completes => Err(Refusal::Unknown),
            [bar, bytes] if arrives && expects => {
                let (bar, bytes) = (self.in_shared(window, bar)?, self.word(bytes)?);
                Ok(Barrier::ArriveExpectTx { space, sem, scope, bar, bytes, state })
            }
            // It is relaxed whether or not that is said.
            [bar, bytes] if expects => {
                Ok(Barrier::ExpectTx { space, bar: self.in_shared(window, bar)?, bytes: self.word(bytes)? })
            }
            [bar, count @ ..] if arrives && count.len() < 2 => {
                let bar = self.in_shared(window, bar)?;
                let count = count.first().map(|count| self.word(count)).transpose()?;
                let arrival = match (drops, completes) {
                    (true, _) => Some(Arrival::Drop),
                    (false, false) => Some(Arrival::NoComplete),
                    (false, true) => None,
                };
                Ok(Barrier::Arrive { arrival, space, sem, scope, bar, count, state })
            }
            _ => Err(Refusal::Unknown),
        }
    }

    pub(super) fn fence(
        &mut self,
        opcode: &str,
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), Refusal> {
        // A tensor map that another thread has made is acquired by its address.
        if words.take("tensormap::generic") {
            let acquires = words.take("acquire");
            all(words, &["proxy"])?;
            if !acquires {
                all(words, &["release"])?;
            }
            self.emit(Fence::AcqRel(words.scope().ok_or(Refusal::Unknown)?));
            return Ok(());
        }
        let [] = self.exactly(operands)?;
        if opcode == "membar" {
            let scopes = [("cta", Scope::Block), ("gl", Scope::Gpu), ("sys", Scope::System)];
            let scope = words.pick(&scopes).ok_or(Refusal::Unknown)?;
            self.emit(Fence::AcqRel(scope));
            return Ok(());
        }
        let op = if words.take("mbarrier_init") {
            all(words, &["release", "cluster"])?;
            Fence::BarrierInit
        } else if words.take("proxy") {
            match words.find(|word| word.starts_with("async").then_some(word)) {
                Some("async") => Fence::ProxyAsync(words.space()),
                _ => return Err(Refusal::Unknown),
            }
        } else {
            // A sequentially consistent fence is held to what both kinds promise.
            if !words.take("sc") {
                words.take("acq_rel");
            }
            Fence::AcqRel(words.scope().ok_or(Refusal::Unknown)?)
        };
        self.emit(op);
        Ok(())
    }

    /// The operands behind an address that say who else receives it, and how the cache treats it.
    fn options(
        &mut self,
        words: &mut Words<'t>,
        mut rest: &[Operand<'t>],
    ) -> Result<(Option<RegId>, Option<RegId>), Refusal> {
        let mut option = |word: &str, bank: Bank| {
            if !words.take(word) {
                return Ok(None);
            }
            let (first, others) = rest.split_first().ok_or(Refusal::Unknown)?;
            rest = others;
            self.register(first, bank).map(Some)
        };
        let multicast = option("multicast::cluster", Bank::B16)?;
        let policy = option("L2::cache_hint", Bank::B64)?;
        if rest.is_empty() { Ok((multicast, policy)) } else { Err(Refusal::Unknown) }
    }

    /// A tensor map and coordinates in brackets.
    fn tensor(&mut self, operand: &Operand<'t>) -> Result<(RegId, Vec<types::Operand>), Refusal> {
        let [map, Operand::Vector(coords, _)] = self.bracketed(operand)? else { return Err(Refusal::Unknown) };
        let map = self.register(map, Bank::B64)?;
        let coords = coords.iter().map(|coord| self.value(coord, DataType::S32)).collect::<Result<_, _>>()?;
        Ok((map, coords))
    }

    pub(super) fn copy(
        &mut self,
        opcode: &str,
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), Refusal> {
        let op = match opcode {
            "prefetch" => {
                all(words, &["tensormap"])?;
                let [map] = self.exactly(operands)?;
                AsyncCopy::PrefetchMap { map: self.register_in_brackets(map, Bank::B64)? }
            }
            "clusterlaunchcontrol" => {
                all(words, &["try_cancel", "async", "mbarrier::complete_tx::bytes", "b128"])?;
                let (window, multicast) = (own_shared(words)?, words.take("multicast::cluster::all"));
                let [dst, bar] = self.exactly(operands)?;
                AsyncCopy::TryCancel { dst: self.in_shared(window, dst)?, bar: self.in_shared(window, bar)?, multicast }
            }
            _ => {
                all(words, &["async"])?;
                match (words.take("bulk"), words.has("tensor")) {
                    (true, true) => self.tensor_copy(words, operands)?,
                    (true, false) => self.bulk_copy(words, operands)?,
                    (false, _) => self.thread_copy(words, operands)?,
                }
            }
        };
        self.emit(op);
        Ok(())
    }

    /// Tensor maps that a kernel makes. A part is written by a store to its place, and the whole is published by a
    /// warp, whose lanes copy four bytes each, with a fence.
    pub(super) fn made_map(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        if words.take("cp_fenceproxy") {
            all(words, &["global", "shared::cta", "tensormap::generic", "release", "sync", "aligned"])?;
            let scope = words.scope().ok_or(Refusal::Unknown)?;
            let [to, from, bytes] = self.exactly(operands)?;
            if self.small(bytes)? as usize != TensorMap::BYTES {
                return Err(Refusal::Unknown);
            }
            let (to, from) = (self.address(to, true)?, self.address(from, false)?);
            return self.publish(to, from, scope);
        }
        all(words, &["replace", "tile", "b1024"])?;
        let fields = [
            ("global_address", MapField::Address),
            ("rank", MapField::Rank),
            ("box_dim", MapField::Box(0)),
            ("global_dim", MapField::Dim(0)),
            ("global_stride", MapField::Stride(0)),
            ("element_stride", MapField::ElementStride(0)),
            ("elemtype", MapField::Element),
            ("swizzle_mode", MapField::Swizzle),
            ("interleave_layout", MapField::Other),
            ("fill_mode", MapField::Other),
        ];
        let field = words.pick(&fields).ok_or(Refusal::Unknown)?;
        let dimension = |operand: Option<&Operand<'t>>| match operand {
            Some(operand) => self.small(operand).ok().filter(|dim| *dim < 5).ok_or(Refusal::Unknown),
            None => Err(Refusal::Unknown),
        };
        let (field, rest) = match field {
            MapField::Box(_) => (MapField::Box(dimension(operands.get(1))?), 2),
            MapField::Dim(_) => (MapField::Dim(dimension(operands.get(1))?), 2),
            MapField::Stride(_) => (MapField::Stride(dimension(operands.get(1))?.min(3)), 2),
            MapField::ElementStride(_) => (MapField::ElementStride(dimension(operands.get(1))?), 2),
            field => (field, 1),
        };
        let wide = words.take("b64");
        if !wide {
            all(words, &["b32"])?;
        }
        let ([map, ..], [value]) = (operands, operands.get(rest..).unwrap_or_default()) else {
            return Err(Refusal::Unknown);
        };
        let space = words.space().unwrap_or(Space::Generic);
        let mut addr = self.address(map, space.is_wide())?;
        addr.offset = addr.offset.checked_add(field.offset() as i32).ok_or(Refusal::Unknown)?;
        let (ty, width) = if wide { (DataType::U64, Width::B64) } else { (DataType::U32, Width::B32) };
        let (op, mode, dst) = (UnaryOp::Move, FloatMode::PLAIN, self.fresh(ty.bank())?);
        let a = self.value(value, ty)?;
        self.emit(Arith::Unary { op, ty, mode, dst, a });
        self.emit(Memory::Store { space, order: StoreOrder::Weak, width, srcs: vec![dst], addr });
        Ok(())
    }

    /// Copies a tensor map from shared to global memory, four bytes per lane, and fences it.
    fn publish(&mut self, to: Address, from: Address, scope: Scope) -> Result<(), Refusal> {
        let (mode, word) = (FloatMode::PLAIN, DataType::U32);
        let (lane, near, far) = (self.fresh(Bank::B32)?, self.fresh(Bank::B32)?, self.fresh(Bank::B64)?);
        let lane_at = types::Operand::Reg(lane);
        let base = |address: Address| match address.base {
            Base::Reg(reg) => Ok(types::Operand::Reg(reg)),
            Base::SharedStart => Err(Refusal::Unknown),
        };
        let (near_base, far_base) = (base(from)?, base(to)?);
        self.emit(Arith::Special { dst: lane, which: SpecialRegister::LaneId });
        let four = types::Operand::Imm(4);
        self.emit(Arith::Ternary {
            op: TernaryOp::MulAdd,
            ty: word,
            mode,
            dst: near,
            a: lane_at,
            b: four,
            c: near_base,
        });
        self.emit(Arith::MulWide { ty: word, dst: far, a: lane_at, b: four, c: Some(far_base) });
        let (value, width) = (self.fresh(Bank::B32)?, Width::B32);
        let (from, to) = (Address { base: Base::Reg(near), ..from }, Address { base: Base::Reg(far), ..to });
        let dsts = vec![value];
        self.emit(Memory::Load { space: Space::Shared, order: LoadOrder::Weak, width, dsts, addr: from });
        let srcs = vec![value];
        self.emit(Memory::Store { space: Space::Global, order: StoreOrder::Weak, width, srcs, addr: to });
        self.emit(Fence::AcqRel(scope));
        Ok(())
    }

    fn tensor_copy(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<AsyncCopy, Refusal> {
        all(words, &["tensor"])?;
        let dims = [("1d", 1), ("2d", 2), ("3d", 3), ("4d", 4), ("5d", 5)];
        let dims = words.pick(&dims).ok_or(Refusal::Unknown)?;
        words.take("tile");
        let checked = |(map, coords): (RegId, Vec<types::Operand>)| match coords.len() == dims {
            true => Ok((map, coords)),
            false => Err(Refusal::Unknown),
        };
        if words.take("prefetch") {
            all(words, &["L2", "global"])?;
            let [from] = self.exactly(operands)?;
            let (map, coords) = checked(self.tensor(from)?)?;
            return Ok(AsyncCopy::TensorPrefetch { map, coords });
        }
        if words.take("bulk_group") {
            all(words, &["global", "shared::cta"])?;
            let [to, src, rest @ ..] = operands else { return Err(Refusal::Other("a tensor and a source".into())) };
            let ((map, coords), src) = (checked(self.tensor(to)?)?, self.address(src, false)?);
            let (None, policy) = self.options(words, rest)? else { return Err(Refusal::Unknown) };
            return Ok(AsyncCopy::TensorStore { map, coords, src, policy });
        }
        all(words, &["mbarrier::complete_tx::bytes", "global"])?;
        if !words.take("shared::cluster") {
            all(words, &["shared::cta"])?;
        }
        let cta_group = words.pick(&GROUPS);
        let [dst, from, bar, rest @ ..] = operands else {
            return Err(Refusal::Other("a destination, a tensor and a barrier".into()));
        };
        let (dst, (map, coords)) = (self.address(dst, false)?, checked(self.tensor(from)?)?);
        let (bar, (multicast, policy)) = (self.address(bar, false)?, self.options(words, rest)?);
        Ok(AsyncCopy::TensorLoad { dst, map, coords, bar, multicast, policy, cta_group })
    }

    fn bulk_copy(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<AsyncCopy, Refusal> {
        if words.take("commit_group") {
            return Ok(AsyncCopy::CommitGroup);
        }
        if words.take("wait_group") {
            let ([pending], read) = (self.exactly(operands)?, words.take("read"));
            return Ok(AsyncCopy::WaitGroup { pending: self.small(pending)?, read });
        }
        if words.take("prefetch") {
            all(words, &["L2", "global"])?;
            let [src, bytes] = self.exactly(operands)?;
            return Ok(AsyncCopy::BulkPrefetch { src: self.address(src, true)?, bytes: self.word(bytes)? });
        }
        if words.take("bulk_group") {
            all(words, &["global", "shared::cta"])?;
            let [dst, src, bytes, rest @ ..] = operands else { return Err(Refusal::Other("three operands".into())) };
            let (dst, src, bytes) = (self.address(dst, true)?, self.address(src, false)?, self.word(bytes)?);
            let (None, policy) = self.options(words, rest)? else { return Err(Refusal::Unknown) };
            return Ok(AsyncCopy::BulkStore { dst, src, bytes, policy });
        }
        all(words, &["mbarrier::complete_tx::bytes"])?;
        let [dst, src, bytes, bar, rest @ ..] = operands else { return Err(Refusal::Other("four operands".into())) };
        let (dst, bar) = (self.address(dst, false)?, self.address(bar, false)?);
        let to_cluster = words.take("shared::cluster");
        let from_shared = words.take("shared::cta");
        let bytes = self.word(bytes)?;
        if words.take("global") && to_cluster != from_shared {
            let (src, (multicast, policy)) = (self.address(src, true)?, self.options(words, rest)?);
            return Ok(AsyncCopy::BulkLoad { dst, src, bytes, bar, multicast, policy });
        }
        match (to_cluster && from_shared, rest) {
            (true, []) => Ok(AsyncCopy::BulkToCluster { dst, src: self.address(src, false)?, bytes, bar }),
            _ => Err(Refusal::Unknown),
        }
    }

    /// Copies of a few bytes per thread.
    fn thread_copy(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<AsyncCopy, Refusal> {
        if words.take("commit_group") {
            return Ok(AsyncCopy::CommitThreadGroup);
        }
        if words.take("wait_group") {
            let [pending] = self.exactly(operands)?;
            return Ok(AsyncCopy::WaitThreadGroup { pending: self.small(pending)? });
        }
        if words.take("mbarrier") {
            all(words, &["arrive", "b64"])?;
            let (expected, window) = (words.take("noinc"), own_shared(words)?);
            let [bar] = self.exactly(operands)?;
            return Ok(AsyncCopy::ArriveBehindCopies { bar: self.in_shared(window, bar)?, expected });
        }
        if words.take("wait_all") {
            self.emit(AsyncCopy::CommitThreadGroup);
            return Ok(AsyncCopy::WaitThreadGroup { pending: 0 });
        }
        words.find(|word| matches!(word, "L2::64B" | "L2::128B" | "L2::256B").then_some(()));
        let past_first_cache = words.pick(&[("cg", true), ("ca", false)]).ok_or(Refusal::Unknown)?;
        if words.space() != Some(Space::Shared) || words.space() != Some(Space::Global) {
            return Err(Refusal::Unknown);
        }
        let [dst, src, bytes, rest @ ..] = operands else { return Err(Refusal::Other("three operands".into())) };
        let (dst, src, bytes) = (self.address(dst, false)?, self.address(src, true)?, self.small(bytes)?);
        // Which cache keeps them changes nothing, but sixteen bytes alone may go past the first.
        if past_first_cache && bytes != 16 {
            return Err(Refusal::Unknown);
        }
        let (rest, policy) = match (words.take("L2::cache_hint"), rest) {
            (true, [rest @ .., policy]) => (rest, Some(self.register(policy, Bank::B64)?)),
            (_, rest) => (rest, None),
        };
        let source_bytes = match rest {
            [] => None,
            [read] => Some(self.word(read)?),
            _ => return Err(Refusal::Unknown),
        };
        Ok(AsyncCopy::ThreadCopy { dst, src, bytes, source_bytes, policy })
    }

    /// A store into a block of the cluster that signals a barrier there.
    pub(super) fn store_async(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        all(words, &["async", "mbarrier::complete_tx::bytes"])?;
        // What a generic address would be cannot be said here.
        all(words, &["shared::cluster"])?;
        words.take("weak");
        let ty = words.bits().filter(|ty| ty.bits() >= 32).ok_or(Refusal::Unknown)?;
        words.pick(&[("v2", ()), ("v4", ())]);
        let [dst, values, bar] = self.exactly(operands)?;
        let (dst, mut srcs) = (self.address(dst, false)?, self.registers(values, ty.bank())?);
        if ty.bits() == 64 {
            for src in std::mem::take(&mut srcs) {
                let [low, high] = [self.fresh(Bank::B32)?, self.fresh(Bank::B32)?];
                self.emit(Arith::Unpack { low, high, a: src });
                srcs.extend([low, high]);
            }
        }
        let bar = self.address(bar, false)?;
        self.emit(AsyncCopy::StoreAsync { dst, srcs, bar });
        Ok(())
    }

    pub(super) fn wgmma(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        all(words, &["sync", "aligned"])?;
        let op: Op = if words.take("fence") {
            Wgmma::Fence.into()
        } else if words.take("commit_group") {
            Wgmma::Commit.into()
        } else if words.take("wait_group") {
            let [pending] = self.exactly(operands)?;
            Wgmma::Wait { pending: self.small(pending)? }.into()
        } else {
            all(words, &["mma_async"])?;
            let shape = words.find(|word| {
                let (n, k) = word.strip_prefix("m64n")?.split_once('k')?;
                Some((n.parse().ok()?, k.parse().ok()?))
            });
            self.multiplication(shape.ok_or(Refusal::Unknown)?, words, operands)?.into()
        };
        self.emit(op);
        Ok(())
    }

    fn multiplication(
        &mut self,
        (n, k): (u32, u32),
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<Wgmma, Refusal> {
        let element = element(words)?;
        if k != element.depth() || !words.take(if element.is_integer() { "s32" } else { "f32" }) {
            return Err(Refusal::Unknown);
        }
        let [d, a, b, scale_d, options @ ..] = operands else { return Err(Refusal::Unknown) };
        let d = self.registers(d, Bank::B32)?;
        let flag = |operand: &Operand<'t>| match self.constant(operand) {
            Ok(flag @ (0 | 1)) => Ok(flag == 1),
            _ => Err(Refusal::Unknown),
        };
        let negative = |operand: &Operand<'t>| match self.constant(operand).map(u64::cast_signed) {
            Ok(1) => Ok(false),
            Ok(-1) => Ok(true),
            _ => Err(Refusal::Unknown),
        };
        let ((negate_a, negate_b), transposes) = match options {
            [] if element.is_integer() => ((false, false), options),
            [sign_a, sign_b, transposes @ ..] if !element.is_integer() => {
                ((negative(sign_a)?, negative(sign_b)?), transposes)
            }
            _ => return Err(Refusal::Unknown),
        };
        let transposes = transposes.iter().map(flag).collect::<Result<Vec<bool>, _>>()?;
        let (a, transpose_b) = match (a, &transposes[..]) {
            (Operand::Vector(..), [transpose_b]) => {
                (MatrixA::Registers(self.registers_of(a, Bank::B32)?), *transpose_b)
            }
            (_, [transpose, transpose_b]) => {
                (MatrixA::Shared { desc: self.register(a, Bank::B64)?, transpose: *transpose }, *transpose_b)
            }
            (Operand::Vector(..), []) if element.bits() != 16 => {
                (MatrixA::Registers(self.registers_of(a, Bank::B32)?), false)
            }
            (_, []) if element.bits() != 16 => {
                (MatrixA::Shared { desc: self.register(a, Bank::B64)?, transpose: false }, false)
            }
            _ => return Err(Refusal::Unknown),
        };
        let accumulate = match scale_d {
            Operand::Number(..) if self.constant(scale_d)? == 0 => Accumulate::Replace,
            Operand::Number(..) => Accumulate::Add,
            pred => Accumulate::If(self.register(pred, Bank::Pred)?),
        };
        let b = self.register(b, Bank::B64)?;
        if d.len() as u64 * 2 != u64::from(n) {
            return Err(Refusal::Other(format!("{} accumulators, half as many as columns", n / 2)));
        }
        Ok(Wgmma::Mma { n, element, d, a, b, accumulate, negate_a, negate_b, transpose_b })
    }

    pub(super) fn tcgen05(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        let group = words.pick(&GROUPS);
        let of_group = group.ok_or(Refusal::Unknown);
        let op = if words.take("alloc") {
            all(words, &["sync", "aligned", "b32"])?;
            let [dst, columns] = self.exactly(operands)?;
            let window = own_shared(words)?;
            Tcgen05::Alloc { group: of_group?, dst: self.in_shared(window, dst)?, columns: self.word(columns)? }
        } else if words.take("dealloc") {
            all(words, &["sync", "aligned", "b32"])?;
            let [addr, columns] = self.exactly(operands)?;
            let addr = self.register(addr, Bank::B32)?;
            Tcgen05::Dealloc { group: of_group?, addr, columns: self.word(columns)? }
        } else if words.take("relinquish_alloc_permit") {
            all(words, &["sync", "aligned"])?;
            Tcgen05::RelinquishAllocPermit { group: of_group? }
        } else if words.take("cp") {
            all(words, &["32x128b", "warpx4"])?;
            let [dst, src] = self.exactly(operands)?;
            let dst = self.tensor_address(dst)?;
            Tcgen05::CopyScales { group: of_group?, dst, src: self.register(src, Bank::B64)? }
        } else if words.take("mma") {
            self.tensor_multiplication(of_group?, words, operands)?
        } else if words.take("commit") {
            all(words, &["mbarrier::arrive::one", "b64"])?;
            let ([bar, rest @ ..], window @ (None | Some(Space::Cluster))) = (operands, shared(words)?) else {
                return Err(Refusal::Unknown);
            };
            let bar = self.in_shared(window, bar)?;
            let (multicast, None) = self.options(words, rest)? else { return Err(Refusal::Unknown) };
            Tcgen05::Commit { group: of_group?, bar, multicast }
        } else if words.take("ld") || words.has("st") {
            self.columns(words, operands)?
        } else if words.take("wait::ld") {
            all(words, &["sync", "aligned"])?;
            Tcgen05::WaitLoad
        } else if words.take("wait::st") {
            all(words, &["sync", "aligned"])?;
            Tcgen05::WaitStore
        } else if words.take("fence::before_thread_sync") {
            Tcgen05::FenceBeforeSync
        } else if words.take("fence::after_thread_sync") {
            Tcgen05::FenceAfterSync
        } else {
            return Err(Refusal::Unknown);
        };
        self.emit(op);
        Ok(())
    }

    /// Columns of tensor memory to registers, or back.
    fn columns(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<Tcgen05, Refusal> {
        let stores = words.take("st");
        all(words, &["sync", "aligned", "b32"])?;
        let shapes = [
            ("32x32b", CellShape::L32x32b),
            ("16x64b", CellShape::L16x64b),
            ("16x128b", CellShape::L16x128b),
            ("16x256b", CellShape::L16x256b),
            ("16x32bx2", CellShape::L16x32bx2(0)),
        ];
        let shape = words.pick(&shapes).ok_or(Refusal::Unknown)?;
        let times = words.find(|word| word.strip_prefix('x')?.parse::<usize>().ok()).ok_or(Refusal::Unknown)?;
        let (first, second, split) = match (operands, shape, stores) {
            ([first, split, second], CellShape::L16x32bx2(_), true)
            | ([first, second, split], CellShape::L16x32bx2(_), false) => (first, second, Some(split)),
            ([first, second], _, _) if shape != CellShape::L16x32bx2(0) => (first, second, None),
            _ => return Err(Refusal::Unknown),
        };
        let shape = split.map_or(Ok(shape), |split| self.small(split).map(CellShape::L16x32bx2))?;
        let (addr, regs) = if stores { (first, second) } else { (second, first) };
        let (addr, regs) = (self.tensor_address(addr)?, self.registers(regs, Bank::B32)?);
        let count = times.saturating_mul(shape.least());
        if regs.len() != count {
            return Err(Refusal::Other(format!("{count} registers, not {}", regs.len())));
        }
        let (srcs, dsts) = (regs.clone(), regs);
        Ok(if stores { Tcgen05::Store { shape, addr, srcs } } else { Tcgen05::Load { shape, dsts, addr } })
    }

    /// Whether registers in braces were made zero a little before, as compilers do that write each register once.
    fn is_zero(&mut self, operand: &Operand<'t>) -> Result<bool, Refusal> {
        let regs = self.registers(operand, Bank::B32)?;
        let zero = |op: &Op| matches!(op, Op::Arith(Arith::Unary { op: UnaryOp::Move, a: types::Operand::Imm(0), .. }));
        let near = || self.kernel.body.iter().rev().take(NEAR);
        Ok(regs.iter().all(|reg| {
            let last = near().find(|instr| {
                let mut writes = false;
                instr.registers(&mut |other, access| writes |= other == *reg && access != Access::Read);
                writes
            });
            last.is_some_and(|instr| zero(&instr.op))
        }))
    }

    /// An address of tensor memory in brackets; what is added to it is added before.
    fn tensor_address(&mut self, operand: &Operand<'t>) -> Result<RegId, Refusal> {
        let [Operand::Name { name, part: None, plus }] = self.bracketed(operand)? else { return Err(Refusal::Unknown) };
        let (name, plus) = (*name, *plus);
        let base = self.register(&Operand::Name { name, part: None, plus: 0 }, Bank::B32)?;
        if plus == 0 {
            return Ok(base);
        }
        let (dst, offset) = (self.fresh(Bank::B32)?, types::Operand::Imm((plus as u32).into()));
        let (op, ty, mode) = (BinaryOp::Add, DataType::U32, FloatMode::PLAIN);
        let guard = self.guard.take();
        self.emit(Arith::Binary { op, ty, mode, dst, a: types::Operand::Reg(base), b: offset });
        self.guard = guard;
        Ok(dst)
    }

    fn tensor_multiplication(
        &mut self,
        group: CtaGroup,
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<Tcgen05, Refusal> {
        let collectors = [
            ("collector::a::discard", Collector::Discard),
            ("collector::a::fill", Collector::Fill),
            ("collector::a::use", Collector::Use),
            ("collector::a::lastuse", Collector::LastUse),
        ];
        // Without a word, A is not kept.
        let collector = words.pick(&collectors).unwrap_or(Collector::Discard);
        let kind = words.find(|word| DenseKind::ALL.into_iter().find(|kind| print::dense_kind(*kind) == word));
        if let Some(kind) = kind {
            let (d, a, b, shape, accumulate) = match operands {
                [d, a, b, shape, accumulate] => (d, a, b, shape, accumulate),
                // A mask of lanes that are left out, which none are.
                [d, a, b, shape, lanes @ Operand::Vector(..), accumulate] if self.is_zero(lanes)? => {
                    (d, a, b, shape, accumulate)
                }
                _ => return Err(Refusal::Unknown),
            };
            let (d, shape) = (self.tensor_address(d)?, self.register(shape, Bank::B32)?);
            let a = match a {
                Operand::Address(..) => TensorA::Tensor(self.tensor_address(a)?),
                desc => TensorA::Shared(self.register(desc, Bank::B64)?),
            };
            let (b, accumulate) = (self.register(b, Bank::B64)?, self.register(accumulate, Bank::Pred)?);
            return Ok(Tcgen05::MmaDense { kind, group, d, a, b, shape, accumulate, collector });
        }
        // One meaning, two spellings: how many numbers have a scale, or how many scales a multiplication has.
        let vectors =
            [("block16", 16), ("scale_vec::4X", 16), ("block32", 32), ("scale_vec::2X", 32), ("scale_vec::1X", 32)];
        let (nv, mx) = (words.take("kind::mxf4nvf4"), words.take("kind::mxf4"));
        let bytes = words.take("kind::mxf8f6f4");
        all(words, &["block_scale"])?;
        let kind = match (nv, mx, bytes, words.has("scale_vec::1X"), words.pick(&vectors)) {
            (true, false, false, false, Some(16)) => ScaledKind::NvFp4,
            (true, false, false, false, Some(32)) => ScaledKind::MxFp4,
            (false, true, false, false, None | Some(32)) => ScaledKind::MxFp4,
            (false, false, true, _, None | Some(32)) => ScaledKind::MxF8f6f4,
            _ => return Err(Refusal::Unknown),
        };
        let [d, a, b, shape, scale_a, scale_b, accumulate] = operands else { return Err(Refusal::Unknown) };
        if matches!(a, Operand::Address(..)) {
            return Err(Refusal::Unknown);
        }
        let (d, shape) = (self.tensor_address(d)?, self.register(shape, Bank::B32)?);
        let (a, b) = (self.register(a, Bank::B64)?, self.register(b, Bank::B64)?);
        let (scale_a, scale_b) = (self.tensor_address(scale_a)?, self.tensor_address(scale_b)?);
        let accumulate = self.register(accumulate, Bank::Pred)?;
        Ok(Tcgen05::Mma { kind, group, d, a, b, shape, scale_a, scale_b, accumulate, collector })
    }
}
