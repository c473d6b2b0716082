//! Weights from codes and scales, and tokens from shared memory: the operands of `mma.sync` in a warp's registers.
//!
//! Scales that are powers of two for a whole word (MXFP4) are half as many bytes, and both slices of a word take the
//! same pair.

use ptx::instr::{MatrixElement, Warp, Width};
use ptx::{Addr, Bf16x2, Builder, F16x2, PackedPair, Reg, Shared, U32, W32};

use super::{SLICES, TOKEN_BYTES, Tokens, WarpMultiplySpec};
use crate::pack::Codes;
use crate::phases::slices::{AND_OR, pairs_of_slice, power_pair, scale_pair};

/// One thread's share of a fragment of weights: words and scales as they come, and what was made of them. Index 0 is
/// the strip of rows r, index 1 that of rows r + 8.
pub(super) struct Weights {
    element: Tokens,
    order: Codes,
    /// Whether scales are powers of two, one for a word.
    powers: bool,
    strip_bytes: [u32; 2],
    /// Where words are plain codes: by how many bits a lane shifts scales.
    plain: Option<Reg<U32>>,
    words: [[Reg<U32>; 2]; 2],
    scales: [Reg<U32>; 2],
    /// Scales of the two slices that one word covers, or where words are plain codes those of the two words, as a pair
    /// of floats; of powers of two one scale twice.
    pairs: [Reg<U32>; 2],
    /// The slice that is multiplied, and the one after it.
    sets: [[Reg<U32>; 4]; 2],
}

impl Weights {
    pub fn new(k: &mut Builder, config: &WarpMultiplySpec, plain: Option<Reg<U32>>) -> Self {
        Weights {
            element: config.element,
            order: config.codes(),
            powers: config.scaling.is_mx(),
            strip_bytes: config.strip_bytes(),
            plain,
            words: [k.registers(), k.registers()],
            scales: k.registers(),
            pairs: k.registers(),
            sets: [k.registers(), k.registers()],
        }
    }

    /// Bytes from a strip's codes to a lane's words, and from a strip's scales to its row's.
    pub fn offsets(k: &mut Builder, config: &WarpMultiplySpec, lane: Reg<U32>) -> [Reg<U32>; 2] {
        let row = k.shr(lane, 2);
        [k.shl(lane, 3), k.shl(row, config.chunk().row_scale_bytes.trailing_zeros())]
    }

    /// Bits by which a lane shifts scales to have its own below: of the two steps that a plain word is of, lanes 0 and
    /// 1 of a quad have the first, lanes 2 and 3 the second.
    pub fn scale_shift(k: &mut Builder, lane: Reg<U32>) -> Reg<U32> {
        let later = k.and(lane, 2);
        k.shl(later, 2)
    }

    /// Reads the words and scales of a unit. `codes` and `scales` are where the lane's are in the unit's first strip;
    /// `strips` are the two of this fragment.
    pub fn load(&self, k: &mut Builder, codes: Addr<Shared>, scales: Addr<Shared>, strips: [u32; 2]) {
        let [code_bytes, scale_bytes] = self.strip_bytes;
        for (row, strip) in strips.into_iter().enumerate() {
            let words: [Reg<U32>; 2] = k.load_vector(codes.plus((strip * code_bytes).cast_signed()));
            let at = scales.plus((strip * scale_bytes).cast_signed());
            let scale = if self.powers { k.load_narrow(Width::B16, at) } else { k.load(at) };
            k.set(self.words[row][0], words[0]);
            k.set(self.words[row][1], words[1]);
            k.set(self.scales[row], scale);
        }
    }

    /// Makes the fragment of one slice. Slices are made in their order: the first of a word also makes the pair of
    /// scales for both.
    pub fn dequantise(&self, k: &mut Builder, set: usize, slice: u32) {
        let (word, second) = (slice as usize / 2, slice as usize % 2);
        for row in 0..2 {
            let (codes, scale) = match self.plain {
                None => {
                    if second == 0 {
                        let pair = if self.powers { power_pair } else { scale_pair };
                        let pair = pair(k, self.element, self.scales[row], word);
                        k.set(self.pairs[row], pair);
                    }
                    let order = (self.element, self.order);
                    (pairs_of_slice(k, order, self.words[row][word], second), second)
                }
                Some(shift) => {
                    if slice == 0 {
                        let pair = self.plain_scales(k, self.scales[row], shift);
                        k.set(self.pairs[row], pair);
                    }
                    (self.plain_codes(k, self.words[row][word], second), word)
                }
            };
            let products = self.scaled(k, self.pairs[row], scale, codes);
            for (column, product) in products.into_iter().enumerate() {
                k.set(self.sets[set][row + 2 * column], product);
            }
        }
    }

    /// The two pairs of plain codes that a word holds for one slice, each where the element has its exponent and
    /// mantissa: a word's codes lie in its halves as their pairs do.
    fn plain_codes(&self, k: &mut Builder, word: Reg<U32>, second: usize) -> [Reg<U32>; 2] {
        // Bits 15 and 9..12 of a half are a code's value times 2⁻¹⁴, bits 15 and 6..9 of a bfloat16 times 2⁻¹²⁶.
        let (place, mask) = if self.element == Tokens::F16 { (9, 0x0e00_0e00u32) } else { (6, 0x01c0_01c0) };
        [0, 1].map(|column| {
            let from = 4 * (2 * second + column) as u32;
            let magnitude = if from < place { k.shl(word, place - from) } else { k.shr(word, from - place) };
            let magnitude = k.and(magnitude, mask);
            let sign = if from < 12 { k.shl(word, 12 - from) } else { word };
            k.lop3(sign, 0x8000_8000u32, magnitude, AND_OR)
        })
    }

    /// The scales of both words of a row, as those of words for halves or for bfloat16 are: times 2⁷, or times 2¹¹⁹.
    fn plain_scales(&self, k: &mut Builder, scales: Reg<U32>, shift: Reg<U32>) -> Reg<U32> {
        let own = k.shr(scales, shift);
        let own = k.and(own, 0x007f_007fu32);
        if self.element == Tokens::F16 {
            // The bits of a scale moved up by 7 are a half of 2⁻⁸ times its value.
            let bits = k.shl(own, 7);
            let factor = k.bits::<F16x2>(0x7800_7800);
            return k.mul(bits.cast::<F16x2>(), factor).cast();
        }
        // Moved up by 4, they are a bfloat16 of 2⁻¹²⁰ times its value: 2¹²⁰ and 2¹¹⁹ are missing.
        let bits = k.shl(own, 4);
        let nothing = k.bits::<Bf16x2>(0x8000_8000);
        let (first, second) = (k.bits::<Bf16x2>(0x7b80_7b80), k.bits::<Bf16x2>(0x7b00_7b00));
        let value = k.fma(bits.cast::<Bf16x2>(), first, nothing);
        k.fma(value, second, nothing).cast()
    }

    /// Two pairs of codes times the first or second scale of a pair. bfloat16 has no multiplication of its own on every
    /// GPU that this is for; adding −0 to a product changes nothing.
    fn scaled(&self, k: &mut Builder, pair: Reg<U32>, second: usize, codes: [Reg<U32>; 2]) -> [Reg<U32>; 2] {
        if self.element == Tokens::F16 {
            let both = self.twice::<F16x2>(k, pair, second);
            return codes.map(|codes| k.mul(codes.cast::<F16x2>(), both).cast());
        }
        let both = self.twice::<Bf16x2>(k, pair, second);
        let nothing = k.bits::<Bf16x2>(0x8000_8000);
        codes.map(|codes| k.fma(codes.cast::<Bf16x2>(), both, nothing).cast())
    }

    /// The first or second scale of a pair, twice.
    fn twice<P: PackedPair<Width = W32>>(&self, k: &mut Builder, pair: Reg<U32>, second: usize) -> Reg<P> {
        let pair = pair.cast::<P>();
        if self.powers {
            return pair;
        }
        let scale = k.unpack_pair(pair)[second];
        k.pack_pair(scale, scale)
    }

    /// A made fragment.
    pub fn fragment(&self, set: usize) -> [Reg<U32>; 4] {
        self.sets[set]
    }
}

/// Tokens of a slice, two sets: for each eight tokens, k 0 to 8 and 8 to 16.
pub(super) struct TokenFragments {
    /// Whether the weights' words are plain codes.
    plain: bool,
    sets: [Vec<[Reg<U32>; 2]>; 2],
    /// Bytes from a unit's tokens to the row that this lane gives the address of, for each slice; or to what it reads
    /// of the first eight.
    rows: [Reg<U32>; SLICES as usize],
}

impl TokenFragments {
    pub fn new(k: &mut Builder, tokens: u32, lane: Reg<U32>, plain: bool) -> Self {
        let sets = [0, 1].map(|_| (0..tokens / 8).map(|_| k.registers()).collect());
        let rows = if plain { Self::plain_rows(k, lane) } else { Self::matrix_rows(k, lane) };
        TokenFragments { plain, sets, rows }
    }

    /// For plain codes, a lane has neighbours along k: of the two slices that a word is of, four columns each of the
    /// word's eight.
    fn plain_rows(k: &mut Builder, lane: Reg<U32>) -> [Reg<U32>; SLICES as usize] {
        let (row, quarter) = (k.shr(lane, 2), k.and(lane, 3));
        let (turned, first) = (turned(k, row, true), k.shl(row, TOKEN_BYTES.trailing_zeros()));
        std::array::from_fn(|slice| {
            let piece = k.add(quarter, 4 * (slice as u32 / 2));
            let piece = k.xor(piece, turned);
            let at = k.mul_add(piece, 16, first);
            k.add(at, 8 * (slice as u32 % 2))
        })
    }

    fn matrix_rows(k: &mut Builder, lane: Reg<U32>) -> [Reg<U32>; SLICES as usize] {
        // Lane l gives row l % 8 of matrix l / 8: matrices are two halves of k of eight tokens, then of the next eight.
        let (row, matrix) = (k.and(lane, 7), k.shr(lane, 3));
        let (eight, half) = (k.shr(matrix, 1), k.and(matrix, 1));
        let token = k.mul_add(eight, 8, row);
        let piece = k.xor(half, row);
        let first = k.shl(token, TOKEN_BYTES.trailing_zeros());
        let first = k.mul_add(piece, 16, first);
        std::array::from_fn(|slice| k.xor(first, 32 * slice as u32))
    }

    /// Reads the tokens of a slice of the unit whose tokens begin `further` bytes from `stage`.
    pub fn load(&self, k: &mut Builder, set: usize, slice: u32, stage: Reg<U32>, further: u32) {
        let at = k.add(stage, self.rows[slice as usize]);
        let at = Addr::<Shared>::of(at).plus(further.cast_signed());
        if self.plain {
            for (eight, registers) in self.sets[set].iter().enumerate() {
                let found: [Reg<U32>; 2] = k.load_vector(at.plus((eight as u32 * 8 * TOKEN_BYTES).cast_signed()));
                k.set(registers[0], found[0]);
                k.set(registers[1], found[1]);
            }
            return;
        }
        for (pair, registers) in self.sets[set].chunks(2).enumerate() {
            let dsts = registers.iter().flatten().map(|reg| reg.id()).collect();
            let addr = at.plus((pair as u32 * 16 * TOKEN_BYTES).cast_signed()).address();
            k.emit(Warp::LoadMatrix { transpose: false, dsts, addr });
        }
    }

    pub fn fragments(&self, set: usize) -> &[[Reg<U32>; 2]] {
        &self.sets[set]
    }
}

/// By what the pieces of a token's row are permuted, so that those that are read together lie in different banks.
/// `ldmatrix` reads the same piece of eight rows; with plain codes, four pieces of two rows are read at a time.
pub(super) fn turned(k: &mut Builder, row: Reg<U32>, plain: bool) -> Reg<U32> {
    let row = k.and(row, 7);
    if !plain {
        return row;
    }
    let (odd, pair) = (k.and(row, 1), k.shr(row, 1));
    k.mul_add(odd, 4, pair)
}

/// The element that a kind of tokens is multiplied as.
pub(super) fn element(tokens: Tokens) -> MatrixElement {
    if tokens == Tokens::F16 { MatrixElement::F16 } else { MatrixElement::Bf16 }
}
