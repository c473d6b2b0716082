//! From words to statements: recursive descent over the grammar of PTX.
//!
//! What nests (blocks, operands) may nest so deep and no deeper, so that no text exhausts the stack.

use std::collections::HashMap;

use super::lexer::{Kind, Lexer, Word, refuse};
use super::syntax::{Function, Initial, Instruction, Literal, Loc, Name, Operand, SourceLine, Statement, Variable};
use crate::error::Error;

/// Blocks within blocks.
const DEEPEST_BLOCK: u32 = 64;
/// Braces within braces of an operand.
const DEEPEST_OPERAND: u32 = 8;

/// What a text holds besides functions.
#[derive(Debug, Default)]
pub(super) struct Read<'t> {
    pub(super) version: (u64, u64),
    pub(super) target: Option<Name<'t>>,
    pub(super) files: HashMap<u64, &'t str>,
    /// Strings of the debugger's tables, by label: names of functions that were inlined.
    pub(super) strings: HashMap<&'t str, String>,
    pub(super) variables: Vec<Variable<'t>>,
    pub(super) functions: Vec<Function<'t>>,
}

pub(super) struct Reader<'t> {
    lexer: Lexer<'t>,
    word: Word<'t>,
    statements: u32,
}

/// Reads a whole module.
pub(super) fn read(text: &str) -> Result<Read<'_>, Error> {
    let mut lexer = Lexer::new(text)?;
    let word = lexer.next()?;
    let mut reader = Reader { lexer, word, statements: 0 };
    let mut read = Read::default();
    while reader.word.kind != Kind::End {
        reader.top(&mut read)?;
    }
    Ok(read)
}

/// Whether a directive names a window of memory, or registers.
fn is_space(directive: &str) -> bool {
    matches!(directive, ".reg" | ".shared" | ".global" | ".const" | ".local" | ".param" | ".tex")
        || directive.starts_with(".shared::")
        || directive.starts_with(".param::")
}

/// An integer in any of PTX's spellings, or a float.
fn literal(text: &str, negative: bool) -> Option<Literal> {
    let lower = text.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0f").filter(|hex| hex.len() == 8) {
        let bits = u32::from_str_radix(hex, 16).ok()?;
        return Some(Literal::Single(bits ^ if negative { 1 << 31 } else { 0 }));
    }
    if let Some(hex) = lower.strip_prefix("0d").filter(|hex| hex.len() == 16) {
        let bits = u64::from_str_radix(hex, 16).ok()?;
        return Some(Literal::Double(bits ^ if negative { 1 << 63 } else { 0 }));
    }
    let digits = lower.strip_suffix('u').unwrap_or(&lower);
    let magnitude = if let Some(hex) = digits.strip_prefix("0x") {
        u64::from_str_radix(hex, 16).ok()
    } else if let Some(binary) = digits.strip_prefix("0b") {
        u64::from_str_radix(binary, 2).ok()
    } else if digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        u64::from_str_radix(digits, 8).ok()
    } else {
        digits.parse().ok()
    };
    match magnitude {
        Some(magnitude) => {
            let bits = if negative { magnitude.wrapping_neg() } else { magnitude };
            let decimal = text.bytes().all(|byte| byte.is_ascii_digit());
            Some(Literal::Integer { bits, negative, decimal })
        }
        None if lower.contains('.') || lower.contains('e') => {
            let value: f64 = lower.parse().ok()?;
            Some(Literal::Double((if negative { -value } else { value }).to_bits()))
        }
        None => None,
    }
}

impl<'t> Reader<'t> {
    fn refuse(&self, wanted: impl Into<String>) -> Error {
        let found = if self.word.kind == Kind::End { "the end of the text" } else { self.word.text };
        refuse(self.lexer.text, self.word.at, found, wanted)
    }

    fn next(&mut self) -> Result<Word<'t>, Error> {
        let next = self.lexer.next()?;
        Ok(std::mem::replace(&mut self.word, next))
    }

    fn take(&mut self, sign: &str) -> Result<bool, Error> {
        let there = self.word.is(sign);
        if there {
            self.next()?;
        }
        Ok(there)
    }

    fn expect(&mut self, sign: &str) -> Result<(), Error> {
        match self.take(sign)? {
            true => Ok(()),
            false => Err(self.refuse(format!("`{sign}`"))),
        }
    }

    fn name(&mut self, wanted: &str) -> Result<Name<'t>, Error> {
        if self.word.kind != Kind::Name {
            return Err(self.refuse(wanted));
        }
        let word = self.next()?;
        Ok(Name { text: word.text, at: word.at })
    }

    fn take_dot(&mut self, directive: &str) -> Result<bool, Error> {
        let there = self.word.kind == Kind::Dot && self.word.text == directive;
        if there {
            self.next()?;
        }
        Ok(there)
    }

    fn number(&mut self, negative: bool) -> Result<Literal, Error> {
        if self.word.kind != Kind::Number {
            return Err(self.refuse("a number"));
        }
        let found = literal(self.word.text, negative);
        let literal = found.ok_or_else(|| self.refuse("an integer of at most 64 bits, or a float"))?;
        self.next()?;
        Ok(literal)
    }

    /// A number that counts something.
    fn count(&mut self) -> Result<u64, Error> {
        let word = self.word;
        match self.number(false)? {
            Literal::Integer { bits, .. } => Ok(bits),
            _ => Err(refuse(self.lexer.text, word.at, word.text, "a whole number")),
        }
    }

    /// Numbers with commas between them, as long as there are some.
    fn counts(&mut self) -> Result<Vec<u64>, Error> {
        let mut counts = Vec::new();
        if self.word.kind == Kind::Number {
            counts.push(self.count()?);
            while self.take(",")? {
                counts.push(self.count()?);
            }
        }
        Ok(counts)
    }

    /// Something at the outermost level.
    fn top(&mut self, read: &mut Read<'t>) -> Result<(), Error> {
        let mut external = false;
        while self.word.kind == Kind::Dot && matches!(self.word.text, ".extern" | ".visible" | ".weak" | ".common") {
            external |= self.word.text == ".extern";
            self.next()?;
        }
        if self.word.kind != Kind::Dot {
            return Err(self.refuse("a directive, such as .version, .global or .entry"));
        }
        match self.word.text {
            ".version" => {
                self.next()?;
                let numbers = self.word.text.split_once('.');
                let version = numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
                read.version = version.ok_or_else(|| self.refuse("a version, such as 9.0"))?;
                self.next()?;
            }
            ".target" => {
                self.next()?;
                read.target = Some(self.name("a target, such as sm_90a")?);
                while self.take(",")? {
                    self.name("a target or an option of one")?;
                }
            }
            ".address_size" => {
                self.next()?;
                if self.word.text != "64" {
                    return Err(self.refuse("64: addresses of other sizes are not read"));
                }
                self.next()?;
            }
            ".file" => {
                self.next()?;
                let number = self.count()?;
                if self.word.kind != Kind::Quoted {
                    return Err(self.refuse("the name of a file, in quotes"));
                }
                read.files.insert(number, self.next()?.text.trim_matches('"'));
                if self.take(",")? {
                    self.counts()?;
                }
            }
            ".loc" => drop(self.loc()?),
            ".section" => self.section(&mut read.strings)?,
            ".pragma" | ".alias" => self.skip_line()?,
            ".entry" | ".func" => {
                let function = self.function()?;
                read.functions.push(function);
            }
            directive if is_space(directive) => {
                self.variables(external, &mut |variable| read.variables.push(variable))?
            }
            _ => return Err(self.refuse("a directive that is known at the outermost level of a module")),
        }
        Ok(())
    }

    /// Goes over what ends with a semicolon.
    fn skip_line(&mut self) -> Result<(), Error> {
        while !self.word.is(";") {
            if self.word.kind == Kind::End {
                return Err(self.refuse("`;`"));
            }
            self.next()?;
        }
        self.next().map(drop)
    }

    /// A section for debuggers. Of those with strings, the strings are kept.
    fn section(&mut self, strings: &mut HashMap<&'t str, String>) -> Result<(), Error> {
        self.next()?;
        let kept = self.word.text == ".debug_str";
        while !self.word.is("{") {
            if self.word.kind == Kind::End {
                return Err(self.refuse("`{`"));
            }
            self.next()?;
        }
        self.next()?;
        let (mut label, mut bytes) = (None, Vec::new());
        while !self.word.is("}") {
            let word = self.next()?;
            match word.kind {
                Kind::End => {
                    return Err(refuse(self.lexer.text, word.at, "the end of the text", "`}`, the section's end"));
                }
                Kind::Name if kept && self.word.is(":") => (label, bytes) = (Some(word.text), Vec::new()),
                Kind::Number => {
                    bytes.extend(word.text.parse::<u8>());
                    if let (Some(0), Some(name)) = (bytes.last(), label) {
                        bytes.pop();
                        strings.insert(name, String::from_utf8_lossy(&bytes).into_owned());
                        label = None;
                    }
                }
                _ => {}
            }
        }
        self.next().map(drop)
    }

    fn source_line(&mut self) -> Result<SourceLine, Error> {
        let (file, line) = (self.count()?, self.count()?);
        self.count()?;
        Ok(SourceLine { file, line })
    }

    fn loc(&mut self) -> Result<Loc<'t>, Error> {
        self.next()?;
        let (line, mut inlined) = (self.source_line()?, None);
        if self.take(",")? {
            self.name("function_name")?;
            let function = self.name("the label of a function's name")?;
            if self.take("+")? {
                self.count()?;
            }
            self.expect(",")?;
            self.name("inlined_at")?;
            inlined = Some((function.text, self.source_line()?));
        }
        Ok(Loc { line, inlined })
    }

    /// A declaration of one or more variables, which begins with their space.
    fn variables(&mut self, external: bool, found: &mut dyn FnMut(Variable<'t>)) -> Result<(), Error> {
        let mut variable = self.variable_type(external)?;
        loop {
            self.variable_name(&mut variable)?;
            found(variable.clone());
            if !self.take(",")? {
                break;
            }
        }
        self.expect(";")
    }

    /// The space, the alignment and the type of what is declared.
    fn variable_type(&mut self, external: bool) -> Result<Variable<'t>, Error> {
        let space = self.next()?;
        let name = Name { text: "", at: space.at };
        let space = space.text.trim_start_matches('.').split("::").next().unwrap_or_default();
        let (numbered, array, initial) = (None, Vec::new(), Vec::new());
        let mut variable = Variable { space, external, align: None, vector: 1, ty: "", name, numbered, array, initial };
        while self.word.kind == Kind::Dot {
            let word = self.next()?;
            match word.text {
                ".align" => {
                    let align = self.count()?;
                    // Behind .ptr it is about what the parameter points to.
                    if variable.ty.is_empty() {
                        variable.align = Some(align);
                    }
                }
                ".attribute" => {
                    self.expect("(")?;
                    while !self.take(")")? {
                        if self.word.kind == Kind::End {
                            return Err(self.refuse("`)`"));
                        }
                        self.next()?;
                    }
                }
                ".v2" => variable.vector = 2,
                ".v4" => variable.vector = 4,
                ".v8" => variable.vector = 8,
                ".ptr" => {}
                pointee if is_space(pointee) && !variable.ty.is_empty() => {}
                _ if variable.ty.is_empty() => variable.ty = &word.text[1..],
                _ => return Err(refuse(self.lexer.text, word.at, word.text, "the name of a variable")),
            }
        }
        if variable.ty.is_empty() {
            return Err(self.refuse("a type, such as .b32"));
        }
        Ok(variable)
    }

    fn variable_name(&mut self, variable: &mut Variable<'t>) -> Result<(), Error> {
        variable.name = self.name("the name of a variable")?;
        (variable.numbered, variable.array, variable.initial) = (None, Vec::new(), Vec::new());
        if self.take("<")? {
            variable.numbered = Some(self.count()?);
            self.expect(">")?;
        }
        while self.take("[")? {
            variable.array.push(if self.word.is("]") { None } else { Some(self.count()?) });
            self.expect("]")?;
        }
        if self.take("=")? {
            self.initial(&mut variable.initial, 0)?;
        }
        Ok(())
    }

    /// What a variable is to hold at first.
    fn initial(&mut self, initial: &mut Vec<Initial<'t>>, depth: u32) -> Result<(), Error> {
        if self.take("{")? {
            if depth > 0 {
                return Err(self.refuse("a flat list: initial values in rows are not read"));
            }
            while !self.take("}")? {
                self.initial(initial, depth + 1)?;
                if !self.word.is("}") {
                    self.expect(",")?;
                }
            }
            return Ok(());
        }
        if self.word.kind != Kind::Name {
            let negative = self.take("-")?;
            initial.push(Initial::Number(self.number(negative)?));
            return Ok(());
        }
        let mut name = self.name("a number or a variable")?;
        let generic = name.text == "generic" && self.take("(")?;
        if generic {
            name = self.name("a variable")?;
            self.expect(")")?;
        }
        let plus = self.distance()?;
        initial.push(Initial::Address { name, plus, generic });
        Ok(())
    }

    /// Bytes added to a name.
    fn distance(&mut self) -> Result<i64, Error> {
        let (plus, minus) = (self.take("+")?, self.take("-")?);
        if !plus && !minus {
            return Ok(0);
        }
        let word = self.word;
        match self.number(minus)? {
            Literal::Integer { bits, .. } => Ok(bits.cast_signed()),
            _ => Err(refuse(self.lexer.text, word.at, word.text, "a whole number of bytes")),
        }
    }

    /// Parameters in parentheses.
    fn parameters(&mut self) -> Result<Vec<Variable<'t>>, Error> {
        let mut params = Vec::new();
        while !self.take(")")? {
            if self.word.kind != Kind::Dot || !is_space(self.word.text) {
                return Err(self.refuse("a parameter, such as .param .b64 name"));
            }
            let mut param = self.variable_type(false)?;
            // A parameter of a prototype may be without a name.
            if self.word.kind == Kind::Name {
                self.variable_name(&mut param)?;
            }
            params.push(param);
            if !self.word.is(")") {
                self.expect(",")?;
            }
        }
        Ok(params)
    }

    fn function(&mut self) -> Result<Function<'t>, Error> {
        let entry = self.next()?.text == ".entry";
        let returns = if self.take("(")? { self.parameters()? } else { Vec::new() };
        let name = self.name("the name of a function")?;
        let params = if self.take("(")? { self.parameters()? } else { Vec::new() };
        let mut directives = Vec::new();
        while self.word.kind == Kind::Dot {
            let word = self.next()?;
            if word.text == ".pragma" {
                self.skip_line()?;
                continue;
            }
            directives.push((Name { text: &word.text[1..], at: word.at }, self.counts()?));
        }
        self.statements = 0;
        let body = match self.take("{")? {
            true => Some(self.block(0)?),
            false => {
                self.expect(";")?;
                None
            }
        };
        Ok(Function { entry, name, returns, params, directives, body, statements: self.statements })
    }

    /// Statements up to a closing brace.
    fn block(&mut self, depth: u32) -> Result<Vec<Statement<'t>>, Error> {
        let mut statements = Vec::new();
        while !self.take("}")? {
            self.statements = self.statements.saturating_add(1);
            self.statement(depth, &mut statements)?;
        }
        Ok(statements)
    }

    fn statement(&mut self, depth: u32, into: &mut Vec<Statement<'t>>) -> Result<(), Error> {
        match (self.word.kind, self.word.text) {
            (Kind::Sign, "{") => {
                if depth == DEEPEST_BLOCK {
                    return Err(self.refuse(format!("at most {DEEPEST_BLOCK} blocks within each other")));
                }
                self.next()?;
                into.push(Statement::Block(self.block(depth + 1)?));
            }
            (Kind::Sign, "@") => {
                self.next()?;
                let negated = self.take("!")?;
                let pred = self.name("a predicate")?;
                let instruction = self.instruction(Some((pred, negated)))?;
                into.push(Statement::Instruction(instruction));
            }
            (Kind::Sign, ";") => drop(self.next()?),
            (Kind::Dot, ".loc") => into.push(Statement::Loc(self.loc()?)),
            (Kind::Dot, ".pragma") => self.skip_line()?,
            (Kind::Dot, directive) if is_space(directive) => {
                self.variables(false, &mut |variable| into.push(Statement::Variable(variable)))?;
            }
            (Kind::Name, _) => {
                let mut ahead = self.lexer.clone();
                match ahead.next()?.is(":") {
                    true => self.label(into)?,
                    false => into.push(Statement::Instruction(self.instruction(None)?)),
                }
            }
            _ => return Err(self.refuse("an instruction, a label, a declaration or `}`")),
        }
        Ok(())
    }

    /// A label, or a list of them under a name.
    fn label(&mut self, into: &mut Vec<Statement<'t>>) -> Result<(), Error> {
        let name = self.name("a label")?;
        self.expect(":")?;
        if self.take_dot(".branchtargets")? {
            let mut targets = vec![self.name("a label")?];
            while self.take(",")? {
                targets.push(self.name("a label")?);
            }
            self.expect(";")?;
            into.push(Statement::Targets(name, targets));
        } else if self.take_dot(".callprototype")? || self.take_dot(".calltargets")? {
            self.skip_line()?;
            into.push(Statement::Prototype(name));
        } else {
            into.push(Statement::Label(name));
        }
        Ok(())
    }

    fn instruction(&mut self, guard: Option<(Name<'t>, bool)>) -> Result<Instruction<'t>, Error> {
        let opcode = self.name("an instruction")?;
        let mut modifiers = Vec::new();
        while self.word.kind == Kind::Dot {
            modifiers.push(&self.next()?.text[1..]);
        }
        let mut operands = Vec::new();
        if !self.word.is(";") {
            operands.push(self.operand(0)?);
            while self.take(",")? {
                operands.push(self.operand(0)?);
            }
        }
        let end = self.word.at;
        self.expect(";")?;
        Ok(Instruction { guard, opcode, modifiers, operands, end })
    }

    fn operand(&mut self, depth: u32) -> Result<Operand<'t>, Error> {
        let first = self.single(depth)?;
        match self.take("|")? {
            true => Ok(Operand::Pair(Box::new(first), Box::new(self.single(depth)?))),
            false => Ok(first),
        }
    }

    fn single(&mut self, depth: u32) -> Result<Operand<'t>, Error> {
        if depth == DEEPEST_OPERAND {
            return Err(self.refuse(format!("at most {DEEPEST_OPERAND} brackets within each other")));
        }
        let at = self.word.at;
        match (self.word.kind, self.word.text) {
            (Kind::Number, _) => Ok(Operand::Number(self.number(false)?, at)),
            (Kind::Sign, "-") => {
                self.next()?;
                Ok(Operand::Number(self.number(true)?, at))
            }
            (Kind::Sign, "!") => {
                self.next()?;
                Ok(Operand::Not(Box::new(self.single(depth + 1)?)))
            }
            (Kind::Sign, "{") => Ok(Operand::Vector(self.operands_until("}", depth)?, at)),
            (Kind::Sign, "[") => Ok(Operand::Address(self.operands_until("]", depth)?, at)),
            (Kind::Sign, "(") => Ok(Operand::List(self.operands_until(")", depth)?, at)),
            (Kind::Name, _) => {
                let name = self.name("a name")?;
                let part = if self.word.kind == Kind::Dot { Some(&self.next()?.text[1..]) } else { None };
                Ok(Operand::Name { name, part, plus: self.distance()? })
            }
            _ => Err(self.refuse("an operand: a name, a number, or some in brackets")),
        }
    }

    fn operands_until(&mut self, end: &str, depth: u32) -> Result<Vec<Operand<'t>>, Error> {
        self.next()?;
        let mut operands = Vec::new();
        while !self.take(end)? {
            operands.push(self.operand(depth + 1)?);
            if !self.word.is(end) {
                self.expect(",")?;
            }
        }
        Ok(operands)
    }
}
