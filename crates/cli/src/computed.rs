//! What was computed and how: the fields that the reports of `run` and `bench` have in common.

use hammerhead::{Backend, Plan, Precision};
use serde::Serialize;
use testkit::verify::Report;

use crate::selection::Origin;
use crate::shapes;

/// What stands under a table in which a backend is marked with †.
pub const COPIES_NOTE: &str = "† copies of tokens and results to and from the GPU are part of the time; bench --backend cuda times the device alone\n";

/// Whose clock times a computation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clock {
    /// The host's, from memory of the host to memory of the host.
    Host,
    /// The device's own, in its memory.
    Device,
}

/// Whether a backend computes in the memory of a GPU.
pub fn on_device(backend: &dyn Backend) -> bool {
    backend.base_name() == gpu::device::NAME
}

/// A problem, and the way that was planned for it.
#[derive(Clone, Debug, Serialize)]
pub struct Planned {
    pub problem: String,
    pub groups: Vec<[usize; 3]>,
    pub activation: String,
    pub gate: String,
    pub backend: &'static str,
    /// Whether copies to and from a device are part of the times.
    pub copies_included: bool,
    pub config: String,
    pub predicted_seconds: f64,
    /// What the model says takes longest.
    pub bound_by: &'static str,
}

impl Planned {
    /// What a plan says.
    pub fn of(plan: &Plan, clock: Clock) -> Self {
        let problem = plan.problem();
        Self {
            problem: problem.to_string(),
            groups: shapes::numbers(problem),
            activation: match problem.precision() {
                Precision::Exact => problem.activation().to_string(),
                Precision::Fp8 => format!("{} as fp8", problem.activation()),
            },
            gate: problem.gate().to_string(),
            backend: plan.backend().name(),
            copies_included: clock == Clock::Host && on_device(plan.backend()),
            config: plan.config().to_string(),
            predicted_seconds: plan.cost().seconds,
            bound_by: plan.cost().bound_by,
        }
    }

    /// The problem's sizes in a table's width: of many groups the first two.
    pub fn sizes(&self) -> String {
        match &self.groups[..] {
            [[m, n, k], [other, n_of_other, k_of_other], _, ..] => match self.problem.split_once(']') {
                Some((_, "")) => format!("[{m}×{n}×{k},{other}×{n_of_other}×{k_of_other},… {}]", self.groups.len()),
                sizes => format!("[{m},{other},… {}]{}", self.groups.len(), sizes.map_or("", |(_, sizes)| sizes)),
            },
            _ => self.problem.clone(),
        }
    }

    /// The backend's name, marked where copies are part of its price.
    pub fn backend_text(&self) -> String {
        format!("{}{}", self.backend, if self.copies_included { "†" } else { "" })
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
    /// The largest error as a part of what the derived bound allows.
    pub max_error_of_bound: f64,
    pub compared: usize,
}

impl Computed {
    /// What a plan and the comparison say.
    pub fn of(origin: Origin, plan: &Plan, clock: Clock, checked: &Report) -> Self {
        Self {
            origin,
            planned: Planned::of(plan, clock),
            output: plan.problem().output().to_string(),
            flops: plan.problem().flops(),
            max_error: checked.max_error,
            max_error_of_bound: checked.max_ratio,
            compared: checked.compared,
        }
    }

    /// The types that go in and come out, and what joins the products.
    pub fn types(&self) -> String {
        format!("{}/{}/{}", self.planned.activation, self.planned.gate, self.output)
    }
}

#[cfg(test)]
mod tests {
    use hammerhead::{Activation, Gate, Output, Problem, Request, Shape, backends};

    use super::*;

    #[test]
    fn copies_are_part_of_the_price_where_the_host_times_a_device() {
        let planned = |name: &str, clock: Clock| {
            let problem =
                Problem::new(vec![Shape::new(16, 64, 128)], Gate::Silu, Activation::F16, Output::F16).unwrap();
            let backend = backends::by_name(name).unwrap();
            Planned::of(&Plan::best(problem, &[backend], &Request::default(), 1).unwrap(), clock)
        };
        for (name, clock, included, text) in [
            ("scalar", Clock::Host, false, "scalar"),
            ("sim", Clock::Host, false, "sim"),
            ("cuda", Clock::Host, true, "cuda†"),
            ("cuda", Clock::Device, false, "cuda"),
        ] {
            let planned = planned(name, clock);
            assert_eq!(
                (planned.copies_included, planned.backend_text().as_str()),
                (included, text),
                "{name} {clock:?}"
            );
        }
    }
}
