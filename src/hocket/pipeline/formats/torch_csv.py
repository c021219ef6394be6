"""Tables of torch.distributed.pipelining: one row per rank, one action per cell, such as 2F0 or (2F1;5B0)OVERLAP_F_B.

`_PipelineScheduleRuntime._dump_csv` and `_load_csv` of torch 2.13 write and read them; cells may be empty. Older tables
use B for today's I, and BW for today's B; `load` reads these, too.
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
    """Return a schedule in torch's format "compute_only", or "compute_comms" if it has messages.

    Raises:
        InvalidArgument: torch's format cannot express the schedule; the error names the reason.
    """
    for is_unsupported, reason in (
        (schedule.num_pipes > 1, f"it allows one rank per stage, this has {schedule.num_pipes} (one per pipe)"),
        (schedule.num_steps > 1, f"it allows one step, this has {schedule.num_steps}"),
        (not schedule.is_chain, "its stages must be a chain"),
    ):
        if is_unsupported:
            raise InvalidArgument(f"torch's format cannot express {schedule.name}: {reason}")
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
                    f"torch's format cannot express rank {rank}, action {index}, {action}: it only allows a forward "
                    "pass that overlaps with the backward pass after it"
                )
        writer.writerow(cells)
    return table.getvalue()


def load(text: str, place: str = "the table") -> PipelineSchedule:
    """Read a table of torch; the placement follows from the actions.

    Raises:
        InvalidSchedule: the text is not a valid table; the error names row and column.
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
                    f"{place}, row {rank + 1}: {action}: an earlier row has stage {action.stage} on rank "
                    f"{holders[action.stage]}"
                )
    missing = next((expected for expected, stage in enumerate(sorted(holders)) if expected != stage), None)
    if missing is not None or not holders:
        raise InvalidSchedule(f"{place}: the table has no action of stage {missing or 0}")
    placement = tuple(holders[stage] for stage in range(len(holders)))
    num_micro_batches = 1 + max((action.micro_batch for row in rows for action in row), default=NONE)
    try:
        schedule = PipelineSchedule("torch", Placement((placement,)), max(1, num_micro_batches), rows)
        schedule.columns  # noqa: B018  validates every action
    except HocketError as error:
        raise InvalidSchedule(f"{place}: {error}") from None
    return schedule


def _renamed(text: str) -> str:
    """Return the table with today's names; an old table has BW, or weight gradients without I."""
    used = set(re.findall(r"\d([A-Z]+)\d", text))
    if "I" in used or not used & {"BW", "W"}:
        return text
    return re.sub(r"(?<=\d)(BW|B)(?=\d)", lambda match: {"BW": "B", "B": "I"}[match[1]], text)


def _cell(action: Action, rank: int, index: int) -> str:
    reason = None
    if action.kind not in _KINDS:
        reason = f"it only has the kinds {', '.join(_KINDS)}"
    elif action.width > 1:
        reason = "it only allows one micro-batch per action"
    if reason:
        raise InvalidArgument(f"torch's format cannot express rank {rank}, action {index}, {action}: {reason}")
    return f"{action.stage}{action.kind}{action.micro_batch if action.micro_batch != NONE else ''}"


def _read_cell(cell: str, place: str) -> list[Action]:
    if not cell:
        return []
    pair = re.fullmatch(r"\((.*)\)" + _OVERLAP, cell)
    tokens = [cell] if pair is None else [token.strip() for token in pair[1].split(";")]
    actions = [read_action(token, place) for token in tokens]
    for action in actions:
        if action.kind not in _KINDS or str(action) != _plain(action):
            raise InvalidSchedule(f"{place}: {cell!r} is not an action of torch's format, such as 2F0 or 2SEND_F0")
    return [actions[0], *(action._replace(with_previous=True) for action in actions[1:])]


def _plain(action: Action) -> str:
    """Return the action as text, reduced to stage, kind, micro-batch and the neighbour along the chain."""
    peer = action.stage + kinds()[action.kind].peer_offset if kinds()[action.kind].message else NONE
    return str(Action(action.kind, action.stage, action.micro_batch, peer=peer))
