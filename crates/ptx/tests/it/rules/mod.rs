//! Each rule of the checker, with a tiny kernel that breaks it and nothing else.

mod blackwell_tensor_cores;
mod copies;
mod hopper_tensor_cores;
mod memory;
mod operands;
mod synchronisation;
mod targets;
mod warp_tensor_cores;
mod whole_kernels;

use ptx::descriptor::{MatrixLayout, Swizzle, Tcgen05Descriptor, WgmmaDescriptor};
use ptx::instr::{
    Accumulate, Arith, AsyncCopy, AtomicOp, Barrier, BinaryOp, CellShape, Collector, Control, Fence, FloatMode, Guard,
    LoadOrder, MatrixA, MatrixElement, Memory, Mma, ParamBase, ReduceOp, Rounding, Semantics, ShuffleMode, StoreOrder,
    Tcgen05, TernaryOp, UnaryOp, Warp, Wgmma, Width,
};
use ptx::{
    Address, Bank, Base, Builder, CtaGroup, DataType, Error, Feature, Instr, Kernel, Label, LaunchBounds, Op, Operand,
    ParamId, PhaseId, RegId, RegisterChange, Rule, Scope, Space, SpecialRegister, Target, U32,
};

const TILE: u32 = 0;
const BARRIER: u32 = 4096;

fn p(index: u32) -> RegId {
    RegId { bank: Bank::Pred, index }
}

fn h(index: u32) -> RegId {
    RegId { bank: Bank::B16, index }
}

fn r(index: u32) -> RegId {
    RegId { bank: Bank::B32, index }
}

fn d(index: u32) -> RegId {
    RegId { bank: Bank::B64, index }
}

fn imm(value: u64) -> Operand {
    Operand::Imm(value)
}

fn shared(offset: u32) -> Address {
    Address { base: Base::SharedStart, offset: offset.cast_signed() }
}

fn global() -> Address {
    Address { base: Base::Reg(d(0)), offset: 0 }
}

/// A legal kernel with some of everything an instruction may want to name.
fn kernel(target: Target) -> Kernel {
    let cluster = target.has(Feature::Clusters).then_some([2, 1, 1]);
    let launch = LaunchBounds { threads: 256, cluster, min_blocks: Some(1) };
    let mut k = Builder::new("small", target, launch);
    k.param::<U32>("n");
    k.tensor_map("map");
    k.shared("tile", 4096, 1024);
    k.barriers("barriers", 2);
    let mut kernel = k.finish().expect("a legal kernel");
    kernel.registers = [300; 4];
    kernel
}

fn insert(kernel: &mut Kernel, ops: Vec<Op>) {
    let instrs = ops.into_iter().map(|op| Instr { guard: None, op, phase: PhaseId(0), line: None });
    kernel.body.splice(0..0, instrs);
}

fn rules(kernel: &Kernel) -> Vec<Rule> {
    kernel.violations().into_iter().map(|violation| violation.rule).collect()
}

fn broken_on(target: Target, ops: Vec<Op>) -> Rule {
    let mut kernel = kernel(target);
    insert(&mut kernel, ops);
    let mut rules = rules(&kernel);
    assert_eq!(rules.len(), 1, "{rules:?}");
    rules.remove(0)
}

/// The one rule that an instruction breaks on Hopper.
fn broken(op: impl Into<Op>) -> Rule {
    broken_on(Target::Sm90a, vec![op.into()])
}

/// The one rule that an instruction breaks on Blackwell.
fn broken_blackwell(op: impl Into<Op>) -> Rule {
    broken_on(Target::Sm100a, vec![op.into()])
}

/// The one rule that a change of the kernel breaks.
fn changed(change: impl FnOnce(&mut Kernel)) -> Rule {
    let mut kernel = kernel(Target::Sm90a);
    change(&mut kernel);
    let mut rules = rules(&kernel);
    assert_eq!(rules.len(), 1, "{rules:?}");
    rules.remove(0)
}

#[track_caller]
fn is_value(rule: &Rule, expected: u64) {
    assert!(matches!(rule, Rule::Value { found, .. } if *found == expected), "{rule}");
}

fn load(width: Width, dsts: Vec<RegId>, addr: Address) -> Memory {
    Memory::Load { space: Space::Shared, order: LoadOrder::Weak, width, dsts, addr }
}

fn add(ty: DataType, dst: RegId, b: Operand) -> Arith {
    Arith::Binary { op: BinaryOp::Add, ty, mode: FloatMode::PLAIN, dst, a: Operand::Reg(dst), b }
}

fn guarded(op: Op, pred: RegId) -> Instr {
    Instr { guard: Some(Guard { pred, negated: false }), op, phase: PhaseId(0), line: None }
}
