//! A pipelined GEMM (copies through tensor maps, barriers, tensor cores) gives the right product under every schedule.

use sim::Schedule;

use crate::problems::{Problem, multiply};

#[test]
fn the_product_is_right_under_every_schedule() {
    let problem = Problem { m: 128, n: 64, k: 448 };
    let (kernel, expected) = (multiply(), problem.product());
    for schedule in Schedule::several(12) {
        let (mut gpu, launch, out) = problem.prepare();
        let profile = gpu.run(&kernel, &launch, schedule).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(gpu.floats(out), expected, "{schedule}");
        assert_eq!(profile.tensor_macs, 128 * 64 * 448);
    }
}

#[test]
fn a_depth_that_is_no_multiple_of_the_tile_is_filled_with_zeros() {
    let problem = Problem { m: 64, n: 128, k: 104 };
    let (kernel, expected) = (multiply(), problem.product());
    for schedule in Schedule::several(4) {
        let (mut gpu, launch, out) = problem.prepare();
        gpu.run(&kernel, &launch, schedule).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(gpu.floats(out), expected, "{schedule}");
    }
}
