//! Work in flight, as it is completed: copies land, products are added up, and whoever waits is told.

use std::sync::Arc;

use ptx::RegId;

use crate::barrier::Carry;
use crate::blocks::{Block, Cluster, Core};
use crate::error::FaultKind;
use crate::exec::settle_signals;
use crate::flight::{CopySource, Incoming, Job, Mma, Outgoing, Part, Pieces, TensorOp, Work};
use crate::lanes::lanes;
use crate::memory::SharedMemory;
use crate::mma;
use crate::tensor_core::{self, Order};
use crate::tensor_memory::{self, Dense};

impl Core<'_> {
    /// Completes a piece of work.
    pub(crate) fn complete(&mut self, cluster: &mut Cluster, job: Job) -> Result<(), FaultKind> {
        let Job { block, warp, lanes, pc, work } = job;
        match work {
            Work::Incoming(copy) => self.deliver(cluster, block, &copy),
            Work::ByThreads(copy) => {
                self.place(cluster, block, block, &copy.parts)?;
                let (index, who) = (cluster.index, (block, warp));
                let block = &mut cluster.blocks[block];
                let Some(warp) = &mut block.warps[warp] else { return Ok(()) };
                warp.copies.flying.retain(|(name, ..)| *name != copy.name);
                settle_signals(&self.program, (index, who), &mut warp.copies, &mut block.shared)
            }
            Work::Reading(copy) => {
                let shared = &cluster.blocks[block].shared.data;
                let part = |&(offset, bytes, _): &(u32, u32, u64)| &shared[offset as usize..(offset + bytes) as usize];
                let data: Vec<u8> = copy.parts.iter().flat_map(part).copied().collect();
                self.outstanding(cluster, block, warp, &copy, 0);
                cluster.jobs.push(Box::new(Job { block, warp, lanes, pc, work: Work::Writing(copy, data) }));
                Ok(())
            }
            Work::Writing(copy, data) => {
                self.write_out(&copy, &data)?;
                self.outstanding(cluster, block, warp, &copy, 1);
                Ok(())
            }
            Work::Multiply { group } => {
                self.multiply(cluster, block, group);
                Ok(())
            }
            Work::Tensor { lane, .. } => self.tensor(cluster, block, (warp, lane)),
        }
    }

    fn outstanding(&self, cluster: &mut Cluster, block: usize, warp: usize, copy: &Outgoing, stage: usize) {
        if let Some(stores) = cluster.blocks[block].stores.get_mut(&(warp, copy.lane)) {
            stores.outstanding[copy.group as usize - 1][stage] -= 1;
        }
    }

    /// Writes the parts of a copy that `block` has issued into the shared memory of `target`.
    fn place(&mut self, cluster: &mut Cluster, block: usize, target: usize, parts: &[Part]) -> Result<(), FaultKind> {
        let mut last = 0;
        for part in parts {
            let (offset, bytes) = (part.offset as usize, part.bytes as usize);
            if let CopySource::Shared(from) = part.source {
                let (shared, from) = (&cluster.blocks[block].shared, from as usize);
                let data = shared.data[from..from + bytes].to_vec();
                let missing: Vec<usize> = match shared.written.missing(from, bytes) {
                    None => Vec::new(),
                    Some(_) => (0..bytes).filter(|byte| shared.written.missing(from + byte, 1).is_some()).collect(),
                };
                let shared = &mut cluster.blocks[target].shared;
                shared.data[offset..offset + bytes].copy_from_slice(&data);
                shared.written.set(offset, bytes);
                missing.into_iter().for_each(|byte| shared.written.clear(offset + byte, 1));
                continue;
            }
            let shared = &mut cluster.blocks[target].shared;
            let CopySource::Global(address) = part.source else {
                for (offset, bytes, source) in part.pieces() {
                    let (offset, bytes) = (offset as usize, bytes as usize);
                    let to = &mut shared.data[offset..offset + bytes];
                    match source {
                        CopySource::Bytes(data) => to.copy_from_slice(&data[..bytes]),
                        _ => to.fill(0),
                    }
                    shared.written.set(offset, bytes);
                }
                continue;
            };
            let near = self.memory.find_in(last, address, part.bytes.into());
            let found = near.or_else(|| self.memory.find(address, part.bytes.into()));
            let span = found.ok_or_else(|| self.beyond(address, part.bytes.into()))?;
            last = span.buffer;
            let (buffer, from) = (&self.memory.buffers[span.buffer], span.offset);
            let source = &buffer.data[from..from + bytes];
            match part.permuted {
                None => {
                    copy(&mut shared.data[offset..offset + bytes], source);
                    shared.written.copy(offset, &buffer.written, from, bytes);
                }
                // Bytes that were never written remain so where they arrive.
                Some(swizzle) if part.fills_its_place() && buffer.written.missing(from, bytes).is_none() => {
                    shared.written.set(offset, bytes);
                    let addresses = (part.offset + SharedMemory::START..).step_by(16);
                    for (piece, address) in source.as_chunks::<16>().0.iter().zip(addresses) {
                        let at = (swizzle.apply(address) - SharedMemory::START) as usize;
                        copy(&mut shared.data[at..at + 16], piece);
                    }
                }
                Some(_) => {
                    let mut done = 0;
                    for (offset, bytes, _) in part.pieces() {
                        let (offset, bytes) = (offset as usize, bytes as usize);
                        copy(&mut shared.data[offset..offset + bytes], &source[done..done + bytes]);
                        shared.written.copy(offset, &buffer.written, from + done, bytes);
                        done += bytes;
                    }
                }
            }
        }
        Ok(())
    }

    fn deliver(&mut self, cluster: &mut Cluster, block: usize, copy: &Incoming) -> Result<(), FaultKind> {
        self.place(cluster, block, copy.target, &copy.parts)?;
        let (rank, offset) = copy.barrier;
        let block = &mut cluster.blocks[rank];
        let Some(bar) = block.shared.barriers.get_mut(&offset) else {
            return Err(FaultKind::NotABarrier { place: self.shared_place(block.id, offset, 8) });
        };
        self.log.complete(copy.record, bar.slot, bar.phase + 1);
        bar.add_bytes(|| self.program.shared_name(offset), -i64::from(copy.bytes))?;
        bar.settle(cluster.index);
        Ok(())
    }

    pub(crate) fn beyond(&self, address: u64, bytes: u64) -> FaultKind {
        FaultKind::OutOfBounds { place: self.global_place(address, bytes) }
    }

    fn write_out(&mut self, copy: &Outgoing, data: &[u8]) -> Result<(), FaultKind> {
        let mut at = 0;
        for &(_, bytes, address) in &copy.parts {
            let span = self.memory.find(address, bytes.into()).ok_or_else(|| self.beyond(address, bytes.into()))?;
            let buffer = &mut self.memory.buffers[span.buffer];
            let bytes = bytes as usize;
            let to = &mut Arc::make_mut(&mut buffer.data)[span.offset..span.offset + bytes];
            to.copy_from_slice(&data[at..at + bytes]);
            Arc::make_mut(&mut buffer.written).set(span.offset, bytes);
            at += bytes;
        }
        Ok(())
    }

    fn multiply(&mut self, cluster: &mut Cluster, rank: usize, group: usize) {
        let block = &mut cluster.blocks[rank];
        let Some(mma) = block.warpgroups[group].queue.pop_front() else { return };
        block.warpgroups[group].done += 1;
        // The elements of an operand, and which of its rows were never written.
        let shared = &block.shared;
        let operand = |which: usize, (rows, transposed, order): (usize, bool, Order)| {
            let pieces = &mma.pieces[which][..];
            let lacks = |address: u32| shared.written.missing((address - SharedMemory::START) as usize, 16).is_some();
            let (first, bytes) = tensor_core::hull(pieces);
            let missing = match shared.written.missing((first - SharedMemory::START) as usize, bytes as usize) {
                None => None,
                // It may be between them.
                Some(_) => tensor_core::rows_missing(pieces, rows, transposed, lacks),
            };
            let (pieces, shape) = ((pieces, SharedMemory::START), (rows, transposed, order));
            (tensor_core::elements(mma.element, &shared.data, pieces, shape, mma.negate[which]), missing)
        };
        let (a, missing_rows) = match mma.a {
            Some((_, transposed)) => operand(0, (64, transposed, Order::Rows)),
            None => (from_fragments(&mma), tainted_rows(&mma)),
        };
        let (n, depth) = (mma.n as usize, mma.element.depth() as usize);
        let (b, columns) = operand(1, (n, mma.b.1, Order::Eights));
        let is_in = |list: &Option<Vec<bool>>, at: usize| list.as_ref().is_some_and(|list| list[at]);
        for (index, warp) in block.warps[4 * group..4 * group + 4].iter_mut().flatten().enumerate() {
            for (eight, d) in mma.d.chunks_exact(4).enumerate() {
                let d: [RegId; 4] = [d[0], d[1], d[2], d[3]];
                let integers = mma.element.is_integer();
                let mut sums = match mma.accumulate && !integers {
                    true => mma::sums(d.map(|reg| warp.multiplied(reg))),
                    false => [[0.0; mma::COLUMNS]; mma::ROWS],
                };
                let rows = &a[mma::ROWS * depth * index..][..mma::ROWS * depth];
                mma::multiply_deep(&mut sums, depth, rows, &b[mma::COLUMNS * depth * eight..]);
                let values = match (integers, mma.accumulate) {
                    (false, _) => mma::fragment(&sums),
                    (true, true) => mma::add_integers(d.map(|reg| *warp.multiplied(reg)), &sums, false),
                    (true, false) => mma::add_integers([[0; 32]; 4], &sums, false),
                };
                for ((register, reg), values) in d.into_iter().enumerate().zip(values) {
                    let before = if mma.accumulate { warp.tainted(reg) } else { 0 };
                    warp.deposit(reg, &values);
                    if before != 0 || missing_rows.is_some() || columns.is_some() {
                        let missing = |lane: &usize| {
                            let (row, column) = mma::place(*lane, register);
                            is_in(&missing_rows, 16 * index + row) || is_in(&columns, 8 * eight + column)
                        };
                        let mask = (0..32).filter(missing).fold(before, |mask, lane| mask | 1 << lane);
                        warp.taint(reg, mask, mma.pc);
                    }
                }
            }
        }
        self.profile.tensor_macs += 64 * u64::from(mma.n) * depth as u64;
    }
}

impl Core<'_> {
    /// Does the next piece of work of a tcgen05 pipeline.
    fn tensor(&mut self, cluster: &mut Cluster, rank: usize, key: (usize, usize)) -> Result<(), FaultKind> {
        let Some(pipe) = cluster.blocks[rank].pipes.get_mut(&key) else { return Ok(()) };
        let Some((after, op)) = pipe.queue.pop_front() else { return Ok(()) };
        for (other, count) in after {
            while cluster.blocks[rank].pipes.get(&other).is_some_and(|pipe| pipe.done < count && !pipe.queue.is_empty())
            {
                self.tensor(cluster, rank, other)?;
                let is_its = |job: &Job| matches!(job.work, Work::Tensor { lane, .. } if (job.warp, lane) == other);
                if let Some(done) = cluster.jobs.iter().position(|job| job.block == rank && is_its(job)) {
                    cluster.jobs.remove(done);
                }
            }
        }
        let Some(pipe) = cluster.blocks[rank].pipes.get_mut(&key) else { return Ok(()) };
        pipe.done += u32::from(op.piece().is_some());
        let (slot, done) = (pipe.slot, pipe.done);
        match op {
            TensorOp::CopyScales { workers, column, pieces } => {
                for block in &mut cluster.blocks[workers] {
                    let memory = block.tensor.get_or_insert_default();
                    let bytes = bytes_at(&block.shared.data, &pieces);
                    for (cell, word) in bytes.chunks_exact(4).enumerate() {
                        let (row, column) = (cell as u32 / 4, column + cell as u32 % 4);
                        let bits = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                        (0..4).for_each(|quarter| memory.put(32 * quarter + row, column, bits));
                    }
                }
            }
            TensorOp::Multiply(workers, mma, Pieces { a, b }) => {
                let blocks = &mut cluster.blocks[workers];
                let b: Vec<u8> = blocks.iter().flat_map(|block| bytes_at(&block.shared.data, &b)).collect();
                for block in blocks {
                    let a = bytes_at(&block.shared.data, &a);
                    let memory = block.tensor.get_or_insert_default();
                    memory.check_operands(block.id, &mma)?;
                    memory.multiply(&mma, &a, &b);
                    self.profile.tensor_macs += u64::from(tensor_memory::LANES * mma.n * mma.kind.depth());
                }
            }
            TensorOp::MultiplyDense(workers, mma, Pieces { a, b }) => {
                let blocks = &mut cluster.blocks[workers];
                let operand = |block: &Block, side: usize, pieces: &[u32], rows: u32| {
                    let (element, transposed) = (mma.elements[side], mma.transpose[side]);
                    let (shape, from) = ((rows as usize, transposed, Order::Depths), (pieces, SharedMemory::START));
                    tensor_core::elements(element, &block.shared.data, from, shape, mma.negate[side])
                };
                let rows_of_b = mma.n / blocks.len() as u32;
                let b: Vec<Vec<f32>> = blocks.iter().map(|block| operand(block, 1, &b, rows_of_b)).collect();
                for block in blocks {
                    let elements = match mma.tensor_a {
                        None => operand(block, 0, &a, mma.rows),
                        Some(first) => {
                            let memory = block.tensor.get_or_insert_default();
                            by_depth(&mma, &memory.rows_of_a(block.id, &mma, first)?)
                        }
                    };
                    let memory = block.tensor.get_or_insert_default();
                    memory.multiply_dense(block.id, &mma, &elements, &b)?;
                    self.profile.tensor_macs += u64::from(mma.rows * mma.n * mma.elements[0].depth());
                }
            }
            TensorOp::Commit { barriers, known: mut published } => {
                published.raise(slot, done);
                for (rank, offset) in barriers {
                    let block = &mut cluster.blocks[rank];
                    let Some(bar) = block.shared.barriers.get_mut(&offset) else {
                        return Err(FaultKind::NotABarrier { place: self.shared_place(block.id, offset, 8) });
                    };
                    bar.publish(cluster.index, Carry::Local, &published);
                    bar.arrive(|| self.program.shared_name(offset), (rank, key.0), 1)?;
                    bar.settle(cluster.index);
                }
            }
        }
        Ok(())
    }
}

/// Copies bytes: mostly sixteen, which is a matter of two instructions.
fn copy(to: &mut [u8], from: &[u8]) {
    match (to.as_mut_array::<16>(), from.as_array::<16>()) {
        (Some(to), Some(from)) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}

/// The rows of A of which a part was never written, if it is in registers and there are some.
fn tainted_rows(mma: &Mma) -> Option<Vec<bool>> {
    let mut rows = vec![false; 64];
    for (warp, registers) in mma.tainted.iter().enumerate() {
        for (reg, mask) in registers.iter().enumerate() {
            lanes(*mask).for_each(|lane| rows[16 * warp + lane / 4 + 8 * (reg % 2)] = true);
        }
    }
    rows.contains(&true).then_some(rows)
}

/// The bytes at these shared addresses, sixteen at each.
fn bytes_at(shared: &[u8], pieces: &[u32]) -> Vec<u8> {
    let piece = |&address: &u32| {
        let at = (address - SharedMemory::START) as usize;
        &shared[at..at + 16]
    };
    pieces.iter().flat_map(piece).copied().collect()
}

/// The elements of rows of A by k, then row.
fn by_depth(mma: &Dense, rows: &[[u8; 32]]) -> Vec<f32> {
    let (by_row, depth) = (tensor_core::wide_rows(mma.elements[0], rows), mma.elements[0].depth() as usize);
    let sign = if mma.negate[0] { -1.0 } else { 1.0 };
    (0..by_row.len()).map(|at| sign * by_row[at % rows.len() * depth + at / rows.len()]).collect()
}

/// A by row, then k, from the registers of four warps.
fn from_fragments(mma: &Mma) -> Vec<f32> {
    let registers = mma.fragments.iter().map(|fragments| fragments.each_ref());
    let mut elements: Vec<f32> = registers.flat_map(|registers| mma::elements_of_a(mma.element, registers)).collect();
    if mma.negate[0] {
        elements.iter_mut().for_each(|x| *x = -*x);
    }
    elements
}
