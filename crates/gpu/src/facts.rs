//! What a device is, as far as choosing a configuration depends on it.
//!
//! Read from the device where there is one. Where there is none, and kernels are only built, simulated or priced, those of a device by
//! name stand in.

use op::{Error, Result};

use crate::driver::DeviceInfo;

/// The share of its highest clock that a GPU keeps up under the load of tensor cores: 1.70 of 1.98 GHz, measured on an H200.
const CLOCK_SHARE: f64 = 1.70 / 1.98;
/// The share of its memory's nominal bandwidth that reading gets: 4.3 of 4.92 TB/s, measured on an H200.
const BANDWIDTH_SHARE: f64 = 4.3 / 4.917;

/// A device.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Its name.
    pub name: String,
    /// Its compute capability.
    pub capability: (i32, i32),
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Cycles per second that a multiprocessor keeps up under load.
    pub clock: f64,
    /// Bytes per second that its memory can be read at.
    pub bandwidth: f64,
    /// Bytes of its memory.
    pub memory_bytes: usize,
    /// Bytes of its L2 cache.
    pub cache_bytes: usize,
    /// Bytes of shared memory that a block can have.
    pub shared_bytes: usize,
    /// Bytes per second that are copied between it and the host, each way.
    pub host_bandwidth: f64,
}

impl Facts {
    /// What a device says of itself.
    pub fn of(info: &DeviceInfo) -> Self {
        Self {
            name: info.name.clone(),
            capability: info.capability,
            multiprocessors: info.multiprocessors,
            clock: CLOCK_SHARE * info.clock_hertz,
            bandwidth: BANDWIDTH_SHARE * info.memory_bandwidth,
            memory_bytes: info.memory_bytes,
            cache_bytes: info.cache_bytes,
            shared_bytes: info.shared_bytes,
            host_bandwidth: HOST_BANDWIDTH,
        }
    }

    /// An H200: what kernels are planned for where there is no device.
    pub fn h200() -> Self {
        Self::listed(NAMED[0])
    }

    /// A device by name, for where there is none: `h100` or `h200`.
    pub fn named(name: &str) -> Result<Self> {
        let known = NAMED.iter().find(|device| device.0.eq_ignore_ascii_case(name));
        known.copied().map(Self::listed).ok_or_else(|| Error::UnknownName {
            what: "device",
            name: name.to_owned(),
            known: NAMED.map(|device| device.0).join(", "),
        })
    }

    fn listed((name, multiprocessors, clock, bandwidth, memory): Listed) -> Self {
        Self {
            name: name.to_owned(),
            capability: (9, 0),
            multiprocessors,
            clock: CLOCK_SHARE * clock,
            bandwidth: BANDWIDTH_SHARE * bandwidth,
            memory_bytes: memory << 30,
            cache_bytes: 50 << 20,
            shared_bytes: 227 << 10,
            host_bandwidth: HOST_BANDWIDTH,
        }
    }
}

/// Bytes per second between host and device from ordinary memory, which the driver moves through buffers of its own: measured with
/// `bench --backend cuda` on an H200 behind PCIe 5.
const HOST_BANDWIDTH: f64 = 10e9;

type Listed = (&'static str, u32, f64, f64, usize);

/// Name, multiprocessors, highest clock, nominal bandwidth of memory, GiB of it. From NVIDIA's data sheets of the SXM boards; the H200's as
/// the device itself says.
const NAMED: [Listed; 2] = [("h200", 132, 1.98e9, 4.917e12, 140), ("h100", 132, 1.98e9, 3.35e12, 80)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_known_by_name_and_others_are_refused_with_the_list() {
        assert_eq!(Facts::named("H200").unwrap().multiprocessors, 132);
        let error = Facts::named("b200").unwrap_err().to_string();
        assert!(error.contains("b200") && error.contains("h100"), "{error}");
    }
}
