//! What it takes for a kernel to be read as it was written.
//!
//! A text does not say everything: phases and the names of shared regions are comments in it, a pointer and a number
//! of 64 bits look alike, and so do moves of any two types of one width. All else must come back.

use ptx::instr::{Arith, AtomicOp, BinaryOp, Memory, UnaryOp};
use ptx::parse::{Module, Shape};
use ptx::{Bank, DataType, Kernel, Op, Param, ParamType, Phase, PhaseId, Region};

/// The unsigned type of the same width.
fn bits(ty: DataType) -> DataType {
    match ty.bank() {
        Bank::Pred => DataType::Pred,
        Bank::B16 => DataType::U16,
        Bank::B32 => DataType::U32,
        Bank::B64 => DataType::U64,
    }
}

/// What a text says of a kernel.
fn said(kernel: &Kernel) -> Kernel {
    let mut kernel = kernel.clone();
    kernel.foreign = false;
    kernel.phases = vec![Phase { name: kernel.name.clone(), parent: None }];
    let (bytes, align) = (kernel.shared_bytes(), kernel.shared_align());
    kernel.shared = vec![Region { name: "shared".into(), offset: 0, bytes, align, zeroed: false }];
    for Param { ty, .. } in &mut kernel.params {
        *ty = match *ty {
            ParamType::Pointer => ParamType::Scalar(DataType::U64),
            ParamType::Scalar(ty) => ParamType::Scalar(ty),
            other => ParamType::Bytes { size: other.layout().0 as u32, align: other.layout().1 as u32 },
        };
    }
    for instr in &mut kernel.body {
        (instr.phase, instr.line) = (PhaseId(0), None);
        match &mut instr.op {
            Op::Arith(Arith::Unary { op: UnaryOp::Move | UnaryOp::Not, ty, .. })
            | Op::Arith(Arith::Binary {
                op: BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl, ty, ..
            })
            | Op::Arith(Arith::Select { ty, .. })
            | Op::Memory(Memory::Atomic { op: AtomicOp::Exchange, ty, .. }) => *ty = bits(*ty),
            _ => {}
        }
    }
    kernel
}

/// A text without its comments.
fn bare(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim_end());
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

/// Prints a kernel, reads it, and says what is not as it was.
pub fn differs(kernel: &Kernel) -> Option<String> {
    let text = kernel.to_ptx();
    let shape = Shape { dynamic_shared: kernel.shared_bytes(), ..Shape::default() };
    let again = match Module::read(&text).and_then(|module| module.kernel(&kernel.name, shape)) {
        Ok(again) => again,
        Err(error) => return Some(format!("{}: {error}", kernel.name)),
    };
    let (before, after) = (bare(&text), bare(&again.to_ptx()));
    if before != after {
        let differing = before.lines().zip(after.lines()).find(|(before, after)| before != after);
        return Some(format!("{}: {differing:?}", kernel.name));
    }
    let (before, after) = (said(kernel), said(&again));
    let differing = before.body.iter().zip(&after.body).find(|(before, after)| before != after);
    (before != after).then(|| format!("{}: the same text for {differing:?}", kernel.name))
}
