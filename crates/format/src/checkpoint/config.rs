//! What a model says about itself: its kind, its gate, and what it was quantised by.
//!
//! `config.json` says most of it, `hf_quant_config.json` is where ModelOpt also declares its quantisation, and a GGUF
//! file carries its own metadata. What the tensors themselves tell is believed first; the declarations settle what
//! tensors cannot tell, and a contradiction between both is refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::json::{self, Value};
use super::{Format, GateFunction, RoutingRule};
use super::{gguf, names, patterns, routing};
use crate::Result;
use crate::files::Files;

/// The factor inside gpt-oss's sigmoid, which models with that gate may declare.
const GPT_OSS_ALPHA: f64 = 1.702;

/// Names that an activation is declared by.
const ACTIVATIONS: [&str; 3] = ["hidden_act", "hidden_activation", "activation_function"];
/// Names of limits that may be a list with a number per layer; 0 is none.
const LIMITS: [&str; 3] = ["swiglu_limits", "swiglu_limits_shared", "swiglu_limit"];
/// Kinds with gpt-oss's gate, whatever they declare as their activation.
const GPT_OSS: [&str; 4] = ["gpt_oss", "minimax_m3_vl", "minimax_m3_vl_text", "minimax_m3_text"];
/// Kinds whose gate is limited; loaders do not agree at which number where none is declared.
const LIMITED: [&str; 5] = ["deepseek_v4", "deepseek_v41", "glm5_next", "glm5_next_text", "hy_v4"];
/// How the names of kinds begin whose activation is SiLU where none is declared.
const SILU: [&str; 15] = [
    "deepseek",
    "ernie4_5",
    "exaone",
    "glm",
    "granite",
    "kimi",
    "lfm",
    "llama",
    "minimax",
    "ministral",
    "mistral",
    "mixtral",
    "olmo",
    "phi",
    "qwen",
];
/// The same of architectures that GGUF files name and a `config.json` does not, or that it declares one for.
const GGUF_SILU: [&str; 33] = [
    "afmoe",
    "arctic",
    "baichuan",
    "bailingmoe",
    "chatglm",
    "cohere2",
    "command-r",
    "dbrx",
    "deci",
    "dots",
    "dream",
    "falcon-h1",
    "grovemoe",
    "hunyuan",
    "hy_v3",
    "internlm2",
    "jamba",
    "laguna",
    "llada",
    "maincoder",
    "mellum",
    "mimo2",
    "minicpm",
    "nanbeige",
    "orion",
    "paddleocr",
    "pangu-embedded",
    "plamo",
    "seed_oss",
    "smollm3",
    "stablelm",
    "step35",
    "xverse",
];

/// What was declared.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelConfig {
    /// Such as `qwen3_moe`, `llama4` or `gpt_oss`.
    pub model_type: Option<String>,
    /// What layers compute.
    rules: Rules,
    /// The same of layers of which something is declared one by one.
    of_layers: BTreeMap<usize, Rules>,
    /// What quantised the model.
    pub quantisation: Option<Quantisation>,
    /// The same as `hf_quant_config.json` has it, where `config.json` says it as well.
    pub repeated: Option<Quantisation>,
    /// Whether the output projection is said to be the embedding.
    pub is_tied: bool,
    /// How many layers the model says it has; those beyond predict further tokens (MTP).
    pub layers: Option<usize>,
}

/// What is declared of a layer's computation.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    /// The gate, and which declaration says so.
    pub gate: Option<(GateFunction, String)>,
    /// How experts are chosen.
    pub routing: Option<RoutingRule>,
}

/// A declaration of quantisation, in `config.json` or `hf_quant_config.json`.
#[derive(Clone, Debug)]
pub struct Quantisation {
    /// The file it is in.
    pub path: PathBuf,
    /// Whose layout the tensors are in, if it is one that we know.
    pub format: Option<Format>,
    /// What it says, in words.
    pub summary: String,
    /// The algorithm (`quant_algo`) or the format that it names, such as `NVFP4` or `nvfp4-pack-quantized`.
    pub algorithm: Option<String>,
    /// The modules that it leaves out, as names or patterns.
    pub ignored: Vec<String>,
    /// The modules that it lists one by one, where layers are of several precisions (ModelOpt's `quantized_layers`).
    pub listed: Vec<String>,
    /// The sides of blocks that share a scale (`weight_block_size`), rows first.
    pub block: Option<[usize; 2]>,
    /// Whether it says that the cache of keys and values is quantised, too.
    pub has_kv_cache: bool,
    /// Whether it says that what enters or leaves weights is rotated when they are used (`transform_config`).
    pub is_rotated: bool,
}

impl Quantisation {
    /// Whether it leaves a module out: by its name, by that of a module around it, by a pattern with `*`, or by a
    /// regular expression after `re:`. `None` if one of its expressions is beyond what is understood here.
    pub fn leaves_out(&self, module: &str) -> Option<bool> {
        let mut is_understood = true;
        for pattern in &self.ignored {
            let fits = match pattern.strip_prefix("re:") {
                Some(expression) => patterns::expression(expression, module),
                None => Some(patterns::glob(pattern, module)),
            };
            match fits {
                Some(true) => return Some(true),
                Some(false) => {}
                None => is_understood = false,
            }
        }
        is_understood.then_some(false)
    }
}

impl ModelConfig {
    /// Reads what stands beside the weights in `folder`; nothing has to.
    pub fn beside(files: &Files, folder: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            if files.exists(&path) { json::read(files, &path).map(|value| Some((path, value))) } else { Ok(None) }
        };
        let mut found = match read("config.json")? {
            Some((path, config)) => Self::from_json(&path, &config),
            None => Self::default(),
        };
        let apart = read("hf_quant_config.json")?.and_then(|(path, config)| {
            let quantisation = config.get("quantization")?;
            Some(declared(path, quantisation, config.get("producer")))
        });
        *if found.quantisation.is_none() { &mut found.quantisation } else { &mut found.repeated } = apart;
        Ok(found)
    }

    fn from_json(path: &Path, config: &Value) -> Self {
        // A model of several kinds of input keeps what concerns text apart.
        let text = ["text_config", "llm_config", "language_config"].into_iter().find_map(|key| config.get(key));
        let field =
            |key: &str| text.and_then(|text| text.get(key)).or_else(|| config.get(key)).filter(|v| !v.is_null());
        let model_type = config.get("model_type").and_then(Value::as_str).map(str::to_owned);
        let rules = Rules::declared(None, field);
        let own = field("per_layer_config").and_then(Value::as_object);
        let named = own.into_iter().flat_map(|own| own.keys().filter_map(|layer| names::number(layer)));
        let listed = LIMITS.iter().filter_map(|key| field(key)?.as_array()).map(Vec::len).max();
        let of_layers = named.chain(0..listed.unwrap_or(0)).map(|layer| {
            let own = own.and_then(|own| own.get(&layer.to_string()));
            let field = |key: &str| own.and_then(|own| own.get(key)).filter(|v| !v.is_null()).or_else(|| field(key));
            (layer, Rules::declared(Some(layer), field))
        });
        let of_layers = of_layers.collect();
        let quantisation = config.get("quantization_config").or_else(|| text?.get("quantization_config"));
        let quantisation = quantisation.filter(|value| value.is_object());
        let quantisation = quantisation.map(|value| declared(path.to_path_buf(), value, value.get("producer")));
        let is_tied = field("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false);
        let layers = field("num_hidden_layers").and_then(Value::as_u64).and_then(|layers| layers.try_into().ok());
        Self { model_type, rules, of_layers, quantisation, repeated: None, is_tied, layers }
    }

    /// Reads a GGUF file's metadata.
    pub fn from_gguf(file: &gguf::File) -> Self {
        let architecture = file.text("general.architecture").map(str::to_owned);
        let gate = architecture.as_deref().map(|architecture| {
            let limited = ["exp", "shexp"].map(|which| format!("{architecture}.swiglu_clamp_{which}"));
            let named = |list: &[&str]| list.iter().any(|family| architecture.starts_with(family));
            let gate = match architecture {
                _ if limited.iter().any(|key| file.has(key)) => {
                    GateFunction::Other("limited layer by layer (swiglu_clamp)".to_owned())
                }
                "gpt-oss" => GateFunction::GptOss { clamp: 7.0 },
                "grok" => GateFunction::GeluTanh,
                "deepseek4" | "glm5-next" | "kimi-k3" | "minimax-m3" | "phi2" => unknown(architecture),
                _ if named(&["gemma"]) => GateFunction::GeluTanh,
                _ if named(&SILU) || named(&GGUF_SILU) => GateFunction::Silu,
                _ => unknown(architecture),
            };
            (gate, "general.architecture".to_owned())
        });
        let routing = architecture.as_deref().and_then(|architecture| routing::from_gguf(architecture, file));
        Self { model_type: architecture, rules: Rules { gate, routing }, ..Self::default() }
    }

    /// What a layer computes, or without a number what all do of which nothing else is declared.
    pub fn rules(&self, layer: Option<usize>) -> &Rules {
        layer.and_then(|layer| self.of_layers.get(&layer)).unwrap_or(&self.rules)
    }

    /// Whether a module is among those that quantisation is known to leave out.
    pub fn ignores(&self, module: &str) -> bool {
        self.quantisation.as_ref().is_some_and(|quantisation| quantisation.leaves_out(module) == Some(true))
    }
}

impl Rules {
    /// Reads the fields that hold for one layer, or for all of which nothing else is said.
    fn declared<'v>(layer: Option<usize>, field: impl Fn(&str) -> Option<&'v Value> + Copy) -> Self {
        let kind = field("model_type").and_then(Value::as_str);
        Self { gate: gate(kind, layer, field), routing: routing::from_json(kind, field) }
    }
}

/// The gate of a kind of model that declares none and is not known.
fn unknown(kind: &str) -> GateFunction {
    GateFunction::Other(format!("not declared by a model of type {kind:?}"))
}

/// How gate and up are joined, and which declaration says so; `None` where no model is named, either.
fn gate<'v>(
    kind: Option<&str>,
    layer: Option<usize>,
    field: impl Fn(&str) -> Option<&'v Value> + Copy,
) -> Option<(GateFunction, String)> {
    let other = |name: String, key: &str| Some((GateFunction::Other(name), format!("config.json, {key}")));
    for key in LIMITS {
        let Some(limits) = field(key).and_then(Value::as_array) else { continue };
        match layer.and_then(|layer| limits.get(layer)).map(|limit| limit.as_f64().unwrap_or(0.0)) {
            // Models with such lists limit what the activation gives, and not what it takes.
            Some(limit) if limit != 0.0 => return other(format!("silu whose results are limited at {limit}"), key),
            Some(_) => {}
            None => return other(format!("limited layer by layer ({key})"), key),
        }
    }
    let number = |key: &str| field(key).and_then(Value::as_f64);
    let [limit, alpha, beta] = ["swiglu_limit", "swiglu_alpha", "swiglu_beta"].map(number);
    let is_gpt_oss = kind.is_some_and(|kind| GPT_OSS.contains(&kind));
    if is_gpt_oss || alpha.is_some() {
        if alpha.is_some_and(|alpha| alpha != GPT_OSS_ALPHA) {
            return other("gpt-oss's with another alpha".to_owned(), "swiglu_alpha");
        }
        if beta.is_some_and(|beta| beta != 1.0) {
            return other("gpt-oss's with another beta".to_owned(), "swiglu_beta");
        }
        let why = match (is_gpt_oss, limit.is_some()) {
            (true, true) => "model_type and swiglu_limit",
            (true, false) => "model_type",
            (false, _) => "swiglu_alpha",
        };
        return Some((GateFunction::GptOss { clamp: limit.unwrap_or(7.0) as f32 }, format!("config.json, {why}")));
    }
    let activation = ACTIVATIONS.into_iter().find_map(|key| Some((key, field(key)?.as_str()?)));
    match (limit, activation) {
        (Some(limit), Some((_, name))) if GateFunction::named(name) != GateFunction::Silu => {
            other(format!("{name} limited at {limit}"), "swiglu_limit")
        }
        (Some(limit), _) => {
            Some((GateFunction::SiluLimited { limit: limit as f32 }, "config.json, swiglu_limit".to_owned()))
        }
        (None, _) if kind.is_some_and(|kind| LIMITED.contains(&kind)) => {
            other("silu with a limit that is not declared".to_owned(), "model_type")
        }
        (None, Some((key, name))) => Some((GateFunction::named(name), format!("config.json, {key}"))),
        (None, None) => {
            let kind = kind?;
            let why = "config.json, model_type".to_owned();
            match kind {
                _ if kind.contains("gemma") => Some((GateFunction::GeluTanh, why)),
                _ if SILU.iter().any(|family| kind.starts_with(family)) => Some((GateFunction::Silu, why)),
                _ => Some((unknown(kind), "config.json, which has no hidden_act".to_owned())),
            }
        }
    }
}

/// Reads a declaration, of either file.
fn declared(path: PathBuf, value: &Value, producer: Option<&Value>) -> Quantisation {
    let text = |value: Option<&Value>, key: &str| value.and_then(|v| v.get(key)).and_then(Value::as_str).map(short);
    let maker = text(producer, "name");
    let method = text(Some(value), "quant_method").or_else(|| maker.clone());
    let format = method.as_deref().and_then(|method| match method {
        "modelopt" => Some(Format::ModelOpt),
        "compressed-tensors" => Some(Format::CompressedTensors),
        "torchao" => Some(Format::TorchAo),
        _ => None,
    });
    let version = text(producer, "version").or_else(|| text(Some(value), "version"));
    let kind = text(Some(value), "quant_algo").or_else(|| text(Some(value), "format"));
    let summary: Vec<String> = [method, version, kind.clone()].into_iter().flatten().collect();
    let ignored = ["ignore", "exclude_modules", "modules_to_not_convert"]
        .into_iter()
        .filter_map(|key| value.get(key)?.as_array())
        .flatten()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect();
    let listed = value.get("quantized_layers").and_then(Value::as_object);
    let block: Option<Vec<usize>> = value
        .get("weight_block_size")
        .and_then(Value::as_array)
        .and_then(|sides| sides.iter().map(|side| side.as_u64().and_then(|side| usize::try_from(side).ok())).collect());
    Quantisation {
        path,
        format,
        summary: summary.join(" "),
        algorithm: kind,
        ignored,
        listed: listed.into_iter().flat_map(|listed| listed.keys().cloned()).collect(),
        block: block.and_then(|sides| sides.try_into().ok()),
        has_kv_cache: ["kv_cache_quant_algo", "kv_cache_scheme"]
            .iter()
            .any(|key| value.get(key).is_some_and(|value| !value.is_null())),
        is_rotated: is_rotated(value).unwrap_or(false),
    }
}

/// Whether a declaration of compressed-tensors rotates more than weights.
fn is_rotated(value: &Value) -> Option<bool> {
    let groups = value.get("transform_config")?.get("config_groups")?.as_object()?;
    let applied = groups.values().filter_map(|group| group.get("apply")?.as_array()).flatten();
    let mut places = applied.filter_map(|applied| applied.get("location")?.as_str());
    Some(places.any(|place| matches!(place, "input" | "output")))
}

/// A stranger's word, kept short.
fn short(text: &str) -> String {
    text.chars().take(80).collect()
}
