//! What is kept of a measurement: what `--export` writes, and what the tables are made from.

use hammerhead::Engine;
use hammerhead::machine::Machine;
use serde::Serialize;
use tank::ledger;

use super::scaling::Scaling;
use super::stop;
use crate::computed::Computed;
use crate::floor::Rates;
use crate::timing::Spread;

/// The version of the layout.
const SCHEMA: u32 = 1;

/// What every record begins with.
#[derive(Debug, Serialize)]
pub struct Head {
    schema: u32,
    version: &'static str,
    /// When it was written, and by which command.
    at: String,
    command: String,
    /// Whether Ctrl-C ended it before every case had had its time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
    /// The backends that were planned among.
    backend: String,
    pub seed: u64,
}

impl Head {
    /// What is known before anything is measured.
    pub fn new(engine: &Engine, seed: u64) -> Self {
        let backend = engine.backends().iter().map(|b| b.name()).collect::<Vec<_>>().join(", ");
        let (version, at, command) = (env!("CARGO_PKG_VERSION"), ledger::now(), command());
        Self { schema: SCHEMA, version, at, command, interrupted: stop::asked(), backend, seed }
    }
}

/// The command as one would type it again.
fn command() -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_=./,:+×".contains(c);
    let quoted = |word: String| match !word.is_empty() && word.chars().all(plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    let words = std::env::args_os().skip(1).map(|word| quoted(word.to_string_lossy().into_owned()));
    std::iter::once("hammerhead".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Cases that were timed by the host's clock.
#[derive(Debug, Serialize)]
pub struct HostRecord {
    #[serde(flatten)]
    pub head: Head,
    pub machine: Machine,
    pub threads: usize,
    pub ceilings: Option<Rates>,
    pub cases: Vec<HostCase>,
}

/// A case with cold and with warm weights.
#[derive(Debug, Serialize)]
pub struct HostCase {
    #[serde(flatten)]
    pub computed: Computed,
    pub weight_bytes: f64,
    pub cold_copies: usize,
    pub cold_bytes: f64,
    pub cold: Spread,
    pub warm: Spread,
    pub floor_seconds: Option<f64>,
    pub cold_of_floor: Option<f64>,
    pub warm_of_floor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
}

/// Cases that were timed by a device's own clock.
#[derive(Debug, Serialize)]
pub struct DeviceRecord {
    #[serde(flatten)]
    pub head: Head,
    pub device: Device,
    pub ceilings: DeviceCeilings,
    /// Cases that were wrong, which are not timed.
    pub wrong: Vec<String>,
    pub cases: Vec<DeviceCase>,
}

/// A device as its driver describes it.
#[derive(Debug, Serialize)]
pub struct Device {
    pub name: String,
    pub multiprocessors: u32,
    pub cache_bytes: usize,
    pub driver: i32,
}

/// What a device could do at most.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DeviceCeilings {
    /// Half-precision operations per second of the tensor cores; a constant.
    pub flops_per_second: f64,
    /// Bytes per second of its memory, measured with a copy in this run.
    pub bytes_per_second: f64,
}

/// A case after a pause and under load.
#[derive(Debug, Serialize)]
pub struct DeviceCase {
    #[serde(flatten)]
    pub computed: Computed,
    pub bytes: f64,
    pub copies: usize,
    pub rotated_bytes: usize,
    pub burst: Spread,
    pub sustained: Spread,
    pub floor_seconds: f64,
    pub burst_of_floor: f64,
    pub sustained_of_floor: f64,
}
