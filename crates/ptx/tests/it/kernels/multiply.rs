//! D = A·Bᵀ for half-precision A (M×K) and B (N×K): one 64×64 tile a block, a producer warp that copies tiles through
//! tensor maps, one warpgroup that multiplies, a four-stage pipeline between them.

use ptx::descriptor::MatrixLayout;
use ptx::instr::{Accumulate, MatrixElement};
use ptx::{
    Addr, Barriers, Builder, CopyOptions, Error, F32, Global, Kernel, LaunchBounds, MatrixOperand, Reg, RegisterChange,
    SharedRegion, SpecialRegister, Target, TensorMapAddress, U32, Value,
};

const STAGES: u32 = 4;
const TILE_BYTES: u32 = 64 * 128;

/// Shared memory and barriers of the pipeline.
struct Pipeline {
    a: SharedRegion,
    b: SharedRegion,
    full: Barriers,
    empty: Barriers,
}

/// A stage and the parity of its turn.
struct Turn {
    stage: Reg<U32>,
    parity: Reg<U32>,
}

pub fn kernel() -> Result<Kernel, Error> {
    let mut k =
        Builder::new("multiply", Target::Sm90a, LaunchBounds { threads: 256, cluster: None, min_blocks: Some(1) });
    let (a, b) = (k.tensor_map("a"), k.tensor_map("b"));
    let out = k.pointer("out");
    let (n, steps) = (k.param::<U32>("n"), k.param::<U32>("k_steps"));
    let pipe = Pipeline {
        a: k.shared("a_tiles", STAGES * TILE_BYTES, 1024),
        b: k.shared("b_tiles", STAGES * TILE_BYTES, 1024),
        full: k.barriers("full", STAGES),
        empty: k.barriers("empty", STAGES),
    };
    let (a, b) = (k.tensor_map_address(a), k.tensor_map_address(b));
    let thread = k.special(SpecialRegister::TidX);
    let warp = k.shr(thread, 5);
    let warp = k.broadcast(warp);
    prepare(&mut k, &pipe, thread);
    let producer = k.ge(warp, 4);
    k.if_else(
        producer,
        |k| {
            k.set_max_registers(RegisterChange::Decrease, 40);
            let first = k.eq(warp, 4);
            k.if_(first, |k| k.phase("load", |k| load(k, &pipe, a, b, steps)));
        },
        |k| {
            k.set_max_registers(RegisterChange::Increase, 232);
            let acc = k.phase("multiply", |k| multiply(k, &pipe, steps));
            k.phase("store", |k| store(k, &acc, out, n, thread));
        },
    );
    k.finish()
}

fn prepare(k: &mut Builder, pipe: &Pipeline, thread: Reg<U32>) {
    k.phase("prepare", |k| {
        let first = k.eq(thread, 0);
        k.if_(first, |k| {
            for stage in 0..STAGES {
                k.barrier_init(pipe.full.at(stage), 1);
                k.barrier_init(pipe.empty.at(stage), 128);
            }
            k.fence_barrier_init();
        });
        k.sync_threads();
    });
}

fn turn(k: &mut Builder) -> Turn {
    Turn { stage: k.variable(0), parity: k.variable(0) }
}

/// The next stage; the parity flips when the pipeline wraps around.
fn advance(k: &mut Builder, turn: &Turn) {
    let next = k.add(turn.stage, 1);
    let wrapped = k.eq(next, STAGES);
    let flipped = k.xor(turn.parity, 1);
    let next = k.select(wrapped, 0, next);
    k.set(turn.stage, next);
    k.when(wrapped, |k| k.set(turn.parity, flipped));
}

fn load(k: &mut Builder, pipe: &Pipeline, a: Reg<TensorMapAddress>, b: Reg<TensorMapAddress>, steps: Reg<U32>) {
    let elected = k.elect();
    k.if_(elected, |k| {
        k.prefetch_map(a);
        k.prefetch_map(b);
        let (row, column) = (k.special(SpecialRegister::CtaidX), k.special(SpecialRegister::CtaidY));
        let (row, column) = (k.shl(row, 6).cast(), k.shl(column, 6).cast());
        let (a_base, b_base) = (k.shared_address(pipe.a), k.shared_address(pipe.b));
        let (full, empty) = (k.shared_address(pipe.full.region()), k.shared_address(pipe.empty.region()));
        let turn = turn(k);
        k.repeat(steps, |k, step| {
            let full = Addr::of(k.mul_add(turn.stage, Barriers::STRIDE, full));
            let empty = Addr::of(k.mul_add(turn.stage, Barriers::STRIDE, empty));
            let other = k.xor(turn.parity, 1);
            k.wait(empty, other);
            k.arrive_expecting(full, 2 * TILE_BYTES);
            let depth: Value<_> = k.shl(step, 6).cast().into();
            let a_tile = k.mul_add(turn.stage, TILE_BYTES, a_base);
            k.tensor_load(Addr::of(a_tile), a, &[depth, row.into()], full, CopyOptions::default());
            let b_tile = k.mul_add(turn.stage, TILE_BYTES, b_base);
            k.tensor_load(Addr::of(b_tile), b, &[depth, column.into()], full, CopyOptions::default());
            advance(k, &turn);
        });
    });
}

fn multiply(k: &mut Builder, pipe: &Pipeline, steps: Reg<U32>) -> [Reg<F32>; 32] {
    let layout = MatrixLayout::K_MAJOR_128;
    let acc = [0.0f32; 32].map(|zero| k.variable(zero));
    let (a_base, b_base) = (k.shared_address(pipe.a), k.shared_address(pipe.b));
    let (a_low, b_low) = (k.descriptor_low(layout, a_base), k.descriptor_low(layout, b_base));
    let (full, empty) = (k.shared_address(pipe.full.region()), k.shared_address(pipe.empty.region()));
    let turn = turn(k);
    k.repeat(steps, |k, _| {
        let full = k.mul_add(turn.stage, Barriers::STRIDE, full);
        k.wait(Addr::of(full), turn.parity);
        let a_low = k.mul_add(turn.stage, TILE_BYTES / 16, a_low);
        let b_low = k.mul_add(turn.stage, TILE_BYTES / 16, b_low);
        k.wgmma_fence();
        for slice in 0..4 {
            let a_low = k.add(a_low, slice * 2);
            let a = k.wgmma_descriptor(layout, a_low);
            let b_low = k.add(b_low, slice * 2);
            let b = k.wgmma_descriptor(layout, b_low);
            k.wgmma(&acc, MatrixOperand::Shared(MatrixElement::F16, a), b, Accumulate::Add);
        }
        k.wgmma_commit();
        k.wgmma_wait(0);
        let empty = k.mul_add(turn.stage, Barriers::STRIDE, empty);
        k.arrive(Addr::of(empty));
        advance(k, &turn);
    });
    acc
}

/// Row-major f32 output, two neighbouring columns a store.
fn store(k: &mut Builder, acc: &[Reg<F32>; 32], out: Reg<ptx::U64>, n: Reg<U32>, thread: Reg<U32>) {
    let (row_tile, column_tile) = (k.special(SpecialRegister::CtaidX), k.special(SpecialRegister::CtaidY));
    let (warp, lane) = (k.shr(thread, 5), k.and(thread, 31));
    let (quad, pair) = (k.shr(lane, 2), k.and(lane, 3));
    let row = k.mul_add(warp, 16, quad);
    let row = k.mul_add(row_tile, 64, row);
    let columns = k.shl(column_tile, 6);
    let column = k.mul_add(pair, 2, columns);
    let index = k.mul_add(row, n, column);
    let upper = k.mul_wide_add(index, 4, out);
    let lower = k.mul_wide_add(n, 32, upper);
    for (group, values) in acc.chunks_exact(4).enumerate() {
        let bytes = 32 * group as i32;
        k.store_vector(Addr::<Global>::of(upper).plus(bytes), [values[0], values[1]]);
        k.store_vector(Addr::<Global>::of(lower).plus(bytes), [values[2], values[3]]);
    }
}
