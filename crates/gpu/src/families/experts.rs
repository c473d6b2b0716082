//! The products of a layer's experts, as every family plans and launches them.

use op::{Config, Epilogue, Output, Own, Precision, Schedule, Strategy, Tile};
use ptx::Feature;

use crate::family::ExpertKernel;
use crate::launch::{Argument, Launch};
use crate::phases::gates;
use crate::products::{ProductOperands, ProductShape};

/// The configuration of a product of experts with tiles of so many tokens and columns, and stages of so many of k.
pub(super) fn config(shape: &ProductShape, [tokens, columns]: [u32; 2], depth: u32, stages: u32) -> Config {
    Config {
        strategy: Strategy::Interleaved,
        tile: Tile { tokens: tokens as usize, columns: columns as usize },
        depth: depth as usize,
        stages: stages as usize,
        epilogue: epilogue(shape, tokens),
        schedule: Schedule::Persistent,
        own: Own::NONE,
    }
}

/// Refuses what no family's kernels for experts do: only the device knows their tiles, and so blocks look for them.
pub(super) fn check(shape: &ProductShape, config: &Config, strategies: &[Strategy]) -> Result<(), String> {
    if config.schedule != Schedule::Persistent {
        return Err("blocks find the tiles of experts themselves; ask for schedule=persistent".to_owned());
    }
    if !strategies.contains(&config.strategy) {
        let known: Vec<String> = strategies.iter().map(|strategy| format!("strategy={strategy}")).collect();
        return Err(format!("products of experts are computed side by side; ask for {}", known.join(" or ")));
    }
    let row = shape.n as usize * shape.output.bytes();
    if config.epilogue == Epilogue::Staged && !row.is_multiple_of(16) {
        return Err(format!(
            "epilogue=staged writes 16 bytes at a time, and rows of {} {} elements are not a multiple of that; ask for \
             epilogue=direct",
            shape.n, shape.output
        ));
    }
    Ok(())
}

/// How values of a tile of so many tokens get to the result. Many rows of floats would take the stages' room, and are
/// whole sectors of memory anyhow.
fn epilogue(shape: &ProductShape, tile: u32) -> Epilogue {
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
    let layout = vec![Argument::Pointer(operands.layout)];
    let tiles = most_tiles(shape, rows, kernel.tile());
    launch_of((kernel, shape, operands), rows, layout, tiles.min(multiprocessors * kernel.resident()))
}

/// The launch of one that finds its tiles by these arguments, where each of so many entries is a tile's only row. It
/// reads so many rows.
pub(crate) fn launch_direct(
    kernel: &dyn ExpertKernel,
    (shape, operands): (&ProductShape, &ProductOperands),
    [rows, entries]: [u32; 2],
    found_by: Vec<Argument>,
    multiprocessors: u32,
) -> Launch {
    let tiles = entries * shape.n.div_ceil(kernel.tile()[1]);
    launch_of((kernel, shape, operands), rows, found_by, tiles.min(multiprocessors * kernel.resident()))
}

fn launch_of(
    (kernel, shape, operands): (&dyn ExpertKernel, &ProductShape, &ProductOperands),
    rows: u32,
    found_by: Vec<Argument>,
    blocks: u32,
) -> Launch {
    let mut arguments = kernel.rows(operands, [rows, shape.k]);
    arguments.extend(found_by);
    arguments.extend(self::arguments(shape, operands));
    arguments.push(Argument::F32(gates::clamp(shape.gate)));
    let overlapping = kernel.target().has(Feature::GridDependency);
    Launch { kernel: kernel.spec(), grid: [blocks, 1, 1], arguments, overlapping, strided: true }
}

/// The arguments that [`ExpertWork`](crate::phases::experts) declares, behind those by which tiles are found.
fn arguments(shape: &ProductShape, operands: &ProductOperands) -> Vec<Argument> {
    let two = shape.gate.matrices() == 2;
    let mut arguments = vec![Argument::Pointer(operands.weights[0])];
    arguments.extend(two.then_some(Argument::Pointer(operands.weights[1])));
    arguments.extend([Argument::U32(operands.stride), Argument::Pointer(operands.factors)]);
    if shape.biased {
        arguments.push(Argument::Pointer(operands.biases[0]));
        arguments.extend(two.then_some(Argument::Pointer(operands.biases[1])));
    }
    arguments.extend(shape.factored.then_some(Argument::Pointer(operands.row_factors)));
    if shape.precision == Precision::Fp8 {
        arguments.extend(operands.rounded.map(Argument::Pointer));
    }
    if shape.added {
        let (chosen, adapters, deltas) = operands.added;
        arguments.extend([Argument::Pointer(chosen), Argument::U32(adapters), Argument::Pointer(deltas)]);
    }
    arguments.extend([Argument::Pointer(operands.out), Argument::U32(shape.n), Argument::U32(shape.k)]);
    arguments
}
