"""A sample of the architecture sweep (``architectures/``): rows chosen for what they can get wrong. The whole sweep
is a command of its own."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parent / "architectures"))
import configs  # noqa: E402
import constructions  # noqa: E402
import judge  # noqa: E402

import hammerhead.transformers  # noqa: E402, F401

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
