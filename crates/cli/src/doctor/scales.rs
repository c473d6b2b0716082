//! Whether scales are numbers that a weight can have: block scales, global scales, those of activations and of the
//! cache of keys and values, and AWQ's vectors.

use format::GlobalScale;
use format::checkpoint::{BlockScales, Content, Module, Precision};

use super::finding::{Findings, Grade, number};
use super::groups::{Group, Kind};
use super::versions::{LLAMA_CPP, VLLM};

/// The largest magnitude of a code.
const LARGEST_CODE: f64 = 6.0;

/// The largest block scale.
const LARGEST_SCALE: f64 = 448.0;

/// Checks all scales but those that differ between weights.
pub fn check(modules: &[Module<'_>], groups: &[Group<'_>], found: &mut Findings) {
    blocks(modules, found);
    globals(modules, found);
    inputs(modules, groups, found);
    vectors(modules, groups, found);
}

fn blocks(modules: &[Module<'_>], found: &mut Findings) {
    let mut add = |grade, code, of: fn(&BlockScales) -> usize, says: &str| {
        let bad = |module: &&Module<'_>| module.blocks.as_ref().is_some_and(|blocks| of(blocks) > 0);
        let bad: Vec<&Module<'_>> = modules.iter().filter(bad).collect();
        let blocks: usize = bad.iter().filter_map(|module| module.blocks.as_ref()).map(of).sum();
        let all: usize = bad.iter().filter_map(|module| module.blocks.as_ref()).map(|blocks| blocks.count).sum();
        found.add(grade, code, bad.iter().map(|module| module.name), format!("{blocks} of {all} block scales {says}"));
    };
    add(
        Grade::Error,
        "scale-nan",
        |blocks| blocks.nan,
        "are NaN, and so is every result that they touch. The file is damaged: fetch or export it anew.",
    );
    add(
        Grade::Error,
        "scale-negative",
        |blocks| blocks.negative,
        &format!(
            "are negative, which no quantiser writes. {LLAMA_CPP} drops their signs, others keep them. The file is damaged, or \
             its scales are of another type: export it anew."
        ),
    );
    add(
        Grade::Warning,
        "scale-zero",
        |blocks| blocks.zero,
        "are zero although their codes are not: small blocks were lost when the model was quantised, and every loader reads \
         them as zeros. Quantise with a smaller global scale.",
    );
}

fn is_number(scale: GlobalScale) -> bool {
    scale.is_usable() && scale.value().is_finite() && scale.value() > 0.0
}

fn does(scale: GlobalScale) -> &'static str {
    match scale {
        GlobalScale::Multiplies(_) => "multiplies",
        GlobalScale::Divides(_) => "divides",
    }
}

/// The other thing that the stored number could mean.
fn inverse(scale: GlobalScale) -> GlobalScale {
    match scale {
        GlobalScale::Multiplies(stored) => GlobalScale::Divides(stored),
        GlobalScale::Divides(stored) => GlobalScale::Multiplies(stored),
    }
}

fn globals(modules: &[Module<'_>], found: &mut Findings) {
    let of =
        |module: &Module<'_>, bad: fn(GlobalScale) -> bool| module.globals.iter().copied().find(|&scale| bad(scale));
    let broken: Vec<(&str, GlobalScale)> =
        modules.iter().filter_map(|module| Some((module.name, of(module, |scale| !is_number(scale))?))).collect();
    if let Some((_, scale)) = broken.first() {
        let says = format!(
            "A global scale that {} is {}, where a finite number above zero is needed: every weight of the matrix is zero, NaN, \
             infinite or of the wrong sign. Fetch or export the file anew.",
            does(*scale),
            scale.stored()
        );
        found.add(Grade::Error, "global-broken", broken.iter().map(|(name, _)| *name), says);
    }
    let inverted: Vec<(&str, GlobalScale, [f64; 2])> = modules.iter().filter_map(inverted).collect();
    if let Some((_, scale, [as_named, otherwise])) = inverted.first() {
        let says = format!(
            "A global scale of {} {} by its name, so that weights reach {}. Read the other way they reach {}, as trained weights \
             do: it is stored inverted. Export the model anew, or store the reciprocal.",
            number(scale.stored().into()),
            does(*scale),
            number(*as_named),
            number(*otherwise),
        );
        found.add(Grade::Error, "global-inverted", inverted.iter().map(|(name, ..)| *name), says);
    }
}

/// The largest weights that a module's global scale makes, as it is named and inverted, if only the latter are
/// plausible: trained weights are of the order of one, and the two readings differ by about (6 · 448)².
fn inverted<'m>(module: &Module<'m>) -> Option<(&'m str, GlobalScale, [f64; 2])> {
    let largest = LARGEST_CODE * module.blocks.as_ref()?.largest;
    let scale = module
        .globals
        .iter()
        .copied()
        .filter(|&scale| is_number(scale))
        .max_by(|a, b| a.value().total_cmp(&b.value()))?;
    let reach = [largest * scale.value(), largest * inverse(scale).value()];
    (reach[0] >= 1e3 && (1e-6..=1e2).contains(&reach[1])).then_some((module.name, scale, reach))
}

fn is_nvfp4(module: &Module<'_>) -> bool {
    matches!(module.content, Content::Quantised { precision: Precision::NvFp4, .. })
}

fn inputs(modules: &[Module<'_>], groups: &[Group<'_>], found: &mut Findings) {
    let scales = |module: &Module<'_>| module.input_scales.clone();
    let broken = modules.iter().filter(|module| scales(module).iter().any(|&scale| !is_number(scale)));
    found.add(
        Grade::Error,
        "input-scale-broken",
        broken.map(|module| module.name),
        "The scale of a module's activations is zero, negative, NaN or infinite, so that quantised activations are no numbers. \
         Calibrate and export the model anew.",
    );
    let reach = |scale: GlobalScale| LARGEST_CODE * LARGEST_SCALE * scale.value();
    let is_inverted = |&scale: &GlobalScale| is_number(scale) && reach(scale) > 1e6 && reach(inverse(scale)) < 1e3;
    let inverted: Vec<&Module<'_>> = modules.iter().filter(|module| scales(module).iter().any(is_inverted)).collect();
    if let Some(scale) = inverted.first().and_then(|module| scales(module).into_iter().find(is_inverted)) {
        let says = format!(
            "A scale of activations of {} {} by its name, so that it expects activations up to {}; inverted, up to {}. Where \
             activations are quantised they come out as zeros. Store the reciprocal.",
            number(scale.stored().into()),
            does(scale),
            number(reach(scale)),
            number(reach(inverse(scale)))
        );
        found.add(Grade::Error, "input-scale-inverted", inverted.iter().map(|module| module.name), says);
    }
    let (with, without): (Vec<&Module<'_>>, Vec<&Module<'_>>) = modules
        .iter()
        .filter(|module| is_nvfp4(module) && module.layer.is_some())
        .partition(|module| !module.input_scales.is_empty());
    if !with.is_empty() {
        let says = format!(
            "These modules have no scale for their activations, but {} others have one. Loaders that quantise activations \
             take 1, or fail. Calibrate the missing ones (experts that no sample reached are the usual cause).",
            with.len()
        );
        found.add(Grade::Warning, "input-scale-missing", without.iter().map(|module| module.name), says);
    }
    let differ = groups.iter().filter(|group| {
        let mut stored = group.members.iter().filter(|module| !module.input_scales.is_empty()).map(|m| &m.input_scales);
        stored.next().is_some_and(|first| stored.any(|other| other != first))
    });
    found.add(
        Grade::Warning,
        "input-scale-differs",
        differ.map(|group| group.label()),
        format!(
            "Modules that see the same activations have different scales for them. {VLLM} keeps one, the largest number stored, \
             for all. Calibrate them together."
        ),
    );
}

fn vectors(modules: &[Module<'_>], groups: &[Group<'_>], found: &mut Findings) {
    let vectors = modules.iter().filter(|module| module.pre_scale.is_some());
    found.add(
        Grade::Warning,
        "awq",
        vectors.map(|module| module.name),
        format!(
            "Tokens must be multiplied with these modules' pre_quant_scale (AWQ) first. Hammerhead does that; \
             {VLLM} and {LLAMA_CPP} do not know it, and a loader that drops it computes something else. Use one \
             that applies it, or fold it into the norm before."
        ),
    );
    let is_half = |group: &&Group<'_>| {
        let count = group.members.iter().filter(|module| module.pre_scale.is_some()).count();
        count > 0 && count < group.members.len()
    };
    let half: Vec<&Group<'_>> = groups.iter().filter(is_half).collect();
    let says = "Some of the modules that see the same tokens have a pre_quant_scale and others have none: the exporter lost it, or \
         folded it for half of them. Export the model anew.";
    let (pairs, rest): (Vec<&Group<'_>>, Vec<&Group<'_>>) =
        half.into_iter().partition(|group| group.kind == Kind::GateUp);
    found.add(Grade::Error, "awq-half", pairs.iter().map(|group| group.label()), says);
    let differ = groups.iter().filter(|group| {
        let mut vectors = group.members.iter().filter_map(|module| module.pre_scale);
        vectors.next().is_some_and(|first| vectors.any(|other| other != first))
    });
    found.add(
        Grade::Warning,
        "awq-differs",
        differ.chain(rest).map(Group::label),
        "Modules that see the same tokens have different pre_quant_scale vectors. Loaders that merge these modules apply one \
         vector to all of them; Hammerhead refuses such a gate and up. Export the model anew with one for all.",
    );
}
