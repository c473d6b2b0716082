//! Mistakes that nothing can tell from the original, by reason: what they are, at which instructions of which phases,
//! and why.
//!
//! A reason excuses every mutant for which its predicate holds, so the predicate states all that the reason rests on.
//! How many mutants of each kernel that are is pinned: one more is a survivor that nobody has looked at, or a predicate
//! that has become too wide.

use gpu::products::{UNDER, WARPS};
use ptx::instr::{Arith, AsyncCopy, Barrier, BinaryOp, Control, Fence, LogicOp, Memory, PredicateOp, Tcgen05, Wgmma};
use ptx::{Instr, Op, RegisterChange, Space};
use sim::mutate::Mutant;

use super::site::Site;
use super::ways::{WAYS, Way};

/// Mutants that are equivalent for one reason.
#[derive(Debug)]
pub(super) struct Equivalent {
    /// Why nothing can tell them from the original.
    pub reason: &'static str,
    mistakes: &'static [&'static str],
    /// The phases, from below the kernel's own; the kernel's own is empty.
    phases: &'static [&'static str],
    /// What else the reason rests on.
    is: fn(&Site<'_>) -> bool,
    /// How many there are, by architecture: of each of its ways in their order. None on any other.
    counts: &'static [(&'static str, &'static [usize])],
}

impl Equivalent {
    /// Whether it excuses a mutant.
    pub fn excuses(&self, mutant: &Mutant, site: &Site<'_>) -> bool {
        self.mistakes.contains(&mutant.mistake) && self.phases.contains(&&site.phase()[..]) && (self.is)(site)
    }

    /// How many of a way's mutants it should excuse. `None` where ways were added or removed since the counting.
    pub fn count(&self, way: &Way) -> Option<usize> {
        let Some((_, counts)) = self.counts.iter().find(|(arch, _)| *arch == way.arch) else { return Some(0) };
        let ways: Vec<&Way> = WAYS.iter().filter(|other| other.arch == way.arch).collect();
        let number = ways.iter().position(|other| other.name == way.name).filter(|_| ways.len() == counts.len());
        number.map(|number| counts[number])
    }
}

/// Whether tiles are stored under the next one's products.
fn overlaps(site: &Site<'_>) -> bool {
    site.config().is_some_and(|config| UNDER.value(&config.own) > 0)
}

/// The list.
pub(super) static EQUIVALENT: &[Equivalent] = &[
    Equivalent {
        reason: "between tcgen05 fences, or next to a commit, a barrier only has to order execution",
        mistakes: &["ordering relaxed"],
        phases: &["multiply", "finish", "leave"],
        is: |site| {
            let tensor = |instr: &&Instr| matches!(instr.op, Op::Tcgen05(_));
            let [before, after] = [site.before().iter().rfind(tensor), site.after().iter().find(tensor)];
            let fence = |instr: Option<&Instr>, fence| instr.is_some_and(|instr| instr.op == Op::Tcgen05(fence));
            match site.op() {
                Op::Barrier(Barrier::TryWait { .. }) if site.phase() == "multiply" => {
                    site.fences_to_multiplication() > 1
                }
                Op::Barrier(Barrier::TryWait { .. }) => fence(after, Tcgen05::FenceAfterSync),
                _ => fence(before, Tcgen05::FenceBeforeSync),
            }
        },
        counts: &[("sm_100a", &[1, 3, 1, 3, 1, 1, 1, 3, 1, 4, 4, 4, 4, 2])],
    },
    Equivalent {
        reason: "the permit decides when other blocks get columns, not what they compute",
        mistakes: &["permit not relinquished"],
        phases: &["prepare"],
        is: |_| true,
        counts: &[("sm_100a", &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])],
    },
    Equivalent {
        reason: "allocation is no access to columns: nothing older on tensor memory has to be ordered",
        mistakes: &["tensor memory fence dropped"],
        phases: &["prepare"],
        is: |_| true,
        counts: &[("sm_100a", &[2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2])],
    },
    Equivalent {
        reason: "the fence before the last arrival at `drained` covers all that was read",
        mistakes: &["tensor memory fence dropped"],
        phases: &["leave"],
        is: |site| {
            let before = |op: &Op| *op == Op::Tcgen05(Tcgen05::FenceBeforeSync);
            before(site.op()) && site.phase_has("finish", before)
        },
        counts: &[("sm_100a", &[0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 1, 1, 1, 0])],
    },
    Equivalent {
        reason: "of two fences before a multiplication one suffices; 16-bit operands, not in tensor memory, need none",
        mistakes: &["tensor memory fence dropped"],
        phases: &["multiply"],
        is: |site| {
            let halves = site.kernel_has(|op| matches!(op, Op::Tcgen05(Tcgen05::MmaDense { .. })));
            halves || site.fences_to_multiplication() > 1
        },
        counts: &[("sm_100a", &[0, 1, 0, 1, 0, 0, 1, 2, 1, 3, 1, 1, 1, 1])],
    },
    Equivalent {
        reason: "loads of tensor memory and waits for them are the whole warp's: no lane is behind another",
        mistakes: &["warp barrier dropped"],
        phases: &["finish"],
        is: |_| true,
        counts: &[("sm_100a", &[0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 1, 1, 1, 0])],
    },
    Equivalent {
        reason: "units behind the last of k are zeros under zero scales, copied with them: their products add nothing",
        mistakes: &["condition dropped"],
        phases: &["multiply"],
        is: |site| {
            let scales = |op: &Op| matches!(op, Op::Tcgen05(Tcgen05::CopyScales { .. }));
            site.if_more_than_constant() && site.skipped().iter().filter(|instr| scales(&instr.op)).count() > 1
        },
        counts: &[("sm_100a", &[3, 3, 6, 3, 3, 3, 0, 0, 0, 0, 3, 6, 3, 0])],
    },
    Equivalent {
        reason: "no tile lacks tokens, columns or k, and sm100 refuses to split a k of one step: no loop is empty",
        mistakes: &["condition dropped"],
        phases: &["produce", "dequantise", "multiply", "finish"],
        is: |site| match site.rounds() {
            Some(Arith::Binary { op: BinaryOp::Shr | BinaryOp::Min, .. }) => true,
            Some(Arith::Select { .. }) => site.way.arch == "sm_100a",
            _ => false,
        },
        counts: &[("sm_90a", &[3, 0, 2, 4, 2, 2, 3, 3, 3]), ("sm_100a", &[4, 4, 7, 4, 4, 4, 4, 4, 4, 8, 5, 6, 5, 5])],
    },
    Equivalent {
        reason: "announcing bytes publishes nothing: the copies signal for themselves",
        mistakes: &["ordering relaxed"],
        phases: &["produce", "consume/combine"],
        is: |site| matches!(site.op(), Op::Barrier(Barrier::ArriveExpectTx { .. })),
        counts: &[("sm_90a", &[2, 3, 2, 4, 2, 2, 2, 2, 2]), ("sm_100a", &[2, 2, 4, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 1])],
    },
    Equivalent {
        reason: "waiting again for a grid that has ended costs nothing",
        mistakes: &["guard dropped"],
        phases: &["produce"],
        is: |site| *site.op() == Op::Control(Control::GridDependencyWait),
        counts: &[("sm_90a", &[1, 1, 1, 2, 1, 1, 1, 1, 1]), ("sm_100a", &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])],
    },
    Equivalent {
        reason: "the second pass over k comes after the first, which has waited",
        mistakes: &["guard inverted", "grid dependency ignored"],
        phases: &["produce"],
        is: |site| {
            let waits = Op::Control(Control::GridDependencyWait);
            *site.op() == waits && site.before().iter().any(|instr| instr.op == waits)
        },
        counts: &[("sm_90a", &[0, 0, 0, 2, 0, 0, 0, 0, 0])],
    },
    Equivalent {
        reason: "how many registers the code needs is for the assembler to say, and its report is tested",
        mistakes: &["register budget left alone"],
        phases: &[""],
        is: |site| {
            let more = RegisterChange::Increase;
            matches!(site.op(), Op::Control(Control::SetMaxRegisters { change, .. }) if *change == more)
        },
        counts: &[("sm_90a", &[1, 1, 1, 1, 1, 1, 1, 1, 1])],
    },
    Equivalent {
        reason: "dividing by one tile of tokens changes nothing",
        mistakes: &["condition dropped"],
        phases: &["produce", "consume", "search"],
        is: |site| {
            let first = site.skipped().first().map(|instr| &instr.op);
            matches!(first, Some(Op::Arith(Arith::Binary { op: BinaryOp::Div, .. })))
        },
        counts: &[("sm_90a", &[3, 3, 3, 3, 3, 3, 3, 3, 3])],
    },
    Equivalent {
        reason: "the words of a unit behind the last are loaded, and never multiplied",
        mistakes: &["condition dropped"],
        phases: &["consume"],
        is: |site| {
            !site.skipped().is_empty() && site.skipped().iter().all(|instr| site.phase_of(instr) == "consume/load")
        },
        counts: &[("sm_90a", &[1, 0, 0, 0, 0, 1, 0, 1, 1])],
    },
    Equivalent {
        reason: "tokens beyond the tile are computed for nothing, and not stored",
        mistakes: &["condition dropped"],
        phases: &["consume/finish", "consume/finish/stage", "finish/stage", "finish/store"],
        is: |site| {
            let to_c = |op: &Op| matches!(op, Op::Memory(Memory::Store { space: Space::Global, .. }));
            let stores = |instr: &Instr| to_c(&instr.op) && instr.guard.is_none();
            site.if_more_than_constant() && !site.skipped().iter().any(stores)
        },
        counts: &[("sm_80", &[8, 20, 8]), ("sm_90a", &[2, 5, 1, 2, 1, 1, 0, 2, 2]), ("sm_120a", &[12])],
    },
    Equivalent {
        reason: "warps that gave their sums away add them up too: the memory stays, and nobody reads their registers",
        mistakes: &["condition dropped"],
        phases: &["combine", "consume/combine"],
        is: |site| {
            let loads = |instr: &Instr| matches!(instr.op, Op::Memory(Memory::Load { .. }));
            let adds = |instr: &Instr| loads(instr) || matches!(instr.op, Op::Arith(_));
            site.sums_stay() && site.skipped().iter().all(adds) && site.skipped().iter().any(loads)
        },
        counts: &[("sm_80", &[1, 0, 1]), ("sm_90a", &[0, 0, 1, 0, 0, 0, 0, 0, 0])],
    },
    Equivalent {
        reason: "all met when the sums of two warpgroups were joined, in memory of their own",
        mistakes: &["named barrier dropped"],
        phases: &["consume/finish/meet"],
        is: |site| {
            site.has_region("sums") && !site.before().iter().any(|instr| site.phase_of(instr) == "consume/finish/stage")
        },
        counts: &[("sm_90a", &[0, 0, 1, 0, 0, 0, 0, 0, 0])],
    },
    Equivalent {
        reason: "fragments are made two multiplications ahead: the fence before covers them; the assembler wants each",
        mistakes: &["wgmma fence dropped"],
        phases: &["consume/multiply"],
        is: |site| {
            let enters = |op: &Op| matches!(op, Op::Control(Control::Label(_)));
            let round = site.before().iter().rev().take_while(|i| !(enters(&i.op) && site.phase_of(i) == "consume"));
            // Where tiles are stored under the next one's products, only a tile's first has none before it.
            let fence = |instr: &Instr| instr.op == Op::Wgmma(Wgmma::Fence);
            let fenced = round.into_iter().any(fence) || overlaps(site) && site.before().iter().any(fence);
            fenced && site.kernel_has(|op| *op == TWO_IN_FLIGHT)
        },
        counts: &[("sm_90a", &[0, 6, 6, 12, 6, 6, 23, 0, 0])],
    },
    Equivalent {
        reason: "the group joins the next one, and is waited for with it before anything depends on it",
        mistakes: &["commit dropped"],
        phases: &["consume/multiply"],
        is: |site| {
            let idle = |op: &Op| *op == TWO_IN_FLIGHT && site.one_stage_each();
            let groups = |op: &&Op| matches!(op, Op::Wgmma(Wgmma::Commit | Wgmma::Wait { .. })) && !idle(op);
            // Where the first two products of a tile are not waited for, later ones count on there being two groups.
            let next = site.after().iter().map(|instr| &instr.op).find(groups);
            next == Some(&Op::Wgmma(Wgmma::Commit)) && !overlaps(site)
        },
        counts: &[("sm_90a", &[0, 1, 6, 2, 1, 1, 0, 0, 0])],
    },
    Equivalent {
        reason: "a stage is multiplied to its end before the next begins: no older group is in flight",
        mistakes: &["group wait dropped", "one group more in flight", "stage released early"],
        phases: &["consume"],
        is: |site| *site.op() == TWO_IN_FLIGHT && site.one_stage_each(),
        counts: &[("sm_90a", &[0, 0, 10, 0, 0, 0, 0, 0, 0])],
    },
    Equivalent {
        reason: "after the last pass of a block's only tile nobody waits for its stages",
        mistakes: &["stage released early", "arrive dropped", "arrive doubled", "ordering relaxed"],
        phases: &["consume", "consume/release"],
        is: |site| {
            let release = |phase: &str| phase == "consume/release";
            let releases =
                release(&site.phase()) || site.after().first().is_some_and(|next| release(&site.phase_of(next)));
            releases && !site.loops_later()
        },
        counts: &[("sm_90a", &[0, 0, 0, 8, 0, 0, 0, 0, 0])],
    },
    Equivalent {
        reason: "with two stages one other thread passes the test, and may make the barrier as well",
        mistakes: &["guard inverted"],
        phases: &["prepare"],
        is: |site| site.barrier_region().is_some() && site.config().is_some_and(|config| config.stages == 2),
        counts: &[("sm_90a", &[0, 2, 0, 0, 6, 0, 4, 0, 0])],
    },
    Equivalent {
        reason: "taking turns at the tensor cores publishes nothing: it only orders their use",
        mistakes: &["one arrival too few expected", "ordering relaxed"],
        phases: &["prepare", "consume/take turns"],
        is: |site| site.phase() != "prepare" || site.barrier_region() == Some("done"),
        counts: &[("sm_90a", &[0, 0, 0, 0, 4, 0, 0, 0, 0])],
    },
    Equivalent {
        reason: "there are only barriers to publish, no columns, and the fence of their initialisation does that",
        mistakes: &["ordering relaxed"],
        phases: &["prepare"],
        is: |site| !site.kernel_has(|op| matches!(op, Op::Tcgen05(Tcgen05::Alloc { .. }))),
        counts: &[("sm_90a", &[0, 1, 0, 0, 0, 0, 0, 0, 0])],
    },
    Equivalent {
        reason: "all threads meet behind it, and both that copy have a proxy fence of their own before they do",
        mistakes: &["fence dropped"],
        phases: &["prepare"],
        is: |site| {
            let by_warps = site.config().is_some_and(|config| WARPS.value(&config.own) > 0);
            by_warps && *site.op() == Op::Fence(Fence::BarrierInit)
        },
        counts: &[("sm_90a", &[0, 0, 0, 0, 0, 0, 0, 1, 0])],
    },
    Equivalent {
        reason: "the first unit of a copied stage is always there",
        mistakes: &["zeros not filled in"],
        phases: &["multiply/copy"],
        is: |site| site.copies_first_weights(),
        counts: &[("sm_80", &[3, 0, 3])],
    },
    Equivalent {
        reason: "where there is no second stage, zeros land in its place, are waited for, and are never read",
        mistakes: &["guard dropped"],
        phases: &["multiply/copy"],
        is: |site| site.first_copies() == Some(true) && site.if_stage_is_there(),
        counts: &[("sm_80", &[6, 5, 6]), ("sm_120a", &[1])],
    },
    Equivalent {
        reason: "where there is no second stage, weights of the next rows land in its place, and are never read",
        mistakes: &["guard dropped"],
        phases: &["multiply/copy"],
        is: |site| site.first_copies() == Some(false) && site.if_stage_is_there() && site.copies_first_weights(),
        counts: &[("sm_80", &[0, 1, 0])],
    },
    Equivalent {
        reason: "pieces behind the prologue's last stage land where the next stage is copied to later",
        mistakes: &["guard dropped"],
        phases: &["multiply/copy"],
        is: |site| {
            let both = |op: &PredicateOp| matches!(op, PredicateOp::Logic(LogicOp::And, ..));
            let last = site.after().first().is_some_and(|next| next.op == Op::Copy(AsyncCopy::CommitThreadGroup));
            let guard = site.condition();
            let both = matches!(guard, Some(Arith::Predicate { op, .. }) if both(op));
            site.first_copies() == Some(true) && last && both
        },
        counts: &[("sm_80", &[1, 0, 1])],
    },
];

/// What the fine main loop of Hopper's waits for: its fragments are made two multiplications ahead.
const TWO_IN_FLIGHT: Op = Op::Wgmma(Wgmma::Wait { pending: 2 });
