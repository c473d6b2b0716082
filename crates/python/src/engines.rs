//! Engines, shared by all layers that ask for the same.
//!
//! An engine owns threads, and a model has many layers: each with an engine of its own would drown the machine. A process
//! that was forked has none of its parent's threads, so the process's number is part of what is asked for.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use hammerhead::{BACKEND_VARIABLE, Engine, Options};

use crate::error::{Error, Result};

/// What a caller may ask of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wish {
    backend: Option<String>,
    threads: Option<usize>,
    config: String,
}

/// By process and wish.
type Engines = HashMap<(u32, Wish), Arc<Engine>>;

static ENGINES: LazyLock<Mutex<Engines>> = LazyLock::new(Mutex::default);

impl Wish {
    /// What was asked, and what the environment asks where nothing was.
    pub fn new(backend: Option<String>, threads: Option<i64>, config: Option<String>) -> Result<Self> {
        let environment = || std::env::var(BACKEND_VARIABLE).ok().filter(|name| !name.is_empty() && name != "auto");
        let backend = backend.filter(|name| name != "auto").or_else(environment);
        let threads = threads.map(|count| {
            usize::try_from(count).map_err(|_| Error::value("threads", format!("{count} is not a number of threads")))
        });
        Ok(Self { backend, threads: threads.transpose()?, config: config.unwrap_or_default() })
    }

    /// The engine that grants it.
    pub fn engine(&self) -> Result<Arc<Engine>> {
        let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (std::process::id(), self.clone());
        if let Some(engine) = engines.get(&key) {
            return Ok(Arc::clone(engine));
        }
        let options = Options { backend: self.backend.clone(), threads: self.threads, request: self.config.parse()? };
        let engine = Arc::new(Engine::new(options)?);
        engines.insert(key, Arc::clone(&engine));
        Ok(engine)
    }

    /// The names of the backends that it chooses among, best first.
    pub fn backends(&self) -> Result<Vec<&'static str>> {
        Ok(self.engine()?.backends().iter().map(|backend| backend.name()).collect())
    }
}
