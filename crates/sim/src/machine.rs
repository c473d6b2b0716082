//! The loop that lets a schedule decide who goes on: a warp, or the work in flight beside them.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ptx::instr::Access;
use ptx::{Feature, Kernel};

use crate::barrier::ClusterBarrier;
use crate::blocks::{Block, Cluster, Core, Grid, Visit};
use crate::clock::{Cleared, Clock, Knowledge, PREDECESSOR};
use crate::columns::{Columns, Copies, Tenancy};
use crate::error::{Fault, FaultKind, Place, Site};
use crate::exec::{Exec, Flow};
use crate::flag::Agent;
use crate::flight::{Job, Warpgroup, Work};
use crate::invocation::Invocation;
use crate::lanes::{FULL, lanes};
use crate::limits::{Limits, Rules};
use crate::memory::{GlobalMemory, GlobalTrace, SharedMemory};
use crate::profile::Profile;
use crate::program::Program;
use crate::race::{Log, Record};
use crate::schedule::{Choice, Chooser, Schedule};
use crate::warp::{Rest, Wait, Warp};

/// Instructions without any change after which a run is given up: far more than any polling loop needs while others
/// work.
const PATIENCE: u64 = 400_000;

/// Instructions without any change after which a warp's turn ends.
const POLL: u64 = 256;

/// Bytes that a kernel's variables may have, those of all threads together.
const MOST_VARIABLES: u64 = 1 << 30;

/// Visible steps remembered per block.
const MEMORY_OF_STEPS: usize = 6;

impl Block {
    /// Whether what a lane waits for has come.
    fn ready(&self, cluster_phase: u32, warp: &Warp, lane: usize, wait: Wait) -> bool {
        match wait {
            Wait::None => true,
            Wait::Phase { offset, parity } => self.shared.barriers.get(&offset).is_none_or(|bar| bar.passes(parity)),
            Wait::Named { .. } | Wait::Lanes { .. } => false,
            Wait::Cluster { phase } => cluster_phase > phase,
            Wait::Bulk { group, read } => {
                self.stores.get(&(warp.index, lane)).is_none_or(|stores| stores.done(read) >= group)
            }
            Wait::Copies { group } => warp.copies.landed(warp.live, group),
            Wait::Wgmma { number } => self.warpgroups[warp.index / 4].done >= number,
            Wait::Tensor { columns, pair } => !self.tenancy.places(columns, pair).is_empty(),
            Wait::Pair { number } => self.partners_collectives >= number,
            Wait::Registers { count } => self.pool >= (count - warp.budget) * 32,
        }
    }

    /// Whether a warp can go on.
    pub(crate) fn awake(&self, cluster_phase: u32, index: usize) -> bool {
        match (self.rests[index], &self.warps[index]) {
            (Rest::Awake, _) => true,
            (Rest::Asleep(wait), Some(warp)) => self.ready(cluster_phase, warp, 0, wait),
            (Rest::Mixed, Some(warp)) => self.next(cluster_phase, warp).is_some(),
            (_, None) => false,
        }
    }

    fn next(&self, cluster_phase: u32, warp: &Warp) -> Option<(u32, u32)> {
        warp.next(|lane, wait| self.ready(cluster_phase, warp, lane, wait))
    }
}

impl Cluster {
    /// Looks up the warps that can go on, by block and place there.
    fn ready(&self, ready: &mut Vec<(usize, usize)>) {
        ready.clear();
        for (rank, block) in self.blocks.iter().enumerate() {
            let warps = (0..block.rests.len()).filter(|index| block.awake(self.barrier.phase, *index));
            ready.extend(warps.map(|index| (rank, index)));
        }
    }
}

/// Kernels that run one after the other. Of what an earlier one did, a later one knows what its waits tell it.
///
/// Between any two instructions it can be stopped, copied and gone on with: whatever the run depends on is in here.
pub(crate) struct Machine<'k> {
    pub(crate) core: Core<'k>,
    limits: Limits,
    /// Grids to come.
    pub(crate) grids: VecDeque<Grid<'k>>,
    /// What those that are over did.
    pub(crate) profiles: Vec<Profile>,
    /// Clusters of the present one that run.
    pub(crate) running: Vec<Cluster>,
    /// The turns that one of them has, if it has some.
    advance: Option<Advance>,
}

impl Clone for Machine<'_> {
    fn clone(&self) -> Self {
        let (grids, profiles, advance) = (self.grids.clone(), self.profiles.clone(), self.advance.clone());
        let (mut core, mut running, mut copies) = (self.core.clone(), self.running.clone(), Copies::default());
        for block in running.iter_mut().flat_map(|cluster| &mut cluster.blocks) {
            block.tenancy = block.tenancy.copied(&mut copies);
        }
        for columns in core.places.iter_mut().flatten() {
            *columns = copies.of(columns);
        }
        Machine { core, limits: self.limits, grids, profiles, running, advance }
    }
}

/// Some turns of a cluster.
#[derive(Clone)]
struct Advance {
    /// The cluster, by its place among those that run.
    chosen: usize,
    /// Turns left.
    turns: u32,
    /// The warps that can go on, by block and place there, unless that is to be looked up again.
    ready: Vec<(usize, usize)>,
    stale: bool,
    /// The warp whose turn was stopped, and whether others may have been woken by it.
    stopped: Option<(usize, usize, bool)>,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// To its end.
    Over,
    /// To an instruction before which it is to stop: this one, of the present grid.
    Stopped(u32),
}

/// Makes launches ready to run, and checks them. Of one kernel the program may be known.
pub(crate) fn grids<'k>(
    sequence: &[(&'k Kernel, &'k Invocation)],
    known: Option<&Rc<Program<'k>>>,
    limits: &Limits,
    schedule: Schedule,
) -> Result<VecDeque<Grid<'k>>, Box<Fault>> {
    let mut grids = VecDeque::new();
    for (kernel, launch) in sequence {
        let refused =
            |kind| Box::new(Fault { kind, site: None, recent: Vec::new(), schedule, kernel: kernel.name.clone() });
        launch.check(kernel, limits).map_err(refused)?;
        let earlier = grids.iter().map(|grid: &Grid<'k>| &grid.program);
        let again = known.into_iter().chain(earlier).find(|program| std::ptr::eq(program.kernel, *kernel));
        let program = match again {
            Some(program) => program.clone(),
            None => Rc::new(Program::new(kernel).map_err(refused)?),
        };
        let grid = Grid { program, launch, variables: Rc::default() };
        let asked = kernel.variables.iter().fold(0, |sum, variable| grid.variable_bytes(variable).saturating_add(sum));
        if asked > MOST_VARIABLES {
            let (what, limit) = ("bytes of variables", MOST_VARIABLES);
            return Err(refused(FaultKind::OverLimit { what, asked, limit }));
        }
        grids.push_back(grid);
    }
    Ok(grids)
}

impl<'k> Machine<'k> {
    /// A machine before its first instruction.
    pub(crate) fn new(
        (mut first, mut grids): (Grid<'k>, VecDeque<Grid<'k>>),
        (limits, rules): (&Limits, Rules),
        mut memory: GlobalMemory,
        schedule: Schedule,
    ) -> Self {
        [&mut first].into_iter().chain(&mut grids).for_each(|grid| grid.place_variables(&mut memory));
        let Grid { program, launch, variables } = first;
        let unit = grids.iter().map(|grid| grid.program.global_unit).fold(program.global_unit, u32::min);
        let by_threads = program.copies_by_threads || grids.iter().any(|grid| grid.program.copies_by_threads);
        let trace = GlobalTrace::new(&memory, unit, by_threads);
        let mut core = Core {
            rules,
            cluster_shape: program.kernel.launch.cluster.unwrap_or([1, 1, 1]),
            program,
            launch,
            variables,
            global_unit: unit,
            first_cluster: 0,
            earlier: Vec::new(),
            waited: false,
            hasty: false,
            memory,
            trace,
            log: Log::default(),
            origins: BTreeMap::new(),
            profile: Profile::default(),
            schedule,
            chooser: Chooser::new(schedule),
            idle: 0,
            clock: 0,
            instructions: limits.instructions,
            multiprocessors: limits.multiprocessors.max(1),
            published: Knowledge::default(),
            waiting: VecDeque::new(),
            room: 1,
            residents: 1,
            places: Vec::new(),
            loaded: Vec::new(),
            stops: None,
            looked_ahead: false,
            findings: None,
            recorder: None,
        };
        core.start(limits);
        Machine { core, limits: *limits, grids, profiles: Vec::new(), running: Vec::new(), advance: None }
    }

    /// Goes on to the end, or to an instruction before which the core says to stop.
    pub(crate) fn run(&mut self) -> Result<Progress, Box<Fault>> {
        loop {
            let Some(mut advance) = self.advance.take().or_else(|| self.choose()) else {
                self.profiles.push(std::mem::take(&mut self.core.profile));
                let Some(grid) = self.grids.pop_front() else { return Ok(Progress::Over) };
                self.core.succeed(grid, &self.limits);
                self.core.start(&self.limits);
                continue;
            };
            if self.core.log.crowded() && advance.stopped.is_none() {
                self.core.forget(&self.running)?;
            }
            let chosen = advance.chosen;
            if let Some(pc) = self.core.advance(&mut self.running[chosen], &mut advance)? {
                self.advance = Some(advance);
                return Ok(Progress::Stopped(pc));
            }
            if self.running[chosen].stalled() && self.running.iter().all(Cluster::stalled) {
                return Err(self.core.fault(self.core.deadlock(&self.running[chosen]), None, Vec::new()));
            }
            if self.running[chosen].running() {
                // The extremes stay with the first or last cluster; going round lets those that poll others' flags be
                // served.
                self.running.rotate_left(1);
            } else {
                self.running.remove(chosen);
            }
        }
    }

    /// The warp that was stopped, and the lanes of it that are about to go on.
    pub(crate) fn stopped(&self) -> Option<(&Warp, u32)> {
        let advance = self.advance.as_ref()?;
        let ((rank, index, _), cluster) = (advance.stopped?, &self.running[advance.chosen]);
        let (block, warp) = (&cluster.blocks[rank], cluster.blocks[rank].warps[index].as_deref()?);
        let (_, group) = block.next(cluster.barrier.phase, warp)?;
        Some((warp, group))
    }

    /// Starts clusters where there is room, and gives one of them some turns, if there is one left.
    fn choose(&mut self) -> Option<Advance> {
        while self.running.len() < self.core.room
            && let Some(index) = self.core.waiting.pop_front()
        {
            let mut cluster = self.core.cluster(self.core.first_cluster + index, &self.limits);
            if self.core.residents > 1 {
                cluster.settle(&self.running, self.core.residents, &mut self.core.places);
            }
            self.running.push(cluster);
        }
        if self.running.is_empty() {
            return None;
        }
        let chosen = self.core.chooser.cluster(self.running.len());
        // Blocks that share a multiprocessor's columns meet while they allocate them.
        let turns = match self.running.len() {
            1 => u32::MAX,
            _ if self.core.residents > 1 => 8,
            _ => 64,
        };
        Some(Advance { chosen, turns, ready: Vec::new(), stale: true, stopped: None })
    }
}

impl<'k> Core<'k> {
    /// Chooses in which order the clusters of the present grid start, and how many run at a time.
    fn start(&mut self, limits: &Limits) {
        let [x, y, z] = std::array::from_fn(|axis| self.launch.grid[axis] / self.cluster_shape[axis]);
        self.waiting = self.chooser.starts(x * y * z).into();
        self.room = limits.clusters(self.cluster_shape.iter().product()) as usize;
        // Where clusters do the work of others, how many begin is the launcher's to say, and it may have other things
        // to do.
        if self.program.claims {
            self.room = self.chooser.room(self.room);
        }
        self.residents = self.residents(limits);
        self.room *= self.residents;
        if self.program.kernel.cooperative {
            self.room = self.waiting.len();
        }
        self.places.clear();
    }

    /// Goes on to the next grid of the sequence.
    fn succeed(&mut self, next: Grid<'k>, limits: &Limits) {
        self.first_cluster += self.launch.grid.iter().product::<u32>() / self.cluster_shape.iter().product::<u32>();
        self.cluster_shape = next.program.kernel.launch.cluster.unwrap_or([1, 1, 1]);
        let program = std::mem::replace(&mut self.program, next.program);
        let launch = std::mem::replace(&mut self.launch, next.launch);
        let variables = std::mem::replace(&mut self.variables, next.variables);
        self.earlier.push(Grid { program, launch, variables });
        let (waited, hasty) = (std::mem::take(&mut self.waited), std::mem::take(&mut self.hasty));
        self.log.succeed(self.first_cluster, waited, hasty);
        self.trace.flags.clear();
        self.origins.clear();
        (self.idle, self.clock, self.instructions) = (0, 0, limits.instructions);
    }
}

impl Cluster {
    /// Joins those that run, on the first multiprocessors that hold fewer blocks than they can.
    fn settle(&mut self, running: &[Cluster], residents: usize, places: &mut Vec<Vec<Columns>>) {
        let held = |place: usize| running.iter().filter(|other| other.place == place).count();
        self.place = (0..).find(|&place| held(place) < residents).unwrap_or(0);
        if places.len() <= self.place {
            places.resize_with(self.place + 1, || self.blocks.iter().map(|_| Columns::default()).collect());
        }
        for (rank, block) in self.blocks.iter_mut().enumerate() {
            block.tenancy = Tenancy::new(&places[self.place], self.index, rank);
        }
    }

    /// Whether a warp waits for columns that blocks of others may have.
    fn waits_for_columns(&self) -> bool {
        let mut rests = self.blocks.iter().flat_map(|block| &block.rests);
        rests.any(|rest| matches!(rest, Rest::Asleep(Wait::Tensor { .. })))
    }

    /// Whether nobody in it can go on before others give columns back.
    fn stalled(&self) -> bool {
        let awake = |block: &Block| (0..block.rests.len()).any(|warp| block.awake(self.barrier.phase, warp));
        self.jobs.is_empty() && self.waits_for_columns() && !self.blocks.iter().any(awake)
    }
}

impl Core<'_> {
    /// How many blocks a multiprocessor holds, where that makes a difference: of kernels with tensor memory, by the
    /// letter. In practice who has columns counts on being alone.
    fn residents(&self, limits: &Limits) -> usize {
        if self.rules == Rules::Practice || !self.program.allocates {
            return 1;
        }
        self.chooser.residents(limits.residents(self.program.kernel) as usize)
    }

    /// Keeps a cluster that has not begun from beginning, and says where its first block is. The launcher may refuse
    /// though there are some.
    pub(crate) fn cancel(&mut self) -> Option<[u32; 3]> {
        if self.chooser.refuses() {
            return None;
        }
        let index = self.waiting.pop_front()?;
        Some(block_id(self.launch.grid, self.cluster_shape, index, 0))
    }

    /// Makes room in the log of accesses.
    fn forget(&mut self, running: &[Cluster]) -> Result<(), Box<Fault>> {
        let mut remembered = self.log.nobody();
        self.trace.shadows.iter().for_each(|shadow| shadow.remember(&mut remembered));
        for cluster in running {
            cluster.jobs.iter().filter_map(|job| job.record()).for_each(|id| remembered.keep(id));
            for block in &cluster.blocks {
                block.shared.shadow.remember(&mut remembered);
                block.tensor.iter().for_each(|memory| memory.shadow.remember(&mut remembered));
                block.shared.barriers.values().for_each(|bar| remembered.keep(bar.init));
                let queued = block.warpgroups.iter().flat_map(|group| &group.queue);
                queued.for_each(|mma| remembered.keep(mma.record));
                block.warps.iter().flatten().flat_map(|warp| &warp.cleared).for_each(Cleared::forget);
            }
        }
        let (asked, limit) = (self.log.sweep(&remembered), Log::MOST);
        if asked < limit {
            return Ok(());
        }
        let (what, asked, limit) = ("accesses to be told apart", asked as u64, limit as u64);
        Err(self.fault(FaultKind::OverLimit { what, asked, limit }, None, Vec::new()))
    }

    /// The kernel that a cluster runs or has run, and the place of one of its blocks in the grid.
    fn owner(&self, cluster: u32, rank: u32) -> (&Program<'_>, [u32; 3]) {
        let mut first = 0;
        for grid in &self.earlier {
            let shape = grid.program.kernel.launch.cluster.unwrap_or([1, 1, 1]);
            let clusters = grid.launch.grid.iter().product::<u32>() / shape.iter().product::<u32>();
            if cluster - first < clusters {
                return (&grid.program, block_id(grid.launch.grid, shape, cluster - first, rank));
            }
            first += clusters;
        }
        (&self.program, block_id(self.launch.grid, self.cluster_shape, cluster - first, rank))
    }

    /// Where an access was made, for people.
    pub(crate) fn record_site(&self, record: &Record) -> Site {
        let (program, block) = self.owner(record.cluster, record.block);
        program.site(block, record.warp as usize, record.lanes, record.pc)
    }

    fn cluster(&mut self, index: u32, limits: &Limits) -> Cluster {
        let kernel = self.program.kernel;
        // Where grids cannot overlap, one begins when all before it are over.
        let overlaps = kernel.target.has(Feature::GridDependency);
        self.waited |= !overlaps;
        let warps = kernel.launch.threads.div_ceil(32);
        let budget = limits.launch_registers(kernel);
        let mut cluster = Cluster {
            index,
            blocks: Vec::new(),
            jobs: Vec::new(),
            barrier: ClusterBarrier::new(index),
            slots: PREDECESSOR + 1,
            refused: false,
            place: 0,
        };
        for rank in 0..self.cluster_shape.iter().product() {
            let mut block = Block {
                id: block_id(self.launch.grid, self.cluster_shape, index - self.first_cluster, rank),
                shared: SharedMemory::new(kernel, self.program.shared_unit),
                named: Default::default(),
                warps: Vec::new(),
                rests: vec![Rest::Awake; warps as usize],
                warpgroups: Vec::new(),
                stores: BTreeMap::new(),
                tensor: None,
                tenancy: Tenancy::new(&[], index, rank as usize),
                collectives: Vec::new(),
                partners_collectives: 0,
                pipes: BTreeMap::new(),
                pool: 0,
                slots: cluster.slots..cluster.slots,
                visits: BTreeMap::new(),
                farewell: Clock::new(index),
                recent: VecDeque::new(),
            };
            for warp in 0..warps {
                let slot = cluster.slots;
                cluster.slots += 32;
                let mut known = Knowledge::new(index);
                if !overlaps {
                    known.raise(PREDECESSOR, 1);
                }
                let mut warp = Warp::new(warp as usize, slot, &self.program, known, budget);
                // The last warp has the threads that are left.
                let threads = kernel.launch.threads - 32 * warp.index as u32;
                warp.live = FULL >> 32u32.saturating_sub(threads);
                warp.tensor = [(cluster.slot(), 0), (cluster.slot(), 0)];
                cluster.slots += Warp::AWAITED;
                if self.program.copies_by_threads {
                    warp.copies_from(cluster.slots);
                    cluster.slots += 32;
                }
                block.warps.push(Some(Box::new(warp)));
            }
            block.slots.end = cluster.slots;
            block.warpgroups = (0..warps.div_ceil(4)).map(|_| Warpgroup::new(cluster.slot())).collect();
            cluster.blocks.push(block);
        }
        cluster
    }

    /// Lets a cluster go on for its turns, or to its end, or to an instruction before which it is to stop: gives that
    /// one.
    fn advance(&mut self, cluster: &mut Cluster, on: &mut Advance) -> Result<Option<u32>, Box<Fault>> {
        loop {
            let (warp, woken) = match on.stopped.take() {
                Some((rank, index, woken)) => ((rank, index), woken),
                None if on.turns == 0 || self.log.crowded() => return Ok(None),
                None => {
                    on.turns -= 1;
                    if std::mem::take(&mut on.stale) {
                        cluster.ready(&mut on.ready);
                    }
                    if on.ready.is_empty() && cluster.jobs.is_empty() {
                        return match cluster.running() && !cluster.waits_for_columns() {
                            true => Err(self.fault(self.deadlock(cluster), None, Vec::new())),
                            false => Ok(None),
                        };
                    }
                    match self.chooser.choose(on.ready.len(), cluster.jobs.len(), (self.idle / POLL) as usize) {
                        Choice::Warp(chosen) => (on.ready[chosen], false),
                        Choice::Complete(chosen) => {
                            on.stale = true;
                            self.complete_job(cluster, chosen)?;
                            continue;
                        }
                    }
                }
            };
            match self.turn(cluster, warp, woken)? {
                (None, true) => on.stale = true,
                (None, false) => {
                    if !cluster.blocks[warp.0].awake(cluster.barrier.phase, warp.1) {
                        on.ready.retain(|other| *other != warp);
                    }
                }
                (stop, woken) => {
                    on.stopped = Some((warp.0, warp.1, woken));
                    return Ok(stop);
                }
            }
        }
    }

    /// Does a piece of asynchronous work: of a queue the first, whichever was chosen.
    fn complete_job(&mut self, cluster: &mut Cluster, chosen: usize) -> Result<(), Box<Fault>> {
        let queue = cluster.jobs[chosen].queue();
        let first = cluster.jobs.iter().take(chosen).position(|job| queue.is_some() && job.queue() == queue);
        let job = cluster.jobs.remove(first.unwrap_or(chosen));
        let (block, warp, lanes, pc) = (job.block, job.warp, job.lanes, job.pc);
        self.idle = 0;
        self.complete(cluster, *job).map_err(|kind| {
            let site = self.program.site(cluster.blocks[block].id, warp, lanes, pc);
            self.fault(kind, Some(site), Vec::new())
        })?;
        if self.recorder.is_some() {
            self.record_end(cluster);
        }
        Ok(())
    }

    fn job_site(&self, cluster: &Cluster, job: &Job) -> Site {
        self.program.site(cluster.blocks[job.block].id, job.warp, job.lanes, job.pc)
    }

    /// One warp's turn: until it must wait, or gives way after doing something that others can see, or is to stop. Says
    /// where it is to stop, if it is, and whether others may have been woken; `wakes` is whether that was so when it
    /// stopped.
    fn turn(
        &mut self,
        cluster: &mut Cluster,
        (rank, index): (usize, usize),
        mut wakes: bool,
    ) -> Result<(Option<u32>, bool), Box<Fault>> {
        let Some(mut warp) = cluster.blocks[rank].warps[index].take() else { return Ok((None, true)) };
        let mut together = warp.together.take();
        let result = loop {
            let (pc, mask) = match together {
                Some(pc) => (pc, warp.live),
                None => {
                    let Some(next) = cluster.blocks[rank].next(cluster.barrier.phase, &warp) else { break Ok(None) };
                    next
                }
            };
            if self.stops.as_mut().is_some_and(|stops| stops.has(&self.program, pc)) {
                break Ok(Some(pc));
            }
            if together.is_none() {
                lanes(mask).for_each(|lane| warp.waits[lane] = Wait::None);
            }
            let jobs = cluster.jobs.len();
            let mut exec = Exec { core: self, cluster, warp: &mut warp, rank, pc, mask, spread: 0, origin: 0 };
            let step = if together.is_some() { exec.compute() } else { exec.step() };
            let (step, pc) = match (step, exec.pc) {
                (Ok(step), pc) => (step, pc),
                (Err(kind), pc) => break Err(self.raise(cluster, rank, index, mask, pc, kind)),
            };
            together = step.together;
            wakes |= step.wakes;
            if step.executed == 0 {
                continue;
            }
            if step.visible {
                let recent = &mut cluster.blocks[rank].recent;
                recent.push_back((index, mask, pc));
                if recent.len() > MEMORY_OF_STEPS {
                    recent.pop_front();
                }
                if self.recorder.is_some() {
                    self.record_step(cluster, (rank, index), mask, pc);
                }
                if self.chooser.yields(cluster.jobs.len() > jobs) {
                    break Ok(None);
                }
            }
            self.idle += step.executed;
            if self.idle > PATIENCE {
                let kind = FaultKind::NoProgress { steps: PATIENCE };
                break Err(self.raise(cluster, rank, index, mask, pc, kind));
            }
            if self.idle.is_multiple_of(POLL) || self.log.crowded() {
                // A warp that polls must not keep the others from their turn, nor one that works the log from its
                // sweep.
                break Ok(None);
            }
        };
        warp.together = together;
        together.into_iter().for_each(|pc| warp.stand(pc));
        if let Ok(stop @ Some(_)) = result {
            cluster.blocks[rank].warps[index] = Some(warp);
            return Ok((stop, wakes));
        }
        let (live, rest) = (warp.live, warp.rest());
        cluster.blocks[rank].rests[index] = rest;
        cluster.blocks[rank].warps[index] = Some(warp);
        if self.recorder.is_some() && live != 0 && !cluster.blocks[rank].awake(cluster.barrier.phase, index) {
            self.record_wait(cluster, (rank, index));
        }
        result?;
        if live == 0 {
            self.warp_ended(cluster, rank)?;
        }
        Ok((None, wakes))
    }

    fn fault(&self, kind: FaultKind, site: Option<Site>, recent: Vec<Site>) -> Box<Fault> {
        Box::new(Fault { kind, site, recent, schedule: self.schedule, kernel: self.program.kernel.name.clone() })
    }

    /// A fault at an instruction of a warp.
    pub(crate) fn raise(
        &self,
        cluster: &Cluster,
        rank: usize,
        warp: usize,
        mask: u32,
        pc: u32,
        kind: FaultKind,
    ) -> Box<Fault> {
        let block = &cluster.blocks[rank];
        let site = |warp, mask, pc| self.program.site(block.id, warp, mask, pc);
        let recent = block.recent.iter().map(|&(warp, mask, pc)| site(warp, mask, pc)).collect();
        self.fault(kind, Some(site(warp, mask, pc)), recent)
    }

    /// After a warp's last lane has exited: barriers of the whole block may be complete, and the block may be over.
    fn warp_ended(&mut self, cluster: &mut Cluster, rank: usize) -> Result<(), Box<Fault>> {
        for id in 0..16 {
            let agent = Agent { cluster: cluster.index, block: rank as u32 };
            crate::exec::settle_named(&mut cluster.blocks[rank], id, agent, None);
        }
        crate::exec::settle_cluster(cluster, None);
        let block = &cluster.blocks[rank];
        if block.warps.iter().flatten().any(|warp| warp.live != 0) || block.shared.ended {
            return Ok(());
        }
        if self.rules == Rules::Practice {
            self.drain_stores(cluster, rank)?;
        }
        if let Err(kind) = self.check_ended(cluster, rank) {
            let goes_on = self.findings.is_some() && kind.may_be_gone_on_from();
            let fault = self.fault(kind, None, Vec::new());
            if !goes_on {
                return Err(fault);
            }
            // What would still touch the block's memory is over with it.
            cluster.jobs.retain(|job| !job.touches(rank));
            self.find(fault);
        }
        cluster.blocks[rank].shared.ended = true;
        self.idle = 0;
        Ok(())
    }

    /// In practice a multiprocessor keeps a block's shared memory until the copy engine has read it: DeepGEMM's blocks
    /// end with stores that nobody has waited for.
    fn drain_stores(&mut self, cluster: &mut Cluster, rank: usize) -> Result<(), Box<Fault>> {
        let unread = |job: &Job| job.block == rank && matches!(job.work, Work::Reading(_));
        while let Some(at) = cluster.jobs.iter().position(|job| unread(job)) {
            let job = *cluster.jobs.remove(at);
            self.complete(cluster, job).map_err(|kind| self.fault(kind, None, Vec::new()))?;
        }
        for stores in cluster.blocks[rank].stores.values_mut() {
            stores.awaited = stores.outstanding.len() as u32;
        }
        Ok(())
    }

    /// A block may end only with its own work done and its barriers in balance.
    fn check_ended(&self, cluster: &Cluster, rank: usize) -> Result<(), FaultKind> {
        let block = &cluster.blocks[rank];
        if let Some(job) = cluster.jobs.iter().find(|job| job.touches(rank)) {
            return Err(FaultKind::Unfinished { work: Box::new(self.job_site(cluster, job)) });
        }
        if let Some(warp) = block.warps.iter().flatten().find(|warp| warp.issued > warp.retired) {
            let pc = warp.owned.iter().find(|owned| owned.number > warp.retired).map(|owned| owned.pc);
            let site = self.program.site(block.id, warp.index, FULL, pc.unwrap_or(0));
            return Err(FaultKind::Unfinished { work: Box::new(site) });
        }
        let left = |warp: &Warp| {
            (0..32).find(|&lane| warp.copies.last[lane].0 > warp.copies.awaited[lane].max(warp.copies.told[lane]))
        };
        if let Some((warp, lane)) = block.warps.iter().flatten().find_map(|warp| Some((warp, left(warp)?))) {
            let site = self.program.site(block.id, warp.index, 1 << lane, warp.copies.last[lane].1);
            return Err(FaultKind::Unfinished { work: Box::new(site) });
        }
        let unread = block.stores.iter().find(|(_, stores)| stores.awaited < stores.outstanding.len() as u32);
        if let Some((&(warp, lane), stores)) = unread {
            let site = self.program.site(block.id, warp, 1 << lane, stores.last);
            return Err(FaultKind::Unfinished { work: Box::new(site) });
        }
        let uncertain =
            block.visits.iter().find(|(slot, visit)| block.farewell.get(cluster.index, **slot) < visit.count);
        if let Some((_, Visit { from: (rank, warp, lane, pc), .. })) = uncertain {
            let site = self.program.site(cluster.blocks[*rank].id, *warp, 1 << lane, *pc);
            return Err(FaultKind::Outlived { block: block.id, visit: Box::new(site) });
        }
        for warps in block.warps.chunks(4) {
            let mut budgets = warps.iter().flatten().map(|warp| warp.budget);
            let first = budgets.next();
            if budgets.any(|budget| Some(budget) != first) {
                return Err(FaultKind::NotUniform { what: "the register budget (setmaxnreg) of a warpgroup's warps" });
            }
        }
        if let Some(left) = block.tensor.as_ref().and_then(|memory| memory.allocated.first()) {
            return Err(FaultKind::TensorMemoryLeak { column: left.column, columns: left.columns });
        }
        let unbalanced = block.shared.barriers.iter().find(|(_, bar)| bar.bytes != 0);
        if let Some((offset, bar)) = unbalanced {
            let (barrier, phase, bytes) = (self.program.shared_name(*offset), bar.phase, bar.bytes);
            return Err(FaultKind::TransactionImbalance { barrier, phase, bytes });
        }
        Ok(())
    }

    /// What an instruction has read that was never written.
    pub(crate) fn uninitialised(&self, origin: u32) -> FaultKind {
        self.origins.get(&origin).cloned().unwrap_or(FaultKind::Trap)
    }

    /// Bytes of a block's shared memory, for people.
    pub(crate) fn shared_place(&self, block: [u32; 3], offset: u32, bytes: u32) -> Place {
        let name = self.program.shared_name(offset);
        let address = u64::from(offset + SharedMemory::START);
        Place { space: "shared", block: Some(block), name, address, bytes: bytes.into() }
    }

    /// Bytes of global memory, for people.
    pub(crate) fn global_place(&self, address: u64, bytes: u64) -> Place {
        Place { space: "global", block: None, name: self.memory.name(address), address, bytes }
    }
}

/// A block's place in its grid, from its cluster's number there and its rank in that.
fn block_id(grid: [u32; 3], shape: [u32; 3], cluster: u32, rank: u32) -> [u32; 3] {
    let clusters: [u32; 3] = std::array::from_fn(|axis| grid[axis] / shape[axis]);
    let split =
        |number: u32, size: [u32; 3]| [number % size[0], number / size[0] % size[1], number / (size[0] * size[1])];
    let (at, inside) = (split(cluster, clusters), split(rank, shape));
    std::array::from_fn(|axis| at[axis] * shape[axis] + inside[axis])
}

/// What became of an instruction, or of some of which nobody else takes notice.
struct Step {
    /// How many instructions were executed by some lane. One that none executes is as if it were not there.
    executed: u64,
    /// Whether others can see what it did.
    visible: bool,
    /// Whether others that wait may be able to go on.
    wakes: bool,
    /// Where the warp goes on, if all of its lanes go on together.
    together: Option<u32>,
}

impl Exec<'_, '_> {
    /// Some lanes exit.
    fn leave(&mut self, mask: u32) {
        self.core.hasty |= !self.waited(mask);
        if self.cluster.blocks.len() > 1 {
            let farewell = &mut self.cluster.blocks[self.rank].farewell;
            let apart = lanes(mask).filter_map(|lane| self.warp.apart[lane].as_deref());
            apart.for_each(|apart| farewell.join(&apart.executed));
            if lanes(mask).any(|lane| self.warp.apart[lane].is_none()) {
                farewell.join(&self.warp.known.executed);
            }
        }
        self.warp.live &= !mask;
    }

    /// Some lanes go on elsewhere.
    fn go(&mut self, mask: u32, to: u32) {
        if mask == FULL {
            self.warp.pc = [to; 32];
        } else {
            lanes(mask).for_each(|lane| self.warp.pc[lane] = to);
        }
    }

    /// What was computed with what was never written is of that kind, too.
    fn taint_results(&mut self) {
        for &(reg, access) in self.core.program.registers(self.pc) {
            if access != Access::Read {
                self.warp.taint(reg, self.spread & self.mask, self.origin);
            }
        }
    }

    /// Executes what is ahead of a warp that goes on together: as long as it is arithmetic that is known to be in
    /// order, all of that; otherwise one instruction.
    #[inline(always)]
    fn compute(&mut self) -> Result<Step, FaultKind> {
        if self.warp.taints || !self.warp.loading.is_empty() {
            return self.step();
        }
        let core = &*self.core;
        // Up to where somebody looks at the counts.
        let counted = (core.instructions - core.clock).min(POLL - core.idle % POLL).min(PATIENCE - core.idle);
        let mut executed = 0;
        while executed < counted {
            let program = &self.core.program;
            let Some((op, sound)) = program.plain_arithmetic(self.pc) else { break };
            let stops = self.core.stops.as_ref().is_some_and(|stops| stops.is_before(program, self.pc));
            if stops || !sound && !self.warp.is_sound(self.pc) {
                break;
            }
            self.core.clock += 1;
            self.core.profile.arithmetic += 1;
            self.arith(op)?;
            self.pc += 1;
            executed += 1;
            if self.warp.taints {
                break;
            }
        }
        match executed {
            0 => self.step(),
            _ => Ok(Step { executed, visible: false, wakes: false, together: Some(self.pc) }),
        }
    }

    /// Executes one instruction.
    #[inline(always)]
    fn step(&mut self) -> Result<Step, FaultKind> {
        let Some(instr) = self.core.program.instr(self.pc) else {
            self.leave(self.mask);
            return Ok(Step { executed: 1, visible: true, wakes: true, together: None });
        };
        let (group, next, traits) = (self.mask, self.pc + 1, self.core.program.traits(self.pc));
        let whole = group == self.warp.live;
        if whole && traits.may_stay {
            self.warp.stand(self.pc);
        }
        if let Some(guard) = instr.guard {
            self.check_defined(guard.pred, group)?;
            if self.warp.tainted(guard.pred) & group != 0 {
                self.offend(self.core.uninitialised(self.warp.origin(guard.pred)))?;
                self.warp.untaint(guard.pred, group);
            }
            self.mask = self.warp.acting(instr.guard, group);
        }
        if self.mask == 0 {
            if !whole {
                self.go(group, next);
            }
            return Ok(Step { executed: 0, visible: false, wakes: false, together: whole.then_some(next) });
        }
        self.core.clock += 1;
        if self.core.clock > self.core.instructions {
            let (what, limit) = ("instructions of a run", self.core.instructions);
            return Err(FaultKind::OverLimit { what, asked: self.core.clock, limit });
        }
        self.core.profile.count(&instr.op);
        self.check_registers(&instr.op, traits)?;
        let (flow, visible) = self.execute(&instr.op)?;
        let acting = self.mask;
        if self.spread != 0 {
            self.taint_results();
        }
        let together = match flow {
            Flow::Next if whole => Some(next),
            Flow::Jump(target) if whole && acting == group => Some(target),
            _ => None,
        };
        if together.is_none() {
            self.go(group & !acting, next);
            match flow {
                Flow::Next => self.go(acting, next),
                Flow::Jump(target) => self.go(acting, target),
                Flow::Wait(wait) => lanes(acting).for_each(|lane| self.warp.waits[lane] = wait),
                Flow::Exit | Flow::Stay => {}
            }
        }
        match flow {
            Flow::Wait(_) | Flow::Stay => self.core.profile.barrier_waits += 1,
            Flow::Exit => self.leave(acting),
            _ => {}
        }
        if visible && !traits.looks_only && !matches!(flow, Flow::Wait(_) | Flow::Stay) {
            self.core.idle = 0;
        }
        Ok(Step { executed: 1, visible, wakes: traits.wakes, together })
    }
}
