"""How vLLM calls a layer: directly, or under ``torch.compile`` as one custom operation that finds it by its name.

vLLM keeps compiled models on disk, and runs them in later processes without tracing them again. So a name must mean the
same layer in each of them: it is vLLM's own, and is looked up in the context of the forward pass, where vLLM finds its
attention as well. Numbers in the order of loading would name other layers in a process that has loaded another model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.forward_context import get_forward_context


class Call:
    """A layer's place in the context, taken when the model is set up, and the layer, once its weights are loaded."""

    run: Callable[..., torch.Tensor]
    width: int

    def __init__(self, prefix: str, experts: bool = False) -> None:
        self.name, self.experts = f"hammerhead:{prefix}", experts
        self.context: dict[str, Any] = {}
        config = get_current_vllm_config_or_none()
        if config is not None:
            self.context = context = config.compilation_config.static_forward_context
            # Some models leave layers without names. They are set up in the same order in every process.
            same = sum(name.partition("#")[0] == self.name for name in context)
            self.name += f"#{same}" if same else ""
            context[self.name] = self

    def layers_of_experts(self) -> int:
        """How many layers of experts of the model have a place so far, with this one."""
        return len({self, *(call for call in self.context.values() if isinstance(call, Call) and call.experts)})

    def hold(self, run: Callable[..., torch.Tensor], width: int) -> None:
        """Puts the layer in its place: a function of tokens (and ids and weights) to results of a width."""
        self.run, self.width = run, width

    def __call__(self, x: torch.Tensor, *routing: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return torch.ops.hammerhead.in_vllm(x, list(routing), self.name, self.width)
        return self.finite(x, *routing)

    def finite(self, x: torch.Tensor, *routing: torch.Tensor) -> torch.Tensor:
        """Rows that are not finite become NaN, as in torch, where the layer alone would refuse them all.

        vLLM sends such rows: before a model serves, its attention on CPUs leaves in its results what memory held.
        """
        try:
            return self.run(x, *routing)
        except ValueError:
            good = x.isfinite().all(-1, keepdim=True)
            for weights in routing[1:]:
                good = good & weights.isfinite().all(-1, keepdim=True)
            if good.all():
                raise
            ids, weights = routing[:1], [torch.where(good, each, 0) for each in routing[1:]]
            return torch.where(good, self.run(torch.where(good, x, 0), *ids, *weights), float("nan"))


def _run(x: Any, routing: Any, layer: str, width: int) -> Any:
    return get_forward_context().no_compile_layers[layer].finite(x, *routing)


def _fake(x: Any, routing: Any, layer: str, width: int) -> Any:
    return x.new_empty((*x.shape[:-1], width))


_operation = torch.library.custom_op(
    "hammerhead::in_vllm",
    _run,
    mutates_args=(),
    schema="(Tensor x, Tensor[] routing, str layer, SymInt width) -> Tensor",
)
_operation.register_fake(_fake)
