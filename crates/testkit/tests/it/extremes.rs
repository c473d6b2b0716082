//! Tokens at the ends of f32's range, on every CPU backend: the sums are small whole numbers of some quantum, so each
//! result is known exactly, and nothing is forgiven.

use format::{Dense, Matrix, Values};
use half::{bf16, f16};
use hammerhead::{Activations, Backend, Engine, Gate, Options, Output, Weights, cpu};

const K: usize = 208;
const N: usize = 37;
/// Tokens: a few, a matrix instruction's rows, and more.
const ROWS: [usize; 3] = [3, 16, 40];

fn engines() -> impl Iterator<Item = (&'static str, Engine)> {
    let here = |backend: &&&'static dyn Backend| backend.available().is_ok();
    cpu::backends().iter().filter(here).map(|backend| {
        let options = Options { backend: Some(backend.name().into()), threads: Some(2), ..Options::default() };
        (backend.name(), Engine::new(options).unwrap())
    })
}

/// Codes of every value, scales ½, 1 and 2.
fn weights(global: f32) -> Matrix<'static> {
    let codes = (0..N * K / 2).map(|i| (i * 37 + i / 11) as u8).collect::<Vec<_>>();
    let scales = (0..N * K / 16).map(|i| [0x30, 0x38, 0x40][i % 3]).collect::<Vec<_>>();
    Matrix::new(N, K, codes, scales, global).unwrap()
}

/// Whole numbers from -7 to 7, many of them zero, and a first token of zeros only.
fn whole(row: usize, k: usize) -> f64 {
    if row == 0 { 0.0 } else { (((row * 31 + k * 17 + k / 5) % 29) as f64 - 14.0).clamp(-7.0, 7.0) }
}

/// Runs tokens that are `whole` times the given quanta, row by row in turn, and compares every element.
fn assert_exact(values: impl Fn(Vec<f64>) -> Values<'static>, quanta: &[f64], token_global: f32, weight_global: f32) {
    let matrix = weights(weight_global);
    for m in ROWS {
        let quantum = |row: usize| quanta[row % quanta.len()];
        let tokens = (0..m * K).map(|i| whole(i / K, i % K) * quantum(i / K)).collect();
        let a = Activations::from(Dense::new(m, K, values(tokens), token_global).unwrap());
        for (name, engine) in engines() {
            let layer = engine.load(&[Weights::plain(matrix.clone())], Gate::None).unwrap();
            let results = engine.run(&layer, std::slice::from_ref(&a), Output::F32).unwrap();
            let Values::F32(found) = results[0].values() else { panic!("f32 was asked for") };
            let mut row_weights = vec![0f32; K];
            for column in 0..N {
                matrix.unscaled_row(column, &mut row_weights);
                for row in 0..m {
                    let sum: f64 = (0..K).map(|k| whole(row, k) * f64::from(row_weights[k])).sum();
                    let scale = f64::from(token_global) * f64::from(weight_global);
                    let expected = (sum * (quantum(row) * scale)) as f32;
                    let found = found[row * N + column];
                    assert!(found == expected, "{name}, {m} tokens, c[{row}, {column}] is {found}, not {expected}");
                }
            }
        }
    }
}

fn f32s(values: Vec<f64>) -> Values<'static> {
    values.into_iter().map(|x| x as f32).collect::<Vec<_>>().into()
}

#[test]
fn subnormal_tokens_count_in_full() {
    for place in [-149, -147, -145, -140, -127] {
        assert_exact(f32s, &[2f64.powi(place)], 2f32.powi(20), 2f32.powi(120));
    }
    let bf16s = |v: Vec<f64>| v.into_iter().map(bf16::from_f64).collect::<Vec<_>>().into();
    assert_exact(bf16s, &[2f64.powi(-133)], 2f32.powi(10), 2f32.powi(120));
    let f16s = |v: Vec<f64>| v.into_iter().map(f16::from_f64).collect::<Vec<_>>().into();
    assert_exact(f16s, &[2f64.powi(-24)], 1.0, 2f32.powi(20));
}

#[test]
fn tokens_near_the_largest_f32_do_not_make_sums_infinite() {
    for place in [125, 121, 100] {
        assert_exact(f32s, &[2f64.powi(place)], 2f32.powi(-60), 2f32.powi(-50));
    }
}

#[test]
fn tokens_of_very_different_size_in_one_group_count_in_full() {
    assert_exact(f32s, &[1.0, 2f64.powi(-60), 2f64.powi(-100)], 1.0, 1.0);
    assert_exact(f32s, &[2f64.powi(-60), 2f64.powi(-149)], 2f32.powi(20), 2f32.powi(60));
    assert_exact(f32s, &[2f64.powi(120), 2f64.powi(20)], 2f32.powi(-60), 2f32.powi(-50));
}

#[test]
fn zeros_stay_zeros_beside_whatever_tokens_and_scales() {
    for place in [-149, -145, 0, 125] {
        for (token_global, weight_global) in [(f32::MAX, f32::MAX), (f32::MAX, -f32::MAX), (1e-45, 1e-45)] {
            let a = (0..40 * K).map(|i| if i < 39 * K { 0.0 } else { 2f32.powi(place) }).collect::<Vec<f32>>();
            let a = Activations::from(Dense::new(40, K, a, token_global).unwrap());
            for (name, engine) in engines() {
                let weights = [Weights::gated(weights(weight_global), weights(weight_global)).unwrap()];
                let layer = engine.load(&weights, Gate::Silu).unwrap();
                let results = engine.run(&layer, std::slice::from_ref(&a), Output::F32).unwrap();
                let Values::F32(found) = results[0].values() else { panic!("f32 was asked for") };
                assert!(
                    found[..39 * N].iter().all(|&x| x == 0.0),
                    "{name}, tokens of 2^{place}, scales {token_global:e}"
                );
            }
        }
    }
}
