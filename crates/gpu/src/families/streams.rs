//! How long a launch should take, from first principles: the same few equations for every architecture whose kernels
//! copy, multiply and finish side by side.
//!
//! A launch takes as long as its slowest stream: tensor cores, at the cycles of their instructions, tiles dealt to
//! multiprocessors the longest first; L2, at what all blocks read of it; memory, at what is read of that once. Before
//! the first multiplication comes the launch and the way through an empty pipeline, behind the last one a tile's way to
//! C. Nothing in here is fitted to times of these kernels but three constants, and those were seen on an H200: what a
//! launch costs, an empty pipeline, and a tile's way to C. How far it is off where that is known is said in
//! docs/blackwell.md, and a test holds it to that.

use std::collections::BTreeMap;

use crate::facts::Facts;
use crate::family::Phase;

/// Seconds that a launch takes, and one more that begins while the one before it ends.
const LAUNCH: f64 = 2.5e-6;
const FOLLOWING_LAUNCH: f64 = 1.0e-6;
/// Seconds until the first bytes of an empty pipeline are there.
const FILL: f64 = 1.2e-6;
/// Cycles of a tile's way to C: before its first and behind its last element.
pub(super) const FINISH: f64 = 700.0;

/// What a device's caches and memory ask for, as published.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    /// Bytes per cycle that all multiprocessors together read from L2.
    pub cache_bytes_per_cycle: f64,
    /// Bytes that a multiprocessor must have asked for so that memory is busy.
    pub in_flight: f64,
}

/// A problem's products on one device.
#[derive(Clone, Debug)]
pub(super) struct Streams<'a> {
    pub facts: &'a Facts,
    pub rates: Rates,
    /// Cycles of the multiplications of a tile's blocks, and how many such blocks there are.
    pub blocks: Vec<(f64, usize)>,
    /// What those cycles are bound by.
    pub computing: &'static str,
    /// Cycles from a tile's last multiplication to C, and whether the next tile's go on meanwhile.
    pub finish: f64,
    pub finishes_aside: bool,
    /// Cycles of multiplications that are kept until the last bytes have come.
    pub late: f64,
    /// Bytes that all blocks read from L2, and that are read from memory or written there.
    pub cache_bytes: f64,
    pub memory_bytes: f64,
    /// Bytes that a block asks for ahead.
    pub stage_bytes: f64,
    /// How often all of it is done, one after the other.
    pub passes: usize,
    /// Kernels before it that bring tokens into order, and behind it that join sums.
    pub before: usize,
    pub behind: usize,
}

impl Streams<'_> {
    /// What follows what, how long each takes, and what bounds it.
    pub fn phases(&self) -> Vec<Phase> {
        let finish = self.finish / self.facts.clock;
        let [compute, cache, memory] = self.streams();
        let (slowest, bound_by) = [(compute, self.computing), (cache, "the L2 cache"), (memory, "device memory")]
            .into_iter()
            .fold((0.0, ""), |most, this| if this.0 > most.0 { this } else { most });
        let phase = |what, seconds, bound_by| Phase { what, seconds, bound_by };
        let mut phases = vec![phase("launch", LAUNCH, "the queue of launches")];
        if self.before > 0 {
            phases.push(phase("tokens into order", self.before as f64 * FOLLOWING_LAUNCH, "the queue of launches"));
        }
        phases.push(phase("first bytes", FILL, "latency of memory"));
        phases.push(phase("products", slowest, bound_by));
        phases.push(phase("last tile to C", finish, "instructions of the finishing warps"));
        let following = self.passes - 1 + self.behind;
        if following > 0 {
            phases.push(phase("further launches", following as f64 * FOLLOWING_LAUNCH, "the queue of launches"));
        }
        phases
    }

    /// Seconds of tensor cores, L2 and memory, each as if it were alone.
    pub fn streams(&self) -> [f64; 3] {
        let multiprocessors = f64::from(self.facts.multiprocessors);
        let each = |cycles: f64| if self.finishes_aside { cycles.max(self.finish) } else { cycles + self.finish };
        let mut blocks: Vec<(f64, usize)> = self.blocks.iter().map(|&(cycles, count)| (each(cycles), count)).collect();
        blocks.sort_by(|a, b| b.0.total_cmp(&a.0));
        // The last tile's way to C is a phase of its own.
        let busiest = deal(&blocks, self.facts.multiprocessors as usize);
        let busiest = if self.finishes_aside { busiest } else { busiest - self.finish };
        let count: usize = blocks.iter().map(|(_, count)| count).sum();
        let used = (count as f64 / multiprocessors).clamp(0.05, 1.0);
        let starved = (self.rates.in_flight / self.stage_bytes).max(1.0).sqrt();
        let (passes, late) = (self.passes as f64, self.late / self.facts.clock);
        [
            passes * busiest.max(0.0) / self.facts.clock,
            passes * self.cache_bytes / (self.rates.cache_bytes_per_cycle * self.facts.clock) + late,
            self.memory_bytes / (self.facts.bandwidth * used.sqrt()) * starved + late,
        ]
    }
}

/// When the last of some workers is done, if each next tile, in the order given, goes to one that is free first.
/// Workers that are free at the same time are dealt to together.
pub(super) fn deal(tiles: &[(f64, usize)], workers: usize) -> f64 {
    let mut free = BTreeMap::from([(0u64, workers)]);
    for &(cycles, count) in tiles {
        // Where nobody is free twice before all have been free once, whole rounds only shift everybody.
        let spread =
            free.last_key_value().map_or(0, |last| *last.0) - free.first_key_value().map_or(0, |first| *first.0);
        let rounds = if spread <= cycles as u64 { count / workers } else { 0 };
        let shift = rounds as u64 * cycles as u64;
        free = free.into_iter().map(|(start, idle)| (start + shift, idle)).collect();
        let mut left = count - rounds * workers;
        while left > 0
            && let Some((start, idle)) = free.pop_first()
        {
            let dealt = left.min(idle);
            if idle > dealt {
                free.insert(start, idle - dealt);
            }
            *free.entry(start + cycles as u64).or_default() += dealt;
            left -= dealt;
        }
    }
    free.last_key_value().map_or(0.0, |(&end, _)| end as f64)
}
