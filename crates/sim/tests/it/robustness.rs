//! However broken a kernel is, the simulator answers with a fault or a result, and comes to an end.

use fastrand::Rng;
use ptx::instr::{Control, Guard};
use ptx::{Kernel, Op, Operand, ParamType, RegId};
use sim::{Arg, Gpu, Invocation, Limits, Schedule};

use crate::cluster::kernel as cluster;
use crate::kernels::{block_scaled, multiply};

/// Does to a kernel what no author would: instructions dropped, doubled, swapped, their guards and literals changed.
fn scramble(kernel: &Kernel, rng: &mut Rng) -> Kernel {
    let mut kernel = kernel.clone();
    for _ in 0..rng.usize(1..6) {
        let at = rng.usize(..kernel.body.len());
        let is_label = matches!(kernel.body[at].op, Op::Control(Control::Label(_)));
        match rng.u8(..6) {
            0 if !is_label => drop(kernel.body.remove(at)),
            1 if !is_label => kernel.body.insert(at, kernel.body[at].clone()),
            2 => {
                let other = rng.usize(..kernel.body.len());
                kernel.body.swap(at, other);
            }
            3 => kernel.body[at].guard = None,
            4 if kernel.registers[0] > 0 => {
                let index = rng.u32(..kernel.registers[0]);
                let pred = RegId { bank: ptx::Bank::Pred, index };
                kernel.body[at].guard = Some(Guard { pred, negated: rng.bool() });
            }
            _ => nudge(&mut kernel.body[at].op, rng),
        }
    }
    kernel
}

/// Changes the literals of an arithmetic instruction.
fn nudge(op: &mut Op, rng: &mut Rng) {
    use ptx::instr::Arith;
    let mut change = |operand: &mut Operand| {
        if let Operand::Imm(bits) = operand {
            *bits = [*bits ^ 1 << rng.u32(..20), 0, u64::from(u32::MAX), *bits * 2][rng.usize(..4)] & 0xffff_ffff;
        }
    };
    match op {
        Op::Arith(Arith::Binary { a, b, .. } | Arith::Pack { low: a, high: b, .. }) => [a, b].map(&mut change),
        Op::Arith(Arith::Ternary { a, b, .. } | Arith::Compare { a, b, .. }) => [a, b].map(&mut change),
        _ => [(), ()],
    };
}

/// Arguments of the right types: every pointer and tensor map to the same small buffer.
fn arguments(kernel: &Kernel, gpu: &mut Gpu) -> Vec<Arg> {
    let buffer = gpu.upload("all", &[1; 1 << 15]);
    let rank = if kernel.name == "block_scaled" { 3 } else { 2 };
    let map = ptx::tensor_map::TensorMap {
        element: ptx::tensor_map::Element::U16,
        address: buffer.address,
        dims: vec![64; rank],
        strides: vec![128; rank - 1],
        tile: [64, if rank == 2 { 64 } else { 8 }, 8][..rank].into(),
        swizzle: ptx::descriptor::Swizzle::B128,
    };
    let argument = |param: &ptx::Param| match param.ty {
        ParamType::Pointer => buffer.into(),
        ParamType::TensorMap => map.clone().into(),
        ParamType::TensorMaps(count) => Arg::Maps(vec![map.clone(); count as usize]),
        ParamType::Words(count) => Arg::Words(vec![5; count as usize]),
        ParamType::Scalar(_) => Arg::U32(5),
        ParamType::Bytes { size, .. } => Arg::Bytes(vec![1; size as usize], Vec::new()),
    };
    kernel.params.iter().map(argument).collect()
}

#[test]
fn no_broken_kernel_breaks_the_simulator() {
    let kernels = [multiply::kernel(), cluster::kernel(), block_scaled::kernel()];
    let kernels = kernels.map(|kernel| kernel.expect("the kernel is well formed"));
    let mut rng = Rng::with_seed(20);
    let mut passed = 0;
    for round in 0..600 {
        let kernel = scramble(&kernels[round % 3], &mut rng);
        let mut gpu = Gpu::new(Limits { instructions: 100_000, ..Limits::h200() });
        let args = arguments(&kernel, &mut gpu);
        let grid = [kernel.launch.cluster.map_or(1, |shape| shape[0]), 1, 1];
        passed += u32::from(gpu.run(&kernel, &Invocation { grid, args }, Schedule::Random(round as u64)).is_ok());
    }
    assert!(passed < 300, "most kernels should have been broken; {passed} of 600 passed");
}
