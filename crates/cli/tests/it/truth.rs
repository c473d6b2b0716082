//! Problems whose results were computed by another program, on every backend, in every strategy, to every output type.

use crate::common::{Expected, Group, Operand, backends, data, prefixes, strategies};
use format::tensors::{Dtype, File};

/// The problems, and whether each stands alone in its file.
const PROBLEMS: [(&str, usize, bool); 2] =
    [("dense_m17_n129_k192_hard_scales", 1, true), ("group_m1_17_40_0_n72_k256", 4, false)];

fn read(name: &str, groups: usize, alone: bool) -> Vec<Group> {
    let file = File::open(data(name)).unwrap();
    let group = |prefix: String| {
        let operand = |part: &str| Operand::read(&file, &format!("{prefix}{part}"));
        Group { a: operand("a"), b1: operand("b1"), b2: Some(operand("b2")) }
    };
    prefixes(groups, alone).into_iter().map(group).collect()
}

fn expected(name: &str, prefix: &str) -> Vec<f64> {
    let file = File::open(data(&format!("{name}.expected"))).unwrap();
    let tensor = file.tensor(&format!("{prefix}c")).unwrap();
    assert_eq!(tensor.dtype, Dtype::F64);
    tensor.bytes.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn the_naive_computation_of_these_tests_agrees_with_the_other_program() {
    for (name, groups, alone) in PROBLEMS {
        let prefixes = prefixes(groups, alone);
        for (group, prefix) in read(name, groups, alone).iter().zip(prefixes) {
            let n = group.b1.rows;
            let expected = expected(name, &prefix);
            assert_eq!(expected.len(), group.a.rows * n);
            for (index, &expected) in expected.iter().enumerate() {
                let element = group.element("silu", index / n, index % n);
                // Both sum in f64, in different orders.
                let slack = 1e-6 * element.tolerance + 1e-12 * expected.abs();
                assert!((element.value - expected).abs() <= slack, "{name} {prefix} {index}");
            }
        }
    }
}

#[test]
fn every_backend_strategy_and_output_type_agrees_with_the_other_program() {
    for (name, groups, alone) in PROBLEMS {
        let expected = Expected::new(&data(name), &read(name, groups, alone), alone, "silu");
        for backend in backends() {
            for strategy in strategies(backend).0 {
                for out in crate::common::OUTPUTS {
                    let config = format!("strategy={strategy}");
                    let more = ["--backend", backend, "--config", &config];
                    expected.assert_computed(out, &more);
                }
            }
        }
    }
}

#[test]
fn raw_sums_beyond_half_precision_do_no_harm_because_the_cast_comes_last() {
    let (name, groups, alone) = PROBLEMS[0];
    let mut raw = read(name, groups, alone);
    (raw[0].a.global, raw[0].b1.global) = (None, None);
    let largest = (0..17 * 129).map(|i| raw[0].element("none", i / 129, i % 129).value.abs()).fold(0.0, f64::max);
    assert!(largest > 65504.0, "the problem is not as hard as it says: {largest}");
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (data(name), folder.path().join("c"));
    crate::common::succeed([
        "run".as_ref(),
        "--input".as_ref(),
        input.as_os_str(),
        "--output".as_ref(),
        output.as_os_str(),
    ]);
    let found = crate::common::read_result(&File::open(&output).unwrap(), "c", "f16", [17, 129]);
    assert!(found.iter().all(|c| c.is_finite()));
}
