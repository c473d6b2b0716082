//! A block-scaled FP4 tile on Blackwell's tensor cores: right under every schedule, and noticed when broken.

use ptx::instr::Tcgen05;
use ptx::{Instr, Kernel, Op};
use sim::{Fault, Gpu, Schedule, explore_mutants, mutate};

use crate::block_scaled_problem::{kernel, prepare, product};

#[test]
fn the_tile_is_right_under_every_schedule() {
    let (kernel, expected) = (kernel(), product());
    for schedule in Schedule::several(10) {
        let (mut gpu, launch, out) = prepare();
        gpu.run(&kernel, &launch, schedule).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(gpu.floats(out), expected, "{schedule}");
    }
}

/// The kernel without the instructions that `dropped` names.
fn without(dropped: impl Fn(&Tcgen05) -> bool) -> Box<Fault> {
    let mut kernel = kernel();
    kernel.body.retain(|instr: &Instr| !matches!(&instr.op, Op::Tcgen05(op) if dropped(op)));
    let faults = Schedule::several(6).into_iter().filter_map(|schedule| {
        let (mut gpu, launch, _) = prepare();
        gpu.run(&kernel, &launch, schedule).err()
    });
    faults.into_iter().next().expect("the missing instruction is noticed")
}

/// Mutants that nothing can tell from the original, in order: the mistake, where, and why.
const EQUIVALENT: [(&str, &str, &str); 8] = [
    (
        "permit not relinquished",
        "block_scaled/prepare: tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
        "nobody else wants to allocate",
    ),
    (
        "tensor memory fence dropped",
        "block_scaled/prepare: tcgen05.fence::before_thread_sync;",
        "there is no work on tensor memory before it",
    ),
    (
        "tensor memory fence dropped",
        "block_scaled/prepare: tcgen05.fence::after_thread_sync;",
        "nothing in tensor memory is older",
    ),
    (
        "ordering relaxed",
        "block_scaled/load: mbarrier.arrive.expect_tx.shared::cta.b64 _, [shared_memory+28672], 28672;",
        "the thread publishes nothing by its arrive: the copies signal themselves",
    ),
    (
        "tensor memory fence dropped",
        "block_scaled/multiply: tcgen05.fence::after_thread_sync;",
        "the same: the thread has only waited for copies",
    ),
    (
        "ordering relaxed",
        "block_scaled/store: mbarrier.try_wait.parity.shared::cta.b64 %p, [shared_memory+28680], 0;",
        "behind a commit and before a tcgen05 fence, a barrier has to order execution and no more",
    ),
    ("memory access dropped", STORE, "what is stored back at the end is not read again"),
    ("one column on", STORE, "nor is it there"),
];

/// What the kernel stores back to tensor memory in the end.
const STORE: &str = "block_scaled/store: tcgen05.st.sync.aligned.32x32b.x32.b32 [%r], {%r, %r, %r, %r, %r, %r, %r, %r, %r, %r, \
    %r, %r, %r, %r, %r, %r, %r, %r, %r, %r, %r, %r, %r, %r, %r, %r, %r, %r, %r, %r, %r, %r};";

#[test]
fn every_mutant_is_caught_under_some_schedule_but_those_that_change_nothing() {
    let (kernel, expected) = (kernel(), product());
    let out = prepare().2;
    let fresh = || {
        let (gpu, launch, _) = prepare();
        (gpu, launch)
    };
    let verify = |gpu: &Gpu| match gpu.floats(out) == expected {
        true => Ok(()),
        false => Err("the tile is wrong".to_string()),
    };
    let mutants = mutate::mutants(&kernel);
    let kernels: Vec<&Kernel> = mutants.iter().map(|mutant| &mutant.kernel).collect();
    let found = explore_mutants((&kernel, &kernels), &Schedule::several(6), fresh, verify);
    let survivors = mutants.iter().zip(&found).filter(|(_, found)| found.is_ok());
    let survivors: Vec<(&str, &str)> = survivors.map(|(mutant, _)| (mutant.mistake, &mutant.place[..])).collect();
    assert_eq!(survivors, EQUIVALENT.map(|(mistake, place, _)| (mistake, place)));
}

#[test]
fn tensor_memory_must_be_given_back() {
    assert_eq!(without(|op| matches!(op, Tcgen05::Dealloc { .. })).kind.name(), "tensor memory leaked");
}

#[test]
fn a_load_must_be_waited_for_before_its_columns_are_given_back() {
    assert_eq!(without(|op| matches!(op, Tcgen05::WaitLoad)).kind.name(), "race");
}

#[test]
fn reading_what_another_thread_multiplied_needs_a_fence_after_the_barrier() {
    assert_eq!(without(|op| matches!(op, Tcgen05::FenceAfterSync)).kind.name(), "race");
}

#[test]
fn giving_back_what_other_warps_stored_needs_their_fence_before_the_barrier() {
    assert_eq!(without(|op| matches!(op, Tcgen05::FenceBeforeSync)).kind.name(), "race");
}

#[test]
fn a_multiplication_needs_its_scales() {
    assert_eq!(without(|op| matches!(op, Tcgen05::CopyScales { .. })).kind.name(), "uninitialised read");
}

#[test]
fn without_a_commit_nobody_hears_of_the_end() {
    assert_eq!(without(|op| matches!(op, Tcgen05::Commit { .. })).kind.name(), "deadlock");
}
