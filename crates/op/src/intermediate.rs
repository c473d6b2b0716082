//! What stands between the two products of a layer.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// What the values between the two products of an MLP are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Intermediate {
    /// The tokens' type. In f16 a value beyond ±65504 is infinite, and refused.
    #[default]
    Tokens,
    /// Single precision.
    F32,
    /// NVFP4 with a given global scale q, as W4A4 checkpoints mean it: of 16 values in a row with the largest magnitude
    /// m, the scale is s = e4m3(m/6/q) within [2⁻⁹, 448] and each code is e2m1(x/(s·q)), nearest with ties to even:
    /// [`format::quantize`] to the bit. The values are f32 before.
    NvFp4,
}

impl Intermediate {
    /// Every choice.
    pub const ALL: [Intermediate; 3] = [Intermediate::Tokens, Intermediate::F32, Intermediate::NvFp4];
}

impl fmt::Display for Intermediate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Intermediate::Tokens => "tokens",
            Intermediate::F32 => "f32",
            Intermediate::NvFp4 => "nvfp4",
        })
    }
}

impl FromStr for Intermediate {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Intermediate::ALL.into_iter().find(|each| each.to_string() == name).ok_or_else(|| Error::UnknownName {
            what: "intermediate",
            name: name.to_owned(),
            known: "tokens, f32, nvfp4".to_owned(),
        })
    }
}
