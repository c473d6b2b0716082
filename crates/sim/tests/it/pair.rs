//! A pair of blocks multiplies one tile of 256 rows: each has its half of A, of B and of the accumulators.

use ptx::descriptor::{BlockScaledShape, MatrixLayout, Swizzle};
use ptx::instr::{Collector, Semantics};
use ptx::{
    Addr, Builder, CtaGroup, Global, Kernel, LaunchBounds as Shape, Multiply, Scope, Shared, SharedRegion,
    SpecialRegister, Target, TensorAddress, U16, U32,
};
use sim::{Fault, Gpu, Invocation, Limits, Rules, Schedule};

const COLUMNS: u32 = 32;
const GROUP: CtaGroup = CtaGroup::Two;

/// What the kernel does wrong, if anything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slip {
    None,
    /// The first block does not know that the second has its operands ready.
    NoMeeting,
    /// Only the first block is told of the end.
    CommitToOne,
    /// Only the second one is, or a third.
    CommitTo(u16),
    /// The blocks begin without having met.
    NoGreeting,
    /// The second block leaves without having waited for the multiplication that reads its memory.
    SecondLeaves,
    /// A block gives its columns back while the other may still read.
    NoFarewell,
    /// The second block gives the work, which is no slip.
    SecondLeads,
}

fn meet(k: &mut Builder) {
    k.tensor_fence_before_sync();
    k.cluster_arrive(Semantics::Ordered, true);
    k.cluster_wait(true);
    k.tensor_fence_after_sync();
}

/// Each thread of the first `rows` fills its row of 128 bytes with one code, twice in a byte.
fn fill(k: &mut Builder, region: SharedRegion, rows: u32, code: ptx::Reg<U32>) {
    let (thread, base) = (k.special(SpecialRegister::TidX), k.shared_address(region));
    let word = k.mul(code, 0x1111_1111);
    let at = Addr::<Shared>::of(k.mul_add(thread, 128, base));
    let inside = k.lt(thread, rows);
    k.if_(inside, |k| (0..8).for_each(|piece| k.store_vector(at.plus(16 * piece), [word; 4])));
}

fn kernel(slip: Slip) -> Kernel {
    let shape = Shape { threads: 128, cluster: Some([2, 1, 1]), min_blocks: None };
    let mut k = Builder::new("pair", Target::Sm100a, shape);
    let out = k.pointer("out");
    let (a, b) = (k.shared("a", 128 * 128, 1024), k.shared("b", 16 * 128, 1024));
    let (factors, address) = (k.shared("factors", 512, 128), k.shared("address", 4, 4));
    let bars = k.barriers("bars", 1);
    let (thread, rank) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::ClusterCtaRank));
    let (first, first_warp) = (k.eq(thread, 0), k.lt(thread, 32));
    // Row r of A, over both blocks, is all of code r / 32; column n of B of code n / 4.
    let row = k.mul_add(rank, 128, thread);
    let (code, column) = (k.shr(row, 5), k.mul_add(rank, 16, thread));
    fill(&mut k, a, 128, code);
    let code = k.shr(column, 2);
    let code = k.and(code, 7);
    fill(&mut k, b, 16, code);
    let (base, ones) = (k.shared_address(factors), k.variable::<U32>(0x3838_3838));
    let at = Addr::<Shared>::of(k.mul_add(thread, 16, base));
    k.when(first_warp, |k| k.store_vector(at, [ones; 4]));
    k.if_(first, |k| {
        k.barrier_init(bars.at(0), 1);
        k.fence_barrier_init();
    });
    if slip != Slip::NoGreeting {
        k.cluster_arrive(Semantics::Relaxed, true);
        k.cluster_wait(true);
    }
    k.if_(first_warp, |k| k.tensor_alloc(GROUP, address.at(0), 64));
    k.fence_async_shared();
    k.tensor_fence_before_sync();
    k.sync_threads();
    k.tensor_fence_after_sync();
    match slip {
        Slip::NoMeeting => {
            k.cluster_arrive(Semantics::Relaxed, true);
            k.cluster_wait(true);
        }
        Slip::NoGreeting => {}
        _ => meet(&mut k),
    }
    let base = k.load::<TensorAddress, Shared>(address.at(0));
    let leads = k.eq(rank, u32::from(slip == Slip::SecondLeads));
    let issues = k.both(first, leads);
    k.if_(issues, |k| {
        let rows = MatrixLayout::K_MAJOR_128;
        let packed = MatrixLayout { swizzle: Swizzle::None, leading: 16, stride: 128 };
        let [a, b] = [a, b].map(|region| {
            let start = k.shared_address(region);
            let low = k.descriptor_low(rows, start);
            k.tcgen05_descriptor(rows, low)
        });
        let start = k.shared_address(factors);
        let low = k.descriptor_low(packed, start);
        let source = k.tcgen05_descriptor(packed, low);
        let [scale_a, scale_b] = [32, 36].map(|column| k.add(base.cast::<U32>(), column).cast::<TensorAddress>());
        k.tensor_copy_scales(GROUP, scale_a, source);
        k.tensor_copy_scales(GROUP, scale_b, source);
        let shape = BlockScaledShape { m: 256, n: COLUMNS, scale_a_id: 0, scale_b_id: 0 };
        let (shape, accumulate) = (k.block_scaled_shape(shape), k.bits(0));
        let (group, d, collector) = (GROUP, base, Collector::Discard);
        k.tensor_multiply(Multiply { group, d, a, b, shape, scale_a, scale_b, accumulate, collector });
        let mask = k.variable::<U16>(if let Slip::CommitTo(mask) = slip { mask } else { 3 });
        k.tensor_commit(GROUP, bars.at(0), (slip != Slip::CommitToOne).then_some(mask));
    });
    if slip == Slip::SecondLeaves {
        let second = k.eq(rank, 1);
        k.if_(second, |k| {
            k.if_(first_warp, |k| k.tensor_dealloc(GROUP, base, 64));
            k.exit();
        });
    }
    k.wait_at(bars.at(0), 0, Scope::Cluster);
    k.tensor_fence_after_sync();
    let warp = k.shr(thread, 5);
    let lanes = k.shl(warp, 21);
    let mine = k.add(base.cast::<U32>(), lanes).cast::<TensorAddress>();
    let values = k.tensor_load_columns::<{ COLUMNS as usize }>(mine);
    k.tensor_wait_load();
    let to = k.mul_wide_add(row, 4 * COLUMNS, out);
    for (i, value) in values.into_iter().enumerate() {
        k.store(Addr::<Global>::of(to).plus(4 * i as i32), value);
    }
    if slip == Slip::NoFarewell {
        k.tensor_fence_before_sync();
        k.sync_threads();
        k.tensor_fence_after_sync();
    } else {
        meet(&mut k);
    }
    k.if_(first_warp, |k| k.tensor_dealloc(GROUP, base, 64));
    k.finish().expect("the kernel is well formed")
}

fn run(slip: Slip, schedule: Schedule) -> Result<Vec<f32>, Box<Fault>> {
    let mut gpu = Gpu::new(Limits::b200()).with_rules(Rules::Letter);
    let out = gpu.alloc("out", 256 * COLUMNS as usize * 4);
    gpu.run(&kernel(slip), &Invocation { grid: [2, 1, 1], args: vec![out.into()] }, schedule)?;
    Ok(gpu.floats(out))
}

/// Either block may issue, says the ISA (*Issue Granularity*).
#[test]
fn a_pair_multiplies_one_tile_under_every_schedule() {
    let value = |code: usize| [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code];
    let expected: Vec<f32> = (0..256 * 32).map(|i| 64.0 * value(i / 32 / 32) * value(i % 32 / 4)).collect();
    for schedule in Schedule::several(6) {
        for who in [Slip::None, Slip::SecondLeads] {
            let found = run(who, schedule).unwrap_or_else(|fault| panic!("{fault}"));
            assert!(found == expected, "{schedule}");
        }
    }
}

/// What is found under some schedule.
fn found(slip: Slip) -> Vec<&'static str> {
    Schedule::several(6).into_iter().filter_map(|schedule| run(slip, schedule).err()).map(|f| f.kind.name()).collect()
}

#[test]
fn the_other_blocks_operands_must_be_known_to_be_there() {
    let found = found(Slip::NoMeeting);
    assert!(found.len() == 8 && found.iter().all(|name| *name == "race"), "{found:?}");
}

#[test]
fn both_blocks_are_told_of_the_end() {
    assert!(found(Slip::CommitToOne).contains(&"deadlock"));
    assert!(found(Slip::CommitTo(2)).contains(&"deadlock"));
    assert!(found(Slip::CommitTo(7)).contains(&"bad operand"));
}

#[test]
fn the_other_block_must_have_begun_and_still_be_there() {
    let greeting = found(Slip::NoGreeting);
    assert!(greeting.len() == 8 && greeting.iter().all(|name| *name == "block not started"), "{greeting:?}");
    let leaving = found(Slip::SecondLeaves);
    assert!(leaving.len() == 8, "{leaving:?}");
}

#[test]
fn a_pair_gives_its_columns_back_when_both_are_done() {
    assert!(found(Slip::NoFarewell).contains(&"race"));
}
