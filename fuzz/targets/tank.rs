//! The readers of `tank`: pitch, season, ledger, contestant.
#![no_main]

use hammerhead_fuzz::{chosen, tank};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chosen(&tank::TARGETS)(bytes));
