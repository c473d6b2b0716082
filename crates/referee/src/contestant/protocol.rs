//! The protocol: what the referee and a contestant say to each other, one JSON object a line.
//!
//! `docs/protocol.md` describes it for whoever writes a contestant; these are the same messages as types. Tensors do
//! not travel: they lie in three files of shared memory that `prepare` names, or in a GPU's memory, at the offsets that
//! it gives.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::task::{Element, Spec};

/// The version of the protocol that the referee speaks.
pub const VERSION: u32 = 2;

/// Where the second word of a latch is, in bytes from the first.
pub const LATCH_DONE: u64 = 256;

/// What the referee says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Request {
    /// The first message.
    Hello {
        /// The version that the referee speaks.
        protocol: u32,
    },
    /// A problem, with its constants. It replaces the one before.
    Prepare(Box<Prepare>),
    /// Jobs to do, in this order. None at all is legal, and is how the round trip is measured.
    Run {
        /// To be repeated in the answer.
        id: String,
        /// The jobs.
        jobs: Vec<Job>,
        /// What the words of the latch are to hold, for whoever queues its jobs behind it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        latch: Option<u32>,
    },
    /// The last message.
    Bye,
}

/// What a contestant answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Answer {
    /// To `hello`.
    Hello {
        /// The version that the contestant speaks.
        protocol: u32,
        /// Its name.
        name: String,
        /// Whether the same inputs always give the same bits; it is then held to it.
        #[serde(default)]
        deterministic: bool,
        /// Where it wants its tensors.
        #[serde(default, skip_serializing_if = "Residence::is_host")]
        memory: Residence,
        /// Whether it queues runs behind a latch in a GPU's memory, so that the device's clock can time them.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        queues: bool,
    },
    /// To `prepare`.
    Ready {
        /// The preparation's id.
        id: String,
    },
    /// To `prepare`, for a problem that it does not do.
    Unsupported {
        /// The preparation's id.
        id: String,
        /// Why not.
        #[serde(default)]
        reason: String,
    },
    /// To `run`, when every output is written.
    Done {
        /// The run's id.
        id: String,
    },
    /// To a `run` with a latch, when all of it is queued.
    Queued {
        /// The run's id.
        id: String,
    },
}

/// Tensors by name.
pub type Named = BTreeMap<String, Placed>;

/// A problem with its constants, and where inputs and outputs will be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepare {
    /// To be repeated in the answer.
    pub id: String,
    /// The operation.
    pub operation: String,
    /// What is to be computed, in the operation's own words.
    pub problem: Value,
    /// The files, where tensors lie in some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Files>,
    /// A GPU's memory, where they lie there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<DeviceFiles>,
    /// For each set of constants, where its tensors are.
    pub constants: Vec<Named>,
    /// For each input, where its tensors are.
    pub inputs: Vec<Named>,
    /// For each output, where its tensors go.
    pub outputs: Vec<Named>,
}

/// The files in which tensors lie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Files {
    /// What may be prepared for, for reading.
    pub constants: PathBuf,
    /// What is new in every run, for reading.
    pub inputs: PathBuf,
    /// What is to be written.
    pub outputs: PathBuf,
}

/// Where tensors lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Residence {
    /// In files of the host's memory.
    #[default]
    Host,
    /// In the memory of the first GPU.
    Cuda,
}

impl Residence {
    fn is_host(&self) -> bool {
        *self == Residence::Host
    }
}

/// Memory of a GPU that the referee has allocated, in place of files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceFiles {
    /// What may be prepared for, for reading.
    pub constants: OnGpu,
    /// What is new in every run, for reading.
    pub inputs: OnGpu,
    /// What is to be written.
    pub outputs: OnGpu,
    /// The latch of whoever queues: a word to wait for, and 256 bytes further one to write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latch: Option<OnGpu>,
}

/// One piece of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OnGpu {
    /// What `cuIpcOpenMemHandle` takes, 64 bytes as hexadecimal digits. The same handle may come again: it is then the
    /// same memory.
    pub handle: String,
    /// Its bytes.
    pub bytes: u64,
}

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// What its numbers are, little-endian.
    #[serde(rename = "type")]
    pub element: Element,
    /// Its sizes, the slowest first.
    pub shape: Vec<usize>,
    /// Where it begins, in bytes.
    pub offset: u64,
}

impl Placed {
    /// A tensor at an offset, with its name.
    pub fn at(spec: &Spec, offset: u64) -> (String, Self) {
        (spec.name.clone(), Self { element: spec.element, shape: spec.shape.clone(), offset })
    }
}

/// One of each that a computation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The set of constants that is used.
    pub layer: usize,
    /// The input that is used.
    pub input: usize,
    /// The output to be written.
    pub output: usize,
}

/// The message that a line is, or why it is none.
pub fn understand<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, String> {
    let text = std::str::from_utf8(line).map_err(|_| "it is not UTF-8".to_owned())?;
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// One message as a line.
pub fn line<T: Serialize>(message: &T) -> Result<String> {
    let mut line = serde_json::to_string(message).map_err(|source| Error::Protocol { reason: source.to_string() })?;
    line.push('\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_look_as_they_are_documented() {
        let run = |latch| Request::Run { id: "7".into(), jobs: vec![Job { layer: 0, input: 1, output: 2 }], latch };
        assert!(line(&run(Some(3))).unwrap().ends_with("\"latch\":3}\n"));
        let run = run(None);
        assert_eq!(
            line(&run).unwrap(),
            "{\"type\":\"run\",\"id\":\"7\",\"jobs\":[{\"layer\":0,\"input\":1,\"output\":2}]}\n"
        );
        assert_eq!(line(&Request::Bye).unwrap(), "{\"type\":\"bye\"}\n");
        let placed = Placed { element: Element::F32, shape: vec![2, 3], offset: 4096 };
        let named: Named = [("x".to_owned(), placed)].into();
        let files = Files { constants: "/c".into(), inputs: "/i".into(), outputs: "/o".into() };
        let (constants, inputs, outputs) = (vec![Named::new()], vec![named], Vec::new());
        let problem = serde_json::json!({"rows": 2});
        let (files, memory) = (Some(files), None);
        let (id, operation) = ("8".into(), "op".into());
        let prepare = Prepare { id, operation, problem, files, memory, constants, inputs, outputs };
        let prepare = Request::Prepare(Box::new(prepare));
        let text = line(&prepare).unwrap();
        assert!(text.contains(r#""inputs":[{"x":{"type":"f32","shape":[2,3],"offset":4096}}]"#), "{text}");
        assert_eq!(understand::<Request>(text.as_bytes()).unwrap(), prepare);
        let hello: Answer = serde_json::from_str(r#"{"type":"hello","protocol":2,"name":"x"}"#).unwrap();
        let (memory, queues) = (Residence::Host, false);
        assert_eq!(hello, Answer::Hello { protocol: 2, name: "x".into(), deterministic: false, memory, queues });
    }
}
