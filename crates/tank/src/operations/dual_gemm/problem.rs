//! A problem of the dual GEMM as a season's file writes it.

use hammerhead::{Activation, Gate, Output, Problem, Shape};
use serde::{Deserialize, Serialize};
use testkit::cases::{Case, Inputs, Suite};

use crate::Result;

/// One problem of a season's set, as a file writes it: `[[problem]]` with `groups = [[m, n, k], …]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProblemSpec {
    /// Tokens, columns and k of every group.
    pub groups: Vec<[usize; 3]>,
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
        Self { groups: vec![[m, n, k]], activation: nvfp4(), output: half(), gate: silu() }
    }

    /// What is computed.
    pub fn problem(&self) -> Result<Problem> {
        let groups = self.groups.iter().map(|&[m, n, k]| Shape::new(m, n, k)).collect();
        let activation = Activation::ALL.into_iter().find(|a| a.to_string() == self.activation);
        let activation = activation.ok_or_else(|| {
            let known = Activation::ALL.map(|a| a.to_string()).join(", ");
            hammerhead::Error::UnknownName { what: "activation type", name: self.activation.clone(), known }
        })?;
        Ok(Problem::new(groups, self.gate.parse()?, activation, self.output.parse()?)?)
    }

    /// The same as a case with realistic numbers, for the referee.
    pub fn case(&self) -> Result<Case> {
        let problem = self.problem()?;
        Ok(Case {
            suite: Suite::Dual,
            why: "a problem of the season",
            groups: problem.groups().to_vec(),
            gate: problem.gate(),
            activation: problem.activation(),
            output: problem.output(),
            inputs: Inputs::Realistic,
            timed: true,
        })
    }

    /// Its name in the ledger and in reports.
    pub fn name(&self) -> Result<String> {
        Ok(self.case()?.to_string())
    }
}
