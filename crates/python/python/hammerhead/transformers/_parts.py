"""What a model computes between its products, compiled by torch.

In torch a norm is seven kernels, and a router as many. In a replayed step of one token those take longer than the
products. Compiled, a norm is one kernel. A compiled function takes Python longer to call than it saves in kernels that
are queued, so only recorded steps have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch

from hammerhead.transformers._modules import Packed


class Parts:
    """A model's norms and routers: modules of the model's own classes that hold no others, and how torch compiles
    them. Each is compiled at its first call, once per class and kind of shape."""

    def __init__(self, model: torch.nn.Module, **options: Any) -> None:
        """``options`` are those of ``torch.compile``."""
        modules = [module for module in model.modules() if _is_part(module)]
        # Modules of a class share what is compiled: torch keeps it by the function.
        compiled = {kind: torch.compile(kind.forward, **options) for kind in {type(module) for module in modules}}
        self.compiled: list[tuple[Any, Any]] = [(module, MethodType(compiled[type(module)], module)) for module in modules]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While this lasts, the model's calls take what is compiled."""
        for module, forward in self.compiled:
            module.forward = forward
        try:
            yield
        finally:
            for module, _ in self.compiled:
                del module.forward


def _is_part(module: torch.nn.Module) -> bool:
    """Whether a module is of the model's own making and holds no others. One whose calls go through a hook stays as
    it is, and so do torch's own, which are one kernel each."""
    own = not isinstance(module, Packed) and not type(module).__module__.startswith("torch.")
    return own and not any(module.children()) and "forward" not in vars(module)
