//! The experts of a layer in two places as lots, where a call has the device bring over those that it does not hold.
//!
//! Such a call gives every expert a *number*: that of its slot if the device holds it, else its own behind all slots.
//! Rows are sorted by numbers, and each product is computed lot by lot: first those of slots, whose weights are there,
//! and meanwhile the first of the others' are brought to one of two places in the workspace. The products behind each
//! other use the two in turn.
//!
//! ```text
//! stream   place ─ sort ─ gate/up of slots ─ lot 0 ─ lot 1 ─ … ─ down of slots ─ lot 0 ─ … ─ combine
//! beside              └── fetch 0 ─ fetch 1 ┴─ fetch 2 (when lot 0 is done) …
//! ```
//!
//! Slots and lots are computed by the same kernels, those that a device computes the whole layer with, and so are bits.

use super::shape::LayerShape;
use crate::family::Family;
use crate::products::MOST_EXPERTS;

/// Bytes that are brought over at a time, at most, if that is more than one expert: long enough for the bus to be busy
/// between launches, and little beside the memory of any device that has such layers.
pub const MOST_BYTES: usize = 128 << 20;

/// How the experts of a layer are numbered and cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lots {
    /// Experts of a lot.
    pub each: u32,
    /// Lots of slots.
    pub of_slots: u32,
    /// Lots of all experts.
    pub of_all: u32,
    /// Bytes of an expert's matrices of the first product, and of the second.
    pub bytes: [usize; 2],
}

impl Lots {
    /// Those of a layer of so many experts, of which the device's slots are the shape's, with so many bytes at most; or
    /// why there are none.
    pub fn of(shape: &LayerShape, family: &dyn Family, all: u32, most_bytes: usize) -> Result<Self, String> {
        let matrices = shape.matrix_bytes(family);
        let (down, first) = (matrices[matrices.len() - 1], matrices[..matrices.len() - 1].iter().sum::<usize>());
        let most = (most_bytes / first.max(down).max(1)).max(1) as u32;
        let of_all = all.div_ceil(most.min(all));
        let each = all.div_ceil(of_all);
        let lots = Lots { each, of_slots: shape.experts.div_ceil(each), of_all, bytes: [first, down] };
        if lots.numbers() > MOST_EXPERTS {
            let (slots, numbers) = (shape.experts, lots.numbers());
            return Err(format!(
                "{all} experts and {slots} on the GPU are {numbers} numbers, more than the {MOST_EXPERTS} that rows are \
                 sorted by"
            ));
        }
        Ok(lots)
    }

    /// Numbers that rows are sorted by; some of the last of slots and of all may be nobody's.
    pub fn numbers(&self) -> u32 {
        self.first() + self.each * self.of_all
    }

    /// The number of the first expert that is not in a slot.
    pub fn first(&self) -> u32 {
        self.each * self.of_slots
    }

    /// Bytes of the layout of one lot.
    pub(super) fn layout_bytes(&self) -> u64 {
        8 * u64::from(self.each + 1)
    }

    /// Bytes of the weights of one lot.
    pub(super) fn lot_bytes(&self) -> u64 {
        u64::from(self.each) * self.bytes[0].max(self.bytes[1]) as u64
    }

    /// Bytes that calls work in besides what they take without.
    pub fn workspace_bytes(&self) -> usize {
        2 * (self.lot_bytes() + self.layout_bytes()) as usize
    }
}
