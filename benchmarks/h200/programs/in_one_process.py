#!/usr/bin/env python3
"""What the referee should find of gpu-scale and gpu-matmul: the same kernels in one process, by its own events, every
job over other inputs, L2 swept before.

    python3 benchmarks/h200/programs/in_one_process.py
"""

import pathlib
import statistics
import sys

import torch

OPERATIONS = pathlib.Path(__file__).parents[3] / "examples" / "operations"
SAMPLES = 9


def contestant(operation, way):
    """The example's program without its last line, which would wait for the referee."""
    folder = OPERATIONS / operation
    sys.path.insert(0, str(folder))
    sys.argv = ["contestant.py", way]
    path = folder / "contestant.py"
    text = path.read_text()
    found = {"__name__": "contestant", "__file__": str(path)}
    exec(compile(text[: text.rindex("\nmain(")], str(path), "exec"), found)
    return found


def medians(ways, run, jobs):
    """The median microseconds of a job of each way."""
    swept = torch.empty(132 << 20, dtype=torch.uint8, device="cuda")
    found = {way: [] for way in ways}
    for way in list(ways) * SAMPLES:
        # So long that all is queued when the first of it begins.
        for _ in range(120):
            swept.zero_()
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        run(way)
        after.record()
        torch.cuda.synchronize()
        found[way].append(1e3 * before.elapsed_time(after) / jobs)
    return {way: round(statistics.median(samples), 2) for way, samples in found.items()}


def scale(elements, jobs=40):
    gpu = contestant("gpu-scale", "plain")["Gpu"]()
    gpu.streams[0].value = torch.cuda.current_stream().cuda_stream
    inputs, outputs = ([torch.ones(elements, device="cuda") for _ in range(jobs)] for _ in "xy")
    places = [(x.data_ptr(), y.data_ptr(), elements) for x, y in zip(inputs, outputs)]
    return medians(("plain", "wide", "narrow"), lambda way: [gpu.launch(way, *place) for place in places], jobs)


def matmul(m, n, k, jobs=20, layers=8):
    multiply = contestant("gpu-matmul", "tiles")["multiply"]
    a = [torch.randn(m, k, device="cuda").half() for _ in range(jobs)]
    b = [(torch.randn(n, k, device="cuda") * k**-0.5).half() for _ in range(layers)]
    c = [torch.empty(m, n, device="cuda", dtype=torch.float16) for _ in range(jobs)]
    ways = ("tiles", "square", "small", "cublas")
    for way in ways:
        multiply(way, a[0], b[0], c[0])
    return medians(ways, lambda way: [multiply(way, a[job], b[job % layers], c[job]) for job in range(jobs)], jobs)


torch.cuda.init()
torch.zeros(1, device="cuda")
print("gpu-scale, 1048576 elements:", scale(1048576))
print("gpu-matmul, 1024×4096×2048:", matmul(1024, 4096, 2048))
print("gpu-matmul, 256×4096×2048:", matmul(256, 4096, 2048))
