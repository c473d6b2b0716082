"""FP8 linear layers, held against float64 products of weights that torch and ml_dtypes expand."""

import pickle

import numpy
import pytest

import hammerhead
from hammerhead import Fp8Linear

ml_dtypes = pytest.importorskip("ml_dtypes")
BACKENDS = [name for name, missing in hammerhead.backends().items() if missing is None and name in ("amx", "avx512", "avx2", "scalar", "cuda")]
RNG = numpy.random.default_rng(5)


def weight(n, k):
    """Every number of e4m3 but NaN."""
    codes = RNG.integers(0, 256, (n, k), dtype=numpy.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    return codes.view(ml_dtypes.float8_e4m3fn)


def expansion(scale, n, k):
    """The scale of every element, in float64, by the formats' definitions."""
    if isinstance(scale, float):
        return numpy.full((n, k), numpy.float64(numpy.float32(scale)))
    if scale.dtype == numpy.uint8:
        return numpy.exp2(scale.astype(numpy.float64) - 127).repeat(32, 1)
    scale = scale.astype(numpy.float64).reshape(n, -1) if scale.ndim == 1 else scale.astype(numpy.float64)
    if scale.shape[1] == 1 and len(scale) == n:
        return numpy.broadcast_to(scale, (n, k))
    return scale.repeat(128, 0)[:n].repeat(128, 1)[:, :k]


SCALES = {
    "one": lambda n, k: 0.37,
    "one per row": lambda n, k: RNG.standard_normal(n, dtype=numpy.float32),
    "one per row, as a column": lambda n, k: RNG.standard_normal((n, 1), dtype=numpy.float32),
    "one per block": lambda n, k: RNG.random((-(-n // 128), -(-k // 128)), dtype=numpy.float32),
    "exponents": lambda n, k: RNG.integers(100, 130, (n, k // 32), dtype=numpy.uint8),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("shape", [(1, 576, 320), (23, 136, 256)])
def test_a_product_is_that_of_the_expanded_weight(backend, kind, shape):
    m, n, k = shape
    codes, scale = weight(n, k), SCALES[kind](n, k)
    x, bias = RNG.standard_normal((m, k), dtype=numpy.float32), RNG.standard_normal(n, dtype=numpy.float32)
    whole = codes.astype(numpy.float64) * expansion(scale, n, k)
    layer = Fp8Linear.from_arrays(codes, scale, bias=bias, backend=backend)
    assert (layer.in_features, layer.out_features) == (k, n)
    exact, magnitude = x @ whole.T + bias, numpy.abs(x) @ numpy.abs(whole).T + numpy.abs(bias)
    assert (numpy.abs(layer(x) - exact) <= k * 2.0**-24 * magnitude).all()
    narrow = x.astype(ml_dtypes.bfloat16)
    exact = narrow.astype(numpy.float64) @ whole.T + bias
    error = numpy.abs(layer(narrow, dtype="f32") - exact)
    assert (error <= k * 2.0**-24 * magnitude).all(), "tokens are not rounded"
    assert layer(narrow).dtype == ml_dtypes.bfloat16


def test_numbers_are_those_of_torch_and_of_ml_dtypes():
    torch = pytest.importorskip("torch")
    codes = torch.arange(256, dtype=torch.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    codes = codes.repeat(16, 1).T.contiguous()
    theirs = codes.view(torch.float8_e4m3fn)
    exponents = torch.full((256, 1), 120, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    for backend in BACKENDS:
        found = Fp8Linear.from_arrays(theirs, torch.tensor(1.0), backend=backend)(torch.eye(16))
        assert torch.equal(found, theirs.float().T)
        assert numpy.array_equal(found.numpy().T, codes.numpy().view(ml_dtypes.float8_e4m3fn).astype(numpy.float32))
        wide = torch.cat([codes, codes], 1).view(torch.float8_e4m3fn)
        found = Fp8Linear.from_arrays(wide, exponents, backend=backend)(torch.eye(32))
        assert torch.equal(found, (wide.float() * exponents.float()).T)


def test_usual_blocks_come_first_and_others_divide_and_are_the_only_ones():
    from hammerhead._fp8 import block_side

    sides = {(576, 5): 128, (48, 2): 32, (512, 8): 64, (100, 1): 128, (200, 1): 200, (1536, 32): 48}
    refused = dict.fromkeys([(100, 3), (96, 2)])
    assert {asked: block_side(*asked) for asked in (*sides, *refused)} == {**sides, **refused}


def test_blocks_of_other_sides_are_said_or_divide():
    codes, scale = weight(96, 256), RNG.random((3, 4), dtype=numpy.float32)
    x = RNG.standard_normal((4, 256), dtype=numpy.float32)
    for options, (high, wide) in (({}, (32, 64)), ({"block": (32, 64)}, (32, 64)), ({"block": (40, 64)}, (40, 64))):
        whole = codes.astype(numpy.float64) * scale.repeat(high, 0)[:96].repeat(wide, 1)
        found = Fp8Linear.from_arrays(codes, scale, **options)(x)
        assert (numpy.abs(found - x @ whole.T) <= 256 * 2.0**-24 * (numpy.abs(x) @ numpy.abs(whole).T)).all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w, s: (w, s[:-1]), r"scale: its shape is \[63\], which does not scale a weight of shape \[64, 64\]"),
        (lambda w, s: (w[:, :56], s), "K is 56, but a quantised row is made of blocks of 16"),
        (lambda w, s: (w, numpy.float32([numpy.inf]).repeat(64)), "scale 0 of an FP8 matrix is inf"),
        (lambda w, s: (w, numpy.full((64, 2), 255, numpy.uint8)), "scale 0 of an FP8 matrix is NaN"),
        (lambda w, s: (w, numpy.full((64, 3), 127, numpy.uint8)), r"MXFP8 of \[64, 64\] needs \[n, k/32\]"),
        (lambda w, s: (w, numpy.tile(numpy.uint8([60, 200]), (64, 1))), "span 140 powers of two, and 56 can be"),
        (lambda w, s: (w, numpy.ones((8, 4), numpy.float32)), "blocks of 8 rows and 16 columns share an FP8 scale"),
    ],
)
def test_what_does_not_fit_is_said(change, sentence):
    given, scale = change(weight(64, 64), numpy.ones(64, numpy.float32))
    with pytest.raises(ValueError, match=sentence):
        Fp8Linear.from_arrays(given, scale)


def test_a_nan_is_named_by_its_place():
    codes = weight(3, 32)
    codes.view(numpy.uint8)[2, 5] = 0x7F
    with pytest.raises(ValueError, match=r"row 2, column 5 is NaN \(byte 0x7f\)"):
        Fp8Linear.from_arrays(codes, 1.0)


def test_tokens_of_another_width_are_refused():
    layer = Fp8Linear.from_arrays(weight(32, 64), 1.0)
    with pytest.raises(ValueError, match="the activations' k is 32 but 64 was expected"):
        layer(numpy.ones((1, 32), numpy.float32))


@pytest.mark.parametrize("kind", SCALES)
def test_a_pickled_layer_computes_the_same_bits(kind):
    n, k = 200, 288
    codes = weight(n, k)
    codes.view(numpy.uint8)[3, 32:64] = 0
    layer = Fp8Linear.from_arrays(codes, SCALES[kind](n, k), bias=RNG.standard_normal(n, dtype=numpy.float32), threads=1)
    again = pickle.loads(pickle.dumps(layer))
    x = RNG.standard_normal((3, k), dtype=numpy.float32)
    assert numpy.array_equal(again(x), layer(x)) and again.threads == 1


def test_packed_weights_take_the_bytes_of_the_file():
    layer = Fp8Linear.from_arrays(weight(256, 512), numpy.ones(256, numpy.float32))
    assert 256 * 512 <= layer.packed_bytes <= 1.03 * 256 * 512


@pytest.mark.skipif("cuda" not in BACKENDS, reason="no GPU that this package can use")
@pytest.mark.parametrize("kind", SCALES)
def test_tensors_on_a_gpu_are_computed_there_and_in_a_graph(kind):
    torch = pytest.importorskip("torch")
    n, k = 200, 288
    codes, scale = weight(n, k), SCALES[kind](n, k)
    whole = torch.from_numpy(codes.astype(numpy.float64) * expansion(scale, n, k)).cuda()
    given = torch.from_numpy(codes.view(numpy.uint8)).cuda()
    scale = scale if isinstance(scale, float) else torch.from_numpy(scale).cuda()
    layer = Fp8Linear.from_arrays(given, scale)
    assert layer.backends == ["cuda"] and layer.packed_bytes < 1.5 * n * k
    x = torch.randn(3, 5, k, device="cuda")
    out = torch.full((3, 5, n), torch.nan, device="cuda")
    assert layer(x, out=out) is out

    def check():
        magnitude = x.double().abs() @ whole.abs().T
        assert ((out - x.double() @ whole.T).abs() <= k * 2.0**-24 * magnitude).all()

    check()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(x, out=out)
    x.normal_()
    out.fill_(torch.nan)
    graph.replay()
    check()
    assert layer(x.half()).dtype == torch.float16
    again = pickle.loads(pickle.dumps(layer))
    assert torch.equal(again(x), layer(x))
    with pytest.raises((ValueError, RuntimeError), match="GPU's memory"):
        Fp8Linear.from_arrays(codes, 1.0, backend="cpu")(torch.ones(1, k, device="cuda"))
