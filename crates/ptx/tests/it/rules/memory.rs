//! Loads, stores and matrix rows: widths, counts, windows, alignment.

use super::*;

#[test]
fn a_vector_of_three_is_refused() {
    let rule = broken(load(Width::B32, vec![r(0), r(1), r(2)], shared(TILE)));
    assert!(matches!(rule, Rule::Count { found: 3, .. }));
}

#[test]
fn an_access_of_32_bytes_is_refused() {
    is_value(&broken(load(Width::B64, vec![d(0), d(1), d(2), d(3)], shared(TILE))), 32);
}

#[test]
fn a_word_in_a_64_bit_register_is_refused() {
    assert!(matches!(broken(load(Width::B32, vec![d(0)], shared(TILE))), Rule::Bank { .. }));
}

#[test]
fn a_vector_access_off_its_alignment_is_refused() {
    let rule = broken(load(Width::B32, vec![r(0), r(1), r(2), r(3)], shared(TILE + 8)));
    assert_eq!(rule, Rule::Misaligned { what: "the accessed memory", found: 8, wanted: 16 });
}

#[test]
fn alignment_is_followed_through_address_arithmetic() {
    let base = Arith::SharedAddress { dst: r(8), offset: TILE + 8 };
    let (a, b, c) = (Operand::Reg(r(9)), imm(512), Operand::Reg(r(8)));
    let stage = Arith::Ternary { op: TernaryOp::MulAdd, ty: DataType::U32, mode: FloatMode::PLAIN, dst: r(1), a, b, c };
    let addr = Address { base: Base::Reg(r(1)), offset: 4 };
    let access = load(Width::B32, vec![r(2), r(3), r(4), r(5)], addr);
    let rule = broken_on(Target::Sm90a, vec![base.into(), stage.into(), access.into()]);
    assert_eq!(rule, Rule::Misaligned { what: "the accessed memory", found: 12, wanted: 16 });
}

#[test]
fn a_read_only_load_from_shared_memory_is_refused() {
    let (space, order, width) = (Space::Shared, LoadOrder::ReadOnly, Width::B32);
    let op = Memory::Load { space, order, width, dsts: vec![r(0)], addr: shared(TILE) };
    assert!(matches!(broken(op), Rule::Window { .. }));
}

#[test]
fn a_shared_address_used_as_a_global_one_is_refused() {
    let (space, order, width) = (Space::Global, StoreOrder::Weak, Width::B32);
    let op = Memory::Store { space, order, width, srcs: vec![r(0)], addr: shared(TILE) };
    assert!(matches!(broken(op), Rule::Window { .. }));
}

#[test]
fn a_32_bit_global_address_is_refused() {
    let addr = Address { base: Base::Reg(r(0)), offset: 0 };
    let (space, order, width) = (Space::Global, StoreOrder::Weak, Width::B32);
    let op = Memory::Store { space, order, width, srcs: vec![r(0)], addr };
    assert!(matches!(broken(op), Rule::Bank { .. }));
}

#[test]
fn an_access_past_the_end_of_its_region_is_refused() {
    let rule = broken(load(Width::B32, vec![r(0)], shared(4112)));
    assert_eq!(rule, Rule::OutOfRegion { what: "the accessed memory", start: 4112, end: 4116 });
}

#[test]
fn an_access_across_two_regions_is_refused() {
    let (dst, bar) = (shared(TILE + 4080), shared(BARRIER));
    let op = AsyncCopy::BulkLoad { dst, src: global(), bytes: imm(32), bar, multicast: None, policy: None };
    assert!(matches!(broken(op), Rule::OutOfRegion { start: 4080, end: 4112, .. }));
}

#[test]
fn a_matrix_row_off_16_bytes_is_refused() {
    let op = Warp::LoadMatrix { transpose: false, dsts: vec![r(0)], addr: shared(TILE + 8) };
    assert!(matches!(broken(op), Rule::Misaligned { found: 8, wanted: 16, .. }));
}

#[test]
fn three_matrices_at_once_are_refused() {
    let op = Warp::StoreMatrix { transpose: false, srcs: vec![r(0), r(1), r(2)], addr: shared(TILE) };
    assert!(matches!(broken(op), Rule::Count { found: 3, .. }));
}

#[test]
fn a_remote_store_of_three_words_is_refused() {
    let op = AsyncCopy::StoreAsync { dst: shared(TILE), srcs: vec![r(0); 3], bar: shared(BARRIER) };
    assert!(matches!(broken(op), Rule::Count { found: 3, .. }));
}
