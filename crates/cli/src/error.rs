//! Why a command failed. Each message is one line: where, what was found, what to do about it.

use std::io;
use std::path::PathBuf;

use format::tensors::Dtype;

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that ends a command early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes of a matrix or a file are not what they should be.
    #[error(transparent)]
    Format(#[from] format::Error),

    /// The operation was refused or could not be done.
    #[error(transparent)]
    Operation(#[from] hammerhead::Error),

    /// Something in the tank was refused or could not be done.
    #[error(transparent)]
    Tank(#[from] tank::Error),

    /// Ctrl-C.
    #[error("interrupted: {}", kept(*.measured))]
    Interrupted { measured: usize },

    /// A file of defaults that cannot be used.
    #[error("in {path:?}: {problem}")]
    Defaults { path: PathBuf, problem: String },

    /// A record that is not in the ledger.
    #[error("the ledger has no record {record}; it has {records}, see hammerhead tank log")]
    NoRecord { record: u64, records: usize },

    /// A hash that is not in the ledger.
    #[error(
        "no record of the ledger has the hash {hash:?}, among {records}; its end was cut off, this is another ledger, or fewer than {shortest} digits were given"
    )]
    NoHash { hash: String, shortest: usize, records: usize },

    /// A name that no part of the suite has.
    #[error("nothing of the suite is called {name:?}; `hammerhead tank exploits` lists it")]
    NoExploit { name: String },

    /// A referee that was fooled, or blames the honest.
    #[error("{failed} of the suite fooled the referee, or were blamed and are honest; the table says which")]
    Exploited { failed: usize },

    /// A season of which nothing could be played.
    #[error("nothing was played, because every round was blocked: {why}")]
    Blocked { why: String },

    /// The tuning cache is switched off.
    #[error("the tuning cache is switched off; name its folder with HAMMERHEAD_TUNING")]
    NoTuning,

    /// A kind of problems without a champion.
    #[error("there is no champion for {bucket:?}; see hammerhead tank champions")]
    NoChampion { bucket: String },

    /// A tensor of a problem file, or one that should be there.
    #[error("in {path:?}, tensor {name:?}: {problem}; {remedy}")]
    Tensor { path: PathBuf, name: String, problem: String, remedy: &'static str },

    /// Input and output are one file.
    #[error("the output {path:?} is the input file itself, which must not change while it is read; name another file")]
    SameFile { path: PathBuf },

    /// A place where no file can be put.
    #[error("cannot write {path:?}: {problem}; name another file, in a folder that exists")]
    Destination { path: PathBuf, problem: &'static str },

    /// Two results in one file.
    #[error("two results would go to {path:?}; give each a file of its own")]
    OneFile { path: PathBuf },

    /// A trial whose outcome no other process could read.
    #[error("what comes of trying ways cannot be kept for the other parts: {problem}; name a folder with {variable}")]
    NotKept { problem: String, variable: &'static str },

    /// A ledger that nobody has begun.
    #[error("there is no ledger {path:?} yet; begin one with hammerhead tank play, or name another with --ledger")]
    NoLedger { path: PathBuf },

    /// A community task needs torch.
    #[error(
        "{python:?} cannot import torch, which the task's own reference needs; name an interpreter that can with --python"
    )]
    NoTorch { python: String },

    /// A report could not be written.
    #[error("cannot write {path:?}: {cause}; check that its folder exists and that you may write there")]
    Write { path: PathBuf, cause: io::Error },

    /// The problem does not fit.
    #[error("{what} needs {} but {} are free; {remedy}", crate::table::bytes(*needed), crate::table::bytes(*free))]
    Memory { what: String, needed: f64, free: f64, remedy: &'static str },

    /// Two names that a quantised file would need for different tensors.
    #[error(
        "in {path:?}: quantising {tensor:?} makes a tensor {name:?}, which is there already; rename one, or leave {tensor:?} out with --tensor"
    )]
    Collision { path: PathBuf, tensor: String, name: String },

    /// A tensor that was asked for by name but cannot be quantised.
    #[error(
        "in {path:?}, tensor {name:?} ({dtype} {shape:?}) cannot be quantised: {problem}; leave it out of --tensor, or pad or convert it first"
    )]
    Unquantisable { path: PathBuf, name: String, dtype: Dtype, shape: Vec<usize>, problem: &'static str },

    /// A pattern without a tensor.
    #[error("no tensor of {path:?} matches --tensor {pattern:?}; it holds {examples}")]
    NoMatch { path: PathBuf, pattern: String, examples: String },

    /// A pattern without a quantised weight.
    #[error("no quantised weight of {path:?} matches --tensor {pattern:?}; it has {examples}")]
    NoWeight { path: PathBuf, pattern: String, examples: String },

    /// A gate that is not computed here.
    #[error(
        "{path:?} asks for the gate {name:?} ({told_by}), which is none of silu, gelu-tanh and gpt-oss; say which comes nearest with --gate"
    )]
    UnknownGate { path: PathBuf, name: String, told_by: String },

    /// An expert that is chosen but not there.
    #[error("{path:?}, layer {layer} has no {what}; {remedy}")]
    NoSuchExpert { path: PathBuf, layer: usize, what: String, remedy: &'static str },

    /// Tokens for another number of experts than are chosen.
    #[error(
        "{path:?} holds tokens of {groups} groups, but {experts} experts are chosen; give one group each, or a single `a` for all"
    )]
    TokenGroups { path: PathBuf, groups: usize, experts: usize },

    /// A selection without a case.
    #[error("no case of {suites} is there for its speed; add --all to take every case")]
    NoCases { suites: String },

    /// A suite that no clock is for.
    #[error("the suite {suite} is there to be checked, not to be timed: hammerhead verify --suite {suite}")]
    OnlyVerified { suite: &'static str },

    /// An option that a suite's cases have no use for.
    #[error(
        "{option} does not go with the suite {suite}, whose cases have their own; leave it out, or name other suites"
    )]
    SuiteOption { option: &'static str, suite: &'static str },

    /// A command or an option under its former name.
    #[error("{old} has another name now: {new}")]
    OldSpelling { old: &'static str, new: String },

    /// An option that only whole layers have.
    #[error("{option} is for whole layers, and {found}; {remedy}")]
    ProductOption { option: &'static str, found: &'static str, remedy: &'static str },

    /// An option that layers of experts do not go with.
    #[error("{option} does not go with layers of experts; {remedy}")]
    LayerOption { option: &'static str, remedy: &'static str },

    /// A file that holds no timings that can be read.
    #[error(
        "{path:?} is no record of timings: {problem}; give a file that hammerhead bench --export, benchmarks/beside.py or benchmarks/h200/peers.py wrote"
    )]
    Record { path: PathBuf, problem: String },

    /// A comparison that is not made on a device.
    #[error("{option} compares ways to compute on a processor's threads, of which {backend} uses none; leave it out")]
    NoScaling { option: &'static str, backend: &'static str },

    /// Kernels of an architecture for a device of another.
    #[error(
        "--arch {arch} does not go with --device {device}, which has compute capability {}.{} and does not run those \
         kernels; leave out --device, or ask for --arch {fitting}", capability.0, capability.1
    )]
    OtherArch { arch: String, device: String, capability: (i32, i32), fitting: String },

    /// A device that a backend does not compute on.
    #[error(
        "--backend {backend} does not go with --device {device}: only cuda computes on that GPU; leave out --backend, \
         or leave out --device to see what {backend} weighs on this machine"
    )]
    OtherBackend { backend: String, device: String },

    /// Results were wrong.
    #[error("{failed} of {all} checks failed; {remedy}")]
    Failed { failed: usize, all: usize, remedy: &'static str },

    /// A checkpoint is broken.
    #[error("{path:?} is broken, see the {errors} of grade error; repair or export it anew before it is loaded")]
    Broken { path: PathBuf, errors: String },

    /// Every case was refused, so there was nothing to check.
    #[error("nothing was checked: all {cases} cases are refused; the first because {reason}")]
    NothingChecked { cases: usize, reason: String },

    /// The simulator found something wrong with a kernel as it is.
    #[error("kernel {kernel} fails in the simulator: {finding}")]
    Faulty { kernel: String, finding: Box<sim::Finding> },

    /// A kernel that could not be run at all.
    #[error("{what}")]
    CannotCheck { what: String },

    /// The simulator found something wrong with a kernel.
    #[error("{findings} found in kernel {kernel}; see above")]
    Findings { findings: usize, kernel: String },

    /// A way of putting kernels together that there is not.
    #[error(
        "--way {number}: the kernels of {arch} are put together in {ways} ways; ask for 1 to {ways}, or for none to have all"
    )]
    NoSuchWay { number: u8, arch: &'static str, ways: usize },

    /// The simulator did not notice mistakes that it should, or noticed some that are none.
    #[error(
        "{missed} of {all} mutations were not caught, or were and are excused, or reasons are miscounted; try more --seeds, \
         or see what the trial's problems leave out"
    )]
    Missed { missed: usize, all: usize },

    /// A result was wrong where only its speed was asked for.
    #[error(
        "{case} is wrong on {backend} with {config} (seed {seed}): {first}; nothing is timed that is wrong, see hammerhead verify"
    )]
    Wrong { case: String, backend: &'static str, config: String, seed: u64, first: testkit::verify::Failure },

    /// Something could not be written as JSON.
    #[error("cannot write this report as JSON: {0}")]
    Json(#[from] serde_json::Error),

    /// Nobody reads stdout any more.
    #[error("stdout was closed")]
    PipeClosed,

    /// Stdout cannot be written for another reason.
    #[error("cannot write to stdout: {0}; check where it is redirected to")]
    Stdout(io::Error),
}

/// What became of what was measured before an interruption.
fn kept(measured: usize) -> String {
    match measured {
        0 => "nothing had been measured yet, so nothing was written".to_owned(),
        1 => "one case had been measured; it is printed, and written where that was asked for".to_owned(),
        many => format!("{many} cases had been measured; they are printed, and written where that was asked for"),
    }
}
