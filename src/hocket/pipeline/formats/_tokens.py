"""Actions as words of a file."""

from __future__ import annotations

from hocket.errors import InvalidSchedule
from hocket.pipeline.action import NONE, Action
from hocket.pipeline.kind import kinds

VERSION = 1
FORMAT = f"hocket pipeline schedule, version {VERSION}"


def read_action(text: str, place: str) -> Action:
    """Read one action; a message that does not say its other end goes along the chain.

    Raises:
        InvalidSchedule: it is none, or of a kind that nobody registered; names the place.
    """
    action = Action.parse(text)
    if action is None:
        raise InvalidSchedule(
            f"{place}: {text!r} is no action; write it like 2F0, 2F0-1 (two micro-batches), 1:2F0 (of pipe 1), "
            "2SEND_F0>3, 2SYNC_START or +2B0 (together with the one before)"
        )
    known = kinds()
    if action.kind not in known:
        raise InvalidSchedule(
            f"{place}: {text!r}: there is no kind {action.kind!r}; there are {', '.join(sorted(known))}"
        )
    if known[action.kind].message and action.peer == NONE:
        return action._replace(peer=action.stage + known[action.kind].peer_offset)
    return action


def check_version(head: object, place: str) -> None:
    """Raise InvalidSchedule if a file is none of ours, or of another version."""
    if head == FORMAT:
        return
    if isinstance(head, str) and head.startswith("hocket pipeline schedule, version"):
        raise InvalidSchedule(f"{place}: this is a {head}; this hocket reads version {VERSION}")
    raise InvalidSchedule(f"{place}: not a {FORMAT}")
