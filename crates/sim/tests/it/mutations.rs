//! A kernel broken in any plausible way is caught, and the unbroken one never is.

use ptx::Kernel;
use sim::{Finding, Profile, Schedule, mutate};

use crate::{cases, problems};

/// Mutants that nothing can tell from the original, in order: the mistake, where, and why.
const EQUIVALENT: [(&str, &str, &str); 3] = [
    (
        "register budget left alone",
        "multiply: setmaxnreg.dec.sync.aligned.u32 40;",
        "256 threads start with 256 registers each, more than the 232 asked for: nobody waits for the pool",
    ),
    (
        "ordering relaxed",
        "multiply/load: mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], 16384;",
        "the producer publishes nothing by its arrive: the copies signal themselves",
    ),
    (
        "register budget left alone",
        "multiply: setmaxnreg.inc.sync.aligned.u32 232;",
        "the same as of the first, seen from the other side",
    ),
];

#[test]
fn the_original_passes_under_every_schedule() {
    let (cases, kernel) = (cases::all(), problems::multiply());
    if let Err(finding) = cases::examine(&cases, &kernel, &Schedule::several(16)) {
        panic!("{finding}");
    }
}

#[test]
fn every_mutant_is_caught_under_some_schedule_but_those_that_change_nothing() {
    let (cases, kernel, schedules) = (cases::all(), problems::multiply(), Schedule::several(6));
    let mutants = mutate::mutants(&kernel);
    assert!(mutants.len() >= 100, "{} mutants", mutants.len());
    let kernels: Vec<&Kernel> = mutants.iter().map(|mutant| &mutant.kernel).collect();
    let found = cases::examine_mutants(&cases, (&kernel, &kernels), &schedules);
    let survivors = mutants.iter().zip(&found).filter(|(_, found)| found.is_ok());
    let survivors: Vec<(&str, &str)> = survivors.map(|(mutant, _)| (mutant.mistake, &mutant.place[..])).collect();
    assert_eq!(survivors, EQUIVALENT.map(|(mistake, place, _)| (mistake, place)));
}

#[test]
fn a_mutant_that_goes_on_from_its_original_ends_as_one_that_runs_from_the_start() {
    let (cases, kernel) = (&cases::all()[..1], problems::multiply());
    let words = |found: &Result<Profile, Finding>| match found {
        Ok(profile) => format!("{profile:?}"),
        Err(finding) => finding.to_string(),
    };
    let mutants: Vec<mutate::Mutant> = mutate::mutants(&kernel).into_iter().step_by(2).collect();
    let kernels: Vec<&Kernel> = mutants.iter().map(|mutant| &mutant.kernel).collect();
    for schedule in Schedule::several(1) {
        let together = cases::examine_mutants(cases, (&kernel, &kernels), &[schedule]);
        for (mutant, found) in mutants.iter().zip(&together) {
            let alone = cases::examine(cases, &mutant.kernel, &[schedule]);
            assert_eq!(words(found), words(&alone), "{}", mutant.name);
        }
    }
}

#[test]
fn a_fault_comes_back_under_its_schedule() {
    let (cases, kernel) = (cases::all(), problems::multiply());
    let mutants = mutate::mutants(&kernel);
    let early = mutants.iter().find(|mutant| mutant.mistake == "stage released early").expect("such a mutant");
    let find = |schedules: &[Schedule]| cases::examine(&cases, &early.kernel, schedules).expect_err("a fault");
    let first = find(&[Schedule::Random(7)]);
    assert_eq!(find(&[first.schedule()]).to_string(), first.to_string());
}
