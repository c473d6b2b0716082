//! The format whole: correctness rounds, sweeps and gates, terms of the shark that funds, withdrawals, lineage,
//! post-mortems, and agents as sharks and contestants.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use crate::scripted::{Fate, Scripted, champion, claiming, pitch, played, records, rounds, season, two, verdicts};
use tank::event::Event;
use tank::history;
use tank::ledger::{self, Record};
use tank::pitch::{Deal, EvidenceCited, EvidenceKind, Gate, Pitch, Run};
use tank::play::{Choices, Options};
use tank::report::{Report, html, markdown};
use tank::round::RoundKind;
use tank::season::{Asked, Season, Shipped};
use tank::shark::builtin::Which;
use tank::shark::{Ballot, SecondChoice, Shark, Source, Statement, default_criteria};
use tank::verdict::Verdict;

fn has(records: &[Record], what: impl Fn(&Event) -> bool) -> bool {
    records.iter().any(|record| what(&record.event))
}

#[test]
fn a_champion_that_is_wrong_is_dethroned_by_one_that_is_right_whatever_its_speed() {
    let mut season =
        season(&[("one", two()), ("two", vec![pitch("third", "tile=16x16"), pitch("fourth", "tile=48x48")])]);
    season.rounds[0].kind = RoundKind::Correctness;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("l");
    let mut referee = Scripted::new(&season, &[("first", Fate::Rights), ("third", Fate::Unknown)]);
    played(&season, &path, &mut referee, &Options::default()).unwrap();
    let records = ledger::read(&path).unwrap().records;
    assert_eq!(verdicts(&records)[0], ("first".into(), Verdict::Success));
    assert!(has(&records, |event| matches!(event, Event::Dethroned(d) if d.why.contains("it computes A·B"))));
    assert!(has(&records, |event| matches!(event, Event::Crowned(c) if c.pitch == "first" && c.speedup.is_none())));
    assert!(!referee.asked.iter().any(|asked| asked == "sit first"), "nothing is timed against what is wrong");
    assert_eq!(
        referee.asked.iter().filter(|asked| asked.starts_with("baseline")).count(),
        2,
        "the new one is timed alone"
    );
    assert_eq!(champion(&records).as_deref(), Some("first"));
}

#[test]
fn a_champion_does_not_keep_its_title_by_failing_whenever_it_is_timed() {
    let season = season(&[("one", two())]);
    let records = records(&season, &[("first", Fate::ChampionFails)]);
    assert_eq!(verdicts(&records)[0], ("first".into(), Verdict::Success));
    assert!(has(&records, |event| matches!(event, Event::Dethroned(d) if d.why.contains("signal 6"))));
    assert_eq!(champion(&records).as_deref(), Some("first"));
    let held = records.iter().filter(|record| matches!(record.event, Event::Sat(_))).count();
    assert!(held > season.settings.void_retries, "once may be bad luck");
}

fn sweeping(configs: &[&str], fallback: Option<&str>, deal: Deal) -> Vec<Pitch> {
    let mut pitches = two();
    let sweep = configs.iter().map(|config| config.to_string()).collect();
    pitches[0].run = Some(Run { sweep, fallback: fallback.map(str::to_owned), ..Run::default() });
    pitches[0].deal = deal;
    pitches
}

const PHASES: [&str; 3] = [
    "strategy=ping-pong,tile=16x32,depth=64,stages=2",
    "strategy=ping-pong,tile=16x32,depth=64,stages=3",
    "strategy=ping-pong,tile=16x32,depth=64,stages=4",
];

fn swept(deal: Deal, speeds: [f64; 3], fallback: bool) -> Vec<Record> {
    let season = season(&[("one", sweeping(&PHASES, fallback.then_some(PHASES[0]), deal))]);
    let names = PHASES.map(|phase| format!("first: {phase}"));
    let fates: Vec<(&str, Fate)> = names.iter().zip(speeds).map(|(name, s)| (name.as_str(), Fate::Speed(s))).collect();
    records(&season, &fates)
}

/// The stages that the champion runs.
fn stages(records: &[Record]) -> Option<String> {
    records.iter().rev().find_map(|record| match &record.event {
        Event::Crowned(crowned) => Some(format!("{:?}", crowned.entry)),
        _ => None,
    })
}

#[test]
fn every_phase_of_a_sweep_is_measured_and_the_fastest_that_keeps_the_deal_is_crowned() {
    let records = swept(Deal::default(), [1.1, 1.3, 0.8], false);
    let phases = records.iter().filter(|record| matches!(record.event, Event::Phased(_))).count();
    assert_eq!((phases, verdicts(&records)[0].1), (3, Verdict::Success));
    assert!(stages(&records).unwrap().contains("stages=3"));
    let page = tank::report::html(&tank::report::Report::new(&records, None).unwrap());
    assert!(page.contains("<summary>its sweep: 3 configurations</summary>"), "the page keeps it behind a click");
}

#[test]
fn where_no_phase_keeps_the_deal_its_fallback_is_taken_if_it_is_faster_by_the_rules() {
    let deal = Deal { min_geomean: Some(1.4), ..Deal::default() };
    let records = swept(deal.clone(), [1.2, 1.3, 1.1], true);
    assert_eq!(verdicts(&records)[0].1, Verdict::Success);
    assert!(stages(&records).unwrap().contains("stages=2"));
    assert_ne!(
        verdicts(&swept(deal.clone(), [1.2, 1.3, 1.1], false))[0].1,
        Verdict::Success,
        "without a fallback none is"
    );
    assert_ne!(verdicts(&swept(deal, [0.9, 1.3, 1.1], true))[0].1, Verdict::Success, "a slower fallback is none");
}

#[test]
fn a_gate_on_a_profile_stops_a_pitch_before_anything_is_built() {
    let gated = |share: Option<f64>| {
        let mut pitches = two();
        let gate = Gate { figure: "epilogue share".into(), at_least: Some(0.03), at_most: None };
        pitches[0].deal = Deal { gates: vec![gate], ..Deal::default() };
        let figures = share.map(|share| ("epilogue share".to_owned(), share)).into_iter().collect();
        pitches[0].evidence.push(EvidenceCited { kind: EvidenceKind::Profile, what: "measured".into(), figures });
        let records = records(
            &season(&[("one", [pitches, vec![pitch("third", "tile=16x16")]].concat())]),
            &[("first", Fate::Speed(1.3))],
        );
        let reason = records.iter().find_map(|record| match &record.event {
            Event::PitchChecked(checked) if checked.pitch == "first" => Some(checked.disqualified.clone()),
            _ => None,
        });
        reason.unwrap()
    };
    assert_eq!(gated(Some(0.05)), None);
    assert!(gated(Some(0.02)).unwrap().contains("epilogue share is 0.02, and 0.03 is the least"));
    assert!(gated(None).unwrap().contains("nobody knows its epilogue share"));
}

/// A person with a statement.
fn speaker(name: &str, scores: [f64; 2], statement: Statement) -> Shark {
    let ballot = |pitch: &str, score: f64| Ballot {
        pitch: pitch.into(),
        scores: default_criteria().iter().map(|c| (c.name.clone(), score)).collect(),
        ..Ballot::default()
    };
    let ballots = vec![ballot("first", scores[0]), ballot("second", scores[1])];
    let source = Source::Ballots { ballots, statements: vec![statement] };
    Shark { name: name.into(), temperament: name.into(), criteria: default_criteria(), source, ..Shark::default() }
}

#[test]
fn the_terms_of_the_shark_that_funds_bind_the_winner() {
    let mut season = season(&[("one", two())]);
    let deal = Deal { min_geomean: Some(1.4), revert_under: Some(1.3), ..Deal::default() };
    let second =
        SecondChoice { pitch: "second".into(), conditions: vec!["one stage".into(), "checks after each phase".into()] };
    let statement = Statement { motto: "show me".into(), second: Some(second), deal, ..Statement::default() };
    season.sharks.push(speaker("funder", [10.0, 1.0], statement.clone()));
    season.sharks.push(speaker(
        "other",
        [1.0, 2.0],
        Statement { deal: Deal { max_loss: Some(0.01), ..Deal::default() }, ..Statement::default() },
    ));
    let records = records(&season, &[("first", Fate::Speed(1.2))]);
    let begun = records.iter().find_map(|record| match &record.event {
        Event::Begun(begun) => Some(begun),
        _ => None,
    });
    let begun = begun.unwrap();
    assert_eq!(
        (begun.funder.as_deref(), begun.deal.min_geomean, begun.deal.max_loss),
        (Some("funder"), Some(1.4), None)
    );
    assert_eq!(verdicts(&records)[0].1, Verdict::Failure, "it reverts under 1.3");
    assert!(has(&records, |event| matches!(event, Event::Voted(v) if v.shark == "funder" && v.statement == statement)));
}

#[test]
fn the_stricter_term_of_two_deals_counts() {
    let one = Deal {
        min_geomean: Some(1.1),
        max_loss: Some(0.05),
        max_scratch_bytes: Some(100),
        staged: Some(false),
        ..Deal::default()
    };
    let other = Deal {
        min_geomean: Some(1.4),
        max_loss: Some(0.02),
        max_scratch_bytes: Some(200),
        staged: Some(true),
        ..Deal::default()
    };
    let both = one.and(&other);
    assert_eq!(
        (both.min_geomean, both.max_loss, both.max_scratch_bytes, both.staged),
        (Some(1.4), Some(0.02), Some(100), Some(true))
    );
    assert_eq!(one.and(&Deal::default()), one);
}

#[test]
fn a_wrong_baseline_opens_rounds_about_being_right_in_which_nothing_is_timed() {
    let later = vec![pitch("third", "tile=16x16"), pitch("fourth", "tile=48x48")];
    let season = season(&[("one", two()), ("two", later)]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("l");
    let fates = [("first", Fate::Wrong), ("second", Fate::Speed(0.3)), ("fourth", Fate::Speed(1.2))];
    let new = || Scripted { wrong_baseline: Some("it computes A·B".into()), ..Scripted::new(&season, &fates) };
    // Killed after every answer in turn, it ends in the same way.
    for answers in 1..6 {
        let killed =
            || played(&season, &path, &mut Scripted { dies_after: Some(answers), ..new() }, &Options::default());
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(killed));
    }
    let mut referee = new();
    played(&season, &path, &mut referee, &Options::default()).unwrap();
    let records = ledger::read(&path).unwrap().records;
    let kinds: Vec<RoundKind> = records
        .iter()
        .filter_map(|record| match &record.event {
            Event::RoundOpened(opened) => Some(opened.round_kind),
            _ => None,
        })
        .collect();
    assert_eq!(kinds[..2], [RoundKind::Correctness, RoundKind::Regular], "until somebody is right");
    let wrong = |event: &Event| matches!(event, Event::BaselineTaken(taken) if taken.baseline.wrong.is_some());
    assert!(has(&records, wrong), "it is written down");
    assert_eq!(
        verdicts(&records)[..3],
        [("first".into(), Verdict::Failure), ("second".into(), Verdict::Success), ("fourth".into(), Verdict::Success)]
    );
    let sat = |name: &str| has(&records, |event| matches!(event, Event::Sat(sat) if sat.pitch == name));
    assert!(!sat("first") && !sat("second") && sat("fourth"), "correct but slow beats wrong, and nobody times it");
    assert_eq!(champion(&records).as_deref(), Some("fourth"));
    let report = tank::report::Report::new(&records, None).unwrap();
    assert!(tank::report::markdown(&report).contains("The baseline is wrong: "));
}

#[test]
fn a_pitch_can_be_withdrawn_until_it_is_built_and_not_later() {
    let season = season(&[("one", two())]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("l");
    let mut referee = Scripted::new(&season, &[("second", Fate::Speed(1.2))]);
    let paused = Options { pause: true, ..Options::default() };
    let winner = match played(&season, &path, &mut referee, &paused) {
        Err(tank::Error::Paused { winner, .. }) => winner,
        other => panic!("{other:?}"),
    };
    assert_eq!(winner, "first");
    let withdrawing = |pitch: &str| {
        let withdrawals = [("one".to_owned(), pitch.to_owned())].into();
        let choices =
            Choices { withdrawals, by: "its author".into(), reason: "it is wrong".into(), ..Choices::default() };
        Options { choices, ..Options::default() }
    };
    let unknown = played(&season, &path, &mut referee, &withdrawing("nobody")).unwrap_err().to_string();
    assert!(unknown.contains("'nobody' cannot be withdrawn"), "{unknown}");
    played(&season, &path, &mut referee, &withdrawing("first")).unwrap();
    let records = ledger::read(&path).unwrap().records;
    assert!(has(&records, |event| matches!(event, Event::Withdrawn(w) if w.pitch == "first")));
    assert_eq!(verdicts(&records)[0].0, "second", "the runner-up is built in its place");
    let late = played(&season, &path, &mut referee, &withdrawing("second")).unwrap_err().to_string();
    assert!(late.contains("cannot be withdrawn any more"), "it is not ignored: {late}");
}

#[test]
fn a_pitch_can_be_withdrawn_before_the_vote_and_that_is_written_down() {
    let season = season(&[("one", [two(), vec![pitch("third", "tile=16x16")]].concat())]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("l");
    let withdrawals = [("one".to_owned(), "first".to_owned())].into();
    let choices =
        Choices { withdrawals, by: "its author".into(), reason: "the kernel is wrong".into(), ..Choices::default() };
    played(&season, &path, &mut Scripted::new(&season, &[]), &Options { choices, ..Options::default() }).unwrap();
    let records = ledger::read(&path).unwrap().records;
    assert!(has(&records, |event| matches!(event, Event::Withdrawn(w) if w.pitch == "first" && w.by == "its author")));
    assert!(!has(
        &records,
        |event| matches!(event, Event::Tallied(t) if t.tally.standings.iter().any(|s| s.pitch == "first"))
    ));
}

#[test]
fn a_failure_leaves_a_post_mortem_and_a_claim_its_lineage() {
    let revised = |name: &str, of: Option<&str>, speedup: f64| {
        let mut pitch = claiming(pitch(name, &format!("tile=16x{}", 16 * name.len() + 64)), speedup);
        pitch.revises = of.map(str::to_owned);
        pitch.claim.as_mut().unwrap().assumes = "the epilogue takes a tenth of the time".into();
        pitch
    };
    let later = vec![revised("epilogue 2", Some("epilogue"), 1.05), pitch("fourth", "tile=48x48")];
    let season = season(&[("one", vec![revised("epilogue", None, 1.4), pitch("third", "tile=16x16")]), ("two", later)]);
    let records = records(&season, &[("epilogue", Fate::Speed(0.8)), ("third", Fate::Unknown)]);
    let mortem = &history::post_mortems(&records)[0];
    assert_eq!(
        (mortem.pitch.as_str(), mortem.assumption.as_str()),
        ("epilogue", "the epilogue takes a tenth of the time")
    );
    assert!(mortem.promise.contains("1.4×") && mortem.reality.contains("0.8"), "{mortem:?}");
    let grave = &history::graveyard(&records)[0];
    assert_eq!((&grave.promise, &grave.assumption), (&mortem.promise, &mortem.assumption));
    let line: Vec<&str> = history::lineage(&records, 1, "epilogue 2").iter().map(|pitch| pitch.name.as_str()).collect();
    assert_eq!(line, ["epilogue", "epilogue 2"]);
}

#[test]
fn a_claim_that_outlives_rounds_is_marked_as_a_survivor_and_one_from_the_graveyard_is_not() {
    let forms = |name: &str, of: Option<&str>| Pitch {
        revises: of.map(str::to_owned),
        ..claiming(pitch(name, &format!("tile=16x{}", 16 * name.len())), if name == "latest" { 1.3 } else { 1.01 })
    };
    let season = season(&[
        ("one", vec![claiming(pitch("first", "tile=48x16"), 1.5), forms("late", None)]),
        ("two", vec![claiming(pitch("second", "tile=48x32"), 1.5), forms("later", Some("late"))]),
        ("three", vec![forms("latest", Some("later")), forms("second again", Some("second"))]),
    ]);
    let records = records(&season, &[("first", Fate::Unknown), ("second", Fate::Speed(0.8)), ("later", Fate::Unknown)]);
    let survived = |name: &str| {
        records.iter().find_map(|record| match &record.event {
            Event::PitchChecked(checked) if checked.pitch == name => Some(checked.evidence.survived),
            _ => None,
        })
    };
    assert_eq!(["late", "later", "latest", "second again"].map(survived), [Some(0), Some(1), Some(2), Some(0)]);
    let page = tank::report::html(&tank::report::Report::new(&records, None).unwrap());
    assert!(page.contains("survivor of 2 rounds") && page.contains("It is a survivor of a round"));
}

#[test]
fn chances_of_outcomes_sum_to_one_or_the_pitch_is_not_complete() {
    let mut pitch = pitch("first", "tile=16x16");
    let claim = pitch.claim.as_mut().unwrap();
    claim.outcomes = [("faster", 0.3), ("the same", 0.5)]
        .map(|(what, probability)| tank::pitch::Prospect { what: what.into(), speedup: None, probability })
        .to_vec();
    let faults =
        |pitch: &Pitch| pitch.faults(&Default::default()).into_iter().map(|fault| fault.problem).collect::<Vec<_>>();
    assert!(faults(&pitch).iter().any(|fault| fault.contains("sum to 0.8")), "{:?}", faults(&pitch));
    pitch.claim.as_mut().unwrap().outcomes[1].probability = 0.7;
    assert_eq!(faults(&pitch), Vec::<String>::new());
}

#[test]
fn a_round_with_a_verdict_of_the_record_and_one_of_the_mean_shows_both() {
    let mut season = season(&[("one", two())]);
    season.settings.weigh_votes = true;
    let records = records(&season, &[]);
    let tally = records.iter().find_map(|record| match &record.event {
        Event::Tallied(tallied) => Some(&tallied.tally),
        _ => None,
    });
    let tally = tally.unwrap();
    assert!(
        tally.by_record
            && tally.weights.len() == 3
            && tally.standings.iter().all(|s| s.mean.is_some() && s.weighted.is_some())
    );
}

#[test]
fn problems_are_read_from_ledgers_and_written_as_they_always_were() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/h200/tank-ledger.jsonl");
    let Event::SeasonOpened(opened) = ledger::read(&path).unwrap().records.remove(0).event else { panic!() };
    assert_eq!(opened.season.problem_names().unwrap().len(), 3);
    let problems = format!("\"problems\":{}", serde_json::to_string(&opened.season.problems).unwrap());
    assert!(fs::read_to_string(&path).unwrap().contains(&problems), "{problems}");
}

/// Seasons that were played on silicon, by programs from before sittings were announced: whoever publishes a ledger has
/// to be able to show it to a reader years later.
#[test]
fn ledgers_of_older_versions_are_verified_and_told_by_this_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/h200");
    let programs = fs::read_dir(folder.join("programs")).unwrap().map(|entry| entry.unwrap().path());
    let ledgers = programs.filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"));
    let ledgers: Vec<_> = ledgers.chain([folder.join("tank-ledger.jsonl")]).collect();
    assert!(ledgers.len() >= 12, "{ledgers:?}");
    let page = fs::read_to_string(folder.join("seasons.md")).unwrap();
    for path in ledgers {
        let (shown, checked) = (path.display(), ledger::read(&path).unwrap());
        assert!(checked.torn.is_empty(), "{shown}");
        let head = &checked.records.last().unwrap().hash;
        assert!(page.contains(&head[..16]), "{shown}: the page gives its head, which is {head}");
        assert!(!checked.records.iter().any(|record| matches!(record.event, Event::Seated(_))), "{shown} is as it was");
        let report = Report::new(&checked.records, None).unwrap();
        assert_eq!((report.version.as_str(), report.interrupted().len()), ("0.1.0", 0), "{shown}");
        let (page, text, json) = (html(&report), markdown(&report), serde_json::to_value(&report).unwrap());
        for attempt in &report.attempts {
            assert!(page.contains(&attempt.verdict.to_string()) && text.contains(&attempt.pitch), "{shown}");
        }
        assert_eq!(json["attempts"].as_array().unwrap().len(), report.attempts.len());
        let failed = |attempt: &history::Attempt| attempt.judgement.verdict == Verdict::Failure;
        let failures = history::attempts(&checked.records).into_iter().filter(failed).count();
        assert_eq!(history::graveyard(&checked.records).len(), failures, "{shown}");
        // One line that was changed is found.
        let text = fs::read_to_string(&path).unwrap();
        let forged = text.replacen("\"version\":\"0.1.0\"", "\"version\":\"0.1.1\"", 1);
        assert!(ledger::check(&path, forged.as_bytes()).unwrap_err().to_string().contains("line 1:"), "{shown}");
    }
}

#[test]
fn where_a_season_is_held_is_not_a_part_of_what_is_played() {
    let cluster = "\n[cluster]\nkind = \"slurm\"\noptions = [\"--partition=gpu\"]\nshared = \"/shared/tank\"\n";
    let read = |text: &str| Season::from_text(Path::new("season.toml"), text).unwrap();
    let cpu = Shipped::by_name("cpu").unwrap().text;
    let (here, elsewhere) = (read(cpu), read(&format!("{cpu}{cluster}")));
    assert_eq!((here.digest(), here.cluster), (elsewhere.digest(), None));
    let machines = elsewhere.cluster.unwrap();
    assert_eq!((machines.kind.as_deref(), machines.options), (Some("slurm"), vec!["--partition=gpu".to_owned()]));
    assert_eq!(machines.shared.as_deref(), Some(Path::new("/shared/tank")));
}

/// A server that speaks as an OpenAI-compatible endpoint does, and answers by the question that it finds in the user's
/// message.
fn stand_in() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/v1/chat/completions", listener.local_addr().unwrap());
    std::thread::spawn(move || listener.incoming().flatten().for_each(answer));
    address
}

fn answer(mut stream: TcpStream) {
    let (mut request, mut chunk) = (Vec::new(), [0; 4096]);
    let body = loop {
        let read = stream.read(&mut chunk).unwrap();
        request.extend(&chunk[..read]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        if body.len() >= length.unwrap() {
            break body.to_owned();
        }
    };
    let asked: serde_json::Value = serde_json::from_str(&body).unwrap();
    let question: serde_json::Value = serde_json::from_str(asked["messages"][1]["content"].as_str().unwrap()).unwrap();
    let said = match question["asks"].as_str() {
        Some("vote") => {
            let ballot = |considered: &serde_json::Value| {
                let scores: serde_json::Map<String, serde_json::Value> = question["criteria"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|c| (c["name"].as_str().unwrap().to_owned(), 6.into()))
                    .collect();
                serde_json::json!({"pitch": considered["pitch"]["name"], "scores": scores, "probability": 0.5})
            };
            let ballots: Vec<_> = question["pitches"].as_array().unwrap().iter().map(ballot).collect();
            serde_json::json!({"ballots": ballots, "statement": {"motto": question["you"]["motto"]}})
        }
        _ => {
            let mut pitch = question["example"].clone();
            pitch["run"] = serde_json::json!({"config": "strategy=sequential,tile=16x48,depth=64,stages=1"});
            serde_json::json!({"pitches": [pitch]})
        }
    };
    let message = format!("Here you are:\n```json\n{said}\n```");
    let reply = serde_json::json!({"model": "stand-in", "choices": [{"message": {"content": message}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20}});
    let reply = reply.to_string();
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{reply}",
        reply.len()
    );
}

/// The example, told by arguments of `env` whom to ask.
fn example(folder: &Path) -> Vec<String> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/agents/shark.py");
    let url = stand_in();
    fs::write(folder.join("url"), &url).unwrap();
    [
        "env".to_owned(),
        format!("AGENT_URL={url}"),
        "no_proxy=*".to_owned(),
        "python3".to_owned(),
        script.display().to_string(),
    ]
    .to_vec()
}

#[test]
fn an_agent_votes_and_brings_pitches_through_any_endpoint_and_what_it_said_is_in_the_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let command = example(folder.path());
    let mut season = season(&[("one", two())]);
    season.sharks[2] = Shark {
        name: "agent".into(),
        motto: "measure twice".into(),
        source: Source::Command { command: command.clone() },
        ..Which::Theorist.shark()
    };
    season.rounds[0].asks = vec![Asked { contestant: "a model".into(), command, programs: false }];
    let path = folder.path().join("l");
    played(&season, &path, &mut Scripted::new(&season, &[("first", Fate::Speed(1.3))]), &Options::default()).unwrap();
    let records = ledger::read(&path).unwrap().records;
    let voted = records.iter().find_map(|record| match &record.event {
        Event::Voted(voted) if voted.shark == "agent" => Some(voted),
        _ => None,
    });
    let voted = voted.unwrap();
    assert_eq!(
        (voted.void.as_deref(), voted.ballots.len(), voted.statement.motto.as_str()),
        (None, 3, "measure twice")
    );
    let talk = voted.talk.as_ref().unwrap();
    assert!(talk.model == "stand-in" && talk.tokens_in == 100 && talk.said.contains("Here you are"), "{talk:?}");
    let brought = records.iter().find_map(|record| match &record.event {
        Event::Asked(asked) => Some(asked),
        _ => None,
    });
    let brought = brought.unwrap();
    assert!(brought.void.is_none() && brought.pitches.len() == 1 && brought.talk.is_some(), "{brought:?}");
    assert_eq!(brought.pitches[0].contestant, "a model");
    assert!(has(&records, |event| matches!(event, Event::Pitched(p) if p.pitch.contestant == "a model")));
    assert_eq!(rounds(&records)[0].1, Verdict::Success);
}

/// Brings the example three times, under names that one might take for each other.
const NAMESAKES: &str = "
import json, sys
example = json.load(sys.stdin)['example']
print(json.dumps({'pitches': [{**example, 'name': name} for name in ('fast', 'Fast', 'fast')]}))
";

#[test]
fn no_pitch_that_is_brought_has_the_name_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let command = ["python3", "-c", NAMESAKES].map(str::to_owned).to_vec();
    let mut pitches = two();
    pitches[1].name = "FAST (one, a model)".into();
    let mut season = season(&[("one", pitches)]);
    season.rounds[0].asks = vec![Asked { contestant: "a model".into(), command, programs: false }];
    let path = folder.path().join("l");
    played(&season, &path, &mut Scripted::new(&season, &[("first", Fate::Speed(1.3))]), &Options::default()).unwrap();
    let records = ledger::read(&path).unwrap().records;
    let pitched = records.iter().filter_map(|record| match &record.event {
        Event::Pitched(pitched) => Some(pitched.pitch.name.as_str()),
        _ => None,
    });
    let names: Vec<&str> = pitched.collect();
    let brought = ["fast 2 (one, a model)", "Fast 3 (one, a model)", "fast 4 (one, a model)"];
    assert_eq!(names[1..], [&["FAST (one, a model)"][..], &brought].concat(), "{names:?}");
}
