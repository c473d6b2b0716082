//! The least that can be judged, for tests: a task that doubles numbers, and a contestant in this process that does it.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use fastrand::Rng;
use serde_json::Value;

use crate::Result;
use crate::contestant::{About, Contestant, DeviceTime, Fault, Guard, Job, Readiness, Session, Tensors};
use crate::task::{Bundle, Element, Expected, Found, Spec, Task, Tensor, Timed, Work};

const COUNT: usize = 64;

/// Numbers to double, with constants that nobody needs.
pub(crate) fn task() -> Arc<dyn Task> {
    within(0.0)
}

/// The same, where numbers may be off by so much.
pub(crate) fn within(allowed: f64) -> Arc<dyn Task> {
    Arc::new(Doubling(allowed))
}

struct Doubling(f64);

fn numbers(name: &str, seed: u64) -> Bundle {
    let mut lots = Rng::with_seed(seed);
    let bytes = (0..COUNT).flat_map(|_| lots.f32().to_le_bytes()).collect();
    Bundle::new(vec![Tensor { spec: Spec::new(name, Element::F32, [COUNT]), bytes }])
}

fn doubled(input: &Bundle) -> Vec<u8> {
    let values = Element::F32.values(&input.tensors[0].bytes);
    values.iter().flat_map(|value| (2.0 * *value as f32).to_le_bytes()).collect()
}

fn compare(input: &Bundle, output: &[Vec<u8>], allowed: f64) -> Found {
    let [found, expected] = [&output[0], &doubled(input)].map(|bytes| Element::F32.values(bytes));
    let near = found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() <= allowed);
    let wrong = (!near).then(|| "a number is not twice the input's".to_owned());
    Found { wrong, compared: COUNT as u64, ..Found::default() }
}

struct Twice(Bundle, f64);

impl Expected for Twice {
    fn check(&self, output: &[Vec<u8>]) -> Result<Found> {
        Ok(compare(&self.0, output, self.1))
    }
}

impl Task for Doubling {
    fn name(&self) -> String {
        format!("{COUNT} numbers")
    }

    fn numbers(&self) -> String {
        "uniform".to_owned()
    }

    fn operation(&self) -> String {
        "doubling".to_owned()
    }

    fn described(&self) -> Value {
        Value::from(COUNT)
    }

    fn work(&self) -> Work {
        Work { flops: Some(COUNT as f64), bytes: 12.0 * COUNT as f64, constant_bytes: 4.0 * COUNT as f64 }
    }

    fn outputs(&self) -> Vec<Spec> {
        vec![Spec::new("y", Element::F32, [COUNT])]
    }

    fn constants(&self, seed: u64) -> Result<Bundle> {
        Ok(numbers("unused", seed))
    }

    fn input(&self, seed: u64) -> Result<Bundle> {
        Ok(numbers("x", seed))
    }

    fn expected(&self, _constants: &Bundle, input: &Bundle, _seed: u64) -> Result<Box<dyn Expected>> {
        Ok(Box::new(Twice(input.clone(), self.0)))
    }

    fn look(&self, run: &[Timed<'_>], _elements: usize, _lots: &mut Rng) -> Result<Found> {
        let mut found = Found::default();
        run.iter().for_each(|timed| found.add(compare(timed.input, timed.output, self.0)));
        Ok(found)
    }

    fn look_whole(&self, timed: Timed<'_>) -> Result<Option<String>> {
        Ok(compare(timed.input, timed.output, self.0).wrong)
    }
}

/// Doubles in this process.
pub(crate) struct Doubler {
    name: String,
}

impl Doubler {
    pub(crate) fn named(name: &str) -> Self {
        Self { name: name.to_owned() }
    }
}

impl Contestant for Doubler {
    fn about(&self) -> About {
        About { name: self.name.clone(), runs: "doubling".to_owned(), trusted: true }
    }

    fn start(&self) -> Result<Box<dyn Session>, Fault> {
        let tensors = Tensors::new().map_err(|error| Fault::Start { reason: error.to_string() })?;
        Ok(Box::new(InProcess { tensors, jobs: Vec::new() }))
    }
}

struct InProcess {
    tensors: Tensors,
    jobs: Vec<Job>,
}

impl Session for InProcess {
    fn deterministic(&self) -> bool {
        true
    }

    fn tensors(&mut self) -> &mut Tensors {
        &mut self.tensors
    }

    fn prepare(&mut self) -> Result<Readiness, Fault> {
        Ok(Readiness::Ready)
    }

    fn stage(&mut self, jobs: &[Job]) -> Result<(), Fault> {
        self.jobs = jobs.to_vec();
        Ok(())
    }

    fn go(&mut self) -> Result<Option<DeviceTime>, Fault> {
        for job in &self.jobs {
            // Whoever stands in for a blank is given places, and nothing in them.
            let Ok(input) = self.tensors.input(job.input) else { continue };
            let places = self.tensors.places().unwrap();
            let file = OpenOptions::new().write(true).open(&places.outputs_file).unwrap();
            file.write_all_at(&doubled(input), places.outputs[job.output][0]).unwrap();
        }
        Ok(None)
    }

    fn guards(&self) -> Vec<Guard> {
        Vec::new()
    }
}
