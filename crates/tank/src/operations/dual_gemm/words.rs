//! The first version of the protocol, which has words for this operation alone: layers of weights, tokens and places, a group each.

use std::path::PathBuf;

use hammerhead::{Gate, Problem, Shape};
use serde::{Deserialize, Serialize};

use crate::contestant::protocol::DeviceFiles;
use crate::{Error, Result};

/// A problem with its weights, and where tokens and outputs will be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepare {
    /// What is to be computed.
    pub problem: ProblemText,
    /// The file of weights.
    pub weights: PathBuf,
    /// The file of tokens, rewritten before runs.
    pub tokens: PathBuf,
    /// The file of outputs.
    pub outputs: PathBuf,
    /// For each layer and each group, where its weights are.
    pub layers: Vec<Vec<WeightsPlace>>,
    /// For each input and each group, where its tokens are.
    pub inputs: Vec<Vec<TokensPlace>>,
    /// For each output and each group, the offset of its C, row-major.
    pub places: Vec<Vec<u64>>,
    /// A GPU's memory in place of the files, where tensors lie there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<DeviceFiles>,
}

impl Prepare {
    /// What a message says.
    pub fn of(words: serde_json::Value) -> Result<Self> {
        serde_json::from_value(words).map_err(|error| Error::Protocol { reason: error.to_string() })
    }
}

/// A problem as it is written in a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProblemText {
    /// `[m, n, k]` of each group.
    pub groups: Vec<[usize; 3]>,
    /// `silu`, `gelu-tanh`, `gpt-oss`, `relu2` or `none`, with parameters where they are not the published ones.
    pub gate: String,
    /// The gate's limit, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clamp: Option<f32>,
    /// `nvfp4`, `f16`, `bf16` or `f32`.
    pub activation: String,
    /// `f16`, `bf16` or `f32`.
    pub output: String,
}

impl From<&Problem> for ProblemText {
    fn from(problem: &Problem) -> Self {
        Self {
            groups: problem.groups().iter().map(|s| [s.m, s.n, s.k]).collect(),
            gate: problem.gate().to_string(),
            clamp: problem.gate().limit(),
            activation: problem.activation().to_string(),
            output: problem.output().to_string(),
        }
    }
}

impl ProblemText {
    /// The problem it stands for.
    pub fn problem(&self) -> Result<Problem> {
        let mut gate: Gate = self.gate.parse()?;
        if let (Gate::GptOss { limit, .. } | Gate::SiluLimited { limit }, Some(given)) = (&mut gate, self.clamp) {
            *limit = given;
        }
        let activation = hammerhead::Activation::ALL.into_iter().find(|a| a.to_string() == self.activation);
        let activation = activation.ok_or_else(|| Error::Protocol {
            reason: format!("unknown activation type {:?}; known are nvfp4, f16, bf16 and f32", self.activation),
        })?;
        let groups = self.groups.iter().map(|&[m, n, k]| Shape::new(m, n, k)).collect();
        Ok(Problem::new(groups, gate, activation, self.output.parse()?)?)
    }
}

/// Where an NVFP4 matrix lies: offsets into a file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatrixPlace {
    /// Of its codes, rows × k/2 bytes.
    pub codes: u64,
    /// Of its block scales, rows × k/16 bytes.
    pub scales: u64,
    /// Its global scale, which multiplies: exactly, or the f64 nearest to the reciprocal of one that divides.
    pub global: f64,
}

/// Where a group's weights lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightsPlace {
    /// B1.
    pub gate: MatrixPlace,
    /// B2; absent where there is no gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<MatrixPlace>,
}

/// Where a group's tokens lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TokensPlace {
    /// Quantised.
    Quantised(MatrixPlace),
    /// m × k values of the activation type.
    Dense {
        /// Their offset.
        values: u64,
        /// Their global scale, as of a matrix.
        global: f64,
    },
}

#[cfg(test)]
mod tests {
    use hammerhead::format::GlobalScale;
    use testkit::cases;

    use super::*;
    use crate::contestant::protocol::{line, understand};

    #[test]
    fn every_problem_of_the_list_survives_the_way_through_a_message() {
        for case in cases::all() {
            let problem = case.problem().unwrap();
            let text = serde_json::to_string(&ProblemText::from(&problem)).unwrap();
            assert_eq!(serde_json::from_str::<ProblemText>(&text).unwrap().problem().unwrap(), problem, "{text}");
        }
    }

    #[test]
    fn a_global_scale_comes_out_of_a_message_as_it_went_in() {
        let mut bits = 1u32;
        for _ in 0..10_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = f32::from_bits(bits);
            for scale in [GlobalScale::Multiplies(number), GlobalScale::Divides(number)] {
                if scale.is_usable() {
                    let place = MatrixPlace { codes: 0, scales: 0, global: scale.value() };
                    let said = line(&place).unwrap();
                    let heard: MatrixPlace = understand(said.as_bytes()).unwrap();
                    assert_eq!(heard.global.to_bits(), place.global.to_bits(), "{said}");
                    assert_eq!(GlobalScale::nearest(heard.global).value(), scale.value(), "{said}");
                }
            }
        }
    }
}
