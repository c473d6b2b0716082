//! Plain products with FP8 weights on every CPU backend of this machine, and with the GPU's kernels in the simulator.

use format::{Dense, Fp8Matrix, Fp8Scales, Scaling, Values, e4m3};
use gpu::Simulated;
use gpu::simulated::Staged;
use half::bf16;
use hammerhead::cpu::{self, Fp8Panels};
use hammerhead_testkit::fp8::{Case, cases, configs, problem, verify, verify_in};
use op::fp8::Segments;
use op::{
    Activation, Activations, Backend, Call, Config, Epilogue, Error, Gate, Operands, Output, Precision, Problem,
    Request, Schedule, Shape, Target, Team, Weights,
};
use rayon::prelude::*;
use sim::Mutants;
use sim::mutate::{Mutant, mutants};

fn available() -> impl Iterator<Item = &'static dyn Backend> {
    cpu::backends().iter().copied().filter(|backend| backend.available().is_ok())
}

/// Every backend of the processor, and the GPU's kernels in the simulator.
fn all() -> impl Iterator<Item = &'static dyn Backend> {
    available().chain(["sim", "sim:sm80"].into_iter().filter_map(Simulated::by_name).map(|on| on as &dyn Backend))
}

fn computed(backend: &dyn Backend, matrix: &Fp8Matrix<'_>, tokens: &Dense<'_>, team: &Team) -> Vec<f32> {
    let mut c = vec![f32::NAN; tokens.rows() * matrix.rows()];
    let tokens: Activations<'_> = tokens.as_borrowed().into();
    if backend.layout() == cpu::LAYOUT {
        let packed = Fp8Panels::new(matrix, None, team).unwrap();
        packed.run(backend.name(), &tokens, Target::F32(&mut c), team).unwrap();
        return c;
    }
    let packed = backend.prepack_fp8(matrix, None, team).unwrap();
    let shape = Shape::new(tokens.rows(), matrix.rows(), matrix.k());
    let problem = Problem::new(vec![shape], Gate::None, tokens.element(), Output::F32).unwrap();
    let problem = problem.with_scaling(packed.scaling()).unwrap();
    let config = backend.candidates(&problem, 1)[0];
    let targets = &mut [Target::F32(&mut c)];
    Call::new((backend, config), &problem, packed.as_ref(), &[tokens], targets, team).unwrap().run().unwrap();
    c
}

#[test]
fn every_backend_is_within_the_bound_on_every_case() {
    for threads in [1, 3] {
        let team = cpu::team(Some(threads)).unwrap();
        for (case, backend) in cases().iter().flat_map(|case| available().map(move |backend| (case, backend))) {
            let found = verify(case, backend, &team).unwrap();
            assert_eq!(found.wrong, 0, "{} on {}: {:?}", case.reason, backend.name(), found.first);
        }
    }
}

#[test]
fn the_gpus_kernels_are_within_the_bound_on_every_case() {
    let team = cpu::team(Some(1)).unwrap();
    for name in ["sim", "sim:sm80", "sim:sm100", "sim:sm120"] {
        let on = Simulated::by_name(name).unwrap();
        cases().par_iter().for_each(|case| {
            let found = verify(case, on, &team).unwrap_or_else(|error| panic!("{case:?} on {name}: {error}"));
            assert_eq!(found.wrong, 0, "{} on {name}: {:?}", case.reason, found.first);
        });
    }
}

#[test]
fn every_kind_of_configuration_is_within_the_bound_on_every_case() {
    let team = cpu::team(Some(1)).unwrap();
    for name in ["sim", "sim:sm80"] {
        let on = Simulated::by_name(name).unwrap();
        let of = |case: Case| configs(&case, on, &team).unwrap().into_iter().map(move |config| (case, config));
        let all: Vec<_> = cases().into_iter().flat_map(of).collect();
        assert!(all.len() > 3 * cases().len(), "{}", all.len());
        all.par_iter().for_each(|(case, config)| {
            let found =
                verify_in(case, on, Some(*config), &team).unwrap_or_else(|error| panic!("{case:?}, {config}: {error}"));
            assert_eq!(found.wrong, 0, "{} on {name} in {config}: {:?}", case.reason, found.first);
        });
    }
}

#[test]
fn every_number_of_e4m3_comes_through_alone() {
    // Row by row a number that stands at each k once; tokens pick one k each.
    let team = cpu::team(Some(2)).unwrap();
    let codes: Vec<u8> = (0..256 * 32).map(|at| ((at / 32 + at % 32 * 8) % 256) as u8).collect();
    let codes: Vec<u8> = codes.into_iter().map(|code| if e4m3::is_nan(code) { 0 } else { code }).collect();
    let one_hot: Vec<f32> = (0..32 * 32).map(|at| if at / 32 == at % 32 { 1.0 } else { 0.0 }).collect();
    let tokens = Dense::new(32, 32, one_hot, 1.0).unwrap();
    let blocks = Fp8Scales::Blocks { block: [128, 32], scales: vec![0.25, 3.0].into() };
    for scales in [Fp8Scales::Matrix(1.0), Fp8Scales::Mx(vec![100; 256].into()), blocks] {
        let matrix = Fp8Matrix::new(256, 32, codes.clone(), scales).unwrap();
        let exact = matrix.dequantize();
        for backend in all() {
            let found = computed(backend, &matrix, &tokens, &team);
            for (at, &found) in found.iter().enumerate() {
                let (k, row) = (at / 256, at % 256);
                assert_eq!(found, exact[row * 32 + k], "{}, row {row}, k {k}", backend.name());
            }
        }
    }
}

#[test]
fn a_number_that_is_wrong_in_its_last_bit_is_noticed() {
    let case = cases().into_iter().find(|case| case.exact).unwrap();
    let team = cpu::team(Some(1)).unwrap();
    let (matrix, tokens) = (case.matrix().unwrap(), case.tokens().unwrap());
    let mut codes = matrix.codes().to_vec();
    let k = matrix.k();
    let (Values::BF16(values), at) = (tokens.values(), 5 * k + 100) else { panic!("the case has bf16 tokens") };
    let row = values.chunks(k).position(|row| row[100].to_f32() != 0.0).unwrap();
    codes[at] ^= 1;
    let spoilt = Fp8Matrix::new(matrix.rows(), k, codes, matrix.scales().clone()).unwrap();
    for backend in all() {
        let found = computed(backend, &spoilt, &tokens, &team)[row * matrix.rows() + 5];
        let adding = (backend.arithmetic(case.activation), Segments::Blocks);
        let expected = op::fp8::bounded(&tokens, &matrix, None, adding).unwrap();
        assert!(!expected[row * matrix.rows() + 5].accepts(found.into(), case.output), "{}", backend.name());
    }
}

#[test]
fn results_do_not_depend_on_threads_and_a_spoilt_token_spoils_only_its_own() {
    for case in cases().iter().filter(|case| case.shape[0] > 1) {
        let (matrix, tokens) = (case.matrix().unwrap(), case.tokens().unwrap());
        let k = matrix.k();
        for backend in available() {
            let on =
                |threads, tokens: &Dense<'_>| computed(backend, &matrix, tokens, &cpu::team(Some(threads)).unwrap());
            let (one, many) = (on(1, &tokens), on(4, &tokens));
            assert!(one.iter().zip(&many).all(|(a, b)| a.to_bits() == b.to_bits()), "{}, {case:?}", backend.name());
            let mut values = vec![0.0; tokens.rows() * k];
            values.chunks_mut(k).enumerate().for_each(|(row, out)| tokens.row(row, out));
            values[3] = f32::NAN;
            let spoilt = on(1, &Dense::new(tokens.rows(), k, values, tokens.global()).unwrap());
            let rows = spoilt.chunks(matrix.rows()).map(|row| row.iter().all(|x| !x.is_nan()));
            assert!(rows.skip(1).all(|whole| whole), "{}, {case:?}", backend.name());
            assert!(spoilt[0].is_nan());
        }
    }
}

#[test]
fn packed_weights_are_read_back() {
    let team = cpu::team(Some(1)).unwrap();
    for case in cases() {
        let (matrix, bias) = (case.matrix().unwrap(), case.bias());
        let packed = Fp8Panels::new(&matrix, bias.as_deref(), &team).unwrap();
        let (again, own) = packed.unpacked().unwrap();
        assert_eq!((again.codes(), own), (matrix.codes(), bias.as_deref()), "{case:?}");
        assert_eq!(again.dequantize(), matrix.dequantize(), "{case:?}");
        let on = Simulated::by_name("sim").unwrap();
        let packed = on.prepack_fp8(&matrix, bias.as_deref(), &team).unwrap();
        let (again, own) = on.unpack_fp8(packed.as_ref()).unwrap();
        assert_eq!((again.codes(), own), (matrix.codes(), bias), "{case:?}");
        assert_eq!(again.dequantize(), matrix.dequantize(), "{case:?}");
        assert_eq!((packed.shapes(), packed.matrices()), (&[(matrix.rows(), matrix.k())][..], 1));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let team = cpu::team(Some(1)).unwrap();
    let matrix = Fp8Matrix::new(2, 32, vec![0x38; 64], Fp8Scales::Matrix(1.0)).unwrap();
    let packed = Fp8Panels::new(&matrix, None, &team).unwrap();
    let mut c = vec![0f32; 2];
    let tokens = |k: usize| Dense::new(1, k, vec![1f32; k], 1.0).unwrap().into();
    let refused = packed.run("scalar", &tokens(16), Target::F32(&mut c), &team);
    assert!(matches!(refused, Err(Error::Mismatch { what: "the activations' k", .. })));
    let refused = packed.run("scalar", &tokens(32), Target::F32(&mut c[..1]), &team);
    assert!(matches!(refused, Err(Error::Mismatch { what: "the output's length", .. })));
    let refused = packed.run("cuda", &tokens(32), Target::F32(&mut c), &team);
    assert!(matches!(refused, Err(Error::Mismatch { what: "the backend for FP8 weights", .. })));
    let quantised = format::Matrix::new(1, 32, vec![0x22; 16], vec![0x38; 2], 1.0).unwrap().into();
    assert!(packed.run("scalar", &quantised, Target::F32(&mut c), &team).is_err());
    assert!(matches!(Fp8Panels::new(&matrix, Some(&[1.0]), &team), Err(Error::BiasLength { .. })));
    let wide = Fp8Matrix::new(1, 64, vec![0x38; 64], Fp8Scales::Mx(vec![60, 200].into())).unwrap();
    assert!(matches!(Fp8Panels::new(&wide, None, &team), Err(Error::Fp8Spread { row: 0, span: 140, .. })));
}

#[test]
fn what_a_gpu_does_not_compute_is_refused() {
    let (team, on) = (cpu::team(Some(1)).unwrap(), Simulated::by_name("sim:sm80").unwrap());
    let matrix = Fp8Matrix::new(32, 64, vec![0x38; 32 * 64], Fp8Scales::Matrix(1.0)).unwrap();
    assert!(matches!(on.prepack_fp8(&matrix, Some(&[1.0]), &team), Err(Error::BiasLength { length: 1, n: 32, .. })));
    let wide = Fp8Matrix::new(1, 64, vec![0x38; 64], Fp8Scales::Mx(vec![60, 200].into())).unwrap();
    assert!(matches!(on.prepack_fp8(&wide, None, &team), Err(Error::Fp8Spread { row: 0, span: 140, .. })));
    for backend in available() {
        assert!(matches!(backend.prepack_fp8(&matrix, None, &team), Err(Error::Unavailable { .. })));
    }
    let product = |gate| Problem::new(vec![Shape::new(1, 32, 64)], gate, Activation::BF16, Output::F32).unwrap();
    let gated = product(Gate::Silu).with_scaling(Scaling::Fp8);
    assert!(matches!(gated, Err(Error::Fp8Weights { scaling: Scaling::Fp8 })));
    let rounded = product(Gate::None).with_precision(Precision::Fp8).unwrap().with_scaling(Scaling::MxFp8);
    assert!(matches!(rounded, Err(Error::Fp8Weights { .. })));
    let problem = product(Gate::None).with_scaling(Scaling::Fp8).unwrap();
    let split = Config { schedule: Schedule::SplitK, epilogue: Epilogue::Direct, ..on.candidates(&problem, 1)[0] };
    let refused = on.legal(&problem, &split, 1).unwrap_err().to_string();
    assert!(refused.contains("schedule=tile or persistent"), "{refused}");
    // NVFP4's weights are no FP8 ones, and the other way round.
    let other = format::Matrix::new(32, 64, vec![0x22; 32 * 32], vec![0x38; 32 * 4], 1.0).unwrap();
    let packed = on.prepack(&[Weights::plain(other)], &team).unwrap();
    assert!(matches!(on.unpack_fp8(packed.as_ref()), Err(Error::Mismatch { .. })));
    let (mut c, tokens) = (vec![0f32; 32], Dense::new(1, 64, vec![bf16::ONE; 64], 1.0).unwrap().into());
    let config = on.candidates(&problem, 1)[0];
    let targets = &mut [Target::F32(&mut c)];
    let called = Call::new((on, config), &problem, packed.as_ref(), std::slice::from_ref(&tokens), targets, &team);
    assert!(matches!(called, Err(Error::Mismatch { what: "the scales of the weights", .. })));
}

/// Instructions after which a run is given up: many times what the kernels take.
const MOST_INSTRUCTIONS: u64 = 4_000_000;

/// A kernel with FP8 weights that is broken: scales, tokens, sizes and a configuration; and which of its mutants are
/// looked at.
struct Broken {
    on: &'static str,
    kinds: &'static [(Scaling, Activation)],
    shape: [usize; 3],
    request: &'static str,
    peculiar: fn(&Mutant) -> bool,
}

/// What `sm80`'s kernel has with FP8 weights that it has not with others: words and scales of other sizes are copied
/// and read, and columns have factors. The rest is broken in `mutations`.
#[test]
fn mutants_of_what_is_peculiar_to_fp8_weights_are_caught() {
    Broken {
        on: "sim:sm80",
        kinds: &[
            (Scaling::Fp8By32, Activation::BF16),
            (Scaling::MxFp8, Activation::F16),
            (Scaling::MxFp8, Activation::BF16),
        ],
        // Columns beyond the last chunk, and a last stage that is not full.
        shape: [5, 72, 480],
        request: "tile=8x32,depth=128,stages=3,epilogue=direct,schedule=tile",
        peculiar: |mutant| {
            let read = mutant.name.contains("/load:") && mutant.name.contains("ld.shared");
            let finishes = mutant.name.contains("/finish/store:") && mutant.name.contains("ld.global");
            // Guards, and zeros behind k, which meet zeros of the other operand, are the same for all weights.
            let as_ever = ["guard dropped", "zeros not filled in"].contains(&mutant.mistake);
            read || finishes || (mutant.name.contains("/copy:") && mutant.name.contains("cp.async.c") && !as_ever)
        },
    }
    .examine();
}

/// The same of Hopper's kernel: words and scales are copied and read, and columns have factors.
#[test]
fn mutants_of_what_is_peculiar_to_fp8_weights_on_hopper_are_caught() {
    let of_weights = |mutant: &Mutant| {
        let read = mutant.name.contains("/load:") && mutant.name.contains("ld.shared");
        let factors = mutant.name.contains("/foresee:") && mutant.name.contains("ld.global");
        read || factors || (mutant.name.contains("/produce:") && mutant.name.contains("cp.async.bulk.shared"))
    };
    let kinds = &[(Scaling::Fp8, Activation::F16), (Scaling::MxFp8, Activation::BF16)];
    let coarse = "strategy=interleaved,tile=24x128,depth=128,stages=3,epilogue=direct,schedule=tile";
    let fine = "strategy=interleaved,tile=72x128,depth=64,stages=3,epilogue=staged,schedule=persistent";
    for request in [coarse, fine] {
        Broken { on: "sim", kinds, shape: [37, 136, 736], request, peculiar: of_weights }.examine();
    }
}

/// The main loops whose sums have scales of their own wait and release in their own way: all of them is broken.
#[test]
fn mutants_of_the_main_loops_that_scale_sums_are_caught() {
    fn is_of_loop(mutant: &Mutant) -> bool {
        let phases = ["/consume:", "/load:", "/multiply:", "/scale:", "/release:", "/wait:"];
        // Conditions are those of every loop, and hold where they are dropped.
        mutant.mistake != "condition dropped" && phases.iter().any(|phase| mutant.name.contains(phase))
    }
    let kinds = &[(Scaling::Fp8By64, Activation::BF16)];
    let examine = |request, peculiar: fn(&Mutant) -> bool| {
        Broken { on: "sim", kinds, shape: [37, 136, 768], request, peculiar }.examine();
    };
    examine("strategy=interleaved,tile=24x128,depth=128,stages=2,epilogue=direct,schedule=tile", is_of_loop);
    // A fence before covers fragments that are made ahead, and a group joins the next one, as in every fine main loop.
    examine("strategy=interleaved,tile=16x64,depth=64,stages=4,epilogue=staged,schedule=persistent", |mutant| {
        is_of_loop(mutant) && !["wgmma fence dropped", "commit dropped"].contains(&mutant.mistake)
    });
}

impl Broken {
    fn examine(&self) {
        self.kinds.par_iter().for_each(|kind| self.examine_kind(*kind));
    }

    fn examine_kind(&self, (scaling, activation): (Scaling, Activation)) {
        let (team, on) = (cpu::team(Some(1)).unwrap(), Simulated::by_name(self.on).unwrap());
        let case = cases().into_iter().find(|case| case.matrix().unwrap().scaling() == scaling).unwrap();
        let case = Case { shape: self.shape, activation, output: Output::F32, bias: true, ..case };
        let [m, n, _] = self.shape;
        let (matrix, tokens, bias) = (case.matrix().unwrap(), case.tokens().unwrap().into(), case.bias());
        let packed = on.prepack_fp8(&matrix, bias.as_deref(), &team).unwrap();
        let problem = problem(&case, scaling).unwrap();
        let request: Request = self.request.parse().unwrap();
        let config = request.applied_to(on.candidates(&problem, 1)[0], on.settings());
        let mut c = vec![0f32; m * n];
        let operands = Operands {
            weights: packed.as_ref(),
            activations: std::slice::from_ref(&tokens),
            largest: &[1.0],
            addends: &[],
            targets: &mut [Target::F32(&mut c)],
        };
        let Staged { gpu, launches, results, .. } = on.staged((&problem, &config), &operands, 3).unwrap();
        let gpu = gpu.with_patience(MOST_INSTRUCTIONS);
        let sequence: Vec<_> = launches.iter().map(|(kernel, launch)| (kernel, launch)).collect();
        let mut ran = gpu.clone();
        ran.run_sequence(&sequence, sim::Schedule::Earliest).unwrap();
        let right = ran.download(results[0]).unwrap().to_vec();
        let broken: Vec<Mutant> = mutants(&launches[0].0).into_iter().filter(self.peculiar).collect();
        assert!(broken.len() > 10, "{scaling}: {}", broken.len());
        let kernels: Vec<&ptx::Kernel> = broken.iter().map(|mutant| &mutant.kernel).collect();
        let ready = Mutants::new(&launches[0].0, &kernels);
        let mut left: Vec<usize> = (0..broken.len()).collect();
        for schedule in sim::Schedule::several(2) {
            let same = gpu.run_mutants(&sequence, (&ready, &left), schedule, |run| {
                run.is_ok_and(|(gpu, _)| gpu.download(results[0]).is_ok_and(|found| found == right))
            });
            left = left.into_iter().zip(same).filter_map(|(number, same)| same.then_some(number)).collect();
        }
        let missed: Vec<&str> = left.into_iter().map(|number| &broken[number].name[..]).collect();
        let which = format!("{scaling} and {activation}, {}", self.request);
        assert!(missed.is_empty(), "{which}: of {}\n{}", broken.len(), missed.join("\n"));
    }
}
