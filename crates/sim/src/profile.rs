//! What a run did, counted: a profile of a kernel without a GPU. The counts do not depend on the schedule, except those
//! of waits.

use std::fmt;

use ptx::Op;

use crate::lanes::{FULL, Lanes, lanes};

/// Counts of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Bytes that threads read from global memory.
    pub global_read: u64,
    /// Bytes that threads wrote to global memory.
    pub global_written: u64,
    /// Bytes that threads read from shared memory.
    pub shared_read: u64,
    /// Bytes that threads wrote to shared memory.
    pub shared_written: u64,
    /// Turns that the accesses to shared memory took.
    pub shared_turns: u64,
    /// Turns beyond those that the same bytes would take without bank conflicts.
    pub bank_conflicts: u64,
    /// Bytes that the copy engine brought from global to shared memory.
    pub copied_in: u64,
    /// Bytes that the copy engine brought from shared to global memory.
    pub copied_out: u64,
    /// Bytes sent from one block of a cluster to another.
    pub copied_across: u64,
    /// Multiply-adds on the tensor cores.
    pub tensor_macs: u64,
    /// Times a warp came to a barrier that let it wait.
    pub barrier_waits: u64,
    /// Instructions by warp: arithmetic and moves.
    pub arithmetic: u64,
    /// Instructions by warp: loads, stores, atomics, matrix loads and stores.
    pub memory: u64,
    /// Instructions by warp: shuffles, votes, elections.
    pub collective: u64,
    /// Instructions by warp: barriers and fences.
    pub synchronisation: u64,
    /// Instructions by warp: issuing and tracking copies.
    pub copies: u64,
    /// Instructions by warp: tensor cores.
    pub tensor: u64,
    /// Instructions by warp: branches and the like.
    pub control: u64,
}

impl Profile {
    pub(crate) fn count(&mut self, op: &Op) {
        let class = match op {
            Op::Arith(_) => &mut self.arithmetic,
            Op::Memory(_) => &mut self.memory,
            Op::Warp(ptx::instr::Warp::LoadMatrix { .. } | ptx::instr::Warp::StoreMatrix { .. }) => &mut self.memory,
            Op::Warp(_) => &mut self.collective,
            Op::Barrier(_) | Op::Fence(_) => &mut self.synchronisation,
            Op::Copy(_) => &mut self.copies,
            Op::Fragments(ptx::instr::Fragments::Load { .. } | ptx::instr::Fragments::Store { .. }) => &mut self.memory,
            Op::Mma(_) | Op::Fragments(_) | Op::Wgmma(_) | Op::Tcgen05(_) => &mut self.tensor,
            Op::Control(_) | Op::Unknown(_) => &mut self.control,
        };
        *class += 1;
    }

    /// Instructions of all classes.
    pub fn instructions(&self) -> u64 {
        self.arithmetic
            + self.memory
            + self.collective
            + self.synchronisation
            + self.copies
            + self.tensor
            + self.control
    }

    /// Counts the turns of one warp's access to shared memory: 32 banks of four bytes, each serving one row per turn;
    /// accesses of 8 and 16 bytes per lane go by half and quarter warps.
    pub(crate) fn shared_access(&mut self, mask: u32, addresses: &Lanes, bytes: u32) {
        let next = |lane: u64| addresses[0].wrapping_add(lane * u64::from(bytes));
        let in_a_row = addresses.iter().zip(0..).fold(true, |all, (address, lane)| all & (*address == next(lane)));
        if mask == FULL && in_a_row {
            // One piece of memory, as it mostly is: no bank is asked twice in a turn.
            self.shared_turns += u64::from(bytes.div_ceil(4));
            return;
        }
        let lanes_a_turn = 128 / bytes.max(4);
        for first in (0..32).step_by(lanes_a_turn as usize) {
            let (mut group, mut count) = ([0; 32], 0);
            for lane in lanes(mask & FULL >> (32 - lanes_a_turn) << first) {
                group[count] = addresses[lane] as u32;
                count += 1;
            }
            let (turns, distinct) = bank_load(&group[..count], bytes);
            self.shared_turns += turns;
            self.bank_conflicts += turns - distinct.div_ceil(32);
        }
    }
}

/// Of the words that some lanes access in one turn: how many the busiest bank has, and how many there are.
fn bank_load(group: &[u32], bytes: u32) -> (u64, u64) {
    if bytes == 16 && group.iter().all(|address| address % 16 == 0) {
        // Rows of matrices, each in four banks: two of them are the same, or in different ones, or take turns.
        let (mut load, mut distinct) = ([0u64; 8], 0);
        for (at, address) in group.iter().enumerate() {
            if !group[..at].contains(address) {
                load[(address / 16 % 8) as usize] += 1;
                distinct += 4;
            }
        }
        return (load.into_iter().fold(0, u64::max), distinct);
    }
    // The distinct words of each bank: a group takes 128 bytes at most, and a few more words where it is not aligned.
    let (mut banks, mut load, mut distinct) = ([[0u32; 8]; 32], [0usize; 32], 0);
    let mut crowded = Vec::new();
    for word in group.iter().flat_map(|address| address / 4..(address + bytes).div_ceil(4)) {
        let bank = word as usize % 32;
        let known = load[bank].min(8);
        if banks[bank][..known].contains(&word) || crowded.contains(&word) {
            continue;
        }
        match banks[bank].get_mut(load[bank]) {
            Some(place) => *place = word,
            None => crowded.push(word),
        }
        load[bank] += 1;
        distinct += 1;
    }
    (load.into_iter().max().unwrap_or(0) as u64, distinct)
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "global memory     {} bytes read, {} written by threads", self.global_read, self.global_written)?;
        writeln!(
            f,
            "copy engine       {} bytes in, {} out, {} across",
            self.copied_in, self.copied_out, self.copied_across
        )?;
        writeln!(f, "shared memory     {} bytes read, {} written by threads", self.shared_read, self.shared_written)?;
        writeln!(f, "bank conflicts    {} of {} turns", self.bank_conflicts, self.shared_turns)?;
        writeln!(f, "tensor cores      {} multiply-adds", self.tensor_macs)?;
        writeln!(f, "barrier waits     {}", self.barrier_waits)?;
        write!(
            f,
            "instructions      {}: arithmetic {}, memory {}, ",
            self.instructions(),
            self.arithmetic,
            self.memory
        )?;
        write!(f, "collective {}, synchronisation {}, ", self.collective, self.synchronisation)?;
        writeln!(f, "copies {}, tensor {}, control {}", self.copies, self.tensor, self.control)
    }
}
