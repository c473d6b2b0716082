//! A problem's products as launches, given where everything is in the device's memory.
//!
//! All groups with tokens go into one launch, up to `MOST_GROUPS` of them. Two passes are a launch for each matrix, which leave their
//! sums in the workspace, and one that joins them; so do blocks that share k, in one launch.

use op::{Config, Problem, Result, Schedule, Shape};
use ptx::{Kernel, Target};

use super::choice::{joins, kernel_config};
use super::kernel::WarpMultiplySpec;
use crate::expand::{ExpandSpec, TokenForm};
use crate::families::sm90::kernel::CAPACITIES;
use crate::families::sm90::passes_twice;
use crate::family::GroupOperands;
use crate::gating::{self, Function};
use crate::join::{JoinSpec, plane_bytes};
use crate::launch::{Argument, KernelSpec, Launch};
use crate::table::{self, Record};

/// Groups with tokens of one launch.
const MOST_GROUPS: usize = 128;
/// What the kernels' sums lack: dequantised weights are 2⁻⁷ times what they should be.
const WEIGHT_FACTOR: f64 = 128.0;

/// Planes of sums of a group: of each matrix, from each block that shares k.
fn planes(problem: &Problem, config: &Config) -> usize {
    let blocks = if config.schedule == Schedule::SplitK { 2 } else { 1 };
    if joins(problem, config) { blocks * problem.matrices() } else { 0 }
}

/// Bytes of memory that a configuration needs beside the operands.
pub(super) fn workspace_bytes(problem: &Problem, config: &Config) -> usize {
    let planes = planes(problem, config);
    problem.groups().iter().map(|shape| planes * plane_bytes(shape.m * shape.n)).sum()
}

/// A group with tokens.
struct Group {
    shape: Shape,
    operands: GroupOperands,
    /// Where its planes of sums begin, if it has some.
    planes: u64,
}

impl Group {
    fn plane(&self, index: u64) -> u64 {
        self.planes + index * plane_bytes(self.shape.m * self.shape.n) as u64
    }

    fn factors(&self) -> [[f32; 2]; 2] {
        self.operands.alphas.map(|alpha| gating::factors(alpha * WEIGHT_FACTOR))
    }
}

/// The groups of one launch.
struct Cut<'a> {
    problem: &'a Problem,
    config: &'a Config,
    groups: &'a [Group],
    multiprocessors: u32,
}

/// The launches of a problem, in the order in which they run.
pub(super) fn launches(
    problem: &Problem,
    config: &Config,
    operands: &[GroupOperands],
    workspace: u64,
    multiprocessors: u32,
) -> Result<Vec<Launch>> {
    let (mut next, mut groups) = (workspace, Vec::new());
    for (shape, operands) in problem.groups().iter().zip(operands).filter(|(shape, _)| shape.m > 0) {
        groups.push(Group { shape: *shape, operands: *operands, planes: next });
        next += (planes(problem, config) * plane_bytes(shape.m * shape.n)) as u64;
    }
    // The longest tiles first, so that short ones fill the gaps at the end.
    groups.sort_by_key(|Group { shape, .. }| std::cmp::Reverse(shape.m.min(config.tile.tokens) * shape.k));
    let mut launches = Vec::new();
    for groups in groups.chunks(MOST_GROUPS) {
        let cut = Cut { problem, config, groups, multiprocessors };
        if passes_twice(problem, config) {
            launches.extend([cut.multiply(Some(0))?, cut.multiply(Some(1))?, cut.join()]);
        } else {
            launches.push(cut.multiply(None)?);
            launches.extend((config.schedule == Schedule::SplitK).then(|| cut.join()));
        }
    }
    Ok(launches)
}

fn capacity(groups: usize) -> u32 {
    CAPACITIES.into_iter().find(|&capacity| capacity as usize >= groups).unwrap_or(CAPACITIES[CAPACITIES.len() - 1])
}

impl Cut<'_> {
    fn capacity(&self) -> u32 {
        capacity(self.groups.len())
    }

    /// The products of all groups: to C, or the sums of one matrix or of all to their planes.
    fn multiply(&self, matrix: Option<usize>) -> Result<Launch> {
        let kernel = WarpMultiplySpec { groups: self.capacity(), ..kernel_config(self.problem, self.config)? };
        let (mut records, mut tokens, mut tiles) = (Vec::new(), Vec::new(), 0u32);
        for group in self.groups {
            let Shape { m, n, k } = group.shape;
            let [m, n, k] = [m as u32, n as u32, k as u32];
            let [gate, up] = group.operands.weights;
            let (addresses, factors) = match matrix {
                None if kernel.leaves_sums() => ([gate, up, group.plane(0)], [[1.0; 2]; 2]),
                None => ([gate, up, group.operands.out], group.factors()),
                Some(matrix) => {
                    let weights = group.operands.weights[matrix];
                    ([weights, weights, group.plane(matrix as u64)], [[1.0; 2]; 2])
                }
            };
            let token_tiles = m.div_ceil(kernel.tokens);
            let tile_tokens = kernel.tokens;
            records.push(Record { first_tile: tiles, token_tiles, tile_tokens, m, n, k, addresses, factors });
            let halves = |wide: u64| [wide as u32, (wide >> 32) as u32];
            tokens.extend([halves(group.operands.tokens), halves(group.operands.part_bytes)].concat());
            tiles += token_tiles * n.div_ceil(kernel.columns);
        }
        let blocks = match kernel.schedule {
            Schedule::Persistent => tiles.min(self.multiprocessors * kernel.resident),
            Schedule::PerTile | Schedule::SplitK => tiles * kernel.blocks_per_tile(),
        };
        let mut arguments = self.arguments(&records, tiles);
        arguments.insert(1, Argument::Words(tokens));
        Ok(Launch { kernel: kernel.into(), grid: [blocks, 1, 1], arguments, overlapping: false })
    }

    /// The gate over all groups' sums.
    fn join(&self) -> Launch {
        let spec = join_spec(self.problem, self.config, self.capacity());
        let (mut records, mut blocks) = (Vec::new(), 0u32);
        for group in self.groups {
            let (m, n) = (group.shape.m as u32, group.shape.n as u32);
            let second = group.plane(self.problem.matrices() as u64 - 1);
            let (addresses, factors) = ([group.plane(0), second, group.operands.out], group.factors());
            records.push(Record { first_tile: blocks, token_tiles: 1, tile_tokens: m, m, n, k: 0, addresses, factors });
            blocks += spec.blocks(group.shape.m * group.shape.n);
        }
        let arguments = self.arguments(&records, blocks);
        Launch { kernel: spec.into(), grid: [blocks, 1, 1], arguments, overlapping: false }
    }

    fn arguments(&self, records: &[Record], tiles: u32) -> Vec<Argument> {
        let table = table::words(records, self.capacity());
        vec![Argument::Words(table), Argument::U32(tiles), Argument::F32(gating::clamp(self.problem.gate()))]
    }
}

fn join_spec(problem: &Problem, config: &Config, groups: u32) -> JoinSpec {
    let (function, output) = (Function::of(problem.gate()), problem.output());
    let parts = if config.schedule == Schedule::SplitK { 2 } else { 1 };
    JoinSpec { function, output, groups, parts, target: Target::Sm80 }
}

/// The kernels that a configuration runs for a problem, in the order in which they run.
pub(super) fn kernels(problem: &Problem, config: &Config) -> Result<Vec<Kernel>> {
    let groups = capacity(problem.groups().iter().filter(|shape| shape.m > 0).count());
    let multiply = WarpMultiplySpec { groups, ..kernel_config(problem, config)? };
    let elements = problem.groups().iter().map(|shape| shape.m * shape.k).sum();
    let expansion =
        TokenForm::of(problem.activation()).map(|source| ExpandSpec::new(Target::Sm80, source, 1, elements).into());
    let mut each: Vec<KernelSpec> = expansion.into_iter().chain([multiply.into()]).collect();
    if joins(problem, config) {
        each.push(join_spec(problem, config, groups).into());
    }
    each.iter().map(KernelSpec::build).collect()
}
