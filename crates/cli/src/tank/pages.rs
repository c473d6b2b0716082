//! `hammerhead tank report`: a season's page, and the same as Markdown and JSON.

use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use tank::ledger::Record;
use tank::report::{Report, html, markdown};

use super::ledger;
use super::place::Where;
use crate::files::Form;
use crate::{Error, Result, console, files};

/// Write a season's report: one HTML page that needs no network, and the same as Markdown and JSON
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(flatten)]
    place: Where,
    /// The season's number [default: the last]
    #[arg(long, value_name = "N")]
    season: Option<u32>,
    /// The page [default: report.html beside the ledger]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write it to this file as well, by its ending as JSON or Markdown (.json, .md); may be given several times
    #[arg(long, value_name = "FILE")]
    export: Vec<PathBuf>,
}

/// Writes the page, and what else was asked for.
pub fn report(args: &Args) -> Result<()> {
    let records = ledger::read(&args.place)?;
    let page = args.html.clone().unwrap_or_else(|| beside(&args.place.ledger));
    let report = write(&records, args.season, &page)?;
    for path in &args.export {
        let text = match Form::of(path)? {
            Form::Json => console::json_text(&report)?,
            Form::Markdown => markdown(&report),
            Form::Csv => {
                let problem = "a season is written as .json or .md";
                return Err(Error::Destination { path: path.clone(), problem });
            }
        };
        files::write_report(path, &text)?;
    }
    console::print(&format!("{}\n", page.display()))
}

/// Where a ledger's report lies.
pub fn beside(ledger: &Path) -> PathBuf {
    ledger.with_file_name("report.html")
}

/// Writes the page.
pub fn write(records: &[Record], season: Option<u32>, page: &Path) -> Result<Report> {
    let report = Report::new(records, season)?;
    files::write_report(page, &html(&report))?;
    Ok(report)
}
