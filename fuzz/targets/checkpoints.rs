//! The readers of `format`: safetensors, gguf, folder.
#![no_main]

use hammerhead_fuzz::{checkpoints, chosen};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chosen(&checkpoints::TARGETS)(bytes));
