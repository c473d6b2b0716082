"""NVFP4 checkpoints in transformers: models written by ModelOpt and compressed-tensors themselves (``data/make.py``),
held against the same models with weights expanded."""

import contextlib
import copy
import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from expansion import DATA, MIXED, MIXED_EXPERTS, MODELS, expected_model, tensors_of  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import hammerhead.transformers  # noqa: E402
from hammerhead import budget  # noqa: E402
from hammerhead.transformers import Fp8Linear, NvFp4Experts, NvFp4Linear, NvFp4Mlp  # noqa: E402
from hammerhead.transformers.__main__ import main  # noqa: E402
from hammerhead.transformers._parts import Parts  # noqa: E402

TOKENS = torch.tensor([[3, 14, 15, 9, 2, 6, 53, 58]])


def loaded(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)


def modules(model, kind):
    return [name for name, module in model.named_modules() if isinstance(module, kind)]


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_generated_tokens_are_those_of_the_expanded_model(name, tmp_path):
    model, expected = loaded(DATA / name), expected_model(DATA / name, tmp_path)
    with torch.no_grad():
        ours, theirs = model(TOKENS).logits, expected(TOKENS).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5 * float(theirs.abs().max()))
    assert {part.rpartition(".")[2] for part in modules(model, torch.nn.Linear)} <= {"lm_head", "shared_expert_gate"}
    generate = dict(max_new_tokens=12, do_sample=False)
    assert torch.equal(model.generate(TOKENS, **generate), expected.generate(TOKENS, **generate))


@pytest.mark.parametrize("name", [*MIXED, *MIXED_EXPERTS])
def test_what_is_not_4_bit_in_a_mixed_checkpoint_is_computed_too(name, tmp_path):
    model, expected = loaded(DATA / name), expected_model(DATA / name, tmp_path)
    with torch.no_grad():
        ours, theirs = model(TOKENS).logits, expected(TOKENS).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5 * float(theirs.abs().max()))
    assert modules(model, (NvFp4Linear, NvFp4Mlp, NvFp4Experts))
    generate = dict(max_new_tokens=12, do_sample=False)
    assert torch.equal(model.generate(TOKENS, **generate), expected.generate(TOKENS, **generate))


def test_projections_mlps_and_experts_each_become_ours():
    model = loaded(DATA / "modelopt_qwen2_moe")
    assert len(modules(model, NvFp4Linear)) == 8, "q, k, v and o of two layers"
    assert modules(model, NvFp4Experts) == ["model.layers.0.mlp.experts"]
    assert modules(model, NvFp4Mlp) == ["model.layers.0.mlp.shared_expert", "model.layers.1.mlp"]


@pytest.mark.parametrize("name", ["modelopt_qwen3_moe", "compressed_qwen3"])
def test_a_saved_model_is_the_same_model(name, tmp_path):
    model = loaded(DATA / name)
    model.save_pretrained(tmp_path / "saved")
    before, after = tensors_of(DATA / name), tensors_of(tmp_path / "saved")
    packed = {key for key, tensor in before.items() if tensor.dtype in (torch.uint8, torch.float8_e4m3fn)}
    assert packed and all(torch.equal(before[key].view(torch.uint8), after[key].view(torch.uint8)) for key in packed)
    assert torch.equal(loaded(tmp_path / "saved")(TOKENS).logits, model(TOKENS).logits)


def test_a_state_dict_holds_what_is_not_packed_and_loads_again():
    model = loaded(DATA / "modelopt_llama")
    state = model.state_dict()
    assert "model.embed_tokens.weight" in state and not any("proj" in key for key in state)
    assert model.load_state_dict(state).missing_keys == []
    assert torch.equal(copy.deepcopy(model)(TOKENS).logits, model(TOKENS).logits)


def test_a_compiled_model_computes_the_same():
    model = loaded(DATA / "modelopt_qwen3_moe")
    compiled = torch.compile(model, backend="eager")
    with torch.inference_mode():
        torch.testing.assert_close(compiled(TOKENS).logits, model(TOKENS).logits, rtol=0, atol=1e-4)


def test_activations_may_be_bfloat16():
    model = transformers.AutoModelForCausalLM.from_pretrained(DATA / "modelopt_qwen3_moe")
    assert model.dtype == torch.bfloat16
    logits, exact = model(TOKENS).logits, loaded(DATA / "modelopt_qwen3_moe")(TOKENS).logits
    assert logits.dtype == torch.bfloat16
    assert (logits.float() - exact).abs().max() < 0.05 * exact.abs().max()


def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def random_llama(folder):
    """A checkpoint in ModelOpt's layout that is large beside what else a process takes, and the bytes of its packed
    weights."""
    hidden, inner, layers = 1024, 4096, 4
    settings = json.loads((DATA / "modelopt_llama/config.json").read_text())
    settings.update(hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, head_dim=64)
    settings.update(num_attention_heads=16, num_key_value_heads=16)
    tensors = {"model.norm.weight": torch.ones(hidden)}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = torch.randn(64, hidden)
    for layer in range(layers):
        stem = f"model.layers.{layer}"
        tensors.update({f"{stem}.{part}.weight": torch.ones(hidden) for part in ("input_layernorm", "post_attention_layernorm")})
        shapes = {f"self_attn.{part}_proj": (hidden, hidden) for part in "qkvo"}
        shapes.update({"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)})
        for part, (n, k) in shapes.items():
            tensors[f"{stem}.{part}.weight"] = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
            tensors[f"{stem}.{part}.weight_scale"] = torch.ones(n, k // 16).to(torch.float8_e4m3fn)
            tensors[f"{stem}.{part}.weight_scale_2"] = torch.tensor(0.01)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return sum(tensor.nbytes for name, tensor in tensors.items() if "_proj" in name)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says how much memory was used at most")
def test_no_expanded_copy_is_made(tmp_path):
    packed = random_llama(tmp_path / "model")
    # What libraries load at their first use is not the model's.
    loaded(DATA / "modelopt_llama").generate(TOKENS, max_new_tokens=2, do_sample=False)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    model.generate(TOKENS, max_new_tokens=2, do_sample=False)
    # The file's pages and the packed weights, and as much again for all else: expanded weights alone would be 3.6 times
    # as much.
    used = memory("VmHWM") - before
    assert used < 3 * packed, f"{used / packed:.2f} times the packed weights"


def test_other_formats_of_compressed_tensors_are_left_to_transformers():
    from transformers.quantizers import auto

    given = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    original = auto.AUTO_QUANTIZATION_CONFIG_MAPPING["compressed-tensors"].left_to
    assert original.__name__ == "CompressedTensorsConfig"
    try:
        found = type(auto.AutoQuantizationConfig.from_dict(given))
    except ImportError as error:
        assert "compressed-tensors" in str(error)
    else:
        assert found is original


def changed(tmp_path, name, change=None, config=None):
    """A copy of a model, with its tensors and its configuration changed."""
    folder = tmp_path / name
    shutil.copytree(DATA / name, folder)
    if change is not None:
        tensors = tensors_of(folder)
        for file in folder.glob("*.safetensors*"):
            file.unlink()
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    if config is not None:
        settings = json.loads((folder / "config.json").read_text())
        config(settings)
        (folder / "config.json").write_text(json.dumps(settings))
    return folder


def test_a_checkpoint_that_does_not_say_what_it_is_loads_when_told(tmp_path):
    folder = changed(tmp_path, "modelopt_llama", config=lambda settings: settings.pop("quantization_config"))
    model = loaded(folder, quantization_config=hammerhead.transformers.NvFp4Config())
    assert torch.equal(model(TOKENS).logits, loaded(DATA / "modelopt_llama")(TOKENS).logits)


def test_a_checkpoint_that_only_hf_quant_config_describes_is_found(tmp_path):
    folder = changed(tmp_path, "modelopt_llama", config=lambda settings: settings.pop("quantization_config"))
    declared = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (folder / "hf_quant_config.json").write_text(json.dumps(declared))
    assert torch.equal(loaded(folder)(TOKENS).logits, loaded(DATA / "modelopt_llama")(TOKENS).logits)


@pytest.mark.parametrize("scales", ["tensor", "row", "block"])
def test_fp8_weights_beside_nvfp4_ones_are_computed_with_their_scales(tmp_path, scales):
    name, expected = "model.layers.1.self_attn.q_proj", {}

    def mixed(tensors):
        weight = torch.randn(64, 64).to(torch.float8_e4m3fn)
        scale = {"tensor": torch.tensor(0.03), "row": torch.rand(64, 1) / 9, "block": torch.rand(2, 2) / 9}[scales]
        tensors[f"{name}.weight"] = weight
        tensors[f"{name}.weight_scale_inv" if scales == "block" else f"{name}.weight_scale"] = scale
        del tensors[f"{name}.weight_scale_2"]
        if scales == "block":
            del tensors[f"{name}.weight_scale"]
        whole = scale if scales != "block" else scale.repeat_interleave(32, 0).repeat_interleave(32, 1)
        expected["weight"] = weight.float() * whole

    model = loaded(changed(tmp_path, "modelopt_llama", mixed))
    assert modules(model, Fp8Linear) == [name]
    layer = model.get_submodule(name)
    assert torch.equal(layer.weight, expected["weight"])
    x = torch.randn(5, 64)
    torch.testing.assert_close(layer(x).double(), x.double() @ expected["weight"].double().T, rtol=1e-5, atol=1e-5)
    assert layer.layer.packed_bytes < 64 * 64 * 2, "no expansion"
    assert len(modules(model, NvFp4Linear)) == 7, "all other projections of two layers"


def test_fp8_scales_that_cannot_be_computed_with_have_their_weight_expanded(tmp_path):
    name = "model.layers.1.self_attn.q_proj"

    def wide(tensors):
        tensors[f"{name}.weight"] = torch.ones(64, 64).to(torch.float8_e4m3fn)
        tensors[f"{name}.weight_scale"] = torch.tensor([60, 127], dtype=torch.uint8).repeat(64, 1)
        del tensors[f"{name}.weight_scale_2"]

    with pytest.warns(UserWarning, match=rf"{name} is expanded: row 0 .* span 67 powers of two"):
        model = loaded(changed(tmp_path, "modelopt_llama", wide))
    assert not modules(model, Fp8Linear)
    assert torch.equal(model.get_parameter(f"{name}.weight")[0, [0, 63]], torch.tensor([2.0**-67, 1.0]))


def test_every_fp8_linear_layer_of_a_mixed_checkpoint_stays_fp8(tmp_path):
    for name in MIXED:
        model = loaded(DATA / name)
        fp8 = [tensor.rpartition(".")[0] for tensor, values in tensors_of(DATA / name).items() if values.dtype == torch.float8_e4m3fn and tensor.endswith(".weight")]
        assert fp8 and sorted(modules(model, Fp8Linear)) == sorted(fp8), name
        expected = expected_model(DATA / name, tmp_path)
        assert model.num_parameters() == expected.num_parameters()
        model.save_pretrained(tmp_path / f"{name}-again")
        again = loaded(tmp_path / f"{name}-again")
        assert torch.equal(again(TOKENS).logits, model(TOKENS).logits)


def test_parameters_and_bytes_are_counted_packed_or_not(tmp_path):
    model, expected = loaded(DATA / "modelopt_qwen3_moe"), expected_model(DATA / "modelopt_qwen3_moe", tmp_path)
    assert model.num_parameters() == expected.num_parameters()
    assert model.num_parameters(only_trainable=True) == 0
    packed = sum(tensor.nbytes for name, tensor in tensors_of(DATA / "modelopt_qwen3_moe").items() if name.endswith(("_proj.weight", "_proj.weight_scale")))
    plain = sum(parameter.nbytes for parameter in model.parameters()) + sum(buffer.nbytes for buffer in model.buffers())
    assert plain + packed <= model.get_memory_footprint() < 1.5 * (plain + packed)
    assert model.get_memory_footprint() < expected.get_memory_footprint()


class Doubled(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        return 2 * super().forward(x)


def test_an_mlp_with_a_forward_of_its_own_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.models.llama.modeling_llama, "LlamaMLP", Doubled)
    model, expected = loaded(DATA / "modelopt_llama"), expected_model(DATA / "modelopt_llama", tmp_path)
    assert not modules(model, NvFp4Mlp) and len(modules(model, NvFp4Linear)) == 14
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS).logits, expected(TOKENS).logits, rtol=0, atol=2e-4)


def test_a_check_is_left_out_where_its_class_is_named(monkeypatch):
    monkeypatch.setattr(transformers.models.llama.modeling_llama, "LlamaMLP", Doubled)
    said = hammerhead.transformers.NvFp4Config(unchecked={"Doubled": "silu"})
    with pytest.warns(UserWarning, match="already has a `quantization_config`"):
        model = loaded(DATA / "modelopt_llama", quantization_config=said)
    assert len(modules(model, NvFp4Mlp)) == 2


def test_experts_that_compute_something_else_keep_their_code_and_say_so(tmp_path, monkeypatch):
    kind = transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeExperts

    class Scaled(kind):
        def forward(self, hidden_states, top_k_index, top_k_weights):
            return 1.5 * super().forward(hidden_states, top_k_index, top_k_weights)

    monkeypatch.setattr(transformers.models.qwen3_moe.modeling_qwen3_moe, "Qwen3MoeExperts", Scaled)
    with pytest.warns(UserWarning, match=r"model\.layers\.0\.mlp\.experts: Scaled computes something else"):
        model = loaded(DATA / "modelopt_qwen3_moe")
    expected = expected_model(DATA / "modelopt_qwen3_moe", tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS).logits, expected(TOKENS).logits, rtol=0, atol=2e-4)


def test_a_tensor_that_the_model_has_no_use_for_is_left_out_with_a_warning(tmp_path):
    def extra(tensors):
        for part in ("weight", "weight_scale", "weight_scale_2"):
            tensors[f"extra.{part}"] = tensors[f"model.layers.0.self_attn.q_proj.{part}"].clone()

    folder = changed(tmp_path, "modelopt_llama", extra)
    with pytest.warns(UserWarning, match=r"extra\.weight: no parameter of LlamaForCausalLM"):
        model = loaded(folder)
    assert torch.equal(model(TOKENS).logits, loaded(DATA / "modelopt_llama")(TOKENS).logits)


def test_a_key_mapping_of_the_caller_s_is_followed(tmp_path):
    def renamed(tensors):
        for name in [name for name in tensors if name.startswith("model.")]:
            tensors[name.replace("model.", "decoder.", 1)] = tensors.pop(name)

    folder = changed(tmp_path, "modelopt_qwen3_moe", renamed)
    model = loaded(folder, key_mapping={"^decoder": "model"})
    assert torch.equal(model(TOKENS).logits, loaded(DATA / "modelopt_qwen3_moe")(TOKENS).logits)
    model.save_pretrained(tmp_path / "saved")
    assert tensors_of(tmp_path / "saved").keys() == tensors_of(folder).keys()


def test_a_model_without_nvfp4_weights_is_refused(tmp_path):
    def plain(tensors):
        names = [name for name in tensors if name.endswith((".weight_scale", ".weight_scale_2", ".input_scale"))]
        for name in names:
            del tensors[name]

    with pytest.raises(ValueError, match="no weight in these files is NVFP4"):
        loaded(changed(tmp_path, "modelopt_llama", plain))


def test_another_algorithm_is_refused(tmp_path):
    folder = changed(tmp_path, "modelopt_llama", config=lambda s: s["quantization_config"].update(quant_algo="FP8"))
    with pytest.raises(ValueError, match="quant_algo is FP8"):
        loaded(folder)


def test_an_fp8_weight_without_a_scale_is_refused_by_name(tmp_path):
    def mixed(tensors):
        name = "model.layers.1.self_attn.q_proj"
        tensors[f"{name}.weight"] = torch.zeros(64, 64).to(torch.float8_e4m3fn)
        del tensors[f"{name}.weight_scale_2"], tensors[f"{name}.weight_scale"]

    with pytest.raises(ValueError, match=r"model\.layers\.1\.self_attn\.q_proj\.weight is FP8, and has 0 scales"):
        loaded(changed(tmp_path, "modelopt_llama", mixed))


@pytest.mark.parametrize(
    ("dtype", "beside", "said"),
    [
        (torch.int8, None, "q_proj.weight is I8 in the files, with .*weight_scale, and is not read here"),
        (torch.float8_e4m3fn, "weight_zero_point", "weight_zero_point stands beside .*q_proj.weight, which is FP8"),
        (torch.float8_e4m3fn, "pre_quant_scale", "pre_quant_scale stands beside .*q_proj.weight, which is FP8"),
        (torch.float8_e4m3fn, "lora_A.weight", "lora_A.weight stands beside .*q_proj.weight, which is FP8"),
        (None, "weight_zero_point", "weight_zero_point.*nothing here computes with it"),
    ],
)
def test_weights_beside_which_more_is_stored_than_is_read_are_refused_by_name(tmp_path, dtype, beside, said):
    def mixed(tensors):
        name = "model.layers.1.self_attn.q_proj"
        if dtype is not None:
            tensors[f"{name}.weight"] = torch.ones(64, 64).to(dtype)
            tensors[f"{name}.weight_scale"] = torch.tensor(0.03)
            del tensors[f"{name}.weight_scale_2"], tensors[f"{name}.input_scale"]
        if beside is not None:
            tensors[f"{name}.{beside}"] = torch.ones(64)

    with pytest.raises(ValueError, match=said):
        loaded(changed(tmp_path, "modelopt_llama", mixed))


def test_a_tied_head_that_is_quantised_is_refused_by_name(tmp_path):
    def quantised(tensors):
        for part in ("weight", "weight_scale", "weight_scale_2"):
            source = tensors[f"model.layers.0.self_attn.q_proj.{part}"]
            tensors[f"lm_head.{part}"] = source.clone()

    folder = changed(tmp_path, "modelopt_llama", quantised, lambda settings: settings.update(tie_word_embeddings=True))
    with pytest.raises(ValueError, match="lm_head is NVFP4, but its weight is tied"):
        loaded(folder)


def test_weights_without_a_module_are_refused_by_name(tmp_path):
    def renamed(tensors):
        for name in [name for name in tensors if "layers.0.self_attn.q_proj" in name]:
            tensors[name.replace("q_proj", "qkv_proj")] = tensors.pop(name)

    with pytest.raises(ValueError, match=r"layers\.0\.self_attn\.qkv_proj\.weight is quantised.*LlamaForCausalLM has no"):
        loaded(changed(tmp_path, "modelopt_llama", renamed))


GPU = torch.cuda.is_available() and hammerhead.backends().get("cuda", "") is None


@pytest.mark.skipif(GPU, reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="cuda:0 was asked for, and this machine's GPU cannot be used"):
        loaded(DATA / "modelopt_llama", device_map="cuda:0")
    assert loaded(DATA / "modelopt_llama", device_map="auto").device.type == "cpu"


def test_places_without_packed_weights_are_refused():
    for place in ("disk", "meta"):
        with pytest.raises(ValueError, match=f"device_map: {place} was asked for"):
            loaded(DATA / "modelopt_llama", device_map={"": place})


@pytest.mark.skipif(not GPU, reason="no GPU that this package can use")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_a_gpu_computes_what_the_expanded_one_does(name, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(DATA / name, dtype=torch.bfloat16, device_map="auto")
    assert model.device.type == "cuda"
    expected = expected_model(DATA / name, tmp_path)
    with torch.no_grad():
        ours, theirs = model(TOKENS.cuda()).logits.cpu().float(), expected(TOKENS).logits
    assert (ours - theirs).abs().max() < 0.05 * theirs.abs().max()
    generated = model.generate(TOKENS.cuda(), max_new_tokens=12, do_sample=False)
    assert torch.equal(generated, model.generate(TOKENS.cuda(), max_new_tokens=12, do_sample=False))


@pytest.mark.skipif(not GPU, reason="no GPU that this package can use")
@pytest.mark.parametrize("name", ["modelopt_llama", "modelopt_qwen3_moe"])
def test_replayed_steps_are_those_that_were_queued(name):
    model = transformers.AutoModelForCausalLM.from_pretrained(DATA / name, dtype=torch.bfloat16, device_map="auto")
    asked = {"max_new_tokens": 12, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    queued = model.generate(TOKENS.cuda(), **asked, cache_implementation="static", disable_compile=True)
    hammerhead.transformers.replay_steps(model)
    for _ in range(2):
        replayed = model.generate(TOKENS.cuda(), **asked)
        assert torch.equal(replayed.sequences, queued.sequences)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(replayed.logits, queued.logits, strict=True))


@pytest.mark.skipif(not GPU, reason="no GPU that this package can use")
def test_compiled_steps_differ_by_rounding():
    model = transformers.AutoModelForCausalLM.from_pretrained(DATA / "modelopt_qwen3_moe", dtype=torch.bfloat16, device_map="cuda")
    asked = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    queued = model.generate(TOKENS.cuda(), **asked, cache_implementation="static", disable_compile=True)
    hammerhead.transformers.replay_steps(model, compile=True)
    replayed = model.generate(TOKENS.cuda(), **asked)
    for ours, theirs in zip(replayed.logits, queued.logits, strict=True):
        assert (ours - theirs).norm() < 0.05 * theirs.norm()


class Recorded:
    """A graph as torch's are: what was called while it was recorded is called again on the same tensors."""

    calls = []

    def replay(self):
        self.again()
        Recorded.calls.append(self)


def recorded_by_calling(monkeypatch):
    """Lets processors record: a call is made, what it did to the cache is undone, and it is made again to replay it."""
    steps = hammerhead.transformers._steps
    plain, record = steps._shape, steps.Step.record

    def recorded(step, forward, arguments):
        layers = arguments["past_key_values"].layers
        before = [[part.clone() for part in (layer.keys, layer.values, layer.cumulative_length)] for layer in layers]
        record(step, forward, arguments)
        for layer, parts in zip(layers, before):
            for part, old in zip((layer.keys, layer.values, layer.cumulative_length), parts):
                part.copy_(old)
        held = {**step.arguments, "past_key_values": arguments["past_key_values"]}

        def again():
            for name, value in forward(**held).items():
                if name in step.outputs:
                    step.outputs[name].copy_(value)

        step.graph.again = again

    monkeypatch.setattr(steps, "_shape", lambda value: (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else plain(value))
    monkeypatch.setattr(steps.Step, "record", recorded)
    monkeypatch.setattr(Recorded, "calls", [])
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorded)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(steps, "_is_on_gpu", lambda model: True)


@pytest.mark.parametrize("compile", [False, True])
def test_steps_are_recorded_once_per_cache_and_replayed(monkeypatch, compile):
    model = loaded(DATA / "modelopt_qwen3_moe")
    asked = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(TOKENS)}
    queued = model.generate(TOKENS, **asked, cache_implementation="static")
    recorded_by_calling(monkeypatch)
    monkeypatch.setattr(hammerhead.transformers._steps, "Parts", functools.partial(Parts, backend="eager"))
    hammerhead.transformers.replay_steps(model, compile=compile)
    for graphs in (1, 2):
        assert torch.equal(model.generate(TOKENS, **asked), queued)
        # Of twelve tokens the prompt gives one, and the first step is queued.
        assert len(Recorded.calls) == 10 * graphs and len(set(Recorded.calls)) == graphs
    # Without a cache of fixed size nothing is recorded.
    with torch.inference_mode():
        model(input_ids=TOKENS[:, :1], past_key_values=transformers.DynamicCache(), use_cache=True)
    assert len(Recorded.calls) == 20


class Divided:
    """The native half of a layer of which the processor has all experts but one, and what went wrong there."""

    def __init__(self, native):
        self.native, self.resident, self.failure = native, [0], None
        self.asked = [0] * native.count

    def __getattr__(self, name):
        return getattr(self.native, name)

    def check_host(self):
        failure, self.failure = self.failure, None
        if failure:
            raise RuntimeError(failure)

    def place(self, experts, device, stream):
        self.resident = experts


def divided(model):
    layers = [module.layer for module in model.modules() if isinstance(module, NvFp4Experts)]
    for layer in layers:
        layer._layer = Divided(layer._layer)
    return [layer._layer for layer in layers]


def test_what_the_processor_could_not_compute_is_told_by_the_next_replayed_step(monkeypatch):
    model = loaded(DATA / "modelopt_qwen3_moe")
    layers = divided(model)
    recorded_by_calling(monkeypatch)
    hammerhead.transformers.replay_steps(model)
    asked = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(TOKENS)}
    model.generate(TOKENS, **asked)
    replay, replayed = Recorded.replay, []

    def failing(graph):
        replay(graph)
        replayed.append(graph)
        for layer in layers:
            layer.failure = "a worker has died"

    monkeypatch.setattr(Recorded, "replay", failing)
    with pytest.raises(RuntimeError, match="a worker has died"):
        model.generate(TOKENS, **asked)
    assert len(replayed) == 1 and len(layers) > 0
    # It is told once, of whichever layers.
    hammerhead.transformers.check_host(model)
    layers[-1].failure = "a worker has died"
    with pytest.raises(RuntimeError, match="a worker has died"):
        hammerhead.transformers.check_host(model)


def test_experts_of_a_model_are_placed_by_what_was_asked_for(monkeypatch):
    model = loaded(DATA / "modelopt_qwen3_moe")
    layers = divided(model)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    assert hammerhead.transformers.place_hottest(model) == 0
    for layer in layers:
        layer.asked = [0, 100, *layer.asked[2:]]
    heat = json.loads(json.dumps(hammerhead.transformers.heat(model)))
    assert set(heat) == set(modules(model, NvFp4Experts)) and all(hot[1] == 100 for hot in heat.values())
    assert hammerhead.transformers.place_hottest(model) == len(layers) and all(layer.resident == [1] for layer in layers)
    again = loaded(DATA / "modelopt_qwen3_moe")
    layers = divided(again)
    assert hammerhead.transformers.place_hottest(again, heat=heat) == len(layers) and all(layer.resident == [1] for layer in layers)


def test_norms_and_routers_are_compiled_and_nothing_else():
    model = loaded(DATA / "modelopt_qwen3_moe")
    # As accelerate's hooks are.
    hooked = model.model.norm
    hooked.forward = hooked.forward
    seen = []

    def watched(graph, inputs):
        seen.append(graph)
        return graph

    torch.compiler.reset()
    parts = Parts(model, backend=watched, fullgraph=True)
    assert {type(module).__name__ for module, _ in parts.compiled} == {"Qwen3MoeRMSNorm", "Qwen3MoeTopKRouter", "Qwen3MoeRotaryEmbedding"}
    assert hooked not in [module for module, _ in parts.compiled]
    with torch.no_grad():
        expected = model(TOKENS).logits
        assert not seen
        with parts.in_use():
            assert torch.equal(model(TOKENS).logits, expected)
        assert 0 < len(seen) < len(parts.compiled), "modules of a class share what is compiled"
        compiled = len(seen)
        model(TOKENS[:, :3])
    assert len(seen) == compiled, "other calls are as they were"


def test_a_processors_steps_are_not_replayed():
    with pytest.raises(ValueError, match="replay_steps: the model is on cpu"):
        hammerhead.transformers.replay_steps(loaded(DATA / "modelopt_llama"))
    with pytest.raises(SystemExit, match="replay_steps: the model is on cpu"):
        main([str(DATA / "modelopt_llama"), "--prompt", "3", "--replay"])


def test_experts_of_a_plain_model_are_quantised_when_asked(tmp_path):
    plain = expected_model(DATA / "modelopt_qwen3_moe", tmp_path)
    with torch.inference_mode():
        exact = plain(TOKENS).logits
        plain.set_experts_implementation("hammerhead")
        logits = plain(TOKENS).logits
    assert 0 < (logits - exact).abs().max() < 0.2 * exact.abs().max()


def test_the_command_streams_and_reports():
    command = [sys.executable, "-m", "hammerhead.transformers", DATA / "modelopt_llama", "--prompt", "3,14,15", "--tokens", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) == 8
    assert "tokens/s" in done.stderr and "MiB" in done.stderr


def test_the_command_places_experts_and_predicts(tmp_path, monkeypatch, capsys):
    runner = sys.modules["hammerhead.transformers.__main__"]
    machine, placed, heat = budget.Machine.of_rates, [], tmp_path / "heat.json"
    monkeypatch.setattr(budget, "measure_machine", lambda model: machine(model, 1e9, 1e12))
    monkeypatch.setattr(runner, "place_hottest", lambda model, heat=None: placed.append(heat) or 2)
    asked = ["--prompt", "3,14,15", "--gpu-budget", "1MB", "--tokens", "7", "--place-every", "2", "--heat", str(heat), "--predict"]
    main([str(DATA / "modelopt_qwen3_moe"), *asked])
    # After the second token, the fourth, and the sixth.
    assert placed == [None] * 3
    said = capsys.readouterr().err
    assert "6 experts were moved" in said and "predicted, without what the program does around the experts: 0.00 s, then" in said
    assert not heat.exists(), "on a processor all experts lie in one place, and nothing was counted"
    heat.write_text('{"a layer": [1, 2]}')
    main([str(DATA / "modelopt_qwen3_moe"), *asked[:-1]])
    assert placed[3:] == [{"a layer": [1, 2]}, None, None, None]
    assert json.loads(heat.read_text()) == {"a layer": [1, 2]}, "what an earlier run counted is kept"
    for text, why in (("{", "it is no JSON"), ("[1]", "it holds no counts"), ('{"a": [null]}', "it holds no counts")):
        heat.write_text(text)
        with pytest.raises(SystemExit, match=f"heat.json: {why}"):
            main([str(DATA / "modelopt_qwen3_moe"), *asked])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--stream"], "stream: it is for experts beyond gpu_budget"),
        (["--whole-layers"], "whole_layers: it is for experts beyond gpu_budget"),
        (["--place-every", "8"], "--place-every: it is for experts beyond --gpu-budget"),
        (["--heat", "heat.json"], "--heat: it is for experts beyond --gpu-budget"),
        (["--predict"], "--predict: it is for experts beyond --gpu-budget"),
        (["--gpu-budget", "much"], "'much' is no size"),
    ],
)
def test_the_command_refuses_what_would_have_no_effect(options, said):
    with pytest.raises(SystemExit, match=said):
        main([str(DATA / "modelopt_qwen3_moe"), "--prompt", "3", *options])


@pytest.mark.parametrize("tokens", ["0", "-1", "some"])
def test_the_command_generates_one_token_at_least(tokens, capsys):
    with pytest.raises(SystemExit):
        main([str(DATA / "modelopt_llama"), "--prompt", "3", "--tokens", tokens])
    assert "give a number above 0" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["./missing", "../missing", "/a/folder/that/is/missing", "two words"])
def test_the_command_says_that_a_folder_is_missing(missing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([missing])
    assert str(ended.value) == f"{missing}: no such folder, and not a hub name"


def test_the_command_says_that_what_may_be_a_hub_name_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SystemExit) as ended:
        main(["missing/model"])
    assert str(ended.value).startswith("missing/model: no such folder; as a name on the hub: ")


def test_a_budget_is_bytes_or_a_number_with_a_unit():
    config = hammerhead.transformers.NvFp4Config
    sizes = {"60GB": 60 * 10**9, "24.5 GiB": int(24.5 * 2**30), "512mb": 512 * 10**6, 1000: 1000, "7": 7}
    for said, found in sizes.items():
        assert config(gpu_budget=said).gpu_budget == found
    for said in ("60 G", "much", "-1GB", "1e400", ""):
        with pytest.raises(ValueError, match="gpu_budget.*60GB"):
            config(gpu_budget=said)
    assert config().gpu_budget is None and "gpu_budget" not in config(gpu_budget="1GB").to_dict()


def test_a_budget_counts_once_what_lies_on_the_gpu_and_says_when_it_is_too_small(monkeypatch):
    from hammerhead.transformers import _quantizer

    monkeypatch.setattr(_quantizer, "backend_at", lambda place: "cuda" if place == "cuda" else None)
    layer = loaded(DATA / "modelopt_qwen3_moe").model.layers[1].mlp
    model = torch.nn.ModuleDict({name: torch.nn.Linear(50, 2, bias=False) for name in ("first", "second", "third", "head", "away")})
    model["head"].register_buffer("table", torch.zeros(25))
    model["packed"], model["shared"] = layer, copy.copy(layer)

    def shares(budget, **options):
        quantizer = _quantizer.NvFp4Quantizer(hammerhead.transformers.NvFp4Config(gpu_budget=budget, **options))
        quantizer.device_map = {"away": "cpu", "third": "cpu", **dict.fromkeys(("first", "second", "head", "packed", "shared"), "cuda")}
        quantizer.plan.experts = dict.fromkeys(("first", "second", "third"))
        return quantizer._shares(model)

    assert isinstance(layer, NvFp4Mlp) and model["shared"].layer is layer.layer
    beside = 4 * (100 + 25) + layer.layer.packed_bytes
    assert shares(beside + 1000) == {"first": 500, "second": 500}
    assert shares(beside + 70, whole_layers=True) == {"second": 14}
    with pytest.warns(UserWarning, match="gpu_budget is .* GB, and what is no expert takes .* the budget is exceeded"):
        assert shares(beside - 1) == {"first": 0, "second": 0}


def test_where_experts_lie_is_asked_for_with_a_budget():
    config = hammerhead.transformers.NvFp4Config
    for never in (None, False, 0):
        config(stream=never)
    for options, said in [({"stream": True}, "stream: it is for"), ({"stream": 8}, "stream: it is for"), ({"whole_layers": True}, "whole_layers: it is for")]:
        with pytest.raises(ValueError, match=f"{said} experts beyond gpu_budget"):
            config(**options)
        config(gpu_budget="1GB", **options)
    with pytest.raises(ValueError, match="stream: it is -1; give True"):
        config(gpu_budget="1GB", stream=-1)
    # A processor has all experts, whatever was asked for.
    model = loaded(DATA / "modelopt_qwen3_moe", quantization_config=config(gpu_budget="1GB", stream=True))
    assert all(module.layer.streams_from is None for module in model.modules() if isinstance(module, NvFp4Experts))


def test_whole_layers_take_a_budget_in_order():
    from hammerhead.transformers._quantizer import shared_in_order

    layers = {"first": 1600, "second": 1600, "third": 1600}
    assert shared_in_order(layers, 10**6) == {}
    assert shared_in_order(layers, 1000) == {"second": 91, "third": 0}
    assert shared_in_order(layers, 0) == dict.fromkeys(layers, 0)


@pytest.mark.parametrize(("experts", "is_ours"), [("fp4", True), ("fp8", False), (None, False)])
def test_of_models_that_declare_fp8_those_with_4_bit_experts_are_ours(experts, is_ours):
    pytest.importorskip("transformers.models.deepseek_v4")
    from transformers import AutoConfig, modeling_utils

    declared = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    told = {} if experts is None else {"expert_dtype": experts}
    config = AutoConfig.for_model("deepseek_v4", quantization_config=declared, **told)
    quantizer, config, _ = modeling_utils.get_hf_quantizer(config, None, "cpu", True, {})
    assert (type(quantizer).__name__ == "NvFp4Quantizer") == is_ours
    assert config.quantization_config.to_dict()["quant_method"] == "fp8"


def test_a_model_that_declares_nothing_is_not_told_that_it_declares_none():
    from transformers import AutoConfig
    from hammerhead.transformers import _register

    config, seen = AutoConfig.for_model("llama"), []

    def original(config, *_):
        seen.append(hasattr(config, "quantization_config"))
        return None, config, None

    before = hasattr(config, "quantization_config")
    _register._finding_quantizers(original)(config, hammerhead.transformers.NvFp4Config())
    assert seen == [before]


def test_fp8_is_asked_for_by_the_user_and_never_by_a_file(tmp_path):
    with pytest.raises(ValueError, match="ask for exact"):
        loaded(DATA / "modelopt_llama", quantization_config=hammerhead.transformers.NvFp4Config(precision="fp8"))
    folder = changed(tmp_path, "modelopt_llama", config=lambda s: s["quantization_config"].update(precision="fp8"))
    model = loaded(folder)
    assert model.config.quantization_config.to_dict()["precision"] == "fp8", "what a file says is kept"
    with torch.no_grad():
        assert torch.equal(model(TOKENS).logits, loaded(DATA / "modelopt_llama")(TOKENS).logits)


def test_a_models_intermediates_may_be_nvfp4():
    asked = hammerhead.transformers.NvFp4Config(intermediate="nvfp4")
    rounded, exact = (loaded(DATA / "modelopt_llama", **said) for said in ({"quantization_config": asked}, {}))
    with torch.no_grad():
        difference = rounded(TOKENS).logits - exact(TOKENS).logits
    assert 0 < difference.abs().max() < 1
