//! A problem's products as launches, given where everything is in the device's memory.
//!
//! Nothing here allocates: [`workspace_bytes`] says how much memory beside the operands a configuration needs, and
//! [`launches`] turns addresses into kernels, grids and arguments. All groups with tokens go into one launch, up to
//! `MOST_GROUPS` of them; fused strategies need no other. Two passes are a launch for each matrix, which leave their sums
//! in the workspace, and one that joins them.

use op::{Config, Problem, Result, Schedule, Shape, Strategy};
use ptx::tensor_map::TensorMap;
use ptx::{Kernel, Target};

use super::choice::{kernel_config, passes_twice};
use super::kernel::{self, CAPACITIES};
use crate::expand::{self, TokenForm};
use crate::family::GroupOperands;
use crate::gating::{self, Function};
use crate::join;
use crate::launch::{Argument, KernelSpec, Launch};
use crate::table::{self, Record};

/// Groups with tokens of one launch.
const MOST_GROUPS: usize = 128;
/// What the kernels' sums lack: dequantised weights are 2⁻⁷ times what they should be.
const WEIGHT_FACTOR: f64 = 128.0;

/// Bytes of memory that a configuration needs beside the operands.
pub(super) fn workspace_bytes(problem: &Problem, config: &Config) -> usize {
    if !passes_twice(problem, config) {
        return 0;
    }
    problem.groups().iter().map(|shape| 2 * plane_bytes(shape)).sum()
}

/// Bytes of one matrix's sums.
fn plane_bytes(shape: &Shape) -> usize {
    join::plane_bytes(shape.m * shape.n)
}

/// The launches of a problem, in the order in which they run. `operands` has an entry for each group; `workspace` is the
/// address of as much memory as [`workspace_bytes`] says. The configuration is one that `check` accepts.
pub(super) fn launches(
    problem: &Problem,
    config: &Config,
    operands: &[GroupOperands],
    workspace: u64,
    multiprocessors: u32,
) -> Result<Vec<Launch>> {
    let mut plane = workspace;
    let mut groups: Vec<Group> = Vec::new();
    for (shape, operands) in problem.groups().iter().zip(operands).filter(|(shape, _)| shape.m > 0) {
        let bytes = plane_bytes(shape) as u64;
        groups.push(Group { shape: *shape, operands: *operands, planes: [plane, plane + bytes] });
        plane += 2 * bytes;
    }
    // The longest tiles first, so that short ones fill the gaps at the end.
    let kernel = kernel_config(problem, config)?;
    groups.sort_by_key(|Group { shape, .. }| {
        std::cmp::Reverse(shape.m.min(kernel.cut(shape.m as u32).1 as usize) * shape.k)
    });
    let mut launches = Vec::new();
    for groups in groups.chunks(MOST_GROUPS) {
        let cut = Cut { problem, config, groups, multiprocessors };
        if passes_twice(problem, config) {
            launches.push(cut.multiply(Some(0))?);
            launches.push(cut.multiply(Some(1))?);
            launches.push(cut.join());
        } else {
            launches.push(cut.multiply(None)?);
        }
    }
    Ok(launches)
}

/// A group with tokens.
struct Group {
    shape: Shape,
    operands: GroupOperands,
    /// Where its sums go, if they go through memory.
    planes: [u64; 2],
}

/// The groups of one launch.
struct Cut<'a> {
    problem: &'a Problem,
    config: &'a Config,
    groups: &'a [Group],
    multiprocessors: u32,
}

impl Cut<'_> {
    fn capacity(&self) -> u32 {
        let groups = self.groups.len() as u32;
        CAPACITIES.into_iter().find(|&capacity| capacity >= groups).unwrap_or(groups)
    }

    /// The products of all groups: to C, or the sums of one matrix to their planes.
    fn multiply(&self, matrix: Option<usize>) -> Result<Launch> {
        let kernel = kernel::MultiplySpec { groups: self.capacity(), ..kernel_config(self.problem, self.config)? };
        let (mut records, mut maps, mut tiles) = (Vec::new(), Vec::new(), 0u32);
        for group in self.groups {
            let Shape { m, n, k } = group.shape;
            let [m, n, k] = [m as u32, n as u32, k as u32];
            let operands = &group.operands;
            let (addresses, factors) = match matrix {
                None => {
                    let [gate, up] = operands.weights;
                    ([gate, up, operands.out], operands.alphas.map(|alpha| gating::factors(alpha * WEIGHT_FACTOR)))
                }
                Some(matrix) => {
                    let weights = operands.weights[matrix];
                    ([weights, weights, group.planes[matrix]], [[1.0; 2]; 2])
                }
            };
            let (token_tiles, tile_tokens) = kernel.cut(m);
            records.push(Record { first_tile: tiles, token_tiles, tile_tokens, m, n, k, addresses, factors });
            maps.push(kernel.token_map(operands.tokens, [m, k], operands.part_bytes));
            tiles += token_tiles * n.div_ceil(kernel.columns);
        }
        let blocks = match kernel.schedule {
            Schedule::Persistent => tiles.min(self.multiprocessors),
            Schedule::PerTile | Schedule::SplitK => match tiles * kernel.blocks_per_tile() {
                blocks if spreads(&kernel, blocks, self.multiprocessors) => self.multiprocessors,
                blocks => blocks,
            },
        };
        Ok(Launch {
            kernel: kernel.into(),
            grid: [blocks, 1, 1],
            arguments: self.arguments(&records, Some(maps), tiles),
            overlapping: true,
        })
    }

    /// The gate over all groups' sums.
    fn join(&self) -> Launch {
        let config = join::JoinSpec {
            function: Function::of(self.problem.gate()),
            output: self.problem.output(),
            groups: self.capacity(),
            parts: 1,
            target: Target::Sm90a,
        };
        let (mut records, mut blocks) = (Vec::new(), 0u32);
        for Group { shape, operands, planes } in self.groups {
            let (m, n) = (shape.m as u32, shape.n as u32);
            let addresses = [planes[0], planes[1], operands.out];
            let factors = operands.alphas.map(|alpha| gating::factors(alpha * WEIGHT_FACTOR));
            records.push(Record { first_tile: blocks, token_tiles: 1, tile_tokens: m, m, n, k: 0, addresses, factors });
            blocks += config.blocks(shape.m * shape.n);
        }
        let arguments = self.arguments(&records, None, blocks);
        Launch { kernel: config.into(), grid: [blocks, 1, 1], arguments, overlapping: true }
    }

    fn arguments(&self, records: &[Record], maps: Option<Vec<TensorMap>>, tiles: u32) -> Vec<Argument> {
        let table = table::words(records, self.capacity());
        let clamp = Argument::F32(gating::clamp(self.problem.gate()));
        let maps = maps.map(Argument::Maps);
        maps.into_iter().chain([Argument::Words(table), Argument::U32(tiles), clamp]).collect()
    }
}

/// Whether a launch that needs so many blocks has one for each multiprocessor. Where a multiprocessor holds two blocks, one is to
/// be of this launch and one of the next: multiprocessors without any of this one would take two of the next, which then
/// takes twice as long. So if most have something to do, the others repeat some of it.
fn spreads(kernel: &kernel::MultiplySpec, blocks: u32, multiprocessors: u32) -> bool {
    let most = (multiprocessors / 2 + 1..=multiprocessors).contains(&blocks);
    kernel.resident() > 1 && most && multiprocessors.is_multiple_of(kernel.blocks_per_tile())
}

/// The kernels that a configuration runs for a problem, in the order in which they run.
pub(super) fn kernels(problem: &Problem, config: &Config) -> Result<Vec<Kernel>> {
    let groups = problem.groups().iter().filter(|shape| shape.m > 0).count() as u32;
    let groups = CAPACITIES.into_iter().find(|&capacity| capacity >= groups).unwrap_or(CAPACITIES[3]);
    let multiply = kernel::MultiplySpec { groups, ..kernel_config(problem, config)? };
    let elements = problem.groups().iter().map(|shape| shape.m * shape.k).sum();
    let expansion = TokenForm::of(problem.activation())
        .map(|source| expand::ExpandSpec::new(Target::Sm90a, source, 1, elements).into());
    let mut each: Vec<KernelSpec> = expansion.into_iter().chain([multiply.into()]).collect();
    if config.strategy == Strategy::TwoPass && problem.matrices() == 2 {
        let (function, output) = (Function::of(problem.gate()), problem.output());
        let (parts, target) = (1, Target::Sm90a);
        each.push(join::JoinSpec { function, output, groups, parts, target }.into());
    }
    each.iter().map(KernelSpec::build).collect()
}
