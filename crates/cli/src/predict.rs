//! What a GPU that is named, and need not be there, should take for a problem: phase by phase, and what bounds each.

use gpu::facts::Facts;
use gpu::{Family, Phase, families};
use hammerhead::{Config, Problem, Request};
use serde::Serialize;

use crate::selection::Chosen;
use crate::table::{self, Table};
use crate::{Result, console};

/// A prediction.
#[derive(Debug, Serialize)]
pub struct Prediction {
    problem: String,
    activation: String,
    device: String,
    family: &'static str,
    /// Whether kernels of this family have been measured on such a GPU.
    measured: bool,
    config: String,
    /// What plans are made by.
    planned_seconds: f64,
    /// The sum of the phases.
    predicted_seconds: f64,
    phases: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    phase: &'static str,
    seconds: f64,
    bound_by: &'static str,
}

/// The configuration of a family that its model finds cheapest on a device, with what is asked for in its place; or why none is legal.
pub fn cheapest(family: &dyn Family, problem: &Problem, request: &Request, facts: &Facts) -> Result<(f64, Config)> {
    let (mut best, mut refused) = (None, None);
    for candidate in family.candidates(problem, facts) {
        let config = request.applied_to(candidate, family.settings());
        match family.cost(problem, &config, facts) {
            Ok(cost) if best.is_none_or(|(seconds, _)| cost.seconds < seconds) => best = Some((cost.seconds, config)),
            Ok(_) => {}
            Err(reason) => refused = Some((config, reason)),
        }
    }
    match (best, refused) {
        (Some(best), _) => Ok(best),
        (None, Some((config, reason))) => {
            let config = Box::new(config);
            Err(hammerhead::Error::Illegal { backend: gpu::device::NAME, config, reason }.into())
        }
        (None, None) => {
            let (what, name, known) = ("configuration", problem.to_string(), family.name().to_owned());
            Err(hammerhead::Error::UnknownName { what, name, known }.into())
        }
    }
}

/// What a device should take for a problem.
fn predict(problem: &Problem, request: &Request, facts: &Facts) -> Result<Prediction> {
    let unknown =
        |reason| hammerhead::Error::UnknownName { what: "kernels for device", name: facts.name.clone(), known: reason };
    let choice = families::choose(facts.capability, i32::MAX, None).map_err(unknown)?;
    let (planned_seconds, config) = cheapest(choice.family, problem, request, facts)?;
    let illegal = |reason| hammerhead::Error::Illegal { backend: gpu::device::NAME, config: Box::new(config), reason };
    let phases = choice.family.phases(problem, &config, facts).map_err(illegal)?;
    let row = |phase: &Phase| Row { phase: phase.what, seconds: phase.seconds, bound_by: phase.bound_by };
    Ok(Prediction {
        problem: problem.to_string(),
        activation: problem.activation().to_string(),
        device: facts.name.clone(),
        family: choice.family.name(),
        measured: choice.measured,
        config: config.to_string(),
        planned_seconds,
        predicted_seconds: phases.iter().map(|phase| phase.seconds).sum(),
        phases: phases.iter().map(row).collect(),
    })
}

/// Prints what a device should take for every case.
pub fn explain(device: &str, cases: &[Chosen], request: &Request, json: bool) -> Result<()> {
    let facts = Facts::named(device)?;
    let predictions: Vec<Prediction> =
        cases.iter().map(|chosen| predict(&chosen.case.problem()?, request, &facts)).collect::<Result<_>>()?;
    if json {
        return console::print_json(&predictions);
    }
    console::print(&predictions.iter().map(text).collect::<Vec<_>>().join("\n"))
}

fn text(prediction: &Prediction) -> String {
    let Prediction { problem, activation, device, family, config, predicted_seconds, planned_seconds, .. } = prediction;
    let known = if prediction.measured { "" } else { "; they have not been measured on such a GPU" };
    let mut text = format!("{problem} {activation} on {device}: {config}, kernels of family {family}{known}\n");
    let mut table = Table::new(&["phase", ">predicted", "bound by"]);
    for row in &prediction.phases {
        table.row([row.phase.to_owned(), table::seconds(row.seconds), row.bound_by.to_owned()]);
    }
    text += &table.text();
    text += &format!("in all {} from first principles", table::seconds(*predicted_seconds));
    if (predicted_seconds - planned_seconds).abs() > 1e-9 {
        text += &format!("; {} by the model that plans are made by", table::seconds(*planned_seconds));
    }
    text + "\n"
}
