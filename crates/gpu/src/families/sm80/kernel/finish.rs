//! From sums to C: warps that share k add theirs up, then scale, gate, round, store.
//!
//! A thread holds, for each eight tokens, two neighbouring tokens of a column; the eight lanes beside it hold the next
//! columns. *Direct* stores write each element from where it is. *Staged* ones turn values around in the memory of the
//! stages, so that threads can write sixteen bytes of a row of C each. Where two blocks share k, sums are left as they
//! are, a plane of them per block and matrix.

use ptx::{Addr, Builder, F32, Global, Pred, Reg, Shared, U32, U64};

use super::consume::Consumer;
use super::work::Tile;
use super::{Parts, Products, STRIP_ROWS, WarpMultiplySpec};
use crate::join;
use crate::phases::gates::{Delta, Gates, RowTerms};
use crate::phases::store::{element_address, store_element};
use op::Epilogue;

/// Bytes that one warp needs for one word of each of its threads.
const WORD_ROW: u32 = 32 * 4;

/// Bytes that the sums of all warps but the first along k take.
pub(super) fn combine_bytes(config: &WarpMultiplySpec) -> u32 {
    let division = config.division();
    (division.along_k - 1) * division.along_n * config.sums() * WORD_ROW
}

/// Bytes from one token to the next where values are turned around: one access more than they need, against bank
/// conflicts.
fn pitch(config: &WarpMultiplySpec) -> u32 {
    config.columns * config.output.bytes() as u32 + 16
}

/// Bytes in which values are turned around.
pub(super) fn staging_bytes(config: &WarpMultiplySpec) -> u32 {
    if config.epilogue == Epilogue::Staged { config.tokens * pitch(config) } else { 0 }
}

/// Of warps that share k, all but the first leave their sums in shared memory, and the first adds them to its own.
pub(super) fn combine(k: &mut Builder, parts: &Parts, consumer: &Consumer) {
    let (config, division) = (&parts.config, parts.config.division());
    if division.along_k == 1 {
        return;
    }
    let base = k.shared_address(parts.pipe.region);
    let own = k.mul_add(consumer.along_n, config.sums() * WORD_ROW, base);
    let own = k.mul_add(consumer.lane, 4, own);
    let group = division.along_n * config.sums() * WORD_ROW;
    let sums = || consumer.sums.iter().flatten().flatten().enumerate();
    // Nobody reads stages any more.
    k.sync_threads();
    let first = k.eq(consumer.along_k, 0u32);
    k.if_else(
        first,
        |_| {},
        |k| {
            let others = k.sub(consumer.along_k, 1);
            let mine = k.mul_add(others, group, own);
            for (index, &sum) in sums() {
                k.store(Addr::<Shared>::of(mine).plus((index as u32 * WORD_ROW).cast_signed()), sum);
            }
        },
    );
    k.sync_threads();
    k.if_(first, |k| {
        for other in 0..division.along_k - 1 {
            for (index, &sum) in sums() {
                let at = Addr::<Shared>::of(own).plus((other * group + index as u32 * WORD_ROW).cast_signed());
                let theirs: Reg<F32> = k.load(at);
                let total = k.add(sum, theirs);
                k.set(sum, total);
            }
        }
    });
}

/// What a thread holds of one column: where it is among the warp's, and gate and up sums of pairs of tokens, eight
/// tokens apart.
struct Column {
    first: u32,
    gate: Vec<[Reg<F32>; 2]>,
    up: Vec<[Reg<F32>; 2]>,
}

fn columns(consumer: &Consumer) -> Vec<Column> {
    let config = &consumer.config;
    let fragments = config.division().fragments as usize;
    let pairs = |sums: &[[Reg<F32>; 4]], row: usize| -> Vec<[Reg<F32>; 2]> {
        sums.iter().map(|sums| [sums[2 * row], sums[2 * row + 1]]).collect()
    };
    let mut columns = Vec::new();
    for fragment in 0..fragments {
        let first = fragment as u32 * config.fragment_columns();
        let (sums, later) = (&consumer.sums[fragment], consumer.sums.get(fragments + fragment));
        match config.products {
            Products::Interleaved => columns.push(Column { first, gate: pairs(sums, 0), up: pairs(sums, 1) }),
            Products::Sequential | Products::Single => {
                for row in 0..2 {
                    let up = later.map(|sums| pairs(sums, row)).unwrap_or_default();
                    columns.push(Column { first: first + STRIP_ROWS * row as u32, gate: pairs(sums, row), up });
                }
            }
        }
    }
    columns
}

/// Where a thread's values go.
struct Place {
    /// First column of the lane's, and the lane's first token, within the tile.
    column: Reg<U32>,
    token: Reg<U32>,
}

/// Finishes a tile. Of warps that share k, the first does it.
pub(super) fn finish(k: &mut Builder, parts: &Parts, consumer: &Consumer, tile: &Tile) {
    let config = &parts.config;
    let (quad, pair) = (k.shr(consumer.lane, 2), k.and(consumer.lane, 3));
    let width = config.division().fragments * config.fragment_columns();
    let place = Place { column: k.mul_add(consumer.along_n, width, quad), token: k.shl(pair, 1) };
    let finishes = (config.division().along_k > 1).then(|| k.eq(consumer.along_k, 0u32));
    let staged = config.epilogue == Epilogue::Staged;
    if staged {
        // Nobody reads stages, or others' sums, any more.
        k.sync_threads();
    }
    let own = |k: &mut Builder| match (config.leaves_sums(), staged) {
        (true, _) => store_sums(k, consumer, tile, &place),
        (_, true) => k.phase("stage", |k| stage(k, parts, consumer, tile, &place)),
        _ => k.phase("store", |k| store_direct(k, parts, consumer, tile, &place)),
    };
    match finishes {
        Some(finishes) => k.if_(finishes, own),
        None => own(k),
    }
    if staged {
        k.sync_threads();
        k.phase("store", |k| store_staged(k, parts, consumer, tile));
    }
}

/// Two neighbouring tokens of a column: the first of their eight, and their sums.
struct Pair {
    token: u32,
    gate: [Reg<F32>; 2],
    up: Option<[Reg<F32>; 2]>,
}

/// `body` for each pair of neighbouring tokens of a column, unless all tokens of the eight are beyond the tile's.
fn each_pair(
    k: &mut Builder,
    consumer: &Consumer,
    tile: &Tile,
    column: &Column,
    body: &mut dyn FnMut(&mut Builder, Pair),
) {
    for eight in 0..consumer.config.tokens / 8 {
        let any = k.gt(tile.tokens, 8 * eight);
        let (gate, up) = (column.gate[eight as usize], column.up.get(eight as usize).copied());
        k.if_(any, |k| body(k, Pair { token: 8 * eight, gate, up }));
    }
}

/// What is made of a tile's sums.
fn gates(k: &mut Builder, parts: &Parts, tile: &Tile) -> Gates {
    let single = parts.config.products == Products::Single;
    Gates::new(k, &tile.owner, single, parts.config.function, parts.work.clamp)
}

/// Element by element: the eight quads of a warp are neighbours in a row of C.
fn store_direct(k: &mut Builder, parts: &Parts, consumer: &Consumer, tile: &Tile, place: &Place) {
    let gates = gates(k, parts, tile);
    let (out, bytes) = (tile.owner.out(k), parts.config.output.bytes() as u32);
    let first = k.add(tile.first_token, place.token);
    for column in columns(consumer) {
        let this = k.add(place.column, column.first);
        let this = k.add(this, tile.column);
        let start = element_address(k, out, [first, tile.n, this], bytes);
        let inside = k.lt(this, tile.n);
        let biases = biases(k, tile, &column, this);
        let gates = gates.of_column(k, &tile.owner, this, tile.n);
        k.if_(inside, |k| {
            each_pair(k, consumer, tile, &column, &mut |k, Pair { token, gate, up }| {
                for neighbour in 0..2 {
                    let further = token + neighbour as u32;
                    let factor = row_factor(k, tile, place, further);
                    let deltas = deltas(k, tile, place, further, (this, up.is_some()));
                    let value = gates.apply(
                        k,
                        (gate[neighbour], up.map(|up| up[neighbour])),
                        biases,
                        RowTerms { scale: None, factor, deltas },
                    );
                    let exists = exists(k, tile, place, further);
                    let at = k.mul_wide_add(tile.n, further * bytes, start);
                    store_element(k, parts.config.output, Some(exists), Addr::<Global>::of(at), value);
                }
            });
        });
    }
}

/// What is added to gate and up in a column, where something is.
fn biases(k: &mut Builder, tile: &Tile, column: &Column, this: Reg<U32>) -> [Option<Reg<F32>>; 2] {
    let up = (!column.up.is_empty()).then(|| tile.bias(k, 1, this)).flatten();
    [tile.bias(k, 0, this), up]
}

/// What the sums of one of a thread's tokens are multiplied with, if they are.
fn row_factor(k: &mut Builder, tile: &Tile, place: &Place, further: u32) -> Option<Reg<F32>> {
    let token = k.add(place.token, further);
    tile.row_factor(k, token)
}

/// What is added to the sums of one of a thread's tokens in a column, of one matrix or two.
fn deltas(k: &mut Builder, tile: &Tile, place: &Place, further: u32, (column, two): (Reg<U32>, bool)) -> [Delta; 2] {
    if !tile.owner.is_adapted() {
        return [None; 2];
    }
    let token = k.add(place.token, further);
    let row = tile.row(k, token);
    let Some(theirs) = tile.owner.adapted(k, row) else { return [None; 2] };
    let Some(deltas) = tile.owner.deltas(k, [row, column, tile.n]) else { return [None; 2] };
    [Some(deltas.of(k, 0, theirs)), two.then(|| deltas.of(k, 1, theirs))]
}

fn exists(k: &mut Builder, tile: &Tile, place: &Place, further: u32) -> Pred {
    let this = k.add(place.token, further);
    k.lt(this, tile.tokens)
}

/// Values to shared memory, a row of columns for each token, also for tokens beyond the tile's.
fn stage(k: &mut Builder, parts: &Parts, consumer: &Consumer, tile: &Tile, place: &Place) {
    let gates = gates(k, parts, tile);
    let (bytes, pitch) = (parts.config.output.bytes() as u32, pitch(&parts.config));
    let base = k.shared_address(parts.pipe.region);
    let at = k.mul_add(place.column, bytes, base);
    let at = k.mul_add(place.token, pitch, at);
    for column in columns(consumer) {
        let this = k.add(place.column, column.first);
        let this = k.add(this, tile.column);
        let biases = biases(k, tile, &column, this);
        let gates = gates.of_column(k, &tile.owner, this, tile.n);
        each_pair(k, consumer, tile, &column, &mut |k, Pair { token, gate, up }| {
            for neighbour in 0..2 {
                let further = token + neighbour as u32;
                let factor = row_factor(k, tile, place, further);
                let deltas = deltas(k, tile, place, further, (this, up.is_some()));
                let value = gates.apply(
                    k,
                    (gate[neighbour], up.map(|up| up[neighbour])),
                    biases,
                    RowTerms { scale: None, factor, deltas },
                );
                let at = Addr::<Shared>::of(at).plus((further * pitch + column.first * bytes).cast_signed());
                store_element(k, parts.config.output, None, at, value);
            }
        });
    }
}

/// Sixteen bytes per thread, from rows in shared memory to rows of C.
fn store_staged(k: &mut Builder, parts: &Parts, consumer: &Consumer, tile: &Tile) {
    let (config, pitch) = (&parts.config, pitch(&parts.config));
    let bytes = config.output.bytes() as u32;
    let (row_pieces, rows) = (config.columns * bytes / 16, config.tokens);
    let out = tile.owner.out(k);
    let base = k.shared_address(parts.pipe.region);
    for round in 0..(rows * row_pieces).div_ceil(config.threads()) {
        let number = k.add(consumer.thread, round * config.threads());
        let (token, piece) = (k.div(number, row_pieces), k.rem(number, row_pieces));
        let column = k.mul_add(piece, 16 / bytes, tile.column);
        let (inside, exists) = (k.lt(column, tile.n), k.lt(token, tile.tokens));
        let both = k.both(inside, exists);
        k.if_(both, |k| {
            let from = k.mul_add(token, pitch, base);
            let from = k.mul_add(piece, 16, from);
            let values: [Reg<U32>; 4] = k.load_vector(Addr::<Shared>::of(from));
            let row = k.add(tile.first_token, token);
            let at = element_address(k, out, [row, tile.n, column], bytes);
            k.store_vector(Addr::<Global>::of(at), values);
        });
    }
}

/// Sums as they are to this block's planes: gate, then up.
fn store_sums(k: &mut Builder, consumer: &Consumer, tile: &Tile, place: &Place) {
    let Some(half) = tile.half else { return };
    let matrices = if consumer.config.products == Products::Single { 1 } else { 2 };
    let elements = k.mul_wide(tile.m, tile.n);
    let plane = join::plane_stride(k, elements);
    let first = k.mul(half, matrices);
    let first: Reg<U64> = k.convert(first);
    let out = tile.owner.out(k);
    let out = k.mul_add(first, plane, out);
    let row = k.add(tile.first_token, place.token);
    for column in columns(consumer) {
        let this = k.add(place.column, column.first);
        let this = k.add(this, tile.column);
        let start = element_address(k, out, [row, tile.n, this], 4);
        let other = k.add(start, plane);
        let inside = k.lt(this, tile.n);
        k.if_(inside, |k| {
            each_pair(k, consumer, tile, &column, &mut |k, Pair { token, gate, up }| {
                for (start, sums) in [start, other].into_iter().zip([Some(gate), up]) {
                    for (neighbour, sum) in sums.into_iter().flatten().enumerate() {
                        let further = token + neighbour as u32;
                        let exists = exists(k, tile, place, further);
                        let at = k.mul_wide_add(tile.n, further * 4, start);
                        k.when(exists, |k| k.store(Addr::<Global>::of(at), sum));
                    }
                }
            });
        });
    }
}
