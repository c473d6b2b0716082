//! Telling who waits for what, and who could have helped.

use crate::barrier::WarpName;
use crate::blocks::{Cluster, Core};
use crate::error::{FaultKind, Waiting};
use crate::lanes::lanes;
use crate::warp::Wait;

impl Core<'_> {
    /// Everyone in a cluster in which nobody can go on.
    pub(crate) fn deadlock(&self, cluster: &Cluster) -> FaultKind {
        let mut waiting = Vec::new();
        for (rank, block) in cluster.blocks.iter().enumerate() {
            for warp in block.warps.iter().flatten() {
                let mut left = warp.live;
                while left != 0 {
                    let first = left.trailing_zeros() as usize;
                    let alike =
                        |lane: &usize| (warp.pc[*lane], warp.waits[*lane]) == (warp.pc[first], warp.waits[first]);
                    let together = lanes(left).filter(alike).fold(0, |mask, lane| mask | 1 << lane);
                    left &= !together;
                    let site = self.program.site(block.id, warp.index, together, warp.pc[first]);
                    let (awaited, candidates) = self.awaited(cluster, rank, warp.waits[first]);
                    waiting.push(Waiting { site, awaited, candidates });
                }
            }
        }
        FaultKind::Deadlock { waiting }
    }

    fn awaited(&self, cluster: &Cluster, rank: usize, wait: Wait) -> (String, Vec<String>) {
        let block = &cluster.blocks[rank];
        let text = match wait {
            Wait::Phase { offset, parity } => return self.phase(cluster, rank, offset, parity),
            Wait::Named { id } => {
                let barrier = &block.named[id as usize];
                let all = barrier.threads.unwrap_or(self.program.kernel.launch.threads);
                format!("named barrier {id}, at which {} of {all} threads have arrived", barrier.arrived)
            }
            Wait::Cluster { phase } => {
                format!(
                    "the cluster's barrier, phase {phase}, at which {} threads have arrived",
                    cluster.barrier.arrived
                )
            }
            Wait::Bulk { group, .. } => format!("its bulk stores up to group {group}"),
            Wait::Copies { group } => format!("its threads' copies up to group {group}"),
            Wait::Wgmma { number } => {
                format!("multiplication {number}, which other warps of the warpgroup have not issued")
            }
            Wait::Registers { count } => {
                format!("a budget of {count} registers per thread, with {} in the block's pool", block.pool)
            }
            Wait::Tensor { columns, .. } => format!("{columns} columns of tensor memory, which the blocks there have"),
            Wait::Pair { number } => format!(
                "the other block of its pair, to allocate or give back with it: that one has come to {} of {number}",
                block.partners_collectives
            ),
            Wait::Lanes { mask } => format!("lanes {mask:#010x} of its warp"),
            Wait::None => "nothing".into(),
        };
        (text, Vec::new())
    }

    fn phase(&self, cluster: &Cluster, rank: usize, offset: u32, parity: u32) -> (String, Vec<String>) {
        let name = self.program.shared_name(offset);
        let Some(bar) = cluster.blocks[rank].shared.barriers.get(&offset) else {
            return (format!("barrier {name}, which does not exist"), Vec::new());
        };
        let lacks = match bar.bytes {
            0 => String::new(),
            bytes => format!(" and {bytes} bytes"),
        };
        let text = format!(
            "barrier {name} with parity {parity}: phase {} lacks {} of {} arrivals{lacks}",
            bar.phase, bar.pending, bar.expected
        );
        let candidates = bar.regulars.iter().map(|&who| {
            let now = bar.arrived.iter().find(|(other, _)| *other == who).map_or(0, |(_, count)| *count);
            format!("{} arrived {now} times in this phase; it {}", self.who(cluster, who), Self::state(cluster, who))
        });
        let mut candidates: Vec<String> = candidates.collect();
        if candidates.is_empty() {
            candidates.push("nobody has ever arrived there".into());
        }
        (text, candidates)
    }

    fn who(&self, cluster: &Cluster, (rank, warp): WarpName) -> String {
        format!("warp {warp} of block {:?}", cluster.blocks[rank].id)
    }

    fn state(cluster: &Cluster, (rank, warp): WarpName) -> String {
        match &cluster.blocks[rank].warps[warp] {
            Some(warp) if warp.live == 0 => "has exited".into(),
            Some(warp) => format!("waits at instruction {}", warp.pc[warp.live.trailing_zeros() as usize]),
            None => "is running".into(),
        }
    }
}
