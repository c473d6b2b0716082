#!/usr/bin/env python3
"""The README's charts, from the records that are committed beside this script.

    python3 benchmarks/charts.py            # writes them
    python3 benchmarks/charts.py --check    # fails if they are not what the records say

| record | written by | chart |
|---|---|---|
| h200/peers.json | benchmarks/h200/peers.py --json | h200/peers.svg |
| cpu.json | benchmarks/beside.py --json | cpu.svg |

A record that is not there has no chart. Needs Python's standard library and nothing else.
"""

import argparse
import json
import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 860, 250, 190, 64, 34, 12
PEERS = {"two": "two GEMMs", "one": "one GEMM", "grouped": "grouped GEMM"}
STYLE = """
    .paper { fill: #fbfcfd } text { fill: #17222d; font: 12px system-ui, sans-serif } .title { font-size: 15px; font-weight: 600 }
    .fine { fill: #526170; font-size: 11px; paint-order: stroke; stroke: #fbfcfd; stroke-width: 2px } .grid { stroke: #d5dde4 } .floor { stroke: #17222d; stroke-dasharray: 4 3 }
    .ours { fill: #0b6e99 } .peer { fill: #c8742a } .range { stroke: #17222d; stroke-width: 1.5 }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #10171e } text { fill: #e4ebf1 } .fine { fill: #9badbd; stroke: #10171e } .grid { stroke: #2c3a47 } .floor { stroke: #e4ebf1 }
      .ours { fill: #4db4e0 } .peer { fill: #e8a04c } .range { stroke: #e4ebf1 }
    }
"""


class Bar:
    """A median in seconds, the range it is in where that is known, and words for its end."""

    def __init__(self, kind, words, median, low=None, high=None):
        self.kind, self.words, self.median, self.low, self.high = kind, words, median, low, high


def duration(seconds):
    """Three digits, as the tables have them."""
    value, unit = (seconds * 1e3, "ms") if seconds >= 1e-3 else (seconds * 1e6, "µs")
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}"


def short(problem):
    """A problem's sizes, with the tokens of many groups left out."""
    tokens, _, rest = problem.partition("]×")
    count = tokens.count(",") + 1
    return f"{count} groups, {sum(map(int, tokens[1:].split(',')))} tokens × {rest}" if rest and count > 2 else problem


def h200(record):
    """An H200 after a pause: f16 tokens, beside the fastest peer."""
    rows = []
    for shape in record["shapes"]:
        times = {who: 1e-6 * time for who, time in shape["burst"]["microseconds"].items()}
        best = min((who for who in times if who in PEERS), key=times.get)
        ours, theirs = times["ours f16"], times[best]
        bars = [Bar("ours", duration(ours), ours)]
        bars.append(Bar("peer", f"{duration(theirs)}, {theirs / ours:.2f}× ({PEERS[best]})", theirs))
        rows.append((short(shape["problem"]), 1e-6 * shape["floor"], bars))
    title = f"{record['device']}: one gated dual GEMM, f16 tokens, against the fastest of torch's ways"
    fine = f"after a pause; torch {record['torch']} multiplies weights that were expanded to 16 bits, at 3.6 times the memory"
    return title, fine, ["hammerhead, NVFP4 weights", "torch, 16-bit weights"], rows


def cpu(record):
    """Each instruction set of a CPU with cold weights and all threads, beside the fastest of the others."""
    threads = max(case["threads"] for case in record["cases"])
    places = {}
    for case in (case for case in record["cases"] if case["threads"] == threads):
        places.setdefault((case["isa"], case["m"]), {})[case["who"]] = case["cold"]
    rows = []
    for (isa, m), times in places.items():
        ours = times["hammerhead bf16"]
        best = min((who for who in times if not who.startswith("hammerhead")), key=lambda who: times[who]["median"])
        theirs = times[best]
        bars = [Bar("ours", duration(ours["median"]), ours["median"], ours["p25"], ours["p75"])]
        words = f"{duration(theirs['median'])}, {theirs['median'] / ours['median']:.1f}× ({best})"
        bars.append(Bar("peer", words, theirs["median"], theirs["p25"], theirs["p75"]))
        rows.append((f"{isa}, {m} token{'s' if m > 1 else ''}", ours["median"], bars))
    title = f"{record['machine']['cpu']}, {threads} threads: one gated dual GEMM {record['n']}×{record['k']}, cold weights"
    names = sorted({case["who"] for case in record["cases"]} - {"hammerhead bf16", "hammerhead nvfp4"})
    fine = f"medians, and the middle half of the samples; the fastest of {', '.join(names)}, held to the same instructions"
    return title, fine, ["hammerhead, bf16 tokens", "the fastest other"], rows, "time as a multiple of hammerhead's (dashed)"


FLOOR = "percent of the floor, the least time that arithmetic and memory allow (dashed); longer is better"


def svg(title, fine, series, rows, axis=FLOOR):
    """Bars in percent of each problem's floor, or in multiples of another time, so that problems of all sizes share one
    axis."""
    percent = axis is FLOOR
    value = lambda time, floor: min(100.0, 100 * floor / time) if percent else time / floor
    furthest = 100.0 if percent else max(max(bar.high or 0, bar.median) / floor for _, floor, bars in rows for bar in bars)
    step = next(step for step in (0.5, 1, 2, 5, 10, 20, 50, 100) if furthest / step <= 8)
    height, bottom = TOP + ROW * len(rows) + 56, TOP + ROW * len(rows)
    x = lambda value: LEFT + (WIDTH - LEFT - RIGHT) * value / furthest
    line = lambda kind, x1, y1, x2, y2: f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
    text = lambda kind, at, y, words, anchor="start": (
        f'<text class="{kind}" x="{at:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
    )
    parts = [f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>', text("title", 16, 24, title), text("fine", 16, 42, fine)]
    for number in range(int(furthest / step) + 1):
        at = x(number * step)
        parts += [line("grid", at, TOP - 4, at, bottom), text("fine", at, bottom + 16, f"{number * step:g}{' %' if percent else ''}", "middle")]
    one = x(100 if percent else 1)
    for index, (label, floor, bars) in enumerate(rows):
        top = TOP + ROW * index + (ROW - 2 * BAR - 2) / 2
        parts.append(text("label", LEFT - 8, top + BAR + 5, label, "end"))
        words = []
        for place, bar in enumerate(bars):
            y, end = top + place * (BAR + 1), x(value(bar.median, floor))
            parts.append(f'<rect class="{bar.kind}" x="{LEFT}" y="{y:.1f}" width="{end - LEFT:.1f}" height="{BAR}"/>')
            if bar.low is not None:
                ends = [x(value(bar.low, floor)), x(value(bar.high, floor))]
                parts.append(line("range", ends[0], y + BAR / 2, ends[1], y + BAR / 2))
                end = max(end, *ends)
            words.append(text("fine", end + 6, y + BAR - 2, bar.words))
        # The line is under the words, whose edge keeps it off them.
        parts += [line("floor", one, TOP - 4 + ROW * index, one, TOP + ROW * (index + 1)), *words]
    parts.append(text("fine", LEFT, bottom + 34, axis))
    at = LEFT
    for kind, name in zip(("ours", "peer"), series):
        parts += [f'<rect class="{kind}" x="{at}" y="{bottom + 41}" width="10" height="10"/>', text("fine", at + 15, bottom + 50, name)]
        at += 40 + 6.2 * len(name)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="system-ui, sans-serif">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


# Each record with what is drawn from it.
CHARTS = {"h200/peers.json": h200, "cpu.json": cpu}


def charts():
    """Every chart that there is a record for: its path and its text."""
    for record, draw in CHARTS.items():
        path = HERE / record
        if path.exists():
            yield path.with_suffix(".svg"), svg(*draw(json.loads(path.read_text(encoding="utf-8"))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a chart is not what its record says")
    check = parser.parse_args().check
    stale = []
    for path, text in charts():
        if check and not (path.exists() and path.read_text(encoding="utf-8") == text):
            stale.append(path.relative_to(HERE.parent))
        if not check:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(HERE.parent))
    if stale:
        sys.exit(f"error: {', '.join(map(str, stale))}: not what the record says; run python3 benchmarks/charts.py")


if __name__ == "__main__":
    main()
