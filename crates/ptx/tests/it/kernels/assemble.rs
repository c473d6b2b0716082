//! Every kernel is given to NVIDIA's assembler, which knows the syntax best.
//!
//! Without it the tests say that they did not run, and fail if `HAMMERHEAD_REQUIRE_PTXAS=1`.

use std::path::Path;

use super::{assembler, families};
use ptx::assemble::Assembler;
use ptx::{Builder, Error, Instr, LaunchBounds, PhaseId, Target};

#[test]
fn every_kernel_assembles_without_spills_or_serialised_wgmma() {
    let Some(assembler) = assembler() else { return };
    for (name, kernel) in super::all() {
        let kernel = kernel.unwrap_or_else(|error| panic!("{name}: {error}"));
        let report = assembler.assemble(&kernel).unwrap_or_else(|error| panic!("{name}: {error}"));
        eprintln!("{name}: {report}");
        report.check(&kernel).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(report.cubin.starts_with(b"\x7fELF"), "{name}: the machine code is an ELF file");
        assert_eq!(report.shared_bytes, kernel.shared_bytes());
    }
}

/// Whatever the checker lets through, the assembler must take: every form of every family.
#[test]
fn every_form_that_the_checker_accepts_assembles() {
    let Some(assembler) = assembler() else { return };
    for family in families::all() {
        let kernel = family.specimen();
        assert_eq!(kernel.check(), Ok(()), "{}", family.name);
        let report = assembler.assemble(&kernel).unwrap_or_else(|error| panic!("{}: {error}", family.name));
        eprintln!(
            "{} {}: {} forms, {} registers",
            family.target.name(),
            family.name,
            kernel.body.len(),
            report.registers
        );
    }
}

/// One text serves every GPU since Ampere: the other chips that there are take what is for sm_80, and the chips of each
/// kind of Blackwell what is for their family.
#[test]
fn every_form_for_a_target_assembles_for_all_chips_that_run_it() {
    let Some(assembler) = assembler() else { return };
    let chips = |target| match target {
        Target::Sm80 => &["sm_86", "sm_89", "sm_90", "sm_100", "sm_120"][..],
        Target::Sm100f => &["sm_100a", "sm_103a"],
        Target::Sm120f => &["sm_120a", "sm_121a"],
        Target::Sm90a | Target::Sm100a => &[],
    };
    for family in families::all() {
        let kernel = family.specimen();
        for chip in chips(family.target) {
            let report = assembler.assemble_for(&kernel, chip);
            report.unwrap_or_else(|error| panic!("{} for {chip}: {error}", family.name));
        }
    }
}

#[test]
fn a_missing_assembler_is_an_error_with_a_remedy() {
    let error = Assembler::find(Some(Path::new("/nowhere/ptxas"))).expect_err("there is none");
    assert_eq!(error, Error::NoAssembler { tried: "/nowhere/ptxas".into() });
    assert!(error.to_string().contains("pip install nvidia-cuda-nvcc"));
}

#[test]
fn what_the_assembler_refuses_is_reported_in_its_own_words() {
    let Some(assembler) = assembler() else { return };
    let k = Builder::new("torn", Target::Sm90a, LaunchBounds { threads: 32, cluster: None, min_blocks: None });
    let mut kernel = k.finish().expect("a legal kernel");
    let branch = ptx::instr::Control::Branch { target: ptx::Label(9), uniform: false };
    kernel.body.insert(0, Instr { guard: None, op: branch.into(), phase: PhaseId(0), line: None });
    let Err(Error::Assembly { lines, .. }) = assembler.assemble(&kernel) else { panic!("accepted") };
    assert!(lines.contains("L9"), "{lines}");
}
