//! Copies of weights that are taken in turn, so that none is in a cache when its turn comes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hammerhead::{Engine, Gate, Layer, Precision, Weights};
use testkit::cases::{Case, Inputs};

use crate::Result;
use crate::selection::Chosen;
use crate::shapes::weight_bytes;

/// Bytes of weights that pass before a copy comes round again, beyond any cache.
pub const ROTATION: f64 = 1.2e9;
/// Copies of one layer, at most.
const COPIES: usize = 128;

/// What cases must have in common to use the same weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    columns: Vec<(usize, usize)>,
    /// The gate.
    pub gate: Gate,
    /// What runs round operands to.
    pub precision: Precision,
    inputs: Inputs,
}

impl Kind {
    /// What a case's weights are like.
    pub fn of(case: &Case) -> Self {
        let columns = case.groups.iter().map(|s| (s.n, s.k)).collect();
        Self { columns, gate: case.gate, precision: case.precision, inputs: case.inputs }
    }
}

/// A case and how many copies of its weights there is room for.
#[derive(Debug)]
pub struct Roomed<'c> {
    pub chosen: &'c Chosen,
    pub copies: usize,
}

/// Cuts the list of cases where the copies of their weights would no longer fit in memory together.
pub fn batches(cases: &[Chosen], room: f64) -> Result<Vec<Vec<Roomed<'_>>>> {
    let mut batches: Vec<Vec<Roomed<'_>>> = vec![Vec::new()];
    let mut taken = 0.0;
    for chosen in cases {
        let case = &chosen.case;
        let layer = weight_bytes(&case.problem()?, |_| true);
        let copies = ((ROTATION / layer).ceil() as usize).min(COPIES).min((room / layer) as usize).max(1);
        // The weights they are made from and those being checked are there beside the copies.
        let bytes = (copies + 2) as f64 * layer;
        let shared = |batch: &Vec<Roomed<'_>>| batch.iter().any(|p| Kind::of(&p.chosen.case) == Kind::of(case));
        if batches.last().is_some_and(|batch| !batch.is_empty() && !shared(batch)) && taken + bytes > room {
            batches.push(Vec::new());
            taken = 0.0;
        }
        if let Some(batch) = batches.last_mut() {
            taken += if shared(batch) { 0.0 } else { bytes };
            batch.push(Roomed { chosen, copies });
        }
    }
    Ok(batches)
}

/// Copies of a layer that are taken in turn.
#[derive(Debug)]
pub struct Rotation {
    pub kind: Kind,
    /// What the copies are of, until all cases are checked.
    pub weights: Vec<Weights<'static>>,
    pub layers: Vec<Layer>,
    next: usize,
}

impl Rotation {
    /// Packs so many copies, on all threads.
    pub fn load(kind: Kind, weights: Vec<Weights<'static>>, copies: usize, engine: &Engine) -> Result<Self> {
        let (begun, layers) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        engine.team().run(|| {
            while begun.fetch_add(1, Ordering::Relaxed) < copies {
                let layer = engine.load(&weights, kind.gate).map(|layer| layer.with_precision(kind.precision));
                if let Ok(mut layers) = layers.lock() {
                    layers.push(layer);
                }
            }
        });
        let layers: Vec<Layer> = layers.into_inner().unwrap_or_default().into_iter().collect::<Result<_, _>>()?;
        Ok(Self { kind, weights, layers, next: 0 })
    }

    /// The copy that was used the longest ago.
    pub fn turn(&mut self) -> &Layer {
        self.next = (self.next + 1) % self.layers.len();
        &self.layers[self.next]
    }
}

#[cfg(test)]
mod tests {
    use testkit::cases::{self, Suite};

    use super::*;
    use crate::selection::Origin;

    fn chosen(suites: &[Suite]) -> Vec<Chosen> {
        let cases = suites.iter().flat_map(|&suite| cases::suite(suite));
        let origin = |case: &Case| Origin { suite: case.suite.to_string(), why: case.why };
        cases.map(|case| Chosen { origin: origin(&case), case }).collect()
    }

    #[test]
    fn cases_with_weights_of_one_kind_stay_together_and_share_their_room() {
        let decode = chosen(&[Suite::Decode]);
        let batches = batches(&decode, 1.5e9).unwrap();
        assert_eq!(batches.len(), 1);
        assert!(batches[0].iter().all(|planned| planned.copies as f64 * 33e6 > ROTATION));
    }

    #[test]
    fn cases_that_do_not_fit_together_are_measured_one_after_another() {
        let cases = chosen(&[Suite::Dual, Suite::Decode]);
        let batches = batches(&cases, 2.5e9).unwrap();
        assert!(batches.len() > 1);
        assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), cases.len());
    }

    #[test]
    fn where_memory_is_short_there_are_fewer_copies_but_always_one() {
        let decode = chosen(&[Suite::Decode]);
        assert_eq!(batches(&decode, 100e6).unwrap()[0][0].copies, 3);
        assert_eq!(batches(&decode, 0.0).unwrap()[0][0].copies, 1);
    }
}
