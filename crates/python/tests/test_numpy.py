"""The package with numpy arrays: results, shapes, types, outputs, and the errors users will meet."""

import multiprocessing
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
import reference

import hammerhead
from hammerhead import DualWeights, MxFp4, NvFp4

DTYPES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)]
named = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@named
def test_a_quantised_matrix_is_near_its_source_and_means_what_the_format_says(rng, dtype):
    source = rng.standard_normal((5, 48)).astype(dtype)
    matrix = hammerhead.quantize(source)
    assert (matrix.codes.dtype, matrix.codes.shape, matrix.shape) == (np.uint8, (5, 24), (5, 48))
    assert (matrix.scales.dtype, matrix.scales.shape) == (np.uint8, (5, 3))
    values = source.astype(np.float64)
    assert np.linalg.norm(reference.decode(matrix) - values) < 0.15 * np.linalg.norm(values)
    np.testing.assert_allclose(matrix.dequantize(), reference.decode(matrix), rtol=2**-23)


def test_a_global_scale_can_be_prescribed(rng):
    matrix = hammerhead.quantize(rng.standard_normal((2, 16), dtype=np.float32), global_scale=0.25)
    assert matrix.global_scale == 0.25


def test_a_reciprocal_means_the_divisor_that_it_is_of():
    matrix = NvFp4(np.full((1, 8), 0x77, np.uint8), np.full((1, 1), 0x38, np.uint8), 1 / 61)
    quotient = np.float32(6) / np.float32(61)
    assert quotient != np.float32(6) * np.float32(1 / 61), "this divisor would show nothing"
    assert (matrix.dequantize() == quotient).all()


def of_powers(rng, rows, k, powers):
    """An MXFP4 matrix whose scales are so many powers of two, the largest 1."""
    codes = rng.integers(0, 256, (rows, k // 2), np.uint8)
    return MxFp4(codes, 127 - np.resize(np.arange(powers, dtype=np.uint8), (rows, k // 32)), 2**-6)


@named
def test_mxfp4_weights_are_exact_over_more_powers_of_two_than_nvfp4_has(rng, dtype):
    b1, b2 = (of_powers(rng, 72, 96, 40) for _ in range(2))
    np.testing.assert_array_equal(b1.dequantize(), reference.decode(b1))
    x = rng.standard_normal((5, 96)).astype(dtype)
    reference.expect_close(DualWeights.from_arrays(b1, b2)(x), x, b1, b2)


def test_layers_of_mxfp4_arrays_have_the_bits_of_the_same_weights_in_nvfp4(rng):
    own = [of_powers(rng, *shape, 12) for shape in [(64, 96), (64, 96), (96, 64)]]
    # 2⁰ to 2⁻⁶ are normal in e4m3, those below subnormal.
    e4m3 = np.array([56, 48, 40, 32, 24, 16, 8, 4, 2, 1, 0, 0], np.uint8)
    assert (reference.E4M3[e4m3[:10]] == np.exp2(-np.arange(10.0))).all()
    own = [MxFp4(m.codes, np.maximum(m.scales, 127 - 9), m.global_scale) for m in own]
    widened = [NvFp4(m.codes, np.repeat(e4m3[127 - m.scales], 2, axis=1), m.global_scale) for m in own]
    x = rng.standard_normal((5, 96), dtype=np.float32)
    ids, weights = np.array([[0, 1]] * 5, np.int32), np.full((5, 2), 0.5, np.float32)
    results = []
    for matrices in (own, widened):
        mlp = hammerhead.Mlp.from_arrays(*matrices)
        experts = hammerhead.Experts.from_arrays(*([matrix] * 2 for matrix in matrices))
        linear = hammerhead.Linear.from_arrays(matrices[0])
        results.append([mlp(x), experts(x, ids, weights), linear(x)])
    for one, other in zip(*results):
        np.testing.assert_array_equal(one, other)


def test_what_is_no_mxfp4_matrix_or_not_a_weight_is_refused(rng, matrices):
    matrix = of_powers(rng, 24, 64, 8)
    scales = matrix.scales
    with pytest.raises(ValueError, match=r"shape is \[24, 4\], where codes of \[24, 32\] need \[24, 2\]"):
        MxFp4(matrix.codes, np.repeat(scales, 2, axis=1))
    with pytest.raises(ValueError, match="K is 48, and blocks of 32"):
        MxFp4(matrix.codes[:, :24], scales[:, :1])
    with pytest.raises(TypeError, match="scales: its elements are float8_e4m3fn"):
        MxFp4(matrix.codes, scales.view(ml_dtypes.float8_e4m3fn))
    nan = MxFp4(matrix.codes, np.where(np.arange(24)[:, None] == 5, np.uint8(255), scales))
    with pytest.raises(ValueError, match="row 5, block 0 is NaN"):
        hammerhead.Linear.from_arrays(nan)
    with pytest.raises(TypeError, match="not MxFp4"):
        DualWeights.from_arrays(*matrices(2, 40, 64))(matrix)
    assert MxFp4(matrix.codes, scales.view(ml_dtypes.float8_e8m0fnu)).shape == (24, 64)


@named
def test_tokens_of_every_type_give_results_of_their_type(rng, matrices, dtype):
    b1, b2 = matrices(2, 72, 96)
    x = rng.standard_normal((5, 96)).astype(dtype)
    c = DualWeights.from_arrays(b1, b2)(x)
    assert isinstance(c, np.ndarray) and c.dtype == dtype
    reference.expect_close(c, x, b1, b2)


@named
def test_an_input_scale_multiplies_the_tokens_of_its_group(rng, matrices, dtype):
    b1, b2 = matrices(2, 40, 64)
    scale = np.exp2(rng.uniform(-3, 3, 64)).astype(np.float32)
    x = rng.standard_normal((4, 64)).astype(dtype)
    weights = DualWeights.from_arrays(b1, b2, input_scale=scale)
    assert weights.input_scales == [scale.tolist()]
    product = x.astype(np.float32) * scale
    np.testing.assert_array_equal(weights(x, dtype=np.float32), DualWeights.from_arrays(b1, b2)(product))
    both = DualWeights.from_arrays([b1, b1], [b2, b2], input_scale=[None, scale])
    plain, scaled = both.grouped([x, x], dtype=np.float32)
    reference.expect_close(plain, x, b1, b2)
    reference.expect_close(scaled, product, b1, b2)


def test_what_cannot_be_an_input_scale_or_be_multiplied_with_one_is_refused(matrices):
    b1, b2 = matrices(2, 40, 64)
    for scale, match in [
        (np.ones(63), "63 numbers"),
        (np.full(64, np.inf), "inf"),
        (np.ones((1, 64)), "one dimension"),
    ]:
        with pytest.raises(ValueError, match=match):
            DualWeights.from_arrays(b1, b2, input_scale=scale)
    with pytest.raises(ValueError, match="one or None for each"):
        DualWeights.from_arrays([b1, b1], [b2, b2], input_scale=[None])
    with pytest.raises(ValueError, match="NVFP4"):
        DualWeights.from_arrays(b1, b2, input_scale=np.ones(64))(b1)


@pytest.mark.parametrize("gate", ["silu", "gelu-tanh", "gpt-oss", "none"])
def test_every_gate_agrees_with_its_definition(rng, matrices, gate):
    b1, b2 = matrices(2, 40, 64)
    x = 3 * rng.standard_normal((4, 64), dtype=np.float32)
    up = None if gate == "none" else b2
    reference.expect_close(hammerhead.dual_gemm(x, b1, up, gate=gate), x, b1, up, gate)


@pytest.mark.parametrize("backend", [name for name, missing in hammerhead.backends().items() if not missing])
def test_every_backend_of_this_machine_can_be_asked_for(rng, matrices, backend):
    b1, b2 = matrices(2, 40, 64)
    x = rng.standard_normal((4, 64), dtype=np.float32)
    weights = DualWeights.from_arrays(b1, b2, backend=backend)
    assert weights.backends == [backend]
    reference.expect_close(weights(x), x, b1, b2)


def test_quantised_tokens_give_half_precision_unless_asked_otherwise(rng, matrices):
    b1, b2, a = *matrices(2, 40, 64), *matrices(1, 3, 64)
    weights = DualWeights.from_arrays(b1, b2)
    assert weights(a).dtype == np.float16
    reference.expect_close(weights(a, dtype="f32"), a, b1, b2)


@pytest.mark.parametrize("asked", ["bf16", "bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_an_output_type_can_be_asked_for_by_name_or_dtype(rng, matrices, asked):
    b1, b2 = matrices(2, 16, 32)
    x = rng.standard_normal((2, 32), dtype=np.float32)
    c = hammerhead.dual_gemm(x, b1, b2, dtype=asked)
    assert c.dtype == ml_dtypes.bfloat16
    reference.expect_close(c, x, b1, b2)


def test_all_sides_of_the_tokens_but_the_last_are_kept(rng, matrices):
    weights = DualWeights.from_arrays(*matrices(2, 24, 32))
    x = rng.standard_normal((2, 3, 4, 32), dtype=np.float32)
    c = weights(x)
    assert c.shape == (2, 3, 4, 24)
    assert np.array_equal(c.reshape(24, 24), weights(x.reshape(24, 32)))
    assert weights(x[1, 2, 3]).shape == (24,)
    assert weights(x[:0]).shape == (0, 3, 4, 24)


def test_tokens_may_lie_in_memory_in_any_way(rng, matrices):
    b1, b2 = matrices(2, 24, 32)
    weights = DualWeights.from_arrays(b1, b2)
    x = rng.standard_normal((6, 32), dtype=np.float32)
    read_only = x.copy()
    read_only.flags.writeable = False
    unaligned = np.frombuffer(b"\0" + x.tobytes(), dtype=np.float32, offset=1).reshape(x.shape)
    wide = np.zeros((12, 64), dtype=np.float32)
    wide[::2, ::2] = x
    for view in (np.asfortranarray(x), x[::-1].copy()[::-1], wide[::2, ::2], read_only, unaligned):
        assert np.array_equal(weights(view), weights(x))


def test_weights_may_be_float8_views_and_read_only(matrices):
    b1, b2 = matrices(2, 24, 32)
    x = np.ones((1, 32), dtype=np.float32)
    typed = [NvFp4(m.codes, m.scales.view(ml_dtypes.float8_e4m3fn), m.global_scale) for m in (b1, b2)]
    typed[0].codes.flags.writeable = False
    assert np.array_equal(hammerhead.dual_gemm(x, *typed), hammerhead.dual_gemm(x, b1, b2))


@named
def test_results_go_where_the_caller_wants_them(rng, matrices, dtype):
    weights = DualWeights.from_arrays(*matrices(2, 24, 32))
    x = rng.standard_normal((2, 3, 32), dtype=np.float32)
    out = np.zeros((2, 3, 24), dtype=dtype)
    assert weights(x, out=out) is out
    assert np.array_equal(out, weights(x, dtype=dtype))


def test_ragged_groups_are_computed_together(rng, matrices):
    firsts = [*matrices(2, 40, 64), *matrices(1, 24, 32)]
    seconds = [*matrices(2, 40, 64), *matrices(1, 24, 32)]
    x = [rng.standard_normal((m, k), dtype=np.float32) for m, k in ((5, 64), (0, 64), (17, 32))]
    results = hammerhead.grouped(x, firsts, seconds)
    for c, a, b1, b2 in zip(results, x, firsts, seconds):
        reference.expect_close(c, a, b1, b2)
    out = [np.empty_like(c) for c in results]
    returned = hammerhead.grouped(x, firsts, seconds, out=out)
    assert all(one is other and np.array_equal(one, c) for one, other, c in zip(returned, out, results))


def test_tokens_sorted_by_expert_are_cut_by_counts(rng, matrices):
    weights = DualWeights.from_arrays(matrices(3, 40, 64), matrices(3, 40, 64))
    x = rng.standard_normal((9, 64), dtype=np.float32)
    expected = np.concatenate(weights.grouped([x[:4], x[4:4], x[4:]]))
    out = np.empty((9, 40), dtype=np.float32)
    assert np.array_equal(weights.grouped(x, np.array([4, 0, 5])), expected)
    assert weights.grouped(x, [4, 0, 5], out=out) is out and np.array_equal(out, expected)
    for counts in ([4, 5], [4, 0, 4], [-1, 5, 5], []):
        with pytest.raises(ValueError, match="counts"):
            weights.grouped(x, counts)


def test_one_configuration_gives_the_same_bits_on_any_number_of_threads(rng, matrices):
    b1, b2 = matrices(2, 200, 256)
    x = rng.standard_normal((33, 256), dtype=np.float32)
    options = {"config": "strategy=interleaved,tile=16x16,depth=64", "backend": "scalar"}
    one, three = (hammerhead.dual_gemm(x, b1, b2, threads=count, **options) for count in (1, 3))
    assert np.array_equal(one, three)
    assert DualWeights.from_arrays(b1, b2, threads=3).threads == 3


def test_weights_tell_about_themselves(matrices):
    weights = DualWeights.from_arrays(*matrices(2, 32, 64), gate="gelu-tanh")
    assert (weights.shapes, weights.gate) == ([(32, 64)], "gelu-tanh")
    assert weights.checkpoint_bytes == 2 * 32 * (32 + 4) == weights.packed_bytes
    assert "gelu-tanh" in repr(weights) and "n=32, k=64" in repr(weights)


def test_rounding_to_fp8_is_asked_for_aloud_and_refused_by_processors(rng, matrices):
    weights = DualWeights.from_arrays(*matrices(2, 32, 64), backend="scalar")
    rounded = weights.with_precision("fp8")
    assert (weights.precision, rounded.precision) == ("exact", "fp8")
    with pytest.raises(ValueError, match="ask for exact"):
        rounded(rng.standard_normal((3, 64)).astype(np.float32))
    with pytest.raises(ValueError, match="exact, fp8"):
        weights.with_precision("fp7")


def test_the_environment_can_force_a_backend(monkeypatch, matrices):
    monkeypatch.setenv("HAMMERHEAD_BACKEND", "scalar")
    assert DualWeights.from_arrays(*matrices(2, 16, 16)).backends == ["scalar"]


def test_python_runs_on_while_a_call_computes(rng, matrices):
    weights = DualWeights.from_arrays(*matrices(2, 512, 512), backend="scalar", threads=1)
    x = rng.standard_normal((256, 512), dtype=np.float32)
    go, ran = threading.Event(), []
    other = threading.Thread(target=lambda: (go.wait(), ran.append(True)))
    interval = sys.getswitchinterval()
    # From here on the other thread runs only if this one lets go of Python's lock of its own accord.
    sys.setswitchinterval(60)
    try:
        other.start()
        go.set()
        weights(x)
        assert ran
    finally:
        sys.setswitchinterval(interval)
        other.join()


def test_a_forked_process_computes_too(matrices):
    weights = DualWeights.from_arrays(*matrices(2, 32, 64), threads=2)
    x = np.ones((40, 64), dtype=np.float32)
    expected = weights(x)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(weights(x)))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert np.array_equal(queue.get(), expected)


def broken(matrix, **changes):
    return NvFp4(**{"codes": matrix.codes, "scales": matrix.scales, "global_scale": matrix.global_scale} | changes)


def test_a_matrix_is_checked_when_it_is_made(matrices):
    [matrix] = matrices(1, 24, 32)
    for kind, match, changes in [
        (TypeError, "codes: a numpy array or a torch tensor is expected, not list", {"codes": matrix.codes.tolist()}),
        (TypeError, "scales: .* not NoneType", {"scales": None}),
        (TypeError, "codes: its elements are int8", {"codes": matrix.codes.view(np.int8)}),
        (TypeError, "scales: its elements are float32", {"scales": matrix.scales.astype(np.float32)}),
        (TypeError, "global_scale: one number", {"global_scale": np.ones(3, np.float32)}),
        (TypeError, "global_scale: one number", {"global_scale": None}),
        (ValueError, r"codes: their shape is \[384\], where \[rows, K/2\]", {"codes": matrix.codes.reshape(-1)}),
        (ValueError, "K is 8, and blocks of 16", {"codes": matrix.codes[:, :4], "scales": matrix.scales[:, :0]}),
        (ValueError, "K is 0, and blocks of 16", {"codes": matrix.codes[:, :0], "scales": matrix.scales[:, :0]}),
        (ValueError, r"codes of \[24, 16\] need \[24, 2\]", {"scales": matrix.scales[:, :1]}),
        (ValueError, r"shape is \[24, 4\], where codes of \[24, 16\] need \[24, 2\]", {"scales": np.tile(matrix.scales, 2)}),
        (ValueError, "global_scale: it is inf", {"global_scale": np.inf}),
        (ValueError, "global_scale: it is nan", {"global_scale": np.nan}),
        (ValueError, "finite in float32", {"global_scale": 1e39}),
        (ValueError, "finite in float32", {"global_scale": 2.0**128 - 2.0**103}),
    ]:
        with pytest.raises(kind, match=match):
            broken(matrix, **changes)
    assert broken(matrix, global_scale=np.float32(0.5)).global_scale == 0.5
    for scale in (0.0, -1.0, float(np.finfo(np.float32).max)):
        assert broken(matrix, global_scale=scale).global_scale == scale


def test_wrong_values_are_value_errors_that_say_what_to_do(rng, matrices):
    b1, b2 = matrices(2, 24, 32)
    weights = DualWeights.from_arrays(b1, b2)
    x = rng.standard_normal((2, 32), dtype=np.float32)
    infinite = x.copy()
    infinite[1, 3] = np.inf
    nan_scale = b1.scales.copy()
    nan_scale[5, 1] = 0x7F
    out = np.zeros((2, 24), dtype=np.float32)
    frozen = out.copy()
    frozen.flags.writeable = False
    sheet = np.zeros(64 + 24 * 2, dtype=np.float32)
    shared, over = sheet[:64].reshape(2, 32), sheet[40:88].reshape(2, 24)
    for match, call in {
        "k of the activations": lambda: weights(x[:, :16]),
        "shape is": lambda: weights(np.array(1, dtype=np.float32)),
        "row 5, block 1 is NaN": lambda: DualWeights.from_arrays(broken(b1, scales=nan_scale), b2),
        "they must be alike": lambda: DualWeights.from_arrays(b1, *matrices(1, 25, 32)),
        "b2": lambda: DualWeights.from_arrays([b1, b1], [b2]),
        "joins two": lambda: DualWeights.from_arrays(b1),
        "because the gate is 'none'": lambda: DualWeights.from_arrays(b1, b2, gate="none"),
        "no groups": lambda: DualWeights.from_arrays([], []),
        "unknown gate 'swish'": lambda: DualWeights.from_arrays(b1, b2, gate="swish"),
        "clamp": lambda: DualWeights.from_arrays(b1, b2, gate="gelu-tanh", clamp=7.0),
        "positive, finite": lambda: DualWeights.from_arrays(b1, b2, gate="gpt-oss", clamp=-1.0),
        "unknown backend 'quantum'": lambda: DualWeights.from_arrays(b1, b2, backend="quantum"),
        "0 threads": lambda: DualWeights.from_arrays(b1, b2, threads=0),
        "-1 is not a number of threads": lambda: DualWeights.from_arrays(b1, b2, threads=-1),
        "colour=red": lambda: DualWeights.from_arrays(b1, b2, config="colour=red"),
        "out: its shape": lambda: weights(x, out=out[:1]),
        "read-only": lambda: weights(x, out=frozen),
        "row by row": lambda: weights(x, out=np.zeros((2, 48), dtype=np.float32)[:, ::2]),
        "dtype asks for float16": lambda: weights(x, dtype=np.float16, out=out),
        "shares memory": lambda: weights(shared, out=over),
        "2 groups": lambda: DualWeights.from_arrays([b1, b1], [b2, b2])(x),
        "tokens for 2 groups": lambda: weights.grouped([x, x]),
        r"\[rows, K\]": lambda: hammerhead.quantize(x[0]),
        "K is 24": lambda: hammerhead.quantize(np.ones((1, 24), dtype=np.float32)),
        "row 1, column 3": lambda: hammerhead.quantize(infinite),
        "above zero": lambda: hammerhead.quantize(x, global_scale=-1.0),
    }.items():
        with pytest.raises(ValueError, match=match):
            call()


def test_two_outputs_may_not_share_memory(matrices):
    weights = DualWeights.from_arrays(matrices(2, 24, 32), matrices(2, 24, 32))
    x, out = np.ones((2, 32), dtype=np.float32), np.zeros((2, 24), dtype=np.float32)
    with pytest.raises(ValueError, match="the output of group 1: it shares memory with the output of group 0"):
        weights.grouped([x, x], out=[out, out])
    assert np.array_equal(*weights.grouped([x, x])) is False, "tokens may well be shared"


def test_wrong_types_are_type_errors_that_name_the_argument(rng, matrices):
    b1, b2 = matrices(2, 24, 32)
    weights = DualWeights.from_arrays(b1, b2)
    x = rng.standard_normal((2, 32), dtype=np.float32)
    for match, call in {
        "x: .* not list": lambda: weights([[1.0] * 32]),
        "x: its elements are float64": lambda: weights(x.astype(np.float64)),
        "other byte order": lambda: weights(x.astype(">f4")),
        "results can be": lambda: weights(x, dtype=np.int32),
        "out: its elements are float64": lambda: weights(x, out=np.zeros((2, 24))),
        "quantize\\(\\) makes one": lambda: DualWeights.from_arrays([x], [x]),
        "from_arrays": DualWeights,
        "one array a group": lambda: weights.grouped(x),
        "the array to quantise": lambda: hammerhead.quantize([[1.0] * 16]),
    }.items():
        with pytest.raises(TypeError, match=match):
            call()


def test_a_backend_that_is_not_here_is_a_runtime_error_with_a_remedy(matrices):
    missing = {name: reason for name, reason in hammerhead.backends().items() if reason}
    assert "scalar" not in missing
    for name in missing:
        with pytest.raises(RuntimeError, match=f"backend '{name}' is not available"):
            DualWeights.from_arrays(*matrices(2, 16, 16), backend=name)
