//! Which ledger the commands of the tank are about.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use hammerhead::tuning;
use tank::ledger::{Ledger, Noted};

use crate::{Result, console};

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
        let Some(notes) = notes() else { return Ok(Ledger::open(&self.ledger)?) };
        let ledger = Ledger::open_noted(&self.ledger, &notes)?;
        let path = self.ledger.display();
        match ledger.noted() {
            Noted::Confirmed => {}
            Noted::Unknown => console::remark(&format!(
                "no note of the end of {path} is known on this account: whether something was cut off or added there cannot be seen"
            )),
            Noted::Anew(records) => console::remark(&format!(
                "{path} had {records} records and is gone, with all that was measured; a new one begins, and the note of its end is kept in {}",
                notes.display()
            )),
        }
        Ok(ledger)
    }
}
