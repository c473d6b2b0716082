//! `wmma`, and what `mma.sync` has beside [`Mma`](crate::instr::Mma).

use super::{address, element_name, list, space, when, word};
use crate::instr::{Fragment, Fragments, MatrixElement, MatrixOrder, MatrixType, Role};
use crate::target::Target;
use crate::types::{Address, Operand};

/// The elements of a matrix as PTX names them.
pub(crate) fn matrix_type(ty: MatrixType) -> &'static str {
    match ty {
        MatrixType::Of(element) => element_name(element),
        MatrixType::F32 => "f32",
        MatrixType::F64 => "f64",
        MatrixType::S32 => "s32",
    }
}

/// The order of a matrix in memory.
pub(crate) fn order(order: MatrixOrder) -> &'static str {
    match order {
        MatrixOrder::Rows => "row",
        MatrixOrder::Columns => "col",
    }
}

fn shape([m, n, k]: [u32; 3]) -> String {
    format!("m{m}n{n}k{k}")
}

fn in_order(fragment: &Fragment, fixed: &'static str) -> &'static str {
    fragment.order.map_or(fixed, order)
}

fn place(addr: Address, stride: Option<Operand>) -> (String, String) {
    (address(addr), stride.map(|stride| format!(", {}", word(stride))).unwrap_or_default())
}

pub(super) fn fragments(op: &Fragments, target: Target) -> String {
    match op {
        Fragments::Load { fragment, space: window, dsts, addr, stride } => {
            let role = match fragment.role {
                Role::A => "a",
                Role::B => "b",
                Role::Sums => "c",
            };
            let (order, ty, (from, stride)) =
                (in_order(fragment, "row"), matrix_type(fragment.ty), place(*addr, *stride));
            let (shape, window) = (shape(fragment.shape), space(*window, target));
            format!("wmma.load.{role}.sync.aligned.{order}.{shape}{window}.{ty} {}, {from}{stride}", list(dsts))
        }
        Fragments::Store { fragment, space: window, srcs, addr, stride } => {
            let (order, ty, (to, stride)) =
                (in_order(fragment, "row"), matrix_type(fragment.ty), place(*addr, *stride));
            let (shape, window) = (shape(fragment.shape), space(*window, target));
            format!("wmma.store.d.sync.aligned.{order}.{shape}{window}.{ty} {to}, {}{stride}", list(srcs))
        }
        Fragments::Multiply { saturate, d, a, b, c } => {
            let [of_d, of_a, of_b, of_c] = [d, a, b, c].map(|(fragment, _)| matrix_type(fragment.ty));
            let saturate = when(*saturate, ".satfinite");
            let shape = shape(d.0.shape);
            let operands = [d, a, b, c].map(|(_, regs)| list(regs)).join(", ");
            let [rows, columns] = [in_order(&a.0, "row"), in_order(&b.0, "col")];
            if a.0.order.is_none() {
                let types = format!("{of_d}.{of_a}.{of_b}.{of_c}");
                return format!("mma.sync.aligned.{shape}.{rows}.{columns}{saturate}.{types} {operands}");
            }
            let types = match a.0.ty {
                MatrixType::Of(MatrixElement::F16) => format!("{of_d}.{of_c}"),
                _ => format!("{of_d}.{of_a}.{of_b}.{of_c}"),
            };
            let rounding = when(a.0.ty == MatrixType::F64, ".rn");
            format!("wmma.mma.sync.aligned.{rows}.{columns}.{shape}{rounding}.{types}{saturate} {operands}")
        }
    }
}
