//! Layers of experts with low-rank adapters in the simulator, launch by launch: that it does not matter how many rows
//! have a block in common, that few tokens take three launches, and that mutants of either are caught.

use bytemuck::cast_slice;
use format::{Dense, Values};
use gpu::expand::Float;
use gpu::experts::For;
use gpu::experts::adapt::AdaptSpec;
use gpu::experts::adapters::{AdaptedShape, PackedAdapters};
use gpu::experts::call::Choice;
use gpu::experts::kernels::{LayerKernels, of_both};
use gpu::experts::layer;
use gpu::experts::route::{RouteSpec, Score};
use gpu::experts::shape::LayerShape;
use gpu::experts::sort::Ids;
use gpu::families::sm90::Sm90;
use gpu::{Family, KernelSpec};
use half::{bf16, f16};
use hammerhead_testkit::experts::PLAIN as SHAPE;
use op::{Activation, Adapter, Adapters, Gate, LowRank, Output};
use ptx::{Feature, Kernel};
use rayon::prelude::*;
use sim::mutate::{Mutant, mutants};
use sim::{Arg, Buffer, Gpu, Invocation, Limits, Mutants, Rules, Schedule};

use crate::expert_layer::{
    FAMILIES, Trial, direct_launches, facts, few_routings, routings, run_again, weights, with_tile,
};

/// The kernel before the first product, from which others differ.
const ADAPT: AdaptSpec = AdaptSpec {
    x: Float::BF16,
    first: true,
    entries: None,
    factored: false,
    numbers: Output::BF16,
    matrices: 2,
    rank: 16,
    together: 1,
    slots: 1,
    parts: 1,
    clustered: false,
};

/// Adapters of two kinds for a layer, which some tokens have: the numbers of those, and everything in a trial.
fn adapted_trial(family: &dyn Family, shape: LayerShape, ids: &[i32]) -> Trial {
    trial_with(family, shape, ids, (Output::BF16, [16, 9]))
}

/// The same of any type and ranks.
fn trial_with(family: &dyn Family, shape: LayerShape, ids: &[i32], (numbers, ranks): (Output, [usize; 2])) -> Trial {
    let mut rng = fastrand::Rng::with_seed(21);
    let [hidden, inner] = [shape.hidden, shape.inner].map(|width| width as usize);
    let mut dense = |rows: usize, k: usize, size: f32| {
        let values: Vec<f32> = (0..rows * k).map(|_| (rng.f32() * 2.0 - 1.0) * size).collect();
        let values: Values<'static> = match numbers {
            Output::BF16 => values.into_iter().map(bf16::from_f32).collect::<Vec<_>>().into(),
            Output::F16 => values.into_iter().map(f16::from_f32).collect::<Vec<_>>().into(),
            Output::F32 => values.into(),
        };
        Dense::new(rows, k, values, 1.0).unwrap()
    };
    let mut pair = |rank: usize, n: usize, k: usize| {
        let a = dense(rank, k, 2.0 / (k as f32).sqrt());
        Some(LowRank::new(&a, &dense(n, rank, 1.0)).unwrap())
    };
    let mut adapter = |rank: usize, scaling: f32| {
        let mut expert = |_| [pair(rank, inner, hidden), pair(rank, inner, hidden), pair(rank, hidden, inner)];
        Adapter { scaling, experts: (0..shape.experts).map(&mut expert).collect() }
    };
    let all = vec![adapter(ranks[0], 0.5), adapter(ranks[1], -1.5)];
    let adapters = Adapters::new(all, shape.experts as usize, [hidden, inner, hidden]).unwrap();
    let packed = PackedAdapters::new(&adapters, shape.gate).unwrap();
    let shape = LayerShape { adapted: Some(packed.shape), ..shape };
    let mut trial = Trial::new(family, shape, ids, &weights(ids.len()), true);
    let numbers: Vec<i32> =
        (0..ids.len() as i32 / shape.top as i32).map(|token| [1, -1, 0, 1, 2][token as usize % 5]).collect();
    let numbers = trial.gpu.upload("adapters of tokens", cast_slice(&numbers));
    trial.gpu.await_predecessor(numbers);
    trial.call.adapters = numbers.address;
    trial.weights.adapters = packed.placed(|bytes| Ok::<_, ()>(trial.gpu.upload("adapters", bytes).address)).unwrap();
    trial
}

/// The launches of a layer with adapters, whose blocks have so many rows and are clusters of so many: sort, adapt, gate
/// and up, down, adapt.
fn adapted_launches(trial: &Trial, kernels: &LayerKernels, [together, parts]: [u32; 2]) -> Vec<(Kernel, Invocation)> {
    let (shape, target) = (trial.layer.shape, kernels.family.target());
    let AdaptedShape { rank, numbers, .. } = shape.adapted.unwrap();
    let rows = trial.call.tokens * shape.top;
    let mut launches = trial.launches(kernels);
    for (at, first, matrices) in [(1, true, 2), (4, false, 1)] {
        let factored = first && shape.on_input;
        let (slots, clustered) = (if together > 1 { 4 } else { 1 }, parts > 1);
        let spec = AdaptSpec { first, factored, numbers, matrices, rank, together, slots, parts, clustered, ..ADAPT };
        let kernel = KernelSpec::from(For { spec, target }).build().unwrap();
        assert_eq!(kernel.name, launches[at].0.name, "the launches are as they are said to be");
        launches[at].0 = kernel;
        launches[at].1.grid = spec.grid(rows);
    }
    launches
}

#[test]
fn rows_that_share_what_adapters_read_have_the_bits_that_they_have_alone() {
    let shape = LayerShape { on_input: true, output: Output::F32, ..SHAPE };
    let cases = FAMILIES.into_iter().flat_map(|family| routings().map(|routing| (family, routing)));
    let cases = cases.flat_map(|case| [1, 4].map(|parts| (case.clone(), parts)));
    let possible = |family: &dyn Family, parts| parts == 1 || family.target().has(Feature::Clusters);
    for ((family, (what, ids)), parts) in cases.filter(|&((family, _), parts)| possible(family, parts)) {
        let trial = adapted_trial(family, shape, &ids);
        let kernels = with_tile(family, &trial.layer.shape, 8);
        let [alone, together] = [1, 32].map(|together| {
            let (launches, mut gpu) = (adapted_launches(&trial, &kernels, [together, parts]), trial.gpu.clone());
            let sequence: Vec<_> = launches.iter().map(|(kernel, launch)| (kernel, launch)).collect();
            gpu.run_sequence(&sequence, Schedule::Random(7)).unwrap_or_else(|fault| panic!("{fault}"));
            trial.result(&gpu).unwrap()
        });
        assert_eq!(alone, together, "{what}, {family:?}, {parts} parts");
        let mut without = trial;
        without.layer.shape.adapted = None;
        let plain = without.run(&with_tile(family, &without.layer.shape, 8), Schedule::Earliest);
        let hidden = shape.hidden as usize;
        for (token, (adapted, plain)) in alone.chunks(hidden).zip(plain.chunks(hidden)).enumerate() {
            let somebodys = ids[2 * token..][..2].iter().any(|id| (0..shape.experts as i32).contains(id));
            let differs = somebodys && [true, false, true, true, false][token % 5];
            assert_eq!(adapted != plain, differs, "{what}, {family:?}: token {token}");
        }
    }
}

/// What adapters add to some rows, or to what is there, alone: the device, the kernel, its launch and the results. Rows
/// have several rounds along k; some have no adapter, or are nobody's.
fn adapters_alone(spec: AdaptSpec, columns: u32) -> (Gpu, Kernel, Invocation, Buffer) {
    let (rows, experts, top, adapters, k) = (19usize, 3u32, 2u32, 2u32, 1808 * spec.parts);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut gpu = Gpu::new(Limits::h200()).with_rules(Rules::Letter);
    let mut halves = |gpu: &mut Gpu, name: &str, count: u32| {
        let bytes: Vec<u8> = (0..count).flat_map(|_| bf16::from_f32(rng.f32() * 2.0 - 1.0).to_le_bytes()).collect();
        gpu.upload(name, &bytes)
    };
    let matrices = adapters * experts * spec.matrices * spec.rank;
    let x = halves(&mut gpu, "x", rows as u32 * k);
    let (a, b) = (halves(&mut gpu, "a", matrices * k), halves(&mut gpu, "b", matrices * columns));
    let scalings = gpu.upload("scalings", cast_slice(&[0.5f32, -1.25]));
    let factors: Vec<f32> = (0..rows).map(|row| 0.5 + row as f32 / 8.0).collect();
    let factors = gpu.upload("factors", cast_slice(&factors));
    let order: Vec<u32> = (0..rows as u32).map(|row| (row * 7 + 3) % rows as u32).collect();
    let owners: Vec<u32> = (0..rows as u32).map(|row| row / 7).collect();
    let chosen: Vec<u32> = (0..rows).map(|row| [1, 0, u32::MAX, 1, 2][row % 5]).collect();
    // The last row is nobody's.
    let layout = [0, 7, 14, rows as u32 - 1, 0, 0, 0, 0];
    // Of entries: some ids are nobody's, and the adapters are those of tokens.
    let ids: Vec<u32> = (0..rows as u32).map(|entry| entry % 5).collect();
    let [order, owners, chosen, layout, ids] = [&order[..], &owners, &chosen, &layout, &ids].map(|words| {
        let buffer = gpu.upload("tables", cast_slice(words));
        if spec.first {
            gpu.await_predecessor(buffer);
        }
        buffer.address
    });
    let before: Vec<f32> = (0..rows * (spec.matrices * columns) as usize).map(|at| (at % 11) as f32).collect();
    let deltas = gpu.upload("deltas", cast_slice(&before));
    gpu.await_predecessor(deltas);
    gpu.await_predecessor(x);
    let mut args: Vec<Arg> = [x, a, b, scalings].map(|buffer| Arg::Pointer(buffer.address)).to_vec();
    args.extend(spec.factored.then_some(Arg::Pointer(factors.address)));
    match (spec.entries, spec.first) {
        (Some(_), _) => args.extend([Arg::Pointer(ids), Arg::U32(top), Arg::Pointer(chosen)]),
        (None, true) => args.extend([Arg::Pointer(order), Arg::U32(top)]),
        _ => {}
    }
    if spec.entries.is_none() {
        args.extend([owners, chosen, layout].map(Arg::Pointer));
    }
    args.extend([rows as u32, experts, adapters].map(Arg::U32));
    args.push(Arg::Pointer(deltas.address));
    args.extend([k / 8, columns].map(Arg::U32));
    let kernel = KernelSpec::from(For { spec, target: Sm90.target() }).build().unwrap();
    (gpu, kernel, Invocation { grid: spec.grid(rows as u32), args }, deltas)
}

/// Of blocks with one row, and clusters that share its columns and k: that those with many rows have the same bits is
/// tested above.
#[test]
fn mutants_of_what_adapters_add_are_caught() {
    let first = AdaptSpec { factored: true, ..ADAPT };
    let second = AdaptSpec { first: false, matrices: 1, ..ADAPT };
    let cluster = AdaptSpec { parts: 2, clustered: true, ..first };
    let entries = AdaptSpec { entries: Some(Ids::Narrow), ..ADAPT };
    for spec in [first, second, cluster, entries] {
        // Columns beyond the first of a thread, and fewer than there are threads for.
        let problems = [1032 * spec.parts, 72].map(|columns| adapters_alone(spec, columns));
        let found = |gpu: &Gpu, deltas| gpu.download(deltas).map(<[u8]>::to_vec).unwrap_or_default();
        let right = problems.each_ref().map(|(gpu, kernel, launch, deltas)| {
            let mut gpu = gpu.clone();
            gpu.run_sequence(&[(kernel, launch)], Schedule::Earliest).unwrap_or_else(|fault| panic!("{fault}"));
            found(&gpu, *deltas)
        });
        let kernel = &problems[0].1;
        let broken: Vec<Mutant> = mutants(kernel);
        assert!(broken.len() > 40, "{}", broken.len());
        let share = broken.len().div_ceil(rayon::current_num_threads());
        let survivors = broken.par_chunks(share).flat_map_iter(|broken| {
            let kernels: Vec<&Kernel> = broken.iter().map(|mutant| &mutant.kernel).collect();
            let (mutants, mut left) = (Mutants::new(kernel, &kernels), (0..broken.len()).collect::<Vec<_>>());
            for ((gpu, kernel, launch, deltas), right) in problems.iter().zip(&right) {
                for schedule in [Schedule::Earliest, Schedule::Latest, Schedule::Random(1)] {
                    let same = gpu.run_mutants(&[(kernel, launch)], (&mutants, &left), schedule, |run| {
                        run.is_ok_and(|(gpu, _)| found(gpu, *deltas) == *right)
                    });
                    left = left.into_iter().zip(same).filter_map(|(number, same)| same.then_some(number)).collect();
                }
            }
            left.into_iter().map(|number| broken[number].name.clone()).collect::<Vec<_>>()
        });
        // Who asks for A or x behind its end is given the last of it, and does not look at that, nor at what others'
        // columns are added to; who goes on behind the last column stores nothing; blocks of a cluster publish nothing
        // when they have read; and that a block without adapters ends behind the launch before is for those that
        // follow.
        let harmless = [
            ("condition dropped", "adapt/shrink:", 3),
            ("condition dropped", "adapt/expand:", 1),
            ("guard dropped", "adapt/shrink/load:", 1),
            ("ordering relaxed", "adapt/shrink:", 1),
            ("grid dependency ignored", "adapt:", 1),
        ];
        let mut survivors: Vec<String> = survivors.collect();
        for (mistake, phase, most) in harmless {
            let (found, others): (Vec<String>, Vec<String>) =
                survivors.into_iter().partition(|name| name.starts_with(mistake) && name.contains(phase));
            assert!(found.len() <= most, "{spec:?}:\n{}", found.join("\n"));
            survivors = others;
        }
        assert!(survivors.is_empty(), "{spec:?}:\n{}", survivors.join("\n"));
    }
}

/// The six launches of a call, which also serve many tokens, and the three of few.
fn both_ways(trial: &Trial, kernels: &LayerKernels, blocks: Option<u32>) -> [Vec<(Kernel, Invocation)>; 2] {
    let three = direct_launches(trial, kernels, blocks);
    let names: Vec<&str> = three.iter().map(|(kernel, _)| &kernel.name[..]).collect();
    assert_eq!(names, ["adapt", "nvfp4_dual_gemm", "nvfp4_dual_gemm"]);
    [trial.launches(&LayerKernels { direct: 0, ..kernels.clone() }), three]
}

/// Holds a call of few tokens to what it is in six launches, but for the order in which A·h is summed; to the same bits
/// under every schedule, whoever computes which tile, and twice in the same memory; and tokens without an adapter to
/// the bits that they have in six launches.
fn assert_as_in_six_launches(trial: &Trial, kernels: &LayerKernels, what: &str) {
    let [six, three] = both_ways(trial, kernels, None);
    let expected = run_again(trial, &six, 1, Schedule::Earliest);
    let found = run_again(trial, &three, 1, Schedule::Earliest);
    let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
    let hidden = trial.layer.shape.hidden as usize;
    for (token, (found, expected)) in found.chunks(hidden).zip(expected.chunks(hidden)).enumerate() {
        let allowed = if [1, -1, 0, 1, 2][token % 5] == -1 { 0.0 } else { 4e-6 * largest };
        let worst = found.iter().zip(expected).fold(0f32, |most, (one, other)| most.max((one - other).abs()));
        assert!(worst <= allowed, "{what}: token {token} is off by {worst}, and {largest} is the largest");
    }
    for (blocks, calls, schedule) in [(Some(1), 1, Schedule::Latest), (Some(5), 2, Schedule::Random(3))] {
        let again = run_again(trial, &direct_launches(trial, kernels, blocks), calls, schedule);
        let same = found.iter().zip(&again).all(|(one, other)| one.to_bits() == other.to_bits());
        assert!(same, "{what}, {blocks:?} blocks, {calls} calls, {schedule}");
    }
}

#[test]
fn few_tokens_with_adapters_take_three_launches_for_six() {
    // Several tiles of columns in both products, of which the last is not whole.
    let plain = LayerShape { hidden: 208, inner: 176, output: Output::F32, ..SHAPE };
    let halves = LayerShape { activation: Activation::F16, ..plain };
    let shapes = [
        plain,
        halves,
        LayerShape { gate: Gate::Relu2, biased: true, ..plain },
        LayerShape { gate: Gate::GPT_OSS, biased: true, ..halves },
    ];
    let kinds = [
        (Output::BF16, [16, 9]),
        (Output::F16, [8, 5]),
        (Output::F32, [24, 3]),
        (Output::BF16, [64, 33]),
        (Output::F32, [64, 64]),
        (Output::F16, [40, 2]),
    ];
    // More pieces than a warp has lanes: held through the products, and too many for that.
    let wide = LayerShape { hidden: 64, inner: 1056, ..plain };
    let wide = [(wide, (Output::BF16, [16, 9])), (wide, (Output::BF16, [64, 33]))];
    let cases = shapes.into_iter().flat_map(|shape| kinds.map(|kind| (shape, kind))).chain(wide).enumerate();
    let cases = cases.filter(|(_, (shape, (_, ranks)))| shape.gate != Gate::Relu2 || ranks[0] <= 32);
    cases.collect::<Vec<_>>().into_par_iter().for_each(|(number, (shape, kind))| {
        for (how, tokens) in [1, 2, 5].into_iter().enumerate() {
            let ids = &few_routings(tokens)[(number + how) % 4];
            let trial = trial_with(&Sm90, shape, ids, kind);
            let shape = trial.layer.shape;
            let products = [shape.gate_up(), shape.down()].map(|product| {
                let configs = Sm90.expert_configs(&product, [8, 16][how % 2], &facts(&Sm90));
                configs[(5 * number + 3 * how) % configs.len()]
            });
            let kernels = LayerKernels::new(&Sm90, &shape, &of_both(&products[0], &products[1]), &facts(&Sm90));
            assert_as_in_six_launches(&trial, &kernels.unwrap(), &format!("{shape:?}, {tokens} tokens"));
        }
    });
}

#[test]
fn few_tokens_with_adapters_find_their_experts_in_every_way() {
    let shape = LayerShape { output: Output::F32, ..SHAPE };
    let of = |shape: &LayerShape| with_tile(&Sm90, shape, 8);
    for (tokens, ids) in [1, 2].into_iter().flat_map(|tokens| few_routings(tokens).map(|ids| (tokens, ids))) {
        let mut trial = adapted_trial(&Sm90, shape, &ids);
        let Choice::Given { weights, .. } = trial.call.choice else { unreachable!("ids are given") };
        // The low word alone would be somebody's.
        let wide: Vec<i64> = ids.iter().map(|&id| if id == -1 { 3 << 32 } else { id.into() }).collect();
        let at = trial.gpu.upload("wide ids", cast_slice(&wide));
        trial.gpu.await_predecessor(at);
        trial.call.choice = Choice::Given { ids: at.address, wide: true, weights };
        assert_as_in_six_launches(&trial, &of(&trial.layer.shape), &format!("wide ids, {tokens} tokens"));
        let LayerShape { experts, top, .. } = shape;
        let spec =
            RouteSpec { experts, top, score: Score::Softmax, renormalised: true, corrected: false, grouped: None };
        let logits: Vec<f32> = (0..tokens as u32 * experts).map(|at| (at * 37 % 64) as f32 / 8.0 - 4.0).collect();
        let at = trial.gpu.upload("logits", cast_slice(&logits));
        trial.gpu.await_predecessor(at);
        trial.call.choice = Choice::Logits { logits: at.address, spec, correction: 0, scale: 1.5 };
        assert_as_in_six_launches(&trial, &of(&trial.layer.shape), &format!("logits, {tokens} tokens"));
    }
    let only = LayerShape { experts: 1, top: 1, ..shape };
    let mut trial = adapted_trial(&Sm90, only, &[0]);
    trial.call.choice = Choice::Everyone;
    assert_as_in_six_launches(&trial, &of(&trial.layer.shape), "of everyone");
}

#[test]
fn few_tokens_take_six_launches_where_that_would_change_bits_or_lacks_registers() {
    let plain = LayerShape { output: Output::F32, ..SHAPE };
    let (invariant, on_input) = (LayerShape { invariant: true, ..plain }, LayerShape { on_input: true, ..plain });
    // And where a thread would have too many columns of A.
    let one_matrix = LayerShape { gate: Gate::Relu2, ..plain };
    for (shape, rank) in [(invariant, 16), (on_input, 16), (one_matrix, 33)] {
        let trial = trial_with(&Sm90, shape, &[1, 2], (Output::BF16, [rank, 9]));
        let kernels = with_tile(&Sm90, &trial.layer.shape, 8);
        assert_eq!(direct_launches(&trial, &kernels, None).len(), 6, "{shape:?}");
    }
}

/// Whoever has room for the most tokens has room for all calls.
#[test]
fn fewer_tokens_with_adapters_never_need_more_room() {
    let adapted = Some(AdaptedShape { adapters: 2, rank: 64, numbers: Output::BF16 });
    let shape = LayerShape { adapted, ..SHAPE };
    let rooms: Vec<usize> = (1..100).map(|tokens| layer::workspace_bytes(&shape, None, tokens)).collect();
    assert!(rooms.is_sorted());
}

#[test]
fn blocks_that_share_what_an_entry_multiplies_leave_what_one_does() {
    let shape = LayerShape { output: Output::F32, ..SHAPE };
    let trial = adapted_trial(&Sm90, shape, &few_routings(5)[0]);
    let kernels = with_tile(&Sm90, &trial.layer.shape, 8);
    let mut launches = direct_launches(&trial, &kernels, None);
    let expected = run_again(&trial, &launches, 1, Schedule::Earliest);
    let spec = AdaptSpec { entries: Some(Ids::Narrow), parts: 4, clustered: true, ..ADAPT };
    launches[0].0 = KernelSpec::from(For { spec, target: Sm90.target() }).build().unwrap();
    launches[0].1.grid = spec.grid(trial.call.tokens * shape.top);
    let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
    for (calls, schedule) in [(1, Schedule::Latest), (2, Schedule::Random(5))] {
        let found = run_again(&trial, &launches, calls, schedule);
        let worst = found.iter().zip(&expected).fold(0f32, |most, (one, other)| most.max((one - other).abs()));
        // What lies between the products may be rounded to another number of 16 bits.
        assert!(worst <= 4e-3 * largest, "{schedule}: off by {worst}, and {largest} is the largest");
    }
}

/// What both products do with adapters of few tokens: pieces of t and their sum, B·t, what is waited for, and whose
/// adapters are kept.
#[test]
fn mutants_of_what_is_peculiar_to_adapters_of_few_tokens_are_caught() {
    // Ranks are fewer than there are threads for, of the last pair of all, too, and more than warps add up at once; and
    // there are more pieces than lanes, too many to be held.
    let cases = [(208, 176, 24, &[3, 4, 5, 3, -1, 2][..]), (64, 1056, 40, &[4, 5, 3, 2])];
    for (hidden, inner, rank, ids) in cases {
        let shape = LayerShape { experts: 5, hidden, inner, output: Output::F32, ..SHAPE };
        let trial = trial_with(&Sm90, shape, ids, (Output::BF16, [rank; 2]));
        let kernels = with_tile(&Sm90, &trial.layer.shape, 8);
        let launches = direct_launches(&trial, &kernels, None);
        let right = run_again(&trial, &launches, 1, Schedule::Earliest);
        let peculiar = |mutant: &Mutant| {
            let finish = ["/finish/load:", "/finish/shrink:", "/finish/expand:"];
            let mut phases = ["/prepare/list:", "/foresee:", "/foresee/load:"].iter().chain(&finish);
            mutant.name.starts_with("grid dependency ignored") || phases.any(|phase| mutant.name.contains(phase))
        };
        for at in [1, 2] {
            let broken: Vec<Mutant> = mutants(&launches[at].0).into_iter().filter(peculiar).collect();
            assert!(broken.len() >= 9, "{}", broken.len());
            let share = broken.len().div_ceil(rayon::current_num_threads());
            let missed = broken.par_chunks(share).flat_map_iter(|broken| trial.missed((&launches, at), broken, &right));
            // A block with tiles waits for what they need; that one without ends behind the launch before is for those
            // that follow, and for counters, which two launches have, too.
            let harmless = |name: &String| {
                let others = ["/produce:", "/consume/sum:"].iter().any(|phase| name.contains(phase));
                name.starts_with("grid dependency ignored") && others
            };
            let missed: Vec<String> = missed.filter(|name| !harmless(name)).collect();
            assert!(missed.is_empty(), "{}", missed.join("\n"));
        }
    }
}
