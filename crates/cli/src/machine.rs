//! The machine that a result was made on, told so that results of different machines are not compared by accident.

use std::fs;

use serde::Serialize;

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
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The same for the same kind of machine with the same number of usable cores, from run to run.
    pub fingerprint: String,
    /// The processor's name.
    pub cpu: String,
    /// The architecture it was compiled for.
    pub arch: &'static str,
    /// The operating system.
    pub os: &'static str,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory in whole GiB, 0 where it cannot be told.
    pub memory_gib: u64,
    /// Instruction sets that matter here.
    pub isa: Vec<String>,
}

impl Machine {
    /// Looks at this machine. What cannot be found out is left empty.
    pub fn detect() -> Self {
        let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, Into::into);
        Self::describe(&about, &memory, cores)
    }

    fn describe(cpuinfo: &str, meminfo: &str, cores: usize) -> Self {
        let cpu = field(cpuinfo, "model name").or_else(|| field(cpuinfo, "Model")).unwrap_or("unknown").to_owned();
        let flags = field(cpuinfo, "flags").or_else(|| field(cpuinfo, "Features")).unwrap_or_default();
        let isa: Vec<String> = ISA
            .iter()
            .filter(|isa| flags.split_whitespace().any(|flag| flag == **isa))
            .map(|s| s.to_string())
            .collect();
        let kib = field(meminfo, "MemTotal").and_then(|total| total.split_whitespace().next()?.parse::<u64>().ok());
        let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
        let told = format!("{arch}/{os}/{cpu}/{cores}/{}", isa.join(" "));
        Self {
            fingerprint: format!("{:016x}", fnv(told.as_bytes())),
            cpu,
            arch,
            os,
            cores,
            memory_gib: kib.map_or(0, |kib| (kib + (1 << 19)) >> 20),
            isa,
        }
    }
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

    #[test]
    fn a_machine_is_told_by_its_name_cores_and_instruction_sets() {
        let machine = Machine::describe(CPUINFO, "MemTotal:       16389876 kB\n", 2);
        assert_eq!((machine.cpu.as_str(), machine.cores, machine.memory_gib), ("A Fine CPU", 2, 16));
        assert_eq!(machine.isa, ["avx2", "amx_tile"]);
    }

    #[test]
    fn the_fingerprint_does_not_change_with_memory_but_with_cores() {
        let of = |memory, cores| Machine::describe(CPUINFO, memory, cores).fingerprint;
        assert_eq!(of("MemTotal: 1 kB", 2), of("MemTotal: 9999999 kB", 2));
        assert_ne!(of("", 2), of("", 4));
    }

    #[test]
    fn a_machine_that_tells_nothing_still_has_a_description() {
        let machine = Machine::describe("", "", 1);
        assert_eq!((machine.cpu.as_str(), machine.memory_gib), ("unknown", 0));
    }
}
