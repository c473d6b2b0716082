//! Most of what threads and warps do by themselves, and rarer forms of the rest, chained so that the
//! assembler cannot drop them.

use ptx::instr::{
    Accumulate, AsyncCopy, AtomicOp, Barrier, Fence, LoadOrder, LogicOp, MatrixElement, Memory, PredicateOp, ReduceOp,
    Semantics, ShuffleMode, StoreOrder, VoteMode, Width,
};
use ptx::{
    Addr, Bf16, Bf16x2, Bool, Builder, Cluster, Error, F16, F16x2, F32, Global, Kernel, LaunchBounds, MatrixOperand,
    Reg, S32, Scope, Shared, Space, SpecialRegister, Target, U16, U32, U64, Value, WgmmaOptions,
};

pub fn kernel() -> Result<Kernel, Error> {
    let mut k =
        Builder::new("zoo", Target::Sm90a, LaunchBounds { threads: 128, cluster: Some([2, 1, 1]), min_blocks: None });
    let data = k.pointer("data");
    let factor = k.param::<F32>("factor");
    let signed = k.param::<S32>("signed");
    let shared = k.shared("scratch", 4096, 1024);
    let bars = k.barriers("bars", 1);
    let thread = k.special(SpecialRegister::TidX);
    let at = k.mul_wide_add(thread, 64, data);
    let word = k.phase("integers", |k| integers(k, thread, signed));
    let sum = k.phase("floats", |k| floats(k, word, factor));
    let mixed = k.phase("warp", |k| warp(k, word, sum, shared.at(0)));
    k.phase("memory", |k| memory(k, at, mixed));
    k.phase("barriers", |k| barriers(k, bars.at(0)));
    k.phase("copies", |k| copies(k, bars.at(0), shared.at(0)));
    k.phase("registers_times_shared", |k| fragments(k, shared, at));
    k.finish()
}

fn integers(k: &mut Builder, thread: Reg<U32>, signed: Reg<S32>) -> Reg<U32> {
    let mut x = k.add(thread, 7);
    x = k.sub(x, thread);
    x = k.mul_high(x, 0x1234_5678);
    x = k.min(x, 100);
    x = k.max(x, thread);
    x = k.or(x, 0x10);
    x = k.xor(x, thread);
    x = k.not(x);
    x = k.div(x, thread);
    x = k.rem(x, 17);
    x = k.shl(x, thread);
    x = k.permute(x, thread, 0x5140);
    x = k.lop3(x, thread, 0xff, 0xea);
    x = k.funnel_left(x, thread, 3);
    x = k.funnel_right(x, thread, 5);
    x = k.bit_extract(x, 2, 9);
    let ones = k.count_ones(x);
    let negative = k.shr(signed, 3);
    let (less, more) = (k.le(negative, -5), k.gt(negative, 5));
    let less = k.either(less, more);
    let wide = k.mul_wide(x, thread);
    let wide = k.add(wide, 0x1_0000_0000u64);
    let [low, high] = k.unpack_words(wide);
    let narrow: Reg<U16> = k.convert(low);
    let back: Reg<U32> = k.convert(narrow);
    let joined: Reg<U32> = k.convert(wide);
    let never = k.register::<Bool>();
    k.emit(ptx::instr::Arith::Predicate { dst: never.id(), op: PredicateOp::Const(false) });
    let odd = k.register::<Bool>();
    let op = PredicateOp::Logic(LogicOp::Xor, less.id(), never.id());
    k.emit(ptx::instr::Arith::Predicate { dst: odd.id(), op });
    let either = k.either(odd, less);
    let opposite = k.opposite(either);
    let picked = k.select(opposite, back, high);
    k.unless(either, |k| k.set(picked, 3));
    let mut total = k.mul_add(ones, joined, picked);
    for which in [
        SpecialRegister::CtaidY,
        SpecialRegister::CtaidZ,
        SpecialRegister::NctaidX,
        SpecialRegister::NtidX,
        SpecialRegister::ClusteridX,
        SpecialRegister::NclusteridX,
        SpecialRegister::ClusterNctaRank,
        SpecialRegister::LaneId,
        SpecialRegister::WarpId,
        SpecialRegister::SmId,
        SpecialRegister::Clock,
    ] {
        let value = k.special(which);
        total = k.add(total, value);
    }
    for which in [SpecialRegister::Clock64, SpecialRegister::GlobalTimer] {
        let value = k.special_wide(which);
        let value: Reg<U32> = k.convert(value);
        total = k.add(total, value);
    }
    total
}

fn floats(k: &mut Builder, word: Reg<U32>, factor: Reg<F32>) -> Reg<F32> {
    let mut x: Reg<F32> = k.convert(word);
    x = k.fma(x, factor, 1.5);
    x = k.sub(x, 0.1);
    x = k.exp2(x);
    x = k.rcp(x);
    x = k.tanh(x);
    x = k.neg(x);
    x = k.abs(x);
    x = k.min(x, 4.0);
    x = k.max(x, -4.0);
    let half: Reg<F16> = k.convert(x);
    let half = k.mul(half, half);
    let back: Reg<F32> = k.convert(half);
    let brain: Reg<Bf16> = k.convert(x);
    let brain_back: Reg<F32> = k.convert(brain);
    let pair = k.convert_pair::<F16x2>(x, back);
    let one = k.bits::<F16x2>(0x3c00_3c00);
    let pair = k.fma(pair, one, pair);
    let pair = k.mul(pair, one);
    let pair = k.add(pair, one);
    let [low, high] = k.unpack_pair(pair);
    let pair = k.pack_pair::<F16x2>(high, low);
    let brains = k.convert_pair::<Bf16x2>(brain_back, x);
    let brains = k.mul(brains, brains);
    let brains = k.fma(brains, brains, brains);
    let bits = k.xor(pair.cast::<U32>(), brains.cast::<U32>());
    let nan = k.ne(x, x);
    let y: Reg<F32> = k.select(nan, 0.0, x);
    let rounded: Reg<S32> = k.convert(y);
    let truncated: Reg<U32> = k.convert(y);
    let bits = k.add(bits, truncated);
    let bits = k.add(bits, rounded.cast::<U32>());
    k.add(bits.cast::<F32>(), x)
}

fn warp(k: &mut Builder, word: Reg<U32>, sum: Reg<F32>, scratch: Addr<Shared>) -> Reg<U32> {
    let mut x = k.shuffle(ShuffleMode::Butterfly, sum, 16);
    x = k.shuffle(ShuffleMode::Up, x, 1);
    x = k.shuffle(ShuffleMode::Down, x, word);
    let positive = k.ge(x, 0.0);
    let all = k.vote(VoteMode::All, positive);
    let any = k.vote(VoteMode::Any, positive);
    let same = k.vote(VoteMode::Uniform, positive);
    let mut bits = k.ballot(positive);
    for pred in [all, any, same] {
        k.when(pred, |k| k.set(bits, word));
    }
    let active = k.active_mask();
    bits = k.and(bits, active);
    bits = k.reduce(ReduceOp::Or, bits);
    bits = k.reduce(ReduceOp::Add, bits);
    k.sync_warp();
    let [a, b, c, d] = k.load_matrix::<4>(scratch, true);
    k.store_matrix(scratch, &[a, b], false);
    k.store_matrix(scratch, &[c], true);
    k.add(bits, d)
}

fn memory(k: &mut Builder, at: Reg<U64>, mixed: Reg<U32>) {
    let global = Addr::<Global>::of(at);
    let [a, b, c, d] = k.load_as::<U32, _, 4>(LoadOrder::ReadOnly, global);
    let [e, f] = k.load_as::<U64, _, 2>(LoadOrder::Streaming, global.plus(16));
    let [g] = k.load_as::<U32, _, 1>(LoadOrder::Acquire(Scope::Gpu), global.plus(32));
    let [h] = k.load_as::<U32, _, 1>(LoadOrder::Relaxed(Scope::System), global.plus(-4));
    let byte = k.load_narrow(Width::B8, global.plus(3));
    let half = k.load_narrow(Width::B16, global.plus(2));
    let short = k.load::<U16, _>(global);
    k.store(global.plus(8), short);
    k.store_vector(global, [a, b, c, d]);
    k.store_vector(global.plus(16), [e, f]);
    k.store_as(StoreOrder::Release(Scope::Gpu), global.plus(32), [g]);
    k.store_as(StoreOrder::Relaxed(Scope::Cluster), global.plus(36), [h]);
    let old = k.atomic_add::<U32, _>(Scope::Gpu, global, byte);
    let old = k.atomic(AtomicOp::Max, Semantics::Ordered, Scope::Gpu, global, old);
    k.reduce_add::<F32, _>(Scope::Gpu, global, 1.0);
    let total = k.add(old, half);
    let total = k.add(total, mixed);
    let (space, order, addr) = (Space::Global, StoreOrder::Weak, global.plus(1).address());
    k.emit(Memory::Store { space, order, width: Width::B8, srcs: vec![total.id()], addr });
    k.fence(Scope::Gpu);
    k.fence(Scope::Block);
}

fn barriers(k: &mut Builder, bar: Addr<Shared>) {
    k.barrier_init(bar, 8);
    k.emit(Fence::ProxyAsync(Some(Space::Global)));
    k.fence_async();
    k.expect_bytes(bar, 16);
    k.expect_bytes(bar.in_cluster(), 16);
    k.arrive_remote(bar.in_cluster(), Semantics::Ordered, Scope::Block);
    k.arrive_remote(bar.in_cluster(), Semantics::Ordered, Scope::Cluster);
    k.arrive_remote(bar.in_cluster(), Semantics::Relaxed, Scope::Cluster);
    let (space, sem, scope) = (Space::Shared, Semantics::Ordered, Scope::Block);
    let count = Some(Value::<U32>::from(2).operand());
    k.emit(Barrier::Arrive { arrival: None, space, sem, scope, bar: bar.address(), count, state: None });
    let (space, scope, bytes) = (Space::Cluster, Scope::Cluster, Value::<U32>::from(64).operand());
    k.emit(Barrier::ArriveExpectTx { space, sem, scope, bar: bar.address(), bytes, state: None });
    k.wait_at(bar, 0, Scope::Cluster);
    k.sync_threads();
    k.barrier_invalidate(bar);
    k.named_arrive(2, 128);
    k.cluster_arrive(Semantics::Ordered, false);
    k.cluster_wait(false);
}

fn copies(k: &mut Builder, bar: Addr<Shared>, scratch: Addr<Shared>) {
    let far: Addr<Cluster> = scratch.in_cluster().plus(1024);
    k.bulk_to_cluster(far, scratch, 512, bar.in_cluster());
    let one = k.variable::<U32>(1);
    k.emit(AsyncCopy::StoreAsync { dst: far.address(), srcs: vec![one.id()], bar: bar.address() });
    k.store_async(far, &[one, one], bar.in_cluster());
}

fn fragments(k: &mut Builder, scratch: ptx::SharedRegion, at: Reg<U64>) {
    let layout = ptx::descriptor::MatrixLayout::K_MAJOR_128;
    let acc = k.registers::<F32, 4>();
    for reg in acc {
        k.set(reg, 0.0);
    }
    let halves = k.load_vector::<F16x2, _, 4>(Addr::<Global>::of(at));
    let brains = k.load_vector::<Bf16x2, _, 4>(Addr::<Global>::of(at).plus(16));
    let base = k.shared_address(scratch);
    let low = k.descriptor_low(layout, base);
    let b = k.wgmma_descriptor(layout, low);
    let again = k.ge(low, 5);
    k.wgmma_fence();
    k.wgmma(&acc, MatrixOperand::F16(halves), b, Accumulate::Replace);
    k.wgmma(&acc, MatrixOperand::Bf16(brains), b, Accumulate::If(again.id()));
    let options = WgmmaOptions { negate_a: true, negate_b: false, transpose_b: true };
    k.wgmma_as(options, &acc, MatrixOperand::SharedTransposed(MatrixElement::F16, b), b, Accumulate::Add);
    k.wgmma_commit();
    k.wgmma_wait(0);
    k.store_vector(Addr::<Global>::of(at), acc);
}
