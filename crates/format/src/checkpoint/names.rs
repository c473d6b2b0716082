//! What the names of tensors mean.
//!
//! A name is split twice. First into a *stem*, which stays the same for everything that belongs to one weight, and the
//! *part* that the tensor plays there: `….gate_proj.weight_scale` is the block scales of `….gate_proj`. Fused experts
//! join the part with an underscore, as in `experts.gate_up_proj_weight_scale`, or have none at all. Then a stem is
//! placed: which layer, which expert, gate or up. GGUF names are first brought to the names that everybody else uses.
//!
//! `mlp.gate` is the router of a mixture of experts and no gate projection, so it has no place.

/// What a tensor is to the weight it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// The elements: codes under ModelOpt's name, or an ordinary weight.
    Weight,
    /// Codes as compressed-tensors names them.
    Packed,
    /// Codes as torchao names them.
    Qdata,
    /// Codes as gpt-oss names them.
    Blocks,
    /// One scale per block.
    BlockScale,
    /// Powers of two as DeepSeek names them: of blocks of 4-bit codes, or of FP8.
    Exponents,
    /// A global scale that multiplies.
    Multiplier,
    /// A global scale that divides.
    Divisor,
    /// What activations are scaled by; of no use to a weight.
    InputScale,
    /// Added to every row's sum.
    Bias,
    /// What activations are multiplied with, column by column, before they meet the weight.
    PreScale,
}

/// Endings that follow a stem, each before any that it ends with itself.
const ENDINGS: [(&str, Part); 20] = [
    (".weight_global_scale", Part::Divisor),
    (".weight_packed", Part::Packed),
    (".weight_scale_2", Part::Multiplier),
    (".weight_scale", Part::BlockScale),
    (".input_global_scale", Part::InputScale),
    (".input_scale", Part::InputScale),
    (".weight", Part::Weight),
    (".scale", Part::Exponents),
    (".bias", Part::Bias),
    (".pre_quant_scale", Part::PreScale),
    ("_weight_global_scale", Part::Divisor),
    ("_weight_packed", Part::Packed),
    ("_weight_scale_2", Part::Multiplier),
    ("_weight_scale", Part::BlockScale),
    ("_input_scale", Part::InputScale),
    ("_weight", Part::Weight),
    ("_blocks", Part::Blocks),
    ("_scales", Part::BlockScale),
    ("_bias", Part::Bias),
    ("_pre_quant_scale", Part::PreScale),
];

/// Endings of the last segment where torchao has taken a weight apart: `m.weight` becomes `m._weight_qdata` and so on.
const TORCHAO_ENDINGS: [(&str, Part); 4] = [
    ("_qdata", Part::Qdata),
    ("_act_per_tensor_scale", Part::InputScale),
    ("_per_tensor_scale", Part::Multiplier),
    ("_scale", Part::BlockScale),
];

/// The stem of a safetensors name and the part it plays.
pub(super) fn split(name: &str) -> (String, Part) {
    if let Some((module, last)) = name.rsplit_once("._").filter(|(_, last)| !last.contains('.')) {
        for (ending, part) in TORCHAO_ENDINGS {
            match last.strip_suffix(ending) {
                Some("weight") => return (module.to_owned(), part),
                Some(parameter) if !parameter.is_empty() => return (format!("{module}.{parameter}"), part),
                _ => {}
            }
        }
    }
    for (ending, part) in ENDINGS {
        match name.strip_suffix(ending) {
            Some(stem) if !stem.is_empty() && !stem.ends_with('.') => return (stem.to_owned(), part),
            _ => {}
        }
    }
    (name.to_owned(), Part::Weight)
}

/// Where the modules of a GGUF block stand in everybody else's models.
const GGUF_MODULES: [(&str, &str); 17] = [
    ("attn_k", "self_attn.k_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_gate_up_exps", "mlp.experts.gate_up_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("exp_probs_b", "mlp.gate.e_score_correction"),
];

/// The stem of a GGUF name, in the names that everybody else uses where there is one, and the part it plays.
pub(super) fn split_gguf(name: &str) -> (String, Part) {
    let endings = [
        (".weight", Part::Weight),
        (".input_scale", Part::InputScale),
        (".scale", Part::Multiplier),
        (".bias", Part::Bias),
    ];
    let found = endings.into_iter().find_map(|(ending, part)| Some((name.strip_suffix(ending)?, part)));
    let (stem, part) = found.unwrap_or((name, Part::Weight));
    let known = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).and_then(|(layer, module)| {
        number(layer)?;
        let (_, elsewhere) = GGUF_MODULES.into_iter().find(|(gguf, _)| *gguf == module)?;
        Some(format!("model.layers.{layer}.{elsewhere}"))
    });
    let stem = match stem {
        "output" => "lm_head".to_owned(),
        "token_embd" => "model.embed_tokens".to_owned(),
        _ => known.unwrap_or_else(|| stem.to_owned()),
    };
    (stem, part)
}

/// Which of an MLP's projections a weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Projection {
    Gate,
    Up,
    /// Both in one tensor.
    GateUp,
    /// The projection that follows them.
    Down,
}

/// Whose weight it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// The layer's own, or something beside the experts that is no numbered expert.
    Module,
    /// One numbered expert's.
    Expert(usize),
    /// All experts', stacked in one tensor.
    Stack,
    /// That of an expert which sees every token.
    Shared,
}

/// Where in a model the weight of an MLP stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    /// The list of layers, such as `model.layers`.
    pub tower: String,
    pub layer: usize,
    pub owner: Owner,
    /// What holds the pair, such as `model.layers.0.mlp.experts.3`.
    pub module: String,
    pub projection: Projection,
}

/// Names that a list of layers goes by.
const LISTS: [&str; 4] = ["layers", "blocks", "blk", "h"];

/// The list of layers that a stem belongs to, and its layer's number there.
pub(super) fn layer(stem: &str) -> Option<(&str, usize)> {
    let (mut at, mut list) = (0, None);
    for segment in stem.split('.') {
        if let Some((end, number)) = list.zip(number(segment)) {
            return Some((&stem[..end], number));
        }
        at += segment.len();
        list = LISTS.contains(&segment).then_some(at);
        at += 1;
    }
    None
}

/// The place of a stem, if it is one of an MLP.
pub(super) fn place(stem: &str) -> Option<Place> {
    let segments: Vec<&str> = stem.split('.').collect();
    let (last, module) = segments.split_last()?;
    let projection = match *last {
        "gate_proj" | "w1" => Projection::Gate,
        "up_proj" | "w3" => Projection::Up,
        "gate_up_proj" | "w13" => Projection::GateUp,
        "down_proj" | "w2" => Projection::Down,
        _ => return None,
    };
    let list = module.windows(2).position(|pair| LISTS.contains(&pair[0]) && number(pair[1]).is_some())?;
    let (layer, inner) = (number(module[list + 1])?, &module[list + 2..]);
    // Attention may have gates of its own, which join nothing of ours.
    if inner.iter().any(|segment| segment.contains("attn") || segment.contains("attention")) {
        return None;
    }
    let owner = match inner.iter().position(|segment| *segment == "experts") {
        Some(at) => match inner[at + 1..] {
            [] => Owner::Stack,
            [expert] => Owner::Expert(number(expert)?),
            _ => return None,
        },
        None if inner.iter().any(|segment| segment.starts_with("shared_")) => Owner::Shared,
        None => Owner::Module,
    };
    Some(Place { tower: segments[..=list].join("."), layer, owner, module: module.join("."), projection })
}

/// The stem of experts stacked in one tensor, split at the expert's number: `….experts` and `gate_proj`.
pub(super) fn stacked(stem: &str) -> Option<(&str, &str)> {
    let (module, last) = stem.rsplit_once('.')?;
    (module == "experts" || module.ends_with(".experts")).then_some((module, last))
}

/// A number in its one spelling, so that two names cannot mean one thing.
pub(super) fn number(text: &str) -> Option<usize> {
    let number: usize = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_naming_a_part_leads_to_the_same_stem() {
        for (name, stem, part) in [
            ("l.gate_proj.weight", "l.gate_proj", Part::Weight),
            ("l.gate_proj.weight_scale", "l.gate_proj", Part::BlockScale),
            ("l.gate_proj.weight_scale_2", "l.gate_proj", Part::Multiplier),
            ("l.gate_proj.weight_packed", "l.gate_proj", Part::Packed),
            ("l.gate_proj.weight_global_scale", "l.gate_proj", Part::Divisor),
            ("l.gate_proj.input_global_scale", "l.gate_proj", Part::InputScale),
            ("l.gate_proj.pre_quant_scale", "l.gate_proj", Part::PreScale),
            ("l.experts.3.w1.scale", "l.experts.3.w1", Part::Exponents),
            ("l.experts.gate_up_proj", "l.experts.gate_up_proj", Part::Weight),
            ("l.experts.gate_up_proj_weight_scale", "l.experts.gate_up_proj", Part::BlockScale),
            ("l.experts.gate_up_proj_weight_scale_2", "l.experts.gate_up_proj", Part::Multiplier),
            ("l.experts.gate_up_proj_blocks", "l.experts.gate_up_proj", Part::Blocks),
            ("l.experts.gate_up_proj_scales", "l.experts.gate_up_proj", Part::BlockScale),
            ("l.experts.gate_up_proj_bias", "l.experts.gate_up_proj", Part::Bias),
            ("l.gate_proj._weight_qdata", "l.gate_proj", Part::Qdata),
            ("l.gate_proj._weight_scale", "l.gate_proj", Part::BlockScale),
            ("l.gate_proj._weight_per_tensor_scale", "l.gate_proj", Part::Multiplier),
            ("l.gate_proj._weight_act_per_tensor_scale", "l.gate_proj", Part::InputScale),
            ("l.experts._gate_up_proj_qdata", "l.experts.gate_up_proj", Part::Qdata),
            ("weight", "weight", Part::Weight),
            (".weight", ".weight", Part::Weight),
            ("", "", Part::Weight),
        ] {
            assert_eq!(split(name), (stem.to_owned(), part), "{name}");
        }
    }

    #[test]
    fn gguf_names_become_everybody_s() {
        for (name, stem, part) in [
            ("blk.3.ffn_gate_exps.weight", "model.layers.3.mlp.experts.gate_proj", Part::Weight),
            ("blk.3.ffn_up_exps.scale", "model.layers.3.mlp.experts.up_proj", Part::Multiplier),
            ("blk.3.ffn_up_shexp.input_scale", "model.layers.3.mlp.shared_expert.up_proj", Part::InputScale),
            ("blk.0.ffn_gate_inp.weight", "model.layers.0.mlp.gate", Part::Weight),
            ("blk.00.ffn_gate.weight", "blk.00.ffn_gate", Part::Weight),
            ("output.weight", "lm_head", Part::Weight),
            ("output_norm.weight", "output_norm", Part::Weight),
        ] {
            assert_eq!(split_gguf(name), (stem.to_owned(), part), "{name}");
        }
    }

    #[test]
    fn every_stem_of_a_layer_has_its_number() {
        for (stem, found) in [
            ("model.layers.7.self_attn.q_proj", Some(("model.layers", 7))),
            ("model.visual.blocks.0.attn.qkv", Some(("model.visual.blocks", 0))),
            ("layers.layers.3.x", Some(("layers.layers", 3))),
            ("model.layers.07.x", None),
            ("model.layers", None),
            ("lm_head", None),
            ("", None),
        ] {
            assert_eq!(layer(stem), found, "{stem}");
        }
    }

    #[test]
    fn a_stem_is_placed_by_layer_owner_and_projection() {
        let placed = |stem: &str| place(stem).map(|p| (p.tower, p.layer, p.owner, p.projection));
        let model = || "model.layers".to_owned();
        for (stem, owner, projection) in [
            ("model.layers.7.mlp.gate_proj", Owner::Module, Projection::Gate),
            ("model.layers.7.mlp.experts.12.up_proj", Owner::Expert(12), Projection::Up),
            ("model.layers.7.block_sparse_moe.experts.0.w1", Owner::Expert(0), Projection::Gate),
            ("model.layers.7.block_sparse_moe.experts.0.w3", Owner::Expert(0), Projection::Up),
            ("model.layers.7.feed_forward.experts.gate_up_proj", Owner::Stack, Projection::GateUp),
            ("model.layers.7.feed_forward.shared_expert.gate_proj", Owner::Shared, Projection::Gate),
            ("model.layers.7.mlp.shared_experts.up_proj", Owner::Shared, Projection::Up),
            ("model.layers.7.mlp.gate_up_proj", Owner::Module, Projection::GateUp),
            ("model.layers.7.ffn.experts.4.w3", Owner::Expert(4), Projection::Up),
            ("model.layers.7.ffn.shared_experts.w2", Owner::Shared, Projection::Down),
        ] {
            assert_eq!(placed(stem), Some((model(), 7, owner, projection)), "{stem}");
        }
        for stem in [
            "model.layers.7.mlp.gate",
            "model.layers.7.mlp.shared_expert_gate",
            "model.layers.7.mlp.experts.07.gate_proj",
            "model.layers.7.mlp.experts.1.2.gate_proj",
            "model.layers.7.self_attn.gate_proj",
            "model.layers.-7.mlp.gate_proj",
            "model.layers.99999999999999999999.mlp.gate_proj",
            "gate_proj",
            "",
        ] {
            assert_eq!(place(stem), None, "{stem}");
        }
    }
}
