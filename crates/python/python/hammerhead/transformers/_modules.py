"""Modules in place of a model's own. They have no parameters: their weights are packed, and do not change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

import hammerhead
from hammerhead import Experts, Linear, Mlp
from hammerhead._twin import ExpertsForm
from hammerhead.transformers._files import Files


class Packed(torch.nn.Module):
    """What all of them have in common."""

    def __init__(self, layer: Any, replaced: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.replaced_parameters = sum(parameter.numel() for parameter in replaced.parameters())
        """How many parameters the module had that this one stands for."""
        # Models ask modules for their sizes.
        known = {name: value for name, value in vars(replaced).items() if isinstance(value, (int, float, str))}
        self.__dict__.update((name, value) for name, value in known.items() if name not in self.__dict__)
        self.eval()

    def extra_repr(self) -> str:
        return repr(self.layer)


class PackedLinear(Packed):
    """A linear layer. Some models look at its weight or its bias instead of calling it: both are read anew each time."""

    layer: Linear | hammerhead.Fp8Linear

    def __init__(self, layer: Linear | hammerhead.Fp8Linear, replaced: torch.nn.Linear, files: Files, stem: str) -> None:
        super().__init__(layer, replaced)
        self.files, self.stem, self.dtype = files, stem, replaced.weight.dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    @property
    def bias(self) -> torch.Tensor | None:
        name = f"{self.stem}.bias"
        return self.files.tensor(name).to(self.dtype) if name in self.files.element else None


class NvFp4Linear(PackedLinear):
    """An NVFP4 linear layer."""

    @property
    def weight(self) -> torch.Tensor:
        values = torch.empty(self.layer.out_features, self.layer.in_features)
        self.files.checkpoint.expand(self.stem, 0, values)
        return values.to(self.dtype)


class Fp8Linear(PackedLinear):
    """An FP8 linear layer, on the processor."""

    @property
    def weight(self) -> torch.Tensor:
        return self.files.expanded(f"{self.stem}.weight").to(self.dtype)


class NvFp4Mlp(Packed):
    """A gated MLP."""

    layer: Mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class NvFp4Experts(Packed):
    """The experts of a layer, without their router and without one that sees every token."""

    layer: Experts

    def __init__(self, layer: Experts, form: ExpertsForm, replaced: torch.nn.Module) -> None:
        super().__init__(layer, replaced)
        self.form = form

    def forward(self, hidden_states: torch.Tensor, *routing: torch.Tensor) -> torch.Tensor:
        return self.form(self.layer, hidden_states, *routing)


def layers_in_two_places(model: torch.nn.Module) -> dict[str, Experts]:
    """The layers of experts of which a budget left some to the processor, by the names of their modules."""
    named = ((name, module.layer) for name, module in model.named_modules() if isinstance(module, NvFp4Experts))
    return {name: layer for name, layer in named if layer.resident is not None}


def place_hottest(
    model: torch.nn.Module, *, most: int | None = None, heat: Mapping[str, Sequence[float]] | None = None
) -> int:
    """Moves experts that were asked for clearly more often than others to the GPU in their place, ``most`` of each
    layer at most, where a budget left some to the processor. ``heat`` is what :func:`heat` said in an earlier run, in
    place of what was counted so far. Other calls may be under way: the moves are queued in torch's current stream. Says
    how many moved."""
    moved, layers = 0, layers_in_two_places(model)
    for name, layer in layers.items():
        own = None if heat is None else heat.get(name)
        at = {}
        if layer.resident:
            at = {"device": torch.cuda.current_device(), "stream": torch.cuda.current_stream().cuda_stream}
        moved += len(layer.place_hottest(most=most, heat=own, **at))
    return moved


def heat(model: torch.nn.Module) -> dict[str, list[float]]:
    """How often experts were asked for, as :func:`place_hottest` counts it, by the names of the modules whose experts
    lie in two places: plain numbers, which JSON keeps for a later run."""
    return {name: layer.heat or [] for name, layer in layers_in_two_places(model).items()}


def check_host(model: torch.nn.Module) -> None:
    """Raises ``RuntimeError`` if the processor could not compute its experts in an earlier call, whose results are NaN
    then. Every further call raises it too; this tells of the last one, when the GPU is done with it."""
    check_layers(layers_in_two_places(model).values())


def check_layers(layers: Iterable[Experts]) -> None:
    """The same of some layers. What failed in one call is told once, whichever layers it failed in."""
    failures = []
    for layer in layers:
        try:
            layer.check_host()
        except RuntimeError as failure:
            failures.append(failure)
    if failures:
        raise failures[0]
