//! GPU architectures, a folder each. Adding one is adding its folder and its line in [`ALL`].

pub mod sm90;

use crate::family::Family;

/// Every family, the most capable first.
pub const ALL: [&dyn Family; 1] = [&sm90::Sm90];

/// The family for GPUs of a compute capability.
pub fn supporting(capability: (i32, i32)) -> Option<&'static dyn Family> {
    ALL.into_iter().find(|family| family.supports(capability))
}
