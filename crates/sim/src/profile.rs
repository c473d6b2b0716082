//! What a run did, counted: a profile of a kernel without a GPU. The counts do not depend on the schedule, except those of waits.

use std::fmt;

use ptx::Op;

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
            Op::Mma(_) | Op::Wgmma(_) | Op::Tcgen05(_) => &mut self.tensor,
            Op::Control(_) => &mut self.control,
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

    /// Counts the turns of one warp's access to shared memory: 32 banks of four bytes, each serving one row per turn; accesses of
    /// 8 and 16 bytes per lane go by half and quarter warps.
    pub(crate) fn shared_access(&mut self, addresses: &[(u32, u32)], bytes: u32) {
        let lanes_a_turn = (128 / bytes.max(4)).max(1);
        let (mut turns, mut least) = (0, 0);
        let mut at = 0;
        while at < addresses.len() {
            let first = addresses[at].0 / lanes_a_turn;
            let end = addresses[at..].iter().position(|(lane, _)| lane / lanes_a_turn != first);
            let group = &addresses[at..end.map_or(addresses.len(), |n| at + n)];
            // A group takes 128 bytes at most, and a few more words where it is not aligned.
            let (mut words, mut count) = ([0u32; 96], 0);
            for word in group.iter().flat_map(|(_, a)| a / 4..(a + bytes).div_ceil(4)).take(words.len()) {
                words[count] = word;
                count += 1;
            }
            let words = &mut words[..count];
            words.sort_unstable();
            let distinct = words.chunk_by(|a, b| a == b).map(|same| same[0]);
            let mut load = [0u64; 32];
            let mut rows = 0;
            distinct.for_each(|word| {
                load[word as usize % 32] += 1;
                rows += 1usize;
            });
            turns += load.iter().copied().max().unwrap_or(0);
            least += rows.div_ceil(32) as u64;
            at += group.len();
        }
        self.shared_turns += turns;
        self.bank_conflicts += turns - least;
    }
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
