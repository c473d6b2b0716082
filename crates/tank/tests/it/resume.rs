//! A season that is killed anywhere and started again ends as if nothing had happened, and measures nothing twice.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use crate::scripted::{Fate, Heard, Scripted, champion, pitch, played, season, two, verdicts};
use tank::Error;
use tank::event::Event;
use tank::ledger::{self, Ledger, Record};
use tank::play::{Options, play};
use tank::report::{Report, html, markdown};
use tank::season::Season;
use tank::verdict::Verdict;

const FATES: [(&str, Fate); 4] =
    [("first", Fate::Wrong), ("second", Fate::Void(1, 1.3)), ("third", Fate::Speed(1.2)), ("fourth", Fate::Speed(1.2))];

fn two_rounds() -> Season {
    let later = vec![
        pitch("third", "strategy=sequential,tile=16x32,depth=64,stages=1"),
        pitch("fourth", "strategy=sequential,tile=16x16,depth=64,stages=1"),
    ];
    season(&[("one", two()), ("two", later)])
}

fn options(folder: &Path) -> Options {
    Options { seed: Some(7), tuning: Some(folder.join("tuning")), ..Options::default() }
}

/// Events without what differs from run to run.
fn told(path: &Path) -> Vec<String> {
    let told = |record: &Record| {
        let mut event = record.event.clone();
        match &mut event {
            Event::BaselineTaken(taken) => taken.seconds = 0.0,
            Event::Examined(examined) => examined.seconds = 0.0,
            Event::Sat(sat) => sat.seconds = 0.0,
            _ => {}
        }
        format!("{} {}", record.season, serde_json::to_string(&event).unwrap())
    };
    ledger::read(path).unwrap().records.iter().map(told).collect()
}

/// The names of events, and what was judged.
fn outline(path: &Path) -> (Vec<&'static str>, Vec<(String, Verdict)>) {
    let records = ledger::read(path).unwrap().records;
    (records.iter().map(|record| record.event.name()).collect(), verdicts(&records))
}

#[test]
fn a_ledger_cut_after_any_event_is_completed_without_measuring_anything_twice() {
    let season = two_rounds();
    let whole = tempfile::tempdir().unwrap();
    let path = whole.path().join("ledger.jsonl");
    let mut referee = Scripted::new(&season, &FATES);
    played(&season, &path, &mut referee, &options(whole.path())).unwrap();
    let (expected, text) = (told(&path), fs::read_to_string(&path).unwrap());
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    assert!(lines.len() > 25, "a season long enough to be cut in many places");
    let mut interruptions = 0;
    for cut in 0..=lines.len() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        fs::write(&path, lines[..cut].concat()).unwrap();
        let done = ledger::read(&path).unwrap().records;
        let before = |event: &Event| matches!(event, Event::BaselineTaken(_) | Event::Examined(_) | Event::Sat(_));
        let done = done.iter().filter(|r| before(&r.event)).count();
        let mut resumed = Scripted::new(&season, &FATES);
        // The first void sitting was before the cut or comes after it; the script has to know.
        if lines[..cut].iter().any(|line| line.contains("the control differs")) {
            resumed.fates.insert("second".into(), Fate::Speed(1.3));
        }
        played(&season, &path, &mut resumed, &options(folder.path())).unwrap();
        if cut > 0 && lines[cut - 1].contains("\"kind\":\"seated\"") {
            // It had begun, and somebody may have disliked how it went: that stays visible.
            let (mut names, judged) = outline(&whole.path().join("ledger.jsonl"));
            names.insert(cut, "Seated");
            assert_eq!(outline(&path), (names, judged), "cut after {cut} lines");
            let reasons = ledger::read(&path).unwrap().records.into_iter().skip(cut).find_map(|r| match r.event {
                Event::Judged(judged) => Some(judged.judgement.reasons),
                _ => None,
            });
            let reasons = reasons.unwrap();
            assert!(reasons.iter().any(|why| why.starts_with("1 of its sittings were interrupted")), "{reasons:?}");
            interruptions += 1;
        } else {
            assert_eq!(told(&path), expected, "cut after {cut} lines");
        }
        assert_eq!(resumed.asked.len() + done, referee.asked.len(), "cut after {cut} lines: nothing is measured twice");
        let tuned = fs::read_dir(folder.path().join("tuning")).map_or(0, |files| files.flatten().count());
        assert!(tuned > 0, "cut after {cut} lines: the champion is in the tuning cache");
    }
    assert_eq!(interruptions, expected.iter().filter(|event| event.contains("\"kind\":\"sat\"")).count());
}

#[test]
fn a_sitting_that_is_killed_again_and_again_is_counted_each_time() {
    let season = two_rounds();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    // Baseline and two examinations; then the player dies in the same sitting, three times.
    for survives in [3, 0, 0] {
        let mut referee = Scripted { dies_after: Some(survives), ..Scripted::new(&season, &FATES) };
        let died = catch_unwind(AssertUnwindSafe(|| played(&season, &path, &mut referee, &options(folder.path()))));
        assert!(died.is_err());
    }
    played(&season, &path, &mut Scripted::new(&season, &FATES), &options(folder.path())).unwrap();
    let reward = |pitch: &str| {
        let records = ledger::read(&path).unwrap().records;
        Report::new(&records, None).unwrap().rewards().into_iter().find(|reward| reward.pitch == pitch).unwrap()
    };
    assert!(reward("second").why.iter().any(|why| why.starts_with("3 of its sittings")), "{:?}", reward("second").why);
    assert!(!reward("third").why.iter().any(|why| why.contains("interrupted")), "{:?}", reward("third").why);
}

/// Plays a season of one round whose player dies in the sitting that comes after so many answers, and goes on with it:
/// the verdict on a pitch with its reasons, and the report.
fn interrupted_at(answers: usize, fate: Fate, sweep: &[&str], pitch: &str) -> (Verdict, Vec<String>, Report) {
    let mut pitches = two();
    pitches[0].run.as_mut().unwrap().sweep = sweep.iter().map(|config| config.to_string()).collect();
    if !sweep.is_empty() {
        pitches[0].run.as_mut().unwrap().config = None;
    }
    let season = season(&[("one", pitches)]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    // Any seed: a sitting that is held again after a kill has another.
    let options = Options::default();
    let fates = [("first", fate)];
    let mut dying = Scripted { dies_after: Some(answers), ..Scripted::new(&season, &fates) };
    let died = catch_unwind(AssertUnwindSafe(|| played(&season, &path, &mut dying, &options)));
    assert!(died.is_err());
    let records = ledger::read(&path).unwrap().records;
    assert!(matches!(records.last().unwrap().event, Event::Seated(_)), "it died in a sitting");
    let unfinished = Report::new(&records, None).unwrap();
    assert!(html(&unfinished).contains("began and had no result"), "the page says so before anything else comes of it");
    played(&season, &path, &mut Scripted::new(&season, &fates), &options).unwrap();
    let records = ledger::read(&path).unwrap().records;
    let judged = records.iter().find_map(|record| match &record.event {
        Event::Judged(judged) if judged.pitch == pitch => Some(judged.judgement.clone()),
        _ => None,
    });
    let judgement = judged.unwrap();
    (judgement.verdict, judgement.reasons, Report::new(&records, None).unwrap())
}

#[test]
fn whatever_the_verdict_is_it_says_which_sittings_were_interrupted_and_so_does_the_page() {
    // Baseline and examination are answered.
    for (fate, expected) in [
        (Fate::Speed(1.3), Verdict::Success),
        (Fate::Speed(0.8), Verdict::Failure),
        (Fate::NotTimed, Verdict::Blocked),
        (Fate::ChampionFails, Verdict::Success),
        (Fate::Void(9, 1.0), Verdict::Void),
    ] {
        let (verdict, reasons, report) = interrupted_at(2, fate.clone(), &[], "first");
        assert_eq!(verdict, expected, "{fate:?}: {reasons:?}");
        let told = "1 of its sittings were interrupted, and have no result: 1 of them had another seed";
        assert!(reasons.iter().any(|why| why.starts_with(told)), "{fate:?}: {reasons:?}");
        let line = "1 sitting of first began and had no result";
        assert!(html(&report).contains(&format!("<p class=\"warning-line\">{line}.</p>")), "{fate:?}");
        assert!(markdown(&report).contains(line), "{fate:?}");
    }
}

#[test]
fn a_sweep_says_which_of_its_configurations_had_sittings_that_were_interrupted() {
    let configs =
        ["strategy=interleaved,tile=16x32,depth=64,stages=1", "strategy=ping-pong,tile=16x32,depth=64,stages=2"];
    // The first configuration's examination and sitting are answered, and the second one's examination; of two that are
    // as fast, the last is kept.
    for (answers, config) in [(2, configs[0]), (4, configs[1])] {
        let (_, reasons, report) = interrupted_at(answers, Fate::Speed(0.8), &configs, "first");
        let kept = config == configs[1];
        let told = if kept { "1 of its sittings were".to_owned() } else { format!("{config}: 1 of its sittings were") };
        assert!(reasons.iter().any(|why| why.starts_with(&told)), "{config}: {reasons:?}");
        assert!(html(&report).contains(&format!("1 sitting of first: {config} began and had no result")));
    }
}

/// A ledger with another event in the place of one, its hashes made to fit, as by somebody who knows how.
fn forged(path: &Path, place: usize, change: impl Fn(&mut Event)) -> std::path::PathBuf {
    let forged = path.with_extension("forged");
    let _ = fs::remove_file(&forged);
    let mut records = ledger::read(path).unwrap().records;
    change(&mut records[place].event);
    let mut ledger = Ledger::open(&forged).unwrap();
    for record in records {
        ledger.append(record.season, record.event).unwrap();
    }
    forged
}

#[test]
fn a_sitting_with_another_seed_than_was_settled_before_it_began_is_refused_by_its_record() {
    let season = two_rounds();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    played(&season, &path, &mut Scripted::new(&season, &FATES), &options(folder.path())).unwrap();
    let records = ledger::read(&path).unwrap().records;
    let sat = records.iter().position(|record| matches!(record.event, Event::Sat(_))).unwrap();
    let refused = |forged: &Path| {
        let read = ledger::read(forged).unwrap_err().to_string();
        let resumed = played(&season, forged, &mut Scripted::new(&season, &FATES), &options(folder.path()));
        assert_eq!(resumed.unwrap_err().to_string(), read, "nor is it gone on with");
        read
    };
    let another = forged(&path, sat, |event| match event {
        Event::Sat(sat) => sat.sitting.as_mut().unwrap().seed += 1,
        _ => panic!(),
    });
    let why = refused(&another);
    assert!(why.contains(&format!("line {}", sat + 1)) && why.contains(&format!("record {sat} settled")), "{why}");
    let unsettled = forged(&path, sat - 1, |event| match event {
        Event::Seated(seated) => seated.seed_digest = ledger::digest_of_seed(1),
        _ => panic!(),
    });
    assert!(refused(&unsettled).contains("sitting of 'second'"));
    assert!(ledger::read(&forged(&path, sat, |_| ())).is_ok());
}

#[test]
fn a_sitting_that_nothing_announced_is_refused_where_one_before_it_was() {
    let season = two_rounds();
    let folder = tempfile::tempdir().unwrap();
    let [path, other] = ["ledger.jsonl", "other.jsonl"].map(|name| folder.path().join(name));
    played(&season, &path, &mut Scripted::new(&season, &FATES), &options(folder.path())).unwrap();
    let records = ledger::read(&path).unwrap().records;
    let announced: Vec<usize> =
        (0..records.len()).filter(|&place| matches!(records[place].event, Event::Seated(_))).collect();
    let read_without = |left_out: &[usize]| {
        let _ = fs::remove_file(&other);
        let mut ledger = Ledger::open(&other).unwrap();
        for (_, record) in records.iter().enumerate().filter(|(place, _)| !left_out.contains(place)) {
            ledger.append(record.season, record.event.clone()).unwrap();
        }
        drop(ledger);
        ledger::read(&other).map(drop).map_err(|error| error.to_string())
    };
    let [first, .., last] = announced.as_slice() else { panic!("several sittings are held") };
    let why = read_without(&[*last]).unwrap_err();
    let since = format!("record {}", first + 1);
    assert!(why.contains("not written down before it began") && why.contains(&since), "{why}");
    assert_eq!(read_without(&[*first]), Ok(()), "the version that began it may have announced none");
}

#[test]
fn a_season_from_before_sittings_were_announced_goes_on() {
    let season = two_rounds();
    let folder = tempfile::tempdir().unwrap();
    let [path, older] = ["ledger.jsonl", "older.jsonl"].map(|name| folder.path().join(name));
    played(&season, &path, &mut Scripted::new(&season, &FATES), &options(folder.path())).unwrap();
    let mut ledger = Ledger::open(&older).unwrap();
    let records = ledger::read(&path).unwrap().records;
    for record in records.iter().filter(|record| !matches!(record.event, Event::Seated(_))) {
        ledger.append(record.season, record.event.clone()).unwrap();
    }
    drop(ledger);
    let mut referee = Scripted::new(&season, &FATES);
    assert!(played(&season, &older, &mut referee, &options(folder.path())).unwrap().finished_before);
    assert_eq!(referee.asked.len(), 0);
}

#[test]
fn what_was_spent_before_a_season_stopped_counts_when_it_goes_on() {
    let season = two_rounds();
    let spent = |seconds: f64| {
        let folder = tempfile::tempdir().unwrap();
        let [path, resumed] = ["ledger.jsonl", "resumed.jsonl"].map(|name| folder.path().join(name));
        played(&season, &path, &mut Scripted::new(&season, &FATES), &options(folder.path())).unwrap();
        let mut ledger = Ledger::open(&resumed).unwrap();
        for record in ledger::read(&path).unwrap().records {
            let mut event = record.event;
            if let Event::Sat(sat) = &mut event {
                sat.seconds = seconds;
            }
            let last = matches!(event, Event::RoundClosed(_));
            ledger.append(record.season, event).unwrap();
            if last {
                break;
            }
        }
        drop(ledger);
        let budget = Some(Duration::from_secs(1000));
        let options = Options { budget, stops_at_budget: true, ..options(folder.path()) };
        played(&season, &resumed, &mut Scripted::new(&season, &FATES), &options).unwrap();
        ledger::read(&resumed).unwrap().records.iter().any(|record| matches!(record.event, Event::Spent(_)))
    };
    // Two sittings were held in the first round.
    assert_eq!((spent(499.0), spent(501.0)), (false, true));
}

#[test]
fn a_ledger_torn_in_the_middle_of_any_line_is_completed_too() {
    let season = two_rounds();
    let whole = tempfile::tempdir().unwrap();
    let path = whole.path().join("ledger.jsonl");
    played(&season, &path, &mut Scripted::new(&season, &FATES), &options(whole.path())).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let expected = verdicts(&ledger::read(&path).unwrap().records);
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let torn = start + line.len() / 2;
        start += line.len();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        fs::write(&path, &text.as_bytes()[..torn]).unwrap();
        let mut resumed = Scripted::new(&season, &FATES);
        if text[..torn].contains("the control differs") {
            resumed.fates.insert("second".into(), Fate::Speed(1.3));
        }
        played(&season, &path, &mut resumed, &options(folder.path())).unwrap();
        let records = ledger::read(&path).unwrap().records;
        assert_eq!(verdicts(&records), expected, "torn at byte {torn}");
        assert!(records.iter().any(|r| matches!(r.event, Event::Recovered(_))), "and that is recorded");
    }
}

#[test]
fn a_referee_that_dies_at_any_question_leaves_a_season_that_goes_on() {
    let season = two_rounds();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    let mut asked = Vec::new();
    for _ in 0..20 {
        let mut referee = Scripted::new(&season, &FATES);
        referee.dies_after = Some(1);
        if asked.iter().any(|a| a == "sit second") {
            referee.fates.insert("second".into(), Fate::Speed(1.3));
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| played(&season, &path, &mut referee, &options(folder.path()))));
        asked.append(&mut referee.asked);
        if let Ok(played) = outcome {
            played.unwrap();
            break;
        }
    }
    let mut referee = Scripted::new(&season, &FATES);
    let other = tempfile::tempdir().unwrap();
    played(&season, &other.path().join("l"), &mut referee, &options(other.path())).unwrap();
    assert_eq!(asked, referee.asked, "the same questions, each asked once");
    assert!(champion(&ledger::read(&path).unwrap().records).is_some());
}

#[test]
fn a_finished_season_is_not_played_again_unless_asked() {
    let season = two_rounds();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    let mut referee = Scripted::new(&season, &FATES);
    assert!(!played(&season, &path, &mut referee, &options(folder.path())).unwrap().finished_before);
    let asked = referee.asked.len();
    let again = played(&season, &path, &mut referee, &options(folder.path())).unwrap();
    assert!(again.finished_before && referee.asked.len() == asked);
    let anew = Options { again: true, ..options(folder.path()) };
    assert_eq!(played(&season, &path, &mut referee, &anew).unwrap().season, 2);
}

#[test]
fn a_season_that_was_changed_in_the_middle_is_refused() {
    let season = two_rounds();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    let paused = Options { pause: true, ..options(folder.path()) };
    assert!(matches!(played(&season, &path, &mut Scripted::new(&season, &FATES), &paused), Err(Error::Paused { .. })));
    let mut changed = season.clone();
    changed.settings.research_below = 0.6;
    let error = played(&changed, &path, &mut Scripted::new(&changed, &FATES), &options(folder.path())).unwrap_err();
    assert!(error.to_string().contains("begun in another form"), "{error}");
}

#[test]
fn two_seasons_may_share_a_ledger_and_the_first_can_still_be_finished() {
    let season = two_rounds();
    let other = Season { name: "other".into(), ..two_rounds() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    let paused = Options { pause: true, ..options(folder.path()) };
    assert!(played(&season, &path, &mut Scripted::new(&season, &FATES), &paused).is_err());
    played(&other, &path, &mut Scripted::new(&other, &FATES), &options(folder.path())).unwrap();
    assert_eq!(played(&season, &path, &mut Scripted::new(&season, &FATES), &options(folder.path())).unwrap().season, 1);
}

#[test]
fn a_season_killed_at_two_hundred_random_moments_ends_as_if_nothing_had_happened() {
    let season = two_rounds();
    let whole = tempfile::tempdir().unwrap();
    let path = whole.path().join("ledger.jsonl");
    played(&season, &path, &mut Scripted::new(&season, &FATES), &options(whole.path())).unwrap();
    let ended = |path: &Path| {
        let records = ledger::read(path).unwrap().records;
        (verdicts(&records), champion(&records))
    };
    let (expected, bytes) = (ended(&path), fs::read(&path).unwrap());
    let mut rng = fastrand::Rng::with_seed(17);
    for kill in 0..200 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        // Killed several times, at any byte that was on the disk by then.
        let mut cut = 0;
        for _ in 0..rng.usize(1..4) {
            cut = rng.usize(cut..=bytes.len());
            let kept = fs::read(&path).unwrap_or_default();
            // What an earlier kill tore was recorded by the play after it, so that bytes are no longer the same: only
            // the first is cut so.
            let text = if kept.is_empty() { bytes[..cut].to_vec() } else { kept[..rng.usize(..=kept.len())].to_vec() };
            fs::write(&path, &text).unwrap();
            let mut resumed = Scripted::new(&season, &FATES);
            let whole = ledger::check(&path, &text).unwrap().whole;
            if String::from_utf8_lossy(&text[..whole]).contains("the control differs") {
                resumed.fates.insert("second".into(), Fate::Speed(1.3));
            }
            played(&season, &path, &mut resumed, &options(folder.path())).unwrap();
        }
        assert_eq!(ended(&path), expected, "kill {kill}");
    }
}

#[test]
fn what_no_machine_answers_is_asked_again_with_the_same_seed_and_never_written_down() {
    let here = season(&[("one", two())]);
    let elsewhere = Season { name: "another".into(), ..here.clone() };
    let play = |season: &Season, path: &Path, fate: Fate, secret| {
        let mut referee = Scripted::new(season, &[("first", fate)]);
        let options = Options { secret, ..Options::default() };
        let played = played(season, path, &mut referee, &options).map(drop).map_err(|error| error.to_string());
        (played, referee.seeds)
    };
    let folder = tempfile::tempdir().unwrap();
    let [path, other] = ["ledger.jsonl", "other.jsonl"].map(|name| folder.path().join(name));
    let (stopped, seeds) = play(&here, &path, Fate::Unanswered, Some(5));
    assert!(stopped.unwrap_err().contains("no machine answers"));
    let records = ledger::read(&path).unwrap().records;
    assert!(!records.iter().any(|r| matches!(r.event, Event::Sat(_) | Event::Judged(_))), "nothing is known by it");
    let (finished, again) = play(&here, &path, Fate::Speed(1.3), Some(5));
    assert_eq!((finished, again.first()), (Ok(()), seeds.first()));
    assert_eq!(champion(&ledger::read(&path).unwrap().records).as_deref(), Some("first"));
    // Another season has other seeds, so that nobody's answers are taken for another's; and without a secret none comes
    // twice.
    assert_ne!(play(&elsewhere, &other, Fate::Unanswered, Some(5)).1, seeds);
    let [once, twice] = [(); 2].map(|()| play(&elsewhere, &other, Fate::Unanswered, None).1);
    assert_ne!(once, twice);
}

#[test]
fn a_season_that_goes_on_with_other_kernels_says_that_no_plan_will_use_its_champions() {
    let season = two_rounds();
    let said = |kernels: Option<&str>| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        played(&season, &path, &mut Scripted::new(&season, &FATES), &options(folder.path())).unwrap();
        let Event::SeasonOpened(mut opened) = ledger::read(&path).unwrap().records.remove(0).event else { panic!() };
        opened.kernels.values_mut().for_each(|version| *version = kernels.unwrap_or(version).to_owned());
        fs::remove_file(&path).unwrap();
        let (mut ledger, mut heard) = (Ledger::open(&path).unwrap(), Heard::default());
        ledger.append(1, Event::SeasonOpened(opened)).unwrap();
        let mut referee = Scripted::new(&season, &FATES);
        play(&season, &mut ledger, &mut referee, &options(folder.path()), &mut heard).unwrap();
        heard.0.iter().filter(|line| line.contains("kernels have changed") && line.contains("no plan")).count()
    };
    assert_eq!((said(Some("older")), said(None)), (1, 0));
}
