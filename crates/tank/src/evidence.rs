//! What the tank can compute about a pitch before anyone votes: whether it can be run, what the analytic model expects
//! of it, what the roofline allows, what it needs, how much it changes, how its contestant has done so far, and, of a
//! GPU's configuration, what the simulator counts and what NVIDIA's assembler makes of its kernels.

use std::collections::BTreeMap;
use std::rc::Rc;

use referee::contestant::seal;
use referee::digits::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::configurations::{Configurations, Forecast, Profile};
pub use crate::configurations::{Counter, KernelEvidence, PhaseShare};
use crate::court::Baseline;
use crate::entry::{Entry, Way};
use crate::operation::no_configurations;
use crate::pitch::{Gate, Pitch, Run};
use crate::{Error, Result};

/// Where a season is played: its problems, and configurations of our own for them.
#[derive(Clone, Debug)]
pub struct Arena {
    /// The names of the problems.
    pub names: Vec<String>,
    /// The configurations; none where the operation has no such.
    pub configurations: Option<Rc<dyn Configurations>>,
}

/// One problem of a pitch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShapeEvidence {
    /// The problem's name.
    pub problem: String,
    /// The model's prediction for the champion over its prediction for the pitch.
    pub predicted: Option<f64>,
    /// What bounds the pitch, by the model.
    pub bound_by: Option<String>,
    /// The champion's measured time over the least time that the machine's measured rates allow.
    pub possible: Option<f64>,
    /// Working memory that the pitch needs.
    pub scratch_bytes: Option<usize>,
}

/// How a contestant has done so far, by the ledger.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrackRecord {
    /// Pitches of theirs that came to a verdict.
    pub judged: usize,
    /// Those that were a SUCCESS.
    pub successes: usize,
    /// Those that were measured.
    pub measured: usize,
    /// The mean of ln(claimed/measured): above 0, they promise too much.
    pub bias: f64,
}

/// What the tank computed about a pitch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// What would be run, where it can be.
    pub entry: Option<Entry>,
    /// Tells this entry from every other, by what it runs and not by what it is called.
    pub digest: String,
    /// Why it cannot be run.
    pub refusal: Option<String>,
    /// Every problem.
    pub shapes: Vec<ShapeEvidence>,
    /// The model's prediction: the geometric mean over the problems.
    pub predicted: Option<f64>,
    /// The most that the roofline allows: the geometric mean over the problems.
    pub possible: Option<f64>,
    /// Fields of the configuration that change, on the problem where most do.
    pub changes: Option<usize>,
    /// The most working memory on any problem.
    pub scratch_bytes: Option<usize>,
    /// What the simulator counts in one tile of the first problem, where the pitch is a GPU's configuration.
    #[serde(default)]
    pub simulated: Vec<Counter>,
    /// What it finds wrong there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated_wrong: Option<String>,
    /// What examinations found of this very thing before, by the ledger: whether it was right, and the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub examined: Option<(bool, u64)>,
    /// What the assembler makes of its kernels for the first problem, where the pitch is a GPU's configuration and
    /// there is an assembler.
    #[serde(default)]
    pub assembled: Vec<KernelEvidence>,
    /// What happens on the first problem, where the pitch is a configuration.
    #[serde(default)]
    pub phases: Vec<PhaseShare>,
    /// By which model, in words.
    #[serde(default = "of_old")]
    pub phases_by: String,
    /// Rounds that the claim has outlived, by the ledger.
    #[serde(default)]
    pub survived: usize,
    /// Everything above that is a number, and the figures of the pitch's own profiles, by name: what gates look at.
    #[serde(default)]
    pub figures: BTreeMap<String, f64>,
    /// How the contestant has done so far.
    pub record: TrackRecord,
}

impl Evidence {
    /// Why a gate is shut, if it is. What nobody knows does not open one.
    pub fn shut(&self, gate: &Gate) -> Option<String> {
        let Some(found) = self.figures.get(&gate.figure) else {
            let known: Vec<&str> = self.figures.keys().map(String::as_str).collect();
            return Some(format!("nobody knows its {}; known are {}", gate.figure, known.join(", ")));
        };
        let low = gate
            .at_least
            .filter(|least| found < least)
            .map(|least| format!("{} is {found}, and {least} is the least", gate.figure));
        let high = gate
            .at_most
            .filter(|most| found > most)
            .map(|most| format!("{} is {found}, and {most} is the most", gate.figure));
        low.or(high)
    }
}

/// Who told phases in ledgers that do not say: there was one model only.
fn of_old() -> String {
    "by first principles on an H200".to_owned()
}

/// Computes what can be known about a pitch.
pub fn gather(pitch: &Pitch, arena: &Arena, champion: &Entry, baseline: &Baseline, record: TrackRecord) -> Evidence {
    let resolved = resolve(pitch, arena);
    let possible = |problem: &str| {
        let shape = baseline.shapes.iter().find(|shape| shape.problem == problem)?;
        shape.floor_seconds.filter(|floor| *floor > 0.0).map(|floor| shape.seconds / floor)
    };
    let (entry, refusal) = match resolved {
        Ok(entry) => (Some(entry), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let shape = |(index, problem): (usize, &String)| {
        let forecast = entry.as_ref().and_then(|entry| forecast(entry, index, arena));
        let old = forecast.as_ref().zip(self::forecast(champion, index, arena));
        let predicted = old.map(|(new, old)| old.seconds / new.seconds);
        ShapeEvidence {
            predicted,
            bound_by: forecast.as_ref().map(|forecast| forecast.bound_by.clone()),
            possible: possible(problem),
            scratch_bytes: forecast.map(|forecast| forecast.scratch_bytes),
            problem: problem.clone(),
        }
    };
    let shapes: Vec<ShapeEvidence> = arena.names.iter().enumerate().map(shape).collect();
    let Profile { simulated, simulated_wrong, assembled, phases, phases_by } = profile(pitch, arena);
    let mut evidence = Evidence {
        digest: digest(entry.as_ref(), pitch),
        predicted: geomean(shapes.iter().map(|s| s.predicted)),
        possible: geomean(shapes.iter().map(|s| s.possible)),
        changes: entry.as_ref().and_then(|entry| changes(entry, champion)),
        scratch_bytes: shapes.iter().filter_map(|s| s.scratch_bytes).max(),
        simulated,
        simulated_wrong,
        examined: None,
        assembled,
        phases,
        phases_by,
        survived: 0,
        shapes,
        entry,
        refusal,
        figures: BTreeMap::new(),
        record,
    };
    evidence.figures = figures(&evidence, pitch);
    evidence
}

/// Everything about a pitch that is a number, by name. What its author measured counts where the tank knows nothing
/// itself.
fn figures(evidence: &Evidence, pitch: &Pitch) -> BTreeMap<String, f64> {
    let mut figures: BTreeMap<String, f64> = pitch.evidence.iter().flat_map(|cited| cited.figures.clone()).collect();
    let known = [
        ("predicted speedup", evidence.predicted),
        ("possible speedup", evidence.possible),
        ("changed fields", evidence.changes.map(|changes| changes as f64)),
        ("working memory", evidence.scratch_bytes.map(|bytes| bytes as f64)),
    ];
    figures.extend(known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    figures.extend(evidence.simulated.iter().map(|counter| (counter.what.clone(), counter.count as f64)));
    figures.extend(evidence.phases.iter().map(|phase| (format!("{} share", phase.phase), phase.share)));
    if !evidence.assembled.is_empty() {
        let kernels = || evidence.assembled.iter();
        let most = |of: fn(&KernelEvidence) -> u32| kernels().map(of).max().map(f64::from).unwrap_or(0.0);
        let spilled = kernels().map(|kernel| f64::from(kernel.spilled_bytes)).sum();
        let occupancy = kernels().map(|kernel| kernel.occupancy).fold(1.0, f64::min);
        let assembled = [
            ("registers", most(|kernel| kernel.registers)),
            ("shared memory", most(|kernel| kernel.shared_bytes)),
            ("spilled bytes", spilled),
            ("occupancy", occupancy),
        ];
        figures.extend(assembled.map(|(name, value)| (name.to_owned(), value)));
    }
    figures
}

/// What is known of a pitch's configuration before anything is built.
fn profile(pitch: &Pitch, arena: &Arena) -> Profile {
    let known = arena.configurations.as_ref().zip(pitch.run.as_ref());
    known.map(|(configurations, run)| configurations.profile(run)).unwrap_or_default()
}

/// What the model expects of an entry on one problem.
fn forecast(entry: &Entry, problem: usize, arena: &Arena) -> Option<Forecast> {
    arena.configurations.as_ref()?.forecast(entry, problem)
}

/// What a pitch would run, or why it cannot.
pub fn resolve(pitch: &Pitch, arena: &Arena) -> Result<Entry> {
    let nothing = || Error::Rules {
        what: format!("pitch '{}'", pitch.name),
        problem: "it names nothing to run".into(),
        remedy: "write [run] with a config or a program".into(),
    };
    match (pitch.run.as_ref().ok_or_else(nothing)?, &arena.configurations) {
        (Run { program, build, .. }, _) if !program.is_empty() => {
            Ok(Entry::Program { build: build.clone(), command: program.clone(), sealed: None })
        }
        (_, None) => Err(no_configurations("this operation", &pitch.name)),
        (run, Some(configurations)) => configurations.entry(run),
    }
}

/// The geometric mean, where every part is there.
fn geomean(parts: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let logs: Vec<f64> = parts.map(|part| part.map(f64::ln)).collect::<Option<_>>()?;
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// Fields that differ between two built-in entries, on the problem where most do.
fn changes(entry: &Entry, champion: &Entry) -> Option<usize> {
    let (Entry::Builtin { ways: new }, Entry::Builtin { ways: old }) = (entry, champion) else { return None };
    let differing = |(new, old): (&Way, &Way)| {
        let fields = new.config.split(',').zip(old.config.split(',')).filter(|(a, b)| a != b).count();
        fields + usize::from(new.backend != old.backend)
    };
    new.iter().zip(old).map(differing).max()
}

/// Tells what would be run from everything else, be it something that cannot be.
fn digest(entry: Option<&Entry>, pitch: &Pitch) -> String {
    entry.map_or_else(|| hex(&Sha256::digest(serde_json::to_vec(&pitch.run).unwrap_or_default())), entry_digest)
}

/// Tells an entry from every other, by what it runs. A program is told by its bytes where it is a file, so that one
/// that was changed since is another.
pub fn entry_digest(entry: &Entry) -> String {
    let mut hash = Sha256::new();
    if let Entry::Program { build, command, .. } = entry {
        hash.update(serde_json::to_vec(&(build, command)).unwrap_or_default());
        hash.update(seal::digest(command));
        // What it is built from is a part of it, where the build names it; what comes of that lies elsewhere.
        if let Some(folder) = seal::folder_of(command) {
            let named = build.iter().map(|word| folder.join(word).display().to_string());
            hash.update(seal::digest(&named.collect::<Vec<_>>()));
        }
    } else {
        hash.update(serde_json::to_vec(entry).unwrap_or_default());
    }
    hex(&hash.finalize())
}

#[cfg(test)]
mod tests {
    use gpu::{device, simulated};

    use super::*;
    use crate::operations::dual_gemm::{Planner, ProblemSpec};

    fn gathered(backend: &str, config: &str) -> Evidence {
        let problem = ProblemSpec::single(64, 256, 512);
        let names = vec![problem.name().unwrap()];
        let planner = Planner::new(&[problem], "scalar", Some(1)).unwrap();
        let champion = planner.planned("").unwrap();
        let arena = Arena { names, configurations: Some(Rc::new(planner)) };
        let baseline = Baseline::default();
        let run = Run { config: Some(config.to_owned()), backend: Some(backend.to_owned()), ..Run::default() };
        let pitch = Pitch { run: Some(run), ..Pitch::default() };
        gather(&pitch, &arena, &champion, &baseline, TrackRecord::default())
    }

    fn count(evidence: &Evidence, what: &str) -> u64 {
        evidence.simulated.iter().find(|counter| counter.what == what).map(|counter| counter.count).unwrap()
    }

    #[test]
    fn a_gpus_configuration_is_counted_in_the_simulator_without_a_gpu() {
        let of = |strategy: &str| gathered(device::NAME, &format!("strategy={strategy}"));
        let (fused, two_pass) = (of("interleaved"), of("two-pass"));
        assert!(count(&fused, "kernels") < count(&two_pass, "kernels"), "two-pass has one more, for the gate");
        assert!([&fused, &two_pass].iter().all(|counted| count(counted, "multiply-adds on tensor cores") > 0));
        assert!(count(&fused, "instructions by warp") > 0);
    }

    #[test]
    fn a_gate_can_look_at_what_the_assembler_makes_of_a_gpus_configuration() {
        let evidence = gathered(device::NAME, "strategy=interleaved");
        let gate = |figure: &str, at_most| Gate { figure: figure.to_owned(), at_most: Some(at_most), at_least: None };
        if evidence.assembled.is_empty() {
            let required = std::env::var("HAMMERHEAD_REQUIRE_PTXAS").is_ok_and(|value| value == "1");
            assert!(!required, "there is an assembler, and nothing is known by it");
            assert!(evidence.shut(&gate("registers", 255.0)).unwrap().contains("nobody knows"));
            return;
        }
        assert_eq!(evidence.shut(&gate("registers", 255.0)), None);
        assert_eq!(evidence.shut(&gate("spilled bytes", 0.0)), None);
        assert!(evidence.shut(&gate("shared memory", 100.0)).unwrap().contains("100 is the most"));
        assert!(evidence.figures["occupancy"] > 0.0 && evidence.figures["occupancy"] <= 1.0);
    }

    #[test]
    fn a_gate_can_look_at_the_share_of_a_gpus_time_that_a_phase_takes() {
        let evidence = gathered(device::NAME, "strategy=interleaved");
        let all: f64 = evidence.phases.iter().map(|phase| phase.share).sum();
        assert!((all - 1.0).abs() < 1e-9, "{:?}", evidence.phases);
        // The survivor's gate: where the epilogue is next to nothing, nothing is built for it.
        let gate = Gate { figure: "last tile to C share".to_owned(), at_least: Some(0.99), at_most: None };
        assert!(evidence.shut(&gate).unwrap().contains("0.99 is the least"));
        assert_eq!(evidence.shut(&Gate { at_least: Some(0.0), ..gate }), None);
    }

    #[test]
    fn the_simulator_is_evidence_and_is_never_timed() {
        let evidence = gathered(simulated::NAME, "strategy=interleaved");
        assert!(evidence.entry.is_none());
        let refusal = evidence.refusal.as_deref().unwrap();
        assert!(refusal.contains("never timed") && refusal.contains("name the backend 'cuda'"), "{refusal}");
        assert!(!evidence.simulated.is_empty(), "its counts are there all the same");
    }

    #[test]
    fn of_a_processors_configuration_is_known_where_its_time_should_go_and_nothing_is_counted() {
        let evidence = gathered("scalar", "strategy=interleaved");
        assert_eq!((&evidence.refusal, &evidence.simulated), (&None, &Vec::new()));
        let all: f64 = evidence.phases.iter().map(|phase| phase.share).sum();
        assert!((all - 1.0).abs() < 1e-9 && evidence.phases_by.contains("measured on this machine"), "{evidence:?}");
        assert!(evidence.figures["dequantising share"] > 0.0 && evidence.figures["products share"] > 0.0);
        let gate = Gate { figure: "results share".to_owned(), at_least: Some(0.99), at_most: None };
        assert!(evidence.shut(&gate).unwrap().contains("0.99 is the least"));
    }

    #[test]
    fn a_ledger_that_does_not_say_who_told_phases_is_read() {
        let mut told = serde_json::to_value(gathered("scalar", "strategy=interleaved")).unwrap();
        told.as_object_mut().unwrap().remove("phases_by");
        assert!(serde_json::from_value::<Evidence>(told).unwrap().phases_by.contains("H200"));
    }
}
