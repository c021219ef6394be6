"""Actions as tokens in files."""

from __future__ import annotations

from hocket.errors import InvalidSchedule
from hocket.pipeline.action import NONE, Action
from hocket.pipeline.kind import kinds
from hocket.suggestions import unknown
from hocket.versioned_json import Head

HEAD = Head("hocket pipeline schedule, version ", 1, InvalidSchedule)


def read_action(text: str, place: str) -> Action:
    """Parse one action; the default peer of a message is the neighbour along the chain.

    Raises:
        InvalidSchedule: the text is not an action, or its kind is unknown; the error names the place.
    """
    action = Action.parse(text)
    if action is None:
        raise InvalidSchedule(
            f"{place}: {text!r} is not an action; write it like 2F0, 2F0-1 (two micro-batches), 1:2F0 (of pipe 1), "
            "2SEND_F0>3, 2SYNC_START or +2B0 (overlaps with the previous action)"
        )
    known = kinds()
    if action.kind not in known:
        raise InvalidSchedule(f"{place}: {text!r}: {unknown('kind', action.kind, sorted(known))}")
    if known[action.kind].message and action.peer == NONE:
        return action._replace(peer=action.stage + known[action.kind].peer_offset)
    return action
