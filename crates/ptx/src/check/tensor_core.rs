//! Tensor cores: which target has them, the shapes they multiply, their descriptors and tensor memory.

use super::Check;
use crate::descriptor::{BlockScaledShape, DenseShape, MatrixLayout, Swizzle, Tcgen05Descriptor, WgmmaDescriptor};
use crate::error::Error;
use crate::instr::{
    Accumulate, CtaGroup, DenseKind, Fragment, Fragments, MatrixA, MatrixElement, MatrixType, Mma, NarrowFloat, Op,
    ScaledKind, Scaling, Tcgen05, TensorA, Wgmma,
};
use crate::rule::Rule;
use crate::target::Feature;
use crate::types::{Bank, DataType, Operand, RegId, Space};

/// Column counts of one load from tensor memory, or store to it.
const COLUMN_COUNTS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

impl Check<'_> {
    pub(super) fn mma(&mut self, op: &Mma) {
        let (Mma::Dense { d, a, b, .. } | Mma::BlockScaled { d, a, b, .. }) = op;
        self.banks("an accumulator", d, Bank::B32);
        self.banks("a register of A", a, Bank::B32);
        self.banks("a register of B", b, Bank::B32);
        self.distinct("the accumulators of a multiplication", d.to_vec());
        let whole = u64::from(self.kernel.launch.threads);
        self.value("threads of a block with mma.sync", whole, "whole warps of 32", |n| n % 32 == 0);
        if let Mma::Dense { element: MatrixElement::E4m3 | MatrixElement::E5m2, .. } = op {
            self.feature("mma.sync of eight-bit floats", Feature::EightBitFloats);
        }
        if let Mma::Dense { element, saturate: true, .. } = op {
            let bits = u64::from(element.is_integer());
            self.value("integers of an mma.sync that saturates", bits, "1: only their sums do", |n| n == 1);
        }
        if let Mma::BlockScaled { scaling, scale_a, lanes_a, byte_a, scale_b, lane_b, byte_b, .. } = op {
            self.feature("block-scaled mma.sync", Feature::BlockScaledMma);
            self.banks("a register of scales", &[*scale_a, *scale_b], Bank::B32);
            self.value("the lanes that give scales of A", (*lanes_a).into(), "0 or 1", |n| n < 2);
            self.value("the lane that gives scales of B", (*lane_b).into(), "0 to 3", |n| n < 4);
            for byte in [*byte_a, *byte_b] {
                let (count, wanted) =
                    (u64::from(scaling.scales()), "one below 4 that is a multiple of how many there are");
                self.value("the first byte of scales", byte.into(), wanted, |n| n < 4 && n % count == 0);
            }
            let scales = u64::from(matches!(scaling, Scaling::Mx(elements) if elements.contains(&NarrowFloat::Ue8m0)));
            self.value("matrices of ue8m0", scales, "none: it is for scales", |n| n == 0);
        }
    }

    pub(super) fn fragments(&mut self, op: &Fragments) {
        let whole = u64::from(self.kernel.launch.threads);
        self.value("threads of a block with wmma", whole, "whole warps of 32", |n| n % 32 == 0);
        let (fragments, place): (&[(Fragment, &Vec<RegId>)], _) = match op {
            Fragments::Load { fragment, space, dsts: regs, addr, stride }
            | Fragments::Store { fragment, space, srcs: regs, addr, stride } => {
                (&[(*fragment, regs)], Some((*space, *addr, *stride)))
            }
            Fragments::Multiply { d, a, b, c, .. } => (&[d, a, b, c].map(|(fragment, regs)| (*fragment, regs)), None),
        };
        for (fragment, regs) in fragments {
            self.value("fragments that PTX does not have", u64::from(!fragment.exists()), "none", |n| n == 0);
            self.banks("a register of a fragment", regs, fragment.ty.bank());
            let (found, wanted) = (regs.len(), "as many as the fragment has");
            self.count("registers of a fragment", found, wanted, &[fragment.registers()]);
        }
        if let Some((space, addr, stride)) = place {
            if space == Space::Cluster {
                self.refuse(Rule::Window { what: "a matrix", found: space, wanted: "global or this block's memory" });
            }
            self.address("a matrix", space, addr, 4, 4);
            stride.into_iter().for_each(|stride| self.operand("the stride", stride, DataType::U32));
        }
        if let Fragments::Multiply { saturate, d, a, b, c } = op {
            let exists = Fragments::multiplies(d.0, a.0, b.0, c.0) && (!saturate || d.0.ty == MatrixType::S32);
            self.value("multiplications that PTX does not have", u64::from(!exists), "none", |n| n == 0);
            if a.0.ty == MatrixType::F64 && d.0.order.is_none() && d.0.shape[0] == 16 {
                self.feature("mma.sync of sixteen rows in double precision", Feature::Clusters);
            }
            if let MatrixType::Of(MatrixElement::E4m3 | MatrixElement::E5m2) = a.0.ty {
                self.feature("mma.sync of eight-bit floats", Feature::EightBitFloats);
            }
            self.distinct("the accumulators of a multiplication", d.1.clone());
        }
    }

    pub(super) fn wgmma(&mut self, op: &Wgmma) {
        self.feature("wgmma", Feature::Wgmma);
        let threads = u64::from(self.kernel.launch.threads);
        self.value("threads of a block with wgmma", threads, "at least 128, one warpgroup", |n| n >= 128);
        match op {
            Wgmma::Mma { n, element, d, a, b, accumulate, transpose_b, negate_a, negate_b } => {
                let turned = *transpose_b || matches!(a, MatrixA::Shared { transpose: true, .. });
                let bits = u64::from(element.bits());
                self.value("bits of an element of a matrix that is not K-major", bits, "16", |n| n == 16 || !turned);
                let negated = u64::from(element.is_integer() && (*negate_a || *negate_b));
                self.value("negated matrices of integers", negated, "none", |n| n == 0);
                self.value("wgmma's n", (*n).into(), "a multiple of 8 from 8 to 256", |n| {
                    n % 8 == 0 && (8..=256).contains(&n)
                });
                if d.len() as u64 * 2 != u64::from(*n) {
                    let (what, found) = ("accumulators of a wgmma", d.len());
                    self.refuse(Rule::Count { what, found, wanted: "n/2 registers per thread" });
                }
                self.banks("an accumulator", d, Bank::B32);
                let mut own = d.clone();
                match a {
                    MatrixA::Registers(regs) => {
                        self.banks("a register of A", regs, Bank::B32);
                        own.extend(regs);
                    }
                    MatrixA::Shared { desc, .. } => self.wgmma_matrix(*desc),
                }
                self.distinct("the accumulators and A of a wgmma", own);
                self.wgmma_matrix(*b);
                if let Accumulate::If(pred) = accumulate {
                    self.bank("the accumulate flag", *pred, Bank::Pred);
                }
            }
            Wgmma::Wait { pending } => self.value("pending groups", (*pending).into(), "0 to 7", |n| n < 8),
            Wgmma::Fence | Wgmma::Commit => {}
        }
    }

    fn distinct(&mut self, what: &'static str, mut regs: Vec<RegId>) {
        regs.sort_unstable();
        if let Some(pair) = regs.windows(2).find(|pair| pair[0] == pair[1]) {
            self.refuse(Rule::Repeated { what, found: pair[0] });
        }
    }

    fn wgmma_matrix(&mut self, desc: RegId) {
        self.bank("a matrix descriptor", desc, Bank::B64);
        if let Some(high) = self.known.high_word(desc) {
            let WgmmaDescriptor { layout, base_offset, .. } = WgmmaDescriptor::decode(u64::from(high) << 32);
            self.layout(layout);
            self.start(desc, layout.swizzle, base_offset);
        }
    }

    /// A swizzle pattern repeats within eight rows; groups of eight rows must start where it does.
    fn layout(&mut self, layout: MatrixLayout) {
        let period = u64::from(layout.swizzle.period());
        let wanted = "a multiple of the swizzle's period: 256, 512 or 1024 bytes for 32, 64 or 128";
        if layout.swizzle != Swizzle::None {
            self.value("the stride of a swizzled matrix", layout.stride.into(), wanted, |n| n % period == 0);
        }
    }

    /// The pattern follows from address bits 7..10, so a matrix starts in the first row of a period, unless the
    /// descriptor's base offset says otherwise.
    fn start(&mut self, desc: RegId, swizzle: Swizzle, base_offset: u32) {
        let (modulus, low) = self.known.low_word(desc);
        let period = u64::from(swizzle.period());
        if base_offset != 0 || modulus < period / 16 || swizzle == Swizzle::None {
            return;
        }
        let row = low * 16 % period / 128 * 128;
        if row != 0 {
            let what = "the first row of a swizzled matrix";
            self.refuse(Rule::Misaligned { what, found: row, wanted: period });
        }
    }

    /// The size of the group, the same in the whole kernel, and a cluster that has pairs.
    pub(super) fn group(&mut self, group: CtaGroup) {
        let first = self.kernel.body.iter().find_map(|instr| match &instr.op {
            Op::Tcgen05(op) => group_of(op),
            _ => None,
        });
        if let Some(first) = first.filter(|&first| first != group) {
            self.refuse(Rule::MixedGroups { first, found: group });
        }
        let paired = self.kernel.launch.cluster.is_some_and(|[x, ..]| x % 2 == 0);
        if group == CtaGroup::Two && !paired {
            self.refuse(Rule::NoPair);
        }
    }

    pub(super) fn tcgen05(&mut self, op: &Tcgen05) {
        self.feature("tcgen05", Feature::Tcgen05);
        if let Some(group) = group_of(op) {
            self.group(group);
        }
        match op {
            Tcgen05::Alloc { dst, columns, .. } => {
                self.address("where the tensor address goes", Space::Shared, *dst, 4, 4);
                self.columns(*columns);
            }
            Tcgen05::Dealloc { addr, columns, .. } => {
                self.bank("the tensor address", *addr, Bank::B32);
                self.columns(*columns);
            }
            Tcgen05::CopyScales { dst, src, .. } => {
                self.bank("the tensor address", *dst, Bank::B32);
                self.tcgen05_matrix(*src);
            }
            Tcgen05::Mma { kind, group, d, a, b, shape, scale_a, scale_b, accumulate, .. } => {
                self.banks("a tensor address", &[*d, *scale_a, *scale_b], Bank::B32);
                self.bank("the instruction descriptor", *shape, Bank::B32);
                self.bank("the accumulate flag", *accumulate, Bank::Pred);
                self.tcgen05_matrix(*a);
                self.tcgen05_matrix(*b);
                // Of the other kinds a descriptor is looked at when it runs.
                if let Some(bits) = self.known.constant(Operand::Reg(*shape)).filter(|_| *kind == ScaledKind::NvFp4) {
                    self.tile(*group, bits as u32);
                }
            }
            Tcgen05::MmaDense { kind, group, d, a, b, shape, accumulate, .. } => {
                self.bank("a tensor address", *d, Bank::B32);
                self.bank("the instruction descriptor", *shape, Bank::B32);
                self.bank("the accumulate flag", *accumulate, Bank::Pred);
                match a {
                    TensorA::Shared(desc) => self.tcgen05_matrix(*desc),
                    TensorA::Tensor(addr) => self.bank("a tensor address", *addr, Bank::B32),
                }
                self.tcgen05_matrix(*b);
                if let Some(bits) = self.known.constant(Operand::Reg(*shape)) {
                    self.dense_tile(*kind, *group, bits as u32);
                }
            }
            Tcgen05::Commit { bar, multicast, .. } => {
                self.mbarrier(Space::Shared, *bar);
                self.banks("the multicast mask", multicast.as_slice(), Bank::B16);
            }
            Tcgen05::Load { shape, dsts: regs, addr } | Tcgen05::Store { shape, addr, srcs: regs } => {
                self.bank("the tensor address", *addr, Bank::B32);
                self.banks("a column", regs, Bank::B32);
                let counts: Vec<usize> = COLUMN_COUNTS.into_iter().filter(|count| *count >= shape.least()).collect();
                self.count("columns", regs.len(), "a power of two from 1 to 128", &counts);
            }
            Tcgen05::RelinquishAllocPermit { .. }
            | Tcgen05::WaitLoad
            | Tcgen05::WaitStore
            | Tcgen05::FenceBeforeSync
            | Tcgen05::FenceAfterSync => {}
        }
    }

    fn columns(&mut self, columns: Operand) {
        self.word("columns of tensor memory", columns, "a power of two from 32 to 512", |n| {
            n.is_power_of_two() && (32..=512).contains(&n)
        });
    }

    fn tcgen05_matrix(&mut self, desc: RegId) {
        self.bank("a matrix descriptor", desc, Bank::B64);
        let Some(high) = self.known.high_word(desc) else { return };
        match Tcgen05Descriptor::decode(u64::from(high) << 32) {
            Ok(Tcgen05Descriptor { layout, base_offset, .. }) => {
                self.layout(layout);
                self.start(desc, layout.swizzle, base_offset);
            }
            Err(error) => self.field(error),
        }
    }

    /// A field that cannot be decoded, in the checker's words.
    fn field(&mut self, error: Error) {
        if let Error::Field { what, found, wanted } = error {
            self.refuse(Rule::Value { what, found, wanted });
        }
    }

    /// The tiles of D that one instruction without block scales computes.
    fn dense_tile(&mut self, kind: DenseKind, group: CtaGroup, bits: u32) {
        match DenseShape::decode(kind, bits) {
            Ok(DenseShape { m, .. }) => {
                let (what, wanted) = ("rows of a multiplication", "64 or 128 from one block, 128 or 256 from a pair");
                let rows = if group == CtaGroup::One { [64, 128] } else { [128, 256] };
                self.value(what, m.into(), wanted, |m| rows.contains(&m));
            }
            Err(error) => self.field(error),
        }
    }

    /// The tiles of D that one instruction computes; K is always 64.
    fn tile(&mut self, group: CtaGroup, bits: u32) {
        let (m, n) = ((bits >> 24 & 31) << 4, (bits >> 17 & 63) << 3);
        let (legal, wanted) = match group {
            _ if m == 64 => (false, BlockScaledShape::NO_64_ROWS),
            CtaGroup::One => (
                m == 128 && n % 8 == 0 && (8..=256).contains(&n),
                "128 rows × 8 to 256 columns in steps of 8 from one block",
            ),
            CtaGroup::Two => (
                (m == 128 || m == 256) && n % 16 == 0 && (16..=256).contains(&n),
                "128 or 256 rows × 16 to 256 columns in steps of 16 from a pair",
            ),
        };
        if !legal {
            self.refuse(Rule::BlockScaledTile { group, m, n, wanted });
        } else if let Err(error) = BlockScaledShape::decode(bits) {
            self.field(error);
        }
    }
}

fn group_of(op: &Tcgen05) -> Option<CtaGroup> {
    match op {
        Tcgen05::Alloc { group, .. }
        | Tcgen05::Dealloc { group, .. }
        | Tcgen05::RelinquishAllocPermit { group }
        | Tcgen05::CopyScales { group, .. }
        | Tcgen05::Mma { group, .. }
        | Tcgen05::MmaDense { group, .. }
        | Tcgen05::Commit { group, .. } => Some(*group),
        Tcgen05::Load { .. }
        | Tcgen05::Store { .. }
        | Tcgen05::WaitLoad
        | Tcgen05::WaitStore
        | Tcgen05::FenceBeforeSync
        | Tcgen05::FenceAfterSync => None,
    }
}
