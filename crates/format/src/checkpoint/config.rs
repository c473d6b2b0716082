//! What a model says about itself: its kind, its gate, and what it was quantised by.
//!
//! `config.json` says most of it, `hf_quant_config.json` is where ModelOpt also declares its quantisation, and a GGUF
//! file carries its own metadata. What the tensors themselves tell is believed first; the declarations settle what
//! tensors cannot tell, and a contradiction between both is refused.

use std::path::{Path, PathBuf};

use super::json::{self, Value};
use super::{Format, GateFunction, RoutingRule};
use super::{gguf, patterns, routing};
use crate::Result;
use crate::files::Files;

/// The factor inside gpt-oss's sigmoid, which models with that gate may declare.
const GPT_OSS_ALPHA: f64 = 1.702;

/// What was declared.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelConfig {
    /// Such as `qwen3_moe`, `llama4` or `gpt_oss`.
    pub model_type: Option<String>,
    /// The gate, and which declaration says so.
    pub gate: Option<(GateFunction, String)>,
    /// What quantised the model.
    pub quantisation: Option<Quantisation>,
    /// The same as `hf_quant_config.json` has it, where `config.json` says it as well.
    pub repeated: Option<Quantisation>,
    /// Whether the output projection is said to be the embedding.
    pub is_tied: bool,
    /// How many layers the model says it has; those beyond predict further tokens (MTP).
    pub layers: Option<usize>,
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
        let is_gpt_oss = field("model_type").and_then(Value::as_str) == Some("gpt_oss");
        let limit = field("swiglu_limit").and_then(Value::as_f64);
        let activation =
            ["hidden_act", "hidden_activation"].into_iter().find_map(|key| Some((key, field(key)?.as_str()?)));
        let [alpha, beta] = ["swiglu_alpha", "swiglu_beta"].map(|key| field(key).and_then(Value::as_f64));
        let gate = match (is_gpt_oss || alpha.is_some(), limit, activation) {
            (true, ..) if alpha.is_some_and(|alpha| alpha != GPT_OSS_ALPHA) => {
                Some((GateFunction::Other("gpt-oss's with another alpha".to_owned()), "swiglu_alpha".to_owned()))
            }
            (true, ..) if beta.is_some_and(|beta| beta != 1.0) => {
                Some((GateFunction::Other("gpt-oss's with another beta".to_owned()), "swiglu_beta".to_owned()))
            }
            (true, limit, _) => {
                let clamp = limit.unwrap_or(7.0) as f32;
                let why = match (is_gpt_oss, limit.is_some()) {
                    (true, true) => "model_type and swiglu_limit",
                    (true, false) => "model_type",
                    (false, _) => "swiglu_alpha",
                };
                Some((GateFunction::GptOss { clamp }, format!("config.json, {why}")))
            }
            (false, Some(limit), Some((_, name))) if GateFunction::named(name) != GateFunction::Silu => Some((
                GateFunction::Other(format!("{name} limited at {limit}")),
                "config.json, swiglu_limit".to_owned(),
            )),
            (false, Some(limit), _) => {
                let limit = limit as f32;
                Some((GateFunction::SiluLimited { limit }, "config.json, swiglu_limit".to_owned()))
            }
            (false, None, Some((key, name))) => Some((GateFunction::named(name), format!("config.json, {key}"))),
            (false, None, None) => None,
        };
        let quantisation = config.get("quantization_config").or_else(|| text?.get("quantization_config"));
        let quantisation = quantisation.filter(|value| value.is_object());
        let quantisation = quantisation.map(|value| declared(path.to_path_buf(), value, value.get("producer")));
        let kind = field("model_type").and_then(Value::as_str);
        let routing = routing::from_json(kind, field);
        let is_tied = field("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false);
        let layers = field("num_hidden_layers").and_then(Value::as_u64).and_then(|layers| layers.try_into().ok());
        Self { model_type, gate, quantisation, repeated: None, is_tied, layers, routing }
    }

    /// Reads a GGUF file's metadata.
    pub fn from_gguf(file: &gguf::File) -> Self {
        let architecture = file.text("general.architecture").map(str::to_owned);
        let gate = architecture.as_deref().map(|architecture| {
            let gate = match architecture {
                "gpt-oss" => GateFunction::GptOss { clamp: 7.0 },
                name if name.starts_with("gemma") => GateFunction::GeluTanh,
                _ => GateFunction::Silu,
            };
            (gate, "general.architecture".to_owned())
        });
        let routing = architecture.as_deref().and_then(|architecture| routing::from_gguf(architecture, file));
        Self { model_type: architecture, gate, routing, ..Self::default() }
    }

    /// Whether a module is among those that quantisation is known to leave out.
    pub fn ignores(&self, module: &str) -> bool {
        self.quantisation.as_ref().is_some_and(|quantisation| quantisation.leaves_out(module) == Some(true))
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
    }
}

/// A stranger's word, kept short.
fn short(text: &str) -> String {
    text.chars().take(80).collect()
}
