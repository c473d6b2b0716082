"""Steps of generation as CUDA graphs: what Python takes to queue a step is then taken once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import Cache, StaticCache

from hammerhead import Experts
from hammerhead.transformers._modules import check_layers, layers_in_two_places
from hammerhead.transformers._parts import Parts


class Step:
    """One call of a model's ``forward``: seen once, recorded the second time, and replayed from then on."""

    def __init__(self, divided: Sequence[Experts]) -> None:
        self.graph: torch.cuda.CUDAGraph | None = None
        # Layers of which the processor computes a part. A graph has no way to say that it could not.
        self.divided = divided

    def record(self, forward: Any, arguments: dict[str, Any]) -> None:
        """Records the call; nothing is computed yet, and what the cache counts on the GPU stays as it was."""
        # Inference tensors could not be written to by a later call outside of that mode.
        with torch.inference_mode(False):
            self.arguments = {name: _held(value) for name, value in arguments.items()}
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = forward(**self.arguments)
        # The cache lives as long as its user lets it, so what is kept here must not hold it.
        self.kind = type(outputs)
        self.outputs = {name: value for name, value in outputs.items() if not isinstance(value, Cache)}
        self.caches = [name for name, value in outputs.items() if isinstance(value, Cache)]
        self.arguments = {name: value for name, value in self.arguments.items() if not isinstance(value, Cache)}
        self.graph = graph

    def replay(self, arguments: dict[str, Any], cache: Cache) -> Any:
        """Computes the call with other tensors. Results are copies, which later calls leave alone. Raises
        ``RuntimeError`` if the processor could not compute its part of an earlier one."""
        assert self.graph is not None
        check_layers(self.divided)
        for name, held in self.arguments.items():
            _fill(held, arguments[name])
        self.graph.replay()
        outputs = {name: _copied(value) for name, value in self.outputs.items()}
        return self.kind(**outputs, **dict.fromkeys(self.caches, cache))


def replay_steps(model: Any, *, compile: bool = False) -> None:
    """Has a model on a GPU generate with a cache of fixed size, and replay CUDA graphs for every token but the first
    two, where it had queued thousands of kernels from Python.

    Results are those of the same cache without graphs, to the bit. ``generate`` needs no further options; direct
    calls are replayed if they have one token per sequence and ``past_key_values`` is a ``StaticCache``. All other
    calls are as they were. A graph is recorded per cache, and keeps its memory as long as that.

    ``compile``: torch compiles the norms and routers of those steps, a few seconds at the first one, for which it needs
    a C compiler. A step takes less time, and its results differ by how sums are rounded.

    Where the processor has some experts and cannot compute them, results are NaN, and the first step that begins
    afterwards raises ``RuntimeError``. ``generate`` waits for every token, so that is the next one;
    :func:`hammerhead.transformers.check_host` tells of the last.
    """
    if not _is_on_gpu(model):
        raise ValueError(f"replay_steps: the model is on {model.device}, and only a GPU's work is replayed; load it with device_map=\"cuda\"")
    forward, recorded = model.forward, WeakKeyDictionary[Cache, dict[Any, Step]]()
    divided = list(layers_in_two_places(model).values())
    in_parts = Parts(model).in_use if compile else nullcontext

    @wraps(forward)
    def replayed(*positional: Any, **arguments: Any) -> Any:
        cache, key = arguments.get("past_key_values"), _key(arguments)
        if positional or not isinstance(cache, StaticCache) or key is None:
            return forward(*positional, **arguments)
        steps = recorded.setdefault(cache, {})
        if key not in steps:
            # The first call of a kind prepares what a graph cannot: kernels are compiled and room is made.
            steps[key] = Step(divided)
            with in_parts():
                return forward(**arguments)
        if steps[key].graph is None:
            with in_parts():
                steps[key].record(forward, arguments)
        return steps[key].replay(arguments, cache)

    model.forward = replayed
    model.generation_config.cache_implementation = "static"
    # transformers would compile the model, for which it takes minutes, and replay what is compiled.
    model.generation_config.disable_compile = True


def _is_on_gpu(model: Any) -> bool:
    return bool(model.device.type == "cuda")


def _key(arguments: dict[str, Any]) -> Any:
    """What must be alike for calls to share a graph; nothing if it is no step of one token per sequence."""
    ids = arguments.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2 or ids.shape[1] != 1:
        return None
    parts = []
    for name, value in sorted(arguments.items()):
        part = _shape(value)
        if part is None:
            return None
        parts.append((name, part))
    return tuple(parts)


def _shape(value: Any) -> Any:
    """What a graph fixes of an argument; nothing if it cannot be told."""
    if isinstance(value, Cache):
        return "cache"
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype) if value.is_cuda else None
    if isinstance(value, dict):
        inner = {name: _shape(each) for name, each in value.items()}
        return None if None in inner.values() else tuple(sorted(inner.items()))
    return ("plain", value) if value is None or isinstance(value, (bool, int, float, str)) else None


def _held(value: Any) -> Any:
    """An argument as the graph reads it: tensors where it will find them again."""
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value, memory_format=torch.contiguous_format).copy_(value)
    return {name: _held(each) for name, each in value.items()} if isinstance(value, dict) else value


def _fill(held: Any, value: Any) -> None:
    if isinstance(held, torch.Tensor):
        held.copy_(value)
    elif isinstance(held, dict):
        for name, each in held.items():
            _fill(each, value[name])


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return type(value)(_copied(each) for each in value) if isinstance(value, (list, tuple)) else value
