"""Pipeline schedules: a step on a virtual clock, one row for each rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hocket.errors import HocketError, InvalidArgument
from hocket.observe.serve.pipeline_action import PipelineAction
from hocket.observe.serve.result import ResultFile, ResultKind, ResultSource, shorten, shorten_all
from hocket.pipeline import Action, PipelineSchedule, simulate, validate
from hocket.pipeline.bound import bound_of
from hocket.pipeline.formats import _tokens, json, text

_MOST_ACTIONS = 50_000
"""More are neither drawn nor looked at: a file can name far more micro-batches than it has actions."""


@dataclass(frozen=True)
class PipelineRank:
    """A rank: which stages of which pipes it holds, how long it computes, and its most memory in activations."""

    rank: int
    stages: list[str]
    busy_s: float
    peak: float


@dataclass(frozen=True)
class PipelineAnswer:
    """The answer. Times are units of one forward pass through a stage: nothing was measured.

    Args:
        schedule: its name.
        parameters: of the schedule, as texts.
        num_ranks, num_stages, num_pipes, num_micro_batches, num_steps: of the schedule.
        num_actions: of all ranks.
        problem: why the schedule is wrong; "": it is proven correct.
        seconds: of the step; null: it cannot be simulated.
        bound_s: that no schedule of these passes on these ranks goes below.
        bubble: share of time in which ranks do not compute.
        ranks: all ranks.
        actions: all actions, with their times.
        table: of each rank its actions, if they have no times.
    """

    schedule: str
    parameters: dict[str, str]
    num_ranks: int
    num_stages: int
    num_pipes: int
    num_micro_batches: int
    num_steps: int
    num_actions: int
    problem: str
    seconds: float | None = None
    bound_s: float | None = None
    bubble: float | None = None
    ranks: list[PipelineRank] = field(default_factory=list)
    actions: list[PipelineAction] = field(default_factory=list)
    table: list[str] = field(default_factory=list)


def _load(file: ResultFile) -> PipelineSchedule:
    load = text.load if file.content is None else json.load
    schedule = load(file.text, str(file.path))
    num_passes = schedule.num_micro_batches * schedule.num_steps * schedule.num_stages
    if max(num_passes, len(schedule)) > _MOST_ACTIONS:
        raise InvalidArgument(
            f"{file.path} has {len(schedule)} actions, for {num_passes} passes forward; at most {_MOST_ACTIONS} are "
            "drawn: hocket pipeline simulate says how long it takes"
        )
    return schedule


def _make(source: ResultSource) -> PipelineAnswer:
    schedule: PipelineSchedule = source.value
    facts = (
        shorten(schedule.name), shorten_all(schedule.parameters), schedule.num_ranks, schedule.num_stages,
        schedule.num_pipes, schedule.num_micro_batches, schedule.num_steps, len(schedule),
    )  # fmt: skip
    problem = ""
    try:
        validate(schedule)
    except HocketError as error:
        problem = str(error)
    try:
        timeline = simulate(schedule)
    except HocketError as error:
        table = [" ".join(map(str, actions)) for actions in schedule.actions]
        return PipelineAnswer(*facts, problem or str(error), table=table)
    places = [(rank, *each) for rank, actions in enumerate(schedule.actions) for each in _together(actions)]
    actions = [
        PipelineAction(rank, action.kind, str(action).lstrip("+"), began_s, ended_s, place, num_together)
        for (rank, action, place, num_together), began_s, ended_s in zip(
            places, timeline.begin_s.tolist(), timeline.end_s.tolist(), strict=True
        )
    ]
    stages = _stages_by_rank(schedule)
    ranks = [
        PipelineRank(rank, stages.get(rank, []), busy_s, peak)
        for rank, (busy_s, peak) in enumerate(zip(timeline.busy_s.tolist(), timeline.peak_nbytes.tolist(), strict=True))
    ]
    bound_s = None if problem else bound_of(schedule, timeline.costs)
    return PipelineAnswer(*facts, problem, timeline.makespan_s, bound_s, timeline.bubble(), ranks, actions)


def _together(actions: Sequence[Action]) -> Iterator[tuple[Action, int, int]]:
    """Each action of a rank, with its place among those that overlap, and their number."""
    groups: list[list[Action]] = []
    for action in actions:
        if action.with_previous and groups:
            groups[-1].append(action)
        else:
            groups.append([action])
    for group in groups:
        yield from ((action, place, len(group)) for place, action in enumerate(group))


def _stages_by_rank(schedule: PipelineSchedule) -> dict[int, list[str]]:
    """The stages of each rank, with the pipe where there are several, as in "1:2"."""
    found: dict[int, list[str]] = {}
    for pipe, ranks in enumerate(schedule.placement.ranks):
        for stage, owner in enumerate(ranks):
            found.setdefault(owner, []).append(f"{pipe}:{stage}" if schedule.num_pipes > 1 else str(stage))
    return found


RESULT = ResultKind(
    "pipeline", "a pipeline schedule", "hocket pipeline convert NAME -o FILE.json", _tokens.HEAD, PipelineAnswer, _load,
    _make,
)  # fmt: skip
