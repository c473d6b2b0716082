//! C, written by several threads at once, each its own tiles.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::backend::Target;

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

    /// Rounds values to the target's type and stores them in a row.
    ///
    /// # Safety
    ///
    /// The matrix that this was made from must still be there, and no other thread may touch these columns of this row
    /// meanwhile.
    #[inline(always)]
    pub(super) unsafe fn store(&self, row: usize, columns: Range<usize>, values: &[f32]) {
        assert!(row < self.rows && columns.end <= self.columns && columns.len() == values.len());
        let offset = row * self.columns + columns.start;
        // SAFETY: in each arm the range lies inside the matrix (asserted above), and nobody else touches it (promised by
        // the caller).
        unsafe {
            match self.start {
                Pointer::F16(start) => {
                    std::slice::from_raw_parts_mut(start.add(offset), values.len()).convert_from_f32_slice(values);
                }
                Pointer::BF16(start) => {
                    let out = std::slice::from_raw_parts_mut(start.add(offset), values.len());
                    out.iter_mut().zip(values).for_each(|(out, &value)| *out = bf16::from_f32(value));
                }
                Pointer::F32(start) => {
                    std::slice::from_raw_parts_mut(start.add(offset), values.len()).copy_from_slice(values);
                }
            }
        }
    }
}
