"""Linear layers in FP8 and MXFP8 of mixed checkpoints, for platforms on which vLLM has no kernel for them.

Codes become numbers of the activations' type, and torch multiplies: this is for models to load whole, not for speed. No
scale is rounded into a weight: scales per row multiply the sums in single precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.platforms import current_platform

MX_BLOCK = (1, 32)
"""The rows and columns of weights that share one scale in MXFP8."""


class PlainLinear:
    """A matrix of 8-bit floats and its scales, multiplied by torch."""

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
        # Sums of codes, which go up to 448, would overflow half precision.
        held = torch.float32 if dtype == torch.float16 else dtype
        rows, columns = codes.shape
        self.scales: torch.Tensor | None = None
        if block is None:
            scales = scales.float().reshape(-1)
            if scales.numel() != rows:
                scales = scales.repeat_interleave(torch.tensor(widths, device=scales.device))
            self.weight, self.scales = codes.to(held), scales
        else:
            high, wide = block
            factors = torch.exp2(scales.float() - 127) if scales.dtype == torch.uint8 else scales.float()
            factors = factors.reshape(-(-rows // high), -(-columns // wide))
            factors = factors.repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]
            self.weight = _narrowed(codes.float() * factors, held)

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        y = torch.nn.functional.linear(x.to(self.weight.dtype), self.weight)
        if self.scales is not None:
            y = y.float() * self.scales
        return (y if bias is None else y + bias).to(x.dtype)


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


def _narrowed(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same numbers in a type, if it has them all; else as they are."""
    narrow = weight.to(dtype)
    return narrow if torch.equal(narrow.float(), weight) else weight
