//! What the ledger says, for people and for machines.

use clap::Args as ClapArgs;
use serde::Serialize;
use tank::event::Event;
use tank::history;
use tank::ledger::{self as book, Checked, Noted, Record};

use super::place::Where;
use crate::table::Table;
use crate::{Error, Result, console};

/// Digits by which a hash is told from others; fewer would be found by trying.
const SHORTEST_HASH: usize = 16;

/// List what happened, one line per record
#[derive(Debug, ClapArgs)]
pub struct Log {
    #[command(flatten)]
    place: Where,
    /// Only this season
    #[arg(long, value_name = "N")]
    season: Option<u32>,
}

/// Show one record whole, as JSON
#[derive(Debug, ClapArgs)]
pub struct Show {
    /// The record's number
    record: u64,
    #[command(flatten)]
    place: Where,
}

/// Check every line of the ledger against its hash
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Check the ledger from its first line to its last: each line's hash, and that it follows the line before. \
    A line that was changed, removed, inserted or moved is located. A chain cannot show that its end was cut off or forged: the \
    end is held against the note that this account keeps of it, and where none is known that is said; give --head with a \
    hash noted elsewhere (reports print it) to check that too."
)]
pub struct Verify {
    #[command(flatten)]
    place: Where,
    /// A record's hash, or its beginning, that must be in the ledger
    #[arg(long, value_name = "HASH")]
    head: Option<String>,
}

/// List what failed, why, and when it may be tried again
#[derive(Debug, ClapArgs)]
pub struct Graveyard {
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show how well everyone's figures held
#[derive(Debug, ClapArgs)]
pub struct Calibration {
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Reads a ledger, and says if its last line was torn.
pub fn read(place: &Where) -> Result<Vec<Record>> {
    if !place.ledger.exists() {
        return Err(Error::NoLedger { path: place.ledger.clone() });
    }
    let Checked { records, torn, .. } = book::read(&place.ledger)?;
    if !torn.is_empty() {
        console::remark(&format!(
            "the last line of {} is torn ({} bytes); it is left out here, and cut off and recorded by the next play",
            place.ledger.display(),
            torn.len()
        ));
    }
    Ok(records)
}

/// Prints the log.
pub fn log(args: &Log) -> Result<()> {
    let mut table = Table::new(&[">n", "when", ">season", "what", ""]);
    for record in read(&args.place)?.iter().filter(|r| args.season.is_none_or(|season| season == r.season)) {
        let season = if record.season == 0 { String::new() } else { record.season.to_string() };
        table.row([
            record.n.to_string(),
            record.at.clone(),
            season,
            record.event.name().to_owned(),
            told(&record.event),
        ]);
    }
    console::print(&table.text())
}

/// An event in a few words.
fn told(event: &Event) -> String {
    match event {
        Event::SeasonOpened(e) => format!("'{}' on {}", e.season.name, e.machine.cpu),
        Event::BaselineTaken(e) => format!("{} problems", e.baseline.shapes.len()),
        Event::RoundOpened(e) => e.round.clone(),
        Event::Pitched(e) => {
            let claim = e.pitch.claim.as_ref().and_then(|c| c.speedup).map(|s| format!(" claims {s}×"));
            format!("{}{}", e.pitch.name, claim.unwrap_or_default())
        }
        Event::PitchChecked(e) => match &e.disqualified {
            Some(why) => format!("{} is disqualified: {why}", e.pitch),
            None if e.evidence.survived > 0 => {
                format!("{} is valid, and has survived {} rounds", e.pitch, e.evidence.survived)
            }
            None => format!("{} is valid", e.pitch),
        },
        Event::Voted(e) => e.void.clone().unwrap_or_else(|| format!("{} on {} pitches", e.shark, e.ballots.len())),
        Event::Tallied(e) => format!("{}: {}", e.tally.winner().unwrap_or("nobody"), e.tally.decided_by),
        Event::Chosen(e) => format!("{} by {}: {}", e.chosen, e.by, e.reason),
        Event::Begun(e) => e.pitch.clone(),
        Event::Examined(e) => {
            let passed = e.correctness.as_ref().is_some_and(|c| c.passed());
            format!("{} is {}", e.pitch, if passed { "right" } else { "not right" })
        }
        Event::Seated(e) if e.interrupted > 0 => {
            format!("{}, after {} that were interrupted and have no result", e.pitch, e.interrupted)
        }
        Event::Seated(e) => e.pitch.clone(),
        Event::Sat(e) => {
            let geomean = e.sitting.as_ref().and_then(|s| tank::verdict::published(s)).map(|s| s.geomean.to_string());
            format!("{} {}", e.pitch, geomean.unwrap_or_else(|| "no figure".to_owned()))
        }
        Event::Judged(e) => format!("{} {}", e.pitch, e.judgement.verdict),
        Event::Crowned(e) => {
            format!(
                "{} {}",
                e.pitch,
                e.speedup.map_or("over one that was wrong".to_owned(), |speedup| speedup.to_string())
            )
        }
        Event::Asked(e) => {
            e.void.clone().unwrap_or_else(|| format!("{} brings {} pitches", e.contestant, e.pitches.len()))
        }
        Event::Withdrawn(e) => format!("{} by {}: {}", e.pitch, e.by, e.reason),
        Event::Dethroned(e) => format!("{}: {}", e.champion, e.why),
        Event::Phased(e) => format!("{}: {} {}", e.pitch, e.phase, e.judgement.verdict),
        Event::Buried(e) => format!("{}: {}", e.mortem.pitch, e.mortem.assumption),
        Event::Installed(e) => format!("{} for {} problems", e.pitch, e.ways.len()),
        Event::Researched(e) => format!("{} findings", e.findings.len()),
        Event::RoundClosed(e) => format!("{} {}", e.round, e.verdict),
        Event::Spent(e) => format!("before {}", e.round),
        Event::SeasonClosed(e) => e.champion.clone().unwrap_or_else(|| "the baseline stays".to_owned()),
        Event::Recovered(e) => format!("a torn line of {} bytes was cut off", e.bytes),
        Event::RolledBack(e) => format!("{} by {}: {}", e.bucket, e.by, e.reason),
    }
}

/// Prints one record.
pub fn show(args: &Show) -> Result<()> {
    let records = read(&args.place)?;
    let found = records.iter().find(|r| r.n == args.record);
    found.map_or_else(|| Err(Error::NoRecord { record: args.record, records: records.len() }), console::print_json)
}

/// Checks the ledger.
pub fn verify(args: &Verify) -> Result<()> {
    let records = read(&args.place)?;
    let noted = match super::place::notes() {
        Some(notes) => book::check_note(&args.place.ledger, &records, &notes)?,
        None => Noted::Unknown,
    };
    if let Some(head) = &args.head
        && (head.len() < SHORTEST_HASH || !records.iter().any(|r| r.hash.starts_with(head.as_str())))
    {
        return Err(Error::NoHash { hash: head.clone(), shortest: SHORTEST_HASH, records: records.len() });
    }
    let end = match (noted, &args.head) {
        (Noted::Confirmed | Noted::Anew(_), _) => "its end is the one that this account has noted",
        (Noted::Unknown, Some(_)) => {
            "no note of its end is known on this account, and it holds the hash that was given"
        }
        (Noted::Unknown, None) => {
            "no note of its end is known on this account: that something was cut off or added there, only --head can show"
        }
    };
    let head = records.last().map_or("none", |r| r.hash.as_str());
    console::print(&format!("{} records, every hash holds; the head is {head}; {end}\n", records.len()))
}

/// Prints the graveyard.
pub fn graveyard(args: &Graveyard) -> Result<()> {
    let graves = history::graveyard(&read(&args.place)?);
    if args.json {
        return console::print_json(&graves);
    }
    let mut text = String::new();
    for grave in &graves {
        let attempt = &grave.attempt;
        text += &format!(
            "{} ({}, season {} round '{}', record {})\n  promise: {}\n  reality: {}\n  assumed: {}\n  again:   {}\n",
            attempt.pitch,
            attempt.contestant,
            attempt.season,
            attempt.round,
            attempt.record,
            grave.promise,
            grave.reality,
            grave.assumption,
            grave.again
        );
    }
    console::print(if text.is_empty() { "nothing has failed yet\n" } else { &text })
}

/// Prints the calibration.
pub fn calibration(args: &Calibration) -> Result<()> {
    #[derive(Serialize)]
    struct Everyone {
        contestants: std::collections::BTreeMap<String, history::Calibration>,
        sharks: std::collections::BTreeMap<String, history::Calibration>,
    }
    let records = read(&args.place)?;
    let level = tank::settings::Settings::default().interval_level;
    let everyone = Everyone { contestants: history::contestants(&records, level), sharks: history::sharks(&records) };
    if args.json {
        return console::print_json(&everyone);
    }
    let mut table =
        Table::new(&["who", "", ">judged", ">successes", ">said/measured", ">log error", ">intervals held", ">Brier"]);
    let figure = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.3}"));
    let kinds = [("contestant", &everyone.contestants), ("shark", &everyone.sharks)];
    for (kind, (name, c)) in kinds.into_iter().flat_map(|(kind, of)| of.iter().map(move |entry| (kind, entry))) {
        table.row([
            name.clone(),
            kind.to_owned(),
            c.judged.to_string(),
            c.successes.to_string(),
            figure(c.bias.map(f64::exp)),
            figure(c.log_error),
            crate::table::percent(c.coverage),
            figure(c.brier),
        ]);
    }
    console::print(&table.text())
}
