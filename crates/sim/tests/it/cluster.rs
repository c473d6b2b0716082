//! Two blocks of a cluster exchange sums: multicast, remote stores that signal, bulk and tensor stores.

#[path = "../../../ptx/tests/it/kernels/cluster.rs"]
pub mod kernel;

use ptx::descriptor::Swizzle;
use ptx::instr::Memory;
use ptx::tensor_map::{Element, TensorMap};
use ptx::{Instr, Kernel, Op};
use sim::{Buffer, FaultKind, Gpu, Invocation, Limits, Rules, Schedule, explore_mutants, mutate};

fn is_atomic(instr: &Instr) -> bool {
    matches!(instr.op, Op::Memory(Memory::Atomic { .. }))
}

fn prepare() -> (Gpu, Invocation, [Buffer; 2]) {
    let mut gpu = Gpu::new(Limits::h200()).with_rules(Rules::Letter);
    let values: Vec<u8> = (0..512).flat_map(|i| (i as f32 * 0.5).to_le_bytes()).collect();
    let input = gpu.upload("input", &values);
    gpu.await_predecessor(input);
    let output = gpu.alloc("output", 4096);
    let tensor = gpu.alloc("tensor", 4096);
    let map = TensorMap {
        element: Element::F32,
        address: tensor.address,
        dims: vec![64, 16],
        strides: vec![256],
        tile: vec![64, 8],
        swizzle: Swizzle::None,
    };
    (gpu, Invocation { grid: [2, 1, 1], args: vec![input.into(), output.into(), map.into()] }, [output, tensor])
}

#[test]
fn sums_exchanged_in_a_cluster_are_right_under_every_schedule() {
    let mut kernel = kernel::kernel().expect("the kernel is well formed");
    kernel.body.retain(|instr| !is_atomic(instr));
    let expected: Vec<f32> = (0..1024).map(|i| (i % 512) as f32).collect();
    for schedule in Schedule::several(20) {
        let (mut gpu, launch, [output, tensor]) = prepare();
        gpu.run(&kernel, &launch, schedule).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(gpu.floats(tensor), expected, "{schedule}");
        assert_eq!(gpu.floats(output), expected, "{schedule}");
    }
}

/// Each block of the kernel also counts itself in the first word of the output, which the other block's bulk store
/// overwrites: nothing orders the two.
#[test]
fn a_counter_in_the_way_of_a_bulk_store_is_reported_under_every_schedule() {
    let kernel = kernel::kernel().expect("the kernel is well formed");
    for schedule in Schedule::several(10) {
        let (mut gpu, launch, _) = prepare();
        let fault = gpu.run(&kernel, &launch, schedule).expect_err("nothing orders the two");
        let told = matches!(fault.kind, FaultKind::Race { .. } | FaultKind::Uninitialised { .. });
        assert!(told, "{fault}");
    }
}

/// Mutants that nothing can tell from the original: the mistake, the instruction, and why.
const EQUIVALENT: [(&str, &str, &str); 6] = [
    (
        "ordering relaxed",
        "arrive.expect_tx",
        "the thread publishes nothing by its arrive: the copies signal themselves",
    ),
    ("group wait dropped", "wait_group", "there are two waits, for the reads and for the whole; each alone would do"),
    ("one group more in flight", "wait_group.read", "the same: the wait for the whole follows"),
    ("one group more in flight", "wait_group 0", "the same: the wait for the reads came before"),
    (
        "ordering relaxed",
        "prepare: barrier.cluster.arrive",
        "there are only barriers to tell of, and the fence of their initialisation releases them",
    ),
    ("cluster wait dropped", "store: barrier.cluster.wait", "all remote stores have been waited for by then"),
];

#[test]
fn every_mutant_is_caught_under_some_schedule() {
    let mut kernel = kernel::kernel().expect("the kernel is well formed");
    kernel.body.retain(|instr| !is_atomic(instr));
    let expected: Vec<f32> = (0..1024).map(|i| (i % 512) as f32).collect();
    let (_, _, [output, tensor]) = prepare();
    let fresh = || {
        let (gpu, launch, _) = prepare();
        (gpu, launch)
    };
    let verify = |gpu: &Gpu| match [output, tensor].iter().all(|buffer| gpu.floats(*buffer) == expected) {
        true => Ok(()),
        false => Err("the sums are wrong".to_string()),
    };
    let mutants = mutate::mutants(&kernel);
    let kernels: Vec<&Kernel> = mutants.iter().map(|mutant| &mutant.kernel).collect();
    let found = explore_mutants((&kernel, &kernels), &Schedule::several(6), fresh, verify);
    let survivors = mutants.iter().zip(&found).filter(|(_, found)| found.is_ok());
    let mut survivors: Vec<&str> = survivors.map(|(mutant, _)| &mutant.name[..]).collect();
    let equivalent =
        |name: &str| EQUIVALENT.iter().any(|(what, text, _)| name.starts_with(what) && name.contains(text));
    survivors.retain(|name| !equivalent(name));
    assert!(survivors.is_empty(), "not caught:\n{}", survivors.join("\n"));
}
