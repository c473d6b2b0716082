//! tcgen05: tiles, descriptors, tensor memory, pairs.

use ptx::instr::ScaledKind;

use super::*;

fn alloc(group: CtaGroup, columns: u64) -> Tcgen05 {
    Tcgen05::Alloc { group, dst: shared(TILE), columns: imm(columns) }
}

/// A multiplication of the given tile, its descriptor put together by hand.
fn multiply(group: CtaGroup, m: u32, n: u32) -> Vec<Op> {
    let bits = 1 << 7 | 1 << 10 | (n >> 3) << 17 | (m >> 4) << 24;
    let (a, b, shape) = (d(0), d(1), r(1));
    let shape_bits =
        Arith::Unary { op: UnaryOp::Move, ty: DataType::U32, mode: FloatMode::PLAIN, dst: shape, a: imm(bits.into()) };
    let (scale_a, scale_b, accumulate, collector) = (r(2), r(3), p(0), Collector::Discard);
    let kind = ScaledKind::NvFp4;
    let mma = Tcgen05::Mma { kind, group, d: r(0), a, b, shape, scale_a, scale_b, accumulate, collector };
    vec![shape_bits.into(), mma.into()]
}

#[test]
fn tcgen05_is_refused_on_hopper() {
    assert!(matches!(broken(Tcgen05::WaitLoad), Rule::Feature { feature: Feature::Tcgen05, .. }));
}

#[test]
fn a_64_row_tile_is_refused_with_the_reason() {
    let rule = broken_on(Target::Sm100a, multiply(CtaGroup::One, 64, 64));
    assert!(matches!(rule, Rule::BlockScaledTile { m: 64, .. }));
    assert!(rule.to_string().contains("all 128 lanes"));
}

#[test]
fn one_block_cannot_compute_256_rows() {
    let rule = broken_on(Target::Sm100a, multiply(CtaGroup::One, 256, 64));
    assert!(matches!(rule, Rule::BlockScaledTile { m: 256, .. }));
}

#[test]
fn a_pair_computes_columns_in_steps_of_sixteen() {
    let rule = broken_on(Target::Sm100a, multiply(CtaGroup::Two, 256, 72));
    assert!(matches!(rule, Rule::BlockScaledTile { n: 72, .. }));
}

#[test]
fn legal_tiles_are_accepted() {
    for (group, m, n) in [(CtaGroup::One, 128, 8), (CtaGroup::One, 128, 256), (CtaGroup::Two, 256, 16)] {
        let mut kernel = kernel(Target::Sm100a);
        insert(&mut kernel, multiply(group, m, n));
        assert_eq!(kernel.check(), Ok(()));
    }
}

#[test]
fn a_shape_with_other_formats_is_refused() {
    let mut ops = multiply(CtaGroup::One, 128, 64);
    let bits = imm(u64::from(8u32 << 17 | 8 << 24));
    ops[0] = Arith::Unary { op: UnaryOp::Move, ty: DataType::U32, mode: FloatMode::PLAIN, dst: r(1), a: bits }.into();
    assert!(matches!(broken_on(Target::Sm100a, ops), Rule::Value { .. }));
}

#[test]
fn a_hopper_descriptor_is_refused_on_blackwell() {
    let layout = MatrixLayout::K_MAJOR_128;
    let bits = WgmmaDescriptor { start: 0, layout, base_offset: 0 }.encode().expect("fields that fit");
    let pack = Arith::Pack { dst: d(0), low: imm(bits & 0xffff_ffff), high: imm(bits >> 32) };
    let copy = Tcgen05::CopyScales { group: CtaGroup::One, dst: r(0), src: d(0) };
    let rule = broken_on(Target::Sm100a, vec![pack.into(), copy.into()]);
    assert!(matches!(rule, Rule::Value { what: "tcgen05 descriptor version", found: 0, .. }));
}

#[test]
fn a_swizzled_blackwell_matrix_starts_with_its_pattern() {
    let layout = MatrixLayout::K_MAJOR_128;
    let bits = Tcgen05Descriptor { start: 128, layout, base_offset: 0 }.encode().expect("fields that fit");
    let pack = Arith::Pack { dst: d(0), low: imm(bits & 0xffff_ffff), high: imm(bits >> 32) };
    let copy = Tcgen05::CopyScales { group: CtaGroup::One, dst: r(0), src: d(0) };
    let rule = broken_on(Target::Sm100a, vec![pack.into(), copy.into()]);
    assert!(matches!(rule, Rule::Misaligned { found: 128, wanted: 1024, .. }));
}

#[test]
fn tensor_memory_comes_in_powers_of_two() {
    is_value(&broken_blackwell(alloc(CtaGroup::One, 96)), 96);
    is_value(&broken_blackwell(alloc(CtaGroup::One, 16)), 16);
    is_value(&broken_blackwell(alloc(CtaGroup::One, 1024)), 1024);
}

#[test]
fn three_columns_at_once_are_refused() {
    let op = Tcgen05::Load { shape: CellShape::L32x32b, dsts: vec![r(0), r(1), r(2)], addr: r(3) };
    assert!(matches!(broken_blackwell(op), Rule::Count { found: 3, .. }));
}

#[test]
fn both_group_sizes_in_one_kernel_are_refused() {
    let ops = vec![alloc(CtaGroup::One, 32).into(), alloc(CtaGroup::Two, 32).into()];
    let rule = broken_on(Target::Sm100a, ops);
    assert_eq!(rule, Rule::MixedGroups { first: CtaGroup::One, found: CtaGroup::Two });
}

#[test]
fn a_pair_without_a_cluster_is_refused() {
    let mut kernel = kernel(Target::Sm100a);
    kernel.launch.cluster = None;
    insert(&mut kernel, vec![alloc(CtaGroup::Two, 32).into()]);
    assert_eq!(rules(&kernel), [Rule::NoPair]);
}
