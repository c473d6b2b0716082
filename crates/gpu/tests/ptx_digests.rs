//! The PTX of kernels that were tuned, held byte by byte, and read back as it was written: `ptx_digests.txt` has a
//! line per configuration or layer with the digests of its kernels. Restructuring the code that builds kernels must
//! not move any of them.
//!
//! A kernel that changes on purpose is measured again, and then `UPDATE_SNAPSHOTS=1 cargo test -p hammerhead-gpu --test
//! ptx_digests` writes the new digests. Configurations that are listed stay listed: the planner's choices of today are
//! only added.

#[path = "../../ptx/tests/same/mod.rs"]
mod same;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use format::Scaling;
use gpu::experts::call::{Choice, LayerCall, LayerWeights};
use gpu::experts::kernels::LayerKernels;
use gpu::experts::layer::{self, LayerSite};
use gpu::experts::route::{RouteSpec, Score};
use gpu::experts::shape::LayerShape;
use gpu::facts::Facts;
use gpu::pack::Codes;
use gpu::{Family, families, plan};
use hammerhead_gpu as gpu;
use op::{Activation, Gate, Intermediate, Output, Precision, Problem, Request, Shape};

const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ptx_digests.txt");

/// FNV-1a: enough to notice a change, and the same on every machine.
fn digest(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}

/// Problems, each for another kind of kernel.
fn problems() -> Vec<(&'static str, Problem)> {
    use Activation::{BF16, F16, F32, NvFp4};
    let problem = |shapes: &[[usize; 3]], gate, activation, output| {
        let shapes = shapes.iter().map(|&[m, n, k]| Shape::new(m, n, k)).collect();
        Problem::new(shapes, gate, activation, output).unwrap()
    };
    let of_fp8 = |m, activation, scaling| {
        problem(&[[m, 4096, 4096]], Gate::None, activation, Output::BF16).with_scaling(scaling).unwrap()
    };
    let ragged: Vec<[usize; 3]> = [80, 176, 128, 72, 64, 248, 96, 160].map(|m| [m, 4096, 7168]).to_vec();
    let many: Vec<[usize; 3]> = (0..40).map(|group| [8 + group, 768, 2048]).collect();
    vec![
        ("decode", problem(&[[1, 4096, 7168]], Gate::Silu, F16, Output::F16)),
        ("few", problem(&[[48, 3072, 4096]], Gate::GPT_OSS, BF16, Output::BF16)),
        ("prefill", problem(&[[512, 3072, 7168]], Gate::Silu, BF16, Output::F16)),
        ("float", problem(&[[200, 4096, 4096]], Gate::Silu, F32, Output::F32)),
        ("plain", problem(&[[64, 7168, 2048]], Gate::None, F16, Output::F32)),
        ("nvfp4", problem(&[[256, 4096, 7168]], Gate::Silu, NvFp4, Output::F16)),
        ("nvfp4-few", problem(&[[40, 4096, 7168]], Gate::SiluLimited { limit: 7.0 }, NvFp4, Output::BF16)),
        ("odd", problem(&[[40, 1003, 1040]], Gate::GeluTanh, BF16, Output::F16)),
        ("ragged", problem(&ragged, Gate::Silu, NvFp4, Output::F16)),
        ("many", problem(&many, Gate::Relu2, F16, Output::BF16)),
        ("fp8-weights-few", of_fp8(1, BF16, Scaling::Fp8)),
        ("fp8-weights", of_fp8(256, F16, Scaling::Fp8)),
        ("mxfp8-few", of_fp8(16, BF16, Scaling::MxFp8)),
        ("mxfp8-halves", of_fp8(64, F16, Scaling::MxFp8)),
        ("fp8-by-64", of_fp8(64, BF16, Scaling::Fp8By64)),
        ("fp8-by-64-float", of_fp8(8, F32, Scaling::Fp8By64)),
        ("fp8-by-32", of_fp8(200, F16, Scaling::Fp8By32)),
    ]
}

/// The device that a family's configurations are planned for.
fn facts(family: &dyn Family) -> Facts {
    match family.name() {
        "sm80" => Facts::a100(),
        "sm100" => Facts::b200(),
        "sm120" => Facts::rtx5090(),
        _ => Facts::h200(),
    }
}

/// The cheapest configuration of each strategy and schedule, for each family and problem.
fn planned() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for (family, (name, problem)) in
        families::ALL.iter().flat_map(|family| problems().into_iter().map(move |p| (family, p)))
    {
        // Kernels of another family take its place, as for FP8 weights.
        if !family.computes(&problem) {
            continue;
        }
        let facts = facts(*family);
        let mut best = BTreeMap::new();
        for config in family.candidates(&problem, &facts) {
            let seconds = family.cost(&problem, &config, &facts).unwrap().seconds;
            let place = best.entry((config.strategy, config.schedule)).or_insert((seconds, config));
            if seconds < place.0 {
                *place = (seconds, config);
            }
        }
        lines.extend(best.values().map(|(_, config)| format!("{} {name} {config}", family.name())));
    }
    lines
}

/// A configuration's kernels.
fn of_config(family: &str, problem: &str, config: &str) -> Vec<ptx::Kernel> {
    let family = families::ALL.into_iter().find(|each| each.name() == family).expect("a family");
    let problem = problems().into_iter().find(|(name, _)| *name == problem).expect("a problem").1;
    let config = config.parse::<Request>().unwrap().complete().expect("a whole configuration");
    family.kernels(&problem, &config).unwrap()
}

const LAYER: LayerShape = LayerShape {
    experts: 128,
    top: 8,
    hidden: 2048,
    inner: 768,
    gate: Gate::Silu,
    biased: false,
    on_input: false,
    gated: false,
    activation: Activation::BF16,
    intermediate: Intermediate::Tokens,
    precision: Precision::Exact,
    scaled: [false; 2],
    invariant: false,
    codes: Codes::Bfloats,
    scaling: Scaling::NvFp4,
    partial: Output::F32,
    output: Output::BF16,
    adapted: None,
};

/// Layers, each for another kind of kernels.
fn layers() -> Vec<(&'static str, LayerShape)> {
    let halves = LayerShape { activation: Activation::F16, output: Output::F16, partial: Output::F16, ..LAYER };
    let rounded_mx = LayerShape { scaling: Scaling::MxFp4, ..LAYER }.in_precision(Precision::Fp8);
    vec![
        ("qwen3", LAYER),
        (
            "gpt-oss",
            LayerShape { experts: 32, top: 4, hidden: 2880, inner: 2880, gate: Gate::GPT_OSS, biased: true, ..LAYER },
        ),
        ("deepseek", LayerShape { experts: 256, hidden: 7168, inner: 2048, invariant: true, ..LAYER }),
        ("float", LayerShape { activation: Activation::F32, output: Output::F32, ..LAYER }),
        ("scaled", LayerShape { scaled: [true; 2], on_input: true, biased: true, ..halves }),
        ("nvfp4", LayerShape { intermediate: Intermediate::NvFp4, gate: Gate::Relu2, ..halves }),
        ("mxfp4", LayerShape { scaling: Scaling::MxFp4, ..LAYER }),
        ("mxfp4-halves", LayerShape { scaling: Scaling::MxFp4, ..halves }),
        ("mxfp4-fp8", rounded_mx),
        ("fp8", LAYER.in_precision(Precision::Fp8)),
        ("fp8-scaled", LayerShape { scaled: [true; 2], biased: true, ..LAYER }.in_precision(Precision::Fp8)),
    ]
}

/// The cheapest configuration of each layer, for each family and some numbers of tokens.
fn planned_layers() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    // Problems do not say what partial results are; layers are planned with those of their precision.
    let planned = |(_, shape): &(&str, LayerShape)| {
        shape.partial == LayerShape { partial: Output::F32, ..*shape }.in_precision(shape.precision).partial
    };
    for (family, (name, shape)) in
        families::ALL.iter().flat_map(|family| layers().into_iter().filter(planned).map(move |l| (family, l)))
    {
        if shape.precision == Precision::Fp8 && !family.multiplies_fp8() {
            continue;
        }
        for tokens in [1, 16, 64, 512, 4096] {
            let config = plan::cheapest(*family, &shape.problem(tokens).unwrap(), &facts(*family)).unwrap();
            lines.insert(format!("{} layer {name} {tokens} {config}", family.name()));
        }
    }
    lines
}

/// A layer's kernels for so many tokens, from logits.
fn of_layer(family: &str, name: &str, tokens: u32, config: &str) -> Vec<ptx::Kernel> {
    let family = families::ALL.into_iter().find(|each| each.name() == family).expect("a family");
    let shape = layers().into_iter().find(|(each, _)| *each == name).expect("a layer").1;
    let LayerShape { experts, top, .. } = shape;
    let spec = RouteSpec { experts, top, score: Score::Softmax, renormalised: true, corrected: false, grouped: None };
    let choice = Choice::Logits { logits: 0, spec, correction: 0, scale: 1.0 };
    let config = config.parse::<Request>().unwrap().complete().expect("a whole configuration");
    let kernels = LayerKernels::new(family, &shape, &config, &facts(family)).unwrap();
    let call = LayerCall { tokens, x: 0, choice, addend: None, adapters: 0, placement: None, out: 0 };
    let site = LayerSite { workspace: 0, brought: 0, exchange: 0, multiprocessors: 132 };
    let launches = layer::launches(&shape, &kernels, &LayerWeights::default(), &call, site).all;
    launches.iter().map(|launch| launch.kernel.build().unwrap()).collect()
}

/// The kernels that a line names.
fn kernels(what: &str) -> Vec<ptx::Kernel> {
    let words: Vec<&str> = what.split(' ').collect();
    match words[..] {
        [family, "layer", name, tokens, config] => of_layer(family, name, tokens.parse().unwrap(), config),
        [family, problem, config] => of_config(family, problem, config),
        _ => panic!("{what:?} is no line of the list"),
    }
}

/// Their digests.
fn digests(what: &str) -> String {
    kernels(what).iter().map(|kernel| digest(&kernel.to_ptx())).collect::<Vec<_>>().join(" ")
}

#[test]
fn tuned_kernels_are_read_as_they_are_written() {
    let list = std::fs::read_to_string(LIST).unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (what, digests) in list.lines().filter_map(|line| line.split_once(": ")) {
        if digests.split(' ').all(|digest| seen.contains(digest)) {
            continue;
        }
        seen.extend(digests.split(' '));
        let differing: Vec<String> = kernels(what).iter().filter_map(same::differs).collect();
        assert!(differing.is_empty(), "{what}: {}", differing.join("\n"));
    }
    assert!(seen.len() > 100, "the list is there");
}

#[test]
fn tuned_kernels_are_the_same_to_the_byte() {
    let list = std::fs::read_to_string(LIST).unwrap_or_default();
    let listed: BTreeMap<&str, &str> = list.lines().filter_map(|line| line.split_once(": ")).collect();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        let all: BTreeSet<String> =
            listed.keys().map(|what| (*what).to_owned()).chain(planned()).chain(planned_layers()).collect();
        let text = all.iter().fold(String::new(), |mut text, what| {
            let _ = writeln!(text, "{what}: {}", digests(what));
            text
        });
        std::fs::write(LIST, text).unwrap();
        return;
    }
    assert!(listed.len() > 100, "the list is there");
    let moved: Vec<&str> =
        listed.iter().filter(|(what, expected)| digests(what) != **expected).map(|(what, _)| *what).collect();
    assert!(moved.is_empty(), "{} of {} have other PTX than before:\n{}", moved.len(), listed.len(), moved.join("\n"));
}
