//! What can be wrong with bytes, shapes, numbers and files. Each message is one line that says where, what
//! was expected, what was got, and what to do about it.

use std::io;
use std::path::PathBuf;

use safetensors::Dtype;

use crate::GlobalScale;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Refuses a global scale that would make every element NaN or infinite.
pub(crate) fn usable(global: impl Into<GlobalScale>) -> Result<GlobalScale> {
    let came = global.into();
    if came.is_usable() { Ok(came) } else { Err(Error::Global { came }) }
}

/// Everything this crate refuses, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// K of an NVFP4 matrix is not made of whole blocks.
    #[error("K is {k}, but a quantised row is made of blocks of 16: pad K with zeros to a positive multiple of 16")]
    UnevenK {
        /// The K that came.
        k: usize,
    },
    /// K of a dense matrix is zero.
    #[error("K is 0, but a row needs at least one element: check that the shape is [rows, K] and not [K, rows]")]
    ZeroK,
    /// A shape with more elements than can be addressed.
    #[error(
        "a matrix of {rows} rows and {columns} columns has more elements than memory has addresses: check the shape"
    )]
    TooLarge {
        /// The rows asked for.
        rows: usize,
        /// The columns asked for.
        columns: usize,
    },
    /// A buffer whose length does not fit the shape.
    #[error(
        "the {part} of a matrix of {rows} rows and {columns} columns must have length {expected}, but {came} came: check the shape, the packing and the padding"
    )]
    Length {
        /// Which buffer.
        part: &'static str,
        /// The rows of the shape.
        rows: usize,
        /// The columns of the shape: elements, or for bare scales blocks.
        columns: usize,
        /// The length that fits.
        expected: usize,
        /// The length that came.
        came: usize,
    },
    /// A block scale is NaN.
    #[error(
        "the scale of row {row}, block {block} is NaN (byte {byte:#04x}), where a finite e4m3 number is expected: the file is damaged, or its scales are not e4m3"
    )]
    NanScale {
        /// The row it scales.
        row: usize,
        /// Which sixteen elements of the row it scales.
        block: usize,
        /// The byte itself.
        byte: u8,
    },
    /// A number of an FP8 matrix is NaN.
    #[error(
        "the FP8 number at row {row}, column {column} is NaN (byte {byte:#04x}): the file is damaged, or its numbers are not e4m3"
    )]
    Fp8Nan {
        /// The row of the number.
        row: usize,
        /// The column of the number.
        column: usize,
        /// The byte itself.
        byte: u8,
    },
    /// A scale of an FP8 matrix is no finite number.
    #[error(
        "scale {index} of an FP8 matrix is {came}, where a finite number is expected: the file is damaged, or the scales are of another type"
    )]
    Fp8Scale {
        /// Which one, counted in the order of the tensor.
        index: usize,
        /// The scale that came.
        came: f32,
    },
    /// Blocks of an FP8 matrix that cannot be computed with.
    #[error(
        "blocks of {rows} rows and {columns} columns share an FP8 scale, where at least one row and a multiple of 32 columns are expected: expand this matrix"
    )]
    Fp8Block {
        /// Rows of a block.
        rows: usize,
        /// Elements of each row.
        columns: usize,
    },
    /// K of an MXFP4 or MXFP8 matrix is not made of whole blocks.
    #[error(
        "K is {k}, but an MXFP4 or MXFP8 row is made of blocks of 32: pad K with zeros to a positive multiple of 32"
    )]
    UnevenMx {
        /// The K that came.
        k: usize,
    },
    /// A global scale that makes no number.
    #[error(
        "the global scale is {came}, where a finite number is expected: check which tensor it was read from, and whether it multiplies or divides"
    )]
    Global {
        /// The global scale that came.
        came: GlobalScale,
    },
    /// A global scale that nothing can be quantised with.
    #[error(
        "the global scale to quantise with is {came}, where a finite number above zero is expected: leave it out to have it derived from the data"
    )]
    QuantizingGlobal {
        /// The global scale that came.
        came: GlobalScale,
    },
    /// An element that cannot be quantised.
    #[error(
        "the element at row {row}, column {column} is {came}, where a finite f32 is expected: repair the source before quantising it"
    )]
    NotFinite {
        /// The row of the element.
        row: usize,
        /// The column of the element.
        column: usize,
        /// The element, its global scale applied.
        came: f64,
    },
    /// Two matrices that were to be compared have different shapes.
    #[error(
        "the source has shape {source_shape:?} but the quantised matrix {quantised_shape:?}: compare a matrix with its own quantised form"
    )]
    ShapesDiffer {
        /// The source's [rows, K].
        source_shape: [usize; 2],
        /// The quantised matrix's [rows, K].
        quantised_shape: [usize; 2],
    },
    /// A file that could not be opened, looked at or mapped.
    #[error("cannot read {path:?}: {cause}; check that the path is right and that you may read it")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// Something at the path that is not a regular file.
    #[error("{path:?} is {what}, where a file is expected: name the file itself, such as model.safetensors")]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// A file that is not valid safetensors.
    #[error(
        "{path:?} is not a valid safetensors file: {problem}; the file is damaged, incomplete or of another format: fetch or write it again"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor that a file does not hold.
    #[error(
        "{path:?} holds no tensor {name:?} among its {count}: check the name, or look in the checkpoint's other files"
    )]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The name asked for.
        name: String,
        /// How many tensors the file holds.
        count: usize,
    },
    /// A tensor of another element type than is needed.
    #[error("tensor {name:?} has type {came}, where {} is expected: {remedy}", join(expected))]
    Dtype {
        /// The tensor.
        name: String,
        /// The types that would do.
        expected: Vec<Dtype>,
        /// The type it has.
        came: Dtype,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A tensor of another shape than is needed.
    #[error("tensor {name:?} has shape {came:?}, where {expected} is expected: {remedy}")]
    Shape {
        /// The tensor.
        name: String,
        /// The shape that would do, in words.
        expected: String,
        /// The shape it has.
        came: Vec<usize>,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A tensor whose bytes do not fit its type and shape.
    #[error(
        "tensor {name:?} of type {dtype} and shape {shape:?} has {came} bytes, which do not fit: give it as many as its shape needs"
    )]
    Bytes {
        /// The tensor.
        name: String,
        /// Its element type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// How many bytes it has.
        came: usize,
    },
    /// A name that a safetensors file cannot hold.
    #[error("cannot write a tensor named {name:?}: {problem}; give every tensor a name of its own")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A file that could not be written; nothing was left under its name.
    #[error(
        "cannot write {path:?}: {cause}; check that its folder exists, that you may write there and that the disk has room"
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// MXFP4 blocks whose scales are too far apart for one NVFP4 matrix.
    #[error(
        "its MXFP4 scales span 2^{least} (row {}, block {}) to 2^{most} (row {}, block {}), but the e4m3 scales of NVFP4 have 18 consecutive powers of two: this matrix has no exact NVFP4 form, which this GPU or the NVFP4 matrices beside it need; compute it in a layer of MXFP4 alone, on a CPU or with the GPU kernels of sm90 or sm80 (HAMMERHEAD_FAMILY=sm80), or quantise its bf16 source anew",
        at[0], at[1], most_at[0], most_at[1]
    )]
    Widening {
        /// The smallest scale's exponent, of blocks that are not zero.
        least: i32,
        /// Its row and block.
        at: [usize; 2],
        /// The largest scale's exponent.
        most: i32,
        /// Its row and block.
        most_at: [usize; 2],
    },
    /// MXFP4 blocks whose scales are too far apart for one matrix.
    #[error(
        "its MXFP4 scales span 2^{least} (row {}, block {}) to 2^{most} (row {}, block {}), which is more powers of two than can be computed with (127 at most, 25 where a GPU is given f16, NVFP4 or FP8 tokens); quantise its bf16 source anew",
        at[0], at[1], most_at[0], most_at[1]
    )]
    Powers {
        /// The smallest scale's exponent, of blocks that are not zero.
        least: i32,
        /// Its row and block.
        at: [usize; 2],
        /// The largest scale's exponent.
        most: i32,
        /// Its row and block.
        most_at: [usize; 2],
    },
    /// An NVFP4 block of 32 elements that MXFP4 has no scale for.
    #[error(
        "row {row}, block {block} of 32 elements has two scales, or one that is no power of two: this matrix has no exact MXFP4 form; pack it as NVFP4"
    )]
    Narrowing {
        /// The row.
        row: usize,
        /// The block of 32.
        block: usize,
    },
    /// Scales of FP8, asked for codes of four bits.
    #[error("codes of four bits have no scales of {asked}; ask for nvfp4 or mxfp4")]
    CodesOfFp8 {
        /// The kind of scales.
        asked: String,
    },
    /// A global scale that has no room for what MXFP4's scales have in common.
    #[error("its global scale is {came}, which times 2^{exponent} is no f32; quantise its bf16 source anew")]
    WideningGlobal {
        /// The global scale that came.
        came: GlobalScale,
        /// The power of two that the block scales cannot take up.
        exponent: i32,
    },
    /// A file that is not valid GGUF.
    #[error(
        "{path:?} is not a valid GGUF file: {problem}; the file is damaged, incomplete or of another format: fetch or write it again"
    )]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A path at which no model can be found.
    #[error("no model is found at {path:?}: {problem}; {remedy}")]
    NoModel {
        /// The path that was given.
        path: PathBuf,
        /// What was found there.
        problem: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A file beside the weights that cannot be used: a configuration, or the index of shards.
    #[error("{path:?} cannot be used: {problem}; fetch or write it again")]
    Companion {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A shard that an index or a folder names but that must not or cannot be taken for one.
    #[error("{path:?} names the shard {shard:?}: {problem}; {remedy}")]
    Shard {
        /// The index or the folder.
        path: PathBuf,
        /// What it names.
        shard: String,
        /// What is wrong with that.
        problem: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// Two tensors of one name in one checkpoint.
    #[error("tensor {name:?} is in {first:?} and again in {second:?}: keep one, or name a single file")]
    TwiceThere {
        /// The tensor.
        name: String,
        /// The file it was found in first.
        first: PathBuf,
        /// The other file.
        second: PathBuf,
    },
    /// Something that can be read in more than one way.
    #[error("in {path:?}, {what}: {problem}; {remedy}")]
    Ambiguous {
        /// The checkpoint.
        path: PathBuf,
        /// Which part of it.
        what: String,
        /// Why it is not clear.
        problem: String,
        /// Which option settles it.
        remedy: String,
    },
    /// A weight whose parts do not make a quantised matrix.
    #[error("in {path:?}, weight {name:?}: {problem}; {remedy}")]
    Weight {
        /// The file, or the checkpoint where the parts lie in several.
        path: PathBuf,
        /// The weight.
        name: String,
        /// What is wrong.
        problem: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A weight that is stored in another way than in blocks of 4-bit floats.
    #[error(
        "in {path:?}, weight {name:?} is {came}, not NVFP4: {}",
        if *declared { "the configuration leaves this layer out; take another" } else { "take another layer, or quantise it first" }
    )]
    NotQuantised {
        /// The checkpoint.
        path: PathBuf,
        /// The weight.
        name: String,
        /// How it is stored.
        came: String,
        /// Whether the checkpoint's configuration says so itself.
        declared: bool,
    },
    /// A layer that a checkpoint does not have.
    #[error("{path:?} has no layer {layer} with a gated pair: {known}")]
    NoLayer {
        /// The checkpoint.
        path: PathBuf,
        /// The layer asked for.
        layer: usize,
        /// Which it has, in words.
        known: String,
    },
    /// An expert that a layer does not have.
    #[error("{path:?}, layer {layer} has no expert {expert}: {known}")]
    NoExpert {
        /// The checkpoint.
        path: PathBuf,
        /// The layer.
        layer: usize,
        /// The expert asked for.
        expert: usize,
        /// Which it has, in words.
        known: String,
    },
    /// A name that is none of those known.
    #[error("there is no {what} {name:?}: known are {known}")]
    UnknownName {
        /// What was to be named.
        what: &'static str,
        /// The name.
        name: String,
        /// The names there are.
        known: &'static str,
    },
    /// A tensor of a file is not what it should be.
    #[error("in {path:?}: {reason}")]
    InFile {
        /// The file.
        path: PathBuf,
        /// Which tensor, and what is wrong with it.
        reason: Box<Error>,
    },
    /// What a tensor of a file holds is refused.
    #[error("in {path:?}, tensor {name:?}: {reason}")]
    InTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What is wrong with what it holds.
        reason: Box<Error>,
    },
}

fn join(dtypes: &[Dtype]) -> String {
    let names: Vec<String> = dtypes.iter().map(Dtype::to_string).collect();
    names.join(" or ")
}
