//! Sharks and contestants that are commands: a question goes to their stdin as one JSON document, the answer comes from
//! their stdout.
//!
//! They have a time limit, a process group of their own that is killed whole, and a limit on what they may say.
//! Whatever one does wrong makes its vote void for the round, or leaves its pitches out; it cannot stop the season.
//! What was said on the way, and what that cost, goes into the ledger with the answer.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Ballot, Criterion, Shark, Statement};
use crate::court::Baseline;
use crate::entry::Entry;
use crate::evidence::Evidence;
use crate::mortem::PostMortem;
use crate::pitch::{Pitch, Run};
use crate::verdict::Judgement;
use crate::{Error, Result};

/// The version of what is said.
const PROTOCOL: u32 = 1;
/// Bytes of an answer, at most.
const ANSWER: u64 = 4 << 20;
/// How often a command is looked at while it thinks.
const PATIENCE: Duration = Duration::from_millis(10);

/// What a command is told.
#[derive(Debug, Serialize)]
pub struct Question<'a> {
    /// The version of this protocol.
    pub protocol: u32,
    /// What is asked for: a vote.
    pub asks: &'static str,
    /// Who is asked.
    pub you: You<'a>,
    /// The season's name.
    pub season: &'a str,
    /// The round's name.
    pub round: &'a str,
    /// What the round is about.
    pub context: &'a str,
    /// What the shark is to score, with its weights.
    pub criteria: &'a [Criterion],
    /// Every valid pitch, with what the tank computed about it.
    pub pitches: Vec<Considered<'a>>,
    /// What was learnt from the failures before.
    pub post_mortems: Vec<PostMortem>,
}

/// Who is asked.
#[derive(Clone, Debug, Serialize)]
pub struct You<'a> {
    /// The shark's name.
    pub name: &'a str,
    /// Who it is.
    pub character: &'a str,
    /// What it goes by.
    pub motto: &'a str,
}

/// What a contestant that is a command is told.
#[derive(Debug, Serialize)]
pub struct PitchQuestion<'a> {
    /// The version of this protocol.
    pub protocol: u32,
    /// What is asked for: pitches.
    pub asks: &'static str,
    /// The season's name.
    pub season: &'a str,
    /// The round's name.
    pub round: &'a str,
    /// What the round is about.
    pub context: &'a str,
    /// The problems.
    pub problems: Vec<String>,
    /// What the champion runs.
    pub champion: &'a Entry,
    /// Its times, and what the machine could do.
    pub baseline: &'a Baseline,
    /// What was learnt from the failures before.
    pub post_mortems: Vec<PostMortem>,
    /// What was tried before in this season, oldest first, and what came of it.
    pub verdicts: Vec<Tried>,
    /// A pitch that is complete, as the answer's are to be.
    pub example: Pitch,
}

/// Something that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// The pitch.
    pub pitch: String,
    /// What it ran.
    pub run: Option<Run>,
    /// What came of it.
    pub judgement: Judgement,
}

/// What was said on the way to an answer, and what it cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Talk {
    /// Whom the command has asked.
    pub model: String,
    /// What it said, word for word.
    pub said: String,
    /// Tokens that were read.
    pub tokens_in: u64,
    /// Tokens that were written.
    pub tokens_out: u64,
    /// What it cost, in whatever the command counts in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

/// What a shark has answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Voice {
    /// Its ballots.
    pub ballots: Vec<Ballot>,
    /// What it says beside them.
    pub statement: Statement,
    /// What was said on the way.
    pub talk: Option<Talk>,
}

/// A pitch and what the tank knows about it.
#[derive(Clone, Debug, Serialize)]
pub struct Considered<'a> {
    /// The pitch.
    pub pitch: &'a Pitch,
    /// What the tank computed.
    pub evidence: &'a Evidence,
}

/// What a command answers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    ballots: Vec<Ballot>,
    #[serde(default)]
    statement: Statement,
    #[serde(default)]
    talk: Option<Talk>,
}

/// What a contestant's command answers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Brought {
    pitches: Vec<Pitch>,
    #[serde(default)]
    talk: Option<Talk>,
}

impl<'a> Question<'a> {
    /// The question about a round, for a shark.
    pub fn new(
        season: &'a str,
        round: &'a str,
        context: &'a str,
        shark: &'a Shark,
        pitches: Vec<Considered<'a>>,
        post_mortems: Vec<PostMortem>,
    ) -> Self {
        let you = You { name: &shark.name, character: &shark.character, motto: &shark.motto };
        let criteria = &shark.criteria;
        Self { protocol: PROTOCOL, asks: "vote", you, season, round, context, criteria, pitches, post_mortems }
    }
}

/// Asks a command for its vote. Every failure is an [`Error::Vote`].
pub fn ask(shark: &str, command: &[String], question: &Question<'_>, seconds: f64) -> Result<Voice> {
    let void = |problem: String| Error::Vote {
        shark: shark.to_owned(),
        problem,
        remedy: "answer one JSON document with {\"ballots\": [{\"pitch\": …, \"scores\": {…}}]}".to_owned(),
    };
    let Answer { ballots, statement, talk } = question_of(command, question, seconds).map_err(void)?;
    Ok(Voice { ballots, statement, talk })
}

/// Asks a command for pitches, or says why it brings none.
pub fn ask_for_pitches(
    command: &[String],
    question: &PitchQuestion<'_>,
    seconds: f64,
) -> Result<(Vec<Pitch>, Option<Talk>), String> {
    let Brought { pitches, talk } = question_of(command, question, seconds)?;
    Ok((pitches, talk))
}

impl<'a> PitchQuestion<'a> {
    /// The question about a round, for a contestant.
    pub fn new(
        [season, round, context]: [&'a str; 3],
        problems: Vec<String>,
        champion: &'a Entry,
        baseline: &'a Baseline,
        post_mortems: Vec<PostMortem>,
        verdicts: Vec<Tried>,
    ) -> Self {
        let example = toml::from_str(&Pitch::example("a name of its own")).unwrap_or_default();
        Self {
            protocol: PROTOCOL,
            asks: "pitch",
            season,
            round,
            context,
            problems,
            champion,
            baseline,
            post_mortems,
            verdicts,
            example,
        }
    }
}

/// Sends a question to a command and reads its answer, or says what went wrong.
fn question_of<T: DeserializeOwned>(command: &[String], question: &impl Serialize, seconds: f64) -> Result<T, String> {
    let text = serde_json::to_vec(question).map_err(|error| format!("the question cannot be written: {error}"))?;
    let mut child = start(command).map_err(|error| format!("{command:?} cannot be started: {error}"))?;
    let answer = converse(&mut child, text, Duration::from_secs_f64(seconds));
    stop(&mut child);
    serde_json::from_slice(&answer?).map_err(|error| format!("its answer is not understood: {error}"))
}

/// The ballots that an answer holds, or why it holds none.
pub fn understand(answer: &[u8]) -> Result<Vec<Ballot>, String> {
    let answer: Answer = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    Ok(answer.ballots)
}

fn start(command: &[String]) -> std::io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn()
}

/// Sends the question and waits for the whole answer, or says why there is none.
fn converse(child: &mut Child, question: Vec<u8>, limit: Duration) -> Result<Vec<u8>, String> {
    let deadline = Instant::now() + limit;
    let (mut stdin, stdout) = (child.stdin.take(), child.stdout.take());
    // The command may answer without listening, so a closed pipe is not yet a failure.
    thread::spawn(move || stdin.as_mut().map(|pipe| pipe.write_all(&question)));
    let reader = thread::spawn(move || {
        let mut answer = Vec::new();
        let read = stdout.map(|pipe| pipe.take(ANSWER + 1).read_to_end(&mut answer));
        read.is_some_and(|read| read.is_ok()).then_some(answer)
    });
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(PATIENCE),
            Ok(None) => return Err(format!("it did not answer in {} s", limit.as_secs_f64())),
            Err(error) => return Err(format!("it was lost: {error}")),
        }
    };
    // Children of the command may hold its pipe open; they get what is left of the time.
    while !reader.is_finished() && Instant::now() < deadline {
        thread::sleep(PATIENCE);
    }
    if !reader.is_finished() {
        return Err("something that it started kept its answer open until the time was up".into());
    }
    match reader.join().ok().flatten() {
        _ if !status.success() => Err(format!("it ended with {status}")),
        Some(answer) if answer.len() as u64 > ANSWER => Err(format!("its answer is longer than {ANSWER} bytes")),
        Some(answer) => Ok(answer),
        None => Err("its answer could not be read".into()),
    }
}

/// Ends the command and everything it started.
fn stop(child: &mut Child) {
    #[cfg(unix)]
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        // It fails where the group is gone already, which is what is wanted.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    // Either it has ended or it is about to; both are what is wanted.
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn ask_shell(script: &str, seconds: f64) -> Result<Voice> {
        let shark = crate::shark::builtin::Which::Skeptic.shark();
        let question = Question::new("s", "r", "", &shark, Vec::new(), Vec::new());
        ask("agent", &["sh".into(), "-c".into(), script.into()], &question, seconds)
    }

    fn complaint(script: &str, seconds: f64) -> String {
        ask_shell(script, seconds).unwrap_err().to_string()
    }

    #[test]
    fn a_command_that_reads_the_question_and_answers_is_heard() {
        let script = r#"grep -q '"protocol":1' && echo '{"ballots":[{"pitch":"a","scores":{"risk":3}}]}'"#;
        let ballots = ask_shell(script, 20.0).unwrap().ballots;
        assert_eq!((ballots[0].pitch.as_str(), ballots[0].scores["risk"]), ("a", 3.0));
    }

    #[test]
    fn garbage_silence_crashes_and_hangs_make_the_vote_void() {
        assert!(complaint("echo nonsense", 20.0).contains("not understood"));
        assert!(complaint("true", 20.0).contains("not understood"));
        assert!(complaint("exit 3", 20.0).contains("3"));
        assert!(complaint("kill -9 $$", 20.0).contains("ended with"));
        assert!(complaint("sleep 60", 0.2).contains("did not answer"));
        assert!(complaint("sleep 60 & echo '{\"ballots\":[]}'", 0.3).contains("kept its answer open"));
        assert!(complaint("yes", 5.0).contains("longer than") || complaint("yes", 5.0).contains("ended with"));
        let nowhere = ask(
            "x",
            &["/no/such/program".into()],
            &Question::new("", "", "", &crate::shark::builtin::Which::Skeptic.shark(), Vec::new(), Vec::new()),
            1.0,
        );
        assert!(nowhere.unwrap_err().to_string().contains("cannot be started"));
    }
}
