//! Ways tried in a process of their own, so that a fault or a kernel that does not end costs that process and nothing
//! else.
//!
//! The child says which kernels it has, is asked for one way per line, and answers each with a line: `right`, or
//! `wrong` and a sentence. One that does not answer in time is killed, and so is one that has answered `wrong`, because
//! a GPU's context may be beyond use after that; another one goes on with the next way.
//!
//! What can be such a child: the command itself (`hammerhead trial`), Python (`python -m hammerhead.trial`), and for
//! any other program the command `hammerhead`, named by [`TRIAL_VARIABLE`] or on the path. A process that has used CUDA
//! cannot fork one of itself.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::Trial;
use crate::ways::Way;

/// The environment variable that names the command `hammerhead` to the programs that are not it.
pub const TRIAL_VARIABLE: &str = "HAMMERHEAD_TRIAL";

/// How long a child may take to open the GPU, and how long one that was killed may take to be gone: a driver that waits
/// for its hardware keeps it.
const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(5);
/// How often somebody looks whether it is gone.
const PAUSE: Duration = Duration::from_millis(5);

/// What a child that is ready says first, before the version of its kernels.
const READY: &str = "hammerhead trial ";

/// The program that this process has its ways tried by, and its first arguments.
static PROGRAM: OnceLock<(OsString, Vec<OsString>)> = OnceLock::new();

/// Has this process's ways tried by a program: started with these arguments and the number of a device, it serves ways
/// as [`crate::cuda::Cuda::serve_trials`] does. The first call counts; [`TRIAL_VARIABLE`] counts more.
pub fn tried_by(program: impl Into<OsString>, arguments: impl IntoIterator<Item = OsString>) {
    let _ = PROGRAM.set((program.into(), arguments.into_iter().collect()));
}

/// The program and its first arguments.
fn program() -> (OsString, Vec<OsString>) {
    let command = |program: OsString| (program, vec![OsString::from("trial")]);
    match std::env::var_os(TRIAL_VARIABLE).filter(|named| !named.is_empty()) {
        Some(named) => command(named),
        None => PROGRAM.get().cloned().unwrap_or_else(|| command("hammerhead".into())),
    }
}

/// Children, one after another.
pub(super) struct Children {
    program: (OsString, Vec<OsString>),
    /// How long each may take over one way.
    limit: Duration,
    running: Option<Running>,
}

/// A child that is ready.
struct Running {
    process: Child,
    asks: ChildStdin,
    answers: Receiver<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill, and it is only to be taken off the system's list.
        let _ = self.process.kill();
        let killed = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && killed.elapsed() < END {
            std::thread::sleep(PAUSE);
        }
    }
}

impl Running {
    fn start((program, arguments): &(OsString, Vec<OsString>)) -> Result<Self, String> {
        let named = program.to_string_lossy();
        let started = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut process = started.map_err(|error| {
            format!("there is no program to try it in: {named} cannot be started ({error}); {TRIAL_VARIABLE} can name the command hammerhead")
        })?;
        let (said, asks) = (process.stdout.take(), process.stdin.take());
        let (Some(said), Some(asks)) = (said, asks) else { return Err(format!("{named} cannot be spoken to")) };
        let (line, answers) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(said).lines().map_while(Result::ok).try_for_each(|said| line.send(said))
        });
        let running = Running { process, asks, answers };
        match running.answers.recv_timeout(START) {
            Ok(said) if said.strip_prefix(READY) == Some(crate::KERNELS) => Ok(running),
            Ok(said) if said.starts_with(READY) => Err(format!("{named} has other kernels than this program")),
            Ok(said) => Err(format!("{named} says: {said}")),
            Err(_) => Err(format!("{named} does not try kernels")),
        }
    }
}

impl Children {
    /// Starts one for a device, or says why there is none.
    pub(super) fn start(device: usize, limit: Duration) -> Result<Self, String> {
        let (program, mut arguments) = program();
        arguments.push(device.to_string().into());
        Self::of((program, arguments), limit)
    }

    fn of(program: (OsString, Vec<OsString>), limit: Duration) -> Result<Self, String> {
        let running = Some(Running::start(&program)?);
        Ok(Children { program, limit, running })
    }

    /// Has a way tried.
    pub(super) fn attempt(&mut self, way: &Way) -> Result<(), String> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => Running::start(&self.program)?,
        };
        let asked = writeln!(running.asks, "{way}").and_then(|()| running.asks.flush());
        let answer =
            asked.map_err(|_| RecvTimeoutError::Disconnected).and_then(|()| running.answers.recv_timeout(self.limit));
        match answer.as_deref() {
            Ok("right") => {
                self.running = Some(running);
                Ok(())
            }
            Ok(said) => Err(said.strip_prefix("wrong ").unwrap_or(said).to_owned()),
            Err(RecvTimeoutError::Timeout) => Err(late(self.limit)),
            Err(RecvTimeoutError::Disconnected) => {
                let how = running.process.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                Err(format!("the process that tried it ended ({how})"))
            }
        }
    }
}

/// What is said of a way that took too long.
pub(super) fn late(limit: Duration) -> String {
    format!("it did not end within {} seconds", limit.as_secs_f64())
}

/// The lines on this process's standard input, read from when the first is wanted. Behind the last one the process has
/// as long as a way may take to end, and then is ended: who asked may have been killed, and a kernel that hangs would
/// keep the GPU.
pub(super) fn asked(limit: Duration) -> impl Iterator<Item = String> {
    let mut lines: Option<Receiver<String>> = None;
    let read = move || {
        let (line, lines) = mpsc::channel();
        std::thread::spawn(move || {
            // Nobody receives any more: then the process is about to end by itself.
            let _ = io::stdin().lines().map_while(Result::ok).try_for_each(|asked| line.send(asked));
            drop(line);
            std::thread::sleep(limit);
            std::process::abort();
        });
        lines
    };
    std::iter::from_fn(move || lines.get_or_insert_with(read).recv().ok())
}

/// A child's side: says that it is ready, or why not, and answers for one way per line.
pub fn serve<M>(
    asked: impl Iterator<Item = String>,
    mut answers: impl Write,
    ready: Result<(Vec<Trial>, M), String>,
    mut attempt: impl FnMut(&mut M, &Trial) -> Result<(), String>,
) -> io::Result<()> {
    let one_line = |text: String| text.replace('\n', " ");
    let mut say = |text: String| writeln!(answers, "{}", one_line(text)).and_then(|()| answers.flush());
    let (trials, mut machine) = match ready {
        Ok(ready) => ready,
        Err(reason) => return say(reason),
    };
    say(format!("{READY}{}", crate::KERNELS))?;
    for way in asked {
        let trial = trials.iter().find(|trial| trial.way.to_string() == way);
        let found = trial.map_or_else(|| Err(format!("there is no way {way}")), |trial| attempt(&mut machine, trial));
        say(found.map_or_else(|reason| format!("wrong {reason}"), |()| "right".to_owned()))?;
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// A child that is a script: it answers to what it has read as `way`.
    fn children(ready: &str, answer: &str) -> Result<Children, String> {
        let script = format!("echo '{ready}'; while read -r way; do {answer}; done");
        children_of("sh", vec!["-c".into(), script.into()])
    }

    fn children_of(program: &str, arguments: Vec<OsString>) -> Result<Children, String> {
        Children::of((program.into(), arguments), Duration::from_secs(60))
    }

    fn ready() -> String {
        format!("{READY}{}", crate::KERNELS)
    }

    fn way(text: &str) -> Way {
        text.parse().expect("a way")
    }

    #[test]
    fn a_child_that_answers_is_asked_again_and_one_that_was_wrong_is_replaced() {
        let answer = "case $way in *pair*) echo wrong a fault in $$;; *) echo right;; esac";
        let mut children = children(&ready(), answer).expect("a child");
        let number = |children: &Children| children.running.as_ref().map(|running| running.process.id());
        let first = number(&children);
        assert_eq!(children.attempt(&way("NVFP4 tokens")), Ok(()));
        assert_eq!(number(&children), first);
        let reason = children.attempt(&way("NVFP4 tokens, pair")).expect_err("a fault");
        assert_eq!((reason, number(&children)), (format!("a fault in {}", first.expect("a number")), None));
        assert_eq!(children.attempt(&way("16-bit tokens")), Ok(()));
        assert_ne!(number(&children), first);
    }

    #[test]
    fn a_child_that_hangs_is_killed_and_one_that_dies_is_reported_with_how() {
        let answer = "case $way in *pair*) sleep 600;; *split*) kill -9 $$;; *) echo right;; esac";
        let mut children = children(&ready(), answer).expect("a child");
        children.limit = Duration::from_millis(200);
        let late = children.attempt(&way("NVFP4 tokens, pair"));
        assert!(late.expect_err("a hang").contains("did not end within 0.2 seconds"));
        children.limit = Duration::from_secs(60);
        let died = children.attempt(&way("NVFP4 tokens, split-k")).expect_err("a death");
        assert!(died.contains("ended") && died.contains('9'), "{died}");
        assert_eq!(children.attempt(&way("NVFP4 tokens")), Ok(()), "the next one goes on");
    }

    #[test]
    fn a_program_that_is_no_child_is_refused_with_the_reason() {
        let refused = |ready: &str| children(ready, "echo right").map(drop).expect_err("no child");
        assert!(refused("hammerhead trial 0").contains("other kernels"));
        assert!(refused("there is no GPU 7").contains("there is no GPU 7"));
        let missing = children_of("hammerhead-that-is-not-there", Vec::new());
        assert!(missing.map(drop).expect_err("no program").contains(TRIAL_VARIABLE));
        let silent = children_of("true", Vec::new()).map(drop).expect_err("says nothing");
        assert!(silent.contains("does not try kernels"), "{silent}");
    }

    #[test]
    fn a_child_answers_line_by_line_and_says_so_where_it_cannot() {
        let said = |ready: Result<(Vec<Trial>, ()), String>, asked: &str| {
            let mut answers = Vec::new();
            serve(asked.lines().map(str::to_owned), &mut answers, ready, |(), _| Ok(())).expect("it can be written");
            String::from_utf8(answers).expect("text")
        };
        assert_eq!(said(Err("no\nGPU".to_owned()), "x\n"), "no GPU\n");
        let answered = said(Ok((Vec::new(), ())), "NVFP4 tokens\n");
        assert_eq!(answered, format!("{}\nwrong there is no way NVFP4 tokens\n", ready()));
    }
}
