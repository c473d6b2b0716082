//! The GEMM that tests and the example `sim_speed` run: D = A·Bᵀ with inputs so small that every sum is exact.

use half::f16;
use ptx::Kernel;
use ptx::descriptor::Swizzle;
use ptx::tensor_map::{Element, TensorMap};
use sim::{Arg, Buffer, Gpu, Invocation, Limits, Rules};

use crate::kernels::multiply as kernel;

/// A problem of M×N×K, its inputs small integers so that every sum is exact.
pub struct Problem {
    /// Rows of A and D.
    pub m: usize,
    /// Rows of B, columns of D.
    pub n: usize,
    /// Columns of A and B.
    pub k: usize,
}

impl Problem {
    /// Columns that the tensors have: one tile at least, though the kernel may be told to use none.
    fn width(&self) -> usize {
        self.k.max(64)
    }

    fn a(&self, row: usize, k: usize) -> f32 {
        ((row * 7 + k * 3) % 11) as f32 - 5.0
    }

    fn b(&self, column: usize, k: usize) -> f32 {
        ((column * 5 + k * 2) % 13) as f32 - 6.0
    }

    /// A device with the inputs, the launch, and where the product will be.
    pub fn prepare(&self) -> (Gpu, Invocation, Buffer) {
        let mut gpu = Gpu::new(Limits::h200()).with_rules(Rules::Letter);
        let halves = |rows: usize, value: &dyn Fn(usize, usize) -> f32| -> Vec<u8> {
            let width = self.width();
            (0..rows * width).flat_map(|i| f16::from_f32(value(i / width, i % width)).to_le_bytes()).collect()
        };
        let a = gpu.upload("a", &halves(self.m, &|row, k| self.a(row, k)));
        let b = gpu.upload("b", &halves(self.n, &|row, k| self.b(row, k)));
        let out = gpu.alloc("out", self.m * self.n * 4);
        let map = |buffer: Buffer, rows: usize| TensorMap {
            element: Element::F16,
            address: buffer.address,
            dims: vec![self.width() as u64, rows as u64],
            strides: vec![self.width() as u64 * 2],
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
        let launch = Invocation { grid: [self.m as u32 / 64, self.n as u32 / 64, 1], args };
        (gpu, launch, out)
    }

    /// The product.
    pub fn product(&self) -> Vec<f32> {
        let dot = |i: usize| (0..self.k).map(|k| self.a(i / self.n, k) * self.b(i % self.n, k)).sum();
        (0..self.m * self.n).map(dot).collect()
    }
}

/// The kernel.
pub fn multiply() -> Kernel {
    kernel::kernel().expect("the kernel is well formed")
}
