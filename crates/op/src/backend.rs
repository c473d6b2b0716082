//! What a backend is: a few questions, and no others.
//!
//! How does it add up (`arithmetic`); which configurations are worth trying for a problem (`candidates`); may this one
//! be run (`legal`), and what does it cost (`check`); how are weights laid out (`prepack`, once); and `run`. Nobody
//! outside calls `run`: a [`Call`](crate::Call) does, once it has seen that everything fits.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use format::{Fp8Matrix, Scaling};

use crate::fp8::Segments;
use crate::{
    Activation, Activations, Arithmetic, Choose, Config, Error, LayerSpec, LoadedLayer, Precision, Problem, Result,
    Setting, Target, Team, Weights,
};

/// What a configuration costs on a backend, as far as arithmetic can tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Predicted time.
    pub seconds: f64,
    /// What bounds the prediction, in words.
    pub bound_by: &'static str,
    /// Predicted time of copying operands of the host's to a device and results back, where the backend computes on
    /// one.
    pub copying: f64,
    /// Working memory beside the operands, over all threads.
    pub scratch_bytes: usize,
}

/// Weights of every group in the layout that a family of backends reads.
///
/// # Safety
///
/// `layout`, `shapes` and `matrices` must say what the memory behind them really holds: a backend that knows the layout
/// reads as much as they promise.
pub unsafe trait PackedWeights: Any + fmt::Debug + Send + Sync {
    /// The layout's name, as [`Backend::layout`] gives it.
    fn layout(&self) -> &'static str;

    /// `(n, k)` of every group.
    fn shapes(&self) -> &[(usize, usize)];

    /// Matrices per group: two, or one without a gate.
    fn matrices(&self) -> usize;

    /// The bytes these weights take in memory.
    fn bytes(&self) -> usize;

    /// How packed codes share scales, of all groups alike.
    fn scaling(&self) -> Scaling {
        Scaling::NvFp4
    }

    /// Some of the groups, in this order and in the same memory, for runs in which no other has tokens: a call takes
    /// longer to pass by a hundred idle groups than to prepare eight. None where kernels know groups by their places.
    fn only(&self, _groups: &[usize]) -> Option<Arc<dyn PackedWeights>> {
        None
    }

    /// The same weights once more, in memory of their own, where that takes much less time than packing them.
    fn copied(&self) -> Result<Option<Arc<dyn PackedWeights>>> {
        Ok(None)
    }
}

/// The weights as the type that holds a layout, or [`Error::Layout`] in the name of a backend.
pub fn packed_as<'a, T: PackedWeights>(
    weights: &'a dyn PackedWeights,
    backend: &'static str,
    layout: &'static str,
) -> Result<&'a T> {
    let found = weights.layout();
    (weights as &dyn Any).downcast_ref().ok_or(Error::Layout { backend, found, expected: layout })
}

/// A run's operands: weights packed earlier, activations now, and where the results go, one of each per group.
#[derive(Debug)]
pub struct Operands<'a, 'i, 'o> {
    /// The weights, packed by this backend's `prepack` or one of the same layout.
    pub weights: &'a dyn PackedWeights,
    /// The tokens.
    pub activations: &'a [Activations<'i>],
    /// The largest finite magnitude in each group of dense activations; not used for quantised ones.
    pub largest: &'a [f32],
    /// What is added to every group's sums behind their biases, an f32 plane `[m, n]` for each matrix; empty where
    /// nothing is, and always for backends that do not [`Backend::adds`].
    pub addends: &'a [Addend<'a>],
    /// The results.
    pub targets: &'a mut [Target<'o>],
}

/// What is added to a group's sums: `[m, n]` for its first matrix, and for its second if it has one.
pub type Addend<'a> = [&'a [f32]; 2];

/// A part of a prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// What happens.
    pub what: &'static str,
    /// How long it should take.
    pub seconds: f64,
    /// What bounds it.
    pub bound_by: &'static str,
}

/// One way of computing.
///
/// # Safety
///
/// Whatever `available` and `legal` agree to must be safe to `run` under the conditions stated there:
/// [`Call`](crate::Call) offers it to safe code on their word.
pub unsafe trait Backend: Send + Sync {
    /// The name by which it is forced.
    fn name(&self) -> &'static str;

    /// One line on what it uses.
    fn summary(&self) -> &'static str;

    /// The name of the layout that its `prepack` makes. Backends of one layout can run each other's weights.
    fn layout(&self) -> &'static str;

    /// The name without the number of a device: of `cuda:1` it is `cuda`.
    fn base_name(&self) -> &'static str {
        let name = self.name();
        name.split_once(':').map_or(name, |(family, _)| family)
    }

    /// The model of the device that computes. Empty where that is the processor.
    fn device_model(&self) -> &str {
        ""
    }

    /// The version of its kernels and of their prices. Times that were measured with another say nothing about this
    /// one.
    fn kernels(&self) -> &'static str;

    /// Whether it can run here; if not, [`Error::Unavailable`] with the reason and the remedy. Asked before every run,
    /// so the answer is remembered.
    fn available(&self) -> Result<()>;

    /// How it adds products up, with activations of such a type: what its results are judged by.
    fn arithmetic(&self, activation: Activation) -> Arithmetic;

    /// How it adds up what [`crate::Precision::Fp8`] makes of operands.
    fn fp8_arithmetic(&self) -> Arithmetic {
        Arithmetic::Fp8TensorCores
    }

    /// How it adds up the products of a problem.
    fn arithmetic_of(&self, problem: &Problem) -> Arithmetic {
        match problem.precision() {
            Precision::Exact => self.arithmetic(problem.activation()),
            Precision::Fp8 => self.fp8_arithmetic(),
        }
    }

    /// The same for the exact products of whole layers, where an NVFP4 intermediate may be multiplied as numbers of 16
    /// bits.
    fn layer_arithmetic(&self, activation: Activation) -> Arithmetic {
        self.arithmetic(activation)
    }

    /// The same for the products of whole layers in a precision.
    fn layer_arithmetic_in(&self, precision: Precision, activation: Activation) -> Arithmetic {
        match precision {
            Precision::Exact => self.layer_arithmetic(activation),
            Precision::Fp8 => self.fp8_arithmetic(),
        }
    }

    /// Whether a run can add numbers to its sums before the gate.
    fn adds(&self) -> bool {
        false
    }

    /// The settings that its configurations may have beside those that all have; `legal` refuses others.
    fn settings(&self) -> &'static [Setting] {
        &[]
    }

    /// Configurations worth trying for this problem on so many threads. Each is legal. None for whole layers where
    /// their products are computed one by one.
    fn candidates(&self, problem: &Problem, threads: usize) -> Vec<Config>;

    /// Whether a configuration is legal for a problem; if not, [`Error::Illegal`] with the reason. Asked before every
    /// run.
    fn legal(&self, problem: &Problem, config: &Config, threads: usize) -> Result<()>;

    /// What a configuration costs, or why it is not legal.
    fn check(&self, problem: &Problem, config: &Config, threads: usize) -> Result<Cost>;

    /// Where the time of a run should go, by the model that [`Backend::check`] goes by. Empty where that does not tell.
    fn phases(&self, _problem: &Problem, _config: &Config, _threads: usize) -> Result<Vec<Phase>> {
        Ok(Vec::new())
    }

    /// Lays weights out for this backend. A run takes tokens that were multiplied with the weights' input scales. Done
    /// once, on a team's threads; the result serves every problem with these weights.
    fn prepack(&self, weights: &[Weights<'_>], team: &Team) -> Result<Arc<dyn PackedWeights>>;

    /// Lays an FP8 matrix and its bias out for this backend, where it computes plain products with such weights like
    /// any others.
    fn prepack_fp8(
        &self,
        _matrix: &Fp8Matrix<'_>,
        _bias: Option<&[f32]>,
        _team: &Team,
    ) -> Result<Arc<dyn PackedWeights>> {
        Err(Error::Unavailable {
            backend: self.name(),
            reason: "it does not compute with FP8 weights".to_owned(),
            remedy: "ask for the backend 'cpu' or 'cuda', or expand the weight".to_owned(),
        })
    }

    /// What [`Backend::prepack_fp8`] has packed, read back: the same numbers and bias, and scales that are worth the
    /// same.
    fn unpack_fp8(&self, packed: &dyn PackedWeights) -> Result<(Fp8Matrix<'static>, Option<Vec<f32>>)> {
        Err(Error::Layout { backend: self.name(), found: packed.layout(), expected: "FP8 weights that it has packed" })
    }

    /// Where it multiplies sums with scales of their own, of FP8 weights that are packed so and tokens of such a type.
    fn fp8_segments(&self, _scaling: Scaling, _activation: Activation) -> Segments {
        Segments::Blocks
    }

    /// Bytes that each expert of a layer takes where this backend computes it, and those that are taken whichever
    /// experts are there: of its shared one, and where weights of others are brought over of what goes with them;
    /// nothing where it does not compute layers of that kind whole.
    fn layer_bytes(&self, _layer: &LayerSpec<'_>, _brought: bool) -> Option<[usize; 2]> {
        None
    }

    /// Puts a whole layer where this backend computes it, if it computes layers of that kind whole. If not, their
    /// products are computed one by one. How each call is computed is `choose`'s to say.
    fn load_layer(
        &self,
        _layer: &LayerSpec<'_>,
        _choose: Arc<dyn Choose>,
        _team: &Team,
    ) -> Result<Option<Arc<dyn LoadedLayer>>> {
        Ok(None)
    }

    /// Computes.
    ///
    /// # Safety
    ///
    /// The backend is available; the configuration is legal for the problem on the team's threads; weights, activations
    /// and targets have the problem's shapes and types, and the weights this backend's layout. [`Call`](crate::Call)
    /// sees to all of it.
    unsafe fn run(&self, problem: &Problem, config: &Config, operands: Operands<'_, '_, '_>, team: &Team)
    -> Result<()>;
}

impl fmt::Debug for dyn Backend + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
