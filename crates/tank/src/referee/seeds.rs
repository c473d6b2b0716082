//! Seeds: one from the operating system that nobody has seen, and all others from it.

use crate::{Error, Result};

/// A seed from the operating system. It is told when what it was for is over.
pub fn fresh() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|source| Error::Randomness { reason: source.to_string() })?;
    Ok(u64::from_le_bytes(bytes))
}

/// A seed that follows from another and a path of numbers. Neighbouring paths have nothing in common.
pub fn derive(seed: u64, path: &[u64]) -> u64 {
    let mix = |mut x: u64| {
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    };
    path.iter()
        .fold(mix(seed), |seed, step| mix(seed.wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(step | 1) ^ step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_gives_another_seed_each_time() {
        assert_ne!(fresh().unwrap(), fresh().unwrap());
    }

    #[test]
    fn no_two_of_many_paths_meet() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..50 {
            for a in 0..20 {
                assert!(seen.insert(derive(seed, &[a])));
                for b in 0..10 {
                    assert!(seen.insert(derive(seed, &[a, b])));
                }
            }
        }
    }
}
