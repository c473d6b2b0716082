"""What came of a launch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A rule of the machine that was broken."""

    grade: str
    """``"broken"`` by any reading; ``"seen"``: the ISA forbids it, and hardware has misbehaved; ``"letter"``: the ISA
    forbids it."""
    report: str | None
    """The report of hardware that misbehaved, of one that is ``"seen"``."""
    rule: str
    """A short name of the rule, such as ``"race"``."""
    schedule: str
    """The first schedule that led there; the same one leads there again."""
    line: int | None
    """The line of the PTX."""
    source: str | None
    """Where it was written, by the compiler's word: function, file and line, and those of the calls around it."""
    other_line: int | None
    """Of a race, the line of the access that ran first."""
    other_source: str | None
    """Of a race, where that was written."""
    place: str | None
    """Of a race, the bytes."""
    lacks: str | None
    """Of a race, what is missing between the two sides."""
    remedy: str | None
    """Of a race, what usually helps."""
    message: str
    """All of it in words, with the last steps before."""

    def __str__(self) -> str:
        return f"{self.grade}{f' ({self.report})' if self.report else ''}: {self.rule}\n{self.message}"


@dataclass(frozen=True, repr=False)
class Report:
    """What came of a launch. Its arrays hold what the first schedule left in them."""

    kernel: str
    """The kernel's name."""
    ptx: str
    """The text that ran."""
    schedules: int
    """How many schedules were tried."""
    findings: list[Finding]
    """What broke a rule, the worst first, once per rule and pair of instructions."""
    differs: list[str]
    """Arrays whose contents depend on the schedule. That is no finding by itself, since sums by atomics may, but worth
    a look."""
    profile: list[str]
    """What a run that came to its end has moved and computed."""

    def __repr__(self) -> str:
        """In words, since it is what pytest prints of ``assert not report.findings, report``."""
        if not self.findings:
            return f"{self.kernel}: nothing found under {self.schedules} schedules"
        count = "a finding" if len(self.findings) == 1 else f"{len(self.findings)} findings"
        return "\n\n".join([f"{self.kernel}: {count} under {self.schedules} schedules", *map(str, self.findings)])


class FindingsError(AssertionError):
    """Kernels that ran inside of :func:`hammerhead.sim.triton` broke rules."""

    def __init__(self, reports: list[Report]) -> None:
        super().__init__("\n\n".join(map(str, reports)))
        self.reports = reports
