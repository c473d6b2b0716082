//! Registers to registers, each lane for itself.

use ptx::instr::{Arith, BinaryOp, FloatPair, LogicOp, NarrowFloat, ParamBase, PredicateOp, Width};
use ptx::{Bank, Operand, RegId, SpecialRegister, VariableSpace};

use super::Exec;
use crate::arith;
use crate::error::FaultKind;
use crate::invocation::Invocation;
use crate::lanes::{self, FULL, Lanes, Words, lanes};
use crate::launch_control;
use crate::memory::SharedMemory;
use crate::narrow;

impl Exec<'_, '_> {
    pub(crate) fn set(&mut self, dst: RegId, values: &Lanes) {
        self.warp.set(dst, self.mask, values);
    }

    fn set_words(&mut self, dst: RegId, words: &Words) {
        self.warp.set_words(dst, self.mask, words);
    }

    fn set_predicate(&mut self, dst: RegId, holds: u32) {
        self.warp.set_predicate(dst, self.mask, holds);
    }

    /// The lanes that divide by zero.
    fn by_zero(&self, op: BinaryOp, divisor: Operand) -> u32 {
        match (op, divisor) {
            (BinaryOp::Div | BinaryOp::Rem, Operand::Reg(_)) => {
                let divisors = self.warp.value(divisor);
                lanes::mask_of(|lane| divisors[lane] == 0) & self.mask
            }
            _ => 0,
        }
    }

    /// What a division by zero gives may be anything: it can be carried about as what was never written can, and not be
    /// used.
    fn leave_open(&mut self, dst: RegId, mask: u32) {
        let (what, wanted) = ("a divisor whose quotient or remainder is used", "any other number");
        self.note_origin(|_| Some(FaultKind::BadOperand { what, found: 0, wanted }));
        self.warp.taint(dst, mask, self.pc);
    }

    pub(crate) fn arith(&mut self, op: &Arith) -> Result<(), FaultKind> {
        let (warp, [mut x, mut y, mut z]) = (&*self.warp, [None; 3]);
        match *op {
            Arith::Unary { op, ty, mode, dst, a } => match warp.read(a, &mut x) {
                Some(a) if ty.bank() == Bank::B32 => {
                    let values = arith::unary_words(op, ty, mode, a);
                    self.set_words(dst, &values);
                }
                _ => {
                    let values = arith::unary_lanes(op, ty, mode, &warp.value(a));
                    self.set(dst, &values);
                }
            },
            Arith::Binary { op, ty, mode, dst, a, b } => {
                let by_zero = if ty.is_float() { 0 } else { self.by_zero(op, b) };
                match (warp.read(a, &mut x), warp.read(b, &mut y)) {
                    (Some(a), Some(b)) if dst.bank == Bank::B32 => {
                        let values = arith::binary_words(op, ty, mode, a, b);
                        self.set_words(dst, &values);
                    }
                    _ => {
                        let values = arith::binary_lanes(op, ty, mode, &warp.value(a), &warp.value(b));
                        self.set(dst, &values);
                    }
                }
                if by_zero != 0 {
                    self.leave_open(dst, by_zero);
                }
            }
            Arith::Ternary { op, ty, mode, dst, a, b, c } => {
                match (warp.read(a, &mut x), warp.read(b, &mut y), warp.read(c, &mut z)) {
                    (Some(a), Some(b), Some(c)) if dst.bank == Bank::B32 => {
                        let values = arith::ternary_words(op, ty, mode, [a, b, c]);
                        self.set_words(dst, &values);
                    }
                    _ => {
                        let values = arith::ternary_lanes(op, ty, mode, [a, b, c].map(|of| warp.value(of)).each_ref());
                        self.set(dst, &values);
                    }
                }
            }
            Arith::MulWide { ty, dst, a, b, c } => {
                let (a, b) = (warp.value(a), warp.value(b));
                let c = warp.value(c.unwrap_or(Operand::Imm(0)));
                let values =
                    std::array::from_fn(|lane| arith::multiply_wide(ty, a[lane], b[lane]).wrapping_add(c[lane]));
                self.set(dst, &values);
            }
            Arith::Compare { cmp, ty, dst, a, b } => {
                let holds = match (warp.read(a, &mut x), warp.read(b, &mut y)) {
                    (Some(a), Some(b)) => arith::compare_words(cmp, ty, a, b),
                    _ => arith::compare_lanes(cmp, ty, &warp.value(a), &warp.value(b)),
                };
                self.set_predicate(dst, holds);
            }
            Arith::Select { dst, a, b, pred, .. } => {
                let holds = warp.holds(pred);
                match (warp.read(a, &mut x), warp.read(b, &mut y)) {
                    (Some(a), Some(b)) => {
                        let values = lanes::choose(holds, a, b);
                        self.set_words(dst, &values);
                    }
                    _ => {
                        let (mut values, a) = (warp.value(b), warp.value(a));
                        lanes::replace(&mut values, holds, &a);
                        self.set(dst, &values);
                    }
                }
            }
            Arith::Predicate { dst, op } => {
                let holds = self.predicate(op);
                self.set_predicate(dst, holds);
            }
            Arith::Convert { to, from, rounding, mode, dst, a } => {
                let values = warp.get(a).map(|bits| arith::convert(to, from, rounding, mode, bits));
                self.set(dst, &values);
            }
            Arith::ConvertPair { to, dst, low, high } => {
                let (low, high) = (warp.words(low), warp.words(high));
                let half = |bits: u32| arith::round_half(to, f32::from_bits(bits)) as u32;
                let values = std::array::from_fn(|lane| half(low[lane]) | half(high[lane]) << 16);
                self.set_words(dst, &values);
            }
            Arith::ConvertNarrow { to, direction, relu, dst, from } => {
                let pairs: [[f32; 2]; 32] = match from {
                    FloatPair::Halves(a) => {
                        let halves = warp.words(a);
                        let half = |bits: u32| half::f16::from_bits(bits as u16).to_f32();
                        std::array::from_fn(|lane| [half(halves[lane]), half(halves[lane] >> 16)])
                    }
                    FloatPair::Bfloats(a) => {
                        let halves = warp.words(a);
                        std::array::from_fn(|lane| [halves[lane] << 16, halves[lane] & !0xffff].map(f32::from_bits))
                    }
                    FloatPair::Floats(floats) => {
                        let [low, high] = floats.map(|float| warp.words(float));
                        std::array::from_fn(|lane| [low[lane], high[lane]].map(f32::from_bits))
                    }
                };
                let code = |value: f32| u64::from(narrow::round(to, direction, relu, value));
                let apart = if to == NarrowFloat::E2m1 { 4 } else { 8 };
                self.set(dst, &pairs.map(|[low, high]| code(low) | code(high) << apart));
            }
            Arith::ConvertWide { from, relu, dst, a } => {
                let apart = if from == NarrowFloat::E2m1 { 4 } else { 8 };
                let half = |code: u64| u64::from(narrow::half(from, relu, (code & ((1 << apart) - 1)) as u8));
                let values = warp.get(a).map(|codes| half(codes) | half(codes >> apart) << 16);
                self.set(dst, &values);
            }
            Arith::Pack { dst, low, high } => {
                let half = dst.bank.bits() / 2;
                let (low, high) = (warp.value(low), warp.value(high));
                let keep = (1 << half) - 1;
                let values = std::array::from_fn(|lane| low[lane] & keep | (high[lane] & keep) << half);
                self.set(dst, &values);
            }
            Arith::Unpack { low, high, a } => {
                let (half, a) = (a.bank.bits() / 2, warp.get(a));
                self.set(low, &a);
                self.set(high, &a.map(|bits| bits >> half));
            }
            Arith::IsCanceled { dst, answer } => {
                let answers = self.answers(answer)?;
                self.cluster.refused |= lanes(self.mask).any(|lane| answers[lane].is_none());
                self.set_predicate(dst, lanes::mask_of(|lane| answers[lane].is_some()));
            }
            Arith::FirstBlock { dsts, answer } => {
                let answers = self.answers(answer)?;
                if lanes(self.mask).any(|lane| answers[lane].is_none()) {
                    let what = "clusters that an answer tells of whose first block is asked for";
                    return Err(FaultKind::BadOperand { what, found: 0, wanted: "one: is_canceled must hold" });
                }
                for (axis, dst) in dsts.into_iter().enumerate() {
                    self.set_words(dst, &answers.map(|first| first.map_or(0, |first| first[axis])));
                }
            }
            Arith::Special { dst, which } => {
                let values = self.special(which);
                self.set(dst, &values);
            }
            Arith::Param { dst, width, from, offset } => self.param(dst, width, from, offset)?,
            Arith::ParamAddress { dst, param } | Arith::ParamTable { dst, param } => {
                self.set(dst, &[Invocation::param_address(param); 32]);
            }
            Arith::SharedAddress { dst, offset } => {
                let address = SharedMemory::address(self.rank, offset);
                self.set(dst, &[address.into(); 32]);
            }
            Arith::VariableAddress { dst, variable, offset } => {
                let addresses = self.variable_addresses(variable as usize, offset);
                self.set(dst, &addresses);
            }
            Arith::ToGlobal { dst, a } => {
                let a = warp.get(a);
                self.set(dst, &a);
            }
            Arith::FromShared { dst, a } => {
                let a = warp.get(a).map(|address| SharedMemory::to_generic(address as u32));
                self.set(dst, &a);
            }
            Arith::ToShared { dst, a } => {
                let near = |address| SharedMemory::of_generic(address).unwrap_or(SharedMemory::NOWHERE);
                let a = warp.get(a).map(|address| near(address).into());
                self.set(dst, &a);
            }
            Arith::InWindow { dst, window, a } => {
                let a = warp.get(a);
                let holds = lanes::mask_of(|lane| self.in_window(window, a[lane]));
                self.set_predicate(dst, holds);
            }
            Arith::MapShared { dst, a, rank } => self.map_shared(dst, a, rank)?,
            Arith::Policy { dst, keep } => self.set(dst, &[u64::from(keep); 32]),
        }
        Ok(())
    }

    /// The answers of launch control in two registers.
    fn answers(&self, [low, high]: [RegId; 2]) -> Result<[Option<[u32; 3]>; 32], FaultKind> {
        let (low, high, mut answers) = (self.warp.get(low), self.warp.get(high), [None; 32]);
        for lane in lanes(self.mask) {
            answers[lane] = launch_control::read([low[lane], high[lane]]).ok_or(FaultKind::BadOperand {
                what: "an answer of launch control",
                found: high[lane],
                wanted: "the sixteen bytes as try_cancel left them",
            })?;
        }
        Ok(answers)
    }

    /// The lanes in which a function of predicates holds.
    fn predicate(&self, op: PredicateOp) -> u32 {
        let holds = |reg: RegId| self.warp.holds(reg);
        match op {
            PredicateOp::Const(true) => FULL,
            PredicateOp::Const(false) => 0,
            PredicateOp::Move(a) => holds(a),
            PredicateOp::Not(a) => !holds(a),
            PredicateOp::Logic(LogicOp::And, a, b) => holds(a) & holds(b),
            PredicateOp::Logic(LogicOp::Or, a, b) => holds(a) | holds(b),
            PredicateOp::Logic(LogicOp::Xor, a, b) => holds(a) ^ holds(b),
        }
    }

    fn param(&mut self, dst: RegId, width: Width, from: ParamBase, offset: u32) -> Result<(), FaultKind> {
        let mut values = [0; 32];
        match from {
            ParamBase::Param(param) => {
                values = [self.param_part(width, Invocation::param_address(param) + u64::from(offset))?; 32];
            }
            ParamBase::Reg(at) => {
                let at = self.warp.get(at);
                for lane in lanes(self.mask) {
                    values[lane] = self.param_part(width, at[lane].wrapping_add(offset.into()))?;
                }
            }
        }
        self.set(dst, &values);
        Ok(())
    }

    /// A part of a parameter, as a register holds it.
    pub(crate) fn param_part(&self, width: Width, address: u64) -> Result<u64, FaultKind> {
        let extended = |value: u64| match width {
            Width::S8 => i64::from(value as i8).cast_unsigned(),
            Width::S16 => i64::from(value as i16).cast_unsigned(),
            _ => value,
        };
        self.core.launch.param_at(address, width.bytes()).map(extended).ok_or(FaultKind::BadOperand {
            what: "the address of a part of a parameter",
            found: address,
            wanted: "one inside what the launch gives",
        })
    }

    /// The addresses of a byte of a variable, by lane.
    fn variable_addresses(&self, variable: usize, offset: u32) -> Lanes {
        let (kernel, grid) = (self.core.program.kernel, self.core.launch.grid.map(u64::from));
        let start = self.core.variables.get(variable).map_or(0, |start| start + u64::from(offset));
        let Some(local) = kernel.variables.get(variable).filter(|variable| variable.space == VariableSpace::Local)
        else {
            return [start; 32];
        };
        let [x, y, z] = self.cluster.blocks[self.rank].id.map(u64::from);
        let block = x + grid[0] * (y + grid[1] * z);
        let first = block * u64::from(kernel.launch.threads) + 32 * self.warp.index as u64;
        let size = u64::from(local.bytes.next_multiple_of(local.align));
        std::array::from_fn(|lane| start + (first + lane as u64) * size)
    }

    fn map_shared(&mut self, dst: RegId, a: RegId, rank: ptx::Operand) -> Result<(), FaultKind> {
        let (a, rank) = (self.warp.get(a), self.warp.value(rank));
        let blocks = self.cluster.blocks.len() as u64;
        if let Some(lane) = lanes(self.mask).find(|&lane| rank[lane] >= blocks) {
            let (what, found) = ("the rank of a block in the cluster", rank[lane]);
            return Err(FaultKind::BadOperand { what, found, wanted: "less than the number of blocks in the cluster" });
        }
        let window = u64::from(SharedMemory::WINDOW);
        let values = std::array::from_fn(|lane| a[lane] % window + rank[lane] * window);
        self.set(dst, &values);
        Ok(())
    }

    fn special(&self, which: SpecialRegister) -> Lanes {
        use SpecialRegister as S;
        let ([x, y, z], grid, shape) =
            (self.cluster.blocks[self.rank].id, self.core.launch.grid, self.core.cluster_shape);
        let block = self.core.program.kernel.block();
        // Threads are counted along x first, then y, then z.
        let thread = |axis: usize| -> Lanes {
            let (before, size) = (block[..axis].iter().product::<u32>().max(1), block[axis].max(1));
            std::array::from_fn(|lane| u64::from((self.warp.index * 32 + lane) as u32 / before % size))
        };
        let value: u64 = match which {
            S::TidX => return thread(0),
            S::TidY => return thread(1),
            S::TidZ => return thread(2),
            S::LaneId => return std::array::from_fn(|lane| lane as u64),
            S::LanemaskEq => return std::array::from_fn(|lane| 1 << lane),
            S::LanemaskLe => return std::array::from_fn(|lane| (2 << lane) - 1),
            S::LanemaskLt => return std::array::from_fn(|lane| (1 << lane) - 1),
            S::LanemaskGe => return std::array::from_fn(|lane| 0xffff_ffff & !((1 << lane) - 1)),
            S::LanemaskGt => return std::array::from_fn(|lane| 0xffff_ffff & !((2 << lane) - 1)),
            S::DynamicSharedBytes | S::TotalSharedBytes => self.core.program.kernel.shared_bytes().into(),
            S::NwarpId => 64,
            S::NsmId => self.core.multiprocessors.into(),
            S::NtidX => block[0].into(),
            S::NtidY => block[1].into(),
            S::NtidZ => block[2].into(),
            S::CtaidX => x.into(),
            S::CtaidY => y.into(),
            S::CtaidZ => z.into(),
            S::NctaidX => grid[0].into(),
            S::NctaidY => grid[1].into(),
            S::NctaidZ => grid[2].into(),
            S::ClusteridX => (x / shape[0]).into(),
            S::ClusteridY => (y / shape[1]).into(),
            S::ClusteridZ => (z / shape[2]).into(),
            S::NclusteridX => (grid[0] / shape[0]).into(),
            S::NclusteridY => (grid[1] / shape[1]).into(),
            S::NclusteridZ => (grid[2] / shape[2]).into(),
            S::ClusterCtaidX => (x % shape[0]).into(),
            S::ClusterCtaidY => (y % shape[1]).into(),
            S::ClusterCtaidZ => (z % shape[2]).into(),
            S::ClusterNctaidX => shape[0].into(),
            S::ClusterNctaidY => shape[1].into(),
            S::ClusterNctaidZ => shape[2].into(),
            S::ClusterCtaRank => self.rank as u64,
            S::ClusterNctaRank => self.cluster.blocks.len() as u64,
            // Hardware promises no relation between the slot and the thread index, so neither does this; nor one
            // between multiprocessors and blocks.
            S::WarpId => (self.warp.index ^ 1) as u64,
            S::SmId => {
                let block = u64::from(self.cluster.index) * self.cluster.blocks.len() as u64 + self.rank as u64;
                let last = u64::from(self.core.multiprocessors) - 1;
                last - block % (last + 1)
            }
            S::Clock | S::Clock64 | S::GlobalTimer => self.core.clock,
        };
        [value; 32]
    }
}

/// Bytes of a register of this bank in memory.
pub(super) fn bank_bytes(bank: Bank) -> u32 {
    (bank.bits() / 8).max(1)
}
