//! The GPU's kernels as they are printed: legal in every size that a plan may choose, and assembled without spills.

use format::Scaling;
use gpu::expand::{self, Float, MOST_SEGMENTS, TokenForm};
use gpu::experts::For;
use gpu::experts::adapt::AdaptSpec;
use gpu::experts::adapters::AdaptedShape;
use gpu::experts::between::{BetweenSpec, Form};
use gpu::experts::combine::CombineSpec;
use gpu::experts::place::PlaceSpec;
use gpu::experts::plan;
use gpu::experts::route::{Grouped, RouteSpec, Score};
use gpu::experts::send::SendSpec;
use gpu::experts::shape::LayerShape;
use gpu::experts::share::ShareSpec;
use gpu::experts::sort::{Ids, Rows, SortSpec};
use gpu::facts::Facts;
use gpu::families::sm90::kernel::{CAPACITIES, MultiplySpec, Products, Tokens};
use gpu::families::sm90::{Sm90, experts, kernel_config};
use gpu::pack::{Codes, Scales};
use gpu::phases::direct::Direct;
use gpu::phases::gates::Function;
use gpu::phases::low_rank::LowRank;
use gpu::products::WARPS;
use gpu::{Family, KernelSpec, families::sm90::kernel, join, round};
use hammerhead::{Activation, Epilogue, Gate, Output, Precision, Problem, Schedule, Shape};
use hammerhead_testkit::experts::PLAIN;
use op::Config;
use ptx::Error;

use crate::assembling::assert_assemble;

/// The chip that all of these are for.
const CHIPS: [&str; 1] = ["sm_90a"];

/// A common kernel, from which others differ.
const COMMON: MultiplySpec = MultiplySpec {
    products: Products::Interleaved,
    ping_pong: false,
    tokens: 128,
    columns: 64,
    units: 2,
    stages: 4,
    epilogue: Epilogue::Staged,
    schedule: Schedule::PerTile,
    under: 0,
    by_warps: false,
    element: Tokens::F16,
    function: Function::Silu,
    output: Output::F16,
    groups: 1,
    biased: false,
    scales: Scales::Sixteens,
    experts: None,
};

fn sized(products: Products, [tokens, columns, units, stages]: [u32; 4], schedule: Schedule) -> MultiplySpec {
    let function = if products == Products::Single { Function::None } else { Function::Silu };
    MultiplySpec { products, tokens, columns, units, stages, schedule, function, ..COMMON }
}

/// The sizes that plans choose, sizes at the edges of what is legal, and every kind of each phase.
fn configs() -> Vec<MultiplySpec> {
    use Products::{Interleaved, Sequential, Single};
    use Schedule::{PerTile, Persistent, SplitK};
    let mut all = vec![
        sized(Interleaved, [128, 64, 2, 5], PerTile),
        sized(Interleaved, [256, 64, 1, 5], PerTile),
        sized(Interleaved, [256, 64, 1, 5], Persistent),
        sized(Interleaved, [128, 96, 2, 3], SplitK),
        sized(Interleaved, [128, 96, 2, 4], PerTile),
        sized(Interleaved, [128, 64, 2, 4], SplitK),
        sized(Interleaved, [64, 32, 2, 10], PerTile),
        sized(Interleaved, [16, 32, 4, 12], PerTile),
        sized(Interleaved, [8, 32, 4, 14], PerTile),
        // Two blocks on a multiprocessor.
        sized(Interleaved, [8, 32, 4, 8], PerTile),
        sized(Interleaved, [16, 64, 4, 4], SplitK),
        sized(Interleaved, [32, 64, 2, 6], SplitK),
        sized(Interleaved, [96, 64, 2, 3], PerTile),
        // Four warpgroups.
        sized(Interleaved, [64, 64, 2, 6], SplitK),
        sized(Single, [64, 128, 1, 4], PerTile),
        sized(Interleaved, [8, 64, 1, 1], PerTile),
        sized(Interleaved, [112, 128, 1, 4], PerTile),
        sized(Interleaved, [88, 96, 2, 4], Persistent),
        sized(Interleaved, [256, 64, 1, 4], SplitK),
        sized(Sequential, [128, 128, 1, 6], PerTile),
        sized(Sequential, [64, 192, 1, 4], Persistent),
        sized(Sequential, [32, 64, 1, 6], SplitK),
        sized(Single, [256, 128, 1, 4], PerTile),
        sized(Single, [128, 192, 1, 4], Persistent),
        sized(Single, [64, 256, 1, 3], SplitK),
        MultiplySpec { ping_pong: true, ..sized(Interleaved, [112, 64, 2, 4], Persistent) },
        MultiplySpec { ping_pong: true, ..sized(Interleaved, [256, 32, 1, 4], Persistent) },
        MultiplySpec { ping_pong: true, ..sized(Single, [64, 128, 2, 4], Persistent) },
    ];
    // Tiles that are stored under the next one's products.
    let direct = |sizes| MultiplySpec { epilogue: Epilogue::Direct, ..sized(Single, sizes, Persistent) };
    all.extend([
        MultiplySpec { under: 8, output: Output::F32, ..direct([144, 128, 2, 4]) },
        MultiplySpec { under: 4, groups: 8, ..direct([128, 128, 2, 4]) },
        MultiplySpec { under: 8, element: Tokens::Bf16, ..direct([80, 192, 2, 4]) },
        MultiplySpec { under: 3, ..direct([80, 128, 1, 12]) },
    ]);
    // Products by warps.
    for spec in [
        sized(Interleaved, [8, 32, 4, 14], PerTile),
        sized(Interleaved, [8, 32, 4, 8], PerTile),
        sized(Interleaved, [16, 32, 4, 12], Persistent),
        sized(Interleaved, [16, 64, 4, 4], SplitK),
        sized(Single, [16, 256, 1, 4], PerTile),
        MultiplySpec { element: Tokens::Bf16, ..sized(Interleaved, [16, 64, 4, 6], PerTile) },
        MultiplySpec { scales: Scales::ThirtyTwos, ..sized(Interleaved, [16, 64, 2, 6], Persistent) },
    ] {
        all.push(MultiplySpec { by_warps: true, ..spec });
    }
    let common = sized(Interleaved, [64, 64, 1, 4], Persistent);
    for element in [Tokens::Bf16, Tokens::Bf16Sum] {
        all.extend([
            MultiplySpec { element, ..common },
            MultiplySpec { element, ..sized(Interleaved, [128, 64, 1, 3], PerTile) },
            MultiplySpec { element, ..sized(Interleaved, [48, 32, 1, 4], SplitK) },
        ]);
    }
    for (function, output) in [(Function::GeluTanh, Output::BF16), (Function::of(Gate::GPT_OSS), Output::F32)] {
        for epilogue in Epilogue::ALL {
            all.push(MultiplySpec { function, output, epilogue, ..common });
        }
    }
    for spec in [
        sized(Interleaved, [256, 64, 2, 5], PerTile),
        sized(Interleaved, [256, 64, 2, 3], SplitK),
        sized(Interleaved, [256, 64, 2, 4], Persistent),
        sized(Interleaved, [192, 64, 2, 4], PerTile),
        sized(Interleaved, [128, 128, 2, 4], PerTile),
        sized(Interleaved, [128, 64, 2, 6], SplitK),
        sized(Interleaved, [160, 96, 2, 4], Persistent),
        sized(Interleaved, [16, 64, 4, 6], PerTile),
        sized(Single, [256, 128, 2, 4], PerTile),
        sized(Single, [64, 256, 2, 4], Persistent),
    ] {
        all.push(MultiplySpec { element: Tokens::E4m3, ..spec });
    }
    for spec in [
        common,
        sized(Interleaved, [128, 64, 2, 5], PerTile),
        sized(Interleaved, [8, 32, 4, 14], PerTile),
        sized(Interleaved, [64, 64, 2, 6], SplitK),
        sized(Sequential, [64, 192, 1, 4], Persistent),
        MultiplySpec { ping_pong: true, ..sized(Interleaved, [112, 64, 2, 4], Persistent) },
        MultiplySpec { element: Tokens::Bf16, ..sized(Interleaved, [16, 32, 4, 12], PerTile) },
        MultiplySpec { element: Tokens::E4m3, ..sized(Interleaved, [192, 64, 2, 4], PerTile) },
    ] {
        all.push(MultiplySpec { scales: Scales::ThirtyTwos, ..spec });
    }
    all.push(MultiplySpec { function: Function::Relu2, ..sized(Single, [64, 128, 1, 4], PerTile) });
    all.extend(CAPACITIES.map(|groups| MultiplySpec { groups, ..common }));
    all
}

/// Kernels with FP8 weights: of each kind of scales and tokens, what plans choose for few tokens and many, and the
/// largest tiles that registers are said to suffice for.
fn fp8_configs() -> Vec<MultiplySpec> {
    use Schedule::{PerTile, Persistent, SplitK};
    use Tokens::{Bf16, Bf16Sum, F16};
    let kinds = [
        (Scales::Fp8, F16),
        (Scales::Fp8, Bf16),
        (Scales::Fp8, Bf16Sum),
        (Scales::MxFp8, Bf16),
        (Scales::MxFp8, Bf16Sum),
        (Scales::Fp8By64, F16),
        (Scales::Fp8By64, Bf16),
        (Scales::Fp8By64, Bf16Sum),
    ];
    let sizes = [
        ([16, 64, 4, 6], PerTile),
        ([32, 128, 2, 6], PerTile),
        ([64, 64, 2, 6], SplitK),
        ([64, 128, 2, 4], PerTile),
        ([64, 192, 2, 3], Persistent),
        ([64, 256, 2, 3], PerTile),
        ([64, 256, 1, 4], PerTile),
        ([96, 128, 2, 3], PerTile),
        ([96, 128, 1, 6], PerTile),
        ([128, 64, 2, 4], PerTile),
        ([128, 128, 2, 4], PerTile),
        ([128, 128, 2, 3], Persistent),
        ([128, 128, 1, 6], PerTile),
        ([128, 128, 1, 5], Persistent),
        ([128, 192, 1, 4], PerTile),
        ([136, 128, 1, 4], PerTile),
        ([128, 256, 1, 4], PerTile),
        ([112, 256, 1, 4], Persistent),
        ([192, 128, 1, 4], Persistent),
        ([128, 64, 1, 8], PerTile),
        ([256, 64, 1, 4], PerTile),
        ([256, 128, 1, 4], PerTile),
        ([256, 128, 1, 4], Persistent),
    ];
    let spec = |(scales, element), (number, (sizes, schedule)): (usize, ([u32; 4], Schedule))| {
        let (biased, epilogue) = (number % 3 == 0, if number % 4 == 0 { Epilogue::Direct } else { Epilogue::Staged });
        MultiplySpec { scales, element, biased, epilogue, ..sized(Products::Single, sizes, schedule) }
    };
    let all = kinds.into_iter().flat_map(|kind| sizes.into_iter().enumerate().map(move |size| spec(kind, size)));
    let under = MultiplySpec {
        scales: Scales::Fp8,
        under: 8,
        epilogue: Epilogue::Direct,
        ..sized(Products::Single, [128, 128, 2, 3], Persistent)
    };
    let in_turn = MultiplySpec { ping_pong: true, under: 0, tokens: 112, ..under };
    // What all parts of three take is too much for some.
    all.chain([under, in_turn]).filter(|spec| spec.check().is_ok()).chain(planned_fp8()).collect()
}

/// What plans choose for linear layers of usual sizes.
fn planned_fp8() -> Vec<MultiplySpec> {
    let mut all = Vec::new();
    for scaling in [Scaling::Fp8, Scaling::MxFp8, Scaling::Fp8By64] {
        for (tokens, (n, k)) in
            [32, 64, 128, 512, 4096].into_iter().flat_map(|m| [(m, (4096, 4096)), (m, (7168, 2048))])
        {
            let shapes = vec![Shape::new(tokens, n, k)];
            let problem = Problem::new(shapes, Gate::None, Activation::BF16, Output::BF16).expect("a problem");
            let problem = problem.with_scaling(scaling).expect("a plain product");
            let config = gpu::plan::cheapest(&Sm90, &problem, &Facts::h200()).expect("a plan");
            eprintln!("{scaling} {tokens}x{n}x{k}: {config}");
            all.push(kernel_config(&problem, &config).expect("the family's own"));
        }
    }
    all
}

#[test]
fn every_kernel_with_fp8_weights_assembles_alike() {
    let all = fp8_configs();
    let of = |scales| all.iter().filter(|spec| spec.scales == scales).count();
    assert!([Scales::Fp8, Scales::MxFp8, Scales::Fp8By64].map(of).iter().all(|&count| count > 12), "{}", all.len());
    assert_assemble(all.into_iter().map(KernelSpec::from).collect(), &CHIPS);
}

#[test]
fn every_kernel_assembles_without_spills_or_serialised_wgmma() {
    let target = ptx::Target::Sm90a;
    let joins =
        Gate::JOINING.map(Function::of).into_iter().zip(Output::ALL.into_iter().cycle()).map(|(function, output)| {
            KernelSpec::from(join::JoinSpec { function, output, groups: 8, parts: 1, target, biased: true })
        });
    let scaled = [Float::F16, Float::BF16, Float::F32].map(TokenForm::Scaled);
    let expansions = [TokenForm::NvFp4, TokenForm::Single].into_iter().chain(scaled).flat_map(|source| {
        [1, MOST_SEGMENTS].map(|runs| KernelSpec::from(expand::ExpandSpec::new(target, source, runs, 16)))
    });
    let rounds = [Float::F16, Float::BF16, Float::F32].into_iter().flat_map(|float| {
        let spec = |(groups, k, scaled)| round::RoundSpec::new(target, (float, scaled), groups, k);
        let [one, many] = [(1, 7168, false), (MOST_SEGMENTS, round::MOST_K, true)].map(spec);
        let by_expert = round::RoundSpec { owners: Some(256), ..spec((1, round::MOST_K, true)) };
        [one, many, by_expert].map(KernelSpec::from)
    });
    let biased = configs().into_iter().step_by(3).map(|spec| MultiplySpec { biased: true, ..spec }.into());
    assert_assemble(
        configs()
            .into_iter()
            .map(KernelSpec::from)
            .chain(biased)
            .chain(joins)
            .chain(expansions)
            .chain(rounds)
            .collect(),
        &CHIPS,
    );
}

#[test]
fn the_kernels_of_a_layer_of_experts_assemble_alike() {
    assert_assemble(of_experts(), &CHIPS);
}

/// Products of few tokens that find their tiles themselves, and add up: the planned ones of models, and some others.
#[test]
fn the_kernels_of_layers_in_two_launches_assemble_alike() {
    let qwen3 = LayerShape { experts: 128, top: 8, hidden: 2048, inner: 768, ..PLAIN };
    let gpt_oss = LayerShape { top: 4, hidden: 2880, inner: 2880, gate: Gate::GPT_OSS, biased: true, ..qwen3 };
    let deepseek = LayerShape { experts: 256, hidden: 7168, inner: 2048, ..qwen3 };
    let simple = LayerShape { gate: Gate::Relu2, ..qwen3 };
    let mut all: Vec<KernelSpec> = Vec::new();
    let halves = LayerShape { activation: Activation::F16, output: Output::F16, ..qwen3 };
    for (number, layer) in [qwen3, gpt_oss, deepseek, simple, halves].into_iter().enumerate() {
        let LayerShape { experts, top, partial, output, .. } = layer;
        let grouped = (number == 2).then_some(Grouped { groups: 8, kept: 4 });
        let score = if number == 2 { Score::Sigmoid } else { Score::Softmax };
        let route = RouteSpec { experts, top, score, renormalised: true, corrected: number == 2, grouped };
        let addend = (number == 1).then_some(Output::F32);
        let sums = Some(CombineSpec { top, rows: partial, output, weighted: true, addend, away: false });
        let ids = if number == 3 { Ids::Wide } else { Ids::Routed(route) };
        let planned = [1, 2, 4, 8].map(|tokens| plan::kernels(&Sm90, &layer, tokens, &Facts::h200()).expect("kernels"));
        let mut kernels: Vec<_> = planned.into_iter().flat_map(|both| [both.gate_up, both.down]).collect();
        for (tile, product) in [8, 16].into_iter().flat_map(|tile| [(tile, layer.gate_up()), (tile, layer.down())]) {
            let some = Sm90.expert_configs(&product, tile, &Facts::h200()).into_iter().skip(number).step_by(5);
            kernels.extend(some.map(|config| Sm90.expert_kernel(&product, &config, &Facts::h200()).expect("a kernel")));
        }
        // Of these some wait for one product before the next where tiles come from a layout, too.
        let tight = |spec: MultiplySpec| spec.blocks() == 4 || (spec.blocks(), spec.resident()) == (2, 2);
        let waits =
            |spec: MultiplySpec| spec.products == Products::Single && spec.units == 4 && !spec.by_warps && tight(spec);
        kernels.retain(|kernel| !kernel.spec().downcast().is_some_and(waits));
        for kernel in kernels {
            let is_second = kernel
                .spec()
                .downcast::<MultiplySpec>()
                .is_some_and(|spec| spec.experts.is_some_and(|experts| experts.follows));
            let sums = sums.filter(|_| is_second);
            let direct = kernel.direct(Direct { ids, top, sums, low_rank: None }).expect("such a kernel").spec();
            if !all.contains(&direct) {
                all.push(direct);
            }
        }
    }
    assert_assemble(all, &CHIPS);
}

#[test]
fn the_kernels_that_are_planned_for_layers_in_fp8_assemble_alike() {
    let qwen3 = LayerShape { experts: 128, top: 8, hidden: 2048, inner: 768, ..PLAIN };
    let gpt_oss = LayerShape { top: 4, hidden: 2880, inner: 2880, gate: Gate::GPT_OSS, biased: true, ..qwen3 };
    let deepseek = LayerShape { experts: 256, hidden: 7168, inner: 2048, ..qwen3 };
    let layers = [qwen3, gpt_oss, deepseek].map(|layer| layer.in_precision(Precision::Fp8));
    let mut all: Vec<KernelSpec> = Vec::new();
    for (layer, tokens) in layers.iter().flat_map(|layer| [1, 64, 512, 4096].map(|tokens| (layer, tokens))) {
        let planned = plan::kernels(&Sm90, layer, tokens, &Facts::h200()).expect("kernels");
        for spec in [planned.gate_up.spec(), planned.down.spec()] {
            if !all.contains(&spec) {
                all.push(spec);
            }
        }
    }
    assert_assemble(all, &CHIPS);
}

#[test]
fn the_kernels_of_a_layer_with_adapters_assemble_alike() {
    let shape = AdaptedShape { adapters: 2, rank: 16, numbers: Output::BF16 };
    let adapted = LayerShape { experts: 256, top: 8, hidden: 2048, inner: 768, adapted: Some(shape), ..PLAIN };
    let target = ptx::Target::Sm90a;
    let mut all: Vec<KernelSpec> = Vec::new();
    // Larger tiles spill where they add.
    for (tile, biased) in [8, 16, 24, 32].into_iter().flat_map(|tile| [(tile, false), (tile, true)]) {
        let product = LayerShape { biased, ..adapted }.gate_up();
        let some = experts::configs(&product, tile).into_iter().skip(tile as usize / 8 % 4).step_by(4);
        all.extend(some.map(|config| KernelSpec::from(experts::kernel(&product, &config).expect("a kernel"))));
    }
    for (numbers, rank) in [(Output::BF16, 16), (Output::BF16, 64), (Output::F32, 16), (Output::F16, 24)] {
        let x = if numbers == Output::F16 { Float::F16 } else { Float::BF16 };
        for (rows, first) in [(8, true), (8, false), (4096, true), (4096, false)] {
            let (matrices, size, factored) = (if first { 2 } else { 1 }, [rows, 7168, 2048], first);
            let (together, slots, parts, clustered) = (1, 1, 1, false);
            let entries = None;
            let spec =
                AdaptSpec { x, first, entries, factored, numbers, matrices, rank, together, slots, parts, clustered };
            all.extend([true, false].map(|may| KernelSpec::from(For { spec: spec.placed(size, may), target })));
        }
    }
    assert_assemble(all, &CHIPS);
}

/// Of these the second product holds what is its own of B through its main loop, if registers suffice.
#[test]
fn the_kernels_of_few_tokens_with_adapters_assemble_alike() {
    let qwen3 = LayerShape { experts: 128, top: 8, hidden: 2048, inner: 768, ..PLAIN };
    let deepseek = LayerShape { experts: 256, hidden: 7168, inner: 2048, ..qwen3 };
    let biased = LayerShape { gate: Gate::GPT_OSS, biased: true, ..qwen3 };
    let simple = LayerShape { gate: Gate::Relu2, activation: Activation::F16, output: Output::F16, ..qwen3 };
    let kinds = [(Output::BF16, 16), (Output::BF16, 64), (Output::F32, 64), (Output::F16, 8)];
    let mut all: Vec<KernelSpec> = Vec::new();
    for (number, (layer, (numbers, rank))) in
        [qwen3, deepseek, biased, simple].into_iter().flat_map(|layer| kinds.map(|kind| (layer, kind))).enumerate()
    {
        let layer = LayerShape { adapted: Some(AdaptedShape { adapters: 2, rank, numbers }), ..layer };
        let LayerShape { experts, top, partial, output, .. } = layer;
        let sums = CombineSpec { top, rows: partial, output, weighted: true, addend: None, away: false };
        let route =
            RouteSpec { experts, top, score: Score::Softmax, renormalised: true, corrected: false, grouped: None };
        let ids = if number % 2 == 0 { Ids::Narrow } else { Ids::Routed(route) };
        let planned = [1, 2].map(|tokens| plan::kernels(&Sm90, &layer, tokens, &Facts::h200()).expect("kernels"));
        let mut pairs: Vec<_> = planned.into_iter().map(|both| (both.gate_up, both.down)).collect();
        let of = |product| Sm90.expert_configs(&product, 8, &Facts::h200()).into_iter().skip(number % 7).step_by(7);
        let kernel = |product, config| Sm90.expert_kernel(&product, &config, &Facts::h200()).expect("a kernel");
        pairs.extend(
            of(layer.gate_up())
                .zip(of(layer.down()))
                .map(|(first, second)| (kernel(layer.gate_up(), first), kernel(layer.down(), second))),
        );
        for (first, second) in pairs {
            let low_rank = Some(LowRank { rank, numbers, pieces: layer.inner.div_ceil(first.piece()) });
            for (kernel, sums) in [(first, None), (second, Some(sums))] {
                let Some(direct) = kernel.direct(Direct { ids, top, sums, low_rank }) else {
                    // A thread would have too much of A.
                    assert!(rank > 32 && layer.gate == Gate::Relu2 && sums.is_none());
                    continue;
                };
                let direct = direct.spec();
                if !all.contains(&direct) {
                    all.push(direct);
                }
            }
        }
        let (x, factored, first) = (Float::of(layer.activation), false, true);
        let (together, slots, parts, clustered, entries) = (1, 1, 1, false, Some(ids));
        let matrices = layer.gate.matrices() as u32;
        let spec =
            AdaptSpec { x, first, entries, factored, numbers, matrices, rank, together, slots, parts, clustered };
        let spec = spec.placed([top, layer.hidden, layer.inner], true);
        all.push(For { spec, target: ptx::Target::Sm90a }.into());
    }
    assert_assemble(all, &CHIPS);
}

/// The products of a layer with all that a layer may have, in every tile; and the kernels around them.
fn of_experts() -> Vec<KernelSpec> {
    let sizes = LayerShape { experts: 256, top: 8, hidden: 2048, inner: 768, ..PLAIN };
    let layer = LayerShape { gate: Gate::GPT_OSS, biased: true, ..sizes };
    let single = LayerShape { activation: Activation::F32, output: Output::F32, ..layer };
    let halves = LayerShape { codes: Codes::Halves, ..layer };
    let factored = LayerShape { on_input: true, activation: Activation::F16, partial: Output::F16, ..halves };
    let rounded_mx = LayerShape { scaling: Scaling::MxFp4, ..layer }.in_precision(Precision::Fp8);
    let tiles = |layer, tiles: &'static [u32]| tiles.iter().map(move |&tile| (layer, tile));
    let mut all: Vec<KernelSpec> = tiles(layer, &[8, 16, 24, 32, 48, 64, 96, 128, 144, 160, 256])
        .chain(tiles(single, &[8, 64]))
        .chain(tiles(factored, &[16, 128]))
        .chain(tiles(LayerShape { codes: Codes::Bfloats, ..factored }, &[8, 48]))
        .chain(tiles(halves, &[8, 48]))
        .chain(tiles(LayerShape { invariant: true, ..layer }, &[8, 16, 64]))
        .chain(tiles(LayerShape { invariant: true, ..single }, &[8, 160]))
        .chain(tiles(LayerShape { scaling: Scaling::MxFp4, ..layer }, &[8, 16, 24, 32, 48, 64, 96, 128, 160]))
        .chain(tiles(LayerShape { scaling: Scaling::MxFp4, ..factored }, &[8, 48]))
        .chain(tiles(LayerShape { scaling: Scaling::WideMxFp4, ..single }, &[8, 64]))
        .chain(tiles(rounded_mx, &[16, 64, 160, 256]))
        .chain(tiles(layer.in_precision(Precision::Fp8), &experts::FP8_TILES))
        .chain(tiles(factored.in_precision(Precision::Fp8), &[16, 48, 64, 96, 160, 256]))
        .flat_map(|(layer, tile)| [(layer.gate_up(), tile), (layer.down(), tile)])
        .flat_map(|(product, tile)| {
            // Not all of them: which ones differs from tile to tile.
            let some = experts::configs(&product, tile).into_iter().skip(tile as usize / 8 % 4).step_by(8);
            some.map(move |config| experts::kernel(&product, &config).expect("a kernel"))
        })
        .map(KernelSpec::from)
        .collect();
    let mx = LayerShape { scaling: Scaling::MxFp4, ..factored };
    for (layer, tile) in [layer, halves, factored, mx].into_iter().flat_map(|layer| [(layer, 8), (layer, 16)]) {
        for product in [layer.gate_up(), layer.down()] {
            let by_warps = |config: &Config| WARPS.value(&config.own) == 1;
            let some = experts::configs(&product, tile).into_iter().filter(by_warps).step_by(5);
            all.extend(some.map(|config| experts::kernel(&product, &config).expect("a kernel").into()));
        }
    }
    let target = ptx::Target::Sm90a;
    let grouped = Some(Grouped { groups: 8, kept: 4 });
    let route = RouteSpec { experts: 256, top: 8, score: Score::Sigmoid, renormalised: true, corrected: true, grouped };
    all.push(For { spec: route, target }.into());
    let softplus = RouteSpec { score: Score::SqrtSoftplus, grouped: None, ..route };
    all.push(For { spec: softplus, target }.into());
    let scaled = (Ids::Routed(route), Rows::Scaled(Float::BF16));
    for (ids, rows) in [(Ids::Routed(route), Rows::Copied), (Ids::Wide, Rows::Floats), scaled] {
        all.push(
            For {
                spec: SortSpec {
                    experts: 256,
                    top: 8,
                    ids,
                    rows,
                    factors: true,
                    owners: true,
                    order: false,
                    divided: false,
                },
                target,
            }
            .into(),
        );
        let everyone = SortSpec {
            experts: 1,
            top: 1,
            ids: Ids::Everyone,
            rows,
            factors: false,
            owners: false,
            order: false,
            divided: false,
        };
        all.push(For { spec: everyone, target }.into());
    }
    for form in [Form::Quantised, Form::Scaled(Float::F16), Form::Scaled(Float::F32)] {
        all.push(For { spec: BetweenSpec { form, experts: 256 }, target }.into());
    }
    all.push(For { spec: ShareSpec { tokens: Float::BF16 }, target }.into());
    let (rows, output, addend) = (Output::F32, Output::BF16, Some(Output::F16));
    for away in [false, true] {
        all.push(For { spec: CombineSpec { top: 22, rows, output, weighted: true, addend, away }, target }.into());
    }
    for yes in [false, true] {
        all.push(For { spec: PlaceSpec { experts: 256, wide: yes }, target }.into());
        all.push(For { spec: SendSpec { top: 8, weights: yes }, target }.into());
    }
    all
}

#[test]
fn every_kernel_takes_the_shared_memory_that_its_config_says() {
    for config in configs() {
        let kernel = kernel::kernel(config).unwrap_or_else(|error| panic!("{config:?}: {error}"));
        assert_eq!(kernel.shared_bytes(), config.shared_bytes(), "{config:?}");
    }
}

#[test]
fn a_size_the_hardware_lacks_is_refused() {
    assert!(kernel::kernel(COMMON).is_ok());
    for broken in [
        MultiplySpec { tokens: 12, ..COMMON },
        MultiplySpec { tokens: 264, ..COMMON },
        MultiplySpec { columns: 48, ..COMMON },
        MultiplySpec { columns: 160, ..COMMON },
        MultiplySpec { columns: 32, products: Products::Sequential, ..COMMON },
        MultiplySpec { units: 3, ..COMMON },
        MultiplySpec { stages: 0, ..COMMON },
        MultiplySpec { stages: 17, ..COMMON },
        MultiplySpec { stages: 8, ..COMMON },
        MultiplySpec { tokens: 256, columns: 96, stages: 2, ..COMMON },
        MultiplySpec { tokens: 256, columns: 128, products: Products::Sequential, stages: 2, ..COMMON },
        MultiplySpec { tokens: 24, schedule: Schedule::SplitK, ..COMMON },
        MultiplySpec { ping_pong: true, ..COMMON },
        MultiplySpec { groups: 3, ..COMMON },
        MultiplySpec { by_warps: true, tokens: 24, ..COMMON },
        MultiplySpec { by_warps: true, tokens: 16, element: Tokens::Bf16Sum, ..COMMON },
        MultiplySpec { by_warps: true, tokens: 16, products: Products::Sequential, ..COMMON },
    ] {
        assert!(matches!(kernel::kernel(broken), Err(Error::Field { .. })), "{broken:?}");
    }
}

#[test]
fn tokens_are_cut_alike_and_into_widths_that_cover_them() {
    let config = MultiplySpec { tokens: 256, units: 1, ..COMMON };
    assert_eq!(config.widths(), [64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256]);
    assert_eq!(
        [1, 64, 256, 320, 512, 700].map(|m| config.cut(m)),
        [(1, 16), (1, 64), (1, 256), (2, 160), (2, 256), (3, 240)]
    );
    let persistent = MultiplySpec { schedule: Schedule::Persistent, ..config };
    assert_eq!(persistent.widths(), [64, 96, 128, 160, 192, 224, 256]);
    assert_eq!(persistent.cut(700), (3, 256));
    let narrow = MultiplySpec { tokens: 40, ..COMMON };
    assert_eq!((narrow.widths(), narrow.cut(100)), (vec![40], (3, 40)));
}

#[test]
fn the_token_map_is_one_the_hardware_accepts() {
    for config in configs() {
        let map = config.token_map(0x1000, [77, 80], 77 * 160);
        assert_eq!(map.check(), Ok(()), "{config:?}");
    }
}
