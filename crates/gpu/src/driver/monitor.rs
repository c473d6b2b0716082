//! What a device is doing beside computing: its clocks, its power, its temperature, and why it runs no faster.
//!
//! NVIDIA's management library (NVML), opened at run time as the driver is. It is evidence beside times and nothing
//! depends on it: where it is missing, or does not know something, that is said.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use libloading::Library;

use super::{Absent, Context};

/// Where Linux and Windows have the library.
const LIBRARY: &str = if cfg!(windows) { "nvml.dll" } else { "libnvidia-ml.so.1" };

/// A device, to the library.
type Handle = *mut c_void;

/// `NVML_CLOCK_…` and `NVML_TEMPERATURE_GPU` by their numbers.
mod number {
    use std::ffi::c_int;

    pub const CLOCK_MULTIPROCESSORS: c_int = 1;
    pub const CLOCK_MEMORY: c_int = 2;
    pub const TEMPERATURE: c_int = 0;
}

/// What holds a clock down, by bits of `nvmlClocksEventReasons…`. An idle device is not listed: it says nothing about
/// one at work.
const REASONS: [(u64, &str); 6] = [
    (0x04, "the power cap"),
    (0x08, "a hardware slowdown"),
    (0x20, "its temperature, by software"),
    (0x40, "its temperature, by hardware"),
    (0x80, "the power brake"),
    (0x02, "clocks that somebody set"),
];

/// A device at one moment. What the library does not know is left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Cycles per second of the multiprocessors.
    pub clock: Option<f64>,
    /// Cycles per second of the memory.
    pub memory_clock: Option<f64>,
    /// Watts.
    pub watts: Option<f64>,
    /// Degrees Celsius.
    pub celsius: Option<f64>,
    /// What holds the clock down, in words.
    pub held_by: Vec<&'static str>,
    /// The part of the last moments, up to a second of them, in which a kernel ran.
    pub busy: Option<f64>,
}

/// `nvmlUtilization_t`: percentages of time in which kernels ran, and in which memory was used.
#[repr(C)]
#[derive(Default)]
struct Utilization {
    kernels: c_uint,
    _memory: c_uint,
}

type Number = unsafe extern "C" fn(Handle, *mut c_uint) -> c_int;
type Chosen = unsafe extern "C" fn(Handle, c_int, *mut c_uint) -> c_int;
type Bits = unsafe extern "C" fn(Handle, *mut u64) -> c_int;
type Used = unsafe extern "C" fn(Handle, *mut Utilization) -> c_int;

/// One device, watched.
pub struct Monitor {
    device: Handle,
    power: Option<Number>,
    clock: Option<Chosen>,
    temperature: Option<Chosen>,
    reasons: Option<Bits>,
    used: Option<Used>,
    _library: Library,
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a monitor of a device")
    }
}

impl Monitor {
    /// A watch over a context's device.
    pub fn of(context: &Context) -> Result<Self, Absent> {
        Self::open(LIBRARY, &context.info().bus)
    }

    fn open(path: &str, bus: &str) -> Result<Self, Absent> {
        let missing = |reason: String| Absent::new(reason, "nothing need be done: clocks and power are not recorded");
        // SAFETY: opening runs the library's initialisers. It is NVIDIA's, or whatever the system's administrator put
        // under that name.
        let library =
            unsafe { Library::new(path) }.map_err(|error| missing(format!("{path} cannot be opened ({error})")))?;
        let call = |name: &str, status: c_int| match status {
            0 => Ok(()),
            status => Err(missing(format!("{name} failed with status {status}"))),
        };
        let absent = |name: &str| missing(format!("{path} has no function {name}"));
        let bus = CString::new(bus).map_err(|_| missing("the device's place has no name".to_owned()))?;
        let mut device: Handle = null_mut();
        // SAFETY: the types are those of the functions in NVIDIA's header of these names and versions; initialising
        // comes first, the name ends and lives for as long as the call, and one handle is written.
        unsafe {
            let init = library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2\0");
            call("nvmlInit", (init.map_err(|_| absent("nvmlInit_v2"))?)())?;
            type Find = unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int;
            let find = library.get::<Find>(b"nvmlDeviceGetHandleByPciBusId_v2\0");
            let find = find.map_err(|_| absent("nvmlDeviceGetHandleByPciBusId_v2"))?;
            call("nvmlDeviceGetHandleByPciBusId", find(bus.as_ptr(), &mut device))?;
        }
        // SAFETY: the types are those of the functions in NVIDIA's header of these names; they are called while the
        // library is open.
        unsafe {
            Ok(Self {
                device,
                power: library.get(b"nvmlDeviceGetPowerUsage\0").ok().map(|f| *f),
                clock: library.get(b"nvmlDeviceGetClockInfo\0").ok().map(|f| *f),
                temperature: library.get(b"nvmlDeviceGetTemperature\0").ok().map(|f| *f),
                reasons: library.get(b"nvmlDeviceGetCurrentClocksThrottleReasons\0").ok().map(|f| *f),
                used: library.get(b"nvmlDeviceGetUtilizationRates\0").ok().map(|f| *f),
                _library: library,
            })
        }
    }

    /// The device now.
    pub fn reading(&self) -> Reading {
        let number = |status: c_int, value: c_uint| (status == 0).then_some(f64::from(value));
        let chosen = |function: Option<Chosen>, which: c_int| {
            let mut value = 0;
            // SAFETY: the device's handle is the library's own, and one number is written.
            function.and_then(|function| number(unsafe { function(self.device, which, &mut value) }, value))
        };
        let (mut milliwatts, mut bits) = (0, 0);
        // SAFETY: the device's handle is the library's own, and one number is written.
        let power = self.power.and_then(|power| number(unsafe { power(self.device, &mut milliwatts) }, milliwatts));
        // SAFETY: the device's handle is the library's own, and one number of 64 bits is written.
        let known = self.reasons.is_some_and(|reasons| unsafe { reasons(self.device, &mut bits) } == 0);
        let mut utilization = Utilization::default();
        // SAFETY: the device's handle is the library's own, and a structure of two numbers is written.
        let used = self.used.is_some_and(|used| unsafe { used(self.device, &mut utilization) } == 0);
        let held = REASONS.iter().filter(|(bit, _)| known && bits & bit != 0);
        Reading {
            clock: chosen(self.clock, number::CLOCK_MULTIPROCESSORS).map(|megahertz| 1e6 * megahertz),
            memory_clock: chosen(self.clock, number::CLOCK_MEMORY).map(|megahertz| 1e6 * megahertz),
            watts: power.map(|milliwatts| 1e-3 * milliwatts),
            celsius: chosen(self.temperature, number::TEMPERATURE),
            held_by: held.map(|(_, words)| *words).collect(),
            busy: used.then(|| f64::from(utilization.kernels) / 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_and_needs_no_remedy() {
        let absent = Monitor::open("libnvidia-ml-that-is-not-there.so.1", "0000:00:00.0").unwrap_err();
        assert!(absent.reason.contains("libnvidia-ml-that-is-not-there.so.1"), "{absent:?}");
        assert!(absent.remedy.contains("not recorded"), "{absent:?}");
    }
}
