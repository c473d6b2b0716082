//! What low-rank adapters add to the second product of few tokens, whose blocks find their tiles themselves
//! ([`super::direct`]): B·t with t = scaling·(A·h), of h that the first product leaves.
//!
//! A kernel between the products would keep the second one from beginning early, and A is tens of kilobytes per entry:
//! too much for each of its tiles to read. So each tile of the first product multiplies its own columns of h with those
//! of A, and leaves a *piece* of A·h. All pieces of an entry are a few kilobytes. A tile of the second product adds
//! them up, always in the same order, and multiplies with its own columns of B. It waits for nothing that it does not
//! wait for anyway, and the bits do not depend on which block computes which tile.
//!
//! All sums are of single precision, and every product and addition rounds: what [`op::adapters`] grants.
//!
//! A tile has one row, and is finished by the 128 threads of a warpgroup: it has so many columns of its own.

use op::Output;
use ptx::instr::{ShuffleMode, Width};
use ptx::{Addr, Builder, F16x2, F32, Global, Pred, Reg, Shared, U32, U64};

use super::route::warp_sum;
use super::sum::{floats, load};

/// Columns of a tile of the first product, at least.
pub(crate) const LEAST_PIECE: u64 = 32;
/// Threads that finish a tile.
const THREADS: u32 = 128;
/// Columns of A that a thread reads at a time, at most.
const UNIT: u32 = 8;
/// Ranks that a lane adds up the pieces of, and those that all warps do.
const TOGETHER: u32 = 4;
const AT_ONCE: u32 = TOGETHER * THREADS / 32;
/// Registers in which pieces are held while a tile's products are computed, at most.
const MOST_HELD: u32 = 16;
/// Lanes that have a column in common: each has some of the ranks.
const LANES: u32 = 4;

/// Adapters of the second product, as far as kernels are built for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LowRank {
    /// The rank, a multiple of eight.
    pub rank: u32,
    /// The type of A and B.
    pub numbers: Output,
    /// Pieces that the first product leaves for each entry.
    pub pieces: u32,
}

impl LowRank {
    /// Threads that have a rank in common where pieces are made.
    fn sharers(&self) -> u32 {
        THREADS / self.rank.next_power_of_two()
    }

    /// Fours of ranks that a warp adds up, and times that its lanes take a piece each.
    fn turns(&self) -> [u32; 2] {
        [self.rank.div_ceil(AT_ONCE), self.pieces.div_ceil(32)]
    }

    /// Columns of A that a thread has, of so many of a warpgroup's.
    pub(crate) fn columns(&self, width: u32) -> u32 {
        width / self.sharers()
    }

    /// Whether a thread has registers for its part of the pieces while a tile's products are computed.
    fn holds_pieces(&self) -> bool {
        let [fours, turns] = self.turns();
        TOGETHER * fours * turns <= MOST_HELD
    }

    /// Bytes in which a warpgroup keeps t.
    pub(crate) fn kept_bytes(&self) -> u32 {
        4 * self.rank
    }
}

/// What a product of few tokens multiplies for adapters beside its own operands.
pub(crate) enum Beside {
    /// The first one: A with the columns of its tiles.
    Shrink(Shrink),
    /// The second one: B with t.
    Expand(Expand),
}

impl Beside {
    /// Declares the arguments, for so many experts.
    pub fn declare(k: &mut Builder, spec: LowRank, experts: u32, second: bool) -> Self {
        let pairs = Pairs { spec, experts };
        match second {
            false => Beside::Shrink(Shrink { pairs, a: k.pointer("a"), pieces: k.pointer("pieces") }),
            true => Beside::Expand(Expand { pairs, b: k.pointer("b"), scalings: k.pointer("scalings") }),
        }
    }
}

/// A thread of a warpgroup.
#[derive(Clone, Copy)]
pub(crate) struct Thread {
    pub number: Reg<U32>,
    pub warp: Reg<U32>,
    pub lane: Reg<U32>,
}

/// A tile's only row: the entry, its expert and its adapter.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub entry: Reg<U32>,
    pub expert: Reg<U32>,
    pub adapter: Reg<U32>,
}

/// Columns that a warpgroup finishes: the first, of how many in all, and how many.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    pub first: Reg<U32>,
    pub n: Reg<U32>,
    pub width: u32,
}

/// All pairs of A and B, `[adapters, experts, rank, columns]` of either.
#[derive(Clone, Copy)]
struct Pairs {
    spec: LowRank,
    experts: u32,
}

impl Pairs {
    /// A rank of a row's pair among the ranks of all.
    fn rank(&self, k: &mut Builder, row: Row, rank: Reg<U32>) -> Reg<U32> {
        let pair = k.mul_add(row.adapter, self.experts, row.expert);
        k.mul_add(pair, self.spec.rank, rank)
    }

    /// The place of a rank of a piece of an entry.
    fn piece(&self, k: &mut Builder, all: Reg<U64>, [entry, piece, rank]: [Reg<U32>; 3]) -> Addr<Global> {
        let piece = k.mul_add(entry, self.spec.pieces, piece);
        let place = k.mul_add(piece, self.spec.rank, rank);
        Addr::of(k.mul_wide_add(place, 4, all))
    }
}

/// What makes the pieces of t.
#[derive(Clone, Copy)]
pub(crate) struct Shrink {
    pairs: Pairs,
    a: Reg<U64>,
    pieces: Reg<U64>,
}

/// What a thread multiplies with columns of h: some of one rank of A, several at a time, where there are such.
pub(crate) type OfA = Vec<Vec<Reg<U32>>>;

impl Shrink {
    /// A thread's rank and its place among those who share that.
    fn place(&self, k: &mut Builder, thread: Thread) -> [Reg<U32>; 2] {
        let sharers = self.pairs.spec.sharers();
        [k.shr(thread.number, sharers.trailing_zeros()), k.and(thread.number, sharers - 1)]
    }

    /// Columns of a thread, and those that it reads at a time.
    fn each(&self, columns: Columns) -> [u32; 2] {
        let each = self.pairs.spec.columns(columns.width);
        [each, each.min(UNIT)]
    }

    /// Some columns of a thread, from so many on, and whether there are such, and such a rank.
    fn some(&self, k: &mut Builder, columns: Columns, [rank, part]: [Reg<U32>; 2], further: u32) -> (Reg<U32>, Pred) {
        let first = k.mul_add(part, self.each(columns)[0], columns.first);
        let column = k.add(first, further);
        let (exists, inside) = (k.lt(rank, self.pairs.spec.rank), k.lt(column, columns.n));
        (column, k.both(exists, inside))
    }

    /// Asks for a thread's part of A.
    pub fn ask(&self, k: &mut Builder, row: Row, thread: Thread, columns: Columns) -> OfA {
        let (spec, [each, unit]) = (self.pairs.spec, self.each(columns));
        let bytes = spec.numbers.bytes() as u32;
        let place = self.place(k, thread);
        let number = self.pairs.rank(k, row, place[0]);
        let row_bytes = k.mul(columns.n, bytes);
        let of_rank = k.mul_wide_add(number, row_bytes, self.a);
        let of = |further: u32| {
            let (column, exists) = self.some(k, columns, place, further);
            let at = Addr::of(k.mul_wide_add(column, bytes, of_rank));
            k.when(exists, |k| load(k, unit * bytes, at))
        };
        (0..each).step_by(unit as usize).map(of).collect()
    }

    /// Leaves the piece of the warpgroup's columns, which are at a place in shared memory in 16 bits each.
    pub fn leave(
        &self,
        k: &mut Builder,
        (row, thread, columns): (Row, Thread, Columns),
        a: &OfA,
        (h, ty): (Reg<U32>, Output),
    ) {
        let (spec, [each, unit]) = (self.pairs.spec, self.each(columns));
        let place = self.place(k, thread);
        let own = k.mul_add(place[1], 2 * each, h);
        let sum = k.variable(0.0);
        for (number, a) in a.iter().enumerate() {
            let further = unit * number as u32;
            let (_, exists) = self.some(k, columns, place, further);
            let h = shared_words(k, unit / 2, Addr::of(own).plus((2 * further).cast_signed()));
            let h = floats(k, ty, &h);
            k.when(exists, |k| {
                for (h, a) in h.into_iter().zip(floats(k, spec.numbers, a)) {
                    let more = k.fma(h, a, sum);
                    k.set(sum, more);
                }
            });
        }
        let total = butterfly(k, sum, spec.sharers());
        // The first of those who share a rank has the tile's first column.
        let [rank, part] = place;
        let (leads, (_, exists)) = (k.eq(part, 0), self.some(k, columns, place, 0));
        let leaves = k.both(leads, exists);
        let piece = k.shr(columns.first, columns.width.trailing_zeros());
        let at = self.pairs.piece(k, self.pieces, [row.entry, piece, rank]);
        k.when(leaves, |k| k.store(at, total));
    }
}

/// What adds B·t.
#[derive(Clone, Copy)]
pub(crate) struct Expand {
    pairs: Pairs,
    b: Reg<U64>,
    scalings: Reg<U64>,
}

/// What a thread has of B, in each of its columns the ranks that are its lane's; of the pieces, if it holds them; and
/// the adapter's scaling.
pub(crate) struct OfB {
    b: Vec<Vec<Reg<U32>>>,
    pieces: Option<Pieces>,
    scaling: Reg<F32>,
}

/// A lane's part of the pieces: by fours of ranks, and by turns.
type Pieces = Vec<Vec<[Reg<F32>; 4]>>;

impl Expand {
    /// Asks for B in a thread's columns, of which there are `n`, and for pieces, once the first product has left them.
    pub fn ask(
        &self,
        k: &mut Builder,
        (row, thread): (Row, Thread),
        (columns, n): (&[Reg<U32>], Reg<U32>),
        pieces: Reg<U64>,
    ) -> OfB {
        let at = Addr::<Global>::of(k.mul_wide_add(row.adapter, 4, self.scalings));
        let scaling = k.load(at);
        let b = columns.iter().map(|&column| self.column(k, (row, thread), column, n)).collect();
        let pieces = self.pairs.spec.holds_pieces().then(|| {
            k.grid_dependency_wait();
            self.ask_pieces(k, (row, thread), pieces)
        });
        OfB { b, pieces, scaling }
    }

    /// Asks for pieces. Lanes beyond the last one have that.
    fn ask_pieces(&self, k: &mut Builder, (row, thread): (Row, Thread), pieces: Reg<U64>) -> Pieces {
        let [fours, turns] = self.pairs.spec.turns();
        let four = |four: u32| {
            let (rank, _) = self.four(k, thread, four);
            let of = |turn: u32| {
                let piece = k.add(thread.lane, 32 * turn);
                let piece = k.min(piece, self.pairs.spec.pieces - 1);
                let at = self.pairs.piece(k, pieces, [row.entry, piece, rank]);
                k.load_vector(at)
            };
            (0..turns).map(of).collect()
        };
        (0..fours).map(four).collect()
    }

    /// B's ranks of a lane in a column. Behind the last column it is that one's.
    fn column(&self, k: &mut Builder, (row, thread): (Row, Thread), column: Reg<U32>, n: Reg<U32>) -> Vec<Reg<U32>> {
        let spec = self.pairs.spec;
        let (bytes, each) = (spec.numbers.bytes() as u32, spec.rank / LANES);
        let last = k.sub(n, 1);
        let column = k.min(column, last);
        let place = k.and(thread.lane, LANES - 1);
        let rank = k.mul(place, each);
        let rank = self.pairs.rank(k, row, rank);
        let row_bytes = k.mul(n, bytes);
        let of = |further: u32| {
            let rank = k.add(rank, further);
            let at = k.mul_wide_add(rank, row_bytes, self.b);
            let at = Addr::<Global>::of(k.mul_wide_add(column, bytes, at));
            if bytes == 4 { k.load(at) } else { k.load_narrow(Width::B16, at) }
        };
        (0..each).map(of).collect()
    }

    /// The first of four ranks of a warp, and whether there are such; behind the last they are the last.
    fn four(&self, k: &mut Builder, thread: Thread, four: u32) -> (Reg<U32>, Pred) {
        let rank = k.mul(thread.warp, TOGETHER);
        let rank = k.add(rank, four * AT_ONCE);
        let exists = k.lt(rank, self.pairs.spec.rank);
        (k.min(rank, self.pairs.spec.rank - TOGETHER), exists)
    }

    /// Adds up the pieces, and leaves t at a place in shared memory. Threads have to meet before they look at it.
    pub fn leave(&self, k: &mut Builder, (row, thread): (Row, Thread), (asked, pieces): (&OfB, Reg<U64>), t: Reg<U32>) {
        // Who has multiplied with h knows that all of what the first product leaves is there.
        let late = asked.pieces.is_none().then(|| k.phase("load", |k| self.ask_pieces(k, (row, thread), pieces)));
        for (number, turns) in asked.pieces.iter().chain(&late).flatten().enumerate() {
            let (rank, exists) = self.four(k, thread, number as u32);
            let sums = [0; TOGETHER as usize].map(|_| k.variable(0.0));
            for (turn, piece) in turns.iter().enumerate() {
                let number = k.add(thread.lane, 32 * turn as u32);
                let there = k.lt(number, self.pairs.spec.pieces);
                for (&sum, &piece) in sums.iter().zip(piece) {
                    let piece = k.select(there, piece, 0.0);
                    let more = k.add(sum, piece);
                    k.set(sum, more);
                }
            }
            let t_of = sums.map(|sum| {
                let total = warp_sum(k, sum);
                k.mul(total, asked.scaling)
            });
            let first = k.eq(thread.lane, 0);
            let leaves = k.both(first, exists);
            let at = Addr::<Shared>::of(k.mul_add(rank, 4, t));
            k.when(leaves, |k| k.store_vector(at, t_of));
        }
    }

    /// B·t in a thread's columns: the lanes that have a column in common add up what each has of it.
    pub fn deltas(&self, k: &mut Builder, thread: Thread, asked: &OfB, t: Reg<U32>) -> Vec<Reg<F32>> {
        let spec = self.pairs.spec;
        let place = k.and(thread.lane, LANES - 1);
        let own = Addr::<Shared>::of(k.mul_add(place, spec.kept_bytes() / LANES, t));
        let pairs: Vec<[Reg<F32>; 2]> =
            (0..spec.rank / LANES / 2).map(|pair| k.load_vector(own.plus(8 * pair as i32))).collect();
        let of = |b: &Vec<Reg<U32>>| {
            let sum = k.variable(0.0);
            for (&t, &b) in pairs.iter().flatten().zip(b) {
                let b = number(k, spec.numbers, b);
                let more = k.fma(t, b, sum);
                k.set(sum, more);
            }
            butterfly(k, sum, LANES)
        };
        asked.b.iter().map(of).collect()
    }
}

/// The number in the low bits of a word, as a float.
fn number(k: &mut Builder, ty: Output, word: Reg<U32>) -> Reg<F32> {
    match ty {
        Output::F16 => {
            let [low, _] = k.unpack_pair(word.cast::<F16x2>());
            k.convert(low)
        }
        Output::BF16 => k.shl(word, 16).cast(),
        Output::F32 => word.cast(),
    }
}

/// The sum of as many neighbouring lanes, a power of two, the same in each.
fn butterfly(k: &mut Builder, value: Reg<F32>, lanes: u32) -> Reg<F32> {
    (0..lanes.ilog2()).rev().fold(value, |sum, step| {
        let other = k.shuffle(ShuffleMode::Butterfly, sum, 1 << step);
        k.add(sum, other)
    })
}

/// One, two or four words of shared memory.
fn shared_words(k: &mut Builder, count: u32, at: Addr<Shared>) -> Vec<Reg<U32>> {
    match count {
        1 => vec![k.load(at)],
        2 => k.load_vector::<U32, Shared, 2>(at).to_vec(),
        _ => k.load_vector::<U32, Shared, 4>(at).to_vec(),
    }
}
