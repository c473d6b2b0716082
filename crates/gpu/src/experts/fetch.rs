//! Weights of experts that are not in the device's memory, copied there from the host's: those of one lot, and of these
//! only the experts that have rows.
//!
//! The device reads them itself, over the bus. A copy by the driver would have to be told when it is queued which
//! experts there are to bring; a kernel sees that in the layout, so that one graph serves every routing and every
//! placement, and nothing is brought that nobody asked for. A few blocks with many loads on their way keep the bus
//! busy, and leave the other multiprocessors to products.
//!
//! Besides, it leaves the lot's own layout for the products: the part of the layout of all numbers, whose first tile is
//! 0.

use ptx::{Addr, Builder, Error, Global, Kernel, LaunchBounds, Pred, Reg, SpecialRegister, Target, U32, U64};

use super::Portable;

/// Threads of a block.
const THREADS: u32 = 512;
/// Blocks that copy.
pub const BLOCKS: u32 = 16;
/// Bytes that a thread copies at a time, and how many such it asks for before it waits.
pub const UNIT: u32 = 16;
const TOGETHER: u32 = 8;

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FetchSpec {
    /// Experts that the layout is of.
    pub numbers: u32,
    /// Experts of the lot.
    pub lot: u32,
}

impl FetchSpec {
    /// Blocks for a lot of which so many units of each expert are copied.
    pub fn blocks(&self, units: u32) -> u32 {
        (self.lot + 1).div_ceil(THREADS).max(if units > 0 { BLOCKS } else { 1 })
    }
}

impl Portable for FetchSpec {
    fn kernel_for(self, target: Target) -> Result<Kernel, Error> {
        kernel(self, target)
    }
}

/// Builds the kernel. Its arguments, in order: the layout of all numbers, where the lot's goes, the weights of the
/// lot's first expert in the host's memory, where they go, the lot's first number, bytes from one expert's weights to
/// the next one's in the host's memory, and units of each, which lie without gaps where they go.
pub fn kernel(spec: FetchSpec, target: Target) -> Result<Kernel, Error> {
    let launch = LaunchBounds { threads: THREADS, cluster: None, min_blocks: None };
    let mut k = Builder::new("fetch", target, launch);
    let [layout, lots, source, slots] = ["layout", "lot", "source", "slots"].map(|name| k.pointer(name));
    let [first, stride, units]: [Reg<U32>; 3] = ["first", "stride", "units"].map(|name| k.param(name));
    let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    let blocks = k.special(SpecialRegister::NctaidX);
    let place = k.mul_add(block, THREADS, thread);
    let begin = k.mul_wide_add(first, 4, layout);
    k.phase("layout", |k| cut(k, spec, place, begin, lots));
    let threads = k.mul(blocks, THREADS);
    let expert: Reg<U32> = k.variable(0);
    k.loop_while(
        |k| k.lt(expert, spec.lot),
        |k| {
            let at = Addr::<Global>::of(k.mul_wide_add(expert, 4, begin));
            let [row, next]: [Reg<U32>; 2] = [0, 4].map(|further| k.load(at.plus(further)));
            let asked_for = k.lt(row, next);
            k.if_(asked_for, |k| {
                let bytes = k.mul(units, UNIT);
                let ends = [k.mul_wide_add(expert, stride, source), k.mul_wide_add(expert, bytes, slots)];
                k.phase("copy", |k| copy(k, ends, (place, threads), units));
            });
            let next = k.add(expert, 1);
            k.set(expert, next);
        },
    );
    k.finish()
}

/// The lot's part of the layout.
fn cut(k: &mut Builder, spec: FetchSpec, place: Reg<U32>, begin: Reg<U64>, lots: Reg<U64>) {
    let exists = k.le(place, spec.lot);
    k.if_(exists, |k| {
        let tiles = Addr::<Global>::of(begin).plus((4 * (spec.numbers + 1)).cast_signed());
        let own = Addr::<Global>::of(k.mul_wide_add(place, 4, begin));
        let to = Addr::<Global>::of(k.mul_wide_add(place, 4, lots));
        let row: Reg<U32> = k.load(own);
        let [tile, before]: [Reg<U32>; 2] =
            [own.plus((4 * (spec.numbers + 1)).cast_signed()), tiles].map(|at| k.load(at));
        let tile = k.sub(tile, before);
        k.store(to, row);
        k.store(to.plus((4 * (spec.lot + 1)).cast_signed()), tile);
    });
}

/// Copies an expert's units: a thread has every so-many-th, and asks for several before it stores the first.
fn copy(k: &mut Builder, [from, to]: [Reg<U64>; 2], (place, threads): (Reg<U32>, Reg<U32>), units: Reg<U32>) {
    let unit = k.variable(place);
    k.loop_while(
        |k| k.lt(unit, units),
        |k| {
            // The first exists, or the loop were over.
            let guarded = |k: &mut Builder, exists: Option<Pred>, act: &mut dyn FnMut(&mut Builder)| match exists {
                Some(exists) => k.when(exists, |k| act(k)),
                None => act(k),
            };
            let mut loaded = Vec::new();
            for index in 0..TOGETHER {
                let own = k.mul_add(threads, index, unit);
                let exists = (index > 0).then(|| k.lt(own, units));
                let at = Addr::<Global>::of(k.mul_wide_add(own, UNIT, from));
                guarded(k, exists, &mut |k| loaded.push((exists, own, k.load_vector::<U32, _, 4>(at))));
            }
            for (exists, own, piece) in loaded {
                let at = Addr::<Global>::of(k.mul_wide_add(own, UNIT, to));
                guarded(k, exists, &mut |k| k.store_vector(at, piece));
            }
            let next = k.mul_add(threads, TOGETHER, unit);
            k.set(unit, next);
        },
    );
}
