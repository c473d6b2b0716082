//! Every kernel is given to NVIDIA's assembler, which knows the syntax best.
//!
//! `HAMMERHEAD_PTXAS` names it, or it is found on the path. Without it the test says that it did not run, and fails if
//! `HAMMERHEAD_REQUIRE_PTXAS=1`.

mod kernels;

use std::ffi::OsString;
use std::process::Command;

use ptx::Target;

fn assembler() -> Option<OsString> {
    let name = std::env::var_os("HAMMERHEAD_PTXAS").unwrap_or_else(|| "ptxas".into());
    Command::new(&name).arg("--version").output().ok().map(|_| name)
}

#[test]
fn every_kernel_assembles_without_spills_or_serialised_wgmma() {
    let Some(ptxas) = assembler() else {
        let required = std::env::var("HAMMERHEAD_REQUIRE_PTXAS").is_ok_and(|value| value == "1");
        assert!(!required, "ptxas is required but was not found: set HAMMERHEAD_PTXAS");
        eprintln!("NOT RUN: no ptxas; set HAMMERHEAD_PTXAS (pip install nvidia-cuda-nvcc) to assemble the kernels");
        return;
    };
    for (name, kernel) in kernels::all() {
        let kernel = kernel.unwrap_or_else(|error| panic!("{name}: {error}"));
        let arch = match kernel.target {
            Target::Sm90a => "sm_90a",
            Target::Sm100a => "sm_100a",
        };
        let file = std::env::temp_dir().join(format!("hammerhead-ptx-{}-{name}.ptx", std::process::id()));
        std::fs::write(&file, kernel.to_ptx()).expect("the temporary folder is writable");
        let result = Command::new(&ptxas)
            .args(["-v", "-arch", arch, "-o", "/dev/null"])
            .arg(&file)
            .output()
            .expect("ptxas starts");
        let report = String::from_utf8_lossy(&result.stderr).into_owned() + &String::from_utf8_lossy(&result.stdout);
        eprintln!("{name}: {report}");
        assert!(result.status.success(), "{name}: ptxas refuses {}:\n{report}", file.display());
        assert!(!report.contains("serialized"), "{name}: {report}");
        assert!(report.contains("0 bytes spill stores, 0 bytes spill loads"), "{name}: {report}");
        std::fs::remove_file(&file).expect("the temporary file can be removed");
    }
}
