//! Every element of a large result, checked without the slow reference.
//!
//! The float64 reference computes a few thousand elements in the time that a backend computes millions. So for a whole
//! result the gate's and the up's sums are computed apart, as two plain products in f32, by a backend of our own that
//! passes the same examination as everyone. From the two sums, the product's value follows in float64, and so does how
//! far a right result may be from it: [`hammerhead::bound`] with one change. It wants Σ|a·b|, which would take the
//! reference; ‖a‖·‖b‖ is never less (Cauchy and Schwarz) and takes one pass over the operands. Both the result and the
//! yardstick may be off by the bound, so twice of it is allowed. On random numbers that is about three times what the
//! reference would allow: too much to notice one forgotten product, which is what the drawn elements in float64 are
//! for, and far too little for anything left out, left over or made up.

use hammerhead::bound::Bounded;
use hammerhead::format::{Dense, Matrix, Values};
use hammerhead::reference::{Element, Sum};
use hammerhead::{Activations, Arithmetic, Engine, Gate, Layer, Options, Output, Problem, Weights};

use crate::Result;

/// Rows whose norms a thread computes at a time.
const ROWS: usize = 64;

/// Checks whole results.
#[derive(Debug)]
pub struct Yardstick {
    engine: Engine,
}

/// A weight matrix as a layer of its own, with the norms of its rows: what takes long and does not depend on tokens.
#[derive(Debug)]
pub struct Measured {
    layer: Layer,
    norms: Vec<f64>,
}

impl Yardstick {
    /// The best backend of our own that this machine has.
    pub fn new() -> Result<Self> {
        Ok(Self { engine: Engine::new(Options { backend: Some("auto".to_owned()), ..Options::default() })? })
    }

    /// The engine it computes with.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The first element that is not what it may be, in words, if there is one.
    pub fn check(
        &self,
        problem: &Problem,
        activations: &[Activations<'_>],
        weights: &[Vec<Measured>],
        results: &[Dense<'_>],
    ) -> Result<Option<String>> {
        for (group, ((tokens, matrices), result)) in activations.iter().zip(weights).zip(results).enumerate() {
            if let Some(wrong) = self.check_group(problem, tokens, matrices, result)? {
                return Ok(Some(format!("group {group}, {wrong}")));
            }
        }
        Ok(None)
    }

    fn check_group(
        &self,
        problem: &Problem,
        tokens: &Activations<'_>,
        matrices: &[Measured],
        result: &Dense<'_>,
    ) -> Result<Option<String>> {
        let gate = self.product(tokens, &matrices[0])?;
        let up = matrices.get(1).map(|up| self.product(tokens, up)).transpose()?;
        let (rows, columns, k) = (result.rows(), result.k(), tokens.k());
        let mut found = vec![0.0; columns];
        for row in 0..rows {
            result.row(row, &mut found);
            for (column, &found) in found.iter().enumerate() {
                let sum = |product: &Product<'_>| product.sum(row, column);
                let (gate_sum, up_sum) = (sum(&gate), up.as_ref().map(sum));
                let value = problem.gate().apply(gate_sum.value, up_sum.map_or(0.0, |sum| sum.value));
                let element = Element { gate: gate_sum, up: up_sum, value };
                if !accepts(&element, found.into(), problem.gate(), k, problem.output()) {
                    return Ok(Some(format!("c[{row}, {column}] is {found}, should be about {value}")));
                }
            }
        }
        Ok(None)
    }

    /// The matrices of every group, measured.
    pub fn measure(&self, weights: &[Weights<'_>]) -> Result<Vec<Vec<Measured>>> {
        let matrix = |matrix: &Matrix<'_>| {
            let layer = self.engine.load(&[Weights::plain(matrix.as_borrowed())], Gate::None)?;
            let (mut norms, global) = (vec![0.0; matrix.rows()], matrix.global().value().abs());
            self.engine.team().for_each(norms.chunks_mut(ROWS).enumerate(), |(chunk, norms)| {
                let mut values = vec![0.0; matrix.k()];
                for (row, place) in norms.iter_mut().enumerate() {
                    matrix.unscaled_row(chunk * ROWS + row, &mut values);
                    *place = norm(&values) * global;
                }
            });
            Ok(Measured { layer, norms })
        };
        weights.iter().map(|group| group.matrices().map(matrix).collect()).collect()
    }

    /// A plain product in f32, with the norms of its rows.
    fn product<'m>(&self, tokens: &Activations<'_>, matrix: &'m Measured) -> Result<Product<'m>> {
        let values = self.engine.run(&matrix.layer, std::slice::from_ref(tokens), Output::F32)?.remove(0);
        let mut row_values = vec![0.0; tokens.k()];
        let token_norms = (0..tokens.rows()).map(|row| {
            tokens.unscaled_row(row, &mut row_values);
            norm(&row_values) * tokens.global().value().abs()
        });
        Ok(Product { values, token_norms: token_norms.collect(), column_norms: &matrix.norms })
    }
}

struct Product<'m> {
    values: Dense<'static>,
    token_norms: Vec<f64>,
    column_norms: &'m [f64],
}

impl Product<'_> {
    fn sum(&self, row: usize, column: usize) -> Sum {
        let value = match self.values.values() {
            Values::F32(values) => values[row * self.values.k() + column].into(),
            _ => f64::NAN,
        };
        Sum::rough(value, self.token_norms[row] * self.column_norms[column])
    }
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
}

fn accepts(element: &Element, found: f64, gate: Gate, k: usize, output: Output) -> bool {
    let bounded = Bounded::new(element, gate, k, Arithmetic::Unknown);
    let allowed = 2.0 * bounded.allowed(output);
    // What f32 cannot hold the yardstick cannot measure.
    if !allowed.is_finite() || !element.gate.value.is_finite() || element.up.is_some_and(|up| !up.value.is_finite()) {
        return true;
    }
    (found - element.value).abs() <= allowed || bounded.accepts(found, output)
}

#[cfg(test)]
mod tests {
    use testkit::cases::{self, Case, Inputs};

    use super::*;

    #[test]
    fn every_right_result_of_the_list_is_accepted() {
        let yardstick = Yardstick::new().unwrap();
        let asked = |case: &Case| !case.is_scaled() && !case.is_biased();
        for case in cases::suite(cases::Suite::Edge).into_iter().filter(asked) {
            let instance = case.instance(5).unwrap();
            let engine = yardstick.engine();
            let layer = engine.load(&instance.weights, case.gate).unwrap();
            let results = engine.run(&layer, &instance.activations, case.output).unwrap();
            let weights = yardstick.measure(&instance.weights).unwrap();
            let wrong = yardstick.check(&instance.problem, &instance.activations, &weights, &results).unwrap();
            assert_eq!(wrong, None, "{case} {:?}", case.inputs);
        }
    }

    #[test]
    fn a_single_element_that_was_left_out_is_found() {
        let yardstick = Yardstick::new().unwrap();
        let edge = cases::suite(cases::Suite::Edge);
        let case = edge.iter().find(|c| c.groups[0].k == 7168 && c.inputs == Inputs::Realistic).unwrap();
        let instance = case.instance(5).unwrap();
        let layer = yardstick.engine().load(&instance.weights, case.gate).unwrap();
        let right = yardstick.engine().run(&layer, &instance.activations, Output::F32).unwrap().remove(0);
        let Values::F32(values) = right.values() else { panic!("f32 was asked for") };
        let problem =
            Problem::new(case.groups.clone(), case.gate, case.activation, Output::F32).expect("the case is legal");
        // An element that should be near zero may well be zero, so one of average size is taken.
        let place = values.iter().position(|x| x.abs() > 0.3).unwrap();
        let mut spoilt = values.to_vec();
        spoilt[place] = 0.0;
        let spoilt = [Dense::new(right.rows(), right.k(), spoilt, 1.0).unwrap()];
        let weights = yardstick.measure(&instance.weights).unwrap();
        let found = yardstick.check(&problem, &instance.activations, &weights, &spoilt).unwrap();
        assert!(found.is_some_and(|wrong| wrong.contains(&format!("{}]", place % right.k()))));
    }
}
