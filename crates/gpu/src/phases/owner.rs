//! Whose a tile is, and where its operands are: a group's of the launch's table, or an expert's.

use ptx::{Addr, Builder, F32, Global, ParamTable, Pred, Reg, S32, U32, U64};

use super::experts::{Deltas, Expert};
use super::table::{self, address, at};

/// Whose a tile is.
#[derive(Clone, Copy)]
pub(crate) enum Owner {
    /// A group's, of which these are the record and, where sums have biases, the addresses of those; where tokens and
    /// weights were rounded to e4m3, what they are multiplied with; and where columns have factors, the address of
    /// those.
    Group {
        record: ParamTable,
        biases: Option<ParamTable>,
        rounded: Option<ParamTable>,
        columns: Option<ParamTable>,
    },
    Expert(Expert),
}

impl Owner {
    /// Where a matrix's packed weights are: 0 is the gate's, 1 the up matrix's.
    pub fn weights(&self, k: &mut Builder, matrix: u32) -> Reg<U64> {
        match self {
            Owner::Group { record, .. } => address(k, *record, at::GATE + 8 * matrix),
            Owner::Expert(expert) => expert.weights(k, matrix),
        }
    }

    /// Where C is, or where planes of sums begin.
    pub fn out(&self, k: &mut Builder) -> Reg<U64> {
        match self {
            Owner::Group { record, .. } => address(k, *record, at::OUT),
            Owner::Expert(expert) => expert.out,
        }
    }

    /// The two factors of a matrix's sums.
    pub fn factors(&self, k: &mut Builder, matrix: u32) -> [Reg<F32>; 2] {
        match self {
            Owner::Group { record, .. } => table::factors(k, *record, matrix),
            Owner::Expert(expert) => expert.factors(k, matrix),
        }
    }

    /// The two factors of the sums in one of `n` columns, if they are not those of all: the record has α, and the
    /// column its own, each as a float and the exponent of a power of two. Behind the last column they are that one's.
    pub fn column_factors(&self, k: &mut Builder, column: Reg<U32>, n: Reg<U32>) -> Option<[Reg<F32>; 2]> {
        let Owner::Group { record, columns: Some(columns), .. } = self else { return None };
        let last = k.sub(n, 1);
        let column = k.min(column, last);
        let all = address(k, *columns, 0);
        let at = k.mul_wide_add(column, 8, all);
        let [own, own_power]: [Reg<U32>; 2] = k.load_vector(Addr::<Global>::of(at));
        let [alpha, power] = table::factors(k, *record, 0);
        let [lacking, _] = table::factors(k, *record, 1);
        let lacking = k.mul(lacking, own.cast());
        let number = k.fma(alpha, own.cast(), lacking);
        let exponent = k.add(power.cast::<S32>(), own_power.cast::<S32>());
        // Beyond ±252 the product is zero or infinite anyway.
        let exponent = k.max(exponent, -252);
        let exponent = k.min(exponent, 252);
        let half = k.shr(exponent, 1);
        let rest = k.sub(exponent, half);
        let [half, rest] = [half, rest].map(|exponent| {
            let biased = k.add(exponent, 127);
            k.shl(biased, 23).cast::<F32>()
        });
        Some([half, k.mul(number, rest)])
    }

    /// What is added to a matrix's sums in one of `n` columns, if something is. Behind the last column it is that
    /// one's.
    pub fn bias(&self, k: &mut Builder, matrix: u32, column: Reg<U32>, n: Reg<U32>) -> Option<Reg<F32>> {
        match self {
            Owner::Group { biases, .. } => biases.map(|biases| {
                let last = k.sub(n, 1);
                let column = k.min(column, last);
                let all = address(k, biases, 8 * matrix);
                let at = k.mul_wide_add(column, 4, all);
                k.load(Addr::<Global>::of(at))
            }),
            Owner::Expert(expert) => expert.bias(k, matrix, column, n),
        }
    }

    /// What the sums of a row of C are multiplied with, if they are.
    pub fn row_factor(&self, k: &mut Builder, row: Reg<U32>) -> Option<Reg<F32>> {
        match self {
            Owner::Group { .. } => None,
            Owner::Expert(expert) => expert.row_factor(k, row),
        }
    }

    /// What the sums of a row are multiplied with since its tokens were rounded to e4m3, if they were.
    pub fn row_scale(&self, k: &mut Builder, row: Reg<U32>) -> Option<Reg<F32>> {
        match self {
            Owner::Group { rounded, .. } => rounded.map(|rounded| {
                let all = address(k, rounded, 0);
                let at = k.mul_wide_add(row, 4, all);
                k.load(Addr::<Global>::of(at))
            }),
            Owner::Expert(expert) => expert.row_scale(k, row),
        }
    }

    /// What a matrix's scales are multiplied with before its weights are rounded to e4m3, twice a half, if they are.
    pub fn lift(&self, k: &mut Builder, matrix: u32) -> Option<Reg<U32>> {
        match self {
            Owner::Group { rounded, .. } => rounded.map(|rounded| k.table_word(rounded, 8 + 4 * matrix)),
            Owner::Expert(expert) => expert.lift(k, matrix),
        }
    }

    /// The number of a row's adapter, if rows may have some.
    pub fn chosen(&self, k: &mut Builder, row: Reg<U32>) -> Option<Reg<U32>> {
        match self {
            Owner::Group { .. } => None,
            Owner::Expert(expert) => expert.chosen(k, row),
        }
    }

    /// Whether a row's sums have something added, if that is a question.
    pub fn adapted(&self, k: &mut Builder, row: Reg<U32>) -> Option<Pred> {
        let number = self.chosen(k, row)?;
        self.is_adapter(k, number)
    }

    /// Whether such a number is an adapter's.
    pub fn is_adapter(&self, k: &mut Builder, number: Reg<U32>) -> Option<Pred> {
        match self {
            Owner::Group { .. } => None,
            Owner::Expert(expert) => expert.is_adapter(k, number),
        }
    }

    /// What is added to the sums of a row in one of `n` columns, if something may be.
    pub fn deltas(&self, k: &mut Builder, place: [Reg<U32>; 3]) -> Option<Deltas> {
        match self {
            Owner::Group { .. } => None,
            Owner::Expert(expert) => expert.deltas(k, place),
        }
    }

    /// Whether the sums of rows may have something added.
    pub fn is_adapted(&self) -> bool {
        matches!(self, Owner::Expert(expert) if expert.is_adapted())
    }

    /// Whether the sums of rows have factors.
    pub fn is_factored(&self) -> bool {
        matches!(self, Owner::Expert(expert) if expert.is_factored())
    }
}
