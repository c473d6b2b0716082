//! `hammerhead doctor`: what every loader must get right about a checkpoint, and what happens with one that does not.
//!
//! The checkpoint is surveyed once ([`format::checkpoint::Survey`]); every check looks at the survey and adds findings.
//! [`loaders`] has the rules of other programs, [`versions`] where they were read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use format::checkpoint::{Checkpoint, Module, Survey};
use serde::Serialize;

use crate::model::{self, Reading};
use crate::{Error, Result, console, files};

mod declared;
mod finding;
mod groups;
mod loaders;
mod page;
mod scales;
mod structure;
mod text;
mod versions;

use finding::{Finding, Findings, Grade};
use groups::Merge;
use loaders::Loader;

/// Say what loaders may get wrong about a checkpoint
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Say what every loader must get right about a checkpoint, and what those do with it that do not: scales that \
    are broken, inverted, missing or different between matrices that others merge, with the error that merging makes here; \
    declarations that the tensors contradict; sizes that kernels refuse; and what transformers, vLLM and llama.cpp would do, \
    by the rules of the versions that are named. Scales are read, weights are not.\n\n\
    A finding is an error (the checkpoint is broken), a warning (loaders will differ) or a note. The exit status is 1 if \
    there is an error. MODEL is what hammerhead inspect takes.\n\n\
    Examples:\n  \
    hammerhead doctor Qwen3-30B-A3B-NVFP4\n  \
    hammerhead doctor model.gguf --json\n  \
    hammerhead doctor Qwen3-30B-A3B-NVFP4 --html report.html"
)]
pub struct Args {
    /// The model to look at
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write the report as one HTML page, too
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
}

#[derive(Serialize)]
struct Report {
    model: String,
    model_type: Option<String>,
    /// What the model says it was quantised by, and in which file.
    declared: Vec<String>,
    errors: usize,
    warnings: usize,
    notes: usize,
    findings: Vec<Finding>,
    loaders: Vec<Loader>,
    /// What keeping one global scale for several matrices does to each layer.
    merges: Vec<Merge>,
    /// How many matrices are stored in which way.
    stored: BTreeMap<String, usize>,
    /// The same by layer, consecutive layers that are alike in one.
    layers: Vec<Stored>,
}

/// How the matrices of layers that are alike are stored.
#[derive(Serialize)]
struct Stored {
    tower: String,
    first: usize,
    last: usize,
    stored: BTreeMap<String, usize>,
}

/// Examines a checkpoint.
pub fn doctor(args: &Args) -> Result<()> {
    if let Some(path) = &args.html {
        files::check_output(&args.model, path)?;
        files::check_report(path)?;
    }
    let report = examine(&args.model, &args.reading)?;
    if let Some(path) = &args.html {
        files::write_report(path, &page::html(&report))?;
    }
    if args.json {
        console::print_json(&report)?
    } else {
        console::print(&text::text(&report))?
    }
    match report.errors {
        0 => Ok(()),
        errors => Err(Error::Broken { path: args.model.clone(), errors: finding::count(errors, "finding") }),
    }
}

fn examine(path: &Path, reading: &Reading) -> Result<Report> {
    let survey = match Survey::open(path, &reading.options()) {
        Ok(survey) => survey,
        Err(error) => return structure::unreadable(error).map(|found| report(path, found)),
    };
    let modules = survey.modules();
    let groups = groups::find(&modules);
    let merges = groups::merges(&groups);
    let mut found = Findings::default();
    structure::check(&survey, &modules, &mut found);
    scales::check(&modules, &groups, &mut found);
    groups::check(&groups, &merges, &mut found);
    declared::check(&survey, &modules, &mut found);
    if let Err(error) = Checkpoint::open_with(path, &reading.options()) {
        structure::refused(&error, &mut found);
    }
    let declared =
        survey.declarations().map(|declared| format!("{} ({})", declared.summary, file_name(&declared.path)));
    Ok(Report {
        model_type: survey.model_type().map(str::to_owned),
        declared: declared.collect(),
        loaders: loaders::all(&survey, &modules, &merges),
        merges,
        stored: stored(modules.iter()),
        layers: by_layer(&modules),
        ..report(path, found)
    })
}

/// A report of nothing but findings.
fn report(path: &Path, found: Findings) -> Report {
    let findings = found.sorted();
    let of = |grade| findings.iter().filter(|finding| finding.grade == grade).count();
    Report {
        model: path.display().to_string(),
        model_type: None,
        declared: Vec::new(),
        errors: of(Grade::Error),
        warnings: of(Grade::Warning),
        notes: of(Grade::Note),
        findings,
        loaders: Vec::new(),
        merges: Vec::new(),
        stored: BTreeMap::new(),
        layers: Vec::new(),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Counts matrices by how they are stored.
fn stored<'m>(modules: impl Iterator<Item = &'m Module<'m>>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for module in modules.filter(|module| module.has_elements) {
        *counts.entry(model::stored(&module.content)).or_default() += module.shape[0].max(1);
    }
    counts
}

fn by_layer(modules: &[Module<'_>]) -> Vec<Stored> {
    let mut layers: BTreeMap<(&str, usize), Vec<&Module<'_>>> = BTreeMap::new();
    for module in modules {
        if let Some(layer) = module.layer {
            layers.entry(layer).or_default().push(module);
        }
    }
    let mut runs: Vec<Stored> = Vec::new();
    for ((tower, layer), modules) in layers {
        let stored = stored(modules.into_iter());
        match runs.last_mut() {
            Some(run) if run.tower == tower && run.last + 1 == layer && run.stored == stored => run.last = layer,
            _ => runs.push(Stored { tower: tower.to_owned(), first: layer, last: layer, stored }),
        }
    }
    runs
}
