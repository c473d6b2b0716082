//! What GPUs that are named, and need not be there, should take for a problem: phase by phase, and what bounds each.

mod page;

use std::path::Path;

use gpu::facts::Facts;
use gpu::{Family, Phase, families, plan};
use hammerhead::{Activation, Config, Output, Problem, Request};
use serde::Serialize;
use testkit::moe::Model;

use crate::selection::Chosen;
use crate::table::{self, Table};
use crate::{Result, advice, console, files};

/// Tokens for which layers are explained.
const LAYER_TOKENS: [usize; 5] = [1, 16, 64, 512, 4096];

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

impl Prediction {
    /// The phase that takes longest.
    fn longest(&self) -> Option<&Row> {
        self.phases.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }
}

/// The configuration of a family that its model finds cheapest on a device, with what is asked for in its place; or why
/// none is legal.
pub fn cheapest(
    family: &'static dyn Family,
    problem: &Problem,
    request: &Request,
    facts: &Facts,
) -> Result<(f64, Config)> {
    let (mut best, mut refused) = (None, None);
    for candidate in plan::candidates(family, problem, facts) {
        let config = request.applied_to(candidate, family.settings());
        match plan::cost(family, problem, &config, facts) {
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
    let unknown = |absent: gpu::driver::Absent| hammerhead::Error::UnknownName {
        what: "kernels for device",
        name: facts.name.clone(),
        known: absent.reason,
    };
    let choice = families::choose(facts.capability, i32::MAX, None).map_err(unknown)?;
    let (planned_seconds, config) = cheapest(choice.family, problem, request, facts)?;
    let illegal = |reason| hammerhead::Error::Illegal { backend: gpu::device::NAME, config: Box::new(config), reason };
    let phases = plan::phases(choice.family, problem, &config, facts).map_err(illegal)?;
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

/// The problems of models' layers, from one token to many.
pub fn layers(models: &[Model], activations: &[Activation], output: Option<Output>) -> Result<Vec<Problem>> {
    let activations = if activations.is_empty() { &[Activation::BF16] } else { activations };
    let each = models.iter().flat_map(|model| activations.iter().map(move |&activation| (model, activation)));
    let problem = |(model, activation): (&Model, Activation)| {
        let types = (activation, output.unwrap_or(Output::BF16));
        LAYER_TOKENS.map(|tokens| model.problem(tokens, types))
    };
    Ok(each.flat_map(problem).collect::<hammerhead::Result<_>>()?)
}

/// The problems of cases.
pub fn products(cases: &[Chosen]) -> Result<Vec<Problem>> {
    cases.iter().map(|chosen| Ok(chosen.case.problem()?)).collect()
}

/// What bounds the phases of a problem on a device.
#[cfg(test)]
pub fn bounds(problem: &Problem, facts: &Facts) -> Result<Vec<&'static str>> {
    Ok(predict(problem, &Request::default(), facts)?.phases.iter().map(|row| row.bound_by).collect())
}

/// Prints what each device should take for every problem, and draws it where that is asked for.
pub fn explain(
    devices: &[String],
    problems: &[Problem],
    request: &Request,
    (json, html): (bool, Option<&Path>),
) -> Result<()> {
    html.iter().try_for_each(|path| files::check_report(path))?;
    let facts: Vec<Facts> = devices.iter().map(|device| Facts::named(device)).collect::<hammerhead::Result<_>>()?;
    let each = problems.iter().flat_map(|problem| facts.iter().map(move |facts| predict(problem, request, facts)));
    let predictions: Vec<Prediction> = each.collect::<Result<_>>()?;
    if let Some(path) = html {
        files::write_report(path, &page::html(&predictions))?;
    }
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
    text += &format!("in all {}", table::seconds(*predicted_seconds));
    if (predicted_seconds - planned_seconds).abs() > 1e-9 {
        let planned = table::seconds(*planned_seconds);
        text += &format!(" from first principles; {planned} by the model that plans are made by");
    }
    text + "\n" + &advice::lines(prediction.longest().iter().map(|row| row.bound_by))
}
