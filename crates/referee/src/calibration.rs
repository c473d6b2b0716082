//! The referee's own record: how often it is right, measured over many synthetic sittings whose truth is known.

use serde::Serialize;

use crate::Result;
use crate::duel::sit;
use crate::record::{Outcome, Terms};
use crate::seeds::derive;
use crate::settings::RefereeSettings;
use crate::synthetic::{Neighbours, SyntheticCourse, World};

/// How often each thing happened, as fractions of all sittings but where it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Characteristics {
    /// Sittings.
    pub sittings: usize,
    /// Said to be faster.
    pub faster: f64,
    /// Seemed faster at first, whatever the second measurement said.
    pub seemed_faster: f64,
    /// Said to be slower.
    pub slower: f64,
    /// Said to be mixed.
    pub mixed: f64,
    /// Not settled.
    pub inconclusive: f64,
    /// Void.
    pub void: f64,
    /// Of the first measurements that were taken, those whose interval of the geomean held the truth.
    pub coverage: f64,
    /// The same of the shapes' intervals.
    pub shape_coverage: f64,
    /// The median half-width of the geomean's interval, as a logarithm.
    pub half_width: f64,
    /// Of winners, the mean of published estimate over truth, as a logarithm: what stopping early flatters.
    pub flattery: f64,
    /// Quartets of every shape that a first measurement took on average.
    pub quartets: f64,
}

/// Holds so many sittings in a world.
pub fn characteristics(
    world: &World,
    settings: &RefereeSettings,
    terms: &Terms,
    sittings: usize,
    seed: u64,
) -> Result<Characteristics> {
    let mut c = Characteristics { sittings, ..Characteristics::default() };
    let truth = world.truth.iter().sum::<f64>() / world.truth.len() as f64;
    let (mut measured, mut shapes, mut half_widths, mut winners) = (0.0, 0.0, Vec::new(), 0.0);
    for index in 0..sittings as u64 {
        let mut course = SyntheticCourse::new(world.clone(), derive(seed, &[index, 0]));
        let sitting = sit(&mut course, settings, terms, derive(seed, &[index, 1]))?;
        *match sitting.outcome {
            Outcome::Faster => &mut c.faster,
            Outcome::Slower => &mut c.slower,
            Outcome::Mixed { .. } => &mut c.mixed,
            Outcome::Inconclusive { .. } | Outcome::Stopped { .. } => &mut c.inconclusive,
            Outcome::Void { .. } | Outcome::Faulted { .. } => &mut c.void,
        } += 1.0;
        let Some(first) = &sitting.first else { continue };
        let found = first.at(settings.timing.decides);
        let holds = |low: f64, high: f64, truth: f64| f64::from(low <= (-truth).exp() && (-truth).exp() <= high);
        measured += 1.0;
        c.coverage += holds(found.geomean.low, found.geomean.high, truth);
        for (shape, truth) in found.shapes.iter().zip(&world.truth) {
            shapes += 1.0;
            c.shape_coverage += holds(shape.speedup.low, shape.speedup.high, *truth);
        }
        half_widths.push(0.5 * (found.geomean.high / found.geomean.low).ln());
        c.quartets += first.quartets as f64;
        c.seemed_faster += f64::from(sitting.second.is_some());
        if let (Outcome::Faster, Some(second)) = (&sitting.outcome, &sitting.second) {
            winners += 1.0;
            c.flattery += second.at(settings.timing.decides).geomean.estimate.ln() + truth;
        }
    }
    let all = sittings as f64;
    for count in [&mut c.faster, &mut c.slower, &mut c.mixed, &mut c.inconclusive, &mut c.void, &mut c.seemed_faster] {
        *count /= all;
    }
    let of = |sum: f64, count: f64| if count > 0.0 { sum / count } else { 0.0 };
    (c.coverage, c.shape_coverage) = (of(c.coverage, measured), of(c.shape_coverage, shapes));
    (c.quartets, c.flattery) = (of(c.quartets, measured), of(c.flattery, winners));
    c.half_width = crate::stats::median(&half_widths);
    Ok(c)
}

/// Neighbours who stay for some hundred samples, and delay most of those by a turn of theirs, which is longer than a
/// sample; whoever ran before has left its data in the caches.
fn beside(world: &mut World, told: bool) {
    (world.process_spread, world.sample_spread) = (0.02, 0.04);
    world.neighbours = Some(Neighbours { chance: 0.6, turn: 4e-3, stay: 200.0, told });
}

/// The worlds that the referee is calibrated in: a machine's name, the truth in words, and the world. Four shapes each.
pub fn worlds() -> Vec<(&'static str, &'static str, World)> {
    type Change = fn(&mut World);
    let machine = |name, change: Change| {
        let mut world = World::quiet(4, 0.0);
        change(&mut world);
        (name, world)
    };
    let machines = [
        machine("quiet", |_| {}),
        machine("processes differ", |w| w.process_spread = 0.01),
        machine("one process in twenty is 30 % slower", |w| w.outliers = Some((0.05, 0.3f64.ln_1p()))),
        machine("noisy", |w| w.sample_spread = 0.04),
        machine("spikes", |w| w.spikes = 0.1),
        machine("drift", |w| w.drift = 0.002),
        machine("two speeds", |w| w.phases = Some((0.25, 40.0))),
        machine("neighbours come and go", |w| beside(w, true)),
        machine("the same, and the system does not tell", |w| beside(w, false)),
        machine("samples differ by 40 %, processes by 10 %", |w| (w.process_spread, w.sample_spread) = (0.1, 0.4)),
        machine("processes differ by 40 %", |w| w.process_spread = 0.4),
    ];
    let truths: [(&str, Change); 7] = [
        ("equal", |_| {}),
        ("1 % faster", |w| w.truth.fill(-0.01f64.ln_1p())),
        ("3 % faster", |w| w.truth.fill(-0.03f64.ln_1p())),
        ("3 % slower", |w| w.truth.fill(0.03f64.ln_1p())),
        ("1.5 times as fast", |w| w.truth.fill(-1.5f64.ln())),
        ("1.4 times as slow", |w| w.truth.fill(1.4f64.ln())),
        ("10 % faster, one shape 8 % slower", |w| {
            w.truth.fill(-0.10f64.ln_1p());
            w.truth[0] = -(-0.08f64).ln_1p();
        }),
    ];
    let mut worlds = Vec::new();
    for (name, machine) in &machines {
        for (truth, change) in &truths {
            let mut world = machine.clone();
            change(&mut world);
            worlds.push((*name, *truth, world));
        }
    }
    let mut biased = World::quiet(4, 0.0);
    biased.bias = -0.02;
    worlds.push(("a referee that favours the challenger by 2 %", "equal", biased));
    let mut blind = World::quiet(4, 0.0);
    blind.plant = 0.0;
    worlds.push(("a plant that does not work", "equal", blind));
    worlds
}
