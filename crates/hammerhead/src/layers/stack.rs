//! Both products of one or many MLPs, over rows that are sorted by MLP, and what stands between them.

use std::sync::Mutex;

use format::{Dense, GlobalScale, Values, quantize};
use op::{
    Activations, Adapters, Addend, Error, Gate, Intermediate, MlpWeights, Output, Projection, Result, Target, Team,
    Weights,
};

use super::LayerOptions;
use super::rows::{self, cut, part};
use crate::memory::filled;
use crate::{Engine, Layer};

/// The packed weights of MLPs of one shape.
#[derive(Debug)]
pub(super) struct Stack {
    up: Layer,
    down: Layer,
    scales: Vec<GlobalScale>,
    widths: [usize; 3],
    intermediate: Intermediate,
    invariant: bool,
}

/// Rows of tokens, sorted by MLP.
pub(super) struct Rows<'a> {
    pub(super) values: &'a Dense<'a>,
    /// Where each MLP's rows begin, and where the last ones end.
    pub(super) offsets: &'a [usize],
    /// The tokens' type, which rows that were multiplied with weights have no longer.
    pub(super) element: Output,
    /// The adapters, and the number of each row's, or -1.
    pub(super) adapted: Option<(&'a Adapters, &'a [i32])>,
}

impl<'a> Rows<'a> {
    /// What adapters add to some projections of rows, which are these or what became of them: a plane per projection.
    fn deltas<const N: usize>(
        &self,
        rows: &Dense<'_>,
        projections: [(Projection, usize); N],
        team: &Team,
    ) -> Result<Option<[Vec<f32>; N]>> {
        let Some((adapters, numbers)) = self.adapted else { return Ok(None) };
        let mut planes = [const { Vec::new() }; N];
        for (plane, (projection, width)) in planes.iter_mut().zip(projections) {
            let of_expert = |(expert, ends): (usize, &[usize])| {
                let pair = move |&number: &i32| adapters.pair(usize::try_from(number).ok()?, expert, projection);
                numbers[ends[0]..ends[1]].iter().map(pair).collect::<Vec<_>>()
            };
            let pairs: Vec<_> = self.offsets.windows(2).enumerate().flat_map(of_expert).collect();
            *plane = filled(rows.rows() * width, 0f32, "what adapters add")?;
            cpu::deltas(rows, &pairs, plane, team);
        }
        Ok(Some(planes))
    }
}

/// Two planes, the same one twice for one matrix, as every MLP's part of them.
fn addends<'a>(planes: &'a [Vec<f32>], width: usize, offsets: &[usize]) -> Vec<Addend<'a>> {
    let [first, last] = [0, planes.len() - 1];
    offsets.windows(2).map(|ends| [first, last].map(|plane| &planes[plane][ends[0] * width..ends[1] * width])).collect()
}

/// The type of dense values.
pub(super) fn element(dense: &Dense<'_>) -> Output {
    match dense.values() {
        Values::F16(_) => Output::F16,
        Values::BF16(_) => Output::BF16,
        Values::F32(_) => Output::F32,
    }
}

impl Stack {
    pub(super) fn new(engine: &Engine, mlps: &[MlpWeights<'_>], gate: Gate, options: LayerOptions) -> Result<Self> {
        let up: Vec<Weights<'_>> = mlps.iter().map(|mlp| mlp.up().as_borrowed()).collect();
        let down: Vec<Weights<'_>> = mlps.iter().map(|mlp| mlp.down().as_borrowed()).collect();
        let (up, down) = (engine.load(&up, gate)?, engine.load(&down, Gate::None)?);
        if let Some(layer) = [&up, &down].into_iter().find(|layer| layer.packed().layout() != cpu::LAYOUT)
            && options.batch_invariant
        {
            return Err(Error::BatchInvariant { backend: layer.packed().layout() });
        }
        let scales = mlps.iter().map(MlpWeights::intermediate_scale).collect();
        let stack = Self::of((up, down), scales, mlps[0].widths(), options);
        stack.check().map(|()| stack)
    }

    /// Refuses an intermediate that the weights cannot take.
    pub(super) fn check(&self) -> Result<()> {
        let scaled = |&expert: &usize| self.down.input_scale(expert).is_some();
        match (0..self.scales.len()).find(scaled).filter(|_| self.intermediate == Intermediate::NvFp4) {
            Some(expert) => Err(Error::ScaledIntermediate { expert }),
            None => Ok(()),
        }
    }

    /// Weights that were packed before: both products, an intermediate's scale per MLP, and the widths that they all
    /// have.
    pub(super) fn of(
        (up, down): (Layer, Layer),
        scales: Vec<GlobalScale>,
        widths: [usize; 3],
        options: LayerOptions,
    ) -> Self {
        let LayerOptions { intermediate, batch_invariant: invariant, .. } = options;
        Self { up, down, scales, widths, intermediate, invariant }
    }

    /// Gate and up, and down.
    pub(super) fn layers(&self) -> (&Layer, &Layer) {
        (&self.up, &self.down)
    }

    /// The scale of each MLP's NVFP4 intermediate.
    pub(super) fn scales(&self) -> &[GlobalScale] {
        &self.scales
    }

    /// The width of tokens, of the intermediate and of results.
    pub(super) fn widths(&self) -> [usize; 3] {
        self.widths
    }

    pub(super) fn packed_bytes(&self) -> usize {
        self.up.packed_bytes() + self.down.packed_bytes()
    }

    /// Computes rows, to a target of as many.
    pub(super) fn run(&self, engine: &Engine, rows: &Rows<'_>, target: Target<'_>) -> Result<()> {
        match self.without_idle(rows) {
            Some((stack, offsets)) => stack.compute(engine, &Rows { offsets: &offsets, ..*rows }, target),
            None => self.compute(engine, rows, target),
        }
    }

    /// The MLPs that have rows, and where these begin, if some have none and can be left out. Adapters know MLPs by
    /// their numbers.
    fn without_idle(&self, rows: &Rows<'_>) -> Option<(Self, Vec<usize>)> {
        let ends = rows.offsets.windows(2).enumerate();
        let active: Vec<usize> = ends.filter(|(_, ends)| ends[0] < ends[1]).map(|(mlp, _)| mlp).collect();
        if active.is_empty() || active.len() == self.scales.len() || rows.adapted.is_some() {
            return None;
        }
        let (up, down) = (self.up.only(&active)?, self.down.only(&active)?);
        let scales = active.iter().map(|&mlp| self.scales[mlp]).collect();
        let offsets = std::iter::once(0).chain(active.iter().map(|&mlp| rows.offsets[mlp + 1])).collect();
        Some((Self { up, down, scales, ..*self }, offsets))
    }

    fn compute(&self, engine: &Engine, rows: &Rows<'_>, target: Target<'_>) -> Result<()> {
        let Rows { values, offsets, element, .. } = *rows;
        if rows.adapted.is_some() && self.intermediate == Intermediate::NvFp4 {
            return Err(Error::AdaptedIntermediate);
        }
        let [_, inner, width] = self.widths;
        let lengths = |width: usize| offsets.windows(2).map(move |ends| (ends[1] - ends[0]) * width);
        let kept = if self.intermediate == Intermediate::Tokens { element } else { Output::F32 };
        let mut between = rows::values(kept, values.rows() * inner, "what stands between two products")?;
        let mut targets = cut(Target::all(std::slice::from_mut(&mut between)).remove(0), lengths(inner));
        let deltas = rows.deltas(values, [(Projection::Gate, inner), (Projection::Up, inner)], engine.team())?;
        let added = deltas.as_ref().map(|deltas| addends(deltas, inner, offsets));
        self.product(engine, &self.up, &groups(values, offsets)?, added.as_deref(), &mut targets)?;
        let spoilt = match self.intermediate {
            Intermediate::NvFp4 => rows::take_spoilt(&mut targets, inner),
            Intermediate::Tokens | Intermediate::F32 => Vec::new(),
        };
        drop(targets);
        let between = Dense::new(values.rows(), inner, between, 1.0)?;
        let activations = match self.intermediate {
            Intermediate::NvFp4 => self.quantized(&groups(&between, offsets)?, engine.team())?,
            Intermediate::Tokens | Intermediate::F32 => groups(&between, offsets)?,
        };
        let mut targets = cut(target, lengths(width));
        let deltas = rows.deltas(&between, [(Projection::Down, width)], engine.team())?;
        let added = deltas.as_ref().map(|deltas| addends(deltas, width, offsets));
        self.product(engine, &self.down, &activations, added.as_deref(), &mut targets)?;
        spoilt.into_iter().for_each(|(mlp, row)| rows::spoil(&mut targets[mlp], row * width..(row + 1) * width));
        Ok(())
    }

    /// The intermediate as NVFP4, every MLP's with its own scale.
    fn quantized<'a>(&self, groups: &[Activations<'a>], team: &Team) -> Result<Vec<Activations<'a>>> {
        let queue = Mutex::new(groups.iter().zip(&self.scales).enumerate());
        let done = Mutex::new(Vec::with_capacity(groups.len()));
        team.run(|| {
            while let Some((index, (group, &scale))) = queue.lock().ok().and_then(|mut queue| queue.next()) {
                let Activations::Dense(dense) = group else { continue };
                let quantized = quantize(dense, Some(scale));
                if let Ok(mut done) = done.lock() {
                    done.push((index, quantized));
                }
            }
        });
        let mut done = done.into_inner().unwrap_or_default();
        done.sort_by_key(|(index, _)| *index);
        done.into_iter().map(|(_, quantized)| Ok(quantized?.into())).collect()
    }

    /// One product of every MLP.
    fn product(
        &self,
        engine: &Engine,
        layer: &Layer,
        activations: &[Activations<'_>],
        added: Option<&[Addend<'_>]>,
        targets: &mut [Target<'_>],
    ) -> Result<()> {
        if !self.invariant || activations.iter().all(|a| matches!(a, Activations::NvFp4(_))) {
            return engine.run_steady(layer, activations, added, targets, self.invariant.then_some(0.0));
        }
        let activations =
            activations.iter().map(|group| wide(group, engine.team())).collect::<Result<Vec<Activations<'_>>>>()?;
        let magnitudes: Vec<Vec<i32>> = activations.iter().map(magnitudes).collect();
        let (Some(&least), Some(&most)) = (magnitudes.iter().flatten().min(), magnitudes.iter().flatten().max()) else {
            return engine.run_steady(layer, &activations, added, targets, Some(top(0)));
        };
        if least == most {
            return engine.run_steady(layer, &activations, added, targets, Some(top(least)));
        }
        (least..=most).try_for_each(|magnitude| {
            let chosen = |row: &(usize, &i32)| (*row.1 == magnitude).then_some(row.0);
            let chosen: Vec<Vec<usize>> = magnitudes
                .iter()
                .map(|rows| rows.iter().enumerate().filter_map(|row| chosen(&row)).collect())
                .collect();
            self.some_rows(engine, layer, (&activations, &chosen), added, targets, top(magnitude))
        })
    }

    /// One product of some rows of every MLP.
    fn some_rows(
        &self,
        engine: &Engine,
        layer: &Layer,
        (activations, chosen): (&[Activations<'_>], &[Vec<usize>]),
        added: Option<&[Addend<'_>]>,
        targets: &mut [Target<'_>],
        largest: f32,
    ) -> Result<()> {
        let pick = |(group, chosen): (&Activations<'_>, &Vec<usize>)| {
            let Activations::Dense(dense) = group else { unreachable!("quantised rows have no magnitudes") };
            Ok(rows::picked(dense, chosen.len(), |row| chosen[row], engine.team())?.into())
        };
        let picked = activations.iter().zip(chosen).map(pick).collect::<Result<Vec<Activations<'static>>>>()?;
        let widths = layer.shapes().iter().map(|&(n, _)| n);
        let output = targets.first().map_or(Output::F32, Target::element);
        let results =
            chosen.iter().zip(widths.clone()).map(|(chosen, n)| rows::values(output, chosen.len() * n, "results"));
        let mut results = results.collect::<Result<Vec<_>>>()?;
        let picked_rows = |plane: &[f32], (chosen, n): (&Vec<usize>, usize)| -> Vec<f32> {
            chosen.iter().flat_map(|row| &plane[row * n..][..n]).copied().collect()
        };
        let planes: Option<Vec<[Vec<f32>; 2]>> = added.map(|added| {
            let groups = added.iter().zip(chosen.iter().zip(widths.clone()));
            groups.map(|(planes, of)| planes.map(|plane| picked_rows(plane, of))).collect()
        });
        let added: Option<Vec<Addend<'_>>> =
            planes.as_ref().map(|planes| planes.iter().map(|[one, other]| [&one[..], &other[..]]).collect());
        engine.run_steady(layer, &picked, added.as_deref(), &mut Target::all(&mut results), Some(largest))?;
        for (((result, target), chosen), n) in results.iter().zip(targets).zip(chosen).zip(widths) {
            rows::scatter(result, n, target, chosen.iter().copied());
        }
        Ok(())
    }
}

/// The rows of every MLP.
fn groups<'a>(rows: &'a Dense<'_>, offsets: &[usize]) -> Result<Vec<Activations<'a>>> {
    offsets.windows(2).map(|ends| Ok(part(rows, ends[0]..ends[1])?.into())).collect()
}

/// Rows as they are, but f16 as f32: matrix units that multiply f16 do so in a way that the smallest of all tokens
/// decides.
fn wide<'a>(group: &Activations<'a>, team: &Team) -> Result<Activations<'a>> {
    match group {
        Activations::Dense(dense) if element(dense) == Output::F16 => {
            Ok(rows::widened(dense, dense.rows(), |row| (row, 1.0), team)?.into())
        }
        other => Ok(other.clone()),
    }
}

/// Powers of two that rows of one magnitude may be apart by.
const APART: i32 = 48;

/// How large each row is, roughly: its largest number lies below [`top`] and at most [`APART`] powers of two below it.
/// Ordinary rows are of magnitude 0, and so are those that are all zero.
fn magnitudes(group: &Activations<'_>) -> Vec<i32> {
    let Activations::Dense(dense) = group else { return Vec::new() };
    let mut values = vec![0f32; dense.k()];
    let magnitude = |row| {
        dense.row(row, &mut values);
        let bits = values.iter().map(|x| x.to_bits() & 0x7FFF_FFFF).max().unwrap_or(0);
        let exponent = (bits >> 23) as i32 - 127;
        if bits == 0 { 0 } else { (exponent + APART / 2).div_euclid(APART) }
    };
    (0..dense.rows()).map(magnitude).collect()
}

/// What is larger than every row of a magnitude.
fn top(magnitude: i32) -> f32 {
    2f32.powi(magnitude * APART + APART / 2).min(f32::MAX)
}
