//! Writes a [`Timeline`](crate::Timeline) while a cluster runs.

use crate::blocks::{Cluster, Core};
use crate::flight::{Job, Part, TensorOp, Work};
use crate::memory::SharedMemory;
use crate::timeline::{self, Barrier, Bytes, Cause, Kind, Open, Step};

impl Core<'_> {
    /// A warp has done something that others can see.
    pub(crate) fn record_step(&mut self, cluster: &Cluster, (rank, index): (usize, usize), lanes: u32, pc: u32) {
        let Some(recorder) = self.recorder.as_mut() else { return };
        if !recorder.follows(cluster.index) {
            return;
        }
        let (at, warp) = (recorder.tick(), (rank, index as u32));
        recorder.timeline.steps.push(Step { at, warp, lanes, position: pc as usize });
        self.record_flights(cluster, at);
        self.record_woken(cluster, at, Cause::Warp(rank, index as u32));
    }

    /// A warp cannot go on.
    pub(crate) fn record_wait(&mut self, cluster: &Cluster, (rank, index): (usize, usize)) {
        let Some(recorder) = self.recorder.as_mut() else { return };
        if !recorder.follows(cluster.index) {
            return;
        }
        let Some(warp) = &cluster.blocks[rank].warps[index] else { return };
        let position = warp.pc[warp.live.trailing_zeros().min(31) as usize] as usize;
        let (from, warp) = (recorder.timeline.length, (rank, index as u32));
        recorder.asleep.push(recorder.timeline.waits.len());
        recorder.timeline.waits.push(timeline::Wait { from, to: None, warp, position, by: None });
    }

    /// A piece of work is over, and is no longer among those in flight.
    pub(crate) fn record_end(&mut self, cluster: &Cluster) {
        let Some(recorder) = self.recorder.as_mut() else { return };
        if !recorder.follows(cluster.index) {
            return;
        }
        let at = recorder.tick();
        if let Some(work) = self.record_flights(cluster, at) {
            self.record_woken(cluster, at, Cause::Work(work));
        }
    }

    /// Compares what is in flight with what was, and gives the number of one that is over.
    fn record_flights(&mut self, cluster: &Cluster, at: u32) -> Option<usize> {
        let recorder = self.recorder.as_mut()?;
        if recorder.timeline.blocks.is_empty() {
            recorder.timeline.blocks = cluster.blocks.iter().map(|block| block.id).collect();
            recorder.timeline.warps = self.program.kernel.launch.threads.div_ceil(32);
        }
        // What is in flight is kept in a box of its own from its beginning to its end.
        let kept = |job: &Job| (std::ptr::from_ref(job).addr(), job.pc, job.warp, is_second_half(job));
        let mut over = None;
        let flies = |open: &Open| cluster.jobs.iter().any(|job| kept(job) == open.kept);
        while let Some(ended) = recorder.open.iter().position(|open| !flies(open)) {
            over = Some(recorder.end(ended, at));
        }
        for job in &cluster.jobs {
            if recorder.open.iter().any(|open| open.kept == kept(job)) {
                continue;
            }
            let (bytes, barrier) = touched(cluster, job);
            let stage = match (bytes, barrier) {
                (Some(bytes), Some(barrier)) => Some(recorder.stage_of_copy(barrier, bytes)),
                (Some((start, _)), None) => recorder.stage_at(start),
                _ => None,
            };
            let queue = job.queue();
            recorder.open.push(Open { kept: kept(job), work: recorder.timeline.works.len(), queue });
            recorder.timeline.works.push(timeline::Work {
                kind: kind(cluster, job),
                from: at,
                to: None,
                warp: (job.block, job.warp as u32),
                position: job.pc as usize,
                place: bytes.map(|(start, _)| self.program.shared_name(start)),
                stage,
            });
        }
        over
    }

    /// Notes who can go on since an event.
    fn record_woken(&mut self, cluster: &Cluster, at: u32, cause: Cause) {
        let Some(recorder) = self.recorder.as_mut() else { return };
        let waits = &mut recorder.timeline.waits;
        recorder.asleep.retain(|&number| {
            let wait = &mut waits[number];
            let (rank, index) = wait.warp;
            let sleeps = !cluster.blocks[rank].awake(cluster.barrier.phase, index as usize);
            if !sleeps {
                (wait.to, wait.by) = (Some(at), Some(cause));
            }
            sleeps
        });
    }
}

/// Whether it writes what a store has read.
fn is_second_half(job: &Job) -> bool {
    matches!(job.work, Work::Writing(..))
}

/// What a piece of work does that was issued just now.
fn kind(cluster: &Cluster, job: &Job) -> Kind {
    match &job.work {
        Work::Incoming(_) | Work::ByThreads(_) => Kind::Copy,
        Work::Reading(_) => Kind::Store,
        Work::Writing(..) => Kind::Write,
        Work::Multiply { .. } => Kind::Multiply,
        Work::Tensor { lane, .. } => match newest(cluster, job, *lane) {
            Some(TensorOp::Commit { .. }) => Kind::Commit,
            Some(TensorOp::CopyScales { .. }) => Kind::Copy,
            _ => Kind::Multiply,
        },
    }
}

/// What a lane has issued last to the tensor cores.
fn newest<'c>(cluster: &'c Cluster, job: &Job, lane: usize) -> Option<&'c TensorOp> {
    let pipe = cluster.blocks[job.block].pipes.get(&(job.warp, lane))?;
    pipe.queue.back().map(|(_, op)| op)
}

/// Of a piece of work that was issued just now, the shared memory that it touches first, from and to, and the barrier
/// that counts it.
fn touched(cluster: &Cluster, job: &Job) -> (Option<Bytes>, Option<Barrier>) {
    let at = |address: u32| address.saturating_sub(SharedMemory::START);
    let span = |parts: &[Part]| {
        let start = parts.iter().map(|part| part.offset).min();
        start.zip(parts.iter().map(|part| part.offset + part.bytes).max())
    };
    let piece = |pieces: &[u32]| pieces.first().map(|piece| (at(*piece), at(*piece) + 16));
    match &job.work {
        Work::Incoming(copy) => (span(&copy.parts), Some(copy.barrier)),
        Work::ByThreads(copy) => (span(&copy.parts), None),
        Work::Reading(copy) | Work::Writing(copy, _) => {
            (copy.parts.first().map(|(offset, bytes, _)| (*offset, offset + bytes)), None)
        }
        Work::Multiply { group } => {
            let issued = cluster.blocks[job.block].warpgroups[*group].queue.iter().rev();
            let range = issued.clone().find(|mma| mma.issued == 15).and_then(|mma| mma.ranges.first());
            (range.map(|(address, bytes)| (at(*address), at(*address) + bytes)), None)
        }
        Work::Tensor { lane, .. } => match newest(cluster, job, *lane) {
            Some(TensorOp::CopyScales { pieces, .. }) => (piece(pieces), None),
            Some(TensorOp::Multiply(_, _, pieces) | TensorOp::MultiplyDense(_, _, pieces)) => {
                (piece(&pieces.a).or(piece(&pieces.b)), None)
            }
            Some(TensorOp::Commit { .. }) | None => (None, None),
        },
    }
}
