//! A kernel that does nothing. What a run of it takes is what a launch takes, and what it takes to come to a device on
//! which another process was at work: whoever times the runs of others takes that off.

use std::fmt;

use ptx::{Builder, Error, Kernel, LaunchBounds, Target};

use super::device::{self, Device};
use super::driver::{EncodedLaunch, Stream};
use super::launch::{Launch, Spec};

/// The kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BlankSpec {
    target: Target,
}

impl Spec for BlankSpec {
    fn kernel(self) -> Result<Kernel, Error> {
        let launch = LaunchBounds { threads: 32, cluster: None, min_blocks: None };
        Builder::new("blank", self.target, launch).finish()
    }
}

/// It, compiled for a device.
pub struct Blank {
    launch: EncodedLaunch,
}

impl fmt::Debug for Blank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.launch.fmt(f)
    }
}

impl Blank {
    /// It for a device, by its number.
    pub fn new(device: usize) -> op::Result<Self> {
        let Device { context, family, .. } = Device::of(device)?;
        let kernel = BlankSpec { target: family.target() }.into();
        let launch = Launch { kernel, grid: [1; 3], arguments: Vec::new(), overlapping: false, strided: false };
        let function = device::function(context, &launch.kernel)?;
        Ok(Self { launch: EncodedLaunch::new(function, &launch)? })
    }

    /// Queues it once.
    pub fn queue(&self, stream: &Stream) -> op::Result<()> {
        // SAFETY: it has no arguments and touches no memory.
        unsafe { self.launch.queue(stream) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_at_once() {
        let kernel = BlankSpec { target: Target::Sm90a }.kernel().unwrap();
        assert_eq!((kernel.body.len(), kernel.params.len()), (1, 0), "{}", kernel.to_ptx());
    }
}
