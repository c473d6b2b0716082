//! Queues of work for the device, moments in them, and graphs made from them.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::{null_mut, without_provenance_mut};

use super::Context;
use super::graveyard::{self, Grave};
use super::symbols::Handle;
use op::{Error, Result};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: other threads may go on allocating.
const THREAD_LOCAL: c_int = 1;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const ACTIVE: c_int = 1;
/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`: nothing waits for the destructor.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`: the graph takes the caller's reference.
const MOVE: u32 = 1;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CU_STREAM_WAIT_VALUE_EQ`.
const EQUAL: u32 = 1;
/// `CU_STREAM_WRITE_VALUE_DEFAULT`: after all that was queued before is done and seen by everyone.
const IN_ORDER: u32 = 0;
/// The streams that have numbers instead of handles: the default one (0), and its two explicit kinds (1 and 2).
const NUMBERED: usize = 3;

/// A queue of work for the device: one of our own, or one of the caller's.
pub struct Stream {
    context: &'static Context,
    raw: Handle,
    owned: bool,
}

// SAFETY: the handle belongs to the driver, which may be called from any thread.
unsafe impl Send for Stream {}
// SAFETY: several threads may queue work in one stream at once; the driver puts it in some order.
unsafe impl Sync for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:#x} of device {}", self.raw.addr(), self.context.ordinal())
    }
}

impl Stream {
    /// A queue of its own, which waits for no other.
    pub fn new(context: &'static Context) -> Result<Self> {
        let _entered = context.enter()?;
        let _unhindered = context.unhindered()?;
        let mut raw = null_mut();
        // SAFETY: writes one handle.
        let status = unsafe { (context.symbols.stream_create)(&mut raw, NON_BLOCKING) };
        context.called("cuStreamCreate", status)?;
        Ok(Stream { context, raw, owned: true })
    }

    /// A queue of the caller's, by its `CUstream` (or `cudaStream_t`, which is the same). 0 is the device's default
    /// stream.
    ///
    /// # Safety
    ///
    /// The stream must exist and live as long as this value.
    pub unsafe fn borrowed(context: &'static Context, handle: u64) -> Result<Self> {
        let raw: Handle = without_provenance_mut(handle as usize);
        if handle as usize >= NUMBERED {
            let _entered = context.enter()?;
            let mut owner = null_mut();
            // SAFETY: the caller promises that the stream exists; writes one handle.
            context.called("cuStreamGetCtx", unsafe { (context.symbols.stream_context)(raw, &mut owner) })?;
            if owner != context.raw {
                return Err(Error::Stream { handle, device: context.ordinal() });
            }
        }
        Ok(Stream { context, raw, owned: false })
    }

    /// Its handle, a `CUstream` as a number.
    pub fn handle(&self) -> u64 {
        self.raw.addr() as u64
    }

    pub(super) fn raw(&self) -> Handle {
        self.raw
    }

    /// The context it belongs to.
    pub fn context(&self) -> &'static Context {
        self.context
    }

    /// Waits until all that was queued is done. What went wrong on the device is reported here.
    pub fn synchronize(&self) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: the stream is alive.
        self.context.called("cuStreamSynchronize", unsafe { (self.context.symbols.stream_synchronize)(self.raw) })
    }

    /// Queues a wait, on the device, until a word holds a value: another stream's, another process's, or the host's to
    /// write.
    ///
    /// # Safety
    ///
    /// The address is that of four bytes of this device's memory, or of the host's that it reaches, a multiple of four,
    /// which stay until the wait is over.
    pub unsafe fn wait_for_word(&self, address: u64, value: u32) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: the stream is alive; the word is the caller's promise.
        let status = unsafe { (self.context.symbols.stream_wait_value)(self.raw, address, value, EQUAL) };
        self.context.called("cuStreamWaitValue32", status)
    }

    /// Queues the writing of a word, when all that was queued before is done.
    ///
    /// # Safety
    ///
    /// As for [`Stream::wait_for_word`].
    pub unsafe fn write_word(&self, address: u64, value: u32) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: the stream is alive; the word is the caller's promise.
        let status = unsafe { (self.context.symbols.stream_write_value)(self.raw, address, value, IN_ORDER) };
        self.context.called("cuStreamWriteValue32", status)
    }

    /// Queues a wait for a moment in another stream. In a capture the other one's work becomes a part of the graph.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: both are alive.
        let status = unsafe { (self.context.symbols.stream_wait_event)(self.raw, event.raw, 0) };
        self.context.called("cuStreamWaitEvent", status)
    }

    /// The graph of which what is queued now becomes a part, if it does instead of being done.
    pub fn capturing(&self) -> Result<Option<Capture>> {
        let _entered = self.context.enter()?;
        let (mut state, mut id, mut graph) = (0, 0, null_mut());
        // SAFETY: the stream is alive; writes two numbers and a handle, and what it is given no place for is left out.
        let status = unsafe {
            (self.context.symbols.stream_capture_info)(
                self.raw,
                &mut state,
                &mut id,
                &mut graph,
                null_mut(),
                null_mut(),
            )
        };
        self.context.called("cuStreamGetCaptureInfo", status)?;
        Ok((state == ACTIVE).then_some(Capture { context: self.context, id, graph }))
    }

    /// A graph of what `queue` queues on this stream.
    pub fn capture(&self, queue: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let (context, symbols) = (self.context, self.context.symbols);
        let _entered = context.enter()?;
        // SAFETY: the stream is alive.
        let status = unsafe { (symbols.capture_begin)(self.raw, THREAD_LOCAL) };
        context.called("cuStreamBeginCapture", status)?;
        let queued = queue();
        let mut graph = null_mut();
        // SAFETY: a capture was begun and is ended once, whatever became of what was queued; writes one handle.
        let ended = unsafe { (symbols.capture_end)(self.raw, &mut graph) };
        queued.and(context.called("cuStreamEndCapture", ended))?;
        let mut executable = null_mut();
        // SAFETY: the graph was captured and is destroyed once; the executable one is independent of it.
        let status = unsafe {
            let status = (symbols.graph_instantiate)(&mut executable, graph, 0);
            (symbols.graph_destroy)(graph);
            status
        };
        context.called("cuGraphInstantiateWithFlags", status)?;
        Ok(Graph { context, raw: executable })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned
            && let Ok(_entered) = self.context.enter()
        {
            // SAFETY: created by `new` and destroyed once; work that is queued still is done.
            unsafe { (self.context.symbols.stream_destroy)(self.raw) };
        }
    }
}

/// A graph that is being captured.
pub struct Capture {
    context: &'static Context,
    id: u64,
    graph: Handle,
}

impl Capture {
    /// A number that no other capture of the process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Keeps something for as long as the graph, or anything made from it, can be launched.
    pub fn keep(&self, thing: impl Any + Send) -> Result<()> {
        let (context, symbols) = (self.context, self.context.symbols);
        let _entered = context.enter()?;
        let boxed: *mut Grave = Box::into_raw(Box::new(Box::new(thing) as Grave));
        let mut object = null_mut();
        // SAFETY: the pointer is to a boxed `Grave`, which `buried` takes back, once, when the last reference goes.
        let status = unsafe { (symbols.user_object_create)(&mut object, boxed.cast(), buried, 1, NO_DESTRUCTOR_SYNC) };
        if let Err(error) = context.called("cuUserObjectCreate", status) {
            // SAFETY: the driver has not taken it, so it is still ours alone.
            drop(unsafe { Box::from_raw(boxed) });
            return Err(error);
        }
        // SAFETY: graph and object are alive; our one reference to the object becomes the graph's.
        let status = unsafe { (symbols.graph_retain_user_object)(self.graph, object, 1, MOVE) };
        context.called("cuGraphRetainUserObject", status)
    }
}

/// Called by the driver when the last graph that keeps a thing is gone. It may not be called back from there, so the
/// thing is dropped later.
unsafe extern "C" fn buried(thing: *mut c_void) {
    // SAFETY: `Capture::keep` made it from a box and gave it away; the driver calls this once.
    let thing = unsafe { Box::from_raw(thing.cast::<Grave>()) };
    graveyard::bury(*thing);
}

/// Work that was captured, to be queued as one.
pub struct Graph {
    context: &'static Context,
    raw: Handle,
}

// SAFETY: the handle belongs to the driver, which may be called from any thread.
unsafe impl Send for Graph {}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "graph of device {}", self.context.ordinal())
    }
}

impl Graph {
    /// Queues it.
    ///
    /// # Safety
    ///
    /// What the captured work reads and writes must still be there, until the stream has done it.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: both are alive; the memory is the caller's promise.
        self.context.called("cuGraphLaunch", unsafe { (self.context.symbols.graph_launch)(self.raw, stream.raw) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: instantiated by `capture` and destroyed once.
            unsafe { (self.context.symbols.graph_exec_destroy)(self.raw) };
        }
    }
}

/// A moment in a stream.
pub struct Event {
    context: &'static Context,
    raw: Handle,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event of device {}", self.context.ordinal())
    }
}

impl Event {
    /// The moment when a stream has done all that was queued before.
    pub fn record(stream: &Stream) -> Result<Self> {
        let context = stream.context;
        let _entered = context.enter()?;
        let mut raw = null_mut();
        // SAFETY: writes one handle.
        context.called("cuEventCreate", unsafe { (context.symbols.event_create)(&mut raw, 0) })?;
        let event = Event { context, raw };
        // SAFETY: both are alive.
        context.called("cuEventRecord", unsafe { (context.symbols.event_record)(raw, stream.raw) })?;
        Ok(event)
    }

    /// Whether the moment has come.
    pub fn is_reached(&self) -> Result<bool> {
        let _entered = self.context.enter()?;
        // SAFETY: the event is recorded.
        match unsafe { (self.context.symbols.event_query)(self.raw) } {
            NOT_READY => Ok(false),
            status => self.context.called("cuEventQuery", status).map(|()| true),
        }
    }

    /// Seconds from this moment to a later one, for which it waits.
    pub fn seconds_until(&self, later: &Event) -> Result<f64> {
        let (context, symbols) = (self.context, self.context.symbols);
        let _entered = context.enter()?;
        let mut milliseconds = 0f32;
        // SAFETY: both are recorded, and the later one is waited for; writes one number.
        unsafe {
            context.called("cuEventSynchronize", (symbols.event_synchronize)(later.raw))?;
            context.called("cuEventElapsedTime", (symbols.event_elapsed)(&mut milliseconds, self.raw, later.raw))?;
        }
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: created by `record` and destroyed once.
            unsafe { (self.context.symbols.event_destroy)(self.raw) };
        }
    }
}
