"""A community's problem (reference.py: `generate_input`, `ref_kernel`, `check_implementation`) as an operation of the tank: its own generator makes the
numbers, its own check judges. `hammerhead tank import` wrote this file; the problem's own files are as they were."""

# What lies beside this file comes last when modules are looked for: contestants lie there too, and nothing fences this program.
import sys

sys.path.append(sys.path.pop(0))

import task_tensors
import tank

reference = task_tensors.module("reference")
patterns = task_tensors.Patterns(reference)


def describe(problem):
    given, computed = patterns.of(problem), patterns.outputs(problem)
    return task_tensors.described("in", given, "input") + task_tensors.described("out", computed, "output")


def generate(problem, numbers, lots, tensors):
    task_tensors.write("in", patterns.generate(problem, lots.randrange(1, 2**31 - 1)), tensors)


def judge(problem, tensors, outputs):
    data, found = task_tensors.read("in", patterns.of(problem), tensors), task_tensors.read("out", patterns.outputs(problem), outputs)
    said = reference.check_implementation(data, found)
    # Some checks answer (right, words), others words alone, which are empty if all is well, or yes and no.
    right, words = said if isinstance(said, tuple) else (said, "") if isinstance(said, bool) else (not said, said)
    return (None if right else (str(words) or "its own check says no")), 0.0


tank.serve_operation(generate, None, judge, describe)
