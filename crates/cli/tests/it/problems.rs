//! Problems in files, of odd shapes and every kind, against sums computed here by the definition.

use crate::common::{Expected, GATES, Group, OUTPUTS, Operand, Random, backends, strategies, write_problem};
use format::tensors::Dtype;

/// A group of NVFP4 operands, or with activations of another type.
fn group(random: &mut Random, (m, n, k): (usize, usize, usize), activation: Option<Dtype>, gated: bool) -> Group {
    let scale = 0.25 / (k as f32).sqrt();
    let a = match activation {
        None => Operand::quantised(random, m, k, Some(0.25)),
        Some(dtype) => Operand::floats(random, m, k, dtype, Some(0.75)),
    };
    let b1 = Operand::quantised(random, n, k, Some(scale));
    let b2 = gated.then(|| Operand::quantised(random, n, k, Some(10.0 * scale)));
    Group { a, b1, b2 }
}

/// Every backend and strategy that it has: as planned, and if asked also in a tile that cuts the problem.
fn configurations(cut: bool) -> Vec<[String; 4]> {
    let mut all = Vec::new();
    for backend in backends() {
        let (strategies, tile) = strategies(backend);
        for strategy in strategies {
            for tile in ["", tile].into_iter().take(if cut { 2 } else { 1 }) {
                let config = format!("strategy={strategy}{tile}");
                all.push(["--backend".into(), backend.into(), "--config".into(), config]);
            }
        }
    }
    all
}

fn check(groups: &[Group], alone: bool, gate: &'static str, outputs: &[&str], cut: bool) {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("problem.safetensors");
    write_problem(&input, groups, alone);
    let expected = Expected::new(&input, groups, alone, gate);
    for configuration in configurations(cut) {
        let more: Vec<&str> = configuration.iter().map(String::as_str).collect();
        outputs.iter().for_each(|out| expected.assert_computed(out, &more));
    }
}

#[test]
fn odd_shapes_are_computed_exactly_enough() {
    let mut random = Random(1);
    for shape in [(1, 1, 16), (17, 129, 48), (3, 100, 208), (40, 33, 80), (0, 8, 32), (129, 15, 1040)] {
        check(&[group(&mut random, shape, None, true)], true, "silu", &["f32"], true);
    }
}

#[test]
fn every_gate_goes_with_every_activation_and_output_type() {
    let mut random = Random(2);
    for gate in GATES {
        for activation in [None, Some(Dtype::F16), Some(Dtype::BF16), Some(Dtype::F32)] {
            let group = group(&mut random, (18, 35, 112), activation, gate != "none");
            // How a problem is cut is no business of its types.
            check(&[group], true, gate, &OUTPUTS, false);
        }
    }
}

#[test]
fn every_group_of_a_ragged_problem_has_its_own_sizes() {
    let mut random = Random(3);
    for activation in [None, Some(Dtype::BF16)] {
        let shapes = [(5, 40, 64), (0, 17, 16), (33, 100, 208), (1, 129, 48)];
        let groups: Vec<Group> = shapes.map(|shape| group(&mut random, shape, activation, true)).to_vec();
        for gate in ["silu", "gpt-oss"] {
            check(&groups, false, gate, &["f16"], true);
        }
    }
}

#[test]
fn more_than_ten_groups_keep_their_numbers() {
    let mut random = Random(4);
    let groups: Vec<Group> = (0..12).map(|m| group(&mut random, (m, 20, 32), None, false)).collect();
    check(&groups, false, "none", &["f32"], true);
}

#[test]
fn a_global_scale_that_is_absent_is_one() {
    let mut random = Random(5);
    let mut group = group(&mut random, (4, 9, 32), None, true);
    group.a.global = None;
    group.b2.as_mut().unwrap().global = None;
    check(&[group], true, "silu", &["f32"], true);
}

#[test]
fn without_b2_and_without_asking_it_is_a_plain_gemm() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("p"), folder.path().join("c"));
    let group = group(&mut Random(6), (3, 5, 32), None, false);
    write_problem(&input, std::slice::from_ref(&group), true);
    let args = ["run", "--input", input.to_str().unwrap(), "--output", output.to_str().unwrap(), "--result", "f32"];
    let told = crate::common::stderr(&crate::common::hammerhead(args));
    assert!(told.contains("gate none"), "{told}");
    let file = format::tensors::File::open(&output).unwrap();
    let found = crate::common::read_result(&file, "c", "f32", [3, 5]);
    assert!(crate::common::accepts(&group.element("none", 2, 4), found[14], "f32"));
}

#[test]
fn a_global_scale_of_shape_one_is_read_like_a_scalar() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("p");
    let group = group(&mut Random(7), (3, 5, 32), None, true);
    let mut tensors = group.tensors("");
    for tensor in tensors.iter_mut().filter(|t| t.name.ends_with("_global")) {
        tensor.shape = vec![1];
    }
    format::tensors::write(&input, &tensors, None).unwrap();
    Expected::new(&input, &[group], true, "silu").assert_computed("f32", &[]);
}
