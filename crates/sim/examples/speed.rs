//! How fast the simulator is: instructions of warps per second on a pipelined GEMM, under each kind of schedule. Compare figures
//! of one machine and one sitting only.

#[path = "../tests/problems/mod.rs"]
mod problems;

use std::time::{Duration, Instant};

use sim::Schedule;

/// How long each schedule is measured at least.
const SPAN: Duration = Duration::from_secs(2);

fn main() {
    let kernel = problems::multiply();
    let problem = problems::Problem { m: 128, n: 128, k: 512 };
    let product = problem.product();
    for schedule in [Schedule::Earliest, Schedule::Latest, Schedule::Random(1), Schedule::Random(4)] {
        let (start, mut instructions, mut runs) = (Instant::now(), 0, 0);
        while start.elapsed() < SPAN {
            let (mut gpu, launch, out) = problem.prepare();
            match gpu.run(&kernel, &launch, schedule) {
                Ok(profile) => instructions += profile.instructions(),
                Err(fault) => return println!("{fault}"),
            }
            if gpu.floats(out) != product {
                return println!("{schedule}: the product is wrong");
            }
            runs += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        let (rate, each) = (instructions as f64 / seconds / 1e6, seconds / f64::from(runs) * 1e3);
        println!("{:<18} {rate:6.2} million instructions per second, {each:6.1} ms a run", schedule.to_string());
    }
}
