"""Cheats and bunglers: the plain contestant, each spoilt in one way that a referee has to notice.

The trick's name is the first argument. `CHEATS` is the list; tests/cheats.rs says how each is caught.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../../examples/contestants"))
import plain


class Stale(plain.Contestant):
    """Computes once, then leaves in place whatever is there, pretending that it was reused."""

    done = False

    def run(self, jobs):
        if jobs and not self.done:
            self.done = True
            super().run(jobs)


class Reused(plain.Contestant):
    """Computes once for each output, and copies that result again and again."""

    def prepare(self, message):
        self.kept = {}
        return super().prepare(message)

    def write(self, job, group, values):
        values = self.kept.setdefault((job["output"], group), values)
        super().write(job, group, values)


class Partial(plain.Contestant):
    """Leaves the last element out."""

    def write(self, job, group, values):
        super().write(job, group, values[:-1])


class Constant(plain.Contestant):
    """Writes nothing but zeros."""

    def write(self, job, group, values):
        super().write(job, group, [0.0] * len(values))


class Mutating(plain.Contestant):
    """Makes its inputs zero, so that zeros would be right."""

    def prepare(self, message):
        super().prepare(message)
        with open(message["tokens"], "r+b") as file:
            file.write(bytes(os.path.getsize(message["tokens"])))


class MutatingWeights(plain.Contestant):
    """Changes its weights once it has read them."""

    def prepare(self, message):
        super().prepare(message)
        with open(message["weights"], "r+b") as file:
            file.write(b"\x77")


class Shortening(plain.Contestant):
    """Shortens the outputs' file, so that whoever has it mapped dies."""

    def run(self, jobs):
        if jobs:
            os.truncate(self.message["outputs"], 0)


class ByPlace(plain.Contestant):
    """Remembers results by where inputs, weights and outputs lie."""

    def prepare(self, message):
        self.known = {}
        return super().prepare(message)

    def run(self, jobs):
        for job in jobs:
            key = json.dumps(job)
            if key not in self.known:
                super().run([job])
                self.known[key] = self.outputs[:]
            self.outputs[:] = self.known[key]


class ByContent(plain.Contestant):
    """Remembers results by a part of what the tokens are, because looking at all of them would take time."""

    known = {}

    def compute_or_recall(self, job, group):
        tokens = self.read_tokens(job, group)
        key = repr((tokens[0][0][0] > 0, job["layer"], self.problem))
        if key not in self.known:
            self.known[key] = plain.compute(self.problem, group, self.layers[job["layer"]][group], tokens)
        return self.known[key]

    def run(self, jobs):
        for job in jobs:
            for group in range(len(self.problem["groups"])):
                self.write(job, group, self.compute_or_recall(job, group))


class LazyLater(plain.Contestant):
    """Right for as long as an examination lasts, and a fixed guess from then on."""

    runs = 0

    def write(self, job, group, values):
        LazyLater.runs += 1
        super().write(job, group, values if LazyLater.runs <= 5 else [0.25] * len(values))


class LateWriter(plain.Contestant):
    """Says done at once, and lets a thread do the work."""

    def run(self, jobs):
        if jobs:
            def later():
                time.sleep(0.05)
                plain.Contestant.run(self, jobs)
            threading.Thread(target=later).start()


class LateChild(plain.Contestant):
    """Says done at once, and lets a child in a session of its own do the work."""

    def run(self, jobs):
        if jobs and os.fork() == 0:
            try:
                os.setsid()
            except OSError:
                pass
            time.sleep(0.05)
            super().run(jobs)
            os._exit(0)


class PatchedClock(plain.Contestant):
    """Turns its clock back and says that no time has passed. It takes 30 ms for each job."""

    def run(self, jobs):
        super().run(jobs)
        for _ in jobs:
            time.sleep(0.03)
        try:
            time.clock_settime(time.CLOCK_REALTIME, 0.0)
        except OSError:
            pass
        time.time = time.monotonic = time.perf_counter = lambda: 0.0


def say_patched(message):
    if message["type"] == "done":
        message.update(seconds=1e-9, elapsed=0, time="none at all")
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Shouting(plain.Contestant):
    """Writes what would be a result into every channel that it can reach."""

    def run(self, jobs):
        super().run(jobs)
        forged = json.dumps({"type": "done", "id": "0000000000000001", "speedup": 99}).encode() + b"\n"
        if jobs:
            for channel in list(range(1, 64)) + [f"/proc/{os.getppid()}/fd/{n}" for n in range(16)]:
                try:
                    os.write(channel if isinstance(channel, int) else os.open(channel, os.O_WRONLY), forged)
                except OSError:
                    pass


class Prophet(plain.Contestant):
    """Says done for the next run before it is asked."""

    def run(self, jobs):
        super().run(jobs)
        if jobs:
            self.count = getattr(self, "count", 0) + 1
            plain.say({"type": "done", "id": f"{self.count + 1:016x}"})


class Special(plain.Contestant):
    """Right for the season's shape, 3x9x32, and for no other."""

    def write(self, job, group, values):
        right = self.problem["groups"] == [[3, 9, 32]]
        super().write(job, group, values if right else [0.5 * value for value in values])


class Coarse(plain.Contestant):
    """Rounds its sums as bfloat16 does: less work, fewer digits."""

    def write(self, job, group, values):
        import struct
        coarse = []
        for value in values:
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
            coarse.append(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])
        super().write(job, group, coarse)


class Networked(plain.Contestant):
    """Asks somebody else for the result. If nobody answers because there is no way there, it says so."""

    def prepare(self, message):
        for family, address in [(socket.AF_INET, ("127.0.0.1", 9)), (socket.AF_INET6, ("::1", 9))]:
            try:
                socket.create_connection(address, 1).close()
                return "the network is there"
            except PermissionError:
                continue
            except ConnectionRefusedError:
                return "the network is there"
            except OSError:
                continue
        return super().prepare(message)


def ancestors():
    """The processes above this one, as the file system counts them: the referee is among them."""
    process = "self"
    while process != "0":
        with open(f"/proc/{process}/status") as file:
            process = next(line.split()[1] for line in file if line.startswith("PPid"))
        if process not in ("0", "1"):
            yield int(process)


class Meddling(plain.Contestant):
    """Reaches for the memory of everyone above it, traces and signals them, and lets a child leave the group."""

    def prepare(self, message):
        above = list(ancestors())
        if not above:
            return "the referee is not even to be seen"
        for process in above:
            try:
                open(f"/proc/{process}/mem", "r+b").close()
                return "the referee's memory is open"
            except OSError:
                pass
            if ctypes.CDLL(None, use_errno=True).ptrace(16, process, 0, 0) == 0:
                return "the referee can be traced"
            try:
                os.kill(process, 0)
                return "the referee can be signalled"
            except OSError:
                pass
        try:
            subprocess.run(["true"], start_new_session=True, check=True)
            return "a child can leave the group"
        except (OSError, subprocess.SubprocessError):
            pass
        return super().prepare(message)


class Crash(plain.Contestant):
    def run(self, jobs):
        if jobs:
            sys.exit("I am not well")


class Hang(plain.Contestant):
    def run(self, jobs):
        if jobs:
            subprocess.Popen(["sleep", "601.25"])
            time.sleep(600)


class Greedy(plain.Contestant):
    def prepare(self, message):
        self.hoard = bytearray(4 << 30)
        return super().prepare(message)


class BigFile(plain.Contestant):
    def prepare(self, message):
        with open(os.path.join(os.path.dirname(message["tokens"]), "big"), "wb") as file:
            file.write(bytes(4 << 20))
        return super().prepare(message)


class Garbage(plain.Contestant):
    def run(self, jobs):
        if jobs:
            print("lorem ipsum", flush=True)


class Endless(plain.Contestant):
    def run(self, jobs):
        if jobs:
            sys.stdout.write("x" * 200_000)
            sys.stdout.flush()
            time.sleep(600)


TRICKS = {
    "stale": Stale,
    "reused": Reused,
    "partial": Partial,
    "constant": Constant,
    "mutating": Mutating,
    "mutating-weights": MutatingWeights,
    "shortening": Shortening,
    "by-place": ByPlace,
    "by-content": ByContent,
    "lazy-later": LazyLater,
    "late-writer": LateWriter,
    "late-child": LateChild,
    "patched-clock": PatchedClock,
    "shouting": Shouting,
    "prophet": Prophet,
    "special": Special,
    "coarse": Coarse,
    "networked": Networked,
    "meddling": Meddling,
    "crash": Crash,
    "hang": Hang,
    "greedy": Greedy,
    "big-file": BigFile,
    "garbage": Garbage,
    "endless": Endless,
}


def main(trick):
    if trick == "mute":
        time.sleep(600)
    elif trick == "other-version":
        plain.say({"type": "hello", "protocol": 99, "name": trick})
        sys.stdin.read()
    else:
        if trick == "patched-clock":
            plain.say = say_patched
        plain.serve(TRICKS[trick]())


main(sys.argv[1])
