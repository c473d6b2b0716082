//! Arithmetic on the bits of one lane, type by type; and of all lanes at once, where what kernels do most is written
//! out for words of 32 bits, so that the choice is made once for all lanes and the compiler can take several at a time.
//!
//! Rounding follows PTX: floats to nearest even unless the mode says otherwise, fused where the instruction says so.
//! The approximate functions (ex2, rcp, sin and others) give the correctly rounded value, from which hardware may
//! differ by its documented error. Division by zero gives all ones, as hardware does for unsigned integers; PTX
//! leaves it open.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ptx::instr::{BinaryOp, Direction, FloatMode, Rounding, TernaryOp, UnaryOp};
use ptx::{Comparison, DataType};

use crate::lanes::{Lanes, Words, mask_of, wide};
use crate::rounding;

fn float(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn bits(value: f32) -> u64 {
    value.to_bits().into()
}

/// A 16-bit float of either kind, widened exactly.
fn widen(ty: DataType, bits: u64) -> f64 {
    match ty {
        DataType::F16 | DataType::F16x2 => f16::from_bits(bits as u16).to_f64(),
        _ => bf16::from_bits(bits as u16).to_f64(),
    }
}

fn narrow(ty: DataType, value: f64) -> u64 {
    match ty {
        DataType::F16 | DataType::F16x2 => f16::from_f64(value).to_bits().into(),
        _ => bf16::from_f64(value).to_bits().into(),
    }
}

/// Rounds an f32 to a 16-bit float.
pub(crate) fn round_half(ty: DataType, value: f32) -> u64 {
    match ty {
        DataType::F16 | DataType::F16x2 => f16::from_f32(value).to_bits().into(),
        _ => bf16::from_f32(value).to_bits().into(),
    }
}

/// Applies a function of f64 to 16-bit floats, to both halves of a pair.
fn halves<const N: usize>(ty: DataType, operands: [u64; N], f: impl Fn([f64; N]) -> f64) -> u64 {
    let one = |shift: u32| narrow(ty, f(operands.map(|x| widen(ty, x >> shift))));
    match ty {
        DataType::F16x2 | DataType::Bf16x2 => one(0) | one(16) << 16,
        _ => one(0),
    }
}

fn is_half(ty: DataType) -> bool {
    matches!(ty, DataType::F16 | DataType::Bf16 | DataType::F16x2 | DataType::Bf16x2)
}

/// The smaller of two, a number before a NaN, −0 before +0.
fn smaller(a: f64, b: f64) -> f64 {
    if a == b && a.is_sign_negative() { a } else { a.min(b) }
}

fn larger(a: f64, b: f64) -> f64 {
    if a == b && a.is_sign_positive() { a } else { a.max(b) }
}

/// One value in, one out, in every lane.
pub(crate) fn unary_lanes(op: UnaryOp, ty: DataType, mode: FloatMode, a: &Lanes) -> Lanes {
    a.map(|a| unary(op, ty, mode, a))
}

/// The same for words.
pub(crate) fn unary_words(op: UnaryOp, ty: DataType, mode: FloatMode, a: &Words) -> Words {
    match op {
        UnaryOp::Move => *a,
        UnaryOp::Not => a.map(|a| !a),
        _ => a.map(|a| unary(op, ty, mode, a.into()) as u32),
    }
}

/// One value in, one out.
fn unary(op: UnaryOp, ty: DataType, mode: FloatMode, a: u64) -> u64 {
    let sign = match ty {
        DataType::F16x2 | DataType::Bf16x2 => 0x8000_8000,
        DataType::F32x2 => 0x8000_0000_8000_0000,
        _ => 1 << (ty.bits() - 1),
    };
    let input = if mode.flush && ty == DataType::F32 { bits(flushed(float(a))) } else { a };
    // What is approximate on a GPU is the correctly rounded value here.
    let approx = |f: fn(f64) -> f64| finished(mode, f(f64::from(float(input))) as f32);
    match op {
        UnaryOp::Move => a,
        UnaryOp::Not => !a,
        UnaryOp::Neg if ty.is_float() => input ^ sign,
        UnaryOp::Abs if ty.is_float() => input & !sign,
        UnaryOp::Neg => a.wrapping_neg(),
        UnaryOp::Abs => signed(ty, a).wrapping_abs().cast_unsigned(),
        UnaryOp::Exp2Approx => approx(f64::exp2),
        UnaryOp::RcpApprox => approx(f64::recip),
        UnaryOp::SqrtApprox => approx(f64::sqrt),
        UnaryOp::RsqrtApprox => approx(|x| 1.0 / x.sqrt()),
        UnaryOp::Log2Approx => approx(f64::log2),
        UnaryOp::SinApprox => approx(f64::sin),
        UnaryOp::CosApprox => approx(f64::cos),
        UnaryOp::TanhApprox => approx(f64::tanh),
        UnaryOp::Rcp if ty == DataType::F64 => {
            rounding::divide_double(1.0, f64::from_bits(a), mode.direction).to_bits()
        }
        UnaryOp::Rcp => finished(mode, rounding::divide_single(1.0, float(input), mode.direction)),
        UnaryOp::Sqrt if ty == DataType::F64 => rounding::root_double(f64::from_bits(a), mode.direction).to_bits(),
        UnaryOp::Sqrt => finished(mode, rounding::root_single(float(input), mode.direction)),
        UnaryOp::CountOnes => low(ty, a).count_ones().into(),
        UnaryOp::LeadingZeros => u64::from(low(ty, a).leading_zeros()) - u64::from(64 - ty.bits()),
        UnaryOp::ReverseBits => a.reverse_bits() >> (64 - ty.bits()),
    }
}

/// The bits of a value that its type has.
fn low(ty: DataType, a: u64) -> u64 {
    a & u64::MAX >> (64 - ty.bits())
}

/// Zero of the same sign in place of a subnormal number.
fn flushed(value: f32) -> f32 {
    if value.is_subnormal() { 0f32.copysign(value) } else { value }
}

/// A result of single precision as its mode wants it.
fn finished(mode: FloatMode, value: f32) -> u64 {
    let value = if mode.flush { flushed(value) } else { value };
    let value = match mode.saturate {
        true if value.is_nan() => 0.0,
        true => value.clamp(0.0, 1.0) + 0.0,
        false => value,
    };
    bits(value)
}

/// Two values in, one out, in every lane.
pub(crate) fn binary_lanes(op: BinaryOp, ty: DataType, mode: FloatMode, a: &Lanes, b: &Lanes) -> Lanes {
    match (op, ty) {
        (BinaryOp::Add, DataType::U64 | DataType::S64) => std::array::from_fn(|lane| a[lane].wrapping_add(b[lane])),
        _ => std::array::from_fn(|lane| binary(op, ty, mode, a[lane], b[lane])),
    }
}

/// The same for words.
pub(crate) fn binary_words(op: BinaryOp, ty: DataType, mode: FloatMode, a: &Words, b: &Words) -> Words {
    let plain = mode == FloatMode::PLAIN;
    match (op, ty) {
        (BinaryOp::And, _) => each(a, b, |a, b| a & b),
        (BinaryOp::Or, _) => each(a, b, |a, b| a | b),
        (BinaryOp::Xor, _) => each(a, b, |a, b| a ^ b),
        (BinaryOp::Add, DataType::F32) if plain => each(a, b, |a, b| (f32::from_bits(a) + f32::from_bits(b)).to_bits()),
        (BinaryOp::Mul, DataType::F32) if plain => each(a, b, |a, b| (f32::from_bits(a) * f32::from_bits(b)).to_bits()),
        (BinaryOp::Mul, DataType::F16x2) => multiply_pairs(a, b),
        (BinaryOp::Add, DataType::U32 | DataType::S32) => each(a, b, u32::wrapping_add),
        (BinaryOp::Sub, DataType::U32 | DataType::S32) => each(a, b, u32::wrapping_sub),
        (BinaryOp::Mul, DataType::U32 | DataType::S32) => each(a, b, u32::wrapping_mul),
        (BinaryOp::Shl, DataType::U32 | DataType::S32) => shift(a, b, |a, by| a << by),
        (BinaryOp::Shr, DataType::U32) => shift(a, b, |a, by| a >> by),
        _ => each(a, b, |a, b| binary(op, ty, mode, a.into(), b.into()) as u32),
    }
}

/// A function of two words, lane by lane.
fn each(a: &Words, b: &Words, f: impl Fn(u32, u32) -> u32) -> Words {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

/// Shifts by less than the width, mostly in all lanes alike; zero for others.
fn shift(a: &Words, by: &Words, f: impl Fn(u32, u32) -> u32) -> Words {
    let first = by[0];
    if first < 32 && by.iter().fold(true, |all, by| all & (*by == first)) {
        return a.map(|a| f(a, first));
    }
    each(a, by, |a, by| if by < 32 { f(a, by) } else { 0 })
}

/// Products of pairs of halves: exact in f32, so rounded once, and converted all at a time.
fn multiply_pairs(a: &Words, b: &Words) -> Words {
    let (mut a, b) = (wide_pairs(a), wide_pairs(b));
    a.iter_mut().zip(b).for_each(|(a, b)| *a *= b);
    let (mut halves, mut words) = ([f16::ZERO; 64], [0; 32]);
    halves.convert_from_f32_slice(&a);
    for (word, [low, high]) in words.iter_mut().zip(halves.as_chunks().0) {
        *word = u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16;
    }
    words
}

/// Both halves of each word, widened.
fn wide_pairs(words: &Words) -> [f32; 64] {
    let (mut halves, mut wide) = ([f16::ZERO; 64], [0.0; 64]);
    for (pair, word) in halves.as_chunks_mut().0.iter_mut().zip(words) {
        *pair = [f16::from_bits(*word as u16), f16::from_bits((*word >> 16) as u16)];
    }
    halves.convert_to_f32_slice(&mut wide);
    wide
}

/// Two values in, one out.
pub(crate) fn binary(op: BinaryOp, ty: DataType, mode: FloatMode, a: u64, b: u64) -> u64 {
    match ty {
        DataType::F32 => single(op, mode, a, b),
        DataType::F32x2 => single(op, mode, low32(a), low32(b)) | single(op, mode, a >> 32, b >> 32) << 32,
        DataType::F64 => double(op, mode, f64::from_bits(a), f64::from_bits(b)).to_bits(),
        ty if is_half(ty) => match op {
            BinaryOp::Add => halves(ty, [a, b], |[a, b]| a + b),
            BinaryOp::Sub => halves(ty, [a, b], |[a, b]| a - b),
            BinaryOp::Mul => halves(ty, [a, b], |[a, b]| a * b),
            BinaryOp::Min => halves(ty, [a, b], |[a, b]| smaller(a, b)),
            BinaryOp::Max => halves(ty, [a, b], |[a, b]| larger(a, b)),
            BinaryOp::MinNan => halves(ty, [a, b], |[a, b]| or_nan(a, b, smaller)),
            BinaryOp::MaxNan => halves(ty, [a, b], |[a, b]| or_nan(a, b, larger)),
            _ => integer(op, DataType::U32, a, b),
        },
        ty => integer(op, ty, a, b),
    }
}

fn low32(a: u64) -> u64 {
    a & 0xffff_ffff
}

/// NaN if either is, else what a function says.
fn or_nan(a: f64, b: f64, f: fn(f64, f64) -> f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { f(a, b) }
}

fn single(op: BinaryOp, mode: FloatMode, a: u64, b: u64) -> u64 {
    let input = |bits: u64| if mode.flush { flushed(float(bits)) } else { float(bits) };
    let (x, y, direction) = (input(a), input(b), mode.direction);
    let value = match op {
        BinaryOp::Add => rounding::add_single(x, y, direction),
        BinaryOp::Sub => rounding::add_single(x, -y, direction),
        BinaryOp::Mul => rounding::multiply_single(x, y, direction),
        BinaryOp::Div | BinaryOp::DivApprox | BinaryOp::DivFull => rounding::divide_single(x, y, direction),
        BinaryOp::Min => smaller(x.into(), y.into()) as f32,
        BinaryOp::Max => larger(x.into(), y.into()) as f32,
        BinaryOp::MinNan => or_nan(x.into(), y.into(), smaller) as f32,
        BinaryOp::MaxNan => or_nan(x.into(), y.into(), larger) as f32,
        _ => return integer(op, DataType::U32, a, b),
    };
    finished(mode, value)
}

fn double(op: BinaryOp, mode: FloatMode, a: f64, b: f64) -> f64 {
    match op {
        BinaryOp::Add => rounding::add_double(a, b, mode.direction),
        BinaryOp::Sub => rounding::add_double(a, -b, mode.direction),
        BinaryOp::Mul => rounding::multiply_double(a, b, mode.direction),
        BinaryOp::Div => rounding::divide_double(a, b, mode.direction),
        BinaryOp::Min => smaller(a, b),
        BinaryOp::Max => larger(a, b),
        _ => f64::from_bits(integer(op, DataType::U64, a.to_bits(), b.to_bits())),
    }
}

/// A value extended to 64 bits by its type.
fn signed(ty: DataType, a: u64) -> i64 {
    if ty.is_signed() {
        let unused = 64 - ty.bits();
        (a << unused).cast_signed() >> unused
    } else {
        a.cast_signed()
    }
}

/// The product of two integers in twice their width.
pub(crate) fn multiply_wide(ty: DataType, a: u64, b: u64) -> u64 {
    match ty.is_signed() {
        true => signed(ty, a).wrapping_mul(signed(ty, b)).cast_unsigned(),
        false => low(ty, a).wrapping_mul(low(ty, b)),
    }
}

fn integer(op: BinaryOp, ty: DataType, a: u64, b: u64) -> u64 {
    let (bits, is_signed) = (ty.bits(), ty.is_signed());
    match op {
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Sub => a.wrapping_sub(b),
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::MulHigh if is_signed => ((i128::from(signed(ty, a)) * i128::from(signed(ty, b))) >> bits) as u64,
        BinaryOp::MulHigh => ((u128::from(a) * u128::from(b)) >> bits) as u64,
        BinaryOp::Min | BinaryOp::MinNan if is_signed => signed(ty, a).min(signed(ty, b)).cast_unsigned(),
        BinaryOp::Max | BinaryOp::MaxNan if is_signed => signed(ty, a).max(signed(ty, b)).cast_unsigned(),
        BinaryOp::Min | BinaryOp::MinNan => a.min(b),
        BinaryOp::Max | BinaryOp::MaxNan => a.max(b),
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::Shl => a.checked_shl(b as u32).filter(|_| (b as u32) < bits).unwrap_or(0),
        BinaryOp::Shr if is_signed => (signed(ty, a) >> (b as u32).min(bits - 1)).cast_unsigned(),
        BinaryOp::Shr => a.checked_shr(b as u32).filter(|_| (b as u32) < bits).unwrap_or(0),
        BinaryOp::Div | BinaryOp::DivApprox | BinaryOp::DivFull | BinaryOp::Rem if b == 0 => u64::MAX,
        BinaryOp::Rem if is_signed => signed(ty, a).wrapping_rem(signed(ty, b)).cast_unsigned(),
        BinaryOp::Rem => a % b,
        BinaryOp::Div | BinaryOp::DivApprox | BinaryOp::DivFull if is_signed => {
            signed(ty, a).wrapping_div(signed(ty, b)).cast_unsigned()
        }
        BinaryOp::Div | BinaryOp::DivApprox | BinaryOp::DivFull => a / b,
    }
}

/// Three values in, one out, in every lane.
pub(crate) fn ternary_lanes(op: TernaryOp, ty: DataType, mode: FloatMode, [a, b, c]: [&Lanes; 3]) -> Lanes {
    std::array::from_fn(|lane| ternary(op, ty, mode, [a[lane], b[lane], c[lane]]))
}

/// The same for words.
pub(crate) fn ternary_words(op: TernaryOp, ty: DataType, mode: FloatMode, [a, b, c]: [&Words; 3]) -> Words {
    match op {
        TernaryOp::MulAdd => std::array::from_fn(|lane| a[lane].wrapping_mul(b[lane]).wrapping_add(c[lane])),
        TernaryOp::Lop3(table) => lop3(table, [a, b, c]),
        TernaryOp::Permute if c.iter().fold(true, |all, by| all & (*by == c[0])) && c[0] & 0x8888 == 0 => {
            let from = [0, 1, 2, 3].map(|at| 8 * (c[0] >> (4 * at) & 7));
            each(a, b, |a, b| {
                let bytes = u64::from(b) << 32 | u64::from(a);
                let [w, x, y, z] = from.map(|from| (bytes >> from) as u32 & 0xff);
                w | x << 8 | y << 16 | z << 24
            })
        }
        _ => std::array::from_fn(|lane| ternary(op, ty, mode, [a[lane], b[lane], c[lane]].map(u64::from)) as u32),
    }
}

/// A bitwise function of three words by its table: the bits of every row that says one.
fn lop3(table: u8, [a, b, c]: [&Words; 3]) -> Words {
    let mut words = [0; 32];
    for row in (0..8).filter(|row| table >> row & 1 == 1) {
        let [x, y, z] = [2, 1, 0].map(|bit| if row >> bit & 1 == 1 { 0 } else { u32::MAX });
        for (lane, word) in words.iter_mut().enumerate() {
            *word |= (a[lane] ^ x) & (b[lane] ^ y) & (c[lane] ^ z);
        }
    }
    words
}

/// Three values in, one out.
fn ternary(op: TernaryOp, ty: DataType, mode: FloatMode, [a, b, c]: [u64; 3]) -> u64 {
    match op {
        TernaryOp::Fma => match ty {
            DataType::F32 => fused(mode, [a, b, c]),
            DataType::F32x2 => fused(mode, [a, b, c].map(low32)) | fused(mode, [a, b, c].map(|x| x >> 32)) << 32,
            DataType::F64 => f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)).to_bits(),
            // The product of two halves is exact in f64, and so is the sum unless the terms differ by 2^31 and more.
            ty => halves(ty, [a, b, c], |[a, b, c]| a * b + c),
        },
        TernaryOp::Permute => permute(a, b, c),
        TernaryOp::FunnelLeft => ((b << 32 | a) << (c & 31)) >> 32,
        TernaryOp::FunnelRight => (b << 32 | a) >> (c & 31) & 0xffff_ffff,
        TernaryOp::FunnelLeftClamp => ((b << 32 | a) << c.min(32)) >> 32,
        TernaryOp::FunnelRightClamp => (b << 32 | a) >> c.min(32) & 0xffff_ffff,
        TernaryOp::BitExtract => bit_extract(ty, a, b, c),
        TernaryOp::MulAdd => a.wrapping_mul(b).wrapping_add(c),
        TernaryOp::MulAddHigh => integer(BinaryOp::MulHigh, ty, a, b).wrapping_add(c),
        TernaryOp::Lop3(table) => lop3(table, [a, b, c].map(|word| [word as u32; 32]).each_ref())[0].into(),
    }
}

fn fused(mode: FloatMode, operands: [u64; 3]) -> u64 {
    let [a, b, c] = operands.map(|bits| if mode.flush { flushed(float(bits)) } else { float(bits) });
    finished(mode, rounding::fused_single(a, b, c, mode.direction))
}

fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let bytes = b << 32 | a;
    (0..4).fold(0, |word, at| {
        let nibble = selector >> (4 * at) & 15;
        let byte = bytes >> (8 * (nibble & 7)) & 0xff;
        let byte = if nibble & 8 != 0 { (byte >> 7) * 0xff } else { byte };
        word | byte << (8 * at)
    })
}

fn bit_extract(ty: DataType, a: u64, start: u64, count: u64) -> u64 {
    let (start, count, bits) = (start & 0xff, count & 0xff, u64::from(ty.bits()));
    let wide = if ty.is_signed() { i128::from(signed(ty, a)) } else { i128::from(low(ty, a)) };
    let field = wide >> start.min(bits);
    let kept = count.min(bits);
    let field = field & ((1i128 << kept) - 1);
    let negative = ty.is_signed() && kept > 0 && field >> (kept - 1) & 1 == 1;
    (if negative { field - (1i128 << kept) } else { field }) as u64
}

/// The lanes in which a relation holds.
pub(crate) fn compare_lanes(cmp: Comparison, ty: DataType, a: &Lanes, b: &Lanes) -> u32 {
    mask_of(|lane| compare(cmp, ty, a[lane], b[lane]))
}

/// The same for words.
pub(crate) fn compare_words(cmp: Comparison, ty: DataType, a: &Words, b: &Words) -> u32 {
    if ty != DataType::U32 {
        return compare_lanes(cmp, ty, &wide(a), &wide(b));
    }
    match cmp {
        Comparison::Eq => mask_of(|lane| a[lane] == b[lane]),
        Comparison::Ne => mask_of(|lane| a[lane] != b[lane]),
        Comparison::Lt => mask_of(|lane| a[lane] < b[lane]),
        Comparison::Le => mask_of(|lane| a[lane] <= b[lane]),
        Comparison::Gt => mask_of(|lane| a[lane] > b[lane]),
        Comparison::Ge => mask_of(|lane| a[lane] >= b[lane]),
        _ => compare_lanes(cmp, ty, &wide(a), &wide(b)),
    }
}

/// Whether a relation holds.
fn compare(cmp: Comparison, ty: DataType, a: u64, b: u64) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = match ty {
        DataType::F32 => float(a).partial_cmp(&float(b)),
        DataType::F64 => f64::from_bits(a).partial_cmp(&f64::from_bits(b)),
        ty if is_half(ty) => widen(ty, a).partial_cmp(&widen(ty, b)),
        ty if ty.is_signed() => Some(signed(ty, a).cmp(&signed(ty, b))),
        _ => Some(a.cmp(&b)),
    };
    match cmp {
        Comparison::Eq => order == Some(Equal),
        Comparison::Ne => order != Some(Equal),
        Comparison::Lt => order == Some(Less),
        Comparison::Le => matches!(order, Some(Less | Equal)),
        Comparison::Gt => order == Some(Greater),
        Comparison::Ge => matches!(order, Some(Greater | Equal)),
        Comparison::OrderedNe => matches!(order, Some(Less | Greater)),
        Comparison::UnorderedEq => matches!(order, None | Some(Equal)),
        Comparison::UnorderedLt => matches!(order, None | Some(Less)),
        Comparison::UnorderedLe => order != Some(Greater),
        Comparison::UnorderedGt => matches!(order, None | Some(Greater)),
        Comparison::UnorderedGe => order != Some(Less),
        Comparison::Numbers => order.is_some(),
        Comparison::Nan => order.is_none(),
    }
}

/// From one type to another.
pub(crate) fn convert(to: DataType, from: DataType, rounding: Rounding, mode: FloatMode, a: u64) -> u64 {
    let direction = match rounding {
        Rounding::Zero => Direction::Zero,
        Rounding::Down => Direction::Down,
        Rounding::Up => Direction::Up,
        _ => Direction::Nearest,
    };
    if !from.is_float() {
        let value = if from.is_signed() { i128::from(signed(from, a)) } else { i128::from(low(from, a)) };
        return match to {
            DataType::F32 => bits(rounding::of_integer(value, direction).0),
            DataType::F64 => rounding::of_integer(value, direction).1.to_bits(),
            to if is_half(to) => narrow(to, value as f64),
            to if mode.saturate => held(to, value),
            // High bits are dropped, or those of the operand's sign are added.
            to if to.bits() == 8 && to.is_signed() => signed(to, value as u64).cast_unsigned(),
            to if to.bits() == 8 => low(to, value as u64),
            _ => value as u64,
        };
    }
    let value = match from {
        DataType::F32 if mode.flush => f64::from(flushed(float(a))),
        DataType::F32 => f64::from(float(a)),
        DataType::F64 => f64::from_bits(a),
        ty => widen(ty, a),
    };
    let rounded = match rounding {
        Rounding::NearestInteger => value.round_ties_even(),
        Rounding::TowardsZero => value.trunc(),
        Rounding::DownInteger => value.floor(),
        Rounding::UpInteger => value.ceil(),
        _ => value,
    };
    match to {
        DataType::F32 => finished(mode, rounding::narrow(rounded, direction)),
        DataType::F64 => {
            let held = if rounded.is_nan() { 0.0 } else { rounded.clamp(0.0, 1.0) };
            (if mode.saturate { held } else { rounded }).to_bits()
        }
        ty if is_half(ty) => narrow(ty, rounded),
        // Out of range, the nearest there is; and NaN is zero, but for 64 bits the most negative, or the highest bit
        // alone.
        to if rounded.is_nan() && to.bits() == 64 => 1 << 63,
        to => held(to, rounded as i128),
    }
}

/// An integer as the nearest one of a type.
fn held(to: DataType, value: i128) -> u64 {
    let bits = to.bits();
    let (least, most) = match to.is_signed() {
        true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        false => (0, (1i128 << bits) - 1),
    };
    value.clamp(least, most) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: FloatMode = FloatMode::PLAIN;

    #[test]
    fn permute_picks_bytes_and_replicates_signs() {
        assert_eq!(permute(0x3322_1100, 0x7766_5584, 0x7410), 0x7784_1100);
        assert_eq!(permute(0x3322_1100, 0x7766_5584, 0x000c), 0x0000_00ff);
    }

    #[test]
    fn lop3_follows_its_table() {
        let (a, b, c) = (0xdead_beef, 0x1234_5678, 0x0f0f_f0f0);
        let lop3 = |table| ternary(TernaryOp::Lop3(table), DataType::U32, PLAIN, [a, b, c]) & 0xffff_ffff;
        assert_eq!(lop3(0xea), a & b | c);
        assert_eq!(lop3(0x96), a ^ b ^ c);
    }

    #[test]
    fn flushing_functions_have_no_subnormal_results() {
        let at = |op, x: f32| float(unary(op, DataType::F32, FloatMode::FLUSHED, bits(x)));
        assert_eq!(at(UnaryOp::Exp2Approx, -127.0), 0.0);
        assert_eq!(at(UnaryOp::Exp2Approx, -126.0), f32::MIN_POSITIVE);
        assert_eq!(at(UnaryOp::RcpApprox, 1e38 * 2.0), 0.0);
        assert_eq!(at(UnaryOp::RcpApprox, f32::from_bits(1)), f32::INFINITY);
        assert!(float(unary(UnaryOp::Exp2Approx, DataType::F32, PLAIN, bits(-127.0))) > 0.0);
    }

    #[test]
    fn shifts_beyond_the_width_give_zero_or_the_sign() {
        assert_eq!(binary(BinaryOp::Shl, DataType::U32, PLAIN, 1, 32) & 0xffff_ffff, 0);
        assert_eq!(binary(BinaryOp::Shr, DataType::U64, PLAIN, 1 << 63, 64), 0);
        assert_eq!(binary(BinaryOp::Shr, DataType::S32, PLAIN, 0x8000_0000, 40) as u32, u32::MAX);
    }

    #[test]
    fn a_number_wins_over_a_nan() {
        let (one, nan) = (bits(1.0), bits(f32::NAN));
        assert_eq!(binary(BinaryOp::Min, DataType::F32, PLAIN, one, nan), one);
        assert_eq!(binary(BinaryOp::Max, DataType::F32, PLAIN, nan, one), one);
    }

    #[test]
    fn a_pair_of_halves_is_computed_half_by_half() {
        let pair = |low: f32, high: f32| round_half(DataType::F16x2, low) | round_half(DataType::F16x2, high) << 16;
        let product = binary(BinaryOp::Mul, DataType::F16x2, PLAIN, pair(1.5, -2.0), pair(2.0, 0.25));
        assert_eq!(product, pair(3.0, -0.5));
        let word = |seed: u64, lane: usize| (seed * 0x9e37_79b9 * (lane as u64 + 1)) as u32 & 0x7bff_7bff;
        let (a, b) = (std::array::from_fn(|lane| word(3, lane)), std::array::from_fn(|lane| word(7, lane)));
        let all = wide(&binary_words(BinaryOp::Mul, DataType::F16x2, PLAIN, &a, &b));
        let (a, b) = (wide(&a), wide(&b));
        (0..32).for_each(|lane| assert_eq!(all[lane], binary(BinaryOp::Mul, DataType::F16x2, PLAIN, a[lane], b[lane])));
    }

    #[test]
    fn words_are_computed_with_as_single_values_are() {
        let word = |seed: u32| -> Words {
            // Shift counts on both sides of the width, and all kinds of bits.
            std::array::from_fn(|lane| if lane % 3 == 0 { lane as u32 * 5 } else { seed.rotate_left(lane as u32) })
        };
        let (a, b, c) = (word(0x9e37_79b9), word(0x85eb_ca6b), word(0xc2b2_ae35));
        let same = [b, [7; 32], [40; 32]];
        for ty in [DataType::U32, DataType::S32, DataType::F32, DataType::F16x2] {
            for op in BINARY {
                for b in &same {
                    let one = |lane: usize| binary(op, ty, PLAIN, a[lane].into(), b[lane].into()) as u32;
                    assert_eq!(binary_words(op, ty, PLAIN, &a, b), std::array::from_fn(one), "{op:?} {ty:?}");
                }
            }
            for cmp in [Comparison::Eq, Comparison::Ne, Comparison::Lt, Comparison::Le, Comparison::Gt, Comparison::Ge]
            {
                let one = |lane: usize| compare(cmp, ty, a[lane].into(), b[lane].into());
                assert_eq!(compare_words(cmp, ty, &a, &b), mask_of(one), "{cmp:?} {ty:?}");
            }
        }
        for op in [TernaryOp::MulAdd, TernaryOp::Permute, TernaryOp::FunnelLeft, TernaryOp::Lop3(0xca)] {
            for c in [c, [0x5410; 32], [0x7632; 32]] {
                let one = |lane: usize| ternary(op, DataType::U32, PLAIN, [a, b, c].map(|of| of[lane].into())) as u32;
                assert_eq!(ternary_words(op, DataType::U32, PLAIN, [&a, &b, &c]), std::array::from_fn(one), "{op:?}");
            }
        }
    }

    const BINARY: [BinaryOp; 12] = [
        BinaryOp::Add,
        BinaryOp::Sub,
        BinaryOp::Mul,
        BinaryOp::MulHigh,
        BinaryOp::Min,
        BinaryOp::Max,
        BinaryOp::And,
        BinaryOp::Or,
        BinaryOp::Xor,
        BinaryOp::Shl,
        BinaryOp::Shr,
        BinaryOp::Div,
    ];

    #[test]
    fn bit_fields_are_sign_extended_for_signed_types_only() {
        assert_eq!(ternary(TernaryOp::BitExtract, DataType::U32, PLAIN, [0xf0, 4, 4]), 0xf);
        assert_eq!(ternary(TernaryOp::BitExtract, DataType::S32, PLAIN, [0xf0, 4, 4]) as u32, u32::MAX);
    }

    #[test]
    fn floats_out_of_an_integers_range_clamp() {
        let to = |ty, x: f32| convert(ty, DataType::F32, Rounding::TowardsZero, PLAIN, bits(x));
        assert_eq!(to(DataType::U32, -3.0), 0);
        assert_eq!(to(DataType::U32, 1e20), u32::MAX.into());
        assert_eq!(convert(DataType::S32, DataType::F32, Rounding::NearestInteger, PLAIN, bits(2.5)), 2);
    }
}
