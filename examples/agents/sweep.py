#!/usr/bin/env python3
"""A contestant without a model, for `hammerhead tank evolve`: it tries configurations one after the other, each as a
change of one thing in the best one so far.

    hammerhead tank evolve --season hopper.toml --steps 12 -- ./sweep.py stages=4,6,8 tile=64x32,64x64
    schedule=tile,persistent

The tank asks it with what came of everything before (docs/tank.md); it remembers nothing itself.
"""

import json
import sys


def written(config):
    return ",".join(f"{key}={value}" for key, value in config.items())


def parsed(text):
    return dict(part.split("=", 1) for part in text.split(",") if part)


def main():
    question = json.load(sys.stdin)
    grid = {key: values.split(",") for key, _, values in (word.partition("=") for word in sys.argv[1:])}
    best, tried = {}, set()
    for one in question["verdicts"]:
        config = parsed((one["run"] or {}).get("config") or "")
        tried.add(written(config))
        if one["judgement"]["verdict"] == "SUCCESS":
            best = config
    changes = ({**best, key: value} for key, values in grid.items() for value in values if best.get(key) != value)
    config = next((change for change in changes if written(change) not in tried), None)
    if config is None:
        print(json.dumps({"pitches": []}))
        return
    pitch = dict(question["example"], name=written(config), run={"config": written(config)})
    pitch["claim"]["reasoning"] = f"one step from {written(best) or 'the champion'}; nothing else is known"
    print(json.dumps({"pitches": [pitch]}))


main()
