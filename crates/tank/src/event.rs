//! What can happen: the lines of the ledger.
//!
//! A season is a fixed sequence of steps, each of which leaves one of these behind. What a step computed or measured is
//! in its event, so that a season that was interrupted takes it from there and measures nothing twice.

use std::collections::BTreeMap;

use hammerhead::machine::Machine;
use referee::{Correctness, Sitting, Speedup};
use serde::{Deserialize, Serialize};

use crate::court::Baseline;
use crate::entry::Entry;
use crate::evidence::Evidence;
use crate::mortem::PostMortem;
use crate::pitch::{Deal, Pitch};
use crate::round::RoundKind;
use crate::season::Season;
use crate::shark::agent::Talk;
use crate::shark::{Ballot, Statement};
use crate::tally::Tally;
use crate::verdict::{Judgement, Verdict};

/// Declares the events once: each is a struct of its own, and a line of the ledger.
macro_rules! events {
    ($($(#[doc = $doc:literal])+ $name:ident { $($(#[$field_meta:meta])+ $field:ident: $type:ty,)* })+) => {
        /// What happened.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        pub enum Event {
            $($(#[doc = $doc])+ $name(Box<$name>),)+
        }

        impl Event {
            /// The event's name, as the ledger writes it.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Event::$name(_) => stringify!($name),)+
                }
            }
        }

        $(
            $(#[doc = $doc])+
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
            pub struct $name {
                $($(#[$field_meta])+ pub $field: $type,)*
            }

            impl From<$name> for Event {
                fn from(event: $name) -> Self {
                    Event::$name(Box::new(event))
                }
            }

            impl TryFrom<Event> for $name {
                type Error = &'static str;

                fn try_from(event: Event) -> Result<Self, &'static str> {
                    match event {
                        Event::$name(event) => Ok(*event),
                        other => Err(other.name()),
                    }
                }
            }
        )+
    };
}

events! {
    /// A season began.
    SeasonOpened {
        /// All of it: problems, sharks, rounds with their pitches, settings.
        season: Season,
        /// Tells this season from every other.
        digest: String,
        /// The machine.
        machine: Machine,
        /// The version of this program.
        version: String,
        /// Who is to be beaten.
        champion: Entry,
        /// What the planner would run if nobody played and no backend were forced.
        planned: Entry,
        /// The version of every backend's kernels; empty in seasons that were begun before it was written down.
        #[serde(default)]
        kernels: BTreeMap<String, String>,
    }
    /// The champion was timed alone.
    BaselineTaken {
        /// Its times, and what the machine could do.
        baseline: Baseline,
        /// What that took, for the budget.
        #[serde(default)]
        seconds: f64,
    }
    /// A round began.
    RoundOpened {
        /// Its name.
        round: String,
        /// Its kind.
        round_kind: RoundKind,
        /// What it is about, or why it was called.
        why: String,
    }
    /// A pitch was brought: the claim, before anything runs.
    Pitched {
        /// The round.
        round: String,
        /// The pitch.
        pitch: Pitch,
    }
    /// A pitch was checked.
    PitchChecked {
        /// The round.
        round: String,
        /// The pitch.
        pitch: String,
        /// What the tank computed.
        evidence: Evidence,
        /// Why it is disqualified, if it is.
        disqualified: Option<String>,
    }
    /// A shark voted.
    Voted {
        /// The round.
        round: String,
        /// The shark.
        shark: String,
        /// Its ballots; none where the vote is void.
        ballots: Vec<Ballot>,
        /// Why the vote does not count, if it does not.
        void: Option<String>,
        /// What it says beside its ballots.
        #[serde(default)]
        statement: Statement,
        /// What was said on the way, where the shark is a command.
        #[serde(default)]
        talk: Option<Talk>,
    }
    /// A contestant that is a command was asked for pitches.
    Asked {
        /// The round.
        round: String,
        /// Who was asked.
        contestant: String,
        /// What it brings; none where its answer does not count.
        pitches: Vec<Pitch>,
        /// Why it does not count, if it does not.
        void: Option<String>,
        /// What was said on the way.
        talk: Option<Talk>,
    }
    /// A contestant took its pitch back before the vote.
    Withdrawn {
        /// The round.
        round: String,
        /// The pitch.
        pitch: String,
        /// By whom.
        by: String,
        /// Why.
        reason: String,
    }
    /// A champion was found wrong.
    Dethroned {
        /// The round.
        round: String,
        /// Who was champion.
        champion: String,
        /// What it got wrong.
        why: String,
    }
    /// One configuration of a sweep was judged.
    Phased {
        /// The round.
        round: String,
        /// The pitch.
        pitch: String,
        /// The configuration.
        phase: String,
        /// What it comes to by itself.
        judgement: Judgement,
    }
    /// What is to be learnt from a failure.
    Buried {
        /// The post-mortem.
        mortem: PostMortem,
    }
    /// A round's votes were counted.
    Tallied {
        /// The round.
        round: String,
        /// The count.
        tally: Tally,
    }
    /// A person chose: to break a tie, or against the vote, which stays as it is.
    Chosen {
        /// The round.
        round: String,
        /// What the vote says, if it says anything.
        voted: Option<String>,
        /// What was chosen.
        chosen: String,
        /// By whom.
        by: String,
        /// Why.
        reason: String,
        /// Whether that is against the vote.
        overrides: bool,
    }
    /// An attempt began; claim and terms are settled from here on.
    Begun {
        /// The round.
        round: String,
        /// The pitch.
        pitch: String,
        /// Who is to be beaten.
        champion: Entry,
        /// The terms it is held to.
        deal: Deal,
        /// The shark that funds it, where its own terms are among them.
        #[serde(default)]
        funder: Option<String>,
    }
    /// A challenger was examined for correctness.
    Examined {
        /// The round.
        round: String,
        /// The pitch.
        pitch: String,
        /// What was found.
        correctness: Option<Correctness>,
        /// Why nothing was, if the environment stood in the way.
        blocked: Option<String>,
        /// What it took, for the budget.
        #[serde(default)]
        seconds: f64,
    }
    /// A sitting began. One that has no result was interrupted: it is known that there was one.
    Seated {
        /// The round.
        round: String,
        /// The pitch.
        pitch: String,
        /// The digest of its seed, which is told with the result: it was settled before, and nobody could prepare for
        /// it.
        seed_digest: String,
        /// How many sittings began before this one and have no result.
        interrupted: usize,
    }
    /// A sitting was held.
    Sat {
        /// The round.
        round: String,
        /// The pitch.
        pitch: String,
        /// All of it.
        sitting: Option<Sitting>,
        /// Why there is none, if the environment stood in the way.
        blocked: Option<String>,
        /// What it took, for the budget.
        #[serde(default)]
        seconds: f64,
    }
    /// An attempt was judged.
    Judged {
        /// The round.
        round: String,
        /// The pitch.
        pitch: String,
        /// Who brought it.
        contestant: String,
        /// What it ran.
        digest: String,
        /// The claim: number, low, high.
        claimed: Option<(f64, f64, f64)>,
        /// The verdict and its reasons.
        judgement: Judgement,
    }
    /// There is a new champion of the season.
    Crowned {
        /// The round.
        round: String,
        /// The pitch.
        pitch: String,
        /// What it runs.
        entry: Entry,
        /// Its published speedup over its predecessor; none over one that was wrong.
        speedup: Option<Speedup>,
    }
    /// A champion that beat the planner's own choice goes into the tuning cache.
    Installed {
        /// The pitch.
        pitch: String,
        /// The configurations, for the problems on which they are not slower.
        ways: Vec<InstalledWay>,
    }
    /// Nothing was built; this was learnt instead.
    Researched {
        /// The round.
        round: String,
        /// What was found.
        findings: Vec<String>,
    }
    /// A round ended.
    RoundClosed {
        /// The round.
        round: String,
        /// What became of its winner.
        verdict: Verdict,
        /// In words.
        note: String,
    }
    /// A season ends before its last round, because its budget is spent.
    Spent {
        /// The first round that is not played.
        round: String,
    }
    /// A season ended.
    SeasonClosed {
        /// The pitch that is champion, or none if the baseline still is.
        champion: Option<String>,
        /// What the champion runs.
        entry: Entry,
    }
    /// A torn last line was cut off when the ledger was opened.
    Recovered {
        /// How many bytes.
        bytes: usize,
        /// What they were.
        text: String,
    }
    /// A person took a champion out of the tuning cache.
    RolledBack {
        /// The bucket of problems.
        bucket: String,
        /// By whom.
        by: String,
        /// Why.
        reason: String,
    }
}

/// A configuration that goes into the tuning cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstalledWay {
    /// The problem it was measured on.
    pub problem: String,
    /// The backend.
    pub backend: String,
    /// The configuration.
    pub config: String,
    /// Its measured speedup over the planner's choice.
    pub speedup: Speedup,
}
