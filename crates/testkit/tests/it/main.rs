//! Every backend under the one tester, one file per subject. One program, because linking one per file took longer than
//! running them.

mod adapted_layers;
mod adapters;
mod adverse;
mod assembling;
mod backends;
mod configurations;
mod expand;
mod expert_layer;
mod experts;
mod extremes;
mod first_principles;
mod fp8;
mod fp8_layers;
mod gates;
mod global_scales;
mod join;
mod kernels;
mod layers;
mod mode;
mod mutations;
mod precision;
mod simulated;
mod warp_kernels;
