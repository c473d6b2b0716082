//! Kernels of `ptx`'s tests, which are run here and in the example `sim_speed`.

#[path = "../../../ptx/tests/it/kernels/block_scaled.rs"]
pub mod block_scaled;
#[path = "../../../ptx/tests/it/kernels/multiply.rs"]
pub mod multiply;
