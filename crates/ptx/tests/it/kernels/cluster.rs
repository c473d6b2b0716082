//! Two blocks of a cluster: one bulk copy multicast to both, partial sums exchanged by asynchronous remote stores, the
//! result written back by a bulk store and by a tensor store.

use ptx::instr::Semantics;
use ptx::{
    Addr, Builder, Cluster, CopyOptions, Error, F32, Global, Kernel, LaunchBounds, Scope, SpecialRegister, Target, U16,
    U32,
};

pub fn kernel() -> Result<Kernel, Error> {
    let mut k = Builder::new(
        "cluster_sum",
        Target::Sm90a,
        LaunchBounds { threads: 128, cluster: Some([2, 1, 1]), min_blocks: None },
    );
    let (input, output, tensor) = (k.pointer("input"), k.pointer("output"), k.tensor_map("tensor"));
    let shared = k.shared("values", 2048, 128);
    let inbox = k.shared("inbox", 2048, 128);
    let bars = k.barriers("bars", 2);
    let thread = k.special(SpecialRegister::TidX);
    let rank = k.special(SpecialRegister::ClusterCtaRank);
    let first = k.eq(thread, 0);
    k.phase("prepare", |k| {
        k.if_(first, |k| {
            k.barrier_init(bars.at(0), 1);
            k.barrier_init(bars.at(1), 1);
            k.fence_barrier_init();
            k.arrive_expecting(bars.at(0), 2048);
            k.arrive_expecting(bars.at(1), 2048);
        });
        k.cluster_arrive(Semantics::Ordered, true);
        k.cluster_wait(true);
    });
    k.phase("load", |k| {
        k.grid_dependency_wait();
        k.launch_dependents();
        let lead = k.eq(rank, 0);
        let issue = k.both(first, lead);
        k.if_(issue, |k| {
            let options = CopyOptions { multicast: Some(k.variable::<U16>(3u16)), policy: Some(k.cache_policy(false)) };
            k.bulk_prefetch(Addr::of(input), 2048);
            k.bulk_load(shared.at(0), Addr::of(input), 2048, bars.at(0), options);
        });
        k.wait_at(bars.at(0), 0, Scope::Cluster);
    });
    let sums = k.phase("exchange", |k| {
        let base = k.shared_address(shared);
        let mine = k.mul_add(thread, 16, base);
        let values = k.load_vector::<F32, _, 4>(Addr::<ptx::Shared>::of(mine));
        let other = k.xor(rank, 1);
        let inbox_base = k.shared_address(inbox);
        let slot = k.mul_add(thread, 16, inbox_base);
        let remote = k.map_shared(slot, other);
        let bar = k.shared_address(bars.region());
        let remote_bar = k.map_shared(bar, other);
        k.store_async(Addr::of(remote), &values, Addr::<Cluster>::of(remote_bar).plus(8));
        k.wait(bars.at(1), 0);
        let received = k.load_vector::<F32, _, 4>(Addr::<ptx::Shared>::of(slot));
        [0, 1, 2, 3].map(|i| k.add(values[i], received[i]))
    });
    k.phase("store", |k| {
        let base = k.shared_address(shared);
        let mine = k.mul_add(thread, 16, base);
        k.store_vector(Addr::<ptx::Shared>::of(mine), sums);
        k.fence_async_shared();
        k.named_sync(1, 128);
        k.if_(first, |k| {
            let at = k.mul_wide_add(rank, 2048, output);
            let last = k.cache_policy(true);
            k.bulk_store(Addr::of(at), shared.at(0), 2048, Some(last));
            let map = k.tensor_map_address(tensor);
            let row = k.shl(rank, 3).cast();
            k.tensor_prefetch(map, &[0.into(), row.into()]);
            k.tensor_store(map, &[0.into(), row.into()], shared.at(0), None);
            k.bulk_commit();
            k.bulk_wait_read(0);
            k.bulk_wait(0);
            k.reduce_add::<U32, Global>(Scope::Gpu, Addr::of(output), 1);
        });
        k.cluster_arrive(Semantics::Relaxed, true);
        k.cluster_wait(true);
    });
    k.finish()
}
