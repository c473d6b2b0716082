//! Barriers and fences.

use super::Builder;
use crate::instr::{Barrier, Fence, Semantics};
use crate::types::{Addr, Bool, Cluster, InSpace, Operand, Pred, Scope, Shared, Space, U32, Value};

impl Builder {
    /// Makes eight bytes of shared memory a barrier.
    pub fn barrier_init(&mut self, bar: Addr<Shared>, count: impl Into<Value<U32>>) {
        self.emit(Barrier::Init { bar: bar.address(), count: count.into().operand() });
    }

    /// Ends a barrier's life.
    pub fn barrier_invalidate(&mut self, bar: Addr<Shared>) {
        self.emit(Barrier::Invalidate { bar: bar.address() });
    }

    /// Announces bytes at a barrier, without arriving.
    pub fn expect_bytes<S: InSpace>(&mut self, bar: Addr<S>, bytes: impl Into<Value<U32>>) {
        self.emit(Barrier::ExpectTx { space: S::SPACE, bar: bar.address(), bytes: bytes.into().operand() });
    }

    /// Arrives at this block's barrier.
    pub fn arrive(&mut self, bar: Addr<Shared>) {
        let (space, sem, scope, bar) = (Space::Shared, Semantics::Ordered, Scope::Block, bar.address());
        self.emit(Barrier::Arrive { arrival: None, space, sem, scope, bar, count: None, state: None });
    }

    /// Arrives at any block's barrier. Cluster-wide release costs time; block scope suffices where only the barrier
    /// itself is awaited.
    pub fn arrive_remote(&mut self, bar: Addr<Cluster>, sem: Semantics, scope: Scope) {
        let (space, bar) = (Space::Cluster, bar.address());
        self.emit(Barrier::Arrive { arrival: None, space, sem, scope, bar, count: None, state: None });
    }

    /// Announces bytes at this block's barrier and arrives.
    pub fn arrive_expecting(&mut self, bar: Addr<Shared>, bytes: impl Into<Value<U32>>) {
        let (space, sem, scope) = (Space::Shared, Semantics::Ordered, Scope::Block);
        let (bar, bytes) = (bar.address(), bytes.into().operand());
        self.emit(Barrier::ArriveExpectTx { space, sem, scope, bar, bytes, state: None });
    }

    /// Asks once whether the phase of this parity is complete.
    pub fn try_wait(&mut self, bar: Addr<Shared>, parity: impl Into<Value<U32>>, scope: Scope) -> Pred {
        let done = self.register::<Bool>();
        let (sem, parity) = (Semantics::Ordered, parity.into().operand());
        self.emit(Barrier::TryWait { done: done.id(), sem, scope, bar: bar.address(), parity });
        done
    }

    /// Waits until the phase of this parity is complete: a loop around [`Builder::try_wait`].
    pub fn wait(&mut self, bar: Addr<Shared>, parity: impl Into<Value<U32>>) {
        self.wait_at(bar, parity, Scope::Block);
    }

    /// Like [`Builder::wait`], seeing what was published at `scope`.
    pub fn wait_at(&mut self, bar: Addr<Shared>, parity: impl Into<Value<U32>>, scope: Scope) {
        let parity = parity.into();
        let head = self.label();
        self.place(head);
        let done = self.try_wait(bar, parity, scope);
        self.branch_unless(done, head);
    }

    /// Waits for all threads of the block.
    pub fn sync_threads(&mut self) {
        self.emit(Barrier::NamedSync { aligned: true, id: Operand::Imm(0), threads: None });
    }

    /// Waits at hardware barrier `id` until `threads` threads are there.
    pub fn named_sync(&mut self, id: impl Into<Value<U32>>, threads: u32) {
        let threads = Some(Value::<U32>::from(threads).operand());
        self.emit(Barrier::NamedSync { aligned: true, id: id.into().operand(), threads });
    }

    /// Arrives at hardware barrier `id` without waiting.
    pub fn named_arrive(&mut self, id: impl Into<Value<U32>>, threads: u32) {
        let threads = Value::<U32>::from(threads).operand();
        self.emit(Barrier::NamedArrive { aligned: true, id: id.into().operand(), threads });
    }

    /// Arrives at the cluster's barrier.
    pub fn cluster_arrive(&mut self, sem: Semantics, aligned: bool) {
        self.emit(Barrier::ClusterArrive { sem, aligned });
    }

    /// Waits at the cluster's barrier.
    pub fn cluster_wait(&mut self, aligned: bool) {
        self.emit(Barrier::ClusterWait { aligned });
    }

    /// Orders generic accesses of this thread among the threads of `scope`.
    pub fn fence(&mut self, scope: Scope) {
        self.emit(Fence::AcqRel(scope));
    }

    /// Makes this thread's generic accesses to shared memory visible to later asynchronous ones.
    pub fn fence_async_shared(&mut self) {
        self.emit(Fence::ProxyAsync(Some(Space::Shared)));
    }

    /// Makes this thread's generic accesses to any memory visible to later asynchronous ones.
    pub fn fence_async(&mut self) {
        self.emit(Fence::ProxyAsync(None));
    }

    /// Makes freshly initialised barriers visible to the cluster and to asynchronous copies.
    pub fn fence_barrier_init(&mut self) {
        self.emit(Fence::BarrierInit);
    }
}
