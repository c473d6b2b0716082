//! Experts that are not in the device's memory: the host computes their rows while the device computes the others'.
//!
//! ```text
//! stream   route ─ place ─┬─ sort ─ gate/up ─ down ──────────┬─ combine
//! beside                  └─ send ─ the host's experts ──────┘
//! ```
//!
//! `place` leaves the ids of the host's entries in memory that both reach, `send` their tokens; then the driver calls a
//! function on a thread of its own, which has [`HostRows`] compute; and `combine` adds rows of both kinds in the order
//! in which a token has its experts. All of it is queued, or is part of a graph, and nobody waits on the caller's
//! thread.
//!
//! A row's bits depend on where its expert is, since host and device add in different orders; while the placement
//! stays, they are the same every time.
//!
//! **What goes wrong on the host** cannot be told to whoever queued the call. Results that needed the host's rows are
//! NaN then, and the next call is refused with the reason.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use format::{Dense, Values};
use half::{bf16, f16};
use op::{Activation, Error, HostCall, HostRows, Result};

use crate::device::Device;
use crate::driver::{DeviceMemory, PinnedMemory, Stream};
use crate::experts::NOBODY;
use crate::experts::layer::{Exchange, Placement};
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
    /// What went wrong on the host since the last call.
    failure: Mutex<Option<String>>,
}

impl AwayExperts {
    /// The table of a device whose slots hold these experts, of so many in all.
    pub fn new(device: usize, experts: u32, resident: &[u32], host: Arc<dyn HostRows>) -> Result<Self> {
        check_resident(resident, experts)?;
        let context = Device::of(device)?.context;
        let stream = Stream::new(context)?;
        let table = [table_of(experts, resident), vec![0; experts as usize]];
        let [slots, asked] = table
            .map(|words| DeviceMemory::holding(context, "where experts are", bytemuck::cast_slice(&words), &stream));
        Ok(AwayExperts { experts, table: [slots?, asked?], host, failure: Mutex::default() })
    }

    /// The table, as a call takes it.
    pub fn placement(&self) -> Placement {
        Placement { experts: self.experts, table: self.table.each_ref().map(DeviceMemory::address) }
    }

    /// How often each expert was asked for since the layer was made, modulo 2³². Waits for nothing but the copy.
    pub fn asked(&self) -> Result<Vec<u32>> {
        let mut asked = vec![0u32; self.experts as usize];
        let stream = Stream::new(self.table[1].context())?;
        self.table[1].get(0, bytemuck::cast_slice_mut(&mut asked), &stream)?;
        Ok(asked)
    }

    /// Queues the change of the slots of all experts.
    pub(crate) fn place(&self, slots: &[u32], stream: &Stream) -> Result<()> {
        // SAFETY: from ordinary memory the driver has read everything when this returns, and whoever owns the table
        // waits for the streams that read it.
        unsafe { self.table[0].write(0, bytemuck::cast_slice(slots), stream) }
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

/// The slot of every expert, where slots hold these.
pub fn table_of(experts: u32, resident: &[u32]) -> Vec<u32> {
    let mut slots = vec![AWAY; experts as usize];
    for (slot, &expert) in resident.iter().enumerate() {
        slots[expert as usize] = slot as u32;
    }
    slots
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

    /// Queues it.
    ///
    /// # Safety
    ///
    /// The task must stay until the stream, or every graph of which this becomes a part, has done it for the last time.
    /// What the device leaves for it has been queued before.
    pub(crate) unsafe fn queue(&self, stream: &Stream) -> Result<()> {
        // SAFETY: `run_task` takes it for the task that it is, which stays, as the caller promises.
        unsafe { stream.call(run_task, std::ptr::from_ref(self).cast_mut().cast()) }
    }

    /// Has the host compute. If it cannot, what it should have computed is NaN.
    fn run(&self) {
        // SAFETY: the device has written the places that are read, and touches none of them before this returns.
        let Some(Left { tokens, ids, weights, rows }) = (unsafe { self.left() }) else { return };
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

/// What the driver calls.
unsafe extern "C" fn run_task(task: *mut c_void) {
    // SAFETY: `Task::queue` was given a task that stays until it has been called for the last time.
    let task = unsafe { &*task.cast::<Task>() };
    task.run();
}

/// The words of a panic.
fn said(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a thread has panicked".to_owned())
}
