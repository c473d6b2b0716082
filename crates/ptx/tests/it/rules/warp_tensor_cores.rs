//! mma.sync and the copies of single threads: registers, selectors, sizes, alignment.

use ptx::instr::Scaling;

use super::*;

fn half(acc: [u32; 4]) -> Mma {
    let (a, b) = ([20, 21, 22, 23].map(r), [24, 25].map(r));
    Mma::Dense { element: MatrixElement::F16, saturate: false, d: acc.map(r), a, b }
}

fn scaled(lanes_a: u32, lane_b: u32) -> Mma {
    let (acc, a, b) = ([0, 1, 2, 3].map(r), [20, 21, 22, 23].map(r), [24, 25].map(r));
    let (scaling, scale_a, scale_b) = (Scaling::NvFp4, r(30), r(31));
    Mma::BlockScaled { scaling, d: acc, a, b, scale_a, lanes_a, byte_a: 0, scale_b, lane_b, byte_b: 0 }
}

fn copy(dst: u32, bytes: u32, source_bytes: Option<u64>) -> AsyncCopy {
    let (dst, src, source_bytes) = (shared(dst), global(), source_bytes.map(imm));
    AsyncCopy::ThreadCopy { dst, src, bytes, source_bytes, policy: None }
}

#[test]
fn an_accumulator_named_twice_is_refused() {
    assert!(matches!(broken(half([0, 1, 2, 0])), Rule::Repeated { found, .. } if found == r(0)));
}

#[test]
fn a_fragment_in_a_wide_register_is_refused() {
    let (acc, a, b) = ([0, 1, 2, 3].map(r), [r(20), r(21), r(22), d(0)], [24, 25].map(r));
    let op = Mma::Dense { element: MatrixElement::Bf16, saturate: false, d: acc, a, b };
    assert!(matches!(broken(op), Rule::Bank { what: "a register of A", .. }));
}

#[test]
fn half_a_warp_cannot_multiply() {
    let rule = changed(|kernel| {
        kernel.launch.threads = 48;
        insert(kernel, vec![half([0, 1, 2, 3]).into()]);
    });
    is_value(&rule, 48);
}

#[test]
fn block_scales_exist_on_desktop_blackwell_alone() {
    for target in [Target::Sm80, Target::Sm90a, Target::Sm100a] {
        let rule = broken_on(target, vec![scaled(0, 0).into()]);
        assert!(matches!(rule, Rule::Feature { feature: Feature::BlockScaledMma, .. }));
    }
    let mut kernel = kernel(Target::Sm120f);
    insert(&mut kernel, vec![scaled(1, 3).into()]);
    assert_eq!(kernel.check(), Ok(()));
}

#[test]
fn scales_from_lanes_that_a_quad_does_not_have_are_refused() {
    is_value(&broken_on(Target::Sm120f, vec![scaled(2, 0).into()]), 2);
    is_value(&broken_on(Target::Sm120f, vec![scaled(0, 4).into()]), 4);
}

#[test]
fn a_threads_copy_of_12_bytes_is_refused() {
    let rules = {
        let mut kernel = kernel(Target::Sm80);
        insert(&mut kernel, vec![copy(TILE, 12, None).into()]);
        rules(&kernel)
    };
    assert!(matches!(rules[..], [Rule::Count { found: 12, .. }]), "{rules:?}");
}

#[test]
fn a_threads_copy_off_its_size_is_refused() {
    assert!(matches!(broken(copy(TILE + 8, 16, None)), Rule::Misaligned { found: 8, wanted: 16, .. }));
}

#[test]
fn a_threads_copy_that_reads_more_than_it_writes_is_refused() {
    is_value(&broken(copy(TILE, 8, Some(16))), 16);
}

#[test]
fn a_threads_copy_beyond_shared_memory_is_refused() {
    assert!(matches!(broken(copy(BARRIER + 16, 16, None)), Rule::OutOfRegion { .. }));
}
