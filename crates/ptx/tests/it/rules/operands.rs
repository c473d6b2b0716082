//! Operands: banks, literals, forms, parameters.

use super::*;

#[test]
fn a_result_of_the_wrong_width_is_refused() {
    let op = Arith::Special { dst: d(1), which: SpecialRegister::TidX };
    assert_eq!(broken(op), Rule::Bank { what: "the result", found: d(1), wanted: "a 32-bit register" });
}

#[test]
fn a_guard_that_is_no_predicate_is_refused() {
    let rule = changed(|kernel| kernel.body.insert(0, guarded(Control::LaunchDependents.into(), r(0))));
    assert!(matches!(rule, Rule::Bank { what: "the guard", .. }));
}

#[test]
fn a_register_beyond_those_declared_is_refused() {
    let rule = broken(add(DataType::U32, r(300), imm(1)));
    assert_eq!(rule, Rule::Undeclared { found: r(300), declared: 300 });
}

#[test]
fn a_half_precision_literal_is_refused() {
    let rule = broken(add(DataType::F16x2, r(0), imm(0x3c00_3c00)));
    assert_eq!(rule, Rule::NoLiteral { ty: DataType::F16x2 });
}

#[test]
fn a_literal_wider_than_its_type_is_refused() {
    let rule = broken(add(DataType::U16, h(0), imm(0x1_0000)));
    assert_eq!(rule, Rule::LiteralWidth { found: 0x1_0000, ty: DataType::U16 });
}

#[test]
fn an_operation_that_the_type_lacks_is_refused() {
    let not =
        Arith::Unary { op: UnaryOp::Not, ty: DataType::F32, mode: FloatMode::PLAIN, dst: r(0), a: Operand::Reg(r(0)) };
    assert!(matches!(broken(not), Rule::NoSuchForm { ty: DataType::F32, wanted: "integers", .. }));
    let (a, dst) = (Operand::Reg(r(0)), r(0));
    let permute =
        Arith::Ternary { op: TernaryOp::Permute, ty: DataType::S32, mode: FloatMode::PLAIN, dst, a, b: a, c: a };
    assert!(matches!(broken(permute), Rule::NoSuchForm { wanted: "U32", .. }));
}

#[test]
fn a_comparison_of_pairs_is_refused() {
    let (a, b) = (Operand::Reg(r(0)), Operand::Reg(r(1)));
    let op = Arith::Compare { cmp: ptx::Comparison::Lt, ty: DataType::F16x2, dst: p(0), a, b };
    assert!(matches!(broken(op), Rule::NoSuchForm { wanted: "scalars", .. }));
}

#[test]
fn a_conversion_that_does_not_exist_is_refused() {
    let (to, from, rounding) = (DataType::F16, DataType::Bf16, Rounding::Exact);
    let rule = broken(Arith::Convert { to, from, rounding, mode: FloatMode::PLAIN, dst: h(0), a: h(1) });
    assert_eq!(rule, Rule::NoSuchConversion { from, to });
}

#[test]
fn an_atomic_minimum_of_floats_is_refused() {
    let (space, ty, scope) = (Space::Global, DataType::F32, Scope::Gpu);
    let (op, a) = (AtomicOp::Min, Operand::Reg(r(0)));
    let atomic = Memory::Atomic { space, op, ty, acq_rel: false, scope, dst: None, addr: global(), a, b: None };
    assert!(matches!(broken(atomic), Rule::NoSuchForm { .. }));
}

#[test]
fn an_exchange_that_drops_the_old_value_is_refused() {
    let (space, ty, scope) = (Space::Global, DataType::U32, Scope::Gpu);
    let (op, a) = (AtomicOp::Exchange, Operand::Reg(r(0)));
    let atomic = Memory::Atomic { space, op, ty, acq_rel: false, scope, dst: None, addr: global(), a, b: None };
    assert!(matches!(broken(atomic), Rule::NoSuchForm { .. }));
}

#[test]
fn an_acquire_that_drops_the_old_value_is_refused() {
    let (space, ty, scope) = (Space::Global, DataType::U32, Scope::Gpu);
    let (op, a) = (AtomicOp::Add, Operand::Reg(r(0)));
    let atomic = Memory::Atomic { space, op, ty, acq_rel: true, scope, dst: None, addr: global(), a, b: None };
    assert!(matches!(broken(atomic), Rule::NoSuchForm { .. }));
}

#[test]
fn a_warp_reduction_of_floats_is_for_the_largest_and_on_blackwell() {
    let reduce = |op| Warp::Reduce { op, ty: DataType::F32, dst: r(0), a: r(0), mask: imm(1) };
    assert!(matches!(broken_blackwell(reduce(ReduceOp::Add)), Rule::NoSuchForm { .. }));
    assert!(matches!(broken(reduce(ReduceOp::Max)), Rule::Feature { feature: Feature::Tcgen05, .. }));
}

#[test]
fn a_shuffle_from_lane_32_is_refused() {
    let (mode, mask) = (ShuffleMode::Index, imm(0xffff_ffff));
    let op = Warp::Shuffle { mode, dst: r(0), valid: None, a: r(0), lane: imm(32), clamp: imm(31), mask };
    is_value(&broken(op), 32);
}

#[test]
fn a_shuffle_clamp_with_stray_bits_is_refused() {
    let (mode, mask) = (ShuffleMode::Index, imm(0xffff_ffff));
    let op = Warp::Shuffle { mode, dst: r(0), valid: None, a: r(0), lane: imm(0), clamp: imm(32), mask };
    is_value(&broken(op), 32);
}

#[test]
fn a_mask_without_lanes_is_refused() {
    is_value(&broken(Warp::Sync { mask: imm(0) }), 0);
}

/// A read of a whole parameter.
fn whole(dst: RegId, param: u32) -> Arith {
    let width = if dst.bank == Bank::B64 { Width::B64 } else { Width::B32 };
    Arith::Param { dst, width, from: ParamBase::Param(ParamId(param)), offset: 0 }
}

#[test]
fn a_parameter_that_is_not_there_is_refused() {
    let rule = broken(whole(r(0), 2));
    assert_eq!(rule, Rule::NoSuchParam { found: 2, declared: 2 });
}

#[test]
fn a_tensor_map_read_as_a_number_is_refused() {
    assert!(matches!(broken(whole(d(0), 1)), Rule::ParamKind { .. }));
}

#[test]
fn a_number_used_as_a_tensor_map_is_refused() {
    assert!(matches!(broken(Arith::ParamAddress { dst: d(0), param: ParamId(0) }), Rule::ParamKind { .. }));
}

#[test]
fn a_number_read_as_a_table_is_refused() {
    assert!(matches!(broken(Arith::ParamTable { dst: d(0), param: ParamId(0) }), Rule::ParamKind { .. }));
}

#[test]
fn a_word_of_a_table_at_an_odd_place_is_refused() {
    is_value(&broken(Arith::Param { dst: r(0), width: Width::B32, from: ParamBase::Reg(d(0)), offset: 6 }), 6);
}

#[test]
fn a_rank_outside_the_cluster_is_refused() {
    is_value(&broken(Arith::MapShared { dst: r(0), a: r(1), rank: imm(2) }), 2);
}
