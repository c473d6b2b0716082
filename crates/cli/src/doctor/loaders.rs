//! What other programs would do with a checkpoint, by the rules of one version of each.
//!
//! The rules were read from their sources or seen in a run, and are stated here in our own words. Where none was read
//! the verdict is that it is not known.

use std::collections::BTreeSet;

use format::checkpoint::{Content, Format, Module, Precision, Survey};
use serde::Serialize;

use super::finding::number;
use super::groups::{Merge, error_words};
use super::versions::{LLAMA_CPP, TRANSFORMERS, VLLM};

/// What ModelOpt's `quant_algo` may be in vLLM.
const VLLM_ALGORITHMS: [&str; 7] =
    ["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8", "MIXED_PRECISION"];

/// How a loader fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Weights come out as the checkpoint has them.
    Exact,
    /// It loads, with other weights.
    Wrong,
    Refuses,
    /// No rule was read that settles it.
    Unknown,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Wrong => "wrong",
            Self::Refuses => "refuses",
            Self::Unknown => "unknown",
        }
    }
}

/// What one loader does.
#[derive(Clone, Debug, Serialize)]
pub struct Loader {
    /// Its name and the version that its rules are of.
    pub name: &'static str,
    pub verdict: Verdict,
    pub says: String,
}

/// What the rules ask about.
struct Subject<'a> {
    modules: &'a [Module<'a>],
    merges: &'a [Merge],
    layouts: BTreeSet<(Format, Precision)>,
    algorithm: Option<String>,
}

impl Subject<'_> {
    fn has(&self, format: Format, precision: Precision) -> bool {
        self.layouts.contains(&(format, precision))
    }

    fn is_awq(&self) -> bool {
        self.modules.iter().any(|module| module.pre_scale.is_some())
    }

    /// Quantised experts.
    fn experts(&self) -> impl Iterator<Item = &Module<'_>> {
        let is_expert = |module: &&Module<'_>| module.name.split('.').any(|segment| segment == "experts");
        self.modules.iter().filter(|module| module.blocks.is_some()).filter(is_expert)
    }
}

/// What each loader does with a checkpoint that has quantised weights.
pub fn all(survey: &Survey, modules: &[Module<'_>], merges: &[Merge]) -> Vec<Loader> {
    let layout = |module: &Module<'_>| match module.content {
        Content::Quantised { format, precision } => Some((format, precision)),
        Content::Other(_) => None,
    };
    let subject = Subject {
        modules,
        merges,
        layouts: modules.iter().filter_map(layout).collect(),
        algorithm: survey.declarations().next().and_then(|declared| declared.algorithm.clone()),
    };
    if subject.layouts.is_empty() {
        return Vec::new();
    }
    let loader = |name, (verdict, says): (Verdict, String)| Loader { name, verdict, says };
    vec![
        loader(TRANSFORMERS, transformers(&subject)),
        loader(VLLM, vllm(&subject)),
        loader(LLAMA_CPP, llama_cpp(&subject)),
    ]
}

fn unknown() -> (Verdict, String) {
    (Verdict::Unknown, "No rule of its for this layout was read.".to_owned())
}

fn transformers(subject: &Subject<'_>) -> (Verdict, String) {
    if subject.has(Format::ModelOpt, Precision::NvFp4) {
        let says = "It does not know ModelOpt's layout: it skips the quantisation with a warning, then stops at weights of \
                    half the expected size. Import hammerhead.transformers first.";
        return (Verdict::Refuses, says.to_owned());
    }
    if !subject.has(Format::CompressedTensors, Precision::NvFp4) {
        return unknown();
    }
    let divisors: Vec<f64> =
        subject.experts().flat_map(|module| &module.globals).map(|scale| f64::from(scale.stored())).collect();
    let [least, most] =
        [divisors.iter().copied().fold(f64::INFINITY, f64::min), divisors.iter().copied().fold(0.0, f64::max)];
    if !divisors.is_empty() {
        let says = format!(
            "It drops the experts' weight_global_scale, with no more than a line in its report, so that their weights come out \
             {} to {} times too large. Import hammerhead.transformers first.",
            number(least),
            number(most)
        );
        return (Verdict::Wrong, says);
    }
    let rounds = subject.modules.iter().any(|module| !module.input_scales.is_empty());
    let inputs = if rounds { ", and rounds activations to NVFP4 as well" } else { "" };
    (
        Verdict::Exact,
        format!("It keeps each matrix's own global scale, and expands weights to bf16 in the first run{inputs}."),
    )
}

fn vllm(subject: &Subject<'_>) -> (Verdict, String) {
    if subject.layouts.iter().any(|(format, _)| *format == Format::Gguf) {
        return (Verdict::Refuses, "It has no reader for GGUF files.".to_owned());
    }
    let is_modelopt = subject.has(Format::ModelOpt, Precision::NvFp4);
    if !is_modelopt && !subject.has(Format::CompressedTensors, Precision::NvFp4) {
        return unknown();
    }
    if let Some(algorithm) = subject.algorithm.as_deref().filter(|_| is_modelopt)
        && !VLLM_ALGORITHMS.contains(&algorithm.to_ascii_uppercase().as_str())
    {
        return (Verdict::Refuses, format!("Its list of ModelOpt's algorithms does not have {algorithm}."));
    }
    if subject.is_awq() {
        let says = "It does not know pre_quant_scale: it drops that tensor or stops at it, depending on the model.";
        return (Verdict::Unknown, says.to_owned());
    }
    let largest = subject.merges.iter().map(|merge| merge.largest_error).fold(0.0, f64::max);
    if largest > 0.0 {
        let kept = if is_modelopt { "the largest" } else { "that of the largest divisor" };
        let says = format!(
            "It keeps one global scale for merged matrices ({kept} for q/k/v and gate/up, the gate's for experts), and says so in \
             a warning: weights are off by up to {}.",
            error_words(largest)
        );
        return (Verdict::Wrong, says);
    }
    (
        Verdict::Exact,
        "It keeps one global scale for merged matrices, and they have one here. It needs a GPU.".to_owned(),
    )
}

fn llama_cpp(subject: &Subject<'_>) -> (Verdict, String) {
    let refuses = |says: &str| (Verdict::Refuses, says.to_owned());
    if subject.layouts.iter().all(|(format, _)| *format == Format::Gguf) {
        return (Verdict::Exact, "Its own format: it applies the .scale of each tensor and of each expert.".to_owned());
    }
    if subject.has(Format::DeepSeek, Precision::MxFp4) {
        return unknown();
    }
    if subject.layouts.iter().all(|(format, _)| *format == Format::GptOss) {
        return (Verdict::Exact, "Its converter repacks the MXFP4 blocks as they are.".to_owned());
    }
    if subject.layouts.iter().any(|(format, _)| *format == Format::TorchAo) {
        return refuses("Its converter does not support torchao.");
    }
    if subject.has(Format::CompressedTensors, Precision::MxFp4) {
        return refuses("Its converter takes mxfp4-pack-quantized of Kimi K3 alone.");
    }
    if subject.algorithm.as_deref().is_some_and(|algorithm| algorithm.eq_ignore_ascii_case("NVFP4_AWQ")) {
        return refuses("Its converter takes quant_algo NVFP4 and W4A16_NVFP4 for NVFP4, not NVFP4_AWQ.");
    }
    if subject.is_awq() {
        return refuses("Its converter has no place for pre_quant_scale, and stops there.");
    }
    let is_named = |module: &Module<'_>| {
        let last: Vec<&str> = module.name.rsplit('.').take(3).collect();
        matches!(last[..], ["gate_proj" | "up_proj" | "down_proj", number, "experts"] if number.parse::<usize>().is_ok())
    };
    if subject.experts().any(|module| !is_named(module)) {
        return refuses("Its converter joins experts named experts.N.gate_proj, up_proj and down_proj, not these.");
    }
    if subject.modules.iter().any(|module| module.blocks.is_some() && !module.shape[2].is_multiple_of(64)) {
        return refuses(
            "Its converter packs 64 elements of a row together, and K of some weights is no multiple of that.",
        );
    }
    let rounded = match subject.has(Format::CompressedTensors, Precision::NvFp4) {
        true => " Divisors become reciprocals in f32, which rounds them once.",
        false => "",
    };
    (
        Verdict::Exact,
        format!("Its converter keeps each matrix's and each expert's own global scale as .scale.{rounded}"),
    )
}
