//! Tiles that are stored under the products of the next one.
//!
//! A consumer has twice the sums. When a tile is multiplied it sets its sums aside, and begins with the next tile at
//! once: that one's place has long been taken from the ring, the words of its first stage were read and dequantised
//! under the last products of the tile before, and its first product replaces the sums. Between the products of its
//! first units, [`MultiplySpec::under`](super::MultiplySpec) of them, the tile that was set aside leaves for C, a few
//! values at a time. So the tensor cores wait for what is in flight at the end of a tile and for sums to be copied, and
//! not for stores or the search for a tile. What is summed in which order stays the same, to the bit.
//!
//! A warp has but a few tens of cycles between two multiplications before the tensor cores wait for it. So a step is
//! one row of the thread's, stored from where it is, without a branch; gates, or the way through shared memory, take
//! longer, and with them tiles were slower than those that are stored before the next.
//!
//! The sums that are set aside are never those of a multiplication. With two sets that take turns there would be no
//! copies, but every main loop twice.

use ptx::{Builder, F32, Reg};

use super::Parts;
use super::consume::{Ahead, Consumer, Unit, Walk};
use super::epilogue::Leaving;
use super::work::{Following, Placed, Tile, TileRing};

/// Multiplications of a unit that something may stand behind.
const SLICES: usize = 4;

/// A tile whose sums are complete, and which is not stored yet.
struct Aside {
    place: Placed,
    sums: Vec<Vec<Reg<F32>>>,
}

impl Consumer {
    /// All of the block's tiles.
    pub fn overlap(&self, k: &mut Builder, parts: &Parts, ring: &TileRing) {
        let turn = parts.pipe.start(k);
        let walk = Walk::new(k, turn);
        let aside = Aside {
            place: Placed::nowhere(k),
            sums: self.sums.iter().map(|sums| sums.iter().map(|_| k.variable(0.0)).collect()).collect(),
        };
        let enter = |k: &mut Builder| {
            walk.find(k, parts);
            self.enter(k, parts, &walk, &walk.here);
            self.begin(k);
        };
        parts.work.each_overlapping(k, ring, enter, |k, place, following| {
            let tile = parts.work.placed(k, place);
            self.choose_width(k, &self.config.widths(), &tile, &mut |k, width| {
                self.tile_above(k, parts, &walk, (&tile, following), &aside, width);
            });
            aside.place.set(k, &place);
        });
        let mut leaving = aside.leaving(parts, self);
        (0..leaving.steps()).for_each(|_| leaving.step(k));
    }

    /// The products of a tile, while the one that was set aside leaves; then sets this one's sums aside.
    fn tile_above(
        &self,
        k: &mut Builder,
        parts: &Parts,
        walk: &Walk,
        (tile, following): (&Tile, &Following<'_>),
        aside: &Aside,
        width: u32,
    ) {
        let units = self.config.units;
        let unit = |place, last, replaces| Unit { pass: 0, width, place, last, replaces };
        let ahead = |place| if place + 1 < units { Ahead::Unit(None) } else { Ahead::Stage };
        let [stages, last_units] = self.own_stages(k, parts, walk.turn(), &tile.share);
        let mut leaving = aside.leaving(parts, self);
        let steps = leaving.steps();
        let (places, mut place, mut taken) = (SLICES * self.config.under as usize, 0, 0);
        let mut beside = |k: &mut Builder| {
            if place == 0 {
                following.take(k);
            }
            place += 1;
            let due = steps * place / places;
            (taken..due).for_each(|_| leaving.step(k));
            taken = due;
        };
        let stages_above = self.config.under / units;
        for (stage, place) in (0..stages_above).flat_map(|stage| (0..units).map(move |place| (stage, place))) {
            let unit = unit(place, false, stage == 0 && place == 0);
            self.unit(k, parts, walk, unit, ahead(place), &mut beside);
        }
        let before_last = k.sub(stages, stages_above + 1);
        k.repeat(before_last, |k, _| {
            for place in 0..units {
                self.unit(k, parts, walk, unit(place, false, false), ahead(place), &mut |_| {});
            }
        });
        let multiplied = k.label();
        for place in 0..units {
            let more = (place + 1 < units).then(|| k.gt(last_units, place + 1));
            let ahead = Ahead::Tile(more, following.exists(k));
            self.unit(k, parts, walk, unit(place, true, false), ahead, &mut |_| {});
            more.into_iter().for_each(|more| k.branch_unless(more, multiplied));
        }
        k.place(multiplied);
        k.wgmma_wait(0);
        k.phase("release", |k| parts.pipe.release(k, &walk.here));
        walk.here.set(k, &walk.next);
        for (to, from) in aside.sums.iter().zip(&self.sums) {
            to.iter().zip(from).take(width as usize / 2).for_each(|(&to, &from)| k.set(to, from));
        }
    }
}

impl Aside {
    fn leaving<'a>(&'a self, parts: &'a Parts, consumer: &'a Consumer) -> Leaving<'a> {
        Leaving::new(parts, consumer, self.place, &self.sums)
    }
}
