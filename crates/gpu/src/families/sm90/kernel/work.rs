//! The groups of a launch, and the tiles they are cut into.
//!
//! Tiles are numbered through all groups; within a group, tiles of the same columns are neighbours, so that blocks
//! which run together read the same weights. Groups are of one of two kinds. Those that the host knows stand in the
//! launch's table (`crate::table`). The experts of a layer, whose numbers of tokens only the device knows, have one
//! shape and stand in a layout in the device's memory (`sort` of the layer leaves it), which a block copies to shared
//! memory when it begins.
//!
//! To find a tile takes a bisection and three divisions: 1 to 4 % of a tile's time on an H200, in which consumers
//! multiply nothing. So where a block has several tiles, its consumers do not search: one lane of a warp that has
//! nothing else to do finds their tiles ahead and leaves them in a ring in shared memory, [`TileRing`]. The producers
//! search for themselves, since they are ahead of the tile that is multiplied anyway.

use ptx::{
    Addr, Barriers, Builder, F32, ParamTable, Pred, Reg, Shared, SharedRegion, SpecialRegister, TensorMapAddress,
    TensorMapParam, U32,
};

use super::{MultiplySpec, Products, Tokens, UNIT};
use crate::phases::experts::{ExpertTiles, ExpertWork};
use crate::phases::groups::{GroupTable, Groups};
use crate::phases::owner::Owner;
use crate::phases::table::at;
use op::Schedule;

/// The arguments that describe the work.
pub(super) struct Work {
    config: MultiplySpec,
    maps: TensorMapParam,
    pub groups: Groups,
    /// The gate's limit.
    pub clamp: Reg<F32>,
}

/// A tile that was searched for.
pub(super) struct Found {
    pub tile: Tile,
    place: Placed,
    /// The number of its tensor map.
    map: Reg<U32>,
    /// Tokens of the group's largest tile.
    pub most_tokens: Reg<U32>,
}

/// A tile, as far as all who work on it need to know.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub owner: Owner,
    /// First token of the tile, from where the tensor map and C begin.
    pub first_token: Reg<U32>,
    /// Tokens of the tile.
    pub tokens: Reg<U32>,
    /// First column of the tile.
    pub column: Reg<U32>,
    /// Columns of the group.
    pub n: Reg<U32>,
    /// Units along k of the group.
    pub depth: Reg<U32>,
    /// The part of k that this block sums.
    pub share: Share,
}

/// What cannot be told of a tile without a search: whose it is, and where.
#[derive(Clone, Copy)]
pub(super) struct Placed {
    /// The number of its group or expert.
    owner: Reg<U32>,
    first_token: Reg<U32>,
    tokens: Reg<U32>,
    column: Reg<U32>,
}

impl Placed {
    /// Registers for a tile, which until they are set is one without tokens.
    pub fn nowhere(k: &mut Builder) -> Self {
        let [owner, first_token, tokens, column] = [0; 4].map(|zero| k.variable(zero));
        Placed { owner, first_token, tokens, column }
    }

    pub fn set(&self, k: &mut Builder, other: &Placed) {
        let registers = |place: &Placed| [place.owner, place.first_token, place.tokens, place.column];
        for (to, from) in registers(self).into_iter().zip(registers(other)) {
            k.set(to, from);
        }
    }
}

/// The tile after the one that a consumer multiplies.
pub(super) struct Following<'a> {
    ring: &'a TileRing,
    /// Its number, and how many there are.
    number: Reg<U32>,
    tiles: Reg<U32>,
    /// Counts the block's tiles that were taken.
    taken: Reg<U32>,
    place: Placed,
}

impl Following<'_> {
    /// Whether there is one.
    pub fn exists(&self, k: &mut Builder) -> Pred {
        k.lt(self.number, self.tiles)
    }

    /// Takes it from the ring, if there is one. Once for each tile.
    pub fn take(&self, k: &mut Builder) {
        let exists = self.exists(k);
        k.if_(exists, |k| {
            let place = k.phase("search", |k| self.ring.take(k, self.taken));
            self.place.set(k, &place);
        });
    }
}

/// A part of k: some stages, and the units in them. Only the last stage of all may hold fewer units than the others.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// First stage, if it is not the group's first.
    pub first: Option<Reg<U32>>,
    /// Stages.
    pub stages: Reg<U32>,
    /// Units.
    pub units: Reg<U32>,
}

impl Work {
    pub fn declare(k: &mut Builder, config: MultiplySpec) -> Self {
        let maps = if config.experts.is_some() { config.widths().len() as u32 } else { config.groups };
        let maps = k.tensor_maps("tokens", maps);
        let matrices = if config.products == Products::Single { 1 } else { 2 };
        let (columns, threads, biased) = (config.columns, config.threads(), config.biased);
        let rounded = config.element == Tokens::E4m3;
        let tiles = ExpertTiles { columns, threads, matrices, biased, rounded, by_column: config.scales.is_fp8() };
        let groups = Groups::declare(k, config.groups, config.experts, tiles);
        Work { config, maps, groups, clamp: k.param("clamp") }
    }

    /// `body` for each tile of this block, which is searched for, with the tile's number among the block's own.
    pub fn each_tile(&self, k: &mut Builder, body: impl FnOnce(&mut Builder, Found, Reg<U32>)) {
        let find = |k: &mut Builder, number| match &self.groups {
            Groups::Table(table) => self.find(k, *table, number),
            Groups::Experts(work) => self.find_expert(k, work, number),
        };
        self.each(k, find, body);
    }

    /// The same for consumers, who take their tiles from the ring, if there is one.
    pub fn each_consumed(
        &self,
        k: &mut Builder,
        ring: Option<&TileRing>,
        body: impl FnOnce(&mut Builder, Tile, Reg<U32>),
    ) {
        match ring {
            None => self.each_tile(k, |k, found, round| body(k, found.tile, round)),
            Some(ring) => {
                let next = k.variable(0);
                let find = |k: &mut Builder, _| {
                    let place = ring.take(k, next);
                    self.placed(k, place)
                };
                self.each(k, |k, number| k.phase("search", |k| find(k, number)), body);
            }
        }
    }

    /// The same for consumers who begin with a tile before the one before it is stored: `enter` before the first tile,
    /// if there is one, and `body` for each with its place and what follows.
    pub fn each_overlapping(
        &self,
        k: &mut Builder,
        ring: &TileRing,
        enter: impl FnOnce(&mut Builder),
        body: impl FnOnce(&mut Builder, Placed, &Following<'_>),
    ) {
        let (block, blocks) = (k.special(SpecialRegister::CtaidX), k.special(SpecialRegister::NctaidX));
        let tiles = match &self.groups {
            Groups::Table(table) => table.tiles,
            Groups::Experts(work) => work.count(k),
        };
        let (number, taken) = (k.variable(block), k.variable(0));
        let [present, place] = [0; 2].map(|_| Placed::nowhere(k));
        let begin = |k: &mut Builder| {
            let first = k.phase("search", |k| ring.take(k, taken));
            present.set(k, &first);
            enter(k);
        };
        match self.groups {
            // There are no more blocks than tiles.
            Groups::Table(_) => begin(k),
            Groups::Experts(_) => {
                let any = k.lt(number, tiles);
                k.if_(any, begin);
            }
        }
        k.loop_while(
            |k| k.lt(number, tiles),
            |k| {
                let next = k.add(number, blocks);
                body(k, present, &Following { ring, number: next, tiles, taken, place });
                present.set(k, &place);
                k.set(number, next);
            },
        );
    }

    /// `body` for what is found of the number of each tile of this block, with the tile's number among the block's own:
    /// tiles are dealt to blocks strided.
    fn each<T>(
        &self,
        k: &mut Builder,
        find: impl FnOnce(&mut Builder, Reg<U32>) -> T,
        body: impl FnOnce(&mut Builder, T, Reg<U32>),
    ) {
        let table = match &self.groups {
            Groups::Table(table) => *table,
            Groups::Experts(work) => {
                let round = k.variable(0);
                return work.each_tile(k, |k, number| {
                    let found = find(k, number);
                    body(k, found, round);
                    let following = k.add(round, 1);
                    k.set(round, following);
                });
            }
        };
        let block = k.special(SpecialRegister::CtaidX);
        match self.config.schedule {
            Schedule::PerTile => {
                let found = find(k, block);
                let round = k.variable(0);
                body(k, found, round);
            }
            Schedule::SplitK => {
                let number = k.shr(block, 1);
                let found = find(k, number);
                let round = k.variable(0);
                body(k, found, round);
            }
            Schedule::Persistent => {
                let blocks = k.special(SpecialRegister::NctaidX);
                let (number, round) = (k.variable(block), k.variable(0));
                k.repeat_while(|k| {
                    let found = find(k, number);
                    body(k, found, round);
                    let (next, following) = (k.add(number, blocks), k.add(round, 1));
                    k.set(number, next);
                    k.set(round, following);
                    k.lt(number, table.tiles)
                });
            }
        }
    }

    /// Finds a tile of an expert's. All rows are one tensor, so there is one tensor map, or one for each width that
    /// tiles can have. A tile that reaches beyond its expert's rows reads the next one's and does not store what
    /// becomes of them.
    fn find_expert(&self, k: &mut Builder, work: &ExpertWork, number: Reg<U32>) -> Found {
        let found = work.locate(k, number);
        let (tile_tokens, map) = self.cut(k, found.m, found.token_tiles);
        let [column_tile, token_tile] = self.split(k, found.inside, found.token_tiles);
        let before = k.mul(token_tile, tile_tokens);
        let left = k.sub(found.m, before);
        let depth = work.depth(k);
        let place = Placed {
            owner: found.expert.index,
            first_token: k.add(found.first_row, before),
            tokens: k.min(left, tile_tokens),
            column: k.mul(column_tile, self.config.columns),
        };
        let tile = self.tile(k, Owner::Expert(found.expert), place, [work.n, depth]);
        Found { tile, place, map, most_tokens: tile_tokens }
    }

    /// The tile at a place.
    pub fn placed(&self, k: &mut Builder, place: Placed) -> Tile {
        let (owner, n, depth) = match &self.groups {
            Groups::Table(table) => {
                let (record, owner) = table.group(k, place.owner);
                (owner, k.table_word(record, at::N), self.depth(k, record))
            }
            Groups::Experts(experts) => (Owner::Expert(experts.expert(place.owner)), experts.n, experts.depth(k)),
        };
        self.tile(k, owner, place, [n, depth])
    }

    /// The tile at a place, with the columns and the depth of its group.
    fn tile(&self, k: &mut Builder, owner: Owner, place: Placed, [n, depth]: [Reg<U32>; 2]) -> Tile {
        let Placed { first_token, tokens, column, .. } = place;
        Tile { owner, first_token, tokens, column, n, depth, share: self.share(k, depth) }
    }

    /// Rows of an expert's tiles, as [`MultiplySpec::cut`] has it, and the number of the map that brings as many.
    fn cut(&self, k: &mut Builder, m: Reg<U32>, tiles: Reg<U32>) -> (Reg<U32>, Reg<U32>) {
        if self.config.widths().len() == 1 {
            return (k.variable(self.config.tokens), k.variable(0));
        }
        let step = self.config.width_step();
        let share = k.variable(m);
        let several = k.gt(tiles, 1);
        k.if_(several, |k| {
            let rounded = k.add(m, tiles);
            let rounded = k.sub(rounded, 1);
            let even = k.div(rounded, tiles);
            k.set(share, even);
        });
        let steps = k.add(share, step - 1);
        let steps = k.shr(steps, step.trailing_zeros());
        let least = self.config.least_width() / step;
        let wide = k.max(steps, least);
        (k.mul(steps, step), k.sub(wide, least))
    }

    /// Finds a tile in its group. A block beyond the last tile does the work of one of the first over again, and has no
    /// tokens to store.
    fn find(&self, k: &mut Builder, table: GroupTable, number: Reg<U32>) -> Found {
        let beyond = (self.config.resident() > 1).then(|| k.ge(number, table.tiles));
        let number = match beyond {
            Some(beyond) => {
                let again = k.sub(number, table.tiles);
                k.select(beyond, again, number)
            }
            None => number,
        };
        let (group, record, owner) = table.locate(k, number);
        let word = |k: &mut Builder, place| -> Reg<U32> { k.table_word(record, place) };
        let first_tile = word(k, at::FIRST_TILE);
        let (token_tiles, tile_tokens) = (word(k, at::TOKEN_TILES), word(k, at::TILE_TOKENS));
        let inside = k.sub(number, first_tile);
        let [column_tile, token_tile] = self.split(k, inside, token_tiles);
        let first_token = k.mul(token_tile, tile_tokens);
        let m = word(k, at::M);
        let left = k.sub(m, first_token);
        let tokens = k.min(left, tile_tokens);
        let tokens = beyond.map_or(tokens, |beyond| k.select(beyond, 0, tokens));
        let depth = self.depth(k, record);
        let column = k.mul(column_tile, self.config.columns);
        let place = Placed { owner: group, first_token, tokens, column };
        let n = word(k, at::N);
        Found { tile: self.tile(k, owner, place, [n, depth]), place, map: group, most_tokens: tile_tokens }
    }

    /// Units along k of a group.
    fn depth(&self, k: &mut Builder, record: ParamTable) -> Reg<U32> {
        let depth: Reg<U32> = k.table_word(record, at::K);
        let depth = k.add(depth, UNIT - 1);
        k.shr(depth, UNIT.trailing_zeros())
    }

    /// A tile's place along the columns and along the tokens. Few tokens make one tile, and a division takes long.
    fn split(&self, k: &mut Builder, inside: Reg<U32>, token_tiles: Reg<U32>) -> [Reg<U32>; 2] {
        let (column, token) = (k.variable(inside), k.variable(0));
        let several = k.gt(token_tiles, 1);
        k.if_(several, |k| {
            let (quotient, rest) = (k.div(inside, token_tiles), k.rem(inside, token_tiles));
            k.set(column, quotient);
            k.set(token, rest);
        });
        [column, token]
    }

    /// What of k this block sums: all of it, or one half, in whole stages.
    fn share(&self, k: &mut Builder, depth: Reg<U32>) -> Share {
        let units = self.config.units;
        let stages = k.add(depth, units - 1);
        let stages = k.shr(stages, units.trailing_zeros());
        if self.config.schedule != Schedule::SplitK {
            return Share { first: None, stages, units: depth };
        }
        let rank = k.special(SpecialRegister::ClusterCtaRank);
        let second = k.ne(rank, 0);
        let half = k.add(stages, 1);
        let half = k.shr(half, 1);
        let units_before = k.mul(half, units);
        let before = k.min(units_before, depth);
        let (rest, units_after) = (k.sub(stages, half), k.sub(depth, before));
        Share {
            first: Some(k.select(second, half, 0)),
            stages: k.select(second, rest, half),
            units: k.select(second, units_after, before),
        }
    }

    /// The tensor map of a tile's tokens.
    pub fn map(&self, k: &mut Builder, found: &Found) -> Reg<TensorMapAddress> {
        let one = match self.config.experts {
            None => self.config.groups == 1,
            Some(_) => self.config.widths().len() == 1,
        };
        if one { k.tensor_map_address(self.maps) } else { k.tensor_map_at(self.maps, found.map) }
    }
}

/// The block's next tiles, found by one lane for all consumers.
///
/// - *found*: one arrival by that lane, when a tile stands in its place. Consumers wait.
/// - *taken*: one arrival per consumer thread, when it has read the tile. The lane waits before it overwrites it.
///
/// A consumer reads every tile, so that it cannot miss a round of either barrier.
pub(super) struct TileRing {
    config: MultiplySpec,
    places: SharedRegion,
    found: Barriers,
    taken: Barriers,
}

/// Tiles that the ring holds: the one that consumers begin with, and the next.
const RING: u32 = 2;
/// Bytes of a tile there: its [`Placed`].
const PLACE_BYTES: u32 = 16;

impl TileRing {
    /// Bytes of shared memory, beginning at a multiple of 16; nothing where a block has but one tile. Nor where
    /// warpgroups share k: that is for so few tokens that blocks hardly have a second tile, and all wait for the first.
    pub fn bytes(config: &MultiplySpec) -> u32 {
        let several = config.schedule == Schedule::Persistent && !config.shares_k();
        if several { RING * (PLACE_BYTES + 2 * Barriers::STRIDE) } else { 0 }
    }

    pub fn declare(k: &mut Builder, config: MultiplySpec) -> Option<Self> {
        (Self::bytes(&config) > 0).then(|| TileRing {
            config,
            places: k.shared("tiles", RING * PLACE_BYTES, 16),
            found: k.barriers("found", RING),
            taken: k.barriers("taken", RING),
        })
    }

    /// The first thread makes the barriers.
    pub fn prepare(&self, k: &mut Builder, thread: Reg<U32>) {
        let first = k.eq(thread, 0);
        for (barriers, arrivals) in [(self.found, 1), (self.taken, 128 * self.config.warpgroups())] {
            (0..RING).for_each(|place| k.when(first, |k| k.barrier_init(barriers.at(place), arrivals)));
        }
    }

    /// One lane finds all of the block's tiles.
    pub fn fill(&self, k: &mut Builder, work: &Work) {
        let elected = k.elect();
        k.if_(elected, |k| {
            work.each_tile(k, |k, found, round| {
                let (place, parity) = self.turn(k, round);
                let before = k.xor(parity, 1);
                let taken = self.barrier(k, self.taken, place);
                k.wait(taken, before);
                let Placed { owner, first_token, tokens, column } = found.place;
                let at = self.place(k, place);
                k.store_vector(at, [owner, first_token, tokens, column]);
                let found = self.barrier(k, self.found, place);
                k.arrive(found);
            });
        });
    }

    /// A consumer's next tile, whose number among the block's own is counted in `next`.
    fn take(&self, k: &mut Builder, next: Reg<U32>) -> Placed {
        let (place, parity) = self.turn(k, next);
        let following = k.add(next, 1);
        k.set(next, following);
        let found = self.barrier(k, self.found, place);
        k.wait(found, parity);
        let at_place = self.place(k, place);
        let [owner, first_token, tokens, column] = k.load_vector(at_place);
        let taken = self.barrier(k, self.taken, place);
        k.arrive(taken);
        Placed { owner, first_token, tokens, column }
    }

    /// Where a block's tile of this number stands, and the parity of its round.
    fn turn(&self, k: &mut Builder, round: Reg<U32>) -> (Reg<U32>, Reg<U32>) {
        let rounds = k.shr(round, RING.trailing_zeros());
        (k.and(round, RING - 1), k.and(rounds, 1))
    }

    fn place(&self, k: &mut Builder, place: Reg<U32>) -> Addr<Shared> {
        let base = k.shared_address(self.places);
        Addr::of(k.mul_add(place, PLACE_BYTES, base))
    }

    fn barrier(&self, k: &mut Builder, which: Barriers, place: Reg<U32>) -> Addr<Shared> {
        let base = k.shared_address(which.region());
        Addr::of(k.mul_add(place, Barriers::STRIDE, base))
    }
}
