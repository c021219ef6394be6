"""The tables of torch.distributed.pipelining: a row a rank, a cell an action such as 2F0 or (2F1;5B0)OVERLAP_F_B.

Written and read by `_PipelineScheduleRuntime._dump_csv` and `_load_csv` of torch 2.13; cells may be empty. Older ones
have B for what is I now, and BW for what is B; those are read, too.
"""

from __future__ import annotations

import csv
import io
import re

from hocket.errors import HocketError, InvalidArgument, InvalidSchedule
from hocket.pipeline.action import NONE, Action
from hocket.pipeline.formats._tokens import read_action
from hocket.pipeline.kind import kinds
from hocket.pipeline.placement import Placement
from hocket.pipeline.schedule import PipelineSchedule

ENDING = ".csv"
_KINDS = ("F", "I", "W", "B", "UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F", "RECV_F", "SEND_B", "RECV_B")
_OVERLAP = "OVERLAP_F_B"


def dump(schedule: PipelineSchedule) -> str:
    """Return a schedule as torch reads it, as its "compute_only" or, where it names messages, "compute_comms".

    Raises:
        InvalidArgument: torch's tables cannot say it; says what.
    """
    for is_wrong, words in (
        (schedule.num_pipes > 1, f"a stage is on one rank there, and on {schedule.num_pipes} here (one a pipe)"),
        (schedule.num_steps > 1, f"there is one step there, and {schedule.num_steps} here"),
        (not schedule.is_chain, "stages are a chain there"),
    ):
        if is_wrong:
            raise InvalidArgument(f"torch's tables cannot say {schedule.name}: {words}")
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    for rank, actions in enumerate(schedule.actions):
        cells: list[str] = []
        for index, action in enumerate(actions):
            cell = _cell(action, rank, index)
            if not action.with_previous:
                cells.append(cell)
            elif actions[index - 1].kind == "F" and action.kind == "B":
                cells[-1] = f"({cells[-1]};{cell}){_OVERLAP}"
            else:
                raise InvalidArgument(
                    f"torch's tables cannot say rank {rank}, action {index}, {action}: a forward pass overlaps with a "
                    "backward pass after it there"
                )
        writer.writerow(cells)
    return table.getvalue()


def load(text: str, place: str = "the table") -> PipelineSchedule:
    """Read a table of torch's. Which rank holds which stage follows from the actions.

    Raises:
        InvalidSchedule: it is no table; names the row and the column.
    """
    rows: list[list[Action]] = []
    try:
        table = list(csv.reader(io.StringIO(_renamed(text)), strict=True))
    except csv.Error as error:
        raise InvalidSchedule(f"{place}: {error}") from None
    for number, cells in enumerate(table, 1):
        row: list[Action] = []
        for column, cell in enumerate(cells, 1):
            row += _read_cell(cell.strip(), f"{place}, row {number}, column {column}")
        rows.append(row)
    holders: dict[int, int] = {}
    for rank, row in enumerate(rows):
        for action in row:
            if holders.setdefault(action.stage, rank) != rank:
                raise InvalidSchedule(
                    f"{place}, row {rank + 1}: {action}: stage {action.stage} is on rank {holders[action.stage]} by "
                    "an earlier row"
                )
    absent = next((stage for stage, own in enumerate(sorted(holders)) if stage != own), None)
    if absent is not None or not holders:
        raise InvalidSchedule(f"{place}: there is no action of stage {absent or 0}")
    placement = tuple(holders[stage] for stage in range(len(holders)))
    num_micro_batches = 1 + max((action.micro_batch for row in rows for action in row), default=NONE)
    try:
        schedule = PipelineSchedule("torch", Placement((placement,)), max(1, num_micro_batches), rows)
        schedule.columns  # noqa: B018  checks every action
    except HocketError as error:
        raise InvalidSchedule(f"{place}: {error}") from None
    return schedule


def _renamed(text: str) -> str:
    """The table with today's names: one that has whole passes BW, or gradients of weights without those of inputs, is
    of the older kind."""
    used = set(re.findall(r"\d([A-Z]+)\d", text))
    if "I" in used or not used & {"BW", "W"}:
        return text
    return re.sub(r"(?<=\d)(BW|B)(?=\d)", lambda match: {"BW": "B", "B": "I"}[match[1]], text)


def _cell(action: Action, rank: int, index: int) -> str:
    words = None
    if action.kind not in _KINDS:
        words = f"it has the kinds {', '.join(_KINDS)}"
    elif action.width > 1:
        words = "an action is for one micro-batch there"
    if words:
        raise InvalidArgument(f"torch's tables cannot say rank {rank}, action {index}, {action}: {words}")
    return f"{action.stage}{action.kind}{action.micro_batch if action.micro_batch != NONE else ''}"


def _read_cell(cell: str, place: str) -> list[Action]:
    if not cell:
        return []
    pair = re.fullmatch(r"\((.*)\)" + _OVERLAP, cell)
    words = [cell] if pair is None else [word.strip() for word in pair[1].split(";")]
    actions = [read_action(word, place) for word in words]
    for action in actions:
        if action.kind not in _KINDS or str(action) != _plain(action):
            raise InvalidSchedule(f"{place}: {cell!r} is no action of torch's tables, such as 2F0 or 2SEND_F0")
    return [actions[0], *(action._replace(with_previous=True) for action in actions[1:])]


def _plain(action: Action) -> str:
    """The action as text, if it says nothing but a stage, a kind, a micro-batch and the next stage of the chain."""
    peer = action.stage + kinds()[action.kind].peer_offset if kinds()[action.kind].message else NONE
    return str(Action(action.kind, action.stage, action.micro_batch, peer=peer))
