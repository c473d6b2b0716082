"""What becomes of every quantised tensor of a checkpoint: decided, and checked, before anything is replaced.

A module is replaced only when it is known to be the same computation: its weights come from the tensors that the
model's own key mapping names, and its class computes what ours does, which a linear layer does by definition and
anything else by a twin that was run. What is not known to be the same keeps its own code, and gets its weights
expanded. What has no place is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hammerhead._twin import Differs, ExpertsForm, MlpForm, Stacks, alike, experts_form, mlp_form
from hammerhead.transformers._files import Files, Packed
from hammerhead.transformers._mapping import Origin, Shapes, origins

Projection = tuple[str, int, str]
"""A matrix of a quantised tensor: its stem, its number in the stack, and which of its rows."""


@dataclass
class Plan:
    """What to replace, by the names of modules."""

    linears: dict[str, str] = field(default_factory=dict)
    """Linear layers, and the stems of their weights."""

    fp8: dict[str, Origin] = field(default_factory=dict)
    """FP8 linear layers that the processor computes, and where their weights are from."""

    mlps: dict[str, tuple[MlpForm, tuple[Projection, Projection, Projection]]] = field(default_factory=dict)
    """Gated MLPs: how they compute, and gate, up and down."""

    experts: dict[str, tuple[ExpertsForm, list[tuple[Projection, Projection | None, Projection]]]] = field(
        default_factory=dict
    )
    """Experts: how they compute, and the projections of each."""

    expanded: list[Origin] = field(default_factory=list)
    """Parameters that stay what they are, and are loaded with their weights expanded."""

    kept: dict[str, list[str]] = field(default_factory=dict)
    """Experts that keep their own code, by the reason."""

    left_out: list[str] = field(default_factory=list)
    """Quantised tensors that the model has no use for."""

    shapes: Shapes = field(default_factory=lambda: Shapes(None, {}))
    """The model's parameters as they were before anything was replaced."""

    @property
    def replaced(self) -> list[str]:
        return [*self.linears, *self.fp8, *self.mlps, *self.experts]

    @property
    def stems(self) -> set[str]:
        """The tensors whose values, and biases, the replaced modules have."""
        of_mlps = (projection for _, projections in self.mlps.values() for projection in projections)
        of_experts = (projection for _, each in self.experts.values() for expert in each for projection in expert)
        return {
            *self.linears.values(),
            *(origin.names[0].removesuffix(".weight") for origin in self.fp8.values()),
            *(projection[0] for projection in (*of_mlps, *of_experts) if projection is not None),
        }

    def notes(self, model: Any, files: Files) -> list[str]:
        """What the user should know, a sentence each."""
        notes = [
            f"{_several(names)}: {reason}; its own code computes it with expanded weights"
            for reason, names in self.kept.items()
        ]
        expanded = [origin for origin in self.expanded if any(name in files.packed for name in origin.names)]
        if expanded:
            parameters = [self.shapes.get_parameter(target) for origin in expanded for target in origin.targets]
            size = sum(parameter.numel() * parameter.element_size() for parameter in parameters) / 2**20
            notes.append(
                f"{_several([origin.target for origin in expanded])}: expanded from 4 bits, to {size:.1f} MiB in all"
            )
        if self.left_out:
            notes.append(
                f"{_several(self.left_out)}: no parameter of {type(model).__name__}, which lacks nothing without; left out"
            )
        return notes


def plan(
    model: Any,
    files: Files,
    conversions: Sequence[Any],
    unchecked: Mapping[str, str] | None = None,
    is_processors: Callable[[str], bool] = lambda _: True,
) -> Plan:
    """Decides, or raises ``ValueError`` with the names of what has no place. ``unchecked`` names modules or classes
    whose gates are said, and that are not run. ``is_processors`` says of a module whether the processor is to compute
    it: only there FP8 weights stay what they are."""
    if not files.packed:
        raise ValueError(
            f"{files.paths[0].parent}: no weight in these files is NVFP4 (codes with weight_scale and weight_scale_2, or with "
            "weight_scale and weight_global_scale); load the model without hammerhead.transformers"
        )
    found, lost = origins(model, conversions, files.names)
    made = Plan(shapes=Shapes(model.config, model.state_dict()))
    for target, origin in found.items():
        if made.shapes.get_parameter(target).is_floating_point():
            for name in origin.names:
                files.refuse_unread(name)
    _untie(model, files, found)
    forms = Forms(unchecked or {})
    for name, module in model.named_modules():
        if type(module) is torch.nn.Linear and f"{name}.weight" in found:
            _add_linear(made, name, module, files, found[f"{name}.weight"])
            if is_processors(name) and not _is_shared(model, f"{name}.weight"):
                _add_fp8(made, name, module, files, found[f"{name}.weight"])
        elif (stacks := Stacks.of(module)) is not None:
            _add_experts(made, name, module, stacks, files, found, forms)
            if not _is_shared(model, f"{name}.{stacks.first}"):
                _add_numbered_experts(made, name, module, stacks, files, lost, forms)
    _fuse(made, model, forms)
    _expand_the_rest(made, files, found)
    _account_for_lost(made, model, files, found, lost)
    return made


def _several(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


class Forms:
    """How modules compute, each found once."""

    def __init__(self, unchecked: Mapping[str, str]) -> None:
        self.unchecked = unchecked
        self._known: dict[Any, Any] = {}

    def of(self, name: str, module: torch.nn.Module, find: Any, *arguments: Any) -> Any:
        said = self.unchecked.get(name) or self.unchecked.get(type(module).__name__)
        if said is not None:
            return find(module, *arguments, said=said)
        key = alike(module)
        if key not in self._known:
            try:
                self._known[key] = find(module, *arguments)
            except Differs as differs:
                self._known[key] = differs
        if isinstance(self._known[key], Differs):
            raise self._known[key]
        return self._known[key]


def _add_linear(made: Plan, name: str, module: Any, files: Files, origin: Origin) -> None:
    packed = files.packed.get(origin.names[0])
    if origin.converter is not None or packed is None or packed.stack is not None or packed.turned:
        return
    if (module.out_features, module.in_features) != (packed.rows, packed.k):
        raise ValueError(
            f"{name}: its weight in the files is [{packed.rows}, {packed.k}], and the model's is "
            f"{[module.out_features, module.in_features]}; config.json and the weights do not belong together"
        )
    # A bias that the model does not have, or that lies elsewhere, is not ours to add.
    if (module.bias is not None) == (f"{packed.stem}.bias" in files.element):
        made.linears[name] = packed.stem


def _add_fp8(made: Plan, name: str, module: Any, files: Files, origin: Origin) -> None:
    if origin.converter is not None or len(origin.names) != 1 or origin.names[0] not in files.fp8:
        return
    shape, stem = files.shape[origin.names[0]], origin.names[0].removesuffix(".weight")
    fits = files.element[origin.names[0]] == "F8_E4M3" and shape == [module.out_features, module.in_features]
    if fits and (module.bias is not None) == (f"{stem}.bias" in files.element):
        made.fp8[name] = origin


def _add_experts(
    made: Plan, name: str, module: Any, stacks: Stacks, files: Files, found: dict[str, Origin], forms: Forms
) -> None:
    first, down = (found.get(f"{name}.{part}") for part in (stacks.first, "down_proj"))
    if first is None or down is None or not any(source in files.packed for source in (*first.names, *down.names)):
        return
    try:
        form = forms.of(name, module, experts_form, stacks)
        firsts = _rows_of(made.shapes, files, first, stacks, form.halves)
        downs = _rows_of(made.shapes, files, down, stacks, None)
    except Differs as differs:
        made.kept.setdefault(f"{type(module).__name__} {differs}", []).append(name)
        return
    seconds = firsts[1][: stacks.count] if form.halves else [None] * stacks.count
    made.experts[name] = form, list(zip(firsts[0][: stacks.count], seconds, downs[0], strict=True))


def _add_numbered_experts(
    made: Plan, name: str, module: Any, stacks: Stacks, files: Files, lost: dict[str, str], forms: Forms
) -> None:
    """Experts that are one stack in the model, and in the files one by one: some tools take models apart to quantise
    them."""
    roles = ("gate_proj", "up_proj", "down_proj") if stacks.gated else ("up_proj", "down_proj")
    keys = [[f"{name}.{number}.{role}.weight" for role in roles] for number in range(stacks.count)]
    if name in made.experts or not all(lost.get(key) in files.packed for expert in keys for key in expert):
        return
    try:
        form = forms.of(name, module, experts_form, stacks)
    except Differs:
        return
    each = [[(files.packed[lost.pop(key)].stem, 0, "all") for key in expert] for expert in keys]
    made.experts[name] = form, [(expert[0], expert[1] if stacks.gated else None, expert[-1]) for expert in each]


def _rows_of(shapes: Shapes, files: Files, origin: Origin, stacks: Stacks, halves: Any) -> list[list[Projection]]:
    """Where in the files the matrices of a stacked parameter lie, found by running the model's own conversion on
    numbers that say where they are from."""
    sides = 4, 2
    marks: dict[int, Projection] = {}
    marked: dict[str, torch.Tensor] = {}
    for name in origin.names:
        packed = files.packed.get(name)
        if packed is None:
            raise Differs(f"has some weights in the files that are not 4-bit ({name})")
        stack = torch.empty(packed.stack or 1, *sides)
        for member in range(len(stack)):
            mark = len(marks)
            marks[mark] = packed.stem, member, "all"
            stack[member] = (torch.arange(8).reshape(sides) + 8 * mark).float()
        stack = stack.transpose(1, 2).contiguous() if packed.turned else stack
        marked[name] = stack if packed.stack is not None else stack[0]
    one = files.packed[origin.names[0]]
    small = _shape_of_marks(shapes.get_parameter(origin.target).shape, one, stack, sides)
    whole = origin.made(Shapes(shapes.config, dict.fromkeys(origin.targets, small)), marked.__getitem__)[
        origin.target
    ].long()
    if stacks.turned:
        whole = whole.transpose(1, 2)
    return [[_recognised(rows, marks) for rows in _half(whole, half)] for half in (halves or ("all",))]


def _shape_of_marks(shape: Sequence[int], packed: Packed, marks: torch.Tensor, sides: tuple[int, int]) -> torch.Tensor:
    """What a parameter's shape is when it is made of marks: some conversions decide by it whether to transpose."""
    if packed.rows == packed.k:
        return marks
    smaller = {packed.rows: sides[0], 2 * packed.rows: 2 * sides[0], packed.k: sides[1]}
    return torch.empty(shape[0], *(smaller.get(size, size) for size in shape[1:]), device="meta")


def _half(whole: torch.Tensor, half: str) -> torch.Tensor:
    rows = whole.shape[1]
    cuts = {"all": slice(None), "first-half": slice(rows // 2), "second-half": slice(rows // 2, None)}
    return whole[:, cuts.get(half, slice(half == "odd", None, 2))]


def _recognised(rows: torch.Tensor, marks: dict[int, Projection]) -> Projection:
    """The matrix whose marks these are."""
    mark = int(rows.flatten()[0]) // 8
    matrix = torch.arange(8).reshape(4, 2) + 8 * mark
    for part in ("all", "first-half", "second-half", "even", "odd"):
        if torch.equal(rows, _half(matrix[None], part)[0]):
            stem, member, _ = marks[mark]
            return stem, member, part
    raise Differs("has weights in the files that are arranged in a way of their own")


def _fuse(made: Plan, model: Any, forms: Forms) -> None:
    """Takes the three linear layers of a gated MLP for one where that is the same computation. It is faster, and
    nothing else."""
    for name, module in model.named_modules():
        parts = {part: made.linears.get(f"{name}.{part}") for part, _ in module.named_children()}
        if sum(stem is not None for stem in parts.values()) != 3:
            continue
        try:
            form = forms.of(name, module, mlp_form)
        except Differs:
            continue
        gate, up, down = ((str(parts[role]), 0, "all") for role in form.roles)
        made.mlps[name] = form, (gate, up, down)
        for role in form.roles:
            del made.linears[f"{name}.{role}"]


def _expand_the_rest(made: Plan, files: Files, found: dict[str, Origin]) -> None:
    replaced = set(made.replaced)
    rest: dict[str, Origin] = {}
    for target, origin in found.items():
        if any(name in files.packed or name in files.fp8 for name in origin.names) and not _is_in(target, replaced):
            rest[origin.target] = origin
    made.expanded = list(rest.values())


def _is_in(parameter: str, modules: set[str]) -> bool:
    module = parameter
    while module:
        module = module.rpartition(".")[0]
        if module in modules:
            return True
    return False


def _is_shared(model: Any, parameter: str) -> bool:
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    return parameter in tied or parameter in tied.values()


def _untie(model: Any, files: Files, found: dict[str, Origin]) -> None:
    """Gives quantised weights that several modules of a class share to each of them; one that is shared with anything
    else is refused."""
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    for weight, other in list(tied.items()):
        for one, another in ((weight, other), (other, weight)):
            origin = found.get(one)
            if origin is None or not any(name in files.packed for name in origin.names):
                continue
            kinds = {type(model.get_submodule(name.rpartition(".")[0])) for name in (one, another)}
            if len(kinds) > 1 or found.get(another, origin).names != origin.names:
                raise ValueError(
                    f"{one.removesuffix('.weight')} is NVFP4, but its weight is tied to {another}, which is not: set tie_word_embeddings to "
                    "false in config.json if the file has both, or export the model without quantising it"
                )
            found[another] = origin
            origin.aliases[another] = one
            tied.pop(weight, None)


def _account_for_lost(made: Plan, model: Any, files: Files, found: dict[str, Origin], lost: dict[str, str]) -> None:
    """Quantised tensors that become no parameter are left out only if the model lacks nothing without them."""
    patterns = [re.compile(pattern) for pattern in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    quantised = sorted(name for name in lost.values() if name in files.packed or name in files.fp8)
    quantised = [name for name in quantised if not any(pattern.search(name) for pattern in patterns)]
    if not quantised:
        return
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    known = {*found, *tied}
    replaced = set(made.experts)
    missing = [name for name, _ in model.named_parameters() if name not in known and not _is_in(name, replaced)]
    if missing:
        raise ValueError(
            f"{quantised[0]} is quantised in the files ({len(quantised)} are like it), and {type(model).__name__} has no parameter that it becomes, while "
            f"{missing[0]} is in no file: this architecture is not supported; hammerhead.Linear.from_checkpoint and its kin read single layers"
        )
    made.left_out = quantised
