//! Honest contestants, built in and programs, pass the examination; bunglers cost themselves the round.

use crate::common::{Steady, asked, case, cheat, few_questions, plain_python, plain_rust, quick, scalar};
use referee::contestant::{Contestant, Fault, Program, Stage};
use referee::{Checking, Outcome, Pool, Terms, examine, sit};
use tank::operations::dual_gemm::{questions, tasks};
use testkit::cases::Inputs;

#[test]
fn a_backend_of_our_own_passes_the_whole_examination() {
    let season = [case(20, 40, 64, Inputs::Realistic)];
    let asked = tasks(&questions(&season, Checking::default().held_out, 3)).unwrap();
    let [found] = examine([&scalar(&season[0])], &asked, 3).unwrap().map(|found| found.correctness);
    assert!(found.passed(), "{found:?}");
    assert!(found.cases > 100 && found.unsupported.len() < 20, "{} cases, {:?}", found.cases, found.unsupported);
    assert_eq!(found.repeated, Some(true));
    assert!(found.precision.worst <= 1.0 && found.precision.rms > 0.0);
}

#[test]
fn the_examples_pass_from_the_protocol_alone() {
    let rust =
        plain_rust().expect("`cargo test -p hammerhead-tank` builds the example `contestant`; run it whole once");
    for program in [plain_python(), rust] {
        let [found] = examine([&program], &tasks(&few_questions()).unwrap(), 4).unwrap().map(|found| found.correctness);
        assert!(found.passed() && found.cases == 3, "{}: {found:?}", program.name);
    }
}

#[test]
fn unsupported_is_a_legal_answer_and_is_told() {
    let rust =
        plain_rust().expect("`cargo test -p hammerhead-tank` builds the example `contestant`; run it whole once");
    let mut questions = few_questions();
    questions[0].gate = hammerhead::Gate::GeluTanh;
    let [found] = examine([&rust], &tasks(&questions).unwrap(), 4).unwrap().map(|found| found.correctness);
    assert!(found.passed() && found.cases == 2 && found.unsupported.len() == 1, "{found:?}");
    assert!(found.unsupported[0].contains("only NVFP4 tokens"));
}

#[test]
fn a_program_is_timed_against_a_backend_and_every_output_is_looked_at() {
    let (settings, clock) = (quick(), Steady::default());
    let case = case(2, 8, 32, Inputs::Realistic);
    let (champion, challenger) = (scalar(&case), plain_python());
    let mut pool = Pool::new(&champion, &challenger, tasks(&[case]).unwrap(), &settings, &clock, 9).unwrap();
    let sitting = sit(&mut pool, &settings, &Terms::default(), 9).unwrap();
    let first = sitting.first.as_ref().unwrap_or_else(|| panic!("{:?}", sitting.outcome));
    assert_eq!((first.quartets, first.processes), (6, 3));
    assert_eq!(first.cold.geomean.estimate, 1.0, "by this clock everyone takes the same time");
    assert!(matches!(sitting.outcome, Outcome::Inconclusive { .. }), "{:?}", sitting.outcome);
    assert!(sitting.course.outputs_sampled > 0 && sitting.course.challenger_round_trip.is_some());
    let text = serde_json::to_string(&sitting).unwrap();
    assert_eq!(serde_json::from_str::<referee::Sitting>(&text).unwrap(), sitting, "the record reads back");
}

fn fault_of(program: &Program) -> Fault {
    let [found] = examine([program], &asked(5), 5).unwrap().map(|found| found.correctness);
    assert!(!found.passed());
    found.fault.clone().unwrap_or_else(|| panic!("{found:?}"))
}

#[test]
fn a_program_that_does_not_exist_does_not_start() {
    let nowhere = Program::new("nowhere", vec!["/nowhere/at/all".into()], crate::common::limits());
    assert!(matches!(nowhere.start().err(), Some(Fault::Start { reason }) if reason.contains("/nowhere/at/all")));
    assert!(matches!(Program::new("", Vec::new(), crate::common::limits()).start().err(), Some(Fault::Start { .. })));
}

#[test]
fn a_program_that_does_not_build_says_why() {
    let failing = |script: &str| Program { build: vec!["sh".into(), "-c".into(), script.into()], ..plain_python() };
    assert!(failing("true").build().is_ok());
    let fault = failing("echo no compiler here >&2; exit 3").build().unwrap_err();
    assert!(matches!(&fault, Fault::Build { reason } if reason.contains("no compiler here")), "{fault}");
    let mut slow = failing("sleep 600");
    slow.limits.build_seconds = 0.1;
    assert_eq!(slow.build().unwrap_err(), Fault::Hang { stage: Stage::Build, seconds: 0.1 });
}

#[test]
fn last_words_are_quoted_whatever_flags_a_contestant_sets_on_its_standard_error() {
    // What is read from a file with this flag has to be aligned, and last words are not.
    let script = "import fcntl, os; os.write(2, b'farewell'); fcntl.fcntl(2, fcntl.F_SETFL, os.O_DIRECT); os._exit(3)";
    let command = ["python3", "-c", script].map(str::to_owned).to_vec();
    let fault = Program::new("mute", command, crate::common::limits()).start().err();
    assert!(matches!(&fault, Some(Fault::Crash { words, .. }) if words.contains("farewell")), "{fault:?}");
}

#[test]
fn whoever_takes_long_for_every_answer_takes_too_long() {
    // It takes 30 ms for each job.
    let mut slow = cheat("patched-clock");
    slow.limits.session_seconds = 0.1;
    let fault = fault_of(&slow);
    assert!(matches!(&fault, Fault::Excess { what } if what.contains("for its answers")), "{fault:?}");
}

#[test]
fn a_crash_is_told_with_its_last_words() {
    let fault = fault_of(&cheat("crash"));
    let Fault::Crash { stage: Stage::Run, words, .. } = &fault else { panic!("{fault:?}") };
    assert!(words.contains("I am not well"), "{words}");
}

#[test]
fn a_hang_ends_with_the_limit_and_leaves_no_process_behind() {
    let mut hanging = cheat("hang");
    hanging.limits.run_seconds = 0.2;
    assert_eq!(fault_of(&hanging), Fault::Hang { stage: Stage::Run, seconds: 0.2 });
    let mut mute = cheat("mute");
    mute.limits.hello_seconds = 0.2;
    assert_eq!(fault_of(&mute), Fault::Hang { stage: Stage::Hello, seconds: 0.2 });
}

#[test]
fn garbage_is_quoted() {
    for (trick, part) in [("garbage", "lorem"), ("endless", "its line does not end"), ("other-version", "version 99")] {
        let fault = fault_of(&cheat(trick));
        assert!(matches!(&fault, Fault::Garbage { .. }) && fault.to_string().contains(part), "{trick}: {fault}");
    }
}

#[test]
fn memory_beyond_the_limit_is_not_given() {
    let mut greedy = cheat("greedy");
    greedy.limits.memory_bytes = 1 << 30;
    // It is refused more, or ended where what it has been given is counted first.
    let fault = fault_of(&greedy);
    let refused = matches!(&fault, Fault::Crash { words, .. } if words.contains("MemoryError"));
    assert!(refused || fault.to_string().contains("of memory, where 1024 may be taken"), "{fault}");
}

#[test]
fn files_beyond_the_limit_are_not_written() {
    let mut writer = cheat("big-file");
    writer.limits.file_bytes = 1 << 20;
    assert!(matches!(fault_of(&writer), Fault::Crash { .. }));
}
