//! Checkpoints written by the real packages decode to what those packages decode them to.

use std::path::PathBuf;

use hammerhead_format::tensors::{self, File};
use hammerhead_format::{GlobalScale, Matrix, quantize};

/// 2⁻⁶ as e4m3.
const SMALLEST_NORMAL_SCALE: u8 = 0x08;

const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

fn open(name: &str) -> File {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    File::open(folder.join(name)).unwrap()
}

fn expected(file: &File, projection: &str) -> Vec<f32> {
    let tensor = file.tensor(&format!("model.layers.0.mlp.{projection}.weight")).unwrap();
    let values = tensor.into_dense(1.0).unwrap();
    let mut out = vec![0.0; values.rows() * values.k()];
    out.chunks_exact_mut(values.k()).enumerate().for_each(|(row, out)| values.row(row, out));
    out
}

fn modelopt<'a>(file: &'a File, projection: &str) -> Matrix<'a> {
    let weight = format!("model.layers.0.mlp.{projection}.weight");
    let global = file.tensor(&format!("{weight}_scale_2")).unwrap().scalar_f32().unwrap();
    tensors::matrix(file, &weight, &format!("{weight}_scale"), global).unwrap()
}

fn compressed_tensors<'a>(file: &'a File, projection: &str) -> Matrix<'a> {
    let weight = format!("model.layers.0.mlp.{projection}.weight");
    let divisor = file.tensor(&format!("{weight}_global_scale")).unwrap().scalar_f32().unwrap();
    tensors::matrix(file, &format!("{weight}_packed"), &format!("{weight}_scale"), GlobalScale::Divides(divisor))
        .unwrap()
}

fn assert_close(ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len());
    assert!(theirs.iter().any(|&value| value != 0.0));
    for (at, (&ours, &theirs)) in ours.iter().zip(theirs).enumerate() {
        let (ours, theirs) = (f64::from(ours), f64::from(theirs));
        assert!((ours - theirs).abs() <= theirs.abs() * 2f64.powi(-22), "element {at}: {ours:e}, not {theirs:e}");
    }
}

/// Under the same global scale, a block that holds a code of ±6 must come back as it was: its amax is 6·scale·global
/// up to an ulp or two, which names the scale, and every element lies on a code up to as much. A block of zeros comes
/// back as zeros. Of any other block nothing can be said, since its amax would name a smaller scale; but both packages
/// choose a scale by amax/6, so where the scale is normal, and thus within 1/16 of that, there is a ±6.
fn assert_quantises_back(matrix: &Matrix<'_>, file: &File, projection: &str) {
    let tensor = file.tensor(&format!("model.layers.0.mlp.{projection}.weight")).unwrap();
    let again = quantize(&tensor.into_dense(1.0).unwrap(), Some(matrix.global())).unwrap();
    let (before, after) = (matrix.dequantize(), again.dequantize());
    let blocks = matrix.codes().chunks(8).zip(before.chunks(16).zip(after.chunks(16)));
    for ((codes, (before, after)), &scale) in blocks.zip(matrix.scales()) {
        let six = codes.iter().any(|&pair| pair & 0x07 == 0x07 || pair & 0x70 == 0x70);
        let zero = before.iter().all(|&value| value == 0.0);
        assert!(six || zero || scale < SMALLEST_NORMAL_SCALE, "scale {scale:#04x}, codes {codes:02x?}");
        if six || zero {
            assert_eq!(before, after);
        }
    }
}

#[test]
fn modelopt_weights_decode_as_modelopt_decodes_them() {
    let (file, truth) = (open("modelopt_dense/model.safetensors"), open("modelopt_dense.expected.safetensors"));
    for projection in PROJECTIONS {
        let matrix = modelopt(&file, projection);
        assert_close(&matrix.dequantize(), &expected(&truth, projection));
        assert_quantises_back(&matrix, &truth, projection);
    }
}

#[test]
fn compressed_tensors_weights_decode_as_compressed_tensors_decodes_them() {
    let (file, truth) =
        (open("compressed_tensors_dense/model.safetensors"), open("compressed_tensors_dense.expected.safetensors"));
    for projection in PROJECTIONS {
        let matrix = compressed_tensors(&file, projection);
        assert_close(&matrix.dequantize(), &expected(&truth, projection));
        assert_quantises_back(&matrix, &truth, projection);
    }
}

#[test]
fn matrices_borrow_from_the_map() {
    let file = open("modelopt_dense/model.safetensors");
    let matrix = modelopt(&file, "gate_proj");
    let bytes = file.tensor("model.layers.0.mlp.gate_proj.weight").unwrap().bytes;
    assert_eq!(matrix.codes().as_ptr(), bytes.as_ptr());
    assert_eq!(file.metadata().unwrap()["format"], "pt");
}
