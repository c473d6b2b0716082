//! The contestants: anything that can be started, prepared and timed; usually a program of anyone's.
//!
//! A [`Contestant`] is who enters; [`Contestant::start`] makes a fresh [`Session`] of it, a process of its own where it
//! is a program. The referee prepares a session for a problem, stages jobs and lets it go. Whatever a session does
//! wrong is a
//! [`Fault`]: it costs the contestant the round and the referee nothing.

pub mod blank;
pub mod device;
mod fence;
mod latch;
mod limits;
mod lot;
mod memory;
mod program;
pub mod protocol;
pub mod seal;
pub(crate) mod turns;
mod workshop;

use serde::{Deserialize, Serialize};

pub use device::DeviceTime;
pub use fence::Guard;
pub use limits::{LONGEST_WAIT, Limits};
pub use lot::{Lot, Poison, Tensors};
pub use program::Program;
pub use protocol::Job;
pub use turns::{Accounts, Queued};
pub use workshop::Workshop;

/// What a contestant was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Being built.
    Build,
    /// Starting, until its `hello`.
    Hello,
    /// Preparing for a problem.
    Prepare,
    /// Running jobs.
    Run,
    /// Leaving.
    Bye,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Stage::Build => "build",
            Stage::Hello => "hello",
            Stage::Prepare => "prepare",
            Stage::Run => "run",
            Stage::Bye => "bye",
        })
    }
}

/// What a contestant did wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Fault {
    /// It could not be built.
    #[error("it does not build: {reason}")]
    Build {
        /// The build command's last words.
        reason: String,
    },
    /// It could not be started.
    #[error("it does not start: {reason}")]
    Start {
        /// Why.
        reason: String,
    },
    /// Its process ended.
    #[error("it ended during {stage} ({status}){words}")]
    Crash {
        /// What it was doing.
        stage: Stage,
        /// How it ended.
        status: String,
        /// The last of what it wrote to its standard error.
        words: String,
    },
    /// It did not answer in time.
    #[error("it did not answer {stage} within {seconds} s")]
    Hang {
        /// What it was doing.
        stage: Stage,
        /// The limit.
        seconds: f64,
    },
    /// It answered something else than the protocol asks for.
    #[error("its answer to {stage} is not of the protocol: {reason}; it said {line:?}")]
    Garbage {
        /// What it was doing.
        stage: Stage,
        /// What is wrong with the line.
        reason: String,
        /// The beginning of the line.
        line: String,
    },
    /// It cannot do a problem that has to be done.
    #[error("it does not support {problem}: {reason}")]
    Unsupported {
        /// The problem.
        problem: String,
        /// Its words.
        reason: String,
    },
    /// It computed something else.
    #[error("its result for {problem} is wrong: {what}")]
    Wrong {
        /// The problem.
        problem: String,
        /// What is wrong.
        what: String,
    },
    /// It took more than it may.
    #[error("it took {what}")]
    Excess {
        /// Of what, and how much.
        what: String,
    },
    /// It tampered with what is not its own.
    #[error("it tampered with {what}")]
    Tampering {
        /// With what, and how that was seen.
        what: String,
    },
}

impl Fault {
    /// Whether it says something of the contestant, wherever it runs. What does not build or start may lack something
    /// on this machine.
    pub fn is_its_own_doing(&self) -> bool {
        matches!(
            self,
            Fault::Crash { .. }
                | Fault::Hang { .. }
                | Fault::Garbage { .. }
                | Fault::Wrong { .. }
                | Fault::Excess { .. }
        )
    }

    /// Whether it was killed out of the blue, as the kernel does it where memory is short, whoever took that.
    pub fn is_a_kill(&self) -> bool {
        // As the standard library tells it, and a container's first process.
        let told = |status: &str| status.starts_with("signal: 9") || status == "exit status: 137";
        matches!(self, Fault::Crash { status, .. } if told(status))
    }
}

/// What a contestant is, for the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Its name.
    pub name: String,
    /// What kind of contestant it is, and what is run: a backend with its configuration, or a command.
    pub runs: String,
    /// Whether its code is ours. Nobody else's is trusted.
    pub trusted: bool,
}

/// A contestant's answer to a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It can run.
    Ready,
    /// It does not do this problem.
    Unsupported(String),
}

/// Who enters.
pub trait Contestant {
    /// What it is.
    fn about(&self) -> About;

    /// A fresh start, in a process of its own where it is a program.
    fn start(&self) -> Result<Box<dyn Session>, Fault>;

    /// The same, but for the greeting, which is the caller's next thing to do: several can load beside each other what
    /// takes them seconds.
    fn spawn(&self) -> Result<Box<dyn Session>, Fault> {
        self.start()
    }
}

/// A contestant that was started.
pub trait Session {
    /// Says hello to one that was spawned and not greeted yet. It stands still afterwards.
    fn greet(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// Whether it promises the same bits for the same inputs.
    fn deterministic(&self) -> bool;

    /// The files in which it finds its tensors.
    fn tensors(&mut self) -> &mut Tensors;

    /// Makes it ready for the problem that was laid out last. It stands still before and after.
    fn prepare(&mut self) -> Result<Readiness, Fault>;

    /// Has everything ready for these jobs but the word to begin. It stands still; what it did in its rest is a fault.
    /// Not timed.
    fn stage(&mut self, jobs: &[Job]) -> Result<(), Fault>;

    /// Has the next run that it is let go for begin after so many bytes went through the caches of the device that it
    /// computes on. Whether it has such a device; the processor's caches are the caller's to sweep.
    fn sweep(&mut self, _bytes: u64) -> bool {
        false
    }

    /// Whether it queues its runs behind a latch, so that a GPU's clock can time them.
    fn queues(&self) -> bool {
        false
    }

    /// Has the host's clock time it although it queues, because the other side does not.
    fn by_the_host(&mut self) {}

    /// Wakes it, has it do the staged jobs, and stops it where it stands, with all its threads and children. This is
    /// what is timed, by the caller: what it has not written when it said so it writes on the clock or not at all.
    /// Where the referee's own code has timed it on a device, that is what counts, and the caller's clock is the check.
    fn go(&mut self) -> Result<Option<DeviceTime>, Fault>;

    /// What the scheduler says of the run that it was let go for last. Not timed.
    fn queued(&mut self) -> Option<Queued> {
        None
    }

    /// What stands around it.
    fn guards(&self) -> Vec<Guard>;
}

/// Takes away what referees that are dead have left behind.
pub fn sweep() {
    fence::sweep();
    workshop::sweep();
}
