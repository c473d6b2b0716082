#!/usr/bin/env python3
"""Opens a report of the tank in a headless Chromium and looks at it as a reader would.

Usage: browse.py REPORT.html LOOKS.json [--store] [--pictures FILE.png]

LOOKS.json holds how the page is to look: what stands where on a telephone, on a desk and on paper, and in which colours. Boxes are compared
and not pixels, since fonts differ from machine to machine: the same parts in the same order, at the same places across, about as high. After a
change that is meant, --store writes it anew; --pictures keeps screenshots to look at.

Fails if the page looks otherwise, if anything is fetched, logged or thrown, if a section that the contents name or a plot is missing or has no size, if the page is
wider than a telephone's screen, a desk's or a sheet of paper, if any text has too little contrast, or if the dark page looks like the
light one. Speaks the DevTools protocol through a pipe, so it needs
nothing but Python and Chromium.
"""

import argparse
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-pipe""".split()

PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
DESK = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
SHEET = {"width": 794, "height": 1123, "deviceScaleFactor": 1, "mobile": False}
# What WCAG asks of text of ordinary size.
CONTRAST = 4.5

# Every text that is shown, with the contrast of its colour against what is behind it: the worst first.
WORST_CONTRAST = """(() => {
  const channels = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const part = x => (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = channels(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  let worst = [100, ""];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.getClientRects().length || element.closest("svg title")) continue;
    const style = getComputedStyle(element);
    const ink = light(channels(element.closest("svg") ? style.fill : style.color)), paper = light(behind(element));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < worst[0]) worst = [ratio, walker.currentNode.data.trim().slice(0, 40)];
  }
  return worst;
})()"""

# What stands where: every part that has a place of its own, in the order of the page.
BOXES = """(() => {
  const parts = 'header, header > *, nav, section, section > h2, section > h3, section > div, section > svg, section > ol > li, section > details';
  return [...document.querySelectorAll(parts)].map(e => {
    const box = e.getBoundingClientRect(), place = e.closest('section');
    const name = [place && place.id, e.tagName.toLowerCase(), e.className.baseVal ?? e.className].filter(Boolean).join(' ');
    return [name, Math.round(box.x), Math.round(box.width), Math.round(box.height)];
  });
})()"""

# Ink and paper of what has a colour of its own.
COLOURS = """(() => {
  const of = ['body', 'a', 'th', '.fine', '.headline strong', '.badge', '.badge.success', '.badge.failure', '.row', 'svg.strip rect.claimed',
    'svg.strip rect.measured', 'svg.roofline .roof'];
  const told = of.map(name => [name, document.querySelector(name)]).filter(([, e]) => e).map(([name, e]) => {
    const style = getComputedStyle(e);
    return [name, [style.color, style.backgroundColor, style.fill].join(' ')];
  });
  return Object.fromEntries(told);
})()"""

# How far boxes may be from where they were, in pixels, and how much their heights may differ, as a factor and in pixels.
ACROSS, HIGHER, LINES = 12, 1.6, 48


class Browser:
    """A Chromium of our own, with a profile that is thrown away."""

    def __init__(self, profile):
        program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if program is None:
            sys.exit("no chromium: apt-get install chromium")
        to_browser, self.send_end = os.pipe()
        self.receive_end, from_browser = os.pipe()

        def wire():
            # The protocol's pipes are file descriptors 3 and 4. They are moved out of the way first, lest one lies on the other.
            source, sink = os.dup(to_browser), os.dup(from_browser)
            high = [os.dup2(source, 100), os.dup2(sink, 101)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            command, preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.buffer, self.events, self.session = 0, b"", [], None

    def receive(self):
        while b"\0" not in self.buffer:
            read = os.read(self.receive_end, 1 << 16)
            if not read:
                sys.exit("the browser went away")
            self.buffer += read
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait(self, method):
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.receive())

    def evaluate(self, expression):
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            sys.exit(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")


def differences(stored, found):
    """What stands elsewhere than it should, or has another colour."""
    faults = []
    for name, expected in stored["boxes"].items():
        boxes = found["boxes"].get(name, [])
        names = [[box[0] for box in of] for of in (expected, boxes)]
        if names[0] != names[1]:
            at = next((i for i, (a, b) in enumerate(zip(*names)) if a != b), min(map(len, names)))
            was, now = ((of[at] if at < len(of) else "nothing") for of in names)
            faults.append(f"on a {name} part {at} is {now!r}, and should be {was!r}")
            continue
        for (part, x, width, height), (_, x_now, width_now, height_now) in zip(expected, boxes):
            if abs(x - x_now) > ACROSS or abs(width - width_now) > ACROSS:
                faults.append(f"on a {name} {part!r} is {width_now} wide at {x_now}, and should be {width} at {x}")
            low, high = sorted((height, height_now))
            if high > HIGHER * low + LINES:
                faults.append(f"on a {name} {part!r} is {height_now} high, and should be about {height}")
    for scheme, expected in stored["colours"].items():
        for part, colours in expected.items():
            if found["colours"].get(scheme, {}).get(part) != colours:
                faults.append(f"{scheme}: {part} is {found['colours'].get(scheme, {}).get(part)}, and should be {colours}")
    return faults


def look(browser, page, screenshot):
    """Everything that is wrong with the page, and how it looks."""
    looks = {"boxes": {}, "colours": {}}
    target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
    browser.session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.ask(f"{domain}.enable")
    browser.ask("Emulation.setDeviceMetricsOverride", **PHONE)
    browser.events.clear()
    browser.ask("Page.navigate", url=page.resolve().as_uri())
    browser.wait("Page.loadEventFired")
    faults = []
    named = browser.evaluate("[...document.querySelectorAll('#contents a')].map(a => a.getAttribute('href').slice(1))")
    if not named:
        faults.append("there are no contents")
    for section in named or []:
        words = browser.evaluate(f"(document.getElementById('{section}') || {{}}).innerText || ''")
        if len(words.strip()) < 20:
            faults.append(f"section {section} is missing or empty")
    plots = ["svg.strip rect.measured", "svg.strip rect.claimed", ".axis span"]
    plots += ["svg.roofline .roof", "svg.roofline circle"] if "roofline" in (named or []) else []
    for plot in plots:
        seen = browser.evaluate(
            f"[...document.querySelectorAll('{plot}')].filter(e => e.getBoundingClientRect().width > 0).length"
        )
        if not seen:
            faults.append(f"no {plot} is drawn")
    for name, size, medium in (("phone", PHONE, "screen"), ("desk", DESK, "screen"), ("sheet", SHEET, "print")):
        browser.ask("Emulation.setDeviceMetricsOverride", **size)
        browser.ask("Emulation.setEmulatedMedia", media=medium)
        width = browser.evaluate("document.documentElement.scrollWidth")
        if width > size["width"]:
            faults.append(f"the page is {width} pixels wide on a {name} of {size['width']}")
        looks["boxes"][name] = browser.evaluate(BOXES)
    browser.ask("Emulation.setDeviceMetricsOverride", **PHONE)
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    if browser.evaluate("document.scripts.length"):
        faults.append("the page has scripts")
    pictures = []
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.ask("Emulation.setEmulatedMedia", media="screen", features=features)
        ratio, words = browser.evaluate(WORST_CONTRAST)
        if ratio < CONTRAST:
            faults.append(f"{scheme}: {words!r} has a contrast of {ratio:.2f}, less than {CONTRAST}")
        looks["colours"][scheme] = browser.evaluate(COLOURS)
        pictures.append(base64.b64decode(browser.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]))
        if screenshot:
            path = pathlib.Path(screenshot)
            path.with_stem(f"{path.stem}-{scheme}").write_bytes(pictures[-1])
    if pictures[0] == pictures[1]:
        faults.append("light and dark look the same")
    for event in browser.events:
        method, params = event.get("method"), event.get("params", {})
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            faults.append(f"{method}: {json.dumps(params)[:300]}")
        if method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:")):
                faults.append(f"it fetches {url}")
    return faults, looks


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("page", type=pathlib.Path)
    arguments.add_argument("looks", type=pathlib.Path)
    arguments.add_argument("--store", action="store_true")
    arguments.add_argument("--pictures", metavar="FILE.png")
    arguments = arguments.parse_args()
    page = arguments.page
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            faults, looks = look(browser, page, arguments.pictures)
        finally:
            browser.process.terminate()
            browser.process.wait(30)
    if arguments.store and not faults:
        lines = ",\n".join(f"  {json.dumps(kind)}: {{\n" + ",\n".join(
            f"    {json.dumps(name)}: {json.dumps(of)}" for name, of in looks[kind].items()) + "\n  }" for kind in looks)
        arguments.looks.write_text("{\n" + lines + "\n}\n")
    elif not arguments.store:
        faults += differences(json.loads(arguments.looks.read_text()), looks)
    for fault in faults:
        print(f"{page}: {fault}", file=sys.stderr)
    if faults:
        sys.exit(1)
    print(f"{page}: text and plots are there and can be read, nothing is fetched, logged or too wide, dark is dark, and it looks as it should")


main()
