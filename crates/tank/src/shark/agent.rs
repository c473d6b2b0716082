//! A shark that is a command: the round goes to its stdin as one JSON document, its ballots come from its stdout.
//!
//! It has a time limit, a process group of its own that is killed whole, and a limit on what it may say. Whatever it does
//! wrong makes its vote void for the round; it cannot stop the season.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Ballot, Criterion, Shark};
use crate::evidence::Evidence;
use crate::pitch::Pitch;
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
}

impl<'a> Question<'a> {
    /// The question about a round, for a shark.
    pub fn new(
        season: &'a str,
        round: &'a str,
        context: &'a str,
        shark: &'a Shark,
        pitches: Vec<Considered<'a>>,
    ) -> Self {
        Self { protocol: PROTOCOL, season, round, context, criteria: &shark.criteria, pitches }
    }
}

/// Asks a command. Every failure is an [`Error::Vote`].
pub fn ask(shark: &str, command: &[String], question: &Question<'_>, seconds: f64) -> Result<Vec<Ballot>> {
    let void =
        |problem: String, remedy: &str| Error::Vote { shark: shark.to_owned(), problem, remedy: remedy.to_owned() };
    let text = serde_json::to_vec(question)
        .map_err(|error| void(format!("the question cannot be written: {error}"), "please report this"))?;
    let mut child = start(command).map_err(|error| {
        void(format!("{command:?} cannot be started: {error}"), "name a program that is there and may be run")
    })?;
    let answer = converse(&mut child, text, Duration::from_secs_f64(seconds));
    stop(&mut child);
    let answer =
        answer.map_err(|problem| void(problem, "see that the command reads one JSON document and answers with one"))?;
    understand(&answer).map_err(|problem| {
        void(
            format!("its answer is not understood: {problem}"),
            "answer {\"ballots\": [{\"pitch\": …, \"scores\": {…}}]}",
        )
    })
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

    fn ask_shell(script: &str, seconds: f64) -> Result<Vec<Ballot>> {
        let shark = crate::shark::builtin::Which::Skeptic.shark();
        let question = Question::new("s", "r", "", &shark, Vec::new());
        ask("agent", &["sh".into(), "-c".into(), script.into()], &question, seconds)
    }

    fn complaint(script: &str, seconds: f64) -> String {
        ask_shell(script, seconds).unwrap_err().to_string()
    }

    #[test]
    fn a_command_that_reads_the_question_and_answers_is_heard() {
        let script = r#"grep -q '"protocol":1' && echo '{"ballots":[{"pitch":"a","scores":{"risk":3}}]}'"#;
        let ballots = ask_shell(script, 20.0).unwrap();
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
            &Question::new("", "", "", &crate::shark::builtin::Which::Skeptic.shark(), Vec::new()),
            1.0,
        );
        assert!(nowhere.unwrap_err().to_string().contains("cannot be started"));
    }
}
