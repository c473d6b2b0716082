//! Low-rank adapters beside the second product of few tokens ([`crate::phases::low_rank`]), as tiles are finished: the
//! first product's leave a piece of t, the second's add B·t.
//!
//! A tile's warpgroup asks for its part of A or B before its main loop. In the second product it asks for pieces there,
//! too, if registers suffice for them: it waits for them as its tokens' thread does. It does so only if the tile's row
//! has an adapter, which all of its threads know alike.

use op::{Epilogue, Output};
use ptx::{Builder, Error, F32, Pred, Reg, U32, U64};

use super::consume::Consumer;
use super::work::Tile;
use super::{MultiplySpec, STRIP_COLUMNS};
use crate::phases::experts::ExpertWork;
use crate::phases::low_rank::{self, Columns, Expand, LowRank, OfA, OfB, Row, Shrink, Thread};
use crate::phases::owner::Owner;

/// Columns of A of a thread, at most: with more, registers do not suffice.
const MOST_OF_A: u32 = 16;

impl MultiplySpec {
    fn low_rank(&self) -> Option<LowRank> {
        self.experts?.direct?.low_rank
    }

    /// Bytes in which t is kept for the warpgroups that finish tiles of the second product.
    pub(super) fn shrunk_bytes(&self) -> u32 {
        let second = self.experts.and_then(|experts| experts.direct).is_some_and(|direct| direct.sums.is_some());
        self.low_rank().filter(|_| second).map_or(0, |low_rank| self.division().along_n * low_rank.kept_bytes())
    }

    /// Whether tiles can be finished with what adapters add.
    pub(super) fn check_low_rank(&self) -> Result<(), Error> {
        let refuse = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        let Some(low_rank) = self.low_rank() else { return Ok(()) };
        let (rank, of_a) = (low_rank.rank, low_rank.columns(self.piece()));
        if !rank.is_multiple_of(8) || !(8..=op::adapters::MOST_RANK as u32).contains(&rank) {
            return refuse("the rank of adapters", rank, "a multiple of eight, at most 64");
        }
        if self.epilogue != Epilogue::Staged || self.under > 0 {
            return refuse("adapters with tiles stored otherwise", 1, "epilogue=staged and under=0");
        }
        if self.division().blocks > 1 || self.passes() > 1 {
            return refuse("blocks of rows of a warpgroup", self.division().blocks, "1 where few tokens have adapters");
        }
        if self.shrunk_bytes() == 0 && of_a > MOST_OF_A {
            return refuse("columns of A of a thread", of_a, "at most 16: a rank of 32 where there is one matrix");
        }
        Ok(())
    }
}

/// How a tile's row is multiplied with an adapter. Nothing of it is held through the tile's products.
pub(super) struct Beside {
    row: Row,
    thread: Thread,
    columns: Columns,
    /// Whether the row has an adapter, and the warpgroup finishes the tile.
    theirs: Pred,
    part: Part,
}

#[derive(Clone, Copy)]
enum Part {
    Shrink(Shrink),
    /// With the pieces, and the thread's first column.
    Expand(Expand, Reg<U64>, Reg<U32>),
}

/// What is asked for.
pub(super) enum Asked {
    A(OfA),
    B(OfB),
}

impl Beside {
    /// For a tile of a warpgroup, whose first column and number of columns these are, if rows may have adapters.
    pub fn new(
        k: &mut Builder,
        (work, consumer, tile): (&ExpertWork, &Consumer, &Tile),
        (first, width): (Reg<U32>, u32),
    ) -> Option<Self> {
        let (beside, pieces) = work.beside()?;
        let Owner::Expert(expert) = tile.owner else { return None };
        let adapter = expert.chosen(k, tile.first_token)?;
        let row = Row { entry: tile.first_token, expert: expert.index, adapter };
        let thread = Thread { number: consumer.thread, warp: consumer.quarter, lane: consumer.lane };
        let finishes = k.eq(consumer.along_k, 0);
        let theirs = expert.is_adapter(k, adapter)?;
        let theirs = k.both(theirs, finishes);
        let part = match *beside {
            low_rank::Beside::Shrink(shrink) => Part::Shrink(shrink),
            low_rank::Beside::Expand(expand) => {
                let quad = k.shr(consumer.lane, 2);
                let own = k.add(first, quad);
                Part::Expand(expand, pieces, k.mul_add(consumer.quarter, 8, own))
            }
        };
        let columns = Columns { first, n: tile.n, width };
        Some(Beside { row, thread, columns, theirs, part })
    }

    /// Before a tile's products: asks for what the row is multiplied with.
    pub fn ask(&self, k: &mut Builder) -> Asked {
        let ask = |k: &mut Builder| match self.part {
            Part::Shrink(shrink) => Asked::A(shrink.ask(k, self.row, self.thread, self.columns)),
            Part::Expand(expand, pieces, own) => {
                let strips = (0..self.columns.width).step_by(STRIP_COLUMNS as usize);
                let strips: Vec<Reg<U32>> = strips.map(|further| k.add(own, further)).collect();
                Asked::B(expand.ask(k, (self.row, self.thread), (&strips, self.columns.n), pieces))
            }
        };
        within(k, self.theirs, |k| k.phase("load", ask))
    }

    /// Before the warpgroup meets to stage a tile: leaves t at a place, in the second product.
    pub fn prepare(&self, k: &mut Builder, asked: &Asked, t: Reg<U32>) {
        if let (Part::Expand(expand, pieces, _), Asked::B(b)) = (self.part, asked) {
            k.if_(self.theirs, |k| expand.leave(k, (self.row, self.thread), (b, pieces), t));
        }
    }

    /// When it has met: what is added to the tile in the thread's column of each strip, in the second product.
    pub fn deltas(&self, k: &mut Builder, asked: &Asked, t: Reg<U32>) -> Vec<Reg<F32>> {
        let (Part::Expand(expand, ..), Asked::B(b)) = (self.part, asked) else { return Vec::new() };
        within(k, self.theirs, |k| k.phase("expand", |k| expand.deltas(k, self.thread, b, t)))
    }

    /// When it has met behind a staged tile of this type: leaves the tile's piece of t, in the first product.
    pub fn leave(&self, k: &mut Builder, asked: &Asked, staged: Reg<U32>, output: Output) {
        if let (Part::Shrink(shrink), Asked::A(a)) = (self.part, asked) {
            let row = (self.row, self.thread, self.columns);
            k.if_(self.theirs, |k| k.phase("shrink", |k| shrink.leave(k, row, a, (staged, output))));
        }
    }
}

/// `body` where a predicate holds. What it gives is there only then.
fn within<T>(k: &mut Builder, pred: Pred, body: impl FnOnce(&mut Builder) -> T) -> T {
    let end = k.label();
    k.branch_unless(pred, end);
    let given = body(k);
    k.place(end);
    given
}
