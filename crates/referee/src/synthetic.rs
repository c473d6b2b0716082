//! A course with a known truth: seconds drawn from a model of a machine instead of a clock, so that the referee can be
//! judged by thousands of sittings in seconds.
//!
//! A sample is the product of a base time, the pairing's true ratio, what the process was dealt (half of it common to
//! all shapes, half the shape's own), noise, now and then a spike, a drift, and the phase that the machine is in.

use fastrand::Rng;

use crate::contestant::{Fault, Stage};
use crate::duel::{Course, Floor, Halt};
use crate::record::{CourseReport, Pairing, Side};
use crate::samples::Take;
use crate::settings::Temperature;

/// A machine, and the truth about two contestants on it. Spreads are standard deviations of logarithms.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    /// The true log-ratio of challenger over an undisturbed champion of every shape. Below zero is faster.
    pub truth: Vec<f64>,
    /// What a contestant's process is dealt.
    pub process_spread: f64,
    /// The chance that a process is dealt something far off besides, and how far, as a logarithm.
    pub outliers: Option<(f64, f64)>,
    /// The noise of one sample.
    pub sample_spread: f64,
    /// The chance that a sample is disturbed: it then takes up to many times as long (Pareto with index 1.5).
    pub spikes: f64,
    /// How much slower each sample is than the one before, as a logarithm.
    pub drift: f64,
    /// A machine of two speeds: the log-ratio of them, and how many samples a phase lasts on average.
    pub phases: Option<(f64, f64)>,
    /// A referee that favours one side: the log-ratio it adds to every challenger's sample.
    pub bias: f64,
    /// How much of a planted slowdown shows: 1 is right, and zero a plant that does not work.
    pub plant: f64,
    /// Others on the same processors.
    pub neighbours: Option<Neighbours>,
    /// A challenger that makes its own threads wait whenever a run goes badly.
    pub provokes: bool,
    /// How much longer the champion takes beside this challenger, as a logarithm.
    pub slowing: f64,
    /// What the fence costs as a log-ratio, where the challenger is a stranger. It is in the truth of a duel already.
    pub fence: Option<f64>,
    /// The pairing in which the champion's process ends.
    pub champion_ends: Option<Pairing>,
}

impl World {
    /// A quiet machine on which the challenger has this log-ratio on each of so many shapes.
    pub fn quiet(shapes: usize, truth: f64) -> Self {
        Self {
            truth: vec![truth; shapes],
            process_spread: 0.003,
            outliers: None,
            sample_spread: 0.01,
            spikes: 0.0,
            drift: 0.0,
            phases: None,
            bias: 0.0,
            plant: 1.0,
            neighbours: None,
            provokes: false,
            slowing: 0.0,
            fence: None,
            champion_ends: None,
        }
    }
}

/// Others who use the processors, and come and go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbours {
    /// The chance that they delay a sample while they are there.
    pub chance: f64,
    /// Seconds of a turn of theirs: they delay a sample by one on average.
    pub turn: f64,
    /// Samples for which they stay, and stay away, on average.
    pub stay: f64,
    /// Whether the system tells of it.
    pub told: bool,
}

/// The course.
#[derive(Debug)]
pub struct SyntheticCourse {
    world: World,
    rng: Rng,
    pairing: Pairing,
    shape: usize,
    common: [f64; 2],
    own: [Vec<f64>; 2],
    drifted: f64,
    slow: bool,
    beside: bool,
    passed: f64,
    planted: f64,
}

impl SyntheticCourse {
    /// A course over a world, with the world's luck drawn from a seed.
    pub fn new(world: World, seed: u64) -> Self {
        let own = [vec![0.0; world.truth.len()], vec![0.0; world.truth.len()]];
        let rng = Rng::with_seed(seed);
        Self {
            world,
            rng,
            pairing: Pairing::Control,
            shape: 0,
            common: [0.0; 2],
            own,
            drifted: 0.0,
            slow: false,
            beside: false,
            passed: 0.0,
            planted: 0.0,
        }
    }

    /// Twelve uniform numbers less six are as good as normal here; the tails are the spikes' business.
    fn normal(&mut self) -> f64 {
        let mut bits = [0u64; 3];
        bits.iter_mut().for_each(|b| *b = self.rng.u64(..));
        let sum: u64 = bits.iter().flat_map(|b| [b & 0xFFFF, b >> 16 & 0xFFFF, b >> 32 & 0xFFFF, b >> 48]).sum();
        sum as f64 / 65536.0 - 6.0
    }

    /// How long neighbours delay the next sample.
    fn delay(&mut self, neighbours: Neighbours) -> f64 {
        self.beside ^= self.rng.f64() < 1.0 / neighbours.stay;
        let delayed = self.beside && self.rng.f64() < neighbours.chance;
        if delayed { -neighbours.turn * self.rng.f64().max(1e-9).ln() } else { 0.0 }
    }

    fn truth(&self) -> f64 {
        self.world.bias
            + match self.pairing {
                Pairing::Control => 0.0,
                Pairing::Fence => self.world.fence.unwrap_or(0.0),
                Pairing::Plant => (self.world.plant * self.planted).ln_1p(),
                Pairing::Duel => self.world.truth[self.shape],
            }
    }
}

impl Course for SyntheticCourse {
    fn names(&self) -> [String; 2] {
        ["the champion".to_owned(), "the challenger".to_owned()]
    }

    fn shapes(&self) -> Vec<String> {
        (0..self.world.truth.len()).map(|shape| format!("shape {shape}")).collect()
    }

    fn enter(&mut self, pairing: Pairing, _seed: u64) -> Result<(), Halt> {
        self.pairing = pairing;
        let share = self.world.process_spread * 0.5f64.sqrt();
        for side in 0..2 {
            self.common[side] = share * self.normal();
            if let Some((chance, size)) = self.world.outliers {
                self.common[side] += if self.rng.f64() < chance { size } else { 0.0 };
            }
            for shape in 0..self.own[side].len() {
                self.own[side][shape] = share * self.normal();
            }
        }
        Ok(())
    }

    fn prepare(&mut self, shape: usize) -> Result<(), Halt> {
        self.shape = shape;
        Ok(())
    }

    fn sample(&mut self, side: Side, _temperature: Temperature) -> Result<Take, Halt> {
        if self.world.champion_ends == Some(self.pairing) {
            let fault = Fault::Crash { stage: Stage::Run, status: "signal 6".to_owned(), words: String::new() };
            return Err(Halt::Fault(Side::Champion, fault));
        }
        let (index, truth) = match side {
            Side::Champion if self.pairing == Pairing::Duel => (0, self.world.slowing),
            Side::Champion => (0, 0.0),
            Side::Challenger => (1, self.truth()),
        };
        self.drifted += self.world.drift;
        let noise = self.world.sample_spread * self.normal();
        let mut log = truth + self.common[index] + self.own[index][self.shape] + noise + self.drifted;
        if self.world.spikes > 0.0 && self.rng.f64() < self.world.spikes {
            log += self.rng.f64().max(1e-9).powf(-1.0 / 1.5).ln();
        }
        if let Some((ratio, lasts)) = self.world.phases {
            self.slow ^= self.rng.f64() < 1.0 / lasts;
            log += if self.slow { ratio } else { 0.0 };
        }
        let mut take = Take { seconds: 1e-3 * (1.0 + self.shape as f64) * log.exp(), waited: 0.0 };
        if let Some(neighbours) = self.world.neighbours {
            let delay = self.delay(neighbours);
            take.seconds += delay;
            take.waited = if neighbours.told { delay } else { 0.0 };
        }
        if self.world.provokes && side == Side::Challenger && self.pairing == Pairing::Duel && noise > 0.0 {
            take.waited += 0.1 * take.seconds;
        }
        self.passed += take.seconds;
        Ok(take)
    }

    fn leave(&mut self) -> Result<(), Halt> {
        Ok(())
    }

    fn has_strangers(&self) -> bool {
        self.world.fence.is_some()
    }

    fn plant(&mut self, size: f64) {
        self.planted = size;
    }

    fn has_neighbours(&mut self) -> bool {
        self.world.neighbours.is_some()
    }

    fn now(&self) -> f64 {
        self.passed
    }

    fn floors(&self) -> Option<Vec<Floor>> {
        None
    }

    fn report(&self) -> CourseReport {
        CourseReport::default()
    }
}
