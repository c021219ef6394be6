"""Results of `hocket simulate`: where the time of a step goes."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.observe.serve.result import ResultFile, ResultKind, ResultSource
from hocket.session.simulation_file import HEAD, SimulationFile


@dataclass(frozen=True)
class SimulatedRow:
    """Operations of one kind and size; "total_s" is the time of all of them, of which some may overlap."""

    op: str
    nbytes: int
    count: int
    seconds: float
    total_s: float
    algorithm: str


@dataclass(frozen=True)
class SimulationAnswer:
    """The answer. Nothing was measured.

    Args:
        step, source: what was simulated, and where its operations come from.
        num_ranks: that it was simulated between.
        fabric: the links between them.
        seconds: of the step.
        compute_s: of computation in it, on each rank.
        waits_s: the rest: waiting for communication.
        operations: of the step.
    """

    step: str
    source: str
    num_ranks: int
    fabric: str
    seconds: float
    compute_s: float
    waits_s: float
    operations: list[SimulatedRow]


def _load(file: ResultFile) -> SimulationFile:
    return SimulationFile.from_json(file.text, str(file.path))


def _make(source: ResultSource) -> SimulationAnswer:
    given: SimulationFile = source.value
    ran = given.simulated
    rows = [
        SimulatedRow(each.kind, each.nbytes, each.count, each.seconds, each.seconds * each.count, each.algorithm)
        for each in ran.operations
    ]
    waits_s = max(0.0, ran.seconds - ran.compute_s)
    return SimulationAnswer(
        given.step, given.source, given.num_ranks, given.fabric, ran.seconds, ran.compute_s, waits_s, rows
    )


RESULT = ResultKind(
    "simulation", "a simulated step", "hocket simulate --json", HEAD, SimulationAnswer, _load, _make
)  # fmt: skip
