//! Barriers and fences.

use super::*;

fn init(count: u64) -> Barrier {
    Barrier::Init { bar: shared(BARRIER), count: imm(count) }
}

fn arrive(space: Space, scope: Scope) -> Barrier {
    Barrier::Arrive {
        arrival: None,
        space,
        sem: Semantics::Ordered,
        scope,
        bar: shared(BARRIER),
        count: None,
        state: None,
    }
}

#[test]
fn a_barrier_nobody_arrives_at_is_refused() {
    is_value(&broken(init(0)), 0);
}

#[test]
fn a_barrier_of_a_million_arrivals_is_refused() {
    is_value(&broken(init(1 << 20)), 1 << 20);
}

#[test]
fn a_megabyte_of_expected_bytes_is_refused() {
    let op = Barrier::ExpectTx { space: Space::Shared, bar: shared(BARRIER), bytes: imm(1 << 20) };
    is_value(&broken(op), 1 << 20);
}

#[test]
fn a_barrier_in_global_memory_is_refused() {
    assert!(matches!(broken(arrive(Space::Global, Scope::Block)), Rule::Window { .. }));
}

#[test]
fn an_arrive_at_gpu_scope_is_refused() {
    assert!(matches!(broken(arrive(Space::Shared, Scope::Gpu)), Rule::BarrierScope { found: Scope::Gpu, .. }));
}

#[test]
fn a_parity_of_two_is_refused() {
    let (done, sem, scope, bar) = (p(0), Semantics::Ordered, Scope::Block, shared(BARRIER));
    is_value(&broken(Barrier::TryWait { done, sem, scope, bar, parity: imm(2) }), 2);
}

#[test]
fn hardware_barrier_16_is_refused() {
    is_value(&broken(Barrier::NamedSync { aligned: true, id: imm(16), threads: None }), 16);
}

#[test]
fn a_hardware_barrier_for_part_of_a_warp_is_refused() {
    is_value(&broken(Barrier::NamedArrive { aligned: true, id: imm(1), threads: imm(48) }), 48);
}

#[test]
fn a_hardware_barrier_for_more_threads_than_the_block_has_is_refused() {
    is_value(&broken(Barrier::NamedSync { aligned: true, id: imm(1), threads: Some(imm(288)) }), 288);
}

#[test]
fn a_proxy_fence_over_the_cluster_is_refused() {
    assert!(matches!(broken(Fence::ProxyAsync(Some(Space::Cluster))), Rule::Window { .. }));
}
