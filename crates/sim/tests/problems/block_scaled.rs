//! A block-scaled FP4 tile on Blackwell's tensor cores: inputs so small that every sum is exact.

use ptx::descriptor::Swizzle;
use ptx::instr::Tcgen05;
use ptx::tensor_map::{Element, TensorMap};
use ptx::{Instr, Kernel, Op};
use sim::{Buffer, Gpu, Invocation, Limits, Rules};

use crate::kernels::block_scaled as tile;

const DEPTH: usize = 256;

/// The kernel shows both forms of a commit, one after the other, at a barrier that counts one: only the first is
/// wanted, the second would take the barrier on to the next phase.
pub fn kernel() -> Kernel {
    let mut kernel = tile::kernel().expect("the kernel is well formed");
    let again = |instr: &Instr| matches!(instr.op, Op::Tcgen05(Tcgen05::Commit { multicast: Some(_), .. }));
    kernel.body.retain(|instr| !again(instr));
    kernel
}

/// Codes that differ between rows, and between columns, also some power of two apart: an operand that begins elsewhere
/// is another.
fn code(seed: usize, row: usize, k: usize) -> u8 {
    ((row * 7 + row / 16 + k * 3 + k / 32 + seed) % 16) as u8
}

fn value(code: u8) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// e4m3 exponents around one: 0.5, 1, 2, 4. They differ between rows some power of two apart, too.
fn scale_code(seed: usize, row: usize, block: usize) -> u8 {
    (6 + ((row + row / 8 + row / 32 + 3 * block + seed) % 4) as u8) << 3
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

/// Eight pieces of 512 bytes: A's scales for each step of 64, then B's. A piece has 32 rows of four words, word w of
/// row r for matrix row 32 w + r, its bytes the four blocks of sixteen.
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

/// A device with the inputs, the launch, and where the product will be.
pub fn prepare() -> (Gpu, Invocation, Buffer) {
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
pub fn product() -> Vec<f32> {
    let dot = |row: usize, column: usize| {
        let term = |k: usize| {
            let a = value(code(1, row, k)) * scale(scale_code(1, row, k / 16));
            a * value(code(2, column, k)) * scale(scale_code(2, column, k / 16))
        };
        (0..DEPTH).map(term).sum::<f32>()
    };
    (0..128 * 32).map(|i| dot(i / 32, i % 32)).collect()
}
