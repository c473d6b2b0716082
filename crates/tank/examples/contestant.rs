//! A contestant in Rust, written from `docs/protocol.md` alone: it uses nothing of the tank's. Half-precision or
//! single-precision results of NVFP4 tokens under SiLU; everything else it says it does not support, which is legal.

use std::fs::File;
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;

use half::f16;
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut prepared = None;
    for line in std::io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line?)?;
        let id = &message["id"];
        let answer = match message["type"].as_str() {
            Some("hello") => json!({"type": "hello", "protocol": 2, "name": "plain Rust", "deterministic": true}),
            Some("prepare") => match Prepared::new(&message)? {
                Some(ready) => {
                    prepared = Some(ready);
                    json!({"type": "ready", "id": id})
                }
                None => json!({"type": "unsupported", "id": id, "reason": "only NVFP4 tokens, SiLU, f16 or f32"}),
            },
            Some("run") => {
                for job in list(&message["jobs"]) {
                    prepared.as_ref().ok_or("nothing was prepared")?.run(job)?;
                }
                json!({"type": "done", "id": id})
            }
            _ => return Ok(()),
        };
        writeln!(std::io::stdout(), "{answer}")?;
    }
    Ok(())
}

/// A matrix as f32 rows, without its global scale.
struct Rows {
    values: Vec<f32>,
    global: f32,
}

struct Prepared {
    message: Value,
    tokens: File,
    outputs: File,
    /// For each layer and group: gate and up.
    layers: Vec<Vec<[Rows; 2]>>,
}

impl Prepared {
    fn new(message: &Value) -> Result<Option<Self>, Failure> {
        let problem = &message["problem"];
        let output = &problem["output"];
        if problem["activation"] != "nvfp4" || problem["gate"] != "silu" || (output != "f16" && output != "f32") {
            return Ok(None);
        }
        let files = &message["files"];
        let weights = File::open(text(&files["constants"])?)?;
        let layer = |tensors: &Value| {
            let group = |(group, shape): (usize, &Value)| {
                let read = |matrix: &str| -> Result<Rows, Failure> {
                    let name = format!("{matrix}.{group}");
                    let mut global = [0; 8];
                    weights.read_exact_at(&mut global, offset(&tensors[format!("{name}.global")])?)?;
                    let global = f64::from_le_bytes(global) as f32;
                    Rows::read(&weights, size(&shape[1])?, size(&shape[2])?, tensors, &name, global)
                };
                Ok([read("gate")?, read("up")?])
            };
            list(&problem["groups"]).iter().enumerate().map(group).collect::<Result<Vec<_>, Failure>>()
        };
        Ok(Some(Self {
            tokens: File::open(text(&files["inputs"])?)?,
            outputs: File::options().write(true).open(text(&files["outputs"])?)?,
            layers: list(&message["constants"]).iter().map(layer).collect::<Result<_, _>>()?,
            message: message.clone(),
        }))
    }

    fn run(&self, job: &Value) -> Result<(), Failure> {
        let problem = &self.message["problem"];
        let (layer, input, output) = (size(&job["layer"])?, size(&job["input"])?, size(&job["output"])?);
        for (index, shape) in list(&problem["groups"]).iter().enumerate() {
            let (m, n, k) = (size(&shape[0])?, size(&shape[1])?, size(&shape[2])?);
            let global = problem["globals"][index].as_f64().ok_or("a global scale is missing")? as f32;
            let tensors = &self.message["inputs"][input];
            let tokens = Rows::read(&self.tokens, m, k, tensors, &format!("a.{index}"), global)?;
            let [gate, up] = &self.layers[layer][index];
            let mut bytes = Vec::new();
            for row in 0..m {
                for column in 0..n {
                    let sum = |matrix: &Rows| {
                        let pairs = tokens.values[row * k..][..k].iter().zip(&matrix.values[column * k..][..k]);
                        pairs.map(|(a, b)| a * b).sum::<f32>() * tokens.global * matrix.global
                    };
                    let (gate, up) = (sum(gate), sum(up));
                    let value = gate / (1.0 + (-gate).exp()) * up;
                    match problem["output"] == "f16" {
                        true => bytes.extend(f16::from_f32(value).to_le_bytes()),
                        false => bytes.extend(value.to_le_bytes()),
                    }
                }
            }
            let place = offset(&self.message["outputs"][output][format!("c.{index}")])?;
            self.outputs.write_all_at(&bytes, place)?;
        }
        Ok(())
    }
}

impl Rows {
    fn read(file: &File, rows: usize, k: usize, tensors: &Value, name: &str, global: f32) -> Result<Self, Failure> {
        let part = |part: &str, length: usize| -> Result<Vec<u8>, Failure> {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, offset(&tensors[format!("{name}.{part}")])?)?;
            Ok(bytes)
        };
        let (codes, scales) = (part("codes", rows * k / 2)?, part("scales", rows * k / 16)?);
        let value = |index: usize| {
            let code = codes[index / 2] >> (4 * (index % 2)) & 15;
            e2m1(code) * e4m3(scales[index / 16])
        };
        Ok(Self { values: (0..rows * k).map(value).collect(), global })
    }
}

fn e2m1(code: u8) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = if exponent == 0 { mantissa / 512.0 } else { (8.0 + mantissa) * 2f32.powi(exponent - 10) };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

fn offset(tensor: &Value) -> Result<u64, Failure> {
    Ok(tensor["offset"].as_u64().ok_or("an offset is missing")?)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn size(value: &Value) -> Result<usize, Failure> {
    Ok(usize::try_from(value.as_u64().ok_or("a size is missing")?)?)
}

fn text(value: &Value) -> Result<&str, Failure> {
    Ok(value.as_str().ok_or("a path is missing")?)
}
