//! The simulator's tests, as one program: it is linked once, and all of them share the cores.

mod block_scaled;
mod cluster;
mod collectives;
mod generic;
mod kernels;
mod multiply;
mod museum;
mod mutations;
mod operands;
mod pair;
mod robustness;
mod rules;
mod strangers;
mod texts;
mod timeline;
mod wmma;

#[path = "../problems/block_scaled.rs"]
mod block_scaled_problem;
#[path = "../problems/cases.rs"]
mod cases;
#[path = "../problems/mod.rs"]
mod problems;
