"""Which tensors of a checkpoint become which parameters of a model, by the model's own key mapping.

transformers renames a checkpoint's keys and converts tensors while it loads: experts are stacked, gate and up joined,
prefixes changed. The same functions are asked here, before anything is loaded. No name is matched by its ending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key


@dataclass
class Shapes:
    """What conversions ask a model for: its configuration, and the shapes of parameters."""

    config: Any
    parameters: dict[str, torch.Tensor]

    def get_parameter(self, name: str) -> torch.Tensor:
        return self.parameters[name]


@dataclass
class Origin:
    """Where parameters come from: tensors of the files, and what is done to them."""

    target: str
    """The parameter, or the first of those that one conversion makes."""

    converter: Any = None
    """The conversion, or None where a tensor is taken as it is."""

    sources: dict[str, list[str]] = field(default_factory=dict)
    """The tensors, in the order of loading, by the pattern of the conversion that takes them."""

    aliases: dict[str, str] = field(default_factory=dict)
    """Parameters that share their values with one that is made."""

    @property
    def names(self) -> list[str]:
        return [name for names in self.sources.values() for name in names]

    @property
    def targets(self) -> list[str]:
        """All parameters that it makes."""
        patterns = [""] if self.converter is None else self.converter.target_patterns
        return [self.target, *(self.target.replace(patterns[0], other) for other in patterns[1:]), *self.aliases]

    def made(self, shapes: Shapes, read: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
        """The parameters, of tensors that are read so."""
        made = self._converted(shapes, read)
        return {**made, **{alias: made[shared] for alias, shared in self.aliases.items()}}

    def _converted(self, shapes: Shapes, read: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
        if self.converter is None:
            return {self.target: read(self.names[0])}
        converter = deepcopy(self.converter)
        for pattern, names in self.sources.items():
            for name in names:
                converter.add_tensor(self.target, name, pattern, lambda name=name: read(name))
        made = converter.convert(self.target, model=shapes, config=shapes.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


def origins(model: Any, conversions: Sequence[Any], names: Iterable[str]) -> tuple[dict[str, Origin], dict[str, str]]:
    """The origins of parameters by their names, and the tensors that become none, by the names that they would have
    in the model."""
    state = model.state_dict()
    renamings = [entry for entry in conversions if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in conversions if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    prefix = model.base_model_prefix
    found: dict[str, Origin] = {}
    lost = {}
    for name in sorted(names, key=dot_natural_key):
        key, pattern = rename_source_key(name, renamings, converters, prefix, state)
        if key not in state and name in state:
            key, pattern = rename_source_key(name, [], [], prefix, state)
        if key not in state:
            lost[key] = name
        elif pattern is None:
            found[key] = Origin(key, None, {name: [name]})
        else:
            origin = found.setdefault(key, Origin(key, by_pattern[pattern]))
            origin.sources.setdefault(pattern, []).append(name)
    return {target: origin for origin in found.values() for target in origin.targets}, lost
