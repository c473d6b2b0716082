//! What stands beside a weight and is not read.
//!
//! Tools store more with a weight than codes and scales: zero points, an order of columns, low-rank parts, rotations,
//! vectors that tokens are multiplied with. Leaving one out computes something else. So a weight is read only if every
//! tensor that bears its name is known, and otherwise that tensor is named.

use std::ops::Bound::{Included, Unbounded};

use super::Checkpoint;
use super::names::{self, Part};
use crate::{Error, Result};

/// Tensors that change no product: shapes, and what activations would be rounded with.
const HARMLESS: [&str; 9] = [
    "activation_scale",
    "input_zero_point",
    "k_scale",
    "k_zero_point",
    "output_scale",
    "output_zero_point",
    "v_scale",
    "v_zero_point",
    "weight_shape",
];

/// What the module of a layer may hold beside its own projections, where experts see the same tokens.
const OF_A_MIXTURE: [&str; 3] = ["experts", "gate", "router"];

impl Checkpoint {
    /// Refuses a weight that has other parts than `read`, or tensors of its name that are none of its parts and not
    /// among `more`.
    pub(super) fn refuse_beside(&self, stem: &str, read: &[Part], more: &[&str]) -> Result<()> {
        if let Some(declared) = self.config.quantisation.as_ref().filter(|declared| declared.is_rotated) {
            return Err(Error::Weight {
                path: declared.path.clone(),
                name: stem.to_owned(),
                problem: "transform_config declares that what enters or leaves weights is rotated when they are used"
                    .to_owned(),
                remedy: "rotations are not computed here: export the model with all of them in its weights",
            });
        }
        let own = self.catalogue.get(stem).into_iter().flatten();
        let mut unread = own.filter(|(part, _)| !read.contains(part)).map(|(_, name)| name.as_str());
        let is_read = |last: &str| HARMLESS.contains(&last) || more.contains(&last);
        // Parts of stacked experts are joined with an underscore.
        let joints: &[char] = if names::stacked(stem).is_some() { &['.', '_'] } else { &['.'] };
        let mut others = joints.iter().flat_map(|joint| self.beginning_with(format!("{stem}{joint}")));
        // Where something is added to a weight, the weight may have moved.
        let around = stem.strip_suffix(".base_layer").map(|around| format!("{around}."));
        let mut added = around.into_iter().flat_map(|around| self.beginning_with(around));
        let found = unread
            .next()
            .or_else(|| others.find(|(_, last)| !is_read(last)).map(|(name, _)| name))
            .or_else(|| added.find(|(_, last)| !last.starts_with("base_layer")).map(|(name, _)| name));
        found.map_or(Ok(()), |name| self.refuse_unread(name, stem))
    }

    /// Refuses an MLP whose module holds more than its projections and what is there of experts.
    pub(super) fn refuse_inside(&self, module: &str, projections: &[&str]) -> Result<()> {
        let is_known = |rest: &str| {
            let first = rest.split('.').next().unwrap_or(rest);
            let of_a_mixture = OF_A_MIXTURE.contains(&first) || names::number(first).is_some();
            of_a_mixture || projections.contains(&first) || ["shared_", "e_score_"].iter().any(|s| first.starts_with(s))
        };
        let mut inside = self.beginning_with(format!("{module}."));
        inside.find(|(_, rest)| !is_known(rest)).map_or(Ok(()), |(name, _)| self.refuse_unread(name, module))
    }

    /// Tensors of stems that begin so, and the rest of these stems.
    fn beginning_with(&self, start: String) -> impl Iterator<Item = (&str, &str)> {
        let from = self.catalogue.range::<str, _>((Included(start.as_str()), Unbounded));
        let of_it = from.map_while(move |(stem, names)| Some((names.first()?, stem.strip_prefix(start.as_str())?)));
        of_it.map(|((_, name), rest)| (name.as_str(), rest))
    }

    fn refuse_unread(&self, name: &str, of: &str) -> Result<()> {
        let path = self.store.view(name).map_or(self.path(), |view| view.path);
        Err(Error::Weight {
            path: path.to_path_buf(),
            name: name.to_owned(),
            problem: format!("it belongs to {of:?}, and nothing here computes with it"),
            remedy: "without it results would be others: export the model without zero points, column orders, low-rank \
                     parts, rotations and the like",
        })
    }
}
