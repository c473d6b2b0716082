//! What a run needs besides the kernel: the grid and the arguments.

use ptx::tensor_map::TensorMap;
use ptx::{DataType, Kernel, ParamId, ParamType};

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
    /// For a parameter that is bytes: at most as many, and the tensor maps that begin at some of them.
    Bytes(Vec<u8>, Vec<(u32, TensorMap)>),
}

/// Bytes of a tensor map among parameters, and what it begins at a multiple of.
const MAP_BYTES: u64 = 128;
const MAP_ALIGN: u64 = 64;

/// Little-endian bytes as a number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
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
    /// A structure for a parameter, made of parts at byte offsets; what no part covers is zero, as padding that a host
    /// has cleared. If there is something wrong with a part, a sentence says what.
    pub fn structure(parts: Vec<(u64, Arg)>, ty: ParamType) -> Result<Arg, String> {
        let (size, align) = ty.layout();
        let (mut bytes, mut maps) = (vec![0; size as usize], Vec::new());
        let mut taken = Vec::with_capacity(parts.len());
        for (at, value) in parts {
            let whose = |what: String| format!("the part at {at}: {what}");
            let content = match &value {
                Arg::U32(value) => value.to_le_bytes().to_vec(),
                Arg::S32(value) => value.to_le_bytes().to_vec(),
                Arg::F32(value) => value.to_le_bytes().to_vec(),
                Arg::U64(value) | Arg::Pointer(value) => value.to_le_bytes().to_vec(),
                Arg::Bytes(bytes, _) => bytes.clone(),
                // What the bytes of a map are nobody may ask.
                _ => vec![0; TensorMap::BYTES],
            };
            let end = at.checked_add(content.len() as u64).filter(|end| *end <= size);
            let end =
                end.ok_or_else(|| whose(format!("its {} bytes reach beyond the parameter's {size}", content.len())))?;
            bytes[at as usize..end as usize].copy_from_slice(&content);
            taken.push((at, end));
            if let Arg::Map(map) = value {
                if !at.is_multiple_of(MAP_ALIGN) || align < MAP_ALIGN {
                    let what = format!("a tensor map begins at a multiple of {MAP_ALIGN} bytes, in a parameter");
                    return Err(whose(format!("{what} that is aligned to as many; this one is to {align}")));
                }
                maps.push((at as u32, map));
            }
        }
        taken.sort_unstable();
        if let Some(pair) = taken.windows(2).find(|pair| pair[1].0 < pair[0].1) {
            let ((first, end), (second, _)) = (pair[0], pair[1]);
            return Err(format!("the part at {first} ends before byte {end}, and the part at {second} overlaps it"));
        }
        Ok(Arg::Bytes(bytes, maps))
    }

    fn suits(&self, ty: ParamType, foreign: bool) -> bool {
        let (size, _) = ty.layout();
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
            // What a text declares has a size, and no meaning.
            (Arg::U32(_) | Arg::S32(_) | Arg::F32(_), ParamType::Bytes { .. } | ParamType::Scalar(_)) if foreign => {
                size == 4
            }
            (Arg::U64(_) | Arg::Pointer(_), ParamType::Bytes { .. } | ParamType::Scalar(_)) if foreign => size == 8,
            (Arg::Bytes(bytes, maps), _) if foreign => {
                let inside = |at: u32| u64::from(at) + MAP_BYTES <= size && u64::from(at).is_multiple_of(MAP_ALIGN);
                bytes.len() as u64 <= size && maps.iter().all(|(at, _)| inside(*at))
            }
            (Arg::Map(_), ParamType::Bytes { size: 128.., .. }) => true,
            _ => false,
        }
    }

    /// Some of its bytes as a number; nothing where they are not all there, or belong to a tensor map.
    fn read(&self, from: u64, bytes: u32) -> Option<u64> {
        let (from, end) = (usize::try_from(from).ok()?, usize::try_from(from + u64::from(bytes)).ok()?);
        let part = |all: &[u8]| all.get(from..end).map(number);
        match self {
            Arg::U32(value) => part(&value.to_le_bytes()),
            Arg::S32(value) => part(&value.to_le_bytes()),
            Arg::F32(value) => part(&value.to_le_bytes()),
            Arg::U64(value) | Arg::Pointer(value) => part(&value.to_le_bytes()),
            Arg::Words(words) => {
                let first = from / 4;
                let near: Vec<u8> =
                    words.get(first..words.len().min(first + 3))?.iter().flat_map(|word| word.to_le_bytes()).collect();
                near.get(from % 4..from % 4 + bytes as usize).map(number)
            }
            Arg::Bytes(all, maps) => {
                let apart = |at: u32| end <= at as usize || at as usize + MAP_BYTES as usize <= from;
                maps.iter().all(|(at, _)| apart(*at)).then(|| part(all)).flatten()
            }
            Arg::Map(_) | Arg::Maps(_) => None,
        }
    }

    /// The tensor map that begins at one of its bytes.
    fn map(&self, byte: u64) -> Option<&TensorMap> {
        match self {
            Arg::Map(map) if byte == 0 => Some(map),
            Arg::Maps(maps) if byte.is_multiple_of(MAP_BYTES) => maps.get((byte / MAP_BYTES) as usize),
            Arg::Bytes(_, maps) => maps.iter().find(|(at, _)| u64::from(*at) == byte).map(|(_, map)| map),
            _ => None,
        }
    }

    /// All tensor maps in it.
    fn maps(&self) -> impl Iterator<Item = &TensorMap> {
        let (alone, tagged): (&[TensorMap], &[(u32, TensorMap)]) = match self {
            Arg::Map(map) => (std::slice::from_ref(map), &[]),
            Arg::Maps(maps) => (maps, &[]),
            Arg::Bytes(_, maps) => (&[], maps),
            _ => (&[], &[]),
        };
        alone.iter().chain(tagged.iter().map(|(_, map)| map))
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
    const PARAMS: u64 = 0x1000_0000;
    /// Distance between two parameters' addresses: more than all of them may take, so that none is reached from
    /// another.
    const PARAM_STRIDE: u64 = 1 << 16;

    /// The address of a parameter, in its own window and as a generic one.
    pub(crate) fn param_address(param: ParamId) -> u64 {
        Self::PARAMS + u64::from(param.0) * Self::PARAM_STRIDE
    }

    /// The parameter at an address, and the byte in it.
    fn arg_at(&self, address: u64) -> Option<(&Arg, u64)> {
        let offset = address.checked_sub(Self::PARAMS)?;
        Some((self.args.get((offset / Self::PARAM_STRIDE) as usize)?, offset % Self::PARAM_STRIDE))
    }

    /// Whether an address is that of a part of a parameter.
    pub(crate) fn is_param(&self, address: u64) -> bool {
        self.arg_at(address).is_some()
    }

    /// A part of a parameter, at an address that must be a multiple of its size.
    pub(crate) fn param_at(&self, address: u64, bytes: u32) -> Option<u64> {
        let (arg, byte) = self.arg_at(address)?;
        byte.is_multiple_of(bytes.into()).then(|| arg.read(byte, bytes)).flatten()
    }

    /// The tensor map at a generic address.
    pub(crate) fn map_at(&self, address: u64) -> Option<&TensorMap> {
        let (arg, byte) = self.arg_at(address)?;
        arg.map(byte)
    }

    /// Whether the kernel can be launched so on a device.
    pub(crate) fn check(&self, kernel: &Kernel, limits: &Limits) -> Result<(), FaultKind> {
        let over =
            |what, asked: u32, limit: u32| FaultKind::OverLimit { what, asked: asked.into(), limit: limit.into() };
        let threads = kernel.launch.threads;
        if threads > limits.threads || threads == 0 {
            return Err(over("threads of a block", threads, limits.threads));
        }
        let [x, y, z] = kernel.block();
        if x.checked_mul(y).and_then(|row| row.checked_mul(z)) != Some(threads) {
            let what = format!("blocks of {threads} threads in rows of {y} and {z}");
            return Err(FaultKind::BadLaunch { what, remedy: "give the kernel rows that its threads fill" });
        }
        if kernel.shared_bytes() > limits.shared_bytes {
            return Err(over("bytes of shared memory", kernel.shared_bytes(), limits.shared_bytes));
        }
        let declared = kernel.launch.min_blocks.unwrap_or(1);
        if declared > limits.residents(kernel) {
            return Err(over("blocks that a multiprocessor is to hold", declared, limits.residents(kernel)));
        }
        let shape = kernel.launch.cluster.unwrap_or([1, 1, 1]);
        let blocks = shape.iter().try_fold(1u32, |blocks, side| blocks.checked_mul(*side)).unwrap_or(u32::MAX);
        if blocks > limits.cluster_blocks || blocks == 0 {
            return Err(over("blocks of a cluster", blocks, limits.cluster_blocks));
        }
        let most = limits.clusters(blocks) * blocks * limits.residents(kernel);
        let asked = self.grid.iter().map(|side| u64::from(*side)).fold(1, u64::saturating_mul);
        if kernel.cooperative && asked > most.into() {
            return Err(FaultKind::OverLimit { what: "blocks of a cooperative launch", asked, limit: most.into() });
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
            if !arg.suits(param.ty, kernel.foreign) {
                let what = format!("{arg:?} for parameter {} of type {:?}", param.name, param.ty);
                return bad(what, "give an argument of the parameter's type");
            }
            if let Some(error) = arg.maps().find_map(|map| map.check().err()) {
                return bad(format!("tensor map {}: {error}", param.name), "see ptx::tensor_map");
            }
        }
        Ok(())
    }
}
