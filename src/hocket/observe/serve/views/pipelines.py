"""A step of a pipeline training as it was, beside the same table as the simulator runs it with the measured times of
its passes: what the order of the passes alone would allow."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from hocket.errors import HocketError, InvalidArgument
from hocket.observe.serve.pipeline_action import PipelineAction
from hocket.observe.serve.view import View, ViewSource, ViewWindow
from hocket.pipeline import Action, CostModel, PipelineSchedule, Placement, simulate
from hocket.pipeline.kind import kinds

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables

_STEP = "training step"


@dataclass(frozen=True)
class PipelineStep:
    """The step of median length in the window.

    Args:
        began_s: in seconds since the run began.
        measured, simulated: its actions; the simulation has none, and a problem, if the table is not whole.
        measured_s, simulated_s: from the begin of the first action to the end of the last one.
        measured_bubble, simulated_bubble: shares of time in which ranks did not compute.
    """

    began_s: float
    measured: list[PipelineAction]
    measured_s: float
    measured_bubble: float
    simulated: list[PipelineAction]
    simulated_s: float | None
    simulated_bubble: float | None
    problem: str


@dataclass(frozen=True)
class PipelinesView:
    """The answer. "step" is null where no pipeline was trained."""

    num_steps: int
    step: PipelineStep | None


@dataclass(frozen=True)
class _Measured:
    """An action of a rank, from its region."""

    rank: int
    action: Action
    began_s: float
    ended_s: float


def _steps(table: Tables) -> ir.Table:
    rows = table("regions_in_window")
    return rows.filter(rows.region == _STEP)[["rank", "began_s", "ended_s"]].order_by("began_s")


def _regions(table: Tables) -> ir.Table:
    rows = table("regions_in_window")
    return rows.filter(rows["rank"] >= 0)[["rank", "region", "began_s", "ended_s"]].order_by("began_s")


def _make(source: ViewSource, window: ViewWindow) -> PipelinesView:
    rows = source.rows(_steps, *source.limits(window))
    first = min((row["rank"] for row in rows), default=0)
    steps = [row for row in rows if row["rank"] == first and row["ended_s"] >= row["began_s"]]
    if not steps:
        return PipelinesView(0, None)
    chosen = sorted(steps, key=lambda row: float(row["ended_s"] - row["began_s"]))[len(steps) // 2]
    begin, end = float(chosen["began_s"]), float(chosen["ended_s"])
    found = [each for row in source.rows(_regions, begin, end) if (each := _action_in(row, begin, end)) is not None]
    return PipelinesView(len(steps), _step(begin, found) if found else None)


def _action_in(row: dict[str, Any], begin: float, end: float) -> _Measured | None:
    """The pass that a region is, if it is one and began in the step."""
    try:
        action = Action.parse(str(row["region"]).rpartition(" ")[2])
    except HocketError:
        return None
    kind = kinds().get(action.kind) if action is not None else None
    if action is None or kind is None or not kind.is_pass or not begin <= row["began_s"] < end:
        return None
    return _Measured(row["rank"], action, row["began_s"] - begin, row["ended_s"] - begin)


def _step(began_s: float, found: list[_Measured]) -> PipelineStep:
    first_s = min(each.began_s for each in found)
    seconds = max(each.ended_s for each in found) - first_s
    measured = [_shown(each.rank, each.action, each.began_s, each.ended_s) for each in found]
    busy_s = sum(each.ended_s - each.began_s for each in found)
    num_ranks = len({each.rank for each in found})
    simulated, problem = [], ""
    simulated_s = simulated_bubble = None
    try:
        timeline = simulate(schedule := _schedule(found), _costs(found))
        simulated_s, simulated_bubble = timeline.makespan_s, timeline.bubble()
        flat = [(rank, action) for rank, actions in enumerate(schedule.actions) for action in actions]
        simulated = [
            _shown(rank, action, first_s + begin, first_s + end)
            for (rank, action), begin, end in zip(flat, timeline.begin_s.tolist(), timeline.end_s.tolist(), strict=True)
        ]
    except HocketError as error:
        problem = str(error)
    bubble = 1 - busy_s / (seconds * num_ranks) if seconds else 0.0
    return PipelineStep(began_s, measured, seconds, bubble, simulated, simulated_s, simulated_bubble, problem)


def _shown(rank: int, action: Action, began_s: float, ended_s: float) -> PipelineAction:
    return PipelineAction(rank, action.kind, str(action), began_s, ended_s)


def _schedule(found: list[_Measured]) -> PipelineSchedule:
    """The table of the step: the passes of each rank in the order in which they began."""
    ranks = sorted({each.rank for each in found})
    stages: dict[tuple[int, int], int] = {}
    for each in found:
        stages.setdefault((each.action.pipe, each.action.stage), ranks.index(each.rank))
    num_pipes, num_stages = (1 + max(key[place] for key in stages) for place in range(2))
    if len(stages) != num_pipes * num_stages:
        raise InvalidArgument("not all stages of the step were recorded")
    placement = Placement(tuple(tuple(stages[pipe, stage] for stage in range(num_stages)) for pipe in range(num_pipes)))
    actions: list[list[Action]] = [[] for _ in ranks]
    for each in sorted(found, key=lambda each: each.began_s):
        actions[ranks.index(each.rank)].append(each.action)
    num_micro_batches = 1 + max(each.action.micro_batch + each.action.width - 1 for each in found)
    return PipelineSchedule("measured", placement, num_micro_batches, actions)


def _costs(found: list[_Measured]) -> CostModel:
    """The median length of each kind of pass of each stage, for a micro-batch."""
    lengths: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in found:
        cost = kinds()[each.action.kind].cost
        if cost is not None:
            lengths[cost][each.action.stage].append((each.ended_s - each.began_s) / each.action.width)
    num_stages = 1 + max(each.action.stage for each in found)
    return CostModel(
        seconds={
            cost: [median(by_stage.get(stage, [0.0])) for stage in range(num_stages)]
            for cost, by_stage in lengths.items()
        }
    )


VIEW = View("pipelines", PipelinesView, _make, "A step of a pipeline training, as it was and as it is simulated.")
