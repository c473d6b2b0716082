//! `hammerhead ptx`: the GPU kernels that a problem would run, as PTX, with what they take of the machine.
//!
//! Neither a GPU nor a driver is needed. The report stands in the text itself, as comments, so that it stays with it;
//! what the kernels say of themselves comes first, then what NVIDIA's assembler makes of them, where it is at hand.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use gpu::facts::Facts;
use gpu::{Family, families};
use hammerhead::{Activation, Gate, Output, Problem, Request};
use ptx::assemble::Assembler;
use ptx::{Bank, Kernel};

use crate::predict::cheapest;
use crate::shapes::{self, Shapes};
use crate::{Error, Result, console, files};

/// Print the GPU kernels that a problem would run
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Print the GPU kernels that a problem would run, as one PTX module in the order in which they run, with \
    what they take of the machine as comments: threads, shared memory and registers as declared, and, where NVIDIA's \
    assembler is found (the environment variable HAMMERHEAD_PTXAS, else `ptxas` on the path), registers, spills and \
    warnings as assembled. No GPU and no driver is needed.\n\n\
    Examples:\n  \
    hammerhead ptx\n  \
    hammerhead ptx --shape 512x3072x7168 --gate gelu-tanh --result bf16\n  \
    hammerhead ptx --arch sm_80 --device rtx4090 --config tile=64x128,stages=4 --output kernels.ptx\n  \
    hammerhead ptx --arch sm_100a --shape 512x4096x7168\n  \
    hammerhead ptx --arch sm_120a --activation nvfp4"
)]
pub struct Args {
    /// The GPU architecture
    #[arg(long, value_enum, default_value_t = Arch::Sm90a)]
    arch: Arch,
    /// The device to plan for: h200, h100, a100, rtx3090, rtx4090, l40s, b200, rtx5090 or dgx-spark [default: h200 for
    /// sm_90a, b200 for sm_100a, rtx5090 for sm_120a, else a100]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The problem's sizes, tokens x columns x K, or several groups of tokens against weights of one size
    #[arg(long, value_name = shapes::SYNTAX, default_value = "256x4096x7168")]
    shape: Shapes,
    /// Ask for a configuration, any part of strategy=two-pass|sequential|interleaved|ping-pong, tile=TOKENSxCOLUMNS,
    /// depth=64|128|256, stages=N, epilogue=direct|staged, schedule=tile|persistent|split-k; the rest is planned
    #[arg(long, value_name = "KEY=VALUE,…", default_value = "")]
    config: Request,
    /// The gate: silu, silu:limit=10, gelu-tanh, gpt-oss (or gpt-oss:alpha=1.702,beta=1,limit=7); of a single product
    /// relu2 or none
    #[arg(long, value_name = "NAME", default_value = "silu")]
    gate: Gate,
    /// The tokens' type: nvfp4, f16, bf16 or f32 [default: nvfp4 for sm_100a, else f16]
    #[arg(long, value_name = "TYPE")]
    activation: Option<Activation>,
    /// The element type of the result: f16, bf16 or f32
    #[arg(long = "result", value_name = "TYPE", default_value = "f16")]
    out: Output,
    /// Write to this file instead of stdout
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// An architecture that there are kernels for.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Arch {
    /// Ampere and everything since: A100, RTX 30 and 40, L40S, and later ones
    #[value(name = "sm_80", alias = "sm80")]
    Sm80,
    /// Hopper: H100, H200, GH200
    #[value(name = "sm_90a", alias = "sm90")]
    Sm90a,
    /// Data-centre Blackwell: B200, B300; printed for the family of both, sm_100f. Not run on silicon
    #[value(name = "sm_100a", aliases = ["sm_100f", "sm100"])]
    Sm100a,
    /// Desktop Blackwell: RTX 50, RTX PRO 6000, DGX Spark; printed for the family, sm_120f. Not run on silicon
    #[value(name = "sm_120a", aliases = ["sm_120f", "sm120"])]
    Sm120f,
}

impl Arch {
    fn family(self) -> &'static dyn Family {
        match self {
            Arch::Sm80 => &families::sm80::Sm80,
            Arch::Sm90a => &families::sm90::Sm90,
            Arch::Sm100a => &families::sm100::Sm100,
            Arch::Sm120f => &families::sm120::Sm120,
        }
    }

    /// What it is called on the command line.
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The device that is planned for where nobody names one.
    fn facts(self) -> Facts {
        match self {
            Arch::Sm80 => Facts::a100(),
            Arch::Sm90a => Facts::h200(),
            Arch::Sm100a => Facts::b200(),
            Arch::Sm120f => Facts::rtx5090(),
        }
    }

    /// The tokens whose kernels are printed where nobody names a type.
    fn activation(self) -> Activation {
        match self {
            Arch::Sm80 | Arch::Sm90a | Arch::Sm120f => Activation::F16,
            Arch::Sm100a => Activation::NvFp4,
        }
    }
}

/// Plans the problem for the GPU and prints its kernels, or writes them.
pub fn ptx(args: &Args) -> Result<()> {
    let problem =
        Problem::new(args.shape.0.clone(), args.gate, args.activation.unwrap_or(args.arch.activation()), args.out)?;
    let family = args.arch.family();
    let facts = args.device.as_deref().map_or_else(|| Ok(args.arch.facts()), Facts::named)?;
    expect_runs_on(args.arch, &facts)?;
    let (_, config) = cheapest(family, &problem, &args.config, &facts)?;
    let kernels = family.kernels(&problem, &config)?;
    // The assembler takes ASCII only, also in comments.
    let sizes = problem.to_string().replace('×', "x");
    let mut text = format!("// {sizes}, gate {}, result {}: {config}\n//\n", problem.gate(), problem.output());
    text.extend(kernels.iter().map(declared));
    text += "//\n";
    text += &assembled(&kernels)?;
    text += "\n";
    text += &ptx::module(family.target(), &kernels);
    match &args.output {
        Some(path) => files::write_report(path, &text),
        None => console::print(&text),
    }
}

/// Refuses a device that does not run an architecture's kernels.
fn expect_runs_on(arch: Arch, facts: &Facts) -> Result<()> {
    let capability = facts.capability;
    if arch.family().supports(capability) {
        return Ok(());
    }
    let fitting = Arch::value_variants().iter().filter(|arch| arch.family().supports(capability));
    Err(Error::OtherArch {
        arch: arch.name(),
        device: facts.name.clone(),
        capability,
        fitting: fitting.map(|arch| arch.name()).collect::<Vec<_>>().join(" or "),
    })
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
