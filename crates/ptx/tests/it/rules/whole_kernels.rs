//! Limits of the kernel as a whole, register budgets, flow of control.

use super::*;

#[test]
fn more_than_1024_threads_are_refused() {
    is_value(&changed(|kernel| kernel.launch.threads = 1056), 1056);
}

#[test]
fn blocks_that_cannot_be_resident_together_are_refused() {
    is_value(&changed(|kernel| kernel.launch.min_blocks = Some(9)), 9 * 256);
}

#[test]
fn a_cluster_of_sixteen_is_refused_as_not_portable() {
    let rule = changed(|kernel| kernel.launch.cluster = Some([4, 4, 1]));
    is_value(&rule, 16);
    assert!(rule.to_string().contains("not portable"));
}

#[test]
fn more_shared_memory_than_a_block_can_have_is_refused() {
    is_value(&changed(|kernel| kernel.shared[1].bytes = Target::Sm90a.shared_limit() - 4096 + 8), 232_456);
}

#[test]
fn more_parameters_than_fit_are_refused() {
    let rule = changed(|kernel| {
        let map = kernel.params[1].clone();
        kernel.params.extend(std::iter::repeat_n(map, 256));
    });
    is_value(&rule, 64 + 257 * 128);
}

#[test]
fn a_predicate_parameter_is_refused() {
    let rule = changed(|kernel| kernel.params[1].ty = ptx::ParamType::Scalar(DataType::Pred));
    assert!(matches!(rule, Rule::ParamKind { .. }));
}

#[test]
fn overlapping_regions_are_refused() {
    let rule = changed(|kernel| kernel.shared[1].offset = 4088);
    assert_eq!(rule, Rule::RegionPlace { name: "barriers".into(), offset: 4088, align: 8 });
}

#[test]
fn a_register_budget_of_30_is_refused() {
    is_value(&budget(RegisterChange::Decrease, 30), 30);
}

fn budget(change: RegisterChange, count: u32) -> Rule {
    broken(Control::SetMaxRegisters { change, count })
}

fn budgets(threads: u32, list: &[(RegisterChange, u32)]) -> Vec<Rule> {
    let mut kernel = kernel(Target::Sm90a);
    kernel.launch.threads = threads;
    insert(
        &mut kernel,
        list.iter().map(|&(change, count)| Control::SetMaxRegisters { change, count }.into()).collect(),
    );
    rules(&kernel)
}

#[test]
fn a_lowered_budget_above_that_at_launch_is_refused() {
    let rules = budgets(384, &[(RegisterChange::Decrease, 176)]);
    assert!(matches!(rules[..], [Rule::Value { found: 176, .. }]));
}

#[test]
fn a_raised_budget_below_that_at_launch_is_refused() {
    let rules = budgets(384, &[(RegisterChange::Decrease, 168), (RegisterChange::Increase, 160)]);
    assert!(matches!(rules[..], [Rule::Value { found: 160, .. }]));
}

#[test]
fn a_raised_budget_that_starves_the_others_is_refused() {
    let rule = changed(|kernel| {
        kernel.launch = LaunchBounds { threads: 1024, cluster: None, min_blocks: Some(2) };
        insert(kernel, vec![Control::SetMaxRegisters { change: RegisterChange::Increase, count: 256 }.into()]);
    });
    is_value(&rule, 256);
}

#[test]
fn a_budget_for_part_of_a_warpgroup_is_refused() {
    let rules = budgets(160, &[(RegisterChange::Increase, 240)]);
    assert!(matches!(rules[..], [Rule::Value { found: 160, .. }]));
}

#[test]
fn a_budget_that_the_assembler_would_ignore_is_refused() {
    let rule = changed(|kernel| {
        kernel.launch.min_blocks = None;
        insert(kernel, vec![Control::SetMaxRegisters { change: RegisterChange::Decrease, count: 40 }.into()]);
    });
    assert_eq!(rule, Rule::UnknownBudget);
}

#[test]
fn more_registers_than_the_file_has_are_refused() {
    let kernel = kernel(Target::Sm90a);
    assert_eq!(kernel.check_registers(255), Ok(()));
    let mut wide = kernel.clone();
    wide.launch.threads = 512;
    let Err(Error::Illegal(violation)) = wide.check_registers(129) else { panic!("accepted") };
    assert_eq!(violation.rule, Rule::RegisterFile { threads: 512, registers: 129 });
}

#[test]
fn a_label_in_two_places_is_refused() {
    let label: Op = Control::Label(Label(7)).into();
    assert_eq!(broken_on(Target::Sm90a, vec![label.clone(), label]), Rule::LabelPlacedTwice { label: 7 });
}

#[test]
fn a_branch_to_nowhere_is_refused() {
    let rule = broken(Control::Branch { target: Label(3), uniform: false });
    assert_eq!(rule, Rule::LabelMissing { label: 3 });
}

#[test]
fn a_guarded_label_is_refused() {
    let rule = changed(|kernel| kernel.body.insert(0, guarded(Control::Label(Label(0)).into(), p(0))));
    assert_eq!(rule, Rule::GuardedLabel);
}

#[test]
fn a_kernel_that_runs_off_its_end_is_refused() {
    assert_eq!(changed(|kernel| kernel.body.clear()), Rule::NoExit);
}

#[test]
fn a_violation_names_its_phase_and_instruction_on_one_line() {
    let mut k = Builder::new("small", Target::Sm90a, kernel(Target::Sm90a).launch);
    k.phase("prepare", |k| k.named_sync(16, 256));
    let text = k.finish().expect_err("an illegal kernel").to_string();
    assert_eq!(
        text,
        "small/prepare, instruction 0 (barrier.sync.aligned 16, 256;): the barrier's number: 16; expected 0 \
         to 15"
    );
}
