//! The report as one HTML page.

use super::{Report, text};
use crate::page::{self, escape};

pub fn html(report: &Report) -> String {
    let mut body = format!("<section id=\"findings\">\n<h2>{}</h2>\n", escape(&text::summary(report)));
    for finding in &report.findings {
        body += &format!(
            "<h3><span class=\"{0}\">{0}</span> <code>{1}</code></h3>\n<p>{2}</p>\n<p class=\"fine\">in {3}</p>\n",
            finding.grade.name(),
            finding.code,
            escape(&finding.says),
            escape(&finding.places())
        );
    }
    body += "</section>\n";
    if !report.merges.is_empty() {
        let headings = ["layer", "matrices", ">differ", "kept", ">largest error", ">Frobenius"];
        let rows: Vec<[String; 6]> = report
            .merges
            .iter()
            .map(|merge| {
                let [layer, what, differ, kept, largest, frobenius] = text::merge_cells(merge);
                [layer, what, format!(">{differ}"), kept, format!(">{largest}"), format!(">{frobenius}")]
            })
            .collect();
        body += &format!(
            "<section id=\"merges\">\n<h2>What one global scale for merged matrices does to weights</h2>\n{}</section>\n",
            page::table(&headings, rows.iter().map(|cells| &cells[..]))
        );
    }
    if !report.loaders.is_empty() {
        body += "<section id=\"loaders\">\n<h2>What loaders would do</h2>\n";
        for loader in &report.loaders {
            let (name, verdict, says) = (loader.name, loader.verdict.name(), escape(&loader.says));
            body += &format!("<h3>{name}: {verdict}</h3>\n<p>{says}</p>\n");
        }
        body += "</section>\n";
    }
    if !report.stored.is_empty() {
        body += &format!(
            "<section id=\"stored\">\n<h2>How matrices are stored</h2>\n<p>{}</p>\n<ul>\n",
            escape(&text::stored(&report.stored))
        );
        body.extend(report.layers.iter().map(|layers| format!("<li>{}</li>\n", escape(&text::layers_line(layers)))));
        body += "</ul>\n</section>\n";
    }
    page::html("hammerhead doctor", &text::about(report), &body)
}
