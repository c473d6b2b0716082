"""The package with torch tensors on the CPU: the same results, without copies, and torch's own ways of being odd."""

from types import SimpleNamespace

import numpy as np
import pytest
import reference

import hammerhead
from hammerhead import DualWeights, NvFp4
from hammerhead._arrays import Torch

torch = pytest.importorskip("torch")
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.fixture
def layer(matrices):
    return matrices(2, 72, 96)


def as_torch(matrix):
    return NvFp4(torch.from_numpy(matrix.codes), torch.from_numpy(matrix.scales), matrix.global_scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_type_give_tensors_of_their_type(rng, layer, dtype):
    x = torch.from_numpy(rng.standard_normal((5, 96), dtype=np.float32)).to(dtype)
    c = DualWeights.from_arrays(*layer)(x)
    assert isinstance(c, torch.Tensor) and c.dtype == dtype
    reference.expect_close(c, x.double().numpy(), *layer)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_torch_and_numpy_get_the_same_bits(rng, layer, dtype):
    x = rng.standard_normal((5, 96), dtype=np.float32)
    weights = DualWeights.from_arrays(*map(as_torch, layer))
    name = str(dtype).removeprefix("torch.")
    ours = weights(torch.from_numpy(x), dtype=dtype)
    theirs = DualWeights.from_arrays(*layer)(x, dtype=name)
    assert np.array_equal(ours.float().numpy(), theirs.astype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantising_a_tensor_gives_tensors(rng, dtype):
    source = torch.from_numpy(rng.standard_normal((4, 64), dtype=np.float32)).to(dtype)
    matrix, same = hammerhead.quantize(source), hammerhead.quantize(source.float().numpy())
    assert matrix.codes.dtype == matrix.scales.dtype == torch.uint8
    assert np.array_equal(matrix.codes.numpy(), same.codes) and np.array_equal(matrix.scales.numpy(), same.scales)
    assert matrix.global_scale == same.global_scale
    assert matrix.dequantize().dtype == torch.float32


def test_weights_may_have_the_types_that_torch_has_for_them(layer):
    typed = [NvFp4(m.codes, m.scales.view(torch.float8_e4m3fn), m.global_scale) for m in map(as_torch, layer)]
    x = torch.ones(1, 96)
    assert torch.equal(hammerhead.dual_gemm(x, *typed), hammerhead.dual_gemm(x, *map(as_torch, layer)))


def test_a_matrix_of_tensors_is_checked_when_it_is_made(layer):
    matrix = as_torch(layer[0])
    with pytest.raises(TypeError, match="another library"):
        NvFp4(matrix.codes, layer[0].scales)
    with pytest.raises(TypeError, match="scales: its elements are float8_e5m2"):
        NvFp4(matrix.codes, matrix.scales.view(torch.float8_e5m2))
    with pytest.raises(TypeError, match="global_scale: one number is expected, not Tensor"):
        NvFp4(matrix.codes, matrix.scales, torch.ones(2))
    assert NvFp4(matrix.codes, matrix.scales, torch.tensor(0.25)).global_scale == 0.25


def test_results_go_where_the_caller_wants_them_without_a_copy(layer):
    weights = DualWeights.from_arrays(*layer)
    x, out = torch.randn(2, 3, 96), torch.zeros(2, 3, 72, dtype=torch.bfloat16)
    address = out.data_ptr()
    assert weights(x, out=out) is out and out.data_ptr() == address
    assert torch.equal(out, weights(x, dtype=torch.bfloat16))


def test_tensors_may_lie_in_memory_in_any_way(layer):
    weights = DualWeights.from_arrays(*layer)
    x = torch.randn(6, 96)
    wide = torch.zeros(12, 192)
    wide[::2, ::2] = x
    for view in (x.t().contiguous().t(), wide[::2, ::2], torch.cat([torch.zeros(96), x.flatten()])[96:].view(6, 96)):
        assert torch.equal(weights(view), weights(x))
    assert weights(x[:0]).shape == (0, 72)


def test_groups_of_tensors_and_counts_agree(matrices):
    weights = DualWeights.from_arrays(matrices(3, 40, 64), matrices(3, 40, 64))
    x, counts = torch.randn(9, 64), torch.tensor([4, 0, 5])
    assert torch.equal(weights.grouped(x, counts), torch.cat(weights.grouped(list(x.split([4, 0, 5])))))


def test_inference_mode_and_parameters_are_fine_and_a_lost_gradient_is_not(layer):
    weights = DualWeights.from_arrays(*layer)
    x = torch.nn.Parameter(torch.randn(2, 96))
    with torch.inference_mode():
        expected = weights(x + 0)
    with torch.no_grad():
        assert torch.equal(weights(x), expected)
    with pytest.raises(ValueError, match="requires a gradient"):
        weights(x)


def test_what_torch_cannot_lend_is_refused(layer):
    weights = DualWeights.from_arrays(*layer)
    for x, kind, match in [
        (torch.randn(2, 96).to_sparse(), TypeError, "sparse"),
        (torch.randn(2, 96, dtype=torch.float64), TypeError, "float64"),
        (torch.empty(2, 96, device="meta"), ValueError, "does not lend it"),
    ]:
        with pytest.raises(kind, match=match):
            weights(x)
    with pytest.raises(TypeError, match="same library"):
        weights(torch.randn(2, 96), out=np.zeros((2, 72), dtype=np.float32))
    with pytest.raises(TypeError, match="same library"):
        DualWeights.from_arrays([layer[0]] * 2, [layer[1]] * 2).grouped([torch.randn(2, 96), np.ones((2, 96), "f4")])


@pytest.mark.parametrize(
    ("address", "columns", "bytes_each", "is_cuda", "suits"),
    [
        (4096, 40, 2, True, True),
        (4098, 40, 2, True, False),
        (4098, 33, 2, True, True),
        (4100, 8, 4, True, False),
        (4100, 7, 4, True, True),
        (4098, 40, 2, False, True),
    ],
)
def test_results_that_a_gpu_may_store_16_bytes_at_a_time_get_an_address_for_that(
    address, columns, bytes_each, is_cuda, suits
):
    out = SimpleNamespace(
        is_cuda=is_cuda, data_ptr=lambda: address, shape=(3, columns), element_size=lambda: bytes_each, copied=None
    )
    out.copy_ = lambda room: setattr(out, "copied", room)
    library = Torch(SimpleNamespace(_C=None, empty_like=lambda like: "a new tensor"))
    room = library.room(out)
    library.settle(out, room)
    assert (room is out) == suits
    assert out.copied == (None if suits else "a new tensor")
