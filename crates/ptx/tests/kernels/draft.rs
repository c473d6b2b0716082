//! The first real kernel, before it moves into its own crate: built, checked and assembled in every size.

#[path = "../../../../draft/sm90_pack.rs"]
mod sm90_pack;
#[path = "../../../../draft/sm90_plain.rs"]
mod sm90_plain;

use ptx::Error;

use crate::assembler;
use sm90_plain::{Config, Output};

#[test]
fn the_plain_gemm_assembles_without_spills_or_serialised_wgmma() {
    let Some(assembler) = assembler() else { return };
    for config in sizes() {
        let kernel = sm90_plain::kernel(config).unwrap_or_else(|error| panic!("{config:?}: {error}"));
        let report = assembler.assemble(&kernel).unwrap_or_else(|error| panic!("{config:?}: {error}"));
        eprintln!("{config:?}: {report}");
        report.check(&kernel).unwrap_or_else(|error| panic!("{config:?}: {error}"));
        assert_eq!(report.warnings, [] as [&str; 0], "{config:?}");
    }
}

/// Every usual size, and the largest ones that each number of warpgroups has registers for.
fn sizes() -> Vec<Config> {
    let config = |tokens, stages, warpgroups, output| Config { tokens, stages, warpgroups, output };
    let mut sizes = Vec::new();
    for tokens in [8, 16, 32, 64, 128] {
        for stages in 2..=4 {
            for output in [Output::F16, Output::Bf16, Output::F32] {
                sizes.push(config(tokens, stages, 2, output));
            }
        }
    }
    sizes.extend([(256, 4, 1), (256, 4, 2), (128, 4, 3)].map(|(t, s, w)| config(t, s, w, Output::F16)));
    sizes
}

#[test]
fn a_size_the_hardware_lacks_is_refused() {
    let sound = Config { tokens: 64, stages: 4, warpgroups: 2, output: Output::F16 };
    assert!(sm90_plain::kernel(sound).is_ok());
    for broken in [
        Config { tokens: 12, ..sound },
        Config { tokens: 264, ..sound },
        Config { stages: 1, ..sound },
        Config { warpgroups: 4, ..sound },
    ] {
        assert!(matches!(sm90_plain::kernel(broken), Err(Error::Field { .. })), "{broken:?}");
    }
    let deep = Config { tokens: 256, stages: 16, ..sound };
    assert!(matches!(sm90_plain::kernel(deep), Err(Error::Illegal(_))), "more shared memory than there is");
}

#[test]
fn the_grid_covers_odd_shapes() {
    let config = Config { tokens: 32, stages: 2, warpgroups: 2, output: Output::F16 };
    assert_eq!(config.grid(1, 1), [1, 1]);
    assert_eq!(config.grid(32, 128), [1, 1]);
    assert_eq!(config.grid(33, 129), [2, 2]);
}

#[test]
fn the_token_map_is_one_the_hardware_accepts_and_its_box_is_a_stage() {
    for config in sizes() {
        let map = config.token_map(0x1000, 77, 80);
        assert_eq!(map.check(), Ok(()), "{config:?}");
        assert_eq!(map.box_bytes(), u64::from(config.tokens) * 128);
    }
}
