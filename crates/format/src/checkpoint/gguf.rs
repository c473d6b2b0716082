//! GGUF files: metadata, then a table of tensors, then their bytes, all little-endian.
//!
//! The reader believes nothing. Every length is compared with the bytes that are left before it is used, so that
//! nothing larger than the file's own header is ever allocated; arrays are passed over without being kept; tensors must
//! be aligned, lie within the file and not overlap. Of the metadata only single texts and numbers are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use crate::files::{Bytes, Files};
use crate::{Error, Result};

const MAGIC: [u8; 4] = *b"GGUF";

/// Magic, version and the two counts.
const SHORTEST: usize = 24;

/// How deep arrays may be nested; real files do not nest them.
const MAX_DEPTH: usize = 4;

/// The most sides a tensor may have, as everywhere in ggml.
const MAX_SIDES: usize = 4;

/// The number by which ggml knows a type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Type(pub u32);

impl Type {
    pub const F32: Self = Self(0);
    pub const F16: Self = Self(1);
    pub const BF16: Self = Self(30);
    pub const MXFP4: Self = Self(39);
    pub const NVFP4: Self = Self(40);

    /// Its name, how many elements a block has, and how many bytes that takes; `None` for a type we have not heard of.
    fn known(self) -> Option<(&'static str, usize, usize)> {
        TYPES.iter().find(|(number, ..)| *number == self.0).map(|&(_, name, elements, bytes)| (name, elements, bytes))
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((name, ..)) => f.write_str(name),
            None => write!(f, "type {}", self.0),
        }
    }
}

/// Number, name, elements of a block, bytes of a block.
const TYPES: [(u32, &str, usize, usize); 34] = [
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
];

/// An open GGUF file.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    bytes: Bytes,
    contents: Contents,
}

impl File {
    /// Opens a file and checks everything but its tensors' elements.
    pub fn open(files: &Files, path: &Path) -> Result<Self> {
        let malformed = |problem| Error::Gguf { path: path.to_path_buf(), problem };
        let Some(bytes) = files.bytes(path, SHORTEST)? else {
            return Err(malformed(format!("it is shorter than the {SHORTEST} bytes every such file begins with")));
        };
        let contents = Contents::parse(&bytes).map_err(malformed)?;
        Ok(Self { path: path.to_path_buf(), bytes, contents })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of its tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.contents.tensors.keys().map(String::as_str)
    }

    /// The type, shape (row-major) and bytes of a tensor. Of a type we do not know there are no bytes.
    pub fn view(&self, name: &str) -> Option<(Type, &[usize], &[u8])> {
        let Tensor { kind, shape, start, length } = self.contents.tensors.get(name)?;
        Some((*kind, shape, &self.bytes[*start..][..*length]))
    }

    /// A number of the metadata, of whichever type; truth is 1.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.contents.numbers.get(key).copied()
    }

    /// Whether the metadata has an entry, of whichever type.
    pub fn has(&self, key: &str) -> bool {
        self.contents.keys.contains(key)
    }

    /// A text of the metadata.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.contents.texts.get(key).map(String::as_str)
    }
}

/// What a file's header describes.
#[derive(Debug)]
pub(super) struct Contents {
    tensors: BTreeMap<String, Tensor>,
    keys: BTreeSet<String>,
    texts: BTreeMap<String, String>,
    numbers: BTreeMap<String, f64>,
}

/// Where a tensor's bytes are, from the start of the file.
#[derive(Debug)]
struct Tensor {
    kind: Type,
    shape: Vec<usize>,
    start: usize,
    length: usize,
}

impl Contents {
    /// Reads the header of a whole file, or says in words what is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut reader = Reader { bytes, at: 0 };
        if *reader.array()? != MAGIC {
            return Err("it does not begin with GGUF".to_owned());
        }
        match reader.u32()? {
            2 | 3 => {}
            version if matches!(version.swap_bytes(), 1..=3) => {
                return Err("it is big-endian, and only little-endian files are read".to_owned());
            }
            version => return Err(format!("its version is {version}, where 2 or 3 is expected")),
        }
        // A tensor takes at least 24 bytes of the table, an entry of the metadata at least 13.
        let tensors = reader.count(24, "tensors")?;
        let entries = reader.count(13, "metadata")?;
        let Metadata { keys, texts, numbers, alignment } = Metadata::read(&mut reader, entries)?;
        let mut table = Vec::new();
        for _ in 0..tensors {
            table.push(Entry::read(&mut reader)?);
        }
        let data = reader.at.checked_next_multiple_of(alignment).filter(|data| *data <= bytes.len());
        // A file without tensors may end where their bytes would begin.
        let data = data.or_else(|| table.is_empty().then_some(bytes.len()));
        let data = data.ok_or("it ends before its tensors' bytes begin")?;
        let tensors = place(table, data, alignment, bytes.len())?;
        Ok(Self { tensors, keys, texts, numbers })
    }
}

/// What is kept of the metadata, and the alignment that it sets.
struct Metadata {
    keys: BTreeSet<String>,
    texts: BTreeMap<String, String>,
    numbers: BTreeMap<String, f64>,
    alignment: usize,
}

impl Metadata {
    fn read(reader: &mut Reader<'_>, entries: usize) -> Result<Self, String> {
        let (texts, numbers) = (BTreeMap::new(), BTreeMap::new());
        let mut found = Self { keys: BTreeSet::new(), texts, numbers, alignment: 32 };
        for _ in 0..entries {
            let key = reader.text("the key of an entry")?;
            let kind = reader.u32()?;
            match kind {
                VALUE_TEXT => {
                    found.texts.insert(key.to_owned(), reader.text("the value of an entry")?.to_owned());
                }
                VALUE_U32 if key == "general.alignment" => found.alignment = reader.u32()? as usize,
                _ if key == "general.alignment" => return Err("its alignment is no 32-bit number".to_owned()),
                _ => {
                    if let Some(number) = reader.number(kind)? {
                        found.numbers.insert(key.to_owned(), number);
                    } else {
                        reader.skip(kind, 0)?;
                    }
                }
            }
            if !found.keys.insert(key.to_owned()) {
                return Err(format!("its metadata has the key {key:?} twice"));
            }
        }
        if !found.alignment.is_power_of_two() {
            return Err(format!("its alignment is {}, which is no power of two", found.alignment));
        }
        Ok(found)
    }
}

/// A line of the table of tensors.
struct Entry<'a> {
    name: &'a str,
    kind: Type,
    shape: Vec<usize>,
    offset: u64,
    length: usize,
}

impl<'a> Entry<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, String> {
        let name = reader.text("the name of a tensor")?;
        let sides = reader.u32()? as usize;
        if sides > MAX_SIDES {
            return Err(format!("tensor {name:?} has {sides} sides, more than {MAX_SIDES}"));
        }
        let mut shape = Vec::with_capacity(sides);
        for _ in 0..sides {
            let side = usize::try_from(reader.u64()?).map_err(|_| format!("tensor {name:?} is too large"))?;
            shape.push(side);
        }
        // ggml lists the side along which rows run first.
        shape.reverse();
        let (kind, offset) = (Type(reader.u32()?), reader.u64()?);
        let length = length(kind, &shape).map_err(|problem| format!("tensor {name:?} {problem}"))?;
        Ok(Self { name, kind, shape, offset, length })
    }
}

/// How many bytes a tensor takes; none are claimed for a type that is not known.
fn length(kind: Type, shape: &[usize]) -> Result<usize, String> {
    let Some((_, elements, bytes)) = kind.known() else { return Ok(0) };
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(elements) {
        return Err(format!("of type {kind} has rows of {row} elements, which blocks of {elements} do not fill"));
    }
    let mut rows = shape[..shape.len().saturating_sub(1)].iter();
    let length =
        rows.try_fold(row / elements, |all, &side| all.checked_mul(side)).and_then(|all| all.checked_mul(bytes));
    length.ok_or_else(|| format!("of shape {shape:?} is larger than memory has addresses"))
}

/// Puts the table's tensors into the file, refusing what does not fit there.
fn place(
    mut table: Vec<Entry<'_>>,
    data: usize,
    alignment: usize,
    end: usize,
) -> Result<BTreeMap<String, Tensor>, String> {
    // An empty tensor may stand where another begins.
    table.sort_by_key(|entry| (entry.offset, entry.length));
    let mut tensors = BTreeMap::new();
    let (mut free, mut before) = (0u64, "");
    for Entry { name, kind, shape, offset, length } in table {
        if !offset.is_multiple_of(alignment as u64) {
            return Err(format!("tensor {name:?} begins at {offset}, which is no multiple of {alignment}"));
        }
        let room = (end - data) as u64;
        let after = offset.checked_add(length as u64).filter(|after| *after <= room).ok_or_else(|| {
            format!(
                "tensor {name:?} takes {length} bytes from {offset} on, but there are only {room}: the file is cut off"
            )
        })?;
        if offset < free {
            return Err(format!("tensors {before:?} and {name:?} overlap"));
        }
        (free, before) = (after, name);
        let tensor = Tensor { kind, shape, start: data + offset as usize, length };
        if tensors.insert(name.to_owned(), tensor).is_some() {
            return Err(format!("two tensors are named {name:?}"));
        }
    }
    Ok(tensors)
}

const VALUE_U32: u32 = 4;
const VALUE_TEXT: u32 = 8;
const VALUE_ARRAY: u32 = 9;

/// How many bytes a value of a fixed size takes.
fn value_bytes(kind: u32) -> Option<usize> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        VALUE_U32 | 5 | 6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

/// A place in the header. Nothing is read beyond the bytes.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let rest = &self.bytes[self.at..];
        let taken = rest
            .get(..length)
            .ok_or_else(|| format!("{length} bytes are announced at {}, but {} are left", self.at, rest.len()))?;
        self.at += length;
        Ok(taken)
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<&'a [u8; LENGTH], String> {
        let at = self.at;
        self.take(LENGTH)?.try_into().map_err(|_| format!("{LENGTH} bytes are expected at {at}"))
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(*self.array()?))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(*self.array()?))
    }

    /// A number of things of which each takes at least `least` bytes.
    fn count(&mut self, least: usize, what: &str) -> Result<usize, String> {
        let count = self.u64()?;
        let left = self.bytes.len() - self.at;
        match usize::try_from(count) {
            Ok(count) if count <= left / least => Ok(count),
            _ => Err(format!("it announces {count} {what}, more than its {left} bytes can hold")),
        }
    }

    fn text(&mut self, what: &str) -> Result<&'a str, String> {
        let at = self.at;
        let length = self.count(1, "characters")?;
        std::str::from_utf8(self.take(length)?).map_err(|_| format!("{what} at {at} is not UTF-8"))
    }

    /// A number of whichever type, if the value is one.
    fn number(&mut self, kind: u32) -> Result<Option<f64>, String> {
        Ok(Some(match kind {
            0 | 7 => self.array::<1>()?[0].into(),
            1 => i8::from_le_bytes(*self.array()?).into(),
            2 => u16::from_le_bytes(*self.array()?).into(),
            3 => i16::from_le_bytes(*self.array()?).into(),
            VALUE_U32 => self.u32()?.into(),
            5 => i32::from_le_bytes(*self.array()?).into(),
            6 => f32::from_le_bytes(*self.array()?).into(),
            10 => self.u64()? as f64,
            11 => i64::from_le_bytes(*self.array()?) as f64,
            12 => f64::from_le_bytes(*self.array()?),
            _ => return Ok(None),
        }))
    }

    /// Passes over a value.
    fn skip(&mut self, kind: u32, depth: usize) -> Result<(), String> {
        if let Some(bytes) = value_bytes(kind) {
            self.take(bytes)?;
        } else if kind == VALUE_TEXT {
            // Only where it ends matters here.
            let length = self.count(1, "characters")?;
            self.take(length)?;
        } else if kind == VALUE_ARRAY {
            if depth == MAX_DEPTH {
                return Err(format!("arrays are nested more than {MAX_DEPTH} deep at {}", self.at));
            }
            let items = self.u32()?;
            if let Some(bytes) = value_bytes(items) {
                let count = self.count(bytes, "array items")?;
                self.take(count * bytes)?;
            } else {
                // A text takes at least its length, an array a type and a length.
                for _ in 0..self.count(8, "array items")? {
                    self.skip(items, depth + 1)?;
                }
            }
        } else {
            return Err(format!("a value at {} has the unknown type {kind}", self.at));
        }
        Ok(())
    }
}
