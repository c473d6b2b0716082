//! Mistakes that nothing can tell from the original, one by one: in which kernel, which mistake, at which instruction, and why.

use sim::mutate::Mutant;

/// Mutants of some kernels that are equivalent: in each, those of one mistake, at instructions of one phase that read the same.
#[derive(Clone, Copy, Debug)]
pub struct Excuse {
    /// The kernels, by their ways' names.
    pub ways: &'static [&'static str],
    /// The mistake.
    pub mistake: &'static str,
    /// Phase and instruction.
    pub place: &'static str,
    /// Which of the mutants of this mistake at this place, from 0.
    pub which: &'static [usize],
}

impl Excuse {
    /// Whether it is about a mutant, or one like it.
    pub fn is(&self, mutant: &Mutant) -> bool {
        self.mistake == mutant.mistake && self.place == mutant.place
    }
}

/// A reason, and what it excuses.
pub type Equivalent = (&'static str, &'static [Excuse]);

/// The excuses of one way, each with its reason.
pub(super) fn of(way: &'static str) -> impl Iterator<Item = (&'static Excuse, &'static str)> {
    let all = EQUIVALENT.iter().flat_map(|(reason, excuses)| excuses.iter().map(move |excuse| (excuse, *reason)));
    all.filter(move |(excuse, _)| excuse.ways.contains(&way))
}

/// Every way on data-centre Blackwell.
const BLACKWELL: &[&str] = &[
    "weights as rows",
    "tokens as rows, 96 columns",
    "tokens as rows, several tiles per block",
    "gate, then up, two blocks per tile",
    "two sets of accumulators, groups",
    "two passes on tensor memory",
    "halves, tokens as rows",
    "single precision, weights as rows",
    "bfloat16, two blocks per tile",
    "halves, gate, then up",
    "pairs, tokens as rows",
    "two pairs that share tokens",
    "pairs, weights as rows, halves",
    "gate ahead of up",
];

/// All of them: as many as are counted.
pub const COUNT: usize = 441;
/// The list, by reason.
pub const EQUIVALENT: &[Equivalent] = &[
    (
        "between tcgen05 fences, or behind a commit and before one, a barrier has to order execution and no more",
        &[
            Excuse {
                ways: &[
                    "weights as rows",
                    "tokens as rows, several tiles per block",
                    "gate, then up, two blocks per tile",
                    "two sets of accumulators, groups",
                    "two passes on tensor memory",
                    "tokens as rows, 96 columns",
                    "halves, tokens as rows",
                    "single precision, weights as rows",
                    "bfloat16, two blocks per tile",
                ],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm_tcgen05/finish: mbarrier.try_wait.parity.shared::cta.b64 %p, [%r], %r;",
                which: &[0],
            },
            Excuse {
                ways: &[
                    "tokens as rows, several tiles per block",
                    "two sets of accumulators, groups",
                    "single precision, weights as rows",
                    "halves, gate, then up",
                    "gate ahead of up",
                ],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm_tcgen05/multiply: mbarrier.try_wait.parity.shared::cta.b64 %p, [%r], %r;",
                which: &[0],
            },
            Excuse {
                ways: &[
                    "tokens as rows, several tiles per block",
                    "two sets of accumulators, groups",
                    "single precision, weights as rows",
                    "halves, gate, then up",
                    "gate ahead of up",
                ],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm_tcgen05/finish: mbarrier.arrive.shared::cta.b64 _, [%r];",
                which: &[0],
            },
            Excuse {
                ways: &["halves, gate, then up", "gate ahead of up"],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm_tcgen05/finish: mbarrier.try_wait.parity.shared::cta.b64 %p, [%r], %r;",
                which: &[0, 1],
            },
            Excuse {
                ways: &["pairs, tokens as rows", "two pairs that share tokens"],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm_tcgen05/multiply: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [%r], %r;",
                which: &[0],
            },
            Excuse {
                ways: &["pairs, tokens as rows", "two pairs that share tokens", "pairs, weights as rows, halves"],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm_tcgen05/finish: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [%r], %r;",
                which: &[0],
            },
            Excuse {
                ways: &["pairs, tokens as rows", "two pairs that share tokens"],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm_tcgen05/finish: mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r];",
                which: &[0],
            },
            Excuse {
                ways: &["pairs, tokens as rows", "two pairs that share tokens", "pairs, weights as rows, halves"],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm_tcgen05/leave: barrier.cluster.arrive.release.aligned;",
                which: &[0],
            },
        ],
    ),
    (
        "where gate is ahead, the last stage is among those over which it is: all before it are whole",
        &[Excuse {
            ways: &["gate ahead of up"],
            mistake: "condition dropped",
            place: "nvfp4_dual_gemm_tcgen05/multiply: @!%p bra L;",
            which: &[1, 2, 3],
        }],
    ),
    (
        "the permit is for other blocks of a multiprocessor, and what they compute does not depend on when they get columns",
        &[
            Excuse {
                ways: &[
                    "weights as rows",
                    "tokens as rows, 96 columns",
                    "tokens as rows, several tiles per block",
                    "gate, then up, two blocks per tile",
                    "two sets of accumulators, groups",
                    "two passes on tensor memory",
                    "halves, tokens as rows",
                    "single precision, weights as rows",
                    "bfloat16, two blocks per tile",
                    "halves, gate, then up",
                    "gate ahead of up",
                ],
                mistake: "permit not relinquished",
                place: "nvfp4_dual_gemm_tcgen05/prepare: tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
                which: &[0],
            },
            Excuse {
                ways: &["pairs, tokens as rows", "two pairs that share tokens", "pairs, weights as rows, halves"],
                mistake: "permit not relinquished",
                place: "nvfp4_dual_gemm_tcgen05/prepare: tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;",
                which: &[0],
            },
        ],
    ),
    (
        "allocating columns is no access to them, and who reads them comes after a commit: nothing on tensor memory is older",
        &[
            Excuse {
                ways: BLACKWELL,
                mistake: "tensor memory fence dropped",
                place: "nvfp4_dual_gemm_tcgen05/prepare: tcgen05.fence::before_thread_sync;",
                which: &[0],
            },
            Excuse {
                ways: BLACKWELL,
                mistake: "tensor memory fence dropped",
                place: "nvfp4_dual_gemm_tcgen05/prepare: tcgen05.fence::after_thread_sync;",
                which: &[0],
            },
        ],
    ),
    (
        "the fence before the last arrival at `drained` covers all that was read",
        &[Excuse {
            ways: &[
                "tokens as rows, several tiles per block",
                "two sets of accumulators, groups",
                "single precision, weights as rows",
                "halves, gate, then up",
                "pairs, tokens as rows",
                "two pairs that share tokens",
                "gate ahead of up",
            ],
            mistake: "tensor memory fence dropped",
            place: "nvfp4_dual_gemm_tcgen05/leave: tcgen05.fence::before_thread_sync;",
            which: &[0],
        }],
    ),
    (
        "of two fences before a multiplication one suffices; numbers of 16 bits need none, having nothing in tensor memory that others write",
        &[
            Excuse {
                ways: &[
                    "tokens as rows, several tiles per block",
                    "two sets of accumulators, groups",
                    "halves, tokens as rows",
                    "bfloat16, two blocks per tile",
                    "pairs, tokens as rows",
                    "two pairs that share tokens",
                    "pairs, weights as rows, halves",
                    "gate ahead of up",
                ],
                mistake: "tensor memory fence dropped",
                place: "nvfp4_dual_gemm_tcgen05/multiply: tcgen05.fence::after_thread_sync;",
                which: &[0],
            },
            Excuse {
                ways: &["single precision, weights as rows"],
                mistake: "tensor memory fence dropped",
                place: "nvfp4_dual_gemm_tcgen05/multiply: tcgen05.fence::after_thread_sync;",
                which: &[0, 1],
            },
            Excuse {
                ways: &["halves, gate, then up"],
                mistake: "tensor memory fence dropped",
                place: "nvfp4_dual_gemm_tcgen05/multiply: tcgen05.fence::after_thread_sync;",
                which: &[0, 1, 2],
            },
        ],
    ),
    (
        "reading tensor memory, and waiting for it, is the whole warp's: no lane is behind another",
        &[Excuse {
            ways: &[
                "tokens as rows, several tiles per block",
                "two sets of accumulators, groups",
                "single precision, weights as rows",
                "halves, gate, then up",
                "pairs, tokens as rows",
                "two pairs that share tokens",
                "gate ahead of up",
            ],
            mistake: "warp barrier dropped",
            place: "nvfp4_dual_gemm_tcgen05/finish: bar.warp.sync 0xffffffff;",
            which: &[0],
        }],
    ),
    (
        "units behind the last of k are zeros under scales that are zero: their products add nothing",
        &[
            Excuse {
                ways: &["gate ahead of up"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_tcgen05/multiply: @!%p bra L;",
                which: &[4, 5, 6],
            },
            Excuse {
                ways: &[
                    "weights as rows",
                    "tokens as rows, 96 columns",
                    "tokens as rows, several tiles per block",
                    "two sets of accumulators, groups",
                    "two passes on tensor memory",
                ],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_tcgen05/multiply: @!%p bra L;",
                which: &[1, 2, 3],
            },
            Excuse {
                ways: &["gate, then up, two blocks per tile"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_tcgen05/multiply: @!%p bra L;",
                which: &[1, 2, 3, 4, 5, 6],
            },
            Excuse {
                ways: &["pairs, tokens as rows", "two pairs that share tokens"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_tcgen05/multiply: @!%p bra L;",
                which: &[2, 3, 4],
            },
        ],
    ),
    (
        "no tile is without tokens, columns or k: the loop is never empty",
        &[
            Excuse {
                ways: &["gate ahead of up"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_tcgen05/multiply: @%p bra L;",
                which: &[1, 2],
            },
            Excuse {
                ways: &["gate ahead of up", "halves, gate, then up"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_tcgen05/finish: @%p bra L;",
                which: &[1],
            },
            Excuse {
                ways: &[
                    "weights as rows",
                    "tokens as rows, 96 columns",
                    "tokens as rows, several tiles per block",
                    "two sets of accumulators, groups",
                    "two passes on tensor memory",
                    "halves, gate, then up",
                    "pairs, tokens as rows",
                    "two pairs that share tokens",
                    "gate ahead of up",
                ],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_tcgen05/produce: @%p bra L;",
                which: &[0, 1],
            },
            Excuse {
                ways: &[
                    "weights as rows",
                    "tokens as rows, 96 columns",
                    "tokens as rows, several tiles per block",
                    "two sets of accumulators, groups",
                    "two passes on tensor memory",
                    "halves, tokens as rows",
                    "single precision, weights as rows",
                    "bfloat16, two blocks per tile",
                ],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_tcgen05/multiply: @%p bra L;",
                which: &[0],
            },
            Excuse {
                ways: BLACKWELL,
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_tcgen05/finish: @%p bra L;",
                which: &[0],
            },
            Excuse {
                ways: &["gate, then up, two blocks per tile"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_tcgen05/produce: @%p bra L;",
                which: &[0, 1, 2, 3],
            },
            Excuse {
                ways: &[
                    "gate, then up, two blocks per tile",
                    "halves, gate, then up",
                    "pairs, tokens as rows",
                    "two pairs that share tokens",
                    "pairs, weights as rows, halves",
                ],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_tcgen05/multiply: @%p bra L;",
                which: &[0, 1],
            },
            Excuse {
                ways: &[
                    "halves, tokens as rows",
                    "single precision, weights as rows",
                    "bfloat16, two blocks per tile",
                    "pairs, weights as rows, halves",
                ],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_tcgen05/dequantise: @%p bra L;",
                which: &[0],
            },
            Excuse {
                ways: &[
                    "halves, tokens as rows",
                    "single precision, weights as rows",
                    "bfloat16, two blocks per tile",
                    "pairs, weights as rows, halves",
                ],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_tcgen05/produce: @%p bra L;",
                which: &[0],
            },
            Excuse {
                ways: &["halves, gate, then up"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_tcgen05/dequantise: @%p bra L;",
                which: &[0, 1],
            },
        ],
    ),
    (
        "who announces bytes publishes nothing by it: the copies signal for themselves",
        &[
            Excuse {
                ways: &[
                    "a tile per block, few tokens",
                    "two blocks per tile, many tokens",
                    "several tiles per block, by way of shared memory",
                    "warpgroups in turn",
                ],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm/produce: mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], %r;",
                which: &[0, 1],
            },
            Excuse {
                ways: &["two blocks per tile, many tokens"],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm/consume/combine: @%p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], 10240;",
                which: &[0],
            },
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm/produce: mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], %r;",
                which: &[0, 1, 2, 3],
            },
            Excuse {
                ways: &[
                    "weights as rows",
                    "tokens as rows, 96 columns",
                    "tokens as rows, several tiles per block",
                    "two sets of accumulators, groups",
                    "two passes on tensor memory",
                    "halves, gate, then up",
                    "pairs, tokens as rows",
                    "two pairs that share tokens",
                    "gate ahead of up",
                ],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm_tcgen05/produce: mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], %r;",
                which: &[0, 1],
            },
            Excuse {
                ways: &["gate, then up, two blocks per tile"],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm_tcgen05/produce: mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], %r;",
                which: &[0, 1, 2, 3],
            },
            Excuse {
                ways: &[
                    "halves, tokens as rows",
                    "single precision, weights as rows",
                    "bfloat16, two blocks per tile",
                    "pairs, weights as rows, halves",
                ],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm_tcgen05/produce: mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], %r;",
                which: &[0],
            },
        ],
    ),
    (
        "waiting again for a kernel that has ended costs nothing",
        &[
            Excuse {
                ways: &[
                    "a tile per block, few tokens",
                    "two blocks per tile, many tokens",
                    "several tiles per block, by way of shared memory",
                    "warpgroups in turn",
                ],
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm/produce: @%p griddepcontrol.wait;",
                which: &[0],
            },
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm/produce: @%p griddepcontrol.wait;",
                which: &[0, 1],
            },
            Excuse {
                ways: BLACKWELL,
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm_tcgen05/produce: @%p griddepcontrol.wait;",
                which: &[0],
            },
        ],
    ),
    (
        "how many registers the code needs is for the assembler to say, and its report is tested",
        &[
            Excuse {
                ways: &["a tile per block, few tokens", "two blocks per tile, many tokens"],
                mistake: "register budget left alone",
                place: "nvfp4_dual_gemm: setmaxnreg.inc.sync.aligned.u32 104;",
                which: &[0],
            },
            Excuse {
                ways: &[
                    "several tiles per block, by way of shared memory",
                    "gate, then up, by way of shared memory",
                    "warpgroups in turn",
                ],
                mistake: "register budget left alone",
                place: "nvfp4_dual_gemm: setmaxnreg.inc.sync.aligned.u32 232;",
                which: &[0],
            },
        ],
    ),
    (
        "no tile is without k, and no unit without slices: the loop is never empty",
        &[
            Excuse {
                ways: &["a tile per block, few tokens"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm/produce: @%p bra L;",
                which: &[0, 1, 2],
            },
            Excuse {
                ways: &["several tiles per block, by way of shared memory", "warpgroups in turn"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm/produce: @%p bra L;",
                which: &[0, 1],
            },
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm/produce: @%p bra L;",
                which: &[0, 1, 2, 3],
            },
        ],
    ),
    (
        "dividing by one tile of tokens changes nothing; nor do words of a unit behind the last, which nobody multiplies",
        &[
            Excuse {
                ways: &[
                    "a tile per block, few tokens",
                    "two blocks per tile, many tokens",
                    "several tiles per block, by way of shared memory",
                    "gate, then up, by way of shared memory",
                    "warpgroups in turn",
                ],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm/produce: @!%p bra L;",
                which: &[1, 3],
            },
            Excuse {
                ways: &["a tile per block, few tokens"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm/consume: @!%p bra L;",
                which: &[0, 1],
            },
            Excuse {
                ways: &[
                    "two blocks per tile, many tokens",
                    "several tiles per block, by way of shared memory",
                    "gate, then up, by way of shared memory",
                    "warpgroups in turn",
                ],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm/consume: @!%p bra L;",
                which: &[0],
            },
        ],
    ),
    (
        "tokens beyond the tile are computed for nothing, and not stored",
        &[
            Excuse {
                ways: &["a tile per block, few tokens"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm/consume/finish: @!%p bra L;",
                which: &[1, 2, 4, 5],
            },
            Excuse {
                ways: &["two blocks per tile, many tokens"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm/consume/finish: @!%p bra L;",
                which: &[1, 2, 3, 4, 5, 7, 8, 9, 10, 11],
            },
            Excuse {
                ways: &["several tiles per block, by way of shared memory", "warpgroups in turn"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm/consume/finish/stage: @!%p bra L;",
                which: &[0],
            },
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm/consume/finish/stage: @!%p bra L;",
                which: &[0, 1],
            },
            Excuse {
                ways: &["mma.sync, warps along k"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_mma/finish/store: @!%p bra L;",
                which: &[1, 2, 4, 5, 7, 8, 10, 11],
            },
            Excuse {
                ways: &["mma.sync, several tiles per block"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_mma/finish/stage: @!%p bra L;",
                which: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19],
            },
            Excuse {
                ways: &["mma.sync with block scales"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_mma/finish/store: @!%p bra L;",
                which: &[1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15],
            },
        ],
    ),
    (
        "warps that have left their sums add the others' to them, and nobody looks",
        &[
            Excuse {
                ways: &["several tiles per block, by way of shared memory"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm/consume/combine: @!%p bra L;",
                which: &[1],
            },
            Excuse {
                ways: &["mma.sync, warps along k"],
                mistake: "condition dropped",
                place: "nvfp4_dual_gemm_mma/combine: @!%p bra L;",
                which: &[1],
            },
        ],
    ),
    (
        "fragments are made two multiplications ahead, so the fence before this one covers them; the assembler wants each",
        &[
            Excuse {
                ways: &[
                    "two blocks per tile, many tokens",
                    "several tiles per block, by way of shared memory",
                    "warpgroups in turn",
                ],
                mistake: "wgmma fence dropped",
                place: "nvfp4_dual_gemm/consume/multiply: wgmma.fence.sync.aligned;",
                which: &[1, 2, 3, 5, 6, 7],
            },
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "wgmma fence dropped",
                place: "nvfp4_dual_gemm/consume/multiply: wgmma.fence.sync.aligned;",
                which: &[1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15],
            },
        ],
    ),
    (
        "the group becomes one with the next, and is waited for with that before anything depends on it",
        &[
            Excuse {
                ways: &["two blocks per tile, many tokens", "warpgroups in turn"],
                mistake: "commit dropped",
                place: "nvfp4_dual_gemm/consume/multiply: wgmma.commit_group.sync.aligned;",
                which: &[6],
            },
            Excuse {
                ways: &["several tiles per block, by way of shared memory"],
                mistake: "commit dropped",
                place: "nvfp4_dual_gemm/consume/multiply: wgmma.commit_group.sync.aligned;",
                which: &[0, 1, 2, 4, 5, 6],
            },
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "commit dropped",
                place: "nvfp4_dual_gemm/consume/multiply: wgmma.commit_group.sync.aligned;",
                which: &[6, 14],
            },
        ],
    ),
    (
        "a stage is multiplied to its end before the next is begun: nothing older is under way",
        &[
            Excuse {
                ways: &["several tiles per block, by way of shared memory"],
                mistake: "group wait dropped",
                place: "nvfp4_dual_gemm/consume: wgmma.wait_group.sync.aligned 2;",
                which: &[0, 1, 2, 3],
            },
            Excuse {
                ways: &["several tiles per block, by way of shared memory"],
                mistake: "one group more in flight",
                place: "nvfp4_dual_gemm/consume: wgmma.wait_group.sync.aligned 2;",
                which: &[0, 1, 2, 3],
            },
            Excuse {
                ways: &["several tiles per block, by way of shared memory"],
                mistake: "stage released early",
                place: "nvfp4_dual_gemm/consume: wgmma.wait_group.sync.aligned 2;",
                which: &[0, 1],
            },
        ],
    ),
    (
        "behind the last pass of a block's only tile nobody waits for its stages",
        &[
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "stage released early",
                place: "nvfp4_dual_gemm/consume: wgmma.wait_group.sync.aligned 2;",
                which: &[7],
            },
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "arrive dropped",
                place: "nvfp4_dual_gemm/consume/release: @%p mbarrier.arrive.shared::cta.b64 _, [%r+32];",
                which: &[3],
            },
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "arrive doubled",
                place: "nvfp4_dual_gemm/consume/release: @%p mbarrier.arrive.shared::cta.b64 _, [%r+32];",
                which: &[3],
            },
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm/consume/release: @%p mbarrier.arrive.shared::cta.b64 _, [%r+32];",
                which: &[3],
            },
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "stage released early",
                place: "nvfp4_dual_gemm/consume: wgmma.wait_group.sync.aligned 0;",
                which: &[1],
            },
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "arrive dropped",
                place: "nvfp4_dual_gemm/consume/release: mbarrier.arrive.shared::cta.b64 _, [%r+32];",
                which: &[1],
            },
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "arrive doubled",
                place: "nvfp4_dual_gemm/consume/release: mbarrier.arrive.shared::cta.b64 _, [%r+32];",
                which: &[1],
            },
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm/consume/release: mbarrier.arrive.shared::cta.b64 _, [%r+32];",
                which: &[1],
            },
        ],
    ),
    (
        "the second pass over k comes after the first, which has waited",
        &[
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "guard inverted",
                place: "nvfp4_dual_gemm/produce: @%p griddepcontrol.wait;",
                which: &[1],
            },
            Excuse {
                ways: &["gate, then up, by way of shared memory"],
                mistake: "grid dependency ignored",
                place: "nvfp4_dual_gemm/produce: @%p griddepcontrol.wait;",
                which: &[1],
            },
        ],
    ),
    (
        "all have met when the sums of two warpgroups were added up",
        &[Excuse {
            ways: &["several tiles per block, by way of shared memory"],
            mistake: "named barrier dropped",
            place: "nvfp4_dual_gemm/consume/finish/meet: barrier.sync.aligned %r, 128;",
            which: &[0],
        }],
    ),
    (
        "with two stages there is one other thread to make the barrier, and it may be that",
        &[
            Excuse {
                ways: &["two blocks per tile, many tokens"],
                mistake: "guard inverted",
                place: "nvfp4_dual_gemm/prepare: @%p mbarrier.init.shared::cta.b64 [shared_memory+50208], 1;",
                which: &[0],
            },
            Excuse {
                ways: &["two blocks per tile, many tokens"],
                mistake: "guard inverted",
                place: "nvfp4_dual_gemm/prepare: @%p mbarrier.init.shared::cta.b64 [shared_memory+50216], 1;",
                which: &[0],
            },
            Excuse {
                ways: &["warpgroups in turn"],
                mistake: "guard inverted",
                place: "nvfp4_dual_gemm/prepare: @%p mbarrier.init.shared::cta.b64 [shared_memory+8736], 128;",
                which: &[0],
            },
            Excuse {
                ways: &["warpgroups in turn"],
                mistake: "guard inverted",
                place: "nvfp4_dual_gemm/prepare: @%p mbarrier.init.shared::cta.b64 [shared_memory+8744], 128;",
                which: &[0],
            },
        ],
    ),
    (
        "who takes turns at the tensor cores publishes nothing: it only orders their use",
        &[
            Excuse {
                ways: &["warpgroups in turn"],
                mistake: "one arrival too few expected",
                place: "nvfp4_dual_gemm/prepare: @%p mbarrier.init.shared::cta.b64 [shared_memory+8736], 128;",
                which: &[0],
            },
            Excuse {
                ways: &["warpgroups in turn"],
                mistake: "one arrival too few expected",
                place: "nvfp4_dual_gemm/prepare: @%p mbarrier.init.shared::cta.b64 [shared_memory+8744], 128;",
                which: &[0],
            },
            Excuse {
                ways: &["warpgroups in turn"],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm/consume/take turns: mbarrier.try_wait.parity.shared::cta.b64 %p, [%r], %r;",
                which: &[0],
            },
            Excuse {
                ways: &["warpgroups in turn"],
                mistake: "ordering relaxed",
                place: "nvfp4_dual_gemm/consume/take turns: mbarrier.arrive.shared::cta.b64 _, [%r];",
                which: &[0],
            },
        ],
    ),
    (
        "there are only barriers to tell of, and the fence of their initialisation releases them",
        &[Excuse {
            ways: &["two blocks per tile, many tokens"],
            mistake: "ordering relaxed",
            place: "nvfp4_dual_gemm/prepare: barrier.cluster.arrive.release.aligned;",
            which: &[0],
        }],
    ),
    (
        "the first unit of a stage that is copied is always there",
        &[
            Excuse {
                ways: &["mma.sync, warps along k"],
                mistake: "zeros not filled in",
                place: "nvfp4_dual_gemm_mma/multiply/copy: cp.async.cg.shared.global [%r+4096], [%d], 16, %r;",
                which: &[0],
            },
            Excuse {
                ways: &["mma.sync, warps along k"],
                mistake: "zeros not filled in",
                place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r+4096], [%d], 16, %r;",
                which: &[0, 1],
            },
        ],
    ),
    (
        "of a second stage where there is but one nothing is read: zeros land where nobody looks, and are waited for",
        &[
            Excuse {
                ways: &["mma.sync, warps along k"],
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r], [%d], 16, %r;",
                which: &[0],
            },
            Excuse {
                ways: &["mma.sync, warps along k"],
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r+1024], [%d], 16, %r;",
                which: &[0],
            },
            Excuse {
                ways: &["mma.sync, warps along k"],
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r+2048], [%d], 16, %r;",
                which: &[0],
            },
            Excuse {
                ways: &["mma.sync, warps along k"],
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r+3072], [%d], 16, %r;",
                which: &[0],
            },
            Excuse {
                ways: &["mma.sync, warps along k"],
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r+4096], [%d], 16, %r;",
                which: &[0],
            },
            Excuse {
                ways: &["mma.sync, warps along k"],
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r+5120], [%d], 16, %r;",
                which: &[0],
            },
            Excuse {
                ways: &["mma.sync, several tiles per block"],
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r], [%d], 16, %r;",
                which: &[0],
            },
            Excuse {
                ways: &["mma.sync, several tiles per block"],
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r+1024], [%d], 16, %r;",
                which: &[0],
            },
            Excuse {
                ways: &["mma.sync, several tiles per block"],
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r+2048], [%d], 16, %r;",
                which: &[0],
            },
            Excuse {
                ways: &["mma.sync, several tiles per block"],
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r+3072], [%d], 16, %r;",
                which: &[0],
            },
            Excuse {
                ways: &["mma.sync, several tiles per block"],
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r+4096], [%d], 16, %r;",
                which: &[0],
            },
            Excuse {
                ways: &["mma.sync with block scales"],
                mistake: "guard dropped",
                place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r], [%d], 16, %r;",
                which: &[0],
            },
        ],
    ),
    (
        "in place of a second stage where there is but one, the first rows' weights are followed by the next rows', and land where nobody looks",
        &[Excuse {
            ways: &["mma.sync, several tiles per block"],
            mistake: "guard dropped",
            place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r+5120], [%d], 16;",
            which: &[0],
        }],
    ),
    (
        "pieces behind those of the last stage that is asked for in the beginning land where the next one is copied to later",
        &[Excuse {
            ways: &["mma.sync, warps along k"],
            mistake: "guard dropped",
            place: "nvfp4_dual_gemm_mma/multiply/copy: @%p cp.async.cg.shared.global [%r+6144], [%d], 16, %r;",
            which: &[1],
        }],
    ),
];
