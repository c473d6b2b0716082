//! A kernel as they are written for Blackwell, and the mistakes that are made in writing one.
//!
//! One warp brings stages, one multiplies them, four bring sums to memory by way of shared memory and the copy engine:
//! two tiles of 128 × 16, three stages of 256 of k each, through two stages of shared memory and one set of
//! accumulators, so that everything is waited for, used again and given back. It is right under every schedule by the
//! letter; each slip is found, as a fault or as another result.

use ptx::descriptor::{BlockScaledShape, MatrixLayout, Swizzle};
use ptx::instr::Collector;
use ptx::{
    Addr, Barriers, Builder, CopyOptions, CtaGroup, Global, Kernel, LaunchBounds, Multiply, Pred, Reg, Scope, Shared,
    SharedRegion, SpecialRegister, Target, TensorAddress, U32, U64,
};
use sim::{Buffer, Finding, Gpu, Invocation, Limits, Rules, Schedule, explore};

const GROUP: CtaGroup = CtaGroup::One;
const TILES: u32 = 2;
const STEPS: u32 = 3;
const STAGES: u32 = 2;
/// Columns of a tile.
const N: u32 = 16;
/// What a stage has: rows of A and of B, and for each the scales of four units.
const PARTS: [u32; 4] = [128 * 128, N * 128, 2048, 2048];
const STAGE: u32 = 128 * 128 + N * 128 + 2 * 2048;
/// Bytes of a tile's results.
const RESULTS: u32 = 128 * N * 4;
/// Columns that are allocated: for sums, and for the scales of each stage.
const COLUMNS: u32 = 128;
const MULTIPLIER: u32 = 128;
const PRODUCER: u32 = 160;

/// What the kernel does wrong, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slip {
    None,
    BarriersNotPublished,
    AddressNotAwaited,
    PermitGivenUpFirst,
    FullNotAwaited,
    FullAskedOnce,
    FullOfOtherParity,
    TooFewBytes,
    TooManyBytes,
    EmptyNotAwaited,
    EmptyOfOtherParity,
    EmptyNotTold,
    EmptyToldByThread,
    ScalesInOnePlace,
    ScalesBesideTheirs,
    ScaleNumber,
    SwizzleOfA,
    SwizzleOfB,
    StrideOfA,
    NeverCollected,
    SumsNeverCleared,
    EveryLaneMultiplies,
    OtherThreadCommits,
    CommitBeforeLast,
    SumsNotAwaited,
    SummedOfOtherParity,
    NoFenceBehindSummed,
    LoadNotAwaited,
    DrainedBeforeLoad,
    DrainedBeforeLoadIsOver,
    NoFenceBeforeDrained,
    NoFenceBehindDrained,
    DrainedNotAwaited,
    DrainedOfOtherParity,
    NoProxyFence,
    StoreNotMet,
    StoreNotCommitted,
    StoreNotRead,
    FreedTooSoon,
    FreedByOther,
    NotFreed,
}

struct Parts {
    slip: Slip,
    input: Reg<U64>,
    output: Reg<U64>,
    thread: Reg<U32>,
    stages: SharedRegion,
    results: SharedRegion,
    full: Barriers,
    empty: Barriers,
    summed: Barriers,
    drained: Barriers,
}

impl Parts {
    fn is(&self, slip: Slip) -> bool {
        self.slip == slip
    }

    /// The parity to wait for, or the other one.
    fn parity(&self, right: u32, wrong: Slip) -> u32 {
        right ^ u32::from(self.is(wrong))
    }
}

/// Every round through the stages: its tile, its step, its stage and that one's parity.
fn rounds() -> impl Iterator<Item = (u32, u32, u32, u32)> {
    (0..TILES * STEPS).map(|round| (round / STEPS, round % STEPS, round % STAGES, round / STAGES % 2))
}

fn kernel(slip: Slip) -> Kernel {
    let launch = LaunchBounds { threads: 192, cluster: None, min_blocks: Some(1) };
    let mut k = Builder::new("tiles", Target::Sm100a, launch);
    let (input, output) = (k.pointer("input"), k.pointer("output"));
    let (stages, results) = (k.shared("stages", STAGES * STAGE, 1024), k.shared("results", RESULTS, 128));
    let address = k.shared("address", 4, 4);
    let (full, empty) = (k.barriers("full", STAGES), k.barriers("empty", STAGES));
    let (summed, drained) = (k.barriers("summed", 1), k.barriers("drained", 1));
    let thread = k.special(SpecialRegister::TidX);
    let p = Parts { slip, input, output, thread, stages, results, full, empty, summed, drained };
    let base = prepare(&mut k, &p, address);
    let (produces, multiplies) = (k.eq(thread, PRODUCER), k.eq(thread, MULTIPLIER));
    let warp = k.shr(thread, 5);
    let (finishes, owns) = (k.lt(thread, MULTIPLIER), k.eq(warp, MULTIPLIER / 32));
    k.if_(produces, |k| produce(k, &p));
    k.if_(if p.is(Slip::EveryLaneMultiplies) { owns } else { multiplies }, |k| multiply(k, &p, base));
    if p.is(Slip::OtherThreadCommits) {
        let other = k.eq(thread, MULTIPLIER + 1);
        k.when(other, |k| (0..TILES).for_each(|_| k.tensor_commit(GROUP, summed.at(0), None)));
    }
    k.if_(finishes, |k| finish(k, &p, base, warp));
    let (leaves, frees) =
        (k.lt(thread, PRODUCER), k.eq(warp, if p.is(Slip::FreedByOther) { 0 } else { MULTIPLIER / 32 }));
    k.if_(leaves, |k| leave(k, &p, base, frees));
    k.finish().expect("the kernel is well formed")
}

fn prepare(k: &mut Builder, p: &Parts, address: SharedRegion) -> Reg<TensorAddress> {
    let (first, warp) = (k.eq(p.thread, 0), k.shr(p.thread, 5));
    let allocates = k.eq(warp, MULTIPLIER / 32);
    k.if_(first, |k| {
        (0..STAGES).flat_map(|stage| [p.full.at(stage), p.empty.at(stage)]).for_each(|bar| k.barrier_init(bar, 1));
        k.barrier_init(p.summed.at(0), 1);
        k.barrier_init(p.drained.at(0), 4);
        if !p.is(Slip::BarriersNotPublished) {
            k.fence_barrier_init();
        }
    });
    if p.is(Slip::AddressNotAwaited) {
        k.sync_threads();
    }
    k.if_(allocates, |k| {
        if p.is(Slip::PermitGivenUpFirst) {
            k.tensor_relinquish(GROUP);
        }
        k.tensor_alloc(GROUP, address.at(0), COLUMNS);
        k.tensor_relinquish(GROUP);
    });
    k.tensor_fence_before_sync();
    if !p.is(Slip::AddressNotAwaited) {
        k.sync_threads();
    }
    k.tensor_fence_after_sync();
    k.load::<TensorAddress, Shared>(address.at(0))
}

fn produce(k: &mut Builder, p: &Parts) {
    for (tile, step, stage, parity) in rounds() {
        if !p.is(Slip::EmptyNotAwaited) {
            k.wait(p.empty.at(stage), p.parity(1 - parity, Slip::EmptyOfOtherParity));
        }
        let expected = match p.slip {
            Slip::TooFewBytes => STAGE - PARTS[3],
            Slip::TooManyBytes => STAGE + 16,
            _ => STAGE,
        };
        k.arrive_expecting(p.full.at(stage), expected);
        let (mut to, mut from) = (stage * STAGE, (tile * STEPS + step) * STAGE);
        for bytes in PARTS {
            let source = Addr::of(p.input).plus(from as i32);
            k.bulk_load(p.stages.at(to), source, bytes, p.full.at(stage), CopyOptions::default());
            (to, from) = (to + bytes, from + bytes);
        }
    }
}

fn multiply(k: &mut Builder, p: &Parts, base: Reg<TensorAddress>) {
    let rows = |slip, swizzle| MatrixLayout { swizzle, ..layout(p, slip) };
    let of_a = rows(Slip::StrideOfA, if p.is(Slip::SwizzleOfA) { Swizzle::None } else { Swizzle::B128 });
    let of_b = rows(Slip::None, if p.is(Slip::SwizzleOfB) { Swizzle::B64 } else { Swizzle::B128 });
    let packed = MatrixLayout { swizzle: Swizzle::None, leading: 16, stride: 128 };
    let shape = BlockScaledShape { m: 128, n: N, scale_a_id: 0, scale_b_id: 0 };
    // A block of sixteen has all four scales of its unit: there is no other to choose. The number's field ends with bit
    // 31.
    let bits = shape.encode().expect("a shape of this hardware") | u32::from(p.is(Slip::ScaleNumber)) << 29;
    let shape = k.variable::<U32>(bits).cast();
    let start = k.shared_address(p.stages);
    for (tile, step, stage, parity) in rounds() {
        if step == 0 && tile > 0 && !p.is(Slip::DrainedNotAwaited) {
            k.wait(p.drained.at(0), p.parity(tile - 1, Slip::DrainedOfOtherParity));
        }
        let parity = p.parity(parity, Slip::FullOfOtherParity);
        match p.slip {
            Slip::FullNotAwaited => {}
            Slip::FullAskedOnce => drop(k.try_wait(p.full.at(stage), parity, Scope::Block)),
            _ => k.wait(p.full.at(stage), parity),
        }
        if !p.is(Slip::NoFenceBehindDrained) {
            k.tensor_fence_after_sync();
        }
        let at = k.add(start, stage * STAGE);
        let [a, b] = [(of_a, 0), (of_b, PARTS[0])].map(|(layout, part)| {
            let at = k.add(at, part);
            k.descriptor_low(layout, at)
        });
        let scales = k.add(at, PARTS[0] + PARTS[1]);
        let scales = k.descriptor_low(packed, scales);
        for unit in 0..4 {
            let [a, b] = [(of_a, a), (of_b, b)].map(|(layout, low)| {
                let low = k.add(low, 2 * unit);
                k.tcgen05_descriptor(layout, low)
            });
            let place = if p.is(Slip::ScalesInOnePlace) { 0 } else { stage };
            let mut column = |column: u32| k.add(base.cast::<U32>(), column).cast::<TensorAddress>();
            let [scale_a, scale_b] = [0, 16].map(|operand| column(N + 32 * place + operand + 4 * unit));
            let beside = column(N + 32 * place + 4 * (unit ^ 1));
            for (to, part) in [(scale_a, 0), (scale_b, 128)] {
                let source = k.add(scales, part + 32 * unit);
                let source = k.tcgen05_descriptor(packed, source);
                k.tensor_copy_scales(GROUP, to, source);
            }
            let last = (step, unit) == (STEPS - 1, 3);
            if last && p.is(Slip::CommitBeforeLast) {
                k.tensor_commit(GROUP, p.summed.at(0), None);
            }
            let accumulate = k.bits((step + unit > 0 || p.is(Slip::SumsNeverCleared)).into());
            let collector = if p.is(Slip::NeverCollected) { Collector::LastUse } else { Collector::Discard };
            let scale_a = if p.is(Slip::ScalesBesideTheirs) { beside } else { scale_a };
            let (group, d) = (GROUP, base);
            k.tensor_multiply(Multiply { group, d, a, b, shape, scale_a, scale_b, accumulate, collector });
        }
        match p.slip {
            Slip::EmptyNotTold => {}
            Slip::EmptyToldByThread => k.arrive(p.empty.at(stage)),
            _ => k.tensor_commit(GROUP, p.empty.at(stage), None),
        }
        if step == STEPS - 1 && !p.is(Slip::CommitBeforeLast) && !p.is(Slip::OtherThreadCommits) {
            k.tensor_commit(GROUP, p.summed.at(0), None);
        }
    }
}

/// Rows of 128 bytes, eight after eight; or every second eight.
fn layout(p: &Parts, slip: Slip) -> MatrixLayout {
    let stride = if p.is(slip) && slip != Slip::None { 2048 } else { 1024 };
    MatrixLayout { stride, ..MatrixLayout::K_MAJOR_128 }
}

fn finish(k: &mut Builder, p: &Parts, base: Reg<TensorAddress>, warp: Reg<U32>) {
    let (lane, first) = (k.and(p.thread, 31), k.eq(p.thread, 0));
    let leads = k.eq(lane, 0);
    let lanes = k.shl(warp, 21);
    let mine = k.add(base.cast::<U32>(), lanes).cast::<TensorAddress>();
    let start = k.shared_address(p.results);
    let row = Addr::<Shared>::of(k.mul_add(p.thread, 4 * N, start));
    let tell = |k: &mut Builder| {
        if !p.is(Slip::NoFenceBeforeDrained) {
            k.tensor_fence_before_sync();
        }
        k.sync_warp();
        k.when(leads, |k| k.arrive(p.drained.at(0)));
    };
    for tile in 0..TILES {
        if !p.is(Slip::SumsNotAwaited) {
            k.wait(p.summed.at(0), p.parity(tile, Slip::SummedOfOtherParity));
        }
        if !p.is(Slip::NoFenceBehindSummed) {
            k.tensor_fence_after_sync();
        }
        if p.is(Slip::DrainedBeforeLoad) {
            tell(k);
        }
        let sums = k.tensor_load_columns::<{ N as usize }>(mine);
        if p.is(Slip::DrainedBeforeLoadIsOver) {
            tell(k);
        }
        if !p.is(Slip::LoadNotAwaited) {
            k.tensor_wait_load();
        }
        if !p.is(Slip::DrainedBeforeLoad) && !p.is(Slip::DrainedBeforeLoadIsOver) {
            tell(k);
        }
        if tile > 0 {
            k.if_(first, |k| {
                if !p.is(Slip::StoreNotRead) {
                    k.bulk_wait_read(0);
                }
            });
            k.named_sync(1, MULTIPLIER);
        }
        for (at, four) in sums.chunks_exact(4).enumerate() {
            k.store_vector(row.plus(16 * at as i32), [four[0], four[1], four[2], four[3]]);
        }
        if !p.is(Slip::NoProxyFence) {
            k.fence_async_shared();
        }
        if !p.is(Slip::StoreNotMet) {
            k.named_sync(1, MULTIPLIER);
        }
        k.if_(first, |k| {
            let to = Addr::<Global>::of(p.output).plus((tile * RESULTS) as i32);
            k.bulk_store(to, p.results.at(0), RESULTS, None);
            if !p.is(Slip::StoreNotCommitted) {
                k.bulk_commit();
            }
        });
    }
    k.if_(first, |k| k.bulk_wait_read(0));
}

fn leave(k: &mut Builder, p: &Parts, base: Reg<TensorAddress>, frees: Pred) {
    let free = |k: &mut Builder| {
        k.if_(frees, |k| {
            k.tensor_fence_after_sync();
            k.tensor_dealloc(GROUP, base, COLUMNS);
        });
    };
    if p.is(Slip::FreedTooSoon) {
        free(k);
    }
    k.tensor_fence_before_sync();
    k.named_sync(2, PRODUCER);
    if !p.is(Slip::FreedTooSoon) && !p.is(Slip::NotFreed) {
        free(k);
    }
}

/// e2m1 codes that differ between tiles, rows and places along k.
fn code(matrix: usize, row: usize, k: usize) -> usize {
    (row * 7 + row / 16 + k * 3 + k / 32 + 5 * matrix) % 16
}

fn value(code: usize) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code % 8];
    if code < 8 { magnitude } else { -magnitude }
}

/// Exponents around one, as e4m3: one half, one, two.
fn exponent(matrix: usize, row: usize, block: usize) -> usize {
    6 + (row + row / 8 + row / 32 + block + block / 4 + matrix) % 3
}

/// A stage as it lies in shared memory: rows swizzled, scales in blocks of 128 rows × 4.
fn image(tile: usize, step: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (matrix, rows) in [(tile, 128), (TILES as usize, N as usize)] {
        for at in 0..rows * 128 {
            let (row, piece, byte) = (at / 128, at / 16 % 8, at % 16);
            let k = 256 * step + 2 * ((piece ^ (row % 8)) * 16 + byte);
            bytes.push((code(matrix, row, k) | code(matrix, row, k + 1) << 4) as u8);
        }
    }
    for (matrix, rows) in [(tile, 128), (TILES as usize, N as usize)] {
        for at in 0..2048 {
            let (unit, row, block) = (at / 512, at % 512 / 16 + 32 * (at / 4 % 4), at % 4);
            let exponent = exponent(matrix, row, 16 * step + 4 * unit + block);
            bytes.push(if row < rows { (exponent << 3) as u8 } else { 0 });
        }
    }
    bytes
}

fn product(tile: usize, row: usize, column: usize) -> f32 {
    let element = |matrix, row, k| value(code(matrix, row, k)) * 2f32.powi(exponent(matrix, row, k / 16) as i32 - 7);
    (0..256 * STEPS as usize).map(|k| element(tile, row, k) * element(TILES as usize, column, k)).sum()
}

/// The device with its inputs, the launch, where the tiles will be, and what they should be.
struct Problem {
    gpu: Gpu,
    launch: Invocation,
    output: Buffer,
    expected: Vec<f32>,
}

impl Problem {
    fn new() -> Self {
        let mut gpu = Gpu::new(Limits::b200());
        let (tiles, columns) = (TILES as usize, N as usize);
        let images: Vec<u8> = rounds().flat_map(|(tile, step, ..)| image(tile as usize, step as usize)).collect();
        let (input, output) = (gpu.upload("input", &images), gpu.alloc("output", tiles * RESULTS as usize));
        let value = |at: usize| product(at / columns / 128, at / columns % 128, at % columns);
        let expected = (0..tiles * 128 * columns).map(value).collect();
        let launch = Invocation { grid: [1, 1, 1], args: vec![input.into(), output.into()] };
        Problem { gpu, launch, output, expected }
    }

    /// What is found in a kernel, by these rules.
    fn examine(&self, kernel: &Kernel, rules: Rules) -> Option<Finding> {
        let fresh = || (self.gpu.clone().with_rules(rules), self.launch.clone());
        let verify = |gpu: &Gpu| match gpu.floats(self.output) == self.expected {
            true => Ok(()),
            false => Err("the tiles are wrong".to_string()),
        };
        explore(kernel, &Schedule::several(4), fresh, verify).err()
    }
}

#[test]
fn the_kernel_without_a_slip_is_right_by_either_rule() {
    let problem = Problem::new();
    for rules in [Rules::Letter, Rules::Practice] {
        if let Some(finding) = problem.examine(&kernel(Slip::None), rules) {
            panic!("{finding}");
        }
    }
}

/// Each slip, and what it is found as under the first schedule that shows it.
const SLIPS: [(Slip, &str); 40] = [
    (Slip::BarriersNotPublished, "race"),
    (Slip::AddressNotAwaited, "race"),
    (Slip::PermitGivenUpFirst, "bad operand"),
    (Slip::FullNotAwaited, "uninitialised read"),
    (Slip::FullAskedOnce, "uninitialised read"),
    (Slip::FullOfOtherParity, "uninitialised read"),
    (Slip::TooFewBytes, "uninitialised read"),
    (Slip::TooManyBytes, "deadlock"),
    (Slip::EmptyNotAwaited, "race"),
    (Slip::EmptyOfOtherParity, "deadlock"),
    (Slip::EmptyNotTold, "deadlock"),
    (Slip::EmptyToldByThread, "race"),
    (Slip::ScalesInOnePlace, "race"),
    (Slip::ScalesBesideTheirs, "uninitialised read"),
    (Slip::ScaleNumber, "bad operand"),
    (Slip::SwizzleOfA, "wrong result"),
    (Slip::SwizzleOfB, "misaligned"),
    (Slip::StrideOfA, "uninitialised read"),
    (Slip::NeverCollected, "not collected"),
    (Slip::SumsNeverCleared, "uninitialised read"),
    (Slip::EveryLaneMultiplies, "race"),
    (Slip::OtherThreadCommits, "uninitialised read"),
    (Slip::CommitBeforeLast, "race"),
    (Slip::SumsNotAwaited, "uninitialised read"),
    (Slip::SummedOfOtherParity, "uninitialised read"),
    (Slip::NoFenceBehindSummed, "race"),
    (Slip::LoadNotAwaited, "race"),
    (Slip::DrainedBeforeLoad, "race"),
    (Slip::DrainedBeforeLoadIsOver, "race"),
    (Slip::NoFenceBeforeDrained, "race"),
    (Slip::NoFenceBehindDrained, "race"),
    (Slip::DrainedNotAwaited, "race"),
    (Slip::DrainedOfOtherParity, "deadlock"),
    (Slip::NoProxyFence, "race"),
    (Slip::StoreNotMet, "race"),
    (Slip::StoreNotCommitted, "race"),
    (Slip::StoreNotRead, "race"),
    (Slip::FreedTooSoon, "race"),
    (Slip::FreedByOther, "bad operand"),
    (Slip::NotFreed, "tensor memory leaked"),
];

#[test]
fn every_slip_is_found() {
    let (problem, mut wrong) = (Problem::new(), Vec::new());
    for (slip, name) in SLIPS {
        let kernel = kernel(slip);
        let [letter, practice] = [Rules::Letter, Rules::Practice].map(|rules| problem.examine(&kernel, rules));
        if letter.as_ref().map(Finding::name) != Some(name) {
            wrong.push(format!("{slip:?}: {:?}", letter.as_ref().map(Finding::name)));
        }
        // Published kernels get by with more only where columns are given back, barriers used by copies, scales copied
        // over those before, and tensor memory known to be ready by a barrier alone.
        let granted = matches!(
            slip,
            Slip::FreedByOther
                | Slip::ScalesInOnePlace
                | Slip::BarriersNotPublished
                | Slip::NoFenceBehindSummed
                | Slip::NoFenceBeforeDrained
                | Slip::NoFenceBehindDrained
        );
        if practice.is_none() != granted {
            wrong.push(format!("{slip:?} in practice: {:?}", practice.as_ref().map(Finding::name)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
