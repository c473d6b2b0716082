//! Who computes which tile.
//!
//! Each worker has a share of the tiles, a stretch of neighbours that costs as much as any other, and takes them from
//! its beginning: so it reads weights in one long stream, and knows what it will read next. Threads are not equally
//! fast, and some never come. A worker that has none left takes the later half of what the one with the most tiles has.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The tiles that are left, by worker.
pub(super) struct Shares(Vec<Share>);

/// A range of tiles, its end in the upper half. No tile comes back, so no range is ever the same again: a worker that
/// has seen one may replace it if it is still there. Each has two lines of its own, since neighbouring lines are
/// fetched together.
#[repr(align(128))]
struct Share(AtomicU64);

fn packed(tiles: Range<usize>) -> u64 {
    (tiles.end as u64) << 32 | tiles.start as u64
}

fn range(packed: u64) -> Range<usize> {
    (packed & 0xFFFF_FFFF) as usize..(packed >> 32) as usize
}

impl Share {
    fn left(&self) -> Range<usize> {
        range(self.0.load(Ordering::Relaxed))
    }

    /// Replaces what is left, unless somebody was faster.
    fn replace(&self, seen: &Range<usize>, by: Range<usize>) -> bool {
        let (seen, by) = (packed(seen.clone()), packed(by));
        self.0.compare_exchange(seen, by, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl Shares {
    /// Shares of the tiles that have these costs, of which there are at most 2³².
    pub(super) fn new(costs: impl Iterator<Item = usize> + Clone, workers: usize) -> Self {
        let total: usize = costs.clone().sum();
        let (mut ends, mut sum, mut worker) = (vec![0; workers], 0, 0);
        let behind = |worker: usize| (2 * total) as u128 * (worker + 1) as u128;
        for (index, cost) in costs.enumerate() {
            // A tile is the worker's in whose part of all costs its middle lies. One division per tile would take as
            // long as all else that is done here.
            while worker + 1 < workers && (2 * sum + cost) as u128 * workers as u128 >= behind(worker) {
                worker += 1;
            }
            ends[worker] = index + 1;
            sum += cost;
        }
        let mut start = 0;
        let share = |end: usize| {
            let tiles = start..end.max(start);
            start = tiles.end;
            Share(AtomicU64::new(packed(tiles)))
        };
        Self(ends.into_iter().map(share).collect())
    }

    /// The next tile of a worker, or one that another would have come to later.
    pub(super) fn take(&self, worker: usize) -> Option<usize> {
        let own = &self.0[worker];
        loop {
            let left = own.left();
            if !left.is_empty() {
                if own.replace(&left, left.start + 1..left.end) {
                    return Some(left.start);
                }
                continue;
            }
            let (busiest, rest) =
                self.0.iter().map(|share| (share, share.left())).max_by_key(|(_, rest)| rest.len())?;
            if rest.is_empty() {
                return None;
            }
            let half = rest.start + rest.len() / 2;
            if busiest.replace(&rest, rest.start..half) {
                // Nobody else writes to a share that is empty.
                own.0.store(packed(half + 1..rest.end), Ordering::Relaxed);
                return Some(half);
            }
        }
    }

    /// What the worker will most likely take after that.
    pub(super) fn next(&self, worker: usize) -> Option<usize> {
        self.0[worker].left().next()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn shares_are_neighbours_and_cost_alike() {
        let costs = [5, 5, 5, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
        let shares = Shares::new(costs.into_iter(), 4);
        let ranges: Vec<_> = shares.0.iter().map(Share::left).collect();
        assert_eq!(ranges, [0..2, 2..3, 3..8, 8..16]);
        let shares = Shares::new([7].into_iter(), 3);
        assert_eq!(shares.0.iter().map(|share| share.left().len()).sum::<usize>(), 1);
    }

    #[test]
    fn a_worker_alone_computes_the_shares_of_those_who_never_come() {
        for (tiles, workers) in [(0, 1), (1, 4), (16, 4), (1000, 7)] {
            let shares = Shares::new((0..tiles).map(|tile| tile % 5 + 1), workers);
            let mut taken: Vec<_> = std::iter::from_fn(|| shares.take(workers - 1)).collect();
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..tiles), "{tiles} tiles, {workers} workers");
        }
    }

    #[test]
    fn a_worker_knows_its_next_tile_unless_that_is_taken_from_it() {
        let shares = Shares::new([1; 8].into_iter(), 2);
        assert_eq!((shares.take(0), shares.next(0)), (Some(0), Some(1)));
        assert_eq!([(); 4].map(|()| shares.take(1)), [4, 5, 6, 7].map(Some));
        // The other one has none left and takes the later half of three.
        assert_eq!((shares.take(1), shares.next(1)), (Some(2), Some(3)));
        assert_eq!((shares.take(0), shares.next(0)), (Some(1), None));
    }

    #[test]
    fn every_tile_is_taken_once_by_workers_that_take_from_each_other() {
        let (shares, taken) = (Shares::new([1; 20_000].into_iter(), 4), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (shares, taken) = (&shares, &taken);
                scope.spawn(move || {
                    let own: Vec<usize> = std::iter::from_fn(|| shares.take(worker)).collect();
                    taken.lock().unwrap().extend(own);
                });
            }
        });
        let mut taken = taken.into_inner().unwrap();
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..20_000));
    }
}
