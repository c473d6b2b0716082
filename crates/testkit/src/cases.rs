//! One list of problems, each with its reason, for correctness and for speed on every backend.
//!
//! A [`Case`] is sizes, types and a kind of inputs; [`Case::instance`] makes the numbers from a seed. Suites group
//! them: `dual` and `group` are the shapes (and input distributions) that the GPU MODE community measures and checks,
//! `decode` what serving a few tokens needs, `edge` everything that has gone wrong in the wild or could, `adverse` what
//! makes rounding errors of sums add up.

use std::fmt;
use std::str::FromStr;

use fastrand::Rng;
use format::{BLOCK, Dense, MX_BLOCK, Matrix, Values, e4m3};
use half::{bf16, f16};

use op::{Activation, Activations, Error, Gate, Output, Precision, Problem, Result, Shape, Weights};

/// A named part of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// The community's dual GEMM shapes.
    Dual,
    /// The community's grouped shapes.
    Group,
    /// Few tokens against a large layer.
    Decode,
    /// Small and odd problems, each with a reason of its own.
    Edge,
    /// Sums whose rounding errors all go the same way, in single precision: there the bound itself is tested.
    Adverse,
    /// Products in FP8, which Hopper's kernels alone compute.
    Fp8,
}

impl Suite {
    /// Every suite of exact products: all backends compute them.
    pub const ALL: [Suite; 5] = [Suite::Dual, Suite::Group, Suite::Decode, Suite::Edge, Suite::Adverse];
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Suite::Dual => "dual",
            Suite::Group => "group",
            Suite::Decode => "decode",
            Suite::Edge => "edge",
            Suite::Adverse => "adverse",
            Suite::Fp8 => "fp8",
        })
    }
}

impl FromStr for Suite {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Suite::ALL.into_iter().chain([Suite::Fp8]).find(|s| s.to_string() == name).ok_or_else(|| Error::UnknownName {
            what: "suite",
            name: name.to_owned(),
            known: "dual, group, decode, edge, adverse, fp8".to_owned(),
        })
    }
}

/// Where the numbers of a case come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Inputs {
    /// GPU MODE's dual inputs: magnitudes 0, ½, 1, 1½ and scales uniform in [0, 1).
    CommunityDual,
    /// GPU MODE's group inputs: the same magnitudes, scales 1 and 2. Every sum is exact in f32.
    CommunityGroup,
    /// All codes, scales over four binades, global scales that bring the sums near 1, as in a trained layer.
    Realistic,
    /// As realistic, with the up matrix's global scale ten times the gate's.
    GlobalsApart,
    /// Every finite scale byte: zero, subnormal, 448 and negative ones.
    HardScales,
    /// Whole numbers, also in dense activations: every sum is exact in f32, but not if operands are rounded to bf16.
    Integers,
    /// Nothing but zeros.
    Zero,
    /// The largest codes and scales: sums far beyond half precision.
    Maximal,
    /// The smallest subnormal scale throughout.
    SmallestScales,
    /// Zeros of both signs.
    NegativeZero,
    /// As realistic, but all products of a column have one sign: sums grow along K, and so do errors.
    OneSign,
    /// One product of 2²⁰ and then, all of the same sign, products of 15/32 or 27/64 of the last place of an f32 sum
    /// that large. Added one by one each is lost; added by sixteens, or by thirty-twos, they end halfway between two
    /// numbers every time; cut off two bits behind the last place, they lose nearly half of themselves.
    Stagnant,
    /// As realistic, with biases in every other group, the first among them, as large as the sums that they are added
    /// to.
    Biases,
    /// As realistic, with an input scale in every other group, the first among them: factors from 1/8 to 8.
    InputScales,
    /// MXFP4 weights whose scales are all powers of two that NVFP4's may be, 2⁻⁹ to 2⁸. Quantised tokens are realistic.
    PowersOfTwo,
    /// The same over forty powers of two, which NVFP4 has no scales for, nor f16 numbers: for kernels that take MXFP4
    /// as it is, on GPUs with dense tokens of more range.
    ManyPowers,
    /// As realistic, with one number in every dense token that is 2²⁰ times the others, and every fifth token zero.
    Outliers,
}

/// One problem of the list.
#[derive(Clone, Debug)]
pub struct Case {
    /// The suite it belongs to.
    pub suite: Suite,
    /// Why it is in the list.
    pub why: &'static str,
    /// The sizes of its groups.
    pub groups: Vec<Shape>,
    /// The gate.
    pub gate: Gate,
    /// The element type of A.
    pub activation: Activation,
    /// The element type of C.
    pub output: Output,
    /// What operands are rounded to first.
    pub precision: Precision,
    /// Its numbers.
    pub inputs: Inputs,
    /// Whether it is there for its speed as well.
    pub timed: bool,
}

/// A case's operands.
#[derive(Clone, Debug)]
pub struct Instance {
    /// A, a group each.
    pub activations: Vec<Activations<'static>>,
    /// B1 and B2, a group each.
    pub weights: Vec<Weights<'static>>,
    /// What is computed with them.
    pub problem: Problem,
}

/// Every case of exact products.
pub fn all() -> Vec<Case> {
    Suite::ALL.into_iter().flat_map(suite).collect()
}

/// The cases of one suite.
pub fn suite(suite: Suite) -> Vec<Case> {
    match suite {
        Suite::Dual => dual(),
        Suite::Group => group(),
        Suite::Decode => decode(),
        Suite::Edge => edge(),
        Suite::Adverse => adverse(),
        Suite::Fp8 => fp8(),
    }
}

impl Case {
    /// A gated problem of NVFP4 tokens with results in half precision, and with a reason.
    pub fn new(suite: Suite, groups: Vec<Shape>, inputs: Inputs, why: &'static str) -> Self {
        let (activation, output) = (Activation::NvFp4, Output::F16);
        Self {
            suite,
            why,
            groups,
            gate: Gate::Silu,
            activation,
            output,
            precision: Precision::Exact,
            inputs,
            timed: !matches!(suite, Suite::Edge | Suite::Adverse | Suite::Fp8),
        }
    }

    /// What is computed.
    pub fn problem(&self) -> Result<Problem> {
        Problem::new(self.groups.clone(), self.gate, self.activation, self.output)?.with_precision(self.precision)
    }

    /// What backends get to compute: tokens that are multiplied with an input scale first are single precision then.
    pub fn computed_problem(&self) -> Result<Problem> {
        let activation = if self.is_scaled() { Activation::F32 } else { self.activation };
        Problem::new(self.groups.clone(), self.gate, activation, self.output)?.with_precision(self.precision)
    }

    /// Whether some of its weights have an input scale. Quantised tokens cannot be multiplied with one.
    pub fn is_scaled(&self) -> bool {
        self.inputs == Inputs::InputScales && self.activation != Activation::NvFp4
    }

    /// Whether some of its weights have biases.
    pub fn is_biased(&self) -> bool {
        self.inputs == Inputs::Biases
    }

    /// Whether the community's own tolerance, 10⁻³ absolute and relative, is asked for beside ours.
    pub fn is_community(&self) -> bool {
        matches!(self.inputs, Inputs::CommunityDual | Inputs::CommunityGroup)
    }

    /// The operands, from a seed.
    pub fn instance(&self, seed: u64) -> Result<Instance> {
        let problem = self.problem()?;
        let mut rng = Rng::with_seed(seed);
        let (mut activations, mut weights) = (Vec::new(), Vec::new());
        for shape in &self.groups {
            let alpha = self.inputs.alpha(self.activation, shape.k);
            activations.push(match self.activation {
                Activation::NvFp4 => self.inputs.matrix(&mut rng, shape.m, shape.k, 0.5, true)?.into(),
                dense => self.inputs.dense(&mut rng, shape.m, shape.k, dense)?.into(),
            });
            let gate = self.inputs.matrix(&mut rng, shape.n, shape.k, alpha, false)?;
            let group = if self.gate.matrices() == 1 {
                Weights::plain(gate)
            } else {
                let apart = if self.inputs == Inputs::GlobalsApart { 10.0 } else { 1.25 };
                Weights::gated(gate, self.inputs.matrix(&mut rng, shape.n, shape.k, apart * alpha, false)?)?
            };
            let every_other = weights.len().is_multiple_of(2);
            weights.push(if self.is_biased() && every_other {
                let mut bias = || (0..shape.n).map(|_| rng.f32() * 4.0 - 2.0).collect::<Vec<f32>>();
                let biases: Vec<_> = (0..self.gate.matrices()).map(|_| bias()).collect();
                group.with_bias(biases)?
            } else if self.is_scaled() && every_other {
                let factors: Vec<f32> = (0..shape.k).map(|_| 2f32.powf(rng.f32() * 6.0 - 3.0)).collect();
                group.with_input_scale(factors)?
            } else {
                group
            });
        }
        Ok(Instance { activations, weights, problem })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problem() {
            Ok(problem) => write!(f, "{problem}")?,
            Err(error) => write!(f, "{error}")?,
        }
        write!(f, " {}", self.activation)?;
        if self.precision == Precision::Fp8 {
            write!(f, " in fp8")?;
        }
        if self.gate != Gate::Silu {
            write!(f, " {}", self.gate)?;
        }
        write!(f, "→{}", self.output)
    }
}

/// The largest scale of MXFP4 weights, 2⁸.
const LARGEST_POWER: u8 = 135;

impl Inputs {
    /// How many powers of two the scales of MXFP4 weights span, if weights are such.
    fn powers(self) -> Option<u8> {
        match self {
            Inputs::PowersOfTwo => Some(18),
            Inputs::ManyPowers => Some(40),
            _ => None,
        }
    }

    /// The global scale of the gate matrix; the activations' is ½ where they are quantised.
    pub(crate) fn alpha(self, activation: Activation, k: usize) -> f32 {
        match self {
            Inputs::Realistic
            | Inputs::GlobalsApart
            | Inputs::OneSign
            | Inputs::InputScales
            | Inputs::Biases
            | Inputs::Outliers => {
                // Root mean squares: of a code 2.93, of a scale as drawn below 1.69, of a dense activation 1.
                let weight = 2.93 * 1.69;
                let token = if activation == Activation::NvFp4 { weight * 0.5 } else { 1.0 };
                1.0 / (token * weight * (k as f32).sqrt())
            }
            // The root mean square of a scale is close to the largest one's share.
            Inputs::PowersOfTwo | Inputs::ManyPowers => {
                let token = if activation == Activation::NvFp4 { 2.93 * 1.69 * 0.5 } else { 1.0 };
                1.0 / (token * 2.93 * 60.0 * (k as f32).sqrt())
            }
            Inputs::Stagnant => 2f32.powi(-20),
            _ => 1.0,
        }
    }

    pub(crate) fn matrix(
        self,
        rng: &mut Rng,
        rows: usize,
        k: usize,
        global: f32,
        of_tokens: bool,
    ) -> Result<Matrix<'static>> {
        let mut codes = vec![0u8; rows * k / 2];
        rng.fill(&mut codes);
        let mut scales = vec![0u8; rows * k / BLOCK];
        rng.fill(&mut scales);
        let mut global = global;
        if let Some(powers) = self.powers().filter(|_| !of_tokens) {
            scales.truncate(rows * k / MX_BLOCK);
            scales.iter_mut().for_each(|s| *s = LARGEST_POWER - *s % powers);
            return Ok(Matrix::mx(rows, k, codes, &scales, global)?);
        }
        match self {
            Inputs::CommunityDual => {
                mask(&mut codes, 0xBB, 0);
                let uniform: Vec<u8> = (0..=255u8).map(|x| e4m3::encode(f32::from(x) / 256.0).unwrap_or(0)).collect();
                scales.iter_mut().for_each(|s| *s = uniform[usize::from(*s)]);
                global = 1.0;
            }
            Inputs::CommunityGroup => {
                mask(&mut codes, 0xBB, 0);
                scales.iter_mut().for_each(|s| *s = if *s & 1 == 0 { 0x38 } else { 0x40 });
                global = 1.0;
            }
            // Exponents 5 to 8 of bias 7: scales from ¼ to just under 4.
            Inputs::Realistic
            | Inputs::GlobalsApart
            | Inputs::InputScales
            | Inputs::Biases
            | Inputs::Outliers
            | Inputs::PowersOfTwo
            | Inputs::ManyPowers => {
                scales.iter_mut().for_each(|s| *s = 0x28 + (*s & 0x1F));
            }
            Inputs::OneSign => {
                scales.iter_mut().for_each(|s| *s = 0x28 + (*s & 0x1F));
                // Rows alternate, so that there are sums below zero too.
                let row_bytes = k / 2;
                codes.iter_mut().enumerate().for_each(|(at, code)| {
                    *code = *code & 0x77 | if at / row_bytes % 2 == 1 { 0x88 } else { 0 };
                });
            }
            Inputs::Stagnant => stagnant(&mut codes, &mut scales, k, of_tokens),
            Inputs::HardScales => scales.iter_mut().filter(|s| e4m3::is_nan(**s)).for_each(|s| *s = 0),
            Inputs::Integers => {
                mask(&mut codes, 0xEE, 0);
                scales.fill(0x38);
            }
            Inputs::Zero => {
                codes.fill(0);
                scales.fill(0);
            }
            Inputs::Maximal => {
                mask(&mut codes, 0x88, 0x77);
                scales.fill(0x7E);
            }
            Inputs::SmallestScales => scales.fill(0x01),
            Inputs::NegativeZero => mask(&mut codes, 0x88, 0),
        }
        if self == Inputs::NegativeZero {
            scales.iter_mut().filter(|s| e4m3::is_nan(**s)).for_each(|s| *s = 0x38);
        }
        Ok(Matrix::new(rows, k, codes, scales, global)?)
    }

    pub(crate) fn dense(self, rng: &mut Rng, rows: usize, k: usize, element: Activation) -> Result<Dense<'static>> {
        let values: Vec<f32> = (0..rows * k).map(|at| self.value(rng, at / k, at % k)).collect();
        Ok(Dense::new(rows, k, rounded(&values, element), 1.0)?)
    }

    fn value(self, rng: &mut Rng, row: usize, column: usize) -> f32 {
        let normal = normal(rng);
        match self {
            Inputs::Zero => 0.0,
            Inputs::Outliers if row % 5 == 4 => 0.0,
            Inputs::Outliers if column == row % BLOCK => normal * 2f32.powi(20),
            Inputs::NegativeZero => 0f32.copysign(normal),
            Inputs::Integers => (normal * 200.0).round().clamp(-1000.0, 1000.0),
            Inputs::Maximal => 65504f32.copysign(normal),
            // A token whose channels differ by factors of a thousand, as real ones do.
            Inputs::HardScales => normal * [1e-3, 1.0, 1.0, 30.0][rng.usize(..4)],
            Inputs::SmallestScales => normal * 1e-4,
            Inputs::OneSign => normal.abs().copysign(if row % 2 == 1 { -1.0 } else { 1.0 }),
            Inputs::Stagnant if column < BLOCK => [LARGE, 0.0][column.min(1)],
            Inputs::Stagnant => SMALL_TOKENS[row % 2].1,
            _ => normal,
        }
    }
}

/// Twelve uniform numbers less six: near enough to a normal one, with every bit in use.
pub(crate) fn normal(rng: &mut Rng) -> f32 {
    (0..12).map(|_| rng.f32()).sum::<f32>() - 6.0
}

/// Numbers as tokens of a type.
pub(crate) fn rounded(values: &[f32], element: Activation) -> Values<'static> {
    match element {
        Activation::F16 => values.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>().into(),
        Activation::BF16 => values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>().into(),
        _ => values.to_vec().into(),
    }
}

/// 2¹⁰, as a code and a scale: the operands of the large product.
const LARGE: f32 = 1024.0;
const LARGE_CODE: u8 = 6;
const LARGE_SCALE: u8 = 0x78;
/// The small tokens of even and odd rows, 15/16 and 27/32: each 1½ times a scale.
const SMALL_TOKENS: [(u8, f32); 2] = [(0x32, 0.9375), (0x31, 0.84375)];
const SMALL_TOKEN_CODE: u8 = 0x33;
/// Two weights of 1 and their scale of 2⁻⁴.
const SMALL_WEIGHT: (u8, u8) = (0x22, 0x18);

/// The operands of [`Inputs::Stagnant`]: a block with one large element, then small ones. Every other column is
/// negative.
fn stagnant(codes: &mut [u8], scales: &mut [u8], k: usize, of_tokens: bool) {
    let rows = codes.chunks_exact_mut(k / 2).zip(scales.chunks_exact_mut(k / BLOCK)).enumerate();
    for (row, (codes, scales)) in rows {
        let (code, scale) = if of_tokens { (SMALL_TOKEN_CODE, SMALL_TOKENS[row % 2].0) } else { SMALL_WEIGHT };
        codes.fill(code);
        scales.fill(scale);
        codes[..BLOCK / 2].fill(0);
        (codes[0], scales[0]) = (LARGE_CODE, LARGE_SCALE);
        if !of_tokens && row % 2 == 1 {
            mask(codes, 0xFF, 0x88);
        }
    }
}

/// Keeps some bits and sets others.
fn mask(bytes: &mut [u8], keep: u8, set: u8) {
    bytes.iter_mut().for_each(|byte| *byte = *byte & keep | set);
}

fn ragged(m: &[usize], n: usize, k: usize) -> Vec<Shape> {
    m.iter().map(|&m| Shape::new(m, n, k)).collect()
}

fn dual() -> Vec<Case> {
    let timed = [(256, 4096, 7168), (512, 4096, 7168), (256, 3072, 4096), (512, 3072, 7168)];
    let checked = [
        (1536, 512, 7168),
        (256, 512, 256),
        (3072, 1024, 1536),
        (7168, 1024, 256),
        (7168, 2304, 2048),
        (4608, 384, 7168),
        (7168, 384, 2304),
        (512, 768, 7168),
        (4096, 768, 512),
    ];
    let case = |(m, n, k), timed, why| Case {
        timed,
        ..Case::new(Suite::Dual, vec![Shape::new(m, n, k)], Inputs::CommunityDual, why)
    };
    let timed = timed.map(|shape| case(shape, true, "the community's benchmark of the dual GEMM"));
    let checked = checked.map(|shape| case(shape, false, "the community's correctness test of the dual GEMM"));
    [timed.as_slice(), checked.as_slice()].concat()
}

fn group() -> Vec<Case> {
    let case = |groups, timed, why| Case { timed, ..Case::new(Suite::Group, groups, Inputs::CommunityGroup, why) };
    let benchmark = "the community's benchmark of the grouped GEMM";
    let check = "the community's correctness test of the grouped GEMM: every group its own n or k";
    let zip = |m: &[usize], n: &[usize], k: &[usize]| -> Vec<Shape> {
        m.iter().zip(n).zip(k).map(|((&m, &n), &k)| Shape::new(m, n, k)).collect()
    };
    vec![
        case(ragged(&[80, 176, 128, 72, 64, 248, 96, 160], 4096, 7168), true, benchmark),
        case(ragged(&[40, 76, 168, 72, 164, 148, 196, 160], 7168, 2048), true, benchmark),
        case(ragged(&[192, 320], 3072, 4096), true, benchmark),
        case(ragged(&[128, 384], 4096, 1536), true, benchmark),
        case(zip(&[40, 56, 384, 512], &[512, 384, 256, 128], &[256; 4]), false, check),
        case(zip(&[64, 72, 96], &[128, 384, 512], &[512, 512, 256]), false, check),
    ]
}

fn decode() -> Vec<Case> {
    let why = "what serving needs: few tokens, so the weights' way from memory is everything";
    let case = |m| Case::new(Suite::Decode, vec![Shape::new(m, 4096, 7168)], Inputs::Realistic, why);
    [1, 4, 8, 16, 32, 64].map(case).to_vec()
}

fn edge() -> Vec<Case> {
    let one = |m, n, k, why| Case::new(Suite::Edge, vec![Shape::new(m, n, k)], Inputs::Realistic, why);
    let mut cases = vec![
        one(0, 40, 64, "no tokens: nothing is computed and nothing is touched"),
        one(1, 40, 64, "a single token"),
        one(15, 40, 64, "one token less than a matrix instruction's rows"),
        one(16, 40, 64, "exactly one matrix instruction's rows"),
        one(17, 40, 64, "one token more than a matrix instruction's rows"),
        one(40, 40, 64, "two and a half matrix instructions' rows"),
        one(127, 24, 64, "one token less than a common tile"),
        one(128, 24, 64, "exactly a common tile"),
        one(129, 24, 64, "one token more than a common tile"),
        one(5, 1, 64, "a single column"),
        one(5, 8, 64, "half a panel of columns"),
        one(5, 100, 64, "columns that no power of two divides"),
        one(5, 129, 64, "one column more than a common tile, and than a block of scales"),
        one(3, 33, 16, "a single block of K"),
        one(3, 33, 48, "K of three blocks: not a multiple of what matrix instructions take"),
        one(3, 33, 256, "K of a few chunks"),
        one(3, 33, 7168, "a long K: rounding errors have room to grow"),
        one(33, 65, 1040, "K of one block more than whole chunks, n and m of one more than whole panels"),
        one(
            104,
            32,
            448,
            "whole panels and chunks, and both too few for whole stretches of K and whole blocks of tokens",
        ),
    ];
    let mut groups = |groups: Vec<Shape>, why| cases.push(Case::new(Suite::Edge, groups, Inputs::Realistic, why));
    groups(
        vec![Shape::new(3, 40, 64), Shape::new(20, 17, 208), Shape::new(1, 129, 16)],
        "groups of unequal n and k: nothing may be taken from the first group",
    );
    groups(
        vec![Shape::new(7, 40, 64), Shape::new(0, 40, 64), Shape::new(18, 40, 64)],
        "a group without tokens among others: an expert that nobody chose",
    );
    groups(ragged(&[5, 75, 20], 32, 320), "groups of one, five and two matrix instructions' rows, all of whole panels");
    groups(ragged(&[0, 0], 24, 32), "only groups without tokens");

    let why = "a single matrix of three whole panels and five chunks: nothing may come in pairs";
    cases.push(Case { gate: Gate::None, ..one(70, 48, 320, why) });

    let special = [
        (Inputs::GlobalsApart, "gate and up global scales ten times apart: neither may stand in for the other"),
        (Inputs::HardScales, "every finite scale byte: subnormal, zero, largest and negative"),
        (Inputs::Integers, "whole numbers: every sum is exact, so nothing is forgiven"),
        (Inputs::Zero, "all zero: the result is exactly zero"),
        (Inputs::Maximal, "the largest codes and scales: the cast to half precision must come last"),
        (Inputs::SmallestScales, "the smallest subnormal scale: it may not be flushed to zero"),
        (Inputs::NegativeZero, "zeros of both signs"),
    ];
    for (inputs, why) in special {
        for activation in [Activation::NvFp4, Activation::F32] {
            let case = Case { inputs, activation, ..one(19, 37, 208, why) };
            cases.push(Case { output: Output::F32, ..case.clone() });
            cases.push(case);
        }
    }
    for (activation, gate) in
        Activation::ALL.into_iter().flat_map(|activation| [Gate::Silu, Gate::None].map(|gate| (activation, gate)))
    {
        let why = "MXFP4 weights, K of whole blocks of 32 and no more: every power of two that NVFP4 has, too";
        let inputs = Inputs::PowersOfTwo;
        cases.push(Case { inputs, activation, gate, output: Output::F32, ..one(19, 37, 224, why) });
    }
    for gate in Gate::ALL {
        for activation in Activation::ALL {
            for output in Output::ALL {
                let why = "every gate with every activation and output type";
                cases.push(Case { gate, activation, output, ..one(18, 35, 112, why) });
            }
        }
    }
    for activation in [Activation::F16, Activation::BF16, Activation::F32] {
        let why = "tokens times an input scale, in groups with one and without: it may be neither dropped nor taken from another";
        let groups = vec![Shape::new(20, 40, 208), Shape::new(3, 33, 64), Shape::new(0, 8, 32), Shape::new(9, 24, 48)];
        let case = Case::new(Suite::Edge, groups, Inputs::InputScales, why);
        cases.push(Case { activation, output: Output::F32, ..case });
    }
    for gate in Gate::ALL {
        for activation in [Activation::NvFp4, Activation::BF16, Activation::F32] {
            let why = "biases in groups with them and without, a last panel of one column: added once, to the right column of the right sum, before the gate";
            let groups = vec![Shape::new(20, 49, 208), Shape::new(3, 33, 64), Shape::new(9, 24, 48)];
            let case = Case::new(Suite::Edge, groups, Inputs::Biases, why);
            cases.push(Case { gate, activation, output: Output::F32, ..case });
        }
    }
    for (activation, m) in [(Activation::F16, 200), (Activation::BF16, 150), (Activation::F32, 100)] {
        let why = "dense activations over several tiles and a long K, exact to the bit";
        cases.push(Case { activation, inputs: Inputs::Integers, output: Output::F32, ..one(m, 50, 320, why) });
    }
    cases
}

fn adverse() -> Vec<Case> {
    let long = "a long K, in which errors that all go one way have room to grow";
    let short = "a short K, in which little is forgiven";
    let mut cases = Vec::new();
    for inputs in [Inputs::OneSign, Inputs::Stagnant] {
        for activation in Activation::ALL {
            for (gate, k, why) in [(Gate::None, 7168, long), (Gate::None, 208, short), (Gate::Silu, 1024, long)] {
                let case = Case::new(Suite::Adverse, vec![Shape::new(5, 36, k)], inputs, why);
                cases.push(Case { gate, activation, output: Output::F32, ..case });
            }
        }
    }
    cases
}

/// Products in FP8. Results of single precision, so that nothing hides in their rounding.
fn fp8() -> Vec<Case> {
    let case = |groups: &[[usize; 3]], activation, gate, inputs, why| {
        let groups = groups.iter().map(|&[m, n, k]| Shape::new(m, n, k)).collect();
        let (output, precision) = (Output::F32, Precision::Fp8);
        Case { activation, gate, output, precision, ..Case::new(Suite::Fp8, groups, inputs, why) }
    };
    let silu = |sides, activation, inputs, why| case(&[sides], activation, Gate::Silu, inputs, why);
    let plain = |sides, activation, inputs, why| case(&[sides], activation, Gate::None, inputs, why);
    let (f16, bf16, f32) = (Activation::F16, Activation::BF16, Activation::F32);
    let mut cases = vec![
        silu([19, 72, 128], f16, Inputs::Realistic, "a tile and a rest of tokens and of columns"),
        silu([1, 40, 16], bf16, Inputs::Realistic, "one token, and half of what a multiplication takes of K"),
        silu([3, 33, 272], f32, Inputs::Realistic, "K of a stage and a rest, columns that are stored one by one"),
        plain([70, 130, 208], bf16, Inputs::Realistic, "one matrix: both rows of a fragment have its power of two"),
        plain([9, 64, 4112], f32, Inputs::Realistic, "rows so long that a thread rounds several steps of them"),
        plain([33, 64, 320], f16, Inputs::Integers, "whole numbers, which are rounded like all others"),
        silu([17, 64, 192], f16, Inputs::GlobalsApart, "global scales of gate and up that differ"),
        plain([17, 64, 192], f16, Inputs::HardScales, "scales from the smallest to the largest, also negative ones"),
        silu([17, 64, 192], f32, Inputs::HardScales, "the same of two matrices, with tokens of single precision"),
        plain([17, 64, 192], f32, Inputs::SmallestScales, "scales that no power of two brings to the largest"),
        silu([9, 64, 128], f32, Inputs::Zero, "rows without a largest magnitude, and weights without a scale"),
        silu([9, 64, 128], bf16, Inputs::NegativeZero, "zeros of both signs"),
        plain([9, 64, 128], f16, Inputs::Maximal, "the largest of all"),
        plain([11, 64, 256], f32, Inputs::Outliers, "one huge value in a row drowns the others; rows of zeros"),
        silu([11, 64, 256], bf16, Inputs::Outliers, "the same with a gate"),
        silu([17, 64, 224], bf16, Inputs::PowersOfTwo, "MXFP4 weights, of which the smaller ones round"),
        plain([5, 64, 1024], f16, Inputs::OneSign, "sums that grow, of which tensor cores cut some at every step"),
    ];
    let groups = [[5, 72, 128], [0, 40, 64], [33, 64, 208]];
    cases.push(case(&groups, bf16, Gate::GPT_OSS, Inputs::Biases, "ragged groups, one without tokens, with biases"));
    cases.push(case(
        &groups,
        f16,
        Gate::Silu,
        Inputs::InputScales,
        "tokens are multiplied, rounded, and rounded again",
    ));
    let nine: Vec<[usize; 3]> = (0..9).map(|group| [1 + group % 3, 40, 64 + 16 * group]).collect();
    cases.push(case(&nine, f16, Gate::Silu, Inputs::Realistic, "more groups than one launch rounds"));
    for m in [256, 512] {
        let timed = silu([m, 4096, 7168], bf16, Inputs::Realistic, "a prompt against a layer of DeepSeek-V3's size");
        cases.push(Case { output: Output::BF16, timed: true, ..timed });
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_a_legal_problem_with_a_reason() {
        for case in all().into_iter().chain(fp8()) {
            assert!(case.problem().is_ok(), "{case}");
            assert!(!case.why.is_empty());
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_numbers_and_another_seed_others() {
        let case = &edge()[4];
        let codes = |seed| case.instance(seed).unwrap().weights[0].gate().codes().to_vec();
        assert_eq!(codes(1), codes(1));
        assert_ne!(codes(1), codes(2));
    }

    #[test]
    fn gate_and_up_never_share_a_global_scale_where_it_is_not_one() {
        for case in edge().iter().filter(|c| c.gate.matrices() == 2) {
            let instance = case.instance(3).unwrap();
            for w in &instance.weights {
                assert_ne!(w.gate().global(), w.up().unwrap().global(), "{case}");
            }
        }
    }
}
