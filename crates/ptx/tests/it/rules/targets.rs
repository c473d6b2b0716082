//! What a target lacks is refused there, with a list of those that have it; what it has is not.

use super::*;

/// What the rule lacks on a target, if it refuses the instruction for that.
fn lacks(target: Target, op: impl Into<Op>) -> Option<Feature> {
    let mut kernel = kernel(target);
    insert(&mut kernel, vec![op.into()]);
    rules(&kernel).into_iter().find_map(|rule| match rule {
        Rule::Feature { feature, .. } => Some(feature),
        _ => None,
    })
}

#[track_caller]
fn only_since_hopper(op: impl Into<Op>, feature: Feature) {
    let op = op.into();
    assert_eq!(lacks(Target::Sm80, op.clone()), Some(feature));
    for target in [Target::Sm90a, Target::Sm100a, Target::Sm100f, Target::Sm120f] {
        assert_eq!(lacks(target, op.clone()), None, "{target}");
    }
}

fn multiply(ty: DataType) -> Arith {
    let (dst, a) = (r(0), Operand::Reg(r(1)));
    Arith::Binary { op: BinaryOp::Mul, ty, mode: FloatMode::PLAIN, dst, a, b: a }
}

#[test]
fn what_came_with_hopper_is_refused_on_ampere() {
    only_since_hopper(Warp::Elect { leader: None, pred: p(0), mask: imm(1) }, Feature::Elect);
    let stored = Warp::StoreMatrix { transpose: false, srcs: vec![r(0)], addr: shared(TILE) };
    only_since_hopper(stored, Feature::StoreMatrix);
    only_since_hopper(Control::GridDependencyWait, Feature::GridDependency);
    only_since_hopper(Control::LaunchDependents, Feature::GridDependency);
    only_since_hopper(Barrier::Init { bar: shared(BARRIER), count: imm(1) }, Feature::MemoryBarriers);
    only_since_hopper(Barrier::ClusterWait { aligned: true }, Feature::Clusters);
    only_since_hopper(Fence::ProxyAsync(None), Feature::BulkCopies);
    only_since_hopper(Fence::AcqRel(Scope::Cluster), Feature::Clusters);
    only_since_hopper(AsyncCopy::CommitGroup, Feature::BulkCopies);
    only_since_hopper(multiply(DataType::Bf16x2), Feature::Bf16Arithmetic);
    only_since_hopper(Arith::Special { dst: r(0), which: SpecialRegister::ClusterCtaRank }, Feature::Clusters);
}

#[test]
fn what_ampere_has_is_accepted_everywhere() {
    let (a, dst) = (Operand::Reg(r(1)), r(0));
    let fused = |ty| Arith::Ternary { op: TernaryOp::Fma, ty, mode: FloatMode::PLAIN, dst, a, b: a, c: a };
    let loaded = Warp::LoadMatrix { transpose: false, dsts: vec![r(0)], addr: shared(TILE) };
    let all: [Op; 6] = [
        fused(DataType::Bf16x2).into(),
        multiply(DataType::F16x2).into(),
        loaded.into(),
        AsyncCopy::CommitThreadGroup.into(),
        AsyncCopy::WaitThreadGroup { pending: 3 }.into(),
        Fence::AcqRel(Scope::Gpu).into(),
    ];
    for (op, target) in all.iter().flat_map(|op| Target::ALL.map(|target| (op, target))) {
        let mut kernel = kernel(target);
        insert(&mut kernel, vec![op.clone()]);
        assert_eq!(kernel.check(), Ok(()), "{target}");
    }
}

#[test]
fn a_refusal_names_the_targets_that_would_do() {
    let rule = broken_on(Target::Sm80, vec![Control::GridDependencyWait.into()]);
    let text = rule.to_string();
    assert!(text.contains("sm_90a, sm_100a, sm_100f, sm_120f only") && text.contains("for sm_80"), "{text}");
}

#[test]
fn a_cluster_is_refused_on_ampere() {
    let mut kernel = kernel(Target::Sm80);
    kernel.launch.cluster = Some([2, 1, 1]);
    assert!(matches!(rules(&kernel)[..], [Rule::Feature { feature: Feature::Clusters, .. }]));
}

#[test]
fn each_target_has_its_own_limit_of_shared_memory() {
    for target in Target::ALL {
        let mut kernel = kernel(target);
        kernel.shared[1].bytes = target.shared_limit() - kernel.shared[1].offset;
        assert_eq!(kernel.check(), Ok(()), "{target}");
        kernel.shared[1].bytes += 8;
        is_value(&rules(&kernel)[0], u64::from(target.shared_limit()) + 8);
    }
}

/// A driver refuses a text newer than itself: only what needs a later version asks for it.
#[test]
fn a_text_asks_for_the_lowest_version_that_serves() {
    let version = |kernel: &Kernel| kernel.to_ptx().lines().next().unwrap_or_default().to_owned();
    let plain = kernel(Target::Sm80);
    assert_eq!(version(&plain), ".version 7.0");
    let mut hinted = plain.clone();
    insert(&mut hinted, vec![Arith::Policy { dst: d(0), keep: true }.into()]);
    assert_eq!(version(&hinted), ".version 7.4");
    let mut k = Builder::new("large", Target::Sm80, plain.launch);
    k.table("table", 2048);
    assert_eq!(version(&k.finish().expect("a legal kernel")), ".version 8.1");
    assert_eq!(version(&kernel(Target::Sm120f)), ".version 8.8");
    assert_eq!(version(&kernel(Target::Sm100f)), ".version 8.8");
    assert_eq!(version(&kernel(Target::Sm90a)), ".version 9.0");
}
