"""NVFP4 checkpoints in vLLM, by the plugin that vLLM finds: models written by ModelOpt and compressed-tensors, held
against the same models with weights expanded.

Where vLLM is not installed all of this is skipped; docs/vllm.md says how to install it.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
vllm = pytest.importorskip("vllm")
torch = pytest.importorskip("torch")
from expansion import DATA, MIXED, MIXED_EXPERTS, MODELS, expanded, expected_model  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from vllm.compilation.counter import compilation_counter  # noqa: E402
from vllm.distributed import cleanup_dist_env_and_memory  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.model_executor.kernels import linear as kernels  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

import hammerhead  # noqa: E402
from hammerhead.vllm import serves  # noqa: E402

PROMPT = [3, 14, 15, 9, 2, 6, 53, 58]
ON_CPU = current_platform.is_cpu()
on_a_gpu = pytest.mark.skipif(ON_CPU, reason="on a CPU there is no such thing")
# On a GPU attention by Triton, which takes single precision; it multiplies with the ten bits of TF32. The size of the
# cache is given: otherwise vLLM measures free memory, and refuses to start while another process gives some back.
PLACE, APART = {}, 1e-4
if not ON_CPU:
    PLACE, APART = {"attention_config": {"backend": "TRITON_ATTN"}, "kv_cache_memory_bytes": 1 << 28}, 5e-3
if not serves(current_platform):
    pytest.skip("the plugin leaves the layers of this platform to vLLM", allow_module_level=True)


def loaded(folder, **options):
    return vllm.LLM(
        str(folder),
        skip_tokenizer_init=True,
        max_model_len=64,
        max_num_seqs=4,
        gpu_memory_utilization=0.2,
        **PLACE,
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


@pytest.mark.skipif(not ON_CPU, reason="on a GPU these experts are vLLM's")
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("name", MIXED_EXPERTS)
def test_eight_bit_experts_on_a_cpu_are_those_expanded(name, eager, tmp_path):
    model = loaded(DATA / name, enforce_eager=eager)
    [found] = model.apply_model(methods)
    assert list(found.values()).count("plain") == 2
    assert check(model, DATA / name, tmp_path, APART)


@pytest.mark.parametrize("name", MIXED)
def test_eight_bit_layers_are_left_to_vllm_where_it_can_compute_them(name, tmp_path):
    """Its kernels quantise activations too, so this is close only. Many have 16-bit results alone."""
    model = loaded(DATA / name, dtype="bfloat16")
    [found] = model.apply_model(methods)
    # For CPUs vLLM has no kernel that compressed-tensors' FP8 with a scale per matrix needs.
    left = not ON_CPU or name != "compressed_mixed_qwen3_moe"
    assert (found["model.layers.0.self_attn.o_proj"] != "plain") == left
    check(model, DATA / name, tmp_path, 0.5)


@pytest.mark.skipif(not ON_CPU, reason="on a GPU vLLM has no kernel for such layers in single precision")
@pytest.mark.parametrize("name", MIXED)
def test_eight_bit_layers_run_in_single_precision(name, tmp_path):
    """On processors with AMX, vLLM chooses kernels that refuse it when they are called."""
    check(loaded(DATA / name), DATA / name, tmp_path, 0.5)


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
    # On CPUs vLLM 0.32 cannot load what it has kept on disk, and traces again.
    for _ in range(2):
        compiled, _ = generated(loaded(DATA / "modelopt_qwen3_moe", enforce_eager=False))
        cleanup_dist_env_and_memory()
        assert compiled == eager


def in_a_process(name):
    """What a model that is compiled generates, and how many compiled models were stored and loaded for it."""
    ids, logprobs = generated(loaded(DATA / name, enforce_eager=False))
    counts = compilation_counter.num_aot_artifacts_saved, compilation_counter.num_aot_artifacts_loaded
    print(json.dumps([ids, logprobs, *counts]))


@on_a_gpu
def test_a_process_runs_what_another_one_has_compiled(tmp_path):
    folder, name = Path(__file__).parent, "modelopt_qwen3_moe"
    command = [sys.executable, "-c", f"import test_vllm; test_vllm.in_a_process({name!r})"]
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "VLLM_CACHE_ROOT": str(tmp_path / "cache"), "PYTHONPATH": path}
    found = []
    for _ in range(2):
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=200)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    (ids, logprobs, *first), (same, again, *second) = found
    assert [first, second] == [[1, 0], [0, 1]], "models stored and loaded, by the first process and the second"
    assert ids == same == generated(loaded(DATA / name))[0]
    torch.testing.assert_close(logprobs, again, rtol=0, atol=1e-5)


def test_a_server_answers_with_the_tokens_of_the_expanded_model(tmp_path):
    """In single precision, which vLLM refuses for such checkpoints without the plugin."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--skip-tokenizer-init", "--dtype=float32", "--max-model-len=64", "--max-num-seqs=4", f"--port={port}"]
    if ON_CPU:
        options.append("--enforce-eager")
    else:
        options += ["--attention-backend=TRITON_ATTN", "--gpu-memory-utilization=0.2"]
        options.append(f"--kv-cache-memory-bytes={1 << 28}")
    folder = DATA / "modelopt_qwen3_moe"
    # What `vllm serve` runs; the command itself asks which vLLM is installed, and for vllm-cpu finds none.
    start = ["openai.api_server", "--model"] if ON_CPU else ["cli.main", "serve"]
    command = [sys.executable, "-m", f"vllm.entrypoints.{start[0]}", start[1], str(folder), "--host=127.0.0.1", *options]
    asked = {"model": str(folder), "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    body = {**asked, "detokenize": False}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + 900
            while time.monotonic() < end:
                assert server.poll() is None, (tmp_path / "log").read_text()[-4000:]
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except (urllib.error.URLError, TimeoutError):
                    time.sleep(1)
            with urllib.request.urlopen(request, timeout=100) as answer:
                ids = json.load(answer)["choices"][0]["token_ids"]
        except urllib.error.HTTPError as error:
            pytest.fail(error.read().decode() + (tmp_path / "log").read_text()[-4000:])
        finally:
            # With the processes that it has started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    with torch.no_grad():
        logits = expected_model(folder, tmp_path)(torch.tensor([PROMPT + ids])).logits[0, len(PROMPT) - 1 : -1]
    assert len(ids) == 8 and ids == logits.argmax(-1).tolist()


def layers_of_experts(module):
    """Our layers of experts of a model."""
    found = []
    for part in module.modules():
        call = getattr(getattr(part, "quant_method", None), "call", None)
        if call is not None and call.experts:
            found.append(call.run.experts)
    return found


@on_a_gpu
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("stream", [None, 4])
@pytest.mark.parametrize("name", ["modelopt_qwen3_moe", "compressed_qwen3_moe"])
def test_experts_beyond_a_budget_are_the_processors(name, stream, eager, tmp_path):
    """Steps after the prompt are replayed where the model is compiled. With 4 rows or more the GPU streams."""
    whole = hammerhead.Experts.from_checkpoint(DATA / name, 0, backend="cuda")
    asked = {"gpu_budget": whole.packed_bytes * 2 // 3, "stream": stream}
    model = loaded(DATA / name, enforce_eager=eager, additional_config={"hammerhead": asked})

    def placed(module):
        [experts] = layers_of_experts(module)
        return experts.resident, experts.num_experts, experts.streams_from

    [(resident, count, streams_from)] = model.apply_model(placed)
    assert 0 < len(resident) < count and streams_from == stream
    assert check(model, DATA / name, tmp_path, APART)

    def counted(module):
        [experts] = layers_of_experts(module)
        experts.check_host()
        return sum(experts.asked)

    [before] = model.apply_model(counted)
    generated(model)
    [after] = model.apply_model(counted)
    assert after - before >= 2 * 7, "each step after the prompt asks two experts"


@on_a_gpu
@pytest.mark.parametrize("eager", [True, False])
def test_experts_in_fp8_are_close_to_the_exact_ones(eager, tmp_path):
    name = "modelopt_qwen3_moe"
    model = loaded(DATA / name, enforce_eager=eager, additional_config={"hammerhead": {"precision": "fp8"}})
    weights = expanded(DATA / name)

    def compare(module):
        [experts] = layers_of_experts(module)
        x = torch.sin(torch.arange(4 * 64, dtype=torch.float32)).reshape(4, 64)
        ids, ones = torch.arange(4, dtype=torch.int32)[:, None], torch.ones(4, 1)
        wanted = []
        for number, row in enumerate(x):
            stem = f"model.layers.0.mlp.experts.{number}"
            gate, up, down = (weights[f"{stem}.{part}_proj.weight"] for part in ("gate", "up", "down"))
            wanted.append(down @ (torch.nn.functional.silu(gate @ row) * (up @ row)))
        found, wanted = experts(x.cuda(), ids.cuda(), ones.cuda()).cpu(), torch.stack(wanted)
        return float((found - wanted).norm() / wanted.norm())

    [apart] = model.apply_model(compare)
    assert 1e-3 < apart < 0.2, "of exact layers this would be 1e-6"
    check(model, DATA / name, tmp_path, 0.5)


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


# On a GPU experts with LoRA are vLLM's, and its kernels for adapters take 16 bits.
ADAPTED = ["modelopt_qwen3_moe", "compressed_qwen3_moe", "modelopt_qwen2_moe", "compressed_qwen3"]
NARROW, NARROWLY = ({}, APART) if ON_CPU else ({"dtype": "float16"}, 0.05)


@pytest.mark.parametrize("name", ADAPTED if ON_CPU else ADAPTED[-1:])
def test_adapters_of_requests_are_those_merged_into_the_model(name, tmp_path):
    weights = expanded(DATA / name)
    of_mlps = re.compile(r"(model\.layers\.\d+\.(?:mlp\..*_proj|self_attn\.q_proj))\.weight")
    modules = [match[1] for match in map(of_mlps.fullmatch, weights) if match]
    folders = [tmp_path / "one", tmp_path / "other"]
    # The second leaves attention alone. vLLM takes adapters of all experts of a layer, or of none.
    fewer = [module for module in modules if "self_attn" not in module]
    shape_of = lambda module: weights[f"{module}.weight"].shape
    added = [adapter(folders[0], 1, modules, shape_of), adapter(folders[1], 2, fewer, shape_of, rank=8, alpha=4)]
    model = loaded(DATA / name, enable_lora=True, max_loras=3, max_lora_rank=8, **NARROW)
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
        torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), wanted, rtol=0, atol=NARROWLY)
