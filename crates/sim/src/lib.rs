//! Runs GPU kernels on the CPU, and tries to break them.
//!
//! A kernel is a value: [`ptx::Kernel`], made with [`ptx::Builder`]. The same instructions that are printed as PTX are
//! executed here, so there is no second description of a kernel to drift from the first. No GPU, driver or toolkit is
//! needed.
//!
//! # For whoever writes a kernel
//!
//! **Write** it as a Rust function over a builder, in named phases. **Run** it on a [`Gpu`] with some buffers, a
//! [`Invocation`] and a [`Schedule`]:
//!
//! ```
//! use ptx::{Addr, Builder, CopyOptions, Error, Global, Kernel, Shared, SpecialRegister, Target, U32};
//! use sim::{Gpu, Invocation, Limits, Rules, Schedule, explore, mutate};
//!
//! /// Doubles 64 words: one thread fetches them into shared memory, all double them, one sends them back.
//! fn double() -> Result<Kernel, Error> {
//!     let shape = ptx::LaunchBounds { threads: 64, cluster: None, min_blocks: None };
//!     let mut k = Builder::new("double", Target::Sm90a, shape);
//!     let (input, output) = (k.pointer("input"), k.pointer("output"));
//!     let words = k.shared("words", 256, 128);
//!     let arrived = k.barriers("arrived", 1);
//!     let thread = k.special(SpecialRegister::TidX);
//!     let leader = k.eq(thread, 0);
//!
//!     k.phase("prepare", |k| {
//!         k.if_(leader, |k| {
//!             k.barrier_init(arrived.at(0), 1);
//!             k.fence_barrier_init(); // the copy engine sees the barrier
//!         });
//!         k.sync_threads(); // and so does everybody else
//!     });
//!     k.phase("fetch", |k| {
//!         k.if_(leader, |k| {
//!             k.arrive_expecting(arrived.at(0), words.bytes);
//!             k.bulk_load(words.at(0), Addr::of(input), words.bytes, arrived.at(0), CopyOptions::default());
//!         });
//!         k.wait(arrived.at(0), 0);
//!     });
//!     k.phase("double", |k| {
//!         let base = k.shared_address(words);
//!         let mine = Addr::<Shared>::of(k.mul_add(thread, 4, base));
//!         let value = k.load::<U32, _>(mine);
//!         let twice = k.add(value, value);
//!         k.store(mine, twice);
//!         k.fence_async_shared(); // what threads wrote becomes visible to the copy engine
//!         k.sync_threads();
//!     });
//!     k.phase("send", |k| {
//!         k.if_(leader, |k| {
//!             k.bulk_store(Addr::<Global>::of(output), words.at(0), words.bytes, None);
//!             k.bulk_commit();
//!             k.bulk_wait(0);
//!         });
//!     });
//!     k.finish()
//! }
//!
//! let kernel = double()?;
//! let mut gpu = Gpu::new(Limits::h200()).with_rules(Rules::Letter); // by the ISA's word, and no more
//! let numbers: Vec<u8> = (0..64u32).flat_map(u32::to_le_bytes).collect();
//! let (input, output) = (gpu.upload("input", &numbers), gpu.alloc("output", 256));
//! let launch = Invocation { grid: [1, 1, 1], args: vec![input.into(), output.into()] };
//!
//! // Under every schedule, on a fresh copy of the device, with the result checked:
//! let doubled: Vec<u8> = (0..64u32).flat_map(|i| (2 * i).to_le_bytes()).collect();
//! let verify = |gpu: &Gpu| match gpu.download(output) == Ok(&doubled) {
//!     true => Ok(()),
//!     false => Err("not doubled".to_string()),
//! };
//! let schedules = Schedule::several(10);
//! let profile = explore(&kernel, &schedules, || (gpu.clone(), launch.clone()), verify).expect("nothing to find");
//! assert_eq!((profile.copied_in, profile.copied_out, profile.bank_conflicts), (256, 256, 0));
//!
//! // Broken in any plausible way, it is caught: by a fault, or by a wrong result. One mutant is no mistake, for the
//! // leader publishes nothing when it announces the copy: the copy signals for itself.
//! for mutant in mutate::mutants(&kernel) {
//!     let found = explore(&mutant.kernel, &schedules, || (gpu.clone(), launch.clone()), verify);
//!     let harmless = mutant.mistake == "ordering relaxed" && mutant.name.contains("arrive.expect_tx");
//!     assert_eq!(found.is_ok(), harmless, "{}", mutant.name);
//! }
//!
//! // A finding says where, and what usually helps.
//! let mut mutants = mutate::mutants(&kernel).into_iter();
//! let unfenced = mutants.find(|m| m.name.contains("fence.proxy.async")).expect("a fence");
//! let fault = gpu.run(&unfenced.kernel, &launch, Schedule::Random(3)).expect_err("a race");
//! let text = fault.to_string();
//! assert!(text.contains("race on") && text.contains("words+0"));
//! assert!(text.contains("phase double/double") && text.contains("st.shared"));
//! assert!(text.contains("phase double/send") && text.contains("cp.async.bulk"));
//! assert!(text.contains("seed 3"));
//! # Ok::<(), Error>(())
//! ```
//!
//! **Break** it: [`mutate::mutants`] makes every kernel with one plausible mistake more. The kernel as written must
//! pass under every schedule, and every mutant must be caught under some; `cargo run -p hammerhead-sim --example
//! mutations` prints the table for a pipelined GEMM. [`explore_mutants`] tries all of them at once, and runs once what
//! they have in common with the original. A mutant that survives is either equivalent, or your test does not exercise
//! what it breaks: try more steps, an odd shape, no steps at all.
//!
//! **Read** a [`Fault`] from the top: the rule that was broken and on which bytes (by the names of your regions and
//! buffers), the two sides if there are two, who executed what in which phase, then the last visible steps of the
//! block. It names the schedule; [`Gpu::run`] with that schedule and the same inputs leads there again, always. A
//! [`Profile`] counts what a run that passed has moved and computed.
//!
//! # The machine
//!
//! Blocks of a cluster run side by side; warps are 32 lanes in lockstep that diverge at branches, run with the smallest
//! program counter first and meet again where their paths join. Registers are undefined until written. Shared memory
//! starts at address 1024 of its window. Copies, multiplications and remote stores are *issued* by an instruction and
//! *completed* by the schedule: at once, as late as can be, or as drawn from a seed. Waits let the others run.
//!
//! What is checked does not rest on luck: whether two accesses are ordered is told from vector clocks (who has learnt
//! of whose work, by which barrier, fence, group or flag), not from the order in which they happened to run. The rules:
//!
//! * Bytes written by threads and read or overwritten by the async proxy (bulk and tensor copies, wgmma operands) need
//!   a `fence.proxy.async` somewhere between, besides the ordering itself, and so do bytes of shared memory that were
//!   only read and are then overwritten; by the letter those of global memory do, too. What threads copy one by one
//!   (`cp.async`) or send to a peer (`st.async`) is written by threads.
//! * Bytes written by a copy are there for those who have waited for the right phase of the barrier that counts them.
//! * Bytes read by a store or a multiplication may be overwritten by those who have waited for its group, or learnt
//!   from them that it is over. To learn that, a relaxed arrive or one of block scope is enough, though not by the
//!   letter; to see written data it is not.
//! * One warp's `wgmma.wait_group` tells that the whole warpgroup's multiplications are over, in which all four warps
//!   take part.
//! * Accumulators and A fragments belong to the tensor cores from `wgmma` to its wait, and need a `wgmma.fence` before
//!   the first one, after any other use, and between shapes.
//! * Lanes of a warp are threads: `bar.warp.sync` orders them, and in practice a shuffle; convergence alone does not;
//!   and a fence is each thread's own.
//! * A release reaches those in its scope who have it in theirs; strong accesses out of each other's scope race. A load
//!   may see an old value of a flag, unless its thread has learnt of the newer one.
//! * A barrier is eight bytes that nobody else touches, initialised once, known to be so by those who use it.
//! * A block of a cluster is reached into only when it is known to have started, and ends only when it knows that to be
//!   over.
//! * A block ends with its copies landed, its stores read (though in practice it may end before), its multiplications
//!   waited for, and its barriers in balance.
//! * Of kernels that follow each other by programmatic launch ([`Gpu::run_sequence`]), one touches what the grids
//!   before it touch only behind `griddepcontrol.wait`.
//!
//! * Tensor memory (`tcgen05`) is allocated before use and given back; of a thread's copies and multiplications only
//!   the pairs that the ISA lists run in order, and a commit tells a barrier of their end; loads and stores have their
//!   own waits; and between threads it takes `tcgen05.fence::before_thread_sync` on one side of the barrier, however
//!   relaxed that is, and `after_thread_sync` on the other. Between these, pipelined pairs of two threads run in order,
//!   too. A comes from the collector only where the same A, as it is, was kept.
//!
//! A run without a fault is asked last whether [`ptx::Kernel::check`] takes the kernel at all.
//!
//! "By the letter" is the strict mode: [`Gpu::with_rules`] with [`Rules::Letter`], in which this library's kernels
//! are run. [`survey`] runs a kernel by both, goes on after what it finds, and says of each finding which [`Grade`]
//! it is of.
//!
//! Not simulated: pairs of blocks with 64 rows each (reported as [`FaultKind::Unsupported`]); the weak ordering of a
//! single thread's own accesses; blocks that share a multiprocessor; the number of registers a kernel really needs;
//! time. Sums on the tensor cores are rounded to f32 after each product, by rising k: equal to the hardware's where
//! they are exact, and within the usual bound elsewhere.

mod arith;
mod barrier;
mod blocks;
mod branch;
mod clock;
mod columns;
mod deadlock;
mod error;
mod exec;
mod explore;
mod flag;
mod flight;
mod fragment;
mod gpu;
mod invocation;
mod landing;
mod lanes;
mod launch_control;
mod limits;
mod machine;
mod memory;
mod mma;
pub mod mutate;
mod narrow;
mod profile;
mod program;
mod race;
mod recording;
mod rounding;
mod schedule;
mod tensor_core;
mod tensor_memory;
pub mod timeline;
mod tma;
mod warp;

pub use branch::Mutants;
pub use error::{Access, Edge, Fault, FaultKind, Grade, Place, Race, Site, Waiting};
pub use explore::{Finding, Graded, Survey, Tried, explore, explore_mutants, survey, try_mutants};
pub use gpu::Gpu;
pub use invocation::{Arg, Invocation};
pub use limits::{Limits, Rules};
pub use memory::Buffer;
pub use profile::Profile;
pub use schedule::Schedule;
pub use timeline::Timeline;
