//! A problem's products as launches, given where everything is in the device's memory: for every family alike.
//!
//! Nothing here allocates: [`workspace_bytes`] says how much memory beside the operands a configuration needs, and
//! [`launches`] turns addresses into kernels, grids and arguments. All groups with tokens go into one launch, up to 128
//! of them; fused strategies need no other. Two passes are a launch for each matrix, which leave their sums in the
//! workspace, and one that joins them. So do, in one launch, blocks that share k where they cannot meet.
//!
//! A kernel's arguments, in order: where tokens are, the table of groups, that of biases if there are some, that of
//! rounded tokens if they are, that of columns' factors if they have some, the number of tiles, and the gate's limit.
//! Sums that go through memory get their biases where they are joined.

use op::{Config, Problem, Schedule, Shape};
use ptx::Target;

use super::choice::{MOST_GROUPS, capacity, passes_twice};
use crate::family::GroupOperands;
use crate::join::{JoinSpec, plane_bytes};
use crate::launch::{Argument, Launch, Spec};
use crate::phases::gates::{self, Function};
use crate::phases::table::{self, Record};

/// What a family's kernel of products is to whoever cuts a problem into launches.
pub(super) trait MultiplyKernel: Spec {
    /// The same kernel for so many groups, whose sums have biases or not.
    fn for_groups(self, groups: u32, biased: bool) -> Self;

    /// What it is assembled for, and so what joins its sums.
    fn target(&self) -> Target;

    /// Columns of C of a tile.
    fn columns(&self) -> u32;

    /// Into how many tiles `m` tokens are cut, and the tokens of each but the last.
    fn cut(&self, m: u32) -> (u32, u32);

    /// Blocks of a launch of so many tiles.
    fn blocks(&self, tiles: u32, multiprocessors: u32) -> u32;

    /// The arguments that say where the groups' tokens are.
    fn tokens(&self, groups: &[Group]) -> Vec<Argument>;

    /// What sums are multiplied by besides, since weights were made smaller than they are.
    fn weight_factor(&self) -> f64;

    /// Whether it multiplies tokens that were rounded to e4m3.
    fn takes_rounded(&self) -> bool {
        false
    }

    /// Whether columns of C have factors of their own.
    fn scales_columns(&self) -> bool {
        false
    }

    /// Whether launches begin while the one before them ends.
    fn overlaps(&self) -> bool;
}

/// A group with tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// Its sizes.
    pub shape: Shape,
    /// Where its operands are.
    pub operands: GroupOperands,
    /// Where its planes of sums begin, if it has some.
    planes: u64,
}

impl Group {
    /// Tokens, columns and depth as kernels count them.
    pub fn sides(&self) -> [u32; 3] {
        [self.shape.m, self.shape.n, self.shape.k].map(|side| side as u32)
    }

    fn plane(&self, index: u64) -> u64 {
        self.planes + index * plane_bytes(self.shape.m * self.shape.n) as u64
    }

    fn is_biased(&self) -> bool {
        self.operands.biases != [0; 2]
    }

    fn factors(&self, kernel: &impl MultiplyKernel) -> [[f32; 2]; 2] {
        let alphas = self.operands.alphas.map(|alpha| alpha * kernel.weight_factor());
        if kernel.scales_columns() { table::alpha_words(alphas[0]) } else { alphas.map(gates::factors) }
    }
}

/// Planes of sums of a group: of each matrix, from each of the blocks that share k and cannot meet (one where none do).
fn planes(problem: &Problem, config: &Config, blocks: u32) -> usize {
    if passes_twice(problem, config) || blocks > 1 { blocks as usize * problem.matrices() } else { 0 }
}

/// Bytes of memory that a configuration needs beside the operands, where so many blocks leave sums of each tile.
pub(super) fn workspace_bytes(problem: &Problem, config: &Config, blocks: u32) -> usize {
    let planes = planes(problem, config, blocks);
    problem.groups().iter().map(|shape| planes * plane_bytes(shape.m * shape.n)).sum()
}

/// A problem in one configuration.
pub(super) struct Cut<'a, K> {
    pub problem: &'a Problem,
    pub config: &'a Config,
    pub kernel: K,
    /// Blocks that leave sums of each tile.
    pub blocks: u32,
    pub multiprocessors: u32,
}

impl<K: MultiplyKernel> Cut<'_, K> {
    /// The launches, in the order in which they run. `operands` has an entry for each group; `workspace` is the address
    /// of as much memory as [`workspace_bytes`] says.
    pub fn launches(&self, operands: &[GroupOperands], workspace: u64) -> Vec<Launch> {
        let planes = planes(self.problem, self.config, self.blocks);
        let (mut next, mut groups) = (workspace, Vec::new());
        for (shape, operands) in self.problem.groups().iter().zip(operands).filter(|(shape, _)| shape.m > 0) {
            groups.push(Group { shape: *shape, operands: *operands, planes: next });
            next += (planes * plane_bytes(shape.m * shape.n)) as u64;
        }
        // The longest tiles first, so that short ones fill the gaps at the end.
        groups.sort_by_key(|Group { shape, .. }| {
            std::cmp::Reverse(shape.m.min(self.kernel.cut(shape.m as u32).1 as usize) * shape.k)
        });
        let mut launches = Vec::new();
        for groups in groups.chunks(MOST_GROUPS) {
            if passes_twice(self.problem, self.config) {
                launches.extend([0, 1].map(|matrix| self.multiply(groups, Some(matrix))));
            } else {
                launches.push(self.multiply(groups, None));
            }
            launches.extend((planes > 0).then(|| self.join(groups)));
        }
        launches
    }

    /// The products of all groups: to C, or the sums of one matrix or of all to their planes.
    fn multiply(&self, groups: &[Group], matrix: Option<usize>) -> Launch {
        let leaves_sums = matrix.is_some() || self.blocks > 1;
        let biased = !leaves_sums && groups.iter().any(Group::is_biased);
        let kernel = self.kernel.for_groups(capacity(groups.len()), biased);
        let (mut records, mut tiles) = (Vec::new(), 0u32);
        for group in groups {
            let [m, n, k] = group.sides();
            let [gate, up] = group.operands.weights;
            let (addresses, factors) = match matrix {
                None if self.blocks > 1 => ([gate, up, group.plane(0)], [[1.0; 2]; 2]),
                None => ([gate, up, group.operands.out], group.factors(&kernel)),
                Some(matrix) => {
                    let weights = group.operands.weights[matrix];
                    ([weights, weights, group.plane(matrix as u64)], [[1.0; 2]; 2])
                }
            };
            let (token_tiles, tile_tokens) = kernel.cut(m);
            records.push(Record { first_tile: tiles, token_tiles, tile_tokens, m, n, k, addresses, factors });
            tiles += token_tiles * n.div_ceil(kernel.columns());
        }
        let grid = [kernel.blocks(tiles, self.multiprocessors), 1, 1];
        let tokens = kernel.tokens(groups).into_iter();
        let arguments = tokens.chain(self.arguments(groups, &records, biased, tiles)).collect();
        let strided = self.config.schedule == Schedule::Persistent;
        Launch { kernel: kernel.into(), grid, arguments, overlapping: kernel.overlaps(), strided }
    }

    /// The gate over all groups' sums.
    fn join(&self, groups: &[Group]) -> Launch {
        let spec = JoinSpec {
            function: Function::of(self.problem.gate()),
            output: self.problem.output(),
            groups: capacity(groups.len()),
            parts: self.blocks,
            target: self.kernel.target(),
            biased: groups.iter().any(Group::is_biased),
        };
        let (mut records, mut blocks) = (Vec::new(), 0u32);
        for group in groups {
            let [m, n, _] = group.sides();
            let second = group.plane(self.problem.matrices() as u64 - 1);
            let addresses = [group.plane(0), second, group.operands.out];
            let factors = group.factors(&self.kernel);
            records.push(Record { first_tile: blocks, token_tiles: 1, tile_tokens: m, m, n, k: 0, addresses, factors });
            blocks += spec.blocks(group.shape.m * group.shape.n);
        }
        let arguments = self.arguments(groups, &records, spec.biased, blocks).collect();
        let overlapping = self.kernel.overlaps();
        Launch { kernel: spec.into(), grid: [blocks, 1, 1], arguments, overlapping, strided: false }
    }

    fn arguments(
        &self,
        groups: &[Group],
        records: &[Record],
        biased: bool,
        tiles: u32,
    ) -> impl Iterator<Item = Argument> {
        let capacity = capacity(records.len());
        let biases: Vec<[u64; 2]> = groups.iter().map(|group| group.operands.biases).collect();
        let mut arguments = vec![Argument::Words(table::words(records, capacity))];
        arguments.extend(biased.then(|| Argument::Words(table::bias_words(&biases, capacity))));
        arguments.extend(self.kernel.takes_rounded().then(|| {
            let rounded = groups.iter().map(|group| (group.operands.token_scales, group.operands.lifts));
            Argument::Words(table::rounded_words(&rounded.collect::<Vec<_>>(), capacity))
        }));
        arguments.extend(self.kernel.scales_columns().then(|| {
            let columns: Vec<u64> = groups.iter().map(|group| group.operands.column_factors).collect();
            Argument::Words(table::column_words(&columns, capacity))
        }));
        arguments.extend([Argument::U32(tiles), Argument::F32(gates::clamp(self.problem.gate()))]);
        arguments.into_iter()
    }
}
