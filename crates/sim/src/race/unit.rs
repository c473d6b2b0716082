//! What is remembered of the smallest piece of memory that is told apart, and how an access is checked against it.

use super::log::{Log, Mark, RecordId};
use super::observer::Observer;

/// The other side of a race.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict {
    pub(crate) record: RecordId,
    pub(crate) was_write: bool,
    /// First byte of the unit in question.
    pub(crate) byte: usize,
    /// Whether the two are in order, and all that lacks is a fence between their proxies.
    pub(crate) unfenced: bool,
}

/// What is remembered of some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) write: Mark,
    /// The last write that was not strong, if strong ones came after it: they are ordered neither by nor against each
    /// other, so it must be remembered for itself.
    pub(super) plain: Mark,
    pub(super) read: Mark,
    /// Further unordered readers: position in `Shadow::crowds`, from one.
    pub(super) crowd: u32,
}

impl Unit {
    /// What is remembered where nothing was accessed.
    pub(super) const NONE: Unit = Unit { write: Mark(0), plain: Mark(0), read: Mark(0), crowd: 0 };
}

/// Writes, by thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writers(Vec<Mark>);

impl Writers {
    pub(super) fn add(&mut self, unit: &Unit) {
        for mark in [unit.write, unit.plain] {
            if !mark.is_none() && self.0.last() != Some(&mark) {
                self.0.push(mark);
            }
        }
    }

    /// Each of them once.
    pub(super) fn distinct(mut self) -> Self {
        self.0.sort_unstable_by_key(|mark| mark.0);
        self.0.dedup();
        self
    }

    /// Whether all of them are ordered before what an observer does.
    pub(crate) fn precede(&self, log: &Log, who: &mut Observer<'_>) -> bool {
        self.0.iter().all(|mark| who.knows(log, *mark, false))
    }
}

/// Sets of readers. Neighbouring units mostly have the same, so a set is never changed, and named by any number of
/// units.
#[derive(Clone, Debug, Default)]
pub(super) struct Crowds {
    marks: Vec<Mark>,
    /// First mark and number of marks of each.
    sets: Vec<(u32, u32)>,
}

impl Crowds {
    pub(super) fn get(&self, crowd: u32) -> &[Mark] {
        match (crowd as usize).checked_sub(1) {
            Some(at) => &self.marks[self.sets[at].0 as usize..][..self.sets[at].1 as usize],
            None => &[],
        }
    }

    /// The readers of a set that are not known to be over, and one more.
    fn joined(&mut self, crowd: u32, newest: Mark, log: &Log, who: &mut Observer<'_>) -> u32 {
        let (start, before) = (self.marks.len(), crowd as usize);
        if let Some((first, count)) = before.checked_sub(1).map(|at| self.sets[at]) {
            for at in first..first + count {
                let mark = self.marks[at as usize];
                if !who.knows(log, mark, true) {
                    self.marks.push(mark);
                }
            }
        }
        self.marks.push(newest);
        self.sets.push((start as u32, (self.marks.len() - start) as u32));
        self.sets.len() as u32
    }
}

/// An access that is being noted, and what was found on the way: neighbours mostly have the same history.
pub(super) struct Noting<'n, 'o> {
    log: &'n Log,
    pub(super) who: &'n mut Observer<'o>,
    mark: Mark,
    pub(super) write: bool,
    /// Whether the access is strong.
    pub(super) strong: bool,
    /// The last write, and the last read, that were found to be ordered before.
    ordered: [Mark; 2],
    /// The last reader that was replaced, and by what.
    replaced: [Mark; 2],
    /// The last crowd and reader that were joined, and the crowd that came of it.
    joined: (u32, Mark, u32),
    /// Where conflicts go if the access is noted in spite of them.
    pub(super) conflicts: Option<Vec<Conflict>>,
}

impl<'n, 'o> Noting<'n, 'o> {
    pub(super) fn new(log: &'n Log, who: &'n mut Observer<'o>, write: bool) -> Self {
        let (mark, none) = (Mark::new(who.record, who.lane), Mark::default());
        let strong = log.get(who.record).strong.is_some();
        let (ordered, replaced, joined) = ([none; 2], [none; 2], (0, none, 0));
        Noting { log, who, mark, write, strong, ordered, replaced, joined, conflicts: None }
    }

    /// Goes on with the access of another lane: what was found for the one before need not hold for it.
    pub(super) fn begin(&mut self) {
        let none = Mark::default();
        self.mark = Mark::new(self.who.record, self.who.lane);
        (self.ordered, self.replaced, self.joined) = ([none; 2], [none; 2], (0, none, 0));
    }

    fn race(&mut self, mark: Mark, was_write: bool, byte: usize) -> Result<(), Conflict> {
        let strong = |noting: &Self| noting.log.get(noting.who.record).strong_with(noting.log.get(mark.record()));
        if self.who.knows(self.log, mark, !was_write) || strong(self) {
            return Ok(());
        }
        self.conflict(mark, was_write, byte)
    }

    #[cold]
    fn conflict(&mut self, mark: Mark, was_write: bool, byte: usize) -> Result<(), Conflict> {
        let unfenced = self.who.lacks_only_a_fence(self.log, mark, !was_write);
        let conflict = Conflict { record: mark.record(), was_write, byte, unfenced };
        match &mut self.conflicts {
            Some(conflicts) => conflicts.push(conflict),
            None => return Err(conflict),
        }
        Ok(())
    }

    #[inline]
    pub(super) fn note(&mut self, unit: &mut Unit, crowds: &mut Crowds, byte: usize) -> Result<(), Conflict> {
        if self.write { self.note_write(unit, crowds, byte) } else { self.note_read(unit, crowds, byte) }
    }

    /// The last write comes before what is noted, or there is none.
    #[inline]
    fn follow_write(&mut self, unit: &Unit, byte: usize) -> Result<(), Conflict> {
        if unit.write.is_none() || unit.write == self.ordered[0] || self.who.remembers(unit.write, false) {
            return Ok(());
        }
        self.race(unit.write, true, byte)?;
        self.ordered[0] = unit.write;
        Ok(())
    }

    #[inline]
    fn note_read(&mut self, unit: &mut Unit, crowds: &mut Crowds, byte: usize) -> Result<(), Conflict> {
        self.follow_write(unit, byte)?;
        if !unit.plain.is_none() && !self.who.knows(self.log, unit.plain, false) {
            self.conflict(unit.plain, true, byte)?;
        }
        let before = unit.read;
        if before.is_none() || before == self.mark {
            unit.read = self.mark;
            return Ok(());
        }
        if before == self.replaced[0] {
            unit.read = self.replaced[1];
            return Ok(());
        }
        if before.record() == self.mark.record() || self.who.supersedes(self.log, before) {
            unit.read = Mark::new(self.who.record, None);
        } else if self.who.knows(self.log, before, true) {
            unit.read = self.mark;
        } else {
            // Several unordered readers: the newest in front, the others behind.
            if (unit.crowd, before) != (self.joined.0, self.joined.1) {
                self.joined = (unit.crowd, before, crowds.joined(unit.crowd, before, self.log, self.who));
            }
            unit.crowd = self.joined.2;
            unit.read = self.mark;
            return Ok(());
        }
        self.replaced = [before, unit.read];
        Ok(())
    }

    #[inline]
    fn note_write(&mut self, unit: &mut Unit, crowds: &Crowds, byte: usize) -> Result<(), Conflict> {
        self.follow_write(unit, byte)?;
        if !unit.plain.is_none() {
            self.race(unit.plain, true, byte)?;
        }
        if !unit.read.is_none() && unit.read != self.ordered[1] && !self.who.remembers(unit.read, true) {
            self.race(unit.read, false, byte)?;
            self.ordered[1] = unit.read;
        }
        for mark in crowds.get(unit.crowd) {
            self.race(*mark, false, byte)?;
        }
        if !self.strong {
            *unit = Unit { write: self.mark, ..Unit::default() };
            return Ok(());
        }
        if !unit.write.is_none() && self.log.get(unit.write.record()).strong.is_none() {
            unit.plain = unit.write;
        }
        unit.write = self.mark;
        Ok(())
    }
}
