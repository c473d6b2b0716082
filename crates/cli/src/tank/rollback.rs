//! The tuning cache as the tank sees it: who is champion for which problems, and how to take one back.

use clap::Args as ClapArgs;
use hammerhead::tuning::{self, Tuning};
use serde::Serialize;
use tank::event::RolledBack;
use tank::ledger::Ledger;

use super::place::Where;
use crate::table::Table;
use crate::{Error, Result, console};

/// Show the configurations that the planner takes from the tank, and those before them
#[derive(Debug, ClapArgs)]
pub struct Champions {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Take the champion of a kind of problems back, and restore the one before it
#[derive(Debug, ClapArgs)]
pub struct Rollback {
    /// The kind of problems, as `hammerhead tank champions` writes it; `all` for each
    bucket: String,
    /// Who takes it back
    #[arg(long, value_name = "NAME")]
    by: String,
    /// Why
    #[arg(long, value_name = "REASON")]
    because: String,
    #[command(flatten)]
    place: Where,
}

#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    tuned: &'a tuning::Tuned,
    current: bool,
}

/// Lists them.
pub fn champions(args: &Champions) -> Result<()> {
    let folder = tuning::folder().ok_or(Error::NoTuning)?;
    let tuning = Tuning::load(&folder);
    tuning.complaint().into_iter().for_each(console::remark);
    let current = |t: &tuning::Tuned| {
        let last = tuning.history().iter().rev().find(|other| other.bucket == t.bucket && !other.retired);
        last.is_some_and(|last| last == t)
    };
    let listed: Vec<Listed<'_>> =
        tuning.history().iter().map(|tuned| Listed { tuned, current: current(tuned) }).collect();
    if args.json {
        return console::print_json(&listed);
    }
    if listed.is_empty() {
        return console::print(&format!(
            "no champions in {} yet; play with `hammerhead tank play`\n",
            folder.display()
        ));
    }
    let mut table =
        Table::new(&["kind of problems", "", "backend", "configuration", ">speedup", "measured on", "when", "record"]);
    for Listed { tuned, current } in listed {
        let state = if current {
            "champion"
        } else if tuned.retired {
            "taken back"
        } else {
            "before"
        };
        table.row([
            tuned.bucket.clone(),
            state.to_owned(),
            tuned.backend.clone(),
            tuned.config.clone(),
            format!("{:.3}×", tuned.speedup),
            tuned.problem.clone(),
            tuned.at.clone(),
            tuned.record.chars().take(12).collect(),
        ]);
    }
    console::print(&table.text())
}

/// Takes champions back: recorded first, then done.
pub fn rollback(args: &Rollback) -> Result<()> {
    let folder = tuning::folder().ok_or(Error::NoTuning)?;
    let tuning = Tuning::load(&folder);
    let mut buckets: Vec<String> = tuning.history().iter().filter(|t| !t.retired).map(|t| t.bucket.clone()).collect();
    buckets.sort();
    buckets.dedup();
    if args.bucket != "all" {
        buckets.retain(|bucket| *bucket == args.bucket);
    }
    if buckets.is_empty() {
        return Err(Error::NoChampion { bucket: args.bucket.clone() });
    }
    let mut ledger = Ledger::open(&args.place.ledger)?;
    for bucket in buckets {
        let event = RolledBack { bucket: bucket.clone(), by: args.by.clone(), reason: args.because.clone() };
        ledger.append(0, event.into())?;
        if let Some((gone, back)) = tuning::retire(&folder, &bucket)? {
            let back = back.map_or_else(|| "the planner's own choice".to_owned(), |back| back.config);
            console::print(&format!("{bucket}: {} is taken back, {back} counts again\n", gone.config))?;
        }
    }
    Ok(())
}
