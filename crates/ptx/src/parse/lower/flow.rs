//! Where threads go: branches, ends, and calls, which are replaced by what they call.

use super::words::Words;
use super::{DEEPEST_CALL, Lower, MOST_CALLS, MOST_INSTRUCTIONS, Refusal, Scope, Symbol, function_address};
use crate::instr::{
    Arith, Comparison, Control, FloatMode, Guard, Label, Memory, RegisterChange, StoreOrder, UnaryOp, Width,
};
use crate::parse::syntax::{Function, Operand, Statement};
use crate::types::{Bank, DataType, RegId, Space};

impl<'t> Lower<'_, 't> {
    /// A call: what is called is put in its place. Of the functions that every kernel may call, printing does nothing
    /// here, and a failed assertion ends the run.
    pub(super) fn call(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        words.take("uni");
        let (returns, callee, args) = match operands {
            [Operand::List(returns, _), Operand::Name { name, part: None, plus: 0 }, rest @ ..] => {
                (&returns[..], name, rest)
            }
            [Operand::Name { name, part: None, plus: 0 }, rest @ ..] => (&[][..], name, rest),
            _ => return Err(Refusal::Unknown),
        };
        // What stands behind the arguments of a call through a pointer says what may be called.
        let args = match args {
            [] | [Operand::Name { .. }] => &[][..],
            [Operand::List(args, _)] | [Operand::List(args, _), Operand::Name { .. }] => &args[..],
            _ => return Err(Refusal::Unknown),
        };
        if let Some(Symbol::Register(pointer)) = self.look_up(callee.text) {
            return self.call_through(pointer, (returns, args));
        }
        if callee.text == "__assertfail" {
            self.emit(Control::Trap);
            return Ok(());
        }
        if callee.text == "vprintf" {
            // How many values were printed: none.
            for place in returns {
                if let (Symbol::Variable(variable), 0) = self.symbol(place)? {
                    let (addr, zero) = (self.variable_address(variable, 0)?, self.fresh(Bank::B32)?);
                    let (op, ty, mode, a) =
                        (UnaryOp::Move, DataType::U32, FloatMode::PLAIN, crate::types::Operand::Imm(0));
                    self.emit(Arith::Unary { op, ty, mode, dst: zero, a });
                    let (space, order, width) = (Space::Global, StoreOrder::Weak, Width::B32);
                    self.emit(Memory::Store { space, order, width, srcs: vec![zero], addr });
                }
            }
            return Ok(());
        }
        let read = self.read;
        let mut others = read.functions.iter().filter(|function| !function.entry && function.body.is_some());
        let found = others.find(|function| function.name.text == callee.text);
        let Some((function, body)) = found.and_then(|function| Some((function, function.body.as_ref()?))) else {
            return Err(Refusal::Other(format!("a function whose body is in the text, not {}", callee.text)));
        };
        self.inline(function, body, (returns, args))
    }

    /// A call through a pointer: of the functions whose address is taken somewhere and whose parameters are of the same
    /// sizes, the one that it points to. Each is put in place, behind a question.
    fn call_through(
        &mut self,
        pointer: RegId,
        (returns, args): (&[Operand<'t>], &[Operand<'t>]),
    ) -> Result<(), Refusal> {
        if pointer.bank != Bank::B64 {
            return Err(Refusal::Other("a pointer of 64 bits, or the name of a function".into()));
        }
        let mut sizes = Vec::new();
        for actual in returns.iter().chain(args) {
            let (Symbol::Variable(variable), 0) = self.symbol(actual)? else { return Err(Refusal::Unknown) };
            sizes.push(self.kernel.variables.get(variable as usize).map(|variable| u64::from(variable.bytes)));
        }
        let read = self.read;
        let mut callable = Vec::new();
        for (number, function) in (0..).zip(&read.functions) {
            let formals = function.returns.iter().chain(&function.params);
            let mut own = Vec::new();
            for formal in formals {
                own.push(Some(self.variable_bytes(formal).map_err(Refusal::Error)?));
            }
            let alike = own == sizes && function.returns.len() == returns.len();
            if let Some(body) = function.body.as_ref().filter(|_| alike && self.taken.contains(function.name.text)) {
                callable.push((number, function, body));
            }
        }
        if callable.is_empty() {
            return Err(Refusal::Other("a pointer to a function of this text whose address is taken".into()));
        }
        let (around, end, ty) = (self.branch_around(), self.new_label(), DataType::U64);
        for (number, function, body) in callable {
            let (other, next) = (self.fresh(Bank::Pred)?, self.new_label());
            let (cmp, address) = (Comparison::Ne, crate::types::Operand::Imm(function_address(number)));
            self.emit(Arith::Compare { cmp, ty, dst: other, a: crate::types::Operand::Reg(pointer), b: address });
            self.guard = Some(Guard { pred: other, negated: false });
            self.emit(Control::Branch { target: next, uniform: false });
            self.guard = None;
            self.inline(function, body, (returns, args))?;
            self.emit(Control::Branch { target: end, uniform: false });
            self.emit(Control::Label(next));
        }
        self.emit(Control::Trap);
        self.emit(Control::Label(end));
        self.end_around(around);
        Ok(())
    }

    /// Puts a function in place of a call.
    fn inline(
        &mut self,
        function: &Function<'t>,
        body: &[Statement<'t>],
        (returns, args): (&[Operand<'t>], &[Operand<'t>]),
    ) -> Result<(), Refusal> {
        self.inlined += 1;
        let endless = self.returns.len() == DEEPEST_CALL || self.inlined > MOST_CALLS;
        if endless || self.kernel.body.len() > MOST_INSTRUCTIONS {
            let wanted = format!(
                "calls at most {DEEPEST_CALL} within each other, {MOST_CALLS} in all, and {MOST_INSTRUCTIONS} instructions"
            );
            return Err(Refusal::Error(self.refuse(self.at, function.name.text, wanted)));
        }
        if (function.returns.len(), function.params.len()) != (returns.len(), args.len()) {
            return Err(Refusal::Other("as many parameters as the function has".into()));
        }
        let around = self.branch_around();
        let mut own = Scope::default();
        for (formal, actual) in function.returns.iter().zip(returns).chain(function.params.iter().zip(args)) {
            let symbol = match (formal.space, self.symbol(actual)?) {
                ("param", (symbol @ Symbol::Variable(_), 0)) => symbol,
                ("reg", (symbol @ Symbol::Register(_), 0)) => symbol,
                _ => return Err(Refusal::Unknown),
            };
            own.names.insert(formal.name.text, symbol);
        }
        // What it has in view is the module, and itself.
        let callers = self.scopes.split_off(1);
        let (at, line, phase, opcode) = (self.at, self.line, self.phase, self.opcode);
        self.scopes.push(own);
        let end = self.new_label();
        self.returns.push(end);
        (self.at, self.line) = (0, 1);
        let done = self.block(body);
        self.returns.pop();
        self.scopes.truncate(1);
        self.scopes.extend(callers);
        (self.at, self.line, self.phase, self.opcode) = (at, line, phase, opcode);
        done.map_err(Refusal::Error)?;
        self.guard = None;
        self.emit(Control::Label(end));
        self.end_around(around);
        Ok(())
    }

    pub(super) fn control(
        &mut self,
        opcode: &str,
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), Refusal> {
        let op = match opcode {
            "brx" => return self.computed_branch(words, operands),
            "bra" => {
                let [target] = self.exactly(operands)?;
                Control::Branch { target: self.label(target)?, uniform: words.take("uni") }
            }
            "exit" => Control::Exit,
            "ret" => {
                let uniform = words.take("uni");
                self.returns.last().map_or(Control::Exit, |end| Control::Branch { target: *end, uniform })
            }
            "trap" => Control::Trap,
            "setmaxnreg" => {
                let changes = [("inc", RegisterChange::Increase), ("dec", RegisterChange::Decrease)];
                let change = words.pick(&changes).ok_or(Refusal::Unknown)?;
                let [count] = self.exactly(operands)?;
                let all = words.take("sync") && words.take("aligned") && words.take("u32");
                Control::SetMaxRegisters {
                    change,
                    count: self.small(count).ok().filter(|_| all).ok_or(Refusal::Unknown)?,
                }
            }
            _ if words.take("wait") => Control::GridDependencyWait,
            _ if words.take("launch_dependents") => Control::LaunchDependents,
            _ => return Err(Refusal::Unknown),
        };
        self.emit(op);
        Ok(())
    }

    /// A branch to one of several labels, by number: one comparison after the other.
    fn computed_branch(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        let ([index, list], true, None) = (self.exactly(operands)?, words.take("idx"), self.guard) else {
            return Err(Refusal::Unknown);
        };
        let uniform = words.take("uni");
        let Operand::Name { name, part: None, plus: 0 } = list else { return Err(Refusal::Unknown) };
        let found = self.scopes.iter().rev().find_map(|scope| scope.targets.get(name.text).cloned());
        let targets = found.ok_or_else(|| self.wrong(name.at, name.text, "a list of labels, by .branchtargets"))?;
        let labels: Vec<Label> = targets
            .iter()
            .map(|target| self.label(&Operand::Name { name: *target, part: None, plus: 0 }))
            .collect::<Result<_, _>>()?;
        let index = self.register(index, Bank::B32)?;
        if labels.is_empty() {
            return Err(Refusal::Unknown);
        }
        for (number, target) in (0..).zip(labels) {
            let (ty, dst) = (DataType::U32, self.fresh(Bank::Pred)?);
            let [a, b] = [crate::types::Operand::Reg(index), crate::types::Operand::Imm(number)];
            self.emit(Arith::Compare { cmp: Comparison::Eq, ty, dst, a, b });
            self.guard = Some(Guard { pred: dst, negated: false });
            self.emit(Control::Branch { target, uniform });
            self.guard = None;
        }
        // What is beyond the list is undefined: nobody should come here.
        self.emit(Control::Trap);
        Ok(())
    }

    /// A label, in the innermost block that has it.
    fn label(&self, operand: &Operand<'t>) -> Result<Label, Refusal> {
        let Operand::Name { name, part: None, plus: 0 } = operand else { return Err(Refusal::Unknown) };
        let found = self.scopes.iter().rev().find_map(|scope| scope.labels.get(name.text));
        found.copied().ok_or_else(|| self.wrong(name.at, name.text, "a label of this block or of one around it"))
    }
}
