//! The page that shows a report.

use serde_json::Value;

use super::model::{self, Compared};
use super::part::Part;
use super::{Clocks, Report, WayReport};
use crate::{page, table};

/// The whole page.
pub fn html(report: &Report) -> String {
    let Report { device, trial, seconds, version, .. } = report;
    let unfinished = report.doing.iter().map(|doing| paragraph(&format!("Not finished. Written while {doing}.")));
    let mut body = unfinished.collect::<String>() + &device_section(report);
    body += &section("Ways", &ways(report));
    body += &section("Verified", &verified(&report.verify));
    body += &section("Measured, and what the model says", &measured(report));
    body += &section("Clocks", &clocks(&report.clocks));
    let about = format!(
        "{} ways tried, {} wrong; hammerhead {version}, {seconds:.0} s, kernels of family {}",
        trial.ways.len(),
        trial.wrong(),
        device.family
    );
    page::html(&format!("First contact with {}", device.name), &about, &body)
}

fn section(title: &str, body: &str) -> String {
    format!("<section>\n<h2>{}</h2>\n{body}</section>\n", page::escape(title))
}

fn paragraph(text: &str) -> String {
    format!("<p>{}</p>\n", page::escape(text))
}

fn device_section(report: &Report) -> String {
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
    section("Device", &page::table(&["what", "found"], rows.iter().map(<[String; 2]>::as_slice)))
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
        body += &page::table(&["left out of plans"], left_out.iter().map(<[String; 1]>::as_slice));
    } else if trial.left_out.is_some() {
        body += &paragraph("No way was left out of plans.");
    }
    let row = |way: &WayReport| {
        let found = way.wrong.clone().unwrap_or_else(|| "right".to_owned());
        [way.way.clone(), found, way.problem.clone(), way.config.clone(), format!(">{:.2}", way.seconds)]
    };
    let rows: Vec<[String; 5]> = trial.ways.iter().map(row).collect();
    let all =
        page::table(&["way", "found", "problem", "configuration", ">s"], rows.iter().map(<[String; 5]>::as_slice));
    body + &format!("<details><summary>All {} ways, {:.0} s</summary>\n{all}</details>\n", rows.len(), trial.seconds)
}

fn verified(parts: &[Part]) -> String {
    let row = |part: &Part| {
        let count = |name: &str| part.number(name).map_or_else(|| ">".to_owned(), |number| format!(">{number}"));
        let words = part.failed.clone().unwrap_or_else(|| "right".to_owned());
        [part.command.clone(), count("passed"), count("failed"), format!(">{:.1}", part.seconds), words]
    };
    let rows: Vec<[String; 5]> = parts.iter().map(row).collect();
    let headings = ["command", ">passed", ">failed", ">s", "found"];
    let mut body = page::table(&headings, rows.iter().map(<[String; 5]>::as_slice));
    let failures = parts.iter().filter_map(|part| part.said.as_ref()?.get("failures")?.as_array()).flatten();
    let text = |failure: &Value, name: &str| failure.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let each = |failure: &Value| ["case", "config", "first"].map(|name| text(failure, name));
    let rows: Vec<[String; 3]> = failures.map(each).collect();
    if !rows.is_empty() {
        body += &page::table(&["case", "configuration", "what was wrong"], rows.iter().map(<[String; 3]>::as_slice));
    }
    body
}

fn measured(report: &Report) -> String {
    let failed = report.bench.iter().filter_map(|part| Some((part, part.failed.as_ref()?)));
    let mut body: String = failed.map(|(part, failed)| paragraph(&format!("{}: {failed}", part.command))).collect();
    let right = |cells: [String; 7]| {
        let mut cells = cells;
        cells[2..6].iter_mut().for_each(|cell| cell.insert(0, '>'));
        cells
    };
    let rows: Vec<[String; 7]> = report.model.iter().map(|compared| right(model::row(compared))).collect();
    body += &page::table(&model::HEADINGS, rows.iter().map(<[String; 7]>::as_slice));
    body += &paragraph(
        "Burst is a call after a pause, sustained one under load, by the device's clock; planned is what the planner goes by. \
         Below, the same calls from first principles, phase by phase. Phases of a kernel cannot be timed apart.",
    );
    body + &report.model.iter().map(phases).collect::<String>()
}

fn phases(compared: &Compared) -> String {
    let Compared { problem, activation, config, burst, predicted, phases, .. } = compared;
    let row = |phase: &model::PhaseRow| {
        [phase.phase.to_owned(), format!(">{}", table::seconds(phase.seconds)), phase.bound_by.to_owned()]
    };
    let rows: Vec<[String; 3]> = phases.iter().map(row).collect();
    let title = format!(
        "{problem} {activation}: {} predicted, {} measured ({:.2})",
        table::seconds(*predicted),
        table::seconds(*burst),
        predicted / burst
    );
    let table = page::table(&["phase", ">predicted", "bound by"], rows.iter().map(<[String; 3]>::as_slice));
    format!("<details><summary>{}</summary>\n{}{table}</details>\n", page::escape(&title), paragraph(config))
}

fn clocks(clocks: &[Clocks]) -> String {
    if clocks.is_empty() {
        return paragraph("NVIDIA's management library was not there to tell of clocks and power.");
    }
    let range = |name: &str, unit: &str, values: Vec<f64>| {
        let mut values = values;
        values.sort_by(f64::total_cmp);
        let at = |part: f64| values.get((part * (values.len().max(1) - 1) as f64) as usize).copied();
        let cell = |value: Option<f64>| value.map_or_else(|| ">".to_owned(), |value| format!(">{value:.0} {unit}"));
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
    page::table(&["while it was timed", ">least", ">median", ">most"], rows.iter().map(<[String; 4]>::as_slice))
        + &paragraph(&held)
}
