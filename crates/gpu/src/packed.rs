//! Packed weights, in whatever memory: a device's, or the simulator's.

use std::fmt::Debug;

use format::{Fp8Matrix, GlobalScale, Matrix, Scaling};
use op::{Error, PackedWeights, Result, Team, Weights};

use super::family::Family;
use super::fp8::{self, PackedBytes};
use super::pack::Codes;

/// A packed weight matrix, somewhere.
#[derive(Debug)]
pub struct PackedMatrix<M> {
    pub(super) global: GlobalScale,
    /// The exponent of what scales are multiplied with where weights are rounded to e4m3.
    pub(super) lift: u32,
    pub(super) memory: M,
}

/// A group's packed weights, somewhere.
#[derive(Debug)]
pub struct PackedGroup<M> {
    /// Bytes of all its matrices.
    pub(super) bytes: usize,
    /// Gate and up, or the only one.
    pub(super) matrices: Vec<PackedMatrix<M>>,
    /// What tokens are multiplied with first, k floats; ones where only other groups of the layer have that, none where
    /// no group has.
    pub(super) input_scale: Option<M>,
    /// What is added to each matrix's sums, n floats each; zeros where only other groups of the layer have that, none
    /// where no group has.
    pub(super) biases: Vec<M>,
    /// The factors of its rows, where they are FP8.
    pub(super) row_factors: Option<M>,
}

impl<M> PackedGroup<M> {
    /// Packs a group's weights and puts them where `place` does, in a layer whose tokens are multiplied with factors or
    /// not, and whose sums have biases or not.
    fn new(
        (family, scaling, team): (&dyn Family, Scaling, &Team),
        weights: &Weights<'_>,
        [scaled, biased]: [bool; 2],
        mut place: impl FnMut(Vec<u8>) -> Result<M>,
    ) -> Result<Self> {
        let mut bytes = 0;
        let mut each = |matrix: &Matrix<'_>| {
            let mut packed = vec![0; family.packed_bytes(matrix.rows(), matrix.k(), scaling)];
            family.pack(matrix, (Codes::Halves, scaling), team, &mut packed)?;
            bytes += packed.len();
            let lift = op::precision::weight_lift(matrix);
            Ok(PackedMatrix { global: matrix.global(), lift, memory: place(packed)? })
        };
        let matrices = weights.matrices().map(&mut each).collect::<Result<_>>()?;
        let scale = scaled.then(|| weights.input_scale().map_or_else(|| vec![1.0; weights.k()], <[f32]>::to_vec));
        bytes += scale.as_ref().map_or(0, |scale| size_of_val(&scale[..]));
        let input_scale = scale.map(|scale| place(bytemuck::cast_slice(&scale).to_vec())).transpose()?;
        let bias = |matrix| weights.bias(matrix).map_or_else(|| vec![0.0; weights.n()], <[f32]>::to_vec);
        let all: Vec<Vec<f32>> = (0..weights.matrices().count()).filter(|_| biased).map(bias).collect();
        bytes += all.iter().map(|bias| size_of_val(&bias[..])).sum::<usize>();
        let biases = all.iter().map(|bias| place(bytemuck::cast_slice(bias).to_vec())).collect::<Result<_>>()?;
        Ok(PackedGroup { bytes, matrices, input_scale, biases, row_factors: None })
    }

    /// Packs an FP8 matrix and its bias, and puts them where `place` does.
    fn of_fp8(
        (matrix, team): (&Fp8Matrix<'_>, &Team),
        bias: Option<&[f32]>,
        mut place: impl FnMut(Vec<u8>) -> Result<M>,
    ) -> Result<Self> {
        if let Some(bias) = bias.filter(|bias| bias.len() != matrix.rows()) {
            return Err(Error::BiasLength { matrix: "the FP8 weight", length: bias.len(), n: matrix.rows() });
        }
        let PackedBytes { chunks, factors } = fp8::pack(matrix, team)?;
        let bytes = chunks.len() + factors.len() + bias.map_or(0, size_of_val);
        let matrices = vec![PackedMatrix { global: 1.0.into(), lift: 0, memory: place(chunks)? }];
        let biases = bias.map(|bias| place(bytemuck::cast_slice(bias).to_vec())).into_iter().collect::<Result<_>>()?;
        Ok(PackedGroup { bytes, matrices, input_scale: None, biases, row_factors: Some(place(factors)?) })
    }

    /// Bytes of the packed weights.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where the matrices are, and their global scales; the only one twice if there is one.
    pub(super) fn both(&self, address: impl Fn(&M) -> u64) -> ([u64; 2], [f64; 2]) {
        let [gate, up] = [&self.matrices[0], &self.matrices[self.matrices.len() - 1]];
        ([address(&gate.memory), address(&up.memory)], [gate.global.value(), up.global.value()])
    }

    /// The exponents of what scales are multiplied with where weights are rounded to e4m3; the only one twice.
    pub(super) fn lifts(&self) -> [u32; 2] {
        [&self.matrices[0], &self.matrices[self.matrices.len() - 1]].map(|matrix| matrix.lift)
    }

    /// Where each matrix's biases are, the only one's twice; zeros where there are none.
    pub(super) fn bias_addresses(&self, address: impl Fn(&M) -> u64) -> [u64; 2] {
        let [gate, up] = [self.biases.first(), self.biases.last()];
        [gate, up].map(|bias| bias.map_or(0, &address))
    }
}

/// The packed weights of all groups of a layer, somewhere.
#[derive(Debug)]
pub(super) struct PackedGroups<M> {
    groups: Vec<PackedGroup<M>>,
    shapes: Vec<(usize, usize)>,
    layout: &'static str,
    scaling: Scaling,
}

impl<M> PackedGroups<M> {
    /// Packs every group's weights on a team's threads, and puts them where `place` does.
    pub(super) fn new(
        layout: &'static str,
        (family, team): (&dyn Family, &Team),
        weights: &[Weights<'_>],
        mut place: impl FnMut(Vec<u8>) -> Result<M>,
    ) -> Result<Self> {
        let scaled = weights.iter().any(|weights| weights.input_scale().is_some());
        let biased = weights.iter().any(|weights| weights.bias(0).is_some());
        let scaling = family.scaling(Scaling::common(weights.iter().flat_map(Weights::matrices)));
        let pack = |weights| PackedGroup::new((family, scaling, team), weights, [scaled, biased], &mut place);
        let groups = weights.iter().map(pack).collect::<Result<_>>()?;
        let shapes = weights.iter().map(|weights| (weights.n(), weights.k())).collect();
        Ok(Self { groups, shapes, layout, scaling })
    }

    /// Packs an FP8 matrix and its bias as the only group, and puts them where `place` does.
    pub(super) fn of_fp8(
        layout: &'static str,
        (matrix, team): (&Fp8Matrix<'_>, &Team),
        bias: Option<&[f32]>,
        place: impl FnMut(Vec<u8>) -> Result<M>,
    ) -> Result<Self> {
        let groups = vec![PackedGroup::of_fp8((matrix, team), bias, place)?];
        Ok(Self { groups, shapes: vec![(matrix.rows(), matrix.k())], layout, scaling: matrix.scaling() })
    }

    /// The FP8 matrix and the bias that were packed, from memory that `read` reads.
    pub(super) fn unpacked_fp8(
        &self,
        read: impl Fn(&M) -> Result<Vec<u8>>,
    ) -> Result<(Fp8Matrix<'static>, Option<Vec<f32>>)> {
        let [PackedGroup { matrices, biases, row_factors: Some(factors), .. }] = &self.groups[..] else {
            let (found, expected) = (self.scaling.to_string(), "fp8".to_owned());
            return Err(Error::Mismatch { group: 0, what: "the packed weights", found, expected });
        };
        let packed = PackedBytes { chunks: read(&matrices[0].memory)?, factors: read(factors)? };
        let bias = biases.first().map(&read).transpose()?.map(|bytes| bytemuck::pod_collect_to_vec(&bytes));
        Ok((fp8::unpack(&packed, self.shapes[0], self.scaling)?, bias))
    }

    /// The same, in memory that `copy` makes of each piece.
    pub(super) fn copied<N>(&self, mut copy: impl FnMut(&M) -> Result<N>) -> Result<PackedGroups<N>> {
        let mut group = |group: &PackedGroup<M>| {
            let PackedGroup { bytes, matrices, input_scale, biases, row_factors } = group;
            let mut matrix = |&PackedMatrix { global, lift, ref memory }: &PackedMatrix<M>| {
                Ok(PackedMatrix { global, lift, memory: copy(memory)? })
            };
            Ok(PackedGroup {
                bytes: *bytes,
                matrices: matrices.iter().map(&mut matrix).collect::<Result<_>>()?,
                input_scale: input_scale.as_ref().map(&mut copy).transpose()?,
                biases: biases.iter().map(&mut copy).collect::<Result<_>>()?,
                row_factors: row_factors.as_ref().map(&mut copy).transpose()?,
            })
        };
        let groups = self.groups.iter().map(&mut group).collect::<Result<_>>()?;
        Ok(PackedGroups { groups, shapes: self.shapes.clone(), layout: self.layout, scaling: self.scaling })
    }

    /// Takes them out, so that they can be dropped elsewhere.
    pub(super) fn take(&mut self) -> Vec<PackedGroup<M>> {
        std::mem::take(&mut self.groups)
    }

    /// Whether tokens must be multiplied with factors first.
    pub(super) fn are_scaled(&self) -> bool {
        self.groups.iter().any(|group| group.input_scale.is_some())
    }

    /// Each group's.
    pub(super) fn groups(&self) -> &[PackedGroup<M>] {
        &self.groups
    }
}

// SAFETY: the groups were packed from matrices of the shapes that are kept beside them, as many in each.
unsafe impl<M: Debug + Send + Sync + 'static> PackedWeights for PackedGroups<M> {
    fn layout(&self) -> &'static str {
        self.layout
    }

    fn shapes(&self) -> &[(usize, usize)] {
        &self.shapes
    }

    fn matrices(&self) -> usize {
        self.groups.first().map_or(1, |group| group.matrices.len())
    }

    fn bytes(&self) -> usize {
        self.groups.iter().map(PackedGroup::bytes).sum()
    }

    fn scaling(&self) -> Scaling {
        self.scaling
    }
}
