"""What a Python program needs to speak with the tank, as an operation or as a contestant.

Both sides are told of tensors by name: what their numbers are, their shape, and where they lie in a file. Here they are views of that file,
flat, in the order of the shape: read them, write them, hand them to numpy.frombuffer or, by `pointer`, to C. docs/operations.md and
docs/protocol.md describe the messages. Nothing but Python is needed.
"""

import array
import ctypes
import json
import math
import mmap
import os
import random
import sys
import traceback

# The type and the shape of every tensor of the problem that is at hand, by name: a view is flat and knows neither.
DESCRIBED = {}

# Where answers go.
CHANNEL = sys.stdout

FORMATS = {"f64": "d", "f32": "f", "i64": "q", "i32": "i", "u8": "B", "f16": "H", "bf16": "H"}


def mapped(path, writable):
    """A file as memory. What is only read is mapped privately, so that its address can be given to C; new contents are seen all the same."""
    with open(path, "r+b" if writable else "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_COPY)


def views(memory, places):
    """Tensors by name as flat views. Types without a format of their own (f16, bf16) come as their 16 bits."""
    found = {}
    for name, place in places.items():
        count, form = math.prod(place["shape"]), FORMATS[place["type"]]
        length = count * array.array(form).itemsize
        found[name] = memoryview(memory)[place["offset"] : place["offset"] + length].cast(form)
        DESCRIBED[name] = (place["type"], place["shape"])
    return found


def pointer(view):
    """The address of a view, for a function in C."""
    return ctypes.byref(ctypes.c_char.from_buffer(view)) if len(view) else None


def keep_channel():
    """Standard output is the referee's: what a program or a library of its prints from now on goes to standard error."""
    global CHANNEL
    if CHANNEL is sys.stdout:
        CHANNEL = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)


def say(**message):
    CHANNEL.write(json.dumps(message) + "\n")
    CHANNEL.flush()


def serve_operation(generate, reference, judge=None, describe=None):
    """Answers for an operation until nobody asks any more.

    generate(problem, numbers, lots, tensors) fills tensors with numbers of a kind; `lots` is a random.Random of its own.
    reference(problem, tensors, outputs) writes what should come out, in double precision.
    judge(problem, tensors, outputs) gives what is wrong, or None, and the largest error as a part of what is allowed; and, if it knows, the root of the mean square
    of the errors, in any unit, and of how many elements.
    describe(problem) lists the tensors, where operation.toml does not: name, role, type and shape of each.
    """
    keep_channel()
    given = {"generate": generate, "reference": reference, "judge": judge, "describe": describe}
    for line in sys.stdin:
        asked = json.loads(line)
        if given[asked["type"]] is None:
            say(type="error", reason=f"operation.toml needs {asked['type']}, and serve_operation was given none")
            continue
        try:
            say(**answered(asked, generate, reference, judge, describe))
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            if asked["type"] == "judge":
                # It could judge the baseline: what it stumbles over is what a contestant wrote.
                say(type="verdict", wrong=f"its judge fails on it: {words}", worst=sys.float_info.max)
            else:
                traceback.print_exc()
                say(type="error", reason=f"{asked['type']} fails: {words}")


def answered(asked, generate, reference, judge, describe):
    """The answer to one question."""
    if asked["type"] == "describe":
        return {"type": "tensors", "tensors": describe(asked["problem"])}
    memory = mapped(asked["file"], True)
    tensors, problem = views(memory, asked["tensors"]), asked["problem"]
    if asked["type"] == "generate":
        generate(problem, asked["numbers"], random.Random(asked["seed"]), tensors)
        return {"type": "done"}
    if asked["type"] == "reference":
        reference(problem, tensors, views(memory, asked["outputs"]))
        return {"type": "done"}
    wrong, worst, *precision = judge(problem, tensors, views(memory, asked["outputs"]))
    # JSON has no word for what is no number.
    verdict = {"type": "verdict", "wrong": wrong, "worst": worst if math.isfinite(worst) else sys.float_info.max}
    if precision and precision[0]:
        verdict["rms"], verdict["compared"] = precision[0]
    return verdict


def serve_contestant(name, compute, prepare=None, deterministic=True):
    """Answers as a contestant: compute(problem, constants, inputs, outputs) writes the outputs of one job.

    prepare(problem, constants) may make something of a set of constants beforehand; its result is then given instead of them.
    """
    keep_channel()
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["type"] == "hello":
            say(type="hello", protocol=2, name=name, deterministic=deterministic)
        elif asked["type"] == "prepare":
            problem, files = asked["problem"], asked["files"]
            memory = {role: mapped(path, role == "outputs") for role, path in files.items()}
            at = {role: [views(memory[role], places) for places in asked[role]] for role in files}
            sets = [prepare(problem, constants) for constants in at["constants"]] if prepare else at["constants"]
            say(type="ready", id=asked["id"])
        elif asked["type"] == "run":
            for job in asked["jobs"]:
                compute(problem, sets[job["layer"]], at["inputs"][job["input"]], at["outputs"][job["output"]])
            say(type="done", id=asked["id"])
        else:
            return
