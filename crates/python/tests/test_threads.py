"""Whose threads compute, and how many: torch's number counts, affinity counts, and forked children work."""

import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest

import hammerhead
from hammerhead import DualWeights

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def restored():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    hammerhead.use_threads("auto")


@pytest.fixture
def weights(matrices):
    return DualWeights.from_arrays(*matrices(2, 128, 96))


def tokens(rows=5):
    return torch.linspace(-1, 1, rows * 96).reshape(rows, 96)


def test_torchs_number_of_threads_is_ours(weights):
    for count in (1, 2):
        torch.set_num_threads(count)
        assert weights.threads == min(count, len(os.sched_getaffinity(0)))


def test_a_layers_own_number_comes_first(matrices):
    torch.set_num_threads(1)
    assert DualWeights.from_arrays(*matrices(2, 128, 96), threads=3).threads == 3


def test_an_affinity_mask_limits_us(weights):
    allowed = os.sched_getaffinity(0)
    torch.set_num_threads(64)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert weights.threads == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert weights.threads == min(64, len(allowed))


@pytest.mark.parametrize("whose", ["own", "openmp"])
def test_both_kinds_of_threads_compute_alike(matrices, whose):
    # With a configuration of the caller's, bits do not depend on threads.
    options = {"backend": "scalar", "config": "strategy=interleaved,tile=16x32,depth=64"}
    expected = DualWeights.from_arrays(*(pair := matrices(2, 128, 96)), threads=1, **options)(tokens(70))
    hammerhead.use_threads(whose)
    assert torch.equal(DualWeights.from_arrays(*pair, threads=3, **options)(tokens(70)), expected)


def test_results_stay_where_the_host_flushes_denormals(weights):
    expected = weights(tokens())
    torch.set_flush_denormal(True)
    try:
        hammerhead.use_threads("openmp")
        assert torch.equal(weights(tokens()), expected)
        tiny = torch.full((2,), 1e-40)
        assert (tiny * 0.5 == 0).all(), "the caller's mode comes back"
    finally:
        torch.set_flush_denormal(False)


def test_an_unknown_choice_is_refused():
    with pytest.raises(ValueError, match="'auto', 'own' or 'openmp'"):
        hammerhead.use_threads("theirs")


def test_without_an_openmp_runtime_joining_is_refused():
    code = "import hammerhead\ntry:\n hammerhead.use_threads('openmp')\nexcept ValueError as error:\n print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "no OpenMP runtime" in done.stdout


def child(weights, queue):
    queue.put(weights(tokens()).numpy().tobytes())


@pytest.mark.parametrize("whose", ["own", "openmp"])
def test_a_forked_child_computes(weights, whose):
    hammerhead.use_threads(whose)
    torch.set_num_threads(2)
    expected = weights(tokens()).numpy().tobytes()
    queue = multiprocessing.get_context("fork").SimpleQueue()
    process = multiprocessing.get_context("fork").Process(target=child, args=(weights, queue))
    process.start()
    process.join(60)
    assert process.exitcode == 0, "the child hangs or has died"
    assert queue.get() == expected
    assert weights(tokens()).numpy().tobytes() == expected, "the parent goes on"


def spawned(queue):
    weights = hammerhead.quantize(np.ones((32, 64), dtype=np.float32))
    queue.put(float(hammerhead.dual_gemm(torch.ones(1, 64), weights, gate="none")[0, 0]))


def test_a_spawned_child_computes():
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=spawned, args=(queue,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert queue.get() == 64.0
