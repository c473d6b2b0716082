//! Tensor memory: whose it is, and what is in it.

use ptx::{Addr, CtaGroup, Global, Shared, Target, TensorAddress, U32};

use crate::{Bench, Kept, rule};

const COLUMNS: u32 = 32;

/// A kernel of one warpgroup for Blackwell, and where its first warp leaves the address of what it allocates.
fn bench() -> (Bench, ptx::SharedRegion) {
    let mut b = Bench::on(Target::Sm100a, 128, None);
    let address = b.k.shared("address", 4, 4);
    (b, address)
}

/// The first warp allocates some columns, which all threads then know.
fn allocate(b: &mut Bench, address: ptx::SharedRegion) -> ptx::Reg<TensorAddress> {
    let first = b.k.lt(b.thread, 32);
    b.k.if_(first, |k| k.tensor_alloc(CtaGroup::One, address.at(0), COLUMNS));
    b.k.tensor_fence_before_sync();
    b.k.sync_threads();
    b.k.tensor_fence_after_sync();
    b.k.load::<TensorAddress, Shared>(address.at(0))
}

/// Every thread is done with the columns, and the first warp gives them back.
fn free(b: &mut Bench, base: ptx::Reg<TensorAddress>) {
    b.k.tensor_fence_before_sync();
    b.k.sync_threads();
    b.k.tensor_fence_after_sync();
    let first = b.k.lt(b.thread, 32);
    b.k.if_(first, |k| k.tensor_dealloc(CtaGroup::One, base, COLUMNS));
    b.k.sync_threads();
}

/// Each warp's own lanes of the columns.
fn mine(b: &mut Bench, base: ptx::Reg<TensorAddress>) -> ptx::Reg<TensorAddress> {
    let warp = b.k.shr(b.thread, 5);
    let lanes = b.k.shl(warp, 21);
    b.k.add(base.cast::<U32>(), lanes).cast()
}

fn store(b: &mut Bench, to: ptx::Reg<TensorAddress>) {
    let value = b.k.variable::<U32>(7);
    b.k.tensor_store_columns(to, &[value]);
    b.k.tensor_wait_store();
}

#[test]
fn columns_allocated_anew_hold_nothing_of_their_former_owners() {
    rule("uninitialised read", |kept| {
        let (mut b, address) = bench();
        let base = allocate(&mut b, address);
        let at = mine(&mut b, base);
        store(&mut b, at);
        free(&mut b, base);
        let base = allocate(&mut b, address);
        let at = mine(&mut b, base);
        if kept == Kept::Yes {
            store(&mut b, at);
        }
        let [value] = b.k.tensor_load_columns::<1>(at);
        b.k.tensor_wait_load();
        let to = b.k.mul_wide_add(b.thread, 4, b.output);
        b.k.store(Addr::<Global>::of(to), value);
        free(&mut b, base);
        b.finish()
    });
}
