//! The processor's floating-point mode: ours while we compute, the caller's before and after.
//!
//! A host may run its threads with subnormal numbers flushed to zero, with another rounding or with exceptions that
//! trap; so may threads that were started from such a one, for they inherit its mode. Rust assumes the mode that a
//! process starts with, and so do our bounds. Every piece of work on every thread therefore runs between two
//! instructions that set that mode and put the old one back, its sticky flags included.
//!
//! The matrix unit does not look at the mode. On other processors than x86-64 nothing is done.

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

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::asm;
    use std::marker::PhantomData;

    /// MXCSR as a process starts: round to nearest, every exception masked, nothing flushed.
    const DEFAULT: u32 = 0x1F80;

    /// What this thread's MXCSR was. Not to be sent: the register is the thread's.
    pub(crate) struct Mode {
        before: u32,
        of_this_thread: PhantomData<*const ()>,
    }

    impl Mode {
        pub(crate) fn default_until_dropped() -> Self {
            let before = read();
            write(DEFAULT);
            Self { before, of_this_thread: PhantomData }
        }
    }

    impl Drop for Mode {
        fn drop(&mut self) {
            write(self.before);
        }
    }

    pub(crate) fn read() -> u32 {
        let mut value = 0u32;
        // SAFETY: every x86-64 processor has SSE; the instruction writes the four bytes of `value`.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut value, options(nostack, preserves_flags)) };
        value
    }

    /// Sets MXCSR to the default, or to what the processor itself gave out.
    fn write(value: u32) {
        // SAFETY: every x86-64 processor has SSE; the instruction reads the four bytes of `value`, none of whose
        // reserved bits are set, so it does not fault. The mode in which Rust's own arithmetic runs is the one that
        // Rust assumes, or the one in which the caller came to us. Not marked as free of effects on memory, so no load
        // or store moves across it.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &value, options(nostack, preserves_flags)) };
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::environment::in_default_mode;

        /// Runs a test in a mode that is not the default, in a thread of its own.
        fn in_mode(mode: u32, test: impl FnOnce() + Send) {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let before = read();
                    write(mode);
                    test();
                    write(before);
                });
            });
        }

        /// Flush to zero, denormals are zero, rounding up, inexact already seen.
        const ODD: u32 = 0xDFE0;

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
}

#[cfg(target_arch = "x86_64")]
use x86_64::Mode;

#[cfg(not(target_arch = "x86_64"))]
struct Mode;

#[cfg(not(target_arch = "x86_64"))]
impl Mode {
    fn default_until_dropped() -> Self {
        Self
    }
}
