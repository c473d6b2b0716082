//! `hammerhead bench`: how fast, and how near to what the machine could do. The host's clock times cold and warm weights
//! (`rounds`); where a GPU is asked for by name, the device's own clock times calls on its memory (`gpu`).

mod args;
mod checked;
mod gpu;
mod record;
mod rotation;
mod rounds;
mod scaling;
mod tables;

use hammerhead::gpu::device;
use hammerhead::{Activation, Engine};
use serde::Serialize;
use testkit::cases::Suite;

pub use self::args::Args;
use crate::selection::{Chosen, Defaults};
use crate::{Error, Result, console, files};

/// Measures, prints and writes.
pub fn bench(args: &Args) -> Result<()> {
    let engine = args.how.engine()?;
    let on_device = engine.backends().iter().all(|backend| backend.layout() == device::LAYOUT);
    let activations: &[Activation] = if on_device { &[Activation::F16, Activation::NvFp4] } else { &[] };
    let suites = &[Suite::Dual, Suite::Group, Suite::Decode];
    let cases = args.selection.cases(Defaults { suites, activations, timed: !args.all })?;
    // Better now than after minutes of work.
    args.json.as_deref().map_or(Ok(()), files::check_report)?;
    if on_device { bench_device(args, &cases, &engine) } else { bench_host(args, &cases, &engine) }
}

fn bench_host(args: &Args, cases: &[Chosen], engine: &Engine) -> Result<()> {
    let record = rounds::measure(args, cases, engine)?;
    keep(args, &record)?;
    console::print(&tables::host(&record))?;
    console::remark(&tables::host_remarks(&record));
    Ok(())
}

fn bench_device(args: &Args, cases: &[Chosen], engine: &Engine) -> Result<()> {
    if args.scaling {
        return Err(Error::NoScaling { backend: engine.backends()[0].name() });
    }
    let (record, wrong) = gpu::measure(args, cases, engine)?;
    keep(args, &record)?;
    console::print(&tables::device(&record))?;
    console::remark(&tables::device_remarks(&record));
    wrong.iter().skip(1).for_each(|error| console::remark(&error.to_string()));
    wrong.into_iter().next().map_or(Ok(()), Err)
}

/// Writes what was measured to where it was asked for.
fn keep(args: &Args, record: &impl Serialize) -> Result<()> {
    match &args.json {
        Some(path) => files::write_report(path, &console::json_text(record)?),
        None => Ok(()),
    }
}
