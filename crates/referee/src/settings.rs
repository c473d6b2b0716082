//! Every number that the referee goes by, with its default and the reason for it.
//!
//! Nothing here is hidden in code: a season may override any of it in its file, and a sitting's record holds the
//! settings that it was held under. The defaults were chosen by simulation (`docs/referee.md` has the figures), not by
//! taste.

use serde::{Deserialize, Serialize};

use crate::contestant::Limits;
use crate::stats::{Interval, Method};
use crate::{Error, Result};

/// What the referee goes by.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RefereeSettings {
    /// How speed is measured and judged.
    pub timing: Timing,
    /// How results are checked.
    pub checking: Checking,
    /// What a contestant's process may take.
    pub limits: Limits,
}

impl RefereeSettings {
    /// Refuses what nothing can be measured or waited for by.
    pub fn check(&self) -> Result<()> {
        self.timing.check()?;
        self.limits.check()
    }
}

/// Whether the weights of a sample were in the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Temperature {
    /// Another layer each time, through more than twice L3: what a model of many layers sees.
    Cold,
    /// The same layer again at once.
    Warm,
}

/// How speed is measured and judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timing {
    /// The chance of a false finding that a whole measurement may have; every look gets an equal share of it.
    pub alpha: f64,
    /// Quartets of every shape at which the evidence is looked at. Ascending multiples of `quartets_per_process`.
    pub looks: Vec<usize>,
    /// Quartets of every shape that one pair of fresh processes swims. Few, because what differs from process to
    /// process (where memory fell, which pages are huge) is only averaged over processes.
    pub quartets_per_process: usize,
    /// How the bootstrap becomes an interval. Plain percentiles cost a good referee's name where processes differ.
    pub interval: Interval,
    /// Resamples of the bootstrap: 1000 know its spread to 2 %.
    pub resamples: usize,
    /// Stop when the geomean is known to within this much, as a fraction.
    pub precision: f64,
    /// The least gain that is worth a change, as a fraction. The margin is never less.
    pub least_margin: f64,
    /// The most that any shape may lose, as a fraction.
    pub most_loss: f64,
    /// The slowdown that is planted, as a fraction.
    pub plant: f64,
    /// What the champion may seem to gain or lose against itself before the sitting is void, as a fraction, provided
    /// that zero is outside the interval too. Smaller differences are covered by the margin.
    pub control_tolerance: f64,
    /// The margin beyond which a sitting is void, as a fraction: one that hardly anybody could clear settles nothing.
    pub widest_margin: f64,
    /// How much longer the champion may take beside the challenger than beside itself, as a fraction, before something
    /// must have slowed it.
    pub champion_tolerance: f64,
    /// How much of the processors others may use before a budget is spent on waiting, as a fraction.
    pub busy: f64,
    /// How far from its true size the planted slowdown may be measured, as a fraction, if its interval misses the
    /// truth.
    pub plant_tolerance: f64,
    /// Ticks of the clock that a sample takes at least.
    pub sample_ticks: f64,
    /// Seconds that a sample takes at least.
    pub sample_seconds: f64,
    /// The part of a sample that its threads may have waited for a processor which others had, before it is taken
    /// again.
    pub waiting: f64,
    /// How often one sample is taken again at most.
    pub retakes: usize,
    /// Jobs in one sample at most.
    pub sample_jobs: usize,
    /// This many times L3 goes through it before the same weights come again. Above 2, so that the cache
    /// holds less than half of that whatever it keeps.
    pub rotation: f64,
    /// The size of L3 in bytes where the machine does not tell.
    pub cache_bytes: u64,
    /// Layers that rotate at most: a tiny problem cannot fill a cache, and its record says so.
    pub most_layers: usize,
    /// How far below the machine's floor a time may lie before something must have cheated, as a fraction. Shared
    /// machines change their speed by so much between the probe and the sample.
    pub floor_tolerance: f64,
    /// The temperature of the weights that decides; the other is reported.
    pub decides: Temperature,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            alpha: 0.05,
            looks: vec![24, 48, 96],
            quartets_per_process: 4,
            interval: Interval::Student,
            resamples: 1000,
            precision: 0.005,
            least_margin: 0.01,
            most_loss: 0.05,
            plant: 0.05,
            control_tolerance: 0.005,
            widest_margin: 0.1,
            champion_tolerance: 0.25,
            busy: 0.2,
            plant_tolerance: 0.01,
            sample_ticks: 1000.0,
            sample_seconds: 200e-6,
            waiting: 0.02,
            retakes: 3,
            sample_jobs: 256,
            rotation: 2.2,
            cache_bytes: 64 << 20,
            most_layers: 256,
            floor_tolerance: 0.10,
            decides: Temperature::Cold,
        }
    }
}

impl Timing {
    /// Refuses what cannot be measured by.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &'static str, reason: &str| Err(Error::Settings { what, reason: reason.to_owned() });
        let fraction = |x: f64| x > 0.0 && x < 1.0;
        if !fraction(self.alpha) {
            return refuse("timing.alpha", "it must lie between 0 and 1, for example 0.05");
        }
        if self.looks.is_empty() || self.looks.windows(2).any(|pair| pair[0] >= pair[1]) {
            return refuse("timing.looks", "they must ascend, for example [24, 48, 96]");
        }
        let a_process = self.quartets_per_process;
        if a_process == 0 || self.looks.iter().any(|look| look % a_process != 0) {
            return refuse("timing.looks", "each must be a multiple of quartets_per_process");
        }
        if self.looks[0] / a_process < 3 {
            return refuse(
                "timing.looks",
                "the first look needs at least three processes: fewer say nothing of spread",
            );
        }
        if !(100..=1_000_000).contains(&self.resamples) {
            return refuse("timing.resamples", "fewer than 100 say nothing, a million take all day; 1000 are enough");
        }
        let positive = [self.precision, self.least_margin, self.sample_ticks, self.sample_seconds];
        if positive.iter().any(|x| !(x.is_finite() && *x > 0.0)) || self.sample_jobs == 0 || self.most_layers == 0 {
            return refuse("timing", "precision, least_margin, and the sizes of samples must be above zero");
        }
        if !(fraction(self.most_loss) && fraction(self.plant) && (1.0..=1000.0).contains(&self.rotation)) {
            return refuse(
                "timing",
                "most_loss and plant are fractions between 0 and 1, rotation lies between 1 and 1000",
            );
        }
        Ok(())
    }

    /// The share of `alpha` that one look has.
    pub fn alpha_a_look(&self) -> f64 {
        self.alpha / self.looks.len() as f64
    }

    /// How one look turns quartets into intervals.
    pub fn method(&self) -> Method {
        Method { alpha: self.alpha_a_look(), interval: self.interval, resamples: self.resamples }
    }
}

/// How results are checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checking {
    /// Shapes drawn from the seed that are in no list.
    pub held_out: usize,
    /// Of edges of another kind than all of the season's problems (another gate or type of result), one in so many is
    /// asked, drawn from the seed; 1 asks all. Each is a kernel of its own on a GPU, which takes its driver a second to
    /// compile.
    pub other_edges: usize,
    /// Elements of every timed output that are computed in float64, chosen after the run.
    pub elements: usize,
    /// One timed sample in so many is checked whole, chosen after the run.
    pub whole_every: usize,
    /// How many times the champion's error against float64 a challenger may have, as root mean square of error over
    /// bound.
    pub precision_multiple: f64,
}

impl Default for Checking {
    fn default() -> Self {
        Self { held_out: 12, other_edges: 1, elements: 16, whole_every: 8, precision_multiple: 4.0 }
    }
}

/// Names and meanings of the settings of one section (`timing`, `checking`, `limits`), from the comments on their
/// fields: they are written once.
pub fn meanings(section: &str) -> Vec<(String, String)> {
    let source = concat!(include_str!("settings.rs"), include_str!("contestant/limits.rs"));
    let mut meanings = Vec::new();
    let (mut inside, mut meaning) = (false, String::new());
    for line in source.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.split_whitespace().next()) {
            inside = name.eq_ignore_ascii_case(section);
            meaning.clear();
        } else if let Some(words) = line.strip_prefix("///") {
            meaning += words;
        } else if let Some((name, _)) = line.strip_prefix("pub ").and_then(|field| field.split_once(':')) {
            // Functions and constants have a second word before the colon.
            if inside && !name.contains(' ') {
                meanings.push((name.to_owned(), std::mem::take(&mut meaning)));
            }
            meaning.clear();
        }
    }
    meanings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_what_they_ask_of_others() {
        assert!(Timing::default().check().is_ok());
    }

    #[test]
    fn a_season_may_override_one_number_and_leave_the_rest() {
        let settings: RefereeSettings = serde_json::from_str(r#"{"timing":{"alpha":0.01}}"#).unwrap();
        assert_eq!(settings.timing.alpha, 0.01);
        assert_eq!(settings.timing.looks, Timing::default().looks);
        assert!(serde_json::from_str::<RefereeSettings>(r#"{"timing":{"alhpa":0.01}}"#).is_err(), "a typo is refused");
    }

    #[test]
    fn settings_that_cannot_be_measured_by_are_refused_by_name() {
        let of = |change: fn(&mut Timing)| {
            let mut timing = Timing::default();
            change(&mut timing);
            timing.check().unwrap_err().to_string()
        };
        assert!(of(|t| t.alpha = 0.0).contains("alpha"));
        assert!(of(|t| t.looks = vec![48, 24]).contains("ascend"));
        assert!(of(|t| t.looks = vec![26]).contains("multiple"));
        assert!(of(|t| t.looks = vec![8]).contains("three processes"));
        assert!(of(|t| t.plant = f64::NAN).contains("plant"));
        assert!(of(|t| t.resamples = usize::MAX).contains("resamples"));
        assert!(of(|t| t.rotation = f64::NAN).contains("rotation"));
    }

    #[test]
    fn a_time_that_nobody_can_wait_is_refused_by_name() {
        assert!(RefereeSettings::default().check().is_ok());
        for seconds in [0.0, -1.0, 1e300, f64::NAN] {
            let limits = Limits { hello_seconds: seconds, ..Limits::default() };
            let error = RefereeSettings { limits, ..RefereeSettings::default() }.check().unwrap_err().to_string();
            assert!(error.contains("limits.hello_seconds"), "{error}");
        }
    }
}
