"""Ctrl-C during a call: it ends early with ``KeyboardInterrupt``, and the layer computes on."""

import os
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import sys, threading, time
import numpy as np
{imports}
import hammerhead
from hammerhead import Experts, Linear, Mlp

rng = np.random.default_rng(0)
matrix = lambda n, k: hammerhead.quantize(rng.standard_normal((n, k), dtype=np.float32))
options = dict(backend="scalar", threads=2)
if sys.argv[1] == "linear":
    layer = Linear.from_arrays(matrix(2048, 2048), **options)
    call = lambda x: layer(x)
elif sys.argv[1] == "mlp":
    layer = Mlp.from_arrays(matrix(2048, 2048), matrix(2048, 2048), matrix(2048, 2048), **options)
    call = lambda x: layer(x)
else:
    layer = Experts.from_arrays(*([matrix(2048, 2048)] * 2 for _ in range(3)), routing="softmax", top_k=1, **options)
    call = lambda x: layer(x, x[:, :2].copy())

few = rng.standard_normal((3, 2048), dtype=np.float32)
expected = call(few)
begun = time.perf_counter()
call(np.repeat(few, 8, axis=0))
# As many tokens as take minutes.
rows = int(300 / (time.perf_counter() - begun)) * 24
many = np.zeros((min(rows, 200_000), 2048), dtype=np.float32)
threads = threading.active_count(), len(__import__("os").listdir("/proc/self/task"))
print("ready", flush=True)
try:
    call(many)
except KeyboardInterrupt:
    assert np.array_equal(call(few), expected), "the layer is as before"
    assert (threading.active_count(), len(__import__("os").listdir("/proc/self/task"))) == threads
    print("interrupted", flush=True)
else:
    print("done", flush=True)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads by /proc")
@pytest.mark.parametrize("kind", ["linear", "mlp", "experts"])
@pytest.mark.parametrize("imports", ["", "import torch"], ids=["numpy alone", "beside torch"])
def test_ctrl_c_ends_a_call_that_would_take_minutes(kind, imports):
    if imports:
        pytest.importorskip("torch")
    # A process group of its own, with SIGINT as a shell gives it to a program in the foreground.
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("{imports}", imports), kind],
        stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.5)
        os.kill(child.pid, signal.SIGINT)
        begun = time.monotonic()
        assert child.stdout.readline() == "interrupted\n"
        assert time.monotonic() - begun < 60
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


HANDLER = """
import signal, sys
import numpy as np
import hammerhead

count = 0
def handle(*_):
    global count
    count += 1
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
matrix = hammerhead.quantize(np.ones((1024, 1024), dtype=np.float32))
layer = hammerhead.Linear.from_arrays(matrix, backend="scalar", threads=1)
for rows in (2**i for i in range(10, 17)):
    x, count = np.ones((rows, 1024), dtype=np.float32), 0
    y = layer(x)
    assert (y == y[0, 0]).all()
    # One signal is handled right after a call, whatever happens during it.
    if count > 3:
        break
signal.setitimer(signal.ITIMER_REAL, 0)
sys.exit(None if count > 3 else "no handler ran during a call")
"""


def test_a_handler_that_does_not_raise_runs_during_a_call_that_goes_on():
    subprocess.run([sys.executable, "-c", HANDLER], check=True, timeout=300)
