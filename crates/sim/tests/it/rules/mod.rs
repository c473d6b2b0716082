//! Each rule of the machine: a tiny kernel that breaks exactly it, and its twin that does not.

mod barriers;
mod clusters;
mod flags;
mod lanes;
mod launch_control;
mod limits;
mod memory;
mod tensor_cores;
mod tensor_memory;
mod thread_copies;
mod tiles;
mod warp_tensor_cores;

use ptx::{Addr, Builder, Global, Kernel, LaunchBounds as Shape, Reg, SpecialRegister, Target, U32, U64};
use sim::{Arg, Fault, Gpu, Invocation, Limits, Rules, Schedule};

/// Bytes of the two buffers every kernel here is given.
const BUFFER: usize = 4096;

/// Whether to break the rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Yes,
    No,
}

/// A kernel under test: it has an input full of ones, an output nobody has written, and its thread index.
struct Bench {
    k: Builder,
    input: Reg<U64>,
    output: Reg<U64>,
    thread: Reg<U32>,
}

impl Bench {
    fn new(threads: u32, cluster: Option<[u32; 3]>) -> Self {
        Self::on(Target::Sm90a, threads, cluster)
    }

    fn on(target: Target, threads: u32, cluster: Option<[u32; 3]>) -> Self {
        let mut k = Builder::new("rule", target, Shape { threads, cluster, min_blocks: Some(1) });
        let (input, output) = (k.pointer("input"), k.pointer("output"));
        let thread = k.special(SpecialRegister::TidX);
        Bench { k, input, output, thread }
    }

    /// A one that only the running kernel can know: what is built from it, the checker of legality lets pass.
    fn one(&mut self) -> Reg<U32> {
        self.k.load(Addr::<Global>::of(self.input))
    }

    fn finish(self) -> Kernel {
        self.k.finish().expect("the kernel is well formed")
    }
}

fn device() -> (Gpu, Vec<Arg>) {
    let mut gpu = Gpu::new(Limits::h200());
    let ones: Vec<u8> = (0..BUFFER / 4).flat_map(|_| 1u32.to_le_bytes()).collect();
    let (input, output) = (gpu.upload("input", &ones), gpu.alloc("output", BUFFER));
    (gpu, vec![input.into(), output.into()])
}

/// By the rules that most kernels are held to.
fn run(kernel: &Kernel, schedule: Schedule) -> Result<(), Box<Fault>> {
    run_by(Rules::Practice, kernel, schedule)
}

fn run_by(rules: Rules, kernel: &Kernel, schedule: Schedule) -> Result<(), Box<Fault>> {
    let (gpu, args) = device();
    let mut gpu = gpu.with_rules(rules);
    let blocks: u32 = kernel.launch.cluster.map_or(1, |shape| shape.iter().product());
    gpu.run(kernel, &Invocation { grid: [blocks, 1, 1], args }, schedule).map(|_| ())
}

/// The rule kept passes under every schedule, by the letter too; broken, it is reported by this name under some.
fn rule(name: &str, kernel: impl Fn(Kept) -> Kernel) -> Fault {
    lawful(&kernel(Kept::Yes));
    caught(name, &kernel(Kept::No))
}

/// The same for a rule of the letter alone, that practice does not keep.
fn rule_of_the_letter(name: &str, kernel: impl Fn(Kept) -> Kernel) -> Fault {
    lawful(&kernel(Kept::Yes));
    let broken = kernel(Kept::No);
    for schedule in Schedule::several(8) {
        run(&broken, schedule).unwrap_or_else(|fault| panic!("in practice this passes, and yet: {fault}"));
    }
    caught_by(Rules::Letter, name, &broken)
}

fn lawful(kernel: &Kernel) {
    for schedule in Schedule::several(8) {
        if let Err(fault) = run_by(Rules::Letter, kernel, schedule) {
            panic!("the rule is kept, and yet: {fault}");
        }
    }
}

/// What a kernel without a lawful twin is reported for, under some schedule.
fn caught(name: &str, kernel: &Kernel) -> Fault {
    caught_by(Rules::Practice, name, kernel)
}

fn caught_by(rules: Rules, name: &str, kernel: &Kernel) -> Fault {
    let faults: Vec<Fault> =
        Schedule::several(8).into_iter().filter_map(|s| run_by(rules, kernel, s).err()).map(|f| *f).collect();
    let others: Vec<String> = faults.iter().map(Fault::to_string).collect();
    let named = faults.into_iter().find(|fault| fault.kind.name() == name);
    named.unwrap_or_else(|| panic!("the broken rule is not reported as {name:?}, but: {others:?}"))
}
