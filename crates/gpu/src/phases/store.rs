//! From values to C.

use op::Output;
use ptx::{Addr, Bf16, Builder, F16, F32, InSpace, Pred, Reg, Type, U32, U64};

/// The address of an element of C, from its row, the columns of C, and its column.
pub(crate) fn element_address(k: &mut Builder, out: Reg<U64>, [row, n, column]: [Reg<U32>; 3], bytes: u32) -> Reg<U64> {
    let wide: Reg<U64> = k.convert(column);
    let element = k.mul_wide_add(row, n, wide);
    let offset = k.shl(element, bytes.trailing_zeros());
    k.add(out, offset)
}

/// Rounds a value and stores it, where it exists if that is a question.
pub(crate) fn store_element<S: InSpace>(
    k: &mut Builder,
    output: Output,
    exists: Option<Pred>,
    at: Addr<S>,
    value: Reg<F32>,
) {
    fn store<T: Type, S: InSpace>(k: &mut Builder, exists: Option<Pred>, at: Addr<S>, value: Reg<T>) {
        match exists {
            Some(exists) => k.when(exists, |k| k.store(at, value)),
            None => k.store(at, value),
        }
    }
    match output {
        Output::F16 => {
            let value: Reg<F16> = k.convert(value);
            store(k, exists, at, value);
        }
        Output::BF16 => {
            let value: Reg<Bf16> = k.convert(value);
            store(k, exists, at, value);
        }
        Output::F32 => store(k, exists, at, value),
    }
}
