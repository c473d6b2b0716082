"""``python -m hammerhead``."""

import json
import subprocess
import sys

import hammerhead


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "hammerhead", *arguments], capture_output=True, text=True, timeout=120)


def test_it_lists_every_backend():
    done = run()
    assert done.returncode == 0 and hammerhead.__version__ in done.stdout
    assert all(f"  {name} " in done.stdout for name in hammerhead.backends())


def test_it_explains_itself():
    done = run("--help")
    assert done.returncode == 0 and "usage: python -m hammerhead" in done.stdout and "--json" in done.stdout


def test_it_prints_its_version_and_nothing_else():
    assert run("--version").stdout == f"hammerhead {hammerhead.__version__}\n"


def test_it_speaks_json():
    found = json.loads(run("--json").stdout)
    assert found["version"] == hammerhead.__version__ and found["backends"] == hammerhead.backends()
    assert found["cores"] >= 1 and set(found["packages"]) == {"torch", "transformers"}


def test_it_refuses_options_that_it_does_not_know():
    done = run("--jason")
    assert done.returncode == 2 and "--jason" in done.stderr
