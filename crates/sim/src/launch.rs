//! What a run needs besides the kernel: the device's limits, its memory, the grid and the arguments.

use ptx::tensor_map::TensorMap;
use ptx::{DataType, Kernel, ParamType};

use crate::error::{Fault, FaultKind};
use crate::machine;
use crate::memory::{Buffer, GlobalMemory};
use crate::profile::Profile;
use crate::schedule::Schedule;

/// What there is of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of shared memory a block may have.
    pub shared_bytes: u32,
    /// Threads a block may have.
    pub threads: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers: u32,
    /// Multiprocessors: how many blocks run at the same time.
    pub multiprocessors: u32,
    /// Blocks a cluster may have.
    pub cluster_blocks: u32,
    /// Instructions, counted by warp, after which a run is given up. A GPU has no such limit; a broken kernel needs one.
    pub instructions: u64,
}

impl Limits {
    /// An H200.
    pub fn h200() -> Self {
        Limits {
            shared_bytes: 232_448,
            threads: 1024,
            registers: 65_536,
            multiprocessors: 132,
            cluster_blocks: 8,
            instructions: 500_000_000,
        }
    }

    /// A B200.
    pub fn b200() -> Self {
        Limits { multiprocessors: 148, ..Limits::h200() }
    }

    /// Registers per thread that a kernel starts with: what its declared occupancy leaves it.
    pub(crate) fn launch_registers(&self, kernel: &Kernel) -> u32 {
        let threads = kernel.launch.threads.next_multiple_of(32).max(32) * kernel.launch.min_blocks.unwrap_or(1).max(1);
        (self.registers / threads / 8 * 8).min(256)
    }
}

/// Whose word counts where published kernels rely on more than the ISA promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rules {
    /// Theirs. What threads have read may be overwritten by a copy without a proxy fence; and to overwrite what was read, or what
    /// another copy wrote, it is enough that it is over, told by however relaxed a barrier, of whatever scope.
    #[default]
    Practice,
    /// The ISA's: every access comes after those it conflicts with by release and acquire, and by a fence between proxies.
    Letter,
}

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

/// A device: limits and memory. Buffers stay as a kernel left them, so kernels can follow each other.
#[derive(Clone, Debug)]
pub struct Gpu {
    limits: Limits,
    rules: Rules,
    memory: GlobalMemory,
}

impl Gpu {
    /// A device without buffers.
    pub fn new(limits: Limits) -> Self {
        Gpu { limits, rules: Rules::default(), memory: GlobalMemory::default() }
    }

    /// The same device with other rules: [`Rules::Letter`] is the strict mode.
    pub fn with_rules(self, rules: Rules) -> Self {
        Gpu { rules, ..self }
    }

    /// A buffer that holds these bytes.
    pub fn upload(&mut self, name: &str, bytes: &[u8]) -> Buffer {
        self.memory.add(name, bytes.to_vec(), true)
    }

    /// A buffer that nobody has written yet.
    pub fn alloc(&mut self, name: &str, bytes: usize) -> Buffer {
        self.memory.add(name, vec![0; bytes], false)
    }

    /// Declares a buffer to be what the preceding grid writes: the kernel may touch it only after `griddepcontrol.wait`.
    pub fn await_predecessor(&mut self, buffer: Buffer) {
        let found = self.memory.buffers.iter_mut().find(|contents| contents.address == buffer.address);
        found.into_iter().for_each(|contents| contents.awaited = true);
    }

    /// The bytes of a buffer, or how many of its leading bytes were written before the first that was not.
    pub fn download(&self, buffer: Buffer) -> Result<&[u8], usize> {
        let found = self.memory.buffers.iter().find(|contents| contents.address == buffer.address);
        let contents = found.ok_or(0usize)?;
        match contents.written.missing(0, contents.data.len()) {
            None => Ok(&contents.data),
            Some(first) => Err(first),
        }
    }

    /// A buffer's bytes as f32, with NaN in place of those never written.
    pub fn floats(&self, buffer: Buffer) -> Vec<f32> {
        let Some(contents) = self.memory.buffers.iter().find(|contents| contents.address == buffer.address) else {
            return Vec::new();
        };
        let word = |at: usize| [0, 1, 2, 3].map(|byte| contents.data[4 * at + byte]);
        let value = |at: usize| match contents.written.missing(4 * at, 4) {
            None => f32::from_le_bytes(word(at)),
            Some(_) => f32::NAN,
        };
        (0..contents.data.len() / 4).map(value).collect()
    }

    /// Runs kernels of which each may begin before its predecessor has ended (programmatic dependent launch). What an earlier one
    /// has written, or still reads, may be touched only behind `griddepcontrol.wait`; and that tells of the grids before the
    /// predecessor only if the predecessor has waited, too.
    pub fn run_sequence(
        &mut self,
        sequence: &[(&Kernel, &Invocation)],
        schedule: Schedule,
    ) -> Result<Vec<Profile>, Box<Fault>> {
        machine::run(sequence, (&self.limits, self.rules), &mut self.memory, schedule)
    }

    /// Runs a kernel to its end under a schedule.
    pub fn run(&mut self, kernel: &Kernel, launch: &Invocation, schedule: Schedule) -> Result<Profile, Box<Fault>> {
        let mut profiles = self.run_sequence(&[(kernel, launch)], schedule)?;
        Ok(profiles.pop().unwrap_or_default())
    }
}
