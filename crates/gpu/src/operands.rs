//! Tensors of the caller's in the device's memory: what they are, and whether they can be there.

use format::GlobalScale;
use op::operands::TokenShape;
use op::{Activation, Activations, Error, Output, Result};

use super::driver::{Context, PointerKind};
use super::launches::TokenPlace;

/// What addresses of dense tokens, and of results whose rows are a multiple of it, must be a multiple of.
pub(crate) const ALIGNMENT: u64 = 16;
/// What addresses of codes must be a multiple of.
const CODE_ALIGNMENT: u64 = 4;

/// The tokens of one group, `[rows, k]` without gaps, in the device's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceTokens {
    pub(crate) element: Activation,
    pub(crate) place: TokenPlace,
    pub(crate) rows: usize,
    pub(crate) k: usize,
}

impl DeviceTokens {
    fn dense(element: Activation, values: u64, rows: usize, k: usize) -> Self {
        DeviceTokens { element, place: TokenPlace { values, scales: 0, global: 1.0.into(), exponent: 0 }, rows, k }
    }

    /// Half-precision tokens at an address that is a multiple of 16.
    pub fn f16(address: u64, rows: usize, k: usize) -> Self {
        Self::dense(Activation::F16, address, rows, k)
    }

    /// bfloat16 tokens at an address that is a multiple of 16.
    pub fn bf16(address: u64, rows: usize, k: usize) -> Self {
        Self::dense(Activation::BF16, address, rows, k)
    }

    /// Single-precision tokens at an address that is a multiple of 16.
    pub fn f32(address: u64, rows: usize, k: usize) -> Self {
        Self::dense(Activation::F32, address, rows, k)
    }

    /// NVFP4 tokens: codes `[rows, k/2]` at an address that is a multiple of 4, the low half of a byte first; row-major
    /// e4m3 scales `[rows, k/16]`, none of them NaN; and the scale of the whole.
    pub fn nvfp4(codes: u64, scales: u64, rows: usize, k: usize, global: impl Into<GlobalScale>) -> Self {
        let place = TokenPlace { values: codes, scales, global: global.into(), exponent: 0 };
        DeviceTokens { element: Activation::NvFp4, place, rows, k }
    }

    /// The same tokens under this scale of the whole.
    pub fn scaled_by(self, global: impl Into<GlobalScale>) -> Self {
        DeviceTokens { place: TokenPlace { global: global.into(), ..self.place }, ..self }
    }

    /// Copies of the host's activations at these addresses, of which the largest magnitude is known if they are dense.
    pub fn of(activations: &Activations<'_>, largest: f32, values: u64, scales: u64) -> Self {
        let (element, rows, k) = (activations.element(), activations.rows(), activations.k());
        DeviceTokens { element, place: TokenPlace::of(activations, largest, values, scales), rows, k }
    }

    /// Their type and sizes.
    pub fn shape(&self) -> TokenShape {
        TokenShape { element: self.element, rows: self.rows, k: self.k }
    }

    /// Looks at where they are.
    pub(crate) fn check(&self, context: &Context, group: usize) -> Result<()> {
        let bytes = self.rows * self.element.row_bytes(self.k);
        if self.element != Activation::NvFp4 {
            return check_place(context, group, "the tokens", self.place.values, bytes, ALIGNMENT);
        }
        let scales = self.rows * self.k / format::BLOCK;
        check_place(context, group, "the tokens' codes", self.place.values, bytes - scales, CODE_ALIGNMENT)?;
        check_place(context, group, "the tokens' scales", self.place.scales, scales, 1)
    }
}

/// Where one group's C goes: row-major `[rows, n]` in the device's memory. Its address must be a multiple of 16 where
/// the bytes of a row are, and of the element's size elsewhere, so that groups may follow each other in one array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceOutput {
    pub(crate) element: Output,
    pub(crate) address: u64,
}

impl DeviceOutput {
    /// A place for results of this type.
    pub fn new(element: Output, address: u64) -> Self {
        DeviceOutput { element, address }
    }

    /// What the address of C must be a multiple of. Kernels store 16 bytes at a time only where the bytes of every row
    /// are a multiple of 16, and elements one by one elsewhere.
    pub fn alignment(element: Output, n: usize) -> u64 {
        let row = (n * element.bytes()) as u64;
        if row.is_multiple_of(ALIGNMENT) { ALIGNMENT } else { element.bytes() as u64 }
    }

    /// The element type.
    pub fn element(&self) -> Output {
        self.element
    }

    /// A place for half-precision results.
    pub fn f16(address: u64) -> Self {
        Self::new(Output::F16, address)
    }

    /// A place for bfloat16 results.
    pub fn bf16(address: u64) -> Self {
        Self::new(Output::BF16, address)
    }

    /// A place for single-precision results.
    pub fn f32(address: u64) -> Self {
        Self::new(Output::F32, address)
    }
}

/// Whether there can be so many bytes of the device's memory at an address.
pub(crate) fn check_place(
    context: &Context,
    group: usize,
    what: &'static str,
    address: u64,
    bytes: usize,
    alignment: u64,
) -> Result<()> {
    let refuse = |reason: String, remedy| Err(Error::Pointer { group, what, address, reason, remedy });
    if address == 0 {
        return refuse("is null".to_owned(), "give the tensor's data pointer");
    }
    if !address.is_multiple_of(alignment) {
        let reason = format!("is not a multiple of {alignment}");
        return refuse(reason, "copy the tensor to memory of its own, or take whole rows of it");
    }
    let device = context.ordinal();
    match context.pointer_kind(address)? {
        PointerKind::Unknown => {
            refuse("is not the device's memory".to_owned(), "copy the tensor to the GPU, or run with host slices")
        }
        PointerKind::Host => {
            refuse("is memory of the host".to_owned(), "copy the tensor to the GPU, or run with host slices")
        }
        PointerKind::Device { ordinal, .. } if ordinal != device => {
            let reason = format!("is memory of device {ordinal}, and the queue's is device {device}");
            refuse(reason, "load the layer and open the queue on the tensor's device")
        }
        PointerKind::Device { foreign: true, .. } => {
            let reason = "belongs to a context that is not the device's primary one".to_owned();
            refuse(reason, "allocate it in the primary context (cuDevicePrimaryCtxRetain), as CUDA's runtime does")
        }
        PointerKind::Device { bytes: Some(there), .. } if there < bytes => {
            let reason = format!("has {there} bytes behind it where {bytes} are needed");
            refuse(reason, "check shape and element type of the tensor")
        }
        PointerKind::Device { .. } => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_one_array_may_follow_each_other_whatever_their_rows() {
        for element in [Output::F16, Output::BF16, Output::F32] {
            for (n, rows) in (1..=40).flat_map(|n| (0..6).map(move |rows| (n, rows))) {
                let end = (rows * n * element.bytes()) as u64;
                assert!(end.is_multiple_of(DeviceOutput::alignment(element, n)), "{rows} rows of {n} {element}");
            }
        }
    }

    #[test]
    fn rows_that_may_be_stored_sixteen_bytes_at_a_time_begin_at_a_multiple_of_sixteen() {
        let alignments = [(Output::F16, 8), (Output::F16, 12), (Output::BF16, 40), (Output::F32, 4), (Output::F32, 6)]
            .map(|(element, n)| DeviceOutput::alignment(element, n));
        assert_eq!(alignments, [16, 2, 16, 16, 4]);
    }
}
