//! Flags in memory: who learns what by them, and what may be seen beside them.

use ptx::instr::{LoadOrder, StoreOrder};
use ptx::{Addr, Builder, Global, Kernel, Reg, Scope, Shared, SpecialRegister, U32};
use sim::{Rules, Schedule};

use super::{Bench, Kept, caught_by, rule, run};

/// The words that two blocks share. The input is full of ones.
#[derive(Clone, Copy)]
struct Words {
    /// Raised from one to two.
    flag: Addr<Global>,
    /// Set from one to two.
    data: Addr<Global>,
    two: Reg<U32>,
    lane: Reg<U32>,
}

/// Two blocks of a warp: one does `write`; the first thread of the other waits for the flag and does `read`.
fn blocks(wait: LoadOrder, write: impl Fn(&mut Builder, Words), read: impl Fn(&mut Builder, Words)) -> Kernel {
    let mut b = Bench::new(32, Some([2, 1, 1]));
    let block = b.k.special(SpecialRegister::CtaidX);
    let (first, second, lead) = (b.k.eq(block, 0), b.k.ne(block, 0), b.k.eq(b.thread, 0));
    let reader = b.k.both(second, lead);
    let (flag, data) = (Addr::of(b.input).plus(4), Addr::of(b.input).plus(8));
    let words = Words { flag, data, two: b.k.variable(2), lane: b.thread };
    b.k.if_(first, |k| write(k, words));
    b.k.if_(reader, |k| {
        k.repeat_while(|k| {
            let [seen] = k.load_as::<U32, _, 1>(wait, flag);
            k.ne(seen, 2)
        });
        read(k, words);
    });
    b.finish()
}

/// The first lane stores the data and raises the flag.
fn plain(store: StoreOrder, wait: LoadOrder) -> Kernel {
    let write = |k: &mut Builder, words: Words| {
        let lead = k.eq(words.lane, 0);
        k.if_(lead, |k| {
            k.store(words.data, words.two);
            k.store_as(store, words.flag, [words.two]);
        });
    };
    blocks(wait, write, |k, words| {
        k.load::<U32, _>(words.data);
    })
}

const RELEASE: StoreOrder = StoreOrder::Release(Scope::Gpu);
const ACQUIRE: LoadOrder = LoadOrder::Acquire(Scope::Gpu);
const RELAXED: (StoreOrder, LoadOrder) = (StoreOrder::Relaxed(Scope::Gpu), LoadOrder::Relaxed(Scope::Gpu));

#[test]
fn a_flag_publishes_only_with_release_and_acquire() {
    rule("race", |kept| plain(if kept == Kept::Yes { RELEASE } else { RELAXED.0 }, ACQUIRE));
    rule("race", |kept| plain(RELEASE, if kept == Kept::Yes { ACQUIRE } else { RELAXED.1 }));
}

#[test]
fn a_flag_reaches_those_in_its_scope_who_have_it_in_theirs() {
    rule("race", |kept| plain(if kept == Kept::Yes { RELEASE } else { StoreOrder::Release(Scope::Block) }, ACQUIRE));
    rule("race", |kept| plain(RELEASE, if kept == Kept::Yes { ACQUIRE } else { LoadOrder::Acquire(Scope::Block) }));
    rule("race", |kept| match kept {
        Kept::Yes => plain(StoreOrder::Release(Scope::Cluster), LoadOrder::Acquire(Scope::Cluster)),
        Kept::No => plain(StoreOrder::Release(Scope::Block), LoadOrder::Acquire(Scope::Block)),
    });
}

/// The same by fences: `scopes` are the writer's and the reader's, `own` whether the lane that stored the data has
/// fenced and raises the flag, or another lane does.
fn fenced(scopes: [Scope; 2], own: bool) -> Kernel {
    let write = |k: &mut Builder, words: Words| {
        let (writer, other) = (k.eq(words.lane, 0), k.eq(words.lane, 1));
        k.if_(writer, |k| {
            k.store(words.data, words.two);
            k.fence(scopes[0]);
        });
        k.when(if own { writer } else { other }, |k| k.store_as(RELAXED.0, words.flag, [words.two]));
    };
    let read = |k: &mut Builder, words: Words| {
        k.fence(scopes[1]);
        k.load::<U32, _>(words.data);
    };
    blocks(RELAXED.1, write, read)
}

#[test]
fn a_fence_covers_its_own_thread() {
    rule("race", |kept| fenced([Scope::Gpu; 2], kept == Kept::Yes));
}

#[test]
fn a_fence_reaches_as_far_as_its_scope() {
    rule("race", |kept| fenced([if kept == Kept::Yes { Scope::Gpu } else { Scope::Block }, Scope::Gpu], true));
    rule("race", |kept| fenced([Scope::Gpu, if kept == Kept::Yes { Scope::Gpu } else { Scope::Block }], true));
}

/// Data and flag are both relaxed: nothing races, and yet the data may be old when the flag is new.
#[test]
fn relaxed_data_behind_a_relaxed_flag_may_be_old() {
    rule("trap", |kept| {
        let fences = kept == Kept::Yes;
        let write = |k: &mut Builder, words: Words| {
            let lead = k.eq(words.lane, 0);
            k.if_(lead, |k| {
                k.store_as(RELAXED.0, words.data, [words.two]);
                if fences {
                    k.fence(Scope::Gpu);
                }
                k.store_as(RELAXED.0, words.flag, [words.two]);
            });
        };
        let read = |k: &mut Builder, words: Words| {
            if fences {
                k.fence(Scope::Gpu);
            }
            let [seen] = k.load_as::<U32, _, 1>(RELAXED.1, words.data);
            let old = k.ne(seen, 2);
            k.if_(old, |k| k.trap());
        };
        blocks(RELAXED.1, write, read)
    });
}

/// Two blocks of two warps write their parts and count themselves; the last one adds up. Every thread fences what it
/// wrote, or the one that counts does so for all it has met.
fn last_adds_up(fence_of_all: bool, fence_of_one: bool) -> Kernel {
    let mut b = Bench::new(64, Some([2, 1, 1]));
    let (last, block) = (b.k.shared("last", 4, 4), b.k.special(SpecialRegister::CtaidX));
    let (lead, one) = (b.k.eq(b.thread, 0), b.one());
    let index = b.k.mul_add(block, 64, b.thread);
    let part = b.k.mul_wide_add(index, 4, b.output);
    b.k.store(Addr::<Global>::of(part), one);
    if fence_of_all {
        b.k.fence(Scope::Gpu);
    }
    b.k.sync_threads();
    let counter = Addr::<Global>::of(b.input).plus(4);
    b.k.if_(lead, |k| {
        if fence_of_one {
            k.fence(Scope::Gpu);
        }
        let before = k.atomic_add::<U32, _>(Scope::Gpu, counter, 1);
        k.fence(Scope::Gpu);
        k.store(last.at(0), before);
    });
    b.k.sync_threads();
    let before = b.k.load::<U32, Shared>(last.at(0));
    let is_last = b.k.eq(before, 2);
    let own = b.k.mul_wide_add(b.thread, 4, b.output);
    b.k.if_(is_last, |k| {
        let (first, second) = (Addr::<Global>::of(own), Addr::<Global>::of(own).plus(256));
        let (first, second): (Reg<U32>, Reg<U32>) = (k.load(first), k.load(second));
        let sum = k.add(first, second);
        k.store(Addr::<Global>::of(own).plus(512), sum);
    });
    b.finish()
}

#[test]
fn parts_are_added_up_by_whoever_counts_last() {
    rule("race", |kept| last_adds_up(false, kept == Kept::Yes));
    // Published kernels let all threads fence before they meet; by the letter it takes a fence of the one that counts.
    let by_all = last_adds_up(true, false);
    Schedule::several(8).into_iter().for_each(|schedule| run(&by_all, schedule).expect("in practice this passes"));
    caught_by(Rules::Letter, "race", &by_all);
}
