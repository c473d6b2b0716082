//! Layers of experts as models have them, scaled down so that all of a layer can be held against the reference.

use format::Dense;
use hammerhead::layer_reference::LayerReference;
use hammerhead::{Activation, Engine, Experts, Intermediate, LayerOptions, Output, Precision};
use indicatif::ProgressBar;
use testkit::moe::{self, Instance, Model};

use super::{Summary, Wrong};
use crate::Result;
use crate::selection::Selection;

/// Tokens of a trial: one, a few, and enough for a matrix unit.
const TOKENS: [usize; 3] = [1, 6, 19];
const ELEMENTS: [Activation; 3] = [Activation::BF16, Activation::F32, Activation::F16];

/// One way of computing a model's layer.
struct Trial {
    tokens: usize,
    element: Activation,
    output: Output,
    options: LayerOptions,
}

/// Checks every model on every engine, with every intermediate, batch-invariant (then a token alone, too) and not; in
/// the precision that was asked for.
pub fn check(
    selection: &Selection,
    models: &[Model],
    engines: &[Engine],
    summary: &mut Summary,
    bar: &ProgressBar,
) -> Result<()> {
    for (index, model) in models.iter().enumerate() {
        bar.set_message(model.name);
        for trial in trials(selection, index) {
            for engine in engines {
                try_once(selection.seed, &model.scaled_down(), &trial, engine, summary)?;
            }
        }
        bar.inc(1);
    }
    Ok(())
}

/// Types and numbers of tokens take turns, unless types were asked for.
fn trials(selection: &Selection, index: usize) -> impl Iterator<Item = Trial> {
    let precision = selection.precision.unwrap_or_default();
    // What is rounded to FP8 has more bits before that than NVFP4 has.
    let intermediates =
        Intermediate::ALL.into_iter().filter(move |between| precision.check_layer(*between, false).is_ok());
    let ways = intermediates.flat_map(|between| [false, true].map(|invariant| (between, invariant)));
    ways.enumerate().map(move |(turn, (intermediate, batch_invariant))| {
        let asked = &selection.activation;
        Trial {
            tokens: TOKENS[(index + turn) % 3],
            element: if asked.is_empty() { ELEMENTS[(index + turn) % 3] } else { asked[turn % asked.len()] },
            output: selection.out.unwrap_or(Output::ALL[(index + 2 * turn) % 3]),
            options: LayerOptions { intermediate, precision, batch_invariant, ..LayerOptions::default() },
        }
    })
}

/// Whether the last token has the bits that it has among the others.
fn is_the_same_alone(
    layer: &Experts,
    engine: &Engine,
    instance: &Instance,
    together: &Dense<'_>,
    output: Output,
) -> hammerhead::Result<bool> {
    let last = together.rows() - 1;
    let (token, routed) = instance.alone(last)?;
    let alone = layer.run(engine, &token, &routed, output)?;
    let bits = |result: &Dense<'_>, row| {
        let mut values = vec![0f32; result.k()];
        result.row(row, &mut values);
        values.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
    };
    Ok(bits(&alone, 0) == bits(together, last))
}

fn try_once(seed: u64, model: &Model, trial: &Trial, engine: &Engine, summary: &mut Summary) -> Result<()> {
    let Trial { tokens, element, output, options } = *trial;
    let instance = model.instance(tokens, element, usize::MAX, seed)?;
    let (weights, routed) = (instance.weights()?, instance.routed()?);
    let backend = engine.backends()[0];
    let layer = match Experts::new(engine, &weights, options) {
        Ok(layer) => layer,
        Err(refusal @ (hammerhead::Error::BatchInvariant { .. } | hammerhead::Error::ScaledIntermediate { .. })) => {
            summary.refused += 1;
            summary.refusal.get_or_insert_with(|| refusal.to_string());
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let LayerOptions { intermediate, precision, .. } = options;
    let reference =
        LayerReference { weights: &weights, intermediate, precision, tokens: &instance.tokens, routed: &routed };
    let outcome = layer.run(engine, &instance.tokens, &routed, output).and_then(|result| {
        let arithmetic = |tokens| backend.layer_arithmetic_in(precision, tokens);
        let report = moe::check(&reference, 0..tokens, &result, &arithmetic)?;
        let alike = !options.batch_invariant || is_the_same_alone(&layer, engine, &instance, &result, output)?;
        Ok((report, alike))
    });
    let (wrong, compared, first) = match outcome {
        Ok((report, true)) if report.passed() => {
            summary.passed += 1;
            summary.note_used("moe", backend.name(), output, report.max_ratio);
            return Ok(());
        }
        Ok((report, false)) if report.passed() => (1, 1, "the last token has other bits alone".to_owned()),
        Ok((report, _)) => {
            let first = report.first.map_or_else(|| "nothing was compared".to_owned(), |first| first.to_string());
            (report.failures, report.compared, first)
        }
        Err(error) => (0, 0, error.to_string()),
    };
    let invariant = if options.batch_invariant { ", batch-invariant" } else { "" };
    let rounded = if precision == Precision::Fp8 { " as fp8" } else { "" };
    summary.failed += 1;
    summary.failures.push(Wrong {
        suite: "moe".to_owned(),
        case: format!("{}, {tokens} tokens, {element}→{output}", model.name),
        why: model.why,
        backend: backend.name(),
        config: format!("an intermediate of {intermediate}{rounded}{invariant}"),
        seed,
        wrong,
        compared,
        first,
    });
    Ok(())
}
