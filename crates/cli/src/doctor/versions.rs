//! The versions of other programs that rules were read from. llama.cpp's converter was read at commit b21e4de.

pub const TRANSFORMERS: &str = "transformers 5.22.2";
pub const VLLM: &str = "vLLM 0.32.0";
pub const LLAMA_CPP: &str = "llama.cpp b10586";
