//! What a checkpoint is made of: files, parts of weights, precisions, sizes, layers beyond the declared ones.

use std::collections::BTreeSet;

use format::Error;
use format::checkpoint::{Content, Format, Module, Precision, Survey};

use super::finding::{Findings, Grade};
use super::versions::{LLAMA_CPP, VLLM};
use crate::{Result, model};

/// Files that cannot be opened as a finding; a path without a model stays the caller's mistake.
pub fn unreadable(error: Error) -> Result<Findings> {
    let path = match &error {
        Error::Malformed { path, .. }
        | Error::Gguf { path, .. }
        | Error::Companion { path, .. }
        | Error::Shard { path, .. }
        | Error::MissingTensor { path, .. } => path.clone(),
        Error::TwiceThere { second, .. } => second.clone(),
        _ => return Err(error.into()),
    };
    let mut found = Findings::default();
    found.add(Grade::Error, "unreadable", [path.display().to_string()], error.to_string());
    Ok(found)
}

/// Why Hammerhead itself would not load it, where no other finding says so.
pub fn refused(error: &Error, found: &mut Findings) {
    match error {
        Error::Ambiguous { what, .. } if !found.has("ambiguous") => {
            found.add(Grade::Warning, "ambiguous", [what.clone()], error.to_string());
        }
        Error::Ambiguous { .. } => {}
        Error::Weight { name, .. } if !found.has_errors() => {
            found.add(Grade::Error, "refused", [name.clone()], error.to_string());
        }
        _ if !found.has_errors() => found.add(Grade::Error, "refused", ["the checkpoint"], error.to_string()),
        _ => {}
    }
}

/// Checks what weights are made of.
pub fn check(survey: &Survey, modules: &[Module<'_>], found: &mut Findings) {
    parts(modules, found);
    let unlisted = survey.unlisted();
    found.add(
        Grade::Warning,
        "index-unlisted",
        unlisted,
        "These tensors are in a shard but not in the index. Readers that go by the index do not see them, readers that take \
         whole files do. Write the index anew, or remove them.",
    );
    precisions(modules, found);
    sizes(modules, found);
    further_layers(survey, modules, found);
}

fn parts(modules: &[Module<'_>], found: &mut Findings) {
    let orphans = modules.iter().filter(|module| !module.has_elements && module.has_scales).map(|module| module.name);
    found.add(
        Grade::Error,
        "orphan-scales",
        orphans,
        "Scales are there, but the weights that they belong to are not. Fetch the missing tensors, or look in the other shards.",
    );
    let is_bare = |module: &&Module<'_>| match &module.content {
        Content::Other(words) if words.starts_with("FP8") => !module.has_scales,
        Content::Other(words) => words.starts_with("U8 without") || words.starts_with("blocks without"),
        Content::Quantised { .. } => false,
    };
    let bare = modules.iter().filter(is_bare).map(|module| module.name);
    found.add(
        Grade::Error,
        "orphan-codes",
        bare,
        "Codes are there, but not the scales that make numbers of them. Fetch the missing tensors, or look in the other shards.",
    );
    let is_ambiguous = |module: &&Module<'_>| matches!(module.problem, Some(Error::Ambiguous { .. }));
    let ambiguous: Vec<&Module<'_>> = modules.iter().filter(is_ambiguous).collect();
    if let Some(Module { problem: Some(error), .. }) = ambiguous.first() {
        found.add(Grade::Warning, "ambiguous", ambiguous.iter().map(|module| module.name), error.to_string());
    }
    // Orphans are no weights either, and have findings of their own.
    let incomplete =
        |module: &&Module<'_>| module.has_elements && !matches!(module.problem, None | Some(Error::Ambiguous { .. }));
    let incomplete: Vec<&Module<'_>> = modules.iter().filter(incomplete).collect();
    if let Some(Module { problem: Some(error), .. }) = incomplete.first() {
        let says = format!("A weight cannot be read from its tensors: {error}.");
        found.add(Grade::Error, "incomplete-weight", incomplete.iter().map(|module| module.name), says);
    }
}

fn precisions(modules: &[Module<'_>], found: &mut Findings) {
    let precision = |module: &Module<'_>| match &module.content {
        Content::Quantised { precision, .. } => precision.to_string(),
        Content::Other(words) if words.starts_with("FP8") => "FP8".to_owned(),
        Content::Other(_) => model::stored(&module.content),
    };
    let projections = modules.iter().filter(|module| module.layer.is_some() && is_projection(module.name));
    let kinds: BTreeSet<String> = projections.filter(|module| module.has_elements).map(precision).collect();
    let is_quantised = kinds.iter().any(|kind| ["NVFP4", "MXFP4"].contains(&kind.as_str()));
    if kinds.len() > 1 && is_quantised {
        found.add(
            Grade::Note,
            "mixed-precision",
            kinds,
            "The projections of the layers are stored in several precisions. A loader has to tell them apart module by module, \
             by tensors and not by one setting for the whole model.",
        );
    }
}

/// Whether a module is one of a layer's linear projections.
pub fn is_projection(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    last.ends_with("_proj") || ["w1", "w2", "w3", "w13"].contains(&last)
}

fn sizes(modules: &[Module<'_>], found: &mut Findings) {
    // The layouts that these loaders take; in GGUF, blocks of 64 are given.
    let is_taken = |module: &&Module<'_>| {
        let formats = [Format::ModelOpt, Format::CompressedTensors];
        let Content::Quantised { format, precision } = module.content else { return false };
        module.blocks.is_some() && precision == Precision::NvFp4 && formats.contains(&format)
    };
    let taken = || modules.iter().filter(is_taken);
    let refused = taken().filter(|module| !module.shape[2].is_multiple_of(64));
    found.add(
        Grade::Warning,
        "size-refused",
        refused.map(|module| module.name),
        format!(
            "K is not a multiple of 64. {LLAMA_CPP} packs 64 elements of a row together and cannot convert such a weight; \
             Marlin kernels in {VLLM} refuse experts of such a hidden size. Pad K with zeros."
        ),
    );
    // Either of Marlin's sizes is one of CUTLASS's, too.
    let is_aligned = |[_, n, k]: [usize; 3]| {
        n.is_multiple_of(64) && k.is_multiple_of(128) || n.is_multiple_of(128) && k.is_multiple_of(64)
    };
    let padded = taken().filter(|module| !is_aligned(module.shape));
    found.add(
        Grade::Note,
        "size-padded",
        padded.map(|module| module.name),
        format!(
            "{VLLM} pads these weights: its CUTLASS kernels take N and K in multiples of 32, its Marlin kernels N \
             of 64 with K of 128, or N of 128 with K of 64. Results stay the same, memory grows; kernels without \
             padding refuse them."
        ),
    );
}

fn further_layers(survey: &Survey, modules: &[Module<'_>], found: &mut Findings) {
    let declared = survey.declared_layers().unwrap_or(usize::MAX);
    let is_further = |module: &&Module<'_>| {
        let beyond = module.layer.is_some_and(|(tower, layer)| tower.ends_with("model.layers") && layer >= declared);
        beyond || module.name.split('.').any(|segment| segment == "mtp" || segment == "nextn")
    };
    let further: Vec<&Module<'_>> = modules.iter().filter(is_further).collect();
    let kinds: BTreeSet<String> = further.iter().map(|module| model::stored(&module.content)).collect();
    let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
    found.add(
        Grade::Note,
        "mtp",
        further.iter().map(|module| module.name),
        format!(
            "Layers that predict further tokens (MTP) are stored as {kinds}. Loaders of the main model skip them; one that \
             uses them has to apply the same scales there."
        ),
    );
}
