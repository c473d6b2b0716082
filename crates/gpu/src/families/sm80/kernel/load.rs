//! What each thread copies of a stage: pieces of sixteen bytes, in rounds of one piece per thread.
//!
//! Where a piece comes from is worked out once per tile; from stage to stage only its distance along k changes. Tokens
//! beyond the tile's come as zeros, and so do columns and units of weights beyond k. Rows of weights beyond the last
//! chunk are replaced by those of that: their sums are not stored.
//!
//! Pieces are copied one by one between multiplications, without a branch: behind one the assembler would have nothing
//! to put them between, and all warps would copy at the same time, right after the barrier, while no tensor core has
//! anything to do.
//!
//! A token's 128 bytes of a unit lie in a row, the eight pieces of which are permuted by the row's number, so that
//! pieces that are read together lie in different banks. Tokens that stay codes have been arranged in strips, and lie
//! in a stage as they come.

use ptx::{Addr, Builder, Global, Reg, S32, Shared, U32, U64};

use super::fragments::turned;
use super::work::Tile;
use super::{Parts, STRIP_CODES, STRIP_ROWS, STRIP_SCALES, TOKEN_BYTES, Tokens, UNIT};
use crate::pack::{CHUNK_ROWS, Chunk};

/// Bytes of a piece.
const PIECE: u32 = 16;

/// A thread's pieces of every stage of a tile.
pub(super) struct Copies {
    tokens: Vec<Piece>,
    weights: Vec<Piece>,
    /// Stages before this block's first.
    first_stage: Reg<U32>,
    units: u32,
    /// Whether tokens stay codes.
    codes: bool,
    /// Bytes of a chunk of weights.
    chunk_bytes: u32,
}

/// A stage that is being copied.
pub(super) struct Filling {
    /// Where it goes.
    place: Reg<U32>,
    /// Of tokens and of weights: bytes from the first stage to this one, and what of k has passed, in columns or units.
    along: [(Reg<U64>, Reg<U32>); 2],
    /// Whether there is such a stage, where that is a question.
    exists: Option<ptx::Pred>,
}

/// One piece, in the first stage.
struct Piece {
    /// Where it comes from.
    from: Reg<U64>,
    /// Where it goes, from the start of the stage.
    to: Place,
    /// Columns of k, or units, that there still are from there on: none or less means zeros. Nothing where there always
    /// are some.
    left: Option<Reg<S32>>,
    /// Whether there is such a piece: the last round may need fewer threads.
    exists: Option<ptx::Pred>,
}

/// A place that several pieces share, and how far behind it one of them is.
#[derive(Clone, Copy)]
struct Place {
    shared: Reg<U32>,
    further: u32,
}

impl Copies {
    pub fn new(k: &mut Builder, parts: &Parts, tile: &Tile, pass: u32, thread: Reg<U32>) -> Self {
        let config = &parts.config;
        let [token_bytes, weight_bytes] = config.unit_bytes().map(|bytes| bytes * config.units);
        let rounds = |bytes: u32| (bytes / PIECE).div_ceil(config.threads());
        let weights = Weights::new(k, parts, tile, pass);
        let stride = config.threads() * PIECE;
        // Rounds of which the rows keep the permutation share a place.
        let together = config.threads().is_multiple_of(8 * 8);
        let (plain, codes) = (config.takes_codes(), config.element == Tokens::NvFp4);
        let linear = k.mul(thread, PIECE);
        let first = if codes { linear } else { token_place(k, thread, plain) };
        let tokens = (0..rounds(token_bytes))
            .map(|round| {
                let number = Number::new(k, parts, thread, round, token_bytes / PIECE);
                let to = if codes || together || round == 0 {
                    Place { shared: first, further: round * stride }
                } else {
                    Place { shared: token_place(k, number.number, plain), further: 0 }
                };
                if codes { strip_piece(k, parts, tile, number, to) } else { token_piece(k, parts, tile, number, to) }
            })
            .collect();
        let pieces = (0..rounds(weight_bytes))
            .map(|round| {
                let number = Number::new(k, parts, thread, round, weight_bytes / PIECE);
                let to = Place { shared: linear, further: token_bytes + round * stride };
                weights.piece(k, parts, tile, number, to)
            })
            .collect();
        let chunk_bytes = config.chunk().bytes();
        Copies { tokens, weights: pieces, first_stage: tile.first_stage, units: config.units, codes, chunk_bytes }
    }

    /// How many pieces there are.
    pub fn count(&self) -> usize {
        self.tokens.len() + self.weights.len()
    }

    /// Begins to copy a stage, if it exists, to a place.
    pub fn fill(&self, k: &mut Builder, stage: Reg<U32>, place: Reg<U32>, exists: Option<ptx::Pred>) -> Filling {
        let stage = k.add(stage, self.first_stage);
        let unit = k.mul(stage, self.units);
        let tokens = if self.codes {
            (k.mul_wide(unit, STRIP_CODES + STRIP_SCALES), unit)
        } else {
            let column = k.mul(unit, UNIT);
            (k.mul_wide(column, 2), column)
        };
        Filling { place, along: [tokens, (k.mul_wide(unit, self.chunk_bytes), unit)], exists }
    }

    /// Copies one of the pieces of a stage.
    pub fn copy(&self, k: &mut Builder, filling: &Filling, index: usize) {
        let ((along, passed), piece) = match self.tokens.get(index) {
            Some(piece) => (filling.along[0], piece),
            None => (filling.along[1], &self.weights[index - self.tokens.len()]),
        };
        let to = k.add(piece.to.shared, filling.place);
        let to = Addr::<Shared>::of(to).plus(piece.to.further.cast_signed());
        let from = Addr::<Global>::of(k.add(piece.from, along));
        let bytes = piece.left.map(|left| {
            let there = k.gt(left, passed.cast::<S32>());
            k.select(there, PIECE, 0u32)
        });
        let guard = match (piece.exists, filling.exists) {
            (Some(piece), Some(stage)) => Some(k.both(piece, stage)),
            (one, other) => one.or(other),
        };
        let copy = |k: &mut Builder| match bytes {
            Some(bytes) => k.thread_copy_filled(to, from, PIECE, bytes),
            None => k.thread_copy(to, from, PIECE),
        };
        match guard {
            Some(guard) => k.when(guard, copy),
            None => copy(k),
        }
    }
}

/// A thread's number among all pieces of a kind, and whether there is such a one.
struct Number {
    number: Reg<U32>,
    exists: Option<ptx::Pred>,
}

impl Number {
    fn new(k: &mut Builder, parts: &Parts, thread: Reg<U32>, round: u32, pieces: u32) -> Self {
        let number = k.add(thread, round * parts.config.threads());
        let partial = (round + 1) * parts.config.threads() > pieces;
        Number { number, exists: partial.then(|| k.lt(number, pieces)) }
    }
}

/// Where a token's piece goes: into the token's row, the pieces of which are permuted by its number.
fn token_place(k: &mut Builder, number: Reg<U32>, plain: bool) -> Reg<U32> {
    let (row, piece) = (k.shr(number, 3), k.and(number, 7));
    let turned = turned(k, row, plain);
    let turned = k.xor(piece, turned);
    let to = k.shl(row, TOKEN_BYTES.trailing_zeros());
    k.mul_add(turned, PIECE, to)
}

fn token_piece(k: &mut Builder, parts: &Parts, tile: &Tile, Number { number, exists }: Number, to: Place) -> Piece {
    let config = &parts.config;
    let (row, piece) = (k.shr(number, 3), k.and(number, 7));
    let token = k.rem(row, config.tokens);
    let plane = k.div(row, config.tokens);
    let (part, unit) = (k.rem(plane, config.element.parts()), k.div(plane, config.element.parts()));
    let column = k.mul(unit, UNIT);
    let column = k.mul_add(piece, PIECE / 2, column);
    let row_of_group = k.add(tile.first_token, token);
    let wide_k: Reg<U64> = k.convert(tile.k);
    let wide_column: Reg<U64> = k.convert(column);
    let wide_row: Reg<U64> = k.convert(row_of_group);
    let element = k.mul_add(wide_row, wide_k, wide_column);
    let from = k.shl(element, 1);
    let from = k.add(from, tile.tokens_at);
    let from = if config.element.parts() > 1 {
        let wide_part: Reg<U64> = k.convert(part);
        k.mul_add(wide_part, tile.part_bytes, from)
    } else {
        from
    };
    let left = k.sub(tile.k, column);
    let inside = k.lt(token, tile.tokens);
    let left: Reg<U32> = k.select(inside, left, 0u32);
    Piece { from, to, left: Some(left.cast()), exists }
}

/// A piece of eight tokens that stay codes: a unit has as many strips of them as a tile has eights.
fn strip_piece(k: &mut Builder, parts: &Parts, tile: &Tile, Number { number, exists }: Number, to: Place) -> Piece {
    let config = &parts.config;
    let of_strip = (STRIP_CODES + STRIP_SCALES) / PIECE;
    let of_unit = config.tokens / STRIP_ROWS * of_strip;
    let (unit, inside) = (k.div(number, of_unit), k.rem(number, of_unit));
    let (strip, at) = (k.div(inside, of_strip), k.rem(inside, of_strip));
    let first = k.shr(tile.first_token, STRIP_ROWS.trailing_zeros());
    let of_group = k.add(first, strip);
    let run = k.mul(tile.depth, STRIP_CODES + STRIP_SCALES);
    let from = k.mul_wide_add(of_group, run, tile.tokens_at);
    let from = k.mul_wide_add(unit, STRIP_CODES + STRIP_SCALES, from);
    let from = k.mul_wide_add(at, PIECE, from);
    let token = k.mul(strip, STRIP_ROWS);
    let inside = k.lt(token, tile.tokens);
    let left = k.sub(tile.depth, unit);
    let left: Reg<U32> = k.select(inside, left, 0u32);
    Piece { from, to, left: Some(left.cast()), exists }
}

/// The weights of a tile, for one pass.
struct Weights {
    matrices: Vec<Reg<U64>>,
    /// First strip of the tile, last row of chunks of the matrix, bytes of a row of chunks.
    first_strip: Reg<U32>,
    last_row: Reg<U32>,
    run: Reg<U32>,
}

impl Weights {
    fn new(k: &mut Builder, parts: &Parts, tile: &Tile, pass: u32) -> Self {
        let last = k.sub(tile.n, 1);
        Weights {
            matrices: tile.weights(k, parts.config.products, pass),
            first_strip: k.shr(tile.column, STRIP_ROWS.trailing_zeros()),
            last_row: k.shr(last, CHUNK_ROWS.trailing_zeros()),
            run: k.mul(tile.depth, parts.config.chunk().bytes()),
        }
    }

    /// Pieces of a unit: the codes of its strips, then their scales; with two matrices the strips of the first come
    /// first.
    fn piece(
        &self,
        k: &mut Builder,
        parts: &Parts,
        tile: &Tile,
        Number { number, exists }: Number,
        to: Place,
    ) -> Piece {
        let strips = parts.config.strips();
        let [strip_codes, strip_scales] = parts.config.strip_bytes();
        let of_unit = strips * (strip_codes + strip_scales) / PIECE;
        let (unit, inside) = (k.div(number, of_unit), k.rem(number, of_unit));
        // Where there are no scales, no piece is beyond the codes.
        let (code_pieces, scale_pieces) = (strip_codes / PIECE, (strip_scales / PIECE).max(1));
        let is_code = k.lt(inside, strips * code_pieces);
        let scale = k.sub(inside, strips * code_pieces);
        let code_strip = k.div(inside, code_pieces);
        let scale_strip = k.div(scale, scale_pieces);
        let strip: Reg<U32> = k.select(is_code, code_strip, scale_strip);
        let (code_at, scale_at) = (k.rem(inside, code_pieces), k.rem(scale, scale_pieces));
        let at: Reg<U32> = k.select(is_code, code_at, scale_at);
        let (matrix, strip) = match self.matrices[..] {
            [gate, up] => {
                let own = strips / 2;
                let of_gate = k.lt(strip, own);
                let rest = k.sub(strip, own);
                (k.select(of_gate, gate, up), k.select(of_gate, strip, rest))
            }
            _ => (self.matrices[0], strip),
        };
        let strip = k.add(strip, self.first_strip);
        let chunk_strips = CHUNK_ROWS as u32 / STRIP_ROWS;
        let (row, quarter) = (k.div(strip, chunk_strips), k.rem(strip, chunk_strips));
        let row = k.min(row, self.last_row);
        let chunk: Chunk = parts.config.chunk();
        let code_offset = k.mul(quarter, strip_codes);
        let scale_offset = k.mul(quarter, strip_scales);
        let scale_offset = k.add(scale_offset, chunk.code_bytes);
        let offset: Reg<U32> = k.select(is_code, code_offset, scale_offset);
        let offset = k.mul_add(at, PIECE, offset);
        let offset = k.mul_add(unit, chunk.bytes(), offset);
        let from = k.mul_wide_add(row, self.run, matrix);
        let from = k.mul_wide_add(offset, 1, from);
        // A stage of one unit has that unit.
        let left = (parts.config.units > 1).then(|| k.sub(tile.depth, unit).cast());
        Piece { from, to, left, exists }
    }
}
