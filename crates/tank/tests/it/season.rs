//! Seasons played with a scripted referee: what each verdict leads to.

use crate::scripted::{
    Fate, Scripted, champion, claiming, pitch, played, records, rounds, season, small_problems, two, verdicts,
};
use hammerhead::tuning::{Standing, Tuning};
use hammerhead::{Backend, Basis, Plan, Request, backends};
use tank::entry::Entry;
use tank::event::Event;
use tank::ledger::{self, Ledger, Record};
use tank::operations::dual_gemm::ProblemSpec;
use tank::pitch::{Deal, Kind, Pitch, Run};
use tank::play::{Choices, Options};
use tank::round::RoundKind;
use tank::season::{PLANNED, Season};
use tank::settings::Settings;
use tank::shark::{Ballot, Shark, Source, Veto, default_criteria};
use tank::verdict::Verdict;

fn disqualified(records: &[Record], pitch: &str) -> Option<String> {
    records.iter().find_map(|r| match &r.event {
        Event::PitchChecked(checked) if checked.pitch == pitch => Some(checked.disqualified.clone()),
        _ => None,
    })?
}

#[test]
fn a_success_is_crowned_and_the_next_round_is_against_it() {
    let later = vec![
        pitch("third", "strategy=sequential,tile=16x32,depth=64,stages=1"),
        pitch("fourth", "strategy=sequential,tile=16x16,depth=64,stages=1"),
    ];
    let season = season(&[("one", two()), ("two", later)]);
    let records =
        records(&season, &[("first", Fate::Speed(1.4)), ("third", Fate::Speed(1.1)), ("fourth", Fate::Speed(1.1))]);
    assert_eq!(verdicts(&records)[0], ("first".into(), Verdict::Success));
    let champions = records.iter().filter_map(|r| match &r.event {
        Event::Begun(begun) => Some(begun.champion.clone()),
        _ => None,
    });
    let champions: Vec<_> = champions.collect();
    assert_ne!(champions[0], champions[1], "the second round is against the first one's winner");
    assert!(matches!(champion(&records).as_deref(), Some("third" | "fourth")));
}

#[test]
fn a_claim_is_in_the_ledger_before_anything_runs() {
    let records = records(&season(&[("one", two())]), &[("first", Fate::Speed(1.4))]);
    let place = |is: fn(&Event) -> bool| records.iter().position(|r| is(&r.event)).unwrap();
    let last_claim = records.iter().rposition(|r| matches!(r.event, Event::Pitched(_))).unwrap();
    assert!(last_claim < place(|e| matches!(e, Event::Examined(_))));
    assert!(place(|e| matches!(e, Event::Begun(_))) < place(|e| matches!(e, Event::Examined(_))));
    assert!(place(|e| matches!(e, Event::Examined(_))) < place(|e| matches!(e, Event::Sat(_))));
}

#[test]
fn where_the_winner_fails_the_runner_up_is_tried_and_the_champion_stays_until_a_success() {
    for failure in [Fate::Wrong, Fate::Broken, Fate::Crash, Fate::Speed(0.7)] {
        let season = season(&[("one", two())]);
        let records = records(&season, &[("first", failure.clone()), ("second", Fate::Speed(1.2))]);
        let expected = [("first".into(), Verdict::Failure), ("second".into(), Verdict::Success)];
        assert_eq!(verdicts(&records)[..2], expected, "{failure:?}");
        assert_eq!(champion(&records).as_deref(), Some("second"));
    }
}

#[test]
fn nothing_is_timed_that_is_wrong() {
    let season = season(&[("one", two())]);
    let folder = tempfile::tempdir().unwrap();
    let mut referee = Scripted::new(&season, &[("first", Fate::Wrong), ("second", Fate::Wrong)]);
    played(&season, &folder.path().join("l"), &mut referee, &Options::default()).unwrap();
    assert!(referee.asked.iter().all(|asked| !asked.starts_with("sit")), "{:?}", referee.asked);
}

#[test]
fn a_program_that_is_timed_and_crowned_must_be_the_one_that_was_examined() {
    let mut pitches = two();
    pitches[0].run = Some(Run { program: vec!["/bin/true".to_owned()], ..Run::default() });
    let season = season(&[("one", pitches)]);
    let folder = tempfile::tempdir().unwrap();
    let mut referee = Scripted::new(&season, &[("first", Fate::Speed(1.4))]);
    let path = folder.path().join("l");
    played(&season, &path, &mut referee, &Options::default()).unwrap();
    let examined = Some("as examined".to_owned());
    assert_eq!(referee.seals.first(), Some(&examined), "{:?}", referee.asked);
    let crowned = ledger::read(&path).unwrap().records.into_iter().find_map(|record| match record.event {
        Event::Crowned(crowned) => Some(crowned.entry),
        _ => None,
    });
    assert!(matches!(crowned, Some(Entry::Program { sealed, .. }) if sealed == examined));
}

#[test]
fn without_a_success_the_champion_stays() {
    for (fate, verdict) in [
        (Fate::Unknown, Verdict::Inconclusive),
        (Fate::Mixed, Verdict::Partial),
        (Fate::Speed(0.8), Verdict::Failure),
        (Fate::Speed(1.0), Verdict::Inconclusive),
        (Fate::Blocked, Verdict::Blocked),
    ] {
        let fates = [("first", fate.clone()), ("second", fate.clone())];
        let records = records(&season(&[("one", two())]), &fates);
        assert_eq!((verdicts(&records)[0].1, champion(&records)), (verdict, None), "{fate:?}");
        assert!(!records.iter().any(|r| matches!(r.event, Event::Crowned(_) | Event::Installed(_))));
    }
}

#[test]
fn a_void_sitting_is_held_again_and_counts_for_nothing() {
    let season = season(&[("one", two())]);
    let folder = tempfile::tempdir().unwrap();
    let mut referee = Scripted::new(&season, &[("first", Fate::Void(1, 1.3))]);
    played(&season, &folder.path().join("l"), &mut referee, &Options::default()).unwrap();
    assert_eq!(referee.asked.iter().filter(|a| *a == "sit first").count(), 2);
    let always = records(&season, &[("first", Fate::Void(99, 1.3))]);
    assert_eq!(rounds(&always), [("one".into(), Verdict::Void)]);
    assert_eq!(champion(&always), None);
}

#[test]
fn a_round_with_one_valid_pitch_is_blocked() {
    let mut pitches = two();
    pitches[1].claim = None;
    let records = records(&season(&[("one", pitches)]), &[]);
    assert_eq!(rounds(&records), [("one".into(), Verdict::Blocked)]);
    assert!(disqualified(&records, "second").unwrap().contains("complete: the pitch has no claim"));
}

#[test]
fn a_pitch_is_disqualified_with_the_reason() {
    let illegal = pitch("illegal", "tile=16x7");
    let impossible = claiming(pitch("impossible", "stages=2"), 50.0);
    let twin = pitch("twin", "strategy=interleaved,tile=16x32,depth=64,stages=1");
    let idle = pitch("idle", "strategy=two-pass,tile=16x32,depth=64,stages=1");
    let fat = Pitch { kind: Kind::MinimalFix, ..pitch("fat", "strategy=sequential,tile=32x48,depth=128,stages=2") };
    let mut greedy = pitch("greedy", "strategy=sequential,tile=48x48,depth=64,stages=1");
    greedy.deal = Deal { max_scratch_bytes: Some(10), ..Deal::default() };
    let all = [two(), vec![illegal, impossible, twin, idle, fat, greedy]].concat();
    let records = records(&season(&[("one", all)]), &[]);
    for (pitch, reason) in [
        ("illegal", "constraint: backend 'scalar' refuses"),
        ("impossible", "possible: 50× is claimed"),
        ("twin", "distinct: it runs exactly what 'first' runs"),
        ("idle", "distinct: it runs exactly what the champion runs"),
        ("fat", "minimal: a minimal fix that changes"),
        ("greedy", "memory: it needs"),
    ] {
        let found = disqualified(&records, pitch).unwrap_or_default();
        assert!(found.starts_with(reason), "{pitch}: {found}");
    }
    assert_eq!(disqualified(&records, "first"), None);
}

#[test]
fn what_failed_before_needs_new_evidence() {
    let again = |news: &str| {
        let mut pitches = two();
        pitches.iter_mut().for_each(|p| p.name += " again");
        pitches[0].new_evidence = news.to_owned();
        season(&[("one", two()), ("two", pitches)])
    };
    let fates = [("first", Fate::Speed(0.7)), ("second", Fate::Unknown)];
    let refused = records(&again(""), &fates);
    assert!(disqualified(&refused, "first again").unwrap().contains("tried: it failed before as 'first'"));
    let heard = records(&again("the kernel was rewritten since"), &fates);
    assert_eq!(disqualified(&heard, "first again"), None);
}

/// Two pitches that no other round has, of which sharks prefer the first.
fn pair(n: usize) -> Vec<Pitch> {
    let named = |name: String, columns: usize| {
        pitch(&name, &format!("strategy=sequential,tile=16x{columns},depth=64,stages=1"))
    };
    vec![claiming(named(format!("a{n}"), 16 * n + 48), 1.3), claiming(named(format!("b{n}"), 16 * n + 256), 1.02)]
}

#[test]
fn three_failures_in_a_row_call_a_research_round_and_a_wild_card_round() {
    let season = season(&[("1", pair(1)), ("2", pair(2)), ("3", pair(3)), ("4", pair(4))]);
    let failing: Vec<String> = (1..5).flat_map(|n| [format!("a{n}"), format!("b{n}")]).collect();
    let mut fates: Vec<(&str, Fate)> = failing.iter().map(|name| (name.as_str(), Fate::Speed(0.8))).collect();
    fates.push(("wild card after 3", Fate::Speed(1.3)));
    let records = records(&season, &fates);
    let names: Vec<String> = rounds(&records).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[..6], ["1", "2", "3", "research after 3", "wild cards after 3", "4"]);
    let kinds: Vec<RoundKind> = records
        .iter()
        .filter_map(|r| match &r.event {
            Event::RoundOpened(opened) => Some(opened.round_kind),
            _ => None,
        })
        .collect();
    assert_eq!(kinds[3..5], [RoundKind::Research, RoundKind::WildCard]);
    assert!(records.iter().any(|r| matches!(&r.event, Event::Researched(found) if !found.findings.is_empty())));
    assert_eq!(champion(&records).as_deref(), Some("wild card after 3"), "a wild card may win");
}

#[test]
fn an_inconclusive_round_ends_the_row_of_failures_and_a_void_one_does_not() {
    let calls_research = |middle: Fate| {
        let season = season(&[("1", pair(1)), ("2", pair(2)), ("3", pair(3)), ("4", pair(4))]);
        let names: Vec<String> = (1..5).flat_map(|n| [format!("a{n}"), format!("b{n}")]).collect();
        let fate = |name: &String| if name.ends_with('2') { middle.clone() } else { Fate::Speed(0.8) };
        let fates: Vec<(&str, Fate)> = names.iter().map(|name| (name.as_str(), fate(name))).collect();
        records(&season, &fates).iter().any(|r| matches!(r.event, Event::Researched(_)))
    };
    assert!(!calls_research(Fate::Unknown));
    assert!(calls_research(Fate::Void(99, 1.0)));
}

#[test]
fn where_every_shark_is_below_the_limit_nothing_is_built() {
    let mut season = season(&[("one", two())]);
    season.settings.research_below = 10.1;
    let records = records(&season, &[]);
    assert_eq!(rounds(&records), [("one".into(), Verdict::Inconclusive)]);
    assert!(records.iter().any(|r| matches!(r.event, Event::Researched(_))));
    assert!(!records.iter().any(|r| matches!(r.event, Event::Begun(_))));
}

#[test]
fn an_override_is_logged_beside_the_untouched_vote() {
    let season = season(&[("one", two())]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("l");
    let choices = Choices {
        by: "ada".into(),
        reason: "I saw it work".into(),
        overrides: [("one".to_owned(), "second".to_owned())].into(),
        ..Choices::default()
    };
    let options = Options { choices, ..Options::default() };
    played(&season, &path, &mut Scripted::new(&season, &[("second", Fate::Speed(1.3))]), &options).unwrap();
    let records = ledger::read(&path).unwrap().records;
    let tally = records.iter().find_map(|r| match &r.event {
        Event::Tallied(tallied) => Some(&tallied.tally),
        _ => None,
    });
    assert_eq!(tally.unwrap().winner(), Some("first"));
    let chosen = records.iter().find_map(|r| match &r.event {
        Event::Chosen(chosen) => Some(chosen),
        _ => None,
    });
    let chosen = chosen.unwrap();
    assert_eq!((chosen.voted.as_deref(), chosen.chosen.as_str(), chosen.by.as_str()), (Some("first"), "second", "ada"));
    assert_eq!(verdicts(&records)[0], ("second".into(), Verdict::Success));
}

#[test]
fn an_override_for_a_pitch_that_is_not_there_is_refused_by_name() {
    let season = season(&[("one", two())]);
    let folder = tempfile::tempdir().unwrap();
    let overrides = [("one".to_owned(), "third".to_owned())].into();
    let options = Options { choices: Choices { overrides, ..Choices::default() }, ..Options::default() };
    let error = played(&season, &folder.path().join("l"), &mut Scripted::new(&season, &[]), &options).unwrap_err();
    assert!(error.to_string().contains("'third' cannot be chosen; choose one of first, second"), "{error}");
    assert!(
        !ledger::read(&folder.path().join("l")).unwrap().records.iter().any(|r| matches!(r.event, Event::Chosen(_)))
    );
    let overrides = [("two".to_owned(), "first".to_owned())].into();
    let options = Options { choices: Choices { overrides, ..Choices::default() }, ..Options::default() };
    let error = played(&season, &folder.path().join("m"), &mut Scripted::new(&season, &[]), &options).unwrap_err();
    assert!(error.to_string().contains("no round 'two'"), "{error}");
}

/// A shark that is a person, with these scores on both pitches.
fn person(name: &str, scores: [f64; 2], veto: Option<&str>) -> Shark {
    let ballot = |pitch: &str, score: f64| Ballot {
        pitch: pitch.into(),
        scores: default_criteria().iter().map(|c| (c.name.clone(), score)).collect(),
        veto: veto.filter(|_| pitch == "first").map(|cites| Veto { cites: cites.into(), reason: "no".into() }),
        ..Ballot::default()
    };
    let ballots = vec![ballot("first", scores[0]), ballot("second", scores[1])];
    Shark {
        name: name.into(),
        temperament: name.into(),
        criteria: default_criteria(),
        source: Source::Ballots { ballots, statements: Vec::new() },
        ..Shark::default()
    }
}

#[test]
fn a_tie_that_no_rule_breaks_waits_for_a_word_and_goes_on_with_it() {
    let mut season = season(&[("one", two())]);
    season.sharks = ["x", "y", "z"].map(|name| person(name, [6.0, 6.0], None)).to_vec();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("l");
    let mut referee = Scripted::new(&season, &[("second", Fate::Speed(1.2))]);
    let error = played(&season, &path, &mut referee, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("first, second are tied"), "{error}");
    let words = [("one".to_owned(), "second".to_owned())].into();
    let options = Options { choices: Choices { words, by: "ada".into(), ..Choices::default() }, ..Options::default() };
    played(&season, &path, &mut referee, &options).unwrap();
    assert_eq!(champion(&ledger::read(&path).unwrap().records).as_deref(), Some("second"));
}

#[test]
fn a_pause_stops_before_anything_is_built() {
    let season = season(&[("one", two())]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("l");
    let mut referee = Scripted::new(&season, &[("first", Fate::Speed(1.2))]);
    let paused = Options { pause: true, ..Options::default() };
    let error = played(&season, &path, &mut referee, &paused).unwrap_err();
    assert!(error.to_string().contains("'first' would be built"), "{error}");
    assert_eq!(referee.asked, ["baseline baseline (strategy=two-pass,tile=16x32,depth=64,stages=1)"]);
    played(&season, &path, &mut referee, &Options::default()).unwrap();
    assert_eq!(champion(&ledger::read(&path).unwrap().records).as_deref(), Some("first"));
}

#[test]
fn a_veto_stands_only_if_what_it_cites_is_so() {
    let ruled = |cites: &str| {
        let mut pitches = two();
        // It failed in the first round, and comes again with new evidence, so that no rule keeps it out.
        pitches[0].new_evidence = "something".into();
        let warm_up: Vec<Pitch> = two().into_iter().map(|p| Pitch { name: format!("early {}", p.name), ..p }).collect();
        let mut season = season(&[("zero", warm_up), ("one", pitches)]);
        season.sharks.push(person("vetoer", [9.0, 1.0], Some(cites)));
        let records = records(&season, &[("early first", Fate::Speed(0.7)), ("early second", Fate::Unknown)]);
        let ruling = records.iter().rev().find_map(|r| match &r.event {
            Event::Tallied(tallied) => tallied.tally.rulings.first().cloned(),
            _ => None,
        });
        ruling.unwrap()
    };
    for (cites, words) in [
        ("because I say so", "cites nothing"),
        ("rule:charm", "no rule 'charm'"),
        ("rule:possible", "does not break the rule"),
        ("constraint:memory", "does not break the rule"),
        ("ledger:999", "no record 999"),
        ("ledger:x", "not the number of a record"),
        ("ledger:1", "not a verdict"),
    ] {
        let ruling = ruled(cites);
        assert!(!ruling.stands && ruling.finding.contains(words), "{cites}: {}", ruling.finding);
    }
    let verdict = {
        let warm_up: Vec<Pitch> = two().into_iter().map(|p| Pitch { name: format!("early {}", p.name), ..p }).collect();
        let mut season = season(&[("zero", warm_up)]);
        season.sharks.push(person("vetoer", [9.0, 1.0], None));
        let records = records(&season, &[("early first", Fate::Speed(0.7)), ("early second", Fate::Unknown)]);
        records.iter().find(|r| matches!(&r.event, Event::Judged(j) if j.pitch == "early first")).unwrap().n
    };
    assert!(ruled(&format!("ledger:{verdict}")).stands);
}

#[test]
fn a_vote_that_breaks_the_rules_is_void_and_too_few_votes_block_the_round() {
    let mut season = season(&[("one", two())]);
    season.sharks[0] = person("broken", [11.0, 5.0], None);
    let records = records(&season, &[]);
    assert_eq!(rounds(&records), [("one".into(), Verdict::Blocked)]);
    let void = records.iter().find_map(|r| match &r.event {
        Event::Voted(voted) if voted.shark == "broken" => voted.void.clone(),
        _ => None,
    });
    assert!(void.unwrap().contains("scores go from 0 to 10"));
}

#[test]
fn research_is_measured_but_never_crowned() {
    let mut pitches = two();
    pitches[0].kind = Kind::Research;
    let records = records(&season(&[("one", pitches)]), &[("first", Fate::Speed(1.4))]);
    assert_eq!((verdicts(&records)[0].1, champion(&records)), (Verdict::Success, None));
}

#[test]
fn a_deal_binds_beyond_the_rules() {
    let with = |deal: Deal, speed: f64| {
        let mut pitches = two();
        pitches[0].deal = deal;
        let records = records(&season(&[("one", pitches)]), &[("first", Fate::Speed(speed))]);
        verdicts(&records)[0].1
    };
    let least = |min_geomean| Deal { min_geomean: Some(min_geomean), ..Deal::default() };
    assert_eq!(with(least(1.4), 1.5), Verdict::Success);
    assert_eq!(with(least(1.4), 1.2), Verdict::Partial);
    assert_eq!(with(Deal { revert_under: Some(1.3), ..least(1.4) }, 1.2), Verdict::Failure);
    assert_eq!(with(Deal { revert_under: Some(1.3), ..least(1.4) }, 0.7), Verdict::Failure);
}

#[test]
fn a_partial_verdict_can_wait_for_a_person_who_may_take_its_part() {
    let mut season = season(&[("one", two())]);
    season.settings = Settings { partial_waits: true, ..season.settings };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("l");
    let mut referee = Scripted::new(&season, &[("first", Fate::Mixed)]);
    let error = played(&season, &path, &mut referee, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("'first' is PARTIAL"), "{error}");
    let accepts = [("one".to_owned(), "first".to_owned())].into();
    let options =
        Options { choices: Choices { accepts, by: "ada".into(), ..Choices::default() }, ..Options::default() };
    played(&season, &path, &mut referee, &options).unwrap();
    assert_eq!(champion(&ledger::read(&path).unwrap().records).as_deref(), Some("first"));
}

/// Two pitches on the portable backend that its own plan does not run.
fn unplanned() -> Vec<Pitch> {
    vec![
        claiming(pitch("first", "strategy=interleaved,tile=16x48,depth=64,stages=1"), 1.5),
        claiming(pitch("second", "strategy=ping-pong,tile=48x48,depth=128,stages=4"), 1.02),
    ]
}

/// A season on the portable backend, against that backend's own plan; its records, and what it left for a plan among
/// some backends.
fn forced(title: Fate, among: &[&'static dyn Backend]) -> (Vec<Record>, Vec<Plan>) {
    let season = Season { baseline: PLANNED.into(), ..season(&[("one", unplanned())]) };
    let folder = tempfile::tempdir().unwrap();
    let (path, tuning) = (folder.path().join("l"), folder.path().join("tuning"));
    let mut referee = Scripted::new(&season, &[("first", Fate::Speed(1.4)), ("first for the title", title)]);
    played(&season, &path, &mut referee, &Options { tuning: Some(tuning.clone()), ..Options::default() }).unwrap();
    let tuning = Tuning::load(&tuning);
    let plan = |spec: &ProblemSpec| {
        let modelled = Plan::modelled(spec.problem().unwrap(), among, &Request::default(), 1).unwrap();
        modelled.tuned(&tuning, among, &Request::default(), 1)
    };
    (ledger::read(&path).unwrap().records, small_problems().iter().map(plan).collect())
}

/// What the planner chooses among on this machine if nobody forces anything. The tests here mean something where that
/// is more than the portable backend.
fn unforced() -> Vec<&'static dyn Backend> {
    backends::sharing(backends::by_name("scalar").unwrap())
}

#[test]
fn the_best_on_a_forced_backend_meets_what_the_planner_chooses_among_all() {
    let all = unforced();
    let (records, _) = forced(Fate::Speed(1.1), &all);
    let opponents: Vec<&Entry> = records
        .iter()
        .filter_map(|r| match &r.event {
            Event::Begun(begun) if begun.round == "title" => Some(&begun.champion),
            _ => None,
        })
        .collect();
    let choice = Entry::planned(&small_problems(), &all, &Request::default(), 1).unwrap();
    let needed = if all.len() > 1 { vec![&choice] } else { Vec::new() };
    assert_eq!(opponents, needed);
}

#[test]
fn the_best_on_a_poor_backend_is_champion_of_its_season_and_of_nobody_else() {
    let all = unforced();
    let (records, plans) = forced(Fate::Speed(0.2), &all);
    assert_eq!(champion(&records).as_deref(), Some("first"));
    assert_eq!(records.iter().any(|r| matches!(r.event, Event::Installed(_))), all.len() == 1);
    assert_eq!(plans.iter().all(|plan| matches!(plan.basis(), Basis::Model)), all.len() > 1);
    let (_, alone) = forced(Fate::Speed(0.2), &[backends::by_name("scalar").unwrap()]);
    assert_eq!(alone.iter().all(|plan| matches!(plan.basis(), Basis::Model)), all.len() > 1);
}

#[test]
fn what_beats_the_choice_among_all_backends_is_used_when_none_is_forced() {
    let (records, plans) = forced(Fate::Speed(1.1), &unforced());
    assert!(records.iter().any(|r| matches!(r.event, Event::Installed(_))));
    for plan in plans {
        assert_eq!(plan.backend().name(), "scalar");
        assert!(matches!(plan.basis(), Basis::Tank(_)), "{:?}", plan.basis());
    }
}

#[test]
fn what_was_measured_before_the_kernels_changed_is_installed_for_the_kernels_that_were_measured() {
    let season = Season { baseline: PLANNED.into(), ..season(&[("one", unplanned())]) };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("l");
    let mut referee = Scripted::new(&season, &[("first", Fate::Speed(1.4))]);
    played(&season, &path, &mut referee, &Options::default()).unwrap();
    // The same season in a ledger that another build has begun.
    let (mut ledger, now) = (Ledger::open(&folder.path().join("old")).unwrap(), ledger::read(&path).unwrap().records);
    for record in &now {
        let mut event = record.event.clone();
        if let Event::SeasonOpened(opened) = &mut event {
            opened.kernels.values_mut().for_each(|version| *version = "another build's".into());
        }
        ledger.append(record.season, event).unwrap();
    }
    drop(ledger);
    let tuning = folder.path().join("tuning");
    let options = Options { tuning: Some(tuning.clone()), ..Options::default() };
    assert!(played(&season, &folder.path().join("old"), &mut referee, &options).unwrap().finished_before);
    let tuning = Tuning::load(&tuning);
    assert!(tuning.history().iter().all(|tuned| tuning.standing(tuned) == Standing::Outdated));
    assert_eq!((tuning.history().len(), tuning.len()), (2, 0));
}
