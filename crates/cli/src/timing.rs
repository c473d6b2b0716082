//! What a handful of timings says: the middle, the best, and how far they spread.

use serde::Serialize;

/// A summary of samples, in the unit of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle.
    pub median: f64,
    /// The least.
    pub best: f64,
    /// One in ten is below.
    pub p10: f64,
    /// One in four is below.
    pub p25: f64,
    /// One in four is above.
    pub p75: f64,
    /// One in ten is above.
    pub p90: f64,
    /// How many there were.
    pub samples: usize,
}

impl Spread {
    /// Sums samples up; without any, everything is zero.
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self {
            median: quantile(&sorted, 0.5),
            best: sorted.first().copied().unwrap_or(0.0),
            p10: quantile(&sorted, 0.1),
            p25: quantile(&sorted, 0.25),
            p75: quantile(&sorted, 0.75),
            p90: quantile(&sorted, 0.9),
            samples: sorted.len(),
        }
    }
}

/// The value below which this part of the sorted samples lies, neighbours joined by a straight line.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = part * last as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_number_of_samples_has_one_in_the_middle() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]).median, 2.0);
    }

    #[test]
    fn an_even_number_of_samples_has_its_middle_between_two() {
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 10.0]).median, 3.0);
    }

    #[test]
    fn a_single_outlier_moves_neither_the_median_nor_the_best() {
        let spread = Spread::of(&[1.0, 1.0, 1.0, 1.0, 1000.0]);
        assert_eq!((spread.median, spread.best, spread.samples), (1.0, 1.0, 5));
        assert!(spread.p90 > 1.0);
    }

    #[test]
    fn the_tenths_of_eleven_samples_are_samples() {
        let samples: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        let spread = Spread::of(&samples);
        assert_eq!((spread.p10, spread.median, spread.p90, spread.best), (1.0, 5.0, 9.0, 0.0));
    }

    #[test]
    fn the_quarters_of_nine_samples_are_samples() {
        let samples: Vec<f64> = (0..=8).rev().map(f64::from).collect();
        let spread = Spread::of(&samples);
        assert_eq!((spread.p25, spread.median, spread.p75), (2.0, 4.0, 6.0));
    }

    #[test]
    fn one_sample_is_all_there_is_and_none_is_zero() {
        let alike = Spread { median: 7.0, best: 7.0, p10: 7.0, p25: 7.0, p75: 7.0, p90: 7.0, samples: 1 };
        assert_eq!(Spread::of(&[7.0]), alike);
        assert_eq!(Spread::of(&[]).median, 0.0);
    }
}
