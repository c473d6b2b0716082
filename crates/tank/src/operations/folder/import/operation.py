"""A community's problem (reference.py: `generate_input`, `ref_kernel`, `check_implementation`) as an operation of the tank: its own generator makes the
numbers, its own check judges. `hammerhead tank import` wrote this file; the problem's own files are as they were."""

# What lies beside this file comes last when modules are looked for: contestants lie there too, and nothing fences this program.
import sys

sys.path.append(sys.path.pop(0))

import precision
import task_tensors
import tank
import torch

reference = task_tensors.module("reference")
patterns, steady = task_tensors.Patterns(reference), []


def says(data, found):
    """What the problem's own check says against results, if anything."""
    said = reference.check_implementation(data, found)
    # Some checks answer (right, words), others words alone, which are empty if all is well, or yes and no.
    right, words = said if isinstance(said, tuple) else (said, "") if isinstance(said, bool) else (not said, said)
    return None if right else (str(words) or "its own check says no")


def no_numbers(data, found):
    """What is infinite or no number where the reference gives one: many a check takes that for whatever it likes."""
    odd = {name: leaf for name, leaf in task_tensors.leaves("out", found) if leaf.is_floating_point() and not leaf.isfinite().all()}
    expected = dict(task_tensors.leaves("out", reference.ref_kernel(data()))) if odd else {}
    for name, leaf in odd.items():
        wrong = ~leaf.isfinite() & expected[name].to(leaf.device).isfinite()
        if wrong.any():
            at = int(wrong.reshape(-1).nonzero()[0])
            return f"{name}: element {at} is {leaf.reshape(-1)[at]}, and the reference gives a number there"
    return None


precise = precision.Precision(reference, patterns, says)


def keep_steady(problem):
    """Ends where the reference is not right by its own check: nobody could be."""
    if problem in steady:
        return
    computed = reference.ref_kernel(patterns.generate(problem, 1))
    data = patterns.generate(problem, 1)
    torch.manual_seed(2)
    wrong = says(data, computed)
    if wrong:
        raise ValueError(
            f"the reference does not give what it gave before on the same inputs ({wrong}): it draws random numbers, as dropout in training does, or its "
            "check is not one; have it compute the same each time"
        )
    precise.settle(problem)
    steady.append(problem)


def describe(problem):
    keep_steady(problem)
    given, computed = patterns.of(problem), patterns.outputs(problem)
    return task_tensors.described("in", given, "input") + task_tensors.described("out", computed, "output")


def generate(problem, numbers, lots, tensors):
    task_tensors.write("in", patterns.generate(problem, lots.randrange(1, 2**31 - 1)), tensors)


def judge(problem, tensors, outputs):
    def data():
        return task_tensors.read("in", patterns.of(problem), tensors)

    given, found = data(), task_tensors.read("out", patterns.outputs(problem), outputs)
    # Before the check: some write to what they are given.
    expected = precise.expected(problem, given)
    wrong = no_numbers(data, found) or says(given, found)
    if wrong:
        better = precise.credited(problem, data, found)
        wrong = no_numbers(data, better) or says(data(), better)
    return wrong, 0.0, None if wrong else precise.errors(problem, data, expected, found)


tank.serve_operation(generate, None, judge, describe)
