//! Prints what becomes of a GEMM kernel when it is broken in every way that `sim::mutate` knows.

#[path = "../tests/problems/mod.rs"]
mod problems;

#[path = "../tests/problems/cases.rs"]
mod cases;

use std::time::Instant;

use ptx::Kernel;
use sim::{Schedule, mutate};

fn main() {
    let (kernel, schedules, start) = (problems::multiply(), Schedule::several(6), Instant::now());
    let cases = cases::all();
    match cases::examine(&cases, &kernel, &schedules) {
        Ok(_) => println!("the original passes under {} schedules\n", schedules.len()),
        Err(finding) => println!("the original fails: {finding}\n"),
    }
    let mutants = mutate::mutants(&kernel);
    let mut survivors = 0;
    let kernels: Vec<&Kernel> = mutants.iter().map(|mutant| &mutant.kernel).collect();
    for (mutant, found) in mutants.iter().zip(cases::examine_mutants(&cases, (&kernel, &kernels), &schedules)) {
        let (found, schedule) = match found {
            Ok(_) => ("survives", String::new()),
            Err(finding) => (finding.name(), finding.schedule().to_string()),
        };
        survivors += u32::from(schedule.is_empty());
        println!("{found:<22} {schedule:<18} {}", mutant.name);
    }
    println!("\n{} mutants, {survivors} survive, {:.1} s", mutants.len(), start.elapsed().as_secs_f64());
}
