"""Whose threads compute."""

from __future__ import annotations

from typing import Literal

from hammerhead import _native


def use_threads(whose: Literal["auto", "own", "openmp"]) -> None:
    """Chooses whose threads all layers compute on from the next call on.

    - ``"own"``: threads of this library's own. They sleep while there is nothing to do, and nobody waits for one that
      has not begun.
    - ``"openmp"``: those of the OpenMP runtime that is loaded, as torch's is. They are awake right after an operation
      of torch's; but a call ends when the last of them comes back, which takes long where another process holds its
      core.
    - ``"auto"``: torch's while they are prompt, where torch has been imported, and this library's own after a call that
      had to wait for them. The default, unless the environment's ``HAMMERHEAD_THREADS`` names another.

    How many is said by a layer's ``threads``; if it does not say, there are as many as ``torch.get_num_threads()``,
    where torch has been imported, and never more than this process may run on (its affinity, and its control group's
    quota). A process that was forked computes on threads of its own.
    """
    _native.use_threads(whose)
