"""``python -m hammerhead``: what this package can use on this machine."""

from __future__ import annotations

import os
import platform
from importlib.util import find_spec

import hammerhead


def main() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"hammerhead {hammerhead.__version__}, Python {platform.python_version()}, {platform.machine()}, {cores} cores")
    for name, reason in hammerhead.backends().items():
        print(f"  {name:10} {'available' if reason is None else reason}")
    for package, use in [("torch", "hammerhead.distributed"), ("transformers", "hammerhead.transformers")]:
        print(f"  {package:10} {'installed' if find_spec(package) else f'not installed; {use} needs it'}")


if __name__ == "__main__":
    main()
