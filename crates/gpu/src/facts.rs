//! What a device is, as far as choosing a configuration depends on it.
//!
//! Read from the device where there is one. Where there is none, and kernels are only built, simulated or priced, those
//! of a device by name stand in.

use op::{Error, Result};

use crate::driver::DeviceInfo;
use crate::ways::{LeftOut, Way};

/// The share of its highest clock that a GPU keeps up under the load of tensor cores: 1.70 of 1.98 GHz, measured on an
/// H200.
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
    /// Cycles in which a quarter of a multiprocessor multiplies 16 × 8 × 16 halves with `mma.sync` and f32 sums.
    pub mma_cycles: f64,
    /// Bytes per second that are copied between it and the host, each way.
    pub host_bandwidth: f64,
    /// Ways that failed when they were tried there: plans go without.
    pub left_out: Vec<LeftOut>,
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
            mma_cycles: mma_cycles(info.capability, &info.name),
            host_bandwidth: HOST_BANDWIDTH,
            left_out: Vec::new(),
        }
    }

    /// Whether plans of a way may be made, or why not.
    pub fn goes(&self, way: &Way) -> Result<(), String> {
        self.left_out.iter().find(|left_out| left_out.covers(way)).map_or(Ok(()), |left_out| {
            Err(format!(
                "it leans on what failed on this GPU ({}) when it was tried: {left_out}; kernels of another family may \
                 do (HAMMERHEAD_FAMILY=sm80)",
                self.name
            ))
        })
    }

    /// What nobody can exceed: operations per second on products of four-bit numbers and block scales, and bytes per
    /// second of memory, both nominal and at the highest clock. Of units that could do it the fastest counts, so that a
    /// time below is impossible, not only good.
    pub fn ceilings(&self) -> (f64, f64) {
        // Per cycle and multiprocessor, dense, by NVIDIA's tables: eight-bit numbers where tensor cores have no
        // four-bit ones.
        let operations = match self.capability {
            (8, 0) => 4096.0,
            (8, _) => 2048.0,
            (9, _) => 8192.0,
            (10, _) => 32768.0,
            (12, _) => 4096.0,
            _ => f64::INFINITY,
        };
        let clock = self.clock / CLOCK_SHARE;
        (operations * clock * f64::from(self.multiprocessors), self.bandwidth / BANDWIDTH_SHARE)
    }

    /// An H200: what kernels are planned for where there is no device.
    pub fn h200() -> Self {
        Self::listed(&NAMED[0])
    }

    /// An A100: what kernels for Ampere and later are simulated for.
    pub fn a100() -> Self {
        Self::listed(&NAMED[2])
    }

    /// An RTX 5090: what kernels for desktop Blackwell are planned and simulated for.
    pub fn rtx5090() -> Self {
        Self::listed(&NAMED[7])
    }

    /// A B200: what kernels for data-centre Blackwell are planned and simulated for.
    pub fn b200() -> Self {
        Self::listed(&NAMED[6])
    }

    /// A device by name, for where there is none: one of [`Facts::names`].
    pub fn named(name: &str) -> Result<Self> {
        let known = NAMED.iter().find(|device| device.name.eq_ignore_ascii_case(name));
        known.map(Self::listed).ok_or_else(|| Error::UnknownName {
            what: "device",
            name: name.to_owned(),
            known: Self::names().collect::<Vec<_>>().join(", "),
        })
    }

    /// The devices that are known by name.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|device| device.name)
    }

    fn listed(device: &Listed) -> Self {
        Self {
            name: device.name.to_owned(),
            capability: device.capability,
            multiprocessors: device.multiprocessors,
            clock: CLOCK_SHARE * device.gigahertz * 1e9,
            bandwidth: BANDWIDTH_SHARE * device.gigabytes_per_second * 1e9,
            memory_bytes: device.gibibytes << 30,
            cache_bytes: device.cache_mebibytes << 20,
            shared_bytes: device.shared_kibibytes << 10,
            mma_cycles: device.mma_cycles,
            host_bandwidth: HOST_BANDWIDTH,
            left_out: Vec::new(),
        }
    }
}

/// Cycles in which a quarter of a multiprocessor multiplies 16 × 8 × 16 halves with `mma.sync` and f32 sums.
///
/// By the chip, and for those that are sold under several names by the name: GeForce has half the rate of the same chip
/// in a workstation or a data centre. For chips that are not known, the slowest.
fn mma_cycles(capability: (i32, i32), name: &str) -> f64 {
    let geforce = name.to_ascii_lowercase().contains("geforce");
    match capability {
        (8, 0) => 8.0,
        (8, _) if !geforce => 16.0,
        (9, 0) => HOPPER_MMA_CYCLES,
        (10, _) => BLACKWELL_MMA_CYCLES,
        _ => 32.0,
    }
}

/// Hopper's `mma.sync` is measured: 644 TFLOP/s on an H200, at the clock that it keeps up. Data-centre Blackwell's is
/// 409 TFLOP/s (gau-nernst's learn-cuda, 02e).
const HOPPER_MMA_CYCLES: f64 = 5.7;
const BLACKWELL_MMA_CYCLES: f64 = 11.3;

/// Bytes per second between host and device from ordinary memory, which the driver moves through buffers of its own:
/// measured with `bench --backend cuda` on an H200 behind PCIe 5.
const HOST_BANDWIDTH: f64 = 10e9;

/// A device as its maker describes it.
struct Listed {
    name: &'static str,
    capability: (i32, i32),
    multiprocessors: u32,
    gigahertz: f64,
    gigabytes_per_second: f64,
    gibibytes: usize,
    cache_mebibytes: usize,
    shared_kibibytes: usize,
    mma_cycles: f64,
}

/// Devices by name. Multiprocessors, boost clock, bandwidth, memory and L2 are from NVIDIA's data sheets and white
/// papers of the architectures (GA100, GA102, AD102, GH100, GB202; of the SXM boards where there are several); the
/// H200's as the device itself says; L2 and clock of GB10 as measured by Chips and Cheese. Shared memory is from the
/// CUDA programming guide's table of compute capabilities. Rates of mma.sync follow from the sheets' tensor figures
/// with f32 sums, and those of Hopper and B200 are measured: see [`HOPPER_MMA_CYCLES`].
#[rustfmt::skip]
const NAMED: [Listed; 9] = [
    Listed { name: "h200", capability: (9, 0), multiprocessors: 132, gigahertz: 1.98, gigabytes_per_second: 4917.0, gibibytes: 140, cache_mebibytes: 50, shared_kibibytes: 227, mma_cycles: HOPPER_MMA_CYCLES },
    Listed { name: "h100", capability: (9, 0), multiprocessors: 132, gigahertz: 1.98, gigabytes_per_second: 3350.0, gibibytes: 80, cache_mebibytes: 50, shared_kibibytes: 227, mma_cycles: HOPPER_MMA_CYCLES },
    Listed { name: "a100", capability: (8, 0), multiprocessors: 108, gigahertz: 1.41, gigabytes_per_second: 2039.0, gibibytes: 80, cache_mebibytes: 40, shared_kibibytes: 163, mma_cycles: 8.0 },
    Listed { name: "rtx3090", capability: (8, 6), multiprocessors: 82, gigahertz: 1.695, gigabytes_per_second: 936.0, gibibytes: 24, cache_mebibytes: 6, shared_kibibytes: 99, mma_cycles: 32.0 },
    Listed { name: "rtx4090", capability: (8, 9), multiprocessors: 128, gigahertz: 2.52, gigabytes_per_second: 1008.0, gibibytes: 24, cache_mebibytes: 72, shared_kibibytes: 99, mma_cycles: 32.0 },
    Listed { name: "l40s", capability: (8, 9), multiprocessors: 142, gigahertz: 2.52, gigabytes_per_second: 864.0, gibibytes: 48, cache_mebibytes: 96, shared_kibibytes: 99, mma_cycles: 16.0 },
    Listed { name: "b200", capability: (10, 0), multiprocessors: 148, gigahertz: 1.965, gigabytes_per_second: 8000.0, gibibytes: 180, cache_mebibytes: 126, shared_kibibytes: 227, mma_cycles: BLACKWELL_MMA_CYCLES },
    Listed { name: "rtx5090", capability: (12, 0), multiprocessors: 170, gigahertz: 2.407, gigabytes_per_second: 1792.0, gibibytes: 32, cache_mebibytes: 96, shared_kibibytes: 99, mma_cycles: 32.0 },
    Listed { name: "dgx-spark", capability: (12, 1), multiprocessors: 48, gigahertz: 2.418, gigabytes_per_second: 273.0, gibibytes: 128, cache_mebibytes: 24, shared_kibibytes: 99, mma_cycles: 32.0 },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_known_by_name_and_others_are_refused_with_the_list() {
        assert_eq!(Facts::named("H200").unwrap().multiprocessors, 132);
        let error = Facts::named("v100").unwrap_err().to_string();
        assert!(error.contains("v100") && error.contains("h100"), "{error}");
        assert_eq!(
            [Facts::h200(), Facts::a100(), Facts::b200(), Facts::rtx5090()].map(|facts| facts.name),
            ["h200", "a100", "b200", "rtx5090"]
        );
    }

    #[test]
    fn the_rate_of_a_chip_follows_from_its_name_where_it_has_several() {
        assert_eq!(mma_cycles((8, 9), "NVIDIA GeForce RTX 4090"), Facts::named("rtx4090").unwrap().mma_cycles);
        assert_eq!(mma_cycles((8, 9), "NVIDIA L40S"), Facts::named("l40s").unwrap().mma_cycles);
        assert_eq!(mma_cycles((9, 0), "NVIDIA H200"), Facts::h200().mma_cycles);
    }
}
