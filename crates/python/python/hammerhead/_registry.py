"""Layers by name: torch's custom operations take no objects."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hammerhead._arrays import Dtype


class NamedLayer(Protocol):
    """What can be called by its name."""

    out_features: int
    _name: str

    def _call(self, x: Any, routing: tuple[Any, ...], on_input: bool, dtype: Dtype | None, out: Any) -> Any: ...


LAYERS: weakref.WeakValueDictionary[str, NamedLayer] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def register(layer: NamedLayer) -> None:
    """Names a layer, for as long as it lives."""
    layer._name = f"{type(layer).__name__.lower()}:{next(_NUMBERS)}"
    LAYERS[layer._name] = layer
