//! What was computed and how: the fields that the reports of `run` and `bench` have in common.

use hammerhead::Plan;
use serde::Serialize;
use testkit::verify::Report;

use crate::selection::Origin;
use crate::shapes;

/// A problem, and the way that was planned for it.
#[derive(Clone, Debug, Serialize)]
pub struct Planned {
    pub problem: String,
    pub groups: Vec<[usize; 3]>,
    pub activation: String,
    pub gate: String,
    pub backend: &'static str,
    pub config: String,
    pub predicted_seconds: f64,
}

impl Planned {
    /// What a plan says.
    pub fn of(plan: &Plan) -> Self {
        let problem = plan.problem();
        Self {
            problem: problem.to_string(),
            groups: shapes::numbers(problem),
            activation: problem.activation().to_string(),
            gate: problem.gate().to_string(),
            backend: plan.backend().name(),
            config: plan.config().to_string(),
            predicted_seconds: plan.cost().seconds,
        }
    }
}

/// A problem that was made, computed as planned and compared with the reference.
#[derive(Clone, Debug, Serialize)]
pub struct Computed {
    #[serde(flatten)]
    pub origin: Origin,
    #[serde(flatten)]
    pub planned: Planned,
    pub output: String,
    pub flops: f64,
    pub max_error: f64,
    pub compared: usize,
}

impl Computed {
    /// What a plan and the comparison say.
    pub fn of(origin: Origin, plan: &Plan, checked: &Report) -> Self {
        Self {
            origin,
            planned: Planned::of(plan),
            output: plan.problem().output().to_string(),
            flops: plan.problem().flops(),
            max_error: checked.max_error,
            compared: checked.compared,
        }
    }

    /// The types that go in and come out, and what joins the products.
    pub fn types(&self) -> String {
        format!("{}/{}/{}", self.planned.activation, self.planned.gate, self.output)
    }
}
