"""Whether a module of a model computes what a layer of ours would, found by running it.

Names say little about a computation: two classes with the same three projections may differ by a multiplier, a clamp
or a norm. So before a module is replaced, a small twin of it is made: a copy with the same attributes and the same
``forward``, but with few columns, and with random weights that are exactly NVFP4. It is run on a few tokens beside
our layer with the same weights. Tokens are small and large, so that clamps show. Only if every row agrees to the
rounding of float32 are the two taken for the same computation. A twin takes milliseconds and none of the model's own
weights; modules that are alike in class, attributes and shapes share one.
"""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from hammerhead import Experts, Mlp, NvFp4, quantize

APART = 3e-5
"""The most that a row may differ, as a part of its largest element: above what float32 sums of this length round, and
below what any multiplier, clamp or other form of an activation makes."""

_MAGNITUDES = (0.05, 0.4, 1.0, 1.0, 2.5, 9.0, 40.0)
"""Of the tokens. With the last of them, pre-activations pass every limit in use."""

Halves = tuple[str, str]
"""Which rows of a joined matrix are gate's, and which are up's."""

_JOINED: tuple[Halves, ...] = (("first-half", "second-half"), ("even", "odd"), ("second-half", "first-half"))
_ROWS = {"first-half": (0, 1), "second-half": (1, 1), "even": (0, 2), "odd": (1, 2)}

ROLES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""What the projections of a gated MLP are called, in the order gate, up, down. The twin tells whether they are that."""


class Differs(Exception):
    """A module computes something else, or cannot be run by itself. The message says which, and begins with a verb."""


@dataclass(frozen=True)
class MlpForm:
    """How a gated MLP computes."""

    gate: str
    roles: tuple[str, str, str]


@dataclass(frozen=True)
class ExpertsForm:
    """How the experts of a layer compute."""

    gate: str

    halves: Halves | None
    """The rows of gate and up in the joined matrix; None where nothing gates."""

    sorted: bool
    """Whether rows come expert by expert, as many for each, and not with ids and weights."""

    count: int
    """The experts that have weights."""

    beyond: int
    """The ids after those, which stand for experts that return their token as it is."""

    def __call__(self, layer: Experts, x: Any, ids: Any = None, weights: Any = None) -> Any:
        """Calls our layer as the model calls its experts."""
        if self.sorted:
            rows = x.shape[0] // self.count
            ids = torch.arange(self.count, device=x.device).repeat_interleave(rows)[:, None]
            return layer(x, ids, torch.ones_like(ids, dtype=torch.float32))
        weights = weights.to(torch.float32)
        if not self.beyond:
            return layer(x, ids, weights)
        # Ids that are no expert's add nothing to the layer's sums.
        routed, returned = layer(x, ids, weights), weights.masked_fill(ids < self.count, 0.0)
        return routed + (x * returned.sum(-1, keepdim=True)).to(routed.dtype)


@dataclass(frozen=True)
class Stacks:
    """The stacked matrices of a module of experts."""

    first: str
    """The parameter of gate and up, or of up alone."""
    gated: bool
    turned: bool
    """Whether a matrix is stored as its columns."""
    count: int
    beyond: int
    wide: int
    """The width of tokens."""
    narrow: int
    """The width of the intermediate."""

    @classmethod
    def of(cls, module: torch.nn.Module) -> Stacks | None:
        """The stacks of a module, if it has some."""
        own = dict(module.named_parameters(recurse=False))
        first = next((name for name in ("gate_up_proj", "up_proj") if name in own), None)
        if first is None or "down_proj" not in own or own[first].dim() != 3 or own["down_proj"].dim() != 3:
            return None
        (total, a, b), (count, c, d) = own[first].shape, own["down_proj"].shape
        parts = 2 if first == "gate_up_proj" else 1
        straight, turned = (a, b) == (parts * d, c), (b, a) == (parts * c, d)
        if straight == turned:
            return None
        wide, narrow = (c, d) if straight else (d, c)
        return cls(first, parts == 2, turned, count, total - count, wide, narrow)

    def parameter(self, twin: torch.nn.Module, name: str, matrices: Iterable[torch.Tensor]) -> None:
        """Puts matrices into the twin's stack, and zeros for experts that have none."""
        stack = torch.stack(list(matrices))
        if name == self.first and self.beyond:
            stack = torch.cat([stack, stack.new_zeros(self.beyond, *stack.shape[1:])])
        if self.turned and stack.dim() == 3:
            stack = stack.transpose(1, 2).contiguous()
        setattr(twin, name, torch.nn.Parameter(stack, requires_grad=False))


def mlp_form(module: torch.nn.Module, said: str | None = None) -> MlpForm:
    """How an MLP of three linear layers computes, or ``Differs``. Where its gate is ``said``, nothing is run."""
    children = dict(module.named_children())
    linears = {name for name, child in children.items() if isinstance(child, torch.nn.Linear)}
    roles = next((roles for roles in ROLES if set(roles) == linears), None)
    if roles is None or len(_arguments(module)) != 1:
        raise Differs("is not made of a gate, an up and a down projection alone")
    if said is not None:
        return MlpForm(said, roles)
    _refuse_state(module, {f"{role}.{part}" for role in roles for part in ("weight", "bias")})
    parts: list[Any] = [children[role] for role in roles]
    wide, narrow = parts[0].in_features, parts[0].out_features
    if [(part.in_features, part.out_features) for part in parts[1:]] != [(wide, narrow), (narrow, wide)]:
        raise Differs("has projections with other sides than a gated MLP's")
    twin, (w, n) = _shrunk(module, wide, narrow)
    matrices = [_matrix(0, n, w), _matrix(1, n, w), _matrix(2, w, n)]
    biases = [
        None if part.bias is None else _bias(number, matrix.shape[0])
        for number, (part, matrix) in enumerate(zip(parts, matrices, strict=True))
    ]
    for role, matrix, bias in zip(roles, matrices, biases, strict=True):
        linear = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=bias is not None)
        linear.load_state_dict({"weight": matrix.dequantize(), **({} if bias is None else {"bias": bias})})
        setattr(twin, role, linear)
    x = _tokens(w)
    named: Any = dict(zip(("b1_bias", "b2_bias", "down_bias"), biases, strict=True))
    expected = _run(twin, x)
    gate = _agreed(
        expected, lambda gate: Mlp.from_arrays(*matrices, **named, gate=gate, threads=1)(x), _gates(module, gated=True)
    )
    return MlpForm(gate, roles)


def experts_form(module: torch.nn.Module, stacks: Stacks, said: str | None = None) -> ExpertsForm:
    """How experts compute, or ``Differs``. Where their gate is ``said``, nothing is run, and gate is taken to stand
    before up."""
    arguments = _arguments(module)
    if len(arguments) not in (1, 3):
        raise Differs(f"takes {', '.join(arguments)}, where tokens are expected, or tokens, ids and weights")
    is_sorted = len(arguments) == 1
    if said is not None:
        return ExpertsForm(said, _JOINED[0] if stacks.gated else None, is_sorted, stacks.count, stacks.beyond)
    _refuse_state(module, {stacks.first, f"{stacks.first}_bias", "down_proj", "down_proj_bias"})
    twin, (w, n) = _shrunk(module, stacks.wide, stacks.narrow)
    if hasattr(twin, "config"):
        twin.config._experts_implementation = "eager"
    numbers = range(stacks.count)
    b1 = [_matrix(3 * number, n, w) for number in numbers]
    b2 = [_matrix(3 * number + 1, n, w) for number in numbers] if stacks.gated else None
    down = [_matrix(3 * number + 2, w, n) for number in numbers]
    has_bias = (
        getattr(module, f"{stacks.first}_bias", None) is not None,
        getattr(module, "down_proj_bias", None) is not None,
    )
    b1_bias = [_bias(3 * number, n) for number in numbers] if has_bias[0] else None
    b2_bias = [_bias(3 * number + 1, n) for number in numbers] if has_bias[0] and stacks.gated else None
    down_bias = [_bias(3 * number + 2, w) for number in numbers] if has_bias[1] else None
    x = _tokens(w)
    call = () if is_sorted else _routed(stacks.count + stacks.beyond, len(x))
    if is_sorted:
        x = torch.cat([x[[number % len(x), 2, 5]] for number in numbers])
    stacks.parameter(twin, "down_proj", (matrix.dequantize() for matrix in down))
    if down_bias is not None:
        stacks.parameter(twin, "down_proj_bias", down_bias)
    differs = Differs("was not tried")
    for halves in _JOINED if stacks.gated else (None,):
        joined = (_joined(halves, one, b2[number] if b2 else None) for number, one in enumerate(b1))
        stacks.parameter(twin, stacks.first, joined)
        if b1_bias is not None:
            pairs = zip(b1_bias, b2_bias or b1_bias, strict=True)
            stacks.parameter(twin, f"{stacks.first}_bias", (_interleaved(halves, one, other) for one, other in pairs))

        def ours(gate: str) -> torch.Tensor:
            biases: Any = {"b1_bias": b1_bias, "b2_bias": b2_bias, "down_bias": down_bias}
            return form(gate)(Experts.from_arrays(b1, b2, down, **biases, gate=gate, threads=1), x, *call)

        def form(gate: str, halves: Halves | None = halves) -> ExpertsForm:
            return ExpertsForm(gate, halves, is_sorted, stacks.count, stacks.beyond)

        try:
            return form(_agreed(_run(twin, x, *call), ours, _gates(module, stacks.gated)))
        except Differs as found:
            differs = found
    raise differs


def alike(module: torch.nn.Module) -> Any:
    """What modules that may share a twin have in common: class, shapes, and whatever their attributes are."""

    def value(attribute: Any) -> Any:
        if isinstance(attribute, torch.Tensor):
            # Values may differ, and are not known yet.
            return id(attribute)
        if isinstance(attribute, torch.nn.Module):
            return alike(attribute)
        if isinstance(attribute, dict):
            return tuple((key, value(entry)) for key, entry in attribute.items())
        if isinstance(attribute, (list, tuple, set, frozenset)):
            return tuple(map(value, attribute))
        return attribute if isinstance(attribute, (int, float, str, bool, type(None), torch.dtype)) else id(attribute)

    shapes = tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters())
    own = {name: entry for name, entry in vars(module).items() if name != "_parameters"}
    return type(module), shapes, value(own)


def _arguments(module: torch.nn.Module) -> list[str]:
    """The arguments that ``forward`` takes by position."""
    forward = inspect.signature(inspect.unwrap(type(module).forward))
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, given in forward.parameters.items() if given.kind in kinds][1:]


def _refuse_state(module: torch.nn.Module, known: set[str]) -> None:
    """Weights that we know nothing of would be left out."""
    others = sorted({name for name, _ in [*module.named_parameters(), *module.named_buffers()]} - known)
    if others:
        raise Differs(f"has {others[0]} beside its projections")


def _shrunk(module: torch.nn.Module, wide: int, narrow: int) -> tuple[Any, tuple[int, int]]:
    """A copy of a module whose attributes speak of smaller widths, and those. Widths that are equal stay so."""
    for small in ((48, 32), (32, 32), (64, 32), (32, 64)):
        smaller: dict[int, int] = {}
        sizes = ((wide, small[0]), (narrow, small[1]), (2 * narrow, 2 * small[1]))
        if all(smaller.setdefault(size, less) == less for size, less in sizes):
            break
    else:
        raise Differs(f"has widths, {wide} and {narrow}, that no smaller ones stand for")
    # Its parameters are replaced, so that those of the module need no copies.
    twin = copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()}).eval()
    for holder in (twin, getattr(twin, "config", None)):
        for name, size in list(vars(holder).items()) if holder is not None else []:
            if isinstance(size, int) and not isinstance(size, bool) and re.search(r"(size|dim|features|width)$", name):
                setattr(holder, name, smaller.get(size, size))
    return twin, small


def _random(seed: int, *sides: int) -> torch.Tensor:
    return torch.randn(*sides, generator=torch.Generator().manual_seed(seed))


def _matrix(seed: int, rows: int, k: int) -> NvFp4[torch.Tensor]:
    return quantize(_random(seed, rows, k) * (1 + seed % 5) / math.sqrt(3 * k))


def _bias(seed: int, rows: int) -> torch.Tensor:
    return _random(1000 + seed, rows) / 3


def _tokens(width: int) -> torch.Tensor:
    return _random(42, len(_MAGNITUDES), width) * torch.tensor(_MAGNITUDES)[:, None]


def _routed(ids: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and weights: for each token one id from the front, one from the back and one from the middle, if there are
    as many."""
    top = min(3, ids)
    wished = ([token, ids - 1 - token, ids // 2 + token, *range(ids)] for token in range(tokens))
    chosen = [list(dict.fromkeys(id % ids for id in row))[:top] for row in wished]
    return torch.tensor(chosen), _random(43, tokens, top).abs() + 0.1


def _joined(halves: Halves | None, one: NvFp4[torch.Tensor], other: NvFp4[torch.Tensor] | None) -> torch.Tensor:
    return _interleaved(halves, one.dequantize(), one.dequantize() if other is None else other.dequantize())


def _interleaved(halves: Halves | None, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Rows of gate and up in one tensor, or of up alone."""
    if halves is None:
        return one
    joined = one.new_empty(2 * one.shape[0], *one.shape[1:])
    for half, part in zip(halves, (one, other), strict=True):
        rows(joined, half).copy_(part)
    return joined


def rows(joined: torch.Tensor, half: str | None) -> torch.Tensor:
    """The rows of gate or of up in one matrix of both, or all of them."""
    if half is None:
        return joined
    at, step = _ROWS[half]
    count = joined.shape[0] // 2
    return joined[at * (count if step == 1 else 1) :: step][:count]


def _gates(module: Any, gated: bool) -> list[str]:
    """The gates that a module may have, by what it says of itself; the twin tells which it is."""
    if not gated:
        return ["relu2", "none"]
    said = {**vars(getattr(module, "config", None) or object), **vars(module)}
    numbers = {
        name: value for name, value in said.items() if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    limits = sorted({float(value) for name, value in numbers.items() if "limit" in name and value > 0}) or [7.0]
    alphas = sorted({float(value) for name, value in numbers.items() if name.endswith("alpha") and value > 0} | {1.702})
    clamped = [f"silu:limit={limit}" for limit in limits]
    shifted = [f"gpt-oss:alpha={alpha},beta=1,limit={limit}" for limit in limits for alpha in alphas]
    return ["silu", "gelu-tanh", *clamped, *shifted]


def _run(twin: Any, *arguments: torch.Tensor) -> torch.Tensor:
    try:
        with torch.no_grad():
            result = twin(*arguments)
    except Exception as error:  # noqa: BLE001  (a stranger's code may fail in any way)
        raise Differs(
            f"cannot be run by itself ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
        ) from error
    if not isinstance(result, torch.Tensor):
        raise Differs(f"returns a {type(result).__name__} where a tensor is expected")
    return result


def _agreed(expected: torch.Tensor, ours: Callable[[str], torch.Tensor], gates: list[str]) -> str:
    """The gate with which we compute the same."""
    least = math.inf
    scale = expected.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    for gate in gates:
        result = ours(gate)
        if result.shape != expected.shape:
            raise Differs(f"returns {list(expected.shape)} where {list(result.shape)} is expected")
        apart = float(((result - expected).abs() / scale).nan_to_num(math.inf).amax())
        if apart <= APART:
            return gate
        least = min(least, apart)
    raise Differs(f"computes something else (at best {least:.0e} apart)")
