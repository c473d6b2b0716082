//! Predictions as a page: for every problem a waterfall of phases per GPU, on one scale.

use page::bars::{Phase, waterfall};
use page::{Page, details, escape, legend, table};

use super::{Prediction, Row};
use crate::{advice, table::seconds};

/// The page.
pub fn html(predictions: &[Prediction]) -> String {
    let mut devices: Vec<&str> = Vec::new();
    let mut phases: Vec<&str> = Vec::new();
    for prediction in predictions {
        if !devices.contains(&prediction.device.as_str()) {
            devices.push(&prediction.device);
        }
        for row in &prediction.phases {
            if !phases.contains(&row.phase) {
                phases.push(row.phase);
            }
        }
    }
    let header = "<p>What each GPU should take, phase by phase. All of it is predicted by the model of the kernels; nothing was measured.</p>\n";
    let classes: Vec<String> = (0..phases.len()).map(|colour| format!("phase{}", colour % 8)).collect();
    let keys: Vec<(&str, &str)> = classes.iter().map(String::as_str).zip(phases.iter().copied()).collect();
    let of_problem =
        |one: &Prediction, next: &Prediction| one.problem == next.problem && one.activation == next.activation;
    let charts: String = predictions.chunk_by(of_problem).map(|block| chart(block, &phases)).collect();
    let remark = "Each problem has a scale of its own, from zero; a phase begins where the one before it ends.";
    Page::new(&format!("Predicted phases on {}", devices.join(", ")), header)
        .section("phases", "Where the time should go", &format!("{}{charts}", legend(&keys, remark)))
        .section("numbers", "Numbers", &numbers(predictions))
        .html()
}

/// One problem on every GPU.
fn chart(block: &[Prediction], phases: &[&str]) -> String {
    let scale = 1.02 * block.iter().map(|prediction| prediction.predicted_seconds).fold(f64::MIN_POSITIVE, f64::max);
    let mut text = format!("<h3>{} {}</h3>\n", escape(&block[0].problem), escape(&block[0].activation));
    for prediction in block {
        let phase = |row: &Row| Phase {
            name: format!("{}: {}, bound by {}", row.phase, seconds(row.seconds), row.bound_by),
            seconds: row.seconds,
            colour: phases.iter().position(|name| *name == row.phase).unwrap_or(0),
        };
        let drawn: Vec<Phase> = prediction.phases.iter().map(phase).collect();
        let longest = prediction.longest();
        let bound = longest.map(|row| format!("{}, bound by {}", row.phase, row.bound_by)).unwrap_or_default();
        let remedy = longest.and_then(|row| advice::against(row.bound_by));
        let remedy = remedy.map(|remedy| format!("<div class=\"why\">{}</div>", escape(remedy))).unwrap_or_default();
        text += &format!(
            "<div class=\"row\"><div><strong>{}</strong></div><div>{}</div><div class=\"figures\">{}<br>{}</div>{remedy}</div>\n",
            escape(&prediction.device),
            waterfall(&drawn, scale),
            seconds(prediction.predicted_seconds),
            escape(&bound),
        );
    }
    text
}

/// Every phase in figures, behind a click per problem and GPU.
fn numbers(predictions: &[Prediction]) -> String {
    let one = |prediction: &Prediction| {
        let row = |row: &Row| [row.phase.to_owned(), seconds(row.seconds), row.bound_by.to_owned()];
        let known = if prediction.measured { "" } else { ", never measured on such a GPU" };
        let summary = format!(
            "{} {} on {}: {}, kernels of family {}{known}",
            escape(&prediction.problem),
            escape(&prediction.activation),
            escape(&prediction.device),
            seconds(prediction.predicted_seconds),
            prediction.family
        );
        let table = table(&["phase", ">predicted", "bound by"], prediction.phases.iter().map(row));
        details(&summary, &format!("<p><code>{}</code></p>\n{table}", escape(&prediction.config)))
    };
    predictions.iter().map(one).collect()
}
