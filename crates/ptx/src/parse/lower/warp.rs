//! What the threads of a warp do together: votes, shuffles, reductions, and products of small matrices.

use super::fragment::{matrix_type, shape};
use super::words::Words;
use super::{Lower, Refusal};
use crate::instr::{
    Arith, FloatMode, MatrixElement, MatrixType, Mma, NarrowFloat, ReduceOp, Scaling, ShuffleMode, UnaryOp, VoteMode,
    Warp, dense,
};
use crate::parse::syntax::Operand;
use crate::print;
use crate::types::{Bank, DataType, RegId, Space};

impl<'t> Lower<'_, 't> {
    pub(super) fn warp(
        &mut self,
        opcode: &str,
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), Refusal> {
        let word = DataType::U32;
        words.take("sync");
        let op = match opcode {
            "shfl" => {
                let modes = [
                    ("idx", ShuffleMode::Index),
                    ("bfly", ShuffleMode::Butterfly),
                    ("up", ShuffleMode::Up),
                    ("down", ShuffleMode::Down),
                ];
                let (mode, _) = (words.pick(&modes).ok_or(Refusal::Unknown)?, words.take("b32"));
                let [dst, a, lane, clamp, mask] = self.exactly(operands)?;
                let (dst, valid) = match dst {
                    Operand::Pair(dst, valid) => {
                        (self.register(dst, Bank::B32)?, Some(self.register(valid, Bank::Pred)?))
                    }
                    dst => (self.register(dst, Bank::B32)?, None),
                };
                let a = match self.value(a, word)? {
                    crate::types::Operand::Reg(a) => a,
                    a => {
                        let (op, mode, dst) = (UnaryOp::Move, FloatMode::PLAIN, self.fresh(Bank::B32)?);
                        self.emit(Arith::Unary { op, ty: word, mode, dst, a });
                        dst
                    }
                };
                let lane = self.value(lane, word)?;
                let (clamp, mask) = (self.value(clamp, word)?, self.value(mask, word)?);
                Warp::Shuffle { mode, dst, valid, a, lane, clamp, mask }
            }
            "vote" if words.take("ballot") => {
                words.take("b32");
                let [dst, pred, mask] = self.exactly(operands)?;
                let (dst, pred) = (self.register(dst, Bank::B32)?, self.register(pred, Bank::Pred)?);
                Warp::Ballot { dst, pred, mask: self.value(mask, word)? }
            }
            "vote" => {
                let modes = [("all", VoteMode::All), ("any", VoteMode::Any), ("uni", VoteMode::Uniform)];
                let (mode, _) = (words.pick(&modes).ok_or(Refusal::Unknown)?, words.take("pred"));
                let [dst, pred, mask] = self.exactly(operands)?;
                let (dst, pred) = (self.register(dst, Bank::Pred)?, self.register(pred, Bank::Pred)?);
                Warp::Vote { mode, dst, pred, mask: self.value(mask, word)? }
            }
            "activemask" => {
                let ([dst], _) = (self.exactly(operands)?, words.take("b32"));
                Warp::ActiveMask { dst: self.register(dst, Bank::B32)? }
            }
            "elect" => {
                let [dst, mask] = self.exactly(operands)?;
                let Operand::Pair(lane, pred) = dst else { return Err(Refusal::Unknown) };
                let leader = match &**lane {
                    Operand::Name { name, .. } if name.text == "_" => None,
                    lane => Some(self.register(lane, Bank::B32)?),
                };
                Warp::Elect { leader, pred: self.register(pred, Bank::Pred)?, mask: self.value(mask, word)? }
            }
            "redux" => {
                let ty = words.bits().ok_or(Refusal::Unknown)?;
                let float = ty == DataType::F32;
                let (nan, absolute) = (float && words.take("NaN"), float && words.take("abs"));
                let named = |op: &ReduceOp, word: &str| print::reduce(*op, ty).split('.').next() == Some(word);
                let of_nan = |op: &ReduceOp| matches!(op, ReduceOp::MinNan | ReduceOp::MaxNan) == nan;
                let op = words.find(|word| ReduceOp::ALL.into_iter().find(|op| named(op, word) && of_nan(op)));
                let [dst, a, mask] = self.exactly(operands)?;
                let of_floats = matches!(op, Some(ReduceOp::Min | ReduceOp::Max | ReduceOp::MinNan | ReduceOp::MaxNan));
                if !matches!(ty, DataType::U32 | DataType::S32 | DataType::F32) || float && !of_floats {
                    return Err(Refusal::Unknown);
                }
                let (dst, mut a) = (self.register(dst, Bank::B32)?, self.register(a, Bank::B32)?);
                if absolute {
                    let (op, mode, of) = (UnaryOp::Abs, FloatMode::PLAIN, crate::types::Operand::Reg(a));
                    a = self.fresh(Bank::B32)?;
                    self.emit(Arith::Unary { op, ty, mode, dst: a, a: of });
                }
                Warp::Reduce { op: op.ok_or(Refusal::Unknown)?, ty, dst, a, mask: self.value(mask, word)? }
            }
            "match" => {
                let all = words.pick(&[("all", true), ("any", false)]).ok_or(Refusal::Unknown)?;
                let ty = words.bits().filter(|ty| ty.bits() >= 32 && !ty.is_float()).ok_or(Refusal::Unknown)?;
                let [dst, a, mask] = self.exactly(operands)?;
                let (dst, same) = match dst {
                    Operand::Pair(dst, same) if all => (&**dst, Some(self.register(same, Bank::Pred)?)),
                    dst => (dst, None),
                };
                let dst = self.register(dst, Bank::B32)?;
                Warp::Match { all, ty, dst, same, a: self.value(a, ty)?, mask: self.value(mask, word)? }
            }
            _ => return self.matrix(opcode, words, operands),
        };
        self.emit(op);
        Ok(())
    }

    /// Matrices of 8 × 8 between shared memory and registers.
    fn matrix(&mut self, opcode: &str, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        let count = words.pick(&[("x1", 1), ("x2", 2), ("x4", 4)]).ok_or(Refusal::Unknown)?;
        let all = words.take("aligned") && words.take("m8n8") && words.take("b16");
        let window = words.space();
        if !all || !matches!(window, None | Some(Space::Shared)) {
            return Err(Refusal::Unknown);
        }
        let transpose = words.take("trans");
        let [first, second] = self.exactly(operands)?;
        let (regs, addr) = if opcode == "ldmatrix" { (first, second) } else { (second, first) };
        let (regs, addr) = (self.registers(regs, Bank::B32)?, self.in_shared(window, addr)?);
        if regs.len() != count {
            return Err(Refusal::Other(format!("{count} registers, not {}", regs.len())));
        }
        let op = match opcode {
            "ldmatrix" => Warp::LoadMatrix { transpose, dsts: regs, addr },
            _ => Warp::StoreMatrix { transpose, srcs: regs, addr },
        };
        self.emit(op);
        Ok(())
    }

    pub(super) fn mma(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        if !(words.take("sync") && words.take("aligned") && words.take("row") && words.take("col")) {
            return Err(Refusal::Unknown);
        }
        let [m, n, depth] = shape(words).ok_or(Refusal::Unknown)?;
        if words.take("kind::f8f6f4") {
            return self.mma_of_bytes([m, n, depth], words, operands);
        }
        if operands.len() == 4 {
            let types: Vec<MatrixType> = std::iter::from_fn(|| matrix_type(words)).collect();
            let [to, first, second, before] = types[..] else { return Err(Refusal::Unknown) };
            let (shape, types) = ([m, n, depth], [to, first, second, before]);
            let Some(element) = dense(shape, types) else {
                return self.multiply(shape, types, None, words, operands);
            };
            let saturate = element.is_integer() && words.take("satfinite");
            let [d, a, b, c] = self.exactly(operands)?;
            let (d, c) = (self.registers_of(d, Bank::B32)?, self.registers_of::<4>(c, Bank::B32)?);
            let (a, b) = (self.registers_of(a, Bank::B32)?, self.registers_of(b, Bank::B32)?);
            return self.accumulated(d, c, |d| Mma::Dense { element, saturate, d, a, b });
        }
        let f32_sums = words.take("f32") && words.take("f32") && words.take("block_scale");
        let kinds = [("kind::mxf4nvf4", true), ("kind::mxf4", true), ("kind::mxf8f6f4", false)];
        let packed = words.pick(&kinds).ok_or(Refusal::Unknown)?;
        let wide = words.pick(&[("scale_vec::1X", 1), ("scale_vec::2X", 2), ("scale_vec::4X", 4)]);
        let scales = words.pick(&[("ue8m0", NarrowFloat::Ue8m0), ("ue4m3", NarrowFloat::E4m3)]);
        let elements = [narrow(words)?, narrow(words)?];
        let scaling = match (packed, wide, scales, elements) {
            (true, Some(4), Some(NarrowFloat::E4m3), [NarrowFloat::E2m1, NarrowFloat::E2m1]) => Scaling::NvFp4,
            (true, None | Some(2), Some(NarrowFloat::Ue8m0), [NarrowFloat::E2m1, NarrowFloat::E2m1]) => Scaling::MxFp4,
            (false, None | Some(1), Some(NarrowFloat::Ue8m0), elements) => Scaling::Mx(elements),
            _ => return Err(Refusal::Unknown),
        };
        if !f32_sums || [m, n, depth] != [16, 8, scaling.depth()] {
            return Err(Refusal::Unknown);
        }
        let [d, a, b, c, scale_a, select_a, scale_b, select_b] = operands else { return Err(Refusal::Unknown) };
        let (d, c) = (self.registers_of(d, Bank::B32)?, self.registers_of::<4>(c, Bank::B32)?);
        let mut selected = |operand: &Operand<'t>| match operand {
            Operand::Vector(parts, _) => match &parts[..] {
                [byte, lane] => Ok((self.selector(byte)?, self.selector(lane)?)),
                _ => Err(Refusal::Unknown),
            },
            _ => Err(Refusal::Unknown),
        };
        let ((byte_a, lanes_a), (byte_b, lane_b)) = (selected(select_a)?, selected(select_b)?);
        if [byte_a, byte_b].iter().any(|byte| *byte > 3 || byte % scaling.scales() != 0) || lanes_a > 1 || lane_b > 3 {
            let wanted = "scales of bytes that there are: 0 or 1 as lanes of A, 0 to 3 as lane of B";
            return Err(Refusal::Other(wanted.into()));
        }
        let (a, b) = (self.registers_of(a, Bank::B32)?, self.registers_of(b, Bank::B32)?);
        let [scale_a] = self.registers_of(scale_a, Bank::B32)?;
        let [scale_b] = self.registers_of(scale_b, Bank::B32)?;
        self.accumulated(d, c, |d| Mma::BlockScaled {
            scaling,
            d,
            a,
            b,
            scale_a,
            lanes_a,
            byte_a,
            scale_b,
            lane_b,
            byte_b,
        })
    }

    /// A multiplication of floats of eight bits and fewer without scales: with scales of one.
    fn mma_of_bytes(
        &mut self,
        shape: [u32; 3],
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), Refusal> {
        let f32_sums = words.take("f32") && words.take("f32");
        let scaling = Scaling::Mx([narrow(words)?, narrow(words)?]);
        let ([d, a, b, c], true, [16, 8, 32]) = (self.exactly(operands)?, f32_sums, shape) else {
            return Err(Refusal::Unknown);
        };
        let (d, c) = (self.registers_of(d, Bank::B32)?, self.registers_of::<4>(c, Bank::B32)?);
        let (a, b) = (self.registers_of(a, Bank::B32)?, self.registers_of(b, Bank::B32)?);
        let (op, ty, mode, one) = (UnaryOp::Move, DataType::U32, FloatMode::PLAIN, self.fresh(Bank::B32)?);
        self.emit(Arith::Unary { op, ty, mode, dst: one, a: crate::types::Operand::Imm(0x7f7f_7f7f) });
        let (scale_a, lanes_a, byte_a, scale_b, lane_b, byte_b) = (one, 0, 0, one, 0, 0);
        self.accumulated(d, c, |d| Mma::BlockScaled {
            scaling,
            d,
            a,
            b,
            scale_a,
            lanes_a,
            byte_a,
            scale_b,
            lane_b,
            byte_b,
        })
    }

    /// A multiplication that adds to `c` and leaves its sums in `d`. Where these are not the same, it works on
    /// registers of its own, since either may be a part of A or B.
    fn accumulated(
        &mut self,
        d: [RegId; 4],
        c: [RegId; 4],
        multiply: impl Fn([RegId; 4]) -> Mma,
    ) -> Result<(), Refusal> {
        if d == c {
            self.emit(multiply(d));
            return Ok(());
        }
        let own = [self.fresh(Bank::B32)?, self.fresh(Bank::B32)?, self.fresh(Bank::B32)?, self.fresh(Bank::B32)?];
        let (op, ty, mode) = (UnaryOp::Move, DataType::U32, FloatMode::PLAIN);
        for (dst, c) in own.into_iter().zip(c) {
            self.emit(Arith::Unary { op, ty, mode, dst, a: crate::types::Operand::Reg(c) });
        }
        self.emit(multiply(own));
        for (dst, own) in d.into_iter().zip(own) {
            self.emit(Arith::Unary { op, ty, mode, dst, a: crate::types::Operand::Reg(own) });
        }
        Ok(())
    }
}

/// The next word that names a float of eight bits or fewer, other than a scale.
fn narrow(words: &mut Words<'_>) -> Result<NarrowFloat, Refusal> {
    let elements = NarrowFloat::ALL.into_iter().filter(|ty| *ty != NarrowFloat::Ue8m0);
    let named = |word: &str| elements.clone().find(|ty| print::narrow(*ty) == word);
    words.find(named).ok_or(Refusal::Unknown)
}

/// The type of A and B, which must be the same.
pub(super) fn element(words: &mut Words<'_>) -> Result<MatrixElement, Refusal> {
    let found = MatrixElement::ALL.into_iter().find(|element| words.take(print::element_name(*element)));
    let element = found.ok_or(Refusal::Unknown)?;
    words.take(print::element_name(element)).then_some(element).ok_or(Refusal::Unknown)
}
