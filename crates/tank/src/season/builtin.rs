//! The seasons that come with this program, and the wild card that the tank draws when nobody brings one.

use std::path::Path;

use super::Season;
use crate::entry::Entry;
use crate::evidence::Arena;
use crate::pitch::{Claim, Complexity, Kind, Level, Pitch, Risk, Run};
use crate::{Error, Result, operations};

/// A season that comes with this program.
#[derive(Clone, Copy, Debug)]
pub struct Shipped {
    /// Its name.
    pub name: &'static str,
    /// What it is played on, and how long that takes.
    pub about: &'static str,
    /// Its file.
    pub text: &'static str,
}

/// The seasons that come with this program: first what needs nothing, then the one that is played when no other is
/// named.
pub const SHIPPED: [Shipped; 5] = [
    Shipped {
        name: "blackwell",
        about: "the first season's pitches on a B200 that is not there: predictions, in seconds",
        text: include_str!("../../seasons/blackwell.toml"),
    },
    Shipped {
        name: "cpu",
        about: "strategies, tiles and stages on this machine's CPU, in ten minutes",
        text: operations::SEASON,
    },
    Shipped {
        name: "layers",
        about: "a whole layer of experts on an H200 that is not there: predictions, in a minute",
        text: include_str!("../../seasons/layers.toml"),
    },
    Shipped {
        name: "hopper",
        about: "strategies, stages and schedules on this machine's Hopper GPU, in minutes",
        text: include_str!("../../seasons/hopper.toml"),
    },
    Shipped {
        name: "hopper-layers",
        about: "a whole layer of experts on this machine's Hopper GPU, for `tank evolve`",
        text: include_str!("../../seasons/hopper-layers.toml"),
    },
];

impl Shipped {
    /// The season of this name.
    pub fn by_name(name: &str) -> Result<&'static Self> {
        SHIPPED.iter().find(|season| season.name == name).ok_or_else(|| {
            if name == "first" {
                return Error::Rules {
                    what: "the season 'first'".to_owned(),
                    problem: "it was played long ago, and its kernel is gone".to_owned(),
                    remedy: "count it again with `hammerhead tank replay`, or play its pitches with --season blackwell"
                        .to_owned(),
                };
            }
            let known = SHIPPED.map(|season| season.name).join(", ") + ", or a season's file";
            hammerhead::Error::UnknownName { what: "season", name: name.to_owned(), known }.into()
        })
    }

    /// The season itself.
    pub fn season(&self) -> Result<Season> {
        Season::from_text(Path::new(self.name), self.text)
    }
}

/// The season that is played when no other is named.
pub fn builtin() -> Result<Season> {
    Shipped::by_name("cpu")?.season()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_season_that_comes_with_the_program_can_be_played_by_its_name() {
        for Shipped { name, .. } in SHIPPED {
            assert!(!Season::named(Path::new(name)).unwrap().rounds.is_empty(), "{name}");
        }
        let refused = |name: &str| Season::named(Path::new(name)).unwrap_err().to_string();
        assert!(refused("hoper").contains("blackwell, cpu, layers, hopper, hopper-layers, or a season's file"));
        assert!(refused("first").contains("hammerhead tank replay"));
        assert!(refused("hoper.toml").contains("hoper.toml"), "{}", refused("hoper.toml"));
    }
}
