"""The report of a benchmark: a table for people, one JSON line for programs, and an exit code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from hocket.measure.comparison import Row
from hocket.measure.rounds import Measurement

HOLDS, FALLS_SHORT, NOT_JUDGED = 0, 1, 3


@dataclass(frozen=True)
class Report:
    """The result of one benchmark.

    Args:
        claim: The claim that the benchmark checks, in one sentence.
        rows: All rows, judged or not.
        core_factor: Median over all rounds.
        foreign_busy: Largest share, 0 to 1, of the CPU time that other programs took in one of the measurements.

    Examples:
        >>> row = hk.measure.computed("16 B", "mpich", ours=2.0, theirs=3.0, unit="us", target=1.2)
        >>> report = hk.measure.Report("shm beats MPI", (row,), core_factor=2.0, foreign_busy=0.01)
        >>> report.exit_code
        0
        >>> print(report.to_table())
        shm beats MPI
        <BLANKLINE>
        case  rival (fastest form)  ours  theirs  unit  ratio  95 % interval  target  holds
        -----------------------------------------------------------------------------------
        16 B  mpich                    2       3  us      1.5  -                 1.2  yes
        <BLANKLINE>
        core factor 2.00 (median), foreign work 1% of all CPUs: all rows hold
    """

    claim: str
    rows: tuple[Row, ...]
    core_factor: float
    foreign_busy: float

    @property
    def judged(self) -> bool:
        """Whether every row with a target could be judged."""
        return not any(row.unjudged for row in self.rows)

    @property
    def exit_code(self) -> int:
        """1 when a row falls short; else 3 when a row could not be judged; else 0."""
        if any(row.holds is False for row in self.rows):
            return FALLS_SHORT
        return HOLDS if self.judged else NOT_JUDGED

    def to_json(self) -> str:
        """Return the report as one line of JSON; numbers have six significant digits."""
        return json.dumps(_rounded(asdict(self) | {"judged": self.judged}))

    def to_table(self) -> str:
        """Return the report as a table in plain text."""
        head = ("case", "rival (fastest form)", "ours", "theirs", "unit", "ratio", "95 % interval", "target", "holds")
        cells = [head, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
        numeric = {2, 3, 5, 6, 7}
        lines = [
            "  ".join(
                text.rjust(width) if column in numeric else text.ljust(width)
                for column, (text, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in cells
        ]
        lines.insert(1, "-" * max(map(len, lines)))
        machine = f"core factor {self.core_factor:.2f} (median), foreign work {self.foreign_busy:.0%} of all CPUs"
        end = machine if self.core_factor else "nothing was timed"
        verdicts = {
            HOLDS: "all rows hold",
            FALLS_SHORT: "a row falls short",
            NOT_JUDGED: "not judged: the machine was too busy, or there were too few rounds with full cores",
        }
        return "\n".join([self.claim, "", *lines, "", f"{end}: {verdicts[self.exit_code]}"])


def report(claim: str, rows: Iterable[Row], measurements: Sequence[Measurement]) -> Report:
    """Make a report of judged rows and their measurements; computed rows need no measurement.

    Examples:
        >>> row = hk.measure.computed("16 B", "mpich", ours=2.0, theirs=3.0, unit="us", target=2.0)
        >>> report = hk.measure.report("shm is twice as fast as MPI", [row], measurements=[])
        >>> report.judged, report.exit_code
        (True, 1)
    """
    rounds = [round_ for measured in measurements for round_ in measured.rounds]
    return Report(
        claim=claim,
        rows=tuple(rows),
        core_factor=median(round_.core_factor for round_ in rounds) if rounds else 0.0,
        foreign_busy=max((measured.foreign_busy for measured in measurements), default=0.0),
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.case,
        row.rival,
        f"{row.ours:.4g}",
        f"{row.theirs:.4g}",
        row.unit,
        f"{row.ratio:.3g}",
        "-" if row.interval is None else f"{row.interval[0]:.3g} .. {row.interval[1]:.3g}",
        "" if row.target is None else f"{row.target:g}",
        {True: "yes", False: "NO", None: "?" if row.unjudged else ""}[row.holds],
    )


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
