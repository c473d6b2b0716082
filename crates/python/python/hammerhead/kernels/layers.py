"""Layers for the ``kernels`` library: a ``forward`` each, which it binds to a model's own module.

Such a class has no state and no other members: ``self`` is the module of the model, with its weights. At the first
call they are packed, if our layer computes what the module does (its twin is run beside it, see ``_twin``) and if every
weight is 4-bit already (see ``_exact``). Otherwise the call is refused with the reason. Nothing is rounded to make it
fit. The packed weights are kept beside the module for as long as it lives, and made anew when its weights were changed.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import torch

from hammerhead import _layers, _twin
from hammerhead.kernels._exact import NotFourBit, exact

__all__ = ["Experts", "Linear", "MegaBlocksMoeMLP", "Mlp"]

_PACKED: weakref.WeakKeyDictionary[torch.nn.Module, tuple[Any, Any]] = weakref.WeakKeyDictionary()


class MegaBlocksMoeMLP(torch.nn.Module):
    """gpt-oss's router and experts, by the name that transformers has for them. The router is the model's own."""

    has_backward = False

    def forward(self, hidden_states: torch.Tensor) -> Any:
        module: Any = self
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
        _, weights, ids = module.router(tokens)
        form, layer = _packed(module.experts, _pack_experts)
        return form(layer, tokens, ids, weights).reshape(hidden_states.shape), weights


class Experts(torch.nn.Module):
    """Stacked experts that take tokens, ids and weights."""

    has_backward = False

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> Any:
        form, layer = _packed(self, _pack_experts)
        return form(layer, hidden_states, top_k_index, top_k_weights)


class Mlp(torch.nn.Module):
    """A gated MLP of three linear layers."""

    has_backward = False

    def forward(self, x: torch.Tensor) -> Any:
        return _packed(self, _pack_mlp)(x)


class Linear(torch.nn.Module):
    """A linear layer."""

    has_backward = False

    def forward(self, input: torch.Tensor) -> Any:
        return _packed(self, _pack_linear)(input)


def _packed(module: torch.nn.Module, pack: Callable[[Any], Any]) -> Any:
    """What ``pack`` makes of a module, made once for its weights as they are."""
    now = [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in module.parameters()]
    seen, layer = _PACKED.get(module, (None, None))
    if seen != now:
        try:
            layer = pack(module)
        except (NotFourBit, _twin.Differs) as reason:
            raise ValueError(
                f"{type(module).__name__} {reason}. This kernel takes weights that are 4-bit already and rounds none: "
                "leave this module out of the mapping, or load a 4-bit checkpoint with hammerhead.transformers"
            ) from reason
        _PACKED[module] = now, layer
    return layer


def _pack_experts(module: Any) -> Any:
    stacks = _twin.Stacks.of(module)
    if stacks is None:
        raise _twin.Differs("has no stacked gate_up_proj and down_proj")
    form = _twin.experts_form(_skeleton(module), stacks)

    def matrices(name: str, half: str | None = None) -> list[Any]:
        stack = getattr(module, name)[: stacks.count]
        turned = (one.T for one in stack) if stacks.turned else stack
        return [_matrix(name, _twin.rows(one, half)) for one in turned]

    def biases(name: str, half: str | None = None) -> list[Any] | None:
        stack = getattr(module, f"{name}_bias", None)
        return None if stack is None else [_numbers(_twin.rows(one, half)) for one in stack[: stacks.count]]

    first, second = form.halves or (None, None)
    gated = form.halves is not None
    layer = _layers.Experts.from_arrays(
        matrices(stacks.first, first),
        matrices(stacks.first, second) if gated else None,
        matrices("down_proj"),
        b1_bias=biases(stacks.first, first),
        b2_bias=biases(stacks.first, second) if gated else None,
        down_bias=biases("down_proj"),
        gate=form.gate,
    )
    return form, layer


def _pack_mlp(module: Any) -> Any:
    form = _twin.mlp_form(_skeleton(module))
    parts = [getattr(module, role) for role in form.roles]
    matrices = [_matrix(role, part.weight) for role, part in zip(form.roles, parts, strict=True)]
    biases = [None if part.bias is None else _numbers(part.bias) for part in parts]
    named: Any = dict(zip(("b1_bias", "b2_bias", "down_bias"), biases, strict=True))
    return _layers.Mlp.from_arrays(*matrices, **named, gate=form.gate)


def _pack_linear(module: Any) -> Any:
    if type(module).forward is not torch.nn.Linear.forward:
        raise _twin.Differs("is not torch.nn.Linear")
    bias = None if module.bias is None else _numbers(module.bias)
    return _layers.Linear.from_arrays(_matrix("weight", module.weight), bias=bias)


def _matrix(name: str, weight: torch.Tensor) -> Any:
    try:
        return exact(_numbers(weight))
    except NotFourBit as reason:
        raise NotFourBit(f"cannot be packed: {name} {reason}") from reason


def _numbers(tensor: torch.Tensor) -> Any:
    if tensor.device.type != "cpu":
        raise _twin.Differs(f"has weights on {tensor.device}, where these layers compute on a CPU")
    return tensor.detach().to(torch.float32).contiguous().numpy()


def _skeleton(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a module without its weights' memory, and with the ``forward`` of its class."""
    empty = {id(one): torch.nn.Parameter(torch.empty_like(one, device="meta"), False) for one in module.parameters()}
    skeleton = copy.deepcopy(module, empty)
    skeleton.__dict__.pop("forward", None)
    return skeleton
