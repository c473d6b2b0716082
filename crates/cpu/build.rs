//! The version of this crate's kernels: a digest of its sources, so that nobody can forget to change it.
//!
//! What was measured with other kernels, or chosen at other prices, is no longer true. Comments, blanks and tests
//! change neither and are left out. `hammerhead-cpu` and `hammerhead-gpu` have the same build script each; a test holds
//! them together.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=build.rs");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let mut files = Vec::new();
    collect(&root.join("src"), &mut files)?;
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for file in files {
        let place = file.strip_prefix(&root).unwrap_or(&file).to_string_lossy().replace('\\', "/");
        hash = fold(fold(hash, &place), &fs::read_to_string(&file)?);
    }
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo::rustc-env=HAMMERHEAD_KERNELS={version}-{hash:016x}");
    Ok(())
}

/// Every file of a folder and of the folders in it.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Adds what counts of a source to a hash (FNV-1a). The module of tests ends a file.
fn fold(hash: u64, source: &str) -> u64 {
    let code = source.lines().map(str::trim).take_while(|line| *line != "mod tests {");
    let words = code.filter(|line| !line.starts_with("//")).flat_map(str::split_whitespace);
    words.flat_map(str::bytes).fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
