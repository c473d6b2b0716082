//! The bit fields that tell the tensor cores where a matrix lies in shared memory and what shape a multiplication has.
//!
//! Each descriptor is a struct with plain units (bytes, rows) that encodes to bits and decodes from them: the builder
//! encodes, a simulator decodes. Addresses and offsets are kept in units of 16 bytes by the hardware, hence the demand
//! for multiples of 16 everywhere.

use crate::error::Error;
use crate::instr::{DenseKind, MatrixElement, NarrowFloat, ScaledKind};

/// How the 16-byte pieces of shared memory are permuted, so that reading a column of them meets no bank conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Not at all.
    None,
    /// Within 32 bytes: address bit 4 is flipped by bit 7.
    B32,
    /// Within 64 bytes: address bits 4..6 are flipped by bits 7..9.
    B64,
    /// Within 128 bytes: address bits 4..7 are flipped by bits 7..10.
    B128,
    /// Within 128 bytes, with pieces of 32: address bits 5..7 are flipped by bits 7..9. Of tensor maps alone.
    B128Pieces32,
}

impl Swizzle {
    /// Bytes of one permuted row: what the inner dimension of a box may not exceed.
    pub fn span(self) -> u32 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 | Swizzle::B128Pieces32 => 128,
        }
    }

    /// Bytes after which the pattern repeats; a matrix starts at a multiple of it.
    pub fn period(self) -> u32 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 256,
            Swizzle::B64 | Swizzle::B128Pieces32 => 512,
            Swizzle::B128 => 1024,
        }
    }

    /// Where the byte at a linear shared-memory address is really kept.
    pub fn apply(self, address: u32) -> u32 {
        match self {
            Swizzle::B128Pieces32 => address ^ (((address >> 7) & 3) << 5),
            _ => address ^ (((address >> 7) & (self.span() / 16 - 1)) << 4),
        }
    }
}

/// The layout of a matrix operand of `wgmma`, without its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixLayout {
    /// Permutation of the 16-byte pieces.
    pub swizzle: Swizzle,
    /// Leading-dimension byte offset. K-major and swizzled: not used. K-major, no swizzle: between the two 8×16-byte
    /// core matrices along K.
    pub leading: u32,
    /// Stride byte offset. K-major: between groups of eight rows.
    pub stride: u32,
}

impl MatrixLayout {
    /// Rows of 128 bytes of K, swizzled, eight rows after eight rows: what a 128-byte-swizzled tensor copy leaves.
    pub const K_MAJOR_128: MatrixLayout = MatrixLayout { swizzle: Swizzle::B128, leading: 16, stride: 1024 };
}

/// A `wgmma` matrix descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WgmmaDescriptor {
    /// Shared address of the matrix's first byte.
    pub start: u32,
    /// How it lies there.
    pub layout: MatrixLayout,
    /// Phase of the swizzle pattern, 0..8, for a matrix that does not start at a multiple of the pattern's period.
    pub base_offset: u32,
}

fn sixteenths(what: &'static str, bytes: u32) -> Result<u64, Error> {
    if !bytes.is_multiple_of(16) || bytes >= 1 << 18 {
        return Err(Error::Field { what, found: bytes.into(), wanted: "a multiple of 16 below 262144 bytes" });
    }
    Ok(u64::from(bytes / 16))
}

impl WgmmaDescriptor {
    /// The 64 bits the hardware reads.
    pub fn encode(self) -> Result<u64, Error> {
        if self.base_offset > 7 {
            let found = self.base_offset.into();
            return Err(Error::Field { what: "wgmma descriptor base offset", found, wanted: "0 to 7" });
        }
        let layout = match self.layout.swizzle {
            Swizzle::None => 0u64,
            Swizzle::B128 => 1,
            Swizzle::B64 => 2,
            Swizzle::B32 => 3,
            Swizzle::B128Pieces32 => return Err(of_maps_alone("wgmma descriptor swizzle")),
        };
        Ok(sixteenths("wgmma descriptor start address", self.start)?
            | sixteenths("wgmma descriptor leading offset", self.layout.leading)? << 16
            | sixteenths("wgmma descriptor stride offset", self.layout.stride)? << 32
            | u64::from(self.base_offset) << 49
            | layout << 62)
    }

    /// Bits that belong to no field: an address that was not masked, or a sum that ran over, reaches into them.
    pub const BETWEEN: u64 = 3 << 14 | 3 << 30 | 7 << 46 | 0x3ff << 52;

    /// The descriptor that these bits mean.
    pub fn decode(bits: u64) -> Self {
        let bytes = |at: u32| ((bits >> at) as u32 & 0x3fff) * 16;
        let swizzle = match bits >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::B128,
            2 => Swizzle::B64,
            _ => Swizzle::B32,
        };
        WgmmaDescriptor {
            start: bytes(0),
            layout: MatrixLayout { swizzle, leading: bytes(16), stride: bytes(32) },
            base_offset: (bits >> 49) as u32 & 7,
        }
    }
}

/// The refusal of a swizzle that matrices have not got here.
fn of_maps_alone(what: &'static str) -> Error {
    Error::Field { what, found: 32, wanted: "pieces of 16 bytes: those of 32 are for tensor maps" }
}

/// A `tcgen05` matrix descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcgen05Descriptor {
    /// Shared address of the matrix's first byte.
    pub start: u32,
    /// How it lies there.
    pub layout: MatrixLayout,
    /// Phase of the swizzle pattern, 0..8.
    pub base_offset: u32,
}

impl Tcgen05Descriptor {
    /// The 64 bits the hardware reads: version 1 at bit 46, and a three-bit code for the swizzle.
    pub fn encode(self) -> Result<u64, Error> {
        if self.base_offset > 7 {
            let found = self.base_offset.into();
            return Err(Error::Field { what: "tcgen05 descriptor base offset", found, wanted: "0 to 7" });
        }
        let layout = match self.layout.swizzle {
            Swizzle::None => 0u64,
            Swizzle::B128 => 2,
            Swizzle::B64 => 4,
            Swizzle::B32 => 6,
            Swizzle::B128Pieces32 => return Err(of_maps_alone("tcgen05 descriptor swizzle")),
        };
        Ok(sixteenths("tcgen05 descriptor start address", self.start)?
            | sixteenths("tcgen05 descriptor leading offset", self.layout.leading)? << 16
            | sixteenths("tcgen05 descriptor stride offset", self.layout.stride)? << 32
            | 1 << 46
            | u64::from(self.base_offset) << 49
            | layout << 61)
    }

    /// The descriptor that these bits mean, or what is wrong with them.
    pub fn decode(bits: u64) -> Result<Self, Error> {
        let bytes = |at: u32| ((bits >> at) as u32 & 0x3fff) * 16;
        let version = bits >> 46 & 7;
        if version != 1 {
            return Err(Error::Field { what: "tcgen05 descriptor version", found: version, wanted: "1" });
        }
        // Between its fields; bit 52 would make the leading offset an address, which no layout here has.
        let between = bits & (3 << 14 | 3 << 30 | 0x1ff << 52);
        if between != 0 {
            let (what, wanted) = ("tcgen05 descriptor bits 14, 15, 30, 31 and 52 to 60", "0: is the address masked?");
            return Err(Error::Field { what, found: between, wanted });
        }
        let swizzle = match bits >> 61 {
            0 => Swizzle::None,
            2 => Swizzle::B128,
            4 => Swizzle::B64,
            6 => Swizzle::B32,
            found => return Err(Error::Field { what: "tcgen05 descriptor swizzle", found, wanted: "0, 2, 4 or 6" }),
        };
        Ok(Tcgen05Descriptor {
            start: bytes(0),
            layout: MatrixLayout { swizzle, leading: bytes(16), stride: bytes(32) },
            base_offset: (bits >> 49) as u32 & 7,
        })
    }
}

/// The instruction descriptor of a block-scaled FP4 multiplication (e2m1 elements, ue4m3 scales, both K-major).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockScaledShape {
    /// Rows of D: 128, or 256 for a pair of blocks.
    pub m: u32,
    /// Columns of D, a multiple of 8 up to 256.
    pub n: u32,
    /// Which quarter of the columns holds A's scales, 0..4.
    pub scale_a_id: u32,
    /// Which quarter of the columns holds B's scales, 0..4.
    pub scale_b_id: u32,
}

impl BlockScaledShape {
    const E2M1: u32 = 1 << 7 | 1 << 10;
    /// Why there is no half-height tile.
    pub(crate) const NO_64_ROWS: &str = "128 rows: kind::mxf4nvf4 fills all 128 lanes of tensor memory, 64 rows do not \
        exist for it; pad the tile, or swap A and B so that the short side is N";

    /// The 32 bits the hardware reads.
    pub fn encode(self) -> Result<u32, Error> {
        let field = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        let BlockScaledShape { m, n, scale_a_id, scale_b_id } = self;
        if m == 64 {
            return field("tcgen05 block-scaled M", m, Self::NO_64_ROWS);
        }
        if m != 128 && m != 256 {
            return field("tcgen05 block-scaled M", m, "128, or 256 for a pair of blocks");
        }
        if n % 8 != 0 || !(8..=256).contains(&n) {
            return field("tcgen05 block-scaled N", n, "a multiple of 8 from 8 to 256");
        }
        if scale_a_id.max(scale_b_id) > 3 {
            return field("tcgen05 scale id", scale_a_id.max(scale_b_id), "0 to 3");
        }
        Ok(scale_b_id << 4 | Self::E2M1 | (n >> 3) << 17 | (m >> 4) << 24 | scale_a_id << 29)
    }

    /// The shape that these bits mean, or what is wrong with them.
    pub fn decode(bits: u32) -> Result<Self, Error> {
        let shape = BlockScaledShape {
            m: (bits >> 24 & 31) << 4,
            n: (bits >> 17 & 63) << 3,
            scale_a_id: bits >> 29 & 3,
            scale_b_id: bits >> 4 & 3,
        };
        if shape.encode()? != bits {
            let (what, found) = ("tcgen05 block-scaled instruction descriptor", bits.into());
            return Err(Error::Field { what, found, wanted: "e2m1 elements, K-major, with ue4m3 scales" });
        }
        Ok(shape)
    }
}

/// The instruction descriptor of a multiplication with block scales of any kind, both operands K-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaledShape {
    /// Rows of D: 128, or 256 for a pair of blocks.
    pub m: u32,
    /// Columns of D, a multiple of 8 up to 256.
    pub n: u32,
    /// Types of A and B.
    pub elements: [NarrowFloat; 2],
    /// The first byte of A's scales, and of B's, in each cell.
    pub scale_ids: [u32; 2],
}

impl ScaledShape {
    /// Which type of scales, which elements, which scales, and the sides; the others are zero.
    const FIELDS: u32 = 1 << 23 | 0b11_1111 << 7 | 3 << 4 | 3 << 29 | 63 << 17 | 31 << 24;
    const POWERS_OF_TWO: u32 = 1 << 23;

    /// The shape that these bits mean, or what is wrong with them.
    pub fn decode(kind: ScaledKind, bits: u32) -> Result<Self, Error> {
        let field = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        if kind == ScaledKind::NvFp4 {
            let BlockScaledShape { m, n, scale_a_id, scale_b_id } = BlockScaledShape::decode(bits)?;
            return Ok(ScaledShape { m, n, elements: [NarrowFloat::E2m1; 2], scale_ids: [scale_a_id, scale_b_id] });
        }
        if bits & !Self::FIELDS != 0 || bits & Self::POWERS_OF_TWO == 0 {
            let wanted = "ue8m0 scales of dense matrices, K-major, without signs turned";
            return field("tcgen05 block-scaled instruction descriptor", bits, wanted);
        }
        let element = |code: u32| match (kind, code & 7) {
            (ScaledKind::MxFp4, 1) => Some(NarrowFloat::E2m1),
            (ScaledKind::MxF8f6f4, 0) => Some(NarrowFloat::E4m3),
            (ScaledKind::MxF8f6f4, 1) => Some(NarrowFloat::E5m2),
            _ => None,
        };
        let (Some(a), Some(b)) = (element(bits >> 7), element(bits >> 10)) else {
            let wanted = "e2m1 for kind::mxf4, e4m3 or e5m2 for kind::mxf8f6f4, whose narrower types are not simulated";
            return field("tcgen05 element types", bits >> 7 & 63, wanted);
        };
        let (m, n) = ((bits >> 24 & 31) << 4, (bits >> 17 & 63) << 3);
        if m != 128 && m != 256 {
            return field("tcgen05 block-scaled M", m, "128, or 256 for a pair of blocks");
        }
        if !(8..=256).contains(&n) {
            return field("tcgen05 block-scaled N", n, "a multiple of 8 from 8 to 256");
        }
        let scale_ids = [bits >> 29 & 3, bits >> 4 & 3];
        if let Some(found) = scale_ids.into_iter().find(|id| id % kind.scales() != 0) {
            return field("tcgen05 scale id", found, "0 to 3, of kind::mxf4 0 or 2");
        }
        Ok(ScaledShape { m, n, elements: [a, b], scale_ids })
    }
}

/// The instruction descriptor of a multiplication of 16-bit numbers with f32 sums, both operands K-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalvesShape {
    /// Rows of D: 128, or 256 for a pair of blocks.
    pub m: u32,
    /// Columns of D, a multiple of 16 up to 256.
    pub n: u32,
    /// Whether elements are bfloat16, not halves.
    pub bf16: bool,
}

impl HalvesShape {
    const F32_SUMS: u32 = 1 << 4;
    const BF16: u32 = 1 << 7 | 1 << 10;

    /// The 32 bits the hardware reads.
    pub fn encode(self) -> Result<u32, Error> {
        let field = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        let HalvesShape { m, n, bf16 } = self;
        if m != 128 && m != 256 {
            return field("tcgen05 M", m, "128, or 256 for a pair of blocks");
        }
        if n % 16 != 0 || !(16..=256).contains(&n) {
            return field("tcgen05 N", n, "a multiple of 16 from 16 to 256");
        }
        let elements = if bf16 { Self::BF16 } else { 0 };
        Ok(Self::F32_SUMS | elements | (n >> 3) << 17 | (m >> 4) << 24)
    }
}

/// The instruction descriptor of a multiplication without block scales, with f32 sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseShape {
    /// Rows of D: 64 or 128, of a pair of blocks 128 or 256.
    pub m: u32,
    /// Columns of D, a multiple of 8 up to 256.
    pub n: u32,
    /// Types of A and B.
    pub elements: [MatrixElement; 2],
    /// Whether −A is used, and −B.
    pub negate: [bool; 2],
    /// Whether A is M-major instead of K-major, and B N-major.
    pub transpose: [bool; 2],
}

impl DenseShape {
    /// Bits of features that are not understood: sparsity, saturation, other sums, shifts.
    const OTHERS: u32 = 0b1111 | 0b11 << 5 | 1 << 23 | 0b111 << 29;

    /// The shape that these bits mean, or what is wrong with them.
    pub fn decode(kind: DenseKind, bits: u32) -> Result<Self, Error> {
        let field = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        if bits & (Self::OTHERS | HalvesShape::F32_SUMS) != HalvesShape::F32_SUMS {
            return field(
                "tcgen05 instruction descriptor",
                bits,
                "f32 sums of dense matrices, and zeros between the fields",
            );
        }
        let element = |code: u32| match (kind, code & 7) {
            (DenseKind::F16, 0) => Some(MatrixElement::F16),
            (DenseKind::F16, 1) => Some(MatrixElement::Bf16),
            (DenseKind::Tf32, 2) => Some(MatrixElement::Tf32),
            (DenseKind::F8f6f4, 0) => Some(MatrixElement::E4m3),
            (DenseKind::F8f6f4, 1) => Some(MatrixElement::E5m2),
            _ => None,
        };
        let (Some(a), Some(b)) = (element(bits >> 7), element(bits >> 10)) else {
            let wanted = "f16 or bf16 for kind::f16, tf32 for its kind, e4m3 or e5m2 for kind::f8f6f4";
            return field("tcgen05 element types", bits >> 7 & 63, wanted);
        };
        let (m, n) = ((bits >> 24 & 31) << 4, (bits >> 17 & 63) << 3);
        if ![64, 128, 256].contains(&m) {
            return field("tcgen05 M", m, "64 or 128, of a pair of blocks 128 or 256");
        }
        if !(8..=256).contains(&n) || m != 64 && !n.is_multiple_of(16) {
            return field("tcgen05 N", n, "a multiple of 16 from 16 to 256, of 8 from 8 on for 64 rows");
        }
        let flag = |bit: u32| bits >> bit & 1 == 1;
        let (negate, transpose) = ([flag(13), flag(14)], [flag(15), flag(16)]);
        Ok(DenseShape { m, n, elements: [a, b], negate, transpose })
    }
}
