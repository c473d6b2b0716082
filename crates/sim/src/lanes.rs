//! The 32 lanes of a warp: as bits of a mask, and as arrays of values.
//!
//! Values are 32 bits wide where registers are, so that a step over all lanes is a few vector instructions.

/// All lanes.
pub(crate) const FULL: u32 = u32::MAX;

/// One value per lane, in the low bits.
pub(crate) type Lanes = [u64; 32];

/// One value of 32 bits per lane.
pub(crate) type Words = [u32; 32];

/// Each lane's bit of a mask.
const BITS: Words = {
    let (mut bits, mut lane) = ([0; 32], 0);
    while lane < 32 {
        bits[lane] = 1 << lane;
        lane += 1;
    }
    bits
};

/// The positions of the set bits.
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> + Clone {
    let mut left = mask;
    std::iter::from_fn(move || {
        let lane = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (lane < 32).then_some(lane)
    })
}

/// The lanes of which something is true.
pub(crate) fn mask_of(is: impl Fn(usize) -> bool) -> u32 {
    let flags: [u8; 32] = std::array::from_fn(|lane| is(lane).into());
    // Of eight bytes that are one or zero, the product has the bits side by side in its last byte.
    let eight = |bytes: &[u8; 8]| (u64::from_le_bytes(*bytes).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32;
    let [a, b, c, d] = [0, 8, 16, 24].map(|at| flags[at..].first_chunk().map_or(0, eight));
    a | b << 8 | c << 16 | d << 24
}

/// Words extended to 64 bits.
pub(crate) fn wide(words: &Words) -> Lanes {
    words.map(u64::from)
}

/// The low words of values.
pub(crate) fn narrow(values: &Lanes) -> Words {
    values.map(|value| value as u32)
}

/// One where a bit is set, zero elsewhere.
pub(crate) fn spread(mask: u32) -> Lanes {
    BITS.map(|bit| u64::from(mask & bit != 0))
}

/// The first where a mask has a bit, the second elsewhere.
pub(crate) fn choose(mask: u32, yes: &Words, no: &Words) -> Words {
    std::array::from_fn(|lane| if mask & BITS[lane] != 0 { yes[lane] } else { no[lane] })
}

/// Replaces values in the lanes of a mask.
pub(crate) fn replace<T: Copy>(old: &mut [T; 32], mask: u32, new: &[T; 32]) {
    if mask == FULL {
        *old = *new;
        return;
    }
    for ((old, new), bit) in old.iter_mut().zip(new).zip(BITS) {
        *old = if mask & bit != 0 { *new } else { *old };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_values_are_turned_into_each_other() {
        for mask in [0, 1, 0x8000_0000, 0xdead_beef, FULL] {
            assert_eq!(mask_of(|lane| mask >> lane & 1 == 1), mask);
            assert_eq!(lanes(mask).fold(0, |bits, lane| bits | 1 << lane), mask);
            let spread = spread(mask);
            (0..32).for_each(|lane| assert_eq!(spread[lane], u64::from(mask >> lane & 1)));
            let mut values = [1; 32];
            replace(&mut values, mask, &[7; 32]);
            assert_eq!(values, choose(mask, &[7; 32], &[1; 32]));
            assert_eq!(mask_of(|lane| values[lane] == 7), mask);
        }
    }
}
