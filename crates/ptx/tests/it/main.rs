//! The tests of instructions, kernels and texts, as one program: it is linked once, and all of them share the cores.

mod descriptors;
mod kernels;
mod refusals;
mod rules;
mod strangers;
