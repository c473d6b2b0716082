//! What is wrong with a problem is said in one line that names the tensor, and nothing is left under the output's name.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Group, Operand, Random, assert_refused, command, hammerhead, stderr};
use format::tensors::{self, Dtype, Tensor};
use tempfile::TempDir;

/// A folder with a place for the input and one for the output.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn input(&self) -> PathBuf {
        self.folder.path().join("problem.safetensors")
    }

    fn output(&self) -> PathBuf {
        self.folder.path().join("c.safetensors")
    }

    fn run(&self, more: &[&str]) -> std::process::Output {
        self.run_to(&self.output(), more)
    }

    fn run_to(&self, output: &Path, more: &[&str]) -> std::process::Output {
        let (input, output) = (self.input(), output.to_path_buf());
        let args = ["run".as_ref(), "--input".as_ref(), input.as_os_str(), "--output".as_ref(), output.as_os_str()];
        hammerhead(args.into_iter().chain(more.iter().map(std::ffi::OsStr::new)))
    }

    /// Runs it and expects a refusal that leaves nothing behind.
    fn assert_refused(&self, more: &[&str], fragments: &[&str]) {
        let output = self.run(more);
        assert_refused(&output, fragments);
        let names: Vec<_> = fs::read_dir(self.folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), usize::from(self.input().exists()), "left behind: {names:?}");
    }

    fn write(&self, tensors: &[Tensor<'_>]) {
        tensors::write(self.input(), tensors, None).unwrap();
    }
}

/// A good problem of 3 tokens, 5 columns and k = 32, gated, alone.
fn good() -> Vec<Tensor<'static>> {
    group().tensors("")
}

fn group() -> Group {
    let random = &mut Random(9);
    let a = Operand::quantised(random, 3, 32, Some(0.5));
    let b1 = Operand::quantised(random, 5, 32, Some(0.1));
    let b2 = Some(Operand::quantised(random, 5, 32, Some(0.2)));
    Group { a, b1, b2 }
}

fn named<'t>(tensors: &'t mut [Tensor<'static>], name: &str) -> &'t mut Tensor<'static> {
    tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
}

/// Expects the good problem to be refused once `spoil` has had it.
fn assert_spoilt(more: &[&str], fragments: &[&str], spoil: impl FnOnce(&mut Vec<Tensor<'static>>)) {
    let (place, mut tensors) = (Place::new(), good());
    spoil(&mut tensors);
    place.write(&tensors);
    place.assert_refused(more, fragments);
}

#[test]
fn the_problem_that_is_spoilt_here_is_good_to_begin_with() {
    let place = Place::new();
    place.write(&good());
    let output = place.run(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(place.output().exists());
}

#[test]
fn a_tensor_of_the_wrong_type_is_named() {
    for name in ["a", "b1", "b2"] {
        assert_spoilt(&[], &[&format!("{name:?}"), "I8", "U8"], |t| named(t, name).dtype = Dtype::I8);
        let scale = format!("{name}_scale");
        assert_spoilt(&[], &[&format!("{scale:?}"), "U8", "F8_E4M3"], |t| named(t, &scale).dtype = Dtype::U8);
        let global = format!("{name}_global");
        assert_spoilt(&[], &[&format!("{global:?}"), "I32", "F32"], |t| named(t, &global).dtype = Dtype::I32);
    }
}

#[test]
fn a_tensor_of_the_wrong_shape_is_named() {
    let resized = |name: &'static str, shape: &'static [usize]| {
        move |tensors: &mut Vec<Tensor<'static>>| {
            let tensor = named(tensors, name);
            let size = tensor.dtype.bitsize() / 8 * shape.iter().product::<usize>();
            tensor.shape = shape.to_vec();
            tensor.bytes = vec![0x21; size].into();
        }
    };
    for (name, shape) in [
        ("a", &[3, 2, 16][..]),
        ("a", &[48]),
        ("a", &[3, 0]),
        ("a_scale", &[3, 3]),
        ("a_scale", &[2, 3]),
        ("a_scale", &[6]),
        ("b1", &[5, 2, 8]),
        ("b1_scale", &[2, 5]),
        ("b2_scale", &[4, 2]),
        ("a_global", &[2]),
        ("b1_global", &[1, 1]),
        ("b2_global", &[0]),
    ] {
        assert_spoilt(&[], &[&format!("{name:?}"), &format!("{shape:?}")], resized(name, shape));
    }
}

#[test]
fn a_k_that_is_no_multiple_of_sixteen_is_refused() {
    for (name, rows) in [("a", 3), ("b1", 5), ("b2", 5)] {
        assert_spoilt(&[], &[&format!("{name:?}"), "multiple of 16"], |tensors| {
            *named(tensors, name) = Tensor::from_bytes(name, Dtype::U8, [rows, 12], vec![0; rows * 12]);
        });
    }
}

#[test]
fn operands_that_do_not_belong_together_are_named() {
    let other = |rows, k| Operand::quantised(&mut Random(1), rows, k, None);
    let place = Place::new();
    place.write(&Group { a: other(3, 64), ..group() }.tensors(""));
    place.assert_refused(&[], &["\"a\"", "64", "\"b1\"", "32"]);
    place.write(&Group { b2: Some(other(6, 32)), ..group() }.tensors(""));
    place.assert_refused(&[], &["\"b2\"", "[6, 32]", "[5, 32]"]);
    place.write(&Group { a: Operand::floats(&mut Random(1), 3, 24, Dtype::F16, None), ..group() }.tensors(""));
    place.assert_refused(&[], &["\"a\"", "24", "32"]);
    place.write(&Group { b1: other(0, 32), b2: Some(other(0, 32)), ..group() }.tensors(""));
    place.assert_refused(&[], &["\"b1\"", "no rows"]);
}

#[test]
fn a_nan_scale_is_refused_by_position() {
    for byte in [0x7F, 0xFF] {
        assert_spoilt(&[], &["\"b2_scale\"", "row 3, block 1", &format!("{byte:#04x}")], |tensors| {
            named(tensors, "b2_scale").bytes.to_mut()[7] = byte;
        });
    }
}

#[test]
fn a_global_scale_that_is_not_finite_is_named() {
    for (value, text) in [(f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf"), (f32::NAN, "NaN")] {
        for name in ["a_global", "b1_global", "b2_global"] {
            assert_spoilt(&[], &[&format!("{name:?}"), text], |tensors| {
                named(tensors, name).bytes = value.to_le_bytes().to_vec().into();
            });
        }
    }
}

#[test]
fn a_missing_tensor_is_named() {
    for name in ["a", "a_scale", "b1", "b1_scale", "b2_scale"] {
        assert_spoilt(&[], &[&format!("{name:?}")], |tensors| tensors.retain(|t| t.name != name));
    }
    assert_spoilt(&["--gate", "silu"], &["\"b2\"", "--gate none"], |tensors| {
        tensors.retain(|t| !t.name.starts_with("b2"));
    });
    assert_spoilt(&[], &["\"b2_scale\"", "b2 is not"], |tensors| tensors.retain(|t| t.name != "b2"));
    assert_spoilt(&[], &["\"a\""], Vec::clear);
}

#[test]
fn a_tensor_that_does_not_belong_is_named() {
    for name in ["b1_scales", "b3", "A", "g.a", "g00.a", "gx.a", "g0.c", "c", "bias\nwith a line break"] {
        let tensor = Tensor::from_f32(name, [], vec![1.0]);
        let known = name.replace('\n', "\\n");
        assert_spoilt(&[], &[&format!("\"{known}\""), "known are a, b1 and b2"], |tensors| tensors.push(tensor));
    }
    assert_spoilt(&["--gate", "none"], &["\"b2\"", "--gate none"], |_| {});
}

#[test]
fn dense_activations_have_no_scale_and_no_infinity() {
    let random = &mut Random(3);
    let dense = Operand::floats(random, 3, 32, Dtype::F16, None);
    let place = Place::new();
    let mut tensors = Group { a: dense.clone(), ..group() }.tensors("");
    tensors.push(Tensor::from_bytes("a_scale", Dtype::F8_E4M3, [3, 2], vec![0x38; 6]));
    place.write(&tensors);
    place.assert_refused(&[], &["\"a_scale\"", "F16"]);
    for value in [f32::NAN, f32::INFINITY] {
        let mut groups = [group(), group()].map(|g| Group { a: dense.clone(), ..g }.tensors(""));
        named(&mut groups[1], "a").bytes.to_mut()[2 * 40..][..2]
            .copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
        for (index, group) in groups.iter_mut().enumerate() {
            group.iter_mut().for_each(|tensor| tensor.name = format!("g{index}.{}", tensor.name));
        }
        place.write(&groups.concat());
        place.assert_refused(&[], &["\"g1.a\"", "row 1, column 8"]);
    }
}

#[test]
fn groups_are_numbered_without_gaps_and_not_mixed_with_a_problem_that_stands_alone() {
    let place = Place::new();
    place.write(&[group().tensors("g0."), group().tensors("g2.")].concat());
    place.assert_refused(&[], &["\"g1.a\"", "missing"]);
    place.write(&[group().tensors("g1."), group().tensors("g18446744073709551615.")].concat());
    place.assert_refused(&[], &["\"g0.a\"", "missing"]);
    place.write(&[group().tensors(""), group().tensors("g0.")].concat());
    place.assert_refused(&[], &["no group prefix", "\"g0."]);
    place.write(&[group().tensors("g0."), Group { b2: None, ..group() }.tensors("g1.")].concat());
    place.assert_refused(&[], &["\"g1.b2\"", "missing"]);
    let dense = Group { a: Operand::floats(&mut Random(1), 1, 32, Dtype::BF16, None), ..group() };
    place.write(&[group().tensors("g0."), dense.tensors("g1.")].concat());
    place.assert_refused(&[], &["\"g1.a\"", "bf16", "nvfp4"]);
}

#[test]
fn a_damaged_file_is_refused_wherever_it_is_cut() {
    let place = Place::new();
    place.write(&good());
    let whole = fs::read(place.input()).unwrap();
    for length in (0..whole.len()).step_by(37).chain([7, 8, 9, whole.len() - 1]) {
        fs::write(place.input(), &whole[..length]).unwrap();
        place.assert_refused(&[], &["problem.safetensors", "not a valid safetensors file"]);
    }
    let longer = [whole.clone(), vec![0]].concat();
    fs::write(place.input(), longer).unwrap();
    place.assert_refused(&[], &["not a valid safetensors file"]);
}

#[test]
fn a_damaged_header_is_refused_or_read_but_never_a_crash() {
    let place = Place::new();
    place.write(&good());
    let whole = fs::read(place.input()).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for position in (0..header).step_by(11) {
        let mut damaged = whole.clone();
        damaged[position] ^= 0x15;
        fs::write(place.input(), &damaged).unwrap();
        let output = place.run(&[]);
        match output.status.code() {
            Some(0) => fs::remove_file(place.output()).unwrap(),
            _ => {
                assert_refused(&output, &["problem.safetensors"]);
                assert!(!place.output().exists());
            }
        }
    }
}

/// A file whose header is written by hand.
fn by_hand(place: &Place, header: &str, data: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    fs::write(place.input(), bytes).unwrap();
}

#[test]
fn a_shape_that_no_memory_holds_is_refused() {
    let place = Place::new();
    for shape in ["[18446744073709551615,16]", "[4611686018427387904,8]", "[9223372036854775807,9223372036854775807]"] {
        by_hand(&place, &format!(r#"{{"a":{{"dtype":"U8","shape":{shape},"data_offsets":[0,16]}}}}"#), 16);
        place.assert_refused(&[], &["not a valid safetensors file", "\"a\""]);
    }
    by_hand(&place, r#"{"a":{"dtype":"U8","shape":[2,8],"data_offsets":[0,18446744073709551615]}}"#, 16);
    place.assert_refused(&[], &["not a valid safetensors file", "\"a\""]);
    fs::write(place.input(), u64::MAX.to_le_bytes()).unwrap();
    place.assert_refused(&[], &["header"]);
}

#[test]
fn a_result_that_no_memory_holds_is_refused_before_the_work() {
    // Small operands whose product has 1.6·10¹³ elements.
    let (place, rows) = (Place::new(), 4_000_000);
    let matrix = |name: &str| {
        [
            Tensor::from_bytes(name, Dtype::U8, [rows, 8], vec![0; rows * 8]),
            Tensor::from_bytes(format!("{name}_scale"), Dtype::F8_E4M3, [rows, 1], vec![0; rows]),
        ]
    };
    place.write(&[matrix("a"), matrix("b1")].concat());
    place.assert_refused(&[], &["4000000×4000000×16", "split"]);
}

#[test]
fn a_file_that_is_not_there_or_no_file_is_named() {
    let place = Place::new();
    place.assert_refused(&[], &["problem.safetensors", "No such file"]);
    fs::create_dir(place.input()).unwrap();
    place.assert_refused(&[], &["problem.safetensors", "a folder"]);
}

#[test]
fn an_output_that_cannot_be_written_is_named() {
    let place = Place::new();
    place.write(&good());
    let nowhere = place.folder.path().join("no such folder/c.safetensors");
    assert_refused(&place.run_to(&nowhere, &[]), &["no such folder/c.safetensors", "folder"]);
    assert_refused(&place.run_to(place.folder.path(), &[]), &["it is a folder"]);
    let under_a_file = place.input().join("c.safetensors");
    assert_refused(&place.run_to(&under_a_file, &[]), &["c.safetensors", "folder"]);
    // Where not even root may make files.
    #[cfg(target_os = "linux")]
    assert_refused(
        &place.run_to(Path::new("/proc/self/fdinfo/c.safetensors"), &[]),
        &["/proc/self/fdinfo/c.safetensors"],
    );
}

#[cfg(unix)]
#[test]
fn the_input_is_never_overwritten_not_even_through_a_link() {
    let place = Place::new();
    place.write(&good());
    let before = fs::read(place.input()).unwrap();
    let (symbolic, hard) = (place.folder.path().join("symbolic"), place.folder.path().join("hard"));
    std::os::unix::fs::symlink(place.input(), &symbolic).unwrap();
    fs::hard_link(place.input(), &hard).unwrap();
    for output in [place.input(), symbolic, hard, place.folder.path().join("./problem.safetensors")] {
        assert_refused(&place.run_to(&output, &[]), &["the input file itself"]);
    }
    assert_eq!(fs::read(place.input()).unwrap(), before);
}

#[test]
fn a_configuration_that_no_backend_can_run_is_refused_with_the_reason() {
    let place = Place::new();
    place.write(&good());
    place.assert_refused(&["--config", "tile=16x5"], &["5 columns", "16"]);
    place.assert_refused(&["--config", "strategy=ping-pong,stages=1"], &["stages"]);
    place.assert_refused(&["--config", "tile=9999999999999999x16"], &["9999999999999999"]);
}

#[test]
fn a_failed_run_leaves_an_earlier_result_as_it_was() {
    let place = Place::new();
    place.write(&good());
    fs::write(place.output(), "earlier").unwrap();
    let output = place.run(&["--config", "tile=16x5"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read_to_string(place.output()).unwrap(), "earlier");
}

#[test]
fn text_that_is_no_number_is_refused_in_words() {
    for (args, words) in [
        (["sim", "--seeds", "many"], "'many' for '--seeds"),
        (["run", "--seed", "-"], "a whole number is expected"),
        (["run", "--seed", "99999999999999999999999"], "the number is too large"),
    ] {
        let output = command().args(args).output().unwrap();
        let said = stderr(&output);
        assert!(output.status.code() == Some(2) && said.contains(words) && !said.contains("digit found"), "{said}");
    }
}
