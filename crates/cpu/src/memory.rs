//! Working memory that is kept from one run to the next.
//!
//! A run needs prepared tokens, slabs and sums. Fresh pages for them would cost a fault every 4 KB of every run, so
//! what a run gives back is handed to the next. It begins at a page, in large pages where the system grants them, and
//! holds whatever was left in it.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use bytemuck::Pod;
use memmap2::MmapMut;

use op::{Error, Result};

/// Bytes of a page, and of a large one.
pub(super) const PAGE: usize = 4096;
const LARGE_PAGE: usize = 2 << 20;

/// Pieces of memory that nobody uses at the moment.
#[derive(Debug, Default)]
pub(super) struct Arena {
    free: Mutex<Vec<MmapMut>>,
}

/// A slice of plain numbers, garbage at first, given back when dropped.
pub(super) struct Lease<'a, T: Pod> {
    memory: Option<MmapMut>,
    length: usize,
    arena: &'a Arena,
    element: PhantomData<T>,
}

impl Arena {
    /// So many elements: the smallest free piece that has room, or a new one. Where none has room, the largest is let
    /// go for the new one, so that there are never more pieces than were once in use together.
    pub(super) fn take<T: Pod>(&self, length: usize) -> Result<Lease<'_, T>> {
        let bytes = (length * size_of::<T>()).max(1);
        let kept = self.free.lock().ok().and_then(|mut free| {
            free.sort_by_key(|piece| piece.len());
            match free.iter().position(|piece| piece.len() >= bytes) {
                Some(index) => Some(free.remove(index)),
                None => {
                    free.pop();
                    None
                }
            }
        });
        let memory = match kept {
            Some(piece) => piece,
            None => new_piece(bytes)?,
        };
        Ok(Lease { memory: Some(memory), length, arena: self, element: PhantomData })
    }
}

/// One piece of memory, cut for several users. Asking for each part by itself would cost more than the parts are used
/// for where there are hundreds of small groups, or many threads.
pub(super) struct Parts<'a, T: Pod> {
    memory: Lease<'a, T>,
    lengths: Vec<usize>,
    /// Parts begin at multiples of this.
    whole: usize,
}

impl<'a, T: Pod> Parts<'a, T> {
    /// Parts of these lengths.
    pub(super) fn new(arena: &'a Arena, lengths: Vec<usize>) -> Result<Self> {
        Self::at(arena, lengths, 1)
    }

    /// The same, each beginning at a page: no two users write to the same line.
    pub(super) fn at_pages(arena: &'a Arena, lengths: Vec<usize>) -> Result<Self> {
        // A part of elements that do not divide a page begins at every so many pages.
        Self::at(arena, lengths, PAGE / greatest_common_divisor(PAGE, size_of::<T>()))
    }

    fn at(arena: &'a Arena, lengths: Vec<usize>, whole: usize) -> Result<Self> {
        let length = lengths.iter().map(|length| length.next_multiple_of(whole)).sum();
        Ok(Self { memory: arena.take(length)?, lengths, whole })
    }

    /// Every part, in order.
    pub(super) fn each(&self) -> impl Iterator<Item = &[T]> {
        let mut rest = &self.memory[..];
        self.lengths.iter().map(move |&length| {
            let (part, others) = rest.split_at(length.next_multiple_of(self.whole));
            rest = others;
            &part[..length]
        })
    }

    /// Every part, in order, to be written.
    pub(super) fn each_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        let (mut rest, whole) = (&mut self.memory[..], self.whole);
        self.lengths.iter().map(move |&length| {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(length.next_multiple_of(whole));
            rest = others;
            &mut part[..length]
        })
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// A new piece. What takes a good part of a large page gets whole ones, for the system grants no others.
fn new_piece(bytes: usize) -> Result<MmapMut> {
    let bytes = if bytes > LARGE_PAGE / 4 { bytes.next_multiple_of(LARGE_PAGE) } else { bytes };
    let failed = |source| Error::Memory { bytes, what: "a run to work in", source };
    let piece = MmapMut::map_anon(bytes).map_err(failed)?;
    #[cfg(target_os = "linux")]
    let _ = piece.advise(memmap2::Advice::HugePage);
    Ok(piece)
}

impl<T: Pod> Deref for Lease<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let bytes = self.memory.as_deref().unwrap_or_default();
        bytemuck::cast_slice(&bytes[..self.length * size_of::<T>()])
    }
}

impl<T: Pod> DerefMut for Lease<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes = self.memory.as_deref_mut().unwrap_or_default();
        bytemuck::cast_slice_mut(&mut bytes[..self.length * size_of::<T>()])
    }
}

impl<T: Pod> Drop for Lease<'_, T> {
    fn drop(&mut self) {
        if let (Some(memory), Ok(mut free)) = (self.memory.take(), self.arena.free.lock()) {
            free.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_handed_on_and_begins_at_a_page() {
        let arena = Arena::default();
        let mut first = arena.take::<u32>(1000).unwrap();
        first.fill(7);
        let place = first.as_ptr();
        assert_eq!(place.addr() % 4096, 0);
        drop(first);
        let again = arena.take::<u64>(400).unwrap();
        assert_eq!((again.as_ptr().addr(), again.len()), (place.addr(), 400));
        assert_ne!(arena.take::<u8>(1).unwrap().as_ptr().addr(), place.addr());
    }

    #[test]
    fn a_piece_that_has_become_too_small_is_let_go_for_a_larger_one() {
        let arena = Arena::default();
        for length in 1..100 {
            drop(arena.take::<u8>(length * 10_000).unwrap());
        }
        assert_eq!(arena.free.lock().unwrap().len(), 1);
    }
}
