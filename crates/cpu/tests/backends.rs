//! Every backend that this processor has, against double precision: few problems, in many of its ways, quick enough for
//! a processor that is only emulated. The tester's whole list of cases is in the crate `hammerhead-testkit`.

use fastrand::Rng;
use format::{BLOCK, Dense, MX_BLOCK, Matrix, Scaling, Values};
use half::{bf16, f16};
use op::bound::Bounded;
use op::reference::Reference;
use op::{
    Activation, Activations, Backend, Call, Config, Gate, Output, PackedWeights, Problem, Shape, Target, Team, Weights,
};

/// Odd tokens, columns and blocks; one token and few, which are read from packed codes; more than a band.
const SHAPES: [(usize, usize, usize); 5] = [(1, 32, 128), (3, 40, 64), (5, 33, 208), (17, 51, 336), (40, 64, 256)];

/// Ways of a problem that are tried, spread over all that there are.
const WAYS: usize = 24;

fn matrix(rng: &mut Rng, rows: usize, k: usize) -> Matrix<'static> {
    let codes: Vec<u8> = (0..rows * k / 2).map(|_| rng.u8(..)).collect();
    // From the smallest, which is subnormal, to the largest.
    let scales: Vec<u8> = (0..rows * k / BLOCK).map(|_| rng.u8(1..0x7F)).collect();
    Matrix::new(rows, k, codes, scales, 1.0 / 4096.0).unwrap()
}

fn tokens(rng: &mut Rng, activation: Activation, m: usize, k: usize) -> Activations<'static> {
    if activation == Activation::NvFp4 {
        return matrix(rng, m, k).into();
    }
    let numbers: Vec<f32> = (0..m * k).map(|_| 4.0 * rng.f32() - 2.0).collect();
    let values: Values<'static> = match activation {
        Activation::F16 => numbers.into_iter().map(f16::from_f32).collect::<Vec<_>>().into(),
        Activation::BF16 => numbers.into_iter().map(bf16::from_f32).collect::<Vec<_>>().into(),
        _ => numbers.into(),
    };
    Dense::new(m, k, values, 1.0).unwrap().into()
}

fn nothing(output: Output, count: usize) -> Values<'static> {
    match output {
        Output::F16 => vec![f16::NAN; count].into(),
        Output::BF16 => vec![bf16::NAN; count].into(),
        Output::F32 => vec![f32::NAN; count].into(),
    }
}

fn numbers(values: &Values<'_>) -> Vec<f64> {
    match values {
        Values::F16(values) => values.iter().map(|value| value.to_f64()).collect(),
        Values::BF16(values) => values.iter().map(|value| value.to_f64()).collect(),
        Values::F32(values) => values.iter().map(|&value| value.into()).collect(),
    }
}

/// Computes one product as f32.
fn results(
    way: (&'static dyn Backend, Config),
    problem: &Problem,
    weights: &dyn PackedWeights,
    tokens: &Activations<'_>,
    team: &Team,
) -> Vec<f32> {
    let problem = problem.clone().with_scaling(weights.scaling()).unwrap();
    let mut c = [Values::from(vec![f32::NAN; problem.groups()[0].m * problem.groups()[0].n])];
    let mut targets = Target::all(&mut c);
    Call::new(way, &problem, weights, std::slice::from_ref(tokens), &mut targets, team).unwrap().run().unwrap();
    let [Values::F32(c)] = c else { unreachable!("results are f32") };
    c.into_owned()
}

#[test]
fn every_backend_is_within_its_bound_in_many_of_its_ways() {
    let (rng, gate) = (&mut Rng::with_seed(7), Gate::Silu);
    let team = hammerhead_cpu::team(Some(2)).unwrap();
    for activation in [Activation::F32, Activation::BF16, Activation::F16, Activation::NvFp4] {
        for (m, n, k) in SHAPES {
            let output = [Output::F16, Output::BF16, Output::F32][m % 3];
            let problem = Problem::new(vec![Shape::new(m, n, k)], gate, activation, output).unwrap();
            let weights = [Weights::gated(matrix(rng, n, k), matrix(rng, n, k)).unwrap()];
            let tokens = [tokens(rng, activation, m, k)];
            let expected = Reference::new(&tokens[0], &weights[0], gate).all();
            for backend in hammerhead_cpu::backends().iter().filter(|backend| backend.available().is_ok()) {
                let packed = backend.prepack(&weights, &team).unwrap();
                let ways = backend.candidates(&problem, team.count());
                for &config in ways.iter().step_by(ways.len().div_ceil(WAYS)) {
                    let mut c = [nothing(output, m * n)];
                    let mut targets = Target::all(&mut c);
                    let call = Call::new((*backend, config), &problem, packed.as_ref(), &tokens, &mut targets, &team);
                    call.unwrap().run().unwrap();
                    for (place, (element, found)) in expected.iter().zip(numbers(&c[0])).enumerate() {
                        let bound = Bounded::new(element, gate, k, backend.arithmetic(activation));
                        let name = backend.name();
                        assert!(
                            bound.accepts(found, output),
                            "{name} {config} {m}x{n}x{k} {activation}: element {place} is {found}, where {} is within {}",
                            bound.value,
                            bound.allowed(output)
                        );
                    }
                }
            }
        }
    }
}

const ACTIVATIONS: [Activation; 4] = [Activation::F32, Activation::BF16, Activation::F16, Activation::NvFp4];

/// The same with whole blocks of 32: of chunks that are whole, and of one that is not.
const MX_SHAPES: [(usize, usize, usize); 5] = [(1, 32, 128), (3, 40, 64), (5, 33, 224), (17, 51, 352), (40, 64, 256)];

/// MXFP4 with scales over so many powers of two, 2⁸ the largest.
fn mx(rng: &mut Rng, rows: usize, k: usize, powers: u8) -> Matrix<'static> {
    let codes: Vec<u8> = (0..rows * k / 2).map(|_| rng.u8(..)).collect();
    let scales: Vec<u8> = (0..rows * k / MX_BLOCK).map(|_| 135 - rng.u8(..powers)).collect();
    Matrix::mx(rows, k, codes, &scales, 1.0 / 4096.0).unwrap()
}

#[test]
fn mxfp4_is_packed_as_it_is_and_gives_the_bits_of_its_nvfp4_form() {
    let rng = &mut Rng::with_seed(8);
    let team = hammerhead_cpu::team(Some(2)).unwrap();
    for (activation, (m, n, k)) in
        ACTIVATIONS.into_iter().flat_map(|activation| MX_SHAPES.map(|shape| (activation, shape)))
    {
        let problem = Problem::new(vec![Shape::new(m, n, k)], Gate::Silu, activation, Output::F32).unwrap();
        let matrices = [mx(rng, n, k, 18), mx(rng, n, k, 18)];
        let [gate, up] = matrices.each_ref().map(|matrix| matrix.in_scaling(Scaling::NvFp4).unwrap());
        let (own, wider) =
            (Weights::gated(matrices[0].as_borrowed(), matrices[1].as_borrowed()), Weights::gated(gate, up));
        let tokens = tokens(rng, activation, m, k);
        for &backend in hammerhead_cpu::backends().iter().filter(|backend| backend.available().is_ok()) {
            let [own, wider] = [&own, &wider]
                .map(|weights| backend.prepack(std::slice::from_ref(weights.as_ref().unwrap()), &team).unwrap());
            assert_eq!((own.scaling(), own.bytes() * 18), (Scaling::MxFp4, wider.bytes() * 17));
            let ways = backend.candidates(&problem, team.count());
            for &config in ways.iter().step_by(ways.len().div_ceil(WAYS)) {
                let [own, wider] =
                    [&own, &wider].map(|packed| results((backend, config), &problem, packed.as_ref(), &tokens, &team));
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
                assert!(bits(&own) == bits(&wider), "{} {config} {m}x{n}x{k} {activation}", backend.name());
            }
        }
    }
}

#[test]
fn mxfp4_over_all_powers_of_two_is_within_the_bound_of_every_backend() {
    let (rng, gate) = (&mut Rng::with_seed(9), Gate::None);
    let team = hammerhead_cpu::team(Some(2)).unwrap();
    for (activation, (m, n, k)) in
        ACTIVATIONS.into_iter().flat_map(|activation| MX_SHAPES.map(|shape| (activation, shape)))
    {
        let problem = Problem::new(vec![Shape::new(m, n, k)], gate, activation, Output::F32).unwrap();
        let weights = [Weights::plain(mx(rng, n, k, 127))];
        let tokens = tokens(rng, activation, m, k);
        let expected = Reference::new(&tokens, &weights[0], gate).all();
        for &backend in hammerhead_cpu::backends().iter().filter(|backend| backend.available().is_ok()) {
            let packed = backend.prepack(&weights, &team).unwrap();
            assert_eq!(packed.scaling(), Scaling::WideMxFp4);
            let ways = backend.candidates(&problem, team.count());
            for &config in ways.iter().step_by(ways.len().div_ceil(WAYS)) {
                let found = results((backend, config), &problem, packed.as_ref(), &tokens, &team);
                for (element, found) in expected.iter().zip(found) {
                    let bound = Bounded::new(element, gate, k, backend.arithmetic(activation));
                    let (name, value) = (backend.name(), bound.value);
                    assert!(
                        bound.accepts(found.into(), Output::F32),
                        "{name} {config} {activation}: {found} for {value}"
                    );
                }
            }
        }
    }
}

/// The bound grants little to what is large and all to what is small. A column of small weights is as exact as one of
/// large ones nevertheless: to the bit.
#[test]
fn columns_a_hundred_powers_of_two_below_others_lose_nothing() {
    const BELOW: i32 = 100;
    let rng = &mut Rng::with_seed(10);
    let team = hammerhead_cpu::team(Some(2)).unwrap();
    for (activation, (m, n, k)) in
        ACTIVATIONS.into_iter().flat_map(|activation| MX_SHAPES.map(|shape| (activation, shape)))
    {
        let problem = Problem::new(vec![Shape::new(m, n, k)], Gate::None, activation, Output::F32).unwrap();
        let narrow = mx(rng, n, k, 18);
        let below = |row: usize| if row.is_multiple_of(3) { 0 } else { BELOW };
        let lowered = |(at, &scale): (usize, &u8)| scale - below(at / (k / MX_BLOCK)) as u8;
        let scales: Vec<u8> = narrow.scales().iter().enumerate().map(lowered).collect();
        // In the middle of f32's range, so that no result is subnormal.
        let wide = Matrix::mx(n, k, narrow.codes(), &scales, 2f32.powi(BELOW / 2) / 4096.0).unwrap();
        let tokens = tokens(rng, activation, m, k);
        for &backend in hammerhead_cpu::backends().iter().filter(|backend| backend.available().is_ok()) {
            // Where there are tiles of f16 it multiplies narrow scales in those, and adds in another order.
            if (backend.name(), activation) == ("amx", Activation::F16) {
                continue;
            }
            let [one, other] =
                [&narrow, &wide].map(|matrix| backend.prepack(&[Weights::plain(matrix.as_borrowed())], &team).unwrap());
            assert_eq!(other.scaling(), Scaling::WideMxFp4);
            let ways = backend.candidates(&problem, team.count());
            for &config in ways.iter().step_by(ways.len().div_ceil(WAYS)) {
                let [one, other] = [one.as_ref(), other.as_ref()]
                    .map(|packed| results((backend, config), &problem, packed, &tokens, &team));
                for (at, (one, other)) in one.into_iter().zip(other).enumerate() {
                    let expected = one * 2f32.powi(BELOW / 2 - below(at % n));
                    assert_eq!(other.to_bits(), expected.to_bits(), "{} {config} {activation}: {at}", backend.name());
                }
            }
        }
    }
}
