//! Whole layers of experts as tasks: what is asked, who passes, and who does not.

use std::rc::Rc;

use crate::common::{Steady, Watched, quick};
use hammerhead::{Plan, Request, backends};
use referee::contestant::{Contestant, Fault, Tensors};
use referee::{Correctness, Course, Halt, Pairing, Pool, Side, Temperature, examine};
use tank::entry::Way;
use tank::operation::Operation;
use tank::operations::dual_gemm::{Builtin, DualGemm, ProblemSpec};

/// A small layer, as a season's file writes it.
fn small() -> ProblemSpec {
    toml::from_str(
        "layer = { tokens = 7, experts = 5, top = 2, hidden = 64, inner = 48 }\nactivation = \"bf16\"\noutput = \"f32\"",
    )
    .unwrap()
}

/// Our own kernels in the simulator: the only backend without a GPU that computes layers whole.
fn simulated(spec: &ProblemSpec) -> Builtin {
    let sim = backends::by_name("sim").unwrap();
    let plan = Plan::best(spec.problem().unwrap(), &[sim], &Request::default(), 1).unwrap();
    let way = Way { problem: spec.name().unwrap(), backend: "sim".into(), config: plan.config().to_string() };
    Builtin { name: "simulated".into(), ways: vec![way], threads: Some(1), ..Builtin::default() }
}

fn examined(contestant: &dyn Contestant) -> Correctness {
    let questions = DualGemm::new(&[small()]).unwrap().questions(2, 1, 5).unwrap();
    assert!(questions.len() == 5 && questions.iter().all(|task| task.name().contains("experts")));
    let [found] = examine([contestant], &questions, 5).unwrap();
    found.correctness
}

/// Whoever gives the last token what the first should get, in every output.
fn last_token_is_the_first() -> Watched {
    let spoil = |_: usize, tensors: &mut Tensors| {
        let Ok(places) = tensors.places() else { return };
        let (path, outputs) = (places.outputs_file.clone(), places.outputs.clone());
        let mut bytes = std::fs::read(&path).unwrap();
        for at in outputs.into_iter().map(|output| output[0] as usize) {
            let (row, last) = (64 * 4, at + 6 * 64 * 4);
            if last + row <= bytes.len() {
                bytes.copy_within(at..at + row, last);
            }
        }
        std::fs::write(path, bytes).unwrap();
    };
    Watched { gone: Rc::new(spoil), ..Watched::new(simulated(&small())) }
}

#[test]
fn our_own_kernels_pass_the_examination_of_a_layer() {
    let found = examined(&simulated(&small()));
    assert!(found.passed() && found.unsupported.is_empty() && found.compared > 5 * 7 * 64, "{found:?}");
}

#[test]
fn a_token_with_anothers_result_is_found() {
    let found = examined(&last_token_is_the_first());
    assert!(found.wrong.first().is_some_and(|wrong| wrong.what.contains("should be")), "{found:?}");
}

#[test]
fn a_timed_layer_is_looked_at_row_by_row() {
    let (settings, clock) = (quick(), Steady::default());
    let (champion, challenger) = (simulated(&small()), last_token_is_the_first());
    let tasks = DualGemm::new(&[small()]).unwrap().problems().to_vec();
    let mut pool = Pool::new(&champion, &challenger, tasks, &settings, &clock, 3).unwrap();
    let samples = |pool: &mut Pool<'_>| -> Result<(), Halt> {
        pool.enter(Pairing::Duel, 1)?;
        pool.prepare(0)?;
        // One row of seven is looked at, and now and then four: eighty times none of them is the last in one of 200,000
        // tries.
        (0..80).try_for_each(|_| pool.sample(Side::Challenger, Temperature::Warm).map(drop))
    };
    let found = samples(&mut pool);
    let Err(Halt::Fault(Side::Challenger, fault)) = found else { panic!("not caught: {found:?}") };
    assert!(matches!(&fault, Fault::Wrong { what, .. } if what.contains("timed output")), "{fault}");
}

#[test]
fn tokens_of_a_layer_are_dense() {
    let spec = ProblemSpec { activation: "nvfp4".into(), ..small() };
    let refused = DualGemm::new(&[spec]).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("its tokens are nvfp4") && refused.contains("bf16"), "{refused}");
}
