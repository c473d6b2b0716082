"""How precise results are: their errors against the problem's own reference, computed in double precision. `hammerhead tank import` wrote this file.

A check that allows a hundredth lets through whoever trades digits for speed. The referee holds these errors against the champion's, which are not zero: it computes in
the types that the problem names. Nobody is asked for more than the type that a result is stored in can tell: an error below its rounding counts as that.
"""

import contextlib
import math
import re
import sys

import torch

import task_tensors

WIDENED = (torch.float16, torch.bfloat16, torch.float32)


def wide(data):
    """A copy of data, real numbers in double precision."""
    if isinstance(data, dict):
        return {key: wide(part) for key, part in data.items()}
    if isinstance(data, (tuple, list)):
        made = [wide(part) for part in data]
        return type(data)(*made) if hasattr(data, "_fields") else type(data)(made)
    if isinstance(data, torch.Tensor):
        return data.double() if data.dtype in WIDENED else data.clone()
    return data


def widened(text):
    """A source that asks for double precision where it asked for single."""
    return re.sub(r"\btorch\.float(32)?\b", "torch.float64", text).replace(".float()", ".double()")


def of_task():
    """A task's reference in double precision."""
    return task_tensors.module("reference_in_double", task_tensors.HERE / "reference.py", widened).ref_kernel


class Precision:
    """Errors against a reference in double precision, where one can be had."""

    def __init__(self, reference):
        self.reference, self.compute, self.why = reference, None, None

    def expected(self, data):
        """What should come out, or nothing where the reference does not do it in double precision."""
        if self.why:
            return None
        try:
            with contextlib.redirect_stdout(sys.stderr), torch.no_grad():
                self.compute = self.compute or getattr(self.reference, "in_double", None) or of_task()
                return dict(task_tensors.leaves("out", self.compute(wide(data))))
        except Exception as error:
            self.why = f"{type(error).__name__}: {error}"
            print(f"the reference cannot be computed in double precision ({self.why}): precision is not compared", file=sys.stderr)
            return None


def errors(expected, found):
    """The root of the mean square of errors as parts of what numbers here are like, and of how many; nothing where none can be compared."""
    squares, count = 0.0, 0
    for name, one in task_tensors.leaves("out", found):
        right = expected.get(name) if expected else None
        if right is None or right.shape != one.shape or not (right.is_floating_point() and one.is_floating_point()):
            continue
        right, rounding = right.to(one.device).double(), torch.finfo(one.dtype).eps / 2
        error = torch.maximum((one.double() - right).abs(), rounding * right.abs()) / (task_tensors.size(right) or 1.0)
        known = error.isfinite()
        squares, count = squares + float(error[known].square().sum()), count + int(known.sum())
    return (math.sqrt(squares / count), count) if count else None
