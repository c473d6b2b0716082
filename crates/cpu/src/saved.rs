//! Packed weights in files: as parts that somebody writes, and as parts of a file that is mapped back.
//!
//! The layout's bytes are the same on every machine, so that a file may be read by another than wrote it. What stands
//! around the parts is the business of whoever writes the file.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use format::{BLOCK, GlobalScale};
use memmap2::{Mmap, MmapMut};
use op::PackedWeights;

use super::pack::{COLUMNS, PackedPanels, PanelBytes, PanelMatrix, Panels};

pub use super::pack::Part;

/// A file that is mapped to be read, or a copy of one. Nothing may change the file while it is mapped.
#[derive(Clone, Debug)]
pub struct MappedFile(Arc<Mmap>);

impl MappedFile {
    /// Maps a file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the map is read-only and private to the file it is part of. That nobody changes or cuts the file
        // while it is mapped is the condition under which files are opened, as for models.
        Ok(Self(Arc::new(unsafe { Mmap::map(&file) }?)))
    }

    /// A copy of a file's bytes in memory of its own, which lies as a mapped file would.
    pub fn copied(bytes: &[u8]) -> io::Result<Self> {
        let mut memory = MmapMut::map_anon(bytes.len())?;
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        memory.copy_from_slice(bytes);
        Ok(Self(Arc::new(memory.make_read_only()?)))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// A packed matrix in a file.
#[derive(Clone, Debug)]
pub struct StoredPart {
    /// Rows of the matrix.
    pub n: usize,
    /// The summed dimension.
    pub k: usize,
    /// The matrix's scale.
    pub global: GlobalScale,
    /// Where its codes and scales lie.
    pub bytes: Range<usize>,
    /// Its bias in whole panels; empty where there is none.
    pub bias: Vec<f32>,
}

impl StoredPart {
    /// Whether shape, bytes and bias belong together, and lie in a file of this length.
    fn fits(&self, file: usize) -> bool {
        let whole = self.n > 0 && self.k > 0 && self.k.is_multiple_of(BLOCK);
        let length = (self.k / 2).checked_add(self.k / BLOCK).and_then(|row| row.checked_mul(self.n));
        let inside = self.bytes.start <= self.bytes.end && self.bytes.end <= file;
        let biased = self.bias.is_empty() || Some(self.bias.len()) == self.n.checked_next_multiple_of(COLUMNS);
        whole && inside && biased && length == Some(self.bytes.len())
    }
}

/// The matrices of every group, if the weights are of this layout.
pub fn parts(weights: &dyn PackedWeights) -> Option<Vec<Vec<Part<'_>>>> {
    let packed: &PackedPanels = (weights as &dyn std::any::Any).downcast_ref()?;
    Some(packed.groups().iter().map(|group| group.matrices().iter().map(PanelMatrix::part).collect()).collect())
}

/// Weights that lie in a file; nothing if the parts do not fit each other or the file.
pub fn packed(file: &MappedFile, groups: Vec<Vec<StoredPart>>) -> Option<Arc<dyn PackedWeights>> {
    let count = groups.first()?.len();
    let whole = |group: &Vec<StoredPart>| {
        let shape = |part: &StoredPart| (part.n, part.k);
        group.len() == count && group.iter().all(|part| part.fits(file.len()) && shape(part) == shape(&group[0]))
    };
    if !(1..=2).contains(&count) || !groups.iter().all(whole) {
        return None;
    }
    let matrix = |StoredPart { n, k, global, bytes, bias }| {
        PanelMatrix::mapped((n, k), global, PanelBytes { memory: Arc::clone(&file.0), range: bytes }, bias)
    };
    let groups = groups.into_iter().map(|group| Panels::of(group.into_iter().map(matrix).collect()));
    Some(Arc::new(PackedPanels::of(groups.collect())))
}
