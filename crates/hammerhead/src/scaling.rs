//! Tokens times a layer's input scales.
//!
//! A checkpoint that went through AWQ wants every token multiplied with a vector, a factor per column, before it meets
//! the weights. That is done here, before any backend sees the tokens: once per element, in f32, into memory of m·k
//! numbers per group. Products are single precision whatever the tokens were, so all groups of such a layer are
//! computed as single precision; tokens of a group without a scale are widened, which is exact. A layer without any
//! scale has its tokens passed on as they are. A product beyond f32 is infinite, as in any arithmetic of f32, and
//! spoils its row's results.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use format::{Dense, Values};
use op::{Activation, Activations, Error, Problem, Result, Team, Weights};

use crate::memory::filled;

/// Numbers that a thread takes at a time.
const PIECE: usize = 1 << 15;

/// What the tokens of every group are multiplied with first.
#[derive(Clone, Debug)]
pub(crate) struct InputScales {
    /// Empty if no group has any.
    groups: Vec<Option<Arc<[f32]>>>,
    /// The largest magnitude of a factor of the whole layer, or one.
    largest: f32,
}

impl InputScales {
    pub(crate) fn of(weights: &[Weights<'_>]) -> Self {
        Self::from_groups(weights.iter().map(|weights| weights.input_scale().map(Box::from)).collect())
    }

    /// Those of every group, each as long as its weights' k.
    pub(crate) fn from_groups(groups: Vec<Option<Box<[f32]>>>) -> Self {
        let largest = groups.iter().flatten().flatten().fold(1.0, |largest: f32, factor| largest.max(factor.abs()));
        let groups = if groups.iter().any(Option::is_some) { groups } else { Vec::new() };
        Self { groups: groups.into_iter().map(|scale| scale.map(Arc::from)).collect(), largest }
    }

    /// Those of some groups, whose tokens are measured as those of all are.
    pub(crate) fn only(&self, groups: &[usize]) -> Self {
        let of = |&group: &usize| self.groups.get(group).cloned().flatten();
        let groups = if self.exist() { groups.iter().map(of).collect() } else { Vec::new() };
        Self { groups, largest: self.largest }
    }

    /// Whether any group has a scale.
    pub(crate) fn exist(&self) -> bool {
        !self.groups.is_empty()
    }

    pub(crate) fn get(&self, group: usize) -> Option<&[f32]> {
        self.groups.get(group)?.as_deref()
    }

    /// The largest magnitude of a factor of the whole layer, or one.
    pub(crate) fn largest(&self) -> f32 {
        self.largest
    }

    /// The problem that is left once tokens are multiplied.
    pub(crate) fn problem(&self, problem: Problem) -> Result<Problem> {
        match problem.activation() {
            _ if !self.exist() => Ok(problem),
            Activation::NvFp4 => {
                let group = self.groups.iter().position(Option::is_some).unwrap_or(0);
                Err(Error::QuantizedTokens { group })
            }
            _ => Problem::new(problem.groups().to_vec(), problem.gate(), Activation::F32, problem.output())?
                .like(&problem),
        }
    }

    /// These tokens, multiplied where their group has a scale. They must be dense if any has.
    pub(crate) fn apply<'t, 'a>(
        &self,
        tokens: &'t [Activations<'a>],
        team: &Team,
    ) -> Result<Cow<'t, [Activations<'a>]>> {
        if !self.exist() {
            return Ok(Cow::Borrowed(tokens));
        }
        let multiplied = tokens.iter().enumerate().map(|(group, tokens)| match (tokens, self.get(group)) {
            (Activations::NvFp4(_), _) => Err(Error::QuantizedTokens { group }),
            (Activations::Dense(dense), None) if matches!(dense.values(), Values::F32(_)) => Ok(tokens.clone()),
            (Activations::Dense(dense), scale) => multiplied(dense, scale, team).map(Into::into),
        });
        multiplied.collect::<Result<Vec<_>>>().map(Cow::Owned)
    }
}

/// A group's tokens in single precision, multiplied with a scale if there is one.
fn multiplied(tokens: &Dense<'_>, scale: Option<&[f32]>, team: &Team) -> Result<Dense<'static>> {
    let (rows, k) = (tokens.rows(), tokens.k());
    let mut values = filled(rows * k, 0f32, "tokens times their input scale")?;
    let rows_of_piece = (PIECE / k.max(1)).max(1);
    let pieces = Mutex::new(values.chunks_mut((rows_of_piece * k).max(1)).enumerate());
    let next = || pieces.lock().ok().and_then(|mut pieces| pieces.next());
    let work = || {
        while let Some((index, piece)) = next() {
            for (row, out) in piece.chunks_mut(k).enumerate() {
                tokens.row(index * rows_of_piece + row, out);
                if let Some(scale) = scale {
                    out.iter_mut().zip(scale).for_each(|(x, factor)| *x *= factor);
                }
            }
        }
    };
    team.run(|| cpu::in_default_mode(work));
    Ok(Dense::new(rows, k, values, tokens.global())?)
}

#[cfg(test)]
mod tests {
    use format::Matrix;
    use half::{bf16, f16};
    use op::{Gate, Output};

    use super::*;
    use crate::{Engine, Layer, Options};

    const K: usize = 32;

    fn engine() -> Engine {
        Engine::new(Options { backend: Some("scalar".into()), threads: Some(2), ..Options::default() }).unwrap()
    }

    fn scale() -> Vec<f32> {
        (0..K).map(|k| 0.1 + k as f32 / 7.0).collect()
    }

    fn weights() -> Weights<'static> {
        let codes = (0..3 * K / 2).map(|i| (i * 37) as u8).collect::<Vec<_>>();
        Weights::plain(Matrix::new(3, K, codes, vec![0x38; 3 * K / 16], 1.0).unwrap())
    }

    /// A group with a scale and one without.
    fn layer(engine: &Engine) -> Layer {
        let weights = [weights().with_input_scale(scale()).unwrap(), weights()];
        engine.load(&weights, Gate::None).unwrap()
    }

    fn tokens(rows: usize, values: impl Into<Values<'static>>) -> Activations<'static> {
        Dense::new(rows, K, values, 1.0).unwrap().into()
    }

    fn bits(results: &[Dense<'_>]) -> Vec<u32> {
        let rows = results.iter().flat_map(|c| (0..c.rows()).map(move |row| (c, row)));
        let row = |(c, row): (&Dense<'_>, usize)| {
            let mut values = vec![0f32; c.k()];
            c.row(row, &mut values);
            values
        };
        rows.flat_map(row).map(f32::to_bits).collect()
    }

    #[test]
    fn tokens_of_every_dense_type_are_multiplied_once_in_single_precision() {
        let engine = engine();
        let (scaled, plain) = (layer(&engine), engine.load(&[weights(), weights()], Gate::None).unwrap());
        let numbers: Vec<f32> = (0..2 * K).map(|i| (i as f32 * 0.37).sin()).collect();
        let halves: Vec<f16> = numbers.iter().map(|&x| f16::from_f32(x)).collect();
        let brains: Vec<bf16> = numbers.iter().map(|&x| bf16::from_f32(x)).collect();
        let widened = [
            halves.iter().map(|x| x.to_f32()).collect::<Vec<_>>(),
            brains.iter().map(|x| x.to_f32()).collect(),
            numbers.clone(),
        ];
        let all: [Values<'static>; 3] = [halves.into(), brains.into(), numbers.into()];
        for (values, wide) in all.into_iter().zip(widened) {
            let products: Vec<f32> = wide.iter().enumerate().map(|(i, x)| x * scale()[i % K]).collect();
            let found = engine.run(&scaled, &[tokens(2, values.clone()), tokens(2, values)], Output::F32).unwrap();
            let expected = engine.run(&plain, &[tokens(2, products), tokens(2, wide)], Output::F32).unwrap();
            assert_eq!(bits(&found), bits(&expected));
        }
    }

    #[test]
    fn a_plan_is_for_single_precision_and_can_be_run() {
        let engine = engine();
        let (layer, given) = (layer(&engine), [tokens(1, vec![f16::ONE; K]), tokens(0, Vec::<f16>::new())]);
        let plan = engine.plan(&layer, &given, Output::F32).unwrap();
        assert_eq!(plan.problem().activation(), Activation::F32);
        let mut results: Vec<Values<'static>> = vec![vec![0f32; 3].into(), Vec::<f32>::new().into()];
        engine.run_planned(&plan, &layer, &given, &mut crate::Target::all(&mut results)).unwrap();
        let expected = engine.run(&layer, &given, Output::F32).unwrap();
        let Values::F32(found) = &results[0] else { panic!("asked for f32") };
        assert_eq!(found.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), bits(&expected));
    }

    #[test]
    fn a_layer_says_what_its_tokens_are_multiplied_with() {
        let layer = layer(&engine());
        assert_eq!((layer.input_scale(0), layer.input_scale(1)), (Some(&scale()[..]), None));
        assert_eq!(layer.input_scale(2), None);
    }

    #[test]
    fn groups_without_the_others_have_the_bits_that_they_have_among_them() {
        let engine = engine();
        let all = layer(&engine);
        let given = [3, 2]
            .map(|rows: usize| tokens(rows, (0..rows * K).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>()));
        let among = engine.run(&all, &given, Output::F32).unwrap();
        for order in [vec![0], vec![1], vec![1, 0]] {
            let only = all.only(&order).unwrap();
            let given: Vec<Activations<'_>> = order.iter().map(|&group| given[group].clone()).collect();
            let found = engine.run(&only, &given, Output::F32).unwrap();
            assert!(
                order
                    .iter()
                    .zip(&found)
                    .all(|(&group, found)| bits(std::slice::from_ref(found)) == bits(&among[group..=group]))
            );
            // What tokens are measured with may not depend on which of the groups have some.
            assert_eq!(only.input_scales().largest(), all.input_scales().largest());
        }
        assert!(all.only(&[2]).is_none());
    }

    #[test]
    fn quantised_tokens_are_refused() {
        let engine = engine();
        let layer = layer(&engine);
        let refused = |first, second| engine.run(&layer, &[first, second], Output::F32).unwrap_err();
        let quantised = || Matrix::new(1, K, vec![0; K / 2], vec![0; K / 16], 1.0).unwrap().into();
        assert!(matches!(refused(quantised(), quantised()), Error::QuantizedTokens { group: 0 }));
    }

    #[test]
    fn what_is_not_finite_or_not_when_multiplied_spoils_its_own_row() {
        let engine = engine();
        let layer = layer(&engine);
        let with = |row: usize, column: usize, value| {
            let mut numbers = vec![1f32; 3 * K];
            numbers[row * K + column] = value;
            [tokens(3, numbers), tokens(3, vec![1f32; 3 * K])]
        };
        let rows = |given: &[Activations<'_>]| {
            let results = engine.run(&layer, given, Output::F32).unwrap();
            bits(&results).chunks(3).map(<[u32]>::to_vec).collect::<Vec<_>>()
        };
        let whole = rows(&with(0, 0, 1.0));
        for (row, value) in [(2, 3e38), (1, f32::NAN), (0, f32::NEG_INFINITY)] {
            let found = rows(&with(row, 31, value));
            for (index, (found, whole)) in found.iter().zip(&whole).enumerate() {
                let spoilt = found.iter().any(|&bits| !f32::from_bits(bits).is_finite());
                assert!(if index == row { spoilt } else { found == whole }, "{value} in row {row}: row {index}");
            }
        }
    }
}
