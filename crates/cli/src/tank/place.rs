//! Which ledger the commands of the tank are about.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use hammerhead::tuning;
use tank::ledger::Ledger;

use crate::Result;

/// Where a ledger lies when nobody says otherwise.
const LEDGER: &str = "hammerhead-tank/ledger.jsonl";

/// Which ledger is meant.
#[derive(Debug, ClapArgs)]
pub struct Where {
    /// The ledger
    #[arg(long, value_name = "FILE", default_value = LEDGER)]
    pub ledger: PathBuf,
}

/// Where the heads of ledgers are noted: beside the tuning cache, and nowhere where that is off.
pub fn notes() -> Option<PathBuf> {
    tuning::folder().map(|folder| folder.join("ledgers"))
}

impl Where {
    /// Opens the ledger for writing.
    pub fn open(&self) -> Result<Ledger> {
        Ok(match notes() {
            Some(notes) => Ledger::open_noted(&self.ledger, &notes)?,
            None => Ledger::open(&self.ledger)?,
        })
    }
}
