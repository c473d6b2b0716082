//! Weights from codes and scales, and tokens from shared memory: the operands of `mma.sync` in a warp's registers.

use ptx::instr::{MatrixElement, Warp};
use ptx::{Addr, Bf16x2, Builder, F16x2, Reg, Shared, U32};

use super::{SLICES, STRIP_CODES, STRIP_SCALES, TOKEN_BYTES, Tokens};
use crate::families::sm90::kernel::{codes_of_slice, scale_pair};

/// One thread's share of a fragment of weights: words and scales as they come, and what was made of them. Index 0 is the strip of rows
/// r, index 1 that of rows r + 8.
pub(super) struct Weights {
    element: Tokens,
    words: [[Reg<U32>; 2]; 2],
    scales: [Reg<U32>; 2],
    /// Scales of the two slices that one word covers, as a pair of floats.
    pairs: [Reg<U32>; 2],
    /// The slice that is multiplied, and the one after it.
    sets: [[Reg<U32>; 4]; 2],
}

impl Weights {
    pub fn new(k: &mut Builder, element: Tokens) -> Self {
        Weights {
            element,
            words: [k.registers(), k.registers()],
            scales: k.registers(),
            pairs: k.registers(),
            sets: [k.registers(), k.registers()],
        }
    }

    /// Bytes from a strip's codes to a lane's words, and from a strip's scales to its row's.
    pub fn offsets(k: &mut Builder, lane: Reg<U32>) -> [Reg<U32>; 2] {
        let row = k.shr(lane, 2);
        [k.shl(lane, 3), k.shl(row, 2)]
    }

    /// Reads the words and scales of a unit. `codes` and `scales` are where the lane's are in the unit's first strip; `strips` are the
    /// two of this fragment.
    pub fn load(&self, k: &mut Builder, codes: Addr<Shared>, scales: Addr<Shared>, strips: [u32; 2]) {
        for (row, strip) in strips.into_iter().enumerate() {
            let words: [Reg<U32>; 2] = k.load_vector(codes.plus((strip * STRIP_CODES).cast_signed()));
            let scale: Reg<U32> = k.load(scales.plus((strip * STRIP_SCALES).cast_signed()));
            k.set(self.words[row][0], words[0]);
            k.set(self.words[row][1], words[1]);
            k.set(self.scales[row], scale);
        }
    }

    /// Makes the fragment of one slice. Slices are made in their order: the first of a word also makes the pair of scales for both.
    pub fn dequantise(&self, k: &mut Builder, set: usize, slice: u32) {
        let (word, second) = (slice as usize / 2, slice as usize % 2);
        for row in 0..2 {
            if second == 0 {
                let pair = scale_pair(k, self.element, self.scales[row], word);
                k.set(self.pairs[row], pair);
            }
            let codes = codes_of_slice(k, self.element, self.words[row][word], second);
            let products = self.scaled(k, self.pairs[row], second, codes);
            for (column, product) in products.into_iter().enumerate() {
                k.set(self.sets[set][row + 2 * column], product);
            }
        }
    }

    /// Two pairs of codes times the first or second scale of a pair. bfloat16 has no multiplication of its own on every GPU that this
    /// is for; adding −0 to a product changes nothing.
    fn scaled(&self, k: &mut Builder, pair: Reg<U32>, second: usize, codes: [Reg<U32>; 2]) -> [Reg<U32>; 2] {
        if self.element == Tokens::F16 {
            let scale = k.unpack_pair(pair.cast::<F16x2>())[second];
            let both: Reg<F16x2> = k.pack_pair(scale, scale);
            return codes.map(|codes| k.mul(codes.cast::<F16x2>(), both).cast());
        }
        let scale = k.unpack_pair(pair.cast::<Bf16x2>())[second];
        let both: Reg<Bf16x2> = k.pack_pair(scale, scale);
        let nothing = k.bits::<Bf16x2>(0x8000_8000);
        codes.map(|codes| k.fma(codes.cast::<Bf16x2>(), both, nothing).cast())
    }

    /// A made fragment.
    pub fn fragment(&self, set: usize) -> [Reg<U32>; 4] {
        self.sets[set]
    }
}

/// Tokens of a slice, two sets: for each eight tokens, k 0 to 8 and 8 to 16.
pub(super) struct TokenFragments {
    sets: [Vec<[Reg<U32>; 2]>; 2],
    /// Bytes from a unit's tokens to the row that this lane gives the address of, for each slice.
    rows: [Reg<U32>; SLICES as usize],
}

impl TokenFragments {
    pub fn new(k: &mut Builder, tokens: u32, lane: Reg<U32>) -> Self {
        // Lane l gives row l % 8 of matrix l / 8: matrices are two halves of k of eight tokens, then of the next eight.
        let (row, matrix) = (k.and(lane, 7), k.shr(lane, 3));
        let (eight, half) = (k.shr(matrix, 1), k.and(matrix, 1));
        let token = k.mul_add(eight, 8, row);
        let piece = k.xor(half, row);
        let first = k.shl(token, TOKEN_BYTES.trailing_zeros());
        let first = k.mul_add(piece, 16, first);
        let sets = [0, 1].map(|_| (0..tokens / 8).map(|_| k.registers()).collect());
        TokenFragments { sets, rows: std::array::from_fn(|slice| k.xor(first, 32 * slice as u32)) }
    }

    /// Reads the tokens of a slice of the unit whose tokens begin `further` bytes from `stage`.
    pub fn load(&self, k: &mut Builder, set: usize, slice: u32, stage: Reg<U32>, further: u32) {
        let at = k.add(stage, self.rows[slice as usize]);
        let at = Addr::<Shared>::of(at).plus(further.cast_signed());
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

/// The element that a kind of tokens is multiplied as.
pub(super) fn element(tokens: Tokens) -> MatrixElement {
    if tokens == Tokens::F16 { MatrixElement::F16 } else { MatrixElement::Bf16 }
}
