//! A problem as launches: for each group the GEMM over each weight matrix into a plane of f32 sums, then the join.
//!
//! Written once over a [`Device`], so that what runs in the simulator is what runs on the GPU.

use format::Matrix;

use super::sm90::SUM_BYTES;
use super::tokens::Halves;
use super::{Argument, Launch, Which, join, pack, sm90};
use crate::backend::Target;
use crate::{Activations, Gate, Output, Result, Weights};

/// Something that has memory and runs kernels in the order in which they are launched.
pub(super) trait Device {
    /// A piece of its memory.
    type Memory;

    /// Memory that nobody has written yet.
    fn allocate(&self, what: &'static str, bytes: usize) -> Result<Self::Memory>;

    /// Memory that holds these bytes.
    fn upload(&self, what: &'static str, bytes: &[u8]) -> Result<Self::Memory>;

    /// Where a piece of memory is.
    fn address(memory: &Self::Memory) -> u64;

    /// Queues a launch, whose pointers are to memory of this device that is as large as the kernel needs.
    fn launch(&self, launch: &Launch) -> Result<()>;

    /// Waits for all launches and copies a piece of memory.
    fn download(&self, memory: &Self::Memory, bytes: &mut [u8]) -> Result<()>;
}

/// A weight matrix in the order of [`pack`], somewhere.
#[derive(Debug)]
pub struct PackedMatrix<M> {
    pub(super) global: f32,
    pub(super) memory: M,
}

/// A group's weights in the order of [`pack`], somewhere.
#[derive(Debug)]
pub struct PackedGroup<M> {
    pub(super) n: usize,
    pub(super) k: usize,
    /// Gate and up, or the only one.
    pub(super) matrices: Vec<PackedMatrix<M>>,
}

impl<M> PackedGroup<M> {
    /// Packs a group's weights and puts them where `place` does.
    pub(super) fn new(weights: &Weights<'_>, mut place: impl FnMut(Vec<u8>) -> Result<M>) -> Result<Self> {
        let mut each =
            |matrix: &Matrix<'_>| Ok(PackedMatrix { global: matrix.global(), memory: place(pack::pack(matrix))? });
        let matrices = weights.matrices().map(&mut each).collect::<Result<_>>()?;
        Ok(PackedGroup { n: weights.n(), k: weights.k(), matrices })
    }

    /// Bytes of the packed weights.
    pub fn bytes(&self) -> usize {
        self.matrices.len() * pack::packed_bytes(self.n, self.k)
    }
}

/// What is computed of each group, and by which GEMM.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub gate: Gate,
    pub output: Output,
    pub multiply: sm90::Config,
}

/// A group ready to be computed: its operands are on the device, its launches are known.
pub(super) struct Prepared<M> {
    pub launches: Vec<Launch>,
    /// C.
    pub out: M,
    /// Memory that the launches use.
    _used: Vec<M>,
}

/// Brings a group's tokens to the device and plans its launches; nothing to do for a group without tokens.
pub(super) fn prepare<D: Device>(
    device: &D,
    how: &How,
    weights: &PackedGroup<D::Memory>,
    activations: &Activations<'_>,
    largest: f32,
) -> Result<Option<Prepared<D::Memory>>> {
    let (m, n, k) = (activations.rows(), weights.n, weights.k);
    if m == 0 {
        return Ok(None);
    }
    let halves = Halves::new(activations, largest);
    let rows = (halves.parts * m) as u32;
    let tokens = device.upload("tokens", bytemuck::cast_slice(&halves.values))?;
    let map = how.multiply.token_map(D::address(&tokens), rows, k as u32);
    let grid = how.multiply.grid(rows, n as u32);
    let (mut launches, mut planes, mut factors) = (Vec::new(), Vec::new(), Vec::new());
    for (matrix, what) in weights.matrices.iter().zip(["gate sums", "up sums"]) {
        let plane = device.allocate(what, halves.parts * m * n * SUM_BYTES as usize)?;
        let arguments = vec![
            Argument::Pointer(D::address(&matrix.memory)),
            Argument::Pointer(D::address(&plane)),
            Argument::Map(map.clone()),
            Argument::U32(rows),
            Argument::U32(n as u32),
            Argument::U32(k as u32),
        ];
        let (which, grid) = (Which::Multiply(how.multiply), [grid[0], grid[1], 1]);
        launches.push(Launch { which, grid, arguments, overlapping: false });
        // Tokens were multiplied by 2^exponent, and the GEMM's sums are 2⁻⁷ times what they should be.
        let alpha = f64::from(activations.global()) * f64::from(matrix.global) * 2f64.powi(7 - halves.exponent);
        factors.push(join::factors(alpha));
        planes.push(plane);
    }
    let out = device.allocate("result", m * n * how.output.bytes())?;
    let sums: Vec<u64> = planes.iter().map(D::address).collect();
    launches.push(join(how, &sums, &factors, D::address(&out), m * n, halves.parts));
    planes.push(tokens);
    Ok(Some(Prepared { launches, out, _used: planes }))
}

/// The launch that makes C of the sums. Without an up plane the gate's stands in for it, and is not looked at.
fn join(how: &How, sums: &[u64], factors: &[[f32; 2]], out: u64, elements: usize, parts: usize) -> Launch {
    let config = join::Config::new(how.gate, how.output);
    let (gate, up) = (factors[0], factors[factors.len() - 1]);
    let clamp = if let Gate::GptOss { clamp } = how.gate { clamp } else { 0.0 };
    let arguments = vec![
        Argument::Pointer(sums[0]),
        Argument::Pointer(sums[sums.len() - 1]),
        Argument::Pointer(out),
        Argument::U64(elements as u64),
        Argument::U32(parts as u32),
        Argument::F32(gate[0]),
        Argument::F32(gate[1]),
        Argument::F32(up[0]),
        Argument::F32(up[1]),
        Argument::F32(clamp),
    ];
    let (which, grid) = (Which::Join(config), [config.grid(elements as u64) as u32, 1, 1]);
    Launch { which, grid, arguments, overlapping: false }
}

/// Computes a group.
pub(super) fn run<D: Device>(
    device: &D,
    how: &How,
    weights: &PackedGroup<D::Memory>,
    activations: &Activations<'_>,
    largest: f32,
    target: &mut Target<'_>,
) -> Result<()> {
    let Some(prepared) = prepare(device, how, weights, activations, largest)? else { return Ok(()) };
    prepared.launches.iter().try_for_each(|launch| device.launch(launch))?;
    device.download(
        &prepared.out,
        match target {
            Target::F16(c) => bytemuck::cast_slice_mut(c),
            Target::BF16(c) => bytemuck::cast_slice_mut(c),
            Target::F32(c) => bytemuck::cast_slice_mut(c),
        },
    )
}
