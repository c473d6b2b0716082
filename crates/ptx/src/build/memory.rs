//! Loads, stores and atomics.

use super::Builder;
use crate::instr::{AtomicOp, LoadOrder, Memory, Semantics, StoreOrder, Width};
use crate::types::{Addr, Bank, InSpace, Reg, RegId, Scope, Type, U32, Value};

fn width<T: Type>() -> Width {
    match T::DATA.bank() {
        Bank::Pred => Width::B8,
        Bank::B16 => Width::B16,
        Bank::B32 => Width::B32,
        Bank::B64 => Width::B64,
    }
}

fn ids<T: Type>(regs: &[Reg<T>]) -> Vec<RegId> {
    regs.iter().map(|reg| reg.id()).collect()
}

impl Builder {
    /// Loads one value.
    pub fn load<T: Type, S: InSpace>(&mut self, addr: Addr<S>) -> Reg<T> {
        let [dst] = self.load_as(LoadOrder::Weak, addr);
        dst
    }

    /// Loads 2 or 4 neighbouring values in one access.
    pub fn load_vector<T: Type, S: InSpace, const COUNT: usize>(&mut self, addr: Addr<S>) -> [Reg<T>; COUNT] {
        self.load_as(LoadOrder::Weak, addr)
    }

    /// Loads 1, 2 or 4 neighbouring values with a given ordering.
    pub fn load_as<T: Type, S: InSpace, const COUNT: usize>(
        &mut self,
        order: LoadOrder,
        addr: Addr<S>,
    ) -> [Reg<T>; COUNT] {
        let dsts = self.registers::<T, COUNT>();
        let (space, addr) = (S::SPACE, addr.address());
        self.emit(Memory::Load { space, order, width: width::<T>(), dsts: ids(&dsts), addr });
        dsts
    }

    /// Loads one byte (or two), zero-extended to a word.
    pub fn load_narrow<S: InSpace>(&mut self, width: Width, addr: Addr<S>) -> Reg<U32> {
        let dst = self.register::<U32>();
        let (space, order, addr) = (S::SPACE, LoadOrder::Weak, addr.address());
        self.emit(Memory::Load { space, order, width, dsts: vec![dst.id()], addr });
        dst
    }

    /// Stores one value.
    pub fn store<T: Type, S: InSpace>(&mut self, addr: Addr<S>, value: Reg<T>) {
        self.store_as(StoreOrder::Weak, addr, [value]);
    }

    /// Stores 2 or 4 neighbouring values in one access.
    pub fn store_vector<T: Type, S: InSpace, const COUNT: usize>(&mut self, addr: Addr<S>, values: [Reg<T>; COUNT]) {
        self.store_as(StoreOrder::Weak, addr, values);
    }

    /// Stores 1, 2 or 4 neighbouring values with a given ordering.
    pub fn store_as<T: Type, S: InSpace, const COUNT: usize>(
        &mut self,
        order: StoreOrder,
        addr: Addr<S>,
        values: [Reg<T>; COUNT],
    ) {
        let (space, addr) = (S::SPACE, addr.address());
        self.emit(Memory::Store { space, order, width: width::<T>(), srcs: ids(&values), addr });
    }

    /// Adds to memory atomically, and returns what was there. Orders nothing else.
    pub fn atomic_add<T: Type, S: InSpace>(&mut self, scope: Scope, addr: Addr<S>, a: impl Into<Value<T>>) -> Reg<T> {
        self.atomic(AtomicOp::Add, Semantics::Relaxed, scope, addr, a)
    }

    /// Changes memory atomically, and returns what was there. An ordered one both publishes what came before it and
    /// sees what others published.
    pub fn atomic<T: Type, S: InSpace>(
        &mut self,
        op: AtomicOp,
        sem: Semantics,
        scope: Scope,
        addr: Addr<S>,
        a: impl Into<Value<T>>,
    ) -> Reg<T> {
        let dst = self.register::<T>();
        self.emit(Memory::Atomic {
            space: S::SPACE,
            op,
            ty: T::DATA,
            acq_rel: sem == Semantics::Ordered,
            scope,
            dst: Some(dst.id()),
            addr: addr.address(),
            a: a.into().operand(),
            b: None,
        });
        dst
    }

    /// Adds to memory atomically. Orders nothing else.
    pub fn reduce_add<T: Type, S: InSpace>(&mut self, scope: Scope, addr: Addr<S>, a: impl Into<Value<T>>) {
        self.emit(Memory::Atomic {
            space: S::SPACE,
            op: AtomicOp::Add,
            ty: T::DATA,
            acq_rel: false,
            scope,
            dst: None,
            addr: addr.address(),
            a: a.into().operand(),
            b: None,
        });
    }
}
