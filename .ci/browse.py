#!/usr/bin/env python3
"""Opens a report of the tank in a headless Chromium and looks at it as a reader would.

Usage: browse.py REPORT.html [SCREENSHOT.png]

Fails if anything is fetched, logged or thrown, if a section or a plot is missing or has no size, if the page is wider than
a telephone's screen, or if the dark colours are the light ones. Speaks the DevTools protocol through a pipe, so it needs
nothing but Python and Chromium.
"""

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

SECTIONS = "scorecard problems roofline rounds calibration graveyard controls provenance".split()
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}


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


def look(browser, page, screenshot):
    """Everything that is wrong with the page."""
    target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
    browser.session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.ask(f"{domain}.enable")
    browser.ask("Emulation.setDeviceMetricsOverride", **PHONE)
    browser.events.clear()
    browser.ask("Page.navigate", url=page.resolve().as_uri())
    browser.wait("Page.loadEventFired")
    faults = []
    for section in SECTIONS:
        words = browser.evaluate(f"(document.querySelector('#{section}') || {{}}).innerText || ''")
        if len(words.strip()) < 20:
            faults.append(f"section {section} is missing or empty")
    for plot in ("svg.strip rect.measured", "svg.strip rect.claimed", "svg.roofline .roof", "svg.roofline circle"):
        seen = browser.evaluate(
            f"[...document.querySelectorAll('{plot}')].filter(e => e.getBoundingClientRect().width > 0).length"
        )
        if not seen:
            faults.append(f"no {plot} is drawn")
    width = browser.evaluate("document.documentElement.scrollWidth")
    if width > PHONE["width"]:
        faults.append(f"the page is {width} pixels wide on a screen of {PHONE['width']}")
    if browser.evaluate("document.scripts.length"):
        faults.append("the page has scripts")
    colour = "getComputedStyle(document.body).backgroundColor"
    colours = []
    for scheme in ("light", "dark"):
        browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        colours.append(browser.evaluate(colour))
    if colours[0] == colours[1]:
        faults.append(f"light and dark are both {colours[0]}")
    if screenshot:
        picture = browser.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        pathlib.Path(screenshot).write_bytes(base64.b64decode(picture))
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
    page = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            faults = look(browser, page, sys.argv[2] if len(sys.argv) > 2 else None)
        finally:
            browser.process.terminate()
            browser.process.wait(30)
    for fault in faults:
        print(f"{page}: {fault}", file=sys.stderr)
    if faults:
        sys.exit(1)
    print(f"{page}: text and plots are there, nothing is fetched, logged or too wide, and dark is dark")


main()
