//! Which expert and which adapter rows have, and which row of x: by what the sort has left; or, where tokens are few
//! and rows are entries, by what a block finds out itself, as the products do ([`crate::phases::direct`]).

use ptx::{Addr, Builder, Global, Pred, Reg, U32, U64};

use crate::phases::direct::Source;
use crate::phases::route::Ids;

/// The arguments.
pub(super) struct Whose {
    by: By,
    /// The adapters of rows, or of tokens.
    chosen: Reg<U64>,
    /// Rows, and experts.
    pub rows: Reg<U32>,
    pub experts: Reg<U32>,
    /// Adapters.
    count: Reg<U32>,
}

enum By {
    /// What the sort has left; with the entries of rows, and how many a token has, where x has a row per token.
    Sort { order: Option<(Reg<U64>, Reg<U32>)>, owners: Reg<U64>, layout: Reg<U64> },
    /// What is found here of entries, of which a token has so many.
    Entries { source: Source, top: Reg<U32> },
}

/// What is known of a row.
pub(super) struct Found {
    /// Its row of x.
    pub x: Reg<U32>,
    pub expert: Reg<U32>,
    pub adapter: Reg<U32>,
    /// Whether it is somebody's, and has an adapter.
    pub adapted: Pred,
}

/// A word of an array.
pub(super) fn word(k: &mut Builder, base: Reg<U64>, index: Reg<U32>) -> Reg<U32> {
    let at = k.mul_wide_add(index, 4, base);
    k.load::<U32, Global>(Addr::of(at))
}

impl Whose {
    /// Declares them, for rows that are entries found by such ids; or for those of the sort, of which x may have one
    /// per token.
    pub fn declare(k: &mut Builder, entries: Option<Ids>, per_token: bool) -> Self {
        let (by, chosen) = match entries {
            Some(ids) => (By::Entries { source: Source::declare(k, ids), top: k.param("top") }, k.pointer("chosen")),
            None => {
                let order = per_token.then(|| (k.pointer("order"), k.param("top")));
                let [owners, chosen, layout] = ["owners", "chosen", "layout"].map(|name| k.pointer(name));
                (By::Sort { order, owners, layout }, chosen)
            }
        };
        let [rows, experts, count] = ["rows", "experts", "count"].map(|name| k.param(name));
        Whose { by, chosen, rows, experts, count }
    }

    /// Looks a row up, which all lanes do for the same one where rows are entries. Behind the last row there is room
    /// for what nobody has written, and what that says is not looked at.
    pub fn find(&self, k: &mut Builder, row: Reg<U32>, lane: Reg<U32>) -> Found {
        match &self.by {
            By::Sort { order, owners, layout } => self.find_sorted(k, row, *order, [*owners, *layout]),
            By::Entries { source, top } => {
                let token = k.div(row, *top);
                let first = k.mul(token, *top);
                let which = k.sub(row, first);
                let adapter = k.phase("find", |k| word(k, self.chosen, token));
                let expert = k.phase("find", |k| source.expert(k, row, [token, which, lane]));
                let (exists, known) = (k.lt(expert, self.experts), k.lt(adapter, self.count));
                Found { x: token, expert, adapter, adapted: k.both(exists, known) }
            }
        }
    }

    fn find_sorted(
        &self,
        k: &mut Builder,
        row: Reg<U32>,
        order: Option<(Reg<U64>, Reg<U32>)>,
        [owners, layout]: [Reg<U64>; 2],
    ) -> Found {
        let last = k.sub(self.rows, 1);
        let place = k.min(row, last);
        let (end, adapter, expert, entry) = k.phase("find", |k| {
            let end = word(k, layout, self.experts);
            let (adapter, expert) = (word(k, self.chosen, place), word(k, owners, place));
            (end, adapter, expert, order.map(|(order, top)| (word(k, order, place), top)))
        });
        let x = entry.map_or(place, |(entry, top)| {
            let exists = k.lt(row, end);
            let entry = k.select(exists, entry, 0);
            k.div(entry, top)
        });
        let (exists, known) = (k.lt(row, end), k.lt(adapter, self.count));
        Found { x, expert, adapter, adapted: k.both(exists, known) }
    }

    /// The last row.
    pub fn last(&self, k: &mut Builder) -> Reg<U32> {
        k.sub(self.rows, 1)
    }
}
