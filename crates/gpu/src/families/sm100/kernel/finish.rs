//! From sums to C: four warps read accumulators, a lane each, and scale, gate, round and store.
//!
//! Where tokens are the rows of multiplications, a thread has a token and its registers are neighbouring columns of C: it stores sixteen
//! bytes at a time where rows of C are such that it can. Where tokens are the columns, a thread has a column of C and its registers are
//! tokens: the lanes of a warp store neighbours. A thread with a token may also leave its row in shared memory and have the copy engine
//! bring it to C (`epilogue=bulk`): it writes and sends a row of its own, so nobody waits for another. Where two blocks share k, sums are left as they are, a plane per block and matrix.

use ptx::{
    Addr, Bf16, Bf16x2, Builder, F16, F16x2, F32, Global, InSpace, Pred, Reg, Shared, SpecialRegister, TensorAddress,
    U32, U64,
};

use super::claims::Worker;
use super::work::Tile;
use super::{Parts, STORE_BYTES, TensorMultiplySpec};
use crate::families::sm100::slabs::BLOCK_ROWS;
use crate::{gating, join};
use op::Output;

/// Accumulators that a thread reads of each matrix at a time.
const COLUMNS: u32 = 8;
/// Where a tensor address has its lane.
const LANE_SHIFT: u32 = 16;

/// Four warps finish every tile.
pub(super) fn finish(k: &mut Builder, parts: &Parts, base: Reg<TensorAddress>, warp: Reg<U32>) {
    let lane = k.special(SpecialRegister::LaneId);
    parts.each_tile(k, Worker::Warps, |k, tile| {
        let sums = parts.pipe.accumulators(k, base, tile.round);
        let first_lane = k.shl(warp, 5);
        let own = k.mul_add(first_lane, 1u32 << LANE_SHIFT, sums);
        let row = k.add(first_lane, lane);
        let staged = parts.pipe.staged.map(|region| {
            let base = k.shared_address(region);
            k.mul_add(row, parts.config.staged_row(), base)
        });
        let row = parts.own(k, BLOCK_ROWS, row);
        let writer = Writer { staged, ..Writer::new(k, parts, &tile, row) };
        let steps = writer.steps(k);
        let activated = parts.pipe.wait_gated(k, tile.round);
        if activated {
            activate(k, &writer.gates, own, steps);
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
        writer.send(k);
    });
}

/// While up is summed: gate's sums are replaced by what its function makes of them, in tensor memory, where there is room for them.
fn activate(k: &mut Builder, gates: &Gates, own: Reg<U32>, steps: Reg<U32>) {
    k.repeat(steps, |k, step| {
        let at = k.mul_add(step, COLUMNS, own).cast();
        let sums: [Reg<F32>; COLUMNS as usize] = k.tensor_load_columns(at);
        k.tensor_wait_load();
        let values = sums.map(|sum| gates.activate(k, sum));
        k.tensor_store_columns(at, &values);
    });
    k.tensor_wait_store();
}

/// Where a thread's values go.
struct Writer {
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
    /// Where the row goes in shared memory first, if it does.
    staged: Option<Reg<U32>>,
}

impl Writer {
    fn new(k: &mut Builder, parts: &Parts, tile: &Tile, row: Reg<U32>) -> Self {
        let config = parts.config;
        let left = k.sub(tile.n, tile.column);
        let (token, column, exists, count) = if config.swapped() {
            let column = k.add(tile.column, row);
            (tile.first_token, column, k.lt(row, left), tile.tokens)
        } else {
            let token = k.add(tile.first_token, row);
            (token, tile.column, k.lt(row, tile.tokens), k.min(left, config.columns))
        };
        let mut out = tile.out(k);
        let plane = tile.half.map(|half| {
            let elements = k.mul_wide(tile.m, tile.n);
            let plane = join::plane_stride(k, elements);
            let first = k.mul(half, config.accumulators());
            let first: Reg<U64> = k.convert(first);
            out = k.mul_add(first, plane, out);
            plane
        });
        let wide: Reg<U64> = k.convert(column);
        let element = k.mul_wide_add(token, tile.n, wide);
        let offset = k.shl(element, config.stored().bytes().trailing_zeros());
        let start = k.add(out, offset);
        Writer { config, gates: Gates::new(k, parts, tile), start, exists, count, n: tile.n, plane, staged: None }
    }

    /// How often accumulators are read.
    fn steps(&self, k: &mut Builder) -> Reg<U32> {
        let beyond = k.add(self.count, COLUMNS - 1);
        k.shr(beyond, COLUMNS.trailing_zeros())
    }

    /// Finishes and stores what was read, from the tile's `first` column, or token, on. Gate's values may be activated already.
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
                let value = |index: usize| match up.map(|up| up[index]) {
                    None => self.gates.alone(k, gate[index]),
                    Some(up) if activated => self.gates.join(k, gate[index], up),
                    Some(up) => {
                        let activation = self.gates.activate(k, gate[index]);
                        self.gates.join(k, activation, up)
                    }
                };
                let values: Vec<Reg<F32>> = (0..COLUMNS as usize).map(value).collect();
                let values = std::array::from_fn(|index| values[index]);
                self.store(k, first, self.start, values);
            }
        }
    }

    /// Has the copy engine bring the row that was left in shared memory to C, and waits until it has read it.
    fn send(&self, k: &mut Builder) {
        let Some(row) = self.staged else { return };
        let bytes = k.mul(self.count, self.config.stored().bytes() as u32);
        k.fence_async_shared();
        k.when(self.exists, |k| k.bulk_store(Addr::of(self.start), Addr::of(row), bytes, None));
        k.bulk_commit();
        k.bulk_wait_read(0);
        k.sync_warp();
    }

    fn store(&self, k: &mut Builder, first: Reg<U32>, start: Reg<U64>, values: [Reg<F32>; COLUMNS as usize]) {
        let bytes = self.config.stored().bytes() as u32;
        if let Some(row) = self.staged {
            let at = k.mul_add(first, bytes, row);
            return store_row(k, self.config.stored(), None, Addr::<Shared>::of(at), values);
        }
        // From one register to the next it is a column, or a row of C.
        let stride = if self.config.swapped() { k.mul(self.n, bytes) } else { k.variable(bytes) };
        let start = k.mul_wide_add(first, stride, start);
        if self.config.aligned && !self.config.swapped() {
            // Rows are whole sixteens of bytes, so that all or none of those exist: eight halves, or four and four of single precision.
            let there: Vec<Pred> = (0..COLUMNS)
                .step_by((STORE_BYTES / bytes) as usize)
                .map(|further| {
                    let this = k.add(first, further);
                    let inside = k.lt(this, self.count);
                    k.both(inside, self.exists)
                })
                .collect();
            return store_row(k, self.config.stored(), Some(&there), Addr::<Global>::of(start), values);
        }
        for (index, value) in (0..).zip(values) {
            let this = k.add(first, index);
            let inside = k.lt(this, self.count);
            let there = k.both(inside, self.exists);
            let at = k.mul_wide_add(stride, index, start);
            store_element(k, self.config.stored(), there, Addr::of(at), value);
        }
    }
}

/// Rounds a value and stores it where it exists.
fn store_element(k: &mut Builder, output: Output, there: Pred, at: Addr<Global>, value: Reg<F32>) {
    match output {
        Output::F16 => {
            let value: Reg<F16> = k.convert(value);
            k.when(there, |k| k.store(at, value));
        }
        Output::BF16 => {
            let value: Reg<Bf16> = k.convert(value);
            k.when(there, |k| k.store(at, value));
        }
        Output::F32 => k.when(there, |k| k.store(at, value)),
    }
}

/// Rounds eight neighbours and stores them; or, where it is said of each sixteen bytes, those that exist.
fn store_row<S: InSpace>(
    k: &mut Builder,
    output: Output,
    there: Option<&[Pred]>,
    at: Addr<S>,
    values: [Reg<F32>; COLUMNS as usize],
) {
    let guarded = |k: &mut Builder, half: usize, store: &dyn Fn(&mut Builder)| match there {
        Some(there) => k.when(there[half], store),
        None => store(k),
    };
    let pairs = [0, 2, 4, 6].map(|index| [values[index], values[index + 1]]);
    match output {
        Output::F16 => {
            let pairs: [Reg<F16x2>; 4] = pairs.map(|[low, high]| k.convert_pair(low, high));
            guarded(k, 0, &|k| k.store_vector(at, pairs));
        }
        Output::BF16 => {
            let pairs: [Reg<Bf16x2>; 4] = pairs.map(|[low, high]| k.convert_pair(low, high));
            guarded(k, 0, &|k| k.store_vector(at, pairs));
        }
        Output::F32 => {
            for (half, four) in values.chunks_exact(4).enumerate() {
                let (at, four) = (at.plus(16 * half as i32), [four[0], four[1], four[2], four[3]]);
                guarded(k, half, &|k| k.store_vector(at, four));
            }
        }
    }
}

/// What is made of a gate sum and an up sum.
struct Gates {
    config: TensorMultiplySpec,
    gate: [Reg<F32>; 2],
    up: [Reg<F32>; 2],
    clamp: Reg<F32>,
}

impl Gates {
    fn new(k: &mut Builder, parts: &Parts, tile: &Tile) -> Self {
        Gates { config: parts.config, gate: tile.factors(k, 0), up: tile.factors(k, 1), clamp: parts.work.clamp }
    }

    /// What becomes of the only sum.
    fn alone(&self, k: &mut Builder, sum: Reg<F32>) -> Reg<F32> {
        let value = gating::scaled(k, sum, self.gate);
        gating::alone(k, self.config.function, value)
    }

    /// What becomes of a gate sum, whatever up is.
    fn activate(&self, k: &mut Builder, sum: Reg<F32>) -> Reg<F32> {
        let gate = gating::scaled(k, sum, self.gate);
        gating::activation(k, self.config.function, gate, self.clamp)
    }

    /// What becomes of that and an up sum.
    fn join(&self, k: &mut Builder, activation: Reg<F32>, sum: Reg<F32>) -> Reg<F32> {
        let up = gating::scaled(k, sum, self.up);
        gating::joined(k, self.config.function, activation, up, self.clamp)
    }
}
