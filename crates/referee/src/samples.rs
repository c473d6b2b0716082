//! The samples of one measurement, process by process, and what they add up to.

use crate::record::{Look, Measurement, Pairing, ShapeResult, Stop, Summary};
use crate::seeds::derive;
use crate::settings::{Temperature, Timing};
use crate::stats::{self, Quartets};
use crate::{Error, Result};

const TEMPERATURES: usize = 2;

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Take {
    /// Seconds for one computation.
    pub seconds: f64,
    /// Seconds of it, or more where several threads did, that it waited for a processor which others had, as far as the
    /// system tells.
    pub waited: f64,
}

/// The samples of one pair of processes.
#[derive(Debug)]
pub(crate) struct Process {
    /// `[temperature][shape][quartet]`
    quartets: [Vec<Vec<f64>>; TEMPERATURES],
    /// `[temperature][shape]`, champion and challenger.
    seconds: [Vec<[Vec<f64>; 2]>; TEMPERATURES],
}

impl Process {
    pub(crate) fn new(shapes: usize) -> Self {
        let empty = || vec![[Vec::new(), Vec::new()]; shapes];
        Self { quartets: [vec![Vec::new(); shapes], vec![Vec::new(); shapes]], seconds: [empty(), empty()] }
    }

    /// Adds a quartet.
    pub(crate) fn add(&mut self, shape: usize, temperature: Temperature, champion: [f64; 2], challenger: [f64; 2]) {
        let at = index(temperature);
        self.quartets[at][shape].push(stats::quartet(champion, challenger));
        self.seconds[at][shape][0].extend(champion);
        self.seconds[at][shape][1].extend(challenger);
    }
}

/// All samples so far.
#[derive(Debug)]
pub(crate) struct Samples {
    pub(crate) shapes: Vec<String>,
    quartets: [Quartets; TEMPERATURES],
    seconds: [Vec<[Vec<f64>; 2]>; TEMPERATURES],
    /// `[temperature][process]`: the champion's own time as a logarithm, the mean over shapes.
    champion: [Vec<f64>; TEMPERATURES],
}

impl Samples {
    pub(crate) fn new(shapes: Vec<String>, quartets_per_process: usize) -> Self {
        let quartets = Quartets::new(shapes.len(), quartets_per_process);
        let seconds = Process::new(shapes.len()).seconds;
        Self { shapes, quartets: [quartets.clone(), quartets], seconds, champion: Default::default() }
    }

    pub(crate) fn processes(&self) -> usize {
        self.quartets[0].processes()
    }

    pub(crate) fn quartets(&self) -> usize {
        self.quartets[0].quartets()
    }

    /// Adds a process with all of its samples. One that is not complete, or whose clock stood still, is refused.
    pub(crate) fn push(&mut self, process: Process) -> Result<()> {
        for (table, quartets) in self.quartets.iter_mut().zip(&process.quartets) {
            if !table.push(quartets) {
                return Err(Error::Samples);
            }
        }
        for (champion, shapes) in self.champion.iter_mut().zip(&process.seconds) {
            let logs = shapes.iter().map(|sides| stats::median(&sides[0]).ln());
            champion.push(logs.sum::<f64>() / shapes.len() as f64);
        }
        for (all, new) in self.seconds.iter_mut().flatten().zip(process.seconds.into_iter().flatten()) {
            for (all, new) in all.iter_mut().zip(new) {
                all.extend(new);
            }
        }
        Ok(())
    }

    /// The quartets at one temperature: `[process][shape][quartet]`.
    pub(crate) fn of_processes(&self, temperature: Temperature) -> Vec<Vec<Vec<f64>>> {
        let table = &self.quartets[index(temperature)];
        let shapes: Vec<Vec<f64>> = (0..self.shapes.len()).map(|shape| table.of_shape(shape)).collect();
        let a_process = table.quartets() / table.processes().max(1);
        let of = |process: usize| shapes.iter().map(|all| all[process * a_process..][..a_process].to_vec()).collect();
        (0..table.processes()).map(of).collect()
    }

    /// What the samples at one temperature say, at the confidence of one look.
    pub(crate) fn summary(&self, temperature: Temperature, timing: &Timing, seed: u64) -> Summary {
        let at = index(temperature);
        let seed = derive(seed, &[self.processes() as u64, at as u64]);
        let analysis = stats::analyse(&self.quartets[at], timing.method(), seed);
        let shape = |(index, &d): (usize, &stats::LogRatio)| ShapeResult {
            shape: self.shapes[index].clone(),
            champion_seconds: stats::median(&self.seconds[at][index][0]),
            challenger_seconds: stats::median(&self.seconds[at][index][1]),
            speedup: d.into(),
            quartets: self.quartets[at].of_shape(index),
        };
        Summary { geomean: analysis.geomean.into(), shapes: analysis.shapes.iter().enumerate().map(shape).collect() }
    }

    pub(crate) fn measurement(
        &self,
        pairing: Pairing,
        seed: u64,
        timing: &Timing,
        looks: Vec<Look>,
        stopped: Stop,
    ) -> Measurement {
        Measurement {
            pairing,
            seed,
            processes: self.processes(),
            quartets: self.quartets(),
            confidence: 1.0 - timing.alpha_a_look(),
            cold: self.summary(Temperature::Cold, timing, seed),
            warm: self.summary(Temperature::Warm, timing, seed),
            champion: self.champion[index(timing.decides)].clone(),
            looks,
            stopped,
        }
    }
}

fn index(temperature: Temperature) -> usize {
    match temperature {
        Temperature::Cold => 0,
        Temperature::Warm => 1,
    }
}
