//! Loops and branches as closures, lowered to labels and branches.
//!
//! Labels are laid out in program order and every structure is left at its end, so lanes that diverged meet again at
//! the first label after the structure.

use super::Builder;
use crate::instr::{Control, Label, RegisterChange};
use crate::types::{Operand, Pred, Reg, U32, Value};

impl Builder {
    /// A new label, to be placed once.
    pub fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }

    /// Places a label here.
    pub fn place(&mut self, label: Label) {
        self.emit(Control::Label(label));
    }

    /// Goes to a label.
    pub fn branch(&mut self, target: Label) {
        self.emit(Control::Branch { target, uniform: false });
    }

    /// Goes to a label where `pred` holds.
    pub fn branch_if(&mut self, pred: Pred, target: Label) {
        self.when(pred, |k| k.branch(target));
    }

    /// Goes to a label where `pred` does not hold.
    pub fn branch_unless(&mut self, pred: Pred, target: Label) {
        self.unless(pred, |k| k.branch(target));
    }

    /// `body` for the lanes in which `pred` holds.
    pub fn if_(&mut self, pred: Pred, body: impl FnOnce(&mut Self)) {
        let end = self.label();
        self.branch_unless(pred, end);
        body(self);
        self.place(end);
    }

    /// `then` for the lanes in which `pred` holds, `otherwise` for the others.
    pub fn if_else(&mut self, pred: Pred, then: impl FnOnce(&mut Self), otherwise: impl FnOnce(&mut Self)) {
        let (other, end) = (self.label(), self.label());
        self.branch_unless(pred, other);
        then(self);
        self.branch(end);
        self.place(other);
        otherwise(self);
        self.place(end);
    }

    /// `body` `count` times, with the index counting from zero. A count known to be positive costs no test at the top.
    pub fn repeat(&mut self, count: impl Into<Value<U32>>, body: impl FnOnce(&mut Self, Reg<U32>)) {
        let count = count.into();
        let (head, end) = (self.label(), self.label());
        let index = self.variable(0);
        match count.operand() {
            Operand::Imm(1..) => {}
            Operand::Imm(_) | Operand::Reg(_) => {
                let none = self.ge(index, count);
                self.branch_if(none, end);
            }
        }
        self.place(head);
        body(self, index);
        let next = self.add(index, 1);
        self.set(index, next);
        let more = self.lt(index, count);
        self.branch_if(more, head);
        self.place(end);
    }

    /// `body` as long as `condition`, evaluated before each round, holds.
    pub fn loop_while(&mut self, condition: impl FnOnce(&mut Self) -> Pred, body: impl FnOnce(&mut Self)) {
        let (head, end) = (self.label(), self.label());
        self.place(head);
        let more = condition(self);
        self.branch_unless(more, end);
        body(self);
        self.branch(head);
        self.place(end);
    }

    /// `body` once, and again as long as the predicate it returns holds.
    pub fn repeat_while(&mut self, body: impl FnOnce(&mut Self) -> Pred) {
        let head = self.label();
        self.place(head);
        let again = body(self);
        self.branch_if(again, head);
    }

    /// Ends the thread.
    pub fn exit(&mut self) {
        self.emit(Control::Exit);
    }

    /// Reports a failure of the kernel to the host.
    pub fn trap(&mut self) {
        self.emit(Control::Trap);
    }

    /// Changes the warp's register budget per thread.
    pub fn set_max_registers(&mut self, change: RegisterChange, count: u32) {
        self.emit(Control::SetMaxRegisters { change, count });
    }

    /// Waits until the grids this one depends on have finished.
    pub fn grid_dependency_wait(&mut self) {
        self.emit(Control::GridDependencyWait);
    }

    /// Allows dependent grids to be launched.
    pub fn launch_dependents(&mut self) {
        self.emit(Control::LaunchDependents);
    }
}
