//! How a season goes on where it stopped.
//!
//! A season is played by code that runs from the top every time. Each of its steps goes through the journal: where the
//! ledger already holds what the step would produce, that is taken and nothing is done again; where it does not, the
//! step is done and written down before the next one begins. So whatever was measured stays measured, and a season that
//! is killed anywhere ends as it would have.

use std::collections::VecDeque;

use crate::event::{Event, SeasonOpened};
use crate::ledger::{Ledger, Record};
use crate::{Error, Result};

/// A season's place in the ledger.
#[derive(Debug)]
pub struct Journal<'a> {
    ledger: &'a mut Ledger,
    season: u32,
    recorded: VecDeque<Record>,
}

impl<'a> Journal<'a> {
    /// Takes up the last season with this digest, or begins one where there is none or where another is wanted. The
    /// second part says whether it is already finished.
    pub fn open(ledger: &'a mut Ledger, name: &str, digest: &str, again: bool) -> Result<(Self, bool)> {
        let mut opened = ledger.records().iter().filter_map(|record| match &record.event {
            Event::SeasonOpened(opened) => Some((record, opened.as_ref())),
            _ => None,
        });
        let last: Option<(u64, u32, bool, String)> = opened
            .rfind(|(_, opened)| opened.season.name == name)
            .map(|(record, SeasonOpened { digest: old, .. })| (record.n, record.season, old == digest, old.clone()));
        let finished = |season: u32| {
            let closed = |r: &&Record| r.season == season && matches!(r.event, Event::SeasonClosed(_));
            ledger.records().iter().any(|record| closed(&record))
        };
        let season = match last {
            Some((_, season, true, _)) if !(again && finished(season)) => season,
            Some((record, season, false, _)) if !finished(season) && !again => {
                return Err(Error::Resume {
                    record,
                    problem: format!("season '{name}' was begun in another form and is not finished"),
                    remedy: "restore its files to go on, or add --again to leave it and begin anew".to_owned(),
                });
            }
            _ => ledger.records().iter().map(|record| record.season).max().unwrap_or(0) + 1,
        };
        let is_finished = finished(season);
        let recorded = ledger.records().iter().filter(|record| record.season == season).cloned().collect();
        Ok((Self { ledger, season, recorded }, is_finished))
    }

    /// One step: what the ledger holds, or what `make` makes, written down. `fits` says whether a recorded event is
    /// this step's.
    pub fn step<T>(&mut self, fits: impl Fn(&T) -> bool, make: impl FnOnce(&Ledger) -> Result<T>) -> Result<T>
    where
        T: Into<Event> + TryFrom<Event, Error = &'static str> + Clone,
    {
        let Some(record) = self.recorded.pop_front() else {
            let made = make(self.ledger)?;
            self.ledger.append(self.season, made.clone().into())?;
            return Ok(made);
        };
        let diverged = |found: &str| Error::Resume {
            record: record.n,
            problem: format!("it is a {found}, where this program would do something else"),
            remedy: "go on with the version that began the season, or name another ledger".to_owned(),
        };
        let event = T::try_from(record.event.clone()).map_err(diverged)?;
        if fits(&event) { Ok(event) } else { Err(diverged(record.event.name())) }
    }

    /// A step that is only taken if the ledger holds it, or if there is something to write down now.
    pub fn step_if<T>(&mut self, fits: impl Fn(&T) -> bool, make: impl FnOnce() -> Option<T>) -> Result<Option<T>>
    where
        T: Into<Event> + TryFrom<Event, Error = &'static str> + Clone,
    {
        let recorded = self.recorded.front().map(|record| T::try_from(record.event.clone()));
        match recorded {
            Some(Ok(event)) if fits(&event) => self.step(fits, |_| Ok(event)).map(Some),
            Some(_) => Ok(None),
            None => make().map(|made| self.step(|_| true, |_| Ok(made))).transpose(),
        }
    }

    /// Whether everything recorded has been taken.
    pub fn is_live(&self) -> bool {
        self.recorded.is_empty()
    }

    /// What was known at this step: every record up to the next one that is still to be taken.
    pub fn past(&self) -> &[Record] {
        let end = self.recorded.front().map_or(self.ledger.records().len(), |next| next.n as usize - 1);
        &self.ledger.records()[..end]
    }

    /// The season's number in the ledger.
    pub fn season(&self) -> u32 {
        self.season
    }
}
