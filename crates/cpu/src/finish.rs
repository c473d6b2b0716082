//! From sums to C: scaled, biased, gated, rounded and stored.

use std::ops::Range;

use half::f16;
use op::Gate;

use super::pack::COLUMNS;
use super::scale::Scale;
use super::sums::{Lanes, MatrixSums};
use super::target::SharedTarget;

/// A finished tile on its way to C: sums in, scaled, gated and rounded values out.
pub(super) struct Finish<'a> {
    pub gate: MatrixSums<'a>,
    /// The same as `gate` where the gate takes one matrix; not looked at then.
    pub up: MatrixSums<'a>,
    pub function: Gate,
    /// What gate sums and up sums are multiplied with.
    pub alpha: [f64; 2],
    /// What is then added to them, from the tile's first column on, in whole panels.
    pub bias: [Option<&'a [f32]>; 2],
    /// What is added last, for every row and column of C.
    pub addend: [Option<&'a [f32]>; 2],
    /// Columns of C.
    pub width: usize,
    /// Prepared rows per token.
    pub parts: usize,
    pub tokens: Range<usize>,
    pub columns: Range<usize>,
    pub out: &'a SharedTarget<'a>,
    /// Room for a row of the tile, where rows are to be finished before they are written.
    pub staging: Option<&'a mut [Lanes]>,
}

impl Finish<'_> {
    /// Scales, gates, rounds and stores every token of the tile, 16 columns at a time: panel after panel, or row after
    /// row where there is room to gather one. Inlined into each instruction set's own function, with its way to round
    /// to half precision, so that the loops become its vector code.
    #[inline(always)]
    pub(super) fn write(mut self, half: impl Fn(&[f32; COLUMNS]) -> [f16; COLUMNS]) {
        let scales = self.alpha.map(Scale::new);
        let panels = self.columns.len().div_ceil(COLUMNS);
        match self.staging.take() {
            None => {
                for panel in 0..panels {
                    let sums = [self.gate.panel(panel), self.up.panel(panel)];
                    for index in 0..self.tokens.len() {
                        self.store(index, panel, &self.result(&scales, [index, panel], sums), &half);
                    }
                }
            }
            Some(row) => {
                for index in 0..self.tokens.len() {
                    for (panel, lanes) in row[..panels].iter_mut().enumerate() {
                        lanes.0 = self.result(&scales, [index, panel], [self.gate.panel(panel), self.up.panel(panel)]);
                    }
                    for (panel, lanes) in row[..panels].iter().enumerate() {
                        self.store(index, panel, &lanes.0, &half);
                    }
                }
            }
        }
    }

    /// A token's results in one panel, of its gate sums and its up sums.
    #[inline(always)]
    fn result(&self, scales: &[Scale; 2], [index, panel]: [usize; 2], [gate, up]: [&[Lanes]; 2]) -> [f32; COLUMNS] {
        let mut result = self.biased(scales, 0, [index, panel], gate);
        let up = match self.function.matrices() {
            2 => self.biased(scales, 1, [index, panel], up),
            _ => [0.0; COLUMNS],
        };
        self.function.apply_rows(&mut result, &up);
        result
    }

    /// One matrix's sums of a token and a panel, scaled and biased. No closure: those are compiled by themselves,
    /// without the instruction set's vectors.
    #[inline(always)]
    fn biased(&self, scales: &[Scale; 2], matrix: usize, [index, panel]: [usize; 2], sums: &[Lanes]) -> [f32; COLUMNS] {
        let mut values = scales[matrix].apply(&sums[index * self.parts..(index + 1) * self.parts]);
        if let Some(bias) = self.bias[matrix] {
            let bias = &bias[panel * COLUMNS..][..COLUMNS];
            values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
        if let Some(addend) = self.addend[matrix] {
            let first = self.columns.start + panel * COLUMNS;
            let row = &addend[(self.tokens.start + index) * self.width..][..self.width];
            let addend = &row[first..self.columns.end.min(first + COLUMNS)];
            values.iter_mut().zip(addend).for_each(|(value, addend)| *value += addend);
        }
        values
    }

    #[inline(always)]
    fn store(
        &self,
        index: usize,
        panel: usize,
        result: &[f32; COLUMNS],
        half: &impl Fn(&[f32; COLUMNS]) -> [f16; COLUMNS],
    ) {
        let start = self.columns.start + panel * COLUMNS;
        let columns = start..self.columns.end.min(start + COLUMNS);
        // SAFETY: the schedule cuts each group into tiles that do not overlap and hands each to one thread, and this is
        // a row of this tile, with columns of this tile only.
        unsafe { self.out.store(self.tokens.start + index, columns, result, half) };
    }
}
