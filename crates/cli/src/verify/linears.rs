//! Plain products with FP8 weights, as mixed models have them: every case on every backend, and on a GPU in several
//! configurations.

use indicatif::ProgressBar;

use hammerhead::cpu::LAYOUT;
use hammerhead::{Config, Engine, Error as Refusal};
use testkit::fp8::{self, Case};

use super::{Summary, Wrong};
use crate::Result;
use crate::selection::SuiteName;

/// Checks some cases on every engine's backend.
pub fn check(cases: &[Case], engines: &[Engine], summary: &mut Summary, bar: &ProgressBar) -> Result<()> {
    for case in cases {
        bar.set_message(case.reason);
        for engine in engines {
            let backend = engine.backends()[0];
            let mut ways: Vec<Option<Config>> = vec![None];
            if backend.layout() != LAYOUT {
                ways.extend(fp8::configs(case, backend, engine.team())?.into_iter().map(Some));
            }
            ways.into_iter().for_each(|config| check_once(case, engine, config, summary));
        }
        bar.inc(1);
    }
    Ok(())
}

fn check_once(case: &Case, engine: &Engine, config: Option<Config>, summary: &mut Summary) {
    let (backend, suite) = (engine.backends()[0], SuiteName::FP8_WEIGHTS);
    let (wrong, compared, first) = match fp8::verify_in(case, backend, config, engine.team()) {
        Ok(checked) if checked.wrong == 0 => {
            summary.passed += 1;
            summary.note_used(suite, backend.name(), case.output, checked.most);
            return;
        }
        Ok(checked) => (checked.wrong, checked.compared, checked.first.unwrap_or_default()),
        Err(refusal @ Refusal::Unavailable { .. }) if config.is_none() => {
            summary.refused += 1;
            summary.refusal.get_or_insert_with(|| refusal.to_string());
            return;
        }
        Err(error) => (0, 0, error.to_string()),
    };
    let [m, n, k] = case.shape;
    summary.failed += 1;
    summary.failures.push(Wrong {
        suite: suite.to_owned(),
        case: format!("{m}×{n}×{k}, {:?}, {}→{}", case.scaling, case.activation, case.output),
        why: case.reason,
        backend: backend.name(),
        config: config.map_or_else(|| "as planned".to_owned(), |config| config.to_string()),
        seed: 0,
        wrong,
        compared,
        first,
    });
}
