//! FP8 weights as a fragment: a word of each row per slice, whose bits are moved to where a float has its own, and one
//! multiplication, which brings them to their value ([`crate::fp8`] is the layout). For bfloat16 tokens MXFP8's powers
//! of two are part of it.
//!
//! A row's words of a unit are its lanes' sixteen bytes, one load without bank conflicts. Scales of blocks multiply
//! sums: see `consume`.

use ptx::instr::Width;
use ptx::{Addr, Bf16x2, Builder, F16x2, F32, Reg, Shared, U32};

use super::{MultiplySpec, SLICES, Tokens};
use crate::pack::Scales;
use crate::phases::slices::{TO_BFLOATS, TO_HALVES, byte_power, multiply_into, pairs_of_bytes};

/// Fragments of FP8. Index 0 is the chunk of rows r, index 1 that of rows r + 8.
///
/// The *fresh* words are of the unit that was read last. The last slice's word is *kept* beside them, so that the next
/// unit can be read before that slice is made.
pub(super) struct ByteFragments {
    element: Tokens,
    scales: Scales,
    fresh: [[Reg<U32>; SLICES]; 2],
    kept: [Reg<U32>; 2],
    /// Scales as they come: two bytes, or a float for all of a unit. And what is multiplied with them: two slices of
    /// bfloat16 with powers of two, or the sums of the unit before the one that was read.
    read: Option<[Scaled; 2]>,
    sets: Vec<[[Reg<U32>; 4]; SLICES]>,
}

/// The scales of a row.
struct Scaled {
    fresh: Reg<U32>,
    used: Reg<U32>,
}

impl ByteFragments {
    pub fn new(k: &mut Builder, config: &MultiplySpec) -> Self {
        let row = |k: &mut Builder| Scaled { fresh: k.register(), used: k.register() };
        ByteFragments {
            element: config.element,
            scales: config.scales,
            fresh: [k.registers(), k.registers()],
            kept: k.registers(),
            read: (config.scales != Scales::Fp8).then(|| [row(k), row(k)]),
            sets: (0..config.fragment_sets()).map(|_| std::array::from_fn(|_| k.registers())).collect(),
        }
    }

    /// Reads the words and scales of a unit from two chunks, `apart` bytes from each other.
    pub fn load(&self, k: &mut Builder, words_at: Addr<Shared>, scales_at: Option<Addr<Shared>>, apart: u32) {
        for row in 0..2 {
            let further = (row as u32 * apart).cast_signed();
            let words: [Reg<U32>; SLICES] = k.load_vector(words_at.plus(further));
            self.fresh[row].iter().zip(words).for_each(|(own, word)| k.set(*own, word));
            let Some((read, at)) = self.read.as_ref().zip(scales_at) else { continue };
            let at = at.plus(further + self.scales.code_bytes().cast_signed());
            let scales: Reg<U32> = match self.scales {
                Scales::MxFp8 => k.load_narrow(Width::B16, at),
                _ => k.load(at),
            };
            k.set(read[row].fresh, scales);
        }
    }

    /// Keeps the scales of the present unit's sums, before those of the next are read.
    pub fn keep_scales(&self, k: &mut Builder) {
        self.read.iter().flatten().for_each(|row| k.set(row.used, row.fresh));
    }

    /// What a unit's sums are multiplied with: those of rows r, and of rows r + 8.
    pub fn sum_scales(&self) -> Option<[Reg<F32>; 2]> {
        self.read.as_ref().map(|rows| [rows[0].used.cast(), rows[1].used.cast()])
    }

    /// Makes the fragment of one slice in one set. The first of two slices also makes their power of two.
    pub fn dequantise(&self, k: &mut Builder, set: usize, slice: usize) {
        k.phase("dequantise", |k| {
            for row in 0..2 {
                let factor = self.factor(k, row, slice);
                let word = if slice + 1 == SLICES { self.kept[row] } else { self.fresh[row][slice] };
                for (column, bits) in pairs_of_bytes(k, self.element, word).into_iter().enumerate() {
                    let dst = self.sets[set][slice][row + 2 * column];
                    match self.element {
                        Tokens::F16 => multiply_into(k, bits, factor.cast::<F16x2>(), dst),
                        _ => multiply_into(k, bits, factor.cast::<Bf16x2>(), dst),
                    }
                }
                if slice + 2 == SLICES {
                    k.set(self.kept[row], self.fresh[row][SLICES - 1]);
                }
            }
        });
    }

    /// What moved bits lack: a pair.
    fn factor(&self, k: &mut Builder, row: usize, slice: usize) -> Reg<U32> {
        match (&self.read, self.scales) {
            (Some(read), Scales::MxFp8) => {
                if slice.is_multiple_of(2) {
                    let power = byte_power(k, read[row].fresh, slice >= SLICES / 2);
                    k.set(read[row].used, power);
                }
                read[row].used
            }
            _ if self.element == Tokens::F16 => k.bits::<F16x2>(TO_HALVES).cast(),
            _ => k.bits::<Bf16x2>(TO_BFLOATS).cast(),
        }
    }

    /// The registers of a slice's fragment.
    pub fn registers(&self, set: usize, slice: usize) -> [Reg<U32>; 4] {
        self.sets[set][slice]
    }
}
