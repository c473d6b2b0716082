//! Plain products with FP8 weights: one list of cases, each with its reason, and the tester that every backend passes
//! on them.

use std::borrow::Cow;

use format::{Dense, Fp8Matrix, Fp8Scales, MX_BLOCK, Values, e4m3};
use half::{bf16, f16};
use hammerhead::cpu::{self, Fp8Panels};
use op::{Activation, Activations, Backend, Call, Config, Error, Gate, Output, Problem, Result, Shape, Target, Team};

/// How a case's weights are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// One number for the matrix.
    Matrix(f32),
    /// One number per row, each so many powers of two at most from 1, either way.
    Rows(i32),
    /// One number per block of these sides, drawn likewise.
    Blocks([usize; 2], i32),
    /// An exponent per 32 elements, which rows have in common up to so many powers of two, and rows up to as many more.
    Mx(i32, i32),
}

/// One product.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Tokens, columns of C, and the summed dimension.
    pub shape: [usize; 3],
    /// The scales.
    pub scaling: Scaling,
    /// The type of the tokens.
    pub activation: Activation,
    /// The type of C.
    pub output: Output,
    /// The size of the tokens, as a power of two.
    pub tokens: i32,
    /// Whether numbers are small integers, so that every sum is exact.
    pub exact: bool,
    /// Whether there is a bias.
    pub bias: bool,
    /// Why it is there.
    pub reason: &'static str,
}

/// Every case.
pub fn cases() -> Vec<Case> {
    use Activation::{BF16, F16, F32};
    use Scaling::{Blocks, Matrix, Mx, Rows};
    let case = |shape, scaling, activation, reason| Case {
        shape,
        scaling,
        activation,
        output: Output::F32,
        tokens: 0,
        exact: false,
        bias: false,
        reason,
    };
    let deepseek = Blocks([128, 128], 3);
    vec![
        case([1, 64, 256], Matrix(0.013), BF16, "one token, as models generate"),
        case([5, 40, 48], Rows(4), F16, "a last panel of eight columns, and K of three blocks, which fill no tile"),
        case([2, 1, 16], Rows(4), F32, "the smallest there is but for the tokens"),
        case([3, 200, 288], deepseek, BF16, "blocks of which the last are smaller, either way"),
        case([17, 64, 1024], deepseek, F16, "eight stretches of K, and one token more than a tile of AMX has rows"),
        case([4, 33, 192], Blocks([1, 64], 10), F32, "blocks of one row, half as long as a slab"),
        case([4, 32, 768], Blocks([64, 384], 2), BF16, "blocks three slabs long"),
        case([12, 48, 128], Mx(0, 3), BF16, "MXFP8 as it is written"),
        case([97, 32, 160], Mx(8, 3), F32, "MXFP8, one token more than a tile has, in three parts on AMX"),
        case([2, 32, 64], Mx(254, op::fp8::SPREAD), F32, "every exponent of MXFP8, and the widest rows that are taken"),
        case([3, 32, 64], Rows(120), F32, "rows that are 240 powers of two apart"),
        Case { tokens: 100, ..case([2, 16, 64], Matrix(1e-30), F32, "tokens whose products would leave f32") },
        Case { tokens: -110, ..case([2, 16, 64], Mx(0, 30), F32, "tokens whose products would be subnormal") },
        Case { exact: true, ..case([9, 48, 512], Matrix(0.25), BF16, "sums that are exact: any slip shows") },
        Case { exact: true, ..case([30, 20, 256], Blocks([16, 32], 2), F16, "the same with scales of blocks") },
        Case { exact: true, ..case([6, 20, 96], Mx(2, 1), F16, "the same with exponents") },
        Case { bias: true, ..case([7, 24, 64], Rows(1), BF16, "a bias is added behind the scales") },
        Case { output: Output::F16, bias: true, ..case([3, 24, 64], deepseek, F16, "results in half precision") },
        Case {
            output: Output::BF16,
            ..case([200, 24, 64], Mx(1, 1), BF16, "results in bf16, of three tiles of tokens")
        },
        case([0, 16, 16], Matrix(1.0), BF16, "no tokens"),
        case([33, 72, 208], Rows(3), F16, "as many tokens as Hopper's own kernels take, and K that ends in a unit"),
        case([70, 136, 320], Matrix(0.02), BF16, "a few columns more than two blocks of rows"),
        case([40, 100, 176], Rows(4), F32, "the same tokens in three parts"),
        case([65, 72, 224], Mx(6, 3), BF16, "MXFP8 with a last unit of one power of two"),
        case([45, 72, 480], deepseek, BF16, "scales of blocks that end within 128, for more tokens"),
        case([130, 136, 192], deepseek, F16, "the same for two tiles of them"),
        case([34, 66, 96], deepseek, F32, "the same in three parts, with rows that are no multiple of 16 bytes"),
        Case { exact: true, ..case([50, 80, 448], Rows(1), F16, "sums that are exact, for more tokens") },
        Case { exact: true, ..case([48, 72, 320], deepseek, BF16, "the same with scales of blocks") },
        Case { exact: true, ..case([39, 80, 352], Mx(3, 2), BF16, "the same with exponents") },
        Case {
            output: Output::BF16,
            bias: true,
            ..case([100, 264, 128], Rows(2), BF16, "a bias, and columns of a tile beyond the last")
        },
    ]
}

/// Numbers from a seed.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end
    }

    /// Between −1 and 1.
    fn number(&mut self) -> f32 {
        (self.next() % (1 << 24)) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Between −`range` and `range`.
    fn power(&mut self, range: i32) -> i32 {
        self.below(2 * range as usize + 1) as i32 - range
    }
}

impl Case {
    /// The weights.
    pub fn matrix(&self) -> Result<Fp8Matrix<'static>> {
        let [_, n, k] = self.shape;
        let mut draw = Draw(0x9E37_79B9_7F4A_7C15 ^ (n * k) as u64);
        let codes: Vec<u8> = (0..n * k)
            .map(|_| match self.exact {
                true => e4m3::encode(draw.below(9) as f32 - 4.0).unwrap_or(0),
                false => Some(draw.next() as u8).filter(|code| !e4m3::is_nan(*code)).unwrap_or(0),
            })
            .collect();
        let mut scales = |count: usize, range: i32| -> Cow<'static, [f32]> {
            let exact = self.exact;
            let number = |draw: &mut Draw| if exact { 1.0 } else { draw.number() };
            (0..count).map(|_| number(&mut draw) * 2f32.powi(draw.power(range))).collect::<Vec<_>>().into()
        };
        let scales = match self.scaling {
            Scaling::Matrix(scale) => Fp8Scales::Matrix(scale),
            Scaling::Rows(range) => Fp8Scales::Rows(scales(n, range)),
            Scaling::Blocks(block, range) => {
                let scales = scales(n.div_ceil(block[0]) * k.div_ceil(block[1]), range);
                Fp8Scales::Blocks { block, scales }
            }
            Scaling::Mx(rows, within) => {
                let mut exponents = Vec::new();
                for _ in 0..n {
                    // The least and the largest that a row may have are both drawn often.
                    let most = (127 + draw.power(127)).min(127 + rows / 2).max(127 - rows / 2).max(within).min(254);
                    exponents.extend((0..k / MX_BLOCK).map(|at| match at {
                        0 => most as u8,
                        1 => (most - within) as u8,
                        _ => (most - draw.below(within as usize + 1) as i32) as u8,
                    }));
                }
                Fp8Scales::Mx(exponents.into())
            }
        };
        Ok(Fp8Matrix::new(n, k, codes, scales)?)
    }

    /// The tokens.
    pub fn tokens(&self) -> Result<Dense<'static>> {
        let [m, _, k] = self.shape;
        let mut draw = Draw(0xD1B5_4A32_D192_ED03 ^ (m + k) as u64);
        let values: Vec<f32> = (0..m * k)
            .map(|_| match self.exact {
                true => draw.below(5) as f32 - 2.0,
                false => draw.number() * 2f32.powi(self.tokens + draw.power(6)),
            })
            .collect();
        let values: Values<'static> = match self.activation {
            Activation::F16 => values.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>().into(),
            Activation::BF16 => values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>().into(),
            _ => values.into(),
        };
        Ok(Dense::new(m, k, values, if self.exact { 1.0 } else { 0.75 })?)
    }

    /// The bias, if there is one.
    pub fn bias(&self) -> Option<Vec<f32>> {
        self.bias.then(|| (0..self.shape[1]).map(|column| column as f32 - 7.5).collect())
    }
}

/// A case's product as a problem of a backend that computes it like any other, with weights that were packed so.
pub fn problem(case: &Case, scaling: format::Scaling) -> Result<Problem> {
    let [m, n, k] = case.shape;
    let problem = Problem::new(vec![Shape::new(m, n, k)], Gate::None, case.activation, case.output)?;
    problem.with_scaling(scaling)
}

/// What a backend made of a case.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Results that were compared, and how many of them are wrong.
    pub compared: usize,
    /// See [`Checked::compared`].
    pub wrong: usize,
    /// How much of what it may be off by the worst result is off by.
    pub most: f64,
    /// The first that is wrong.
    pub first: Option<String>,
}

/// What one backend made of one case. GPUs take the configuration that should be the fastest.
pub fn verify(case: &Case, backend: &dyn Backend, team: &Team) -> Result<Checked> {
    verify_in(case, backend, None, team)
}

/// The same in a configuration of a GPU's.
pub fn verify_in(case: &Case, backend: &dyn Backend, config: Option<Config>, team: &Team) -> Result<Checked> {
    let (matrix, tokens, bias) = (case.matrix()?, case.tokens()?, case.bias());
    let [m, n, _] = case.shape;
    let mut found: Values<'static> = match case.output {
        Output::F16 => vec![f16::NAN; m * n].into(),
        Output::BF16 => vec![bf16::NAN; m * n].into(),
        Output::F32 => vec![f32::NAN; m * n].into(),
    };
    let mut targets = Target::all(std::slice::from_mut(&mut found));
    let activations: Activations<'_> = tokens.as_borrowed().into();
    if backend.layout() == cpu::LAYOUT {
        let packed = Fp8Panels::new(&matrix, bias.as_deref(), team)?;
        for target in targets.drain(..) {
            packed.run(backend.name(), &activations, target, team)?;
        }
    } else {
        let packed = backend.prepack_fp8(&matrix, bias.as_deref(), team)?;
        let problem = problem(case, packed.scaling())?;
        let config = config.map_or_else(|| cheapest(backend, &problem, team), Ok)?;
        let activations = std::slice::from_ref(&activations);
        Call::new((backend, config), &problem, packed.as_ref(), activations, &mut targets, team)?.run()?;
    }
    drop(targets);
    let found: Vec<f64> = match &found {
        Values::F16(c) => c.iter().map(|x| x.to_f64()).collect(),
        Values::BF16(c) => c.iter().map(|x| x.to_f64()).collect(),
        Values::F32(c) => c.iter().map(|&x| f64::from(x)).collect(),
    };
    let arithmetic = backend.arithmetic(case.activation);
    let adding = (arithmetic, backend.fp8_segments(matrix.scaling(), case.activation));
    let expected = op::fp8::bounded(&tokens, &matrix, bias.as_deref(), adding)?;
    let mut checked = Checked { compared: found.len(), wrong: 0, most: 0.0, first: None };
    for (at, (&found, expected)) in found.iter().zip(&expected).enumerate() {
        let (allowed, value) = (expected.allowed(case.output), expected.value);
        if expected.accepts(found, case.output) {
            let used = (found - value).abs() / allowed;
            checked.most = if used.is_finite() { checked.most.max(used) } else { checked.most };
            continue;
        }
        checked.wrong += 1;
        let (row, column) = (at / n, at % n);
        checked.first.get_or_insert_with(|| format!("row {row}, column {column} is {found}, not {value} ± {allowed}"));
    }
    Ok(checked)
}

/// Some of the configurations that a backend has for a case, as different as they are: none twice in tile, schedule and
/// depth.
pub fn configs(case: &Case, backend: &dyn Backend, team: &Team) -> Result<Vec<Config>> {
    let problem = problem(case, case.matrix()?.scaling())?;
    let mut kept: Vec<Config> = Vec::new();
    for config in backend.candidates(&problem, team.count()) {
        let how = |config: &Config| (config.schedule, config.epilogue, config.depth, config.strategy);
        let same = |other: &Config| other.tile == config.tile || how(other) == how(&config);
        if backend.legal(&problem, &config, team.count()).is_ok() && !kept.iter().any(same) {
            kept.push(config);
        }
    }
    Ok(kept)
}

/// The configuration that should be the fastest.
fn cheapest(backend: &dyn Backend, problem: &Problem, team: &Team) -> Result<Config> {
    let priced = backend.candidates(problem, team.count()).into_iter().filter_map(|config| {
        let cost = backend.check(problem, &config, team.count()).ok()?;
        Some((cost.seconds, config))
    });
    let best = priced.min_by(|(one, _), (other, _)| one.total_cmp(other));
    best.map(|(_, config)| config).ok_or_else(|| Error::Unavailable {
        backend: backend.name(),
        reason: format!("it has no configuration for {problem}"),
        remedy: "compute it with another backend".to_owned(),
    })
}
