//! What this machine can do at most: the two rates by which every timing is judged.
//!
//! Both are measured, never looked up, and in the same run as what they are compared with: shared machines change their
//! speed from minute to minute. A [`Prober`] takes one short sample at a time, so that samples can be interleaved with
//! other timings.

use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use memmap2::MmapMut;

use op::{Error, Problem, Result, Team};

use super::pack::prefetch;

/// Memory that is read in turns, so that no cache holds what comes next.
const BUFFER: usize = 1 << 30;
/// Bytes read in one sample.
const SAMPLE: usize = 64 << 20;
/// What a thread takes from the sample at a time.
const PIECE: usize = 1 << 20;
/// How far ahead memory is asked for, in bytes.
const PREFETCH: usize = 4096;

/// One sample of the machine's two rates, over all threads.
#[derive(Clone, Copy, Debug)]
pub struct Ceilings {
    /// Floating-point operations per second of the fastest unit, its operands in L1.
    pub flops: f64,
    /// Bytes a second read from memory, no cache helping.
    pub bytes: f64,
}

impl Ceilings {
    /// The least time in which a problem could be computed at these rates.
    pub fn floor(&self, problem: &Problem) -> f64 {
        (problem.flops() / self.flops).max(problem.bytes() / self.bytes)
    }
}

/// Takes samples.
#[derive(Debug)]
pub struct Prober {
    memory: MmapMut,
    position: AtomicUsize,
}

impl Prober {
    /// Sets memory aside to read from.
    pub fn new() -> Result<Self> {
        Self::with_memory(BUFFER)
    }

    /// The same with so many bytes, a multiple of what is read in one sample.
    pub(super) fn with_memory(bytes: usize) -> Result<Self> {
        let failed = |source| Error::Memory { bytes, what: "the bandwidth probe", source };
        let mut memory = MmapMut::map_anon(bytes).map_err(failed)?;
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        // Pages that were never written are all the same page of zeros, which a cache would hold.
        memory.chunks_mut(4096).enumerate().for_each(|(page, bytes)| bytes[..8].copy_from_slice(&page.to_le_bytes()));
        Ok(Self { memory, position: AtomicUsize::new(0) })
    }

    /// The name of the unit whose rate is the ceiling of computing.
    pub fn unit(&self) -> &'static str {
        fastest_unit().0
    }

    /// One sample: about 20 ms.
    pub fn sample(&self, team: &Team) -> Ceilings {
        Ceilings { flops: self.flops(team), bytes: self.bytes(team) }
    }

    /// Reads through so much memory, by which whatever the caches held before goes out of them.
    pub fn sweep(&self, bytes: u64, team: &Team) {
        let samples = bytes.min(self.memory.len() as u64).div_ceil(SAMPLE as u64);
        (0..samples).for_each(|_| self.read_sample(team));
    }

    /// Bytes per second read from memory, in one sample.
    pub(super) fn bytes(&self, team: &Team) -> f64 {
        let clock = Instant::now();
        self.read_sample(team);
        SAMPLE as f64 / clock.elapsed().as_secs_f64()
    }

    fn read_sample(&self, team: &Team) {
        let start = self.position.fetch_add(SAMPLE, Ordering::Relaxed) % self.memory.len();
        let taken = AtomicUsize::new(0);
        team.run(|| {
            let mut sum = 0;
            loop {
                let piece = taken.fetch_add(PIECE, Ordering::Relaxed);
                if piece >= SAMPLE {
                    break;
                }
                sum ^= read(&self.memory[start + piece..][..PIECE]);
            }
            black_box(sum);
        });
    }

    fn flops(&self, team: &Team) -> f64 {
        let (_, probe) = fastest_unit();
        let rates = Mutex::new(Vec::new());
        team.run(|| {
            let clock = Instant::now();
            let flops = probe();
            let rate = flops / clock.elapsed().as_secs_f64();
            if let Ok(mut rates) = rates.lock() {
                rates.push(rate);
            }
        });
        rates.into_inner().unwrap_or_default().iter().sum()
    }
}

/// Reads every cache line of some memory.
fn read(memory: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    for (index, line) in memory.chunks_exact(64).enumerate() {
        prefetch(memory.as_ptr().wrapping_add(index * 64 + PREFETCH), 64);
        for (sum, word) in sums.iter_mut().zip(line.chunks_exact(8)) {
            *sum ^= u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
        }
    }
    sums.iter().fold(0, |a, b| a ^ b)
}

/// The fastest arithmetic unit of this machine: its name, and a probe that keeps it busy and returns the operations
/// done.
fn fastest_unit() -> (&'static str, fn() -> f64) {
    #[cfg(target_arch = "x86_64")]
    {
        use super::backend::InstructionSet;
        use super::{amx, avx2, avx512};
        if amx::Amx::available().is_ok() {
            return ("AMX bf16, tiles from L1", amx::flops);
        } else if avx512::Avx512::available().is_ok() {
            return ("AVX-512 f32 multiply-add", avx512::flops);
        } else if avx2::Avx2::available().is_ok() {
            return ("AVX2 f32 multiply-add", avx2::flops);
        }
    }
    #[cfg(target_arch = "aarch64")]
    return ("NEON f32 multiply-add", super::neon::flops);
    #[cfg(not(target_arch = "aarch64"))]
    ("f32 multiply and add", portable_flops)
}

/// The portable probe: multiply and add, in whatever vectors the target's baseline has. Returns the operations done.
#[cfg(not(target_arch = "aarch64"))]
fn portable_flops() -> f64 {
    const LANES: usize = 64;
    const ROUNDS: usize = 1 << 18;
    let (mut sums, factor) = ([1.0f32; LANES], black_box(0.999_999f32));
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = *sum * factor + factor;
        }
    }
    black_box(sums);
    (2 * LANES * ROUNDS) as f64
}
