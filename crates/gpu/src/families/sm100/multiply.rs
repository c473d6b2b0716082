//! A problem's products as launches: NVFP4 tokens are brought into slabs, then multiplied; others are multiplied as
//! they are.

use op::{Problem, Schedule, Shape};
use ptx::Target;

use super::arrange::{self, ArrangeSpec};
use super::kernel::{TARGET, TOKEN_WORDS, TensorMultiplySpec};
use crate::families::choice::{MOST_GROUPS, capacity};
use crate::families::cut::{Group, MultiplyKernel};
use crate::family::GroupOperands;
use crate::launch::{Argument, Launch};
use crate::phases::table::{self, Record};

/// What the slabs of every group begin at a multiple of.
const ALIGNMENT: u64 = 256;

impl MultiplyKernel for TensorMultiplySpec {
    fn for_groups(self, groups: u32, biased: bool) -> Self {
        TensorMultiplySpec { groups, biased, ..self }
    }

    fn target(&self) -> Target {
        TARGET
    }

    fn columns(&self) -> u32 {
        self.shared_columns()
    }

    fn cut(&self, m: u32) -> (u32, u32) {
        TensorMultiplySpec::cut(self, m)
    }

    fn blocks(&self, tiles: u32, multiprocessors: u32) -> u32 {
        match self.schedule {
            Schedule::Persistent => {
                let together = self.cluster_blocks();
                tiles.min((multiprocessors / together).max(1)) * together
            }
            Schedule::PerTile | Schedule::SplitK => tiles * self.blocks_per_tile(),
        }
    }

    fn tokens(&self, groups: &[Group]) -> Vec<Argument> {
        if self.element.is_some() {
            let map = |group: &Group| {
                let [m, _, k] = group.sides();
                self.token_map(group.operands.tokens, [m, k], group.operands.part_bytes)
            };
            return vec![Argument::Maps(groups.iter().map(map).collect())];
        }
        // Slabs that are shared are all in one tensor, from the first of them on.
        let places = || groups.iter().map(|group| group.operands.tokens);
        let first = if self.multicast > 1 { places().min().unwrap_or(0) } else { 0 };
        let mut table: Vec<u32> = places().flat_map(|at| [(at - first) as u32, ((at - first) >> 32) as u32]).collect();
        table.resize((self.groups * TOKEN_WORDS) as usize, 0);
        let mut arguments = vec![Argument::Words(table)];
        if self.multicast > 1 {
            let end = |group: &Group| group.operands.tokens + slab_bytes(self, group.sides());
            let bytes = groups.iter().map(end).max().unwrap_or(0) - first;
            arguments.push(Argument::Maps(self.slab_maps(first, bytes)));
        }
        arguments
    }

    fn weight_factor(&self) -> f64 {
        if self.element.is_some() { crate::pack::WEIGHT_FACTOR } else { 1.0 }
    }

    fn overlaps(&self) -> bool {
        true
    }
}

/// Bytes of a group's tokens in slabs, if they go there.
fn slab_bytes(kernel: &TensorMultiplySpec, [m, _, k]: [u32; 3]) -> u64 {
    match m {
        0 => 0,
        _ if kernel.element.is_some() => 0,
        m => kernel.padding().bytes(m, kernel.arranged(m).0, k),
    }
}

/// Bytes from each group's slabs to the next one's.
fn slab_strides(problem: &Problem, kernel: &TensorMultiplySpec) -> impl Iterator<Item = u64> {
    let sides = |shape: &Shape| [shape.m, shape.n, shape.k].map(|side| side as u32);
    problem.groups().iter().map(move |shape| slab_bytes(kernel, sides(shape)).next_multiple_of(ALIGNMENT))
}

/// Bytes of all tokens in slabs.
pub(super) fn arranged_bytes(problem: &Problem, kernel: &TensorMultiplySpec) -> u64 {
    slab_strides(problem, kernel).sum()
}

/// The launches that bring every group's tokens into slabs from an address on, and the operands with those in place of
/// tokens.
pub(super) fn arrange(
    problem: &Problem,
    kernel: &TensorMultiplySpec,
    operands: &[GroupOperands],
    start: u64,
) -> (Vec<Launch>, Vec<GroupOperands>) {
    if kernel.element.is_some() {
        return (Vec::new(), operands.to_vec());
    }
    let (mut next, mut arranged, mut records) = (start, Vec::new(), Vec::new());
    for ((shape, operands), bytes) in problem.groups().iter().zip(operands).zip(slab_strides(problem, kernel)) {
        arranged.push(GroupOperands { tokens: next, ..*operands });
        if shape.m > 0 {
            let [m, n, k] = [shape.m, shape.n, shape.k].map(|side| side as u32);
            let (token_tiles, tile_tokens) = kernel.arranged(m);
            let (addresses, factors) = ([operands.tokens, operands.token_scales, next], [[1.0; 2]; 2]);
            records.push(Record { first_tile: 0, token_tiles, tile_tokens, m, n, k, addresses, factors });
        }
        next += bytes;
    }
    (records.chunks(MOST_GROUPS).map(|records| launch(kernel, records)).collect(), arranged)
}

fn launch(kernel: &TensorMultiplySpec, records: &[Record]) -> Launch {
    let spec = ArrangeSpec { padding: kernel.padding(), groups: capacity(records.len()), target: TARGET };
    let (mut numbered, mut blocks) = (Vec::new(), 0);
    for record in records {
        numbered.push(Record { first_tile: blocks, ..*record });
        blocks += arrange::blocks(record.token_tiles, record.k);
    }
    let arguments = vec![Argument::Words(table::words(&numbered, spec.groups)), Argument::U32(blocks)];
    Launch { kernel: spec.into(), grid: [blocks, 1, 1], arguments, overlapping: true, strided: false }
}
