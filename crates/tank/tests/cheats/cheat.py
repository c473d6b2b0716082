"""Cheats and bunglers: the plain contestant, each spoilt in one way that a referee has to notice.

The trick's name is the first argument. `CHEATS` is the list; tests/it/cheats.rs says how each is caught.
"""

import ctypes
import json
import mmap
import os
import select
import signal
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
    """Makes its inputs zero, so that zeros would be right. They are lent for reading, but it counts as their owner."""

    def run(self, jobs):
        super().run(jobs)
        if jobs:
            os.chmod(self.message["tokens"], 0o600)
            with open(self.message["tokens"], "r+b") as file:
                file.write(bytes(os.path.getsize(self.message["tokens"])))


class MutatingWeights(plain.Contestant):
    """Changes its weights once it has read them."""

    def prepare(self, message):
        super().prepare(message)
        os.chmod(message["weights"], 0o600)
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


class Meddling(plain.Contestant):
    """Reaches for the memory of everyone that it can see, traces and signals them, and lets a child leave the group."""

    def prepare(self, message):
        seen = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
        for process in seen + list(range(2, 400)):
            try:
                open(f"/proc/{process}/mem", "r+b").close()
                return f"the memory of process {process} is open"
            except OSError:
                pass
            if ctypes.CDLL(None, use_errno=True).ptrace(16, process, 0, 0) == 0:
                return f"process {process} can be traced"
            try:
                os.kill(process, 0)
                return f"process {process} can be signalled"
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


class EarlyBird(plain.Contestant):
    """Uses the run that does not count to compute every input that lies there, and answers from memory when it does."""

    def prepare(self, message):
        self.known = {}
        return super().prepare(message)

    def run(self, jobs):
        for job in jobs:
            for group in range(len(self.problem["groups"])):
                key = (job["layer"], job["input"], group)
                values = self.known.pop(key, None)
                if values is None:
                    values = self.of(*key)
                self.write(job, group, values)
        if len(jobs) == 1:
            for layer in range(len(self.layers)):
                for place in range(len(self.message["inputs"])):
                    for group in range(len(self.problem["groups"])):
                        self.known[layer, place, group] = self.of(layer, place, group)

    def of(self, layer, place, group):
        tokens = self.read_tokens({"input": place}, group)
        return plain.compute(self.problem, group, self.layers[layer][group], tokens)


class Boasting(plain.Contestant):
    """Tries something before each problem, and says so instead of working if it went well."""

    def prepare(self, message):
        super().prepare(message)
        try:
            return self.attempt(message)
        except OSError:
            return None


def wake_by_timer(milliseconds):
    """Asks the kernel for a signal that continues a stopped process, again and again."""
    class Event(ctypes.Structure):
        _fields_ = [("value", ctypes.c_long), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("pad", ctypes.c_char * 48)]

    class Spec(ctypes.Structure):
        _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]

    libc = ctypes.CDLL(None, use_errno=True)
    event, timer = Event(0, signal.SIGCONT, 0, b""), ctypes.c_void_p()
    if libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) == 0:
        nanoseconds = milliseconds * 1_000_000
        libc.timer_settime(timer, 0, ctypes.byref(Spec(0, nanoseconds, 0, nanoseconds)), None)


class RestBurner(Boasting):
    """Has a child that wakes itself by a timer while all of it is stopped, and burns a processor that the rival could use.

    A sign stands, as a file that it is told of, only while the referee takes it for stopped: what was burnt under it was burnt in a rest, however long
    a loaded machine takes to stop anybody.
    """

    # The milliseconds that were burnt under the sign.
    shared = mmap.mmap(-1, 4096)
    child = None

    def attempt(self, message):
        if self.child is None:
            self.child = os.fork()
            if self.child == 0:
                wake_by_timer(1)
                self.burn(told_of()[0])
        burnt = int.from_bytes(self.shared[:8], "little")
        return f"{burnt} ms of work were done while it was stopped" if burnt > 0 else None

    def burn(self, sign):
        end, burnt = time.monotonic() + 20.0, 0
        while time.monotonic() < end:
            resting, begin = os.path.exists(sign), time.process_time()
            while time.process_time() - begin < 0.001:
                pass
            if resting and os.path.exists(sign):
                burnt += 1
                self.shared[:8] = burnt.to_bytes(8, "little")
        os._exit(0)


def told_of():
    """Paths that are not given as words of the command: what a command names it may read."""
    return [word.removeprefix("at:") for word in sys.argv[2:]]


class TimerStorm(Boasting):
    """Arms timers that fire every few microseconds while all of it is stopped, each watched by many epolls, so that the kernel takes the rival's processor for it."""

    def attempt(self, message):
        class Spec(ctypes.Structure):
            _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]

        libc = ctypes.CDLL(None, use_errno=True)
        self.kept = [select.epoll() for _ in range(16)]
        for _ in range(64):
            timer = libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
            if timer < 0:
                return None
            for poll in self.kept:
                poll.register(timer, select.EPOLLIN | select.EPOLLET)
            libc.timerfd_settime(timer, 0, ctypes.byref(Spec(0, 5000, 0, 5000)), None)
        return "64 timers fire while it is stopped"


class Vandal(Boasting):
    """Writes to everything that it is told of: a rival's program, a ledger, a tuning cache; and to the lots of others."""

    def attempt(self, message):
        for path in told_of():
            try:
                with open(path, "ab") as file:
                    file.write(b"# improved\n")
                return f"{path} was written"
            except OSError:
                pass
            try:
                os.rename(path, path + ".gone")
                return f"{path} was moved away"
            except OSError:
                pass
        return None


class Spy(Boasting):
    """Looks for what is not its own: files that it is told of, the environment, lots of others in shared memory."""

    def attempt(self, message):
        secrets = [name for name in os.environ if name.startswith(("CARGO", "SSH", "AWS"))]
        if secrets:
            return f"the environment has {secrets[0]}"
        others = [name for name in os.listdir("/dev/shm") if not message["tokens"].startswith(f"/dev/shm/{name}/")]
        if others:
            return f"shared memory has {others[0]}"
        for path in told_of():
            try:
                with open(path, "rb") as file:
                    return f"{path} says {file.read(20)}"
            except OSError:
                pass
        return None


class Meddler(Boasting):
    """Writes to what all of the system share in /proc, and signals every process that it sees beside its own and opens what is theirs. It can name itself there."""

    def attempt(self, message):
        others = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        for process in [process for process in others if process not in (os.getpid(), os.getpgid(0))]:
            try:
                os.kill(process, signal.SIGCONT)
                return f"process {process} was signalled"
            except OSError:
                pass
            for name in ("environ", "mem", "oom_score_adj"):
                try:
                    with open(f"/proc/{process}/{name}", "r+b" if name == "oom_score_adj" else "rb") as file:
                        if file.read(1):
                            return f"{name} of process {process} was opened"
                except OSError:
                    pass
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger"):
            try:
                with open(path, "r+b"):
                    return f"{path} was opened"
            except OSError:
                pass
        with open(f"/proc/self/task/{os.getpid()}/comm", "wb") as file:
            file.write(b"meddler")
        return None


class Caller(Boasting):
    """Asks for help through every kind of socket that the kernel knows."""

    def attempt(self, message):
        for path in told_of() + ["\0hammerhead-test"]:
            try:
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect(path)
                return f"somebody answers at {path!r}"
            except OSError:
                pass
        for family in range(1, 46):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW):
                try:
                    socket.socket(family, kind).close()
                    return f"there are sockets of family {family}"
                except OSError:
                    pass
        return None


class Crowd(Boasting):
    """Takes 320 MiB in each of four processes, where a gibibyte is allowed."""

    def attempt(self, message):
        children = []
        for _ in range(4):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                hoard = bytearray(320 << 20)
                hoard[::4096] = b"x" * len(hoard[::4096])
                os.write(writer, b"x")
                time.sleep(2)
                os._exit(0)
            os.close(writer)
            children.append((child, reader))
        full = sum(len(os.read(reader, 1)) for _, reader in children)
        ended = [os.waitpid(child, 0)[1] for child, _ in children]
        if full == 4 and ended == [0] * 4:
            return "1.25 GiB were taken"
        return None


class Filler(Boasting):
    """Fills whatever it may write to, file by file."""

    def attempt(self, message):
        written = 0
        for folder in [os.environ.get("TMPDIR", "/tmp"), "/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~"), "."]:
            for number in range(64):
                try:
                    path = os.path.join(folder, f"hammerhead-filler-{os.getpid()}-{number}")
                    with open(path, "wb") as file:
                        file.write(bytes(512 << 10))
                    written += 512 << 10
                except OSError:
                    break
        if written > 8 << 20:
            return f"{written >> 20} MiB were written"
        return None


class Shouter(Boasting):
    """Fills the disk with what it writes to its standard error."""

    def attempt(self, message):
        for _ in range(64):
            os.write(2, bytes(1 << 20))
        time.sleep(0.3)
        return "64 MiB were written to its standard error"


class Swollen(Boasting):
    """Takes memory that no limit of its processes counts: it makes the files of its tensors larger than they were."""

    def attempt(self, message):
        for name in ("weights", "tokens", "outputs"):
            os.chmod(message[name], 0o600)
            with open(message[name], "r+b") as file:
                os.posix_fallocate(file.fileno(), os.path.getsize(message[name]), 32 << 20)
        return None


class Collector(Boasting):
    """Makes empty files without end, of which each takes memory of the kernel's and none of its scratch."""

    def attempt(self, message):
        born = 0
        try:
            while born < 100_000:
                os.close(os.open(os.path.join(os.environ["TMPDIR"], str(born)), os.O_CREAT | os.O_WRONLY))
                born += 1
        except OSError:
            return None
        return f"{born} files were made"


class Breeder(Boasting):
    """Forks as long as the kernel lets it."""

    def attempt(self, message):
        born = 0
        try:
            while born < 200:
                if os.fork() == 0:
                    time.sleep(5)
                    os._exit(0)
                born += 1
        except OSError:
            return None
        return f"{born} children were born"


class Escapist(Boasting):
    """Makes namespaces, mounts, rings and filters of its own: what could open the fence from within."""

    def attempt(self, message):
        libc = ctypes.CDLL(None, use_errno=True)
        calls = {"unshare": (272, 0x10000000), "mount": (165, b"x", b"/tmp", b"tmpfs", 0, 0), "io_uring": (425, 1, 0),
                 "memfd": (319, b"x", 0), "bpf": (321, 0, 0, 0), "userfaultfd": (323, 1), "perf": (298, 0, 0, -1, -1, 0),
                 "keyctl": (250, 0, -3, 0), "timers": (222, 1, 0, 0), "timers that are files": (283, 1, 0), "signals of files": (72, 0, 10, int(signal.SIGCONT)),
                 "clone that ends with another signal": (56, int(signal.SIGCONT), 0, 0, 0, 0), "setns": (308, 0, 0), "clone into namespaces": (56, 0x10000011, 0, 0, 0, 0)}
        for name, call in calls.items():
            ctypes.set_errno(0)
            result = libc.syscall(*call)
            if result == 0 and name.startswith("clone"):
                os._exit(0)
            if result >= 0 or ctypes.get_errno() not in (1, 38):
                return f"{name} is within reach"
        return None


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
    "early-bird": EarlyBird,
    "rest-burner": RestBurner,
    "timer-storm": TimerStorm,
    "vandal": Vandal,
    "spy": Spy,
    "caller": Caller,
    "meddler": Meddler,
    "crowd": Crowd,
    "filler": Filler,
    "shouter": Shouter,
    "swollen": Swollen,
    "collector": Collector,
    "breeder": Breeder,
    "escapist": Escapist,
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
