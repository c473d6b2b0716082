"""``experts_implementation="hammerhead"``: experts of a model that is not quantised, computed in NVFP4.

Whoever chooses it asks for quantising: the first call of every layer makes NVFP4 of its experts and packs them, and the
model's own weights stay where they are. For checkpoints that are NVFP4 already it is not needed.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from hammerhead import Experts, NvFp4, quantize
from hammerhead._twin import Differs, Stacks, experts_form, rows
from hammerhead.transformers._plan import Forms

NAME = "hammerhead"

_FORMS = Forms({})

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
    stacks, name = Stacks.of(module), type(module).__name__
    try:
        if stacks is None or module.has_bias:
            raise Differs("has biases, or no stacks whose sides tell gate, up and down apart")
        form = _FORMS.of(name, module, experts_form, stacks)
    except Differs as differs:
        raise ValueError(f"{name} {differs}, which experts_implementation='{NAME}' does not compute; choose another implementation") from differs

    def matrices(stack: torch.Tensor, half: str | None) -> list[NvFp4[torch.Tensor]]:
        straight = stack.detach().transpose(1, 2) if stacks.turned else stack.detach()
        return [quantize(rows(matrix, half).contiguous()) for matrix in straight]

    first, second = form.halves or (None, None)
    with torch.no_grad():
        b1 = matrices(getattr(module, stacks.first), first)
        b2 = matrices(getattr(module, stacks.first), second) if second else None
        return Experts.from_arrays(b1, b2, matrices(module.down_proj, None), gate=form.gate)


def register_experts() -> None:
    """Makes transformers know it."""
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
