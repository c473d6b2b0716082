"""The charts are what the records say, and the README shows them."""

import beside
import charts
import pytest

ROOT = charts.HERE.parent


def record(times, **others):
    """A record as beside.py writes it, with one place."""
    place = {"isa": "avx2", "threads": 2, "m": 8}
    sides = {"hammerhead bf16": times, **{who: {**times, "median": median} for who, median in others.items()}}
    cases = [{**place, "who": who, "cold": cold} for who, cold in sides.items()]
    few = [{**case, "threads": 1} for case in cases]
    return {"machine": {"cpu": "A & B"}, "n": 4096, "k": 4096, "cases": few + cases}


def test_every_committed_chart_is_what_the_script_makes_of_its_record():
    made = dict(charts.charts())
    assert charts.HERE / "h200" / "peers.svg" in made
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is stale: run python3 benchmarks/charts.py"


def test_the_readme_shows_every_chart_with_words_for_it():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path, _ in charts.charts():
        assert f"]({path.relative_to(ROOT)})" in readme


def test_a_chart_has_us_and_the_fastest_other_to_scale_and_escapes_names():
    times = {"median": 0.003, "p25": 0.002, "p75": 0.005}
    text = charts.svg(*charts.cpu(record(times, slow=0.02, fast=0.009)))
    assert "A &amp; B" in text and "3.00 ms" in text and "9.00 ms, 3.0× (fast)" in text
    assert "2 threads" in text and text.count('class="peer" x="250"') == 1, "the most threads, the fastest other"
    width = lambda kind: float(text.split(f'<rect class="{kind}" x="250"')[1].split('width="')[1].split('"')[0])
    assert width("peer") == pytest.approx(3 * width("ours"), abs=0.2)


def test_the_floor_is_a_hundred_percent_and_no_bar_is_longer():
    shape = {"problem": "1×2×16", "floor": 2.0, "burst": {"microseconds": {"ours f16": 1.0, "one": 8.0}}}
    text = charts.svg(*charts.h200({"device": "GPU", "torch": "2", "shapes": [shape]}))
    width = lambda kind: float(text.split(f'<rect class="{kind}" x="250"')[1].split('width="')[1].split('"')[0])
    assert width("ours") == charts.WIDTH - charts.LEFT - charts.RIGHT, "what is faster than the floor is at it"
    assert width("peer") == pytest.approx(width("ours") / 4, abs=0.2) and "100 %" in text


def test_a_row_of_the_table_is_in_gflops_with_the_best_others_ratio():
    lines = list(beside.table(record({"median": 0.002}, slow=0.02, fast=0.006)["cases"][3:]))
    assert lines[0] == "| set | threads | M | hammerhead bf16 | slow | fast | best other ÷ ours, bf16 |"
    assert lines[2] == "| avx2 | 2 | 8 | 268 | 27 | 89 | 3.00× |"


def test_summaries_of_rounds_are_joined_by_their_medians_and_the_best():
    first, second, third = (beside.summary([x + shift for x in range(1, 10)]) for shift in (0, 1, 5))
    assert first["median"] == 5 and first["best"] == 1 and first["p25"] == 3 and first["p75"] == 7 and first["samples"] == 9
    joined = beside.joined([first, second, third])
    assert (joined["median"], joined["best"], joined["samples"]) == (6, 1, 27)
