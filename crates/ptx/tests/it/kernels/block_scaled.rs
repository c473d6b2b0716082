//! One 128×64 tile of a block-scaled FP4 product on Blackwell: operands and scales from shared memory, accumulators in
//! tensor memory, four warps that read them back.

use ptx::descriptor::{BlockScaledShape, MatrixLayout, Swizzle};
use ptx::instr::Collector;
use ptx::{
    Addr, Builder, CopyOptions, CtaGroup, Error, Global, Kernel, LaunchBounds, Multiply, Shared, SpecialRegister,
    Target, TensorAddress, U16, U32,
};

const COLUMNS: u32 = 128;

pub fn kernel() -> Result<Kernel, Error> {
    let mut k =
        Builder::new("block_scaled", Target::Sm100a, LaunchBounds { threads: 128, cluster: None, min_blocks: None });
    let (a_map, b_map) = (k.tensor_map("a"), k.tensor_map("b"));
    let (scales, out) = (k.pointer("scales"), k.pointer("out"));
    let a = k.shared("a", 128 * 128, 1024);
    let b = k.shared("b", 64 * 128, 1024);
    let factors = k.shared("factors", 4096, 128);
    let bars = k.barriers("bars", 2);
    let address = k.shared("tensor_address", 4, 4);
    let thread = k.special(SpecialRegister::TidX);
    let warp = k.shr(thread, 5);
    let warp = k.broadcast(warp);
    let first = k.eq(thread, 0);
    let group = CtaGroup::One;

    let base = k.phase("prepare", |k| {
        let leader = k.eq(warp, 0);
        k.if_(leader, |k| {
            k.tensor_alloc(group, address.at(0), COLUMNS);
            k.tensor_relinquish(group);
        });
        k.if_(first, |k| {
            k.barrier_init(bars.at(0), 1);
            k.barrier_init(bars.at(1), 1);
            k.fence_barrier_init();
        });
        k.tensor_fence_before_sync();
        k.sync_threads();
        k.tensor_fence_after_sync();
        k.load::<TensorAddress, Shared>(address.at(0))
    });
    k.phase("load", |k| {
        k.if_(first, |k| {
            k.arrive_expecting(bars.at(0), a.bytes + b.bytes + factors.bytes);
            let (a_map, b_map) = (k.tensor_map_address(a_map), k.tensor_map_address(b_map));
            let origin = [0.into(), 0.into(), 0.into()];
            k.tensor_load(a.at(0), a_map, &origin, bars.at(0), CopyOptions::default());
            k.tensor_load(b.at(0), b_map, &origin, bars.at(0), CopyOptions::default());
            k.bulk_load(factors.at(0), Addr::of(scales), factors.bytes, bars.at(0), CopyOptions::default());
        });
    });
    k.phase("multiply", |k| {
        k.if_(first, |k| {
            k.wait(bars.at(0), 0);
            k.tensor_fence_after_sync();
            let shape = k.block_scaled_shape(BlockScaledShape { m: 128, n: 64, scale_a_id: 0, scale_b_id: 0 });
            let packed = MatrixLayout { swizzle: Swizzle::None, leading: 16, stride: 128 };
            let rows = MatrixLayout::K_MAJOR_128;
            let (a, b, factors) = (k.shared_address(a), k.shared_address(b), k.shared_address(factors));
            let (a, b) = (k.descriptor_low(rows, a), k.descriptor_low(rows, b));
            let factors = k.descriptor_low(packed, factors);
            for step in 0..4 {
                let (a, b) = (k.add(a, 2 * step), k.add(b, 2 * step));
                let (a, b) = (k.tcgen05_descriptor(rows, a), k.tcgen05_descriptor(rows, b));
                let scale_a = k.add(base.cast::<U32>(), 64 + 4 * step).cast();
                let scale_b = k.add(base.cast::<U32>(), 80 + 4 * step).cast();
                for (scale, block) in [(scale_a, step), (scale_b, 4 + step)] {
                    let source = k.add(factors, 32 * block);
                    let source = k.tcgen05_descriptor(packed, source);
                    k.tensor_copy_scales(group, scale, source);
                }
                let accumulate = k.bits((step > 0).into());
                let collector = Collector::Discard;
                let d = base;
                k.tensor_multiply(Multiply { group, d, a, b, shape, scale_a, scale_b, accumulate, collector });
            }
            k.tensor_commit(group, bars.at(1), None);
            let everyone = k.variable::<U16>(1u16);
            k.tensor_commit(group, bars.at(1), Some(everyone));
        });
    });
    k.phase("store", |k| {
        k.wait(bars.at(1), 0);
        k.tensor_fence_after_sync();
        let lanes = k.shl(warp, 21);
        let mine = k.add(base.cast::<U32>(), lanes).cast::<TensorAddress>();
        let values = k.tensor_load_columns::<32>(mine);
        k.tensor_wait_load();
        let row = k.mul_wide_add(thread, 128, out);
        for (i, four) in values.chunks_exact(4).enumerate() {
            let four = [four[0], four[1], four[2], four[3]];
            k.store_vector(Addr::<Global>::of(row).plus(16 * i as i32), four);
        }
        k.tensor_store_columns(mine, &values);
        k.tensor_wait_store();
        k.tensor_fence_before_sync();
        k.sync_threads();
        let leader = k.eq(warp, 0);
        k.if_(leader, |k| {
            k.tensor_fence_after_sync();
            k.tensor_dealloc(group, base, COLUMNS);
        });
    });
    k.finish()
}
