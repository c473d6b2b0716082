//! Options that several commands share: who computes, and how.

use clap::Args;
use clap::builder::RangedU64ValueParser;
use hammerhead::tuning::Tuning;
use hammerhead::{Engine, Options, Request, backends};

use crate::{Result, console};

/// Who computes, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "How it is computed")]
pub struct How {
    /// Force a backend by its name (`hammerhead info` lists them); `auto` takes what HAMMERHEAD_BACKEND says, else
    /// the best that this machine has
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = backend_name)]
    pub backend: String,
    /// Threads to use [default: as many as this process may run on]
    #[arg(long, value_name = "N", value_parser = thread_count())]
    pub threads: Option<usize>,
    /// Ask for a configuration, any part of strategy=two-pass|sequential|interleaved|ping-pong, tile=TOKENSxCOLUMNS,
    /// depth=K, stages=N, epilogue=direct|staged, schedule=tile|persistent|split-k, and of what a backend has of its
    /// own (on data-centre Blackwell multicast=N, ahead=N); the rest is planned
    #[arg(long, value_name = "KEY=VALUE,…")]
    pub config: Option<Request>,
}

impl How {
    /// The engine that was asked for.
    pub fn engine(&self) -> Result<Engine> {
        Tuning::installed().complaint().into_iter().for_each(console::remark);
        self.engine_with(self.threads)
    }

    /// The same with another number of threads.
    pub fn engine_with(&self, threads: Option<usize>) -> Result<Engine> {
        Ok(Engine::new(Options { backend: Some(self.backend.clone()), threads, request: self.request() })?)
    }

    /// What every configuration must grant.
    pub fn request(&self) -> Request {
        self.config.unwrap_or_default()
    }
}

/// A number of threads that makes sense.
pub fn thread_count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=4096)
}

/// A backend that is in the list, or a name for several.
pub fn backend_name(name: &str) -> hammerhead::Result<String> {
    if !["auto", backends::PROCESSOR].contains(&name) {
        backends::by_name(name)?;
    }
    Ok(name.to_owned())
}

/// What was listed, without repetitions, in the order in which it was listed first.
pub fn each_once<T: PartialEq + Clone>(listed: &[T]) -> Vec<T> {
    let mut once: Vec<T> = Vec::new();
    for item in listed {
        if !once.contains(item) {
            once.push(item.clone());
        }
    }
    once
}
