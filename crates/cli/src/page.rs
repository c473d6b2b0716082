//! The frame of every HTML page that a command writes: no network, no scripts, readable on a telephone and in the dark.

const STYLE: &str = include_str!("page.css");

/// A whole page. Title and introduction are text; the body is HTML.
pub fn html(title: &str, about: &str, body: &str) -> String {
    let (title, about) = (escape(title), escape(about));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{title}: {about}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <header>\n<h1>{title}</h1>\n<p>{about}</p>\n</header>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// A table. Headings and cells that start with `>` stand to the right, as in [`crate::table::Table`].
pub fn table<'c>(headings: &[&str], rows: impl IntoIterator<Item = &'c [String]>) -> String {
    let head: String = headings.iter().map(|name| cell("th", name)).collect();
    let row =
        |cells: &[String]| format!("<tr>{}</tr>\n", cells.iter().map(|text| cell("td", text)).collect::<String>());
    let rows: String = rows.into_iter().map(row).collect();
    format!("<div class=\"scroll\"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n")
}

fn cell(tag: &str, text: &str) -> String {
    let scope = if tag == "th" { " scope=\"col\"" } else { "" };
    match text.strip_prefix('>') {
        Some(number) => format!("<{tag}{scope} class=\"number\">{}</{tag}>", escape(number)),
        None => format!("<{tag}{scope}>{}</{tag}>", escape(text)),
    }
}

/// Text with what HTML would take for its own.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
