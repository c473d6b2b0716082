//! What is run: the problems of a season, and the way in which a champion or a challenger computes them.
//!
//! A built-in entry names a backend and a whole configuration for every problem, so that it means the same whatever the
//! planner or the tuning cache say later. A program is anyone's, and computes every problem in its own way.

use hammerhead::gpu::simulated;
use hammerhead::{Activation, Backend, Gate, Output, Plan, Problem, Request, Shape, backends};
use serde::{Deserialize, Serialize};
use testkit::cases::{Case, Inputs, Suite};

use crate::{Error, Result};

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

/// How one problem is computed by a built-in entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// The problem's name.
    pub problem: String,
    /// The backend.
    pub backend: String,
    /// The whole configuration, as it is written on a command line.
    pub config: String,
}

impl Way {
    /// The way of a plan.
    fn of(spec: &ProblemSpec, plan: &Plan) -> Result<Self> {
        let (backend, config) = (plan.backend().name().to_owned(), plan.config().to_string());
        Ok(Way { problem: spec.name()?, backend, config })
    }

    /// Whether both ways read the same weights, so that one may take the other's place.
    pub fn shares_weights_with(&self, other: &Way) -> bool {
        let weights = |way: &Way| backends::by_name(&way.backend).map(|b| (b.layout(), b.device_model())).ok();
        weights(self).is_some() && weights(self) == weights(other)
    }

    /// The plan for its problem: this backend and this configuration, or why that cannot be run here.
    pub fn plan(&self, problem: Problem, threads: usize) -> Result<Plan> {
        let request = self.config.parse::<Request>()?;
        Ok(Plan::best(problem, &[backends::by_name(&self.backend)?], &request, threads)?)
    }
}

/// What a champion or a challenger is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Entry {
    /// Configurations of our own backends, one for each problem of the set, in its order.
    Builtin {
        /// The ways.
        ways: Vec<Way>,
    },
    /// A program that speaks the tank's protocol.
    Program {
        /// What builds it, program and arguments; nothing where that is empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        build: Vec<String>,
        /// What starts it, program and arguments.
        command: Vec<String>,
        /// What its files must be, from when it won: nobody else may defend its title.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sealed: Option<String>,
    },
}

impl Entry {
    /// The entry that a request makes of the planner's choices, problem by problem. The simulator is refused: it takes a
    /// millisecond for what takes a GPU a microsecond, so its times say nothing.
    pub fn planned(
        problems: &[ProblemSpec],
        backends: &[&'static dyn Backend],
        request: &Request,
        threads: usize,
    ) -> Result<Self> {
        if backends.iter().any(|backend| backend.name() == simulated::NAME) {
            return Err(Error::Rules {
                what: "the backend 'sim'".to_owned(),
                problem: "the simulator counts what kernels do, and its times say nothing: it is evidence, never timed"
                    .to_owned(),
                remedy: "name the backend 'cuda', and the simulator's counts stand beside the pitch as evidence"
                    .to_owned(),
            });
        }
        let way = |spec: &ProblemSpec| {
            let plan = Plan::best(spec.problem()?, backends, request, threads)?;
            Way::of(spec, &plan)
        };
        Ok(Entry::Builtin { ways: problems.iter().map(way).collect::<Result<_>>()? })
    }

    /// What the planner chooses for each of these problems, which this entry computes, if nobody forces a backend: the best among all
    /// that read the weights which this entry's backend reads. A program stands for itself.
    pub fn unforced(&self, problems: &[ProblemSpec], threads: usize) -> Result<Self> {
        let Entry::Builtin { ways } = self else { return Ok(self.clone()) };
        let mut unforced = Vec::new();
        for (way, spec) in ways.iter().zip(problems) {
            let among = backends::sharing(backends::by_name(&way.backend)?);
            let plan = Plan::best(spec.problem()?, &among, &Request::default(), threads)?;
            unforced.push(Way::of(spec, &plan)?);
        }
        Ok(Entry::Builtin { ways: unforced })
    }
}
