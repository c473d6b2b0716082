//! What was measured as one page. Records of others stand beside it, problem by problem, and every number of a bar is
//! in a table too.

use page::bars::Time;
use page::{Page, escape, facts, legend, of_floor};

use super::reading::{Record, Row};
use crate::table;

/// The rows of one problem: this run's, and those of other records for the same.
struct Block<'r> {
    problem: &'r str,
    gate: Option<&'r str>,
    output: Option<&'r str>,
    lines: Vec<Line<'r>>,
}

/// A row, and the record it is from where that is not this run.
#[derive(Clone, Copy)]
struct Line<'r> {
    row: &'r Row,
    beside: Option<&'r str>,
}

/// The page of this run's record, with others beside it.
pub fn html(own: &Record, others: &[Record]) -> String {
    let blocks = blocks(own, others);
    let known = [
        ("machine", Some(own.about.clone())),
        ("date", own.at.clone()),
        ("ceilings", own.ceilings.clone()),
        ("command", own.command.clone()),
    ];
    let known: Vec<(&str, String)> = known
        .into_iter()
        .filter_map(|(name, value)| {
            let value = escape(&value?);
            Some((name, if name == "command" { format!("<code>{value}</code>") } else { value }))
        })
        .collect();
    let charts: String = blocks.iter().map(chart).collect();
    Page::new("hammerhead bench", &format!("{}{}", headline(own), facts(&known)))
        .section("beside", "Beside it", &beside(others, &blocks))
        .section("times", "Time against the floor", &format!("{}{charts}", explained(&blocks)))
        .section("numbers", "Numbers", &numbers(&blocks))
        .html()
}

/// How near the run's first clock comes to the floor, over all problems.
fn headline(own: &Record) -> String {
    let Some(clock) = own.rows.first().map(|row| row.clock) else { return String::new() };
    let of_clock = own.rows.iter().filter(|row| row.clock == clock);
    let reached = of_clock.filter_map(|row| Some(of_floor(row.floor?, row.times.median))).filter(|part| *part > 0.0);
    let reached: Vec<f64> = reached.map(f64::ln).collect();
    if reached.is_empty() {
        return String::new();
    }
    let (mean, count) = ((reached.iter().sum::<f64>() / reached.len() as f64).exp(), reached.len());
    format!(
        "<p class=\"headline\"><strong>{mean:.0} %</strong> of the floor</p>\n<p>The geometric mean over {count} {}, {clock}: 100 % is the least time \
         that this machine's arithmetic and memory allow.</p>\n",
        if count == 1 { "row" } else { "rows" }
    )
}

/// Gathers the rows of each problem that this run has.
fn blocks<'r>(own: &'r Record, others: &'r [Record]) -> Vec<Block<'r>> {
    let mut blocks: Vec<Block<'r>> = Vec::new();
    for row in &own.rows {
        let (problem, gate, output) = (row.problem.as_str(), row.gate.as_deref(), row.output.as_deref());
        let line = Line { row, beside: None };
        match blocks.iter_mut().find(|b| (b.problem, b.gate, b.output) == (problem, gate, output)) {
            Some(block) => block.lines.push(line),
            None => blocks.push(Block { problem, gate, output, lines: vec![line] }),
        }
    }
    for (record, row) in others.iter().flat_map(|record| record.rows.iter().map(move |row| (record, row))) {
        let line = Line { row, beside: Some(&record.name) };
        let same_gate = |gate: Option<&str>| row.gate.is_none() || row.gate.as_deref() == gate;
        let block = blocks.iter_mut().find(|block| block.problem == row.problem && same_gate(block.gate));
        block.into_iter().for_each(|block| block.lines.push(line));
    }
    blocks
}

/// What stands beside this run, and a word of caution.
fn beside(others: &[Record], blocks: &[Block<'_>]) -> String {
    let placed =
        |name: &str| blocks.iter().flat_map(|block| &block.lines).filter(|line| line.beside == Some(name)).count();
    let one = |record: &Record| {
        let left_out = match record.rows.len() - placed(&record.name).min(record.rows.len()) {
            0 => String::new(),
            rows => format!("; {rows} of its rows are of problems that this run does not have"),
        };
        format!("<li><strong>{}</strong>: {}{left_out}</li>", escape(&record.name), escape(&record.about))
    };
    if others.is_empty() {
        return String::new();
    }
    let list: String = others.iter().map(one).collect();
    format!(
        "<ul>{list}</ul>\n<p class=\"fine\">Other records are of other runs: a shared machine changes its speed \
         from minute to minute, and only times of one run on one machine compare well.</p>\n"
    )
}

fn explained(blocks: &[Block<'_>]) -> String {
    let lines = || blocks.iter().flat_map(|block| &block.lines);
    let tenths = lines().any(|line| line.row.times.range().is_some_and(|(_, half)| !half));
    let tenths = if tenths { " (of older records the middle eight tenths)" } else { "" };
    let mut keys = vec![("ours", "this run")];
    if lines().any(|line| line.beside.is_some()) {
        keys.push(("beside", "other records"));
    }
    let remark = format!(
        "A bar ends at the median; the whisker is the middle half of the samples{tenths}. The dashed line is the floor: the least time that the \
         machine's arithmetic and memory would allow. Each problem has a scale of its own, from zero."
    );
    legend(&keys, &remark)
}

/// The clocks of a block in the order in which they were met.
fn clocks(block: &Block<'_>) -> Vec<&'static str> {
    let mut clocks = Vec::new();
    for line in &block.lines {
        if !clocks.contains(&line.row.clock) {
            clocks.push(line.row.clock);
        }
    }
    clocks
}

/// One problem: a bar for everyone who computed it, clock by clock.
fn chart(block: &Block<'_>) -> String {
    let ends = block.lines.iter().map(|line| time(line.row, line.row.floor).end());
    let scale = 1.02 * ends.fold(f64::MIN_POSITIVE, f64::max);
    let about = [block.gate.map(|gate| format!("gate {gate}")), block.output.map(|output| format!("result {output}"))];
    let about = about.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let mut text = format!("<h3>{}</h3>\n<p class=\"fine\">{}</p>\n", escape(block.problem), escape(&about));
    for clock in clocks(block) {
        let lines = || block.lines.iter().filter(|line| line.row.clock == clock);
        text += &format!("<h4>{clock}</h4>\n");
        text.extend(lines().map(|line| {
            let (label, class, floor) = (escape(&label(line)), class(line), floor(block, line));
            format!(
                "<div class=\"row plain {class}\"><div>{label}</div><div>{}</div><div class=\"figures\">{}</div></div>\n",
                time(line.row, floor).bar(&format!("{label}: {}", table::seconds(line.row.times.median)), scale),
                figures(block, line, floor),
            )
        }));
    }
    text
}

fn label(line: &Line<'_>) -> String {
    line.beside.map_or_else(|| line.row.who.clone(), |record| format!("{} ({record})", line.row.who))
}

fn class(line: &Line<'_>) -> &'static str {
    if line.beside.is_some() { "beside" } else { "ours" }
}

/// A row's floor: its record's own, else that of the first row of the same problem and clock that has one.
fn floor(block: &Block<'_>, line: &Line<'_>) -> Option<f64> {
    let same = block.lines.iter().filter(|other| other.row.clock == line.row.clock);
    line.row.floor.or_else(|| same.into_iter().find_map(|other| other.row.floor))
}

/// What is drawn of a row.
fn time(row: &Row, floor: Option<f64>) -> Time {
    Time { median: row.times.median, range: row.times.range().map(|(range, _)| range), floor }
}

/// The numbers beside a bar.
fn figures(block: &Block<'_>, line: &Line<'_>, floor: Option<f64>) -> String {
    let reached = floor.map(|floor| format!(", {:.0} % of the floor", of_floor(floor, line.row.times.median)));
    let ratio = ratio(block, line).map(|ratio| format!(", {ratio:.2}×"));
    format!(
        "{}{}{}",
        table::seconds(line.row.times.median),
        reached.unwrap_or_default(),
        ratio.filter(|_| line.beside.is_some()).unwrap_or_default()
    )
}

/// A row's median over that of this run's first row by the same clock.
fn ratio(block: &Block<'_>, line: &Line<'_>) -> Option<f64> {
    let first = block.lines.iter().find(|own| own.beside.is_none() && own.row.clock == line.row.clock)?;
    Some(line.row.times.median / first.row.times.median)
}

/// Every number of the bars, and what was configured.
fn numbers(blocks: &[Block<'_>]) -> String {
    let head = [
        "problem",
        "who",
        "clock",
        ">median",
        ">best",
        ">middle half",
        ">floor",
        ">of the floor",
        ">÷ first",
        ">samples",
        "configuration",
    ];
    let mut rows = Vec::new();
    for (block, line) in blocks.iter().flat_map(|block| block.lines.iter().map(move |line| (block, line))) {
        let (row, times) = (line.row, &line.row.times);
        let seconds = |time: Option<f64>| time.map_or("—".to_owned(), table::seconds);
        let range = times.range().map_or("—".to_owned(), |((low, high), half)| {
            format!("{}…{}{}", table::seconds(low), table::seconds(high), if half { "" } else { " (eight tenths)" })
        });
        let floor = floor(block, line);
        let reached = floor.map(|floor| format!("{:.0} %", of_floor(floor, times.median)));
        let known = |text: Option<String>| text.unwrap_or_else(|| "—".to_owned());
        rows.push([
            escape(&row.problem),
            format!("<span class=\"nowrap\">{}</span>", escape(&label(line))),
            row.clock.to_owned(),
            seconds(Some(times.median)),
            seconds(times.best),
            range,
            seconds(floor),
            known(reached),
            known(ratio(block, line).map(|ratio| format!("{ratio:.2}"))),
            known(times.samples.map(|samples| samples.to_string())),
            row.config.as_ref().map(|config| format!("<code>{}</code>", escape(config))).unwrap_or_default(),
        ]);
    }
    format!(
        "<p class=\"fine\">÷ first is a median over that of this run's first row for the same problem and clock.</p>\n{}",
        page::table(&head, rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, text: &str) -> Record {
        Record::read(name, text).unwrap()
    }

    fn own() -> Record {
        record(
            "this run",
            r#"{"version": "1<2", "at": "2026-01-02T03:04:05Z", "command": "hammerhead bench --seed '<'",
                "ceilings": {"flops_per_second": {"median": 2e12, "best": 3e12}, "bytes_per_second": 5e10}, "machine": {"cpu": "A & B"}, "cases": [
                {"problem": "1×2×16", "gate": "silu", "output": "f16", "activation": "nvfp4", "backend": "amx",
                 "config": "tile=1", "floor_seconds": 0.001,
                 "cold": {"median": 0.004, "best": 0.002, "p25": 0.003, "p75": 0.008, "samples": 9},
                 "warm": {"median": 0.002, "best": 0.001, "p10": 0.001, "p90": 0.003, "samples": 9}}]}"#,
        )
    }

    #[test]
    fn a_row_has_one_bar_one_whisker_and_one_floor_to_scale() {
        let page = html(&own(), &[]);
        // The range of the cold row ends at 8 ms, and the scale 2 % beyond.
        let x = |milliseconds: f64| format!("{:.1}", 1000.0 * milliseconds / 8.16);
        for mark in [
            format!("<rect class=\"time\" x=\"0\" y=\"3\" width=\"{}\"", x(4.0)),
            format!("<line class=\"whisker\" x1=\"{}\" x2=\"{}\" y1=\"9\"", x(3.0), x(8.0)),
            format!("<line class=\"floor\" x1=\"{}\"", x(1.0)),
        ] {
            assert!(page.contains(&mark), "no {mark} in {page}");
        }
        for number in [
            "4.00 ms",
            "3.00 ms…8.00 ms",
            "25 %",
            "<strong>25 %</strong> of the floor",
            "1.00 ms…3.00 ms (eight tenths)",
        ] {
            assert!(page.contains(number), "no {number} in the table");
        }
        for known in ["2026-01-02T03:04:05Z", "--seed '&lt;'", "2000 GFLOP/s, 50.0 GB/s from memory"] {
            assert!(page.contains(known), "no {known}");
        }
        assert!(page.contains("A &amp; B") && page.contains("hammerhead 1&lt;2"));
        assert!(!page.contains("other records"), "there are none");
    }

    #[test]
    fn others_stand_beside_the_same_problem_and_gate() {
        let other = record(
            "peer<s>",
            r#"{"torch": "2", "cases": [
                {"problem": "1×2×16", "who": "torch bf16", "cold": {"median": 0.012}},
                {"problem": "1×2×16", "gate": "none", "cold": {"median": 0.5}},
                {"problem": "9×9×16", "cold": {"median": 0.5}}]}"#,
        );
        let page = html(&own(), &[other]);
        assert!(
            page.contains("torch bf16 (peer&lt;s&gt;)") && page.contains("12.0 ms, 8 % of the floor, 3.00×"),
            "{page}"
        );
        assert!(page.contains("2 of its rows are of problems that this run does not have"), "{page}");
        assert!(!page.contains("9×9×16") && !page.contains("500 ms"), "{page}");
    }

    #[test]
    fn the_h200_s_records_stand_beside_each_other() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/h200");
        let [bench, peers] = ["bench.json", "peers.json"].map(|name| Record::open(&folder.join(name)).unwrap());
        let page = html(&bench, &[peers]);
        let problems = page.matches("<h3>").count();
        assert_eq!(page.matches("<h4>burst</h4>").count(), problems, "each problem after a pause");
        assert_eq!(page.matches("one (peers)</div>").count(), 2 * problems, "each with its peer, by both clocks");
        assert!(!page.contains("of problems that this run does not have"));
    }

    #[test]
    fn nothing_is_fetched_and_no_script_runs() {
        let page = html(&own(), &[own()]);
        for outside in ["<script", "http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
