//! Every known cheat, as a program, and how it is caught.
//!
//! Some fall in the examination, before any clock starts. Those that behave there are let into a sitting and fall
//! there.

use std::rc::Rc;

use crate::common::{
    Steady, Watched, case, cheat, examined, fault_in_a_sitting, honest, is_gone, outcome_of_a_sitting, quick, scalar,
    suite,
};
use referee::contestant::{Contestant, Fault, Tensors};
use referee::{
    Checking, Course, Examination, Halt, Outcome, Pairing, Pool, Side, Temperature, Terms, Wall, examine, sit,
};
use tank::exploits::{EXPLOITS, Fate, Part};
use tank::operations::dual_gemm::{Builtin, tasks};
use testkit::cases::Inputs;

/// What was found wrong with a result, first of all.
fn wrong(trick: &str) -> String {
    let found = examined(&cheat(trick));
    assert!(found.fault.is_none(), "{trick}: {:?}", found.fault);
    found.wrong.first().unwrap_or_else(|| panic!("{trick} was not caught")).what.clone()
}

#[test]
fn the_honest_contestant_that_all_of_these_are_made_from_passes() {
    let found = examined(&honest());
    assert!(found.passed(), "{found:?}");
}

#[test]
fn a_stale_output_still_holds_the_poison() {
    assert!(wrong("stale").contains("never written"));
}

#[test]
fn a_reused_output_is_wrong_once_the_tokens_were_rewritten_in_place() {
    assert!(wrong("reused").contains("should be"));
}

#[test]
fn an_element_left_out_still_holds_the_poison() {
    assert!(wrong("partial").contains("never written"));
}

#[test]
fn a_constant_is_not_the_result() {
    assert!(wrong("constant").contains("is 0, should be"));
}

#[test]
fn changed_inputs_are_seen_and_change_nothing_that_is_expected() {
    for trick in ["mutating", "mutating-weights"] {
        let fault = examined(&cheat(trick)).fault;
        assert!(matches!(fault, Some(Fault::Tampering { .. })), "{trick}: {fault:?}");
    }
}

#[test]
fn a_shortened_file_does_not_kill_the_referee() {
    // The referee reads by system calls; a mapping would have died with a bus error here.
    let fault = examined(&cheat("shortening")).fault;
    assert!(matches!(&fault, Some(Fault::Tampering { what }) if what.contains("outputs")), "{fault:?}");
}

#[test]
fn flags_that_are_set_on_an_inherited_file_keep_no_poison_away() {
    assert!(wrong("appending").contains("never written"));
}

#[test]
fn a_replay_by_place_fails_because_the_places_stay_and_the_numbers_change() {
    assert!(wrong("by-place").contains("should be"));
}

#[test]
fn a_replay_by_content_fails_because_no_tokens_come_twice() {
    // What is looked up by all of the tokens is never found, and what is looked up by a part of them is another's.
    let fault = fault_in_a_sitting(&cheat("by-content"));
    assert!(matches!(&fault, Fault::Wrong { what, .. } if what.contains("timed output")), "{fault}");
}

#[test]
fn right_at_first_and_lazy_later_is_caught_by_the_timed_outputs() {
    let fault = fault_in_a_sitting(&cheat("lazy-later"));
    assert!(matches!(&fault, Fault::Wrong { what, .. } if what.contains("timed output")), "{fault}");
}

#[test]
fn work_finished_after_done_is_not_there_when_the_outputs_are_read() {
    for trick in ["late-writer", "late-child"] {
        // A thread that is later still reads a file that is not as long any more, and its process crashes.
        let found = examined(&cheat(trick));
        assert!(found.wrong.first().is_some_and(|first| first.what.contains("never written")), "{trick}: {found:?}");
        let fault = fault_in_a_sitting(&cheat(trick));
        assert!(matches!(&fault, Fault::Wrong { what, .. } if what.contains("when it said done")), "{fault}");
    }
}

#[test]
fn a_patched_clock_and_a_claimed_time_change_nothing() {
    let (settings, clock) = (quick(), Wall::new());
    let (champion, challenger) = (honest(), cheat("patched-clock"));
    let problems = suite().operation().unwrap().problems().to_vec();
    let mut pool = Pool::new(&champion, &challenger, problems, &settings, &clock, 12).unwrap();
    let sample = |pool: &mut Pool<'_>| -> Result<f64, Halt> {
        pool.enter(Pairing::Duel, 1)?;
        pool.prepare(0)?;
        pool.sample(Side::Challenger, Temperature::Cold).map(|take| take.seconds)
    };
    let seconds = sample(&mut pool).unwrap_or_else(|halt| panic!("{halt:?}"));
    // It sleeps for 30 ms with every job: no clock of ours can have seen less.
    assert!(seconds >= 0.03, "{seconds}");
}

#[test]
fn whatever_is_written_to_the_result_channel_ends_the_round() {
    for trick in ["shouting", "prophet"] {
        let fault = examined(&cheat(trick)).fault;
        assert!(matches!(fault, Some(Fault::Garbage { .. })), "{trick}: {fault:?}");
    }
}

#[test]
fn a_special_case_for_the_seasons_shapes_fails_on_shapes_that_are_in_no_list() {
    let found = examined(&cheat("special"));
    assert!(found.cases > 1 && found.wrong.iter().all(|wrong| !wrong.case.contains("columns=32 rows=12")), "{found:?}");
    assert!(!found.wrong.is_empty());
}

#[test]
fn rounding_sums_to_fewer_digits_is_beyond_the_bound() {
    for trick in ["coarse", "halved", "scaled", "shortened"] {
        assert!(wrong(trick).contains("should be"), "{trick}");
    }
}

/// The portable backend with every result off by a few roundings after so many runs of a session: within the bound, but
/// much less precise than it is.
fn imprecise(contestant: Builtin, after: usize) -> Watched {
    let spoil = move |runs: usize, tensors: &mut Tensors| {
        // Nothing is laid out while the round trip is measured.
        let Ok(places) = tensors.places() else { return };
        if runs < after {
            return;
        }
        let path = places.outputs_file.clone();
        let bytes = std::fs::read(&path).unwrap();
        let spoilt = bytes.chunks_exact(4).flat_map(|four| {
            let value = f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            if value.is_nan() { value.to_le_bytes() } else { (value * (1.0 + 8e-6)).to_le_bytes() }
        });
        std::fs::write(path, spoilt.collect::<Vec<u8>>()).unwrap();
    };
    Watched { gone: Rc::new(spoil), ..Watched::new(contestant) }
}

#[test]
fn a_precision_much_below_the_champions_is_caught_even_within_the_bound() {
    let mut question = case(24, 40, 4096, Inputs::Realistic);
    question.output = hammerhead::Output::F32;
    let of = |contestant: &dyn Contestant| -> Examination {
        let [found] = examine([contestant], &tasks(std::slice::from_ref(&question)).unwrap(), 14).unwrap();
        found
    };
    let champion = of(&scalar(&question));
    let mut imprecise = of(&imprecise(scalar(&question), 0));
    assert!(imprecise.correctness.passed(), "it is within the bound: {:?}", imprecise.correctness);
    imprecise.compare(&champion, &Checking::default());
    let found = &imprecise.correctness;
    assert!(!found.passed() && found.wrong[0].what.contains("precision was traded"), "{found:?}");
    let mut again = champion.clone();
    again.compare(&champion, &Checking::default());
    assert!(again.correctness.passed(), "the champion is as precise as itself");
}

#[test]
fn digits_are_worth_as_much_in_timed_runs_as_in_the_examination() {
    let mut problem = case(24, 40, 4096, Inputs::Realistic);
    problem.output = hammerhead::Output::F32;
    let found = |runs: usize| outcome_of_a_sitting(&imprecise(scalar(&problem), runs), &problem);
    // Precise for as long as an examination lasts, and then no more.
    let outcome = found(3);
    let Outcome::Faulted { side: Side::Challenger, fault } = outcome else { panic!("not caught: {outcome:?}") };
    assert!(matches!(&fault, Fault::Wrong { what, .. } if what.contains("precision was traded")), "{fault}");
    assert!(matches!(found(usize::MAX), Outcome::Inconclusive { .. }), "whoever stays precise is not accused");
}

/// It is started by nobody but itself until the plant is found.
#[test]
fn a_champion_whose_process_ends_while_it_is_timed_alone_is_to_blame_for_it() {
    let (settings, clock, champion, challenger) = (quick(), Steady::default(), cheat("crash"), honest());
    let tasks = suite().operation().unwrap().problems().to_vec();
    let mut pool = Pool::new(&champion, &challenger, tasks, &settings, &clock, 11).unwrap();
    let held = sit(&mut pool, &settings, &Terms::default(), 11).unwrap();
    let Outcome::Faulted { side: Side::Champion, fault } = held.outcome else { panic!("{:?}", held.outcome) };
    assert!(matches!(&fault, Fault::Crash { words, .. } if words.contains("I am not well")), "{fault}");
    assert!(fault.is_its_own_doing() && held.plant.is_none());
}

#[test]
fn one_lazy_job_among_many_is_found_within_a_few_samples() {
    let problem = case(3, 9, 32, Inputs::Realistic);
    // Zeros instead of one job's result, in every run. No output is compared whole here.
    let lazy = |runs: usize, tensors: &mut Tensors| {
        let Ok(places) = tensors.places() else { return };
        let (path, at) = (places.outputs_file.clone(), places.outputs[runs % places.outputs.len()][0] as usize);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at..at + 3 * 9 * 2].fill(0);
        std::fs::write(path, bytes).unwrap();
    };
    let mut settings = quick();
    (settings.timing.sample_jobs, settings.timing.sample_seconds, settings.checking.whole_every) = (16, 1.0, 1 << 40);
    let (clock, champion) = (Steady::default(), scalar(&problem));
    let lazy = Watched { gone: Rc::new(lazy), ..Watched::new(scalar(&problem)) };
    let mut found = 0;
    for seed in 0..10 {
        let tasks = tasks(std::slice::from_ref(&problem)).unwrap();
        let mut pool = Pool::new(&champion, &lazy, tasks, &settings, &clock, seed).unwrap();
        pool.enter(Pairing::Duel, 1).and_then(|()| pool.prepare(0)).unwrap_or_else(|halt| panic!("{halt:?}"));
        let mut caught = || pool.sample(Side::Challenger, Temperature::Cold).is_err();
        found += usize::from((0..3).any(|_| caught()));
    }
    // Each of 16 elements comes from a job of its own. If all came from one, three samples would find it twice in ten
    // sittings.
    assert!(found >= 7, "{found} of 10");
}

#[test]
fn what_is_no_number_or_only_right_in_sum_is_wrong() {
    for trick in ["no-number", "infinite", "echo", "permuted", "averaged", "lazy-row", "first-only"] {
        assert!(wrong(trick).contains("should be"), "{trick}");
    }
    let fault = fault_in_a_sitting(&cheat("lazy-jobs"));
    assert!(matches!(&fault, Fault::Wrong { what, .. } if what.contains("timed output")), "{fault}");
}

/// The suite's own way of playing, on some of each kind: all of it is for `hammerhead tank exploits`.
#[test]
fn the_suite_catches_who_cheats_and_blames_nobody_else() {
    for trick in ["stale", "lazy-later"] {
        let fate = suite().play_exploit(trick, &[], 5).unwrap();
        assert!(!matches!(fate, Fate::Fooled(_)), "{trick}: {fate:?}");
    }
    if let Err(missing) = gpu::device::context(0) {
        for trick in EXPLOITS.iter().filter(|known| known.on_gpu) {
            let fate = suite().play_exploit(trick.name, &[], 5).unwrap();
            assert_eq!(fate, Fate::NotPlayed(format!("no GPU: {missing}")), "{}", trick.name);
        }
    }
    assert_eq!(suite().play_honest("ticking+threads", 5).unwrap(), None);
    // A run without jobs comes before anything was prepared.
    assert_eq!(suite().play_honest("unprepared+prefetching", 5).unwrap(), None);
}

#[test]
fn the_suite_is_played_before_any_referee_that_keeps_the_convention() {
    let plain = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/referees/plain_loop.py");
    let played = |referee: &[&str], part, name| {
        suite().play_against(&referee.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(), part, name)
    };
    let fate = |part, name| played(&["python3", plain], part, name).unwrap();
    assert!(matches!(fate(Part::Exploit, "constant"), Fate::Caught(how) if how.contains("should be")));
    assert!(matches!(fate(Part::Exploit, "leaving"), Fate::Caught(how) if how.contains("it ended")));
    assert!(matches!(fate(Part::Exploit, "breeder"), Fate::NotPlayed(why) if why.contains("no fence")));
    assert!(matches!(fate(Part::Honest, "plain"), Fate::GainedNothing(_)));
    assert!(matches!(fate(Part::Exploit, "persisting"), Fate::NotPlayed(why) if why.contains("GPU")));
    let error = played(&["echo", "who knows"], Part::Exploit, "stale").unwrap_err().to_string();
    assert!(error.contains("who knows") && error.contains("docs/referee.md"), "{error}");
}

#[test]
fn there_is_no_network_and_no_way_to_others() {
    for trick in ["networked", "meddling"] {
        let found = examined(&cheat(trick));
        assert!(found.passed() && found.unsupported.is_empty(), "{trick}: {found:?}");
    }
}

#[test]
fn nothing_of_a_contestant_outlives_its_session() {
    // The child of the hanging one sleeps for ten minutes in its group; it is gone when the session is.
    let mut hanging = cheat("hang");
    hanging.limits = referee::contestant::Limits { run_seconds: 0.3, ..hanging.limits };
    assert!(matches!(examined(&hanging).fault, Some(Fault::Hang { .. })));
    assert!(is_gone(b"sleep\x00601.25\0"));
}
