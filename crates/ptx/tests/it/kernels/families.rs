//! One kernel per family of instructions, generated from tables: operations times types times options, as far as the
//! checker accepts them. A new form is a new entry of a table. The kernels compute nothing; they are there to be
//! assembled.

use ptx::instr::{
    Accumulate, Arith, Arrival, AsyncCopy, AtomicOp, Barrier, BinaryOp, CellShape, Collector, Control, DenseKind,
    Direction, Fence, FloatMode, FloatPair, Fragment, Fragments, LoadOrder, LogicOp, MatrixA, MatrixElement,
    MatrixOrder, MatrixType, Memory, Mma, NarrowFloat, ParamBase, PredicateOp, ReduceOp, Role, Rounding, ScaledKind,
    Scaling, Semantics, ShuffleMode, StoreOrder, Tcgen05, TensorA, TernaryOp, UnaryOp, VoteMode, Warp, Wgmma, Width,
    Window,
};
use ptx::{
    Address, Bank, Base, Builder, Comparison, CtaGroup, DataType, F32, Feature, Instr, Kernel, Label, LaunchBounds, Op,
    Operand, ParamId, PhaseId, RegId, RegisterChange, S32, Scope, Space, SpecialRegister, Target, U16, U32, U64,
};

/// A family: what it is called, the GPU it is for, and candidates for its forms.
pub struct Family {
    pub name: &'static str,
    pub target: Target,
    candidates: Vec<Op>,
}

pub fn all() -> Vec<Family> {
    let family = |name, target, candidates| Family { name, target, candidates };
    let hopper = |name, candidates| family(name, Target::Sm90a, candidates);
    let blackwell = |name, candidates| family(name, Target::Sm100a, candidates);
    let blackwells = |name, candidates| family(name, Target::Sm100f, candidates);
    let ampere = |name, candidates| family(name, Target::Sm80, candidates);
    let desktop = |name, candidates| family(name, Target::Sm120f, candidates);
    vec![
        hopper("arithmetic", arithmetic()),
        hopper("moves", moves()),
        hopper("memory", memory()),
        hopper("atomics", atomics()),
        hopper("warps", warps()),
        hopper("barriers", barriers()),
        hopper("copies", copies(&[None])),
        hopper("wgmma", wgmma()),
        hopper("control", control()),
        blackwell("copies", copies(&[None, Some(CtaGroup::One)])),
        blackwell("paired copies", copies(&[Some(CtaGroup::Two)])),
        blackwell("tcgen05", tcgen05(CtaGroup::One)),
        blackwell("paired tcgen05", tcgen05(CtaGroup::Two)),
        blackwells("tcgen05", tcgen05(CtaGroup::One)),
        blackwells("paired tcgen05", tcgen05(CtaGroup::Two)),
        blackwell("barriers", barriers()),
        blackwell("control", control()),
        blackwell("launch control", launch_control()),
        blackwells("launch control", launch_control()),
        ampere("arithmetic", arithmetic()),
        ampere("moves", moves()),
        ampere("memory", memory()),
        ampere("atomics", atomics()),
        ampere("warps", warps()),
        ampere("barriers", barriers()),
        ampere("thread copies", thread_copies()),
        ampere("mma", mma()),
        ampere("fragments", fragments()),
        hopper("fragments", fragments()),
        ampere("control", control()),
        desktop("mma", mma()),
        desktop("narrow floats", narrow_floats()),
        blackwell("narrow floats", narrow_floats()),
        desktop("warps", warps()),
        desktop("barriers", barriers()),
        desktop("copies", copies(&[None])),
        desktop("thread copies", thread_copies()),
        desktop("control", control()),
        desktop("launch control", launch_control()),
    ]
}

impl Family {
    /// A kernel of every candidate that the checker accepts.
    pub fn specimen(&self) -> Kernel {
        let frame = frame(self.target);
        let accepted = |op: &Op| with(&frame, std::slice::from_ref(op)).check().is_ok();
        let forms: Vec<Op> = self.candidates.iter().filter(|op| accepted(op)).cloned().collect();
        assert!(!forms.is_empty(), "no form of {} is accepted", self.name);
        with(&frame, &forms)
    }
}

/// An empty kernel with registers, parameters, shared memory and one label.
fn frame(target: Target) -> Kernel {
    let cluster = target.has(Feature::Clusters).then_some([2, 1, 1]);
    let launch = LaunchBounds { threads: 256, cluster, min_blocks: Some(1) };
    let mut k = Builder::new("specimen", target, launch);
    k.pointer("pointer");
    k.tensor_map("map");
    k.param::<U16>("short");
    k.param::<U32>("word");
    k.param::<S32>("signed");
    k.param::<U64>("long");
    k.param::<F32>("single");
    k.table("table", 32);
    k.tensor_maps("maps", 3);
    k.shared("tile", 4096, 1024);
    k.barriers("barriers", 2);
    let label = k.label();
    k.place(label);
    let mut kernel = k.finish().expect("a legal kernel");
    kernel.registers = [16, 16, 300, 16];
    kernel
}

fn with(frame: &Kernel, ops: &[Op]) -> Kernel {
    let mut kernel = frame.clone();
    let instrs = ops.iter().map(|op| Instr { guard: None, op: op.clone(), phase: PhaseId(0), line: None });
    let end = kernel.body.len() - 1;
    kernel.body.splice(end..end, instrs);
    kernel
}

const TYPES: [DataType; 16] = DataType::ALL;
const SPACES: [Space; 4] = [Space::Global, Space::Shared, Space::Cluster, Space::Generic];
const SCOPES: [Scope; 4] = [Scope::Block, Scope::Cluster, Scope::Gpu, Scope::System];
const SEMANTICS: [Semantics; 2] = [Semantics::Relaxed, Semantics::Ordered];
const YES_NO: [bool; 2] = [false, true];

fn reg(bank: Bank, index: u32) -> RegId {
    // Register 8 and up: nothing in the frame writes these, so the checker knows nothing of their values.
    RegId { bank, index: index + 8 }
}

/// The width of a register.
fn width_of(reg: RegId) -> Width {
    match reg.bank {
        Bank::Pred => Width::B8,
        Bank::B16 => Width::B16,
        Bank::B32 => Width::B32,
        Bank::B64 => Width::B64,
    }
}

fn p(index: u32) -> RegId {
    reg(Bank::Pred, index)
}

fn h(index: u32) -> RegId {
    reg(Bank::B16, index)
}

fn r(index: u32) -> RegId {
    reg(Bank::B32, index)
}

fn d(index: u32) -> RegId {
    reg(Bank::B64, index)
}

fn rs(count: usize) -> Vec<RegId> {
    (0..count as u32).map(r).collect()
}

fn imm(value: u64) -> Operand {
    Operand::Imm(value)
}

/// An address of the given window: fixed for shared memory, in a register else.
fn address(space: Space) -> Address {
    match space {
        Space::Global | Space::Generic => Address { base: Base::Reg(d(0)), offset: -16 },
        Space::Shared => tile(),
        Space::Cluster => Address { base: Base::Reg(r(100)), offset: 32 },
    }
}

fn tile() -> Address {
    Address { base: Base::SharedStart, offset: 1024 }
}

fn bar(space: Space) -> Address {
    match space {
        Space::Shared => Address { base: Base::SharedStart, offset: 4104 },
        _ => address(space),
    }
}

/// Something with every mode of floats.
fn with_modes<T: Copy>(op: T) -> Vec<(T, FloatMode)> {
    let directions = [Direction::Nearest, Direction::Zero, Direction::Down, Direction::Up];
    let flags = directions.into_iter().flat_map(|direction| YES_NO.map(|flush| (direction, flush)));
    let modes = flags.flat_map(|(direction, flush)| YES_NO.map(|saturate| FloatMode { direction, flush, saturate }));
    modes.map(|mode| (op, mode)).collect()
}

fn arithmetic() -> Vec<Op> {
    use BinaryOp::{
        Add, And, Div, DivApprox, DivFull, Max, MaxNan, Min, MinNan, Mul, MulHigh, Or, Rem, Shl, Shr, Sub, Xor,
    };
    use TernaryOp::{
        BitExtract, Fma, FunnelLeft, FunnelLeftClamp, FunnelRight, FunnelRightClamp, Lop3, MulAdd, MulAddHigh, Permute,
    };
    use UnaryOp::{
        Abs, CosApprox, CountOnes, Exp2Approx, LeadingZeros, Log2Approx, Move, Neg, Not, Rcp, RcpApprox, ReverseBits,
        RsqrtApprox, SinApprox, Sqrt, SqrtApprox, TanhApprox,
    };
    let mut ops: Vec<Op> = Vec::new();
    for ty in TYPES {
        let (dst, a, literal) = (reg(ty.bank(), 0), Operand::Reg(reg(ty.bank(), 1)), imm(3));
        let unary = [
            Move,
            Not,
            Neg,
            Abs,
            Exp2Approx,
            RcpApprox,
            Rcp,
            SqrtApprox,
            Sqrt,
            RsqrtApprox,
            Log2Approx,
            SinApprox,
            CosApprox,
            TanhApprox,
            ReverseBits,
        ];
        for (op, mode) in unary.into_iter().flat_map(with_modes) {
            ops.extend([a, literal].map(|a| Op::from(Arith::Unary { op, ty, mode, dst, a })));
        }
        for op in [CountOnes, LeadingZeros] {
            ops.push(Arith::Unary { op, ty, mode: FloatMode::PLAIN, dst: r(0), a }.into());
        }
        let binary =
            [Add, Sub, Mul, MulHigh, Min, Max, MinNan, MaxNan, And, Or, Xor, Shl, Shr, Div, DivApprox, DivFull, Rem];
        for (op, mode) in binary.into_iter().flat_map(with_modes) {
            for b in [a, Operand::Reg(r(2)), literal] {
                ops.push(Arith::Binary { op, ty, mode, dst, a, b }.into());
            }
        }
        let ternary = [
            MulAdd,
            MulAddHigh,
            Fma,
            Lop3(0xea),
            Permute,
            FunnelLeft,
            FunnelRight,
            FunnelLeftClamp,
            FunnelRightClamp,
            BitExtract,
        ];
        for (op, mode) in ternary.into_iter().flat_map(with_modes) {
            for (b, c) in [(a, a), (a, literal), (literal, a), (literal, literal)] {
                ops.push(Arith::Ternary { op, ty, mode, dst, a, b, c }.into());
            }
        }
        for b in [a, literal] {
            ops.push(Arith::Select { ty, dst, a, b, pred: p(0) }.into());
            ops.push(Arith::Select { ty, dst, a: b, b: a, pred: p(0) }.into());
            for cmp in Comparison::ALL {
                ops.push(Arith::Compare { cmp, ty, dst: p(0), a, b }.into());
            }
            for (dst, c) in [r(0), d(0)].into_iter().flat_map(|dst| [(dst, None), (dst, Some(Operand::Reg(dst)))]) {
                ops.push(Arith::MulWide { ty, dst, a, b, c }.into());
            }
        }
        for from in TYPES {
            let a = reg(from.bank(), 2);
            for (rounding, mode) in Rounding::ALL.into_iter().flat_map(with_modes) {
                ops.push(Arith::Convert { to: ty, from, rounding, mode, dst, a }.into());
            }
        }
        ops.push(Arith::ConvertPair { to: ty, dst, low: r(1), high: r(2) }.into());
    }
    ops.extend(narrow_floats());
    ops
}

fn narrow_floats() -> Vec<Op> {
    let (mut ops, short): (Vec<Op>, RegId) = (Vec::new(), reg(Bank::B16, 0));
    for ty in NarrowFloat::ALL {
        for relu in YES_NO {
            for from in [FloatPair::Halves(r(1)), FloatPair::Bfloats(r(1)), FloatPair::Floats([r(1), r(2)])] {
                for direction in [Direction::Nearest, Direction::Zero, Direction::Up, Direction::Down] {
                    ops.push(Arith::ConvertNarrow { to: ty, direction, relu, dst: short, from }.into());
                }
            }
            ops.push(Arith::ConvertWide { from: ty, relu, dst: r(1), a: short }.into());
        }
    }
    ops
}

fn moves() -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::new();
    for which in SpecialRegister::ALL {
        let dst = if which.is_wide() { d(0) } else { r(0) };
        ops.push(Arith::Special { dst, which }.into());
    }
    for number in 0..7 {
        for dst in [h(0), r(0), d(0)] {
            let (width, from) = (width_of(dst), ParamBase::Param(ParamId(number)));
            ops.push(Arith::Param { dst, width, from, offset: 0 }.into());
        }
    }
    for op in [
        PredicateOp::Const(true),
        PredicateOp::Const(false),
        PredicateOp::Move(p(1)),
        PredicateOp::Not(p(1)),
        PredicateOp::Logic(LogicOp::And, p(1), p(2)),
        PredicateOp::Logic(LogicOp::Or, p(1), p(2)),
        PredicateOp::Logic(LogicOp::Xor, p(1), p(2)),
    ] {
        ops.push(Arith::Predicate { dst: p(0), op }.into());
    }
    for (wide, narrow) in [(r(0), [h(1), h(2)]), (d(0), [r(1), r(2)])] {
        let [low, high] = narrow.map(Operand::Reg);
        ops.push(Arith::Pack { dst: wide, low, high }.into());
        ops.push(Arith::Pack { dst: wide, low, high: imm(7) }.into());
        ops.push(Arith::Pack { dst: wide, low: imm(7), high }.into());
        ops.push(Arith::Unpack { low: narrow[0], high: narrow[1], a: wide }.into());
    }
    let b = Operand::Reg(r(2));
    ops.extend([
        Arith::ParamAddress { dst: d(0), param: ParamId(1) }.into(),
        Arith::ParamAddress { dst: d(0), param: ParamId(8) }.into(),
        Arith::ParamTable { dst: d(0), param: ParamId(7) }.into(),
        Arith::Param { dst: r(0), width: Width::B32, from: ParamBase::Reg(d(0)), offset: 8 }.into(),
        Arith::Param { dst: d(1), width: Width::B64, from: ParamBase::Reg(d(0)), offset: 0 }.into(),
        Arith::Param { dst: r(0), width: Width::B8, from: ParamBase::Reg(d(0)), offset: 3 }.into(),
        Arith::SharedAddress { dst: r(0), offset: 0 }.into(),
        Arith::SharedAddress { dst: r(0), offset: 1024 }.into(),
        Arith::ToGlobal { dst: d(0), a: d(1) }.into(),
        Arith::FromShared { dst: d(0), a: d(1) }.into(),
        Arith::ToShared { dst: d(0), a: d(1) }.into(),
        Arith::MapShared { dst: r(0), a: r(1), rank: b }.into(),
        Arith::MapShared { dst: r(0), a: r(1), rank: imm(1) }.into(),
        Arith::Policy { dst: d(0), keep: false }.into(),
        Arith::Policy { dst: d(0), keep: true }.into(),
    ]);
    ops.extend(Window::ALL.map(|window| Op::from(Arith::InWindow { dst: p(0), window, a: d(1) })));
    ops
}

fn memory() -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::new();
    let scoped = |order: fn(Scope) -> LoadOrder| SCOPES.map(order);
    let mut loads = vec![LoadOrder::Weak, LoadOrder::ReadOnly, LoadOrder::Streaming];
    loads.extend(scoped(LoadOrder::Relaxed));
    loads.extend(scoped(LoadOrder::Acquire));
    let mut stores = vec![StoreOrder::Weak];
    stores.extend(SCOPES.map(StoreOrder::Relaxed));
    stores.extend(SCOPES.map(StoreOrder::Release));
    for space in SPACES {
        let addr = address(space);
        for width in [Width::B8, Width::S8, Width::B16, Width::S16, Width::B32, Width::B64] {
            for bank in [Bank::B16, Bank::B32, Bank::B64] {
                for count in [1, 2, 4] {
                    let regs: Vec<RegId> = (0..count).map(|index| reg(bank, index)).collect();
                    for &order in &loads {
                        ops.push(Memory::Load { space, order, width, dsts: regs.clone(), addr }.into());
                    }
                    for &order in &stores {
                        ops.push(Memory::Store { space, order, width, srcs: regs.clone(), addr }.into());
                    }
                }
            }
        }
    }
    ops
}

fn atomics() -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::new();
    for space in SPACES {
        for op in AtomicOp::ALL {
            for ty in TYPES {
                for scope in SCOPES {
                    for acq_rel in YES_NO {
                        for dst in [None, Some(reg(ty.bank(), 0))] {
                            for a in [Operand::Reg(reg(ty.bank(), 1)), imm(1)] {
                                let addr = address(space);
                                let b = (op == AtomicOp::CompareExchange).then_some(a);
                                ops.push(Memory::Atomic { space, op, ty, acq_rel, scope, dst, addr, a, b }.into());
                            }
                        }
                    }
                }
            }
        }
    }
    ops
}

fn warps() -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::new();
    for mask in [imm(0xffff_ffff), Operand::Reg(r(3))] {
        for mode in [ShuffleMode::Index, ShuffleMode::Butterfly, ShuffleMode::Up, ShuffleMode::Down] {
            for valid in [None, Some(p(0))] {
                for lane in [imm(1), Operand::Reg(r(2))] {
                    ops.push(Warp::Shuffle { mode, dst: r(0), valid, a: r(1), lane, clamp: imm(31), mask }.into());
                }
            }
        }
        for mode in [VoteMode::All, VoteMode::Any, VoteMode::Uniform] {
            ops.push(Warp::Vote { mode, dst: p(0), pred: p(1), mask }.into());
        }
        for op in ReduceOp::ALL {
            for ty in TYPES {
                ops.push(Warp::Reduce { op, ty, dst: r(0), a: r(1), mask }.into());
            }
        }
        ops.push(Warp::Ballot { dst: r(0), pred: p(1), mask }.into());
        ops.push(Warp::Elect { leader: None, pred: p(0), mask }.into());
        ops.push(Warp::Elect { leader: Some(r(0)), pred: p(0), mask }.into());
        for (all, ty) in YES_NO.into_iter().flat_map(|all| TYPES.map(|ty| (all, ty))) {
            for same in [None, Some(p(0))] {
                for a in [Operand::Reg(reg(ty.bank(), 1)), imm(1)] {
                    ops.push(Warp::Match { all, ty, dst: r(0), same, a, mask }.into());
                }
            }
        }
        ops.push(Warp::Sync { mask }.into());
    }
    ops.push(Warp::ActiveMask { dst: r(0) }.into());
    for count in [1, 2, 4] {
        for transpose in YES_NO {
            ops.push(Warp::LoadMatrix { transpose, dsts: rs(count), addr: tile() }.into());
            ops.push(Warp::StoreMatrix { transpose, srcs: rs(count), addr: tile() }.into());
        }
    }
    ops
}

fn barriers() -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::new();
    let (word, here) = (Operand::Reg(r(1)), bar(Space::Shared));
    for n in [imm(1), word] {
        ops.push(Barrier::Init { bar: here, count: n }.into());
        ops.push(Barrier::NamedSync { aligned: true, id: n, threads: None }.into());
        ops.push(Barrier::NamedSync { aligned: true, id: n, threads: Some(imm(128)) }.into());
        ops.push(Barrier::NamedSync { aligned: true, id: n, threads: Some(word) }.into());
        ops.push(Barrier::NamedArrive { aligned: true, id: n, threads: imm(128) }.into());
        for space in SPACES {
            ops.push(Barrier::ExpectTx { space, bar: bar(space), bytes: n }.into());
        }
        for sem in SEMANTICS {
            for scope in SCOPES {
                for space in SPACES {
                    let bar = bar(space);
                    ops.push(
                        Barrier::Arrive { arrival: None, space, sem, scope, bar, count: None, state: None }.into(),
                    );
                    ops.push(
                        Barrier::Arrive { arrival: None, space, sem, scope, bar, count: Some(n), state: Some(d(3)) }
                            .into(),
                    );
                    ops.push(Barrier::ArriveExpectTx { space, sem, scope, bar, bytes: n, state: Some(d(3)) }.into());
                    ops.push(
                        Barrier::Arrive { arrival: None, space, sem, scope, bar, count: Some(n), state: None }.into(),
                    );
                    for state in
                        [None, Some(d(3))].into_iter().filter(|state| state.is_none() || space == Space::Shared)
                    {
                        let count = Some(n);
                        let arrival = Some(Arrival::Drop);
                        ops.push(Barrier::Arrive { arrival, space, sem, scope, bar, count, state }.into());
                    }
                    ops.push(Barrier::ArriveExpectTx { space, sem, scope, bar, bytes: n, state: None }.into());
                }
                ops.push(Barrier::TryWait { done: p(0), sem, scope, bar: here, parity: n }.into());
            }
        }
    }
    for aligned in YES_NO {
        ops.push(Barrier::ClusterArrive { sem: Semantics::Ordered, aligned }.into());
        ops.push(Barrier::ClusterWait { aligned }.into());
        ops.push(Barrier::ClusterArrive { sem: Semantics::Relaxed, aligned }.into());
        ops.push(Barrier::ClusterWait { aligned }.into());
    }
    ops.push(Barrier::Invalidate { bar: here }.into());
    ops.extend(SCOPES.map(|scope| Op::from(Fence::AcqRel(scope))));
    for window in [None, Some(Space::Global), Some(Space::Shared), Some(Space::Cluster)] {
        ops.push(Fence::ProxyAsync(window).into());
    }
    ops.push(Fence::BarrierInit.into());
    ops
}

fn copies(groups: &[Option<CtaGroup>]) -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::new();
    let (near, far, global) = (tile(), address(Space::Cluster), address(Space::Global));
    let (bar, far_bar, map) = (bar(Space::Shared), bar(Space::Cluster), d(1));
    for policy in [None, Some(d(2))] {
        for multicast in [None, Some(h(0))] {
            for bytes in [imm(512), Operand::Reg(r(1))] {
                ops.push(AsyncCopy::BulkLoad { dst: near, src: global, bytes, bar, multicast, policy }.into());
                ops.push(AsyncCopy::BulkStore { dst: global, src: near, bytes, policy }.into());
                ops.push(AsyncCopy::BulkToCluster { dst: far, src: near, bytes, bar: far_bar }.into());
                ops.push(AsyncCopy::BulkPrefetch { src: global, bytes }.into());
            }
            for rank in 1..=5 {
                let mut coords = vec![imm(0xffff_fff0); rank];
                coords[0] = Operand::Reg(r(2));
                for &cta_group in groups {
                    let (dst, coords) = (near, coords.clone());
                    ops.push(AsyncCopy::TensorLoad { dst, map, coords, bar, multicast, policy, cta_group }.into());
                }
                ops.push(AsyncCopy::TensorPrefetch { map, coords: coords.clone() }.into());
                ops.push(AsyncCopy::TensorStore { map, coords, src: near, policy }.into());
            }
        }
    }
    for pending in [0, 1, 7] {
        ops.push(AsyncCopy::CommitGroup.into());
        ops.extend(YES_NO.map(|read| Op::from(AsyncCopy::WaitGroup { pending, read })));
    }
    for count in [1, 2, 4] {
        ops.push(AsyncCopy::StoreAsync { dst: far, srcs: rs(count), bar: far_bar }.into());
    }
    ops.push(AsyncCopy::PrefetchMap { map }.into());
    ops
}

/// Launch control, and what is asked of its answers.
fn launch_control() -> Vec<Op> {
    let mut ops: Vec<Op> =
        YES_NO.map(|multicast| AsyncCopy::TryCancel { dst: tile(), bar: bar(Space::Shared), multicast }.into()).into();
    ops.push(Arith::IsCanceled { dst: p(0), answer: [d(1), d(2)] }.into());
    ops.push(Arith::FirstBlock { dsts: [r(1), r(2), r(3)], answer: [d(1), d(2)] }.into());
    ops
}

fn wgmma() -> Vec<Op> {
    let mut ops: Vec<Op> = vec![Wgmma::Fence.into()];
    let fragment = MatrixA::Registers([200, 201, 202, 203].map(r));
    let shared = |transpose| MatrixA::Shared { desc: d(0), transpose };
    let multiply = |n: u32, element, a, accumulate, negate: [bool; 2], transpose_b| {
        let [negate_a, negate_b] = negate;
        let registers = rs(n as usize / 2);
        Wgmma::Mma { n, element, d: registers, a, b: d(1), accumulate, negate_a, negate_b, transpose_b }
    };
    for n in (8..=256).step_by(8) {
        ops.push(multiply(n, MatrixElement::F16, fragment, Accumulate::Add, [false; 2], false).into());
    }
    for element in MatrixElement::ALL.into_iter().filter(|element| element.bits() != 16) {
        for a in [fragment, shared(false)] {
            ops.push(multiply(16, element, a, Accumulate::Add, [false; 2], false).into());
        }
    }
    for element in [MatrixElement::F16, MatrixElement::Bf16] {
        for a in [fragment, shared(false), shared(true)] {
            for accumulate in [Accumulate::Add, Accumulate::Replace, Accumulate::If(p(0))] {
                for negate in [[false, false], [true, false], [false, true], [true, true]] {
                    for transpose_b in YES_NO {
                        ops.push(multiply(16, element, a, accumulate, negate, transpose_b).into());
                    }
                }
            }
        }
    }
    ops.push(Wgmma::Commit.into());
    ops.extend((0..8).rev().map(|pending| Op::from(Wgmma::Wait { pending })));
    ops
}

fn tcgen05(group: CtaGroup) -> Vec<Op> {
    let (tensor, columns) = (r(0), [32, 64, 128, 256, 512].map(imm));
    let mut ops: Vec<Op> = Vec::new();
    for columns in columns.into_iter().chain([Operand::Reg(r(9))]) {
        ops.push(Tcgen05::Alloc { group, dst: tile(), columns }.into());
        ops.push(Tcgen05::Dealloc { group, addr: tensor, columns }.into());
    }
    ops.push(Tcgen05::RelinquishAllocPermit { group }.into());
    ops.push(Tcgen05::CopyScales { group, dst: tensor, src: d(0) }.into());
    for collector in [Collector::Discard, Collector::Fill, Collector::Use, Collector::LastUse] {
        let (a, b, shape, scale_a, scale_b, accumulate) = (d(0), d(1), r(1), r(2), r(3), p(0));
        for kind in ScaledKind::ALL {
            ops.push(
                Tcgen05::Mma { kind, group, d: tensor, a, b, shape, scale_a, scale_b, accumulate, collector }.into(),
            );
        }
    }
    let sources = [TensorA::Shared(d(0)), TensorA::Tensor(r(4))];
    for collector in [Collector::Discard, Collector::Fill, Collector::Use, Collector::LastUse] {
        let (b, shape, accumulate) = (d(1), r(1), p(0));
        for (kind, a) in DenseKind::ALL.into_iter().flat_map(|kind| sources.map(|a| (kind, a))) {
            ops.push(Tcgen05::MmaDense { kind, group, d: tensor, a, b, shape, accumulate, collector }.into());
        }
    }
    for multicast in [None, Some(h(0))] {
        ops.push(Tcgen05::Commit { group, bar: bar(Space::Shared), multicast }.into());
    }
    use CellShape::{L16x32bx2, L16x64b, L16x128b, L16x256b, L32x32b};
    for shape in [L32x32b, L16x64b, L16x128b, L16x256b, L16x32bx2(32)] {
        for count in [1, 2, 4, 8, 16, 32, 64, 128].into_iter().filter(|count| *count >= shape.least()) {
            ops.push(Tcgen05::Load { shape, dsts: rs(count), addr: r(200) }.into());
            ops.push(Tcgen05::WaitLoad.into());
            ops.push(Tcgen05::Store { shape, addr: r(200), srcs: rs(count) }.into());
            ops.push(Tcgen05::WaitStore.into());
        }
    }
    ops.extend([Op::from(Tcgen05::FenceBeforeSync), Op::from(Tcgen05::FenceAfterSync)]);
    ops
}

fn control() -> Vec<Op> {
    let branch = |uniform| Control::Branch { target: Label(0), uniform };
    [
        Control::GridDependencyWait,
        Control::LaunchDependents,
        Control::SetMaxRegisters { change: RegisterChange::Decrease, count: 24 },
        Control::SetMaxRegisters { change: RegisterChange::Increase, count: 240 },
        branch(false),
        branch(true),
        Control::Trap,
        Control::Exit,
    ]
    .map(Op::from)
    .to_vec()
}

fn thread_copies() -> Vec<Op> {
    let (dst, src) = (Address { base: Base::SharedStart, offset: 64 }, Address { base: Base::Reg(d(0)), offset: 0 });
    let read = [None, Some(Operand::Imm(0)), Some(Operand::Imm(4)), Some(Operand::Reg(r(0)))];
    let mut ops: Vec<Op> = vec![AsyncCopy::CommitThreadGroup.into()];
    for (bytes, source_bytes) in [4, 8, 16].into_iter().flat_map(|bytes| read.map(|read| (bytes, read))) {
        for policy in [None, Some(d(1))] {
            ops.push(AsyncCopy::ThreadCopy { dst, src, bytes, source_bytes, policy }.into());
        }
    }
    ops.push(Arith::Policy { dst: d(1), keep: true }.into());
    ops.extend([0, 1, 7].map(|pending| AsyncCopy::WaitThreadGroup { pending }.into()));
    ops.extend(YES_NO.map(|expected| AsyncCopy::ArriveBehindCopies { bar: dst, expected }.into()));
    ops
}

/// Matrices of every role, type and order in every shape, to and from memory, and every multiplication of them.
fn fragments() -> Vec<Op> {
    let shapes = [
        [16, 16, 16],
        [32, 8, 16],
        [8, 32, 16],
        [16, 16, 8],
        [8, 8, 4],
        [16, 8, 4],
        [16, 8, 8],
        [16, 8, 16],
        [16, 8, 32],
        [8, 8, 16],
    ];
    let orders = [MatrixOrder::Rows, MatrixOrder::Columns];
    let regs = |fragment: Fragment, from: u32| -> Vec<RegId> {
        (from..).map(|index| reg(fragment.ty.bank(), index % 8)).take(fragment.registers()).collect()
    };
    let mut ops: Vec<Op> = Vec::new();
    for shape in shapes {
        for ty in MatrixType::ALL {
            for order in orders {
                for role in [Role::A, Role::B, Role::Sums] {
                    let fragment = Fragment { role, shape, ty, order: Some(order) };
                    for (space, stride) in
                        SPACES.into_iter().zip([None, Some(imm(64)), None, Some(Operand::Reg(r(50)))])
                    {
                        let addr = address(space);
                        ops.push(Fragments::Load { fragment, space, dsts: regs(fragment, 0), addr, stride }.into());
                        if role == Role::Sums {
                            ops.push(
                                Fragments::Store { fragment, space, srcs: regs(fragment, 0), addr, stride }.into(),
                            );
                        }
                    }
                }
            }
            for (of_b, sums) in MatrixType::ALL.into_iter().flat_map(|b| MatrixType::ALL.map(|sums| (b, sums))) {
                for (of_d, orders) in MatrixType::ALL.into_iter().flat_map(|d| {
                    [None, Some([orders[0], orders[1]]), Some([orders[1], orders[0]])].map(|orders| (d, orders))
                }) {
                    let fragment = |role, ty, order| Fragment { role, shape, ty, order };
                    let rows = orders.map(|_| MatrixOrder::Rows);
                    let a = fragment(Role::A, ty, orders.map(|orders| orders[0]));
                    let b = fragment(Role::B, of_b, orders.map(|orders| orders[1]));
                    let (c, d) = (fragment(Role::Sums, sums, rows), fragment(Role::Sums, of_d, rows));
                    if !Fragments::multiplies(d, a, b, c) {
                        continue;
                    }
                    for saturate in YES_NO {
                        let [d, a, b, c] = [d, a, b, c].map(|fragment| (fragment, regs(fragment, 0)));
                        ops.push(Fragments::Multiply { saturate, d, a, b, c }.into());
                    }
                }
            }
        }
    }
    ops
}

fn mma() -> Vec<Op> {
    let fragment = |first: u32| std::array::from_fn(|i| r(first + i as u32));
    let (acc, a, b) = (fragment(0), fragment(4), [r(8), r(9)]);
    let mut ops: Vec<Op> = Vec::new();
    for element in MatrixElement::ALL {
        ops.push(Mma::Dense { element, saturate: false, d: acc, a, b }.into());
        if element.is_integer() {
            ops.push(Mma::Dense { element, saturate: true, d: acc, a, b }.into());
        }
    }
    let pairs = NarrowFloat::ALL.into_iter().flat_map(|a| NarrowFloat::ALL.map(|b| Scaling::Mx([a, b])));
    for scaling in [Scaling::NvFp4, Scaling::MxFp4].into_iter().chain(pairs) {
        for (lanes_a, lane_b) in (0..2).flat_map(|a| (0..4).map(move |b| (a, b))) {
            for byte in 0..4 {
                let (d, scale_a, scale_b, byte_a, byte_b) = (acc, r(10), r(11), byte, byte);
                let op = Mma::BlockScaled { scaling, d, a, b, scale_a, lanes_a, byte_a, scale_b, lane_b, byte_b };
                ops.push(op.into());
            }
        }
    }
    ops
}
