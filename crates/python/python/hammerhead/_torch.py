"""Layers under ``torch.compile``: one custom operation, so that nothing of them is traced.

Outside of it layers are called directly, which takes less time than torch's dispatcher. The operation takes a layer by
its name, since it takes no objects; whoever holds a compiled function holds the layer too, through the function's own
reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hammerhead._arrays import element_name
from hammerhead._registry import LAYERS

if TYPE_CHECKING:
    from hammerhead._arrays import Dtype
    from hammerhead._registry import NamedLayer

_SCHEMA = "(Tensor x, Tensor[] routing, bool on_input, str layer, SymInt width, ScalarType? dtype) -> Tensor"


def _layer(x: Any, routing: Any, on_input: bool, layer: str, width: int, dtype: Any) -> Any:
    return LAYERS[layer]._call(x, tuple(routing), on_input, dtype, None)


def _fake(x: Any, routing: Any, on_input: bool, layer: str, width: int, dtype: Any) -> Any:
    return x.new_empty((*x.shape[:-1], width), dtype=x.dtype if dtype is None else dtype)


_NAMESPACE = __name__.partition(".")[0]
"""Of the operation: the name of this package. The ``kernels`` library imports builds under names of their own, so
that a build and the installed package may live in one process."""

_operation = torch.library.custom_op(f"{_NAMESPACE}::layer", _layer, mutates_args=(), schema=_SCHEMA)
_operation.register_fake(_fake)


def call(layer: NamedLayer, x: Any, routing: tuple[Any, ...], on_input: bool, dtype: Dtype | None, out: Any) -> Any:
    """Calls a layer through the operation."""
    if torch.is_grad_enabled() and x.requires_grad:
        raise ValueError(
            "a tensor requires a gradient, and this operation has none: call it under torch.inference_mode(), "
            "or pass tensor.detach()"
        )
    if dtype is not None:
        dtype = getattr(torch, element_name(dtype))
    elif out is not None:
        dtype = out.dtype
    operation = getattr(torch.ops, _NAMESPACE).layer
    result = operation(x, list(routing), on_input, layer._name, layer.out_features, dtype)
    if out is None:
        return result
    if out.shape != result.shape:
        raise ValueError(f"out: its shape is {list(out.shape)}, where {list(result.shape)} is expected")
    out.copy_(result)
    return out
