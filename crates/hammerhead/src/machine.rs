//! The machine that a result was made on, told so that results of different machines are not compared by accident.
//!
//! The fingerprint is made of what stays the same when the machine is started again: the processor's name, its
//! instruction sets, the cores that may be used, its caches, the class of its memory's size, and the names of its GPUs.
//! Frequencies and the exact amount of memory, which vary from start to start, are not in it.

use std::fs;

use serde::{Deserialize, Serialize};

/// Instruction sets that matter to matrix products, as Linux spells them, x86 first and then ARM.
const ISA: [&str; 18] = [
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512vbmi",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "bf16",
    "sve",
];

/// What is known about a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The same for the same kind of machine with the same number of usable cores, from start to start.
    pub fingerprint: String,
    /// The processor's name.
    pub cpu: String,
    /// The architecture it was compiled for.
    pub arch: String,
    /// The operating system.
    pub os: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory in whole GiB, 0 where it cannot be told.
    pub memory_gib: u64,
    /// Instruction sets that matter here.
    pub isa: Vec<String>,
    /// The caches of one core, level, type and size each, where they can be told.
    pub caches: Vec<String>,
    /// The names of its NVIDIA GPUs, where there are any.
    pub gpus: Vec<String>,
}

impl Machine {
    /// Looks at this machine. What cannot be found out is left empty.
    pub fn detect() -> Self {
        let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, Into::into);
        Self::describe(&about, &memory, cores, caches(), gpus())
    }

    fn describe(cpuinfo: &str, meminfo: &str, cores: usize, caches: Vec<String>, gpus: Vec<String>) -> Self {
        let cpu = field(cpuinfo, "model name").or_else(|| field(cpuinfo, "Model")).unwrap_or("unknown").to_owned();
        let flags = field(cpuinfo, "flags").or_else(|| field(cpuinfo, "Features")).unwrap_or_default();
        let isa: Vec<String> = ISA
            .iter()
            .filter(|isa| flags.split_whitespace().any(|flag| flag == **isa))
            .map(|s| s.to_string())
            .collect();
        let kib = field(meminfo, "MemTotal").and_then(|total| total.split_whitespace().next()?.parse::<u64>().ok());
        let (arch, os) = (std::env::consts::ARCH.to_owned(), std::env::consts::OS.to_owned());
        let told = [
            format!("{arch}/{os}/{cpu}/{cores}/{}", isa.join(" ")),
            format!("{}/{}/{}", caches.join(" "), memory_class(kib.unwrap_or(0)), gpus.join(" ")),
        ];
        Self {
            fingerprint: format!("{:016x}", fnv(told.join("/").as_bytes())),
            cpu,
            arch,
            os,
            cores,
            memory_gib: kib.map_or(0, |kib| (kib + (1 << 19)) >> 20),
            isa,
            caches,
            gpus,
        }
    }
}

/// The size of memory to within a factor of two. The classes begin at four fifths of a power of two, so that neither
/// 2ⁿ GiB nor 3·2ⁿ GiB falls into another class because the system keeps a little for itself.
fn memory_class(kib: u64) -> u32 {
    (kib.saturating_mul(5) / 4).checked_ilog2().unwrap_or(0)
}

/// The caches of the first core, as Linux tells them.
fn caches() -> Vec<String> {
    let read = |index: usize, what: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{what}");
        fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    };
    let cache = |index| Some(format!("L{} {} {}", read(index, "level")?, read(index, "type")?, read(index, "size")?));
    (0..).map_while(cache).collect()
}

/// The names of the GPUs that NVIDIA's driver lists. Nothing is started to find them.
fn gpus() -> Vec<String> {
    let Ok(folder) = fs::read_dir("/proc/driver/nvidia/gpus") else { return Vec::new() };
    let about = folder.flatten().filter_map(|gpu| fs::read_to_string(gpu.path().join("information")).ok());
    let mut names: Vec<String> = about.filter_map(|text| field(&text, "Model").map(str::to_owned)).collect();
    names.sort_unstable();
    names
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// FNV-1a: short, and the same on every machine and in every version, which a standard hasher does not promise.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUINFO: &str =
        "processor\t: 0\nmodel name\t: A Fine CPU\nflags\t\t: fpu avx2 amx_tile sse\n\nprocessor\t: 1\n";

    fn describe(memory: &str, cores: usize, caches: &[&str]) -> Machine {
        Machine::describe(CPUINFO, memory, cores, caches.iter().map(|s| s.to_string()).collect(), Vec::new())
    }

    #[test]
    fn a_machine_is_told_by_its_name_cores_and_instruction_sets() {
        let machine = describe("MemTotal:       16389876 kB\n", 2, &[]);
        assert_eq!((machine.cpu.as_str(), machine.cores, machine.memory_gib), ("A Fine CPU", 2, 16));
        assert_eq!(machine.isa, ["avx2", "amx_tile"]);
    }

    #[test]
    fn the_fingerprint_changes_with_cores_caches_and_the_class_of_memory() {
        let of = |memory, cores, caches| describe(memory, cores, caches).fingerprint;
        let here = of("MemTotal: 16389876 kB", 2, &["L1 Data 48K"]);
        assert_ne!(here, of("MemTotal: 16389876 kB", 4, &["L1 Data 48K"]));
        assert_ne!(here, of("MemTotal: 16389876 kB", 2, &["L1 Data 32K"]));
        assert_ne!(here, of("MemTotal: 65000000 kB", 2, &["L1 Data 48K"]));
    }

    #[test]
    fn the_fingerprint_stays_when_the_system_keeps_a_little_more_memory_for_itself() {
        let of = |gib: f64| describe(&format!("MemTotal: {} kB", (gib * 1048576.0) as u64), 2, &[]).fingerprint;
        for nominal in [4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 128.0] {
            assert_eq!(of(nominal), of(nominal * 0.94), "{nominal} GiB");
        }
        assert_ne!(of(16.0), of(32.0));
    }

    #[test]
    fn this_machine_is_the_same_twice() {
        assert_eq!(Machine::detect(), Machine::detect());
    }

    #[test]
    fn a_machine_that_tells_nothing_still_has_a_description() {
        let machine = Machine::describe("", "", 1, Vec::new(), Vec::new());
        assert_eq!((machine.cpu.as_str(), machine.memory_gib), ("unknown", 0));
    }
}
