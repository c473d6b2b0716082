//! The readers of `ptx`, and of launch files.
#![no_main]

use hammerhead_fuzz::{chosen, kernels, launches};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chosen(&[kernels::TARGETS[0], launches::TARGETS[0]])(bytes));
