"""Which modules of a model become ours, found by holding the model against the tensors of its files.

What is quantised is said by the tensors themselves, not by the patterns of a configuration: a weight is NVFP4 if its codes, its block scales and its
global scale are there. All is checked before anything is replaced, and whatever has no place is refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch

GATED = ("gate_proj", "up_proj", "down_proj")
"""The names that the projections of a gated MLP have in most models."""

_WEIGHTS = re.compile(r"^(?P<stem>.+)\.(?:weight|weight_packed)$")
_NUMBERED = re.compile(r"(?:^|\.)(?P<tail>(?:layers|h|blocks)\.(?P<layer>\d+)\b.*)")


class Tensors:
    """The names, types and shapes of all tensors of some safetensors files."""

    def __init__(self, files: Iterable[str | PathLike[str]]) -> None:
        self.paths = [Path(file) for file in files]
        self.element: dict[str, str] = {}
        for path in self.paths:
            if path.suffix != ".safetensors":
                raise ValueError(f"{path}: NVFP4 weights are read from safetensors files; convert the model, or name its folder")
            with path.open("rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            self.element.update((name, about["dtype"]) for name, about in header.items() if name != "__metadata__")

    def kind(self, stem: str) -> Literal["nvfp4", "fp8", "other"]:
        """How the weight of a module is stored."""

        def has(part: str, *elements: str) -> bool:
            return self.element.get(f"{stem}.{part}") in elements

        if has("weight_scale", "F8_E4M3", "U8"):
            if has("weight", "U8") and has("weight_scale_2", "F32") or has("weight_packed", "U8") and has("weight_global_scale", "F32"):
                return "nvfp4"
        return "fp8" if has("weight", "F8_E4M3", "F8_E5M2") else "other"

    def stems(self) -> dict[str, Literal["nvfp4", "fp8", "other"]]:
        """The names of all modules that have a weight, with how it is stored."""
        found = (match["stem"] for match in map(_WEIGHTS.match, self.element) if match)
        return {stem: self.kind(stem) for stem in found}


@dataclass
class Plan:
    """What to replace, by the names of modules."""

    linears: dict[str, str] = field(default_factory=dict)
    """Linear layers, and what they are called in the files."""

    mlps: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Gated MLPs: the layer, and whether it is the one beside numbered experts that sees every token."""

    experts: dict[str, int] = field(default_factory=dict)
    """Experts, and their layer."""

    owned: set[str] = field(default_factory=set)
    """The modules of the files that all of these are read from."""


def plan(model: torch.nn.Module, tensors: Tensors, fuse_mlps: bool) -> Plan:
    """Finds what to replace, or raises ``ValueError`` with the names of what has no place."""
    stems = tensors.stems()
    packed = {stem for stem, kind in stems.items() if kind == "nvfp4"}
    if not packed:
        raise ValueError(
            f"{tensors.paths[0].parent}: no weight in these files is NVFP4 (codes with weight_scale and weight_scale_2, or with "
            "weight_scale and weight_global_scale); load the model without hammerhead.transformers"
        )
    _refuse_fp8(stems)
    made = Plan()
    for name, module in model.named_modules():
        if _are_experts(module):
            _add_experts(made, name, packed)
        elif isinstance(module, torch.nn.Linear) and (stem := _named(name, packed)) is not None:
            _refuse_tied(model, name)
            made.linears[name] = stem
            made.owned.add(stem)
    if fuse_mlps:
        _fuse(model, made)
    _refuse_lost(model, packed - made.owned)
    return made


def _refuse_fp8(stems: dict[str, Any]) -> None:
    fp8 = sorted(stem for stem, kind in stems.items() if kind == "fp8")
    if fp8:
        raise ValueError(
            f"{fp8[0]} is FP8 ({len(fp8)} modules are), and this model mixes it with NVFP4: transformers loads one kind of quantised weights at a time. "
            "Export the model with these modules unquantised, or serve it with vLLM"
        )


def _refuse_tied(model: torch.nn.Module, name: str) -> None:
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    weight = f"{name}.weight"
    if weight in tied or weight in tied.values():
        other = tied.get(weight) or next(key for key, value in tied.items() if value == weight)
        raise ValueError(
            f"{name} is NVFP4, but its weight is tied to {other}, which is not: set tie_word_embeddings to false in config.json if the "
            "file has both, or export the model without quantising it"
        )


def _refuse_lost(model: torch.nn.Module, lost: set[str]) -> None:
    ignored = [re.compile(pattern) for pattern in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    lost = {stem for stem in lost if not any(pattern.search(f"{stem}.weight") for pattern in ignored)}
    if lost:
        first = sorted(lost)[0]
        raise ValueError(
            f"{first} is NVFP4 in the files ({len(lost)} modules are like it), and {type(model).__name__} has no linear layer or experts of that name: "
            "this architecture is not supported; hammerhead.Linear.from_checkpoint and its kin read single layers of it"
        )


def _are_experts(module: torch.nn.Module) -> bool:
    """Whether a module holds the weights of all experts of a layer in tensors of three dimensions, as transformers' do."""
    down = getattr(module, "down_proj", None)
    return isinstance(down, torch.nn.Parameter) and down.dim() == 3


def _named(name: str, stems: set[str]) -> str | None:
    """What a module is called in the files: the same, or the same from its layer's number on, if only one is."""
    if name in stems:
        return name
    match = _NUMBERED.search(name)
    found = [] if match is None else [stem for stem in stems if stem.endswith(f".{match['tail']}")]
    return found[0] if len(found) == 1 else None


def _add_experts(made: Plan, name: str, packed: set[str]) -> None:
    match = _NUMBERED.search(name)
    if match is None:
        return
    layer = match["layer"]
    own = {stem for stem in packed if (at := _NUMBERED.search(stem)) and at["layer"] == layer and _among_experts(stem)}
    if own:
        made.experts[name] = int(layer)
        made.owned |= own


def _among_experts(stem: str) -> bool:
    return re.search(r"\.experts(?:\.|$)", stem) is not None


def _fuse(model: torch.nn.Module, made: Plan) -> None:
    """Takes the three linear layers of a gated MLP for one."""
    for name, module in model.named_modules():
        parts = [f"{name}.{part}" for part in GATED]
        if not all(part in made.linears for part in parts) or not hasattr(module, "act_fn"):
            continue
        match = _NUMBERED.search(name)
        beside = f"{name.rpartition('.')[0]}.experts" in made.experts
        if match is None or set(dict(module.named_children())) - {*GATED, "act_fn"}:
            continue
        if beside or name.endswith((".mlp", ".feed_forward")):
            made.mlps[name] = int(match["layer"]), beside
            for part in parts:
                del made.linears[part]
