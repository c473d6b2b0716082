//! From statements to a [`Kernel`]: declarations become registers and places in memory, instructions become values.
//!
//! Each family has a table from words to values, as `print` has one from values to words. A table takes the words
//! that it understands; if some are left over, or an operand has a form that a value cannot say, the instruction
//! stays as it is written ([`Unknown`]). What cannot be PTX at all (a name that nobody declares) is an error.

mod async_work;
mod compute;
mod flow;
mod fragment;
mod memory;
mod names;
mod operands;
mod variables;
mod warp;
mod words;

use std::collections::{HashMap, HashSet};

use super::Shape;
use super::lexer::refuse;
use super::reader::Read;
use super::syntax::{Function, Instruction, Loc, Name, Operand, SourceLine, Statement};
use crate::error::Error;
use crate::instr::{Access, Arith, Control, Guard, Instr, Label, Op, UnaryOp, Unknown};
use crate::kernel::{Kernel, LaunchBounds, Phase};
use crate::target::Target;
use crate::types::{self, Bank, ParamId, PhaseId, RegId};
use names::{addressed_names, free, used};
use variables::keep_used_variables;
use words::Words;

/// Registers that a function may declare: far more than any compiler does.
const MOST_REGISTERS: u64 = 1 << 18;
/// Calls within calls that a source line is followed through.
const DEEPEST_INLINING: usize = 16;
/// Characters of a function's name that a phase has: those of C++ templates run to thousands.
const LONGEST_NAME: usize = 80;
/// Calls that are replaced by what they call, within each other and in all, and the instructions that this may come to.
const DEEPEST_CALL: usize = 16;
const MOST_CALLS: u32 = 4096;
const MOST_INSTRUCTIONS: usize = 1 << 20;
/// Letters that are kept of an instruction that is not understood.
const MOST_LETTERS: usize = 240;

/// The halves of the address of what the driver keeps for a cooperative launch, the upper one first, by CUDA's headers:
/// the size, and a word in which the grid's blocks count each other. Without such a launch the address is zero.
const GRID_WORKSPACE: [&str; 2] = ["%envreg1", "%envreg2"];

/// Why an instruction did not become a value.
enum Refusal {
    /// It is not understood.
    Unknown,
    /// It is not understood, since something else was expected.
    Other(String),
    /// It cannot be PTX.
    Error(Error),
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symbol {
    Register(RegId),
    /// A register of 128 bits, as two.
    Wide([RegId; 2]),
    /// A byte of the kernel's shared memory.
    Shared(u32),
    Param(ParamId),
    /// One of the kernel's variables.
    Variable(u32),
    /// A function of the module, by its number, that has a body.
    Function(u32),
    /// Something that is declared, and not understood.
    Other,
}

/// The address of a function: a number that nothing else has. Calls through pointers compare with it.
fn function_address(number: u32) -> u64 {
    0xca11 << 48 | (u64::from(number) + 1) << 4
}

/// The names of a block.
#[derive(Default)]
struct Scope<'t> {
    names: HashMap<&'t str, Symbol>,
    /// Registers that are numbered behind a common beginning: the first, and how many.
    numbered: HashMap<&'t str, (RegId, u32)>,
    labels: HashMap<&'t str, Label>,
    /// Lists of labels for computed branches.
    targets: HashMap<&'t str, Vec<Name<'t>>>,
}

/// A kernel in the making.
struct Lower<'m, 't> {
    text: &'t str,
    read: &'m Read<'t>,
    kernel: Kernel,
    scopes: Vec<Scope<'t>>,
    /// Whether labels keep the numbers in their names, and the next number otherwise.
    numbered_labels: bool,
    labels: u32,
    registers: u64,
    /// Where dynamic shared memory begins.
    dynamic: u32,
    /// A word of shared memory in which barriers count votes, if there are such.
    votes: Option<u32>,
    /// The variable that the driver keeps for a cooperative launch, if it is asked for.
    workspace: Option<u32>,
    /// What sums of several words carry from one to the next, once there are such.
    carry: Option<RegId>,
    /// Numbers that were last put into registers of 16 bits, and those that an instruction relies on, with its place.
    constants: HashMap<RegId, u64>,
    relied_on: HashMap<RegId, (u64, u32)>,
    /// Names of which the address is taken.
    taken: HashSet<&'t str>,
    /// Of the functions that are being put in place of their calls, where each one's end is.
    returns: Vec<Label>,
    /// Calls that were replaced.
    inlined: u32,
    guard: Option<Guard>,
    phase: PhaseId,
    phases: HashMap<(PhaseId, String), PhaseId>,
    /// Where each line that was inlined was called from.
    calls: HashMap<SourceLine, (&'t str, SourceLine)>,
    /// The place of the present instruction, its line, and its opcode.
    at: u32,
    line: u32,
    opcode: &'t str,
}

/// A name, without the middle of a long one.
fn shortened(name: &str) -> String {
    let count = name.chars().count();
    if count <= LONGEST_NAME {
        return name.to_string();
    }
    let half = LONGEST_NAME / 2;
    let (start, end): (String, String) = (name.chars().take(half).collect(), name.chars().skip(count - half).collect());
    format!("{start}...{end}")
}

/// Makes a kernel of a function, for a launch.
pub(super) fn lower<'t>(
    text: &'t str,
    read: &Read<'t>,
    function: &Function<'t>,
    shape: Shape,
) -> Result<Kernel, Error> {
    let Some(body) = &function.body else {
        return Err(refuse(text, function.name.at, function.name.text, "an entry with a body"));
    };
    let (block, launch) = bounds(text, function, shape)?;
    let target = target(text, read)?;
    let name = function.name.text.to_string();
    let phases = vec![Phase { name: shortened(&name), parent: None }];
    let (params, shared, registers, instructions) = (Vec::new(), Vec::new(), [0; 4], Vec::new());
    let kernel = Kernel {
        name,
        target,
        launch,
        rows: [block[1], block[2]],
        params,
        shared,
        variables: Vec::new(),
        registers,
        phases,
        body: instructions,
        foreign: true,
        cooperative: shape.cooperative,
    };
    // Functions that may be called. Their bodies are put in place of the calls.
    let called =
        || read.functions.iter().filter(|function| !function.entry).filter_map(|function| function.body.as_ref());
    let numbered_labels = called().next().is_none() && keeps_numbers(function, body);
    let mut lower = Lower {
        text,
        read,
        kernel,
        scopes: vec![Scope::default()],
        numbered_labels,
        // Behind those that are kept.
        labels: if numbered_labels { function.statements } else { 0 },
        registers: 0,
        dynamic: 0,
        votes: None,
        workspace: None,
        carry: None,
        constants: HashMap::new(),
        relied_on: HashMap::new(),
        taken: addressed_names(read),
        returns: Vec::new(),
        inlined: 0,
        guard: None,
        phase: PhaseId(0),
        phases: HashMap::new(),
        calls: HashMap::new(),
        at: 0,
        line: 1,
        opcode: "",
    };
    // Functions of the module are declared, and not understood, and so are variables of kinds that are not.
    let variables = read.variables.iter().map(|variable| variable.name.text);
    lower.scopes[0].names.extend(variables.map(|name| (name, Symbol::Other)));
    for (number, function) in (0..).zip(&read.functions) {
        let callable = !function.entry && function.body.is_some();
        let symbol = if callable { Symbol::Function(number) } else { Symbol::Other };
        // A function may be declared before, or behind, its body.
        let names = &mut lower.scopes[0].names;
        if callable || !matches!(names.get(function.name.text), Some(Symbol::Function(_))) {
            names.insert(function.name.text, symbol);
        }
    }
    let mut names = HashSet::new();
    called().chain([body]).for_each(|body| used(body, &mut names));
    let mut free_names = HashSet::new();
    for function in read.functions.iter().filter(|one| !one.entry).chain([function]) {
        let params = function.params.iter().chain(&function.returns).map(|param| param.name.text).collect();
        free(function.body.as_deref().unwrap_or_default(), params, &mut free_names);
    }
    for variable in read.variables.iter().filter(|variable| free_names.contains(variable.name.text)) {
        lower.addressed(variable)?;
    }
    let bodies: Vec<&Vec<Statement<'t>>> = called().chain([body]).collect();
    lower.params(function)?;
    lower.shared_memory(&names, &bodies, shape.dynamic_shared)?;
    if shape.cooperative && GRID_WORKSPACE.iter().any(|name| names.contains(name)) {
        lower.grid_workspace();
    }
    lower.block(body)?;
    lower.relied_on_hold()?;
    let last = lower.kernel.body.last();
    if !last.is_some_and(|last| last.guard.is_none() && last.op == Op::Control(Control::Exit)) {
        lower.guard = None;
        lower.emit(Control::Exit);
    }
    keep_used_variables(&mut lower.kernel);
    Ok(lower.kernel)
}

/// Threads of a block, and what else a launch must be.
fn bounds(text: &str, function: &Function<'_>, shape: Shape) -> Result<([u32; 3], LaunchBounds), Error> {
    let (mut required, mut most, mut cluster, mut min_blocks) = (None, None, None, None);
    for (name, numbers) in &function.directives {
        let sides = || {
            let mut sides = [1; 3];
            for (side, number) in sides.iter_mut().zip(numbers) {
                let fits = u32::try_from(*number).ok().filter(|number| (1..=1 << 20).contains(number));
                *side = fits.ok_or_else(|| refuse(text, name.at, name.text, "sides of 1 to 1048576"))?;
            }
            match numbers.len() {
                1..=3 => Ok(sides),
                _ => Err(refuse(text, name.at, name.text, "one to three numbers behind it")),
            }
        };
        match name.text {
            "reqntid" => required = Some(sides()?),
            "maxntid" => most = Some(sides()?),
            "reqnctapercluster" => cluster = Some(sides()?),
            "minnctapersm" | "maxnctapersm" => min_blocks = numbers.first().and_then(|n| u32::try_from(*n).ok()),
            "maxnreg" | "explicitcluster" | "blocksareclusters" | "maxclusterrank" | "noreturn" | "weak" => {}
            _ => return Err(refuse(text, name.at, name.text, "a directive of entries that is known, such as reqntid")),
        }
    }
    let at = function.name;
    let block = shape.block.or(required).ok_or_else(|| {
        refuse(text, at.at, at.text, "the threads of a block: the entry has no .reqntid, so the launch must say them")
    })?;
    if let Some(required) = required.filter(|required| *required != block) {
        return Err(refuse(text, at.at, at.text, format!("blocks of {required:?} threads, by its .reqntid")));
    }
    let threads = block.iter().try_fold(1u32, |product, side| product.checked_mul(*side)).unwrap_or(u32::MAX);
    if let Some([x, y, z]) = most
        && u64::from(threads) > u64::from(x) * u64::from(y) * u64::from(z)
    {
        return Err(refuse(text, at.at, at.text, format!("at most {x}×{y}×{z} threads in a block, by its .maxntid")));
    }
    if let (Some(required), Some(asked)) = (cluster, shape.cluster)
        && required != asked
    {
        return Err(refuse(
            text,
            at.at,
            at.text,
            format!("clusters of {required:?} blocks, by its .reqnctapercluster"),
        ));
    }
    Ok((block, LaunchBounds { threads, cluster: cluster.or(shape.cluster), min_blocks }))
}

/// The target whose features are those of the module's.
fn target(text: &str, read: &Read<'_>) -> Result<Target, Error> {
    let Some(name) = read.target else { return Err(refuse(text, 0, "no .target", "one, such as .target sm_90a")) };
    if let Some(target) = Target::ALL.into_iter().find(|target| target.name() == name.text) {
        return Ok(target);
    }
    let number = name.text.strip_prefix("sm_").map(|number| number.trim_end_matches(['a', 'f']));
    match number.and_then(|number| number.parse::<u32>().ok()) {
        Some(50..=89) => Ok(Target::Sm80),
        Some(90..=99) => Ok(Target::Sm90a),
        Some(100..=119) => Ok(Target::Sm100f),
        Some(120..=129) => Ok(Target::Sm120f),
        _ => Err(refuse(text, name.at, name.text, "a target from sm_50 to sm_129")),
    }
}

/// Whether all labels of a function are numbers, as `print` writes them, and can be kept.
fn keeps_numbers(function: &Function<'_>, body: &[Statement<'_>]) -> bool {
    fn look(body: &[Statement<'_>], most: u32, seen: &mut HashSet<u32>) -> bool {
        body.iter().all(|statement| match statement {
            Statement::Label(name) => label_number(name.text).is_some_and(|n| n < most && seen.insert(n)),
            Statement::Block(inner) => look(inner, most, seen),
            _ => true,
        })
    }
    look(body, function.statements, &mut HashSet::new())
}

fn label_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix('L')?;
    let number: u32 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

/// The bank of registers of a type, by its name.
fn bank(ty: &str) -> Option<Bank> {
    match ty {
        "pred" => Some(Bank::Pred),
        "b8" | "u8" | "s8" | "b16" | "u16" | "s16" | "f16" | "bf16" => Some(Bank::B16),
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => Some(Bank::B32),
        "b64" | "u64" | "s64" | "f64" | "f32x2" => Some(Bank::B64),
        _ => None,
    }
}

impl<'t> Lower<'_, 't> {
    fn refuse(&self, at: u32, found: &str, wanted: impl Into<String>) -> Error {
        refuse(self.text, at, found, wanted)
    }

    /// Something that cannot be PTX.
    fn wrong(&self, at: u32, found: &str, wanted: impl Into<String>) -> Refusal {
        Refusal::Error(self.refuse(at, found, wanted))
    }

    /// What a name stands for, in the innermost block that has it.
    fn look_up(&self, name: &str) -> Option<Symbol> {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &name[stem.len()..];
        let number = digits.parse::<u32>().ok().filter(|_| digits.len() == 1 || !digits.starts_with('0'));
        self.scopes.iter().rev().find_map(|scope| {
            scope.names.get(name).copied().or_else(|| {
                let (first, count) = scope.numbered.get(stem)?;
                let number = number.filter(|number| number < count)?;
                Some(Symbol::Register(RegId { index: first.index + number, ..*first }))
            })
        })
    }

    fn scope(&mut self) -> &mut Scope<'t> {
        if self.scopes.is_empty() {
            self.scopes.push(Scope::default());
        }
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    /// So many new registers of a bank; the first of them.
    fn some_registers(&mut self, bank: Bank, count: u64, at: u32) -> Result<RegId, Error> {
        self.registers = self.registers.saturating_add(count);
        if self.registers > MOST_REGISTERS {
            let found = format!("{} registers", self.registers);
            return Err(self.refuse(at, &found, format!("at most {MOST_REGISTERS} in a function")));
        }
        let declared = &mut self.kernel.registers[bank.index()];
        let first = RegId { bank, index: *declared };
        *declared += count as u32;
        Ok(first)
    }

    /// A new register that no name stands for.
    fn fresh(&mut self, bank: Bank) -> Result<RegId, Refusal> {
        self.some_registers(bank, 1, self.at).map_err(Refusal::Error)
    }

    fn emit(&mut self, op: impl Into<Op>) {
        let op = op.into();
        if let Op::Arith(Arith::Unary { op: UnaryOp::Move, dst, a: types::Operand::Imm(value), .. }) = op
            && dst.bank == Bank::B16
        {
            self.constants.insert(dst, value);
        }
        self.kernel.body.push(Instr { guard: self.guard, op, phase: self.phase, line: Some(self.line) });
    }

    /// Registers that instructions take a number from hold that one wherever they are written.
    fn relied_on_hold(&self) -> Result<(), Error> {
        if self.relied_on.is_empty() {
            return Ok(());
        }
        for instr in &self.kernel.body {
            let mut other = None;
            instr.registers(&mut |reg, access| {
                let found = self.relied_on.get(&reg).filter(|_| access != Access::Read);
                other = found.map(|(value, at)| (*value, *at)).or(other);
            });
            let Some((value, at)) = other else { continue };
            let same = matches!(instr.op, Op::Arith(Arith::Unary { op: UnaryOp::Move, a: types::Operand::Imm(one), .. }) if one == value);
            if !same || instr.guard.is_some() {
                let wanted = format!("a selector that is {value} throughout: it is part of the instruction");
                return Err(self.refuse(at, "a register that is written with something else", wanted));
            }
        }
        Ok(())
    }

    /// The statements of a block, with names and labels of its own.
    fn block(&mut self, body: &[Statement<'t>]) -> Result<(), Error> {
        self.scopes.push(Scope::default());
        for statement in body {
            if let Statement::Label(name) = statement {
                let label = Label(match label_number(name.text).filter(|_| self.numbered_labels) {
                    Some(number) => number,
                    None => self.labels,
                });
                self.labels += 1;
                if self.scope().labels.insert(name.text, label).is_some() {
                    return Err(self.refuse(name.at, name.text, "a label that is placed once"));
                }
            }
        }
        if !self.question(body)? && !self.conversion_by_byte(body)? {
            body.iter().try_for_each(|statement| self.statement(statement))?;
        }
        self.scopes.pop();
        Ok(())
    }

    fn statement(&mut self, statement: &Statement<'t>) -> Result<(), Error> {
        match statement {
            Statement::Variable(variable) => self.variable(variable),
            Statement::Instruction(instruction) => self.instruction(instruction),
            Statement::Label(name) => {
                self.stand(name.at);
                self.guard = None;
                let label = self.scope().labels.get(name.text).copied();
                label.into_iter().for_each(|label| self.emit(Control::Label(label)));
                Ok(())
            }
            Statement::Loc(loc) => {
                self.locate(*loc);
                Ok(())
            }
            Statement::Block(body) => self.block(body),
            Statement::Targets(name, targets) => {
                self.scope().targets.insert(name.text, targets.clone());
                Ok(())
            }
            Statement::Prototype(name) => {
                self.scope().names.insert(name.text, Symbol::Other);
                Ok(())
            }
        }
    }

    /// Goes on to a place in the text, behind the last one, and counts lines on the way.
    fn stand(&mut self, at: u32) {
        let passed = self.text.as_bytes().get(self.at as usize..at as usize).unwrap_or_default();
        self.line += passed.iter().filter(|byte| **byte == b'\n').count() as u32;
        self.at = self.at.max(at);
    }

    /// What follows was written at a line of the sources: that is its phase, within those of the calls around it.
    fn locate(&mut self, loc: Loc<'t>) {
        if let Some(call) = loc.inlined {
            self.calls.insert(loc.line, call);
        }
        let mut chain = vec![(loc.line, loc.inlined.map(|(function, _)| function))];
        let mut around = loc.inlined.map(|(_, line)| line);
        while let Some(line) = around.filter(|_| chain.len() < DEEPEST_INLINING) {
            let call = self.calls.get(&line).copied().filter(|(_, from)| *from != line);
            chain.push((line, call.map(|(function, _)| function)));
            around = call.map(|(_, from)| from);
        }
        self.phase = PhaseId(0);
        for (SourceLine { file, line }, function) in chain.into_iter().rev() {
            let path = self.read.files.get(&file).copied().unwrap_or("?");
            let file = path.rsplit('/').next().unwrap_or(path);
            let name = match function.and_then(|label| self.read.strings.get(label)) {
                Some(function) => format!("{} {file}:{line}", shortened(function)),
                None => format!("{file}:{line}"),
            };
            // Names are bytes of a stranger's, and are printed as comments.
            let name = name.chars().filter(|c| !c.is_control()).collect();
            self.phase = self.phase_in(self.phase, name);
        }
    }

    fn phase_in(&mut self, parent: PhaseId, name: String) -> PhaseId {
        let phases = &mut self.kernel.phases;
        let new = PhaseId(phases.len() as u32);
        *self.phases.entry((parent, name)).or_insert_with_key(|(parent, name)| {
            phases.push(Phase { name: name.clone(), parent: Some(*parent) });
            new
        })
    }

    fn instruction(&mut self, instruction: &Instruction<'t>) -> Result<(), Error> {
        self.stand(instruction.opcode.at);
        self.opcode = instruction.opcode.text;
        self.guard = None;
        if let Some((name, negated)) = instruction.guard {
            self.guard = match self.look_up(name.text) {
                Some(Symbol::Register(pred)) if pred.bank == Bank::Pred => Some(Guard { pred, negated }),
                _ => return Err(self.refuse(name.at, name.text, "a predicate that is declared")),
            };
        }
        let (before, mut words) = (self.kernel.body.len(), Words::new(&instruction.modifiers));
        match self.family(instruction.opcode.text, &mut words, &instruction.operands) {
            Ok(()) if words.done() => Ok(()),
            Err(Refusal::Error(error)) => Err(error),
            unknown => {
                let wanted = if let Err(Refusal::Other(wanted)) = unknown { Some(wanted) } else { None };
                self.kernel.body.truncate(before);
                let text = self.text.get(instruction.opcode.at as usize..instruction.end as usize).unwrap_or_default();
                let text = text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
                let text = text.chars().take(MOST_LETTERS).collect();
                let words = [self.opcode].into_iter().chain(instruction.modifiers.iter().copied());
                let opcode = words.collect::<Vec<_>>().join(".").chars().take(MOST_LETTERS).collect();
                self.emit(Unknown { opcode, text, wanted });
                Ok(())
            }
        }
    }

    /// Has the table of its family make a value of an instruction.
    fn family(&mut self, opcode: &str, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        match opcode {
            "ld" | "st" | "atom" | "red" => self.memory(opcode, words, operands),
            "shfl" | "vote" | "activemask" | "elect" | "redux" | "match" | "ldmatrix" | "stmatrix" => {
                self.warp(opcode, words, operands)
            }
            "mma" => self.mma(words, operands),
            "wmma" => self.wmma(words, operands),
            "bar" | "barrier" | "mbarrier" => self.barrier(opcode, words, operands),
            "fence" | "membar" => self.fence(opcode, words, operands),
            "clusterlaunchcontrol" if words.has("query_cancel") => self.guarded_query(words, operands),
            "cp" | "prefetch" | "clusterlaunchcontrol" => self.copy(opcode, words, operands),
            "tensormap" => self.made_map(words, operands),
            "wgmma" => self.wgmma(words, operands),
            "tcgen05" => self.tcgen05(words, operands),
            "call" => self.call(words, operands),
            "bra" | "brx" | "exit" | "ret" | "trap" | "setmaxnreg" | "griddepcontrol" => {
                self.control(opcode, words, operands)
            }
            _ => self.arith(opcode, words, operands),
        }
    }

    /// A block that is one value to `print`: a question about an answer of launch control, which takes a register of
    /// 128 bits.
    fn question(&mut self, body: &[Statement<'t>]) -> Result<bool, Error> {
        let [Statement::Variable(answer), Statement::Instruction(pack), Statement::Instruction(ask)] = body else {
            return Ok(false);
        };
        let is = |operand: Option<&Operand<'t>>| matches!(operand, Some(Operand::Name { name, part: None, plus: 0 }) if name.text == answer.name.text);
        let packs = (pack.opcode.text, &pack.modifiers[..]) == ("mov", &["b128"]) && is(pack.operands.first());
        let (Some(Operand::Vector(halves, _)), true) = (pack.operands.get(1), packs && answer.ty == "b128") else {
            return Ok(false);
        };
        let asks = ask.opcode.text == "clusterlaunchcontrol" && is(ask.operands.get(1)) && ask.operands.len() == 2;
        if !asks || halves.len() != 2 || pack.guard.is_some() || ask.guard.is_some() {
            return Ok(false);
        }
        self.stand(ask.opcode.at);
        (self.opcode, self.guard) = (ask.opcode.text, None);
        let mut words = Words::new(&ask.modifiers);
        let (low, high) = (self.register(&halves[0], Bank::B64), self.register(&halves[1], Bank::B64));
        let asked = match (low, high) {
            (Ok(low), Ok(high)) => self.query(&mut words, &ask.operands[0], [low, high]),
            _ => Err(Refusal::Unknown),
        };
        match asked {
            Ok(op) if words.done() => {
                self.emit(op);
                Ok(true)
            }
            Ok(_) | Err(Refusal::Unknown | Refusal::Other(_)) => Ok(false),
            Err(Refusal::Error(error)) => Err(error),
        }
    }

    /// Another block that is one value: a conversion to or from two numbers of four bits, by way of a byte.
    fn conversion_by_byte(&mut self, body: &[Statement<'t>]) -> Result<bool, Error> {
        let [Statement::Variable(byte), Statement::Instruction(first), Statement::Instruction(second)] = body else {
            return Ok(false);
        };
        let is = |operand: Option<&Operand<'t>>| matches!(operand, Some(Operand::Name { name, part: None, plus: 0 }) if name.text == byte.name.text);
        let converts = |one: &Instruction<'t>| one.opcode.text == "cvt" && one.guard.is_none();
        if (byte.space, byte.ty, byte.numbered) != ("reg", "b8", None) || !converts(first) || !converts(second) {
            return Ok(false);
        }
        let (a, b) = (&first.operands, &second.operands);
        let narrow = |one: &Instruction<'t>| one.modifiers.contains(&"e2m1x2");
        let one = match (&a[..], &b[..]) {
            ([to, ..], [dst, from]) if narrow(first) && second.modifiers == ["u16", "u8"] => {
                let mut one = first.clone();
                one.operands[0] = dst.clone();
                (is(Some(to)) && is(Some(from))).then_some(one)
            }
            ([to, source], [_, from]) if narrow(second) && first.modifiers == ["u8", "u16"] => {
                let mut one = second.clone();
                one.operands[1] = source.clone();
                (is(Some(to)) && is(Some(from))).then_some(one)
            }
            _ => None,
        };
        match one {
            Some(one) => self.instruction(&one).map(|()| true),
            None => Ok(false),
        }
    }

    /// The same with a register of 128 bits that has a name. One with a guard is branched around.
    fn guarded_query(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        let [dst, answer] = self.exactly(operands)?;
        let (Symbol::Wide(answer), 0) = self.symbol(answer)? else { return Err(Refusal::Unknown) };
        let op = self.query(words, dst, answer)?;
        let around = self.branch_around();
        self.emit(op);
        self.end_around(around);
        Ok(())
    }

    /// Begins what only lanes go through in which the guard holds, and takes the guard away.
    fn branch_around(&mut self) -> Option<(Guard, Label)> {
        let guard = self.guard.take()?;
        let label = self.new_label();
        self.guard = Some(Guard { negated: !guard.negated, ..guard });
        self.emit(Control::Branch { target: label, uniform: false });
        self.guard = None;
        Some((guard, label))
    }

    /// Ends it.
    fn end_around(&mut self, around: Option<(Guard, Label)>) {
        if let Some((guard, label)) = around {
            self.guard = None;
            self.emit(Control::Label(label));
            self.guard = Some(guard);
        }
    }

    /// A label that no name stands for.
    fn new_label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }

    /// What is asked about an answer of launch control.
    fn query(&mut self, words: &mut Words<'t>, dst: &Operand<'t>, answer: [RegId; 2]) -> Result<Arith, Refusal> {
        if !(words.take("query_cancel") && words.take("b128")) {
            return Err(Refusal::Unknown);
        }
        if words.take("is_canceled") && words.take("pred") {
            return Ok(Arith::IsCanceled { dst: self.register(dst, Bank::Pred)?, answer });
        }
        if words.take("get_first_ctaid") && words.take("v4") && words.take("b32") {
            let Operand::Vector(parts, _) = dst else { return Err(Refusal::Unknown) };
            let [x, y, z, _] = &parts[..] else { return Err(Refusal::Unknown) };
            let dsts = [self.register(x, Bank::B32)?, self.register(y, Bank::B32)?, self.register(z, Bank::B32)?];
            return Ok(Arith::FirstBlock { dsts, answer });
        }
        Err(Refusal::Unknown)
    }
}
