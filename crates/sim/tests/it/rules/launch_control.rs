//! Clusters that do the work of others that have not begun.

use ptx::instr::Semantics;
use ptx::{Addr, Builder, Global, Kernel, LaunchBounds as Shape, Scope, Shared, SpecialRegister, Target, U32, U64};
use sim::{Fault, Gpu, Invocation, Limits, Rules, Schedule};

/// Tiles of a launch: one per cluster.
const TILES: u32 = 7;

/// What the kernel does wrong, if anything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slip {
    None,
    /// The answer is read before it is known to be there.
    NoWait,
    /// Its bytes are not announced.
    NotAnnounced,
    /// It is overwritten by the next one without a fence between the proxies.
    NoFence,
    /// It is overwritten by the next one while others may still read it.
    NotMet,
    /// One more is asked for behind the last.
    AsksAgain,
    /// The block is read off an answer that says that there is none.
    Unasked,
    /// What is read is no answer.
    OtherBytes,
    /// The other block of a cluster is not told.
    ToOneBlock,
    /// A tile that was taken over is left out.
    LeftOut,
}

/// Two warps of each block of a cluster have one tile after the other: the cluster's own, and those that it takes over.
/// Each block adds one to a word of its own for every tile.
fn kernel(blocks: u32, slip: Slip) -> Kernel {
    let shape = Shape { threads: 64, cluster: (blocks > 1).then_some([blocks, 1, 1]), min_blocks: Some(1) };
    let mut k = Builder::new("claims", Target::Sm100f, shape);
    let out = k.pointer("out");
    let (answer, bars) = (k.shared("answer", 32, 16), k.barriers("bars", 1));
    let (thread, first) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    let rank = k.special(SpecialRegister::ClusterCtaRank);
    let lead = k.eq(thread, 0);
    k.if_(lead, |k| {
        k.barrier_init(bars.at(0), 1);
        k.fence_barrier_init();
        let zero = k.variable::<U32>(0);
        k.store_vector(answer.at(16), [zero; 4]);
    });
    meet(&mut k, blocks);
    let (asks, parity) = (k.eq(rank, 0), k.variable::<U32>(0));
    let asks = k.both(asks, lead);
    let own = k.variable(first);
    let (done, head, end) = (k.label(), k.label(), k.label());
    let ask = |k: &mut Builder| {
        k.if_(
            lead,
            |k| if slip == Slip::NotAnnounced { k.arrive(bars.at(0)) } else { k.arrive_expecting(bars.at(0), 16) },
        );
        k.if_(asks, |k| k.try_cancel(answer.at(0), bars.at(0), blocks > 1 && slip != Slip::ToOneBlock));
    };
    k.place(head);
    ask(&mut k);
    let to = k.mul_wide_add(own, 4, out);
    k.if_(lead, |k| k.store(Addr::<Global>::of(to), own));
    if slip != Slip::NoWait {
        k.wait_at(bars.at(0), parity, Scope::Cluster);
    }
    let words: [ptx::Reg<U64>; 2] =
        k.load_vector::<U64, Shared, 2>(answer.at(if slip == Slip::OtherBytes { 16 } else { 0 }));
    if slip != Slip::NoFence {
        k.fence_async_shared();
    }
    if slip != Slip::NotMet {
        meet(&mut k, blocks);
    }
    let cancelled = k.is_canceled(words);
    if slip != Slip::Unasked {
        k.branch_unless(cancelled, done);
    }
    let [x, ..] = k.first_block(words);
    let next = k.add(x, rank);
    k.set(own, next);
    let flipped = k.xor(parity, 1);
    k.set(parity, flipped);
    if slip == Slip::LeftOut {
        let left_out = k.eq(x, (TILES - 2) * blocks);
        k.branch_if(left_out, done);
    }
    k.branch(head);
    k.place(done);
    if slip == Slip::AsksAgain {
        ask(&mut k);
        let flipped = k.xor(parity, 1);
        k.wait_at(bars.at(0), flipped, Scope::Cluster);
    }
    k.place(end);
    meet(&mut k, blocks);
    k.finish().expect("the kernel is well formed")
}

fn meet(k: &mut Builder, blocks: u32) {
    if blocks > 1 {
        k.cluster_arrive(Semantics::Ordered, true);
        k.cluster_wait(true);
    } else {
        k.sync_threads();
    }
}

/// What became of every block's tile, by the letter; words that nobody has written are told apart.
fn run(blocks: u32, slip: Slip, schedule: Schedule) -> Result<Option<Vec<u32>>, Box<Fault>> {
    let mut gpu = Gpu::new(Limits::b200()).with_rules(Rules::Letter);
    let out = gpu.alloc("out", (TILES * blocks) as usize * 4);
    let launch = Invocation { grid: [TILES * blocks, 1, 1], args: vec![out.into()] };
    gpu.run(&kernel(blocks, slip), &launch, schedule)?;
    let words = gpu.download(out).ok().map(|bytes| bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)));
    Ok(words.map(Iterator::collect))
}

fn found(blocks: u32, slip: Slip) -> Vec<&'static str> {
    let fault = |schedule| run(blocks, slip, schedule).err().map(|fault| fault.kind.name());
    Schedule::several(8).into_iter().filter_map(fault).collect()
}

#[test]
fn every_tile_is_done_once_whoever_gets_it() {
    for blocks in [1, 2, 4] {
        for schedule in Schedule::several(12) {
            let found = run(blocks, Slip::None, schedule).unwrap_or_else(|fault| panic!("{fault}"));
            assert_eq!(found, Some((0..TILES * blocks).collect()), "{blocks} blocks, {schedule}");
        }
    }
}

#[test]
fn a_cluster_that_was_cancelled_never_begins() {
    // Under the latest schedule one cluster runs at a time, and the first does all the work: what it leaves out stays
    // undone.
    assert_eq!(run(1, Slip::LeftOut, Schedule::Latest).unwrap_or_else(|fault| panic!("{fault}")), None);
}

#[test]
fn an_answer_is_awaited_and_its_bytes_are_announced() {
    assert!(found(1, Slip::NoWait).iter().any(|name| ["race", "uninitialised"].contains(name)));
    assert!(!found(1, Slip::NotAnnounced).is_empty());
}

#[test]
fn an_answer_is_overwritten_when_all_have_read_it() {
    assert!(found(1, Slip::NoFence).contains(&"race"));
    assert!(found(1, Slip::NotMet).contains(&"race"));
    assert!(found(2, Slip::NotMet).contains(&"race"));
}

#[test]
fn behind_a_refusal_nobody_asks_again() {
    assert!(found(1, Slip::AsksAgain).contains(&"bad operand"));
}

#[test]
fn only_an_answer_that_says_so_has_a_first_block() {
    assert!(found(1, Slip::Unasked).contains(&"bad operand"));
    assert!(found(1, Slip::OtherBytes).contains(&"bad operand"));
}

#[test]
fn every_block_of_a_cluster_gets_the_answer_if_it_is_multicast() {
    assert!(found(2, Slip::ToOneBlock).contains(&"deadlock"));
}
