//! `quantize`: the layout it writes, what it copies, what it refuses.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::common::{Random, assert_refused, hammerhead, stderr, succeed};
use format::tensors::{self, Dtype, File, Tensor};
use format::{Dense, loss};
use half::{bf16, f16};
use tempfile::TempDir;

struct Place {
    folder: TempDir,
}

impl Place {
    fn new(tensors: &[Tensor<'_>]) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        tensors::write(place.path("in"), tensors, Some(metadata)).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn args(&self, more: &[&str]) -> Vec<String> {
        let paths = ["in", "out"].map(|name| self.path(name).to_str().unwrap().to_owned());
        let more = more.iter().map(|arg| (*arg).to_owned());
        std::iter::once("quantize".to_owned()).chain(paths).chain(more).collect()
    }
}

fn numbers(count: usize) -> Vec<f32> {
    let mut random = Random(11);
    (0..count).map(|_| random.number()).collect()
}

/// A checkpoint with a matrix of each type, one of uneven K, and tensors that are no matrices.
fn checkpoint() -> Vec<Tensor<'static>> {
    let halves = numbers(8 * 32).into_iter().map(f16::from_f32).collect();
    let brains = numbers(5 * 48).into_iter().map(bf16::from_f32).collect();
    vec![
        Tensor::from_f16("layers.0.up.weight", [8, 32], halves),
        Tensor::from_bf16("layers.1.up.weight", [5, 48], brains),
        Tensor::from_f32("head", [3, 16], numbers(48)),
        Tensor::from_f32("uneven", [2, 24], numbers(48)),
        Tensor::from_f32("bias", [32], numbers(32)),
        Tensor::from_f32("stack", [2, 2, 16], numbers(64)),
        Tensor::from_bytes("ids", Dtype::I64, [2, 16], vec![7; 256]),
    ]
}

#[test]
fn every_matrix_becomes_three_tensors_of_modelopt_s_names_and_the_rest_is_copied() {
    let place = Place::new(&checkpoint());
    let told = succeed(place.args(&[]));
    for part in ["layers.0.up.weight", "8×32", "copied: uneven [2, 24]", "3 quantised, 4 copied"] {
        assert!(told.contains(part), "no {part:?} in:\n{told}");
    }
    let (before, after) = (File::open(place.path("in")).unwrap(), File::open(place.path("out")).unwrap());
    assert_eq!(after.metadata(), before.metadata());
    for (name, rows, k) in [("layers.0.up.weight", 8, 32), ("layers.1.up.weight", 5, 48), ("head", 3, 16)] {
        let global = after.tensor(&format!("{name}_scale_2")).unwrap();
        assert_eq!((global.dtype, global.shape.as_slice()), (Dtype::F32, [].as_slice()));
        let scales = format!("{name}_scale");
        let matrix = tensors::matrix(&after, name, &scales, global.scalar_f32().unwrap()).unwrap();
        assert_eq!((matrix.rows(), matrix.k()), (rows, k));
        let source: Dense<'_> = before.tensor(name).unwrap().into_dense(1.0).unwrap();
        assert!(loss(&source, &matrix).unwrap().relative < 0.12);
    }
    for name in ["uneven", "bias", "stack", "ids"] {
        let (old, new) = (before.tensor(name).unwrap(), after.tensor(name).unwrap());
        assert_eq!((old.dtype, old.shape, old.bytes), (new.dtype, new.shape, new.bytes), "{name}");
    }
    assert_eq!(after.names().count(), 3 * 3 + 4);
}

#[test]
fn a_pattern_chooses_and_the_report_for_machines_tells_the_errors() {
    let place = Place::new(&checkpoint());
    let report: serde_json::Value =
        serde_json::from_str(&succeed(place.args(&["--tensor", "layers.?.*", "--json"]))).unwrap();
    let quantised = report["quantised"].as_array().unwrap();
    assert_eq!(quantised.len(), 2);
    assert_eq!(
        (quantised[0]["name"].as_str(), quantised[0]["shape"][1].as_u64()),
        (Some("layers.0.up.weight"), Some(32))
    );
    let error = quantised[0]["relative_error"].as_f64().unwrap();
    assert!(error > 0.01 && error < 0.12, "{error}");
    assert!(report["bytes_after"].as_u64() < report["bytes_before"].as_u64());
    assert_eq!(File::open(place.path("out")).unwrap().tensor("head").unwrap().dtype, Dtype::F32);
}

#[test]
fn what_is_asked_for_but_cannot_be_quantised_is_named() {
    let place = Place::new(&checkpoint());
    for (pattern, fragments) in [
        ("uneven", ["\"uneven\"", "multiple of 16"]),
        ("une*", ["\"uneven\"", "multiple of 16"]),
        ("bias", ["\"bias\"", "no matrix"]),
        ("ids", ["\"ids\"", "only F16, BF16 and F32"]),
        ("nothing*", ["\"nothing*\"", "no tensor"]),
    ] {
        assert_refused(&hammerhead(place.args(&["--tensor", pattern])), &fragments);
        assert!(!place.path("out").exists());
    }
}

#[test]
fn a_name_that_is_taken_is_not_overwritten() {
    let mut tensors = checkpoint();
    tensors.push(Tensor::from_f32("head_scale", [1], vec![1.0]));
    let place = Place::new(&tensors);
    assert_refused(&hammerhead(place.args(&[])), &["\"head\"", "\"head_scale\""]);
    assert!(!place.path("out").exists());
    succeed(place.args(&["--tensor", "layers*"]));
}

#[test]
fn a_number_that_is_not_finite_is_refused_by_position() {
    let mut values = numbers(48);
    values[20] = f32::NAN;
    let place = Place::new(&[Tensor::from_f32("w", [3, 16], values)]);
    assert_refused(&hammerhead(place.args(&[])), &["\"w\"", "row 1, column 4", "NaN"]);
    assert!(!place.path("out").exists());
}

#[test]
fn input_and_output_are_two_files() {
    let place = Place::new(&checkpoint());
    let path = place.path("in");
    let output = hammerhead(["quantize".as_ref(), path.as_os_str(), path.as_os_str()]);
    assert_refused(&output, &["the input file itself"]);
    assert!(!stderr(&output).is_empty());
}

fn matrix(name: &str, rows: usize) -> Tensor<'static> {
    Tensor::from_f32(name, [rows, 32], numbers(rows * 32))
}

#[test]
fn what_was_quantised_can_be_run() {
    let place = Place::new(&[matrix("a", 4), matrix("b1", 6), matrix("b2", 6)]);
    let (input, output) = (place.path("out"), place.path("c"));
    let run = |input: &Path| {
        hammerhead(["run".as_ref(), "--input".as_ref(), input.as_os_str(), "--output".as_ref(), output.as_os_str()])
    };
    for patterns in [&["--tensor", "b?"][..], &[]] {
        succeed(place.args(patterns));
        let ran = run(&input);
        assert!(ran.status.success(), "{}", stderr(&ran));
        assert_eq!(File::open(&output).unwrap().tensor("c").unwrap().shape, [4, 6]);
    }
    let after = File::open(&input).unwrap();
    let mut problem: Vec<_> = after.names().map(|name| after.tensor(name).unwrap()).collect();
    problem.push(Tensor::from_f32("b1_global", [], vec![1.0]));
    tensors::write(place.path("both"), &problem, None).unwrap();
    assert_refused(&run(&place.path("both")), &["\"b1_scale_2\"", "\"b1_global\"", "two names"]);
}

#[test]
fn what_was_quantised_is_read_again_whatever_it_is_called() {
    let names = [
        "b1",
        "weight",
        "head",
        "m.bias",
        "m.scales",
        "m.down_proj_scales",
        "m._weight_qdata",
        "m.up.weight",
        "n_weight",
    ];
    let tensors: Vec<_> = names.iter().enumerate().map(|(at, name)| matrix(name, at + 1)).collect();
    let place = Place::new(&tensors);
    succeed(place.args(&[]));
    let (quantised, restored) = (place.path("out"), place.path("restored"));
    let told = succeed(["inspect".as_ref(), quantised.as_os_str()]);
    assert!(told.contains("9 quantised matrices") && told.contains("b1 "), "{told}");
    succeed(["dequantize".as_ref(), quantised.as_os_str(), restored.as_os_str()]);
    let (before, after) = (File::open(place.path("in")).unwrap(), File::open(&restored).unwrap());
    assert_eq!(after.names().collect::<Vec<_>>(), before.names().collect::<Vec<_>>());
    let quantised = File::open(&quantised).unwrap();
    for name in names {
        let global = quantised.tensor(&format!("{name}_scale_2")).unwrap().scalar_f32().unwrap();
        let expected = tensors::matrix(&quantised, name, &format!("{name}_scale"), global).unwrap().dequantize();
        let bytes: Vec<u8> = expected.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(after.tensor(name).unwrap().bytes, bytes, "{name}");
    }
}
