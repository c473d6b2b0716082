//! A warp: 32 lanes, each with a program counter, registers and a state; what each lane knows of the others' work.
//!
//! Lanes with the same program counter run together, those with the smallest first, so lanes that diverged meet again
//! where their paths join. Lanes that wait let the others go on.

use std::rc::Rc;

use ptx::instr::Guard;
use ptx::{Bank, Operand, RegId};

use crate::clock::{Cleared, Knowledge};
use crate::flag::Publication;
use crate::lanes::{self, FULL, Lanes, Words, lanes};
use crate::program::{NewPlaces, Program, Storage};

/// What a lane waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    None,
    /// A barrier in this block's shared memory, by offset.
    Phase { offset: u32, parity: u32 },
    /// A named barrier; whoever completes it clears this.
    Named { id: u32 },
    /// The cluster's barrier to leave this phase.
    Cluster { phase: u32 },
    /// This thread's bulk stores: all groups up to this number read, or also written.
    Bulk { group: u32, read: bool },
    /// This warp's copies by threads: all groups up to this number.
    Copies { group: u32 },
    /// The warpgroup's multiplications up to this number.
    Wgmma { number: u32 },
    /// Registers in the block's pool.
    Registers { count: u32 },
    /// Columns of tensor memory.
    Tensor { columns: u32, pair: bool },
    /// The other block of the pair to come to its collective operation of this number.
    Pair { number: u32 },
    /// Other lanes of the warp to come here.
    Lanes { mask: u32 },
}

/// Whether a warp can go on, as far as its own lanes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Some lane waits for nothing.
    Awake,
    /// All lanes wait for this.
    Asleep(Wait),
    /// They wait for different things, or for what depends on who waits.
    Mixed,
}

/// What is known of a bank's registers, by register.
#[derive(Clone, Debug)]
struct Marks {
    /// The lanes in which it is defined.
    defined: Vec<u32>,
    /// Those in which its value comes of memory that was never written, and the instruction that read that.
    tainted: Vec<u32>,
    origin: Vec<u32>,
}

/// The values of registers, by place: a bit per lane of predicates, and as many bits as they have of the others.
#[derive(Clone, Debug)]
struct Values {
    predicates: Vec<u32>,
    halves: Vec<Words>,
    words: Vec<Words>,
    wides: Vec<Lanes>,
}

impl Values {
    /// Room for so many places of each bank.
    fn resize(&mut self, counts: [u32; 4]) {
        let count = |bank: Bank| counts[bank.index()] as usize;
        self.predicates.resize(count(Bank::Pred), 0);
        self.halves.resize(count(Bank::B16), [0; 32]);
        self.words.resize(count(Bank::B32), [0; 32]);
        self.wides.resize(count(Bank::B64), [0; 32]);
    }

    /// Copies what is at one place of a bank to another.
    fn copy(&mut self, bank: Bank, from: usize, to: usize) {
        match bank {
            Bank::Pred => self.predicates[to] = self.predicates[from],
            Bank::B16 => self.halves[to] = self.halves[from],
            Bank::B32 => self.words[to] = self.words[from],
            Bank::B64 => self.wides[to] = self.wides[from],
        }
    }
}

/// What a lane that went its own way knows, or nothing while it knows what the warp knows.
type Apart = Option<Box<Knowledge>>;

/// Registers that a running multiplication owns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owned {
    /// The multiplication's number in the warpgroup's queue, from one; zero if none.
    pub(crate) number: u32,
    /// Its position in the kernel.
    pub(crate) pc: u32,
    /// Whether it is an accumulator rather than a part of A.
    pub(crate) accumulator: bool,
}

/// What has used a register since the last wgmma.fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Nothing.
    None,
    /// A thread; or there has been no fence yet.
    Thread,
    /// Multiplications of so many columns, as an accumulator.
    Accumulator(u32),
    /// Multiplications, as a part of A.
    Fragment,
}

/// The copies that the threads of a warp have issued one by one.
#[derive(Clone, Debug)]
pub(crate) struct Copies {
    /// Slot of lane 0's groups; the other lanes' follow.
    pub(crate) slot: u32,
    /// Groups that each lane has closed.
    pub(crate) committed: [u32; 32],
    /// Groups that each lane has waited for.
    pub(crate) awaited: [u32; 32],
    /// The last copy that each lane has issued: its group, and its position in the kernel.
    pub(crate) last: [(u32, u32); 32],
    /// Those in flight: a name, the lanes and their group.
    pub(crate) flying: Vec<(u64, u32, u32)>,
    /// Groups that were closed by an arrival at a barrier, which waits for groups do not count: lane and number.
    uncounted: Vec<(usize, u32)>,
    /// Arrivals that wait for copies.
    signals: Vec<Signal>,
    /// The groups of each lane that a barrier has been, or will be, told of.
    pub(crate) told: [u32; 32],
}

/// An arrival at a barrier of the block (by its offset) that comes when a lane's copies up to a group are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signal {
    pub(crate) lane: usize,
    pub(crate) number: u32,
    pub(crate) offset: u32,
}

impl Copies {
    fn new(slot: u32) -> Self {
        Copies {
            slot,
            committed: [0; 32],
            awaited: [0; 32],
            last: [(0, 0); 32],
            flying: Vec::new(),
            uncounted: Vec::new(),
            signals: Vec::new(),
            told: [0; 32],
        }
    }

    /// Has the copies of a lane so far arrive at a barrier when they are there. They are a group of their own, and
    /// those that follow another.
    pub(crate) fn signal(&mut self, lane: usize, offset: u32) {
        self.committed[lane] += 1;
        let number = self.committed[lane];
        self.uncounted.push((lane, number));
        self.told[lane] = number;
        self.signals.push(Signal { lane, number, offset });
    }

    /// The arrivals whose copies are all there; they are taken.
    pub(crate) fn due(&mut self) -> Vec<Signal> {
        let mut due = std::mem::take(&mut self.signals);
        self.signals = due.extract_if(.., |signal| !self.landed(1 << signal.lane, signal.number)).collect();
        due
    }

    /// The last group of a lane that a wait for all but so many groups is for.
    pub(crate) fn awaits(&self, lane: usize, pending: u32) -> u32 {
        let (mut number, mut left) = (self.committed[lane], pending);
        while number > 0 {
            match self.uncounted.contains(&(lane, number)) {
                true => {}
                false if left == 0 => break,
                false => left -= 1,
            }
            number -= 1;
        }
        number
    }

    /// Whether all groups up to this number are there, of all lanes of the mask.
    pub(crate) fn landed(&self, mask: u32, group: u32) -> bool {
        !self.flying.iter().any(|(_, lanes, of)| lanes & mask != 0 && *of <= group)
    }
}

/// A register that is being loaded from tensor memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loading {
    pub(crate) reg: RegId,
    /// The instruction that loads it, and which of the warp's loads it is.
    pub(crate) pc: u32,
    pub(crate) number: u32,
}

/// A warp.
#[derive(Clone, Debug)]
pub(crate) struct Warp {
    /// Position in the block.
    pub(crate) index: usize,
    /// Slot of lane 0.
    pub(crate) slot: u32,
    /// Where each lane is. During a turn in which all of them go on together, that is known to whoever has the turn,
    /// and not kept here.
    pub(crate) pc: [u32; 32],
    pub(crate) waits: [Wait; 32],
    pub(crate) live: u32,
    /// Where all living lanes go on, if they wait for nothing, and it has been worked out.
    pub(crate) together: Option<u32>,
    /// The instructions all of whose registers were seen to be defined in all lanes, one bit each: what is defined
    /// remains so.
    sound: Vec<u64>,
    values: Values,
    marks: [Marks; 4],
    storage: Rc<Storage>,
    /// Whether any register was ever tainted.
    pub(crate) taints: bool,
    /// Common knowledge of the lanes.
    pub(crate) known: Knowledge,
    pub(crate) apart: [Apart; 32],
    /// What the common knowledge is known to cover: for accesses of threads, and of asynchronous work to shared and to
    /// global memory.
    pub(crate) cleared: [Cleared; 3],
    /// Count with which the warp's accesses are stamped. It rises whenever a lane publishes.
    pub(crate) tick: u32,
    /// What each lane's last fence.acq_rel covered, published by its relaxed stores after it.
    pub(crate) fenced: [Option<Publication>; 32],
    /// What each lane's relaxed loads have seen, learnt at its next fence.acq_rel.
    pub(crate) glimpsed: [Vec<Publication>; 32],
    /// 32-bit registers owned by multiplications in flight.
    pub(crate) owned: Vec<Owned>,
    /// Multiplications issued, and the number up to which each committed group goes.
    pub(crate) issued: u32,
    pub(crate) groups: Vec<u32>,
    /// Number up to which multiplications are known to be done.
    pub(crate) retired: u32,
    /// What has used each 32-bit register since the last wgmma.fence.
    pub(crate) used: Vec<Use>,
    /// Register budget per thread.
    pub(crate) budget: u32,
    /// When it was changed, each time.
    pub(crate) changes: Vec<u32>,
    /// Slot and count of the warp's loads from and stores to tensor memory.
    pub(crate) tensor: [(u32, u32); 2],
    /// The number of the pair's collective operation that the warp is in, if it is in one.
    pub(crate) collective: Option<u32>,
    /// Registers being loaded from tensor memory.
    pub(crate) loading: Vec<Loading>,
    /// What its threads have copied one by one.
    pub(crate) copies: Copies,
    /// Waits at the cluster's barrier completed.
    pub(crate) cluster_phase: u32,
    /// Lanes that have arrived at the cluster's barrier and not yet waited.
    pub(crate) at_cluster: u32,
}

impl Warp {
    /// Slots from that of the warp's loads from, or stores to, tensor memory to the one that tells that they were
    /// waited for, whether or not a tcgen05 fence came behind that.
    pub(crate) const AWAITED: u32 = 2;

    pub(crate) fn new(index: usize, slot: u32, program: &Program<'_>, known: Knowledge, budget: u32) -> Self {
        let (counts, storage) = (program.kernel.registers, program.storage.clone());
        let none = |bank: Bank| vec![0; counts[bank.index()] as usize];
        let marks = |bank: Bank| Marks { defined: none(bank), tainted: none(bank), origin: none(bank) };
        let mut values = Values { predicates: Vec::new(), halves: Vec::new(), words: Vec::new(), wides: Vec::new() };
        values.resize(storage.counts);
        let words = counts[Bank::B32.index()] as usize;
        Warp {
            index,
            slot,
            pc: [0; 32],
            waits: [Wait::None; 32],
            live: FULL,
            together: None,
            sound: Vec::new(),
            values,
            marks: Bank::ALL.map(marks),
            storage,
            taints: false,
            known,
            apart: Default::default(),
            cleared: Default::default(),
            tick: 1,
            fenced: Default::default(),
            glimpsed: Default::default(),
            owned: vec![Owned { number: 0, pc: 0, accumulator: false }; words],
            issued: 0,
            groups: Vec::new(),
            retired: 0,
            used: vec![Use::Thread; words],
            budget,
            changes: Vec::new(),
            at_cluster: 0,
            cluster_phase: 0,
            tensor: [(0, 0); 2],
            collective: None,
            loading: Vec::new(),
            copies: Copies::new(0),
        }
    }

    /// Gives the copies of its threads slots of their own, 32 from this one on.
    pub(crate) fn copies_from(&mut self, slot: u32) {
        self.copies = Copies::new(slot);
    }

    /// Goes on as a warp of a mutant, with some registers at places of its own, each with the place that it had before,
    /// if it had one; `stood` says where instructions are in the mutant.
    pub(crate) fn take_over(&mut self, program: &Program<'_>, stood: impl Fn(&mut u32), places: &NewPlaces) {
        self.storage = program.storage.clone();
        // It will be seen again.
        self.sound.clear();
        self.values.resize(self.storage.counts);
        for bank in Bank::ALL {
            let (marks, count) = (&mut self.marks[bank.index()], program.kernel.registers[bank.index()] as usize);
            [&mut marks.defined, &mut marks.tainted, &mut marks.origin].into_iter().for_each(|of| of.resize(count, 0));
            marks.origin.iter_mut().for_each(&stood);
            for &(place, before) in &places[bank.index()] {
                if let Some(before) = before {
                    self.values.copy(bank, before as usize, place as usize);
                }
            }
        }
        let words = program.kernel.registers[Bank::B32.index()] as usize;
        self.owned.resize(words, Owned { number: 0, pc: 0, accumulator: false });
        self.used.resize(words, Use::Thread);
    }

    /// All lanes are at one instruction.
    pub(crate) fn stand(&mut self, pc: u32) {
        self.pc = [pc; 32];
    }

    /// Sums up what the lanes wait for.
    pub(crate) fn rest(&self) -> Rest {
        if self.together.is_some() {
            return Rest::Awake;
        }
        if lanes(self.live).any(|lane| self.waits[lane] == Wait::None) {
            return Rest::Awake;
        }
        // Lanes that wait for others of the warp go on when those have moved, and not before.
        let gathers = |lane: &usize| matches!(self.waits[*lane], Wait::Lanes { .. });
        if lanes(self.live).filter(gathers).any(|lane| self.have_gathered(lane)) {
            return Rest::Mixed;
        }
        let mut others = lanes(self.live).filter(|lane| !gathers(lane)).map(|lane| self.waits[lane]);
        match others.next() {
            None | Some(Wait::Bulk { .. } | Wait::Registers { .. }) => Rest::Mixed,
            Some(wait) if others.all(|other| other == wait) => Rest::Asleep(wait),
            Some(_) => Rest::Mixed,
        }
    }

    /// Whether all lanes for which a lane waits are where it is.
    fn have_gathered(&self, lane: usize) -> bool {
        let Wait::Lanes { mask } = self.waits[lane] else { return true };
        lanes(mask & self.live).all(|other| self.pc[other] == self.pc[lane])
    }

    /// The ready lanes with the smallest program counter. `ready` judges a lane's wait.
    pub(crate) fn next(&self, ready: impl Fn(usize, Wait) -> bool) -> Option<(u32, u32)> {
        let first = self.live.trailing_zeros() as usize;
        if first == 32 {
            return None;
        }
        let (pc, wait) = (self.pc[first], self.waits[first]);
        let alone = matches!(wait, Wait::Lanes { .. } | Wait::Bulk { .. });
        if !alone && lanes(self.live).all(|lane| (self.pc[lane], self.waits[lane]) == (pc, wait)) {
            return (wait == Wait::None || ready(first, wait)).then_some((pc, self.live));
        }
        let able = |lane: usize| match self.waits[lane] {
            Wait::None => true,
            Wait::Lanes { .. } => self.have_gathered(lane),
            wait => ready(lane, wait),
        };
        let mut best: Option<(u32, u32)> = None;
        for lane in lanes(self.live) {
            let pc = self.pc[lane];
            if best.is_some_and(|(least, _)| pc > least) || !able(lane) {
                continue;
            }
            let together = best.filter(|(least, _)| *least == pc).map_or(0, |(_, mask)| mask);
            best = Some((pc, together | 1 << lane));
        }
        best
    }

    /// The values of a register.
    pub(crate) fn get(&self, reg: RegId) -> Lanes {
        let place = self.storage.place(reg);
        match reg.bank {
            Bank::Pred => lanes::spread(self.values.predicates[place]),
            Bank::B16 => lanes::wide(&self.values.halves[place]),
            Bank::B32 => lanes::wide(&self.values.words[place]),
            Bank::B64 => self.values.wides[place],
        }
    }

    /// The value of a register in one lane.
    pub(crate) fn get_lane(&self, reg: RegId, lane: usize) -> u64 {
        let place = self.storage.place(reg);
        match reg.bank {
            Bank::Pred => u64::from(self.values.predicates[place] >> lane & 1),
            Bank::B16 => self.values.halves[place][lane].into(),
            Bank::B32 => self.values.words[place][lane].into(),
            Bank::B64 => self.values.wides[place][lane],
        }
    }

    /// The low words of a register.
    pub(crate) fn words(&self, reg: RegId) -> Words {
        match reg.bank {
            Bank::B32 => self.values.words[self.storage.place(reg)],
            _ => lanes::narrow(&self.get(reg)),
        }
    }

    /// The words of a register that is multiplied: programs with others are refused.
    pub(crate) fn multiplied(&self, reg: RegId) -> &Words {
        const NONE: &Words = &[0; 32];
        let place = self.storage.place(reg);
        self.values.words.get(place).filter(|_| reg.bank == Bank::B32).unwrap_or(NONE)
    }

    /// The value of an operand in every lane.
    pub(crate) fn value(&self, operand: Operand) -> Lanes {
        match operand {
            Operand::Reg(reg) => self.get(reg),
            Operand::Imm(bits) => [bits; 32],
        }
    }

    /// The same where it is of 32 bits, without a copy of registers; a literal is put into `room`.
    #[inline(always)]
    pub(crate) fn read<'w>(&'w self, operand: Operand, room: &'w mut Option<Words>) -> Option<&'w Words> {
        match operand {
            Operand::Reg(reg) if reg.bank == Bank::B32 => Some(&self.values.words[self.storage.place(reg)]),
            Operand::Reg(_) => None,
            Operand::Imm(bits) => Some(room.insert([u32::try_from(bits).ok()?; 32])),
        }
    }

    /// The lanes in which a predicate holds.
    pub(crate) fn holds(&self, pred: RegId) -> u32 {
        match pred.bank {
            Bank::Pred => self.values.predicates[self.storage.place(pred)],
            _ => lanes::mask_of(|lane| self.get_lane(pred, lane) & 1 == 1),
        }
    }

    /// The lanes of `group` that execute an instruction with this guard.
    pub(crate) fn acting(&self, guard: Option<Guard>, group: u32) -> u32 {
        let Some(guard) = guard else { return group };
        let holds = self.holds(guard.pred);
        group & if guard.negated { !holds } else { holds }
    }

    /// Lanes of `mask` in which a register was never written.
    pub(crate) fn undefined(&self, reg: RegId, mask: u32) -> u32 {
        mask & !self.marks[reg.bank.index()].defined[reg.index as usize]
    }

    /// Whether all registers that an instruction reads were seen to be defined in all lanes.
    pub(crate) fn is_sound(&self, pc: u32) -> bool {
        self.sound.get(pc as usize / 64).is_some_and(|word| word >> (pc % 64) & 1 == 1)
    }

    /// They were.
    pub(crate) fn make_sound(&mut self, pc: u32) {
        let word = pc as usize / 64;
        if self.sound.len() <= word {
            self.sound.resize(word + 1, 0);
        }
        self.sound[word] |= 1 << (pc % 64);
    }

    /// Replaces a register's value in the lanes of `mask`.
    pub(crate) fn set(&mut self, reg: RegId, mask: u32, values: &Lanes) {
        let place = self.storage.place(reg);
        match reg.bank {
            Bank::Pred => return self.set_predicate(reg, mask, lanes::mask_of(|lane| values[lane] & 1 == 1)),
            Bank::B16 => {
                lanes::replace(&mut self.values.halves[place], mask, &values.map(|value| value as u32 & 0xffff));
            }
            Bank::B32 => return self.set_words(reg, mask, &lanes::narrow(values)),
            Bank::B64 => lanes::replace(&mut self.values.wides[place], mask, values),
        }
        self.define(reg, mask);
    }

    /// The same for words.
    pub(crate) fn set_words(&mut self, reg: RegId, mask: u32, words: &Words) {
        if reg.bank != Bank::B32 {
            return self.set(reg, mask, &lanes::wide(words));
        }
        lanes::replace(&mut self.values.words[self.storage.place(reg)], mask, words);
        self.define(reg, mask);
        self.used[reg.index as usize] = Use::Thread;
    }

    /// The same for a predicate, given the lanes in which it holds.
    pub(crate) fn set_predicate(&mut self, reg: RegId, mask: u32, holds: u32) {
        if reg.bank != Bank::Pred {
            return self.set(reg, mask, &lanes::spread(holds));
        }
        let old = &mut self.values.predicates[self.storage.place(reg)];
        *old = *old & !mask | holds & mask;
        self.define(reg, mask);
    }

    /// Takes a register for written in these lanes.
    pub(crate) fn define(&mut self, reg: RegId, mask: u32) {
        let (marks, index) = (&mut self.marks[reg.bank.index()], reg.index as usize);
        marks.defined[index] |= mask;
        marks.tainted[index] &= !mask;
    }

    /// Replaces a word register's value in all lanes, as the tensor cores do.
    pub(crate) fn deposit(&mut self, reg: RegId, words: &Words) {
        self.values.words[self.storage.place(reg)] = *words;
        self.define(reg, FULL);
    }

    /// Lanes in which a register's value comes of memory that was never written.
    pub(crate) fn tainted(&self, reg: RegId) -> u32 {
        self.marks[reg.bank.index()].tainted[reg.index as usize]
    }

    /// The instruction that read what was never written.
    pub(crate) fn origin(&self, reg: RegId) -> u32 {
        self.marks[reg.bank.index()].origin[reg.index as usize]
    }

    /// Takes a register for written in these lanes: that it is not was reported.
    pub(crate) fn untaint(&mut self, reg: RegId, mask: u32) {
        self.marks[reg.bank.index()].tainted[reg.index as usize] &= !mask;
    }

    /// A register's value in these lanes comes of memory that was never written, and that this instruction read.
    pub(crate) fn taint(&mut self, reg: RegId, mask: u32, origin: u32) {
        if mask != 0 {
            let marks = &mut self.marks[reg.bank.index()];
            marks.tainted[reg.index as usize] |= mask;
            marks.origin[reg.index as usize] = origin;
            self.taints = true;
        }
    }

    /// Whether any lane knows more than the warp does.
    pub(crate) fn parted(&self) -> bool {
        self.apart.iter().any(Option::is_some)
    }

    /// What a lane knows.
    pub(crate) fn knowledge(&self, lane: usize) -> &Knowledge {
        self.apart[lane].as_deref().unwrap_or(&self.known)
    }

    /// The lanes of `mask` learn something.
    pub(crate) fn learn(&mut self, mask: u32, learn: impl Fn(&mut Knowledge)) {
        if mask & self.live == self.live {
            learn(&mut self.known);
            self.apart.iter_mut().flatten().for_each(|apart| learn(apart));
        } else {
            for lane in lanes(mask) {
                learn(self.apart[lane].get_or_insert_with(|| Box::new(self.known.clone())));
            }
        }
    }

    /// A lane has seen what it will have learnt after its next fence.
    pub(crate) fn glimpse(&mut self, lane: usize, publication: Publication) {
        let seen = &mut self.glimpsed[lane];
        if !seen.iter().any(|other| Rc::ptr_eq(&other.knowledge, &publication.knowledge)) {
            seen.push(publication);
        }
    }

    /// Adds what the lanes of `mask` know and have done to `into`, and starts a new count for what they do next.
    pub(crate) fn publish(&mut self, mask: u32, into: &mut Knowledge) {
        let (slot, tick) = (self.slot, self.tick);
        if lanes(mask).any(|lane| self.apart[lane].is_none()) {
            into.join(&self.known);
        }
        lanes(mask).filter_map(|lane| self.apart[lane].as_deref()).for_each(|apart| into.join(apart));
        into.generic.raise_lanes(slot, mask, tick);
        into.executed.raise_lanes(slot, mask, tick);
        for lane in lanes(mask).filter(|&lane| self.copies.awaited[lane] > 0) {
            into.raise(self.copies.slot + lane as u32, self.copies.awaited[lane]);
        }
        self.tick += 1;
    }

    /// The lanes of `mask` meet: each learns what the others know and have done.
    pub(crate) fn meet(&mut self, mask: u32) {
        let mut all = self.known.clone();
        self.publish(mask, &mut all);
        lanes(mask).filter_map(|lane| self.apart[lane].as_deref()).for_each(|apart| all.tensor.join(&apart.tensor));
        if mask & self.live == self.live {
            self.known = all;
            self.apart = Default::default();
        } else {
            self.learn(mask, |known| known.join(&all));
        }
    }
}
