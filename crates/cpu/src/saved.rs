//! Packed weights in files: as parts that somebody writes, and as parts of a file that is mapped back.
//!
//! The layout's bytes are the same on every machine, so that a file may be read by another than wrote it. What stands
//! around the parts is the business of whoever writes the file.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use format::{GlobalScale, Scaling};
use memmap2::{Mmap, MmapMut};
use op::PackedWeights;

use super::pack::{COLUMNS, PackedPanels, PanelBytes, PanelMatrix, Panels, row_bytes};

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
    /// What block scales are.
    pub scaling: Scaling,
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
        let whole = self.n > 0 && self.k > 0 && self.k.is_multiple_of(self.scaling.block());
        let length = row_bytes(self.k, self.scaling.is_mx()).checked_mul(self.n);
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
    let scaling = groups.first()?.first()?.scaling;
    let whole = |group: &Vec<StoredPart>| {
        let kind = |part: &StoredPart| (part.n, part.k, part.scaling);
        let alike = |part: &StoredPart| kind(part) == (group[0].n, group[0].k, scaling);
        group.len() == count && group.iter().all(|part| part.fits(file.len()) && alike(part))
    };
    if !(1..=2).contains(&count) || !groups.iter().all(whole) {
        return None;
    }
    let matrix = |StoredPart { n, k, scaling, global, bytes, bias }| {
        let bytes = PanelBytes { memory: Arc::clone(&file.0), range: bytes };
        PanelMatrix::mapped((n, k), (scaling, global), bytes, bias)
    };
    let groups = groups.into_iter().map(|group| Panels::of(group.into_iter().map(matrix).collect()));
    Some(Arc::new(PackedPanels::of(groups.collect(), scaling)))
}

#[cfg(test)]
mod tests {
    use format::Matrix;
    use op::Weights;

    use super::*;

    #[test]
    fn scales_of_another_kind_than_their_bytes_or_their_neighbours_are_refused() {
        let (n, k) = (40, 96);
        let matrix = |seed: u8| {
            let codes: Vec<u8> = (0..n * k / 2).map(|at| (at * 37) as u8 ^ seed).collect();
            let scales: Vec<u8> = (0..n * k / 32).map(|at| 110 + (at % 18) as u8).collect();
            Matrix::mx(n, k, codes, &scales, 0.5).unwrap()
        };
        let weights = [3, 5].map(|seed| Weights::gated(matrix(seed), matrix(seed + 1)).unwrap());
        let own = PackedPanels::new(&weights, &crate::team(Some(1)).unwrap()).unwrap();
        let mut bytes = Vec::new();
        let mut stored = |part: Part<'_>| {
            let start = bytes.len();
            bytes.extend_from_slice(part.bytes);
            let Part { n, k, scaling, global, bias, .. } = part;
            StoredPart { n, k, scaling, global, bytes: start..bytes.len(), bias: bias.to_vec() }
        };
        let groups: Vec<Vec<StoredPart>> =
            parts(&own).unwrap().into_iter().map(|group| group.into_iter().map(&mut stored).collect()).collect();
        let file = MappedFile::copied(&bytes).unwrap();
        let read = packed(&file, groups.clone()).unwrap();
        assert_eq!((read.scaling(), read.bytes()), (Scaling::MxFp4, own.bytes()));
        for (group, weights) in weights.iter().enumerate() {
            let back = crate::unpacked(read.as_ref(), group).unwrap();
            for (back, matrix) in back.matrices().zip(weights.matrices()) {
                let all = |matrix: &Matrix<'_>| (matrix.scaling(), matrix.codes().to_vec(), matrix.scales().to_vec());
                assert_eq!(all(back), all(matrix));
                assert_eq!(back.global(), matrix.global());
            }
        }
        let with = |of: &[usize], scaling: Scaling| {
            let mut groups = groups.clone();
            of.iter().for_each(|&group| groups[group].iter_mut().for_each(|part| part.scaling = scaling));
            packed(&file, groups)
        };
        assert!(with(&[0, 1], Scaling::NvFp4).is_none(), "the length of one, the name of another");
        assert!(with(&[1], Scaling::NvFp4).is_none() && with(&[1], Scaling::WideMxFp4).is_none(), "not alike");
    }
}
