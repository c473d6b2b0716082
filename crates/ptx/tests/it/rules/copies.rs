//! Asynchronous copies: sizes, alignment, coordinates.

use super::*;

fn bulk(dst: u32, bytes: u64, bar: u32) -> AsyncCopy {
    let (dst, src, bytes, bar) = (shared(dst), global(), imm(bytes), shared(bar));
    AsyncCopy::BulkLoad { dst, src, bytes, bar, multicast: None, policy: None }
}

fn tensor(dst: u32, coords: usize) -> AsyncCopy {
    let (dst, coords, bar) = (shared(dst), vec![imm(0); coords], shared(BARRIER));
    AsyncCopy::TensorLoad { dst, map: d(0), coords, bar, multicast: None, policy: None, cta_group: None }
}

#[test]
fn a_bulk_copy_of_24_bytes_is_refused() {
    is_value(&broken(bulk(TILE, 24, BARRIER)), 24);
}

#[test]
fn a_bulk_copy_of_nothing_is_refused() {
    is_value(&broken(bulk(TILE, 0, BARRIER)), 0);
}

#[test]
fn a_bulk_copy_to_an_odd_place_is_refused() {
    assert!(matches!(broken(bulk(TILE + 8, 16, BARRIER)), Rule::Misaligned { found: 8, wanted: 16, .. }));
}

#[test]
fn a_barrier_off_eight_bytes_is_refused() {
    assert!(matches!(broken(bulk(TILE, 16, BARRIER + 4)), Rule::Misaligned { found: 4, wanted: 8, .. }));
}

#[test]
fn a_tensor_copy_off_128_bytes_is_refused() {
    assert!(matches!(broken(tensor(TILE + 64, 2)), Rule::Misaligned { found: 64, wanted: 128, .. }));
}

#[test]
fn a_tensor_copy_into_loosely_aligned_shared_memory_is_refused() {
    let mut k = Builder::new("small", Target::Sm90a, kernel(Target::Sm90a).launch);
    k.barriers("barriers", 1);
    let tile = k.shared("tile", 128, 16);
    let map = k.tensor_map("map");
    let map = k.tensor_map_address(map);
    let bar = ptx::Addr::shared(0);
    // The tile lies at 16: moved to 128 it is aligned only if shared memory itself is.
    k.tensor_load(tile.at(112), map, &[0.into()], bar, ptx::CopyOptions::default());
    let Err(Error::Illegal(violation)) = k.finish() else { panic!("accepted") };
    assert!(matches!(violation.rule, Rule::RegionAlignment { found: 16, wanted: 128, .. }));
}

#[test]
fn six_coordinates_are_refused() {
    assert!(matches!(broken(tensor(TILE, 6)), Rule::Count { found: 6, .. }));
    assert!(matches!(broken(tensor(TILE, 0)), Rule::Count { found: 0, .. }));
}

#[test]
fn copies_that_disagree_about_a_maps_rank_are_refused() {
    let map = Arith::ParamAddress { dst: d(0), param: ParamId(1) };
    let rule = broken_on(Target::Sm90a, vec![map.into(), tensor(TILE, 2).into(), tensor(TILE, 3).into()]);
    assert_eq!(rule, Rule::MixedRanks { name: "map".into(), first: 2, found: 3 });
}

#[test]
fn a_32_bit_multicast_mask_is_refused() {
    let (dst, src, bar) = (shared(TILE), global(), shared(BARRIER));
    let op = AsyncCopy::BulkLoad { dst, src, bytes: imm(16), bar, multicast: Some(r(0)), policy: None };
    assert!(matches!(broken(op), Rule::Bank { what: "the multicast mask", .. }));
}

#[test]
fn launch_control_is_refused_on_hopper_and_its_questions_cannot_be_guarded() {
    let ask = AsyncCopy::TryCancel { dst: shared(TILE), bar: shared(BARRIER), multicast: false };
    assert!(matches!(broken(ask), Rule::Feature { feature: Feature::LaunchControl, .. }));
    let question = || Op::from(Arith::IsCanceled { dst: p(1), answer: [d(0), d(1)] });
    let mut kernel = kernel(Target::Sm100a);
    kernel.body.insert(0, guarded(question(), p(0)));
    assert!(rules(&kernel).contains(&Rule::GuardedQuestion));
    let misplaced = AsyncCopy::TryCancel { dst: shared(TILE + 8), bar: shared(BARRIER), multicast: true };
    assert!(matches!(broken_blackwell(misplaced), Rule::Misaligned { .. }));
}

#[test]
fn a_paired_tensor_copy_is_refused_on_hopper() {
    let (dst, coords, bar, cta_group) = (shared(TILE), vec![imm(0)], shared(BARRIER), Some(CtaGroup::Two));
    let op = AsyncCopy::TensorLoad { dst, map: d(0), coords, bar, multicast: None, policy: None, cta_group };
    assert!(matches!(broken(op), Rule::Feature { feature: Feature::Tcgen05, .. }));
}
