//! A kernel broken in any plausible way is caught, and the unbroken one never is.

mod problems;

#[path = "problems/cases.rs"]
mod cases;

use sim::{Schedule, mutate};

/// Mutants that nothing can tell from the original: the mistake, the instruction, and why.
const EQUIVALENT: [(&str, &str, &str); 3] = [
    (
        "register budget left alone",
        "setmaxnreg.dec",
        "256 threads start with 256 registers each, more than the 232 asked for: nobody waits for the pool",
    ),
    ("register budget left alone", "setmaxnreg.inc", "the same, seen from the other side"),
    (
        "ordering relaxed",
        "load: mbarrier.arrive.expect_tx",
        "the producer publishes nothing by its arrive: the copies signal themselves",
    ),
];

fn is_equivalent(mutant: &mutate::Mutant) -> bool {
    EQUIVALENT.iter().any(|(mistake, text, _)| mutant.mistake == *mistake && mutant.name.contains(text))
}

#[test]
fn the_original_passes_under_every_schedule() {
    let (cases, kernel) = (cases::all(), problems::multiply());
    if let Err(finding) = cases::examine(&cases, &kernel, &Schedule::several(16)) {
        panic!("{finding}");
    }
}

#[test]
fn every_mutant_is_caught_under_some_schedule() {
    let (cases, kernel, schedules) = (cases::all(), problems::multiply(), Schedule::several(6));
    let mutants = mutate::mutants(&kernel);
    assert!(mutants.len() >= 100, "{} mutants", mutants.len());
    let survives = |mutant: &&mutate::Mutant| cases::examine(&cases, &mutant.kernel, &schedules).is_ok();
    let survivors: Vec<&str> =
        mutants.iter().filter(|m| !is_equivalent(m)).filter(survives).map(|m| m.name.as_str()).collect();
    assert!(survivors.is_empty(), "not caught:\n{}", survivors.join("\n"));
}

#[test]
fn each_mutant_called_equivalent_exists_and_passes() {
    let (cases, kernel, schedules) = (cases::all(), problems::multiply(), Schedule::several(3));
    let mutants = mutate::mutants(&kernel);
    assert_eq!(mutants.iter().filter(|m| is_equivalent(m)).count(), EQUIVALENT.len());
    for mutant in mutants.iter().filter(|m| is_equivalent(m)) {
        let found = cases::examine(&cases, &mutant.kernel, &schedules);
        assert!(found.is_ok(), "{} is called equivalent, and was caught: {}", mutant.name, found.unwrap_err());
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
