//! A problem of the dual GEMM as a season's file writes it: groups, or the whole layer of experts that they belong to.

use hammerhead::{Activation, Gate, Intermediate, Output, Problem, Shape, Whole};
use serde::{Deserialize, Serialize};
use testkit::cases::{Case, Inputs, Suite};

use crate::{Error, Result};

/// A whole layer of experts, from tokens to each token's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSizes {
    /// Tokens, which chance spreads over the experts.
    pub tokens: usize,
    /// Experts that there are.
    pub experts: usize,
    /// Experts of a token.
    pub top: usize,
    /// Columns of tokens and results.
    pub hidden: usize,
    /// Columns between the two products.
    pub inner: usize,
    /// Whether a token's bits may depend on nothing but that token and the weights.
    #[serde(default)]
    pub batch_invariant: bool,
}

impl LayerSizes {
    /// What makes a problem this layer, if that is what it is.
    pub fn of(problem: &Problem) -> Option<Self> {
        let Whole { tokens, top, width: hidden, batch_invariant, .. } = *problem.whole()?;
        let experts = problem.groups().len();
        Some(Self { tokens, experts, top, hidden, inner: problem.groups().first()?.n, batch_invariant })
    }

    /// The layer as a problem. What stands between its products has the tokens' type.
    pub fn problem(&self, gate: Gate, types: (Activation, Output)) -> hammerhead::Result<Problem> {
        let Self { tokens, experts, top, hidden, inner, batch_invariant } = *self;
        let (intermediate, scaled) = (Intermediate::Tokens, [false; 2]);
        let whole = Whole { tokens, top, width: hidden, intermediate, scaled, batch_invariant };
        Problem::layer(experts, [hidden, inner], gate, types, whole)
    }
}

/// One problem of a season's set, as a file writes it: `[[problem]]` with `groups = [[m, n, k], …]`, or with
/// `layer = { tokens = 64, experts = 128, top = 8, hidden = 2048, inner = 768 }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProblemSpec {
    /// Tokens, columns and k of every group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<[usize; 3]>,
    /// The layer, where it is a whole one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerSizes>,
    /// The element type of the tokens.
    #[serde(default = "nvfp4")]
    pub activation: String,
    /// The element type of the result.
    #[serde(default = "half")]
    pub output: String,
    /// The gate.
    #[serde(default = "silu")]
    pub gate: String,
}

fn nvfp4() -> String {
    Activation::NvFp4.to_string()
}

fn half() -> String {
    Output::F16.to_string()
}

fn silu() -> String {
    Gate::Silu.to_string()
}

impl ProblemSpec {
    /// A problem of one group with quantised tokens, SiLU and half-precision results.
    pub fn single(m: usize, n: usize, k: usize) -> Self {
        Self { groups: vec![[m, n, k]], layer: None, activation: nvfp4(), output: half(), gate: silu() }
    }

    /// What is computed.
    pub fn problem(&self) -> Result<Problem> {
        let groups = self.groups.iter().map(|&[m, n, k]| Shape::new(m, n, k)).collect();
        let activation = Activation::ALL.into_iter().find(|a| a.to_string() == self.activation);
        let activation = activation.ok_or_else(|| {
            let known = Activation::ALL.map(|a| a.to_string()).join(", ");
            hammerhead::Error::UnknownName { what: "activation type", name: self.activation.clone(), known }
        })?;
        let Some(layer) = &self.layer else {
            return Ok(Problem::new(groups, self.gate.parse()?, activation, self.output.parse()?)?);
        };
        if !self.groups.is_empty() {
            return Err(Error::Rules {
                what: "a problem".to_owned(),
                problem: "it has groups and a layer".to_owned(),
                remedy: "a layer's groups are its experts: leave one of the two out".to_owned(),
            });
        }
        if activation == Activation::NvFp4 {
            return Err(Error::Rules {
                what: "a layer".to_owned(),
                problem: "its tokens are nvfp4".to_owned(),
                remedy: "write activation = \"bf16\", \"f16\" or \"f32\"".to_owned(),
            });
        }
        Ok(layer.problem(self.gate.parse()?, (activation, self.output.parse()?))?)
    }

    /// Its name in the ledger and in reports.
    pub fn name(&self) -> Result<String> {
        self.problem().map(|problem| name(&problem))
    }
}

/// Products as a case with realistic numbers.
pub fn case(problem: &Problem) -> Case {
    Case {
        suite: Suite::Dual,
        why: "a problem of the season",
        groups: problem.groups().to_vec(),
        gate: problem.gate(),
        activation: problem.activation(),
        output: problem.output(),
        precision: problem.precision(),
        inputs: Inputs::Realistic,
        timed: true,
    }
}

/// The name that a problem has in the ledger, in reports and among a contestant's ways.
pub fn name(problem: &Problem) -> String {
    let Some(whole) = problem.whole() else { return case(problem).to_string() };
    let invariant = if whole.batch_invariant { ", batch-invariant" } else { "" };
    format!("{problem}, {}→{}, {}{invariant}", problem.activation(), problem.output(), problem.gate())
}
