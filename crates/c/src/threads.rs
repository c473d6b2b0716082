//! Threads that a C program brings, and engines on them.

use std::ffi::{c_char, c_void};

use hammerhead::Options;
use hammerhead::cpu::ParallelFor;

use crate::layer::{Engine, at, hand_out};
use crate::operands;
use crate::status::{Error, Result, guard};

/// A piece of work for one number.
type Task = unsafe extern "C" fn(arg: *mut c_void, index: usize);

/// Threads of the caller's, as a function that runs tasks on them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    /// Handed to `run` as it is.
    pub pool: *mut c_void,
    /// How many threads there are, the calling one included.
    pub threads: usize,
    /// Calls task(arg, i) once for each i < count, in any order, on any threads, and returns after all calls have. One
    /// thread that makes all calls is right, too. Calls of `run` may come from several threads at once, if an engine is
    /// so used.
    pub run: Option<
        unsafe extern "C" fn(
            pool: *mut c_void,
            task: unsafe extern "C" fn(arg: *mut c_void, index: usize),
            arg: *mut c_void,
            count: usize,
        ),
    >,
}

/// The caller's pool and its function.
struct Host {
    pool: *mut c_void,
    run: unsafe extern "C" fn(*mut c_void, Task, *mut c_void, usize),
}

// SAFETY: the header says that `run` may be called from several threads at once, with this pool.
unsafe impl Send for Host {}
// SAFETY: the header says that `run` may be called from several threads at once, with this pool.
unsafe impl Sync for Host {}

impl Host {
    fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        let arg = (&raw const task).cast_mut().cast();
        // SAFETY: the caller of hammerhead_engine_create_on promised a function that runs the tasks and returns after
        // all of them; `enter` reads `task` only meanwhile.
        unsafe { (self.run)(self.pool, enter, arg, count) };
    }
}

/// A task as the host calls it. It does not panic: [`ParallelFor`] keeps its work's panics.
unsafe extern "C" fn enter(arg: *mut c_void, index: usize) {
    // SAFETY: `Host::run` hands out the address of such a reference, which stays until the host's function returns.
    let task = unsafe { *arg.cast::<&(dyn Fn(usize) + Sync)>() };
    task(index);
}

/// Makes an engine that computes on threads of the caller's. It starts none of its own.
///
/// backend, config: as for hammerhead_engine_create. threads: copied; what its `pool` leads to stays until the engine
/// is destroyed.
///
/// # Safety
///
/// Texts are NULL or end with a zero byte; `threads` is NULL or a structure whose function does what it says there;
/// `engine` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_engine_create_on(
    backend: *const c_char,
    threads: *const Threads,
    config: *const c_char,
    engine: *mut *mut Engine,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (backend, config) = unsafe { (operands::text(backend, "backend")?, operands::text(config, "config")?) };
        // SAFETY: the caller's promise.
        let &Threads { pool, threads, run } = unsafe { at(threads, "threads") }?;
        let host = Host { pool, run: run.ok_or_else(|| Error::Null { what: "threads->run".to_owned() })? };
        let workers = ParallelFor::new(threads, move |count, task: &(dyn Fn(usize) + Sync)| host.run(count, task))?;
        let made = made(backend, config, workers)?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(made, engine, "engine") }
    })
}

fn made(backend: Option<&str>, config: Option<&str>, workers: impl hammerhead::Workers + 'static) -> Result<Engine> {
    let request = config.unwrap_or_default().parse()?;
    let options = Options { backend: backend.map(str::to_owned), threads: None, request };
    Ok(Engine(hammerhead::Engine::with_workers(options, workers)?))
}
