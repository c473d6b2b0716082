"""How precise results are: their errors against the problem's own reference, computed in double precision.
`hammerhead tank import` wrote this file.

A check that allows a hundredth lets through whoever trades digits for speed. The referee holds these errors against the
champion's, which may be none: some references compute in double precision themselves. Nobody is asked for more than an
honest sum in single precision gives: an error below that counts as that.
"""

import contextlib
import json
import math
import re
import sys

import torch

import task_tensors

WIDENED = (torch.float16, torch.bfloat16, torch.float32)
# Honest sums of thousands of terms in single precision are off by fewer of its steps than this. The referee allows four
# times as much, and arithmetic in half precision is off by more.
HONEST_STEPS = 64
# Where results are no larger, they are what is left of a difference: rounding and nothing else.
NOTHING = 1e-12
# A reference that is further than this from itself in double precision, as a part of what its results are like, has
# computed something else there.
FAR = 0.1
LACKS = "the reference in double precision lacks memory beside contestants: "


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


def unrounded(text):
    """The same where it asked for half precision in between."""
    text = re.sub(r"\btorch\.(bfloat16|float16|half)\b", "torch.float64", widened(text))
    return re.sub(r"\.(bfloat16|half)\(\)", ".double()", text)


def of_task(change):
    """A task's reference in double precision."""
    return task_tensors.module("reference_in_double", task_tensors.HERE / "reference.py", change).ref_kernel


def starved(error):
    """Whether there was too little memory."""
    words = str(error).lower()
    return isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) or "out of memory" in words or "alloc_failed" in words


def narrowed(like, leaf):
    """A result in double precision as the reference would have stored it."""
    return leaf.to(like.dtype) if like.dtype in task_tensors.ELEMENTS else leaf.view(like.dtype).reshape(like.shape)


def credited(found, expected, right):
    """A result with the expected numbers in the place of those that are at least as near to what is right; the result
    as it is where what is expected is itself far off: then the two are not the same thing."""
    if right is None or found.dtype not in WIDENED or not (found.shape == expected.shape == right.shape) or not right.is_floating_point():
        return found
    expected, right = expected.to(found.device), right.to(found.device).double()
    off = (expected.double() - right).abs()
    known = off.isfinite()
    if not known.any() or float(off[known].square().mean().sqrt()) > FAR * task_tensors.size(right):
        return found
    # Where the reference overflowed, what is right is what rounds to it.
    allowed = torch.where(known, off, torch.finfo(found.dtype).eps * right.abs())
    return torch.where((found.double() - right).abs() <= allowed, expected.to(found.dtype), found)


class Precision:
    """Errors against a reference in double precision, where one can be had and means something."""

    def __init__(self, reference, patterns, says):
        self.reference, self.patterns, self.says, self.tasks = reference, patterns, says, {}
        # By problem: whether precision is compared. It is settled when the problem is described, before contestants run.
        self.compared = {}

    def computed(self, data, change=widened):
        with contextlib.redirect_stdout(sys.stderr), torch.no_grad():
            if hasattr(self.reference, "in_double"):
                return dict(task_tensors.leaves("out", self.reference.in_double(wide(data), change)))
            if change not in self.tasks:
                self.tasks[change] = of_task(change)
            return dict(task_tensors.leaves("out", self.tasks[change](wide(data))))

    def jumps(self, problem, data, expected):
        """What the problem's own check says against the reference in double precision, if anything. Where it does,
        rounding decides what comes out, as where the largest are chosen, something passes a threshold, or is rounded
        to few values: errors then say nothing of anyone's precision."""
        like = self.patterns.outputs(problem)
        return self.says(data, task_tensors.filled(like, iter(expected.values()), narrowed))

    def leave_out(self, problem, why):
        self.compared[json.dumps(problem, sort_keys=True)] = False
        print(f"precision is not compared for {problem}: {why}", file=sys.stderr)

    def settle(self, problem, alone=True):
        """Finds out once whether precision can be compared for a problem. Beside contestants, who may hold all of the
        memory, a lack of it settles nothing."""
        key = json.dumps(problem, sort_keys=True)
        if key in self.compared:
            return
        try:
            expected = self.computed(self.patterns.generate(problem, 1))
            jump = self.jumps(problem, self.patterns.generate(problem, 1), expected)
        except Exception as error:
            if not alone and starved(error):
                raise SystemExit(LACKS + str(error))
            self.leave_out(problem, f"the reference cannot be computed in double precision ({type(error).__name__}: {error})")
            return
        if jump:
            self.leave_out(problem, f"in double precision the reference gives something else ({jump})")
        else:
            self.compared[key] = True

    def expected(self, problem, data):
        """What should come out, or nothing where precision is not compared. It could be computed when that was settled:
        if it cannot now, as where somebody holds all of the GPU's memory, nobody is judged by that: this program ends,
        which the referee takes for a failure of the operation."""
        key = json.dumps(problem, sort_keys=True)
        if key not in self.compared:
            self.settle(problem, alone=False)
        if not self.compared[key]:
            return None
        try:
            return self.computed(data)
        except Exception as error:
            raise SystemExit(f"the reference in double precision fails, and did not before ({type(error).__name__}: {error})")

    def credited(self, problem, data, found):
        """Results, with the reference's own in the place of each number that is at least as near to the reference in
        double precision, or to that without rounding in between: who rounds less often than the reference is not wrong
        where the reference is the further from what is right."""
        expected = dict(task_tensors.leaves("out", self.reference.ref_kernel(data())))
        leaves = dict(task_tensors.leaves("out", found))
        for change in (widened, unrounded):
            try:
                right = self.computed(data(), change)
            except Exception as error:
                if starved(error):
                    raise SystemExit(LACKS + str(error))
                continue
            leaves = {name: credited(leaf, expected[name], right.get(name)) for name, leaf in leaves.items()}
        return task_tensors.filled(self.patterns.outputs(problem), iter(leaves.values()), narrowed)

    def errors(self, problem, data, expected, found):
        """The root of the mean square of errors, and of how many; nothing where none are compared. `data` gives what
        they were computed from."""
        compared = errors(expected, found)
        # Only what is this far off can be a jump.
        if compared and compared[0] > 4 * max(least(leaf.dtype) for _, leaf in task_tensors.leaves("out", found) if leaf.dtype in WIDENED):
            try:
                jump = self.jumps(problem, data(), expected)
            except Exception as error:
                if starved(error):
                    raise SystemExit(LACKS + str(error))
                jump = f"{type(error).__name__}: {error}"
            if jump:
                self.leave_out(problem, f"in double precision the reference gives something else ({jump})")
                return None
        return compared


def least(kind):
    """The least error that anyone is held against, as a part of a result."""
    return max(torch.finfo(kind).eps / 2, HONEST_STEPS * torch.finfo(torch.float32).eps)


def errors(expected, found):
    """The root of the mean square of errors as parts of what numbers here are like, and of how many; nothing where none
    can be compared. Only what is stored in single or half precision is: whole numbers have no errors, and double
    precision is the measure itself."""
    squares, count = 0.0, 0
    for name, one in task_tensors.leaves("out", found):
        right = expected.get(name) if expected else None
        if right is None or right.shape != one.shape or not right.is_floating_point() or one.dtype not in WIDENED:
            continue
        right = right.to(one.device).double()
        size = task_tensors.size(right)
        if size <= NOTHING:
            continue
        error = torch.maximum((one.double() - right).abs(), least(one.dtype) * right.abs()) / size
        known = error.isfinite()
        squares, count = squares + float(error[known].square().sum()), count + int(known.sum())
    return (math.sqrt(squares / count), count) if count else None
