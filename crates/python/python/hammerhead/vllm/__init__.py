"""NVFP4 checkpoints in vLLM, on CPUs and Hopper GPUs: linear layers and experts of ModelOpt and compressed-tensors,
with weights that stay 4-bit.

Nothing is imported: vLLM finds :func:`register` by its entry point (``vllm.general_plugins``) and calls it in every
process. ``VLLM_PLUGINS`` says which plugins vLLM loads. On other GPUs vLLM's own layers are left as they are.
"""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["register", "serves"]

WRITTEN_FOR = "0.32"
"""The version of vLLM whose interfaces this follows; most of them are not promised."""


def serves(platform: Any) -> bool:
    """Whether layers on such a platform of vLLM's are ours: on CPUs and on Hopper GPUs, where this was tested."""
    return bool(platform.is_cpu() or (platform.is_cuda() and platform.is_device_capability(90)))


def register() -> None:
    """Puts our methods for NVFP4 in the place of vLLM's, if vLLM computes where these serve.

    It may be called any number of times.
    """
    from vllm import __version__
    from vllm.platforms import current_platform

    if not serves(current_platform):
        return
    try:
        from hammerhead.vllm import _compressed, _lora, _modelopt
    except (ImportError, AttributeError) as error:
        # Models that are not NVFP4 must still be served.
        logging.getLogger("vllm.hammerhead").warning(
            "hammerhead follows vLLM %s; in this one, %s, something has moved (%s): NVFP4 layers are left to vLLM",
            WRITTEN_FOR,
            __version__,
            error,
        )
        return
    _modelopt.register()
    _compressed.register()
    _lora.register()
