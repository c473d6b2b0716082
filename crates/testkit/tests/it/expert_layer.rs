//! Whole layers of experts in the simulator, all launches one after another as a queue has them, against double
//! precision.

use bytemuck::cast_slice;
use format::Scaling;
use gpu::experts::call::{Choice, LayerCall, LayerWeights};
use gpu::experts::kernels::{LayerKernels, of_both};
use gpu::experts::layer::{self, LayerSite};
use gpu::experts::plan;
use gpu::experts::route::{Grouped, RouteSpec, Score};
use gpu::experts::shape::LayerShape;
use gpu::facts::Facts;
use gpu::families::sm80::Sm80;
use gpu::families::sm90::Sm90;
use gpu::families::sm90::kernel::Tokens;
use gpu::families::sm100::Sm100;
use gpu::families::sm120::Sm120;
use gpu::pack::Codes;
use gpu::products::{ProductShape, UNDER, WARPS};
use gpu::{Argument, Family};
use half::{bf16, f16};
use hammerhead_testkit::experts::{Layer, PLAIN as SHAPE, fp8_kinds, kinds, mx_kinds};
use op::{Activation, Config, Epilogue, Gate, Intermediate, Output, Own, Precision, Tile};
use ptx::Kernel;
use rayon::prelude::*;
use sim::mutate::{Mutant, mutants};
use sim::{Arg, Buffer, Gpu, Invocation, Limits, Mutants, Rules, Schedule};

/// Every family.
pub(crate) const FAMILIES: [&dyn Family; 4] = [&Sm90, &Sm80, &Sm120, &Sm100];
/// Those that take MXFP4's scales as they are, and those that widen them when weights are packed.
const NATIVE: [&dyn Family; 2] = [&Sm90, &Sm80];
const WIDENING: [&dyn Family; 2] = [&Sm120, &Sm100];
/// Instructions after which a launch is given up: many times those of one that ends. Mutants whose loops do not end
/// would take minutes else.
const PATIENCE: u64 = 10_000_000;

/// The device of a family: one with as little shared memory as its GPUs have.
pub(crate) fn facts(family: &dyn Family) -> Facts {
    match family.name() {
        "sm80" => Facts { shared_bytes: 99 << 10, ..Facts::a100() },
        "sm120" => Facts::rtx5090(),
        "sm100" => Facts::b200(),
        _ => Facts::h200(),
    }
}

/// The kernels with tiles of so many tokens, or of as many as the family's next larger tile has.
pub(crate) fn with_tile(family: &'static dyn Family, shape: &LayerShape, tile: u32) -> LayerKernels {
    let tile = if family.name() == "sm100" { tile.next_multiple_of(16) } else { tile };
    plan::kernels_with_tile(family, shape, tile, &facts(family)).unwrap()
}

fn chosen(family: &'static dyn Family, shape: &LayerShape, tokens: u32) -> LayerKernels {
    plan::kernels(family, shape, tokens, &facts(family)).unwrap()
}

/// A device with a layer's weights and a call's tensors.
pub(crate) struct Trial {
    pub(crate) layer: Layer,
    pub(crate) gpu: Gpu,
    pub(crate) weights: LayerWeights,
    workspace: Buffer,
    out: Buffer,
    pub(crate) call: LayerCall,
    x: Vec<f32>,
    addend: Vec<f32>,
}

fn uploaded(gpu: &mut Gpu, name: &str, activation: Activation, values: &mut [f32]) -> Buffer {
    let bytes: Vec<u8> = match activation {
        Activation::F16 => values
            .iter_mut()
            .flat_map(|x| {
                *x = f16::from_f32(*x).to_f32();
                f16::from_f32(*x).to_le_bytes()
            })
            .collect(),
        Activation::BF16 => values
            .iter_mut()
            .flat_map(|x| {
                *x = bf16::from_f32(*x).to_f32();
                bf16::from_f32(*x).to_le_bytes()
            })
            .collect(),
        _ => cast_slice(values).to_vec(),
    };
    let buffer = gpu.upload(name, &bytes);
    gpu.await_predecessor(buffer);
    buffer
}

impl Trial {
    pub(crate) fn new(family: &dyn Family, shape: LayerShape, ids: &[i32], weights: &[f32], shared: bool) -> Self {
        Self::of(Layer::new(family, shape, 3, 5).unwrap(), ids, weights, shared)
    }

    fn of(layer: Layer, ids: &[i32], weights: &[f32], shared: bool) -> Self {
        let shape = layer.shape;
        let mut gpu = Gpu::new(Limits::h200()).with_rules(Rules::Letter).with_patience(PATIENCE);
        let packed: Vec<_> = layer.packed().collect();
        let bytes: Vec<u8> = packed.iter().flat_map(|expert| expert.matrices().to_vec()).collect();
        let factors: Vec<f32> = packed.iter().flat_map(|expert| expert.factors().concat()).collect();
        let biases = [0, 1, 2].map(|which| {
            let all: Vec<f32> = packed.iter().flat_map(|expert| expert.biases()[which].clone()).collect();
            gpu.upload("biases", cast_slice(&all)).address
        });
        let scales = [0, 1].map(|which| {
            let all: Vec<f32> = packed.iter().flat_map(|expert| expert.scales()[which].clone()).collect();
            gpu.upload("scales", cast_slice(&all)).address
        });
        let tables: Vec<f32> = packed.iter().flat_map(|expert| expert.table().to_vec()).collect();
        let lifts: Vec<f32> = packed.iter().flat_map(|expert| expert.lifts().to_vec()).collect();
        let placed = LayerWeights {
            lifts: gpu.upload("lifts", cast_slice(&lifts)).address,
            matrices: gpu.upload("matrices", &bytes).address,
            factors: gpu.upload("factors", cast_slice(&factors)).address,
            biases,
            scales,
            tables: gpu.upload("tables", cast_slice(&tables)).address,
            gate: gpu.upload("gate", cast_slice(&gate_vector(shape.hidden))).address,
            ..LayerWeights::default()
        };
        let tokens = ids.len() / shape.top as usize;
        let mut rng = fastrand::Rng::with_seed(9);
        let mut x: Vec<f32> = (0..tokens * shape.hidden as usize).map(|_| rng.f32() * 2.0 - 1.0).collect();
        let x_at = uploaded(&mut gpu, "x", shape.activation, &mut x);
        let mut addend: Vec<f32> = (0..x.len()).map(|at| (at % 7) as f32 - 3.0).collect();
        let addend_at = uploaded(&mut gpu, "addend", Activation::F16, &mut addend);
        let (ids_at, weights_at) = (gpu.upload("ids", cast_slice(ids)), gpu.upload("weights", cast_slice(weights)));
        [ids_at, weights_at].into_iter().for_each(|buffer| gpu.await_predecessor(buffer));
        let out = gpu.alloc("out", x.len() * shape.output.bytes());
        // Full of NaN: what nobody writes may be read, but must not show.
        let workspace = gpu.upload("workspace", &vec![0xFF; layer::workspace_bytes(&shape, None, tokens as u32)]);
        let call = LayerCall {
            tokens: tokens as u32,
            x: x_at.address,
            choice: Choice::Given { ids: ids_at.address, wide: false, weights: weights_at.address },
            addend: shared.then_some((Output::F16, addend_at.address)),
            adapters: 0,
            placement: None,
            out: out.address,
        };
        Trial { layer, gpu, weights: placed, workspace, out, call, x, addend }
    }

    /// Makes a token the one of which all batches have a copy.
    fn put(&mut self, place: usize) {
        let shape = self.layer.shape;
        let hidden = shape.hidden as usize;
        let mut rng = fastrand::Rng::with_seed(77);
        self.x[place * hidden..][..hidden].fill_with(|| rng.f32() * 2.0 - 1.0);
        let mut x = self.x.clone();
        self.call.x = uploaded(&mut self.gpu, "x", shape.activation, &mut x).address;
    }

    /// What the launches leave, as numbers.
    pub(crate) fn run(&self, kernels: &LayerKernels, schedule: Schedule) -> Vec<f32> {
        let (launches, mut gpu) = (self.launches(kernels), self.gpu.clone());
        let sequence: Vec<_> = launches.iter().map(|(kernel, launch)| (kernel, launch)).collect();
        gpu.run_sequence(&sequence, schedule).unwrap_or_else(|fault| panic!("{fault}"));
        self.result(&gpu).unwrap_or_else(|first| panic!("byte {first} was not written"))
    }

    /// The kernels of a call, and how they are launched.
    pub(crate) fn launches(&self, kernels: &LayerKernels) -> Vec<(Kernel, Invocation)> {
        let site = LayerSite { workspace: self.workspace.address, brought: 0, exchange: 0, multiprocessors: 3 };
        let launches = layer::launches(&self.layer.shape, kernels, &self.weights, &self.call, site).all;
        let built = launches.iter().map(|launch| {
            let args = launch.arguments.iter().map(argument).collect();
            (launch.kernel.build().unwrap(), Invocation { grid: launch.grid, args })
        });
        built.collect()
    }

    /// What a device holds behind a call, or the first byte that it has not written.
    pub(crate) fn result(&self, gpu: &Gpu) -> Result<Vec<f32>, usize> {
        let bytes = gpu.download(self.out)?;
        Ok(match self.layer.shape.output {
            Output::F32 => bytemuck::pod_collect_to_vec(bytes),
            Output::F16 => bytes.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Output::BF16 => bytes.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        })
    }

    /// The names of those mutants of a launch's kernel that no schedule tells from the kernel as it is.
    pub(crate) fn missed(
        &self,
        (launches, at): (&[(Kernel, Invocation)], usize),
        broken: &[Mutant],
        right: &[f32],
    ) -> Vec<String> {
        let sequence: Vec<_> = launches.iter().map(|(kernel, launch)| (kernel, launch)).collect();
        let kernels: Vec<&Kernel> = broken.iter().map(|mutant| &mutant.kernel).collect();
        let mutants = Mutants::new(&launches[at].0, &kernels);
        let mut left: Vec<usize> = (0..broken.len()).collect();
        for schedule in [Schedule::Earliest, Schedule::Latest, Schedule::Random(1)] {
            let same = self.gpu.run_mutants(&sequence, (&mutants, &left), schedule, |run| {
                run.is_ok_and(|(gpu, _)| self.result(gpu).is_ok_and(|found| found == right))
            });
            left = left.into_iter().zip(same).filter_map(|(number, same)| same.then_some(number)).collect();
        }
        left.into_iter().map(|number| broken[number].name.clone()).collect()
    }

    fn check(&self, what: &str, routed: &[Vec<(u32, f32)>], found: &[f32]) {
        let hidden = self.layer.shape.hidden as usize;
        for (token, routed) in routed.iter().enumerate() {
            let range = token * hidden..(token + 1) * hidden;
            let addend = if self.call.addend.is_some() { &self.addend[range.clone()] } else { &[] };
            let worst = self.layer.worst(&self.x[range.clone()], routed, addend, &found[range]).unwrap();
            assert!(worst <= 1.0, "{what}: token {token} is off by {worst} of what is allowed");
        }
    }
}

fn argument(argument: &Argument) -> Arg {
    match argument {
        Argument::Pointer(address) => Arg::Pointer(*address),
        Argument::U32(value) => Arg::U32(*value),
        Argument::U64(value) => Arg::U64(*value),
        Argument::F32(value) => Arg::F32(*value),
        Argument::Map(map) => Arg::Map(map.clone()),
        Argument::Maps(maps) => Arg::Maps(maps.clone()),
        Argument::Words(words) => Arg::Words(words.clone()),
    }
}

/// The token's experts that there are.
fn routed(shape: &LayerShape, ids: &[i32], weights: &[f32]) -> Vec<Vec<(u32, f32)>> {
    let top = shape.top as usize;
    ids.chunks(top)
        .zip(weights.chunks(top))
        .map(|(ids, weights)| {
            let pairs = ids.iter().zip(weights).filter(|(id, _)| (0..shape.experts as i32).contains(id));
            pairs.map(|(&id, &weight)| (id as u32, weight)).collect()
        })
        .collect()
}

pub(crate) fn weights(count: usize) -> Vec<f32> {
    (0..count).map(|at| 0.25 + (at % 5) as f32 / 8.0).collect()
}

/// Ids of 21 tokens: scattered, to one expert, to nobody, some out of range.
pub(crate) fn routings() -> [(&'static str, Vec<i32>); 4] {
    let scattered = (0..21).flat_map(|t: i32| [t * 5 % 6, (t * 5 + 1 + t % 5) % 6]).collect();
    let one = (0..21).flat_map(|_| [4, -1]).collect();
    let strange = (0..21).flat_map(|t: i32| [t * 7 % 9 - 1, (t * 7 + 2) % 9 - 2]).collect();
    [("scattered", scattered), ("to one expert", one), ("to nobody", vec![6; 42]), ("out of range", strange)]
}

#[test]
fn layers_are_right_whatever_the_routing_the_tile_and_the_schedule() {
    let cases = routings().into_iter().flat_map(|(what, ids)| {
        let tiles = [8, 16, 64, 96].map(|tile| (FAMILIES[0], tile)).into_iter();
        // Few tokens and many.
        let others = FAMILIES[1..].iter().flat_map(|&family| [8, 64].map(|tile| (family, tile)));
        tiles.chain(others).map(move |(family, tile)| (what, ids.clone(), family, tile))
    });
    cases.collect::<Vec<_>>().into_par_iter().for_each(|(what, ids, family, tile)| {
        let weights = weights(ids.len());
        let trial = Trial::new(family, SHAPE, &ids, &weights, false);
        let kernels = with_tile(family, &SHAPE, tile);
        let routed = routed(&SHAPE, &ids, &weights);
        let first = trial.run(&kernels, Schedule::Earliest);
        trial.check(&format!("{what}, {family:?}, tiles of {tile}"), &routed, &first);
        for schedule in [Schedule::Latest, Schedule::Random(2)] {
            assert_eq!(trial.run(&kernels, schedule), first, "{what}, {family:?}, tiles of {tile}, {schedule}");
        }
    });
}

#[test]
fn every_kind_of_layer_is_right() {
    kinds(SHAPE).into_par_iter().for_each(|(what, shape)| {
        let ids = &routings()[0].1[..18];
        let weights = weights(ids.len());
        let ways = FAMILIES.into_iter().flat_map(|family| [(family, 8), (family, 64)]);
        let schedules = [Schedule::Random(1), Schedule::Latest, Schedule::Earliest, Schedule::Random(2)];
        for ((family, tile), schedule) in ways.zip(schedules.into_iter().cycle()) {
            let trial = Trial::new(family, shape, ids, &weights, what == "gelu");
            let kernels = with_tile(family, &shape, tile);
            trial.check(what, &routed(&shape, ids, &weights), &trial.run(&kernels, schedule));
        }
    });
}

/// In Hopper's kernels of the second product. Tiles of 16 are of experts that have several.
#[test]
fn tiles_that_are_stored_under_the_next_one_have_the_same_bits() {
    // Several stages of k in either product, of which the last is not whole.
    let plain = LayerShape { hidden: 336, inner: 208, ..SHAPE };
    let routings = routings();
    let cases = kinds(plain).into_iter().zip(routings.iter().cycle()).zip([16, 96, 80].into_iter().cycle());
    cases.collect::<Vec<_>>().into_par_iter().for_each(|(((what, shape), (how, ids)), tile)| {
        let trial = Trial::new(&Sm90, shape, ids, &weights(ids.len()), false);
        let product = shape.down();
        let config = |columns, under| Config {
            tile: Tile { tokens: tile, columns },
            epilogue: Epilogue::Direct,
            own: Own::of([(UNDER, under)]),
            ..Sm90.expert_configs(&product, 16, &facts(&Sm90))[0]
        };
        let kernels = with_tile(&Sm90, &shape, tile as u32);
        let run = |[columns, depth, under]: [usize; 3], schedule| {
            let config = Config { depth, stages: 2, ..config(columns, under as u32) };
            let down = Sm90.expert_kernel(&product, &config, &facts(&Sm90)).unwrap();
            trial.run(&LayerKernels { down, ..kernels.clone() }, schedule)
        };
        let expected = run([128, 64, 0], Schedule::Earliest);
        let deeper = if tile > 64 { [128, 128, 2] } else { [128, 64, 2] };
        let ways =
            [([128, 64, 3], Schedule::Latest), (deeper, Schedule::Random(3)), ([192, 64, 1], Schedule::Earliest)];
        for (way, schedule) in ways {
            assert_eq!(run(way, schedule), expected, "{what}, {how}, tiles of {tile}, {way:?}, {schedule}");
        }
    });
}

#[test]
fn products_by_warps_have_the_bits_of_products_by_warpgroups() {
    // Several stages of k in either product, of which the last is not whole.
    let plain = LayerShape { hidden: 336, inner: 208, ..SHAPE };
    let kinds = kinds(plain).into_iter().chain(mx_kinds(plain));
    let routings = routings();
    let cases = kinds.zip(routings.iter().cycle()).zip([8, 16].into_iter().cycle()).enumerate();
    cases.collect::<Vec<_>>().into_par_iter().for_each(|(number, (((what, shape), (how, ids)), tile))| {
        let trial = Trial::new(&Sm90, shape, ids, &weights(ids.len()), false);
        let kernels = |warps| {
            let [first, second] = [shape.gate_up(), shape.down()].map(|product| {
                let configs = Sm90.expert_configs(&product, tile, &facts(&Sm90));
                let plain: Vec<&Config> = configs.iter().filter(|config| UNDER.value(&config.own) == 0).collect();
                // Not of single precision.
                let warps = if Tokens::of_product(&product).parts() == 1 { warps } else { 0 };
                Config { own: Own::of([(WARPS, warps)]), ..*plain[number % plain.len()] }
            });
            LayerKernels::new(&Sm90, &shape, &of_both(&first, &second), &facts(&Sm90)).unwrap()
        };
        let (by_warps, by_warpgroups) = (kernels(1), kernels(0));
        let single = Tokens::of_product(&shape.gate_up()).parts() > 1;
        assert!(single || by_warps.gate_up.spec() != by_warpgroups.gate_up.spec(), "{what}");
        let expected = trial.run(&by_warpgroups, Schedule::Earliest);
        for schedule in [Schedule::Latest, Schedule::Random(4)] {
            assert_eq!(trial.run(&by_warps, schedule), expected, "{what}, {how}, tiles of {tile}, {schedule}");
        }
    });
}

#[test]
fn products_by_warps_are_refused_where_bits_may_not_depend_on_the_batch() {
    let invariant = LayerShape { invariant: true, ..SHAPE }.gate_up();
    let planned = Sm90.expert_configs(&invariant, 16, &facts(&Sm90))[0];
    let kernel = |own| Sm90.expert_kernel(&invariant, &Config { own, ..planned }, &facts(&Sm90));
    assert!(kernel(Own::NONE).is_ok());
    assert!(kernel(Own::of([(WARPS, 1)])).unwrap_err().contains("ask for that"));
    assert!(kernel(Own::of([(WARPS, 2)])).unwrap_err().contains("neither 0 nor 1"));
}

#[test]
fn every_kind_of_layer_in_fp8_is_right_whatever_the_routing_the_tile_and_the_schedule() {
    let other_order = LayerShape { codes: Codes::Bfloats, ..SHAPE.in_precision(Precision::Fp8) };
    let kinds = fp8_kinds(SHAPE).into_iter().chain([("fp8 of words in order for bfloat16", other_order)]);
    let routings = routings();
    let cases = kinds.zip(routings.iter().cycle()).flat_map(|((what, shape), (how, ids))| {
        [8, 24, 64, 96, 256].map(|tile| (format!("{what}, {how}, tiles of {tile}"), shape, ids, tile))
    });
    cases.collect::<Vec<_>>().into_par_iter().for_each(|(what, shape, ids, tile)| {
        let weights = weights(ids.len());
        let trial = Trial::new(&Sm90, shape, ids, &weights, false);
        let kernels = with_tile(&Sm90, &shape, tile);
        let first = trial.run(&kernels, Schedule::Earliest);
        trial.check(&what, &routed(&shape, ids, &weights), &first);
        for schedule in [Schedule::Latest, Schedule::Random(2)] {
            assert_eq!(trial.run(&kernels, schedule), first, "{what}, {schedule}");
        }
    });
}

#[test]
fn every_kind_of_layer_with_mxfp4_weights_is_right_and_the_same_to_the_bit_as_with_scales_of_nvfp4() {
    // Few tokens, and many: on sm80 as many as those of single precision have room for.
    let tiles: [(&dyn Family, u32); 4] = [(&Sm90, 8), (&Sm90, 96), (&Sm80, 8), (&Sm80, 64)];
    let kinds = mx_kinds(SHAPE).into_iter();
    let kinds = kinds.flat_map(|(what, shape)| tiles.map(|(family, tile)| (family, what, shape, tile)));
    let fp8 = mx_kinds(SHAPE)[1].1.in_precision(Precision::Fp8);
    let fp8 = [24, 256].map(|tile| (NATIVE[0], "mxfp4 in fp8", fp8, tile));
    kinds.chain(fp8).collect::<Vec<_>>().into_par_iter().for_each(|(family, what, shape, tile)| {
        let ids = &routings()[0].1[..18];
        let weights = weights(ids.len());
        let native = Layer::new(family, shape, 3, 5).unwrap();
        let bytes = |layer: &Layer| layer.packed().map(|expert| expert.matrices().len()).sum::<usize>();
        let own_bytes = bytes(&native);
        let trial = Trial::of(native, ids, &weights, false);
        let found = trial.run(&with_tile(family, &shape, tile), Schedule::Random(1));
        trial.check(what, &routed(&shape, ids, &weights), &found);
        let widened = Layer::new(family, shape, 3, 5).unwrap().in_scaling(family, Scaling::NvFp4).unwrap();
        assert_eq!(own_bytes * 18, bytes(&widened) * 17, "{what}");
        let nvfp4 = widened.shape;
        let trial = Trial::of(widened, ids, &weights, false);
        let other = trial.run(&with_tile(family, &nvfp4, tile), Schedule::Latest);
        assert!(found.iter().zip(&other).all(|(one, other)| one.to_bits() == other.to_bits()), "{what}, {family:?}");
    });
}

#[test]
fn families_that_widen_mxfp4_compute_every_kind_of_layer_with_such_weights() {
    let cases = mx_kinds(SHAPE).into_iter().flat_map(|(what, shape)| WIDENING.map(|family| (family, what, shape)));
    cases.collect::<Vec<_>>().into_par_iter().for_each(|(family, what, shape)| {
        let ids = &routings()[0].1[..18];
        let weights = weights(ids.len());
        let trial = Trial::new(family, shape, ids, &weights, false);
        let found = trial.run(&with_tile(family, &shape, 64), Schedule::Earliest);
        trial.check(what, &routed(&shape, ids, &weights), &found);
    });
}

#[test]
fn mxfp4_scales_that_neither_nvfp4_nor_halves_hold_are_exact_with_bfloat16_and_refused_elsewhere() {
    let wide = LayerShape { scaling: Scaling::WideMxFp4, ..mx_kinds(SHAPE)[0].1 };
    let single = LayerShape { activation: Activation::F32, output: Output::F32, biased: true, ..wide };
    let ids = &routings()[0].1[..18];
    let cases = [(wide, 8), (wide, 64), (single, 16)];
    for (family, (shape, tile)) in NATIVE.into_iter().flat_map(|family| cases.map(|case| (family, case))) {
        let weights = weights(ids.len());
        let trial = Trial::new(family, shape, ids, &weights, false);
        let found = trial.run(&with_tile(family, &shape, tile), Schedule::Random(3));
        trial.check("many powers of two", &routed(&shape, ids, &weights), &found);
    }
    for family in WIDENING {
        let refused = Layer::new(family, wide, 3, 5).unwrap_err().to_string();
        assert!(refused.contains("no exact NVFP4 form"), "{refused}");
    }
    let refused = |family: &'static dyn Family, shape: LayerShape| {
        let refused = plan::kernels(family, &shape, 16, &facts(family)).unwrap_err().to_string();
        assert!(refused.contains("more powers of two than f16 holds"), "{refused}");
        let products = [shape.gate_up(), shape.down()];
        assert!(products.iter().any(|product| family.expert_configs(product, 16, &facts(family)).is_empty()));
    };
    for family in NATIVE {
        refused(family, LayerShape { activation: Activation::F16, ..wide });
        refused(family, LayerShape { intermediate: Intermediate::NvFp4, ..wide });
    }
    refused(&Sm90, wide.in_precision(Precision::Fp8));
}

/// The vector of an expert's own gate.
fn gate_vector(hidden: u32) -> Vec<f32> {
    (0..hidden).map(|at| (at % 9) as f32 / 64.0 - 0.06).collect()
}

#[test]
fn an_expert_of_everyone_needs_neither_ids_nor_weights() {
    let plain = LayerShape { experts: 1, top: 1, biased: true, output: Output::F32, ..SHAPE };
    let shapes = [plain, LayerShape { gated: true, ..plain }];
    for ((tokens, family), shape) in
        [3, 40, 17, 40].into_iter().zip(FAMILIES).flat_map(|case| shapes.map(|s| (case, s)))
    {
        let ids = vec![0; tokens];
        let mut trial = Trial::new(family, shape, &ids, &vec![1.0; tokens], true);
        trial.call.choice = Choice::Everyone;
        let weight = |x: &[f32]| {
            let sum: f64 = x.iter().zip(gate_vector(shape.hidden)).map(|(&x, v)| f64::from(x) * f64::from(v)).sum();
            if shape.gated { (1.0 / (1.0 + (-sum).exp())) as f32 } else { 1.0 }
        };
        let weights: Vec<f32> = trial.x.chunks(shape.hidden as usize).map(weight).collect();
        let kernels = chosen(family, &shape, tokens as u32);
        trial.check("of everyone", &routed(&shape, &ids, &weights), &trial.run(&kernels, Schedule::Random(4)));
    }
}

#[test]
fn from_logits_the_routing_of_few_tokens_and_of_many_is_the_same() {
    let (experts, top, score) = (SHAPE.experts, SHAPE.top, Score::Softmax);
    let spec = RouteSpec { experts, top, score, renormalised: true, corrected: false, grouped: None };
    for (tokens, family) in [5, 40].into_iter().flat_map(|tokens| FAMILIES.map(|family| (tokens, family))) {
        let ids: Vec<i32> = (0..tokens).flat_map(|t: i32| [t % 6, (t + 1 + t % 5) % 6]).collect();
        let mut trial = Trial::new(family, SHAPE, &ids, &weights(ids.len()), false);
        let mut logits = vec![-2f32; tokens as usize * experts as usize];
        for (entry, &id) in ids.iter().enumerate() {
            logits[entry / 2 * experts as usize + id as usize] = if entry % 2 == 0 { 1.0 } else { 0.5 };
        }
        let at = trial.gpu.upload("logits", cast_slice(&logits));
        trial.gpu.await_predecessor(at);
        trial.call.choice = Choice::Logits { logits: at.address, spec, correction: 0, scale: 2.0 };
        let share = (1.0 / (1.0 + (-0.5f64).exp())) as f32;
        let routed: Vec<Vec<(u32, f32)>> =
            ids.chunks(2).map(|ids| vec![(ids[0] as u32, 2.0 * share), (ids[1] as u32, 2.0 * (1.0 - share))]).collect();
        let kernels = chosen(family, &SHAPE, tokens as u32);
        trial.check("from logits", &routed, &trial.run(&kernels, Schedule::Random(3)));
    }
}

/// Batches with a token in them: alone; behind others, to the same experts and to others; and before so many that tiles
/// are as large as they get. The token's place, and all tokens' experts.
fn companies(experts: i32) -> [(usize, Vec<i32>); 4] {
    let other = |t: i32| [t % experts, (t + 1) % experts];
    let with = |before: i32, behind: i32| (0..before).flat_map(other).chain([1, 0]).chain((0..behind).flat_map(other));
    let of_one_expert = (0..30).flat_map(|_| [1, -1]).chain([1, 0]);
    [(0, vec![1, 0]), (5, with(5, 3).collect()), (30, of_one_expert.collect()), (2, with(2, 97).collect())]
}

/// The bits of a token in some company, computed by some kernels.
fn bits(shape: &LayerShape, kernels: &LayerKernels, (place, ids): &(usize, Vec<i32>)) -> Vec<u32> {
    let (place, hidden) = (*place, shape.hidden as usize);
    let mut weights = weights(ids.len());
    weights[2 * place..2 * place + 2].copy_from_slice(&[0.75, 0.375]);
    let mut trial = Trial::new(kernels.family, *shape, ids, &weights, false);
    trial.put(place);
    let found = trial.run(kernels, Schedule::Random(5));
    found[place * hidden..][..hidden].iter().map(|x| x.to_bits()).collect()
}

#[test]
fn in_a_layer_that_is_batch_invariant_a_token_has_the_same_bits_in_every_company() {
    // Several stages of k in either product, of which the last is not whole.
    let shape = LayerShape { experts: 2, hidden: 208, inner: 144, output: Output::F32, invariant: true, ..SHAPE };
    let single = LayerShape { activation: Activation::F32, on_input: true, biased: true, ..shape };
    for family in FAMILIES {
        for shape in [shape, single] {
            let chosen = |company: (usize, Vec<i32>)| {
                bits(&shape, &chosen(family, &shape, company.1.len() as u32 / 2), &company)
            };
            let all: Vec<_> = companies(2).into_par_iter().map(chosen).collect();
            assert!(all.iter().all(|bits| *bits == all[0]), "{family:?}, {shape:?}");
        }
        if family.name() == "sm100" {
            continue; // Nobody ever shares k there.
        }
        // Else tiles that share k and tiles that do not may both be chosen, and that would show.
        let loose = LayerShape { invariant: false, ..shape };
        let of_kernels = |shares: bool| {
            let shares = |product: ProductShape| {
                let configs = family.expert_configs(&product, 8, &facts(family)).into_iter();
                // Stages of which k has several.
                let kernels = configs.filter(|config| config.depth < 256);
                let kernels = kernels.map(|config| family.expert_kernel(&product, &config, &facts(family)).unwrap());
                kernels.into_iter().find(|kernel| kernel.shares_k() == shares).expect("kernels of both kinds")
            };
            let (gate_up, down) = (shares(loose.gate_up()), shares(loose.down()));
            let kernels = LayerKernels { family, gate_up, down, direct: 0 };
            bits(&loose, &kernels, &companies(2)[0])
        };
        assert_ne!(of_kernels(true), of_kernels(false), "{family:?}");
    }
}

#[test]
fn nobody_shares_k_in_layers_that_are_batch_invariant_however_many_tokens_there_are() {
    let model = LayerShape { experts: 128, top: 8, hidden: 2048, inner: 768, invariant: true, ..SHAPE };
    let gpt_oss = LayerShape { top: 4, hidden: 2880, inner: 2880, gate: Gate::GPT_OSS, biased: true, ..model };
    let few = LayerShape { experts: 8, top: 2, gate: Gate::Relu2, intermediate: Intermediate::F32, ..model };
    let single = LayerShape { activation: Activation::F32, output: Output::F32, ..model };
    for (shape, family) in [model, gpt_oss, few, single].into_iter().flat_map(|shape| FAMILIES.map(|f| (shape, f))) {
        for tokens in [1, 2, 5, 16, 33, 64, 100, 150, 256, 512, 1000, 2048, 4096, 16384] {
            let kernels = chosen(family, &shape, tokens);
            assert!(!kernels.gate_up.shares_k() && !kernels.down.shares_k(), "{tokens}: {kernels:?}");
        }
    }
}

/// What the products have that those of other problems have not: the layout is fetched, experts are found in it, and
/// sums are finished with numbers of the expert's and of the row's. The rest is broken in `mutations`.
#[test]
fn mutants_of_what_is_peculiar_to_experts_are_caught() {
    // So few that bisection looks beyond the last.
    let shape = LayerShape { experts: 5, on_input: true, biased: true, output: Output::F32, ..SHAPE };
    FAMILIES.into_iter().for_each(|family| mutants_are_caught(family, shape, &[1, 2]));
}

/// With tokens that are rounded, the lifts of experts and what rows were divided by are among that.
#[test]
fn mutants_of_what_is_peculiar_to_experts_in_fp8_are_caught() {
    let shape = LayerShape { experts: 5, on_input: true, biased: true, output: Output::F32, ..SHAPE };
    mutants_are_caught(&Sm90, shape.in_precision(Precision::Fp8), &[2, 4]);
}

/// And where weights are looked up, the table and what is picked from it.
#[test]
fn mutants_of_weights_that_are_looked_up_are_caught() {
    let mx = mx_kinds(LayerShape { experts: 5, output: Output::F32, ..SHAPE })[0].1.in_precision(Precision::Fp8);
    mutants_are_caught(&Sm90, mx, &[2]);
}

/// Breaks the launches of gate and up, and of down.
fn mutants_are_caught(family: &'static dyn Family, shape: LayerShape, products: &[usize]) {
    let ids = &routings()[3].1;
    let weights = weights(ids.len());
    let trial = Trial::new(family, shape, ids, &weights, false);
    let kernels = with_tile(family, &shape, 8);
    let right = trial.run(&kernels, Schedule::Earliest);
    let peculiar = |mutant: &Mutant| {
        let phases = ["/foresee:", "/finish:", "/finish/stage:", "/finish/store:"];
        let finishes = phases.iter().any(|phase| mutant.name.contains(phase));
        let finishes = finishes && mutant.name.contains("ld.global");
        finishes
            || (shape.codes == Codes::Nibbles && mutant.name.contains("/dequantise:"))
            || (mutant.name.contains("/prepare:")
                && !["mbarrier", "tcgen05"].iter().any(|other| mutant.name.contains(other)))
    };
    let launches = trial.launches(&kernels);
    for &at in products {
        let broken: Vec<Mutant> = mutants(&launches[at].0).into_iter().filter(peculiar).collect();
        // The fetch of sm100's layout has few instructions that the nursery knows how to break.
        let least = if family.name() == "sm100" { 2 } else { 9 };
        assert!(broken.len() >= least, "{}: {}", family.name(), broken.len());
        // Neighbours have most in common.
        let share = broken.len().div_ceil(rayon::current_num_threads());
        let missed = broken.par_chunks(share).flat_map_iter(|broken| trial.missed((&launches, at), broken, &right));
        let missed: Vec<String> = missed.collect();
        assert!(missed.is_empty(), "{}", missed.join("\n"));
    }
}

/// What launches leave that run one call behind another in the same memory.
pub(crate) fn run_again(
    trial: &Trial,
    launches: &[(Kernel, Invocation)],
    calls: usize,
    schedule: Schedule,
) -> Vec<f32> {
    let mut gpu = trial.gpu.clone();
    let sequence: Vec<_> = launches.iter().map(|(kernel, launch)| (kernel, launch)).collect();
    gpu.run_sequence(&sequence.repeat(calls), schedule).unwrap_or_else(|fault| panic!("{fault}"));
    trial.result(&gpu).unwrap_or_else(|first| panic!("byte {first} was not written"))
}

/// Both launches of a call of few tokens, on any number of blocks.
pub(crate) fn direct_launches(trial: &Trial, kernels: &LayerKernels, blocks: Option<u32>) -> Vec<(Kernel, Invocation)> {
    let mut launches = trial.launches(&LayerKernels { direct: u32::MAX, ..kernels.clone() });
    for (_, launch) in launches.iter_mut().filter(|(kernel, _)| kernel.name == "nvfp4_dual_gemm") {
        launch.grid[0] = blocks.map_or(launch.grid[0], |blocks| blocks.min(launch.grid[0]));
    }
    launches
}

/// Ids of so many tokens: experts of their own, the same ones, nobody's for some or for all.
pub(crate) fn few_routings(tokens: i32) -> [Vec<i32>; 4] {
    let own = (0..tokens).flat_map(|t| [t * 5 % 6, (t * 5 + 1 + t % 5) % 6]).collect();
    let same = (0..tokens).flat_map(|_| [4, 4]).collect();
    let some = (0..tokens).flat_map(|t| if t % 2 == 0 { [7, -1] } else { [-1, t % 6] }).collect();
    [own, same, some, vec![6; 2 * tokens as usize]]
}

#[test]
fn few_tokens_take_two_launches_with_the_bits_of_four() {
    // Several tiles of columns, of which the last is not whole.
    let plain = LayerShape { hidden: 208, ..SHAPE };
    // The kinds with f16 tokens have rows of 16 bits.
    let halves = LayerShape { activation: Activation::F16, output: Output::F16, ..plain };
    let kinds = kinds(plain).into_iter().chain(mx_kinds(plain)).chain([("f16 tokens", halves)]);
    let cases = kinds.flat_map(|kind| [1, 2, 5, 16].map(|tokens| (kind, tokens))).enumerate();
    cases.collect::<Vec<_>>().into_par_iter().for_each(|(number, ((what, shape), tokens))| {
        let between = shape.intermediate != Intermediate::Tokens || shape.activation == Activation::F32;
        let has = between || shape.partial != Output::F32 || shape.on_input || shape.scaled != [false; 2];
        for (how, ids) in few_routings(tokens).into_iter().enumerate() {
            let trial = Trial::new(&Sm90, shape, &ids, &weights(ids.len()), (number + how) % 2 == 0);
            let products = [shape.gate_up(), shape.down()].map(|product| {
                let configs = Sm90.expert_configs(&product, [8, 16][how % 2], &facts(&Sm90));
                configs[(5 * number + 3 * how) % configs.len()]
            });
            let kernels = LayerKernels::new(&Sm90, &shape, &of_both(&products[0], &products[1]), &facts(&Sm90));
            let kernels = kernels.unwrap();
            let launches = direct_launches(&trial, &kernels, [None, Some(1), Some(4)][(number + how) % 3]);
            assert_eq!(launches.len() == 2, !has, "{what}");
            if has {
                continue;
            }
            let expected = trial.run(&LayerKernels { direct: 0, ..kernels }, Schedule::Earliest);
            let schedule = [Schedule::Latest, Schedule::Random(2), Schedule::Earliest][number % 3];
            for calls in [1, 2] {
                let found = run_again(&trial, &launches, calls, schedule);
                assert!(
                    found.iter().zip(&expected).all(|(one, other)| one.to_bits() == other.to_bits()),
                    "{what}, {tokens} tokens, routing {how}, {calls} calls"
                );
            }
        }
    });
}

/// Holds a call of few tokens to the bits that it has in four launches, once and twice in the same memory.
fn assert_same_in_two_launches(trial: &Trial, what: &str) {
    let tokens = trial.call.tokens;
    let kernels = chosen(&Sm90, &trial.layer.shape, tokens);
    let four = trial.launches(&LayerKernels { direct: 0, ..kernels.clone() });
    let expected = run_again(trial, &four, 1, Schedule::Random(6));
    for (calls, schedule) in [(1, Schedule::Latest), (2, Schedule::Earliest), (2, Schedule::Random(7))] {
        let launches = direct_launches(trial, &kernels, None);
        assert_eq!(launches.len(), 2 + usize::from(trial.layer.shape.gated), "{what}");
        let found = run_again(trial, &launches, calls, schedule);
        let same = found.iter().zip(&expected).all(|(one, other)| one.to_bits() == other.to_bits());
        assert!(same, "{what}, {calls} calls, {schedule}");
    }
}

#[test]
fn few_tokens_in_two_launches_are_routed_as_in_four() {
    let (experts, top) = (40, 3);
    let shape = LayerShape { experts, top, hidden: 208, output: Output::F32, ..SHAPE };
    let plain = RouteSpec { experts, top, score: Score::Softmax, renormalised: true, corrected: false, grouped: None };
    let grouped = Some(Grouped { groups: 8, kept: 3 });
    let specs = [
        plain,
        RouteSpec { renormalised: false, ..plain },
        RouteSpec { score: Score::Sigmoid, corrected: true, grouped, ..plain },
        RouteSpec { score: Score::SqrtSoftplus, corrected: true, ..plain },
    ];
    for (tokens, spec) in [1, 3, 10].into_iter().flat_map(|tokens| specs.map(|spec| (tokens, spec))) {
        let count = (tokens * top) as usize;
        let mut trial = Trial::new(&Sm90, shape, &vec![0; count], &weights(count), tokens == 3);
        let logits: Vec<f32> =
            (0..tokens * experts).map(|at| (at * 37 % 64) as f32 / 8.0 - 4.0 + at as f32 / 1024.0).collect();
        let correction: Vec<f32> = (0..experts).map(|at| (at % 7) as f32 / 16.0).collect();
        let at = trial.gpu.upload("logits", cast_slice(&logits));
        trial.gpu.await_predecessor(at);
        let correction = trial.gpu.upload("correction", cast_slice(&correction)).address;
        trial.call.choice = Choice::Logits { logits: at.address, spec, correction, scale: 2.5 };
        assert_same_in_two_launches(&trial, &format!("{tokens} tokens, {spec:?}"));
    }
}

#[test]
fn few_tokens_take_two_launches_with_wide_ids_and_where_one_expert_computes_all() {
    for (tokens, ids) in [1, 4].into_iter().flat_map(|tokens| few_routings(tokens).map(|ids| (tokens, ids))) {
        let mut trial = Trial::new(&Sm90, SHAPE, &ids, &weights(ids.len()), false);
        let Choice::Given { weights, .. } = trial.call.choice else { unreachable!("ids are given") };
        // The low word alone would be somebody's.
        let wide: Vec<i64> = ids.iter().map(|&id| if id == -1 { 3 << 32 } else { id.into() }).collect();
        let at = trial.gpu.upload("wide ids", cast_slice(&wide));
        trial.gpu.await_predecessor(at);
        trial.call.choice = Choice::Given { ids: at.address, wide: true, weights };
        assert_same_in_two_launches(&trial, &format!("{tokens} tokens"));
    }
    for gated in [false, true] {
        let shape = LayerShape { experts: 1, top: 1, biased: true, output: Output::F32, gated, ..SHAPE };
        let mut trial = Trial::new(&Sm90, shape, &[0], &[1.0], true);
        trial.call.choice = Choice::Everyone;
        assert_same_in_two_launches(&trial, "of everyone");
    }
}

/// Who counts and who is counted: the list of entries, the fences around the counters, and that these are cleared.
#[test]
fn mutants_of_what_is_peculiar_to_two_launches_are_caught() {
    let shape = LayerShape { experts: 5, hidden: 208, output: Output::F32, ..SHAPE };
    let ids = [3, 1, -1, 5, 4, 3, 2, 5];
    let trial = Trial::new(&Sm90, shape, &ids, &weights(ids.len()), true);
    let kernels = with_tile(&Sm90, &shape, 8);
    let launches = direct_launches(&trial, &kernels, None);
    let right = run_again(&trial, &launches, 1, Schedule::Earliest);
    let peculiar = |mutant: &Mutant| {
        let phases = ["/prepare:", "/prepare/list:", "/consume/sum:", "/consume/sum/"];
        let own = phases.iter().any(|phase| mutant.name.contains(phase));
        own && !mutant.name.contains("mbarrier")
    };
    for at in [0, 1] {
        let broken: Vec<Mutant> = mutants(&launches[at].0).into_iter().filter(peculiar).collect();
        assert!(broken.len() >= 9, "{}", broken.len());
        let share = broken.len().div_ceil(rayon::current_num_threads());
        let missed = broken.par_chunks(share).flat_map_iter(|broken| trial.missed((&launches, at), broken, &right));
        // A block with tiles has waited for the first product before it read their tokens.
        let harmless = |name: &String| name.starts_with("grid dependency ignored") && name.contains("/consume/sum:");
        let missed: Vec<String> = missed.filter(|name| !harmless(name)).collect();
        assert!(missed.is_empty(), "{}", missed.join("\n"));
    }
    // One whose tiles are nobody's reads no tokens, and has nothing else that waits until counters are cleared.
    let nobodys = Trial::new(&Sm90, shape, &[-1, 5], &weights(2), true);
    let launches = direct_launches(&nobodys, &kernels, None);
    let right = run_again(&nobodys, &launches, 1, Schedule::Earliest);
    let waits =
        |mutant: &Mutant| mutant.name.starts_with("grid dependency ignored") && mutant.name.contains("/consume/sum:");
    let waits: Vec<Mutant> = mutants(&launches[1].0).into_iter().filter(waits).collect();
    assert!(!waits.is_empty() && nobodys.missed((&launches, 1), &waits, &right).is_empty());
}
