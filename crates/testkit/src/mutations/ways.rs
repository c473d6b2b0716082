//! The kernels that are broken: every strategy, schedule and epilogue of every family, each with the smallest problems
//! that use all of it.
//!
//! What the problems must have between them: tokens, columns and k beyond the last tile, a last stage that is not full,
//! a single stage, and a pipeline that wraps around often enough for a barrier that counts wrongly to fall behind. All
//! problems of a way take one kernel.

use op::{Activation, Gate, Output, Precision};

use crate::cases::Inputs;

/// A kernel that is broken: how it is asked for, and the problems on which its mutants run.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// What it is called.
    pub name: &'static str,
    /// The architecture, as the assembler spells it.
    pub arch: &'static str,
    /// The simulator that runs it.
    pub backend: &'static str,
    /// The configuration.
    pub request: &'static str,
    /// The type of tokens.
    pub activation: Activation,
    /// What tokens and weights are rounded to.
    pub precision: Precision,
    /// The gate: without one there is one matrix.
    pub gate: Gate,
    /// The type of C.
    pub output: Output,
    /// What operands consist of, which says how weights share scales.
    pub inputs: Inputs,
    /// Tokens, columns and k of each group of each problem; the smallest first.
    pub problems: &'static [&'static [(usize, usize, usize)]],
}

const HOPPER: Way = Way {
    name: "",
    arch: "sm_90a",
    backend: "sim:sm_90a",
    request: "",
    activation: Activation::F16,
    precision: Precision::Exact,
    gate: Gate::None,
    output: Output::F32,
    inputs: Inputs::Realistic,
    problems: &[],
};
const AMPERE: Way = Way { arch: "sm_80", backend: "sim:sm80", ..HOPPER };
const DESKTOP: Way = Way { arch: "sm_120a", backend: "sim:sm120", activation: Activation::NvFp4, ..HOPPER };
const BLACKWELL: Way = Way { arch: "sm_100a", backend: "sim:sm_100a", activation: Activation::NvFp4, ..HOPPER };

/// Small problems for kernels of few columns per tile.
const SMALL: &[&[(usize, usize, usize)]] =
    &[&[(16, 64, 16)], &[(21, 40, 80)], &[(9, 40, 176)], &[(5, 72, 1680)], &[(68, 40, 592)], &[(77, 132, 384)]];

/// The same whose k is whole blocks of MXFP4.
const WHOLE_BLOCKS: &[&[(usize, usize, usize)]] =
    &[&[(16, 64, 32)], &[(21, 40, 96)], &[(9, 40, 160)], &[(5, 72, 1696)], &[(36, 132, 384)]];

/// The ways that are broken. On Hopper few tokens take the coarse main loop, many the fine one; two passes are a kernel
/// of one matrix, as the first two.
pub static WAYS: [Way; 27] = [
    Way {
        name: "a tile per block, few tokens",
        request: "strategy=interleaved,tile=16x128,depth=128,stages=2,epilogue=direct,schedule=tile",
        problems: SMALL,
        ..HOPPER
    },
    Way {
        name: "two blocks per tile, many tokens",
        request: "strategy=interleaved,tile=80x128,depth=64,stages=2,epilogue=direct,schedule=split-k",
        problems: SMALL,
        ..HOPPER
    },
    Way {
        name: "several tiles per block, by way of shared memory",
        request: "strategy=interleaved,tile=16x32,depth=64,stages=2,epilogue=staged,schedule=persistent",
        gate: Gate::Silu,
        output: Output::F16,
        problems: &[&[(9, 40, 16)], &[(9, 72, 128)], &[(20, 72, 592)]],
        ..HOPPER
    },
    Way {
        name: "gate, then up, by way of shared memory",
        request: "strategy=sequential,tile=16x64,depth=64,stages=4,epilogue=staged,schedule=tile",
        gate: Gate::Silu,
        output: Output::F16,
        problems: &[&[(9, 40, 16)], &[(9, 72, 128)], &[(20, 72, 592)]],
        ..HOPPER
    },
    Way {
        name: "warpgroups in turn",
        request: "strategy=ping-pong,tile=16x32,depth=64,stages=2,epilogue=staged,schedule=persistent",
        gate: Gate::Silu,
        output: Output::F16,
        problems: &[&[(9, 72, 16)], &[(9, 72, 128)], &[(20, 104, 336)]],
        ..HOPPER
    },
    Way {
        name: "FP8, a tile per block, by way of shared memory",
        request: "strategy=interleaved,tile=16x64,depth=128,stages=3,epilogue=staged,schedule=tile",
        precision: Precision::Fp8,
        gate: Gate::Silu,
        problems: &[&[(9, 40, 16)], &[(9, 72, 256)], &[(20, 72, 1104)]],
        ..HOPPER
    },
    Way {
        name: "a tile is stored under the next one",
        request: "strategy=interleaved,tile=72x128,depth=128,stages=2,epilogue=direct,schedule=persistent,under=2",
        problems: &[&[(21, 40, 192)], &[(68, 264, 256)], &[(72, 504, 624)], &[(70, 264, 304)]],
        ..HOPPER
    },
    Way {
        name: "products by warps",
        request: "strategy=interleaved,tile=16x128,depth=128,stages=2,epilogue=direct,schedule=tile,warps=1",
        problems: SMALL,
        ..HOPPER
    },
    Way {
        name: "MXFP4, a tile per block, few tokens",
        request: "strategy=interleaved,tile=16x128,depth=128,stages=2,epilogue=direct,schedule=tile",
        activation: Activation::BF16,
        inputs: Inputs::PowersOfTwo,
        problems: WHOLE_BLOCKS,
        ..HOPPER
    },
    Way {
        name: "mma.sync, warps along k",
        request: "strategy=interleaved,tile=16x32,depth=128,stages=3,epilogue=direct,schedule=tile",
        problems: SMALL,
        ..AMPERE
    },
    Way {
        name: "mma.sync, several tiles per block",
        request: "strategy=interleaved,tile=40x64,depth=64,stages=3,epilogue=staged,schedule=persistent",
        problems: SMALL,
        ..AMPERE
    },
    Way {
        name: "mma.sync, MXFP4, several tiles per block",
        request: "strategy=interleaved,tile=16x32,depth=128,stages=3,epilogue=direct,schedule=persistent",
        activation: Activation::BF16,
        inputs: Inputs::PowersOfTwo,
        problems: WHOLE_BLOCKS,
        ..AMPERE
    },
    Way {
        name: "mma.sync with block scales",
        request: "strategy=interleaved,tile=24x32,depth=64,stages=3,epilogue=direct,schedule=tile",
        problems: SMALL,
        ..DESKTOP
    },
    Way {
        name: "weights as rows",
        request: "strategy=interleaved,tile=16x128,depth=256,stages=2,epilogue=direct,schedule=tile",
        gate: Gate::Silu,
        problems: &[&[(3, 9, 16)], &[(19, 133, 1360)]],
        ..BLACKWELL
    },
    Way {
        name: "tokens as rows, several tiles per block",
        request: "strategy=interleaved,tile=128x64,depth=256,stages=2,epilogue=direct,schedule=persistent",
        gate: Gate::Silu,
        output: Output::F16,
        problems: &[&[(3, 8, 16)], &[(130, 72, 592)]],
        ..BLACKWELL
    },
    Way {
        name: "gate, then up, two blocks per tile",
        request: "strategy=sequential,tile=128x64,depth=256,stages=2,epilogue=direct,schedule=split-k",
        gate: Gate::Silu,
        problems: &[&[(5, 9, 272)], &[(130, 65, 1616)]],
        ..BLACKWELL
    },
    Way {
        name: "two sets of accumulators, groups",
        request: "strategy=ping-pong,tile=16x128,depth=256,stages=2,epilogue=direct,schedule=persistent",
        gate: Gate::Silu,
        problems: &[&[(3, 9, 16), (4, 8, 64)], &[(33, 137, 272), (0, 8, 16), (9, 8, 592)]],
        ..BLACKWELL
    },
    Way {
        name: "two passes on tensor memory",
        request: "strategy=two-pass,tile=128x64,depth=256,stages=3,epilogue=direct,schedule=tile",
        gate: Gate::Silu,
        problems: &[&[(3, 8, 16)], &[(9, 136, 1616)]],
        ..BLACKWELL
    },
    Way {
        name: "tokens as rows, 128 columns",
        request: "strategy=interleaved,tile=128x128,depth=256,stages=2,epilogue=direct,schedule=tile",
        gate: Gate::Silu,
        output: Output::F16,
        problems: &[&[(3, 8, 16)], &[(9, 168, 1104)]],
        ..BLACKWELL
    },
    Way {
        name: "halves, tokens as rows",
        request: "strategy=interleaved,tile=128x32,depth=64,stages=2,epilogue=direct,schedule=tile",
        activation: Activation::F16,
        gate: Gate::Silu,
        output: Output::F16,
        problems: &[&[(3, 8, 256)], &[(130, 40, 336)]],
        ..BLACKWELL
    },
    Way {
        name: "single precision, weights as rows",
        request: "strategy=ping-pong,tile=16x128,depth=64,stages=2,epilogue=direct,schedule=persistent",
        activation: Activation::F32,
        gate: Gate::Silu,
        problems: &[&[(3, 9, 256)], &[(20, 133, 144)]],
        ..BLACKWELL
    },
    Way {
        name: "bfloat16, two blocks per tile",
        request: "strategy=interleaved,tile=128x64,depth=64,stages=2,epilogue=direct,schedule=split-k",
        activation: Activation::BF16,
        gate: Gate::Silu,
        problems: &[&[(5, 9, 256)], &[(130, 70, 592)]],
        ..BLACKWELL
    },
    Way {
        name: "halves, gate, then up",
        request: "strategy=sequential,tile=32x128,depth=64,stages=3,epilogue=direct,schedule=persistent",
        activation: Activation::F16,
        gate: Gate::Silu,
        problems: &[&[(3, 9, 256)], &[(40, 141, 272)]],
        ..BLACKWELL
    },
    Way {
        name: "pairs, tokens as rows",
        request: "strategy=interleaved,tile=256x64,depth=256,stages=2,epilogue=direct,schedule=persistent",
        gate: Gate::Silu,
        output: Output::F16,
        problems: &[&[(3, 8, 16)], &[(260, 72, 592)]],
        ..BLACKWELL
    },
    Way {
        name: "gate ahead of up",
        request: "strategy=interleaved,tile=128x64,depth=256,stages=3,epilogue=direct,schedule=persistent,ahead=2",
        gate: Gate::Silu,
        output: Output::F16,
        problems: &[&[(3, 8, 16)], &[(130, 72, 592)], &[(9, 40, 1872)]],
        ..BLACKWELL
    },
    Way {
        name: "two pairs that share tokens",
        request: "strategy=interleaved,tile=256x64,depth=256,stages=2,epilogue=direct,schedule=persistent,multicast=2",
        gate: Gate::Silu,
        output: Output::F16,
        problems: &[&[(3, 8, 16)], &[(260, 136, 592)]],
        ..BLACKWELL
    },
    Way {
        name: "pairs, weights as rows, halves",
        request: "strategy=interleaved,tile=32x256,depth=64,stages=2,epilogue=direct,schedule=tile",
        activation: Activation::F16,
        gate: Gate::Silu,
        problems: &[&[(3, 9, 256)], &[(20, 261, 208)]],
        ..BLACKWELL
    },
];
