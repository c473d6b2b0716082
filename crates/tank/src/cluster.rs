//! A season over several machines: each question to the referee becomes a job that a launcher starts on one of them.
//!
//! Rounds, votes, verdicts and the ledger stay in the process that plays: it alone writes the ledger, and the rules do
//! not know who measures. A job is a file in a folder that all machines see; [`answer`] does it there with the whole
//! machine to itself and writes an answer beside it, sealed with the folder's secret. What comes without a seal, or
//! with a wrong one, or not at all, since a node failed or the job was cancelled or preempted, is asked again
//! elsewhere.
//!
//! A job is named by what it asks, seed included. Seeds follow from a secret of the folder's and from the ledger's head
//! ([`Secret`]), so that who goes on with a season that was killed asks the same again, finds the answer that came
//! meanwhile, and waits for one that is under way: nothing is measured twice.
//!
//! Champions belong to a class of machines: the first answer says which, and what another class measured is asked again
//! elsewhere.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use hammerhead::machine::Machine;
use referee::digits::{hex, unhex};
use referee::{Correctness, Sitting, Terms, seeds};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::court::{Baseline, Referee, Swimmer};
use crate::entry::Entry;
use crate::season::{Machines, Season};
use crate::{Error, Result};

/// Times that a job is tried before the season stops.
const TRIES: usize = 6;
/// The wait after the first.
const WAIT: Duration = Duration::from_secs(1);

/// What starts a job on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `srun`, which gives each job a node of its own and waits for it; with options of one's own, such as a partition
    /// or a constraint.
    Slurm(Vec<String>),
    /// Any command that runs what follows it on `{host}` and waits, such as `ssh {host}`, with the hosts that take
    /// turns.
    Template {
        /// The words.
        words: Vec<String>,
        /// The hosts.
        hosts: Vec<String>,
    },
}

impl Launcher {
    /// The launcher that a season's file or a command's options describe.
    pub fn of(machines: &Machines) -> Result<Self> {
        let refused = |problem: &str| Error::Rules {
            what: "the cluster".to_owned(),
            problem: problem.to_owned(),
            remedy: "name kind = \"slurm\", or launch = \"ssh {host}\" with hosts".to_owned(),
        };
        match (&machines.kind, &machines.launch) {
            (Some(kind), None) if kind == "slurm" => Ok(Launcher::Slurm(machines.options.clone())),
            (Some(kind), None) => Err(refused(&format!("nobody knows a cluster of the kind {kind:?}"))),
            (None, Some(command)) if !machines.options.is_empty() => {
                Err(refused(&format!("options are for Slurm, and {command:?} has its own words")))
            }
            (None, Some(command)) => Ok(Launcher::Template {
                words: command.split_whitespace().map(str::to_owned).collect(),
                hosts: machines.hosts.clone(),
            }),
            (Some(_), Some(_)) => Err(refused("it names both a kind and a command")),
            (None, None) => Err(refused("it names neither a kind nor a command")),
        }
    }

    /// The words that start a job away from machines that failed, and the machine, where it is known beforehand. Slurm
    /// lets a job of the same name end first: whoever was asked by a player that was killed may still be at it.
    fn words(&self, job: &str, attempt: usize, failed: &[String]) -> (Vec<String>, Option<String>) {
        match self {
            Launcher::Slurm(options) => {
                let words = ["srun", "--exclusive", "--nodes=1", "--ntasks=1", "--quiet", "--dependency=singleton"];
                let words = words.map(String::from).into_iter().chain([format!("--job-name=tank-{job}")]);
                let mut words: Vec<String> = words.chain(options.iter().cloned()).collect();
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

impl Job {
    /// Tells what is asked from everything else that is. How long it may take is not part of it: a season that goes on
    /// has more time left than it had.
    fn name(&self) -> Result<String> {
        let mut asked = self.clone();
        if let Question::Sit(_, _, terms) = &mut asked.question {
            terms.budget_seconds = None;
        }
        let text = serde_json::to_vec(&asked).map_err(|source| garbled(Path::new("a job"), &source))?;
        Ok(hex(&Sha256::digest(text))[..24].to_owned())
    }
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
    /// What only holders of the folder's secret can make of the job and of what was found.
    seal: String,
    /// The class of the machine that found it.
    class: String,
    /// What was found, as text, so that there is one way to write it.
    found: String,
    /// How long it took.
    seconds: f64,
}

impl Answer {
    fn new(secret: &Secret, job: &str, class: String, found: String, seconds: f64) -> Self {
        let seal = secret.seal(&[job, &class, &found, &seconds.to_string()]);
        Self { seal, class, found, seconds }
    }

    /// The answer to a job that lies at a path, or why there is none that can be used.
    fn read(path: &Path, job: &str, secret: &Secret) -> Result<Self, &'static str> {
        let text = fs::read_to_string(path).map_err(|_| "no answer came")?;
        let answer: Self = serde_json::from_str(&text).map_err(|_| "an answer came in pieces")?;
        let Answer { seal, class, found, seconds } = &answer;
        match *seal == secret.seal(&[job, class, found, &seconds.to_string()]) {
            true => Ok(answer),
            false => Err("an answer came with a wrong seal"),
        }
    }
}

/// What the owner of a cluster's folder knows and nobody else: seeds follow from it, and answers are sealed with it.
pub struct Secret([u8; 32]);

impl Secret {
    /// The folder's secret, drawn once and kept there, where only its owner reads it.
    pub fn of(folder: &Path) -> Result<Self> {
        let path = make(folder)?.join("secret");
        let failed = |source: std::io::Error| Error::Cluster { problem: format!("{}: {source}", path.display()) };
        let drawn = [seeds::fresh()?, seeds::fresh()?, seeds::fresh()?, seeds::fresh()?];
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(mut file) => file.write_all(hex(bytemuck::bytes_of(&drawn)).as_bytes()).map_err(failed)?,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
        let kept = unhex(read(&path)?.trim()).and_then(|bytes| bytes.try_into().ok());
        kept.map(Self).ok_or_else(|| Error::Cluster {
            problem: format!("{} does not hold 64 hexadecimal digits, remove it and begin anew", path.display()),
        })
    }

    /// The number that seeds of seasons over these machines are made from.
    pub fn seed(&self) -> u64 {
        self.0.iter().take(8).fold(0, |seed, &byte| seed << 8 | u64::from(byte))
    }

    /// HMAC-SHA256 (RFC 2104) over some texts, each with its length before it.
    fn seal(&self, texts: &[&str]) -> String {
        let padded = |with: u8| {
            let mut block = [with; 64];
            block.iter_mut().zip(self.0).for_each(|(byte, key)| *byte ^= key);
            Sha256::new_with_prefix(block)
        };
        let mut inner = padded(0x36);
        for text in texts {
            inner.update((text.len() as u64).to_le_bytes());
            inner.update(text);
        }
        hex(&padded(0x5c).chain_update(inner.finalize()).finalize())
    }
}

/// The folder for jobs and answers, there, by its whole name.
fn make(folder: &Path) -> Result<PathBuf> {
    let failed = |source| Error::Cluster { problem: format!("cannot make {}: {source}", folder.display()) };
    fs::create_dir_all(folder).and_then(|()| folder.canonicalize()).map_err(failed)
}

/// A machine's class: what its times depend on, and not its name.
pub fn class(machine: &Machine) -> String {
    let Machine { cpu, cores, gpus, .. } = machine;
    format!("{cpu}, {cores} cores{}", gpus.iter().map(|gpu| format!(", {gpu}")).collect::<String>())
}

/// Does a job that lies in a folder, with a referee for its season, and leaves the answer beside it, unless there is
/// one. Where it begins it leaves the node's name.
pub fn answer(job: &Path, referee: impl FnOnce(&Season) -> Result<Box<dyn Referee>>) -> Result<()> {
    let (text, began) = (read(job)?, Instant::now());
    let secret = Secret::of(job.parent().unwrap_or(Path::new(".")))?;
    if Answer::read(&job.with_extension("answer"), &text, &secret).is_ok() {
        return Ok(());
    }
    let node = std::env::var("SLURMD_NODENAME").unwrap_or_default();
    write_whole(&job.with_extension("node"), &node)?;
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
    let seconds = began.elapsed().as_secs_f64();
    let answer = Answer::new(&secret, &text, class, found, seconds);
    let answer = serde_json::to_string(&answer).map_err(|source| garbled(job, &source))?;
    write_whole(&job.with_extension("answer"), &answer)
}

/// Whether a job ended of its own accord. Then it is better done by another machine; where it began nowhere, no machine
/// may be left but those that failed, and all may have come back. Whoever was cancelled or preempted ended by a signal,
/// and of a node that failed the cluster knows.
fn gave_up(status: ExitStatus) -> bool {
    status.code().is_some_and(|code| (1..128).contains(&code))
}

/// A referee whose questions are answered on other machines.
pub struct Cluster {
    season: Season,
    launcher: Launcher,
    /// What does the job that its last argument names, on any machine: this program.
    worker: Vec<String>,
    /// Seen by all machines under the same name.
    folder: PathBuf,
    secret: Secret,
    watcher: Box<dyn Fn(&str)>,
    /// The wait after the first try that came to nothing; it doubles with each.
    wait: Duration,
    /// How much of the last question's time nobody was at it.
    waited: Duration,
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
        let (season, folder, secret) = (season.clone(), make(folder)?, Secret::of(folder)?);
        let watcher = Box::new(watcher);
        Ok(Self { season, launcher, worker, folder, secret, watcher, wait: WAIT, waited: Duration::ZERO })
    }

    /// The number that seeds of seasons over these machines are made from.
    pub fn seed(&self) -> u64 {
        self.secret.seed()
    }

    /// Asks, and notes how much of the time nobody was at it.
    fn ask(&mut self, champion: Swimmer<'_>, question: Question, seed: u64) -> Result<Finding> {
        let began = Instant::now();
        let (found, seconds) = self.answered(champion, question, seed)?;
        self.waited = began.elapsed().saturating_sub(Duration::try_from_secs_f64(seconds).unwrap_or_default());
        Ok(found)
    }

    fn answered(&self, champion: Swimmer<'_>, question: Question, seed: u64) -> Result<(Finding, f64)> {
        let champion = (champion.name.to_owned(), champion.entry.clone());
        let job = Job { season: self.season.clone(), champion, question, seed };
        let name = job.name()?;
        let path = self.folder.join(format!("{name}.job"));
        let text = match fs::read_to_string(&path) {
            // Somebody who was killed has asked already.
            Ok(text) => text,
            Err(_) => {
                let text = serde_json::to_string(&job).map_err(|source| garbled(&path, &source))?;
                write_whole(&path, &text)?;
                text
            }
        };
        let (mut failed, mut last) = (Vec::new(), String::new());
        for attempt in 0..TRIES {
            if let Ok(found) = self.found(&path, &text)? {
                return Ok(found);
            }
            let _ = fs::remove_file(path.with_extension("node"));
            let (words, host) = self.launcher.words(&name, attempt, &failed);
            let (ended, status) = self.launch(&words, &path)?;
            match self.found(&path, &text)? {
                Ok(found) => return Ok(found),
                Err(why) => last = format!("{why} ({ended})"),
            }
            match host.or_else(|| fs::read_to_string(path.with_extension("node")).ok().filter(|_| gave_up(status))) {
                Some(node) => failed.extend(Some(node).filter(|node| !node.is_empty() && !failed.contains(node))),
                None if gave_up(status) => failed.clear(),
                None => {}
            }
            (self.watcher)(&format!("{last}: it is asked again elsewhere"));
            std::thread::sleep(self.wait * 2u32.pow(attempt as u32));
        }
        let problem = format!("{TRIES} tries of {} came to nothing; the last: {last}", path.display());
        Err(Error::Cluster { problem })
    }

    fn launch(&self, words: &[String], job: &Path) -> Result<(String, ExitStatus)> {
        let nothing = || Error::Cluster { problem: "the launcher is an empty command".to_owned() };
        let (program, arguments) = words.split_first().ok_or_else(nothing)?;
        // What is typed here is not for the machines.
        let status = Command::new(program).args(arguments).args(&self.worker).arg(job).stdin(Stdio::null()).status();
        let status =
            status.map_err(|source| Error::Cluster { problem: format!("{program} does not start: {source}") })?;
        Ok((format!("{program} ended with {status}"), status))
    }

    /// The answer to a job, if a good one is there, and how long it took; why not otherwise.
    fn found(&self, job: &Path, text: &str) -> Result<Result<(Finding, f64), String>> {
        let path = job.with_extension("answer");
        let refused = |why: String| {
            let _ = fs::remove_file(&path);
            Ok(Err(why))
        };
        let (class, found, seconds) = match Answer::read(&path, text, &self.secret) {
            Ok(Answer { class, found, seconds, .. }) => (class, found, seconds),
            Err(why) => return refused(why.to_owned()),
        };
        let first = self.folder.join(format!("{}.class", &self.season.digest()[..24]));
        match fs::read_to_string(&first) {
            Ok(known) if known != class => {
                return refused(format!("an answer came from a machine of another class ({class} instead of {known})"));
            }
            Ok(_) => {}
            Err(_) => write_whole(&first, &class)?,
        }
        let found = serde_json::from_str(&found).map_err(|source| garbled(&path, &source))?;
        Ok(Ok((found, seconds)))
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

    fn waited(&self) -> Duration {
        self.waited
    }
}

/// The error of a machine, or of an answer to something else.
fn unasked(found: Finding) -> Error {
    match found {
        Finding::Blocked(reason) => Error::Elsewhere { reason },
        _ => Error::Cluster { problem: "the answer is to another question".to_owned() },
    }
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
        let baseline = Baseline { flops_per_second: Some(2.0), ..Baseline::default() };
        let found = serde_json::to_string(&Finding::Baseline(baseline.clone())).unwrap();
        let secret = Secret::of(folder.path()).unwrap();
        let sealed = |secret: &Secret, seconds| {
            let answer = Answer::new(secret, &job, class.clone(), found.clone(), seconds);
            serde_json::to_string(&answer).unwrap()
        };
        fs::write(folder.path().join("good"), sealed(&secret, 1e9)).unwrap();

        let hosts = ["one", "two", "three"];
        let mut first = cluster(folder.path(), &hosts);
        assert_eq!(first.baseline(swimmer, 7).unwrap(), baseline);
        assert_eq!(first.waited(), Duration::ZERO, "somebody was at it for longer than all of that");
        let launches = || fs::read_to_string(folder.path().join("launches")).unwrap();
        let asked: Vec<String> = launches().lines().map(str::to_owned).collect();
        assert_eq!(asked.len(), 3, "{asked:?}");
        assert!(asked[1] != asked[0] && asked[2] != asked[0], "elsewhere: {asked:?}");
        // Who goes on with the season finds the answer. If it took no time, all of the time was waited.
        let answer = fs::read_dir(folder.path()).unwrap().flatten().map(|file| file.path());
        let answer = answer.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "answer")).unwrap();
        fs::write(&answer, sealed(&secret, 0.0)).unwrap();
        let mut second = cluster(folder.path(), &hosts);
        assert_eq!(second.baseline(swimmer, 7).unwrap(), baseline);
        assert_eq!(launches().lines().count(), 3);
        assert!(second.waited() > Duration::ZERO);
        // To another question this is no answer, nor is it one of another class.
        let error = cluster(folder.path(), &hosts).baseline(swimmer, 8).unwrap_err().to_string();
        assert!(error.contains("wrong seal"), "{error}");
        // Nor is what somebody wrote who does not know the secret.
        let stranger = sealed(&Secret([7; 32]), 0.0);
        fs::write(folder.path().join("good"), &stranger).unwrap();
        fs::write(&answer, &stranger).unwrap();
        let error = cluster(folder.path(), &hosts).baseline(swimmer, 7).unwrap_err().to_string();
        assert!(error.contains("wrong seal"), "{error}");
        fs::write(folder.path().join("good"), sealed(&secret, 0.0)).unwrap();
        let class = format!("{}.class", &season::builtin().unwrap().digest()[..24]);
        fs::write(folder.path().join(class), "another class").unwrap();
        let error = cluster(folder.path(), &hosts).baseline(swimmer, 7).unwrap_err().to_string();
        assert!(error.contains("another class"), "{error}");
    }

    #[test]
    fn a_seal_depends_on_the_secret_and_on_where_each_text_ends() {
        let secret = Secret([1; 32]);
        assert_ne!(secret.seal(&["ab", "c"]), secret.seal(&["a", "bc"]));
        assert_ne!(secret.seal(&["abc"]), Secret([0; 32]).seal(&["abc"]));
    }

    #[test]
    fn slurm_is_asked_for_a_whole_node_that_has_not_failed() {
        let launcher = Launcher::Slurm(vec!["--constraint=h200".to_owned()]);
        let (words, host) = launcher.words("c0ffee", 1, &["n1".to_owned(), "n2".to_owned()]);
        assert_eq!((words[0].as_str(), host), ("srun", None));
        let wanted = ["--exclusive", "--nodes=1", "--constraint=h200", "--exclude=n1,n2", "--job-name=tank-c0ffee"];
        for option in wanted {
            assert!(words.iter().any(|word| word == option), "{words:?}");
        }
    }

    #[test]
    fn a_sitting_that_is_asked_for_again_is_the_same_job_whatever_time_is_left() {
        let sit = |budget_seconds, seed| Job {
            season: season::builtin().unwrap(),
            champion: ("champion".to_owned(), Entry::Builtin { ways: Vec::new() }),
            question: Question::Sit(
                "challenger".to_owned(),
                Entry::Builtin { ways: Vec::new() },
                Terms { budget_seconds, ..Terms::default() },
            ),
            seed,
        };
        let name = |budget, seed| sit(budget, seed).name().unwrap();
        assert_eq!(name(Some(60.0), 7), name(Some(59.5), 7));
        assert_ne!(name(Some(60.0), 7), name(Some(60.0), 8));
    }

    #[test]
    fn a_worker_that_comes_second_finds_the_answer_and_measures_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("asked.job");
        let job = Job {
            season: season::builtin().unwrap(),
            champion: ("champion".to_owned(), Entry::Builtin { ways: Vec::new() }),
            question: Question::Baseline,
            seed: 7,
        };
        fs::write(&path, serde_json::to_string(&job).unwrap()).unwrap();
        let blocked = |_: &Season| -> Result<Box<dyn Referee>> { Err(referee::Error::Samples.into()) };
        answer(&path, blocked).unwrap();
        let first = fs::read_to_string(path.with_extension("answer")).unwrap();
        answer(&path, |_| panic!("it is measured twice")).unwrap();
        assert_eq!(fs::read_to_string(path.with_extension("answer")).unwrap(), first);
        fs::write(path.with_extension("answer"), &first[..first.len() / 2]).unwrap();
        answer(&path, blocked).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            Answer::read(&path.with_extension("answer"), &text, &Secret::of(folder.path()).unwrap()).is_ok(),
            "a piece is no answer"
        );
    }

    #[test]
    fn machines_are_described_one_way_or_the_other() {
        let of = |text: &str| Launcher::of(&toml::from_str(text).unwrap()).map_err(|error| error.to_string());
        assert_eq!(of("kind = 'slurm'\noptions = ['-pgpu']"), Ok(Launcher::Slurm(vec!["-pgpu".to_owned()])));
        let (words, hosts) = (vec!["ssh".to_owned(), "{host}".to_owned()], vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(of("launch = 'ssh {host}'\nhosts = ['a', 'b']"), Ok(Launcher::Template { words, hosts }));
        for text in ["", "kind = 'lsf'", "kind = 'slurm'\nlaunch = 'ssh'", "launch = 'ssh'\noptions = ['-pgpu']"] {
            assert!(of(text).unwrap_err().contains("kind = \"slurm\""), "{text}");
        }
    }

    #[test]
    fn a_secret_is_drawn_once_and_is_its_owners() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let drawn = Secret::of(folder.path()).unwrap().0;
        assert_eq!(Secret::of(folder.path()).unwrap().0, drawn);
        let mode = fs::metadata(folder.path().join("secret")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
