//! Experts that are not in the device's memory: the host computes their rows while the device computes the others'.
//!
//! ```text
//! stream   route ─ place ─┬─ sort ─ gate/up ─ down ──────────┬─ combine
//! beside                  └─ send ─ the host's experts ──────┘
//! ```
//!
//! `place` leaves the ids of the host's entries in memory that both reach, `send` their tokens; then the stream rings a
//! bell (`bell`), and the thread that answers it has [`HostRows`] compute; and `combine` adds rows of both kinds
//! in the order in which a token has its experts. All of it is queued, or is part of a graph, and nobody waits on the
//! caller's thread.
//!
//! **Many rows.** The host computes a row in a time of its own, but weights need be brought to the device once for any
//! number of rows. So where a call has at least so many rows as the layer's [`Split`] says, the host
//! computes nothing: the device brings over the weights of experts that it does not hold, as [`crate::experts::lots`]
//! describes, from a second copy of all experts in the host's memory, in the device's layout. What decides is the
//! number of tokens times the experts of each and nothing else, so that it is known when a call is queued or captured;
//! but once the device had no memory left for that, the host computes again, unless bits may not depend on the batch.
//!
//! **Bits.** A row's bits depend on where its expert is computed, since host and device add in different orders; while
//! the placement stays, they are the same every time. With as many rows as above, all are computed on the device, and
//! have the bits of a layer that lies there as a whole.
//!
//! **What goes wrong on the host** cannot be told to whoever queued the call. Results that needed the host's rows are
//! NaN then, and the next call is refused with the reason.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use format::{Dense, Values};
use half::{bf16, f16};
use op::{Activation, Error, HostCall, HostRows, Result, Split};

use crate::bell::Answer;
use crate::device::Device;
use crate::driver::{DeviceMemory, PinnedMemory, Stream};
use crate::experts::NOBODY;
use crate::experts::call::{Brought, Exchange, Placement};
use crate::experts::lots::{Lots, MOST_BYTES};
use crate::experts::packed::PackedExpert;
use crate::experts::place::AWAY;
use crate::experts::shape::LayerShape;

/// A layer's experts that may be elsewhere than on the device: where each is, and who computes those that are not
/// there.
#[derive(Debug)]
pub struct AwayExperts {
    experts: u32,
    /// The slot of every expert, and how often each was asked for.
    table: [DeviceMemory; 2],
    host: Arc<dyn HostRows>,
    /// What calls with many rows bring over, if they do; or why they do not, though they were to.
    store: std::result::Result<Option<Store>, String>,
    /// Why they no longer do, once the device had no memory for it.
    stopped: OnceLock<String>,
    /// What went wrong on the host since the last call.
    failure: Mutex<Option<String>>,
}

/// All experts in the host's memory as the device takes them.
#[derive(Debug)]
struct Store {
    matrices: PinnedMemory,
    lots: Lots,
    /// The number of every expert, in the device's memory.
    numbers: DeviceMemory,
    /// Rows from which on it is used.
    from: usize,
}

impl AwayExperts {
    /// The table of a device whose slots hold these experts, of so many in all. Calls with as many rows as
    /// `stream_from` says bring weights over; where there is no memory for that, none do.
    pub fn new(
        device: usize,
        shape: &LayerShape,
        experts: u32,
        Split { resident, host, stream_from }: &Split,
    ) -> Result<Self> {
        check_resident(resident, experts)?;
        let device = Device::of(device)?;
        let (context, stream) = (device.context, Stream::new(device.context)?);
        let hold =
            |words: &[u32]| DeviceMemory::holding(context, "where experts are", bytemuck::cast_slice(words), &stream);
        let table = [hold(&table_of(experts, resident))?, hold(&vec![0; experts as usize])?];
        let store = |from: usize| {
            let lots = Lots::of(shape, device.family, experts, MOST_BYTES)?;
            let bytes = experts as usize * lots.bytes.iter().sum::<usize>();
            let matrices = PinnedMemory::new(context, "experts that are brought to the device", bytes);
            let numbers = hold(&numbers_of(&lots, experts, resident)).map_err(|error| error.to_string())?;
            Ok(Store { matrices: matrices.map_err(|error| error.to_string())?, lots, numbers, from })
        };
        let store = stream_from.map(store).transpose();
        let (host, stopped, failure) = (Arc::clone(host), OnceLock::new(), Mutex::default());
        Ok(AwayExperts { experts, table, host, store, stopped, failure })
    }

    /// How calls with so many rows bring weights over, if they do.
    pub fn lots(&self, rows: usize) -> Option<&Lots> {
        self.brings(rows).map(|store| &store.lots)
    }

    /// How calls that bring weights over do it, if any do.
    pub(crate) fn all_lots(&self) -> Option<&Lots> {
        self.store.as_ref().ok()?.as_ref().map(|store| &store.lots)
    }

    fn brings(&self, rows: usize) -> Option<&Store> {
        let brings = |store: &&Store| rows >= store.from && self.stopped.get().is_none();
        self.store.as_ref().ok()?.as_ref().filter(brings)
    }

    /// Rows from which on calls bring weights over, if they do; or why they do not, though they were to.
    pub fn streams_from(&self) -> std::result::Result<Option<usize>, String> {
        match self.stopped.get() {
            Some(reason) => Err(reason.clone()),
            None => self.store.as_ref().map(|store| store.as_ref().map(|store| store.from)).map_err(String::clone),
        }
    }

    /// Has no more calls bring weights over, for a reason. Graphs that do go on, in memory that they keep.
    pub(crate) fn stop(&self, reason: String) {
        self.stopped.get_or_init(|| reason);
    }

    /// Bytes of the host's memory that are kept to be brought over.
    pub fn stored_bytes(&self) -> usize {
        self.store.as_ref().ok().and_then(Option::as_ref).map_or(0, |store| store.matrices.bytes())
    }

    /// Keeps an expert to be brought over, before any call.
    pub(crate) fn keep(&mut self, expert: usize, packed: &PackedExpert) {
        let (Ok(Some(store)), bytes) = (&self.store, packed.matrices()) else { return };
        if let Some(place) = store.matrices.at(expert * bytes.len(), bytes.len()) {
            // SAFETY: there are as many bytes, and nobody else has them: no call was made.
            unsafe { place.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        }
    }

    /// Keeps nothing to be brought over, for a reason.
    pub(crate) fn without_store(self, reason: String) -> Self {
        AwayExperts { store: Err(reason), ..self }
    }

    /// How a call with so many rows finds its experts.
    pub fn placement(&self, rows: usize) -> Placement {
        let by_host = self.by_host();
        match self.brings(rows) {
            None => by_host,
            Some(Store { matrices, lots, numbers, .. }) => {
                let brought = Some(Brought { lots: *lots, matrices: matrices.address() });
                Placement { table: [numbers.address(), by_host.table[1]], brought, ..by_host }
            }
        }
    }

    /// How a call finds its experts that brings nothing over.
    pub(crate) fn by_host(&self) -> Placement {
        let table = self.table.each_ref().map(DeviceMemory::address);
        Placement { experts: self.experts, table, brought: None }
    }

    /// Experts of the layer, wherever they are.
    pub fn experts(&self) -> u32 {
        self.experts
    }

    /// How often each expert was asked for since the layer was made, modulo 2³². Waits for nothing but the copy.
    pub fn asked(&self) -> Result<Vec<u32>> {
        let mut asked = vec![0u32; self.experts as usize];
        let stream = Stream::new(self.table[1].context())?;
        self.table[1].get(0, bytemuck::cast_slice_mut(&mut asked), &stream)?;
        Ok(asked)
    }

    /// Queues the change to slots that hold these.
    pub(crate) fn place(&self, resident: &[u32], stream: &Stream) -> Result<()> {
        let slots = &table_of(self.experts, resident)[..];
        // SAFETY: from ordinary memory the driver has read everything when this returns, and whoever owns the table
        // waits for the streams that read it.
        unsafe { self.table[0].write(0, bytemuck::cast_slice(slots), stream) }?;
        let Ok(Some(Store { lots, numbers, .. })) = &self.store else { return Ok(()) };
        // SAFETY: the same.
        unsafe { numbers.write(0, bytemuck::cast_slice(&numbered(lots, slots)), stream) }
    }

    /// What went wrong on the host, as long as nobody has taken it.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What went wrong on the host, once.
    pub(crate) fn take_failure(&self) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), |reason| Err(Error::Away { reason }))
    }
}

/// What is in the slots of a device that holds these experts. Kernels want one; where the table names none, nobody
/// looks at what is in it.
pub(crate) fn slots_for(resident: &[u32]) -> &[u32] {
    if resident.is_empty() { &[0] } else { resident }
}

/// The expert of a slot that has none: no expert has that number.
pub(crate) const EMPTY: u32 = u32::MAX;

/// The slot of every expert, where slots hold these.
pub fn table_of(experts: u32, resident: &[u32]) -> Vec<u32> {
    let mut slots = vec![AWAY; experts as usize];
    for (slot, &expert) in resident.iter().enumerate().filter(|(_, expert)| **expert != EMPTY) {
        slots[expert as usize] = slot as u32;
    }
    slots
}

/// Exchanges the experts in slots: `fill` fills a slot, and `tell` changes the table of all slots' experts, both in the
/// order in which they are called. The host has those that go before their slots are filled, and a slot is nobody's
/// until all of an expert is there: whatever fails between, none is taken for another's.
pub(crate) fn change_residents<T>(
    resident: &mut [u32],
    coming: Vec<(usize, u32, T)>,
    tell: impl Fn(&[u32]) -> Result<()>,
    fill: impl Fn(usize, &T) -> Result<()>,
) -> Result<()> {
    coming.iter().for_each(|&(slot, ..)| resident[slot] = EMPTY);
    tell(resident)?;
    for (slot, expert, packed) in coming {
        fill(slot, &packed)?;
        resident[slot] = expert;
    }
    tell(resident)
}

/// The number of every expert, where slots hold these.
pub(crate) fn numbers_of(lots: &Lots, experts: u32, resident: &[u32]) -> Vec<u32> {
    numbered(lots, &table_of(experts, resident))
}

/// The number of every expert by its slot.
fn numbered(lots: &Lots, slots: &[u32]) -> Vec<u32> {
    let own = |(expert, &slot): (u32, &u32)| if slot == AWAY { lots.first() + expert } else { slot };
    (0..).zip(slots).map(own).collect()
}

/// The experts of which a layer's numbers are, beside the matrices: those in slots, anybody's up to the first number of
/// all, and all.
pub(crate) fn experts_by_number(lots: &Lots, slots: &[u32], experts: u32) -> Vec<u32> {
    let mut all = slots.to_vec();
    all.resize(lots.first() as usize, 0);
    all.extend(0..experts);
    all
}

/// Refuses experts that there are not, and those that are named twice.
pub(crate) fn check_resident(resident: &[u32], all: u32) -> Result<()> {
    let mut seen = vec![false; all as usize];
    for &expert in resident {
        let new = seen.get_mut(expert as usize).is_some_and(|seen| !std::mem::replace(seen, true));
        if !new {
            let (what, found) = ("an expert for the device", expert.to_string());
            let expected = format!("one of 0 to {}, and each once,", all.saturating_sub(1));
            return Err(Error::Mismatch { group: 0, what, found, expected });
        }
    }
    Ok(())
}

/// The host's part of a call: what it is given each time that the call comes to it.
#[derive(Debug)]
pub(crate) struct Task {
    experts: Arc<AwayExperts>,
    memory: Arc<PinnedMemory>,
    places: Exchange,
    shape: LayerShape,
    tokens: usize,
}

impl Task {
    /// The host's part of a call with so many tokens.
    pub(crate) fn new(experts: Arc<AwayExperts>, memory: Arc<PinnedMemory>, shape: &LayerShape, tokens: u32) -> Self {
        let places = Exchange::of(shape, tokens);
        Task { experts, memory, places, shape: *shape, tokens: tokens as usize }
    }

    /// Leaves what went wrong for the next call.
    fn fail(&self, reason: String) {
        *self.experts.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }

    /// What the device has left, and where the rows go; none where the memory were too small.
    ///
    /// # Safety
    ///
    /// Nobody else uses the memory while the slices live.
    unsafe fn left(&self) -> Option<Left<'_>> {
        let (entries, hidden) = (self.tokens * self.shape.top as usize, self.shape.hidden as usize);
        let at = |place, bytes| self.memory.at(place, bytes);
        let elements = self.tokens * hidden;
        let tokens = at(self.places.tokens, self.tokens * self.shape.activation.row_bytes(hidden))?;
        let (ids, weights) = (at(self.places.ids, 4 * entries)?, at(self.places.weights, 4 * entries)?);
        let rows = at(self.places.rows, 4 * entries * hidden)?;
        // SAFETY: the places are within the memory, aligned to 256 bytes, apart from each other, and hold plain numbers
        // of these types; nobody else uses them, as the caller promises.
        unsafe {
            let tokens: Values<'_> = match self.shape.activation {
                Activation::F16 => slice_at::<f16>(tokens, elements).into(),
                Activation::BF16 => slice_at::<bf16>(tokens, elements).into(),
                Activation::F32 | Activation::NvFp4 => slice_at::<f32>(tokens, elements).into(),
            };
            let (ids, weights) = (slice_at(ids, entries), self.shape.on_input.then(|| slice_at(weights, entries)));
            let rows = slice::from_raw_parts_mut(rows.as_ptr().cast(), entries * hidden);
            Some(Left { tokens, ids, weights, rows })
        }
    }
}

impl Answer for Task {
    /// Has the host compute. If it cannot, what it should have computed is NaN.
    fn answer(&self) {
        // SAFETY: the device has written the places that are read, and touches none of them before this returns.
        let Some(Left { tokens, ids, weights, rows }) = (unsafe { self.left() }) else {
            let (found, needed) = (self.memory.bytes(), self.places.bytes);
            // All ones are NaN, wherever the device looks for its rows.
            // SAFETY: the device touches none of it before this returns.
            unsafe { self.memory.fill(0xFF) };
            return self.fail(format!("{found} bytes of the {needed} that a call exchanges were there"));
        };
        let (top, hidden) = (self.shape.top as usize, self.shape.hidden as usize);
        let done = catch_unwind(AssertUnwindSafe(|| {
            let tokens = Dense::new(self.tokens, hidden, tokens, 1.0)?;
            self.experts.host.compute(HostCall { tokens: &tokens, ids, weights, top, rows: &mut *rows })
        }));
        let reason = match done {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => said(&*panic),
        };
        let of_host = rows.chunks_mut(hidden).zip(ids).filter(|(_, id)| **id != NOBODY);
        of_host.for_each(|(row, _)| row.fill(f32::NAN));
        self.fail(reason);
    }
}

/// What the device has left for the host, and where that leaves its rows.
struct Left<'a> {
    tokens: Values<'a>,
    ids: &'a [u32],
    weights: Option<&'a [f32]>,
    rows: &'a mut [f32],
}

/// # Safety
///
/// There are as many numbers there, which nobody writes to.
unsafe fn slice_at<'a, T>(start: NonNull<u8>, length: usize) -> &'a [T] {
    // SAFETY: the caller's promise is the same.
    unsafe { slice::from_raw_parts(start.as_ptr().cast(), length) }
}

/// The words of a panic.
fn said(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a thread has panicked".to_owned())
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[test]
    fn a_slot_that_was_not_filled_to_its_end_is_nobodys() {
        let (tables, written) = (RefCell::new(Vec::new()), Cell::new(0));
        let tell = |resident: &[u32]| {
            tables.borrow_mut().push(table_of(5, resident));
            Ok(())
        };
        let fill = |_: usize, _: &()| {
            written.set(written.get() + 1);
            if written.get() == 2 { Err(Error::NoGroups) } else { Ok(()) }
        };
        let mut resident = vec![0, 1, 2];
        let coming = || vec![(0, 3, ()), (2, 4, ())];
        assert!(change_residents(&mut resident, coming(), tell, fill).is_err());
        assert_eq!(resident, [3, 1, EMPTY]);
        assert_eq!(*tables.borrow(), [[AWAY, 1, AWAY, AWAY, AWAY]], "those that go are the host's before their slots");
        // The next change fills it, and names nobody whom it has not.
        assert!(change_residents(&mut resident, vec![(2, 0, ())], tell, fill).is_ok());
        assert_eq!((&resident[..], tables.borrow().last()), (&[3, 1, 0][..], Some(&vec![2, 1, AWAY, 0, AWAY])));
        assert!(tables.borrow().iter().all(|table| table[2] == AWAY && table[4] == AWAY));
    }
}
