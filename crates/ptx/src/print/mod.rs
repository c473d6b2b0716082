//! Kernels as PTX text: one function from operation to text per family, and the frame around them.
//!
//! Nothing is decided here. The text follows from the value alone; literals are printed by the instruction's type,
//! floats as the hexadecimal of their bits, so that no rounding can happen on the way to the assembler.

mod async_work;
mod compute;
mod fragment;

pub(crate) use async_work::dense_kind;
pub(crate) use compute::{
    atomic, comparison, direction, element_name, narrow, narrow_pair, reduce, rounding_mode, special, window,
};
pub(crate) use fragment::{matrix_type, order};

use std::fmt::Write as _;

use crate::instr::{
    Arith, Control, Fragments, Instr, LoadOrder, MatrixElement, MatrixType, Memory, Mma, NarrowFloat, Op,
    RegisterChange,
};
use crate::kernel::{Kernel, ParamType, Variable, VariableSpace};
use crate::target::Target;
use crate::types::{Address, Bank, Base, DataType, Operand, PhaseId, RegId, Scope, Space};

/// The name of the kernel's dynamic shared memory.
const SHARED: &str = "shared_memory";

/// Kernels for one target as one PTX module. Their names must differ.
pub fn module(target: Target, kernels: &[Kernel]) -> String {
    let mut text = String::new();
    let version = kernels.iter().map(Kernel::version).fold(target.version(), Ord::max);
    line(&mut text, &format!(".version {}.{}\n.target {target}\n.address_size 64\n", version.0, version.1));
    let shared = kernels.iter().filter(|kernel| kernel.shared_bytes() > 0);
    if let Some(align) = shared.map(Kernel::shared_align).max() {
        line(&mut text, &format!(".extern .shared .align {align} .b8 {SHARED}[];\n"));
    }
    for variable in kernels.iter().flat_map(|kernel| &kernel.variables) {
        if variable.space != VariableSpace::Local {
            line(&mut text, &variable_declaration(variable));
        }
    }
    text + &kernels.iter().map(Kernel::entry).collect::<Vec<_>>().join("\n")
}

/// A variable with its first bytes.
fn variable_declaration(variable: &Variable) -> String {
    let Variable { name, space, bytes, align, initial } = variable;
    let space = match space {
        VariableSpace::Global => "global",
        VariableSpace::Constant => "const",
        VariableSpace::Local => "local",
    };
    let values = initial.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
    let initial = if values.is_empty() { values } else { format!(" = {{{values}}}") };
    format!(".{space} .align {align} .b8 {name}[{bytes}]{initial};")
}

impl Kernel {
    /// The kernel as a PTX module of its own.
    pub fn to_ptx(&self) -> String {
        module(self.target, std::slice::from_ref(self))
    }

    /// The lowest version of PTX that has everything in the kernel.
    fn version(&self) -> (u32, u32) {
        /// Bytes of parameters that every version takes.
        const FEW_PARAMS: u64 = 4352;
        let hints = |instr: &Instr| {
            matches!(
                instr.op,
                Op::Arith(Arith::Policy { .. }) | Op::Memory(Memory::Load { order: LoadOrder::Streaming, .. })
            )
        };
        let eight_bits = |instr: &Instr| match &instr.op {
            Op::Mma(Mma::Dense { element, .. }) => matches!(element, MatrixElement::E4m3 | MatrixElement::E5m2),
            Op::Fragments(Fragments::Multiply { a, .. }) => {
                matches!(a.0.ty, MatrixType::Of(MatrixElement::E4m3 | MatrixElement::E5m2))
            }
            _ => false,
        };
        let converted =
            |instr: &Instr| matches!(instr.op, Op::Arith(Arith::ConvertNarrow { .. } | Arith::ConvertWide { .. }));
        let few_bits = |instr: &Instr| match instr.op {
            Op::Arith(Arith::ConvertNarrow { to: ty, .. } | Arith::ConvertWide { from: ty, .. }) => {
                !matches!(ty, NarrowFloat::E4m3 | NarrowFloat::E5m2)
            }
            _ => false,
        };
        let with_floats = match () {
            _ if self.body.iter().any(few_bits) => (8, 6),
            _ if self.body.iter().any(eight_bits) => (8, 4),
            _ if self.body.iter().any(converted) => (8, 1),
            _ => (7, 0),
        };
        let with_hints = if self.body.iter().any(hints) { (7, 4) } else { (7, 0) };
        let with_params = if self.param_bytes() > FEW_PARAMS { (8, 1) } else { (7, 0) };
        self.target.version().max(with_hints).max(with_params).max(with_floats)
    }

    /// The kernel as an entry of a module.
    fn entry(&self) -> String {
        let mut text = String::new();
        self.header(&mut text);
        self.declarations(&mut text);
        let mut phase = PhaseId(0);
        for instr in &self.body {
            if instr.phase != phase {
                phase = instr.phase;
                line(&mut text, &format!("\n\t// {}", self.phase_path(phase)));
            }
            line(&mut text, &self.instruction(instr));
        }
        line(&mut text, "}");
        text
    }

    /// One instruction as text, with its guard.
    pub fn instruction(&self, instr: &Instr) -> String {
        if let Op::Control(Control::Label(label)) = instr.op {
            return format!("L{}:", label.0);
        }
        let guard = match instr.guard {
            Some(guard) if guard.negated => format!("@!{} ", guard.pred),
            Some(guard) => format!("@{} ", guard.pred),
            None => String::new(),
        };
        let op = match &instr.op {
            Op::Arith(op) => self.arith(op),
            Op::Memory(op) => compute::memory(op, self.target),
            Op::Warp(op) => compute::warp(op, self.target),
            Op::Barrier(op) => async_work::barrier(op),
            Op::Fence(op) => async_work::fence(*op),
            Op::Copy(op) => async_work::copy(op),
            Op::Mma(op) => compute::mma(op),
            Op::Fragments(op) => fragment::fragments(op, self.target),
            Op::Wgmma(op) => async_work::wgmma(op),
            Op::Tcgen05(op) => async_work::tcgen05(op, self.target),
            Op::Control(op) => control(*op),
            Op::Unknown(op) => op.text.clone(),
        };
        let end = if op.ends_with('}') && op.starts_with('{') { "" } else { ";" };
        format!("\t{guard}{op}{end}")
    }

    fn header(&self, text: &mut String) {
        let params: Vec<String> = self.params.iter().map(|param| param_declaration(&param.name, param.ty)).collect();
        line(text, &format!(".visible .entry {}({})", self.name, params.join(",")));
        line(
            text,
            &match self.block() {
                [x, 1, 1] => format!(".reqntid {x}"),
                [x, y, z] => format!(".reqntid {x}, {y}, {z}"),
            },
        );
        if let Some([x, y, z]) = self.launch.cluster {
            line(text, &format!(".reqnctapercluster {x}, {y}, {z}"));
        }
        if let Some(blocks) = self.launch.min_blocks {
            line(text, &format!(".minnctapersm {blocks}"));
        }
        line(text, "{");
    }

    fn declarations(&self, text: &mut String) {
        for variable in self.variables.iter().filter(|variable| variable.space == VariableSpace::Local) {
            line(text, &format!("\t{}", variable_declaration(variable)));
        }
        for region in &self.shared {
            let end = region.offset + region.bytes;
            line(text, &format!("\t// shared {:>6}..{end:<6} {}", region.offset, region.name));
        }
        let banks = [("pred", "p"), ("b16", "h"), ("b32", "r"), ("b64", "d")];
        for (bank, (kind, letter)) in Bank::ALL.into_iter().zip(banks) {
            if self.register_count(bank) > 0 {
                line(text, &format!("\t.reg .{kind} %{letter}<{}>;", self.register_count(bank)));
            }
        }
    }
}

fn line(text: &mut String, content: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{content}");
}

fn param_declaration(name: &str, ty: ParamType) -> String {
    match ty {
        ParamType::Scalar(ty) => format!("\n\t.param .{} {name}", suffix(ty)),
        ParamType::Pointer => format!("\n\t.param .u64 {name}"),
        ParamType::TensorMap | ParamType::TensorMaps(_) | ParamType::Words(_) | ParamType::Bytes { .. } => {
            let (bytes, align) = ty.layout();
            format!("\n\t.param .align {align} .b8 {name}[{bytes}]")
        }
    }
}

fn control(op: Control) -> String {
    match op {
        Control::Label(label) => format!("L{}:", label.0),
        Control::Branch { target, uniform: true } => format!("bra.uni L{}", target.0),
        Control::Branch { target, uniform: false } => format!("bra L{}", target.0),
        Control::Exit => "exit".into(),
        Control::Trap => "trap".into(),
        Control::SetMaxRegisters { change: RegisterChange::Increase, count } => {
            format!("setmaxnreg.inc.sync.aligned.u32 {count}")
        }
        Control::SetMaxRegisters { change: RegisterChange::Decrease, count } => {
            format!("setmaxnreg.dec.sync.aligned.u32 {count}")
        }
        Control::GridDependencyWait => "griddepcontrol.wait".into(),
        Control::LaunchDependents => "griddepcontrol.launch_dependents".into(),
    }
}

/// A type as PTX names it.
pub(crate) fn suffix(ty: DataType) -> &'static str {
    match ty {
        DataType::Pred => "pred",
        DataType::U8 => "u8",
        DataType::S8 => "s8",
        DataType::U16 => "u16",
        DataType::S16 => "s16",
        DataType::U32 => "u32",
        DataType::S32 => "s32",
        DataType::U64 => "u64",
        DataType::S64 => "s64",
        DataType::F16 => "f16",
        DataType::Bf16 => "bf16",
        DataType::F16x2 => "f16x2",
        DataType::Bf16x2 => "bf16x2",
        DataType::F32 => "f32",
        DataType::F32x2 => "f32x2",
        DataType::F64 => "f64",
    }
}

fn operand(operand: Operand, ty: DataType) -> String {
    match (operand, ty) {
        (Operand::Reg(reg), _) => reg.to_string(),
        (Operand::Imm(bits), DataType::F32) => format!("0f{:08X}", bits as u32),
        (Operand::Imm(bits), DataType::F64) => format!("0d{bits:016X}"),
        (Operand::Imm(bits), DataType::S16) => (bits as u16).cast_signed().to_string(),
        (Operand::Imm(bits), DataType::S32) => (bits as u32).cast_signed().to_string(),
        (Operand::Imm(bits), DataType::S64) => bits.cast_signed().to_string(),
        (Operand::Imm(bits), _) if bits > 0xffff => format!("{bits:#x}"),
        (Operand::Imm(bits), _) => bits.to_string(),
    }
}

/// An operand that is read as an unsigned word.
fn word(value: Operand) -> String {
    operand(value, DataType::U32)
}

fn address(address: Address) -> String {
    let base = match address.base {
        Base::Reg(reg) => reg.to_string(),
        Base::SharedStart => SHARED.into(),
    };
    match address.offset {
        0 => format!("[{base}]"),
        // PTX adds signed offsets: "+-4", never "-4".
        offset => format!("[{base}+{offset}]"),
    }
}

fn list(regs: &[RegId]) -> String {
    let names: Vec<String> = regs.iter().map(RegId::to_string).collect();
    format!("{{{}}}", names.join(", "))
}

/// Registers of a vector access: braces only where there are several.
fn vector(regs: &[RegId]) -> String {
    match regs {
        [one] => one.to_string(),
        several => list(several),
    }
}

fn optional(reg: Option<RegId>) -> String {
    reg.map(|reg| format!(", {reg}")).unwrap_or_default()
}

fn when(condition: bool, text: &'static str) -> &'static str {
    if condition { text } else { "" }
}

/// Who takes part, as PTX says it.
pub(crate) fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Block => "cta",
        Scope::Cluster => "cluster",
        Scope::Gpu => "gpu",
        Scope::System => "sys",
    }
}

/// A window of memory, behind a dot. Where there are no clusters, PTX has no word for a block's own part of them, and
/// for generic addresses it has none at all.
fn space(space: Space, target: Target) -> &'static str {
    match space {
        Space::Global => ".global",
        Space::Shared if target == Target::Sm80 => ".shared",
        Space::Shared => ".shared::cta",
        Space::Cluster => ".shared::cluster",
        Space::Generic => "",
    }
}
