//! The kernel as a whole: threads, clusters, shared memory, parameters, registers; and its flow of control.

use std::collections::HashSet;

use super::Check;
use crate::error::Error;
use crate::instr::{Control, Instr, Label, Op, RegisterChange};
use crate::kernel::{Kernel, LaunchBounds, ParamType};
use crate::rule::{Rule, Violation};
use crate::target::Feature;
use crate::types::Bank;

/// Registers of a multiprocessor.
const REGISTER_FILE: u32 = 65_536;
/// Bytes of parameters a kernel can have.
const PARAM_LIMIT: u64 = 32_764;

impl Kernel {
    /// Whether blocks of this kernel fit the register file with `registers` registers per thread, as an assembler
    /// reports them.
    pub fn check_registers(&self, registers: u32) -> Result<(), Error> {
        let threads = self.launch.threads.saturating_mul(self.launch.min_blocks.unwrap_or(1));
        // Registers are given out in steps of eight.
        if threads.saturating_mul(registers.next_multiple_of(8)) <= REGISTER_FILE {
            return Ok(());
        }
        let rule = Rule::RegisterFile { threads, registers };
        Err(Error::Illegal(Box::new(Violation { kernel: self.name.clone(), place: None, rule })))
    }

    /// The registers per thread at launch, as the assembler settles them for a kernel with `setmaxnreg`: the largest
    /// budget named, as far as the register file allows it to all threads at once.
    fn launch_registers(&self) -> u32 {
        let threads = self.launch.threads.max(1) * self.launch.min_blocks.unwrap_or(1).max(1);
        let budgets = self.body.iter().filter_map(|instr| match instr.op {
            Op::Control(Control::SetMaxRegisters { count, .. }) => Some(count),
            _ => None,
        });
        (REGISTER_FILE / threads / 8 * 8).min(budgets.max().unwrap_or(256))
    }

    /// Bytes of the kernel's parameters, each aligned to its size.
    pub(crate) fn param_bytes(&self) -> u64 {
        self.params.iter().fold(0, |end: u64, param| {
            let (bytes, align) = param.ty.layout();
            end.next_multiple_of(align) + bytes
        })
    }
}

impl Check<'_> {
    pub(super) fn launch(&mut self) {
        let LaunchBounds { threads, cluster, min_blocks } = self.kernel.launch;
        self.value("threads per block", threads.into(), "1 to 1024", |n| (1..=1024).contains(&n));
        if let Some(blocks) = min_blocks {
            let together = u64::from(threads) * u64::from(blocks);
            let most = u64::from(self.kernel.target.resident_threads());
            let wanted = "at least one block, and at most 2048 threads on a multiprocessor (1536 on sm_120)";
            self.value("threads of the blocks that should fit together", together, wanted, |n| (1..=most).contains(&n));
        }
        if let Some(dims) = cluster {
            self.feature("a cluster", Feature::Clusters);
            let blocks = dims.iter().map(|&n| u64::from(n)).product::<u64>();
            let wanted = "1 to 8: up to 16 exist, but a GPU may refuse such a launch, so they are not portable";
            self.value("blocks per cluster", blocks, wanted, |n| (1..=8).contains(&n));
        }
        let wanted = "at most 166912 (163 KB) on sm_80, 232448 (227 KB) on sm_90a and sm_100, 101376 (99 KB) on sm_120";
        let (shared, limit) = (self.kernel.shared_bytes(), self.kernel.target.shared_limit());
        self.value("bytes of shared memory", shared.into(), wanted, |n| n <= limit.into());
        self.value("bytes of parameters", self.kernel.param_bytes(), "at most 32764", |n| n <= PARAM_LIMIT);
        self.regions();
        self.params();
        self.flow();
    }

    fn regions(&mut self) {
        let mut end = 0;
        for region in &self.kernel.shared {
            if region.offset < end || !region.align.is_power_of_two() || !region.offset.is_multiple_of(region.align) {
                let (name, offset, align) = (region.name.clone(), region.offset, region.align);
                self.refuse(Rule::RegionPlace { name, offset, align });
            }
            end = region.offset.saturating_add(region.bytes);
        }
    }

    fn params(&mut self) {
        for param in &self.kernel.params {
            if let ParamType::Scalar(ty) = param.ty
                && ty.bank() == Bank::Pred
            {
                let (found, wanted) = ("a predicate", "a number: predicates cannot be passed");
                self.refuse(Rule::ParamKind { name: param.name.clone(), found, wanted });
            }
        }
    }

    /// Every branch has its label, every label its place, and no thread runs off the end.
    fn flow(&mut self) {
        let mut placed: HashSet<Label> = HashSet::new();
        for instr in &self.kernel.body {
            if let Op::Control(Control::Label(label)) = instr.op
                && !placed.insert(label)
            {
                self.refuse(Rule::LabelPlacedTwice { label: label.0 });
            }
        }
        for instr in &self.kernel.body {
            if let Op::Control(Control::Branch { target, .. }) = instr.op
                && !placed.contains(&target)
            {
                self.refuse(Rule::LabelMissing { label: target.0 });
            }
        }
        let ends = matches!(self.kernel.body.last(), Some(Instr { guard: None, op: Op::Control(Control::Exit), .. }));
        if !ends {
            self.refuse(Rule::NoExit);
        }
    }

    pub(super) fn control(&mut self, op: Control) {
        if matches!(op, Control::GridDependencyWait | Control::LaunchDependents) {
            self.feature("a dependency between grids that overlap", Feature::GridDependency);
        }
        let Control::SetMaxRegisters { change, count } = op else { return };
        self.feature("setmaxnreg", Feature::SetMaxRegisters);
        let LaunchBounds { threads, min_blocks, .. } = self.kernel.launch;
        let count = u64::from(count);
        self.value("the register budget", count, "a multiple of 8 from 24 to 256", |n| {
            n % 8 == 0 && (24..=256).contains(&n)
        });
        let wanted = "a multiple of 128: the four warps of a warpgroup change their budget together";
        self.value("threads of a block with setmaxnreg", threads.into(), wanted, |n| n % 128 == 0);
        if min_blocks.is_none() {
            self.refuse(Rule::UnknownBudget);
            return;
        }
        let at_launch = u64::from(self.kernel.launch_registers());
        match change {
            RegisterChange::Increase => {
                let wanted =
                    "no less than the registers at launch: the largest budget that all threads can have at once";
                self.value("the raised register budget", count, wanted, |n| n >= at_launch);
                let others = u64::from(threads.max(128) / 128 - 1) * 24;
                let wanted = "so few that the block's other warpgroups keep 24 registers per thread each";
                let pool = at_launch * u64::from(threads / 128);
                self.value("the raised register budget", count, wanted, |n| n + others <= pool);
            }
            RegisterChange::Decrease => {
                let wanted =
                    "no more than the registers at launch: the largest budget that all threads can have at once";
                self.value("the lowered register budget", count, wanted, |n| n <= at_launch);
            }
        }
    }
}
