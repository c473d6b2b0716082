//! `hammerhead bench --regret`: what the planner's choice costs beside the best of its candidates.
//!
//! For each case and each backend every candidate whose prediction is not hopeless is timed in rounds, one after
//! another, with cold weights; those that are far behind drop out. The least median is the best candidate. As the least
//! of many noisy medians flatters itself, it then meets the planned one in rounds of their own, and the median of those
//! pairs' ratios is the regret: 1.00 where the planner chose the best.

use hammerhead::{Backend, Config, Engine, Plan, Problem, Request, cpu};
use serde::Serialize;
use testkit::cases::Instance;

use super::args::Args;
use super::rotation::{Kind, Roomed, Rotation, batches};
use super::stop;
use crate::selection::Chosen;
use crate::subject::Subject;
use crate::table::{self, Table};
use crate::timing::Spread;
use crate::{Result, console, memory};

/// The part of the free memory that copies may take.
const SHARE: f64 = 0.5;
/// Candidates predicted to take so many times as long as the planned one are not timed.
const HOPELESS: f64 = 3.0;
/// Candidates so many times slower than the best so far drop out after so many rounds.
const BEHIND: f64 = 1.5;
const TRIED: usize = 2;
/// Rounds of everyone, and pairs of the last two, that every case gets however long they take.
const ROUNDS: usize = 5;
const PAIRS: usize = 7;

/// What was found.
#[derive(Debug, Serialize)]
pub struct RegretRecord {
    threads: usize,
    pub cases: Vec<Regret>,
}

/// The choice of one planner for one case.
#[derive(Debug, Serialize)]
pub struct Regret {
    problem: String,
    activation: String,
    /// One backend's name, or `auto` for the choice among all.
    planner: String,
    candidates: usize,
    planned: String,
    planned_seconds: f64,
    predicted_seconds: f64,
    best: String,
    /// The time of the planned way over that of the best, pair by pair.
    regret: Spread,
}

/// Times candidates on every CPU backend of the engine, and on all together where there are several.
pub fn measure(args: &Args, cases: &[Chosen], engine: &Engine) -> Result<RegretRecord> {
    let backends: Vec<_> = engine.backends().iter().copied().filter(|b| b.layout() == cpu::LAYOUT).collect();
    let mut planners: Vec<Vec<&'static dyn Backend>> = backends.iter().map(|&backend| vec![backend]).collect();
    if planners.len() > 1 {
        planners.insert(0, backends);
    }
    // A GPU that the engine has would get the weights, which no candidate here could read.
    let engine = &engine.processor()?;
    let bar = console::progress(cases.len() * planners.len());
    let mut record = RegretRecord { threads: engine.threads(), cases: Vec::new() };
    let room = memory::free().map_or(f64::INFINITY, |free| SHARE * free);
    for Roomed { chosen, copies } in batches(cases, room)?.iter().flatten().take_while(|_| !stop::asked()) {
        let case = &chosen.case;
        let instance = case.instance(args.selection.seed)?;
        let mut layers = Rotation::load(Kind::of(case), instance.weights.clone(), *copies, engine)?;
        for planner in planners.iter().take_while(|_| !stop::asked()) {
            bar.set_message(format!("timing candidates for {case}"));
            record.cases.push(Field::new(args, case.computed_problem()?, &instance, planner, engine)?.play(
                args,
                planner,
                engine,
                &mut layers,
            )?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(record)
}

/// Candidates with their timings; the first is the planned one.
struct Field {
    runners: Vec<Runner>,
    predicted_seconds: f64,
}

struct Runner {
    subject: Subject,
    seconds: Vec<f64>,
}

impl Runner {
    fn median(&self) -> f64 {
        Spread::of(&self.seconds).median
    }

    fn name(&self) -> String {
        format!("{} {}", self.subject.plan().backend().name(), self.subject.plan().config())
    }
}

impl Field {
    fn new(
        args: &Args,
        problem: Problem,
        instance: &Instance,
        planner: &[&'static dyn Backend],
        engine: &Engine,
    ) -> Result<Self> {
        let plan = Plan::best(problem.clone(), planner, &args.how.request(), engine.threads())?;
        let limit = HOPELESS * plan.cost().seconds;
        let hopeful = plan.considered().iter().filter(|way| way.cost.seconds <= limit);
        let runner = |(backend, config): (&'static dyn Backend, Config)| -> Result<Runner> {
            let fixed = Plan::modelled(problem.clone(), &[backend], &Request::from(config), engine.threads())?;
            Ok(Runner { subject: Subject::new(instance, fixed), seconds: Vec::new() })
        };
        let runners = hopeful.map(|way| runner((way.backend, way.config))).collect::<Result<_>>()?;
        Ok(Self { runners, predicted_seconds: plan.cost().seconds })
    }

    fn play(
        mut self,
        args: &Args,
        planner: &[&'static dyn Backend],
        engine: &Engine,
        layers: &mut Rotation,
    ) -> Result<Regret> {
        let candidates = self.runners.len();
        let (mut spent, mut round) = (0.0, 0);
        while round < ROUNDS || spent < args.seconds {
            for runner in &mut self.runners {
                let seconds = runner.subject.compute(engine, layers.turn())?;
                runner.seconds.push(seconds);
                spent += seconds;
            }
            round += 1;
            if round == TRIED {
                let best = self.runners.iter().map(Runner::median).fold(f64::INFINITY, f64::min);
                let mut index = 0;
                // The planned one, which is the first, stays.
                self.runners.retain(|runner| {
                    index += 1;
                    index == 1 || runner.median() <= BEHIND * best
                });
            }
        }
        let best =
            (0..self.runners.len()).min_by(|&a, &b| self.runners[a].median().total_cmp(&self.runners[b].median()));
        let best = best.unwrap_or(0);
        let mut ratios = Vec::new();
        let mut spent = 0.0;
        while best != 0 && (ratios.len() < PAIRS || spent < args.seconds) {
            let [planned, rival] = [0, best].map(|index| self.runners[index].subject.compute(engine, layers.turn()));
            let (planned, rival) = (planned?, rival?);
            ratios.push(planned / rival);
            spent += planned + rival;
        }
        if best == 0 {
            ratios.push(1.0);
        }
        let plan = self.runners[0].subject.plan();
        Ok(Regret {
            problem: plan.problem().to_string(),
            activation: plan.problem().activation().to_string(),
            planner: if planner.len() > 1 { "auto".into() } else { planner[0].name().to_owned() },
            candidates,
            planned: self.runners[0].name(),
            planned_seconds: self.runners[0].median(),
            predicted_seconds: self.predicted_seconds,
            best: self.runners[best].name(),
            regret: Spread::of(&ratios),
        })
    }
}

/// The same as a table.
pub fn table(record: &RegretRecord) -> String {
    let mut table = Table::new(&[
        "shape m×n×k",
        "tokens",
        "planner",
        ">candidates",
        "planned",
        ">time",
        ">predicted",
        ">regret",
        ">p10…p90",
        "best, where another",
    ]);
    for case in &record.cases {
        let Regret { regret, .. } = case;
        table.row([
            case.problem.clone(),
            case.activation.clone(),
            case.planner.clone(),
            case.candidates.to_string(),
            case.planned.clone(),
            table::seconds(case.planned_seconds),
            table::seconds(case.predicted_seconds),
            format!("{:.2}", regret.median),
            format!("{:.2}…{:.2}", regret.p10, regret.p90),
            if case.best == case.planned { String::new() } else { case.best.clone() },
        ]);
    }
    table.text()
}
