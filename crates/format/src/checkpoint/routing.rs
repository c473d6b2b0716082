//! How a model makes experts' ids and weights of a router's logits, as it declares it.
//!
//! No configuration says it in one place. Kinds of models whose rule is known are listed here, and what they leave to
//! their configuration is read from it; of others nothing is assumed.

use std::fmt;

use super::gguf;
use super::json::Value;

/// How ids and weights are made of logits. This crate does not compute it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoutingRule {
    /// What an expert's score is.
    pub score: Score,
    /// Experts per token.
    pub top: usize,
    /// Whether the chosen ones' weights are divided by their sum.
    pub renormalise: bool,
    /// So many groups of experts, of which so many are looked into.
    pub groups: Option<[usize; 2]>,
    /// What weights are multiplied with in the end.
    pub scaling: f32,
}

/// What an expert's score is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Score {
    /// The softmax over all experts.
    Softmax,
    /// The softmax over those that were chosen.
    SoftmaxOfChosen,
    /// The sigmoid; a correction is added where experts are chosen.
    Sigmoid,
    /// The sigmoid, with which the token is multiplied before the expert sees it.
    SigmoidOnInput,
    /// √ln(1 + eˣ); a correction is added where experts are chosen.
    SqrtSoftplus,
}

impl fmt::Display for RoutingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let score = match self.score {
            Score::Softmax => "softmax",
            Score::SoftmaxOfChosen => "softmax of the chosen",
            Score::Sigmoid => "sigmoid",
            Score::SigmoidOnInput => "sigmoid on the input",
            Score::SqrtSoftplus => "root of softplus",
        };
        write!(f, "{score}, top {}", self.top)?;
        if let Some([groups, best]) = self.groups {
            write!(f, " of the best {best} of {groups} groups")?;
        }
        f.write_str(if self.renormalise { ", renormalised" } else { "" })?;
        if self.scaling == 1.0 { Ok(()) } else { write!(f, ", times {}", self.scaling) }
    }
}

/// Kinds whose experts are scored by a softmax, and whether weights are divided by their sum where nothing is declared.
const SOFTMAX: [(&str, bool); 4] = [("qwen2_moe", false), ("qwen3_moe", false), ("olmoe", false), ("qwen3_next", true)];

/// Kinds whose experts are scored by a sigmoid.
const SIGMOID: [&str; 6] = ["deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2"];

/// Those of them that are given 8 groups, of which 4 are looked into, where nothing is declared; the others have one
/// group then. Of Kimi K2 loaders do not agree.
const GROUPED: [&str; 3] = ["deepseek_v3", "deepseek_v32", "kimi_k2"];

/// The rule of a model, from the fields of its `config.json`.
pub(super) fn from_json<'v>(
    model_type: Option<&str>,
    field: impl Fn(&str) -> Option<&'v Value>,
) -> Option<RoutingRule> {
    let count = |key: &str| field(key)?.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
    let top = count("num_experts_per_tok").or_else(|| count("experts_per_token"))?;
    let plain = |score, renormalise| RoutingRule { score, top, renormalise, groups: None, scaling: 1.0 };
    let text = |key: &str| field(key).and_then(Value::as_str);
    let scaling = field("routed_scaling_factor").and_then(Value::as_f64).map(|scaling| scaling as f32);
    let norm = field("norm_topk_prob").and_then(Value::as_bool);
    // Kinds whose code always divides by the sum, knows no groups and no scaling: what is declared otherwise is read
    // by one loader and not by another.
    let always = norm.unwrap_or(true);
    let one_group = count("n_group").is_none_or(|groups| groups == 1);
    let has_correction = matches!(text("topk_method"), None | Some("noaux_tc"));
    match (model_type?, text("scoring_func")) {
        ("mixtral" | "qwen3_vl_moe" | "qwen3_vl_moe_text" | "qwen3_5_moe" | "qwen3_5_moe_text", _) if always => {
            Some(plain(Score::Softmax, true))
        }
        ("gpt_oss", _) => Some(plain(Score::SoftmaxOfChosen, false)),
        ("llama4" | "llama4_text", _) => Some(plain(Score::SigmoidOnInput, false)),
        ("minimax_m2", None | Some("sigmoid"))
            if always && one_group && scaling.is_none_or(|scaling| scaling == 1.0) =>
        {
            Some(plain(Score::Sigmoid, true))
        }
        // Loaders do not agree on the scaling where nothing is declared, here and below.
        ("minimax_m3_vl" | "minimax_m3_vl_text" | "minimax_m3_text", None | Some("sigmoid")) if always && one_group => {
            Some(RoutingRule { scaling: scaling?, ..plain(Score::Sigmoid, true) })
        }
        (kind, None | Some("sigmoid")) if SIGMOID.contains(&kind) && has_correction => {
            let groups = match [count("n_group"), count("topk_group")] {
                [Some(groups), Some(looked_into)] => [groups, looked_into],
                _ if GROUPED.contains(&kind) => return None,
                [groups, looked_into] => [groups.unwrap_or(1), looked_into.unwrap_or(1)],
            };
            let groups = Some(groups).filter(|[groups, looked_into]| looked_into < groups);
            let scaling = scaling.or_else(|| (kind == "glm4_moe").then_some(1.0))?;
            Some(RoutingRule { groups, scaling, ..plain(Score::Sigmoid, norm.unwrap_or(true)) })
        }
        ("deepseek_v4", None | Some("sqrtsoftplus")) if always && one_group && has_correction => {
            Some(RoutingRule { scaling: scaling?, ..plain(Score::SqrtSoftplus, true) })
        }
        (kind, _) => {
            let (_, divided) = SOFTMAX.iter().find(|(known, _)| *known == kind)?;
            Some(plain(Score::Softmax, norm.unwrap_or(*divided)))
        }
    }
}

/// The rule of a GGUF model, from its metadata.
pub(super) fn from_gguf(architecture: &str, file: &gguf::File) -> Option<RoutingRule> {
    let number = |key: &str| file.number(&format!("{architecture}.{key}"));
    let count = |key: &str| number(key).filter(|n| *n >= 1.0 && n.fract() == 0.0 && *n <= 1e6).map(|n| n as usize);
    let top = count("expert_used_count")?;
    let plain = |score, renormalise| RoutingRule { score, top, renormalise, groups: None, scaling: 1.0 };
    match architecture {
        "qwen3moe" | "qwen3vlmoe" => Some(plain(Score::Softmax, true)),
        "qwen2moe" | "olmoe" => Some(plain(Score::Softmax, false)),
        "gpt-oss" => Some(plain(Score::SoftmaxOfChosen, false)),
        "llama4" => Some(plain(Score::SigmoidOnInput, false)),
        "deepseek2" | "glm4moe" => {
            let score = match number("expert_gating_func")? {
                1.0 => Score::Softmax,
                2.0 => Score::Sigmoid,
                _ => return None,
            };
            let groups = count("expert_group_count").zip(count("expert_group_used_count"));
            let groups = groups.map(|(groups, looked_into)| [groups, looked_into]).filter(|[all, used]| used < all);
            let scaling = number("expert_weights_scale").unwrap_or(1.0) as f32;
            let renormalise = number("expert_weights_norm").is_some_and(|norm| norm != 0.0);
            Some(RoutingRule { groups, scaling, ..plain(score, renormalise) })
        }
        _ => None,
    }
}
