//! A season as rewards: for each pitch one number that training can climb without learning to fool the clock.
//!
//! The reward is the natural logarithm of the lower end of the published interval of a SUCCESS, and zero for everything
//! else. So it grows with what is known to be gained and with nothing else: a wide interval earns less than a narrow
//! one around the same estimate, a gain within the margin earns nothing, and neither does what is wrong, was caught,
//! did not build, was only predicted, or could not be measured that day.

use referee::Speedup;
use serde::Serialize;

use super::Report;
use crate::verdict::Verdict;

/// What a pitch has earned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reward {
    /// The round.
    pub round: String,
    /// The pitch.
    pub pitch: String,
    /// Who brought it.
    pub contestant: String,
    /// How it ended; nothing where it was not built.
    pub verdict: Option<Verdict>,
    /// The reward: zero or more.
    pub reward: f64,
    /// The published speedup with its interval, whatever it earned.
    pub speedup: Option<Speedup>,
    /// Why it ended so.
    pub why: Vec<String>,
}

impl Report {
    /// What every pitch has earned, in the order in which they were brought.
    pub fn rewards(&self) -> Vec<Reward> {
        let pitches = self.rounds.iter().flat_map(|round| round.pitches.iter().map(move |told| (round, told)));
        let of = |(round, told): (&super::RoundReport, &super::PitchReport)| {
            let name = &told.pitch.name;
            let attempt = self.attempts.iter().find(|a| a.round == round.name && a.pitch == *name);
            let (verdict, speedup) = (attempt.map(|a| a.verdict), attempt.and_then(|a| a.measured));
            let earned = speedup.filter(|_| verdict == Some(Verdict::Success) && self.foretold.is_none());
            let unbuilt = || told.disqualified.clone().unwrap_or_else(|| format!("not built: {}", round.note));
            Reward {
                round: round.name.clone(),
                pitch: name.clone(),
                contestant: told.pitch.contestant.clone(),
                verdict,
                reward: earned.map_or(0.0, |speedup| speedup.low.ln().max(0.0)),
                speedup,
                why: attempt.map_or_else(|| vec![unbuilt()], |attempt| attempt.reasons.clone()),
            }
        };
        pitches.map(of).collect()
    }
}
