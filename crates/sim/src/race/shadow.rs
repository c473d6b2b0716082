//! The shadow of a piece of memory: what is remembered of it, by lines and, where parts of a line are accessed, by
//! units.

use std::ops::Range;
use std::rc::Rc;

use super::log::{Log, Remembered};
use super::observer::Observer;
use super::unit::{Conflict, Crowds, Noting, Unit, Writers};
use crate::clock::Knowledge;

/// Bytes that are mostly accessed together: the sixteen that tensor cores, copies by threads and wide loads move at
/// once, rows of global memory that the copy engine brings, or a warp's lanes of a column of tensor memory.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// What is remembered of all of them, unless they are told apart.
    whole: Unit,
    /// Position of their units in `Shadow::units`, from one, if they ever were told apart.
    parts: u32,
    split: bool,
}

impl Line {
    /// Tells its parts apart, if they are not: the position of its first unit.
    #[inline]
    fn split(&mut self, units: &mut Vec<Unit>, per_line: usize) -> usize {
        if self.parts == 0 {
            self.parts = units.len() as u32 + 1;
            units.resize(units.len() + per_line, Unit::default());
        }
        let first = self.parts as usize - 1;
        if !self.split {
            self.split = true;
            units[first..first + per_line].fill(self.whole);
        }
        first
    }
}

/// Bytes of a line where nothing else is said.
const LINE: usize = 16;

/// Lines that are set aside, and shared with copies of a machine, together.
const PAGE: usize = 64;
type Page = [Line; PAGE];

/// A page of which nothing was accessed.
#[cold]
fn blank_page() -> Rc<Page> {
    Rc::new([Line::default(); PAGE])
}

/// The accesses to one piece of memory: by lines, and where parts of a line are accessed by units.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shadow {
    shift: u32,
    /// Bytes of a line: two to this power.
    line_shift: u32,
    /// How many lines there are, and those of them that were ever accessed, by pages.
    lines: usize,
    pages: Vec<Option<Rc<Page>>>,
    units: Vec<Unit>,
    crowds: Crowds,
}

/// What was remembered of lines before one access was noted there, and is since: what has the same history goes on in
/// the same way.
struct Histories([(Unit, Unit); 8]);

impl Default for Histories {
    fn default() -> Self {
        // No line has such a history.
        let none = Unit { crowd: u32::MAX, ..Unit::NONE };
        Histories([(none, none); 8])
    }
}

impl Histories {
    /// The place of a history.
    #[inline]
    fn of(&mut self, unit: &Unit) -> &mut (Unit, Unit) {
        let mixed = unit.read.record().0 ^ unit.write.record().0 << 1;
        &mut self.0[(mixed ^ mixed >> 2 ^ mixed >> 5) as usize % 8]
    }
}

impl Shadow {
    /// For `bytes` bytes, told apart in units of `unit` bytes.
    pub(crate) fn new(bytes: usize, unit: u32) -> Self {
        Self::by_lines(bytes, unit, LINE)
    }

    /// The same with lines of so many bytes.
    pub(crate) fn by_lines(bytes: usize, unit: u32, line: usize) -> Self {
        let (shift, line_shift) = (unit.trailing_zeros(), line.trailing_zeros());
        let lines = bytes.div_ceil(line);
        let pages = vec![None; lines.div_ceil(PAGE)];
        Shadow { shift, line_shift, lines, pages, units: Vec::new(), crowds: Crowds::default() }
    }

    /// Units of a line.
    fn per_line(&self) -> usize {
        1 << (self.line_shift - self.shift)
    }

    /// A line that was accessed.
    fn line(&self, at: usize) -> Option<&Line> {
        self.pages.get(at / PAGE)?.as_ref().map(|page| &page[at % PAGE])
    }

    /// A line that is being accessed.
    #[inline(always)]
    fn line_mut(pages: &mut [Option<Rc<Page>>], at: usize) -> &mut Line {
        &mut Self::page_mut(pages, at / PAGE)[at % PAGE]
    }

    #[inline(always)]
    fn page_mut(pages: &mut [Option<Rc<Page>>], at: usize) -> &mut Page {
        Rc::make_mut(pages[at].get_or_insert_with(blank_page))
    }

    /// Notes an access.
    pub(crate) fn note(
        &mut self,
        log: &Log,
        who: &mut Observer<'_>,
        start: usize,
        bytes: usize,
        write: bool,
    ) -> Result<(), Conflict> {
        self.note_bytes(&mut Noting::new(log, who, write), start, bytes)
    }

    /// Notes an access whatever it conflicts with, and gives what that is.
    pub(crate) fn note_anyway(
        &mut self,
        log: &Log,
        who: &mut Observer<'_>,
        start: usize,
        bytes: usize,
        write: bool,
    ) -> Vec<Conflict> {
        let mut noting = Noting::new(log, who, write);
        noting.conflicts = Some(Vec::new());
        // With a place for conflicts, none is given back.
        let _ = self.note_bytes(&mut noting, start, bytes);
        noting.conflicts.unwrap_or_default()
    }

    /// Notes accesses to as many bytes from each of some places on.
    pub(crate) fn note_pieces(
        &mut self,
        log: &Log,
        who: &mut Observer<'_>,
        starts: &[usize],
        bytes: usize,
        write: bool,
    ) -> Result<(), Conflict> {
        let mut noting = Noting::new(log, who, write);
        starts.iter().try_for_each(|start| self.note_bytes(&mut noting, *start, bytes))
    }

    /// Notes that ranges of bytes are read, by offset and length, and gives the writes that made them what they are.
    pub(crate) fn note_ranges(
        &mut self,
        log: &Log,
        who: &mut Observer<'_>,
        ranges: impl Iterator<Item = (usize, usize)>,
    ) -> Result<Writers, Conflict> {
        let (mut noting, mut writers) = (Noting::new(log, who, false), Writers::default());
        let (mut histories, shift, inside) = (Histories::default(), self.line_shift, (1 << self.line_shift) - 1);
        for (start, bytes) in ranges {
            if (start | bytes) & inside == 0 {
                let lines = start >> shift..((start + bytes) >> shift).min(self.lines);
                self.note_lines(&mut noting, &mut histories, lines, |unit| writers.add(unit))?;
            } else {
                self.note_bytes(&mut noting, start, bytes)?;
                self.history(start, bytes).for_each(|unit| writers.add(unit));
            }
        }
        Ok(writers.distinct())
    }

    /// Notes accesses of lanes of one warp, of as many bytes each: by lane, what that knows, and the first byte.
    pub(crate) fn note_lanes<'o>(
        &mut self,
        log: &Log,
        who: &mut Observer<'o>,
        accesses: impl Iterator<Item = (usize, &'o Knowledge, usize)>,
        bytes: usize,
        write: bool,
    ) -> Result<(), Conflict> {
        let mut noting = Noting::new(log, who, write);
        for (lane, knowledge, start) in accesses {
            noting.who.becomes(lane, knowledge);
            noting.begin();
            self.note_bytes(&mut noting, start, bytes)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn note_bytes(&mut self, noting: &mut Noting<'_, '_>, start: usize, bytes: usize) -> Result<(), Conflict> {
        let (end, shift, length) = (start + bytes, self.line_shift, 1 << self.line_shift);
        let lines = start >> shift..((end + length - 1) >> shift).min(self.lines);
        if lines.len() == 1 {
            return self.note_in_line(noting, lines.start, start..end.min(lines.end << shift));
        }
        if (start | bytes) & (length - 1) == 0 {
            return self.note_lines(noting, &mut Histories::default(), lines, |_| ());
        }
        for at in lines {
            self.note_in_line(noting, at, start.max(at << shift)..end.min((at + 1) << shift))?;
        }
        Ok(())
    }

    /// Notes an access to whole lines. `met` is shown what is remembered of them, once where neighbours have the same
    /// history.
    fn note_lines(
        &mut self,
        noting: &mut Noting<'_, '_>,
        histories: &mut Histories,
        lines: Range<usize>,
        mut met: impl FnMut(&Unit),
    ) -> Result<(), Conflict> {
        let (mut at, shift) = (lines.start, self.line_shift);
        while at < lines.end {
            let (inside, page) = (at % PAGE, Self::page_mut(&mut self.pages, at / PAGE));
            let count = (PAGE - inside).min(lines.end - at);
            let mut told_apart = None;
            for (line, place) in page[inside..inside + count].iter_mut().zip(at..) {
                if line.split {
                    told_apart = Some(place);
                    break;
                }
                let (before, known) = (line.whole, histories.of(&line.whole));
                if known.0 == before {
                    line.whole = known.1;
                    continue;
                }
                noting.note(&mut line.whole, &mut self.crowds, place << shift)?;
                *known = (before, line.whole);
                met(&line.whole);
            }
            at = match told_apart {
                Some(place) => {
                    self.note_in_line(noting, place, place << shift..(place + 1) << shift)?;
                    self.line(place).into_iter().flat_map(|line| self.parts(line)).for_each(&mut met);
                    place + 1
                }
                None => at + count,
            };
        }
        Ok(())
    }

    /// Notes an access to bytes of one line.
    #[inline(always)]
    fn note_in_line(&mut self, noting: &mut Noting<'_, '_>, at: usize, bytes: Range<usize>) -> Result<(), Conflict> {
        let (shift, start, per_line) = (self.shift, at << self.line_shift, self.per_line());
        let Shadow { pages, units, crowds, .. } = self;
        let (line, whole) = (Self::line_mut(pages, at), bytes.len() == per_line << shift);
        if !line.split && (whole || per_line == 1) {
            return noting.note(&mut line.whole, crowds, start);
        }
        let first = line.split(units, per_line);
        let (part, behind) = ((bytes.start - start) >> shift, (bytes.end - start + (1 << shift) - 1) >> shift);
        if behind == part + 1 {
            return noting.note(&mut units[first + part], crowds, start + (part << shift));
        }
        for (unit, part) in units[first + part..first + behind].iter_mut().zip(part..) {
            noting.note(unit, crowds, start + (part << shift))?;
        }
        if noting.write && whole && !noting.strong {
            (line.whole, line.split) = (units[first], false);
        }
        Ok(())
    }

    /// What is remembered of each unit that some bytes are in.
    fn history(&self, start: usize, bytes: usize) -> impl Iterator<Item = &Unit> {
        let units = start >> self.shift..(start + bytes + (1 << self.shift) - 1) >> self.shift;
        let (to_line, inside) = (self.line_shift - self.shift, self.per_line() - 1);
        units.filter_map(move |unit| {
            let untouched = (unit >> to_line < self.lines).then_some(&Unit::NONE);
            let Some(line) = self.line(unit >> to_line) else { return untouched };
            Some(if line.split { &self.units[line.parts as usize - 1 + (unit & inside)] } else { &line.whole })
        })
    }

    /// What is remembered of a line.
    fn parts<'s>(&'s self, line: &'s Line) -> &'s [Unit] {
        match line.split {
            true => &self.units[line.parts as usize - 1..][..self.per_line()],
            false => std::slice::from_ref(&line.whole),
        }
    }

    /// Forgets all accesses to some lines.
    pub(crate) fn clear(&mut self, start: usize, bytes: usize) {
        for at in start >> self.line_shift..(start + bytes) >> self.line_shift {
            let line = Self::line_mut(&mut self.pages, at);
            (line.whole, line.split) = (Unit::default(), false);
        }
    }

    /// Tells which records it remembers.
    pub(crate) fn remember(&self, remembered: &mut Remembered) {
        let lines = self.pages.iter().flatten().flat_map(|page| page.iter());
        for unit in lines.flat_map(|line| self.parts(line)) {
            [unit.write, unit.plain, unit.read].into_iter().for_each(|mark| remembered.keep_mark(mark));
            self.crowds.get(unit.crowd).iter().for_each(|mark| remembered.keep_mark(*mark));
        }
    }

    /// A number that changes when any of the bytes is written anew.
    pub(crate) fn fingerprint(&self, start: usize, bytes: usize) -> u64 {
        let mix = |sum: u64, unit: &Unit| (sum ^ u64::from(unit.write.0)).wrapping_mul(0x0000_0100_0000_01b3);
        self.history(start, bytes).fold(0xcbf2_9ce4_8422_2325, mix)
    }

    /// Whether any of the bytes were written by this kernel.
    pub(crate) fn written(&self, log: &Log, start: usize, bytes: usize) -> bool {
        let by_this = |unit: &Unit| !unit.write.is_none() && log.earlier(log.get(unit.write.record())).is_none();
        self.history(start, bytes).any(by_this)
    }
}
