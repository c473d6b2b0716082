//! The main loop of a warp: operands of the next slice are read and made while the tensor cores multiply the present
//! one.
//!
//! A slice is 16 of k. Where a token is the sum of several parts, a slice is multiplied with each: a *step* is a slice
//! and a part. The tokens of the next step and the weights of the next slice are made ready before the multiplications
//! of the present step, in a second set of registers. Words and scales of the next unit are read in its last slice but
//! one, when the last slice has been made of the present ones. In the middle of the last unit of a stage the next stage
//! is awaited, and what is copied then stands between the multiplications of the slice that follows; see `pipeline`.

use ptx::{Addr, Builder, F32, Reg, Shared, U32};

use super::bytes::ByteWeights;
use super::codes::{CodeOperands, UnitWeights};
use super::fragments::{TokenFragments, Weights, element};
use super::load::{Copies, Filling};
use super::pipeline::Turn;
use super::work::Tile;
use super::{Division, Parts, Products, SLICES, TOKEN_BYTES, Tokens, WarpMultiplySpec};

/// What one thread holds.
pub(super) struct Consumer {
    pub config: WarpMultiplySpec,
    pub thread: Reg<U32>,
    pub lane: Reg<U32>,
    /// The warp's place along the columns, and along k.
    pub along_n: Reg<U32>,
    pub along_k: Reg<U32>,
    /// Bytes from a stage to this warp's first unit of tokens.
    tokens_at: Reg<U32>,
    /// Bytes from a stage to this lane's words, and to its scales, in the first fragment of the warp's first unit.
    words_at: Reg<U32>,
    scales_at: Reg<U32>,
    operands: Operands,
    /// Sums: for each pass, for each fragment, for each eight tokens.
    pub sums: Sums,
    /// The same of a stretch of k that has a scale of its own; nothing where none has.
    stretch: Option<Sums>,
}

/// A thread's sums of each fragment and each eight tokens.
type Sums = Vec<Vec<[Reg<F32>; 4]>>;

/// What a thread multiplies.
enum Operands {
    /// Weights that it makes floats of, and tokens that are some.
    Floats(FloatOperands),
    /// Codes and scales as they are.
    Codes(CodeOperands),
}

/// Weights that a thread makes floats of, and tokens.
struct FloatOperands {
    weights: Vec<Fragment>,
    tokens: TokenFragments,
}

/// A fragment of weights.
enum Fragment {
    /// Of codes of four bits.
    Codes(Weights),
    /// Of FP8.
    Bytes(ByteWeights),
}

impl Fragment {
    fn load(&self, k: &mut Builder, words: Addr<Shared>, scales: Addr<Shared>, strips: [u32; 2]) {
        match self {
            Fragment::Codes(weights) => weights.load(k, words, scales, strips),
            Fragment::Bytes(weights) => weights.load(k, words, scales, strips),
        }
    }

    fn dequantise(&self, k: &mut Builder, set: usize, slice: u32) {
        match self {
            Fragment::Codes(weights) => weights.dequantise(k, set, slice),
            Fragment::Bytes(weights) => weights.dequantise(k, set, slice),
        }
    }

    fn made(&self, set: usize) -> [Reg<U32>; 4] {
        match self {
            Fragment::Codes(weights) => weights.fragment(set),
            Fragment::Bytes(weights) => weights.fragment(set),
        }
    }
}

/// What the main loop goes through.
struct Walk<'a> {
    operands: &'a FloatOperands,
    copies: &'a Copies,
    turn: Turn,
    pass: usize,
}

/// A slice of one of the warp's units of a stage, and the part of the tokens.
#[derive(Clone, Copy)]
struct Step {
    unit: u32,
    slice: u32,
    part: u32,
}

impl Consumer {
    pub fn new(k: &mut Builder, config: WarpMultiplySpec, thread: Reg<U32>) -> Self {
        let Division { along_n: columns, fragments, .. } = config.division();
        let lane = k.and(thread, 31);
        let warp = k.shr(thread, 5);
        let warp = k.broadcast(warp);
        let (along_n, along_k) = (k.rem(warp, columns), k.div(warp, columns));
        let [token_bytes, weight_bytes] = config.unit_bytes();
        let [words, scales] = match config.element {
            Tokens::NvFp4 => [k.shl(lane, 3), CodeOperands::weight_scales(k, &config, lane)],
            _ if config.scaling.is_fp8() => ByteWeights::offsets(k, &config, lane),
            _ => Weights::offsets(k, &config, lane),
        };
        let weights_at = k.mul_add(along_k, weight_bytes, words);
        let scales_behind = k.mul_add(along_k, weight_bytes, scales);
        // Strips of a fragment: the same of both matrices, or two neighbours.
        let stride = if config.products == Products::Interleaved { fragments } else { 2 * fragments };
        let [strip_codes, strip_scales] = config.strip_bytes();
        let words_at = k.mul_add(along_n, stride * strip_codes, weights_at);
        let scales_at = k.mul_add(along_n, stride * strip_scales, scales_behind);
        Consumer {
            config,
            thread,
            lane,
            along_n,
            along_k,
            tokens_at: k.mul(along_k, token_bytes),
            words_at: k.add(words_at, config.units * token_bytes),
            scales_at: k.add(scales_at, config.units * token_bytes + config.strips() * strip_codes),
            operands: match config.element {
                Tokens::NvFp4 => Operands::Codes(CodeOperands::new(k, &config, lane)),
                _ => {
                    let plain = config.takes_codes().then(|| Weights::scale_shift(k, lane));
                    let weights = |k: &mut Builder| match config.scaling.is_fp8() {
                        true => Fragment::Bytes(ByteWeights::new(k, &config)),
                        false => Fragment::Codes(Weights::new(k, &config, plain)),
                    };
                    Operands::Floats(FloatOperands {
                        weights: (0..fragments).map(|_| weights(k)).collect(),
                        tokens: TokenFragments::new(k, config.tokens, lane, config.takes_codes()),
                    })
                }
            },
            sums: sums(k, &config),
            stretch: config.scales_sums().then(|| sums(k, &config)),
        }
    }

    /// Begins a tile.
    pub fn clear(&self, k: &mut Builder) {
        for &sum in self.sums.iter().chain(self.stretch.iter().flatten()).flatten().flatten() {
            k.set(sum, 0.0);
        }
    }

    /// Units of a stage that are this warp's.
    fn own_units(&self) -> u32 {
        self.config.units / self.config.division().along_k
    }

    /// All of this block's share of k, for one pass.
    pub fn main_loop(&self, k: &mut Builder, parts: &Parts, copies: &Copies, tile: &Tile, pass: usize) {
        let end = k.label();
        if self.config.leaves_sums() {
            // A short k may leave nothing for the second block.
            let nothing = k.eq(tile.stages, 0u32);
            k.branch_if(nothing, end);
        }
        match &self.operands {
            Operands::Floats(operands) => self.multiply_floats(k, operands, parts, copies, tile, pass),
            Operands::Codes(operands) => self.multiply_codes(k, operands, parts, copies, tile, pass),
        }
        k.place(end);
    }

    fn multiply_floats(
        &self,
        k: &mut Builder,
        operands: &FloatOperands,
        parts: &Parts,
        copies: &Copies,
        tile: &Tile,
        pass: usize,
    ) {
        let turn = parts.pipe.start(k, copies, tile.stages);
        let walk = Walk { operands, copies, turn, pass };
        self.load_words(k, operands, walk.turn.here, 0);
        self.load_tokens(k, operands, 0, Step { unit: 0, slice: 0, part: 0 }, walk.turn.here);
        dequantise(k, operands, 0, 0);
        let left = k.variable(tile.stages);
        k.repeat_while(|k| {
            let last = self.own_units() - 1;
            for (unit, slice) in (0..=last).flat_map(|unit| (0..SLICES).map(move |slice| (unit, slice))) {
                let exchanges = (unit, slice) == (last, SLICES - 2);
                let filling = exchanges.then(|| parts.pipe.exchange(k, copies, tile.stages, &walk.turn));
                self.slice(k, &walk, unit, slice, filling.as_ref());
                if exchanges {
                    parts.pipe.filled(k, &walk.turn);
                }
            }
            parts.pipe.advance(k, &walk.turn);
            let rest = k.sub(left, 1);
            k.set(left, rest);
            k.gt(left, 0u32)
        });
    }

    /// The same where nothing is made floats of.
    fn multiply_codes(
        &self,
        k: &mut Builder,
        operands: &CodeOperands,
        parts: &Parts,
        copies: &Copies,
        tile: &Tile,
        pass: usize,
    ) {
        let Division { along_k, fragments, .. } = self.config.division();
        let sums = &self.sums[pass * fragments as usize..][..fragments as usize];
        let turn = parts.pipe.start(k, copies, tile.stages);
        let left = k.variable(tile.stages);
        k.repeat_while(|k| {
            for unit in 0..self.own_units() {
                let [tokens, weights] = self.config.unit_bytes().map(|bytes| unit * along_k * bytes);
                let [words, scales] = [self.words_at, self.scales_at]
                    .map(|at| Addr::<Shared>::of(k.add(turn.here, at)).plus(weights.cast_signed()));
                let strips = (0..fragments).map(|fragment| self.strips_of(fragment)).collect();
                let own = k.add(turn.here, self.tokens_at);
                operands.multiply(k, &UnitWeights { words, scales, strips }, (own, tokens), sums);
            }
            // Nothing is read ahead here, so the next stage is awaited at the end of this one.
            let filling = parts.pipe.exchange(k, copies, tile.stages, &turn);
            (0..copies.count()).for_each(|piece| k.phase("copy", |k| copies.copy(k, &filling, piece)));
            parts.pipe.filled(k, &turn);
            parts.pipe.advance(k, &turn);
            let rest = k.sub(left, 1);
            k.set(left, rest);
            k.gt(left, 0u32)
        });
    }

    /// Multiplies one slice, part by part, while what comes after is made ready and the pieces of a stage are copied.
    fn slice(&self, k: &mut Builder, walk: &Walk<'_>, unit: u32, slice: u32, mut filling: Option<&Filling>) {
        let turn = &walk.turn;
        let count = self.config.element.parts();
        let last_unit = unit + 1 == self.own_units();
        for part in 0..count {
            let step = (unit * SLICES + slice) * count + part;
            let set = step as usize % 2;
            let next = match (part + 1 < count, slice + 1 < SLICES, last_unit) {
                (true, ..) => (Step { unit, slice, part: part + 1 }, turn.here),
                (_, true, _) => (Step { unit, slice: slice + 1, part: 0 }, turn.here),
                (_, _, false) => (Step { unit: unit + 1, slice: 0, part: 0 }, turn.here),
                _ => (Step { unit: 0, slice: 0, part: 0 }, turn.next),
            };
            self.load_tokens(k, walk.operands, 1 - set, next.0, next.1);
            if part == 0 {
                let made = slice as usize % 2;
                dequantise(k, walk.operands, 1 - made, (slice + 1) % SLICES);
                if slice + 2 == SLICES {
                    if self.stretch.is_some() {
                        walk.operands.bytes().for_each(|weights| weights.keep_last(k));
                    }
                    let (stage, unit) = if last_unit { (turn.next, 0) } else { (turn.here, unit + 1) };
                    self.load_words(k, walk.operands, stage, unit);
                }
            }
            self.multiply(k, walk, slice as usize % 2, set, filling.take());
        }
        if self.config.scaled_slices().is_some_and(|slices| (slice + 1).is_multiple_of(slices)) {
            k.phase("scale", |k| self.scale_stretch(k, walk, slice));
        }
    }

    /// Adds the sums of a stretch that ends with a slice to the total, with their scales, and begins the next.
    fn scale_stretch(&self, k: &mut Builder, walk: &Walk<'_>, slice: u32) {
        let Some(stretch) = &self.stretch else { return };
        for ((weights, apart), total) in walk.operands.bytes().zip(stretch).zip(&self.sums) {
            let scales = weights.sum_scales(k, slice);
            for (apart, total) in apart.iter().zip(total) {
                for (index, (&sum, &total)) in apart.iter().zip(total).enumerate() {
                    let with = k.fma(sum, scales[index / 2], total);
                    k.set(total, with);
                    k.set(sum, 0.0);
                }
            }
        }
    }

    /// The two strips of one of the warp's fragments, from its first.
    fn strips_of(&self, fragment: u32) -> [u32; 2] {
        match self.config.products {
            Products::Interleaved => [fragment, self.config.strips() / 2 + fragment],
            Products::Sequential | Products::Single => [2 * fragment, 2 * fragment + 1],
        }
    }

    /// Reads words and scales of one of the warp's units.
    fn load_words(&self, k: &mut Builder, operands: &FloatOperands, stage: Reg<U32>, unit: u32) {
        let Division { along_k, .. } = self.config.division();
        let further = unit * along_k * self.config.unit_bytes()[1];
        let (words, scales) = (k.add(stage, self.words_at), k.add(stage, self.scales_at));
        let at = |address| Addr::<Shared>::of(address).plus(further.cast_signed());
        let (words, scales) = (at(words), at(scales));
        for (index, weights) in operands.weights.iter().enumerate() {
            k.phase("load", |k| weights.load(k, words, scales, self.strips_of(index as u32)));
        }
    }

    fn load_tokens(&self, k: &mut Builder, operands: &FloatOperands, set: usize, step: Step, stage: Reg<U32>) {
        let Division { along_k, .. } = self.config.division();
        let unit = step.unit * along_k * self.config.unit_bytes()[0];
        let part = step.part * self.config.tokens * TOKEN_BYTES;
        let own = k.add(stage, self.tokens_at);
        k.phase("load", |k| operands.tokens.load(k, set, step.slice, own, unit + part));
    }

    fn multiply(&self, k: &mut Builder, walk: &Walk<'_>, made: usize, set: usize, filling: Option<&Filling>) {
        let (weights, tokens) = (&walk.operands.weights, walk.operands.tokens.fragments(set));
        let (count, pieces) = (weights.len() * tokens.len(), walk.copies.count());
        // As soon as they go without keeping multiplications waiting: with few stages, the next one is asked for soon.
        let together = pieces.div_ceil(count);
        for number in 0..count {
            let (fragment, eight) = (number / tokens.len(), number % tokens.len());
            let all = self.stretch.as_ref().unwrap_or(&self.sums);
            let sums = all[walk.pass * weights.len() + fragment][eight];
            k.mma(element(self.config.element), sums, weights[fragment].made(made), tokens[eight]);
            let Some(filling) = filling else { continue };
            let [first, end] = [number, number + 1].map(|number| (number * together).min(pieces));
            (first..end).for_each(|piece| k.phase("copy", |k| walk.copies.copy(k, filling, piece)));
        }
    }
}

impl FloatOperands {
    /// Its fragments of FP8, if they are that.
    fn bytes(&self) -> impl Iterator<Item = &ByteWeights> {
        self.weights.iter().filter_map(|weights| match weights {
            Fragment::Bytes(weights) => Some(weights),
            Fragment::Codes(_) => None,
        })
    }
}

/// Registers for the sums of every pass, fragment and eight tokens.
fn sums(k: &mut Builder, config: &WarpMultiplySpec) -> Sums {
    let rows = config.passes() * config.division().fragments;
    (0..rows).map(|_| (0..config.tokens / 8).map(|_| k.registers()).collect()).collect()
}

fn dequantise(k: &mut Builder, operands: &FloatOperands, set: usize, slice: u32) {
    k.phase("dequantise", |k| operands.weights.iter().for_each(|weights| weights.dequantise(k, set, slice)));
}
