//! The order of the work, the same for every instruction set.
//!
//! A problem is cut into tiles of C over all its groups, largest first, and the threads take them from one queue: a
//! group without tokens has no tiles and costs nothing. Inside a tile the strategy decides:
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
//! Working memory, beside the operands: prepared tokens (at most 12 bytes an activation); for each thread the slabs
//! (`stages` × panels × `depth`) and the sums of one tile; for two-pass two f32 planes of C's size. Nothing grows with
//! N·K.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use format::BLOCK;

use super::Panels;
use super::kernel::{Expansion, Finish, Kernel, Lanes, MatrixSums, Product, Source, SumLayout};
use super::pack::{CHUNK, CHUNK_BLOCKS, COLUMNS, PanelMatrix};
use super::target::SharedTarget;
use super::threads::Threads;
use crate::backend::{Operands, Target};
use crate::{Config, Gate, Problem, Shape, Strategy};

/// Token elements below which preparing them is not worth waking the other threads.
const SERIAL_TOKENS: usize = 1 << 16;

/// Computes a problem.
pub(super) fn run<K: Kernel>(
    kernel: &K,
    problem: &Problem,
    config: &Config,
    panels: &[Panels],
    operands: Operands<'_, '_, '_>,
    threads: &Threads,
) {
    let sources: Vec<Source<'_>> = {
        let pairs = operands.activations.iter().zip(operands.largest);
        pairs.map(|(activations, &largest)| Source { activations, largest }).collect()
    };
    let tokens = prepare(kernel, problem, &sources, threads);
    let shapes = problem.groups();
    let share = |targets: &mut [Target<'_>]| -> Vec<SharedTarget> {
        targets.iter_mut().zip(shapes).map(|(target, s)| SharedTarget::new(target, s.m, s.n)).collect()
    };
    let walk = |matrices: Range<usize>, gate: Gate, targets: &[SharedTarget]| {
        let groups: Vec<Group<'_, K>> = (0..shapes.len())
            .map(|g| Group {
                shape: shapes[g],
                matrices: &panels[g].matrices()[matrices.clone()],
                source: sources[g],
                tokens: &tokens[g],
                target: &targets[g],
            })
            .collect();
        walk(kernel, config, gate, &groups, threads);
    };
    if config.strategy == Strategy::TwoPass && problem.matrices() == 2 {
        let mut planes = [Plane::new(shapes), Plane::new(shapes)];
        for (matrix, plane) in planes.iter_mut().enumerate() {
            walk(matrix..matrix + 1, Gate::None, &share(&mut plane.targets()));
        }
        let [gate, up] = &mut planes;
        join(problem, gate, up, &share(operands.targets), threads);
    } else {
        walk(0..problem.matrices(), problem.gate(), &share(operands.targets));
    }
}

/// One group's operands, as the tiles see them.
struct Group<'a, K: Kernel> {
    shape: Shape,
    matrices: &'a [PanelMatrix],
    source: Source<'a>,
    tokens: &'a [K::Token],
    target: &'a SharedTarget,
}

/// Prepares the tokens of every group.
fn prepare<K: Kernel>(kernel: &K, problem: &Problem, sources: &[Source<'_>], threads: &Threads) -> Vec<Vec<K::Token>> {
    let group_len = |shape: &Shape| kernel.group_len(shape.k / BLOCK);
    let row_groups = |shape: &Shape| (shape.m * kernel.parts()).div_ceil(K::ROWS);
    let mut tokens: Vec<Vec<K::Token>> =
        problem.groups().iter().map(|s| vec![K::ZERO; row_groups(s) * group_len(s)]).collect();
    let total: usize = tokens.iter().map(Vec::len).sum();
    let work = tokens.iter_mut().zip(problem.groups()).zip(sources).flat_map(|((tokens, shape), &source)| {
        tokens.chunks_mut(group_len(shape)).enumerate().map(move |(group, out)| (source, group, out))
    });
    let queue = Mutex::new(work);
    let take_all = || {
        // A poisoned queue means that another thread panicked, which ends the run anyway.
        while let Some((source, group, out)) = queue.lock().ok().and_then(|mut queue| queue.next()) {
            kernel.prepare(source, group, out);
        }
    };
    if total < SERIAL_TOKENS {
        take_all()
    } else {
        threads.run(take_all)
    }
    tokens
}

/// A tile of one group's C.
struct Tile {
    group: usize,
    tokens: Range<usize>,
    columns: Range<usize>,
}

/// Every tile of every group, the costliest first; within a group, tiles of the same columns follow each other, so that
/// their weights are still in a cache.
fn tiles<K: Kernel>(groups: &[Group<'_, K>], config: &Config) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for (group, Group { shape, .. }) in groups.iter().enumerate() {
        for column in (0..shape.n).step_by(config.tile.columns) {
            for token in (0..shape.m).step_by(config.tile.tokens) {
                tiles.push(Tile {
                    group,
                    tokens: token..shape.m.min(token + config.tile.tokens),
                    columns: column..shape.n.min(column + config.tile.columns),
                });
            }
        }
    }
    let cost = |tile: &Tile| tile.tokens.len() * tile.columns.len() * groups[tile.group].shape.k;
    tiles.sort_by_key(|tile| std::cmp::Reverse(cost(tile)));
    tiles
}

/// Lets the threads take tiles until none is left.
fn walk<K: Kernel>(kernel: &K, config: &Config, gate: Gate, groups: &[Group<'_, K>], threads: &Threads) {
    let tiles = tiles(groups, config);
    let next = AtomicUsize::new(0);
    threads.run(|| {
        let mut scratch = Scratch::new(config);
        kernel.enter();
        while let Some(tile) = tiles.get(next.fetch_add(1, Ordering::Relaxed)) {
            scratch.compute(kernel, &groups[tile.group], tile, gate);
        }
        kernel.leave();
    });
}

/// What one thread works in.
struct Scratch<'a, K: Kernel> {
    config: &'a Config,
    slabs: Vec<Vec<K::Block>>,
    sums: [Vec<Lanes>; 2],
}

impl<'a, K: Kernel> Scratch<'a, K> {
    fn new(config: &'a Config) -> Self {
        Self { config, slabs: vec![Vec::new(); config.stages], sums: [Vec::new(), Vec::new()] }
    }

    /// Computes a tile and writes it to C.
    fn compute(&mut self, kernel: &K, group: &Group<'_, K>, tile: &Tile, gate: Gate) {
        let together = if self.config.strategy == Strategy::Sequential { 1 } else { group.matrices.len() };
        let layout = SumLayout {
            rows: (tile.tokens.len() * kernel.parts()).next_multiple_of(K::ROWS),
            matrices: together,
            panels: tile.columns.len().div_ceil(COLUMNS),
            slab: (K::PANELS / together).max(1),
        };
        for (sums, matrices) in self.sums.iter_mut().zip(group.matrices.chunks(together)) {
            sums.resize(layout.len().max(sums.len()), Lanes::default());
            let walk = TileWalk { kernel, config: self.config, group, tile, matrices, layout };
            walk.accumulate(&mut self.slabs, &mut sums[..layout.len()]);
        }
        let of = |matrix: usize| MatrixSums {
            sums: &self.sums[matrix / together][..layout.len()],
            layout,
            matrix: matrix % together,
        };
        let unit = kernel.unit(group.source) * f64::from(group.source.activations.global());
        let last = group.matrices.len() - 1;
        kernel.finish(Finish {
            gate: of(0),
            up: if gate == Gate::None { of(0) } else { of(1) },
            function: gate,
            alpha: [0, last].map(|matrix| unit * f64::from(group.matrices[matrix].global())),
            parts: kernel.parts(),
            tokens: tile.tokens.clone(),
            columns: tile.columns.clone(),
            out: group.target,
        });
    }
}

/// One tile's way along K.
struct TileWalk<'a, K: Kernel> {
    kernel: &'a K,
    config: &'a Config,
    group: &'a Group<'a, K>,
    tile: &'a Tile,
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

    fn accumulate(&self, slabs: &mut [Vec<K::Block>], sums: &mut [Lanes]) {
        let steps = self.group.shape.k.div_ceil(self.config.depth) * self.layout.slabs();
        let stages = slabs.len();
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

    fn expansion<'s>(&'s self, index: usize, slab: &'s mut Vec<K::Block>) -> Expansion<'s, K> {
        let step = self.step(index);
        let panels = self.layout.panels_of(step.slab);
        let depth = self.blocks(&step).len().next_multiple_of(K::BLOCKS);
        slab.resize(self.matrices.len() * panels.len() * depth, K::BLANK);
        let first = self.tile.columns.start / COLUMNS;
        Expansion::new(self.kernel, self.matrices, first + panels.start..first + panels.end, step.chunks, slab)
    }

    fn multiply(&self, index: usize, slab: &[K::Block], sums: &mut [Lanes], ahead: &mut Expansion<'_, K>) {
        let step = self.step(index);
        let group_len = self.kernel.group_len(self.group.shape.k / BLOCK);
        let first = self.tile.tokens.start * self.kernel.parts() / K::ROWS;
        let product = Product {
            tokens: &self.group.tokens[first * group_len..][..self.layout.rows / K::ROWS * group_len],
            group_len,
            blocks: self.blocks(&step),
            slab,
            sums: &mut sums[self.layout.slab_range(step.slab)],
            fresh: step.chunks.start == 0,
        };
        self.kernel.multiply(product, ahead);
    }

    fn blocks(&self, step: &Step) -> Range<usize> {
        let last = self.group.shape.k / BLOCK;
        step.chunks.start * CHUNK_BLOCKS..last.min(step.chunks.end * CHUNK_BLOCKS)
    }
}

/// One product of every group as f32, between the passes of two-pass.
struct Plane {
    groups: Vec<Vec<f32>>,
}

impl Plane {
    fn new(shapes: &[Shape]) -> Self {
        Self { groups: shapes.iter().map(|s| vec![0.0; s.m * s.n]).collect() }
    }

    fn targets(&mut self) -> Vec<Target<'_>> {
        self.groups.iter_mut().map(|group| Target::F32(group)).collect()
    }
}

/// The last pass of two-pass: the gate, row by row.
fn join(problem: &Problem, gate: &mut Plane, up: &Plane, targets: &[SharedTarget], threads: &Threads) {
    let groups = gate.groups.iter_mut().zip(&up.groups).zip(problem.groups()).zip(targets);
    let rows = Mutex::new(groups.flat_map(|(((gate, up), shape), target)| {
        gate.chunks_mut(shape.n).zip(up.chunks(shape.n)).enumerate().map(move |(row, sums)| (target, row, sums))
    }));
    threads.run(|| {
        while let Some((target, row, (gate, up))) = rows.lock().ok().and_then(|mut rows| rows.next()) {
            problem.gate().apply_rows(gate, up);
            // SAFETY: the targets are borrowed for the whole run, and the queue hands each row to one thread.
            unsafe { target.store(row, 0..gate.len(), gate) };
        }
    });
}
