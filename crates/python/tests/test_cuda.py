"""The package with tensors on a Hopper GPU: in torch's streams, without copies. Skipped where there is none.

On a GPU machine, with the wheel, torch, numpy and pytest installed: `python -m pytest
crates/python/tests/test_cuda.py`, or without pytest: `python crates/python/tests/test_cuda.py`.
"""

import sys

import numpy as np

import hammerhead
from hammerhead import DualWeights, NvFp4

try:
    import torch
except ImportError:
    torch = None

AVAILABLE = torch is not None and torch.cuda.is_available() and hammerhead.backends()["cuda"] is None
if "pytest" in sys.modules:
    import pytest

    pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no Hopper GPU that torch can use")

ROUNDING = {"float16": 2.0**-9, "bfloat16": 2.0**-6, "float32": 2.0**-16}


def random(*shape, dtype=None):
    return torch.randn(*shape, device="cuda").to(dtype or torch.float32)


def layer(n, k, groups=1):
    """Matrices on the GPU, and their values in float64."""
    pairs = [[hammerhead.quantize(random(n, k) * (1 + which) / k**0.5) for which in range(2)] for _ in range(groups)]
    return pairs, [[matrix.dequantize().double() for matrix in pair] for pair in pairs]


def expect_close(result, x, values):
    """Within the rounding of the result's type, of the largest value; and where products cancel, within that of their
    sums: sixteen of k are added at a time, of up to three parts of a token, in single precision."""
    x = x.dequantize().double() if isinstance(x, NvFp4) else x.double()
    gate, up = (x @ matrix.T for matrix in values)
    gated = torch.nn.functional.silu(gate)
    expected = gated * up
    assert result.is_cuda and result.shape == expected.shape
    rounding = ROUNDING[str(result.dtype).removeprefix("torch.")]
    summed = [3 * x.shape[1] / 16 * 2.0**-24 * (x.abs() @ matrix.abs().T) for matrix in values]
    largest = max(expected.abs().max().item() if expected.numel() else 0.0, 1e-6)
    # The slope of SiLU is at most 1.1.
    allowed = rounding * largest + 1.1 * summed[0] * up.abs() + gated.abs() * summed[1]
    off = (result.double() - expected).abs()
    assert (off <= allowed).all(), (off / allowed).max()


def test_every_type_of_tokens_and_results():
    [(b1, b2)], [values] = layer(256, 512)
    weights = DualWeights.from_arrays(b1, b2)
    assert weights.backends[0].startswith("cuda")
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for rows in (1, 7, 64, 300):
            x = random(rows, 512, dtype=dtype)
            expect_close(weights(x), x, values)
            expect_close(weights(x, dtype="float32"), x, values)
    x = hammerhead.quantize(random(17, 512))
    expect_close(weights(x), x, values)


def test_leading_sides_outputs_and_no_tokens():
    [(b1, b2)], [values] = layer(128, 256)
    weights = DualWeights.from_arrays(b1, b2)
    x, out = random(2, 3, 256, dtype=torch.bfloat16), torch.empty(2, 3, 128, device="cuda", dtype=torch.bfloat16)
    assert weights(x, out=out) is out
    expect_close(out, x, values)
    assert weights(x[:0]).shape == (0, 3, 128)
    strided = random(6, 512, dtype=torch.float16)[:, ::2]
    expect_close(weights(strided), strided, values)


def test_experts_of_uneven_numbers_of_tokens():
    pairs, values = layer(128, 256, groups=4)
    weights = DualWeights.from_arrays([b1 for b1, _ in pairs], [b2 for _, b2 in pairs])
    x, counts = random(40, 256, dtype=torch.bfloat16), [3, 0, 36, 1]
    result = weights.grouped(x, counts)
    for part, tokens, truth in zip(result.split(counts), x.split(counts), values):
        expect_close(part, tokens, truth)


def test_results_of_any_width_follow_each_other_in_one_array():
    for n in (1, 7, 33, 36, 60, 100):
        pairs, values = layer(n, 256, groups=4)
        weights = DualWeights.from_arrays([b1 for b1, _ in pairs], [b2 for _, b2 in pairs])
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            for counts in ([1, 1, 1, 1], [3, 0, 5, 1], [1, 70, 0, 9]):
                x = random(sum(counts), 256, dtype=dtype)
                given = torch.empty(sum(counts), n, device="cuda", dtype=dtype)
                for result in (weights.grouped(x, counts), weights.grouped(x, counts, out=given)):
                    for part, tokens, truth in zip(result.split(counts), x.split(counts), values):
                        expect_close(part, tokens, truth)


def test_results_go_to_any_address_of_the_callers():
    for n in (33, 64):
        pairs, values = layer(n, 256, groups=2)
        weights = DualWeights.from_arrays([b1 for b1, _ in pairs], [b2 for _, b2 in pairs])
        for dtype in (torch.float16, torch.float32):
            x, counts = random(8, 256, dtype=dtype), [3, 5]
            memory = torch.full((8 * n + 2,), 7.0, device="cuda", dtype=dtype)
            out = memory[1:-1].view(8, n)
            assert out.data_ptr() % 16 != 0
            assert weights.grouped(x, counts, out=out) is out
            for part, tokens, truth in zip(out.split(counts), x.split(counts), values):
                expect_close(part, tokens, truth)
            assert memory[0] == 7.0 and memory[-1] == 7.0


def test_work_is_queued_in_the_current_stream():
    [(b1, b2)], [values] = layer(512, 1024)
    weights = DualWeights.from_arrays(b1, b2)
    stream = torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            x = random(33, 1024, dtype=torch.bfloat16)
            result = weights(x)
            copy = result.clone()
        torch.cuda.current_stream().wait_stream(stream)
        expect_close(copy, x, values)


def test_a_call_can_be_captured_in_a_graph():
    [(b1, b2)], [values] = layer(256, 512)
    weights = DualWeights.from_arrays(b1, b2)
    x, out = random(16, 512, dtype=torch.float16), torch.empty(16, 256, device="cuda", dtype=torch.float16)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        weights(x, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        weights(x, out=out)
    x.copy_(random(16, 512, dtype=torch.float16))
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    expect_close(out, x, values)


def test_host_arrays_run_on_the_gpu_too():
    [(b1, b2)], [values] = layer(64, 128)
    weights = DualWeights.from_arrays(b1, b2, backend="cuda")
    x = random(5, 128)
    result = weights(x.cpu().numpy())
    assert isinstance(result, np.ndarray)
    expect_close(torch.from_numpy(result).cuda(), x, values)


def test_what_does_not_fit_together_is_refused():
    [(b1, b2)], _ = layer(64, 128)
    weights = DualWeights.from_arrays(b1, b2)
    on_cpu = DualWeights.from_arrays(b1, b2, backend="scalar")
    x = random(5, 128, dtype=torch.float16)
    for words, call in [
        ("prepacked", lambda: on_cpu(x)),
        ("bring all to one", lambda: weights(x, out=torch.empty(5, 64, dtype=torch.float16))),
        ("shares memory", lambda: weights.grouped([x], out=[x.view(-1)[: 5 * 64].view(5, 64)])),
        ("multiple of 16", lambda: weights(torch.empty(5 * 128 + 1, device="cuda", dtype=torch.float16)[1:].view(5, 128))),
    ]:
        try:
            call()
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"{words}: it was not refused")


if __name__ == "__main__":
    if not AVAILABLE:
        sys.exit(f"no Hopper GPU: {hammerhead.backends()['cuda']}")
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)
