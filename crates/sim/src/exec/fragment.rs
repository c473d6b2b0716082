//! Fragments: matrices between memory and the lanes of a warp, and their multiplication.

use ptx::instr::{Fragment, Fragments, MatrixOrder};
use ptx::{Address, Operand, RegId, Space};

use super::memory::Spot;
use super::{Exec, Flow};
use crate::error::FaultKind;
use crate::fragment::{Matrix, multiply};
use crate::lanes::{FULL, lanes};
use crate::limits::Rules;
use crate::memory::SharedMemory;
use crate::race::RecordId;

/// Rows or columns are aligned to this in published kernels; the ISA asks for the size of the fragment.
const ROW_ALIGNMENT: u64 = 16;

/// A matrix in memory.
struct Stored {
    fragment: Fragment,
    space: Space,
    /// Its first byte, and the bytes from one row, or column, to the next.
    start: u64,
    stride: u64,
}

impl Stored {
    fn element_bytes(&self) -> u64 {
        u64::from(self.fragment.ty.bits() / 8)
    }

    fn address(&self, (row, column): (usize, usize)) -> u64 {
        let (row, column) = (row as u64, column as u64);
        let (line, along) = match self.fragment.order {
            Some(MatrixOrder::Columns) => (column, row),
            _ => (row, column),
        };
        self.start.wrapping_add(line.wrapping_mul(self.stride)).wrapping_add(along * self.element_bytes())
    }

    /// The elements of a lane in runs of neighbours: the first of a run, how many there are, and where it begins.
    fn runs(&self, lane: usize) -> Vec<(usize, usize, u64)> {
        let mut runs: Vec<(usize, usize, u64)> = Vec::new();
        for element in 0..self.fragment.elements() {
            let address = self.address(self.fragment.place(lane, element));
            match runs.last_mut() {
                Some((_, count, start)) if *start + *count as u64 * self.element_bytes() == address => *count += 1,
                _ => runs.push((element, 1, address)),
            }
        }
        runs
    }
}

impl Exec<'_, '_> {
    pub(crate) fn fragments(&mut self, op: &Fragments) -> Result<Flow, FaultKind> {
        if let Some(wait) = self.gather(FULL)? {
            return Ok(wait);
        }
        match op {
            Fragments::Load { fragment, space, dsts, addr, stride } => {
                let stored = self.stored(*fragment, *space, *addr, *stride)?;
                self.load_fragment(&stored, dsts)?;
            }
            Fragments::Store { fragment, space, srcs, addr, stride } => {
                let stored = self.stored(*fragment, *space, *addr, *stride)?;
                if stored.space == Space::Global {
                    self.check_stored(srcs)?;
                }
                self.store_fragment(&stored, srcs)?;
            }
            Fragments::Multiply { saturate, d, a, b, c } => {
                self.multiply_fragments(*saturate, d, [a, b, c]);
            }
        }
        Ok(Flow::Next)
    }

    /// Where a matrix is: all lanes must say the same, and rows begin at multiples of what a lane holds.
    fn stored(
        &self,
        fragment: Fragment,
        space: Space,
        addr: Address,
        stride: Option<Operand>,
    ) -> Result<Stored, FaultKind> {
        let addresses = self.addresses(addr);
        if lanes(self.mask).any(|lane| addresses[lane] != addresses[0]) {
            return Err(FaultKind::NotUniform { what: "the address of a matrix" });
        }
        let [rows, columns] = fragment.sides();
        let along = if fragment.order == Some(MatrixOrder::Columns) { rows } else { columns };
        let stride = match stride {
            Some(stride) => self.uniform("the stride of a matrix", stride)?,
            None => along as u64,
        };
        let stride = stride * u64::from(fragment.ty.bits() / 8);
        let (space, start) = match (space, SharedMemory::of_generic(addresses[0])) {
            (Space::Generic, Some(near)) => (Space::Cluster, near.into()),
            (Space::Generic, None) => (Space::Global, addresses[0]),
            (space, _) => (space, addresses[0]),
        };
        let whole = fragment.registers() as u64 * u64::from(fragment.ty.bank().bits() / 8);
        let wanted = match self.core.rules {
            Rules::Practice => whole.min(ROW_ALIGNMENT),
            Rules::Letter => whole,
        };
        for (what, address) in [("a matrix", start), ("the second row or column of a matrix", start + stride)] {
            if !address.is_multiple_of(wanted) {
                return Err(FaultKind::Misaligned { what, address, wanted });
            }
        }
        Ok(Stored { fragment, space, start, stride })
    }

    /// Checks and notes an access to a run of elements.
    fn touch_run(
        &mut self,
        space: Space,
        address: u64,
        bytes: u32,
        write: bool,
        lane: usize,
        record: RecordId,
    ) -> Result<Spot, FaultKind> {
        if space == Space::Global {
            let span = self.touch_global(address, bytes.into(), write, lane, record)?;
            return Ok(Spot::Global { buffer: span.buffer, offset: span.offset, address });
        }
        let span = self.shared_span(space, address, bytes)?;
        self.touch_shared(span, bytes, write, Some(lane), record)?;
        Ok(Spot::Shared(span))
    }

    fn count_fragment(&mut self, stored: &Stored, write: bool) {
        let bytes = stored.element_bytes() * 32 * stored.fragment.elements() as u64;
        let profile = &mut self.core.profile;
        *match (stored.space, write) {
            (Space::Global, false) => &mut profile.global_read,
            (Space::Global, true) => &mut profile.global_written,
            (_, false) => &mut profile.shared_read,
            (_, true) => &mut profile.shared_written,
        } += bytes;
    }

    fn load_fragment(&mut self, stored: &Stored, dsts: &[RegId]) -> Result<(), FaultKind> {
        let record = self.record(None);
        let (size, packed) = (stored.element_bytes() as usize, stored.fragment.ty.packed());
        let (mut values, mut tainted) = (vec![[0u64; 32]; dsts.len()], vec![0u32; dsts.len()]);
        for lane in lanes(FULL) {
            for (first, count, address) in stored.runs(lane) {
                let spot = self.touch_run(stored.space, address, (count * size) as u32, false, lane, record)?;
                let lacks = self.lacks(spot, 0, (count * size) as u32);
                if lacks {
                    self.note_origin(|exec| exec.unwritten_at(spot, 0, (count * size) as u32));
                }
                for at in 0..count {
                    let (register, place) = ((first + at) / packed, (first + at) % packed);
                    let bytes = &self.bytes(spot, count * size)[at * size..(at + 1) * size];
                    let bits = bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
                    values[register][lane] |= bits << (8 * size * place);
                    if lacks && self.lacks(spot, (at * size) as u32, size as u32) {
                        tainted[register] |= 1 << lane;
                    }
                }
            }
        }
        for ((dst, values), tainted) in dsts.iter().zip(&values).zip(tainted) {
            self.set(*dst, values);
            self.warp.taint(*dst, tainted, self.pc);
        }
        self.count_fragment(stored, false);
        Ok(())
    }

    fn store_fragment(&mut self, stored: &Stored, srcs: &[RegId]) -> Result<(), FaultKind> {
        let record = self.record(None);
        let (size, packed) = (stored.element_bytes() as usize, stored.fragment.ty.packed());
        for lane in lanes(FULL) {
            for (first, count, address) in stored.runs(lane) {
                let element = |at: usize| {
                    let bits = self.warp.get_lane(srcs[at / packed], lane) >> (8 * size * (at % packed));
                    bits.to_le_bytes().into_iter().take(size)
                };
                let data: Vec<u8> = (first..first + count).flat_map(element).collect();
                let spot = self.touch_run(stored.space, address, data.len() as u32, true, lane, record)?;
                self.put(spot, &data);
                let Spot::Shared(span) = spot else { continue };
                for at in (0..count).filter(|at| self.warp.tainted(srcs[(first + at) / packed]) >> lane & 1 == 1) {
                    let written = &mut self.cluster.blocks[span.block].shared.written;
                    written.clear(span.offset as usize + at * size, size);
                }
            }
        }
        self.count_fragment(stored, true);
        Ok(())
    }

    fn multiply_fragments(
        &mut self,
        saturate: bool,
        (fragment, dsts): &(Fragment, Vec<RegId>),
        factors: [&(Fragment, Vec<RegId>); 3],
    ) {
        let matrix = |(fragment, regs): &(Fragment, Vec<RegId>)| {
            let (packed, bits) = (fragment.ty.packed(), fragment.ty.bits());
            let words: Vec<_> = regs.iter().map(|reg| self.warp.get(*reg)).collect();
            Matrix::gather(*fragment, |lane, element| {
                words[element / packed][lane] >> (bits as usize * (element % packed)) & u64::MAX >> (64 - bits)
            })
        };
        let [a, b, c] = factors.map(matrix);
        let [of_a, of_b, of_c] = factors.map(|(fragment, _)| fragment.ty);
        let sums = multiply([fragment.ty, of_a, of_b, of_c], [&a, &b, &c], saturate);
        let tainted = self.unknown_sums(fragment, factors);
        let (packed, bits) = (fragment.ty.packed(), fragment.ty.bits() as usize);
        for (register, dst) in dsts.iter().enumerate() {
            let places = |lane: usize| (0..packed).map(move |at| fragment.place(lane, register * packed + at));
            let values = std::array::from_fn(|lane| {
                let elements = places(lane).map(|place| sums.at(place)).enumerate();
                elements.fold(0, |word, (at, element)| word | element << (bits * at))
            });
            self.set(*dst, &values);
            if let Some((unknown, origin)) = &tainted {
                let lanes = (0..32).filter(|lane| places(*lane).any(|place| unknown.at(place)));
                self.warp.taint(*dst, lanes.fold(0, |mask, lane| mask | 1 << lane), *origin);
            }
        }
        // What each sum comes of has been told; the warp's common rule would tell it of all alike.
        self.spread = 0;
        self.core.profile.tensor_macs += fragment.shape.iter().map(|side| u64::from(*side)).product::<u64>();
    }

    /// The sums into which something went that was never written, and the load that read that.
    fn unknown_sums(&self, sums: &Fragment, factors: [&(Fragment, Vec<RegId>); 3]) -> Option<(Matrix<bool>, u32)> {
        let regs = || factors.into_iter().flat_map(|(_, regs)| regs);
        let origin = self.warp.origin(*regs().find(|reg| self.warp.tainted(**reg) != 0)?);
        let unknown = |(fragment, regs): &(Fragment, Vec<RegId>)| {
            let packed = fragment.ty.packed();
            let held = |lane, element: usize| self.warp.tainted(regs[element / packed]) >> lane & 1 == 1;
            Matrix::gather(*fragment, held)
        };
        let ([a, b, c], depth) = (factors.map(unknown), sums.shape[2] as usize);
        let missing = |(row, column)| c.at((row, column)) || (0..depth).any(|k| a.at((row, k)) || b.at((k, column)));
        Some((Matrix::gather(*sums, |lane, element| missing(sums.place(lane, element))), origin))
    }
}
