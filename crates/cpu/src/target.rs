//! C, written by several threads at once, each its own tiles.

use std::ops::Range;

use half::{bf16, f16};

use super::pack::COLUMNS;
use op::Target;

/// A result matrix `[m, n]` whose tiles are handed to different threads.
pub(super) struct SharedTarget {
    start: Pointer,
    rows: usize,
    columns: usize,
}

#[derive(Clone, Copy)]
enum Pointer {
    F16(*mut f16),
    BF16(*mut bf16),
    F32(*mut f32),
}

// SAFETY: the pointer is to memory that outlives the run (`SharedTarget::new` borrows it for as long), and `store`
// writes only where its caller alone writes.
unsafe impl Send for SharedTarget {}
// SAFETY: as above.
unsafe impl Sync for SharedTarget {}

impl SharedTarget {
    /// Shares a target of `[rows, columns]`; its length was checked against the problem.
    pub(super) fn new(target: &mut Target<'_>, rows: usize, columns: usize) -> Self {
        assert_eq!(target.len(), rows * columns, "a target has the shape of its group");
        let start = match target {
            Target::F16(c) => Pointer::F16(c.as_mut_ptr()),
            Target::BF16(c) => Pointer::BF16(c.as_mut_ptr()),
            Target::F32(c) => Pointer::F32(c.as_mut_ptr()),
        };
        Self { start, rows, columns }
    }

    /// Rounds values to the target's type and stores them in a row: as many as there are columns.
    ///
    /// # Safety
    ///
    /// The matrix that this was made from must still be there, and no other thread may touch these columns of this row
    /// meanwhile.
    #[inline(always)]
    pub(super) unsafe fn store(
        &self,
        row: usize,
        columns: Range<usize>,
        values: &[f32; COLUMNS],
        half: &impl Fn(&[f32; COLUMNS]) -> [f16; COLUMNS],
    ) {
        assert!(row < self.rows && columns.end <= self.columns && columns.len() <= COLUMNS);
        let offset = row * self.columns + columns.start;
        // SAFETY: the columns lie inside the matrix (asserted above), and nobody else touches them (promised by the caller).
        unsafe {
            match self.start {
                Pointer::F16(start) => copy(&half(values), start.add(offset), columns.len()),
                Pointer::BF16(start) => copy(&values.map(bf16::from_f32), start.add(offset), columns.len()),
                Pointer::F32(start) => copy(values, start.add(offset), columns.len()),
            }
        }
    }
}

/// Copies the first `count` values: all of them, nearly always, which is one or two vector stores.
///
/// # Safety
///
/// There must be room for so many.
#[inline(always)]
unsafe fn copy<T: Copy>(values: &[T; COLUMNS], to: *mut T, count: usize) {
    // SAFETY: passed on to the caller.
    unsafe {
        if count == COLUMNS {
            to.cast::<[T; COLUMNS]>().write_unaligned(*values);
        } else {
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, count);
        }
    }
}
