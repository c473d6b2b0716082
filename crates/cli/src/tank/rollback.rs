//! The tuning cache as the tank sees it: who is champion for which problems, and how to take one back.

use clap::Args as ClapArgs;
use hammerhead::tuning::{self, Measured, Standing, Tuned, Tuning};
use serde::Serialize;
use tank::event::RolledBack;

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
    /// Only the champion of this backend; without it, each backend's is taken back
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
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
    tuned: &'a Tuned,
    standing: &'static str,
}

/// An entry's standing in words.
fn words(standing: Standing) -> &'static str {
    match standing {
        Standing::Champion => "champion",
        Standing::Before => "before",
        Standing::TakenBack => "taken back",
        Standing::Outdated => "other kernels",
    }
}

/// Lists them.
pub fn champions(args: &Champions) -> Result<()> {
    let folder = tuning::folder().ok_or(Error::NoTuning)?;
    let tuning = Tuning::load(&folder);
    tuning.complaint().into_iter().for_each(console::remark);
    let standing = |tuned| words(tuning.standing(tuned));
    let listed: Vec<Listed<'_>> =
        tuning.history().iter().map(|tuned| Listed { tuned, standing: standing(tuned) }).collect();
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
    for Listed { tuned, standing } in listed {
        let Measured { backend, device, .. } = &tuned.measured;
        table.row([
            tuned.bucket.clone(),
            standing.to_owned(),
            if device.is_empty() { backend.clone() } else { format!("{backend} ({device})") },
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
    let named = |t: &&Tuned| {
        let backend = args.backend.as_ref().is_none_or(|backend| *backend == t.measured.backend);
        backend && !t.retired && (args.bucket == "all" || args.bucket == t.bucket)
    };
    let mut each: Vec<(&String, &Measured)> = Vec::new();
    for tuned in tuning.history().iter().filter(named) {
        if !each.contains(&(&tuned.bucket, &tuned.measured)) {
            each.push((&tuned.bucket, &tuned.measured));
        }
    }
    if each.is_empty() {
        return Err(Error::NoChampion { bucket: args.bucket.clone() });
    }
    let mut ledger = args.place.open()?;
    for (bucket, measured) in each {
        let event = RolledBack { bucket: bucket.clone(), by: args.by.clone(), reason: args.because.clone() };
        ledger.append(0, event.into())?;
        if let Some((gone, back)) = tuning::retire(&folder, bucket, measured)? {
            let back = back.map_or_else(|| "the planner's own choice".to_owned(), |back| back.config);
            let (backend, config) = (&measured.backend, gone.config);
            console::print(&format!("{bucket}: {backend} {config} is taken back, {back} counts again\n"))?;
        }
    }
    Ok(())
}
