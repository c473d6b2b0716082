//! What the lanes of a warp do together. Each method here speaks for the whole warp; partial masks go through
//! [`Builder::emit`].

use super::Builder;
use crate::instr::{ReduceOp, ShuffleMode, VoteMode, Warp};
use crate::types::{Addr, Bool, Operand, Pred, Reg, Shared, Type, U32, Value, W32};

const ALL_LANES: Operand = Operand::Imm(0xffff_ffff);

impl Builder {
    /// Each lane reads another lane's value.
    pub fn shuffle<T: Type<Width = W32>>(
        &mut self,
        mode: ShuffleMode,
        a: Reg<T>,
        lane: impl Into<Value<U32>>,
    ) -> Reg<T> {
        let dst = self.register::<T>();
        // The clamp is the last lane, except upwards, where it is the first.
        let clamp = Operand::Imm(if mode == ShuffleMode::Up { 0 } else { 31 });
        let lane = lane.into().operand();
        self.emit(Warp::Shuffle { mode, dst: dst.id(), valid: None, a: a.id(), lane, clamp, mask: ALL_LANES });
        dst
    }

    /// Lane 0's value in every lane: tells the assembler that it is the same throughout the warp.
    pub fn broadcast<T: Type<Width = W32>>(&mut self, a: Reg<T>) -> Reg<T> {
        self.shuffle(ShuffleMode::Index, a, 0)
    }

    /// A question to the warp about a predicate.
    pub fn vote(&mut self, mode: VoteMode, pred: Pred) -> Pred {
        let dst = self.register::<Bool>();
        self.emit(Warp::Vote { mode, dst: dst.id(), pred: pred.id(), mask: ALL_LANES });
        dst
    }

    /// The lanes in which a predicate holds.
    pub fn ballot(&mut self, pred: Pred) -> Reg<U32> {
        let dst = self.register();
        self.emit(Warp::Ballot { dst: dst.id(), pred: pred.id(), mask: ALL_LANES });
        dst
    }

    /// The lanes that happen to be here together.
    pub fn active_mask(&mut self) -> Reg<U32> {
        let dst = self.register();
        self.emit(Warp::ActiveMask { dst: dst.id() });
        dst
    }

    /// A predicate that holds in one lane.
    pub fn elect(&mut self) -> Pred {
        let pred = self.register::<Bool>();
        self.emit(Warp::Elect { leader: None, pred: pred.id(), mask: ALL_LANES });
        pred
    }

    /// A word combined over the warp.
    pub fn reduce(&mut self, op: ReduceOp, a: Reg<U32>) -> Reg<U32> {
        let dst = self.register::<U32>();
        self.emit(Warp::Reduce { op, ty: U32::DATA, dst: dst.id(), a: a.id(), mask: ALL_LANES });
        dst
    }

    /// Waits for all lanes of the warp, and orders their memory accesses.
    pub fn sync_warp(&mut self) {
        self.emit(Warp::Sync { mask: ALL_LANES });
    }

    /// Loads 1, 2 or 4 matrices of 8×8 16-bit elements.
    pub fn load_matrix<const COUNT: usize>(&mut self, addr: Addr<Shared>, transpose: bool) -> [Reg<U32>; COUNT] {
        let dsts = self.registers::<U32, COUNT>();
        let list = dsts.iter().map(|reg| reg.id()).collect();
        self.emit(Warp::LoadMatrix { transpose, dsts: list, addr: addr.address() });
        dsts
    }

    /// Stores 1, 2 or 4 matrices of 8×8 16-bit elements.
    pub fn store_matrix<T: Type<Width = W32>>(&mut self, addr: Addr<Shared>, srcs: &[Reg<T>], transpose: bool) {
        let srcs = srcs.iter().map(|reg| reg.id()).collect();
        self.emit(Warp::StoreMatrix { transpose, srcs, addr: addr.address() });
    }
}
