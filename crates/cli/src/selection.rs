//! Which problems `run`, `verify` and `bench` compute: cases of the suites, or shapes from the command line, with the
//! gate and the types that were asked for; for the suite `moe`, which models' layers of experts; and for the suite
//! `fp8-weights`, plain products with such weights.

use std::str::FromStr;

use clap::Args;
use hammerhead::{Activation, Gate, Output, Precision};
use serde::Serialize;
use testkit::cases::{self, Case, Inputs, Instance, Suite};
use testkit::fp8;
use testkit::moe::{self, Model};

use crate::options::each_once;
use crate::shapes::{self, Shapes};
use crate::{Error, Result, memory};

/// What stands in place of a suite's name where the shape was given.
const GIVEN: &str = "shape";

/// A suite by its name: problems of one product, whole layers of experts, or products with FP8 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuiteName {
    /// Problems.
    Of(Suite),
    /// Layers of experts as models have them.
    Moe,
    /// Plain products with FP8 weights.
    Fp8Weights,
}

impl SuiteName {
    const MOE: &'static str = "moe";
    /// The name of the products with FP8 weights.
    pub const FP8_WEIGHTS: &'static str = "fp8-weights";

    fn problems(self) -> Option<Suite> {
        match self {
            SuiteName::Of(suite) => Some(suite),
            SuiteName::Moe | SuiteName::Fp8Weights => None,
        }
    }
}

impl FromStr for SuiteName {
    type Err = hammerhead::Error;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            Self::MOE => Ok(SuiteName::Moe),
            Self::FP8_WEIGHTS => Ok(SuiteName::Fp8Weights),
            _ => name.parse().map(SuiteName::Of),
        }
    }
}

/// Which layers of experts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which layers of experts")]
pub struct Layers {
    /// Of the suite moe this model only, such as qwen3-30b-a3b; may be given several times [default: every model]
    #[arg(long, value_name = "NAME", value_parser = known_model)]
    pub model: Vec<String>,
}

/// A model that is in the list.
fn known_model(name: &str) -> Result<String, String> {
    let models = moe::models();
    match models.iter().any(|model| model.name == name) {
        true => Ok(name.to_owned()),
        false => Err(format!("known are {}", models.iter().map(|model| model.name).collect::<Vec<_>>().join(", "))),
    }
}

/// Which problems, made from a seed.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which problems")]
pub struct Selection {
    /// Each command has suites of its own for where nothing is said: see [`suite_help`].
    #[arg(long, value_name = "NAME")]
    pub suite: Vec<SuiteName>,
    /// A problem of these sizes, tokens x columns x K, or several groups of tokens against weights of one size; may be
    /// given several times, and beside --suite
    #[arg(long, value_name = shapes::SYNTAX)]
    pub shape: Vec<Shapes>,
    /// The gate: silu, silu:limit=10, gelu-tanh, gpt-oss (or gpt-oss:alpha=1.702,beta=1,limit=7); of a single product
    /// relu2 or none [default: each case's own, and silu for a shape]
    #[arg(long, value_name = "NAME")]
    pub gate: Option<Gate>,
    /// The tokens' type: nvfp4, f16, bf16 or f32; may be given several times [default: each case's own, and
    /// nvfp4 for a shape]
    #[arg(long, value_name = "TYPE")]
    pub activation: Vec<Activation>,
    /// The element type of the result: f16, bf16 or f32 [default: each case's own, and f16 for a shape]
    #[arg(long = "result", value_name = "TYPE")]
    pub out: Option<Output>,
    /// What dense tokens and weights are rounded to before they are multiplied: exact (nothing) or fp8, which changes
    /// results and is for Hopper GPUs [default: each case's own, and exact for a shape]
    #[arg(long, value_name = "NAME")]
    pub precision: Option<Precision>,
    /// The seed that the numbers are made from
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// The help of `--suite` in a command that takes these where neither suites nor shapes are named.
pub fn suite_help(default: &str) -> String {
    format!(
        "Problems of this suite: dual, group, decode, edge, adverse or fp8, moe for whole layers of experts, or (to verify) fp8-weights for plain products with those; may be given several times [default: {default}; none if a shape is given]"
    )
}

/// What a command takes where nothing else is said.
#[derive(Clone, Copy, Debug)]
pub struct Defaults<'a> {
    /// The suites, where neither suites nor shapes are named.
    pub suites: &'a [Suite],
    /// The tokens' types; none: each case's own.
    pub activations: &'a [Activation],
    /// Whether cases that are not there for their speed are left out.
    pub timed: bool,
}

/// A problem that was chosen.
#[derive(Clone, Debug)]
pub struct Chosen {
    pub origin: Origin,
    pub case: Case,
}

/// Where a problem comes from.
#[derive(Clone, Debug, Serialize)]
pub struct Origin {
    /// The suite, or what stands in place of one.
    pub suite: String,
    /// Why it is computed.
    pub why: &'static str,
}

impl Selection {
    /// Every problem that is meant, each once.
    pub fn cases(&self, defaults: Defaults<'_>) -> Result<Vec<Chosen>> {
        let suites = match self.suite.is_empty() && self.shape.is_empty() {
            true => defaults.suites.to_vec(),
            false => each_once(&self.suite).into_iter().filter_map(SuiteName::problems).collect(),
        };
        let listed = suites.iter().flat_map(|&suite| cases::suite(suite)).filter(|c| c.timed || !defaults.timed);
        let mut found: Vec<Case> = listed.collect();
        if found.is_empty() && !suites.is_empty() {
            let suites = suites.iter().map(Suite::to_string).collect::<Vec<_>>().join(", ");
            return Err(Error::NoCases { suites });
        }
        let from_suites = found.len();
        found.extend(each_once(&self.shape).into_iter().map(given));
        let mut chosen: Vec<Chosen> = Vec::new();
        for (index, case) in found.iter().enumerate() {
            let suite = if index < from_suites { case.suite.to_string() } else { GIVEN.to_owned() };
            for case in self.altered(case, defaults.activations) {
                if !chosen.iter().any(|other| same(&other.case, &case)) {
                    let origin = Origin { suite: suite.clone(), why: case.why };
                    chosen.push(Chosen { origin, case });
                }
            }
        }
        Ok(chosen)
    }

    /// Refuses the suite that is only verified.
    pub fn expect_timed(&self) -> Result<()> {
        match self.suite.contains(&SuiteName::Fp8Weights) {
            false => Ok(()),
            true => Err(Error::OnlyVerified { suite: SuiteName::FP8_WEIGHTS }),
        }
    }

    /// The products with FP8 weights that are meant, if any are. Their cases have types and numbers of their own.
    pub fn linears(&self) -> Result<Vec<fp8::Case>> {
        if !self.suite.contains(&SuiteName::Fp8Weights) {
            return Ok(Vec::new());
        }
        let asked = [
            ("--gate", self.gate.is_some()),
            ("--activation", !self.activation.is_empty()),
            ("--result", self.out.is_some()),
            ("--precision", self.precision.is_some()),
            ("--seed", self.seed != 0),
        ];
        match asked.into_iter().find(|(_, asked)| *asked) {
            None => Ok(fp8::cases()),
            Some((option, _)) => Err(Error::SuiteOption { option, suite: SuiteName::FP8_WEIGHTS }),
        }
    }

    /// The models whose layers are meant, if any are.
    pub fn models(&self, layers: &Layers) -> Result<Vec<Model>> {
        if !self.suite.contains(&SuiteName::Moe) {
            let option = layers.model.first().map(|_| "--model");
            return option
                .map_or(Ok(Vec::new()), |option| Err(Error::LayerOption { option, remedy: "add --suite moe" }));
        }
        if self.gate.is_some() {
            return Err(Error::LayerOption { option: "--gate", remedy: "models have their own: leave it out" });
        }
        if self.activation.contains(&Activation::NvFp4) {
            return Err(Error::LayerOption { option: "--activation nvfp4", remedy: "layers take f16, bf16 or f32" });
        }
        let asked = |model: &Model| layers.model.is_empty() || layers.model.iter().any(|name| name == model.name);
        Ok(moe::models().into_iter().filter(asked).collect())
    }

    /// A case with the gate and the types that were asked for, once for each type of tokens.
    fn altered(&self, case: &Case, activations: &[Activation]) -> Vec<Case> {
        let activations = if self.activation.is_empty() { activations } else { &self.activation };
        let activations = if activations.is_empty() { &[case.activation] } else { activations };
        let (gate, output) = (self.gate.unwrap_or(case.gate), self.out.unwrap_or(case.output));
        let precision = self.precision.unwrap_or(case.precision);
        let altered = |activation: Activation| {
            // The community's numbers, and its tolerance, are meant for its own tokens and gate.
            let theirs = (activation, gate, precision) == (case.activation, case.gate, case.precision);
            let inputs = if case.is_community() && !theirs { Inputs::Realistic } else { case.inputs };
            Case { gate, activation, output, precision, inputs, ..case.clone() }
        };
        each_once(activations).into_iter().map(altered).collect()
    }
}

impl Chosen {
    /// The numbers, if there is memory for them, for packed weights and for results beside each other.
    pub fn instance(&self, seed: u64) -> Result<Instance> {
        let problem = self.case.problem()?;
        let tokens = |m: usize, k: usize| {
            // Dense tokens are made as f32 first. Whoever computes has tokens of its own.
            let made = if problem.activation() == Activation::NvFp4 { 0.0 } else { 4.0 * m as f64 * k as f64 };
            made + 2.0 * m as f64 * problem.activation().row_bytes(k) as f64
        };
        let results = |m: usize, n: usize| m as f64 * n as f64 * problem.output().bytes() as f64;
        let beside: f64 = problem.groups().iter().map(|s| tokens(s.m, s.k) + results(s.m, s.n)).sum();
        let needed = 2.0 * shapes::weight_bytes(&problem, |_| true) + beside;
        memory::require(
            needed,
            format!("the problem {problem}"),
            "make it smaller, or take a machine with more memory",
        )?;
        Ok(self.case.instance(seed)?)
    }
}

/// A case of sizes that were given.
fn given(Shapes(groups): Shapes) -> Case {
    Case {
        // What a report says of it is in `Chosen`; a case has to be of some suite.
        suite: Suite::Edge,
        why: "a shape that was asked for",
        groups,
        gate: Gate::Silu,
        activation: Activation::NvFp4,
        output: Output::F16,
        precision: Precision::Exact,
        inputs: Inputs::Realistic,
        timed: true,
    }
}

/// Whether two cases compute the same with the same numbers.
fn same(one: &Case, other: &Case) -> bool {
    let key = |case: &Case| (case.gate, case.activation, case.output, case.precision, case.inputs);
    one.groups == other.groups && key(one) == key(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection() -> Selection {
        Selection {
            suite: Vec::new(),
            shape: Vec::new(),
            gate: None,
            activation: Vec::new(),
            out: None,
            precision: None,
            seed: 0,
        }
    }

    const DEFAULTS: Defaults<'_> = Defaults { suites: &[Suite::Dual], activations: &[], timed: true };

    #[test]
    fn shapes_stand_in_place_of_the_default_suites_and_beside_named_ones() {
        let shape: Vec<Shapes> = vec!["3,5x40x64".parse().unwrap(); 2];
        let chosen = Selection { shape: shape.clone(), ..selection() }.cases(DEFAULTS).unwrap();
        assert_eq!(
            chosen.iter().map(|c| c.origin.suite.as_str()).collect::<Vec<_>>(),
            [GIVEN],
            "once, though given twice"
        );
        assert_eq!(chosen[0].case.to_string(), "[3,5]×40×64 nvfp4→f16");
        let suite = vec![SuiteName::Of(Suite::Decode)];
        let chosen = Selection { suite, shape, ..selection() }.cases(DEFAULTS).unwrap();
        assert_eq!(chosen.len(), cases::suite(Suite::Decode).len() + 1);
        assert_eq!(selection().cases(DEFAULTS).unwrap().len(), 4, "the default's timed cases");
        let (suite, shape) = (vec![SuiteName::Of(Suite::Edge)], vec!["1x1x16".parse().unwrap()]);
        assert!(Selection { suite, shape, ..selection() }.cases(DEFAULTS).is_err(), "a suite without a timed case");
    }

    #[test]
    fn models_are_chosen_by_name_and_only_with_their_suite() {
        let all = || Selection { suite: vec![SuiteName::Moe], ..selection() };
        let layers = |names: &[&str]| Layers { model: names.iter().map(|&name| name.to_owned()).collect() };
        assert_eq!(all().models(&layers(&[])).unwrap().len(), moe::models().len());
        assert_eq!(all().models(&layers(&["glm-4.5"])).unwrap()[0].name, "glm-4.5");
        assert!(all().cases(DEFAULTS).unwrap().is_empty(), "no problems beside them");
        assert!(selection().models(&layers(&[])).unwrap().is_empty());
        assert!(selection().models(&layers(&["glm-4.5"])).is_err());
        assert!(Selection { gate: Some(Gate::Silu), ..all() }.models(&layers(&[])).is_err());
        assert!(known_model("glm-9").is_err_and(|error| error.contains("glm-4.5")));
    }

    #[test]
    fn gate_and_types_replace_a_case_s_own_and_leave_no_case_twice() {
        let asked = Selection {
            suite: vec![SuiteName::Of(Suite::Edge)],
            gate: Some(Gate::GeluTanh),
            activation: vec![Activation::F16, Activation::BF16, Activation::F16],
            out: Some(Output::F32),
            ..selection()
        };
        let chosen = asked.cases(Defaults { timed: false, ..DEFAULTS }).unwrap();
        assert!(chosen.iter().all(|c| (c.case.gate, c.case.output) == (Gate::GeluTanh, Output::F32)));
        assert!(chosen.iter().any(|c| c.case.inputs == Inputs::HardScales && c.case.activation == Activation::BF16));
        for (index, one) in chosen.iter().enumerate() {
            assert!(chosen[..index].iter().all(|other| !same(&one.case, &other.case)), "{}", one.case);
        }
    }

    #[test]
    fn the_communitys_tolerance_is_asked_for_with_the_communitys_tokens_and_gate_only() {
        let community = |asked: Selection| asked.cases(DEFAULTS).unwrap()[0].case.is_community();
        assert!(community(Selection { activation: vec![Activation::NvFp4], gate: Some(Gate::Silu), ..selection() }));
        assert!(!community(Selection { activation: vec![Activation::F16], ..selection() }));
        assert!(!community(Selection { gate: Some(Gate::None), ..selection() }));
    }

    #[test]
    fn a_problem_beyond_this_machine_s_memory_is_refused_before_it_is_made() {
        let shape = vec!["1x16777216x1048576".parse().unwrap()];
        let chosen = Selection { shape, ..selection() }.cases(DEFAULTS).unwrap();
        if memory::free().is_some() {
            let error = chosen[0].instance(0).unwrap_err().to_string();
            assert!(error.contains("1×16777216×1048576") && error.contains("smaller"), "{error}");
        }
    }
}
