//! Mutants that begin where they differ.
//!
//! A mutant does what its original does up to the first instruction that the mistake touches, and beyond, as long as
//! the mistake comes to nothing there: a guard is left out that holds in all lanes, or an instruction whose guard holds
//! in none. So the original runs once, as a *trunk* that stops before each such instruction, and the mutants that would
//! do something else there go on from copies of the machine as it is, in which positions in the body and places of
//! registers have become the mutant's. Mutants whose mistake never shows end as the original does. What is found is the
//! same as in a run from the start, to the last word of a fault; where that is not certain (a mutant that needs other
//! bookkeeping, or a change of branches after it has mattered where branches lead), there is a run from the start.

use std::cell::OnceCell;
use std::ops::Range;
use std::rc::Rc;

use ptx::instr::{AsyncCopy, Control, Guard, Instr, Mma};
use ptx::{Kernel, Op, RegId};

use crate::blocks::{Block, Cluster, Grid};
use crate::error::Fault;
use crate::exec;
use crate::lanes::{FULL, lanes};
use crate::machine::{Machine, Progress};
use crate::program::{NewPlaces, Program, Stops, multiplied_by};
use crate::warp::Warp;

/// Where two bodies differ: what lies between equal beginnings and equal ends.
#[derive(Clone, Debug)]
struct Change {
    old: Range<u32>,
    new: Range<u32>,
}

impl Change {
    fn between(old: &[Instr], new: &[Instr]) -> Self {
        let from = old.iter().zip(new).take_while(|(old, new)| old == new).count();
        let (old_rest, new_rest) = (&old[from..], &new[from..]);
        let alike = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
        let range = |body: &[Instr]| from as u32..(body.len() - alike) as u32;
        Change { old: range(old), new: range(new) }
    }

    /// Where an instruction of the original is in the mutant, if the change has left it alone.
    fn moved(&self, pc: u32) -> Option<u32> {
        match pc {
            u32::MAX => Some(pc),
            _ if pc < self.old.start => Some(pc),
            _ if pc >= self.old.end => Some(self.shifted(pc)),
            _ => None,
        }
    }

    /// Where somebody stands in the mutant who stands before an instruction of the original, the change having made no
    /// difference so far.
    fn standing(&self, pc: u32) -> u32 {
        if pc <= self.old.start { pc } else { self.shifted(pc) }
    }

    fn shifted(&self, pc: u32) -> u32 {
        (pc + self.new.end).wrapping_sub(self.old.end)
    }

    /// The instructions of the original before which the mutant may have to begin: those that are changed, or come
    /// right behind what is put in, those that lead into them, and waits that turn into others by the change.
    fn stops(&self, old: &Program<'_>, new: &Program<'_>) -> Vec<u32> {
        let changed = self.old.start..self.old.end.max(self.old.start + 1);
        let leads_in = |instr: &Instr| match instr.op {
            Op::Control(Control::Branch { target, .. }) => changed.contains(&old.target(target)),
            _ => false,
        };
        let turns = |pc: u32| self.moved(pc).is_some_and(|now| old.traits(pc).spins != new.traits(now).spins);
        let body = old.kernel.body.iter().zip(0..);
        let touched = body.filter(|(instr, pc)| !changed.contains(pc) && (leads_in(instr) || turns(*pc)));
        changed.clone().chain(touched.map(|(_, pc)| pc)).collect()
    }
}

/// Mutants of a kernel, made ready to run as often as they are needed: see
/// [`Gpu::run_mutants`](crate::Gpu::run_mutants).
#[derive(Debug)]
pub struct Mutants<'k> {
    pub(crate) original: &'k Kernel,
    pub(crate) program: Option<Rc<Program<'k>>>,
    /// Each with what it takes to begin where the original is, if it can.
    pub(crate) all: Vec<(&'k Kernel, Option<Branch<'k>>)>,
    /// Of each that has come to its end, what a GPU would have against it.
    pub(crate) illegal: Vec<OnceCell<Option<String>>>,
}

impl<'k> Mutants<'k> {
    /// Finds out where each mutant differs from the original.
    pub fn new(original: &'k Kernel, mutants: &[&'k Kernel]) -> Self {
        let program = Program::new(original).ok().map(Rc::new);
        let branch = |mutant| Branch::new(program.as_ref()?, Program::new(mutant).ok()?);
        let all = mutants.iter().map(|mutant| (*mutant, branch(*mutant))).collect();
        Mutants { original, program, all, illegal: mutants.iter().map(|_| OnceCell::new()).collect() }
    }
}

/// A mutant that has not begun.
#[derive(Debug)]
pub(crate) struct Branch<'k> {
    original: Rc<Program<'k>>,
    program: Rc<Program<'k>>,
    change: Change,
    /// The instructions of the original before which it begins.
    pub(crate) stops: Vec<u32>,
    /// Whether the change is one of where lanes go.
    steers: bool,
    places: NewPlaces,
}

impl<'k> Branch<'k> {
    /// Prepares a mutant to go on from its original; `None` if it needs a run of its own.
    pub(crate) fn new(original: &Rc<Program<'k>>, mut mutant: Program<'k>) -> Option<Self> {
        if !keeps_alike(original, &mutant) {
            return None;
        }
        let change = Change::between(&original.kernel.body, &mutant.kernel.body);
        let stops = change.stops(original, &mutant);
        let part = |kernel: &'k Kernel, range: &Range<u32>| &kernel.body[range.start as usize..range.end as usize];
        let mut touched = part(original.kernel, &change.old).iter().chain(part(mutant.kernel, &change.new));
        let steers = touched.any(|instr| {
            matches!(instr.op, Op::Control(Control::Branch { .. } | Control::Label(_) | Control::Exit | Control::Trap))
        });
        let (storage, places) = mutant.storage.following(&original.storage, |pc| change.moved(pc));
        mutant.storage = Rc::new(storage);
        Some(Branch { original: original.clone(), program: Rc::new(mutant), change, stops, steers, places })
    }

    /// Whether the mutant can begin where a machine is that runs the original and has stopped, or is at its end.
    pub(crate) fn fits(&self, machine: &Machine<'k>) -> bool {
        !(self.steers && machine.core.looked_ahead)
    }

    /// Whether the warp that stands before an instruction of the original would do there in the mutant exactly what it
    /// will do: the mistake is in a guard that comes to the same, or in an instruction that no lane executes, or
    /// operands are mistaken for others that have the same values.
    fn changes_nothing(&self, machine: &Machine<'k>, pc: u32) -> bool {
        let part = |kernel: &'k Kernel, range: &Range<u32>| &kernel.body[range.start as usize..range.end as usize];
        let (old, new) = (part(self.original.kernel, &self.change.old), part(self.program.kernel, &self.change.new));
        if pc != self.change.old.start || self.original.kernel.registers != self.program.kernel.registers {
            return false;
        }
        let Some((warp, group)) = machine.stopped() else { return false };
        let acting = |instr: &Instr| match instr.guard {
            Some(Guard { pred, .. }) if (warp.undefined(pred, group) | warp.tainted(pred) & group) != 0 => None,
            guard => Some(warp.acting(guard, group)),
        };
        match (old, new) {
            ([instr], []) | ([], [instr]) => acting(instr) == Some(0),
            ([old], [new]) => match (acting(old), acting(new)) {
                (Some(0), Some(0)) => true,
                (Some(lanes), Some(others)) => {
                    lanes == others && (old.op == new.op || alike(warp, lanes, &old.op, &new.op))
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// Makes a machine that runs the original, and to which the change has made no difference yet, one that runs the
    /// mutant.
    pub(crate) fn take_over(&self, machine: &mut Machine<'k>) {
        machine.core.stops = None;
        machine.core.program = self.program.clone();
        let mut first = 0;
        let mut clusters = Vec::new();
        for grid in &mut machine.core.earlier {
            let shape = grid.program.kernel.launch.cluster.unwrap_or([1, 1, 1]);
            let count = grid.launch.grid.iter().product::<u32>() / shape.iter().product::<u32>();
            if self.replaces(grid) {
                clusters.push(first..first + count);
            }
            first += count;
        }
        clusters.push(first..u32::MAX);
        machine.grids.iter_mut().for_each(|grid| _ = self.replaces(grid));
        let core = &mut machine.core;
        let stood = |pc: &mut u32| *pc = self.change.standing(*pc);
        for record in core.log.records_mut() {
            if clusters.iter().any(|clusters| clusters.contains(&record.cluster)) {
                stood(&mut record.pc);
            }
        }
        let origins = std::mem::take(&mut core.origins);
        core.origins = origins.into_iter().map(|(pc, fault)| (self.change.standing(pc), fault)).collect();
        for cluster in &mut machine.running {
            self.take_over_cluster(cluster);
        }
    }

    /// Puts the mutant in the original's place in a grid, if it is there.
    fn replaces(&self, grid: &mut Grid<'k>) -> bool {
        let is = Rc::ptr_eq(&grid.program, &self.original);
        if is {
            grid.program = self.program.clone();
        }
        is
    }

    fn take_over_cluster(&self, cluster: &mut Cluster) {
        let stood = |pc: &mut u32| *pc = self.change.standing(*pc);
        cluster.jobs.iter_mut().for_each(|job| stood(&mut job.pc));
        for block in &mut cluster.blocks {
            let Block { warps, warpgroups, stores, visits, recent, .. } = block;
            warpgroups.iter_mut().flat_map(|group| &mut group.queue).for_each(|mma| stood(&mut mma.pc));
            stores.values_mut().for_each(|stores| stood(&mut stores.last));
            visits.values_mut().for_each(|visit| stood(&mut visit.from.3));
            recent.iter_mut().for_each(|(_, _, pc)| stood(pc));
            warps.iter_mut().flatten().for_each(|warp| self.take_over_warp(warp));
        }
    }

    fn take_over_warp(&self, warp: &mut Warp) {
        let stood = |pc: &mut u32| *pc = self.change.standing(*pc);
        warp.pc.iter_mut().chain(&mut warp.together).for_each(stood);
        warp.owned.iter_mut().for_each(|owned| stood(&mut owned.pc));
        warp.loading.iter_mut().for_each(|loading| stood(&mut loading.pc));
        warp.copies.last.iter_mut().for_each(|(_, pc)| stood(pc));
        warp.take_over(&self.program, stood, &self.places);
    }
}

/// Whether two instructions that differ in their operands do the same with what the lanes of a warp hold.
fn alike(warp: &Warp, mask: u32, old: &Op, new: &Op) -> bool {
    match (old, new) {
        (
            Op::Copy(AsyncCopy::ThreadCopy { dst, src, bytes, source_bytes: Some(read), policy }),
            Op::Copy(AsyncCopy::ThreadCopy { dst: to, src: from, bytes: all, source_bytes: None, policy: other }),
        ) => {
            let values = warp.value(*read);
            let whole = |lane: usize| values[lane] == u64::from(*bytes);
            (dst, src, bytes, policy) == (to, from, all, other) && lanes(mask).all(whole)
        }
        (Op::Mma(old), Op::Mma(new)) => {
            let (Mma::Dense { d, .. } | Mma::BlockScaled { d, .. }) = old;
            let (Mma::Dense { d: others, a, b, .. } | Mma::BlockScaled { d: others, a, b, .. }) = new;
            let defined = |reg: &RegId| warp.undefined(*reg, FULL) == 0;
            d == others
                && !warp.taints
                && a.iter().chain(b).all(defined)
                && exec::sums(warp, old) == exec::sums(warp, new)
        }
        _ => false,
    }
}

/// Runs the original, and mutants from where each begins; hands over each mutant that has come to its end, by number.
/// Those that are not handed over need a run of their own.
pub(crate) fn run_all<'k>(
    trunk: Machine<'k>,
    mut branches: Vec<(usize, &Branch<'k>)>,
    mut over: impl FnMut(usize, &mut Machine<'k>, Result<(), Box<Fault>>),
) {
    let Some(original) = branches.first().map(|(_, branch)| branch.original.clone()) else { return };
    let (mut trunk, mut stale) = (Some(trunk), true);
    while let Some(mut machine) = trunk.take()
        && !branches.is_empty()
    {
        if stale {
            machine.core.stops = Some(Stops::new(&original, branches.iter().flat_map(|(_, branch)| &branch.stops)));
        }
        let Ok(progress) = machine.run() else { return };
        let begins = |branch: &Branch<'_>| match progress {
            Progress::Over => true,
            Progress::Stopped(pc) => branch.stops.contains(&pc) && !branch.changes_nothing(&machine, pc),
        };
        let (here, later): (Vec<_>, Vec<_>) = branches.into_iter().partition(|(_, branch)| begins(branch));
        branches = later;
        stale = !here.is_empty();
        machine.core.stops.iter_mut().for_each(Stops::pass);
        for (number, branch) in &here {
            if !branch.fits(&machine) {
                continue;
            }
            if progress == Progress::Over {
                over(*number, &mut machine, Ok(()));
                continue;
            }
            let mut machine = machine.clone();
            branch.take_over(&mut machine);
            let run = machine.run();
            over(*number, &mut machine, run.map(drop));
        }
        trunk = Some(machine).filter(|_| progress != Progress::Over);
    }
}

/// Whether what a machine keeps beside positions and places is the same for both: how finely accesses are told apart,
/// which slots threads have, and of which registers it is noted who uses them.
fn keeps_alike(original: &Program<'_>, mutant: &Program<'_>) -> bool {
    let (old, new) = (original.kernel, mutant.kernel);
    let owned: Vec<_> = multiplied_by(old).collect();
    (old.launch, old.target, old.shared_bytes()) == (new.launch, new.target, new.shared_bytes())
        && (original.shared_unit, original.global_unit) == (mutant.shared_unit, mutant.global_unit)
        && original.copies_by_threads == mutant.copies_by_threads
        && (original.claims, original.allocates) == (mutant.claims, mutant.allocates)
        && old.registers.iter().zip(&new.registers).all(|(old, new)| old <= new)
        && multiplied_by(new).all(|reg| owned.contains(&reg))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(numbers: &[u32]) -> Vec<Instr> {
        let phase = ptx::PhaseId(0);
        let label = |number: &u32| Op::Control(Control::Label(ptx::Label(*number)));
        numbers.iter().map(|number| Instr { guard: None, op: label(number), phase, line: None }).collect()
    }

    #[test]
    fn a_change_is_what_lies_between_equal_ends() {
        let change = |old: &[u32], new: &[u32]| {
            let Change { old, new } = Change::between(&labels(old), &labels(new));
            (old, new)
        };
        assert_eq!(change(&[1, 2, 3], &[1, 3]), (1..2, 1..1));
        assert_eq!(change(&[1, 2, 3], &[1, 9, 2, 3]), (1..1, 1..2));
        assert_eq!(change(&[1, 2, 3], &[1, 2, 2, 3]), (2..2, 2..3));
        assert_eq!(change(&[1, 2, 2, 3], &[1, 2, 3]), (2..3, 2..2));
        assert_eq!(change(&[1, 2, 3, 4], &[1, 3, 2, 4]), (1..3, 1..3));
    }

    #[test]
    fn who_stands_before_a_change_executes_it() {
        let inserted = Change { old: 5..5, new: 5..6 };
        assert_eq!([4, 5, 6].map(|pc| inserted.standing(pc)), [4, 5, 7]);
        assert_eq!([4, 5, 6].map(|pc| inserted.moved(pc)), [Some(4), Some(6), Some(7)]);
        let removed = Change { old: 5..6, new: 5..5 };
        assert_eq!([4, 5, 6].map(|pc| removed.standing(pc)), [4, 5, 5]);
        assert_eq!([4, 5, 6].map(|pc| removed.moved(pc)), [Some(4), None, Some(5)]);
    }

    #[test]
    fn a_mutant_whose_grid_begins_otherwise_has_a_run_of_its_own() {
        let shape = ptx::LaunchBounds { threads: 32, cluster: None, min_blocks: Some(1) };
        let mut k = ptx::Builder::new("claims", ptx::Target::Sm100f, shape);
        let (answer, bars) = (k.shared("answer", 16, 16), k.barriers("bars", 1));
        k.try_cancel(answer.at(0), bars.at(0), false);
        k.fence_async();
        let kernel = k.finish().unwrap();
        let original = Rc::new(Program::new(&kernel).unwrap());
        let without = |left_out: fn(&Op) -> bool| {
            let mut mutant = kernel.clone();
            mutant.body.retain(|instr| !left_out(&instr.op));
            assert_ne!(mutant.body.len(), kernel.body.len());
            Branch::new(&original, Program::new(&mutant).unwrap()).is_some()
        };
        assert!(!without(|op| matches!(op, Op::Copy(_))), "it asks for nobody's work");
        assert!(without(|op| !matches!(op, Op::Copy(_) | Op::Control(_))));
    }
}
