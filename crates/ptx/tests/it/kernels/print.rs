//! Printed kernels are kept as files and compared: a change of the printer shows as a change of text.
//! `UPDATE_SNAPSHOTS=1 cargo test` writes them anew.

use std::path::Path;

#[test]
fn every_kernel_prints_as_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    for (name, kernel) in super::all() {
        let text = kernel.unwrap_or_else(|error| panic!("{name}: {error}")).to_ptx();
        let file = folder.join(format!("{name}.ptx"));
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&file, &text).expect("the snapshot folder is writable");
        }
        let recorded = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(recorded == text, "{name} prints differently from {}; see git diff after an update", file.display());
    }
}
