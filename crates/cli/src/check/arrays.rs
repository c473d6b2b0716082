//! Arrays for kernels: numpy's files, and what fills a buffer without one.

use half::{bf16, f16};
use ptx::tensor_map::Element;

/// A type of numbers in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    Bf16,
    F32,
    F64,
}

/// Each type's name here, its name in numpy's files, and its bytes.
const DTYPES: [(Dtype, &str, &str, usize); 12] = [
    (Dtype::U8, "u8", "|u1", 1),
    (Dtype::I8, "i8", "|i1", 1),
    (Dtype::U16, "u16", "<u2", 2),
    (Dtype::I16, "i16", "<i2", 2),
    (Dtype::U32, "u32", "<u4", 4),
    (Dtype::I32, "i32", "<i4", 4),
    (Dtype::U64, "u64", "<u8", 8),
    (Dtype::I64, "i64", "<i8", 8),
    (Dtype::F16, "f16", "<f2", 2),
    // Numpy has no bfloat16: such a file says u16, and the launch file says better.
    (Dtype::Bf16, "bf16", "", 2),
    (Dtype::F32, "f32", "<f4", 4),
    (Dtype::F64, "f64", "<f8", 8),
];

impl Dtype {
    /// A type by its name, or which names there are.
    pub fn read(name: &str) -> Result<Dtype, String> {
        let found = DTYPES.iter().find(|(_, known, ..)| *known == name).map(|(dtype, ..)| *dtype);
        found.ok_or_else(|| format!("dtype is {name:?}; known are {}", Dtype::names()))
    }

    /// All names, for messages.
    fn names() -> String {
        DTYPES.map(|(_, name, ..)| name).join(", ")
    }

    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        DTYPES.iter().find(|(dtype, ..)| *dtype == self).map_or(1, |(.., bytes)| *bytes)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        DTYPES.iter().find(|(dtype, ..)| *dtype == self).map_or("", |(_, name, ..)| *name)
    }

    /// Whether a file may hold such numbers under another name: as whole ones if they are that, or as unsigned bits.
    pub fn may_be_held_as(self, held: Dtype) -> bool {
        let whole = |dtype: Dtype| dtype.name().starts_with(['u', 'i']);
        let bits = held.name().starts_with('u');
        self == held || self.bytes() == held.bytes() && whole(held) && (bits || whole(self))
    }

    /// The type as tensor maps have it.
    pub fn element(self) -> Option<Element> {
        match self {
            Dtype::U8 | Dtype::I8 => Some(Element::U8),
            Dtype::U16 | Dtype::I16 => Some(Element::U16),
            Dtype::U32 | Dtype::I32 => Some(Element::U32),
            Dtype::F16 => Some(Element::F16),
            Dtype::Bf16 => Some(Element::Bf16),
            Dtype::F32 => Some(Element::F32),
            Dtype::U64 | Dtype::I64 | Dtype::F64 => None,
        }
    }

    /// A number's bytes, rounded if it must be.
    fn encode(self, value: i64, eighths: bool) -> Vec<u8> {
        let float = if eighths { value as f64 / 8.0 } else { value as f64 };
        match self {
            Dtype::U8 | Dtype::I8 => vec![value as u8],
            Dtype::U16 | Dtype::I16 => (value as u16).to_le_bytes().into(),
            Dtype::U32 | Dtype::I32 => (value as u32).to_le_bytes().into(),
            Dtype::U64 | Dtype::I64 => value.to_le_bytes().into(),
            Dtype::F16 => f16::from_f64(float).to_le_bytes().into(),
            Dtype::Bf16 => bf16::from_f64(float).to_le_bytes().into(),
            Dtype::F32 => (float as f32).to_le_bytes().into(),
            Dtype::F64 => float.to_le_bytes().into(),
        }
    }

    /// A number as f64, of its bytes.
    pub fn decode(self, bytes: &[u8]) -> f64 {
        let bits = bytes.iter().rev().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
        match self {
            Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => bits as f64,
            Dtype::I8 => (bits as i8).into(),
            Dtype::I16 => (bits as i16).into(),
            Dtype::I32 => (bits as i32).into(),
            Dtype::I64 => bits.cast_signed() as f64,
            Dtype::F16 => f16::from_bits(bits as u16).to_f64(),
            Dtype::Bf16 => bf16::from_bits(bits as u16).to_f64(),
            Dtype::F32 => f32::from_bits(bits as u32).into(),
            Dtype::F64 => f64::from_bits(bits),
        }
    }

    fn is_float(self) -> bool {
        matches!(self, Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64)
    }
}

/// What a buffer holds at first, without a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Zeros.
    Zeros,
    /// Nothing: to read it before it is written is a finding.
    Poison,
    /// 0, 1, 2 and so on.
    Arange,
    /// As drawn from a seed: floats are multiples of an eighth from −4 to 4, of which sums and products are exact for
    /// long.
    Random(u64),
}

impl Fill {
    pub fn named(name: &str) -> Option<Fill> {
        match name {
            "zeros" => Some(Fill::Zeros),
            "poison" => Some(Fill::Poison),
            "arange" => Some(Fill::Arange),
            _ => name.strip_prefix("random:").and_then(|seed| seed.parse().ok()).map(Fill::Random),
        }
    }

    /// So many numbers; `None` where there are to be none.
    pub fn bytes(self, dtype: Dtype, count: usize) -> Option<Vec<u8>> {
        match self {
            Fill::Poison => None,
            Fill::Zeros => Some(vec![0; count * dtype.bytes()]),
            Fill::Arange => Some((0..count as i64).flat_map(|value| dtype.encode(value, false)).collect()),
            Fill::Random(seed) => {
                let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
                let mut draw = || {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33).cast_signed()
                };
                let value = |draw: i64| if dtype.is_float() { draw % 64 - 32 } else { draw };
                Some((0..count).flat_map(|_| dtype.encode(value(draw()), true)).collect())
            }
        }
    }
}

/// An array of a numpy file.
#[derive(Debug, PartialEq)]
pub struct Array {
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

/// Reads a numpy file, format 1 to 3, in C order.
pub fn npy(bytes: &[u8]) -> Result<Array, String> {
    let (head, rest) = bytes.split_at_checked(8).ok_or("it is shorter than a header")?;
    if &head[..6] != b"\x93NUMPY" {
        return Err("it does not begin as numpy's files do".into());
    }
    let wide = if head[6] == 1 { 2 } else { 4 };
    let (length, rest) = rest.split_at_checked(wide).ok_or("its header is cut off")?;
    let length = length.iter().rev().fold(0usize, |length, byte| length << 8 | usize::from(*byte));
    let (header, data) = rest.split_at_checked(length).ok_or("its header is cut off")?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is no text")?;
    let value = |key: &str| header.split_once(&format!("'{key}':")).map(|(_, rest)| rest.trim_start());
    let descr = value("descr").and_then(|rest| rest.strip_prefix('\'')?.split('\'').next());
    let descr = descr.ok_or("its header has no plain 'descr'")?;
    let dtype = DTYPES.iter().find(|(_, _, numpy, _)| *numpy == descr).map(|(dtype, ..)| *dtype);
    let dtype = dtype.ok_or_else(|| format!("its numbers are {descr:?}; known are {}", Dtype::names()))?;
    if !value("fortran_order").is_some_and(|rest| rest.starts_with("False")) {
        return Err("it is in Fortran's order; save it in C's (numpy.ascontiguousarray)".into());
    }
    let shape = value("shape").and_then(|rest| rest.strip_prefix('(')?.split(')').next()).ok_or("it has no shape")?;
    let sides = shape.split(',').map(str::trim).filter(|side| !side.is_empty());
    let shape = sides.map(|side| side.parse::<u64>().map_err(|_| format!("its shape is {shape:?}")));
    let shape = shape.collect::<Result<Vec<u64>, String>>()?;
    let count = shape.iter().try_fold(dtype.bytes() as u64, |count, side| count.checked_mul(*side));
    if count != Some(data.len() as u64) {
        return Err(format!("its shape {shape:?} of {descr} does not fit the {} bytes behind the header", data.len()));
    }
    Ok(Array { dtype, shape, bytes: data.to_vec() })
}

/// The same as a numpy file, of one dimension; bf16, which numpy has not, as u16.
pub fn npy_of(dtype: Dtype, bytes: &[u8]) -> Vec<u8> {
    let descr = DTYPES.iter().find(|(known, _, numpy, _)| *known == dtype && !numpy.is_empty());
    let descr = descr.map_or("<u2", |(_, _, numpy, _)| *numpy);
    let count = bytes.len() / dtype.bytes();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({count},), }}");
    // Data begins at a multiple of 64.
    header += &" ".repeat((64 - (10 + header.len() + 1) % 64) % 64);
    header.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(bytes);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let bytes: Vec<u8> = (0..24).collect();
        for (dtype, shape) in [(Dtype::F32, 6), (Dtype::U8, 24), (Dtype::F64, 3)] {
            let file = npy_of(dtype, &bytes);
            assert_eq!(npy(&file), Ok(Array { dtype, shape: vec![shape], bytes: bytes.clone() }));
            assert_eq!((file.len() - bytes.len()) % 64, 0);
        }
        assert_eq!(npy(&npy_of(Dtype::Bf16, &bytes)).map(|array| array.dtype), Ok(Dtype::U16));
    }

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn a_numpy_file_is_read() {
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }\n";
        let array = npy(&file(header, &[0, 0, 128, 63, 0, 0, 0, 64])).unwrap();
        assert_eq!((array.dtype, &array.shape[..]), (Dtype::F32, &[2, 1][..]));
        assert_eq!([0, 4].map(|at| array.dtype.decode(&array.bytes[at..at + 4])), [1.0, 2.0]);
        let scalar = npy(&file("{'descr': '<i8', 'fortran_order': False, 'shape': ()}", &[255; 8])).unwrap();
        assert_eq!((scalar.shape.len(), scalar.dtype.decode(&scalar.bytes)), (0, -1.0));
    }

    #[test]
    fn a_numpy_file_that_lies_is_refused() {
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}";
        let huge = "{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296)}";
        for (bytes, word) in [
            (Vec::new(), "shorter"),
            (b"PK\x03\x04\x00\x00\x00\x00".to_vec(), "begin"),
            (file(good, &[0; 3]), "does not fit"),
            (file(huge, &[]), "does not fit"),
            (file(&good.replace("False", "True"), &[0; 4]), "Fortran"),
            (file(&good.replace("<f4", ">f4"), &[0; 4]), "\">f4\""),
            (file(&good.replace("(1,)", "(-1,)"), &[0; 4]), "its shape"),
            (file(good, &[])[..20].to_vec(), "cut off"),
        ] {
            let refusal = npy(&bytes).unwrap_err();
            assert!(refusal.contains(word), "{refusal}");
        }
    }

    #[test]
    fn what_fills_a_buffer_is_the_same_every_time() {
        let halves = Fill::named("random:3").and_then(|fill| fill.bytes(Dtype::F16, 100)).unwrap();
        assert_eq!(Some(&halves), Fill::Random(3).bytes(Dtype::F16, 100).as_ref());
        let values: Vec<f64> = halves.chunks(2).map(|bytes| Dtype::F16.decode(bytes)).collect();
        assert!(values.iter().all(|value| (value * 8.0).fract() == 0.0 && value.abs() <= 4.0));
        assert!(values.iter().any(|value| *value < 0.0) && values.iter().any(|value| *value > 0.0));
        assert_eq!(Fill::Arange.bytes(Dtype::U16, 3).unwrap(), [0, 0, 1, 0, 2, 0]);
        assert_eq!((Fill::Poison.bytes(Dtype::U8, 3), Fill::named("random:x")), (None, None));
    }
}
