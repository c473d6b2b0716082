"""Low-rank adapters beside packed layers: against merged weights in float64, by peft's and vLLM's names, and against
peft itself where it is installed."""

import json
import math

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import hammerhead
from hammerhead import lora

EXPERTS, HIDDEN, INNER, TOP = 4, 64, 48, 2


def matrix(n, k, seed):
    return hammerhead.quantize(torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) / k**0.5)


def mlps():
    return [(matrix(INNER, HIDDEN, 3 * e), matrix(INNER, HIDDEN, 3 * e + 1), matrix(HIDDEN, INNER, 3 * e + 2)) for e in range(EXPERTS)]


def experts(**options):
    return hammerhead.Experts.from_arrays(*([list(column) for column in zip(*mlps())]), **options)


def low_rank(n, k, rank, seed, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(1000 + seed)
    a = (torch.randn(rank, k, generator=generator) / k**0.5).to(dtype)
    return hammerhead.LowRank(a, torch.randn(n, rank, generator=generator).to(dtype))


def adapter(rank, seed, scaling=2.0, dtype=torch.bfloat16):
    shapes = [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)]
    return hammerhead.Adapter(scaling, [
        tuple(low_rank(n, k, rank, seed + 10 * e + place, dtype) for place, (n, k) in enumerate(shapes)) for e in range(EXPERTS)
    ])


def merged(x, ids, weights, adapters, which):
    """The layer with adapters folded into its weights, in float64."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    full = [[part.dequantize().double() for part in mlp] for mlp in mlps()]
    for token, row in enumerate(x.double()):
        for expert, weight in zip(ids[token].tolist(), weights[token].double()):
            own = list(full[expert])
            if which[token] >= 0:
                for place, pair in enumerate(adapters[which[token]].experts[expert]):
                    if pair is not None:
                        own[place] = own[place] + adapters[which[token]].scaling * pair.b.double() @ pair.a.double()
            gate, up, down = own
            out[token] += weight * (down @ (torch.nn.functional.silu(gate @ row) * (up @ row)))
    return out


def routing(tokens):
    generator = torch.Generator().manual_seed(5)
    ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOP] for _ in range(tokens)])
    return ids, torch.rand(tokens, TOP, generator=generator)


@pytest.mark.parametrize("tokens", [1, 9])
def test_adapters_beside_the_weights_are_adapters_in_the_weights(tokens):
    layer = experts(intermediate="f32")
    all_of_them = [adapter(16, 0), adapter(3, 77, 0.3, torch.float32), adapter(8, 5, -1.0, torch.float16)]
    all_of_them[1] = hammerhead.Adapter(0.3, [(None, *pairs[1:]) for pairs in all_of_them[1].experts])
    adapters = layer.adapters(all_of_them)
    assert (len(adapters), adapters.rank) == (3, 16)
    x, (ids, weights) = torch.randn(tokens, HIDDEN), routing(tokens)
    which = torch.tensor([token % 4 - 1 for token in range(1, tokens + 1)], dtype=torch.int32)
    found = layer(x, ids, weights, adapters=adapters, adapter_ids=which)
    expected = merged(x, ids, weights, all_of_them, which.tolist())
    assert ((found.double() - expected).norm() / expected.norm()).item() < 1e-5
    plain = layer(x, ids, weights)
    assert torch.equal(found[which < 0], plain[which < 0]), "without an adapter, nothing changes"
    assert not torch.equal(found[which >= 0], plain[which >= 0])


def test_an_mlp_takes_adapters_too():
    gate, up, down = mlps()[0]
    layer = hammerhead.Mlp.from_arrays(gate, up, down, intermediate="f32")
    own = hammerhead.Adapter(2.0, adapter(16, 0).experts[:1])
    x, which = torch.randn(3, HIDDEN), torch.tensor([0, -1, 0], dtype=torch.int32)
    found = layer(x, adapters=layer.adapters([own]), adapter_ids=which)
    expected = merged(x, torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1), [own], which.tolist())
    assert ((found.double() - expected).norm() / expected.norm()).item() < 1e-5


@pytest.mark.parametrize("name", ["shared_expert", "shared_experts"])
def test_a_shared_expert_has_adapters_of_its_own_by_pefts_names(tmp_path, name):
    arrays = [matrix(32, HIDDEN, 91), matrix(32, HIDDEN, 92), matrix(HIDDEN, 32, 93)]
    layer = experts(intermediate="f32", shared=hammerhead.MlpArrays(*arrays))
    pairs = [low_rank(n, k, 4, 50 + place) for place, (n, k) in enumerate([(32, HIDDEN), (32, HIDDEN), (HIDDEN, 32)])]
    named_pairs = zip(("gate_proj", "up_proj", "down_proj"), pairs)
    tensors = {f"m.{name}.{part}.lora_{side}.weight": getattr(pair, side.lower()) for part, pair in named_pairs for side in "AB"}
    read = lora.from_peft(written(tmp_path / "a", tensors), layer, "m")
    x, (ids, weights) = torch.randn(5, HIDDEN), routing(5)
    which = torch.tensor([0, -1, 0, -1, 0], dtype=torch.int32)
    found = layer(x, ids, weights, adapters=layer.adapters([read]), adapter_ids=which)
    full = [part.dequantize().double() for part in arrays]
    added = [part + 2.0 * pair.b.double() @ pair.a.double() for part, pair in zip(full, pairs)]
    expected = merged(x, ids, weights, [], [-1] * 5)
    for token, row in enumerate(x.double()):
        gate, up, down = added if which[token] >= 0 else full
        expected[token] += down @ (torch.nn.functional.silu(gate @ row) * (up @ row))
    assert ((found.double() - expected).norm() / expected.norm()).item() < 1e-5
    with pytest.raises(ValueError, match="nothing for m"):
        lora.from_peft(tmp_path / "a", experts(), "m")
    with pytest.raises(ValueError, match="no shared expert"):
        experts().adapters([hammerhead.Adapter(1.0, adapter(4, 0).experts, tuple(pairs))])


def test_what_does_not_fit_is_refused_by_its_name():
    layer = experts()
    adapters = layer.adapters([adapter(4, 0)])
    x, (ids, weights) = torch.randn(2, HIDDEN), routing(2)
    which = torch.zeros(2, dtype=torch.int32)
    for changed, message in [
        (dict(adapters=adapters), "adapter_ids"),
        (dict(adapter_ids=which), "without adapters"),
        (dict(adapters=adapters, adapter_ids=which[:1]), "every token needs one"),
        (dict(adapters=adapters, adapter_ids=which + 1), "the number of a token's adapter"),
    ]:
        with pytest.raises(ValueError, match=message):
            layer(x, ids, weights, **changed)
    with pytest.raises(TypeError, match="int32"):
        layer(x, ids, weights, adapters=adapters, adapter_ids=which.long())
    with pytest.raises(ValueError, match="rank"):
        layer.adapters([adapter(65, 0)])
    with pytest.raises(ValueError, match="experts"):
        layer.adapters([hammerhead.Adapter(1.0, adapter(4, 0).experts[:2])])
    with pytest.raises(ValueError, match="NVFP4 intermediate"):
        experts(intermediate="nvfp4")(x, ids, weights, adapters=adapters, adapter_ids=which)


def written(folder, tensors, **config):
    safetensors = pytest.importorskip("safetensors.torch")
    folder.mkdir(exist_ok=True)
    safetensors.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, **config}))
    return folder


def named(own, before, name):
    names = ("gate_proj", "up_proj", "down_proj")
    return {
        f"{before}model.layers.0.mlp.experts.{e}.{name(place, names[place])}.lora_{side}.weight": getattr(pair, side.lower())
        for e, pairs in enumerate(own.experts)
        for place, pair in enumerate(pairs)
        for side in "AB"
    }


@pytest.mark.parametrize("before", ["base_model.model.", ""])
@pytest.mark.parametrize("names", [None, ("w1", "w3", "w2")])
def test_adapters_are_found_by_the_names_of_peft_and_vllm(tmp_path, before, names):
    own = adapter(4, 0)
    folder = written(tmp_path / "a", named(own, before, lambda place, usual: usual if names is None else names[place]))
    read = lora.from_peft(folder, experts(), "model.layers.0.mlp")
    assert read.scaling == 2.0
    for found, expected in zip(read.experts, own.experts):
        for pair, other in zip(found, expected):
            assert torch.equal(pair.a, other.a) and torch.equal(pair.b, other.b)
    with pytest.raises(ValueError, match="nothing for model.layers.1.mlp"):
        lora.from_peft(folder, experts(), "model.layers.1.mlp")


def test_scalings_are_as_the_configuration_says(tmp_path):
    tensors = named(adapter(4, 0), "", lambda _, usual: usual)
    read = lambda **config: lora.from_peft(written(tmp_path / "a", tensors, **config), experts(), "model.layers.0.mlp").scaling
    assert read(lora_alpha=6) == 1.5
    assert read(use_rslora=True) == 8 / math.sqrt(4)
    assert read(alpha_pattern={"experts.*": 12}) == 3.0
    with pytest.raises(ValueError, match="are scaled by"):
        read(alpha_pattern={"down_proj": 12})
    for said, config in {
        "DoRA": {"use_dora": True},
        "biases of the model": {"bias": "all"},
        "changes the model's weights": {"init_lora_weights": "pissa_niter_4"},
        "alora_invocation_tokens": {"alora_invocation_tokens": [3]},
    }.items():
        with pytest.raises(ValueError, match=said):
            read(**config)


def test_what_adds_nothing_is_passed_over(tmp_path):
    tensors, layer = named(adapter(4, 0), "", lambda _, usual: usual), experts()
    read = lambda **config: lora.from_peft(written(tmp_path / "a", tensors, **config), layer, "model.layers.0.mlp")
    for nothing in (read(lora_alpha=0), read(alpha_pattern={".*": 0})):
        assert all(pair is None for pairs in nothing.experts for pair in pairs)
        ids, weights = routing(3)
        x = torch.randn(3, HIDDEN)
        given = {"adapters": layer.adapters([nothing]), "adapter_ids": torch.zeros(3, dtype=torch.int32)}
        assert torch.equal(layer(x, ids, weights, **given), layer(x, ids, weights))
    # Of projections that are scaled differently some may be scaled by nothing.
    some = read(alpha_pattern={"up_proj": 0})
    assert some.scaling == 2.0 and all((gate is None, up is None) == (False, True) for gate, up, _ in some.experts)
    # As peft initialises it.
    for name in [name for name in tensors if "experts.1." in name and name.endswith("lora_B.weight")]:
        tensors[name] = torch.zeros_like(tensors[name])
    assert [pairs[0] is None for pairs in read().experts] == [False, True, False, False]


@pytest.mark.parametrize("order", ["halves", "interleaved"])
def test_stacks_of_all_experts_and_fused_projections_are_taken_apart(tmp_path, order):
    rank, (k, inner) = 4, (HIDDEN, INNER)
    stacks = {
        "experts.base_layer": (torch.randn(EXPERTS * rank, k), torch.randn(2 * inner, rank * EXPERTS)),
        "experts": (torch.randn(EXPERTS * rank, inner), torch.randn(k, rank * EXPERTS)),
    }
    tensors = {f"base_model.model.m.{stem}.lora_{side}.weight": tensor for stem, pair in stacks.items() for side, tensor in zip("AB", pair)}
    read = lora.from_peft(written(tmp_path / "a", tensors), experts(), "m", order=order)
    for expert, (gate, up, down) in enumerate(read.experts):
        a, b = stacks["experts.base_layer"]
        delta = b.reshape(2 * inner, rank, EXPERTS)[..., expert] @ a.reshape(EXPERTS, rank, k)[expert]
        parts = (delta[0::2], delta[1::2]) if order == "interleaved" else (delta[:inner], delta[inner:])
        for pair, part in zip((gate, up), parts):
            torch.testing.assert_close(pair.b @ pair.a, part)
        a, b = stacks["experts"]
        delta = b.reshape(k, rank, EXPERTS)[..., expert] @ a.reshape(EXPERTS, rank, inner)[expert]
        torch.testing.assert_close(down.b @ down.a, delta)


class Stacked(torch.nn.Module):
    """Experts in two parameters, as transformers has them: ``[experts, out, in]``."""

    def __init__(self):
        super().__init__()
        full = [[part.dequantize() for part in mlp] for mlp in mlps()]
        self.gate_up_proj = torch.nn.Parameter(torch.stack([torch.cat(parts[:2]) for parts in full]))
        self.down_proj = torch.nn.Parameter(torch.stack([parts[2] for parts in full]))

    def forward(self, x, ids, weights):
        out = torch.zeros_like(x)
        for token, row in enumerate(x):
            for expert, weight in zip(ids[token].tolist(), weights[token]):
                gate, up = (self.gate_up_proj[expert] @ row).chunk(2)
                out[token] += weight * (self.down_proj[expert] @ (torch.nn.functional.silu(gate) * up))
        return out


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = torch.nn.Module()
        self.mlp.experts = Stacked()

    def forward(self, x, ids, weights):
        return self.mlp.experts(x, ids, weights)


def test_a_folder_of_pefts_own_gives_what_peft_computes(tmp_path):
    peft = pytest.importorskip("peft")
    parameters = ["experts.gate_up_proj", "experts.down_proj"]
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=[], target_parameters=parameters, init_lora_weights=False)
    torch.manual_seed(3)
    model = peft.get_peft_model(Model(), config)
    model.save_pretrained(tmp_path)
    x, (ids, weights) = torch.randn(5, HIDDEN), routing(5)
    with torch.inference_mode():
        expected = model(x, ids, weights).double()
    layer = experts(intermediate="f32")
    read = lora.from_peft(tmp_path, layer, "mlp")
    found = layer(x, ids, weights, adapters=layer.adapters([read]), adapter_ids=torch.zeros(5, dtype=torch.int32))
    assert ((found.double() - expected).norm() / expected.norm()).item() < 1e-5
    without = layer(x, ids, weights).double()
    assert ((without - expected).norm() / expected.norm()).item() > 1e-2, "adapters change results"
