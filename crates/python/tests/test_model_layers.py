"""Layers of experts as models have them: `Experts.from_checkpoint` with router, shared expert and gate, against the
blocks that transformers builds from the same weights, of every class whose routing is known here."""

import json
import re
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parent / "architectures"))
import checkpoints  # noqa: E402
import configs  # noqa: E402
import judge  # noqa: E402

from hammerhead import Experts  # noqa: E402

CLASSES = [
    "DeepseekV32ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV4ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM", "GlmMoeDsaForCausalLM", "GptOssForCausalLM",
    "Llama4ForCausalLM", "MiniMaxM2ForCausalLM", "MiniMaxM3SparseForConditionalGeneration", "MixtralForCausalLM", "OlmoeForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM", "Qwen3VLMoeForConditionalGeneration", "Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration",
]  # fmt: skip


def written(name, folder, fields=None, without=()):
    """A quantised checkpoint of a small model of a class, and the model with its weights expanded. ``without`` names
    fields that the quantised one does not declare."""
    case = judge.Case(name, name, *configs.architectures()[name], "modelopt", fields or {})
    model, files, others, _, _ = judge.plain(case)
    config = json.loads(others["config.json"])
    quantised = checkpoints.quantise(files, model, case.layout)
    declared = config | {"quantization_config": checkpoints.quantization_config(quantised, case.layout)}
    for part in (declared, declared.get("text_config", {})):
        for field in without:
            part.pop(field, None)
    checkpoints.write(folder / "quantised", quantised.tensors, declared, {})
    checkpoints.write(folder / "expanded", quantised.expanded, config, others)
    return folder / "quantised", judge.load(case, folder / "expanded")[0]


def blocks(model):
    """The blocks with experts by the numbers of their layers."""
    named = ((re.search(r"layers\.(\d+)\.", f"{name}."), module) for name, module in model.named_modules())
    return {int(found[1]): module for found, module in named if found and hasattr(module, "experts")}


def apart(folder, number, block):
    """How far a layer is from its block, as a part of the block's largest number."""
    router = getattr(block, "gate", None) or block.router
    layer = Experts.from_checkpoint(folder, number)
    x = torch.randn(23, router.weight.shape[1], generator=torch.Generator().manual_seed(number))
    logits = torch.nn.functional.linear(x, router.weight, getattr(router, "bias", None))
    with torch.no_grad():
        if layer.has_table:
            tokens = torch.arange(23)
            ids = router.tid2eid[tokens].int().contiguous()
            ours, theirs = layer(x, ids, layer.weigh(logits, ids)), block(x[None], input_ids=tokens[None])
        else:
            ours, theirs = layer(x, logits), block(x[None])
    theirs = theirs[0] if isinstance(theirs, tuple) else theirs
    return judge.difference(ours, theirs.reshape(ours.shape))


@pytest.mark.parametrize("name", CLASSES)
def test_a_layer_is_its_model_s_block(name, tmp_path):
    folder, model = written(name, tmp_path)
    found = {number: apart(folder, number, block) for number, block in blocks(model).items()}
    assert found and max(found.values()) < judge.RIGHT, found


@pytest.mark.parametrize(
    ("name", "fields", "without"),
    [
        ("Qwen3NextForCausalLM", {}, ("norm_topk_prob",)),
        ("Qwen3NextForCausalLM", {"norm_topk_prob": False}, ()),
        ("Qwen3MoeForCausalLM", {"norm_topk_prob": True}, ()),
        ("Qwen2MoeForCausalLM", {}, ("norm_topk_prob",)),
        ("DeepseekV3ForCausalLM", {"norm_topk_prob": False}, ()),
        ("Glm4MoeLiteForCausalLM", {"n_group": 2}, ("topk_group", "norm_topk_prob")),
    ],
)
def test_what_a_model_declares_or_leaves_out_is_read_as_its_class_reads_it(name, fields, without, tmp_path):
    folder, model = written(name, tmp_path, fields, without)
    found = {number: apart(folder, number, block) for number, block in blocks(model).items()}
    assert found and max(found.values()) < judge.RIGHT, found


@pytest.mark.parametrize(
    ("name", "without"),
    [("Ernie4_5_MoeForCausalLM", ()), ("DeepseekV3ForCausalLM", ("n_group",)), ("GlmMoeDsaForCausalLM", ("routed_scaling_factor",))],
)
def test_logits_are_refused_where_no_rule_is_known(name, without, tmp_path):
    folder, model = written(name, tmp_path, without=without)
    number, block = next(iter(blocks(model).items()))
    with pytest.raises(ValueError, match="no rule of routing; give ids and weights"):
        apart(folder, number, block)
