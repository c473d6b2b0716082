//! The kernels broken on purpose, to prove that the simulator notices.
//!
//! [`sim::mutate`] makes, from the kernel as it is printed, every kernel that differs by one plausible mistake. Here
//! each of them runs on small problems, with the launches before and behind it, under several schedules: a mistake must
//! show as a fault or as a result that is another to the bit under one of them, and the kernel as it is must show
//! neither under any.
//!
//! `ways` has the kernels, one for each way of putting them together. `equivalents` has the reasons for which a few
//! mistakes change nothing, each with a predicate and with the number of mutants that it excuses of each kernel. An
//! excused mutant that gets caught is as wrong as one that survives without an excuse, and so is a number that has
//! changed.

mod equivalents;
mod site;
mod ways;

use std::ptr;

use format::Dense;
use rayon::prelude::*;
use sim::mutate::{Mutant, mutants};
use sim::{Buffer, Finding, Gpu, Invocation, Mutants, Profile, Schedule, Timeline};

use gpu::Simulated;
use gpu::simulated::Staged;
use hammerhead::{Plan, cpu};
use op::{Backend, Error, Operands, Request, Result, Shape, Target};

use crate::cases::{Case, Instance, Suite};
use crate::verify::{Expected, poisoned};
use equivalents::{EQUIVALENT, Equivalent};
use site::Site;
pub use ways::{WAYS, Way};

/// Instructions after which a run is given up: many times what the kernels take.
const MOST_INSTRUCTIONS: u64 = 4_000_000;
/// How the names of kernels begin that are broken: the others of a sequence bring tokens into order, or join sums.
const PRODUCTS: &str = "nvfp4_dual_gemm";
/// Multiprocessors that launches are made for: blocks with several tiles have all of them.
const MULTIPROCESSORS: u32 = 1;

/// What became of a mutant.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// A fault or a wrong result, under a schedule that it names; and the reason why that ought not to be, if it is
    /// called equivalent.
    Caught(Finding, Option<&'static str>),
    /// It computes the same, for this reason.
    Equivalent(&'static str),
    /// It ought to have been caught, and was not.
    Missed,
}

impl Verdict {
    /// Whether it is as it should be: caught, or named as equivalent, and not both.
    pub fn is_right(&self) -> bool {
        matches!(self, Verdict::Caught(_, None) | Verdict::Equivalent(_))
    }
}

/// The kernel and the problems on which it and its mutants run.
#[derive(Debug)]
pub struct Trial {
    way: &'static Way,
    kernel: ptx::Kernel,
    /// The smallest first: most mistakes show there already.
    problems: Vec<Problem>,
}

/// A device with the operands of one problem, its launches, and what they should compute.
#[derive(Debug)]
struct Problem {
    gpu: Gpu,
    launches: Vec<(ptx::Kernel, Invocation)>,
    results: Vec<Buffer>,
    /// The bytes of every result.
    expected: Vec<Vec<u8>>,
}

impl Trial {
    /// Builds one of the kernels and its problems, and computes them once with the kernel as it is, which must agree
    /// with the reference.
    pub fn new(way: &'static Way) -> Result<Self> {
        let problems: Vec<Problem> =
            way.problems.iter().map(|groups| Problem::new(way, groups)).collect::<Result<_>>()?;
        let kernels: Vec<&ptx::Kernel> = problems.iter().filter_map(Problem::products).collect();
        assert!(
            kernels.len() == problems.len() && kernels.windows(2).all(|two| two[0].body == two[1].body),
            "all problems of a way take one kernel: {}",
            way.name
        );
        let kernel = kernels[0].clone();
        Ok(Trial { way, kernel, problems })
    }

    /// The kernel that is broken.
    pub fn kernel(&self) -> &ptx::Kernel {
        &self.kernel
    }

    /// The kernel as it is, under every schedule on every problem: what it did on the first, or what was found.
    pub fn original(&self, schedules: &[Schedule]) -> Result<Profile, Finding> {
        self.alone(&self.kernel, schedules)
    }

    /// What the kernel does when, on the first problem.
    pub fn timeline(&self, schedule: Schedule) -> Timeline {
        let problem = &self.problems[0];
        let (sequence, first) = problem.sequence(&self.kernel);
        let (before, mut gpu) = (&sequence[..first], problem.gpu.clone());
        match gpu.run_sequence(before, schedule) {
            Ok(_) => gpu.timeline(&self.kernel, sequence[first].1, schedule),
            Err(_) => Timeline::default(),
        }
    }

    /// The same of another kernel in its place, from the start to the end each time.
    pub fn alone(&self, kernel: &ptx::Kernel, schedules: &[Schedule]) -> Result<Profile, Finding> {
        let profiles: Result<Vec<Profile>, Finding> =
            self.problems.iter().map(|problem| problem.examine(kernel, schedules)).collect();
        Ok(profiles?.swap_remove(0))
    }

    /// Every so-many-th mutant from one on, and what became of it, in the order of the instructions.
    pub fn verdicts(&self, schedules: &[Schedule], first: usize, stride: usize) -> Vec<(Mutant, Verdict)> {
        let mutants: Vec<Mutant> = mutants(&self.kernel).into_iter().skip(first).step_by(stride).collect();
        // Neighbours have most in common.
        let share = mutants.len().div_ceil(2 * rayon::current_num_threads()).max(1);
        let examine = |mutants: &[Mutant]| self.examine(&mutants.iter().collect::<Vec<_>>(), schedules);
        let found: Vec<Option<Finding>> = mutants.par_chunks(share).flat_map_iter(examine).collect();
        let judge = |(mutant, finding)| {
            let verdict = self.verdict(&mutant, finding);
            (mutant, verdict)
        };
        mutants.into_iter().zip(found).map(judge).collect()
    }

    /// What is found in each of some mutants, if anything is.
    pub fn examine(&self, mutants: &[&Mutant], schedules: &[Schedule]) -> Vec<Option<Finding>> {
        let mut found: Vec<Option<Finding>> = mutants.iter().map(|_| None).collect();
        let kernels: Vec<&ptx::Kernel> = mutants.iter().map(|mutant| &mutant.kernel).collect();
        let ready = Mutants::new(&self.kernel, &kernels);
        for problem in &self.problems {
            for &schedule in schedules {
                let left: Vec<usize> = (0..mutants.len()).filter(|number| found[*number].is_none()).collect();
                let outcomes = problem.examine_mutants(&self.kernel, (&ready, &left), schedule);
                left.into_iter().zip(outcomes).for_each(|(number, outcome)| found[number] = outcome.err());
            }
        }
        found
    }

    /// Reasons that excuse more or fewer of this kernel's mutants than are pinned, and mutants with two excuses.
    pub fn miscounted(&self) -> Vec<String> {
        let mutants = mutants(&self.kernel);
        let miscounts = EQUIVALENT.iter().filter_map(|equivalent| {
            let found =
                mutants.iter().filter(|mutant| self.excuses(mutant).any(|other| ptr::eq(other, equivalent))).count();
            let pinned = equivalent.count(self.way);
            let text = || format!("{}: {found} excused, {pinned:?} pinned: {}", self.way.name, equivalent.reason);
            (pinned != Some(found)).then(text)
        });
        let twice = mutants.iter().filter(|mutant| self.excuses(mutant).count() > 1);
        let twice = twice.map(|mutant| format!("{}: excused twice: {}", self.way.name, mutant.name));
        miscounts.chain(twice).collect()
    }

    fn excuses<'t>(&'t self, mutant: &'t Mutant) -> impl Iterator<Item = &'static Equivalent> + 't {
        let site = Site::new(self.way, &self.kernel, mutant);
        EQUIVALENT.iter().filter(move |equivalent| equivalent.excuses(mutant, &site))
    }

    fn verdict(&self, mutant: &Mutant, finding: Option<Finding>) -> Verdict {
        let known = self.excuses(mutant).next().map(|equivalent| equivalent.reason);
        match (finding, known) {
            (Some(finding), known) => Verdict::Caught(finding, known),
            (None, Some(reason)) => Verdict::Equivalent(reason),
            (None, None) => Verdict::Missed,
        }
    }
}

impl Problem {
    fn new(way: &Way, groups: &[(usize, usize, usize)]) -> Result<Self> {
        let case = Case {
            suite: Suite::Edge,
            why: "small",
            groups: groups.iter().map(|&(m, n, k)| Shape::new(m, n, k)).collect(),
            gate: way.gate,
            activation: way.activation,
            output: way.output,
            precision: way.precision,
            inputs: way.inputs,
            timed: false,
        };
        let instance = case.instance(1)?;
        let known = "sim, sim:sm80, sim:sm120, sim:sm_90a, sim:sm_100a".to_owned();
        let unknown = || Error::UnknownName { what: "simulator", name: way.backend.into(), known };
        let simulator = Simulated::by_name(way.backend).ok_or_else(unknown)?;
        let Staged { gpu, launches, results, .. } = stage(simulator, &instance, way)?;
        let gpu = gpu.with_patience(MOST_INSTRUCTIONS);
        let mut problem = Problem { gpu, launches, results, expected: Vec::new() };
        problem.expected = problem.computed(&case, &instance, simulator)?;
        Ok(problem)
    }

    /// What the kernels as they are make of it: within the bound of the reference, or there is nothing to compare
    /// mutants with.
    fn computed(&self, case: &Case, instance: &Instance, simulator: &Simulated) -> Result<Vec<Vec<u8>>> {
        let mut gpu = self.gpu.clone();
        let sequence: Vec<_> = self.launches.iter().map(|(kernel, launch)| (kernel, launch)).collect();
        gpu.run_sequence(&sequence, Schedule::Earliest).map_err(|fault| Error::Fault(fault))?;
        let bytes =
            |result: &Buffer| gpu.download(*result).map(<[u8]>::to_vec).map_err(|first| Error::Unwritten { first });
        let computed: Vec<Vec<u8>> = self.results.iter().map(bytes).collect::<Result<_>>()?;
        let mut values = poisoned(instance);
        for (target, bytes) in Target::all(&mut values).iter_mut().zip(&computed) {
            target.bytes_mut().copy_from_slice(bytes);
        }
        let shapes = instance.problem.groups().iter().zip(values);
        let results: Vec<Dense<'_>> =
            shapes.map(|(shape, values)| Dense::new(shape.m, shape.n, values, 1.0)).collect::<Result<_, _>>()?;
        let expected = Expected::new(instance, false, 1, &cpu::team(Some(1))?);
        let report = expected.check(&results, simulator.arithmetic_of(&case.problem()?));
        assert!(report.passed(), "{case} without a mistake: {:?}", report.first);
        Ok(computed)
    }

    /// The kernel of products.
    fn products(&self) -> Option<&ptx::Kernel> {
        self.launches.iter().map(|(kernel, _)| kernel).find(|kernel| kernel.name.starts_with(PRODUCTS))
    }

    /// The launches with one kernel as the kernel of products, and the place of the first such launch.
    fn sequence<'k>(&'k self, products: &'k ptx::Kernel) -> (Vec<(&'k ptx::Kernel, &'k Invocation)>, usize) {
        let broken = |kernel: &ptx::Kernel| kernel.name.starts_with(PRODUCTS);
        let replaced = |kernel| if broken(kernel) { products } else { kernel };
        let sequence = self.launches.iter().map(|(kernel, launch)| (replaced(kernel), launch)).collect();
        (sequence, self.launches.iter().position(|(kernel, _)| broken(kernel)).unwrap_or(0))
    }

    /// Whether a device holds what it should.
    fn verify(&self, gpu: &Gpu, schedule: Schedule) -> Result<(), Finding> {
        for (group, (result, expected)) in self.results.iter().zip(&self.expected).enumerate() {
            let what = match gpu.download(*result) {
                Ok(found) if found == expected => continue,
                Ok(_) => format!("the result of group {group} is another"),
                Err(first) => format!("byte {first} of the result of group {group} was not written"),
            };
            return Err(Finding::WrongResult { schedule, what });
        }
        Ok(())
    }

    fn examine(&self, products: &ptx::Kernel, schedules: &[Schedule]) -> Result<Profile, Finding> {
        let (sequence, first) = self.sequence(products);
        let mut profile = Profile::default();
        for &schedule in schedules {
            let mut gpu = self.gpu.clone();
            let mut profiles = gpu.run_sequence(&sequence, schedule).map_err(Finding::Fault)?;
            self.verify(&gpu, schedule)?;
            profile = profiles.swap_remove(first);
        }
        Ok(profile)
    }

    /// The same of some mutants of the kernel of products, by number, each under one schedule.
    fn examine_mutants(
        &self,
        products: &ptx::Kernel,
        mutants: (&Mutants<'_>, &[usize]),
        schedule: Schedule,
    ) -> Vec<Result<(), Finding>> {
        let (sequence, _) = self.sequence(products);
        self.gpu.run_mutants(&sequence, mutants, schedule, |run| {
            let (gpu, _) = run.map_err(Finding::Fault)?;
            self.verify(gpu, schedule)
        })
    }
}

/// An instance's launches as the way asks for them, and a device with the operands.
fn stage(simulator: &'static Simulated, instance: &Instance, way: &Way) -> Result<Staged> {
    let backend: &'static dyn Backend = simulator;
    let request: Request = way.request.parse()?;
    let team = cpu::team(Some(1))?;
    let packed = backend.prepack(&instance.weights, &team)?;
    let problem = &instance.problem.clone().with_scaling(packed.scaling())?;
    let plan = Plan::best(problem.clone(), &[backend], &request, 1)?;
    // Single precision is brought near one by its largest magnitude.
    let largest = vec![4.0; instance.activations.len()];
    let mut results = poisoned(instance);
    let operands = Operands {
        weights: packed.as_ref(),
        activations: &instance.activations,
        largest: &largest,
        addends: &[],
        targets: &mut Target::all(&mut results),
    };
    simulator.staged((problem, plan.config()), &operands, MULTIPROCESSORS)
}
