//! The least time that this machine could take: its rates, sampled between the timings that are judged by them.

use hammerhead::cpu::ceilings::{Ceilings, Prober};
use hammerhead::{Engine, Plan, Team, cpu};
use serde::Serialize;

use crate::timing::Spread;
use crate::{Result, console, memory, table};

/// Memory that must be free for the probe's own gibibyte to do no harm.
const PROBE_ROOM: f64 = 2.0 * (1u64 << 30) as f64;

/// Samples of the machine's rates, taken between timings: shared machines change their speed from minute to minute.
#[derive(Debug)]
pub struct Floor {
    prober: Option<Prober>,
    samples: Vec<Ceilings>,
    /// What all threads reach over what one does, sampled one after the other.
    over_one: Vec<Ceilings>,
}

/// The machine's rates over a whole run.
#[derive(Debug, Serialize)]
pub struct Rates {
    /// The unit whose rate is the ceiling of computing.
    pub unit: &'static str,
    /// Floating-point operations per second.
    pub flops_per_second: Rate,
    /// Bytes per second from memory.
    pub bytes_per_second: Rate,
    /// How many samples there were.
    pub samples: usize,
    /// What all threads reach over what one does; absent where that was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_one_thread: Option<OverOne>,
}

/// The rates of all threads over those of one: what computing can gain from threads at best.
#[derive(Debug, Serialize)]
pub struct OverOne {
    /// Of operations.
    pub flops: Spread,
    /// Of bytes from memory.
    pub bytes: Spread,
}

/// A rate: its middle and its best.
#[derive(Debug, Serialize)]
pub struct Rate {
    /// The middle.
    pub median: f64,
    /// The highest.
    pub best: f64,
}

impl Rate {
    fn of(samples: impl Iterator<Item = f64>) -> Self {
        let samples: Vec<f64> = samples.collect();
        let best = samples.iter().copied().fold(0.0, f64::max);
        Self { median: Spread::of(&samples).median, best }
    }
}

impl Floor {
    /// Sets the probe up. There is none, and no floor, where memory is short, and where the processor never computes:
    /// it is the processor's rates that are sampled.
    pub fn new(engine: &Engine) -> Result<Self> {
        let processor = engine.backends().iter().any(|backend| backend.layout() == cpu::LAYOUT);
        let roomy = memory::free().is_none_or(|free| free > PROBE_ROOM);
        if processor && !roomy {
            console::remark("note: too little memory is free to measure this machine's floor");
        }
        Ok(Self {
            prober: (processor && roomy).then(Prober::new).transpose()?,
            samples: Vec::new(),
            over_one: Vec::new(),
        })
    }

    /// Takes one sample.
    pub fn sample(&mut self, threads: &Team) {
        self.samples.extend(self.prober.as_ref().map(|prober| prober.sample(threads)));
    }

    /// Takes one sample of all threads and one of a single thread.
    pub fn sample_both(&mut self, threads: &Team, single: &Team) {
        if let Some(prober) = &self.prober {
            let (all, one) = (prober.sample(threads), prober.sample(single));
            self.samples.push(all);
            self.over_one.push(Ceilings { flops: all.flops / one.flops, bytes: all.bytes / one.bytes });
        }
    }

    /// The rates so far.
    pub fn rates(&self) -> Option<Rates> {
        let unit = self.prober.as_ref()?.unit();
        let flops_per_second = Rate::of(self.samples.iter().map(|s| s.flops));
        let bytes_per_second = Rate::of(self.samples.iter().map(|s| s.bytes));
        let over_one = |of: fn(&Ceilings) -> f64| Spread::of(&self.over_one.iter().map(of).collect::<Vec<_>>());
        let over_one_thread = (!self.over_one.is_empty())
            .then(|| OverOne { flops: over_one(|ratio| ratio.flops), bytes: over_one(|ratio| ratio.bytes) });
        Some(Rates { unit, flops_per_second, bytes_per_second, samples: self.samples.len(), over_one_thread })
    }
}

impl Rates {
    /// The least time for a problem, from the medians; none where there is nothing to do, or where another than the
    /// processor computes it.
    pub fn seconds(&self, plan: &Plan) -> Option<f64> {
        let Rates { flops_per_second, bytes_per_second, .. } = self;
        let ceilings = Ceilings { flops: flops_per_second.median, bytes: bytes_per_second.median };
        let processor = plan.backend().layout() == cpu::LAYOUT;
        processor.then(|| ceilings.floor(plan.problem())).filter(|floor| *floor > 0.0)
    }

    /// The rates in words.
    pub fn text(&self) -> String {
        let mut text = format!(
            "ceilings of this machine in this run, medians of {} samples: {} GFLOP/s ({}), {} GB/s from memory",
            self.samples,
            table::three_digits(self.flops_per_second.median / 1e9),
            self.unit,
            table::three_digits(self.bytes_per_second.median / 1e9),
        );
        if let Some(OverOne { flops, bytes }) = &self.over_one_thread {
            text += &format!("; {:.2} and {:.2} times those of one thread", flops.median, bytes.median);
        }
        text
    }
}
