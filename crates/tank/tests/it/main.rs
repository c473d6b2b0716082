//! The tank from outside, one file per subject. One program, because linking one per file took longer than running
//! them.

mod calibration;
mod cheats;
mod common;
mod contestants;
mod evolve;
mod foretold;
mod format;
mod imports;
mod layers;
mod operations;
mod report;
mod resume;
mod scripted;
mod season;
mod strangers;
mod ways_in;
