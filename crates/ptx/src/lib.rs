//! GPU instructions as Rust values.
//!
//! A kernel is written with a [`Builder`]: a Rust function that calls one method per instruction, with loops and branches
//! as closures and the parts of the kernel as named phases. What comes out is a [`Kernel`], plain data that can be printed
//! as PTX ([`Kernel::to_ptx`]), checked, taken apart, changed, or executed by a simulator.
//!
//! ```
//! use ptx::{Addr, Builder, Global, Launch, SpecialRegister, Target, F32, U32};
//!
//! let mut k = Builder::new("scale", Target::Sm90a, Launch { threads: 128, cluster: None, min_blocks: None });
//! let x = k.pointer("x");
//! let factor = k.param::<F32>("factor");
//! let n = k.param::<U32>("n");
//!
//! let block = k.special(SpecialRegister::CtaidX);
//! let thread = k.special(SpecialRegister::TidX);
//! let i = k.mul_add(block, 128, thread);
//! let inside = k.lt(i, n);
//! k.if_(inside, |k| {
//!     let at = k.mul_wide_add(i, 4, x);
//!     let value = k.phase("load", |k| k.load::<F32, Global>(Addr::of(at)));
//!     let scaled = k.phase("multiply", |k| k.mul(value, factor));
//!     k.phase("store", |k| k.store(Addr::<Global>::of(at), scaled));
//! });
//! let kernel = k.finish()?;
//! assert!(kernel.to_ptx().contains("mul.rn.f32"));
//! # Ok::<(), ptx::Error>(())
//! ```
//!
//! Registers are typed ([`Reg<F32>`], [`Reg<U64>`], [`Pred`]); addresses know their window ([`Addr<Shared>`],
//! [`Addr<Global>`]); so most wrong operands do not compile.

pub mod assemble;
pub mod descriptor;
pub mod instr;
pub mod tensor_map;

mod build;
mod check;
mod error;
mod kernel;
mod print;
mod types;

pub use build::{
    Barriers, Builder, Convert, CopyOptions, Float, Integer, MatrixOperand, Multiply, Number, PackedPair, SharedRegion,
    TensorMapParam,
};
pub use check::{Place, Rule, SHARED_LIMIT, Violation};
pub use error::Error;
pub use instr::{Comparison, CtaGroup, Instr, Label, Op, RegisterChange, SpecialRegister};
pub use kernel::{Kernel, Launch, Param, ParamId, ParamType, Phase, PhaseId, Region};
pub use types::*;
