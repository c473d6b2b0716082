//! The statistics: what a table of quartets says about a ratio of speeds, and how sure that is.
//!
//! A quartet is four samples in the order champion, challenger, challenger, champion, or the reverse. Its figure is
//!
//! ```text
//! d = ½ (ln B₁ + ln B₂ − ln A₁ − ln A₂)
//! ```
//!
//! the log of challenger over champion. Both sides have the same mean place in time, so a drift that is linear over the
//! four samples cancels. A shape's figure is the median of its quartets, which a few disturbed ones do not move; the
//! geomean's is the mean of its shapes'. Below zero is faster; speedup = exp(−d).
//!
//! **The interval** comes from a bootstrap of processes: they are drawn with replacement, each with all of its
//! quartets, the same for all shapes because what a process is dealt (where its memory fell) it is dealt for all of
//! them. What quartets of a process differ by is in what processes differ by; to draw quartets too would count it
//! twice, which on a noisy machine makes intervals half as wide again. Its plain percentiles are too narrow where
//! processes differ and are few: six of them, drawn from six, have 5/6 of the variance, and percentiles know nothing of
//! Student. So by default only the bootstrap's spread is used, estimate ± 1.1·t(P − 1)·√(P/(P − 1))·spread.
//! [`crate::calibration`] says what either is worth; [`Interval`] chooses.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// The log-ratio of challenger over champion from the seconds of a quartet, two samples each.
pub fn quartet(champion: [f64; 2], challenger: [f64; 2]) -> f64 {
    0.5 * (challenger[0].ln() + challenger[1].ln() - champion[0].ln() - champion[1].ln())
}

/// Quartets of every shape from a number of processes. Complete by construction: a process counts with all of its
/// quartets or not at all, because missing data is never a score.
#[derive(Clone, Debug, PartialEq)]
pub struct Quartets {
    shapes: usize,
    a_process: usize,
    /// `[process][shape][quartet]`
    values: Vec<f64>,
}

impl Quartets {
    /// An empty table.
    pub fn new(shapes: usize, quartets_per_process: usize) -> Self {
        Self { shapes, a_process: quartets_per_process, values: Vec::new() }
    }

    /// Adds a process: the quartets of each shape in turn. Says whether it was complete and finite; if not, nothing was
    /// added.
    #[must_use]
    pub fn push(&mut self, process: &[Vec<f64>]) -> bool {
        let complete = process.len() == self.shapes
            && process.iter().all(|shape| shape.len() == self.a_process && shape.iter().all(|d| d.is_finite()));
        if complete {
            self.values.extend(process.iter().flatten());
        }
        complete
    }

    /// Processes.
    pub fn processes(&self) -> usize {
        self.values.len() / (self.shapes * self.a_process).max(1)
    }

    /// Quartets of each shape.
    pub fn quartets(&self) -> usize {
        self.processes() * self.a_process
    }

    /// The quartets of one shape, process by process.
    pub fn of_shape(&self, shape: usize) -> Vec<f64> {
        let process = self.shapes * self.a_process;
        let of = |values: &[f64]| values[shape * self.a_process..][..self.a_process].to_vec();
        self.values.chunks_exact(process).flat_map(of).collect()
    }
}

/// A log-ratio with its interval. Below zero is faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogRatio {
    /// The estimate.
    pub estimate: f64,
    /// Half the width of its interval.
    pub half_width: f64,
}

impl LogRatio {
    /// The interval's lower end: the fastest it may be.
    pub fn low(&self) -> f64 {
        self.estimate - self.half_width
    }

    /// The interval's upper end: the slowest it may be.
    pub fn high(&self) -> f64 {
        self.estimate + self.half_width
    }

    /// Whether the interval holds this value.
    pub fn contains(&self, value: f64) -> bool {
        self.low() <= value && value <= self.high()
    }
}

/// How a bootstrap becomes an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interval {
    /// Its spread, times Student's quantile for the number of processes.
    #[default]
    Student,
    /// Its percentiles, half the distance between them to either side of the estimate.
    Percentiles,
}

/// What the spread of medians of few processes is too small by: without it 96.3 to 97.1 % of shapes' intervals hold the
/// truth where processes are alike and 97.5 % are promised.
const SHORTFALL: f64 = 1.1;

/// How sure to be, and how to find out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Method {
    /// The part of cases in which an interval may miss the truth.
    pub alpha: f64,
    /// The kind of interval.
    pub interval: Interval,
    /// Resamples of the bootstrap.
    pub resamples: usize,
}

/// What a table of quartets says.
#[derive(Clone, Debug, PartialEq)]
pub struct Analysis {
    /// The mean over shapes.
    pub geomean: LogRatio,
    /// Each shape.
    pub shapes: Vec<LogRatio>,
}

/// Estimates with intervals. The same seed gives the same answer.
///
/// # Panics
///
/// If there are fewer than two processes, or no shapes.
pub fn analyse(quartets: &Quartets, method: Method, seed: u64) -> Analysis {
    let (shapes, processes) = (quartets.shapes, quartets.processes());
    assert!(processes > 1 && shapes > 0, "spread is a matter of several");
    let ranked: Vec<Ranked> = (0..shapes).map(|shape| Ranked::new(&quartets.of_shape(shape))).collect();
    let mut resampled = bootstrap(&ranked, processes, quartets.a_process, method.resamples, seed);
    let half_widths: Vec<f64> = resampled
        .iter_mut()
        .map(|deviations| match method.interval {
            Interval::Student => student(deviations, method.alpha, processes),
            Interval::Percentiles => percentiles(deviations, method.alpha),
        })
        .collect();
    let medians: Vec<f64> = ranked.iter().map(Ranked::median).collect();
    let geomean = medians.iter().sum::<f64>() / shapes as f64;
    Analysis {
        geomean: LogRatio { estimate: geomean, half_width: half_widths[shapes] },
        shapes: medians
            .iter()
            .zip(&half_widths)
            .map(|(&estimate, &half_width)| LogRatio { estimate, half_width })
            .collect(),
    }
}

fn student(deviations: &[f64], alpha: f64, processes: usize) -> f64 {
    let (p, (_, spread)) = (processes as f64, mean_and_deviation(deviations));
    SHORTFALL * student_quantile(1.0 - alpha / 2.0, processes - 1) * spread * (p / (p - 1.0)).sqrt()
}

fn percentiles(deviations: &mut [f64], alpha: f64) -> f64 {
    deviations.sort_by(f64::total_cmp);
    let (last, cut) = (deviations.len() - 1, (deviations.len() as f64 * alpha / 2.0) as usize);
    0.5 * (deviations[last - cut] - deviations[cut])
}

/// A shape's quartets, sorted, and for each in its old place the place it has now. With it a resample is a row of
/// counts, and its median is found by counting up to the middle: no resample is ever sorted.
struct Ranked {
    sorted: Vec<f64>,
    rank: Vec<u32>,
}

impl Ranked {
    fn new(values: &[f64]) -> Self {
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        order.sort_by(|&a, &b| values[a as usize].total_cmp(&values[b as usize]));
        let mut rank = vec![0; values.len()];
        order.iter().enumerate().for_each(|(place, &old)| rank[old as usize] = place as u32);
        Self { sorted: order.iter().map(|&old| values[old as usize]).collect(), rank }
    }

    fn median(&self) -> f64 {
        let n = self.sorted.len();
        0.5 * (self.sorted[(n - 1) / 2] + self.sorted[n / 2])
    }

    /// The median of a resample given as how often each sorted value was drawn.
    fn median_of(&self, counts: &[u32]) -> f64 {
        let n = self.sorted.len() as u32;
        let (lower, upper) = ((n - 1) / 2, n / 2);
        let (mut below, mut low) = (0, None);
        for (value, &count) in self.sorted.iter().zip(counts) {
            below += count;
            if low.is_none() && below > lower {
                low = Some(*value);
            }
            if below > upper {
                return 0.5 * (low.unwrap_or(*value) + value);
            }
        }
        self.sorted.last().copied().unwrap_or(0.0)
    }
}

/// For each shape, and last for their mean, how far every resample's median is from the estimate.
fn bootstrap(ranked: &[Ranked], processes: usize, a_process: usize, resamples: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut rng = Rng::with_seed(seed);
    let mut deviations = vec![Vec::with_capacity(resamples); ranked.len() + 1];
    let mut counts = vec![0u32; processes * a_process];
    let mut drawn = vec![0usize; processes];
    for _ in 0..resamples {
        drawn.iter_mut().for_each(|process| *process = rng.usize(..processes));
        let mut sum = 0.0;
        for (shape, deviations) in ranked.iter().zip(&mut deviations) {
            counts.fill(0);
            for &process in &drawn {
                let ranks = &shape.rank[process * a_process..][..a_process];
                ranks.iter().for_each(|&rank| counts[rank as usize] += 1);
            }
            let deviation = shape.median_of(&counts) - shape.median();
            deviations.push(deviation);
            sum += deviation;
        }
        deviations[ranked.len()].push(sum / ranked.len() as f64);
    }
    deviations
}

/// The median of some numbers, 0 of none.
pub fn median(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { Ranked::new(values).median() }
}

/// The mean and the standard deviation of some numbers, 0 of none.
pub(crate) fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len().max(2) as f64;
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}

/// The value that Student's t with so many degrees of freedom stays below with this probability.
pub(crate) fn student_quantile(probability: f64, freedom: usize) -> f64 {
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if student_below(middle, freedom) < probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// The probability that Student's t stays below `t` ≥ 0: the finite series for a whole number of degrees of freedom.
fn student_below(t: f64, freedom: usize) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let squared = cosine * cosine;
    let odd = freedom % 2 == 1;
    let (mut term, mut sum) = if odd { (cosine, cosine) } else { (1.0, 1.0) };
    let first = if odd { 3 } else { 2 };
    for j in (first..freedom.saturating_sub(1)).step_by(2) {
        term *= squared * (j as f64 - 1.0) / j as f64;
        sum += term;
    }
    let within = match (odd, freedom) {
        (true, 1) => angle / std::f64::consts::FRAC_PI_2,
        (true, _) => (angle + sine * sum) / std::f64::consts::FRAC_PI_2,
        (false, _) => sine * sum,
    };
    0.5 + 0.5 * within
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(resamples: usize) -> Method {
        Method { alpha: 0.05, interval: Interval::Student, resamples }
    }

    fn table(processes: usize, mut value: impl FnMut(usize, usize, usize) -> f64) -> Quartets {
        let mut quartets = Quartets::new(2, 4);
        for process in 0..processes {
            let shape = |shape| (0..4).map(|quartet| value(process, shape, quartet)).collect::<Vec<f64>>();
            let rows = [0, 1].map(shape);
            assert!(quartets.push(&rows));
        }
        quartets
    }

    #[test]
    fn a_linear_drift_cancels_in_a_quartet() {
        let at = |place: f64, speed: f64| (speed + 0.1 * place).exp();
        let abba = quartet([at(0.0, 0.0), at(3.0, 0.0)], [at(1.0, 0.05), at(2.0, 0.05)]);
        assert!((abba - 0.05).abs() < 1e-12, "{abba}");
    }

    #[test]
    fn the_quantiles_of_student_are_those_of_the_tables() {
        let tables = [(0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 5, 2.571), (0.975, 11, 2.201), (0.995, 23, 2.807)];
        for (probability, freedom, expected) in tables {
            let found = student_quantile(probability, freedom);
            assert!((found - expected).abs() < 1e-3, "{freedom}: {found}, not {expected}");
        }
    }

    #[test]
    fn the_median_of_counts_is_the_median_of_the_resample_they_count() {
        let values: Vec<f64> = [5.0, 1.0, 4.0, 2.0, 3.0, 9.0].to_vec();
        let ranked = Ranked::new(&values);
        let mut rng = Rng::with_seed(4);
        for _ in 0..200 {
            let mut counts = vec![0; values.len()];
            let mut resample: Vec<f64> = Vec::new();
            for _ in 0..values.len() {
                let drawn = rng.usize(..values.len());
                counts[ranked.rank[drawn] as usize] += 1;
                resample.push(values[drawn]);
            }
            assert_eq!(ranked.median_of(&counts), median(&resample));
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_interval_and_another_nearly_the_same() {
        let mut rng = Rng::with_seed(8);
        let quartets = table(6, |_, _, _| rng.f64() * 0.01);
        let of = |seed| analyse(&quartets, method(1000), seed).geomean;
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        // The spread of 1000 resamples is known to 1/√2000 of itself: five of those each are far out.
        assert!((of(1).half_width / of(2).half_width - 1.0).abs() < 10.0 / 2000f64.sqrt());
    }

    #[test]
    fn what_differs_between_processes_counts_with_the_number_of_processes_only() {
        let offsets = [-0.02, 0.01, 0.0, 0.02, -0.01, 0.005];
        let few = table(6, |process, _, _| offsets[process]);
        let analysis = analyse(&few, method(2000), 3);
        // Four equal quartets a process add nothing: the interval is wider than four times as many processes would
        // have.
        let many = table(24, |process, _, _| offsets[process % 6]);
        assert!(analysis.geomean.half_width > 2.0 * analyse(&many, method(2000), 3).geomean.half_width);
    }

    #[test]
    fn percentiles_are_narrower_than_students_interval_where_few_processes_differ() {
        let mut rng = Rng::with_seed(5);
        let dealt: Vec<f64> = (0..6).map(|_| 0.02 * rng.f64()).collect();
        let quartets = table(6, |process, _, _| dealt[process]);
        let of = |interval| analyse(&quartets, Method { interval, ..method(2000) }, 1).geomean.half_width;
        assert!(of(Interval::Percentiles) < 0.8 * of(Interval::Student));
    }

    #[test]
    fn an_outlier_moves_the_median_little() {
        let mut rng = Rng::with_seed(8);
        let quartets = table(
            6,
            |process, _, quartet| {
                if process == 0 && quartet == 0 { 3.0 } else { 0.01 + 0.002 * (rng.f64() - 0.5) }
            },
        );
        let analysis = analyse(&quartets, method(1000), 1);
        assert!((analysis.geomean.estimate - 0.01).abs() < 0.001, "{analysis:?}");
    }

    #[test]
    fn an_incomplete_process_is_not_taken() {
        let mut quartets = Quartets::new(2, 2);
        assert!(!quartets.push(&[vec![0.1, 0.2]]), "a shape is missing");
        assert!(!quartets.push(&[vec![0.1, 0.2], vec![0.1]]), "a quartet is missing");
        assert!(!quartets.push(&[vec![0.1, 0.2], vec![0.1, f64::NAN]]), "a quartet is no number");
        assert_eq!(quartets.processes(), 0);
    }
}
