//! No configuration that a person may write or a tuning cache may hold makes anything panic or overflow: it is read or
//! refused, and every backend grants or refuses it, for any problem. Tests run with overflow checks.

use fastrand::Rng;
use gpu::Foretold;
use hammerhead::backends;
use hammerhead::tuning::{self, Bucket, Measured, Tuned, Tuning};
use hammerhead::{
    Activation, Backend, Config, Epilogue, Error, Gate, Output, Own, Plan, Problem, Request, Schedule, Shape, Strategy,
    Tile,
};

/// Numbers at which something may turn over, and small ones that are legal more often than others.
const NUMBERS: [usize; 28] = [
    0,
    1,
    2,
    3,
    4,
    8,
    16,
    32,
    64,
    96,
    128,
    192,
    256,
    512,
    1 << 16,
    (1 << 26) + 64,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as usize - 63,
    u32::MAX as usize,
    (1 << 32) + 8,
    (1 << 32) + 64,
    1 << 38,
    usize::MAX / 64,
    usize::MAX / 3,
    usize::MAX / 2,
    usize::MAX - 63,
    usize::MAX,
];

fn number(rng: &mut Rng) -> usize {
    match rng.u8(..4) {
        0 => rng.usize(..),
        1 => rng.usize(..) >> rng.u32(..64),
        _ => NUMBERS[rng.usize(..NUMBERS.len())],
    }
}

fn config(rng: &mut Rng) -> Config {
    Config {
        strategy: Strategy::ALL[rng.usize(..4)],
        tile: Tile { tokens: number(rng), columns: number(rng) },
        depth: number(rng),
        stages: number(rng),
        epilogue: Epilogue::ALL[rng.usize(..2)],
        schedule: Schedule::ALL[rng.usize(..3)],
        own: own(rng),
    }
}

/// Settings of some backend's own, or of nobody's; mostly none.
fn own(rng: &mut Rng) -> Own {
    let count = if rng.u8(..4) == 0 { rng.usize(1..4) } else { 0 };
    (0..count).fold(Own::NONE, |own, _| {
        let key = ["multicast", "ahead", "under", "colour"][rng.usize(..4)];
        own.with(key, number(rng) as u32).unwrap()
    })
}

/// Problems from one token to whatever `Problem` allows, alone and in groups whose sizes have nothing to do with each
/// other.
fn problem(rng: &mut Rng) -> Problem {
    let gate = Gate::ALL[rng.usize(..Gate::ALL.len())];
    loop {
        let groups = (0..rng.usize(1..4))
            .map(|_| {
                let mut side = || number(rng) >> [0, 12, 24, 40][rng.usize(..4)];
                Shape::new(side(), side().max(1), (side() / 16 * 16).max(16))
            })
            .collect();
        if let Ok(problem) = Problem::new(groups, gate, Activation::ALL[rng.usize(..4)], Output::ALL[rng.usize(..3)]) {
            return problem;
        }
    }
}

#[test]
fn every_backend_grants_or_refuses_any_configuration_for_any_problem() {
    let mut rng = Rng::with_seed(3);
    for _ in 0..20_000 {
        let (problem, config) = (problem(&mut rng), config(&mut rng));
        let threads = [1, 2, 96, 4096][rng.usize(..4)];
        for backend in backends::all() {
            match backend.check(&problem, &config, threads) {
                Ok(cost) => assert!(cost.seconds.is_finite(), "{} on {problem} with {config}", backend.name()),
                Err(Error::Illegal { reason, .. }) => assert!(!reason.is_empty()),
                Err(error) => panic!("{} on {problem} with {config}: {error}", backend.name()),
            }
        }
    }
}

#[test]
fn one_number_out_of_range_in_a_legal_configuration_is_refused_and_no_more() {
    let problem =
        |activation| Problem::new(vec![Shape::new(70, 96, 256)], Gate::Silu, activation, Output::F16).unwrap();
    for (backend, activation) in backends::all().iter().flat_map(|b| Activation::ALL.map(|activation| (b, activation)))
    {
        let problem = problem(activation);
        for candidate in backend.candidates(&problem, 2).into_iter().step_by(9) {
            for number in NUMBERS {
                let tile = |tokens, columns| Config { tile: Tile { tokens, columns }, ..candidate };
                for config in [
                    tile(number, candidate.tile.columns),
                    tile(candidate.tile.tokens, number),
                    tile(number, number),
                    Config { depth: number, ..candidate },
                    Config { stages: number, ..candidate },
                ] {
                    let text = config.to_string().parse::<Request>();
                    assert_eq!(text.is_ok(), number > 0, "{config}");
                    let checked = backend.check(&problem, &config, 2);
                    assert!(matches!(checked, Ok(_) | Err(Error::Illegal { .. })), "{config}: {checked:?}");
                }
            }
        }
    }
}

#[test]
fn a_setting_that_a_backend_lacks_is_refused_and_a_default_of_its_own_changes_nothing() {
    let problem = Problem::new(vec![Shape::new(300, 128, 512)], Gate::Silu, Activation::NvFp4, Output::F16).unwrap();
    let blackwell: &'static dyn Backend = Foretold::by_name("foretold:b200").unwrap();
    for backend in backends::all().iter().copied().chain([blackwell]) {
        let has = match backend.settings().first().map(|setting| setting.key()) {
            None => "none of its own",
            Some("under") => "under and warps",
            _ => "multicast and ahead",
        };
        let plan = |request: &str| Plan::modelled(problem.clone(), &[backend], &request.parse().unwrap(), 2);
        let reason = plan("colour=3").unwrap_err().to_string();
        assert!(reason.contains(&format!("has no setting colour; it has {has}")), "{reason}");
    }
    let config =
        |request: &str| *Plan::modelled(problem.clone(), &[blackwell], &request.parse().unwrap(), 2).unwrap().config();
    let plain = config("tile=256x64,schedule=tile,strategy=interleaved,multicast=1,ahead=0");
    assert_eq!(plain.own, Own::NONE);
    let shared = config("tile=256x64,schedule=tile,strategy=interleaved,multicast=2,ahead=1");
    assert!(shared.to_string().ends_with(",schedule=tile,multicast=2,ahead=1"), "{shared}");
}

#[test]
fn any_problem_has_candidates_that_can_be_priced() {
    let mut rng = Rng::with_seed(4);
    for _ in 0..30 {
        let problem = problem(&mut rng);
        for backend in backends::all() {
            for config in backend.candidates(&problem, 2) {
                // The simulator has the GPU's candidates, and less patience.
                let legal = backend.check(&problem, &config, 2).is_ok() || backend.name() == "sim";
                assert!(legal, "{} on {problem}: {config}", backend.name());
            }
        }
    }
}

#[test]
fn text_of_any_kind_is_read_or_refused() {
    let mut rng = Rng::with_seed(5);
    let words = [
        "strategy",
        "tile",
        "depth",
        "stages",
        "epilogue",
        "schedule",
        "=",
        ",",
        "x",
        "-",
        " ",
        "é",
        "two-pass",
        "tile=",
        "0",
        "1",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999",
        "-1",
        "1e9",
        "0x10",
        "+5",
    ];
    for _ in 0..100_000 {
        let text: String = (0..rng.usize(..8)).map(|_| words[rng.usize(..words.len())]).collect();
        if let Ok(request) = text.parse::<Request>() {
            let applied = request.applied_to(config(&mut rng), &[]);
            assert_eq!(request.applied_to(applied, &[]), applied, "{text}");
        }
    }
}

#[test]
fn any_entry_of_a_tuning_cache_leaves_a_plan() {
    let mut rng = Rng::with_seed(6);
    let problem = Problem::new(vec![Shape::new(70, 96, 256)], Gate::Silu, Activation::F32, Output::F16).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for round in 0..50 {
        for &backend in backends::all() {
            let entry = Tuned {
                bucket: Bucket::of(&problem, 2).to_string(),
                measured: Measured::of(backend),
                problem: problem.to_string(),
                config: config(&mut rng).to_string(),
                speedup: [1.1, f64::MAX, -1.0][rng.usize(..3)],
                record: format!("{round} {}", backend.name()),
                at: String::new(),
                retired: false,
            };
            tuning::install(folder.path(), vec![entry]).unwrap();
            let request = Request::default();
            let modelled = Plan::modelled(problem.clone(), &[backend], &request, 2).unwrap();
            let plan = modelled.tuned(&Tuning::load(folder.path()), &[backend], &request, 2);
            assert!(backend.check(&problem, plan.config(), 2).is_ok());
        }
    }
}
