//! Kernels broken on purpose, to prove that breaking is noticed.
//!
//! [`mutants`] makes, from one kernel, every kernel that differs from it by one plausible mistake: a fence or an arrive
//! forgotten, a wait for the other parity, a few bytes too many expected, a stage released before it was read. A test
//! then runs each: the original must pass under every schedule, and every mutant must be caught under some, by a fault
//! or by a wrong result. A mutant that nothing can tell from the original is either equivalent, which wants a reason,
//! or a hole in the test.

use std::ops::Range;

use ptx::instr::{
    Accumulate, Arith, AsyncCopy, Barrier, BinaryOp, Collector, Control, FloatMode, Fragments, Instr, MatrixA, Mma,
    PredicateOp, Semantics, Tcgen05, TensorA, Warp, Wgmma,
};
use ptx::{Bank, DataType, Kernel, Op, Operand, RegId};

/// Where an instruction descriptor of Blackwell's tensor cores has its columns, in eights.
const SHAPE_COLUMNS: u32 = 17;

/// A kernel with one mistake.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// What was done, and to which instruction.
    pub name: String,
    /// The kind of mistake, for tables.
    pub mistake: &'static str,
    /// Phase and instruction, whatever registers and labels are called there.
    pub place: String,
    /// Position in the original's body.
    pub position: usize,
    /// The kernel.
    pub kernel: Kernel,
}

/// Every kernel that differs from this one by one plausible mistake, in order of position.
pub fn mutants(kernel: &Kernel) -> Vec<Mutant> {
    mutants_within(kernel, 0..kernel.body.len())
}

/// Those whose mistake is among some instructions of the body: each is a whole kernel, and large kernels have many.
pub fn mutants_within(kernel: &Kernel, positions: Range<usize>) -> Vec<Mutant> {
    let mut nursery = Nursery { kernel, made: Vec::new() };
    for at in positions.start..positions.end.min(kernel.body.len()) {
        nursery.guards(at);
        match &kernel.body[at].op {
            Op::Barrier(op) => nursery.barriers(at, op),
            Op::Fence(_) => nursery.remove(at, "fence dropped", 1),
            Op::Copy(op) => nursery.copies(at, op),
            Op::Mma(_) => nursery.warp_multiplications(at),
            Op::Wgmma(op) => nursery.multiplications(at, op),
            Op::Tcgen05(op) => nursery.tensor_work(at, op),
            Op::Warp(Warp::Sync { .. }) => nursery.remove(at, "warp barrier dropped", 1),
            Op::Memory(_)
            | Op::Warp(Warp::LoadMatrix { .. })
            | Op::Fragments(Fragments::Load { .. } | Fragments::Store { .. }) => {
                nursery.remove(at, "memory access dropped", 1)
            }
            Op::Control(Control::SetMaxRegisters { .. }) => nursery.remove(at, "register budget left alone", 1),
            Op::Control(Control::GridDependencyWait) => nursery.remove(at, "grid dependency ignored", 1),
            _ => {}
        }
    }
    nursery.made
}

/// Where mutants are made.
struct Nursery<'k> {
    kernel: &'k Kernel,
    made: Vec<Mutant>,
}

impl Nursery<'_> {
    fn add(&mut self, at: usize, mistake: &'static str, change: impl FnOnce(&mut Kernel)) {
        let mut kernel = self.kernel.clone();
        change(&mut kernel);
        let instr = &self.kernel.body[at];
        let (phase, text) = (self.kernel.phase_path(instr.phase), self.kernel.instruction(instr));
        let place = anonymous(&format!("{phase}: {}", text.trim()));
        let text: String = text.trim().chars().take(72).collect();
        let name = format!("{mistake}: [{at}] {phase}: {text}");
        self.made.push(Mutant { name, mistake, place, position: at, kernel });
    }

    fn remove(&mut self, at: usize, mistake: &'static str, count: usize) {
        self.add(at, mistake, |kernel| drop(kernel.body.drain(at..at + count)));
    }

    fn double(&mut self, at: usize, mistake: &'static str) {
        self.add(at, mistake, |kernel| kernel.body.insert(at, kernel.body[at].clone()));
    }

    fn replace(&mut self, at: usize, mistake: &'static str, op: impl Into<Op>) {
        let op = op.into();
        self.add(at, mistake, |kernel| kernel.body[at].op = op);
    }

    /// Puts `operand op literal` in the place of an operand that `choose` finds in the instruction.
    fn offset(
        &mut self,
        at: usize,
        mistake: &'static str,
        op: BinaryOp,
        literal: u64,
        choose: impl Fn(&mut Op) -> Option<&mut Operand>,
    ) {
        let mut probe = self.kernel.body[at].op.clone();
        let Some(operand) = choose(&mut probe).copied() else { return };
        self.add(at, mistake, |kernel| {
            let changed = match operand {
                Operand::Imm(bits) => {
                    Operand::Imm(crate::arith::binary(op, DataType::U32, FloatMode::PLAIN, bits, literal))
                }
                Operand::Reg(reg) => Operand::Reg(compute(kernel, at, op, reg, literal)),
            };
            let place = kernel.body.len() - self.kernel.body.len() + at;
            if let Some(operand) = choose(&mut kernel.body[place].op) {
                *operand = changed;
            }
        });
    }

    /// The same for an operand that is a register in any case.
    fn offset_register(
        &mut self,
        at: usize,
        mistake: &'static str,
        (op, literal): (BinaryOp, u64),
        choose: impl Fn(&mut Op) -> Option<&mut RegId>,
    ) {
        let mut probe = self.kernel.body[at].op.clone();
        let Some(reg) = choose(&mut probe).copied() else { return };
        self.add(at, mistake, |kernel| {
            let changed = compute(kernel, at, op, reg, literal);
            if let Some(operand) = choose(&mut kernel.body[at + 1].op) {
                *operand = changed;
            }
        });
    }

    fn guards(&mut self, at: usize) {
        let instr = &self.kernel.body[at];
        let Some(guard) = instr.guard else { return };
        match instr.op {
            Op::Control(Control::Branch { target, .. }) => {
                let ahead = self.kernel.body[at..].iter().any(|i| i.op == Op::Control(Control::Label(target)));
                let follows_wait =
                    at > 0 && matches!(self.kernel.body[at - 1].op, Op::Barrier(Barrier::TryWait { .. }));
                if ahead {
                    self.remove(at, "condition dropped", 1);
                } else if !follows_wait {
                    self.remove(at, "loop left after one round", 1);
                }
            }
            _ => {
                self.add(at, "guard dropped", |kernel| kernel.body[at].guard = None);
                let opposite = ptx::instr::Guard { negated: !guard.negated, ..guard };
                self.add(at, "guard inverted", |kernel| kernel.body[at].guard = Some(opposite));
            }
        }
    }

    fn barriers(&mut self, at: usize, op: &Barrier) {
        match op {
            Barrier::Init { .. } => {
                self.remove(at, "barrier not initialised", 1);
                self.offset(at, "one arrival too many expected", BinaryOp::Add, 1, init_count);
                self.offset(at, "one arrival too few expected", BinaryOp::Sub, 1, init_count);
            }
            Barrier::Invalidate { .. } => self.remove(at, "barrier not invalidated", 1),
            Barrier::Arrive { arrival: Some(_), .. } => self.remove(at, "arrive dropped", 1),
            Barrier::Arrive { arrival: None, sem, .. } => {
                self.remove(at, "arrive dropped", 1);
                self.double(at, "arrive doubled");
                if *sem == Semantics::Ordered {
                    self.relax(at);
                }
            }
            Barrier::ArriveExpectTx { sem, .. } => {
                self.remove(at, "arrive dropped", 1);
                self.double(at, "arrive doubled");
                self.offset(at, "half the bytes expected", BinaryOp::Shr, 1, expected_bytes);
                self.offset(at, "sixteen bytes too many expected", BinaryOp::Add, 16, expected_bytes);
                if *sem == Semantics::Ordered {
                    self.relax(at);
                }
            }
            Barrier::ExpectTx { .. } => {
                self.remove(at, "expectation dropped", 1);
                self.offset(at, "half the bytes expected", BinaryOp::Shr, 1, expected_bytes);
            }
            Barrier::TryWait { .. } => self.waits(at),
            Barrier::NamedSync { .. } | Barrier::NamedArrive { .. } => self.remove(at, "named barrier dropped", 1),
            Barrier::ClusterArrive { sem, .. } => {
                self.remove(at, "cluster arrive dropped", 1);
                if *sem == Semantics::Ordered {
                    self.relax(at);
                }
            }
            Barrier::ClusterWait { .. } => self.remove(at, "cluster wait dropped", 1),
        }
    }

    fn relax(&mut self, at: usize) {
        self.add(at, "ordering relaxed", |kernel| {
            if let Op::Barrier(
                Barrier::Arrive { sem, .. }
                | Barrier::ArriveExpectTx { sem, .. }
                | Barrier::TryWait { sem, .. }
                | Barrier::ClusterArrive { sem, .. },
            ) = &mut kernel.body[at].op
            {
                *sem = Semantics::Relaxed;
            }
        });
    }

    fn waits(&mut self, at: usize) {
        let looped = matches!(
            self.kernel.body.get(at + 1),
            Some(Instr { op: Op::Control(Control::Branch { .. }), guard: Some(_), .. })
        );
        self.remove(at, "wait dropped", 1 + usize::from(looped));
        self.offset(at, "parity swapped", BinaryOp::Xor, 1, |op| match op {
            Op::Barrier(Barrier::TryWait { parity, .. }) => Some(parity),
            _ => None,
        });
        self.relax(at);
    }

    /// Work of which several blocks hear, or that goes to several: only this one does, or others do.
    fn multicasts(&mut self, at: usize, [one, others]: [&'static str; 2]) {
        if multicast_of(&mut self.kernel.body[at].op.clone()).is_some_and(|mask| mask.is_some()) {
            self.add(at, one, |kernel| {
                if let Some(mask) = multicast_of(&mut kernel.body[at].op) {
                    *mask = None;
                }
            });
        }
        self.offset_register(at, others, (BinaryOp::Shr, 1), |op| multicast_of(op)?.as_mut());
    }

    fn copies(&mut self, at: usize, op: &AsyncCopy) {
        match op {
            AsyncCopy::TensorLoad { .. } | AsyncCopy::BulkLoad { .. } => {
                self.multicasts(at, ["copied to one block", "copied to other blocks"]);
            }
            _ => {}
        }
        match op {
            AsyncCopy::TensorLoad { coords, .. } => {
                self.remove(at, "copy dropped", 1);
                self.double(at, "copy doubled");
                if coords.len() > 1 && coords[0] != coords[1] {
                    self.add(at, "coordinates swapped", |kernel| {
                        if let Op::Copy(AsyncCopy::TensorLoad { coords, .. }) = &mut kernel.body[at].op {
                            coords.swap(0, 1);
                        }
                    });
                }
                self.add(at, "copied to the next 1024 bytes", |kernel| {
                    if let Op::Copy(AsyncCopy::TensorLoad { dst, .. }) = &mut kernel.body[at].op {
                        dst.offset += 1024;
                    }
                });
                self.add(at, "counted at the next barrier", |kernel| {
                    if let Op::Copy(AsyncCopy::TensorLoad { bar, .. }) = &mut kernel.body[at].op {
                        bar.offset += 8;
                    }
                });
            }
            AsyncCopy::BulkLoad { .. } => {
                self.remove(at, "copy dropped", 1);
                self.double(at, "copy doubled");
                self.add(at, "copied to the next 16 bytes", |kernel| {
                    if let Op::Copy(AsyncCopy::BulkLoad { dst, .. }) = &mut kernel.body[at].op {
                        dst.offset += 16;
                    }
                });
                self.add(at, "copied from the next 16 bytes", |kernel| {
                    if let Op::Copy(AsyncCopy::BulkLoad { src, .. }) = &mut kernel.body[at].op {
                        src.offset += 16;
                    }
                });
                self.add(at, "counted at the next barrier", |kernel| {
                    if let Op::Copy(AsyncCopy::BulkLoad { bar, .. }) = &mut kernel.body[at].op {
                        bar.offset += 8;
                    }
                });
            }
            AsyncCopy::TryCancel { multicast, .. } => {
                self.remove(at, "request dropped", 1);
                self.double(at, "request doubled");
                self.add(at, "counted at the next barrier", |kernel| {
                    if let Op::Copy(AsyncCopy::TryCancel { bar, .. }) = &mut kernel.body[at].op {
                        bar.offset += 8;
                    }
                });
                self.add(at, "answered in the next 16 bytes", |kernel| {
                    if let Op::Copy(AsyncCopy::TryCancel { dst, .. }) = &mut kernel.body[at].op {
                        dst.offset += 16;
                    }
                });
                if *multicast {
                    self.add(at, "answered to one block", |kernel| {
                        if let Op::Copy(AsyncCopy::TryCancel { multicast, .. }) = &mut kernel.body[at].op {
                            *multicast = false;
                        }
                    });
                }
            }
            AsyncCopy::BulkToCluster { .. } | AsyncCopy::StoreAsync { .. } => {
                self.remove(at, "copy dropped", 1);
                self.double(at, "copy doubled");
            }
            AsyncCopy::TensorStore { .. } | AsyncCopy::BulkStore { .. } => self.remove(at, "copy dropped", 1),
            AsyncCopy::CommitGroup => self.remove(at, "commit dropped", 1),
            AsyncCopy::WaitGroup { pending, read } => {
                self.remove(at, "group wait dropped", 1);
                let late = AsyncCopy::WaitGroup { pending: pending + 1, read: *read };
                self.replace(at, "one group more in flight", late);
            }
            AsyncCopy::ThreadCopy { source_bytes, .. } => {
                self.remove(at, "copy dropped", 1);
                self.add(at, "copied to the next 16 bytes", |kernel| {
                    if let Op::Copy(AsyncCopy::ThreadCopy { dst, .. }) = &mut kernel.body[at].op {
                        dst.offset += 16;
                    }
                });
                if source_bytes.is_some() {
                    self.add(at, "zeros not filled in", |kernel| {
                        if let Op::Copy(AsyncCopy::ThreadCopy { source_bytes, .. }) = &mut kernel.body[at].op {
                            *source_bytes = None;
                        }
                    });
                }
            }
            AsyncCopy::CommitThreadGroup => self.remove(at, "commit dropped", 1),
            AsyncCopy::ArriveBehindCopies { .. } => self.remove(at, "arrive dropped", 1),
            AsyncCopy::WaitThreadGroup { pending } => {
                self.remove(at, "group wait dropped", 1);
                let late = AsyncCopy::WaitThreadGroup { pending: pending + 1 };
                self.replace(at, "one group more in flight", late);
            }
            AsyncCopy::BulkPrefetch { .. } | AsyncCopy::TensorPrefetch { .. } | AsyncCopy::PrefetchMap { .. } => {}
        }
    }

    /// A multiplication by a warp that is forgotten, or given its registers in the wrong order.
    fn warp_multiplications(&mut self, at: usize) {
        self.remove(at, "multiplication dropped", 1);
        self.add(at, "rows of A swapped", |kernel| {
            if let Op::Mma(Mma::Dense { a, .. } | Mma::BlockScaled { a, .. }) = &mut kernel.body[at].op {
                a.swap(0, 1);
            }
        });
        self.add(at, "halves of B swapped", |kernel| {
            if let Op::Mma(Mma::Dense { b, .. } | Mma::BlockScaled { b, .. }) = &mut kernel.body[at].op {
                b.swap(0, 1);
            }
        });
    }

    fn multiplications(&mut self, at: usize, op: &Wgmma) {
        match op {
            Wgmma::Fence => self.remove(at, "wgmma fence dropped", 1),
            Wgmma::Commit => self.remove(at, "commit dropped", 1),
            Wgmma::Wait { pending } => {
                self.remove(at, "group wait dropped", 1);
                self.replace(at, "one group more in flight", Wgmma::Wait { pending: pending + 1 });
                self.release_early(at);
            }
            Wgmma::Mma { a, b, accumulate, .. } => {
                self.remove(at, "multiplication dropped", 1);
                if *accumulate == Accumulate::Add {
                    self.add(at, "accumulator replaced", |kernel| {
                        if let Op::Wgmma(Wgmma::Mma { accumulate, .. }) = &mut kernel.body[at].op {
                            *accumulate = Accumulate::Replace;
                        }
                    });
                }
                if let MatrixA::Shared { desc, .. } = a {
                    self.descriptors(at, *desc, OF_A);
                }
                self.descriptors(at, *b, OF_B);
            }
        }
    }

    /// Blackwell's tensor cores: work left out, and work on other cells, other bytes or other barriers than meant.
    fn tensor_work(&mut self, at: usize, op: &Tcgen05) {
        self.remove(at, missing(op), 1);
        match op {
            Tcgen05::Alloc { .. } => self.offset(at, "half the columns allocated", BinaryOp::Shr, 1, |op| match op {
                Op::Tcgen05(Tcgen05::Alloc { columns, .. }) => Some(columns),
                _ => None,
            }),
            Tcgen05::Dealloc { .. } => {
                self.offset(at, "half the columns given back", BinaryOp::Shr, 1, |op| match op {
                    Op::Tcgen05(Tcgen05::Dealloc { columns, .. }) => Some(columns),
                    _ => None,
                })
            }
            Tcgen05::CopyScales { src, .. } => {
                self.offset_register(at, "scales copied one column on", (BinaryOp::Add, 1), |op| match op {
                    Op::Tcgen05(Tcgen05::CopyScales { dst, .. }) => Some(dst),
                    _ => None,
                });
                self.descriptors(
                    at,
                    *src,
                    ["swizzle of scales wrong", "stride of scales doubled", "start of scales off by 16 bytes"],
                );
            }
            Tcgen05::Mma { a, b, accumulate, collector, .. } => {
                self.scales_of_multiplications(at);
                self.tensor_multiplications(at, [Some(*a), Some(*b)], *accumulate, *collector, 1 << SHAPE_COLUMNS);
            }
            // Their columns go by sixteens.
            Tcgen05::MmaDense { a, b, accumulate, collector, .. } => {
                let a = if let TensorA::Shared(a) = a { Some(*a) } else { None };
                self.tensor_multiplications(at, [a, Some(*b)], *accumulate, *collector, 2 << SHAPE_COLUMNS);
            }
            Tcgen05::Commit { .. } => self.commits(at),
            Tcgen05::Load { .. } | Tcgen05::Store { .. } => {
                self.offset_register(at, "one column on", (BinaryOp::Add, 1), tensor_address);
                self.offset_register(at, "another warp's lanes", (BinaryOp::Xor, 32 << 16), tensor_address);
            }
            _ => {}
        }
    }

    /// A multiplication that is told of wrong operands, shapes and sums. `step` is one more step of columns in its
    /// shape.
    fn tensor_multiplications(
        &mut self,
        at: usize,
        [a, b]: [Option<RegId>; 2],
        accumulate: RegId,
        collector: Collector,
        step: u64,
    ) {
        for (mistake, value) in [("accumulator replaced", false), ("accumulator kept", true)] {
            let constant = |instr: &Instr| match instr.op {
                Op::Arith(Arith::Predicate { dst, op: PredicateOp::Const(is) }) if dst == accumulate => Some(is),
                _ => None,
            };
            if self.kernel.body[..at].iter().rev().find_map(constant) == Some(value) {
                continue;
            }
            self.add(at, mistake, |kernel| {
                let dst = RegId { bank: Bank::Pred, index: kernel.registers[Bank::Pred.index()] };
                kernel.registers[Bank::Pred.index()] += 1;
                let always = Arith::Predicate { dst, op: PredicateOp::Const(value) };
                let phase = kernel.body[at].phase;
                kernel.body.insert(at, Instr { guard: None, op: always.into(), phase, line: None });
                if let Op::Tcgen05(Tcgen05::Mma { accumulate, .. } | Tcgen05::MmaDense { accumulate, .. }) =
                    &mut kernel.body[at + 1].op
                {
                    *accumulate = dst;
                }
            });
        }
        self.offset_register(at, "sums eight columns on", (BinaryOp::Add, 8), |op| match op {
            Op::Tcgen05(Tcgen05::Mma { d, .. } | Tcgen05::MmaDense { d, .. }) => Some(d),
            _ => None,
        });
        self.offset_register(at, "a step of columns too many", (BinaryOp::Add, step), tensor_shape);
        self.offset_register(at, "a step of columns too few", (BinaryOp::Sub, step), tensor_shape);
        let wrong = match collector {
            Collector::Fill => Some(("A not kept", Collector::Discard)),
            Collector::Discard => Some(("A taken from the collector", Collector::LastUse)),
            // Reading it again changes nothing.
            Collector::Use | Collector::LastUse => None,
        };
        if let Some((mistake, wrong)) = wrong {
            self.add(at, mistake, |kernel| {
                if let Op::Tcgen05(Tcgen05::Mma { collector, .. } | Tcgen05::MmaDense { collector, .. }) =
                    &mut kernel.body[at].op
                {
                    *collector = wrong;
                }
            });
        }
        a.into_iter().for_each(|a| self.descriptors(at, a, OF_A));
        b.into_iter().for_each(|b| self.descriptors(at, b, OF_B));
    }

    fn scales_of_multiplications(&mut self, at: usize) {
        // One column is a misaligned address. B's by two are other scales, and A's by four.
        self.offset_register(at, "scales of A one column on", (BinaryOp::Add, 1), scales_of_a);
        self.offset_register(at, "scales of A four columns on", (BinaryOp::Add, 4), scales_of_a);
        self.offset_register(at, "scales of B one column on", (BinaryOp::Add, 1), scales_of_b);
        self.offset_register(at, "scales of B two columns on", (BinaryOp::Add, 2), scales_of_b);
        self.add(at, "scales of A and B swapped", |kernel| {
            if let Op::Tcgen05(Tcgen05::Mma { scale_a, scale_b, .. }) = &mut kernel.body[at].op {
                std::mem::swap(scale_a, scale_b);
            }
        });
    }

    /// A commit that tells twice, tells another barrier or fewer blocks, or comes before the multiplication that it is
    /// there for.
    fn commits(&mut self, at: usize) {
        self.double(at, "commit doubled");
        self.add(at, "committed to the next barrier", |kernel| {
            if let Op::Tcgen05(Tcgen05::Commit { bar, .. }) = &mut kernel.body[at].op {
                bar.offset += 8;
            }
        });
        self.multicasts(at, ["committed to one block", "committed to other blocks"]);
        let multiplies =
            |instr: &Instr| matches!(instr.op, Op::Tcgen05(Tcgen05::Mma { .. } | Tcgen05::MmaDense { .. }));
        let commits = |instr: &Instr| matches!(instr.op, Op::Tcgen05(Tcgen05::Commit { .. }));
        let last = self.kernel.body[..at].iter().rposition(|instr| multiplies(instr) || commits(instr));
        if let Some(last) = last.filter(|&last| multiplies(&self.kernel.body[last])) {
            self.add(at, "committed before the multiplication", |kernel| kernel.body[last..=at].rotate_left(1));
        }
    }

    /// Moves a group wait behind the arrive that follows it, so that the stage is released while it is still read.
    fn release_early(&mut self, at: usize) {
        let straight = self.kernel.body[at..].iter().take_while(|instr| !matches!(instr.op, Op::Control(_)));
        let arrive = straight
            .enumerate()
            .find(|(_, instr)| matches!(instr.op, Op::Barrier(Barrier::Arrive { arrival: None, .. })));
        if let Some((distance, _)) = arrive {
            self.add(at, "stage released early", |kernel| kernel.body[at..=at + distance].rotate_left(1));
        }
    }

    /// Wrong fields in the descriptor that an instruction reads from `desc`: once, also where several read it.
    fn descriptors(&mut self, at: usize, desc: RegId, [swizzle, stride, start]: [&'static str; 3]) {
        let defines = |instr: &Instr| matches!(instr.op, Op::Arith(Arith::Pack { dst, .. }) if dst == desc);
        let Some(place) = self.kernel.body[..at].iter().rposition(defines) else { return };
        let Op::Arith(Arith::Pack { dst, low, high: Operand::Imm(high) }) = self.kernel.body[place].op else { return };
        if self.made.iter().any(|mutant| (mutant.position, mutant.mistake) == (place, swizzle)) {
            return;
        }
        let pack = |high: u64| Arith::Pack { dst, low, high: Operand::Imm(high) };
        self.replace(place, swizzle, pack(high ^ 3 << 30));
        self.replace(place, stride, pack(high & !0x3fff | (high & 0x1fff) << 1));
        self.offset(place, start, BinaryOp::Add, 1, |op| match op {
            Op::Arith(Arith::Pack { low, .. }) => Some(low),
            _ => None,
        });
    }
}

/// What is wrong with the descriptors of a multiplication's operands.
const OF_A: [&str; 3] = ["swizzle of A wrong", "stride of A doubled", "start of A off by 16 bytes"];
const OF_B: [&str; 3] = ["swizzle of B wrong", "stride of B doubled", "start of B off by 16 bytes"];

/// A place without the numbers of its registers (`%r12`) and labels (`L3`).
fn anonymous(text: &str) -> String {
    let (mut kept, mut word) = (String::new(), None);
    for character in text.chars() {
        if character.is_ascii_alphanumeric() || character == '%' || character == '_' {
            word.get_or_insert(character);
        } else {
            word = None;
        }
        if !(matches!(word, Some('%' | 'L')) && character.is_ascii_digit()) {
            kept.push(character);
        }
    }
    kept
}

/// What it is to forget an instruction for Blackwell's tensor cores.
fn missing(op: &Tcgen05) -> &'static str {
    match op {
        Tcgen05::Alloc { .. } => "tensor memory not allocated",
        Tcgen05::Dealloc { .. } => "tensor memory not given back",
        Tcgen05::RelinquishAllocPermit { .. } => "permit not relinquished",
        Tcgen05::CopyScales { .. } => "scales not copied",
        Tcgen05::Mma { .. } | Tcgen05::MmaDense { .. } => "multiplication dropped",
        Tcgen05::Commit { .. } => "commit dropped",
        Tcgen05::Load { .. } | Tcgen05::Store { .. } => "memory access dropped",
        Tcgen05::WaitLoad | Tcgen05::WaitStore => "tensor memory wait dropped",
        Tcgen05::FenceBeforeSync | Tcgen05::FenceAfterSync => "tensor memory fence dropped",
    }
}

fn tensor_address(op: &mut Op) -> Option<&mut RegId> {
    match op {
        Op::Tcgen05(Tcgen05::Load { addr, .. } | Tcgen05::Store { addr, .. }) => Some(addr),
        _ => None,
    }
}

/// The blocks that receive a copy, or hear of a commit.
fn multicast_of(op: &mut Op) -> Option<&mut Option<RegId>> {
    match op {
        Op::Copy(AsyncCopy::TensorLoad { multicast, .. } | AsyncCopy::BulkLoad { multicast, .. })
        | Op::Tcgen05(Tcgen05::Commit { multicast, .. }) => Some(multicast),
        _ => None,
    }
}

fn scales_of_a(op: &mut Op) -> Option<&mut RegId> {
    match op {
        Op::Tcgen05(Tcgen05::Mma { scale_a, .. }) => Some(scale_a),
        _ => None,
    }
}

fn scales_of_b(op: &mut Op) -> Option<&mut RegId> {
    match op {
        Op::Tcgen05(Tcgen05::Mma { scale_b, .. }) => Some(scale_b),
        _ => None,
    }
}

fn tensor_shape(op: &mut Op) -> Option<&mut RegId> {
    match op {
        Op::Tcgen05(Tcgen05::Mma { shape, .. } | Tcgen05::MmaDense { shape, .. }) => Some(shape),
        _ => None,
    }
}

fn init_count(op: &mut Op) -> Option<&mut Operand> {
    match op {
        Op::Barrier(Barrier::Init { count, .. }) => Some(count),
        _ => None,
    }
}

fn expected_bytes(op: &mut Op) -> Option<&mut Operand> {
    match op {
        Op::Barrier(Barrier::ArriveExpectTx { bytes, .. } | Barrier::ExpectTx { bytes, .. }) => Some(bytes),
        _ => None,
    }
}

/// Puts `reg op literal` into a new register, computed before the instruction and the labels right before it, so that a
/// loop back to there does not compute it again.
fn compute(kernel: &mut Kernel, at: usize, op: BinaryOp, reg: RegId, literal: u64) -> RegId {
    let dst = RegId { bank: reg.bank, index: kernel.registers[reg.bank.index()] };
    kernel.registers[reg.bank.index()] += 1;
    let ty = match reg.bank {
        Bank::B64 => DataType::U64,
        Bank::B16 => DataType::U16,
        _ => DataType::U32,
    };
    let arith = Arith::Binary { op, ty, mode: FloatMode::PLAIN, dst, a: Operand::Reg(reg), b: Operand::Imm(literal) };
    let labels = kernel.body[..at].iter().rev().take_while(|i| matches!(i.op, Op::Control(Control::Label(_)))).count();
    let instr = Instr { guard: None, op: arith.into(), phase: kernel.body[at].phase, line: None };
    kernel.body.insert(at - labels, instr);
    dst
}
