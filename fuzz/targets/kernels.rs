//! The reader of `ptx`.
#![no_main]

use hammerhead_fuzz::{chosen, kernels};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chosen(&kernels::TARGETS)(bytes));
