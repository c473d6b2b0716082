//! safetensors files: named tensors behind a JSON header, which is how checkpoints travel.
//!
//! A [`File`] is memory-mapped, so opening a checkpoint of any size costs its header alone and matrices
//! borrow their bytes from the map. **A file must not be changed while it is mapped**: replace it by
//! renaming another over it, as [`write()`] does, and never write into it.
//!
//! The layout is eight bytes of little-endian header length, the header, then the tensors' bytes, which
//! must follow each other without gaps and end with the file. Headers over 100 MB are refused, as every
//! reader of the format does.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
pub use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::files::{Bytes, Files};
use crate::{BLOCK, Dense, Error, GlobalScale, Matrix, Result, Values, scales};

mod write;
pub use write::{Writer, write};

#[cfg(target_endian = "big")]
compile_error!("safetensors are little-endian and are read here in place: big-endian machines are not supported");

/// The length of the header's length.
const PREFIX: usize = size_of::<u64>();

/// The longest header that readers of the format accept.
const MAX_HEADER: usize = 100_000_000;

/// The key under which a header keeps the file's own metadata, so that no tensor can have that name.
const METADATA_KEY: &str = "__metadata__";

/// An open safetensors file.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    bytes: Bytes,
    data_start: usize,
    tensors: BTreeMap<String, TensorInfo>,
    metadata: Option<HashMap<String, String>>,
}

impl File {
    /// Maps a file and checks its header; every tensor it names is then known to lie within the file.
    ///
    /// # Errors
    ///
    /// If there is no such file, if it is no regular file, if it may not be read, or if it is not valid
    /// safetensors.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_in(&Files::Disk, path.as_ref())
    }

    /// The same, of files that may be held in memory.
    pub(crate) fn open_in(files: &Files, path: &Path) -> Result<Self> {
        let path = path.to_path_buf();
        let Some(bytes) = files.bytes(&path, PREFIX)? else {
            return Err(malformed(path, "it is shorter than its 8-byte header length"));
        };
        match parse(&bytes) {
            Ok((data_start, header)) => {
                let metadata = header.metadata().clone();
                let tensors = header.tensors().into_iter();
                let tensors = tensors.map(|(name, info)| (name, info.clone())).collect();
                Ok(Self { path, bytes, data_start, tensors, metadata })
            }
            Err(problem) => Err(malformed(path, &problem)),
        }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of its tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether it holds a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The tensor of that name, borrowing its bytes from the map.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let info = self.tensors.get(name).ok_or_else(|| Error::MissingTensor {
            path: self.path.clone(),
            name: name.to_owned(),
            count: self.tensors.len(),
        })?;
        let (start, end) = info.data_offsets;
        Ok(Tensor {
            name: name.to_owned(),
            dtype: info.dtype,
            shape: info.shape.clone(),
            bytes: Cow::Borrowed(&self.bytes[self.data_start..][start..end]),
        })
    }

    /// The type, shape and bytes of a tensor, where [`File::tensor`] would make a copy of its name and shape.
    pub(crate) fn view(&self, name: &str) -> Option<(Dtype, &[usize], &[u8])> {
        let info = self.tensors.get(name)?;
        let (start, end) = info.data_offsets;
        Some((info.dtype, &info.shape, &self.bytes[self.data_start..][start..end]))
    }

    /// What the file says about itself, if it does: text under text keys.
    pub fn metadata(&self) -> Option<&HashMap<String, String>> {
        self.metadata.as_ref()
    }
}

/// Where the tensors' bytes begin, and the header that describes them; or what is wrong.
///
/// `Metadata` checks as it is parsed that the tensors' bytes follow each other without gaps and that each
/// range fits its type and shape. That the last one ends with the file is checked here, without overflow.
fn parse(bytes: &[u8]) -> Result<(usize, Metadata), String> {
    let (prefix, rest) = bytes.split_first_chunk().ok_or("its header length is cut off")?;
    let length = u64::from_le_bytes(*prefix);
    if length > MAX_HEADER as u64 {
        return Err(format!("it claims a header of {length} bytes, more than the {MAX_HEADER} allowed"));
    }
    let length = length as usize;
    let (header, data) = rest
        .split_at_checked(length)
        .ok_or_else(|| format!("it claims a header of {length} bytes, but only {} follow", rest.len()))?;
    let text = header;
    let header: Metadata = serde_json::from_slice(header).map_err(|error| {
        let place =
            culprit(header).map_or_else(String::new, |name| format!(" at tensor {}", one_line(&format!("{name:?}"))));
        format!("its header is wrong{place} ({})", one_line(&error.to_string()))
    })?;
    // The parser keeps the last of two entries with one name, other readers may keep the first.
    let names = serde_json::from_slice(text).map_or(0, |NameCount(names)| names);
    if names != header.offset_keys().len() {
        return Err("its header has the name of a tensor twice".to_owned());
    }
    if header.data_len() != data.len() {
        return Err(format!("its tensors take {} bytes, but {} follow the header", header.data_len(), data.len()));
    }
    Ok((PREFIX + length, header))
}

/// How many names of tensors a header has, those that are there twice counted twice.
struct NameCount(usize);

impl<'de> Deserialize<'de> for NameCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counter;
        impl<'de> Visitor<'de> for Counter {
            type Value = NameCount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a header")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<NameCount, A::Error> {
                let mut names = 0;
                while let Some((name, IgnoredAny)) = entries.next_entry::<String, _>()? {
                    names += usize::from(name != METADATA_KEY);
                }
                Ok(NameCount(names))
            }
        }
        deserializer.deserialize_map(Counter)
    }
}

/// The first tensor of a wrong header whose entry cannot be read or contradicts itself: the parser's complaint does not
/// name it.
fn culprit(header: &[u8]) -> Option<String> {
    let entries: BTreeMap<String, serde_json::Value> = serde_json::from_slice(header).ok()?;
    let contradicts = |info: &TensorInfo| {
        let elements = info.shape.iter().try_fold(1usize, |all, &side| all.checked_mul(side));
        let bits = elements.and_then(|elements| elements.checked_mul(info.dtype.bitsize()));
        let (start, end) = info.data_offsets;
        bits.is_none_or(|bits| !bits.is_multiple_of(8) || start.checked_add(bits / 8) != Some(end))
    };
    let tensors = entries.into_iter().filter(|(name, _)| name != METADATA_KEY);
    tensors
        .map(|(name, info)| (name, serde_json::from_value::<TensorInfo>(info)))
        .find(|(_, info)| info.as_ref().map_or(true, contradicts))
        .map(|(name, _)| name)
}

fn malformed(path: PathBuf, problem: &str) -> Error {
    Error::Malformed { path, problem: problem.to_owned() }
}

/// A parser's complaint without what it may have quoted from a hostile header: line breaks, or a megabyte.
fn one_line(complaint: &str) -> String {
    complaint.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A tensor: a name, a type, a shape and the bytes, little-endian and row-major.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Its name in the file.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape; empty for a scalar.
    pub shape: Vec<usize>,
    /// Its elements' bytes.
    pub bytes: Cow<'a, [u8]>,
}

impl<'a> Tensor<'a> {
    /// A tensor of bytes that already are what `dtype` says.
    pub fn from_bytes(
        name: impl Into<String>,
        dtype: Dtype,
        shape: impl Into<Vec<usize>>,
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Self {
        Self { name: name.into(), dtype, shape: shape.into(), bytes: bytes.into() }
    }

    /// A tensor of half-precision numbers.
    pub fn from_f16(name: impl Into<String>, shape: impl Into<Vec<usize>>, values: Vec<f16>) -> Self {
        Self::from_bytes(name, Dtype::F16, shape, bytemuck::cast_slice(&values).to_vec())
    }

    /// A tensor of bfloat16 numbers.
    pub fn from_bf16(name: impl Into<String>, shape: impl Into<Vec<usize>>, values: Vec<bf16>) -> Self {
        Self::from_bytes(name, Dtype::BF16, shape, bytemuck::cast_slice(&values).to_vec())
    }

    /// A tensor of single-precision numbers.
    pub fn from_f32(name: impl Into<String>, shape: impl Into<Vec<usize>>, values: Vec<f32>) -> Self {
        Self::from_bytes(name, Dtype::F32, shape, bytemuck::cast_slice(&values).to_vec())
    }

    /// Refuses a tensor whose type is none of `expected`.
    ///
    /// # Errors
    ///
    /// If it is none of them.
    pub fn expect_dtype(&self, expected: &[Dtype]) -> Result<()> {
        self.expect_dtype_or(expected, "check that this is the tensor you mean, or convert it")
    }

    fn expect_dtype_or(&self, expected: &[Dtype], remedy: &'static str) -> Result<()> {
        if expected.contains(&self.dtype) {
            return Ok(());
        }
        Err(Error::Dtype { name: self.name.clone(), expected: expected.to_vec(), came: self.dtype, remedy })
    }

    /// Its rows and columns.
    ///
    /// # Errors
    ///
    /// If it does not have two dimensions.
    pub fn shape2(&self) -> Result<(usize, usize)> {
        match self.shape[..] {
            [rows, columns] => Ok((rows, columns)),
            _ => {
                Err(self
                    .wrong_shape("[rows, columns]".to_owned(), "reshape it, or take one matrix of a stacked tensor"))
            }
        }
    }

    /// Its one number, of type F32 and shape `[]` or `[1]`: both are in use for global scales.
    ///
    /// # Errors
    ///
    /// If it is anything else.
    pub fn scalar_f32(&self) -> Result<f32> {
        self.expect_dtype(&[Dtype::F32])?;
        if !matches!(self.shape[..], [] | [1]) {
            return Err(self.wrong_shape("[] or [1]".to_owned(), "pick the one element that belongs to the matrix"));
        }
        let bytes = self.bytes[..].try_into().map_err(|_| self.wrong_bytes())?;
        Ok(f32::from_le_bytes(bytes))
    }

    /// Its elements, borrowed where the bytes are borrowed and aligned, else copied.
    ///
    /// # Errors
    ///
    /// If its type is none of F16, BF16 and F32, or if its bytes do not fit its shape.
    pub fn into_values(self) -> Result<Values<'a>> {
        self.expect_dtype(&[Dtype::F16, Dtype::BF16, Dtype::F32])?;
        self.check_bytes()?;
        Ok(match self.dtype {
            Dtype::F16 => Values::F16(reinterpret(self.bytes)),
            Dtype::BF16 => Values::BF16(reinterpret(self.bytes)),
            _ => Values::F32(reinterpret(self.bytes)),
        })
    }

    /// The matrix it is, under a global scale.
    ///
    /// # Errors
    ///
    /// As of [`Tensor::shape2`], [`Tensor::into_values`] and [`Dense::new`].
    pub fn into_dense(self, global: impl Into<GlobalScale>) -> Result<Dense<'a>> {
        let (rows, k) = self.shape2()?;
        Dense::new(rows, k, self.into_values()?, global)
    }

    /// Refuses bytes that do not fit type and shape.
    fn check_bytes(&self) -> Result<()> {
        let elements = self.shape.iter().try_fold(1usize, |all, &side| all.checked_mul(side));
        match elements.and_then(|elements| elements.checked_mul(self.dtype.bitsize())) {
            Some(bits) if bits % 8 == 0 && bits / 8 == self.bytes.len() => Ok(()),
            _ => Err(self.wrong_bytes()),
        }
    }

    fn wrong_bytes(&self) -> Error {
        Error::Bytes { name: self.name.clone(), dtype: self.dtype, shape: self.shape.clone(), came: self.bytes.len() }
    }

    fn wrong_shape(&self, expected: String, remedy: &'static str) -> Error {
        Error::Shape { name: self.name.clone(), expected, came: self.shape.clone(), remedy }
    }
}

/// Bytes as the elements they are. Owned bytes are copied, since a `Vec<u8>` cannot become a wider one.
fn reinterpret<T: bytemuck::Pod>(bytes: Cow<'_, [u8]>) -> Cow<'_, [T]> {
    match bytes {
        Cow::Borrowed(bytes) => match bytemuck::try_cast_slice(bytes) {
            Ok(aligned) => Cow::Borrowed(aligned),
            Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
        },
        Cow::Owned(bytes) => Cow::Owned(bytemuck::pod_collect_to_vec(&bytes)),
    }
}

/// The NVFP4 matrix made of two of a file's tensors, borrowing both: `codes`, U8 [rows, K/2], and
/// `scales`, F8_E4M3 [rows, K/16], row-major. A bare number as global scale multiplies.
///
/// # Errors
///
/// If a tensor is missing, has another type or shape, or holds what [`Matrix::new`] refuses.
pub fn matrix<'a>(file: &'a File, codes: &str, scales: &str, global: impl Into<GlobalScale>) -> Result<Matrix<'a>> {
    let in_file = |reason| Error::InFile { path: file.path.clone(), reason: Box::new(reason) };
    let (codes, scales) = (file.tensor(codes)?, file.tensor(scales)?);
    let (rows, k) = codes_shape(&codes).map_err(in_file)?;
    check_scales(&scales, rows, k / BLOCK).map_err(in_file)?;
    let name = scales.name;
    Matrix::new(rows, k, codes.bytes, scales.bytes, global).map_err(|reason| Error::InTensor {
        path: file.path.clone(),
        name,
        reason: Box::new(reason),
    })
}

/// The rows and K of packed codes.
fn codes_shape(codes: &Tensor<'_>) -> Result<(usize, usize)> {
    codes.expect_dtype_or(
        &[Dtype::U8],
        "only NVFP4 layers are packed two codes a byte; read this one as an ordinary tensor",
    )?;
    match codes.shape[..] {
        [rows, bytes] if bytes > 0 && bytes.is_multiple_of(BLOCK / 2) => Ok((rows, bytes * 2)),
        _ => Err(codes.wrong_shape(
            "[rows, K/2] with K a positive multiple of 16".to_owned(),
            "check that this is a packed NVFP4 weight and not a stack or a transpose of such",
        )),
    }
}

/// Refuses scales that are not e4m3 [rows, blocks].
fn check_scales(tensor: &Tensor<'_>, rows: usize, blocks: usize) -> Result<()> {
    tensor.expect_dtype_or(
        &[Dtype::F8_E4M3],
        "block scales are e4m3; a scale of another type belongs to another kind of quantisation",
    )?;
    if tensor.shape == [rows, blocks] {
        return Ok(());
    }
    let blocked = scales::blocked_len(rows, blocks).is_ok_and(|len| len == tensor.bytes.len());
    let remedy = if blocked {
        "it has the size of the blocked layout; if it is, bring it to row-major order with scales::from_blocked"
    } else {
        "check that codes and scales belong to the same weight"
    };
    Err(tensor.wrong_shape(format!("[{rows}, {blocks}]"), remedy))
}
