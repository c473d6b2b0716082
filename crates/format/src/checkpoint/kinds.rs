//! The kinds of things that a checkpoint may be or hold, with the names they go by on a command line.

use std::fmt;
use std::str::FromStr;

use crate::{BLOCK, Error, MX_BLOCK, Result};

/// Whose layout weights are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Format {
    /// NVIDIA's ModelOpt: `weight`, `weight_scale`, and `weight_scale_2`, which multiplies.
    ModelOpt,
    /// compressed-tensors: `weight_packed`, `weight_scale`, and `weight_global_scale`, which divides.
    CompressedTensors,
    /// torchao: `_weight_qdata`, `_weight_scale`, and metadata.
    TorchAo,
    /// GGUF's types NVFP4 and MXFP4.
    Gguf,
    /// The MXFP4 of OpenAI's gpt-oss: `_blocks` and `_scales`.
    GptOss,
    /// The MXFP4 of DeepSeek-V4: `weight` in I8, and `scale`.
    DeepSeek,
}

impl Format {
    const ALL: [Self; 6] =
        [Self::ModelOpt, Self::CompressedTensors, Self::TorchAo, Self::Gguf, Self::GptOss, Self::DeepSeek];

    /// Where the codes of neighbouring elements stand, in words.
    pub fn nibbles(self) -> &'static str {
        match self {
            Self::Gguf => "first half of a block low, second half high",
            _ => "even k low, odd k high",
        }
    }

    /// What the global scale does, in words.
    pub fn global(self) -> &'static str {
        match self {
            Self::CompressedTensors => "divides",
            Self::GptOss | Self::DeepSeek => "none",
            _ => "multiplies",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ModelOpt => "modelopt",
            Self::CompressedTensors => "compressed-tensors",
            Self::TorchAo => "torchao",
            Self::Gguf => "gguf",
            Self::GptOss => "gpt-oss",
            Self::DeepSeek => "deepseek",
        })
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.to_string() == name).ok_or_else(|| Error::UnknownName {
            what: "checkpoint format",
            name: name.to_owned(),
            known: "modelopt, compressed-tensors, torchao, gguf, gpt-oss, deepseek",
        })
    }
}

/// How numbers are kept in a quantised weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    /// One e4m3 scale for 16 elements.
    NvFp4,
    /// One power of two for 32 elements.
    MxFp4,
}

impl Precision {
    /// How many elements share a scale.
    pub fn block(self) -> usize {
        match self {
            Self::NvFp4 => BLOCK,
            Self::MxFp4 => MX_BLOCK,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::NvFp4 => "NVFP4",
            Self::MxFp4 => "MXFP4",
        })
    }
}

/// How a model joins the sums of gate and up, as it declares it. This crate does not compute it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum GateFunction {
    /// `g·sigmoid(g)·u`.
    Silu,
    /// `g' = min(g, limit)`, `u' = clamp(u, ±limit)`, `g'·sigmoid(g')·u'`.
    SiluLimited {
        /// The limit.
        limit: f32,
    },
    /// GELU in its tanh form, times `u`.
    GeluTanh,
    /// `g' = min(g, clamp)`, `u' = clamp(u, ±clamp)`, `g'·sigmoid(1.702·g')·(u' + 1)`.
    GptOss {
        /// The limit.
        clamp: f32,
    },
    /// Something else, under the name that the model gives it.
    Other(String),
}

impl GateFunction {
    /// What a configuration's name for an activation function means in a gated pair.
    pub(super) fn named(name: &str) -> Self {
        match name {
            "silu" | "swish" => Self::Silu,
            "gelu_pytorch_tanh" | "gelu_tanh" | "gelu_new" => Self::GeluTanh,
            _ => Self::Other(name.chars().take(80).collect()),
        }
    }
}

impl fmt::Display for GateFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silu => f.pad("silu"),
            Self::SiluLimited { limit } => write!(f, "silu (limited at {limit})"),
            Self::GeluTanh => f.pad("gelu-tanh"),
            Self::GptOss { clamp } => write!(f, "gpt-oss (clamped at {clamp})"),
            Self::Other(name) => f.pad(name),
        }
    }
}

/// In which order the rows of gate and up stand where both are in one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateUpOrder {
    /// All of gate, then all of up.
    GateFirst,
    /// All of up, then all of gate.
    UpFirst,
    /// A row of gate, a row of up, in turn.
    Interleaved,
}

impl fmt::Display for GateUpOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::GateFirst => "gate-first",
            Self::UpFirst => "up-first",
            Self::Interleaved => "interleaved",
        })
    }
}

impl FromStr for GateUpOrder {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let all = [Self::GateFirst, Self::UpFirst, Self::Interleaved];
        all.into_iter().find(|order| order.to_string() == name).ok_or_else(|| Error::UnknownName {
            what: "order of gate and up",
            name: name.to_owned(),
            known: "gate-first, up-first, interleaved",
        })
    }
}
