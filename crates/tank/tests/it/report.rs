//! The report of a season: everything a reader needs is in it, whatever anyone called their pitch.

use std::path::Path;

use crate::scripted::{Fate, claiming, pitch, records, season, two};
use referee::Speedup;
use tank::board::boards;
use tank::ledger::Record;
use tank::replay::first_season;
use tank::report::{Report, html, markdown, replay};
use tank::verdict::Verdict;

/// Leaves a page where the browser check of the CI looks for it.
pub fn keep(name: &str, page: &str) {
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), page).unwrap();
}

fn told() -> Vec<Record> {
    let mut second = vec![
        claiming(pitch("<script>alert(1)</script> | x", "strategy=sequential,tile=16x32,depth=64,stages=1"), 1.2),
        pitch("fourth", "strategy=sequential,tile=16x16,depth=64,stages=1"),
        pitch("illegal", "tile=16x7"),
    ];
    second[0].contestant = "Ada & Co".into();
    let season = season(&[("one", two()), ("two", second)]);
    let fates = [
        ("first", Fate::Speed(0.8)),
        ("second", Fate::Speed(1.3)),
        ("<script>alert(1)</script> | x", Fate::Speed(1.1)),
        ("fourth", Fate::Wrong),
    ];
    records(&season, &fates)
}

#[test]
fn rewards_grow_with_what_is_known_to_be_gained_and_pay_for_nothing_else() {
    let mut report = Report::new(&told(), None).unwrap();
    let won = report.attempts.iter().position(|attempt| attempt.verdict == Verdict::Success).unwrap();
    let name = report.attempts[won].pitch.clone();
    let earned = |report: &Report| report.rewards().into_iter().find(|reward| reward.pitch == name).unwrap().reward;
    let mut at = |low: f64, high: f64| {
        report.attempts[won].measured = Some(Speedup { estimate: (low * high).sqrt(), low, high });
        earned(&report)
    };
    // The same estimate, known better and better; and a gain that grows.
    let known = [(1.0, 1.44), (1.1, 1.309), (1.2, 1.2), (1.3, 1.31), (2.0, 9.0)].map(|(low, high)| at(low, high));
    assert!(known.windows(2).all(|pair| pair[0] < pair[1]) && known[0] == 0.0, "{known:?}");
    assert_eq!((at(2.0, 9.0), at(0.9, 9.0)), (2f64.ln(), 0.0), "never below zero");
    at(1.5, 1.6);
    for verdict in [Verdict::Failure, Verdict::Partial, Verdict::Void, Verdict::Inconclusive, Verdict::Blocked] {
        report.attempts[won].verdict = verdict;
        assert_eq!(earned(&report), 0.0, "{verdict}");
    }
    report.attempts[won].verdict = Verdict::Success;
    report.foretold = Some("B200".to_owned());
    assert_eq!(earned(&report), 0.0, "what is only predicted");
}

#[test]
fn each_fate_is_paid_as_its_verdict_says_and_pitches_that_were_not_built_are_told_why() {
    let season = season(&[("one", two())]);
    for (fate, verdict, pays) in [
        (Fate::Speed(1.3), Verdict::Success, true),
        (Fate::Speed(0.8), Verdict::Failure, false),
        (Fate::Wrong, Verdict::Failure, false),
        (Fate::Crash, Verdict::Failure, false),
        (Fate::Mixed, Verdict::Partial, false),
        (Fate::Unknown, Verdict::Inconclusive, false),
        (Fate::Void(9, 1.5), Verdict::Void, false),
        (Fate::Blocked, Verdict::Blocked, false),
    ] {
        let rewards = Report::new(&records(&season, &[("first", fate.clone())]), None).unwrap().rewards();
        let first = rewards.iter().find(|reward| reward.pitch == "first").unwrap();
        assert_eq!((first.verdict, first.reward > 0.0), (Some(verdict), pays), "{fate:?}: {first:?}");
        assert!(!first.why.is_empty() && rewards.iter().all(|reward| reward.reward >= 0.0), "{fate:?}");
    }
    let unbuilt = Report::new(&records(&season, &[("first", Fate::Speed(1.3))]), None).unwrap().rewards();
    let second = unbuilt.iter().find(|reward| reward.pitch == "second").unwrap();
    assert!(second.verdict.is_none() && second.reward == 0.0 && second.why[0].starts_with("not built"), "{second:?}");
}

#[test]
fn the_page_has_every_part_and_nothing_from_outside() {
    let records = told();
    let page = html(&Report::new(&records, None).unwrap());
    for part in [
        "class=\"headline\"",
        "id=\"contents\"",
        "id=\"path\"",
        "class=\"bracket\"",
        "class=\"chart steps\"",
        "id=\"judges\"",
        "class=\"face ",
        "id=\"votes\"",
        "class=\"score\"",
        "class=\"margin\"",
        "id=\"examination\"",
        "id=\"guards\"",
        "class=\"axis\"",
        "Ballots of skeptic",
        "Second choice:",
        "Rollback:",
        "the wrong assumption",
        "@media print",
        "id=\"scorecard\"",
        "id=\"problems\"",
        "id=\"roofline\"",
        "id=\"calibration\"",
        "id=\"graveyard\"",
        "id=\"controls\"",
        "id=\"provenance\"",
        "class=\"roof\"",
        "prefers-color-scheme",
        "name=\"viewport\"",
        "SUCCESS",
        "FAILURE",
        "disqualified: constraint",
        "Ada &amp; Co",
        records.last().unwrap().hash.as_str(),
    ] {
        assert!(page.contains(part), "no {part}");
    }
    for foreign in ["<script", "http://", "https://", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign} in the page");
    }
    keep("report.html", &page);
}

#[test]
fn what_was_gained_is_the_product_of_all_coronations() {
    let report = Report::new(&told(), None).unwrap();
    let gained = report.gained.unwrap();
    assert!((gained.estimate - 1.3 * 1.1).abs() < 1e-9 && report.coronations == 2, "{gained}");
    assert!(html(&report).contains("<strong>1.43×</strong> the baseline"));
}

#[test]
fn the_board_tells_who_was_champion_when() {
    let boards = boards(&told());
    let [board] = boards.as_slice() else { panic!("{boards:?}") };
    let champions: Vec<&str> = board.reigns.iter().map(|reign| reign.champion.as_str()).collect();
    assert_eq!(board.operation, "dual-gemm");
    assert_eq!(champions[1..], ["second", "<script>alert(1)</script> | x"]);
    let gained = board.reigns[2].over_baseline.unwrap().estimate;
    assert!((gained - 1.3 * 1.1).abs() < 1e-9, "{gained}");
    assert_eq!((board.reigns[0].speedup, board.reigns[0].over_baseline), (None, None));
    let page = tank::report::board(&boards);
    assert!(page.contains("1.430×") && page.contains("dual-gemm") && !page.contains("<script"));
    assert_eq!(page.matches("class=\"crown\"").count(), 3, "the baseline and two champions");
    keep("board.html", &page);
}

#[test]
fn a_board_is_named_after_the_gpu_whose_clock_decided() {
    let ledger = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/h200/tank-ledger.jsonl");
    let text = std::fs::read_to_string(ledger).unwrap();
    let records: Vec<Record> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let boards = boards(&records);
    let [board] = boards.as_slice() else { panic!("{boards:?}") };
    assert!(board.machine.starts_with("NVIDIA H200 (") && !board.foretold, "{}", board.machine);
    let page = html(&Report::new(&records, None).unwrap());
    assert!(page.contains("the rates that no NVIDIA H200 exceeds"));
}

#[test]
fn the_roofline_says_in_its_picture_what_its_table_says() {
    let report = Report::new(&told(), None).unwrap();
    let page = html(&report);
    for shape in &report.times.as_ref().unwrap().shapes {
        let Some(floor) = shape.floor_seconds else { continue };
        let reached = format!("{:.0} %", page::of_floor(floor, shape.seconds));
        assert!(
            page.contains(&format!("the baseline reaches {reached}")) && page.contains(&format!(">{reached}</td>"))
        );
    }
    assert!(page.contains("the baseline reaches"), "some floor is known");
}

#[test]
fn the_first_season_has_a_page_of_its_own() {
    let page = replay(&first_season().unwrap());
    for part in [
        "The Performance Oracle",
        "The Pragmatic Engineer",
        "36 % slower",
        "Beside the sums",
        "id=\"round-4\"",
        "FAILURE",
    ] {
        assert!(page.contains(part), "no {part}");
    }
    for part in
        ["Risk spectrum", "Lineage of TMA store epilogue", "class=\"road\"", "<s>8.4</s> <strong>wrong</strong>"]
    {
        assert!(page.contains(part), "no {part}");
    }
    keep("replay.html", &page);
}

#[test]
fn markdown_and_json_tell_the_same() {
    let records = told();
    let report = Report::new(&records, None).unwrap();
    let text = markdown(&report);
    for part in ["| second |", "1.300×", "SUCCESS", "</script> \\| x", "## Graveyard", "## Calibration"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["attempts"].as_array().unwrap().len(), report.attempts.len());
    assert_eq!(json["head"], records.last().unwrap().hash);
    assert_eq!(json["attempts"][1]["measured"]["estimate"].as_f64().unwrap(), 1.3);
}

#[test]
fn a_season_that_is_not_finished_can_be_reported_wherever_it_stopped() {
    let records = told();
    for end in 1..records.len() {
        let report = Report::new(&records[..end], None).unwrap();
        assert_eq!(report.closed, None);
        assert!(html(&report).contains("not finished") && !markdown(&report).is_empty());
    }
}

#[test]
fn a_ledger_without_a_season_says_how_to_play_one() {
    assert!(Report::new(&[], None).unwrap_err().to_string().contains("hammerhead tank play"));
    assert!(Report::new(&told(), Some(9)).unwrap_err().to_string().contains("season 9"));
}
