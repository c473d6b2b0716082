//! The trial before first use: every way that the planner can take is on the list, and on a GPU that breaks one rule
//! the ways that lean on it are left out of plans, and no others.
#![cfg(feature = "sim")]

use hammerhead_gpu::facts::Facts;
use hammerhead_gpu::simulated::SimulatedMachine;
use hammerhead_gpu::trial::{self, Attempts};
use hammerhead_gpu::ways::{Feature, LeftOut, Way};
use hammerhead_gpu::{Family, Simulated, families, plan};
use op::{Activation, Gate, Intermediate, Output, Problem, Shape, Whole};
use ptx::instr::{Arith, AsyncCopy, BinaryOp, CtaGroup, FloatMode, Instr, Mma, Tcgen05};
use ptx::{DataType, Kernel, Op, Operand, RegId};

/// The devices that kernels of each family are planned for: one with little of everything, and one with much.
fn devices(family: &dyn Family) -> Vec<Facts> {
    let names: &[&str] = match family.name() {
        "sm80" => &["rtx3090", "a100", "b200"],
        "sm90" => &["h100", "h200"],
        "sm100" => &["b200"],
        _ => &["rtx5090", "dgx-spark"],
    };
    names.iter().map(|name| Facts::named(name).expect("a device")).collect()
}

/// Problems of many kinds, none of which is one of the trial's.
fn problems() -> Vec<Problem> {
    let mut problems = Vec::new();
    let types = [Activation::NvFp4, Activation::F16, Activation::BF16, Activation::F32];
    for (gate, output) in [(Gate::Silu, Output::F16), (Gate::None, Output::BF16), (Gate::Silu, Output::F32)] {
        for activation in types {
            for m in [1, 33, 100, 4096] {
                for (n, k) in [(4096, 7168), (768, 2048), (2047, 16), (16, 64)] {
                    problems.push(Problem::new(vec![Shape::new(m, n, k)], gate, activation, output).unwrap());
                }
            }
            for groups in [8, 129] {
                let group = |g: usize| Shape::new((g * 37) % 200, 1536, 4096);
                problems.push(Problem::new((0..groups).map(group).collect(), gate, activation, output).unwrap());
            }
        }
    }
    for activation in &types[1..] {
        for intermediate in Intermediate::ALL {
            for (tokens, scaled, batch_invariant) in [
                (1, [false; 2], false),
                (64, [true, false], false),
                (64, [false, true], false),
                (5000, [false; 2], true),
            ] {
                let whole = Whole { tokens, top: 8, width: 2048, intermediate, scaled, batch_invariant };
                let layer = Problem::layer(128, [2048, 768], Gate::Silu, (*activation, Output::BF16), whole);
                problems.push(layer.unwrap());
            }
        }
    }
    problems
}

#[test]
fn whatever_the_planner_considers_is_on_trial() {
    let problems = problems();
    for family in families::ALL {
        for facts in devices(family) {
            let trials = trial::all(family, &facts).unwrap();
            for problem in &problems {
                for config in plan::candidates(family, problem, &facts) {
                    let way = plan::way(family, problem, &config, &facts).unwrap();
                    assert!(
                        trial::is_tried(&trials, &way),
                        "{} on {}: {way} for {problem}, {config}",
                        family.name(),
                        facts.name
                    );
                }
            }
        }
    }
}

/// Tries some ways of a family on a simulated GPU, and says which are left out.
fn tried(on: Simulated, some: impl Fn(&Way) -> bool, breaks: &dyn Fn(&mut Kernel)) -> Vec<LeftOut> {
    let (family, facts) = (on.family(), on.facts());
    let mut trials = trial::all(family, &facts).unwrap();
    trials.retain(|trial| some(&trial.way));
    let mut attempts = Attempts::new(family, facts);
    trial::left_out(&trials, |trial| match attempts.attempt(&mut SimulatedMachine::new(on, breaks), trial) {
        Ok(None) => Ok(()),
        Ok(Some(wrong)) => Err(wrong),
        Err(error) => Err(error.to_string()),
    })
}

/// Whether tensor cores take NVFP4 tokens as they are.
fn of_codes(way: &Way) -> bool {
    way.has(Feature::Codes)
}

fn simulated(family: &str) -> Simulated {
    *Simulated::by_name(&format!("sim:{family}")).expect("a family")
}

/// The ways that are left out, in words.
fn ways(left_out: &[LeftOut]) -> Vec<String> {
    left_out.iter().map(|left_out| left_out.way.to_string()).collect()
}

/// Every plan that may still be made, for problems of all kinds: there is one for each, and none of them leans on what
/// is left out.
fn check_plans(on: Simulated, left_out: &[LeftOut]) {
    let whole = on.facts();
    let facts = Facts { left_out: left_out.to_vec(), ..whole.clone() };
    for problem in problems() {
        let before = plan::candidates(on.family(), &problem, &whole);
        let after = plan::candidates(on.family(), &problem, &facts);
        assert!(!after.is_empty() || before.is_empty(), "nothing is left for {problem} {}", problem.activation());
        for config in before {
            let way = plan::way(on.family(), &problem, &config, &whole).unwrap();
            let leans = left_out.iter().any(|left_out| left_out.covers(&way));
            let legal = plan::legal(on.family(), &problem, &config, &facts);
            assert_eq!(legal.is_err(), leans, "{config} for {problem}: {legal:?}");
            let cost = plan::cost(on.family(), &problem, &config, &facts);
            assert_eq!(cost.is_err(), leans, "{config} for {problem}, by its price: {cost:?}");
            assert!(problem.whole().is_some() || after.contains(&config) != leans, "{config} for {problem}");
        }
    }
}

#[test]
fn a_gpu_that_breaks_no_rule_goes_every_way() {
    // Numbers of 16 bits on sm100 are many ways, each of which is slow to simulate; layers have tests of their own, and
    // the other families have run on silicon.
    for (family, all) in [("sm100", false), ("sm120", true)] {
        assert_eq!(tried(simulated(family), |way| all || of_codes(way), &|_| ()), [], "{family}");
    }
}

#[test]
fn a_gpu_on_which_pairs_fault_computes_without_them() {
    let on = simulated("sm100");
    let left_out = tried(on, of_codes, &|kernel| {
        // The columns that a pair asks for are never its own.
        kernel.body.retain(|instr| !matches!(instr.op, Op::Tcgen05(Tcgen05::Alloc { group: CtaGroup::Two, .. })));
    });
    let ways = ways(&left_out);
    assert!(!ways.is_empty() && ways.iter().all(|way| way.contains("pair")), "{ways:#?}");
    assert!(ways.contains(&"NVFP4 tokens, upright, pair".to_owned()), "{ways:#?}");
    check_plans(on, &left_out);
}

#[test]
fn a_gpu_on_which_a_shared_copy_reaches_one_pair_hangs_and_computes_without_shared_copies() {
    let on = simulated("sm100");
    let left_out = tried(on, of_codes, &|kernel| {
        for instr in &mut kernel.body {
            if let Op::Copy(AsyncCopy::TensorLoad { multicast, .. }) = &mut instr.op {
                *multicast = None;
            }
        }
    });
    let ways = ways(&left_out);
    assert!(!ways.is_empty() && ways.iter().all(|way| way.contains("multicast")), "{ways:#?}");
    check_plans(on, &left_out);
}

#[test]
fn a_gpu_that_reads_scales_at_every_fourth_column_only_computes_without_half_blocks_of_them() {
    let on = simulated("sm100");
    let left_out = tried(on, of_codes, &|kernel| {
        for at in (0..kernel.body.len()).rev() {
            let Op::Tcgen05(Tcgen05::Mma { scale_b, .. }) = &kernel.body[at].op else { continue };
            let (from, to) = (*scale_b, RegId { bank: scale_b.bank, index: kernel.registers[scale_b.bank.index()] });
            kernel.registers[from.bank.index()] += 1;
            let rounded = Arith::Binary {
                op: BinaryOp::And,
                ty: DataType::U32,
                mode: FloatMode::PLAIN,
                dst: to,
                a: Operand::Reg(from),
                b: Operand::Imm(0xFFFF_FFFC),
            };
            let Op::Tcgen05(Tcgen05::Mma { scale_b, .. }) = &mut kernel.body[at].op else { continue };
            *scale_b = to;
            let (guard, phase) = (kernel.body[at].guard, kernel.body[at].phase);
            kernel.body.insert(at, Instr { guard, op: rounded.into(), phase, line: None });
        }
    });
    let ways = ways(&left_out);
    let half = |way: &String| way.contains("NVFP4 tokens, upright") && way.contains("64 wide");
    assert!(!ways.is_empty() && ways.iter().all(half), "{ways:#?}");
    assert!(left_out.iter().all(|left_out| left_out.reason.contains("should be")), "{left_out:#?}");
    check_plans(on, &left_out);
}

#[test]
fn a_gpu_that_takes_scales_from_another_lane_computes_with_16_bit_tokens_alone() {
    let on = simulated("sm120");
    let products = |way: &Way| !way.has(Feature::Layer) && !way.has(Feature::ThreeParts);
    let left_out = tried(on, products, &|kernel| {
        for instr in &mut kernel.body {
            if let Op::Mma(Mma::BlockScaled { lane_b, .. }) = &mut instr.op {
                *lane_b = (*lane_b + 1) % 4;
            }
        }
    });
    assert_eq!(ways(&left_out), ["NVFP4 tokens"]);
    let facts = Facts { left_out, ..on.facts() };
    let goes = |problem: &Problem, facts: &Facts| !plan::candidates(on.family(), problem, facts).is_empty();
    for problem in problems() {
        let expected = problem.activation() != Activation::NvFp4 && goes(&problem, &on.facts());
        assert_eq!(goes(&problem, &facts), expected, "{problem} {}", problem.activation());
    }
}
