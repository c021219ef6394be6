"""The demo's measurements as values, read from the JSON of its jobs; the table, pictures and page show them."""

import json
import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hocket.measure import Ratio
from hocket.measure.comparison import MAX_FOREIGN_BUSY

BACKENDS = ("gloo", "hocket")
COMPARED_STEPS = 50
REQUIRED_ACCURACY = 0.95


@dataclass(frozen=True)
class Estimate:
    """A median over rounds with its 95 % interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Training:
    """One complete training run over one backend, as written by train.py."""

    backend: str
    ranks: int
    batch_per_rank: int
    parameters: int
    accuracy: list[float]
    losses: list[float]
    step_seconds: list[float] = field(repr=False)
    wall_seconds: float
    operations: list[dict[str, Any]] = field(repr=False)


@dataclass(frozen=True)
class Timing:
    """The interleaved job, as written by compare.py; times in milliseconds per step, maximum over ranks."""

    step_ms: dict[str, Estimate]
    no_sync_ms: dict[str, Estimate]
    share: dict[str, Estimate]
    speed_up: dict[str, Ratio]
    rounds_ms: dict[str, list[float]] = field(repr=False)
    sample_ms: float
    core_factor: float
    foreign_busy: float
    too_busy: bool
    null_ratio: Ratio


@dataclass(frozen=True)
class OperationGroup:
    """All operations of one kind, dtype and size that a run issued."""

    op: str
    dtype: str
    nbytes: int
    count: int
    median_us: float
    total_ms: float


@dataclass(frozen=True)
class Mix:
    """One step's traffic over each library and over the mix of them, as `hocket tune compare --json` prints it.

    Args:
        source: program that produced the traffic.
        seconds: time of one step, by variant: the name of a library or of the mix.
        predicted_seconds: the same, predicted by the tuning table for operations in sequence; None if the table lacks
            an operation.
        chosen: library for each operation: (operation, dtype, bytes, count, library with its schedule).
        conclusion: whether the mix pays off, in one sentence.
        too_busy: whether other programs kept the machine so busy that the times are not valid.
    """

    source: str
    seconds: dict[str, float]
    predicted_seconds: dict[str, float | None]
    chosen: list[tuple[str, str, int, int, str]]
    conclusion: str
    too_busy: bool


@dataclass(frozen=True)
class Demo:
    """Everything the report shows."""

    trainings: dict[str, Training]
    timing: Timing
    machine: dict[str, str]
    mixes: dict[str, Mix] = field(default_factory=dict)

    @property
    def equal_steps(self) -> int:
        """Number of first steps whose losses are bitwise equal over both backends."""
        pairs = list(zip(*(self.trainings[name].losses for name in BACKENDS), strict=True))
        return next((step for step, (one, other) in enumerate(pairs) if one != other), len(pairs))

    @property
    def operations(self) -> list[OperationGroup]:
        """The operations that hocket recorded during training, the group with the largest total time first."""
        return group_operations(self.trainings["hocket"].operations)

    @property
    def caution(self) -> str | None:
        """Why step times are withheld, or None."""
        if not self.timing.too_busy:
            return None
        return (
            f"Step times are withheld: other programs used {self.timing.foreign_busy:.0%} of the machine; "
            "run the demo again when the machine is idle."
        )

    @property
    def is_faster(self) -> bool:
        """Whether hocket's steps are significantly faster than gloo's."""
        return not self.timing.too_busy and self.timing.speed_up["hocket"].verdict == "faster"

    @property
    def shortfalls(self) -> list[str]:
        """The requirements of a full run that this run does not meet."""
        found = [
            f"{name}: test accuracy {run.accuracy[-1]:.1%} is below {REQUIRED_ACCURACY:.0%}"
            for name, run in self.trainings.items()
            if run.accuracy[-1] < REQUIRED_ACCURACY
        ]
        if self.equal_steps < COMPARED_STEPS:
            found.append(f"the losses over gloo and hocket differ at step {self.equal_steps + 1}")
        return found


def group_operations(operations: Iterable[dict[str, Any]]) -> list[OperationGroup]:
    """Group operations by kind, dtype and size, the largest total time first."""
    seconds: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for record in operations:
        seconds[record["op"], record["dtype"], record["nbytes"]].append(record["seconds"])
    groups = [
        OperationGroup(*key, len(times), statistics.median(times) * 1e6, sum(times) * 1e3)
        for key, times in seconds.items()
    ]
    return sorted(groups, key=lambda group: -group.total_ms)


def read_training(path: Path) -> Training:
    return Training(**json.loads(path.read_text()))


def read_timing(path: Path) -> Timing:
    raw = json.loads(path.read_text())
    for name in ("step_ms", "no_sync_ms", "share"):
        raw[name] = {backend: Estimate(**estimate) for backend, estimate in raw[name].items()}
    raw["speed_up"] = {backend: Ratio(**ratio) for backend, ratio in raw["speed_up"].items()}
    return Timing(**{**raw, "null_ratio": Ratio(**raw["null_ratio"])})


def read_mix(path: Path) -> Mix:
    result = json.loads(path.read_text())
    (traffic,) = result["traffics"]
    return Mix(
        traffic["source"],
        {name: times["seconds"] for name, times in traffic["variants"].items()},
        {name: times["predicted_seconds"] for name, times in traffic["variants"].items()},
        [(each["op"], each["dtype"], each["nbytes"], each["count"], each["carrier"]) for each in traffic["chosen"]],
        traffic["conclusion"],
        result["foreign_busy"] > MAX_FOREIGN_BUSY,
    )


def describe_machine() -> dict[str, str]:
    """Return processor, cores, memory, system, versions and date, for comparison with other machines."""
    info = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    model = next((value.strip() for key, value in info.items() if key.startswith("model name")), platform.machine())
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": model,
        "cores": f"{len(os.sched_getaffinity(0))} usable",
        "memory": f"{memory_gib:.0f} GiB",
        "system": f"Linux {platform.release()}",
        "versions": f"Python {platform.python_version()}, "
        + ", ".join(f"{package} {version(package)}" for package in ("hocket", "torch", "numpy")),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    }
