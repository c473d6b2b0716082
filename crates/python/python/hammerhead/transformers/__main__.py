"""Generates text with an NVFP4 model, on this CPU or on a GPU, and says how fast and in how much memory.

    python -m hammerhead.transformers MODEL --prompt "Once upon a time"

MODEL is the folder of a ModelOpt or compressed-tensors checkpoint, or its name on the hub.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer, TextStreamer

from hammerhead import budget
from hammerhead.transformers import NvFp4Config, check_host, heat, place_hottest, replay_steps


class Stopwatch(BaseStreamer):
    """Notes when tokens come, and hands them on."""

    def __init__(self, then: BaseStreamer) -> None:
        self.then = then
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())
        self.then.put(value)

    def end(self) -> None:
        self.then.end()


class Placing(BaseStreamer):
    """Moves experts to the GPU that were asked for most, every so many tokens, and hands tokens on."""

    def __init__(self, then: BaseStreamer, model: torch.nn.Module, every: int) -> None:
        self.then, self.model, self.every = then, model, every
        self.calls, self.moved = 0, 0

    def put(self, value: Any) -> None:
        self.then.put(value)
        # The first is the prompt.
        if self.calls and self.calls % self.every == 0:
            self.moved += place_hottest(self.model)
        self.calls += 1

    def end(self) -> None:
        self.then.end()


class Numbers(BaseStreamer):
    """Prints tokens as numbers, where a model has no tokenizer."""

    def put(self, value: Any) -> None:
        print(*value.reshape(-1).tolist(), end=" ", flush=True)

    def end(self) -> None:
        print()


def memory(field: str) -> int:
    """Bytes of this process, as Linux counts them; 0 elsewhere."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m hammerhead.transformers", description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a folder, or a name on the hub")
    parser.add_argument("--prompt", default="The hammerhead shark", help="text; or numbers of tokens, where the model has no tokenizer")
    parser.add_argument("--tokens", type=above_zero, default=64, help="the most to generate")
    parser.add_argument("--dtype", default="auto", help="of activations: auto, bfloat16, float16 or float32")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, …; auto takes a GPU if there is one")
    parser.add_argument("--gpu-budget", help="what weights may take of the GPU, as 60GB; experts beyond it are the CPU's")
    parser.add_argument("--whole-layers", action="store_true", help="within the budget, the first layers' experts go to the GPU, and not a part of every layer's")
    parser.add_argument("--stream", action="store_true", help="bring experts beyond the budget to the GPU for long prompts: faster, and twice the host memory")
    parser.add_argument("--place-every", type=above_zero, metavar="N", help="after every N tokens move the experts to the GPU that were asked for most")
    parser.add_argument("--heat", metavar="FILE", help="how often experts were asked for: they are placed by it at first if it is there, and it is written at last")
    parser.add_argument("--predict", action="store_true", help="measure layers on this machine first, and print beside the result what they predict")
    parser.add_argument("--replay", action="store_true", help="replay CUDA graphs for single tokens, on a GPU, instead of queueing them from Python")
    parser.add_argument("--compile", action="store_true", help="have torch compile the norms and routers of replayed steps: faster, and rounded differently")
    parser.add_argument("--precision", default="exact", choices=["exact", "fp8"], help="of gated MLPs and experts: fp8 changes results, and needs a Hopper GPU")
    options = parser.parse_args(arguments)
    local = Path(options.model).exists()
    if not local and not is_hub_name(options.model):
        sys.exit(f"{options.model}: no such folder, and not a hub name")
    try:
        check(options)
        said = predicted(options) if options.predict else None
        begun = time.perf_counter()
        usual = options.gpu_budget is None and not options.whole_layers and not options.stream and options.precision == "exact"
        places = {"gpu_budget": options.gpu_budget, "whole_layers": options.whole_layers, "stream": options.stream}
        asked = {} if usual else {"quantization_config": NvFp4Config(**places, precision=options.precision)}
        device = None if options.device == "cpu" else options.device
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype, device_map=device, **asked)
        if options.heat and Path(options.heat).exists():
            place_hottest(model, heat=budget.read_heat(Path(options.heat)))
        if options.replay:
            replay_steps(model, compile=options.compile)
    except (OSError, ValueError) as error:
        sys.exit(f"{options.model}: {error}" if local else f"{options.model}: no such folder; as a name on the hub: {error}")
    loaded = time.perf_counter() - begun
    prompt, streamer = prepared(options)
    prompt = prompt.to(model.device)
    placing = Placing(streamer, model, options.place_every or options.tokens)
    watch = Stopwatch(placing if options.place_every else streamer)
    model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=options.tokens, do_sample=False, streamer=watch)
    check_host(model)
    # Where all experts are in one place there are no counts, and those of earlier runs are kept.
    if options.heat and (counted := heat(model)):
        Path(options.heat).write_text(json.dumps(counted) + "\n")
    # The prompt comes first, then one token at a time.
    first, later = watch.times[1] - watch.times[0], watch.times[1:]
    speed = f"{(len(later) - 1) / (later[-1] - later[0]):.1f} tokens/s" if len(later) > 1 else "one token only"
    print(
        f"\nloaded in {loaded:.1f} s; {prompt.shape[1]} tokens of prompt in {first:.2f} s, then {speed}; "
        f"memory{on_device(model.device)} {memory('RssAnon') / 2**20:.0f} MiB, at most {memory('VmHWM') / 2**20:.0f} MiB with the files' pages",
        file=sys.stderr,
    )
    if options.place_every:
        print(f"{placing.moved} experts were moved", file=sys.stderr)
    if said is not None:
        step, first_token = said(prompt.shape[1])
        print(
            f"predicted, without what the program does around the experts: {first_token.seconds:.2f} s, then {step.tokens_per_second:.1f} tokens/s",
            file=sys.stderr,
        )


def above_zero(text: str) -> int:
    """A number of tokens, of which there must be some."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"it is {text!r}; give a number above 0")
    return int(text)


def check(options: argparse.Namespace) -> None:
    """Refuses what is about experts in two places where no budget puts any into two, and what is about steps that are
    not replayed."""
    if options.compile and not options.replay:
        raise ValueError("--compile: it is for steps that are replayed; give --replay, too")
    for name in ("place_every", "heat", "predict"):
        if getattr(options, name) and options.gpu_budget is None:
            raise ValueError(f"--{name.replace('_', '-')}: it is for experts beyond --gpu-budget, which was not given; give both")
    if options.predict and not Path(options.model).exists():
        raise ValueError("--predict: it reads the files' sizes; give the model's folder")


def predicted(options: argparse.Namespace) -> Any:
    """What layers of the model's sizes predict, measured here, of a prompt of so many tokens: a step, and the prompt."""
    model, gpu_budget = budget.Model.from_checkpoint(options.model), budget.parsed_bytes(options.gpu_budget)
    machine, placed = budget.measure_machine(model), {"whole_layers": options.whole_layers}
    # Whole layers have no counts where all of their experts are on the GPU, and need none.
    if options.heat and Path(options.heat).exists() and not options.whole_layers:
        placed["heat"] = budget.heat_of(model, budget.read_heat(Path(options.heat)))

    def of(tokens: int) -> tuple[budget.Prediction, budget.Prediction]:
        step = budget.predict(model, machine, gpu_budget, **placed)
        return step, budget.predict(model, machine, gpu_budget, tokens=tokens, stream=options.stream, **placed)

    return of


def is_hub_name(name: str) -> bool:
    """Whether a model on the hub could be called that."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def on_device(device: torch.device) -> str:
    """What the GPU of a model has in use, by whomever."""
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    return f" of {device} {(total - free) / 2**20:.0f} MiB, of the host"


def prepared(options: argparse.Namespace) -> tuple[torch.Tensor, BaseStreamer]:
    """The prompt as tokens, and who prints what comes."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        prompt = tokenizer(options.prompt, return_tensors="pt").input_ids
    except (OSError, ValueError, KeyError, ImportError):
        prompt = torch.empty(1, 0)
    # A folder without a tokenizer is given an empty one by some versions, which knows no token at all.
    if prompt.numel() > 0:
        return prompt, TextStreamer(tokenizer)
    numbers = options.prompt.replace(",", " ").split()
    if not numbers or not all(number.isdecimal() for number in numbers):
        sys.exit(f"{options.model}: it has no tokenizer; give the prompt as numbers of tokens, such as --prompt 1,5,9")
    return torch.tensor([[int(number) for number in numbers]]), Numbers()


if __name__ == "__main__":
    main()
