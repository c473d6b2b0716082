"""Swap the gated MLPs of a transformers model for NVFP4 ones, and check the logits.

    pip install . torch transformers && python examples/python/swap_mlp.py

The model is a tiny random Qwen3, so that the check needs no download; `swap` works on any model whose MLPs have
gate_proj, up_proj, down_proj and SiLU (Llama, Mistral, Qwen). The logits are held against the same model computing in
torch with the very weights that NVFP4 stands for: what is left is the rounding of sums.
"""

import copy

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import hammerhead


class NvFp4Mlp(torch.nn.Module):
    """silu(x @ gate.T) * (x @ up.T) in one call on NVFP4 weights, then the down projection as it was."""

    def __init__(self, mlp: torch.nn.Module):
        super().__init__()
        self.gate, self.up = (hammerhead.quantize(part.weight.detach()) for part in (mlp.gate_proj, mlp.up_proj))
        self.weights = hammerhead.DualWeights.from_arrays(self.gate, self.up)
        self.down_proj = mlp.down_proj

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.weights(x))


def swap(model: torch.nn.Module) -> list[tuple[str, NvFp4Mlp]]:
    """Replaces every gated MLP of a model, and tells which."""
    gated = [name for name, module in model.named_modules() if hasattr(module, "gate_proj") and hasattr(module, "up_proj")]
    swapped = []
    for name in gated:
        parent, _, child = name.rpartition(".")
        mlp = NvFp4Mlp(model.get_submodule(name))
        setattr(model.get_submodule(parent), child, mlp)
        swapped.append((name, mlp))
    return swapped


def main() -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=256, hidden_size=64, intermediate_size=160, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    )  # fmt: skip
    expected = Qwen3ForCausalLM(config).eval()
    model = copy.deepcopy(expected)
    with torch.no_grad():
        for name, mlp in swap(model):
            original = expected.get_submodule(name)
            original.gate_proj.weight.copy_(mlp.gate.dequantize())
            original.up_proj.weight.copy_(mlp.up.dequantize())
            print(f"{name}: {mlp.weights}, {mlp.weights.packed_bytes} bytes")
    tokens = torch.randint(0, config.vocab_size, (2, 7))
    with torch.inference_mode():
        ours, theirs = model(tokens).logits, expected(tokens).logits
    distance = (ours - theirs).abs().max().item()
    print(f"logits {tuple(ours.shape)} differ by at most {distance:.1e}, and are as large as {theirs.abs().max():.1f}")
    assert distance < 1e-4 * theirs.abs().max(), "the swapped model computes something else"


if __name__ == "__main__":
    main()
