//! NVFP4 weights in the order in which the Hopper kernels read them.
//!
//! Row-major codes and scales become *chunks* of 32 rows × 64 columns of k, `[rows/32][k/64]` of them one after
//! another, padded with zeros at the edges. A chunk is 1152 bytes:
//!
//! ```text
//! 0..1024     codes: for each of 4 warps (8 rows each), for each of 32 lanes, two words, one per 32 of k
//! 1024..1152  scales: for each of 32 rows per word, a byte per 16 of k
//! ```
//!
//! One such layout serves every strategy. A fragment of wgmma is 64 rows: rows r of its sixteens come from one chunk
//! and rows r + 8 from another, and which two chunks are paired is the kernel's choice, of gate and up or of two
//! neighbours.
//!
//! **A word** holds eight weights of one row, those that one thread contributes to two successive wgmmas: with c = lane
//! % 4, columns 2c, 2c + 1, 2c + 8 and 2c + 9 of two steps of 16. A code is a sign and three bits of magnitude; in the
//! low half of the word (even columns; odd ones are 16 bits further up) they lie at
//!
//! | weight               | magnitude | sign |
//! |----------------------|-----------|------|
//! | first step, 2c       | 9..12     | 15   |
//! | first step, 2c + 8   | 6..9      | 12   |
//! | second step, 2c      | 3..6      | 14   |
//! | second step, 2c + 8  | 0..3      | 13   |
//!
//! so that the word itself, the word shifted left by 3, and two products of it with constants bring each pair to
//! bits 15 and 9..12 of both halves. There the code's bits are a half with the weight's value times 2⁻¹⁴. Similar steps
//! bring them to bits 15 and 6..9, where they are a bfloat16 with the value times 2⁻¹²⁶.
//!
//! Weights that will mostly meet bfloat16 tokens may be laid out for those ([`Codes::Bfloats`]): eight steps per word
//! instead of thirteen, and sixteen for f16 instead of nine. The first weight is in its place. The second and the third
//! are after rotating the word right by 3 and by 6: their signs come from the other half, 16 bits further. A product
//! with a constant gathers the bits of the fourth. (No four rotations cover the 16 bits of a half.)
//!
//! | weight               | magnitude, from its highest bit | sign |
//! |----------------------|---------------------------------|------|
//! | first step, 2c       | 8, 7, 6                         | 15   |
//! | first step, 2c + 8   | 11, 10, 9                       | 18   |
//! | second step, 2c      | 14, 13, 12                      | 21   |
//! | second step, 2c + 8  | 0, 4, 3                         | 1    |
//!
//! Powers of two make e4m3 numbers of codes by a table of eight ([`Codes::Nibbles`]). Weights are nibbles for that, in
//! the order in which four of them are a register of bytes: 2c, 2c + 1, 2c + 8 and 2c + 9 of the first step from bit 0
//! up, and of the second from bit 16 up. A nibble has its magnitude in the lower three bits. The highest bits of all
//! nibbles are signs, but not each its own nibble's: every other one, from bit 7 up, is of the first step, where bytes
//! have their signs, and those between, from bit 3 up, are of the second.
//!
//! **A scale byte** is scale · 2⁷ as an unsigned float with five bits of exponent and three of mantissa, in other words
//! bits 7..15 of a half; every finite e4m3 value has one, subnormal ones too. With 224 added to the exponent it is bits
//! 4..12 of a bfloat16 worth scale · 2¹¹⁹. A negative scale is made positive and its sign given to the codes of its
//! block; under a scale of zero the codes are made zero too, since the bfloat16 has no zero. A word's bytes, from the
//! lowest, are the scales of steps 2, 0, 3, 1: shifted and masked, two of them are a pair for the weights of one word.
//!
//! **MXFP4** ([`Scales::ThirtyTwos`]) has the same words and a byte of scale for each of them: a chunk is 1088 bytes,
//!
//! ```text
//! 0..1024     codes, as above
//! 1024..1088  scales: for each of 32 rows, a byte per 32 of k
//! ```
//!
//! A byte s is 2^(s−127), at most 2⁸ ([`format::Matrix::mx`]). Times 2⁷ that is a half whose exponent is s − 105, if it
//! is at least 2⁻¹⁶; and with 2¹¹⁹ a bfloat16 whose exponent is s + 119. So one multiplication of a byte brings it to
//! where both numbers of a pair have their exponents, and what is added with it takes care of the offset.
//!
//! **Where tensor cores take NVFP4 itself** ([`pack_codes`]), chunks have the same places and other words: with c =
//! lane % 4, a word holds the codes of columns 8c to 8c + 8 of its 32, those with an even column in its low half and
//! those with an odd one in its high half, so that few steps make pairs of floats of them for tokens of 16 bits. (A
//! tensor core asks for neighbours, but any order will do that tokens have too.) A word's bytes are the scales of steps
//! 0, 1, 2, 3, as e4m3 without a sign.

use format::{Matrix, Scaling};
use op::Team;

/// The name of the layout.
pub const LAYOUT: &str = "32x64 chunks in the GPU's memory";
/// The same for tensor cores that take NVFP4 itself.
pub const CODES_LAYOUT: &str = "32x64 chunks of plain codes in the GPU's memory";
/// What sums of dequantised weights lack: those are 2⁻⁷ times what they should be.
pub const WEIGHT_FACTOR: f64 = 128.0;
/// Rows of a chunk.
pub const CHUNK_ROWS: usize = 32;
/// Columns of k of a chunk.
pub const CHUNK_DEPTH: usize = 64;
/// Bytes of a chunk's codes.
pub const CODE_BYTES: u32 = 1024;
/// Bytes of a chunk of NVFP4.
pub const CHUNK_BYTES: u32 = Scales::Sixteens.chunk_bytes();

/// The sizes of a chunk's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Bytes of its codes.
    pub code_bytes: u32,
    /// Bytes of the scales of each of its rows.
    pub row_scale_bytes: u32,
}

impl Chunk {
    /// A chunk of matrices that share scales so.
    pub const fn of(scaling: Scaling) -> Self {
        let (code_bytes, row_scale_bytes) = match scaling {
            Scaling::NvFp4 => (CODE_BYTES, 4),
            Scaling::MxFp4 | Scaling::WideMxFp4 => (CODE_BYTES, 2),
            Scaling::Fp8 => (2 * CODE_BYTES, 0),
            Scaling::MxFp8 => (2 * CODE_BYTES, 2),
            Scaling::Fp8By64 => (2 * CODE_BYTES, 4),
            Scaling::Fp8By32 => (2 * CODE_BYTES, 8),
        };
        Chunk { code_bytes, row_scale_bytes }
    }

    /// Its bytes.
    pub const fn bytes(self) -> u32 {
        self.code_bytes + CHUNK_ROWS as u32 * self.row_scale_bytes
    }
}

/// How a chunk's scales lie, and so how large its weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scales {
    /// Those of NVFP4: a byte per row and 16 of k.
    Sixteens,
    /// Those of MXFP4: a byte per row and 32 of k.
    ThirtyTwos,
    /// None: those of FP8's rows multiply finished sums.
    Fp8,
    /// Those of MXFP8: a byte per row and 32 of k.
    MxFp8,
    /// Those of FP8's blocks: a float per row and 64 of k.
    Fp8By64,
}

impl Scales {
    /// How those of matrices lie that share scales so, or why none do.
    pub fn of(scaling: Scaling) -> Result<Self, String> {
        match scaling {
            Scaling::NvFp4 => Ok(Scales::Sixteens),
            Scaling::MxFp4 | Scaling::WideMxFp4 => Ok(Scales::ThirtyTwos),
            Scaling::Fp8 => Ok(Scales::Fp8),
            Scaling::MxFp8 => Ok(Scales::MxFp8),
            Scaling::Fp8By64 => Ok(Scales::Fp8By64),
            Scaling::Fp8By32 => Err(format!("these kernels take scales for 64 of K at least, not {scaling}")),
        }
    }

    /// The matrices that share scales so.
    pub const fn scaling(self) -> Scaling {
        match self {
            Scales::Sixteens => Scaling::NvFp4,
            Scales::ThirtyTwos => Scaling::MxFp4,
            Scales::Fp8 => Scaling::Fp8,
            Scales::MxFp8 => Scaling::MxFp8,
            Scales::Fp8By64 => Scaling::Fp8By64,
        }
    }

    /// Whether weights are e4m3 numbers.
    pub const fn is_fp8(self) -> bool {
        self.scaling().is_fp8()
    }

    /// The chunk that they are part of.
    const fn chunk(self) -> Chunk {
        Chunk::of(self.scaling())
    }

    /// Bytes of a chunk's weights.
    pub const fn code_bytes(self) -> u32 {
        self.chunk().code_bytes
    }

    /// Bytes of a row's scales.
    pub const fn row_bytes(self) -> u32 {
        self.chunk().row_scale_bytes
    }

    /// Bytes of a chunk.
    pub const fn chunk_bytes(self) -> u32 {
        self.chunk().bytes()
    }
}

/// What a word's bits are in order for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codes {
    /// Halves; bfloat16 with a few steps more.
    Halves,
    /// bfloat16; halves with a few steps more.
    Bfloats,
    /// Looking e4m3 numbers up, where scales are powers of two: about half the instructions of rounding them.
    Nibbles,
}

impl Codes {
    /// Where a word has the bits of the four bytes that it is made of: of each the even column's code, from its lowest
    /// bit to its sign, and then the odd one's.
    fn places(self) -> [[u32; 8]; 4] {
        let odd_further = |by: u32| move |[a, b, c, d]: [u32; 4]| [a, b, c, d, a + by, b + by, c + by, d + by];
        match self {
            Codes::Halves => [[9, 10, 11, 15], [6, 7, 8, 12], [3, 4, 5, 14], [0, 1, 2, 13]].map(odd_further(16)),
            Codes::Bfloats => [[6, 7, 8, 15], [9, 10, 11, 18], [12, 13, 14, 21], [3, 4, 0, 1]]
                .map(odd_further(16))
                .map(|places| places.map(|place| place % 32)),
            Codes::Nibbles => [[0, 1, 2, 7], [8, 9, 10, 23], [16, 17, 18, 3], [24, 25, 26, 19]]
                .map(|[a, b, c, sign]| [a, b, c, sign, a + 4, b + 4, c + 4, sign + 8]),
        }
    }
}

/// The byte of an MXFP4 scale that is 1.
const MX_ONE: u8 = 127;
/// The steps of 16 whose scales are a word's bytes, from the lowest.
const SCALE_STEPS: [usize; 4] = [2, 0, 3, 1];
/// Bytes of a row's codes in a chunk.
const ROW_CODES: usize = CHUNK_DEPTH / 2;

/// Bytes of a packed matrix: 9/16 of a byte for each weight of NVFP4 and 17/32 of MXFP4, as in a checkpoint, once rows
/// are rounded up to 32 and k to 64.
pub fn packed_bytes(rows: usize, k: usize, scaling: Scaling) -> usize {
    rows.div_ceil(CHUNK_ROWS) * run_bytes(k, scaling)
}

/// Bytes of the chunks of 32 rows.
fn run_bytes(k: usize, scaling: Scaling) -> usize {
    k.div_ceil(CHUNK_DEPTH) * Chunk::of(scaling).bytes() as usize
}

/// Packs a matrix with words in a given order, and with scales of its own kind, on a team's threads, into as many bytes
/// as [`packed_bytes`] says.
pub fn pack_as(matrix: &Matrix<'_>, codes: Codes, team: &Team, out: &mut [u8]) {
    let words = Words::new(codes.places(), |quarter| [0, 4, 8, 12].map(|byte| byte + quarter));
    let scale_bytes: [u8; 256] = std::array::from_fn(|scale| scale_byte(scale as u8));
    match matrix.scaling().is_mx() {
        false => pack_chunks((matrix, team, out), &words, (0, Fate::under), |scales: [u8; 4]| {
            SCALE_STEPS.map(|step| scale_bytes[usize::from(scales[step])])
        }),
        // Powers of two have no sign, and none is zero.
        true => pack_chunks((matrix, team, out), &words, (MX_ONE, |_| [Fate::Kept; 4]), |scales: [u8; 2]| scales),
    }
}

/// Packs a matrix for tensor cores that take NVFP4 itself, into as many bytes.
pub fn pack_codes(matrix: &Matrix<'_>, team: &Team, out: &mut [u8]) {
    let places = [0, 4, 8, 12].map(|even| [0, 1, 2, 3, 16, 17, 18, 19].map(|place| even + place));
    let words = Words::new(places, |quarter| [0, 1, 2, 3].map(|byte| byte + 4 * quarter));
    pack_chunks((matrix, team, out), &words, (0, Fate::under), |scales: [u8; 4]| scales.map(|scale| scale & 0x7f));
}

/// What becomes of the codes of a block of 16.
#[derive(Clone, Copy)]
enum Fate {
    Kept,
    Negated,
    Zeroed,
}

impl Fate {
    /// Codes take their scale's sign, and are zeros under a scale of zero.
    fn under(scales: [u8; 4]) -> [Self; 4] {
        scales.map(|scale| match scale {
            0 | 0x80 => Fate::Zeroed,
            0x81.. => Fate::Negated,
            _ => Fate::Kept,
        })
    }
}

/// How words are made of a checkpoint's bytes. A word has the codes of four bytes, and where it has the bits of one
/// does not depend on the others. So each byte's part of it is looked up. The tables are small enough to stay in L1.
struct Words<B> {
    /// What a word has of each of its four bytes, by the byte's value, for each fate.
    parts: [[[u32; 256]; 4]; 3],
    /// Which bytes they are, of the 16 of 32 columns, for each lane's quarter.
    bytes: B,
}

impl<B: Fn(usize) -> [usize; 4]> Words<B> {
    /// Words in which the bits of those bytes have these places.
    fn new(places: [[u32; 8]; 4], bytes: B) -> Self {
        let kept = parts(places);
        let negated = kept.map(|table| std::array::from_fn(|byte| table[byte ^ 0x88]));
        Words { parts: [kept, negated, [[0; 256]; 4]], bytes }
    }

    /// Writes the words of a row of a chunk: for each lane's quarter of 32 columns, one per 32 of k.
    fn of_row(&self, codes: &[u8; ROW_CODES], fates: [Fate; 4], out: &mut [u8; ROW_CODES]) {
        for (at, place) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let (quarter, half) = (at / 2, at % 2);
            let mut word = 0;
            for (part, byte) in (self.bytes)(quarter).into_iter().enumerate() {
                let byte = 16 * half + byte;
                word |= self.parts[fates[byte / 8] as usize][part][usize::from(codes[byte])];
            }
            *place = u32::to_le_bytes(word);
        }
    }
}

/// What a word has of each of the four bytes that it is made of, by the byte's value, where its bits have these places.
pub(crate) fn parts(places: [[u32; 8]; 4]) -> [[u32; 256]; 4] {
    places.map(|places| {
        let mut table = [0; 256];
        for byte in 1..256usize {
            // A byte has one bit more than another that was there before.
            table[byte] = table[byte & (byte - 1)] | 1 << places[byte.trailing_zeros() as usize];
        }
        table
    })
}

/// Chunks, whose words are made so. Beyond the edge codes are zeros, and scales are `beyond`.
fn pack_chunks<const SCALES: usize>(
    (matrix, team, out): (&Matrix<'_>, &Team, &mut [u8]),
    words: &Words<impl Fn(usize) -> [usize; 4] + Sync>,
    (beyond, fates_under): (u8, impl Fn([u8; SCALES]) -> [Fate; 4] + Sync),
    scale_bytes: impl Fn([u8; SCALES]) -> [u8; SCALES] + Sync,
) {
    let (rows, k, scaling) = (matrix.rows(), matrix.k(), matrix.scaling());
    debug_assert_eq!(out.len(), packed_bytes(rows, k, scaling));
    team.for_each(out.chunks_mut(run_bytes(k, scaling)).enumerate(), |(run, chunks)| {
        for row in 0..CHUNK_ROWS {
            let there = Some(run * CHUNK_ROWS + row).filter(|row| *row < rows);
            let (mut last_codes, mut last_scales) = ([0; ROW_CODES], [beyond; SCALES]);
            let codes = pieces(there.map_or(&[], |row| matrix.row_codes(row)), &mut last_codes);
            let scales = pieces(there.map_or(&[], |row| matrix.row_scales(row)), &mut last_scales);
            let chunks = chunks.chunks_exact_mut(Chunk::of(scaling).bytes() as usize);
            for (chunk, (codes, scales)) in chunks.zip(codes.zip(scales)) {
                let (code_places, scale_places) = chunk.split_at_mut(CODE_BYTES as usize);
                words.of_row(codes, fates_under(*scales), &mut code_places.as_chunks_mut().0[row]);
                scale_places.as_chunks_mut().0[row] = scale_bytes(*scales);
            }
        }
    });
}

/// A row in pieces. `last` is what the last one has beyond the row's end, and all of a row that is not there.
pub(crate) fn pieces<'a, const N: usize>(row: &'a [u8], last: &'a mut [u8; N]) -> impl Iterator<Item = &'a [u8; N]> {
    let (whole, rest) = row.as_chunks();
    last[..rest.len()].copy_from_slice(rest);
    whole.iter().chain(std::iter::repeat(&*last))
}

/// |scale| · 2⁷ as bits 7..15 of a half. The exponent of an e4m3 number is biased by 7, that of a half by 15: a normal
/// scale keeps its mantissa and gains 15. A subnormal one, m · 2⁻⁹, is m/4 after scaling: normal as a half.
fn scale_byte(scale: u8) -> u8 {
    let (exponent, mantissa) = (scale >> 3 & 15, scale & 7);
    match (exponent, mantissa) {
        (0, 0) => 0,
        (0, m) => {
            let top = m.ilog2() as u8;
            (top + 13) << 3 | (m << (3 - top) & 7)
        }
        (e, m) => (e + 15) << 3 | m,
    }
}

/// The layout again, as it is described above: element by element, and bit by bit.
#[cfg(test)]
mod oracle {
    use format::{BLOCK, MX_BLOCK, Matrix, Scaling};

    use super::{CHUNK_DEPTH, CHUNK_ROWS, Chunk, Codes, MX_ONE, SCALE_STEPS, scale_byte};

    /// Columns of the four weights, from the first one.
    pub(super) const COLUMNS: [usize; 4] = [0, 8, BLOCK, BLOCK + 8];

    /// The words of a chunk in their order: warp, lane, half of the 64 of k.
    pub(super) fn lane_words() -> impl Iterator<Item = (usize, usize, usize)> {
        (0..256).map(|word| (word / 64, word / 2 % 32, word % 2))
    }

    /// What [`super::pack_as`] makes.
    pub(super) fn pack_as(matrix: &Matrix<'_>, order: Codes) -> Vec<u8> {
        let steps = if matrix.scaling().is_mx() { &[0, MX_BLOCK / BLOCK][..] } else { &SCALE_STEPS };
        let byte = |scale| if matrix.scaling().is_mx() { scale } else { scale_byte(scale) };
        pack_chunks(
            matrix,
            |row, column, lane| word(matrix, order, row, column + 2 * lane),
            |row, column| steps.iter().map(|step| byte(scale(matrix, row, column + BLOCK * step))).collect(),
        )
    }

    /// What [`super::pack_codes`] makes.
    pub(super) fn pack_codes(matrix: &Matrix<'_>) -> Vec<u8> {
        let word = |row, column, lane| {
            let place = |at: usize| 4 * (at / 2) + 16 * (at % 2);
            (0..8).fold(0, |word, at| word | code(matrix, row, column + 8 * lane + at) << place(at))
        };
        pack_chunks(matrix, word, |row, column| {
            (0..4).map(|step| scale(matrix, row, column + BLOCK * step) & 0x7f).collect()
        })
    }

    /// Chunks of words, each for a row, the first of its 32 columns and a lane's quarter of them, and of the scales of
    /// rows from a column on.
    fn pack_chunks(
        matrix: &Matrix<'_>,
        word: impl Fn(usize, usize, usize) -> u32,
        scales: impl Fn(usize, usize) -> Vec<u8>,
    ) -> Vec<u8> {
        let mut packed = Vec::new();
        for row in (0..matrix.rows()).step_by(CHUNK_ROWS) {
            for column in (0..matrix.k()).step_by(CHUNK_DEPTH) {
                let words = lane_words()
                    .map(|(warp, lane, half)| word(row + 8 * warp + lane / 4, column + 2 * BLOCK * half, lane % 4));
                packed.extend(words.flat_map(u32::to_le_bytes));
                packed.extend((row..row + CHUNK_ROWS).flat_map(|row| scales(row, column)));
            }
        }
        assert_eq!(packed.len() % Chunk::of(matrix.scaling()).bytes() as usize, 0);
        packed
    }

    /// The scale of an element; beyond the edge zero, or a power of two where there is no zero.
    fn scale(matrix: &Matrix<'_>, row: usize, column: usize) -> u8 {
        match row < matrix.rows() && column < matrix.k() {
            true => matrix.row_scales(row)[column / matrix.scaling().block()],
            false if matrix.scaling() == Scaling::NvFp4 => 0,
            false => MX_ONE,
        }
    }

    /// The code of an element with its scale's sign in it; zero under a scale of zero, or beyond the edge.
    fn code(matrix: &Matrix<'_>, row: usize, column: usize) -> u32 {
        if row >= matrix.rows() || column >= matrix.k() {
            return 0;
        }
        let byte = matrix.row_codes(row)[column / 2];
        let code = u32::from(if column.is_multiple_of(2) { byte & 15 } else { byte >> 4 });
        match scale(matrix, row, column) {
            _ if matrix.scaling().is_mx() => code,
            scale if scale & 0x7f == 0 => 0,
            scale => code ^ u32::from(scale >> 4 & 8),
        }
    }

    /// One thread's eight weights of one row and two wgmmas.
    fn word(matrix: &Matrix<'_>, order: Codes, row: usize, column: usize) -> u32 {
        let mut word = 0;
        for (further, places) in COLUMNS.into_iter().zip(places(order)) {
            for (odd, places) in places.into_iter().enumerate() {
                let code = code(matrix, row, column + further + odd);
                word |= places.iter().enumerate().fold(0, |bits, (bit, place)| bits | (code >> bit & 1) << place);
            }
        }
        word
    }

    /// The positions of the four weights' bits, each from the lowest to the sign: for even columns and for odd ones.
    fn places(order: Codes) -> [[[u32; 4]; 2]; 4] {
        let further = |by: u32| move |bits: [u32; 4]| [bits, bits.map(|bit| (bit + by) % 32)];
        match order {
            Codes::Halves => [[9, 10, 11, 15], [6, 7, 8, 12], [3, 4, 5, 14], [0, 1, 2, 13]].map(further(16)),
            Codes::Bfloats => [[6, 7, 8, 15], [9, 10, 11, 18], [12, 13, 14, 21], [3, 4, 0, 1]].map(further(16)),
            Codes::Nibbles => [0, 8, 16, 24].map(|bit| {
                let sign = if bit < 16 { 2 * bit + 7 } else { 2 * bit - 29 };
                [[bit, bit + 1, bit + 2, sign], [bit + 4, bit + 5, bit + 6, sign + 8]]
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use format::{BLOCK, MX_BLOCK};
    use op::Alone;

    use super::oracle::{COLUMNS, lane_words};
    use super::*;

    /// A matrix packed into bytes that hold something before.
    fn packed_as(matrix: &Matrix<'_>, order: Codes) -> Vec<u8> {
        let mut packed = vec![0xa5; packed_bytes(matrix.rows(), matrix.k(), matrix.scaling())];
        pack_as(matrix, order, &Team::new(Alone), &mut packed);
        packed
    }

    /// The same for tensor cores that take NVFP4 itself.
    fn packed_codes(matrix: &Matrix<'_>) -> Vec<u8> {
        let mut packed = vec![0xa5; packed_bytes(matrix.rows(), matrix.k(), Scaling::NvFp4)];
        pack_codes(matrix, &Team::new(Alone), &mut packed);
        packed
    }

    /// An e2m1 code's value.
    fn e2m1(code: u8) -> f64 {
        let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
        if code & 8 == 0 { magnitude } else { -magnitude }
    }

    /// An e4m3 scale's value.
    fn e4m3(scale: u8) -> f64 {
        let (exponent, mantissa) = (i32::from(scale >> 3 & 15), f64::from(scale & 7) / 8.0);
        let magnitude =
            if exponent == 0 { mantissa * 2f64.powi(-6) } else { (1.0 + mantissa) * 2f64.powi(exponent - 7) };
        if scale & 0x80 == 0 { magnitude } else { -magnitude }
    }

    /// An IEEE half's value.
    fn half(bits: u16) -> f64 {
        let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
        assert!(exponent < 31, "{bits:#x} is not finite");
        let magnitude =
            if exponent == 0 { mantissa * 2f64.powi(-14) } else { (1.0 + mantissa) * 2f64.powi(exponent - 15) };
        if bits >> 15 == 0 { magnitude } else { -magnitude }
    }

    /// A bfloat16's value.
    fn bfloat(bits: u16) -> f64 {
        half::bf16::from_bits(bits).to_f64()
    }

    /// What the kernel does with a word for halves: the four pairs, low half first.
    fn spread(word: u32) -> [u32; 4] {
        let pairs = [word, word << 3, (word & 0x4038_4038).wrapping_mul(66), (word & 0x2007_2007).wrapping_mul(516)];
        pairs.map(|pair| pair & 0x8e00_8e00)
    }

    /// The same for bfloat16.
    fn spread_wide(word: u32) -> [u32; 4] {
        [
            word & 0x8000_8000 | word >> 3 & 0x01c0_01c0,
            (word & 0x11c0_11c0).wrapping_mul(9) & 0x81c0_81c0,
            word << 1 & 0x8000_8000 | word << 3 & 0x01c0_01c0,
            (word & 0x2007_2007).wrapping_mul(68) & 0x81c0_81c0,
        ]
    }

    /// The same where words are in order for it.
    fn spread_bfloats(word: u32) -> [u32; 4] {
        let gathered = (word & 0x001b_001b).wrapping_mul(0x4108);
        [word, word.rotate_right(3), word.rotate_right(6), gathered].map(|pair| pair & 0x81c0_81c0)
    }

    /// And for halves where words are in order for bfloat16.
    fn spread_halves_of_bfloats(word: u32) -> [u32; 4] {
        spread_bfloats(word).map(|pair| pair.wrapping_mul(9) & 0x8e00_8e00)
    }

    /// What is looked up for the two steps of a word of nibbles, under a scale of one.
    fn looked_up(word: u32) -> [[f64; 4]; 2] {
        [(word & 0x7777_7777, word), (word >> 16 & 0x7777, word << 4)].map(|(picks, signs)| {
            std::array::from_fn(|byte| e2m1((picks >> (4 * byte) & 7 | signs >> (8 * byte + 4) & 8) as u8))
        })
    }

    /// Every weight of a packed matrix, read as the kernels read it, in every precision: value = code · scale, times
    /// 2⁷.
    fn unpack(packed: &[u8], (order, layout): (Codes, Scales), rows: usize, k: usize) -> Vec<f64> {
        let (across, down) = (k.div_ceil(CHUNK_DEPTH), rows.div_ceil(CHUNK_ROWS));
        let wide = across * CHUNK_DEPTH;
        let mut values = vec![f64::NAN; down * CHUNK_ROWS * wide];
        let word_at = |at: usize| u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]]);
        for chunk in 0..across * down {
            let start = chunk * layout.chunk_bytes() as usize;
            for (index, (warp, lane, part)) in lane_words().enumerate() {
                let at = start + CODE_BYTES as usize + layout.row_bytes() as usize * (8 * warp + lane / 4);
                let [halves, bfloats] = match layout {
                    Scales::Sixteens => {
                        let scales = word_at(at);
                        let moved = if part == 0 { [scales >> 1, scales >> 4] } else { [scales << 7, scales << 4] };
                        [moved[0] & 0x7f80_7f80, moved[1] & 0x0ff0_0ff0 | 0x7000_7000]
                    }
                    Scales::ThirtyTwos => {
                        let byte = u32::from(packed[at + part]);
                        [byte.wrapping_sub(105).wrapping_mul(0x0400_0400), (byte + 119).wrapping_mul(0x0080_0080)]
                    }
                    _ => unreachable!("codes of four bits"),
                };
                let word = word_at(start + 4 * index);
                for (pair, further) in COLUMNS.into_iter().enumerate() {
                    let row = chunk / across * CHUNK_ROWS + 8 * warp + lane / 4;
                    let first = chunk % across * CHUNK_DEPTH + 2 * BLOCK * part + 2 * (lane % 4) + further;
                    for odd in 0..2 {
                        let low = |word: u32, odd: usize| (word >> (16 * odd)) as u16;
                        let as_bfloat =
                            |pairs: [u32; 4]| bfloat(low(pairs[pair], odd)) * bfloat(low(bfloats, pair / 2));
                        let as_half = |pairs: [u32; 4]| half(low(pairs[pair], odd)) * half(low(halves, pair / 2));
                        let [value, other] = match order {
                            Codes::Halves => [as_half(spread(word)), as_bfloat(spread_wide(word))],
                            Codes::Bfloats => {
                                [as_bfloat(spread_bfloats(word)), as_half(spread_halves_of_bfloats(word))]
                            }
                            Codes::Nibbles => {
                                let value = looked_up(word)[pair / 2][2 * (pair % 2) + odd];
                                [value, value].map(|value| value * half(low(halves, pair / 2)) / 16384.0)
                            }
                        };
                        assert_eq!(value, other, "both precisions agree");
                        values[row * wide + first + odd] = value * 128.0;
                    }
                }
            }
        }
        assert!(values.iter().all(|value| !value.is_nan()), "every place is written");
        let beyond = values.iter().enumerate().filter(|(at, _)| at / wide >= rows || at % wide >= k);
        assert!(beyond.into_iter().all(|(_, value)| *value == 0.0), "the padding is zero");
        (0..rows * k).map(|at| values[at / k * wide + at % k]).collect()
    }

    /// A matrix in which every pair of code and scale occurs, NaN scales excepted.
    fn everything(rows: usize, k: usize) -> (Vec<u8>, Vec<u8>) {
        let finite: Vec<u8> = (0..=255).filter(|scale| scale & 0x7f != 0x7f).collect();
        let codes = (0..rows * k / 2).map(|at| ((at * 2 + at / 8) as u8 & 15) | (at as u8 ^ 5) << 4).collect();
        let scales = (0..rows * k / BLOCK).map(|at| finite[at % finite.len()]).collect();
        (codes, scales)
    }

    #[test]
    fn every_value_survives_packing_for_every_scale() {
        for (rows, k) in [(1, 16), (64, 64), (65, 80), (130, 208), (254, 256)] {
            let (codes, scales) = everything(rows, k);
            let matrix = Matrix::new(rows, k, &codes[..], &scales[..], 1.0).expect("a sound matrix");
            for order in [Codes::Halves, Codes::Bfloats] {
                let packed = packed_as(&matrix, order);
                for (at, value) in unpack(&packed, (order, Scales::Sixteens), rows, k).into_iter().enumerate() {
                    let code = codes[at / 2] >> (at % 2 * 4) & 15;
                    let expected = e2m1(code) * e4m3(scales[at / BLOCK]);
                    assert_eq!(value, expected, "row {} column {} of {rows} × {k}, {order:?}", at / k, at % k);
                }
            }
        }
    }

    #[test]
    fn every_value_survives_packing_for_every_power_of_two_that_halves_have() {
        for (rows, k) in [(1, 32), (64, 64), (65, 96), (130, 224), (254, 256)] {
            let (codes, _) = everything(rows, k);
            // 2⁸ to 2⁻¹⁶, which no global scale moves.
            let exponents: Vec<u8> = (0..rows * k / 32).map(|at| 135 - (at % 25) as u8).collect();
            let matrix = Matrix::mx(rows, k, &codes[..], &exponents, 1.0).expect("a sound matrix");
            assert_eq!((matrix.scaling(), matrix.global().value()), (Scaling::MxFp4, 1.0));
            for order in [Codes::Halves, Codes::Bfloats, Codes::Nibbles] {
                let packed = packed_as(&matrix, order);
                for (at, value) in unpack(&packed, (order, Scales::ThirtyTwos), rows, k).into_iter().enumerate() {
                    let code = codes[at / 2] >> (at % 2 * 4) & 15;
                    let expected = e2m1(code) * 2f64.powi(i32::from(exponents[at / 32]) - 127);
                    assert_eq!(value, expected, "row {} column {} of {rows} × {k}, {order:?}", at / k, at % k);
                }
            }
        }
    }

    #[test]
    fn every_byte_is_what_elements_and_bits_one_by_one_make() {
        let mut rng = fastrand::Rng::with_seed(5);
        for rows in [1, 8, 31, 32, 33, 65] {
            for k in [16, 32, 48, 64, 80, 96, 112, 128, 160, 208] {
                let codes: Vec<u8> = (0..rows * k / 2).map(|_| rng.u8(..)).collect();
                // Negative, zero (of both signs), subnormal and large ones, but not NaN.
                let scale = || rng.u8(..0x7f) >> rng.u8(..8) | rng.u8(..) & 0x80;
                let scales: Vec<u8> = std::iter::repeat_with(scale).take(rows * k / BLOCK).collect();
                let matrix = Matrix::new(rows, k, &codes[..], &scales[..], 1.0).expect("a sound matrix");
                let text = format!("{rows} × {k}");
                assert_eq!(packed_codes(&matrix), oracle::pack_codes(&matrix), "codes of {text}");
                let mut matrices = vec![matrix];
                if k.is_multiple_of(MX_BLOCK) {
                    let exponents: Vec<u8> = (0..rows * k / MX_BLOCK).map(|_| rng.u8(60..160)).collect();
                    matrices.push(Matrix::mx(rows, k, &codes[..], &exponents, 1.0).expect("a sound matrix"));
                }
                for (matrix, order) in matrices
                    .iter()
                    .flat_map(|matrix| [Codes::Halves, Codes::Bfloats, Codes::Nibbles].map(|order| (matrix, order)))
                {
                    let (found, expected) = (packed_as(matrix, order), oracle::pack_as(matrix, order));
                    assert_eq!(found, expected, "{order:?} of {text}, {}", matrix.scaling());
                }
            }
        }
    }

    #[test]
    fn every_power_of_two_times_a_code_is_a_normal_bfloat16() {
        for byte in 9..=135u32 {
            let scale = bfloat(((byte + 119) << 7) as u16);
            for code in 1..8 {
                let product = half::bf16::from_f64(bfloat(code << 6) * scale);
                let expected = e2m1(code as u8) * 2f64.powi(byte.cast_signed() - 127 - 7);
                assert_eq!((product.to_f64(), product.is_normal()), (expected, true), "{byte} {code}");
            }
        }
    }

    #[test]
    fn plain_codes_and_scales_are_where_tensor_cores_look_for_them() {
        for (rows, k) in [(1, 16), (65, 80), (254, 256)] {
            let (codes, scales) = everything(rows, k);
            let matrix = Matrix::new(rows, k, &codes[..], &scales[..], 1.0).expect("a sound matrix");
            let packed = packed_codes(&matrix);
            let across = k.div_ceil(CHUNK_DEPTH);
            for (row, column) in (0..rows).flat_map(|row| (0..k).map(move |column| (row, column))) {
                let chunk = (row / CHUNK_ROWS * across + column / CHUNK_DEPTH) * CHUNK_BYTES as usize;
                let (inside, within) = (column % CHUNK_DEPTH, row % CHUNK_ROWS);
                // Strips of 8 rows, lanes of a row and a quarter of 32 columns, halves of 64 columns, then a nibble.
                let at = chunk + within / 8 * 256 + (within % 8 * 4 + inside % 32 / 8) * 8 + inside / 32 * 4;
                let word = u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]]);
                let found = e2m1((word >> (inside % 8 / 2 * 4 + inside % 2 * 16)) as u8 & 15);
                let scale = packed[chunk + CODE_BYTES as usize + 4 * within + inside / BLOCK];
                assert!(scale < 0x80, "tensor cores take scales without a sign");
                let index = row * k + column;
                let expected = e2m1(codes[index / 2] >> (index % 2 * 4) & 15) * e4m3(scales[index / BLOCK]);
                assert_eq!(found * e4m3(scale), expected, "row {row} column {column} of {rows} × {k}");
            }
        }
    }

    #[test]
    fn every_scale_times_128_is_a_half_with_three_bits_of_mantissa() {
        for scale in (0..=0x7e).chain(0x80..=0xfe) {
            let bits = u16::from(scale_byte(scale)) << 7;
            assert_eq!(half(bits), e4m3(scale).abs() * 128.0, "{scale:#x}");
        }
    }

    #[test]
    fn a_layers_weights_take_what_the_checkpoint_takes_and_ragged_edges_little_more() {
        for (scaling, parts) in [(Scaling::NvFp4, 18), (Scaling::MxFp4, 17)] {
            let checkpoint = |rows: usize, k: usize| rows * k * parts / 32;
            assert_eq!(packed_bytes(4096, 7168, scaling), checkpoint(4096, 7168));
            assert!(packed_bytes(4100, 7168 + 32, scaling) * 20 <= checkpoint(4100, 7168 + 32) * 21);
            assert_eq!(packed_bytes(1, 32, scaling), 64 * parts, "a tiny matrix takes a whole chunk");
        }
    }
}
