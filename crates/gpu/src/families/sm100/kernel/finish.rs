//! From sums to C: four warps read accumulators, a lane each, and scale, gate, round and store.
//!
//! Where tokens are the rows of multiplications, a thread has a token and its registers are neighbouring columns of C:
//! it stores sixteen bytes at a time where rows of C are such that it can. Where tokens are the columns, a thread has a
//! column of C and its registers are tokens: the lanes of a warp store neighbours. Where two blocks share k, sums are
//! left as they are, a plane per block and matrix.

use ptx::{Addr, Bf16x2, Builder, F16x2, F32, Global, Pred, Reg, SpecialRegister, TensorAddress, U32, U64};

use super::work::Tile;
use super::{Parts, STORE_BYTES, TensorMultiplySpec};
use crate::families::sm100::slabs::BLOCK_ROWS;
use crate::join;
use crate::phases::gates::{Delta, Gates, Terms};
use crate::phases::store::{element_address, store_element};
use op::Output;

/// Accumulators that a thread reads of each matrix at a time.
const COLUMNS: u32 = 8;
/// Where a tensor address has its lane.
const LANE_SHIFT: u32 = 16;

/// Four warps finish every tile.
pub(super) fn finish(k: &mut Builder, parts: &Parts, base: Reg<TensorAddress>, warp: Reg<U32>) {
    let lane = k.special(SpecialRegister::LaneId);
    if parts.config.experts.is_some_and(|experts| experts.added) {
        // Also where this block has no tile: who waits for this launch must not overtake the one before it.
        k.grid_dependency_wait();
    }
    parts.work.each_tile(k, |k, tile| {
        let sums = parts.pipe.accumulators(k, base, tile.round);
        let first_lane = k.shl(warp, 5);
        let own = k.mul_add(first_lane, 1u32 << LANE_SHIFT, sums);
        let row = k.add(first_lane, lane);
        let row = parts.own(k, BLOCK_ROWS, row);
        let writer = Writer::new(k, parts, &tile, row);
        let steps = writer.steps(k);
        let activated = parts.pipe.wait_gated(k, tile.round);
        if activated {
            activate(k, &writer, own, steps);
        }
        parts.pipe.wait_summed(k, tile.round);
        k.repeat(steps, |k, step| {
            let first = k.mul(step, COLUMNS);
            let at = k.add(own, first);
            let read = |k: &mut Builder, matrix: u32| -> [Reg<F32>; COLUMNS as usize] {
                let at = k.add(at, matrix * parts.config.width()).cast();
                k.tensor_load_columns(at)
            };
            let gate = read(k, 0);
            let up = (parts.config.accumulators() > 1).then(|| read(k, 1));
            k.tensor_wait_load();
            writer.write(k, first, (gate, activated), up);
        });
        parts.pipe.drain(k, tile.round);
    });
}

/// While up is summed: gate's sums are replaced by what its function makes of them, in tensor memory, where there is
/// room for them.
fn activate(k: &mut Builder, writer: &Writer<'_>, own: Reg<U32>, steps: Reg<U32>) {
    k.repeat(steps, |k, step| {
        let at = k.mul_add(step, COLUMNS, own).cast();
        let sums: [Reg<F32>; COLUMNS as usize] = k.tensor_load_columns(at);
        k.tensor_wait_load();
        let owner = &writer.tile.owner;
        let by_place = writer.config.biased || owner.is_factored() || owner.is_adapted();
        let first = if by_place { k.mul(step, COLUMNS) } else { step };
        let mut values = sums;
        for (index, value) in (0..).zip(&mut values) {
            let terms = writer.terms(k, 0, first, index);
            *value = writer.gates.activate(k, *value, terms);
        }
        k.tensor_store_columns(at, &values);
    });
    k.tensor_wait_store();
}

/// Where a thread's values go.
struct Writer<'a> {
    config: TensorMultiplySpec,
    gates: Gates,
    /// Where the thread's row of accumulators begins in C, or in this block's first plane.
    start: Reg<U64>,
    /// Whether that row is a token, or a column, that exists.
    exists: Pred,
    /// How many of its registers' columns, or tokens, exist, from the tile's first.
    count: Reg<U32>,
    /// Columns of C.
    n: Reg<U32>,
    /// Bytes from the plane of one matrix to that of the next.
    plane: Option<Reg<U64>>,
    /// The tile, and of it what all the thread's sums have in common: the biases of its column, or its token's factor.
    tile: &'a Tile,
    biases: [Option<Reg<F32>>; 2],
    factor: Option<Reg<F32>>,
    /// The thread's column, or where it has a token, that one's row and whether something is added to its sums.
    column: Reg<U32>,
    theirs: Option<(Reg<U32>, Pred)>,
}

impl<'a> Writer<'a> {
    fn new(k: &mut Builder, parts: &Parts, tile: &'a Tile, row: Reg<U32>) -> Self {
        let config = parts.config;
        let left = k.sub(tile.n, tile.column);
        let (token, column, exists, count) = if config.swapped() {
            let column = k.add(tile.column, row);
            (tile.first_token, column, k.lt(row, left), tile.tokens)
        } else {
            let token = k.add(tile.first_token, row);
            (token, tile.column, k.lt(row, tile.tokens), k.min(left, config.columns))
        };
        let mut out = tile.owner.out(k);
        let plane = tile.half.map(|half| {
            let elements = k.mul_wide(tile.m, tile.n);
            let plane = join::plane_stride(k, elements);
            let first = k.mul(half, config.accumulators());
            let first: Reg<U64> = k.convert(first);
            out = k.mul_add(first, plane, out);
            plane
        });
        let start = element_address(k, out, [token, tile.n, column], config.stored().bytes() as u32);
        // The table of groups has factors of two matrices in any case.
        let single = config.experts.is_some() && config.accumulators() == 1;
        let gates = Gates::new(k, &tile.owner, single, config.function, parts.work.clamp);
        let (mut biases, mut factor) = ([None; 2], None);
        if config.swapped() && config.biased {
            let matrices = config.accumulators();
            biases =
                [0, 1].map(|matrix| (matrix < matrices).then(|| tile.owner.bias(k, matrix, column, tile.n)).flatten());
        } else if !config.swapped() && tile.owner.is_factored() {
            factor = row_factor(k, tile, row);
        }
        let mut theirs = None;
        if !config.swapped() && tile.owner.is_adapted() {
            let row = tile_row(k, tile, row);
            theirs = tile.owner.adapted(k, row).map(|adapted| (row, adapted));
        }
        Writer { config, gates, start, exists, count, n: tile.n, plane, tile, biases, factor, column, theirs }
    }

    /// What a sum has besides its factors: that of a matrix, and of the `index`-th register from the tile's `first`
    /// column, or token, on.
    fn terms(&self, k: &mut Builder, matrix: u32, first: Reg<U32>, index: u32) -> Terms {
        let (mut factor, mut bias) = (self.factor, self.biases[matrix as usize]);
        if self.config.swapped() && self.tile.owner.is_factored() {
            let token = k.add(first, index);
            factor = row_factor(k, self.tile, token);
        } else if !self.config.swapped() && self.config.biased {
            let column = k.add(first, index);
            let column = k.add(column, self.tile.column);
            bias = self.tile.owner.bias(k, matrix, column, self.n);
        }
        Terms { scale: None, factor, bias, delta: self.delta(k, matrix, first, index) }
    }

    /// What is added to such a sum, if something may be.
    fn delta(&self, k: &mut Builder, matrix: u32, first: Reg<U32>, index: u32) -> Delta {
        let owner = &self.tile.owner;
        if !owner.is_adapted() {
            return None;
        }
        let number = k.add(first, index);
        let (row, column, theirs) = match self.theirs {
            Some((row, theirs)) => (row, k.add(number, self.tile.column), theirs),
            None => {
                let row = tile_row(k, self.tile, number);
                (row, self.column, owner.adapted(k, row)?)
            }
        };
        Some(owner.deltas(k, [row, column, self.n])?.of(k, matrix, theirs))
    }

    /// How often accumulators are read.
    fn steps(&self, k: &mut Builder) -> Reg<U32> {
        let beyond = k.add(self.count, COLUMNS - 1);
        k.shr(beyond, COLUMNS.trailing_zeros())
    }

    /// Finishes and stores what was read, from the tile's `first` column, or token, on. Gate's values may be activated
    /// already.
    fn write(
        &self,
        k: &mut Builder,
        first: Reg<U32>,
        (gate, activated): ([Reg<F32>; COLUMNS as usize], bool),
        up: Option<[Reg<F32>; COLUMNS as usize]>,
    ) {
        match self.plane {
            Some(plane) => {
                self.store(k, first, self.start, gate);
                if let Some(up) = up {
                    let start = k.add(self.start, plane);
                    self.store(k, first, start, up);
                }
            }
            None => {
                let value = |index: usize| {
                    let terms = |k: &mut Builder, matrix| self.terms(k, matrix, first, index as u32);
                    match up.map(|up| up[index]) {
                        None => {
                            let terms = terms(k, 0);
                            self.gates.alone(k, gate[index], terms)
                        }
                        Some(up) => {
                            let activation = if activated {
                                gate[index]
                            } else {
                                let terms = terms(k, 0);
                                self.gates.activate(k, gate[index], terms)
                            };
                            let terms = terms(k, 1);
                            self.gates.join(k, activation, up, terms)
                        }
                    }
                };
                let values: Vec<Reg<F32>> = (0..COLUMNS as usize).map(value).collect();
                let values = std::array::from_fn(|index| values[index]);
                self.store(k, first, self.start, values);
            }
        }
    }

    fn store(&self, k: &mut Builder, first: Reg<U32>, start: Reg<U64>, values: [Reg<F32>; COLUMNS as usize]) {
        let bytes = self.config.stored().bytes() as u32;
        // From one register to the next it is a column, or a row of C.
        let stride = if self.config.swapped() { k.mul(self.n, bytes) } else { k.variable(bytes) };
        let start = k.mul_wide_add(first, stride, start);
        if self.config.aligned && !self.config.swapped() {
            // Rows are whole sixteens of bytes, so that all or none of those exist: eight halves, or four and four of
            // single precision.
            let there: Vec<Pred> = (0..COLUMNS)
                .step_by((STORE_BYTES / bytes) as usize)
                .map(|further| {
                    let this = k.add(first, further);
                    let inside = k.lt(this, self.count);
                    k.both(inside, self.exists)
                })
                .collect();
            return store_row(k, self.config.stored(), &there, Addr::of(start), values);
        }
        for (index, value) in (0..).zip(values) {
            let this = k.add(first, index);
            let inside = k.lt(this, self.count);
            let there = k.both(inside, self.exists);
            let at = k.mul_wide_add(stride, index, start);
            store_element(k, self.config.stored(), Some(there), Addr::<Global>::of(at), value);
        }
    }
}

/// What the sums of a token of the tile are multiplied with; beyond the last token it is that one's.
fn row_factor(k: &mut Builder, tile: &Tile, token: Reg<U32>) -> Option<Reg<F32>> {
    let row = tile_row(k, tile, token);
    tile.owner.row_factor(k, row)
}

/// The row of a token of the tile; beyond the last token it is that one's.
fn tile_row(k: &mut Builder, tile: &Tile, token: Reg<U32>) -> Reg<U32> {
    let last = k.sub(tile.tokens, 1);
    let token = k.min(token, last);
    k.add(tile.first_token, token)
}

/// Rounds eight neighbours and stores those that exist, sixteen bytes at a time.
fn store_row(k: &mut Builder, output: Output, there: &[Pred], at: Addr<Global>, values: [Reg<F32>; COLUMNS as usize]) {
    let pairs = [0, 2, 4, 6].map(|index| [values[index], values[index + 1]]);
    match output {
        Output::F16 => {
            let pairs: [Reg<F16x2>; 4] = pairs.map(|[low, high]| k.convert_pair(low, high));
            k.when(there[0], |k| k.store_vector(at, pairs));
        }
        Output::BF16 => {
            let pairs: [Reg<Bf16x2>; 4] = pairs.map(|[low, high]| k.convert_pair(low, high));
            k.when(there[0], |k| k.store_vector(at, pairs));
        }
        Output::F32 => {
            for (half, four) in values.chunks_exact(4).enumerate() {
                let (at, four) = (at.plus(16 * half as i32), [four[0], four[1], four[2], four[3]]);
                k.when(there[half], |k| k.store_vector(at, four));
            }
        }
    }
}
