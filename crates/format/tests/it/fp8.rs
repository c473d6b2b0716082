//! FP8 weights as ModelOpt, compressed-tensors and DeepSeek store them: told apart by type and shape, or refused.

use std::path::Path;

use half::bf16;
use hammerhead_format::checkpoint::Checkpoint;
use hammerhead_format::tensors::{self, Dtype, File, Tensor};
use hammerhead_format::{Fp8Scales, Result};
use tempfile::TempDir;

/// A file with one FP8 weight of ones, `m`, and what stands beside it.
fn model(folder: &TempDir, shape: [usize; 2], beside: Vec<Tensor<'static>>) -> Result<Checkpoint> {
    let weight = Tensor::from_bytes("m.weight", Dtype::F8_E4M3, shape, vec![0x38; shape[0] * shape[1]]);
    let path = folder.path().join("model.safetensors");
    tensors::write(&path, &[vec![weight], beside].concat(), None)?;
    Checkpoint::open_by_name(path)
}

fn refusal(shape: [usize; 2], beside: Vec<Tensor<'static>>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let model = model(&folder, shape, beside).unwrap();
    model.fp8("m").expect_err("it is refused").to_string()
}

#[test]
fn scales_of_every_layout_reach_their_elements() {
    let ones = |count: usize| vec![1f32; count];
    let numbers = |name: &str, shape: &[usize], values: Vec<f32>| Tensor::from_f32(name, shape.to_vec(), values);
    let halves = Tensor::from_bf16("m.weight_scale", [200, 1], vec![bf16::from_f32(0.5); 200]);
    let blocks = numbers("m.weight_scale_inv", &[2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let exponents = Tensor::from_bytes("m.weight_scale", Dtype::U8, [200, 9], vec![126; 200 * 9]);
    let powers = |dtype, name: &str, shape: [usize; 2]| {
        let bytes: Vec<u8> = (0..shape.iter().product()).map(|at: usize| 120 + (at % 11) as u8).collect();
        Tensor::from_bytes(format!("m.{name}"), dtype, shape, bytes)
    };
    let cases = [
        (numbers("m.weight_scale", &[], vec![0.25]), [0.25, 0.25], "one for the matrix, without a shape"),
        (numbers("m.weight_scale", &[1], vec![0.25]), [0.25, 0.25], "one for the matrix"),
        (numbers("m.weight_scale", &[200], ones(200)), [1.0, 1.0], "one per row"),
        (halves, [0.5, 0.5], "one per row, as a column of bf16"),
        (blocks, [1.0, 6.0], "blocks of 128, of which the last are smaller"),
        (exponents, [0.5, 0.5], "MXFP8"),
        (powers(Dtype::F8_E8M0, "scale", [2, 3]), [2f32.powi(-7), 0.25], "blocks of 128, whose scales are exponents"),
        (powers(Dtype::U8, "weight_scale_inv", [25, 9]), [2f32.powi(-7), 0.125], "blocks of 8 by 32"),
    ];
    for (scale, [first, last], what) in cases {
        let folder = tempfile::tempdir().unwrap();
        let bias = numbers("m.bias", &[200], (0..200).map(|row| row as f32).collect());
        let model = model(&folder, [200, 288], vec![scale, bias]).unwrap();
        let linear = model.fp8("m").unwrap();
        let values = linear.matrix.dequantize();
        assert_eq!([values[0], values[200 * 288 - 1]], [first, last], "{what}");
        assert_eq!(linear.bias.unwrap()[7], 7.0);
    }
}

#[test]
fn what_stands_beside_deepseek_s_experts_is_decoded_as_transformers_decodes_it() {
    for (name, side) in [("deepseek_v4", 128), ("deepseek_v41", 32)] {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let model = Checkpoint::open_by_name(data.join(name)).unwrap();
        let expected = File::open(data.join(format!("{name}.fp8.expected.safetensors"))).unwrap();
        assert!(expected.contains("layers.0.attn.wq_a.weight"));
        for weight in expected.names() {
            let theirs = expected.tensor(weight).unwrap();
            let theirs = theirs.bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
            let matrix = model.fp8(weight.strip_suffix(".weight").unwrap()).unwrap().matrix;
            if weight.contains("attn") {
                assert!(matches!(matrix.scales(), Fp8Scales::Blocks { block, .. } if *block == [side; 2]), "{name}");
            }
            assert!(matrix.dequantize().into_iter().eq(theirs), "{weight}: powers of two round nothing");
        }
    }
}

#[test]
fn a_block_is_128_by_128_wherever_that_makes_as_many() {
    let folder = tempfile::tempdir().unwrap();
    let scale = Tensor::from_f32("m.weight_scale_inv", [5, 1], vec![1.0, 2.0, 3.0, 4.0, 5.0]);
    let model = model(&folder, [576, 128], vec![scale]).unwrap();
    let linear = model.fp8("m").unwrap();
    assert!(matches!(linear.matrix.scales(), Fp8Scales::Blocks { block: [128, 128], .. }));
    assert_eq!([127, 128, 575].map(|row| linear.matrix.scale(row, 0)), [1.0, 2.0, 5.0]);
}

#[test]
fn what_does_not_belong_together_is_refused_in_one_line() {
    let scale = |shape: &[usize]| Tensor::from_f32("m.weight_scale", shape.to_vec(), vec![1.0; shape.iter().product()]);
    let exponents = |shape: [usize; 2], byte| {
        Tensor::from_bytes("m.weight_scale", Dtype::U8, shape, vec![byte; shape[0] * shape[1]])
    };
    let short = Tensor::from_f32("m.bias", [3], vec![0.0; 3]);
    let double = vec![scale(&[1]), Tensor::from_f32("m.weight_scale_inv", [1], vec![1.0])];
    for (found, sentence) in [
        (refusal([64, 64], vec![]), "no single weight_scale, weight_scale_inv or scale"),
        (refusal([64, 64], double), "no single weight_scale, weight_scale_inv or scale"),
        (refusal([64, 64], vec![scale(&[63])]), "does not scale a weight of shape [64, 64]"),
        (refusal([64, 64], vec![scale(&[3, 1])]), "neither blocks of 128 or 32 nor those of one other size fill it"),
        (
            refusal([64, 64], vec![exponents([64, 3], 127)]),
            "neither blocks of 128 or 32 nor those of one other size fill it",
        ),
        (refusal([96, 64], vec![scale(&[2, 1])]), "neither blocks of 128 or 32 nor those of one other size fill it"),
        (refusal([64, 64], vec![exponents([64, 4], 127)]), "blocks of 1 rows and 16 columns"),
        (refusal([64, 64], vec![exponents([1, 2], 255)]), "scale 0 of an FP8 matrix is NaN"),
        (refusal([64, 64], vec![exponents([64, 2], 255)]), "scale 0 of an FP8 matrix is NaN"),
        (refusal([64, 56], vec![scale(&[1])]), "K is 56"),
        (refusal([64, 64], vec![scale(&[1]), short]), "it has shape [3], where [64] finite numbers are expected"),
    ] {
        assert!(found.contains(sentence) && !found.contains('\n'), "{found}");
    }
    let folder = tempfile::tempdir().unwrap();
    let model = model(&folder, [64, 64], vec![Tensor::from_f32("other.weight", [1], vec![1.0])]).unwrap();
    for (name, sentence) in [("nothing", "there is no such tensor"), ("other", "it has type F32")] {
        let found = model.fp8(name).expect_err("it is refused").to_string();
        assert!(found.contains(sentence), "{found}");
    }
}
