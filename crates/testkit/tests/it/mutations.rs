//! The real kernels, broken in every plausible way: each mistake is caught, and the kernels as they are never are.
//!
//! Here a sample of the mutants runs, another for each way; all of them do by `hammerhead sim --mutations --arch …`.

use hammerhead_testkit::mutations::{Trial, Verdict, WAYS, Way};
use rayon::prelude::*;
use sim::Schedule;
use sim::mutate::{Mutant, mutants};

/// One in so many mutants runs.
const STRIDE: usize = 97;

#[test]
fn the_kernels_as_they_are_pass_under_every_schedule() {
    WAYS.par_iter().for_each(|way| {
        if let Err(finding) = Trial::new(way).unwrap().original(&Schedule::several(1)) {
            panic!("{}: {finding}", way.name);
        }
    });
}

#[test]
fn mutations_are_caught_under_some_schedule_unless_they_are_excused() {
    let wrong = |(number, way): (usize, &'static Way)| {
        let trial = Trial::new(way).unwrap();
        // Another sample of every kernel: mutants of one kind come at like places.
        let verdicts = trial.verdicts(&Schedule::several(2), number, STRIDE);
        assert!(verdicts.len() > 1, "{}: {} mutants", way.name, verdicts.len());
        let not_right = verdicts.iter().filter(|(_, verdict)| !verdict.is_right());
        let name = |(mutant, verdict): &(Mutant, Verdict)| format!("{}: {}: {verdict:?}", way.name, mutant.name);
        not_right.map(name).collect::<Vec<String>>()
    };
    let wrong: Vec<String> = WAYS.par_iter().enumerate().flat_map_iter(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_found_in_mutants_together_is_found_in_each_alone() {
    // Kernels with many guards, of which most come to the same on most problems.
    let schedules = Schedule::several(1);
    for name in ["mma.sync, warps along k", "a tile per block, few tokens"] {
        let trial = Trial::new(WAYS.iter().find(|way| way.name == name).unwrap()).unwrap();
        let some: Vec<Mutant> = mutants(trial.kernel()).into_iter().skip(5).step_by(STRIDE / 8).collect();
        let together = trial.examine(&some.iter().collect::<Vec<_>>(), &schedules);
        assert!(together.iter().any(Option::is_some) && together.len() > 10, "{} mutants", together.len());
        some.par_iter().zip(together).for_each(|(mutant, found)| {
            let alone = trial.alone(&mutant.kernel, &schedules).err();
            assert_eq!(found.map(|found| found.to_string()), alone.map(|alone| alone.to_string()), "{}", mutant.name);
        });
    }
}

#[test]
fn each_reason_excuses_as_many_mutants_of_each_kernel_as_are_pinned() {
    let wrong: Vec<String> = WAYS.par_iter().flat_map_iter(|way| Trial::new(way).unwrap().miscounted()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
