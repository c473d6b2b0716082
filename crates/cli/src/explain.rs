//! Why a plan is what it is: what was weighed, and at what price.

use hammerhead::{Basis, Considered, Plan};
use serde::Serialize;

use crate::advice;
use crate::table::{self, Table};

/// How many of the cheapest ways are listed; beyond these, the cheapest of every backend and strategy.
const LISTED: usize = 8;

/// One way that was weighed, for machines.
#[derive(Debug, Serialize)]
pub struct Weighed {
    backend: &'static str,
    config: String,
    predicted_seconds: f64,
    bound_by: &'static str,
    scratch_bytes: usize,
}

/// The plan, and then every other way that was weighed, cheapest first.
pub fn weighed(plan: &Plan) -> Vec<Weighed> {
    let weighed = |way: &Considered| Weighed {
        backend: way.backend.name(),
        config: way.config.to_string(),
        predicted_seconds: way.cost.seconds,
        bound_by: way.cost.bound_by,
        scratch_bytes: way.cost.scratch_bytes,
    };
    plan.considered().iter().map(weighed).collect()
}

/// The choice in words and a table.
pub fn text(plan: &Plan) -> String {
    let ways = plan.considered();
    let mut table = Table::new(&["backend", "configuration", ">predicted", "bound by", ">scratch"]);
    let mut kinds = Vec::new();
    let mut listed = 0;
    for (index, way) in ways.iter().enumerate() {
        let kind = (way.backend.name(), way.config.strategy);
        let new = !kinds.contains(&kind);
        if new {
            kinds.push(kind);
        }
        if index < LISTED || new {
            listed += 1;
            table.row([
                way.backend.name().to_owned(),
                way.config.to_string(),
                table::seconds(way.cost.seconds),
                way.cost.bound_by.to_owned(),
                table::bytes(way.cost.scratch_bytes as f64),
            ]);
        }
    }
    let mut text = format!(
        "{}: {} legal ways were weighed by the model, cheapest first unless the tank knows better\n",
        plan.problem(),
        ways.len()
    );
    text += &table.text();
    if listed < ways.len() {
        text += &format!("… and {} dearer ones of these kinds\n", ways.len() - listed);
    }
    text + &reason(plan) + &advice::lines(std::iter::once(plan.cost().bound_by))
}

/// Why the first was taken.
fn reason(plan: &Plan) -> String {
    let cost = plan.cost();
    let taken = format!("taken: {} {}, because", plan.backend().name(), plan.config());
    let predicted = format!("{} is the least predicted time, bound by {}", table::seconds(cost.seconds), cost.bound_by);
    match plan.basis() {
        Basis::Model => format!("{taken} {predicted}\n"),
        Basis::Tank(tuned) => format!(
            "{taken} the tank measured it {:.3}× as fast as the planner's choice on this machine (record {:.12}, {})\n",
            tuned.speedup, tuned.record, tuned.at
        ),
        Basis::Illegal { tuned, reason } => {
            format!("{taken} {predicted}; the tank's configuration of {} is not legal here ({reason})\n", tuned.problem)
        }
    }
}
