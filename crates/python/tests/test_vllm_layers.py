"""Single layers in the plugin for vLLM: which are ours, which are vLLM's, which are refused, and what is computed.

No engine is started. Where vLLM is not installed all of this is skipped; docs/vllm.md says how to install it.
"""

import json
import os
from types import SimpleNamespace

import pytest

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
vllm = pytest.importorskip("vllm")
torch = pytest.importorskip("torch")
from expansion import DATA  # noqa: E402
from vllm.model_executor.layers.fused_moe import RoutedExperts  # noqa: E402
from vllm.model_executor.layers.fused_moe.activation import MoEActivation  # noqa: E402
from vllm.model_executor.layers.linear import ReplicatedLinear, UnquantizedLinearMethod  # noqa: E402
from vllm.model_executor.layers.quantization import get_quantization_config  # noqa: E402
from vllm.model_executor.layers.quantization.compressed_tensors import schemes  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

import hammerhead  # noqa: E402
from hammerhead.vllm import register, serves  # noqa: E402

if not serves(current_platform):
    pytest.skip("the plugin leaves the layers of this platform to vLLM", allow_module_level=True)
register()
from hammerhead.vllm import _calls, _choice, _compressed, _modelopt, _options, _packed, _plain  # noqa: E402

GATE_UP, EXPERTS = "model.layers.0.mlp.gate_up_proj", "model.layers.0.mlp.experts"
MERGED = {"gate_up_proj": ["gate_proj", "up_proj"], "qkv_proj": ["q_proj", "k_proj", "v_proj"]}


def moe(activation="silu", **changes):
    """vLLM's configuration of a layer of experts, as far as it is looked at."""
    usual = dict(swiglu_limit=None, swiglu_alpha=None, swiglu_beta=None, has_bias=False, is_lora_enabled=False)
    usual.update(activation=MoEActivation(activation), intermediate_size_per_partition=32, moe_parallel_config=None)
    usual.update(hidden_dim=64)
    usual.update(in_dtype=torch.float32, is_act_and_mul=not activation.endswith("_no_mul"))
    return SimpleNamespace(**{**usual, **changes})


def bare(kind, **attributes):
    """A layer of vLLM's that was not set up."""
    layer = object.__new__(kind)
    torch.nn.Module.__init__(layer)
    for name, value in attributes.items():
        setattr(layer, name, value)
    return layer


def linear():
    return bare(ReplicatedLinear)


def experts(config=None):
    names = dict(ckpt_gate_proj_name="gate_proj", ckpt_up_proj_name="up_proj", ckpt_down_proj_name="down_proj")
    return bare(RoutedExperts, moe_config=config or moe(), layer_name=EXPERTS, **names)


def mixed(layers, **more):
    """ModelOpt's configuration of a checkpoint with these algorithms by layer, and NVFP4 in another one."""
    layers = {**layers, "model.layers.9.mlp.down_proj": algorithm("NVFP4")}
    return mixed_alone(layers, **more)


def mixed_alone(layers, **more):
    written = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers, **more}
    config = get_quantization_config("modelopt_mixed").from_config(written)
    config.packed_modules_mapping = MERGED
    return config


def algorithm(name, **more):
    return {"quant_algo": name, **more}


def compressed(groups, **more):
    written = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups, **more}
    config = get_quantization_config("compressed-tensors").from_config(written)
    config.packed_modules_mapping = MERGED
    return config


def groups_of(name):
    return json.loads((DATA / name / "config.json").read_text())["quantization_config"]["config_groups"]


@pytest.fixture
def _model_type(monkeypatch):
    """vLLM's schemes ask for the type of the model that is being set up."""
    found = lambda: SimpleNamespace(model_config=SimpleNamespace(dtype=torch.float32))  # noqa: E731
    monkeypatch.setattr(_compressed, "get_current_vllm_config", found)
    monkeypatch.setattr(schemes.compressed_tensors_w8a8_fp8, "get_current_vllm_config", found)


@pytest.mark.parametrize(
    ("config", "gate"),
    [
        (moe(), ("silu", None)),
        (moe(swiglu_limit=10.0), ("silu", 10.0)),
        (moe("gelu_tanh"), ("gelu-tanh", None)),
        (moe("relu2_no_mul"), ("relu2", None)),
        (
            moe("swigluoai_uninterleave", swiglu_limit=7.0, swiglu_alpha=1.702, swiglu_beta=1.0),
            ("gpt-oss:alpha=1.702,beta=1.0,limit=7.0", None),
        ),
        (moe("swigluoai_uninterleave", swiglu_limit=5.0), ("gpt-oss:alpha=1.0,beta=0.0,limit=5.0", None)),
    ],
)
def test_activations_of_experts_are_those_of_the_model(config, gate):
    assert _packed.gate_of(config) == gate


REFUSED = [
    (moe("gelu"), "gelu"),
    (moe("relu2"), "relu2"),
    (moe("swigluoai", swiglu_limit=7.0), "swigluoai"),
    (moe("swigluoai_uninterleave"), "swigluoai_uninterleave"),
    (moe("swiglustep"), "swiglustep"),
    (moe("situ"), "situ"),
    (moe("silu_no_mul"), "silu_no_mul"),
    (moe("gelu_tanh", swiglu_limit=7.0), "limit"),
    (moe(swiglu_alpha=1.702), "alpha=1.702"),
    (moe(swiglu_beta=1.0), "beta=1.0"),
    (moe(has_bias=True), "biases"),
    (moe(intermediate_size_per_partition=24), "24 columns"),
]
LEFT_ON_A_GPU = [*REFUSED, (moe(is_lora_enabled=True), "LoRA")]


@pytest.mark.parametrize(("config", "reason"), REFUSED)
def test_experts_that_cannot_be_computed_are_refused_by_name_on_a_cpu(config, reason, monkeypatch):
    monkeypatch.setattr(_choice, "current_platform", SimpleNamespace(is_cpu=lambda: True))
    nvfp4 = mixed({f"{EXPERTS}.0.gate_proj": algorithm("NVFP4", group_size=16)})
    with pytest.raises(NotImplementedError, match=rf"^{EXPERTS}: .*{reason}.*VLLM_PLUGINS"):
        nvfp4.get_quant_method(experts(config), EXPERTS)
    packed = compressed({"only": groups_of("compressed_qwen3_moe")["group_0"]}, format="nvfp4-pack-quantized")
    with pytest.raises(NotImplementedError, match=rf"^{EXPERTS}: .*{reason}.*VLLM_PLUGINS"):
        packed.get_quant_method(experts(config), EXPERTS)


@pytest.mark.parametrize(("config", "reason"), LEFT_ON_A_GPU)
def test_the_same_experts_are_left_to_vllm_on_a_gpu(config, reason, monkeypatch):
    monkeypatch.setattr(_choice, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    assert _choice.experts_method(EXPERTS, config, lambda: "ours", lambda: "vLLM's") == "vLLM's"
    assert _choice.experts_method(EXPERTS, moe(), lambda: "ours", lambda: "vLLM's") == "ours"


@pytest.mark.parametrize(("sides", "padded"), [((64, 32), True), ((128, 64), False), ((2880, 2880), True), ((2048, 768), False)])
def test_adapters_that_vllm_would_add_beside_padded_experts_are_told_of(sides, padded, monkeypatch, caplog):
    monkeypatch.setattr(_choice, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    monkeypatch.setattr(_choice.LOG, "propagate", True)
    hidden, columns = sides
    config = moe(is_lora_enabled=True, hidden_dim=hidden, intermediate_size_per_partition=columns)
    assert _choice.experts_method(EXPERTS, config, lambda: "ours", lambda: "vLLM's") == "vLLM's"
    assert ("adapters beside them were wrong" in caplog.text) is padded


def test_each_layer_of_a_mixed_checkpoint_of_modelopt_has_the_method_of_its_algorithm():
    config = mixed(
        {
            "model.layers.0.self_attn.q_proj": algorithm("FP8"),
            "model.layers.0.self_attn.k_proj": algorithm("FP8"),
            "model.layers.0.self_attn.v_proj": algorithm("FP8"),
            "model.layers.0.mlp.gate_proj": algorithm("NVFP4", group_size=16),
            "model.layers.0.mlp.up_proj": algorithm("NVFP4", group_size=16),
            "model.layers.0.mlp.down_proj": algorithm("MXFP8", group_size=32),
            "model.layers.1.mlp.down_proj": algorithm("W4A16_NVFP4", group_size=16),
            "model.layers.1.mlp.experts.0.up_proj": algorithm("NVFP4", group_size=16),
        },
        ignore=["model.layers.2*"],
    )
    chosen = {
        "model.layers.0.self_attn.qkv_proj": _modelopt.ModelOptHammerheadOtherLinearMethod,
        "model.layers.0.self_attn.o_proj": UnquantizedLinearMethod,
        "model.layers.0.mlp.gate_up_proj": _modelopt.ModelOptHammerheadLinearMethod,
        "model.layers.0.mlp.down_proj": _modelopt.ModelOptHammerheadOtherLinearMethod,
        "model.layers.1.mlp.down_proj": _modelopt.ModelOptHammerheadLinearMethod,
        "model.layers.2.mlp.down_proj": UnquantizedLinearMethod,
    }
    for prefix, method in chosen.items():
        assert type(config.get_quant_method(linear(), prefix)) is method, prefix
    ours = config.get_quant_method(experts(), "model.layers.1.mlp.experts")
    assert type(ours) is _modelopt.ModelOptHammerheadExperts
    assert torch.float32 in config.get_supported_act_dtypes()


def test_a_layer_of_an_unknown_algorithm_is_refused_by_name():
    """vLLM would load its weights as if they were not quantised."""
    config = mixed({"model.layers.0.mlp.down_proj": algorithm("INT8_SQ")})
    with pytest.raises(NotImplementedError, match=r"^model\.layers\.0\.mlp\.down_proj: .*INT8_SQ"):
        config.get_quant_method(linear(), "model.layers.0.mlp.down_proj")


def test_experts_that_are_quantised_in_two_ways_are_refused_by_name():
    """vLLM goes by the first that it finds."""
    config = mixed({f"{EXPERTS}.0.up_proj": algorithm("NVFP4"), f"{EXPERTS}.1.up_proj": algorithm("FP8")})
    with pytest.raises(NotImplementedError, match=rf"^{EXPERTS}: .*FP8 and NVFP4"):
        config.get_quant_method(experts(), EXPERTS)


def test_experts_that_vllm_refuses_are_refused_by_name(monkeypatch):
    def refuse(*args, **kwargs):
        raise ValueError("no kernel\nReasons: many")

    monkeypatch.setattr(_choice, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    monkeypatch.setattr(_modelopt.modelopt, "ModelOptFp8MoEMethod", refuse)
    config = mixed({f"{EXPERTS}.0.up_proj": algorithm("FP8")})
    with pytest.raises(NotImplementedError, match=rf"^{EXPERTS}: its experts are FP8, .* refuses them: no kernel$"):
        config.get_quant_method(experts(), EXPERTS)


def test_eight_bit_experts_are_plain_on_a_cpu_and_refused_by_name_if_they_cannot_be(monkeypatch):
    monkeypatch.setattr(_choice, "current_platform", SimpleNamespace(is_cpu=lambda: True))
    groups = groups_of("compressed_mixed_qwen3_moe")
    groups["group_0"]["targets"] = ["re:.*experts.*"]
    configs = {
        _modelopt.ModelOptHammerheadFp8Experts: mixed({f"{EXPERTS}.0.up_proj": algorithm("FP8")}),
        _modelopt.ModelOptHammerheadMxFp8Experts: mixed({f"{EXPERTS}.0.up_proj": algorithm("MXFP8")}),
        _compressed.CompressedTensorsHammerheadFp8Experts: compressed(groups),
    }
    for method, config in configs.items():
        assert type(config.get_quant_method(experts(), EXPERTS)) is method
        with pytest.raises(NotImplementedError, match=rf"^{EXPERTS}: .*swiglustep"):
            config.get_quant_method(experts(moe("swiglustep")), EXPERTS)


def test_other_group_sizes_are_refused_by_name():
    wide = algorithm("NVFP4", group_size=32)
    config = mixed({GATE_UP: wide, f"{EXPERTS}.0.up_proj": wide})
    for layer, prefix in ((linear(), GATE_UP), (experts(), EXPERTS)):
        with pytest.raises(NotImplementedError, match=rf"^{prefix}: .*32 weights share"):
            config.get_quant_method(layer, prefix)


@pytest.mark.usefixtures("_model_type")
def test_each_group_of_a_mixed_checkpoint_of_compressed_tensors_has_its_scheme():
    config = compressed(groups_of("compressed_mixed_qwen3"), ignore=["re:.*layers.1.*"])
    qkv, gate_up = linear(), linear()
    config.get_quant_method(qkv, "model.layers.0.self_attn.qkv_proj")
    config.get_quant_method(gate_up, GATE_UP)
    assert type(qkv.scheme) is _compressed.OtherScheme
    assert type(qkv.scheme.scheme) is schemes.CompressedTensorsW8A8Fp8
    assert type(gate_up.scheme) is _compressed.HammerheadNvFp4Scheme
    ignored = config.get_quant_method(linear(), "model.layers.1.mlp.gate_up_proj")
    assert type(ignored) is UnquantizedLinearMethod
    assert type(config.get_quant_method(experts(), EXPERTS)) is _compressed.CompressedTensorsHammerheadExperts


@pytest.mark.usefixtures("_model_type")
def test_a_checkpoint_without_nvfp4_is_vllms():
    fp8 = mixed_alone({"model.layers.0.mlp.down_proj": algorithm("FP8")})
    method = fp8.get_quant_method(linear(), "model.layers.0.mlp.down_proj")
    assert type(method) is _modelopt.modelopt.ModelOptLinearMethod
    config = compressed({"only": groups_of("compressed_mixed_qwen3")["group_0"]}, format="float-quantized")
    qkv = linear()
    config.get_quant_method(qkv, "model.layers.0.self_attn.qkv_proj")
    assert type(qkv.scheme) is schemes.CompressedTensorsW8A8Fp8


@pytest.mark.parametrize("method", ["mxfp4", "gpt_oss_mxfp4", "fp8", "modelopt", "modelopt_mxfp8"])
def test_other_quantisations_stay_vllms(method):
    assert get_quantization_config(method).__module__.startswith("vllm.")


def test_nvfp4_in_another_format_is_refused_by_name():
    group = groups_of("compressed_mixed_qwen3")["group_1"]
    config = compressed({"only": {**group, "format": "naive-quantized"}})
    with pytest.raises(NotImplementedError, match=rf"^{GATE_UP}: .*naive-quantized"):
        config.get_quant_method(linear(), GATE_UP)
    with pytest.raises(NotImplementedError, match=rf"^{EXPERTS}\.0\.gate_proj: .*naive-quantized"):
        config.get_quant_method(experts(), EXPERTS)


def test_experts_whose_tokens_are_rotated_are_refused_by_name():
    turn = {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "input", "ignore": ["re:.*self_attn.*"]}]}
    config = compressed(
        {"only": groups_of("compressed_mixed_qwen3")["group_1"]}, transform_config={"config_groups": {"r": turn}}
    )
    with pytest.raises(NotImplementedError, match=rf"^{EXPERTS}\.0\.gate_proj: .*rotates"):
        config.get_quant_method(experts(), EXPERTS)


@pytest.mark.parametrize(
    ("dtype", "rest"), [(torch.float8_e4m3fn, 1.0), (torch.float32, 0.5), (torch.uint8, 120)], ids=str
)
def test_scales_that_were_not_loaded_are_refused_by_name(dtype, rest):
    layer = SimpleNamespace(weight_scale=torch.empty(4, 2).to(dtype))
    _packed.not_a_number(layer.weight_scale)
    layer.weight_scale[:3] = torch.full((3, 2), rest).to(dtype)
    with pytest.raises(RuntimeError, match=r"^model\.layers\.7: weight_scale was not loaded"):
        _packed.check_loaded("model.layers.7", layer, "weight_scale")
    layer.weight_scale[3] = torch.full((2,), rest).to(dtype)
    _packed.check_loaded("model.layers.7", layer, "weight_scale")


def test_a_layer_whose_weight_the_model_reads_itself_is_refused_by_name():
    with pytest.raises(NotImplementedError, match=r"^model\.wo_a: "):
        _packed.check_own_product("model.wo_a", SimpleNamespace(is_bmm=True))


def test_rows_that_are_not_finite_become_nan_and_leave_others_as_they_are(four_experts):
    _, _, some = four_experts
    x, ids, weights = torch.randn(4, 64), torch.tensor([[0], [1], [2], [3]], dtype=torch.int32), torch.rand(4, 1)
    call = _calls.Call(EXPERTS)
    call.hold(some([0, 1, 2, 3]), 64)
    good = call(x, ids, weights)
    x[1, 5], weights[2] = float("inf"), float("nan")
    found = call(x, ids, weights)
    assert found[1:3].isnan().all()
    assert torch.equal(found[[0, 3]], good[[0, 3]])


def test_other_refusals_of_a_layer_are_passed_on():
    def refuse(x):
        raise ValueError("too narrow")

    call = _calls.Call(GATE_UP)
    call.hold(refuse, 64)
    with pytest.raises(ValueError, match="too narrow"):
        call(torch.ones(2, 3))


def test_layers_have_names_of_their_own_in_the_context_of_their_model(monkeypatch):
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context={}))
    monkeypatch.setattr(_calls, "get_current_vllm_config_or_none", lambda: config)
    calls = [_calls.Call(prefix) for prefix in (GATE_UP, "", "", EXPERTS, "")]
    names = [f"hammerhead:{GATE_UP}", "hammerhead:", "hammerhead:#1", f"hammerhead:{EXPERTS}", "hammerhead:#2"]
    assert config.compilation_config.static_forward_context == dict(zip(names, calls))


def test_ids_of_no_expert_stay_so():
    places = torch.tensor([-1, 0, -1, 1], dtype=torch.int32)
    ids = torch.tensor([[0, 1], [3, -1]], dtype=torch.int32)
    assert _packed.local_ids(places, ids).tolist() == [[-1, 0], [1, -1]]
    assert _packed.local_ids(None, ids) is ids


def quantised(*shape):
    """Matrices, their expansion, and their parts as vLLM's parameters hold them."""
    count = torch.Size(shape[:-2]).numel()
    wide = torch.randn(count, *shape[-2:]) / shape[-1] ** 0.5
    matrices = [hammerhead.quantize((number + 1) * one) for number, one in enumerate(wide)]
    exact = torch.stack([torch.as_tensor(one.dequantize()) for one in matrices]).reshape(shape)
    codes = torch.stack([torch.as_tensor(one.codes).view(torch.uint8) for one in matrices])
    scales = torch.stack([torch.as_tensor(one.scales).view(torch.uint8) for one in matrices]).view(torch.float8_e4m3fn)
    return exact, codes, scales, [float(one.global_scale) for one in matrices]


@pytest.fixture
def four_experts():
    torch.manual_seed(5)
    first, codes, scales, factors = quantised(4, 2, 32, 64)
    codes, scales = codes.reshape(4, 64, 32), scales.reshape(4, 64, 4)
    pairs = [factors[2 * e : 2 * e + 2] for e in range(4)]
    down, down_codes, down_scales, down_factors = quantised(4, 64, 32)

    def some(numbers, gate=("silu", None), on_input=False, **options):
        return _packed.LocalExperts(
            (codes[numbers], scales[numbers], [pairs[e] for e in numbers]),
            (down_codes[numbers], down_scales[numbers], [down_factors[e] for e in numbers]),
            gate,
            on_input,
            options,
        )

    return first, down, some


def test_experts_of_two_processes_add_up_to_all(four_experts):
    first, down, some = four_experts
    x, ids = torch.randn(5, 64), torch.tensor([[0, 2], [1, 3], [3, 0], [2, 1], [1, 0]], dtype=torch.int32)
    weights = torch.rand(5, 2)
    expected = torch.zeros(5, 64)
    for token in range(5):
        for place, e in enumerate(ids[token].tolist()):
            inner = torch.nn.functional.silu(first[e, 0] @ x[token]) * (first[e, 1] @ x[token])
            expected[token] += weights[token, place] * (down[e] @ inner)
    parts = [
        some(here)(x, _packed.local_ids(torch.tensor(places, dtype=torch.int32), ids), weights)
        for here, places in (([0, 2], [0, -1, 1, -1]), ([1, 3], [-1, 0, -1, 1]))
    ]
    torch.testing.assert_close(some([0, 1, 2, 3])(x, ids, weights), expected, rtol=0, atol=2e-4)
    torch.testing.assert_close(parts[0] + parts[1], expected, rtol=0, atol=2e-4)


def test_router_weights_on_the_input_go_through_the_activation(four_experts):
    first, down, some = four_experts
    x, ids, weights = torch.randn(3, 64), torch.tensor([[2], [0], [1]], dtype=torch.int32), torch.rand(3, 1)
    scaled = x * weights
    inner = [torch.nn.functional.silu(first[e, 0] @ t) * (first[e, 1] @ t) for e, t in zip(ids[:, 0], scaled)]
    expected = torch.stack([down[e] @ each for e, each in zip(ids[:, 0], inner)])
    found = some([0, 1, 2, 3], on_input=True)(x, ids, weights)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)


def test_the_gate_of_gpt_oss_is_computed_with_the_models_parameters(four_experts):
    first, down, some = four_experts
    gate = _packed.gate_of(moe("swigluoai_uninterleave", swiglu_limit=0.5, swiglu_alpha=1.5, swiglu_beta=0.25))
    x, ids = torch.randn(2, 64), torch.tensor([[3], [1]], dtype=torch.int32)
    expected = []
    for token, e in zip(x, ids[:, 0]):
        g, u = (first[e, 0] @ token).clamp(max=0.5), (first[e, 1] @ token).clamp(-0.5, 0.5)
        expected.append(down[e] @ (g * torch.sigmoid(1.5 * g) * (u + 0.25)))
    found = some([0, 1, 2, 3], gate)(x, ids, torch.ones(2, 1))
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=2e-4)


def said(monkeypatch, additional):
    """What the plugin makes of vLLM's ``additional_config``."""
    config = SimpleNamespace(additional_config=additional)
    monkeypatch.setattr(_options, "get_current_vllm_config_or_none", lambda: config)
    return _options.Asked()


def test_layers_are_computed_as_the_configuration_asks(monkeypatch, four_experts):
    call = _calls.Call("some.experts", experts=True)
    for additional in ({}, {"another": 1}, {"hammerhead": {}}):
        assert said(monkeypatch, additional).layer(call) == {"precision": "exact"}
    asked = said(monkeypatch, {"hammerhead": {"precision": "fp8"}}).layer(call)
    with pytest.raises(ValueError, match="ask for exact"):
        four_experts[2]([0, 1], **asked, backend="scalar")
    with pytest.raises(ValueError, match="no option tokens; there are gpu_budget, precision, stream"):
        said(monkeypatch, {"hammerhead": {"tokens": "fp8"}})
    with pytest.raises(ValueError, match="no option 'fp8'"):
        said(monkeypatch, {"hammerhead": "fp8"})
    with pytest.raises(ValueError, match="beyond gpu_budget"):
        said(monkeypatch, {"hammerhead": {"stream": True}})
    for never in (None, False, 0):
        assert said(monkeypatch, {"hammerhead": {"stream": never}}).layer(call) == {"precision": "exact"}
    for wrong in (-1, 0.5, "yes"):
        with pytest.raises(ValueError, match="hammerhead's stream: it is .*; give True, a number of rows"):
            said(monkeypatch, {"hammerhead": {"stream": wrong}})


def test_a_budget_is_shared_by_all_layers_of_experts(monkeypatch):
    if current_platform.is_cpu():
        with pytest.raises(ValueError, match="on a CPU"):
            said(monkeypatch, {"hammerhead": {"gpu_budget": "6GB"}})
    monkeypatch.setattr(_options, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context={"attention": object()}))
    monkeypatch.setattr(_calls, "get_current_vllm_config_or_none", lambda: config)
    asked = said(monkeypatch, {"hammerhead": {"gpu_budget": "6GB", "stream": 512}})
    calls = [_calls.Call(name, experts="experts" in name) for name in ("a.experts", "a.down", "b.experts", "c.experts")]
    expected = {"precision": "exact", "gpu_bytes": 2 * 10**9, "stream": 512, "backend": "cuda:1"}
    assert [asked.layer(call) for call in calls if call.experts] == 3 * [expected]
    with asked.place():
        assert torch.empty(1).device.type == "cpu"


def eight_bit(rows, columns):
    torch.manual_seed(3)
    return (torch.randn(rows, columns) * 100).to(torch.float8_e4m3fn)


EIGHT_BIT = {
    "one scale per merged matrix": (torch.tensor([0.3, 0.07]), None, lambda s: s.repeat_interleave(32)[:, None]),
    "one per row": (torch.rand(64, 1) + 0.1, None, lambda s: s),
    "one per block": (
        torch.rand(2, 1, 3, 1) + 0.1,
        (32, 32),
        lambda s: s.reshape(2, 3).repeat_interleave(32, 0).repeat_interleave(32, 1),
    ),
    "MXFP8": (
        torch.randint(110, 130, (64, 3), dtype=torch.uint8),
        (1, 32),
        lambda s: torch.exp2(s.float() - 127).repeat_interleave(32, 1),
    ),
}


@pytest.mark.parametrize("kind", EIGHT_BIT)
def test_a_product_of_eight_bit_weights_is_that_of_their_expansion(kind):
    codes, (scales, block, factors) = eight_bit(64, 96), EIGHT_BIT[kind]
    x, weight = torch.randn(5, 96), codes.float() * factors(scales)
    found = _plain.PlainLinear(codes, scales, [32, 32], block, torch.float32)(x)
    torch.testing.assert_close(found, x @ weight.T, rtol=1e-5, atol=1e-3)
    narrow = x.bfloat16()
    found = _plain.PlainLinear(codes, scales, [32, 32], block, torch.bfloat16)(narrow)
    assert found.dtype == torch.bfloat16
    exact = narrow.float() @ weight.T
    torch.testing.assert_close(found.float(), exact, rtol=2**-7, atol=2e-3 * float(exact.abs().max()))


@pytest.mark.parametrize("kind", ["one per matrix", "one per row", "MXFP8"])
@pytest.mark.parametrize("on_input", [False, True])
def test_eight_bit_experts_are_those_expanded(kind, on_input):
    first, down = eight_bit(4 * 64, 96).reshape(4, 64, 96), eight_bit(4 * 96, 32).reshape(4, 96, 32)
    if kind == "MXFP8":
        pair = [torch.randint(110, 118, shape, dtype=torch.uint8) for shape in ((4, 64, 3), (4, 96, 1))]
        factors = [torch.exp2(scales.float() - 127).repeat_interleave(32, -1) for scales in pair]
    elif kind == "one per row":
        pair = factors = [torch.rand(4, 64, 1) / 999, torch.rand(4, 96, 1) / 999]
    else:
        pair = torch.rand(4, 2) / 999, torch.rand(4) / 999
        factors = [pair[0].repeat_interleave(32, -1)[..., None], pair[1][:, None, None]]
    layer = SimpleNamespace(apply_router_weight_on_input=on_input)
    layer.w13_weight, layer.w13_weight_scale, layer.w2_weight, layer.w2_weight_scale = first, pair[0], down, pair[1]
    config = moe("swigluoai_uninterleave", swiglu_limit=0.5, swiglu_alpha=1.5, swiglu_beta=0.25)
    x, ids, weights = torch.randn(5, 96), torch.tensor([[0, 1], [2, 3], [3, 0], [1, -1], [0, 2]]), torch.rand(5, 2)
    expected = torch.zeros(5, 96)
    wide = first.float() * factors[0], down.float() * factors[1]
    for token, place in ((0, 0), (0, 1), (1, 1), (2, 0), (2, 1), (3, 0), (4, 0)):
        local, weight = [3, 1, -1, 0][ids[token, place]], weights[token, place]
        g, u = (wide[0][local] @ (x[token] * weight if on_input else x[token])).chunk(2)
        g, u = g.clamp(max=0.5), u.clamp(-0.5, 0.5)
        y = wide[1][local] @ (g * torch.sigmoid(1.5 * g) * (u + 0.25))
        expected[token] += y if on_input else weight * y
    here = _packed.local_ids(torch.tensor([3, 1, -1, 0], dtype=torch.int32), ids)
    found = _plain.PlainExperts(layer, config)(x, here, weights)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_sums_of_eight_bit_codes_do_not_overflow_half_precision():
    codes = torch.full((16, 512), 448.0).to(torch.float8_e4m3fn)
    found = _plain.PlainLinear(codes, torch.tensor([1e-3]), [16], None, torch.float16)(torch.ones(1, 512).half())
    torch.testing.assert_close(found, torch.full((1, 16), 448 * 512 * 1e-3).half())


def test_weights_stay_eight_bit_on_a_cpu_unless_their_scales_are_too_far_apart():
    for scales, block, _ in EIGHT_BIT.values():
        layer = _plain.PlainLinear(eight_bit(64, 96), scales, [32, 32], block, torch.bfloat16).layer
        assert layer is not None and layer.packed_bytes < 64 * 96 * 1.5
    # An expansion is kept in few bits only if that is exact.
    wide = torch.tensor([60, 127, 127], dtype=torch.uint8).repeat(64, 1)
    spread = torch.tensor([[2.0**-70, 1.1, 1.0]]).repeat(2, 1)
    for scales, block, held in ((wide, (1, 32), torch.bfloat16), (spread, (32, 32), torch.float32)):
        expanded = _plain.PlainLinear(eight_bit(64, 96), scales, [64], block, torch.bfloat16)
        assert expanded.layer is None and expanded.weight.dtype == held


def test_blocks_that_span_merged_matrices_are_refused_by_name():
    layer = SimpleNamespace(weight=eight_bit(64, 96), weight_scale=torch.ones(1, 1), logical_widths=[32, 32])
    layer.weight_block_size = [128, 128]
    with pytest.raises(NotImplementedError, match=r"^model\.qkv_proj: .*span two"):
        _plain.plain("model.qkv_proj", layer, torch.float32)
