//! Barriers, fences and register budgets.

use std::rc::Rc;

use ptx::instr::{Arrival, Barrier, Control, Fence, Semantics};
use ptx::{Address, Op, Operand, RegisterChange, Scope, Space};

use super::{Exec, Flow, SharedSpan};
use crate::barrier::{Carry, Mbarrier};
use crate::blocks::{Block, Cluster};
use crate::clock::{Clock, Knowledge};
use crate::error::FaultKind;
use crate::flag::{Agent, Publication, Stamp, narrower};
use crate::lanes::{FULL, Lanes, lanes};
use crate::limits::Rules;
use crate::memory::SharedMemory;
use crate::program::Program;
use crate::race::{Conflict, Proxy, Record};
use crate::warp::{Copies, Rest, Signal, Wait, Warp};

/// How an arrival orders memory.
#[derive(Clone, Copy)]
struct Ordering {
    sem: Semantics,
    scope: Scope,
}

impl Exec<'_, '_> {
    pub(crate) fn barrier(&mut self, op: &Barrier) -> Result<Flow, FaultKind> {
        match *op {
            Barrier::Init { bar, count } => self.init(bar, count).map(|()| Flow::Next),
            Barrier::Invalidate { bar } => self.invalidate(bar).map(|()| Flow::Next),
            Barrier::ExpectTx { space, bar, bytes } => {
                let bytes = self.warp.value(bytes);
                self.each_barrier(space, bar, |bar, name, lane| bar.add_bytes(name, bytes[lane] as i64))
            }
            Barrier::Arrive { arrival, space, sem, scope, bar, count, state } => {
                let (order, counts) = (Ordering { sem, scope }, count.map_or([1; 32], |count| self.warp.value(count)));
                if let Some(lane) = lanes(self.mask).find(|&lane| !(1..1 << 20).contains(&counts[lane])) {
                    let (what, found) = ("the arrivals that one counts for", counts[lane]);
                    return Err(FaultKind::BadOperand { what, found, wanted: "1 to 2^20 - 1" });
                }
                let phases = match arrival {
                    None => self.arrive(space, order, bar, counts, [0; 32])?,
                    Some(arrival) => self.arrive_otherwise(arrival, (space, order), bar, counts)?,
                };
                state.into_iter().for_each(|state| self.set(state, &phases));
                Ok(Flow::Next)
            }
            Barrier::ArriveExpectTx { space, sem, scope, bar, bytes, state } => {
                let bytes = self.warp.value(bytes);
                let phases = self.arrive(space, Ordering { sem, scope }, bar, [1; 32], bytes)?;
                state.into_iter().for_each(|state| self.set(state, &phases));
                Ok(Flow::Next)
            }
            Barrier::TryWait { done, sem, scope, bar, parity } => {
                self.try_wait(done, Ordering { sem, scope }, bar, parity)
            }
            Barrier::NamedSync { aligned, id, threads } => self.named(aligned, id, threads, true),
            Barrier::NamedArrive { aligned, id, threads } => self.named(aligned, id, Some(threads), false),
            Barrier::ClusterArrive { sem, aligned } => self.cluster_arrive(sem, aligned),
            Barrier::ClusterWait { aligned } => self.cluster_wait(aligned),
        }
    }

    /// The eight bytes of a barrier.
    fn barrier_span(&self, space: Space, address: u64) -> Result<SharedSpan, FaultKind> {
        if !address.is_multiple_of(8) {
            return Err(FaultKind::Misaligned { what: "a barrier", address, wanted: 8 });
        }
        self.shared_span(space, address, 8)
    }

    fn init(&mut self, bar: Address, count: Operand) -> Result<(), FaultKind> {
        let (addresses, counts) = (self.addresses(bar), self.warp.value(count));
        let record = self.record(None);
        for lane in lanes(self.mask) {
            let span = self.barrier_span(Space::Shared, addresses[lane])?;
            let block = &self.cluster.blocks[span.block];
            // In ThunderKittens all lanes of a warp do it, in CUDA's samples a thread of every warp: nothing changes.
            let there = block.shared.barriers.get(&span.offset);
            if self.core.rules == Rules::Practice && there.is_some_and(|bar| bar.is_new(counts[lane] as u32)) {
                continue;
            }
            if block.shared.barrier_in(span.offset, 8) {
                return Err(FaultKind::Reinitialised { place: self.core.shared_place(block.id, span.offset, 8) });
            }
            if !(1..1 << 20).contains(&counts[lane]) {
                let (what, found) = ("arrivals of a barrier", counts[lane]);
                return Err(FaultKind::BadOperand { what, found, wanted: "1 to 2^20 - 1" });
            }
            self.touch_shared(span, 8, true, Some(lane), record)?;
            let slot = self.cluster.slot();
            let barrier = Mbarrier::new(self.cluster.index, counts[lane] as u32, slot, record, lane as u32);
            self.cluster.blocks[span.block].shared.set_barrier(span.offset, Some(barrier));
        }
        Ok(())
    }

    fn invalidate(&mut self, bar: Address) -> Result<(), FaultKind> {
        self.each_barrier(Space::Shared, bar, |_, _, _| Ok(()))?;
        let (addresses, record) = (self.addresses(bar), self.record(None));
        for lane in lanes(self.mask) {
            let span = self.barrier_span(Space::Shared, addresses[lane])?;
            self.cluster.blocks[span.block].shared.set_barrier(span.offset, None);
            self.touch_shared(span, 8, true, Some(lane), record)?;
        }
        Ok(())
    }

    /// Finds a barrier, alive and known to this lane to be initialised.
    pub(crate) fn find_barrier(&mut self, span: SharedSpan, lane: usize, proxy: Proxy) -> Result<(), FaultKind> {
        self.visit(span, lane, proxy == Proxy::Async)?;
        let block = &self.cluster.blocks[span.block];
        let place = || self.core.shared_place(block.id, span.offset, 8);
        let Some(bar) = block.shared.barriers.get(&span.offset) else {
            return Err(FaultKind::NotABarrier { place: place() });
        };
        let init = self.core.log.get(bar.init);
        let own = init.slot == self.warp.slot && bar.init_lane == lane as u32;
        let knowledge = self.warp.knowledge(lane);
        let granted = self.core.rules == Rules::Practice;
        // CUTLASS's sm_100 kernels initialise a barrier behind their last fence.mbarrier_init and meet at a relaxed
        // barrier of the cluster. By the ISA (membar/fence) nothing tells the peer of it; that it was executed is
        // enough in practice, for arrivals and waits of threads.
        let met = || knowledge.executed.get(init.cluster, init.slot + bar.init_lane) >= init.count;
        let known = own || is_known(bar, init, knowledge) || granted && proxy == Proxy::Generic && met();
        // Compilers leave the fence out before copies, and no chip is known to mind.
        if known && (proxy == Proxy::Generic || bar.published || granted) {
            return Ok(());
        }
        let (record, byte) = (bar.init, span.offset as usize);
        let (conflict, place) = (Conflict { record, was_write: true, byte, unfenced: known }, place());
        let record = match proxy {
            Proxy::Generic => self.record(None),
            Proxy::Async => self.in_flight(proxy, lane),
        };
        let race = self.race(place, conflict, record, true);
        self.offend(race)
    }

    /// The same for several lanes that name one barrier.
    fn find_barriers(&mut self, span: SharedSpan, mask: u32) -> Result<(), FaultKind> {
        if span.block == self.rank && !self.warp.parted() {
            let bar = self.cluster.blocks[span.block].shared.barriers.get(&span.offset);
            if bar.is_some_and(|bar| is_known(bar, self.core.log.get(bar.init), &self.warp.known)) {
                return Ok(());
            }
        }
        lanes(mask).try_for_each(|lane| self.find_barrier(span, lane, Proxy::Generic))
    }

    /// Applies `act` to the barrier that each lane names, and lets the phase complete.
    fn each_barrier(
        &mut self,
        space: Space,
        bar: Address,
        mut act: impl FnMut(&mut Mbarrier, &dyn Fn() -> String, usize) -> Result<(), FaultKind>,
    ) -> Result<Flow, FaultKind> {
        let addresses = self.addresses(bar);
        for lane in lanes(self.mask) {
            let span = self.barrier_span(space, addresses[lane])?;
            self.find_barrier(span, lane, Proxy::Generic)?;
            let barriers = &mut self.cluster.blocks[span.block].shared.barriers;
            let Some(bar) = barriers.get_mut(&span.offset) else { continue };
            act(bar, &|| self.core.program.shared_name(span.offset), lane)?;
            bar.settle(self.cluster.index);
        }
        Ok(Flow::Next)
    }

    /// Arrives for every lane, and says in which phase. Lanes that arrive at the same barrier publish together, which
    /// comes to the same and is quicker.
    fn arrive(
        &mut self,
        space: Space,
        order: Ordering,
        bar: Address,
        counts: [u64; 32],
        bytes: [u64; 32],
    ) -> Result<Lanes, FaultKind> {
        let addresses = self.addresses(bar);
        let (mut left, mut phases) = (self.mask, [0; 32]);
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let together = lanes(left).filter(|&lane| addresses[lane] == addresses[first]).fold(0, |m, l| m | 1 << l);
            left &= !together;
            let span = self.barrier_span(space, addresses[first])?;
            self.find_barriers(span, together)?;
            if order.sem == Semantics::Relaxed {
                lanes(together).for_each(|lane| self.publish_fenced(span, lane, order.scope));
            }
            let carry = match order.sem {
                Semantics::Ordered => self.carry(span, order.scope),
                Semantics::Relaxed => Carry::Executed,
            };
            let mut together = together;
            while together != 0 {
                let bar = self.cluster.blocks[span.block].shared.barriers.get(&span.offset);
                let phase = bar.map_or(0, |bar| bar.phase);
                let left = self.arrive_together(span, carry, together, &counts, &bytes)?;
                lanes(together & !left).for_each(|lane| phases[lane] = phase.into());
                together = left;
            }
        }
        Ok(phases)
    }

    /// Arrives for one lane after the other, in a way that changes the barrier or asks more of it.
    fn arrive_otherwise(
        &mut self,
        arrival: Arrival,
        (space, order): (Space, Ordering),
        bar: Address,
        counts: [u64; 32],
    ) -> Result<Lanes, FaultKind> {
        let (all, addresses, mut phases) = (self.mask, self.addresses(bar), [0; 32]);
        for lane in lanes(all) {
            let span = self.barrier_span(space, addresses[lane])?;
            self.find_barrier(span, lane, Proxy::Generic)?;
            let barriers = &mut self.cluster.blocks[span.block].shared.barriers;
            if let Some(bar) = barriers.get_mut(&span.offset) {
                let (what, wanted, most) = match arrival {
                    Arrival::Drop => ("the arrivals that are dropped", "1 to those that are expected", bar.expected),
                    Arrival::NoComplete => (
                        "the arrivals of one that may not complete the phase",
                        "fewer than are pending",
                        bar.pending - 1,
                    ),
                };
                let found = counts[lane];
                if !(1..=u64::from(most)).contains(&found) {
                    return Err(FaultKind::BadOperand { what, found, wanted });
                }
                if arrival == Arrival::Drop {
                    bar.expected -= found as u32;
                }
            }
            self.mask = 1 << lane;
            let arrived = self.arrive(space, order, bar, counts, [0; 32]);
            self.mask = all;
            phases[lane] = arrived?[lane];
        }
        Ok(phases)
    }

    /// Has each lane's copies so far arrive at a barrier of this block when they are there. The phase cannot end
    /// before: the arrival is one of those expected, or one more.
    pub(crate) fn arrive_behind_copies(&mut self, bar: Address, expected: bool) -> Result<(), FaultKind> {
        let addresses = self.addresses(bar);
        for lane in lanes(self.mask) {
            let span = self.barrier_span(Space::Shared, addresses[lane])?;
            self.find_barrier(span, lane, Proxy::Generic)?;
            let barriers = &mut self.cluster.blocks[span.block].shared.barriers;
            if let Some(bar) = barriers.get_mut(&span.offset).filter(|_| !expected) {
                bar.pending += 1;
                if bar.pending >= 1 << 20 {
                    let (what, found) = ("the pending arrivals of a barrier", bar.pending.into());
                    return Err(FaultKind::BadOperand { what, found, wanted: "fewer than 2^20" });
                }
            }
            self.warp.copies.signal(lane, span.offset);
        }
        let (who, cluster) = ((self.rank, self.warp.index), self.cluster.index);
        let shared = &mut self.cluster.blocks[self.rank].shared;
        settle_signals(&self.core.program, (cluster, who), &mut self.warp.copies, shared)
    }

    /// How far an ordered arrival's knowledge goes, from this block to a barrier.
    fn carry(&self, span: SharedSpan, scope: Scope) -> Carry {
        match (span.block == self.rank, scope) {
            (true, _) => Carry::Local,
            (false, Scope::Block) => Carry::Executed,
            (false, _) => Carry::Remote,
        }
    }

    /// A relaxed arrival hands on what the lane's last fence covered.
    fn publish_fenced(&mut self, span: SharedSpan, lane: usize, scope: Scope) {
        let Some(fenced) = self.warp.fenced[lane].clone() else { return };
        let carry = self.carry(span, narrower(scope, fenced.scope));
        let cluster = self.cluster.index;
        if let Some(bar) = self.cluster.blocks[span.block].shared.barriers.get_mut(&span.offset) {
            bar.publish(cluster, carry, &fenced.knowledge);
        }
    }

    /// Arrives for the lanes that still belong to the barrier's current phase, and gives back those left for the next
    /// one.
    fn arrive_together(
        &mut self,
        span: SharedSpan,
        carry: Carry,
        together: u32,
        counts: &[u64; 32],
        bytes: &[u64; 32],
    ) -> Result<u32, FaultKind> {
        let who = (self.rank, self.warp.index);
        let cluster = self.cluster.index;
        let Some(bar) = self.cluster.blocks[span.block].shared.barriers.get_mut(&span.offset) else { return Ok(0) };
        let mut room = u64::from(bar.pending);
        let mut now = 0;
        for lane in lanes(together) {
            // An arrival that does not fit goes alone, to be refused.
            if now != 0 && counts[lane] > room {
                break;
            }
            room = room.saturating_sub(counts[lane]);
            now |= 1 << lane;
        }
        let published = &mut self.core.published;
        published.restart(cluster);
        self.warp.publish(now, published);
        bar.publish(cluster, carry, published);
        let name = || self.core.program.shared_name(span.offset);
        for lane in lanes(now) {
            if bytes[lane] > 0 {
                bar.add_bytes(name, bytes[lane] as i64)?;
            }
            bar.arrive(name, who, counts[lane] as u32)?;
        }
        bar.settle(cluster);
        Ok(together & !now)
    }

    fn try_wait(
        &mut self,
        done: ptx::RegId,
        order: Ordering,
        bar: Address,
        parity: Operand,
    ) -> Result<Flow, FaultKind> {
        let (addresses, parities) = (self.addresses(bar), self.warp.value(parity));
        if let Some(lane) = lanes(self.mask).find(|&lane| parities[lane] > 1) {
            let (what, found) = ("the parity of a phase", parities[lane]);
            return Err(FaultKind::BadOperand { what, found, wanted: "0 or 1: a count of phases modulo 2" });
        }
        let first = self.mask.trailing_zeros() as usize;
        let alike = |lane: usize| (addresses[lane], parities[lane]) == (addresses[first], parities[first]);
        if lanes(self.mask).all(alike) {
            let span = self.barrier_span(Space::Shared, addresses[first])?;
            self.find_barriers(span, self.mask)?;
            return Ok(self.try_wait_together(done, order, span, parities[first] as u32));
        }
        let mut passed = [0; 32];
        let mut learnt: Option<SharedSpan> = None;
        let mut waits = self.warp.waits;
        for lane in lanes(self.mask) {
            let span = self.barrier_span(Space::Shared, addresses[lane])?;
            self.find_barrier(span, lane, Proxy::Generic)?;
            let parity = parities[lane] as u32;
            let Some(bar) = self.cluster.blocks[span.block].shared.barriers.get(&span.offset) else { continue };
            if bar.passes(parity) {
                (passed[lane], learnt) = (1, Some(span));
            }
            waits[lane] = Wait::Phase { offset: span.offset, parity };
        }
        let passing = lanes(self.mask).filter(|&lane| passed[lane] == 1).fold(0, |mask, lane| mask | 1 << lane);
        if passing == 0 && self.core.program.traits(self.pc).spins {
            // Each lane sleeps until its own barrier's phase completes, and then asks again.
            self.warp.waits = waits;
            return Ok(Flow::Stay);
        }
        let one_barrier = lanes(passing).all(|lane| addresses[lane] == addresses[passing.trailing_zeros() as usize]);
        match learnt {
            Some(span) if one_barrier => self.acquire_phase(span, passing, order),
            _ => {
                for lane in lanes(passing) {
                    let span = self.barrier_span(Space::Shared, addresses[lane])?;
                    self.acquire_phase(span, 1 << lane, order);
                }
            }
        }
        self.set(done, &passed);
        Ok(Flow::Next)
    }

    /// The wait of lanes that ask for the same phase of the same barrier.
    fn try_wait_together(&mut self, done: ptx::RegId, order: Ordering, span: SharedSpan, parity: u32) -> Flow {
        let bar = self.cluster.blocks[span.block].shared.barriers.get(&span.offset);
        let passes = bar.is_some_and(|bar| bar.passes(parity));
        if !passes && self.core.program.traits(self.pc).spins {
            let wait = Wait::Phase { offset: span.offset, parity };
            lanes(self.mask).for_each(|lane| self.warp.waits[lane] = wait);
            return Flow::Stay;
        }
        if passes {
            self.acquire_phase(span, self.mask, order);
        }
        self.set(done, &[passes.into(); 32]);
        Flow::Next
    }

    fn acquire_phase(&mut self, span: SharedSpan, mask: u32, order: Ordering) {
        let Some(bar) = self.cluster.blocks[span.block].shared.barriers.get(&span.offset) else { return };
        let done = &bar.done;
        if order.sem == Semantics::Relaxed {
            // What was published is learnt at the next fence that reaches so far.
            let (own, elsewhere) = (self.agent(), Agent { block: u32::MAX, ..self.agent() });
            let glimpse = |by, knowledge: &Knowledge| Publication {
                by,
                scope: Scope::Cluster,
                knowledge: Rc::new(knowledge.clone()),
            };
            let local = glimpse(own, &done.local);
            let remote = done.remote.as_ref().map(|remote| glimpse(elsewhere, remote));
            self.warp.learn(mask, |known| known.executed.join(&done.executed));
            for lane in lanes(mask) {
                self.warp.glimpse(lane, local.clone());
                remote.iter().for_each(|remote| self.warp.glimpse(lane, remote.clone()));
            }
            return;
        }
        self.warp.learn(mask, |known| {
            known.executed.join(&done.executed);
            known.join(&done.local);
            if let (Some(remote), true) = (&done.remote, order.scope != Scope::Block) {
                known.join(remote);
            }
        });
    }

    fn named(&mut self, aligned: bool, id: Operand, threads: Option<Operand>, waits: bool) -> Result<Flow, FaultKind> {
        // Lanes that come one by one are waited for; those that never come are another matter, where they need not.
        match self.gather(self.warp.live) {
            Ok(None) => {}
            Ok(Some(wait)) => return Ok(wait),
            Err(FaultKind::Divergence { .. }) if !aligned => return Err(self.unsupported()),
            Err(divergence) => return Err(divergence),
        }
        let id = self.uniform("the number of a named barrier", id)?;
        if id > 15 {
            return Err(FaultKind::BadOperand { what: "the number of a named barrier", found: id, wanted: "0 to 15" });
        }
        let threads = threads.map(|threads| self.uniform("the threads of a named barrier", threads)).transpose()?;
        let threads = threads.map(|threads| threads as u32);
        let all = self.core.program.kernel.launch.threads;
        if let Some(threads) = threads
            && (!threads.is_multiple_of(32) || threads == 0 || threads > all)
        {
            let (what, found) = ("the threads of a named barrier", threads.into());
            return Err(FaultKind::BadOperand { what, found, wanted: "a multiple of 32, at most those of the block" });
        }
        let index = self.cluster.index;
        let block = &mut self.cluster.blocks[self.rank];
        let barrier = &mut block.named[id as usize];
        let (found, expected) = (threads.unwrap_or(all), barrier.threads.unwrap_or(all));
        if barrier.arrived > 0 && found != expected {
            return Err(FaultKind::NamedBarrierMismatch { id: id as u32, found, expected });
        }
        if barrier.there >> self.warp.index & 1 == 1 {
            let barrier = format!("{id} of the block (a warp comes to it once before it is complete)");
            return Err(FaultKind::OverArrival { barrier, phase: 0, arriving: 1, lacking: 0, expected: 1 });
        }
        barrier.threads = threads;
        barrier.arrived += 32;
        barrier.there |= 1 << self.warp.index;
        self.warp.publish(self.warp.live, barrier.gathered.get_or_insert_with(|| Knowledge::new(index)));
        if self.core.rules == Rules::Practice {
            let fenced = lanes(self.warp.live).filter_map(|lane| self.warp.fenced[lane].as_ref());
            for fenced in fenced.filter(|fenced| reaches_device(fenced.scope)) {
                barrier.fenced.get_or_insert_with(|| Knowledge::new(index)).join(&fenced.knowledge);
            }
        }
        let agent = Agent { cluster: index, block: self.rank as u32 };
        if waits {
            barrier.waiting.push(self.warp.index);
            lanes(self.warp.live).for_each(|lane| self.warp.waits[lane] = Wait::Named { id: id as u32 });
        }
        let complete = settle_named(block, id as usize, agent, Some(self.warp));
        Ok(if complete || !waits { Flow::Next } else { Flow::Stay })
    }

    fn cluster_arrive(&mut self, sem: Semantics, aligned: bool) -> Result<Flow, FaultKind> {
        if aligned && let Some(wait) = self.gather(self.warp.live)? {
            return Ok(wait);
        }
        let twice = self.warp.at_cluster & self.mask;
        if twice != 0 {
            let (phase, arriving) = (self.cluster.barrier.phase, twice.count_ones());
            let barrier = "of the cluster (wait before arriving again)".into();
            return Err(FaultKind::OverArrival { barrier, phase, arriving, lacking: 0, expected: 1 });
        }
        self.warp.at_cluster |= self.mask;
        let mut published = Knowledge::new(self.cluster.index);
        self.warp.publish(self.mask, &mut published);
        let barrier = &mut self.cluster.barrier;
        match sem {
            Semantics::Ordered => barrier.gathered.join(&published),
            Semantics::Relaxed => {
                barrier.gathered.executed.join(&published.executed);
                let fenced = lanes(self.mask).filter_map(|lane| self.warp.fenced[lane].as_ref());
                for fenced in fenced.filter(|fenced| fenced.scope != Scope::Block) {
                    barrier.gathered.join(&fenced.knowledge);
                }
            }
        }
        barrier.arrived += self.mask.count_ones();
        settle_cluster(self.cluster, Some(self.warp));
        Ok(Flow::Next)
    }

    fn cluster_wait(&mut self, aligned: bool) -> Result<Flow, FaultKind> {
        if aligned && let Some(wait) = self.gather(self.warp.live)? {
            return Ok(wait);
        }
        let absent = self.mask & !self.warp.at_cluster;
        if absent != 0 {
            let (what, found) = ("a wait at the cluster's barrier", absent.into());
            return Err(FaultKind::BadOperand { what, found, wanted: "an arrive by the same threads before it" });
        }
        // Nobody can arrive for the next phase before this thread has waited, so the phase tells whether it is over: a
        // thread that has arrived and not waited is in the phase after as many as it has waited for.
        let phase = self.warp.cluster_phase;
        if self.cluster.barrier.phase <= phase {
            return Ok(Flow::Wait(Wait::Cluster { phase }));
        }
        let done = &self.cluster.barrier.done;
        self.warp.learn(self.mask, |known| known.join(done));
        self.warp.at_cluster &= !self.mask;
        if self.warp.at_cluster == 0 {
            self.warp.cluster_phase += 1;
        }
        Ok(Flow::Next)
    }

    pub(crate) fn fence(&mut self, op: Fence) -> Result<(), FaultKind> {
        let (slot, tick, mask) = (self.warp.slot, self.warp.tick, self.mask);
        match op {
            Fence::AcqRel(scope) => lanes(mask).for_each(|lane| self.fence_lane(lane, scope)),
            Fence::ProxyAsync(window) => {
                // What its thread has copied itself and waited for goes the way of loads and stores, too.
                let (copies, awaited) = (self.warp.copies.slot, self.warp.copies.awaited);
                let practice = self.core.rules == Rules::Practice;
                self.warp.learn(mask, |known| {
                    let cover = |clock: &mut Clock| {
                        clock.join(&known.generic);
                        // In practice reads need only be over to be covered. What writes need besides is asked for
                        // elsewhere.
                        if practice {
                            clock.join(&known.executed);
                        }
                        clock.raise_lanes(slot, mask, tick);
                        let own = lanes(mask).filter(|&lane| awaited[lane] > 0);
                        own.for_each(|lane| clock.raise(copies + lane as u32, awaited[lane]));
                    };
                    if window != Some(Space::Global) {
                        cover(&mut known.async_shared);
                    }
                    if window.is_none_or(|window| window == Space::Global) {
                        cover(&mut known.async_global);
                    }
                });
                self.warp.tick += 1;
                if window != Some(Space::Global) {
                    self.publish_barriers(false);
                }
            }
            Fence::BarrierInit => {
                self.publish_barriers(true);
                self.warp.tick += 1;
            }
        }
        Ok(())
    }

    /// A fence is each thread's own: it learns what the thread's relaxed loads have seen, and its relaxed stores
    /// publish what the thread has done by then.
    fn fence_lane(&mut self, lane: usize, scope: Scope) {
        for publication in std::mem::take(&mut self.warp.glimpsed[lane]) {
            self.acquire(lane, scope, &publication);
        }
        let mut knowledge = Knowledge::new(self.cluster.index);
        self.warp.publish(1 << lane, &mut knowledge);
        self.warp.fenced[lane] = Some(Publication { by: self.agent(), scope, knowledge: Rc::new(knowledge) });
    }

    /// The barriers whose initialisation these lanes know of become visible to asynchronous work, and to those in the
    /// cluster who learn that the lanes were here.
    fn publish_barriers(&mut self, release: bool) {
        let (cluster, count) = (self.cluster.index, self.warp.tick);
        for lane in lanes(self.mask) {
            let (known, own) = (&self.warp.knowledge(lane).generic, self.warp.slot);
            for bar in self.cluster.blocks.iter_mut().flat_map(|block| block.shared.barriers.values_mut()) {
                let init = self.core.log.get(bar.init);
                let by_me = init.slot == own && bar.init_lane == lane as u32;
                // By the letter that fence is about the initialisations of its own thread.
                if release && !by_me && self.core.rules == Rules::Letter {
                    continue;
                }
                if by_me || known.get(init.cluster, init.slot + bar.init_lane) >= init.count {
                    bar.published = true;
                    bar.released.extend(release.then_some(Stamp { cluster, slot: own + lane as u32, count }));
                }
            }
        }
    }

    pub(crate) fn set_registers(&mut self, change: RegisterChange, count: u32) -> Result<Flow, FaultKind> {
        if let Some(wait) = self.gather(FULL)? {
            return Ok(wait);
        }
        if !count.is_multiple_of(8) || !(24..=256).contains(&count) {
            let (what, found) = ("a register budget", count.into());
            return Err(FaultKind::BadOperand { what, found, wanted: "a multiple of 8 from 24 to 256" });
        }
        self.met_since_change()?;
        let largest = self.core.program.kernel.body.iter().filter_map(|instr| match instr.op {
            Op::Control(Control::SetMaxRegisters { count, .. }) => Some(count),
            _ => None,
        });
        let largest = largest.max().unwrap_or(count);
        let (pool, budget) = (&mut self.cluster.blocks[self.rank].pool, self.warp.budget);
        match change {
            RegisterChange::Decrease if count > budget => {
                let (what, found) = ("the budget of setmaxnreg.dec", count.into());
                return Err(FaultKind::BadOperand { what, found, wanted: "at most what the warp has" });
            }
            RegisterChange::Decrease => *pool += (budget - count) * 32,
            // At launch a warp has no more than the largest budget that is named.
            RegisterChange::Increase if count < budget.min(largest) => {
                let (what, found) = ("the budget of setmaxnreg.inc", count.into());
                return Err(FaultKind::BadOperand { what, found, wanted: "at least what the warp has" });
            }
            RegisterChange::Increase if count <= budget => {
                self.warp.changes.push(self.warp.tick);
                return Ok(Flow::Next);
            }
            RegisterChange::Increase if *pool < (count - budget) * 32 => {
                return Ok(Flow::Wait(Wait::Registers { count }));
            }
            RegisterChange::Increase => *pool -= (count - budget) * 32,
        }
        self.warp.budget = count;
        self.warp.changes.push(self.warp.tick);
        Ok(Flow::Next)
    }

    /// By the letter the warps of a warpgroup meet between one change of their registers and the next.
    fn met_since_change(&self) -> Result<(), FaultKind> {
        if self.core.rules == Rules::Practice {
            return Ok(());
        }
        let (index, group) = (self.cluster.index, self.warp.index / 4 * 4);
        let Some(last) = self.warp.changes.len().checked_sub(1) else { return Ok(()) };
        let mut others = self.cluster.blocks[self.rank].warps.iter().skip(group).take(4).flatten();
        let knows = |other: &Warp| {
            let changed = other.changes.get(last);
            changed.is_some_and(|at| self.warp.known.executed.get(index, other.slot) >= *at)
        };
        if others.all(|other| knows(other)) {
            return Ok(());
        }
        let (what, found) = ("changes of a warp's registers since its warpgroup met", last as u64 + 1);
        Err(FaultKind::BadOperand { what, found, wanted: "none: let its warps meet between one and the next" })
    }
}

/// Arrives at the barriers that copies of a warp's threads were to tell of their end, as far as that has come. Those
/// who wait learn of the copies, and of nothing else that their threads did.
pub(crate) fn settle_signals(
    program: &Program<'_>,
    (cluster, who): (u32, (usize, usize)),
    copies: &mut Copies,
    shared: &mut SharedMemory,
) -> Result<(), FaultKind> {
    for Signal { lane, number, offset } in copies.due() {
        let Some(bar) = shared.barriers.get_mut(&offset) else { continue };
        let mut told = Knowledge::new(cluster);
        told.raise(copies.slot + lane as u32, number);
        bar.publish(cluster, Carry::Local, &told);
        bar.arrive(|| program.shared_name(offset), who, 1)?;
        bar.settle(cluster);
    }
    Ok(())
}

/// Whether a barrier is known to be initialised: by what orders the initialisation, or by a fence that releases it.
fn is_known(bar: &Mbarrier, init: &Record, knowledge: &Knowledge) -> bool {
    let executed = &knowledge.executed;
    knowledge.generic.get(init.cluster, init.slot + bar.init_lane) >= init.count
        || bar.released.iter().any(|by| executed.get(by.cluster, by.slot) >= by.count)
}

/// Whether what a fence of this scope covers is seen by the whole device.
fn reaches_device(scope: Scope) -> bool {
    matches!(scope, Scope::Gpu | Scope::System)
}

/// Completes a named barrier of an agent's block if all are there: those who wait learn what all published, and go on.
/// `running` is the warp that is executing, if it belongs to this block.
pub(crate) fn settle_named(block: &mut Block, id: usize, agent: Agent, mut running: Option<&mut Warp>) -> bool {
    let alive = block.warps.iter().flatten().filter(|warp| warp.live != 0).count() as u32;
    let alive = alive + u32::from(running.is_some());
    let barrier = &mut block.named[id];
    if barrier.arrived == 0 || barrier.arrived < barrier.threads.unwrap_or(32 * alive) {
        return false;
    }
    let Some(gathered) = barrier.gathered.take() else { return false };
    // What the fences of some have brought to the whole device is there, and one of those they met may tell of it.
    let fenced = barrier.fenced.take().map(|knowledge| Publication {
        by: agent,
        scope: Scope::Gpu,
        knowledge: Rc::new(knowledge),
    });
    (barrier.arrived, barrier.there) = (0, 0);
    for index in std::mem::take(&mut barrier.waiting) {
        let is_running = running.as_ref().is_some_and(|warp| warp.index == index);
        let warp = match (&mut running, block.warps[index].as_deref_mut()) {
            (Some(warp), _) if is_running => &mut **warp,
            (_, Some(warp)) => warp,
            _ => continue,
        };
        let live = warp.live;
        warp.learn(live, |known| known.join(&gathered));
        warp.apart = Default::default();
        for lane in lanes(live) {
            warp.waits[lane] = Wait::None;
            let own = warp.fenced[lane].as_ref().is_none_or(|own| reaches_device(own.scope));
            if let Some(fenced) = fenced.as_ref().filter(|_| own) {
                warp.fenced[lane] = Some(fenced.clone());
            }
            if !is_running {
                warp.pc[lane] += 1;
            }
        }
        block.rests[index] = Rest::Awake;
    }
    true
}

/// Completes the cluster's barrier if every thread that has not exited is there.
pub(crate) fn settle_cluster(cluster: &mut Cluster, running: Option<&Warp>) {
    let phase = cluster.barrier.phase;
    let is_there = |warp: &Warp| {
        let arrived = if warp.cluster_phase == phase { warp.at_cluster } else { 0 };
        warp.live & !arrived == 0
    };
    let mut others = cluster.blocks.iter().flat_map(|block| block.warps.iter().flatten());
    let complete = running.is_none_or(is_there) && others.all(|warp| is_there(warp));
    let barrier = &mut cluster.barrier;
    if barrier.arrived > 0 && complete {
        barrier.phase += 1;
        barrier.arrived = 0;
        barrier.done = std::mem::replace(&mut barrier.gathered, Knowledge::new(cluster.index));
    }
}
