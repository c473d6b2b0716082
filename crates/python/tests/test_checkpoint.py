"""Weights from models on disk: small ones that the quantising packages themselves have written."""

from pathlib import Path

import numpy as np
import pytest
import reference

import hammerhead
from hammerhead import Checkpoint, DualWeights

DATA = Path(__file__).parents[2] / "format" / "tests" / "data"


@pytest.mark.parametrize("name", ["modelopt_dense", "compressed_tensors_dense"])
@pytest.mark.parametrize("opened", [False, True])
def test_a_layer_computes_with_the_weights_that_its_writer_sees(rng, name, opened):
    truth = reference.f32_tensors(DATA / f"{name}.expected.safetensors")
    b1, b2 = (truth[f"model.layers.0.mlp.{part}_proj.weight"].astype(np.float64) for part in ("gate", "up"))
    path = DATA / name
    weights = DualWeights.from_checkpoint(Checkpoint(path) if opened else path, 0)
    assert weights.shapes == [b1.shape] and weights.gate == "silu"
    x = rng.standard_normal((3, b1.shape[1]), dtype=np.float32)
    expected = reference.GATES["silu"](x @ b1.T, x @ b2.T)
    np.testing.assert_allclose(weights(x), expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_tokens_are_multiplied_with_the_vector_that_awq_leaves(rng):
    truth = reference.f32_tensors(DATA / "modelopt_awq.expected.safetensors")
    b1, b2 = (truth[f"model.layers.0.mlp.experts.1.{part}_proj.weight"].astype(np.float64) for part in ("gate", "up"))
    weights = DualWeights.from_checkpoint(DATA / "modelopt_awq", 0, [1])
    scale = np.array(weights.input_scales[0])
    assert scale.shape == (b1.shape[1],) and np.ptp(scale) > 0, "a vector of equal numbers would show nothing"
    x = rng.standard_normal((3, b1.shape[1]), dtype=np.float32)
    expected = reference.GATES["silu"]((x * scale) @ b1.T, (x * scale) @ b2.T)
    np.testing.assert_allclose(weights(x), expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_a_model_tells_what_it_has():
    model = Checkpoint(DATA / "modelopt_dense")
    assert model.path == DATA / "modelopt_dense" and model.gate == "silu" and 0 in model.layers
    assert len(DualWeights.from_checkpoint(model, 0, [0]).shapes) == 1
    assert DualWeights.from_checkpoint(model, 0, gate="gelu-tanh").gate == "gelu-tanh"


def test_what_is_not_there_is_an_exception_of_the_right_kind(tmp_path):
    model = DATA / "modelopt_dense"
    (tmp_path / "damaged.safetensors").write_bytes(b"\xff" * 64)
    for kind, match, call in [
        (FileNotFoundError, "nowhere", lambda: DualWeights.from_checkpoint(tmp_path / "nowhere", 0)),
        (FileNotFoundError, "no model", lambda: DualWeights.from_checkpoint(tmp_path / "..", 0)),
        (ValueError, "damaged", lambda: DualWeights.from_checkpoint(tmp_path / "damaged.safetensors", 0)),
        (ValueError, "no layer 99", lambda: DualWeights.from_checkpoint(model, 99)),
        (ValueError, "no expert 3", lambda: DualWeights.from_checkpoint(model, 0, [3])),
        (ValueError, "negative", lambda: DualWeights.from_checkpoint(model, -1)),
        (ValueError, "no groups", lambda: DualWeights.from_checkpoint(model, 0, "shared")),
        (ValueError, "'shared'", lambda: DualWeights.from_checkpoint(model, 0, "all")),
        (ValueError, "clamp", lambda: DualWeights.from_checkpoint(model, 0, clamp=7.0)),
        (ValueError, "checkpoint format", lambda: Checkpoint(model, format="onnx")),
        (ValueError, "order of gate and up", lambda: Checkpoint(model, gate_up_order="shuffled")),
        (TypeError, "", lambda: DualWeights.from_checkpoint(7, 0)),
    ]:
        with pytest.raises(kind, match=match or None):
            call()
    with pytest.raises(ValueError, match="not NVFP4"):
        DualWeights.from_checkpoint(DATA / "compressed_tensors_dense", 1)


def test_the_package_says_its_version():
    assert hammerhead.__version__.count(".") == 2
