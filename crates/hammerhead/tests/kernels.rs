//! The GPU's kernels as they are printed: legal in every size that a plan may choose, and assembled without spills.

use hammerhead::gpu::expand::{self, MOST_SEGMENTS, Source};
use hammerhead::gpu::join::{self, Function};
use hammerhead::gpu::{Which, sm90};
use hammerhead::{Activation, Backend, Gate, Output, Problem, Shape, gpu};
use ptx::Error;
use ptx::assemble::Assembler;

/// The assembler, or a visible word that there is none. With `HAMMERHEAD_REQUIRE_PTXAS=1` that is a failure.
fn assembler() -> Option<Assembler> {
    match Assembler::find(None) {
        Ok(assembler) => Some(assembler),
        Err(error) => {
            let required = std::env::var("HAMMERHEAD_REQUIRE_PTXAS").is_ok_and(|value| value == "1");
            assert!(!required, "{error}");
            eprintln!("NOT RUN: {error}");
            None
        }
    }
}

/// Every size that a plan chooses among, and sizes at the edges of what is legal.
fn sizes() -> Vec<sm90::Config> {
    let problem = Problem::new(vec![Shape::new(256, 4096, 7168)], Gate::Silu, Activation::F16, Output::F16).unwrap();
    let candidates = gpu::Cuda.candidates(&problem, 1);
    let size = |tokens, stages, warpgroups| sm90::Config { tokens, stages, warpgroups };
    let planned = candidates
        .iter()
        .map(|config| size(config.tile.tokens as u32, config.stages as u32, (config.tile.columns / 64) as u32));
    let edges = [(8, 2, 1), (24, 16, 2), (40, 3, 3), (120, 2, 3), (176, 4, 2), (248, 5, 1), (256, 2, 2)];
    planned.chain(edges.map(|(tokens, stages, warpgroups)| size(tokens, stages, warpgroups))).collect()
}

fn joins() -> Vec<join::Config> {
    let functions = [Function::Silu, Function::GeluTanh, Function::GptOss, Function::None];
    functions.iter().flat_map(|&function| Output::ALL.map(|output| join::Config { function, output })).collect()
}

fn expansions() -> Vec<expand::Config> {
    let sources = [Source::NvFp4, Source::Single];
    sources.iter().flat_map(|&source| [1, MOST_SEGMENTS].map(|segments| expand::Config { source, segments })).collect()
}

fn kernels() -> impl Iterator<Item = Which> {
    let (sizes, joins, expansions) = (sizes().into_iter(), joins().into_iter(), expansions().into_iter());
    sizes.map(Which::Multiply).chain(joins.map(Which::Join)).chain(expansions.map(Which::Expand))
}

#[test]
fn every_kernel_assembles_without_spills_or_serialised_wgmma() {
    let Some(assembler) = assembler() else { return };
    for which in kernels() {
        let kernel = which.build().unwrap_or_else(|error| panic!("{which:?}: {error}"));
        let report = assembler.assemble(&kernel).unwrap_or_else(|error| panic!("{which:?}: {error}"));
        eprintln!("{which:?}: {report}");
        report.check(&kernel).unwrap_or_else(|error| panic!("{which:?}: {error}"));
        assert_eq!(report.warnings, [] as [&str; 0], "{which:?}");
    }
}

#[test]
fn every_kernel_takes_the_shared_memory_that_its_config_says() {
    for config in sizes() {
        let kernel = sm90::kernel(config).unwrap_or_else(|error| panic!("{config:?}: {error}"));
        assert_eq!(kernel.shared_bytes(), config.shared_bytes(), "{config:?}");
        assert!(config.most_stages() >= config.stages, "{config:?}");
    }
}

#[test]
fn a_size_the_hardware_lacks_is_refused() {
    let sound = sm90::Config { tokens: 64, stages: 4, warpgroups: 2 };
    assert!(sm90::kernel(sound).is_ok());
    for broken in [
        sm90::Config { tokens: 12, ..sound },
        sm90::Config { tokens: 264, ..sound },
        sm90::Config { stages: 1, ..sound },
        sm90::Config { warpgroups: 4, ..sound },
        sm90::Config { tokens: 136, warpgroups: 3, ..sound },
        sm90::Config { tokens: 256, stages: 16, ..sound },
    ] {
        assert!(matches!(sm90::kernel(broken), Err(Error::Field { .. })), "{broken:?}");
    }
}

#[test]
fn the_grid_covers_odd_shapes() {
    let config = sm90::Config { tokens: 32, stages: 2, warpgroups: 2 };
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
