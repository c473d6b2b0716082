//! What comes out of the operation: memory of the caller's, one matrix per group.

use format::Values;
use half::{bf16, f16};

use crate::Output;

/// Where one group's C goes: row-major `[m, n]`.
#[derive(Debug)]
pub enum Target<'a> {
    /// Half precision.
    F16(&'a mut [f16]),
    /// bfloat16.
    BF16(&'a mut [bf16]),
    /// Single precision.
    F32(&'a mut [f32]),
}

impl<'a> Target<'a> {
    /// Owned values as the places to write results to.
    pub fn all(results: &'a mut [Values<'static>]) -> Vec<Self> {
        let target = |values: &'a mut Values<'static>| match values {
            Values::F16(c) => Target::F16(c.to_mut()),
            Values::BF16(c) => Target::BF16(c.to_mut()),
            Values::F32(c) => Target::F32(c.to_mut()),
        };
        results.iter_mut().map(target).collect()
    }

    /// The element type.
    pub fn element(&self) -> Output {
        match self {
            Target::F16(_) => Output::F16,
            Target::BF16(_) => Output::BF16,
            Target::F32(_) => Output::F32,
        }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Target::F16(c) => c.len(),
            Target::BF16(c) => c.len(),
            Target::F32(c) => c.len(),
        }
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory as bytes, for a device that copies its results there.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Target::F16(c) => bytemuck::cast_slice_mut(c),
            Target::BF16(c) => bytemuck::cast_slice_mut(c),
            Target::F32(c) => bytemuck::cast_slice_mut(c),
        }
    }
}
