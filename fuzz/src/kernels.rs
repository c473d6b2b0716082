//! What a fuzzer calls with kernels that strangers send: PTX, of any compiler or of none. Errors are fine. Panics are
//! not, nor is anything that is read and then printed as something else. The tests of `ptx` replay the corpus through
//! these same functions.

use ptx::parse::{Module, Shape};
use ptx::{Kernel, Op};

/// What a fuzzer calls with bytes.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Target); 1] = [("ptx", ptx)];

/// The bytes are a module.
pub fn ptx(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let module = match Module::read(text) {
        Ok(module) => module,
        Err(error) => return said(&error.to_string()),
    };
    for entry in module.entries().into_iter().take(4) {
        // As the text wants to be launched, and as somebody might.
        let (block, cluster) = (Some([32, 2, 1]), Some([2, 1, 1]));
        let asked = Shape { block, cluster, dynamic_shared: 4096, cooperative: true };
        for shape in [Shape::default(), asked] {
            match module.kernel(entry, shape) {
                Ok(kernel) => read_again(&kernel),
                Err(error) => said(&error.to_string()),
            }
        }
    }
}

/// An error is one sentence.
fn said(message: &str) {
    assert!(!message.is_empty() && !message.contains('\n') && message.len() < 4000, "{message}");
}

/// What is understood can be checked and printed, and what is printed is understood as the same.
fn read_again(kernel: &Kernel) {
    let _ = (kernel.violations(), kernel.labels());
    let text = kernel.to_ptx();
    // Shared memory that is used and not there is for the checker to refuse.
    let missing = kernel.shared_bytes() == 0 && text.contains("shared_memory");
    if missing || kernel.body.iter().any(|instr| matches!(instr.op, Op::Unknown(_))) {
        return;
    }
    let shape = Shape { dynamic_shared: kernel.shared_bytes(), ..Shape::default() };
    let module = Module::read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let again = module.kernel(&kernel.name, shape).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let bare = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim_end().to_string());
        lines.filter(|line| !line.is_empty()).collect()
    };
    assert_eq!(bare(&text), bare(&again.to_ptx()));
}
