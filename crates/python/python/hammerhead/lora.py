"""Adapters as peft writes them, for layers that are packed: a folder with ``adapter_config.json`` and
``adapter_model.safetensors``.

>>> adapter = from_peft("my-adapter", layer, "model.layers.3.mlp")      # doctest: +SKIP
>>> adapters = layer.adapters([adapter])                                                # doctest: +SKIP
>>> layer(x, ids, weights, adapters=adapters, adapter_ids=which)                        # doctest: +SKIP

Names are those of the model's modules, with peft's ``base_model.model.`` before them or, as vLLM has them too, without:

- ``{module}.gate_proj.lora_A.weight`` (also ``up_proj``, ``down_proj``, ``gate_up_proj``; Mixtral's ``w1``, ``w3``,
  ``w2``), of an MLP;
- ``{module}.experts.7.gate_proj.lora_A.weight``, of every expert, and ``{module}.shared_expert.gate_proj...`` (also
  ``shared_experts``), of the shared one, where the layer computes that, too;
- ``{module}.experts.base_layer.lora_A.weight`` and ``{module}.experts.lora_A.weight``, which peft writes for parameters
  that hold all experts (``target_parameters``): A ``[experts * rank, k]``, B ``[n, rank * experts]`` with the expert's
  number running fastest. Which of them is gate and up, and which is down, their shapes say.

What is fused has gate's rows before up's, or in turns with ``order="interleaved"`` (gpt-oss).
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hammerhead._adapters import Adapter, LowRank

if TYPE_CHECKING:
    from os import PathLike

    from hammerhead._layers import FeedForward

__all__ = ["Adapter", "LowRank", "from_peft"]

_PROJECTIONS = {"gate_proj": 0, "w1": 0, "up_proj": 1, "w3": 1, "down_proj": 2, "w2": 2}
_TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
_UNKNOWN = {
    "use_dora": "DoRA changes the weights' norms, which is more than a low rank",
    "lora_bias": "B has biases, which are not added here",
    "use_qalora": "QALoRA pools its inputs",
    "alora_invocation_tokens": "it is for tokens behind others, which are not looked for",
}
_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""How the names of initialisations begin that take from the model's weights what they give the adapter."""


def from_peft(
    folder: str | PathLike[str], layer: FeedForward, module: str, *, order: str = "halves"
) -> Adapter[Any]:
    """Reads what an adapter adds to one layer: the MLP or the experts that the model has in ``module``, such as
    ``"model.layers.3.mlp"``. Tensors are torch's. Needs torch."""
    if order not in ("halves", "interleaved"):
        raise ValueError(f"order: {order!r} is neither 'halves' nor 'interleaved'")
    config = json.loads((Path(folder) / "adapter_config.json").read_text())
    if config.get("peft_type", "LORA") != "LORA":
        raise ValueError(f"{folder}: its peft_type is {config['peft_type']}, where LORA is expected")
    for key, why in _UNKNOWN.items():
        if config.get(key):
            raise ValueError(f"{folder}: it has {key}; {why}")
    if config.get("bias") not in (None, "none"):
        raise ValueError(f"{folder}: its bias is {config['bias']!r}; biases of the model are not changed here")
    if str(config.get("init_lora_weights")).startswith(_CHANGING):
        raise ValueError(
            f"{folder}: its init_lora_weights is {config['init_lora_weights']!r}, which changes the model's weights, too; convert it with "
            "peft's path_initial_model_for_weight_conversion"
        )
    tensors = _Tensors(Path(folder) / "adapter_model.safetensors")
    found = {name: stored for stored, name in tensors.under(module).items()}
    read, idle = _Layer(layer, module, order), _Layer(layer, module, order)
    scalings, has_some = {}, False
    for name in sorted(found):
        if not name.endswith("lora_A.weight"):
            continue
        stem = name.removesuffix("lora_A.weight").removesuffix(".")
        other = f"{stem}.lora_B.weight".removeprefix(".")
        if other not in found:
            raise ValueError(f"{found[name]}: there is no lora_B beside it")
        a, b = tensors.read(found[name]), tensors.read(found[other])
        # What adds nothing is checked like the rest, and passed over.
        rank = idle.add(stem, a, b)
        scaling = _scaling(config, f"{module}.{stem}".removesuffix("."), rank) if rank else 0.0
        if scaling and a.any() and b.any():
            read.add(stem, a, b)
            scalings[stem] = scaling
        has_some = has_some or rank > 0
    if not has_some:
        raise ValueError(f"{folder}: it has nothing for {module}; there are {tensors.examples()}")
    if len(set(scalings.values())) > 1:
        raise ValueError(f"{folder}: projections of {module} are scaled by {sorted(set(scalings.values()))}; one is expected")
    [*experts, of_all] = [(gate, up, down) for gate, up, down in [*read.experts, read.shared]]
    return Adapter(next(iter(scalings.values()), 1.0), experts, of_all if any(of_all) else None)


class _Layer:
    """The pairs of a layer's experts, as they are found."""

    def __init__(self, layer: FeedForward, module: str, order: str) -> None:
        self.module, self.order = module, order
        self.widths: list[int] = list(layer._layer.widths)
        self.is_experts = not layer._layer.is_mlp
        self.has_shared = layer._layer.has_shared
        self.experts: list[list[LowRank[Any] | None]] = [[None] * 3 for _ in range(layer._layer.count)]
        self.shared: list[LowRank[Any] | None] = [None] * 3

    def add(self, stem: str, a: Any, b: Any) -> int:
        """Adds a pair by the name of its module; says its rank, or 0 if it belongs to something else."""
        if not self.is_experts:
            return self._one(self.experts[0], stem, a, b)
        of_all = re.fullmatch(r"shared_experts?\.(\w+)", stem)
        if of_all is not None:
            return self._one(self.shared, of_all[1], a, b) if self.has_shared else 0
        if stem in ("experts", "experts.base_layer"):
            return self._stacked(a, b)
        match = re.fullmatch(r"experts\.(\d+)\.(\w+)", stem)
        if match is None:
            return 0
        if int(match[1]) >= len(self.experts):
            raise ValueError(f"{self.module}.{stem}: the layer has {len(self.experts)} experts")
        return self._one(self.experts[int(match[1])], match[2], a, b)

    def _one(self, pairs: list[LowRank[Any] | None], name: str, a: Any, b: Any) -> int:
        if name in _PROJECTIONS:
            pairs[_PROJECTIONS[name]] = LowRank(a, b)
        elif name == "gate_up_proj":
            self._fused(pairs, a, b)
        else:
            return 0
        return int(a.shape[0])

    def _fused(self, pairs: list[LowRank[Any] | None], a: Any, b: Any) -> None:
        half = b.shape[0] // 2
        gate, up = (b[0::2], b[1::2]) if self.order == "interleaved" else (b[:half], b[half:])
        pairs[0], pairs[1] = LowRank(a, gate.contiguous()), LowRank(a, up.contiguous())

    def _stacked(self, a: Any, b: Any) -> int:
        count, (k, inner, n) = len(self.experts), self.widths
        a, b = a.reshape(count, -1, a.shape[-1]), b.reshape(b.shape[0], -1, count)
        found, shapes = (int(b.shape[0]), int(a.shape[-1])), {"gate and up": (2 * inner, k), "down": (n, inner)}
        if found not in shapes.values():
            raise ValueError(f"{self.module}.experts: a stack of {found} is none of {shapes}")
        for expert, pairs in enumerate(self.experts):
            own = a[expert].contiguous(), b[..., expert].contiguous()
            if found == shapes["down"]:
                pairs[2] = LowRank(*own)
            else:
                self._fused(pairs, *own)
        return int(a.shape[1])


def _scaling(config: dict[str, Any], module: str, rank: int) -> float:
    """An adapter's scaling of a module: patterns name modules by how their names end, as peft has it."""
    alpha = config.get("lora_alpha")
    alpha = 8 if alpha is None else alpha
    for pattern, own in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = own
            break
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


class _Tensors:
    """A file of tensors, read one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(100 << 20, path.stat().st_size - 8):
                raise ValueError(f"{path}: it is no file of safetensors")
            self.header = json.loads(file.read(length))
        self.start = 8 + length
        self.header.pop("__metadata__", None)

    def under(self, module: str) -> dict[str, str]:
        """Stored names of what is in a module, with the names that they have there."""
        pattern = re.compile(rf"(?:base_model\.model\.)?{re.escape(module)}\.(.+)")
        matches = ((stored, pattern.fullmatch(stored)) for stored in self.header)
        return {stored: match[1] for stored, match in matches if match is not None}

    def examples(self) -> str:
        return ", ".join(list(self.header)[:3]) or "no tensors at all"

    def read(self, name: str) -> Any:
        import torch

        entry = self.header[name]
        if entry["dtype"] not in _TYPES:
            raise ValueError(f"{self.path}: {name} is {entry['dtype']}, where one of {list(_TYPES)} is expected")
        begin, end = entry["data_offsets"]
        with self.path.open("rb") as file:
            file.seek(self.start + begin)
            data = bytearray(file.read(end - begin))
        return torch.frombuffer(data, dtype=getattr(torch, _TYPES[entry["dtype"]])).reshape(entry["shape"])
