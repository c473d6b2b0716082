//! Modules that see the same tokens, which loaders merge: gate and up, and q, k and v. What keeping one global scale
//! for all of them does to each.
//!
//! A matrix that is read with the global scale g' instead of its own g is multiplied by g'/g as a whole. So the
//! relative error of each of its elements is |g'/g − 1|, exactly, and that is its relative Frobenius error, too. For
//! the merged matrix the errors are weighed by the norms of its parts, which are estimated from their block scales
//! (codes are alike in the mean).

use std::collections::BTreeMap;

use format::GlobalScale;
use format::checkpoint::{Content, Format, Module, Precision};
use serde::Serialize;

use super::finding::{Findings, Grade, number};
use super::versions::VLLM;
use crate::{model, table};

/// What the modules of a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    GateUp,
    Qkv,
}

/// The modules of each kind, by the last segments of their names.
const KINDS: [(Kind, &[&str]); 3] = [
    (Kind::GateUp, &["gate_proj", "up_proj"]),
    (Kind::GateUp, &["w1", "w3"]),
    (Kind::Qkv, &["q_proj", "k_proj", "v_proj"]),
];

/// Names of gate and up in one tensor, which may have a global scale for each.
const FUSED: [&str; 2] = ["gate_up_proj", "w13"];

/// Modules that see the same tokens.
#[derive(Debug)]
pub struct Group<'a> {
    /// What holds them, such as `model.layers.0.mlp`.
    pub parent: &'a str,
    pub kind: Kind,
    /// In the order of their kind; one module where gate and up are fused.
    pub members: Vec<&'a Module<'a>>,
}

impl Group<'_> {
    pub fn label(&self) -> String {
        let last = |module: &&Module<'_>| module.name.rsplit('.').next().unwrap_or_default().to_owned();
        format!("{}.{}", self.parent, self.members.iter().map(last).collect::<Vec<_>>().join("/"))
    }

    fn is_expert(&self) -> bool {
        self.parent.split('.').any(|segment| segment == "experts")
    }

    fn format(&self) -> Option<Format> {
        match self.members.first()?.content {
            Content::Quantised { format, precision: Precision::NvFp4 } => Some(format),
            _ => None,
        }
    }

    /// The global scales that merging makes one, of each member of a stack, with what a squared element is in the mean.
    fn scales(&self) -> Vec<Vec<(GlobalScale, f64)>> {
        let stack = self.members.iter().map(|module| module.shape[0]).min().unwrap_or(0);
        let weigh = |module: &Module<'_>, scale: GlobalScale| {
            let elements = (module.shape[1] * module.shape[2]) as f64;
            (scale, elements * scale.value().powi(2) * module.blocks.as_ref().map_or(1.0, |blocks| blocks.mean_square))
        };
        let of = |member: usize| -> Vec<(GlobalScale, f64)> {
            match self.members[..] {
                [fused] => fused.globals[2 * member..][..2].iter().map(|&scale| weigh(fused, scale)).collect(),
                _ => {
                    let scale = |module: &&Module<'_>| {
                        let at = if module.globals.len() == 1 { 0 } else { member };
                        Some(weigh(module, *module.globals.get(at)?))
                    };
                    self.members.iter().filter_map(scale).collect()
                }
            }
        };
        (0..stack).map(of).collect()
    }
}

/// The groups of a model.
pub fn find<'a>(modules: &'a [Module<'a>]) -> Vec<Group<'a>> {
    let mut found: BTreeMap<(&str, usize), Vec<(usize, &Module<'_>)>> = BTreeMap::new();
    let mut groups = Vec::new();
    for module in modules.iter().filter(|module| module.has_elements) {
        let Some((parent, last)) = module.name.rsplit_once('.') else { continue };
        if FUSED.contains(&last) && module.shape[0] > 0 && module.globals.len() == 2 * module.shape[0] {
            groups.push(Group { parent, kind: Kind::GateUp, members: vec![module] });
        }
        for (kind, (_, names)) in KINDS.iter().enumerate() {
            if let Some(at) = names.iter().position(|name| *name == last) {
                found.entry((parent, kind)).or_default().push((at, module));
            }
        }
    }
    for ((parent, kind), mut members) in found {
        members.sort_by_key(|(at, _)| *at);
        if members.len() > 1 {
            let members = members.into_iter().map(|(_, module)| module).collect();
            groups.push(Group { parent, kind: KINDS[kind].0, members });
        }
    }
    groups
}

/// What keeping one global scale does to the groups of one kind in a layer.
#[derive(Clone, Debug, Serialize)]
pub struct Merge {
    /// The layer's name.
    pub layer: String,
    pub what: &'static str,
    /// Groups whose global scales differ, of so many.
    pub differing: usize,
    pub groups: usize,
    /// Which one is kept.
    pub keeps: &'static str,
    /// Whether that is what vLLM does with this layout.
    pub is_vllm: bool,
    /// The largest relative error of a weight, and the group that has it.
    pub largest_error: f64,
    pub worst: String,
    /// The largest relative Frobenius error of a merged matrix.
    pub frobenius_error: f64,
}

/// Which global scale a loader keeps.
#[derive(Clone, Copy)]
enum Keeps {
    Largest,
    LargestDivisor,
    Gate,
}

fn rule(format: Format, is_expert: bool) -> (Keeps, &'static str) {
    match format {
        _ if is_expert => (Keeps::Gate, "gate's"),
        Format::CompressedTensors => (Keeps::LargestDivisor, "largest divisor"),
        _ => (Keeps::Largest, "largest"),
    }
}

/// The largest error of an element, and the Frobenius error, if one scale is kept for all.
fn errors(scales: &[(GlobalScale, f64)], keeps: Keeps) -> Option<[f64; 2]> {
    let values = || scales.iter().map(|(scale, _)| scale.value());
    if values().any(|value| !value.is_finite() || value <= 0.0) {
        return None;
    }
    let kept = match keeps {
        Keeps::Largest => values().max_by(f64::total_cmp),
        Keeps::LargestDivisor => values().min_by(f64::total_cmp),
        Keeps::Gate => values().next(),
    }?;
    let error = |scale: GlobalScale| (kept / scale.value() - 1.0).abs();
    let largest = scales.iter().map(|(scale, _)| error(*scale)).fold(0.0, f64::max);
    let all: f64 = scales.iter().map(|(_, weight)| weight).sum();
    let off: f64 = scales.iter().map(|(scale, weight)| error(*scale).powi(2) * weight).sum();
    Some([largest, if all > 0.0 { (off / all).sqrt() } else { 0.0 }])
}

/// The groups of one kind in a layer, of experts or not.
type OfLayer<'a> = (Option<(&'a str, usize)>, Kind, bool);

/// What merging does, layer by layer; layers without differences are left out.
pub fn merges(groups: &[Group<'_>]) -> Vec<Merge> {
    let mut found: BTreeMap<OfLayer<'_>, Vec<&Group<'_>>> = BTreeMap::new();
    for group in groups.iter().filter(|group| group.format().is_some()) {
        found.entry((group.members[0].layer, group.kind, group.is_expert())).or_default().push(group);
    }
    let mut merges = Vec::new();
    for ((layer, kind, is_expert), groups) in found {
        let Some(format) = groups[0].format() else { continue };
        let (keeps, words) = rule(format, is_expert);
        let mut merge = Merge {
            layer: layer.map_or_else(|| groups[0].parent.to_owned(), |(tower, layer)| format!("{tower}.{layer}")),
            what: match (kind, is_expert) {
                (Kind::Qkv, _) => "q/k/v",
                (Kind::GateUp, false) => "gate/up",
                (Kind::GateUp, true) => "gate/up of experts",
            },
            differing: 0,
            groups: 0,
            keeps: words,
            is_vllm: matches!(format, Format::ModelOpt | Format::CompressedTensors),
            largest_error: 0.0,
            worst: String::new(),
            frobenius_error: 0.0,
        };
        for (group, scales) in groups.iter().flat_map(|group| group.scales().into_iter().map(move |all| (group, all))) {
            merge.groups += 1;
            let Some([largest, frobenius]) = errors(&scales, keeps).filter(|[largest, _]| *largest > 0.0) else {
                continue;
            };
            merge.differing += 1;
            merge.frobenius_error = merge.frobenius_error.max(frobenius);
            if largest > merge.largest_error {
                (merge.largest_error, merge.worst) = (largest, group.label());
            }
        }
        if merge.differing > 0 {
            merges.push(merge);
        }
    }
    merges
}

/// An error in words: percent, or a factor where it is far beyond.
pub fn error_words(error: f64) -> String {
    if error < 10.0 { table::percent(Some(error)) } else { format!("{} ×", number(error + 1.0)) }
}

/// Checks what the modules of a group must share.
pub fn check(groups: &[Group<'_>], merges: &[Merge], found: &mut Findings) {
    let worst = |merges: &[&Merge]| merges.iter().map(|merge| merge.largest_error).fold(0.0, f64::max);
    let (merged, kept): (Vec<&Merge>, Vec<&Merge>) = merges.iter().partition(|merge| merge.is_vllm);
    let names =
        |merges: &[&Merge]| merges.iter().map(|merge| format!("{} {}", merge.layer, merge.what)).collect::<Vec<_>>();
    found.add(
        Grade::Warning,
        "globals-differ",
        names(&merged),
        format!(
            "Matrices that loaders merge have different global scales. {VLLM} keeps one for all, which changes weights here by \
             up to {}. Use a loader that keeps each, as Hammerhead does, or quantise them with one scale.",
            error_words(worst(&merged))
        ),
    );
    found.add(
        Grade::Note,
        "globals-apart",
        names(&kept),
        format!(
            "Matrices that see the same tokens have different global scales, which this layout's own loader keeps. One that \
             kept the largest, or the gate's, would change weights by up to {}.",
            error_words(worst(&kept))
        ),
    );
    let mixed = groups.iter().filter(|group| {
        let mut stored = group.members.iter().map(|module| model::stored(&module.content));
        stored.next().is_some_and(|first| stored.any(|other| other != first))
    });
    found.add(
        Grade::Warning,
        "group-mixed",
        mixed.map(Group::label),
        "Modules that loaders merge are stored in different ways. Loaders that merge them need one way for all and refuse \
         these. Quantise all of them, or none.",
    );
}
