//! Limits of the device, of registers and of launches.

use ptx::instr::{Instr, LoadOrder, Semantics, StoreOrder, Tcgen05};
use ptx::tensor_map::{Element, TensorMap};
use ptx::{
    Addr, Builder, CtaGroup, Global, LaunchBounds as Shape, RegisterChange, Scope, Shared, SpecialRegister, Target, U32,
};
use sim::{Arg, FaultKind, Gpu, Invocation, Limits, Schedule};

use super::{Bench, Kept, caught, device, rule, rule_of_the_letter};

#[test]
fn a_register_must_be_written_before_what_comes_of_it_is_stored() {
    let fault = rule("undefined register", |kept| {
        let mut b = Bench::new(32, None);
        let word = b.k.register::<U32>();
        let some = b.k.lt(b.thread, if kept == Kept::Yes { 32 } else { 31 });
        b.k.when(some, |k| k.set(word, 1));
        let sum = b.k.add(word, 1);
        let to = b.k.mul_wide_add(b.thread, 4, b.output);
        b.k.store(Addr::<Global>::of(to), sum);
        b.finish()
    });
    assert!(matches!(fault.kind, FaultKind::UndefinedRegister { lanes: 0x8000_0000, .. }), "{fault}");
}

#[test]
fn blocks_that_a_multiprocessor_is_to_hold_fit_there() {
    let launched = |bytes: u32| {
        let shape = Shape { threads: 128, cluster: None, min_blocks: Some(2) };
        let mut k = Builder::new("resident", Target::Sm100a, shape);
        k.shared("tile", bytes, 16);
        let kernel = k.finish().expect("the kernel is well formed");
        Gpu::new(Limits::b200()).run(&kernel, &Invocation { grid: [2, 1, 1], args: vec![] }, Schedule::Earliest)
    };
    // Of 228 KB a block costs one besides its own.
    assert!(launched(113 << 10).is_ok());
    let fault = launched((113 << 10) + 16).expect_err("a multiprocessor holds one of these");
    assert!(matches!(fault.kind, FaultKind::OverLimit { asked: 2, limit: 1, .. }), "{fault}");
}

#[test]
fn registers_come_from_those_that_others_gave_back() {
    let fault = rule("deadlock", |kept| {
        let mut b = Bench::new(384, None);
        let producer = b.k.lt(b.thread, 128);
        b.k.if_else(
            producer,
            |k| {
                if kept == Kept::Yes {
                    k.set_max_registers(RegisterChange::Decrease, 24);
                }
            },
            |k| k.set_max_registers(RegisterChange::Increase, 240),
        );
        b.finish()
    });
    assert!(fault.to_string().contains("240 registers per thread"), "{fault}");
}

#[test]
fn a_budget_is_raised_to_no_less_than_it_is() {
    rule("bad operand", |kept| {
        let mut b = Bench::new(384, None);
        let producer = b.k.lt(b.thread, 128);
        b.k.if_else(
            producer,
            |k| k.set_max_registers(RegisterChange::Decrease, 24),
            |k| {
                k.set_max_registers(RegisterChange::Increase, 240);
                k.named_sync(1, 256);
                k.set_max_registers(RegisterChange::Increase, if kept == Kept::Yes { 240 } else { 232 });
            },
        );
        b.finish()
    });
}

#[test]
fn the_warps_of_a_warpgroup_meet_between_two_changes_of_their_registers() {
    rule_of_the_letter("bad operand", |kept| {
        let mut b = Bench::new(128, None);
        b.k.set_max_registers(RegisterChange::Decrease, 40);
        if kept == Kept::Yes {
            b.k.named_sync(1, 128);
        }
        b.k.set_max_registers(RegisterChange::Decrease, 24);
        b.finish()
    });
}

#[test]
fn the_warps_of_a_warpgroup_share_one_register_budget() {
    rule("not uniform", |kept| {
        let mut b = Bench::new(128, None);
        let some = b.k.lt(b.thread, if kept == Kept::Yes { 128 } else { 64 });
        b.k.if_(some, |k| k.set_max_registers(RegisterChange::Decrease, 40));
        b.finish()
    });
}

#[test]
fn shared_memory_has_a_limit() {
    let mut b = Bench::new(32, None);
    b.k.shared("much", 4096, 16);
    let kernel = b.finish();
    let run = |shared_bytes: u32| {
        let mut gpu = Gpu::new(Limits { shared_bytes, ..Limits::h200() });
        let (input, output) = (gpu.alloc("input", 16), gpu.alloc("output", 16));
        let launch = Invocation { grid: [1, 1, 1], args: vec![input.into(), output.into()] };
        gpu.run(&kernel, &launch, Schedule::Earliest)
    };
    assert!(run(4096).is_ok());
    assert_eq!(run(4095).expect_err("one byte too few").kind.name(), "over limit");
}

#[test]
fn a_kernel_that_runs_must_also_be_one_that_a_gpu_takes() {
    rule("illegal kernel", |kept| {
        let mut b = Bench::on(Target::Sm100a, 32, Some([2, 1, 1]));
        b.k.tensor_relinquish(CtaGroup::One);
        let mut kernel = b.finish();
        if kept == Kept::No {
            // All tcgen05 instructions of a kernel are of one group.
            let another = Tcgen05::RelinquishAllocPermit { group: CtaGroup::Two }.into();
            let instr = Instr { op: another, ..kernel.body[kernel.body.len() - 2].clone() };
            kernel.body.insert(kernel.body.len() - 1, instr);
        }
        kernel
    });
}

#[test]
fn a_trap_is_reported() {
    let mut b = Bench::new(32, None);
    b.k.trap();
    caught("trap", &b.finish());
}

#[test]
fn an_argument_must_suit_its_parameter() {
    let kernel = Bench::new(32, None).finish();
    let (mut gpu, mut args) = device();
    args[1] = Arg::U32(3);
    let fault = gpu.run(&kernel, &Invocation { grid: [1, 1, 1], args }, Schedule::Earliest).expect_err("a bad launch");
    assert!(fault.to_string().contains("parameter output"), "{fault}");
}

/// Copies a box of eight rows of 64 numbers to this byte of shared memory, and gives them back as they came to lie
/// there.
fn boxed(target: Target, offset: u32, group: Option<CtaGroup>) -> Result<Vec<u8>, Box<sim::Fault>> {
    boxed_from(target, 0, offset, group)
}

/// The same from a column of the tensor on.
fn boxed_from(target: Target, column: i32, offset: u32, group: Option<CtaGroup>) -> Result<Vec<u8>, Box<sim::Fault>> {
    let mut k = Builder::new("boxes", target, Shape { threads: 32, cluster: None, min_blocks: None });
    let (map, out) = (k.tensor_map("map"), k.pointer("out"));
    let tile = k.shared("tile", 2048, 1024);
    let bars = k.barriers("bars", 1);
    let map = k.tensor_map_address(map);
    let thread = k.special(SpecialRegister::TidX);
    let first = k.eq(thread, 0);
    k.if_(first, |k| {
        k.barrier_init(bars.at(0), 1);
        k.fence_barrier_init();
        k.arrive_expecting(bars.at(0), 1024);
        k.tensor_load(tile.at(offset), map, &[column.into(), 0.into()], bars.at(0), Default::default());
        k.wait(bars.at(0), 0);
        k.bulk_store(Addr::of(out), tile.at(offset), 1024, None);
        k.bulk_commit();
        k.bulk_wait(0);
    });
    let mut kernel = k.finish().expect("well formed");
    for instr in &mut kernel.body {
        if let ptx::Op::Copy(ptx::instr::AsyncCopy::TensorLoad { cta_group, .. }) = &mut instr.op {
            *cta_group = group;
        }
    }
    run_boxes(&kernel, 1, Schedule::Latest)
}

/// Runs a kernel of so many blocks, each with eight rows of numbers, and gives what it wrote.
fn run_boxes(kernel: &ptx::Kernel, blocks: u32, schedule: Schedule) -> Result<Vec<u8>, Box<sim::Fault>> {
    let mut gpu = Gpu::new(Limits::h200());
    let bytes = 1024 * blocks as usize;
    let numbers: Vec<u8> = (0..bytes).map(|i| (i / 16) as u8).collect();
    let (data, out) = (gpu.upload("data", &numbers), gpu.alloc("out", bytes));
    let map = TensorMap {
        element: Element::U16,
        address: data.address,
        dims: vec![64, 8 * u64::from(blocks)],
        strides: vec![128],
        tile: vec![64, 8],
        swizzle: ptx::descriptor::Swizzle::B128,
    };
    let launch = Invocation { grid: [blocks, 1, 1], args: vec![map.into(), out.into()] };
    gpu.run(kernel, &launch, schedule)?;
    Ok(gpu.download(out).expect("all was written").to_vec())
}

/// Each block of a pair brings rows of its own, and the first one's barrier counts all of them.
fn at_the_leaders_barrier(group: Option<CtaGroup>, expected: u32, waits: bool) -> ptx::Kernel {
    let mut k = Builder::new("pair", Target::Sm100a, Shape { threads: 32, cluster: Some([2, 1, 1]), min_blocks: None });
    let (map, out) = (k.tensor_map("map"), k.pointer("out"));
    let (tile, bars) = (k.shared("tile", 1024, 1024), k.barriers("bars", 1));
    let map = k.tensor_map_address(map);
    let (thread, rank) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::ClusterCtaRank));
    let (lead, first) = (k.eq(thread, 0), k.eq(rank, 0));
    let leader = k.both(lead, first);
    k.if_(lead, |k| {
        k.barrier_init(bars.at(0), 1);
        k.fence_barrier_init();
    });
    k.when(leader, |k| k.arrive_expecting(bars.at(0), expected));
    k.cluster_arrive(Semantics::Ordered, true);
    k.cluster_wait(true);
    let own = k.shared_address(bars.region());
    let bar = k.map_shared(own, 0u32);
    let row = k.mul(rank, 8);
    k.when(lead, |k| {
        let at = [0.into(), row.cast().into()];
        k.tensor_load(tile.at(0), map, &at, Addr::<Shared>::of(bar), Default::default());
    });
    if waits {
        k.if_(leader, |k| k.wait_at(bars.at(0), 0, Scope::Cluster));
    }
    k.cluster_arrive(Semantics::Ordered, true);
    k.cluster_wait(true);
    k.if_(lead, |k| {
        let to = k.mul_wide_add(rank, 1024, out);
        k.bulk_store(Addr::of(to), tile.at(0), 1024, None);
        k.bulk_commit();
        k.bulk_wait(0);
    });
    let mut kernel = k.finish().expect("well formed");
    for instr in &mut kernel.body {
        if let ptx::Op::Copy(ptx::instr::AsyncCopy::TensorLoad { cta_group, .. }) = &mut instr.op {
            *cta_group = group;
        }
    }
    kernel
}

#[test]
fn copies_of_a_pair_are_counted_by_the_first_blocks_barrier() {
    let names = |kernel: ptx::Kernel| -> Vec<&'static str> {
        let faults = Schedule::several(6).into_iter().filter_map(|schedule| run_boxes(&kernel, 2, schedule).err());
        faults.map(|fault| fault.kind.name()).collect()
    };
    let pair = Some(CtaGroup::Two);
    let right = at_the_leaders_barrier(pair, 2048, true);
    for schedule in Schedule::several(6) {
        let bytes = run_boxes(&right, 2, schedule).unwrap_or_else(|fault| panic!("{fault}"));
        let pieces = bytes.chunks_exact(16).map(|piece| u32::from(piece[0]));
        assert!(pieces.eq((0..128).map(|at| at ^ (at / 8 % 8))), "{schedule}");
    }
    assert_eq!(names(at_the_leaders_barrier(None, 2048, true)), ["bad operand"; 8]);
    assert_eq!(names(at_the_leaders_barrier(pair, 1024, true)).len(), 8, "half of the bytes are not waited for");
    assert_eq!(names(at_the_leaders_barrier(pair, 2048, false)), ["race"; 8]);
}

#[test]
fn a_box_lies_at_a_multiple_of_128_bytes_and_is_swizzled_by_its_address() {
    let pieces = |offset| {
        let bytes = boxed(Target::Sm90a, offset, None).unwrap_or_else(|fault| panic!("{fault}"));
        bytes.chunks_exact(16).map(|piece| u32::from(piece[0])).collect::<Vec<u32>>()
    };
    for offset in [0, 128, 384] {
        let expected = |at: u32| at ^ ((offset / 128 + at / 8) % 8);
        assert_eq!(pieces(offset), (0..64).map(expected).collect::<Vec<u32>>());
    }
}

/// To an H200 a box that begins at another byte is an illegal instruction. One that begins before the tensor is filled
/// up with zeros.
#[test]
fn a_box_begins_at_a_multiple_of_16_bytes_of_its_rows() {
    for column in [-8, 0, 8, 56] {
        boxed_from(Target::Sm90a, column, 0, None).unwrap_or_else(|fault| panic!("{fault}"));
    }
    for column in [-4, 1, 4, 12] {
        let fault = boxed_from(Target::Sm90a, column, 0, None).expect_err("another byte");
        assert_eq!(fault.kind.name(), "misaligned", "{fault}");
    }
}

#[test]
fn a_copy_for_one_block_of_a_pair_is_a_copy() {
    let [plain, alone] = [None, Some(CtaGroup::One)].map(|group| boxed(Target::Sm100a, 0, group));
    assert_eq!(plain.expect("nothing wrong"), alone.expect("nothing wrong"));
}

#[test]
fn what_the_preceding_grid_writes_is_touched_only_after_waiting_for_it() {
    let run = |waits: bool| {
        let mut b = Bench::new(64, None);
        let first = b.k.lt(b.thread, 32);
        if waits {
            b.k.if_(first, |k| k.grid_dependency_wait());
            b.k.sync_threads();
        }
        b.k.load::<U32, _>(Addr::<Global>::of(b.input));
        let mut gpu = Gpu::new(Limits::h200());
        let (input, output) = (gpu.upload("input", &[1; 64]), gpu.alloc("output", 64));
        gpu.await_predecessor(input);
        let launch = Invocation { grid: [1, 1, 1], args: vec![input.into(), output.into()] };
        gpu.run(&b.finish(), &launch, Schedule::Random(1))
    };
    assert!(run(true).is_ok());
    assert_eq!(run(false).expect_err("too early").kind.name(), "before grid dependency");
}

/// Four blocks on two multiprocessors, one after the other by a flag in global memory.
#[test]
fn blocks_start_in_no_particular_order() {
    let run = |by_ticket: bool, schedule: Schedule| {
        let mut b = Bench::new(32, None);
        let lead = b.k.eq(b.thread, 0);
        let block = b.k.special(SpecialRegister::CtaidX);
        // The input is full of ones: its second word is the flag, its third counts blocks.
        let (flag, counter) = (Addr::<Global>::of(b.input).plus(4), Addr::<Global>::of(b.input).plus(8));
        b.k.if_(lead, |k| {
            let order = match by_ticket {
                true => k.atomic_add::<U32, _>(Scope::Gpu, counter, 1),
                false => k.add(block, 1),
            };
            k.repeat_while(|k| {
                let [seen] = k.load_as::<U32, _, 1>(LoadOrder::Acquire(Scope::Gpu), flag);
                k.ne(seen, order)
            });
            let next = k.add(order, 1);
            k.store_as(StoreOrder::Release(Scope::Gpu), flag, [next]);
        });
        let mut gpu = Gpu::new(Limits { multiprocessors: 2, ..Limits::h200() });
        let ones: Vec<u8> = (0..16).flat_map(|_| 1u32.to_le_bytes()).collect();
        let (input, output) = (gpu.upload("input", &ones), gpu.alloc("output", 64));
        let launch = Invocation { grid: [4, 1, 1], args: vec![input.into(), output.into()] };
        gpu.run(&b.finish(), &launch, schedule)
    };
    for schedule in Schedule::several(8) {
        assert!(run(true, schedule).is_ok(), "{schedule}");
    }
    let found: Vec<_> = Schedule::several(8).into_iter().filter_map(|schedule| run(false, schedule).err()).collect();
    assert!(found.iter().any(|fault| fault.kind.name() == "no progress"), "{found:?}");
}

/// A kernel that may let the next one begin at once, waits for the one before or does not, and does something with the
/// output.
fn link(waits: bool, body: impl Fn(&mut Bench, Addr<Global>)) -> ptx::Kernel {
    linked(true, waits, body)
}

/// The same, where the next one may begin at once or when this one has waited.
fn linked(hasty: bool, waits: bool, body: impl Fn(&mut Bench, Addr<Global>)) -> ptx::Kernel {
    let mut b = Bench::new(32, None);
    if hasty {
        b.k.launch_dependents();
    }
    if waits {
        b.k.grid_dependency_wait();
    }
    if !hasty {
        b.k.launch_dependents();
    }
    let at = b.k.mul_wide_add(b.thread, 4, b.output);
    body(&mut b, Addr::of(at));
    b.finish()
}

fn chain(kernels: &[&ptx::Kernel], schedule: Schedule) -> Result<(), Box<sim::Fault>> {
    let (mut gpu, args) = device();
    let launch = Invocation { grid: [1, 1, 1], args };
    let sequence: Vec<_> = kernels.iter().map(|kernel| (*kernel, &launch)).collect();
    gpu.run_sequence(&sequence, schedule).map(drop)
}

#[test]
fn a_grid_waits_for_the_one_that_it_overlaps() {
    let write = |b: &mut Bench, at| b.k.store(at, b.thread);
    let read = |b: &mut Bench, at: Addr<Global>| {
        b.k.load::<U32, _>(at);
    };
    let (writer, rewriter) = (link(true, write), link(false, write));
    for schedule in Schedule::several(2) {
        chain(&[&writer, &link(true, read)], schedule).unwrap_or_else(|fault| panic!("{fault}"));
        let fault = chain(&[&writer, &link(false, read)], schedule).expect_err("too early");
        assert!(fault.kind.name() == "race" && fault.to_string().contains("output+0"), "{fault}");
        // What the one before still reads may not be overwritten, either.
        let fault = chain(&[&writer, &link(true, read), &rewriter], schedule).expect_err("too early");
        assert_eq!(fault.kind.name(), "race", "{fault}");
    }
}

#[test]
fn a_wait_reaches_beyond_the_predecessor_only_if_that_has_waited() {
    let write = |b: &mut Bench, at| b.k.store(at, b.thread);
    let read = |b: &mut Bench, at: Addr<Global>| {
        b.k.load::<U32, _>(at);
    };
    let (writer, reader) = (link(true, write), link(true, read));
    let between = |waits| link(waits, |_, _| {});
    for schedule in Schedule::several(2) {
        chain(&[&writer, &between(true), &reader], schedule).unwrap_or_else(|fault| panic!("{fault}"));
        let fault = chain(&[&writer, &between(false), &reader], schedule).expect_err("the writer may still run");
        assert_eq!(fault.kind.name(), "race", "{fault}");
    }
}

#[test]
fn a_grid_that_waits_before_it_lets_the_next_one_begin_tells_it_of_those_before() {
    let write = |b: &mut Bench, at| b.k.store(at, b.thread);
    let read = |b: &mut Bench, at: Addr<Global>| {
        b.k.load::<U32, _>(at);
    };
    let (writer, hurried) = (link(true, write), link(false, read));
    let between = |hasty, waits| linked(hasty, waits, |_, _| {});
    for schedule in Schedule::several(2) {
        chain(&[&writer, &between(false, true), &hurried], schedule).unwrap_or_else(|fault| panic!("{fault}"));
        // Who begins behind one that knew of them knows of them, too.
        let chained = [&writer, &between(false, true), &between(true, true), &hurried];
        chain(&chained, schedule).unwrap_or_else(|fault| panic!("{fault}"));
        for (hasty, waits) in [(true, true), (false, false)] {
            let fault = chain(&[&writer, &between(hasty, waits), &hurried], schedule).expect_err("too early");
            assert_eq!(fault.kind.name(), "race", "{fault}");
        }
        // Of the one just before, nothing is known without a wait.
        let fault = chain(&[&writer, &linked(false, true, write), &hurried], schedule).expect_err("too early");
        assert_eq!(fault.kind.name(), "race", "{fault}");
    }
}
