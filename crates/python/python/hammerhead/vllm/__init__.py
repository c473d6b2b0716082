"""NVFP4 checkpoints in vLLM on CPUs: linear layers and experts of ModelOpt and compressed-tensors, with weights that stay 4-bit.

Nothing is imported: vLLM finds :func:`register` by its entry point (``vllm.general_plugins``) and calls it in every process. ``VLLM_PLUGINS`` says which
plugins vLLM loads. On GPUs vLLM's own layers are left as they are.
"""

from __future__ import annotations

import logging

__all__ = ["register"]

WRITTEN_FOR = "0.32"
"""The version of vLLM whose interfaces this follows; most of them are not promised."""


def register() -> None:
    """Puts our methods for NVFP4 in the place of vLLM's, if vLLM computes on a CPU. May be called any number of times."""
    from vllm import __version__
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    try:
        from hammerhead.vllm import _compressed, _modelopt
    except (ImportError, AttributeError) as error:
        # Whoever serves other models must not suffer from it.
        logging.getLogger("vllm.hammerhead").warning(
            "hammerhead follows vLLM %s, and this is %s, in which something has moved (%s): NVFP4 layers are left to vLLM", WRITTEN_FOR, __version__, error
        )
        return
    _modelopt.register()
    _compressed.register()
