//! `hammerhead ptx`: the GPU kernels that a problem would run, as PTX, with what they take of the machine.
//!
//! Neither a GPU nor a driver is needed. The report stands in the text itself, as comments, so that it stays with it; what the
//! kernels say of themselves comes first, then what NVIDIA's assembler makes of them, where it is at hand.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use hammerhead::Backend;
use hammerhead::{Activation, Gate, Output, Plan, Problem, Request, gpu};
use ptx::assemble::Assembler;
use ptx::{Bank, Kernel, Target};

use crate::shapes::{self, Shapes};
use crate::{Result, console, files};

/// Print the GPU kernels that a problem would run
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Print the GPU kernels that a problem would run, as one PTX module in the order in which they run, with \
    what they take of the machine as comments: threads, shared memory and registers as declared, and, where NVIDIA's \
    assembler is found (the environment variable HAMMERHEAD_PTXAS, else `ptxas` on the path), registers, spills and \
    warnings as assembled. No GPU and no driver is needed.\n\n\
    Examples:\n  \
    hammerhead ptx\n  \
    hammerhead ptx --shape 512x3072x7168 --gate gelu-tanh --out bf16\n  \
    hammerhead ptx --arch sm_90a --config tile=64x128,stages=4 --output kernels.ptx"
)]
pub struct Args {
    /// The GPU architecture
    #[arg(long, value_enum, default_value_t = Arch::Sm90a)]
    arch: Arch,
    /// The problem's sizes, tokens x columns x K, or several groups of tokens against weights of one size
    #[arg(long, value_name = shapes::SYNTAX, default_value = "256x4096x7168")]
    shape: Shapes,
    /// Ask for a configuration, any part of strategy=two-pass|sequential|interleaved|ping-pong, tile=TOKENSxCOLUMNS,
    /// depth=64|128|256, stages=N, epilogue=direct|staged|bulk, schedule=tile|persistent|split-k; the rest is planned
    #[arg(long, value_name = "KEY=VALUE,…", default_value = "")]
    config: Request,
    /// The gate: silu, silu:limit=10, gelu-tanh, gpt-oss (or gpt-oss:alpha=1.702,beta=1,limit=7); of a single product relu2 or none
    #[arg(long, value_name = "NAME", default_value = "silu")]
    gate: Gate,
    /// The element type of the result: f16, bf16 or f32
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    out: Output,
    /// Write to this file instead of stdout
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// An architecture that there are kernels for.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Arch {
    /// Hopper: H100, H200, GH200
    #[value(name = "sm_90a")]
    Sm90a,
}

/// Plans the problem for the GPU and prints its kernels, or writes them.
pub fn ptx(args: &Args) -> Result<()> {
    let Arch::Sm90a = args.arch;
    let problem = Problem::new(args.shape.0.clone(), args.gate, Activation::F16, args.out)?;
    let backend: &'static dyn Backend = &gpu::Cuda::FIRST;
    let plan = Plan::best(problem, &[backend], &args.config, 1)?;
    let kernels = gpu::Cuda::FIRST.family().kernels(plan.problem(), plan.config())?;
    let (problem, config) = (plan.problem(), plan.config());
    // The assembler takes ASCII only, also in comments.
    let sizes = problem.to_string().replace('×', "x");
    let mut text = format!("// {sizes}, gate {}, result {}: {config}\n//\n", problem.gate(), problem.output());
    text.extend(kernels.iter().map(declared));
    text += "//\n";
    text += &assembled(&kernels)?;
    text += "\n";
    text += &ptx::module(Target::Sm90a, &kernels);
    match &args.output {
        Some(path) => files::write_report(path, &text),
        None => console::print(&text),
    }
}

/// What a kernel says of itself.
fn declared(kernel: &Kernel) -> String {
    let registers = [(Bank::Pred, "predicates"), (Bank::B16, "of 16 bits"), (Bank::B32, "of 32"), (Bank::B64, "of 64")]
        .map(|(bank, name)| format!("{} {name}", kernel.register_count(bank)));
    let mut text = format!(
        "// {}: {} threads per block, {} bytes of shared memory, {} instructions\n//   declares registers: {}\n",
        kernel.name,
        kernel.launch.threads,
        kernel.shared_bytes(),
        kernel.body.len(),
        registers.join(", ")
    );
    for region in &kernel.shared {
        text += &format!("//   shared {}: {} bytes at {}\n", region.name, region.bytes, region.offset);
    }
    text
}

/// What the assembler makes of the kernels, or why it was not asked.
fn assembled(kernels: &[Kernel]) -> Result<String> {
    let assembler = match Assembler::find(None) {
        Ok(assembler) => assembler,
        Err(error) => return Ok(format!("// not assembled: {error}\n")),
    };
    let mut text = String::new();
    for kernel in kernels {
        let report = assembler.assemble(kernel).map_err(|error| hammerhead::Error::Kernel(error.into()))?;
        text += &format!("// {} assembled: {}\n", kernel.name, report.to_string().replace('\n', "\n//   "));
        if let Err(error) = report.check(kernel) {
            text += &format!("//   {error}\n");
        }
    }
    Ok(text)
}
