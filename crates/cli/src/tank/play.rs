//! `hammerhead tank play`: a season, with progress on stderr and the verdicts in a table.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args as ClapArgs;
use hammerhead::tuning;
use referee::contestant::blank;
use tank::cluster::{self, Cluster, Launcher};
use tank::court::Referee;
use tank::official::Official;
use tank::operations::dual_gemm::{Builtin, serve as serve_contestant};
use tank::operations::folder::Folder;
use tank::pitch::Pitch;
use tank::play::{self, Choices, Options, Watch};
use tank::report::Report;
use tank::season::{self, Machines, PLANNED, Round, Season};
use tank::verdict::Verdict;

use super::pages;
use super::place::Where;
use crate::table::Table;
use crate::{Error, Result, console};

/// What the built-in season may take where nobody says otherwise.
const BUDGET: Duration = Duration::from_secs(600);

/// Play a season: the one for this machine's CPU unless another is named
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Play a season. Without options it is the one for this machine's CPU: the four strategies, then tiles, \
    stages, epilogue and schedule, with claims written beforehand. Progress goes to stderr, the verdicts to stdout, and a \
    report is written beside the ledger. `--season blackwell` needs no GPU and takes seconds: begin there.\n\n\
    Killed at any point, the same command goes on where it stopped, and measures nothing twice. A season that is \
    finished is printed again, not played again, unless --again says so.\n\n\
    With --pitch, one round is played with those pitches against what the planner chooses today; with --operation as well, \
    against the baseline of that operation, whatever it computes (docs/operations.md).\n\n\
    Examples:\n  \
    hammerhead tank play --season blackwell\n  \
    hammerhead tank play\n  \
    hammerhead tank play --quick --ledger /tmp/l.jsonl\n  \
    hammerhead tank play --pitch a.toml --pitch b.toml --pause\n  \
    hammerhead tank play --operation softmax --pitch softmax/float-exp.toml --pitch softmax/polynomial.toml\n  \
    hammerhead tank play --pitch a.toml --pitch b.toml --override pitches=b --by Ada --because 'I saw it work'"
)]
pub struct Args {
    /// Play this season: a name that `hammerhead tank season` lists, or a file
    #[arg(long, value_name = "NAME", conflicts_with = "pitch")]
    season: Option<PathBuf>,
    /// Play this operation's folder (`hammerhead tank new-operation` writes an example), with --pitch
    #[arg(long, value_name = "FOLDER", requires = "pitch")]
    operation: Option<PathBuf>,
    /// Play one round with this pitch; several make it a contest
    #[arg(long, value_name = "FILE")]
    pitch: Vec<PathBuf>,
    /// Print every pitch with its verdict, its speedup and a reward, as JSON (docs/operations.md)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    elsewhere: Elsewhere,
    /// Where the report goes [default: report.html beside the ledger]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Make every seed from this one, to repeat a run; without it nobody can know them beforehand
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Fewer problems and fewer quartets: wider intervals, sooner
    #[arg(long)]
    quick: bool,
    /// Stop when a round's votes are counted, before anything is built
    #[arg(long)]
    pause: bool,
    /// Begin anew although the season is finished, or was begun in another form
    #[arg(long)]
    again: bool,
    /// How long the play may take, for example 90s, 10m or 2h: the noise is measured first, as much is timed as fits,
    /// and no round begins when it is spent [default: 10m for the built-in season, to its last round; without one, as
    /// long as the settings' looks take]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    budget: Option<Duration>,
    /// Build this pitch whatever the vote says; both go into the ledger
    #[arg(long = "override", value_name = "ROUND=PITCH", requires = "by", requires = "because", value_parser = pair)]
    overrides: Vec<(String, String)>,
    /// Break a tie
    #[arg(long, value_name = "ROUND=PITCH", requires = "by", requires = "because", value_parser = pair)]
    word: Vec<(String, String)>,
    /// Decide on a PARTIAL verdict: the pitch, or `champion`
    #[arg(long, value_name = "ROUND=PITCH", requires = "by", requires = "because", value_parser = pair)]
    accept: Vec<(String, String)>,
    /// Take a pitch back before the vote
    #[arg(long, value_name = "ROUND=PITCH", requires = "by", requires = "because", value_parser = pair)]
    withdraw: Vec<(String, String)>,
    /// Who overrides or decides
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Why
    #[arg(long, value_name = "REASON")]
    because: Option<String>,
}

/// Where sittings are held, if not here; a season's file may say it in `[cluster]`
#[derive(Debug, Default, ClapArgs)]
pub struct Elsewhere {
    /// Have every sitting on a node of its own of this cluster
    #[arg(long, value_name = "KIND", value_parser = ["slurm"], conflicts_with = "launch")]
    cluster: Option<String>,
    /// An option for srun, for example --cluster-option=--constraint=h200
    #[arg(long, value_name = "OPTION", requires = "cluster", allow_hyphen_values = true)]
    cluster_option: Vec<String>,
    /// Have every sitting started by this command, for example 'ssh {host}'
    #[arg(long, value_name = "COMMAND")]
    launch: Option<String>,
    /// The hosts that take turns
    #[arg(long, value_name = "HOST,…", value_delimiter = ',', requires = "launch")]
    hosts: Vec<String>,
    /// The folder for jobs and answers, which all machines see under this name [default: cluster beside the ledger]
    #[arg(long, value_name = "FOLDER")]
    shared: Option<PathBuf>,
}

impl Elsewhere {
    /// The machines that these options name, or else those of the season's file.
    fn machines(&self, season: &Season) -> Option<Machines> {
        let named = || Machines {
            kind: self.cluster.clone(),
            options: self.cluster_option.clone(),
            launch: self.launch.clone(),
            hosts: self.hosts.clone(),
            shared: None,
        };
        let machines = match self.cluster.is_some() || self.launch.is_some() {
            true => named(),
            false => season.cluster.clone()?,
        };
        Some(Machines { shared: self.shared.clone().or(machines.shared.clone()), ..machines })
    }
}

/// Do one job of a cluster's folder
#[derive(Debug, ClapArgs)]
pub struct Answer {
    /// The job
    job: PathBuf,
}

/// Speak the tank's protocol for one of our own configurations
#[derive(Debug, ClapArgs)]
pub struct Serve {
    /// The contestant, as JSON
    contestant: String,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (round, pitch) = text.split_once('=').ok_or("write ROUND=PITCH")?;
    Ok((round.trim().to_owned(), pitch.trim().to_owned()))
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let (number, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit))).unwrap_or((text, &1.0));
    let seconds = number.trim().parse::<f64>().ok().map(|number| number * unit).filter(|seconds| *seconds > 0.0);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "write a time such as 90s, 10m or 2h".to_owned())
}

/// Plays, or goes on where an earlier play stopped.
pub fn play(args: &Args) -> Result<()> {
    let season = chosen(args)?;
    let page = args.report.clone().unwrap_or_else(|| pages::beside(&args.place.ledger));
    let pairs = |pairs: &[(String, String)]| pairs.iter().cloned().collect::<BTreeMap<_, _>>();
    let options = Options {
        seed: args.seed,
        secret: None,
        choices: Choices {
            by: args.by.clone().unwrap_or_default(),
            reason: args.because.clone().unwrap_or_default(),
            overrides: pairs(&args.overrides),
            words: pairs(&args.word),
            accepts: pairs(&args.accept),
            withdrawals: pairs(&args.withdraw),
        },
        pause: args.pause,
        again: args.again,
        budget: args
            .budget
            .or_else(|| (args.season.is_none() && args.pitch.is_empty() && !args.quick).then_some(BUDGET)),
        stops_at_budget: args.budget.is_some(),
        tuning: tuning::folder(),
    };
    let report = run(&season, &args.place, &page, options, &args.elsewhere)?;
    if args.json {
        console::print_json(&report.rewards())?
    } else {
        tell(&report, &page)?
    }
    match blocked(&report) {
        Some(why) => Err(Error::Blocked { why }),
        None => Ok(()),
    }
}

/// Why nothing was played, where every round was blocked.
fn blocked(report: &Report) -> Option<String> {
    let verdicts = report.attempts.iter().map(|attempt| attempt.verdict);
    let all: Vec<Verdict> = verdicts.chain(report.rounds.iter().filter_map(|round| round.verdict)).collect();
    if all.is_empty() || all.iter().any(|verdict| *verdict != Verdict::Blocked) {
        return None;
    }
    let by_rounds = report.rounds.iter().map(|round| round.note.clone());
    let by_attempts = report.attempts.iter().flat_map(|attempt| attempt.reasons.clone());
    by_attempts.chain(by_rounds).find(|why| !why.is_empty())
}

/// Does one job of a cluster's folder.
pub fn answer(args: &Answer) -> Result<()> {
    let watched = |line: &str| console::remark(&format!("    {line}"));
    let worker = this_program("serve")?;
    Ok(cluster::answer(&args.job, |season| {
        let referee = Official::new(season.operation()?, season.settings.referee.clone(), worker, season.threads)?;
        Ok(Box::new(referee.watched(watched)))
    })?)
}

/// Plays a season in a ledger, here or over other machines, and writes its page.
pub(super) fn run(
    season: &Season,
    place: &Where,
    page: &Path,
    mut options: Options,
    elsewhere: &Elsewhere,
) -> Result<Report> {
    if let Some(mut referee) = season.foretelling()? {
        return run_with(season, place, page, &options, referee.as_mut());
    }
    let told = |line: &str| console::remark(&format!("    {line}"));
    let Some(machines) = elsewhere.machines(season) else {
        let worker = this_program("serve")?;
        let referee = Official::new(season.operation()?, season.settings.referee.clone(), worker, season.threads)?;
        return run_with(season, place, page, &options, &mut referee.watched(told));
    };
    let folder = machines.shared.clone().unwrap_or_else(|| place.ledger.with_file_name("cluster"));
    let worker = this_program("answer")?;
    let mut referee = Cluster::new(season, Launcher::of(&machines)?, worker, &folder, told)?;
    options.secret = Some(referee.seed());
    run_with(season, place, page, &options, &mut referee)
}

fn run_with(
    season: &Season,
    place: &Where,
    page: &Path,
    options: &Options,
    referee: &mut dyn Referee,
) -> Result<Report> {
    let mut ledger = place.open()?;
    let played = play::play(season, &mut ledger, referee, options, &mut Progress);
    // What was played until now can be looked at, also where the season waits for a word.
    let report = pages::write(ledger.records(), None, page);
    let played = played?;
    let report = report?;
    if played.finished_before {
        console::remark("this season is finished; nothing was played (add --again to begin anew)");
    }
    Ok(report)
}

/// The season that the arguments ask for.
fn chosen(args: &Args) -> Result<Season> {
    let pitches = args.pitch.iter().map(|path| Pitch::read(path)).collect::<Result<Vec<_>, _>>()?;
    let mut season = match (&args.season, &args.operation) {
        (Some(name), _) => Season::named(name)?,
        (None, Some(folder)) => Season::of_operation(Folder::read(folder)?, pitches.clone())?,
        (None, None) => season::builtin()?,
    };
    if !pitches.is_empty() && args.operation.is_none() {
        season.name = "pitches".to_owned();
        season.context = "pitches against what the planner chooses today".to_owned();
        season.baseline = PLANNED.to_owned();
        let context = season.context.clone();
        season.settings.min_pitches = season.settings.min_pitches.min(pitches.len());
        season.rounds = vec![Round { name: "pitches".to_owned(), context, pitches, ..Round::default() }];
    }
    if args.quick {
        season.name += " (quick)";
        season.problems.truncate(2);
        let timing = &mut season.settings.referee.timing;
        timing.looks = vec![3 * timing.quartets_per_process, 6 * timing.quartets_per_process];
    }
    season.check()?;
    Ok(season)
}

/// This program as the command that does one of the tank's tasks in a process of its own.
pub(super) fn this_program(task: &str) -> Result<Vec<String>> {
    let program = std::env::current_exe().map_err(|cause| Error::Write { path: "this program".into(), cause })?;
    Ok(vec![program.to_string_lossy().into_owned(), "tank".to_owned(), task.to_owned()])
}

/// Serves a contestant until the referee says goodbye.
pub fn serve(args: &Serve) -> Result<()> {
    if args.contestant == blank::TOLD {
        return Ok(blank::serve(io::stdin().lock(), io::stdout().lock()).map_err(tank::Error::from)?);
    }
    let contestant: Builtin = serde_json::from_str(&args.contestant)?;
    Ok(serve_contestant(contestant, io::stdin().lock(), io::stdout().lock()).map_err(tank::Error::from)?)
}

/// Says what happens, on stderr.
struct Progress;

impl Watch for Progress {
    fn say(&mut self, line: &str) {
        console::remark(line);
    }
}

pub(super) fn tell(report: &Report, page: &Path) -> Result<()> {
    let found = if report.foretold.is_some() { ">predicted" } else { ">measured" };
    let mut table = Table::new(&["round", "pitch", "by", ">claimed", found, ">interval", "verdict"]);
    for attempt in &report.attempts {
        table.row([
            attempt.round.clone(),
            attempt.pitch.clone(),
            attempt.contestant.clone(),
            attempt.claimed.map_or("-".to_owned(), |(claim, ..)| format!("{claim:.2}×")),
            attempt.measured.map_or("-".to_owned(), |m| format!("{:.3}×", m.estimate)),
            attempt.measured.map_or("-".to_owned(), |m| format!("{:.3}–{:.3}", m.low, m.high)),
            report.word(attempt.verdict),
        ]);
    }
    let mut text = table.text();
    for round in report.rounds.iter().filter(|r| !report.attempts.iter().any(|a| a.round == r.name)) {
        let verdict = round.verdict.map_or("-".to_owned(), |v| report.word(v));
        text += &format!("{}: {verdict} ({})\n", round.name, round.note);
    }
    let champion = report.champion.as_deref().unwrap_or("the baseline");
    text += &format!("\nchampion: {champion}\n");
    for way in &report.installed {
        let problem = &way.problem;
        text += &format!("tuning cache, {problem}: {} {} ({:.3}×)\n", way.backend, way.config, way.speedup.estimate);
    }
    text += &format!("report: {}\nledger: {} records, head {}\n", page.display(), report.records, report.head);
    console::print(&text)
}
