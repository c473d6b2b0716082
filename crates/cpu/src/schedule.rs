//! The order of the work, the same for every instruction set.
//!
//! A problem is cut into tiles of C over all its groups, largest first: a group without tokens has no tiles and costs
//! nothing. Each thread has a share of neighbours and helps others when that is done (`shares`), or (the *persistent*
//! schedule) takes tiles in a fixed stride and no others.
//! Inside a tile the strategy decides:
//!
//! - *two-pass*: no tile ever sees both matrices; the whole gate product goes to a plane of f32, then the whole up
//!   product, then the planes are joined;
//! - *sequential*: all of K for gate, then all of K for up;
//! - *interleaved*: at every step of K a slab holds panels of both matrices;
//! - *ping-pong*: the same, and while one slab is multiplied a later one is expanded.
//!
//! The order in which an element's products are added depends on the configuration alone, so results are the same to
//! the bit for any number of threads.
//!
//! Working memory, beside the operands: prepared tokens (at most 6 bytes per activation, their rows in whole groups of
//! the kernel's); for each thread the slabs (`stages` × panels × `depth`), the sums of one tile, one row of results if
//! those are staged, and a copy of the tile's tokens if it takes at most 2 MB; for two-pass two f32 planes of C's size;
//! each piece above 512 KB in whole large pages. Nothing grows with N·K.

use std::ops::Range;
use std::sync::Mutex;

use format::BLOCK;
use half::f16;

use super::environment::in_default_mode;
use super::expansion::{Expansion, Sources};
use super::finish::Finish;
use super::kernel::{Kernel, Product, TileStream};
use super::memory::{Arena, Parts};
use super::pack::{CHUNK, CHUNK_BLOCKS, COLUMNS, PanelMatrix, Panels};
use super::shares::Shares;
use super::slab::Slab;
use super::source::GroupTokens;
use super::sums::{Lanes, MatrixSums, SumLayout};
use super::target::SharedTarget;
use op::interrupt::Interrupt;
use op::{Config, Epilogue, Gate, Operands, Problem, Result, Schedule, Shape, Strategy, Target, Team};

/// Bytes of a tile's tokens up to which each thread prepares them for itself, whenever it comes to others: that takes
/// no longer than to have the team prepare all of them first.
const FEW_TOKENS: usize = 1 << 17;

/// Pieces of tokens to be prepared, for each thread.
const PREPARED_PIECES: usize = 4;

/// Bytes of a tile's tokens up to which each thread works on a copy of its own: the size of an L2.
pub(super) const OWN_TOKENS: usize = 2 << 20;

/// Computes a problem.
pub(super) fn run<K: Kernel>(
    kernel: &K,
    problem: &Problem,
    config: &Config,
    panels: &[Panels],
    operands: Operands<'_, '_, '_>,
    team: &Team,
) -> Result<()> {
    let sources: Vec<GroupTokens<'_>> = {
        let pairs = operands.activations.iter().zip(operands.largest);
        pairs.map(|(activations, &largest)| GroupTokens { activations, largest }).collect()
    };
    let arena = team.kept::<Arena>();
    let shapes = problem.groups();
    let many = tile_tokens(kernel, shapes, config) * size_of::<K::Token>() > FEW_TOKENS;
    let tokens = many.then(|| prepare(kernel, problem, &sources, team, &arena)).transpose()?;
    let walk = |matrices: Range<usize>, gate: Gate, targets: &[SharedTarget<'_>]| {
        let parts = shapes.iter().zip(panels).zip(&sources).zip(targets).enumerate();
        let mut tokens = tokens.as_ref().map(Parts::each);
        let groups: Vec<Group<'_, K>> = parts
            .map(|(group, (((&shape, panels), &source), target))| Group {
                shape,
                matrices: &panels.matrices()[matrices.clone()],
                addends: operands.addends.get(group).map_or(&[], |planes| &planes[matrices.clone()]),
                source,
                tokens: tokens.as_mut().and_then(Iterator::next),
                target,
            })
            .collect();
        walk(kernel, config, gate, &groups, team, &arena)
    };
    if config.strategy == Strategy::TwoPass && problem.matrices() == 2 {
        let mut planes = [Plane::new(&arena, shapes)?, Plane::new(&arena, shapes)?];
        for (matrix, plane) in planes.iter_mut().enumerate() {
            walk(matrix..matrix + 1, Gate::None, &share(&mut plane.targets(), shapes))?;
        }
        let [gate, up] = &mut planes;
        join(problem, gate, up, &share(operands.targets, shapes), team);
        Ok(())
    } else {
        walk(0..problem.matrices(), problem.gate(), &share(operands.targets, shapes))
    }
}

/// Every group's target, to be written by several threads.
fn share<'a>(targets: &'a mut [Target<'_>], shapes: &[Shape]) -> Vec<SharedTarget<'a>> {
    targets.iter_mut().zip(shapes).map(|(target, s)| SharedTarget::new(target, s.m, s.n)).collect()
}

/// One group's operands, as the tiles see them.
struct Group<'a, K: Kernel> {
    shape: Shape,
    matrices: &'a [PanelMatrix],
    /// What is added to each matrix's sums, `[m, n]`, if anything is.
    addends: &'a [&'a [f32]],
    source: GroupTokens<'a>,
    /// The prepared tokens, where threads do not prepare them for themselves.
    tokens: Option<&'a [K::Token]>,
    target: &'a SharedTarget<'a>,
}

/// Elements of the prepared tokens of one tile, at most.
fn tile_tokens<K: Kernel>(kernel: &K, shapes: &[Shape], config: &Config) -> usize {
    let largest = |size: fn(&Shape) -> usize| shapes.iter().map(size).max().unwrap_or(0);
    let rows = config.tile.tokens.min(largest(|shape| shape.m)) * kernel.parts();
    rows.div_ceil(K::ROWS).saturating_mul(K::group_len(largest(|shape| shape.k) / BLOCK))
}

/// Prepares the tokens of every group.
fn prepare<'a, K: Kernel>(
    kernel: &K,
    problem: &Problem,
    sources: &[GroupTokens<'_>],
    team: &Team,
    arena: &'a Arena,
) -> Result<Parts<'a, K::Token>> {
    let group_len = |shape: &Shape| K::group_len(shape.k / BLOCK);
    let length = |shape: &Shape| (shape.m * kernel.parts()).div_ceil(K::ROWS) * group_len(shape);
    let lengths: Vec<usize> = problem.groups().iter().map(length).collect();
    let mut tokens = Parts::new(arena, lengths)?;
    let groups = tokens.each_mut().zip(problem.groups()).zip(sources).flat_map(|((tokens, shape), &source)| {
        tokens.chunks_mut(group_len(shape)).enumerate().map(move |(group, out)| (source, group, out))
    });
    let mut groups: Vec<_> = groups.collect();
    // A group of rows takes a microsecond or two: threads that asked for each would wait for each other.
    let piece = groups.len().div_ceil(PREPARED_PIECES * team.count()).max(1);
    team.for_each(groups.chunks_mut(piece), |piece| {
        in_default_mode(|| piece.iter_mut().for_each(|(source, group, out)| kernel.prepare(*source, *group, out)));
    });
    drop(groups);
    Ok(tokens)
}

/// A tile of one group's C.
struct Tile {
    group: usize,
    tokens: Range<usize>,
    columns: Range<usize>,
}

/// Every tile of every group, the costliest first. Within a group, a tile of tokens meets every column before the next
/// one does: the tokens stay in a cache, the weights pass by in one long stream.
fn tiles<K: Kernel>(groups: &[Group<'_, K>], config: &Config) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for (group, Group { shape, .. }) in groups.iter().enumerate() {
        for token in (0..shape.m).step_by(config.tile.tokens) {
            for column in (0..shape.n).step_by(config.tile.columns) {
                tiles.push(Tile {
                    group,
                    tokens: token..shape.m.min(token + config.tile.tokens),
                    columns: column..shape.n.min(column + config.tile.columns),
                });
            }
        }
    }
    tiles.sort_by_key(|tile| std::cmp::Reverse(panel_cost(groups, tile)));
    tiles
}

/// What a panel of a tile costs, in chunks times groups of rows.
fn panel_cost<K: Kernel>(groups: &[Group<'_, K>], tile: &Tile) -> usize {
    tile.tokens.len().div_ceil(K::ROWS) * groups[tile.group].shape.k.div_ceil(CHUNK)
}

/// Lets the threads take tiles until none is left.
fn walk<K: Kernel>(
    kernel: &K,
    config: &Config,
    gate: Gate,
    groups: &[Group<'_, K>],
    team: &Team,
    arena: &Arena,
) -> Result<()> {
    let tiles = tiles(groups, config);
    let largest = |size: fn(&Tile) -> usize| tiles.iter().map(size).max().unwrap_or(0);
    let rows = (largest(|tile| tile.tokens.len()) * kernel.parts()).next_multiple_of(K::ROWS);
    let panels = largest(|tile| tile.columns.len()).div_ceil(COLUMNS);
    // Taken before the threads start, so that a lack of memory is an error of the run.
    let workers = team.count().min(tiles.len());
    let depth = groups.iter().map(|group| K::group_len(group.shape.k / BLOCK)).max().unwrap_or(0);
    let prepared = groups.iter().all(|group| group.tokens.is_some());
    let tokens = OwnTokens::<K>::room(workers, rows / K::ROWS * depth, prepared);
    let mut room = Room::<K>::new(config, arena, workers, [rows, panels, tokens])?;
    let costs = tiles.iter().map(|tile| panel_cost(groups, tile) * tile.columns.len().div_ceil(COLUMNS));
    let (scratch, shares) = (Mutex::new(room.cut(config).enumerate()), Shares::new(costs, workers));
    let interrupt = Interrupt::of_this_call();
    let work = || {
        let Some((worker, mut scratch)) = scratch.lock().ok().and_then(|mut scratch| scratch.next()) else { return };
        let _ready = kernel.enter();
        let mut compute = |index: usize, next: Option<usize>| {
            scratch.compute(kernel, groups, &tiles[index], next.and_then(|next| tiles.get(next)), gate)
        };
        let go_on = |_: &usize| !interrupt.is_raised();
        if config.schedule == Schedule::Persistent {
            let own = (worker..tiles.len()).step_by(workers).take_while(go_on);
            own.for_each(|index| compute(index, Some(index + workers)));
        } else {
            let taken = std::iter::from_fn(|| shares.take(worker)).take_while(go_on);
            taken.for_each(|index| compute(index, shares.next(worker)));
        }
    };
    team.run(|| in_default_mode(work));
    interrupt.check()
}

/// A thread's own copy of the tokens of its tile, which it has prepared itself where they are few. Two cores that read
/// the same lines again and again slow each other down, even where both have them in their L2 caches; a copy costs one
/// reading, and a tile of tokens serves many tiles of C.
struct OwnTokens<'a, K: Kernel> {
    memory: &'a mut [K::Token],
    /// The group and the first token that the copy is of.
    of: Option<(usize, usize)>,
}

impl<K: Kernel> OwnTokens<'_, K> {
    /// Elements to set aside, of those that a tile's tokens are: none where they are prepared and one thread has them
    /// to itself, or where they are too many to stay in its cache.
    fn room(workers: usize, elements: usize, prepared: bool) -> usize {
        let copied = workers > 1 && elements * size_of::<K::Token>() <= OWN_TOKENS;
        if copied || !prepared { elements } else { 0 }
    }

    /// The tokens of some groups of rows, prepared, or copied if there is room for a copy, if they are not there yet.
    fn get<'t>(
        &'t mut self,
        (kernel, group): (&K, &Group<'t, K>),
        of: (usize, usize),
        rows: Range<usize>,
    ) -> &'t [K::Token] {
        let group_len = K::group_len(group.shape.k / BLOCK);
        let prepared = group.tokens.map(|tokens| &tokens[rows.start * group_len..rows.end * group_len]);
        let length = rows.len() * group_len;
        if let Some(tokens) = prepared.filter(|_| length > self.memory.len()) {
            return tokens;
        }
        let own = &mut self.memory[..length];
        if self.of != Some(of) {
            match prepared {
                Some(tokens) => own.copy_from_slice(tokens),
                None => {
                    let groups = own.chunks_exact_mut(group_len).zip(rows);
                    groups.for_each(|(out, row)| kernel.prepare(group.source, row, out));
                }
            }
            self.of = Some(of);
        }
        own
    }
}

/// What all threads work in, taken at once.
struct Room<'a, K: Kernel> {
    slabs: Parts<'a, K::Block>,
    sums: Parts<'a, Lanes>,
    staging: Parts<'a, Lanes>,
    tokens: Parts<'a, K::Token>,
}

impl<'a, K: Kernel> Room<'a, K> {
    fn new(config: &Config, arena: &'a Arena, workers: usize, [rows, panels, tokens]: [usize; 3]) -> Result<Self> {
        let slabs = (0..workers).flat_map(|_| 0..config.stages);
        let slabs = slabs.map(|stage| Slab::<K::Block>::room(stage, K::PANELS, config.depth / BLOCK)).collect();
        // Matrices that are walked together have all their sums in the first.
        let sums = match config.strategy {
            Strategy::Sequential => [rows * panels, rows * panels],
            _ => [2 * rows * panels, 0],
        };
        let staging = if config.epilogue == Epilogue::Staged { panels } else { 0 };
        Ok(Self {
            slabs: Parts::at_pages(arena, slabs)?,
            sums: Parts::at_pages(arena, sums.repeat(workers))?,
            staging: Parts::at_pages(arena, vec![staging; workers])?,
            tokens: Parts::at_pages(arena, vec![tokens; workers])?,
        })
    }

    /// What each thread works in.
    fn cut<'s>(&'s mut self, config: &'s Config) -> impl Iterator<Item = Scratch<'s, K>> {
        let (mut slabs, mut sums) = (self.slabs.each_mut(), self.sums.each_mut());
        self.staging.each_mut().zip(self.tokens.each_mut()).map(move |(staging, tokens)| Scratch {
            config,
            slabs: (slabs.by_ref().take(config.stages).enumerate())
                .map(|(stage, memory)| Slab::new(memory, stage, config.depth / BLOCK))
                .collect(),
            sums: [sums.next().unwrap_or_default(), sums.next().unwrap_or_default()],
            staging: Some(staging).filter(|_| config.epilogue == Epilogue::Staged),
            tokens: OwnTokens { memory: tokens, of: None },
        })
    }
}

/// What one thread works in: slabs, the sums of a tile for each matrix, a row of results where those are staged, and
/// its own copy of the tile's tokens.
struct Scratch<'a, K: Kernel> {
    config: &'a Config,
    slabs: Vec<Slab<'a, K::Block>>,
    sums: [&'a mut [Lanes]; 2],
    staging: Option<&'a mut [Lanes]>,
    tokens: OwnTokens<'a, K>,
}

impl<K: Kernel> Scratch<'_, K> {
    /// Computes a tile and writes it to C; `next` is the tile that will most likely follow.
    fn compute(&mut self, kernel: &K, groups: &[Group<'_, K>], tile: &Tile, next: Option<&Tile>, gate: Gate) {
        let group = &groups[tile.group];
        let together = if self.config.strategy == Strategy::Sequential { 1 } else { group.matrices.len() };
        let layout = SumLayout {
            rows: (tile.tokens.len() * kernel.parts()).next_multiple_of(K::ROWS),
            matrices: together,
            panels: tile.columns.len().div_ceil(COLUMNS),
            slab: (K::PANELS / together).max(1),
        };
        let group_len = K::group_len(group.shape.k / BLOCK);
        let first = tile.tokens.start * kernel.parts() / K::ROWS;
        let rows = first..first + layout.rows / K::ROWS;
        let tokens = self.tokens.get((kernel, group), (tile.group, tile.tokens.start), rows);
        let next = next.map(|next| (&groups[next.group], next));
        for (sums, matrices) in self.sums.iter_mut().zip(group.matrices.chunks(together)) {
            let walk = TileWalk { kernel, config: self.config, group, tile, next, tokens, group_len, matrices, layout };
            walk.accumulate(&mut self.slabs, &mut sums[..layout.len()]);
        }
        let of = |matrix: usize| MatrixSums {
            sums: &self.sums[matrix / together][..layout.len()],
            layout,
            matrix: matrix % together,
        };
        let unit = kernel.unit(group.source) * group.source.activations.global().value();
        let last = group.matrices.len() - 1;
        kernel.finish(Finish {
            gate: of(0),
            up: of(gate.matrices() - 1),
            function: gate,
            alpha: [0, last].map(|matrix| unit * group.matrices[matrix].global().value()),
            bias: [0, last].map(|matrix| group.matrices[matrix].bias(tile.columns.start)),
            addend: [0, last].map(|matrix| group.addends.get(matrix).copied()),
            width: group.shape.n,
            parts: kernel.parts(),
            tokens: tile.tokens.clone(),
            columns: tile.columns.clone(),
            out: group.target,
            staging: self.staging.as_deref_mut(),
        });
    }
}

/// One tile's way along K.
struct TileWalk<'a, K: Kernel> {
    kernel: &'a K,
    config: &'a Config,
    group: &'a Group<'a, K>,
    tile: &'a Tile,
    /// The group and the tile that will most likely follow.
    next: Option<(&'a Group<'a, K>, &'a Tile)>,
    /// The prepared rows of the tile, and the elements of a group of them.
    tokens: &'a [K::Token],
    group_len: usize,
    matrices: &'a [PanelMatrix],
    layout: SumLayout,
}

/// A slab's place: a stretch of K and some panels.
struct Step {
    chunks: Range<usize>,
    slab: usize,
}

impl<K: Kernel> TileWalk<'_, K> {
    /// Steps along K, and at each one every slab of the tile.
    fn step(&self, index: usize) -> Step {
        let (slabs, chunks) = (self.layout.slabs(), self.config.depth / CHUNK);
        let (stretch, slab) = (index / slabs, index % slabs);
        let last = self.group.shape.k.div_ceil(CHUNK);
        Step { chunks: stretch * chunks..last.min((stretch + 1) * chunks), slab }
    }

    fn accumulate(&self, slabs: &mut [Slab<'_, K::Block>], sums: &mut [Lanes]) {
        let steps = self.group.shape.k.div_ceil(self.config.depth) * self.layout.slabs();
        let stages = slabs.len();
        let paired = self.config.strategy == Strategy::PingPong && stages == 2;
        if (K::STREAM_ROWS.is_some() || paired) && self.stream(&mut slabs[0], sums) {
            return;
        }
        if self.config.strategy == Strategy::PingPong {
            let lead = stages - 1;
            for (index, slab) in slabs.iter_mut().enumerate().take(lead.min(steps)) {
                self.expansion(index, slab).complete();
            }
            for index in 0..steps {
                // `check` grants ping-pong at least two stages, so the two slabs differ.
                let Ok([slab, later]) = slabs.get_disjoint_mut([index % stages, (index + lead) % stages]) else {
                    return;
                };
                let mut ahead = match index + lead < steps {
                    true => self.expansion(index + lead, later),
                    false => Expansion::nothing(self.kernel),
                };
                self.multiply(index, slab, sums, &mut ahead);
                ahead.complete();
            }
        } else {
            for first in (0..steps).step_by(stages) {
                let batch = first..steps.min(first + stages);
                for index in batch.clone() {
                    self.expansion(index, &mut slabs[index - first]).complete();
                }
                for index in batch {
                    self.multiply(index, &slabs[index - first], sums, &mut Expansion::nothing(self.kernel));
                }
            }
        }
    }

    /// Offers the whole tile to the kernel's tightest loops, which take panels of full width only and leave strategies
    /// to others: what an element's bits depend on, the depth, is theirs.
    fn stream(&self, ring: &mut Slab<'_, K::Block>, sums: &mut [Lanes]) -> bool {
        let narrow = self.config.depth == CHUNK && (K::STREAM_ROWS.is_some() || self.layout.slabs() == 1);
        if !narrow && K::RESIDENT != Some(self.config.depth) {
            return false;
        }
        let panels = self.full_panels(self.group, self.matrices, self.tile);
        if panels.len() < self.matrices.len() * self.layout.panels {
            return false;
        }
        let next = self.next.map_or(Vec::new(), |(group, tile)| self.full_panels(group, group.matrices, tile));
        let (tokens, group_len) = (self.tokens, self.group_len);
        let rows = self.tile.tokens.len() * self.kernel.parts();
        let tile = TileStream { tokens, group_len, rows, panels, next, ring: ring.pages(), sums };
        if narrow { self.kernel.stream(tile) } else { self.kernel.resident(tile) }
    }

    /// The panels of a tile that have full width, each along all of K, in the order of this tile's sums: slab by slab,
    /// those of the first matrix before those of the second.
    fn full_panels<'a>(&self, group: &Group<'_, K>, matrices: &'a [PanelMatrix], tile: &Tile) -> Vec<&'a [u8]> {
        let panels = tile.columns.start / COLUMNS..tile.columns.end / COLUMNS;
        let stretch = |matrix: &'a PanelMatrix, panel| matrix.stretch(panel, 0..group.shape.k.div_ceil(CHUNK)).bytes;
        let slabs =
            panels.clone().step_by(self.layout.slab).map(|first| first..panels.end.min(first + self.layout.slab));
        slabs
            .flat_map(|slab| matrices.iter().flat_map(move |matrix| slab.clone().map(move |p| stretch(matrix, p))))
            .collect()
    }

    fn expansion<'s>(&'s self, index: usize, slab: &'s mut Slab<'_, K::Block>) -> Expansion<'s, K> {
        let step = self.step(index);
        let panels = self.layout.panels_of(step.slab);
        let depth = self.blocks(&step).len().next_multiple_of(K::BLOCKS);
        let first = self.tile.columns.start / COLUMNS;
        let panels = first + panels.start..first + panels.end;
        let sources = Sources { matrices: self.matrices, panels, chunks: step.chunks, next: 0 };
        Expansion::new(self.kernel, sources, depth, slab)
    }

    fn multiply(&self, index: usize, slab: &Slab<'_, K::Block>, sums: &mut [Lanes], ahead: &mut Expansion<'_, K>) {
        let step = self.step(index);
        let product = Product {
            tokens: self.tokens,
            group_len: self.group_len,
            blocks: self.blocks(&step),
            slab: slab.view(self.matrices.len() * self.layout.panels_of(step.slab).len()),
            sums: &mut sums[self.layout.slab_range(step.slab)],
            fresh: step.chunks.start == 0,
            last: step.chunks.end == self.group.shape.k.div_ceil(CHUNK),
            alone: self.layout.slabs() == 1,
        };
        self.kernel.multiply(product, ahead);
    }

    fn blocks(&self, step: &Step) -> Range<usize> {
        let last = self.group.shape.k / BLOCK;
        step.chunks.start * CHUNK_BLOCKS..last.min(step.chunks.end * CHUNK_BLOCKS)
    }
}

/// One product of every group as f32, between the passes of two-pass.
struct Plane<'a> {
    groups: Parts<'a, f32>,
}

impl<'a> Plane<'a> {
    fn new(arena: &'a Arena, shapes: &[Shape]) -> Result<Self> {
        Ok(Self { groups: Parts::new(arena, shapes.iter().map(|s| s.m * s.n).collect())? })
    }

    fn targets(&mut self) -> Vec<Target<'_>> {
        self.groups.each_mut().map(Target::F32).collect()
    }
}

/// The last pass of two-pass: the gate, row by row.
fn join(problem: &Problem, gate: &mut Plane<'_>, up: &Plane<'_>, targets: &[SharedTarget<'_>], team: &Team) {
    let groups = gate.groups.each_mut().zip(up.groups.each()).zip(problem.groups()).zip(targets);
    let rows = Mutex::new(groups.flat_map(|(((gate, up), shape), target)| {
        gate.chunks_mut(shape.n).zip(up.chunks(shape.n)).enumerate().map(move |(row, sums)| (target, row, sums))
    }));
    let work = || {
        while let Some((target, row, (gate, up))) = rows.lock().ok().and_then(|mut rows| rows.next()) {
            problem.gate().apply_rows(gate, up);
            for (index, values) in gate.chunks(COLUMNS).enumerate() {
                let mut lanes = [0.0; COLUMNS];
                lanes[..values.len()].copy_from_slice(values);
                let columns = index * COLUMNS..index * COLUMNS + values.len();
                // SAFETY: the queue hands each row to one thread, which writes its columns one after the other.
                unsafe { target.store(row, columns, &lanes, &|lanes| lanes.map(f16::from_f32)) };
            }
        }
    };
    team.run(|| in_default_mode(work));
}
