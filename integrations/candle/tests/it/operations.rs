//! Each operation by itself: types and shapes, and what is refused.

use candle_core::{DType, Module, Result, Tensor, Var};
use hammerhead_candle::hammerhead::format::{Dense, Matrix, quantize};
use hammerhead_candle::hammerhead::{ExpertWeights, Gate, LayerOptions, MlpWeights, Weights};
use hammerhead_candle::{Experts, Grouped, Linear, Mlp};

use crate::{device, distance, engine, model};

const K: usize = 64;
const INNER: usize = 48;

fn numbers(rows: usize, k: usize, seed: f32) -> Vec<f32> {
    (0..rows * k).map(|i| (i as f32 * 0.37 + seed).sin()).collect()
}

fn matrix(rows: usize, k: usize, seed: f32) -> Matrix<'static> {
    quantize(&Dense::new(rows, k, numbers(rows, k, seed), 1.0).unwrap(), None).unwrap()
}

fn mlp(seed: f32) -> MlpWeights<'static> {
    let up = Weights::gated(matrix(INNER, K, seed), matrix(INNER, K, seed + 0.3)).unwrap();
    MlpWeights::new(up, Weights::plain(matrix(K, INNER, seed + 0.6))).unwrap()
}

fn tokens(shape: &[usize], dtype: DType) -> Tensor {
    let rows = shape[..shape.len() - 1].iter().product();
    let values = numbers(rows, shape[shape.len() - 1], 0.1);
    Tensor::from_vec(values, shape, device()).unwrap().to_dtype(dtype).unwrap()
}

/// x·Wᵀ by candle.
fn product(x: &Tensor, weight: &Matrix<'_>) -> Result<Tensor> {
    let weight = Tensor::from_vec(weight.dequantize(), (weight.rows(), weight.k()), device())?;
    x.to_dtype(DType::F32)?.broadcast_matmul(&weight.t()?)
}

/// An MLP by candle, with the intermediate rounded to the tokens' type as ours is.
fn expanded(x: &Tensor, weights: &MlpWeights<'_>) -> Result<Tensor> {
    let gate = product(x, weights.up().gate())?.silu()?;
    let inner = (gate * product(x, weights.up().up().unwrap())?)?;
    product(&inner.to_dtype(x.dtype())?, weights.down().gate())
}

/// Half a step of a type, and what sums of f32 may lose.
fn rounding(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 2f32.powi(-11),
        DType::BF16 => 2f32.powi(-8),
        _ => 1e-6,
    }
}

#[test]
fn a_linear_layer_takes_every_type_and_any_leading_dimensions() {
    let weight = matrix(40, K, 0.5);
    let bias = numbers(40, 1, 0.2);
    let weights = Weights::plain(weight.as_borrowed()).with_bias([bias.clone()]).unwrap();
    let linear = Linear::new(engine(), &weights).unwrap();
    let bias = Tensor::new(bias, device()).unwrap();
    for (shape, dtype) in
        [(&[2, 3, K][..], DType::F32), (&[5, K], DType::BF16), (&[K], DType::F16), (&[0, K], DType::F32)]
    {
        let x = tokens(shape, dtype);
        let y = linear.forward(&x).unwrap();
        assert_eq!((y.dims(), y.dtype()), (&[&shape[..shape.len() - 1], &[40]].concat()[..], dtype));
        if shape[0] == 0 {
            continue;
        }
        let rows = x.reshape(((), K)).unwrap();
        let expected = product(&rows, &weight).unwrap().broadcast_add(&bias).unwrap();
        let (off, largest) = distance(&y.reshape(((), 40)).unwrap(), &expected).unwrap();
        assert!(off <= 2.0 * rounding(dtype) * largest, "{dtype:?}: off by {off:e} of {largest}");
    }
    // A view with strides is computed as what it shows.
    let x = tokens(&[K, 3], DType::F32).t().unwrap();
    let expected = product(&x.contiguous().unwrap(), &weight).unwrap().broadcast_add(&bias).unwrap();
    let (off, largest) = distance(&linear.forward(&x).unwrap(), &expected).unwrap();
    assert!(off <= 2e-6 * largest, "off by {off:e} of {largest}");
}

#[test]
fn an_mlp_and_experts_are_what_their_products_make() {
    let (weights, others) = (mlp(0.0), mlp(1.7));
    let layer = Mlp::new(engine(), &weights, Gate::Silu, LayerOptions::default()).unwrap();
    let both = ExpertWeights::new(vec![weights.as_borrowed(), others.as_borrowed()], Gate::Silu).unwrap();
    let experts = Experts::new(engine(), &both, None, LayerOptions::default()).unwrap();
    for dtype in [DType::F32, DType::BF16] {
        let x = tokens(&[2, 2, K], dtype);
        let (one, other) = (expanded(&x, &weights).unwrap(), expanded(&x, &others).unwrap());
        let (off, largest) = distance(&layer.forward(&x).unwrap(), &one).unwrap();
        assert!(off <= 8.0 * rounding(dtype) * largest, "{dtype:?}: off by {off:e} of {largest}");

        // The last token asks for an expert that is somebody else's.
        let ids = Tensor::new(&[[[0u32, 1], [1, 0]], [[0, 1], [1, 9]]], device()).unwrap();
        let factors = Tensor::new(&[[[0.75f32, 0.25], [0.5, 0.5]], [[1.0, -1.0], [2.0, 3.0]]], device()).unwrap();
        let of = |x: &Tensor, at: [f32; 4]| x.broadcast_mul(&Tensor::from_slice(&at, (2, 2, 1), device()).unwrap());
        let first = of(&one, [0.75, 0.5, 1.0, 0.0]).unwrap();
        let expected = (first + of(&other, [0.25, 0.5, -1.0, 2.0]).unwrap()).unwrap();
        for ids in [DType::U32, DType::I64].map(|of| ids.to_dtype(of).unwrap()) {
            let y = experts.forward_routed(&x, &ids, &factors).unwrap();
            assert_eq!((y.dims(), y.dtype()), (x.dims(), dtype));
            let (off, largest) = distance(&y, &expected).unwrap();
            assert!(off <= 8.0 * rounding(dtype) * largest, "{dtype:?}: off by {off:e} of {largest}");
        }
    }
}

#[test]
fn rows_are_computed_by_the_matrices_of_their_experts() {
    let matrices: Vec<Matrix<'static>> = (0..3).map(|expert| matrix(40, K, expert as f32)).collect();
    let weights: Vec<Weights<'_>> = matrices.iter().map(|matrix| Weights::plain(matrix.as_borrowed())).collect();
    let grouped = Grouped::new(engine(), &weights).unwrap();
    let (x, ids) = (tokens(&[4, K], DType::BF16), [2u32, 0, 2, 1]);
    let y = grouped.forward(&x, &Tensor::new(&ids, device()).unwrap()).unwrap();
    let rows = ids.iter().enumerate().map(|(row, &id)| product(&x.narrow(0, row, 1)?, &matrices[id as usize]));
    let expected = Tensor::cat(&rows.collect::<Result<Vec<_>>>().unwrap(), 0).unwrap();
    let (off, largest) = distance(&y, &expected).unwrap();
    assert!(y.dtype() == DType::BF16 && off <= 2.0 * rounding(DType::BF16) * largest, "off by {off:e} of {largest}");
    let other = Weights::plain(matrix(48, K, 0.0));
    let error = Grouped::new(engine(), &[weights[0].as_borrowed(), other]).unwrap_err().to_string();
    assert!(error.contains("expert 1") && error.contains("one shape"), "{error}");
}

#[test]
fn gradients_are_refused_by_the_operations_name() {
    let linear = Linear::new(engine(), &Weights::plain(matrix(40, K, 0.5))).unwrap();
    let x = Var::from_tensor(&tokens(&[2, K], DType::F32)).unwrap();
    let error = linear.forward(&x).unwrap().sum_all().unwrap().backward().unwrap_err().to_string();
    assert!(error.contains("hammerhead-linear"), "{error}");
}

#[test]
fn what_cannot_be_computed_is_refused_with_what_to_do() {
    let linear = Linear::new(engine(), &Weights::plain(matrix(40, K, 0.5))).unwrap();
    let weights = ExpertWeights::new(vec![mlp(0.0)], Gate::Silu).unwrap();
    let experts = Experts::new(engine(), &weights, None, LayerOptions::default()).unwrap();
    let (x, few) = (tokens(&[2, K], DType::F32), tokens(&[2, 1], DType::F32));
    let ids = |rows: usize| Tensor::zeros((rows, 1), DType::U32, device()).unwrap();
    let model = model("modelopt_qwen3_moe");
    let refusals = [
        (linear.forward(&x.to_dtype(DType::F64).unwrap()), "to_dtype"),
        (
            linear.forward(&tokens(&[2, 80], DType::F32)),
            "hammerhead-linear: group 0: k of the activations (a) is 80 but 64",
        ),
        (linear.forward(&Tensor::new(1f32, device()).unwrap()), "reshape"),
        (experts.forward(&x, &few), "forward_routed"),
        (experts.forward_routed(&x, &ids(3), &few), "[3, 1] beside tokens [2, 64]"),
        (experts.forward_routed(&x, &ids(2), &tokens(&[2, 2], DType::F32)), "one weight per id"),
        (experts.forward_routed(&x, &few, &few), "u32, i32 or i64"),
        (
            Linear::from_checkpoint(engine(), &model, "model.layers.0.q_proj").map(|_| x.clone()),
            "model.layers.0.q_proj",
        ),
        (Linear::from_checkpoint(engine(), &model, "lm_head").map(|_| x.clone()), "lm_head"),
        (Mlp::from_checkpoint(engine(), &model, 0, LayerOptions::default()).map(|_| x.clone()), "load it as Experts"),
    ];
    for (refusal, words) in refusals {
        let error = refusal.unwrap_err().to_string();
        assert!(error.contains(words), "{error:?} says nothing of {words:?}");
    }
}
