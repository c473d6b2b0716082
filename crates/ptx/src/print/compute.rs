//! Text of what threads and warps do themselves: arithmetic, memory accesses, shuffles, votes and the multiplications
//! of a warp.

use super::{SHARED, address, list, operand, scope, space, suffix, vector, when, word};
use crate::instr::{
    Arith, AtomicOp, BinaryOp, Comparison, Direction, FloatMode, FloatPair, LoadOrder, LogicOp, MatrixElement, Memory,
    Mma, NarrowFloat, ParamBase, PredicateOp, ReduceOp, Rounding, Scaling, ShuffleMode, SpecialRegister, StoreOrder,
    TernaryOp, UnaryOp, VoteMode, Warp, Width, Window,
};
use crate::kernel::Kernel;
use crate::target::Target;
use crate::types::{Bank, DataType, ParamId, RegId, Space};

impl Kernel {
    pub(super) fn arith(&self, op: &Arith) -> String {
        match *op {
            Arith::Unary { op, ty, mode, dst, a } => format!("{} {dst}, {}", unary(op, ty, mode), operand(a, ty)),
            Arith::Binary { op, ty, mode, dst, a, b } => {
                let second = if matches!(op, BinaryOp::Shl | BinaryOp::Shr) { DataType::U32 } else { ty };
                format!("{} {dst}, {}, {}", binary(op, ty, mode), operand(a, ty), operand(b, second))
            }
            Arith::Ternary { op, ty, mode, dst, a, b, c } => {
                ternary(op, ty, mode, dst, [a, b, c].map(|x| operand(x, ty)))
            }
            Arith::MulWide { ty, dst, a, b, c: None } => {
                format!("mul.wide.{} {dst}, {}, {}", suffix(ty), operand(a, ty), operand(b, ty))
            }
            Arith::MulWide { ty, dst, a, b, c: Some(c) } => {
                let (a, b, c) = (operand(a, ty), operand(b, ty), operand(c, ty.twice()));
                format!("mad.wide.{} {dst}, {a}, {b}, {c}", suffix(ty))
            }
            Arith::Compare { cmp, ty, dst, a, b } => {
                format!("setp.{}.{} {dst}, {}, {}", comparison(cmp, ty), suffix(ty), operand(a, ty), operand(b, ty))
            }
            Arith::Select { ty, dst, a, b, pred } => {
                format!("selp.{} {dst}, {}, {}, {pred}", bits(ty), operand(a, ty), operand(b, ty))
            }
            Arith::Predicate { dst, op } => predicate(dst, op),
            Arith::Convert { to, from, rounding, mode, dst, a } => {
                let (flush, saturate) = (when(mode.flush, ".ftz"), when(mode.saturate, ".sat"));
                format!("cvt{}{flush}{saturate}.{}.{} {dst}, {a}", rounding_mode(rounding), suffix(to), suffix(from))
            }
            // PTX names the high half first.
            Arith::ConvertPair { to, dst, low, high } => format!("cvt.rn.{}.f32 {dst}, {high}, {low}", suffix(to)),
            Arith::ConvertNarrow { to, direction: towards, relu, dst, from } => {
                let (ty, operands) = match from {
                    FloatPair::Halves(a) => ("f16x2", a.to_string()),
                    FloatPair::Bfloats(a) => ("bf16x2", a.to_string()),
                    FloatPair::Floats([low, high]) => ("f32", format!("{high}, {low}")),
                };
                let (relu, to_ty) = (when(relu, ".relu"), narrow_pair(to));
                let head = format!("cvt.{}{relu}.satfinite.{to_ty}.{ty}", direction(towards));
                match to {
                    NarrowFloat::E2m1 => {
                        format!("{{ .reg .b8 %byte; {head} %byte, {operands}; cvt.u16.u8 {dst}, %byte; }}")
                    }
                    _ => format!("{head} {dst}, {operands}"),
                }
            }
            Arith::ConvertWide { from, relu, dst, a } => {
                let to = if from == NarrowFloat::Ue8m0 { "bf16x2" } else { "f16x2" };
                let head = format!("cvt.rn{}.{to}.{}", when(relu, ".relu"), narrow_pair(from));
                match from {
                    NarrowFloat::E2m1 => {
                        format!("{{ .reg .b8 %byte; cvt.u8.u16 %byte, {a}; {head} {dst}, %byte; }}")
                    }
                    _ => format!("{head} {dst}, {a}"),
                }
            }
            Arith::Pack { dst, low, high } => {
                format!("mov.b{} {dst}, {{{}, {}}}", dst.bank.bits(), word(low), word(high))
            }
            Arith::Unpack { low, high, a } => format!("mov.b{} {{{low}, {high}}}, {a}", a.bank.bits()),
            Arith::IsCanceled { dst, answer } => query(answer, "is_canceled.pred", &dst.to_string()),
            Arith::FirstBlock { dsts: [x, y, z], answer } => {
                query(answer, "get_first_ctaid.v4.b32", &format!("{{{x}, {y}, {z}, _}}"))
            }
            Arith::Special { dst, which } => format!("mov.b{} {dst}, %{}", dst.bank.bits(), special(which)),
            Arith::Param { dst, width, from, offset } => {
                let from = match (from, offset) {
                    (ParamBase::Param(param), 0) => self.param_name(param).to_string(),
                    (ParamBase::Param(param), offset) => format!("{}+{offset}", self.param_name(param)),
                    (ParamBase::Reg(at), offset) => format!("{at}+{offset}"),
                };
                format!("ld.param.{} {dst}, [{from}]", self::width(width, 1))
            }
            Arith::ParamAddress { dst, param } => {
                format!("mov.b64 {dst}, {};\n\tcvta.param.u64 {dst}, {dst}", self.param_name(param))
            }
            Arith::ParamTable { dst, param } => {
                format!("mov.b{} {dst}, {}", dst.bank.bits(), self.param_name(param))
            }
            Arith::SharedAddress { dst, offset: 0 } => format!("mov.b32 {dst}, {SHARED}"),
            Arith::SharedAddress { dst, offset } => format!("mov.b32 {dst}, {SHARED}+{offset}"),
            Arith::VariableAddress { dst, variable, offset } => {
                let name = self.variables.get(variable as usize).map_or("?", |variable| &variable.name);
                let plus = if offset == 0 { String::new() } else { format!("+{offset}") };
                format!("mov.b64 {dst}, {name}{plus}")
            }
            Arith::ToGlobal { dst, a } => format!("cvta.to.global.u64 {dst}, {a}"),
            Arith::FromShared { dst, a } => format!("cvta.shared.u64 {dst}, {a}"),
            Arith::ToShared { dst, a } => format!("cvta.to.shared.u64 {dst}, {a}"),
            Arith::InWindow { dst, window, a } => format!("isspacep.{} {dst}, {a}", self::window(window)),
            Arith::MapShared { dst, a, rank } => format!("mapa.shared::cluster.u32 {dst}, {a}, {}", word(rank)),
            Arith::Policy { dst, keep } => {
                format!("createpolicy.fractional.L2::evict_{}.b64 {dst}", if keep { "last" } else { "first" })
            }
        }
    }

    fn param_name(&self, param: ParamId) -> &str {
        self.params.get(param.0 as usize).map_or("undeclared_parameter", |param| &param.name)
    }
}

/// A question about an answer of launch control, which instructions take as one register of 128 bits.
fn query([low, high]: [RegId; 2], what: &str, dst: &str) -> String {
    format!(
        "{{ .reg .b128 %answer; mov.b128 %answer, {{{low}, {high}}}; \
         clusterlaunchcontrol.query_cancel.{what}.b128 {dst}, %answer; }}"
    )
}

/// The type as plain bits: logic, selection and moves do not care for more.
fn bits(ty: DataType) -> &'static str {
    match ty.bank() {
        Bank::Pred => "pred",
        Bank::B16 => "b16",
        Bank::B32 => "b32",
        Bank::B64 => "b64",
    }
}

/// A direction of rounding.
pub(crate) fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Nearest => "rn",
        Direction::Zero => "rz",
        Direction::Down => "rm",
        Direction::Up => "rp",
    }
}

/// What of a mode is said behind a direction.
fn flags(mode: FloatMode) -> String {
    format!("{}{}", when(mode.flush, ".ftz"), when(mode.saturate, ".sat"))
}

fn unary(op: UnaryOp, ty: DataType, mode: FloatMode) -> String {
    let (name, rounded) = match op {
        UnaryOp::Move => return format!("mov.{}", bits(ty)),
        UnaryOp::Not => return format!("not.{}", bits(ty)),
        UnaryOp::CountOnes => return format!("popc.{}", bits(ty)),
        UnaryOp::LeadingZeros => return format!("clz.{}", bits(ty)),
        UnaryOp::ReverseBits => return format!("brev.{}", bits(ty)),
        UnaryOp::Neg => ("neg", false),
        UnaryOp::Abs => ("abs", false),
        UnaryOp::Exp2Approx => ("ex2.approx", false),
        UnaryOp::RcpApprox => ("rcp.approx", false),
        UnaryOp::Rcp => ("rcp", true),
        UnaryOp::SqrtApprox => ("sqrt.approx", false),
        UnaryOp::Sqrt => ("sqrt", true),
        UnaryOp::RsqrtApprox => ("rsqrt.approx", false),
        UnaryOp::Log2Approx => ("lg2.approx", false),
        UnaryOp::SinApprox => ("sin.approx", false),
        UnaryOp::CosApprox => ("cos.approx", false),
        UnaryOp::TanhApprox => ("tanh.approx", false),
    };
    let rounded = if rounded { format!(".{}", direction(mode.direction)) } else { String::new() };
    format!("{name}{rounded}{}.{}", flags(mode), suffix(ty))
}

fn binary(op: BinaryOp, ty: DataType, mode: FloatMode) -> String {
    let ty_name = suffix(ty);
    // A rounding mode keeps the assembler from fusing a product with a neighbouring sum.
    let rounded = if ty.is_float() { format!(".{}{}", direction(mode.direction), flags(mode)) } else { String::new() };
    let flags = flags(mode);
    match op {
        BinaryOp::Add => format!("add{rounded}.{ty_name}"),
        BinaryOp::Sub => format!("sub{rounded}.{ty_name}"),
        BinaryOp::Mul if ty.is_float() => format!("mul{rounded}.{ty_name}"),
        BinaryOp::Mul => format!("mul.lo.{ty_name}"),
        BinaryOp::MulHigh => format!("mul.hi.{ty_name}"),
        BinaryOp::Min => format!("min{flags}.{ty_name}"),
        BinaryOp::Max => format!("max{flags}.{ty_name}"),
        BinaryOp::MinNan => format!("min{flags}.NaN.{ty_name}"),
        BinaryOp::MaxNan => format!("max{flags}.NaN.{ty_name}"),
        BinaryOp::And => format!("and.{}", bits(ty)),
        BinaryOp::Or => format!("or.{}", bits(ty)),
        BinaryOp::Xor => format!("xor.{}", bits(ty)),
        BinaryOp::Shl => format!("shl.{}", bits(ty)),
        BinaryOp::Shr => format!("shr.{ty_name}"),
        BinaryOp::Div => format!("div{rounded}.{ty_name}"),
        BinaryOp::DivApprox => format!("div.approx{flags}.{ty_name}"),
        BinaryOp::DivFull => format!("div.full{flags}.{ty_name}"),
        BinaryOp::Rem => format!("rem.{ty_name}"),
    }
}

fn ternary(op: TernaryOp, ty: DataType, mode: FloatMode, dst: RegId, [a, b, c]: [String; 3]) -> String {
    let name = suffix(ty);
    match op {
        TernaryOp::MulAdd => format!("mad.lo.{name} {dst}, {a}, {b}, {c}"),
        TernaryOp::MulAddHigh => format!("mad.hi.{name} {dst}, {a}, {b}, {c}"),
        TernaryOp::Fma => format!("fma.{}{}.{name} {dst}, {a}, {b}, {c}", direction(mode.direction), flags(mode)),
        TernaryOp::Lop3(table) => format!("lop3.b32 {dst}, {a}, {b}, {c}, {table:#x}"),
        TernaryOp::Permute => format!("prmt.b32 {dst}, {a}, {b}, {c}"),
        TernaryOp::FunnelLeft => format!("shf.l.wrap.b32 {dst}, {a}, {b}, {c}"),
        TernaryOp::FunnelRight => format!("shf.r.wrap.b32 {dst}, {a}, {b}, {c}"),
        TernaryOp::FunnelLeftClamp => format!("shf.l.clamp.b32 {dst}, {a}, {b}, {c}"),
        TernaryOp::FunnelRightClamp => format!("shf.r.clamp.b32 {dst}, {a}, {b}, {c}"),
        TernaryOp::BitExtract => format!("bfe.{name} {dst}, {a}, {b}, {c}"),
    }
}

/// A relation. For floats "ne" is false on NaN; "neu" is Rust's `!=`.
pub(crate) fn comparison(cmp: Comparison, ty: DataType) -> &'static str {
    match cmp {
        Comparison::Eq => "eq",
        Comparison::Ne if ty.is_float() => "neu",
        Comparison::Ne | Comparison::OrderedNe => "ne",
        Comparison::Lt => "lt",
        Comparison::Le => "le",
        Comparison::Gt => "gt",
        Comparison::Ge => "ge",
        Comparison::UnorderedEq => "equ",
        Comparison::UnorderedLt => "ltu",
        Comparison::UnorderedLe => "leu",
        Comparison::UnorderedGt => "gtu",
        Comparison::UnorderedGe => "geu",
        Comparison::Numbers => "num",
        Comparison::Nan => "nan",
    }
}

fn predicate(dst: RegId, op: PredicateOp) -> String {
    match op {
        PredicateOp::Const(value) => format!("mov.pred {dst}, {}", u32::from(value)),
        PredicateOp::Move(a) => format!("mov.pred {dst}, {a}"),
        PredicateOp::Not(a) => format!("not.pred {dst}, {a}"),
        PredicateOp::Logic(LogicOp::And, a, b) => format!("and.pred {dst}, {a}, {b}"),
        PredicateOp::Logic(LogicOp::Or, a, b) => format!("or.pred {dst}, {a}, {b}"),
        PredicateOp::Logic(LogicOp::Xor, a, b) => format!("xor.pred {dst}, {a}, {b}"),
    }
}

/// How a conversion rounds, with its dot.
pub(crate) fn rounding_mode(rounding: Rounding) -> &'static str {
    match rounding {
        Rounding::Exact => "",
        Rounding::NearestEven => ".rn",
        Rounding::Zero => ".rz",
        Rounding::Down => ".rm",
        Rounding::Up => ".rp",
        Rounding::NearestInteger => ".rni",
        Rounding::TowardsZero => ".rzi",
        Rounding::DownInteger => ".rmi",
        Rounding::UpInteger => ".rpi",
    }
}

/// A window that `isspacep` asks about.
pub(crate) fn window(window: Window) -> &'static str {
    match window {
        Window::Global => "global",
        Window::Constant => "const",
        Window::Local => "local",
        Window::Param => "param",
        Window::Shared => "shared",
        Window::Cluster => "shared::cluster",
    }
}

/// A special register's name, without the percent sign.
pub(crate) fn special(which: SpecialRegister) -> &'static str {
    match which {
        SpecialRegister::TidX => "tid.x",
        SpecialRegister::TidY => "tid.y",
        SpecialRegister::TidZ => "tid.z",
        SpecialRegister::NtidX => "ntid.x",
        SpecialRegister::NtidY => "ntid.y",
        SpecialRegister::NtidZ => "ntid.z",
        SpecialRegister::CtaidX => "ctaid.x",
        SpecialRegister::CtaidY => "ctaid.y",
        SpecialRegister::CtaidZ => "ctaid.z",
        SpecialRegister::NctaidX => "nctaid.x",
        SpecialRegister::NctaidY => "nctaid.y",
        SpecialRegister::NctaidZ => "nctaid.z",
        SpecialRegister::ClusteridX => "clusterid.x",
        SpecialRegister::ClusteridY => "clusterid.y",
        SpecialRegister::ClusteridZ => "clusterid.z",
        SpecialRegister::NclusteridX => "nclusterid.x",
        SpecialRegister::NclusteridY => "nclusterid.y",
        SpecialRegister::NclusteridZ => "nclusterid.z",
        SpecialRegister::ClusterCtaidX => "cluster_ctaid.x",
        SpecialRegister::ClusterCtaidY => "cluster_ctaid.y",
        SpecialRegister::ClusterCtaidZ => "cluster_ctaid.z",
        SpecialRegister::ClusterNctaidX => "cluster_nctaid.x",
        SpecialRegister::ClusterNctaidY => "cluster_nctaid.y",
        SpecialRegister::ClusterNctaidZ => "cluster_nctaid.z",
        SpecialRegister::ClusterCtaRank => "cluster_ctarank",
        SpecialRegister::ClusterNctaRank => "cluster_nctarank",
        SpecialRegister::LaneId => "laneid",
        SpecialRegister::WarpId => "warpid",
        SpecialRegister::NwarpId => "nwarpid",
        SpecialRegister::SmId => "smid",
        SpecialRegister::NsmId => "nsmid",
        SpecialRegister::LanemaskEq => "lanemask_eq",
        SpecialRegister::LanemaskLe => "lanemask_le",
        SpecialRegister::LanemaskLt => "lanemask_lt",
        SpecialRegister::LanemaskGe => "lanemask_ge",
        SpecialRegister::LanemaskGt => "lanemask_gt",
        SpecialRegister::DynamicSharedBytes => "dynamic_smem_size",
        SpecialRegister::TotalSharedBytes => "total_smem_size",
        SpecialRegister::Clock => "clock",
        SpecialRegister::Clock64 => "clock64",
        SpecialRegister::GlobalTimer => "globaltimer",
    }
}

fn width(width: Width, elements: usize) -> String {
    let (letter, bits) = (if width.is_signed() { 's' } else { 'b' }, width.bytes() * 8);
    if elements == 1 { format!("{letter}{bits}") } else { format!("v{elements}.{letter}{bits}") }
}

/// What an atomic does, with its type.
pub(crate) fn atomic(op: AtomicOp, ty: DataType) -> String {
    let (name, typed) = match op {
        AtomicOp::Add => ("add", true),
        AtomicOp::Min => ("min", true),
        AtomicOp::Max => ("max", true),
        AtomicOp::Increment => ("inc", true),
        AtomicOp::Decrement => ("dec", true),
        AtomicOp::Exchange => ("exch", false),
        AtomicOp::And => ("and", false),
        AtomicOp::Or => ("or", false),
        AtomicOp::Xor => ("xor", false),
        AtomicOp::CompareExchange => ("cas", false),
    };
    format!("{name}.{}", if typed { suffix(ty) } else { bits(ty) })
}

pub(super) fn memory(op: &Memory, target: Target) -> String {
    match op {
        Memory::Load { space: window, order, width: size, dsts, addr } => {
            let window = space(*window, target);
            let kind = match order {
                LoadOrder::Weak => window.to_string(),
                LoadOrder::ReadOnly => format!("{window}.nc"),
                LoadOrder::Streaming => format!("{window}.nc.L1::no_allocate"),
                LoadOrder::Relaxed(among) => format!(".relaxed.{}{window}", scope(*among)),
                LoadOrder::Acquire(among) => format!(".acquire.{}{window}", scope(*among)),
            };
            format!("ld{kind}.{} {}, {}", width(*size, dsts.len()), vector(dsts), address(*addr))
        }
        Memory::Store { space: window, order, width: size, srcs, addr } => {
            let window = space(*window, target);
            let kind = match order {
                StoreOrder::Weak => window.to_string(),
                StoreOrder::Relaxed(among) => format!(".relaxed.{}{window}", scope(*among)),
                StoreOrder::Release(among) => format!(".release.{}{window}", scope(*among)),
            };
            format!("st{kind}.{} {}, {}", width(*size, srcs.len()), address(*addr), vector(srcs))
        }
        Memory::Atomic { space: window, op, ty, acq_rel, scope: among, dst, addr, a, b } => {
            let order = if *acq_rel { "acq_rel" } else { "relaxed" };
            let kind = format!("{order}.{}{}.{}", scope(*among), space(*window, target), atomic(*op, *ty));
            let b = b.map(|b| format!(", {}", operand(b, *ty))).unwrap_or_default();
            match dst {
                Some(dst) => format!("atom.{kind} {dst}, {}, {}{b}", address(*addr), operand(*a, *ty)),
                None => format!("red.{kind} {}, {}{b}", address(*addr), operand(*a, *ty)),
            }
        }
    }
}

pub(super) fn warp(op: &Warp, target: Target) -> String {
    let shared = space(Space::Shared, target);
    match op {
        Warp::Shuffle { mode, dst, valid, a, lane, clamp, mask } => {
            let mode = match mode {
                ShuffleMode::Index => "idx",
                ShuffleMode::Butterfly => "bfly",
                ShuffleMode::Up => "up",
                ShuffleMode::Down => "down",
            };
            let valid = valid.map(|pred| format!("|{pred}")).unwrap_or_default();
            format!("shfl.sync.{mode}.b32 {dst}{valid}, {a}, {}, {}, {}", word(*lane), word(*clamp), word(*mask))
        }
        Warp::Vote { mode, dst, pred, mask } => {
            let mode = match mode {
                VoteMode::All => "all",
                VoteMode::Any => "any",
                VoteMode::Uniform => "uni",
            };
            format!("vote.sync.{mode}.pred {dst}, {pred}, {}", word(*mask))
        }
        Warp::Ballot { dst, pred, mask } => format!("vote.sync.ballot.b32 {dst}, {pred}, {}", word(*mask)),
        Warp::ActiveMask { dst } => format!("activemask.b32 {dst}"),
        Warp::Elect { leader, pred, mask } => {
            let leader = leader.map_or("_".into(), |leader| leader.to_string());
            format!("elect.sync {leader}|{pred}, {}", word(*mask))
        }
        Warp::Reduce { op, ty, dst, a, mask } => format!("redux.sync.{} {dst}, {a}, {}", reduce(*op, *ty), word(*mask)),
        Warp::Match { all, ty, dst, same, a, mask } => {
            let (mode, same) =
                (if *all { "all" } else { "any" }, same.map(|same| format!("|{same}")).unwrap_or_default());
            format!("match.{mode}.sync.{} {dst}{same}, {}, {}", bits(*ty), operand(*a, *ty), word(*mask))
        }
        Warp::Sync { mask } => format!("bar.warp.sync {}", word(*mask)),
        Warp::LoadMatrix { transpose, dsts, addr } => {
            let trans = when(*transpose, ".trans");
            format!("ldmatrix.sync.aligned.m8n8.x{}{trans}{shared}.b16 {}, {}", dsts.len(), list(dsts), address(*addr))
        }
        Warp::StoreMatrix { transpose, srcs, addr } => {
            let trans = when(*transpose, ".trans");
            format!("stmatrix.sync.aligned.m8n8.x{}{trans}{shared}.b16 {}, {}", srcs.len(), address(*addr), list(srcs))
        }
    }
}

pub(super) fn mma(op: &Mma) -> String {
    match op {
        Mma::Dense { element, saturate, d, a, b } => {
            let saturate = if *saturate { ".satfinite" } else { "" };
            let ty = element_name(*element);
            let (d, a, b) = (list(d), list(a), list(b));
            let (k, sums) = (element.depth(), if element.is_integer() { "s32" } else { "f32" });
            format!("mma.sync.aligned.m16n8k{k}.row.col{saturate}.{sums}.{ty}.{ty}.{sums} {d}, {a}, {b}, {d}")
        }
        Mma::BlockScaled { scaling, d, a, b, scale_a, lanes_a, byte_a, scale_b, lane_b, byte_b } => {
            let (d, a, b) = (list(d), list(a), list(b));
            let (kind, [of_a, of_b]) = match *scaling {
                Scaling::NvFp4 => ("mxf4nvf4.block_scale.scale_vec::4X", ["e2m1"; 2]),
                Scaling::MxFp4 => ("mxf4.block_scale.scale_vec::2X", ["e2m1"; 2]),
                Scaling::Mx(elements) => ("mxf8f6f4.block_scale.scale_vec::1X", elements.map(narrow)),
            };
            let (k, scales) = (scaling.depth(), if *scaling == Scaling::NvFp4 { "ue4m3" } else { "ue8m0" });
            format!(
                "mma.sync.aligned.m16n8k{k}.row.col.kind::{kind}.f32.{of_a}.{of_b}.f32.{scales} \
                 {d}, {a}, {b}, {d}, {scale_a}, {{{byte_a}, {lanes_a}}}, {scale_b}, {{{byte_b}, {lane_b}}}"
            )
        }
    }
}

/// A narrow float as PTX names it.
pub(crate) fn narrow(ty: NarrowFloat) -> &'static str {
    match ty {
        NarrowFloat::E4m3 => "e4m3",
        NarrowFloat::E5m2 => "e5m2",
        NarrowFloat::E2m3 => "e2m3",
        NarrowFloat::E3m2 => "e3m2",
        NarrowFloat::E2m1 => "e2m1",
        NarrowFloat::Ue8m0 => "ue8m0",
    }
}

/// Two of them.
pub(crate) fn narrow_pair(ty: NarrowFloat) -> String {
    format!("{}x2", narrow(ty))
}

/// Elements of A and B as PTX names them.
pub(crate) fn element_name(element: MatrixElement) -> &'static str {
    match element {
        MatrixElement::F16 => "f16",
        MatrixElement::Bf16 => "bf16",
        MatrixElement::Tf32 => "tf32",
        MatrixElement::E4m3 => "e4m3",
        MatrixElement::E5m2 => "e5m2",
        MatrixElement::S8 => "s8",
        MatrixElement::U8 => "u8",
    }
}

/// A reduction with its type.
pub(crate) fn reduce(op: ReduceOp, ty: DataType) -> String {
    match op {
        ReduceOp::Add => format!("add.{}", suffix(ty)),
        ReduceOp::Min => format!("min.{}", suffix(ty)),
        ReduceOp::Max => format!("max.{}", suffix(ty)),
        ReduceOp::And => "and.b32".into(),
        ReduceOp::Or => "or.b32".into(),
        ReduceOp::Xor => "xor.b32".into(),
        ReduceOp::MinNan => format!("min.NaN.{}", suffix(ty)),
        ReduceOp::MaxNan => format!("max.NaN.{}", suffix(ty)),
    }
}
