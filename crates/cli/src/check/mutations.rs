//! `hammerhead check --mutations`: how many plausible mistakes in a kernel are found by its launch file and the
//! schedules.

use std::collections::BTreeMap;

use ptx::Kernel;
use serde::Serialize;
use sim::Tried;

/// What became of all mistakes.
#[derive(Serialize)]
pub struct Mutations {
    made: usize,
    caught: usize,
    /// By kind of mistake.
    kinds: Vec<Kind>,
    /// Those that nothing was found of.
    survivors: Vec<Survivor>,
}

#[derive(Serialize)]
struct Kind {
    mistake: &'static str,
    made: usize,
    caught: usize,
}

#[derive(Serialize)]
struct Survivor {
    mistake: &'static str,
    /// The line of the text, counted from one.
    line: Option<u32>,
    /// Where it was written, by the compiler's word.
    source: String,
    instruction: String,
}

impl Mutations {
    pub fn new(kernel: &Kernel, tried: &[Tried]) -> Mutations {
        let mut kinds: BTreeMap<&str, Kind> = BTreeMap::new();
        let mut survivors = Vec::new();
        for &Tried { mistake, position, caught } in tried {
            let kind = kinds.entry(mistake).or_insert(Kind { mistake, made: 0, caught: 0 });
            kind.made += 1;
            kind.caught += usize::from(caught.is_some());
            let instr = kernel.body.get(position).filter(|_| caught.is_none());
            survivors.extend(instr.map(|instr| Survivor {
                mistake,
                line: instr.line,
                source: kernel.phase_path(instr.phase),
                instruction: kernel.instruction(instr).trim().to_owned(),
            }));
        }
        let caught = tried.len() - survivors.len();
        Mutations { made: tried.len(), caught, kinds: kinds.into_values().collect(), survivors }
    }

    pub fn words(&self) -> String {
        let Mutations { made, caught, kinds, survivors } = self;
        let mut words = format!("\n{caught} of {made} mistakes are found\n");
        for Kind { mistake, made, caught } in kinds {
            words += &format!("  {caught:5} of {made:5}  {mistake}\n");
        }
        if !survivors.is_empty() {
            words += "\nnot found, since nothing depends on them, or this launch does not show it:\n";
        }
        for Survivor { mistake, line, instruction, .. } in survivors {
            let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            let instruction: String = instruction.chars().take(100).collect();
            words += &format!("  {mistake}: {line}{instruction}\n");
        }
        words
    }
}
