//! Findings as SARIF 2.1.0, which code hosts show beside the lines that they are about.

use serde_json::{Value, json};

use super::{Finding, Report};

/// The report about a text, which is named by its path.
pub fn sarif(report: &Report, path: &str) -> Value {
    let mut rules: Vec<&str> = all(report).map(|(finding, _)| finding.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    let rules: Vec<Value> = rules.into_iter().map(|rule| json!({ "id": rule })).collect();
    let results: Vec<Value> = all(report).map(|(finding, reason)| result(finding, reason, path)).collect();
    let driver = json!({ "name": "hammerhead check", "version": env!("CARGO_PKG_VERSION"), "rules": rules });
    json!({ "version": "2.1.0", "runs": [{ "tool": { "driver": driver }, "results": results }] })
}

/// All findings, each with the reason why it was let pass, if it was.
fn all(report: &Report) -> impl Iterator<Item = (&Finding, Option<&str>)> {
    let counted = report.findings.iter().map(|finding| (finding, None));
    counted.chain(report.suppressed.iter().map(|passed| (&passed.finding, Some(&passed.reason[..]))))
}

fn result(finding: &Finding, reason: Option<&str>, path: &str) -> Value {
    let level = match finding.grade {
        "broken" => "error",
        "seen" => "warning",
        _ => "note",
    };
    let place = |line: u32| {
        let file = json!({ "uri": path });
        json!({ "physicalLocation": { "artifactLocation": file, "region": { "startLine": line } } })
    };
    let places = |line: Option<u32>| line.into_iter().map(place).collect::<Vec<Value>>();
    let mut result = json!({
        "ruleId": finding.rule,
        "level": level,
        "message": { "text": finding.message },
        "locations": places(finding.line),
        "relatedLocations": places(finding.other_line),
        "properties": { "grade": finding.grade, "schedule": finding.schedule, "source": finding.source },
    });
    if let Some(reason) = reason {
        result["suppressions"] = json!([{ "kind": "external", "justification": reason }]);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::super::Suppressed;
    use super::*;

    #[test]
    fn findings_have_levels_and_lines_and_those_let_pass_their_reason() {
        let finding = |grade, line| Finding {
            grade,
            report: None,
            rule: "race",
            schedule: "earliest".into(),
            line,
            source: Some("k/a.py:3".into()),
            other_line: Some(7),
            other_source: None,
            race: None,
            message: "race on 4 bytes".into(),
        };
        let report = Report {
            kernel: "k".into(),
            schedules: 1,
            findings: vec![finding("broken", Some(9)), finding("letter", None)],
            suppressed: vec![Suppressed { finding: finding("seen", Some(2)), reason: "known".into() }],
            unused_suppressions: Vec::new(),
            profile: Vec::new(),
            mutations: None,
        };
        let run = &sarif(&report, "k.ptx")["runs"][0];
        assert_eq!(run["tool"]["driver"]["rules"].as_array().map(Vec::len), Some(1));
        let results = run["results"].as_array().expect("results");
        let levels: Vec<&str> = results.iter().filter_map(|result| result["level"].as_str()).collect();
        assert_eq!(levels, ["error", "note", "warning"]);
        let place = &results[0]["locations"][0]["physicalLocation"];
        assert_eq!(
            (place["region"]["startLine"].as_u64(), place["artifactLocation"]["uri"].as_str()),
            (Some(9), Some("k.ptx"))
        );
        assert_eq!(results[1]["locations"].as_array().map(Vec::len), Some(0));
        assert_eq!(results[2]["suppressions"][0]["justification"], "known");
    }
}
