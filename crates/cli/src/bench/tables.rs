//! What was measured, as tables for people.

use super::record::{DeviceCeilings, DeviceRecord, HostRecord};
use super::rotation::ROTATION;
use super::scaling::Scaling;
use crate::advice;
use crate::computed::{COPIES_NOTE, Computed};
use crate::table::{self, Table};
use crate::timing::Spread;

/// Cases timed by the host's clock.
pub fn host(record: &HostRecord) -> String {
    let mut table =
        Table::new(&["shape m×n×k", ">cold", ">p10…p90", ">floor", ">warm", ">GFLOP/s", "a/gate/c", "on", ">bound"]);
    let mut lukewarm = false;
    for case in &record.cases {
        let short = case.cold_bytes < ROTATION;
        lukewarm |= short;
        let range = |spread: &Spread| table::seconds_between(spread.p10, spread.p90);
        table.row([
            case.computed.planned.sizes(),
            table::seconds(case.cold.median) + if short { "*" } else { "" },
            range(&case.cold),
            table::of_floor(case.cold_of_floor),
            table::seconds(case.warm.median),
            table::three_digits(case.computed.flops / case.warm.median / 1e9),
            case.computed.types(),
            case.computed.planned.backend_text(),
            table::of_bound(case.computed.max_error_of_bound),
        ]);
    }
    let mut text = table.text();
    if lukewarm {
        text += "* less than 1.2 GB of weights could be rotated, so caches may have helped\n";
    }
    if record.cases.iter().any(|case| case.computed.planned.copies_included) {
        text += COPIES_NOTE;
    }
    text + &scaling(record)
}

/// How every case was computed, what bounds it by the model, and what to try against that.
pub fn configurations<'a>(cases: impl Iterator<Item = &'a Computed>) -> String {
    let mut table = Table::new(&["shape m×n×k", "backend", "configuration", "bound by"]);
    let mut bounds = Vec::new();
    for Computed { planned, .. } in cases {
        let (config, bound_by) = (planned.config.clone(), planned.bound_by);
        table.row([planned.problem.clone(), planned.backend_text(), config, bound_by.to_owned()]);
        bounds.push(bound_by);
    }
    table.text() + &advice::lines(bounds.into_iter())
}

/// What threads and grouping brought, where that was asked for.
fn scaling(record: &HostRecord) -> String {
    let mut table =
        Table::new(&["shape m×n×k", ">1 thread ÷ all", ">p10…p90", ">groups together ÷ one by one", ">p10…p90"]);
    for (case, scaling) in record.cases.iter().filter_map(|case| Some((case, case.scaling?))) {
        let median = |ratios: Option<Spread>| ratios.map_or(String::new(), |ratios| format!("{:.2}", ratios.median));
        let range = |ratios: Option<Spread>| {
            ratios.map_or(String::new(), |ratios| format!("{:.2}…{:.2}", ratios.p10, ratios.p90))
        };
        let Scaling { one_thread, grouped } = scaling;
        let problem = case.computed.planned.problem.clone();
        table.row([problem, median(one_thread), range(one_thread), median(grouped), range(grouped)]);
    }
    if record.cases.iter().any(|case| case.scaling.is_some()) { table.text() } else { String::new() }
}

/// What stands beside the cases of the host's clock.
pub fn host_remarks(record: &HostRecord) -> String {
    let machine = format!("seed {}, {} threads, {}", record.head.seed, record.threads, record.machine.cpu);
    record.ceilings.as_ref().map_or(machine.clone(), |rates| format!("{machine}\n{}", rates.text()))
}

/// Cases timed by a device's clock.
pub fn device(record: &DeviceRecord) -> String {
    let mut table = Table::new(&[
        "shape m×n×k",
        ">burst µs",
        ">p10…p90",
        ">floor",
        ">sustained µs",
        ">TFLOP/s",
        "a/gate/c",
        "on",
        ">bound",
    ]);
    let microseconds = |seconds: f64| format!("{:.2}", seconds * 1e6);
    let range = |spread: &Spread| format!("{}…{}", microseconds(spread.p10), microseconds(spread.p90));
    for case in &record.cases {
        table.row([
            case.computed.planned.sizes(),
            microseconds(case.burst.median),
            range(&case.burst),
            table::of_floor(Some(case.burst_of_floor)),
            microseconds(case.sustained.median),
            table::three_digits(case.computed.flops / case.burst.median / 1e12),
            case.computed.types(),
            case.computed.planned.backend.to_owned(),
            table::of_bound(case.computed.max_error_of_bound),
        ]);
    }
    table.text()
}

/// What stands beside the cases of a device's clock.
pub fn device_remarks(record: &DeviceRecord) -> String {
    let DeviceCeilings { flops_per_second, bytes_per_second } = record.ceilings;
    format!(
        "seed {}, {}; copies to and from the host are not part of these times; ceilings: {} TFLOP/s (known), {} TB/s read and written (a copy in this run)",
        record.head.seed,
        record.device.name,
        table::three_digits(flops_per_second / 1e12),
        table::three_digits(bytes_per_second / 1e12),
    )
}
