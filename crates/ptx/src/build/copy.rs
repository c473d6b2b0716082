//! Asynchronous copies. What these methods leave out (a tensor copy that signals the other block of a pair) goes
//! through [`Builder::emit`].

use super::Builder;
use crate::instr::AsyncCopy;
use crate::types::{
    Addr, CachePolicy, Cluster, Global, Operand, Reg, S32, Shared, TensorMapAddress, Type, U16, U32, Value, W32,
};

/// Where a copy's bytes go and what it tells the cache, beyond the ordinary.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyOptions {
    /// Blocks of the cluster that receive, one bit each; only this block if `None`.
    pub multicast: Option<Reg<U16>>,
    /// L2 policy.
    pub policy: Option<Reg<CachePolicy>>,
}

fn operands(coords: &[Value<S32>]) -> Vec<Operand> {
    coords.iter().map(|coord| coord.operand()).collect()
}

impl Builder {
    /// Copies global bytes to shared memory; `bar` counts them.
    pub fn bulk_load(
        &mut self,
        dst: Addr<Shared>,
        src: Addr<Global>,
        bytes: impl Into<Value<U32>>,
        bar: Addr<Shared>,
        options: CopyOptions,
    ) {
        self.emit(AsyncCopy::BulkLoad {
            dst: dst.address(),
            src: src.address(),
            bytes: bytes.into().operand(),
            bar: bar.address(),
            multicast: options.multicast.map(Reg::id),
            policy: options.policy.map(Reg::id),
        });
    }

    /// Copies shared bytes to global memory, as part of the current bulk group.
    pub fn bulk_store(
        &mut self,
        dst: Addr<Global>,
        src: Addr<Shared>,
        bytes: impl Into<Value<U32>>,
        policy: Option<Reg<CachePolicy>>,
    ) {
        let (dst, src, bytes) = (dst.address(), src.address(), bytes.into().operand());
        self.emit(AsyncCopy::BulkStore { dst, src, bytes, policy: policy.map(Reg::id) });
    }

    /// Copies this block's shared bytes to another block's; `bar`, in that block, counts them.
    pub fn bulk_to_cluster(
        &mut self,
        dst: Addr<Cluster>,
        src: Addr<Shared>,
        bytes: impl Into<Value<U32>>,
        bar: Addr<Cluster>,
    ) {
        let (dst, src, bytes, bar) = (dst.address(), src.address(), bytes.into().operand(), bar.address());
        self.emit(AsyncCopy::BulkToCluster { dst, src, bytes, bar });
    }

    /// Brings global bytes into L2.
    pub fn bulk_prefetch(&mut self, src: Addr<Global>, bytes: impl Into<Value<U32>>) {
        self.emit(AsyncCopy::BulkPrefetch { src: src.address(), bytes: bytes.into().operand() });
    }

    /// Copies a box of a tensor to shared memory; `bar` counts its bytes.
    pub fn tensor_load(
        &mut self,
        dst: Addr<Shared>,
        map: Reg<TensorMapAddress>,
        coords: &[Value<S32>],
        bar: Addr<Shared>,
        options: CopyOptions,
    ) {
        self.emit(AsyncCopy::TensorLoad {
            dst: dst.address(),
            map: map.id(),
            coords: operands(coords),
            bar: bar.address(),
            multicast: options.multicast.map(Reg::id),
            policy: options.policy.map(Reg::id),
            cta_group: None,
        });
    }

    /// Copies a box of shared memory to a tensor, as part of the current bulk group.
    pub fn tensor_store(
        &mut self,
        map: Reg<TensorMapAddress>,
        coords: &[Value<S32>],
        src: Addr<Shared>,
        policy: Option<Reg<CachePolicy>>,
    ) {
        let (map, coords, src) = (map.id(), operands(coords), src.address());
        self.emit(AsyncCopy::TensorStore { map, coords, src, policy: policy.map(Reg::id) });
    }

    /// Brings a box of a tensor into L2.
    pub fn tensor_prefetch(&mut self, map: Reg<TensorMapAddress>, coords: &[Value<S32>]) {
        self.emit(AsyncCopy::TensorPrefetch { map: map.id(), coords: operands(coords) });
    }

    /// Brings a tensor map into the cache.
    pub fn prefetch_map(&mut self, map: Reg<TensorMapAddress>) {
        self.emit(AsyncCopy::PrefetchMap { map: map.id() });
    }

    /// Asks for the work of a cluster that has not begun. The answer goes to shared memory, of every block of the
    /// cluster if `all`, and `bar` counts its 16 bytes there.
    pub fn try_cancel(&mut self, answer: Addr<Shared>, bar: Addr<Shared>, all: bool) {
        self.emit(AsyncCopy::TryCancel { dst: answer.address(), bar: bar.address(), multicast: all });
    }

    /// Closes a group of this thread's bulk and tensor stores.
    pub fn bulk_commit(&mut self) {
        self.emit(AsyncCopy::CommitGroup);
    }

    /// Waits until at most `pending` groups are unfinished.
    pub fn bulk_wait(&mut self, pending: u32) {
        self.emit(AsyncCopy::WaitGroup { pending, read: false });
    }

    /// Waits until the shared sources of all but `pending` groups have been read and may be overwritten.
    pub fn bulk_wait_read(&mut self, pending: u32) {
        self.emit(AsyncCopy::WaitGroup { pending, read: true });
    }

    /// Copies 4, 8 or 16 bytes from global to shared memory, as part of this thread's current group.
    pub fn thread_copy(&mut self, dst: Addr<Shared>, src: Addr<Global>, bytes: u32) {
        let (dst, src) = (dst.address(), src.address());
        self.emit(AsyncCopy::ThreadCopy { dst, src, bytes, source_bytes: None, policy: None });
    }

    /// The same, with zeros in place of what comes after the first `source_bytes`; of nothing, nothing is read.
    pub fn thread_copy_filled(
        &mut self,
        dst: Addr<Shared>,
        src: Addr<Global>,
        bytes: u32,
        source_bytes: impl Into<Value<U32>>,
    ) {
        let (dst, src, source_bytes) = (dst.address(), src.address(), Some(source_bytes.into().operand()));
        self.emit(AsyncCopy::ThreadCopy { dst, src, bytes, source_bytes, policy: None });
    }

    /// Closes a group of this thread's copies.
    pub fn thread_commit(&mut self) {
        self.emit(AsyncCopy::CommitThreadGroup);
    }

    /// Waits until at most `pending` groups of this thread's copies are unfinished.
    pub fn thread_wait(&mut self, pending: u32) {
        self.emit(AsyncCopy::WaitThreadGroup { pending });
    }

    /// Stores 1, 2 or 4 words into a block of the cluster; `bar`, in that block, counts the bytes.
    pub fn store_async<T: Type<Width = W32>>(&mut self, dst: Addr<Cluster>, srcs: &[Reg<T>], bar: Addr<Cluster>) {
        let srcs = srcs.iter().map(|reg| reg.id()).collect();
        self.emit(AsyncCopy::StoreAsync { dst: dst.address(), srcs, bar: bar.address() });
    }
}
