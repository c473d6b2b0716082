//! What a layer of experts is: its sizes, what it computes, and the two products that it is made of.

use format::Scaling;
use op::{
    Activation, Error, Gate, Intermediate, LayerSpec, MlpWeights, Output, Precision, Problem, Result, Shape,
    SharedWeights, Whole,
};

use super::adapters::AdaptedShape;
use super::between::{self, Form};
use super::route;
use crate::family::Family;
use crate::pack::Codes;
use crate::phases::experts::{FACTOR_BYTES, LIFT_BYTES};
use crate::products::{MOST_EXPERTS, ProductShape};

/// A layer: its sizes, and what it computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerShape {
    /// Experts.
    pub experts: u32,
    /// Experts of a token.
    pub top: u32,
    /// Columns of tokens and results.
    pub hidden: u32,
    /// Columns between the two products.
    pub inner: u32,
    /// How gate and up become one value, or what becomes of the only one.
    pub gate: Gate,
    /// Whether all sums have biases.
    pub biased: bool,
    /// Whether a token's weights multiply what its experts are given, and not what they make of it.
    pub on_input: bool,
    /// Whether results are multiplied with σ(x·v), of a vector that belongs to the weights: of one expert that computes
    /// every token.
    pub gated: bool,
    /// The tokens' type: not NVFP4.
    pub activation: Activation,
    /// What lies between the products is rounded to.
    pub intermediate: Intermediate,
    /// What the operands of both products are rounded to.
    pub precision: Precision,
    /// Whether what the first product is given, and what the second one is, is multiplied with a factor per column of
    /// each expert's.
    pub scaled: [bool; 2],
    /// Whether a token's bits depend on nothing but that token and the weights.
    pub invariant: bool,
    /// What the words of weights are in order for: tokens of that type take the fewest steps. The second product's are
    /// in order for halves where an intermediate of NVFP4 becomes such.
    pub codes: Codes,
    /// How the codes of weights share scales, where the family's kernels take that ([`Family::scaling`]).
    pub scaling: Scaling,
    /// The type of what experts make of tokens, before it is summed.
    pub partial: Output,
    /// The results' type.
    pub output: Output,
    /// What tokens may have added to their products, if anything.
    pub adapted: Option<AdaptedShape>,
}

impl LayerShape {
    /// A layer for tests.
    #[cfg(test)]
    pub(crate) const SMALL: LayerShape = LayerShape {
        experts: 2,
        top: 1,
        hidden: 64,
        inner: 64,
        gate: Gate::Silu,
        biased: false,
        on_input: false,
        gated: false,
        activation: Activation::BF16,
        intermediate: Intermediate::Tokens,
        precision: Precision::Exact,
        scaled: [false; 2],
        invariant: false,
        codes: Codes::Bfloats,
        scaling: Scaling::NvFp4,
        partial: Output::F32,
        output: Output::BF16,
        adapted: None,
    };

    /// The sizes of some MLPs and what they compute, as a layer of them with tokens and results in single precision.
    pub fn of(mlps: &[MlpWeights<'_>], gate: Gate, intermediate: Intermediate) -> Self {
        let [hidden, inner, _] = mlps[0].widths().map(|width| width as u32);
        let any = |what: fn(&MlpWeights<'_>) -> bool| mlps.iter().any(what);
        LayerShape {
            experts: mlps.len() as u32,
            top: 1,
            hidden,
            inner,
            gate,
            biased: any(|mlp| [mlp.up(), mlp.down()].iter().any(|weights| weights.bias(0).is_some())),
            on_input: false,
            gated: false,
            activation: Activation::F32,
            intermediate,
            precision: Precision::Exact,
            scaled: [any(|mlp| mlp.up().input_scale().is_some()), any(|mlp| mlp.down().input_scale().is_some())],
            invariant: false,
            codes: Codes::Bfloats,
            scaling: Scaling::common(mlps.iter().flat_map(|mlp| mlp.up().matrices().chain(mlp.down().matrices()))),
            partial: Output::F32,
            output: Output::F32,
            adapted: None,
        }
    }

    /// The same layer with the operands of its products rounded as a precision says, and weights in order for that.
    pub fn in_precision(self, precision: Precision) -> Self {
        match precision {
            Precision::Exact => LayerShape { precision, ..self },
            Precision::Fp8 => {
                let codes = if self.scaling.is_mx() { Codes::Nibbles } else { Codes::Halves };
                LayerShape { precision, codes, partial: Output::BF16, ..self }
            }
        }
    }

    /// Whether there are kernels for a layer: results are as wide as tokens, and nothing else is asked that they lack.
    pub fn suits(spec: &LayerSpec<'_>) -> bool {
        let weights = spec.weights;
        let of_all = weights.shared().map(|shared| std::slice::from_ref(shared.mlp()));
        let fits = |mlps: &[MlpWeights<'_>]| {
            let shape = LayerShape::of(mlps, weights.gate(), spec.intermediate).in_precision(spec.precision);
            // Halves are too small for such scales, whatever the tokens.
            let halves = shape.intermediate == Intermediate::NvFp4 && shape.scaling == Scaling::WideMxFp4;
            !halves && shape.check().is_ok()
        };
        let [k, _, width] = weights.experts()[0].widths();
        k == width && fits(weights.experts()) && of_all.is_none_or(fits)
    }

    /// The layer that a problem is, with nothing that the problem does not say: without biases, and with weights that
    /// multiply what experts make.
    pub fn of_problem(problem: &Problem) -> Option<Self> {
        let whole = problem.whole()?;
        let narrow = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        let Shape { n, k, .. } = problem.groups()[0];
        let exact = (whole.width == k).then(|| LayerShape {
            experts: narrow(problem.groups().len()),
            top: narrow(whole.top),
            hidden: narrow(k),
            inner: narrow(n),
            gate: problem.gate(),
            biased: false,
            on_input: false,
            gated: false,
            activation: problem.activation(),
            intermediate: whole.intermediate,
            precision: Precision::Exact,
            scaled: whole.scaled,
            invariant: whole.batch_invariant,
            codes: Codes::Bfloats,
            scaling: problem.scaling(),
            partial: Output::F32,
            output: problem.output(),
            adapted: None,
        });
        exact.map(|shape| shape.in_precision(problem.precision()))
    }

    /// The problem that a call with so many tokens is.
    pub fn problem(&self, tokens: u32) -> Result<Problem> {
        let whole = Whole {
            tokens: tokens as usize,
            top: self.top as usize,
            width: self.hidden as usize,
            intermediate: self.intermediate,
            scaled: self.scaled,
            batch_invariant: self.invariant,
        };
        let sides = [self.hidden, self.inner].map(|side| side as usize);
        let types = (self.activation, self.output);
        let layer = Problem::layer(self.experts as usize, sides, self.gate, types, whole)?;
        let layer = layer.with_precision(self.precision)?.with_scaling(self.scaling)?;
        layer.check_halves()?;
        Ok(layer)
    }

    /// Refuses what there are no kernels for.
    pub fn check(&self) -> Result<()> {
        let refuse = |what, found: u32, expected: &str| {
            Err(Error::Mismatch { group: 0, what, found: found.to_string(), expected: expected.to_owned() })
        };
        if !(1..=MOST_EXPERTS).contains(&self.experts) {
            return refuse("the number of experts", self.experts, "1 to 1024");
        }
        // There may be more than there are experts here: ids that are given may name those of other ranks.
        if !(1..=route::MOST_TOP).contains(&self.top) {
            return refuse("the number of a token's experts", self.top, "1 to 32");
        }
        for (what, size) in [("the tokens' size", self.hidden), ("the inner size", self.inner)] {
            if size == 0 || !size.is_multiple_of(16) {
                return refuse(what, size, "a positive multiple of 16");
            }
        }
        let unfit = |what, found: &str, expected: &str| {
            Err(Error::Mismatch { group: 0, what, found: found.to_owned(), expected: expected.to_owned() })
        };
        self.precision.check_layer(self.intermediate, self.adapted.is_some())?;
        match (self.codes == Codes::Nibbles, self.precision == Precision::Fp8 && self.scaling.is_mx()) {
            (true, false) => return unfit("the order of words", "nibbles", "another, since weights are not looked up"),
            (false, true) => return unfit("the order of words", "another", "nibbles, since weights are looked up"),
            _ => {}
        }
        if self.activation == Activation::NvFp4 {
            return unfit("the tokens' type", "nvfp4", "f16, bf16 or f32");
        }
        if self.gated && (self.experts, self.on_input) != (1, false) {
            return refuse("the number of experts with a gate of their own", self.experts, "1, weighed by that alone");
        }
        if self.adapted.is_some() && self.intermediate == Intermediate::NvFp4 {
            return Err(Error::AdaptedIntermediate);
        }
        if self.adapted.is_some() && self.partial != Output::F32 {
            return unfit("the type of what adapters add to", &self.partial.to_string(), "f32");
        }
        if self.intermediate == Intermediate::NvFp4 && self.scaled[1] {
            return unfit("the intermediate", "nvfp4", "tokens or f32, since experts multiply it with an input scale");
        }
        Ok(())
    }

    /// The first product's tokens, before they are made what the tensor cores take: what is multiplied with a scale is
    /// single precision.
    pub(super) fn outer_activation(&self) -> Activation {
        if self.scaled[0] { Activation::F32 } else { self.activation }
    }

    /// Whether tokens are rounded to e4m3 before they are sorted: once, as all of their experts take them.
    pub(super) fn rounds_tokens(&self) -> bool {
        self.precision == Precision::Fp8 && !self.scaled[0]
    }

    /// Whether they are rounded behind the sort, since experts multiply them with factors of their own first.
    pub(super) fn rounds_rows(&self) -> bool {
        self.precision == Precision::Fp8 && self.scaled[0]
    }

    /// The type of what the first product leaves.
    pub(super) fn between(&self) -> Output {
        match (self.intermediate, self.activation) {
            (Intermediate::Tokens, Activation::F16) => Output::F16,
            (Intermediate::Tokens, Activation::BF16) => Output::BF16,
            _ => Output::F32,
        }
    }

    /// What must become of it before the second product takes it, if anything.
    pub(super) fn step(&self) -> Option<Step> {
        match (self.intermediate, self.between()) {
            (Intermediate::NvFp4, _) => Some(Step::Own(Form::Quantised)),
            _ if self.precision == Precision::Fp8 => Some(Step::Round),
            (_, between) if self.scaled[1] => Some(Step::Own(Form::Scaled(between.into()))),
            (_, Output::F32) => Some(Step::Split),
            _ => None,
        }
    }

    /// The second product's tokens.
    pub(super) fn inner_activation(&self) -> Activation {
        match self.step() {
            None | Some(Step::Round) => self.activation,
            // Codes times scales, exactly.
            Some(Step::Own(Form::Quantised)) => Activation::F16,
            Some(Step::Split | Step::Own(Form::Scaled(_))) => Activation::F32,
        }
    }

    /// Whether a kernel behind the sort must know the expert of every row.
    pub(super) fn owned(&self) -> bool {
        let by_expert = match self.precision {
            Precision::Exact => matches!(self.step(), Some(Step::Own(_))),
            Precision::Fp8 => self.scaled.contains(&true),
        };
        self.adapted.is_some() || by_expert
    }

    /// Bytes of each packed matrix of an expert: gate (or the only one), up if there is one, down.
    pub fn matrix_bytes(&self, family: &dyn Family) -> Vec<usize> {
        let [hidden, inner] = [self.hidden, self.inner].map(|size| size as usize);
        let first = family.packed_bytes(inner, hidden, self.scaling);
        let mut all = vec![first; self.gate.matrices()];
        all.push(family.packed_bytes(hidden, inner, self.scaling));
        all
    }

    /// Bytes of memory that each expert of a layer takes for a family's kernels, and those that are taken whichever are
    /// there: of its shared one, and where weights of others are brought over, of what all numbers have beside their
    /// matrices, of which there are twice as many as experts at most beyond slots.
    pub fn bytes_of(spec: &LayerSpec<'_>, family: &dyn Family, brought: bool) -> [usize; 2] {
        let bytes = |mlps: &[MlpWeights<'_>]| {
            let shape = LayerShape::of(mlps, spec.weights.gate(), spec.intermediate);
            let [hidden, inner] = [shape.hidden, shape.inner].map(|size| size as usize);
            let of = |exists: bool, numbers: usize| if exists { 4 * numbers } else { 0 };
            let biases = of(shape.biased, shape.gate.matrices() * inner + hidden);
            let scales = of(shape.scaled[0], hidden) + of(shape.scaled[1], inner);
            let lifts = if spec.precision == Precision::Fp8 { LIFT_BYTES as usize } else { 0 };
            let tables = of(spec.intermediate == Intermediate::NvFp4, between::TABLE_WORDS);
            let beside = FACTOR_BYTES as usize + biases + scales + lifts + tables;
            [shape.matrix_bytes(family).iter().sum::<usize>(), beside]
        };
        let of_all = |shared: &SharedWeights<'_>| bytes(std::slice::from_ref(shared.mlp())).iter().sum();
        let ([matrices, beside], experts) = (bytes(spec.weights.experts()), spec.weights.experts().len());
        let always = spec.weights.shared().map_or(0, of_all) + if brought { 2 * experts * beside } else { 0 };
        [matrices + beside, always]
    }

    /// The first product: gate and up.
    pub fn gate_up(&self) -> ProductShape {
        ProductShape {
            experts: self.experts,
            n: self.inner,
            k: self.hidden,
            gate: self.gate,
            activation: self.outer_activation(),
            precision: self.precision,
            codes: self.codes,
            scaling: self.scaling,
            output: self.between(),
            biased: self.biased,
            factored: self.on_input,
            follows: false,
            added: self.adapted.is_some(),
            invariant: self.invariant,
        }
    }

    /// The second product.
    pub fn down(&self) -> ProductShape {
        let (gate, output) = (Gate::None, self.partial);
        let (activation, follows) = (self.inner_activation(), self.step().is_none());
        let (n, k, factored, biased) = (self.hidden, self.inner, false, self.biased);
        let codes = if self.intermediate == Intermediate::NvFp4 { Codes::Halves } else { self.codes };
        ProductShape {
            n,
            k,
            gate,
            activation,
            codes,
            output,
            factored,
            biased,
            follows,
            added: false,
            ..self.gate_up()
        }
    }
}

/// What becomes of rows between the products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    /// Floats are split into the parts that the tensor cores take.
    Split,
    /// Numbers are rounded to e4m3, a row with a factor, after they are multiplied with their expert's factors if there
    /// are some.
    Round,
    /// What is a matter of each row's expert.
    Own(Form),
}
