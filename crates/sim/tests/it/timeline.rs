//! Timelines: what a run did when, by schedule.

use ptx::{Addr, Builder, CopyOptions, Global, Kernel, LaunchBounds, Shared, SpecialRegister, Target, U32};
use sim::timeline::{Cause, Kind};
use sim::{Gpu, Invocation, Limits, Schedule, Timeline};

/// Doubles 64 words in so many rounds: one thread fetches them, all double them, one sends them back.
fn double(rounds: u32) -> Kernel {
    let mut k = Builder::new("double", Target::Sm90a, LaunchBounds { threads: 64, cluster: None, min_blocks: None });
    let (input, output) = (k.pointer("input"), k.pointer("output"));
    let words = k.shared("words", 256 * rounds, 128);
    let arrived = k.barriers("arrived", rounds);
    let thread = k.special(SpecialRegister::TidX);
    let leader = k.eq(thread, 0);
    k.if_(leader, |k| {
        (0..rounds).for_each(|round| k.barrier_init(arrived.at(round), 1));
        k.fence_barrier_init();
    });
    k.sync_threads();
    k.if_(leader, |k| {
        for round in 0..rounds {
            k.arrive_expecting(arrived.at(round), 256);
            let options = CopyOptions::default();
            k.bulk_load(words.at(256 * round), Addr::of(input), 256, arrived.at(round), options);
        }
    });
    for round in 0..rounds {
        k.wait(arrived.at(round), 0);
        let base = k.shared_address(words);
        let mine = Addr::<Shared>::of(k.mul_add(thread, 4, base)).plus(256 * round as i32);
        let value = k.load::<U32, _>(mine);
        let twice = k.add(value, value);
        k.store(mine, twice);
    }
    k.fence_async_shared();
    k.sync_threads();
    k.if_(leader, |k| {
        k.bulk_store(Addr::<Global>::of(output), words.at(0), 256, None);
        k.bulk_commit();
        k.bulk_wait(0);
    });
    k.finish().expect("a kernel")
}

fn timeline(schedule: Schedule) -> Timeline {
    let mut gpu = Gpu::new(Limits::h200());
    let (input, output) = (gpu.upload("input", &[1; 256]), gpu.alloc("output", 256));
    let launch = Invocation { grid: [2, 1, 1], args: vec![input.into(), output.into()] };
    gpu.timeline(&double(2), &launch, schedule)
}

#[test]
fn copies_lie_from_their_issue_to_their_end() {
    for (schedule, overlap) in [(Schedule::Earliest, false), (Schedule::Latest, true)] {
        let run = timeline(schedule);
        let copies: Vec<_> = run.works.iter().filter(|work| work.kind == Kind::Copy).collect();
        assert_eq!(copies.len(), 2, "one block is followed");
        assert_eq!(copies.iter().map(|copy| copy.stage).collect::<Vec<_>>(), [Some(0), Some(1)], "by their barriers");
        assert_eq!(copies[1].place.as_deref(), Some("words+256"));
        assert!(copies.iter().all(|copy| copy.to.is_some_and(|to| to > copy.from)));
        assert_eq!(copies[0].to > Some(copies[1].from), overlap, "{schedule}");
        let of_kind = |kind: Kind| run.works.iter().find(|work| work.kind == kind).expect("one of the kind");
        let (store, write) = (of_kind(Kind::Store), of_kind(Kind::Write));
        assert_eq!(store.to, Some(write.from), "what is read is then written");
    }
}

#[test]
fn a_warp_goes_on_by_what_it_waited_for() {
    let run = timeline(Schedule::Latest);
    let copy = run.works.iter().position(|work| work.kind == Kind::Copy).expect("a copy");
    assert!(run.waits.iter().any(|wait| wait.by == Some(Cause::Work(copy))), "{:?}", run.waits);
    let by_warps = run.waits.iter().filter(|wait| matches!(wait.by, Some(Cause::Warp(..))));
    assert!(by_warps.clone().count() > 0, "barriers of the block");
    assert!(by_warps.clone().all(|wait| Some(Cause::Warp(wait.warp.0, wait.warp.1)) != wait.by));
    assert!(run.waits.iter().all(|wait| wait.to.is_none_or(|to| to >= wait.from)));
}

#[test]
fn events_follow_each_other() {
    for schedule in Schedule::several(3) {
        let run = timeline(schedule);
        assert_eq!((run.blocks.len(), run.warps, run.cut), (1, 2, false));
        assert!(run.steps.windows(2).all(|two| two[0].at < two[1].at));
        let ends = run.works.iter().filter_map(|work| work.to);
        assert!(ends.chain(run.steps.iter().map(|step| step.at)).all(|at| at < run.length), "{schedule}");
    }
}
