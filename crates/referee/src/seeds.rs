//! Seeds: one from the operating system that nobody has seen, and all others from it.

use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// A seed from the operating system. It is told when what it was for is over.
pub fn fresh() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|source| Error::Randomness { reason: source.to_string() })?;
    Ok(u64::from_le_bytes(bytes))
}

/// A seed that follows from another and a path of numbers. Neither can the other be found from it, nor what lies on
/// another path: a contestant sees numbers that were made from such seeds, and must not be able to compute the next
/// ones.
pub fn derive(seed: u64, path: &[u64]) -> u64 {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    path.iter().for_each(|step| hash.update(step.to_le_bytes()));
    let digest: [u8; 32] = hash.finalize().into();
    digest.iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_gives_another_seed_each_time() {
        assert_ne!(fresh().unwrap(), fresh().unwrap());
    }

    #[test]
    fn nothing_follows_from_a_seed_for_its_neighbour() {
        // Every step of the first version could be undone, so that whoever had found one seed knew all the others.
        fn undone(mut x: u64) -> u64 {
            x ^= (x >> 31) ^ (x >> 62);
            x = x.wrapping_mul(0x3196_42b2_d24d_8ec3);
            x ^= (x >> 27) ^ (x >> 54);
            x = x.wrapping_mul(0x96de_1b17_3f11_9089);
            x ^ (x >> 30) ^ (x >> 60)
        }
        fn mixed(mut x: u64) -> u64 {
            x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            x ^ (x >> 31)
        }
        let salt = 0x9E37_79B9_7F4A_7C15u64;
        let guessed = (0..100).filter(|&seed| {
            // From the seed on path 2 (an even step counts as 3) to the state before it, and from there along path 1.
            let inverse = (0..6).fold(3u64, |x, _| x.wrapping_mul(2u64.wrapping_sub(3u64.wrapping_mul(x))));
            let state = (undone(derive(seed, &[2])) ^ 2).wrapping_mul(inverse).wrapping_sub(salt);
            mixed(state.wrapping_add(salt).wrapping_mul(1) ^ 1) == derive(seed, &[1])
        });
        assert_eq!(guessed.count(), 0);
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
