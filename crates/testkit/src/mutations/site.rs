//! Where a mistake was made: what a predicate of [`super::equivalents`] may ask about it.

use op::{Config, Epilogue, Request};
use ptx::instr::{Access, Arith, AsyncCopy, Barrier, Comparison, Control, Instr, Tcgen05};
use ptx::{Kernel, Op, Operand, RegId};
use sim::mutate::Mutant;

use super::ways::Way;

/// An instruction of a kernel before it was broken, and what stands around it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'k> {
    pub way: &'static Way,
    kernel: &'k Kernel,
    at: usize,
}

impl<'k> Site<'k> {
    pub fn new(way: &'static Way, kernel: &'k Kernel, mutant: &Mutant) -> Self {
        Site { way, kernel, at: mutant.position }
    }

    pub fn op(&self) -> &'k Op {
        &self.kernel.body[self.at].op
    }

    /// The names of its phases, from below the kernel's own.
    pub fn phase(&self) -> String {
        self.phase_of(&self.kernel.body[self.at])
    }

    pub fn phase_of(&self, instr: &Instr) -> String {
        let path = self.kernel.phase_path(instr.phase);
        path.strip_prefix(&self.kernel.name).unwrap_or(&path).trim_start_matches('/').to_owned()
    }

    /// What the way asks for.
    pub fn config(&self) -> Option<Config> {
        self.way.request.parse::<Request>().ok()?.complete()
    }

    pub fn before(&self) -> &'k [Instr] {
        &self.kernel.body[..self.at]
    }

    pub fn after(&self) -> &'k [Instr] {
        &self.kernel.body[self.at + 1..]
    }

    /// Whether some instruction of the kernel is like this.
    pub fn kernel_has(&self, like: impl Fn(&Op) -> bool) -> bool {
        self.kernel.body.iter().any(|instr| like(&instr.op))
    }

    /// Whether some instruction of a phase is like this.
    pub fn phase_has(&self, phase: &str, like: impl Fn(&Op) -> bool) -> bool {
        self.kernel.body.iter().any(|instr| like(&instr.op) && self.phase_of(instr) == phase)
    }

    /// Whether a part of shared memory has this name.
    pub fn has_region(&self, name: &str) -> bool {
        self.kernel.shared.iter().any(|region| region.name == name)
    }

    /// The part of shared memory in which a barrier lies that is initialised here.
    pub fn barrier_region(&self) -> Option<&'k str> {
        let Op::Barrier(Barrier::Init { bar, .. }) = self.op() else { return None };
        Some(&self.kernel.region_at(bar.offset.cast_unsigned())?.name)
    }

    /// The arithmetic that gave a register its value.
    fn source(&self, register: RegId) -> Option<&'k Arith> {
        let writes = |instr: &Instr| {
            let mut written = false;
            instr.registers(&mut |other, access| written |= other == register && access != Access::Read);
            written
        };
        match &self.before().iter().rfind(|instr| writes(instr))?.op {
            Op::Arith(arith) => Some(arith),
            _ => None,
        }
    }

    /// What its guard was computed by.
    pub fn condition(&self) -> Option<&'k Arith> {
        self.source(self.kernel.body[self.at].guard?.pred)
    }

    /// Whether it depends on whether more than a constant are there.
    pub fn if_more_than_constant(&self) -> bool {
        matches!(self.condition(), Some(Arith::Compare { cmp: Comparison::Gt, b: Operand::Imm(_), .. }))
    }

    /// What a branch leaves out.
    pub fn skipped(&self) -> &'k [Instr] {
        let Op::Control(Control::Branch { target, .. }) = *self.op() else { return &[] };
        let end = self.after().iter().position(|instr| instr.op == Op::Control(Control::Label(target)));
        &self.after()[..end.unwrap_or(0)]
    }

    /// What the number of rounds was computed by, where a branch leaves out a loop that would have none.
    pub fn rounds(&self) -> Option<&'k Arith> {
        let loops = matches!(self.after().first()?.op, Op::Control(Control::Label(_)));
        match self.condition()? {
            Arith::Compare { cmp: Comparison::Ge, b: Operand::Reg(count), .. } if loops => self.source(*count),
            _ => None,
        }
    }

    /// Whether a loop ends behind it: spinning at a barrier is none.
    pub fn loops_later(&self) -> bool {
        let body = &self.kernel.body;
        (self.at + 1..body.len()).any(|at| match body[at].op {
            Op::Control(Control::Branch { target, .. }) => {
                let back = body[..at].iter().any(|instr| instr.op == Op::Control(Control::Label(target)));
                back && !matches!(body[at - 1].op, Op::Barrier(Barrier::TryWait { .. }))
            }
            _ => false,
        })
    }

    /// Fences of Blackwell's from here on, before the next multiplication of the phase.
    pub fn fences_to_multiplication(&self) -> usize {
        let (phase, rest) = (self.kernel.body[self.at].phase, &self.kernel.body[self.at..]);
        let multiplies = |op: &Op| matches!(op, Op::Tcgen05(Tcgen05::Mma { .. } | Tcgen05::MmaDense { .. }));
        let until = rest.iter().take_while(|instr| instr.phase == phase && !multiplies(&instr.op));
        until.filter(|instr| instr.op == Op::Tcgen05(Tcgen05::FenceAfterSync)).count()
    }

    /// Whether two warpgroups of Hopper's share k, and there are no more stages than one for each.
    pub fn one_stage_each(&self) -> bool {
        let joins = self.phase_has("consume/combine", |op| matches!(op, Op::Barrier(Barrier::NamedSync { .. })));
        joins && self.config().is_some_and(|config| config.stages <= 2)
    }

    /// Whether the sums that warps leave for others stay as they are until the tile ends.
    pub fn sums_stay(&self) -> bool {
        self.has_region("sums") || self.config().is_some_and(|config| config.epilogue == Epilogue::Direct)
    }

    /// Before anything is waited for: a copy by threads into one of the first stages. Whether it fills in zeros.
    pub fn first_copies(&self) -> Option<bool> {
        let waits = |instr: &Instr| matches!(instr.op, Op::Copy(AsyncCopy::WaitThreadGroup { .. }));
        match self.op() {
            Op::Copy(AsyncCopy::ThreadCopy { source_bytes, .. }) if !self.before().iter().any(waits) => {
                Some(source_bytes.is_some())
            }
            _ => None,
        }
    }

    /// Whether a copy's guard is that its stage is there: a comparison of two registers.
    pub fn if_stage_is_there(&self) -> bool {
        matches!(self.condition(), Some(Arith::Compare { cmp: Comparison::Lt, b: Operand::Reg(_), .. }))
    }

    /// Whether a copy by threads is the first of a stage's weights, right behind tokens of 16 bits.
    pub fn copies_first_weights(&self) -> bool {
        let Op::Copy(AsyncCopy::ThreadCopy { dst, .. }) = self.op() else { return false };
        self.config().is_some_and(|config| dst.offset as usize == config.tile.tokens * config.depth * 2)
    }
}
