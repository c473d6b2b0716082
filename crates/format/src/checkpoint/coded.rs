//! A quantised weight as it lies in a checkpoint, and the matrices that are cut out of it.
//!
//! A weight may be a stack of matrices, one per expert; it may be transposed; gate and up may be fused in it, one after
//! the other or row by row; its scales may be in the blocked layout. Whatever it is, a matrix comes out in the one form
//! that the rest of the house knows. Where its bytes already lie in that form they are borrowed, else one matrix is
//! copied.

use std::borrow::Cow;
use std::path::Path;
use std::str::FromStr;

use super::Precision;
use super::parts::Parts;
use super::store::View;
use crate::{BLOCK, Error, GlobalScale, Matrix, Result, scales};

/// Which rows of a stored matrix make a matrix of its own: gate and up are often fused in one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// All of them.
    All,
    /// The first half, as where all of gate stands before all of up.
    FirstHalf,
    /// The second half.
    SecondHalf,
    /// Every other row from the first on, as where gate and up are interleaved.
    Even,
    /// Every other row from the second on.
    Odd,
}

impl FromStr for Rows {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = [Rows::All, Rows::FirstHalf, Rows::SecondHalf, Rows::Even, Rows::Odd];
        let names = ["all", "first-half", "second-half", "even", "odd"];
        let found = names.iter().position(|known| *known == name);
        found.map(|at| known[at]).ok_or_else(|| Error::UnknownName {
            what: "rows",
            name: name.to_owned(),
            known: "all, first-half, second-half, even, odd",
        })
    }
}

impl Rows {
    /// How many of so many rows that is.
    pub(super) fn of(self, rows: usize) -> usize {
        if self == Rows::All { rows } else { rows / 2 }
    }

    /// Where they begin, and how far they are apart.
    fn start_and_step(self, rows: usize) -> (usize, usize) {
        match self {
            Rows::All | Rows::FirstHalf => (0, 1),
            Rows::SecondHalf => (rows / 2, 1),
            Rows::Even => (0, 2),
            Rows::Odd => (1, 2),
        }
    }
}

/// How the bytes lie.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bytes<'a> {
    /// Codes two a byte, even k low, and scales apart; both row-major, or both transposed.
    Apart { codes: &'a [u8], scales: &'a [u8], transposed: bool },
    /// The same with scales in the blocked layout, over the rows of the whole stack.
    Swizzled { codes: &'a [u8], scales: &'a [u8] },
    /// Scales and codes together, as ggml has them.
    Ggml(&'a [u8]),
}

/// A quantised weight.
#[derive(Clone, Debug)]
pub(super) struct Coded<'a> {
    /// The tensor that holds the codes.
    pub name: &'a str,
    /// The file which that is in.
    pub path: &'a Path,
    pub precision: Precision,
    /// How many matrices are stacked; 1 where it is a matrix.
    pub stack: usize,
    /// The rows of each.
    pub rows: usize,
    pub k: usize,
    pub bytes: Bytes<'a>,
    pub globals: Globals<'a>,
}

/// Global scales: one for all, one per matrix, or two a fused matrix; without a tensor 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Globals<'a> {
    tensor: Option<View<'a>>,
    divide: bool,
}

impl<'a> Globals<'a> {
    /// Global scales that multiply, or that divide. They are not read yet.
    pub fn new(parts: &Parts<'a>, tensor: Option<View<'a>>, divide: bool) -> Result<Self> {
        if let Some(View { name, element, .. }) = tensor.filter(|tensor| !tensor.is_f32()) {
            let problem = format!("its global scale {name:?} has type {element}, where F32 is expected");
            return parts.refuse(problem, "check that this is the tensor you mean, or convert it");
        }
        Ok(Self { tensor, divide })
    }

    fn count(&self) -> usize {
        self.tensor.map_or(1, |tensor| tensor.bytes.len() / 4)
    }

    /// All of them as they are stored, be they numbers or not.
    pub fn stored(&self) -> Vec<GlobalScale> {
        (0..self.count()).map(|at| self.stored_at(at)).collect()
    }

    fn stored_at(&self, at: usize) -> GlobalScale {
        let Some(tensor) = self.tensor else { return GlobalScale::Multiplies(1.0) };
        let bytes = tensor.bytes.as_chunks::<4>().0;
        let stored = bytes.get(at).map_or(f32::NAN, |&bytes| f32::from_le_bytes(bytes));
        if self.divide { GlobalScale::Divides(stored) } else { GlobalScale::Multiplies(stored) }
    }

    /// One of them.
    fn get(&self, at: usize) -> Result<GlobalScale> {
        let global = self.stored_at(at);
        let Some(tensor) = self.tensor.filter(|_| !global.is_usable()) else { return Ok(global) };
        let stored = global.stored();
        let does = if self.divide { "divides" } else { "multiplies" };
        Err(Error::Weight {
            path: tensor.path.to_path_buf(),
            name: tensor.name.to_owned(),
            problem: format!("this global scale, which {does}, is {stored}"),
            remedy: "it must make a finite number: the file is damaged, or of another layout than its names say",
        })
    }
}

/// The most matrices that may be stacked. Models have hundreds of experts, damaged files have any number.
pub(super) const MAX_STACK: usize = 1 << 16;

impl<'a> Coded<'a> {
    /// Puts codes and scales in tensors of their own together, settling stack, sides and direction by their shapes.
    pub fn apart(
        parts: &Parts<'a>,
        codes: View<'a>,
        scales: View<'a>,
        precision: Precision,
        globals: Globals<'a>,
    ) -> Result<Self> {
        let per_scale = precision.block() / 2;
        let refuse = |problem| parts.refuse(problem, "check that codes and scales belong to the same weight");
        let (stack, rows, bytes) = match *codes.shape {
            [rows, bytes] => (1, rows, bytes),
            [stack, rows, bytes] => (stack, rows, bytes),
            // gpt-oss keeps the blocks of a row apart.
            [stack, rows, blocks, block] if block == per_scale => match blocks.checked_mul(block) {
                Some(bytes) => (stack, rows, bytes),
                None => return refuse(format!("its codes have the impossible shape {:?}", codes.shape)),
            },
            _ => return refuse(format!("its codes have shape {:?}, neither a matrix nor a stack", codes.shape)),
        };
        let (scale_stack, first, second) = match *scales.shape {
            [first, second] => (1, first, second),
            [stack, first, second] => (stack, first, second),
            _ => return refuse(format!("its scales have shape {:?}, neither a matrix nor a stack", scales.shape)),
        };
        let fits = |rows: usize, bytes: usize, scale_rows, blocks: usize| {
            rows == scale_rows && blocks.checked_mul(per_scale) == Some(bytes) && bytes > 0
        };
        let coded = |rows, bytes: usize, transposed| {
            let bytes_of = Bytes::Apart { codes: codes.bytes, scales: scales.bytes, transposed };
            Self::checked(parts, &codes, precision, [stack, rows, 2 * bytes], bytes_of, globals)
        };
        match stack == scale_stack {
            true if fits(rows, bytes, first, second) => coded(rows, bytes, false),
            true if fits(bytes, rows, second, first) => coded(bytes, rows, true),
            _ => refuse(format!(
                "its codes have shape {:?} and its scales {:?}, which is not one scale for {} elements along either side",
                codes.shape,
                scales.shape,
                precision.block(),
            )),
        }
    }

    /// Checks what all of them have in common. `sides` are stack, rows and K.
    pub fn checked(
        parts: &Parts<'a>,
        codes: &View<'a>,
        precision: Precision,
        sides: [usize; 3],
        bytes: Bytes<'a>,
        globals: Globals<'a>,
    ) -> Result<Self> {
        let [stack, rows, k] = sides;
        if stack == 0 || rows == 0 || k == 0 || stack > MAX_STACK {
            return parts.refuse(
                format!("it is a stack of {stack} matrices of {rows} × {k}"),
                "every side must be at least one, and experts no more than 65536: check the file",
            );
        }
        if ![1, stack, 2 * stack].contains(&globals.count()) {
            return parts.refuse(
                format!("it has {} global scales for {stack} matrices", globals.count()),
                "there must be one for all or one per matrix",
            );
        }
        Ok(Self { name: codes.name, path: codes.path, precision, stack, rows, k, bytes, globals })
    }

    /// Whether it is stored as its columns.
    pub fn is_transposed(&self) -> bool {
        matches!(self.bytes, Bytes::Apart { transposed: true, .. })
    }

    /// The matrix made of some rows of a member of the stack.
    pub fn matrix(&self, member: usize, rows: Rows) -> Result<Matrix<'a>> {
        let global = self.global(member, rows)?;
        let in_tensor = |reason| Error::InTensor {
            path: self.path.to_path_buf(),
            name: self.name.to_owned(),
            reason: Box::new(reason),
        };
        let count = rows.of(self.rows);
        let (codes, scales) = match self.bytes {
            Bytes::Ggml(bytes) => {
                let (codes, scales) = self.unpack(bytes, member, rows).map_err(in_tensor)?;
                (Cow::Owned(codes), Cow::Owned(scales))
            }
            Bytes::Apart { codes, scales, transposed } => {
                let blocks = self.k / self.precision.block();
                let codes = self.side(Cow::Borrowed(codes), self.k / 2, transposed, member, rows);
                (codes, self.side(Cow::Borrowed(scales), blocks, transposed, member, rows))
            }
            Bytes::Swizzled { codes, scales } => {
                let blocks = self.k / BLOCK;
                let codes = self.side(Cow::Borrowed(codes), self.k / 2, false, member, rows);
                let straight = scales::from_blocked(scales, self.stack * self.rows, blocks).map_err(in_tensor)?;
                (codes, self.side(Cow::Owned(straight), blocks, false, member, rows))
            }
        };
        match self.precision {
            Precision::NvFp4 => Matrix::new(count, self.k, codes, scales, global),
            Precision::MxFp4 => Matrix::mx(count, self.k, codes, &scales, global),
        }
        .map_err(in_tensor)
    }

    /// The global scale of a matrix. Where a fused matrix has two, they are those of its rows in their order.
    pub fn global(&self, member: usize, rows: Rows) -> Result<GlobalScale> {
        self.globals.get(match (self.globals.count(), rows) {
            (1, _) => 0,
            (count, _) if count == self.stack => member,
            (_, Rows::SecondHalf | Rows::Odd) => 2 * member + 1,
            _ => 2 * member,
        })
    }

    /// Some rows of one member's codes or scales, `width` bytes each.
    fn side(&self, bytes: Cow<'a, [u8]>, width: usize, transposed: bool, member: usize, rows: Rows) -> Cow<'a, [u8]> {
        let size = self.rows * width;
        let range = member * size..(member + 1) * size;
        let (start, step) = rows.start_and_step(self.rows);
        let count = rows.of(self.rows);
        if transposed {
            return Cow::Owned(transpose(&bytes[range], self.rows, width, start, step, count));
        }
        if step == 1 {
            let range = range.start + start * width..range.start + (start + count) * width;
            return match bytes {
                Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[range]),
                Cow::Owned(bytes) => Cow::Owned(bytes[range].to_vec()),
            };
        }
        let kept = bytes[range].chunks_exact(width).skip(start).step_by(step).take(count);
        Cow::Owned(kept.collect::<Vec<_>>().concat())
    }

    /// Codes and scales out of ggml's blocks.
    fn unpack(&self, bytes: &[u8], member: usize, rows: Rows) -> Result<(Vec<u8>, Vec<u8>)> {
        let (start, step) = rows.start_and_step(self.rows);
        let count = rows.of(self.rows);
        let width = bytes.len() / (self.stack * self.rows);
        let kept = bytes[member * self.rows * width..].chunks_exact(width).skip(start).step_by(step).take(count);
        let mut codes = Vec::with_capacity(count * self.k / 2);
        let mut scales = Vec::with_capacity(count * self.k / self.precision.block());
        for (row, bytes) in kept.enumerate() {
            match self.precision {
                Precision::NvFp4 => unpack_nvfp4(row, bytes, &mut codes, &mut scales)?,
                Precision::MxFp4 => unpack_mxfp4(bytes, &mut codes, &mut scales),
            }
        }
        Ok((codes, scales))
    }
}

/// Rows `start`, `start + step`, … of a matrix that is stored as its columns, `width` of `rows` bytes each.
fn transpose(columns: &[u8], rows: usize, width: usize, start: usize, step: usize, count: usize) -> Vec<u8> {
    // Square tiles, so that neither side leaves the cache between one byte and its neighbour.
    const TILE: usize = 64;
    let mut out = vec![0; count * width];
    for row_tile in (0..count).step_by(TILE) {
        for column_tile in (0..width).step_by(TILE) {
            for row in row_tile..count.min(row_tile + TILE) {
                for column in column_tile..width.min(column_tile + TILE) {
                    out[row * width + column] = columns[column * rows + start + row * step];
                }
            }
        }
    }
    out
}

/// Four scales, then four times eight bytes in which element j is low and j+8 high.
///
/// ggml's scales have no sign: bit 7 is not looked at, and 0x7F stands for zero. Only 0xFF then has no e4m3 to match:
/// it is read as 480.
fn unpack_nvfp4(row: usize, bytes: &[u8], codes: &mut Vec<u8>, scales: &mut Vec<u8>) -> Result<()> {
    for (group, block) in bytes.chunks_exact(36).enumerate() {
        for (at, (&scale, codes_of)) in block[..4].iter().zip(block[4..].chunks_exact(8)).enumerate() {
            scales.push(match scale {
                0x7F => 0,
                0xFF => return Err(Error::NanScale { row, block: 4 * group + at, byte: scale }),
                _ => scale & 0x7F,
            });
            halves_to_pairs(codes_of, codes);
        }
    }
    Ok(())
}

/// A scale, then sixteen bytes in which element j is low and j+16 high.
fn unpack_mxfp4(bytes: &[u8], codes: &mut Vec<u8>, scales: &mut Vec<u8>) {
    for block in bytes.chunks_exact(17) {
        scales.push(block[0]);
        halves_to_pairs(&block[1..], codes);
    }
}

/// Bytes that hold the first half of a block's codes low and the second high, as bytes that hold neighbours.
fn halves_to_pairs(bytes: &[u8], codes: &mut Vec<u8>) {
    codes.extend(bytes.chunks_exact(2).map(|pair| pair[0] & 0x0F | pair[1] << 4));
    codes.extend(bytes.chunks_exact(2).map(|pair| pair[0] >> 4 | pair[1] & 0xF0));
}
