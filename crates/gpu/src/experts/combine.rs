//! What a token's experts made of it, added up for many tokens: [`crate::phases::sum`] with an inverse that says which
//! rows are whose.
//!
//! A thread has as many columns of a token as sixteen bytes of a row hold, so that a warp reads rows without gaps, and
//! asks for the rows of several experts at a time.
//!
//! Where the host computes some experts, their rows lie in its memory, one at the place of each entry, and are read
//! from there.

use ptx::{Addr, Builder, Error, F32, Global, Kernel, LaunchBounds, Reg, SpecialRegister, Target, U32, U64};

use op::Output;

use super::place::AWAY;
use super::{Portable, await_predecessor, launch_dependents};
pub use crate::phases::sum::CombineSpec;
use crate::phases::sum::{Found, TOGETHER, add_rows, finish};

/// Threads of a block.
const THREADS: u32 = 128;
/// Bytes of a row that a thread reads at a time.
const ACCESS: u32 = 16;
impl CombineSpec {
    /// Blocks for so many tokens with so many columns.
    pub fn blocks(&self, tokens: u32, columns: u32) -> u32 {
        (u64::from(tokens) * u64::from(columns / self.columns())).div_ceil(THREADS.into()) as u32
    }

    /// Columns of a thread: four or eight.
    fn columns(&self) -> u32 {
        ACCESS / self.rows.bytes() as u32
    }
}

impl Portable for CombineSpec {
    fn kernel_for(self, target: Target) -> Result<Kernel, Error> {
        kernel(self, target)
    }
}

/// Builds the kernel. Its arguments, in order: rows `[rows, columns]`, inverse `[tokens, top]`, the entries' slots
/// `[tokens, top]` and the host's rows `[tokens, top, columns]` if there are some, weights `[tokens, top]` if there are
/// some, the addend `[tokens, columns]` if there is one, results `[tokens, columns]`, tokens, and columns.
pub fn kernel(spec: CombineSpec, target: Target) -> Result<Kernel, Error> {
    if spec.away && spec.rows != Output::F32 {
        let (what, found) = ("bytes of a row's numbers", spec.rows.bytes() as u64);
        return Err(Error::Field { what, found, wanted: "4, as the host's rows have" });
    }
    let launch = LaunchBounds { threads: THREADS, cluster: None, min_blocks: None };
    let mut k = Builder::new("combine", target, launch);
    let (rows, inverse) = (k.pointer("rows"), k.pointer("inverse"));
    let away = spec.away.then(|| [k.pointer("placed"), k.pointer("away")]);
    let weights = spec.weighted.then(|| k.pointer("weights"));
    let addend = spec.addend.map(|ty| (ty, k.pointer("addend")));
    let out = k.pointer("out");
    let (tokens, columns): (Reg<U32>, Reg<U32>) = (k.param("tokens"), k.param("columns"));
    launch_dependents(&mut k, target);
    let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    let place = k.mul_add(block, THREADS, thread);
    let units = k.shr(columns, spec.columns().trailing_zeros());
    let token = k.div(place, units);
    let before = k.mul(token, units);
    let unit = k.sub(place, before);
    let exists = k.lt(token, tokens);
    await_predecessor(&mut k, target);
    k.if_(exists, |k| {
        let sums: Vec<Reg<F32>> = (0..spec.columns()).map(|_| k.variable(0.0)).collect();
        for first in (0..spec.top).step_by(TOGETHER as usize) {
            let count = TOGETHER.min(spec.top - first);
            let sources = Sources { rows, inverse, away, weights };
            let found = sources.find(k, spec, (token, first, count));
            add_rows(k, (spec, ACCESS), &found, (units, unit), &sums);
        }
        finish(k, spec, (addend, out), [token, units, unit], &sums);
    });
    k.finish()
}

/// Where rows are, and what says which.
struct Sources {
    rows: Reg<U64>,
    inverse: Reg<U64>,
    /// The entries' slots, and the host's rows.
    away: Option<[Reg<U64>; 2]>,
    weights: Option<Reg<U64>>,
}

impl Sources {
    /// Finds some of a token's entries.
    fn find(&self, k: &mut Builder, spec: CombineSpec, (token, first, count): (Reg<U32>, u32, u32)) -> Vec<Found> {
        let entry = k.mul(token, spec.top);
        let at = |k: &mut Builder, base, index: u32| -> Addr<Global> {
            Addr::of(k.mul_wide_add(entry, 4, base)).plus((4 * (first + index)).cast_signed())
        };
        k.phase("find", |k| {
            let find = |index| {
                let place_at = at(k, self.inverse, index);
                let weight = self.weights.map(|weights| {
                    let at = at(k, weights, index);
                    k.load(at)
                });
                let (base, row) = (self.rows, k.load(place_at));
                let Some([placed, host_rows]) = self.away else { return Found { base, row, weight } };
                let placed_at = at(k, placed, index);
                let slot: Reg<U32> = k.load(placed_at);
                let away = k.eq(slot, AWAY);
                let number = k.add(entry, first + index);
                Found { base: k.select(away, host_rows, base), row: k.select(away, number, row), weight }
            };
            (0..count).map(find).collect()
        })
    }
}
