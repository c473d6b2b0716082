//! safetensors files: what is written is read back, what is damaged is refused in one clear line, nothing panics.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use half::{bf16, f16};
use hammerhead_format::tensors::{self, Dtype, File, Tensor};
use hammerhead_format::{Error, Values};
use proptest::prelude::*;
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn message<T>(result: Result<T, Error>) -> String {
    let message = result.err().expect("an error is expected").to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

/// A safetensors file's bytes: a header as it stands, then data.
fn framed(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// Opens these bytes as a file, and says where that file was.
fn open_bytes(folder: &TempDir, bytes: &[u8]) -> Result<File, Error> {
    let path = folder.path().join("probe.safetensors");
    fs::write(&path, bytes).unwrap();
    File::open(path)
}

/// An NVFP4 weight [2, 32] and a few other tensors, as valid bytes.
fn sample() -> Vec<Tensor<'static>> {
    vec![
        Tensor::from_bytes("w", Dtype::U8, [2, 16], vec![0x21; 32]),
        Tensor::from_bytes("w_scale", Dtype::F8_E4M3, [2, 2], vec![0x38; 4]),
        Tensor::from_f32("w_scale_2", [], vec![0.5]),
        Tensor::from_f32("g", [1], vec![2.0]),
        Tensor::from_f16("h", [1, 3], [1.0, 2.0, 3.0].map(f16::from_f32).to_vec()),
        Tensor::from_bf16("b", [3, 1], [1.0, 2.0, 3.0].map(bf16::from_f32).to_vec()),
        Tensor::from_f32("none", [0, 16], vec![]),
    ]
}

fn sample_file(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("sample.safetensors");
    tensors::write(&path, &sample(), None).unwrap();
    path
}

fn entries(folder: &TempDir) -> Vec<String> {
    fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn what_is_written_is_read_back() {
    let folder = folder();
    let path = folder.path().join("a.safetensors");
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned()), ("é\"\n".to_owned(), "\\".to_owned())]);
    tensors::write(&path, &sample(), Some(metadata.clone())).unwrap();
    let file = File::open(&path).unwrap();
    assert_eq!(file.path(), path);
    assert_eq!(file.metadata(), Some(&metadata));
    assert_eq!(file.names().collect::<Vec<_>>(), ["b", "g", "h", "none", "w", "w_scale", "w_scale_2"]);
    for tensor in sample() {
        let read = file.tensor(&tensor.name).unwrap();
        assert!(file.contains(&tensor.name));
        assert_eq!((read.dtype, &read.shape, &read.bytes), (tensor.dtype, &tensor.shape, &tensor.bytes));
        assert!(matches!(read.bytes, Cow::Borrowed(_)));
    }
    assert!(!file.contains("W"));
}

#[test]
fn the_safetensors_crate_reads_what_is_written() {
    let folder = folder();
    let bytes = fs::read(sample_file(&folder)).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.len(), sample().len());
    for tensor in sample() {
        let read = theirs.tensor(&tensor.name).unwrap();
        assert_eq!((read.dtype(), read.shape(), read.data()), (tensor.dtype, &tensor.shape[..], &tensor.bytes[..]));
    }
}

#[test]
fn the_same_tensors_give_the_same_bytes() {
    let folder = folder();
    let metadata: HashMap<_, _> = (0..20).map(|i| (format!("key{i}"), "value".to_owned())).collect();
    let mut reversed = sample();
    reversed.reverse();
    let write = |name: &str, tensors: &[Tensor<'_>]| {
        let path = folder.path().join(name);
        tensors::write(&path, tensors, Some(metadata.iter().map(|(k, v)| (k.clone(), v.clone())).collect())).unwrap();
        fs::read(path).unwrap()
    };
    assert_eq!(write("a", &sample()), write("b", &reversed));
}

#[test]
fn a_file_without_tensors_is_a_file() {
    let folder = folder();
    let path = folder.path().join("empty.safetensors");
    tensors::write(&path, &[], None).unwrap();
    let file = File::open(&path).unwrap();
    assert_eq!(file.names().count(), 0);
    assert_eq!(file.metadata(), None);
}

#[test]
fn a_matrix_is_read_from_codes_and_scales() {
    let folder = folder();
    let file = File::open(sample_file(&folder)).unwrap();
    let global = file.tensor("w_scale_2").unwrap().scalar_f32().unwrap();
    let matrix = tensors::matrix(&file, "w", "w_scale", global).unwrap();
    assert_eq!((matrix.rows(), matrix.k(), matrix.global()), (2, 32, 0.5.into()));
    assert_eq!(matrix.dequantize()[..2], [0.25, 0.5]);
}

#[test]
fn global_scales_are_read_from_both_scalar_shapes_and_no_other() {
    let folder = folder();
    let file = File::open(sample_file(&folder)).unwrap();
    assert_eq!(file.tensor("w_scale_2").unwrap().scalar_f32().unwrap(), 0.5);
    assert_eq!(file.tensor("g").unwrap().scalar_f32().unwrap(), 2.0);
    let error = message(Tensor::from_f32("s", [2], vec![1.0, 2.0]).scalar_f32());
    assert!(error.contains("\"s\"") && error.contains("[2]") && error.contains("[] or [1]"), "{error}");
    let error = message(file.tensor("w").unwrap().scalar_f32());
    assert!(error.contains("\"w\"") && error.contains("U8") && error.contains("F32"), "{error}");
    let error = message(Tensor::from_f32("s", [1], vec![1.0, 2.0]).scalar_f32());
    assert!(error.contains("8 bytes"), "{error}");
}

#[test]
fn aligned_values_are_borrowed_and_others_copied() {
    let folder = folder();
    let header = r#"{"x":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}"#;
    let padded = header.len().next_multiple_of(8);
    let data: Vec<u8> = [1f32, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    for (spaces, aligned) in [(padded, true), (padded + 1, false)] {
        let file = open_bytes(&folder, &framed(&format!("{header:spaces$}"), &data)).unwrap();
        let values = file.tensor("x").unwrap().into_values().unwrap();
        let Values::F32(values) = values else { panic!("an F32 tensor is read as F32") };
        assert_eq!(matches!(values, Cow::Borrowed(_)), aligned);
        assert_eq!(values[..], [1.0, -2.0]);
    }
}

#[test]
fn dense_matrices_come_in_three_types() {
    let folder = folder();
    let file = File::open(sample_file(&folder)).unwrap();
    let half = file.tensor("h").unwrap().into_dense(3.0).unwrap();
    assert_eq!((half.rows(), half.k(), half.global()), (1, 3, 3.0.into()));
    assert!(matches!(half.values(), Values::F16(_)));
    let brain = file.tensor("b").unwrap().into_dense(1.0).unwrap();
    assert!(matches!(brain.values(), Values::BF16(_)));
    assert_eq!(file.tensor("none").unwrap().into_dense(1.0).unwrap().rows(), 0);
    let error = message(file.tensor("w").unwrap().into_values());
    assert!(error.contains("U8") && error.contains("F16 or BF16 or F32"), "{error}");
    let error = message(file.tensor("g").unwrap().into_dense(1.0));
    assert!(error.contains("[1]") && error.contains("[rows, columns]"), "{error}");
    let error = message(Tensor::from_f32("x", [2, 2], vec![0.0; 3]).into_values());
    assert!(error.contains("\"x\"") && error.contains("12 bytes"), "{error}");
}

#[test]
fn a_matrix_that_is_none_is_refused_by_tensor_and_file() {
    let folder = folder();
    let path = folder.path().join("wrong.safetensors");
    let mut nan_scales = vec![0x38; 4];
    nan_scales[3] = 0x7F;
    let wrong = [
        Tensor::from_bytes("flat", Dtype::U8, [32], vec![0; 32]),
        Tensor::from_bytes("uneven", Dtype::U8, [2, 12], vec![0; 24]),
        Tensor::from_bytes("w", Dtype::U8, [2, 16], vec![0; 32]),
        Tensor::from_bytes("fp8", Dtype::F8_E4M3, [2, 32], vec![0; 64]),
        Tensor::from_f32("fp8_scale", [], vec![1.0]),
        Tensor::from_bytes("nan", Dtype::F8_E4M3, [2, 2], nan_scales),
        Tensor::from_bytes("blocked", Dtype::F8_E4M3, [128, 4], vec![0; 512]),
        Tensor::from_bytes("other", Dtype::F8_E4M3, [4, 2], vec![0; 8]),
        Tensor::from_bytes("good", Dtype::F8_E4M3, [2, 2], vec![0; 4]),
    ];
    tensors::write(&path, &wrong, None).unwrap();
    let file = File::open(&path).unwrap();
    let cases = [
        ("flat", "good", 1.0, ["\"flat\"", "[32]", "[rows, K/2]"]),
        ("uneven", "good", 1.0, ["\"uneven\"", "[2, 12]", "multiple of 16"]),
        ("fp8", "fp8_scale", 1.0, ["\"fp8\"", "F8_E4M3", "U8"]),
        ("w", "fp8_scale", 1.0, ["\"fp8_scale\"", "F32", "F8_E4M3"]),
        ("w", "nan", 1.0, ["\"nan\"", "row 1, block 1", "0x7f"]),
        ("w", "blocked", 1.0, ["\"blocked\"", "[128, 4]", "from_blocked"]),
        ("w", "other", 1.0, ["\"other\"", "[4, 2]", "[2, 2]"]),
        ("w", "good", f32::NAN, ["\"good\"", "NaN", "finite"]),
        ("w", "absent", 1.0, ["\"absent\"", "among its 9", "other files"]),
    ];
    for (codes, scales, global, parts) in cases {
        let error = message(tensors::matrix(&file, codes, scales, global));
        for part in parts.into_iter().chain(["wrong.safetensors"]) {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = folder();
    let error = message(File::open(folder.path().join("absent.safetensors")));
    assert!(error.contains("absent.safetensors") && error.contains("cannot read"), "{error}");
    let error = message(File::open(folder.path()));
    assert!(error.contains("is a folder"), "{error}");
    #[cfg(unix)]
    assert!(message(File::open("/dev/zero")).contains("no regular file"));
}

#[test]
fn files_too_short_for_a_header_are_refused() {
    let folder = folder();
    for length in [0, 1, 7] {
        let error = message(open_bytes(&folder, &vec![0; length]));
        assert!(error.contains("probe.safetensors") && error.contains("shorter than"), "{error}");
    }
}

#[test]
fn every_truncation_of_a_file_is_refused() {
    let folder = folder();
    let bytes = fs::read(sample_file(&folder)).unwrap();
    for length in 0..bytes.len() {
        let error = message(open_bytes(&folder, &bytes[..length]));
        assert!(error.contains("not a valid safetensors file"), "{length}: {error}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(message(open_bytes(&folder, &longer)).contains("follow the header"));
}

#[test]
fn wrong_headers_are_refused_with_the_reason() {
    let folder = folder();
    let tensor = |offsets: &str| format!(r#"{{"x":{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}}}"#);
    let cases = [
        (framed("{", &[]), "header is wrong"),
        (framed("garbage", &[]), "header is wrong"),
        (framed("", &[]), "header is wrong"),
        (framed("[]", &[]), "header is wrong"),
        (framed(r#"{"x":3}"#, &[]), "header is wrong"),
        (framed(r#"{"x":{"dtype":"Q\n9","shape":[4],"data_offsets":[0,4]}}"#, &[0; 4]), "Q 9"),
        (framed(r#"{"x":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}}"#, &[0; 4]), "-4"),
        (framed(&tensor("[4,0]"), &[0; 4]), "offset"),
        (framed(&tensor("[1,5]"), &[0; 5]), "offset"),
        (framed(&tensor("[0,5]"), &[0; 5]), "shape"),
        (framed(&tensor("[0,4]"), &[0; 3]), "take 4 bytes, but 3 follow"),
        (framed(&tensor("[0,4]"), &[0; 5]), "take 4 bytes, but 5 follow"),
        (framed(&tensor("[0,18446744073709551616]"), &[0; 4]), "header is wrong"),
        (u64::MAX.to_le_bytes().to_vec(), "more than the 100000000 allowed"),
        (100_000_001u64.to_le_bytes().to_vec(), "more than the 100000000 allowed"),
        (100_000_000u64.to_le_bytes().to_vec(), "but only 0 follow"),
    ];
    for (bytes, reason) in cases {
        let error = message(open_bytes(&folder, &bytes));
        assert!(error.contains("probe.safetensors") && error.contains(reason), "{reason} is missing in: {error}");
    }
    let mut not_text = framed(&tensor("[0,4]"), &[0; 4]);
    not_text[10] = 0xFF;
    assert!(message(open_bytes(&folder, &not_text)).contains("header is wrong"));
}

#[test]
fn sizes_that_only_overflow_in_sum_are_refused() {
    // Each tensor is addressable; eight of them end eight bytes short of 2⁶⁴, and the header pushes past it.
    let side = (1u64 << 61) - 1;
    let tensors: Vec<String> = (0..8)
        .map(|i| {
            let (start, end) = (i * side, (i + 1) * side);
            format!(r#""t{i}":{{"dtype":"U8","shape":[{side}],"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    let bytes = framed(&format!("{{{}}}", tensors.join(",")), &[]);
    assert!(message(open_bytes(&folder(), &bytes)).contains("but 0 follow the header"));
}

#[test]
fn names_that_a_file_cannot_hold_are_refused() {
    let folder = folder();
    let path = folder.path().join("a.safetensors");
    let twice = [Tensor::from_f32("x", [1], vec![1.0]), Tensor::from_f16("x", [0], vec![])];
    assert!(message(tensors::write(&path, &twice, None)).contains("two of that name"));
    let reserved = [Tensor::from_f32("__metadata__", [1], vec![1.0])];
    assert!(message(tensors::write(&path, &reserved, None)).contains("__metadata__"));
    assert!(entries(&folder).is_empty());
}

#[test]
fn tensors_whose_bytes_do_not_fit_are_not_written() {
    let folder = folder();
    let path = folder.path().join("a.safetensors");
    let wrong = [
        Tensor::from_f32("x", [3], vec![1.0]),
        Tensor::from_bytes("x", Dtype::F4, [3], vec![0; 2]),
        Tensor::from_bytes("x", Dtype::U8, [usize::MAX, 2], vec![0; 2]),
    ];
    for tensor in wrong {
        assert!(message(tensors::write(&path, &[tensor], None)).contains("\"x\""));
    }
    assert!(entries(&folder).is_empty());
}

#[test]
fn a_failed_write_leaves_the_old_file_and_nothing_else() {
    let folder = folder();
    let path = sample_file(&folder);
    let before = fs::read(&path).unwrap();
    assert!(tensors::write(&path, &[Tensor::from_f32("x", [3], vec![1.0])], None).is_err());
    assert_eq!(fs::read(&path).unwrap(), before);

    // The rename fails, because a folder that is not empty has the name.
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("inside"), "").unwrap();
    let error = message(tensors::write(&taken, &sample(), None));
    assert!(error.contains("cannot write") && error.contains("taken"), "{error}");
    let mut left = entries(&folder);
    left.sort();
    assert_eq!(left, ["sample.safetensors", "taken"]);

    let error = message(tensors::write(folder.path().join("no/such/folder.safetensors"), &sample(), None));
    assert!(error.contains("folder.safetensors"), "{error}");
}

#[test]
fn replacing_a_file_leaves_open_maps_as_they_were() {
    let folder = folder();
    let path = sample_file(&folder);
    let file = File::open(&path).unwrap();
    tensors::write(&path, &[Tensor::from_f32("new", [1], vec![7.0])], None).unwrap();
    assert_eq!(file.tensor("g").unwrap().scalar_f32().unwrap(), 2.0);
    assert_eq!(File::open(&path).unwrap().tensor("new").unwrap().scalar_f32().unwrap(), 7.0);
}

/// Everything a reader may do with a file; none of it may panic, whatever the file holds.
fn exercise(file: &File) {
    let names: Vec<&str> = file.names().collect();
    for name in &names {
        let tensor = file.tensor(name).unwrap();
        let _ = (tensor.scalar_f32(), tensor.shape2(), tensor.clone().into_values(), tensor.into_dense(1.0));
        for other in &names {
            if let Ok(matrix) = tensors::matrix(file, name, other, 1.0) {
                assert_eq!(matrix.dequantize().len(), matrix.rows() * matrix.k());
            }
        }
    }
}

proptest! {
    #[test]
    fn no_mutation_of_a_file_makes_reading_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        in_header: bool,
    ) {
        let folder = folder();
        let mut bytes = fs::read(sample_file(&folder)).unwrap();
        let header_end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let range = if in_header { header_end } else { bytes.len() };
        for (at, byte) in flips {
            bytes[at.index(range)] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        match open_bytes(&folder, &bytes) {
            Ok(file) => exercise(&file),
            Err(error) => prop_assert!(!error.to_string().contains('\n'), "{}", error),
        }
    }

    /// Digits for digits keeps the JSON valid, so that it is the numbers' checks that must hold.
    #[test]
    fn no_other_number_in_the_header_makes_reading_panic(choices in prop::collection::vec((any::<prop::sample::Index>(), b'0'..=b'9'), 1..4)) {
        let folder = folder();
        let mut bytes = fs::read(sample_file(&folder)).unwrap();
        let digits: Vec<usize> = (8..bytes.len()).filter(|&at| bytes[at].is_ascii_digit()).collect();
        for (at, digit) in choices {
            bytes[digits[at.index(digits.len())]] = digit;
        }
        if let Ok(file) = open_bytes(&folder, &bytes) {
            exercise(&file);
        }
    }
}

#[test]
fn a_header_that_contradicts_itself_is_refused_with_the_tensor_s_name() {
    let folder = folder();
    let good = r#""good":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#;
    for wrong in [
        r#"{"dtype":"U8","shape":[18446744073709551615,16],"data_offsets":[4,8]}"#,
        r#"{"dtype":"U8","shape":[5],"data_offsets":[4,8]}"#,
        r#"{"dtype":"U8","shape":[4],"data_offsets":[8,4]}"#,
        r#"{"dtype":"NVFP4","shape":[4],"data_offsets":[4,8]}"#,
        "3",
    ] {
        let header = format!(r#"{{"__metadata__":{{}},{good},"wrong":{wrong}}}"#);
        let message = message(open_bytes(&folder, &framed(&header, &[0; 8])));
        assert!(message.contains(r#"wrong at tensor "wrong""#), "{message}");
    }
}
