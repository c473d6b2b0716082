//! Compiled kernels, kept on disk.
//!
//! The driver's compiler takes from twenty milliseconds to some tenths of a second for a kernel, and a process needs
//! several. So the machine code that its linker hands out is kept on disk ([`op::cache`] says where), under a name made
//! of all that it depends on: the version of this crate, the PTX, the driver's version and the GPU's architecture. A
//! file begins with a digest of its contents and is written beside its place and renamed, so that nobody ever reads
//! half of one.
//!
//! The cache can only save time. Whatever is missing, unreadable, damaged or refused is compiled again, and what cannot
//! be written is not kept.
//!
//! Kernels that move registers between their warps (`setmaxnreg`) are compiled as whole programs and left to the cache
//! that the driver itself keeps of those (`CUDA_CACHE_PATH`, `~/.nv/ComputeCache`): its linker, which reckons with
//! further modules, ignores such instructions, and the driver shows the machine code of whole programs to nobody.

use std::ffi::{CStr, CString, c_void};
use std::fs;
use std::path::Path;
use std::ptr::{null_mut, without_provenance_mut};

use ptx::instr::Control;
use ptx::{Kernel, Op};

use super::symbols::Handle;
use super::{Context, remedy, words};
use op::{Error, Result, cache};

/// The environment variable that names the folder of compiled kernels; `off` for none. [`op::cache`] has the rule.
pub const CUBIN_VARIABLE: &str = "HAMMERHEAD_CUBINS";

/// What a file begins with, before the digest of the rest.
const MAGIC: &[u8; 16] = b"hammerhead cubin";

/// `CU_JIT_…` by their numbers.
mod number {
    use std::ffi::c_int;

    pub const ERROR_LOG: c_int = 5;
    pub const ERROR_LOG_BYTES: c_int = 6;
    pub const INPUT_PTX: c_int = 1;
}

/// Where a kernel's machine code came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Compiled by the driver in this process.
    Compiled,
    /// Compiled in this process, and now on disk for the next.
    Kept,
    /// Read from disk.
    Disk,
}

/// Loads a kernel, from disk if it is there.
pub(super) fn load(context: &Context, kernel: &Kernel) -> Result<(Handle, Origin)> {
    let text = kernel.to_ptx();
    let place = cache::folder(CUBIN_VARIABLE).filter(|_| is_linkable(kernel)).map(|folder| {
        let digest = digest(&[env!("CARGO_PKG_VERSION").as_bytes(), text.as_bytes()]);
        let (arch, driver) = (kernel.target.name(), context.info().driver);
        folder.join(format!("{}-{arch}-{driver}-{digest:032x}.cubin", kernel.name))
    });
    let kept = place.as_deref().and_then(read);
    if let Some(module) = kept.and_then(|image| load_image(context, &image)) {
        return Ok((module, Origin::Disk));
    }
    let source = CString::new(text).unwrap_or_default();
    if let Some(place) = place
        && let Some((image, module)) = link(context, &source).and_then(|image| {
            let module = load_image(context, &image)?;
            Some((image, module))
        })
    {
        let origin = if write(&place, &image).is_ok() { Origin::Kept } else { Origin::Compiled };
        return Ok((module, origin));
    }
    Ok((compile(context, kernel, &source)?, Origin::Compiled))
}

/// Whether the linker makes the same of a kernel as the compiler alone.
fn is_linkable(kernel: &Kernel) -> bool {
    !kernel.body.iter().any(|instr| matches!(instr.op, Op::Control(Control::SetMaxRegisters { .. })))
}

/// 128 bits of Fowler, Noll and Vo over all parts and their lengths.
fn digest(parts: &[&[u8]]) -> u128 {
    let step = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013B);
    parts.iter().fold(0x6C62_272E_07BB_0142_62B8_2175_6295_C58D, |hash, part| {
        let hash = part.len().to_le_bytes().iter().fold(hash, step);
        part.iter().fold(hash, step)
    })
}

/// The machine code in a file, or nothing if there is no file or it is not whole.
fn read(place: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(place).ok()?;
    let (magic, rest) = bytes.split_at_checked(MAGIC.len())?;
    let (found, image) = rest.split_at_checked(size_of::<u128>())?;
    (magic == MAGIC && *found == digest(&[image]).to_le_bytes()).then(|| image.to_vec())
}

/// Keeps machine code in a file, which appears whole or not at all.
fn write(place: &Path, image: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = place.parent() {
        fs::create_dir_all(folder)?;
    }
    // Threads compile a kernel one at a time, so the process alone makes the name unique.
    let beside = place.with_extension(format!("{}.tmp", std::process::id()));
    let bytes = [MAGIC.as_slice(), &digest(&[image]).to_le_bytes(), image].concat();
    let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, place));
    if written.is_err() {
        // Nothing is left to do if that fails as well.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// A module made from machine code, if the driver takes it.
fn load_image(context: &Context, image: &[u8]) -> Option<Handle> {
    let mut module = null_mut();
    // SAFETY: the image is a whole one (its digest says so, or the driver has just made it); no options.
    let status =
        unsafe { (context.symbols.module_load)(&mut module, image.as_ptr().cast(), 0, null_mut(), null_mut()) };
    (status == 0).then_some(module)
}

/// The machine code that the driver's linker makes of PTX, if it makes any.
fn link(context: &Context, source: &CStr) -> Option<Vec<u8>> {
    let (symbols, mut linker) = (context.symbols, null_mut());
    // SAFETY: no options; writes one handle.
    if unsafe { (symbols.link_create)(0, null_mut(), null_mut(), &mut linker) } != 0 {
        return None;
    }
    let (text, length) = (source.as_ptr().cast_mut().cast(), source.to_bytes_with_nul().len());
    let (mut image, mut bytes) = (null_mut(), 0);
    // SAFETY: the source ends in zero and is only read; no options; the image belongs to the linker and is copied
    // before that is destroyed, once.
    unsafe {
        let name = c"kernel".as_ptr();
        let made = (symbols.link_add)(linker, number::INPUT_PTX, text, length, name, 0, null_mut(), null_mut()) == 0
            && (symbols.link_complete)(linker, &mut image, &mut bytes) == 0;
        let image = (made && !image.is_null()).then(|| std::slice::from_raw_parts(image.cast::<u8>(), bytes).to_vec());
        (symbols.link_destroy)(linker);
        image
    }
}

/// Has the driver compile PTX; if it refuses, what its compiler said is in the error.
fn compile(context: &Context, kernel: &Kernel, source: &CStr) -> Result<Handle> {
    let mut log = vec![0u8; 8192];
    let mut options = [number::ERROR_LOG, number::ERROR_LOG_BYTES];
    // The second value is a number in place of a pointer: that is how the driver takes it.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), without_provenance_mut(log.len())];
    let mut module = null_mut();
    // SAFETY: the source ends in zero; there are two options with two values; the log has the stated length.
    let status = unsafe {
        let load = context.symbols.module_load;
        load(&mut module, source.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    if status == 0 {
        return Ok(module);
    }
    let (name, text) = words(context.symbols, status);
    let said = CStr::from_bytes_until_nul(&log).map(|log| log.to_string_lossy().trim().to_owned()).unwrap_or_default();
    Err(Error::Jit { kernel: kernel.name.clone(), name, text, remedy: remedy(status), log: said })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("hammerhead-cubin-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        directory
    }

    #[test]
    fn what_was_kept_is_read_again() {
        let directory = scratch("kept");
        let place = directory.join("deep").join("kernel.cubin");
        write(&place, b"machine code").unwrap();
        assert_eq!(read(&place).as_deref(), Some(b"machine code".as_slice()));
        assert_eq!(fs::read_dir(place.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_damaged_file_is_as_good_as_none() {
        let directory = scratch("damaged");
        let place = directory.join("kernel.cubin");
        assert_eq!(read(&place), None);
        write(&place, b"machine code").unwrap();
        let whole = fs::read(&place).unwrap();
        for length in 0..whole.len() {
            fs::write(&place, &whole[..length]).unwrap();
            assert_eq!(read(&place), None, "cut at {length}");
        }
        for at in 0..whole.len() {
            let mut bent = whole.clone();
            bent[at] ^= 4;
            fs::write(&place, &bent).unwrap();
            assert_eq!(read(&place), None, "bent at {at}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_of_writing_only() {
        let directory = scratch("blocked");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("file"), b"in the way").unwrap();
        assert!(write(&directory.join("file").join("kernel.cubin"), b"machine code").is_err());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn every_part_of_what_is_digested_counts_and_so_do_their_borders() {
        let whole = digest(&[b"ab", b"c"]);
        assert!(
            [digest(&[b"ab", b"d"]), digest(&[b"a", b"bc"]), digest(&[b"abc"])].iter().all(|other| *other != whole)
        );
    }
}
