//! What torchao's tensors need beside codes and scales: whether the scales are in the blocked layout stands in the
//! file's own metadata, as JSON under the weight's name.

use super::Precision;
use super::coded::{Bytes, Coded, Globals};
use super::json::{self, Value};
use super::parts::Parts;
use super::store::View;
use crate::{BLOCK, Result};

/// A weight that torchao took apart.
pub(super) fn coded<'a>(
    parts: &Parts<'a>,
    codes: View<'a>,
    scales: View<'a>,
    globals: Globals<'a>,
) -> Result<Coded<'a>> {
    if !is_swizzled(parts, codes.name)? {
        return Coded::apart(parts, codes, scales, Precision::NvFp4, globals);
    }
    let (stack, rows, bytes) = match *codes.shape {
        [rows, bytes] => (1, rows, bytes),
        [stack, rows, bytes] => (stack, rows, bytes),
        _ => {
            let problem = format!("its codes have shape {:?}, neither a matrix nor a stack", codes.shape);
            return parts.refuse(problem, "check that this is a weight");
        }
    };
    let blocks = bytes / (BLOCK / 2);
    let expected = stack.checked_mul(rows).and_then(|rows| crate::scales::blocked_len(rows, blocks).ok());
    if bytes % (BLOCK / 2) != 0 || expected != Some(scales.bytes.len()) {
        let problem = format!("its codes have shape {:?} and its blocked scales {:?}", codes.shape, scales.shape);
        return parts.refuse(problem, "check that they belong to the same weight");
    }
    let bytes_of = Bytes::Swizzled { codes: codes.bytes, scales: scales.bytes };
    Coded::checked(parts, &codes, Precision::NvFp4, [stack, rows, 2 * bytes], bytes_of, globals)
}

/// Whether the metadata say that the scales are in the blocked layout.
fn is_swizzled(parts: &Parts<'_>, codes: &str) -> Result<bool> {
    let metadata = parts.store.metadata(codes);
    let entry = metadata.and_then(|all| all.get(&format!("{}.weight", parts.stem)).or_else(|| all.get(parts.stem)));
    let Some(entry) = entry else {
        return parts.refuse(
            "the file's metadata do not describe it".to_owned(),
            "whether its scales are in the blocked layout cannot be told; save it with torchao's own functions",
        );
    };
    let value = json::parse(entry.as_bytes()).or_else(|problem| {
        parts.refuse(format!("its description in the file's metadata is wrong: {problem}"), "fetch the file again")
    })?;
    let flag = value.get("_data").and_then(|data| data.get("is_swizzled_scales")).and_then(Value::as_bool);
    match flag {
        Some(flag) => Ok(flag),
        None => parts.refuse(
            "its description in the file's metadata has no is_swizzled_scales".to_owned(),
            "save it with a newer torchao",
        ),
    }
}
