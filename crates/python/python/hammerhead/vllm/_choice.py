"""Which layers of a checkpoint are ours, and what becomes of those that cannot be."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from vllm.platforms import current_platform

from hammerhead.vllm._packed import GROUP, WITHOUT, check_experts

LOG = logging.getLogger("vllm.hammerhead")


def experts_method(prefix: str, moe: Any, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
    """Our method for NVFP4 experts, or vLLM's on a GPU for those that it alone computes.

    On a CPU, where vLLM has no kernel for them, those are refused: ``NotImplementedError`` with the layer's name.
    """
    try:
        check_experts(moe, GROUP, lora=current_platform.is_cpu())
    except NotImplementedError as error:
        if current_platform.is_cpu():
            raise NotImplementedError(f"{prefix}: {error}; {WITHOUT}") from None
        LOG.warning("%s: %s: the layer is left to vLLM%s", prefix, error, _padded(moe))
        return theirs()
    return ours()


def _padded(moe: Any) -> str:
    """What becomes of adapters beside experts whose columns vLLM's Marlin kernel pads, which vLLM does not say."""
    columns, unit = moe.intermediate_size_per_partition, 64 if moe.hidden_dim % 128 == 0 else 128
    if not moe.is_lora_enabled or columns % unit == 0:
        return ""
    return f". Its Marlin kernel pads their {columns} columns to a multiple of {unit}, and adapters beside them were wrong with vLLM 0.32"


def other_experts_method(
    prefix: str, kind: str, moe: Any, plain: Callable[[], Any] | None, theirs: Callable[[], Any]
) -> Any:
    """The method for experts of a mixed checkpoint that are not NVFP4: vLLM's, or ``plain``, if there is one, on a CPU.

    There vLLM finds kernels for FP8 with scales per matrix or row and for MXFP8, but cannot run them. Refusals name the
    layer.
    """
    try:
        if plain is None or not current_platform.is_cpu():
            return theirs()
    except (ValueError, NotImplementedError) as error:
        reason = _first_line(error)
        raise NotImplementedError(f"{prefix}: its experts are {kind}, and vLLM refuses them: {reason}") from error
    try:
        check_experts(moe, 1, lora=False)
    except NotImplementedError as error:
        raise NotImplementedError(f"{prefix}: {error}; {WITHOUT}") from None
    return plain()


def no_kernel(layer: Any, error: ValueError) -> None:
    """Goes on if vLLM found no kernel for a layer whose parameters it had registered; raises any other error again."""
    if "weight_scale" not in dict(layer.named_parameters(recurse=False)):
        raise error
    name = getattr(layer, "prefix", type(layer).__name__)
    LOG.info("%s: vLLM has no kernel for it here (%s): torch multiplies", name, _first_line(error))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].strip() if str(error) else type(error).__name__
