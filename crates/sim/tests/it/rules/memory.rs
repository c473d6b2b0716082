//! Races, reads of nothing, and accesses out of place.

use ptx::instr::{Barrier, LoadOrder, Semantics};
use ptx::{Addr, Barriers, CopyOptions, Global, Kernel, Scope, Shared, Space, SpecialRegister, U32};
use sim::{FaultKind, Schedule};

use super::{Bench, Kept, caught, rule, rule_of_the_letter, run};

/// Each thread's word of a region.
fn mine(b: &mut Bench, region: ptx::SharedRegion) -> Addr<Shared> {
    let base = b.k.shared_address(region);
    Addr::of(b.k.mul_add(b.thread, 4, base))
}

fn store_own_word(b: &mut Bench, value: ptx::Reg<U32>) {
    let at = b.k.mul_wide_add(b.thread, 4, b.output);
    b.k.store(Addr::<Global>::of(at), value);
}

#[test]
fn a_missing_barrier_between_threads_is_reported_as_a_race() {
    let fault = rule("race", |kept| {
        let mut b = Bench::new(64, None);
        let words = b.k.shared("words", 256, 16);
        let at = mine(&mut b, words);
        b.k.store(at, b.thread);
        b.k.sync_threads();
        b.k.store(at, b.thread);
        if kept == Kept::Yes {
            b.k.sync_threads();
        }
        let other = b.k.xor(b.thread, 32);
        let base = b.k.shared_address(words);
        let other = b.k.mul_add(other, 4, base);
        let value = b.k.load::<U32, _>(Addr::<Shared>::of(other));
        store_own_word(&mut b, value);
        b.finish()
    });
    let text = fault.to_string();
    assert!(text.contains("words+") && text.contains("st.shared") && text.contains("ld.shared"), "{text}");
}

#[test]
fn lanes_of_a_warp_that_exchange_without_a_warp_barrier_race() {
    rule("race", |kept| {
        let mut b = Bench::new(32, None);
        let words = b.k.shared("words", 128, 16);
        let at = mine(&mut b, words);
        b.k.store(at, b.thread);
        if kept == Kept::Yes {
            b.k.sync_warp();
        }
        let other = b.k.xor(b.thread, 1);
        let base = b.k.shared_address(words);
        let other = b.k.mul_add(other, 4, base);
        b.k.load::<U32, _>(Addr::<Shared>::of(other));
        b.finish()
    });
}

#[test]
fn two_lanes_that_write_the_same_word_race() {
    rule("race", |kept| {
        let mut b = Bench::new(32, None);
        let word = b.k.shared("word", 4, 4);
        let first = b.k.eq(b.thread, 0);
        match kept {
            Kept::Yes => b.k.when(first, |k| k.store(word.at(0), b.thread)),
            Kept::No => b.k.store(word.at(0), b.thread),
        }
        b.finish()
    });
}

/// Threads write a tile; one of them sends it to global memory.
fn tile_out(fence: bool, barrier: bool, wait: bool) -> Kernel {
    let mut b = Bench::new(64, None);
    let tile = b.k.shared("tile", 256, 128);
    let at = mine(&mut b, tile);
    b.k.store(at, b.thread);
    if fence {
        b.k.fence_async_shared();
    }
    if barrier {
        b.k.sync_threads();
    }
    let first = b.k.eq(b.thread, 0);
    b.k.if_(first, |k| {
        k.bulk_store(Addr::of(b.output), tile.at(0), 256, None);
        k.bulk_commit();
        if wait {
            k.bulk_wait_read(0);
        }
        let word = k.variable::<U32>(7);
        k.store(tile.at(0), word);
        k.bulk_wait(0);
    });
    b.finish()
}

#[test]
fn a_missing_proxy_fence_is_reported_as_a_race() {
    let fault = rule("race", |kept| tile_out(kept == Kept::Yes, true, true));
    assert!(fault.to_string().contains("fence.proxy.async"), "{fault}");
}

#[test]
fn a_missing_barrier_before_a_bulk_store_is_reported_as_a_race() {
    rule("race", |kept| tile_out(true, kept == Kept::Yes, true));
}

#[test]
fn overwriting_what_a_bulk_store_still_reads_is_a_race() {
    rule("race", |kept| tile_out(true, true, kept == Kept::Yes));
}

#[test]
fn the_proxy_fence_may_stand_on_the_issuers_side() {
    rule("race", |kept| {
        let mut b = Bench::new(64, None);
        let tile = b.k.shared("tile", 256, 128);
        let at = mine(&mut b, tile);
        b.k.store(at, b.thread);
        b.k.sync_threads();
        let first = b.k.eq(b.thread, 0);
        b.k.if_(first, |k| {
            if kept == Kept::Yes {
                k.fence_async_shared();
            }
            k.bulk_store(Addr::of(b.output), tile.at(0), 256, None);
            k.bulk_commit();
            k.bulk_wait(0);
        });
        b.finish()
    });
}

/// One thread fetches a tile; all read it, having waited or not.
fn tile_in(kept: Kept, init_fence: bool) -> Kernel {
    let mut b = Bench::new(64, None);
    let tile = b.k.shared("tile", 256, 128);
    let bars: Barriers = b.k.barriers("bars", 1);
    let first = b.k.eq(b.thread, 0);
    b.k.if_(first, |k| {
        k.barrier_init(bars.at(0), 1);
        if init_fence {
            k.fence_barrier_init();
        }
        k.arrive_expecting(bars.at(0), 256);
        k.bulk_load(tile.at(0), Addr::of(b.input), 256, bars.at(0), CopyOptions::default());
    });
    b.k.sync_threads();
    if kept == Kept::Yes {
        b.k.wait(bars.at(0), 0);
    }
    let at = mine(&mut b, tile);
    let value = b.k.load::<U32, _>(at);
    store_own_word(&mut b, value);
    if kept == Kept::No {
        b.k.wait(bars.at(0), 0);
    }
    b.finish()
}

#[test]
fn reading_a_copys_bytes_before_its_barrier_is_a_race() {
    let fault = rule("race", |kept| tile_in(kept, true));
    let FaultKind::Race { first, .. } = &fault.kind else { panic!("{fault}") };
    assert!(first.asynchronous && first.write, "{fault}");
}

#[test]
fn a_barrier_whose_initialisation_no_fence_published_cannot_count_a_copy() {
    rule_of_the_letter("race", |kept| tile_in(Kept::Yes, kept == Kept::Yes));
}

#[test]
fn shared_bytes_that_nobody_wrote_cannot_be_read() {
    let fault = rule("uninitialised read", |kept| {
        let mut b = Bench::new(32, None);
        let words = b.k.shared("words", 128, 16);
        let at = mine(&mut b, words);
        if kept == Kept::Yes {
            b.k.store(at, b.thread);
        }
        let value = b.k.load::<U32, _>(at);
        store_own_word(&mut b, value);
        b.finish()
    });
    assert!(fault.to_string().contains("words+0"), "{fault}");
}

/// Four words, of which three were written, are read, added to, and brought elsewhere as one.
#[test]
fn what_nobody_wrote_may_be_carried_about_as_long_as_nothing_depends_on_it() {
    rule("uninitialised read", |kept| {
        let mut b = Bench::new(32, None);
        let (words, copy) = (b.k.shared("words", 512, 16), b.k.shared("copy", 512, 16));
        let [from, to] = [words, copy].map(|region| {
            let base = b.k.shared_address(region);
            Addr::<Shared>::of(b.k.mul_add(b.thread, 16, base))
        });
        (0..3).for_each(|word| b.k.store(from.plus(4 * word), b.thread));
        let four: [ptx::Reg<U32>; 4] = b.k.load_vector(from);
        let sums = four.map(|word| b.k.add(word, 1));
        b.k.store_vector(to, sums);
        let four: [ptx::Reg<U32>; 4] = b.k.load_vector(to);
        let wanted = b.k.lt(b.thread, 32);
        let value = b.k.select(wanted, four[2], four[3]);
        store_own_word(&mut b, if kept == Kept::Yes { value } else { four[3] });
        b.finish()
    });
}

#[test]
fn nothing_is_decided_by_what_nobody_wrote() {
    rule("uninitialised read", |kept| {
        let mut b = Bench::new(32, None);
        let words = b.k.shared("words", 128, 16);
        let at = mine(&mut b, words);
        if kept == Kept::Yes {
            b.k.store(at, b.thread);
        }
        let value = b.k.load::<U32, _>(at);
        let odd = b.k.and(value, 1);
        let is_odd = b.k.eq(odd, 1);
        b.k.if_(is_odd, |k| {
            k.add(value, 1);
        });
        b.finish()
    });
}

#[test]
fn global_bytes_that_nobody_wrote_cannot_be_read() {
    rule("uninitialised read", |kept| {
        let mut b = Bench::new(32, None);
        let from = if kept == Kept::Yes { b.input } else { b.output };
        let value = b.k.load::<U32, _>(Addr::<Global>::of(from).plus(2048));
        store_own_word(&mut b, value);
        b.finish()
    });
}

#[test]
fn a_global_access_out_of_bounds_is_reported_with_its_neighbour() {
    let fault = rule("out of bounds", |kept| {
        let mut b = Bench::new(32, None);
        let last = if kept == Kept::Yes { 4092 } else { 4096 };
        b.k.load::<U32, _>(Addr::<Global>::of(b.input).plus(last));
        b.finish()
    });
    assert!(fault.to_string().contains("input+4096, a buffer of 4096 bytes"), "{fault}");
}

#[test]
fn a_shared_access_out_of_bounds_is_reported() {
    rule("out of bounds", |kept| {
        let mut b = Bench::new(32, None);
        let words = b.k.shared("words", 128, 16);
        let at = mine(&mut b, words).plus(if kept == Kept::Yes { 0 } else { 4 });
        b.k.store(at, b.thread);
        b.finish()
    });
}

#[test]
fn a_vector_must_be_aligned_to_its_size() {
    rule("misaligned", |kept| {
        let mut b = Bench::new(32, None);
        let at = Addr::<Global>::of(b.input).plus(if kept == Kept::Yes { 16 } else { 4 });
        b.k.load_vector::<U32, _, 4>(at);
        b.finish()
    });
}

#[test]
fn the_read_only_path_is_for_bytes_that_stay() {
    rule("not read-only", |kept| {
        let mut b = Bench::new(32, None);
        let at = b.k.mul_wide_add(b.thread, 4, b.input);
        let at = Addr::<Global>::of(at);
        if kept == Kept::No {
            b.k.store(at, b.thread);
        }
        b.k.load_as::<U32, _, 1>(LoadOrder::ReadOnly, at);
        b.finish()
    });
}

#[test]
fn a_block_may_not_end_while_its_memory_is_being_read() {
    // In practice a multiprocessor keeps the memory until it is read.
    rule_of_the_letter("unfinished work", |kept| {
        let mut b = Bench::new(32, None);
        let tile = b.k.shared("tile", 128, 128);
        let at = mine(&mut b, tile);
        b.k.store(at, b.thread);
        b.k.fence_async_shared();
        b.k.sync_warp();
        let first = b.k.eq(b.thread, 0);
        b.k.if_(first, |k| {
            k.bulk_store(Addr::of(b.output), tile.at(0), 128, None);
            k.bulk_commit();
            if kept == Kept::Yes {
                k.bulk_wait_read(0);
            }
        });
        b.finish()
    });
}

#[test]
fn bytes_stored_in_bulk_may_be_read_only_after_the_whole_wait() {
    rule("race", |kept| {
        let mut b = Bench::new(32, None);
        let tile = b.k.shared("tile", 128, 128);
        let at = mine(&mut b, tile);
        b.k.store(at, b.thread);
        b.k.fence_async_shared();
        b.k.sync_warp();
        let first = b.k.eq(b.thread, 0);
        b.k.if_(first, |k| {
            k.bulk_store(Addr::of(b.output), tile.at(0), 128, None);
            k.bulk_commit();
            match kept {
                Kept::Yes => k.bulk_wait(0),
                Kept::No => k.bulk_wait_read(0),
            }
            k.load::<U32, _>(Addr::<Global>::of(b.output));
        });
        b.finish()
    });
}

#[test]
fn a_poll_for_what_nobody_does_is_given_up() {
    let mut b = Bench::new(32, None);
    let flag = Addr::<Global>::of(b.input);
    b.k.repeat_while(|k| {
        let [seen] = k.load_as::<U32, _, 1>(LoadOrder::Relaxed(Scope::Gpu), flag);
        k.ne(seen, 2)
    });
    caught("no progress", &b.finish());
}

/// Threads read a tile, and another is copied over it, with what is between.
fn tile_again(between: impl Fn(&mut Bench, Barriers)) -> Kernel {
    let mut b = Bench::new(64, None);
    let tile = b.k.shared("tile", 256, 128);
    let bars: Barriers = b.k.barriers("bars", 2);
    let first = b.k.eq(b.thread, 0);
    b.k.if_(first, |k| {
        k.barrier_init(bars.at(0), 1);
        k.barrier_init(bars.at(1), 64);
        k.fence_barrier_init();
    });
    b.k.sync_threads();
    let at = mine(&mut b, tile);
    for round in 0..2 {
        if round > 0 {
            between(&mut b, bars);
        }
        b.k.if_(first, |k| {
            k.arrive_expecting(bars.at(0), 256);
            k.bulk_load(tile.at(0), Addr::of(b.input), 256, bars.at(0), CopyOptions::default());
        });
        b.k.wait(bars.at(0), round);
        b.k.load::<U32, _>(at);
    }
    b.finish()
}

#[test]
fn what_threads_have_read_needs_a_proxy_fence_before_a_copy_overwrites_it() {
    rule("race", |kept| {
        tile_again(|b, _| {
            b.k.sync_threads();
            if kept == Kept::Yes {
                b.k.fence_async_shared();
            }
        })
    });
}

#[test]
fn a_relaxed_arrive_does_not_let_a_copy_overwrite_what_was_read() {
    rule_of_the_letter("race", |kept| {
        tile_again(|b, bars| {
            let sem = if kept == Kept::Yes { Semantics::Ordered } else { Semantics::Relaxed };
            let (space, scope, bar) = (Space::Shared, Scope::Block, bars.at(1));
            b.k.emit(Barrier::Arrive {
                arrival: None,
                space,
                sem,
                scope,
                bar: bar.address(),
                count: None,
                state: None,
            });
            b.k.wait(bar, 0);
            b.k.fence_async_shared();
        })
    });
}

/// The first warp writes a word; the second makes more accesses than are remembered at a time, and then overwrites it.
#[test]
fn a_race_is_found_however_long_ago_its_first_half_was() {
    let kernel = |kept: Kept| {
        let mut b = Bench::new(64, None);
        let (word, other) = (b.k.shared("word", 4, 4), b.k.shared("other", 4, 4));
        let (first, second) = (b.k.eq(b.thread, 0), b.k.eq(b.thread, 32));
        b.k.when(first, |k| k.store(word.at(0), b.thread));
        if kept == Kept::Yes {
            b.k.sync_threads();
        }
        b.k.if_(second, |k| {
            let rounds = k.variable::<U32>(70_000);
            k.repeat(rounds, |k, _| (0..4).for_each(|_| k.store(other.at(0), b.thread)));
            k.store(word.at(0), b.thread);
        });
        b.finish()
    };
    run(&kernel(Kept::Yes), Schedule::Earliest).unwrap_or_else(|fault| panic!("{fault}"));
    let fault = run(&kernel(Kept::No), Schedule::Earliest).expect_err("nothing orders the two");
    assert!(fault.kind.name() == "race" && fault.to_string().contains("word+0"), "{fault}");
}

#[test]
fn a_prefetch_is_of_whole_pieces_as_a_copy_is() {
    let kernel = |offset: u32, bytes: u32| {
        let mut b = Bench::new(32, None);
        let one = b.one();
        let (offset, bytes) = (b.k.add(one, offset), b.k.add(one, bytes));
        let at = b.k.mul_wide_add(offset, 1, b.input);
        b.k.bulk_prefetch(Addr::of(at), bytes);
        b.finish()
    };
    rule("misaligned", |kept| kernel(if kept == Kept::Yes { 15 } else { 7 }, 63));
    rule("bad operand", |kept| kernel(15, if kept == Kept::Yes { 63 } else { 59 }));
}

#[test]
fn what_a_division_by_zero_gives_is_not_used() {
    for remainder in [false, true] {
        rule("bad operand", |kept| {
            let mut b = Bench::new(32, None);
            let one = b.one();
            let zero = b.k.sub(one, 1);
            let open = if remainder { b.k.rem(one, zero) } else { b.k.div(one, zero) };
            let open = b.k.add(open, 1);
            let divides = b.k.ne(zero, 0);
            let value = b.k.select(divides, open, 7);
            store_own_word(&mut b, if kept == Kept::Yes { value } else { open });
            b.finish()
        });
    }
}

#[test]
fn a_multiprocessor_has_another_number_than_its_block() {
    rule("trap", |kept| {
        let mut b = Bench::new(32, None);
        let which = if kept == Kept::Yes { SpecialRegister::CtaidX } else { SpecialRegister::SmId };
        let block = b.k.special(which);
        let other = b.k.ne(block, 0);
        b.k.if_(other, |k| k.trap());
        b.finish()
    });
}
