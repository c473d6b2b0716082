//! What a fresh process of our own does: the protocol, for a built-in contestant.

use std::io::{BufRead, Write};

use super::builtin::{Bench, Builtin, Worker};
use super::on_device::Guest;
use super::words::Prepare;
use crate::contestant::Readiness;
use crate::contestant::protocol::{Answer, FIRST_VERSION, Prepared, Request, Residence, line, understand};
use crate::{Error, Result};

/// Speaks the protocol for a built-in contestant until `bye` or the end of the input: what a fresh process does.
pub fn serve(contestant: Builtin, input: impl BufRead, mut output: impl Write) -> Result<()> {
    let lost = |source| Error::SharedMemory { what: "speak through", path: "standard input and output".into(), source };
    let (name, memory) = (contestant.name.clone(), contestant.memory);
    let mut bench: Box<dyn Worker> = match memory {
        Residence::Host => Box::new(Bench::alone(contestant)),
        Residence::Cuda => Box::new(Guest::new(contestant)?),
    };
    for text in input.lines() {
        let text = text.map_err(lost)?;
        let answer = match understand(text.as_bytes()).map_err(|reason| Error::Protocol { reason })? {
            Request::Hello { .. } => {
                let queues = memory == Residence::Cuda;
                Answer::Hello { protocol: FIRST_VERSION, name: name.clone(), deterministic: true, memory, queues }
            }
            Request::Prepare(message) => {
                let Prepared::First(words) = message.prepared else {
                    return Err(Error::Protocol {
                        reason: "the first version was asked for, and another came".to_owned(),
                    });
                };
                match bench.prepare(Prepare::of(words)?)? {
                    Readiness::Ready => Answer::Ready { id: message.id },
                    Readiness::Unsupported(reason) => Answer::Unsupported { id: message.id, reason },
                }
            }
            Request::Run { id, jobs, latch: None } => {
                bench.run(&jobs)?;
                Answer::Done { id }
            }
            Request::Run { id, jobs, latch: Some(value) } => {
                bench.queue(&jobs, value)?;
                Answer::Queued { id }
            }
            Request::Bye => return Ok(()),
        };
        output.write_all(line(&answer)?.as_bytes()).and_then(|()| output.flush()).map_err(lost)?;
    }
    Ok(())
}
