"""What transformers is told when this package is imported."""

from __future__ import annotations

import json
from functools import wraps
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, modeling_utils
from transformers.quantizers import auto
from transformers.quantizers.base import HfQuantizer
from transformers.utils import cached_file
from transformers.utils.quantization_config import QuantizationConfigMixin

from hammerhead.transformers._quantizer import MODELOPT, NvFp4Config, NvFp4Quantizer, count_parameters, packed_bytes

COMPRESSED = "compressed-tensors"
MXFP4 = "mxfp4"
FP8 = "fp8"
FP4 = "fp4"
OURS = ("nvfp4-pack-quantized", "mxfp4-pack-quantized")
"""The formats of compressed-tensors that are 4-bit floats in blocks."""


def is_ours(config: dict[str, Any]) -> bool:
    """Whether any layer of a configuration of compressed-tensors' is one that we read."""
    groups = config.get("config_groups")
    formats = (
        [group.get("format") for group in groups.values() if isinstance(group, dict)]
        if isinstance(groups, dict)
        else []
    )
    return any(format in OURS for format in (config.get("format"), *formats))


class _ModelOpt(QuantizationConfigMixin):
    """ModelOpt's configurations, of which those for NVFP4 are ours."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        algorithm = str(config_dict.get("quant_algo") or config_dict.get("quantization", {}).get("quant_algo") or "")
        if algorithm and "NVFP4" not in algorithm.upper() and algorithm.upper() != "MIXED_PRECISION":
            raise ValueError(
                f"quantization_config: its quant_algo is {algorithm}, and hammerhead.transformers loads NVFP4 checkpoints of ModelOpt only"
            )
        return NvFp4Config.from_dict(config_dict, return_unused_kwargs, **kwargs)


def _configurations(original: Any, takes: Any) -> type[Any]:
    """Configurations of a method that transformers knows: ours for what we take, its own for all others."""

    class Chosen(QuantizationConfigMixin):
        left_to = original

        @classmethod
        def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
            kind = NvFp4Config if takes(config_dict) else original
            return kind.from_dict(config_dict, return_unused_kwargs, **kwargs)

    return Chosen


def _quantizers(original: Any) -> Any:
    def chosen(config: Any, **kwargs: Any) -> HfQuantizer:
        return NvFp4Quantizer(config, **kwargs) if isinstance(config, NvFp4Config) else original(config, **kwargs)

    return chosen


def declared_beside(config: Any) -> dict[str, Any] | None:
    """What a model's ``hf_quant_config.json`` says, if it is NVFP4 of ModelOpt's."""
    name = getattr(config, "name_or_path", None)
    if not name:
        return None
    try:
        found = cached_file(name, "hf_quant_config.json", _raise_exceptions_for_missing_entries=False)
        declared = json.loads(Path(found).read_text()) if found is not None else {}
    except (OSError, ValueError):
        return None
    said = declared.get("quantization") if isinstance(declared, dict) else None
    algorithm = str(said.get("quant_algo")).upper() if isinstance(said, dict) else ""
    return {**declared, "quant_method": MODELOPT} if "NVFP4" in algorithm or algorithm == "MIXED_PRECISION" else None


def with_experts(config: Any) -> Any:
    """What a model declares of its quantisation, with the type of 4-bit experts, which DeepSeek-V4 declares elsewhere."""
    declared = getattr(config, "quantization_config", None)
    if not isinstance(declared, dict) or declared.get("quant_method") != FP8:
        return declared
    return {**declared, "expert_dtype": FP4} if getattr(config, "expert_dtype", None) == FP4 else declared


def _finding_quantizers(original: Any) -> Any:
    """Looks elsewhere in ``config.json``, and beside it, and keeps what the user says about checks."""

    @wraps(original)
    def get_hf_quantizer(config: Any, quantization_config: Any, *arguments: Any, **named: Any) -> Any:
        declared = None
        if getattr(config, "quantization_config", None) is None and quantization_config is None:
            declared = declared_beside(config)
        elif quantization_config is None or isinstance(quantization_config, NvFp4Config):
            declared = with_experts(config)
        # transformers 5.10.0 to 5.10.3 ask whether there is such an attribute, and not whether it is None.
        if declared is not None:
            config.quantization_config = declared
        found = original(config, quantization_config, *arguments, **named)
        if isinstance(found[0], NvFp4Quantizer) and isinstance(quantization_config, NvFp4Config):
            found[0].quantization_config.ask_as(quantization_config)
        return found

    return get_hf_quantizer


def _counting(original: Any, packed: Any) -> Any:
    """A sum over a model's parameters, with the packed ones."""

    @wraps(original)
    def counted(self: Any, *arguments: Any, **named: Any) -> int:
        trainable = named.get(
            "only_trainable", bool(arguments) and original.__name__ == "num_parameters" and arguments[0]
        )
        return int(original(self, *arguments, **named)) + (0 if trainable else packed(self))

    return counted


def register_quantizers() -> None:
    """Makes transformers know them. Registering twice changes nothing."""
    configs, quantizers = auto.AUTO_QUANTIZATION_CONFIG_MAPPING, auto.AUTO_QUANTIZER_MAPPING
    if configs.get(MODELOPT) is _ModelOpt:
        return
    configs[MODELOPT], quantizers[MODELOPT] = _ModelOpt, NvFp4Quantizer
    takers = {
        COMPRESSED: is_ours,
        MXFP4: lambda config: not config.get("dequantize"),
        FP8: lambda config: config.get("expert_dtype") == FP4,
    }
    for method, takes in takers.items():
        configs[method] = _configurations(configs[method], takes)
        quantizers[method] = _quantizers(quantizers[method])
    modeling_utils.get_hf_quantizer = _finding_quantizers(modeling_utils.get_hf_quantizer)
    PreTrainedModel.num_parameters = _counting(PreTrainedModel.num_parameters, count_parameters)
    PreTrainedModel.get_memory_footprint = _counting(PreTrainedModel.get_memory_footprint, packed_bytes)
