//! An expert's weights as the kernels take them, before they are on any device.

use format::GlobalScale;
use op::{Error, Intermediate, MlpWeights, Precision, Result, Team, precision};

use super::between;
use super::call::LayerWeights;
use super::shape::LayerShape;
use crate::family::Family;
use crate::pack::WEIGHT_FACTOR;
use crate::phases::{gates, table};

/// An expert's packed matrices one after another, their factors, and their biases.
#[derive(Clone, Debug)]
pub struct PackedExpert {
    matrices: Vec<u8>,
    factors: [[f32; 2]; 3],
    biases: [Vec<f32>; 3],
    scales: [Vec<f32>; 2],
    table: Vec<f32>,
    gate: Vec<f32>,
    /// The bits of the words of its matrices' lifts, in a layer that rounds weights to e4m3.
    lifts: Vec<f32>,
}

impl PackedExpert {
    /// Packs an expert's weights for a family on a team's threads. Biases that it lacks in a layer that has some are
    /// zeros, and input scales are ones.
    pub fn new((family, team): (&dyn Family, &Team), shape: &LayerShape, expert: &MlpWeights<'_>) -> Result<Self> {
        let mismatch = |what, found: String, expected: String| Error::Mismatch { group: 0, what, found, expected };
        let [hidden, inner] = [shape.hidden, shape.inner].map(|size| size as usize);
        let (found, expected) = (expert.widths(), [hidden, inner, hidden]);
        let matrices = expert.up().matrices().count();
        if found != expected || matrices != shape.gate.matrices() {
            let text = |widths: [usize; 3], matrices: usize| format!("{matrices} matrices into {widths:?}");
            let expected = text(expected, shape.gate.matrices());
            return Err(mismatch("the expert's shape", text(found, matrices), expected));
        }
        let as_described = || "none, as the layer was described,".to_owned();
        let mut scales = <[Vec<f32>; 2]>::default();
        for ((scale, weights), scaled) in scales.iter_mut().zip([expert.up(), expert.down()]).zip(shape.scaled) {
            match weights.input_scale() {
                own if scaled => *scale = own.map_or_else(|| vec![1.0; weights.k()], <[f32]>::to_vec),
                Some(_) => return Err(mismatch("the expert's input scale", "one".to_owned(), as_described())),
                None => {}
            }
        }
        // Codes times scales lack the intermediate's global scale.
        let quantised = (shape.intermediate == Intermediate::NvFp4).then(|| expert.intermediate_scale());
        let (mut factors, mut biases) = ([[0.0; 2]; 3], <[Vec<f32>; 3]>::default());
        let sizes = shape.matrix_bytes(family);
        let mut packed = vec![0; sizes.iter().sum()];
        let mut rest = &mut packed[..];
        let rounded = shape.precision == Precision::Fp8;
        let mut lifts = vec![0.0; if rounded { 3 } else { 0 }];
        let up = expert.up().matrices().enumerate().map(|(index, matrix)| (index, matrix, expert.up().bias(index)));
        let down = expert.down().matrices().map(|matrix| (2, matrix, expert.down().bias(0)));
        for ((place, matrix, bias), bytes) in up.chain(down).zip(sizes) {
            let product = if place == 2 { shape.down() } else { shape.gate_up() };
            let (zeros, others) = rest.split_at_mut(bytes);
            family.pack(matrix, (product.codes, product.scaling), team, zeros)?;
            rest = others;
            let of_tokens = quantised.filter(|_| place == 2).map_or(1.0, GlobalScale::value);
            let lift = if rounded { precision::weight_lift(matrix) } else { 0 };
            if let Some(word) = lifts.get_mut(place) {
                *word = f32::from_bits(table::lift_word(lift));
            }
            let lifted = 2f64.powi(-lift.cast_signed());
            factors[place] = gates::factors(matrix.global().value() * of_tokens * lifted * WEIGHT_FACTOR);
            if shape.biased {
                biases[place] = bias.map_or_else(|| vec![0.0; matrix.rows()], <[f32]>::to_vec);
            } else if bias.is_some() {
                return Err(mismatch("the expert's biases", "some".to_owned(), as_described()));
            }
        }
        let table = quantised.map(between::table).unwrap_or_default();
        Ok(PackedExpert { matrices: packed, factors, biases, scales, table, gate: Vec::new(), lifts })
    }

    /// The same expert with a gate of its own: the vector whose product with a token, as a sigmoid, multiplies the
    /// result.
    pub fn with_gate(self, vector: &[f32]) -> Self {
        PackedExpert { gate: vector.to_vec(), ..self }
    }

    /// The matrices one after another.
    pub fn matrices(&self) -> &[u8] {
        &self.matrices
    }

    /// Two factors for each of gate, up and down.
    pub fn factors(&self) -> [[f32; 2]; 3] {
        self.factors
    }

    /// The biases of gate, up and down; nothing of a matrix that is not there, or in a layer without.
    pub fn biases(&self) -> &[Vec<f32>; 3] {
        &self.biases
    }

    /// What gate and up's inputs, and down's, are multiplied with; nothing in a layer where they are not.
    pub fn scales(&self) -> &[Vec<f32>; 2] {
        &self.scales
    }

    /// The vector of its own gate; nothing if it has none.
    pub fn gate(&self) -> &[f32] {
        &self.gate
    }

    /// The bits of the [words](crate::phases::table::lift_word) of its matrices' lifts; nothing in an exact layer.
    pub fn lifts(&self) -> &[f32] {
        &self.lifts
    }

    /// All of its numbers beside the matrices, array by array, as [`Numbers::placed`] has them.
    pub(crate) fn numbers(&self) -> [&[f32]; 9] {
        let ([gate, up, down], [outer, inner]) = (&self.biases, &self.scales);
        [self.factors.as_flattened(), gate, up, down, outer, inner, &self.table, &self.gate, &self.lifts]
    }

    /// The table by which an NVFP4 intermediate is quantised; nothing in a layer that has none.
    pub fn table(&self) -> &[f32] {
        &self.table
    }
}

/// The numbers of all experts of a layer beside their matrices, one expert's behind another's.
#[derive(Debug, Default)]
pub struct Numbers {
    factors: Vec<f32>,
    biases: [Vec<f32>; 3],
    scales: [Vec<f32>; 2],
    tables: Vec<f32>,
    gate: Vec<f32>,
    lifts: Vec<f32>,
}

impl Numbers {
    /// Appends an expert's.
    pub fn add(&mut self, expert: &PackedExpert) {
        self.factors.extend(expert.factors().as_flattened());
        for (all, one) in self.biases.iter_mut().zip(expert.biases()) {
            all.extend(one);
        }
        for (all, one) in self.scales.iter_mut().zip(expert.scales()) {
            all.extend(one);
        }
        self.tables.extend(expert.table());
        self.gate.extend(expert.gate());
        self.lifts.extend(expert.lifts());
    }

    /// Where everything is, once `place` has put the numbers somewhere; matrices are there already.
    pub fn placed<E>(&self, matrices: u64, mut place: impl FnMut(&[f32]) -> Result<u64, E>) -> Result<LayerWeights, E> {
        let factors = place(&self.factors)?;
        let biases = [place(&self.biases[0])?, place(&self.biases[1])?, place(&self.biases[2])?];
        let scales = [place(&self.scales[0])?, place(&self.scales[1])?];
        let (tables, gate, lifts) = (place(&self.tables)?, place(&self.gate)?, place(&self.lifts)?);
        Ok(LayerWeights { matrices, factors, biases, scales, tables, gate, lifts, ..LayerWeights::default() })
    }

    /// Refuses a gate of the expert's own that is not as long as the layer's says.
    pub fn check(&self, shape: &LayerShape) -> Result<()> {
        let wanted = if shape.gated { shape.hidden as usize } else { 0 };
        if self.gate.len() == wanted {
            return Ok(());
        }
        let (found, expected) = (self.gate.len().to_string(), wanted.to_string());
        Err(Error::Mismatch { group: 0, what: "the length of the expert's own gate", found, expected })
    }
}

#[cfg(test)]
mod tests {
    use format::Matrix;
    use op::{Alone, Gate, Weights};

    use super::*;
    use crate::families::sm90::Sm90;

    const SHAPE: LayerShape = LayerShape {
        hidden: 32,
        inner: 16,
        gate: Gate::None,
        biased: true,
        scaled: [true, false],
        ..LayerShape::SMALL
    };

    fn plain(rows: usize, k: usize) -> Weights<'static> {
        Weights::plain(Matrix::new(rows, k, vec![0; rows * k / 2], vec![0x38; rows * k / 16], 2.0).unwrap())
    }

    #[test]
    fn what_an_expert_lacks_beside_others_that_have_it_changes_nothing() {
        let expert = MlpWeights::new(plain(16, 32), plain(32, 16)).unwrap();
        let packed = PackedExpert::new((&Sm90, &Team::new(Alone)), &SHAPE, &expert).unwrap();
        assert_eq!(packed.scales(), &[vec![1.0; 32], vec![]]);
        assert_eq!(packed.biases(), &[vec![0.0; 16], vec![], vec![0.0; 32]]);
        assert!(packed.table().is_empty());
    }

    #[test]
    fn what_a_layer_was_not_said_to_have_is_refused() {
        let scaled = plain(32, 16).with_input_scale(vec![1.0; 16]).unwrap();
        let error =
            PackedExpert::new((&Sm90, &Team::new(Alone)), &SHAPE, &MlpWeights::new(plain(16, 32), scaled).unwrap())
                .unwrap_err();
        assert!(error.to_string().contains("input scale"), "{error}");
        let (biased, shape) =
            (plain(16, 32).with_bias([vec![1.0; 16]]).unwrap(), LayerShape { biased: false, ..SHAPE });
        let error =
            PackedExpert::new((&Sm90, &Team::new(Alone)), &shape, &MlpWeights::new(biased, plain(32, 16)).unwrap())
                .unwrap_err();
        assert!(error.to_string().contains("biases"), "{error}");
    }

    #[test]
    fn the_scale_of_an_nvfp4_intermediate_is_among_the_factors_of_down() {
        let expert = MlpWeights::new(plain(16, 32), plain(32, 16)).unwrap().with_intermediate_scale(0.75).unwrap();
        let shape = LayerShape { intermediate: Intermediate::NvFp4, ..SHAPE };
        let factors = |shape| {
            PackedExpert::new((&Sm90, &Team::new(Alone)), shape, &expert).unwrap().factors().map(|[a, b]| a * b)
        };
        let ([up, _, down], [other_up, _, other]) = (factors(&shape), factors(&SHAPE));
        assert_eq!((down, up), (0.75 * other, other_up));
    }
}
