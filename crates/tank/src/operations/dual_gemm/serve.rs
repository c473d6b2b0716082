//! What a fresh process of our own does: the protocol, for a built-in contestant.

use std::io::{BufRead, Write};

use referee::contestant::Readiness;
use referee::contestant::protocol::{Answer, Request, Residence, VERSION, line, understand};
use referee::{Error, Result};

use super::builtin::{Bench, Builtin, Worker};
use super::on_device::Guest;

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
                Answer::Hello { protocol: VERSION, name: name.clone(), deterministic: true, memory, queues }
            }
            Request::Prepare(message) => match bench.prepare(&message)? {
                Readiness::Ready => Answer::Ready { id: message.id },
                Readiness::Unsupported(reason) => Answer::Unsupported { id: message.id, reason },
            },
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
