//! Registers, operands and addresses, in two layers.
//!
//! Below: plain data. A [`RegId`] is a bank and a number, an [`Operand`] is a register or raw bits, an [`Address`]
//! is a base and a byte offset. Instructions hold only these, so a printer, a checker or a simulator matches on
//! ordinary values.
//!
//! Above: a typed façade. [`Reg<T>`], [`Value<T>`] and [`Addr<S>`] carry what the bits mean in the Rust type, so that
//! an f32 added to an address, or a shared address where a global one belongs, does not compile. Registers are banked
//! by width alone, which is all that PTX demands; reading the same bits as another type of the same width is therefore
//! free ([`Reg::cast`]).

use std::fmt;
use std::marker::PhantomData;

/// A bank of registers: all of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bank {
    /// One-bit predicates, printed `%p`.
    Pred,
    /// 16-bit registers, printed `%h`.
    B16,
    /// 32-bit registers, printed `%r`.
    B32,
    /// 64-bit registers, printed `%d`.
    B64,
}

impl Bank {
    /// Every bank, in the order of [`Bank::index`].
    pub const ALL: [Bank; 4] = [Bank::Pred, Bank::B16, Bank::B32, Bank::B64];

    /// A small number for tables with one row per bank.
    #[inline]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Bits in one register of this bank.
    #[inline]
    pub fn bits(self) -> u32 {
        match self {
            Bank::Pred => 1,
            Bank::B16 => 16,
            Bank::B32 => 32,
            Bank::B64 => 64,
        }
    }
}

/// One register: its bank, and its number within the bank (dense from zero).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegId {
    /// Which bank, hence how wide.
    pub bank: Bank,
    /// Which register of the bank.
    pub index: u32,
}

impl fmt::Display for RegId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.bank {
            Bank::Pred => 'p',
            Bank::B16 => 'h',
            Bank::B32 => 'r',
            Bank::B64 => 'd',
        };
        write!(f, "%{letter}{}", self.index)
    }
}

/// How an arithmetic instruction reads the bits of its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// A predicate.
    Pred,
    /// 8-bit unsigned integer, in the low bits of a wider register: for conversions alone.
    U8,
    /// 8-bit two's complement integer, likewise.
    S8,
    /// 16-bit unsigned integer.
    U16,
    /// 16-bit two's complement integer.
    S16,
    /// 32-bit unsigned integer.
    U32,
    /// 32-bit two's complement integer.
    S32,
    /// 64-bit unsigned integer.
    U64,
    /// 64-bit two's complement integer.
    S64,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// Two halves, element 0 in the low 16 bits.
    F16x2,
    /// Two bfloat16s, element 0 in the low 16 bits.
    Bf16x2,
    /// IEEE single.
    F32,
    /// Two singles, element 0 in the low 32 bits.
    F32x2,
    /// IEEE double.
    F64,
}

impl DataType {
    /// Every type.
    pub const ALL: [DataType; 16] = [
        DataType::Pred,
        DataType::U8,
        DataType::S8,
        DataType::U16,
        DataType::S16,
        DataType::U32,
        DataType::S32,
        DataType::U64,
        DataType::S64,
        DataType::F16,
        DataType::Bf16,
        DataType::F16x2,
        DataType::Bf16x2,
        DataType::F32,
        DataType::F32x2,
        DataType::F64,
    ];

    /// The bank whose registers hold this type.
    #[inline]
    pub fn bank(self) -> Bank {
        match self {
            DataType::Pred => Bank::Pred,
            DataType::U8 | DataType::S8 => Bank::B16,
            DataType::U16 | DataType::S16 | DataType::F16 | DataType::Bf16 => Bank::B16,
            DataType::U32 | DataType::S32 | DataType::F16x2 | DataType::Bf16x2 | DataType::F32 => Bank::B32,
            DataType::U64 | DataType::S64 | DataType::F32x2 | DataType::F64 => Bank::B64,
        }
    }

    /// Whether PTX accepts a literal of this type as an operand. It has none for half precision, nor for pairs.
    pub fn has_literals(self) -> bool {
        use DataType::{Bf16, Bf16x2, F16, F16x2, F32x2};
        !matches!(self, F16 | Bf16 | F16x2 | Bf16x2 | F32x2)
    }

    /// The integer of twice the width.
    pub(crate) fn twice(self) -> DataType {
        match self {
            DataType::U16 => DataType::U32,
            DataType::S16 => DataType::S32,
            DataType::S32 => DataType::S64,
            _ => DataType::U64,
        }
    }

    /// Whether it is an integer that can be negative.
    #[inline]
    pub fn is_signed(self) -> bool {
        matches!(self, DataType::S8 | DataType::S16 | DataType::S32 | DataType::S64)
    }

    /// Whether its values are floats, or pairs of them.
    #[inline]
    pub fn is_float(self) -> bool {
        use DataType::{Bf16, Bf16x2, F16, F16x2, F32, F32x2, F64};
        matches!(self, F16 | Bf16 | F16x2 | Bf16x2 | F32 | F32x2 | F64)
    }

    /// Bits of a value: as many as a register of its bank has, unless it is narrower than all of them.
    #[inline]
    pub fn bits(self) -> u32 {
        match self {
            DataType::U8 | DataType::S8 => 8,
            other => other.bank().bits(),
        }
    }
}

/// A Rust type that stands for the meaning of a register's bits.
pub trait Type: Copy + fmt::Debug + 'static {
    /// How arithmetic reads the bits.
    const DATA: DataType;
    /// The width as a type ([`W1`], [`W16`], [`W32`], [`W64`]), so that [`Reg::cast`] can demand equal widths.
    type Width: Copy;
}

/// Width of a predicate.
#[derive(Clone, Copy, Debug)]
pub struct W1;
/// Width of 16-bit registers.
#[derive(Clone, Copy, Debug)]
pub struct W16;
/// Width of 32-bit registers.
#[derive(Clone, Copy, Debug)]
pub struct W32;
/// Width of 64-bit registers.
#[derive(Clone, Copy, Debug)]
pub struct W64;

macro_rules! types {
    ($($(#[$doc:meta])* $name:ident: $data:ident, $width:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl Type for $name {
            const DATA: DataType = DataType::$data;
            type Width = $width;
        }
    )*};
}

types! {
    /// A predicate.
    Bool: Pred, W1;
    /// 16-bit unsigned integer.
    U16: U16, W16;
    /// IEEE half.
    F16: F16, W16;
    /// bfloat16.
    Bf16: Bf16, W16;
    /// 32-bit unsigned integer, or 32 bits without further meaning.
    U32: U32, W32;
    /// 32-bit signed integer.
    S32: S32, W32;
    /// IEEE single.
    F32: F32, W32;
    /// Two halves.
    F16x2: F16x2, W32;
    /// Two bfloat16s.
    Bf16x2: Bf16x2, W32;
    /// An address in tensor memory (lane in the high half, column in the low half).
    TensorAddress: U32, W32;
    /// The 32-bit descriptor that tells a `tcgen05.mma` its shape and formats.
    MmaShape: U32, W32;
    /// 64-bit unsigned integer, or a global address.
    U64: U64, W64;
    /// A `wgmma` matrix descriptor, see [`crate::descriptor::WgmmaDescriptor`].
    WgmmaMatrix: U64, W64;
    /// A `tcgen05` matrix descriptor, see [`crate::descriptor::Tcgen05Descriptor`].
    Tcgen05Matrix: U64, W64;
    /// The generic address of a tensor map.
    TensorMapAddress: U64, W64;
    /// An L2 eviction policy.
    CachePolicy: U64, W64;
}

/// A register known to hold a `T`.
pub struct Reg<T: Type> {
    id: RegId,
    of: PhantomData<T>,
}

/// A predicate register.
pub type Pred = Reg<Bool>;

impl<T: Type> Clone for Reg<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Type> Copy for Reg<T> {}

impl<T: Type> fmt::Debug for Reg<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.id, T::DATA)
    }
}

impl<T: Type> Reg<T> {
    /// Only the builder makes registers, so that every register of a kernel is declared.
    pub(crate) fn numbered(index: u32) -> Self {
        Reg { id: RegId { bank: T::DATA.bank(), index }, of: PhantomData }
    }

    /// The register as plain data.
    pub fn id(self) -> RegId {
        self.id
    }

    /// The same bits read as another type of the same width. Costs no instruction.
    pub fn cast<U: Type<Width = T::Width>>(self) -> Reg<U> {
        Reg { id: self.id, of: PhantomData }
    }
}

/// A source operand: a register or a literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// The value of a register.
    Reg(RegId),
    /// These bits, zero-extended: a negative `S32` or an f32 is kept in the low 32 bits.
    Imm(u64),
}

/// A source operand known to be a `T`.
#[derive(Clone, Copy, Debug)]
pub struct Value<T: Type> {
    operand: Operand,
    of: PhantomData<T>,
}

impl<T: Type> Value<T> {
    fn literal(bits: u64) -> Self {
        Value { operand: Operand::Imm(bits), of: PhantomData }
    }

    /// The operand as plain data.
    pub fn operand(self) -> Operand {
        self.operand
    }
}

impl<T: Type> From<Reg<T>> for Value<T> {
    fn from(reg: Reg<T>) -> Self {
        Value { operand: Operand::Reg(reg.id), of: PhantomData }
    }
}

impl From<bool> for Value<Bool> {
    fn from(value: bool) -> Self {
        Value::literal(value.into())
    }
}

impl From<u16> for Value<U16> {
    fn from(value: u16) -> Self {
        Value::literal(value.into())
    }
}

impl From<u32> for Value<U32> {
    fn from(value: u32) -> Self {
        Value::literal(value.into())
    }
}

impl From<i32> for Value<S32> {
    fn from(value: i32) -> Self {
        Value::literal(value.cast_unsigned().into())
    }
}

impl From<u64> for Value<U64> {
    fn from(value: u64) -> Self {
        Value::literal(value)
    }
}

impl From<f32> for Value<F32> {
    fn from(value: f32) -> Self {
        Value::literal(value.to_bits().into())
    }
}

/// A window of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Device memory; 64-bit addresses.
    Global,
    /// This block's shared memory; 32-bit addresses.
    Shared,
    /// The shared memory of any block of the cluster; 32-bit addresses. An address of this block's own shared memory
    /// is also an address here, and means the same bytes.
    Cluster,
    /// Any of them: a 64-bit address says by itself which window it is in.
    Generic,
}

impl Space {
    /// Whether its addresses have 64 bits; the others have 32.
    #[inline]
    pub fn is_wide(self) -> bool {
        matches!(self, Space::Global | Space::Generic)
    }
}

/// Where an address starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Base {
    /// The address in a register: 64 bits wide for global memory and generic addresses, 32 bits for shared.
    Reg(RegId),
    /// The start of the kernel's own shared memory.
    SharedStart,
}

/// A memory operand: a base and a byte offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// What the offset counts from.
    pub base: Base,
    /// Bytes from the base.
    pub offset: i32,
}

/// A Rust type that stands for a window of memory.
pub trait InSpace: Copy + fmt::Debug + 'static {
    /// The window.
    const SPACE: Space;
    /// The type of an address register for it.
    type Pointer: Type;
}

/// Device memory.
#[derive(Clone, Copy, Debug)]
pub struct Global;
/// This block's shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Shared;
/// Shared memory anywhere in the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Cluster;

impl InSpace for Global {
    const SPACE: Space = Space::Global;
    type Pointer = U64;
}

impl InSpace for Shared {
    const SPACE: Space = Space::Shared;
    type Pointer = U32;
}

impl InSpace for Cluster {
    const SPACE: Space = Space::Cluster;
    type Pointer = U32;
}

/// A memory operand known to be in window `S`.
#[derive(Clone, Copy, Debug)]
pub struct Addr<S: InSpace> {
    address: Address,
    of: PhantomData<S>,
}

impl<S: InSpace> Addr<S> {
    /// The address a register holds.
    pub fn of(pointer: Reg<S::Pointer>) -> Self {
        Addr { address: Address { base: Base::Reg(pointer.id), offset: 0 }, of: PhantomData }
    }

    /// This address moved by a constant number of bytes; costs no instruction.
    pub fn plus(mut self, bytes: i32) -> Self {
        self.address.offset += bytes;
        self
    }

    /// The address as plain data.
    pub fn address(self) -> Address {
        self.address
    }
}

impl Addr<Shared> {
    /// A byte of the kernel's own shared memory, counted from its start.
    pub fn shared(offset: i32) -> Self {
        Addr { address: Address { base: Base::SharedStart, offset }, of: PhantomData }
    }

    /// The same bytes, addressed as part of the cluster's shared memory.
    pub fn in_cluster(self) -> Addr<Cluster> {
        Addr { address: self.address, of: PhantomData }
    }
}

/// Who takes part in a synchronisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The threads of one block.
    Block,
    /// The threads of one cluster.
    Cluster,
    /// All threads on the GPU.
    Gpu,
    /// All threads and the host.
    System,
}

/// Index into [`crate::Kernel::params`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParamId(pub u32);

/// Index into [`crate::Kernel::phases`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PhaseId(pub u32);
