//! One problem in a safetensors file.
//!
//! | tensor | type and shape | meaning |
//! |---|---|---|
//! | `a`, `b1`, `b2` | U8 `[rows, K/2]` | codes, even k in the low nibble |
//! | `a_scale`, `b1_scale`, `b2_scale` | F8_E4M3 `[rows, K/16]` | block scales |
//! | `a_global`, `b1_global`, `b2_global` | F32 `[]` or `[1]` | global scales that multiply; 1 if absent |
//! | `a_scale_2`, `b1_scale_2`, `b2_scale_2` | the same | the same under the names that `quantize` gives them |
//! | `a` | F16, BF16 or F32 `[M, K]` | or activations that are not quantised, without `a_scale` |
//!
//! Without `b2` it is a plain GEMM. A group is the same names prefixed `g0.`, `g1.`, …, and every group may have its
//! own sizes. A name that is none of these is refused: a scale under a misspelt name must not be taken for absent. The
//! result is `c`, or `g0.c`, …, `[M, N]`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use format::tensors::{self, Dtype, File, Tensor};
use format::{Dense, Matrix, Values};
use hammerhead::{Activations, Gate, Output, Problem, Shape, Weights};
use testkit::cases::Instance;

use crate::{Error, Result};

/// The names a group may have.
const PARTS: [&str; 12] = [
    "a",
    "a_scale",
    "a_scale_2",
    "a_global",
    "b1",
    "b1_scale",
    "b1_scale_2",
    "b1_global",
    "b2",
    "b2_scale",
    "b2_scale_2",
    "b2_global",
];

/// A problem, borrowing its weights from the file.
#[derive(Debug)]
pub struct ProblemFile<'a> {
    /// The file that the activations are in, for messages.
    pub path: PathBuf,
    /// What the names of each group begin with.
    pub prefixes: Vec<String>,
    /// A, one per group.
    pub activations: Vec<Activations<'a>>,
    /// B1 and B2, one pair per group.
    pub weights: Vec<Weights<'a>>,
    /// What joins them.
    pub gate: Gate,
}

impl<'a> ProblemFile<'a> {
    /// Reads a problem. Without a `gate` it is SiLU where there is a `b2`, and a plain GEMM where there is none.
    pub fn read(file: &'a File, gate: Option<Gate>) -> Result<Self> {
        let prefixes = prefixes(file)?;
        let gate = settle_gate(file, &prefixes, gate)?;
        let (mut activations, mut weights) = (Vec::new(), Vec::new());
        for prefix in &prefixes {
            let group = Group { file, prefix };
            if let Some(part) = ["a", "b1"].into_iter().find(|part| !file.contains(&group.name(part))) {
                return group.refuse(
                    part,
                    "it is missing",
                    "a problem needs a and b1, and b2 unless it is a plain GEMM",
                );
            }
            let b = group.weights(gate)?;
            let a = group.activations(&b)?;
            if let Some(first) = activations.first().map(Activations::element).filter(|first| *first != a.element()) {
                let problem = format!("its type is {}, but that of {:?} is {first}", a.element(), "g0.a");
                return group.refuse("a", problem, "give the activations of every group the same type");
            }
            activations.push(a);
            weights.push(b);
        }
        Ok(Self { path: file.path().to_path_buf(), prefixes, activations, weights, gate })
    }

    /// What is to be computed.
    pub fn problem(&self, output: Output) -> Result<Problem> {
        let shape = |(a, w): (&Activations<'_>, &Weights<'_>)| Shape::new(a.rows(), w.n(), w.k());
        let shapes = self.activations.iter().zip(&self.weights).map(shape).collect();
        let activation = self.activations[0].element();
        Ok(Problem::new(shapes, self.gate, activation, output)?)
    }

    /// The same problem, independent of the files it came from.
    pub fn into_instance(self, output: Output) -> Result<Instance> {
        let problem = self.problem(output)?;
        let weights = self.weights.into_iter().map(Weights::into_owned).collect();
        let activations = self.activations.into_iter().map(|a| match a {
            Activations::NvFp4(matrix) => matrix.into_owned().into(),
            Activations::Dense(dense) => dense.into_owned().into(),
        });
        Ok(Instance { activations: activations.collect(), weights, problem })
    }

    /// An error of the operation, with the tensor's name in place of the group's number where it is about one.
    pub fn name_tensor(&self, error: hammerhead::Error) -> Error {
        match error {
            hammerhead::Error::NotFinite { group, row, column, value } => Error::Tensor {
                path: self.path.clone(),
                name: format!("{}a", self.prefixes[group]),
                problem: format!("the element at row {row}, column {column} is {value}"),
                remedy: "activations must be finite; find out where it came from",
            },
            other => other.into(),
        }
    }

    /// Writes the results beside each other, `c` or `g0.c`, ….
    pub fn write(&self, path: &Path, results: Vec<Values<'static>>) -> Result<()> {
        let mut named = Vec::new();
        for (group, values) in results.into_iter().enumerate() {
            let shape = [self.activations[group].rows(), self.weights[group].n()];
            let name = format!("{}c", self.prefixes[group]);
            named.push(match values {
                Values::F16(c) => Tensor::from_f16(name, shape, c.into_owned()),
                Values::BF16(c) => Tensor::from_bf16(name, shape, c.into_owned()),
                Values::F32(c) => Tensor::from_f32(name, shape, c.into_owned()),
            });
        }
        Ok(tensors::write(path, &named, None)?)
    }
}

/// Tokens for weights that come from elsewhere: `a` for all groups, or `g0.a`, … for each.
pub fn tokens<'a>(file: &'a File, weights: &[Weights<'_>]) -> Result<Vec<Activations<'a>>> {
    let prefixes = prefixes(file)?;
    if let Some(name) = file.names().find(|name| !split(name).1.starts_with('a')) {
        return Err(Error::Tensor {
            path: file.path().to_path_buf(),
            name: name.to_owned(),
            problem: "it is a weight, but weights come from the checkpoint".to_owned(),
            remedy: "leave it out, or compute the file alone with --input",
        });
    }
    if prefixes.len() != 1 && prefixes.len() != weights.len() {
        let (path, groups, experts) = (file.path().to_path_buf(), prefixes.len(), weights.len());
        return Err(Error::TokenGroups { path, groups, experts });
    }
    let of_group = |(group, weights): (usize, &Weights<'_>)| {
        let prefix = &prefixes[if prefixes.len() == 1 { 0 } else { group }];
        Group { file, prefix }.activations(weights)
    };
    weights.iter().enumerate().map(of_group).collect()
}

/// The prefixes of the groups: one empty one, or `g0.` to the last without a gap.
fn prefixes(file: &File) -> Result<Vec<String>> {
    let refuse = |name: &str, problem: String, remedy| {
        Err(Error::Tensor { path: file.path().to_path_buf(), name: name.to_owned(), problem, remedy })
    };
    let (mut numbers, mut alone, mut grouped) = (BTreeSet::new(), None, None);
    for name in file.names() {
        let (number, part) = split(name);
        if !PARTS.contains(&part) {
            let problem = "a problem has no tensor of that name".to_owned();
            return refuse(
                name,
                problem,
                "known are a, b1 and b2, each also with _scale and _global (or _scale_2), \
                 and all of them prefixed g0., g1., …",
            );
        }
        match number {
            Some(number) => {
                numbers.insert(number);
                grouped = Some(name);
            }
            None => alone = Some(name),
        }
    }
    match (alone, grouped) {
        (Some(name), Some(other)) => {
            let problem = format!("it has no group prefix, but {other:?} has one");
            refuse(name, problem, "prefix every tensor of a group, or none of a single problem")
        }
        (_, None) => Ok(vec![String::new()]),
        (None, Some(other)) => match (0..numbers.len()).find(|number| !numbers.contains(number)) {
            Some(missing) => {
                let problem = format!("it is missing, though there is {other:?}");
                refuse(&format!("g{missing}.a"), problem, "number the groups from g0 without gaps")
            }
            None => Ok((0..numbers.len()).map(|number| format!("g{number}.")).collect()),
        },
    }
}

/// A name's group, if it has one, and what follows.
fn split(name: &str) -> (Option<usize>, &str) {
    let numbered = name.strip_prefix('g').and_then(|rest| rest.split_once('.'));
    match numbered.and_then(|(digits, part)| Some((digits, digits.parse::<usize>().ok()?, part))) {
        // Only one spelling of a number, so that two names cannot mean one tensor.
        Some((digits, number, part)) if number.to_string() == digits => (Some(number), part),
        _ => (None, name),
    }
}

/// The gate that was asked for, or the one that the tensors suggest; refused where it does not fit them.
fn settle_gate(file: &File, prefixes: &[String], asked: Option<Gate>) -> Result<Gate> {
    let ups: Vec<bool> = prefixes.iter().map(|prefix| file.contains(&format!("{prefix}b2"))).collect();
    let gate = asked.unwrap_or(if ups.contains(&true) { Gate::Silu } else { Gate::None });
    let wrong = ups.iter().position(|&up| up == (gate.matrices() == 1));
    let Some(group) = wrong else { return Ok(gate) };
    let (problem, remedy) = match (gate, asked) {
        (gate, _) if gate.matrices() == 1 => {
            (format!("it is there, but --gate {gate} has no second matrix"), "leave out --gate or the tensor")
        }
        (_, Some(_)) => {
            ("it is missing, but this gate joins two matrices".to_owned(), "add it, or ask for --gate none")
        }
        (_, None) => ("it is missing, though another group has one".to_owned(), "give every group a b2, or none"),
    };
    let name = format!("{}b2", prefixes[group]);
    Err(Error::Tensor { path: file.path().to_path_buf(), name, problem, remedy })
}

/// The tensors of one group, or of one expert.
pub struct Group<'a, 'p> {
    /// The file.
    pub file: &'a File,
    /// What their names begin with.
    pub prefix: &'p str,
}

impl<'a> Group<'a, '_> {
    /// A tensor's whole name.
    pub fn name(&self, part: &str) -> String {
        format!("{}{part}", self.prefix)
    }

    /// Whether there is such a tensor.
    pub fn contains(&self, part: &str) -> bool {
        self.file.contains(&self.name(part))
    }

    /// A tensor of one of these types.
    pub fn tensor(&self, part: &str, types: &[Dtype]) -> Result<Tensor<'a>> {
        let tensor = self.file.tensor(&self.name(part))?;
        tensor.expect_dtype(types).map_err(|reason| self.in_file(reason))?;
        Ok(tensor)
    }

    /// A tensor's numbers.
    pub fn values(&self, tensor: Tensor<'a>) -> Result<Values<'a>> {
        Ok(tensor.into_values().map_err(|reason| self.in_file(reason))?)
    }

    /// A matrix of ordinary floats.
    pub fn dense(&self, part: &str, global: f32) -> Result<Dense<'a>> {
        let tensor = self.tensor(part, &[Dtype::F16, Dtype::BF16, Dtype::F32])?;
        Ok(tensor.into_dense(global).map_err(|reason| self.in_file(reason))?)
    }

    /// An error about a tensor that is there or should be.
    pub fn refuse<T>(&self, part: &str, problem: impl Into<String>, remedy: &'static str) -> Result<T> {
        let (path, name, problem) = (self.file.path().to_path_buf(), self.name(part), problem.into());
        Err(Error::Tensor { path, name, problem, remedy })
    }

    /// Gate and up, or the only matrix.
    pub fn weights(&self, gate: Gate) -> Result<Weights<'a>> {
        let b1 = self.matrix("b1")?;
        if b1.rows() == 0 {
            return self.refuse("b1", "it has no rows", "a weight matrix needs at least one, as each is a column of c");
        }
        if gate.matrices() == 1 {
            let scales = ["b2_scale", "b2_scale_2", "b2_global"];
            return match scales.into_iter().find(|part| self.contains(part)) {
                Some(part) => self.refuse(part, "it is there, but b2 is not", "add b2, or leave this out"),
                None => Ok(Weights::plain(b1)),
            };
        }
        let b2 = self.matrix("b2")?;
        let shapes = [[b1.rows(), b1.k()], [b2.rows(), b2.k()]];
        if shapes[0] != shapes[1] {
            let problem =
                format!("it is a matrix of {:?}, but {:?} is one of {:?}", shapes[1], self.name("b1"), shapes[0]);
            return self.refuse(
                "b2",
                problem,
                "gate and up matrices have the same shape: check that they belong together",
            );
        }
        Ok(Weights::gated(b1, b2)?)
    }

    fn activations(&self, weights: &Weights<'_>) -> Result<Activations<'a>> {
        let tensor = self.file.tensor(&self.name("a"))?;
        let a: Activations<'a> = match tensor.dtype {
            Dtype::F16 | Dtype::BF16 | Dtype::F32 => {
                if let Some(part) = ["a_scale", "a_scale_2"].into_iter().find(|part| self.contains(part)) {
                    let problem = format!("it is there, but {:?} is {} and not quantised", tensor.name, tensor.dtype);
                    return self.refuse(part, problem, "leave it out, or give the codes as U8");
                }
                let global = self.global("a_global")?;
                tensor.into_dense(global).map_err(|reason| self.in_file(reason))?.into()
            }
            _ => {
                tensor
                    .expect_dtype(&[Dtype::U8, Dtype::F16, Dtype::BF16, Dtype::F32])
                    .map_err(|reason| self.in_file(reason))?;
                self.matrix("a")?.into()
            }
        };
        if a.k() != weights.k() {
            let problem = format!("its K is {}, but that of {:?} is {}", a.k(), self.name("b1"), weights.k());
            return self.refuse("a", problem, "check that they belong together");
        }
        Ok(a)
    }

    /// A quantised matrix.
    pub fn matrix(&self, part: &str) -> Result<Matrix<'a>> {
        let (codes, scales) = (self.name(part), self.name(&format!("{part}_scale")));
        let [global, scale_2] = ["global", "scale_2"].map(|name| format!("{part}_{name}"));
        let global = match (self.contains(&global), self.contains(&scale_2)) {
            (true, true) => {
                let problem = format!("it is there, and {:?} is too: two names of one scale", self.name(&global));
                return self.refuse(&scale_2, problem, "keep one of them");
            }
            (_, true) => self.global(&scale_2)?,
            _ => self.global(&global)?,
        };
        Ok(tensors::matrix(self.file, &codes, &scales, global)?)
    }

    /// A global scale, 1 if it is absent.
    pub fn global(&self, part: &str) -> Result<f32> {
        let name = self.name(part);
        if !self.file.contains(&name) {
            return Ok(1.0);
        }
        let global = self.file.tensor(&name)?.scalar_f32().map_err(|reason| self.in_file(reason))?;
        if !global.is_finite() {
            return self.refuse(part, format!("it is {global}"), "a global scale is a finite number that multiplies");
        }
        Ok(global)
    }

    fn in_file(&self, reason: format::Error) -> format::Error {
        format::Error::InFile { path: self.file.path().to_path_buf(), reason: Box::new(reason) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_number_has_one_spelling() {
        assert_eq!(split("g0.a"), (Some(0), "a"));
        assert_eq!(split("g12.b1_scale"), (Some(12), "b1_scale"));
        for name in ["a", "g00.a", "g+1.a", "g.a", "gx.a", "h0.a"] {
            assert_eq!(split(name), (None, name));
        }
    }
}
