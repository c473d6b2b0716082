//! The one writer of HTML pages: seasons, replays, boards, measurements, explanations, timelines and race cards all
//! have the same frame and the same style.
//!
//! A page is a single file that fetches nothing and runs no script. It is light or dark as its reader's system is, and
//! can be read on a telephone, on a desk and on paper. [`Page`] is the frame; the functions here are the parts that
//! pages are made of, and [`plot`], [`chart`] and [`bars`] draw. `.ci/browse.py` looks at one page of each kind in a
//! real browser.
//!
//! Whatever is called *text* is escaped here. Whatever is called *HTML* is written as it is, so names from files and
//! ledgers go through [`escape`] first.

pub mod bars;
pub mod chart;
mod face;
pub mod plot;

pub use face::face;

const STYLE: &str = include_str!("style.css");

/// A page: a title, what stands above everything else, and sections.
#[derive(Debug)]
pub struct Page {
    title: String,
    header: String,
    sections: Vec<(String, String, String)>,
}

impl Page {
    /// A page with this title, which is text, and what follows it, which is HTML.
    pub fn new(title: &str, header: &str) -> Self {
        Self { title: title.to_owned(), header: header.to_owned(), sections: Vec::new() }
    }

    /// Adds a section: its name in addresses, its heading, which is text, and its HTML. One without a body is left out.
    pub fn section(mut self, id: &str, heading: &str, body: &str) -> Self {
        if !body.trim().is_empty() {
            self.sections.push((id.to_owned(), escape(heading), body.to_owned()));
        }
        self
    }

    /// The whole page, with a list of contents where there is more than one section.
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let item = |(id, heading, _): &(String, String, String)| format!("<li><a href=\"#{id}\">{heading}</a></li>");
        let contents = match self.sections.len() {
            0 | 1 => String::new(),
            _ => format!(
                "<nav id=\"contents\" aria-label=\"Contents\"><ol>{}</ol></nav>\n",
                self.sections.iter().map(item).collect::<String>()
            ),
        };
        let section = |(id, heading, body): &(String, String, String)| {
            format!("<section id=\"{id}\">\n<h2>{heading}</h2>\n{body}</section>\n")
        };
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
             <header>\n<h1>{title}</h1>\n{}</header>\n{contents}{}</main>\n</body>\n</html>\n",
            self.header,
            self.sections.iter().map(section).collect::<String>()
        )
    }
}

/// Text with what HTML would take for its own.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A table that scrolls by itself where the page is narrow. Headings are text, and one that begins with `>` makes its
/// column stand to the right, as figures do; cells are HTML.
pub fn table<R: AsRef<[String]>>(headings: &[&str], rows: impl IntoIterator<Item = R>) -> String {
    let right: Vec<&str> =
        headings.iter().map(|heading| if heading.starts_with('>') { " class=\"number\"" } else { "" }).collect();
    let head = headings.iter().zip(&right).map(|(heading, right)| {
        format!("<th scope=\"col\"{right}>{}</th>", escape(heading.strip_prefix('>').unwrap_or(heading)))
    });
    let row = |cells: R| {
        let cells = cells.as_ref().iter().enumerate();
        let cells = cells.map(|(at, cell)| format!("<td{}>{cell}</td>", right.get(at).unwrap_or(&"")));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let body: String = rows.into_iter().map(row).collect();
    if body.is_empty() {
        return "<p>Nothing yet.</p>\n".to_owned();
    }
    let head: String = head.collect();
    format!("<div class=\"scroll\"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n")
}

/// A verdict in its colour, which is that of its first word: `SUCCESS, predicted` is a success.
pub fn badge(verdict: &str) -> String {
    let class = verdict.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_lowercase();
    format!("<span class=\"badge {class}\">{}</span>", escape(verdict))
}

/// What opens with a click, and is open on paper. The summary and the body are HTML.
pub fn details(summary: &str, body: &str) -> String {
    format!("<details><summary>{summary}</summary>\n{body}</details>\n")
}

/// A legend: swatches by their class, each with its meaning, which is HTML; then a remark.
pub fn legend(keys: &[(&str, &str)], remark: &str) -> String {
    let key = |(class, meaning): &(&str, &str)| {
        format!("<span class=\"entry\"><span class=\"key {class}\"></span>&nbsp;{meaning}</span> ")
    };
    format!("<p class=\"fine\">{}{remark}</p>\n", keys.iter().map(key).collect::<String>())
}

/// Facts as a list of name, which is text, and value, which is HTML.
pub fn facts(facts: &[(&str, String)]) -> String {
    let fact = |(name, value): &(&str, String)| format!("<dt>{}</dt><dd>{value}</dd>\n", escape(name));
    format!("<dl class=\"facts\">\n{}</dl>\n", facts.iter().map(fact).collect::<String>())
}

/// A part of the floor in percent: how near a time comes to the least that is possible. It is never above 100: what
/// seems faster was timed at another moment than the rates that the floor is made of, or found its data in a cache.
pub fn of_floor(floor: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { (100.0 * floor / seconds).min(100.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_its_title_once_as_text_and_contents_for_its_sections() {
        let page =
            Page::new("a < b", "<p>c</p>\n").section("one", "One & only", "<p>1</p>\n").section("none", "N", " \n");
        assert!(page.html().contains("<title>a &lt; b</title>") && page.html().contains("<h1>a &lt; b</h1>\n<p>c</p>"));
        assert!(!page.html().contains("<nav"), "one section needs no contents, and an empty one is none");
        let page = page.section("two", "Two", "<p>2</p>\n").html();
        assert!(page.contains("<a href=\"#one\">One &amp; only</a>") && page.contains("<a href=\"#two\">Two</a>"));
        for outside in ["<script", "http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn figures_stand_to_the_right_of_tables_and_cells_are_html() {
        let text = table(&["who", ">how fast"], [["<b>x</b>".to_owned(), "1.0×".to_owned()]]);
        assert!(text.contains("<td><b>x</b></td><td class=\"number\">1.0×</td>"), "{text}");
        assert!(text.contains("<th scope=\"col\" class=\"number\">how fast</th>"), "{text}");
        assert_eq!(table(&["who"], Vec::<Vec<String>>::new()), "<p>Nothing yet.</p>\n");
    }

    #[test]
    fn the_floor_is_reached_to_a_hundred_percent_and_no_more() {
        assert_eq!([of_floor(1.0, 4.0), of_floor(3.0, 2.0), of_floor(1.0, 0.0)], [25.0, 100.0, 0.0]);
    }

    #[test]
    fn a_verdict_s_first_word_is_its_colour() {
        assert_eq!(badge("SUCCESS, predicted"), "<span class=\"badge success\">SUCCESS, predicted</span>");
    }
}
