#!/usr/bin/env python3
"""A shark, or a contestant, that asks a language model through any endpoint that speaks OpenAI's chat protocol.

The tank gives a question as one JSON document on standard input and reads one as the answer from standard output; what
this program adds is the way to the model and back. Nothing but Python is needed. It goes by the environment:

    AGENT_URL      the endpoint, for example http://localhost:8000/v1/chat/completions
    AGENT_MODEL    the model's name
    AGENT_KEY      a key, if the endpoint wants one

A shark's file names it with `command = ["./shark.py"]` and says who it is with `character`; a round names it as a
contestant with `ask = [{ contestant = "a model", command = ["./shark.py"] }]`. What the model was asked and answered,
and what that cost, is in the answer and goes into the ledger.
"""

import json
import os
import sys
import urllib.request

RULES = {
    "vote": """You are a shark in the tank: a judge of optimisations of a GPU or CPU kernel. You get a round as JSON. Answer with one JSON object
and nothing else: {"ballots": [{"pitch": NAME, "scores": {CRITERION: 0 to 10, ...}, "because": {CRITERION: REASON, ...}, "probability": 0 to 1 of
SUCCESS, "expects": SPEEDUP, "strengths": [...], "weaknesses": [...]}, ...], "statement": {"motto": ..., "why_not": {PITCH: REASON, ...},
"second": {"pitch": NAME, "conditions": [...]}}}. One ballot for each pitch of the round, one score for each criterion. Most claims fail: be
careful with what is not measured. Learn from the post-mortems.""",
    "pitch": """You are a contestant in the tank. You get a season's problems, its champion and what failed before as JSON. Answer with one JSON
object and nothing else: {"pitches": [PITCH, ...]}, each with the fields of "example". Claim what you would bet on: the tank remembers.""",
}


def ask(question):
    """The model's answer as JSON, with the words that were said and what they cost."""
    role = f"You are {question['you']['name']}: {question['you']['character']}\n" if "you" in question else ""
    messages = [
        {"role": "system", "content": role + RULES[question["asks"]]},
        {"role": "user", "content": json.dumps(question)},
    ]
    body = json.dumps({"model": os.environ.get("AGENT_MODEL", "default"), "messages": messages}).encode()
    headers = {"Content-Type": "application/json"}
    if os.environ.get("AGENT_KEY"):
        headers["Authorization"] = "Bearer " + os.environ["AGENT_KEY"]
    request = urllib.request.Request(os.environ["AGENT_URL"], body, headers)
    with urllib.request.urlopen(request) as response:
        said = json.load(response)
    text = said["choices"][0]["message"]["content"]
    # Models like to wrap what they were asked for.
    answer = json.loads(text[text.index("{") : text.rindex("}") + 1])
    usage = said.get("usage", {})
    answer["talk"] = {
        "model": said.get("model", os.environ.get("AGENT_MODEL", "")),
        "said": text,
        "tokens_in": usage.get("prompt_tokens", 0),
        "tokens_out": usage.get("completion_tokens", 0),
    }
    return answer


if __name__ == "__main__":
    json.dump(ask(json.load(sys.stdin)), sys.stdout)
