"""Predicts tokens per second of a model whose experts do not all go onto the GPU.

Sizes are its files', speeds what this machine measures, or those that are given.

    python -m hammerhead.budget FOLDER --gpu-budget 24GB,48GB,80GB
    python -m hammerhead.budget FOLDER --gpu-budget 24GB --host-bandwidth 60GB --gpu-bandwidth 900GB --hit 0.7     # of another machine

A layer in two places (``gpu_bytes=``) takes as long as the slower of the two: the GPU reads the experts that it holds
while the processor reads its own, which costs one way there and back. In a prompt that is long enough for ``stream`` the
processor's experts cross the bus while the GPU computes. The rest of the model reads its weights on the GPU, and takes
what the program around it takes. Routing is taken to be even, which has a prompt ask for nearly all experts, unless a
run has counted otherwise (``--heat``). What is left out: attention in long prompts, arithmetic where bandwidths are
given and not measured, and a host whose threads are wanted elsewhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from hammerhead import backends
from hammerhead._cost import Layer, measure_calls, measure_layer, random_layer, turns
from hammerhead._native import Checkpoint
from hammerhead._packed import streaming

TOP_K = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "num_selected_experts")
"""What configurations call the number of experts that compute a token."""

AWAY = 60e-6
"""Seconds for which a layer's rows go to the host and come back, where it was not measured: so much was it on an
H200."""

BUS = 51e9
"""Bytes per second that weights cross the bus with, where that is not said: so many were it on an H200, PCIe 5."""

BROUGHT_FROM = 8
"""Rows per expert from which on weights are brought over with ``stream=True``."""


@dataclass(frozen=True)
class Model:
    """A model's sizes, as it is packed."""

    layers: int
    """Those with experts."""
    experts: int
    """Of each."""
    top_k: int
    hidden: int
    expert_bytes: int
    """Of one expert."""
    beside_bytes: int
    """Of all that is no expert, and always lies on the GPU."""

    @property
    def intermediate(self) -> int:
        """The width between an expert's products, if it has three matrices."""
        return max(16, round(self.expert_bytes * 16 / 9 / 3 / self.hidden / 16) * 16)

    @classmethod
    def from_checkpoint(cls, folder: str | PathLike[str], top_k: int | None = None) -> Model:
        """Reads the files' headers, and from the configuration how wide the model is and how many experts compute a
        token."""
        path = Path(folder)
        numbers, elements, layers = set[str](), 0, set[str]()
        for stem, _, _, stack, rows, k, _ in Checkpoint.by_name(path).stored():
            layer, found, rest = stem.partition(".experts.")
            if found:
                layers.add(layer)
                elements += (stack or 1) * rows * k
                numbers |= {str(number) for number in range(stack)} if stack else {rest.partition(".")[0]}
        if not layers:
            raise ValueError(f"{path}: no tensor of its files is a 4-bit expert's, and only experts may lie in two places")
        expert_bytes = elements * 9 // 16 // (len(layers) * len(numbers))
        files = sum(file.stat().st_size for file in path.glob("*.safetensors"))
        beside = max(0, files - elements * 9 // 16)
        settings = json.loads((path / "config.json").read_text())
        settings = {**settings, **settings.get("text_config", {})}
        top = top_k or next((int(settings[name]) for name in TOP_K if settings.get(name)), None)
        if top is None:
            raise ValueError(f"{path / 'config.json'}: it does not say how many experts compute a token; give --top-k")
        return cls(len(layers), len(numbers), top, int(settings["hidden_size"]), expert_bytes, beside)


@dataclass(frozen=True)
class Machine:
    """What layers of a model's size take on a processor and on a GPU, and what it takes to go from one to the other."""

    host: Layer
    gpu: Layer
    away: float = AWAY
    """Seconds for which rows go to the host and come back, beside its own work."""
    rest: float = 0.0
    """Seconds per layer of what a program does around the experts, reading weights aside: attention, norms, Python."""
    bus: float = BUS
    """Bytes of weights per second that the GPU reads from the host's memory."""

    @classmethod
    def of_rates(cls, model: Model, host: float, gpu: float) -> Machine:
        """A machine that reads weights with so many bytes per second, and computes in that time."""

        def layer(rate: float) -> Layer:
            return Layer(model.hidden, model.experts, model.top_k, 0.0, model.expert_bytes / rate, 0.0)

        return cls(layer(host), layer(gpu))


def measure_machine(model: Model) -> Machine:
    """Measures layers of the model's size on this machine's processor and GPU, and the way between them."""
    reason = backends().get("cuda", "this package was built without GPUs")
    if reason is not None:
        raise ValueError(f"this machine's GPU cannot be measured: {reason}; give --host-bandwidth and --gpu-bandwidth")
    sizes = (model.hidden, model.intermediate, model.experts, model.top_k)
    # As models are loaded, unless they are asked for other bits.
    host, gpu = (measure_layer(*sizes, backend=backend, batch_invariant=False) for backend in ("cpu", "cuda"))
    divided = random_layer(*sizes[:3], backend="cuda", gpu_bytes=0)
    active = min(model.top_k, divided.num_experts)
    away = measure_calls(turns(divided, active, 1)) - host.active_seconds(active, active)
    return Machine(host, gpu, max(0.0, away))


@dataclass(frozen=True)
class Prediction:
    """What one step takes: a token of every sequence."""

    resident: float
    """The part of all experts that the GPU holds."""
    hit: float
    """The part of what routing asks for that it finds there."""
    host: float
    """Seconds of the processor, over all layers; and of the GPU, experts and the rest."""
    gpu: float
    seconds: float
    """Of the whole step."""
    tokens: int

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def predict(
    model: Model,
    machine: Machine,
    budget: int,
    *,
    tokens: int = 1,
    hit: float | None = None,
    heat: Sequence[Sequence[float]] | None = None,
    whole_layers: bool = False,
    stream: bool | int | None = False,
) -> Prediction:
    """What a step of so many tokens takes, or a prompt of as many, where weights may take ``budget`` bytes of the GPU.

    ``hit``: the part of the experts asked for that lie there; as large as the part that lies there if not given, as of
    routing at random. ``heat``: how often each layer's experts were asked for, as :attr:`hammerhead.Experts.heat`
    counts; those asked for most lie on the GPU. ``whole_layers``: the first layers' experts lie there, and not a part
    of every layer's. ``stream``: that of :class:`hammerhead.Experts`.
    """
    experts = model.layers * model.experts * model.expert_bytes
    resident = min(1.0, max(0, budget - model.beside_bytes) / experts)
    # Whole experts of every layer, as a layer's share of the budget holds.
    shares = [resident] * model.layers
    if whole_layers:
        shares = [min(1.0, max(0.0, resident * model.layers - layer)) for layer in range(model.layers)]
    shares = [int(share * model.experts + 1e-9) / model.experts for share in shares]

    def chances(layer: int) -> tuple[list[float], list[float]]:
        """How likely a token asks for each of a layer's experts: those on the GPU, and the others."""
        held = round(shares[layer] * model.experts)
        others = model.experts - held
        if heat is not None and (total := sum(heat[layer])) > 0:
            each = [model.top_k * count / total for count in sorted(heat[layer], reverse=True)]
            return each[:held], each[held:]
        hits = shares[layer] if hit is None or not held or not others else hit
        parts = ((held, hits), (others, 1.0 - hits))
        here, away = ([model.top_k * part / number] * number if number else [] for number, part in parts)
        return here, away

    def asked_of(each: Sequence[float]) -> tuple[float, float]:
        """How many of these experts compute, and how many rows."""
        return sum(1.0 - max(0.0, 1.0 - chance) ** tokens for chance in each), tokens * sum(each)

    asked = tokens * model.top_k
    placed = [chances(layer) for layer in range(model.layers)]
    hits = [sum(here) / model.top_k for here, _ in placed]
    here, away = ([asked_of(each) for each in place] for place in zip(*placed))
    is_streaming, rows = streaming(stream)
    if is_streaming and asked >= (rows or BROUGHT_FROM * model.experts):
        # What crosses the bus is no work of the processor's, and the GPU computes all rows meanwhile.
        # It brings the experts that are asked for, and no others.
        other = [experts * model.expert_bytes / machine.bus for experts, _ in away]
        here = [(own + brought, asked) for (own, _), (brought, _) in zip(here, away)]
        host = [0.0] * model.layers
    else:
        host = [machine.host.active_seconds(*experts) for experts in away]
        other = [seconds + machine.away if seconds else 0.0 for seconds in host]
    gpu = [machine.gpu.active_seconds(*experts) for experts in here]
    layers = sum(map(max, other, gpu))
    beside = model.beside_bytes * machine.gpu.stream / model.expert_bytes + model.layers * machine.rest
    mean = [sum(values) / model.layers for values in (shares, hits)]
    return Prediction(mean[0], mean[1], sum(host), sum(gpu) + beside, layers + beside, tokens)


def read_heat(file: Path) -> dict[str, list[float]]:
    """How often experts were asked for, as ``python -m hammerhead.transformers --heat`` wrote it."""
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"--heat {file}: it is no JSON ({error}); remove it, or name another file") from error
    counts = [counts for counts in found.values()] if isinstance(found, dict) else [None]
    if not all(isinstance(each, list) and all(isinstance(count, (int, float)) for count in each) for each in counts):
        raise ValueError(f"--heat {file}: it holds no counts by the names of modules; remove it, or name another file")
    return found


def heat_of(model: Model, heat: Mapping[str, Sequence[float]]) -> list[Sequence[float]]:
    """The counts of a model's layers, in their order."""
    counts = list(heat.values())
    if len(counts) != model.layers or any(len(each) != model.experts for each in counts):
        found = f"{len(counts)} layers of {', '.join(sorted({str(len(each)) for each in counts})) or 'no'} experts"
        raise ValueError(
            f"--heat: it has counts of {found}, and the model {model.layers} of {model.experts}; give what a run "
            "has written that had a part of every layer's experts on the GPU"
        )
    return counts


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parsed_bytes(size: int | str, what: str = "gpu_budget") -> int:
    """A number of bytes, or as ``"60GB"`` or ``"24.5 GiB"`` say it."""
    text = str(size).strip().upper()
    number = text.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ").strip()
    unit = text[len(number) :].strip()
    try:
        found = float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        found = -1.0
    if not 0 <= found < 2**63:
        raise ValueError(f"{what}: {size!r} is no size; give bytes, or a number with GB or GiB, such as '60GB'")
    return int(found)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m hammerhead.budget", description=__doc__.splitlines()[0])
    parser.add_argument("model", help="the folder of a checkpoint")
    parser.add_argument("--gpu-budget", default="0GB,24GB,48GB,80GB,141GB", help="what weights may take of the GPU; several with commas")
    parser.add_argument("--whole-layers", action="store_true", help="the first layers' experts lie on the GPU, and not a part of every layer's")
    parser.add_argument("--tokens", default="1", help="sequences that are generated at a time; several with commas")
    parser.add_argument("--prompt", type=int, help="tokens of a prompt, whose time is predicted, too")
    parser.add_argument("--stream", action="store_true", help="weights are brought over for long prompts, of 8 rows per expert and more")
    parser.add_argument("--bus-bandwidth", default=f"{BUS / 1e9:.0f}GB", help="bytes per second that they cross the bus with")
    parser.add_argument("--hit", type=float, help="the part of the experts asked for that the GPU holds, if routing is not even")
    parser.add_argument("--heat", metavar="FILE", help="how often experts were asked for, as hammerhead.transformers writes it; the hottest are on the GPU")
    parser.add_argument("--top-k", type=int, help="experts that compute a token, if the configuration does not say it")
    parser.add_argument("--host-bandwidth", help="bytes per second that the processor reads, as 60GB; measured if not given")
    parser.add_argument("--gpu-bandwidth", help="bytes per second that the GPU reads; measured if not given")
    parser.add_argument("--rest-ms", type=float, default=0.0, help="what a program takes per layer around the experts")
    options = parser.parse_args(arguments)
    try:
        print(report(options), end="")
    except (OSError, ValueError) as error:
        sys.exit(str(error))


def report(options: argparse.Namespace) -> str:
    """The table that the command prints."""
    if options.hit is not None and not 0.0 <= options.hit <= 1.0:
        raise ValueError(f"--hit: it is {options.hit}, and a part of all is between 0 and 1")
    model = Model.from_checkpoint(options.model, options.top_k)
    budgets = [parsed_bytes(size, "--gpu-budget") for size in options.gpu_budget.split(",")]
    steps = [int(tokens) for tokens in options.tokens.split(",") if tokens.strip().isdecimal()]
    if not steps or 0 in steps or len(steps) != options.tokens.count(",") + 1:
        raise ValueError(f"--tokens: it is {options.tokens!r}; give numbers above 0 with commas, such as 1,8,64")
    if options.prompt is not None and options.prompt < 1:
        raise ValueError(f"--prompt: it is {options.prompt}; give a number of tokens above 0")
    if options.stream and options.prompt is None:
        raise ValueError("--stream: it is for long prompts, and none was given; give --prompt, too")
    if options.hit is not None and options.heat:
        raise ValueError("--hit and --heat: counts say how many hits there are; give one of the two")
    heat = heat_of(model, read_heat(Path(options.heat))) if options.heat else None
    bus = parsed_bytes(options.bus_bandwidth, "--bus-bandwidth")
    if not bus:
        raise ValueError("--bus-bandwidth: nothing crosses a bus without any; give more than 0")
    given = [options.host_bandwidth, options.gpu_bandwidth]
    if None in given and given != [None, None]:
        raise ValueError("--host-bandwidth and --gpu-bandwidth: one was given without the other; give both, or neither to measure")
    if None in given:
        machine = measure_machine(model)
    else:
        host, gpu = (parsed_bytes(rate, "bandwidth") for rate in given)
        if not host or not gpu:
            raise ValueError("--host-bandwidth, --gpu-bandwidth: a machine that reads nothing computes nothing; give more than 0")
        machine = Machine.of_rates(model, host, gpu)
    machine = replace(machine, rest=options.rest_ms / 1e3, bus=float(bus))
    gigabytes = model.layers * model.experts * model.expert_bytes / 1e9
    lines = [
        f"{model.layers} layers of {model.experts} experts, {model.top_k} for a token: {gigabytes:.1f} GB, and {model.beside_bytes / 1e9:.1f} GB beside them",
        f"the processor reads experts with {model.expert_bytes / machine.host.stream / 1e9:.0f} GB/s, the GPU with "
        f"{model.expert_bytes / machine.gpu.stream / 1e9:.0f}; there and back takes {machine.away * 1e6:.0f} us",
        "",
        f"{'budget GB':>9} {'on GPU':>7} {'hits':>6} {'tokens':>6} {'host ms':>8} {'GPU ms':>8} {'step ms':>8} {'tokens/s':>9}"
        + (f" {'prompt ms':>10}" if options.prompt else ""),
    ]
    for budget in budgets:
        for tokens in steps:
            placed = {"hit": options.hit, "heat": heat, "whole_layers": options.whole_layers}
            step, prompt = predict(model, machine, budget, tokens=tokens, **placed), ""
            if options.prompt:
                first = predict(model, machine, budget, tokens=options.prompt, stream=options.stream, **placed)
                prompt = f" {first.seconds * 1e3:10.2f}"
            note = "" if budget >= model.beside_bytes else "  too little for what is no expert"
            lines.append(
                f"{budget / 1e9:9.1f} {step.resident:7.0%} {step.hit:6.0%} {tokens:6} {step.host * 1e3:8.2f} {step.gpu * 1e3:8.2f} "
                f"{step.seconds * 1e3:8.2f} {step.tokens_per_second:9.1f}{prompt}{note}"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
