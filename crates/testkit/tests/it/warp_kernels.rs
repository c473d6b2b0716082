//! The kernels for GPUs since Ampere as they are printed: legal in every size that a plan may choose, and assembled
//! without spills for the chips that run them.

use format::Scaling;
use gpu::experts::For;
use gpu::experts::between::{BetweenSpec, Form};
use gpu::experts::combine::CombineSpec;
use gpu::experts::plan;
use gpu::experts::route::{Grouped, RouteSpec, Score};
use gpu::experts::shape::LayerShape;
use gpu::experts::share::ShareSpec;
use gpu::experts::sort::{Ids, Rows, SortSpec};
use gpu::facts::Facts;
use gpu::families::sm80::kernel::{Products, Tokens, WarpMultiplySpec, kernel};
use gpu::families::sm100::arrange::{ArrangeSpec as SlabSpec, Padding};
use gpu::families::sm100::kernel::{TensorMultiplySpec, kernel as kernel_of};
use gpu::families::sm120::ArrangeSpec;
use gpu::pack::Codes;
use gpu::phases::gates::Function;
use gpu::{KernelSpec, expand, families, join};
use hammerhead::{Activation, Epilogue, Gate, Output, Schedule};
use hammerhead_testkit::experts::PLAIN;
use ptx::{Error, Target};

use crate::assembling::assert_assemble;

/// A common kernel, from which others differ.
const COMMON: WarpMultiplySpec = WarpMultiplySpec {
    scaling: Scaling::NvFp4,
    target: Target::Sm80,
    products: Products::Interleaved,
    resident: 1,
    tokens: 64,
    columns: 128,
    units: 1,
    stages: 4,
    epilogue: Epilogue::Staged,
    schedule: Schedule::PerTile,
    element: Tokens::F16,
    function: Function::Silu,
    output: Output::F16,
    groups: 1,
    biased: false,
    experts: None,
};

fn sized(products: Products, [tokens, columns, units, stages]: [u32; 4], schedule: Schedule) -> WarpMultiplySpec {
    let function = if products == Products::Single { Function::None } else { Function::Silu };
    let epilogue = if schedule == Schedule::SplitK { Epilogue::Direct } else { Epilogue::Staged };
    WarpMultiplySpec { products, tokens, columns, units, stages, schedule, function, epilogue, ..COMMON }
}

/// Sizes that plans choose, sizes at the edges of what is legal, and every kind of each phase.
fn configs() -> Vec<WarpMultiplySpec> {
    use Products::{Interleaved, Sequential, Single};
    use Schedule::{PerTile, Persistent, SplitK};
    let mut all = vec![
        sized(Interleaved, [8, 32, 4, 8], PerTile),
        sized(Interleaved, [8, 8, 4, 12], PerTile),
        sized(Interleaved, [16, 24, 2, 8], PerTile),
        sized(Interleaved, [24, 40, 1, 6], PerTile),
        sized(Interleaved, [32, 64, 2, 4], PerTile),
        sized(Interleaved, [64, 64, 2, 4], PerTile),
        sized(Interleaved, [64, 128, 1, 5], PerTile),
        sized(Interleaved, [64, 128, 2, 3], Persistent),
        sized(Interleaved, [96, 96, 1, 4], PerTile),
        sized(Interleaved, [128, 128, 1, 4], PerTile),
        sized(Interleaved, [96, 64, 2, 3], PerTile),
        sized(Interleaved, [128, 64, 2, 3], PerTile),
        sized(Interleaved, [64, 256, 1, 4], PerTile),
        sized(Interleaved, [32, 64, 2, 4], SplitK),
        sized(Sequential, [64, 128, 1, 4], PerTile),
        sized(Sequential, [16, 64, 2, 4], SplitK),
        sized(Single, [64, 256, 1, 4], PerTile),
        sized(Single, [128, 256, 1, 4], Persistent),
        sized(Single, [8, 64, 4, 4], SplitK),
        WarpMultiplySpec { resident: 2, ..sized(Interleaved, [32, 64, 1, 4], PerTile) },
        WarpMultiplySpec { resident: 2, ..sized(Interleaved, [48, 64, 1, 4], PerTile) },
        WarpMultiplySpec { resident: 2, ..sized(Interleaved, [8, 32, 4, 4], PerTile) },
    ];
    for element in [Tokens::Bf16, Tokens::Bf16Sum] {
        all.extend([
            WarpMultiplySpec { element, ..sized(Interleaved, [64, 64, 1, 4], PerTile) },
            WarpMultiplySpec { element, ..sized(Interleaved, [8, 32, 2, 4], PerTile) },
        ]);
    }
    for spec in [
        sized(Interleaved, [8, 32, 4, 8], PerTile),
        sized(Interleaved, [32, 64, 2, 4], SplitK),
        sized(Interleaved, [64, 256, 1, 4], PerTile),
        sized(Interleaved, [128, 128, 1, 4], Persistent),
        sized(Sequential, [64, 128, 1, 4], PerTile),
        WarpMultiplySpec { resident: 2, ..sized(Interleaved, [32, 64, 1, 4], PerTile) },
        WarpMultiplySpec { element: Tokens::Bf16, ..sized(Single, [128, 256, 1, 4], Persistent) },
    ] {
        all.push(WarpMultiplySpec { scaling: Scaling::MxFp4, ..spec });
    }
    let wide = WarpMultiplySpec { scaling: Scaling::WideMxFp4, ..sized(Interleaved, [8, 32, 2, 4], PerTile) };
    all.push(WarpMultiplySpec { element: Tokens::Bf16Sum, ..wide });
    let functions = [Gate::GeluTanh, Gate::GPT_OSS, Gate::SiluLimited { limit: 7.0 }].map(Function::of);
    for (function, output) in functions.into_iter().zip([Output::BF16, Output::F32, Output::F16]) {
        for epilogue in [Epilogue::Direct, Epilogue::Staged] {
            all.push(WarpMultiplySpec { function, output, epilogue, ..COMMON });
        }
    }
    all.extend([1, 8, 32, 128].map(|groups| WarpMultiplySpec { groups, ..COMMON }));
    all
}

#[test]
fn every_kernel_assembles_without_spills() {
    let target = Target::Sm80;
    let joins = [1, 2].map(|parts| {
        let (function, output, groups) = (Function::Silu, Output::F16, 8);
        KernelSpec::from(join::JoinSpec { function, output, groups, parts, target, biased: parts > 1 })
    });
    let expansions = [expand::TokenForm::NvFp4, expand::TokenForm::Single]
        .map(|source| KernelSpec::from(expand::ExpandSpec::new(target, source, 1, 16)));
    let products = configs().into_iter().map(KernelSpec::from);
    let biased = configs().into_iter().filter(|spec| !spec.leaves_sums()).step_by(3);
    let biased = biased.map(|spec| KernelSpec::from(WarpMultiplySpec { biased: true, ..spec }));
    let all = products.chain(biased).chain(joins).chain(expansions).chain(expert_kernels(target)).collect();
    assert_assemble(all, &["sm_80", "sm_86", "sm_89", "sm_90"]);
}

/// Kernels with FP8 weights: of each kind of scales and tokens, what plans choose for few tokens and many, and the
/// largest tiles that registers are said to suffice for.
fn fp8_configs() -> Vec<WarpMultiplySpec> {
    let kinds = [Scaling::Fp8, Scaling::MxFp8, Scaling::Fp8By64, Scaling::Fp8By32];
    let tokens = [Tokens::F16, Tokens::Bf16, Tokens::Bf16Sum];
    let mut all = Vec::new();
    for (scaling, element) in kinds.into_iter().flat_map(|scaling| tokens.map(|element| (scaling, element))) {
        let with = |size, schedule| WarpMultiplySpec { scaling, element, ..sized(Products::Single, size, schedule) };
        all.extend([
            with([8, 16, 4, 8], Schedule::PerTile),
            with([16, 32, 2, 4], Schedule::Persistent),
            with([32, 64, 2, 3], Schedule::PerTile),
            WarpMultiplySpec { resident: 2, ..with([8, 32, 4, 3], Schedule::PerTile) },
            WarpMultiplySpec { biased: true, output: Output::F32, ..with([8, 128, 1, 4], Schedule::PerTile) },
        ]);
        let sizes =
            [16, 24, 32, 48, 64, 96, 128].map(|tokens| [64, 128, 256, 512].map(|columns| [tokens, columns, 1, 3]));
        let legal = sizes.as_flattened().iter().map(|size| with(*size, Schedule::PerTile));
        let legal: Vec<WarpMultiplySpec> = legal.filter(|spec| spec.check().is_ok()).collect();
        let most = |spec: &WarpMultiplySpec| spec.held_registers();
        let largest = legal.iter().map(most).max().unwrap_or(0);
        all.extend(legal.into_iter().filter(|spec| most(spec) + 12 > largest));
    }
    all
}

#[test]
fn every_kernel_with_fp8_weights_assembles_without_spills() {
    let all = fp8_configs().into_iter().map(KernelSpec::from).collect();
    assert_assemble(all, &["sm_80", "sm_86", "sm_90"]);
}

/// The kernels of layers of experts, within the shared memory of an RTX GPU: few tokens and many, of every type, and
/// what is around the products.
fn expert_kernels(target: Target) -> Vec<KernelSpec> {
    let layer = LayerShape { experts: 256, top: 8, hidden: 7168, inner: 2048, biased: true, ..PLAIN };
    let family = families::ALL.into_iter().find(|family| family.target() == target).expect("a family");
    let facts = match target {
        Target::Sm100f => Facts::b200(),
        _ => Facts { shared_bytes: 99 << 10, ..Facts::a100() },
    };
    let halves = LayerShape { codes: Codes::Halves, activation: Activation::F16, on_input: true, ..layer };
    let single = LayerShape { activation: Activation::F32, output: Output::F32, ..layer };
    let alike = LayerShape { invariant: true, ..layer };
    let sizes =
        [(layer, [8, 16, 64, 128]), (alike, [8, 32, 64, 128]), (halves, [8, 32, 96, 128]), (single, [8, 16, 32, 64])];
    // Where MXFP4 is widened, its kernels are those of NVFP4.
    let takes_mx = family.scaling(Scaling::MxFp4).is_mx();
    let mx = sizes.map(|(layer, tiles)| (LayerShape { scaling: Scaling::MxFp4, ..layer }, tiles));
    let sizes = sizes.into_iter().chain(mx.into_iter().filter(|_| takes_mx));
    let cases = sizes.flat_map(|(layer, tiles)| tiles.map(|tile| (layer, tile)));
    let mut all: Vec<KernelSpec> = cases
        .flat_map(|(layer, tile): (LayerShape, u32)| {
            let tile = if target == Target::Sm100f { tile.next_multiple_of(16) } else { tile };
            let kernels = plan::kernels_with_tile(family, &layer, tile, &facts).expect("a kernel");
            [kernels.gate_up.spec(), kernels.down.spec()]
        })
        .collect();
    let (grouped, score) = (Some(Grouped { groups: 8, kept: 4 }), Score::Sigmoid);
    let route = RouteSpec { experts: 256, top: 8, score, renormalised: true, corrected: true, grouped };
    let sort = SortSpec {
        experts: 256,
        top: 8,
        ids: Ids::Routed(route),
        rows: Rows::Floats,
        factors: true,
        owners: true,
        order: false,
        divided: false,
    };
    let combine =
        CombineSpec { top: 8, rows: Output::F32, output: Output::BF16, weighted: true, addend: None, away: false };
    all.extend([
        For { spec: route, target }.into(),
        For { spec: sort, target }.into(),
        For { spec: BetweenSpec { form: Form::Quantised, experts: 256 }, target }.into(),
        For { spec: ShareSpec { tokens: expand::Float::F16 }, target }.into(),
        For { spec: combine, target }.into(),
    ]);
    all
}

/// Kernels where tensor cores take NVFP4 itself: its tokens, and others against the same weights.
fn desktop_configs() -> Vec<WarpMultiplySpec> {
    use Products::{Interleaved, Sequential, Single};
    use Schedule::{PerTile, Persistent, SplitK};
    let sizes = [
        sized(Interleaved, [8, 8, 4, 12], PerTile),
        sized(Interleaved, [8, 32, 4, 4], PerTile),
        sized(Interleaved, [64, 128, 1, 3], PerTile),
        sized(Interleaved, [64, 64, 2, 3], Persistent),
        sized(Interleaved, [128, 64, 1, 4], PerTile),
        sized(Interleaved, [32, 64, 2, 4], SplitK),
        sized(Sequential, [64, 128, 1, 3], PerTile),
        sized(Single, [64, 256, 1, 3], PerTile),
        WarpMultiplySpec { resident: 2, ..sized(Interleaved, [32, 64, 1, 3], PerTile) },
    ];
    let with = |element| sizes.map(|spec| WarpMultiplySpec { target: Target::Sm120f, element, ..spec });
    let wide = WarpMultiplySpec { element: Tokens::Bf16Sum, ..sized(Interleaved, [16, 32, 1, 3], PerTile) };
    let wide = WarpMultiplySpec { target: Target::Sm120f, ..wide };
    let largest = sized(Interleaved, [128, 128, 2, 3], PerTile);
    let largest = WarpMultiplySpec { target: Target::Sm120f, element: Tokens::NvFp4, ..largest };
    [Tokens::NvFp4, Tokens::F16, Tokens::Bf16].into_iter().flat_map(with).chain([wide, largest]).collect()
}

#[test]
fn kernels_with_block_scales_assemble_without_spills() {
    let target = Target::Sm120f;
    let (function, output, groups, parts) = (Function::Silu, Output::F16, 8, 2);
    let others = [
        KernelSpec::from(join::JoinSpec { function, output, groups, parts, target, biased: true }),
        KernelSpec::from(expand::ExpandSpec::new(target, expand::TokenForm::Single, 1, 16)),
        KernelSpec::from(ArrangeSpec { groups, target }),
    ];
    let biased = desktop_configs().into_iter().filter(|spec| !spec.leaves_sums()).step_by(3);
    let biased = biased.map(|spec| KernelSpec::from(WarpMultiplySpec { biased: true, ..spec }));
    let products = desktop_configs().into_iter().map(KernelSpec::from).chain(biased);
    let all = products.chain(others).chain(expert_kernels(target)).collect();
    assert_assemble(all, &["sm_120f", "sm_120a", "sm_121a"]);
}

#[test]
fn every_kernel_takes_the_shared_memory_that_its_config_says() {
    for config in configs().into_iter().chain(desktop_configs()).chain(fp8_configs()) {
        let kernel = kernel(config).unwrap_or_else(|error| panic!("{config:?}: {error}"));
        assert_eq!(kernel.shared_bytes(), config.shared_bytes(), "{config:?}");
    }
}

#[test]
fn a_size_that_the_kernels_lack_is_refused() {
    assert!(kernel(COMMON).is_ok());
    for broken in [
        WarpMultiplySpec { tokens: 12, ..COMMON },
        WarpMultiplySpec { tokens: 136, ..COMMON },
        WarpMultiplySpec { columns: 12, ..COMMON },
        WarpMultiplySpec { columns: 0, ..COMMON },
        WarpMultiplySpec { columns: 1024, ..COMMON },
        WarpMultiplySpec { columns: 24, products: Products::Sequential, ..COMMON },
        WarpMultiplySpec { units: 3, ..COMMON },
        WarpMultiplySpec { stages: 2, ..COMMON },
        WarpMultiplySpec { stages: 17, ..COMMON },
        WarpMultiplySpec { tokens: 128, columns: 256, ..COMMON },
        WarpMultiplySpec { stages: 16, units: 4, ..COMMON },
        WarpMultiplySpec { groups: 3, ..COMMON },
        WarpMultiplySpec { element: Tokens::NvFp4, ..COMMON },
        WarpMultiplySpec { target: Target::Sm120f, stages: 8, ..COMMON },
        WarpMultiplySpec { scaling: Scaling::Fp8, ..COMMON },
        WarpMultiplySpec { scaling: Scaling::WideMxFp4, ..COMMON },
        WarpMultiplySpec { scaling: Scaling::MxFp4, target: Target::Sm120f, stages: 3, ..COMMON },
        WarpMultiplySpec { scaling: Scaling::Fp8, ..sized(Products::Single, [8, 64, 4, 4], Schedule::SplitK) },
        WarpMultiplySpec {
            scaling: Scaling::MxFp8,
            target: Target::Sm120f,
            ..sized(Products::Single, [8, 64, 1, 3], Schedule::PerTile)
        },
    ] {
        assert!(matches!(kernel(broken), Err(Error::Field { .. })), "{broken:?}");
    }
}

/// A common kernel for data-centre Blackwell.
const TENSOR: TensorMultiplySpec = TensorMultiplySpec {
    products: Products::Interleaved,
    element: None,
    sets: 1,
    tokens: 128,
    columns: 64,
    stages: 4,
    epilogue: Epilogue::Direct,
    schedule: Schedule::PerTile,
    multicast: 1,
    ahead: 0,
    aligned: true,
    function: Function::Silu,
    output: Output::F16,
    groups: 1,
    biased: false,
    experts: None,
};

/// Sizes that plans choose, sizes at the edges of what is legal, and every kind of each phase.
fn tensor_configs() -> Vec<TensorMultiplySpec> {
    use Products::{Sequential, Single};
    let small = TensorMultiplySpec { tokens: 16, columns: 128, ..TENSOR };
    let persistent = Schedule::Persistent;
    let functions = [Gate::GeluTanh, Gate::GPT_OSS, Gate::SiluLimited { limit: 7.0 }].map(Function::of);
    let mut all = vec![
        TENSOR,
        small,
        TensorMultiplySpec { stages: 5, ..TENSOR },
        TensorMultiplySpec { columns: 128, aligned: false, ..TENSOR },
        TensorMultiplySpec { tokens: 112, ..small },
        TensorMultiplySpec { tokens: 8, ..small },
        TensorMultiplySpec { schedule: persistent, groups: 8, ..TENSOR },
        TensorMultiplySpec { schedule: persistent, sets: 2, groups: 32, ..TENSOR },
        TensorMultiplySpec { schedule: persistent, sets: 2, tokens: 64, groups: 128, ..small },
        TensorMultiplySpec { products: Sequential, ..TENSOR },
        TensorMultiplySpec { products: Sequential, schedule: persistent, ..small },
        TensorMultiplySpec { products: Single, function: Function::None, output: Output::F32, ..TENSOR },
        TensorMultiplySpec { products: Single, function: Function::Relu2, columns: 128, ..small },
        TensorMultiplySpec { schedule: Schedule::SplitK, ..TENSOR },
        TensorMultiplySpec { schedule: Schedule::SplitK, ..small },
        TensorMultiplySpec { tokens: 256, ..TENSOR },
        TensorMultiplySpec { tokens: 256, columns: 128, schedule: persistent, groups: 8, ..TENSOR },
        TensorMultiplySpec { tokens: 256, columns: 128, stages: 5, ..TENSOR },
        TensorMultiplySpec { ahead: 4, ..TENSOR },
        TensorMultiplySpec { tokens: 256, columns: 128, multicast: 2, ahead: 1, schedule: persistent, ..TENSOR },
        TensorMultiplySpec { ahead: 2, element: Some(Tokens::F16), stages: 2, ..small },
        TensorMultiplySpec { tokens: 256, multicast: 2, ..TENSOR },
        TensorMultiplySpec { tokens: 256, multicast: 2, schedule: persistent, groups: 128, ..TENSOR },
        TensorMultiplySpec { tokens: 256, multicast: 2, element: Some(Tokens::Bf16Sum), stages: 2, ..TENSOR },
        TensorMultiplySpec { columns: 256, schedule: persistent, sets: 2, ..small },
        TensorMultiplySpec { columns: 256, schedule: Schedule::SplitK, ..small },
    ];
    let pairs = [TensorMultiplySpec { tokens: 256, ..TENSOR }, TensorMultiplySpec { columns: 256, ..small }];
    all.extend(pairs.map(|pair| TensorMultiplySpec { element: Some(Tokens::F16), stages: 2, ..pair }));
    for element in [Tokens::F16, Tokens::Bf16, Tokens::Bf16Sum].map(Some) {
        all.extend([TENSOR, small].map(|common| TensorMultiplySpec { element, stages: 2, ..common }));
        all.push(TensorMultiplySpec { element, stages: 2, columns: 32, ..TENSOR });
    }
    for (function, output) in functions.into_iter().zip([Output::BF16, Output::F32, Output::F16]) {
        all.extend([TENSOR, small].map(|common| TensorMultiplySpec { function, output, ..common }));
    }
    all
}

#[test]
fn every_kernel_for_blackwell_assembles_without_spills_for_both_chips() {
    let arrangements = [Padding::Rows, Padding::FewColumns, Padding::Columns]
        .map(|padding| KernelSpec::from(SlabSpec { padding, groups: 8, target: Target::Sm100f }));
    let kernels = tensor_configs().into_iter().map(|config| {
        let built = kernel_of(config).unwrap_or_else(|error| panic!("{config:?}: {error}"));
        assert_eq!(built.shared_bytes(), config.shared_bytes(), "{config:?}");
        config.into()
    });
    let biased = tensor_configs().into_iter().filter(|spec| !spec.leaves_sums()).step_by(3);
    let biased = biased.map(|spec| TensorMultiplySpec { biased: true, ..spec }.into());
    let experts = expert_kernels(Target::Sm100f);
    let all: Vec<KernelSpec> = kernels.chain(arrangements).chain(biased).chain(experts).collect();
    // There is no silicon to try them on: each for both.
    for chip in ["sm_100f", "sm_103a"] {
        assert_assemble(all.clone(), &[chip]);
    }
}

#[test]
fn a_tile_that_blackwell_lacks_is_refused_with_the_reason() {
    let refused = |broken: TensorMultiplySpec| broken.check().expect_err("illegal").to_string();
    for (broken, part) in [
        (TensorMultiplySpec { tokens: 64, ..TENSOR }, "no multiplication of 64 rows"),
        (TensorMultiplySpec { tokens: 12, ..TENSOR }, "multiple of 16"),
        (TensorMultiplySpec { tokens: 24, columns: 128, ..TENSOR }, "or 8 of NVFP4 tokens"),
        (TensorMultiplySpec { tokens: 136, ..TENSOR }, "256 for a pair"),
        (TensorMultiplySpec { tokens: 24, columns: 256, ..TENSOR }, "multiple of 16"),
        (TensorMultiplySpec { tokens: 256, columns: 256, ..TENSOR }, "64 or 128"),
        (TensorMultiplySpec { columns: 32, ..TENSOR }, "begin at an even column"),
        (TensorMultiplySpec { columns: 96, ..TENSOR }, "begin at an even column"),
        (TensorMultiplySpec { columns: 96, element: Some(Tokens::F16), ..TENSOR }, "tokens of 16 bits"),
        (TensorMultiplySpec { multicast: 2, ..TENSOR }, "tiles of 256 tokens"),
        (TensorMultiplySpec { multicast: 4, tokens: 256, ..TENSOR }, "cluster of four blocks"),
        (TensorMultiplySpec { multicast: 2, columns: 256, tokens: 16, ..TENSOR }, "weights are most"),
        (TensorMultiplySpec { ahead: 5, ..TENSOR }, "as many as the pipeline has"),
        (TensorMultiplySpec { ahead: 1, products: Products::Sequential, ..TENSOR }, "ahead over all of k"),
        (TensorMultiplySpec { ahead: 1, schedule: Schedule::SplitK, ..TENSOR }, "leave sums as they are"),
        (TensorMultiplySpec { ahead: 1, sets: 2, schedule: Schedule::Persistent, ..TENSOR }, "beside the next tile"),
        (TensorMultiplySpec { stages: 0, ..TENSOR }, "1 to 16"),
        (TensorMultiplySpec { sets: 2, ..TENSOR }, "schedule=persistent"),
        (TensorMultiplySpec { epilogue: Epilogue::Staged, ..TENSOR }, "epilogue=direct"),
        (TensorMultiplySpec { columns: 128, stages: 6, ..TENSOR }, "at most 512"),
        (TensorMultiplySpec { stages: 7, ..TENSOR }, "232448"),
        (TensorMultiplySpec { groups: 3, ..TENSOR }, "1, 8, 32 or 128"),
    ] {
        let reason = refused(broken);
        assert!(reason.contains(part), "{broken:?}: {reason}");
    }
}
