//! A problem of the dual GEMM as the referee asks it: its numbers by name, and what should come out of them.
//!
//! Results are judged against the float64 reference under the derived bound: every element up to 2³⁰ products, and
//! beyond that on rows and columns that are drawn, with every element on the [`Yardstick`] besides.

use std::sync::{Arc, OnceLock};

use fastrand::Rng;
use half::{bf16, f16};
use hammerhead::bound::Bounded;
use hammerhead::format::{Dense, Matrix, Scaling, Values};
use hammerhead::reference::Reference;
use hammerhead::{Activations, Arithmetic, Output, Shape, Team, Weights, cpu};
use referee::task::{Bundle, Element, Expected, Found, Spec, Task, Tensor, Timed, Work};
use referee::{Error, Result};
use serde_json::Value;
use testkit::cases::{Case, Instance};
use testkit::verify::{self, Report};

use super::operands::ProblemText;
use super::yardstick::{Measured, Yardstick};

/// Products beyond which the reference looks at drawn rows and columns only, and the yardstick at the rest.
const EXHAUSTIVE: f64 = (1u64 << 30) as f64;

/// The weights of a layer, a group each, and what the yardstick has measured of them, once it was asked.
struct LayerWeights {
    weights: Vec<Weights<'static>>,
    measured: OnceLock<Vec<Vec<Measured>>>,
}

/// Tokens of an input, a group each.
type Tokens = Vec<Activations<'static>>;

/// What judging takes: threads for the reference, and a backend of our own.
#[derive(Debug)]
pub struct Workshop {
    threads: Team,
    yardstick: Yardstick,
}

impl Workshop {
    /// All threads of this machine, and its best backend.
    pub fn new() -> Result<Self> {
        Ok(Self { threads: cpu::team(None)?, yardstick: Yardstick::new()? })
    }
}

/// A case as a task.
pub fn task(case: Case) -> Result<Arc<dyn Task>> {
    Ok(with(case, &Arc::new(Workshop::new()?)))
}

/// Cases as tasks.
pub fn tasks(cases: &[Case]) -> Result<Vec<Arc<dyn Task>>> {
    let workshop = Arc::new(Workshop::new()?);
    Ok(cases.iter().map(|case| with(case.clone(), &workshop)).collect())
}

pub(super) fn with(case: Case, workshop: &Arc<Workshop>) -> Arc<dyn Task> {
    Arc::new(GemmTask { case, workshop: Arc::clone(workshop) })
}

struct GemmTask {
    case: Case,
    workshop: Arc<Workshop>,
}

impl GemmTask {
    /// Those bytes as matrices.
    fn results(&self, output: &[Vec<u8>]) -> Result<Vec<Dense<'static>>> {
        let dense = |(shape, bytes): (&Shape, &Vec<u8>)| {
            let values = values(bytes, self.case.output);
            Ok(Dense::new(shape.m, shape.n, values, 1.0).map_err(hammerhead::Error::from)?)
        };
        self.case.groups.iter().zip(output).map(dense).collect()
    }

    /// The global scales of its tokens, which are the same whatever the seed.
    fn globals(&self) -> hammerhead::Result<Vec<f64>> {
        let groups = self.case.groups.iter().map(|s| Shape::new(s.m.min(1), 1, s.k)).collect();
        let tokens = Case { groups, ..self.case.clone() }.instance(0)?.activations;
        let global = |tokens: &Activations<'static>| match tokens {
            Activations::NvFp4(matrix) => matrix.global().value(),
            Activations::Dense(dense) => dense.global().value(),
        };
        Ok(tokens.iter().map(global).collect())
    }

    fn instance(&self, constants: &Bundle, input: &Bundle) -> Result<Instance> {
        let (weights, activations) = (weights_of(constants)?.weights.clone(), tokens_of(input)?.clone());
        Ok(Instance { activations, weights, problem: self.case.problem()? })
    }
}

fn weights_of(constants: &Bundle) -> Result<&LayerWeights> {
    constants.made_from().ok_or_else(|| Error::Protocol { reason: "these constants are no weights".to_owned() })
}

fn tokens_of(input: &Bundle) -> Result<&Tokens> {
    input.made_from().ok_or_else(|| Error::Protocol { reason: "this input is no tokens".to_owned() })
}

impl Task for GemmTask {
    fn name(&self) -> String {
        self.case.to_string()
    }

    fn numbers(&self) -> String {
        format!("{:?}", self.case.inputs)
    }

    fn operation(&self) -> String {
        super::NAME.to_owned()
    }

    fn work(&self) -> Work {
        let matrices = self.case.gate.matrices();
        let weights = self.case.groups.iter().map(|s| (matrices * s.n * (s.k / 2 + s.k / 16)) as f64).sum();
        let (flops, bytes) = self.case.problem().map_or((None, 0.0), |p| (Some(p.flops()), p.bytes()));
        Work { flops, bytes, constant_bytes: weights }
    }

    fn outputs(&self) -> Vec<Spec> {
        let group =
            |(index, s): (usize, &Shape)| Spec::new(format!("c.{index}"), element(self.case.output), [s.m, s.n]);
        self.case.groups.iter().enumerate().map(group).collect()
    }

    fn constants(&self, seed: u64) -> Result<Bundle> {
        let weights = self.case.instance(seed)?.weights;
        if weights.iter().any(|weights| weights.input_scale().is_some()) {
            let reason = "weights with an input scale have no words in it; judge the layer without, on tokens that are multiplied";
            return Err(Error::Protocol { reason: reason.to_owned() });
        }
        let mut tensors = Vec::new();
        for (group, weights) in weights.iter().enumerate() {
            for (name, matrix) in ["gate", "up"].into_iter().zip(weights.matrices()) {
                tensors.extend(matrix_tensors(&format!("{name}.{group}"), matrix)?);
            }
        }
        Ok(Bundle::new(tensors).meaning(LayerWeights { weights, measured: OnceLock::new() }))
    }

    /// Tokens of the same case with a single column: weights are not wanted again.
    fn input(&self, seed: u64) -> Result<Bundle> {
        let groups = self.case.groups.iter().map(|s| Shape::new(s.m, 1, s.k)).collect();
        let tokens = Case { groups, ..self.case.clone() }.instance(seed)?.activations;
        let mut tensors = Vec::new();
        for (group, tokens) in tokens.iter().enumerate() {
            match tokens {
                Activations::NvFp4(matrix) => tensors.extend(code_tensors(&format!("a.{group}"), matrix)),
                Activations::Dense(dense) => tensors.push(dense_tensor(&format!("a.{group}"), dense)),
            }
        }
        Ok(Bundle::new(tensors).meaning(tokens))
    }

    fn expected(&self, constants: &Bundle, input: &Bundle, seed: u64) -> Result<Box<dyn Expected>> {
        let instance = self.instance(constants, input)?;
        let expected = verify::Expected::new(&instance, self.case.is_community(), seed, &self.workshop.threads);
        let task = GemmTask { case: self.case.clone(), workshop: Arc::clone(&self.workshop) };
        Ok(Box::new(ByReference { task, instance, expected }))
    }

    fn look(&self, run: &[Timed<'_>], elements: usize, lots: &mut Rng) -> Result<Found> {
        let case = &self.case;
        let mut look = Found::default();
        let kind = element(self.case.output);
        for _ in 0..elements {
            let Timed { constants, input, output } = run[lots.usize(..run.len())];
            let (tokens, LayerWeights { weights, .. }) = (tokens_of(input)?, weights_of(constants)?);
            let group = lots.usize(..tokens.len());
            let shape = case.groups[group];
            if shape.m == 0 {
                continue;
            }
            let (row, column) = (lots.usize(..shape.m), lots.usize(..shape.n));
            let reference = Reference::new(&tokens[group], &weights[group], case.gate);
            let element = reference.element(&reference.token(row), &reference.column(column));
            let at = (row * shape.n + column) * kind.bytes();
            let found = output.get(group).and_then(|bytes| bytes.get(at..at + kind.bytes()));
            let found = found.map_or(f64::NAN, |bytes| kind.values(bytes)[0]);
            let bounded = Bounded::new(&element, case.gate, shape.k, Arithmetic::Unknown);
            if !bounded.accepts(found, case.output) {
                let expected = element.value;
                look.wrong = Some(format!("group {group}, c[{row}, {column}] is {found}, not {expected}"));
                return Ok(look);
            }
            let ratio = (found - element.value) / bounded.allowed(case.output);
            if ratio.is_finite() {
                look.compared += 1;
                look.squares += ratio * ratio;
                look.worst = look.worst.max(ratio.abs());
            }
        }
        Ok(look)
    }

    fn look_whole(&self, timed: Timed<'_>) -> Result<Option<String>> {
        let (problem, results) = (self.case.problem()?, self.results(timed.output)?);
        let (yardstick, LayerWeights { weights, measured }) = (&self.workshop.yardstick, weights_of(timed.constants)?);
        let weights = match measured.get() {
            Some(measured) => measured,
            None => {
                let found = yardstick.measure(weights)?;
                measured.get_or_init(|| found)
            }
        };
        Ok(yardstick.check(&problem, tokens_of(timed.input)?, weights, &results)?)
    }

    fn described(&self) -> Value {
        let text = self.case.problem().and_then(|problem| Ok(ProblemText::new(&problem, self.globals()?)));
        text.ok().and_then(|text| serde_json::to_value(text).ok()).unwrap_or_default()
    }
}

/// What results of a type are.
pub(super) fn element(output: Output) -> Element {
    match output {
        Output::F16 => Element::F16,
        Output::BF16 => Element::Bf16,
        Output::F32 => Element::F32,
    }
}

/// A matrix of numbers, without its global scale.
pub(super) fn dense_tensor(name: &str, dense: &Dense<'_>) -> Tensor {
    let (element, bytes): (_, &[u8]) = match dense.values() {
        Values::F16(v) => (Element::F16, bytemuck::cast_slice(v)),
        Values::BF16(v) => (Element::Bf16, bytemuck::cast_slice(v)),
        Values::F32(v) => (Element::F32, bytemuck::cast_slice(v)),
    };
    Tensor { spec: Spec::new(name, element, [dense.rows(), dense.k()]), bytes: bytes.to_vec() }
}

/// A matrix as its codes, its block scales and its global scale, all of NVFP4.
pub(super) fn matrix_tensors(name: &str, matrix: &Matrix<'_>) -> Result<[Tensor; 3]> {
    let matrix = matrix.in_scaling(Scaling::NvFp4).map_err(hammerhead::Error::from)?;
    let [codes, scales] = code_tensors(name, &matrix);
    let global = Spec::new(format!("{name}.global"), Element::F64, [1]);
    Ok([codes, scales, Tensor { spec: global, bytes: matrix.global().value().to_le_bytes().to_vec() }])
}

/// A matrix as its codes and its block scales.
fn code_tensors(name: &str, matrix: &Matrix<'_>) -> [Tensor; 2] {
    let (rows, k) = (matrix.rows(), matrix.k());
    let tensor = |part: &str, width: usize, bytes: &[u8]| Tensor {
        spec: Spec::new(format!("{name}.{part}"), Element::U8, [rows, width]),
        bytes: bytes.to_vec(),
    };
    [tensor("codes", k / 2, matrix.codes()), tensor("scales", k / 16, matrix.scales())]
}

/// A result's numbers.
pub(super) fn values(bytes: &[u8], output: Output) -> Values<'static> {
    match output {
        Output::F16 => bytemuck::pod_collect_to_vec::<u8, f16>(bytes).into(),
        Output::BF16 => bytemuck::pod_collect_to_vec::<u8, bf16>(bytes).into(),
        Output::F32 => bytemuck::pod_collect_to_vec::<u8, f32>(bytes).into(),
    }
}

/// What the reference says, and the yardstick where that is not all.
struct ByReference {
    task: GemmTask,
    instance: Instance,
    expected: verify::Expected,
}

impl Expected for ByReference {
    fn check(&self, output: &[Vec<u8>]) -> Result<Found> {
        let results = self.task.results(output)?;
        let report: Report = self.expected.check(&results, Arithmetic::Unknown);
        let compared = report.compared as u64;
        let mut found = Found {
            wrong: None,
            compared,
            squares: report.rms_ratio * report.rms_ratio * compared as f64,
            worst: report.max_ratio,
        };
        if let Some(failure) = report.first {
            found.wrong = Some(format!("{failure}; {} of {compared} elements are wrong", report.failures));
        } else if products(&self.task.case.groups) > EXHAUSTIVE {
            let Instance { activations, weights, problem } = &self.instance;
            let yardstick = &self.task.workshop.yardstick;
            found.wrong = yardstick.check(problem, activations, &yardstick.measure(weights)?, &results)?;
        }
        Ok(found)
    }
}

fn products(groups: &[Shape]) -> f64 {
    groups.iter().map(|s| s.m as f64 * s.n as f64 * s.k as f64).sum()
}
