//! e2m1 and e4m3, exhaustively: against values worked out by hand, and against `microfloat`, an independent
//! implementation that is itself tested against ml-dtypes. It turns e4m3 overflow into NaN where this crate
//! saturates, so beyond 448 only saturation is claimed.

use half::f16;
use hammerhead_format::{e2m1, e4m3};
use microfloat::{f4e2m1fn, f8e4m3fn};

/// Every finite f16, and every midpoint between neighbouring `magnitudes` with the f32 on either side, under both
/// signs.
fn probes(magnitudes: &[f32]) -> Vec<f32> {
    let every_f16 = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32()).filter(|x| !x.is_nan());
    let around = magnitudes.windows(2).flat_map(|pair| {
        let midpoint = (pair[0] + pair[1]) / 2.0;
        [midpoint.next_down(), midpoint, midpoint.next_up()]
    });
    let edges = [0.0, f32::MIN_POSITIVE, f32::from_bits(1), f32::MAX, f32::INFINITY];
    every_f16.chain(around.chain(edges).flat_map(|x| [x, -x])).collect()
}

#[test]
fn e2m1_values_are_those_of_the_format() {
    let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0f32];
    for code in 0..16u8 {
        let magnitude = magnitudes[usize::from(code & 7)];
        let value = if code < 8 { magnitude } else { -magnitude };
        assert_eq!(e2m1::decode(code).to_bits(), value.to_bits(), "code {code}");
        assert_eq!(e2m1::VALUES[usize::from(code)].to_bits(), value.to_bits(), "code {code}");
        assert_eq!(f4e2m1fn::from_bits(code).to_f32().to_bits(), value.to_bits(), "microfloat, code {code}");
    }
}

#[test]
fn e2m1_decode_reads_the_low_nibble_only() {
    for byte in 0..=u8::MAX {
        assert_eq!(e2m1::decode(byte).to_bits(), e2m1::decode(byte & 0xF).to_bits());
    }
}

#[test]
fn e2m1_ties_go_to_the_even_code() {
    let ties = [(0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6)];
    for (x, code) in ties {
        assert_eq!(e2m1::encode(x), Some(code), "{x}");
        assert_eq!(e2m1::encode(-x), Some(code | 8), "-{x}");
    }
}

#[test]
fn e2m1_encodes_every_probe_as_microfloat_does() {
    for x in probes(&e2m1::VALUES[..8]) {
        assert_eq!(e2m1::encode(x), Some(f4e2m1fn::from_f32(x).to_bits()), "{x:e}");
    }
}

#[test]
fn e2m1_saturates_and_keeps_the_sign() {
    for x in [6.0, 7.0, 1e30, f32::INFINITY] {
        assert_eq!(e2m1::encode(x), Some(7), "{x}");
        assert_eq!(e2m1::encode(-x), Some(15), "-{x}");
    }
    assert_eq!(e2m1::encode(-0.0), Some(8));
    assert_eq!(e2m1::encode(-1e-30), Some(8));
}

#[test]
fn e4m3_values_are_those_of_the_format() {
    let by_hand = [
        (0x00, 0.0),
        (0x01, 1.0 / 512.0),
        (0x07, 7.0 / 512.0),
        (0x08, 1.0 / 64.0),
        (0x09, 9.0 / 512.0),
        (0x30, 0.5),
        (0x38, 1.0),
        (0x39, 1.125),
        (0x3C, 1.5),
        (0x40, 2.0),
        (0x77, 240.0),
        (0x78, 256.0),
        (0x7E, 448.0),
    ];
    for (byte, value) in by_hand {
        assert_eq!(e4m3::decode(byte).to_bits(), f32::to_bits(value), "{byte:#04x}");
        assert_eq!(e4m3::decode(byte | 0x80).to_bits(), f32::to_bits(-value), "{:#04x}", byte | 0x80);
    }
    assert_eq!(e4m3::decode(0x7E), e4m3::MAX);
    assert_eq!(e4m3::decode(0x01), e4m3::MIN_POSITIVE);
}

#[test]
fn e4m3_decodes_every_byte_as_microfloat_does() {
    for byte in 0..=u8::MAX {
        let (ours, theirs) = (e4m3::decode(byte), f8e4m3fn::from_bits(byte).to_f32());
        assert_eq!(ours.is_nan(), theirs.is_nan(), "{byte:#04x}");
        assert_eq!(e4m3::is_nan(byte), matches!(byte, 0x7F | 0xFF), "{byte:#04x}");
        assert_eq!(ours.is_nan(), e4m3::is_nan(byte), "{byte:#04x}");
        assert!(ours.is_nan() || ours.to_bits() == theirs.to_bits(), "{byte:#04x}: {ours} or {theirs}");
    }
}

#[test]
fn e4m3_encodes_every_probe_as_microfloat_does() {
    let magnitudes: Vec<f32> = (0..=0x7E).map(e4m3::decode).collect();
    for x in probes(&magnitudes) {
        let saturated = if x < 0.0 { 0xFE } else { 0x7E };
        let expected = if x.abs() > 448.0 { saturated } else { f8e4m3fn::from_f32(x).to_bits() };
        assert_eq!(e4m3::encode(x), Some(expected), "{x:e}");
    }
}

#[test]
fn e4m3_ties_go_to_the_even_code_across_exponents_and_subnormals() {
    let ties =
        [(0.5 / 512.0, 0x00), (1.5 / 512.0, 0x02), (7.5 / 512.0, 0x08), (1.0625, 0x38), (1.9375, 0x40), (432.0, 0x7E)];
    for (x, byte) in ties {
        assert_eq!(e4m3::encode(x), Some(byte), "{x}");
        assert_eq!(e4m3::encode(-x), Some(byte | 0x80), "-{x}");
    }
}

#[test]
fn every_code_encodes_back_to_itself() {
    for code in 0..16 {
        assert_eq!(e2m1::encode(e2m1::decode(code)), Some(code));
    }
    for byte in (0..=u8::MAX).filter(|&byte| !e4m3::is_nan(byte)) {
        assert_eq!(e4m3::encode(e4m3::decode(byte)), Some(byte));
    }
}

#[test]
fn nan_has_no_code() {
    assert_eq!(e2m1::encode(f32::NAN), None);
    assert_eq!(e4m3::encode(f32::NAN), None);
    assert_eq!(e4m3::encode(-f32::NAN), None);
}

#[test]
fn code_times_scale_is_exact_in_half_precision_and_bfloat16() {
    for byte in (0..=u8::MAX).filter(|&byte| !e4m3::is_nan(byte)) {
        for code in 0..16 {
            let product = f64::from(e2m1::decode(code)) * f64::from(e4m3::decode(byte));
            assert_eq!(f16::from_f64(product).to_f64(), product);
            assert_eq!(half::bf16::from_f64(product).to_f64(), product);
        }
    }
}
