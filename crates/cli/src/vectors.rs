//! `hammerhead vectors`: what the bytes mean and what the operation gives, as JSON, so that an implementation in any
//! language can check itself. The file that this writes is kept in `test-vectors/`, where its fields are described.
//!
//! Floats are written as the bits of f32 in hexadecimal, bytes as hexadecimal, and results as decimal numbers of twelve
//! digits: as many as every platform's exponential function agrees on.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use format::{BLOCK, Dense, GlobalScale, Matrix, e2m1, e4m3, scales};
use hammerhead::reference::Reference;
use hammerhead::{Activations, Gate, Weights};
use serde_json::{Value, json};

use crate::{Result, console, files};

/// Write test vectors for other implementations
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Write test vectors as JSON, so that an implementation in any language can check itself: every e2m1 \
    and e4m3 code, quantised matrices, offsets of blocked scales, and small problems with their double-precision \
    results for every gate. The same version always writes the same bytes.\n\n\
    Examples:\n  \
    hammerhead vectors > nvfp4.json\n  \
    hammerhead vectors --output test-vectors/nvfp4.json"
)]
pub struct Args {
    /// Write to this file instead of stdout
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Prints the vectors, or writes them.
pub fn vectors(args: &Args) -> Result<()> {
    let text = text()?;
    match &args.output {
        Some(path) => files::write_report(path, &text),
        None => console::print(&text),
    }
}

/// The whole file: each section a list with one entry per line, so that a change shows as the lines it touches.
fn text() -> Result<String> {
    let sections = [
        ("e2m1", e2m1_codes()),
        ("e4m3", e4m3_bytes()),
        ("quantize", quantised()?),
        ("blocked_scales", blocked()?),
        ("problems", problems()?),
    ];
    let mut text = String::from("{\n  \"version\": 1");
    for (name, entries) in sections {
        let lines: Vec<String> = entries.iter().map(|entry| format!("    {entry}")).collect();
        text += &format!(",\n  \"{name}\": [\n{}\n  ]", lines.join(",\n"));
    }
    Ok(text + "\n}\n")
}

fn e2m1_codes() -> Vec<Value> {
    (0..16).map(|code| json!({"code": code, "value": bits(e2m1::decode(code))})).collect()
}

fn e4m3_bytes() -> Vec<Value> {
    let entry = |byte: u8| match e4m3::is_nan(byte) {
        true => json!({"byte": byte, "value": "nan"}),
        false => json!({"byte": byte, "value": bits(e4m3::decode(byte))}),
    };
    (0..=255).map(entry).collect()
}

/// Inputs that meet each rule of quantising: rounding, ties, zeros, clamped scales, a given global scale.
fn quantised() -> Result<Vec<Value>> {
    let mut random = Random(1);
    let mut normal = |scale: f32| -> Vec<f32> { (0..64).map(|_| random.normal() * scale).collect() };
    let ties = [0.25f32, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, -6.0];
    let mut uneven = normal(1.0);
    uneven[16..32].iter_mut().for_each(|x| *x *= 1e-6);
    uneven[32..48].fill(0.0);
    let cases = [
        ("random", 2, normal(1.0), None),
        ("random and small", 4, normal(3e-5), None),
        ("ties go to the even code", 1, ties.to_vec(), Some(1.0)),
        ("all zero", 1, vec![0.0; BLOCK], None),
        ("zeros keep their sign", 1, [[0.0, -0.0]; BLOCK / 2].concat(), None),
        ("a block far below the others gets the smallest scale", 1, uneven, None),
        ("a global scale that is too small saturates", 2, normal(1.0), Some(1.0 / 65536.0)),
        ("a global scale that is too large loses small elements", 2, normal(1.0), Some(4096.0)),
    ];
    let mut entries = Vec::new();
    for (why, rows, input, given) in cases {
        let k = input.len() / rows;
        let matrix = format::quantize(&Dense::new(rows, k, input.as_slice(), 1.0)?, given.map(Into::into))?;
        entries.push(json!({
            "why": why, "rows": rows, "k": k,
            "input": input.iter().map(|&x| bits(x)).collect::<Vec<_>>(),
            "given_global": given.map(bits),
            "global": global(matrix.global()),
            "codes": hex(matrix.codes()),
            "scales": hex(matrix.scales()),
        }));
    }
    Ok(entries)
}

/// Places in the blocked layout: inside a tile, at its seams, and where rows and blocks are padded.
fn blocked() -> Result<Vec<Value>> {
    let mut entries = Vec::new();
    for (rows, blocks) in [(1, 1), (128, 4), (129, 4), (129, 5), (300, 13), (40, 448)] {
        let mut places = Vec::new();
        for row in [0, 1, 31, 32, 33, 127, 128, 129, 255, 256, rows - 1] {
            for block in [0, 1, 3, 4, 5, 11, blocks - 1] {
                if row < rows && block < blocks && !places.contains(&[row, block]) {
                    places.push([row, block]);
                }
            }
        }
        let offsets: Vec<_> = places.iter().map(|&[r, b]| [r, b, scales::blocked_offset(r, b, blocks)]).collect();
        let bytes = scales::blocked_len(rows, blocks)?;
        entries.push(json!({"rows": rows, "blocks": blocks, "bytes": bytes, "offsets": offsets}));
    }
    Ok(entries)
}

/// Small problems, from bytes to results.
fn problems() -> Result<Vec<Value>> {
    let mut random = Random(2);
    let usual = 0x28..0x48;
    let cases = [
        ("one token, one block", 1, 2, 16, usual.clone(), [0.5, 0.0625, 0.078125]),
        ("an odd shape", 3, 5, 48, usual.clone(), [0.5, 0.015625, 0.01953125]),
        ("gate and up global scales ten times apart", 2, 3, 32, usual.clone(), [1.0, 0.01, 0.1]),
        ("every finite scale, zero, subnormal, 448 and negative ones too", 2, 4, 64, 0..0xFF, [1e-3, 2e-3, 1e-3]),
    ];
    let mut entries = Vec::new();
    for (why, m, n, k, scale_bytes, [a, b1, b2]) in cases {
        let mut matrix = |rows, global| random.matrix(rows, k, scale_bytes.clone(), global);
        let (a, b1, b2) = (Activations::from(matrix(m, a)?), matrix(n, b1)?, matrix(n, b2)?);
        entries.push(problem(why, &a, Weights::gated(b1, b2)?));
    }
    let tokens: Vec<f32> = (0..2 * 32).map(|_| random.normal()).collect();
    let a = Activations::from(Dense::new(2, 32, tokens, 0.5)?);
    let (b1, b2) = (random.matrix(3, 32, usual.clone(), 0.05)?, random.matrix(3, 32, usual, 0.04)?);
    entries.push(problem("activations that are not quantised", &a, Weights::gated(b1, b2)?));
    Ok(entries)
}

fn problem(why: &str, a: &Activations<'_>, weights: Weights<'_>) -> Value {
    let of_matrix = |matrix: &Matrix<'_>| json!({"codes": hex(matrix.codes()), "scales": hex(matrix.scales()), "global": global(matrix.global())});
    let operand = match a {
        Activations::NvFp4(matrix) => of_matrix(matrix),
        Activations::Dense(dense) => {
            let mut row = vec![0.0; dense.k()];
            let mut values = Vec::new();
            for index in 0..dense.rows() {
                dense.row(index, &mut row);
                values.extend(row.iter().map(|&x| bits(x)));
            }
            json!({"values": values, "global": global(dense.global())})
        }
    };
    let mut results = serde_json::Map::new();
    for gate in Gate::ALL {
        let elements = Reference::new(a, &weights, gate).all();
        let values = elements.iter().map(|element| format!("{:.11e}", element.value)).collect::<Vec<_>>();
        results.insert(gate.to_string(), values.into());
    }
    json!({
        "why": why, "m": a.rows(), "n": weights.n(), "k": weights.k(),
        "a": operand, "b1": of_matrix(weights.gate()), "b2": weights.up().map(of_matrix), "c": results,
    })
}

/// A global scale. Those of the vectors all multiply, so this is exact.
fn global(scale: GlobalScale) -> String {
    bits(scale.value() as f32)
}

/// The bits of an f32.
fn bits(x: f32) -> String {
    format!("{:08x}", x.to_bits())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A generator of its own (xorshift64*), because the vectors must not change when a dependency's does.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32
    }

    /// A sum of twelve uniform numbers less six.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 8) as f32 / (1 << 24) as f32).sum::<f32>() - 6.0
    }

    /// Any codes, and scales of these bytes.
    fn matrix(&mut self, rows: usize, k: usize, scales: std::ops::Range<u64>, global: f32) -> Result<Matrix<'static>> {
        let codes: Vec<u8> = (0..rows * k / 2).map(|_| self.next() as u8).collect();
        let span = scales.end - scales.start;
        let scales = (0..rows * k / BLOCK).map(|_| (scales.start + self.next() % span) as u8);
        let scales: Vec<u8> = scales.map(|byte| if e4m3::is_nan(byte) { 0 } else { byte }).collect();
        Ok(Matrix::new(rows, k, codes, scales, global)?)
    }
}
