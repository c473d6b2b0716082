//! The report as one HTML page.

use page::{Page, escape, table};

use super::loaders::Loader;
use super::{Report, text};

pub fn html(report: &Report) -> String {
    let about = format!("<p>{}</p>\n", escape(&text::about(report)));
    let findings: String = report
        .findings
        .iter()
        .map(|finding| {
            format!(
                "<h3><span class=\"{0}\">{0}</span> <code>{1}</code></h3>\n<p>{2}</p>\n<p class=\"fine\">in {3}</p>\n",
                finding.grade.name(),
                finding.code,
                escape(&finding.says),
                escape(&finding.places())
            )
        })
        .collect();
    let findings =
        if findings.is_empty() { "<p>There is nothing to complain about.</p>\n".to_owned() } else { findings };
    let headings = ["layer", "matrices", ">differ", "kept", ">largest error", ">Frobenius"];
    let merges = match report.merges.as_slice() {
        [] => String::new(),
        merges => table(&headings, merges.iter().map(|merge| text::merge_cells(merge).map(|cell| escape(&cell)))),
    };
    let loader = |loader: &Loader| {
        format!("<h3>{}: {}</h3>\n<p>{}</p>\n", loader.name, loader.verdict.name(), escape(&loader.says))
    };
    let stored = match report.stored.is_empty() {
        true => String::new(),
        false => {
            let line = |layers| format!("<li>{}</li>\n", escape(&text::layers_line(layers)));
            let lines: String = report.layers.iter().map(line).collect();
            format!("<p>{}</p>\n<ul>\n{lines}</ul>\n", escape(&text::stored(&report.stored)))
        }
    };
    Page::new("hammerhead doctor", &about)
        .section("findings", &text::summary(report), &findings)
        .section("merges", "What one global scale for merged matrices does to weights", &merges)
        .section("loaders", "What loaders would do", &report.loaders.iter().map(loader).collect::<String>())
        .section("stored", "How matrices are stored", &stored)
        .html()
}
