//! Tensor cores: mma.sync, wgmma on Hopper, tcgen05 on Blackwell, and the descriptors that the latter two read.

use super::Builder;
use crate::descriptor::{BlockScaledShape, HalvesShape, MatrixLayout, Tcgen05Descriptor, WgmmaDescriptor};
use crate::error::Error;
use crate::instr::{
    Accumulate, CellShape, Collector, CtaGroup, DenseKind, MatrixA, MatrixElement, Mma, ScaledKind, Tcgen05, TensorA,
    Wgmma,
};
use crate::types::{
    Addr, Bf16x2, F16x2, F32, MmaShape, Pred, Reg, Shared, Tcgen05Matrix, TensorAddress, Type, U16, U32, Value, W32,
    WgmmaMatrix,
};

/// Matrix A of a warpgroup multiplication, which also settles the element type.
#[derive(Clone, Copy, Debug)]
pub enum MatrixOperand {
    /// A fragment of halves in registers.
    F16([Reg<F16x2>; 4]),
    /// A fragment of bfloat16 in registers.
    Bf16([Reg<Bf16x2>; 4]),
    /// A fragment of e4m3 numbers in registers, four in each.
    E4m3([Reg<U32>; 4]),
    /// K-major in shared memory.
    Shared(MatrixElement, Reg<WgmmaMatrix>),
    /// M-major in shared memory.
    SharedTransposed(MatrixElement, Reg<WgmmaMatrix>),
}

/// What a warpgroup multiplication does beyond the ordinary.
#[derive(Clone, Copy, Debug, Default)]
pub struct WgmmaOptions {
    /// Use −A.
    pub negate_a: bool,
    /// Use −B.
    pub negate_b: bool,
    /// B is N-major instead of K-major.
    pub transpose_b: bool,
}

/// The operands of a block-scaled multiplication.
#[derive(Clone, Copy, Debug)]
pub struct Multiply {
    /// One block or a pair.
    pub group: CtaGroup,
    /// Accumulator.
    pub d: Reg<TensorAddress>,
    /// Matrix A.
    pub a: Reg<Tcgen05Matrix>,
    /// Matrix B.
    pub b: Reg<Tcgen05Matrix>,
    /// Shape and formats.
    pub shape: Reg<MmaShape>,
    /// A's scales.
    pub scale_a: Reg<TensorAddress>,
    /// B's scales.
    pub scale_b: Reg<TensorAddress>,
    /// Add to D, or replace it.
    pub accumulate: Pred,
    /// What becomes of A.
    pub collector: Collector,
}

/// The operands of a multiplication of 16-bit numbers.
#[derive(Clone, Copy, Debug)]
pub struct MultiplyHalves {
    /// One block or a pair.
    pub group: CtaGroup,
    /// Accumulator.
    pub d: Reg<TensorAddress>,
    /// Matrix A.
    pub a: Reg<Tcgen05Matrix>,
    /// Matrix B.
    pub b: Reg<Tcgen05Matrix>,
    /// Shape and formats.
    pub shape: Reg<MmaShape>,
    /// Add to D, or replace it.
    pub accumulate: Pred,
    /// What becomes of A.
    pub collector: Collector,
}

impl Builder {
    /// D += A·B by the warp: 16 × 8 × 16 of 16-bit numbers, two in a register.
    pub fn mma(&mut self, element: MatrixElement, d: [Reg<F32>; 4], a: [Reg<U32>; 4], b: [Reg<U32>; 2]) {
        let saturate = false;
        self.emit(Mma::Dense { element, saturate, d: d.map(Reg::id), a: a.map(Reg::id), b: b.map(Reg::id) });
    }

    /// Orders register accesses before it against the multiplications after it.
    pub fn wgmma_fence(&mut self) {
        self.emit(Wgmma::Fence);
    }

    /// Closes a group of multiplications.
    pub fn wgmma_commit(&mut self) {
        self.emit(Wgmma::Commit);
    }

    /// Waits until at most `pending` groups are unfinished.
    pub fn wgmma_wait(&mut self, pending: u32) {
        self.emit(Wgmma::Wait { pending });
    }

    /// Starts D = A·B (+ D) with K-major B; there are as many columns as twice the accumulators.
    pub fn wgmma(&mut self, d: &[Reg<F32>], a: MatrixOperand, b: Reg<WgmmaMatrix>, accumulate: Accumulate) {
        self.wgmma_as(WgmmaOptions::default(), d, a, b, accumulate);
    }

    /// Like [`Builder::wgmma`], with signs or the layout of B changed.
    pub fn wgmma_as(
        &mut self,
        options: WgmmaOptions,
        d: &[Reg<F32>],
        a: MatrixOperand,
        b: Reg<WgmmaMatrix>,
        accumulate: Accumulate,
    ) {
        let (element, a) = match a {
            MatrixOperand::F16(regs) => (MatrixElement::F16, MatrixA::Registers(regs.map(Reg::id))),
            MatrixOperand::Bf16(regs) => (MatrixElement::Bf16, MatrixA::Registers(regs.map(Reg::id))),
            MatrixOperand::E4m3(regs) => (MatrixElement::E4m3, MatrixA::Registers(regs.map(Reg::id))),
            MatrixOperand::Shared(element, desc) => (element, MatrixA::Shared { desc: desc.id(), transpose: false }),
            MatrixOperand::SharedTransposed(element, desc) => {
                (element, MatrixA::Shared { desc: desc.id(), transpose: true })
            }
        };
        self.emit(Wgmma::Mma {
            n: d.len() as u32 * 2,
            element,
            d: d.iter().map(|reg| reg.id()).collect(),
            a,
            b: b.id(),
            accumulate,
            negate_a: options.negate_a,
            negate_b: options.negate_b,
            transpose_b: options.transpose_b,
        });
    }

    /// The low word of the descriptor of a matrix at a run-time address. It is the only part that varies: adding n to
    /// it moves the matrix by 16·n bytes, and kept apart it stays in uniform registers.
    pub fn descriptor_low(&mut self, layout: MatrixLayout, address: Reg<U32>) -> Reg<U32> {
        let start = self.bit_extract(address, 4, 14);
        self.or(start, (layout.leading / 16) << 16)
    }

    /// A wgmma descriptor from its low word.
    pub fn wgmma_descriptor(&mut self, layout: MatrixLayout, low: Reg<U32>) -> Reg<WgmmaMatrix> {
        let high = self.high_word(WgmmaDescriptor { start: 0, layout, base_offset: 0 }.encode());
        self.pack_words(low, high).cast()
    }

    /// A tcgen05 descriptor from its low word.
    pub fn tcgen05_descriptor(&mut self, layout: MatrixLayout, low: Reg<U32>) -> Reg<Tcgen05Matrix> {
        let high = self.high_word(Tcgen05Descriptor { start: 0, layout, base_offset: 0 }.encode());
        self.pack_words(low, high).cast()
    }

    fn high_word(&mut self, bits: Result<u64, Error>) -> u32 {
        match bits {
            Ok(bits) => (bits >> 32) as u32,
            Err(error) => {
                self.refuse(error);
                0
            }
        }
    }

    /// The instruction descriptor of a block-scaled multiplication.
    pub fn block_scaled_shape(&mut self, shape: BlockScaledShape) -> Reg<MmaShape> {
        let bits = shape.encode().unwrap_or_else(|error| {
            self.refuse(error);
            0
        });
        self.bits(bits.into())
    }

    /// The instruction descriptor of a multiplication of 16-bit numbers.
    pub fn halves_shape(&mut self, shape: HalvesShape) -> Reg<MmaShape> {
        let bits = shape.encode().unwrap_or_else(|error| {
            self.refuse(error);
            0
        });
        self.bits(bits.into())
    }

    /// Allocates columns of tensor memory; their address is written to shared memory.
    pub fn tensor_alloc(&mut self, group: CtaGroup, dst: Addr<Shared>, columns: u32) {
        let columns = Value::<U32>::from(columns).operand();
        self.emit(Tcgen05::Alloc { group, dst: dst.address(), columns });
    }

    /// Gives columns of tensor memory back.
    pub fn tensor_dealloc(&mut self, group: CtaGroup, addr: Reg<TensorAddress>, columns: u32) {
        let columns = Value::<U32>::from(columns).operand();
        self.emit(Tcgen05::Dealloc { group, addr: addr.id(), columns });
    }

    /// This block will not allocate tensor memory again.
    pub fn tensor_relinquish(&mut self, group: CtaGroup) {
        self.emit(Tcgen05::RelinquishAllocPermit { group });
    }

    /// Copies block scales from shared to tensor memory.
    pub fn tensor_copy_scales(&mut self, group: CtaGroup, dst: Reg<TensorAddress>, src: Reg<Tcgen05Matrix>) {
        self.emit(Tcgen05::CopyScales { group, dst: dst.id(), src: src.id() });
    }

    /// Starts a block-scaled multiplication.
    pub fn tensor_multiply(&mut self, operands: Multiply) {
        let Multiply { group, d, a, b, shape, scale_a, scale_b, accumulate, collector } = operands;
        self.emit(Tcgen05::Mma {
            kind: ScaledKind::NvFp4,
            group,
            d: d.id(),
            a: a.id(),
            b: b.id(),
            shape: shape.id(),
            scale_a: scale_a.id(),
            scale_b: scale_b.id(),
            accumulate: accumulate.id(),
            collector,
        });
    }

    /// Starts a multiplication of 16-bit numbers.
    pub fn tensor_multiply_halves(&mut self, operands: MultiplyHalves) {
        let MultiplyHalves { group, d, a, b, shape, accumulate, collector } = operands;
        let (d, a, b, shape, accumulate) = (d.id(), a.id(), b.id(), shape.id(), accumulate.id());
        let (kind, a) = (DenseKind::F16, TensorA::Shared(a));
        self.emit(Tcgen05::MmaDense { kind, group, d, a, b, shape, accumulate, collector });
    }

    /// Arrives at a barrier when this thread's earlier tcgen05 work is done.
    pub fn tensor_commit(&mut self, group: CtaGroup, bar: Addr<Shared>, multicast: Option<Reg<U16>>) {
        self.emit(Tcgen05::Commit { group, bar: bar.address(), multicast: multicast.map(Reg::id) });
    }

    /// Loads `COUNT` columns of the warp's 32 lanes; the registers are ready after [`Builder::tensor_wait_load`].
    pub fn tensor_load_columns<const COUNT: usize>(&mut self, addr: Reg<TensorAddress>) -> [Reg<F32>; COUNT] {
        let dsts = self.registers::<F32, COUNT>();
        let (shape, regs) = (CellShape::L32x32b, dsts.iter().map(|reg| reg.id()).collect());
        self.emit(Tcgen05::Load { shape, dsts: regs, addr: addr.id() });
        dsts
    }

    /// Stores columns of the warp's 32 lanes.
    pub fn tensor_store_columns<T: Type<Width = W32>>(&mut self, addr: Reg<TensorAddress>, srcs: &[Reg<T>]) {
        let (shape, srcs) = (CellShape::L32x32b, srcs.iter().map(|reg| reg.id()).collect());
        self.emit(Tcgen05::Store { shape, addr: addr.id(), srcs });
    }

    /// Waits for this thread's loads from tensor memory.
    pub fn tensor_wait_load(&mut self) {
        self.emit(Tcgen05::WaitLoad);
    }

    /// Waits for this thread's stores to tensor memory.
    pub fn tensor_wait_store(&mut self) {
        self.emit(Tcgen05::WaitStore);
    }

    /// Orders earlier tcgen05 work before a following synchronisation between threads.
    pub fn tensor_fence_before_sync(&mut self) {
        self.emit(Tcgen05::FenceBeforeSync);
    }

    /// Orders later tcgen05 work after a preceding synchronisation between threads.
    pub fn tensor_fence_after_sync(&mut self) {
        self.emit(Tcgen05::FenceAfterSync);
    }
}
