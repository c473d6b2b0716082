//! What lanes of a warp do together: who is meant, and who is waited for.

use ptx::instr::{ReduceOp, ShuffleMode, Warp};
use ptx::{Builder, DataType, Kernel, Operand, Pred, Reg, U32};

use super::{Bench, Kept, rule};

/// A shuffle among the lanes of a mask.
fn exchange(k: &mut Builder, a: Reg<U32>, by: u32, mask: Operand) -> Reg<U32> {
    let (dst, mode, lane) = (k.register::<U32>(), ShuffleMode::Butterfly, Operand::Imm(by.into()));
    k.emit(Warp::Shuffle { mode, dst: dst.id(), valid: None, a: a.id(), lane, clamp: Operand::Imm(31), mask });
    dst
}

fn trap_unless(k: &mut Builder, holds: Pred) {
    let wrong = k.opposite(holds);
    k.if_(wrong, |k| k.trap());
}

/// The halves of a warp, each for itself: by its own mask, or by the other's.
fn halves(own: bool, by: u32) -> Kernel {
    let mut b = Bench::new(32, None);
    let lower = b.k.lt(b.thread, 16);
    let masks = if own { [0xffff, 0xffff_0000] } else { [0xffff_0000, 0xffff] };
    let mask = b.k.select::<U32>(lower, masks[0], masks[1]);
    let mask = Operand::Reg(mask.id());
    let other = exchange(&mut b.k, b.thread, by, mask);
    let expected = b.k.xor(b.thread, by);
    let holds = b.k.eq(other, expected);
    trap_unless(&mut b.k, holds);
    let sum = b.k.register::<U32>();
    b.k.emit(Warp::Reduce { op: ReduceOp::Add, ty: DataType::U32, dst: sum.id(), a: b.thread.id(), mask });
    let expected = b.k.select::<U32>(lower, 120, 376);
    let holds = b.k.eq(sum, expected);
    trap_unless(&mut b.k, holds);
    b.finish()
}

#[test]
fn parts_of_a_warp_do_together_what_they_do_apart() {
    rule("divergence", |kept| halves(kept == Kept::Yes, 8));
    rule("bad operand", |kept| halves(true, if kept == Kept::Yes { 8 } else { 16 }));
}

/// Half of the lanes go, or wait for what comes behind; the others then name all lanes.
fn half_goes(exits: bool, together: impl Fn(&mut Builder, Reg<U32>)) -> Kernel {
    let mut b = Bench::new(32, None);
    let upper = b.k.ge(b.thread, 16);
    let end = b.k.label();
    match exits {
        true => b.k.if_(upper, |k| k.exit()),
        false => b.k.branch_if(upper, end),
    }
    together(&mut b.k, b.thread);
    b.k.place(end);
    b.k.add(b.thread, 1);
    b.finish()
}

#[test]
fn lanes_that_have_exited_are_not_waited_for() {
    rule("divergence", |kept| half_goes(kept == Kept::Yes, |k, _| k.sync_warp()));
    rule("divergence", |kept| {
        half_goes(kept == Kept::Yes, |k, thread| {
            let sum = k.reduce(ReduceOp::Add, thread);
            let even = k.ge(thread, 0);
            let (all, living) = (k.eq(sum, 120), k.ballot(even));
            trap_unless(k, all);
            let living = k.eq(living, 0xffff);
            trap_unless(k, living);
        })
    });
}

#[test]
fn nothing_is_read_from_a_lane_that_has_exited() {
    rule("bad operand", |kept| {
        half_goes(true, |k, thread| {
            k.shuffle(ShuffleMode::Down, thread, if kept == Kept::Yes { 0 } else { 8 });
        })
    });
}
