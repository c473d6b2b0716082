"""From the parameters that vLLM's loaders have filled to packed layers.

vLLM merges matrices that see the same tokens (queries, keys and values; gate and up) and keeps one global scale for all
of them. Here each keeps its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hammerhead import Experts, Linear, NvFp4
from hammerhead._packed import LayerOptions
from hammerhead.vllm._watch import watch

GROUP = 16
"""The weights that share one block scale in NVFP4."""


class MergedLinear:
    """Matrices one below the other, each with a global scale of its own."""

    def __init__(
        self, codes: torch.Tensor, scales: torch.Tensor, widths: Sequence[int], factors: Sequence[float]
    ) -> None:
        if len(widths) != len(factors):
            raise ValueError(f"{len(widths)} merged matrices have {len(factors)} global scales")
        self.pieces: list[Linear] = []
        first = 0
        # Neighbours with the same global scale are one matrix.
        for factor, merged in itertools.groupby(zip(factors, widths), key=lambda pair: pair[0]):
            rows = slice(first, first + sum(width for _, width in merged))
            self.pieces.append(Linear.from_arrays(NvFp4(codes[rows], scales[rows], factor)))
            first = rows.stop

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        parts = [piece(x) for piece in self.pieces]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


class LocalExperts:
    """The experts that this process holds."""

    def __init__(
        self,
        first: tuple[torch.Tensor, torch.Tensor, Sequence[Sequence[float]]],
        down: tuple[torch.Tensor, torch.Tensor, Sequence[float]],
        gate: tuple[str, float | None],
        weights_on_input: bool,
        options: LayerOptions,
    ) -> None:
        self.weights_on_input = weights_on_input
        # What tokens have of adapters, as arguments of the layer, once vLLM has some.
        self.adapted: Callable[[torch.Tensor], dict[str, Any]] = lambda x: {}
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
            **options,
        )
        if self.experts.resident is not None:
            watch(self.experts)

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Computes tokens by experts of these numbers here; those that are not here add nothing."""
        return self.experts(x, ids, weights, weights_on_input=self.weights_on_input, **self.adapted(x))


def local_ids(expert_map: torch.Tensor | None, ids: torch.Tensor) -> torch.Tensor:
    """The experts' numbers in this process; -1, which adds nothing, for those of other processes and for no expert."""
    if expert_map is None:
        return ids
    local = expert_map[ids.clamp(min=0).long()]
    return torch.where(ids < 0, torch.full_like(local, -1), local)


GATES = {"silu": "silu", "gelu_tanh": "gelu-tanh", "relu2_no_mul": "relu2"}
"""What vLLM's activations of experts that have no parameters, or only a limit, are called here."""

OPENAI = "swigluoai_uninterleave"
"""The activation of gpt-oss on gate and up one below the other, as vLLM calls it."""


def gate_of(moe: Any) -> tuple[str, float | None]:
    """The gate of experts and its limit, by vLLM's configuration of the layer, or ``NotImplementedError``."""
    name, limit, alpha, beta = moe.activation.value, moe.swiglu_limit, moe.swiglu_alpha, moe.swiglu_beta
    if name == OPENAI and limit is not None:
        # What vLLM takes where a model does not say.
        alpha, beta = 1.0 if alpha is None else alpha, 0.0 if beta is None else beta
        return f"gpt-oss:alpha={alpha},beta={beta},limit={limit}", None
    if name not in GATES:
        known = ", ".join([*GATES, f"{OPENAI} with a limit"])
        raise NotImplementedError(f"its experts have the activation {name!r}, and hammerhead computes {known}")
    if limit is not None and name != "silu":
        raise NotImplementedError(f"its experts limit what goes into {name!r} to {limit}, which is done for silu only")
    if alpha not in (None, 1.0) or beta not in (None, 0.0):
        raise NotImplementedError(f"its experts have {name!r} with alpha={alpha} and beta={beta}, which it has not")
    return GATES[name], limit


def check_experts(moe: Any, group: int, lora: bool) -> None:
    """``NotImplementedError`` for experts that cannot be computed here, by vLLM's configuration of the layer.

    Blocks of ``group`` weights must not be cut by tensor parallel; ``lora`` says whether adapters may be added.
    """
    gate_of(moe)
    if moe.has_bias:
        raise NotImplementedError("its experts have biases, which this plugin does not load")
    if moe.is_lora_enabled and not lora:
        raise NotImplementedError("its experts have LoRA, which hammerhead adds to NVFP4 experts on a CPU only")
    if moe.intermediate_size_per_partition % group != 0:
        raise NotImplementedError(
            f"each process would hold {moe.intermediate_size_per_partition} columns of its experts, which have "
            f"blocks of {group}; use fewer processes, or --enable-expert-parallel"
        )


def not_a_number(parameter: torch.Tensor) -> None:
    """Marks scales as not loaded: vLLM leaves there what memory held."""
    if parameter.dtype == torch.uint8:
        # In e8m0 all ones is not a number.
        parameter.data.fill_(0xFF)
    else:
        parameter.data.fill_(float("nan"))


def check_loaded(name: str, layer: Any, *scales: str) -> None:
    """Refuses scales of which some are not numbers: nothing was loaded there."""
    for scale in scales:
        if _missing(getattr(layer, scale).data):
            raise RuntimeError(
                f"{name}: {scale} was not loaded, or holds NaN; is all of the layer quantised as the checkpoint's "
                "configuration says, or should it be among its exceptions?"
            )


def _missing(scales: torch.Tensor) -> bool:
    if scales.dtype == torch.uint8:
        return bool((scales == 0xFF).any())
    if scales.dtype == torch.float8_e4m3fn:
        # Signs aside, e4m3 has one pattern that is not a number.
        return bool((scales.view(torch.uint8) & 0x7F == 0x7F).any())
    # vLLM marks some scales with the smallest number. None is negative.
    return bool((scales.isnan() | (scales < 0)).any())


def check_own_product(name: str, layer: Any) -> None:
    """Refuses a layer whose weight vLLM's model reads itself: here it is packed."""
    if getattr(layer, "is_bmm", False) or getattr(layer, "_retain_weight_for_gather", False):
        raise NotImplementedError(f"{name}: the model reads its weight itself, and here it is packed; {WITHOUT}")


WITHOUT = "start vLLM with VLLM_PLUGINS='' to leave the layer to vLLM"
"""What may be done about a layer that is refused."""


def empty(layer: torch.nn.Module, *names: str) -> None:
    """Gives back the memory of parameters that were packed. They stay, without elements: vLLM asks for their device."""
    for name in names:
        parameter = getattr(layer, name)
        setattr(layer, name, torch.nn.Parameter(parameter.data.new_empty(0), requires_grad=False))
