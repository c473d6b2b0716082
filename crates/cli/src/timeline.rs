//! Timelines of simulated runs as pictures: a row per warp, per copy in flight and per multiplication, with an arrow
//! from whatever let a warp go on to that warp.
//!
//! The earliest schedule stands on the left, and another one of those that were drawn on the right, chosen by a click:
//! no script is needed for that. Time is the order of events, and the page says so.

use page::escape;
use ptx::Kernel;
use sim::Schedule;
use sim::timeline::{Cause, Kind, Timeline, Work};

/// Pixels from one event to the next, and of a row, which the style sheet knows, too.
const EVENT: u32 = 7;
const ROW: u32 = 16;
/// Colours of stages: as many as the style sheet has.
const COLOURS: u32 = 8;
/// Work in flight at the same time that has a row of its own.
const MOST_ROWS: usize = 8;
/// Instructions that the words of a stretch name.
const NAMED: usize = 6;

/// The schedules that a page shows of those that ran: the extremes, and a few others.
pub fn shown(schedules: &[Schedule]) -> &[Schedule] {
    &schedules[..schedules.len().min(6)]
}

/// Runs of one kernel, one beside the other.
pub fn panes(kernel: &Kernel, runs: &[(Schedule, Timeline)]) -> String {
    let Some(((first, timeline), others)) = runs.split_first() else { return String::new() };
    let left = format!("<div class=\"pane\">\n<h3>{first}</h3>\n{}</div>\n", picture(kernel, timeline));
    let mut right = String::from("<div class=\"pane\">\n");
    for (number, (schedule, _)) in others.iter().enumerate() {
        let checked = if number == 0 { " checked" } else { "" };
        right += &format!(
            "<input type=\"radio\" name=\"schedule\" id=\"schedule{number}\"{checked}>\
             <label for=\"schedule{number}\">{schedule}</label>\n"
        );
    }
    right += "<div class=\"views\">\n";
    for (schedule, timeline) in others {
        right += &format!("<div>\n<h3>{schedule}</h3>\n{}</div>\n", picture(kernel, timeline));
    }
    right += "</div>\n</div>\n";
    let stages = runs.iter().flat_map(|(_, run)| run.works.iter().filter_map(|work| work.stage)).max();
    let key = |stage: u32| {
        let name = if stage + 1 == COLOURS { "stage 7 and on".into() } else { format!("stage {stage}") };
        format!("<span class=\"key stage{stage}\"></span> {name}\n")
    };
    let keys: String = (0..stages.map_or(0, |last| last.min(COLOURS - 1) + 1)).map(key).collect();
    format!(
        "<p>Time is logical: one step to the right is one event, an instruction that other threads can see or the end of asynchronous \
         work, in the order in which the schedule let them happen. It says nothing of how long anything takes on a GPU. \
         Work on copies and tensor cores lies from where it was issued to where the schedule completed it. Pale stretches of a warp are waits, \
         and an arrow points from what ended one to the warp that went on.</p>\n\
         <p class=\"fine\"><span class=\"key step\"></span> instructions\n<span class=\"key wait\"></span> waiting\n\
         <span class=\"key work\"></span> work without a stage\n{keys}</p>\n\
         <input type=\"checkbox\" id=\"whole\" checked><label for=\"whole\">the whole run at once</label>\n\
         <div class=\"panes\">\n{left}{}</div>\n",
        if others.is_empty() { "" } else { &right }
    )
}

/// A row of the picture.
enum Row {
    Block([u32; 3]),
    Warp(usize, u32),
    Works(&'static str, usize),
}

/// One run.
fn picture(kernel: &Kernel, timeline: &Timeline) -> String {
    let lines = flights(&timeline.works);
    let mut rows = Vec::new();
    for (rank, block) in timeline.blocks.iter().enumerate() {
        if timeline.blocks.len() > 1 {
            rows.push(Row::Block(*block));
        }
        rows.extend((0..timeline.warps).map(|warp| Row::Warp(rank, warp)));
    }
    rows.extend(lines.iter().enumerate().map(|(number, (name, _))| Row::Works(name, number)));
    let (width, height) = (EVENT * (timeline.length + 1), ROW * rows.len() as u32 + 4);
    let x = |at: u32| EVENT * at;
    let y = |row: usize| ROW * row as u32 + 2;
    let of_warp = |warp: (usize, u32)| {
        rows.iter().position(|row| matches!(row, Row::Warp(rank, index) if (*rank, *index) == warp)).unwrap_or(0)
    };
    let of_work = |work: usize| {
        let line = lines.iter().position(|(_, works)| works.contains(&work)).unwrap_or(0);
        rows.iter().position(|row| matches!(row, Row::Works(_, number) if *number == line)).unwrap_or(0)
    };
    let (mut marks, mut names) = (String::new(), String::new());
    for row in &rows {
        let name = match row {
            Row::Block([x, y, z]) => format!("block ({x}, {y}, {z})"),
            Row::Warp(_, warp) => format!("warp {warp}"),
            Row::Works(name, line) => match line.checked_sub(1).map(|before| lines[before].0) {
                Some(before) if before == *name => String::new(),
                _ => (*name).to_owned(),
            },
        };
        names += &format!("<div>{name}</div>");
    }
    let bar = |class: &str, (from, to): (u32, u32), row: usize, words: &str| {
        let width = (EVENT * (to.max(from + 1) - from)).saturating_sub(1);
        format!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{width}\" height=\"{}\"><title>{}</title></rect>",
            x(from),
            y(row),
            ROW - 4,
            escape(words)
        )
    };
    for wait in &timeline.waits {
        let words = format!("warp {} waits at {}", wait.warp.1, place(kernel, wait.position));
        marks += &bar("wait", (wait.from, wait.to.unwrap_or(timeline.length)), of_warp(wait.warp), &words);
    }
    for stretch in stretches(timeline) {
        let steps = &timeline.steps[stretch];
        let (first, last) = (&steps[0], &steps[steps.len() - 1]);
        let named: Vec<String> = steps.iter().take(NAMED).map(|step| place(kernel, step.position)).collect();
        let more = steps.len().saturating_sub(NAMED);
        let more = if more > 0 { format!("\nand {more} more") } else { String::new() };
        let words = format!("warp {}\n{}{more}", first.warp.1, named.join("\n"));
        marks += &bar("step", (first.at, last.at + 1), of_warp(first.warp), &words);
    }
    for (number, work) in timeline.works.iter().enumerate() {
        let stage = work.stage.map(|stage| format!("stage{}", stage.min(COLOURS - 1))).unwrap_or_default();
        let to = work.to.map_or(timeline.length, |to| to + 1);
        let shared = work.place.as_ref().map(|name| format!("\n{name}")).unwrap_or_default();
        let words = format!("issued by warp {} at {}{shared}", work.warp.1, place(kernel, work.position));
        marks += &bar(&format!("work {stage}"), (work.from, to), of_work(number), &words);
    }
    for wait in &timeline.waits {
        let (Some(to), Some(by)) = (wait.to, wait.by) else { continue };
        let from = match by {
            Cause::Warp(rank, warp) => of_warp((rank, warp)),
            Cause::Work(work) => of_work(work),
        };
        let (x, target) = (x(to) + EVENT / 2, of_warp(wait.warp));
        let (start, end) = (y(from) + ROW / 2 - 2, y(target) + ROW / 2 - 2);
        if start != end {
            let end = if start < end { end - 4 } else { end + 4 };
            marks += &format!("<line class=\"arrow\" x1=\"{x}\" x2=\"{x}\" y1=\"{start}\" y2=\"{end}\"/>");
            let wing = if start < end { end - 4 } else { end + 4 };
            marks +=
                &format!("<path class=\"head\" d=\"M{} {wing}L{x} {end}L{} {wing}z\"/>", x.saturating_sub(3), x + 3);
        }
    }
    let cut = if timeline.cut {
        format!("<p class=\"fine\">The run goes on beyond these {} events.</p>\n", timeline.length)
    } else {
        String::new()
    };
    format!(
        "<div class=\"lines\"><div class=\"names\">{names}</div>\n<div class=\"scroll\"><svg class=\"timeline\" width=\"{width}\" \
         height=\"{height}\" viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\" role=\"img\">\
         <title>timeline of {} events</title>{marks}</svg></div></div>\n{cut}",
        timeline.length
    )
}

/// An instruction in words: its line or its phase, and its text.
fn place(kernel: &Kernel, position: usize) -> String {
    let Some(instr) = kernel.body.get(position) else { return "its end".into() };
    let text: String = kernel.instruction(instr).trim().chars().take(90).collect();
    match instr.line {
        Some(line) => format!("line {line}: {text}"),
        None => format!("{}: {text}", kernel.phase_path(instr.phase)),
    }
}

/// Stretches of steps of one warp that no other event interrupts.
fn stretches(timeline: &Timeline) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for (number, step) in timeline.steps.iter().enumerate() {
        match found.last_mut() {
            Some(last)
                if timeline.steps[last.end - 1].warp == step.warp && timeline.steps[last.end - 1].at + 1 == step.at =>
            {
                last.end = number + 1;
            }
            _ => found.push(number..number + 1),
        }
    }
    found
}

/// Lines that work in flight is drawn on, by kind, so that what is in flight together stands in different ones; the
/// last line of a kind takes what is left.
fn flights(works: &[Work]) -> Vec<(&'static str, Vec<usize>)> {
    let mut lines = Vec::new();
    let kinds = [
        ("copies", &[Kind::Copy][..]),
        ("stores", &[Kind::Store, Kind::Write][..]),
        ("tensor cores", &[Kind::Multiply, Kind::Commit][..]),
    ];
    for (name, kinds) in kinds {
        let mut taken: Vec<(u32, Vec<usize>)> = Vec::new();
        for (number, work) in works.iter().enumerate().filter(|(_, work)| kinds.contains(&work.kind)) {
            let end = work.to.map_or(u32::MAX, |to| to + 1);
            let free = taken.iter().position(|(until, _)| *until <= work.from);
            match free.or((taken.len() == MOST_ROWS).then_some(MOST_ROWS - 1)) {
                Some(line) => {
                    taken[line].0 = end;
                    taken[line].1.push(number);
                }
                None => taken.push((end, vec![number])),
            }
        }
        lines.extend(taken.into_iter().map(|(_, line)| (name, line)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use sim::timeline::{Step, Wait};

    use super::*;

    fn work(from: u32, to: Option<u32>) -> Work {
        let (kind, warp, position) = (Kind::Copy, (0, 0), 0);
        Work { kind, from, to, warp, position, place: Some("tile+0".into()), stage: Some(0) }
    }

    fn kernel() -> Kernel {
        let text =
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() .reqntid 64 { bar.sync 0; ret; }";
        let module = ptx::parse::Module::read(text).unwrap();
        module.kernel("k", ptx::parse::Shape::default()).unwrap()
    }

    #[test]
    fn work_in_flight_together_has_lines_of_its_own() {
        let works = [work(0, Some(4)), work(1, None), work(4, Some(6)), work(5, Some(7))];
        let lines = flights(&works);
        assert_eq!(lines, [("copies", vec![0, 3]), ("copies", vec![1]), ("copies", vec![2])]);
        let later = [work(0, Some(4)), work(5, Some(6))];
        assert_eq!(flights(&later), [("copies", vec![0, 1])]);
    }

    #[test]
    fn whoever_lets_a_warp_go_on_is_at_the_arrow_s_beginning() {
        let step = |at, warp| Step { at, warp: (0, warp), lanes: u32::MAX, position: 0 };
        let timeline = Timeline {
            blocks: vec![[0, 0, 0]],
            warps: 2,
            steps: vec![step(0, 1), step(1, 0), step(2, 0), step(3, 1)],
            works: vec![work(1, Some(2))],
            waits: vec![Wait { from: 1, to: Some(2), warp: (0, 1), position: 0, by: Some(Cause::Warp(0, 0)) }],
            length: 4,
            cut: false,
        };
        assert_eq!(stretches(&timeline), [0..1, 1..3, 3..4]);
        let page = panes(&kernel(), &[(Schedule::Earliest, timeline.clone()), (Schedule::Latest, timeline)]);
        let (x, from, to) = (2 * EVENT + EVENT / 2, ROW / 2, ROW + ROW / 2 - 4);
        let arrow = format!("<line class=\"arrow\" x1=\"{x}\" x2=\"{x}\" y1=\"{from}\" y2=\"{to}\"/>");
        assert_eq!(page.matches(&arrow).count(), 2, "{page}");
        assert!(page.contains("<rect class=\"work stage0\"") && page.contains("Time is logical"));
        assert!(page.contains("warp 1 waits at line 4: barrier.sync"), "{page}");
        assert_eq!(page.matches("type=\"radio\"").count(), 1, "the earliest has no choice");
    }
}
