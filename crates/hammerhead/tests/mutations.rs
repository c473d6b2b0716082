//! The real GEMM kernel, broken in every plausible way: each mistake is caught, and the kernel as it is never is.

use std::collections::BTreeMap;

use hammerhead::gpu::mutations::{Trial, Verdict};
use sim::Schedule;

#[test]
fn the_kernel_as_it_is_passes_under_every_schedule() {
    if let Err(finding) = Trial::new().unwrap().original(&Schedule::several(16)) {
        panic!("{finding}");
    }
}

#[test]
fn every_mutation_of_the_kernel_is_caught_under_some_schedule() {
    let verdicts = Trial::new().unwrap().verdicts(&Schedule::several(6));
    let caught = verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Caught(_))).count();
    assert!(caught >= 100, "{caught} caught");
    let missed: Vec<&str> =
        verdicts.iter().filter(|(_, v)| matches!(v, Verdict::Missed)).map(|(m, _)| m.name.as_str()).collect();
    assert!(missed.is_empty(), "{caught} caught, not caught:\n{}", missed.join("\n"));
    // What is excused is excused by number: the first fence of a step and every other commit are not.
    let mut excused = BTreeMap::new();
    for (mutant, _) in verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Equivalent(_))) {
        *excused.entry(mutant.mistake).or_insert(0) += 1;
    }
    let expected = [
        ("commit dropped", 1),
        ("condition dropped", 1),
        ("ordering relaxed", 3),
        ("register budget left alone", 1),
        ("wgmma fence dropped", 6),
    ];
    assert_eq!(excused, BTreeMap::from(expected));
}
