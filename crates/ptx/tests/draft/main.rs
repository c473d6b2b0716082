//! The first real kernel, before it moves into its own crate: built, checked and assembled in every size.

#[path = "../../../../draft/sm90_pack.rs"]
mod sm90_pack;
#[path = "../../../../draft/sm90_plain.rs"]
mod sm90_plain;

use ptx::assemble::Assembler;
use sm90_plain::{Config, Output};

#[test]
fn the_plain_gemm_assembles_without_spills_or_serialised_wgmma() {
    let assembler = match Assembler::find(None) {
        Ok(assembler) => assembler,
        Err(error) => {
            let required = std::env::var("HAMMERHEAD_REQUIRE_PTXAS").is_ok_and(|value| value == "1");
            assert!(!required, "{error}");
            eprintln!("NOT RUN: {error}");
            return;
        }
    };
    for tokens in [8, 16, 32, 64, 128] {
        for stages in 2..=4 {
            for output in [Output::F16, Output::Bf16, Output::F32] {
                let config = Config { tokens, stages, warpgroups: 2, output };
                let kernel = sm90_plain::kernel(config).unwrap_or_else(|error| panic!("{config:?}: {error}"));
                let report = assembler.assemble(&kernel).unwrap_or_else(|error| panic!("{config:?}: {error}"));
                eprintln!("{config:?}: {report}");
                report.check(&kernel).unwrap_or_else(|error| panic!("{config:?}: {error}"));
                assert_eq!(report.warnings, [] as [&str; 0], "{config:?}");
            }
        }
    }
}
