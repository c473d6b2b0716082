//! The kernels of a layer of experts in the simulator: routing, sorting and combining, against plain Rust, under
//! schedules that are as awkward as the machine's rules allow; and broken in every way that the simulator's nursery
//! knows.

use format::e4m3;
use gpu::KernelSpec;
use gpu::expand::Float;
use gpu::experts::between::{BetweenSpec, Form};
use gpu::experts::combine::CombineSpec;
use gpu::experts::fetch::FetchSpec;
use gpu::experts::place::{self, AWAY, PlaceSpec};
use gpu::experts::route::{self, Grouped, RouteSpec, Score};
use gpu::experts::send::SendSpec;
use gpu::experts::share::{self, ShareSpec};
use gpu::experts::sort::{Ids, Rows, SortSpec};
use gpu::experts::{For, NOBODY, Portable};
use gpu::round::RoundSpec;
use half::{bf16, f16};
use op::{Output, precision};
use ptx::Kernel;
use rayon::prelude::*;
use sim::mutate::{Mutant, mutants};
use sim::{Arg, Buffer, Finding, Gpu, Invocation, Limits, Rules, Schedule, explore, explore_mutants};

/// Instructions after which a run is given up: many times what the kernels take.
const MOST_INSTRUCTIONS: u64 = 2_000_000;

fn device() -> Gpu {
    Gpu::new(Limits { instructions: MOST_INSTRUCTIONS, ..Limits::h200() }).with_rules(Rules::Letter)
}

/// Numbers that the grid before has written.
fn awaited<T: bytemuck::Pod>(gpu: &mut Gpu, name: &str, values: &[T]) -> Buffer {
    let buffer = gpu.upload(name, bytemuck::cast_slice(values));
    gpu.await_predecessor(buffer);
    buffer
}

fn read<T: bytemuck::Pod>(gpu: &Gpu, buffer: Buffer) -> Vec<T> {
    bytemuck::pod_collect_to_vec(gpu.download(buffer).unwrap_or_else(|first| panic!("byte {first} was not written")))
}

/// Looks at what a kernel has left.
type Verify = dyn Fn(&Gpu) -> Result<(), String> + Sync;

/// A kernel, a device with its operands, and what it should leave there.
struct Trial {
    kernel: Kernel,
    gpu: Gpu,
    launch: Invocation,
    /// What it writes first.
    result: Buffer,
    verify: Box<Verify>,
}

/// A kernel for Hopper, on which launches overlap.
fn built(spec: impl Portable) -> Result<Kernel, op::Error> {
    KernelSpec::from(For { spec, target: ptx::Target::Sm90a }).build()
}

impl Trial {
    fn examine(&self, kernel: &Kernel, schedules: &[Schedule]) -> Result<(), Finding> {
        explore(kernel, schedules, || (self.gpu.clone(), self.launch.clone()), &self.verify).map(drop)
    }

    #[track_caller]
    fn passes(&self, what: &str) {
        if let Err(finding) = self.examine(&self.kernel, &Schedule::several(4)) {
            panic!("{what}: {finding}");
        }
    }
}

/// The bytes of a buffer, those that were not written as `None`, against what they should be.
fn expect<T: bytemuck::Pod + PartialEq + std::fmt::Debug>(
    gpu: &Gpu,
    buffer: Buffer,
    what: &str,
    expected: &[T],
) -> Result<(), String> {
    let bytes = gpu.download(buffer).map_err(|first| format!("byte {first} of {what} was not written"))?;
    let found: Vec<T> = bytemuck::pod_collect_to_vec(bytes);
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        Some(at) => Err(format!("{what}[{at}] is {:?}, should be {:?}", found[at], expected[at])),
        None => Ok(()),
    }
}

/// Numbers without a pattern, between −4 and 4.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| rng.f32() * 8.0 - 4.0).collect()
}

// Routing.

/// The experts of a token in order, and their weights, in double precision.
fn routed(spec: RouteSpec, logits: &[f32], correction: &[f32], scale: f64) -> Vec<(u32, f64)> {
    let experts = spec.experts as usize;
    let alone = |x: f32| match spec.score {
        Score::SqrtSoftplus => (f64::from(x).max(0.0) + (-f64::from(x).abs()).exp().ln_1p()).sqrt(),
        _ => 1.0 / (1.0 + (-f64::from(x)).exp()),
    };
    let by_score = spec.score != Score::Softmax && (spec.renormalised || spec.corrected || spec.grouped.is_some());
    let mut choice: Vec<f64> = logits
        .iter()
        .enumerate()
        .map(|(e, &x)| match (by_score, spec.corrected) {
            (false, _) => f64::from(x),
            (true, corrected) => alone(x) + if corrected { f64::from(correction[e]) } else { 0.0 },
        })
        .map(|x| if x.is_nan() { f64::NEG_INFINITY } else { x + 0.0 })
        .collect();
    // Stable, so that of equal ones the lower index is first.
    let descending = |values: &[f64]| {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
        order
    };
    if let Some(Grouped { groups, kept }) = spec.grouped {
        let size = experts / groups as usize;
        let best_two = |group: &[f64]| descending(group)[..2].iter().map(|&e| group[e]).sum();
        let scores: Vec<f64> = choice.chunks(size).map(best_two).collect();
        for &group in &descending(&scores)[kept as usize..] {
            choice[group * size..(group + 1) * size].fill(f64::NEG_INFINITY);
        }
    }
    let chosen = &descending(&choice)[..spec.top as usize];
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let score = |e: usize| match spec.score {
        Score::Sigmoid | Score::SqrtSoftplus => alone(logits[e]),
        Score::Softmax => f64::from(logits[e] - most).exp(),
    };
    let sum: f64 = match (spec.score, spec.renormalised) {
        (Score::Sigmoid | Score::SqrtSoftplus, false) => 1.0,
        (Score::Softmax, false) => (0..experts).map(score).sum(),
        (_, true) => chosen.iter().map(|&e| score(e)).sum(),
    };
    chosen.iter().map(|&e| (e as u32, score(e) / sum * scale)).collect()
}

const ROUTINGS: [RouteSpec; 7] = [
    RouteSpec { experts: 128, top: 8, score: Score::Softmax, renormalised: true, corrected: false, grouped: None },
    RouteSpec { experts: 60, top: 4, score: Score::Softmax, renormalised: false, corrected: false, grouped: None },
    RouteSpec { experts: 5, top: 5, score: Score::Softmax, renormalised: true, corrected: false, grouped: None },
    RouteSpec { experts: 16, top: 1, score: Score::Sigmoid, renormalised: false, corrected: false, grouped: None },
    RouteSpec {
        experts: 256,
        top: 8,
        score: Score::Sigmoid,
        renormalised: true,
        corrected: true,
        grouped: Some(Grouped { groups: 8, kept: 4 }),
    },
    RouteSpec { experts: 160, top: 22, score: Score::Sigmoid, renormalised: true, corrected: true, grouped: None },
    RouteSpec { experts: 256, top: 6, score: Score::SqrtSoftplus, renormalised: true, corrected: true, grouped: None },
];

/// A routing of these logits. Choices by scores are made in single precision here and in double there, so logits are
/// whole numbers or far apart.
fn routing(spec: RouteSpec, logits: Vec<f32>) -> Trial {
    let experts = spec.experts as usize;
    let tokens = logits.len() / experts;
    let correction: Vec<f32> = (0..experts).map(|e| ((e * 37) % 64) as f32 / 64.0).collect();
    let scale = 2.5;
    let mut gpu = device();
    let at = awaited(&mut gpu, "logits", &logits);
    let corrections = gpu.upload("correction", bytemuck::cast_slice(&correction));
    let entries = tokens * spec.top as usize;
    let (ids, weights) = (gpu.alloc("ids", 4 * entries), gpu.alloc("weights", 4 * entries));
    let mut args = vec![Arg::from(at)];
    args.extend(spec.corrected.then_some(Arg::from(corrections)));
    args.extend([Arg::F32(scale as f32), ids.into(), weights.into(), Arg::U32(tokens as u32)]);
    let expected: Vec<(u32, f64)> =
        logits.chunks(experts).flat_map(|row| routed(spec, row, &correction, scale)).collect();
    let verify = move |gpu: &Gpu| {
        let chosen: Vec<u32> = expected.iter().map(|(id, _)| *id).collect();
        expect(gpu, ids, "ids", &chosen)?;
        for (at, (found, (_, wanted))) in gpu.floats(weights).into_iter().zip(&expected).enumerate() {
            if found.is_nan() || (f64::from(found) - wanted).abs() > 16.0 * 2f64.powi(-24) * wanted.abs() + 1e-37 {
                return Err(format!("weight {at} is {found}, should be {wanted}"));
            }
        }
        Ok(())
    };
    let launch = Invocation { grid: [route::blocks(tokens as u32), 1, 1], args };
    Trial { kernel: built(spec).unwrap(), gpu, launch, result: ids, verify: Box::new(verify) }
}

#[test]
fn experts_are_chosen_as_models_choose_them() {
    ROUTINGS.into_par_iter().for_each(|spec| {
        routing(spec, noise(7 * spec.experts as usize, 3)).passes(&format!("{spec:?}"));
    });
}

#[test]
fn a_root_of_softplus_keeps_its_digits_far_from_zero() {
    let spec = RouteSpec {
        experts: 4,
        top: 4,
        score: Score::SqrtSoftplus,
        renormalised: true,
        corrected: false,
        grouped: None,
    };
    let logits = [[170.0, 20.0, 0.01, -0.01], [-1.0, -10.0, -30.0, -80.0], [-60.0, -90.0, -120.0, -160.0]];
    routing(spec, logits.concat()).passes("far from zero");
}

#[test]
fn of_equal_logits_the_lower_index_is_chosen() {
    for spec in ROUTINGS {
        let experts = spec.experts as usize;
        let mut logits = vec![1.0; experts];
        logits.extend((0..experts).map(|e| [0.0, -0.0, 2.0][e % 3]));
        logits.extend((0..experts).map(|e| if e % 2 == 0 { f32::NEG_INFINITY } else { -3.0 }));
        routing(spec, logits).passes(&format!("{spec:?}"));
    }
}

#[test]
fn logits_that_are_no_numbers_still_lead_to_different_experts_and_spoil_their_own_token_alone() {
    for spec in ROUTINGS {
        let experts = spec.experts as usize;
        let mut logits = noise(3 * experts, 5);
        logits[experts..2 * experts].fill(f32::NAN);
        logits[experts + 1] = f32::INFINITY;
        let trial = routing(spec, logits);
        let mut gpu = trial.gpu.clone();
        gpu.run(&trial.kernel, &trial.launch, Schedule::Random(9)).unwrap();
        let ids: Vec<u32> = read(&gpu, trial.result);
        let mut token = ids[spec.top as usize..2 * spec.top as usize].to_vec();
        token.sort_unstable();
        token.dedup();
        assert!(token.len() == spec.top as usize && token.iter().all(|&id| id < spec.experts), "{spec:?}: {ids:?}");
        if let Err(difference) = (trial.verify)(&gpu) {
            let mut numbers = difference.split(|c: char| !c.is_ascii_digit());
            let place: usize = numbers.find_map(|word| word.parse().ok()).unwrap();
            assert_eq!(place / spec.top as usize, 1, "{spec:?}: {difference}");
        }
    }
}

// Sorting.

const SCALED: [Rows; 3] = [Rows::Scaled(Float::F16), Rows::Scaled(Float::BF16), Rows::Scaled(Float::F32)];

/// What a sort is given, and how.
#[derive(Clone)]
struct Given {
    spec: SortSpec,
    /// Of all tokens; or logits.
    ids: Vec<i64>,
    columns: usize,
    /// Tokens of a block.
    run: u32,
    tile: u32,
}

impl Given {
    fn new(experts: u32, top: u32, ids: Vec<i64>) -> Self {
        let spec = SortSpec {
            experts,
            top,
            ids: Ids::Narrow,
            rows: Rows::Copied,
            factors: false,
            owners: false,
            order: false,
            divided: false,
        };
        Given { spec, ids, columns: 24, run: 2, tile: 8 }
    }

    fn tokens(&self) -> usize {
        self.ids.len() / self.spec.top as usize
    }
}

/// Entries in the order of their experts, nobody's left out.
fn sorted(experts: u32, ids: &[i64]) -> Vec<usize> {
    (0..i64::from(experts)).flat_map(|e| (0..ids.len()).filter(move |&entry| ids[entry] == e)).collect()
}

fn sorting(given: &Given) -> Trial {
    let Given { spec, ids, columns, run, tile } = given.clone();
    let (top, tokens) = (spec.top as usize, given.tokens());
    let mut gpu = device();
    let weights = noise(ids.len(), 7);
    let mut args = Vec::new();
    match spec.ids {
        Ids::Narrow => args.push(awaited(&mut gpu, "ids", &ids.iter().map(|&id| id as i32).collect::<Vec<_>>()).into()),
        Ids::Wide => args.push(awaited(&mut gpu, "ids", &ids).into()),
        Ids::Everyone => {}
        Ids::Routed(_) => {
            // Logits that lead to those ids, in that order.
            let mut logits = vec![0f32; tokens * spec.experts as usize];
            for (entry, &id) in ids.iter().enumerate() {
                logits[entry / top * spec.experts as usize + id as usize] = (1 + top - entry % top) as f32;
            }
            args.extend([awaited(&mut gpu, "logits", &logits).into(), Arg::F32(1.0)]);
        }
    }
    let routed = matches!(spec.ids, Ids::Routed(_));
    let chosen = if routed { gpu.alloc("weights", 4 * ids.len()) } else { awaited(&mut gpu, "weights", &weights) };
    args.extend((routed || spec.factors).then_some(Arg::from(chosen)));
    let order = sorted(spec.experts, &ids);
    let factors = gpu.alloc("factors", 4 * order.len().max(1));
    args.extend(spec.factors.then_some(Arg::from(factors)));
    let mut values = noise(tokens * columns, 11);
    let halves: Vec<u16> = values.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
    let bfloats: Vec<u16> = values.iter().map(|&x| bf16::from_f32(x).to_bits()).collect();
    let scales = noise(spec.experts as usize * columns, 13);
    let rows_bytes = 2 * ids.len() * columns;
    let planes = if spec.rows == Rows::Copied { 1 } else { 3 };
    let scales_at = gpu.upload("scales", bytemuck::cast_slice(&scales));
    args.extend(matches!(spec.rows, Rows::Scaled(_)).then_some(Arg::from(scales_at)));
    let tokens_at = match spec.rows {
        Rows::Copied => awaited(&mut gpu, "tokens", &halves),
        Rows::Scaled(Float::F16) => {
            values.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32());
            awaited(&mut gpu, "tokens", &halves)
        }
        Rows::Scaled(Float::BF16) => {
            values.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
            awaited(&mut gpu, "tokens", &bfloats)
        }
        Rows::Floats | Rows::Scaled(Float::F32) => awaited(&mut gpu, "tokens", &values),
    };
    let rows = gpu.alloc("rows", planes * rows_bytes);
    args.extend([tokens_at, rows].map(Arg::from));
    args.extend((planes > 1).then_some(Arg::U64(rows_bytes as u64)));
    let experts = spec.experts as usize;
    let (layout, inverse) = (gpu.alloc("layout", 8 * (experts + 1)), gpu.alloc("inverse", 4 * ids.len()));
    args.extend([layout.into(), inverse.into()]);
    let owners = gpu.alloc("owners", 4 * order.len().max(1));
    args.extend(spec.owners.then_some(Arg::from(owners)));
    let adapters: Vec<u32> = (0..tokens as u32).map(|token| 100 + 3 * token).collect();
    let [order_at, chosen_at] = ["order", "chosen"].map(|name| gpu.alloc(name, 4 * order.len().max(1)));
    if spec.order {
        let of_tokens = awaited(&mut gpu, "adapters", &adapters);
        args.extend([of_tokens, order_at, chosen_at].map(Arg::from));
    }
    let divisors = noise(tokens, 17);
    let row_divisors = gpu.alloc("row divisors", 4 * order.len().max(1));
    if spec.divided {
        args.extend([awaited(&mut gpu, "divisors", &divisors), row_divisors].map(Arg::from));
    }
    args.extend([tokens as u32, run, columns as u32 / 8, tile].map(Arg::U32));
    let launch = Invocation { grid: [(tokens as u32).div_ceil(run), 1, 1], args };
    let verify = move |gpu: &Gpu| {
        let (mut offsets, mut tiles) = (vec![0u32], vec![0u32]);
        for e in 0..experts {
            let count = ids.iter().filter(|&&id| id == e as i64).count() as u32;
            offsets.push(offsets[e] + count);
            tiles.push(tiles[e] + count.div_ceil(tile));
        }
        expect(gpu, layout, "layout", &[offsets, tiles].concat())?;
        let mut places = vec![NOBODY; ids.len()];
        order.iter().enumerate().for_each(|(row, &entry)| places[entry] = row as u32);
        expect(gpu, inverse, "inverse", &places)?;
        if spec.factors && !order.is_empty() {
            let expected: Vec<f32> = order.iter().map(|&entry| weights[entry]).collect();
            expect(gpu, factors, "factors", &expected)?;
        }
        if spec.owners && !order.is_empty() {
            expect(gpu, owners, "owners", &order.iter().map(|&entry| ids[entry] as u32).collect::<Vec<_>>())?;
        }
        if spec.order && !order.is_empty() {
            expect(gpu, order_at, "order", &order.iter().map(|&entry| entry as u32).collect::<Vec<_>>())?;
            let expected: Vec<u32> = order.iter().map(|&entry| adapters[entry / top]).collect();
            expect(gpu, chosen_at, "adapters of rows", &expected)?;
        }
        if spec.divided && !order.is_empty() {
            let expected: Vec<f32> = order.iter().map(|&entry| divisors[entry / top]).collect();
            expect(gpu, row_divisors, "row divisors", &expected)?;
        }
        // Rows of nobody's entries are left alone, so words are looked at one by one.
        let found = gpu.floats(rows);
        for (row, &entry) in order.iter().enumerate() {
            for column in (0..columns).step_by(2) {
                let at = (row * columns + column) / 2;
                let wanted = |further| (entry / top) * columns + column + further;
                let pair = |plane: usize| found[plane * rows_bytes / 4 + at].to_bits();
                let right = match spec.rows {
                    Rows::Copied => pair(0) == u32::from(halves[wanted(0)]) | u32::from(halves[wanted(1)]) << 16,
                    Rows::Floats | Rows::Scaled(_) => [0, 1].iter().all(|&odd| {
                        let part = |plane| f64::from(bf16::from_bits((pair(plane) >> (16 * odd)) as u16).to_f32());
                        let factor = match spec.rows {
                            Rows::Scaled(_) => scales[ids[entry] as usize * columns + column + odd],
                            _ => 1.0,
                        };
                        (0..3).map(part).sum::<f64>() == f64::from(values[wanted(odd)] * factor)
                    }),
                };
                if !right {
                    return Err(format!("row {row}, columns {column} and the next, are not entry {entry}'s"));
                }
            }
        }
        Ok(())
    };
    Trial { kernel: built(spec).unwrap(), gpu, launch, result: inverse, verify: Box::new(verify) }
}

/// Ids without a pattern, different ones for each token.
fn scattered(experts: u32, top: u32, tokens: usize, seed: u64) -> Vec<i64> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let token = |_| {
        let mut all: Vec<i64> = (0..i64::from(experts)).collect();
        rng.shuffle(&mut all);
        all[..top as usize].to_vec()
    };
    (0..tokens).flat_map(token).collect()
}

/// Everything that a routing may be: scattered, all to one expert, none at all, ids out of range, more experts than
/// blocks, more entries than a warp has lanes, a last block with fewer tokens.
fn routings() -> Vec<(&'static str, Given)> {
    let strange = [-1, 4, i64::from(i32::MIN), 0, 3, 3, 7, 1, 0, i64::from(i32::MAX), -5, 0];
    let mut wide = strange;
    (wide[2], wide[9]) = (1 << 32, i64::MIN + 2);
    let with = |given: Given, change: fn(&mut Given)| {
        let mut given = given;
        change(&mut given);
        given
    };
    vec![
        ("scattered", Given::new(16, 4, scattered(16, 4, 7, 1))),
        ("to one expert", Given::new(5, 1, vec![3; 9])),
        ("to nobody", Given::new(5, 2, vec![-1; 8])),
        ("out of range", Given::new(4, 2, strange.to_vec())),
        ("out of range in 64 bits", with(Given::new(4, 2, wide.to_vec()), |given| given.spec.ids = Ids::Wide)),
        ("more experts than blocks", Given::new(300, 8, scattered(300, 8, 3, 2))),
        ("several warps", with(Given::new(3, 2, scattered(3, 2, 70, 3)), |given| given.run = 45)),
        ("weights with the rows", with(Given::new(6, 1, scattered(6, 1, 9, 4)), |given| given.spec.factors = true)),
        ("one expert, and no ids", with(Given::new(1, 1, vec![0; 9]), |given| given.spec.ids = Ids::Everyone)),
        ("floats", with(Given::new(6, 2, scattered(6, 2, 5, 5)), |given| given.spec.rows = Rows::Floats)),
        ("divisors with the rows", with(Given::new(4, 2, strange.to_vec()), |given| given.spec.divided = true)),
        ("the order and adapters", with(Given::new(4, 2, strange.to_vec()), |given| given.spec.order = true)),
        ("owners of rows", with(Given::new(4, 2, strange.to_vec()), |given| given.spec.owners = true)),
        ("halves times scales", with(Given::new(4, 2, strange.to_vec()), |given| given.spec.rows = SCALED[0])),
        ("bfloats times scales", with(Given::new(6, 2, scattered(6, 2, 5, 5)), |given| given.spec.rows = SCALED[1])),
        ("floats times scales", with(Given::new(6, 2, scattered(6, 2, 5, 5)), |given| given.spec.rows = SCALED[2])),
        (
            "from logits",
            with(Given::new(40, 3, scattered(40, 3, 19, 6)), |given| {
                let (experts, top, score) = (40, 3, Score::Softmax);
                let (renormalised, corrected, grouped) = (true, false, None);
                let route = RouteSpec { experts, top, score, renormalised, corrected, grouped };
                given.spec.ids = Ids::Routed(route);
            }),
        ),
    ]
}

#[test]
fn tokens_are_brought_into_the_order_of_their_experts_whatever_the_routing() {
    routings().into_par_iter().for_each(|(what, given)| sorting(&given).passes(what));
}

// Between the products.

/// Rows of so many experts, some of whom have none, and more places for rows than there are.
fn between(form: Form, columns: usize, seed: u64) -> Trial {
    let counts = [3u32, 0, 4, 1];
    let owners: Vec<u32> = (0..).zip(counts).flat_map(|(expert, count)| vec![expert; count as usize]).collect();
    let (rows, places) = (owners.len(), owners.len() + 3);
    let offsets: Vec<u32> = (0..=counts.len()).map(|expert| counts[..expert].iter().sum()).collect();
    let scales = noise(counts.len() * columns, seed + 1);
    let globals = [0.01f32, 1.0, 0.37, 5e-4];
    let tables: Vec<f32> = globals.iter().flat_map(|&global| gpu::experts::between::table(global.into())).collect();
    let values = match form {
        Form::Quantised => awkward(rows * columns, &owners, &globals, seed),
        Form::Scaled(_) => noise(rows * columns, seed),
    };
    let mut gpu = device();
    let mut padded = values.clone();
    padded.resize(places * columns, f32::NAN);
    let source = match form {
        Form::Scaled(Float::F16) => {
            awaited(&mut gpu, "rows", &padded.iter().map(|&x| f16::from_f32(x).to_bits()).collect::<Vec<_>>())
        }
        Form::Scaled(Float::BF16) => {
            awaited(&mut gpu, "rows", &padded.iter().map(|&x| bf16::from_f32(x).to_bits()).collect::<Vec<_>>())
        }
        _ => awaited(&mut gpu, "rows", &padded),
    };
    let numbers: &[f32] = if form == Form::Quantised { &tables } else { &scales };
    let numbers = gpu.upload("numbers", bytemuck::cast_slice(numbers));
    let mut all_owners = owners.clone();
    all_owners.resize(places, NOBODY);
    let (owners_at, layout) = (awaited(&mut gpu, "owners", &all_owners), awaited(&mut gpu, "layout", &offsets));
    let plane = 2 * rows * columns;
    let out = gpu.alloc("out", if form == Form::Quantised { plane } else { 3 * plane });
    let spec = BetweenSpec { form, experts: counts.len() as u32 };
    let mut args: Vec<Arg> = [source, numbers, owners_at, layout, out].map(Arg::from).to_vec();
    args.extend((form != Form::Quantised).then_some(Arg::U64(plane as u64)));
    args.push(Arg::U32(columns as u32 / spec.unit()));
    let verify = move |gpu: &Gpu| {
        if form == Form::Quantised {
            return expect(gpu, out, "halves", &quantised(&values, columns, &owners, &globals));
        }
        let parts: Vec<u16> = match gpu.download(out) {
            Ok(bytes) => bytemuck::pod_collect_to_vec(bytes),
            Err(first) => return Err(format!("byte {first} was not written")),
        };
        for (at, &x) in values.iter().enumerate() {
            let x = match form {
                Form::Scaled(Float::F16) => f16::from_f32(x).to_f32(),
                Form::Scaled(Float::BF16) => bf16::from_f32(x).to_f32(),
                _ => x,
            };
            let wanted = x * scales[owners[at / columns] as usize * columns + at % columns];
            let part = |part: usize| f64::from(bf16::from_bits(parts[part * plane / 2 + at]).to_f32());
            let found: f64 = (0..3).map(part).sum();
            if found != f64::from(wanted) {
                return Err(format!("number {at} is {found}, should be {wanted}"));
            }
        }
        Ok(())
    };
    let launch = Invocation { grid: [spec.blocks(places as u32, columns as u32), 1, 1], args };
    Trial { kernel: built(spec).unwrap(), gpu, launch, result: out, verify: Box::new(verify) }
}

/// Numbers of all magnitudes, many of them halfway between two codes, under scales that are halfway between two.
fn awkward(count: usize, owners: &[u32], globals: &[f32], seed: u64) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (columns, mut values) = (count / owners.len(), vec![0f32; count]);
    for (block, values) in values.chunks_mut(16).enumerate() {
        let global = globals[owners[block * 16 / columns] as usize];
        let scale = f32::from_bits((rng.u32(118..136) << 23) | rng.u32(..16) << 19) * global;
        for x in values.iter_mut() {
            let halfway = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 0.0][rng.usize(..9)];
            let noisy = [1.0, 1.0 + f32::EPSILON, 1.0 - f32::EPSILON, rng.f32() * 1.1][rng.usize(..4)];
            *x = halfway * scale * noisy * if rng.bool() { -1.0 } else { 1.0 };
        }
        if block % 5 == 4 {
            values.fill(f32::from_bits(block as u32));
        }
    }
    values
}

/// What the format's own quantiser makes of rows.
fn quantised(values: &[f32], columns: usize, owners: &[u32], globals: &[f32]) -> Vec<u16> {
    let row = |(row, &owner): (&[f32], &u32)| {
        let global = globals[owner as usize].into();
        let dense = format::Dense::new(1, columns, row.to_vec(), 1.0).unwrap();
        let mut unscaled = vec![0f32; columns];
        format::quantize(&dense, Some(global)).unwrap().unscaled_row(0, &mut unscaled);
        unscaled.into_iter().map(|x| f16::from_f32(x).to_bits()).collect::<Vec<u16>>()
    };
    values.chunks(columns).zip(owners).flat_map(row).collect()
}

const FORMS: [Form; 4] =
    [Form::Quantised, Form::Scaled(Float::F16), Form::Scaled(Float::BF16), Form::Scaled(Float::F32)];

// Rounding.

/// Rows of experts, times their factors or not, as e4m3 numbers. The last row is nobody's.
fn rounding(float: Float, columns: usize, by_expert: bool) -> Trial {
    let (owners, experts) = ([0u32, 3, 1, 1, 2, NOBODY], 4);
    let mut values = noise(owners.len() * columns, 31);
    // Zeros; an infinity; and the largest at the very end, just beyond what a power of two brings to 448.
    values[columns..2 * columns].fill(0.0);
    (values[2 * columns + 5], values[4 * columns - 1]) = (f32::INFINITY, -7.25);
    let mut gpu = device();
    let source = match float {
        Float::F32 => awaited(&mut gpu, "rows", &values),
        Float::F16 | Float::BF16 => {
            let narrow = |x: &mut f32| {
                let (bits, wide) = match float {
                    Float::F16 => (f16::from_f32(*x).to_bits(), f16::from_f32(*x).to_f32()),
                    _ => (bf16::from_f32(*x).to_bits(), bf16::from_f32(*x).to_f32()),
                };
                *x = wide;
                bits
            };
            let bits: Vec<u16> = values.iter_mut().map(narrow).collect();
            awaited(&mut gpu, "rows", &bits)
        }
    };
    let scales = noise(experts * columns, 32);
    let scales_at = gpu.upload("scales", bytemuck::cast_slice(&scales));
    let (target, factors) = (gpu.alloc("rounded", values.len()), gpu.alloc("divisors", 4 * owners.len()));
    let mut args = vec![source.into()];
    args.extend(by_expert.then_some(Arg::from(scales_at)));
    args.extend([target.into(), factors.into(), Arg::U32(columns as u32 / 16), Arg::U32(0)]);
    args.extend(by_expert.then(|| Arg::from(awaited(&mut gpu, "owners", &owners))));
    args.push(Arg::U32(owners.len() as u32));
    let spec = RoundSpec::new(ptx::Target::Sm90a, (float, by_expert), 1, columns);
    let spec = RoundSpec { owners: by_expert.then_some(experts as u32), ..spec };
    let verify = move |gpu: &Gpu| {
        let bytes = gpu.download(target).map_err(|first| format!("byte {first} was not written"))?;
        let divisors = gpu.floats(factors);
        for (row, &owner) in owners.iter().enumerate().filter(|(_, owner)| **owner != NOBODY) {
            let scale = |column: usize| if by_expert { scales[owner as usize * columns + column] } else { 1.0 };
            let scaled: Vec<f32> = (0..columns).map(|c| values[row * columns + c] * scale(c)).collect();
            let (rounded, exponent) = precision::round_row(&scaled);
            if rounded[0].is_nan() {
                if !divisors[row].is_nan() {
                    return Err(format!("row {row} is not finite, and was divided by {}", divisors[row]));
                }
                continue;
            }
            if divisors[row] != 2f32.powi(-exponent) {
                return Err(format!("row {row} was divided by {}, not 2^{}", divisors[row], -exponent));
            }
            for (column, &wanted) in rounded.iter().enumerate() {
                let o = column % 16;
                let place = column - o + 4 * (o % 8 / 2) + 2 * (o / 8) + o % 2;
                let found = e4m3::decode(bytes[row * columns + place]);
                if found.to_bits() != wanted.to_bits() {
                    return Err(format!("row {row}, column {column}: {found}, should be {wanted}"));
                }
            }
        }
        Ok(())
    };
    let launch = Invocation { grid: [(owners.len() as u32).div_ceil(spec.rows()), 1, 1], args };
    Trial { kernel: KernelSpec::from(spec).build().unwrap(), gpu, launch, result: target, verify: Box::new(verify) }
}

#[test]
fn rows_are_rounded_to_e4m3_as_the_definition_says_times_their_experts_factors_or_not() {
    for (float, by_expert) in [Float::F16, Float::BF16, Float::F32].into_iter().flat_map(|f| [(f, false), (f, true)]) {
        rounding(float, 48, by_expert).passes("few columns: a warp for each row");
        rounding(float, 1040, by_expert).passes("some: two warps for each row, of two rounds");
        rounding(float, 4112, by_expert).passes("more columns than all threads take at a time");
    }
}

#[test]
fn mutants_of_the_rounding_are_caught() {
    // The second has fewer columns than the threads of the first one's kernel.
    mutants_are_caught(&[4112, 48, 1040].map(|columns| rounding(Float::BF16, columns, true)));
}

#[test]
fn rows_are_quantised_as_the_format_does_it_and_multiplied_with_their_experts_scale() {
    FORMS.into_par_iter().for_each(|form| between(form, 80, 21).passes(&format!("{form:?}")));
    between(Form::Quantised, 1040, 22).passes("many numbers");
}

#[test]
fn a_number_that_is_none_spoils_its_sixteen_and_no_others() {
    for spoiled in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let trial = between(Form::Quantised, 16, 23);
        let mut gpu = trial.gpu.clone();
        let mut args = trial.launch.args.clone();
        let mut values = noise(11 * 16, 3);
        values[5 * 16 + 7] = spoiled;
        args[0] = awaited(&mut gpu, "rows", &values).into();
        gpu.run(&trial.kernel, &Invocation { args, ..trial.launch }, Schedule::Random(2)).unwrap();
        let found: Vec<u16> = read(&gpu, trial.result);
        for (row, halves) in found.chunks(16).enumerate() {
            let nan = halves.iter().filter(|&&bits| f16::from_bits(bits).is_nan()).count();
            assert_eq!(nan, if row == 5 { 16 } else { 0 }, "{spoiled}, row {row}");
        }
    }
}

// Gates of shared experts.

/// σ(x·v) of so many tokens.
fn sharing(tokens: Float, columns: usize) -> Trial {
    let count = 7;
    let mut x = noise(count * columns, 31);
    let v: Vec<f32> = noise(columns, 32).into_iter().map(|v| v / 8.0).collect();
    let mut gpu = device();
    let at = match tokens {
        Float::F32 => awaited(&mut gpu, "tokens", &x),
        Float::F16 => {
            x.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32());
            awaited(&mut gpu, "tokens", &x.iter().map(|&x| f16::from_f32(x).to_bits()).collect::<Vec<_>>())
        }
        Float::BF16 => {
            x.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
            awaited(&mut gpu, "tokens", &x.iter().map(|&x| bf16::from_f32(x).to_bits()).collect::<Vec<_>>())
        }
    };
    let (vector, weights) = (gpu.upload("vector", bytemuck::cast_slice(&v)), gpu.alloc("weights", 4 * count));
    let args = vec![at.into(), vector.into(), weights.into(), Arg::U32(count as u32), Arg::U32(columns as u32 / 8)];
    let verify = move |gpu: &Gpu| {
        let found: Vec<f32> = match gpu.download(weights) {
            Ok(bytes) => bytemuck::pod_collect_to_vec(bytes),
            Err(first) => return Err(format!("byte {first} was not written")),
        };
        for (token, (found, x)) in found.into_iter().zip(x.chunks(columns)).enumerate() {
            let products = || x.iter().zip(&v).map(|(&x, &v)| f64::from(x) * f64::from(v));
            let wanted = 1.0 / (1.0 + (-products().sum::<f64>()).exp());
            let lost = (columns as f64 + 2.0) * products().map(f64::abs).sum::<f64>() / 4.0 + 12.0 * wanted;
            if (f64::from(found) - wanted).abs() > lost * 2f64.powi(-24) {
                return Err(format!("weight {token} is {found}, should be {wanted}"));
            }
        }
        Ok(())
    };
    let launch = Invocation { grid: [share::blocks(count as u32), 1, 1], args };
    Trial { kernel: built(ShareSpec { tokens }).unwrap(), gpu, launch, result: weights, verify: Box::new(verify) }
}

#[test]
fn a_shared_expert_is_weighed_by_the_sigmoid_of_a_product() {
    for (tokens, columns) in [(Float::F16, 16), (Float::BF16, 528), (Float::F32, 1040)] {
        sharing(tokens, columns).passes(&format!("{tokens:?}"));
    }
}

// Combining.

/// Combines rows of these places; [`AWAY`] is in the host's memory.
fn combining(spec: CombineSpec, inverse: &[u32], columns: usize) -> Trial {
    let slots: Vec<u32> = inverse.iter().map(|&row| if row == AWAY { AWAY } else { 0 }).collect();
    let inverse: Vec<u32> = inverse.iter().map(|&row| if row == AWAY { NOBODY } else { row }).collect();
    let (top, tokens) = (spec.top as usize, inverse.len() / spec.top as usize);
    let rows = inverse.iter().filter(|&&row| row != NOBODY).count();
    // Whole numbers and powers of two, so that sums are exact and an order that differs would not show; the order is
    // another test's.
    let value = |at: usize| ((at * 7) % 33) as f32 - 16.0;
    let weights: Vec<f32> = (0..inverse.len()).map(|at| [0.5, 2.0, -1.0][at % 3]).collect();
    let mut gpu = device();
    let put = |gpu: &mut Gpu, name, ty, values: Vec<f32>| match ty {
        Output::F32 => awaited(gpu, name, &values),
        Output::F16 => awaited(gpu, name, &values.iter().map(|&x| f16::from_f32(x).to_bits()).collect::<Vec<_>>()),
        Output::BF16 => awaited(gpu, name, &values.iter().map(|&x| bf16::from_f32(x).to_bits()).collect::<Vec<_>>()),
    };
    let rows_at = put(&mut gpu, "rows", spec.rows, (0..rows.max(1) * columns).map(value).collect());
    let inverse_at = awaited(&mut gpu, "inverse", &inverse);
    let weights_at = awaited(&mut gpu, "weights", &weights);
    let mut args: Vec<Arg> = vec![rows_at.into(), inverse_at.into()];
    let of_host = |at: usize| ((at * 5) % 31) as f32 - 8.0;
    if spec.away {
        let rows: Vec<f32> = (0..inverse.len() * columns).map(of_host).collect();
        args.extend([awaited(&mut gpu, "slots", &slots).into(), awaited(&mut gpu, "the host's rows", &rows).into()]);
    }
    args.extend(spec.weighted.then_some(Arg::from(weights_at)));
    let addend = |at: usize| (at % 5) as f32;
    let more = spec.addend.map(|ty| put(&mut gpu, "addend", ty, (0..tokens * columns).map(addend).collect()));
    args.extend(more.map(Arg::from));
    let out = gpu.alloc("out", tokens * columns * spec.output.bytes());
    args.extend([out.into(), Arg::U32(tokens as u32), Arg::U32(columns as u32)]);
    let expected: Vec<f32> = (0..tokens * columns)
        .map(|at| {
            let (token, column) = (at / columns, at % columns);
            let weight = |entry: usize| if spec.weighted { weights[entry] } else { 1.0 };
            let of = |entry: usize| match (slots[entry], inverse[entry]) {
                (AWAY, _) => of_host(entry * columns + column) * weight(entry),
                (_, NOBODY) => 0.0,
                (_, row) => value(row as usize * columns + column) * weight(entry),
            };
            let sum: f32 = (token * top..(token + 1) * top).map(of).sum();
            sum + spec.addend.map_or(0.0, |_| addend(at))
        })
        .collect();
    let verify = move |gpu: &Gpu| match spec.output {
        Output::F32 => expect(gpu, out, "sum", &expected),
        Output::F16 => {
            expect(gpu, out, "sum", &expected.iter().map(|&x| f16::from_f32(x).to_bits()).collect::<Vec<_>>())
        }
        Output::BF16 => {
            expect(gpu, out, "sum", &expected.iter().map(|&x| bf16::from_f32(x).to_bits()).collect::<Vec<_>>())
        }
    };
    let launch = Invocation { grid: [spec.blocks(tokens as u32, columns as u32), 1, 1], args };
    Trial { kernel: built(spec).unwrap(), gpu, launch, result: out, verify: Box::new(verify) }
}

const PLAIN: CombineSpec =
    CombineSpec { top: 3, rows: Output::F32, output: Output::F32, weighted: true, addend: None, away: false };

#[test]
fn a_tokens_rows_are_weighted_and_added_and_nobodys_are_not_read() {
    let inverse = [2, NOBODY, 0, NOBODY, NOBODY, NOBODY, 3, 1, 4];
    for (rows, output) in Output::ALL.into_iter().flat_map(|rows| Output::ALL.map(|output| (rows, output))) {
        combining(CombineSpec { rows, output, ..PLAIN }, &inverse, 360).passes(&format!("{rows} to {output}"));
    }
    combining(CombineSpec { weighted: false, ..PLAIN }, &inverse, 16).passes("without weights");
    combining(CombineSpec { addend: Some(Output::BF16), ..PLAIN }, &inverse, 16).passes("with an addend");
    let many: Vec<u32> = (0..22).collect();
    combining(CombineSpec { top: 11, ..PLAIN }, &many, 16).passes("more rows than are asked for at a time");
    combining(PLAIN, &[NOBODY; 3], 16).passes("a token of nobody's");
    let away = CombineSpec { away: true, ..PLAIN };
    combining(away, &TWO_PLACES, 24).passes("rows in two places");
    assert!(built(CombineSpec { rows: Output::F16, ..away }).is_err(), "the host's rows are of single precision");
}

/// Rows of three tokens: two here and one of the host's, all three the host's, one of each and one of nobody's.
const TWO_PLACES: [u32; 9] = [2, AWAY, 0, AWAY, AWAY, AWAY, NOBODY, AWAY, 1];

// Placing.

fn placing(wide: bool) -> Trial {
    let (experts, slots) = (5u32, [1, AWAY, 0, AWAY, 2]);
    let ids: Vec<u32> = (0..300).map(|entry| [0, 1, 2, 3, 4, 5, NOBODY, 1][entry % 8]).collect();
    let mut gpu = device();
    let ids_at = match wide {
        false => awaited(&mut gpu, "ids", &ids),
        true => {
            // One that is nobody's although its low half is somebody's.
            let wide = |(entry, &id): (usize, &u32)| if entry % 8 == 5 { 1 << 32 } else { u64::from(id) };
            awaited(&mut gpu, "ids", &ids.iter().enumerate().map(wide).collect::<Vec<_>>())
        }
    };
    let slots_at = awaited(&mut gpu, "slots", &slots);
    let asked = awaited(&mut gpu, "asked", &[7u32; 5]);
    let [placed, away] = ["placed", "away"].map(|name| gpu.alloc(name, 4 * ids.len()));
    let args: Vec<Arg> = [ids_at, slots_at, asked, placed, away].map(Arg::from).into_iter().collect();
    let args = args.into_iter().chain([Arg::U32(ids.len() as u32)]).collect();
    let verify = move |gpu: &Gpu| {
        let slot = |&id: &u32| slots.get(id as usize).copied().unwrap_or(NOBODY);
        let of_host = |id: &u32| if slot(id) == AWAY { *id } else { NOBODY };
        expect(gpu, placed, "slot", &ids.iter().map(slot).collect::<Vec<_>>())?;
        expect(gpu, away, "id for the host", &ids.iter().map(of_host).collect::<Vec<_>>())?;
        let count = |expert: u32| 7 + ids.iter().filter(|&&id| id == expert).count() as u32;
        expect(gpu, asked, "count", &(0..experts).map(count).collect::<Vec<_>>())
    };
    let launch = Invocation { grid: [place::blocks(300), 1, 1], args };
    Trial { kernel: built(PlaceSpec { experts, wide }).unwrap(), gpu, launch, result: placed, verify: Box::new(verify) }
}

// Sending.

fn sending(weights: bool) -> Trial {
    let (top, units, tokens) = (3usize, 300usize, 4usize);
    let slots = [[0, AWAY, NOBODY], [1, 2, NOBODY], [AWAY; 3], [NOBODY, NOBODY, AWAY]].concat();
    let (mut gpu, spec) = (device(), SendSpec { top: top as u32, weights });
    let words: Vec<u32> = (0..(tokens * units * 4) as u32).map(|at| at.wrapping_mul(0x9E37_79B9)).collect();
    let numbers: Vec<f32> = (0..tokens * top).map(|at| at as f32 + 0.5).collect();
    let [slots_at, words_at] = [("slots", &slots), ("tokens", &words)].map(|(name, x)| awaited(&mut gpu, name, x));
    let sent = gpu.upload("sent", &vec![0xEE; words.len() * 4]);
    let mut args: Vec<Arg> = vec![slots_at.into(), words_at.into(), sent.into()];
    let sent_weights = gpu.upload("sent weights", &vec![0xEE; numbers.len() * 4]);
    if weights {
        args.extend([awaited(&mut gpu, "weights", &numbers).into(), sent_weights.into()]);
    }
    args.push(Arg::U32(units as u32));
    let verify = move |gpu: &Gpu| {
        let goes = |token: usize| slots[token * top..(token + 1) * top].contains(&AWAY);
        let row = |(at, &word): (usize, &u32)| if goes(at / (units * 4)) { word } else { 0xEEEE_EEEE };
        expect(gpu, sent, "word", &words.iter().enumerate().map(row).collect::<Vec<_>>())?;
        let number = |(at, x): (usize, &f32)| if weights && goes(at / top) { x.to_bits() } else { 0xEEEE_EEEE };
        expect(gpu, sent_weights, "weight", &numbers.iter().enumerate().map(number).collect::<Vec<_>>())
    };
    let launch = Invocation { grid: [tokens as u32, 1, 1], args };
    Trial { kernel: built(spec).unwrap(), gpu, launch, result: sent, verify: Box::new(verify) }
}

// Fetching.

/// A lot of three experts of seven numbers, of which the second has no rows, or of one that has; so many units of each.
fn fetching(lot: usize, units: usize, blocks: u32) -> Trial {
    let (numbers, first, stride) = (7usize, 2usize, 4 * units + 8);
    let rows = [0u32, 3, 5, 9, 9, 30, 31, 31];
    let tiles = [0u32, 1, 2, 3, 3, 6, 7, 7];
    let (mut gpu, spec) = (device(), FetchSpec { numbers: numbers as u32, lot: lot as u32 });
    let words: Vec<u32> = (0..(lot * stride) as u32).map(|at| at.wrapping_mul(0x9E37_79B9)).collect();
    // It begins when what is before it is done.
    let layout = gpu.upload("layout", bytemuck::cast_slice(&[rows, tiles].concat()));
    let source = gpu.upload("on the host", bytemuck::cast_slice(&words));
    let cut = gpu.alloc("the lot's layout", 8 * (lot + 1));
    let slots = gpu.upload("slots", &vec![0xEE; 16 * units * lot]);
    let mut args: Vec<Arg> = [layout, cut, source, slots].map(Arg::from).to_vec();
    args.extend([first, 4 * stride, units].map(|number| Arg::U32(number as u32)));
    let verify = move |gpu: &Gpu| {
        let own = |array: [u32; 8], from: u32| array[first..=first + lot].iter().map(|x| x - from).collect::<Vec<_>>();
        expect(gpu, cut, "layout", &[own(rows, 0), own(tiles, tiles[first])].concat())?;
        let word = |at: usize| {
            let (expert, inside) = (at / (4 * units), at % (4 * units));
            let asked_for = rows[first + expert] < rows[first + expert + 1];
            if asked_for { words[expert * stride + inside] } else { 0xEEEE_EEEE }
        };
        expect(gpu, slots, "word", &(0..4 * units * lot).map(word).collect::<Vec<_>>())
    };
    let launch = Invocation { grid: [blocks, 1, 1], args };
    Trial { kernel: built(spec).unwrap(), gpu, launch, result: cut, verify: Box::new(verify) }
}

#[test]
fn weights_of_experts_with_rows_are_brought_over_and_no_others() {
    fetching(3, 4200, 1).passes("more than a block asks for at a time");
    fetching(3, 700, 2).passes("two blocks");
    fetching(1, 1, 16).passes("one unit");
}

#[test]
fn mutants_of_the_fetch_are_caught() {
    mutants_are_caught(&[fetching(3, 700, 2), fetching(3, 4200, 1)]);
}

#[test]
fn tokens_with_an_expert_on_the_host_are_sent_there_and_no_others() {
    sending(false).passes("tokens");
    sending(true).passes("tokens and weights");
}

#[test]
fn entries_are_the_devices_or_the_hosts_or_nobodys_and_are_counted() {
    placing(false).passes("32 bits");
    placing(true).passes("64 bits");
}

#[test]
fn rows_are_added_in_the_order_of_the_tokens_experts() {
    // 1 + 2²⁴ − 2²⁴ is 0 in this order, and 1 in another.
    let rows = [1.0f32, 16_777_216.0, -16_777_216.0].map(|x| [x; 8]).concat();
    let mut gpu = device();
    let rows = awaited(&mut gpu, "rows", &rows);
    let out = gpu.alloc("out", 2 * 32);
    let inverse = awaited(&mut gpu, "inverse", &[0u32, 1, 2, 1, 2, 0]);
    let args = vec![rows.into(), inverse.into(), out.into(), Arg::U32(2), Arg::U32(8)];
    let kernel = built(CombineSpec { weighted: false, ..PLAIN }).unwrap();
    gpu.run(&kernel, &Invocation { grid: [1, 1, 1], args }, Schedule::Latest).unwrap();
    assert_eq!(read::<f32>(&gpu, out), [[0.0; 8], [1.0; 8]].concat());
}

// Broken kernels.

/// Every mutant of a kernel must be caught by one of its trials.
fn mutants_are_caught(trials: &[Trial]) {
    those_mutants_are_caught(trials, |_| true);
}

/// Or some of them.
fn those_mutants_are_caught(trials: &[Trial], which: fn(&Mutant) -> bool) {
    let schedules = Schedule::several(2);
    let broken: Vec<Mutant> = mutants(&trials[0].kernel).into_iter().filter(which).collect();
    assert!(broken.len() >= 8, "{}", broken.len());
    let missed = |broken: &[Mutant]| {
        let mut left: Vec<&Mutant> = broken.iter().collect();
        for trial in trials {
            let kernels: Vec<&Kernel> = left.iter().map(|mutant| &mutant.kernel).collect();
            let prepare = || (trial.gpu.clone(), trial.launch.clone());
            let mut found =
                explore_mutants((&trials[0].kernel, &kernels), &schedules, prepare, &trial.verify).into_iter();
            left.retain(|_| found.next().is_some_and(|found| found.is_ok()));
        }
        left.into_iter().map(|mutant| mutant.name.clone()).collect::<Vec<String>>()
    };
    let share = broken.len().div_ceil(2 * rayon::current_num_threads());
    let missed: Vec<String> = broken.par_chunks(share).flat_map_iter(missed).collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn mutants_of_the_routing_are_caught() {
    let spec = RouteSpec { experts: 96, grouped: Some(Grouped { groups: 4, kept: 2 }), top: 3, ..ROUTINGS[4] };
    let mut logits = noise(61 * 96, 3);
    logits[96..192].fill(1.0);
    mutants_are_caught(&[routing(spec, logits)]);
}

#[test]
fn mutants_of_the_sort_are_caught() {
    let given = |ids: Vec<i64>, run| {
        let mut given = Given::new(40, 1, ids);
        (given.run, given.columns) = (run, 32);
        (given.spec.factors, given.spec.divided) = (true, true);
        given
    };
    // The first has several warps with entries in each block, and experts that only some of them have.
    let mut many = scattered(40, 1, 230, 8);
    many.iter_mut().enumerate().filter(|(at, _)| at % 5 == 0).for_each(|(at, id)| *id = at as i64 / 40 * 7);
    let strange = vec![-1, 40, 3, 3, i64::from(i32::MAX), 0, 39];
    // The last has as many entries, and pieces of rows, as a thread takes at a time.
    let trials = [given(many, 130), given(strange, 2), given(vec![-1; 3], 2), given(scattered(40, 1, 3700, 9), 500)];
    let trials = trials.map(|given| sorting(&given));
    mutants_are_caught(&trials);
}

#[test]
fn mutants_of_what_is_done_between_the_products_are_caught() {
    mutants_are_caught(&[between(Form::Quantised, 272, 24)]);
    mutants_are_caught(&[between(Form::Scaled(Float::F16), 272, 25)]);
}

#[test]
fn mutants_of_a_sort_that_multiplies_are_caught() {
    // As many pieces of rows as all threads take at a time, and a few more.
    let mut given = Given::new(6, 1, scattered(6, 1, 170, 5));
    (given.spec.rows, given.spec.owners, given.run, given.columns) = (SCALED[1], true, 165, 104);
    given.ids.iter_mut().step_by(7).for_each(|id| *id = 6);
    let peculiar = |mutant: &Mutant| {
        let stores = mutant.name.contains("/place:") && mutant.name.contains("st.");
        stores || mutant.name.contains("/copy:")
    };
    those_mutants_are_caught(&[sorting(&given)], peculiar);
}

#[test]
fn mutants_of_a_shared_experts_gate_are_caught() {
    mutants_are_caught(&[sharing(Float::F32, 528)]);
}

#[test]
fn mutants_of_the_combination_are_caught() {
    let spec = CombineSpec { addend: Some(Output::F16), output: Output::F16, ..PLAIN };
    mutants_are_caught(&[combining(spec, &[2, NOBODY, 0, NOBODY, NOBODY, NOBODY, 3, 1, 4], 40)]);
    let away = CombineSpec { away: true, ..PLAIN };
    those_mutants_are_caught(&[combining(away, &TWO_PLACES, 40)], |mutant| mutant.name.contains("find"));
}

#[test]
fn mutants_of_the_placing_and_the_sending_are_caught() {
    mutants_are_caught(&[placing(false)]);
    mutants_are_caught(&[sending(true)]);
}
