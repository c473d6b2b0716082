//! A block-scaled FP4 tile on Blackwell's tensor cores: right under every schedule, and noticed when broken.

#[path = "../../ptx/tests/kernels/block_scaled.rs"]
mod kernel;

use ptx::descriptor::Swizzle;
use ptx::instr::Tcgen05;
use ptx::tensor_map::{Element, TensorMap};
use ptx::{Instr, Kernel, Op};
use sim::{Buffer, Fault, Gpu, Invocation, Limits, Rules, Schedule, explore, mutate};

const DEPTH: usize = 256;

/// The kernel shows both forms of a commit, one after the other, at a barrier that counts one: only the first is wanted, the
/// second would take the barrier on to the next phase.
fn block_scaled() -> Kernel {
    let mut kernel = kernel::kernel().expect("the kernel is well formed");
    let again = |instr: &Instr| matches!(instr.op, Op::Tcgen05(Tcgen05::Commit { multicast: Some(_), .. }));
    kernel.body.retain(|instr| !again(instr));
    kernel
}

fn code(seed: usize, row: usize, k: usize) -> u8 {
    ((row * 7 + k * 3 + seed) % 16) as u8
}

fn value(code: u8) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// e4m3 exponents around one: 0.5, 1, 2, 4.
fn scale_code(seed: usize, row: usize, block: usize) -> u8 {
    (6 + ((row + 3 * block + seed) % 4) as u8) << 3
}

fn scale(code: u8) -> f32 {
    2f32.powi(i32::from(code >> 3) - 7)
}

fn codes(seed: usize, rows: usize) -> Vec<u8> {
    let byte = |i: usize| {
        let (row, k) = (i / (DEPTH / 2), 2 * (i % (DEPTH / 2)));
        code(seed, row, k) | code(seed, row, k + 1) << 4
    };
    (0..rows * DEPTH / 2).map(byte).collect()
}

/// Eight pieces of 512 bytes: A's scales for each step of 64, then B's. A piece has 32 rows of four words, word w of row r for
/// matrix row 32 w + r, its bytes the four blocks of sixteen.
fn scales() -> Vec<u8> {
    let mut bytes = Vec::new();
    for (seed, rows) in [(1, 128), (2, 64)] {
        for step in 0..4 {
            for i in 0..512 {
                let row = 32 * (i / 4 % 4) + i / 16;
                bytes.push(if row < rows { scale_code(seed, row, 4 * step + i % 4) } else { 0 });
            }
        }
    }
    bytes
}

fn prepare() -> (Gpu, Invocation, Buffer) {
    let mut gpu = Gpu::new(Limits::b200()).with_rules(Rules::Letter);
    let (a, b) = (gpu.upload("a", &codes(1, 128)), gpu.upload("b", &codes(2, 64)));
    let (scales, out) = (gpu.upload("scales", &scales()), gpu.alloc("out", 128 * 128));
    let map = |buffer: Buffer, rows: u32| TensorMap {
        element: Element::U4x16,
        address: buffer.address,
        dims: vec![DEPTH as u64, rows.into(), 1],
        strides: vec![DEPTH as u64 / 2, u64::from(rows) * DEPTH as u64 / 2],
        tile: vec![DEPTH as u32, rows, 1],
        swizzle: Swizzle::B128,
    };
    let args = vec![map(a, 128).into(), map(b, 64).into(), scales.into(), out.into()];
    (gpu, Invocation { grid: [1, 1, 1], args }, out)
}

/// The first 32 columns of the tile, which the kernel stores.
fn product() -> Vec<f32> {
    let dot = |row: usize, column: usize| {
        let term = |k: usize| {
            let a = value(code(1, row, k)) * scale(scale_code(1, row, k / 16));
            a * value(code(2, column, k)) * scale(scale_code(2, column, k / 16))
        };
        (0..DEPTH).map(term).sum::<f32>()
    };
    (0..128 * 32).map(|i| dot(i / 32, i % 32)).collect()
}

#[test]
fn the_tile_is_right_under_every_schedule() {
    let (kernel, expected) = (block_scaled(), product());
    for schedule in Schedule::several(10) {
        let (mut gpu, launch, out) = prepare();
        gpu.run(&kernel, &launch, schedule).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(gpu.floats(out), expected, "{schedule}");
    }
}

/// The kernel without the instructions that `dropped` names.
fn without(dropped: impl Fn(&Tcgen05) -> bool) -> Box<Fault> {
    let mut kernel = block_scaled();
    kernel.body.retain(|instr: &Instr| !matches!(&instr.op, Op::Tcgen05(op) if dropped(op)));
    let faults = Schedule::several(6).into_iter().filter_map(|schedule| {
        let (mut gpu, launch, _) = prepare();
        gpu.run(&kernel, &launch, schedule).err()
    });
    faults.into_iter().next().expect("the missing instruction is noticed")
}

/// Mutants that nothing can tell from the original: the mistake, the instruction, and why.
const EQUIVALENT: [(&str, &str, &str); 6] = [
    ("permit not relinquished", "relinquish", "nobody else wants to allocate"),
    ("tensor memory fence dropped", "prepare: tcgen05.fence::before", "there is no work on tensor memory before it"),
    ("tensor memory fence dropped", "prepare: tcgen05.fence::after", "nothing in tensor memory is older"),
    (
        "tensor memory fence dropped",
        "multiply: tcgen05.fence::after",
        "the same: the thread has only waited for copies",
    ),
    ("memory access dropped", "tcgen05.st", "what is stored back at the end is not read again"),
    (
        "ordering relaxed",
        "arrive.expect_tx",
        "the thread publishes nothing by its arrive: the copies signal themselves",
    ),
];

#[test]
fn every_mutant_is_caught_under_some_schedule() {
    let (kernel, expected) = (block_scaled(), product());
    let mut survivors = Vec::new();
    for mutant in mutate::mutants(&kernel) {
        let out = prepare().2;
        let fresh = || {
            let (gpu, launch, _) = prepare();
            (gpu, launch)
        };
        let verify = |gpu: &Gpu| match gpu.floats(out) == expected {
            true => Ok(()),
            false => Err("the tile is wrong".to_string()),
        };
        if explore(&mutant.kernel, &Schedule::several(6), fresh, verify).is_ok() {
            survivors.push(mutant.name);
        }
    }
    let equivalent =
        |name: &str| EQUIVALENT.iter().any(|(what, text, _)| name.starts_with(what) && name.contains(text));
    survivors.retain(|name| !equivalent(name));
    assert!(survivors.is_empty(), "not caught:\n{}", survivors.join("\n"));
}

#[test]
fn tensor_memory_must_be_given_back() {
    assert_eq!(without(|op| matches!(op, Tcgen05::Dealloc { .. })).kind.name(), "tensor memory leaked");
}

#[test]
fn a_load_must_be_waited_for_before_its_registers_are_used() {
    assert_eq!(without(|op| matches!(op, Tcgen05::WaitLoad)).kind.name(), "register in flight");
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
