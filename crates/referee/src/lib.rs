//! A referee: settles which of two programs computes something faster, and how sure that is.
//!
//! Correct first, then paired timing. A [`task::Task`] makes numbers from a seed and says what should come out of them;
//! a [`contestant::Contestant`] computes it, usually as a [`contestant::Program`]: any program, in a fresh process
//! behind a fence, that speaks the [`contestant::protocol`]. [`examine`] asks contestants questions before any clock
//! starts. [`sit`] holds a sitting over a [`Course`], anything that yields samples: the real one is a [`Pool`] of two
//! contestants. Its record is a [`Sitting`], with controls (the champion against itself, a slowdown that was planted)
//! and an [`Outcome`].
//!
//! What a contestant does wrong is a [`contestant::Fault`] and goes into the record. An [`Error`] is the environment's.
//!
//! Two programs and one duel, of something that doubles numbers:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use fastrand::Rng;
//! use referee::contestant::{Limits, Program};
//! use referee::task::{Bundle, Element, Expected, Found, Spec, Task, Tensor, Timed, Work};
//! use referee::{Pool, RefereeSettings, Result, Terms, Wall, examine, seeds, sit};
//!
//! struct Doubling;
//!
//! const COUNT: usize = 1 << 16;
//!
//! /// The first element that is not twice the input's.
//! fn compare(input: &Bundle, output: &[Vec<u8>]) -> Found {
//!     let (x, y) = (Element::F32.values(&input.tensors[0].bytes), Element::F32.values(&output[0]));
//!     let wrong = x.iter().zip(&y).position(|(x, y)| 2.0 * x != *y);
//!     let wrong = wrong.map(|at| format!("y[{at}] is {}, should be {}", y[at], 2.0 * x[at]));
//!     Found { wrong, compared: x.len() as u64, ..Found::default() }
//! }
//!
//! struct Twice(Bundle);
//!
//! impl Expected for Twice {
//!     fn check(&self, output: &[Vec<u8>]) -> Result<Found> {
//!         Ok(compare(&self.0, output))
//!     }
//! }
//!
//! impl Task for Doubling {
//!     fn name(&self) -> String {
//!         format!("{COUNT} numbers")
//!     }
//!
//!     fn operation(&self) -> String {
//!         "doubling".to_owned()
//!     }
//!
//!     fn numbers(&self) -> String {
//!         "uniform".to_owned()
//!     }
//!
//!     fn described(&self) -> serde_json::Value {
//!         serde_json::json!({ "count": COUNT })
//!     }
//!
//!     fn work(&self) -> Work {
//!         Work { flops: Some(COUNT as f64), bytes: 8.0 * COUNT as f64, constant_bytes: 0.0 }
//!     }
//!
//!     fn outputs(&self) -> Vec<Spec> {
//!         vec![Spec::new("y", Element::F32, [COUNT])]
//!     }
//!
//!     fn constants(&self, _seed: u64) -> Result<Bundle> {
//!         Ok(Bundle::default())
//!     }
//!
//!     fn input(&self, seed: u64) -> Result<Bundle> {
//!         let mut lots = Rng::with_seed(seed);
//!         let bytes = (0..COUNT).flat_map(|_| lots.f32().to_le_bytes()).collect();
//!         Ok(Bundle::new(vec![Tensor { spec: Spec::new("x", Element::F32, [COUNT]), bytes }]))
//!     }
//!
//!     fn expected(&self, _constants: &Bundle, input: &Bundle, _seed: u64) -> Result<Box<dyn Expected>> {
//!         Ok(Box::new(Twice(input.clone())))
//!     }
//!
//!     fn look(&self, run: &[Timed<'_>], _elements: usize, _lots: &mut Rng) -> Result<Found> {
//!         let mut found = Found::default();
//!         run.iter().for_each(|timed| found.add(compare(timed.input, timed.output)));
//!         Ok(found)
//!     }
//!
//!     fn look_whole(&self, timed: Timed<'_>) -> Result<Option<String>> {
//!         Ok(compare(timed.input, timed.output).wrong)
//!     }
//! }
//!
//! fn main() -> Result<()> {
//!     let program = |name: &str| Program::new(name, vec![format!("/home/me/{name}")], Limits::default());
//!     let (champion, challenger) = (program("doubling-v1"), program("doubling-v2"));
//!     let (settings, clock, seed) = (RefereeSettings::default(), Wall::new(), seeds::fresh()?);
//!     let tasks: Vec<Arc<dyn Task>> = vec![Arc::new(Doubling)];
//!     let [found] = examine([&challenger], &tasks, seed)?;
//!     assert!(found.correctness.passed(), "{:?}", found.correctness);
//!     let mut pool = Pool::new(&champion, &challenger, tasks, &settings, &clock, seed)?;
//!     let sitting = sit(&mut pool, &settings, &Terms::default(), seed)?;
//!     println!("{:?}", sitting.outcome);
//!     Ok(())
//! }
//! ```
//!
//! [`RefereeSettings`] hold every number that it goes by, [`stats`] turns quartets of samples into a ratio with an
//! interval, [`synthetic`] is a course with a known truth, and [`calibration`] uses it to say how often the referee is
//! right.

pub mod calibration;
mod clock;
pub mod contestant;
mod device;
pub mod digits;
mod disturbances;
#[cfg(test)]
mod doubling;
mod duel;
mod error;
mod neighbours;
mod pool;
mod record;
mod samples;
mod scout;
pub mod seeds;
mod settings;
pub mod stats;
pub mod synthetic;
pub mod task;
mod verify;
mod waiting;

pub use clock::{Clock, Wall};
pub use device::Watched;
pub use duel::{Course, Floor, Halt, sit};
pub use error::{Error, Result};
pub use neighbours::Precedence;
pub use pool::Pool;
pub use record::{
    Control, Correctness, CourseReport, DeviceReport, Look, Measurement, Outcome, Pairing, Precision, RooflineCheck,
    Scout, ShapeResult, Side, Sitting, Speedup, Stop, Summary, Terms, Wrong,
};
pub use samples::Take;
pub use settings::{Checking, RefereeSettings, Temperature, Timing, meanings};
pub use verify::{Examination, examine};
