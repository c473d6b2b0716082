"""NaN and infinity in tokens, logits and weights: their row's results are what torch's arithmetic makes of them, and no
other row knows."""

import numpy as np
import pytest
import reference

import hammerhead
from hammerhead import DualWeights, Experts, Linear, Mlp

torch = pytest.importorskip("torch")

BACKENDS = [name for name in ("amx", "avx512", "avx2", "scalar") if hammerhead.backends().get(name, "missing") is None]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
# Rows that fill no tile, columns that fill no panel, and a K that fills no chunk.
ROWS, N, K, E = 21, 40, 80, 3
SPOILT = {2: {7: np.nan}, 5: {0: np.inf}, 11: {K - 1: -np.inf}, 12: {3: np.inf, 4: -np.inf}, 20: {1: np.inf, 79: np.nan}}
"""Numbers by row and column."""

on_every_backend = pytest.mark.parametrize("backend", BACKENDS)
of_every_type = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture
def whole(rng):
    return torch.from_numpy(rng.standard_normal((ROWS, K), dtype=np.float32))


def spoil(x):
    x = x.clone()
    for row, numbers in SPOILT.items():
        for column, number in numbers.items():
            x[row, column] = number
    return x


def decoded(matrix):
    return torch.from_numpy(reference.decode(matrix)).double()


def kinds(y):
    """Of every number whether it is NaN, infinite and how, or finite."""
    y = torch.as_tensor(y).double()
    return torch.where(y.isnan(), 2.0, torch.where(y.isinf(), y.sign(), 0.0))


def expect(found, without, expected):
    """Rows that are whole have the bits that they have without the others' numbers; the others are of torch's kinds."""
    rows = torch.tensor([row not in SPOILT for row in range(ROWS)])
    assert torch.equal(found[rows], without[rows])
    assert torch.equal(kinds(found[~rows]), kinds(expected[~rows]))
    assert not kinds(found[~rows]).eq(0).any(), "none of these sums is finite"


@on_every_backend
@of_every_type
def test_a_linear_layer(matrices, whole, backend, dtype):
    [weight] = matrices(1, N, K)
    bias = np.linspace(-1, 1, N, dtype=np.float32)
    layer, x = Linear.from_arrays(weight, bias=bias, backend=backend), whole.to(dtype)
    expected = spoil(x).double() @ decoded(weight).T + torch.from_numpy(bias)
    expect(layer(spoil(x)), layer(x), expected)
    assert torch.equal(kinds(layer(spoil(x)[5])), kinds(expected[5])), "alone"


TORCH_GATES = {
    "silu": lambda g, u: torch.nn.functional.silu(g) * u,
    "gelu-tanh": lambda g, u: torch.nn.functional.gelu(g, approximate="tanh") * u,
    "gpt-oss": lambda g, u: g.clamp(max=7) * torch.sigmoid(1.702 * g.clamp(max=7)) * (u.clamp(-7, 7) + 1),
}


@on_every_backend
@of_every_type
@pytest.mark.parametrize("gate", TORCH_GATES)
def test_gated_weights(matrices, whole, backend, dtype, gate):
    b1, b2 = matrices(2, N, K)
    x = whole.to(dtype)
    g, u = (spoil(x).double() @ decoded(matrix).T for matrix in (b1, b2))
    for config in (None, "strategy=two-pass", "strategy=sequential", "strategy=interleaved", "strategy=ping-pong"):
        weights = DualWeights.from_arrays(b1, b2, gate=gate, backend=backend, config=config)
        found, expected = weights(spoil(x)), TORCH_GATES[gate](g, u)
        rows = torch.tensor([row not in SPOILT for row in range(ROWS)])
        assert torch.equal(found[rows], weights(x)[rows])
        # A gate may bring an infinite number back: the limits of gpt-oss do.
        assert torch.equal(kinds(found[~rows]), kinds(expected[~rows]))


@on_every_backend
@of_every_type
@pytest.mark.parametrize("options", [{}, {"intermediate": "f32"}, {"batch_invariant": True}, {"intermediate": "nvfp4"}], ids=str)
def test_an_mlp(matrices, whole, backend, dtype, options):
    (b1, b2), [down] = matrices(2, 48, K), matrices(1, N, 48)
    layer, x = Mlp.from_arrays(b1, b2, down, backend=backend, **options), whole.to(dtype)
    g, u = (spoil(x).double() @ decoded(matrix).T for matrix in (b1, b2))
    between = torch.nn.functional.silu(g) * u
    if options.get("intermediate") == "nvfp4":
        # Quantising a block takes its largest magnitude, and there is no scale for that.
        between = torch.where(between.isfinite().all(1, keepdim=True), between, torch.nan)
    expect(layer(spoil(x)), layer(x), between @ decoded(down).T)


@on_every_backend
@of_every_type
@pytest.mark.parametrize("options", [{}, {"batch_invariant": True}], ids=str)
def test_experts(matrices, whole, backend, dtype, options):
    first, second, down = matrices(E, 48, K), matrices(E, 48, K), matrices(E, K, 48)
    layer = Experts.from_arrays(first, second, down, backend=backend, routing="softmax-renorm", top_k=2, **options)
    x, logits = whole.to(dtype), whole[:, :E].contiguous()
    found, without = layer(spoil(x), logits), layer(x, logits)
    rows = torch.tensor([row not in SPOILT for row in range(ROWS)])
    assert torch.equal(found[rows], without[rows]) and found[~rows].isnan().all()


@of_every_type
def test_an_input_scale_is_multiplied_first(matrices, whole, dtype):
    [weight] = matrices(1, N, K)
    scale = np.linspace(-2, 2, K, dtype=np.float32)
    layer, x = Linear.from_arrays(weight, input_scale=scale), whole.to(dtype)
    expect(layer(spoil(x)), layer(x), (spoil(x).double() * torch.from_numpy(scale)) @ decoded(weight).T)


def test_what_is_beyond_its_type_is_infinite_as_elsewhere(matrices):
    (b1, b2), [down] = matrices(2, 48, K), matrices(1, N, 48)
    large = torch.full((2, K), 6e4, dtype=torch.float16)
    large[1] = 0.5
    layer = Mlp.from_arrays(b1, b2, down)
    assert not layer(large)[0].isfinite().any() and torch.equal(layer(large)[1], layer(large[1]))
    scaled = DualWeights.from_arrays(b1, b2, input_scale=np.full(K, 1e30))
    assert not scaled(torch.full((1, K), 1e30)).isfinite().any()


@pytest.mark.parametrize("routing", ["softmax", "softmax-renorm", "topk-softmax", "sigmoid", "sigmoid-plain", "sigmoid-input", "sqrt-softplus"])
def test_logits(matrices, whole, routing):
    # A token without experts changes how many rows the others' experts have, and with that the plan.
    layer = Experts.from_arrays(
        *(matrices(E, *shape) for shape in ((48, K), (48, K), (K, 48))), routing=routing, top_k=2, batch_invariant=True
    )
    logits = whole[:, :E].contiguous()
    spoilt, masked = logits.clone(), logits.clone()
    spoilt[3, 1] = torch.nan
    found, without = layer(whole, spoilt), layer(whole, logits)
    assert found[3].isnan().all() and torch.equal(found[:3], without[:3]) and torch.equal(found[4:], without[4:])
    masked[:, 1] = -torch.inf
    chosen = layer(whole, masked)
    assert chosen.isfinite().all(), "an expert with a logit of -inf is one that is masked"


def test_weights_of_experts(matrices, whole):
    layer = Experts.from_arrays(*(matrices(E, *shape) for shape in ((48, K), (48, K), (K, 48))))
    ids, weights = torch.tensor([[0, 2]] * ROWS), torch.full((ROWS, 2), 0.5)
    spoilt = weights.clone()
    spoilt[4, 1], spoilt[6, 0] = torch.nan, torch.inf
    for options in ({}, {"weights_on_input": True}):
        found, without = layer(whole, ids, spoilt, **options), layer(whole, ids, weights, **options)
        assert found[4].isnan().all() and not found[6].isfinite().any()
        rows = [row for row in range(ROWS) if row not in (4, 6)]
        assert torch.equal(found[rows], without[rows])


def test_arrays_of_numpy(matrices, whole):
    [weight] = matrices(1, N, K)
    layer = Linear.from_arrays(weight)
    found, without = layer(spoil(whole).numpy()), layer(whole.numpy())
    assert np.isnan(found[2]).all() and np.array_equal(found[3], without[3])
