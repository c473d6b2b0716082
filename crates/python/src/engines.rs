//! Engines, shared by all layers that ask for the same, and whose threads they compute on.
//!
//! An engine has threads, and a model has many layers: each with an engine of its own would drown the machine. Where a
//! layer does not say how many it wants, torch is asked at every call, if it is there: `torch.set_num_threads` counts
//! for us, too. A process that was forked has none of its parent's threads, nor of torch's, so it starts with no
//! engines and with threads of our own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hammerhead::cpu::{Joined, OpenMp, available};
use hammerhead::{BACKEND_VARIABLE, Engine, Options};
use pyo3::prelude::*;

use crate::error::{Error, Result};

/// The environment variable that says whose threads to compute on.
const THREADS_VARIABLE: &str = "HAMMERHEAD_THREADS";

/// Backend, threads and configuration, as Python asks for them.
pub type EngineParts = (Option<String>, Option<i64>, Option<String>);

/// What a caller may ask of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wish {
    backend: Option<String>,
    threads: Option<usize>,
    config: String,
}

/// What an engine is found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    backend: Option<String>,
    threads: usize,
    config: String,
    whose: Choice,
}

/// The engines of one process.
struct Engines {
    process: u32,
    made: Mutex<HashMap<Key, Arc<Engine>>>,
}

static ENGINES: AtomicPtr<Engines> = AtomicPtr::new(std::ptr::null_mut());

impl Engines {
    /// Those of this process. A fork leaves its parent's alone: somebody may have held their lock when the process was
    /// copied.
    fn here() -> &'static Self {
        let found = ENGINES.load(Ordering::Acquire);
        // SAFETY: null, or leaked below.
        match unsafe { found.as_ref() } {
            Some(engines) if engines.process == std::process::id() => engines,
            _ => {
                let made = Box::leak(Box::new(Self { process: std::process::id(), made: Mutex::default() }));
                // Whoever comes second takes what the first one has made.
                match ENGINES.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => made,
                    Err(_) => Self::here(),
                }
            }
        }
    }

    fn get(&self, py: Python<'_>, key: Key) -> Result<Arc<Engine>> {
        let made = || self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = made().get(&key) {
            return Ok(Arc::clone(engine));
        }
        // Not under the lock: the first engine of a machine measures it. If two make the same, one is dropped again.
        let engine = py.detach(|| key.engine())?;
        Ok(Arc::clone(made().entry(key).or_insert(engine)))
    }
}

impl Key {
    fn engine(&self) -> Result<Arc<Engine>> {
        let Self { backend, threads, config, whose } = self;
        let options = Options { backend: backend.clone(), threads: Some(*threads), request: config.parse()? };
        Ok(Arc::new(match whose {
            Choice::Auto => Engine::with_workers(options, Joined::find(*threads)?)?,
            Choice::OpenMp => Engine::with_workers(options, OpenMp::find(*threads)?)?,
            Choice::Own => Engine::new(options)?,
        }))
    }
}

/// Whose threads are computed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Choice {
    /// torch's while they are prompt, where it is loaded and has an OpenMP runtime; else our own.
    Auto = 1,
    /// Our own.
    Own = 2,
    /// Those of the OpenMP runtime that is loaded.
    OpenMp = 3,
}

/// The [`Choice`], or 0 before one was made.
static CHOICE: AtomicU8 = AtomicU8::new(0);
/// The process that imported the package: its forks do not have torch's threads.
static IMPORTED: OnceLock<u32> = OnceLock::new();

impl Choice {
    const ALL: [(&str, Self); 3] = [("auto", Self::Auto), ("own", Self::Own), ("openmp", Self::OpenMp)];

    fn parse(text: &str, what: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        let refused = || Error::value(what, format!("'{text}' is none; it is 'auto', 'own' or 'openmp'"));
        found.map(|(_, choice)| *choice).ok_or_else(refused)
    }

    /// What was chosen, else what the environment says.
    fn get() -> Result<Self> {
        let chosen = CHOICE.load(Ordering::Relaxed);
        if let Some((_, choice)) = Self::ALL.into_iter().find(|(_, choice)| *choice as u8 == chosen) {
            return Ok(choice);
        }
        let choice = match std::env::var(THREADS_VARIABLE) {
            Ok(text) if !text.is_empty() => Self::parse(&text, THREADS_VARIABLE)?,
            _ => Self::Auto,
        };
        CHOICE.store(choice as u8, Ordering::Relaxed);
        Ok(choice)
    }
}

/// To be called when the package is imported.
pub fn imported() {
    IMPORTED.get_or_init(std::process::id);
}

/// Chooses whose threads are computed on from now on: 'own', 'openmp', or 'auto'.
#[pyfunction]
pub fn use_threads(whose: &str) -> Result<()> {
    let choice = Choice::parse(whose, "whose")?;
    if choice == Choice::OpenMp {
        OpenMp::find(1)?;
    }
    CHOICE.store(choice as u8, Ordering::Relaxed);
    Ok(())
}

/// torch's number of threads, if torch has been imported.
fn torch_threads(py: Python<'_>) -> Option<usize> {
    let modules = py.import(pyo3::intern!(py, "sys")).ok()?.getattr(pyo3::intern!(py, "modules")).ok()?;
    let torch = modules.get_item(pyo3::intern!(py, "torch")).ok()?;
    // While torch is still being imported it may not have the function.
    torch.getattr(pyo3::intern!(py, "get_num_threads")).ok()?.call0().ok()?.extract().ok()
}

impl Wish {
    /// What would be asked to get it again.
    pub fn parts(&self) -> EngineParts {
        (self.backend.clone(), self.threads.map(|count| count as i64), Some(self.config.clone()))
    }

    /// What was asked, and what the environment asks where nothing was.
    pub fn new(backend: Option<String>, threads: Option<i64>, config: Option<String>) -> Result<Self> {
        let environment = || std::env::var(BACKEND_VARIABLE).ok().filter(|name| !name.is_empty() && name != "auto");
        let backend = backend.filter(|name| name != "auto").or_else(environment);
        let threads = threads.map(|count| {
            usize::try_from(count).map_err(|_| Error::value("threads", format!("{count} is not a number of threads")))
        });
        Ok(Self { backend, threads: threads.transpose()?, config: config.unwrap_or_default() })
    }

    /// The engine that grants it, for a caller that has released Python's lock.
    pub fn engine(&self) -> Result<Arc<Engine>> {
        Python::attach(|py| self.engine_at(py))
    }

    /// The engine that grants it. To be asked before Python's lock is released: to wait for it again would cost a busy
    /// program more than the call.
    pub fn engine_at(&self, py: Python<'_>) -> Result<Arc<Engine>> {
        let (choice, torch) = (Choice::get()?, torch_threads(py));
        let forked = IMPORTED.get().is_some_and(|&process| process != std::process::id());
        let joins = !forked && (choice == Choice::OpenMp || torch.is_some() && OpenMp::is_loaded());
        let whose = if joins { choice } else { Choice::Own };
        let threads = self.threads.unwrap_or_else(|| available().min(torch.unwrap_or(usize::MAX)).max(1));
        let (backend, config) = (self.backend.clone(), self.config.clone());
        Engines::here().get(py, Key { backend, threads, config, whose })
    }

    /// The names of the backends that it chooses among, best first.
    pub fn backends(&self) -> Result<Vec<&'static str>> {
        Ok(self.engine()?.backends().iter().map(|backend| backend.name()).collect())
    }
}
