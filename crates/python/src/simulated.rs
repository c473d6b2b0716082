//! Anybody's PTX in the simulator, for `hammerhead.sim`.
//!
//! Python brings a text, a launch and the bytes of its arrays, and gets back what was found and what the kernel left in
//! them. Bytes are copied on the way: a simulated byte costs a thousand times as much as a copied one.

use std::sync::Mutex;

use half::f16;
use ptx::descriptor::Swizzle;
use ptx::parse::{Module, Shape};
use ptx::tensor_map::{Element, TensorMap};
use ptx::{DataType, Kernel, ParamType};
use pyo3::prelude::*;
use sim::{Arg, Buffer, FaultKind, Gpu, Grade, Graded, Invocation, Limits, Rules, Schedule};

use crate::error::{Error, Result};

/// Blocks that a grid may have.
const MOST_BLOCKS: u64 = 1 << 20;

/// How a kernel is launched: its entry, the grid, a block and a cluster, bytes of dynamic shared memory, and whether
/// the launch is a cooperative one.
type LaunchParts = (Option<String>, [u32; 3], Option<[u32; 3]>, Option<[u32; 3]>, u32, bool);
/// Memory: its name, what it holds, whether that counts as written, and how far it is beyond a rounder address.
type BufferParts = (String, Vec<u8>, bool, u64);
/// A tensor map: buffer, byte in it, element type, dimensions, strides in bytes, box and swizzle.
type MapParts = (usize, u64, String, Vec<u64>, Vec<u64>, Vec<u32>, u32);

/// An argument.
#[derive(FromPyObject)]
pub enum ArgParts {
    /// A tensor map.
    Map(MapParts),
    /// An address: a buffer and a byte in it.
    Pointer((usize, u64)),
    /// A whole number, as wide as the parameter is.
    Signed(i64),
    /// One beyond the signed ones.
    Unsigned(u64),
    /// A number, as wide as the parameter is.
    Float(f64),
    /// A structure: values by the byte that each begins at.
    Structure((Vec<(u64, PieceParts)>,)),
    /// Bytes as they are.
    Bytes(Vec<u8>),
}

/// A part of a structure.
#[derive(FromPyObject)]
pub enum PieceParts {
    /// A tensor map.
    Map(MapParts),
    /// An address: a buffer and a byte in it.
    Pointer((usize, u64)),
    /// Bytes as they are.
    Bytes(Vec<u8>),
}

/// What was found, in Python a dictionary.
#[derive(IntoPyObject)]
pub struct Found {
    grade: &'static str,
    report: Option<&'static str>,
    rule: &'static str,
    schedule: String,
    line: Option<u32>,
    source: Option<String>,
    other_line: Option<u32>,
    other_source: Option<String>,
    place: Option<String>,
    lacks: Option<String>,
    remedy: Option<&'static str>,
    message: String,
}

/// What came of a launch: the kernel's name, findings, names of buffers whose contents depend on the schedule, what a
/// run did, and what the first one left in each buffer, if that is not what it held before.
type Outcome = (String, Vec<Found>, Vec<String>, Vec<String>, Vec<Option<Vec<u8>>>);

/// Runs a kernel under adversarial schedules.
#[pyfunction]
pub fn simulate(
    py: Python<'_>,
    text: &str,
    launch: LaunchParts,
    buffers: Vec<BufferParts>,
    args: Vec<ArgParts>,
    rules: &str,
    schedules: u64,
) -> Result<Outcome> {
    py.detach(|| outcome(text, launch, &buffers, &args, rules, schedules))
}

fn outcome(
    text: &str,
    (entry, grid, block, cluster, dynamic_shared, cooperative): LaunchParts,
    buffers: &[BufferParts],
    args: &[ArgParts],
    rules: &str,
    schedules: u64,
) -> Result<Outcome> {
    let rules = match rules {
        "practice" => Rules::Practice,
        "letter" => Rules::Letter,
        other => return Err(Error::value("rules", format!("{other:?}; they are \"practice\" or \"letter\""))),
    };
    let blocks = grid.iter().map(|side| u64::from(*side)).try_fold(1, u64::checked_mul);
    if blocks.is_none_or(|blocks| blocks > MOST_BLOCKS) {
        return Err(Error::value("grid", format!("{grid:?} blocks; at most {MOST_BLOCKS} are simulated")));
    }
    let refused = |error: ptx::Error| Error::value("the PTX", error.to_string());
    let module = Module::read(text).map_err(refused)?;
    let entry = match &entry {
        Some(entry) => entry,
        None => module.only_entry().map_err(refused)?,
    };
    let kernel = module.kernel(entry, Shape { block, cluster, dynamic_shared, cooperative }).map_err(refused)?;
    let (device, placed) = memory(&kernel, buffers);
    let invocation = Invocation { grid, args: arguments(&kernel, args, &placed)? };

    let contents = |gpu: &Gpu| {
        let each = placed.iter().zip(buffers).map(|(buffer, (_, bytes, ..))| {
            let mut bytes = bytes.clone();
            gpu.copy_written(*buffer, &mut bytes);
            bytes
        });
        each.collect::<Vec<Vec<u8>>>()
    };
    let all = Schedule::several(schedules.clamp(2, 10_000) - 2);
    let first = {
        let mut gpu = device.clone().with_rules(rules);
        gpu.survey(&kernel, &invocation, all[0]);
        contents(&gpu)
    };
    let differs = Mutex::new(vec![false; buffers.len()]);
    let judge = |gpu: &Gpu| {
        let left = contents(gpu);
        let mut differs = differs.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        differs.iter_mut().zip(left.iter().zip(&first)).for_each(|(differs, (now, first))| *differs |= now != first);
        Vec::new()
    };
    let survey = sim::survey(&kernel, &all, rules, || (device.clone(), invocation.clone()), judge);
    for graded in &survey.findings {
        if let sim::Finding::Fault(fault) = &graded.finding
            && let FaultKind::Unsupported { .. } | FaultKind::BadLaunch { .. } | FaultKind::OverLimit { .. } =
                fault.kind
        {
            return Err(Error::value(format!("kernel {}", kernel.name), fault.kind.to_string()));
        }
    }
    let differs = differs.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let named = buffers.iter().zip(&differs).filter(|(_, differs)| **differs).map(|((name, ..), _)| name.clone());
    let changed = first.into_iter().zip(buffers).map(|(left, (_, held, ..))| (left != *held).then_some(left));
    let profile = survey.profile.map_or(String::new(), |profile| profile.to_string());
    Ok((
        kernel.name.clone(),
        survey.findings.iter().map(found).collect(),
        named.collect(),
        profile.lines().map(str::to_owned).collect(),
        changed.collect(),
    ))
}

/// A device with the buffers.
fn memory(kernel: &Kernel, buffers: &[BufferParts]) -> (Gpu, Vec<Buffer>) {
    let mut gpu = Gpu::new(Limits::suiting(kernel));
    let place = |(name, bytes, written, beyond): &BufferParts| match written {
        true => gpu.upload_beyond(name, bytes, *beyond),
        false => gpu.alloc_beyond(name, bytes.len(), *beyond),
    };
    let placed = buffers.iter().map(place).collect();
    (gpu, placed)
}

/// The arguments as the simulator takes them.
fn arguments(kernel: &Kernel, args: &[ArgParts], buffers: &[Buffer]) -> Result<Vec<Arg>> {
    if args.len() != kernel.params.len() {
        let names: Vec<&str> = kernel.params.iter().map(|param| param.name.as_str()).collect();
        let found = format!("{} for {} parameters: {}", args.len(), names.len(), names.join(", "));
        return Err(Error::value("the arguments", found));
    }
    let pairs = args.iter().zip(&kernel.params);
    let each = pairs.map(|(arg, param)| {
        argument(arg, param.ty, buffers).map_err(|found| Error::value(format!("the argument {}", param.name), found))
    });
    each.collect()
}

fn argument(arg: &ArgParts, ty: ParamType, buffers: &[Buffer]) -> std::result::Result<Arg, String> {
    let (size, _) = ty.layout();
    let address = |buffer: usize, byte: u64| match buffers.get(buffer) {
        Some(found) => Ok(found.address + byte),
        None => Err(format!("there is no buffer {buffer}")),
    };
    let bytes = |value: [u8; 8]| match size {
        1 | 2 | 4 | 8 => Ok(Arg::Bytes(value[..size as usize].to_vec(), Vec::new())),
        _ => Err(format!("it is a number, and the parameter has {size} bytes")),
    };
    let float = |value: f64| match size {
        2 => Ok(Arg::Bytes(f16::from_f64(value).to_le_bytes().to_vec(), Vec::new())),
        4 => Ok(Arg::Bytes((value as f32).to_le_bytes().to_vec(), Vec::new())),
        _ => bytes(value.to_le_bytes()),
    };
    let fits = |value: i128| -(1i128 << (8 * size.min(8) - 1)) <= value && value < 1i128 << (8 * size.min(8));
    match arg {
        ArgParts::Pointer((buffer, byte)) => Ok(Arg::Pointer(address(*buffer, *byte)?)),
        ArgParts::Bytes(bytes) => Ok(Arg::Bytes(bytes.clone(), Vec::new())),
        ArgParts::Float(value) => float(*value),
        ArgParts::Signed(value) if ty == ParamType::Scalar(DataType::F32) => float(*value as f64),
        ArgParts::Signed(value) if fits((*value).into()) => bytes(value.to_le_bytes()),
        ArgParts::Unsigned(value) if fits((*value).into()) => bytes(value.to_le_bytes()),
        ArgParts::Signed(_) | ArgParts::Unsigned(_) => Err(format!("it does not fit into {size} bytes")),
        ArgParts::Map(parts) => map(parts, &address),
        ArgParts::Structure((parts,)) => {
            let value = |part: &PieceParts| match part {
                PieceParts::Map(parts) => map(parts, &address),
                PieceParts::Pointer((buffer, byte)) => Ok(Arg::Pointer(address(*buffer, *byte)?)),
                PieceParts::Bytes(bytes) => Ok(Arg::Bytes(bytes.clone(), Vec::new())),
            };
            let placed = parts.iter().map(|(at, part)| {
                let value = value(part).map_err(|what| format!("the part at {at}: {what}"))?;
                Ok((*at, value))
            });
            Arg::structure(placed.collect::<std::result::Result<_, String>>()?, ty)
        }
    }
}

/// A tensor map over a buffer.
fn map(
    (buffer, byte, element, dims, strides, tile, swizzle): &MapParts,
    address: &dyn Fn(usize, u64) -> std::result::Result<u64, String>,
) -> std::result::Result<Arg, String> {
    let element = match element.as_str() {
        "u8" => Element::U8,
        "u16" => Element::U16,
        "u32" => Element::U32,
        "f16" => Element::F16,
        "bf16" => Element::Bf16,
        "f32" => Element::F32,
        "u4x16" => Element::U4x16,
        other => return Err(format!("tensor maps of {other:?} are not simulated")),
    };
    let swizzle = match swizzle {
        0 => Swizzle::None,
        32 => Swizzle::B32,
        64 => Swizzle::B64,
        128 => Swizzle::B128,
        other => return Err(format!("swizzle is {other}; it is 0, 32, 64 or 128")),
    };
    let (dims, strides, tile) = (dims.clone(), strides.clone(), tile.clone());
    let map = TensorMap { element, address: address(*buffer, *byte)?, dims, strides, tile, swizzle };
    map.check().map_err(|error| error.to_string())?;
    Ok(Arg::Map(map))
}

fn found(graded: &Graded) -> Found {
    let (finding, site, race) = (&graded.finding, graded.finding.site(), graded.finding.race());
    Found {
        grade: graded.grade.name(),
        report: match graded.grade {
            Grade::Seen(report) => Some(report),
            _ => None,
        },
        rule: finding.name(),
        schedule: finding.schedule().to_string(),
        line: site.and_then(|site| site.line),
        source: site.map(|site| site.phase.clone()),
        other_line: race.and_then(|race| race.first.site.line),
        other_source: race.map(|race| race.first.site.phase.clone()),
        place: race.map(|race| race.place.to_string()),
        lacks: race.map(|race| race.edge.to_string()),
        remedy: race.map(|race| race.remedy),
        message: finding.to_string().trim_end().to_owned(),
    }
}
