//! Says of the kernels in some texts how much is understood: a line per kernel, and what is not understood, with
//! counts.
//!
//! ```text
//! cargo run -p hammerhead-ptx --example read -- FILE.ptx...
//! ```

use std::collections::BTreeMap;

use ptx::Op;
use ptx::parse::{Module, Shape};

fn main() {
    let (mut read, mut torn, mut kernels, mut whole) = (0, 0, 0, 0);
    let mut unknown: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for path in std::env::args().skip(1) {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                println!("{path}: {error}");
                continue;
            }
        };
        let module = match Module::read(&text) {
            Ok(module) => module,
            Err(error) => {
                torn += 1;
                println!("{path}: {error}");
                continue;
            }
        };
        read += 1;
        for entry in module.entries() {
            kernels += 1;
            // A text that does not say how it is launched is read for some launch.
            let shape = Shape { block: Some([128, 1, 1]), ..Shape::default() };
            let asked = module.kernel(entry, Shape::default());
            let kernel = asked.or_else(|first| match module.kernel(entry, shape) {
                Err(second) if second.to_string().contains(".reqntid") => Err(first),
                found => found,
            });
            match kernel {
                Ok(kernel) => {
                    let mut here: BTreeMap<String, usize> = BTreeMap::new();
                    for instr in &kernel.body {
                        if let Op::Unknown(op) = &instr.op {
                            *here.entry(op.opcode.clone()).or_default() += 1;
                        }
                    }
                    whole += usize::from(here.is_empty());
                    let left: usize = here.values().sum();
                    println!("{path}: {entry}: {} instructions, {left} not understood", kernel.body.len());
                    for (opcode, count) in here {
                        let all = unknown.entry(opcode).or_default();
                        *all = (all.0 + 1, all.1 + count);
                    }
                }
                Err(error) => println!("{path}: {entry}: {error}"),
            }
        }
    }
    let mut unknown: Vec<_> = unknown.into_iter().collect();
    unknown.sort_by_key(|(_, (kernels, _))| std::cmp::Reverse(*kernels));
    for (opcode, (kernels, count)) in unknown {
        println!("{kernels:5} kernels {count:6} times {opcode}");
    }
    println!("{read} texts read, {torn} not; {whole} of {kernels} kernels understood in whole");
}
