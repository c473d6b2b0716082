"""What transformers calls a quantizer: it changes a model before its weights are loaded."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import torch
from transformers.core_model_loading import WeightRenaming, revert_weight_conversion
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

import hammerhead
from hammerhead import Experts, Linear, Mlp, backends
from hammerhead._packed import LayerOptions, streaming
from hammerhead.budget import parsed_bytes
from hammerhead.transformers._files import Files
from hammerhead.transformers._modules import Fp8Linear, NvFp4Experts, NvFp4Linear, NvFp4Mlp, Packed
from hammerhead.transformers._plan import Plan, plan

MODELOPT = "modelopt"
_HIDDEN = "packed by hammerhead: "


class NvFp4Config(QuantizationConfigMixin):
    """A model's own configuration of its quantisation, kept as it is for whoever loads the model after it was saved.

    Passed as ``quantization_config=NvFp4Config()`` it loads checkpoints of which no file says that they are
    quantised. ``unchecked`` replaces modules without running a twin of them first: it names modules or their classes,
    each with its gate, as ``{"LlamaMLP": "silu"}``. ``gpu_budget`` is what weights may take of a GPU's memory, in
    bytes or as ``"60GB"``: experts beyond it stay in the host's memory, every layer's alike, and the processor computes
    them while the GPU computes the others. With ``whole_layers`` the first layers' experts go to the GPU as long as
    there is room and the last layers' to the host: a token then goes to the host less often, but which experts lie
    where can no longer follow what tokens ask for. ``stream`` is that of :class:`hammerhead.Experts`, for experts
    beyond the budget. ``precision`` and ``intermediate`` are those of :class:`hammerhead.Mlp` and
    :class:`hammerhead.Experts`, for all gated MLPs and experts; other linear layers stay exact.
    """

    def __init__(
        self,
        quant_method: str = MODELOPT,
        unchecked: Mapping[str, str] | None = None,
        gpu_budget: int | str | None = None,
        whole_layers: bool = False,
        stream: bool | int | None = False,
        precision: Literal["exact", "fp8"] = "exact",
        intermediate: Literal["tokens", "f32", "nvfp4"] = "tokens",
        **kept: Any,
    ) -> None:
        self.quant_method = quant_method
        self.unchecked = dict(unchecked or {})
        self.gpu_budget = None if gpu_budget is None else parsed_bytes(gpu_budget)
        for name, is_asked in (("whole_layers", whole_layers), ("stream", streaming(stream)[0])):
            if is_asked and self.gpu_budget is None:
                raise ValueError(f"{name}: it is for experts beyond gpu_budget, which was not given; give both")
        self.whole_layers, self.stream = whole_layers, stream
        self.layers = LayerOptions(precision=precision, intermediate=intermediate)
        self.kept = kept

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        """What a file says is kept, and asks for nothing: how to compute is the user's to choose."""
        kept = {name: value for name, value in config_dict.items() if name != "quant_method"}
        config = cls(config_dict.get("quant_method", MODELOPT))
        config.kept = kept
        return (config, kwargs) if return_unused_kwargs else config

    def ask_as(self, other: NvFp4Config) -> None:
        """Takes over from another what its user asked for, and the files do not say."""
        self.unchecked, self.layers = other.unchecked, other.layers
        self.gpu_budget, self.whole_layers, self.stream = other.gpu_budget, other.whole_layers, other.stream

    def to_dict(self) -> dict[str, Any]:
        return {**self.kept, "quant_method": self.quant_method}


class NvFp4Quantizer(HfQuantizer):
    """Replaces what is NVFP4 in the files by modules of ours."""

    def __init__(self, quantization_config: NvFp4Config, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.files: Files | None = None
        self.plan = Plan()
        self.prepared: Any = None
        self.device_map: Any = None
        self.conversions: list[Any] = []
        self.hidden: set[str] = set()

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
            raise ValueError(
                "NVFP4 weights are read from files: give from_pretrained a folder or a name, and no state_dict"
            )
        self.files, self.device_map, self.prepared = Files(checkpoint_files), device_map, model
        return model

    def update_weight_conversions(self, weight_conversions: Any, *_: Any) -> Any:
        """Replaces modules: here the model's key mapping is known, with whatever its user added to it. Some versions
        of transformers pass the model, too."""
        files, model, self.prepared = self.files, self.prepared, None
        assert files is not None
        self.plan = plan(
            model,
            files,
            weight_conversions,
            self.quantization_config.unchecked,
            lambda name: backend_at(place_of(name, self.device_map)) is None,
        )
        for note in self.plan.notes(model, files):
            warnings.warn(f"hammerhead: {note}", stacklevel=2)
        self._replace(model, files)
        for name in self._expanded_names():
            module, parameter = name.rpartition(".")[::2]
            # Absent while transformers loads, so that it does not expect it.
            model.get_submodule(module)._parameters[parameter] = None
        for name in (*self.plan.replaced, *(name.rpartition(".")[0] for name in self._expanded_names())):
            _leave_uninitialised(model, name)
        biases = (f"{stem}{join}bias" for stem in self.plan.stems for join in "._")
        self.hidden = {*files.hidden, *(bias for bias in biases if bias in files.element)}
        unexpected = model._keys_to_ignore_on_load_unexpected or set()
        model._keys_to_ignore_on_load_unexpected = {*unexpected, f"^{_HIDDEN}", r"\.[kv]_scale$"}
        return [_Hidden(self.hidden), *weight_conversions]

    def _replace(self, model: Any, files: Files) -> None:
        checkpoint, asked = files.checkpoint, self.quantization_config.layers

        def backend(name: str) -> str | None:
            return backend_at(place_of(name, self.device_map))

        # Modules that share weights share what is packed of them.
        @cache
        def linear(stem: str, backend: str | None) -> Linear:
            return Linear.from_checkpoint(checkpoint, stem, backend=backend)

        @cache
        def mlp(projections: Any, gate: str, backend: str | None) -> Mlp:
            return Mlp._named(checkpoint, projections, gate, **asked, backend=backend)

        for name, stem in self.plan.linears.items():
            model.set_submodule(name, NvFp4Linear(linear(stem, backend(name)), model.get_submodule(name), files, stem))
        for name, origin in list(self.plan.fp8.items()):
            stem = origin.names[0].removesuffix(".weight")
            try:
                layer = hammerhead.Fp8Linear.from_checkpoint(checkpoint, stem)
            except ValueError as refusal:
                # Scales that cannot be computed with are rare; what is missing is named when the weight is expanded.
                del self.plan.fp8[name]
                self.plan.expanded.append(origin)
                warnings.warn(f"hammerhead: {name} is expanded: {refusal}", stacklevel=2)
                continue
            model.set_submodule(name, Fp8Linear(layer, model.get_submodule(name), files, stem))
        for name, (form, projections) in self.plan.mlps.items():
            model.set_submodule(name, NvFp4Mlp(mlp(projections, form.gate, backend(name)), model.get_submodule(name)))
        shares = self._shares(model)
        for name, (routed, each) in self.plan.experts.items():
            gpu_bytes = shares.get(name) if backend(name) is not None else None
            places = {} if gpu_bytes is None else {"gpu_bytes": gpu_bytes, "stream": self.quantization_config.stream}
            experts = Experts._named(checkpoint, each, routed.gate, **asked, backend=backend(name), **places)
            model.set_submodule(name, NvFp4Experts(experts, routed, model.get_submodule(name)))

    def _shares(self, model: Any) -> dict[str, int]:
        """What layers of experts may take of a GPU's memory, when all other tensors that are placed there lie there.
        Those that are not named go there whole."""
        budget: int | None = self.quantization_config.gpu_budget
        experts = [name for name in self.plan.experts if self._is_on_gpu(name)]
        if budget is None or not experts:
            return {}
        # Experts have their parameters still; what else was packed has none. What is shared is counted once.
        inside = tuple(f"{name}." for name in self.plan.experts)
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        others = {id(one): one for name, one in named.items() if self._is_on_gpu(name) and not name.startswith(inside)}
        modules = ((name, module) for name, module in model.named_modules() if isinstance(module, Packed))
        packed = {id(module.layer): module.layer for name, module in modules if self._is_on_gpu(name)}
        beside = sum(layer.packed_bytes for layer in packed.values())
        beside += sum(other.numel() * other.element_size() for other in others.values())
        left = max(0, budget - beside)
        if beside > budget:
            warnings.warn(
                f"hammerhead: gpu_budget is {budget / 1e9:.3f} GB, and what is no expert takes {beside / 1e9:.3f} GB of the GPU: the budget is exceeded, and "
                f"all experts are the processor's; give more than {beside / 1e9:.3f} GB",
                stacklevel=2,
            )
        if not self.quantization_config.whole_layers:
            return dict.fromkeys(experts, left // len(experts))
        sizes = {name: sum(part.numel() for part in model.get_submodule(name).parameters()) for name in experts}
        return shared_in_order(sizes, left)

    def _is_on_gpu(self, name: str) -> bool:
        return backend_at(place_of(name, self.device_map)) is not None

    def _expanded_names(self) -> list[str]:
        return [target for origin in self.plan.expanded for target in origin.targets]

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        assert self.files is not None
        for origin in self.plan.expanded:
            for name, values in origin.made(self.plan.shapes, self.files.expanded).items():
                module, parameter = name.rpartition(".")[::2]
                values = values.to(place_of(name, self.device_map) or "cpu", self.plan.shapes.get_parameter(name).dtype)
                model.get_submodule(module)._parameters[parameter] = torch.nn.Parameter(
                    values.contiguous(), requires_grad=False
                )
        # Some versions of transformers leave renamed tensors of quantised models in the files' type.
        for name, parameter in model.named_parameters():
            planned = self.plan.shapes.parameters.get(name, parameter).dtype
            if parameter.is_floating_point() and parameter.dtype != planned:
                parameter.data = parameter.data.to(planned)
        conversions = getattr(model, "_weight_conversions", None) or []
        self.conversions = [entry for entry in conversions if not isinstance(entry, _Hidden)]
        # Saving reverts them, which must not happen to the names of packed tensors: those are the files' own.
        model._weight_conversions = []
        # There are no gradients through packed weights, so nothing asks for any.
        return model.requires_grad_(False)

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """For ``save_pretrained``: the model's own tensors, and the quantised ones as the files have them."""
        assert self.files is not None
        expanded = set(self._expanded_names())
        state = {name: tensor for name, tensor in model.state_dict().items() if name not in expanded}
        model._weight_conversions = self.conversions
        try:
            state = revert_weight_conversion(model, state)
        finally:
            model._weight_conversions = []
        return {**state, **{name: self.files.tensor(name) for name in self.hidden}}, {}

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return True


def shared_in_order(elements: Mapping[str, int], left: int) -> dict[str, int]:
    """The bytes that are left for layers of so many elements: the first go to the GPU whole and are not named, the next
    one has what remains, and those after it have nothing."""
    shares: dict[str, int] = {}
    for name, count in elements.items():
        # Nine bytes for sixteen elements, and a hundredth for what an expert has beside them.
        needed = count * 9 // 16 * 101 // 100
        if shares or needed > left:
            shares[name], left = left, 0
        else:
            left -= needed
    return shares


def _leave_uninitialised(model: Any, name: str) -> None:
    """Keeps a model from initialising parameters that are gone: it may do that from the module itself, or from the
    one that holds it."""
    model.get_submodule(name)._is_hf_initialized = True
    holder = model.get_submodule(name.rpartition(".")[0])
    own = [*holder.named_parameters(recurse=False), *holder.named_buffers(recurse=False)]
    if not own:
        holder._is_hf_initialized = True


class _Hidden(WeightRenaming):
    """Gives parts of quantised tensors names that no model has: they are read by us."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(_HIDDEN, _HIDDEN)
        object.__setattr__(self, "names", names)

    def rename_source_key(self, source_key: str) -> tuple[str, str | None]:
        return (_HIDDEN + source_key.replace(".", "/"), None) if source_key in self.names else (source_key, None)


def count_parameters(model: torch.nn.Module) -> int:
    """How many parameters the packed modules of a model stand for."""
    return sum(module.replaced_parameters for module in model.modules() if isinstance(module, Packed))


def packed_bytes(model: torch.nn.Module) -> int:
    """The bytes that the packed modules of a model take."""
    return sum(module.layer.packed_bytes for module in model.modules() if isinstance(module, Packed))


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
        raise ValueError(
            f"device_map: {place} was asked for, and packed weights lie on the CPU or on a GPU of NVIDIA's; give 'cpu' or 'cuda'"
        )
    backend = f"cuda:{device.index}" if device.index else "cuda"
    missing = backends().get("cuda", "this package was built without GPUs")
    if missing is not None:
        raise ValueError(f"device_map: {place} was asked for, and this machine's GPU cannot be used: {missing}")
    return backend
