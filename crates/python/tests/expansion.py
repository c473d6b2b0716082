"""Small checkpoints of this folder (``data/make.py``) with their weights expanded, from the formats' definitions: what
integrations are held against."""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

DATA = Path(__file__).parent / "data"
MIXED_EXPERTS = ["modelopt_mixed_experts"]
"""Models of which experts are FP8 or MXFP8, and other layers NVFP4."""
MIXED = sorted(path.name for path in DATA.glob("*_mixed_*") if path.name not in MIXED_EXPERTS)
"""Models of which some linear layers are FP8 or MXFP8."""
MODELS = sorted(path.parent.name for path in DATA.glob("*/config.json") if path.parent.name not in [*MIXED, *MIXED_EXPERTS])
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def tensors_of(folder):
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def expanded(folder):
    """All weights of a checkpoint in float32."""
    stored, weights = tensors_of(folder), {}
    for name, tensor in stored.items():
        stem, _, part = name.rpartition(".")
        if part in ("weight", "weight_packed") and tensor.dtype == torch.uint8:
            codes = torch.stack([tensor & 15, tensor >> 4], -1).flatten(-2).long()
            scales = stored[f"{stem}.weight_scale"].float().repeat_interleave(16, -1)
            whole = stored[f"{stem}.weight_scale_2"] if part == "weight" else 1 / stored[f"{stem}.weight_global_scale"]
            weights[f"{stem}.weight"] = E2M1[codes] * scales * whole
        elif part == "weight" and tensor.dtype == torch.float8_e4m3fn:
            scales = stored[f"{stem}.weight_scale"]
            if scales.dtype == torch.uint8:
                factors = torch.exp2(scales.float() - 127).repeat_interleave(32, -1)
            else:
                # One for the matrix, or one per row.
                factors = scales.float().reshape(-1, 1)
            weights[name] = tensor.float() * factors
        elif part in ("weight", "bias"):
            weights[name] = tensor.float()
    return weights


def expected_model(folder, tmp_path, added=None):
    """The same model, with nothing quantised, in float32, and something added to some weights."""
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    plain = tmp_path / f"{folder.name}-plain"
    plain.mkdir()
    (plain / "config.json").write_text(json.dumps(config))
    weights = {name: weight + (added or {}).get(name, 0) for name, weight in expanded(folder).items()}
    save_file({name: weight.contiguous() for name, weight in weights.items()}, plain / "model.safetensors", {"format": "pt"})
    return transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
