//! Multiplications by a warp. They are done at once: what they read is in registers, and so is what they write.

use ptx::RegId;
use ptx::instr::Mma;

use super::{Exec, Flow};
use crate::error::FaultKind;
use crate::lanes::{FULL, Words};
use crate::mma::{self, COLUMNS, ROWS};
use crate::warp::Warp;

/// What a multiplication leaves in its accumulators.
pub(crate) fn sums(warp: &Warp, op: &Mma) -> [Words; 4] {
    let (Mma::Dense { d, a, b, .. } | Mma::BlockScaled { d, a, b, .. }) = op;
    let (fragment_a, fragment_b) = (a.map(|reg| warp.multiplied(reg)), b.map(|reg| warp.multiplied(reg)));
    let mut sums = mma::sums(d.map(|reg| warp.multiplied(reg)));
    match op {
        Mma::Dense { element, saturate, .. } if element.is_integer() => {
            let (before, mut products) = (d.map(|reg| *warp.multiplied(reg)), [[0.0; COLUMNS]; ROWS]);
            mma::multiply_dense(&mut products, *element, fragment_a, fragment_b);
            return mma::add_integers(before, &products, *saturate);
        }
        Mma::Dense { element, .. } => mma::multiply_dense(&mut sums, *element, fragment_a, fragment_b),
        Mma::BlockScaled { scaling, scale_a, lanes_a, byte_a, scale_b, lane_b, byte_b, .. } => {
            let [of_a, of_b] = [*scale_a, *scale_b].map(|reg| warp.multiplied(reg));
            let scales = [(of_a, *lanes_a, *byte_a), (of_b, *lane_b, *byte_b)];
            mma::multiply_scaled(&mut sums, *scaling, fragment_a, fragment_b, scales);
        }
    }
    mma::fragment(&sums)
}

impl Exec<'_, '_> {
    pub(crate) fn mma(&mut self, op: &Mma) -> Result<Flow, FaultKind> {
        if let Some(wait) = self.gather(FULL)? {
            return Ok(wait);
        }
        let (d, depth) = match op {
            Mma::Dense { d, element, .. } => (d, element.depth() as usize),
            Mma::BlockScaled { d, scaling, .. } => (d, scaling.depth() as usize),
        };
        let missing = self.missing(op);
        for (index, (reg, values)) in d.iter().zip(sums(self.warp, op)).enumerate() {
            let before = self.warp.tainted(*reg);
            self.warp.set_words(*reg, FULL, &values);
            if let Some((rows, columns, origin)) = missing {
                let tainted = (0..32).filter(|lane| {
                    let (row, column) = mma::place(*lane, index);
                    rows >> row & 1 == 1 || columns >> column & 1 == 1
                });
                let mask = tainted.fold(before, |mask, lane| mask | 1 << lane);
                self.warp.taint(*reg, mask, origin);
            }
        }
        // What each accumulator comes of has been told; the warp's common rule would tell it of all four alike.
        self.spread = 0;
        self.core.profile.tensor_macs += (ROWS * COLUMNS * depth) as u64;
        Ok(Flow::Next)
    }

    /// The rows of A and the columns of B of which a part was never written, one bit each, and the load that read such
    /// a part; nothing where every operand was written.
    fn missing(&self, op: &Mma) -> Option<(u32, u32, u32)> {
        let (Mma::Dense { d, a, b, .. } | Mma::BlockScaled { d, a, b, .. }) = op;
        let (mut rows, mut columns, mut origin) = (0u32, 0u32, None);
        let mut note = |reg: RegId, places: &mut u32, place: &dyn Fn(usize) -> usize| {
            for lane in crate::lanes::lanes(self.warp.tainted(reg)) {
                *places |= 1 << place(lane);
                origin = Some(self.warp.origin(reg));
            }
        };
        for (index, reg) in a.iter().enumerate() {
            note(*reg, &mut rows, &|lane| lane / 4 + 8 * (index % 2));
        }
        for reg in b {
            note(*reg, &mut columns, &|lane| lane / 4);
        }
        if let Mma::BlockScaled { scale_a, lanes_a, scale_b, lane_b, .. } = op {
            // Lanes that give no scales may hold anything.
            let [from_a, from_b] = [*lanes_a as usize, *lane_b as usize];
            for lane in crate::lanes::lanes(self.warp.tainted(*scale_a)).filter(|lane| lane % 4 / 2 == from_a) {
                rows |= 1 << (lane / 4 + 8 * (lane % 2));
                origin = Some(self.warp.origin(*scale_a));
            }
            for lane in crate::lanes::lanes(self.warp.tainted(*scale_b)).filter(|lane| lane % 4 == from_b) {
                columns |= 1 << (lane / 4);
                origin = Some(self.warp.origin(*scale_b));
            }
        }
        let sums = d.iter().find(|reg| self.warp.tainted(**reg) != 0).map(|reg| self.warp.origin(*reg));
        origin.or(sums).map(|origin| (rows, columns, origin))
    }
}
