//! A layer of a checkpoint as a problem: the experts that are chosen are its groups, in the order in which they are
//! named, and tokens come from a file or from a seed.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use format::Dense;
use format::checkpoint::{Checkpoint, FeedForward, Layer, Pair, Role};
use format::tensors::File;
use hammerhead::{Activation, Activations, Gate, Output, Precision, Routed, Shape, Weights, weights_of};
use testkit::cases::{Case, Inputs, Suite};

use crate::model::{self, Reading};
use crate::problem_file::{Group, ProblemFile, tokens};
use crate::{Error, Result, console, layer_file};

/// Which layer of which checkpoint, and what it is computed with.
#[derive(Debug, Args)]
#[command(next_help_heading = "A layer of a checkpoint")]
pub struct Choice {
    /// Take the weights from a model: a folder, an index of shards, or one .safetensors or .gguf file
    #[arg(long, value_name = "MODEL", requires = "layer")]
    pub checkpoint: Option<PathBuf>,
    /// The number of the layer
    #[arg(long, value_name = "N", requires = "checkpoint")]
    layer: Option<usize>,
    /// The former name of --whole
    #[arg(long, hide = true)]
    pub mlp: bool,
    /// Which experts, one group per expert: numbers such as 0,3,5, `shared`, or `all`, which is every numbered one
    #[arg(long, value_name = "LIST", default_value = "all", requires = "checkpoint")]
    experts: Experts,
    /// Read tokens from this safetensors file: `a` (and `a_scale`, `a_global`) for every expert, or g0.a, g1.a, … for
    /// each
    #[arg(long, value_name = "FILE", requires = "checkpoint")]
    pub tokens: Option<PathBuf>,
    /// Make this many bf16 tokens for each expert from the seed
    #[arg(long, value_name = "M", default_value_t = 16, requires = "checkpoint", conflicts_with = "tokens")]
    m: usize,
    #[command(flatten)]
    reading: Reading,
}

/// A choice of experts.
#[derive(Clone, Debug, PartialEq)]
enum Experts {
    All,
    Shared,
    Numbers(Vec<usize>),
}

impl FromStr for Experts {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        match list {
            "all" => Ok(Self::All),
            "shared" => Ok(Self::Shared),
            numbers => {
                let numbers = numbers.split(',').map(|number| number.trim().parse().map_err(|_| number));
                let numbers: Result<Vec<usize>, &str> = numbers.collect();
                numbers.map(Self::Numbers).map_err(|word| {
                    format!("{word:?} is no number of an expert: name them as in 0,3,5, or say all or shared")
                })
            }
        }
    }
}

/// A checkpoint that is open, and where its tokens come from.
#[derive(Debug)]
pub struct Opened {
    pub model: Checkpoint,
    tokens: Option<File>,
    layer: usize,
    experts: Experts,
    m: usize,
}

impl Choice {
    /// Opens what was chosen.
    pub fn open(&self, path: &Path) -> Result<Opened> {
        Ok(Opened {
            model: self.reading.open(path)?,
            tokens: self.tokens.as_ref().map(File::open).transpose()?,
            layer: self.layer.unwrap_or(0),
            experts: self.experts.clone(),
            m: self.m,
        })
    }
}

impl Opened {
    /// Reads the weights that were chosen, borrowing them, and the tokens, or makes some.
    pub fn problem(&self, gate: Option<Gate>, seed: u64) -> Result<ProblemFile<'_>> {
        let gate = model::gate(&self.model, self.layer, gate)?;
        let mut weights = Vec::new();
        for pair in self.pairs()? {
            weights.push(weights_of(self.model.pair(pair)?)?);
        }
        let activations = match &self.tokens {
            Some(file) => tokens(file, &weights)?,
            None => tokens_of(&weights.iter().map(Weights::k).collect::<Vec<_>>(), self.m, seed)?,
        };
        let prefixes = match weights.len() {
            1 => vec![String::new()],
            experts => (0..experts).map(|group| format!("g{group}.")).collect(),
        };
        let path = self.tokens.as_ref().map_or_else(|| self.model.path(), File::path).to_path_buf();
        Ok(ProblemFile { path, prefixes, activations, weights, gate })
    }

    /// The number of the layer.
    pub fn number(&self) -> usize {
        self.layer
    }

    /// The gate that was asked for, or the model's own.
    pub fn gate(&self, asked: Option<Gate>) -> Result<Gate> {
        model::gate(&self.model, self.layer, asked)
    }

    /// The whole layer.
    pub fn feed_forward(&self) -> Result<FeedForward<'_>> {
        Ok(self.model.feed_forward(self.layer)?)
    }

    /// Tokens of the layer: `x` of the file, or made from a seed.
    pub fn dense_tokens(&self, seed: u64) -> Result<Dense<'_>> {
        if let Some(file) = &self.tokens {
            return Group { file, prefix: "" }.dense("x", 1.0);
        }
        let [_, k] = self.pairs()?.first().map_or([0, 0], |pair| pair.gate.shape);
        match tokens_of(&[k], self.m, seed)?.pop() {
            Some(Activations::Dense(dense)) => Ok(dense),
            _ => unreachable!("made as bf16, for one group"),
        }
    }

    /// The experts that stand beside the tokens in their file, if any do.
    pub fn given_experts(&self, tokens: usize, experts: usize) -> Result<Option<Routed>> {
        match &self.tokens {
            Some(file) if file.contains("ids") => {
                layer_file::given_experts(&Group { file, prefix: "" }, tokens, experts).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Says what a caller should know before believing the result.
    pub fn warn(&self) -> Result<()> {
        let pairs = self.pairs()?;
        if pairs.iter().any(|pair| pair.has_bias) {
            console::remark("note: the model adds biases to these sums, which are not part of this operation");
        }
        Ok(())
    }

    /// The pairs that were chosen.
    fn pairs(&self) -> Result<Vec<&Pair>> {
        let layer = self.model.find_layer(self.layer)?;
        match &self.experts {
            Experts::All => Ok(layer.experts()),
            Experts::Shared => {
                let shared = layer.shared();
                if shared.is_empty() {
                    return self.missing("pair beside its experts".to_owned(), "leave out --experts shared");
                }
                Ok(shared)
            }
            Experts::Numbers(numbers) => numbers.iter().map(|&number| self.numbered(layer, number)).collect(),
        }
    }

    fn numbered<'l>(&self, layer: &'l Layer, number: usize) -> Result<&'l Pair> {
        let experts = layer.experts();
        let found = experts.iter().find(|pair| match pair.role {
            Role::Expert(is) => is == number,
            _ => number == 0,
        });
        match found {
            Some(pair) => Ok(pair),
            None => self.missing(
                format!("expert {number} among its {}", experts.len()),
                "hammerhead inspect lists what there is",
            ),
        }
    }

    /// Refuses what the layer does not have.
    pub fn missing<T>(&self, what: String, remedy: &'static str) -> Result<T> {
        Err(Error::NoSuchExpert { path: self.model.path().to_path_buf(), layer: self.layer, what, remedy })
    }
}

/// Tokens from a seed, `m` for each group of weights with this k.
fn tokens_of(widths: &[usize], m: usize, seed: u64) -> Result<Vec<Activations<'static>>> {
    // The list of cases knows how to make tokens; the one column that comes along costs nothing.
    let case = Case {
        suite: Suite::Edge,
        why: "tokens for a layer of a checkpoint",
        groups: widths.iter().map(|&k| Shape::new(m, 1, k)).collect(),
        gate: Gate::None,
        activation: Activation::BF16,
        output: Output::F32,
        precision: Precision::Exact,
        inputs: Inputs::Realistic,
        timed: false,
    };
    Ok(case.instance(seed)?.activations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_named_by_number_or_by_what_they_are() {
        assert_eq!("all".parse(), Ok(Experts::All));
        assert_eq!("shared".parse(), Ok(Experts::Shared));
        assert_eq!("0,3, 5".parse(), Ok(Experts::Numbers(vec![0, 3, 5])));
        for list in ["", "0,,1", "-1", "x", "1-3"] {
            assert!(list.parse::<Experts>().is_err(), "{list:?}");
        }
    }
}
