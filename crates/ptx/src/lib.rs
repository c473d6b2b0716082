//! GPU instructions as Rust values: write a kernel in Rust, print it as PTX, check it, assemble it, without a GPU and
//! without a CUDA toolkit.
//!
//! A kernel is written with a [`Builder`]: a Rust function that calls one method per instruction, with loops and
//! branches as closures and the parts of the kernel as named phases. What comes out is a [`Kernel`], plain data that
//! can be printed, checked, taken apart, changed, or executed by a simulator. Registers are typed ([`Reg<F32>`],
//! [`Reg<U64>`], [`Pred`]); addresses know their window ([`Addr<Shared>`], [`Addr<Global>`]); so most wrong operands do
//! not compile. There is no second language and no macro: what a kernel repeats, a Rust loop unrolls; what two kernels
//! share, a Rust function emits.
//!
//! # A kernel, from the first line to machine code
//!
//! Each block scales 512 numbers: a bulk copy brings them to shared memory while the threads do something else, a
//! barrier there counts the bytes, every thread works on four of them, and the results go back.
//!
//! **Write it** as phases, each a function of the builder and of what it needs. The comment in the PTX, the message of
//! the checker and the trace of a simulator will call them by these names.
//!
//! ```
//! use ptx::{
//!     Addr, Barriers, Builder, CopyOptions, Error, F32, Global, Kernel, LaunchBounds, Pred, Reg, Shared, SharedRegion,
//!     SpecialRegister, Target, U32, U64,
//! };
//!
//! const NUMBERS: u32 = 512;
//!
//! fn scale() -> Result<Kernel, Error> {
//!     let bounds = LaunchBounds { threads: 128, cluster: None, min_blocks: None };
//!     let mut k = Builder::new("scale", Target::Sm90a, bounds);
//!     let data = k.pointer("data");
//!     let factor = k.param::<F32>("factor");
//!     let tile = k.shared("tile", NUMBERS * 4, 16);
//!     let landed = k.barriers("landed", 1);
//!
//!     let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
//!     let source = k.mul_wide_add(block, NUMBERS * 4, data);
//!     let first = k.eq(thread, 0);
//!     k.phase("prepare", |k| prepare(k, landed, first));
//!     k.phase("load", |k| load(k, tile, source, landed, first));
//!     let scaled = k.phase("multiply", |k| multiply(k, tile, thread, factor));
//!     k.phase("store", |k| {
//!         let mine = k.mul_wide_add(thread, 16, source);
//!         k.store_vector(Addr::<Global>::of(mine), scaled);
//!     });
//!     k.finish()
//! }
//!
//! /// One thread makes the barrier, which one arrival and the bytes announced with it complete; the others wait.
//! fn prepare(k: &mut Builder, landed: Barriers, first: Pred) {
//!     k.if_(first, |k| {
//!         k.barrier_init(landed.at(0), 1);
//!         k.fence_barrier_init();
//!     });
//!     k.sync_threads();
//! }
//!
//! /// One thread announces the bytes and starts the copy; everyone waits for the barrier's first phase.
//! fn load(k: &mut Builder, tile: SharedRegion, source: Reg<U64>, landed: Barriers, first: Pred) {
//!     k.if_(first, |k| {
//!         k.arrive_expecting(landed.at(0), tile.bytes);
//!         k.bulk_load(tile.at(0), Addr::of(source), tile.bytes, landed.at(0), CopyOptions::default());
//!     });
//!     k.wait(landed.at(0), 0);
//! }
//!
//! fn multiply(k: &mut Builder, tile: SharedRegion, thread: Reg<U32>, factor: Reg<F32>) -> [Reg<F32>; 4] {
//!     let tile = k.shared_address(tile);
//!     let mine = k.mul_add(thread, 16, tile);
//!     let values: [Reg<F32>; 4] = k.load_vector(Addr::<Shared>::of(mine));
//!     values.map(|value| k.mul(value, factor))
//! }
//!
//! // Print it: a PTX module that a driver loads as it is.
//! let kernel = scale()?;
//! let text = kernel.to_ptx();
//! assert!(text.contains("// scale/load"));
//! assert!(text.contains("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"));
//! assert_eq!(kernel.shared_bytes(), 2048 + 8);
//!
//! // Check it: `finish` has done so. A kernel that was changed since can be checked again, and says what is wrong.
//! let mut torn = kernel.clone();
//! torn.launch.threads = 1056;
//! let complaint = torn.check().unwrap_err().to_string();
//! assert_eq!(complaint, "kernel scale: threads per block: 1056; expected 1 to 1024");
//!
//! // Assemble it, where NVIDIA's assembler is at hand: registers, spills, warnings, and the machine code.
//! match ptx::assemble::Assembler::find(None) {
//!     Ok(assembler) => {
//!         let report = assembler.assemble(&kernel)?;
//!         report.check(&kernel)?;
//!         println!("{report}");
//!     }
//!     Err(remedy) => println!("{remedy}"),
//! }
//! # Ok::<(), Error>(())
//! ```
//!
//! # Where to find what
//!
//! - [`Builder`]: every instruction as a method; [`Builder::emit`] takes the rest as plain values.
//! - [`instr`]: the instructions as data, one enum per family, and which registers each reads and writes.
//! - [`Rule`]: everything [`Kernel::check`] can refuse.
//! - [`descriptor`] and [`tensor_map`]: the bit fields by which tensor cores and the copy engine find their matrices.
//! - [`parse`]: kernels from PTX text, anybody's.
//! - [`assemble`]: NVIDIA's assembler and its report.
//!
//! # Adding an instruction
//!
//! 1. A variant in its family's file under `instr/`, plain fields only, and its registers in `instr/registers.rs`.
//! 2. Its text in `print/`, its rules in `check/`; the compiler names every place that has to know. Its way back in
//!    `parse/lower/`.
//! 3. A method in `build/`, if it is to be used often.
//! 4. Its forms in the family's table in `tests/kernels/families.rs`, where the assembler sees them, and for each new
//!    rule a test in `tests/rules/`.
//!
//! Instructions exist for four targets ([`Target`]): Ampere and everything since (mma.sync, cp.async), Hopper (wgmma),
//! data-centre Blackwell (tcgen05) and desktop Blackwell (block-scaled mma.sync), as far as matrix multiplications and
//! what surrounds them need them. What only some targets have is a [`Feature`], and the checker asks for that.

pub mod assemble;
pub mod descriptor;
pub mod instr;
pub mod parse;
pub mod tensor_map;

mod build;
mod check;
mod error;
mod kernel;
mod print;
mod rule;
mod target;
mod types;

pub use build::{
    Barriers, Builder, Convert, CopyOptions, Float, Integer, MatrixOperand, Multiply, MultiplyHalves, Number,
    PackedPair, ParamTable, SharedRegion, TensorMapParam, WgmmaOptions,
};
pub use error::Error;
pub use instr::{Comparison, CtaGroup, Instr, Label, Op, RegisterChange, SpecialRegister};
pub use kernel::{Kernel, LaunchBounds, Param, ParamType, Phase, Region, Variable, VariableSpace};
pub use print::module;
pub use rule::{Place, Rule, Violation};
pub use target::{Feature, Target};
pub use types::*;
