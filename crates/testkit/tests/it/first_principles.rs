//! The model from first principles against what an H200 was measured to take: as far off as docs/blackwell.md says, and
//! no further.

use gpu::facts::Facts;
use gpu::families::sm90::Sm90;
use gpu::{Family, Phase};
use hammerhead::{Activation, Gate, Output, Problem, Request, Shape};
use serde_json::Value;

/// Predicted over measured, less one, for every row of the record.
fn errors() -> Vec<(String, f64)> {
    let record = include_str!("../../../../benchmarks/h200/bench.json");
    let record: Value = serde_json::from_str(record).unwrap();
    let facts = Facts::h200();
    let error = |case: &Value| {
        let word = |name: &str| case[name].as_str().unwrap();
        let sides = |group: &Value| {
            let side = |index: usize| group[index].as_u64().unwrap() as usize;
            Shape::new(side(0), side(1), side(2))
        };
        let groups = case["groups"].as_array().unwrap().iter().map(sides).collect();
        let (gate, activation): (Gate, Activation) =
            (word("gate").parse().unwrap(), word("activation").parse().unwrap());
        let problem = Problem::new(groups, gate, activation, word("output").parse::<Output>().unwrap()).unwrap();
        let request: Request = word("config").parse().unwrap();
        let config = request.applied_to(Sm90.candidates(&problem, &facts)[0], &[]);
        let phases: Vec<Phase> = Sm90.phases(&problem, &config, &facts).unwrap();
        let predicted: f64 = phases.iter().map(|phase| phase.seconds).sum();
        (format!("{problem} {activation}"), predicted / case["burst"]["median"].as_f64().unwrap() - 1.0)
    };
    record["cases"].as_array().unwrap().iter().map(error).collect()
}

#[test]
fn an_h200_is_predicted_as_well_as_the_page_says() {
    let errors = errors();
    for (row, error) in &errors {
        eprintln!("{row}: {:+.0} %", 100.0 * error);
    }
    let mut sizes: Vec<f64> = errors.iter().map(|(_, error)| error.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    assert!(sizes.len() >= 28, "{} rows", sizes.len());
    assert!(sizes[sizes.len() / 2] <= 0.06, "the median of {errors:?}");
    assert!(sizes[sizes.len() - 1] <= 0.25, "the worst of {errors:?}");
}
