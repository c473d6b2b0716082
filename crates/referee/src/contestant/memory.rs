//! Memory in which the referee lays tensors out and a contestant computes: a file without a name, or a GPU's own
//! memory.
//!
//! The referee never maps files: it reads and writes them by system calls. A contestant may shorten a file at any time,
//! and a referee that had it mapped would die of that; a short read is an answer like any other.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpu::driver::{Context, DeviceMemory, Stream};

use super::protocol::OnGpu;
use crate::digits::hex;
use crate::{Error, Result};

/// One kind of memory.
pub(super) trait Memory {
    /// Room for so many bytes. What was there is forgotten.
    fn make_room(&mut self, bytes: u64) -> Result<()>;

    /// Writes bytes at offsets.
    fn write(&self, parts: &[(usize, &[u8])]) -> Result<()>;

    /// Has parts (offset and bytes) hold one value.
    fn fill(&self, parts: &[(usize, usize)], byte: u8) -> Result<()> {
        parts.iter().try_for_each(|&(at, bytes)| self.write(&[(at, &vec![byte; bytes])]))
    }

    /// Reads parts; nothing where a contestant has cut one off.
    fn read(&self, parts: &[(usize, usize)]) -> Result<Option<Vec<Vec<u8>>>>;

    /// Bytes that a contestant has made of it beyond the room that there was.
    fn excess(&self) -> u64 {
        0
    }

    /// What a contestant inherits, if that is how it comes to the memory.
    fn lent(&self) -> Option<&File> {
        None
    }

    /// Has what was written come to where the contestant reads, or what it wrote to where the referee does, in these
    /// parts (offset and bytes), where those are two places.
    fn pass(&self, _parts: &[(usize, usize)]) -> Result<()> {
        Ok(())
    }

    /// Poisons what a contestant reads, in these parts, until it is passed.
    fn hide(&self, _parts: &[(usize, usize)]) -> Result<()> {
        Ok(())
    }

    /// Queues what [`Memory::pass`] does, in the stream that its copies are made in.
    ///
    /// # Safety
    ///
    /// The memory must stay, and no more room be made in it, until the stream has done the copies.
    unsafe fn queue_pass(&self, _parts: &[(usize, usize)]) -> Result<()> {
        Ok(())
    }

    /// Queues copies of pieces of what a contestant wrote: from an offset here to one there, so many bytes.
    ///
    /// # Safety
    ///
    /// As for [`Memory::queue_pass`], of both sides.
    unsafe fn queue_pieces(&self, _to: &DeviceMemory, _pieces: &[(usize, usize, usize)]) -> Result<()> {
        Ok(())
    }

    /// What another process opens it by, where that is how it comes to the memory.
    fn handle(&self) -> Result<Option<OnGpu>> {
        Ok(None)
    }

    /// Where it begins in a GPU's memory.
    fn address(&self) -> Option<u64> {
        None
    }
}

/// A file in memory that has no name in any folder.
pub(super) struct Unnamed {
    name: &'static str,
    file: File,
    /// What the contestant is given ([`lendable`]), for reading only where that is all it may do.
    lent: File,
    /// The room that was made.
    bytes: u64,
}

impl Unnamed {
    pub(super) fn create(name: &'static str, writable: bool) -> Result<Self> {
        let failed = |source| Error::SharedMemory { what: "make room for", path: name.into(), source };
        let file = anonymous(name).map_err(failed)?;
        // Its owner could change this back; what was changed is found by comparing.
        file.set_permissions(Permissions::from_mode(if writable { 0o600 } else { 0o400 })).map_err(failed)?;
        let lent = lendable(&file, writable).map_err(failed)?;
        Ok(Self { name, file, lent, bytes: 0 })
    }
}

impl Memory for Unnamed {
    fn make_room(&mut self, bytes: u64) -> Result<()> {
        // Emptied first, so that its memory is given back.
        let made = self.file.set_len(0).and_then(|()| self.file.set_len(bytes));
        self.bytes = bytes;
        made.map_err(|source| Error::SharedMemory { what: "make room in", path: self.name.into(), source })
    }

    fn write(&self, parts: &[(usize, &[u8])]) -> Result<()> {
        let failed = |source| Error::SharedMemory { what: "write", path: self.name.into(), source };
        parts.iter().try_for_each(|&(at, bytes)| self.file.write_all_at(bytes, at as u64).map_err(failed))
    }

    fn read(&self, parts: &[(usize, usize)]) -> Result<Option<Vec<Vec<u8>>>> {
        let read = |&(at, length): &(usize, usize)| {
            let mut bytes = vec![0; length];
            match self.file.read_exact_at(&mut bytes, at as u64) {
                Ok(()) => Ok(Some(bytes)),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
                Err(source) => Err(Error::SharedMemory { what: "read", path: self.name.into(), source }),
            }
        };
        parts.iter().map(read).collect()
    }

    fn lent(&self) -> Option<&File> {
        Some(&self.lent)
    }

    fn excess(&self) -> u64 {
        // Blocks are of 512 bytes, whatever the file system's own are.
        self.file.metadata().map_or(0, |about| (512 * about.blocks()).saturating_sub(self.bytes))
    }
}

/// Memory of a GPU.
///
/// What another process uses is kept until the session ends, since it may have it open; so there is never less room
/// than there was. Of what it reads in a run, or writes there, the referee has a copy of its own: work that a
/// contestant left on the device goes on when its process stands still, and sees nothing of an input before the clock
/// runs, and changes nothing of an output after it was taken.
pub(super) struct OnDevice {
    name: &'static str,
    context: &'static Context,
    stream: Arc<Stream>,
    purpose: Purpose,
    memory: Option<DeviceMemory>,
    own: Option<DeviceMemory>,
    outgrown: Vec<DeviceMemory>,
}

/// Who uses a GPU's memory, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// This process, which is ours.
    Here,
    /// Another process, before anything is timed.
    Constants,
    /// Another process, to read from in a run.
    Inputs,
    /// Another process, to write to in a run.
    Outputs,
}

/// What inputs hold until a run's clock runs.
const HIDDEN: u8 = 0xFF;

/// What the driver allocates and names to other processes whole.
pub(super) const PAGE: u64 = 2 << 20;

impl OnDevice {
    pub(super) fn create(
        name: &'static str,
        context: &'static Context,
        stream: &Arc<Stream>,
        purpose: Purpose,
    ) -> Self {
        Self { name, context, stream: Arc::clone(stream), purpose, memory: None, own: None, outgrown: Vec::new() }
    }

    fn of<'m>(&self, memory: &'m Option<DeviceMemory>) -> Result<&'m DeviceMemory> {
        memory.as_ref().ok_or_else(|| Error::Protocol { reason: format!("no room was made for {}", self.name) })
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceMemory> {
        Ok(DeviceMemory::new(self.context, self.name, bytes as usize)?)
    }
}

impl Memory for OnDevice {
    fn make_room(&mut self, bytes: u64) -> Result<()> {
        if self.purpose == Purpose::Here {
            self.memory = None;
            self.memory = Some(self.allocate(bytes)?);
            return Ok(());
        }
        let bytes = bytes.next_multiple_of(PAGE);
        if self.memory.as_ref().is_none_or(|memory| (memory.bytes() as u64) < bytes) {
            self.outgrown.extend(self.memory.take());
            self.memory = Some(self.allocate(2 * bytes)?);
            if matches!(self.purpose, Purpose::Inputs | Purpose::Outputs) {
                self.own = None;
                self.own = Some(self.allocate(2 * bytes)?);
            }
        }
        Ok(())
    }

    fn write(&self, parts: &[(usize, &[u8])]) -> Result<()> {
        let memory = self.of(if self.purpose == Purpose::Inputs { &self.own } else { &self.memory })?;
        // SAFETY: the copies are waited for, whatever became of them, so that both sides outlive them.
        let queued = parts.iter().try_for_each(|&(at, bytes)| unsafe { memory.write(at, bytes, &self.stream) });
        let done = self.stream.synchronize();
        Ok(queued.and(done)?)
    }

    fn fill(&self, parts: &[(usize, usize)], byte: u8) -> Result<()> {
        let memory = self.of(if self.purpose == Purpose::Inputs { &self.own } else { &self.memory })?;
        // SAFETY: the filling is waited for, whatever became of it.
        let fill = |&(at, bytes): &(usize, usize)| unsafe { memory.fill_part(at, bytes, byte, &self.stream) };
        let queued = parts.iter().try_for_each(fill);
        let done = self.stream.synchronize();
        Ok(queued.and(done)?)
    }

    /// One copy of all that lies between the first and the last: small ones take ten microseconds each.
    fn read(&self, parts: &[(usize, usize)]) -> Result<Option<Vec<Vec<u8>>>> {
        let memory = if self.purpose == Purpose::Outputs { &self.own } else { &self.memory };
        let start = parts.iter().map(|&(at, _)| at).min().unwrap_or(0);
        let end = parts.iter().map(|&(at, bytes)| at + bytes).max().unwrap_or(0);
        let mut all = vec![0; end - start];
        self.of(memory)?.get(start, &mut all, &self.stream)?;
        Ok(Some(parts.iter().map(|&(at, bytes)| all[at - start..][..bytes].to_vec()).collect()))
    }

    fn pass(&self, parts: &[(usize, usize)]) -> Result<()> {
        // SAFETY: the copies are waited for, whatever became of them.
        let queued = unsafe { self.queue_pass(parts) };
        let done = self.stream.synchronize();
        queued.and(Ok(done?))
    }

    fn hide(&self, parts: &[(usize, usize)]) -> Result<()> {
        for &(at, bytes) in parts {
            // SAFETY: the stream is waited for below, whatever became of the queueing.
            unsafe { self.of(&self.memory)?.fill_part(at, bytes, HIDDEN, &self.stream) }?;
        }
        Ok(self.stream.synchronize()?)
    }

    unsafe fn queue_pass(&self, parts: &[(usize, usize)]) -> Result<()> {
        if parts.is_empty() {
            // Runs without jobs come before there is room for anything.
            return Ok(());
        }
        let (to, from) = match self.purpose {
            Purpose::Inputs => (&self.memory, &self.own),
            Purpose::Outputs => (&self.own, &self.memory),
            Purpose::Here | Purpose::Constants => return Ok(()),
        };
        let parts: Vec<_> = parts.iter().map(|&(at, bytes)| (at, at, bytes)).collect();
        // SAFETY: the caller keeps both, which are this value's, until the stream has done the copies.
        Ok(unsafe { self.of(to)?.copy_parts(self.of(from)?, &parts, &self.stream) }?)
    }

    unsafe fn queue_pieces(&self, to: &DeviceMemory, pieces: &[(usize, usize, usize)]) -> Result<()> {
        if pieces.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller keeps both sides until the stream has done the copies.
        Ok(unsafe { to.copy_parts(self.of(&self.memory)?, pieces, &self.stream) }?)
    }

    fn address(&self) -> Option<u64> {
        self.memory.as_ref().map(DeviceMemory::address)
    }

    fn handle(&self) -> Result<Option<OnGpu>> {
        if self.purpose == Purpose::Here {
            return Ok(None);
        }
        let memory = self.of(&self.memory)?;
        Ok(Some(OnGpu { handle: hex(&memory.handle()?), bytes: memory.bytes() as u64 }))
    }
}

/// A file without a name, in memory where the system has such files.
fn anonymous(name: &str) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        let name = std::ffi::CString::new(name)?;
        // SAFETY: the name ends and lives for as long as the call.
        let made = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if made >= 0 {
            // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
            return Ok(unsafe { File::from_raw_fd(made) });
        }
    }
    let _ = name;
    tempfile::tempfile()
}

/// A file opened once more, for others: flags and an offset belong to what was opened, and whoever inherits that may
/// set them. Were it the referee's own, `O_APPEND` would send what it writes to the file's end, wherever it belongs.
pub(super) fn lendable(file: &File, writable: bool) -> io::Result<File> {
    File::options().read(true).write(writable).open(path_of(file))
}

/// By which path whoever holds a file open can open it again.
pub(super) fn path_of(file: &File) -> PathBuf {
    let folder = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    Path::new(folder).join(file.as_raw_fd().to_string())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn flags_and_offsets_of_what_is_lent_are_not_the_referees() {
        let mut memory = Unnamed::create("outputs", true).unwrap();
        memory.make_room(8192).unwrap();
        let lent = memory.lent().unwrap().try_clone().unwrap();
        for flags in [libc::O_APPEND, libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_ASYNC] {
            // SAFETY: plain system calls on a descriptor that is open. Some kernels refuse some of these flags.
            unsafe {
                libc::fcntl(lent.as_raw_fd(), libc::F_SETFL, flags);
                libc::lseek(lent.as_raw_fd(), 4096, libc::SEEK_SET);
            }
            memory.fill(&[(16, 32)], 0xFF).unwrap();
            memory.write(&[(0, b"numbers")]).unwrap();
            assert_eq!(memory.read(&[(0, 7), (16, 32)]).unwrap().unwrap(), [&b"numbers"[..], &[0xFF; 32]]);
            assert_eq!(lent.metadata().unwrap().len(), 8192, "something went to the end");
        }
        let read_only = Unnamed::create("inputs", false).unwrap();
        assert!(read_only.lent().unwrap().write_at(b"mine", 0).is_err());
    }
}
