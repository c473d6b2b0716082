//! The processor's floating-point mode: ours while we compute, the caller's before and after.
//!
//! A host may run its threads with subnormal numbers flushed to zero, with another rounding or with exceptions that
//! trap; so may threads that were started from such a one, for they inherit its mode. Rust assumes the mode that a
//! process starts with, and so do our bounds. Every piece of work on every thread therefore runs between two
//! instructions that set that mode and put the old one back, its sticky flags included.
//!
//! The matrix unit does not look at the mode. On other processors than x86-64 and 64-bit ARM nothing is done.

use std::marker::PhantomData;

/// Calls `work` in the mode that a process starts with, and puts the caller's back, also if `work` panics.
pub fn in_default_mode<R>(work: impl FnOnce() -> R) -> R {
    let _restored_when_dropped = Mode::default_until_dropped();
    apart(work)
}

/// A call that stays one: arithmetic that were inlined beside the mode's change could be moved across it.
#[inline(never)]
fn apart<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// What this thread's mode was. Not to be sent: the registers are the thread's.
struct Mode {
    before: registers::Bits,
    of_this_thread: PhantomData<*const ()>,
}

impl Mode {
    fn default_until_dropped() -> Self {
        let before = registers::read();
        registers::write(registers::DEFAULT);
        Self { before, of_this_thread: PhantomData }
    }
}

impl Drop for Mode {
    fn drop(&mut self) {
        registers::write(self.before);
    }
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use std::arch::asm;

    /// MXCSR.
    pub(super) type Bits = u32;

    /// As a process starts: round to nearest, every exception masked, nothing flushed.
    pub(super) const DEFAULT: Bits = 0x1F80;

    /// Flush to zero, denormals are zero, rounding up, inexact already seen.
    #[cfg(test)]
    pub(super) const ODD: Bits = 0xDFE0;

    pub(super) fn read() -> Bits {
        let mut value = 0u32;
        // SAFETY: every x86-64 processor has SSE; the instruction writes the four bytes of `value`.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut value, options(nostack, preserves_flags)) };
        value
    }

    /// Sets MXCSR to the default, or to what the processor itself gave out.
    pub(super) fn write(value: Bits) {
        // SAFETY: every x86-64 processor has SSE; the instruction reads the four bytes of `value`, none of whose
        // reserved bits are set, so it does not fault. The mode in which Rust's own arithmetic runs is the one that
        // Rust assumes, or the one in which the caller came to us. Not marked as free of effects on memory, so no load
        // or store moves across it.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &value, options(nostack, preserves_flags)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod registers {
    use std::arch::asm;

    /// FPCR, the mode, and FPSR, the flags.
    pub(super) type Bits = [u64; 2];

    /// As a process starts: round to nearest, no exception traps, nothing is flushed.
    pub(super) const DEFAULT: Bits = [0, 0];

    /// Flush to zero, rounding up, inexact already seen.
    #[cfg(test)]
    pub(super) const ODD: Bits = [1 << 24 | 1 << 22, 1 << 4];

    pub(super) fn read() -> Bits {
        let (mode, flags);
        // SAFETY: every 64-bit ARM processor has the registers, and every program may read them.
        unsafe {
            asm!("mrs {}, fpcr", "mrs {}, fpsr", out(reg) mode, out(reg) flags, options(nostack, preserves_flags))
        };
        [mode, flags]
    }

    /// Sets both to the default, or to what the processor itself gave out.
    pub(super) fn write([mode, flags]: Bits) {
        // SAFETY: every 64-bit ARM processor has the registers, and every program may write them. The mode in which
        // Rust's own arithmetic runs is the one that Rust assumes, or the one in which the caller came to us. Not
        // marked as free of effects on memory, so no load or store moves across it.
        unsafe { asm!("msr fpcr, {}", "msr fpsr, {}", in(reg) mode, in(reg) flags, options(nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod registers {
    pub(super) type Bits = ();

    pub(super) const DEFAULT: Bits = ();

    pub(super) fn read() -> Bits {}

    pub(super) fn write((): Bits) {}
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::in_default_mode;
    use super::registers::{Bits, DEFAULT, ODD, read, write};

    /// Runs a test in a mode that is not the default, in a thread of its own.
    fn in_mode(mode: Bits, test: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let before = read();
                write(mode);
                test();
                write(before);
            });
        });
    }

    #[test]
    fn work_runs_in_the_default_mode_and_the_callers_comes_back() {
        in_mode(ODD, || {
            let inside = in_default_mode(|| (read(), std::hint::black_box(1e-40f32) * std::hint::black_box(0.5)));
            let (outside, product) = (read(), inside.1);
            write(DEFAULT);
            assert_eq!((inside.0, outside), (DEFAULT, ODD));
            assert!(product > 0.0);
        });
    }

    #[test]
    fn the_callers_mode_comes_back_after_a_panic() {
        in_mode(ODD, || {
            let panicked = std::panic::catch_unwind(|| in_default_mode(|| std::panic::resume_unwind(Box::new(()))));
            let outside = read();
            write(DEFAULT);
            assert!(panicked.is_err());
            assert_eq!(outside, ODD);
        });
    }
}
