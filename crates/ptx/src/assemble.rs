//! NVIDIA's assembler, `ptxas`: what it makes of a kernel, as a report.
//!
//! It knows best how many registers a kernel takes and whether they spill, and it works on a machine without a GPU. It
//! is not part of this crate: [`Assembler::find`] looks for it, and says where to get it if it is not there.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io};

use crate::error::Error;
use crate::kernel::Kernel;

/// The environment variable that names the assembler.
pub const VARIABLE: &str = "HAMMERHEAD_PTXAS";

/// An assembler that was found to work.
#[derive(Clone, Debug)]
pub struct Assembler {
    path: PathBuf,
}

/// What the assembler says about a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Registers per thread at launch.
    pub registers: u32,
    /// Bytes of registers written to memory for want of room, per thread.
    pub spill_stores: u32,
    /// Bytes of registers read back.
    pub spill_loads: u32,
    /// Bytes of stack per thread.
    pub stack: u32,
    /// Bytes of shared memory per block: what the kernel declares, and what the assembler adds.
    pub shared_bytes: u32,
    /// Hardware barriers.
    pub barriers: u32,
    /// What the assembler warns of, line by line; losses of performance among them.
    pub warnings: Vec<String>,
    /// Whether it had to run asynchronous multiplications one after another.
    pub serialized: bool,
    /// The machine code, ready to be loaded.
    pub cubin: Vec<u8>,
}

impl Assembler {
    /// The assembler: the one asked for, else the one `HAMMERHEAD_PTXAS` names, else `ptxas` on the path.
    pub fn find(asked: Option<&Path>) -> Result<Self, Error> {
        let path = match (asked, env::var_os(VARIABLE)) {
            (Some(path), _) => path.to_path_buf(),
            (None, Some(path)) if !path.is_empty() => path.into(),
            _ => "ptxas".into(),
        };
        match Command::new(&path).arg("--version").output() {
            Ok(output) if output.status.success() => Ok(Assembler { path }),
            _ => Err(Error::NoAssembler { tried: path.display().to_string() }),
        }
    }

    /// What it says of its version, in one line.
    pub fn version(&self) -> Option<String> {
        let output = Command::new(&self.path).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().find(|line| line.contains("release")).map(|line| line.trim().to_owned())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Assembles a kernel for its target.
    pub fn assemble(&self, kernel: &Kernel) -> Result<Report, Error> {
        self.assemble_for(kernel, kernel.target.name())
    }

    /// Assembles a kernel for a GPU that runs code for its target, such as `sm_89` one for `sm_80`.
    pub fn assemble_for(&self, kernel: &Kernel, arch: &str) -> Result<Report, Error> {
        let broken = |error: io::Error| Error::AssemblerIo { kernel: kernel.name.clone(), reason: error.to_string() };
        let folder = Folder::new().map_err(broken)?;
        let (source, cubin) = (folder.0.join("kernel.ptx"), folder.0.join("kernel.cubin"));
        fs::write(&source, kernel.to_ptx()).map_err(broken)?;
        let arguments = [OsStr::new("-v"), OsStr::new("-arch"), OsStr::new(arch), OsStr::new("-o")];
        let output = Command::new(&self.path).args(arguments).arg(&cubin).arg(&source).output().map_err(broken)?;
        let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let lines = said.lines().filter(|line| !line.contains(" info ")).collect::<Vec<_>>().join("\n");
            return Err(Error::Assembly { kernel: kernel.name.clone(), lines });
        }
        let mut report = Report::parse(&said, fs::read(&cubin).map_err(broken)?);
        report.shared_bytes += kernel.shared_bytes();
        Ok(report)
    }
}

impl Report {
    /// Reads what `ptxas -v` prints.
    fn parse(said: &str, cubin: Vec<u8>) -> Self {
        let (spill_stores, spill_loads) = (before(said, " bytes spill stores"), before(said, " bytes spill loads"));
        let warned = said.lines().filter(|line| line.contains("warning") || line.contains("(C7"));
        Report {
            registers: before(said, " registers"),
            spill_stores,
            spill_loads,
            stack: before(said, " bytes stack frame"),
            shared_bytes: before(said, " bytes smem"),
            barriers: before(said, " barriers"),
            warnings: warned.map(|line| line.trim().to_string()).collect(),
            serialized: said.contains("serialized"),
            cubin,
        }
    }

    /// Whether the kernel came out as it was meant: no spills, no multiplications in single file, and blocks that fit
    /// the register file.
    pub fn check(&self, kernel: &Kernel) -> Result<(), Error> {
        let name = || kernel.name.clone();
        if self.spill_stores + self.spill_loads > 0 {
            let (stores, loads) = (self.spill_stores, self.spill_loads);
            return Err(Error::Spills { kernel: name(), stores, loads, registers: self.registers });
        }
        if self.serialized {
            let warning = self.warnings.iter().find(|line| line.contains("serialized")).cloned().unwrap_or_default();
            return Err(Error::Serialized { kernel: name(), warning });
        }
        kernel.check_registers(self.registers)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} registers, {} barriers, {} bytes of shared memory",
            self.registers, self.barriers, self.shared_bytes
        )?;
        match (self.spill_stores, self.spill_loads) {
            (0, 0) => write!(f, ", no spills")?,
            (stores, loads) => write!(f, ", {stores} bytes of spill stores and {loads} of spill loads")?,
        }
        self.warnings.iter().try_for_each(|warning| write!(f, "\n{warning}"))
    }
}

/// The number that stands before a phrase; zero where the phrase does not occur.
fn before(said: &str, phrase: &str) -> u32 {
    let Some(end) = said.find(phrase) else { return 0 };
    let digits = said[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    said[digits..end].parse().unwrap_or(0)
}

/// A temporary folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("hammerhead-ptx-{}-{number}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder left behind in the temporary directory is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the function 'f'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers, 8 bytes cumulative stack size, 32 bytes smem
ptxas info    : Compile time = 76.080 ms
";

    #[test]
    fn what_ptxas_prints_is_read_into_numbers() {
        let report = Report::parse(SAID, vec![1]);
        assert_eq!((report.registers, report.barriers, report.shared_bytes), (168, 3, 32));
        assert_eq!((report.stack, report.spill_stores, report.spill_loads), (8, 16, 24));
        assert!(report.serialized);
        assert_eq!(report.warnings.len(), 1);
    }
}
