//! The builder: a kernel written as a Rust function.
//!
//! Each method appends one instruction (a few append a short, documented sequence) and returns the typed register of
//! its result. Mistakes that the types cannot exclude are remembered and reported by [`Builder::finish`], so kernels
//! read without error handling on every line.

mod arith;
mod copy;
mod flow;
mod memory;
mod sync;
mod tensor_core;
mod warp;

pub use arith::{Convert, Float, Integer, Number, PackedPair};
pub use copy::CopyOptions;
pub use tensor_core::{MatrixOperand, Multiply, MultiplyHalves, WgmmaOptions};

use crate::error::Error;
use crate::instr::{Arith, Guard, Instr, Op, ParamBase, Width};
use crate::kernel::{Kernel, LaunchBounds, Param, ParamType, Phase, Region};
use crate::target::Target;
use crate::types::{Addr, Bank, ParamId, PhaseId, Pred, Reg, Shared, TensorMapAddress, Type, U32, U64, W32};

/// Builds a [`Kernel`].
#[derive(Debug)]
pub struct Builder {
    kernel: Kernel,
    phase: PhaseId,
    guard: Option<Guard>,
    labels: u32,
    refused: Option<Error>,
}

/// A named part of the kernel's shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedRegion {
    /// First byte, from the start of the kernel's shared memory.
    pub offset: u32,
    /// Size in bytes.
    pub bytes: u32,
}

impl SharedRegion {
    /// The address of a byte of the region, known when the kernel is built.
    pub fn at(self, byte: u32) -> Addr<Shared> {
        Addr::shared((self.offset + byte).cast_signed())
    }
}

/// An array of barriers in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barriers(SharedRegion);

impl Barriers {
    /// Bytes from one barrier to the next.
    pub const STRIDE: u32 = 8;

    /// Barrier `index`.
    pub fn at(self, index: u32) -> Addr<Shared> {
        self.0.at(index * Self::STRIDE)
    }

    /// The memory they occupy.
    pub fn region(self) -> SharedRegion {
        self.0
    }
}

/// A kernel parameter that is a tensor map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMapParam(ParamId);

/// A place in a table of words among the kernel's parameters.
#[derive(Clone, Copy, Debug)]
pub struct ParamTable(Reg<U64>);

impl Builder {
    /// Starts a kernel. Its first phase bears its name.
    pub fn new(name: &str, target: Target, launch: LaunchBounds) -> Self {
        let kernel = Kernel {
            name: name.into(),
            target,
            launch,
            rows: [1, 1],
            params: Vec::new(),
            shared: Vec::new(),
            variables: Vec::new(),
            registers: [0; 4],
            phases: vec![Phase { name: name.into(), parent: None }],
            body: Vec::new(),
            foreign: false,
            cooperative: false,
        };
        let mut builder = Builder { kernel, phase: PhaseId(0), guard: None, labels: 0, refused: None };
        builder.check_name(name);
        builder
    }

    /// Ends the kernel with an `exit` and hands it over, unless something in it was refused or [`Kernel::check`] finds
    /// that the hardware would.
    pub fn finish(mut self) -> Result<Kernel, Error> {
        self.phase = PhaseId(0);
        self.exit();
        match self.refused {
            Some(error) => Err(error),
            None => {
                self.kernel.check()?;
                Ok(self.kernel)
            }
        }
    }

    /// Everything `body` appends belongs to the named phase: a comment in the PTX, a name in a simulator's trace.
    pub fn phase<R>(&mut self, name: &str, body: impl FnOnce(&mut Self) -> R) -> R {
        let outer = self.phase;
        let found = self.kernel.phases.iter().position(|phase| phase.name == name && phase.parent == Some(outer));
        self.phase = PhaseId(found.unwrap_or(self.kernel.phases.len()) as u32);
        if found.is_none() {
            self.kernel.phases.push(Phase { name: name.into(), parent: Some(outer) });
        }
        let result = body(self);
        self.phase = outer;
        result
    }

    /// Every instruction `body` appends is executed only by lanes for which `pred` holds. No branch; results of the
    /// skipped lanes keep their old values.
    pub fn when<R>(&mut self, pred: Pred, body: impl FnOnce(&mut Self) -> R) -> R {
        self.guarded(Guard { pred: pred.id(), negated: false }, body)
    }

    /// Like [`Builder::when`], for lanes where `pred` does not hold.
    pub fn unless<R>(&mut self, pred: Pred, body: impl FnOnce(&mut Self) -> R) -> R {
        self.guarded(Guard { pred: pred.id(), negated: true }, body)
    }

    fn guarded<R>(&mut self, guard: Guard, body: impl FnOnce(&mut Self) -> R) -> R {
        let outer = self.guard.replace(guard);
        if outer.is_some() {
            let phase = self.kernel.phase_path(self.phase);
            self.refuse(Error::NestedGuard { phase });
        }
        let result = body(self);
        self.guard = outer;
        result
    }

    /// Appends an instruction as it is. The typed methods cover the usual ones; this covers the rest.
    pub fn emit(&mut self, op: impl Into<Op>) {
        self.kernel.body.push(Instr { guard: self.guard, op: op.into(), phase: self.phase, line: None });
    }

    /// A new register, not yet written.
    pub fn register<T: Type>(&mut self) -> Reg<T> {
        let count = &mut self.kernel.registers[T::DATA.bank().index()];
        *count += 1;
        Reg::numbered(*count - 1)
    }

    /// `COUNT` new registers, not yet written.
    pub fn registers<T: Type, const COUNT: usize>(&mut self) -> [Reg<T>; COUNT] {
        std::array::from_fn(|_| self.register())
    }

    /// Declares a scalar parameter and reads it.
    pub fn param<T: Type>(&mut self, name: &str) -> Reg<T> {
        let param = self.declare(name, ParamType::Scalar(T::DATA));
        let dst = self.register::<T>();
        self.read_param(dst, ParamBase::Param(param), 0);
        dst
    }

    fn read_param<T: Type>(&mut self, dst: Reg<T>, from: ParamBase, offset: u32) {
        let width = match T::DATA.bank() {
            Bank::Pred | Bank::B16 => Width::B16,
            Bank::B32 => Width::B32,
            Bank::B64 => Width::B64,
        };
        self.emit(Arith::Param { dst: dst.id(), width, from, offset });
    }

    /// Declares a parameter that points to global memory, and reads it.
    pub fn pointer(&mut self, name: &str) -> Reg<U64> {
        let param = self.declare(name, ParamType::Pointer);
        let generic = self.register::<U64>();
        self.read_param(generic, ParamBase::Param(param), 0);
        let dst = self.register::<U64>();
        self.emit(Arith::ToGlobal { dst: dst.id(), a: generic.id() });
        dst
    }

    /// Declares a parameter that is a tensor map.
    pub fn tensor_map(&mut self, name: &str) -> TensorMapParam {
        TensorMapParam(self.declare(name, ParamType::TensorMap))
    }

    /// The address of a tensor map, for copies through it.
    pub fn tensor_map_address(&mut self, map: TensorMapParam) -> Reg<TensorMapAddress> {
        let dst = self.register();
        self.emit(Arith::ParamAddress { dst: dst.id(), param: map.0 });
        dst
    }

    /// Declares a parameter that is `count` tensor maps, one after another.
    pub fn tensor_maps(&mut self, name: &str, count: u32) -> TensorMapParam {
        TensorMapParam(self.declare(name, ParamType::TensorMaps(count)))
    }

    /// The address of one of several tensor maps.
    pub fn tensor_map_at(&mut self, maps: TensorMapParam, index: Reg<U32>) -> Reg<TensorMapAddress> {
        let first = self.tensor_map_address(maps);
        self.mul_wide_add(index, 128, first.cast::<U64>()).cast()
    }

    /// Declares a parameter that is a table of `count` words.
    pub fn table(&mut self, name: &str, count: u32) -> ParamTable {
        let param = self.declare(name, ParamType::Words(count));
        let dst = self.register();
        self.emit(Arith::ParamTable { dst: dst.id(), param });
        ParamTable(dst)
    }

    /// The place `index` times `bytes` further on in a table.
    pub fn table_row(&mut self, table: ParamTable, index: Reg<U32>, bytes: u32) -> ParamTable {
        ParamTable(self.mul_wide_add(index, bytes, table.0))
    }

    /// The word `offset` bytes from a place in a table.
    pub fn table_word<T: Type<Width = W32>>(&mut self, table: ParamTable, offset: u32) -> Reg<T> {
        let dst = self.register::<T>();
        self.read_param(dst, ParamBase::Reg(table.0.id()), offset);
        dst
    }

    fn declare(&mut self, name: &str, ty: ParamType) -> ParamId {
        self.check_name(name);
        if self.kernel.params.iter().any(|param| param.name == name) {
            let kernel = self.kernel.name.clone();
            self.refuse(Error::DuplicateName { kernel, what: "parameters", name: name.into() });
        }
        self.kernel.params.push(Param { name: name.into(), ty });
        ParamId(self.kernel.params.len() as u32 - 1)
    }

    /// Sets aside shared memory, after what has been set aside before.
    pub fn shared(&mut self, name: &str, bytes: u32, align: u32) -> SharedRegion {
        if bytes == 0 || !align.is_power_of_two() {
            self.refuse(Error::BadRegion { name: name.into(), bytes, align });
        }
        if self.kernel.shared.iter().any(|region| region.name == name) {
            let kernel = self.kernel.name.clone();
            self.refuse(Error::DuplicateName { kernel, what: "shared regions", name: name.into() });
        }
        let offset = self.kernel.shared_bytes().next_multiple_of(align.max(1));
        self.kernel.shared.push(Region { name: name.into(), offset, bytes, align, zeroed: false });
        SharedRegion { offset, bytes }
    }

    /// Sets aside shared memory for `count` barriers.
    pub fn barriers(&mut self, name: &str, count: u32) -> Barriers {
        Barriers(self.shared(name, count * Barriers::STRIDE, Barriers::STRIDE))
    }

    /// The address of the first byte of a region, in a register.
    pub fn shared_address(&mut self, region: SharedRegion) -> Reg<U32> {
        let dst = self.register();
        self.emit(Arith::SharedAddress { dst: dst.id(), offset: region.offset });
        dst
    }

    fn check_name(&mut self, name: &str) {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !plain || name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            self.refuse(Error::BadName { name: name.into() });
        }
    }

    /// Remembers the first refusal.
    fn refuse(&mut self, error: Error) {
        self.refused.get_or_insert(error);
    }
}
