//! The report as text of at most 100 columns.

use std::collections::BTreeMap;

use super::finding::count;
use super::groups::{Merge, error_words};
use super::{Report, Stored};
use crate::table::Table;

const COLUMNS: usize = 100;

/// How many layers of merging are listed; JSON and HTML have them all.
const MERGES: usize = 12;

pub fn text(report: &Report) -> String {
    let mut text = wrapped(&about(report), "", "  ");
    if !report.stored.is_empty() {
        text += &wrapped(&format!("matrices: {}", stored(&report.stored)), "", "  ");
    }
    for layers in &report.layers {
        text += &wrapped(&layers_line(layers), "  ", "    ");
    }
    text += &format!("\n{}\n", summary(report));
    for finding in &report.findings {
        text += &format!("\n{} {}\n", finding.grade.name(), finding.code);
        text += &wrapped(&finding.says, "  ", "  ");
        text += &wrapped(&format!("in {}", finding.places()), "  ", "    ");
    }
    if !report.merges.is_empty() {
        text += "\nWhat one global scale for merged matrices does to weights\n";
        let mut table = Table::new(&["layer", "matrices", ">differ", "kept", ">largest error", ">Frobenius"]);
        for merge in report.merges.iter().take(MERGES) {
            table.row(merge_cells(merge));
        }
        text += &table.text();
        if report.merges.len() > MERGES {
            text += &format!("and {} more; --json and --html have them all\n", report.merges.len() - MERGES);
        }
    }
    for (at, loader) in report.loaders.iter().enumerate() {
        text += if at == 0 { "\nWhat loaders would do\n" } else { "" };
        let line = format!("{}: {}. {}", loader.name, loader.verdict.name(), loader.says);
        text += &wrapped(&line, "  ", "    ");
    }
    text
}

pub fn about(report: &Report) -> String {
    let kind = report.model_type.iter().map(|kind| format!(", a {kind}")).collect::<String>();
    let declared = match report.declared[..] {
        [] => String::new(),
        _ => format!(", declared as {}", report.declared.join(" and ")),
    };
    format!("{}{kind}{declared}", report.model)
}

pub fn summary(report: &Report) -> String {
    let [errors, warnings, notes] = [(report.errors, "error"), (report.warnings, "warning"), (report.notes, "note")]
        .map(|(n, what)| count(n, what));
    format!("{errors}, {warnings}, {notes}")
}

pub fn stored(counts: &BTreeMap<String, usize>) -> String {
    counts.iter().map(|(stored, count)| format!("{count} {stored}")).collect::<Vec<_>>().join(", ")
}

pub fn layers_line(layers: &Stored) -> String {
    let Stored { tower, first, last, stored: counts } = layers;
    let range = if first == last { format!("{first}") } else { format!("{first}–{last}") };
    format!("{tower}.{range}: {}", stored(counts))
}

pub fn merge_cells(merge: &Merge) -> [String; 6] {
    [
        merge.layer.clone(),
        merge.what.to_owned(),
        format!("{} of {}", merge.differing, merge.groups),
        merge.keeps.to_owned(),
        error_words(merge.largest_error),
        error_words(merge.frobenius_error),
    ]
}

/// Text in lines that fit, broken between words; a word that is longer than a line is cut.
fn wrapped(text: &str, first: &str, rest: &str) -> String {
    let (mut lines, mut line, mut width) = (String::new(), first.to_owned(), first.chars().count());
    let mut is_empty = true;
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        while !word.is_empty() {
            let space = usize::from(!is_empty);
            if width + space + word.len() <= COLUMNS {
                line.extend(" ".repeat(space).chars().chain(word.iter().copied()));
                (width, is_empty) = (width + space + word.len(), false);
                break;
            }
            if is_empty {
                line.extend(word.drain(..COLUMNS - width));
            }
            lines += &line;
            lines.push('\n');
            (line, width, is_empty) = (rest.to_owned(), rest.chars().count(), true);
        }
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_longer_than_a_hundred_columns_and_no_word_is_lost() {
        let text = format!("{} {} end", "word ".repeat(50), "x".repeat(250));
        let lines = wrapped(&text, "", "  ");
        assert!(lines.lines().all(|line| line.chars().count() <= COLUMNS), "{lines}");
        let kept = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
        assert_eq!(kept(&lines), kept(&text));
    }
}
