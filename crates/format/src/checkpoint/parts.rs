//! The tensors that belong to one weight.

use std::collections::BTreeMap;

use super::names::{Part, split};
use super::store::{Store, View};
use crate::tensors::Dtype;
use crate::{Error, Result};

/// Of every weight, by its stem: the parts it has, and under which names.
pub(super) type Catalogue = BTreeMap<String, Vec<(Part, String)>>;

/// Takes apart what only looks as if it belonged together: beside `dense.weight`, a tensor `dense_bias` is no part of
/// `dense`, but a parameter of the module that holds it. The parts of a weight are joined to its stem in one way, with
/// a dot or with an underscore. A tensor `norm.scale` without `norm.weight` scales no weight.
pub(super) fn separate(catalogue: &mut Catalogue) {
    let joined = |stem: &str, name: &str, by| name.strip_prefix(stem).is_some_and(|rest| rest.starts_with(by));
    let mut apart = Vec::new();
    for (stem, names) in catalogue.iter_mut() {
        if names.iter().any(|(_, name)| joined(stem, name, '.')) {
            apart.extend(names.extract_if(.., |(_, name)| joined(stem, name, '_')).map(|(_, name)| name));
        }
        if names.iter().all(|(part, _)| *part != Part::Weight) {
            apart.extend(names.extract_if(.., |(part, _)| *part == Part::Exponents).map(|(_, name)| name));
        }
    }
    catalogue.retain(|_, names| !names.is_empty());
    for name in apart {
        catalogue.entry(name.clone()).or_default().push((Part::Weight, name));
    }
}

/// Puts together what `hammerhead quantize` makes of a matrix of any name X: codes `X`, scales `X_scale` and a global
/// scale `X_scale_2`. Names alone tell only where X ends as the weight of a module does; elsewhere types must agree.
pub(super) fn join_quantised(catalogue: &mut Catalogue, store: &Store) {
    for global in store.names() {
        let Some((scales, codes)) =
            global.strip_suffix("_2").and_then(|name| Some((name, name.strip_suffix("_scale")?)))
        else {
            continue;
        };
        let parts = [
            (Part::Weight, codes, Dtype::U8),
            (Part::BlockScale, scales, Dtype::F8_E4M3),
            (Part::Multiplier, global, Dtype::F32),
        ];
        let (stem, _) = split(codes);
        let together = parts.iter().all(|(part, name, _)| split(name) == (stem.clone(), *part));
        if together || !parts.iter().all(|(_, name, dtype)| store.view(name).is_some_and(|view| view.is(*dtype))) {
            continue;
        }
        for (part, name, _) in parts {
            for home in [split(name).0, name.to_owned()] {
                if let Some(names) = catalogue.get_mut(&home) {
                    names.retain(|(_, other)| other != name);
                    if names.is_empty() {
                        catalogue.remove(&home);
                    }
                }
            }
            catalogue.entry(codes.to_owned()).or_default().push((part, name.to_owned()));
        }
    }
}

/// One weight's tensors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'a> {
    pub store: &'a Store,
    pub stem: &'a str,
    pub names: &'a [(Part, String)],
}

impl<'a> Parts<'a> {
    /// The tensor that plays this part, if there is one.
    pub fn get(&self, part: Part) -> Result<Option<View<'a>>> {
        let mut found = self.names.iter().filter(|(is, _)| *is == part).map(|(_, name)| name);
        let Some(name) = found.next() else { return Ok(None) };
        if let Some(other) = found.next() {
            return self.refuse(format!("tensors {name:?} and {other:?} would play the same part"), "keep one of them");
        }
        Ok(self.store.view(name))
    }

    /// Whether a tensor plays this part.
    pub fn has(&self, part: Part) -> bool {
        self.names.iter().any(|(is, _)| *is == part)
    }

    /// An error about this weight.
    pub fn refuse<T>(&self, problem: String, remedy: &'static str) -> Result<T> {
        Err(Error::Weight { path: self.store.path().to_path_buf(), name: self.stem.to_owned(), problem, remedy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_beside_a_module_is_no_part_of_it() {
        let mut catalogue = Catalogue::new();
        let names = ["a.dense.weight", "a.dense.bias", "a.dense_bias", "e.down_proj", "e.down_proj_bias"];
        for name in names.into_iter().chain(["e.w1.weight", "e.w1.scale", "norm.scale"]) {
            let (stem, part) = split(name);
            catalogue.entry(stem).or_default().push((part, name.to_owned()));
        }
        separate(&mut catalogue);
        let parts = |stem: &str| catalogue[stem].iter().map(|(part, _)| *part).collect::<Vec<_>>();
        assert_eq!(parts("a.dense"), [Part::Weight, Part::Bias]);
        assert_eq!(parts("a.dense_bias"), [Part::Weight]);
        assert_eq!(parts("e.down_proj"), [Part::Weight, Part::Bias]);
        assert_eq!(parts("e.w1"), [Part::Weight, Part::Exponents]);
        assert_eq!(parts("norm.scale"), [Part::Weight]);
        assert!(!catalogue.contains_key("norm"));
    }
}
