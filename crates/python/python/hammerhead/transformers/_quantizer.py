"""What transformers calls a quantizer: it changes a model before its weights are loaded."""

from __future__ import annotations

import re
from typing import Any

import torch
from safetensors import safe_open
from transformers.quantizers import auto
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from hammerhead import Checkpoint, Experts, Linear, Mlp, backends
from hammerhead.transformers._modules import NvFp4Experts, NvFp4Linear, NvFp4Mlp
from hammerhead.transformers._plan import Plan, Tensors, plan

MODELOPT = "modelopt"
COMPRESSED = "compressed-tensors"
NVFP4_FORMAT = "nvfp4-pack-quantized"


class NvFp4Config(QuantizationConfigMixin):
    """A model's own configuration of its quantisation, kept as it is for whoever loads the model after it was saved.

    Passed as ``quantization_config=NvFp4Config()`` it loads checkpoints whose ``config.json`` has none.
    """

    def __init__(self, quant_method: str = MODELOPT, **kept: Any) -> None:
        self.quant_method = quant_method
        self.kept = kept

    def to_dict(self) -> dict[str, Any]:
        return {**self.kept, "quant_method": self.quant_method}


class NvFp4Quantizer(HfQuantizer):
    """Replaces what is NVFP4 in the files by modules of ours."""

    def __init__(self, quantization_config: NvFp4Config, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.tensors: Tensors | None = None
        self.plan = Plan()
        self.parameters = ""

    def validate_environment(self, device_map: Any = None, **_: Any) -> None:
        for place in device_map.values() if isinstance(device_map, dict) else ():
            backend_at(place)

    def update_device_map(self, device_map: Any) -> Any:
        # Whoever leaves the choice to us gets one device: the first GPU that is ours, or else the CPU.
        if not isinstance(device_map, str):
            return device_map
        return {"": "cpu" if backends().get("cuda", "") is not None or not torch.cuda.is_available() else "cuda:0"}

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Any = None, device_map: Any = None, **_: Any
    ) -> Any:
        if not checkpoint_files:
            raise ValueError("NVFP4 weights are read from files: give from_pretrained a folder or a name, and no state_dict")
        self.tensors = Tensors(checkpoint_files)
        path = self.tensors.paths[0]
        checkpoint = Checkpoint(path if len(self.tensors.paths) == 1 else path.parent)
        # With another gate the projections are ours, and what joins them stays the model's.
        self.plan = plan(model, self.tensors, fuse_mlps=checkpoint.gate in ("silu", "gelu-tanh"))
        def backend(name: str) -> str | None:
            return backend_at(place_of(name, device_map))

        for name, stem in self.plan.linears.items():
            replace(model, name, NvFp4Linear(Linear.from_checkpoint(checkpoint, stem, backend=backend(name))))
        for name, (layer, beside) in self.plan.mlps.items():
            mlp = Mlp.from_checkpoint(checkpoint, layer, "shared" if beside else None, backend=backend(name))
            replace(model, name, NvFp4Mlp(mlp))
        for name, layer in self.plan.experts.items():
            experts = Experts.from_checkpoint(checkpoint, layer, shared=False, backend=backend(name))
            replace(model, name, NvFp4Experts(experts))
        unexpected = model._keys_to_ignore_on_load_unexpected or set()
        model._keys_to_ignore_on_load_unexpected = {*unexpected, *self._ours()}
        self.parameters = "\n".join(name for name, _ in model.named_parameters())
        return model

    def _ours(self) -> list[str]:
        """Patterns of the keys that we read: by the files' names, and by those that transformers gives them."""
        replaced = [*self.plan.linears, *self.plan.mlps, *self.plan.experts]
        return [rf"^{re.escape(name)}\." for name in {*self.plan.owned, *replaced}] + [r"\.[kv]_scale$"]

    def update_weight_conversions(self, weight_conversions: Any, *_: Any, **__: Any) -> Any:
        """Keeps the conversions whose targets the model still has: the others would merge experts that are no longer there. Some versions of
        transformers pass the model as well."""

        def kept(conversion: Any) -> bool:
            targets = getattr(conversion, "_original_target_patterns", [])
            return not targets or "experts" not in targets[0] or re.search(targets[0], self.parameters) is not None

        return [conversion for conversion in weight_conversions if kept(conversion)]

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        # There are no gradients through packed weights, so nothing asks for any.
        return model.requires_grad_(False)

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """For ``save_pretrained``: the model's own tensors, and those of the packed modules as the files have them."""
        state = dict(model.state_dict())
        assert self.tensors is not None
        for path in self.tensors.paths:
            if not path.exists():
                raise FileNotFoundError(f"{path}: packed weights are saved from the files they were read from, and this one is gone")
            with safe_open(path, "pt") as file:
                ours = (name for name in file.keys() if name.rpartition(".")[0] in self.plan.owned)  # noqa: SIM118
                state.update((name, file.get_tensor(name)) for name in ours)
        return state, {}

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return True


def place_of(name: str, device_map: Any) -> Any:
    """Where a module is to lie: as the map says of it, or of what it is part of."""
    if not isinstance(device_map, dict):
        return device_map
    while name and name not in device_map:
        name = name.rpartition(".")[0]
    return device_map.get(name)


def backend_at(place: Any) -> str | None:
    """The backend that computes at a place of transformers', or ``ValueError``; None leaves it to the engine."""
    if place in (None, "cpu") or str(place) == "cpu":
        return None
    device = torch.device("cuda", place) if isinstance(place, int) else torch.device(place) if place != "disk" else None
    if device is None or device.type != "cuda":
        raise ValueError(f"device_map: {place} was asked for, and packed weights lie on the CPU or on a GPU of NVIDIA's; give 'cpu' or 'cuda'")
    backend = f"cuda:{device.index}" if device.index else "cuda"
    missing = backends().get("cuda", "this package was built without GPUs")
    if missing is not None:
        raise ValueError(f"device_map: {place} was asked for, and this machine's GPU cannot be used: {missing}")
    return backend


def replace(model: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
    """Puts a module in another one's place."""
    found = model.get_submodule(name)
    expected = (getattr(found, "in_features", None), getattr(found, "out_features", None))
    if isinstance(module, NvFp4Linear) and expected != (module.in_features, module.out_features):
        raise ValueError(
            f"{name}: its weight in the files is [{module.out_features}, {module.in_features}], and the model's is {list(expected[::-1])}; "
            "config.json and the weights do not belong together"
        )
    model.set_submodule(name, module)


class _AnyCompressed(QuantizationConfigMixin):
    """compressed-tensors' configurations: ours for NVFP4, transformers' own for all others."""

    original: Any = None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        if config_dict.get("format") == NVFP4_FORMAT:
            return NvFp4Config.from_dict(config_dict, return_unused_kwargs, **kwargs)
        return cls.original.from_dict(config_dict, return_unused_kwargs, **kwargs)


class _AnyModelOpt(QuantizationConfigMixin):
    """ModelOpt's configurations, of which those for NVFP4 are ours."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        algorithm = str(config_dict.get("quant_algo") or config_dict.get("quantization", {}).get("quant_algo") or "")
        if algorithm and "NVFP4" not in algorithm.upper() and algorithm.upper() != "MIXED_PRECISION":
            raise ValueError(
                f"quantization_config: its quant_algo is {algorithm}, and hammerhead.transformers loads NVFP4 checkpoints of ModelOpt only"
            )
        return NvFp4Config.from_dict(config_dict, return_unused_kwargs, **kwargs)


def register_quantizers() -> None:
    """Makes transformers know them. Registering twice changes nothing."""
    configs, quantizers = auto.AUTO_QUANTIZATION_CONFIG_MAPPING, auto.AUTO_QUANTIZER_MAPPING
    if configs.get(COMPRESSED) is _AnyCompressed:
        return
    configs.setdefault(MODELOPT, _AnyModelOpt)
    quantizers.setdefault(MODELOPT, NvFp4Quantizer)
    _AnyCompressed.original = configs[COMPRESSED]
    original = quantizers[COMPRESSED]

    def chosen(config: Any, **kwargs: Any) -> HfQuantizer:
        return NvFp4Quantizer(config, **kwargs) if isinstance(config, NvFp4Config) else original(config, **kwargs)

    configs[COMPRESSED], quantizers[COMPRESSED] = _AnyCompressed, chosen
