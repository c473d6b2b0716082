//! Barriers: arrivals, bytes, phases, and who is missing.

use ptx::instr::{Barrier, Semantics};
use ptx::{Addr, Builder, CopyOptions, Kernel, Operand, Scope, Shared, Space, U32};
use sim::FaultKind;

use super::{Bench, Kept, caught, lawful, rule, rule_of_the_letter};

/// A barrier initialised by thread 0 and known to all.
fn with_barrier(b: &mut Bench, count: u32) -> Addr<Shared> {
    let bars = b.k.barriers("bars", 1);
    let first = b.k.eq(b.thread, 0);
    b.k.if_(first, |k| {
        k.barrier_init(bars.at(0), count);
        k.fence_barrier_init();
    });
    b.k.sync_threads();
    bars.at(0)
}

#[test]
fn a_dropped_arrive_is_a_deadlock_that_names_who_waits_and_who_came() {
    let fault = rule("deadlock", |kept| {
        let mut b = Bench::new(64, None);
        let bar = with_barrier(&mut b, 64);
        let (second_warp, upper) = (b.k.ge(b.thread, 32), b.k.ge(b.thread, 40));
        match kept {
            Kept::Yes => b.k.arrive(bar),
            Kept::No => {
                let first_warp = b.k.opposite(second_warp);
                let arriving = b.k.either(first_warp, upper);
                b.k.when(arriving, |k| k.arrive(bar));
            }
        }
        b.k.wait(bar, 0);
        b.finish()
    });
    let FaultKind::Deadlock { waiting } = &fault.kind else { panic!("{fault}") };
    assert_eq!(waiting.len(), 2);
    assert!(waiting[0].awaited.contains("bars[0] with parity 0: phase 0 lacks 8 of 64 arrivals"), "{fault}");
    assert!(waiting[0].candidates.iter().any(|text| text.contains("warp 1") && text.contains("24 times")), "{fault}");
}

#[test]
fn the_wrong_parity_is_a_deadlock() {
    rule("deadlock", |kept| {
        let mut b = Bench::new(32, None);
        let bar = with_barrier(&mut b, 32);
        b.k.arrive(bar);
        b.k.wait(bar, 0);
        b.k.arrive(bar);
        b.k.wait(bar, 1);
        if kept == Kept::No {
            b.k.wait(bar, 0);
        }
        b.finish()
    });
}

/// Thread 0 announces bytes and copies them, arriving more than once or not.
fn copy_in(announced: u32, copied: u32, extra_arrive: bool, waits: bool) -> Kernel {
    let mut b = Bench::new(32, None);
    let tile = b.k.shared("tile", 256, 128);
    let bar = with_barrier(&mut b, 1);
    let first = b.k.eq(b.thread, 0);
    b.k.if_(first, |k| {
        k.arrive_expecting(bar, announced);
        if extra_arrive {
            k.arrive(bar);
        }
        k.bulk_load(tile.at(0), Addr::of(b.input), copied, bar, CopyOptions::default());
    });
    if waits {
        b.k.wait(bar, 0);
    }
    b.finish()
}

#[test]
fn an_arrive_too_many_is_reported() {
    rule("over-arrival", |kept| copy_in(256, 256, kept == Kept::No, true));
}

#[test]
fn bytes_expected_and_never_copied_are_a_deadlock() {
    let fault = rule("deadlock", |kept| copy_in(if kept == Kept::Yes { 256 } else { 272 }, 256, false, true));
    assert!(fault.to_string().contains("and 16 bytes"), "{fault}");
}

#[test]
fn bytes_that_do_not_add_up_are_reported_at_the_end() {
    rule("transaction imbalance", |kept| {
        let mut b = Bench::new(32, None);
        let bar = with_barrier(&mut b, 1);
        let first = b.k.eq(b.thread, 0);
        if kept == Kept::No {
            b.k.when(first, |k| k.expect_bytes(bar, 16));
        }
        b.finish()
    });
}

#[test]
fn a_block_that_ends_before_its_copy_has_landed_is_reported() {
    rule("unfinished work", |kept| copy_in(256, 256, false, kept == Kept::Yes));
}

#[test]
fn a_transaction_count_has_a_limit() {
    let mut b = Bench::new(32, None);
    let bar = with_barrier(&mut b, 1);
    let first = b.k.eq(b.thread, 0);
    let one = b.one();
    let many = b.k.shl(one, 20);
    b.k.when(first, |k| k.expect_bytes(bar, many));
    caught("transaction overflow", &b.finish());
}

#[test]
fn a_barrier_must_be_initialised_before_use() {
    rule("not a barrier", |kept| {
        let mut b = Bench::new(32, None);
        match kept {
            Kept::Yes => {
                let bar = with_barrier(&mut b, 32);
                b.k.arrive(bar);
            }
            Kept::No => {
                let bars = b.k.barriers("bars", 1);
                b.k.arrive(bars.at(0));
            }
        }
        b.finish()
    });
}

#[test]
fn the_initialisation_must_be_known_to_who_arrives() {
    rule("race", |kept| {
        let mut b = Bench::new(32, None);
        let bars = b.k.barriers("bars", 1);
        let first = b.k.eq(b.thread, 0);
        b.k.when(first, |k| k.barrier_init(bars.at(0), 32));
        if kept == Kept::Yes {
            b.k.sync_warp();
        }
        b.k.arrive(bars.at(0));
        b.finish()
    });
}

#[test]
fn a_barrier_in_use_cannot_be_initialised_again() {
    rule("re-initialised barrier", |kept| {
        let mut b = Bench::new(32, None);
        let bar = with_barrier(&mut b, 1);
        let first = b.k.eq(b.thread, 0);
        b.k.if_(first, |k| {
            if kept == Kept::Yes {
                k.barrier_invalidate(bar);
            }
            k.barrier_init(bar, 2);
        });
        b.finish()
    });
}

#[test]
fn a_barriers_bytes_are_not_data() {
    rule("barrier as data", |kept| {
        let mut b = Bench::new(32, None);
        let bar = with_barrier(&mut b, 1);
        let first = b.k.eq(b.thread, 0);
        b.k.if_(first, |k| {
            if kept == Kept::Yes {
                k.barrier_invalidate(bar);
            }
            let word = k.variable::<U32>(0);
            k.store(bar, word);
        });
        b.finish()
    });
}

/// The first warp writes a word per lane and signals; the second reads them.
fn signal(sem: Semantics, one_lane: bool, sync: bool) -> Kernel {
    signal_fenced(sem, one_lane, sync, false)
}

/// The same with fence.acq_rel before the signal.
fn signal_fenced(sem: Semantics, one_lane: bool, sync: bool, fence: bool) -> Kernel {
    let mut b = Bench::new(64, None);
    let words = b.k.shared("words", 128, 16);
    let bar = with_barrier(&mut b, if one_lane { 1 } else { 32 });
    let base = b.k.shared_address(words);
    let lane = b.k.and(b.thread, 31);
    let at = Addr::<Shared>::of(b.k.mul_add(lane, 4, base));
    let writer = b.k.lt(b.thread, 32);
    b.k.if_else(
        writer,
        |k| {
            k.store(at, lane);
            if sync {
                k.sync_warp();
            }
            if fence {
                k.fence(Scope::Block);
            }
            let arrive = Barrier::Arrive {
                arrival: None,
                space: Space::Shared,
                sem,
                scope: Scope::Block,
                bar: bar.address(),
                count: None,
                state: None,
            };
            let leader = k.eq(lane, 0);
            if one_lane {
                k.when(leader, |k| k.emit(arrive));
            } else {
                k.emit(arrive);
            }
        },
        |k| {
            k.wait(bar, 0);
            k.load::<U32, _>(at);
        },
    );
    b.finish()
}

#[test]
fn a_relaxed_arrive_publishes_nothing() {
    let sem = |kept| if kept == Kept::Yes { Semantics::Ordered } else { Semantics::Relaxed };
    rule("race", |kept| signal(sem(kept), false, false));
}

#[test]
fn a_relaxed_arrive_behind_a_fence_publishes_what_the_fence_covered() {
    rule("race", |kept| signal_fenced(Semantics::Relaxed, false, false, kept == Kept::Yes));
}

#[test]
fn one_lanes_arrive_speaks_for_the_others_only_after_a_warp_barrier() {
    rule("race", |kept| signal(Semantics::Ordered, true, kept == Kept::Yes));
}

#[test]
fn an_aligned_barrier_needs_the_whole_warp() {
    rule("divergence", |kept| {
        let mut b = Bench::new(32, None);
        let some = b.k.lt(b.thread, if kept == Kept::Yes { 32 } else { 16 });
        b.k.if_(some, |k| k.sync_threads());
        b.finish()
    });
}

#[test]
fn a_shuffle_needs_every_lane_of_its_mask() {
    rule("divergence", |kept| {
        let mut b = Bench::new(32, None);
        let some = b.k.lt(b.thread, if kept == Kept::Yes { 32 } else { 31 });
        b.k.if_(some, |k| {
            k.broadcast(b.thread);
        });
        b.finish()
    });
}

#[test]
fn those_who_meet_at_a_named_barrier_must_agree_on_their_number() {
    rule("named barrier mismatch", |kept| {
        let mut b = Bench::new(64, None);
        let lower = b.k.lt(b.thread, 32);
        let other = if kept == Kept::Yes { 64 } else { 32 };
        b.k.if_else(lower, |k| k.named_sync(1, 64), |k| k.named_arrive(1, other));
        b.finish()
    });
}

#[test]
fn a_named_barrier_that_not_all_reach_is_a_deadlock() {
    let fault = rule("deadlock", |kept| {
        let mut b = Bench::new(96, None);
        let some = b.k.lt(b.thread, if kept == Kept::Yes { 96 } else { 64 });
        b.k.if_(some, |k| k.named_sync(3, 96));
        b.finish()
    });
    assert!(fault.to_string().contains("named barrier 3, at which 64 of 96 threads have arrived"), "{fault}");
}

#[test]
fn a_peek_at_a_barrier_may_fail_and_go_on() {
    rule("race", |kept| {
        let mut b = Bench::new(32, None);
        let words = b.k.shared("words", 4, 4);
        let bar = with_barrier(&mut b, 1);
        let first = b.k.eq(b.thread, 0);
        let early = b.k.try_wait(bar, 0, Scope::Block);
        b.k.if_(first, |k| {
            k.store(words.at(0), b.thread);
            k.arrive(bar);
        });
        if kept == Kept::Yes {
            b.k.unless(early, |k| {
                k.emit(Barrier::ExpectTx { space: Space::Shared, bar: bar.address(), bytes: Operand::Imm(0) })
            });
            b.k.wait(bar, 0);
        }
        b.k.load::<U32, _>(words.at(0));
        b.finish()
    });
}

#[test]
fn the_elected_lane_need_not_be_the_first() {
    rule_of_the_letter("race", |kept| {
        let mut b = Bench::new(32, None);
        let word = b.k.shared("word", 4, 4);
        let (first, elected) = (b.k.eq(b.thread, 0), b.k.elect());
        let zero = b.k.variable::<U32>(0);
        b.k.when(first, |k| k.store(word.at(0), zero));
        if kept == Kept::Yes {
            b.k.sync_warp();
        }
        b.k.when(elected, |k| k.store(word.at(0), b.thread));
        b.finish()
    });
}

/// A loop that half of the lanes go round by a shorter way, to meet the others at its head.
#[test]
fn lanes_that_loop_back_are_waited_for() {
    rule("divergence", |kept| {
        let mut b = Bench::new(32, None);
        let (head, end) = (b.k.label(), b.k.label());
        let round = b.k.variable::<U32>(0);
        let half = b.k.lt(b.thread, 16);
        b.k.place(head);
        b.k.sync_warp();
        let next = b.k.add(round, 1);
        b.k.set(round, next);
        let over = b.k.ge(round, 3);
        b.k.branch_if(over, end);
        b.k.branch_if(half, head);
        b.k.add(round, 1);
        match kept {
            Kept::Yes => b.k.branch(head),
            Kept::No => b.k.branch(end),
        }
        b.k.place(end);
        b.finish()
    });
}

#[test]
fn a_parity_is_zero_or_one() {
    rule("bad operand", |kept| {
        let mut b = Bench::new(32, None);
        let bar = with_barrier(&mut b, 32);
        let one = b.one();
        b.k.arrive(bar);
        b.k.wait(bar, 0);
        b.k.arrive(bar);
        // The number of the phase, or what is left of it.
        let phase = b.k.mul(one, if kept == Kept::Yes { 1 } else { 3 });
        b.k.wait(bar, phase);
        b.finish()
    });
}

#[test]
fn those_who_meet_may_count_the_whole_block_or_not() {
    let mut b = Bench::new(64, None);
    let first = b.k.lt(b.thread, 32);
    b.k.if_else(first, |k| k.sync_threads(), |k| k.named_sync(0, 64));
    lawful(&b.finish());
}

#[test]
fn the_fence_of_an_initialisation_is_that_of_its_own_thread() {
    rule_of_the_letter("race", |kept| {
        let mut b = Bench::new(64, None);
        let (bars, tile) = (b.k.barriers("bars", 1), b.k.shared("tile", 128, 128));
        let (first, second) = (b.k.eq(b.thread, 0), b.k.eq(b.thread, 32));
        b.k.if_(first, |k| k.barrier_init(bars.at(0), 1));
        if kept == Kept::No {
            b.k.sync_threads();
        }
        b.k.if_(if kept == Kept::Yes { first } else { second }, |k| k.fence_barrier_init());
        b.k.sync_threads();
        let input = b.input;
        b.k.if_(first, |k| {
            k.arrive_expecting(bars.at(0), 128);
            k.bulk_load(tile.at(0), Addr::of(input), 128, bars.at(0), CopyOptions::default());
        });
        b.k.wait(bars.at(0), 0);
        b.finish()
    });
}

#[test]
fn a_warp_comes_to_a_named_barrier_once_before_it_is_complete() {
    rule("over-arrival", |kept| {
        let mut b = Bench::new(96, None);
        let (first, last) = (b.k.lt(b.thread, 32), b.k.ge(b.thread, 64));
        let arrive = |k: &mut Builder| k.named_arrive(1, 96);
        let arriving = |k: &mut Builder| match kept {
            Kept::Yes => arrive(k),
            // In the place of the other warp.
            Kept::No => k.if_(first, |k| [0; 2].iter().for_each(|_| arrive(k))),
        };
        b.k.if_else(last, |k| k.named_sync(1, 96), arriving);
        b.finish()
    });
}

#[test]
fn an_arrival_counts_for_one_at_least() {
    rule("bad operand", |kept| {
        let mut b = Bench::new(32, None);
        let bar = with_barrier(&mut b, 64);
        let one = b.one();
        let count = b.k.sub(one, u32::from(kept == Kept::No));
        let (space, sem, scope) = (Space::Shared, Semantics::Ordered, Scope::Block);
        let count = Some(Operand::Reg(count.id()));
        b.k.emit(Barrier::Arrive { arrival: None, space, sem, scope, bar: bar.address(), count, state: None });
        b.k.arrive(bar);
        b.finish()
    });
}
