//! The one tester: a backend's results against the reference, under the derived bound.
//!
//! [`Expected`] is computed once for an instance and then judges any number of results. Small problems are compared
//! element by element; large ones on a grid of rows and columns that is drawn from a seed and always contains the
//! corners.

use std::sync::Mutex;

use fastrand::Rng;
use format::{Dense, Values};

use op::bound::Bounded;
use op::reference::{Element, Reference};
use op::{Arithmetic, Gate, Output, Team};

use crate::cases::Instance;

/// Products up to which every element is compared.
const EXHAUSTIVE: usize = 1 << 30;
/// Rows and columns of the grid beyond that.
const GRID: (usize, usize) = (24, 96);
/// The community's tolerance, absolute and relative.
const COMMUNITY: f64 = 1e-3;

/// What the elements of an instance should be.
#[derive(Debug)]
pub struct Expected {
    groups: Vec<Grid>,
    gate: Gate,
    community: bool,
}

/// Some rows and columns of one group, and the elements where they meet.
#[derive(Debug)]
struct Grid {
    n: usize,
    k: usize,
    rows: Vec<usize>,
    columns: Vec<usize>,
    elements: Vec<Element>,
}

/// The worst that was found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Elements compared.
    pub compared: usize,
    /// Elements there are.
    pub elements: usize,
    /// The largest distance from the reference.
    pub max_error: f64,
    /// The largest distance as a part of what was allowed; above 1 is a failure.
    pub max_ratio: f64,
    /// The root mean square of the same: how precise the results are on the whole.
    pub rms_ratio: f64,
    /// How many were beyond what was allowed.
    pub failures: usize,
    /// The first of those.
    pub first: Option<Failure>,
}

/// An element and what it should be; the first that is not what it may be is reported.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its group.
    pub group: usize,
    /// Its row.
    pub row: usize,
    /// Its column.
    pub column: usize,
    /// What was computed.
    pub found: f64,
    /// What the reference says.
    pub expected: f64,
    /// How far apart they may be.
    pub allowed: f64,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Failure { group, row, column, found, expected, allowed } = self;
        write!(f, "group {group}, c[{row}, {column}] is {found}, should be {expected} ± {allowed:.3e}")
    }
}

impl Failure {
    /// What was found at a group's row and column, what it should be, and whether it may be that.
    pub(crate) fn judged(
        (group, row, column): (usize, usize, usize),
        found: f64,
        bounded: Bounded,
        output: Output,
    ) -> (Self, bool) {
        let (expected, allowed) = (bounded.value, bounded.allowed(output));
        (Self { group, row, column, found, expected, allowed }, bounded.accepts(found, output))
    }
}

impl Report {
    /// Whether all was as it should be.
    pub fn passed(&self) -> bool {
        self.failures == 0
    }

    /// Sums up elements that were compared, each with whether it is accepted, of so many that there are.
    pub(crate) fn of(elements: usize, compared: impl Iterator<Item = (Failure, bool)>) -> Self {
        let mut report = Report { elements, ..Report::default() };
        for (element, accepted) in compared {
            let error = (element.found - element.expected).abs();
            report.compared += 1;
            if element.found.is_finite() {
                report.max_error = report.max_error.max(error);
                report.max_ratio = report.max_ratio.max(error / element.allowed);
                report.rms_ratio += (error / element.allowed).powi(2);
            }
            if !accepted {
                report.failures += 1;
                report.first.get_or_insert(element);
            }
        }
        report.rms_ratio = (report.rms_ratio / report.compared.max(1) as f64).sqrt();
        report
    }
}

impl Expected {
    /// Computes the reference. `community` asks for the community's tolerance beside ours, on half-precision outputs.
    pub fn new(instance: &Instance, community: bool, seed: u64, team: &Team) -> Self {
        let problem = &instance.problem;
        let mut rng = Rng::with_seed(seed);
        let share = EXHAUSTIVE / problem.groups().len();
        let mut groups = Vec::new();
        for (group, shape) in problem.groups().iter().enumerate() {
            let reference = Reference::in_precision(
                &instance.activations[group],
                &instance.weights[group],
                problem.gate(),
                problem.precision(),
            );
            let all = shape.m * shape.n * shape.k <= share;
            let (rows, columns) = match all {
                true => ((0..shape.m).collect(), (0..shape.n).collect()),
                false => (draw(&mut rng, shape.m, GRID.0), draw(&mut rng, shape.n, GRID.1)),
            };
            let elements = evaluate(&reference, &rows, &columns, team);
            groups.push(Grid { n: shape.n, k: shape.k, rows, columns, elements });
        }
        Self { groups, gate: problem.gate(), community: community && problem.output() == Output::F16 }
    }

    /// Judges results of products that were added up in one way.
    pub fn check(&self, results: &[Dense<'_>], arithmetic: Arithmetic) -> Report {
        self.check_groups(results, |_| arithmetic)
    }

    /// Judges results whose groups may have been computed in different ways.
    pub fn check_groups(&self, results: &[Dense<'_>], arithmetic: impl Fn(usize) -> Arithmetic) -> Report {
        assert_eq!(results.len(), self.groups.len(), "one result per group");
        let compared = self.groups.iter().zip(results).enumerate().flat_map(|(group, (grid, result))| {
            let arithmetic = arithmetic(group);
            let places = grid.rows.iter().flat_map(|&row| grid.columns.iter().map(move |&column| (row, column)));
            places.zip(&grid.elements).map(move |((row, column), element)| {
                let (found, output) = value(result.values(), row * grid.n + column);
                let bounded = Bounded::new(element, self.gate, grid.k, arithmetic);
                let community = !self.community || within_community(found, element.value);
                let (failure, accepted) = Failure::judged((group, row, column), found, bounded, output);
                (failure, accepted && community)
            })
        });
        Report::of(results.iter().map(|result| result.rows() * result.k()).sum(), compared)
    }
}

/// Whether a half-precision value is within the community's tolerance, or the reference is beyond half precision.
fn within_community(found: f64, expected: f64) -> bool {
    expected.abs() > f64::from(half::f16::MAX) || (found - expected).abs() <= COMMUNITY + COMMUNITY * expected.abs()
}

/// The elements where these rows and columns meet, row by row. Threads share the columns, of which there are many even
/// where there is one token.
fn evaluate(reference: &Reference<'_, '_>, rows: &[usize], columns: &[usize], team: &Team) -> Vec<Element> {
    let tokens: Vec<_> = rows.iter().map(|&row| reference.token(row)).collect();
    let done = Mutex::new(Vec::with_capacity(columns.len()));
    let next = Mutex::new(columns.iter().enumerate());
    team.run(|| {
        while let Some((index, &column)) = next.lock().ok().and_then(|mut columns| columns.next()) {
            let column = reference.column(column);
            let elements: Vec<Element> = tokens.iter().map(|token| reference.element(token, &column)).collect();
            if let Ok(mut done) = done.lock() {
                done.push((index, elements));
            }
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(index, _)| *index);
    (0..rows.len()).flat_map(|row| done.iter().map(move |(_, column)| column[row])).collect()
}

/// Some of `0..length` in order: the first, the last, and a draw of the others.
fn draw(rng: &mut Rng, length: usize, count: usize) -> Vec<usize> {
    let mut drawn: Vec<usize> = (1..length.saturating_sub(1)).collect();
    rng.shuffle(&mut drawn);
    drawn.truncate(count.saturating_sub(2));
    drawn.extend([0, length.saturating_sub(1)]);
    drawn.retain(|&index| index < length);
    drawn.sort_unstable();
    drawn.dedup();
    drawn
}

fn value(values: &Values<'_>, index: usize) -> (f64, Output) {
    match values {
        Values::F16(c) => (c[index].to_f64(), Output::F16),
        Values::BF16(c) => (c[index].to_f64(), Output::BF16),
        Values::F32(c) => (c[index].into(), Output::F32),
    }
}

/// Results that are not a number anywhere, so that an element nobody writes is found.
pub fn poisoned(instance: &Instance) -> Vec<Values<'static>> {
    let poison = |elements| match instance.problem.output() {
        Output::F16 => vec![half::f16::NAN; elements].into(),
        Output::BF16 => vec![half::bf16::NAN; elements].into(),
        Output::F32 => vec![f32::NAN; elements].into(),
    };
    instance.problem.groups().iter().map(|s| poison(s.m * s.n)).collect()
}
