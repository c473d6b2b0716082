//! Post-mortems: what a failure was promised to be, what it was, and what had been assumed. The next round's sharks are
//! shown them.

use serde::{Deserialize, Serialize};

use crate::pitch::Pitch;
use crate::verdict::Judgement;

/// What is to be learnt from a failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PostMortem {
    /// The round.
    pub round: String,
    /// The pitch.
    pub pitch: String,
    /// What was promised.
    pub promise: String,
    /// What was found.
    pub reality: String,
    /// What had been assumed, and was wrong.
    pub assumption: String,
}

impl PostMortem {
    /// Of a pitch that failed.
    pub fn of(round: &str, pitch: &Pitch, judgement: &Judgement) -> Self {
        let claim = pitch.claim.clone().unwrap_or_default();
        let promise = claim
            .figures()
            .map_or("no number".to_owned(), |(speedup, low, high)| format!("{speedup}× [{low}, {high}]"));
        let measured = judgement.measured.map(|measured| format!("{measured}; ")).unwrap_or_default();
        Self {
            round: round.to_owned(),
            pitch: pitch.name.clone(),
            promise,
            reality: format!("{measured}{}", judgement.reasons.join("; ")),
            assumption: if claim.assumes.trim().is_empty() { claim.reasoning } else { claim.assumes },
        }
    }
}
