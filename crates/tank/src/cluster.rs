//! A season over several machines: each question to the referee becomes a job that a launcher starts on one of them.
//!
//! Rounds, votes, verdicts and the ledger stay in the process that plays: it alone writes the ledger, and the rules do not know who measures. A job is a file in a
//! folder that all machines see; [`answer`] does it there with the whole machine to itself and writes an answer beside it, with a digest. What comes without one,
//! or with a wrong one, or not at all, since a node failed or the job was cancelled or preempted, is asked again elsewhere. A job is named by its contents, seeds included: who goes on
//! with a season that was killed finds the answers that came meanwhile, and nothing is measured twice.
//!
//! Champions belong to a class of machines: the first answer says which, and what another class measured is asked again elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hammerhead::machine::Machine;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::court::{Baseline, Referee, Swimmer};
use crate::entry::Entry;
use crate::referee::{Correctness, Sitting, Terms};
use crate::season::Season;
use crate::written::hex;
use crate::{Error, Result};

/// Times that a job is tried before the season stops.
const TRIES: usize = 6;
/// The wait after the first.
const WAIT: Duration = Duration::from_secs(1);

/// What starts a job on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `srun`, which gives each job a node of its own and waits for it; with options of one's own, such as a partition or a constraint.
    Slurm(Vec<String>),
    /// Any command that runs what follows it on `{host}` and waits, such as `ssh {host}`, with the hosts that take turns.
    Template {
        /// The words.
        words: Vec<String>,
        /// The hosts.
        hosts: Vec<String>,
    },
}

impl Launcher {
    /// The words that start a job away from machines that failed, and the machine, where it is known beforehand.
    fn words(&self, attempt: usize, failed: &[String]) -> (Vec<String>, Option<String>) {
        match self {
            Launcher::Slurm(options) => {
                let words = ["srun", "--exclusive", "--nodes=1", "--ntasks=1", "--quiet"].map(String::from);
                let mut words: Vec<String> = words.into_iter().chain(options.iter().cloned()).collect();
                if !failed.is_empty() {
                    words.push(format!("--exclude={}", failed.join(",")));
                }
                (words, None)
            }
            Launcher::Template { words, hosts } => {
                // Where all have failed, all may have come back.
                let left: Vec<&String> = hosts.iter().filter(|host| !failed.contains(host)).collect();
                let left = if left.is_empty() { hosts.iter().collect() } else { left };
                let host = left.get(attempt % left.len().max(1)).map(|host| host.to_string());
                let named = |word: &String| word.replace("{host}", host.as_deref().unwrap_or_default());
                (words.iter().map(named).collect(), host)
            }
        }
    }
}

/// One question to a referee.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// What it is about: the operation, its problems, and the referee's settings.
    pub season: Season,
    /// Who is to be beaten.
    pub champion: (String, Entry),
    /// What is asked.
    pub question: Question,
    /// The seed of it.
    pub seed: u64,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// The champion's times alone.
    Baseline,
    /// Whether a challenger is right.
    Examine(String, Entry),
    /// Who is faster.
    Sit(String, Entry, Terms),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// To [`Question::Baseline`].
    Baseline(Baseline),
    /// To [`Question::Examine`].
    Examined(Box<Correctness>),
    /// To [`Question::Sit`].
    Sat(Box<Sitting>),
    /// The environment did not let anything be found, for this reason.
    Blocked(String),
}

/// An answer as it lies in the folder.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    /// The digest of what was found and of the job.
    digest: String,
    /// The class of the machine that found it.
    class: String,
    /// What was found, as text, so that there is one way to write it.
    found: String,
}

impl Answer {
    fn digest_of(job: &str, class: &str, found: &str) -> String {
        hex(&Sha256::digest(format!("{job}\n{class}\n{found}")))
    }
}

/// A machine's class: what its times depend on, and not its name.
pub fn class(machine: &Machine) -> String {
    let Machine { cpu, cores, gpus, .. } = machine;
    format!("{cpu}, {cores} cores{}", gpus.iter().map(|gpu| format!(", {gpu}")).collect::<String>())
}

/// Does a job that lies in a folder, with a referee for its season, and leaves the answer beside it. Where it begins it leaves the node's name.
pub fn answer(job: &Path, referee: impl FnOnce(&Season) -> Result<Box<dyn Referee>>) -> Result<()> {
    let node = std::env::var("SLURMD_NODENAME").unwrap_or_default();
    write_whole(&job.with_extension("node"), &node)?;
    let text = read(job)?;
    let asked: Job = serde_json::from_str(&text).map_err(|source| garbled(job, &source))?;
    let champion = Swimmer { name: &asked.champion.0, entry: &asked.champion.1 };
    let found = referee(&asked.season).and_then(|mut referee| match &asked.question {
        Question::Baseline => referee.baseline(champion, asked.seed).map(Finding::Baseline),
        Question::Examine(name, entry) => {
            let examined = referee.examine(champion, Swimmer { name, entry }, asked.seed);
            examined.map(|examined| Finding::Examined(Box::new(examined)))
        }
        Question::Sit(name, entry, terms) => {
            let sitting = referee.sit(champion, Swimmer { name, entry }, terms, asked.seed);
            sitting.map(|sitting| Finding::Sat(Box::new(sitting)))
        }
    });
    let found = found.unwrap_or_else(|error| Finding::Blocked(error.to_string()));
    let found = serde_json::to_string(&found).map_err(|source| garbled(job, &source))?;
    let class = class(&Machine::detect());
    let answer = Answer { digest: Answer::digest_of(&text, &class, &found), class, found };
    let answer = serde_json::to_string(&answer).map_err(|source| garbled(job, &source))?;
    write_whole(&job.with_extension("answer"), &answer)
}

/// A referee whose questions are answered on other machines.
pub struct Cluster {
    season: Season,
    launcher: Launcher,
    /// What does the job that its last argument names, on any machine: this program.
    worker: Vec<String>,
    /// Seen by all machines under the same name.
    folder: PathBuf,
    watcher: Box<dyn Fn(&str)>,
    /// The wait after the first try that came to nothing; it doubles with each.
    wait: Duration,
}

impl Cluster {
    /// A referee over machines that a launcher reaches, which all see this folder.
    pub fn new(
        season: &Season,
        launcher: Launcher,
        worker: Vec<String>,
        folder: &Path,
        watcher: impl Fn(&str) + 'static,
    ) -> Result<Self> {
        let failed = |source| Error::Cluster { problem: format!("cannot make {}: {source}", folder.display()) };
        fs::create_dir_all(folder).map_err(failed)?;
        let folder = folder.canonicalize().map_err(failed)?;
        Ok(Self { season: season.clone(), launcher, worker, folder, watcher: Box::new(watcher), wait: WAIT })
    }

    fn ask(&self, champion: Swimmer<'_>, question: Question, seed: u64) -> Result<Finding> {
        let champion = (champion.name.to_owned(), champion.entry.clone());
        let job = Job { season: self.season.clone(), champion, question, seed };
        let text = serde_json::to_string(&job).map_err(|source| garbled(&self.folder, &source))?;
        let path = self.folder.join(format!("{}.job", &hex(&Sha256::digest(&text))[..24]));
        write_whole(&path, &text)?;
        let (mut failed, mut last) = (Vec::new(), String::new());
        for attempt in 0..TRIES {
            // Before the first try: somebody who was killed may have asked already.
            if let Ok(found) = self.found(&path, &text)? {
                return Ok(found);
            }
            let _ = fs::remove_file(path.with_extension("node"));
            let (words, host) = self.launcher.words(attempt, &failed);
            let ended = self.launch(&words, &path)?;
            match self.found(&path, &text)? {
                Ok(found) => return Ok(found),
                Err(why) => last = format!("{why} ({ended})"),
            }
            let node = host.or_else(|| fs::read_to_string(path.with_extension("node")).ok());
            failed.extend(node.filter(|node| !node.is_empty() && !failed.contains(node)));
            (self.watcher)(&format!("{last}: it is asked again elsewhere"));
            std::thread::sleep(self.wait * 2u32.pow(attempt as u32));
        }
        let problem = format!("{TRIES} tries of {} came to nothing; the last: {last}", path.display());
        Err(Error::Cluster { problem })
    }

    fn launch(&self, words: &[String], job: &Path) -> Result<String> {
        let nothing = || Error::Cluster { problem: "the launcher is an empty command".to_owned() };
        let (program, arguments) = words.split_first().ok_or_else(nothing)?;
        let status = Command::new(program).args(arguments).args(&self.worker).arg(job).status();
        let status =
            status.map_err(|source| Error::Cluster { problem: format!("{program} does not start: {source}") })?;
        Ok(format!("{program} ended with {status}"))
    }

    /// The answer to a job, if a good one is there; why not otherwise.
    fn found(&self, job: &Path, text: &str) -> Result<Result<Finding, String>> {
        let path = job.with_extension("answer");
        let Ok(answer) = fs::read_to_string(&path) else { return Ok(Err("no answer came".to_owned())) };
        let refused = |why: String| {
            let _ = fs::remove_file(&path);
            Ok(Err(why))
        };
        let Ok(Answer { digest, class, found }) = serde_json::from_str(&answer) else {
            return refused("an answer came in pieces".to_owned());
        };
        if digest != Answer::digest_of(text, &class, &found) {
            return refused("an answer came with a wrong digest".to_owned());
        }
        let first = self.folder.join("class");
        match fs::read_to_string(&first) {
            Ok(known) if known != class => {
                return refused(format!("an answer came from a machine of another class ({class} instead of {known})"));
            }
            Ok(_) => {}
            Err(_) => write_whole(&first, &class)?,
        }
        serde_json::from_str(&found).map(Ok).map_err(|source| garbled(&path, &source))
    }
}

impl Referee for Cluster {
    fn baseline(&mut self, champion: Swimmer<'_>, seed: u64) -> Result<Baseline> {
        match self.ask(champion, Question::Baseline, seed)? {
            Finding::Baseline(found) => Ok(found),
            other => Err(unasked(other)),
        }
    }

    fn examine(&mut self, champion: Swimmer<'_>, challenger: Swimmer<'_>, seed: u64) -> Result<Correctness> {
        let question = Question::Examine(challenger.name.to_owned(), challenger.entry.clone());
        match self.ask(champion, question, seed)? {
            Finding::Examined(found) => Ok(*found),
            other => Err(unasked(other)),
        }
    }

    fn sit(&mut self, champion: Swimmer<'_>, challenger: Swimmer<'_>, terms: &Terms, seed: u64) -> Result<Sitting> {
        let question = Question::Sit(challenger.name.to_owned(), challenger.entry.clone(), *terms);
        match self.ask(champion, question, seed)? {
            Finding::Sat(found) => Ok(*found),
            other => Err(unasked(other)),
        }
    }
}

/// The error of a machine, or of an answer to something else.
fn unasked(found: Finding) -> Error {
    let problem = match found {
        Finding::Blocked(reason) => reason,
        _ => "the answer is to another question".to_owned(),
    };
    Error::Cluster { problem }
}

fn garbled(path: &Path, source: &serde_json::Error) -> Error {
    Error::Cluster { problem: format!("{}: {source}", path.display()) }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|source| Error::Cluster { problem: format!("{}: {source}", path.display()) })
}

/// Writes a file so that nobody ever sees a part of it.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    written.map_err(|source| Error::Cluster { problem: format!("{}: {source}", path.display()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::season;

    /// A worker that fails as a node does, then answers in pieces, and only then as it should.
    const WORKER: &str = r#"
        echo "$0" >> "$1/launches"
        case $(wc -l < "$1/launches") in
            1) exit 1;;
            2) echo '{"dig' > "${2%.job}.answer";;
            *) cp "$1/good" "${2%.job}.answer";;
        esac
    "#;

    fn cluster(folder: &Path, hosts: &[&str]) -> Cluster {
        let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
        let launcher = Launcher::Template { words: words(&["env", "HOST={host}"]), hosts: words(hosts) };
        let worker = words(&["sh", "-c", &WORKER.replace("$0", "$HOST"), "worker", &folder.display().to_string()]);
        let season = season::builtin().unwrap();
        let cluster = Cluster::new(&season, launcher, worker, folder, |_| ()).unwrap();
        Cluster { wait: Duration::ZERO, ..cluster }
    }

    #[test]
    fn what_a_failed_machine_leaves_open_is_asked_elsewhere_once_and_never_twice() {
        let folder = tempfile::tempdir().unwrap();
        let champion = ("champion".to_owned(), Entry::Builtin { ways: Vec::new() });
        let swimmer = Swimmer { name: &champion.0, entry: &champion.1 };
        let job = Job {
            season: season::builtin().unwrap(),
            champion: champion.clone(),
            question: Question::Baseline,
            seed: 7,
        };
        let (job, class) = (serde_json::to_string(&job).unwrap(), "a class".to_owned());
        let baseline = Baseline { shapes: Vec::new(), flops_per_second: Some(2.0), bytes_per_second: None };
        let found = serde_json::to_string(&Finding::Baseline(baseline.clone())).unwrap();
        let good = Answer { digest: Answer::digest_of(&job, &class, &found), class, found };
        fs::write(folder.path().join("good"), serde_json::to_string(&good).unwrap()).unwrap();

        let hosts = ["one", "two", "three"];
        assert_eq!(cluster(folder.path(), &hosts).baseline(swimmer, 7).unwrap(), baseline);
        let launches = || fs::read_to_string(folder.path().join("launches")).unwrap();
        let asked: Vec<String> = launches().lines().map(str::to_owned).collect();
        assert_eq!(asked.len(), 3, "{asked:?}");
        assert!(asked[1] != asked[0] && asked[2] != asked[0], "elsewhere: {asked:?}");
        // Who goes on with the season finds the answer.
        assert_eq!(cluster(folder.path(), &hosts).baseline(swimmer, 7).unwrap(), baseline);
        assert_eq!(launches().lines().count(), 3);
        // To another question this is no answer, nor is it one of another class.
        let error = cluster(folder.path(), &hosts).baseline(swimmer, 8).unwrap_err().to_string();
        assert!(error.contains("wrong digest"), "{error}");
        fs::write(folder.path().join("class"), "another class").unwrap();
        let error = cluster(folder.path(), &hosts).baseline(swimmer, 7).unwrap_err().to_string();
        assert!(error.contains("another class"), "{error}");
    }

    #[test]
    fn slurm_is_asked_for_a_whole_node_that_has_not_failed() {
        let launcher = Launcher::Slurm(vec!["--constraint=h200".to_owned()]);
        let (words, host) = launcher.words(1, &["n1".to_owned(), "n2".to_owned()]);
        assert_eq!((words[0].as_str(), host), ("srun", None));
        for option in ["--exclusive", "--nodes=1", "--constraint=h200", "--exclude=n1,n2"] {
            assert!(words.iter().any(|word| word == option), "{words:?}");
        }
    }
}
