//! Which registers an instruction reads and writes. The checker uses it to hold every operand to its bank, and a
//! simulator to notice registers that an asynchronous instruction still owns.

use super::{
    Accumulate, Arith, AsyncCopy, Barrier, Control, FloatPair, Fragments, Instr, MatrixA, Memory, Mma, Op, ParamBase,
    PredicateOp, Tcgen05, TensorA, Warp, Wgmma,
};
use crate::types::{Address, Base, Operand, RegId};

/// What an instruction does with a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Uses its value.
    Read,
    /// Replaces its value.
    Write,
    /// Both: an accumulator.
    Update,
}

type Visit<'v> = dyn FnMut(RegId, Access) + 'v;

impl Instr {
    /// Calls `visit` for each register the instruction touches, sources before results. A register that appears twice
    /// is visited twice.
    pub fn registers(&self, visit: &mut Visit<'_>) {
        if let Some(guard) = self.guard {
            visit(guard.pred, Access::Read);
        }
        match &self.op {
            Op::Arith(op) => arith(op, visit),
            Op::Memory(op) => memory(op, visit),
            Op::Warp(op) => warp(op, visit),
            Op::Barrier(op) => barrier(op, visit),
            Op::Copy(op) => copy(op, visit),
            Op::Mma(op) => mma(op, visit),
            Op::Fragments(op) => fragments(op, visit),
            Op::Wgmma(op) => wgmma(op, visit),
            Op::Tcgen05(op) => tcgen05(op, visit),
            Op::Fence(_) | Op::Unknown(_) => {}
            Op::Control(
                Control::Label(_)
                | Control::Branch { .. }
                | Control::Exit
                | Control::Trap
                | Control::SetMaxRegisters { .. }
                | Control::GridDependencyWait
                | Control::LaunchDependents,
            ) => {}
        }
    }
}

fn read(operand: Operand, visit: &mut Visit<'_>) {
    if let Operand::Reg(reg) = operand {
        visit(reg, Access::Read);
    }
}

fn read_address(address: Address, visit: &mut Visit<'_>) {
    if let Base::Reg(reg) = address.base {
        visit(reg, Access::Read);
    }
}

fn each(regs: &[RegId], access: Access, visit: &mut Visit<'_>) {
    for &reg in regs {
        visit(reg, access);
    }
}

fn arith(op: &Arith, visit: &mut Visit<'_>) {
    use Access::{Read, Write};
    match *op {
        Arith::Unary { dst, a, .. } => {
            read(a, visit);
            visit(dst, Write);
        }
        Arith::Binary { dst, a, b, .. } | Arith::Compare { dst, a, b, .. } | Arith::Pack { dst, low: a, high: b } => {
            read(a, visit);
            read(b, visit);
            visit(dst, Write);
        }
        Arith::Ternary { dst, a, b, c, .. } => {
            read(a, visit);
            read(b, visit);
            read(c, visit);
            visit(dst, Write);
        }
        Arith::MulWide { dst, a, b, c, .. } => {
            read(a, visit);
            read(b, visit);
            if let Some(c) = c {
                read(c, visit);
            }
            visit(dst, Write);
        }
        Arith::Select { dst, a, b, pred, .. } => {
            read(a, visit);
            read(b, visit);
            visit(pred, Read);
            visit(dst, Write);
        }
        Arith::Predicate { dst, op } => {
            match op {
                PredicateOp::Const(_) => {}
                PredicateOp::Move(a) | PredicateOp::Not(a) => visit(a, Read),
                PredicateOp::Logic(_, a, b) => each(&[a, b], Read, visit),
            }
            visit(dst, Write);
        }
        Arith::Convert { dst, a, .. }
        | Arith::ConvertWide { dst, a, .. }
        | Arith::ToGlobal { dst, a }
        | Arith::FromShared { dst, a }
        | Arith::ToShared { dst, a }
        | Arith::InWindow { dst, a, .. } => {
            visit(a, Read);
            visit(dst, Write);
        }
        Arith::ConvertPair { dst, low, high, .. } => {
            each(&[low, high], Read, visit);
            visit(dst, Write);
        }
        Arith::ConvertNarrow { dst, from, .. } => {
            match from {
                FloatPair::Halves(a) | FloatPair::Bfloats(a) => visit(a, Read),
                FloatPair::Floats(floats) => each(&floats, Read, visit),
            }
            visit(dst, Write);
        }
        Arith::Unpack { low, high, a } => {
            visit(a, Read);
            each(&[low, high], Write, visit);
        }
        Arith::IsCanceled { dst, answer } => {
            each(&answer, Read, visit);
            visit(dst, Write);
        }
        Arith::FirstBlock { dsts, answer } => {
            each(&answer, Read, visit);
            each(&dsts, Write, visit);
        }
        Arith::MapShared { dst, a, rank } => {
            visit(a, Read);
            read(rank, visit);
            visit(dst, Write);
        }
        Arith::Param { dst, from, .. } => {
            if let ParamBase::Reg(at) = from {
                visit(at, Read);
            }
            visit(dst, Write);
        }
        Arith::Special { dst, .. }
        | Arith::ParamAddress { dst, .. }
        | Arith::ParamTable { dst, .. }
        | Arith::SharedAddress { dst, .. }
        | Arith::VariableAddress { dst, .. }
        | Arith::Policy { dst, .. } => visit(dst, Write),
    }
}

fn memory(op: &Memory, visit: &mut Visit<'_>) {
    match op {
        Memory::Load { dsts, addr, .. } => {
            read_address(*addr, visit);
            each(dsts, Access::Write, visit);
        }
        Memory::Store { srcs, addr, .. } => {
            read_address(*addr, visit);
            each(srcs, Access::Read, visit);
        }
        Memory::Atomic { dst, addr, a, b, .. } => {
            read_address(*addr, visit);
            read(*a, visit);
            b.iter().for_each(|b| read(*b, visit));
            each(dst.as_slice(), Access::Write, visit);
        }
    }
}

fn warp(op: &Warp, visit: &mut Visit<'_>) {
    use Access::{Read, Write};
    match op {
        Warp::Shuffle { dst, valid, a, lane, clamp, mask, .. } => {
            visit(*a, Read);
            read(*lane, visit);
            read(*clamp, visit);
            read(*mask, visit);
            visit(*dst, Write);
            each(valid.as_slice(), Write, visit);
        }
        Warp::Vote { dst, pred, mask, .. } | Warp::Ballot { dst, pred, mask } => {
            visit(*pred, Read);
            read(*mask, visit);
            visit(*dst, Write);
        }
        Warp::ActiveMask { dst } => visit(*dst, Write),
        Warp::Elect { leader, pred, mask } => {
            read(*mask, visit);
            visit(*pred, Write);
            each(leader.as_slice(), Write, visit);
        }
        Warp::Reduce { dst, a, mask, .. } => {
            visit(*a, Read);
            read(*mask, visit);
            visit(*dst, Write);
        }
        Warp::Match { dst, same, a, mask, .. } => {
            read(*a, visit);
            read(*mask, visit);
            visit(*dst, Write);
            each(same.as_slice(), Write, visit);
        }
        Warp::Sync { mask } => read(*mask, visit),
        Warp::LoadMatrix { dsts, addr, .. } => {
            read_address(*addr, visit);
            each(dsts, Write, visit);
        }
        Warp::StoreMatrix { srcs, addr, .. } => {
            read_address(*addr, visit);
            each(srcs, Read, visit);
        }
    }
}

fn barrier(op: &Barrier, visit: &mut Visit<'_>) {
    match *op {
        Barrier::Init { bar, count: a } | Barrier::ExpectTx { bar, bytes: a, .. } => {
            read_address(bar, visit);
            read(a, visit);
        }
        Barrier::ArriveExpectTx { bar, bytes, state, .. } => {
            read_address(bar, visit);
            read(bytes, visit);
            each(state.as_slice(), Access::Write, visit);
        }
        Barrier::Invalidate { bar } => read_address(bar, visit),
        Barrier::Arrive { bar, count, state, .. } => {
            read_address(bar, visit);
            if let Some(count) = count {
                read(count, visit);
            }
            each(state.as_slice(), Access::Write, visit);
        }
        Barrier::TryWait { done, bar, parity, .. } => {
            read_address(bar, visit);
            read(parity, visit);
            visit(done, Access::Write);
        }
        Barrier::NamedSync { id, threads, .. } => {
            read(id, visit);
            if let Some(threads) = threads {
                read(threads, visit);
            }
        }
        Barrier::NamedArrive { id, threads, .. } => {
            read(id, visit);
            read(threads, visit);
        }
        Barrier::ClusterArrive { .. } | Barrier::ClusterWait { .. } => {}
    }
}

fn copy(op: &AsyncCopy, visit: &mut Visit<'_>) {
    use Access::Read;
    let addresses = |list: &[Address], visit: &mut Visit<'_>| {
        for &address in list {
            read_address(address, visit);
        }
    };
    match op {
        AsyncCopy::BulkLoad { dst, src, bytes, bar, multicast, policy } => {
            addresses(&[*dst, *src, *bar], visit);
            read(*bytes, visit);
            each(multicast.as_slice(), Read, visit);
            each(policy.as_slice(), Read, visit);
        }
        AsyncCopy::BulkStore { dst, src, bytes, policy } => {
            addresses(&[*dst, *src], visit);
            read(*bytes, visit);
            each(policy.as_slice(), Read, visit);
        }
        AsyncCopy::BulkToCluster { dst, src, bytes, bar } => {
            addresses(&[*dst, *src, *bar], visit);
            read(*bytes, visit);
        }
        AsyncCopy::BulkPrefetch { src, bytes } => {
            read_address(*src, visit);
            read(*bytes, visit);
        }
        AsyncCopy::TensorLoad { dst, map, coords, bar, multicast, policy, cta_group: _ } => {
            addresses(&[*dst, *bar], visit);
            visit(*map, Read);
            coords.iter().for_each(|&c| read(c, visit));
            each(multicast.as_slice(), Read, visit);
            each(policy.as_slice(), Read, visit);
        }
        AsyncCopy::TensorStore { map, coords, src, policy } => {
            read_address(*src, visit);
            visit(*map, Read);
            coords.iter().for_each(|&c| read(c, visit));
            each(policy.as_slice(), Read, visit);
        }
        AsyncCopy::TensorPrefetch { map, coords } => {
            visit(*map, Read);
            coords.iter().for_each(|&c| read(c, visit));
        }
        AsyncCopy::PrefetchMap { map } => visit(*map, Read),
        AsyncCopy::TryCancel { dst, bar, multicast: _ } => addresses(&[*dst, *bar], visit),
        AsyncCopy::ArriveBehindCopies { bar, .. } => read_address(*bar, visit),
        AsyncCopy::CommitGroup
        | AsyncCopy::WaitGroup { .. }
        | AsyncCopy::CommitThreadGroup
        | AsyncCopy::WaitThreadGroup { .. } => {}
        AsyncCopy::ThreadCopy { dst, src, bytes: _, source_bytes, policy } => {
            addresses(&[*dst, *src], visit);
            source_bytes.iter().for_each(|&bytes| read(bytes, visit));
            each(policy.as_slice(), Read, visit);
        }
        AsyncCopy::StoreAsync { dst, srcs, bar } => {
            addresses(&[*dst, *bar], visit);
            each(srcs, Read, visit);
        }
    }
}

fn mma(op: &Mma, visit: &mut Visit<'_>) {
    let (Mma::Dense { d, a, b, .. } | Mma::BlockScaled { d, a, b, .. }) = op;
    each(a, Access::Read, visit);
    each(b, Access::Read, visit);
    if let Mma::BlockScaled { scale_a, scale_b, .. } = op {
        each(&[*scale_a, *scale_b], Access::Read, visit);
    }
    each(d, Access::Update, visit);
}

fn fragments(op: &Fragments, visit: &mut Visit<'_>) {
    match op {
        Fragments::Load { dsts, addr, stride, .. } => {
            read_address(*addr, visit);
            stride.iter().for_each(|&stride| read(stride, visit));
            each(dsts, Access::Write, visit);
        }
        Fragments::Store { srcs, addr, stride, .. } => {
            read_address(*addr, visit);
            stride.iter().for_each(|&stride| read(stride, visit));
            each(srcs, Access::Read, visit);
        }
        Fragments::Multiply { d, a, b, c, .. } => {
            [a, b, c].into_iter().for_each(|(_, regs)| each(regs, Access::Read, visit));
            each(&d.1, Access::Write, visit);
        }
    }
}

fn wgmma(op: &Wgmma, visit: &mut Visit<'_>) {
    let Wgmma::Mma { d, a, b, accumulate, .. } = op else { return };
    match a {
        MatrixA::Registers(regs) => each(regs, Access::Read, visit),
        MatrixA::Shared { desc, .. } => visit(*desc, Access::Read),
    }
    visit(*b, Access::Read);
    if let Accumulate::If(pred) = accumulate {
        visit(*pred, Access::Read);
    }
    let access = if *accumulate == Accumulate::Replace { Access::Write } else { Access::Update };
    each(d, access, visit);
}

fn tcgen05(op: &Tcgen05, visit: &mut Visit<'_>) {
    use Access::{Read, Write};
    match op {
        Tcgen05::Alloc { dst, columns, .. } => {
            read_address(*dst, visit);
            read(*columns, visit);
        }
        Tcgen05::Dealloc { addr, columns, .. } => {
            visit(*addr, Read);
            read(*columns, visit);
        }
        Tcgen05::CopyScales { dst, src, .. } => each(&[*dst, *src], Read, visit),
        Tcgen05::MmaDense { d, a: TensorA::Shared(a) | TensorA::Tensor(a), b, shape, accumulate, .. } => {
            each(&[*d, *a, *b, *shape, *accumulate], Access::Read, visit);
        }
        Tcgen05::Mma { d, a, b, shape, scale_a, scale_b, accumulate, .. } => {
            each(&[*d, *a, *b, *shape, *scale_a, *scale_b, *accumulate], Read, visit);
        }
        Tcgen05::Commit { bar, multicast, .. } => {
            read_address(*bar, visit);
            each(multicast.as_slice(), Read, visit);
        }
        Tcgen05::Load { dsts, addr, .. } => {
            visit(*addr, Read);
            each(dsts, Write, visit);
        }
        Tcgen05::Store { addr, srcs, .. } => {
            visit(*addr, Read);
            each(srcs, Read, visit);
        }
        Tcgen05::RelinquishAllocPermit { .. }
        | Tcgen05::WaitLoad
        | Tcgen05::WaitStore
        | Tcgen05::FenceBeforeSync
        | Tcgen05::FenceAfterSync => {}
    }
}
