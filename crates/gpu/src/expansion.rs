//! Tokens to be expanded, as launches of the expansion kernel.
//!
//! Groups whose tokens follow each other in memory are one run; a launch takes as many runs as the kernel has arguments
//! for.

use ptx::{Feature, Target};

use super::expand::{ExpandSpec, MOST_SEGMENTS, TokenForm, UNIT};
use super::launch::{Argument, Launch};

/// A run of elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// Where the codes or numbers are: a multiple of 4 for codes, of 16 for numbers.
    pub source: u64,
    /// Where the scales are: one byte for each 16 elements of codes; a float for each column, at a multiple of 16,
    /// where numbers are multiplied with those. Else not looked at.
    pub scales: u64,
    /// Where the (first) expanded values go, a multiple of 16.
    pub target: u64,
    /// Bytes from one part to the next, a multiple of 16. Not looked at for codes.
    pub plane: u64,
    /// What floats are multiplied by first: a power of two. Not looked at for codes, nor where each column has a
    /// factor.
    pub factor: f32,
    /// Elements of a row, a multiple of 16, of which the run has a whole number. Only looked at where each column has a
    /// factor.
    pub k: usize,
    /// How many elements, a multiple of 16.
    pub elements: usize,
}

impl Segment {
    /// The run of both, if the second begins where the first ends.
    fn joined(&self, next: &Segment, source: TokenForm) -> Option<Segment> {
        let units = (self.elements / UNIT) as u64;
        let follows = next.source == self.source + units * u64::from(source.unit_bytes())
            && next.target == self.target + 2 * self.elements as u64
            && match source {
                TokenForm::NvFp4 => next.scales == self.scales + units / 2,
                TokenForm::Single => next.plane == self.plane && next.factor == self.factor,
                TokenForm::Scaled(_) => next.plane == self.plane && next.scales == self.scales && next.k == self.k,
            };
        follows.then_some(Segment { elements: self.elements + next.elements, ..*self })
    }
}

/// The launches that expand these segments: one for every eight runs.
pub fn launches(target: Target, source: TokenForm, segments: &[Segment]) -> Vec<Launch> {
    let mut runs: Vec<Segment> = Vec::new();
    for segment in segments.iter().filter(|segment| segment.elements > 0) {
        match runs.last_mut().and_then(|last| Some((last.joined(segment, source)?, last))) {
            Some((joined, last)) => *last = joined,
            None => runs.push(*segment),
        }
    }
    let launch_of = |runs: &[Segment]| {
        let elements = runs.iter().map(|run| run.elements).sum();
        launch(ExpandSpec::new(target, source, runs.len(), elements), runs)
    };
    runs.chunks(MOST_SEGMENTS).map(launch_of).collect()
}

/// One launch over at most as many runs as the kernel has arguments for. Where there are fewer, the last is repeated
/// and begins beyond the grid.
pub fn launch(config: ExpandSpec, runs: &[Segment]) -> Launch {
    let (mut arguments, mut blocks) = (Vec::new(), 0u32);
    for index in 0..config.segments {
        let run = runs[index.min(runs.len() - 1)];
        let units = (run.elements / UNIT) as u32;
        arguments.push(Argument::Pointer(run.source));
        match config.source {
            TokenForm::NvFp4 => arguments.push(Argument::Pointer(run.scales)),
            TokenForm::Single => arguments.extend([Argument::U64(run.plane), Argument::F32(run.factor)]),
            TokenForm::Scaled(_) => {
                let row_units = Argument::U32((run.k / UNIT) as u32);
                arguments.extend([Argument::Pointer(run.scales), row_units, Argument::U64(run.plane)]);
            }
        }
        arguments.extend([Argument::Pointer(run.target), Argument::U32(units), Argument::U32(blocks)]);
        if index < runs.len() {
            blocks += config.blocks(run.elements);
        }
    }
    Launch {
        kernel: config.into(),
        grid: [blocks, 1, 1],
        arguments,
        overlapping: config.target.has(Feature::GridDependency),
        strided: false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::expand::Float;
    use super::super::launch::KernelSpec;
    use super::*;

    fn segment(source: u64, target: u64, elements: usize) -> Segment {
        Segment { source, scales: 0x9000 + source / 8, target, plane: 0, factor: 1.0, k: 16, elements }
    }

    #[test]
    fn groups_that_follow_each_other_in_memory_are_one_run() {
        let following = [segment(0x1000, 0x4000, 64), segment(0x1020, 0x4080, 0), segment(0x1020, 0x4080, 32)];
        let launches = launches(Target::Sm90a, TokenForm::NvFp4, &following);
        let [launch] = &launches[..] else { panic!("{launches:?}") };
        assert_eq!(launch.kernel, KernelSpec::from(ExpandSpec::new(Target::Sm90a, TokenForm::NvFp4, 1, 96)));
        assert_eq!(launch.arguments[3], Argument::U32(96 / UNIT as u32));
    }

    #[test]
    fn a_gap_in_the_tokens_the_scales_or_the_target_begins_another_run() {
        let first = segment(0x1000, 0x4000, 64);
        let next = segment(0x1020, 0x4080, 32);
        assert!(first.joined(&next, TokenForm::NvFp4).is_some());
        for apart in [
            Segment { source: 0x1030, ..next },
            Segment { scales: next.scales + 1, ..next },
            Segment { target: 0x4090, ..next },
        ] {
            assert_eq!(first.joined(&apart, TokenForm::NvFp4), None, "{apart:?}");
        }
        let scaled = Segment { source: 0x1100, factor: 2.0, ..next };
        assert_eq!(first.joined(&scaled, TokenForm::Single), None);
        assert!(first.joined(&Segment { factor: 1.0, ..scaled }, TokenForm::Single).is_some());
    }

    #[test]
    fn groups_with_factors_of_their_own_are_runs_of_their_own() {
        let source = TokenForm::Scaled(Float::F16);
        let first = segment(0x1000, 0x4000, 64);
        let next = Segment { source: 0x1080, scales: first.scales, ..segment(0, 0x4080, 32) };
        assert!(first.joined(&next, source).is_some());
        assert_eq!(first.joined(&Segment { scales: first.scales + 64, ..next }, source), None);
        assert_eq!(first.joined(&Segment { k: 32, ..next }, source), None);
        let launches = launches(Target::Sm90a, source, &[first]);
        let expected = [
            Argument::Pointer(first.source),
            Argument::Pointer(first.scales),
            Argument::U32(2),
            Argument::U64(first.plane),
        ];
        assert_eq!(launches[0].arguments[..4], expected);
    }

    #[test]
    fn nothing_to_expand_is_no_launch_and_nine_runs_are_two() {
        assert_eq!(launches(Target::Sm90a, TokenForm::Single, &[segment(0, 0, 0)]), []);
        let apart: Vec<Segment> = (0..9).map(|i| segment(0x10000 * i, 0x20000 * i, 16)).collect();
        assert_eq!(launches(Target::Sm90a, TokenForm::NvFp4, &apart).len(), 2);
    }
}
