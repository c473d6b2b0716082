//! wgmma: shapes, fragments, descriptors.

use super::*;

fn multiply(n: u32, count: u32, a: MatrixA) -> Wgmma {
    Wgmma::Mma {
        n,
        element: MatrixElement::F16,
        d: (0..count).map(r).collect(),
        a,
        b: d(0),
        accumulate: Accumulate::Add,
        negate_a: false,
        negate_b: false,
        transpose_b: false,
    }
}

const FRAGMENT: MatrixA = MatrixA::Registers([
    RegId { bank: Bank::B32, index: 200 },
    RegId { bank: Bank::B32, index: 201 },
    RegId { bank: Bank::B32, index: 202 },
    RegId { bank: Bank::B32, index: 203 },
]);

/// A multiplication whose B is described by known bits.
fn described(layout: MatrixLayout, start: u32) -> Vec<Op> {
    let bits = WgmmaDescriptor { start, layout, base_offset: 0 }.encode().expect("fields that fit");
    let (low, high) = (imm(bits & 0xffff_ffff), imm(bits >> 32));
    vec![Arith::Pack { dst: d(0), low, high }.into(), multiply(8, 4, FRAGMENT).into()]
}

#[test]
fn wgmma_is_refused_on_blackwell() {
    assert!(matches!(broken_blackwell(Wgmma::Fence), Rule::Feature { feature: Feature::Wgmma, .. }));
}

#[test]
fn wgmma_in_a_block_of_two_warps_is_refused() {
    let rule = changed(|kernel| {
        kernel.launch.threads = 64;
        insert(kernel, vec![Wgmma::Commit.into()]);
    });
    is_value(&rule, 64);
}

#[test]
fn twelve_columns_are_refused() {
    is_value(&broken(multiply(12, 6, FRAGMENT)), 12);
}

#[test]
fn more_than_256_columns_are_refused() {
    is_value(&broken(multiply(264, 132, FRAGMENT)), 264);
}

#[test]
fn too_few_accumulators_are_refused() {
    assert!(matches!(broken(multiply(16, 4, FRAGMENT)), Rule::Count { found: 4, .. }));
}

#[test]
fn a_fragment_that_is_also_an_accumulator_is_refused() {
    let a = MatrixA::Registers([r(0), r(201), r(202), r(203)]);
    assert!(matches!(broken(multiply(8, 4, a)), Rule::Repeated { found, .. } if found == r(0)));
}

#[test]
fn a_fragment_of_16_bit_registers_is_refused() {
    let a = MatrixA::Registers([r(200), r(201), r(202), h(0)]);
    assert!(matches!(broken(multiply(8, 4, a)), Rule::Bank { what: "a register of A", .. }));
}

#[test]
fn a_descriptor_in_a_word_is_refused() {
    let a = MatrixA::Shared { desc: r(100), transpose: false };
    assert!(matches!(broken(multiply(8, 4, a)), Rule::Bank { what: "a matrix descriptor", .. }));
}

#[test]
fn a_stride_within_the_swizzle_pattern_is_refused() {
    let layout = MatrixLayout { swizzle: Swizzle::B128, leading: 16, stride: 512 };
    is_value(&broken_on(Target::Sm90a, described(layout, 0)), 512);
}

#[test]
fn a_swizzled_matrix_that_starts_within_the_pattern_is_refused() {
    let rule = broken_on(Target::Sm90a, described(MatrixLayout::K_MAJOR_128, 256 + 32));
    assert!(matches!(rule, Rule::Misaligned { found: 256, wanted: 1024, .. }));
}

#[test]
fn a_step_along_k_within_the_first_row_is_accepted() {
    let mut kernel = kernel(Target::Sm90a);
    insert(&mut kernel, described(MatrixLayout::K_MAJOR_128, 1024 + 96));
    assert_eq!(kernel.check(), Ok(()));
}

#[test]
fn waiting_for_all_but_eight_groups_is_refused() {
    is_value(&broken(Wgmma::Wait { pending: 8 }), 8);
}
