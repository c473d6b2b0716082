//! An operation's own program: it makes numbers, says what should come out of them, and judges where that is its rule.
//!
//! It is asked one thing at a time, a JSON object a line, and answers `{"type":"done"}`. Tensors lie in a file that
//! each question names. It is the operation's, not a contestant's: it is trusted as the operation is, and its answers
//! are waited for, but not for ever.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use referee::contestant::protocol::Placed;
use referee::task::{Found, Spec, Tensor};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::{Folder, Sizes, TensorText};
use crate::{Error, Result};

/// The longest that an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long its end is waited for once it has closed its pipes.
const BURIAL: Duration = Duration::from_secs(1);
/// Every tensor starts at a multiple of this.
const ALIGNMENT: usize = 64;

/// The program, started when it is first asked.
pub(super) struct Maker {
    folder: Folder,
    running: Mutex<Option<Running>>,
}

struct Running {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Running {
    /// How it ended.
    fn ended(&mut self) -> String {
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    return format!("ended without an answer ({status}); what it wrote to its standard error is above");
                }
                Ok(None) if begun.elapsed() < BURIAL => std::thread::sleep(Duration::from_millis(2)),
                _ => return "has closed its pipes".to_owned(),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has nothing to lose: whatever it was asked was answered, or is not wanted any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What it is asked.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum Question<'a> {
    /// Which tensors a problem has.
    Describe { problem: &'a Sizes },
    /// Numbers for some tensors.
    Generate { problem: &'a Sizes, numbers: &'a str, seed: u64, file: &'a str, tensors: BTreeMap<String, Placed> },
    /// What should come out, in double precision.
    Reference {
        problem: &'a Sizes,
        file: &'a str,
        tensors: BTreeMap<String, Placed>,
        outputs: BTreeMap<String, Placed>,
    },
    /// Whether what came out is right.
    Judge { problem: &'a Sizes, file: &'a str, tensors: BTreeMap<String, Placed>, outputs: BTreeMap<String, Placed> },
}

/// What it answers.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum Reply {
    /// It is there.
    Done,
    /// These are they.
    Tensors {
        /// The tensors.
        tensors: Vec<TensorText>,
    },
    /// What it found.
    Verdict {
        /// What is wrong, if anything is.
        #[serde(default)]
        wrong: Option<String>,
        /// The largest error as a part of what is allowed.
        #[serde(default)]
        worst: f64,
        /// The root of the mean square of the errors, in a unit of the program's own, and of how many elements.
        #[serde(default)]
        rms: Option<f64>,
        #[serde(default)]
        compared: Option<u64>,
    },
    /// It cannot.
    Error {
        /// Why.
        reason: String,
    },
}

impl Maker {
    pub(super) fn new(folder: Folder) -> Self {
        Self { folder, running: Mutex::new(None) }
    }

    fn failed(&self, reason: impl std::fmt::Display) -> Error {
        Error::Rules {
            what: format!("the operation '{}'", self.folder.about.name),
            problem: format!("its program {:?} {reason}", self.folder.about.program.join(" ")),
            remedy: "run it by hand with a line of its protocol (docs/operations.md) to see why".to_owned(),
        }
    }

    fn start(&self) -> Result<Running> {
        let (program, arguments) =
            self.folder.about.program.split_first().ok_or_else(|| self.failed("is not named"))?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.folder.folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| self.failed(format!("does not start: {error}")))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(self.failed("has no pipes"));
        };
        let (said, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if said.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Running { child, input, lines })
    }

    fn ask(&self, question: &Question<'_>) -> Result<Reply> {
        let mut running = self.running.lock().map_err(|_| self.failed("was lost"))?;
        let mut now = match running.take() {
            Some(now) => now,
            None => self.start()?,
        };
        let mut line = serde_json::to_string(question).map_err(|error| self.failed(error))?;
        line.push('\n');
        let sent = now.input.write_all(line.as_bytes()).and_then(|()| now.input.flush());
        let said = match sent.map(|()| now.lines.recv_timeout(PATIENCE)) {
            Ok(Ok(said)) => said,
            Ok(Err(RecvTimeoutError::Timeout)) => {
                return Err(self.failed(format!("does not answer within {} s", PATIENCE.as_secs())));
            }
            // Whoever has closed its pipes ends soon, if it has not.
            Ok(Err(RecvTimeoutError::Disconnected)) | Err(_) => return Err(self.failed(now.ended())),
        };
        let reply = serde_json::from_str(&said)
            .map_err(|error| self.failed(format!("answers {said:?}, which is none: {error}")))?;
        *running = Some(now);
        match reply {
            Reply::Error { reason } => Err(self.failed(format!("cannot: {reason}"))),
            reply => Ok(reply),
        }
    }

    /// Which tensors a problem has.
    pub(super) fn describe(&self, problem: &Sizes) -> Result<Vec<TensorText>> {
        match self.ask(&Question::Describe { problem })? {
            Reply::Tensors { tensors } => Ok(tensors),
            _ => Err(self.failed("does not tell which tensors a problem has")),
        }
    }

    /// Numbers of one kind for these tensors.
    pub(super) fn generate(&self, problem: &Sizes, numbers: &str, seed: u64, specs: Vec<Spec>) -> Result<Vec<Tensor>> {
        if specs.is_empty() {
            return Ok(Vec::new());
        }
        let table = Table::new(self, &specs)?;
        let (file, tensors) = (table.path(), table.named(&specs, 0));
        self.ask(&Question::Generate { problem, numbers, seed, file: &file, tensors })?;
        let tensor = |(index, spec): (usize, Spec)| Ok(Tensor { bytes: table.read(self, index, spec.bytes())?, spec });
        specs.into_iter().enumerate().map(tensor).collect()
    }

    /// What should come out of these tensors, in double precision.
    pub(super) fn reference(&self, problem: &Sizes, given: &[&Tensor], outputs: &[Spec]) -> Result<Vec<Vec<f64>>> {
        let element = referee::task::Element::F64;
        let wide = outputs.iter().map(|spec| Spec { element, ..spec.clone() });
        let specs: Vec<Spec> = given.iter().map(|tensor| tensor.spec.clone()).chain(wide).collect();
        let table = Table::new(self, &specs)?;
        table.write(self, given.iter().map(|tensor| tensor.bytes.as_slice()))?;
        let (file, inputs) = (table.path(), given.len());
        let (tensors, results) = (table.named(&specs[..inputs], 0), table.named(&specs[inputs..], inputs));
        self.ask(&Question::Reference { problem, file: &file, tensors, outputs: results })?;
        let values = |(index, spec): (usize, &Spec)| Ok(element.values(&table.read(self, index, spec.bytes())?));
        specs.iter().enumerate().skip(inputs).map(values).collect()
    }

    /// Whether what came out of these tensors is right. Where the program does not tell how precise it is, the largest
    /// error stands for all.
    pub(super) fn judge(
        &self,
        problem: &Sizes,
        given: &[&Tensor],
        outputs: &[Spec],
        found: &[Vec<u8>],
    ) -> Result<Found> {
        let specs: Vec<Spec> = given.iter().map(|tensor| tensor.spec.clone()).chain(outputs.to_vec()).collect();
        let table = Table::new(self, &specs)?;
        let bytes = given.iter().map(|tensor| tensor.bytes.as_slice()).chain(found.iter().map(Vec::as_slice));
        table.write(self, bytes)?;
        let (file, inputs) = (table.path(), given.len());
        let (tensors, results) = (table.named(&specs[..inputs], 0), table.named(&specs[inputs..], inputs));
        match self.ask(&Question::Judge { problem, file: &file, tensors, outputs: results })? {
            Reply::Verdict { wrong, worst, rms, compared } => {
                let compared = compared.filter(|_| rms.is_some()).unwrap_or(1);
                Ok(Found { wrong, compared, squares: rms.unwrap_or(worst).powi(2) * compared as f64, worst })
            }
            _ => Err(self.failed("answers a judge's question without a verdict")),
        }
    }
}

/// A file with room for some tensors.
struct Table {
    file: NamedTempFile,
    places: Vec<u64>,
}

impl Table {
    fn new(maker: &Maker, specs: &[Spec]) -> Result<Self> {
        let failed = |error: std::io::Error| maker.failed(format!("can be given no file: {error}"));
        let mut end = 0;
        let mut place = |spec: &Spec| {
            let start = end;
            end = (start + spec.bytes()).next_multiple_of(ALIGNMENT);
            start as u64
        };
        let places = specs.iter().map(&mut place).collect();
        // In memory where the system has a folder for that: gigabytes go through here.
        let shared = Path::new("/dev/shm");
        let file = if shared.is_dir() { NamedTempFile::new_in(shared) } else { NamedTempFile::new() };
        let file = file.map_err(failed)?;
        // An empty file cannot be mapped.
        file.as_file().set_len(end.max(ALIGNMENT) as u64).map_err(failed)?;
        Ok(Self { file, places })
    }

    fn path(&self) -> String {
        self.file.path().to_string_lossy().into_owned()
    }

    fn file(&self) -> &File {
        self.file.as_file()
    }

    fn named(&self, specs: &[Spec], first: usize) -> BTreeMap<String, Placed> {
        specs.iter().zip(&self.places[first..]).map(|(spec, &offset)| Placed::at(spec, offset)).collect()
    }

    fn write<'b>(&self, maker: &Maker, tensors: impl Iterator<Item = &'b [u8]>) -> Result<()> {
        let failed = |error: std::io::Error| maker.failed(format!("can be given no numbers: {error}"));
        tensors.zip(&self.places).try_for_each(|(bytes, &at)| self.file().write_all_at(bytes, at).map_err(failed))
    }

    fn read(&self, maker: &Maker, index: usize, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let failed = |error: std::io::Error| maker.failed(format!("left no numbers in its file: {error}"));
        self.file().read_exact_at(&mut bytes, self.places[index]).map_err(failed)?;
        Ok(bytes)
    }
}
