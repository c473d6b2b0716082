//! What the lanes of a warp do together.

use ptx::instr::{BinaryOp, FloatMode, ReduceOp, ShuffleMode, VoteMode, Warp as WarpOp};
use ptx::{Address, DataType, Operand, RegId, Space};

use super::{Exec, Flow, SharedSpan};
use crate::arith;
use crate::error::FaultKind;
use crate::lanes::{FULL, Lanes, lanes};
use crate::limits::Rules;
use crate::memory::SharedMemory;
use crate::race::{Proxy, RecordId};

impl Exec<'_, '_> {
    pub(crate) fn collective(&mut self, op: &WarpOp) -> Result<Flow, FaultKind> {
        let (masks, awaited) = match op {
            WarpOp::ActiveMask { dst } => {
                self.set(*dst, &[self.mask.into(); 32]);
                return Ok(Flow::Next);
            }
            // Lanes that have exited are not waited for.
            WarpOp::Shuffle { mask, .. }
            | WarpOp::Vote { mask, .. }
            | WarpOp::Ballot { mask, .. }
            | WarpOp::Reduce { mask, .. }
            | WarpOp::Match { mask, .. }
            | WarpOp::Sync { mask } => (self.warp.value(*mask), self.warp.live),
            WarpOp::Elect { mask, .. } => (self.warp.value(*mask), FULL),
            WarpOp::LoadMatrix { .. } | WarpOp::StoreMatrix { .. } => ([FULL.into(); 32], FULL),
        };
        // Each lane says with whom it does this, and those say the same; the parts of a warp may do it apart.
        let all = lanes(self.mask).fold(0, |all, lane| all | masks[lane] as u32);
        if let Some(wait) = self.gather(all & awaited)? {
            return Ok(wait);
        }
        let here = self.mask;
        let mut left = here;
        while left != 0 {
            let mask = masks[left.trailing_zeros() as usize];
            self.mask = lanes(left).filter(|&lane| masks[lane] == mask).fold(0, |mask, lane| mask | 1 << lane);
            left &= !self.mask;
            let wanted = mask as u32 & awaited;
            if self.mask != wanted {
                return Err(FaultKind::Divergence { wanted, found: self.mask });
            }
            self.together(op)?;
        }
        self.mask = here;
        Ok(Flow::Next)
    }

    /// What lanes that are all here do together.
    fn together(&mut self, op: &WarpOp) -> Result<(), FaultKind> {
        let mask = self.mask;
        match op {
            WarpOp::Shuffle { mode, dst, valid, a, lane, clamp, .. } => {
                self.shuffle(*mode, *dst, *valid, *a, *lane, *clamp)?;
                // The ISA does not say so; cooperative groups hand on what one lane has acquired by a shuffle.
                if self.core.rules == Rules::Practice {
                    self.warp.meet(mask);
                }
            }
            WarpOp::Vote { mode, dst, pred, .. } => {
                let holds = self.warp.holds(*pred) & mask;
                let answer = match mode {
                    VoteMode::All => holds == mask,
                    VoteMode::Any => holds != 0,
                    VoteMode::Uniform => holds == mask || holds == 0,
                };
                self.warp.set_predicate(*dst, mask, if answer { FULL } else { 0 });
            }
            WarpOp::Ballot { dst, pred, .. } => {
                let holds = self.warp.holds(*pred) & mask;
                self.set(*dst, &[holds.into(); 32]);
            }
            WarpOp::Elect { leader: dst, pred, .. } => {
                // The ISA elects the same lane of a mask every time, and does not say which. CUTLASS's pipelines count
                // on the first.
                let leader = match self.core.rules {
                    Rules::Practice => mask.trailing_zeros() as usize,
                    Rules::Letter => self.core.chooser.elected(mask),
                };
                dst.iter().for_each(|dst| self.warp.set(*dst, mask, &[leader as u64; 32]));
                self.warp.set_predicate(*pred, mask, 1 << leader);
            }
            WarpOp::Reduce { op, ty, dst, a, .. } => {
                let a = self.warp.get(*a);
                let total = lanes(mask).map(|lane| a[lane] as u32).reduce(|x, y| reduce(*op, *ty, x, y));
                self.set(*dst, &[total.unwrap_or(0).into(); 32]);
            }
            WarpOp::Match { all, dst, same, a, .. } => {
                let a = self.warp.value(*a);
                let alike =
                    |value: u64| lanes(mask).filter(|&lane| a[lane] == value).fold(0, |all, lane| all | 1u32 << lane);
                let groups = a.map(|value| u64::from(alike(value)));
                let found =
                    if *all { groups.map(|group| if group == u64::from(mask) { group } else { 0 }) } else { groups };
                self.set(*dst, &found);
                if let Some(same) = same {
                    self.set(*same, &groups.map(|group| u64::from(group == u64::from(mask))));
                }
            }
            WarpOp::Sync { .. } => self.warp.meet(mask),
            WarpOp::LoadMatrix { transpose, dsts, addr } => self.load_matrix(*transpose, dsts, *addr)?,
            WarpOp::StoreMatrix { transpose, srcs, addr } => self.store_matrix(*transpose, srcs, *addr)?,
            WarpOp::ActiveMask { .. } => {}
        }
        Ok(())
    }

    fn shuffle(
        &mut self,
        mode: ShuffleMode,
        dst: RegId,
        valid: Option<RegId>,
        a: RegId,
        lane: Operand,
        clamp: Operand,
    ) -> Result<(), FaultKind> {
        let (a_reg, a, by, clamps) = (a, self.warp.get(a), self.warp.value(lane), self.warp.value(clamp));
        let source = |lane: usize| -> (usize, bool) {
            let (segment, clamp) = (clamps[lane] as u32 >> 8 & 31, clamps[lane] as u32 & 31);
            let (lane, by) = (lane as u32, by[lane] as u32 & 31);
            let (low, high) = (lane & segment, lane & segment | clamp & !segment);
            let (from, inside) = match mode {
                ShuffleMode::Index => {
                    let from = low | by & !segment;
                    (from, from <= high)
                }
                ShuffleMode::Butterfly => (lane ^ by, lane ^ by <= high),
                ShuffleMode::Up => (lane.wrapping_sub(by), lane.wrapping_sub(by).cast_signed() >= high.cast_signed()),
                ShuffleMode::Down => (lane + by, lane + by <= high),
            };
            (if inside { from } else { lane } as usize, inside)
        };
        if let Some(lane) = lanes(self.mask).find(|&lane| self.mask >> source(lane).0 & 1 == 0) {
            let (what, found) = ("the lane a shuffle reads from", source(lane).0 as u64);
            return Err(FaultKind::BadOperand { what, found, wanted: "a lane that takes part" });
        }
        let tainted = self.warp.tainted(a_reg);
        let tainted = lanes(self.mask).filter(|&lane| tainted >> source(lane).0 & 1 == 1).fold(0, |m, l| m | 1 << l);
        let origin = self.warp.origin(a_reg);
        let values: Lanes = std::array::from_fn(|lane| a[source(lane).0 & 31]);
        let inside: Lanes = std::array::from_fn(|lane| source(lane).1.into());
        self.set(dst, &values);
        self.warp.taint(dst, tainted, origin);
        if let Some(valid) = valid {
            self.set(valid, &inside);
        }
        Ok(())
    }

    /// Where the rows of `count` matrices begin in the block's shared memory, checked and noted as accesses of the
    /// whole warp.
    fn rows(&mut self, addr: Address, count: usize, write: bool) -> Result<[usize; 32], FaultKind> {
        let (addresses, record) = (self.addresses(addr), self.record(None));
        let noted = self.note_rows(&addresses[..8 * count], write, record);
        let mut rows = [0; 32];
        for (row, &address) in rows.iter_mut().zip(&addresses[..8 * count]) {
            if !address.is_multiple_of(16) {
                return Err(FaultKind::Misaligned { what: "a row of a matrix", address, wanted: 16 });
            }
            let span = self.shared_span(Space::Shared, address, 16)?;
            if noted.is_none() {
                self.touch_shared(span, 16, write, None, record)?;
            }
            *row = span.offset as usize;
        }
        // No lane goes on before all have executed it (`.sync`). In practice what was read may then be overwritten by
        // any of them: CUTLASS's epilogues store matrices where they have loaded others.
        if !write && self.core.rules == Rules::Practice {
            let (slot, tick) = (self.warp.slot, self.warp.tick);
            self.warp.learn(FULL, |known| known.executed.raise_lanes(slot, FULL, tick));
            self.warp.tick += 1;
        }
        self.core.profile.shared_access(FULL >> (32 - 8 * count), &addresses, 16);
        let bytes = 128 * count as u64;
        if write {
            self.core.profile.shared_written += bytes;
        } else {
            self.core.profile.shared_read += bytes;
        }
        Ok(rows)
    }

    /// Notes accesses to rows, if there is nothing to say against any of them.
    fn note_rows(&mut self, addresses: &[u64], write: bool, record: RecordId) -> Option<()> {
        let (index, rules) = (self.cluster.index, self.core.rules);
        let mut who = super::observer(self.warp, index, None, record, Proxy::Generic, (false, rules));
        let start = u64::from(SharedMemory::address(self.rank, 0));
        let shared = &mut self.cluster.blocks[self.rank].shared;
        let mut rows = [0; 32];
        for (row, address) in rows.iter_mut().zip(addresses) {
            let offset = u32::try_from(address.checked_sub(start)?).ok()?;
            shared.is_data(offset, 16).then_some(())?;
            *row = offset as usize;
        }
        shared.shadow.note_pieces(&self.core.log, &mut who, &rows[..addresses.len()], 16, write).ok()
    }

    fn load_matrix(&mut self, transpose: bool, dsts: &[RegId], addr: Address) -> Result<(), FaultKind> {
        let rows = self.rows(addr, dsts.len(), false)?;
        for (matrix, dst) in rows.chunks_exact(8).zip(dsts) {
            let data = &self.cluster.blocks[self.rank].shared.data;
            let mut elements = [[0u16; 8]; 8];
            for (row, &offset) in elements.iter_mut().zip(matrix) {
                for (element, pair) in row.iter_mut().zip(data[offset..offset + 16].chunks_exact(2)) {
                    *element = u16::from_le_bytes([pair[0], pair[1]]);
                }
            }
            let values = std::array::from_fn(|lane| {
                let (row, column) = (lane / 4, 2 * (lane % 4));
                let [low, high] = match transpose {
                    false => [elements[row][column], elements[row][column + 1]],
                    true => [elements[column][row], elements[column + 1][row]],
                };
                u32::from(low) | u32::from(high) << 16
            });
            self.warp.set_words(*dst, self.mask, &values);
            self.taint_loaded(transpose, *dst, matrix);
        }
        Ok(())
    }

    /// The lanes that a row of a matrix goes to have what was never written, if some of the row was not.
    fn taint_loaded(&mut self, transpose: bool, dst: RegId, matrix: &[usize]) {
        for (row, &offset) in matrix.iter().enumerate() {
            let span = SharedSpan { block: self.rank, offset: offset as u32 };
            if self.is_unwritten(span, 16) {
                self.note_origin(|exec| exec.unwritten(span, 16));
                let mask = if transpose { 0x1111_1111 << (row / 2) } else { 0xf << (4 * row) };
                self.warp.taint(dst, mask, self.pc);
            }
        }
    }

    fn store_matrix(&mut self, transpose: bool, srcs: &[RegId], addr: Address) -> Result<(), FaultKind> {
        let rows = self.rows(addr, srcs.len(), true)?;
        for (matrix, src) in rows.chunks_exact(8).zip(srcs) {
            let (values, tainted) = (self.warp.words(*src), self.warp.tainted(*src));
            for (row, &offset) in matrix.iter().enumerate() {
                let shared = &mut self.cluster.blocks[self.rank].shared;
                for column in 0..8 {
                    let (r, c) = if transpose { (column, row) } else { (row, column) };
                    let bits = (values[4 * r + c / 2] >> (16 * (c % 2))) as u16;
                    shared.data[offset + 2 * column..offset + 2 * column + 2].copy_from_slice(&bits.to_le_bytes());
                }
                shared.written.set(offset, 16);
                for column in (0..8).filter(|_| tainted != 0) {
                    let (r, c) = if transpose { (column, row) } else { (row, column) };
                    if tainted >> (4 * r + c / 2) & 1 == 1 {
                        shared.written.clear(offset + 2 * column, 2);
                    }
                }
            }
        }
        Ok(())
    }
}

fn reduce(op: ReduceOp, ty: DataType, x: u32, y: u32) -> u32 {
    let signed = ty == DataType::S32;
    if ty == DataType::F32 {
        let op = match op {
            ReduceOp::Min => BinaryOp::Min,
            ReduceOp::MinNan => BinaryOp::MinNan,
            ReduceOp::MaxNan => BinaryOp::MaxNan,
            _ => BinaryOp::Max,
        };
        return arith::binary_words(op, ty, FloatMode::PLAIN, &[x; 32], &[y; 32])[0];
    }
    match op {
        ReduceOp::Add => x.wrapping_add(y),
        ReduceOp::Min if signed => x.cast_signed().min(y.cast_signed()).cast_unsigned(),
        ReduceOp::Max if signed => x.cast_signed().max(y.cast_signed()).cast_unsigned(),
        ReduceOp::Min | ReduceOp::MinNan => x.min(y),
        ReduceOp::Max | ReduceOp::MaxNan => x.max(y),
        ReduceOp::And => x & y,
        ReduceOp::Or => x | y,
        ReduceOp::Xor => x ^ y,
    }
}
