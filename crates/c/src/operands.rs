//! What callers pass: plain structures of pointers and sizes, and how they become operands once they are checked.

use std::ffi::{CStr, c_char, c_void};

use half::{bf16, f16};
use hammerhead::Target;
use hammerhead::format::{self, BLOCK, Dense, Values};
use hammerhead::{Activations, Gate};

use crate::status::{Error, Result};

/// IEEE half precision.
pub const HAMMERHEAD_F16: u32 = 0;
/// bfloat16.
pub const HAMMERHEAD_BF16: u32 = 1;
/// Single precision.
pub const HAMMERHEAD_F32: u32 = 2;
/// NVFP4: codes, scales and a global scale.
pub const HAMMERHEAD_NVFP4: u32 = 3;

/// g·sigmoid(g)·u: SwiGLU.
pub const HAMMERHEAD_GATE_SILU: u32 = 0;
/// The tanh form of GELU, times u: GeGLU.
pub const HAMMERHEAD_GATE_GELU_TANH: u32 = 1;
/// gpt-oss's gate, both values limited.
pub const HAMMERHEAD_GATE_GPT_OSS: u32 = 2;
/// A plain product with the first matrix; there is no second.
pub const HAMMERHEAD_GATE_NONE: u32 = 3;
/// max(g, 0)² of the product with the first matrix; there is no second.
pub const HAMMERHEAD_GATE_RELU2: u32 = 4;

/// All numbered experts of a layer in order, or where there are none its one pair.
pub const HAMMERHEAD_EXPERTS_ALL: u32 = 0;
/// The experts whose numbers are given, in that order.
pub const HAMMERHEAD_EXPERTS_ONLY: u32 = 1;
/// The experts that see every token beside numbered ones.
pub const HAMMERHEAD_EXPERTS_SHARED: u32 = 2;

/// An NVFP4 matrix of [rows, k]: element = e2m1(code) · e4m3(scale) · global.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Two e2m1 codes a byte, the even k in the low nibble: [rows, k/2].
    pub codes: *const u8,
    /// The bytes at `codes`: rows·k/2.
    pub codes_bytes: usize,
    /// One e4m3 byte for 16 consecutive elements: [rows, k/16].
    pub scales: *const u8,
    /// The bytes at `scales`: rows·k/16.
    pub scales_bytes: usize,
    /// Rows: columns of the result.
    pub rows: usize,
    /// Elements of a row, a multiple of 16.
    pub k: usize,
    /// The scale of the whole matrix; it multiplies.
    pub global_scale: f32,
}

/// The weights of one group: gate and up, of one shape.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// The gate matrix.
    pub b1: Matrix,
    /// The up matrix. With HAMMERHEAD_GATE_NONE there is none: its pointers are NULL.
    pub b2: Matrix,
}

/// What the tokens of one group are multiplied with, column by column, before they meet its weights: AWQ's
/// pre_quant_scale.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct InputScale {
    /// k finite numbers, or NULL if the group's tokens are taken as they are.
    pub factors: *const f32,
    /// The bytes at `factors`: 4·k; or 0.
    pub factors_bytes: usize,
}

/// The tokens of one group: [rows, k], row-major.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tokens {
    /// HAMMERHEAD_F16, HAMMERHEAD_BF16, HAMMERHEAD_F32 or HAMMERHEAD_NVFP4; the same for all groups of a call.
    pub element: u32,
    /// The elements; for HAMMERHEAD_NVFP4 the codes. May be NULL if there are no rows.
    pub values: *const c_void,
    /// The bytes at `values`.
    pub values_bytes: usize,
    /// The scales, for HAMMERHEAD_NVFP4; else NULL.
    pub scales: *const u8,
    /// The bytes at `scales`; else 0.
    pub scales_bytes: usize,
    /// Tokens. May be 0.
    pub rows: usize,
    /// Elements of a token.
    pub k: usize,
    /// The scale of all tokens of the group; 1 if they have none.
    pub global_scale: f32,
}

/// Room for the result of one group: [rows, n], row-major. It may not overlap with anything else of the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// HAMMERHEAD_F16, HAMMERHEAD_BF16 or HAMMERHEAD_F32; the same for all groups of a call.
    pub element: u32,
    /// Where the result goes. May be NULL if there are no rows.
    pub values: *mut c_void,
    /// The bytes there: rows·n times the size of an element.
    pub values_bytes: usize,
}

/// The text at a pointer, or `None` if there is none.
///
/// # Safety
///
/// The pointer is null or leads to a C string that stays as it is for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| Error::argument(what, "is not UTF-8"))
}

/// So many elements at a pointer. Nothing at all may be anywhere.
///
/// # Safety
///
/// A pointer that is not null leads to that many bytes, which nobody changes for `'a`.
pub(crate) unsafe fn slice<'a, T: Copy>(pointer: *const T, bytes: usize, what: &str) -> Result<&'a [T]> {
    let length = check(pointer, bytes, what)?;
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, aligned and of a size that exists, as just checked; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// The same, to be written.
///
/// # Safety
///
/// As for [`slice`], and nobody else reads these bytes for `'a`.
pub(crate) unsafe fn slice_mut<'a, T: Copy>(pointer: *mut T, bytes: usize, what: &str) -> Result<&'a mut [T]> {
    let length = check(pointer, bytes, what)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not null, aligned and of a size that exists, as just checked; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
}

/// How many elements the bytes at a pointer are.
fn check<T>(pointer: *const T, bytes: usize, what: &str) -> Result<usize> {
    if bytes == 0 {
        return Ok(0);
    }
    if pointer.is_null() {
        return Err(Error::Null { what: what.to_owned() });
    }
    if isize::try_from(bytes).is_err() || pointer.addr().checked_add(bytes).is_none() {
        return Err(Error::argument(what, format!("cannot have {bytes} bytes: memory ends before")));
    }
    if !pointer.is_aligned() {
        return Err(Error::argument(what, format!("must lie at a multiple of {} bytes", align_of::<T>())));
    }
    if !bytes.is_multiple_of(size_of::<T>()) {
        let expected = bytes / size_of::<T>() * size_of::<T>();
        return Err(Error::Length { what: what.to_owned(), expected, came: bytes });
    }
    Ok(bytes / size_of::<T>())
}

/// Refuses a size in bytes that is not what a shape needs.
fn expect_bytes(what: &str, came: usize, [rows, columns]: [usize; 2], bits: usize) -> Result<()> {
    let bytes = rows.checked_mul(columns).and_then(|elements| elements.checked_mul(bits)).map(|bits| bits / 8);
    match bytes {
        Some(expected) if expected == came => Ok(()),
        Some(expected) => Err(Error::Length { what: what.to_owned(), expected, came }),
        None => Err(format::Error::TooLarge { rows, columns }.into()),
    }
}

impl Matrix {
    /// The matrix, borrowed from the caller. `what` names it in complaints.
    ///
    /// # Safety
    ///
    /// As for [`slice`], for both of its pointers.
    pub(crate) unsafe fn borrow<'a>(&self, what: &str) -> Result<format::Matrix<'a>> {
        let (codes, scales) = (format!("the codes of {what}"), format!("the scales of {what}"));
        expect_bytes(&codes, self.codes_bytes, [self.rows, self.k], 4)?;
        expect_bytes(&scales, self.scales_bytes, [self.rows, self.k / BLOCK], 8)?;
        // SAFETY: the caller's promise.
        let (codes, scales) =
            unsafe { (slice(self.codes, self.codes_bytes, &codes)?, slice(self.scales, self.scales_bytes, &scales)?) };
        Ok(format::Matrix::new(self.rows, self.k, codes, scales, self.global_scale)?)
    }
}

impl Weights {
    /// The weights, borrowed from the caller. `of` says in complaints whose they are.
    ///
    /// # Safety
    ///
    /// As for [`Matrix::borrow`].
    pub(crate) unsafe fn borrow<'a>(&self, of: &str, gate: Gate) -> Result<hammerhead::Weights<'a>> {
        // SAFETY: the caller's promise.
        let b1 = unsafe { self.b1.borrow(&format!("b1 of {of}")) }?;
        if gate.matrices() == 1 {
            if !self.b2.codes.is_null() || !self.b2.scales.is_null() {
                let what = format!("b2 of {of}");
                return Err(Error::argument(what, "must be NULL, because this gate takes one matrix"));
            }
            return Ok(hammerhead::Weights::plain(b1));
        }
        // SAFETY: the caller's promise.
        let b2 = unsafe { self.b2.borrow(&format!("b2 of {of}")) }?;
        Ok(hammerhead::Weights::gated(b1, b2)?)
    }
}

impl InputScale {
    /// A group's weights with this scale, borrowed from the caller, if it is one.
    ///
    /// # Safety
    ///
    /// As for [`slice`].
    pub(crate) unsafe fn added_to<'a>(
        &self,
        group: usize,
        weights: hammerhead::Weights<'a>,
    ) -> Result<hammerhead::Weights<'a>> {
        if self.factors.is_null() && self.factors_bytes == 0 {
            return Ok(weights);
        }
        // SAFETY: the caller's promise.
        let factors = unsafe { slice(self.factors, self.factors_bytes, &format!("the input scale of group {group}")) }?;
        Ok(weights.with_input_scale(factors)?)
    }
}

impl Tokens {
    /// The tokens, borrowed from the caller.
    ///
    /// # Safety
    ///
    /// As for [`slice`], for both of its pointers.
    pub(crate) unsafe fn borrow<'a>(&self, group: usize) -> Result<Activations<'a>> {
        let what = format!("the tokens of group {group}");
        if self.element == HAMMERHEAD_NVFP4 {
            let (codes, codes_bytes) = (self.values.cast(), self.values_bytes);
            let Self { scales, scales_bytes, rows, k, global_scale, .. } = *self;
            let matrix = Matrix { codes, codes_bytes, scales, scales_bytes, rows, k, global_scale };
            // SAFETY: the caller's promise.
            return Ok(unsafe { matrix.borrow(&what) }?.into());
        }
        let shape = [self.rows, self.k];
        // SAFETY: the caller's promise.
        let values = unsafe { numbers(self.element, self.values, self.values_bytes, shape, &what) }?;
        Ok(Dense::new(self.rows, self.k, values, self.global_scale)?.into())
    }

    /// Where its memory lies, as addresses.
    pub(crate) fn addresses(&self) -> [std::ops::Range<usize>; 2] {
        [range(self.values.addr(), self.values_bytes), range(self.scales.addr(), self.scales_bytes)]
    }
}

/// Numbers of one of the ordinary types, borrowed from the caller.
///
/// # Safety
///
/// As for [`slice`].
pub(crate) unsafe fn numbers<'a>(
    element: u32,
    values: *const c_void,
    bytes: usize,
    shape: [usize; 2],
    what: &str,
) -> Result<Values<'a>> {
    expect_bytes(what, bytes, shape, 8 * bytes_of(element, what)?)?;
    // SAFETY: the caller's promise.
    Ok(unsafe {
        match element {
            HAMMERHEAD_F16 => slice::<f16>(values.cast(), bytes, what)?.into(),
            HAMMERHEAD_BF16 => slice::<bf16>(values.cast(), bytes, what)?.into(),
            _ => slice::<f32>(values.cast(), bytes, what)?.into(),
        }
    })
}

impl Output {
    /// The room for a result, borrowed from the caller.
    ///
    /// # Safety
    ///
    /// As for [`slice_mut`].
    pub(crate) unsafe fn borrow<'a>(&self, group: usize) -> Result<Target<'a>> {
        let what = format!("the output of group {group}");
        bytes_of(self.element, &what)?;
        // SAFETY: the caller's promise.
        Ok(unsafe {
            match self.element {
                HAMMERHEAD_F16 => Target::F16(slice_mut(self.values.cast(), self.values_bytes, &what)?),
                HAMMERHEAD_BF16 => Target::BF16(slice_mut(self.values.cast(), self.values_bytes, &what)?),
                _ => Target::F32(slice_mut(self.values.cast(), self.values_bytes, &what)?),
            }
        })
    }

    /// Where its memory lies, as addresses.
    pub(crate) fn addresses(&self) -> std::ops::Range<usize> {
        range(self.values.addr(), self.values_bytes)
    }
}

fn range(start: usize, bytes: usize) -> std::ops::Range<usize> {
    start..start.saturating_add(bytes)
}

/// Refuses outputs that share memory with each other or with tokens.
pub(crate) fn check_apart(tokens: &[Tokens], outputs: &[Output]) -> Result<()> {
    let read = tokens.iter().flat_map(Tokens::addresses).map(|range| (range, None));
    let written = outputs.iter().enumerate().map(|(group, output)| (output.addresses(), Some(group)));
    let mut ranges: Vec<_> = read.chain(written).filter(|(range, _)| !range.is_empty()).collect();
    ranges.sort_by_key(|(range, _)| range.start);
    // How far everything so far reaches, and the outputs alone.
    let (mut reach, mut written) = (0, 0);
    for (range, output) in ranges {
        let limit = if output.is_some() { reach } else { written };
        if range.start < limit {
            let what = output.map_or("an output".to_owned(), |group| format!("the output of group {group}"));
            return Err(Error::argument(what, "shares memory with tokens or with another output"));
        }
        reach = reach.max(range.end);
        if output.is_some() {
            written = written.max(range.end);
        }
    }
    Ok(())
}

/// The size of an ordinary element.
fn bytes_of(element: u32, what: &str) -> Result<usize> {
    match element {
        HAMMERHEAD_F16 | HAMMERHEAD_BF16 => Ok(2),
        HAMMERHEAD_F32 => Ok(4),
        _ => Err(Error::argument(
            what,
            format!("cannot have elements of type {element}; see HAMMERHEAD_F16 and its kin"),
        )),
    }
}

/// The gate of that number; `clamp` is its limit, 0 for none (SiLU) or the published one (gpt-oss).
pub(crate) fn gate_of(gate: u32, clamp: f32) -> Result<Gate> {
    match gate {
        HAMMERHEAD_GATE_GPT_OSS if clamp == 0.0 => Ok(Gate::GPT_OSS),
        HAMMERHEAD_GATE_GPT_OSS => Ok(Gate::gpt_oss(clamp)),
        HAMMERHEAD_GATE_SILU if clamp == 0.0 => Ok(Gate::Silu),
        HAMMERHEAD_GATE_SILU => Ok(Gate::SiluLimited { limit: clamp }),
        _ if clamp != 0.0 => Err(Error::argument("clamp", "must be 0: only SiLU and gpt-oss's gate have a limit")),
        HAMMERHEAD_GATE_GELU_TANH => Ok(Gate::GeluTanh),
        HAMMERHEAD_GATE_NONE => Ok(Gate::None),
        HAMMERHEAD_GATE_RELU2 => Ok(Gate::Relu2),
        _ => Err(Error::argument("gate", format!("{gate} is none; see HAMMERHEAD_GATE_SILU and its kin"))),
    }
}
