//! Whose layout a weight is in, told from the names and types of its tensors, and how each layout is read.
//!
//! | layout | codes | scales | global scale |
//! |---|---|---|---|
//! | ModelOpt | `weight` U8 | `weight_scale` | `weight_scale_2` multiplies |
//! | compressed-tensors | `weight_packed` U8 | `weight_scale` | `weight_global_scale` divides |
//! | torchao | `_weight_qdata` | `_weight_scale`, perhaps blocked | `_weight_per_tensor_scale` multiplies, may be absent |
//! | GGUF | `weight` of type NVFP4 or MXFP4, scales within | | `scale` multiplies, may be absent |
//! | gpt-oss | `_blocks` U8 | `_scales` | none |
//! | DeepSeek | `weight` I8 | `scale` F8_E8M0 | none |
//!
//! Scales of type F8_E4M3 make it NVFP4, bytes of exponents (U8 or F8_E8M0) MXFP4. Types decide, not declarations: in a
//! model of mixed layers an FP8 weight also has a `weight_scale`, and a bf16 one has none.

use super::coded::{Bytes, Coded, Globals};
use super::config::Quantisation;
use super::names::Part;
use super::parts::Parts;
use super::store::{Element, View};
use super::{Format, Precision, gguf, torchao};
use crate::tensors::Dtype;
use crate::{Error, Result};

/// What a weight turned out to be.
#[derive(Debug)]
pub(super) enum Recognised<'a> {
    Quantised(Layout<'a>),
    /// Something else, in words.
    Other(String),
}

/// A weight that can be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout<'a> {
    pub format: Format,
    pub precision: Precision,
    codes: View<'a>,
    /// Scales in a tensor of their own.
    scales: Option<View<'a>>,
}

/// Tells whose layout a weight is in. `forced` settles what is not clear, and then nothing else will do.
pub(super) fn recognise<'a>(
    parts: &Parts<'a>,
    declared: Option<&Quantisation>,
    forced: Option<Format>,
) -> Result<Recognised<'a>> {
    let layout = match find(parts, forced)? {
        Recognised::Quantised(layout) => layout,
        other => return Ok(other),
    };
    match forced {
        Some(forced) if forced != layout.format => {
            return Ok(Recognised::Other(format!("laid out as {} does, not as {forced}", layout.format)));
        }
        Some(_) => {}
        None => {
            if let Some((quantisation, format)) = declared.and_then(|q| Some((q, q.format?)))
                && format != layout.format
                && !matches!(layout.format, Format::GptOss | Format::DeepSeek)
            {
                let file = quantisation.path.display();
                let problem = format!("{file} declares {format}, but its tensors are named as {} does", layout.format);
                return ambiguous(parts, problem);
            }
        }
    }
    Ok(Recognised::Quantised(layout))
}

fn ambiguous<T>(parts: &Parts<'_>, problem: String) -> Result<T> {
    Err(Error::Ambiguous {
        path: parts.store.path().to_path_buf(),
        what: format!("weight {:?}", parts.stem),
        problem,
        remedy: "say which it is with --format modelopt or --format compressed-tensors".to_owned(),
    })
}

fn find<'a>(parts: &Parts<'a>, forced: Option<Format>) -> Result<Recognised<'a>> {
    let scales = parts.get(Part::BlockScale)?;
    let quantised = |format, codes, precision| Ok(Recognised::Quantised(Layout { format, precision, codes, scales }));
    if let Some(codes) = parts.get(Part::Qdata)? {
        let qdata = matches!(codes.element, Element::Safetensors(Dtype::U8));
        return match scales.and_then(|scales| precision(&scales)) {
            Some(Precision::NvFp4) if qdata => quantised(Format::TorchAo, codes, Precision::NvFp4),
            _ => Ok(Recognised::Other(format!("a torchao tensor of {}", codes.element))),
        };
    }
    if let Some(codes) = parts.get(Part::Blocks)?.filter(|codes| codes.is(Dtype::U8)) {
        return match scales {
            Some(_) => quantised(Format::GptOss, codes, Precision::MxFp4),
            None => Ok(Recognised::Other("blocks without scales".to_owned())),
        };
    }
    let (weight, packed) = (parts.get(Part::Weight)?, parts.get(Part::Packed)?);
    // Integers of eight bits have the same codes' type, and other scales.
    let exponents = parts.get(Part::Exponents)?.filter(|scales| scales.is(Dtype::F8_E8M0));
    if let (Some(codes), Some(scales)) = (weight.filter(|codes| codes.is(Dtype::I8)), exponents) {
        let (format, precision) = (Format::DeepSeek, Precision::MxFp4);
        return Ok(Recognised::Quantised(Layout { format, precision, codes, scales: Some(scales) }));
    }
    if let Some(View { element: Element::Gguf(kind), .. }) = weight {
        return match (kind, weight) {
            (gguf::Type::NVFP4, Some(codes)) => quantised(Format::Gguf, codes, Precision::NvFp4),
            (gguf::Type::MXFP4, Some(codes)) => quantised(Format::Gguf, codes, Precision::MxFp4),
            _ => Ok(Recognised::Other(kind.to_string())),
        };
    }
    match (weight.filter(|codes| codes.is(Dtype::U8)), packed.filter(|codes| codes.is(Dtype::U8)), scales) {
        (None, None, _) => Ok(Recognised::Other(ordinary(weight.or(packed)))),
        (_, _, None) => Ok(Recognised::Other("U8 without block scales".to_owned())),
        (unpacked, packed, Some(scales)) => {
            let Some(precision) = precision(&scales) else {
                return Ok(Recognised::Other(format!("U8 with block scales of {}", scales.element)));
            };
            let format = one_of_two(parts, unpacked.is_some(), packed.is_some(), forced)?;
            let named = if format == Format::ModelOpt { unpacked.or(packed) } else { packed.or(unpacked) };
            match named {
                Some(codes) => quantised(format, codes, precision),
                None => Ok(Recognised::Other("without codes".to_owned())),
            }
        }
    }
}

/// ModelOpt or compressed-tensors, which differ in names, and in whether the global scale multiplies or divides.
fn one_of_two(parts: &Parts<'_>, unpacked: bool, packed: bool, forced: Option<Format>) -> Result<Format> {
    if let Some(forced @ (Format::ModelOpt | Format::CompressedTensors)) = forced {
        return Ok(forced);
    }
    let (multiplies, divides) = (parts.has(Part::Multiplier), parts.has(Part::Divisor));
    match (unpacked, packed, multiplies, divides) {
        (true, false, _, false) => Ok(Format::ModelOpt),
        (false, true, false, _) => Ok(Format::CompressedTensors),
        _ => {
            let names: Vec<String> = parts.names.iter().map(|(_, name)| format!("{name:?}")).collect();
            ambiguous(parts, format!("names of two layouts are mixed ({})", names.join(", ")))
        }
    }
}

/// What the scales' type makes of it.
fn precision(scales: &View<'_>) -> Option<Precision> {
    match scales.element {
        Element::Safetensors(Dtype::F8_E4M3) => Some(Precision::NvFp4),
        Element::Safetensors(Dtype::U8 | Dtype::F8_E8M0) => Some(Precision::MxFp4),
        _ => None,
    }
}

/// A weight that is not packed, in words.
fn ordinary(weight: Option<View<'_>>) -> String {
    match weight.map(|weight| weight.element) {
        Some(element @ Element::Safetensors(Dtype::F8_E4M3 | Dtype::F8_E5M2)) => format!("FP8 ({element})"),
        Some(element @ Element::Safetensors(Dtype::I32 | Dtype::I8)) => format!("packed integers ({element})"),
        Some(element) => element.to_string(),
        None => "without a weight tensor".to_owned(),
    }
}

/// The parts that are read of a weight, the last where scales are DeepSeek's.
const PARTS: [Part; 11] = [
    Part::Weight,
    Part::Packed,
    Part::Qdata,
    Part::Blocks,
    Part::BlockScale,
    Part::Multiplier,
    Part::Divisor,
    Part::InputScale,
    Part::Bias,
    Part::PreScale,
    Part::Exponents,
];

impl<'a> Layout<'a> {
    /// The parts that are read of such a weight.
    pub fn parts(&self) -> &'static [Part] {
        if self.format == Format::DeepSeek { &PARTS } else { &PARTS[..PARTS.len() - 1] }
    }

    /// Reads everything but codes and scales themselves.
    pub fn coded(&self, parts: &Parts<'a>) -> Result<Coded<'a>> {
        let globals = self.globals(parts)?;
        match (self.format, self.scales) {
            (Format::TorchAo, Some(scales)) => torchao::coded(parts, self.codes, scales, globals),
            (Format::Gguf, _) | (_, None) => {
                let (stack, rows, k) = match *self.codes.shape {
                    [rows, k] => (1, rows, k),
                    [stack, rows, k] => (stack, rows, k),
                    _ => {
                        let problem = format!("its shape is {:?}, neither a matrix nor a stack", self.codes.shape);
                        return parts.refuse(problem, "check that this is a weight");
                    }
                };
                let bytes = Bytes::Ggml(self.codes.bytes);
                Coded::checked(parts, &self.codes, self.precision, [stack, rows, k], bytes, globals)
            }
            (_, Some(scales)) => Coded::apart(parts, self.codes, scales, self.precision, globals),
        }
    }

    /// The global scales, wherever this layout keeps them.
    fn globals(&self, parts: &Parts<'a>) -> Result<Globals<'a>> {
        let (part, missing) = match self.format {
            Format::CompressedTensors => (Part::Divisor, "weight_global_scale"),
            Format::ModelOpt => (Part::Multiplier, "weight_scale_2"),
            Format::TorchAo | Format::Gguf | Format::GptOss | Format::DeepSeek => (Part::Multiplier, ""),
        };
        let tensor = parts.get(part)?;
        // Where it is always written, its absence means that something is lost.
        if tensor.is_none() && self.precision == Precision::NvFp4 && !missing.is_empty() {
            return parts.refuse(format!("it has no {missing}"), "fetch the missing part, or look in the other shards");
        }
        Globals::new(parts, tensor, part == Part::Divisor)
    }
}
