//! How weights lie in memory for every CPU backend.
//!
//! A matrix `[n, k]` is cut into *panels* of 16 columns (rows of the matrix, columns of C). A panel is one sequential
//! stream of *chunks*, each 64 of K: first the scales, one byte a column for each of the four blocks, then the codes as
//! eight vectors of 64 bytes, each 8 of K. In such a vector the 32-bit lane of a column holds its eight codes in the
//! order k = 0 2 4 6 1 3 5 7, lowest nibble first. That order serves three readers at once:
//!
//! - as 16-bit lanes, nibble j is the pair (2j, 2j+1) side by side: one shift and one table look-up make a row of
//!   bf16 pairs as matrix instructions want them;
//! - as bytes, the low nibbles are k = 0 4 1 5 and the high ones 2 6 3 7: four of K a lane, as integer dot products
//!   want them, if the tokens are put in the same order;
//! - as 32-bit lanes, each shift by four puts the code of one k in the low bits of every column's lane.
//!
//! Nothing is padded: the last chunk has the blocks that are left, the last panel the columns that are left (its lanes
//! are just fewer). So packed weights take exactly the bytes of the checkpoint. A negative scale is folded into the
//! signs of its codes, so readers may take scales as unsigned.
//!
//! MXFP4 has a byte of scale for two blocks, as [`Matrix::mx`] keeps it: s stands for 2^(s−127), so that s shifted into
//! place is an f32. Codes lie in the same way. All matrices of a layer are packed alike: with powers of two if all are
//! MXFP4, else with e4m3 scales, where MXFP4 has such a form.

use std::ops::{Deref, Range};
use std::sync::Arc;

use format::{BLOCK, GlobalScale, MX_BLOCK, Matrix, Scaling};
use memmap2::{Mmap, MmapMut};

use super::memory::PAGE;
use op::backend::packed_as;
use op::{Error, PackedWeights, Result, Team, Weights};

/// The layout's name.
pub const LAYOUT: &str = "cpu panels";

/// Columns of a panel.
pub(super) const COLUMNS: usize = 16;
/// Blocks of K in a full chunk.
pub(super) const CHUNK_BLOCKS: usize = 4;
/// K in a full chunk.
pub(super) const CHUNK: usize = CHUNK_BLOCKS * BLOCK;
/// Bytes of one block's codes in a full panel: two vectors.
pub(super) const CODE_BYTES: usize = COLUMNS * BLOCK / 2;
/// The order of k in which a lane's codes stand.
pub(super) const LANE_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Elements that share a scale, MXFP4 or not.
const fn scaled(mx: bool) -> usize {
    if mx { MX_BLOCK } else { BLOCK }
}

/// Blocks that share a scale.
pub(super) const fn shared(mx: bool) -> usize {
    scaled(mx) / BLOCK
}

/// Bytes of a row of so many codes, and of its scales.
pub(super) const fn row_bytes(k: usize, mx: bool) -> usize {
    k / 2 + k / scaled(mx)
}

/// Bytes of a full chunk of a full panel.
pub(super) const fn chunk_bytes(mx: bool) -> usize {
    COLUMNS * row_bytes(CHUNK, mx)
}

/// The scales and the codes of a chunk, of any width and of any number of blocks.
#[inline(always)]
pub(super) fn split(chunk: &[u8], mx: bool) -> (&[u8], &[u8]) {
    chunk.split_at(chunk.len() / (1 + scaled(mx) / 2))
}

/// The packed weights of one group: gate and up, or one plain matrix. Clones share them.
#[derive(Clone, Debug)]
pub struct Panels {
    matrices: Arc<[PanelMatrix]>,
}

impl Panels {
    /// Matrices of one shape that were packed before.
    pub(super) fn of(matrices: Vec<PanelMatrix>) -> Self {
        Self { matrices: matrices.into() }
    }

    /// Gate and up, or the only matrix.
    pub(super) fn matrices(&self) -> &[PanelMatrix] {
        &self.matrices
    }

    /// The weights that were packed, read back.
    fn weights(&self) -> Result<Weights<'static>> {
        let read = |matrix: &PanelMatrix| Ok((matrix.matrix()?, matrix.bias.get(..matrix.n).map(<[f32]>::to_vec)));
        let (matrices, biases): (Vec<_>, Vec<_>) =
            self.matrices.iter().map(read).collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let mut matrices = matrices.into_iter();
        let weights = match (matrices.next(), matrices.next()) {
            (Some(gate), Some(up)) => Weights::gated(gate, up)?,
            (Some(only), None) => Weights::plain(only),
            (None, _) => return Err(Error::NoGroups),
        };
        match biases.into_iter().collect::<Option<Vec<_>>>() {
            Some(biases) => weights.with_bias(biases),
            None => Ok(weights),
        }
    }

    /// The bytes they take.
    pub fn bytes(&self) -> usize {
        self.matrices.iter().map(|m| m.bytes.len() + size_of_val(&m.bias[..])).sum()
    }
}

/// The weights of all groups of a layer.
#[derive(Debug)]
pub(super) struct PackedPanels {
    groups: Vec<Panels>,
    shapes: Vec<(usize, usize)>,
    scaling: Scaling,
}

impl PackedPanels {
    /// Packs all groups into one piece of memory. Large pages spare memory-bound kernels a page walk every 4 KB, and
    /// the matrices of small experts would not fill theirs. Threads take one panel after the other, so that on a
    /// machine with several memory nodes every matrix is spread over the nodes of the threads that will read it.
    ///
    /// MXFP4 beside NVFP4 is widened to that, or refused where it is not exact.
    pub(super) fn new(weights: &[Weights<'_>], team: &Team) -> Result<Self> {
        let matrices = || weights.iter().flat_map(Weights::matrices);
        let scaling = Scaling::common(matrices());
        let alike = matrices().map(|matrix| matrix.in_scaling(scaling));
        let alike = alike.collect::<format::Result<Vec<Matrix<'_>>>>()?;
        let packed_bytes = |matrix: &Matrix<'_>| matrix.rows() * row_bytes(matrix.k(), scaling.is_mx());
        let bytes = matrices().map(|matrix| packed_bytes(matrix).next_multiple_of(PAGE)).sum::<usize>().max(1);
        let failed = |source| Error::Memory { bytes, what: "packed weights", source };
        let mut memory = MmapMut::map_anon(bytes).map_err(failed)?;
        // Where large pages are refused, all still works.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        let mut places = Vec::new();
        let (mut rest, mut start) = (&mut memory[..], 0);
        for matrix in &alike {
            let length = packed_bytes(matrix);
            let (place, others) = rest.split_at_mut(length.next_multiple_of(PAGE));
            places.push((matrix, &mut place[..length]));
            rest = others;
        }
        let panels = places.into_iter().flat_map(|(matrix, place)| {
            let panels = place.chunks_mut(COLUMNS * row_bytes(matrix.k(), scaling.is_mx())).enumerate();
            panels.map(move |(panel, out)| (matrix, panel * COLUMNS, out))
        });
        team.for_each(panels, |(matrix, first, out)| {
            pack_panel(matrix, first, COLUMNS.min(matrix.rows() - first), out);
        });
        let memory = Arc::new(memory.make_read_only().map_err(failed)?);
        let mut packed = |matrix: &Matrix<'_>, bias: Option<&[f32]>| {
            let range = start..start + packed_bytes(matrix);
            start = range.end.next_multiple_of(PAGE);
            let mut bias = bias.map_or_else(Vec::new, <[f32]>::to_vec);
            bias.resize(bias.len().next_multiple_of(COLUMNS), 0.0);
            let bytes = PanelBytes { memory: Arc::clone(&memory), range };
            PanelMatrix::mapped((matrix.rows(), matrix.k()), (scaling, matrix.global()), bytes, bias)
        };
        let group = |weights: &Weights<'_>| {
            let matrices = weights.matrices().enumerate();
            Panels::of(matrices.map(|(index, matrix)| packed(matrix, weights.bias(index))).collect())
        };
        Ok(Self::of(weights.iter().map(group).collect(), scaling))
    }

    /// Groups that were packed before, each of one or two matrices of one shape, and all with scales of one kind.
    pub(super) fn of(groups: Vec<Panels>, scaling: Scaling) -> Self {
        let shape = |group: &Panels| group.matrices.first().map_or((0, 0), |matrix| (matrix.n, matrix.k));
        Self { shapes: groups.iter().map(shape).collect(), groups, scaling }
    }

    pub(super) fn groups(&self) -> &[Panels] {
        &self.groups
    }
}

// SAFETY: the groups were packed from matrices of the shapes that are kept beside them, as many in each, or lie in a
// file of which `saved::packed` has seen that.
unsafe impl PackedWeights for PackedPanels {
    fn layout(&self) -> &'static str {
        LAYOUT
    }

    fn shapes(&self) -> &[(usize, usize)] {
        &self.shapes
    }

    fn matrices(&self) -> usize {
        self.groups.first().map_or(1, |group| group.matrices.len())
    }

    fn bytes(&self) -> usize {
        self.groups.iter().map(Panels::bytes).sum()
    }

    fn scaling(&self) -> Scaling {
        self.scaling
    }

    fn only(&self, groups: &[usize]) -> Option<Arc<dyn PackedWeights>> {
        let groups = groups.iter().map(|&group| self.groups.get(group).cloned()).collect::<Option<Vec<Panels>>>()?;
        Some(Arc::new(Self::of(groups, self.scaling)))
    }
}

/// The weights of a group that a CPU backend has packed, read back. Input scales are not among what it packs.
pub fn unpacked(weights: &dyn PackedWeights, group: usize) -> Result<Weights<'static>> {
    let packed: &PackedPanels = packed_as(weights, "cpu", LAYOUT)?;
    packed.groups.get(group).ok_or(Error::NoGroups)?.weights()
}

/// One packed matrix.
#[derive(Clone, Debug)]
pub(super) struct PanelMatrix {
    n: usize,
    k: usize,
    scaling: Scaling,
    global: GlobalScale,
    bytes: PanelBytes,
    /// What is added to the sums of each column, in whole panels; empty where nothing is.
    bias: Vec<f32>,
}

/// A packed matrix to be written.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Rows of the matrix.
    pub n: usize,
    /// The summed dimension.
    pub k: usize,
    /// What block scales are, as those of all matrices beside it.
    pub scaling: Scaling,
    /// The matrix's scale.
    pub global: GlobalScale,
    /// Its codes and scales, as the layout has them.
    pub bytes: &'a [u8],
    /// Its bias in whole panels; empty where there is none.
    pub bias: &'a [f32],
}

/// Where a packed matrix lies: in a part of a layer's memory, or of a file.
#[derive(Clone, Debug)]
pub(super) struct PanelBytes {
    pub memory: Arc<Mmap>,
    pub range: Range<usize>,
}

impl Deref for PanelBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.range.clone()]
    }
}

/// Some chunks of one panel, one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch<'a> {
    pub bytes: &'a [u8],
    /// Columns: 16, or what is left of them in the last panel.
    pub width: usize,
    /// Whether two blocks share a scale.
    pub mx: bool,
}

impl PanelMatrix {
    /// A matrix that was packed before: as many bytes as its shape takes, and a bias in whole panels or none.
    pub(super) fn mapped(
        (n, k): (usize, usize),
        (scaling, global): (Scaling, GlobalScale),
        bytes: PanelBytes,
        bias: Vec<f32>,
    ) -> Self {
        Self { n, k, scaling, global, bytes, bias }
    }

    /// The matrix as it is written to a file.
    pub(super) fn part(&self) -> Part<'_> {
        let Self { n, k, scaling, global, ref bytes, ref bias } = *self;
        Part { n, k, scaling, global, bytes, bias }
    }

    /// The matrix that was packed, read back: the same codes and scales, but that no scale is negative.
    pub(super) fn matrix(&self) -> Result<Matrix<'static>> {
        let (n, k, mx) = (self.n, self.k, self.scaling.is_mx());
        let (mut codes, mut scales) = (vec![0; n * k / 2], vec![0; n * k / scaled(mx)]);
        let rows = codes.chunks_mut(k / 2).zip(scales.chunks_mut(k / scaled(mx))).enumerate();
        for (row, (codes, scales)) in rows {
            let (panel, column) = (row / COLUMNS, row % COLUMNS);
            let chunks = codes.chunks_mut(CHUNK / 2).zip(scales.chunks_mut(CHUNK / scaled(mx))).enumerate();
            for (chunk, (codes, scales)) in chunks {
                let Stretch { bytes, width, .. } = self.stretch(panel, chunk..chunk + 1);
                let (packed_scales, lanes) = split(bytes, mx);
                for (scale, packed) in scales.iter_mut().zip(packed_scales.chunks_exact(width)) {
                    *scale = packed[column];
                }
                for (eight, lanes) in codes.chunks_exact_mut(4).zip(lanes.chunks_exact(4 * width)) {
                    let lane = &lanes[4 * column..][..4];
                    let lane = u32::from_le_bytes([lane[0], lane[1], lane[2], lane[3]]);
                    eight.copy_from_slice(&k_order(lane).to_le_bytes());
                }
            }
        }
        if mx {
            return Ok(Matrix::mx(n, k, codes, &scales, self.global)?);
        }
        Ok(Matrix::new(n, k, codes, scales, self.global)?)
    }

    pub(super) fn global(&self) -> GlobalScale {
        self.global
    }

    /// What is added to the sums of each column from the first one on, in whole panels, if there is that.
    pub(super) fn bias(&self, first: usize) -> Option<&[f32]> {
        self.bias.get(first..).filter(|bias| !bias.is_empty())
    }

    /// Some chunks of a panel.
    pub(super) fn stretch(&self, panel: usize, chunks: Range<usize>) -> Stretch<'_> {
        let (width, mx) = (COLUMNS.min(self.n - panel * COLUMNS), self.scaling.is_mx());
        let start = panel * COLUMNS * row_bytes(self.k, mx);
        let place = |chunk: usize| start + width * row_bytes(self.k.min(chunk * CHUNK), mx);
        Stretch { bytes: &self.bytes[place(chunks.start)..place(chunks.end)], width, mx }
    }
}

/// A chunk of a panel with fewer columns as one with all 16, the missing ones zero; and its length.
pub(super) fn widened(chunk: &[u8], width: usize, mx: bool) -> ([u8; chunk_bytes(false)], usize) {
    let mut out = [0; chunk_bytes(false)];
    let (scales, codes) = split(chunk, mx);
    let rows = scales.chunks(width).zip(out.chunks_mut(COLUMNS));
    rows.for_each(|(scales, out)| out[..width].copy_from_slice(scales));
    let rows = codes.chunks(4 * width).zip(out[scales.len() / width * COLUMNS..].chunks_mut(4 * COLUMNS));
    rows.for_each(|(codes, out)| out[..4 * width].copy_from_slice(codes));
    (out, chunk.len() / width * COLUMNS)
}

/// Packs `width` rows of the matrix, from `first` on, as one panel.
fn pack_panel(matrix: &Matrix<'_>, first: usize, width: usize, out: &mut [u8]) {
    let (k, mx) = (matrix.k(), matrix.scaling().is_mx());
    // Powers of two have no sign.
    let sign = if mx { 0 } else { 0x80 };
    let mut rest = out;
    for start in (0..k).step_by(CHUNK) {
        let elements = start..k.min(start + CHUNK);
        let (chunk, tail) = rest.split_at_mut(width * row_bytes(elements.len(), mx));
        let (scales, codes) = chunk.split_at_mut(width * elements.len() / scaled(mx));
        for column in 0..width {
            let row_scales = &matrix.row_scales(first + column)[start / scaled(mx)..elements.end / scaled(mx)];
            let row_codes = &matrix.row_codes(first + column)[start / 2..elements.end / 2];
            for (block, &scale) in row_scales.iter().enumerate() {
                scales[block * width + column] = scale & !sign;
            }
            for (vector, eight) in row_codes.chunks_exact(4).enumerate() {
                let negative = row_scales[8 * vector / scaled(mx)] & sign != 0;
                let eight = u32::from_le_bytes([eight[0], eight[1], eight[2], eight[3]]);
                let lane = lane_order(eight ^ if negative { 0x8888_8888 } else { 0 });
                codes[(vector * width + column) * 4..][..4].copy_from_slice(&lane.to_le_bytes());
            }
        }
        rest = tail;
    }
}

/// Eight codes in order of k (lowest nibble first) to the order 0 2 4 6 1 3 5 7.
fn lane_order(codes: u32) -> u32 {
    let gather = |bytes: u32| {
        let pairs = (bytes | bytes >> 4) & 0x00FF_00FF;
        (pairs | pairs >> 8) & 0xFFFF
    };
    gather(codes & 0x0F0F_0F0F) | gather(codes >> 4 & 0x0F0F_0F0F) << 16
}

/// The same back.
fn k_order(lane: u32) -> u32 {
    let spread = |half: u32| {
        let pairs = (half | half << 8) & 0x00FF_00FF;
        (pairs | pairs << 4) & 0x0F0F_0F0F
    };
    spread(lane & 0xFFFF) | spread(lane >> 16) << 4
}

/// Where, in a lane of eight codes, the code of each k stands.
#[cfg(test)]
const LANE_NIBBLE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// How far ahead of its reader a stream of packed weights is fetched, in bytes.
const STREAM_AHEAD: usize = 8 * chunk_bytes(false);

/// Asks for what comes a little later in the same stream as this chunk.
#[inline(always)]
pub(super) fn prefetch_stream(chunk: &[u8]) {
    prefetch(chunk.as_ptr().wrapping_add(STREAM_AHEAD), chunk.len());
}

/// What is read a little later than a chunk of a panel: in the panel, or in the one that is read next.
///
/// It is asked for block by block. A core keeps a dozen lines or so on their way from memory. All nine lines of a chunk
/// at once find them taken, and the loads behind them wait; a few at a time keep memory as busy while blocks are
/// multiplied in between.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) struct Ahead(*const u8);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Ahead {
    #[inline(always)]
    pub(super) fn of<const MX: bool>(panel: &[u8], chunk: usize, next: Option<&[u8]>) -> Self {
        let later = chunk * chunk_bytes(MX) + STREAM_AHEAD;
        let ahead = match (later.checked_sub(panel.len()), next) {
            (Some(place), Some(next)) => next.as_ptr().wrapping_add(place),
            _ => panel.as_ptr().wrapping_add(later),
        };
        // What four equal parts leave over.
        prefetch(ahead.wrapping_add(CHUNK_BLOCKS * CODE_BYTES), chunk_bytes(MX) - CHUNK_BLOCKS * CODE_BYTES);
        Self(ahead)
    }

    /// Asks for what falls to one of the chunk's blocks.
    #[inline(always)]
    pub(super) fn fetch(&self, block: usize) {
        prefetch(self.0.wrapping_add(block * CODE_BYTES), CODE_BYTES);
    }
}

/// Asks for so many bytes.
#[inline(always)]
pub(super) fn prefetch(from: *const u8, length: usize) {
    for line in (0..length).step_by(64) {
        let line = from.wrapping_add(line);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch is a hint; it faults on no address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a prefetch is a hint; it faults on no address.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_holds_even_k_then_odd_k() {
        assert_eq!(lane_order(0x7654_3210), 0x7531_6420);
        assert_eq!(k_order(0x7531_6420), 0x7654_3210);
    }

    /// Reads the packed form back, by the description above, code by code.
    fn unpacked(matrix: &PanelMatrix, row: usize, k: usize) -> f32 {
        let chunk = matrix.stretch(row / COLUMNS, k / CHUNK..k / CHUNK + 1);
        let mx = matrix.scaling.is_mx();
        let scales = CHUNK.min(matrix.k - k / CHUNK * CHUNK) / if mx { 32 } else { 16 };
        let (column, k) = (row % COLUMNS, k % CHUNK);
        let scale = chunk.bytes[k / if mx { 32 } else { 16 } * chunk.width + column];
        let scale = if mx { 2f32.powi(i32::from(scale) - 127) } else { format::e4m3::decode(scale) };
        let lane = &chunk.bytes[scales * chunk.width + (k / 8 * chunk.width + column) * 4..][..4];
        let lane = u32::from_le_bytes(lane.try_into().unwrap());
        format::e2m1::decode((lane >> (4 * LANE_NIBBLE[k % 8])) as u8 & 15) * scale
    }

    #[test]
    fn every_weight_is_found_again_and_nothing_is_padded() {
        let mut rng = fastrand::Rng::with_seed(1);
        let nvfp4 = [(1, 16), (16, 64), (17, 48), (40, 80), (129, 208)].map(|shape| (shape, false));
        let mxfp4 = [(1, 32), (16, 64), (17, 96), (129, 224)].map(|shape| (shape, true));
        for ((n, k), mx) in nvfp4.into_iter().chain(mxfp4) {
            let codes: Vec<u8> = (0..n * k / 2).map(|_| rng.u8(..)).collect();
            let matrix = match mx {
                true => Matrix::mx(n, k, codes, &(0..n * k / 32).map(|_| rng.u8(20..147)).collect::<Vec<_>>(), 0.5),
                // Every scale but NaN, negative ones included.
                false => {
                    let scale = || rng.u8(..0x7F) | rng.u8(..) & 0x80;
                    Matrix::new(n, k, codes, std::iter::repeat_with(scale).take(n * k / 16).collect::<Vec<_>>(), 0.5)
                }
            };
            let matrix = matrix.unwrap();
            let packed = packed(&matrix, 3);
            assert_eq!(packed.bytes.len(), matrix.codes().len() + matrix.scales().len());
            let (mut row_values, mut back) = (vec![0.0; k], vec![0.0; k]);
            let read = packed.matrix().unwrap();
            for row in 0..n {
                matrix.unscaled_row(row, &mut row_values);
                read.unscaled_row(row, &mut back);
                assert_eq!(back, row_values, "row {row} of [{n}, {k}]");
                for (k, &value) in row_values.iter().enumerate() {
                    assert_eq!(unpacked(&packed, row, k), value, "[{row}, {k}] of [{n}, {k}]");
                }
            }
        }
    }

    #[test]
    fn a_narrow_chunk_is_widened_with_zeros() {
        let matrix = Matrix::new(3, 32, vec![0x21; 48], vec![0x38; 6], 1.0).unwrap();
        let mx = Matrix::mx(3, 32, vec![0x21; 48], &[127; 3], 1.0).unwrap();
        for (matrix, bytes) in [(matrix, 32 * 9), (mx, 16 * 17)] {
            let (packed, scaling) = (packed(&matrix, 1), matrix.scaling());
            let (wide, length) = widened(packed.stretch(0, 0..1).bytes, 3, scaling.is_mx());
            assert_eq!(length, bytes);
            let wide = PanelMatrix::mapped((16, 32), (scaling, 1.0.into()), map(&wide[..length]), Vec::new());
            for (row, k) in (0..16).flat_map(|row| (0..32).map(move |k| (row, k))) {
                let expected = if row < 3 { [0.5, 1.0][k % 2] } else { 0.0 };
                assert_eq!(unpacked(&wide, row, k), expected, "{scaling}");
            }
        }
    }

    fn map(bytes: &[u8]) -> PanelBytes {
        let mut map = MmapMut::map_anon(bytes.len()).unwrap();
        map.copy_from_slice(bytes);
        PanelBytes { memory: Arc::new(map.make_read_only().unwrap()), range: 0..bytes.len() }
    }

    /// A matrix that was packed behind another one, by so many threads.
    fn packed(matrix: &Matrix<'_>, threads: usize) -> PanelMatrix {
        let weights = Weights::gated(matrix.as_borrowed(), matrix.as_borrowed()).unwrap();
        let team = crate::team(Some(threads)).unwrap();
        PackedPanels::new(&[weights], &team).unwrap().groups[0].matrices[1].clone()
    }
}
