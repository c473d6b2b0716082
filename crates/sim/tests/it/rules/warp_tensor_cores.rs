//! Multiplications by a warp: all of it is there, and what was never written shows in the sums that it touches.

use ptx::instr::MatrixElement;
use ptx::{Addr, Global, Reg, Shared, Target, U32};

use super::{Bench, Kept, rule};

#[test]
fn a_warp_multiplies_with_all_of_its_lanes() {
    rule("divergence", |kept| {
        let mut b = Bench::on(Target::Sm80, 32, None);
        let sums = [0; 4].map(|_| b.k.variable(0.0));
        let (a, x) = ([0; 4].map(|_| b.k.variable(0u32)), [0; 2].map(|_| b.k.variable(0u32)));
        let multiply = |k: &mut ptx::Builder| k.mma(MatrixElement::F16, sums, a, x);
        match kept {
            Kept::Yes => multiply(&mut b.k),
            Kept::No => {
                let some = b.k.lt(b.thread, 16);
                b.k.if_(some, multiply);
            }
        }
        b.finish()
    });
}

#[test]
fn a_fragment_that_nobody_wrote_is_reported() {
    rule("undefined register", |kept| {
        let mut b = Bench::on(Target::Sm80, 32, None);
        let sums = [0; 4].map(|_| b.k.variable(0.0));
        let mut a = [0; 4].map(|_| b.k.variable(0u32));
        let x = [0; 2].map(|_| b.k.variable(0u32));
        if kept == Kept::No {
            a[3] = b.k.register();
        }
        b.k.mma(MatrixElement::F16, sums, a, x);
        b.finish()
    });
}

/// Half of B's columns come of shared memory that was never written. Sums of the other columns are as good as ever.
#[test]
fn what_was_never_written_is_in_its_columns_sums_alone() {
    rule("uninitialised read", |kept| {
        let mut b = Bench::on(Target::Sm80, 32, None);
        let tile = b.k.shared("tile", 256, 16);
        let base = b.k.shared_address(tile);
        // Rows 0 to 3 of the eight are written.
        let row = b.k.shr(b.thread, 2);
        let written = b.k.lt(row, 4);
        let at = b.k.mul_add(b.thread, 4, base);
        let zero = b.k.variable(0u32);
        b.k.when(written, |k| k.store(Addr::<Shared>::of(at), zero));
        b.k.sync_warp();
        let own = b.k.and(b.thread, 7);
        let row_at = b.k.mul_add(own, 16, base);
        let [first] = b.k.load_matrix::<1>(Addr::of(row_at), false);
        let sums = [0; 4].map(|_| b.k.variable(0.0));
        let a = [0; 4].map(|_| b.k.variable(0u32));
        b.k.mma(MatrixElement::F16, sums, a, [first, zero]);
        // Columns 2c of lanes with c < 2 are 0 and 2, which were written; c = 2 is column 4.
        let place = b.k.and(b.thread, 3);
        let good = b.k.lt(place, if kept == Kept::Yes { 2 } else { 3 });
        let out = b.k.mul_wide_add(b.thread, 4, b.output);
        let sum: Reg<U32> = sums[0].cast();
        b.k.if_(good, |k| k.store(Addr::<Global>::of(out), sum));
        b.finish()
    });
}
