"""``pip install .``: what is compiled goes when the wheel is there, unless its folder is the caller's."""

import importlib
import os
import sys
from pathlib import Path

import pytest

maturin = pytest.importorskip("maturin")
FOLDER = Path(__file__).parents[1] / "build"


@pytest.fixture
def backend(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for variable in ("CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR"):
        monkeypatch.delenv(variable, raising=False)
    yield importlib.import_module("clean_maturin")
    del sys.modules["clean_maturin"]


@pytest.fixture
def compiled(monkeypatch):
    """Where maturin was asked to compile."""
    folders = []

    def build(*arguments):
        folders.append(os.environ.get("CARGO_TARGET_DIR"))
        if folders[-1] is not None:
            (Path(folders[-1]) / "release").mkdir(parents=True, exist_ok=True)
        return "a.whl"

    for hook in ("prepare_metadata_for_build_wheel", "build_wheel", "build_sdist", "build_editable"):
        monkeypatch.setattr(maturin, hook, build)
    return folders


def test_what_was_compiled_is_gone_when_the_wheel_is_there(backend, compiled, tmp_path):
    for hook in (backend.prepare_metadata_for_build_wheel, backend.build_wheel, backend.build_sdist):
        assert hook(str(tmp_path)) == "a.whl"
    assert len(set(compiled)) == 3 and not any(Path(folder).exists() for folder in compiled)
    assert "CARGO_TARGET_DIR" not in os.environ


def test_a_folder_that_was_asked_for_is_used_and_kept(backend, compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("CARGO_TARGET_DIR", str(tmp_path))
    backend.build_wheel("anywhere")
    assert compiled == [str(tmp_path)] and (tmp_path / "release").exists()
    assert os.environ["CARGO_TARGET_DIR"] == str(tmp_path)


def test_the_backend_leaves_no_compiled_copy_of_itself(backend):
    assert [path.name for path in FOLDER.iterdir()] == ["clean_maturin.py"]
    assert backend.build_editable is not None and backend.get_requires_for_build_wheel() == []
