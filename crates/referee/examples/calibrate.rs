//! How often the referee is right: the table of `docs/referee.md`, made again.
//!
//! `cargo run --release -p hammerhead-referee --example calibrate [SITTINGS [SEED [percentiles | BUDGET]]]`: a budget
//! is in seconds of the synthetic clock, on which a pair of processes takes one third of a second.

use referee::calibration::{Characteristics, characteristics, worlds};
use referee::stats::Interval;
use referee::{RefereeSettings, Terms};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let sittings: usize = arguments.next().map_or(Ok(1000), |text| text.parse())?;
    let seed: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let mut settings = RefereeSettings::default();
    let mut terms = Terms::default();
    match arguments.next().as_deref() {
        Some("percentiles") => settings.timing.interval = Interval::Percentiles,
        budget => terms.budget_seconds = budget.map(str::parse).transpose()?,
    }
    println!(
        "| machine | truth | faster | seemed | slower | mixed | inconclusive | void | coverage | of shapes | ± | quartets | flattery |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
        let rows: Vec<_> = worlds()
            .into_iter()
            .map(|(name, truth, world)| {
                let (settings, terms) = (&settings, &terms);
                (name, truth, scope.spawn(move || characteristics(&world, settings, terms, sittings, seed)))
            })
            .collect();
        for (name, truth, row) in rows {
            let c = row.join().map_err(|_| "a simulation panicked")??;
            println!("{}", line(name, truth, &c));
        }
        Ok(())
    })
}

fn line(name: &str, truth: &str, c: &Characteristics) -> String {
    let percent = |x: f64| format!("{:.1} %", 100.0 * x);
    let cells = [c.faster, c.seemed_faster, c.slower, c.mixed, c.inconclusive, c.void, c.coverage, c.shape_coverage];
    let cells = cells.map(percent).join(" | ");
    format!(
        "| {name} | {truth} | {cells} | {:.2} % | {:.0} | {:+.2} % |",
        100.0 * c.half_width,
        c.quartets,
        100.0 * c.flattery
    )
}
