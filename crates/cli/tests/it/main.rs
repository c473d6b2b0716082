//! The command line as a user meets it: each file runs the program and reads what it prints.

mod bad_inputs;
mod check;
mod checkpoints;
mod commands;
mod common;
mod defaults;
mod doctor;
mod driver;
mod gpu;
mod moe;
mod page;
mod problems;
mod quantize;
mod shapes;
mod tank;
mod truth;
mod vectors;
