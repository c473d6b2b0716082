//! Fuzz targets for the readers of what strangers send: models, kernels, and what is brought to the tank.

use std::sync::OnceLock;

pub mod checkpoints;
pub mod kernels;
pub mod launches;
pub mod tank;

use checkpoints::Target;
// The launch reader's sources look for these here.
use launches::{Error, Result};

/// The target that the variable `TARGET` names.
///
/// # Panics
///
/// If it names none: nothing else can be done then.
pub fn chosen(targets: &[(&str, Target)]) -> Target {
    static CHOSEN: OnceLock<Target> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("TARGET").unwrap_or_default();
        match targets.iter().find(|(known, _)| *known == name) {
            Some((_, target)) => *target,
            None => panic!("TARGET is {name:?}, where one of {:?} is expected", targets.iter().map(|t| t.0)),
        }
    })
}
