//! What NVFP4 bytes mean.
