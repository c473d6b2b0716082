//! Who was right: computed from the ledger, over every season in it.

use crate::scripted::{Fate, claiming, records, season, two};
use tank::history;

fn claimed(claim: f64, measured: Fate) -> Vec<tank::ledger::Record> {
    let mut pitches = two();
    pitches[0] = claiming(pitches[0].clone(), claim);
    records(&season(&[("one", pitches)]), &[("first", measured), ("second", Fate::Unknown)])
}

#[test]
fn the_log_ratio_of_claim_and_measurement_is_the_contestants_error() {
    let records = claimed(2.0, Fate::Speed(0.8));
    let author = &history::contestants(&records, 0.8)["first's author"];
    assert!((author.bias.unwrap() - (2.0f64 / 0.8).ln()).abs() < 1e-9);
    assert!((author.log_error.unwrap() - (2.0f64 / 0.8).ln()).abs() < 1e-9);
    assert_eq!((author.judged, author.successes, author.coverage), (1, 0, Some(0.0)));
    assert!((author.brier.unwrap() - 0.64).abs() < 1e-9, "an 80 % interval that missed");
}

#[test]
fn an_interval_that_holds_the_measurement_covers_it() {
    let author = &history::contestants(&claimed(1.3, Fate::Speed(1.32)), 0.8)["first's author"];
    assert_eq!((author.successes, author.coverage), (1, Some(1.0)));
    assert!((author.brier.unwrap() - 0.04).abs() < 1e-9);
}

#[test]
fn what_was_not_measured_is_no_score() {
    for fate in [Fate::Void(99, 1.3), Fate::Blocked] {
        let records = claimed(1.3, fate);
        assert!(!history::contestants(&records, 0.8).contains_key("first's author"));
    }
    let wrong = &history::contestants(&claimed(1.3, Fate::Wrong), 0.8)["first's author"];
    assert_eq!((wrong.judged, wrong.measured, wrong.bias), (1, 0, None));
}

#[test]
fn sharks_are_scored_by_their_chances_and_what_they_expected() {
    let right = history::sharks(&claimed(1.5, Fate::Speed(1.5)));
    let wrong = history::sharks(&claimed(1.5, Fate::Speed(0.7)));
    assert_eq!(right.len(), 3);
    for name in ["skeptic", "pragmatist", "theorist"] {
        assert!(right[name].brier.unwrap() != wrong[name].brier.unwrap());
        assert!(wrong[name].log_error.is_some());
    }
}

#[test]
fn a_track_record_feeds_the_next_round() {
    let later = two().into_iter().map(|mut p| {
        p.contestant = "first's author".into();
        p.name += " again";
        p.run.as_mut().unwrap().config =
            Some(format!("{},epilogue=staged", p.run.as_ref().unwrap().config.as_ref().unwrap()));
        p
    });
    let season = season(&[("one", two()), ("two", later.collect())]);
    let records = records(&season, &[("first", Fate::Speed(0.5)), ("second", Fate::Unknown)]);
    let evidence = records.iter().find_map(|r| match &r.event {
        tank::event::Event::PitchChecked(checked) if checked.pitch == "first again" => Some(checked.evidence.clone()),
        _ => None,
    });
    let record = evidence.unwrap().record;
    assert_eq!((record.judged, record.successes, record.measured), (1, 0, 1));
    assert!((record.bias - 3f64.ln()).abs() < 1e-9, "1.5 was claimed and 0.5 measured");
}

#[test]
fn the_graveyard_says_why_and_when_again() {
    let graves = history::graveyard(&claimed(1.3, Fate::Wrong));
    assert_eq!(graves.len(), 1);
    assert!(graves[0].why.contains("should be 2") && graves[0].again.contains("new_evidence"));
}
