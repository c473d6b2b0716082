//! What a run needs besides the kernel: the grid and the arguments.

use ptx::tensor_map::TensorMap;
use ptx::{DataType, Kernel, ParamType};

use crate::error::FaultKind;
use crate::limits::Limits;
use crate::memory::Buffer;

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// For a `U32` parameter.
    U32(u32),
    /// For an `S32` parameter.
    S32(i32),
    /// For an `F32` parameter.
    F32(f32),
    /// For a `U64` parameter.
    U64(u64),
    /// For a pointer parameter: an address of global memory.
    Pointer(u64),
    /// For a tensor map parameter.
    Map(TensorMap),
    /// For a parameter of several tensor maps: at most as many.
    Maps(Vec<TensorMap>),
    /// For a table of words: at most as many.
    Words(Vec<u32>),
}

impl From<Buffer> for Arg {
    fn from(buffer: Buffer) -> Self {
        Arg::Pointer(buffer.address)
    }
}

impl From<u32> for Arg {
    fn from(value: u32) -> Self {
        Arg::U32(value)
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Self {
        Arg::F32(value)
    }
}

impl From<TensorMap> for Arg {
    fn from(map: TensorMap) -> Self {
        Arg::Map(map)
    }
}

impl Arg {
    fn suits(&self, ty: ParamType) -> bool {
        matches!(
            (self, ty),
            (Arg::U32(_), ParamType::Scalar(DataType::U32))
                | (Arg::S32(_), ParamType::Scalar(DataType::S32))
                | (Arg::F32(_), ParamType::Scalar(DataType::F32))
                | (Arg::U64(_), ParamType::Scalar(DataType::U64))
                | (Arg::Pointer(_), ParamType::Pointer)
                | (Arg::Map(_), ParamType::TensorMap)
        ) || match (self, ty) {
            (Arg::Maps(maps), ParamType::TensorMaps(count)) => maps.len() <= count as usize,
            (Arg::Words(words), ParamType::Words(count)) => words.len() <= count as usize,
            _ => false,
        }
    }

    /// The bits a scalar parameter holds; nothing for tensor maps.
    pub(crate) fn bits(&self) -> Option<u64> {
        match *self {
            Arg::U32(value) => Some(value.into()),
            Arg::S32(value) => Some(value.cast_unsigned().into()),
            Arg::F32(value) => Some(value.to_bits().into()),
            Arg::U64(value) | Arg::Pointer(value) => Some(value),
            Arg::Map(_) | Arg::Maps(_) | Arg::Words(_) => None,
        }
    }
}

/// A launch: how many blocks, with which arguments. Threads per block and clusters are the kernel's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Invocation {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// One argument for each parameter, in order.
    pub args: Vec<Arg>,
}

impl Invocation {
    /// Address of the first parameter.
    pub(crate) const PARAMS: u64 = 0x1000_0000;
    /// Distance between two parameters' addresses: more than all of them may take.
    pub(crate) const PARAM_STRIDE: u64 = 1 << 16;

    /// The parameter at an address, and the byte in it.
    fn arg_at(&self, address: u64) -> Option<(&Arg, u64)> {
        let offset = address.checked_sub(Self::PARAMS)?;
        Some((self.args.get((offset / Self::PARAM_STRIDE) as usize)?, offset % Self::PARAM_STRIDE))
    }

    /// The word of a table at an address.
    pub(crate) fn word_at(&self, address: u64) -> Option<u32> {
        match self.arg_at(address)? {
            (Arg::Words(words), byte) if byte.is_multiple_of(4) => words.get(byte as usize / 4).copied(),
            _ => None,
        }
    }

    /// The tensor map at a generic address.
    pub(crate) fn map_at(&self, address: u64) -> Option<&TensorMap> {
        match self.arg_at(address)? {
            (Arg::Map(map), 0) => Some(map),
            (Arg::Maps(maps), byte) if byte.is_multiple_of(128) => maps.get(byte as usize / 128),
            _ => None,
        }
    }

    /// Whether the kernel can be launched so on a device.
    pub(crate) fn check(&self, kernel: &Kernel, limits: &Limits) -> Result<(), FaultKind> {
        let over =
            |what, asked: u32, limit: u32| FaultKind::OverLimit { what, asked: asked.into(), limit: limit.into() };
        let threads = kernel.launch.threads;
        if threads > limits.threads || threads == 0 {
            return Err(over("threads of a block", threads, limits.threads));
        }
        if !threads.is_multiple_of(32) {
            let (what, found) = ("threads of a block", threads.into());
            return Err(FaultKind::BadOperand { what, found, wanted: "whole warps of 32" });
        }
        if kernel.shared_bytes() > limits.shared_bytes {
            return Err(over("bytes of shared memory", kernel.shared_bytes(), limits.shared_bytes));
        }
        let declared = kernel.launch.min_blocks.unwrap_or(1);
        if declared > limits.residents(kernel) {
            return Err(over("blocks that a multiprocessor is to hold", declared, limits.residents(kernel)));
        }
        let shape = kernel.launch.cluster.unwrap_or([1, 1, 1]);
        let blocks: u32 = shape.iter().product();
        if blocks > limits.cluster_blocks || blocks == 0 {
            return Err(over("blocks of a cluster", blocks, limits.cluster_blocks));
        }
        self.check_args(kernel, shape)
    }

    fn check_args(&self, kernel: &Kernel, shape: [u32; 3]) -> Result<(), FaultKind> {
        let bad = |what: String, remedy| Err(FaultKind::BadLaunch { what, remedy });
        if self.grid.iter().zip(shape).any(|(blocks, size)| *blocks == 0 || blocks % size != 0) {
            let what = format!("a grid of {:?} blocks in clusters of {shape:?}", self.grid);
            return bad(what, "make every side of the grid a positive multiple of the cluster's");
        }
        if self.args.len() != kernel.params.len() {
            let what = format!("{} arguments for {} parameters", self.args.len(), kernel.params.len());
            return bad(what, "give one argument for each parameter, in order");
        }
        for (arg, param) in self.args.iter().zip(&kernel.params) {
            if !arg.suits(param.ty) {
                let what = format!("{arg:?} for parameter {} of type {:?}", param.name, param.ty);
                return bad(what, "give an argument of the parameter's type");
            }
            let maps = match arg {
                Arg::Map(map) => std::slice::from_ref(map),
                Arg::Maps(maps) => maps,
                _ => &[],
            };
            if let Some(error) = maps.iter().find_map(|map| map.check().err()) {
                return bad(format!("tensor map {}: {error}", param.name), "see ptx::tensor_map");
            }
        }
        Ok(())
    }
}
