//! One sentence per bottleneck: what to try against whatever bounds a computation, as profilers say it.

/// What bounds a computation, as the models name it, and what to try against that.
const ADVICE: [(&str, &str); 16] = [
    (
        "memory",
        "reading weights takes longest: more tokens per call use each weight more often, and no tile changes that",
    ),
    (
        "products",
        "multiplying takes longest, as it should with many tokens: more --threads help, or a backend with wider units",
    ),
    (
        "multiplying units",
        "multiplying takes longest, as it should with many tokens: more --threads help, or a backend with wider units",
    ),
    (
        "dequantisation",
        "expanding four-bit weights takes longest: a tile of more tokens (--config tile=…) expands them less often",
    ),
    (
        "vector units",
        "expanding weights or finishing results takes longest: a tile of more tokens (--config tile=…) expands less often",
    ),
    ("results", "writing results takes longest: --result f16 or bf16 halves them"),
    (
        "cache traffic",
        "sums and tokens go through caches: try a smaller tile or a greater depth (--config tile=…,depth=…)",
    ),
    ("caches", "sums and tokens go through caches: try a smaller tile or a greater depth (--config tile=…,depth=…)"),
    ("threads", "starting threads takes longest: compute several problems as one group, or take fewer --threads"),
    (
        "tensor cores",
        "multiplying takes longest, as it should with many tokens: fewer bits per number are what is left to try",
    ),
    (
        "device memory",
        "reading weights takes longest: more tokens per call use each weight more often, and no tile changes that",
    ),
    ("the L2 cache", "blocks read the same bytes again: try a larger tile, or multicast=2 on data-centre Blackwell"),
    (
        "the queue of launches",
        "starting kernels takes longest: compute problems as one group, or record the calls as a CUDA graph",
    ),
    (
        "latency of memory",
        "waiting for the first bytes takes longest: compute problems as one group, so that it is waited for once",
    ),
    (
        "instructions of the finishing warps",
        "the way from sums to C takes longest: try epilogue=staged or a smaller tile",
    ),
    ("passing a pair's stages on", "two blocks wait for each other: try fewer columns in the tile, or multicast=1"),
];

/// What to try against what bounds a computation; nothing where no advice is known.
pub fn against(bound_by: &str) -> Option<&'static str> {
    ADVICE.iter().find(|(bound, _)| *bound == bound_by).map(|(_, advice)| *advice)
}

/// The advice against each of these once, a line each.
pub fn lines<'b>(bounds: impl Iterator<Item = &'b str>) -> String {
    let mut known: Vec<&str> = Vec::new();
    let mut text = String::new();
    for bound in bounds {
        if !known.contains(&bound) {
            known.push(bound);
            text.extend(against(bound).map(|advice| format!("bound by {bound}: {advice}\n")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use gpu::facts::Facts;
    use hammerhead::{Engine, Options, Plan, Problem, Request};
    use testkit::cases::{Suite, suite};

    use super::*;

    #[test]
    fn there_is_advice_against_whatever_the_models_say() {
        let engine = Engine::new(Options { threads: Some(2), ..Options::default() }).unwrap();
        let problems: Vec<Problem> = [Suite::Dual, Suite::Group, Suite::Decode]
            .into_iter()
            .flat_map(|of| suite(of).into_iter().step_by(3))
            .map(|case| case.problem().unwrap())
            .collect();
        for problem in &problems {
            let plan = Plan::best(problem.clone(), &engine.backends(), &Request::default(), 2).unwrap();
            for way in plan.considered() {
                let bound = way.cost.bound_by;
                assert!(against(bound).is_some() || bound == "simulating", "nothing is said against {bound:?}");
            }
        }
        for device in ["h200", "a100", "b200", "rtx5090"] {
            let facts = Facts::named(device).unwrap();
            for problem in &problems {
                let bounds = crate::predict::bounds(problem, &facts).unwrap();
                let silent: Vec<_> = bounds.into_iter().filter(|bound| against(bound).is_none()).collect();
                assert_eq!(silent, [""; 0], "nothing is said against these on {device}");
            }
        }
    }

    #[test]
    fn advice_is_given_once_and_in_a_line() {
        let text = lines(["memory", "products", "memory", "no such thing"].into_iter());
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(ADVICE.iter().all(|(bound, advice)| format!("bound by {bound}: {advice}").chars().count() <= 160));
    }
}
