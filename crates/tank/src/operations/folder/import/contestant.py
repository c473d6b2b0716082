"""A community submission as a contestant: what the file that is named computes with (`submitted`), in a process of its own.

On a GPU it is queued and timed by the device's clock (`task_on_gpu`), unless `--by-host` follows the file.
"""

# What others have put beside this file comes last when modules are looked for.
import sys

sys.path.append(sys.path.pop(0))

import compiled

if missing := compiled.not_there(sys.argv[1]):
    compiled.serve_nothing(sys.argv[1], missing)
    sys.exit()

import submitted
import task_tensors
import tank

tank.keep_channel()
kernel = submitted.kernel_of(sys.argv[1])
patterns = task_tensors.Patterns(task_tensors.module("reference"))


def compute(problem, like, inputs, outputs):
    task_tensors.write("out", kernel(task_tensors.read("in", like, inputs)), outputs)


def on_gpu():
    """What queues it behind the referee's latch, where there is a GPU and the submission can be queued."""
    if task_tensors.DEVICE != "cuda" or "--by-host" in sys.argv:
        return None
    import task_on_gpu

    return task_on_gpu if task_on_gpu.can_queue(kernel, patterns) else None


if found := on_gpu():
    found.serve(sys.argv[1], kernel, patterns)
else:
    # What a GPU computes need not come out the same to the last bit.
    tank.serve_contestant(sys.argv[1], compute, prepare=lambda problem, _: patterns.of(problem), deterministic=False)
