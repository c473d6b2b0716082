//! The 32 lanes of a warp, as bits of a mask.

/// All lanes.
pub(crate) const FULL: u32 = u32::MAX;

/// One value per lane, in the low bits.
pub(crate) type Lanes = [u64; 32];

/// The positions of the set bits.
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> + Clone {
    let mut left = mask;
    std::iter::from_fn(move || {
        let lane = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (lane < 32).then_some(lane)
    })
}
