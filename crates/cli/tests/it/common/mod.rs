//! What the tests share: running the command, writing problems, and computing them by a few naive lines that owe
//! nothing to the library.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use format::tensors::{self, Dtype, File, Tensor};

/// The command, without what the environment of the tests may say.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hammerhead"));
    command.env_remove("HAMMERHEAD_BACKEND").env("HAMMERHEAD_TUNING", "off").env("HAMMERHEAD_CONFIG", "off");
    command
}

/// Runs the command.
pub fn hammerhead<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    command().args(args).output().expect("the command can be started")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("stdout is text")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("stderr is text")
}

/// Runs the command and expects it to succeed; gives what it printed.
pub fn succeed<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let output = hammerhead(args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output)
}

/// Where a page is left for the browser check of the CI.
pub fn page(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

/// Expects one line on stderr that starts with `error: ` and holds every fragment, and exit status 1.
pub fn assert_refused(output: &Output, fragments: &[&str]) {
    let error = stderr(output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.starts_with("error: "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    for fragment in fragments {
        assert!(error.contains(fragment), "no {fragment:?} in: {error}");
    }
}

/// The names of the backends that this machine can run.
pub fn backends() -> Vec<&'static str> {
    hammerhead::backends::all().iter().filter(|b| b.available().is_ok()).map(|b| b.name()).collect()
}

/// Those of them that compute on the CPU themselves.
pub fn cpu_backends() -> Vec<&'static str> {
    let on_cpu = |name: &&str| hammerhead::backends::by_name(name).unwrap().layout() == hammerhead::cpu::LAYOUT;
    backends().into_iter().filter(on_cpu).collect()
}

/// The strategies that a backend is tried with, and a tile that cuts a problem: all of them on the CPU, and on GPUs
/// those that do with one schedule.
pub fn strategies(backend: &str) -> (&'static [&'static str], &'static str) {
    if cpu_backends().contains(&backend) {
        return (&["two-pass", "sequential", "interleaved", "ping-pong"], ",tile=16x32,depth=64,stages=3");
    }
    (&["two-pass", "sequential", "interleaved"], ",tile=16x64,depth=64,stages=4")
}

pub const GATES: [&str; 4] = ["silu", "gelu-tanh", "gpt-oss", "none"];
pub const OUTPUTS: [&str; 3] = ["f16", "bf16", "f32"];

/// Small numbers without a pattern: a linear congruential generator.
pub struct Random(pub u64);

impl Random {
    pub fn byte(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 56) as u8
    }

    /// About −2 to 2, in steps of 2⁻¹⁴.
    pub fn number(&mut self) -> f32 {
        (f32::from(self.byte()) * 256.0 + f32::from(self.byte()) - 32768.0) / 16384.0
    }
}

/// The elements of an operand, as they stand in a file.
#[derive(Clone)]
pub enum Elements {
    Quantised { codes: Vec<u8>, scales: Vec<u8> },
    Floats { dtype: Dtype, bytes: Vec<u8> },
}

#[derive(Clone)]
pub struct Operand {
    pub rows: usize,
    pub k: usize,
    pub elements: Elements,
    pub global: Option<f32>,
}

fn e2m1(code: u8) -> f64 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

fn e4m3(byte: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f64::from(byte & 7));
    let magnitude = if exponent == 0 { mantissa * 2f64.powi(-9) } else { (8.0 + mantissa) * 2f64.powi(exponent - 10) };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

impl Operand {
    /// Any codes, scales from ¼ to 4 of both signs, and a global scale.
    pub fn quantised(random: &mut Random, rows: usize, k: usize, global: Option<f32>) -> Self {
        let codes = (0..rows * k / 2).map(|_| random.byte()).collect();
        let scales = (0..rows * k / 16).map(|_| (0x28 + random.byte() % 0x20) | random.byte() & 0x80).collect();
        Self { rows, k, elements: Elements::Quantised { codes, scales }, global }
    }

    pub fn floats(random: &mut Random, rows: usize, k: usize, dtype: Dtype, global: Option<f32>) -> Self {
        let bytes = (0..rows * k).flat_map(|_| {
            let value = random.number();
            match dtype {
                Dtype::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
                Dtype::BF16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
                _ => value.to_le_bytes().to_vec(),
            }
        });
        Self { rows, k, elements: Elements::Floats { dtype, bytes: bytes.collect() }, global }
    }

    /// The element at a place, without the global scale.
    pub fn at(&self, row: usize, k: usize) -> f64 {
        let index = row * self.k + k;
        match &self.elements {
            Elements::Quantised { codes, scales } => {
                let byte = codes[index / 2];
                e2m1(if k.is_multiple_of(2) { byte & 15 } else { byte >> 4 }) * e4m3(scales[index / 16])
            }
            Elements::Floats { dtype: Dtype::F16, bytes } => {
                half::f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f64()
            }
            Elements::Floats { dtype: Dtype::BF16, bytes } => {
                half::bf16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f64()
            }
            Elements::Floats { bytes, .. } => f32::from_le_bytes(bytes[4 * index..][..4].try_into().unwrap()).into(),
        }
    }

    pub fn tensors(&self, name: &str) -> Vec<Tensor<'static>> {
        let (rows, k) = (self.rows, self.k);
        let mut tensors = match &self.elements {
            Elements::Quantised { codes, scales } => vec![
                Tensor::from_bytes(name, Dtype::U8, [rows, k / 2], codes.clone()),
                Tensor::from_bytes(format!("{name}_scale"), Dtype::F8_E4M3, [rows, k / 16], scales.clone()),
            ],
            Elements::Floats { dtype, bytes } => vec![Tensor::from_bytes(name, *dtype, [rows, k], bytes.clone())],
        };
        let global = |global: f32| Tensor::from_f32(format!("{name}_global"), [], vec![global]);
        tensors.extend(self.global.map(global));
        tensors
    }

    /// Reads an operand as the file has it.
    pub fn read(file: &File, name: &str) -> Self {
        let codes = file.tensor(name).unwrap();
        let scales = file.tensor(&format!("{name}_scale")).unwrap().bytes.to_vec();
        let global = file.tensor(&format!("{name}_global")).unwrap().scalar_f32().unwrap();
        let (rows, k) = (codes.shape[0], codes.shape[1] * 2);
        let elements = Elements::Quantised { codes: codes.bytes.to_vec(), scales };
        Self { rows, k, elements, global: Some(global) }
    }
}

/// One group of a problem.
#[derive(Clone)]
pub struct Group {
    pub a: Operand,
    pub b1: Operand,
    pub b2: Option<Operand>,
}

/// What an element of C is, and how far an f32 computation of it may be off before its cast.
pub struct Element {
    pub value: f64,
    pub tolerance: f64,
}

impl Group {
    pub fn tensors(&self, prefix: &str) -> Vec<Tensor<'static>> {
        let mut tensors = self.a.tensors(&format!("{prefix}a"));
        tensors.extend(self.b1.tensors(&format!("{prefix}b1")));
        tensors.extend(self.b2.iter().flat_map(|b2| b2.tensors(&format!("{prefix}b2"))));
        tensors
    }

    /// α·Σ a·b, and what its 2K + 8 roundings in f32 can do at worst.
    fn sum(&self, b: &Operand, row: usize, column: usize) -> (f64, f64) {
        let alpha = f64::from(self.a.global.unwrap_or(1.0)) * f64::from(b.global.unwrap_or(1.0));
        let products = (0..b.k).map(|k| self.a.at(row, k) * b.at(column, k));
        let (sum, magnitude) = products.fold((0.0, 0.0), |(s, m), p| (s + p, m + p.abs()));
        (alpha * sum, (2 * b.k + 12) as f64 * 2f64.powi(-24) * alpha.abs() * magnitude)
    }

    /// The element of C at a place, with a gate's derivative at most 1.13 and its evaluation within 600 roundings.
    pub fn element(&self, gate: &str, row: usize, column: usize) -> Element {
        let (g, g_error) = self.sum(&self.b1, row, column);
        let Some(b2) = self.b2.as_ref().filter(|_| gate != "none") else {
            return Element { value: g, tolerance: g_error };
        };
        let (u, u_error) = self.sum(b2, row, column);
        let sigmoid = |y: f64| 1.0 / (1.0 + (-y).exp());
        let (activation, up) = match gate {
            "silu" => (g * sigmoid(g), u),
            "gelu-tanh" => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
                (0.5 * g * (1.0 + inner.tanh()), u)
            }
            "gpt-oss" => (g.min(7.0) * sigmoid(1.702 * g.min(7.0)), u.clamp(-7.0, 7.0) + 1.0),
            other => panic!("no gate {other}"),
        };
        let value = activation * up;
        let tolerance = 1.13 * g_error * (up.abs() + u_error) + activation.abs() * u_error;
        // A sigmoid in f32 never falls below 2⁻¹²⁶.
        let flushed = 1e-37 * (1.0 + g.abs()) * (1.0 + up.abs());
        Element { value, tolerance: tolerance + 600.0 * 2f64.powi(-24) * value.abs() + flushed }
    }
}

/// Names for the groups of a problem, as its file has them.
pub fn prefixes(groups: usize, alone: bool) -> Vec<String> {
    if alone { vec![String::new()] } else { (0..groups).map(|g| format!("g{g}.")).collect() }
}

/// Writes a problem.
pub fn write_problem(path: &Path, groups: &[Group], alone: bool) {
    let prefixes = prefixes(groups.len(), alone);
    let all: Vec<_> = groups.iter().zip(&prefixes).flat_map(|(group, prefix)| group.tensors(prefix)).collect();
    tensors::write(path, &all, None).unwrap();
}

/// The numbers of a result, whose type must be as asked.
pub fn read_result(file: &File, name: &str, out: &str, shape: [usize; 2]) -> Vec<f64> {
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.shape, shape, "{name}");
    let (dtype, size) = match out {
        "f16" => (Dtype::F16, 2),
        "bf16" => (Dtype::BF16, 2),
        _ => (Dtype::F32, 4),
    };
    assert_eq!(tensor.dtype, dtype, "{name}");
    let number = |bytes: &[u8]| match dtype {
        Dtype::F16 => half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        Dtype::BF16 => half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        _ => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
    };
    tensor.bytes.chunks_exact(size).map(number).collect()
}

/// Whether a value of an output type is what it may be.
pub fn accepts(element: &Element, found: f64, out: &str) -> bool {
    let Element { value, tolerance } = *element;
    let (half_ulp, smallest, largest) = match out {
        "f16" => (2f64.powi(-11), 2f64.powi(-25), 65520.0),
        "bf16" => (2f64.powi(-8), 2f64.powi(-134), 3.39e38),
        _ => (2f64.powi(-24), 2f64.powi(-126), 3.4028e38),
    };
    if found.is_infinite() {
        return value.abs() + tolerance >= largest && found.signum() == value.signum();
    }
    let reach = value.abs() + tolerance;
    (found - value).abs() <= tolerance + (reach * half_ulp).max(smallest)
}

/// A problem file and what its results should be, computed once for all the ways in which it is run.
pub struct Expected {
    input: PathBuf,
    gate: &'static str,
    groups: Vec<(String, [usize; 2], Vec<Element>)>,
}

impl Expected {
    pub fn new(input: &Path, groups: &[Group], alone: bool, gate: &'static str) -> Self {
        let of = |(group, prefix): (&Group, String)| {
            let (m, n) = (group.a.rows, group.b1.rows);
            let elements = (0..m * n).map(|index| group.element(gate, index / n, index % n)).collect();
            (format!("{prefix}c"), [m, n], elements)
        };
        let groups = groups.iter().zip(prefixes(groups.len(), alone)).map(of).collect();
        Self { input: input.to_path_buf(), gate, groups }
    }

    /// Runs the problem and compares every element of the result.
    pub fn assert_computed(&self, out: &str, more: &[&str]) {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("c.safetensors");
        let mut args: Vec<&OsStr> = vec!["run".as_ref(), "--quiet".as_ref()];
        args.extend(["--input".as_ref(), self.input.as_os_str(), "--output".as_ref(), output.as_os_str()]);
        args.extend(["--gate", self.gate, "--result", out].map(OsStr::new));
        args.extend(more.iter().map(OsStr::new));
        assert_eq!(succeed(args), "", "quiet means quiet");
        let file = File::open(&output).unwrap();
        assert_eq!(file.names().count(), self.groups.len());
        for (name, shape, elements) in &self.groups {
            let found = read_result(&file, name, out, *shape);
            for (index, (element, found)) in elements.iter().zip(found).enumerate() {
                let Element { value, tolerance } = element;
                assert!(
                    accepts(element, found, out),
                    "{name}[{}, {}] is {found}, should be {value} ± {tolerance:e}; {} {out} {more:?}",
                    index / shape[1],
                    index % shape[1],
                    self.gate
                );
            }
        }
    }
}

/// The path of a problem whose results were computed elsewhere.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(format!("{name}.safetensors"))
}
