//! Anyone's program as a contestant: a process that speaks the protocol, behind a fence.
//!
//! The referee holds the pipes and the clock. Every answer has a time limit and a longest length, every `run` an id
//! that cannot be guessed, so an answer cannot be written before its question; whatever else comes through the pipe
//! ends the contestant's round. Between its runs all of it stands still: it is woken inside the clock, and the clock
//! runs on until it stands again. What it consumes of the processors in between is its fault.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::device;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::fence::{self, Fence, Guard, Rules, Stillness};
use super::latch::Passed;
use super::lot::Tensors;
use super::memory::lendable;
use super::protocol::{Answer, Job, Request, Residence, VERSION, line, understand};
use super::seal;
use super::turns::{Accounts, Queued};
use super::workshop::Workshop;
use super::{About, Contestant, DeviceTime, Fault, Limits, Readiness, Session, Stage};
use crate::{Error, Result};

/// The longest answer.
const LONGEST: usize = 1 << 16;
/// How much of a line or of its last words is quoted.
const QUOTED: usize = 400;
/// Bytes that the files of tensors may hold beyond what was laid there: parts of the last page, which may be a large
/// one.
const MOST_EXCESS: u64 = 16 << 20;
/// How often it is looked at what a contestant takes while it is waited for.
const WATCH: Duration = Duration::from_millis(100);

/// A program, and how to start it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// What builds it, program and arguments; nothing where that is empty.
    #[serde(default)]
    pub build: Vec<String>,
    /// What starts it, program and arguments.
    pub command: Vec<String>,
    /// What it may take.
    #[serde(default)]
    pub limits: Limits,
    /// Whether it is our own code in a fresh process, without a fence.
    #[serde(default)]
    pub trusted: bool,
    /// What its files must be, as [`Program::digest`] tells; anything where it does not say.
    #[serde(default)]
    pub sealed: Option<String>,
    /// Where it was built, and is started from.
    #[serde(skip)]
    pub built: Option<Arc<Workshop>>,
}

impl Program {
    /// A stranger's program.
    pub fn new(name: impl Into<String>, command: Vec<String>, limits: Limits) -> Self {
        Self { name: name.into(), build: Vec::new(), command, limits, trusted: false, sealed: None, built: None }
    }

    /// Our own code in fresh processes: `worker`, a command that serves what its last argument describes as JSON.
    pub fn fresh(name: &str, described: &serde_json::Value, worker: &[String], limits: Limits) -> Self {
        let command = worker.iter().cloned().chain([described.to_string()]).collect();
        Self { name: name.to_owned(), build: Vec::new(), command, limits, trusted: true, sealed: None, built: None }
    }

    /// Tells the files that its command names from all others, by their bytes.
    pub fn digest(&self) -> String {
        seal::digest(&self.started())
    }

    /// Whether everything is there that its command names in the folder that it was built in.
    pub fn is_whole(&self) -> bool {
        let Some(workshop) = &self.built else { return true };
        self.started().iter().map(Path::new).filter(|path| path.starts_with(workshop.folder())).all(Path::exists)
    }

    /// Refuses what a build has linked to the files of others.
    fn keep_to_its_own(&self) -> Result<(), Fault> {
        let stray = self.built.as_ref().and_then(|workshop| workshop.stray(&self.command, &self.limits.readable));
        match stray {
            Some(what) => {
                Err(Fault::Tampering { what: format!("what is not its own: {what}; have its build copy it") })
            }
            None => Ok(()),
        }
    }

    /// What starts it, from where it was built.
    fn started(&self) -> Vec<String> {
        self.built.as_ref().map_or_else(|| self.command.clone(), |workshop| workshop.moved(&self.command))
    }

    /// The fence around its runs, or around its build, which may write to the folder that it lies in.
    fn fence(&self, command: &[String], writes: Vec<PathBuf>, scratch: &TempDir) -> Fence {
        match self.trusted {
            true => Fence::Ours,
            false => Fence::Strangers(Box::new(Rules {
                limits: self.limits.clone(),
                reads: fence::places_of(command),
                writes,
                scratch: scratch.path().to_owned(),
            })),
        }
    }

    /// The environment: a list, and folders that are its own.
    fn dress(&self, command: &mut Command, scratch: &TempDir) {
        if !self.trusted {
            let kept = self.limits.environment.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
            command.env_clear().envs(kept).env("HOME", scratch.path()).env("TMPDIR", scratch.path());
        }
    }

    /// Builds it, if there is anything to build. Done once, behind the same fence as its runs but for a copy of the
    /// folder of its program, where it may write and from where it is started from then on; nothing that it started
    /// outlives it.
    pub fn build(&mut self) -> Result<(), Fault> {
        if self.build.is_empty() {
            return Ok(());
        }
        let failed = |error: io::Error| Fault::Build { reason: error.to_string() };
        let workshop = Workshop::new(&self.command, &self.build).map_err(failed)?.map(Arc::new);
        let words = tempfile::tempfile().map_err(failed)?;
        let status = self.build_in(workshop.as_deref(), &words)?;
        match status {
            Some(status) if status.success() => {
                self.built = workshop;
                self.keep_to_its_own()
            }
            Some(status) => Err(Fault::Build { reason: format!("{status}{}", last_words(&words)) }),
            None => Err(Fault::Hang { stage: Stage::Build, seconds: self.limits.build_seconds }),
        }
    }

    /// How its build command ended, if it did in time. What it says goes into a file.
    fn build_in(&self, workshop: Option<&Workshop>, words: &std::fs::File) -> Result<Option<ExitStatus>, Fault> {
        let failed = |error: io::Error| Fault::Build { reason: error.to_string() };
        let build = workshop.map_or_else(|| self.build.clone(), |workshop| workshop.moved(&self.build));
        let (program, arguments) = build.split_first().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let said = lendable(words, true).map_err(failed)?;
        let both = || said.try_clone().map(Stdio::from).map_err(failed);
        let scratch = TempDir::new().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(both()?).stderr(both()?);
        let folder = workshop.map(|workshop| workshop.folder().to_owned());
        if let Some(folder) = &folder {
            command.current_dir(folder);
        }
        self.dress(&mut command, &scratch);
        let fence = self.fence(&build, folder.into_iter().collect(), &scratch);
        let enclosure = fence::enclose(&mut command, &fence, Vec::new()).map_err(failed)?;
        let child = command.spawn().map_err(|error| Fault::Build { reason: format!("{program}: {error}") })?;
        let (stillness, _) = enclosure.close(child.id());
        let mut group = Group { child, stillness, status: None };
        let (start, limit) = (Instant::now(), Duration::from_secs_f64(self.limits.build_seconds));
        loop {
            let left = limit.saturating_sub(start.elapsed());
            let ended = group.wait(left.min(WATCH));
            let beyond = workshop.is_some_and(|workshop| workshop.is_beyond(self.limits.file_bytes));
            let disk = || {
                format!("more than {} MiB of the disk, or very many files, to be built", self.limits.file_bytes >> 20)
            };
            if let Some(what) = group.excess(&self.limits, words).or_else(|| beyond.then(disk)) {
                return Err(Fault::Excess { what });
            }
            if ended.is_some() || start.elapsed() >= limit {
                return Ok(ended);
            }
        }
    }
}

impl Contestant for Program {
    fn about(&self) -> About {
        About { name: self.name.clone(), runs: self.command.join(" "), trusted: self.trusted }
    }

    fn start(&self) -> Result<Box<dyn Session>, Fault> {
        let mut process = Process::spawn(self)?;
        process.greet()?;
        Ok(Box::new(process))
    }

    fn spawn(&self) -> Result<Box<dyn Session>, Fault> {
        Ok(Box::new(Process::spawn(self)?))
    }
}

/// A process group that does not outlive this value.
struct Group {
    child: Child,
    stillness: Stillness,
    status: Option<ExitStatus>,
}

impl Group {
    /// Waits so long for its leader to end.
    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        while self.status.is_none() && !self.has_ended() {
            if start.elapsed() >= limit {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2).min(limit));
        }
        self.end()
    }

    /// What all of its processes together take that they may not, and what they said where that is too much for a disk.
    fn excess(&self, limits: &Limits, words: &std::fs::File) -> Option<String> {
        let (bytes, processes) = (self.stillness.memory_in_use(), self.stillness.members().len());
        let (most, written) = (limits.memory_here(), words.metadata().map_or(0, |about| about.len()));
        if bytes > most {
            Some(format!("{} MiB of memory, where {} may be taken", bytes >> 20, most >> 20))
        } else if processes as u64 > limits.processes {
            Some(format!("{processes} processes, where {} may be started", limits.processes))
        } else if written > limits.scratch_bytes {
            let (written, most) = (written >> 20, limits.scratch_bytes >> 20);
            Some(format!("{written} MiB for its standard error, where {most} may be written"))
        } else {
            None
        }
    }

    /// Whether the leader has ended. It is not buried yet.
    fn has_ended(&self) -> bool {
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: all zeros are a siginfo_t, which lives on this stack for as long as the call.
        unsafe {
            let mut about: libc::siginfo_t = std::mem::zeroed();
            let asked = libc::waitid(libc::P_PID, self.child.id(), &mut about, options);
            asked != 0 || about.si_pid() != 0
        }
    }

    /// Kills whatever is left of the group, and only then buries its leader: until then its number cannot be another's.
    fn end(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.stillness.kill();
            self.status = self.child.wait().ok();
        }
        self.status
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

/// A run that waits for the word to begin.
struct Staged {
    id: String,
    message: String,
    jobs: Vec<Job>,
    latched: bool,
}

/// A program that was started.
struct Process {
    group: Group,
    guards: Vec<Guard>,
    tensors: Tensors,
    input: ChildStdin,
    output: ChildStdout,
    words: std::fs::File,
    unread: Vec<u8>,
    limits: Limits,
    trusted: bool,
    deterministic: bool,
    /// Whether it queues its runs behind a latch.
    queues: bool,
    /// Whether it was told of a problem, and whether it has run anything of that.
    prepared: bool,
    at_home: bool,
    resting: bool,
    secret: RandomState,
    count: u64,
    /// How long its answers took, all of them together.
    answered: Duration,
    staged: Option<Staged>,
    /// The scheduler's accounts of it before its run.
    accounts: Option<Accounts>,
    /// Last: it goes when nobody is left to write there.
    _scratch: TempDir,
}

impl Process {
    fn spawn(program: &Program) -> Result<Self, Fault> {
        let failed = |reason: String| Fault::Start { reason };
        let failed_io = |error: io::Error| failed(error.to_string());
        let started = program.started();
        let (path, arguments) = started.split_first().ok_or_else(|| failed("its command is empty".to_owned()))?;
        program.keep_to_its_own()?;
        if program.sealed.as_ref().is_some_and(|sealed| *sealed != program.digest()) {
            let others = "its program: the files are not those that were examined";
            let what = match program.built {
                Some(_) => format!("{others}; what it builds is to have the same bytes at every build"),
                None => others.to_owned(),
            };
            return Err(Fault::Tampering { what });
        }
        let words = tempfile::tempfile().map_err(failed_io)?;
        let scratch = TempDir::new().map_err(failed_io)?;
        let tensors = Tensors::new().map_err(|error| failed(error.to_string()))?;
        let mut command = Command::new(fence::find_program(path).unwrap_or_else(|| path.into()));
        let stderr = lendable(&words, true).map_err(failed_io)?;
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        program.dress(&mut command, &scratch);
        let fence = program.fence(&started, Vec::new(), &scratch);
        let enclosure = fence::enclose(&mut command, &fence, tensors.lent()).map_err(failed_io)?;
        let mut child = command.spawn().map_err(|error| failed(format!("{path}: {error}")))?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (stillness, guards) = enclosure.close(child.id());
        let group = Group { child, stillness, status: None };
        let (Some(input), Some(output)) = pipes else { return Err(failed("it has no pipes".to_owned())) };
        for pipe in [input.as_raw_fd(), output.as_raw_fd()] {
            unblock(pipe).map_err(failed_io)?;
        }
        Ok(Self {
            group,
            guards,
            tensors,
            input,
            output,
            words,
            unread: Vec::new(),
            limits: program.limits.clone(),
            trusted: program.trusted,
            deterministic: false,
            queues: false,
            prepared: false,
            at_home: false,
            resting: false,
            secret: RandomState::new(),
            count: 0,
            answered: Duration::ZERO,
            staged: None,
            accounts: None,
            _scratch: scratch,
        })
    }

    fn say_hello(&mut self) -> Result<(), Fault> {
        let message = self.write_up(Stage::Hello, &Request::Hello { protocol: VERSION })?;
        match self.ask(Stage::Hello, &message)? {
            (Answer::Hello { protocol: VERSION, deterministic, memory, queues, .. }, _) => {
                self.deterministic = deterministic;
                if memory == Residence::Cuda {
                    self.queues = queues;
                    let on_device = |context| Tensors::shared_on_device(context, queues);
                    let shared = device::context(0).map_err(Error::from).and_then(on_device);
                    let refused =
                        |error: Error| Fault::Start { reason: format!("it wants its tensors on a GPU: {error}") };
                    self.tensors = shared.map_err(refused)?;
                }
                Ok(())
            }
            (Answer::Hello { protocol, .. }, said) => {
                let reason = format!("it speaks version {protocol}, and the referee version {VERSION}");
                Err(Fault::Garbage { stage: Stage::Hello, reason, line: said })
            }
            (_, said) => Err(garbage(Stage::Hello, "a hello was expected", &said)),
        }
    }

    /// An id that nobody can guess: a secret function of a counter.
    fn next_id(&mut self) -> String {
        self.count += 1;
        format!("{:016x}", self.secret.hash_one(self.count))
    }

    fn write_up(&self, stage: Stage, message: &Request) -> Result<String, Fault> {
        line(message).map_err(|error| Fault::Start { reason: format!("no message for {stage}: {error}") })
    }

    fn seconds(&self, stage: Stage) -> f64 {
        match stage {
            Stage::Build => self.limits.build_seconds,
            Stage::Hello => self.limits.hello_seconds,
            Stage::Prepare => self.limits.prepare_seconds,
            Stage::Run => self.limits.run_seconds,
            Stage::Bye => self.limits.bye_seconds,
        }
    }

    /// Says something and waits for the answer, which comes with its own line.
    fn ask(&mut self, stage: Stage, message: &str) -> Result<(Answer, String), Fault> {
        let asked = Instant::now();
        let deadline = asked + Duration::from_secs_f64(self.seconds(stage));
        if !self.unread.is_empty() {
            let said = String::from_utf8_lossy(&self.unread).into_owned();
            return Err(garbage(stage, "it spoke before it was asked", &said));
        }
        self.send(stage, message.as_bytes(), deadline)?;
        let said = self.receive(stage, deadline)?;
        self.answered += asked.elapsed();
        let text = String::from_utf8_lossy(&said).into_owned();
        match understand(&said) {
            Ok(answer) => Ok((answer, text)),
            Err(reason) => Err(garbage(stage, &reason, &text)),
        }
    }

    fn send(&mut self, stage: Stage, mut bytes: &[u8], deadline: Instant) -> Result<(), Fault> {
        while !bytes.is_empty() {
            match self.input.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.await_pipe(stage, self.input.as_raw_fd(), libc::POLLOUT, deadline)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(self.crash(stage)),
            }
        }
        Ok(())
    }

    /// The next line.
    fn receive(&mut self, stage: Stage, deadline: Instant) -> Result<Vec<u8>, Fault> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                return Ok(self.unread.drain(..=end).collect());
            }
            if self.unread.len() > LONGEST {
                let said = String::from_utf8_lossy(&self.unread).into_owned();
                return Err(garbage(stage, "its line does not end", &said));
            }
            match self.output.read(&mut chunk) {
                Ok(0) => return Err(self.crash(stage)),
                Ok(count) => self.unread.extend(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.await_pipe(stage, self.output.as_raw_fd(), libc::POLLIN, deadline)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(self.crash(stage)),
            }
        }
    }

    fn await_pipe(&self, stage: Stage, pipe: RawFd, event: libc::c_short, deadline: Instant) -> Result<(), Fault> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut poll = libc::pollfd { fd: pipe, events: event, revents: 0 };
            let milliseconds = libc::c_int::try_from(left.min(WATCH).as_millis()).unwrap_or(libc::c_int::MAX);
            // SAFETY: one entry, on this stack, for as long as the call.
            if unsafe { libc::poll(&mut poll, 1, milliseconds) } != 0 {
                return Ok(());
            }
            if left <= WATCH {
                return Err(Fault::Hang { stage, seconds: self.seconds(stage) });
            }
            self.look_at_what_it_takes()?;
        }
    }

    /// What all of its processes hold together. Where a controller counts, the kernel was there before us.
    fn look_at_what_it_takes(&self) -> Result<(), Fault> {
        if self.trusted {
            return Ok(());
        }
        if self.group.stillness.is_spared() {
            let what = "whom the kernel ends where memory runs out: it has put itself behind others".to_owned();
            return Err(Fault::Tampering { what });
        }
        let (files, answered) = (self.tensors.excess(), self.answered.as_secs_f64());
        let what = if let Some(what) = self.group.excess(&self.limits, &self.words) {
            what
        } else if files > MOST_EXCESS {
            format!("{} MiB of memory by making the files of its tensors larger than they were", files >> 20)
        } else if answered > self.limits.session_seconds {
            let most = self.limits.session_seconds;
            format!("{answered:.1} s for its answers since it was started, where {most} may be taken")
        } else {
            return Ok(());
        };
        self.group.stillness.kill();
        Err(Fault::Excess { what })
    }

    fn crash(&mut self, stage: Stage) -> Fault {
        let status = match self.group.wait(Duration::from_secs_f64(self.limits.bye_seconds)) {
            Some(status) => status.to_string(),
            None => "it closed its pipes".to_owned(),
        };
        Fault::Crash { stage, status, words: last_words(&self.words) }
    }

    fn write_run(&mut self, jobs: &[Job]) -> Result<(), Fault> {
        let id = self.next_id();
        // What is launched for the first time may wait for the whole device: there is no latch in the first run.
        let latched = if jobs.is_empty() { self.prepared } else { self.at_home };
        let latch = if latched { self.tensors.close_latch() } else { None };
        self.at_home |= !jobs.is_empty();
        let message = self.write_up(Stage::Run, &Request::Run { id: id.clone(), jobs: jobs.to_vec(), latch })?;
        self.staged = Some(Staged { id, message, jobs: jobs.to_vec(), latched: latch.is_some() });
        Ok(())
    }

    /// Has it queue the staged jobs behind the latch, stops it, and opens the latch.
    fn pass_the_latch(&mut self, Staged { id, message, jobs, .. }: &Staged) -> Result<DeviceTime, Fault> {
        self.wake()?;
        let answer = self.ask(Stage::Run, message)?;
        self.rest()?;
        match answer {
            (Answer::Queued { id: said }, _) if said == *id => {}
            (_, said) => return Err(garbage(Stage::Run, "queued with this id was expected", &said)),
        }
        let seconds = self.seconds(Stage::Run);
        match self.tensors.open_latch(jobs, Duration::from_secs_f64(seconds)).map_err(ours)? {
            Passed::Timed(time) => Ok(time),
            Passed::Late => Err(Fault::Hang { stage: Stage::Run, seconds }),
            Passed::Changed => {
                let what = "an output was still being written when the run had said that it is over".to_owned();
                Err(Fault::Wrong { problem: self.tensors.problem(), what })
            }
        }
    }

    fn wake(&mut self) -> Result<(), Fault> {
        if std::mem::take(&mut self.resting) {
            self.group.stillness.wake().map_err(|_| self.crash(Stage::Run))?;
        }
        Ok(())
    }

    /// Stops it where it stands, with all its threads and children, and comes back when it stands still.
    fn rest(&mut self) -> Result<(), Fault> {
        if !std::mem::replace(&mut self.resting, true) {
            match self.group.stillness.stop() {
                Ok(()) => self.group.stillness.note(),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Err(Fault::Tampering {
                        what: "its rest: it does not stand still when it is stopped".to_owned(),
                    });
                }
                Err(_) => return Err(self.crash(Stage::Run)),
            }
        }
        Ok(())
    }

    /// Whether it has rested since it was stopped.
    fn check_rest(&mut self) -> Result<(), Fault> {
        if !self.resting {
            return Ok(());
        }
        let Some(passed) = self.group.stillness.unrest() else { return Ok(()) };
        let what = format!(
            "its rest: it used {:.1} ms of processor time while it was stopped, and not for the first time",
            1e3 * passed.as_secs_f64()
        );
        Err(Fault::Tampering { what })
    }
}

impl Session for Process {
    fn greet(&mut self) -> Result<(), Fault> {
        self.say_hello()?;
        self.rest()
    }

    fn deterministic(&self) -> bool {
        self.deterministic
    }

    fn tensors(&mut self) -> &mut Tensors {
        &mut self.tensors
    }

    fn prepare(&mut self) -> Result<Readiness, Fault> {
        self.check_rest()?;
        self.look_at_what_it_takes()?;
        (self.prepared, self.at_home) = (true, false);
        let id = self.next_id();
        let message = self.tensors.message(id.clone());
        let message = message.map_err(|error| Fault::Start { reason: error.to_string() })?;
        let message = self.write_up(Stage::Prepare, &Request::Prepare(Box::new(message)))?;
        self.wake()?;
        let answer = self.ask(Stage::Prepare, &message)?;
        self.rest()?;
        self.look_at_what_it_takes()?;
        match answer {
            (Answer::Ready { id: said }, _) if said == id => Ok(Readiness::Ready),
            (Answer::Unsupported { id: said, reason }, _) if said == id => Ok(Readiness::Unsupported(quoted(&reason))),
            (_, said) => Err(garbage(Stage::Prepare, "ready or unsupported with this id was expected", &said)),
        }
    }

    fn stage(&mut self, jobs: &[Job]) -> Result<(), Fault> {
        self.check_rest()?;
        self.look_at_what_it_takes()?;
        self.accounts = Some(Accounts::of(self.group.stillness.members()));
        self.write_run(jobs)
    }

    fn queued(&mut self) -> Option<Queued> {
        Accounts::of(self.group.stillness.members()).since(self.accounts.as_ref()?)
    }

    fn sweep(&mut self, bytes: u64) -> bool {
        self.tensors.sweep(bytes).unwrap_or(false)
    }

    fn queues(&self) -> bool {
        self.queues
    }

    fn by_the_host(&mut self) {
        self.tensors.forget_latch();
    }

    fn go(&mut self) -> Result<Option<DeviceTime>, Fault> {
        let Some(staged) = self.staged.take() else { return Ok(None) };
        if staged.latched {
            return self.pass_the_latch(&staged).map(Some);
        }
        let Staged { id, message, jobs, .. } = staged;
        self.tensors.show_inputs(&jobs).map_err(ours)?;
        self.wake()?;
        let answer = self.ask(Stage::Run, &message)?;
        self.rest()?;
        // On a GPU its work goes on while its process stands still. What is not there now is not there.
        self.tensors.take_outputs(&jobs).map_err(ours)?;
        match answer {
            (Answer::Done { id: said }, _) if said == id => Ok(None),
            (_, said) => Err(garbage(Stage::Run, "done with this id was expected", &said)),
        }
    }

    fn guards(&self) -> Vec<Guard> {
        self.guards.clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A last word for those who keep to the protocol; the group is killed whatever they do with it.
        if self.wake().is_ok() {
            let deadline = Instant::now() + Duration::from_secs_f64(self.limits.bye_seconds);
            let bye = self.write_up(Stage::Bye, &Request::Bye);
            if bye.is_ok_and(|bye| self.send(Stage::Bye, bye.as_bytes(), deadline).is_ok()) {
                self.group.wait(deadline.saturating_duration_since(Instant::now()));
            }
        }
    }
}

/// A failure of ours, or of the device, while a contestant was at it.
fn ours(error: Error) -> Fault {
    Fault::Start { reason: error.to_string() }
}

fn unblock(pipe: RawFd) -> io::Result<()> {
    // SAFETY: plain system calls on a pipe that its owner holds open.
    let flags = unsafe { libc::fcntl(pipe, libc::F_GETFL) };
    // SAFETY: a plain system call on the same pipe, with the flags that it had and one more.
    if flags < 0 || unsafe { libc::fcntl(pipe, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn garbage(stage: Stage, reason: &str, said: &str) -> Fault {
    Fault::Garbage { stage, reason: reason.to_owned(), line: quoted(said.trim_end()) }
}

/// The beginning of a text of a stranger's on one line, without what could disturb a terminal: a line of its own could
/// be taken for a verdict, and marks that turn the direction of writing have a text read as another.
fn quoted(text: &str) -> String {
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let shown = |c: char| match c {
        '\n' => '|',
        c if c.is_control() || turns(c) => '·',
        c => c,
    };
    text.chars().take(QUOTED).map(shown).collect()
}

/// The end of what was written to standard error, as the end of a sentence.
fn last_words(words: &std::fs::File) -> String {
    use std::os::unix::fs::FileExt;
    let length = words.metadata().map_or(0, |about| about.len());
    let start = length.saturating_sub(QUOTED as u64);
    let mut bytes = vec![0; (length - start) as usize];
    let read = words.read_at(&mut bytes, start).unwrap_or(0);
    let text = quoted(String::from_utf8_lossy(&bytes[..read]).trim());
    if text.is_empty() { String::new() } else { format!("; its last words: {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_one_line_that_reads_as_it_is_written() {
        let words = "no memory\nround 1: \u{202e}SSECCUS\u{2066}\u{1b}[2K";
        assert_eq!(quoted(words), "no memory|round 1: ·SSECCUS··[2K");
    }
}
