//! What a tensor map says: the shape of a tensor in global memory and of the boxes copied from it. The driver encodes
//! it into 128 opaque bytes on a real GPU; a simulator uses it as it is.

use crate::descriptor::Swizzle;
use crate::error::Error;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// One byte.
    U8,
    /// Two bytes.
    U16,
    /// Four bytes.
    U32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single.
    F32,
    /// Sixteen four-bit elements in eight bytes, kept packed in shared memory (sm_100a).
    U4x16,
}

impl Element {
    /// Bits of one element.
    pub fn bits(self) -> u32 {
        match self {
            Element::U4x16 => 4,
            Element::U8 => 8,
            Element::U16 | Element::F16 | Element::Bf16 => 16,
            Element::U32 | Element::F32 => 32,
        }
    }
}

/// A tensor and its boxes. Every list runs from the innermost dimension outwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Element type.
    pub element: Element,
    /// Global address of element zero.
    pub address: u64,
    /// Elements along each dimension, 1 to 5 of them.
    pub dims: Vec<u64>,
    /// Bytes between neighbours along each dimension but the innermost.
    pub strides: Vec<u64>,
    /// Elements of a box along each dimension.
    pub tile: Vec<u32>,
    /// Permutation of the box in shared memory.
    pub swizzle: Swizzle,
}

/// A part of a tensor map that a kernel writes itself (`tensormap.replace`). What bytes of a tensor map mean is
/// NVIDIA's secret, and a program may not rely on it; maps that are made in a simulator are laid out by
/// [`MapField::offset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapField {
    /// Global address of element zero, of eight bytes.
    Address,
    /// Dimensions less one.
    Rank,
    /// Elements of a box along a dimension.
    Box(u32),
    /// Elements along a dimension.
    Dim(u32),
    /// Bytes between neighbours along a dimension but the innermost, of eight bytes.
    Stride(u32),
    /// Elements from one that is copied to the next, along a dimension.
    ElementStride(u32),
    /// The code of the element type.
    Element,
    /// The code of the swizzle.
    Swizzle,
    /// Interleaving, filling and other codes that are zero in the maps that are understood.
    Other,
}

impl MapField {
    /// Where it is among the 128 bytes.
    pub fn offset(self) -> u32 {
        match self {
            MapField::Address => 0,
            MapField::Stride(dim) => 8 + 8 * dim,
            MapField::Rank => 40,
            MapField::Element => 44,
            MapField::Swizzle => 48,
            MapField::Other => 52,
            MapField::Box(dim) => 56 + 4 * dim,
            MapField::Dim(dim) => 76 + 4 * dim,
            MapField::ElementStride(dim) => 96 + 4 * dim,
        }
    }
}

impl TensorMap {
    /// Bytes of a tensor map.
    pub const BYTES: usize = 128;

    /// The map that a kernel has made, from its bytes; nothing if it says something that is not understood.
    pub fn made(bytes: &[u8; TensorMap::BYTES]) -> Option<TensorMap> {
        let at = |field: MapField| field.offset() as usize;
        let word = |field| bytes.get(at(field)..)?.first_chunk().copied().map(u32::from_le_bytes);
        let wide = |field| bytes.get(at(field)..)?.first_chunk().copied().map(u64::from_le_bytes);
        let rank = word(MapField::Rank)?.checked_add(1).filter(|rank| *rank <= 5)?;
        let element = match word(MapField::Element)? {
            0 => Element::U8,
            1 => Element::U16,
            2 | 3 => Element::U32,
            6 => Element::F16,
            7 | 8 | 11 | 12 => Element::F32,
            10 => Element::Bf16,
            13 => Element::U4x16,
            _ => return None,
        };
        let swizzle = match word(MapField::Swizzle)? {
            0 => Swizzle::None,
            1 => Swizzle::B32,
            2 => Swizzle::B64,
            3 => Swizzle::B128,
            _ => return None,
        };
        let plain = (0..rank).all(|dim| word(MapField::ElementStride(dim)) == Some(1));
        if !plain || word(MapField::Other)? != 0 {
            return None;
        }
        let dims = (0..rank).map(|dim| word(MapField::Dim(dim)).map(u64::from)).collect::<Option<_>>()?;
        let tile = (0..rank).map(|dim| word(MapField::Box(dim))).collect::<Option<_>>()?;
        let strides = (0..rank - 1).map(|dim| wide(MapField::Stride(dim))).collect::<Option<_>>()?;
        let map = TensorMap { element, address: wide(MapField::Address)?, dims, strides, tile, swizzle };
        map.check().is_ok().then_some(map)
    }

    /// Bytes that one box takes in shared memory, and that its copy counts at the barrier.
    pub fn box_bytes(&self) -> u64 {
        self.tile.iter().map(|&n| u64::from(n)).product::<u64>() * u64::from(self.element.bits()) / 8
    }

    /// Whether the hardware accepts it.
    pub fn check(&self) -> Result<(), Error> {
        let field = |what, found, wanted| Err(Error::Field { what, found, wanted });
        let rank = self.dims.len();
        if !(1..=5).contains(&rank) || self.tile.len() != rank || self.strides.len() + 1 != rank {
            return field("tensor map rank", rank as u64, "1 to 5 dimensions, as many box sizes, one stride fewer");
        }
        if !self.address.is_multiple_of(16) {
            return field("tensor map address", self.address, "a multiple of 16");
        }
        if let Some(&dim) = self.dims.iter().find(|&&dim| dim == 0 || dim > 1 << 32) {
            return field("tensor map dimension", dim, "1 to 2^32 elements");
        }
        if let Some(&stride) = self.strides.iter().find(|&&s| !s.is_multiple_of(16) || s >= 1 << 40) {
            return field("tensor map stride", stride, "a multiple of 16 below 2^40 bytes");
        }
        if let Some(&size) = self.tile.iter().find(|&&size| size == 0 || size > 256) {
            return field("tensor map box size", size.into(), "1 to 256 elements");
        }
        let inner = u64::from(self.tile[0]) * u64::from(self.element.bits()) / 8;
        if inner % 16 != 0 {
            return field("tensor map inner box bytes", inner, "a multiple of 16");
        }
        if self.swizzle != Swizzle::None && inner > self.swizzle.span().into() {
            return field("tensor map inner box bytes", inner, "at most the span of its swizzle");
        }
        Ok(())
    }
}
