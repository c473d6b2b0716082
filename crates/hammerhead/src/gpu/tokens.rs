//! Tokens as the tensor cores take them, exactly, made on the host.
//!
//! NVFP4 tokens become halves: a code times its scale has six significant bits between 2⁻¹⁰ and 2688. Halves and bfloat16
//! stay as they are. Single precision becomes three bfloat16 numbers of eight bits each, of which the sum is meant: three
//! matrices one after another.

use format::Values;
use half::{bf16, f16};

use super::sm90::Tokens;
use crate::{Activation, Activations};

/// What tokens of a type become.
pub fn element(activation: Activation) -> Tokens {
    match activation {
        Activation::NvFp4 | Activation::F16 => Tokens::F16,
        Activation::BF16 => Tokens::Bf16,
        Activation::F32 => Tokens::Bf16Sum,
    }
}

/// The bytes of a group's tokens: `[parts][m][k]` numbers of 16 bits.
pub fn expand(activations: &Activations<'_>) -> Vec<u8> {
    match activations {
        Activations::NvFp4(matrix) => {
            let mut row = vec![0f32; matrix.k()];
            let mut values = Vec::with_capacity(matrix.rows() * matrix.k());
            for index in 0..matrix.rows() {
                matrix.unscaled_row(index, &mut row);
                values.extend(row.iter().map(|&x| f16::from_f32(x)));
            }
            bytemuck::cast_slice(&values).to_vec()
        }
        Activations::Dense(dense) => match dense.values() {
            Values::F16(values) => bytemuck::cast_slice(values).to_vec(),
            Values::BF16(values) => bytemuck::cast_slice(values).to_vec(),
            Values::F32(values) => {
                let parts = |part: usize| values.iter().map(move |&x| split(x)[part]);
                let all: Vec<bf16> = parts(0).chain(parts(1)).chain(parts(2)).collect();
                bytemuck::cast_slice(&all).to_vec()
            }
        },
    }
}

/// A number as three bfloat16, the leading one first: each takes the next eight bits and leaves the rest.
fn split(x: f32) -> [bf16; 3] {
    let leading = |x: f32| bf16::from_bits((x.to_bits() >> 16) as u16);
    let first = leading(x);
    let rest = x - first.to_f32();
    let second = leading(rest);
    [first, second, bf16::from_f32(rest - second.to_f32())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::Matrix;

    #[test]
    fn nvfp4_tokens_are_halves_as_they_are() {
        let scales: Vec<u8> = (0..=255u8).filter(|s| s & 0x7F != 0x7F).collect();
        let codes: Vec<u8> = (0..scales.len() * 8).map(|i| (i * 37) as u8).collect();
        let matrix = Matrix::new(scales.len(), 16, codes, scales, 1.0).unwrap();
        let halves = expand(&Activations::from(matrix.clone()));
        let halves: &[f16] = bytemuck::cast_slice(&halves);
        let mut row = [0f32; 16];
        for index in 0..matrix.rows() {
            matrix.unscaled_row(index, &mut row);
            let found = halves[16 * index..][..16].iter().map(|x| x.to_f32());
            assert!(found.zip(row).all(|(x, y)| x == y), "row {index}");
        }
    }

    #[test]
    fn three_parts_make_a_single_precision_number_to_the_last_bit() {
        let powers = (0..235).map(|i| 1.234_567_8 * 2f32.powi(i - 108));
        for x in powers.chain([0.0, f32::MAX, -f32::MAX, 16_777_215.0, 0.1]).flat_map(|x| [x, -x]) {
            let sum: f64 = split(x).iter().map(|part| part.to_f64()).sum();
            assert_eq!(sum, f64::from(x));
        }
    }

    #[test]
    fn what_is_lost_of_the_smallest_numbers_is_below_the_smallest_bfloat16() {
        for bits in [1, 3, 0x7fff, 0x0080_0001, 0x0123_4567] {
            let x = f32::from_bits(bits);
            let sum: f64 = split(x).iter().map(|part| part.to_f64()).sum();
            assert!((sum - f64::from(x)).abs() <= 2f64.powi(-134), "{x:e}");
        }
    }
}
