//! The season that is played when no other is named, and the wild card that the tank draws when nobody brings one.

use std::path::Path;

use super::Season;
use crate::entry::Entry;
use crate::evidence::Arena;
use crate::pitch::{Claim, Complexity, Kind, Level, Pitch, Risk, Run};
use crate::{Result, operations};

/// The built-in season's file.
pub const TEXT: &str = operations::SEASON;

/// The built-in season.
pub fn builtin() -> Result<Season> {
    Season::from_text(Path::new("cpu.toml"), TEXT)
}

/// A legal configuration that nobody has tried, drawn by the place in the season and not by anyone's wish; none where
/// the operation has no such.
pub fn wild_card(arena: &Arena, champion: &Entry, tried: impl Fn(&Entry) -> bool, place: &str) -> Option<Pitch> {
    let run = arena.configurations.as_ref()?.draw(champion, &tried, place)?;
    let [config, backend] = [&run.config, &run.backend].map(|word| word.as_deref().unwrap_or_default());
    let solution = format!("{config} on {backend}, drawn by lot among all that is legal and untried");
    Some(pitch(run, solution, place))
}

fn pitch(run: Run, solution: String, place: &str) -> Pitch {
    Pitch {
        name: format!("wild card after {place}"),
        kind: Kind::WildCard,
        contestant: "the tank".to_owned(),
        problem: "3 rounds failed, so what was thought to be known about this machine is wrong somewhere".to_owned(),
        solution,
        rollback: "none needed: the champion stays until this wins".to_owned(),
        claim: Some(Claim {
            speedup: Some(1.0),
            low: Some(0.6),
            high: Some(1.2),
            reasoning: "a draw from legal configurations is usually slower than the best of them".to_owned(),
            ..Claim::default()
        }),
        complexity: Some(Complexity { level: Level::Low, hours: 0.0, challenges: Vec::new() }),
        risk: vec![Risk {
            what: "it is slower".to_owned(),
            mitigation: "the referee measures it before anyone uses it".to_owned(),
            ..Risk::default()
        }],
        run: Some(run),
        ..Pitch::default()
    }
}
