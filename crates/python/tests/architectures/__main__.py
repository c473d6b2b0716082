"""The architecture sweep: every causal, encoder-decoder and multimodal class of the installed transformers, small,
quantised in each layout, loaded through ``hammerhead.transformers`` and held against the same model with its
weights expanded.

    python crates/python/tests/architectures [--only REGEX] [--layout LAYOUT] [--jobs N] [--json FILE] [--page FILE.md]

Every class is judged in a process of its own, forked from one that has imported torch and transformers, so that a
crash costs one class.
"""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import re
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import checkpoints  # noqa: E402
import configs  # noqa: E402
import constructions  # noqa: E402
import judge  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

LIMIT = 240
"""Seconds for the rows of one class."""


def cases(only, layouts):
    """The rows of every class, and the constructions, as lists that one process works through."""
    for name, (auto, model_type) in configs.architectures().items():
        if re.search(only, f"{name} {model_type}"):
            yield [judge.Case(name, name, auto, model_type, layout) for layout in layouts]
    for case in constructions.constructions():
        if re.search(only, f"{case.name} {case.model}") and case.layout in layouts:
            yield [case]


def warm_up():
    """What every process would import again: the configurations of all models, and what loading and generating
    need."""
    import hammerhead.transformers  # noqa: F401

    judge.version()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for auto in configs.AUTO:
        list(getattr(transformers, auto)._model_mapping.keys())
    config = configs.small(configs.CONFIG_MAPPING["llama"])
    transformers.AutoModelForCausalLM.from_config(config).generate(torch.tensor([[5, 6]]), max_new_tokens=2)


def work(group, pipe):
    torch.set_num_threads(1)
    for case in group:
        begun = time.monotonic()
        row = judge.judge(case)
        pipe.send(row | {"seconds": round(time.monotonic() - begun, 1)})


class Judged:
    """A class that is being judged in a process of its own."""

    def __init__(self, group):
        self.group, self.rows, self.end = group, [], time.monotonic() + LIMIT
        self.pipe, theirs = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.get_context("fork").Process(target=work, args=(group, theirs))
        self.process.start()
        theirs.close()

    def take(self):
        """Takes a row, if one is there, and says whether there will be more."""
        try:
            if self.pipe.poll(0):
                self.rows.append(self.pipe.recv())
            if len(self.rows) < len(self.group) and time.monotonic() < self.end:
                return True
        except EOFError:
            self.process.join(1)
        died = f"the process ended with {self.process.exitcode}" if self.process.exitcode is not None else f"longer than {LIMIT} s"
        self.process.kill()
        self.process.join()
        self.pipe.close()
        for case in self.group[len(self.rows) :]:
            self.rows.append(judge.row_of(case) | {"verdict": "crashed", "detail": died})
        return False


def judged(groups, jobs):
    """The rows of each group when it is done, so many groups at a time."""
    waiting, active = iter(groups), []
    while True:
        while len(active) < jobs and (group := next(waiting, None)) is not None:
            active.append(Judged(group))
        if not active:
            return
        multiprocessing.connection.wait([one.pipe for one in active], timeout=1)
        for one in [one for one in active if not one.take()]:
            active.remove(one)
            yield one.rows


def line(row):
    return f"{row['case']:<44} {row['layout']:<10} {cell(row)} {row.get('inputs', '')} {row['detail']}"


def cell(row):
    """A row's verdict, with its error and how often the loader warned."""
    if row is None:
        return ""
    error = f" {row['error']:.0e}" if "error" in row else ""
    warned = f" ({len(row['warnings'])} warnings)" if row.get("warnings") else ""
    return f"{row['verdict']}{error}{warned}"


def page(rows):
    """The tables as a page of the documents."""
    made = [row for row in rows if row["reason"]]
    classes = [row for row in rows if not row["reason"]]
    layouts = list(dict.fromkeys(row["layout"] for row in classes))
    verdicts = sorted({row["verdict"] for row in rows})
    totals = Counter((row["layout"], row["verdict"]) for row in classes)
    out = ["# Architectures", "", __doc__.split("\n\n")[0].replace("\n", " "), ""]
    out += [f"Written by `python crates/python/tests/architectures --page`, transformers {transformers.__version__}.", ""]
    out += ["| layout | " + " | ".join(verdicts) + " |", "|---" * (len(verdicts) + 1) + "|"]
    out += [f"| {layout} | " + " | ".join(str(totals[layout, verdict]) for verdict in verdicts) + " |" for layout in layouts]
    out += ["", "| class | inputs | " + " | ".join(layouts) + " | |", "|---" * (len(layouts) + 3) + "|"]
    for name in dict.fromkeys(row["case"] for row in classes):
        found = {row["layout"]: row for row in classes if row["case"] == name}
        details = dict.fromkeys(row["detail"].replace("|", "\\|") for row in found.values() if row["detail"])
        inputs = next((row["inputs"] for row in found.values() if "inputs" in row), "")
        out.append(f"| `{name}` | {inputs} | " + " | ".join(cell(found.get(layout)) for layout in layouts) + f" | {'; '.join(details)} |")
    out += ["", "| construction | layout | | why it is here | |", "|---|---|---|---|---|"]
    out += [f"| {row['case']} | {row['layout']} | {cell(row)} | {row['reason']} | {row['detail']} |" for row in made]
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="classes and model types that match")
    parser.add_argument("--layout", choices=list(checkpoints.LAYOUTS), action="append", help="may be repeated; all by default")
    parser.add_argument("--jobs", type=int, default=1, help="classes at a time, on one core each")
    parser.add_argument("--json", type=Path, help="write the rows")
    parser.add_argument("--page", type=Path, help="write the table")
    options = parser.parse_args()
    warm_up()
    for stale in judge.CACHE.glob("*") if not options.only else ():
        if stale.name != judge.version():
            shutil.rmtree(stale)
    rows = []
    groups = list(cases(options.only, options.layout or list(checkpoints.LAYOUTS)))
    order = {case.name: number for number, group in enumerate(groups) for case in group}
    for some in judged(groups, options.jobs):
        rows = sorted([*rows, *some], key=lambda row: order[row["case"]])
        print(*map(line, some), sep="\n", flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))
    print(dict(Counter(row["verdict"] for row in rows)))
    if options.page:
        options.page.write_text(page(rows))
    sys.exit(any(row["verdict"] in ("WRONG", "crashed") for row in rows))


if __name__ == "__main__":
    main()
