"""What a checkpoint's files hold: quantised tensors, FP8 weights, and tensors as they are.

A quantised tensor is several in the files. Here it is one, under the name that it had before it was quantised,
because that is the name a model's key mapping knows. What is quantised is decided by the tensors themselves, not by
the patterns of a configuration.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from hammerhead import Checkpoint
from hammerhead._fp8 import block_side

_FP8 = ("F8_E4M3", "F8_E5M2")
_FP8_SCALES = ("weight_scale", "weight_scale_inv", "scale")
_BESIDE_FP8 = (*_FP8_SCALES, "input_scale", "input_global_scale", "activation_scale")
_WITHOUT_EFFECT = ("bias", "input_zero_point", "output_scale", "output_zero_point", "k_scale", "v_scale", "weight_shape")
_NUMBERS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Packed:
    """A tensor in 4-bit floats: one matrix, or a stack of them."""

    stem: str
    """What its parts have in common; what `Checkpoint` reads it by."""

    parts: list[str]
    """The names of its tensors in the files, without a bias."""

    stack: int | None
    """How many matrices there are, or None where it is one by itself."""

    rows: int
    k: int

    turned: bool
    """Whether the tensor, before it was quantised, had the columns of each matrix as its rows."""


class Files:
    """The tensors of some safetensors files."""

    def __init__(self, files: Iterable[str | PathLike[str]]) -> None:
        self.paths = [Path(file) for file in files]
        self.element: dict[str, str] = {}
        self.shape: dict[str, list[int]] = {}
        self._path: dict[str, Path] = {}
        for path in self.paths:
            if path.suffix != ".safetensors":
                raise ValueError(
                    f"{path}: NVFP4 weights are read from safetensors files; convert the model, or name its folder"
                )
            with path.open("rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            header.pop("__metadata__", None)
            self.element.update((name, about["dtype"]) for name, about in header.items())
            self.shape.update((name, about["shape"]) for name, about in header.items())
            self._path.update((name, path) for name in header)
        self._sorted = sorted(self.element)
        first = self.paths[0]
        self.checkpoint = Checkpoint.by_name(first if len(self.paths) == 1 else first.parent)
        self.packed = self._packed()
        self.fp8 = self._fp8()
        hidden = {part for packed in self.packed.values() for part in packed.parts}
        hidden.update(part for parts in self.fp8.values() for part in parts)
        self.hidden = hidden
        """Tensors that are parts of quantised ones, and that no model asks for by their own names."""
        self.names = [*self.packed, *self.fp8, *(name for name in self.element if name not in hidden)]
        """The tensors as they were before they were quantised."""

    def __deepcopy__(self, memo: Any) -> Files:
        # Files do not change: copies of a model share them.
        return self

    def _packed(self) -> dict[str, Packed]:
        found = {}
        for stem, name, parts, stack, rows, k, transposed in self.checkpoint.stored():
            # gpt-oss stores each matrix in blocks along k, but its model's tensor has k first.
            blocks = any(part.endswith("_blocks") for part in parts)
            found[name] = Packed(stem, parts, stack, rows, k, transposed or blocks)
        return found

    def _fp8(self) -> dict[str, list[str]]:
        found = {}
        for name, element in self.element.items():
            stem, _, part = name.rpartition(".")
            if element in _FP8 and part == "weight":
                beside = (f"{stem}.{scale}" for scale in _BESIDE_FP8)
                found[name] = [name, *(scale for scale in beside if scale in self.element)]
        return found

    def refuse_unread(self, name: str) -> None:
        """Raises ``ValueError`` if a tensor that becomes a parameter is no number as it is, and nothing here makes one
        of it, or if more is stored beside it than is read. Of packed tensors that is known already."""
        if name in self.packed or self.element[name] in _NUMBERS:
            return
        stem = name.removesuffix(".weight")
        # What begins with the stem and a dot stands before what begins with it and a slash.
        first, last = (bisect_left(self._sorted, f"{stem}{end}") for end in "./")
        beside = [other for other in self._sorted[first:last] if other != name]
        if name not in self.fp8:
            raise ValueError(
                f"{name} is {self.element[name]} in the files{f', with {beside[0]}' if beside else ''}, and is not read here: leave its module unquantised, or "
                "quantise it to NVFP4 or FP8"
            )
        read = {*self.fp8[name], *(f"{stem}.{part}" for part in _WITHOUT_EFFECT)}
        unread = [other for other in beside if other not in read]
        if unread:
            raise ValueError(
                f"{unread[0]} stands beside {name}, which is FP8, and nothing here computes with it, so that results would be others: export the model without"
            )

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as it is stored."""
        path = self._path[name]
        if not path.exists():
            raise FileNotFoundError(
                f"{path}: packed weights are saved from the files they were read from, and this one is gone"
            )
        with safe_open(path, "pt") as file:
            return file.get_tensor(name)

    def expanded(self, name: str) -> torch.Tensor:
        """A tensor as it was before it was quantised, in float32; one that was not as it is."""
        if name in self.packed:
            return self._expanded_packed(self.packed[name])
        if name in self.fp8:
            return self._expanded_fp8(name)
        return self.tensor(name)

    def _expanded_packed(self, packed: Packed) -> torch.Tensor:
        values = torch.empty(packed.stack or 1, packed.rows, packed.k)
        for member in range(len(values)):
            self.checkpoint.expand(packed.stem, member, values[member])
        if packed.turned:
            values = values.transpose(1, 2).contiguous()
        return values if packed.stack is not None else values[0]

    def _expanded_fp8(self, name: str) -> torch.Tensor:
        weight, stem = self.tensor(name).float(), name.removesuffix(".weight")
        scales = [f"{stem}.{scale}" for scale in _FP8_SCALES if f"{stem}.{scale}" in self.element]
        if len(scales) != 1:
            raise ValueError(
                f"{name} is FP8, and has {len(scales)} scales beside it where one is expected (weight_scale, weight_scale_inv or scale): fetch the missing part"
            )
        scale = self.tensor(scales[0])
        # A power of two by its exponent is how MXFP8 and DeepSeek-V4 store scales.
        scale = torch.exp2(scale.float() - 127) if scale.dtype == torch.uint8 else scale.float()
        if scale.numel() == 1:
            return weight * scale.reshape(())
        if scale.dim() == 1:
            scale = scale[:, None]
        if scale.dim() != weight.dim():
            raise ValueError(
                f"{scales[0]} has shape {list(scale.shape)}, which does not scale a weight of shape {list(weight.shape)}"
            )
        # One number for a row, for a block of a row, or for a block of rows and columns; the last block may be smaller.
        for side, (size, blocks) in enumerate(zip(weight.shape, scale.shape, strict=True)):
            block = size if blocks == 1 else block_side(size, blocks)
            if block is None:
                raise ValueError(
                    f"{scales[0]} has shape {list(scale.shape)}, and neither blocks of 128 or 32 nor those of one other size fill a weight of shape {list(weight.shape)}"
                )
            scale = scale.repeat_interleave(block, side).narrow(side, 0, size)
        return weight * scale
