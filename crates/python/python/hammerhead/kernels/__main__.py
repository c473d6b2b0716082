"""Writes this package as a build of the ``kernels`` library: ``python -m hammerhead.kernels FOLDER``.

    FOLDER/build/VARIANT/metadata.json
    FOLDER/build/VARIANT/__init__.py      (and the rest of the package)

``kernels`` imports a variant's ``__init__.py`` under a name of its own, so that several builds may live in one process.
Imports by the name of this package become relative ones. The native library is for one system and one kind of
processor, for every Python from 3.10 on, and for any torch, since it is not linked to it. The variants differ in
nothing but their names: ``kernels`` takes the one for the CUDA that torch was built for, also without a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import sys
from pathlib import Path

import hammerhead

_BACKENDS = {"cpu": "cpu", "cu120": "cuda", "cu130": "cuda"}
"""By the part of a variant's name: the backend in its metadata. A variant of CUDA 12.0 is taken by every torch of
CUDA 12."""

_ELSEWHERE = ("distributed", "transformers", "vllm")
"""What plugs into other programs in other ways."""

_IMPORT = re.compile(r"^(\s*)from hammerhead(\.[\w.]+)? import ", re.MULTILINE)


def main() -> None:
    """Reads the folder's name, and prints the variants written into it."""
    parser = argparse.ArgumentParser(
        prog="python -m hammerhead.kernels", description="Writes a build of Hugging Face's kernels library."
    )
    parser.add_argument("folder", type=Path, help="where to; its folder 'build' must not be there yet")
    folder = parser.parse_args().folder
    try:
        written = build(folder)
    except OSError as error:
        sys.exit(f"hammerhead.kernels: {error}")
    for variant in written:
        print(variant)


def build(folder: Path) -> list[Path]:
    """Writes the variants, and returns their folders."""
    source = Path(hammerhead.__file__).parent
    paths = [path for path in sorted(source.rglob("*")) if _belongs(path, source)]
    files = {path.relative_to(source): _contents(path, source) for path in paths}
    digest = hashlib.sha256(b"".join(bytes(path) + contents for path, contents in files.items())).hexdigest()[:10]
    top = folder / "build"
    top.mkdir(parents=True)
    system = f"{platform.machine()}-{platform.system().lower()}"
    variants = [top / f"torch-stable-abi24-{name}-{system}" for name in _BACKENDS]
    for variant, backend in zip(variants, _BACKENDS.values(), strict=True):
        for path, contents in files.items():
            (variant / path).parent.mkdir(parents=True, exist_ok=True)
            (variant / path).write_bytes(contents)
        metadata = {
            "id": f"_hammerhead_{backend}_{digest}",
            "name": "hammerhead",
            "version": 1,
            "license": "MIT OR Apache-2.0",
            "python-depends": [],
            "backend": {"type": backend},
        }
        (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    return variants


def _belongs(path: Path, source: Path) -> bool:
    inside = path.relative_to(source)
    if inside.parts[0] in _ELSEWHERE or {"__main__.py", "__pycache__"} & set(inside.parts):
        return False
    return path.is_file()


def _contents(path: Path, source: Path) -> bytes:
    """A file as it is in a build."""
    if path.suffix not in (".py", ".pyi"):
        return path.read_bytes()
    inside = path.relative_to(source)
    dots = "." * len(inside.parts)

    def relative(found: re.Match[str]) -> str:
        return f"{found[1]}from {dots}{(found[2] or '.')[1:]} import "

    text = _IMPORT.sub(relative, path.read_text())
    if inside == Path("__init__.py"):
        text += "\nfrom .kernels import layers  # noqa: E402, F401  (where the kernels library looks for them)\n"
    return text.encode()


if __name__ == "__main__":
    main()
