//! What tokens are multiplied with, column by column, before they meet a weight: ModelOpt's `pre_quant_scale`.
//!
//! AWQ divides the columns of a weight that meet large activations by a number each before it quantises, and leaves
//! these numbers beside the weight: the layer is (x ∘ s)·Wᵀ. Gate and up see the same tokens, so a gated pair has one
//! such vector or none. A stack of experts may have one for all or one each.

use super::names::Part;
use super::store::{Element, View};
use super::{Checkpoint, Pair, Weight};
use crate::tensors::Tensor;
use crate::{Dense, Error, Result};

impl Checkpoint {
    /// What tokens must be multiplied with before they meet a matrix, K numbers, if the model has that.
    ///
    /// # Errors
    ///
    /// If the matrix is not quantised, or if they are not K finite numbers of type F16, BF16 or F32.
    pub fn pre_scale(&self, weight: &Weight) -> Result<Option<Vec<f32>>> {
        let parts = self.parts(&weight.stem);
        let Some(View { name, element, shape, bytes, path }) = parts.get(Part::PreScale)? else { return Ok(None) };
        let coded = self.coded(&weight.stem)?;
        let refuse = |problem: String, remedy| {
            let (path, name) = (path.to_path_buf(), name.to_owned());
            Err(Error::Weight { path, name, problem, remedy })
        };
        let vectors = match shape {
            [rest @ .., last] if *last == coded.k => rest.iter().try_fold(1usize, |all, &side| all.checked_mul(side)),
            _ => None,
        };
        let (Some(vectors), Element::Safetensors(dtype)) = (vectors.filter(|n| [1, coded.stack].contains(n)), element)
        else {
            let problem = format!("it has shape {shape:?}, for {} weights of K = {}", coded.stack, coded.k);
            return refuse(problem, "tokens are multiplied with K numbers: check that they belong to this weight");
        };
        let in_file = |reason| Error::InFile { path: path.to_path_buf(), reason: Box::new(reason) };
        let values = Tensor::from_bytes(name, dtype, shape, bytes).into_values().map_err(in_file)?;
        let mut scale = vec![0.0; coded.k];
        let member = if vectors == 1 { 0 } else { weight.member };
        Dense::new(vectors, coded.k, values, 1.0).map_err(in_file)?.row(member, &mut scale);
        match scale.iter().position(|value| !value.is_finite()) {
            Some(column) => {
                let problem = format!("its number for column {column} is {}", scale[column]);
                refuse(problem, "tokens are multiplied with finite numbers: the file is damaged")
            }
            None => Ok(Some(scale)),
        }
    }

    /// The vector of a pair, which gate and up must agree on.
    pub(super) fn pre_scale_of_pair(&self, pair: &Pair) -> Result<Option<Vec<f32>>> {
        let (gate, up) = (self.pre_scale(&pair.gate)?, self.pre_scale(&pair.up)?);
        let refuse = |name: &str, problem: String| {
            let remedy =
                "gate and up are multiplied with the same tokens: export the model anew with one scale for both";
            Err(Error::Weight { path: self.path().to_path_buf(), name: name.to_owned(), problem, remedy })
        };
        let [gate_name, up_name] = [&pair.gate.name, &pair.up.name];
        match (gate, up) {
            (Some(_), None) => refuse(up_name, format!("it has no pre_quant_scale, but {gate_name:?} has one")),
            (None, Some(_)) => refuse(gate_name, format!("it has no pre_quant_scale, but {up_name:?} has one")),
            (Some(gate), Some(up)) => match gate.iter().zip(&up).position(|(gate, up)| gate != up) {
                Some(column) => {
                    let (gate, up) = (gate[column], up[column]);
                    let problem =
                        format!("its pre_quant_scale is {gate} for column {column}, but that of {up_name:?} is {up}");
                    refuse(gate_name, problem)
                }
                None => Ok(Some(gate)),
            },
            (None, None) => Ok(None),
        }
    }
}
