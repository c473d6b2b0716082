//! GPU architectures, a folder each: the kernels that their tensor cores want.

pub mod sm90;
