"""From the parameters that vLLM's loaders have filled to packed layers.

vLLM merges matrices that see the same tokens (queries, keys and values; gate and up) and keeps one global scale for all of them. Here each keeps its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from hammerhead import Experts, Linear, NvFp4


class MergedLinear:
    """Matrices one below the other, each with a global scale of its own."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, widths: Sequence[int], factors: Sequence[float]) -> None:
        self.pieces: list[Linear] = []
        first = 0
        # Neighbours with the same global scale are one matrix.
        for factor, merged in itertools.groupby(zip(factors, widths), key=lambda pair: pair[0]):
            rows = slice(first, first + sum(width for _, width in merged))
            self.pieces.append(Linear.from_arrays(NvFp4(codes[rows], scales[rows], factor)))
            first = rows.stop

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        parts = [piece(x) for piece in self.pieces]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return y if bias is None else y + bias


class LocalExperts:
    """The experts that this process holds."""

    def __init__(
        self,
        first: tuple[torch.Tensor, torch.Tensor, Sequence[Sequence[float]]],
        down: tuple[torch.Tensor, torch.Tensor, Sequence[float]],
        gate: tuple[str, float | None],
    ) -> None:
        codes, scales, factors = first
        count, matrices = len(factors), len(factors[0])
        rows = codes.shape[1] // matrices

        def of(matrix: int) -> list[NvFp4[torch.Tensor]]:
            part = slice(matrix * rows, (matrix + 1) * rows)
            return [NvFp4(codes[e, part], scales[e, part], factors[e][matrix]) for e in range(count)]

        self.experts = Experts.from_arrays(
            of(0),
            of(1) if matrices == 2 else None,
            [NvFp4(codes, scales, factor) for codes, scales, factor in zip(*down)],
            gate=gate[0],
            clamp=gate[1],
        )

    def __call__(self, layer: Any, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if layer.expert_map is not None:
            # Experts of other processes become -1, and add nothing.
            ids = layer.expert_map[ids.long()]
        return self.experts(x, ids, weights, weights_on_input=layer.apply_router_weight_on_input)


GATES = {"silu": "silu", "gelu_tanh": "gelu-tanh", "relu2_no_mul": "relu2"}
"""What vLLM's activations of experts are called here."""


def gate_of(layer: Any, moe: Any) -> tuple[str, float | None]:
    """The gate of a layer of experts and its limit, or ``NotImplementedError`` with the layer's name."""
    name = moe.activation.value
    if name not in GATES:
        raise NotImplementedError(
            f"{layer.layer_name}: its experts have the activation {name!r}, and hammerhead computes {', '.join(GATES)}; start vLLM with VLLM_PLUGINS='' "
            "to leave the layer to vLLM"
        )
    if moe.has_bias:
        raise NotImplementedError(f"{layer.layer_name}: its experts have biases, which this plugin does not load; start vLLM with VLLM_PLUGINS=''")
    return GATES[name], getattr(layer, "swiglu_limit", None)


def check_loaded(layer: Any, what: str, scales: torch.Tensor) -> None:
    """Refuses block scales of which some are not numbers: nothing was loaded there."""
    # Signs aside, e4m3 has one pattern that is not a number.
    if (scales.view(torch.uint8) & 0x7F == 0x7F).any():
        name = getattr(layer, "prefix", None) or getattr(layer, "layer_name", None) or type(layer).__name__
        raise RuntimeError(f"{name}: {what} was not loaded, or holds NaN; is the layer NVFP4 in the checkpoint, or should it be among its exceptions?")


def empty(layer: torch.nn.Module, *names: str) -> None:
    """Gives back the memory of parameters that were packed. They stay, without elements, for whoever asks for a device."""
    for name in names:
        parameter = getattr(layer, name)
        setattr(layer, name, torch.nn.Parameter(parameter.data.new_empty(0), requires_grad=False))
