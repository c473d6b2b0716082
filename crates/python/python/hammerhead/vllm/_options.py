"""What vLLM's user asks of the plugin: ``--additional-config '{"hammerhead": {"precision": "fp8"}}'``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.platforms import current_platform

from hammerhead._packed import LayerOptions, streaming
from hammerhead.budget import parsed_bytes
from hammerhead.vllm._calls import Call

KNOWN = ("gpu_budget", "precision", "stream")


class Asked:
    """How experts are computed.

    ``precision`` is that of :class:`hammerhead.Experts`. ``gpu_budget`` is what the experts of all layers may take of
    this process's GPU, in bytes or as ``"60GB"``: those beyond it stay in the host's memory, every layer's alike, and
    the processor computes them while the GPU computes the others. ``stream`` is that of :class:`hammerhead.Experts`,
    for those beyond the budget.
    """

    def __init__(self) -> None:
        config = get_current_vllm_config_or_none()
        said = getattr(config, "additional_config", None) or {}
        said = said.get("hammerhead", {}) if isinstance(said, dict) else {}
        unknown = sorted(said.keys() - set(KNOWN)) if isinstance(said, dict) else [repr(said)]
        if unknown:
            raise ValueError(f"additional_config: hammerhead has no option {unknown[0]}; there are {', '.join(KNOWN)}")
        self.precision = said.get("precision", "exact")
        self.budget = parsed_bytes(said["gpu_budget"]) if "gpu_budget" in said else None
        self.stream = said.get("stream")
        try:
            is_streaming, _ = streaming(self.stream)
        except ValueError as error:
            raise ValueError(f"additional_config: hammerhead's {error}") from None
        if is_streaming and self.budget is None:
            raise ValueError("additional_config: hammerhead's stream is for experts beyond gpu_budget, which was not given")
        if self.budget is not None and current_platform.is_cpu():
            raise ValueError("additional_config: hammerhead's gpu_budget was given, and vLLM computes on a CPU here")

    def place(self) -> AbstractContextManager[object]:
        """Where parameters lie until they are packed: with a budget in the host's memory, since the GPU may not hold
        them all."""
        return nullcontext() if self.budget is None else torch.device("cpu")

    def layer(self, call: Call) -> LayerOptions:
        """The options of one layer, when all layers have been set up."""
        options = LayerOptions(precision=self.precision)
        if self.budget is not None:
            options["gpu_bytes"], options["stream"] = self.budget // call.layers_of_experts(), self.stream
            number = torch.cuda.current_device()
            options["backend"] = f"cuda:{number}" if number else "cuda"
        return options
