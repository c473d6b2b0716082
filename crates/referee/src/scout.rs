//! What a budget of time allows: how many processes, when they are looked at, and which difference can then be seen.

use crate::record::Scout;
use crate::settings::Timing;
use crate::stats::{mean_and_deviation, median, student_quantile};

/// Pairs of processes that are scouted. Their samples are not used for anything else.
pub(crate) const PROCESSES: usize = 3;
/// The part of what is left that each measurement may take: control, plant, what the fence costs, the duel and its
/// repetition. What the first of them leave, since they stop early on a quiet machine, the last two share.
const SHARE: f64 = 0.2;
/// Processes of the first look, where there is time for so many.
const FIRST: usize = 6;
/// Processes of the last look at most: beyond, a budget is better spent on another question.
const LAST: usize = 384;
/// The part of a process's time that one with half its quartets takes, about: starting and preparing stay.
const HALF_A_PROCESS: f64 = 0.6;
/// How many scouted processes' spread is taken to be too small by: three of them say little.
const CAUTION: f64 = 1.25;

/// Plans a sitting from what was scouted: the quartets of the champion against itself, `[process][shape][quartet]`, and
/// how many seconds they took.
pub(crate) fn plan(quartets: &[Vec<Vec<f64>>], seconds: f64, budget: f64, timing: &Timing) -> Scout {
    let mut spread = CAUTION * spread(quartets);
    let mut seconds_a_process = seconds / quartets.len().max(1) as f64;
    let mut quartets_per_process = timing.quartets_per_process;
    let left = (budget - seconds).max(0.0);
    let seconds_a_measurement = SHARE * left;
    // Few processes say little of their spread, whatever each has measured: where there is no time for six they are
    // shorter, and more.
    while quartets_per_process.is_multiple_of(2) && seconds_a_measurement < FIRST as f64 * seconds_a_process {
        quartets_per_process /= 2;
        seconds_a_process *= HALF_A_PROCESS;
        spread *= std::f64::consts::SQRT_2;
    }
    let looks = looks_within(seconds_a_measurement, seconds_a_process, quartets_per_process);
    let last = looks.last().map_or(FIRST, |quartets| quartets / quartets_per_process);
    let alpha = timing.alpha / looks.len().max(1) as f64;
    let half_width = student_quantile(1.0 - alpha / 2.0, last - 1) * spread / (last as f64).sqrt();
    // What is to be seen has to clear an interval of its own and the control's, taken together (1.41 of one), what the
    // control happens to show (0.3), and its own bad luck (0.3).
    let sees = (timing.least_margin + half_width).max(2.0 * half_width).exp_m1();
    Scout {
        budget_seconds: budget,
        seconds_a_process,
        seconds_a_measurement,
        quartets_per_process,
        spread,
        looks,
        sees,
    }
}

/// Quartets at which there is a look, if a measurement may take so many seconds and a process takes so many.
pub(crate) fn looks_within(seconds: f64, seconds_a_process: f64, quartets_per_process: usize) -> Vec<usize> {
    let affordable = (seconds / seconds_a_process.max(1e-9)) as usize;
    looks(affordable.min(LAST)).iter().map(|processes| processes * quartets_per_process).collect()
}

/// Processes at which there is a look: doubling, from the first to what can be afforded. Three at least, whatever that
/// takes.
fn looks(affordable: usize) -> Vec<usize> {
    let first = affordable.clamp(3, FIRST);
    let mut looks = vec![first];
    while looks[looks.len() - 1] * 2 <= affordable {
        looks.push(looks[looks.len() - 1] * 2);
    }
    looks
}

/// The standard deviation of a process's figure: what processes differ by, or what their own quartets would explain, if
/// that is more.
fn spread(quartets: &[Vec<Vec<f64>>]) -> f64 {
    let figure = |process: &Vec<Vec<f64>>| {
        let medians: Vec<f64> = process.iter().map(|shape| median(shape)).collect();
        medians.iter().sum::<f64>() / medians.len().max(1) as f64
    };
    let figures: Vec<f64> = quartets.iter().map(figure).collect();
    let (_, between) = mean_and_deviation(&figures);
    let deviations: Vec<f64> = quartets
        .iter()
        .flat_map(|process| process.iter().flat_map(|shape| shape.iter().map(|d| (d - median(shape)).abs())))
        .collect();
    let shapes = quartets.first().map_or(1, Vec::len).max(1);
    let a_process = quartets.first().and_then(|process| process.first()).map_or(1, Vec::len).max(1);
    // The median distance of a normal variable is 0.6745 of its deviation; a median of n has 1.25/√n of it.
    let within = median(&deviations) / 0.6745 * 1.25 / ((shapes * a_process) as f64).sqrt();
    between.max(within)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scouted(spread: f64) -> Vec<Vec<Vec<f64>>> {
        [-1.0, 0.0, 1.0].map(|process| vec![vec![process * spread; 4]; 2]).to_vec()
    }

    #[test]
    fn more_time_or_less_noise_shows_smaller_differences() {
        let timing = Timing::default();
        let sees = |spread, budget| plan(&scouted(spread), 3.0, budget, &timing).sees;
        assert!(sees(0.01, 600.0) < sees(0.01, 60.0));
        assert!(sees(0.01, 600.0) < sees(0.05, 600.0));
        assert!(sees(0.0, 600.0) >= timing.least_margin, "nothing below the margin is worth seeing");
    }

    #[test]
    fn where_there_is_no_time_for_six_processes_they_are_shorter() {
        let timing = Timing::default();
        let of = |budget| plan(&scouted(0.01), 9.0, budget, &timing);
        assert_eq!((of(109.0).quartets_per_process, of(109.0).looks), (4, vec![24]));
        assert_eq!((of(70.0).quartets_per_process, of(70.0).looks), (2, vec![12]), "6 of 1.8 s in a fifth of 61 s");
        assert_eq!(of(20.0).quartets_per_process, 1);
        assert!(of(70.0).sees > of(109.0).sees);
    }

    #[test]
    fn looks_double_up_to_what_can_be_afforded_and_are_never_fewer_than_three_processes() {
        assert_eq!(looks(0), [3]);
        assert_eq!(looks(5), [5]);
        assert_eq!(looks(50), [6, 12, 24, 48]);
        let scout = plan(&scouted(0.01), 3.0, 130.0, &Timing::default());
        assert_eq!(scout.looks, [24, 48, 96], "25 processes of a second each in a fifth of what is left");
    }
}
