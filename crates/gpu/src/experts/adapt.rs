//! What low-rank adapters add to the products of a layer, as [`op::adapters`] defines it: two kernels around each
//! product.
//!
//! - `shrink`: t = scaling·(A·x), a warp per row of A, or per four of them where there are many rows of x, which are
//!   then read less often. Its lanes have every thirty-second eight of the products.
//! - `expand`: B·t, four neighbouring columns per thread, added to the product's sums. Behind gate and up the sums are
//!   planes of floats that no factor has met; there the kernel is also the product's epilogue: factors, row factor,
//!   bias, what the adapter adds, and the gate. Behind down it adds to the rows in place.
//!
//! A layer without adapters has neither, and its product its own epilogue. With adapters the sums of gate and up go
//! through memory instead, and a launch makes each: 16 bytes more per row and column of the intermediate, and a launch
//! more. That is the price of leaving every family's epilogues as they are.
//!
//! A row finds its pair of matrices by its expert and its token's adapter. Rows do not share what they read: neighbours
//! have the same expert, but each its own adapter.
//!
//! In memory, adapters are padded with zeros to one rank: A `[adapters, experts, matrices·rank, k]` and B's columns
//! `[adapters, experts, matrices, rank, n]`.

use op::{Adapters, Error as OpError, Gate, Output, Projection, Result as OpResult};
use ptx::{Addr, Builder, Error, F32, Global, Kernel, LaunchBounds, Pred, Reg, SpecialRegister, Target, U32, U64};

use super::combine::{floats, load, store};
use super::route::warp_sum;
use super::{Portable, await_predecessor, launch_dependents};
use crate::expand::{self, Float, UNIT};
use crate::phases::experts::FACTOR_BYTES;
use crate::phases::gates::{self, Function};

/// Warps of a block that shrinks, and threads of one that expands.
const WARPS: u32 = 4;
const THREADS: u32 = 128;
/// Columns of a thread that expands.
const COLUMNS: u32 = 4;
/// What ranks are rounded up to, and how many of them a thread that expands asks for at a time.
const RANKS: u32 = 8;
/// Rows from which on a warp has several rows of A.
const MANY: u32 = 512;

/// The adapters of a layer on a device: how many, the rank that they are padded to, and the type of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdaptedShape {
    /// Adapters.
    pub adapters: u32,
    /// Their rank, a multiple of eight.
    pub rank: u32,
    /// The type of A and B.
    pub numbers: Output,
}

/// Where a layer's adapters are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AdapterPlaces {
    /// A of gate and up, and of down.
    pub a: [u64; 2],
    /// B's columns, of the same.
    pub b: [u64; 2],
    /// What each adapter's results are multiplied with.
    pub scalings: u64,
    /// Factors of one for every expert's matrices: `[experts, 3, 2]`.
    pub ones: u64,
}

/// Adapters as the kernels take them.
#[derive(Debug)]
pub struct PackedAdapters {
    /// What they are.
    pub shape: AdaptedShape,
    /// A of gate and up, A of down, B of the same, scalings, ones: each as bytes.
    arrays: [Vec<u8>; 6],
}

impl PackedAdapters {
    /// Pads adapters to one rank, in the type that all of them have, or f32.
    pub fn new(adapters: &Adapters, gate: Gate) -> OpResult<Self> {
        let (all, experts, [k, inner, out]) = (adapters.len(), adapters.experts(), adapters.widths());
        if all == 0 || all * experts > (1 << 24) {
            let expected = format!("1 to {} for {experts} experts", (1 << 24) / experts.max(1));
            return Err(OpError::Mismatch {
                group: 0,
                what: "the number of adapters",
                found: all.to_string(),
                expected,
            });
        }
        let rank = (adapters.rank() as u32).next_multiple_of(RANKS).max(RANKS);
        let numbers = numbers_of(adapters);
        let outer = [Projection::Gate, Projection::Up];
        let products: [(&[Projection], [usize; 2]); 2] =
            [(&outer[..gate.matrices()], [k, inner]), (&[Projection::Down], [inner, out])];
        let [gate_up, down] = products.map(|(projections, [k, n])| {
            let side = |width: usize, rows: fn(&op::LowRank) -> &format::Dense<'static>| {
                let mut bytes = Vec::with_capacity(all * experts * projections.len() * rank as usize * width);
                for (adapter, expert) in (0..all).flat_map(|adapter| (0..experts).map(move |expert| (adapter, expert)))
                {
                    for &projection in projections {
                        let pair = adapters.pair(adapter, expert, projection).map(|(pair, _)| rows(pair));
                        extend(&mut bytes, pair, [rank as usize, width], numbers);
                    }
                }
                bytes
            };
            [side(k, op::LowRank::a), side(n, op::LowRank::b_columns)]
        });
        let scalings: Vec<f32> = adapters.each().iter().map(|adapter| adapter.scaling).collect();
        let ones = vec![1f32; experts * (FACTOR_BYTES / 4) as usize];
        let [(a_up, b_up), (a_down, b_down)] = [gate_up, down].map(|[a, b]| (a, b));
        let singles = |values: &[f32]| bytemuck::cast_slice(values).to_vec();
        let arrays = [a_up, a_down, b_up, b_down, singles(&scalings), singles(&ones)];
        Ok(Self { shape: AdaptedShape { adapters: all as u32, rank, numbers }, arrays })
    }

    /// Where everything is, once `place` has put the arrays somewhere.
    pub fn placed<E>(&self, place: impl FnMut(&[u8]) -> Result<u64, E>) -> Result<AdapterPlaces, E> {
        let places = self.arrays.iter().map(|bytes| &bytes[..]).map(place).collect::<Result<Vec<u64>, E>>()?;
        let [a_up, a_down, b_up, b_down, scalings, ones] = std::array::from_fn(|index| places[index]);
        Ok(AdapterPlaces { a: [a_up, a_down], b: [b_up, b_down], scalings, ones })
    }
}

/// The type that all of the adapters' numbers have, or f32.
fn numbers_of(adapters: &Adapters) -> Output {
    let pairs = || adapters.each().iter().flat_map(|adapter| adapter.experts.iter().flatten().flatten());
    let all = |is: fn(&format::Values<'_>) -> bool| {
        pairs().all(|pair| [pair.a(), pair.b_columns()].iter().all(|matrix| is(matrix.values())))
    };
    if all(|values| matches!(values, format::Values::BF16(_))) {
        Output::BF16
    } else if all(|values| matches!(values, format::Values::F16(_))) {
        Output::F16
    } else {
        Output::F32
    }
}

/// Appends the rows of a matrix, or zeros, `[rank, width]` of a type.
fn extend(bytes: &mut Vec<u8>, matrix: Option<&format::Dense<'_>>, [rank, width]: [usize; 2], numbers: Output) {
    let end = bytes.len() + rank * width * numbers.bytes();
    if let Some(matrix) = matrix {
        match (matrix.values(), numbers) {
            (format::Values::BF16(values), Output::BF16) => bytes.extend_from_slice(bytemuck::cast_slice(values)),
            (format::Values::F16(values), Output::F16) => bytes.extend_from_slice(bytemuck::cast_slice(values)),
            _ => {
                let mut row = vec![0f32; width];
                for rank in 0..matrix.rows() {
                    matrix.row(rank, &mut row);
                    bytes.extend_from_slice(bytemuck::cast_slice(&row));
                }
            }
        }
    }
    bytes.resize(end, 0);
}

/// The tables by which rows find their pairs.
struct Tables {
    /// The adapter of every token.
    adapters: Reg<U64>,
    /// The entry, token·top + j, of every row, and its expert.
    order: Reg<U64>,
    owners: Reg<U64>,
    layout: Reg<U64>,
    experts: Reg<U32>,
    top: Reg<U32>,
    /// How many adapters there are: a token whose number is no adapter's has none.
    count: Reg<U32>,
}

/// A block's row.
struct Row {
    row: Reg<U32>,
    token: Reg<U32>,
    owner: Reg<U32>,
    adapter: Reg<U32>,
    /// Whether its token has an adapter.
    adapted: Pred,
}

impl Tables {
    fn declare(k: &mut Builder) -> Self {
        let [adapters, order, owners, layout] = ["adapters", "order", "owners", "layout"].map(|name| k.pointer(name));
        let [experts, top, count] = ["experts", "top", "count"].map(|name| k.param(name));
        Tables { adapters, order, owners, layout, experts, top, count }
    }

    /// `body` with the block's row, where it is somebody's.
    fn row(&self, k: &mut Builder, body: impl FnOnce(&mut Builder, &Row)) {
        let row = k.special(SpecialRegister::CtaidX);
        let end_at = k.mul_wide_add(self.experts, 4, self.layout);
        let (order_at, owner_at) = (k.mul_wide_add(row, 4, self.order), k.mul_wide_add(row, 4, self.owners));
        // Behind the last row there is room for what nobody has written, and what that says is not looked at.
        let (end, entry, owner): (Reg<U32>, Reg<U32>, Reg<U32>) = k.phase("find", |k| {
            (
                k.load(Addr::<Global>::of(end_at)),
                k.load(Addr::<Global>::of(order_at)),
                k.load(Addr::<Global>::of(owner_at)),
            )
        });
        let exists = k.lt(row, end);
        k.if_(exists, |k| {
            let token = k.div(entry, self.top);
            let at = k.mul_wide_add(token, 4, self.adapters);
            let adapter: Reg<U32> = k.phase("find", |k| k.load(Addr::<Global>::of(at)));
            let adapted = k.lt(adapter, self.count);
            body(k, &Row { row, token, owner, adapter, adapted });
        });
    }

    /// Which of all pairs is a row's.
    fn key(&self, k: &mut Builder, row: &Row) -> Reg<U32> {
        k.mul_add(row.adapter, self.experts, row.owner)
    }
}

/// Which of the kernels that shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShrinkSpec {
    /// The type of x.
    pub x: Float,
    /// Whether x has a row per token, and not per row.
    pub by_token: bool,
    /// Whether sums are multiplied with a factor per row.
    pub factored: bool,
    /// The type of A.
    pub numbers: Output,
    /// Rows of A that a warp has: [`ShrinkSpec::together`].
    pub together: u32,
}

impl ShrinkSpec {
    /// Rows of A that a warp has, for so many rows of x: one where warps are few.
    pub fn together(rows: u32) -> u32 {
        if rows >= MANY { 4 } else { 1 }
    }

    /// Blocks for so many rows and so many rows of A.
    pub fn grid(&self, rows: u32, ranks: u32) -> [u32; 3] {
        [rows, ranks.div_ceil(WARPS * self.together), 1]
    }
}

impl Portable for ShrinkSpec {
    fn kernel_for(self, target: Target) -> Result<Kernel, Error> {
        shrink(self, target)
    }
}

/// Builds the kernel. Its arguments, in order: x `[rows or tokens, 8·units]`; A; scalings `[adapters]`; a factor per
/// row, if there are some; adapters of tokens, order, owners, layout, experts, experts of a token, adapters; t `[rows,
/// ranks]`; units of a row, and rows of A of all matrices.
pub fn shrink(spec: ShrinkSpec, target: Target) -> Result<Kernel, Error> {
    let launch = LaunchBounds { threads: 32 * WARPS, cluster: None, min_blocks: None };
    let mut k = Builder::new("shrink", target, launch);
    let [x, a, scalings] = ["x", "a", "scalings"].map(|name| k.pointer(name));
    let factors = spec.factored.then(|| k.pointer("factors"));
    let tables = Tables::declare(&mut k);
    let out = k.pointer("out");
    let [units, ranks]: [Reg<U32>; 2] = ["units", "ranks"].map(|name| k.param(name));
    launch_dependents(&mut k, target);
    let (thread, part) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidY));
    let (warp, lane) = (k.shr(thread, 5), k.and(thread, 31));
    let warp = k.mul_add(part, WARPS, warp);
    let first_rank = k.mul(warp, spec.together);
    await_predecessor(&mut k, target);
    tables.row(&mut k, |k, row| {
        k.if_(row.adapted, |k| {
            let x_bytes = k.mul(units, (UNIT as u32) * if spec.x == Float::F32 { 4 } else { 2 });
            let x = k.mul_wide_add(if spec.by_token { row.token } else { row.row }, x_bytes, x);
            let a_bytes = k.mul(units, (UNIT * spec.numbers.bytes()) as u32);
            let key = tables.key(k, row);
            let (before, last) = (k.mul(key, ranks), k.sub(ranks, 1));
            let own_ranks: Vec<Reg<U32>> = (0..spec.together).map(|number| k.add(first_rank, number)).collect();
            let weights: Vec<Reg<U64>> = own_ranks
                .iter()
                .map(|&rank| {
                    let rank = k.min(rank, last);
                    let rank = k.add(before, rank);
                    k.mul_wide_add(rank, a_bytes, a)
                })
                .collect();
            let at = k.mul_wide_add(row.adapter, 4, scalings);
            let scaling: Reg<F32> = k.load(Addr::<Global>::of(at));
            let sums = products(k, spec, (lane, units), (x, &weights));
            let factor = factors.map(|factors| {
                let at = k.mul_wide_add(row.row, 4, factors);
                k.load::<F32, Global>(Addr::of(at))
            });
            let leads = k.eq(lane, 0);
            for (&rank, sum) in own_ranks.iter().zip(sums) {
                let total = k.phase("add", |k| warp_sum(k, sum));
                let total = factor.map_or(total, |factor| k.mul(total, factor));
                let t = k.mul(total, scaling);
                let inside = k.lt(rank, ranks);
                let stores = k.both(inside, leads);
                let place = k.mul_add(row.row, ranks, rank);
                let at = k.mul_wide_add(place, 4, out);
                k.phase("store", |k| k.when(stores, |k| k.store(Addr::<Global>::of(at), t)));
            }
        });
    });
    k.finish()
}

/// A lane's sums of its products with some rows of A, several units at a time: as much must be under way.
fn products(
    k: &mut Builder,
    spec: ShrinkSpec,
    (lane, units): (Reg<U32>, Reg<U32>),
    (x, weights): (Reg<U64>, &[Reg<U64>]),
) -> Vec<Reg<F32>> {
    let sums: Vec<Reg<F32>> = weights.iter().map(|_| k.variable(0.0)).collect();
    let turns = if spec.together == 1 { 8 } else { 2 };
    let (unit, last) = (k.variable(lane), k.sub(units, 1));
    k.loop_while(
        |k| k.lt(unit, units),
        |k| {
            let at: Vec<(Reg<U32>, Pred)> = (0..turns)
                .map(|turn| {
                    let number = k.add(unit, 32 * turn);
                    (k.min(number, last), k.lt(number, units))
                })
                .collect();
            let loaded: Vec<_> = k.phase("load", |k| {
                let of = |&(unit, _): &(Reg<U32>, Pred)| {
                    let float = Float::from(spec.numbers);
                    let a: Vec<_> = weights.iter().map(|&row| expand::load_floats(k, float, row, unit)).collect();
                    (expand::load_floats(k, spec.x, x, unit), a)
                };
                at.iter().map(of).collect()
            });
            for (&(_, exists), (x, a)) in at.iter().zip(&loaded) {
                for (a, &sum) in a.iter().zip(&sums) {
                    for (&x, &a) in x.iter().zip(a) {
                        k.when(exists, |k| {
                            let more = k.fma(x, a, sum);
                            k.set(sum, more);
                        });
                    }
                }
            }
            let next = k.add(unit, 32 * turns);
            k.set(unit, next);
        },
    );
    sums
}

/// What becomes of sums once adapters have been added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ends {
    /// They are gate's and up's, without any factor, and become the intermediate.
    Gated {
        /// The gate.
        function: Function,
        /// The intermediate's type.
        output: Output,
        /// Whether sums have biases.
        biased: bool,
        /// Whether sums are multiplied with a factor per row.
        factored: bool,
    },
    /// They are down's, and stay where they are.
    Added,
}

/// Which of the kernels that expand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpandSpec {
    /// What becomes of the sums.
    pub ends: Ends,
    /// The type of B.
    pub numbers: Output,
}

impl ExpandSpec {
    fn matrices(&self) -> u32 {
        match self.ends {
            Ends::Gated { function, .. } => function.matrices() as u32,
            Ends::Added => 1,
        }
    }

    /// Blocks for so many rows with so many columns.
    pub fn grid(&self, rows: u32, columns: u32) -> [u32; 3] {
        [rows, columns.div_ceil(COLUMNS * THREADS), 1]
    }
}

impl Portable for ExpandSpec {
    fn kernel_for(self, target: Target) -> Result<Kernel, Error> {
        expand(self, target)
    }
}

/// Builds the kernel. Its arguments, in order: sums `[matrices, rows, columns]`; t `[rows, matrices·rank]`; B's
/// columns; the tables of [`shrink`]; columns, and the rank; and where values become the intermediate: bytes from
/// gate's sums to up's; factors `[experts, 3, 2]`; biases `[experts, columns]` of each matrix, if there are some; a
/// factor per row, if there are some; the intermediate `[rows, columns]`; the gate's limit.
pub fn expand(spec: ExpandSpec, target: Target) -> Result<Kernel, Error> {
    let launch = LaunchBounds { threads: THREADS, cluster: None, min_blocks: None };
    let mut k = Builder::new("expand_adapters", target, launch);
    let matrices = spec.matrices();
    let [sums, t, b] = ["sums", "t", "b"].map(|name| k.pointer(name));
    let tables = Tables::declare(&mut k);
    let [columns, rank]: [Reg<U32>; 2] = ["columns", "rank"].map(|name| k.param(name));
    let epilogue = Epilogue::declare(&mut k, spec);
    launch_dependents(&mut k, target);
    let (thread, part) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidY));
    let unit = k.mul_add(part, THREADS, thread);
    let column = k.mul(unit, COLUMNS);
    let inside = k.lt(column, columns);
    await_predecessor(&mut k, target);
    k.if_(inside, |k| {
        tables.row(k, |k, row| {
            let deltas: Vec<Vec<Reg<F32>>> =
                (0..matrices).map(|_| (0..COLUMNS).map(|_| k.variable(0.0)).collect()).collect();
            k.if_(row.adapted, |k| {
                let key = tables.key(k, row);
                add_columns(k, (spec.numbers, rank, columns), (row.row, t), (key, unit, b), &deltas);
            });
            let row_bytes = k.mul(columns, 4);
            let at = k.mul_wide_add(row.row, row_bytes, sums);
            let at = k.mul_wide_add(unit, 4 * COLUMNS, at);
            match &epilogue {
                None => k.if_(row.adapted, |k| {
                    let words = load(k, 4 * COLUMNS, Addr::of(at));
                    let pairs = words.iter().zip(&deltas[0]);
                    let values: Vec<Reg<F32>> = pairs.map(|(word, &delta)| k.add(word.cast::<F32>(), delta)).collect();
                    k.phase("store", |k| store(k, Output::F32, Addr::of(at), &values));
                }),
                Some(epilogue) => epilogue.finish(k, (row, at), (unit, columns), &deltas),
            }
        });
    });
    k.finish()
}

/// Adds B·t to a thread's columns of each matrix, eight ranks at a time.
fn add_columns(
    k: &mut Builder,
    (numbers, rank, columns): (Output, Reg<U32>, Reg<U32>),
    (row, t): (Reg<U32>, Reg<U64>),
    (key, unit, b): (Reg<U32>, Reg<U32>, Reg<U64>),
    deltas: &[Vec<Reg<F32>>],
) {
    let ranks = k.mul(rank, deltas.len() as u32);
    let (first, first_t) = (k.mul(key, ranks), k.mul(row, ranks));
    let bytes = k.mul(columns, numbers.bytes() as u32);
    let own = COLUMNS * numbers.bytes() as u32;
    let b = k.mul_wide_add(unit, own, b);
    let turns = k.shr(rank, RANKS.trailing_zeros());
    k.repeat(turns, |k, turn| {
        let loaded: Vec<_> = k.phase("load", |k| {
            let of = |matrix: u32| {
                let start = k.mul(rank, matrix);
                let start = k.mul_add(turn, RANKS, start);
                let place = k.add(first_t, start);
                let at = Addr::<Global>::of(k.mul_wide_add(place, 4, t));
                let t: ([Reg<F32>; 4], [Reg<F32>; 4]) = (k.load_vector(at), k.load_vector(at.plus(16)));
                let row = k.add(first, start);
                let words = |number: u32| {
                    let row = k.add(row, number);
                    let at = k.mul_wide_add(row, bytes, b);
                    load(k, own, Addr::of(at))
                };
                (t, (0..RANKS).map(words).collect::<Vec<_>>())
            };
            (0..deltas.len() as u32).map(of).collect()
        });
        for (((low, high), words), deltas) in loaded.iter().zip(deltas) {
            for (&t, words) in low.iter().chain(high).zip(words) {
                for (&delta, b) in deltas.iter().zip(floats(k, numbers, words)) {
                    let more = k.fma(t, b, delta);
                    k.set(delta, more);
                }
            }
        }
    });
}

/// What makes an intermediate of sums.
struct Epilogue {
    plane: Reg<U64>,
    function: Function,
    output: Output,
    factors: Reg<U64>,
    biases: Option<Vec<Reg<U64>>>,
    row_factors: Option<Reg<U64>>,
    out: Reg<U64>,
    clamp: Reg<F32>,
}

impl Epilogue {
    fn declare(k: &mut Builder, spec: ExpandSpec) -> Option<Self> {
        let Ends::Gated { function, output, biased, factored } = spec.ends else { return None };
        let (plane, factors) = (k.param("plane"), k.pointer("factors"));
        let names = ["gate_bias", "up_bias"];
        let biases =
            biased.then(|| names[..spec.matrices() as usize].iter().map(|name| k.pointer(name)).collect::<Vec<_>>());
        let row_factors = factored.then(|| k.pointer("row_factors"));
        let (out, clamp) = (k.pointer("out"), k.param("clamp"));
        Some(Epilogue { plane, function, output, factors, biases, row_factors, out, clamp })
    }

    /// Finishes a thread's columns of a row, whose sums of the first matrix are at an address.
    fn finish(
        &self,
        k: &mut Builder,
        (row, sums): (&Row, Reg<U64>),
        (unit, columns): (Reg<U32>, Reg<U32>),
        deltas: &[Vec<Reg<F32>>],
    ) {
        let factor = self.row_factors.map(|factors| {
            let at = k.mul_wide_add(row.row, 4, factors);
            k.load::<F32, Global>(Addr::of(at))
        });
        let mut finished = Vec::new();
        let mut at = sums;
        for (matrix, deltas) in deltas.iter().enumerate() {
            let factors = Addr::<Global>::of(k.mul_wide_add(row.owner, FACTOR_BYTES, self.factors));
            let factors: [Reg<F32>; 2] = k.load_vector(factors.plus(8 * matrix as i32));
            let biases = self.biases.as_ref().map(|biases| {
                let bytes = k.mul(columns, 4);
                let at = k.mul_wide_add(row.owner, bytes, biases[matrix]);
                let at = k.mul_wide_add(unit, 4 * COLUMNS, at);
                load(k, 4 * COLUMNS, Addr::of(at))
            });
            let words = load(k, 4 * COLUMNS, Addr::of(at));
            let values: Vec<Reg<F32>> = (0..COLUMNS as usize)
                .map(|column| {
                    let value = gates::scaled(k, words[column].cast(), factors);
                    let value = factor.map_or(value, |factor| k.mul(value, factor));
                    let value = biases.as_ref().map_or(value, |biases| k.add(value, biases[column].cast::<F32>()));
                    k.add(value, deltas[column])
                })
                .collect();
            finished.push(values);
            at = k.add(at, self.plane);
        }
        let values: Vec<Reg<F32>> = (0..COLUMNS as usize)
            .map(|column| match &finished[..] {
                [gate, up] => gates::apply(k, self.function, gate[column], up[column], self.clamp),
                [only, ..] => gates::alone(k, self.function, only[column]),
                [] => deltas[0][column],
            })
            .collect();
        let bytes = k.mul(columns, self.output.bytes() as u32);
        let at = k.mul_wide_add(row.row, bytes, self.out);
        let at = k.mul_wide_add(unit, COLUMNS * self.output.bytes() as u32, at);
        k.phase("store", |k| store(k, self.output, Addr::of(at), &values));
    }
}
