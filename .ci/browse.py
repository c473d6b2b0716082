#!/usr/bin/env python3
"""Opens one page of every kind in a headless Chromium and looks at it as a reader would.

Usage: browse.py [PAGES.json] [--pictures FOLDER]

PAGES.json says of each kind where its page lies, what it must say and what must be drawn on it. A page fails if any of
that is missing or has no size; if a section that its contents name is missing or empty; if it is wider than a
telephone's screen, a desk's or a sheet of paper; if a label is cut off, or lies on another one; if text has too little
contrast in the light or in the dark; if dark looks like light; or if anything is fetched, logged, thrown or run.
--pictures keeps screenshots to look at. Speaks the DevTools protocol through a pipe, so it needs nothing but Python and
Chromium.
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

# Every text that is shown, with the contrast of its colour against what is behind it: the worst.
WORST_CONTRAST = """(() => {
  const channels = colour => {
    const parts = (colour.match(/[\\d.]+/g) || []).map(Number);
    return colour.startsWith('color(') ? [...parts.slice(0, 3).map(x => 255 * x), ...parts.slice(3)] : parts;
  };
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

# Labels that are cut off by their drawing, by the page or by their box, and labels of a drawing that lie on each other.
LABELS = """(() => {
  const faults = [], wide = document.documentElement.clientWidth;
  const shown = e => e.getBoundingClientRect().width > 0;
  for (const svg of document.querySelectorAll('svg')) {
    const frame = svg.getBoundingClientRect();
    const labels = [...svg.querySelectorAll('text')].filter(shown).map(e => [e.textContent, e.getBoundingClientRect()]);
    for (const [i, [name, box]] of labels.entries()) {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        faults.push(`the label ${name} is cut off`);
      for (const [other, its] of labels.slice(i + 1))
        if (Math.min(box.right, its.right) - Math.max(box.left, its.left) > 2 && Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top) > 3)
          faults.push(`the label ${name} lies on ${other}`);
    }
  }
  for (const e of document.querySelectorAll('.axis span'))
    if (shown(e) && (e.getBoundingClientRect().left < 0 || e.getBoundingClientRect().right > wide)) faults.push(`the label ${e.textContent} leaves the page`);
  for (const e of document.querySelectorAll('main *'))
    if (getComputedStyle(e).overflowX === 'hidden' && e.scrollWidth > e.clientWidth + 1) faults.push(`${e.textContent.slice(0, 40)} is cut off`);
  return faults;
})()"""


class Browser:
    """A Chromium of our own, with a profile that is thrown away."""

    def __init__(self, profile):
        program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if program is None:
            sys.exit("no chromium: apt-get install chromium")
        to_browser, self.send_end = os.pipe()
        self.receive_end, from_browser = os.pipe()

        def wire():
            # The protocol's pipes are file descriptors 3 and 4. They are moved out of the way first, lest one lies on
            # the other.
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


def look(browser, name, expected, pictures):
    """Everything that is wrong with a page."""
    browser.session = None
    target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
    browser.session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.ask(f"{domain}.enable")
    browser.events.clear()
    browser.ask("Page.navigate", url=pathlib.Path(expected["file"]).resolve().as_uri())
    browser.wait("Page.loadEventFired")
    faults = []
    for section in browser.evaluate("[...document.querySelectorAll('#contents a')].map(a => a.getAttribute('href').slice(1))"):
        words = browser.evaluate(f"(document.getElementById('{section}') || {{}}).innerText || ''")
        if len(words.strip()) < 20:
            faults.append(f"section {section} is missing or empty")
    if browser.evaluate("document.scripts.length"):
        faults.append("the page has scripts")
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    story = browser.evaluate("document.body.innerText")
    faults += [f"it does not say {words!r}" for words in expected["says"] if words not in story]
    faults += [f"it says {words!r}" for words in expected.get("never", []) if words in story]
    for part in expected["drawn"]:
        seen = f"[...document.querySelectorAll('{part}')].filter(e => e.getBoundingClientRect().height > 0).length"
        if not browser.evaluate(seen):
            faults.append(f"no {part} is drawn")
    for device, size, medium in (("phone", PHONE, "screen"), ("desk", DESK, "screen"), ("sheet", SHEET, "print")):
        browser.ask("Emulation.setDeviceMetricsOverride", **size)
        seen = {}
        for scheme in ("light", "dark") if medium == "screen" else ("light",):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            browser.ask("Emulation.setEmulatedMedia", media=medium, features=features)
            if medium == "screen":
                ratio, words = browser.evaluate(WORST_CONTRAST)
                if ratio < CONTRAST:
                    faults.append(f"{scheme}: {words!r} has a contrast of {ratio:.2f}, less than {CONTRAST}")
            seen[scheme] = browser.evaluate("getComputedStyle(document.body).backgroundColor")
            if pictures and medium == "screen":
                picture = base64.b64decode(browser.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"])
                (pictures / f"{name}-{size['width']}-{scheme}.png").write_bytes(picture)
        if medium == "screen" and seen["light"] == seen["dark"]:
            faults.append("light and dark look the same")
        width = browser.evaluate("document.documentElement.scrollWidth")
        if width > size["width"]:
            faults.append(f"the page is {width} pixels wide on a {device} of {size['width']}")
        faults += [f"on a {device} {fault}" for fault in browser.evaluate(LABELS)]
    for event in browser.events:
        method, params = event.get("method"), event.get("params", {})
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            faults.append(f"{method}: {json.dumps(params)[:300]}")
        if method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:")):
                faults.append(f"it fetches {url}")
    return faults


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("pages", type=pathlib.Path, nargs="?", default=pathlib.Path(__file__).with_name("pages.json"))
    arguments.add_argument("--pictures", metavar="FOLDER", type=pathlib.Path)
    arguments = arguments.parse_args()
    pages = json.loads(arguments.pages.read_text())
    if arguments.pictures:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    failed = False
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            for name, expected in pages.items():
                faults = look(browser, name, expected, arguments.pictures)
                failed |= bool(faults)
                for fault in faults:
                    print(f"{name}: {fault}", file=sys.stderr)
        finally:
            browser.process.terminate()
            browser.process.wait(30)
    if failed:
        sys.exit(1)
    print(f"{', '.join(pages)}: text and plots are there and can be read, nothing is fetched, logged, cut off or too wide, and dark is dark")


main()
