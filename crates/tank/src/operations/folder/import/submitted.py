"""What a submission computes with, however it is written: `custom_kernel`, a `ModelNew`, or a solution as JSON with its sources in it, in Python or compiled
beforehand (`compiled`)."""

import os
import pathlib
import sys
import tempfile

import compiled
import task_tensors


def kernel_of(path):
    """A function from a problem's data to its results."""
    if pathlib.Path(path).suffix == ".json":
        return of_solution(path)
    submission = task_tensors.module("submission", path)
    if hasattr(submission, "custom_kernel"):
        return submission.custom_kernel
    reference = task_tensors.module("reference")
    if hasattr(submission, "ModelNew"):
        reference.built(submission.ModelNew)
        return lambda data: reference.computed(submission.ModelNew, data)
    if hasattr(submission, "run") and hasattr(reference, "DEFINITION"):
        return lambda data: reference.results(submission.run(*data.values()))
    raise SystemExit(f"{path} has neither custom_kernel nor ModelNew nor run")


def of_solution(path):
    solution = compiled.read(path)
    spec = solution["spec"]
    if compiled.is_compiled(spec):
        run = compiled.function(compiled.library_of(path), spec)
    else:
        file, function = spec["entry_point"].split("::")
        folder = compiled.unpacked(solution, tempfile.mkdtemp())
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        run = getattr(task_tensors.module("solution", folder / file), function)
    reference = task_tensors.module("reference")
    if not spec.get("destination_passing_style", True):
        return lambda data: reference.results(run(*data.values()))

    def into(data):
        outputs = reference.empty_outputs(data)
        run(*data.values(), *outputs)
        return tuple(outputs)

    return into
