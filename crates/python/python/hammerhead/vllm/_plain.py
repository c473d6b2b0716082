"""Layers in FP8 and MXFP8 of mixed checkpoints, for platforms on which vLLM has no kernel for them.

On a CPU they stay FP8, and are ours (:class:`hammerhead.Fp8Linear`). Elsewhere, and where their scales cannot be computed
with, codes become numbers of the activations' type, and torch multiplies: that is for models to load whole, not for
speed. No scale is rounded into a weight: scales per row multiply the sums in single precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.platforms import current_platform

from hammerhead import Fp8Linear
from hammerhead.vllm._calls import Call
from hammerhead.vllm._packed import OPENAI, check_loaded, empty, local_ids, not_a_number

MX_BLOCK = (1, 32)
"""The rows and columns of weights that share one scale in MXFP8."""


class PlainLinear:
    """A matrix of 8-bit floats and its scales, multiplied by us on a CPU, else by torch."""

    def __init__(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        widths: Sequence[int],
        block: Sequence[int] | None,
        dtype: torch.dtype,
    ) -> None:
        """Scales are one per ``block`` of rows and columns; without one per row, or one per matrix of ``widths`` rows.

        Scales of type uint8 are the exponents of MXFP8.
        """
        self.layer = _processors(codes, scales, widths, block)
        if self.layer is not None:
            return
        # Sums of codes, which go up to 448, would overflow half precision.
        held = torch.float32 if dtype == torch.float16 else dtype
        rows, columns = codes.shape
        self.scales: torch.Tensor | None = None
        if block is None:
            self.weight, self.scales = codes.to(held), _per_row(scales, rows, widths)
        else:
            high, wide = block
            factors = torch.exp2(scales.float() - 127) if scales.dtype == torch.uint8 else scales.float()
            factors = factors.reshape(_blocks(codes, block))
            factors = factors.repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]
            self.weight = _narrowed(codes.float() * factors, held)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.layer is not None:
            return self.layer(x)
        y = torch.nn.functional.linear(x.to(self.weight.dtype), self.weight)
        return (y if self.scales is None else y.float() * self.scales).to(x.dtype)


def _per_row(scales: torch.Tensor, rows: int, widths: Sequence[int]) -> torch.Tensor:
    """One scale per row, of those per row or per matrix of ``widths`` rows."""
    scales = scales.float().reshape(-1)
    return scales if scales.numel() == rows else scales.repeat_interleave(torch.tensor(widths, device=scales.device))


def _blocks(codes: torch.Tensor, block: Sequence[int]) -> tuple[int, int]:
    """How many blocks of a matrix there are, down and across."""
    (rows, columns), (high, wide) = codes.shape, block
    return -(-rows // high), -(-columns // wide)


def _processors(
    codes: torch.Tensor, scales: torch.Tensor, widths: Sequence[int], block: Sequence[int] | None
) -> Fp8Linear | None:
    """The layer as the processor computes it, if it is to and can."""
    if codes.device.type != "cpu" or codes.dtype != torch.float8_e4m3fn:
        return None
    try:
        if block is None:
            return Fp8Linear.from_arrays(codes, _per_row(scales, len(codes), widths))
        factors = (scales if scales.dtype == torch.uint8 else scales.float()).reshape(_blocks(codes, block))
        return Fp8Linear.from_arrays(codes, factors, block=None if scales.dtype == torch.uint8 else (block[0], block[1]))
    except ValueError:
        return None


def plain(name: str, layer: Any, dtype: torch.dtype) -> PlainLinear:
    """A layer of vLLM's whose parameters are loaded."""
    scales, widths = layer.weight_scale.data, layer.logical_widths
    block = MX_BLOCK if scales.dtype == torch.uint8 else getattr(layer, "weight_block_size", None)
    if block is not None and any(width % block[0] for width in widths[:-1]):
        raise NotImplementedError(f"{name}: blocks of {block[0]} rows span two of its matrices, of {widths} rows")
    return PlainLinear(layer.weight.data, scales, widths, block, dtype)


def requantised(layer: Any, alike: bool) -> bool:
    """Whether vLLM would quantise matrices with a scale each anew, for which it has no kernel on CPUs.

    It does so to merge matrices whose scales differ; ``alike`` says that it does so with equal scales too.
    """
    scales = layer.weight_scale.data
    per_matrix = scales.dim() == 1 and scales.numel() == len(layer.logical_widths)
    return bool(current_platform.is_cpu() and per_matrix and (alike or (scales != scales[0]).any()))


NOT_SINGLE = ("CPUFp8PerTensorScaledMMLinearKernel", "CPUFp8BlockScaledMMKernel")
"""vLLM's kernels, for processors with AMX, that are chosen for single precision and refuse it when they are called."""


def runs(kernel: Any, dtype: torch.dtype) -> bool:
    """Whether a kernel that vLLM has chosen computes with activations of this type."""
    return dtype != torch.float32 or type(kernel).__name__ not in NOT_SINGLE


def _narrowed(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same numbers in a type, if it has them all; else as they are."""
    narrow = weight.to(dtype)
    return narrow if torch.equal(narrow.float(), weight) else weight


class PlainExperts:
    """The experts that this process holds, one product after the other."""

    def __init__(self, layer: Any, moe: Any) -> None:
        """Takes a layer of vLLM's whose parameters are loaded."""
        self.moe, self.weights_on_input = moe, layer.apply_router_weight_on_input
        block = getattr(layer, "weight_block_size", None)
        if layer.w13_weight_scale.dtype == torch.uint8:
            block = MX_BLOCK

        def of(name: str, matrices: int) -> list[PlainLinear]:
            codes, scales = getattr(layer, name).data, getattr(layer, f"{name}_scale").data
            widths = [codes.shape[1] // matrices] * matrices
            return [PlainLinear(*pair, widths, block, moe.in_dtype) for pair in zip(codes, scales)]

        self.first, self.down = of("w13_weight", 2 if moe.is_act_and_mul else 1), of("w2_weight", 1)

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Computes tokens by experts of these numbers here; those that are not here add nothing."""
        on_input = self.weights_on_input
        sums = torch.zeros_like(x, dtype=torch.float32)
        for expert in ids.unique().tolist():
            if not 0 <= expert < len(self.first):
                continue
            tokens, places = (ids == expert).nonzero(as_tuple=True)
            factors = weights[tokens, places].float()[:, None]
            seen = x[tokens] * factors.to(x.dtype) if on_input else x[tokens]
            result = self.down[expert](self._gated(self.first[expert](seen))).float()
            sums.index_add_(0, tokens, result if on_input else result * factors)
        return sums.to(x.dtype)

    def _gated(self, sums: torch.Tensor) -> torch.Tensor:
        """The activation, which ``check_experts`` has found to be one of these."""
        name, limit = self.moe.activation.value, self.moe.swiglu_limit
        if name == "relu2_no_mul":
            return sums.relu().square()
        gate, up = sums.float().chunk(2, dim=-1)
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        if name == "gelu_tanh":
            value = torch.nn.functional.gelu(gate, approximate="tanh") * up
        elif name == OPENAI:
            value = gate * torch.sigmoid((self.moe.swiglu_alpha or 1.0) * gate) * (up + (self.moe.swiglu_beta or 0.0))
        else:
            value = torch.nn.functional.silu(gate) * up
        return value.to(sums.dtype)


class PlainExpertsMethod:
    """Stands before a method of vLLM's for 8-bit experts, whose parameters it takes, and computes them by torch."""

    is_monolithic = False
    supports_eplb = False
    moe: Any

    def create_weights(self, layer: Any, *args: Any, **kwargs: Any) -> None:
        super().create_weights(layer, *args, **kwargs)  # type: ignore[misc]
        self.call = Call(layer.layer_name)
        not_a_number(layer.w13_weight_scale)
        not_a_number(layer.w2_weight_scale)

    def process_weights_after_loading(self, layer: Any) -> None:
        check_loaded(layer.layer_name, layer, "w13_weight_scale", "w2_weight_scale")
        self.plain = PlainExperts(layer, self.moe)
        self.call.hold(self.plain, layer.hidden_size)
        empty(layer, "w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        return None

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        # A shared expert is computed by vLLM's runner, before.
        return self.call(x, local_ids(layer.expert_map, topk_ids), topk_weights)
