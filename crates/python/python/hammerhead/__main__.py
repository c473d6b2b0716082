"""Says what this package can use on this machine.

    python -m hammerhead
    python -m hammerhead --json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib.util import find_spec
from typing import Any

import hammerhead

PACKAGES = {"torch": "hammerhead.distributed", "transformers": "hammerhead.transformers"}
"""What need not be installed, and what needs it."""


def report() -> dict[str, Any]:
    """What is here, as ``--json`` prints it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "version": hammerhead.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": cores,
        "backends": hammerhead.backends(),
        "packages": {package: find_spec(package) is not None for package in PACKAGES},
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m hammerhead", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"hammerhead {hammerhead.__version__}")
    parser.add_argument("--json", action="store_true", help="print one JSON object; a backend's reason is null if it can run here")
    options = parser.parse_args(arguments)
    found = report()
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print("hammerhead {version}, Python {python}, {machine}, {cores} cores".format(**found))
    for name, reason in found["backends"].items():
        print(f"  {name:10} {'available' if reason is None else reason}")
    for package, installed in found["packages"].items():
        print(f"  {package:10} {'installed' if installed else f'not installed; {PACKAGES[package]} needs it'}")


if __name__ == "__main__":
    main()
