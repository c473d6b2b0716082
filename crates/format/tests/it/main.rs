//! The format from outside, one file per subject. One program, because linking one per file took longer than running
//! them.

mod arrangements;
mod beside;
mod checkpoints;
mod codes;
mod feed_forward;
mod fp8;
mod global_scales;
mod hostile;
mod matrices;
mod models;
mod pre_scales;
mod quantising;
mod safetensors_files;
mod scale_layouts;
mod survey;
