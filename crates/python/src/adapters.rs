//! Low-rank adapters of a whole layer, as Python holds them.

use std::sync::{Arc, Mutex, PoisonError};

use hammerhead::format::Dense;
use hammerhead::gpu::DeviceAdapters;
use hammerhead::{Adapted, Adapter, Experts, LowRank};
use pyo3::prelude::*;

use crate::borrowed::NumberParts;
use crate::dlpack::Array;
use crate::error::{Error, Result};

/// A and B of one projection.
type PairParts<'py> = Option<(NumberParts<'py>, NumberParts<'py>)>;
/// An adapter: its scaling, and the pairs of gate (or the only one), up and down of every expert.
pub type AdapterParts<'py> = (f32, Vec<(PairParts<'py>, PairParts<'py>, PairParts<'py>)>);

/// Adapters of a layer, and the same in a GPU's memory once a call has been there.
#[pyclass(frozen)]
pub struct Adapters {
    all: Arc<hammerhead::Adapters>,
    device: Mutex<Option<Arc<DeviceAdapters>>>,
}

impl Adapters {
    /// Copies arrays of the host's.
    pub fn new(experts: &Experts, parts: Vec<AdapterParts<'_>>) -> Result<Self> {
        let adapter = |(number, (scaling, experts)): (usize, AdapterParts<'_>)| {
            let expert = |(expert, (gate, up, down))| -> Result<[Option<LowRank>; 3]> {
                let of = format!("of expert {expert} of adapter {number}");
                Ok([
                    pair(gate, &format!("gate {of}"))?,
                    pair(up, &format!("up {of}"))?,
                    pair(down, &format!("down {of}"))?,
                ])
            };
            let experts = experts.into_iter().enumerate().map(expert).collect::<Result<Vec<_>>>()?;
            Ok(Adapter { scaling, experts })
        };
        let all = parts.into_iter().enumerate().map(adapter).collect::<Result<Vec<_>>>()?;
        let all = Arc::new(hammerhead::Adapters::new(all, experts.count(), experts.widths())?);
        Ok(Self { all, device: Mutex::default() })
    }

    /// Those of tokens with these numbers, in the host's memory.
    pub fn of(&self, ids: &Array) -> Result<Adapted> {
        match ids.ids()? {
            hammerhead::Ids::I32(ids) => Ok(Adapted::new(Arc::clone(&self.all), ids)?),
            hammerhead::Ids::I64(_) => Err(Error::kind(ids.what(), "its elements are int64, where int32 is expected")),
        }
    }

    /// The adapters beside a layer on a GPU, and where so many tokens' numbers are.
    pub fn on_device(&self, experts: &Experts, ids: &Array, tokens: usize) -> Result<(Arc<DeviceAdapters>, u64)> {
        ids.expect_len(tokens)?;
        if ids.wide_ids()? {
            return Err(Error::kind(ids.what(), "its elements are int64, where int32 is expected"));
        }
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let there = match &*device {
            Some(there) => Arc::clone(there),
            None => Arc::clone(device.insert(experts.device_adapters(&self.all)?)),
        };
        Ok((there, ids.address()))
    }
}

#[pymethods]
impl Adapters {
    fn __len__(&self) -> usize {
        self.all.len()
    }

    /// The largest rank.
    #[getter]
    fn rank(&self) -> usize {
        self.all.rank()
    }
}

/// A pair of arrays.
fn pair(parts: PairParts<'_>, what: &str) -> Result<Option<LowRank>> {
    let Some((a, b)) = parts else { return Ok(None) };
    let borrow = |(object, element): &NumberParts<'_>, name: &str| -> Result<(Array, String)> {
        Ok((Array::borrow(object, format!("{name} of {what}"), false)?, element.clone()))
    };
    let (a, b) = (borrow(&a, "A")?, borrow(&b, "B")?);
    let made = LowRank::new(&dense(&a)?, &dense(&b)?);
    Ok(Some(made.map_err(|error| Error::value(what, error.to_string()))?))
}

fn dense((array, element): &(Array, String)) -> Result<Dense<'_>> {
    let (rows, k) = array.matrix_shape()?;
    Ok(Dense::new(rows, k, array.values(element)?, 1.0)?)
}
