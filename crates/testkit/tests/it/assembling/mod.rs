//! Kernels through NVIDIA's assembler, for tests of several families.

use gpu::KernelSpec;
use ptx::assemble::Assembler;
use rayon::prelude::*;

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

/// Holds all kernels to assemble without spills and without a warning: each for one of the chips that run it, the chips
/// in turn, so that every chip sees some of every kind: all kernels for all chips would be much of the tests' time.
pub fn assert_assemble(specs: Vec<KernelSpec>, chips: &[&str]) {
    let Some(assembler) = assembler() else { return };
    let assemble = |(at, spec): (usize, KernelSpec)| -> Option<String> {
        let chip = chips[at % chips.len()];
        let kernel = spec.build().unwrap_or_else(|error| panic!("{spec:?}: {error}"));
        let report = assembler.assemble_for(&kernel, chip).unwrap_or_else(|error| panic!("{chip} {spec:?}: {error}"));
        eprintln!("{chip} {spec:?}: {report}");
        let refused = report.check(&kernel).err().map(|error| format!("{chip} {spec:?}: {error}"));
        let warned = (!report.warnings.is_empty()).then(|| format!("{chip} {spec:?}: {:?}", report.warnings));
        refused.or(warned)
    };
    let wrong: Vec<String> = specs.into_par_iter().enumerate().filter_map(assemble).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
