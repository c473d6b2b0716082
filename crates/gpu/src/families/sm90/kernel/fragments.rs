//! Codes and scales of two chunks become a fragment of weights: wgmma's A operand, in the registers of a warpgroup.
//! Those of four bits are here; FP8's are in `bytes`.
//!
//! A code's bits, put where a half has exponent and mantissa, are w · 2⁻¹⁴; times scale · 2⁷ that is w · s · 2⁻⁷. For
//! bfloat16 the places are others, and w · 2⁻¹²⁶ times scale · 2¹¹⁹ is the same w · s · 2⁻⁷. All factors and the
//! product are exact. Where e4m3 is asked for, a half w · s · 2⁻⁷ times the matrix's power of two is rounded to it. The
//! layout of words and scale bytes is described in [`crate::pack`].
//!
//! Where scales are powers of two for a whole word (MXFP4), both slices of a word take the same pair, which is made of
//! a byte in two steps. If a layer's words are in order for a table ([`Powers`]), they are looked up: what the eight
//! magnitudes are under a power of two, as e4m3, fits into two registers, from which codes pick.

use ptx::instr::{ShuffleMode, Width};
use ptx::{Addr, Bf16x2, Builder, F16x2, MatrixOperand, PackedPair, Reg, Shared, U32};

use op::precision::WEIGHT_EXPONENT;

use super::bytes::ByteFragments;
use super::{MultiplySpec, SLICES, Tokens};
use crate::pack::{Codes, Scales};
use crate::phases::slices::{AND_OR, multiply_into, pairs_of_slice, power_pair, scale_pair};

/// The magnitudes of codes in pairs of halves: 0 and ½, 1 and 1½, 2 and 3, 4 and 6.
const MAGNITUDES: [u32; 4] = [0x3800_0000, 0x3e00_3c00, 0x4200_4000, 0x4600_4400];
/// The power of two that lane 0 has: under it even the largest magnitude rounds to zero.
const LEAST_POWER: i32 = -13;

/// What the eight magnitudes are under a power of two, rounded to e4m3: a byte each, in two registers. Every lane has
/// them for another power, and those that it needs come from the lane that has them.
#[derive(Clone, Copy)]
pub(super) struct Powers([Reg<U32>; 2]);

impl Powers {
    pub fn new(k: &mut Builder, lane: Reg<U32>) -> Self {
        k.phase("dequantise", |k| {
            // Beyond lane 28 halves have no such powers of two, and nobody asks for them.
            let lane = k.min(lane, 28);
            let exponent = k.mul_add(lane, 0x0400_0400, ((15 + LEAST_POWER) as u32) * 0x0400_0400);
            let [first, second, third, fourth] = MAGNITUDES.map(|pair| {
                let pair = k.variable(pair);
                let rounded = k.mul(pair.cast::<F16x2>(), exponent.cast::<F16x2>());
                k.e4m3_of_halves(rounded)
            });
            Powers([k.pack_halfwords(first, second), k.pack_halfwords(third, fourth)])
        })
    }

    /// The byte of the scale that becomes lane 0's power of two, given what a tile's scales are multiplied with: a
    /// power of two in a pair of halves.
    fn least_byte(k: &mut Builder, lift: Reg<U32>) -> Reg<U32> {
        // s − 127 + lift + WEIGHT_EXPONENT is to be LEAST_POWER, and the half's exponent is lift + 15.
        let biased = k.shr(lift, 26);
        let none = k.variable((127 - WEIGHT_EXPONENT + LEAST_POWER + 15).cast_unsigned());
        k.sub(none, biased)
    }

    /// The eight bytes for a scale.
    fn of(self, k: &mut Builder, scale: Reg<U32>, least: Reg<U32>) -> [Reg<U32>; 2] {
        let scale = k.max(scale, least);
        let lane = k.sub(scale, least);
        self.0.map(|bytes| k.shuffle(ShuffleMode::Index, bytes, lane))
    }
}

/// One thread's share of a block of rows: words and scales as they come, and the fragments made of them.
pub(super) enum Fragments {
    /// Of codes of four bits.
    Codes(CodeFragments),
    /// Of FP8.
    Bytes(ByteFragments),
}

impl Fragments {
    pub fn new(k: &mut Builder, config: &MultiplySpec, powers: Option<Powers>) -> Self {
        match config.scales.is_fp8() {
            true => Fragments::Bytes(ByteFragments::new(k, config)),
            false => Fragments::Codes(CodeFragments::new(k, config, powers)),
        }
    }

    /// Bytes from a chunk's start to a lane's words, and from a chunk's scales to its row's, if there are some; given
    /// the warp's place in its warpgroup.
    pub fn offsets(k: &mut Builder, scales: Scales, quarter: Reg<U32>, lane: Reg<U32>) -> (Reg<U32>, Option<Reg<U32>>) {
        let of_warp = scales.code_bytes() / 4;
        let words = k.shl(lane, (of_warp / 32).trailing_zeros());
        let words = k.mul_add(quarter, of_warp, words);
        let scales = (scales.row_bytes() > 0).then(|| {
            let row = k.shr(lane, 2);
            let row = k.mul_add(quarter, 8, row);
            k.shl(row, scales.row_bytes().trailing_zeros())
        });
        (words, scales)
    }

    /// Registers that they take besides those of each set: words, and scales as they come and as they are multiplied.
    pub const fn word_registers(scales: Scales) -> u32 {
        match scales {
            Scales::Sixteens | Scales::ThirtyTwos | Scales::Fp8 => 12,
            Scales::MxFp8 | Scales::Fp8By64 => 14,
        }
    }

    /// Reads the words and scales of a unit from two chunks, `apart` bytes from each other.
    pub fn load(&self, k: &mut Builder, words_at: Addr<Shared>, scales_at: Option<Addr<Shared>>, apart: u32) {
        match (self, scales_at) {
            (Fragments::Codes(codes), Some(scales_at)) => codes.load(k, words_at, scales_at, apart),
            (Fragments::Codes(_), None) => unreachable!("codes of four bits have scales"),
            (Fragments::Bytes(bytes), _) => bytes.load(k, words_at, scales_at, apart),
        }
    }

    /// Sets what the scales of a tile's rows are multiplied with, where they are.
    pub fn lift(&self, k: &mut Builder, row: usize, lift: Reg<U32>) {
        if let Fragments::Codes(codes) = self {
            codes.lift(k, row, lift);
        }
    }

    /// Makes the fragment of one slice in one set. Slices are made in their order, and the words of the next unit may
    /// be read before the last of them is.
    pub fn dequantise(&self, k: &mut Builder, set: usize, slice: usize) {
        match self {
            Fragments::Codes(codes) => codes.dequantise(k, set, slice),
            Fragments::Bytes(bytes) => bytes.dequantise(k, set, slice),
        }
    }

    /// The registers of a slice's fragment.
    pub fn registers(&self, set: usize, slice: usize) -> [Reg<U32>; 4] {
        match self {
            Fragments::Codes(codes) => codes.sets[set][slice],
            Fragments::Bytes(bytes) => bytes.registers(set, slice),
        }
    }

    /// The fragment of a slice, as wgmma takes it.
    pub fn operand(&self, element: Tokens, set: usize, slice: usize) -> MatrixOperand {
        let registers = self.registers(set, slice);
        match element {
            Tokens::F16 => MatrixOperand::F16(registers.map(Reg::cast)),
            Tokens::E4m3 => MatrixOperand::E4m3(registers),
            _ => MatrixOperand::Bf16(registers.map(Reg::cast)),
        }
    }
}

/// Fragments of codes of four bits. Index 0 is the chunk of rows r, index 1 that of rows r + 8.
///
/// A word covers two slices, so a unit has two words. The *fresh* ones are of the unit that was read last; what of it
/// the second two slices need is *kept*, so that the next unit can be read before those are made.
pub(super) struct CodeFragments {
    element: Tokens,
    order: Codes,
    scales: Scales,
    fresh: [[Reg<U32>; 2]; 2],
    fresh_scales: [Reg<U32>; 2],
    kept: [Reg<U32>; 2],
    kept_scales: [Reg<U32>; 2],
    /// Scales of the two slices that one word covers, as a pair of floats; of powers of two one scale twice.
    pairs: [Reg<U32>; 2],
    /// What scales are multiplied with where weights are rounded to e4m3, twice a half each; where they are looked up,
    /// the byte of the least scale that the table has.
    lifts: Option<[Reg<U32>; 2]>,
    powers: Option<Powers>,
    /// The fragments of a unit's slices, in one set or two. Of e4m3 numbers a slice is 32 of k, and there are two.
    sets: Vec<[[Reg<U32>; 4]; SLICES]>,
}

/// Registers of a set.
pub(super) const SET_REGISTERS: u32 = 16;

impl CodeFragments {
    fn new(k: &mut Builder, config: &MultiplySpec, powers: Option<Powers>) -> Self {
        let element = config.element;
        CodeFragments {
            element,
            order: config.codes(),
            scales: config.scales,
            fresh: [k.registers(), k.registers()],
            fresh_scales: k.registers(),
            kept: k.registers(),
            kept_scales: k.registers(),
            pairs: k.registers(),
            lifts: (element == Tokens::E4m3).then(|| k.registers()),
            powers,
            sets: (0..config.fragment_sets()).map(|_| std::array::from_fn(|_| k.registers())).collect(),
        }
    }

    fn load(&self, k: &mut Builder, words_at: Addr<Shared>, scales_at: Addr<Shared>, apart: u32) {
        for row in 0..2 {
            let further = (row as u32 * apart).cast_signed();
            let words: [Reg<U32>; 2] = k.load_vector(words_at.plus(further));
            let scales_at = scales_at.plus(further + self.scales.code_bytes().cast_signed());
            let scales: Reg<U32> = match self.scales {
                Scales::ThirtyTwos => k.load_narrow(Width::B16, scales_at),
                _ => k.load(scales_at),
            };
            k.set(self.fresh[row][0], words[0]);
            k.set(self.fresh[row][1], words[1]);
            k.set(self.fresh_scales[row], scales);
        }
    }

    /// The scales of the two slices that one of a unit's two words covers, as a pair of floats.
    fn pair(&self, k: &mut Builder, element: Tokens, scales: Reg<U32>, word: usize) -> Reg<U32> {
        match self.scales {
            Scales::ThirtyTwos => power_pair(k, element, scales, word),
            _ => scale_pair(k, element, scales, word),
        }
    }

    fn lift(&self, k: &mut Builder, row: usize, lift: Reg<U32>) {
        if let Some(lifts) = self.lifts {
            let lift = if self.powers.is_some() { Powers::least_byte(k, lift) } else { lift };
            k.set(lifts[row], lift);
        }
    }

    /// Makes the fragment of 32 of k from a table: codes pick their magnitudes, and bring their signs.
    fn look_up(&self, k: &mut Builder, set: usize, word: usize, (powers, least): (Powers, [Reg<U32>; 2])) {
        let fragment = self.sets[set][word];
        k.phase("dequantise", |k| {
            for row in 0..2 {
                let scales = self.fresh_scales[row];
                let scale = if word == 0 { k.and(scales, 0xff) } else { k.shr(scales, 8) };
                let [low, high] = powers.of(k, scale, least[row]);
                let codes = self.fresh[row][word];
                let picks = k.and(codes, 0x7777_7777);
                let slices = [(picks, codes), (k.shr(picks, 16), k.shl(codes, 4))];
                for (slice, (picks, signs)) in slices.into_iter().enumerate() {
                    let magnitudes = k.permute(low, high, picks);
                    let bytes = k.lop3(signs, 0x8080_8080, magnitudes, AND_OR);
                    k.set(fragment[row + 2 * slice], bytes);
                }
            }
        });
    }

    /// Makes the fragment of 32 of k: a word's two slices of halves, rounded to e4m3. Tokens have the same order of k.
    fn round(&self, k: &mut Builder, set: usize, word: usize) {
        let fragment = self.sets[set][word];
        k.phase("dequantise", |k| {
            for row in 0..2 {
                let codes = self.fresh[row][word];
                let pair = self.pair(k, Tokens::F16, self.fresh_scales[row], word);
                let pair: Reg<F16x2> = match self.lifts {
                    Some(lifts) => k.mul(pair.cast::<F16x2>(), lifts[row].cast::<F16x2>()),
                    None => pair.cast(),
                };
                let apart = (self.scales == Scales::Sixteens).then(|| k.unpack_pair(pair));
                for second in 0..2 {
                    let both = apart.map_or(pair, |scales| k.pack_pair(scales[second], scales[second]));
                    let pairs = pairs_of_slice(k, (Tokens::F16, self.order), codes, second).map(|pair| {
                        let weights = k.mul(pair.cast::<F16x2>(), both);
                        k.e4m3_of_halves(weights)
                    });
                    let bytes = k.pack_halfwords(pairs[0], pairs[1]);
                    k.set(fragment[row + 2 * second], bytes);
                }
            }
        });
    }

    /// The first slice of a word also makes the pair of scales for both, and the second one keeps what the next word
    /// needs.
    fn dequantise(&self, k: &mut Builder, set: usize, slice: usize) {
        if self.element == Tokens::E4m3 {
            return match self.powers.zip(self.lifts) {
                Some(table) => self.look_up(k, set, slice, table),
                None => self.round(k, set, slice),
            };
        }
        k.phase("dequantise", |k| {
            let (word, second) = (slice / 2, slice % 2);
            for row in 0..2 {
                let (codes, scales) = match word {
                    0 => (self.fresh[row][0], self.fresh_scales[row]),
                    _ => (self.kept[row], self.kept_scales[row]),
                };
                if second == 0 {
                    let pair = self.pair(k, self.element, scales, word);
                    k.set(self.pairs[row], pair);
                }
                let codes = pairs_of_slice(k, (self.element, self.order), codes, second);
                let fragment = self.sets[set][slice];
                let fragment = [fragment[row], fragment[row + 2]];
                match self.element {
                    Tokens::F16 => self.scale::<F16x2>(k, self.pairs[row], second, codes, fragment),
                    _ => self.scale::<Bf16x2>(k, self.pairs[row], second, codes, fragment),
                }
                if slice == 1 {
                    k.set(self.kept[row], self.fresh[row][1]);
                    k.set(self.kept_scales[row], self.fresh_scales[row]);
                }
            }
        });
    }

    /// Multiplies two pairs of codes by the first or second scale of a pair, into registers that multiplications read
    /// round after round.
    fn scale<P: PackedPair<Width = ptx::W32>>(
        &self,
        k: &mut Builder,
        pair: Reg<U32>,
        second: usize,
        codes: [Reg<U32>; 2],
        into: [Reg<U32>; 2],
    ) {
        let pair = pair.cast::<P>();
        let apart = (self.scales == Scales::Sixteens).then(|| k.unpack_pair(pair)[second]);
        let both = apart.map_or(pair, |scale| k.pack_pair(scale, scale));
        for (codes, dst) in codes.into_iter().zip(into) {
            multiply_into(k, codes, both, dst);
        }
    }
}
