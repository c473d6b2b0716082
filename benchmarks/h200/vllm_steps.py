"""Steps of vLLM with this package's plugin beside vLLM's own Marlin, for NVFP4 experts of Qwen3-30B's sizes.

    python benchmarks/h200/vllm_steps.py RESULT.json [--layers 8] [--rounds 3] [--when FILE]

A checkpoint with random weights is written once. Two processes load it, one with the plugin and one without
(`VLLM_PLUGINS=`), with vLLM's defaults (compiled, CUDA graphs) but for attention, which is Triton's in both, and sizes
of caches. First both answer one prompt, and the probabilities of its next tokens are compared. Then they are timed in
turns, one idle while the other runs, in every round:

- decoding at a batch: the time of 65 tokens per request less that of one, by 64;
- a prompt: the time to its one token.

These are what a caller of `LLM.generate` waits, and vLLM's host work is in them. `device` is the time of all kernels in
one profiled repetition, by torch's profiler: what a step would take if it did not wait for the host. With `--when` the
models are loaded, and timing begins when such a file is there.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BATCHES = (1, 16, 64)
STEPS, PROMPT, LONG = 64, 32, 2048


def write(layers, folder):
    """A checkpoint as ModelOpt writes them, but for its weights."""
    import larger_than_gpu

    larger_than_gpu.write("qwen3-30b", layers, folder)
    settings = json.loads((folder / "config.json").read_text())
    numbers = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    groups = {"group_0": {"input_activations": numbers, "weights": numbers, "targets": ["Linear"]}}
    ignored = ["lm_head", "model.embed_tokens", *(f"model.layers.{number}.mlp.gate" for number in range(layers))]
    settings["quantization_config"] = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "config_groups": groups,
        "ignore": ignored,
    }
    (folder / "config.json").write_text(json.dumps(settings))


class Arm:
    """One of the two, in this process."""

    def __init__(self, folder):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        import torch
        import vllm

        self.torch, self.vllm = torch, vllm
        begun = time.perf_counter()
        self.model = vllm.LLM(
            folder,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=LONG + 64,
            max_num_seqs=max(BATCHES),
            max_num_batched_tokens=LONG + 64,
            gpu_memory_utilization=0.4,
            kv_cache_memory_bytes=4 << 30,
            enable_prefix_caching=False,
            attention_config={"backend": "TRITON_ATTN"},
            compilation_config={"cudagraph_capture_sizes": list(BATCHES)},
        )
        self.loaded = time.perf_counter() - begun

    def about(self):
        def methods(module):
            found = (getattr(part, "quant_method", None) for part in module.modules())
            return sorted({type(each).__name__ for each in found if each is not None})

        [found] = self.model.apply_model(methods)
        return {"load_seconds": self.loaded, "methods": found, "vllm": self.vllm.__version__}

    def generate(self, batch, length, tokens, **more):
        """Seconds of so many requests, and their answers."""
        sampling = self.vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, **more)
        prompts = [{"prompt_token_ids": [(7 * i + 13 * j) % 31999 for j in range(length)]} for i in range(batch)]
        self.torch.cuda.synchronize()
        begun = time.perf_counter()
        answers = self.model.generate(prompts, sampling, use_tqdm=False)
        self.torch.cuda.synchronize()
        return time.perf_counter() - begun, answers

    def answer(self):
        """The twenty likeliest next tokens after a prompt, and their logarithms."""
        _, [answer] = self.generate(1, PROMPT, 1, logprobs=20)
        return {str(token): each.logprob for token, each in answer.outputs[0].logprobs[0].items()}

    def decode(self, batch):
        short, _ = self.generate(batch, PROMPT, 1)
        long, _ = self.generate(batch, PROMPT, 1 + STEPS)
        return (long - short) / STEPS

    def prefill(self, length):
        return self.generate(1, length, 1)[0]

    def device(self, batch, length, tokens):
        """Seconds of all kernels of a generation, and of the kernels that take longest, with how often each ran."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            self.generate(batch, length, tokens)
        rows = [(row.self_device_time_total / 1e6, row.count, row.key) for row in seen.key_averages()]
        rows = sorted((row for row in rows if row[0] > 0 and not row[2].startswith("Mem")), reverse=True)
        kernels = [[seconds, count, name[:120]] for seconds, count, name in rows[:12]]
        return {"seconds": sum(row[0] for row in rows), "kernels": kernels}


def serve(folder):
    """Does what each line of the standard input says, and writes what came of it."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    arm = Arm(folder)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(arm, name)(*arguments)), file=out, flush=True)


class Process:
    def __init__(self, folder, environment, log):
        command = [sys.executable, __file__, "--serve", folder]
        self.log = open(log, "w")
        pipe = subprocess.PIPE
        environment = {**os.environ, **environment}
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.log, text=True, env=environment)

    def __call__(self, *line):
        print(json.dumps(line), file=self.child.stdin, flush=True)
        answer = self.child.stdout.readline()
        if not answer:
            raise SystemExit(f"a process ended; see {self.log.name}")
        return json.loads(answer)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("result", nargs="?")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--when", type=Path)
    parser.add_argument("--logs", default=tempfile.gettempdir())
    parser.add_argument("--serve")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    record = {"layers": options.layers, "steps": STEPS, "prompt": PROMPT, "arms": {}}
    keep = lambda: Path(options.result).write_text(json.dumps(record, indent=1) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        write(options.layers, Path(folder))
        logs = Path(options.logs)
        arms = {
            "hammerhead": Process(folder, {"VLLM_PLUGINS": "hammerhead"}, logs / "steps-hammerhead.log"),
            "marlin": Process(folder, {"VLLM_PLUGINS": ""}, logs / "steps-marlin.log"),
        }
        answers = {}
        for name, arm in arms.items():
            record["arms"][name] = {**arm("about"), "prefill": [], "device": {}}
            record["arms"][name]["decode"] = {str(batch): [] for batch in BATCHES}
            answers[name] = arm("answer")
            keep()
        ours, theirs = answers.values()
        both = ours.keys() & theirs.keys()
        apart = max((abs(ours[token] - theirs[token]) for token in both), default=None)
        record["answers"] = {**answers, "in both": len(both), "apart": apart}
        while options.when is not None and not options.when.exists():
            time.sleep(0.2)
        for arm in arms.values():
            # Once without a clock: kernels are compiled and loaded.
            for batch in BATCHES:
                arm("decode", batch)
            arm("prefill", LONG)
        for _ in range(options.rounds):
            for batch in BATCHES:
                for name, arm in arms.items():
                    record["arms"][name]["decode"][str(batch)].append(arm("decode", batch))
            for name, arm in arms.items():
                record["arms"][name]["prefill"] += [arm("prefill", LONG) for _ in range(3)]
            keep()
        for name, arm in arms.items():
            device = record["arms"][name]["device"]
            for batch in BATCHES:
                long, short = arm("device", batch, PROMPT, 1 + STEPS), arm("device", batch, PROMPT, 1)
                device[f"step of {batch}"] = {**long, "seconds": (long["seconds"] - short["seconds"]) / STEPS}
            device[f"prompt of {LONG}"] = arm("device", 1, LONG, 1)
            keep()
    for name, arm in record["arms"].items():
        for batch in BATCHES:
            t, busy = statistics.median(arm["decode"][str(batch)]), arm["device"][f"step of {batch}"]["seconds"]
            per_step = f"{1e3 * t:.3f} ms per step, kernels {1e3 * busy:.3f} ms"
            print(f"{name}, batch {batch}: {batch / t:.0f} tokens/s, {per_step}")
        t, busy = statistics.median(arm["prefill"]), arm["device"][f"prompt of {LONG}"]["seconds"]
        print(f"{name}, prompt of {LONG}: {1e3 * t:.2f} ms, kernels {1e3 * busy:.2f} ms")
    print("probabilities of next tokens differ by", record["answers"]["apart"], "in", record["answers"]["in both"])


if __name__ == "__main__":
    main()
