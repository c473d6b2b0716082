//! The bound itself: it holds where rounding errors of sums all go one way, and is no wider there than ten times what
//! happens.

use format::Dense;
use hammerhead::{
    Activation, Arithmetic, Backend, Engine, Gate, Options, Output, Request, Shape, Target, backends, cpu,
};
use hammerhead_testkit::cases::{self, Case, Inputs, Instance, Suite};
use hammerhead_testkit::verify::{Expected, Report, poisoned};

/// What a backend makes of a case, judged as its own arithmetic asks and as if errors were random.
fn judged(case: &Case, backend: &dyn Backend, request: &str) -> [Report; 2] {
    let instance = case.instance(1).unwrap();
    let request: Request = request.parse().unwrap();
    let options = Options { backend: Some(backend.name().to_owned()), threads: Some(1), request };
    let engine = Engine::new(options).unwrap();
    let layer = engine.load(&instance.weights, case.gate).unwrap();
    let mut results = poisoned(&instance);
    engine.run_into(&layer, &instance.activations, &mut Target::all(&mut results)).unwrap();
    let shapes = instance.problem.groups().iter();
    let results: Vec<_> = shapes.zip(results).map(|(s, c)| Dense::new(s.m, s.n, c, 1.0).unwrap()).collect();
    let expected = Expected::new(&instance, false, 1, &cpu::team(Some(1)).unwrap());
    [backend.arithmetic(case.activation), Arithmetic::Unknown].map(|arithmetic| expected.check(&results, arithmetic))
}

#[test]
fn the_bound_holds_on_adverse_inputs_and_is_not_wide_there() {
    for backend in backends::all().iter().filter(|backend| backend.available().is_ok()) {
        for activation in Activation::ALL {
            let mut used = [0f64; 2];
            for case in cases::suite(Suite::Adverse).iter().filter(|case| case.activation == activation) {
                // Of a depth that is more than a chunk no backend leaves scales to the ends of blocks.
                for request in ["", "strategy=two-pass", "strategy=sequential", "depth=256"] {
                    let [report, _] = judged(case, *backend, request);
                    let first = report.first.as_ref().map(ToString::to_string).unwrap_or_default();
                    let name = backend.name();
                    assert!(report.passed(), "{name} on {case} ({}): {} wrong; {first}", case.why, report.failures);
                    if case.gate == Gate::None {
                        let which = usize::from(case.inputs == Inputs::Stagnant);
                        used[which] = used[which].max(report.max_ratio);
                    }
                }
            }
            let [one_sign, stagnant] = used;
            println!("{} {activation}: {one_sign:.3} of the bound, {stagnant:.3} where sums stagnate", backend.name());
            assert!(stagnant >= 0.1, "{} {activation}: the bound is wide, {stagnant} of it was used", backend.name());
        }
    }
}

#[test]
fn errors_that_all_go_one_way_are_beyond_what_random_ones_would_be() {
    let adverse = cases::suite(Suite::Adverse);
    let stagnant = |case: &&Case| case.inputs == Inputs::Stagnant && case.groups[0].k == 7168;
    let case = adverse.iter().filter(stagnant).find(|case| case.activation == Activation::F32).unwrap();
    let [own, random] = judged(case, backends::by_name("scalar").unwrap(), "");
    assert!(own.passed() && !random.passed(), "{own:?} {random:?}");
}

/// C of a plain product in f32, exact but for the last rounding, and the same with one product of each element left
/// out: the smallest that is no smaller than the average.
fn whole_and_forgetful(instance: &Instance) -> [Dense<'static>; 2] {
    let (tokens, weights) = (&instance.activations[0], instance.weights[0].gate());
    let alpha = tokens.global().value() * weights.global().value();
    let (mut a, mut b) = (vec![0f32; tokens.k()], vec![0f32; tokens.k()]);
    let (mut whole, mut forgetful) = (Vec::new(), Vec::new());
    for row in 0..tokens.rows() {
        tokens.unscaled_row(row, &mut a);
        for column in 0..weights.rows() {
            weights.unscaled_row(column, &mut b);
            let products = || a.iter().zip(&b).map(|(&a, &b)| alpha * f64::from(a) * f64::from(b));
            let average = products().map(f64::abs).sum::<f64>() / a.len() as f64;
            let large = products().filter(|product| product.abs() >= average);
            let forgotten = large.min_by(|x, y| x.abs().total_cmp(&y.abs())).unwrap();
            let sum: f64 = products().sum();
            whole.push(sum as f32);
            forgetful.push((sum - forgotten) as f32);
        }
    }
    [whole, forgetful].map(|values| Dense::new(tokens.rows(), weights.rows(), values, 1.0).unwrap())
}

#[test]
fn one_forgotten_product_is_noticed_under_the_bound_of_every_backend() {
    let why = "a long K, in which one product is little";
    let kinds = [Inputs::Realistic, Inputs::CommunityDual, Inputs::HardScales]
        .map(|inputs| (inputs, Activation::NvFp4))
        .into_iter()
        .chain([Activation::F16, Activation::BF16, Activation::F32].map(|dense| (Inputs::Realistic, dense)));
    for (inputs, activation) in kinds {
        let (groups, gate, output) = (vec![Shape::new(3, 33, 7168)], Gate::None, Output::F32);
        let case = Case {
            suite: Suite::Edge,
            why,
            groups,
            gate,
            activation,
            output,
            precision: op::Precision::Exact,
            inputs,
            timed: false,
        };
        let instance = case.instance(1).unwrap();
        let expected = Expected::new(&instance, false, 1, &cpu::team(Some(1)).unwrap());
        let [whole, forgetful] = whole_and_forgetful(&instance);
        for backend in backends::all() {
            let arithmetic = backend.arithmetic(activation);
            assert!(expected.check(std::slice::from_ref(&whole), arithmetic).passed());
            let Report { failures, compared, .. } = expected.check(std::slice::from_ref(&forgetful), arithmetic);
            assert_eq!(failures, compared, "{arithmetic:?} with {inputs:?} of {activation}");
        }
    }
}
