//! Between candle's storages and the library's operands: tokens are borrowed where they lie, results become a storage
//! of the tokens' type.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Error, Layout, Result, Shape, bail};
use hammerhead::Target;
use hammerhead::format::Dense;

/// An error of the library as one of candle's.
pub(crate) fn theirs(error: impl std::fmt::Display + Send + Sync + 'static) -> Error {
    Error::wrap(error)
}

/// Computes contiguous tokens `[…, k]` in f16, bf16 or f32 into results `[…, width]` of the same type.
pub(crate) fn compute(
    name: &'static str,
    operand: (&CpuStorage, &Layout),
    width: usize,
    run: impl FnOnce(&Dense<'_>, Target<'_>) -> hammerhead::Result<()>,
) -> Result<(CpuStorage, Shape)> {
    let rows = operand.1.dims().split_last().map_or(0, |(_, leading)| leading.iter().product());
    compute_groups(name, operand, width, &[rows], |tokens, mut targets| run(&tokens[0], targets.remove(0)))
}

/// The same for rows that belong to groups, so many to each.
pub(crate) fn compute_groups(
    name: &'static str,
    (storage, layout): (&CpuStorage, &Layout),
    width: usize,
    counts: &[usize],
    run: impl FnOnce(&[Dense<'_>], Vec<Target<'_>>) -> hammerhead::Result<()>,
) -> Result<(CpuStorage, Shape)> {
    let Some((&k, leading)) = layout.dims().split_last() else {
        bail!("{name} takes tokens [..., k], and this tensor has no dimensions: reshape it to (1, k)");
    };
    let (start, _) = contiguous(name, "tokens", layout)?;
    let rows: usize = counts.iter().sum();
    macro_rules! computed {
        ($values:expr, $kind:ident) => {{
            let mut results = vec![Default::default(); rows * width];
            let (mut tokens, mut targets) = (Vec::new(), Vec::new());
            let (mut given, mut room) = (&$values[start..start + rows * k], &mut results[..]);
            for &count in counts {
                let (own, others) = given.split_at(count * k);
                tokens.push(Dense::new(count, k, own, 1.0).map_err(theirs)?);
                let (target, rest) = room.split_at_mut(count * width);
                targets.push(Target::$kind(target));
                (given, room) = (others, rest);
            }
            run(&tokens, targets).map_err(|error| Error::wrap(format!("{name}: {error}")))?;
            CpuStorage::$kind(results)
        }};
    }
    let results = match storage {
        CpuStorage::F16(values) => computed!(values, F16),
        CpuStorage::BF16(values) => computed!(values, BF16),
        CpuStorage::F32(values) => computed!(values, F32),
        other => bail!(
            "{name} takes tokens in f16, bf16 or f32, and these are {:?}: convert them with to_dtype",
            other.dtype()
        ),
    };
    Ok((results, Shape::from([leading, &[width]].concat())))
}

/// Where a contiguous tensor begins and ends in its storage.
pub(crate) fn contiguous(name: &'static str, what: &str, layout: &Layout) -> Result<(usize, usize)> {
    match layout.contiguous_offsets() {
        Some(offsets) => Ok(offsets),
        None => bail!(
            "{name} takes contiguous {what}, and the strides of these are {:?}: call contiguous()",
            layout.stride()
        ),
    }
}

/// Refuses tensors that are not in the CPU's memory.
pub(crate) fn elsewhere<T>(name: &'static str, place: &str) -> Result<T> {
    bail!(
        "{name} computes tensors in the CPU's memory, and this one is on {place}: move it with to_device(&Device::Cpu), or give its address to \
         hammerhead::gpu::Queue, which computes in a CUDA stream"
    )
}
