"""Whole layers (Linear, Mlp, Experts) against float64, against models' own blocks, and under torch.compile."""

import copy
import random
from pathlib import Path

import numpy as np
import pytest
import reference

import hammerhead
from hammerhead import Experts, Linear, Mlp, MlpArrays
from lending import Lent
from test_cuda_layers import OPTIONS, Network, packed

DATA = Path(__file__).parents[2] / "format" / "tests" / "data"
E, K, N = 5, 64, 48
RELU2 = {"relu2": lambda g, u: np.maximum(g, 0) ** 2}


def mlp64(x, b1, b2, down, biases=(0, 0, 0), gate="silu"):
    """An MLP in float64."""
    g = x @ reference.decode(b1).T + biases[0]
    u = None if b2 is None else x @ reference.decode(b2).T + biases[1]
    return (reference.GATES | RELU2)[gate](g, u) @ reference.decode(down).T + biases[2]


def close(found, expected, rounding=2.0**-17):
    found = np.asarray(found.float() if hasattr(found, "float") else found).astype(np.float64)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=rounding, atol=rounding * np.abs(expected).max(initial=0))


@pytest.fixture
def arrays(matrices):
    """One layer's matrices: gate, up and down of every expert."""
    return matrices(E, N, K), matrices(E, N, K), matrices(E, K, N)


@pytest.fixture
def x(rng):
    return rng.standard_normal((7, K), dtype=np.float32)


@pytest.fixture
def logits(rng):
    return rng.standard_normal((7, E), dtype=np.float32)


def routed64(logits, top_k):
    """Softmax over all experts, the largest of them, divided by their sum."""
    powers = np.exp(logits.astype(np.float64))
    ids = np.argsort(-logits, axis=-1, kind="stable")[:, :top_k]
    chosen = np.take_along_axis(powers, ids, axis=-1)
    return ids, chosen / chosen.sum(axis=-1, keepdims=True)


def experts64(x, ids, weights, arrays, **options):
    rows = [
        sum(
            weight * mlp64(token, *(column[expert] for column in arrays), **options)
            for expert, weight in zip(of, by)
            if 0 <= expert < E
        )
        + np.zeros(x.shape[1])
        for token, of, by in zip(x.astype(np.float64), ids, weights)
    ]
    return np.array(rows)


def test_a_linear_layer_is_a_product_and_a_bias(rng, matrices, x):
    [weight] = matrices(1, 40, K)
    bias, scale = rng.standard_normal(40), 0.5 + rng.random(K)
    plain = x.astype(np.float64) @ reference.decode(weight).T
    close(Linear.from_arrays(weight)(x), plain)
    layer = Linear.from_arrays(weight, bias=bias.astype(np.float32), input_scale=scale.astype(np.float32))
    scaled = (x * scale.astype(np.float32)).astype(np.float64) @ reference.decode(weight).T
    close(layer(x), scaled + bias)
    assert (layer.in_features, layer.out_features) == (K, 40) and "out_features=40" in repr(layer)
    out = np.zeros((7, 40), dtype=np.float16)
    assert layer(x, out=out) is out
    close(out, scaled + bias, 2.0**-10)
    assert layer(x.reshape(7, 1, K)).shape == (7, 1, 40) and layer(x[0]).shape == (40,)


@pytest.mark.parametrize("gate", ["silu", "gpt-oss", "relu2"])
def test_an_mlp_has_biases_and_gates(rng, matrices, x, gate):
    b1, b2 = matrices(2, N, K)
    [down] = matrices(1, K, N)
    biases = [rng.standard_normal(n).astype(np.float32) for n in (N, N, K)]
    if gate == "relu2":
        b2, biases[1] = None, None
    layer = Mlp.from_arrays(b1, b2, down, b1_bias=biases[0], b2_bias=biases[1], down_bias=biases[2], gate=gate)
    close(layer(x), mlp64(x.astype(np.float64), b1, b2, down, biases, gate))
    assert layer.gate == gate and (layer.in_features, layer.out_features) == (K, K)
    # The intermediate is rounded to the tokens' type unless said otherwise.
    half = x.astype(np.float16)
    options = dict(zip(("b1_bias", "b2_bias", "down_bias"), biases), gate=gate)
    wide = Mlp.from_arrays(b1, b2, down, intermediate="f32", **options)(half, dtype="f32")
    close(wide, mlp64(half.astype(np.float64), b1, b2, down, biases, gate))
    assert not np.array_equal(layer(half, dtype="f32"), wide)


def test_experts_are_chosen_by_logits_or_given(arrays, x, logits):
    ids, weights = routed64(logits, 2)
    expected = experts64(x, ids, weights, arrays)
    layer = Experts.from_arrays(*arrays, routing="softmax-renorm", top_k=2)
    found = layer(x, logits)
    close(found, expected)
    for kind in (np.int32, np.int64):
        assert np.array_equal(Experts.from_arrays(*arrays)(x, ids.astype(kind), weights.astype(np.float32)), found)
    out = np.zeros((7, 1, K), dtype=np.float32)
    assert layer(x.reshape(7, 1, K), logits, out=out) is out and np.array_equal(out.reshape(7, K), found)
    assert layer(x[:0], logits[:0]).shape == (0, K)
    assert layer.routing == ("softmax-renorm", 2) and layer.num_experts == E
    assert "softmax-renorm, top 2" in repr(layer) and layer.gate == "silu"


def test_ids_of_others_add_nothing_and_weights_may_multiply_inputs(arrays, x):
    layer = Experts.from_arrays(*arrays, gate="gelu-tanh")
    ids = np.array([[0, -1], [E, 4], [2**31 - 1, 3], [-1, -1], [1, 1], [2, 0], [3, 9]], dtype=np.int64)
    weights = np.where((ids >= 0) & (ids < E), np.float32(0.75), np.float32("nan"))
    close(layer(x, ids, weights), experts64(x, ids, weights, arrays, gate="gelu-tanh"))
    one, half = np.full((7, 1), 2, dtype=np.int32), np.full((7, 1), 0.5, dtype=np.float32)
    on_input = experts64(x * np.float32(0.5), one, np.ones((7, 1)), arrays, gate="gelu-tanh")
    close(layer(x, one, half, weights_on_input=True), on_input)


def test_a_processor_has_all_experts_whatever_a_gpu_may_hold(arrays, x, logits):
    ids, weights = routed64(logits, 2)
    layer = Experts.from_arrays(*arrays, routing="softmax-renorm", top_k=2, backend="scalar", gpu_bytes=0)
    close(layer(x, logits), experts64(x, ids, weights, arrays))
    assert layer.resident is None
    for call in (lambda: layer.place([0]), lambda: layer.asked):
        with pytest.raises((ValueError, RuntimeError), match="cuda"):
            call()


NEVER, PLANNED = (False, None), (True, None)


@pytest.mark.parametrize(
    ("said", "meant"),
    [(False, NEVER), (None, NEVER), (0, NEVER), (True, PLANNED), (1, (True, 1)), (700, (True, 700)), (np.int64(700), (True, 700))],
)
def test_whether_weights_are_brought_to_a_gpu_is_asked_for_and_kept(arrays, said, meant):
    layer = Experts.from_arrays(*arrays, backend="scalar", gpu_bytes=0, stream=said)
    assert layer._layer.options[5] == meant
    assert layer.streams_from is None, "a processor has all experts"
    if meant == NEVER:
        Experts.from_arrays(*arrays, backend="scalar", stream=said)


def test_weights_are_brought_only_by_a_number_of_rows_and_beyond_a_budget(arrays, tmp_path):
    for said in (-1, 0.5, "yes", [], 2**63):
        with pytest.raises(ValueError, match="stream: it is .*; give True, a number of rows, or False"):
            Experts.from_arrays(*arrays, backend="scalar", gpu_bytes=0, stream=said)
    Experts.from_arrays(*arrays).save(tmp_path / "layer")
    for call in (lambda: Experts.from_arrays(*arrays, stream=True), lambda: Experts.load(tmp_path / "layer", stream=8)):
        with pytest.raises(ValueError, match="stream: it is for experts beyond gpu_bytes"):
            call()
    with pytest.raises(TypeError, match="stream: there is no such option"):
        Mlp.from_arrays(*(column[0] for column in arrays), gpu_bytes=0, stream=True)


class Divided:
    """The native half of a layer in two places: it notes what moves."""

    def __init__(self, resident, asked):
        self.resident, self.asked = resident, asked

    def place(self, experts, device, stream):
        self.resident = experts


def divided(resident, asked):
    layer = Experts.__new__(Experts)
    layer._layer = Divided(resident, asked)
    return layer


def test_experts_asked_for_most_move_to_the_gpu():
    layer = divided([0, 1, 2], [50, 10, 20, 90, 20, 0])
    # The coldest goes, and keeps its slot for who comes; as hot as one that is there is not hot enough.
    assert layer.place_hottest() == [3] and layer._layer.resident == [0, 3, 2]
    assert layer.place_hottest() == []
    layer._layer.asked = [50, 10, 20, 90, 120, 60]
    assert layer.place_hottest(most=1) == [4] and layer._layer.resident == [0, 3, 4]
    # Counts may have gone round.
    layer._layer.asked = [50, (10 - 20) % 2**32, 20, 90, 120, 60]
    assert layer.place_hottest(most=1) == [1]


def test_experts_do_not_move_by_chance(rng):
    moved = []
    for _ in range(50):
        layer = divided(list(range(64)), rng.multinomial(64 * 8, [1 / 128] * 128).tolist())
        moved.append(len(layer.place_hottest()))
    assert sum(moved) <= 1, "all are asked for alike"
    popular = np.r_[np.full(120, 1.0), np.full(8, 4.0)]
    layer = divided(list(range(64)), rng.multinomial(512 * 8, popular / popular.sum()).tolist())
    assert sorted(layer.place_hottest()) == list(range(120, 128))


def test_how_hot_experts_are_is_kept_for_a_later_run():
    layer = divided([0, 1], [50, 10, 0, 90])
    assert layer.heat == [50, 10, 0, 90] and layer.place_hottest() == [3]
    layer._layer.asked = [50, 10, 6, 90]
    assert layer.heat == [25, 5, 6, 45]
    later = divided([0, 1], [0, 0, 0, 0])
    assert later.place_hottest(heat=layer.heat) == [3] and later.heat == [12.5, 2.5, 3, 22.5]
    with pytest.raises(ValueError, match="heat: it has 3 numbers, and the layer 4 experts"):
        later.place_hottest(heat=[1, 2, 3])


def test_what_graphs_of_vllm_cannot_tell_is_logged(monkeypatch, caplog):
    from hammerhead.vllm import _watch

    monkeypatch.setattr(Experts, "__repr__", lambda layer: "Experts(…)")
    layers, failures = [divided([0], [0, 0]) for _ in range(2)], ["a worker has died"]
    layers[0]._layer.host_failure = lambda: None
    layers[1]._layer.host_failure = lambda: failures[0] if failures else None
    monkeypatch.setattr(_watch, "_start", lambda: None)
    for layer in layers:
        _watch.watch(layer)
    for _ in range(2):
        _watch.look()
    said = ["Experts(…): a worker has died"]
    assert [record.getMessage() for record in caplog.records] == said, "once, and it is left for the next call to tell"
    failures.clear()
    _watch.look()
    failures.append("a worker has died")
    _watch.look()
    assert [record.getMessage() for record in caplog.records] == 2 * said, "another failure is told, too"


def test_nothing_is_asked_of_a_layer_in_one_place(arrays):
    layer = Experts.from_arrays(*arrays, backend="scalar")
    layer.check_host()
    assert layer.heat is None and layer.place_hottest() == []


def test_biases_and_a_shared_expert_are_part_of_the_layer(rng, matrices, arrays, x, logits):
    biases = [rng.standard_normal((E, n)).astype(np.float32) for n in (N, N, K)]
    [s1, s2], [down] = matrices(2, 80, K), matrices(1, K, 80)
    vector = rng.standard_normal(K).astype(np.float32)
    names = ("b1_bias", "b2_bias", "down_bias")
    layer = Experts.from_arrays(
        *arrays, **dict(zip(names, biases)), shared=MlpArrays(s1, s2, down), shared_gate=vector,
        routing="topk-softmax", top_k=3,
    )  # fmt: skip
    ids, weights = routed64(logits, 3)
    wide = x.astype(np.float64)
    expected = np.array([
        sum(w * mlp64(t, *(c[e] for c in arrays), [b[e] for b in biases]) for e, w in zip(of, by))
        for t, of, by in zip(wide, ids, weights)
    ])  # fmt: skip
    shared = mlp64(wide, s1, s2, down) / (1 + np.exp(-wide @ vector))[:, None]
    close(layer(x, logits), expected + shared)


def test_a_batch_invariant_layer_gives_a_token_the_same_bits_in_any_company(arrays, x, logits):
    layer = Experts.from_arrays(*arrays, routing="softmax", top_k=2, batch_invariant=True)
    whole = layer(x, logits)
    assert np.array_equal(whole[3:4], layer(x[3:4], logits[3:4]))


def test_rounding_a_whole_layer_to_fp8_is_asked_for_aloud_and_refused_by_processors(arrays, x, logits):
    exact = Experts.from_arrays(*arrays, routing="softmax", top_k=2, precision="exact", backend="scalar")
    usual = Experts.from_arrays(*arrays, routing="softmax", top_k=2, backend="scalar")
    assert np.array_equal(exact(x, logits), usual(x, logits))
    with pytest.raises(ValueError, match="scalar compute this layer exactly only.*ask for exact"):
        Experts.from_arrays(*arrays, precision="fp8", backend="scalar")
    with pytest.raises(ValueError, match="an nvfp4 intermediate has fewer bits"):
        Experts.from_arrays(*arrays, precision="fp8", intermediate="nvfp4", backend="scalar")
    with pytest.raises(ValueError, match="exact, fp8"):
        Experts.from_arrays(*arrays, precision="fp7")


@pytest.mark.parametrize(("name", "shared"), [("modelopt_qwen3_moe", False), ("modelopt_llama4", True)])
def test_a_models_layer_is_read_whole(rng, name, shared):
    layer = Experts.from_checkpoint(DATA / name, 0)
    k = layer.in_features
    x = rng.standard_normal((3, k), dtype=np.float32)
    ids = np.array([[0], [1], [layer.num_experts - 1]])
    weights = np.ones((3, 1), dtype=np.float32)
    found = layer(x, ids, weights)
    for row, expert in enumerate(ids[:, 0]):
        one = Mlp.from_checkpoint(DATA / name, 0, int(expert))
        rest = Mlp.from_checkpoint(DATA / name, 0, "shared")(x[row]) if shared else 0
        assert np.allclose(one(x[row]) + rest, found[row], rtol=1e-5, atol=1e-6 * np.abs(found).max())
    assert layer.routing is not None and layer.routing[1] >= 1
    assert layer(x, rng.standard_normal((3, layer.num_experts), dtype=np.float32)).shape == (3, k)


def test_roots_of_softplus_route_as_deepseek_v4_does(arrays, x, rng):
    torch = pytest.importorskip("torch")
    deepseek = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
    from transformers import DeepseekV4Config

    config = DeepseekV4Config(
        hidden_size=K, num_local_experts=E, num_experts_per_tok=3, routed_scaling_factor=1.5, scoring_func="sqrtsoftplus"
    )
    router = deepseek.DeepseekV4TopKRouter(config)
    correction = rng.standard_normal(E).astype("f4")
    with torch.no_grad():
        router.weight.copy_(torch.from_numpy(3 * rng.standard_normal((E, K)).astype("f4")))
        router.e_score_correction_bias.copy_(torch.from_numpy(correction))
        logits, weights, ids = router(torch.from_numpy(x))
    layer = Experts.from_arrays(*arrays, routing="sqrt-softplus", top_k=3, correction=correction, scaling=1.5)
    # A token's experts are added in another order where the model does not sort them.
    close(layer(x, logits.numpy()), layer(x, ids.numpy(), weights.numpy()).astype("f8"), 1e-5)


def test_experts_of_a_table_are_weighed_as_deepseek_v4_weighs_them(arrays, x, rng):
    torch = pytest.importorskip("torch")
    deepseek = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
    from transformers import DeepseekV4Config

    config = DeepseekV4Config(
        hidden_size=K, num_local_experts=E, num_experts_per_tok=3, routed_scaling_factor=1.5, vocab_size=11
    )
    router = deepseek.DeepseekV4HashRouter(config)
    with torch.no_grad():
        router.weight.copy_(torch.from_numpy(rng.standard_normal((E, K)).astype("f4")))
        router.tid2eid.copy_(torch.from_numpy(np.stack([rng.permutation(E)[:3] for _ in range(11)])))
        logits, weights, ids = router(torch.from_numpy(x), torch.arange(len(x)))
    layer = Experts.from_arrays(*arrays, routing="sqrt-softplus", top_k=3, scaling=1.5)
    torch.testing.assert_close(layer.weigh(logits, ids), weights, rtol=1e-6, atol=0)
    found = layer.weigh(logits.numpy(), ids.numpy().astype("i4"))
    np.testing.assert_allclose(found, weights.numpy(), rtol=1e-6)
    assert found.dtype == np.float32 and layer(x, ids.numpy(), found).shape == x.shape
    for match, call in [
        (r"\[7, 'top_k'\] is expected", lambda: layer.weigh(logits.numpy(), ids.numpy()[:3])),
        ("ids and weights|ids", lambda: layer.weigh(logits.numpy(), ids.numpy()[:, :2])),
        ("none of them", lambda: layer.weigh(logits.numpy(), np.full((7, 3), E))),
    ]:
        with pytest.raises(ValueError, match=match):
            call()


def test_a_layer_with_a_table_of_deepseek_v4_s_files_takes_ids(tmp_path, rng):
    stored = reference.f32_tensors(DATA / "deepseek_v4.expected.safetensors")
    with pytest.raises(ValueError, match=r"shared_experts\.w1.*FP8"):
        Experts.from_checkpoint(DATA / "deepseek_v4", 0)
    layer = Experts.from_checkpoint(DATA / "deepseek_v4", 0, shared=False)
    assert (layer.routing, layer.has_table, layer.num_experts) == (("sqrt-softplus", 2), True, 3)
    x, logits = (rng.standard_normal((4, side), dtype=np.float32) for side in (64, 3))
    ids = np.array([[0, 1], [2, 0], [1, 2], [2, 1]])
    weights = layer.weigh(logits, ids)
    found = layer(x, ids, weights)
    for row, (chosen, by) in enumerate(zip(ids, weights.astype("f8"))):
        sums = 0
        for expert, weight in zip(chosen, by):
            w1, w2, w3 = (stored[f"layers.0.ffn.experts.{expert}.{name}.weight"].astype("f8") for name in ("w1", "w2", "w3"))
            gate, up = np.minimum(w1 @ x[row], 10), np.clip(w3 @ x[row], -10, 10)
            sums += weight * (w2 @ (gate / (1 + np.exp(-gate)) * up))
        np.testing.assert_allclose(found[row], sums, rtol=1e-4, atol=1e-5 * np.abs(sums).max())
    layer.save(tmp_path / "layer.packed")
    by_hand = Experts.from_checkpoint(DATA / "deepseek_v4", 0, shared=False, routing="sqrt-softplus", top_k=2)
    for one in (layer, Experts.load(tmp_path / "layer.packed"), copy.deepcopy(layer), by_hand):
        with pytest.raises(ValueError, match="a table chooses this layer's experts"):
            one(x, logits)
    beside = reference.f32_tensors(DATA / "deepseek_v4.fp8.expected.safetensors")
    for name in ("layers.0.attn.wq_a", "layers.0.ffn.shared_experts.w3"):
        linear = hammerhead.Fp8Linear.from_checkpoint(DATA / "deepseek_v4", name)
        close(linear(x), x.astype("f8") @ beside[f"{name}.weight"].T)
    chosen = Experts.from_checkpoint(DATA / "deepseek_v4", 1, shared=False)
    assert not chosen.has_table and chosen(x, logits).shape == x.shape


def test_packed_layers_come_back_from_their_files(tmp_path, matrices, arrays, x, logits):
    [s1, s2], [down] = matrices(2, 80, K), matrices(1, K, 80)
    options = {"routing": "sigmoid", "correction": np.arange(E) / 8, "scaling": 2.5, "top_k": 2, "gate": "gelu-tanh"}
    layer = Experts.from_arrays(*arrays, down_bias=np.ones((E, K)), shared=MlpArrays(s1, s2, down), **options)
    layer.save(tmp_path / "layer.packed")
    again = Experts.load(tmp_path / "layer.packed")
    assert np.array_equal(layer(x, logits), again(x, logits))
    assert (again.gate, again.routing, again.packed_bytes) == (layer.gate, layer.routing, layer.packed_bytes)
    mlp = Mlp.from_arrays(s1, s2, down)
    mlp.save(tmp_path / "mlp.packed")
    assert np.array_equal(Mlp.load(tmp_path / "mlp.packed")(x), mlp(x))
    whole = (tmp_path / "layer.packed").read_bytes()
    (tmp_path / "short.packed").write_bytes(whole[:-5000])
    (tmp_path / "other.packed").write_bytes(b"\0" * 64)
    for kind, match, call in [
        (ValueError, "cut off", lambda: Experts.load(tmp_path / "short.packed")),
        (ValueError, "no file of a packed layer", lambda: Experts.load(tmp_path / "other.packed")),
        (ValueError, "5 experts", lambda: Mlp.load(tmp_path / "layer.packed")),
        (FileNotFoundError, "nowhere", lambda: Experts.load(tmp_path / "nowhere")),
        (FileNotFoundError, "folder", lambda: layer.save(tmp_path / "folder" / "layer.packed")),
    ]:
        with pytest.raises(kind, match=match):
            call()


def test_any_matrix_of_a_model_is_read_by_name(rng):
    model = hammerhead.Checkpoint(DATA / "modelopt_dense")
    [b1, b2] = (Linear.from_checkpoint(model, f"model.layers.0.mlp.{part}_proj") for part in ("gate", "up"))
    down = Linear.from_checkpoint(model, "model.layers.0.mlp.down_proj")
    mlp = Mlp.from_checkpoint(model, 0)
    x = rng.standard_normal((3, mlp.in_features), dtype=np.float32)
    close(mlp(x), down(reference.GATES["silu"](b1(x).astype("f8"), b2(x).astype("f8")).astype("f4")).astype("f8"), 1e-5)
    with pytest.raises(ValueError, match="no weight of that name"):
        Linear.from_checkpoint(model, "model.layers.0.mlp.gate")


def test_what_does_not_fit_is_refused_and_named(rng, matrices, arrays, x, logits):
    layer = Experts.from_arrays(*arrays, routing="softmax", top_k=2)
    given = Experts.from_arrays(*arrays)
    ids, weights = np.zeros((7, 2), dtype=np.int32), np.ones((7, 2), dtype=np.float32)
    shared = np.zeros((7, K), dtype=np.float32)
    [wide] = matrices(1, N, 2 * K)
    for kind, match, call in [
        (ValueError, "no rule of routing", lambda: given(x, logits)),
        (ValueError, r"router_logits: its shape is \[7, 4\]", lambda: layer(x, logits[:, :4])),
        (ValueError, "logits", lambda: layer(x, logits[:5])),
        (TypeError, "router_logits: its elements are int32", lambda: layer(x, ids)),
        (TypeError, "ids: its elements are float32", lambda: layer(x, weights, weights)),
        (ValueError, "weights: its shape", lambda: layer(x, ids, weights[:, :1])),
        (ValueError, "weights_on_input", lambda: layer(x, logits, weights_on_input=True)),
        (ValueError, "out: it shares memory with x", lambda: layer(shared, logits, out=shared)),
        (ValueError, "k of the tokens", lambda: layer(x[:, :32], logits)),
        (ValueError, "out: its shape", lambda: layer(x, logits, out=shared[:3])),
        (ValueError, "top_k", lambda: Experts.from_arrays(*arrays, routing="softmax")),
        (ValueError, "routing", lambda: Experts.from_arrays(*arrays, top_k=2)),
        (ValueError, "top-k", lambda: Experts.from_arrays(*arrays, routing="softmax", top_k=6)),
        (ValueError, "unknown routing 'hash'", lambda: Experts.from_arrays(*arrays, routing="hash", top_k=2)),
        (ValueError, "down: there are 4", lambda: Experts.from_arrays(arrays[0], arrays[1], arrays[2][:4])),
        (ValueError, "down_bias: there are 1", lambda: Experts.from_arrays(*arrays, down_bias=[np.zeros(K)])),
        (ValueError, "b1 or b2 of expert 0.*63", lambda: Experts.from_arrays(*arrays, input_scale=[np.ones(63)] * E)),
        (ValueError, "down of the MLP.*bias", lambda: Mlp.from_arrays(arrays[0][0], arrays[1][0], arrays[2][0], down_bias=[1.0])),
        (ValueError, "b2_bias", lambda: Mlp.from_arrays(arrays[0][0], None, arrays[2][0], b2_bias=[1.0] * N, gate="relu2")),
        (ValueError, "no groups", lambda: Experts.from_arrays([], [], [])),
        (ValueError, "expert's shape", lambda: Experts.from_arrays([wide, *arrays[0][1:]], [wide, *arrays[1][1:]], arrays[2])),
        (ValueError, "give the number", lambda: Mlp.from_checkpoint(DATA / "modelopt_qwen3_moe", 0)),
        (ValueError, "'shared'", lambda: Mlp.from_checkpoint(DATA / "modelopt_qwen3_moe", 0, "all")),
        (TypeError, "from_arrays", Experts),
        (ValueError, "unknown intermediate", lambda: Experts.from_arrays(*arrays, intermediate="f64")),
    ]:
        with pytest.raises(kind, match=match):
            call()


torch = pytest.importorskip("torch")


@pytest.fixture
def compiled():
    """Compiles whole or fails, without generating code."""
    torch._dynamo.reset()
    return lambda function: torch.compile(function, fullgraph=True, backend="aot_eager")


def test_arrays_on_a_gpu_are_taken_by_layers_that_are_there(arrays):
    layers = [Mlp.from_arrays(*(column[0] for column in arrays)), Experts.from_arrays(*arrays, routing="softmax", top_k=2)]
    on_gpu, element = {"device": 0}, "bfloat16"
    x, out = Lent(1 << 20, (3, K), element, **on_gpu), Lent(2 << 20, (3, K), element, **on_gpu)
    logits = Lent(3 << 20, (3, E), "float32", **on_gpu)
    for layer, routing in zip(layers, ([], [logits])):
        with pytest.raises(ValueError, match="packed for cuda alone"):
            layer._layer.run((x, element), routing, False, (out, element), 0)
    run = layers[1]._layer.run
    with pytest.raises(ValueError, match="router_logits: it lies on the CPU, and the tokens on CUDA device 0"):
        run((x, element), [np.zeros((3, E), dtype=np.float32)], False, (out, element), 0)
    with pytest.raises(ValueError, match="out: it lies on CUDA device 1, and the tokens on CUDA device 0"):
        run((x, element), [logits], False, (Lent(2 << 20, (3, K), element, device=1), element), 0)
    with pytest.raises(ValueError, match="out: it shares memory with x"):
        run((x, element), [logits], False, (Lent(1 << 20, (3, K), element, **on_gpu), element), 0)
    with pytest.raises(ValueError, match="out: it has 64 elements, where 192 are needed"):
        run((x, element), [logits], False, (Lent(2 << 20, (1, K), element, **on_gpu), element), 0)


def test_an_option_that_there_is_not_is_refused_by_name(arrays):
    with pytest.raises(TypeError, match="intermediates: there is no such option; there are backend"):
        Experts.from_arrays(*arrays, intermediates="f32")
    with pytest.raises(TypeError, match="intermediate: there is no such option"):
        Linear.from_arrays(arrays[0][0], intermediate="f32")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_tensors_are_computed_as_arrays_are(arrays, x, logits, dtype):
    layer = Experts.from_arrays(*arrays, routing="softmax-renorm", top_k=2)
    tokens, numbers = torch.from_numpy(x).to(dtype), torch.from_numpy(logits).to(dtype)
    found = layer(tokens, numbers)
    assert found.dtype == dtype
    wide = layer(tokens.float().numpy(), numbers.float().numpy())
    close(found, wide.astype(np.float64), reference.ROUNDING[str(dtype).removeprefix("torch.")] * 4)
    ids, weights = (torch.from_numpy(part) for part in routed64(logits, 2))
    assert torch.equal(layer(tokens, ids, weights.float()), layer(tokens, ids.int(), weights.to(torch.float32)))
    assert layer(tokens, ids, weights.to(dtype)).dtype == dtype


def test_layers_are_compiled_without_a_break(arrays, x, logits, compiled):
    experts = Experts.from_arrays(*arrays, routing="softmax", top_k=2)
    mlp, linear = Mlp.from_arrays(*(column[0] for column in arrays)), Linear.from_arrays(arrays[0][0])
    tokens, numbers = torch.from_numpy(x), torch.from_numpy(logits)

    def model(x, logits, out):
        hidden = experts(x * 2, logits) + mlp(x)
        experts(hidden, logits.argsort()[:, :2], logits[:, :2].softmax(-1), out=out)
        return linear(hidden, dtype=torch.bfloat16)

    rooms = torch.zeros(7, K), torch.zeros(7, K)
    with torch.inference_mode():
        assert torch.equal(compiled(model)(tokens, numbers, rooms[0]), model(tokens, numbers, rooms[1]))
    assert torch.equal(*rooms) and rooms[0].abs().max() > 0


def test_the_operation_keeps_torchs_rules(arrays, x, logits):
    layer = Experts.from_arrays(*arrays, routing="softmax", top_k=2)
    layer(torch.from_numpy(x), torch.from_numpy(logits))
    from hammerhead import _torch  # noqa: F401

    sample = (torch.from_numpy(x), [torch.from_numpy(logits)], False, layer._name, layer.out_features, torch.bfloat16)
    torch.library.opcheck(torch.ops.hammerhead.layer, sample)


def test_a_lost_gradient_is_refused_compiled_or_not(arrays, x, compiled):
    layer = Mlp.from_arrays(*(column[0] for column in arrays))
    tokens = torch.nn.Parameter(torch.from_numpy(x))
    with pytest.raises(ValueError, match="requires a gradient"):
        layer(tokens)
    # Older versions of torch (2.4) do not say what was raised while they compiled.
    with pytest.raises(Exception, match="requires a gradient|Observed exception"):
        compiled(layer.__call__)(tokens)
    with torch.no_grad():
        assert torch.equal(layer(tokens), copy.deepcopy(layer)(tokens))


def quantised(block, names):
    """Replaces experts' matrices [E, rows, K] by what NVFP4 makes of them, and gives that."""
    matrices = []
    for name in names:
        parameter = getattr(block, name)
        matrices.append([hammerhead.quantize(part.detach().contiguous()) for part in parameter])
        with torch.no_grad():
            parameter.copy_(torch.stack([matrix.dequantize() for matrix in matrices[-1]]))
    return matrices


def halves(matrix, rows):
    return [hammerhead.NvFp4(matrix.codes[part], matrix.scales[part], matrix.global_scale) for part in rows]


def test_a_qwen3_moe_block_of_transformers_agrees():
    qwen = pytest.importorskip("transformers.models.qwen3_moe.modeling_qwen3_moe")
    from transformers import Qwen3MoeConfig

    torch.manual_seed(3)
    config = Qwen3MoeConfig(
        hidden_size=K, moe_intermediate_size=N, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True,
        experts_implementation="eager",
    )  # fmt: skip
    block = qwen.Qwen3MoeSparseMoeBlock(config).eval()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    both, down = quantised(block.experts, ["gate_up_proj", "down_proj"])
    b1, b2 = zip(*(halves(matrix, (slice(N), slice(N, None))) for matrix in both))
    layer = Experts.from_arrays(b1, b2, down, routing="softmax-renorm", top_k=3)
    x = torch.randn(2, 5, K)
    with torch.inference_mode():
        expected = block(x)
        logits, scores, indices = block.gate(x.reshape(-1, K))
        found = layer(x, logits)
    close(found, expected.double().numpy(), 2.0**-15)
    close(layer(x, indices, scores), expected.double().numpy(), 2.0**-15)


def test_a_gpt_oss_block_of_transformers_agrees():
    gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    from transformers import GptOssConfig

    torch.manual_seed(4)
    config = GptOssConfig(
        hidden_size=K, intermediate_size=N, num_local_experts=8, num_experts_per_tok=2, experts_implementation="eager"
    )
    block = gpt_oss.GptOssMLP(config).eval()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    experts = block.experts
    # The model keeps its matrices transposed.
    for name in ("gate_up_proj", "down_proj"):
        setattr(experts, name, torch.nn.Parameter(getattr(experts, name).detach().transpose(1, 2).contiguous()))
    both, down = quantised(experts, ["gate_up_proj", "down_proj"])
    for name in ("gate_up_proj", "down_proj"):
        setattr(experts, name, torch.nn.Parameter(getattr(experts, name).detach().transpose(1, 2).contiguous()))
    b1, b2 = zip(*(halves(matrix, (slice(0, None, 2), slice(1, None, 2))) for matrix in both))
    bias = experts.gate_up_proj_bias.detach()
    layer = Experts.from_arrays(
        b1, b2, down, b1_bias=bias[:, ::2], b2_bias=bias[:, 1::2], down_bias=experts.down_proj_bias.detach(),
        gate="gpt-oss", routing="topk-softmax", top_k=2,
    )  # fmt: skip
    x = torch.randn(2, 5, K)
    with torch.inference_mode():
        expected, _ = block(x)
        logits = block.router(x.reshape(-1, K))[0]
        close(layer(x, logits), expected.double().numpy(), 2.0**-15)


def test_a_layer_is_packed_from_what_the_tests_on_a_gpu_hand_over():
    """Those run where there is a GPU, and would not tell elsewhere that the native half takes other things by now."""
    networks = [Network(random.Random(expert), 64, 32, scaled=True) for expert in range(2)]
    on_processor = tuple("cpu" if option == "cuda" else option for option in OPTIONS)
    for shared in (None, networks[0]):
        assert packed(networks, 1, shared, options=on_processor)
