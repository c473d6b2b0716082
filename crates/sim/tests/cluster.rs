//! Two blocks of a cluster exchange sums: multicast, remote stores that signal, bulk and tensor stores.

#[path = "../../ptx/tests/kernels/cluster.rs"]
mod kernel;

use ptx::descriptor::Swizzle;
use ptx::instr::Memory;
use ptx::tensor_map::{Element, TensorMap};
use ptx::{Instr, Op};
use sim::{Buffer, FaultKind, Gpu, Launch, Limits, Schedule};

fn is_atomic(instr: &Instr) -> bool {
    matches!(instr.op, Op::Memory(Memory::Atomic { .. }))
}

fn prepare() -> (Gpu, Launch, [Buffer; 2]) {
    let mut gpu = Gpu::new(Limits::h200());
    let values: Vec<u8> = (0..512).flat_map(|i| (i as f32 * 0.5).to_le_bytes()).collect();
    let input = gpu.upload("input", &values);
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
    (gpu, Launch { grid: [2, 1, 1], args: vec![input.into(), output.into(), map.into()] }, [output, tensor])
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
