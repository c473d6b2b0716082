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
/// The pairs of gate (or the only one), up and down of an expert.
type ExpertParts<'py> = (PairParts<'py>, PairParts<'py>, PairParts<'py>);
/// An adapter: its scaling, and what it adds to every expert and to the shared one.
pub type AdapterParts<'py> = (f32, Vec<ExpertParts<'py>>, Option<ExpertParts<'py>>);

/// Adapters of a layer, and the same in a GPU's memory once a call has been there.
#[pyclass(frozen)]
pub struct Adapters {
    all: Arc<hammerhead::Adapters>,
    device: Mutex<Option<Arc<DeviceAdapters>>>,
}

impl Adapters {
    /// Copies arrays of the host's.
    pub fn new(experts: &Experts, parts: Vec<AdapterParts<'_>>) -> Result<Self> {
        let adapter = |(number, (scaling, experts, shared)): (usize, AdapterParts<'_>)| {
            let expert = |(expert, parts)| pairs(parts, &format!("expert {expert} of adapter {number}"));
            let experts = experts.into_iter().enumerate().map(expert).collect::<Result<Vec<_>>>()?;
            let of_all = format!("the shared expert of adapter {number}");
            let shared = shared.map(|parts| pairs(parts, &of_all)).transpose()?;
            Ok((Adapter { scaling, experts }, shared))
        };
        let all = parts.into_iter().enumerate().map(adapter).collect::<Result<Vec<_>>>()?;
        let (all, shared): (Vec<Adapter>, Vec<_>) = all.into_iter().unzip();
        let any_shared = shared.iter().any(Option::is_some);
        let of_all = all.iter().zip(shared).map(|(adapter, pairs)| {
            let experts = vec![pairs.unwrap_or([None, None, None])];
            Adapter { scaling: adapter.scaling, experts }
        });
        let of_all: Vec<Adapter> = of_all.collect();
        let mut all = hammerhead::Adapters::new(all, experts.count(), experts.widths())?;
        if any_shared {
            let what = "the shared expert's adapters";
            let widths = experts.shared_widths().ok_or_else(|| Error::value(what, "the layer has no shared expert"))?;
            all = all.with_shared(hammerhead::Adapters::new(of_all, 1, widths)?)?;
        }
        Ok(Self { all: Arc::new(all), device: Mutex::default() })
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

/// The pairs of an expert.
fn pairs((gate, up, down): ExpertParts<'_>, of: &str) -> Result<[Option<LowRank>; 3]> {
    Ok([
        pair(gate, &format!("gate of {of}"))?,
        pair(up, &format!("up of {of}"))?,
        pair(down, &format!("down of {of}"))?,
    ])
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
