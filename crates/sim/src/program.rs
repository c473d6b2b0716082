//! A kernel made ready to run: branch targets, the registers of each instruction, and how finely its accesses must be
//! told apart are worked out once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use ptx::instr::{Access, Arith, AsyncCopy, Barrier, Control, Fragments, Guard, MatrixA, Memory, Tcgen05, Wgmma};
use ptx::{Bank, Instr, Kernel, Op, RegId, Space};

use crate::error::{FaultKind, Site};

/// A kernel made ready to run.
#[derive(Debug)]
pub(crate) struct Program<'k> {
    pub(crate) kernel: &'k Kernel,
    labels: Vec<usize>,
    /// The registers of all instructions, and where each one's begin.
    registers: Vec<(RegId, Access)>,
    starts: Vec<u32>,
    /// What is asked about each instruction whenever it is executed.
    traits: Vec<Traits>,
    /// Where the values of registers are kept.
    pub(crate) storage: Rc<Storage>,
    /// Whether its threads copy one by one.
    pub(crate) copies_by_threads: bool,
    /// Whether its clusters ask for each other's work, and whether its blocks have columns of tensor memory: both
    /// decide how a grid begins.
    pub(crate) claims: bool,
    pub(crate) allocates: bool,
    /// Bytes of the smallest access to shared and to global memory, at most 16.
    pub(crate) shared_unit: u32,
    pub(crate) global_unit: u32,
}

/// What is asked about an instruction whenever it is executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    /// Whether it is a thread's, and touches registers that multiplications own at times.
    pub(crate) multiplied: bool,
    /// Whether it is a barrier wait that is repeated until it succeeds, so that its lanes may sleep.
    pub(crate) spins: bool,
    /// Whether it may let others go on that wait.
    pub(crate) wakes: bool,
    /// Whether it may ask where lanes are, or leave some where they are.
    pub(crate) may_stay: bool,
    /// Whether it changes nothing for others: a loop of these is no progress.
    pub(crate) looks_only: bool,
    /// Whether it is arithmetic of all lanes, with registers that only threads use.
    plain: bool,
    /// Whether every register that it reads was written, whichever way a lane came.
    pub(crate) sound: bool,
}

impl<'k> Program<'k> {
    pub(crate) fn new(kernel: &'k Kernel) -> Result<Self, FaultKind> {
        let refuse = |what: String| FaultKind::BadLaunch { what, remedy: "build the kernel with ptx::Builder" };
        let labels = kernel.labels().map_err(|error| refuse(error.to_string()))?;
        let (mut registers, mut starts) = (Vec::new(), vec![0]);
        for instr in &kernel.body {
            instr.registers(&mut |reg, access| registers.push((reg, access)));
            starts.push(registers.len() as u32);
        }
        let beyond = |(reg, _): &&(RegId, Access)| reg.index >= kernel.register_count(reg.bank);
        if let Some((reg, _)) = registers.iter().find(beyond) {
            return Err(refuse(format!("register {reg} is not declared")));
        }
        let of_warps = kernel.body.iter().enumerate().filter(|(_, instr)| matches!(instr.op, Op::Mma(_)));
        let of_warps = of_warps.flat_map(|(at, _)| &registers[starts[at] as usize..starts[at + 1] as usize]);
        let of_warps = of_warps.map(|(reg, _)| *reg).filter(|reg| reg.bank != Bank::Pred);
        if let Some(reg) = multiplied_by(kernel).chain(of_warps).find(|reg| reg.bank != Bank::B32) {
            return Err(refuse(format!("register {reg} is no 32-bit register, and is multiplied")));
        }
        let mut own = vec![false; kernel.register_count(Bank::B32) as usize];
        multiplied_by(kernel).for_each(|reg| own[reg.index as usize] = true);
        let owned = |reg: &RegId| reg.bank == Bank::B32 && own[reg.index as usize];
        let touches = |regs: &[(RegId, Access)]| regs.iter().any(|(reg, _)| owned(reg));
        let touched = starts.windows(2).map(|ends| touches(&registers[ends[0] as usize..ends[1] as usize]));
        let sound = certainly_defined(kernel, &labels, &registers, &starts);
        let traits = kernel.body.iter().zip(touched).enumerate();
        let traits = traits.map(|(at, (Instr { op, guard, .. }, touched))| Traits {
            sound: sound[at],
            plain: matches!(op, Op::Arith(_)) && guard.is_none() && !touched,
            multiplied: touched && !matches!(op, Op::Wgmma(_)),
            spins: spins(kernel, &labels, at),
            wakes: wakes(op),
            may_stay: may_stay(op),
            looks_only: looks_only(op),
        });
        let traits = traits.collect();
        let storage = Rc::new(Storage::new(Lives::new(kernel, &registers, &starts, owned)));
        let copies_by_threads = kernel.body.iter().any(|instr| is_of_threads(&instr.op));
        let claims = kernel.body.iter().any(|instr| matches!(instr.op, Op::Copy(AsyncCopy::TryCancel { .. })));
        let allocates = kernel.body.iter().any(|instr| matches!(instr.op, Op::Tcgen05(Tcgen05::Alloc { .. })));
        let (shared_unit, global_unit) = (unit(kernel, false), unit(kernel, true));
        Ok(Program {
            kernel,
            labels,
            registers,
            starts,
            traits,
            storage,
            copies_by_threads,
            claims,
            allocates,
            shared_unit,
            global_unit,
        })
    }

    pub(crate) fn instr(&self, pc: u32) -> Option<&'k Instr> {
        self.kernel.body.get(pc as usize)
    }

    pub(crate) fn target(&self, label: ptx::Label) -> u32 {
        self.labels[label.0 as usize] as u32
    }

    pub(crate) fn registers(&self, pc: u32) -> &[(RegId, Access)] {
        &self.registers[self.starts[pc as usize] as usize..self.starts[pc as usize + 1] as usize]
    }

    /// The instruction, if it is arithmetic of all lanes, with registers that only threads use; and whether what it
    /// reads was certainly written.
    pub(crate) fn plain_arithmetic(&self, pc: u32) -> Option<(&'k Arith, bool)> {
        let traits = self.traits.get(pc as usize).filter(|traits| traits.plain)?;
        match &self.kernel.body[pc as usize].op {
            Op::Arith(op) => Some((op, traits.sound)),
            _ => None,
        }
    }

    pub(crate) fn traits(&self, pc: u32) -> Traits {
        self.traits[pc as usize]
    }

    /// Whether a lane may come from one instruction to another.
    pub(crate) fn reaches(&self, from: u32, to: u32) -> bool {
        let mut seen = vec![false; self.kernel.body.len()];
        let mut next = vec![from];
        while let Some(at) = next.pop() {
            if at == to {
                return true;
            }
            let Some(instr) = self.instr(at).filter(|_| !std::mem::replace(&mut seen[at as usize], true)) else {
                continue;
            };
            if let Op::Control(Control::Branch { target, .. }) = instr.op {
                next.push(self.target(target));
            }
            let goes_on = !matches!(instr.op, Op::Control(Control::Branch { .. } | Control::Exit | Control::Trap));
            if goes_on || instr.guard.is_some() {
                next.push(at + 1);
            }
        }
        false
    }

    /// An instruction of a warp, for people.
    pub(crate) fn site(&self, block: [u32; 3], warp: usize, lanes: u32, pc: u32) -> Site {
        let (instruction, phase) = match self.instr(pc) {
            Some(instr) => (self.kernel.instruction(instr).trim().to_string(), self.kernel.phase_path(instr.phase)),
            None => ("the end of the body".into(), self.kernel.name.clone()),
        };
        let line = self.instr(pc).and_then(|instr| instr.line);
        Site { block, warp: warp as u32, lanes, position: pc as usize, line, instruction, phase }
    }

    /// The name of a byte of shared memory: its region and the place within it, by number if it is an array of
    /// barriers.
    pub(crate) fn shared_name(&self, offset: u32) -> String {
        match self.kernel.region_at(offset) {
            Some(region) if region.align == 8 && region.bytes.is_multiple_of(8) && offset.is_multiple_of(8) => {
                format!("{}[{}]", region.name, (offset - region.offset) / 8)
            }
            Some(region) => format!("{}+{}", region.name, offset - region.offset),
            None => format!("byte {offset}, in no region"),
        }
    }
}

/// The registers of multiplications that own them while they run: accumulators and parts of A.
pub(crate) fn multiplied_by(kernel: &Kernel) -> impl Iterator<Item = RegId> {
    let words = |instr: &Instr| -> Vec<RegId> {
        match &instr.op {
            Op::Wgmma(Wgmma::Mma { d, a: MatrixA::Registers(a), .. }) => d.iter().chain(a).copied().collect(),
            Op::Wgmma(Wgmma::Mma { d, .. }) => d.clone(),
            _ => Vec::new(),
        }
    };
    kernel.body.iter().flat_map(words)
}

/// From where to where registers live: by bank and register, the first and the last instruction that has it, and
/// whether it must be thought to live throughout.
#[derive(Debug)]
struct Lives {
    spans: [Vec<(u32, u32)>; 4],
    lasting: [Vec<bool>; 4],
}

/// Where the values of registers are kept: by bank, the place of each register, and how many places there are.
///
/// Kernels have thousands of registers, most of which are written once and read a few instructions later. Those of
/// which that is certain take turns in a few places, so that a warp's values fit a cache: the first instruction that
/// has such a register writes it in every lane that gets there, and no branch leads in or out before the last. Of
/// whoever may be read otherwise, the place is its own.
#[derive(Debug)]
pub(crate) struct Storage {
    places: [Vec<u32>; 4],
    pub(crate) counts: [u32; 4],
    lives: Lives,
}

/// By bank, places that only a mutant has, and which place of the original's the register there had, if it was there at
/// all.
pub(crate) type NewPlaces = [Vec<(u32, Option<u32>)>; 4];

/// An instruction that is none.
const NOWHERE: u32 = u32::MAX;

impl Lives {
    fn new(kernel: &Kernel, registers: &[(RegId, Access)], starts: &[u32], owned: impl Fn(&RegId) -> bool) -> Self {
        let mut spans = kernel.registers.map(|count| vec![(NOWHERE, NOWHERE); count as usize]);
        // The number of the stretch without branches that an instruction is in.
        let mut stretch = 0;
        let mut stretches = spans.each_ref().map(|spans| vec![0u32; spans.len()]);
        let mut lasting = spans.each_ref().map(|spans| vec![false; spans.len()]);
        for (at, instr) in kernel.body.iter().enumerate() {
            stretch += u32::from(matches!(instr.op, Op::Control(Control::Label(_))));
            for (reg, access) in &registers[starts[at] as usize..starts[at + 1] as usize] {
                let (bank, index) = (reg.bank.index(), reg.index as usize);
                let span = &mut spans[bank][index];
                if span.0 == NOWHERE {
                    *span = (at as u32, at as u32);
                    stretches[bank][index] = stretch;
                    lasting[bank][index] = *access != Access::Write || instr.guard.is_some() || owned(reg);
                } else {
                    span.1 = at as u32;
                    lasting[bank][index] |= stretches[bank][index] != stretch;
                }
            }
            stretch +=
                u32::from(matches!(instr.op, Op::Control(Control::Branch { .. } | Control::Exit | Control::Trap)));
        }
        Lives { spans, lasting }
    }
}

impl Storage {
    fn new(lives: Lives) -> Self {
        let mut storage = Storage { places: Default::default(), counts: [0; 4], lives };
        (0..4).for_each(|bank| storage.settle(bank));
        storage
    }

    /// Gives the registers of a bank their places.
    fn settle(&mut self, bank: usize) {
        let (spans, lasting) = (&self.lives.spans[bank], &self.lives.lasting[bank]);
        let mut places = vec![0; spans.len()];
        let mut order: Vec<u32> = (0..spans.len() as u32).collect();
        order.sort_unstable_by_key(|index| spans[*index as usize].0);
        // Those in use, the one that is free soonest first, and those that are free.
        let (mut busy, mut free) = (BinaryHeap::new(), Vec::new());
        for index in order {
            let (first, last) = spans[index as usize];
            while let Some(&Reverse((until, place))) = busy.peek()
                && until < first
            {
                busy.pop();
                free.push(place);
            }
            let place = free.pop().filter(|_| !lasting[index as usize]).unwrap_or_else(|| {
                self.counts[bank] += 1;
                self.counts[bank] - 1
            });
            if !lasting[index as usize] {
                busy.push(Reverse((last, place)));
            }
            places[index as usize] = place;
        }
        self.places[bank] = places;
    }

    pub(crate) fn place(&self, reg: RegId) -> usize {
        self.places[reg.bank.index()][reg.index as usize] as usize
    }

    /// The same registers at the places that another kernel's have, which has become this one by a change: `moved` says
    /// where the other's instructions are now, if they were not changed. Registers that live from and to other
    /// instructions than there have places of their own, behind the other's; with each of these comes the place that it
    /// had there, if it was there at all.
    pub(crate) fn following(&self, other: &Storage, moved: impl Fn(u32) -> Option<u32>) -> (Storage, NewPlaces) {
        let Lives { spans, lasting } = &self.lives;
        let lives = Lives { spans: spans.clone(), lasting: lasting.clone() };
        let mut storage = Storage { places: Default::default(), counts: other.counts, lives };
        let mut new = NewPlaces::default();
        for bank in 0..4 {
            for (index, &(first, last)) in spans[bank].iter().enumerate() {
                let before = other.places[bank].get(index).copied();
                let kept = before.filter(|_| {
                    let (was_first, was_last) = other.lives.spans[bank][index];
                    let same = moved(was_first) == Some(first) && moved(was_last) == Some(last);
                    first == NOWHERE || other.lives.lasting[bank][index] || same && !lasting[bank][index]
                });
                let place = kept.unwrap_or_else(|| {
                    new[bank].push((storage.counts[bank], before));
                    storage.counts[bank] += 1;
                    storage.counts[bank] - 1
                });
                storage.places[bank].push(place);
            }
        }
        (storage, new)
    }
}

/// A set of registers, one bit each.
type Registers = Vec<u64>;

/// By instruction, whether every register that it reads was certainly written before, in each lane that gets there: by
/// instructions without a guard, on every way from the entry.
fn certainly_defined(kernel: &Kernel, labels: &[usize], registers: &[(RegId, Access)], starts: &[u32]) -> Vec<bool> {
    let [a, b, c, d] = kernel.registers;
    let first = [0, a, a + b, a + b + c];
    let bit = |reg: &RegId| (first[reg.bank.index()] + reg.index) as usize;
    let words = ((a + b + c + d) as usize).div_ceil(64);
    let of = |at: usize| &registers[starts[at] as usize..starts[at + 1] as usize];
    let written = |at: usize| {
        let Instr { op, guard, .. } = &kernel.body[at];
        // What others do in their time is looked at when it is used.
        let at_once = matches!(op, Op::Arith(_) | Op::Memory(_) | Op::Warp(_)) && guard.is_none();
        of(at).iter().filter(move |(_, access)| at_once && *access == Access::Write)
    };
    // Stretches that are entered at their beginning alone, and where each goes on.
    let ends_here = |op: &Op| matches!(op, Op::Control(Control::Branch { .. } | Control::Exit | Control::Trap));
    let begins = |at: usize| {
        let is_label = matches!(kernel.body[at].op, Op::Control(Control::Label(_)));
        at == 0 || is_label || ends_here(&kernel.body[at - 1].op)
    };
    let heads: Vec<usize> = (0..kernel.body.len()).filter(|at| begins(*at)).collect();
    let stretch = |number: usize| heads[number]..heads.get(number + 1).copied().unwrap_or(kernel.body.len());
    let number = |at: usize| heads.partition_point(|head| *head <= at) - 1;
    // What is written wherever a stretch begins: at first anything is thought to be but at the entry, then less and
    // less.
    let mut known: Vec<Registers> =
        heads.iter().map(|head| vec![if *head == 0 { 0 } else { u64::MAX }; words]).collect();
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for from in 0..heads.len() {
            let mut now = known[from].clone();
            stretch(from).flat_map(written).for_each(|(reg, _)| now[bit(reg) / 64] |= 1 << (bit(reg) % 64));
            let last = &kernel.body[stretch(from).end - 1];
            let jump = match last.op {
                Op::Control(Control::Branch { target, .. }) => Some(number(labels[target.0 as usize])),
                _ => None,
            };
            let falls = last.guard.is_some() || !ends_here(&last.op);
            let next = Some(from + 1).filter(|next| falls && *next < heads.len());
            for to in jump.into_iter().chain(next) {
                for (known, now) in known[to].iter_mut().zip(&now) {
                    changed |= *known & !now != 0;
                    *known &= now;
                }
            }
        }
    }
    let mut sound = vec![false; kernel.body.len()];
    for (number, mut now) in known.into_iter().enumerate() {
        for at in stretch(number) {
            let has = |reg: &RegId| now[bit(reg) / 64] >> (bit(reg) % 64) & 1 == 1;
            sound[at] = of(at).iter().all(|(reg, access)| *access == Access::Write || has(reg));
            written(at).for_each(|(reg, _)| now[bit(reg) / 64] |= 1 << (bit(reg) % 64));
        }
    }
    sound
}

/// Whether an instruction is about copies that threads make one by one.
fn is_of_threads(op: &Op) -> bool {
    use AsyncCopy::{ArriveBehindCopies, CommitThreadGroup, ThreadCopy, WaitThreadGroup};
    matches!(op, Op::Copy(ThreadCopy { .. } | CommitThreadGroup | WaitThreadGroup { .. } | ArriveBehindCopies { .. }))
}

fn wakes(op: &Op) -> bool {
    match op {
        Op::Arith(_) | Op::Memory(_) | Op::Warp(_) | Op::Fence(_) | Op::Mma(_) | Op::Fragments(_) => false,
        Op::Barrier(op) => !matches!(op, Barrier::TryWait { .. }),
        Op::Control(op) => !matches!(op, Control::Label(_) | Control::Branch { .. }),
        Op::Copy(_) | Op::Wgmma(_) | Op::Tcgen05(_) | Op::Unknown(_) => true,
    }
}

fn may_stay(op: &Op) -> bool {
    !matches!(
        op,
        Op::Arith(_) | Op::Memory(_) | Op::Control(Control::Label(_) | Control::Branch { uniform: false, .. })
    )
}

fn looks_only(op: &Op) -> bool {
    matches!(op, Op::Memory(Memory::Load { .. }) | Op::Barrier(Barrier::TryWait { .. }) | Op::Fence(_))
}

/// Whether the instruction is a wait, followed by a branch back to it while it fails, or by a branch over such a one
/// when it does not.
fn spins(kernel: &Kernel, labels: &[usize], at: usize) -> bool {
    let Op::Barrier(Barrier::TryWait { done, .. }) = &kernel.body[at].op else { return false };
    let branch = |at: usize| match kernel.body.get(at) {
        Some(Instr { guard, op: Op::Control(Control::Branch { target, .. }), .. }) => {
            Some((*guard, labels[target.0 as usize]))
        }
        _ => None,
    };
    let only_labels = |from: usize, to: usize| {
        let is_label = |instr: &Instr| matches!(instr.op, Op::Control(Control::Label(_)));
        from <= to && kernel.body[from..to].iter().all(is_label)
    };
    let again = |back: Option<Guard>| Some(Guard { pred: *done, negated: true }) == back;
    let over = |out: Option<Guard>| Some(Guard { pred: *done, negated: false }) == out;
    let start = match (branch(at + 1), branch(at + 2)) {
        (Some((guard, start)), _) if again(guard) => start,
        (Some((guard, end)), Some((None, start))) if over(guard) && only_labels(at + 3, end) => start,
        _ => return false,
    };
    kernel.body[at].guard.is_none() && start < at && only_labels(start, at)
}

fn unit(kernel: &Kernel, global: bool) -> u32 {
    let touches = |space: Space| space == Space::Generic || (space == Space::Global) == global;
    let bytes = |instr: &Instr| match &instr.op {
        Op::Memory(Memory::Load { space, width, dsts: regs, .. })
        | Op::Memory(Memory::Store { space, width, srcs: regs, .. })
            if touches(*space) =>
        {
            Some(width.bytes() * regs.len() as u32)
        }
        Op::Memory(Memory::Atomic { space, ty, .. }) if touches(*space) => Some(ty.bits() / 8),
        Op::Fragments(Fragments::Load { fragment, space, .. } | Fragments::Store { fragment, space, .. })
            if touches(*space) =>
        {
            Some(fragment.ty.bits() / 8)
        }
        Op::Copy(AsyncCopy::ThreadCopy { bytes, .. }) => Some(*bytes),
        Op::Copy(AsyncCopy::StoreAsync { srcs, .. }) if !global => Some(4 * srcs.len() as u32),
        Op::Barrier(Barrier::Init { .. }) if !global => Some(8),
        _ => None,
    };
    kernel.body.iter().filter_map(bytes).min().unwrap_or(16).min(16)
}

/// The instructions of a program before which a machine stops.
#[derive(Clone)]
pub(crate) struct Stops<'k> {
    program: Rc<Program<'k>>,
    /// By position.
    before: Vec<bool>,
    /// Whether it goes on once though there is a stop.
    passes: bool,
}

impl<'k> Stops<'k> {
    pub(crate) fn new<'b>(program: &Rc<Program<'k>>, stops: impl Iterator<Item = &'b u32>) -> Self {
        let mut before = vec![false; program.kernel.body.len() + 1];
        stops.for_each(|pc| before[*pc as usize] = true);
        Stops { program: program.clone(), before, passes: false }
    }

    /// Whether a machine that runs a program stops before one of its instructions.
    pub(crate) fn has(&mut self, program: &Rc<Program<'k>>, pc: u32) -> bool {
        self.is_before(program, pc) && !std::mem::take(&mut self.passes)
    }

    /// The same, of one that was not let pass.
    pub(crate) fn is_before(&self, program: &Rc<Program<'k>>, pc: u32) -> bool {
        self.before.get(pc as usize) == Some(&true) && Rc::ptr_eq(program, &self.program)
    }

    /// Lets a machine that has stopped go on.
    pub(crate) fn pass(&mut self) {
        self.passes = true;
    }
}

#[cfg(test)]
mod tests {
    use ptx::instr::{MatrixElement, Mma};

    use super::*;

    #[test]
    fn a_warp_multiplies_registers_of_32_bits_alone() {
        let shape = ptx::LaunchBounds { threads: 32, cluster: None, min_blocks: None };
        let mut k = ptx::Builder::new("multiply", ptx::Target::Sm80, shape);
        let sums = [0; 4].map(|_| k.variable(0.0));
        let (a, b) = ([0; 4].map(|_| k.variable(0u32)), [0; 2].map(|_| k.variable(0u32)));
        k.mma(MatrixElement::F16, sums, a, b);
        let mut kernel = k.finish().unwrap();
        assert!(Program::new(&kernel).is_ok());
        kernel.registers[Bank::B64.index()] = kernel.registers[Bank::B32.index()];
        for instr in &mut kernel.body {
            if let Op::Mma(Mma::Dense { a, .. }) = &mut instr.op {
                a[0].bank = Bank::B64;
            }
        }
        assert!(Program::new(&kernel).is_err_and(|fault| fault.to_string().contains("no 32-bit register")));
    }

    #[test]
    fn registers_are_certainly_defined_where_every_way_has_written_them() {
        let shape = ptx::LaunchBounds { threads: 32, cluster: None, min_blocks: None };
        let mut k = ptx::Builder::new("defined", ptx::Target::Sm80, shape);
        let (sum, flag) = (k.variable(0u32), k.variable(1u32));
        let small = k.lt(flag, 2u32);
        k.if_(small, |k| k.set(sum, 1u32));
        let after = k.add(sum, flag);
        k.set(sum, after);
        let mut kernel = k.finish().unwrap();
        let sound = |kernel: &Kernel| -> Vec<bool> {
            let program = Program::new(kernel).unwrap();
            program.traits.iter().map(|traits| traits.sound).collect()
        };
        assert!(sound(&kernel).iter().all(|sound| *sound));
        // Without the first write only one of two ways has one.
        let first = kernel.body.iter().position(|instr| matches!(instr.op, Op::Arith(_))).unwrap();
        let removed = kernel.body.remove(first);
        let Op::Arith(Arith::Unary { dst, .. }) = removed.op else { panic!("no move: {removed:?}") };
        let reads = |instr: &Instr| {
            let mut found = false;
            instr.registers(&mut |reg, access| found |= reg == dst && access != Access::Write);
            found
        };
        let found = sound(&kernel);
        let unsound: Vec<bool> = found.iter().map(|sound| !sound).collect();
        let expected: Vec<bool> = kernel.body.iter().map(reads).collect();
        assert_eq!(unsound, expected);
        assert!(expected.contains(&true));
    }
}
