//! What each thread copies of a stage: pieces of sixteen bytes, in rounds of one piece per thread.
//!
//! Where a piece comes from is worked out once per tile; from stage to stage only its distance along k changes. Tokens beyond the
//! tile's and columns beyond k come as zeros, and so do units of weights beyond the last. Rows of weights beyond the last chunk are
//! replaced by those of that: their sums are not stored.
//!
//! A token's 128 bytes of a unit lie in a row, the eight pieces of which are permuted by the row's number, so that eight rows of the
//! same piece lie in different banks.

use ptx::{Addr, Builder, Global, Reg, S32, Shared, U32, U64};

use super::work::Tile;
use super::{Parts, STRIP_CODES, STRIP_ROWS, STRIP_SCALES, TOKEN_BYTES, UNIT};
use crate::pack::{CHUNK_BYTES, CHUNK_ROWS, CODE_BYTES};

/// Bytes of a piece.
const PIECE: u32 = 16;

/// A thread's pieces of every stage of a tile.
pub(super) struct Copies {
    tokens: Vec<Piece>,
    weights: Vec<Piece>,
    /// Stages before this block's first.
    first_stage: Reg<U32>,
    units: u32,
}

/// One piece, in the first stage.
struct Piece {
    /// Where it comes from.
    from: Reg<U64>,
    /// Where it goes, from the start of the stage.
    to: Reg<U32>,
    /// Columns of k, or units, that there still are from there on: none or less means zeros. Nothing where there always are some.
    left: Option<Reg<S32>>,
    /// Whether there is such a piece: the last round may need fewer threads.
    exists: Option<ptx::Pred>,
}

impl Copies {
    pub fn new(k: &mut Builder, parts: &Parts, tile: &Tile, pass: u32, thread: Reg<U32>) -> Self {
        let config = &parts.config;
        let [token_bytes, weight_bytes] = config.unit_bytes().map(|bytes| bytes * config.units);
        let rounds = |bytes: u32| (bytes / PIECE).div_ceil(config.threads());
        let weights = Weights::new(k, parts, tile, pass);
        Copies {
            tokens: (0..rounds(token_bytes))
                .map(|round| {
                    let number = Number::new(k, parts, thread, round, token_bytes / PIECE);
                    token_piece(k, parts, tile, number)
                })
                .collect(),
            weights: (0..rounds(weight_bytes))
                .map(|round| {
                    let number = Number::new(k, parts, thread, round, weight_bytes / PIECE);
                    weights.piece(k, parts, tile, number)
                })
                .collect(),
            first_stage: tile.first_stage,
            units: config.units,
        }
    }

    /// Copies this thread's pieces of a stage to a place.
    pub fn stage(&self, k: &mut Builder, stage: Reg<U32>, place: Reg<U32>) {
        let stage = k.add(stage, self.first_stage);
        let unit = k.mul(stage, self.units);
        let column = k.mul(unit, UNIT);
        let along = k.mul_wide(column, 2);
        for piece in &self.tokens {
            piece.copy(k, place, along, column);
        }
        let along = k.mul_wide(unit, CHUNK_BYTES);
        for piece in &self.weights {
            piece.copy(k, place, along, unit);
        }
    }
}

impl Piece {
    fn copy(&self, k: &mut Builder, place: Reg<U32>, along: Reg<U64>, passed: Reg<U32>) {
        let (from, to) = (k.add(self.from, along), k.add(self.to, place));
        let bytes: Option<Reg<U32>> = self.left.map(|left| {
            let there = k.gt(left, passed.cast::<S32>());
            k.select(there, PIECE, 0u32)
        });
        let (to, from) = (Addr::<Shared>::of(to), Addr::<Global>::of(from));
        let copy = |k: &mut Builder| match bytes {
            Some(bytes) => k.thread_copy_filled(to, from, PIECE, bytes),
            None => k.thread_copy(to, from, PIECE),
        };
        match self.exists {
            Some(exists) => k.when(exists, copy),
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

fn token_piece(k: &mut Builder, parts: &Parts, tile: &Tile, Number { number, exists }: Number) -> Piece {
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
    let turned = k.and(token, 7);
    let turned = k.xor(piece, turned);
    let to = k.shl(row, TOKEN_BYTES.trailing_zeros());
    let to = k.mul_add(turned, PIECE, to);
    let left = k.sub(tile.k, column);
    let inside = k.lt(token, tile.tokens);
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
            run: k.mul(tile.depth, CHUNK_BYTES),
        }
    }

    /// Pieces of a unit: the codes of its strips, then their scales; with two matrices the strips of the first come first.
    fn piece(&self, k: &mut Builder, parts: &Parts, tile: &Tile, Number { number, exists }: Number) -> Piece {
        let strips = parts.config.strips();
        let of_unit = strips * (STRIP_CODES + STRIP_SCALES) / PIECE;
        let (unit, inside) = (k.div(number, of_unit), k.rem(number, of_unit));
        let (code_pieces, scale_pieces) = (STRIP_CODES / PIECE, STRIP_SCALES / PIECE);
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
        let code_offset = k.mul(quarter, STRIP_CODES);
        let scale_offset = k.mul(quarter, STRIP_SCALES);
        let scale_offset = k.add(scale_offset, CODE_BYTES);
        let offset: Reg<U32> = k.select(is_code, code_offset, scale_offset);
        let offset = k.mul_add(at, PIECE, offset);
        let offset = k.mul_add(unit, CHUNK_BYTES, offset);
        let from = k.mul_wide_add(row, self.run, matrix);
        let from = k.mul_wide_add(offset, 1, from);
        let to = k.mul(number, PIECE);
        let to = k.add(to, parts.config.units * parts.config.unit_bytes()[0]);
        // A stage of one unit has that unit.
        let left = (parts.config.units > 1).then(|| k.sub(tile.depth, unit).cast());
        Piece { from, to, left, exists }
    }
}
