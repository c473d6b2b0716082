"""Tells of what the processor could not compute. vLLM replays graphs, and then no call of ours is made that could."""

from __future__ import annotations

import logging
import threading
import time
from functools import cache
from weakref import WeakSet

from hammerhead import Experts

SECONDS = 1.0
"""Between two looks."""

_watched: WeakSet[Experts] = WeakSet()
_lock = threading.Lock()


def watch(layer: Experts) -> None:
    """Looks at a layer of which the processor has a part from now on, as long as it lives."""
    with _lock:
        _watched.add(layer)
    _start()


def look() -> None:
    """Logs what went wrong since the last look."""
    with _lock:
        layers = list(_watched)
    for layer in layers:
        try:
            layer.check_host()
        except RuntimeError as failure:
            logging.getLogger("vllm.hammerhead").error("%r: %s", layer, failure)


@cache
def _start() -> None:
    def for_ever() -> None:
        while True:
            time.sleep(SECONDS)
            look()

    threading.Thread(target=for_ever, name="hammerhead-watch", daemon=True).start()
