//! Tensor memory: whose it is, and what is in it.

use ptx::descriptor::{BlockScaledShape, HalvesShape, MatrixLayout, Swizzle};
use ptx::instr::{Barrier, Collector, Semantics};
use ptx::{
    Addr, Barriers, Bool, Builder, CopyOptions, CtaGroup, Global, Kernel, Multiply, MultiplyHalves, Operand, Reg,
    Scope, Shared, SharedRegion, Space, SpecialRegister, Target, Tcgen05Matrix, TensorAddress, U32,
};

use sim::{Gpu, Invocation, Limits, Rules, Schedule};

use super::{Bench, Kept, caught, lawful, rule, rule_of_the_letter, run_by};

const COLUMNS: u32 = 32;

/// A kernel of one warpgroup for Blackwell, and where its first warp leaves the address of what it allocates.
fn bench() -> (Bench, ptx::SharedRegion) {
    let mut b = Bench::on(Target::Sm100a, 128, None);
    let address = b.k.shared("address", 4, 4);
    (b, address)
}

/// The first warp allocates some columns, which all threads then know.
fn allocate(b: &mut Bench, address: ptx::SharedRegion) -> ptx::Reg<TensorAddress> {
    let first = b.k.lt(b.thread, 32);
    b.k.if_(first, |k| k.tensor_alloc(CtaGroup::One, address.at(0), COLUMNS));
    b.k.tensor_fence_before_sync();
    b.k.sync_threads();
    b.k.tensor_fence_after_sync();
    b.k.load::<TensorAddress, Shared>(address.at(0))
}

/// Every thread is done with the columns, and the first warp gives them back.
fn free(b: &mut Bench, base: ptx::Reg<TensorAddress>) {
    b.k.tensor_fence_before_sync();
    b.k.sync_threads();
    b.k.tensor_fence_after_sync();
    let first = b.k.lt(b.thread, 32);
    b.k.if_(first, |k| k.tensor_dealloc(CtaGroup::One, base, COLUMNS));
    b.k.sync_threads();
}

/// Each warp's own lanes of the columns.
fn mine(b: &mut Bench, base: ptx::Reg<TensorAddress>) -> ptx::Reg<TensorAddress> {
    let warp = b.k.shr(b.thread, 5);
    let lanes = b.k.shl(warp, 21);
    b.k.add(base.cast::<U32>(), lanes).cast()
}

fn store(b: &mut Bench, to: ptx::Reg<TensorAddress>) {
    let value = b.k.variable::<U32>(7);
    b.k.tensor_store_columns(to, &[value]);
    b.k.tensor_wait_store();
}

#[test]
fn columns_allocated_anew_hold_nothing_of_their_former_owners() {
    rule("uninitialised read", |kept| {
        let (mut b, address) = bench();
        let base = allocate(&mut b, address);
        let at = mine(&mut b, base);
        store(&mut b, at);
        free(&mut b, base);
        let base = allocate(&mut b, address);
        let at = mine(&mut b, base);
        if kept == Kept::Yes {
            store(&mut b, at);
        }
        let [value] = b.k.tensor_load_columns::<1>(at);
        b.k.tensor_wait_load();
        let to = b.k.mul_wide_add(b.thread, 4, b.output);
        b.k.store(Addr::<Global>::of(to), value);
        free(&mut b, base);
        b.finish()
    });
}

/// What is done between a warp's last access to columns and their return.
#[derive(Clone, Copy)]
struct Return {
    /// Whether stores are waited for.
    waits: bool,
    before: bool,
    after: bool,
    /// The warp that does it; the first has allocated them.
    warp: u32,
    /// Whether accesses go to the columns that were allocated, or to those from 0 on.
    named: bool,
}

const RETURN: Return = Return { waits: true, before: true, after: true, warp: 0, named: true };

/// Every warp stores to its lanes, and one gives the columns back.
fn give_back(how: Return) -> Kernel {
    let (mut b, address) = bench();
    let base = allocate(&mut b, address);
    let first_column = b.k.variable::<U32>(0).cast::<TensorAddress>();
    let at = mine(&mut b, if how.named { base } else { first_column });
    let value = b.k.variable::<U32>(7);
    b.k.tensor_store_columns(at, &[value]);
    if how.waits {
        b.k.tensor_wait_store();
    }
    if how.before {
        b.k.tensor_fence_before_sync();
    }
    b.k.sync_threads();
    let warp = b.k.shr(b.thread, 5);
    let frees = b.k.eq(warp, how.warp);
    b.k.if_(frees, |k| {
        if how.after {
            k.tensor_fence_after_sync();
        }
        k.tensor_dealloc(CtaGroup::One, base, COLUMNS);
    });
    b.finish()
}

#[test]
fn columns_are_given_back_when_all_accesses_to_them_are_over() {
    rule("race", |kept| give_back(Return { waits: kept == Kept::Yes, ..RETURN }));
}

#[test]
fn columns_are_given_back_between_fences_as_any_access_is() {
    rule_of_the_letter("race", |kept| give_back(Return { before: kept == Kept::Yes, ..RETURN }));
    rule_of_the_letter("race", |kept| give_back(Return { after: kept == Kept::Yes, ..RETURN }));
}

/// Blocks of a grid that allocate columns, use them and give them back: all at once, or some, and while they have those
/// some more.
fn shares(steps: &[u32], returns: bool) -> Kernel {
    let (mut b, address) = bench();
    let first = b.k.lt(b.thread, 32);
    let mut bases = Vec::new();
    for &columns in steps {
        b.k.if_(first, |k| k.tensor_alloc(CtaGroup::One, address.at(0), columns));
        b.k.tensor_fence_before_sync();
        b.k.sync_threads();
        b.k.tensor_fence_after_sync();
        let base = b.k.load::<TensorAddress, Shared>(address.at(0));
        b.k.sync_threads();
        let at = mine(&mut b, base);
        store(&mut b, at);
        bases.push((base, columns));
    }
    b.k.tensor_fence_before_sync();
    b.k.sync_threads();
    b.k.tensor_fence_after_sync();
    for (base, columns) in bases.into_iter().filter(|_| returns) {
        b.k.if_(first, |k| k.tensor_dealloc(CtaGroup::One, base, columns));
    }
    b.finish()
}

/// What is found of five blocks on two multiprocessors, under some schedules.
fn on_two_multiprocessors(kernel: &Kernel, rules: Rules) -> Vec<&'static str> {
    let run = |schedule| {
        let mut gpu = Gpu::new(Limits { multiprocessors: 2, ..Limits::b200() }).with_rules(rules);
        let (input, output) = (gpu.upload("input", &[1; 16]), gpu.alloc("output", 16));
        let launch = Invocation { grid: [5, 1, 1], args: vec![input.into(), output.into()] };
        gpu.run(kernel, &launch, schedule).err().map(|fault| fault.kind.name())
    };
    Schedule::several(8).into_iter().filter_map(run).collect()
}

#[test]
fn blocks_of_a_multiprocessor_wait_for_columns_until_others_give_theirs_back() {
    for steps in [&[512][..], &[256], &[64, 32]] {
        assert_eq!(on_two_multiprocessors(&shares(steps, true), Rules::Letter), [""; 0], "{steps:?}");
    }
    assert!(on_two_multiprocessors(&shares(&[32], false), Rules::Letter).contains(&"tensor memory leaked"));
}

#[test]
fn blocks_that_hold_columns_and_wait_for_more_wait_for_each_other() {
    let hoards = shares(&[256, 256], true);
    assert!(on_two_multiprocessors(&hoards, Rules::Letter).contains(&"deadlock"));
    assert_eq!(on_two_multiprocessors(&hoards, Rules::Practice), [""; 0], "who is alone has all of them");
}

#[test]
fn the_warp_that_allocated_columns_gives_them_back() {
    rule_of_the_letter("bad operand", |kept| give_back(Return { warp: u32::from(kept == Kept::No), ..RETURN }));
}

#[test]
fn columns_are_where_the_allocation_says() {
    rule_of_the_letter("tensor memory not allocated", |kept| give_back(Return { named: kept == Kept::Yes, ..RETURN }));
}

/// Where a multiplication's operands are: steps of 32 bytes along A and B, and columns of tensor memory.
#[derive(Clone, Copy)]
struct Step {
    a: u32,
    columns: u32,
    d: u32,
    scales: u32,
    /// What is added to the addresses of A's and B's scales: columns, or lanes to say others than the first.
    beyond: [u32; 2],
    collector: Collector,
    /// Whether its scales are copied there before it.
    copies: bool,
}

const FIRST: Step =
    Step { a: 0, columns: 8, d: 0, scales: 16, beyond: [0; 2], collector: Collector::Discard, copies: true };

const ROWS: MatrixLayout = MatrixLayout::K_MAJOR_128;
const PACKED: MatrixLayout = MatrixLayout { swizzle: Swizzle::None, leading: 16, stride: 128 };

/// A, B and scales, all of zeros.
#[derive(Clone, Copy)]
struct Zeros {
    regions: [SharedRegion; 3],
    base: Reg<TensorAddress>,
    bars: Barriers,
}

/// A kernel with zeros to multiply, barriers of one arrival and columns, all of which every thread knows.
fn zeros(threads: u32) -> (Bench, Zeros) {
    let mut b = Bench::on(Target::Sm100a, threads, None);
    let address = b.k.shared("address", 4, 4);
    let (a, other) = (b.k.shared("a", 128 * 128, 1024), b.k.shared("b", 16 * 128, 1024));
    let factors = b.k.shared("factors", 512, 128);
    let bars = b.k.barriers("bars", 2);
    let zero = [0; 4].map(|zero| b.k.variable::<U32>(zero));
    for region in [a, other, factors] {
        let base = b.k.shared_address(region);
        let at = Addr::<Shared>::of(b.k.mul_add(b.thread, 16, base));
        for round in 0..region.bytes.div_ceil(2048) {
            let inside = b.k.lt(b.thread, ((region.bytes - 2048 * round) / 16).min(128));
            b.k.when(inside, |k| k.store_vector(at.plus(2048 * round as i32), zero));
        }
    }
    let lead = b.k.eq(b.thread, 0);
    b.k.if_(lead, |k| {
        k.barrier_init(bars.at(0), 1);
        k.barrier_init(bars.at(1), 1);
        k.fence_barrier_init();
    });
    b.k.fence_async_shared();
    let base = allocate(&mut b, address);
    (b, Zeros { regions: [a, other, factors], base, bars })
}

impl Zeros {
    fn column(&self, k: &mut Builder, column: u32) -> Reg<TensorAddress> {
        k.add(self.base.cast::<U32>(), column).cast()
    }

    fn matrix(&self, k: &mut Builder, which: usize, layout: MatrixLayout, step: u32) -> Reg<Tcgen05Matrix> {
        let start = k.shared_address(self.regions[which]);
        let low = k.descriptor_low(layout, start);
        let low = k.add(low, 2 * step);
        k.tcgen05_descriptor(layout, low)
    }

    /// The scales of a step are copied.
    fn copy(&self, k: &mut Builder, step: Step) {
        let source = self.matrix(k, 2, PACKED, 0);
        for column in [step.scales, step.scales + 4] {
            let to = self.column(k, column);
            k.tensor_copy_scales(CtaGroup::One, to, source);
        }
    }

    fn multiply(&self, k: &mut Builder, step: Step) {
        let (a, b) = (self.matrix(k, 0, ROWS, step.a), self.matrix(k, 1, ROWS, 0));
        let [of_a, of_b] = step.beyond;
        let [d, scale_a, scale_b] =
            [step.d, step.scales + of_a, step.scales + 4 + of_b].map(|column| self.column(k, column));
        let shape = BlockScaledShape { m: 128, n: step.columns, scale_a_id: 0, scale_b_id: 0 };
        let (shape, accumulate) = (k.block_scaled_shape(shape), k.bits(0));
        let (group, collector) = (CtaGroup::One, step.collector);
        k.tensor_multiply(Multiply { group, d, a, b, shape, scale_a, scale_b, accumulate, collector });
    }
}

/// One thread multiplies zeros, step by step, and tells when all is done.
fn multiply(steps: &[Step]) -> Kernel {
    let (mut b, zeros) = zeros(128);
    let (base, bars) = (zeros.base, zeros.bars);
    let lead = b.k.eq(b.thread, 0);
    b.k.if_(lead, |k| {
        for &step in steps {
            if step.copies {
                zeros.copy(k, step);
            }
            zeros.multiply(k, step);
        }
        k.tensor_commit(CtaGroup::One, bars.at(0), None);
    });
    b.k.wait(bars.at(0), 0);
    b.k.tensor_fence_after_sync();
    free(&mut b, base);
    b.finish()
}

#[test]
fn the_collector_is_used_for_the_matrix_that_filled_it() {
    let again = Step { copies: false, ..FIRST };
    rule("not collected", |kept| {
        let a = u32::from(kept == Kept::No);
        let filling = Step { collector: Collector::Fill, ..FIRST };
        multiply(&[filling, Step { collector: Collector::LastUse, a, ..again }])
    });
    rule("not collected", |kept| {
        let collector = if kept == Kept::Yes { Collector::Use } else { Collector::LastUse };
        let filling = Step { collector: Collector::Fill, ..FIRST };
        multiply(&[filling, Step { collector, ..again }, Step { collector: Collector::LastUse, ..again }])
    });
}

#[test]
fn scales_that_a_multiplication_may_still_read_are_not_overwritten() {
    let again = |kept| Step { scales: if kept == Kept::Yes { 24 } else { 16 }, ..FIRST };
    rule_of_the_letter("race", |kept| multiply(&[FIRST, again(kept)]));
}

#[test]
fn a_multiplication_does_not_write_its_sums_over_its_scales() {
    // The scales of A are in columns 16 to 19, those of B in column 20.
    for over in [12, 20] {
        rule("bad operand", |kept| multiply(&[Step { d: if kept == Kept::Yes { 0 } else { over }, ..FIRST }]));
    }
    lawful(&multiply(&[Step { d: 8, ..FIRST }]));
    lawful(&multiply(&[Step { d: 21, ..FIRST }]));
}

/// Silicon takes an odd one for a misaligned address; the ISA does not say so. Others than whole blocks of A nobody has
/// tried.
#[test]
fn scales_of_b_begin_at_an_even_column_and_those_of_a_at_a_fourth() {
    for odd in [1, 3] {
        let fault = rule("misaligned", |kept| {
            multiply(&[Step { beyond: [0, if kept == Kept::Yes { 2 } else { odd }], ..FIRST }])
        });
        assert!(fault.to_string().contains("B's scales"), "{fault}");
    }
    for askew in [1, 2, 3] {
        let fault = rule("misaligned", |kept| {
            multiply(&[Step { beyond: [if kept == Kept::Yes { 4 } else { askew }, 0], ..FIRST }])
        });
        assert!(fault.to_string().contains("A's scales"), "{fault}");
    }
}

#[test]
fn scales_are_copied_to_every_fourth_column() {
    rule("misaligned", |kept| multiply(&[Step { scales: if kept == Kept::Yes { 20 } else { 18 }, ..FIRST }]));
}

#[test]
fn multiplications_follow_each_other_on_one_accumulator_of_one_shape() {
    let again = Step { copies: false, ..FIRST };
    rule("race", |kept| multiply(&[FIRST, Step { columns: if kept == Kept::Yes { 8 } else { 16 }, ..again }]));
}

#[test]
fn multiplications_of_two_kinds_do_not_follow_each_other() {
    let first = Step { columns: 16, scales: 20, ..FIRST };
    rule("race", |kept| {
        let (mut b, zeros) = zeros(128);
        let (base, bars) = (zeros.base, zeros.bars);
        let lead = b.k.eq(b.thread, 0);
        b.k.if_(lead, |k| {
            zeros.copy(k, first);
            zeros.multiply(k, first);
            if kept == Kept::Yes {
                return zeros.multiply(k, first);
            }
            let (a, b) = (zeros.matrix(k, 0, ROWS, 0), zeros.matrix(k, 1, ROWS, 0));
            let shape = k.halves_shape(HalvesShape { m: 128, n: 16, bf16: false });
            let (group, collector, accumulate) = (CtaGroup::One, Collector::Discard, k.bits(0));
            k.tensor_multiply_halves(MultiplyHalves { group, d: base, a, b, shape, accumulate, collector });
        });
        b.k.if_(lead, |k| k.tensor_commit(CtaGroup::One, bars.at(0), None));
        b.k.wait(bars.at(0), 0);
        b.k.tensor_fence_after_sync();
        free(&mut b, base);
        b.finish()
    });
}

/// What a warp loads may be computed with at once: the ISA respects true dependencies. To write the register, or the
/// columns, is another matter.
#[test]
fn registers_of_a_load_may_be_read_before_the_wait_but_not_written() {
    let kernel = |kept| {
        let (mut b, address) = bench();
        let base = allocate(&mut b, address);
        let at = mine(&mut b, base);
        store(&mut b, at);
        let [value] = b.k.tensor_load_columns::<1>(at);
        let to = b.k.mul_wide_add(b.thread, 4, b.output);
        let sum = b.k.add(value.cast::<U32>(), 1);
        b.k.store(Addr::<Global>::of(to), sum);
        if kept == Kept::Yes {
            b.k.tensor_wait_load();
        }
        b.k.set(value.cast::<U32>(), 3);
        if kept == Kept::No {
            b.k.tensor_wait_load();
        }
        free(&mut b, base);
        b.finish()
    };
    rule_of_the_letter("register in flight", kernel);
}

/// A load is over when one of its registers was read; the ISA asks for the wait.
#[test]
fn columns_are_given_back_behind_loads_that_were_waited_for_or_in_practice_used() {
    let kernel = |waits: bool, uses: bool| {
        let (mut b, address) = bench();
        let base = allocate(&mut b, address);
        let at = mine(&mut b, base);
        store(&mut b, at);
        let [value] = b.k.tensor_load_columns::<1>(at);
        if waits {
            b.k.tensor_wait_load();
        }
        if uses {
            let to = b.k.mul_wide_add(b.thread, 4, b.output);
            b.k.store(Addr::<Global>::of(to), value.cast::<U32>());
        }
        free(&mut b, base);
        b.finish()
    };
    rule_of_the_letter("race", |kept| kernel(kept == Kept::Yes, true));
    caught("race", &kernel(false, false));
}

#[test]
fn a_commit_tells_that_the_copies_it_came_after_are_over() {
    rule("race", |kept| {
        let mut b = Bench::on(Target::Sm100a, 64, None);
        let (tile, bars) = (b.k.shared("tile", 16, 16), b.k.barriers("bars", 2));
        let (copies, commits) = (b.k.eq(b.thread, 0), b.k.eq(b.thread, 32));
        b.k.if_(copies, |k| {
            k.barrier_init(bars.at(0), 1);
            k.barrier_init(bars.at(1), 1);
            k.fence_barrier_init();
        });
        b.k.sync_threads();
        b.k.if_(commits, |k| {
            if kept == Kept::Yes {
                k.wait(bars.at(0), 0);
            }
            k.tensor_commit(CtaGroup::One, bars.at(1), None);
        });
        let input = b.input;
        b.k.if_(copies, |k| {
            for round in 0..2 {
                k.arrive_expecting(bars.at(0), 16);
                k.bulk_load(tile.at(0), Addr::of(input), 16, bars.at(0), CopyOptions::default());
                if round == 0 {
                    k.wait(bars.at(1), 0);
                }
            }
            k.wait(bars.at(0), 1);
        });
        b.finish()
    });
}

#[test]
fn a_commit_tells_nothing_of_what_its_thread_has_written() {
    rule("race", |kept| {
        let mut b = Bench::on(Target::Sm100a, 64, None);
        let (word, bars) = (b.k.shared("word", 4, 4), b.k.barriers("bars", 1));
        let (reads, commits) = (b.k.eq(b.thread, 0), b.k.eq(b.thread, 32));
        b.k.if_(reads, |k| {
            k.barrier_init(bars.at(0), 1);
            k.fence_barrier_init();
        });
        b.k.sync_threads();
        let (value, output) = (b.one(), b.output);
        b.k.if_(commits, |k| {
            k.store(word.at(0), value);
            if kept == Kept::Yes {
                k.arrive(bars.at(0));
            } else {
                k.tensor_commit(CtaGroup::One, bars.at(0), None);
            }
        });
        b.k.if_(reads, |k| {
            k.wait(bars.at(0), 0);
            let value: Reg<U32> = k.load(word.at(0));
            k.store(Addr::<Global>::of(output), value);
        });
        b.finish()
    });
}

#[test]
fn what_is_of_all_lanes_is_addressed_by_the_first() {
    let lanes = |kept| if kept == Kept::Yes { 0 } else { 32 << 16 };
    rule("bad operand", |kept| multiply(&[Step { d: lanes(kept), ..FIRST }]));
    rule("bad operand", |kept| multiply(&[Step { beyond: [0, lanes(kept)], ..FIRST }]));
    let scales = |kept| 16 + lanes(kept);
    rule("bad operand", |kept| multiply(&[Step { scales: scales(kept), ..FIRST }]));
}

#[test]
fn an_allocation_leaves_its_address_in_one_word() {
    let kernel = |apart: u32, further: u32| {
        let mut b = Bench::on(Target::Sm100a, 32, None);
        let words = b.k.shared("words", 256, 16);
        let (base, one) = (b.k.shared_address(words), b.one());
        let further = b.k.mul_add(one, further, base);
        let to = b.k.mul_add(b.thread, apart, further);
        b.k.tensor_alloc(CtaGroup::One, Addr::of(to), COLUMNS);
        b.k.sync_warp();
        let address = b.k.load::<TensorAddress, Shared>(words.at(4));
        b.k.tensor_dealloc(CtaGroup::One, address, COLUMNS);
        b.finish()
    };
    rule("not uniform", |kept| kernel(if kept == Kept::Yes { 0 } else { 4 }, 4));
    rule("misaligned", |kept| kernel(0, if kept == Kept::Yes { 4 } else { 6 }));
}

/// A fence of tensor memory that is forgotten.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forgotten {
    Nothing,
    Before,
    After,
}

/// Arrives, or waits, and orders nothing but execution by it.
fn relaxed(k: &mut Builder, bar: Addr<Shared>, waits: bool) {
    let (sem, scope, bar) = (Semantics::Relaxed, Scope::Cluster, bar.address());
    if !waits {
        return k.emit(Barrier::Arrive {
            arrival: None,
            space: Space::Shared,
            sem,
            scope,
            bar,
            count: None,
            state: None,
        });
    }
    let (head, done) = (k.label(), k.register::<Bool>());
    k.place(head);
    k.emit(Barrier::TryWait { done: done.id(), sem, scope, bar, parity: Operand::Imm(0) });
    k.branch_unless(done, head);
}

/// A thread multiplies; the first warp hears of the end by relaxed barriers, by way of another thread, and loads.
fn heard_of(forgotten: Forgotten) -> Kernel {
    let (mut b, zeros) = zeros(192);
    let (at, bars, base) = (mine(&mut b, zeros.base), zeros.bars, zeros.base);
    let (multiplies, loads) = (b.k.eq(b.thread, 128), b.k.lt(b.thread, 32));
    b.k.if_(multiplies, |k| {
        zeros.copy(k, FIRST);
        zeros.multiply(k, FIRST);
        k.tensor_commit(CtaGroup::One, bars.at(0), None);
        relaxed(k, bars.at(0), true);
        k.tensor_fence_after_sync();
        if forgotten != Forgotten::Before {
            k.tensor_fence_before_sync();
        }
        relaxed(k, bars.at(1), false);
    });
    b.k.if_(loads, |k| {
        relaxed(k, bars.at(1), true);
        if forgotten != Forgotten::After {
            k.tensor_fence_after_sync();
        }
        k.tensor_load_columns::<1>(at);
        k.tensor_wait_load();
    });
    free(&mut b, base);
    b.finish()
}

#[test]
fn between_tensor_fences_a_relaxed_barrier_is_enough() {
    let forgets = |what, kept| if kept == Kept::Yes { Forgotten::Nothing } else { what };
    rule_of_the_letter("race", |kept| heard_of(forgets(Forgotten::After, kept)));
}

/// A warp loads, and tells by a relaxed barrier that it has; then another's thread overwrites what was loaded.
fn overwritten(forgotten: Forgotten) -> Kernel {
    let (mut b, zeros) = zeros(192);
    let (at, bars, base) = (mine(&mut b, zeros.base), zeros.bars, zeros.base);
    let (multiplies, lead, first) = (b.k.eq(b.thread, 128), b.k.eq(b.thread, 0), b.k.lt(b.thread, 32));
    let value = b.k.variable::<U32>(7);
    b.k.if_(first, |k| {
        k.tensor_store_columns(at, &[value]);
        k.tensor_wait_store();
        k.tensor_load_columns::<1>(at);
        k.tensor_wait_load();
        if forgotten != Forgotten::Before {
            k.tensor_fence_before_sync();
        }
        k.sync_warp();
        k.if_(lead, |k| relaxed(k, bars.at(1), false));
    });
    b.k.if_(multiplies, |k| {
        relaxed(k, bars.at(1), true);
        if forgotten != Forgotten::After {
            k.tensor_fence_after_sync();
        }
        zeros.copy(k, FIRST);
        zeros.multiply(k, FIRST);
        k.tensor_commit(CtaGroup::One, bars.at(0), None);
    });
    b.k.wait(bars.at(0), 0);
    b.k.tensor_fence_after_sync();
    free(&mut b, base);
    b.finish()
}

#[test]
fn relaxed_barriers_need_both_tensor_fences() {
    for what in [Forgotten::Before, Forgotten::After] {
        rule_of_the_letter("race", |kept| overwritten(if kept == Kept::Yes { Forgotten::Nothing } else { what }));
    }
}

/// One thread copies scales, and another multiplies with them: nobody waits for the copies, which are ahead in the
/// pipeline.
fn in_turn(forgotten: Forgotten, of_one_thread: bool) -> Kernel {
    let (mut b, zeros) = zeros(192);
    let (bars, base) = (zeros.bars, zeros.base);
    let (copies, multiplies) = (b.k.eq(b.thread, 128), b.k.eq(b.thread, if of_one_thread { 128 } else { 160 }));
    b.k.if_(copies, |k| {
        zeros.copy(k, FIRST);
        if forgotten != Forgotten::Before {
            k.tensor_fence_before_sync();
        }
        k.arrive(bars.at(1));
    });
    b.k.if_(multiplies, |k| {
        k.wait(bars.at(1), 0);
        if forgotten != Forgotten::After {
            k.tensor_fence_after_sync();
        }
        zeros.multiply(k, FIRST);
        k.tensor_commit(CtaGroup::One, bars.at(0), None);
    });
    b.k.wait(bars.at(0), 0);
    b.k.tensor_fence_after_sync();
    free(&mut b, base);
    b.finish()
}

#[test]
fn what_one_thread_copies_precedes_what_another_multiplies_between_fences() {
    for what in [Forgotten::Before, Forgotten::After] {
        rule("race", |kept| in_turn(if kept == Kept::Yes { Forgotten::Nothing } else { what }, false));
        lawful(&in_turn(what, true));
    }
}

/// What the blocks of a pair do otherwise than together, if anything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Apart {
    Nothing,
    /// They allocate before they have met.
    Beginning,
    OneAllocates,
    Sizes,
    /// One gives its columns back before the cluster meets, one behind that.
    Return,
}

fn meet_cluster(b: &mut Bench) {
    b.k.tensor_fence_before_sync();
    b.k.cluster_arrive(Semantics::Ordered, true);
    b.k.cluster_wait(true);
    b.k.tensor_fence_after_sync();
}

/// The blocks of a pair, of a warp each, allocate columns and give them back.
fn pair(apart: Apart) -> Kernel {
    let mut b = Bench::on(Target::Sm100a, 32, Some([2, 1, 1]));
    let (address, rank) = (b.k.shared("address", 4, 4), b.k.special(SpecialRegister::ClusterCtaRank));
    let (first, second) = (b.k.eq(rank, 0), b.k.ne(rank, 0));
    let columns = |is_first: bool| if is_first && apart == Apart::Sizes { 2 * COLUMNS } else { COLUMNS };
    if apart != Apart::Beginning {
        meet_cluster(&mut b);
    }
    b.k.if_(first, |k| k.tensor_alloc(CtaGroup::Two, address.at(0), columns(true)));
    if apart != Apart::OneAllocates {
        b.k.if_(second, |k| k.tensor_alloc(CtaGroup::Two, address.at(0), columns(false)));
    }
    meet_cluster(&mut b);
    let give_back = |k: &mut Builder, is_first: bool| {
        let base = k.load::<TensorAddress, Shared>(address.at(0));
        k.tensor_dealloc(CtaGroup::Two, base, columns(is_first));
    };
    b.k.if_(first, |k| give_back(k, true));
    if apart == Apart::Return {
        meet_cluster(&mut b);
    }
    if apart != Apart::OneAllocates {
        b.k.if_(second, |k| give_back(k, false));
    }
    b.finish()
}

#[test]
fn the_blocks_of_a_pair_allocate_and_give_back_together() {
    let apart = |what, kept| if kept == Kept::Yes { Apart::Nothing } else { what };
    let fault = rule("block not started", |kept| pair(apart(Apart::Beginning, kept)));
    assert!(fault.to_string().contains("tensor memory"), "{fault}");
    rule("deadlock", |kept| pair(apart(Apart::OneAllocates, kept)));
    rule("not uniform", |kept| pair(apart(Apart::Sizes, kept)));
    rule("deadlock", |kept| pair(apart(Apart::Return, kept)));
}

/// The work of a thread is done in its order: a block that was told of a first commit may end while a second one, which
/// does not reach into it, is on its way. CUTLASS's blocks of a cluster end so.
#[test]
fn a_block_ends_before_what_its_partner_commits_to_itself() {
    let mut b = Bench::on(Target::Sm100a, 32, Some([2, 1, 1]));
    let (bars, rank) = (b.k.barriers("told", 2), b.k.special(SpecialRegister::ClusterCtaRank));
    let [leads, follows] = [b.k.eq(rank, 0), b.k.ne(rank, 0)];
    let first = b.k.eq(b.thread, 0);
    b.k.if_(first, |k| {
        k.barrier_init(bars.at(0), 1);
        k.barrier_init(bars.at(1), 1);
        k.fence_barrier_init();
    });
    meet_cluster(&mut b);
    b.k.if_(leads, |k| {
        let both = k.variable::<ptx::U16>(3);
        k.if_(first, |k| {
            k.tensor_commit(CtaGroup::One, bars.at(0), Some(both));
            k.tensor_commit(CtaGroup::One, bars.at(1), None);
        });
        k.wait(bars.at(0), 0);
        k.wait(bars.at(1), 0);
    });
    b.k.if_(follows, |k| k.wait_at(bars.at(0), 0, Scope::Cluster));
    let kernel = b.finish();
    for seed in 1..=32 {
        run_by(Rules::Letter, &kernel, Schedule::Random(seed)).unwrap_or_else(|fault| panic!("{fault}"));
    }
}
