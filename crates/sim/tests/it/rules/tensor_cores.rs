//! The tensor cores: whose registers are whose, and what they may read when.

use ptx::descriptor::MatrixLayout;
use ptx::instr::{Accumulate, MatrixElement};
use ptx::{Addr, Bool, F16x2, F32, Global, Kernel, MatrixOperand, Reg, Shared, U32, U64};

use super::{Bench, Kept, caught, rule};

/// What a multiplication kernel does wrong, if anything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slip {
    None,
    NoProxyFence,
    NoBlockBarrier,
    NoRegisterFence,
    ReadBeforeWait,
    WriteFragmentBeforeWait,
    NoWait,
    PartWarp,
    Misaligned,
    Nonuniform,
    OneWarpSkips,
}

/// 128 threads fill a tile of B (64 × 16 halves, in rows of 128 bytes) and multiply registers with it.
fn kernel(slip: Slip) -> Kernel {
    let mut b = Bench::new(128, None);
    let tile = b.k.shared("tile", 1024 + 1024, 1024);
    let base = b.k.shared_address(tile);
    let at = b.k.mul_add(b.thread, 16, base);
    let zero = [0; 4].map(|zero| b.k.variable::<U32>(zero));
    b.k.store_vector(Addr::<Shared>::of(at), zero);
    if slip != Slip::NoProxyFence {
        b.k.fence_async_shared();
    }
    if slip != Slip::NoBlockBarrier {
        b.k.sync_threads();
    }
    let acc: [Reg<F32>; 4] = [0.0; 4].map(|zero| b.k.variable(zero));
    let a: [Reg<F16x2>; 4] = std::array::from_fn(|_| b.k.bits::<F16x2>(0));
    if slip != Slip::NoRegisterFence {
        b.k.wgmma_fence();
    }
    let layout = MatrixLayout::K_MAJOR_128;
    let start = match slip {
        Slip::Misaligned => {
            let one = b.one();
            b.k.mul_add(one, 128, base)
        }
        Slip::Nonuniform => at,
        _ => base,
    };
    let low = b.k.descriptor_low(layout, start);
    let desc = b.k.wgmma_descriptor(layout, low);
    let part = b.k.lt(b.thread, if slip == Slip::PartWarp { 16 } else { 128 });
    let warps = b.k.lt(b.thread, if slip == Slip::OneWarpSkips { 96 } else { 128 });
    let all = b.k.both(part, warps);
    b.k.if_(all, |k| {
        k.wgmma(&acc, MatrixOperand::F16(a), desc, Accumulate::Add);
        k.wgmma_commit();
        match slip {
            Slip::ReadBeforeWait => {
                k.add(acc[0], 1.0);
            }
            Slip::WriteFragmentBeforeWait => k.set(a[2].cast::<U32>(), 1),
            _ => {}
        }
        if slip != Slip::NoWait {
            k.wgmma_wait(0);
        }
    });
    b.finish()
}

fn slip(name: &str, slip: Slip) -> sim::Fault {
    rule(name, |kept| kernel(if kept == Kept::Yes { Slip::None } else { slip }))
}

#[test]
fn what_threads_wrote_needs_a_proxy_fence_before_it_is_multiplied() {
    let fault = slip("race", Slip::NoProxyFence);
    assert!(fault.to_string().contains("fence.proxy.async"), "{fault}");
}

#[test]
fn what_other_warps_wrote_needs_a_barrier_before_it_is_multiplied() {
    for schedule in sim::Schedule::several(8) {
        let fault = super::run(&kernel(Slip::NoBlockBarrier), schedule).expect_err("nothing orders the warps");
        assert!(matches!(fault.kind.name(), "race" | "uninitialised read"), "{fault}");
    }
}

#[test]
fn registers_written_need_a_fence_before_they_are_multiplied() {
    slip("missing wgmma fence", Slip::NoRegisterFence);
}

/// Two multiplications, one after the other, with what comes between them.
fn twice(between: impl Fn(&mut Bench, &[Reg<F32>]), widths: [usize; 2]) -> Kernel {
    let mut b = Bench::new(128, None);
    let tile = b.k.shared("tile", 2048, 1024);
    let base = b.k.shared_address(tile);
    let at = b.k.mul_add(b.thread, 16, base);
    let zero = [0; 4].map(|zero| b.k.variable::<U32>(zero));
    b.k.store_vector(Addr::<Shared>::of(at), zero);
    b.k.fence_async_shared();
    b.k.sync_threads();
    let acc: [Reg<F32>; 8] = [0.0; 8].map(|zero| b.k.variable(zero));
    let layout = MatrixLayout::K_MAJOR_128;
    let low = b.k.descriptor_low(layout, base);
    let desc = b.k.wgmma_descriptor(layout, low);
    let a: [Reg<F16x2>; 4] = std::array::from_fn(|_| b.k.bits::<F16x2>(0));
    for (round, width) in widths.into_iter().enumerate() {
        match round {
            0 => b.k.wgmma_fence(),
            _ => between(&mut b, &acc),
        }
        b.k.wgmma(&acc[..width], MatrixOperand::F16(a), desc, Accumulate::Add);
        b.k.wgmma_commit();
        b.k.wgmma_wait(0);
    }
    b.finish()
}

#[test]
fn an_accumulator_that_was_read_needs_a_fence_before_it_is_added_to() {
    rule("missing wgmma fence", |kept| {
        let between = |b: &mut Bench, acc: &[Reg<F32>]| {
            if kept == Kept::No {
                b.k.wgmma_fence();
            }
            b.k.add(acc[0], 1.0);
            if kept == Kept::Yes {
                b.k.wgmma_fence();
            }
        };
        twice(between, [4, 4])
    });
}

#[test]
fn accumulators_of_another_shape_need_a_fence() {
    rule("missing wgmma fence", |kept| {
        let between = |b: &mut Bench, _: &[Reg<F32>]| {
            if kept == Kept::Yes {
                b.k.wgmma_fence();
            }
        };
        twice(between, [4, 8])
    });
}

#[test]
fn the_first_multiplication_needs_a_fence() {
    rule("missing wgmma fence", |kept| {
        let mut b = Bench::new(128, None);
        let tile = b.k.shared("tile", 8192, 1024);
        let base = b.k.shared_address(tile);
        let at = b.k.mul_add(b.thread, 64, base);
        let zero = [0; 4].map(|zero| b.k.variable::<U32>(zero));
        (0..4).for_each(|i| b.k.store_vector(Addr::<Shared>::of(at).plus(16 * i), zero));
        b.k.fence_async_shared();
        b.k.sync_threads();
        let layout = MatrixLayout::K_MAJOR_128;
        let low = b.k.descriptor_low(layout, base);
        let desc = b.k.wgmma_descriptor(layout, low);
        // Accumulators that nobody has written, to be replaced.
        let acc: [Reg<F32>; 4] = b.k.registers();
        if kept == Kept::Yes {
            b.k.wgmma_fence();
        }
        b.k.wgmma(&acc, MatrixOperand::Shared(MatrixElement::F16, desc), desc, Accumulate::Replace);
        b.k.wgmma_commit();
        b.k.wgmma_wait(0);
        b.finish()
    });
}

#[test]
fn an_accumulator_may_not_be_read_before_the_wait() {
    let fault = slip("register in flight", Slip::ReadBeforeWait);
    assert!(fault.to_string().contains("wgmma.mma_async"), "{fault}");
}

#[test]
fn a_fragment_may_not_be_written_before_the_wait() {
    slip("register in flight", Slip::WriteFragmentBeforeWait);
}

#[test]
fn a_block_may_not_end_while_it_multiplies() {
    slip("unfinished work", Slip::NoWait);
}

#[test]
fn a_multiplication_needs_whole_warps() {
    slip("divergence", Slip::PartWarp);
}

#[test]
fn a_multiplication_needs_all_four_warps() {
    let fault = slip("deadlock", Slip::OneWarpSkips);
    assert!(fault.to_string().contains("multiplication 1"), "{fault}");
}

#[test]
fn a_swizzled_matrix_starts_at_a_multiple_of_its_pattern() {
    slip("misaligned", Slip::Misaligned);
}

#[test]
fn a_descriptor_is_the_same_in_all_lanes() {
    slip("not uniform", Slip::Nonuniform);
}

#[test]
fn a_multiplication_needs_a_whole_warpgroup_to_exist() {
    let mut b = Bench::new(128, None);
    let tile = b.k.shared("tile", 8192, 1024);
    let base = b.k.shared_address(tile);
    let layout = MatrixLayout::K_MAJOR_128;
    let low = b.k.descriptor_low(layout, base);
    let desc = b.k.wgmma_descriptor(layout, low);
    let acc: [Reg<F32>; 4] = [0.0; 4].map(|zero| b.k.variable(zero));
    b.k.wgmma_fence();
    b.k.wgmma(&acc, MatrixOperand::Shared(MatrixElement::F16, desc), desc, Accumulate::Add);
    let mut kernel = b.finish();
    kernel.launch.threads = 64;
    caught("bad operand", &kernel);
}

/// Of the eight rows of B the last was never written: the last column of the product is nobody's to use, the others
/// are.
#[test]
fn a_row_that_nobody_wrote_spoils_its_own_column_of_a_product() {
    let fault = rule("uninitialised read", |kept| {
        let mut b = Bench::new(128, None);
        let tile = b.k.shared("tile", 1024, 1024);
        let base = b.k.shared_address(tile);
        let at = b.k.mul_add(b.thread, 16, base);
        let zero = [0; 4].map(|zero| b.k.variable::<U32>(zero));
        let seven = b.k.lt(b.thread, 7 * 8);
        b.k.when(seven, |k| k.store_vector(Addr::<Shared>::of(at), zero));
        b.k.fence_async_shared();
        b.k.sync_threads();
        let layout = MatrixLayout::K_MAJOR_128;
        let low = b.k.descriptor_low(layout, base);
        let desc = b.k.wgmma_descriptor(layout, low);
        let acc: [Reg<F32>; 4] = [0.0; 4].map(|zero| b.k.variable(zero));
        let a: [Reg<F16x2>; 4] = std::array::from_fn(|_| b.k.bits::<F16x2>(0));
        b.k.wgmma_fence();
        b.k.wgmma(&acc, MatrixOperand::F16(a), desc, Accumulate::Add);
        b.k.wgmma_commit();
        b.k.wgmma_wait(0);
        // Row 7 begins with its last two pieces, as swizzled. A thread's first sum is of column 2 · (lane % 4), its
        // second of the next.
        let to = b.k.mul_wide_add(b.thread, 4, b.output);
        b.k.store(Addr::<Global>::of(to), acc[usize::from(kept == Kept::No)]);
        b.finish()
    });
    assert!(fault.to_string().contains("tile+992"), "{fault}");
}

/// A product of zeros whose accumulators nobody has written, under a predicate that says whether to add to them; some
/// bits of B's descriptor are turned.
fn unwritten_sums(adds: bool, turned: u32) -> Kernel {
    let mut b = Bench::new(128, None);
    let tile = b.k.shared("tile", 2048, 1024);
    let (base, one) = (b.k.shared_address(tile), b.one());
    let (at, zero) = (b.k.mul_add(b.thread, 16, base), [0; 4].map(|zero| b.k.variable::<U32>(zero)));
    b.k.store_vector(Addr::<Shared>::of(at), zero);
    b.k.fence_async_shared();
    b.k.sync_threads();
    let a: [Reg<F16x2>; 4] = std::array::from_fn(|_| b.k.bits::<F16x2>(0));
    let sums: [Reg<F32>; 4] = b.k.registers();
    let layout = MatrixLayout::K_MAJOR_128;
    let low = b.k.descriptor_low(layout, base);
    let desc = b.k.wgmma_descriptor(layout, low).cast::<U64>();
    let turned = b.k.mul_wide(one, turned);
    let desc = b.k.xor(desc, turned).cast();
    let accumulate = b.k.bits::<Bool>(adds.into());
    b.k.wgmma_fence();
    b.k.wgmma(&sums, MatrixOperand::F16(a), desc, Accumulate::If(accumulate.id()));
    b.k.wgmma_commit();
    b.k.wgmma_wait(0);
    let to = b.k.mul_wide_add(b.thread, 4, b.output);
    b.k.store(Addr::<Global>::of(to), sums[0]);
    b.finish()
}

#[test]
fn accumulators_that_are_not_added_to_may_hold_anything() {
    rule("undefined register", |kept| unwritten_sums(kept == Kept::No, 0));
}

#[test]
fn between_its_fields_a_descriptor_is_zero() {
    for bit in [14, 15, 30, 31] {
        rule("bad operand", |kept| unwritten_sums(false, if kept == Kept::Yes { 0 } else { 1 << bit }));
    }
}
