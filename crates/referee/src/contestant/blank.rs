//! A blank: a process of the referee's own that queues a kernel which does nothing behind a latch, as contestants queue
//! their runs.
//!
//! Two contexts take turns on a GPU. To change them, there and back, takes some 0.3 ms on an H200, and always the same
//! to a microsecond or two. That is in every run behind a latch that launches any kernel, whoever launches it, and none
//! of it is the contestant's work. What a blank takes is that, the latch and one launch; it is measured beside the
//! contestants and taken off what they took.

use std::collections::HashMap;
use std::io::{BufRead, Write};

use gpu::blank::Blank;
use gpu::device;
use gpu::driver::{Context, LentMemory, Stream};
use serde_json::Value;

use super::protocol::{Answer, LATCH_DONE, OnGpu, Prepare, Request, Residence, VERSION, line, understand};
use super::{Limits, Program};
use crate::digits::unhex;
use crate::{Error, Result};

/// What a process of ours that is to be one is told.
pub const TOLD: &str = "\"blank\"";

/// Blanks as a contestant, by the command that serves what its last argument describes.
pub fn program(worker: &[String], limits: Limits) -> Program {
    Program::fresh("blank", &Value::from(TOLD.trim_matches('"')), worker, limits)
}

/// Speaks the protocol for blanks until `bye` or the end of the input.
pub fn serve(input: impl BufRead, mut output: impl Write) -> Result<()> {
    let lost = |source| Error::SharedMemory { what: "speak through", path: "standard input and output".into(), source };
    let mut bench = Bench::new()?;
    for text in input.lines() {
        let text = text.map_err(lost)?;
        let answer = match understand(text.as_bytes()).map_err(|reason| Error::Protocol { reason })? {
            Request::Hello { .. } => {
                let (name, memory) = ("blank".to_owned(), Residence::Cuda);
                Answer::Hello { protocol: VERSION, name, deterministic: true, memory, queues: true }
            }
            Request::Prepare(message) => {
                bench.prepare(&message)?;
                Answer::Ready { id: message.id }
            }
            Request::Run { id, latch: None, .. } => Answer::Done { id },
            Request::Run { id, latch: Some(value), .. } => {
                bench.queue(value)?;
                Answer::Queued { id }
            }
            Request::Bye => return Ok(()),
        };
        output.write_all(line(&answer)?.as_bytes()).and_then(|()| output.flush()).map_err(lost)?;
    }
    Ok(())
}

/// What queues them.
struct Bench {
    context: &'static Context,
    stream: Stream,
    kernel: Blank,
    latch: Option<String>,
    /// Latches by their handles. They stay open: the same comes again.
    opened: HashMap<String, LentMemory>,
}

impl Bench {
    fn new() -> Result<Self> {
        let context = device::context(0)?;
        let (stream, kernel) = (Stream::new(context)?, Blank::new(0)?);
        // A driver that loads a kernel when it is first launched may wait for the whole device to do so.
        kernel.queue(&stream)?;
        stream.synchronize()?;
        Ok(Self { context, stream, kernel, latch: None, opened: HashMap::new() })
    }

    fn prepare(&mut self, message: &Prepare) -> Result<()> {
        let absent = || Error::Protocol { reason: "a blank was asked for, and no latch came".to_owned() };
        let latch = message.memory.as_ref().and_then(|memory| memory.latch.as_ref());
        let OnGpu { handle, bytes } = latch.ok_or_else(absent)?;
        if !self.opened.contains_key(handle) {
            let garbled = || Error::Protocol { reason: format!("{handle:?} is no handle") };
            let raw = unhex(handle).and_then(|bytes| bytes.try_into().ok()).ok_or_else(garbled)?;
            self.opened.insert(handle.clone(), LentMemory::open(self.context, raw, *bytes as usize)?);
        }
        self.latch = Some(handle.clone());
        Ok(())
    }

    fn queue(&self, value: u32) -> Result<()> {
        let unprepared = || Error::Protocol { reason: "a run came before anything was prepared".to_owned() };
        let latch = self.latch.as_ref().and_then(|handle| self.opened.get(handle)).ok_or_else(unprepared)?.address();
        // SAFETY: the latch is a page that stays open for as long as this process lives, and its two words lie in it.
        unsafe { self.stream.wait_for_word(latch, value) }?;
        self.kernel.queue(&self.stream)?;
        // SAFETY: the second word lies in the same page as the first.
        Ok(unsafe { self.stream.write_word(latch + LATCH_DONE, value) }?)
    }
}
