//! What a season asks of a referee.
//!
//! The rules of the game stand on one side of this boundary and clocks and processes on the other, so that the rules
//! are tested with a referee that reads its answers from a script.

use std::sync::Arc;
use std::time::Duration;

use referee::task::Task;
use referee::{Correctness, Floor, Sitting, Terms};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::entry::Entry;
use crate::official::Official;

/// An entry and the name it goes by.
#[derive(Clone, Copy, Debug)]
pub struct Swimmer<'a> {
    /// The name.
    pub name: &'a str,
    /// What is run.
    pub entry: &'a Entry,
}

/// Who decides what is correct and what is faster. An error is the environment's fault, never a contestant's.
pub trait Referee {
    /// Times the champion alone, unless it is wrong.
    fn baseline(&mut self, champion: Swimmer<'_>, seed: u64) -> Result<Baseline>;

    /// Checks a challenger for correctness. Nothing is timed.
    fn examine(&mut self, champion: Swimmer<'_>, challenger: Swimmer<'_>, seed: u64) -> Result<Correctness>;

    /// Times a challenger against the champion.
    fn sit(&mut self, champion: Swimmer<'_>, challenger: Swimmer<'_>, terms: &Terms, seed: u64) -> Result<Sitting>;

    /// How much of the time that the last question took nobody was at it: on other machines it may wait for its turn,
    /// or be asked again.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }
}

/// The champion alone, before the first round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// Each problem.
    pub shapes: Vec<BaselineShape>,
    /// Floating-point operations per second that the machine's fastest unit does.
    pub flops_per_second: Option<f64>,
    /// Bytes a second that its memory gives.
    pub bytes_per_second: Option<f64>,
    /// What is wrong with it, where it is: then nothing was timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong: Option<String>,
}

impl Baseline {
    /// One that is wrong: there is nothing else to be known of it.
    pub fn wrong(why: String) -> Self {
        Self { wrong: Some(why), ..Self::default() }
    }
}

/// One problem of a baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaselineShape {
    /// The problem's name.
    pub problem: String,
    /// The champion's median, in seconds.
    pub seconds: f64,
    /// The least time that the machine's measured rates allow, where they are known.
    pub floor_seconds: Option<f64>,
    /// Operations that must be done.
    pub flops: f64,
    /// Bytes that must move.
    pub bytes: f64,
}

impl<'a> From<Swimmer<'a>> for (&'a str, &'a Entry) {
    fn from(Swimmer { name, entry }: Swimmer<'a>) -> Self {
        (name, entry)
    }
}

impl Referee for Official {
    fn baseline(&mut self, champion: Swimmer<'_>, seed: u64) -> Result<Baseline> {
        let alone = match self.time_alone(champion.into(), seed)? {
            Ok(alone) => alone,
            Err(fault) => return Ok(Baseline::wrong(fault.to_string())),
        };
        let shape = |(task, (seconds, floor)): (&Arc<dyn Task>, &(f64, Option<Floor>))| {
            let work = task.work();
            BaselineShape {
                problem: task.name(),
                seconds: *seconds,
                floor_seconds: floor.map(|floor| floor.cold).filter(|floor| *floor > 0.0),
                flops: work.flops.unwrap_or(0.0),
                bytes: work.bytes,
            }
        };
        Ok(Baseline {
            shapes: self.problems().iter().zip(&alone.shapes).map(shape).collect(),
            flops_per_second: alone.ceilings.map(|(flops, _)| flops),
            bytes_per_second: alone.ceilings.map(|(_, bytes)| bytes),
            wrong: None,
        })
    }

    fn examine(&mut self, champion: Swimmer<'_>, challenger: Swimmer<'_>, seed: u64) -> Result<Correctness> {
        Official::examine(self, champion.into(), challenger.into(), seed)
    }

    fn sit(&mut self, champion: Swimmer<'_>, challenger: Swimmer<'_>, terms: &Terms, seed: u64) -> Result<Sitting> {
        Official::sit(self, champion.into(), challenger.into(), terms, seed)
    }
}
