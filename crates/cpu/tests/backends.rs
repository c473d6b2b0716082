//! Every backend that this processor has, against double precision: few problems, in many of its ways, quick enough for
//! a processor that is only emulated. The tester's whole list of cases is in the crate `hammerhead-testkit`.

use fastrand::Rng;
use format::{BLOCK, Dense, Matrix, Values};
use half::{bf16, f16};
use op::bound::Bounded;
use op::reference::Reference;
use op::{Activation, Activations, Call, Gate, Output, Problem, Shape, Target, Weights};

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
