"""A community task (task.yml, reference.py, submission.py with `custom_kernel`) as an operation of the tank: its own generator makes the
numbers, its own check judges. `hammerhead tank import-task` wrote this file; the task's own files are as they were."""

import sys

import task_tensors
import tank

reference = task_tensors.module("reference")


def describe(problem):
    data = reference.generate_input(**problem, seed=1)
    outputs = reference.ref_kernel(task_tensors.copied(data))
    return task_tensors.described("in", data, "input") + task_tensors.described("out", outputs, "output")


def generate(problem, numbers, lots, tensors):
    data = reference.generate_input(**problem, seed=lots.randrange(1, 2**31 - 1))
    task_tensors.write("in", data, tensors)


def judge(problem, tensors, outputs):
    data, found = task_tensors.read("in", tensors), task_tensors.read("out", outputs)
    said = reference.check_implementation(data, found)
    # Some checks answer (right, words), others words alone, which are empty if all is well.
    right, words = said if isinstance(said, tuple) else (not said, said)
    return (None if right else (str(words) or "its own check says no")), 0.0


tank.serve_operation(generate, None, judge, describe)
