//! When things happen. Asynchronous work completes and warps take turns as a schedule says; a correct kernel gives the
//! same result under all of them.

use std::fmt;

use fastrand::Rng;

use crate::lanes::lanes;

/// How warps take turns and when asynchronous work completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// Asynchronous work completes as soon as it is issued; warps run in turn, each until it must wait.
    Earliest,
    /// Asynchronous work completes only when nobody can go on without it, the last issued first; the last warps run
    /// first.
    Latest,
    /// Everything as drawn from this seed. The seed also decides how fast copies, multiplications and warps are
    /// relative to each other, so that different seeds explore different kinds of trouble.
    Random(u64),
}

impl Schedule {
    /// The two extremes and `seeds` random ones.
    pub fn several(seeds: u64) -> Vec<Schedule> {
        [Schedule::Earliest, Schedule::Latest].into_iter().chain((1..=seeds).map(Schedule::Random)).collect()
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Earliest => f.write_str("earliest"),
            Schedule::Latest => f.write_str("latest"),
            Schedule::Random(seed) => write!(f, "random (seed {seed})"),
        }
    }
}

/// A decision of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Let the n-th ready warp run.
    Warp(usize),
    /// Complete the n-th piece of asynchronous work.
    Complete(usize),
}

/// Draws the decisions of a schedule.
#[derive(Clone, Debug)]
pub(crate) struct Chooser {
    schedule: Schedule,
    rng: Rng,
    seed: u64,
    /// Chance in 256 that asynchronous work is completed rather than a warp run.
    haste: u8,
    /// Chance in 256 that a warp gives up its turn after an instruction that others can see.
    restlessness: u8,
    /// A warp, modulo the number of ready ones, that runs only when drawn twice.
    laggard: usize,
}

impl Chooser {
    pub(crate) fn new(schedule: Schedule) -> Self {
        let seed = if let Schedule::Random(seed) = schedule { seed } else { 0 };
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995);
        let haste = [8, 64, 128, 240][rng.usize(..4)];
        let restlessness = [16, 96, 224][rng.usize(..3)];
        let laggard = rng.usize(..64);
        Chooser { schedule, rng, seed, haste, restlessness, laggard }
    }

    /// Picks among `ready` warps and `pending` pieces of asynchronous work, at least one of them there. `stalled`
    /// counts the turns since anything changed: the extremes then look further, lest they stay with a warp that polls.
    pub(crate) fn choose(&mut self, ready: usize, pending: usize, stalled: usize) -> Choice {
        match self.schedule {
            Schedule::Earliest if pending > 0 => Choice::Complete(0),
            Schedule::Earliest => Choice::Warp(stalled % ready),
            Schedule::Latest if ready > 0 && (pending == 0 || stalled < 2) => {
                Choice::Warp((ready - 1 + stalled) % ready)
            }
            Schedule::Latest => Choice::Complete(pending - 1),
            Schedule::Random(_) => {
                if ready == 0 || pending > 0 && self.rng.u8(..) < self.haste {
                    return Choice::Complete(self.rng.usize(..pending));
                }
                let mut warp = self.rng.usize(..ready);
                if warp == self.laggard % ready {
                    warp = self.rng.usize(..ready);
                }
                Choice::Warp(warp)
            }
        }
    }

    /// Which of `running` clusters goes on.
    pub(crate) fn cluster(&mut self, running: usize) -> usize {
        match self.schedule {
            Schedule::Earliest => 0,
            Schedule::Latest => running - 1,
            Schedule::Random(_) => self.rng.usize(..running),
        }
    }

    /// The order in which so many clusters start: hardware promises none.
    pub(crate) fn starts(&mut self, clusters: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..clusters).collect();
        match self.schedule {
            Schedule::Earliest => {}
            Schedule::Latest => order.reverse(),
            Schedule::Random(_) => self.rng.shuffle(&mut order),
        }
        order
    }

    /// How many clusters, of those that there is room for, run at a time where they do each other's work.
    pub(crate) fn room(&mut self, most: usize) -> usize {
        match self.schedule {
            Schedule::Earliest => most,
            Schedule::Latest => 1,
            Schedule::Random(_) => self.rng.usize(1..=most.min(3)),
        }
    }

    /// How many blocks, of those that a multiprocessor can hold, it holds.
    pub(crate) fn residents(&self, most: usize) -> usize {
        match self.schedule {
            Schedule::Earliest => most,
            Schedule::Latest => 1,
            Schedule::Random(_) => Rng::with_seed(self.seed ^ 0x51).usize(1..=most.min(3)),
        }
    }

    /// Whether who allocates tensor memory with the other block of a pair, or gives it back, waits for that one: it may
    /// or may not.
    pub(crate) fn meets(&self) -> bool {
        match self.schedule {
            Schedule::Earliest => false,
            Schedule::Latest => true,
            Schedule::Random(_) => Rng::with_seed(self.seed ^ 0x52).bool(),
        }
    }

    /// Whether a cluster that asks for another's work is refused though there is some.
    pub(crate) fn refuses(&mut self) -> bool {
        matches!(self.schedule, Schedule::Random(_)) && self.rng.u8(..) < 32
    }

    /// How many steps before the newest the value is that a load sees, of so many that it may see.
    pub(crate) fn staleness(&mut self, visible: usize) -> usize {
        match self.schedule {
            _ if visible < 2 => 0,
            Schedule::Earliest => 0,
            Schedule::Latest => visible - 1,
            Schedule::Random(_) => self.rng.usize(..visible),
        }
    }

    /// The lane that the lanes of a mask elect: any of them, but the same one whenever the same lanes ask.
    pub(crate) fn elected(&self, mask: u32) -> usize {
        match self.schedule {
            Schedule::Earliest => mask.trailing_zeros() as usize,
            Schedule::Latest => 31 - mask.leading_zeros() as usize,
            Schedule::Random(_) => {
                let mut rng = Rng::with_seed(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(mask));
                lanes(mask).nth(rng.usize(..mask.count_ones() as usize)).unwrap_or(0)
            }
        }
    }

    /// Which of so many places an allocation takes, the same whenever as many are free: the blocks of a pair must
    /// agree.
    pub(crate) fn place(&self, places: usize) -> usize {
        match self.schedule {
            Schedule::Earliest => 0,
            Schedule::Latest => places - 1,
            Schedule::Random(_) => Rng::with_seed(self.seed).usize(..places),
        }
    }

    /// Whether a warp gives up its turn, having just done something that others can see.
    pub(crate) fn yields(&mut self, issued: bool) -> bool {
        match self.schedule {
            Schedule::Earliest => issued,
            Schedule::Latest => false,
            Schedule::Random(_) => self.rng.u8(..) < self.restlessness,
        }
    }
}
