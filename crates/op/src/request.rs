//! What a person asks of a configuration.
//!
//! A [`Config`] is complete. A [`Request`] is what is written on a command line (`strategy=interleaved,tile=128x64`):
//! any subset, the rest is planned. Here is how each part is read; errors name configurations, so reading stands apart
//! from them.

use std::fmt;
use std::str::FromStr;

use crate::own::COMMON;
use crate::{Config, Epilogue, Error, Own, Result, Schedule, Setting, Strategy, Tile};

/// What a person asks of a configuration; what is absent is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Request {
    /// The order of the two products.
    pub strategy: Option<Strategy>,
    /// The part of C computed at a time.
    pub tile: Option<Tile>,
    /// How much of K is dequantised at a time.
    pub depth: Option<usize>,
    /// How many dequantised panels are held.
    pub stages: Option<usize>,
    /// How finished values get to C.
    pub epilogue: Option<Epilogue>,
    /// Who computes which tile.
    pub schedule: Option<Schedule>,
    /// Settings of one backend's own.
    pub own: Own,
}

impl Request {
    /// The configuration of a backend that has these settings, with every wish of this request in place of its own
    /// value; or the one that is asked for, where nothing is left open.
    pub fn applied_to(&self, config: Config, settings: &[Setting]) -> Config {
        let applied = self.complete().unwrap_or(Config {
            strategy: self.strategy.unwrap_or(config.strategy),
            tile: self.tile.unwrap_or(config.tile),
            depth: self.depth.unwrap_or(config.depth),
            stages: self.stages.unwrap_or(config.stages),
            epilogue: self.epilogue.unwrap_or(config.epilogue),
            schedule: self.schedule.unwrap_or(config.schedule),
            own: config.own.overridden_by(self.own),
        });
        Config { own: applied.own.without_defaults(settings), ..applied }
    }

    /// The configuration that this asks for, where it leaves nothing to be planned. Settings of a backend's own need
    /// not be mentioned: then they have their defaults.
    pub fn complete(&self) -> Option<Config> {
        Some(Config {
            strategy: self.strategy?,
            tile: self.tile?,
            depth: self.depth?,
            stages: self.stages?,
            epilogue: self.epilogue?,
            schedule: self.schedule?,
            own: self.own,
        })
    }
}

impl From<Config> for Request {
    fn from(config: Config) -> Self {
        Request {
            strategy: Some(config.strategy),
            tile: Some(config.tile),
            depth: Some(config.depth),
            stages: Some(config.stages),
            epilogue: Some(config.epilogue),
            schedule: Some(config.schedule),
            own: config.own,
        }
    }
}

impl FromStr for Request {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut request = Request::default();
        for entry in text.split(',').map(str::trim).filter(|e| !e.is_empty()) {
            let refuse = |reason: &str| Error::ConfigSyntax { entry: entry.to_owned(), reason: reason.to_owned() };
            let (key, value) = entry.split_once('=').ok_or_else(|| refuse("write key=value, for example stages=2"))?;
            let number = || match value.parse::<usize>() {
                Ok(number) if number > 0 => Ok(number),
                _ => Err(refuse("the value must be a positive whole number")),
            };
            let setting = || {
                value.parse::<u32>().map_err(|_| refuse(&format!(
                "known to all backends are {COMMON}; the value of a setting of one backend's own is a whole number"
            )))
            };
            match key {
                "strategy" => request.strategy = Some(value.parse()?),
                "tile" => request.tile = Some(value.parse()?),
                "depth" => request.depth = Some(number()?),
                "stages" => request.stages = Some(number()?),
                "epilogue" => request.epilogue = Some(value.parse()?),
                "schedule" => request.schedule = Some(value.parse()?),
                _ => request.own = request.own.with(key, setting()?).map_err(|reason| refuse(&reason))?,
            }
        }
        Ok(request)
    }
}

impl FromStr for Strategy {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        named("strategy", &Strategy::ALL, name)
    }
}

impl FromStr for Tile {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let sides = text.split_once('x').and_then(|(t, c)| Some((t.parse().ok()?, c.parse().ok()?)));
        match sides {
            Some((tokens, columns)) if tokens > 0 && columns > 0 => Ok(Tile { tokens, columns }),
            _ => Err(Error::ConfigSyntax {
                entry: format!("tile={text}"),
                reason: "a tile is written TOKENSxCOLUMNS, for example tile=128x64".to_owned(),
            }),
        }
    }
}

impl FromStr for Epilogue {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        named("epilogue", &Epilogue::ALL, name)
    }
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        named("schedule", &Schedule::ALL, name)
    }
}

/// The one of these with that name.
fn named<T: Copy + fmt::Display>(what: &'static str, all: &[T], name: &str) -> Result<T> {
    all.iter().copied().find(|each| each.to_string() == name).ok_or_else(|| Error::UnknownName {
        what,
        name: name.to_owned(),
        known: all.iter().map(T::to_string).collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_reads_back_as_itself() {
        let config = Config {
            strategy: Strategy::PingPong,
            tile: Tile { tokens: 128, columns: 64 },
            depth: 256,
            stages: 2,
            epilogue: Epilogue::Staged,
            schedule: Schedule::SplitK,
            own: Own::NONE.with("lead", 3).unwrap().with("width", 2).unwrap(),
        };
        assert!(config.to_string().ends_with(",schedule=split-k,width=2,lead=3"), "{config}");
        let request = config.to_string().parse::<Request>().unwrap();
        assert_eq!((request, request.complete()), (Request::from(config), Some(config)));
        assert_eq!(Request { depth: None, ..request }.complete(), None);
        let (older, plain) = (Request { own: Own::NONE, ..request }, Config { own: Own::NONE, ..config });
        assert_eq!(plain.to_string().parse::<Request>().unwrap(), older);
        assert_eq!(older.applied_to(config, &[]), plain, "nothing is left open");
    }

    #[test]
    fn a_setting_of_a_backends_own_is_applied_by_itself_and_its_default_is_not_mentioned() {
        let settings = [Setting::new("width", 1), Setting::new("lead", 0)];
        let whole = "strategy=two-pass,tile=16x32,depth=64,stages=2,epilogue=direct,schedule=tile,width=2,lead=3";
        let config = whole.parse::<Request>().unwrap().complete().unwrap();
        let applied = |text: &str| text.parse::<Request>().unwrap().applied_to(config, &settings).own;
        assert_eq!(applied("lead=1"), Own::of([(settings[0], 2), (settings[1], 1)]));
        assert_eq!(applied("width=1"), Own::of([(settings[1], 3)]));
        assert_eq!(applied("lead=0,width=1"), Own::NONE);
    }

    #[test]
    fn any_subset_may_be_asked_for() {
        let request: Request = "tile=16x32, strategy=two-pass".parse().unwrap();
        assert_eq!(request.tile, Some(Tile { tokens: 16, columns: 32 }));
        assert_eq!((request.depth, request.stages), (None, None));
        assert_eq!("".parse::<Request>().unwrap(), Request::default());
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, part) in [
            ("tile=128", "tile=128"),
            ("tile=0x16", "tile=0x16"),
            ("stages=0", "stages=0"),
            ("stages=-1", "stages=-1"),
            ("width=-1", "whole number"),
            ("width=4294967296", "whole number"),
            ("colour=red", "known to all backends are strategy, tile"),
            ("Colour=1", "lowercase"),
            ("strategy=fast", "fast"),
            ("epilogue=tma", "direct, staged"),
            ("schedule=stream-k", "tile, persistent, split-k"),
            ("interleaved", "interleaved"),
        ] {
            let error = text.parse::<Request>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
