"""NVFP4 checkpoints in vLLM, by the plugin that vLLM finds: models written by ModelOpt and compressed-tensors, held
against the same models with weights expanded.

Where vLLM is not installed all of this is skipped; docs/vllm.md says how to install it.
"""

import json
import os
import re

import pytest

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
vllm = pytest.importorskip("vllm")
torch = pytest.importorskip("torch")
from expansion import DATA, MIXED, MIXED_EXPERTS, MODELS, expanded, expected_model  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from vllm.distributed import cleanup_dist_env_and_memory  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.model_executor.kernels import linear as kernels  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

from hammerhead.vllm import serves  # noqa: E402

PROMPT = [3, 14, 15, 9, 2, 6, 53, 58]
# On a GPU attention by Triton, which takes single precision; it multiplies with the ten bits of TF32.
ATTENTION, APART = ({}, 1e-4) if current_platform.is_cpu() else ({"attention_config": {"backend": "TRITON_ATTN"}}, 5e-3)
if not serves(current_platform):
    pytest.skip("the plugin leaves the layers of this platform to vLLM", allow_module_level=True)


def loaded(folder, **options):
    return vllm.LLM(
        str(folder),
        skip_tokenizer_init=True,
        max_model_len=64,
        max_num_seqs=4,
        gpu_memory_utilization=0.2,
        **ATTENTION,
        **{"dtype": "float32", "enforce_eager": True, **options},
    )


def generated(model, tokens=8):
    sampling = vllm.SamplingParams(temperature=0, max_tokens=tokens, detokenize=False, logprobs=1)
    [answer] = model.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)
    [choice] = answer.outputs
    return list(choice.token_ids), [each[token].logprob for token, each in zip(choice.token_ids, choice.logprobs)]


@pytest.fixture(autouse=True)
def _groups_end_with_their_model():
    yield
    cleanup_dist_env_and_memory()


def check(model, folder, tmp_path, apart):
    """Holds tokens and their probabilities against the expanded model."""
    ids, found = generated(model)
    expected = expected_model(folder, tmp_path)
    with torch.no_grad():
        logits = expected(torch.tensor([PROMPT + ids])).logits[0, len(PROMPT) - 1 : -1].double()
    wanted = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), wanted, rtol=0, atol=apart)
    return ids == logits.argmax(-1).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_tokens_and_their_probabilities_are_those_of_the_expanded_model(name, tmp_path):
    assert check(loaded(DATA / name), DATA / name, tmp_path, APART)


def methods(module):
    """What computes each linear layer and each layer of experts."""
    found = {}
    for name, part in module.named_modules():
        method = getattr(part, "scheme", None) or getattr(part, "quant_method", None)
        if method is not None:
            found[name] = "plain" if getattr(method, "plain", None) is not None else type(method).__name__
    return found


@pytest.mark.parametrize("name", MIXED)
def test_where_vllm_has_no_kernels_for_eight_bits_mixed_models_are_those_expanded_too(name, tmp_path, monkeypatch):
    for possible in (kernels._POSSIBLE_FP8_KERNELS, kernels._POSSIBLE_MXFP8_KERNELS):
        monkeypatch.setitem(possible, current_platform._enum, [])
    model = loaded(DATA / name)
    [found] = model.apply_model(methods)
    assert found["model.layers.0.self_attn.qkv_proj"] == found["model.layers.1.self_attn.o_proj"] == "plain"
    assert any("Hammerhead" in method for method in found.values())
    assert check(model, DATA / name, tmp_path, APART)


@pytest.mark.skipif(not current_platform.is_cpu(), reason="on a GPU these experts are vLLM's")
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("name", MIXED_EXPERTS)
def test_eight_bit_experts_on_a_cpu_are_those_expanded(name, eager, tmp_path):
    model = loaded(DATA / name, enforce_eager=eager)
    [found] = model.apply_model(methods)
    assert list(found.values()).count("plain") == 2
    assert check(model, DATA / name, tmp_path, APART)


@pytest.mark.parametrize("name", MIXED)
def test_eight_bit_layers_are_left_to_vllm_where_it_can_compute_them(name, tmp_path):
    """Its kernels quantise activations too, so this is close only."""
    model = loaded(DATA / name)
    [found] = model.apply_model(methods)
    # For CPUs vLLM has no kernel that compressed-tensors' FP8 with a scale per matrix needs.
    left = not current_platform.is_cpu() or name != "compressed_mixed_qwen3_moe"
    assert (found["model.layers.0.self_attn.o_proj"] != "plain") == left
    check(model, DATA / name, tmp_path, 0.5)


def test_merged_matrices_keep_their_own_global_scales():
    """vLLM alone would take one of them for all."""
    model = loaded(DATA / "compressed_qwen3_moe")
    weights = expanded(DATA / "compressed_qwen3_moe")

    def compare(module):
        layer = module.model.layers[0]
        x = torch.sin(torch.arange(3 * 64, dtype=torch.float32)).reshape(3, 64)
        place = layer.input_layernorm.weight.device
        qkv = layer.self_attn.qkv_proj
        assert len(qkv.scheme.call.run.pieces) == 3, "the test wants scales that differ"
        merged = torch.cat([weights[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv"])
        y = qkv(x.to(place))
        torch.testing.assert_close((y[0] if isinstance(y, tuple) else y).cpu(), x @ merged.T, rtol=0, atol=2e-5)
        assert qkv.weight_packed.numel() == 0 and qkv.weight_scale.numel() == 0, "what is packed is not kept twice"

    model.apply_model(compare)


def test_a_compiled_model_generates_the_same():
    eager, _ = generated(loaded(DATA / "modelopt_qwen3_moe"))
    cleanup_dist_env_and_memory()
    # On a GPU the second of these is what vLLM has kept on disk. On CPUs vLLM 0.32 cannot load that, and traces again.
    for _ in range(2):
        compiled, _ = generated(loaded(DATA / "modelopt_qwen3_moe", enforce_eager=False))
        cleanup_dist_env_and_memory()
        assert compiled == eager


def test_activations_may_be_bfloat16():
    ids, _ = generated(loaded(DATA / "modelopt_llama", dtype="bfloat16"))
    assert len(ids) == 8


def adapter(folder, seed, names, shape_of, rank=4, alpha=8):
    """An adapter as peft writes it, of some modules of a model, and what it adds to each of their weights."""
    generator, tensors, deltas = torch.Generator().manual_seed(seed), {}, {}
    for name in names:
        n, k = shape_of(name)
        a, b = torch.randn(rank, k, generator=generator) / k**0.5, torch.randn(n, rank, generator=generator) / 2
        tensors |= {f"base_model.model.{name}.lora_A.weight": a, f"base_model.model.{name}.lora_B.weight": b}
        deltas[f"{name}.weight"] = alpha / rank * b @ a
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    modules = sorted({name.rpartition(".")[2] for name in names})
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": modules, "bias": "none"})
    )
    return deltas


@pytest.mark.skipif(not current_platform.is_cpu(), reason="experts with LoRA are ours on a CPU only")
@pytest.mark.parametrize("name", ["modelopt_qwen3_moe", "compressed_qwen3_moe", "modelopt_qwen2_moe", "compressed_qwen3"])
def test_adapters_of_requests_are_those_merged_into_the_model(name, tmp_path):
    weights = expanded(DATA / name)
    of_mlps = re.compile(r"(model\.layers\.\d+\.(?:mlp\..*_proj|self_attn\.q_proj))\.weight")
    modules = [match[1] for match in map(of_mlps.fullmatch, weights) if match]
    folders = [tmp_path / "one", tmp_path / "other"]
    # The second leaves attention alone. vLLM takes adapters of all experts of a layer, or of none.
    fewer = [module for module in modules if "self_attn" not in module]
    shape_of = lambda module: weights[f"{module}.weight"].shape
    added = [adapter(folders[0], 1, modules, shape_of), adapter(folders[1], 2, fewer, shape_of, rank=8, alpha=4)]
    model = loaded(DATA / name, enable_lora=True, max_loras=3, max_lora_rank=8)
    requests = [LoRARequest(folder.name, 1 + number, str(folder)) for number, folder in enumerate(folders)]
    sampling = vllm.SamplingParams(temperature=0, max_tokens=6, detokenize=False, logprobs=1)
    # All of them in one batch. On a CPU, vLLM's linear layers take the last slot's adapter for requests without one:
    # that slot is left empty.
    asked = [requests[0], None, requests[1], requests[0]]
    answers = model.generate([{"prompt_token_ids": PROMPT}] * 4, sampling, lora_request=asked, use_tqdm=False)
    for number, (answer, deltas) in enumerate(zip(answers, [added[0], {}, added[1], added[0]])):
        [choice] = answer.outputs
        ids, found = list(choice.token_ids), [each[token].logprob for token, each in zip(choice.token_ids, choice.logprobs)]
        folder = tmp_path / str(number)
        folder.mkdir()
        expected = expected_model(DATA / name, folder, deltas)
        with torch.no_grad():
            logits = expected(torch.tensor([PROMPT + ids])).logits[0, len(PROMPT) - 1 : -1].double()
        wanted = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), wanted, rtol=0, atol=APART)
