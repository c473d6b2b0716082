//! A problem of the dual GEMM as `prepare` tells it, and where its operands lie: weights, tokens and results, a group
//! each; or those of a whole layer, with the weights of every expert, and tokens with their ids and weights.

use hammerhead::{Activation, Gate, Problem, Shape};
use referee::contestant::protocol::{Named, Prepare};
use referee::{Error, Result};
use serde::{Deserialize, Serialize};

use super::problem::LayerSizes;

/// A problem as it is written in a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProblemText {
    /// `[m, n, k]` of each group; none of a whole layer.
    pub groups: Vec<[usize; 3]>,
    /// The layer, where it is a whole one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerSizes>,
    /// `silu`, `gelu-tanh`, `gpt-oss`, `relu2` or `none`, with parameters where they are not the published ones.
    pub gate: String,
    /// The gate's limit, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clamp: Option<f32>,
    /// `nvfp4`, `f16`, `bf16` or `f32`.
    pub activation: String,
    /// `f16`, `bf16` or `f32`.
    pub output: String,
    /// The global scale of each group's tokens: the same in every run.
    pub globals: Vec<f64>,
}

impl ProblemText {
    /// A problem whose tokens have these global scales.
    pub fn new(problem: &Problem, globals: Vec<f64>) -> Self {
        let layer = LayerSizes::of(problem);
        let groups = if layer.is_some() { &[] } else { problem.groups() };
        Self {
            groups: groups.iter().map(|s| [s.m, s.n, s.k]).collect(),
            layer,
            gate: problem.gate().to_string(),
            clamp: problem.gate().limit(),
            activation: problem.activation().to_string(),
            output: problem.output().to_string(),
            globals,
        }
    }

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
        if let Some(layer) = &self.layer {
            return Ok(layer.problem(gate, (activation, self.output.parse()?))?);
        }
        let groups = self.groups.iter().map(|&[m, n, k]| Shape::new(m, n, k)).collect();
        Ok(Problem::new(groups, gate, activation, self.output.parse()?)?)
    }
}

/// Where the operands of a problem lie: offsets into its files, or into a GPU's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Operands {
    /// What is to be computed.
    pub problem: Problem,
    /// The global scale of each group's tokens.
    pub globals: Vec<f64>,
    /// For each layer and each group or expert, where its weights are.
    pub layers: Vec<Vec<WeightsPlace>>,
    /// For each input and each group, where its tokens are. A whole layer has one place, of all tokens.
    pub inputs: Vec<Vec<TokensPlace>>,
    /// For each output and each group, the offset of its C, row-major. A whole layer has one result.
    pub outputs: Vec<Vec<u64>>,
}

/// Where a matrix of weights lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatrixPlace {
    /// Its codes, rows × k/2 bytes.
    pub codes: u64,
    /// Its block scales, rows × k/16 bytes.
    pub scales: u64,
    /// Its global scale, which multiplies: exactly, or the f64 nearest to the reciprocal of one that divides.
    pub global: u64,
}

/// Where a group's weights lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightsPlace {
    /// B1.
    pub gate: MatrixPlace,
    /// B2; absent where there is no gate.
    pub up: Option<MatrixPlace>,
    /// An expert's second product; absent where there is none.
    pub down: Option<MatrixPlace>,
}

/// Where a group's tokens lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TokensPlace {
    /// Codes and block scales.
    Quantised {
        /// The offset of the codes.
        codes: u64,
        /// That of the scales.
        scales: u64,
    },
    /// m × k values of the activation type.
    Dense {
        /// Their offset.
        values: u64,
    },
    /// A whole layer's tokens, with the experts of each.
    Routed {
        /// The offset of the tokens.
        values: u64,
        /// That of the experts' numbers, 32 bits each.
        ids: u64,
        /// That of their weights, in single precision.
        weights: u64,
    },
}

impl Operands {
    /// What a message says.
    pub fn of(message: &Prepare) -> Result<Self> {
        let text: ProblemText = serde_json::from_value(message.problem.clone())
            .map_err(|error| Error::Protocol { reason: format!("the problem: {error}") })?;
        let (problem, groups, whole) = (text.problem()?, text.groups.len(), text.layer.is_some());
        if text.globals.len() != groups {
            let reason = format!("{groups} groups have {} global scales", text.globals.len());
            return Err(Error::Protocol { reason });
        }
        let weights = |set: &Named, group: usize| {
            let up = (problem.gate().matrices() > 1).then(|| matrix(set, &format!("up.{group}"))).transpose()?;
            let down = whole.then(|| matrix(set, &format!("down.{group}"))).transpose()?;
            Ok(WeightsPlace { gate: matrix(set, &format!("gate.{group}"))?, up, down })
        };
        let tokens = |input: &Named, group: usize| match problem.activation() {
            _ if whole => Ok(TokensPlace::Routed {
                values: offset(input, "x")?,
                ids: offset(input, "ids")?,
                weights: offset(input, "weights")?,
            }),
            Activation::NvFp4 => Ok(TokensPlace::Quantised {
                codes: offset(input, &format!("a.{group}.codes"))?,
                scales: offset(input, &format!("a.{group}.scales"))?,
            }),
            _ => Ok(TokensPlace::Dense { values: offset(input, &format!("a.{group}"))? }),
        };
        let result = |output: &Named, group: usize| match whole {
            true => offset(output, "y"),
            false => offset(output, &format!("c.{group}")),
        };
        let calls = if whole { 1 } else { groups };
        Ok(Self {
            layers: each(&message.constants, problem.groups().len(), weights)?,
            inputs: each(&message.inputs, calls, tokens)?,
            outputs: each(&message.outputs, calls, result)?,
            globals: text.globals,
            problem,
        })
    }
}

/// Something of every group in every set of tensors.
fn each<T>(sets: &[Named], groups: usize, of: impl Fn(&Named, usize) -> Result<T>) -> Result<Vec<Vec<T>>> {
    sets.iter().map(|set| (0..groups).map(|group| of(set, group)).collect()).collect()
}

fn matrix(set: &Named, name: &str) -> Result<MatrixPlace> {
    let part = |part: &str| offset(set, &format!("{name}.{part}"));
    Ok(MatrixPlace { codes: part("codes")?, scales: part("scales")?, global: part("global")? })
}

fn offset(set: &Named, name: &str) -> Result<u64> {
    let placed = set.get(name).ok_or_else(|| Error::Protocol { reason: format!("there is no tensor {name}") })?;
    Ok(placed.offset)
}

#[cfg(test)]
mod tests {
    use testkit::cases;

    use super::*;

    #[test]
    fn every_problem_of_the_list_survives_the_way_through_a_message() {
        for case in cases::all() {
            let problem = case.problem().unwrap();
            let text = serde_json::to_string(&ProblemText::new(&problem, Vec::new())).unwrap();
            assert_eq!(serde_json::from_str::<ProblemText>(&text).unwrap().problem().unwrap(), problem, "{text}");
        }
    }

    #[test]
    fn a_whole_layer_survives_the_way_through_a_message() {
        let layer = LayerSizes { tokens: 5, experts: 6, top: 2, hidden: 64, inner: 48, batch_invariant: true };
        let problem = layer.problem(Gate::Silu, (Activation::BF16, hammerhead::Output::F32)).unwrap();
        let text = serde_json::to_string(&ProblemText::new(&problem, Vec::new())).unwrap();
        assert_eq!(serde_json::from_str::<ProblemText>(&text).unwrap().problem().unwrap(), problem, "{text}");
    }

    #[test]
    fn a_tensor_that_is_missing_is_told_by_its_name() {
        let problem = cases::all()[0].problem().unwrap();
        let globals = vec![1.0; problem.groups().len()];
        let message = Prepare {
            id: String::new(),
            operation: super::super::NAME.to_owned(),
            problem: serde_json::to_value(ProblemText::new(&problem, globals)).unwrap(),
            files: None,
            memory: None,
            constants: vec![Named::new()],
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        let error = Operands::of(&message).unwrap_err().to_string();
        assert!(error.contains("gate.0.codes") || error.contains("up.0.codes"), "{error}");
    }
}
