//! Arguments of a launch file: numbers, buffers, tensor maps, bytes, and structures that are made of these.

use ptx::Param;
use ptx::descriptor::Swizzle;
use ptx::tensor_map::{Element, TensorMap};
use serde::Deserialize;
use sim::Arg;

use super::arrays::Dtype;

/// What an argument's kind may be, for messages.
const KINDS: &str = "buffer, u32, i32, u64, i64, f32, f64, bytes, tensor_map and parts";

/// The type of a buffer's numbers and its address, by its name.
pub type Named<'n> = dyn Fn(&str) -> Result<(Dtype, u64), String> + 'n;

/// One key of these says what the argument is; `size` belongs to `parts`, and `at` to one of those.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArgFile {
    buffer: Option<String>,
    u32: Option<u32>,
    i32: Option<i32>,
    u64: Option<u64>,
    i64: Option<i64>,
    f32: Option<f32>,
    f64: Option<f64>,
    bytes: Option<String>,
    tensor_map: Option<MapFile>,
    parts: Option<Vec<ArgFile>>,
    size: Option<u64>,
    at: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MapFile {
    buffer: String,
    dtype: Option<String>,
    dims: Vec<u64>,
    #[serde(default)]
    strides: Vec<u64>,
    #[serde(rename = "box")]
    tile: Vec<u32>,
    #[serde(default)]
    swizzle: u32,
    /// Bytes that a swizzle leaves together.
    #[serde(default = "sixteen")]
    pieces: u32,
}

fn sixteen() -> u32 {
    16
}

impl ArgFile {
    /// The argument for a parameter.
    pub fn arg(&self, param: &Param, named: &Named<'_>) -> Result<Arg, String> {
        if self.at.is_some() {
            return Err("at is for the parts of a structure; an argument has none".into());
        }
        match (&self.parts, self.size) {
            (Some(parts), size) if self.kinds() == 0 => structure(parts, size, param, named),
            (None, None) => self.value(named),
            (None, Some(_)) => Err("size is for an argument with parts; leave it out".into()),
            (Some(_), _) => Err(format!("give one of {KINDS}")),
        }
    }

    /// How many keys say what it is, parts aside.
    fn kinds(&self) -> usize {
        let numbers = [self.u32.is_some(), self.i32.is_some(), self.u64.is_some(), self.i64.is_some()];
        let others = [self.f32.is_some(), self.f64.is_some(), self.buffer.is_some(), self.bytes.is_some()];
        let map = usize::from(self.tensor_map.is_some());
        numbers.into_iter().chain(others).filter(|said| *said).count() + map
    }

    /// What is not made of parts.
    fn value(&self, named: &Named<'_>) -> Result<Arg, String> {
        if self.kinds() != 1 {
            return Err(format!("give one of {KINDS}"));
        }
        if let Some(name) = &self.buffer {
            return Ok(Arg::Pointer(named(name)?.1));
        }
        if let Some(hex) = &self.bytes {
            return Ok(Arg::Bytes(unhex(hex).ok_or("bytes wants pairs of hexadecimal digits")?, Vec::new()));
        }
        if let Some(map) = &self.tensor_map {
            return Ok(Arg::Map(map.read(named)?));
        }
        let number = self.u32.map(Arg::U32).or(self.i32.map(Arg::S32)).or(self.f32.map(Arg::F32));
        let wide = self.u64.or(self.i64.map(i64::cast_unsigned)).or(self.f64.map(f64::to_bits));
        number.or(wide.map(Arg::U64)).ok_or_else(|| format!("give one of {KINDS}"))
    }
}

impl MapFile {
    fn read(&self, named: &Named<'_>) -> Result<TensorMap, String> {
        let (held, address) = named(&self.buffer)?;
        let element = match self.dtype.as_deref() {
            // Of four-bit numbers tensor maps know, and numpy does not.
            Some("u4") => Some(Element::U4x16),
            Some(name) => Dtype::read(name).map_err(|what| format!("{what}, and of a tensor map u4"))?.element(),
            None => held.element(),
        };
        let element = element.ok_or("tensor maps have no numbers of 64 bits here")?;
        let swizzle = match (self.swizzle, self.pieces) {
            (0, 16) => Swizzle::None,
            (32, 16) => Swizzle::B32,
            (64, 16) => Swizzle::B64,
            (128, 16) => Swizzle::B128,
            (128, 32) => Swizzle::B128Pieces32,
            (0 | 32 | 64 | 128, pieces) => {
                return Err(format!("pieces is {pieces}; it is 16, or 32 with a swizzle of 128"));
            }
            (other, _) => return Err(format!("swizzle is {other}; it is 0, 32, 64 or 128")),
        };
        let (dims, strides, tile) = (self.dims.clone(), self.strides.clone(), self.tile.clone());
        let map = TensorMap { element, address, dims, strides, tile, swizzle };
        map.check().map_err(|error| error.to_string())?;
        Ok(map)
    }
}

/// A structure of parts at byte offsets.
fn structure(parts: &[ArgFile], size: Option<u64>, param: &Param, named: &Named<'_>) -> Result<Arg, String> {
    let (wanted, _) = param.ty.layout();
    if let Some(size) = size.filter(|size| *size != wanted) {
        return Err(format!("size is {size}, and the parameter has {wanted} bytes; is the file for another kernel?"));
    }
    let mut values = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let at = part.at.ok_or_else(|| format!("part {index} has no at; say at which byte it begins"))?;
        let whose = |what: String| format!("the part at {at}: {what}");
        if part.parts.is_some() || part.size.is_some() {
            return Err(whose("a part has no parts or size of its own; give each with its place in the whole".into()));
        }
        values.push((at, part.value(named).map_err(whose)?));
    }
    Arg::structure(values, param.ty)
}

fn unhex(hex: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(byte).collect())?
}
