//! Configurations of our own backends, as the planner chooses or completes them, and what is known of each before
//! anything runs.

use std::collections::BTreeMap;
use std::path::Path;

use gpu::{Foretold, Phase, Simulated, device, plan, simulated};
use hammerhead::tuning::{self, Bucket, Measured, Tuned};
use hammerhead::{Backend, Config, Engine, Options, Plan, Problem, Request, backends};
use referee::digits::hex;
use sha2::{Digest, Sha256};
use testkit::{assembled, counters};

use super::ProblemSpec;
use crate::configurations::{Configurations, Counter, Forecast, KernelEvidence, PhaseShare, Profile, Proof};
use crate::entry::{Entry, Way};
use crate::pitch::Run;
use crate::{Error, Result};

/// The GPU that kernels are assembled for, and whose phases are predicted, where a season is not for another that is
/// not there.
const PROFILED: &str = "foretold:h200";

impl Way {
    /// The way of a plan.
    fn of(spec: &ProblemSpec, plan: &Plan) -> Result<Self> {
        let (backend, config) = (plan.backend().name().to_owned(), plan.config().to_string());
        Ok(Way { problem: spec.name()?, backend, config })
    }

    /// The plan for its problem: this backend and this configuration, or why that cannot be run here.
    pub(crate) fn plan(&self, problem: Problem, threads: usize) -> Result<Plan> {
        let request = self.config.parse::<Request>()?;
        Ok(Plan::best(problem, &[backends::by_name(&self.backend)?], &request, threads)?)
    }
}

impl Entry {
    /// The entry that a request makes of the planner's choices, problem by problem. The simulator is refused: it takes
    /// a millisecond for what takes a GPU a microsecond, so its times say nothing.
    pub fn planned(
        problems: &[ProblemSpec],
        backends: &[&'static dyn Backend],
        request: &Request,
        threads: usize,
    ) -> Result<Self> {
        if backends.iter().any(|backend| backend.name() == simulated::NAME) {
            return Err(Error::Rules {
                what: "the backend 'sim'".to_owned(),
                problem: "the simulator counts what kernels do, and its times say nothing: it is evidence, never timed"
                    .to_owned(),
                remedy: "name the backend 'cuda', and the simulator's counts stand beside the pitch as evidence"
                    .to_owned(),
            });
        }
        let way = |spec: &ProblemSpec| {
            let problem = spec.problem()?;
            if problem.whole().is_some() && backends.iter().all(|b| b.candidates(&problem, threads).is_empty()) {
                return Err(Error::Rules {
                    what: format!("the layer of {problem}"),
                    problem: "a processor computes layers product by product, and has no configuration of a whole one"
                        .to_owned(),
                    remedy: "play on a GPU (backend = \"cuda\"), or on one that is not there (\"foretold:h200\")"
                        .to_owned(),
                });
            }
            Way::of(spec, &Plan::best(problem, backends, request, threads)?)
        };
        Ok(Entry::Builtin { ways: problems.iter().map(way).collect::<Result<_>>()? })
    }
}

/// What plans the problems of a season.
#[derive(Clone, Debug)]
pub struct Planner {
    /// The problems.
    pub problems: Vec<ProblemSpec>,
    /// The backends that are planned for where a pitch names none.
    pub backends: Vec<&'static dyn Backend>,
    /// The threads.
    pub threads: usize,
}

impl Planner {
    /// A planner on this machine, for a backend by name or `auto`.
    pub fn new(problems: &[ProblemSpec], backend: &str, threads: Option<usize>) -> Result<Self> {
        let backend = Some(backend.to_owned());
        let engine = Engine::new(Options { backend, threads, request: Request::default() })?;
        let (backends, threads) = (engine.backends().to_vec(), engine.threads());
        Ok(Self { problems: problems.to_vec(), backends, threads })
    }

    /// The plan of a GPU's configuration for the first problem, and what it is looked at for, whether a GPU is there or
    /// not.
    fn plan_of_a_gpu(&self, run: &Run) -> Option<(Plan, &'static Foretold)> {
        let named = run.backend.as_deref().or_else(|| self.backends.first().map(|backend| backend.name()))?;
        let (backend, profiled) = match (Foretold::by_name(named), run.backend.as_deref()) {
            (Some(foretold), _) => (named, foretold),
            (None, Some(device::NAME | simulated::NAME)) => (device::NAME, Foretold::by_name(PROFILED)?),
            _ => return None,
        };
        let problem = self.problems.first()?.problem().ok()?;
        let plan = Plan::best(problem, &[backends::by_name(backend).ok()?], &request(run).ok()?, self.threads).ok()?;
        Some((plan, profiled))
    }

    /// Where the time of a processor's configuration should go on the first problem, at the speeds that plans are made
    /// by.
    fn profile_of_a_processor(&self, run: &Run) -> Profile {
        let phases = || {
            let Entry::Builtin { ways } = self.entry(run).ok()? else { return None };
            let plan = ways.first()?.plan(self.problems.first()?.problem().ok()?, self.threads).ok()?;
            Some(shares(plan.backend().phases(plan.problem(), plan.config(), self.threads).ok()?))
        };
        let phases_by = "by the model, at the speeds of each loop that were measured on this machine".to_owned();
        Profile { phases: phases().unwrap_or_default(), phases_by, ..Profile::default() }
    }
}

/// What a pitch asks of the planner. Of a sweep the first is what is judged before anything is built.
fn request(run: &Run) -> Result<Request> {
    let config = run.config.as_ref().or(run.sweep.first());
    Ok(config.map(String::as_str).unwrap_or_default().parse()?)
}

impl Configurations for Planner {
    fn planned(&self, words: &str) -> Result<Entry> {
        Entry::planned(&self.problems, &self.backends, &words.parse()?, self.threads)
    }

    fn entry(&self, run: &Run) -> Result<Entry> {
        let named = run.backend.as_deref().map(backends::by_name).transpose()?;
        if let Some(backend) = named {
            backend.available()?;
        }
        let backends = named.map_or_else(|| self.backends.clone(), |backend| vec![backend]);
        Entry::planned(&self.problems, &backends, &request(run)?, self.threads)
    }

    /// The best among all backends that read the weights which this entry's backend reads. A program stands for itself.
    fn unforced(&self, entry: &Entry) -> Result<Entry> {
        let Entry::Builtin { ways } = entry else { return Ok(entry.clone()) };
        let mut unforced = Vec::new();
        for (way, spec) in ways.iter().zip(&self.problems) {
            let own = backends::by_name(&way.backend)?;
            let mut among = backends::sharing(own);
            if among.is_empty() {
                among.push(own);
            }
            let plan = Plan::best(spec.problem()?, &among, &Request::default(), self.threads)?;
            unforced.push(Way::of(spec, &plan)?);
        }
        Ok(Entry::Builtin { ways: unforced })
    }

    fn forecast(&self, entry: &Entry, problem: usize) -> Option<Forecast> {
        let Entry::Builtin { ways } = entry else { return None };
        let asked = self.problems.get(problem)?.problem().ok()?;
        let plan = ways.get(problem)?.plan(asked, self.threads).ok()?;
        let cost = plan.cost();
        let (bound_by, scratch_bytes) = (cost.bound_by.to_owned(), cost.scratch_bytes);
        Some(Forecast { seconds: cost.seconds, bound_by, scratch_bytes })
    }

    fn profile(&self, run: &Run) -> Profile {
        let Some((plan, profiled)) = self.plan_of_a_gpu(run) else { return self.profile_of_a_processor(run) };
        let (problem, config, family) = (plan.problem(), plan.config(), profiled.family());
        let tile = simulator(profiled).filter(|_| problem.whole().is_none());
        let (counted, simulated_wrong) = match tile.map(|simulator| counters::counters(simulator, problem, config)) {
            Some(Ok((counted, report))) => (counted, report.first.map(|failure| failure.to_string())),
            Some(Err(error)) => (Vec::new(), Some(error.to_string())),
            None => (Vec::new(), None),
        };
        // Where there is no assembler, nothing is known by it, and a gate on that stays shut.
        let kernels = assembled::assembled(family, profiled.facts(), problem, config).unwrap_or_default().into_iter();
        let kernel = |kernel: assembled::Assembled| KernelEvidence {
            kernel: kernel.kernel,
            registers: kernel.registers,
            shared_bytes: kernel.shared_bytes,
            spilled_bytes: kernel.spilled_bytes,
            blocks: kernel.blocks,
            occupancy: kernel.occupancy,
        };
        Profile {
            simulated: counted.into_iter().map(|(what, count)| Counter { what: what.to_owned(), count }).collect(),
            simulated_wrong,
            assembled: kernels.map(kernel).collect(),
            phases: plan::phases(family, problem, config, profiled.facts()).map(shares).unwrap_or_default(),
            phases_by: format!("by first principles on {}", profiled.facts().name),
        }
    }

    fn kernels(&self) -> BTreeMap<String, String> {
        let version = |b: &&'static dyn Backend| (b.base_name().to_owned(), b.kernels().to_owned());
        backends::all().iter().map(version).collect()
    }

    fn draw(&self, champion: &Entry, tried: &dyn Fn(&Entry) -> bool, place: &str) -> Option<Run> {
        let first = self.problems.first()?.problem().ok()?;
        let candidates = |&backend: &&'static dyn Backend| {
            backend.candidates(&first, self.threads).into_iter().map(move |config| (backend, config))
        };
        // A deck that is shuffled anew for every place in a season, and always the same for the same.
        let order = |backend: &dyn Backend, config: &Config| {
            hex(&Sha256::digest(format!("{place}/{}/{config}", backend.name())))
        };
        let mut drawn: Vec<(&'static dyn Backend, Config)> = self.backends.iter().flat_map(candidates).collect();
        drawn.sort_by_cached_key(|(backend, config)| order(*backend, config));
        drawn.into_iter().find_map(|(backend, config)| {
            let way = |spec: &ProblemSpec| {
                backend.check(&spec.problem().ok()?, &config, self.threads).ok()?;
                let (backend, config) = (backend.name().to_owned(), config.to_string());
                Some(Way { problem: spec.name().ok()?, backend, config })
            };
            let entry = Entry::Builtin { ways: self.problems.iter().map(way).collect::<Option<_>>()? };
            let (backend, config) = (Some(backend.name().to_owned()), Some(config.to_string()));
            (entry != *champion && !tried(&entry)).then(|| Run { config, backend, ..Run::default() })
        })
    }

    fn share_weights(&self, way: &Way, other: &Way) -> bool {
        let weights = |way: &Way| backends::by_name(&way.backend).map(|b| (b.layout(), b.device_model())).ok();
        weights(way).is_some() && weights(way) == weights(other)
    }

    fn install(&self, folder: &Path, ways: &[(Way, f64)], proof: &Proof<'_>) -> Result<()> {
        let tuned = |(way, speedup): &(Way, f64)| {
            let spec = self.problems.iter().find(|p| p.name().is_ok_and(|name| name == way.problem))?;
            let measured = Measured::of(backends::by_name(&way.backend).ok()?);
            let kernels = proof.kernels.get(&measured.backend);
            Some(Tuned {
                bucket: Bucket::of(&spec.problem().ok()?, self.threads).to_string(),
                // If the kernels have changed since the season began, this is out of date already.
                measured: Measured { kernels: kernels.cloned().unwrap_or_default(), ..measured },
                problem: way.problem.clone(),
                config: way.config.clone(),
                speedup: *speedup,
                record: proof.record.to_owned(),
                at: proof.at.to_owned(),
                retired: false,
            })
        };
        Ok(tuning::install(folder, ways.iter().filter_map(tuned).collect())?)
    }
}

/// The simulator of a GPU's kernels.
pub(crate) fn simulator(device: &Foretold) -> Option<&'static Simulated> {
    Simulated::by_name(&format!("{}:{}", simulated::NAME, device.family().name()))
}

/// The share of a run's time that each of its phases takes.
fn shares(phases: Vec<Phase>) -> Vec<PhaseShare> {
    let all: f64 = phases.iter().map(|phase| phase.seconds).sum();
    let share = |phase: &Phase| PhaseShare {
        phase: phase.what.to_owned(),
        share: phase.seconds / all,
        bound_by: phase.bound_by.to_owned(),
    };
    if all > 0.0 { phases.iter().map(share).collect() } else { Vec::new() }
}
