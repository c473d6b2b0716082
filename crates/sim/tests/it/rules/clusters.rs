//! Blocks of a cluster: reaching into each other's memory, and staying until nobody needs it.

use std::collections::BTreeSet;

use ptx::instr::{Barrier, Semantics};
use ptx::{Addr, Cluster, CopyOptions, CtaGroup, Kernel, Reg, Scope, Shared, SpecialRegister, Target, U16, U32};

use sim::{Rules, Schedule};

use super::{Bench, Kept, caught, rule, rule_of_the_letter};

fn pair() -> (Bench, Reg<U32>) {
    let mut b = Bench::new(32, Some([2, 1, 1]));
    let rank = b.k.special(SpecialRegister::ClusterCtaRank);
    (b, rank)
}

fn cluster_barrier(b: &mut Bench) {
    b.k.cluster_arrive(Semantics::Ordered, true);
    b.k.cluster_wait(true);
}

/// Each block writes its words, and reads the other's.
fn exchange(before: bool, after: bool) -> Kernel {
    let (mut b, rank) = pair();
    let words = b.k.shared("words", 128, 16);
    let base = b.k.shared_address(words);
    let at = b.k.mul_add(b.thread, 4, base);
    b.k.store(Addr::<Shared>::of(at), b.thread);
    if before {
        cluster_barrier(&mut b);
    }
    let other = b.k.xor(rank, 1);
    let remote = b.k.map_shared(at, other);
    b.k.load::<U32, Cluster>(Addr::of(remote));
    if after {
        cluster_barrier(&mut b);
    }
    b.finish()
}

#[test]
fn a_block_must_stay_while_others_read_its_memory() {
    rule("block ended", |kept| exchange(true, kept == Kept::Yes));
}

#[test]
fn another_blocks_words_need_a_cluster_barrier() {
    let broken = exchange(false, true);
    assert!(exchange(true, true) != broken);
    for schedule in sim::Schedule::several(8) {
        let fault = super::run(&broken, schedule).expect_err("nothing orders the two blocks");
        assert_eq!(fault.kind.name(), "block not started", "{fault}");
    }
}

#[test]
fn a_cluster_barrier_is_arrived_at_once_and_then_waited_for() {
    rule("over-arrival", |kept| {
        let (mut b, _) = pair();
        b.k.cluster_arrive(Semantics::Ordered, true);
        if kept == Kept::Yes {
            b.k.cluster_wait(true);
        }
        b.k.cluster_arrive(Semantics::Ordered, true);
        b.k.cluster_wait(true);
        b.finish()
    });
}

/// Block 1 writes a word of block 0 and arrives there; block 0 waits and reads.
fn send(scope: Scope) -> Kernel {
    let (mut b, rank) = pair();
    let word = b.k.shared("word", 4, 4);
    let bars = b.k.barriers("bars", 1);
    let lead = b.k.eq(b.thread, 0);
    b.k.if_(lead, |k| {
        k.barrier_init(bars.at(0), 1);
        k.fence_barrier_init();
    });
    cluster_barrier(&mut b);
    let second = b.k.eq(rank, 1);
    let (writer, first) = (b.k.both(second, lead), b.k.opposite(second));
    b.k.if_(writer, |k| {
        let (word, bar) = (k.shared_address(word), k.shared_address(bars.region()));
        let (word, bar) = (k.map_shared(word, 0), k.map_shared(bar, 0));
        k.store(Addr::<Cluster>::of(word), b.thread);
        k.arrive_remote(Addr::of(bar), Semantics::Ordered, scope);
    });
    let reader = b.k.both(first, lead);
    b.k.if_(reader, |k| {
        k.wait_at(bars.at(0), 0, Scope::Cluster);
        k.load::<U32, Shared>(word.at(0));
    });
    cluster_barrier(&mut b);
    b.finish()
}

#[test]
fn a_remote_arrive_publishes_only_at_cluster_scope() {
    rule("race", |kept| send(if kept == Kept::Yes { Scope::Cluster } else { Scope::Block }));
}

/// Block 0 multicasts a tile into both blocks, again and again; each block says when it has read it.
#[test]
fn a_remote_arrive_at_cluster_scope_lets_a_copy_overwrite_what_was_read() {
    let kernel = |waits: bool, scope: Scope| {
        let (mut b, rank) = pair();
        let tile = b.k.shared("tile", 128, 128);
        let (full, empty) = (b.k.barriers("full", 1), b.k.barriers("empty", 1));
        let lead = b.k.eq(b.thread, 0);
        b.k.if_(lead, |k| {
            k.barrier_init(full.at(0), 1);
            k.barrier_init(empty.at(0), 2);
            k.fence_barrier_init();
        });
        cluster_barrier(&mut b);
        let first = b.k.eq(rank, 0);
        let producer = b.k.both(first, lead);
        for round in 0..2 {
            b.k.when(lead, |k| k.arrive_expecting(full.at(0), 128));
            b.k.if_(producer, |k| {
                if waits || round == 0 {
                    k.wait_at(empty.at(0), 1 - round, Scope::Cluster);
                    k.fence_async_shared();
                }
                let multicast = Some(k.variable::<U16>(3u16));
                let options = CopyOptions { multicast, policy: None };
                k.bulk_load(tile.at(0), Addr::of(b.input), 128, full.at(0), options);
            });
            b.k.wait(full.at(0), round);
            let base = b.k.shared_address(tile);
            let at = b.k.mul_add(b.thread, 4, base);
            b.k.load::<U32, Shared>(Addr::of(at));
            b.k.sync_warp();
            let bar = b.k.shared_address(empty.region());
            let bar = b.k.map_shared(bar, 0);
            b.k.when(lead, |k| k.arrive_remote(Addr::of(bar), Semantics::Ordered, scope));
        }
        cluster_barrier(&mut b);
        b.finish()
    };
    rule("race", |kept| kernel(kept == Kept::Yes, Scope::Cluster));
    rule_of_the_letter("race", |kept| kernel(true, if kept == Kept::Yes { Scope::Cluster } else { Scope::Block }));
}

/// Two pairs of blocks share what is copied: the first block of each brings half of a tile for both, again and again,
/// and the second block of each pair has nothing to do with it.
#[test]
fn what_blocks_of_two_pairs_share_is_overwritten_when_both_have_released_it() {
    let kernel = |told: u32| {
        let mut b = Bench::on(Target::Sm100a, 32, Some([4, 1, 1]));
        let rank = b.k.special(SpecialRegister::ClusterCtaRank);
        let tile = b.k.shared("tile", 128, 128);
        let (full, empty) = (b.k.barriers("full", 1), b.k.barriers("empty", 1));
        let lead = b.k.eq(b.thread, 0);
        b.k.if_(lead, |k| {
            k.barrier_init(full.at(0), 1);
            k.barrier_init(empty.at(0), told);
            k.fence_barrier_init();
        });
        cluster_barrier(&mut b);
        let (pair, place) = (b.k.shr(rank, 1), b.k.and(rank, 1));
        let shares = b.k.eq(place, 0);
        let sender = b.k.both(shares, lead);
        let (half, base) = (b.k.mul(pair, 64), b.k.shared_address(tile));
        let (own_half, word) = (b.k.add(base, half), b.k.mul_add(b.thread, 4, base));
        for round in 0..2 {
            b.k.if_(sender, |k| {
                k.wait_at(empty.at(0), 1 - round, Scope::Cluster);
                k.fence_async_shared();
                // Both halves are awaited here, whoever brings them.
                k.arrive_expecting(full.at(0), 128);
                let options = CopyOptions { multicast: Some(k.variable::<U16>(0b0101u16)), policy: None };
                k.bulk_load(Addr::of(own_half), Addr::of(b.input), 64, full.at(0), options);
            });
            b.k.if_(shares, |k| {
                k.wait(full.at(0), round);
                k.load::<U32, Shared>(Addr::of(word));
            });
            b.k.sync_warp();
            b.k.if_(sender, |k| {
                let own = k.shared_address(empty.region());
                // One that tells its own block alone leaves the other's copy to overwrite what is still read.
                for other in [0u32, 2].into_iter().take(told as usize) {
                    let to = if told == 1 { k.map_shared(own, rank) } else { k.map_shared(own, other) };
                    k.arrive_remote(Addr::of(to), Semantics::Ordered, Scope::Cluster);
                }
            });
        }
        cluster_barrier(&mut b);
        b.finish()
    };
    rule("race", |kept| kernel(if kept == Kept::Yes { 2 } else { 1 }));
}

#[test]
fn a_rank_beyond_the_cluster_is_refused() {
    let (mut b, _) = pair();
    let words = b.k.shared("words", 128, 16);
    let base = b.k.shared_address(words);
    let one = b.one();
    let rank = b.k.add(one, 1);
    b.k.map_shared(base, rank);
    caught("bad operand", &b.finish());
}

#[test]
fn waiting_at_a_cluster_barrier_without_arriving_is_refused() {
    let (mut b, _) = pair();
    b.k.emit(Barrier::ClusterWait { aligned: true });
    caught("bad operand", &b.finish());
}

#[test]
fn threads_that_have_exited_are_not_awaited_at_the_clusters_barrier() {
    rule("deadlock", |kept| {
        let (mut b, rank) = pair();
        let never = b.k.barriers("never", 1);
        let lead = b.k.eq(b.thread, 0);
        b.k.when(lead, |k| k.barrier_init(never.at(0), 1));
        b.k.sync_warp();
        let gone = b.k.eq(rank, 1);
        b.k.if_(gone, |k| match kept {
            Kept::Yes => k.exit(),
            Kept::No => k.wait(never.at(0), 0),
        });
        cluster_barrier(&mut b);
        b.finish()
    });
}

/// Both blocks' first threads, and the address of a region in the block of rank 0.
fn in_first_block(b: &mut Bench, region: ptx::SharedRegion) -> Reg<U32> {
    let own = b.k.shared_address(region);
    b.k.map_shared(own, 0)
}

/// Block 1 has a tile copied into block 0's memory, where it is read.
#[test]
fn a_copy_to_another_block_is_counted_by_a_barrier_there() {
    rule("bad operand", |kept| {
        let (mut b, rank) = pair();
        let tile = b.k.shared("tile", 128, 128);
        let bars = b.k.barriers("bars", 1);
        let (lead, second) = (b.k.eq(b.thread, 0), b.k.eq(rank, 1));
        b.k.if_(lead, |k| {
            k.barrier_init(bars.at(0), 1);
            k.fence_barrier_init();
            k.arrive_expecting(bars.at(0), 128);
        });
        cluster_barrier(&mut b);
        let (to, bar) = (in_first_block(&mut b, tile), in_first_block(&mut b, bars.region()));
        let sender = b.k.both(second, lead);
        b.k.if_(sender, |k| {
            let bar = if kept == Kept::Yes { Addr::<Shared>::of(bar) } else { bars.at(0) };
            k.bulk_load(Addr::of(to), Addr::of(b.input), 128, bar, CopyOptions::default());
            // So that its own barrier is in balance.
            k.bulk_load(tile.at(0), Addr::of(b.input), 128, bars.at(0), CopyOptions::default());
        });
        b.k.wait(bars.at(0), 0);
        b.k.load::<U32, Shared>(tile.at(0));
        cluster_barrier(&mut b);
        b.finish()
    });
}

/// Block 1 tells block 0 that its tensor cores are done.
#[test]
fn a_commit_arrives_at_the_barrier_of_the_block_that_it_names() {
    rule("deadlock", |kept| {
        let mut b = Bench::on(Target::Sm100a, 32, Some([2, 1, 1]));
        let rank = b.k.special(SpecialRegister::ClusterCtaRank);
        let bars = b.k.barriers("bars", 1);
        let (lead, second) = (b.k.eq(b.thread, 0), b.k.eq(rank, 1));
        b.k.if_(lead, |k| {
            k.barrier_init(bars.at(0), 1);
            k.fence_barrier_init();
        });
        cluster_barrier(&mut b);
        let bar = in_first_block(&mut b, bars.region());
        let (sender, first) = (b.k.both(second, lead), b.k.opposite(second));
        b.k.if_(sender, |k| {
            let bar = if kept == Kept::Yes { Addr::<Shared>::of(bar) } else { bars.at(0) };
            k.tensor_commit(CtaGroup::One, bar, None);
        });
        b.k.if_(first, |k| k.wait_at(bars.at(0), 0, Scope::Cluster));
        cluster_barrier(&mut b);
        b.finish()
    });
}

/// Where a barrier is initialised and fenced, before its block arrives at the cluster's barrier, relaxed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Initialised {
    Fenced,
    Unfenced,
    /// Behind the arrival: the peer may be there first.
    TooLate,
}

/// Each block initialises a barrier, and arrives at the other's behind a relaxed barrier of the cluster.
fn announce(when: Initialised) -> Kernel {
    let (mut b, rank) = pair();
    let bars = b.k.barriers("bars", 1);
    let lead = b.k.eq(b.thread, 0);
    if when == Initialised::TooLate {
        b.k.cluster_arrive(Semantics::Relaxed, true);
    }
    b.k.if_(lead, |k| {
        k.barrier_init(bars.at(0), 1);
        if when != Initialised::Unfenced {
            k.fence_barrier_init();
        }
    });
    if when != Initialised::TooLate {
        b.k.cluster_arrive(Semantics::Relaxed, true);
    }
    b.k.cluster_wait(true);
    let (own, other) = (b.k.shared_address(bars.region()), b.k.xor(rank, 1));
    let remote = b.k.map_shared(own, other);
    b.k.when(lead, |k| k.arrive_remote(Addr::of(remote), Semantics::Ordered, Scope::Cluster));
    b.k.if_(lead, |k| k.wait_at(bars.at(0), 0, Scope::Cluster));
    cluster_barrier(&mut b);
    b.finish()
}

/// The idiom of every published kernel: barriers are initialised, released by their own fence, and the cluster's
/// barrier is arrived at relaxed. CUTLASS initialises one of them behind the fence.
#[test]
fn the_fence_of_an_initialisation_releases_it_through_a_relaxed_cluster_barrier() {
    rule_of_the_letter("race", |kept| {
        announce(if kept == Kept::Yes { Initialised::Fenced } else { Initialised::Unfenced })
    });
}

/// What is granted is an order of execution, and here is none.
#[test]
fn a_barrier_that_is_initialised_behind_the_arrival_is_not_known_to_the_peer() {
    let broken = announce(Initialised::TooLate);
    for rules in [Rules::Practice, Rules::Letter] {
        let faults = Schedule::several(20).into_iter().filter_map(|at| super::run_by(rules, &broken, at).err());
        let names: BTreeSet<&str> = faults.map(|fault| fault.kind.name()).collect();
        assert_eq!(names, BTreeSet::from(["not a barrier", "race"]), "{rules:?}");
    }
}

/// Each block writes a word of the other's memory, which nobody reads.
#[test]
fn a_block_must_have_started_before_others_reach_into_it() {
    rule("block not started", |kept| {
        let (mut b, rank) = pair();
        let word = b.k.shared("word", 4, 4);
        if kept == Kept::Yes {
            b.k.cluster_arrive(Semantics::Relaxed, true);
            b.k.cluster_wait(true);
        }
        let (own, other) = (b.k.shared_address(word), b.k.xor(rank, 1));
        let remote = b.k.map_shared(own, other);
        let lead = b.k.eq(b.thread, 0);
        b.k.when(lead, |k| k.store(Addr::<Cluster>::of(remote), b.thread));
        cluster_barrier(&mut b);
        b.finish()
    });
}

/// The last act of each block is to arrive at a barrier of the other's, for which that one does not wait.
#[test]
fn a_block_may_not_end_before_it_knows_that_others_are_done_with_it() {
    let last = |kept: Kept| {
        let (mut b, rank) = pair();
        let bars = b.k.barriers("bars", 1);
        let lead = b.k.eq(b.thread, 0);
        b.k.if_(lead, |k| {
            k.barrier_init(bars.at(0), 1);
            k.fence_barrier_init();
        });
        cluster_barrier(&mut b);
        let (own, other) = (b.k.shared_address(bars.region()), b.k.xor(rank, 1));
        let remote = b.k.map_shared(own, other);
        b.k.when(lead, |k| k.arrive_remote(Addr::of(remote), Semantics::Ordered, Scope::Cluster));
        if kept == Kept::Yes {
            b.k.if_(lead, |k| k.wait_at(bars.at(0), 0, Scope::Cluster));
        }
        b.finish()
    };
    rule("block ended", last);
    // Not by luck: whatever the order in which the two happened to run.
    for schedule in sim::Schedule::several(8) {
        let fault = super::run(&last(Kept::No), schedule).expect_err("nobody waits");
        assert_eq!(fault.kind.name(), "block ended", "{fault}");
    }
}

#[test]
fn what_another_block_stored_needs_a_proxy_fence_before_the_copy_engine_reads_it() {
    rule("race", |kept| {
        let mut b = Bench::new(32, Some([2, 1, 1]));
        let (bars, tile) = (b.k.barriers("bars", 1), b.k.shared("tile", 128, 128));
        let (rank, lead) = (b.k.special(SpecialRegister::ClusterCtaRank), b.k.eq(b.thread, 0));
        b.k.if_(lead, |k| {
            k.barrier_init(bars.at(0), 1);
            k.fence_barrier_init();
            k.arrive_expecting(bars.at(0), 128);
        });
        cluster_barrier(&mut b);
        let (own, value) = ([tile, bars.region()].map(|region| b.k.shared_address(region)), b.one());
        let other = b.k.xor(rank, 1);
        let [to, bar] = own.map(|own| b.k.map_shared(own, other));
        let to = b.k.mul_add(b.thread, 4, to);
        b.k.store_async(Addr::<Cluster>::of(to), &[value], Addr::<Cluster>::of(bar));
        b.k.wait_at(bars.at(0), 0, Scope::Cluster);
        if kept == Kept::Yes {
            b.k.fence_async_shared();
        }
        b.k.sync_warp();
        let output = b.k.mul_wide_add(rank, 128, b.output);
        b.k.if_(lead, |k| {
            k.bulk_store(Addr::of(output), tile.at(0), 128, None);
            k.bulk_commit();
            k.bulk_wait(0);
        });
        cluster_barrier(&mut b);
        b.finish()
    });
}
