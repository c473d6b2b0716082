//! The kernel as whoever cuts a problem into launches sees it.

use op::Schedule;
use ptx::Target;

use super::kernel::{MultiplySpec, Tokens};
use crate::families::cut::{Group, MultiplyKernel};
use crate::launch::Argument;

impl MultiplyKernel for MultiplySpec {
    fn for_groups(self, groups: u32, biased: bool) -> Self {
        MultiplySpec { groups, biased, ..self }
    }

    fn target(&self) -> Target {
        Target::Sm90a
    }

    fn columns(&self) -> u32 {
        self.columns
    }

    fn cut(&self, m: u32) -> (u32, u32) {
        MultiplySpec::cut(self, m)
    }

    fn blocks(&self, tiles: u32, multiprocessors: u32) -> u32 {
        match self.schedule {
            Schedule::Persistent => tiles.min(multiprocessors),
            Schedule::PerTile | Schedule::SplitK => match tiles * self.blocks_per_tile() {
                blocks if spreads(self, blocks, multiprocessors) => multiprocessors,
                blocks => blocks,
            },
        }
    }

    fn tokens(&self, groups: &[Group]) -> Vec<Argument> {
        let map = |group: &Group| {
            let [m, _, k] = group.sides();
            self.token_map(group.operands.tokens, [m, k], group.operands.part_bytes)
        };
        vec![Argument::Maps(groups.iter().map(map).collect())]
    }

    fn weight_factor(&self) -> f64 {
        if self.scales.is_fp8() { 1.0 } else { crate::pack::WEIGHT_FACTOR }
    }

    fn scales_columns(&self) -> bool {
        self.scales.is_fp8()
    }

    fn takes_rounded(&self) -> bool {
        self.element == Tokens::E4m3
    }

    fn overlaps(&self) -> bool {
        true
    }
}

/// Whether a launch that needs so many blocks has one for each multiprocessor. Where a multiprocessor holds two blocks,
/// one is to be of this launch and one of the next: multiprocessors without any of this one would take two of the next,
/// which then takes twice as long. So if most have something to do, the others repeat some of it.
fn spreads(kernel: &MultiplySpec, blocks: u32, multiprocessors: u32) -> bool {
    let most = (multiprocessors / 2 + 1..=multiprocessors).contains(&blocks);
    kernel.resident() > 1 && most && multiprocessors.is_multiple_of(kernel.blocks_per_tile())
}
