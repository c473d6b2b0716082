"""A sample of the architecture sweep (``architectures/``): rows chosen for what they can get wrong. The whole sweep
is a command of its own."""

import copy
import importlib
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parent / "architectures"))
import configs  # noqa: E402
import constructions  # noqa: E402
import judge  # noqa: E402

import hammerhead.transformers  # noqa: E402

CLASSES = {
    ("Qwen3MoeForCausalLM", "partial"): "experts of every other layer",
    ("Llama4ForCausalLM", "compressed"): "experts one by one in the files, in one tensor in the model",
    ("Qwen2_5_VLForConditionalGeneration", "modelopt"): "towers with names of their own, and an image",
}
MADE = [
    "llava-text-only", "bart-decoder-only", "falcon-h1-multipliers", "gemma3n-sparsity", "longcat-zero-experts", "llama4-stacked", "deepseek-v4-own", "mixed-fp8-modelopt",
    "phi3-fused", "tied-embeddings", "quantised-head", "awq-experts", "awq-dense", "biases-compressed", "kv-cache-scales", "mixtral-one-expert-kept",
]  # fmt: skip

def case(row):
    if isinstance(row, tuple):
        return judge.Case(row[0], row[0], *configs.architectures()[row[0]], row[1])
    return next(made for made in constructions.constructions() if made.name == row)


@pytest.mark.parametrize("row", [*CLASSES, *MADE], ids=str)
def test_a_sampled_architecture_is_right(row):
    found = judge.judge(case(row))
    assert found["verdict"] == "right", found


def experts_of(name):
    """Small experts of a kind of model that are quantised when they are called, and the same with the weights that
    they have then."""
    kind = configs.CONFIG_MAPPING[name]
    config = configs.small(kind)
    module = importlib.import_module(kind.__module__.replace("configuration", "modeling"))
    experts = next(vars(module)[each] for each in vars(module) if each.endswith("Experts"))(config)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    exact = copy.deepcopy(experts)
    for stack, halves in ((exact.gate_up_proj, 2), (exact.down_proj, 1)):
        for matrix in stack.data:
            for half in matrix.chunk(halves):
                half.copy_(hammerhead.quantize(half.contiguous()).dequantize())
    config._experts_implementation, exact.config._experts_implementation = "hammerhead", "eager"
    return experts, exact


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v4", "minimax_m3_vl_text"])
def test_experts_that_are_quantised_keep_their_gate_and_its_limit(name):
    experts, exact = experts_of(name)
    x, ids = 9 * torch.randn(7, 64), torch.tensor([[0, 3], [1, 2]]).repeat(4, 1)[:7]
    with torch.inference_mode():
        ours, theirs = (each(x, ids, torch.rand(7, 2, generator=torch.Generator().manual_seed(1))) for each in (experts, exact))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=3e-5 * float(theirs.abs().max()))


def test_experts_that_compute_something_else_are_not_quantised():
    experts, _ = experts_of("muse_spark_text")
    with pytest.raises(ValueError, match="MuseSpark.* has post_expert_norm.*choose another implementation"):
        experts(torch.randn(3, 64), torch.zeros(3, 1, dtype=torch.long), torch.ones(3, 1))
