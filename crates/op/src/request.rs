//! What a person asks of a configuration.
//!
//! A [`Config`] is complete. A [`Request`] is what is written on a command line (`strategy=interleaved,tile=128x64`): any subset, the
//! rest is planned. Here is how each part is read; errors name configurations, so reading stands apart from them.

use std::fmt;
use std::str::FromStr;

use crate::{Config, Epilogue, Error, Result, Schedule, Strategy, Tile};

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
    /// Tiles side by side whose tokens come by one copy.
    pub multicast: Option<usize>,
    /// Stages at the end of K over which gate is ahead of up.
    pub ahead: Option<usize>,
}

impl Request {
    /// The configuration with every wish of this request in place of its own value; or the one that is asked for, where nothing is left open.
    pub fn applied_to(&self, config: Config) -> Config {
        self.complete().unwrap_or(Config {
            strategy: self.strategy.unwrap_or(config.strategy),
            tile: self.tile.unwrap_or(config.tile),
            depth: self.depth.unwrap_or(config.depth),
            stages: self.stages.unwrap_or(config.stages),
            epilogue: self.epilogue.unwrap_or(config.epilogue),
            schedule: self.schedule.unwrap_or(config.schedule),
            multicast: self.multicast.unwrap_or(config.multicast),
            ahead: self.ahead.unwrap_or(config.ahead),
        })
    }
}

impl Request {
    /// The configuration that this asks for, where it leaves nothing to be planned. Of tiles that share copies, and of a gate that is
    /// ahead, nothing need be said: then there are none.
    pub fn complete(&self) -> Option<Config> {
        Some(Config {
            strategy: self.strategy?,
            tile: self.tile?,
            depth: self.depth?,
            stages: self.stages?,
            epilogue: self.epilogue?,
            schedule: self.schedule?,
            multicast: self.multicast.unwrap_or(1),
            ahead: self.ahead.unwrap_or(0),
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
            multicast: Some(config.multicast),
            ahead: Some(config.ahead),
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
                Ok(number) if number > 0 || key == "ahead" => Ok(number),
                _ if key == "ahead" => Err(refuse("the value must be a whole number")),
                _ => Err(refuse("the value must be a positive whole number")),
            };
            match key {
                "strategy" => request.strategy = Some(value.parse()?),
                "tile" => request.tile = Some(value.parse()?),
                "depth" => request.depth = Some(number()?),
                "stages" => request.stages = Some(number()?),
                "epilogue" => request.epilogue = Some(value.parse()?),
                "schedule" => request.schedule = Some(value.parse()?),
                "multicast" => request.multicast = Some(number()?),
                "ahead" => request.ahead = Some(number()?),
                _ => {
                    return Err(refuse(
                        "known keys are strategy, tile, depth, stages, epilogue, schedule, multicast and ahead",
                    ));
                }
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
            multicast: 2,
            ahead: 3,
        };
        let request = config.to_string().parse::<Request>().unwrap();
        assert_eq!((request, request.complete()), (Request::from(config), Some(config)));
        assert_eq!(Request { depth: None, ..request }.complete(), None);
        let older = Request { multicast: None, ahead: None, ..request };
        let plain = Config { multicast: 1, ahead: 0, ..config };
        assert_eq!(plain.to_string().parse::<Request>().unwrap(), older, "what is plain is left unsaid");
        assert_eq!(older.complete(), Some(plain));
        assert_eq!(older.applied_to(config), plain, "nothing is left open");
        assert_eq!("ahead=0".parse::<Request>().unwrap().ahead, Some(0));
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
            ("multicast=0", "multicast=0"),
            ("ahead=-1", "ahead=-1"),
            ("colour=red", "colour=red"),
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
