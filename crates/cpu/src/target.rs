//! C, written by several threads at once, each its own tiles.

use std::marker::PhantomData;
use std::ops::Range;

use half::{bf16, f16};

use super::pack::COLUMNS;
use op::Target;

/// A result matrix `[m, n]` whose tiles are handed to different threads. It borrows the matrix as a mutable slice
/// would, so nobody else reads or writes it meanwhile, and it cannot outlive it.
pub(super) struct SharedTarget<'a> {
    start: Pointer,
    rows: usize,
    columns: usize,
    borrowed: PhantomData<&'a mut [f32]>,
}

#[derive(Clone, Copy)]
enum Pointer {
    F16(*mut f16),
    BF16(*mut bf16),
    F32(*mut f32),
}

// SAFETY: the pointer is to plain numbers that are mutably borrowed for `'a`, like those of a mutable slice, which may
// be sent to another thread.
unsafe impl Send for SharedTarget<'_> {}
// SAFETY: all that can be done through a shared reference is `store`, whose callers promise that no two threads write
// the same columns of the same row at once; nothing is read.
unsafe impl Sync for SharedTarget<'_> {}

impl<'a> SharedTarget<'a> {
    /// Shares a target of `[rows, columns]`; its length was checked against the problem.
    pub(super) fn new(target: &'a mut Target<'_>, rows: usize, columns: usize) -> Self {
        assert_eq!(target.len(), rows * columns, "a target has the shape of its group");
        let start = match target {
            Target::F16(c) => Pointer::F16(c.as_mut_ptr()),
            Target::BF16(c) => Pointer::BF16(c.as_mut_ptr()),
            Target::F32(c) => Pointer::F32(c.as_mut_ptr()),
        };
        Self { start, rows, columns, borrowed: PhantomData }
    }

    /// Rounds values to the target's type and stores them in a row: as many as there are columns.
    ///
    /// # Safety
    ///
    /// No other thread may store to these columns of this row meanwhile.
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
        // SAFETY: the row and the columns lie inside the matrix (asserted above), whose length `new` has compared with
        // rows times columns and which is borrowed for as long as this lives; no other thread stores there (promised by
        // the caller).
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
/// `to` must be valid for writing so many values, at most [`COLUMNS`].
#[inline(always)]
unsafe fn copy<T: Copy>(values: &[T; COLUMNS], to: *mut T, count: usize) {
    // SAFETY: there are `COLUMNS` values to read, and room for `count` (promised by the caller); `values` is a borrow
    // and `to` is not part of it. An array of values wants no more alignment than is asked for: none.
    unsafe {
        if count == COLUMNS {
            to.cast::<[T; COLUMNS]>().write_unaligned(*values);
        } else {
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, count);
        }
    }
}
