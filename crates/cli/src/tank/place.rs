//! Which ledger the commands of the tank are about.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// Where a ledger lies when nobody says otherwise.
const LEDGER: &str = "hammerhead-tank/ledger.jsonl";

/// Which ledger is meant.
#[derive(Debug, ClapArgs)]
pub struct Where {
    /// The ledger
    #[arg(long, value_name = "FILE", default_value = LEDGER)]
    pub ledger: PathBuf,
}
