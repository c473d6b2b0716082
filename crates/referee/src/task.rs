//! What the referee asks and times, whatever the operation: tensors by name, and a task that makes and judges them.
//!
//! An operation is a set of tasks. A [`Task`] makes numbers from a seed and says what should come out of them; the
//! referee lays them out, poisons outputs, runs the clock and compares. It knows bytes, names and shapes, and nothing
//! of what they mean.

use std::any::Any;
use std::sync::Arc;

use fastrand::Rng;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;

/// What the numbers of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// Double precision.
    F64,
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
    /// Whole numbers of 64 bits.
    I64,
    /// Whole numbers of 32 bits.
    I32,
    /// Bytes.
    U8,
}

impl Element {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Element::F64 | Element::I64 => 8,
            Element::F32 | Element::I32 => 4,
            Element::F16 | Element::Bf16 => 2,
            Element::U8 => 1,
        }
    }

    /// Whether some of its patterns are no numbers, so that poison can be told from every result.
    pub fn has_nan(self) -> bool {
        matches!(self, Element::F64 | Element::F32 | Element::F16 | Element::Bf16)
    }

    /// The numbers that these bytes are. Whole numbers beyond 2⁵³ are rounded.
    pub fn values(self, bytes: &[u8]) -> Vec<f64> {
        let of = |value: fn(&[u8]) -> f64| bytes.chunks_exact(self.bytes()).map(value).collect();
        fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
            std::array::from_fn(|index| bytes[index])
        }
        match self {
            Element::F64 => of(|bytes| f64::from_le_bytes(array(bytes))),
            Element::F32 => of(|bytes| f64::from(f32::from_le_bytes(array(bytes)))),
            Element::F16 => of(|bytes| f16::from_le_bytes(array(bytes)).to_f64()),
            Element::Bf16 => of(|bytes| bf16::from_le_bytes(array(bytes)).to_f64()),
            Element::I64 => of(|bytes| i64::from_le_bytes(array(bytes)) as f64),
            Element::I32 => of(|bytes| f64::from(i32::from_le_bytes(array(bytes)))),
            Element::U8 => of(|bytes| f64::from(bytes[0])),
        }
    }

    /// The distance from a number to the next that can be written; 1 for whole numbers.
    pub fn step_at(self, value: f64) -> f64 {
        let (digits, least) = match self {
            Element::F64 => (52, -1074),
            Element::F32 => (23, -149),
            Element::F16 => (10, -24),
            Element::Bf16 => (7, -133),
            Element::I64 | Element::I32 | Element::U8 => return 1.0,
        };
        let magnitude = value.abs().max(f64::MIN_POSITIVE);
        let exponent = if magnitude.is_finite() { magnitude.log2().floor() as i32 } else { 0 };
        2f64.powi((exponent - digits).max(least))
    }
}

/// A tensor without its numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Its name.
    pub name: String,
    /// What its numbers are.
    #[serde(rename = "type")]
    pub element: Element,
    /// Its sizes, the slowest first.
    pub shape: Vec<usize>,
}

impl Spec {
    /// A tensor of these sizes.
    pub fn new(name: impl Into<String>, element: Element, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), element, shape: shape.into() }
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.element.bytes()
    }
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// What it is.
    pub spec: Spec,
    /// Its numbers, little-endian.
    pub bytes: Vec<u8>,
}

/// Tensors that belong together: one set of constants, or one input.
#[derive(Clone, Default)]
pub struct Bundle {
    /// The tensors.
    pub tensors: Vec<Tensor>,
    /// What the task made them from, where it wants to have that again when it judges.
    meaning: Option<Arc<dyn Any + Send + Sync>>,
}

impl std::fmt::Debug for Bundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.tensors.iter().map(|tensor| &tensor.spec)).finish()
    }
}

impl Bundle {
    /// Tensors that mean nothing beside their numbers.
    pub fn new(tensors: Vec<Tensor>) -> Self {
        Self { tensors, meaning: None }
    }

    /// The same, with what they were made from.
    pub fn meaning<T: Any + Send + Sync>(self, meaning: T) -> Self {
        Self { meaning: Some(Arc::new(meaning)), ..self }
    }

    /// What they were made from.
    pub fn made_from<T: Any>(&self) -> Option<&T> {
        self.meaning.as_ref()?.downcast_ref()
    }
}

/// What a problem takes at least.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating-point operations, where somebody knows.
    pub flops: Option<f64>,
    /// Bytes of constants, inputs and outputs.
    pub bytes: f64,
    /// Bytes of constants.
    pub constant_bytes: f64,
}

/// What was found of an output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The first thing that is wrong, in words.
    pub wrong: Option<String>,
    /// Elements that were compared.
    pub compared: u64,
    /// The sum of squares of error over what is allowed.
    pub squares: f64,
    /// The largest error over what is allowed.
    pub worst: f64,
}

impl Found {
    /// Adds what was found elsewhere.
    pub fn add(&mut self, other: Self) {
        self.wrong = self.wrong.take().or(other.wrong);
        self.compared += other.compared;
        self.squares += other.squares;
        self.worst = self.worst.max(other.worst);
    }
}

/// A job that was timed.
#[derive(Clone, Copy, Debug)]
pub struct Timed<'a> {
    /// The constants that it used.
    pub constants: &'a Bundle,
    /// Its input.
    pub input: &'a Bundle,
    /// What it wrote, tensor by tensor.
    pub output: &'a [Vec<u8>],
}

/// What should come out.
pub trait Expected {
    /// Compares an output, tensor by tensor.
    fn check(&self, output: &[Vec<u8>]) -> Result<Found>;
}

/// One problem that can be asked and timed.
pub trait Task {
    /// Its name, as it is written everywhere.
    fn name(&self) -> String;

    /// Which kind of numbers it is asked with.
    fn numbers(&self) -> String;

    /// What it takes at least.
    fn work(&self) -> Work;

    /// What a contestant writes.
    fn outputs(&self) -> Vec<Spec>;

    /// Constants: what may be prepared for. There are several sets of them with different numbers.
    fn constants(&self, seed: u64) -> Result<Bundle>;

    /// An input: what is new in every run.
    fn input(&self, seed: u64) -> Result<Bundle>;

    /// What should come out, by the reference. `seed` draws the places that are compared where there are too many.
    fn expected(&self, constants: &Bundle, input: &Bundle, seed: u64) -> Result<Box<dyn Expected>>;

    /// Compares outputs of one timed run: so many elements, each of a job drawn by lot, or more. A run has at least one
    /// job.
    fn look(&self, run: &[Timed<'_>], elements: usize, lots: &mut Rng) -> Result<Found>;

    /// Compares a timed output whole, in less time than the reference takes. Says what is wrong.
    fn look_whole(&self, timed: Timed<'_>) -> Result<Option<String>>;

    /// What `prepare` says of the problem.
    fn described(&self) -> Value;

    /// The operation's name.
    fn operation(&self) -> String;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        assert_eq!(Element::F32.values(&1.5f32.to_le_bytes()), [1.5]);
        assert_eq!(Element::F16.values(&f16::from_f32(-2.0).to_le_bytes()), [-2.0]);
        assert_eq!(Element::Bf16.values(&bf16::from_f32(3.0).to_le_bytes()), [3.0]);
        assert_eq!(Element::I32.values(&(-7i32).to_le_bytes()), [-7.0]);
        assert_eq!(Element::U8.values(&[1, 255]), [1.0, 255.0]);
    }

    #[test]
    fn a_step_is_the_distance_to_the_next_number() {
        for value in [1.0f32, 1.5, 1e-3, 3e7, f32::MIN_POSITIVE] {
            let next = f32::from_bits(value.to_bits() + 1);
            assert_eq!(Element::F32.step_at(f64::from(value)), f64::from(next) - f64::from(value), "{value}");
        }
        assert_eq!(Element::F16.step_at(0.0), 2f64.powi(-24));
        assert_eq!(Element::I32.step_at(1e6), 1.0);
    }
}
