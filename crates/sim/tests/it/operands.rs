//! Every way to hand a matrix to the tensor cores gives the same product: swizzles, major orders, element types, A from
//! registers or from shared memory, signs.

use half::{bf16, f16};
use ptx::descriptor::{MatrixLayout, Swizzle};
use ptx::instr::{Accumulate, MatrixA, MatrixElement, Wgmma};
use ptx::tensor_map::{Element, TensorMap};
use ptx::{
    Addr, Builder, CopyOptions, F32, Global, Kernel, LaunchBounds as Shape, Reg, RegId, SharedRegion, SpecialRegister,
    Target, U32, WgmmaMatrix,
};
use sim::{Gpu, Invocation, Limits, Schedule};

/// How B (n × 16) reaches the tensor cores.
#[derive(Clone, Copy, Debug)]
struct Way {
    n: u32,
    element: MatrixElement,
    swizzle: Swizzle,
    /// B is kept by k, n innermost.
    n_major: bool,
    a_in_shared: bool,
    negate: [bool; 2],
}

const DEPTH: u32 = 16;

impl Way {
    /// Elements of one box along the inner dimension, and boxes that make up B.
    fn boxes(&self) -> (u32, u32) {
        let inner = self.swizzle.span() / 2;
        if self.n_major { (inner, self.n.div_ceil(inner)) } else { (inner, DEPTH.div_ceil(inner)) }
    }

    /// Columns of B in memory: a swizzled row is as long as its pattern, though only the first sixteen are multiplied.
    fn columns(&self) -> u32 {
        if self.n_major { self.n } else { DEPTH.max(self.boxes().0) }
    }

    fn tile(&self) -> [u32; 2] {
        [self.boxes().0, if self.n_major { DEPTH } else { self.n }]
    }

    fn box_bytes(&self) -> u32 {
        self.tile().iter().product::<u32>() * 2
    }

    fn layout(&self) -> MatrixLayout {
        let row = self.boxes().0 * 2;
        let (swizzle, plain) = (self.swizzle, self.swizzle == Swizzle::None);
        match (self.n_major, plain) {
            // Core matrices of 8 × 16 bytes: eight rows apart by 128 bytes, the second along k in the second box.
            (false, true) => MatrixLayout { swizzle, leading: self.box_bytes(), stride: 128 },
            (false, false) => MatrixLayout { swizzle, leading: 16, stride: 8 * row },
            // The next eight columns are in the next box; the next eight of k are 128 bytes further.
            (true, true) => MatrixLayout { swizzle, leading: 128, stride: self.box_bytes() },
            (true, false) => MatrixLayout { swizzle, leading: self.box_bytes(), stride: 8 * row },
        }
    }

    fn map(&self, address: u64) -> TensorMap {
        let dims = [self.columns(), if self.n_major { DEPTH } else { self.n }];
        TensorMap {
            element: Element::F16,
            address,
            dims: dims.map(u64::from).into(),
            strides: vec![u64::from(dims[0]) * 2],
            tile: self.tile().into(),
            swizzle: self.swizzle,
        }
    }
}

fn descriptor(k: &mut Builder, layout: MatrixLayout, region: SharedRegion) -> Reg<WgmmaMatrix> {
    let base = k.shared_address(region);
    let low = k.descriptor_low(layout, base);
    k.wgmma_descriptor(layout, low)
}

fn kernel(way: &Way) -> Kernel {
    let mut k = Builder::new("operands", Target::Sm90a, Shape { threads: 128, cluster: None, min_blocks: None });
    let (a_map, b_map) = (k.tensor_map("a_map"), k.tensor_map("b_map"));
    let (a_rows, out) = (k.pointer("a"), k.pointer("out"));
    let a = k.shared("a", 64 * DEPTH * 2, 1024);
    let b = k.shared("b", way.box_bytes().next_multiple_of(1024) * way.boxes().1, 1024);
    let bars = k.barriers("bars", 1);
    let thread = k.special(SpecialRegister::TidX);
    let first = k.eq(thread, 0);
    let (a_map, b_map) = (k.tensor_map_address(a_map), k.tensor_map_address(b_map));
    k.if_(first, |k| {
        k.barrier_init(bars.at(0), 1);
        k.fence_barrier_init();
        let (inner, count) = way.boxes();
        k.arrive_expecting(bars.at(0), a.bytes + count * way.box_bytes());
        k.tensor_load(a.at(0), a_map, &[0.into(), 0.into()], bars.at(0), CopyOptions::default());
        for part in 0..count {
            let at = [((part * inner) as i32).into(), 0.into()];
            k.tensor_load(b.at(part * way.box_bytes()), b_map, &at, bars.at(0), CopyOptions::default());
        }
    });
    k.sync_threads();
    k.wait(bars.at(0), 0);

    let (warp, lane) = (k.shr(thread, 5), k.and(thread, 31));
    let (quad, pair) = (k.shr(lane, 2), k.and(lane, 3));
    let row = k.mul_add(warp, 16, quad);
    let matrix_a = match way.a_in_shared {
        true => {
            let layout = MatrixLayout { swizzle: Swizzle::B32, leading: 16, stride: 256 };
            MatrixA::Shared { desc: descriptor(&mut k, layout, a).id(), transpose: false }
        }
        false => MatrixA::Registers(fragments(&mut k, a_rows, row, pair)),
    };
    let b = descriptor(&mut k, way.layout(), b);
    let acc: Vec<Reg<F32>> = (0..way.n / 2).map(|_| k.variable(0.5f32)).collect();
    k.wgmma_fence();
    k.emit(Wgmma::Mma {
        n: way.n,
        element: way.element,
        d: acc.iter().map(|reg| reg.id()).collect(),
        a: matrix_a,
        b: b.id(),
        accumulate: Accumulate::Add,
        negate_a: way.negate[0],
        negate_b: way.negate[1],
        transpose_b: way.n_major,
    });
    k.wgmma_commit();
    k.wgmma_wait(0);
    let column = k.shl(pair, 1);
    let index = k.mul_add(row, way.n, column);
    let upper = k.mul_wide_add(index, 4, out);
    for (j, four) in acc.chunks_exact(4).enumerate() {
        let at = Addr::<Global>::of(upper).plus(32 * j as i32);
        k.store_vector(at, [four[0], four[1]]);
        k.store_vector(at.plus(32 * way.n as i32), [four[2], four[3]]);
    }
    k.finish().expect("the kernel is well formed")
}

/// This thread's part of A, from row-major global memory.
fn fragments(k: &mut Builder, a: Reg<ptx::U64>, row: Reg<U32>, pair: Reg<U32>) -> [RegId; 4] {
    let at = k.mul_wide_add(row, DEPTH * 2, a);
    let at = Addr::<Global>::of(k.mul_wide_add(pair, 4, at));
    [0, 8 * 32, 16, 8 * 32 + 16].map(|bytes| k.load::<U32, _>(at.plus(bytes)).id())
}

fn check(way: Way) {
    let a = |row: u32, k: u32| ((row * 5 + k * 3) % 9) as f32 - 4.0;
    let b = |column: u32, k: u32| ((column * 7 + k * 5) % 11) as f32 * 0.25 - 1.0;
    let bits = |value: f32| match way.element {
        MatrixElement::F16 => f16::from_f32(value).to_le_bytes(),
        _ => bf16::from_f32(value).to_le_bytes(),
    };
    let a_bytes: Vec<u8> = (0..64 * DEPTH).flat_map(|i| bits(a(i / DEPTH, i % DEPTH))).collect();
    let b_bytes: Vec<u8> = match way.n_major {
        false => (0..way.n * way.columns()).flat_map(|i| bits(b(i / way.columns(), i % way.columns()))).collect(),
        true => (0..way.n * DEPTH).flat_map(|i| bits(b(i % way.n, i / way.n))).collect(),
    };
    let sign = if way.negate[0] != way.negate[1] { -1.0 } else { 1.0 };
    let dot = |row: u32, column: u32| (0..DEPTH).map(|k| a(row, k) * b(column, k)).sum::<f32>();
    let expected: Vec<f32> = (0..64 * way.n).map(|i| 0.5 + sign * dot(i / way.n, i % way.n)).collect();

    let mut gpu = Gpu::new(Limits::h200());
    let (a_rows, b_rows) = (gpu.upload("a", &a_bytes), gpu.upload("b", &b_bytes));
    let out = gpu.alloc("out", expected.len() * 4);
    let a_map = TensorMap {
        element: Element::F16,
        address: a_rows.address,
        dims: vec![DEPTH.into(), 64],
        strides: vec![u64::from(DEPTH) * 2],
        tile: vec![DEPTH, 64],
        swizzle: Swizzle::B32,
    };
    let args = vec![a_map.into(), way.map(b_rows.address).into(), a_rows.into(), out.into()];
    let launch = Invocation { grid: [1, 1, 1], args };
    gpu.run(&kernel(&way), &launch, Schedule::Random(1)).unwrap_or_else(|fault| panic!("{way:?}: {fault}"));
    assert_eq!(gpu.floats(out), expected, "{way:?}");
}

#[test]
fn every_swizzle_and_major_order_gives_the_same_product() {
    for swizzle in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128] {
        for n_major in [false, true] {
            for n in [64, 128, 256] {
                check(Way { n, element: MatrixElement::F16, swizzle, n_major, a_in_shared: true, negate: [false; 2] });
            }
        }
    }
}

#[test]
fn a_may_come_from_registers() {
    for element in [MatrixElement::F16, MatrixElement::Bf16] {
        for n in [8, 24, 96] {
            check(Way { n, element, swizzle: Swizzle::B32, n_major: false, a_in_shared: false, negate: [false; 2] });
        }
    }
}

#[test]
fn either_operand_may_be_negated() {
    for negate in [[true, false], [false, true], [true, true]] {
        let (element, swizzle) = (MatrixElement::Bf16, Swizzle::B64);
        check(Way { n: 16, element, swizzle, n_major: false, a_in_shared: negate[1], negate });
    }
}
