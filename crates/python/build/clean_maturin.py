"""The build backend of ``pip install .``: maturin, which compiles in a folder that goes when the wheel is there.

Left to itself maturin compiles in ``target/`` and leaves hundreds of megabytes in the clone. Whoever wants them kept,
to compile less the next time, names a folder in ``CARGO_TARGET_DIR``; ``pip install -e .`` and ``maturin develop`` keep
theirs in ``target/``.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import maturin
from maturin import *  # noqa: F403  (the hooks that stay as they are)

# The interpreter has just put a compiled copy of this file beside it, which nobody will ask for again.
if __spec__ is not None and __spec__.cached is not None:
    Path(__spec__.cached).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        Path(__spec__.cached).parent.rmdir()


@contextlib.contextmanager
def _compiling_elsewhere() -> Iterator[None]:
    if "CARGO_TARGET_DIR" in os.environ or "CARGO_BUILD_TARGET_DIR" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="hammerhead-build-") as folder:
        os.environ["CARGO_TARGET_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["CARGO_TARGET_DIR"]


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
    with _compiling_elsewhere():
        return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    with _compiling_elsewhere():
        return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    with _compiling_elsewhere():
        return maturin.build_sdist(sdist_directory, config_settings)
