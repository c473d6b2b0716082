"""``experts_implementation="hammerhead"``: experts of a model that is not quantised, computed in NVFP4.

Whoever chooses it asks for quantising: the first call of every layer makes NVFP4 of its experts and packs them, and the
model's own weights stay where they are. For checkpoints that are NVFP4 already it is not needed.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from hammerhead import Experts, quantize

NAME = "hammerhead"

_PACKED: weakref.WeakKeyDictionary[torch.nn.Module, Experts] = weakref.WeakKeyDictionary()


def experts_forward(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """The contract of transformers' experts: tokens, ids and weights to sums."""
    packed = _PACKED.get(self)
    if packed is None:
        packed = _PACKED[self] = _pack(self)
    return packed(hidden_states, top_k_index, top_k_weights.to(torch.float32))


def _pack(module: Any) -> Experts:
    name = type(module).__name__
    activation = getattr(module.config, "hidden_act", None) or getattr(module.config, "hidden_activation", None)
    gates = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu-tanh"}
    if not module.has_gate or module.has_bias or module.is_transposed or not module.is_concatenated or activation not in gates:
        raise ValueError(
            f"{name}: experts_implementation='{NAME}' takes gated experts without biases, gate above up in one matrix, with SiLU or the tanh form "
            f"of GELU (here: {activation}); choose another implementation"
        )
    with torch.no_grad():
        pairs = [weight.detach().chunk(2) for weight in module.gate_up_proj]
        first, second = ([quantize(pair[part].contiguous()) for pair in pairs] for part in (0, 1))
        down = [quantize(weight.detach().contiguous()) for weight in module.down_proj]
    return Experts.from_arrays(first, second, down, gate=gates[activation])


def register_experts() -> None:
    """Makes transformers know it."""
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
