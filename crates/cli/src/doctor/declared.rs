//! What a model declares against what its tensors are.

use format::checkpoint::{Content, Format, Module, Quantisation, Survey};

use super::file_name;
use super::finding::{Findings, Grade};
use super::structure::is_projection;
use super::versions::VLLM;

/// Checks declarations, tied weights and the scales of the cache of keys and values.
pub fn check(survey: &Survey, modules: &[Module<'_>], found: &mut Findings) {
    match survey.declarations().next() {
        Some(declared) => against(declared, modules, found),
        None => undeclared(modules, found),
    }
    let both: Vec<&Quantisation> = survey.declarations().collect();
    if let [first, second] = both[..] {
        twice(first, second, found);
    }
    tied(survey, modules, found);
    cache(survey, found);
}

fn is_quantised(module: &Module<'_>) -> bool {
    matches!(module.content, Content::Quantised { .. })
}

fn undeclared(modules: &[Module<'_>], found: &mut Findings) {
    // GGUF files carry their types themselves.
    let bare =
        |module: &&Module<'_>| matches!(module.content, Content::Quantised { format, .. } if format != Format::Gguf);
    found.add(
        Grade::Warning,
        "undeclared",
        modules.iter().filter(bare).map(|module| module.name),
        "Weights are quantised, but neither config.json nor hf_quant_config.json says so. Loaders that go by declarations take \
         codes for weights, or fail. Put config.json with its quantization_config beside the weights.",
    );
}

/// The precision that an algorithm's name stands for.
fn precision_of(algorithm: &str) -> Option<&'static str> {
    let algorithm = algorithm.to_ascii_lowercase();
    ["nvfp4", "mxfp4"].into_iter().find(|name| algorithm.contains(name))
}

fn against(declared: &Quantisation, modules: &[Module<'_>], found: &mut Findings) {
    let file = file_name(&declared.path);
    let is_listed =
        |module: &&Module<'_>| declared.listed.is_empty() || declared.listed.iter().any(|l| l == module.name);
    let left_out = |module: &&Module<'_>| {
        is_quantised(module) && (declared.leaves_out(module.name) == Some(true) || !is_listed(module))
    };
    found.add(
        Grade::Warning,
        "declared-left-out",
        modules.iter().filter(left_out).map(|module| module.name),
        format!(
            "{file} leaves these modules out of quantisation, but their tensors are quantised. Loaders that go by it expect \
             plain weights there. Correct its list."
        ),
    );
    let is_plain = |module: &&Module<'_>| match &module.content {
        Content::Other(words) => ["BF16", "F16", "F32"].contains(&words.as_str()),
        Content::Quantised { .. } => false,
    };
    let covers = matches!(declared.format, Some(Format::ModelOpt | Format::CompressedTensors));
    let expected = |module: &&Module<'_>| {
        covers
            && is_plain(module)
            && module.layer.is_some()
            && is_projection(module.name)
            && is_listed(module)
            && declared.leaves_out(module.name) == Some(false)
    };
    found.add(
        Grade::Warning,
        "declared-quantised",
        modules.iter().filter(expected).map(|module| module.name),
        format!(
            "{file} does not leave these modules out of quantisation, but they are not quantised. {VLLM} waits for scales that \
             never come and refuses the model. Add them to its list."
        ),
    );
    let Some((algorithm, precision)) = declared.algorithm.as_deref().and_then(|a| Some((a, precision_of(a)?))) else {
        return;
    };
    let other = |module: &&Module<'_>| match &module.content {
        Content::Quantised { precision: stored, .. } => stored.to_string().to_ascii_lowercase() != precision,
        Content::Other(_) => false,
    };
    let mut others: Vec<&str> = modules.iter().filter(other).map(|module| module.name).collect();
    if !modules.iter().any(is_quantised) {
        others.push(&file);
    }
    found.add(
        Grade::Warning,
        "declared-algorithm",
        others,
        format!(
            "{file} declares {algorithm}, but these weights are stored otherwise. Loaders that go by it misread them or fail. \
             Correct the declaration, or fetch the weights that belong to it."
        ),
    );
}

fn twice(first: &Quantisation, second: &Quantisation, found: &mut Findings) {
    let upper = |declared: &Quantisation| declared.algorithm.as_deref().map(str::to_ascii_uppercase);
    let sorted = |declared: &Quantisation| {
        let mut ignored = declared.ignored.clone();
        ignored.sort();
        ignored
    };
    let what = match (upper(first) != upper(second), sorted(first) != sorted(second)) {
        (true, _) => "different algorithms",
        (false, true) => "different modules to leave out",
        (false, false) => return,
    };
    found.add(
        Grade::Warning,
        "declared-twice",
        [first, second].map(|declared| file_name(&declared.path)),
        format!("The two declarations name {what}, and loaders read one or the other. Make them agree."),
    );
}

fn tied(survey: &Survey, modules: &[Module<'_>], found: &mut Findings) {
    if !survey.is_tied() {
        return;
    }
    let named = |last: &str| modules.iter().find(|module| module.name.rsplit('.').next() == Some(last));
    let Some(head) = named("lm_head").filter(|head| head.has_elements) else { return };
    let embedding = named("embed_tokens").and_then(|embedding| survey.weight_bytes(embedding.name));
    if !is_quantised(head) && survey.weight_bytes(head.name) == embedding {
        return;
    }
    let what = if is_quantised(head) { "a quantised" } else { "a different" };
    found.add(
        Grade::Warning,
        "tied-head",
        [head.name],
        format!(
            "config.json ties the output projection to the embedding (tie_word_embeddings), but {what} {} is stored. Loaders \
             that tie ignore it, others use it. Set tie_word_embeddings to false, or remove it.",
            head.name
        ),
    );
}

fn cache(survey: &Survey, found: &mut Findings) {
    let scales = survey.kv_scales();
    let broken = scales.iter().filter(|(_, scale)| !(scale.is_finite() && *scale > 0.0));
    found.add(
        Grade::Error,
        "kv-scale-broken",
        broken.map(|(name, _)| *name),
        format!(
            "A scale of the cache of keys and values is not one finite number above zero. {VLLM} takes negative ones for \
             missing, and NaN poisons attention. Calibrate the cache anew."
        ),
    );
    // k_proj.k_scale goes with v_proj.v_scale, and self_attn.k_scale with self_attn.v_scale.
    let other = |name: &str| match name.ends_with("k_scale") {
        true => name.replace("k_proj.k_scale", "v_proj.v_scale").replace(".k_scale", ".v_scale"),
        false => name.replace("v_proj.v_scale", "k_proj.k_scale").replace(".v_scale", ".k_scale"),
    };
    let alone = scales.iter().filter(|(name, _)| scales.iter().all(|(there, _)| *there != other(name)));
    found.add(
        Grade::Warning,
        "kv-scale-half",
        alone.map(|(name, _)| *name),
        format!(
            "A layer has a scale for keys or for values but not for both. {VLLM} uses the one for both, others take 1."
        ),
    );
    let declared = survey.declarations().find(|declared| declared.has_kv_cache);
    match (declared, scales.first()) {
        (Some(declared), None) => found.add(
            Grade::Warning,
            "kv-scale-declared",
            [file_name(&declared.path)],
            format!(
                "A quantised cache of keys and values is declared, but no k_scale or v_scale is stored. {VLLM} takes 1 for all, \
                 which clips where they are larger. Calibrate the cache, or take the declaration out."
            ),
        ),
        (None, Some(_)) if survey.declarations().next().is_some() => found.add(
            Grade::Warning,
            "kv-scale-declared",
            scales.iter().map(|(name, _)| *name),
            "Scales of the cache of keys and values are stored, but no declaration speaks of them. Loaders that go by \
             declarations leave them out, others use them. Declare the cache's precision, or remove them.",
        ),
        _ => {}
    }
}
