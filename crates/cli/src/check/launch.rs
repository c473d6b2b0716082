//! The launch file: what a kernel is given, and what should come of it.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ptx::Kernel;
use serde::Deserialize;
use sim::{Buffer, Gpu, Invocation};

use super::args::ArgFile;
use super::arrays::{Array, Dtype, Fill, npy, npy_of};
use crate::{Error, Result};

/// Bytes that all buffers of a launch may have together.
const MOST_BYTES: u64 = 2 << 30;
/// Bytes of a launch file.
const MOST_TEXT: u64 = 16 << 20;
/// Blocks of a grid.
const MOST_BLOCKS: u64 = 1 << 20;

/// As it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    entry: Option<String>,
    grid: Vec<u32>,
    block: Option<Vec<u32>>,
    cluster: Option<Vec<u32>>,
    #[serde(default)]
    shared: u32,
    #[serde(default)]
    cooperative: bool,
    #[serde(default)]
    buffer: BTreeMap<String, BufferFile>,
    #[serde(default)]
    arg: Vec<ArgFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BufferFile {
    file: Option<PathBuf>,
    dtype: Option<String>,
    shape: Option<Vec<u64>>,
    fill: Option<String>,
    expect: Option<PathBuf>,
    #[serde(default)]
    rtol: f64,
    #[serde(default)]
    atol: f64,
}

/// What a buffer holds at first. What fills one is made when it is needed.
#[derive(Debug)]
enum Start {
    Array(Vec<u8>),
    Fill(Fill),
}

/// Gives the bytes of a file that a launch file names, or says what is wrong with it.
pub type Bytes<'f> = dyn Fn(&Path) -> std::result::Result<Vec<u8>, String> + 'f;

/// What a buffer holds at first and should hold in the end.
#[derive(Debug)]
struct Contents {
    name: String,
    dtype: Dtype,
    count: usize,
    start: Start,
    expect: Option<Vec<u8>>,
    rtol: f64,
    atol: f64,
}

/// A launch, checked.
#[derive(Debug)]
pub struct Launch {
    pub entry: Option<String>,
    pub block: Option<[u32; 3]>,
    pub cluster: Option<[u32; 3]>,
    pub shared: u32,
    pub cooperative: bool,
    grid: [u32; 3],
    buffers: Vec<Contents>,
    args: Vec<ArgFile>,
    path: PathBuf,
}

impl Launch {
    /// Reads a launch file, and the arrays that it names, which are beside it.
    pub fn open(path: &Path) -> Result<Launch> {
        let refuse = |what: String| Error::CannotCheck { what: format!("{path:?}: {what}") };
        let folder = path.parent().unwrap_or(Path::new("."));
        let text = bytes_of(path, MOST_TEXT)
            .and_then(|bytes| String::from_utf8(bytes).map_err(|_| "it is no text".to_string()));
        let text = text.map_err(|what| refuse(format!("{what}; name a launch file")))?;
        Launch::read(path, &text, &|file| bytes_of(&folder.join(file), MOST_BYTES))
    }

    /// Reads the text of a launch file; `file` gives the bytes of those that it names.
    pub fn read(path: &Path, text: &str, file: &Bytes<'_>) -> Result<Launch> {
        let refuse = |what: String| Error::CannotCheck { what: format!("{path:?}: {what}") };
        let bytes_of_file = file;
        let file: File = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| 1 + before.matches('\n').count());
            refuse(format!("line {line}: {}", error.message().replace('\n', "; ")))
        })?;
        let sides = |what: &str, sides: &[u32]| match *sides {
            [x] => Ok([x, 1, 1]),
            [x, y] => Ok([x, y, 1]),
            [x, y, z] => Ok([x, y, z]),
            _ => Err(refuse(format!("{what} has {} sides; give one to three", sides.len()))),
        };
        let grid = sides("grid", &file.grid)?;
        let blocks = grid.iter().map(|side| u64::from(*side)).try_fold(1, u64::checked_mul);
        if blocks.is_none_or(|blocks| blocks > MOST_BLOCKS) {
            return Err(refuse(format!("a grid of {grid:?} blocks; at most {MOST_BLOCKS} are simulated")));
        }
        let block = file.block.as_deref().map(|block| sides("block", block)).transpose()?;
        let cluster = file.cluster.as_deref().map(|cluster| sides("cluster", cluster)).transpose()?;
        let (mut buffers, mut left) = (Vec::new(), MOST_BYTES);
        for (name, buffer) in file.buffer {
            let contents = contents(&name, buffer, bytes_of_file, &mut left)
                .map_err(|what| refuse(format!("buffer {name:?}: {what}")))?;
            buffers.push(contents);
        }
        let (entry, shared, cooperative) = (file.entry, file.shared, file.cooperative);
        let (args, path) = (file.arg, path.to_path_buf());
        Ok(Launch { entry, block, cluster, shared, cooperative, grid, buffers, args, path })
    }

    /// A device with the buffers.
    pub fn memory(&self, mut gpu: Gpu) -> (Gpu, Vec<Buffer>) {
        let place = |buffer: &Contents| match &buffer.start {
            Start::Array(bytes) => gpu.upload(&buffer.name, bytes),
            Start::Fill(fill) => match fill.bytes(buffer.dtype, buffer.count) {
                Some(bytes) => gpu.upload(&buffer.name, &bytes),
                None => gpu.alloc(&buffer.name, buffer.count * buffer.dtype.bytes()),
            },
        };
        let buffers = self.buffers.iter().map(place).collect();
        (gpu, buffers)
    }

    /// The launch as the simulator takes it.
    pub fn invocation(&self, kernel: &Kernel, buffers: &[Buffer]) -> Result<Invocation> {
        let refuse = |what: String| Error::CannotCheck { what: format!("{:?}: {what}", self.path) };
        if self.args.len() != kernel.params.len() {
            let names: Vec<&str> = kernel.params.iter().map(|param| param.name.as_str()).collect();
            let what = format!("{} arguments for {} parameters: {}", self.args.len(), names.len(), names.join(", "));
            return Err(refuse(what));
        }
        let named = |name: &str| {
            let found = self.buffers.iter().zip(buffers).find(|(held, _)| held.name == name);
            let found = found.map(|(held, buffer)| (held.dtype, buffer.address));
            found.ok_or_else(|| format!("there is no buffer {name:?}"))
        };
        let args = self.args.iter().zip(&kernel.params).map(|(arg, param)| {
            arg.arg(param, &named).map_err(|what| refuse(format!("the argument for {}: {what}", param.name)))
        });
        Ok(Invocation { grid: self.grid, args: args.collect::<Result<_>>()? })
    }

    /// Writes every buffer that is written from end to end into a folder, as numpy files of one dimension.
    pub fn save(&self, gpu: &Gpu, buffers: &[Buffer], folder: &Path) -> Result<()> {
        let cannot = |error: std::io::Error| Error::CannotCheck {
            what: format!("cannot write to {folder:?}: {error}; name a folder that can be written to"),
        };
        std::fs::create_dir_all(folder).map_err(cannot)?;
        for (contents, buffer) in self.buffers.iter().zip(buffers) {
            if let Ok(bytes) = gpu.download(*buffer) {
                let path = folder.join(format!("{}.npy", contents.name));
                std::fs::write(path, npy_of(contents.dtype, bytes)).map_err(cannot)?;
            }
        }
        Ok(())
    }

    /// The buffers that do not hold what they should, each with what is wrong.
    pub fn wrong(&self, gpu: &Gpu, buffers: &[Buffer]) -> Vec<(String, String)> {
        let compared = self.buffers.iter().zip(buffers).filter_map(|(contents, buffer)| {
            let expect = contents.expect.as_ref()?;
            let size = contents.dtype.bytes();
            let found = match gpu.download(*buffer) {
                Ok(found) => found,
                Err(at) => {
                    let (name, element) = (&contents.name, at / size);
                    return Some((name.clone(), format!("{name}: element {element} was never written")));
                }
            };
            let pairs = found.chunks_exact(size).zip(expect.chunks_exact(size)).enumerate();
            let differs = |(found, expect): (&[u8], &[u8])| {
                let (value, wanted) = (contents.dtype.decode(found), contents.dtype.decode(expect));
                let near = (value - wanted).abs() <= contents.atol + contents.rtol * wanted.abs();
                let exact = contents.atol == 0.0 && contents.rtol == 0.0;
                found != expect && (exact || !(near || value.is_nan() && wanted.is_nan()))
            };
            let wrong: Vec<_> = pairs.filter(|(_, pair)| differs(*pair)).collect();
            let (at, (value, wanted)) = *wrong.first()?;
            let [value, wanted] = [value, wanted].map(|bytes| contents.dtype.decode(bytes));
            let (name, count, all) = (&contents.name, wrong.len(), contents.count);
            Some((name.clone(), format!("{name}: {count} of {all} elements differ, first {at}: {value}, not {wanted}")))
        });
        compared.collect()
    }
}

/// The bytes of a file, if it is one, and no longer than it may be. Devices and pipes may have no end.
fn bytes_of(path: &Path, most: u64) -> std::result::Result<Vec<u8>, String> {
    let file = std::fs::File::open(path).map_err(|error| format!("{path:?}: {error}"))?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(format!("{path:?} is no file"));
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| format!("{path:?}: {error}"))?;
    if bytes.len() as u64 > most {
        return Err(format!("{path:?} has more than {most} bytes"));
    }
    Ok(bytes)
}

fn array(path: &Path, bytes: &Bytes<'_>) -> std::result::Result<Array, String> {
    npy(&bytes(path)?).map_err(|what| format!("{path:?}: {what}"))
}

fn contents(name: &str, file: BufferFile, bytes: &Bytes<'_>, left: &mut u64) -> std::result::Result<Contents, String> {
    let named = file.dtype.as_deref().map(Dtype::read).transpose()?;
    let (dtype, count, start) = match (&file.file, &file.fill) {
        (Some(path), None) => {
            let array = array(path, bytes)?;
            // The launch file may know better what the bits mean.
            let dtype = named.unwrap_or(array.dtype);
            if dtype.bytes() != array.dtype.bytes() {
                let (asked, held) = (dtype.name(), array.dtype.name());
                return Err(format!("dtype is {asked:?}, and {path:?} has numbers of {held:?}, of another width"));
            }
            let count = array.bytes.len() / dtype.bytes();
            if let Some(shape) = &file.shape
                && shape.iter().try_fold(1u64, |all, side| all.checked_mul(*side)) != Some(count as u64)
            {
                return Err(format!("shape is {shape:?}, and {path:?} has {count} numbers; leave it out"));
            }
            (dtype, count, Start::Array(array.bytes))
        }
        (None, Some(fill)) => {
            let known = Fill::named(fill);
            let fill = known.ok_or_else(|| format!("fill is {fill:?}; it is zeros, poison, arange or random:SEED"))?;
            let (Some(dtype), Some(shape)) = (named, &file.shape) else {
                return Err("a fill wants dtype and shape".into());
            };
            let count = shape.iter().try_fold(1u64, |count, side| count.checked_mul(*side));
            let size = count.and_then(|count| count.checked_mul(dtype.bytes() as u64));
            let Some((count, _)) = count.zip(size.filter(|bytes| *bytes <= *left)) else {
                return Err(format!("shape {shape:?} is too large; all buffers may have {MOST_BYTES} bytes together"));
            };
            (dtype, count as usize, Start::Fill(fill))
        }
        _ => return Err("give either file, or fill with dtype and shape".into()),
    };
    let size = (count * dtype.bytes()) as u64;
    *left = left
        .checked_sub(size)
        .ok_or_else(|| format!("all buffers may have {MOST_BYTES} bytes together, and this is one too many"))?;
    let expect = file.expect.as_deref().map(|path| array(path, bytes)).transpose()?;
    if let Some(expect) = expect.as_ref().filter(|expect| expect.bytes.len() as u64 != size) {
        return Err(format!("it has {size} bytes, and {} are expected of it", expect.bytes.len()));
    }
    if let Some(held) = expect.as_ref().map(|expect| expect.dtype).filter(|held| !dtype.may_be_held_as(*held)) {
        let (asked, held) = (dtype.name(), held.name());
        return Err(format!("its dtype is {asked:?}, and what is expected of it is of {held:?}; save it as {asked:?}"));
    }
    if let Some(wrong) = [file.rtol, file.atol].into_iter().find(|tolerance| tolerance.is_nan() || *tolerance < 0.0) {
        return Err(format!("a tolerance of {wrong}; rtol and atol are 0 or more"));
    }
    let (rtol, atol, expect) = (file.rtol, file.atol, expect.map(|expect| expect.bytes));
    Ok(Contents { name: name.to_owned(), dtype, count, start, expect, rtol, atol })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every seed of the fuzzer, as it reads them: up to a zero the launch file, and behind that what its arrays hold.
    #[test]
    fn launch_files_that_lie_get_a_sentence() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/launch");
        let mut refused = Vec::new();
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            let at = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            let text = std::str::from_utf8(&bytes[..at]).unwrap();
            let array = bytes.get(at + 1..).unwrap_or_default();
            if let Err(error) = Launch::read(&path, text, &|_| Ok(array.to_vec())) {
                let message = error.to_string();
                assert!(message.len() > 20 && !message.contains('\n'), "{message}");
                refused.push(path.file_name().unwrap().to_string_lossy().into_owned());
            }
        }
        refused.sort();
        let wanted = [
            "array_that_lies",
            "cut",
            "expects_another_size",
            "four_sides",
            "huge_grid",
            "huge_shape",
            "no_text",
            "nothing",
            "two_large_fills",
        ];
        assert_eq!(refused, wanted);
    }

    /// A file of numpy's with four numbers.
    fn four(descr: &str, bytes: usize) -> Vec<u8> {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (4,), }}\n");
        let length = (header.len() as u16).to_le_bytes();
        let parts = [&b"\x93NUMPY\x01\x00"[..], &length, header.as_bytes(), &vec![0; 4 * bytes]];
        parts.concat()
    }

    #[test]
    fn what_a_launch_file_says_of_its_arrays_is_held_against_them() {
        let read = |buffer: &str, descr: &str, bytes: usize| {
            let text = format!("grid = [1]\n[buffer.x]\n{buffer}\n");
            Launch::read(Path::new("launch.toml"), &text, &|_| Ok(four(descr, bytes)))
                .map_err(|error| error.to_string())
        };
        let filled = "dtype = \"f32\"\nshape = [4]\nfill = \"zeros\"\nexpect = \"x.npy\"";
        assert!(read("file = \"x.npy\"\nshape = [2, 2]\ndtype = \"bf16\"", "<u2", 2).is_ok());
        assert!(read(filled, "<f4", 4).is_ok() && read(filled, "<u4", 4).is_ok());
        for (buffer, descr, bytes, said) in [
            ("file = \"x.npy\"\nshape = [5]", "<f4", 4, "has 4 numbers"),
            ("file = \"x.npy\"\ndtype = \"f64\"", "<f4", 4, "of another width"),
            (filled, "<i4", 4, "save it as \"f32\""),
            (&format!("{filled}\nrtol = -1.0"), "<f4", 4, "a tolerance of -1"),
            (&format!("{filled}\natol = nan"), "<f4", 4, "a tolerance of NaN"),
        ] {
            let refusal = read(buffer, descr, bytes).expect_err(buffer);
            assert!(refusal.contains(said), "{refusal}");
        }
    }

    #[test]
    fn what_has_no_end_is_not_read() {
        let refusal = bytes_of(Path::new("/dev/zero"), MOST_BYTES).unwrap_err();
        assert!(refusal.contains("is no file"), "{refusal}");
    }
}
