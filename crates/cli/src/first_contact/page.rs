//! The page that shows a report.

use page::{Page, details, escape};
use serde_json::Value;

use super::model::{self, Compared};
use super::part::Part;
use super::{Clocks, Report, WayReport};
use crate::table;

/// The whole page.
pub fn html(report: &Report) -> String {
    let Report { device, trial, seconds, version, .. } = report;
    let unfinished = report.doing.iter().map(|doing| paragraph(&format!("Not finished. Written while {doing}.")));
    let about = format!(
        "{} ways tried, {} wrong; hammerhead {version}, {seconds:.0} s, kernels of family {}",
        trial.ways.len(),
        trial.wrong(),
        device.family
    );
    let about = paragraph(&about) + &unfinished.collect::<String>();
    Page::new(&format!("First contact with {}", device.name), &about)
        .section("device", "Device", &device_table(report))
        .section("ways", "Ways", &ways(report))
        .section("verified", "Verified", &verified(&report.verify))
        .section("measured", "Measured, and what the model says", &measured(report))
        .section("clocks", "Clocks", &clocks(&report.clocks))
        .html()
}

/// A table of text.
fn texts<const N: usize>(headings: &[&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    page::table(headings, rows.into_iter().map(|cells| cells.map(|cell| escape(&cell))))
}

fn paragraph(text: &str) -> String {
    format!("<p>{}</p>\n", escape(text))
}

fn device_table(report: &Report) -> String {
    let device = &report.device;
    let rows = [
        ("GPU", device.name.clone()),
        ("compute capability", device.capability.clone()),
        ("multiprocessors", device.multiprocessors.to_string()),
        ("highest clock", format!("{:.0} MHz", device.clock_hertz / 1e6)),
        ("memory", format!("{}, {:.0} GB/s", table::bytes(device.memory_bytes as f64), device.memory_bandwidth / 1e9)),
        ("L2", table::bytes(device.cache_bytes as f64)),
        ("shared memory of a block", table::bytes(device.shared_bytes as f64)),
        ("driver", format!("{}, CUDA {}", device.driver, device.cuda)),
        ("ptxas", device.ptxas.clone().unwrap_or_else(|| "not here, and not needed".to_owned())),
        ("kernels", device.choice.clone()),
        ("host", format!("{}, {} cores", report.machine.cpu, report.machine.cores)),
    ];
    let rows = rows.map(|(name, value)| [name.to_owned(), value]);
    texts(&["what", "found"], rows)
}

fn ways(report: &Report) -> String {
    let trial = &report.trial;
    let mut body = String::new();
    if let Some(refused) = &trial.refused {
        body += &paragraph(&format!("The GPU cannot be used: {refused}"));
    }
    let left_out = trial.left_out.iter().flatten();
    let left_out: Vec<[String; 1]> = left_out.map(|left_out| [left_out.clone()]).collect();
    if !left_out.is_empty() {
        body += &texts(&["left out of plans"], left_out);
    } else if trial.left_out.is_some() {
        body += &paragraph("No way was left out of plans.");
    }
    let row = |way: &WayReport| {
        let found = way.wrong.clone().unwrap_or_else(|| "right".to_owned());
        [way.way.clone(), found, way.problem.clone(), way.config.clone(), format!("{:.2}", way.seconds)]
    };
    let rows: Vec<[String; 5]> = trial.ways.iter().map(row).collect();
    let summary = format!("All {} ways, {:.0} s", rows.len(), trial.seconds);
    body + &details(&summary, &texts(&["way", "found", "problem", "configuration", ">s"], rows))
}

fn verified(parts: &[Part]) -> String {
    let row = |part: &Part| {
        let count = |name: &str| part.number(name).map(|number| number.to_string()).unwrap_or_default();
        let words = part.failed.clone().unwrap_or_else(|| "right".to_owned());
        [part.command.clone(), count("passed"), count("failed"), format!("{:.1}", part.seconds), words]
    };
    let mut body = texts(&["command", ">passed", ">failed", ">s", "found"], parts.iter().map(row));
    let failures = parts.iter().filter_map(|part| part.said.as_ref()?.get("failures")?.as_array()).flatten();
    let text = |failure: &Value, name: &str| failure.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let each = |failure: &Value| ["case", "config", "first"].map(|name| text(failure, name));
    let rows: Vec<[String; 3]> = failures.map(each).collect();
    if !rows.is_empty() {
        body += &texts(&["case", "configuration", "what was wrong"], rows);
    }
    body
}

fn measured(report: &Report) -> String {
    let failed = report.bench.iter().filter_map(|part| Some((part, part.failed.as_ref()?)));
    let mut body: String = failed.map(|(part, failed)| paragraph(&format!("{}: {failed}", part.command))).collect();
    body += &texts(&model::HEADINGS, report.model.iter().map(model::row));
    body += &paragraph(
        "Burst is a call after a pause, sustained one under load, by the device's clock; planned is what the planner goes by. \
         Below, the same calls from first principles, phase by phase. Phases of a kernel cannot be timed apart.",
    );
    body + &report.model.iter().map(phases).collect::<String>()
}

fn phases(compared: &Compared) -> String {
    let Compared { problem, activation, config, burst, predicted, phases, .. } = compared;
    let row =
        |phase: &model::PhaseRow| [phase.phase.to_owned(), table::seconds(phase.seconds), phase.bound_by.to_owned()];
    let title = format!(
        "{problem} {activation}: {} predicted, {} measured ({:.2})",
        table::seconds(*predicted),
        table::seconds(*burst),
        predicted / burst
    );
    let table = texts(&["phase", ">predicted", "bound by"], phases.iter().map(row));
    details(&escape(&title), &(paragraph(config) + &table))
}

fn clocks(clocks: &[Clocks]) -> String {
    if clocks.is_empty() {
        return paragraph("NVIDIA's management library was not there to tell of clocks and power.");
    }
    let range = |name: &str, unit: &str, values: Vec<f64>| {
        let mut values = values;
        values.sort_by(f64::total_cmp);
        let at = |part: f64| values.get((part * (values.len().max(1) - 1) as f64) as usize).copied();
        let cell = |value: Option<f64>| value.map(|value| format!("{value:.0} {unit}")).unwrap_or_default();
        [name.to_owned(), cell(at(0.0)), cell(at(0.5)), cell(at(1.0))]
    };
    let each = |value: fn(&Clocks) -> Option<f64>| clocks.iter().filter_map(value).collect::<Vec<f64>>();
    let rows = [
        range("multiprocessors", "MHz", each(|c| c.clock_hertz.map(|hertz| hertz / 1e6))),
        range("memory", "MHz", each(|c| c.memory_clock_hertz.map(|hertz| hertz / 1e6))),
        range("power", "W", each(|c| c.watts)),
        range("temperature", "°C", each(|c| c.celsius)),
    ];
    let mut held: Vec<&str> = clocks.iter().flat_map(|clocks| clocks.held_by.iter().copied()).collect();
    held.sort_unstable();
    held.dedup();
    let held = if held.is_empty() {
        "Nothing held the clock down.".to_owned()
    } else {
        format!("Held down by {}.", held.join(", "))
    };
    texts(&["while it was timed", ">least", ">median", ">most"], rows) + &paragraph(&held)
}
