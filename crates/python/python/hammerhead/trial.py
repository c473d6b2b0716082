"""The process in which another Python has its ways of computing on a GPU tried. Not an interface for users.

A fault on a GPU ends the use of it by the whole process, PyTorch's included. So what was never measured on a GPU is
tried here first, line by line as the other process asks.
"""

from __future__ import annotations

import sys

from hammerhead import _native


def main(arguments: list[str]) -> None:
    """Answers for the device of the given number until nobody asks any more."""
    _native.serve_trials(int(arguments[0]) if arguments else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
