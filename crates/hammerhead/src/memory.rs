//! Memory for numbers, or an error where there is none: a problem that is too large is the caller's to split, and
//! nothing to abort for.

use op::{Error, Result};

/// Memory for something, or an error where there is none.
pub(crate) fn filled<T: Copy>(length: usize, value: T, what: &'static str) -> Result<Vec<T>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(length).map_err(|_| Error::Memory {
        bytes: length * size_of::<T>(),
        what,
        source: std::io::ErrorKind::OutOfMemory.into(),
    })?;
    memory.resize(length, value);
    Ok(memory)
}
