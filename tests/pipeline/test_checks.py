"""Invalid tables are refused with the right error; valid ones are accepted."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from hocket.errors import (
    DuplicateAction,
    IllegalOrder,
    InvalidSchedule,
    MemoryLimitExceeded,
    MisplacedAction,
    MissingAction,
    PipelineDeadlock,
    StashLeak,
)
from hocket.pipeline.action import Action
from hocket.pipeline.buffering import Buffering
from hocket.pipeline.checks.deadlock import check_deadlock, smallest_buffering
from hocket.pipeline.checks.validate import validate
from hocket.pipeline.costs import CostModel
from hocket.pipeline.formats.text import load
from hocket.pipeline.memory import memory_use
from hocket.pipeline.passes.lower_messages import lower_messages
from hocket.pipeline.registry import build, recipes
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.simulation import simulate

from ..naming import assert_names, raises
from ..tier import sample
from .tables import all_schedules, place, random_legal, rows_of

pytestmark = pytest.mark.timeout(120)

HEAD = "hocket pipeline schedule, version 1\nmicro-batches: 2\npipe 0: 0 1\n"


def dropped(schedule: PipelineSchedule, draw: random.Random) -> tuple[PipelineSchedule, type[InvalidSchedule]]:
    rank, index = place(schedule, draw)
    rows = rows_of(schedule)
    if index + 1 < len(rows[rank]):
        rows[rank][index + 1] = rows[rank][index + 1]._replace(with_previous=False)
    del rows[rank][index]
    return schedule.with_actions(rows), MissingAction


def doubled(schedule: PipelineSchedule, draw: random.Random) -> tuple[PipelineSchedule, type[InvalidSchedule]]:
    (rank, index), rows = place(schedule, draw), rows_of(schedule)
    rows[rank].append(rows[rank][index]._replace(with_previous=False))
    return schedule.with_actions(rows), DuplicateAction


def moved(schedule: PipelineSchedule, draw: random.Random) -> tuple[PipelineSchedule, type[InvalidSchedule]]:
    """Move an action to another rank."""
    (rank, index), rows = place(schedule, draw), rows_of(schedule)
    action = rows[rank].pop(index)
    if index < len(rows[rank]):
        rows[rank][index] = rows[rank][index]._replace(with_previous=False)
    other = draw.choice([each for each in range(schedule.num_ranks) if each != rank])
    rows[other].insert(draw.randrange(len(rows[other]) + 1), action._replace(with_previous=False))
    first = rows[other][0]
    rows[other][0] = first._replace(with_previous=False)
    return schedule.with_actions(rows), MisplacedAction


def swapped(schedule: PipelineSchedule, draw: random.Random) -> tuple[PipelineSchedule, type[InvalidSchedule]]:
    """Swap two actions of a rank of which the later one depends on the earlier one."""
    dependencies, columns = schedule.dependencies, schedule.columns
    pairs = [
        (int(after), int(before))
        for after, before in zip(dependencies.after, dependencies.before, strict=True)
        if columns.rank[after] == columns.rank[before]
    ]
    (rank, later), (_, earlier) = (schedule.place(row) for row in draw.choice(pairs))
    rows = rows_of(schedule)
    first, second = rows[rank][earlier], rows[rank][later]
    rows[rank][earlier] = second._replace(with_previous=first.with_previous)
    rows[rank][later] = first._replace(with_previous=second.with_previous)
    return schedule.with_actions(rows), IllegalOrder


def cyclic(schedule: PipelineSchedule, draw: random.Random) -> tuple[PipelineSchedule, type[InvalidSchedule]]:
    """Move an action of a rank before another one that it depends on through other ranks."""
    columns = schedule.columns
    order = sorted(range(len(schedule)), key=lambda _: draw.random())
    forward = [row for row in order if schedule.action(row).kind == "F"]
    for row in forward:
        rank, index = schedule.place(row)
        # The gradient of a later stage depends on this forward pass through other ranks.
        action = schedule.action(row)
        for later in range(int(columns.starts[rank]), int(columns.starts[rank + 1])):
            other = schedule.action(later)
            same = (other.pipe, other.micro_batch, other.step) == (action.pipe, action.micro_batch, action.step)
            ranks = schedule.placement.ranks[action.pipe]
            through_others = other.stage > action.stage + 1 and rank not in (
                ranks[action.stage + 1],
                ranks[other.stage - 1],
            )
            if other.kind in ("B", "I") and same and through_others and action.width == 1:
                rows = rows_of(schedule)
                moving = rows[rank].pop(schedule.place(later)[1])
                rows[rank] = [each._replace(with_previous=False) for each in rows[rank]]
                rows[rank].insert(index, moving._replace(with_previous=False))
                # Move its own forward pass, too, so that the order within the rank stays valid.
                own = next(
                    i for i, each in enumerate(rows[rank])
                    if each.kind == "F" and each.stage == other.stage and each.micro_batch == other.micro_batch
                )  # fmt: skip
                rows[rank].insert(index, rows[rank].pop(own))
                return schedule.with_actions(rows), PipelineDeadlock
    return swapped(schedule, draw)


@pytest.mark.parametrize("change", [dropped, doubled, moved, swapped, cyclic], ids=lambda each: each.__name__)
def test_random_illegal_tables_are_refused_by_name(change) -> None:  # type: ignore[no-untyped-def]
    """120 random changes over all schedules: the error has the right type and shows the neighbouring actions."""
    draw = random.Random(f"illegal {change.__name__}")
    names: Counter[str] = Counter()
    schedules = all_schedules()
    for number in range(120):
        changed, expected = change(schedules[number % len(schedules)], draw)
        with pytest.raises(InvalidSchedule) as caught:
            validate(changed)
        names[type(caught.value).__name__] += 1
        assert isinstance(caught.value, expected), f"{changed}: {caught.value}"
        assert "[" in str(caught.value) or expected is MissingAction, caught.value
    if change is cyclic:
        assert names["PipelineDeadlock"] > 20


def test_random_legal_orders_are_accepted() -> None:
    draw = random.Random("legal")
    schedules = all_schedules()
    for number in range(120):
        validate(random_legal(schedules[number % len(schedules)], draw))


@pytest.mark.parametrize("num_ranks", sample(range(1, 9), 4))
def test_every_schedule_is_legal(num_ranks: int) -> None:
    """For several numbers of micro-batches; also with messages, placed for the given buffers."""
    num_checked = 0
    for recipe in recipes():
        for num_micro_batches in (1, 2, 3, 5, 8, 13, 16):
            if recipe.refusal(num_ranks, num_micro_batches):
                continue
            schedule = recipe.schedule(num_ranks, num_micro_batches)
            validate(schedule)
            num_checked += 1
        lowered = lower_messages(schedule)
        validate(lowered)
        assert simulate(lowered).makespan_s == simulate(schedule).makespan_s
        for buffering in ("rendezvous", "fifo:1", "tagged:1"):
            validate(lower_messages(schedule, buffering), buffering=buffering)
    assert num_checked >= 7 * (12 if num_ranks % 2 == 0 else 9)


def test_deadlock_depends_on_buffers() -> None:
    """Receives right before use, sends right after: the deadlocks for each number of slots per channel."""
    expected = {  # rendezvous, one slot per pair of ranks, two slots, one unlimited channel, two slots per edge
        "gpipe": "+++++", "1f1b": "-++++", "interleaved": "-++++", "zb-h1": "-++++", "chimera": "-++++",
        "dualpipe": "--+++", "zb-v": "----+", "dualpipe-v": "----+",
    }  # fmt: skip
    for name, marks in expected.items():
        schedule = build(name, 4, 8)
        outcomes, messages = "", []
        for buffering in ("rendezvous", "fifo:1", "fifo:2", "fifo", "tagged:2"):
            try:
                check_deadlock(schedule, buffering)
                outcomes += "+"
            except PipelineDeadlock as deadlock:
                messages.append(str(deadlock))
                outcomes += "-"
        assert outcomes == marks, name
        assert all(re.search(r"\b(fifo|tagged):\d", each) for each in messages)  # the slots that are enough
    assert smallest_buffering(build("zb-v", 4, 8)) == Buffering(1)
    assert smallest_buffering(build("zb-v", 4, 8), tagged=False) is None
    assert smallest_buffering(build("dualpipe", 4, 8), tagged=False) == Buffering(2, tagged=False)
    assert smallest_buffering(build("gpipe", 4, 8)) == Buffering(0)


def test_the_cycle_is_printed() -> None:
    schedule = lower_messages(build("1f1b", 2, 2))
    with pytest.raises(PipelineDeadlock) as caught:
        check_deadlock(schedule, "rendezvous")
    lines = str(caught.value).splitlines()
    assert_names(lines[0], "2", "rendezvous")
    assert any(line.startswith("  rank 0, action") and "[0SEND_F1>1]" in line for line in lines)
    assert any(line.startswith("  rank 1, action") and "0SEND_F1>1" in line for line in lines)
    assert_names(lines[-1], "tagged:1")


@pytest.mark.parametrize(
    ("table", "error", "names"),
    [
        ("rank 0: 0F0 0F1 0B0 0B1\nrank 1: 1F0 1B0 1F1", MissingAction, ("micro-batch 1", "stage 1", "B", "I", "W")),
        ("rank 0: 0F0 0B0 0F1 0B1\nrank 1: 1F0 1I0 1F1 1B1", MissingAction, ("[1I0]", "W")),
        ("rank 0: 0F0 0B0 0F1 0B1\nrank 1: 1F0 1B0 1F1 1B1 1W1", MissingAction, ("[1W1]", "I")),
        (
            "rank 0: 0F0 0B0 0F1 0B1 0F1\nrank 1: 1F0 1B0 1F1 1B1",
            DuplicateAction,
            ("rank 0", "action 4", "[0F1]", "action 2"),
        ),
        (
            "rank 0: 0F0 0B0 0F1 0B1\nrank 1: 1F0 1B0 1F1 1B1 1I1 1W1",
            DuplicateAction,
            ("[1I1]", "[1B1]", "micro-batch 1", "stage 1"),
        ),
        ("rank 0: 0F0 0B0 0F1 0B1 1F0\nrank 1: 1B0 1F1 1B1", MisplacedAction, ("[1F0]", "stage 1", "rank 1")),
        ("rank 0: 0F0 0B0 0B1 0F1\nrank 1: 1F0 1B0 1F1 1B1", IllegalOrder, ("action 2", "[0B1]", "0F1", "action 3")),
        ("rank 0: 0F0 +0B0 0F1 0B1\nrank 1: 1F0 1B0 1F1 1B1", IllegalOrder, ("action 1", "[+0B0]", "0F0")),
        (
            "rank 0: 0F0 0B0 0F1 0B1\nrank 1: 1F1 1B1 1F0 1B0",
            PipelineDeadlock,
            ("4", "[0B0]", "[1B0]", "[1F1]", "[0F1]"),
        ),
        (
            "rank 0: 0F0 0B0 0F1 0B1 0R1\nrank 1: 1F0 1B0 1F1 1B1",
            IllegalOrder,
            ("action 3", "[0B1]", "0R1", "action 4"),
        ),
        (
            "rank 0: 0F0 0SEND_F0 0RECV_B0 0B0 0F1 0B1\nrank 1: 1RECV_F0 1F0 1B0 1SEND_B0 1F1 1B1",
            MissingAction,
            ("micro-batch 1", "stage 0", "stage 1"),
        ),
    ],
)
def test_what_is_wrong_is_named(table: str, error: type[InvalidSchedule], names: tuple[str, ...]) -> None:
    with raises(error, names=names):
        validate(load(f"{HEAD}{table}\n"))


def test_a_micro_batch_stays_in_its_pipe() -> None:
    schedule = build("chimera", 2, 2)
    rows = rows_of(schedule)
    rows[1] = [each._replace(pipe=1, stage=0) if (each.stage, each.micro_batch) == (1, 0) else each for each in rows[1]]
    with raises(MisplacedAction, names=("rank 1", "action 1", "[1:0F0]", "micro-batch 0", "pipe 0")):
        validate(schedule.with_actions(rows))


def test_messages_without_sender_or_receiver_are_refused() -> None:
    lowered = lower_messages(build("1f1b", 2, 2))
    rows = rows_of(lowered)
    rows[0].append(Action("SEND_F", 0, 1, peer=1))
    with pytest.raises(DuplicateAction):
        validate(lowered.with_actions(rows))
    rows = rows_of(lowered)
    rows[1] = [each for each in rows[1] if each != Action("RECV_F", 1, 1, peer=0)]
    with raises(MissingAction, names=("micro-batch 1", "stage 0", "stage 1")):
        validate(lowered.with_actions(rows))


def test_memory_limit() -> None:
    schedule = build("1f1b", 4, 8)
    costs = CostModel(weight_nbytes=10.0, stash_nbytes={"activation": 2.0})
    validate(schedule, costs=costs, limit_nbytes=18)
    validate(schedule, costs=costs, limit_nbytes=[18, 16, 14, 12])
    with raises(MemoryLimitExceeded, names=("rank 0", "action 3", "[0F3]", "18", "10", "17")):
        validate(schedule, costs=costs, limit_nbytes=17)
    with raises(MemoryLimitExceeded, names=("rank 3", "action 0", "[3F0]", "12", "11")):
        validate(schedule, costs=costs, limit_nbytes=[18, 16, 14, 11])


def test_stashes_of_overlapping_actions_count_at_the_peak() -> None:
    """A forward pass allocates its activation before an overlapping backward pass frees another one."""
    schedule = load(f"{HEAD.replace('0 1', '0')}rank 0: 0F0 0F1 +0B0 0B1\n")
    assert memory_use(schedule, CostModel(stash_nbytes={"activation": 2.0})).peak_nbytes.tolist() == [4.0]
    limited = build("dualpipe", 4, 8)
    peak_nbytes = memory_use(limited, CostModel()).peak_nbytes
    validate(limited, costs=CostModel(), limit_nbytes=peak_nbytes.tolist())
    with pytest.raises(MemoryLimitExceeded):
        validate(limited, costs=CostModel(), limit_nbytes=(peak_nbytes - 0.5).tolist())


def test_leaks_are_found() -> None:
    """A registered kind allocates a stash that no action frees."""
    from hocket.pipeline.kind import Kind, Need, Stash, register_kind

    register_kind(Kind("KEEP", "keeps a copy", needs=(Need(("F",)),), takes=(Stash("copy"),)))
    schedule = build("1f1b", 2, 2)
    rows = rows_of(schedule)
    rows[1].append(Action("KEEP", 1, 1))
    with raises(StashLeak, names=("rank 1", "action 4", "[1KEEP1]", "copy", "micro-batch 1")):
        validate(schedule.with_actions(rows))
