//! What sums that went through memory need: C = gate(α₁·S1) ∘ (α₂·S2) over planes of f32 sums, element by element, one
//! thread each, all groups in one launch. Where blocks have shared k, each has left planes of its own, which are added
//! up first.

use ptx::{Addr, Builder, Error, F32, Feature, Global, Kernel, LaunchBounds, Reg, SpecialRegister, Target, U32, U64};

use super::launch::Spec;
use super::phases::gates::{self, Function};
use super::phases::store::store_element;
use super::phases::table::{BIAS_BYTES, Elements, RECORD_BYTES, address, at, locate};
use op::Output;

/// Threads of a block, and so elements.
pub const THREADS: u32 = 256;

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JoinSpec {
    /// The gate's function.
    pub function: Function,
    /// The type of C.
    pub output: Output,
    /// Groups that a launch may have.
    pub groups: u32,
    /// Planes of each matrix that are added up: a matrix's second is behind all matrices' first.
    pub parts: u32,
    /// What it is assembled for.
    pub target: Target,
    /// Whether sums have biases added to them.
    pub biased: bool,
}

/// Planes of sums start at multiples of this many bytes.
const PLANE_ALIGN: usize = 256;

/// Bytes from one plane of sums of so many elements to the next.
pub fn plane_bytes(elements: usize) -> usize {
    (4 * elements).next_multiple_of(PLANE_ALIGN)
}

/// The same, computed by a kernel.
pub(crate) fn plane_stride(k: &mut Builder, elements: Reg<U64>) -> Reg<U64> {
    let bytes = k.shl(elements, 2);
    let bytes = k.add(bytes, PLANE_ALIGN as u64 - 1);
    k.and(bytes, !(PLANE_ALIGN as u64 - 1))
}

impl JoinSpec {
    /// Blocks for so many elements.
    pub fn blocks(&self, elements: usize) -> u32 {
        elements.div_ceil(THREADS as usize) as u32
    }
}

impl Spec for JoinSpec {
    fn kernel(self) -> Result<Kernel, Error> {
        kernel(self)
    }
}

/// Builds the kernel. Its arguments, in order: the table of groups (addresses are those of S1, S2 and C, and tiles are
/// blocks), the table of biases if there are some, the number of blocks, and the gate's limit.
pub fn kernel(config: JoinSpec) -> Result<Kernel, Error> {
    let launch = LaunchBounds { threads: THREADS, cluster: None, min_blocks: None };
    let mut k = Builder::new("join", config.target, launch);
    let table = k.table("groups", config.groups * RECORD_BYTES / 4);
    let biases = config.biased.then(|| k.table("biases", config.groups * BIAS_BYTES / 4));
    let _: Reg<U32> = k.param("blocks");
    let clamp: Reg<F32> = k.param("clamp");
    let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    if config.target.has(Feature::GridDependency) {
        k.launch_dependents();
        k.grid_dependency_wait();
    }
    let (number, record) = locate(&mut k, table, config.groups, block);
    let group = Elements::read(&mut k, record);
    let thread: Reg<U64> = k.convert(thread);
    let block = k.sub(block, group.first);
    let element = k.mul_wide_add(block, THREADS, thread);
    let inside = k.lt(element, group.count);
    k.if_(inside, |k| {
        let biases = biases.map(|biases| {
            let (n, place): (Reg<U32>, _) = (k.table_word(record, at::N), k.table_row(biases, number, BIAS_BYTES));
            let n: Reg<U64> = k.convert(n);
            (place, k.rem(element, n))
        });
        let gather = |k: &mut Builder, matrix| {
            let value = gather(k, config, &group, matrix, element);
            let Some((place, column)) = biases else { return value };
            let all = address(k, place, 8 * matrix as u32);
            let at = k.mul_add(column, 4u64, all);
            let bias = k.load::<F32, Global>(Addr::of(at));
            k.add(value, bias)
        };
        let gate = k.phase("gather", |k| gather(k, 0));
        let value = if config.function.matrices() == 1 {
            gates::alone(k, config.function, gate)
        } else {
            let up = k.phase("gather", |k| gather(k, 1));
            k.phase("gate", |k| gates::apply(k, config.function, gate, up, clamp))
        };
        k.phase("store", |k| {
            let offset = k.shl(element, config.output.bytes().trailing_zeros());
            let at = k.add(group.addresses[2], offset);
            store_element(k, config.output, None, Addr::<Global>::of(at), value);
        });
    });
    k.finish()
}

/// An element of α·S.
fn gather(k: &mut Builder, config: JoinSpec, group: &Elements, matrix: usize, element: Reg<U64>) -> Reg<F32> {
    let offset = k.shl(element, 2);
    let mut at = k.add(group.addresses[matrix], offset);
    let mut sum = k.load::<F32, Global>(Addr::of(at));
    for _ in 1..config.parts {
        let plane = plane_stride(k, group.count);
        at = k.mul_add(plane, config.function.matrices(), at);
        let part = k.load::<F32, Global>(Addr::of(at));
        sum = k.add(sum, part);
    }
    gates::scaled(k, sum, group.factors[matrix])
}
