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

use super::ALIGNMENT;
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
        let (slots, even) = (shape.experts, all.div_ceil(all.div_ceil(most.min(all))));
        let of = |each: u32| {
            let [of_slots, of_all] = [slots, all].map(|experts| experts.div_ceil(each));
            Lots { each, of_slots, of_all, bytes: [first, down] }
        };
        // The last lots of slots and of all are rounded up, by less where lots are smaller.
        let fitting = (1..=even).rev().map(of).find(|lots| lots.numbers() <= MOST_EXPERTS);
        fitting.ok_or_else(|| {
            let numbers = slots + all;
            format!(
                "{all} experts and {slots} on the GPU are {numbers} numbers, more than the {MOST_EXPERTS} that rows are \
                 sorted by"
            )
        })
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
        (8 * u64::from(self.each + 1)).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of the weights of one lot.
    fn lot_bytes(&self) -> u64 {
        (u64::from(self.each) * self.bytes[0].max(self.bytes[1]) as u64).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of the two places that weights are brought to.
    pub fn place_bytes(&self) -> usize {
        2 * (self.layout_bytes() + self.lot_bytes()) as usize
    }

    /// Layout and weights of either of them, from an address on.
    pub(super) fn places(&self, start: u64) -> [[u64; 2]; 2] {
        let each = self.layout_bytes() + self.lot_bytes();
        [start, start + each].map(|at| [at, at + self.layout_bytes()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::sm90::Sm90;

    fn lots(slots: u32, all: u32, most: usize) -> Result<Lots, String> {
        let shape = LayerShape { experts: slots, ..LayerShape::SMALL };
        let first = shape.matrix_bytes(&Sm90)[..2].iter().sum::<usize>();
        Lots::of(&shape, &Sm90, all, most * first)
    }

    #[test]
    fn lots_are_as_large_as_they_may_be_and_alike() {
        let sizes = |slots, all, most| lots(slots, all, most).map(|lots| [lots.each, lots.of_slots, lots.of_all]);
        assert_eq!(sizes(3, 9, 4), Ok([3, 1, 3]));
        assert_eq!(sizes(1, 8, 100), Ok([8, 1, 1]));
        assert_eq!(sizes(7, 8, 0), Ok([1, 7, 8]), "one expert at least");
    }

    #[test]
    fn lots_are_smaller_where_rounding_up_would_cost_more_numbers_than_there_are() {
        for (slots, all, most) in [(413, 512, 103), (511, 512, 128), (1, 1000, 1000), (512, 512, 100)] {
            let lots = lots(slots, all, most).unwrap();
            assert!(lots.numbers() <= MOST_EXPERTS && lots.first() >= slots && lots.each >= 1, "{lots:?}");
            assert!(lots.each * lots.of_all >= all, "{lots:?}");
        }
        let refused = lots(513, 512, 100).unwrap_err();
        assert!(refused.contains("1025 numbers") && refused.contains("1024"), "{refused}");
    }

    #[test]
    fn the_two_places_lie_apart_and_aligned() {
        let lots = lots(2, 7, 3).unwrap();
        let places = lots.places(512);
        assert!(places.as_flattened().iter().all(|at| at.is_multiple_of(ALIGNMENT)));
        let ends = places.map(|[layout, weights]| [layout + lots.layout_bytes(), weights + lots.lot_bytes()]);
        assert_eq!([ends[0][0], ends[0][1], ends[1][0]], [places[0][1], places[1][0], places[1][1]]);
        assert_eq!(ends[1][1], 512 + lots.place_bytes() as u64);
    }
}
