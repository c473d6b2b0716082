//! Records in other people's forms: a table for a spreadsheet, or for a page of text.

use std::path::Path;

use super::reading::{Record, Row};
use crate::files::Form;
use crate::{Error, Result};

/// The columns, in seconds where they are times.
const COLUMNS: [&str; 9] = ["problem", "who", "clock", "median", "low", "high", "floor", "gate", "result"];

/// What is written to a file, of a record that is this JSON.
pub fn written(path: &Path, json: &str) -> Result<String> {
    let form = Form::of(path)?;
    if form == Form::Json {
        return Ok(json.to_owned());
    }
    let record = Record::read("this run", json);
    let record = record.map_err(|problem| Error::Record { path: path.to_path_buf(), problem })?;
    let rows = record.rows.iter().map(cells);
    let lines = std::iter::once(COLUMNS.map(str::to_owned)).chain(rows);
    Ok(match form {
        Form::Markdown => {
            let mut lines: Vec<String> = lines.map(|cells| format!("| {} |\n", cells.join(" | "))).collect();
            lines.insert(1, format!("|{}\n", "---|".repeat(COLUMNS.len())));
            format!("{}\n\n{}", record.about, lines.concat())
        }
        _ => lines.map(|cells| cells.map(|cell| quoted(&cell)).join(",") + "\n").collect(),
    })
}

fn cells(row: &Row) -> [String; 9] {
    let range = row.times.range().map(|(range, _)| range);
    let number = |seconds: Option<f64>| seconds.map_or(String::new(), |seconds| format!("{seconds:.4e}"));
    let word = |word: &Option<String>| word.clone().unwrap_or_default();
    [
        row.problem.clone(),
        row.who.clone(),
        row.clock.to_owned(),
        number(Some(row.times.median)),
        number(range.map(|(low, _)| low)),
        number(range.map(|(_, high)| high)),
        number(row.floor),
        word(&row.gate),
        word(&row.output),
    ]
}

/// A cell of CSV: between quotes where it has something in it that would end it.
fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"version": "0", "device": "a GPU", "cases": [{"problem": "[80,176]×64×32", "gate": "silu", "output": "f16",
        "backend": "cuda", "floor_seconds": 1e-6, "burst": {"median": 2e-6, "p25": 1.5e-6, "p75": 3e-6}}]}"#;

    #[test]
    fn a_record_is_written_by_the_files_ending() {
        let written = |name: &str| written(Path::new(name), RECORD).unwrap();
        assert_eq!(written("a.json"), RECORD);
        let csv = written("a.csv");
        assert!(csv.starts_with("problem,who,clock,median,low,high,floor,gate,result\n\"[80,176]×64×32\","), "{csv}");
        assert!(csv.contains(",burst,2.0000e-6,1.5000e-6,3.0000e-6,1.0000e-6,silu,f16\n"), "{csv}");
        let markdown = written("a.md");
        assert!(
            markdown.contains("a GPU") && markdown.contains("|---|") && markdown.lines().count() == 5,
            "{markdown}"
        );
    }
}
