//! Fuzz targets for the readers of files that come from strangers.

pub mod checkpoints;
