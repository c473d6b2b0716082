//! A pipelined GEMM (copies through tensor maps, barriers, tensor cores) gives the right product under every schedule.

#[path = "../../ptx/tests/kernels/multiply.rs"]
mod kernel;

use half::f16;
use ptx::Kernel;
use ptx::descriptor::Swizzle;
use ptx::tensor_map::{Element, TensorMap};
use sim::{Arg, Buffer, Gpu, Launch, Limits, Schedule};

/// A problem of M×N×K, its inputs small integers so that every sum is exact.
struct Problem {
    m: usize,
    n: usize,
    k: usize,
}

impl Problem {
    fn a(&self, row: usize, k: usize) -> f32 {
        ((row * 7 + k * 3) % 11) as f32 - 5.0
    }

    fn b(&self, column: usize, k: usize) -> f32 {
        ((column * 5 + k * 2) % 13) as f32 - 6.0
    }

    fn prepare(&self) -> (Gpu, Launch, Buffer) {
        let mut gpu = Gpu::new(Limits::h200());
        let halves = |rows: usize, value: &dyn Fn(usize, usize) -> f32| -> Vec<u8> {
            (0..rows * self.k).flat_map(|i| f16::from_f32(value(i / self.k, i % self.k)).to_le_bytes()).collect()
        };
        let a = gpu.upload("a", &halves(self.m, &|row, k| self.a(row, k)));
        let b = gpu.upload("b", &halves(self.n, &|row, k| self.b(row, k)));
        let out = gpu.alloc("out", self.m * self.n * 4);
        let map = |buffer: Buffer, rows: usize| TensorMap {
            element: Element::F16,
            address: buffer.address,
            dims: vec![self.k as u64, rows as u64],
            strides: vec![self.k as u64 * 2],
            tile: vec![64, 64],
            swizzle: Swizzle::B128,
        };
        let args = vec![
            map(a, self.m).into(),
            map(b, self.n).into(),
            out.into(),
            Arg::U32(self.n as u32),
            Arg::U32(self.k.div_ceil(64) as u32),
        ];
        let launch = Launch { grid: [self.m as u32 / 64, self.n as u32 / 64, 1], args };
        (gpu, launch, out)
    }

    fn product(&self) -> Vec<f32> {
        let dot = |i: usize| (0..self.k).map(|k| self.a(i / self.n, k) * self.b(i % self.n, k)).sum();
        (0..self.m * self.n).map(dot).collect()
    }
}

fn multiply() -> Kernel {
    kernel::kernel().expect("the kernel is well formed")
}

#[test]
fn the_product_is_right_under_every_schedule() {
    let problem = Problem { m: 128, n: 64, k: 448 };
    let (kernel, expected) = (multiply(), problem.product());
    for schedule in Schedule::several(12) {
        let (mut gpu, launch, out) = problem.prepare();
        let profile = gpu.run(&kernel, &launch, schedule).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(gpu.floats(out), expected, "{schedule}");
        assert_eq!(profile.tensor_macs, 128 * 64 * 448);
    }
}

#[test]
fn a_depth_that_is_no_multiple_of_the_tile_is_filled_with_zeros() {
    let problem = Problem { m: 64, n: 128, k: 104 };
    let (kernel, expected) = (multiply(), problem.product());
    for schedule in Schedule::several(4) {
        let (mut gpu, launch, out) = problem.prepare();
        gpu.run(&kernel, &launch, schedule).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(gpu.floats(out), expected, "{schedule}");
    }
}
