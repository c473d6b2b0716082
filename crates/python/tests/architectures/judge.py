"""Judges one case: builds a model, writes its checkpoints, and holds what the loader makes of the quantised one
against transformers' own model with the weights expanded.

What is expected does not depend on the loader, so it is kept in a folder and made again only when this package or
transformers changes.
"""

import functools
import hashlib
import json
import logging
import shutil
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import checkpoints
import configs
import inputs
import torch
import transformers

HERE = Path(__file__).parent
CACHE = HERE.parents[3] / "target" / "architectures"
RIGHT = 1e-4
"""The largest difference of logits, relative to the largest logit, that counts as rounding. What is right is some
hundred times below it."""
TOKENS = 8


@dataclass
class Case:
    """A model and a checkpoint of it. ``rewrite(written, config, files)`` changes the checkpoint and its
    configuration; ``chosen`` says by name what is quantised."""

    name: str
    model: str
    auto: str
    model_type: str
    layout: str
    fields: dict = field(default_factory=dict)
    chosen: Any = None
    rewrite: Any = None
    reason: str = ""


class Unbuildable(Exception):
    """A case that says nothing about the loader, and why."""


@functools.cache
def version():
    sources = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")) if path.name != "__main__.py")
    return hashlib.sha256(sources + transformers.__version__.encode() + torch.__version__.encode()).hexdigest()[:12]


def loader(case):
    """What loads it: the auto class, or the class itself where the auto class has another for its configuration."""
    kind = getattr(transformers, case.model)
    auto = getattr(transformers, case.auto)
    known = configs.CONFIG_MAPPING[case.model_type] is kind.config_class and kind.config_class in auto._model_mapping
    return auto if known else kind


def load(case, folder):
    """The model, and the keys that were made up or did not fit."""
    model, info = loader(case).from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    lost = {str(key) for kind in ("missing_keys", "mismatched_keys") for key in info[kind]}
    return model.eval(), lost


def outputs(model, given, generates=True):
    """Logits, and tokens of greedy generation or None where there is none."""
    return inputs.run(model, given), inputs.generated(model, given, TOKENS) if generates else None


def shared(case):
    """What the layouts of a class share."""
    key = (case.model, json.dumps(case.fields))
    if key not in _SHARED:
        _SHARED.clear()
        _SHARED[key] = plain(case)
    return _SHARED[key]


_SHARED = {}


def plain(case):
    """A built model with random weights, its files, and inputs for it with what they are."""
    kind = getattr(transformers, case.model)
    torch.manual_seed(0)
    model = kind._from_config(configs.small(kind.config_class, case.fields), dtype=torch.float32).eval()
    checkpoints.randomise(model)
    given, kinds = inputs.found(model)
    logits = inputs.run(model, given)
    if not logits.isfinite().all():
        raise Unbuildable("the logits of random weights are not finite")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        files = checkpoints.read(Path(folder))
        others = {path.name: path.read_text() for path in Path(folder).glob("*config.json")}
        again, _ = load(case, folder)
    off = difference(inputs.run(again, given), logits)
    if not off < RIGHT:
        raise Unbuildable(f"transformers does not read back what it wrote: off by {off:.1g}")
    return model, files, others, given, kinds


def prepare(case, folder):
    """Writes ``folder/quantised`` and what is expected of it."""
    work = folder.with_name(f"{folder.name}.making")
    shutil.rmtree(work, ignore_errors=True)
    try:
        model, files, others, given, kinds = shared(case)
    except Unbuildable:
        raise
    except Exception as error:
        raise Unbuildable(said(error)) from error
    config = json.loads(others["config.json"])
    written = checkpoints.quantise(files, model, case.layout, case.chosen)
    if not written.quantised:
        raise Unbuildable("no linear layer or stack of experts in its files")
    declared = config | {"quantization_config": checkpoints.quantization_config(written, case.layout)}
    if case.rewrite is not None:
        case.rewrite(written, declared, files)
    quantised = others | {name: json.dumps(text) for name, text in declared.pop("files", {}).items()}
    checkpoints.write(work / "quantised", written.tensors, declared, quantised)
    checkpoints.write(work / "expanded", written.expanded, config, others)
    expected, lost = load(case, work / "expanded")
    logits, tokens = outputs(expected, given)
    seen = {"given": given, "kinds": kinds, "logits": logits, "tokens": tokens, "lost": lost, "quantised": len(written.quantised)}
    torch.save(seen, work / "expected.pt")
    shutil.rmtree(work / "expanded")
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)


def difference(ours, theirs):
    """The largest one, relative to the largest number; infinite where a shape or a number is off."""
    if ours.shape != theirs.shape or not ours.isfinite().all():
        return float("inf")
    return float((ours - theirs).abs().max() / theirs.abs().max())


def said(error):
    """The type of an exception and its first sentence."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text.split('. ')[0][:300]}"


class Heard(logging.Handler):
    """What the loader says while it loads: warnings from its files, and records of its loggers."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        if "hammerhead" in record.name or "hammerhead" in record.pathname:
            self.lines.append(record.getMessage())

    def __enter__(self):
        self.caught = warnings.catch_warnings(record=True)
        self.warned = self.caught.__enter__()
        warnings.simplefilter("always")
        self.loggers = [logging.getLogger(), logging.getLogger("transformers"), logging.getLogger("hammerhead")]
        for logger in self.loggers:
            logger.addHandler(self)
        return self

    def __exit__(self, *problem):
        self.caught.__exit__(*problem)
        for logger in self.loggers:
            logger.removeHandler(self)
        self.lines += [str(w.message) for w in self.warned if "hammerhead" in w.filename or "hammerhead" in str(w.message)]


def row_of(case):
    return {"case": case.name, "model_type": case.model_type, "layout": case.layout, "reason": case.reason}


def judge(case):
    """One row of the table."""
    row = row_of(case)
    folder = CACHE / version() / f"{case.name}-{case.layout}"
    try:
        if not (folder / "expected.pt").exists():
            prepare(case, folder)
    except Unbuildable as error:
        return row | {"verdict": "unbuildable", "detail": str(error)}
    except Exception as error:
        return row | {"verdict": "unbuildable", "detail": f"the sweep itself: {said(error)}"}
    seen = torch.load(folder / "expected.pt", weights_only=False)
    row |= {"inputs": seen["kinds"], "quantised": seen["quantised"]}
    with Heard() as heard:
        try:
            model, lost = load(case, folder / "quantised")
        except Exception as error:
            return row | {"verdict": "refused", "detail": said(error).replace(f"{folder / 'quantised'}/", "")}
    row["warnings"] = heard.lines
    try:
        logits, tokens = outputs(model, seen["given"], seen["tokens"] is not None)
    except Exception as error:
        return row | {"verdict": "WRONG", "detail": f"loads, and does not run: {said(error)}"}
    row["error"] = difference(logits, seen["logits"])
    problems = []
    if not row["error"] < RIGHT:
        problems.append(f"logits off by {row['error']:.2g}")
    if seen["tokens"] is not None and not torch.equal(tokens, seen["tokens"]):
        problems.append("other tokens are generated")
    if lost - seen["lost"]:
        problems.append(f"{len(lost - seen['lost'])} weights made up: {min(lost - seen['lost'])}")
    return row | {"verdict": "WRONG" if problems else "right", "detail": "; ".join(problems), "generated": seen["tokens"] is not None}
