"""Layers as bytes: pickled, copied, saved by torch, and sent to other processes."""

import copy
import io
import multiprocessing
import pickle

import numpy as np
import pytest

import hammerhead
from hammerhead import DualWeights, Experts, Linear, Mlp, MlpArrays

K, N, E = 64, 48, 3


@pytest.fixture
def x(rng):
    return rng.standard_normal((5, K), dtype=np.float32)


@pytest.fixture
def layers(rng, matrices):
    """Layers with everything that they can have, by name; all take tokens, and experts logits too."""

    def vector(width):
        return rng.uniform(0.5, 2, width).astype(np.float32)

    first, second, down = matrices(E + 1, N, K), matrices(E + 1, N, K), matrices(E + 1, K, N)
    shared = MlpArrays(first[E], second[E], down[E], down_bias=vector(K))
    return {
        "dual": DualWeights.from_arrays(first[0], second[0], gate="silu", clamp=10.0, input_scale=vector(K)),
        "linear": Linear.from_arrays(first[0], bias=vector(N), input_scale=vector(K), threads=1),
        "mlp": Mlp.from_arrays(first[0], second[0], down[0], b1_bias=vector(N), intermediate="f32", gate="gelu-tanh"),
        "experts": Experts.from_arrays(
            first[:E], second[:E], down[:E], shared=shared, shared_gate=vector(K), routing="sigmoid", top_k=2,
            correction=vector(E), scaling=2.5, batch_invariant=True, workspace_bytes=1 << 20,
        ),
    }  # fmt: skip


def call(layer, x):
    return layer(x, x[:, :E].copy()) if isinstance(layer, Experts) else layer(x)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_layer_computes_the_same_bits(layers, x, protocol):
    for name, layer in layers.items():
        again = pickle.loads(pickle.dumps(layer, protocol))
        assert type(again) is type(layer) and again is not layer, name
        assert np.array_equal(call(again, x), call(layer, x)), name
        assert repr(again) == repr(layer) and again.packed_bytes == layer.packed_bytes
        assert (again.gate, again.threads, again._layer.options) == (layer.gate, layer.threads, layer._layer.options)


def test_what_weights_say_of_themselves_is_pickled_too(matrices, layers):
    assert pickle.loads(pickle.dumps(layers["dual"])).input_scales == layers["dual"].input_scales
    assert pickle.loads(pickle.dumps(layers["experts"])).routing == ("sigmoid", 2)
    groups = DualWeights.from_arrays([*matrices(1, 40, 64), *matrices(1, 24, 32)], gate="none", config="strategy=two-pass")
    again = pickle.loads(pickle.dumps(groups))
    assert again.shapes == [(40, 64), (24, 32)] and again.checkpoint_bytes == groups.checkpoint_bytes
    tokens = [np.ones((2, 64), np.float32), np.ones((3, 32), np.float32)]
    assert all(map(np.array_equal, again.grouped(tokens), groups.grouped(tokens)))


def test_copies_share_weights(layers):
    for layer in layers.values():
        assert copy.copy(layer) is layer and copy.deepcopy(layer) is layer


class Named(Linear):
    pass


def test_classes_derived_from_ours_stay_what_they_are(matrices):
    layer = Named.from_arrays(*matrices(1, N, K))
    assert type(layer) is type(pickle.loads(pickle.dumps(layer))) is Named


@pytest.mark.parametrize("protocol", [2, 5])
def test_torch_saves_and_loads_them(layers, x, protocol):
    torch = pytest.importorskip("torch")
    for layer in layers.values():
        file = io.BytesIO()
        torch.save({"layer": layer}, file, pickle_protocol=protocol)
        file.seek(0)
        again = torch.load(file, weights_only=False)["layer"]
        assert np.array_equal(call(again, x), call(layer, x))


def test_a_process_that_is_spawned_is_given_layers(layers, x):
    # It imports this module by its name.
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        for layer in layers.values():
            assert np.array_equal(pool.apply(call, (layer, x)), call(layer, x))


def test_damaged_bytes_are_refused(layers):
    for layer in layers.values():
        data, options = layer._layer.to_bytes(), layer._layer.options
        for spoiled, match in [
            (data[: len(data) // 2], "cut off|ends after"),
            (data[:-1] + bytes([data[-1] ^ 1]), "checksum"),
            (data[:40] + b"?" + data[41:], "checksum"),
            (b"nothing of ours", "no file of a packed layer"),
            (b"", "no file of a packed layer"),
        ]:
            with pytest.raises(ValueError, match=match):
                type(layer)._from_bytes(spoiled, options)


@pytest.mark.parametrize("fewer", [slice(8), slice(6), slice(0)])
def test_what_another_version_has_pickled_is_refused_by_its_version(layers, fewer):
    for layer in (layers["mlp"], layers["experts"]):
        data, options = layer._layer.to_bytes(), layer._layer.options
        older = data[:8] + (1).to_bytes(8, "little") + data[16:]
        with pytest.raises(ValueError, match="of version 1, and version .*write it again"):
            type(layer)._from_bytes(older, options[fewer])
        with pytest.raises(ValueError, match="another version has pickled it"):
            type(layer)._from_bytes(data, options[fewer])


def test_bytes_of_one_kind_of_layer_are_not_taken_for_another(layers):
    options = layers["mlp"]._layer.options
    with pytest.raises(ValueError, match="it holds 3 experts"):
        Mlp._from_bytes(layers["experts"]._layer.to_bytes(), options)
    with pytest.raises(ValueError, match="no file of a packed layer"):
        Mlp._from_bytes(layers["linear"]._layer.to_bytes(), options)
    with pytest.raises(ValueError, match="no file of a packed layer"):
        Linear._from_bytes(layers["mlp"]._layer.to_bytes(), layers["linear"]._layer.options)


@pytest.mark.skipif(hammerhead.backends().get("cuda") is not None, reason="needs a GPU")
def test_a_layer_on_a_gpu_says_that_it_is_not_pickled(matrices):
    with pytest.raises(TypeError, match="packed for a GPU"):
        pickle.dumps(Linear.from_arrays(*matrices(1, N, K), backend="cuda"))


def test_matrices_are_pickled(matrices):
    [matrix] = matrices(1, N, K)
    again = pickle.loads(pickle.dumps(matrix))
    assert np.array_equal(again.codes, matrix.codes) and again.global_scale == matrix.global_scale
