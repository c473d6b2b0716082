//! FP8 weights as the operands of `mma.sync`: four words of a strip per unit of k, one for each slice, whose bits are
//! moved to where a float has its own ([`crate::fp8`] is the layout). One multiplication brings them to their value.
//! For bfloat16 tokens MXFP8's powers of two are part of it.
//!
//! Scales of blocks, and MXFP8's before halves, whose range would not hold them, multiply sums: those of 64 or of 32 of
//! k are made from zero, and then added to the total with their scale, in one rounding.

use format::Scaling;
use ptx::instr::Width;
use ptx::{Addr, Bf16x2, Builder, F16x2, F32, Reg, Shared, U32};

use super::{SLICES, Tokens, WarpMultiplySpec};
use crate::phases::slices::{SIGNS, TO_BFLOATS, TO_HALVES, byte_power, pairs_of_bytes};

/// One thread's share of a fragment of FP8 weights. Index 0 is the strip of rows r, index 1 that of rows r + 8.
pub(super) struct ByteWeights {
    element: Tokens,
    scaling: Scaling,
    strip_bytes: [u32; 2],
    words: [[Reg<U32>; SLICES as usize]; 2],
    /// Scales as they come: a float for all of a unit or for either half, or two bytes.
    scales: [[Reg<U32>; 2]; 2],
    /// The last scale of the unit whose last slices are multiplied while the next unit's are read.
    last: [Reg<F32>; 2],
    /// What two slices of bfloat16 are multiplied with.
    powers: [Reg<U32>; 2],
    /// The slice that is multiplied, and the one after it.
    sets: [[Reg<U32>; 4]; 2],
}

impl ByteWeights {
    pub fn new(k: &mut Builder, config: &WarpMultiplySpec) -> Self {
        ByteWeights {
            element: config.element,
            scaling: config.scaling,
            strip_bytes: config.strip_bytes(),
            words: [k.registers(), k.registers()],
            scales: [k.registers(), k.registers()],
            last: k.registers(),
            powers: k.registers(),
            sets: [k.registers(), k.registers()],
        }
    }

    /// Bytes from a strip's weights to a lane's words, and from a strip's scales to its row's.
    pub fn offsets(k: &mut Builder, config: &WarpMultiplySpec, lane: Reg<U32>) -> [Reg<U32>; 2] {
        let row = k.shr(lane, 2);
        [k.shl(lane, 4), k.mul(row, config.chunk().row_scale_bytes)]
    }

    /// Reads the words and scales of a unit, as `fragments::Weights` does.
    pub fn load(&self, k: &mut Builder, words: Addr<Shared>, scales: Addr<Shared>, strips: [u32; 2]) {
        let [word_bytes, scale_bytes] = self.strip_bytes;
        for (row, strip) in strips.into_iter().enumerate() {
            let found: [Reg<U32>; SLICES as usize] = k.load_vector(words.plus((strip * word_bytes).cast_signed()));
            self.words[row].iter().zip(found).for_each(|(own, word)| k.set(*own, word));
            let at = scales.plus((strip * scale_bytes).cast_signed());
            let own = self.scales[row];
            match self.scaling {
                Scaling::MxFp8 => {
                    let both = k.load_narrow(Width::B16, at);
                    k.set(own[0], both);
                }
                Scaling::Fp8By64 => {
                    let scale: Reg<U32> = k.load(at);
                    k.set(own[0], scale);
                }
                Scaling::Fp8By32 => {
                    let found: [Reg<U32>; 2] = k.load_vector(at);
                    own.iter().zip(found).for_each(|(own, scale)| k.set(*own, scale));
                }
                _ => {}
            }
        }
    }

    /// Keeps the last scale of the present unit, before those of the next are read.
    pub fn keep_last(&self, k: &mut Builder) {
        for row in 0..2 {
            let [first, second] = self.scales[row];
            let last = match self.scaling {
                Scaling::MxFp8 => {
                    let byte = k.shr(first, 8);
                    k.shl(byte, 23).cast()
                }
                Scaling::Fp8By64 => first.cast(),
                _ => second.cast(),
            };
            k.set(self.last[row], last);
        }
    }

    /// What the sums that end with a slice are multiplied with: of rows r, and of rows r + 8.
    pub fn sum_scales(&self, k: &mut Builder, slice: u32) -> [Reg<F32>; 2] {
        if slice + 1 == SLICES {
            return self.last;
        }
        self.scales.map(|[first, _]| match self.scaling {
            Scaling::MxFp8 => {
                let byte = k.and(first, 0xff);
                k.shl(byte, 23).cast()
            }
            _ => first.cast(),
        })
    }

    /// Makes the fragment of one slice. Slices are made in their order: the first of two also makes their power of two.
    pub fn dequantise(&self, k: &mut Builder, set: usize, slice: u32) {
        for row in 0..2 {
            if self.takes_powers() && slice.is_multiple_of(2) {
                let power = byte_power(k, self.scales[row][0], slice >= SLICES / 2);
                k.set(self.powers[row], power);
            }
            let word = self.words[row][slice as usize];
            for (column, bits) in pairs_of_bytes(k, self.element, word).into_iter().enumerate() {
                let value = self.valued(k, bits, row);
                k.set(self.sets[set][row + 2 * column], value);
            }
        }
    }

    /// Whether weights are multiplied with powers of two of their own.
    fn takes_powers(&self) -> bool {
        self.scaling == Scaling::MxFp8 && self.element != Tokens::F16
    }

    /// Moved bits times what they lack. Adding −0 to a product changes nothing.
    fn valued(&self, k: &mut Builder, bits: Reg<U32>, row: usize) -> Reg<U32> {
        if self.element == Tokens::F16 {
            let factor = k.bits::<F16x2>(TO_HALVES);
            return k.mul(bits.cast::<F16x2>(), factor).cast();
        }
        let factor = if self.takes_powers() { self.powers[row].cast() } else { k.bits::<Bf16x2>(TO_BFLOATS) };
        let nothing = k.bits::<Bf16x2>(SIGNS.into());
        k.fma(bits.cast::<Bf16x2>(), factor, nothing).cast()
    }

    /// A made fragment.
    pub fn fragment(&self, set: usize) -> [Reg<U32>; 4] {
        self.sets[set]
    }
}
