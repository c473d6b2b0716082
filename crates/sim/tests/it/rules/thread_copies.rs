//! Copies that threads make one by one: when they are there, for whom, and what they may touch.

use ptx::{Addr, Global, Kernel, Reg, Shared, SharedRegion, Target, U32};
use sim::{FaultKind, Schedule};

use super::{Bench, Kept, caught, lawful, rule, run};

/// Where each thread's sixteen bytes are, in a region and in the input.
fn places(b: &mut Bench, tile: SharedRegion) -> (Addr<Shared>, Addr<Global>) {
    let base = b.k.shared_address(tile);
    let to = b.k.mul_add(b.thread, 16, base);
    let from = b.k.mul_wide_add(b.thread, 16, b.input);
    (Addr::of(to), Addr::of(from))
}

/// The word at the start of the sixteen bytes that the thread `by` further on copied.
fn neighbour(b: &mut Bench, tile: SharedRegion, by: u32) -> Reg<U32> {
    let base = b.k.shared_address(tile);
    let other = b.k.xor(b.thread, by);
    let at = b.k.mul_add(other, 16, base);
    b.k.load(Addr::<Shared>::of(at))
}

fn store(b: &mut Bench, value: Reg<U32>) {
    let at = b.k.mul_wide_add(b.thread, 4, b.output);
    b.k.store(Addr::<Global>::of(at), value);
}

fn bench(threads: u32) -> (Bench, SharedRegion) {
    let mut b = Bench::on(Target::Sm80, threads, None);
    let tile = b.k.shared("tile", 4096, 16);
    (b, tile)
}

/// Each thread copies, waits or not, meets others or not, and reads what another one copied.
fn exchange(wait: bool, commit: bool, meet: bool, by: u32) -> Kernel {
    let (mut b, tile) = bench(64);
    let (to, from) = places(&mut b, tile);
    b.k.thread_copy(to, from, 16);
    if commit {
        b.k.thread_commit();
    }
    if wait {
        b.k.thread_wait(0);
    }
    if meet {
        b.k.sync_threads();
    }
    let value = neighbour(&mut b, tile, by);
    store(&mut b, value);
    b.k.thread_commit();
    b.k.thread_wait(0);
    b.finish()
}

#[test]
fn reading_before_the_group_is_waited_for_is_a_race() {
    let fault = rule("race", |kept| exchange(kept == Kept::Yes, true, true, 32));
    assert!(fault.to_string().contains("cp.async.wait_group"), "{fault}");
}

#[test]
fn a_wait_covers_only_what_was_committed() {
    rule("race", |kept| exchange(true, kept == Kept::Yes, true, 32));
}

#[test]
fn a_wait_tells_its_own_thread_alone() {
    rule("race", |kept| exchange(true, true, kept == Kept::Yes, 32));
    // Not even the neighbour in the warp knows.
    rule("race", |kept| exchange(true, true, kept == Kept::Yes, 1));
}

#[test]
fn a_thread_knows_what_it_copied_itself_without_a_barrier() {
    lawful(&exchange(true, true, false, 0));
}

#[test]
fn all_but_the_newest_groups_are_there() {
    let kernel = |pending| {
        let (mut b, tile) = bench(32);
        let (to, from) = places(&mut b, tile);
        for stage in 0..3 {
            b.k.thread_copy(to.plus(512 * stage), from.plus(512 * stage), 16);
            b.k.thread_commit();
        }
        b.k.thread_wait(pending);
        let base = b.k.shared_address(tile);
        let at = b.k.mul_add(b.thread, 16, base);
        let value = b.k.load::<U32, _>(Addr::<Shared>::of(at).plus(512));
        store(&mut b, value);
        b.k.thread_wait(0);
        b.finish()
    };
    rule("race", |kept| kernel(if kept == Kept::Yes { 1 } else { 2 }));
}

#[test]
fn an_empty_group_counts() {
    // The second group is empty, so waiting for all but one waits for the first.
    let kernel = |commits: u32| {
        let (mut b, tile) = bench(32);
        let (to, from) = places(&mut b, tile);
        b.k.thread_copy(to, from, 16);
        (0..commits).for_each(|_| b.k.thread_commit());
        b.k.thread_wait(1);
        let value = neighbour(&mut b, tile, 0);
        store(&mut b, value);
        b.k.thread_commit();
        b.k.thread_wait(0);
        b.finish()
    };
    rule("race", |kept| kernel(if kept == Kept::Yes { 2 } else { 1 }));
}

#[test]
fn overwriting_what_others_still_read_is_a_race() {
    let fault = rule("race", |kept| {
        let (mut b, tile) = bench(64);
        let (to, from) = places(&mut b, tile);
        b.k.thread_copy(to, from, 16);
        b.k.thread_commit();
        b.k.thread_wait(0);
        b.k.sync_threads();
        let value = neighbour(&mut b, tile, 32);
        if kept == Kept::Yes {
            b.k.sync_threads();
        }
        b.k.thread_copy(to, from, 16);
        b.k.thread_commit();
        b.k.thread_wait(0);
        store(&mut b, value);
        b.finish()
    });
    assert!(fault.to_string().contains("barrier between"), "{fault}");
}

#[test]
fn two_copies_to_one_place_race_unless_the_first_is_over() {
    rule("race", |kept| {
        let (mut b, tile) = bench(32);
        let (to, from) = places(&mut b, tile);
        b.k.thread_copy(to, from, 16);
        b.k.thread_commit();
        if kept == Kept::Yes {
            b.k.thread_wait(0);
        }
        b.k.thread_copy(to, from.plus(512), 16);
        b.k.thread_commit();
        b.k.thread_wait(0);
        b.finish()
    });
}

#[test]
fn a_block_that_ends_with_copies_under_way_is_reported() {
    rule("unfinished work", |kept| {
        let (mut b, tile) = bench(32);
        let (to, from) = places(&mut b, tile);
        b.k.thread_copy(to, from, 16);
        b.k.thread_commit();
        if kept == Kept::Yes {
            b.k.thread_wait(0);
        }
        b.finish()
    });
}

#[test]
fn a_source_off_its_size_is_refused() {
    let fault = rule("misaligned", |kept| {
        let (mut b, tile) = bench(32);
        let (to, from) = places(&mut b, tile);
        let one = b.one();
        let off: Reg<ptx::U64> = b.k.convert(one);
        let at = b.k.shl(off, if kept == Kept::Yes { 4 } else { 3 });
        let base = b.k.mul_wide_add(b.thread, 16, b.input);
        let moved = b.k.add(base, at);
        b.k.thread_copy(to, Addr::of(moved), 16);
        let _ = from;
        b.k.thread_commit();
        b.k.thread_wait(0);
        b.finish()
    });
    assert!(matches!(fault.kind, FaultKind::Misaligned { wanted: 16, .. }), "{fault}");
}

/// A copy of which so many bytes come from behind the input's end, and the rest is zeros.
fn beyond(read: u32) -> Kernel {
    let (mut b, tile) = bench(32);
    let base = b.k.shared_address(tile);
    let to = b.k.mul_add(b.thread, 16, base);
    let from = b.k.mul_wide_add(b.thread, 16, b.input);
    let one = b.one();
    let read = b.k.mul(one, read);
    b.k.thread_copy_filled(Addr::of(to), Addr::<Global>::of(from).plus(4096), 16, read);
    b.k.thread_commit();
    b.k.thread_wait(0);
    let words: [Reg<U32>; 4] = b.k.load_vector(Addr::<Shared>::of(to));
    let sum = words.into_iter().reduce(|a, c| b.k.add(a, c)).expect("four words");
    store(&mut b, sum);
    b.finish()
}

#[test]
fn of_no_bytes_nothing_is_read_and_zeros_are_written() {
    rule("out of bounds", |kept| beyond(if kept == Kept::Yes { 0 } else { 4 }));
}

#[test]
fn more_bytes_read_than_written_are_refused() {
    caught("bad operand", &beyond(32));
}

#[test]
fn what_is_not_read_is_zero_and_the_rest_is_the_source() {
    let (mut b, tile) = bench(32);
    let (to, from) = places(&mut b, tile);
    let one = b.one();
    let read = b.k.mul(one, 8u32);
    b.k.thread_copy_filled(to, from, 16, read);
    b.k.thread_commit();
    b.k.thread_wait(0);
    let words: [Reg<U32>; 4] = b.k.load_vector(to);
    // Two ones and two zeros: trap on anything else.
    let sum = words.into_iter().reduce(|a, c| b.k.add(a, c)).expect("four words");
    let wrong = b.k.ne(sum, 2);
    b.k.when(wrong, |k| k.emit(ptx::instr::Control::Trap));
    lawful(&b.finish());
}

#[test]
fn copying_what_was_never_written_and_using_it_is_reported() {
    rule("uninitialised read", |kept| {
        let (mut b, tile) = bench(32);
        let (to, from) = places(&mut b, tile);
        let from = if kept == Kept::Yes { from } else { Addr::of(b.k.mul_wide_add(b.thread, 16, b.output)) };
        b.k.thread_copy(to, from, 16);
        b.k.thread_commit();
        b.k.thread_wait(0);
        let value: Reg<U32> = b.k.load(to);
        let odd = b.k.eq(value, 7);
        b.k.when(odd, |k| k.emit(ptx::instr::Control::Trap));
        b.finish()
    });
}

#[test]
fn a_fault_of_a_copy_comes_back_under_its_schedule() {
    let kernel = exchange(false, true, true, 32);
    let fault = |schedule| run(&kernel, schedule).expect_err("a race").to_string();
    assert_eq!(fault(Schedule::Random(3)), fault(Schedule::Random(3)));
}

#[test]
fn what_threads_copied_needs_a_proxy_fence_before_the_copy_engine_reads_it() {
    rule("race", |kept| {
        let mut b = Bench::new(32, None);
        let tile = b.k.shared("tile", 512, 128);
        let (to, from) = places(&mut b, tile);
        b.k.thread_copy(to, from, 16);
        b.k.thread_commit();
        b.k.thread_wait(0);
        if kept == Kept::Yes {
            b.k.fence_async_shared();
        }
        b.k.sync_warp();
        let (lead, output) = (b.k.eq(b.thread, 0), b.output);
        b.k.if_(lead, |k| {
            k.bulk_store(Addr::of(output), tile.at(0), 512, None);
            k.bulk_commit();
            k.bulk_wait(0);
        });
        b.finish()
    });
}
