//! The season that is played when no other is named, and the wild card that the tank draws when nobody brings one.

use std::path::Path;

use hammerhead::{Backend, Config};
use sha2::{Digest, Sha256};

use super::Season;
use crate::Result;
use crate::entry::{Entry, Way};
use crate::evidence::Arena;
use crate::pitch::{Claim, Complexity, Kind, Level, Pitch, Risk, Run};

/// The built-in season's file. It is an example of how seasons are written too.
pub const TEXT: &str = include_str!("../../seasons/cpu.toml");

/// The built-in season.
pub fn builtin() -> Result<Season> {
    Season::from_text(Path::new("cpu.toml"), TEXT)
}

/// A legal configuration that nobody has tried, drawn by the place in the season and not by anyone's wish.
pub fn wild_card(arena: &Arena, champion: &Entry, tried: impl Fn(&Entry) -> bool, place: &str) -> Option<Pitch> {
    let first = arena.problems.first()?.problem().ok()?;
    let mut drawn: Vec<(String, &'static dyn Backend, Config)> = arena
        .backends
        .iter()
        .flat_map(|&backend| backend.candidates(&first, arena.threads).into_iter().map(move |config| (backend, config)))
        .map(|(backend, config)| (order(place, backend.name(), &config), backend, config))
        .collect();
    drawn.sort_by(|a, b| a.0.cmp(&b.0));
    drawn.into_iter().find_map(|(_, backend, config)| {
        let way = |spec: &crate::operations::dual_gemm::ProblemSpec| {
            backend.check(&spec.problem().ok()?, &config, arena.threads).ok()?;
            let (backend, config) = (backend.name().to_owned(), config.to_string());
            Some(Way { problem: spec.name().ok()?, backend, config })
        };
        let entry = Entry::Builtin { ways: arena.problems.iter().map(way).collect::<Option<_>>()? };
        (entry != *champion && !tried(&entry)).then(|| pitch(backend, &config, place))
    })
}

/// A place in a deck that is shuffled anew for every place in a season, and always the same for the same.
fn order(place: &str, backend: &str, config: &Config) -> String {
    crate::written::hex(&Sha256::digest(format!("{place}/{backend}/{config}")))
}

fn pitch(backend: &dyn Backend, config: &Config, place: &str) -> Pitch {
    Pitch {
        name: format!("wild card after {place}"),
        kind: Kind::WildCard,
        contestant: "the tank".to_owned(),
        problem: "3 rounds failed, so what was thought to be known about this machine is wrong somewhere".to_owned(),
        solution: format!("{config} on {}, drawn by lot among all that is legal and untried", backend.name()),
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
        run: Some(Run { config: Some(config.to_string()), backend: Some(backend.name().to_owned()), ..Run::default() }),
        ..Pitch::default()
    }
}
