//! Every gate at the ends of f32's range, through real sums, on every backend that this machine has.
//!
//! A token holds a gate value and an up value and the weights pick them out, one pair per group, so that the sums are
//! exact and what is judged is the scaling, the gate and the cast. Values beyond what activations should hold come from
//! α.

use format::{Dense, Matrix};
use hammerhead::{Activation, Engine, Gate, Options, Output, Problem, Request, Shape, Target, Weights, backends, cpu};
use hammerhead_testkit::cases::Instance;
use hammerhead_testkit::verify::{Expected, poisoned};

const K: usize = 16;
/// Zeros, subnormal numbers, numbers whose cube is beyond f32, and numbers that log₂e brings beyond it.
const MAGNITUDES: [f32; 9] = [0.0, 1e-41, 1e-30, 0.7, 7.5, 90.0, 1.6e13, 3e30, 2.5e38];
const UPS: [f32; 5] = [-0.0, 1e-41, -1.5, 2e30, -2.5e38];

/// α for a value, and what is left of it for the token.
fn factored(value: f32) -> (f32, f32) {
    let alpha = if value.abs() > 1.0 { 2f32.powi(100) } else { 1.0 };
    (alpha, value / alpha)
}

/// A row of weights that picks one element of a token.
fn picking(element: usize, global: f32) -> Matrix<'static> {
    const ONE: u8 = 2;
    const SCALE_OF_ONE: u8 = 0x38;
    let mut codes = vec![0; K / 2];
    codes[element / 2] = ONE << (4 * (element % 2));
    Matrix::new(1, K, codes, vec![SCALE_OF_ONE], global).unwrap()
}

/// A group for every pair of values.
fn extremes(gate: Gate) -> Instance {
    let (mut activations, mut weights, mut shapes) = (Vec::new(), Vec::new(), Vec::new());
    for value in MAGNITUDES.into_iter().flat_map(|magnitude| [magnitude, -magnitude]) {
        for up in UPS {
            let ((gate_alpha, gate_rest), (up_alpha, up_rest)) = (factored(value), factored(up));
            let mut token = vec![0f32; K];
            (token[0], token[1]) = (gate_rest, up_rest);
            activations.push(Dense::new(1, K, token, 1.0).unwrap().into());
            weights.push(match gate.matrices() {
                1 => Weights::plain(picking(0, gate_alpha)),
                _ => Weights::gated(picking(0, gate_alpha), picking(1, up_alpha)).unwrap(),
            });
            shapes.push(Shape::new(1, 1, K));
        }
    }
    let problem = Problem::new(shapes, gate, Activation::F32, Output::F32).unwrap();
    Instance { activations, weights, problem }
}

#[test]
fn gates_are_right_at_the_ends_of_the_range_on_every_backend() {
    for backend in backends::all().iter().filter(|backend| backend.available().is_ok()) {
        for gate in Gate::ALL {
            for request in ["", "strategy=two-pass"] {
                let instance = extremes(gate);
                let request: Request = request.parse().unwrap();
                let options = Options { backend: Some(backend.name().to_owned()), threads: Some(1), request };
                let engine = Engine::new(options).unwrap();
                let layer = engine.load(&instance.weights, gate).unwrap();
                let mut results = poisoned(&instance);
                engine.run_into(&layer, &instance.activations, &mut Target::all(&mut results)).unwrap();
                let results: Vec<_> = results.into_iter().map(|c| Dense::new(1, 1, c, 1.0).unwrap()).collect();
                let expected = Expected::new(&instance, false, 0, &cpu::team(Some(1)).unwrap());
                let report = expected.check(&results, backend.arithmetic(Activation::F32));
                let first = report.first.as_ref().map(ToString::to_string).unwrap_or_default();
                assert!(report.passed(), "{gate} on {}: {} wrong; {first}", backend.name(), report.failures);
            }
        }
    }
}
