//! Text of what the hardware does beside the threads: barriers, fences, copies, tensor cores.

use super::compute::element_name;
use super::{address, list, operand, optional, scope, vector, when, word};
use crate::instr::{
    Accumulate, Arrival, AsyncCopy, Barrier, CellShape, Collector, CtaGroup, DenseKind, Fence, MatrixA, ScaledKind,
    Semantics, Tcgen05, TensorA, Wgmma,
};
use crate::target::Target;
use crate::types::{DataType, Operand, RegId, Scope, Space};

/// The qualifiers of an arrive or wait; the default (ordered, within the block) is left unsaid.
fn ordering(sem: Semantics, among: Scope, ordered: &str) -> String {
    match (sem, among) {
        (Semantics::Ordered, Scope::Block) => String::new(),
        (Semantics::Ordered, among) => format!(".{ordered}.{}", scope(among)),
        (Semantics::Relaxed, among) => format!(".relaxed.{}", scope(among)),
    }
}

/// A window as instructions name it that exist only where there are clusters.
fn space(window: Space) -> &'static str {
    super::space(window, Target::Sm90a)
}

/// A result that need not be kept.
fn kept(state: Option<RegId>) -> String {
    state.map_or("_".into(), |state| state.to_string())
}

pub(super) fn barrier(op: &Barrier) -> String {
    match *op {
        Barrier::Init { bar, count } => format!("mbarrier.init.shared::cta.b64 {}, {}", address(bar), word(count)),
        Barrier::Invalidate { bar } => format!("mbarrier.inval.shared::cta.b64 {}", address(bar)),
        Barrier::ExpectTx { space: window, bar, bytes } => {
            let among = if window == Space::Cluster { "cluster" } else { "cta" };
            format!("mbarrier.expect_tx.relaxed.{among}{}.b64 {}, {}", space(window), address(bar), word(bytes))
        }
        Barrier::Arrive { arrival, space: window, sem, scope, bar, count, state } => {
            let count = count.map(|count| format!(", {}", word(count))).unwrap_or_default();
            let (order, window) = (ordering(sem, scope, "release"), space(window));
            let name = match arrival {
                None => "arrive",
                Some(Arrival::Drop) => "arrive_drop",
                Some(Arrival::NoComplete) => "arrive.noComplete",
            };
            format!("mbarrier.{name}{order}{window}.b64 {}, {}{count}", kept(state), address(bar))
        }
        Barrier::ArriveExpectTx { space: window, sem, scope, bar, bytes, state } => {
            let order = ordering(sem, scope, "release");
            let (window, state, bar, bytes) = (space(window), kept(state), address(bar), word(bytes));
            format!("mbarrier.arrive.expect_tx{order}{window}.b64 {state}, {bar}, {bytes}")
        }
        Barrier::TryWait { done, sem, scope, bar, parity } => {
            let order = ordering(sem, scope, "acquire");
            format!("mbarrier.try_wait.parity{order}.shared::cta.b64 {done}, {}, {}", address(bar), word(parity))
        }
        Barrier::NamedSync { aligned, id, threads } => {
            let threads = threads.map(|threads| format!(", {}", word(threads))).unwrap_or_default();
            format!("barrier.sync{} {}{threads}", when(aligned, ".aligned"), word(id))
        }
        Barrier::NamedArrive { aligned, id, threads } => {
            format!("barrier.arrive{} {}, {}", when(aligned, ".aligned"), word(id), word(threads))
        }
        Barrier::ClusterArrive { sem, aligned } => {
            let sem = if sem == Semantics::Ordered { "release" } else { "relaxed" };
            format!("barrier.cluster.arrive.{sem}{}", when(aligned, ".aligned"))
        }
        Barrier::ClusterWait { aligned } => format!("barrier.cluster.wait.acquire{}", when(aligned, ".aligned")),
    }
}

pub(super) fn fence(op: Fence) -> String {
    match op {
        Fence::AcqRel(among) => format!("fence.acq_rel.{}", scope(among)),
        Fence::ProxyAsync(None) => "fence.proxy.async".into(),
        Fence::ProxyAsync(Some(window)) => format!("fence.proxy.async{}", space(window)),
        Fence::BarrierInit => "fence.mbarrier_init.release.cluster".into(),
    }
}

fn policy_name(policy: Option<RegId>) -> &'static str {
    when(policy.is_some(), ".L2::cache_hint")
}

fn coordinates(map: RegId, coords: &[Operand]) -> String {
    let coords: Vec<String> = coords.iter().map(|&c| operand(c, DataType::S32)).collect();
    format!("[{map}, {{{}}}]", coords.join(", "))
}

pub(super) fn copy(op: &AsyncCopy) -> String {
    match op {
        AsyncCopy::BulkLoad { dst, src, bytes, bar, multicast, policy } => format!(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{}{} {}, {}, {}, {}{}{}",
            when(multicast.is_some(), ".multicast::cluster"),
            policy_name(*policy),
            address(*dst),
            address(*src),
            word(*bytes),
            address(*bar),
            optional(*multicast),
            optional(*policy)
        ),
        AsyncCopy::BulkStore { dst, src, bytes, policy } => format!(
            "cp.async.bulk.global.shared::cta.bulk_group{} {}, {}, {}{}",
            policy_name(*policy),
            address(*dst),
            address(*src),
            word(*bytes),
            optional(*policy)
        ),
        AsyncCopy::BulkToCluster { dst, src, bytes, bar } => format!(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes {}, {}, {}, {}",
            address(*dst),
            address(*src),
            word(*bytes),
            address(*bar)
        ),
        AsyncCopy::BulkPrefetch { src, bytes } => {
            format!("cp.async.bulk.prefetch.L2.global {}, {}", address(*src), word(*bytes))
        }
        AsyncCopy::TensorLoad { dst, map, coords, bar, multicast, policy, cta_group } => format!(
            "cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{}{}{} {}, {}, {}{}{}",
            coords.len(),
            when(multicast.is_some(), ".multicast::cluster"),
            cta_group.map(group).unwrap_or_default(),
            policy_name(*policy),
            address(*dst),
            coordinates(*map, coords),
            address(*bar),
            optional(*multicast),
            optional(*policy)
        ),
        AsyncCopy::TensorStore { map, coords, src, policy } => format!(
            "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group{} {}, {}{}",
            coords.len(),
            policy_name(*policy),
            coordinates(*map, coords),
            address(*src),
            optional(*policy)
        ),
        AsyncCopy::TensorPrefetch { map, coords } => {
            format!("cp.async.bulk.prefetch.tensor.{}d.L2.global.tile {}", coords.len(), coordinates(*map, coords))
        }
        AsyncCopy::PrefetchMap { map } => format!("prefetch.tensormap [{map}]"),
        AsyncCopy::CommitGroup => "cp.async.bulk.commit_group".into(),
        AsyncCopy::WaitGroup { pending, read } => {
            format!("cp.async.bulk.wait_group{} {pending}", when(*read, ".read"))
        }
        AsyncCopy::ThreadCopy { dst, src, bytes, source_bytes, policy } => format!(
            // Sixteen bytes may go past L1, and these are read from shared memory ever after.
            "cp.async.{}.shared.global{} {}, {}, {bytes}{}{}",
            if *bytes == 16 { "cg" } else { "ca" },
            policy_name(*policy),
            address(*dst),
            address(*src),
            source_bytes.map(|bytes| format!(", {}", word(bytes))).unwrap_or_default(),
            optional(*policy)
        ),
        AsyncCopy::CommitThreadGroup => "cp.async.commit_group".into(),
        AsyncCopy::ArriveBehindCopies { bar, expected } => {
            format!("cp.async.mbarrier.arrive{}.shared.b64 {}", when(*expected, ".noinc"), address(*bar))
        }
        AsyncCopy::WaitThreadGroup { pending } => format!("cp.async.wait_group {pending}"),
        AsyncCopy::TryCancel { dst, bar, multicast } => format!(
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{}.b128 {}, {}",
            when(*multicast, ".multicast::cluster::all"),
            address(*dst),
            address(*bar)
        ),
        AsyncCopy::StoreAsync { dst, srcs, bar } => {
            let count = if srcs.len() == 1 { String::new() } else { format!(".v{}", srcs.len()) };
            format!(
                "st.async.shared::cluster.mbarrier::complete_tx::bytes{count}.b32 {}, {}, {}",
                address(*dst),
                vector(srcs),
                address(*bar)
            )
        }
    }
}

pub(super) fn wgmma(op: &Wgmma) -> String {
    match op {
        Wgmma::Fence => "wgmma.fence.sync.aligned".into(),
        Wgmma::Commit => "wgmma.commit_group.sync.aligned".into(),
        Wgmma::Wait { pending } => format!("wgmma.wait_group.sync.aligned {pending}"),
        Wgmma::Mma { n, element, d, a, b, accumulate, negate_a, negate_b, transpose_b } => {
            let ty = element_name(*element);
            let sign = |negate: &bool| if *negate { -1 } else { 1 };
            // Only of 16-bit elements may matrices lie the other way.
            let turns = element.bits() == 16;
            let flag = |transpose: &bool| if turns { format!(", {}", u32::from(*transpose)) } else { String::new() };
            let (a, transpose_a) = match a {
                MatrixA::Registers(regs) => (list(regs), String::new()),
                MatrixA::Shared { desc, transpose } => (desc.to_string(), flag(transpose)),
            };
            let scale_d = match accumulate {
                Accumulate::Add => "1".into(),
                Accumulate::Replace => "0".into(),
                Accumulate::If(pred) => pred.to_string(),
            };
            if element.is_integer() {
                let (k, d) = (element.depth(), list(d));
                return format!("wgmma.mma_async.sync.aligned.m64n{n}k{k}.s32.{ty}.{ty} {d}, {a}, {b}, {scale_d}");
            }
            format!(
                "wgmma.mma_async.sync.aligned.m64n{n}k{}.f32.{ty}.{ty} {}, {a}, {b}, {scale_d}, {}, {}{transpose_a}{}",
                element.depth(),
                list(d),
                sign(negate_a),
                sign(negate_b),
                flag(transpose_b)
            )
        }
    }
}

fn group(group: CtaGroup) -> &'static str {
    match group {
        CtaGroup::One => ".cta_group::1",
        CtaGroup::Two => ".cta_group::2",
    }
}

/// What becomes of A, as instructions say it.
fn usage(collector: Collector) -> &'static str {
    match collector {
        Collector::Discard => "discard",
        Collector::Fill => "fill",
        Collector::Use => "use",
        Collector::LastUse => "lastuse",
    }
}

pub(crate) fn dense_kind(kind: DenseKind) -> &'static str {
    match kind {
        DenseKind::F16 => "kind::f16",
        DenseKind::Tf32 => "kind::tf32",
        DenseKind::F8f6f4 => "kind::f8f6f4",
    }
}

/// The name of a shape, how often so many registers repeat it, and how far the second half is away.
fn cells(shape: CellShape, registers: usize) -> (&'static str, usize, String) {
    let name = match shape {
        CellShape::L32x32b => "32x32b",
        CellShape::L16x64b => "16x64b",
        CellShape::L16x128b => "16x128b",
        CellShape::L16x256b => "16x256b",
        CellShape::L16x32bx2(split) => return ("16x32bx2", registers, format!(", {split}")),
    };
    (name, registers / shape.least(), String::new())
}

pub(super) fn tcgen05(op: &Tcgen05, target: Target) -> String {
    // One meaning, two spellings: families of chips refuse the older one, and chips by themselves have taken it for
    // longer.
    let block = if target == Target::Sm100f { "block16" } else { "scale_vec::4X" };
    match op {
        Tcgen05::Alloc { group: g, dst, columns } => {
            format!("tcgen05.alloc{}.sync.aligned.shared::cta.b32 {}, {}", group(*g), address(*dst), word(*columns))
        }
        Tcgen05::Dealloc { group: g, addr, columns } => {
            format!("tcgen05.dealloc{}.sync.aligned.b32 {addr}, {}", group(*g), word(*columns))
        }
        Tcgen05::RelinquishAllocPermit { group: g } => {
            format!("tcgen05.relinquish_alloc_permit{}.sync.aligned", group(*g))
        }
        Tcgen05::CopyScales { group: g, dst, src } => {
            format!("tcgen05.cp{}.32x128b.warpx4 [{dst}], {src}", group(*g))
        }
        Tcgen05::Mma { kind, group: g, d, a, b, shape, scale_a, scale_b, accumulate, collector } => {
            let usage = usage(*collector);
            let kind = match kind {
                ScaledKind::NvFp4 => format!("mxf4nvf4.block_scale.{block}"),
                ScaledKind::MxFp4 => "mxf4.block_scale.block32".into(),
                ScaledKind::MxF8f6f4 => "mxf8f6f4.block_scale.block32".into(),
            };
            format!(
                "tcgen05.mma{}.kind::{kind}.collector::a::{usage} \
                 [{d}], {a}, {b}, {shape}, [{scale_a}], [{scale_b}], {accumulate}",
                group(*g)
            )
        }
        Tcgen05::MmaDense { kind, group: g, d, a, b, shape, accumulate, collector } => {
            let a = match a {
                TensorA::Shared(desc) => desc.to_string(),
                TensorA::Tensor(addr) => format!("[{addr}]"),
            };
            format!(
                "tcgen05.mma{}.{}.collector::a::{} [{d}], {a}, {b}, {shape}, {accumulate}",
                group(*g),
                dense_kind(*kind),
                usage(*collector)
            )
        }
        Tcgen05::Commit { group: g, bar, multicast } => format!(
            "tcgen05.commit{}.mbarrier::arrive::one.shared::cluster{}.b64 {}{}",
            group(*g),
            when(multicast.is_some(), ".multicast::cluster"),
            address(*bar),
            optional(*multicast)
        ),
        Tcgen05::Load { shape, dsts, addr } => {
            let (name, times, split) = cells(*shape, dsts.len());
            format!("tcgen05.ld.sync.aligned.{name}.x{times}.b32 {}, [{addr}]{split}", list(dsts))
        }
        Tcgen05::Store { shape, addr, srcs } => {
            let (name, times, split) = cells(*shape, srcs.len());
            format!("tcgen05.st.sync.aligned.{name}.x{times}.b32 [{addr}]{split}, {}", list(srcs))
        }
        Tcgen05::WaitLoad => "tcgen05.wait::ld.sync.aligned".into(),
        Tcgen05::WaitStore => "tcgen05.wait::st.sync.aligned".into(),
        Tcgen05::FenceBeforeSync => "tcgen05.fence::before_thread_sync".into(),
        Tcgen05::FenceAfterSync => "tcgen05.fence::after_thread_sync".into(),
    }
}
