"""Tells of what the processor could not compute. vLLM replays graphs, and then no call of ours is made that could; one
that is made outside of graphs ends with it all the same."""

from __future__ import annotations

import logging
import os
import threading
import time
from weakref import WeakKeyDictionary

from hammerhead import Experts

SECONDS = 1.0
"""Between two looks."""

_watched: WeakKeyDictionary[Experts, str | None] = WeakKeyDictionary()
"""Layers, and what was last told of each."""
_lock = threading.Lock()
_processes: set[int] = set()
"""Those in which a thread looks: one that was forked has none."""


def watch(layer: Experts) -> None:
    """Looks at a layer of which the processor has a part from now on, as long as it lives."""
    with _lock:
        _watched[layer] = None
    _start()


def look() -> None:
    """Logs what went wrong and was not told yet."""
    with _lock:
        for layer, told in list(_watched.items()):
            failure = layer.host_failure()
            if failure is not None and failure != told:
                logging.getLogger("vllm.hammerhead").error("%r: %s", layer, failure)
            _watched[layer] = failure


def _start() -> None:
    def for_ever() -> None:
        while True:
            time.sleep(SECONDS)
            look()

    if os.getpid() not in _processes:
        _processes.add(os.getpid())
        threading.Thread(target=for_ever, name="hammerhead-watch", daemon=True).start()
