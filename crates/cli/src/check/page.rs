//! The page of a check: a card for each finding, with both sides of a race in the kernel's text, and timelines.

use page::{Page, escape, facts, table};
use ptx::Kernel;
use sim::{Schedule, Timeline};

use super::{Finding, Race, Report, Side};
use crate::timeline;

/// Lines of the text that are shown before and behind one.
const AROUND: usize = 3;

/// The whole page.
pub fn html(report: &Report, (kernel, text): (&Kernel, &str), runs: &[(Schedule, Timeline)]) -> String {
    let Report { schedules, findings, suppressed, profile, .. } = report;
    let about = match findings.len() {
        0 => format!("nothing found under {schedules} schedules"),
        1 => format!("a finding under {schedules} schedules"),
        count => format!("{count} findings under {schedules} schedules"),
    };
    let cards: String = findings.iter().map(|finding| card(finding, text)).collect();
    let passed = suppressed.iter().map(|passed| {
        let line = passed.finding.line.map(|line| line.to_string()).unwrap_or_default();
        [passed.finding.rule.to_owned(), line, escape(&passed.reason)]
    });
    let passed = if suppressed.is_empty() { String::new() } else { table(&["rule", ">line", "reason"], passed) };
    let lines: Vec<String> = profile.iter().map(|line| escape(line)).collect();
    let profile = if lines.is_empty() { String::new() } else { format!("<pre>{}</pre>\n", lines.join("\n")) };
    Page::new(&format!("Check of {}", report.kernel), &format!("<p>{}</p>\n", escape(&about)))
        .section("findings", "Findings", &cards)
        .section("passed", "Let pass", &passed)
        .section("timelines", "Timelines", &timeline::panes(kernel, runs))
        .section("profile", "What a run did", &profile)
        .html()
}

fn card(finding: &Finding, text: &str) -> String {
    let Finding { grade, report, rule, schedule, line, message, race, .. } = finding;
    let seen = report.map(|report| format!(" ({report})")).unwrap_or_default();
    let class = if *grade == "letter" { "note" } else { "error" };
    let title = escape(&format!("{rule}{seen}"));
    let mut card = format!("<div class=\"card\">\n<h3><span class=\"{class}\">{grade}</span>: {title}</h3>\n");
    match race {
        Some(race) => card += &sides(race, schedule, text),
        None => {
            card += &facts(&[("schedule", escape(schedule))]);
            card.extend(line.map(|line| excerpt(text, line)));
        }
    }
    card + &format!("<details><summary>all that is known</summary>\n<pre>{}</pre></details>\n</div>\n", escape(message))
}

fn sides(race: &Race, schedule: &str, text: &str) -> String {
    let side = |title: &str, side: &Side| {
        let about = [("access", &side.access), ("by", &side.by), ("source", &side.source)];
        let about = facts(&about.map(|(name, value)| (name, escape(value))));
        let written = match side.line {
            Some(line) => excerpt(text, line),
            None => format!("<pre><mark>{}</mark></pre>\n", escape(&side.instruction)),
        };
        format!("<div>\n<h4>{title}</h4>\n{about}{written}</div>\n")
    };
    let known =
        [("bytes", race.place.as_str()), ("lacks", &race.lacks), ("remedy", race.remedy), ("schedule", schedule)];
    let known = facts(&known.map(|(name, value)| (name, escape(value))));
    let (first, second) = (side("first", &race.first), side("second", &race.second));
    format!("{known}<div class=\"sides\">\n{first}{second}</div>\n")
}

/// A line of the text, counted from one, among its neighbours.
fn excerpt(text: &str, line: u32) -> String {
    let first = (line as usize).saturating_sub(AROUND + 1);
    let shown = text.lines().enumerate().skip(first).take(line as usize + AROUND - first);
    let each = shown.map(|(number, written)| {
        let row = escape(&format!("{:>5}  {}", number + 1, written.trim_end().replace('\t', "    ")));
        if number + 1 == line as usize { format!("<mark>{row}</mark>\n") } else { format!("{row}\n") }
    });
    format!("<pre>{}</pre>\n", each.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_has_the_line_and_its_neighbours() {
        let text: String = (1..=20).map(|line| format!("\tline {line} <b>\n")).collect();
        let middle = excerpt(&text, 10);
        assert!(middle.contains("<mark>   10      line 10 &lt;b&gt;</mark>"), "{middle}");
        assert!(middle.contains("    7  ") && middle.contains("   13  "), "{middle}");
        assert!(!middle.contains("    6  ") && !middle.contains("   14  "), "{middle}");
        assert!(excerpt(&text, 1).starts_with("<pre><mark>    1  "));
        assert!(excerpt(&text, 20).ends_with("</mark>\n</pre>\n"));
        assert_eq!(excerpt(&text, 99), "<pre></pre>\n", "a line that is not there is nothing");
    }
}
