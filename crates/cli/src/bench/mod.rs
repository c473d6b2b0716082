//! `hammerhead bench`: how fast, and how near to what the machine could do. The host's clock times cold and warm
//! weights (`rounds`), whole layers of experts (`layers`), or the planner's choice against its other candidates
//! (`regret`); where a GPU is asked for by name, the device's own clock times calls on its memory (`gpu`).

mod args;
mod checked;
mod export;
mod gpu;
mod layers;
mod page;
mod reading;
mod record;
mod regret;
mod rotation;
mod rounds;
mod scaling;
mod stop;
mod tables;

use std::path::PathBuf;

use hammerhead::{Activation, Engine};
use serde::Serialize;
use testkit::cases::Suite;
use testkit::moe::Model;

pub use self::args::Args;
use self::reading::Record;
use crate::computed::{Computed, on_device};
use crate::selection::{Chosen, Defaults};
use crate::{Error, Result, console, files};

/// The exit status after Ctrl-C, as shells have it.
pub const INTERRUPTED: u8 = 130;

/// Measures, prints and writes.
pub fn bench(args: &Args) -> Result<()> {
    let engine = args.how.engine()?;
    // Where a GPU is one of several, what counts is what a caller waits for, copies included.
    let device_alone = engine.backends().iter().all(|backend| on_device(*backend));
    let activations: &[Activation] = if device_alone { &[Activation::F16, Activation::NvFp4] } else { &[] };
    let suites = &[Suite::Dual, Suite::Group, Suite::Decode];
    let cases = args.selection.cases(Defaults { suites, activations, timed: !args.all })?;
    args.selection.expect_timed()?;
    let models = args.selection.models(&args.layers)?;
    if !models.is_empty() && !cases.is_empty() {
        return Err(Error::LayerOption {
            option: "another suite or a shape",
            remedy: "measure them in a run of their own",
        });
    }
    // Better now than after minutes of work.
    let places: Vec<&PathBuf> = args.export.iter().chain(&args.html).collect();
    for (index, path) in places.iter().enumerate() {
        if places[..index].iter().any(|other| files::same_place(other, path)) {
            return Err(Error::OneFile { path: path.to_path_buf() });
        }
        files::check_report(path)?;
    }
    args.export.iter().try_for_each(|path| files::Form::of(path).map(drop))?;
    let against = args.against.iter().map(|path| Record::open(path)).collect::<Result<Vec<Record>>>()?;
    let results = Results { args, against };
    stop::listen();
    if !models.is_empty() {
        return bench_layers(results, &models, &engine);
    }
    if device_alone { bench_device(results, &cases, &engine) } else { bench_host(results, &cases, &engine) }
}

/// Where results go beside the terminal, and what they stand beside there.
struct Results<'a> {
    args: &'a Args,
    against: Vec<Record>,
}

impl Results<'_> {
    /// Writes what was measured to where it was asked for, and prints it. All but JSON is made from what a reader of
    /// the record would see.
    fn keep(&self, record: &impl Serialize, measured: usize, tables: impl FnOnce() -> String) -> Result<()> {
        if measured == 0 {
            stop::check(measured)?;
        }
        let text = console::json_text(record)?;
        for path in &self.args.export {
            files::write_report(path, &export::written(path, &text)?)?;
        }
        if let Some(path) = &self.args.html {
            let own = Record::read("this run", &text);
            let own = own.map_err(|problem| Error::Record { path: path.clone(), problem })?;
            files::write_report(path, &page::html(&own, &self.against))?;
        }
        if self.args.json { console::print(&text) } else { console::print(&tables()) }
    }

    /// Tables with the configurations behind them, where those were asked for.
    fn explained<'c>(&self, tables: String, cases: impl Iterator<Item = &'c Computed>) -> String {
        if self.args.explain { tables + &tables::configurations(cases) } else { tables }
    }
}

fn bench_layers(results: Results<'_>, models: &[Model], engine: &Engine) -> Result<()> {
    let args = results.args;
    let option = [(args.scaling, "--scaling"), (args.regret, "--regret")].into_iter().find(|(asked, _)| *asked);
    if let Some((_, option)) = option {
        return Err(Error::LayerOption { option, remedy: "leave it out" });
    }
    let record = layers::measure(args, models, engine)?;
    results.keep(&record, record.cases.len(), || layers::table(&record))?;
    console::remark(&layers::remarks(&record));
    stop::check(record.cases.len())
}

fn bench_host(results: Results<'_>, cases: &[Chosen], engine: &Engine) -> Result<()> {
    if results.args.regret {
        let record = regret::measure(results.args, cases, engine)?;
        results.keep(&record, record.cases.len(), || regret::table(&record))?;
        return stop::check(record.cases.len());
    }
    let record = rounds::measure(results.args, cases, engine)?;
    let computed = record.cases.iter().map(|case| &case.computed);
    results.keep(&record, record.cases.len(), || results.explained(tables::host(&record), computed))?;
    console::remark(&tables::host_remarks(&record));
    stop::check(record.cases.len())
}

fn bench_device(results: Results<'_>, cases: &[Chosen], engine: &Engine) -> Result<()> {
    let args = results.args;
    let option = [(args.scaling, "--scaling"), (args.regret, "--regret")].into_iter().find(|(asked, _)| *asked);
    if let Some((_, option)) = option {
        return Err(Error::NoScaling { option, backend: engine.backends()[0].name() });
    }
    let (record, wrong) = gpu::measure(results.args, cases, engine)?;
    let computed = record.cases.iter().map(|case| &case.computed);
    results.keep(&record, record.cases.len(), || results.explained(tables::device(&record), computed))?;
    console::remark(&tables::device_remarks(&record));
    wrong.iter().skip(1).for_each(|error| console::remark(&error.to_string()));
    wrong.into_iter().next().map_or_else(|| stop::check(record.cases.len()), Err)
}
