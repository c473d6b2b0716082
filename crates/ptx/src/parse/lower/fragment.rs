//! Matrices that the lanes of a warp hold in parts: `wmma`, and the shapes of `mma.sync` that have no form of their
//! own. The reverse of `print/fragment.rs`.

use super::words::Words;
use super::{Lower, Refusal};
use crate::instr::{Fragment, Fragments, MatrixOrder, MatrixType, Role};
use crate::parse::syntax::Operand;
use crate::print;
use crate::types::{DataType, RegId, Space};

/// m, n and k.
pub(super) fn shape(words: &mut Words<'_>) -> Option<[u32; 3]> {
    words.find(|word| {
        let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
    })
}

fn order(words: &mut Words<'_>) -> Option<MatrixOrder> {
    let all = [MatrixOrder::Rows, MatrixOrder::Columns];
    words.find(|word| all.into_iter().find(|order| print::order(*order) == word))
}

pub(super) fn matrix_type(words: &mut Words<'_>) -> Option<MatrixType> {
    words.find(|word| MatrixType::ALL.into_iter().find(|ty| print::matrix_type(*ty) == word))
}

impl<'t> Lower<'_, 't> {
    pub(super) fn wmma(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        if !(words.take("sync") && words.take("aligned")) {
            return Err(Refusal::Unknown);
        }
        let shape = shape(words).ok_or(Refusal::Unknown)?;
        if words.take("mma") {
            return self.portable(shape, words, operands);
        }
        let stores = words.take("store") && words.take("d");
        let roles = [("a", Role::A), ("b", Role::B), ("c", Role::Sums)];
        let role = match stores {
            true => Role::Sums,
            false if words.take("load") => words.pick(&roles).ok_or(Refusal::Unknown)?,
            false => return Err(Refusal::Unknown),
        };
        let order = Some(order(words).ok_or(Refusal::Unknown)?);
        let ty = matrix_type(words).ok_or(Refusal::Unknown)?;
        let fragment = Fragment { role, shape, ty, order };
        let space = words.space().unwrap_or(Space::Generic);
        if space == Space::Cluster {
            return Err(Refusal::Unknown);
        }
        let ([first, second] | [first, second, _]) = operands else { return Err(Refusal::Unknown) };
        let (regs, addr) = if stores { (second, first) } else { (first, second) };
        let (regs, addr) = (self.fragment(fragment, regs)?, self.address(addr, space.is_wide())?);
        let stride = operands.get(2).map(|stride| self.value(stride, DataType::U32)).transpose()?;
        self.emit(match stores {
            true => Fragments::Store { fragment, space, srcs: regs, addr, stride },
            false => Fragments::Load { fragment, space, dsts: regs, addr, stride },
        });
        Ok(())
    }

    /// The registers of a fragment that PTX has.
    fn fragment(&mut self, fragment: Fragment, operand: &Operand<'t>) -> Result<Vec<RegId>, Refusal> {
        if !fragment.exists() {
            return Err(Refusal::Unknown);
        }
        let (regs, count) = (self.registers(operand, fragment.ty.bank())?, fragment.registers());
        match regs.len() == count {
            true => Ok(regs),
            false => Err(Refusal::Other(format!("{count} registers, not {}", regs.len()))),
        }
    }

    /// `wmma.mma`, which names the factors' type where it is not f16.
    fn portable(&mut self, shape: [u32; 3], words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        let rows = order(words).ok_or(Refusal::Unknown)?;
        let columns = order(words).ok_or(Refusal::Unknown)?;
        let types: Vec<MatrixType> = std::iter::from_fn(|| matrix_type(words)).collect();
        let half = MatrixType::Of(crate::instr::MatrixElement::F16);
        let [d, a, b, c] = match types[..] {
            [d, c] => [d, half, half, c],
            [d, a, b, c] if a != half => [d, a, b, c],
            _ => return Err(Refusal::Unknown),
        };
        if a == MatrixType::F64 {
            words.take("rn");
        }
        self.multiply(shape, [d, a, b, c], Some([rows, columns]), words, operands)
    }

    /// A multiplication of fragments, laid out by the ISA for `mma.sync`, or by us.
    pub(super) fn multiply(
        &mut self,
        shape: [u32; 3],
        [d, a, b, c]: [MatrixType; 4],
        orders: Option<[MatrixOrder; 2]>,
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), Refusal> {
        let fragment = |role, ty| {
            let of_factors = orders.map(|[rows, columns]| if role == Role::B { columns } else { rows });
            let order = if role == Role::Sums { orders.map(|_| MatrixOrder::Rows) } else { of_factors };
            Fragment { role, shape, ty, order }
        };
        let [d, a, b, c] =
            [fragment(Role::Sums, d), fragment(Role::A, a), fragment(Role::B, b), fragment(Role::Sums, c)];
        if !Fragments::multiplies(d, a, b, c) {
            return Err(Refusal::Unknown);
        }
        let saturate = d.ty == MatrixType::S32 && words.take("satfinite");
        let [to, first, second, before] = self.exactly(operands)?;
        let (d, a) = ((d, self.fragment(d, to)?), (a, self.fragment(a, first)?));
        let (b, c) = ((b, self.fragment(b, second)?), (c, self.fragment(c, before)?));
        self.emit(Fragments::Multiply { saturate, d, a, b, c });
        Ok(())
    }
}
