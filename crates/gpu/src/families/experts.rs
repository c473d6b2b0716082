//! The products of a layer's experts, as every family plans and launches them.

use op::{Epilogue, Output};
use ptx::Feature;

use crate::launch::{Argument, Launch};
use crate::phases::gates;
use crate::products::{ExpertKernel, ProductOperands, ProductShape};

/// The tokens of a tile, for so many entries: enough for nearly all of the experts, so that each is one tile as a rule; but no more than so many.
pub(super) fn tile(entries: u32, experts: u32, most: u32) -> u32 {
    let mean = f64::from(entries) / f64::from(experts.min(entries).max(1));
    let enough = (mean + 2.0 * mean.sqrt()).floor() as u32;
    let enough = enough.clamp(8, most).min(entries.next_multiple_of(8));
    if enough <= 64 { enough.next_multiple_of(8) } else { enough.next_multiple_of(32) }
}

/// How values of a tile of so many tokens get to the result. Many rows of floats would take the stages' room, and are whole sectors of memory anyhow.
pub(super) fn epilogue(shape: &ProductShape, tile: u32) -> Epilogue {
    let aligned = (shape.n as usize * shape.output.bytes()).is_multiple_of(16);
    if aligned && (tile <= 64 || shape.output != Output::F32) { Epilogue::Staged } else { Epilogue::Direct }
}

/// The most tiles of so many tokens and columns that so many rows may make.
fn most_tiles(shape: &ProductShape, rows: u32, [tokens, columns]: [u32; 2]) -> u32 {
    shape.n.div_ceil(columns) * (shape.experts.min(rows) + rows / tokens)
}

/// A product's launch over so many rows, of which the layout says which are whose.
pub(crate) fn launch(
    kernel: &dyn ExpertKernel,
    shape: &ProductShape,
    operands: &ProductOperands,
    rows: u32,
    multiprocessors: u32,
) -> Launch {
    let mut arguments = kernel.rows(operands, [rows, shape.k]);
    arguments.extend(self::arguments(shape, operands));
    arguments.push(Argument::F32(gates::clamp(shape.gate)));
    let grid = [most_tiles(shape, rows, kernel.tile()).min(multiprocessors * kernel.resident()), 1, 1];
    let overlapping = kernel.target().has(Feature::GridDependency);
    Launch { kernel: kernel.spec(), grid, arguments, overlapping }
}

/// The arguments that [`ExpertWork`](crate::phases::experts) declares.
fn arguments(shape: &ProductShape, operands: &ProductOperands) -> Vec<Argument> {
    let two = shape.gate.matrices() == 2;
    let mut arguments = vec![Argument::Pointer(operands.layout), Argument::Pointer(operands.weights[0])];
    arguments.extend(two.then_some(Argument::Pointer(operands.weights[1])));
    arguments.extend([Argument::U32(operands.stride), Argument::Pointer(operands.factors)]);
    if shape.biased {
        arguments.push(Argument::Pointer(operands.biases[0]));
        arguments.extend(two.then_some(Argument::Pointer(operands.biases[1])));
    }
    arguments.extend(shape.factored.then_some(Argument::Pointer(operands.row_factors)));
    arguments.extend([Argument::Pointer(operands.out), Argument::U32(shape.n), Argument::U32(shape.k)]);
    arguments
}
