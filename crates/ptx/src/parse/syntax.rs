//! A module as it is written: what the reader makes of a text, before anything is looked up.
//!
//! Every name keeps its place, so that whatever is wrong with it later can be said by line and column.

/// A word of the text and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name<'t> {
    pub(super) text: &'t str,
    pub(super) at: u32,
}

/// A number as it is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Literal {
    /// An integer: its bits, as two's complement if it is negative.
    Integer { bits: u64, negative: bool, decimal: bool },
    /// The bits of an f32 (`0f`).
    Single(u32),
    /// The bits of an f64 (`0d`), or a decimal fraction.
    Double(u64),
}

/// An operand of an instruction.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand<'t> {
    /// A name, perhaps with a part (`%tid.x`) or a distance (`buffer+16`).
    Name { name: Name<'t>, part: Option<&'t str>, plus: i64 },
    /// A number.
    Number(Literal, u32),
    /// The opposite of a predicate.
    Not(Box<Operand<'t>>),
    /// Two results in one place: `%r1|%p1`.
    Pair(Box<Operand<'t>>, Box<Operand<'t>>),
    /// In braces.
    Vector(Vec<Operand<'t>>, u32),
    /// In brackets.
    Address(Vec<Operand<'t>>, u32),
    /// In parentheses.
    List(Vec<Operand<'t>>, u32),
}

impl Operand<'_> {
    /// Where it begins.
    pub(super) fn at(&self) -> u32 {
        match self {
            Operand::Name { name, .. } => name.at,
            Operand::Number(_, at) | Operand::Vector(_, at) | Operand::Address(_, at) | Operand::List(_, at) => *at,
            Operand::Not(inner) | Operand::Pair(inner, _) => inner.at(),
        }
    }
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Instruction<'t> {
    /// The predicate in front, and whether it is negated.
    pub(super) guard: Option<(Name<'t>, bool)>,
    /// The first word.
    pub(super) opcode: Name<'t>,
    /// The words behind its dots.
    pub(super) modifiers: Vec<&'t str>,
    pub(super) operands: Vec<Operand<'t>>,
    /// Where it ends: the place of its semicolon.
    pub(super) end: u32,
}

/// The initial value of a part of a variable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Initial<'t> {
    Number(Literal),
    /// The address of a variable, so many bytes further on; as a generic one or not.
    Address {
        name: Name<'t>,
        plus: i64,
        generic: bool,
    },
}

/// A declared variable, in registers or in memory, or several that are numbered.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Variable<'t> {
    /// `reg`, `shared`, `global`, `const`, `local`, `param`, `tex`.
    pub(super) space: &'t str,
    /// Whether it is declared here and defined elsewhere.
    pub(super) external: bool,
    pub(super) align: Option<u64>,
    /// Elements of a short vector (`.v4`); 1 without.
    pub(super) vector: u64,
    /// Its type, without the dot.
    pub(super) ty: &'t str,
    pub(super) name: Name<'t>,
    /// How many there are, as `%r<100>` says.
    pub(super) numbered: Option<u64>,
    /// Elements along each dimension of an array; `None` where none is said.
    pub(super) array: Vec<Option<u64>>,
    pub(super) initial: Vec<Initial<'t>>,
}

/// A place in the sources that the module was compiled from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SourceLine {
    pub(super) file: u64,
    pub(super) line: u64,
}

/// Where what follows was written: the line, and where the function that it is in was inlined, if it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Loc<'t> {
    pub(super) line: SourceLine,
    /// The label of the function's name, and the line of its call.
    pub(super) inlined: Option<(&'t str, SourceLine)>,
}

/// A statement of a function's body.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Statement<'t> {
    Variable(Variable<'t>),
    Instruction(Instruction<'t>),
    Label(Name<'t>),
    Loc(Loc<'t>),
    Block(Vec<Statement<'t>>),
    /// The labels that a computed branch may go to, under a name.
    Targets(Name<'t>, Vec<Name<'t>>),
    /// The functions that an indirect call may go to, or their shape, under a name.
    Prototype(Name<'t>),
}

/// A function or a kernel.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Function<'t> {
    /// Whether it is a kernel.
    pub(super) entry: bool,
    pub(super) name: Name<'t>,
    pub(super) returns: Vec<Variable<'t>>,
    pub(super) params: Vec<Variable<'t>>,
    /// Directives such as `reqntid`, with their numbers.
    pub(super) directives: Vec<(Name<'t>, Vec<u64>)>,
    /// Its statements; `None` where it is declared only.
    pub(super) body: Option<Vec<Statement<'t>>>,
    /// How many statements there are in all.
    pub(super) statements: u32,
}
