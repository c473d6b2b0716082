//! The factor of a product is formed of the stored global scales in f64 and rounded once, on every backend that this
//! machine has.

use format::{GlobalScale, Matrix};
use hammerhead::{Engine, Gate, Options, Output, Weights, backends};

const K: usize = 64;

/// All codes, scales around 1.
fn matrix(rows: usize, seed: usize, global: impl Into<GlobalScale>) -> Matrix<'static> {
    let codes = (0..rows * K / 2).map(|i| (i * 37 + seed * 11 + i / 7) as u8).collect::<Vec<_>>();
    let scales = (0..rows * K / 16).map(|i| 0x30 + ((i + seed) % 16) as u8).collect::<Vec<_>>();
    Matrix::new(rows, K, codes, scales, global).unwrap()
}

fn run(engine: &Engine, gate: Gate, tokens: f32, weights: GlobalScale) -> Vec<u32> {
    let weights = match gate {
        Gate::None => Weights::plain(matrix(32, 1, weights)),
        _ => Weights::gated(matrix(32, 1, weights), matrix(32, 2, weights)).unwrap(),
    };
    let layer = engine.load(&[weights], gate).unwrap();
    let result = engine.run(&layer, &[matrix(3, 3, tokens).into()], Output::F32).unwrap().remove(0);
    let mut row = vec![0.0; 32];
    let rows = (0..3).flat_map(|at| {
        result.row(at, &mut row);
        row.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
    });
    rows.collect()
}

#[test]
fn a_divisor_and_its_inverse_in_the_tokens_cancel_to_the_bit() {
    const DIVISOR: f32 = 61.0;
    assert_ne!((f64::from(DIVISOR) * f64::from(1.0 / DIVISOR)) as f32, 1.0, "this divisor would show nothing");
    for backend in backends::all().iter().filter(|backend| backend.available().is_ok()) {
        let engine = Engine::new(Options { backend: Some(backend.name().to_owned()), ..Options::default() }).unwrap();
        for gate in [Gate::None, Gate::Silu] {
            let bare = run(&engine, gate, 1.0, 1.0.into());
            let cancelled = run(&engine, gate, DIVISOR, GlobalScale::Divides(DIVISOR));
            assert_eq!(bare, cancelled, "{} with gate {gate}", backend.name());
            let rounded = run(&engine, gate, DIVISOR, (1.0 / DIVISOR).into());
            assert_ne!(bare, rounded, "{} with gate {gate}: these inputs show nothing", backend.name());
        }
    }
}
