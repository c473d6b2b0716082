//! Quantised tensors by their whole names, for callers that know a model better than any list of layers does.
//!
//! An inference framework has a key mapping of its own: it knows which tensor of a file becomes which parameter of
//! which module. It opens a model with [`Checkpoint::open_by_name`], which looks for no layers and so refuses nothing
//! about them, lists what is quantised, and reads projections by exact name.

use std::path::Path;

use super::coded::Rows;
use super::layouts::Recognised;
use super::names::Part;
use super::{Checkpoint, Linear, Options, Weight};
use crate::files::Files;
use crate::{Error, Result};

/// A quantised tensor, as it is stored: one matrix, or a stack of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What its parts have in common, such as `model.layers.0.mlp.down_proj`.
    pub stem: String,
    /// The name that the tensor had before it was quantised, such as `model.layers.0.mlp.down_proj.weight`.
    pub tensor: String,
    /// The names of its parts: codes, scales, and whatever else belongs to it but a bias.
    pub parts: Vec<String>,
    /// How many matrices are stacked; `None` where it is a matrix.
    pub stack: Option<usize>,
    /// The rows of each.
    pub rows: usize,
    /// The elements of each row.
    pub k: usize,
    /// Whether the matrices are stored as their columns.
    pub is_transposed: bool,
}

impl Checkpoint {
    /// Opens a model whose tensors are asked for by name alone: no layers are looked for.
    ///
    /// # Errors
    ///
    /// As of [`Checkpoint::open`], but for what concerns layers.
    pub fn open_by_name(path: impl AsRef<Path>) -> Result<Self> {
        Self::catalogued(&Files::Disk, path.as_ref(), &Options::default())
    }

    /// Every quantised tensor, in the order of names.
    ///
    /// # Errors
    ///
    /// If a tensor's parts do not make quantised matrices, or if more is stored beside one than is read.
    pub fn stored(&self) -> Result<Vec<Stored>> {
        let mut found = Vec::new();
        for (stem, names) in &self.catalogue {
            let parts = self.parts(stem);
            let Recognised::Quantised(layout) = self.recognise(&parts)? else { continue };
            self.refuse_beside(stem, layout.parts(), &[])?;
            let coded = layout.coded(&parts)?;
            let is_module =
                names.iter().any(|(_, name)| name.strip_prefix(stem).is_none_or(|rest| rest.starts_with('.')));
            let codes = [Part::Weight, Part::Packed, Part::Blocks].map(|part| parts.get(part));
            let codes = codes.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().next();
            found.push(Stored {
                stem: stem.clone(),
                tensor: if is_module { format!("{stem}.weight") } else { stem.clone() },
                parts: names.iter().filter(|(part, _)| *part != Part::Bias).map(|(_, name)| name.clone()).collect(),
                stack: codes.is_some_and(|codes| codes.shape.len() > 2).then_some(coded.stack),
                rows: coded.rows,
                k: coded.k,
                is_transposed: coded.is_transposed(),
            });
        }
        Ok(found)
    }

    /// Reads a projection with its bias and scales: some rows of one matrix of a quantised tensor.
    ///
    /// # Errors
    ///
    /// If there is no such tensor, if it is not quantised, if it has no such matrix, or if what belongs to it does not
    /// fit.
    pub fn projection(&self, stem: &str, member: usize, rows: Rows) -> Result<Linear<'_>> {
        let refuse = |problem: String, remedy: &'static str| {
            Err(Error::Weight { path: self.path().to_path_buf(), name: stem.to_owned(), problem, remedy })
        };
        if !self.catalogue.contains_key(stem) {
            return refuse("there is no weight of that name".to_owned(), "give a module's name as the file has it");
        }
        let coded = self.coded(stem)?;
        if member >= coded.stack {
            return refuse(
                format!("matrix {member} was asked for, and it is a stack of {}", coded.stack),
                "count from zero",
            );
        }
        if rows != Rows::All && coded.rows % 2 != 0 {
            return refuse(format!("it has {} rows, which have no halves", coded.rows), "read all of them");
        }
        let name = format!("{stem}.{member}");
        self.read_linear(&Weight { name, shape: [rows.of(coded.rows), coded.k], stem: stem.to_owned(), member, rows })
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn model(name: &str) -> Checkpoint {
        let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        Checkpoint::open_by_name(data.join(name)).unwrap()
    }

    #[test]
    fn a_tensor_is_listed_under_the_name_it_had_before_it_was_quantised() {
        let stored = model("modelopt_dense").stored().unwrap();
        let down = stored.iter().find(|tensor| tensor.stem.ends_with("layers.0.mlp.down_proj")).unwrap();
        assert_eq!(down.tensor, format!("{}.weight", down.stem));
        assert_eq!((down.stack, down.is_transposed), (None, false));
        for part in ["weight", "weight_scale", "weight_scale_2"] {
            assert!(down.parts.contains(&format!("{}.{part}", down.stem)), "{part}");
        }
    }

    #[test]
    fn rows_of_a_projection_are_those_of_the_whole_matrix() {
        let model = model("modelopt_dense");
        let stem = model.stored().unwrap().remove(0).stem;
        let whole = model.projection(&stem, 0, Rows::All).unwrap().matrix;
        let (rows, k) = (whole.rows(), whole.k());
        let values = whole.dequantize();
        for (part, first, step) in
            [(Rows::FirstHalf, 0, 1), (Rows::SecondHalf, rows / 2, 1), (Rows::Even, 0, 2), (Rows::Odd, 1, 2)]
        {
            let cut = model.projection(&stem, 0, part).unwrap().matrix;
            let expected: Vec<f32> =
                (0..rows / 2).flat_map(|row| values[(first + row * step) * k..][..k].to_vec()).collect();
            assert_eq!(cut.dequantize(), expected, "{part:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        let model = model("modelopt_dense");
        let stem = model.stored().unwrap().remove(0).stem;
        let error = model.projection("model.nothing", 0, Rows::All).unwrap_err().to_string();
        assert!(error.contains("model.nothing") && error.contains("no weight of that name"), "{error}");
        let error = model.projection(&stem, 1, Rows::All).unwrap_err().to_string();
        assert!(error.contains(&stem) && error.contains("a stack of 1"), "{error}");
    }
}
