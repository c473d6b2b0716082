//! What was timed, beside what the model says of the same configuration, phase by phase.
//!
//! A kernel's phases cannot be timed apart without changing it, so they are predicted one by one and measured as a
//! whole.

use gpu::plan;
use hammerhead::{Gate, Output, Problem, Request, Shape};
use serde::Serialize;
use serde_json::Value;

use crate::table::{self, Table};

/// A problem that was timed, and its prediction.
#[derive(Debug, Serialize)]
pub struct Compared {
    pub problem: String,
    pub activation: String,
    pub config: String,
    pub way: String,
    /// Median seconds after a pause, and under load.
    pub burst: f64,
    pub sustained: f64,
    /// What plans are made by.
    pub planned: f64,
    /// What phases add up to, from first principles.
    pub predicted: f64,
    pub phases: Vec<PhaseRow>,
}

#[derive(Debug, Serialize)]
pub struct PhaseRow {
    pub phase: &'static str,
    pub seconds: f64,
    pub bound_by: &'static str,
}

/// Every case of a record of `bench`, as far as it can be read.
pub fn compare(device: usize, record: &Value) -> Vec<Compared> {
    let cases = record.get("cases").and_then(Value::as_array);
    cases.map_or(&[][..], Vec::as_slice).iter().filter_map(|case| compared(device, case)).collect()
}

fn compared(device: usize, case: &Value) -> Option<Compared> {
    let gpu::device::Device { family, facts, .. } = gpu::device::Device::of(device).ok()?;
    let text = |name: &str| case.get(name).and_then(Value::as_str);
    let median = |name: &str| case.get(name)?.get("median")?.as_f64();
    let groups: Vec<[usize; 3]> = serde_json::from_value(case.get("groups")?.clone()).ok()?;
    let groups = groups.into_iter().map(|[m, n, k]| Shape::new(m, n, k)).collect();
    let gate: Gate = text("gate")?.parse().ok()?;
    let output: Output = text("output")?.parse().ok()?;
    let problem = Problem::new(groups, gate, text("activation")?.parse().ok()?, output).ok()?;
    let config = text("config")?.parse::<Request>().ok()?.complete()?;
    let phases = plan::phases(*family, &problem, &config, facts).ok()?;
    Some(Compared {
        problem: problem.to_string(),
        activation: problem.activation().to_string(),
        config: config.to_string(),
        way: plan::way(*family, &problem, &config, facts).ok()?.to_string(),
        burst: median("burst")?,
        sustained: median("sustained")?,
        planned: plan::cost(*family, &problem, &config, facts).ok()?.seconds,
        predicted: phases.iter().map(|phase| phase.seconds).sum(),
        phases: phases.iter().map(|p| PhaseRow { phase: p.what, seconds: p.seconds, bound_by: p.bound_by }).collect(),
    })
}

/// The headings of a table of these, and its rows.
pub const HEADINGS: [&str; 7] = ["problem", "tokens", ">burst", ">sustained", ">planned", ">planned / burst", "way"];

/// A row of such a table.
pub fn row(compared: &Compared) -> [String; 7] {
    let Compared { problem, activation, way, burst, sustained, planned, .. } = compared;
    let times = [*burst, *sustained, *planned].map(table::seconds);
    let [burst_text, sustained, planned_text] = times;
    let ratio = format!("{:.2}", planned / burst);
    [problem.clone(), activation.clone(), burst_text, sustained, planned_text, ratio, way.clone()]
}

/// What was timed beside what the planner goes by.
pub fn table(all: &[Compared]) -> String {
    let mut table = Table::new(&HEADINGS);
    all.iter().for_each(|compared| table.row(row(compared)));
    if all.is_empty() { String::new() } else { table.text() }
}
