//! The referee: correct first, then paired timing. [`Official`] is the one that a season calls.
//!
//! [`settings`] holds every number it goes by, [`stats`] turns quartets into a ratio with an interval, [`duel`] holds a
//! sitting over anything that yields samples, [`synthetic`] is such a thing with a known truth, and [`calibration`] uses
//! it to say how often the referee is right. The real thing is [`pool`], with the referee's own [`clock`], and that of a GPU where [`device`] watches one. [`verify`] is the
//! examination that comes before, and [`record`] is what remains of it all.

pub mod calibration;
pub mod clock;
pub mod device;
mod disturbances;
pub mod duel;
mod neighbours;
pub mod official;
pub mod pool;
pub mod record;
mod samples;
mod scout;
pub mod seeds;
pub mod settings;
pub mod stats;
pub mod synthetic;
pub mod verify;

pub use clock::{Clock, Wall};
pub use device::Watched;
pub use duel::{Course, Floor, Halt, sit};
pub use neighbours::Precedence;
pub use official::{Alone, Official};
pub use pool::Pool;
pub use record::{
    Control, Correctness, CourseReport, DeviceReport, Look, Measurement, Outcome, Pairing, Precision, RooflineCheck,
    Scout, ShapeResult, Side, Sitting, Speedup, Stop, Summary, Terms, Wrong,
};
pub use samples::Take;
pub use settings::{Checking, RefereeSettings, Temperature, Timing};
pub use verify::{Examination, examine};
