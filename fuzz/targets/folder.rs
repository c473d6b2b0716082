#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hammerhead_fuzz::checkpoints::folder(bytes));
