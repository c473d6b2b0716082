//! The referee: correct first, then paired timing.
//!
//! [`settings`] holds every number it goes by, [`stats`] turns quartets into a ratio with an interval, [`duel`] holds a
//! sitting over anything that yields samples, [`synthetic`] is such a thing with a known truth, and [`calibration`] uses
//! it to say how often the referee is right. [`record`] is what a sitting leaves behind.

pub mod calibration;
pub mod duel;
pub mod record;
mod samples;
pub mod seeds;
pub mod settings;
pub mod stats;
pub mod synthetic;

pub use duel::{Course, Floor, Halt, sit};
pub use record::{
    Control, Correctness, CourseReport, Look, Measurement, Outcome, Pairing, Precision, RooflineCheck, ShapeResult,
    Side, Sitting, Speedup, Stop, Summary, Temperature, Terms, Wrong,
};
pub use settings::{Checking, Limits, RefereeSettings, Timing};
