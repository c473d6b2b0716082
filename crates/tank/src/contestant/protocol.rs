//! The protocol: what the referee and a contestant say to each other, one JSON object a line.
//!
//! `docs/protocol.md` describes it for whoever writes a contestant; these are the same messages as types. Tensors do not
//! travel: they lie in three files of shared memory that `prepare` names, at the offsets that it gives.

use std::path::PathBuf;

use hammerhead::{Gate, Problem, Shape};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The version of the protocol.
pub const VERSION: u32 = 1;

/// What the referee says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Request {
    /// The first message.
    Hello {
        /// The version that the referee speaks.
        protocol: u32,
    },
    /// A problem, with its weights. It replaces the one before.
    Prepare(Box<Prepare>),
    /// Jobs to do, in this order. None at all is legal, and is how the round trip is measured.
    Run {
        /// To be repeated in the answer.
        id: String,
        /// The jobs.
        jobs: Vec<Job>,
    },
    /// The last message.
    Bye,
}

/// What a contestant answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Answer {
    /// To `hello`.
    Hello {
        /// The version that the contestant speaks.
        protocol: u32,
        /// Its name.
        name: String,
        /// Whether the same inputs always give the same bits; it is then held to it.
        #[serde(default)]
        deterministic: bool,
    },
    /// To `prepare`.
    Ready {
        /// The preparation's id.
        id: String,
    },
    /// To `prepare`, for a problem that it does not do.
    Unsupported {
        /// The preparation's id.
        id: String,
        /// Why not.
        #[serde(default)]
        reason: String,
    },
    /// To `run`, when every output is written.
    Done {
        /// The run's id.
        id: String,
    },
}

/// A problem with its weights, and where tokens and outputs will be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepare {
    /// To be repeated in the answer.
    pub id: String,
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
}

/// One of each that a computation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The layer whose weights are used.
    pub layer: usize,
    /// The input whose tokens are used.
    pub input: usize,
    /// The output to be written.
    pub output: usize,
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

/// The message that a line is, or why it is none.
pub fn understand<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, String> {
    let text = std::str::from_utf8(line).map_err(|_| "it is not UTF-8".to_owned())?;
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// One message as a line.
pub fn line<T: Serialize>(message: &T) -> Result<String> {
    let mut line = serde_json::to_string(message).map_err(|source| Error::Protocol { reason: source.to_string() })?;
    line.push('\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use hammerhead::format::GlobalScale;
    use testkit::cases;

    use super::*;

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

    #[test]
    fn messages_look_as_they_are_documented() {
        let run = Request::Run { id: "7".into(), jobs: vec![Job { layer: 0, input: 1, output: 2 }] };
        assert_eq!(
            line(&run).unwrap(),
            "{\"type\":\"run\",\"id\":\"7\",\"jobs\":[{\"layer\":0,\"input\":1,\"output\":2}]}\n"
        );
        assert_eq!(line(&Request::Bye).unwrap(), "{\"type\":\"bye\"}\n");
        let hello: Answer = serde_json::from_str(r#"{"type":"hello","protocol":1,"name":"x"}"#).unwrap();
        assert_eq!(hello, Answer::Hello { protocol: 1, name: "x".into(), deterministic: false });
    }
}
