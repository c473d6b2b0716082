//! The kernel as whoever cuts a problem into launches sees it.

use op::Schedule;
use ptx::{Feature, Target};

use super::kernel::WarpMultiplySpec;
use crate::families::cut::{Group, MultiplyKernel};
use crate::launch::Argument;

impl MultiplyKernel for WarpMultiplySpec {
    fn for_groups(self, groups: u32, biased: bool) -> Self {
        WarpMultiplySpec { groups, biased, ..self }
    }

    fn target(&self) -> Target {
        self.target
    }

    fn columns(&self) -> u32 {
        self.columns
    }

    fn cut(&self, m: u32) -> (u32, u32) {
        (m.div_ceil(self.tokens), self.tokens)
    }

    fn blocks(&self, tiles: u32, multiprocessors: u32) -> u32 {
        match self.schedule {
            Schedule::Persistent => tiles.min(multiprocessors * self.resident),
            Schedule::PerTile | Schedule::SplitK => tiles * self.blocks_per_tile(),
        }
    }

    fn tokens(&self, groups: &[Group]) -> Vec<Argument> {
        let halves = |wide: u64| [wide as u32, (wide >> 32) as u32];
        let words = |group: &Group| [group.operands.tokens, group.operands.part_bytes].map(halves).concat();
        let mut table: Vec<u32> = groups.iter().flat_map(words).collect();
        table.resize((self.groups * super::kernel::TOKEN_WORDS) as usize, 0);
        vec![Argument::Words(table)]
    }

    fn weight_factor(&self) -> f64 {
        WarpMultiplySpec::weight_factor(self)
    }

    fn scales_columns(&self) -> bool {
        self.scaling.is_fp8()
    }

    fn overlaps(&self) -> bool {
        self.target.has(Feature::GridDependency)
    }
}
