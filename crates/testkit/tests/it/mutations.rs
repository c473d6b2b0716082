//! The real kernels, broken in every plausible way: each mistake is caught, and the kernels as they are never are.

use hammerhead_testkit::mutations::{Trial, Verdict, WAYS};
use sim::Schedule;

#[test]
fn the_kernels_as_they_are_pass_under_every_schedule() {
    for (way, config) in WAYS {
        if let Err(finding) = Trial::new(config).unwrap().original(&Schedule::several(8)) {
            panic!("{way}: {finding}");
        }
    }
}

#[test]
fn every_mutation_of_the_kernels_is_caught_under_some_schedule() {
    let mut missed = Vec::new();
    for (way, config) in WAYS {
        let verdicts = Trial::new(config).unwrap().verdicts(&Schedule::several(4));
        let caught = verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Caught(_))).count();
        let excused = verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Equivalent(_))).count();
        eprintln!("{way}: {caught} caught, {excused} excused");
        for (mutant, _) in verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Missed)) {
            missed.push(format!("{way}: {}", mutant.name));
        }
        assert!(caught >= 100, "{way}: {caught} caught");
    }
    assert!(missed.is_empty(), "not caught:\n{}", missed.join("\n"));
}
